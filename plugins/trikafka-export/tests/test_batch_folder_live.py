"""``sink_batches`` to Parquet from a real Kafka: each record is written once, despite kills."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import trio
from known_topics import data_files, value_of

import trikafka

RECORDS = 3_000
CHILD = Path(__file__).with_name("sinking_child.py")


@contextmanager
def worker(servers: str, topic: str, root: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run the program, and kill it at the end of the block."""
    with subprocess.Popen([sys.executable, str(CHILD), servers, topic, str(root)]) as process:
        try:
            yield process
        finally:
            process.kill()


async def test_killed_worker_leaves_each_record_once(
    kafka_broker: Any, new_topic: Any, tmp_path: Path
) -> None:
    """A worker that is killed three times leaves each record in the folder once."""
    servers, topic, root = (
        kafka_broker.bootstrap_servers,
        await new_topic(RECORDS),
        tmp_path / "out",
    )
    with trio.fail_after(180):
        async with trikafka.open_admin(bootstrap_servers=servers) as admin:
            for _ in range(3):
                before = len(data_files(root))
                with worker(servers, topic, root):
                    while len(data_files(root)) < before + 5:  # noqa: ASYNC110  (another process makes them)
                        await trio.sleep(0.01)
            with worker(servers, topic, root) as process:
                done: list[int] = []
                while done != [RECORDS // 4] * 4:
                    await trio.sleep(0.05)
                    done = [
                        known.offset
                        for known in (await admin.list_group_offsets(f"lake-{topic}")).values()
                    ]
                process.send_signal(signal.SIGTERM)
                assert await trio.to_thread.run_sync(process.wait) == 0
    table = ds.dataset([str(path) for path in data_files(root)]).to_table()
    table = table.sort_by([("partition", "ascending"), ("offset", "ascending")])
    places = list(zip(table["partition"].to_pylist(), table["offset"].to_pylist(), strict=True))
    assert places == [(part, at) for part in range(4) for at in range(RECORDS // 4)]
    assert table["value"].to_pylist() == [value_of(at * 4 + part) for part, at in places]
