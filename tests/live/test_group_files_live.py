"""``examples/group_files.py`` with a real Kafka: each record is in one file, despite kills."""

from __future__ import annotations

import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import trio
from known_topics import add_records, make_topic, value_of

import trikafka

#: Each worker has a part of the records of its own to write, however quick the one before was.
PART, WORKERS = 800, 4
RECORDS = PART * WORKERS
EXAMPLES = Path(__file__).parents[2] / "examples"
#: The example with small batches, and a short session, since a killed member leaves no group: long enough
#: for a busy machine, on which imports alone take a second.
PROGRAM = f"""
import sys, trio
sys.path.insert(0, {str(EXAMPLES)!r})
import group_files
group_files.SETTINGS |= {{
    "bootstrap_servers": sys.argv[3], "group_id": sys.argv[4], "group_protocol": "classic",
    "session_timeout_ms": 15_000, "heartbeat_interval_ms": 300, "fetch_max_wait_ms": 100,
    "max_poll_records": 40, "auto_commit_interval_ms": 200,
}}
trio.run(group_files.main)
"""


@contextmanager
def worker(topic: str, folder: Path, servers: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run the program, and kill it at the end of the block."""
    arguments = [topic, str(folder), servers, f"files-{topic}"]
    with subprocess.Popen([sys.executable, "-c", PROGRAM, *arguments]) as process:
        try:
            yield process
        finally:
            process.kill()


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("[!.]*"))


async def test_killed_worker_leaves_each_record_once(kafka_broker: Any, tmp_path: Path) -> None:
    """A worker that is killed three times leaves each record in one file."""
    servers, root = kafka_broker.bootstrap_servers, tmp_path / "out"
    topic = await make_topic(servers, f"files-{uuid.uuid4().hex[:8]}", 0, 4)
    with trio.fail_after(800):
        async with trikafka.open_admin(bootstrap_servers=servers) as admin:
            for number in range(WORKERS - 1):
                await add_records(servers, topic, number * PART, PART, 4)
                before = len(files(root))
                with worker(topic, root, servers):
                    while len(files(root)) < before + 5:  # noqa: ASYNC110  (another process makes them)
                        await trio.sleep(0.01)
            await add_records(servers, topic, RECORDS - PART, PART, 4)
            with worker(topic, root, servers) as process:
                done: list[int] = []
                while done != [RECORDS // 4] * 4:
                    await trio.sleep(0.05)
                    offsets = await admin.list_group_offsets(f"files-{topic}")
                    done = [known.offset for known in offsets.values()]
                process.send_signal(signal.SIGTERM)
                assert await trio.to_thread.run_sync(process.wait) == 0
    found = []
    for path in files(root):
        table = pq.read_table(path)
        columns = [table[name].to_pylist() for name in ("partition", "offset", "value")]
        found += zip(*columns, strict=True)
    assert sorted(found, key=lambda row: row[:2]) == [
        (part, at, value_of(at * 4 + part)) for part in range(4) for at in range(RECORDS // 4)
    ]
