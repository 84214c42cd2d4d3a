"""A standalone cluster with two workers: shipped packages, a killed executor, a broker's outage."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import trio
from known_topics import check_whole, data_files, make_topic
from standalone import Standalone, standalone, zipped
from trikafka_broker import Cluster

import trikafka

CHILD = Path(__file__).with_name("standalone_child.py")
RECORDS = 4_000


async def test_job_survives_an_executor_and_a_broker(
    make_kafka_cluster: Any, tmp_path: Path
) -> None:
    """A job with trikafka from a zip survives a killed executor and an outage of the broker.

    Its executors read, write exactly once and export, without compiled parts. During the export an
    executor is killed, and the broker is away for a second. Spark starts another executor. Its
    tasks continue after the pieces that the killed one has decided, and wait for the broker.
    """
    kafka = Cluster(await trio.to_thread.run_sync(make_kafka_cluster))
    topic = await make_topic(kafka.bootstrap_servers, "t", RECORDS, 4)
    target = await make_topic(kafka.bootstrap_servers, "u", 0, 4)
    root = tmp_path / "out"
    archive = zipped(tmp_path / "shipped.zip")
    environment = os.environ | {"TMPDIR": str(tmp_path), "PYSPARK_PYTHON": sys.executable}
    killed: list[int] = []
    with standalone(tmp_path) as cluster, trio.fail_after(900):
        command = [
            sys.executable,
            str(CHILD),
            cluster.master,
            str(archive),
            kafka.bootstrap_servers,
            topic,
            target,
            str(root),
        ]
        with (tmp_path / "said").open("wb") as said, (tmp_path / "wrong").open("wb") as wrong:
            async with trio.open_nursery() as nursery:
                process: trio.Process = await nursery.start(
                    partial(
                        trio.run_process,
                        command,
                        stdin=subprocess.PIPE,
                        stdout=said,
                        stderr=wrong,
                        check=False,
                        env=environment,
                    )
                )
                await _trouble(process, cluster, kafka, root, killed)
                assert process.stdin is not None
                await process.stdin.aclose()  # until now the executors stay, whatever was faster
    assert process.returncode == 0, (tmp_path / "wrong").read_text()
    found = json.loads((tmp_path / "said").read_text())
    assert len(killed) == 1
    assert (found["counted"], found["exported"]) == ([100] * 4, RECORDS)
    for path, form, warnings in found["looks"]:
        assert archive.name in path
        assert form.startswith("pure: it is in a zip archive")
        assert warnings <= 1
    check_whole(root, RECORDS, 4)
    settings: dict[str, Any] = {
        "bootstrap_servers": kafka.bootstrap_servers,
        "isolation_level": "read_committed",
    }
    async with trikafka.open_consumer(**settings) as consumer:
        tps = [trikafka.TopicPartition(target, number) for number in range(4)]
        consumer.assign(tps)
        consumer.seek_to_beginning()
        with trio.fail_after(900):
            assert (
                sum(
                    [
                        len(batch)
                        async for batch in consumer.batches(until=await consumer.end_offsets(tps))
                    ]
                )
                == 400
            )


async def _trouble(
    process: trio.Process, cluster: Standalone, kafka: Cluster, root: Path, killed: list[int]
) -> None:
    """Kill the broker and an executor once some files are there."""
    while len(data_files(root)) < 4:
        assert process.returncode is None, (root.parent / "wrong").read_text()
        await trio.sleep(0.01)
    await kafka.brokers[0].kill()  # first, so that the executor has work left
    killed += cluster.executors()[:1]
    os.kill(killed[0], signal.SIGKILL)
    await trio.sleep(1)  # the length of the outage
    await kafka.brokers[0].start()
