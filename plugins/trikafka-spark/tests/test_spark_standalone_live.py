"""A standalone cluster with two workers: our packages shipped by ``--py-files``, executors that are killed, a broker that goes."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
from spark_kafka import check_whole, data_files, make_topic
from standalone import SMALL, Standalone, standalone, zipped
from trikafka_broker import Cluster

import trikafka

CHILD = Path(__file__).with_name("standalone_child.py")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    with standalone(tmp_path_factory.mktemp("standalone")) as found:
        yield found


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return zipped(tmp_path_factory.mktemp("zip") / "shipped-trikafka.zip")


async def test_executors_work_with_what_is_shipped_by_py_files(
    cluster: Standalone, archive: Path, kafka_broker: Any, new_topic: Any, tmp_path: Path
) -> None:
    """Batch read and exactly-once write, from the zip, which holds nothing compiled: each worker says so once."""
    topic, target = await new_topic(400), await new_topic(0)
    arguments = [cluster.master, str(archive), kafka_broker.bootstrap_servers, topic, target]
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    with trio.fail_after(100):
        done = await trio.run_process(
            [sys.executable, str(CHILD), *arguments], capture_stdout=True, capture_stderr=True, check=False, env=environment
        )
    assert done.returncode == 0, done.stderr.decode()
    found = json.loads(done.stdout)
    assert found["counted"] == [100] * 4
    for path, form, warnings in found["looks"]:
        assert archive.name in path
        assert form.startswith("pure: it is in a zip archive")
        assert warnings <= 1
    settings: dict[str, Any] = {"bootstrap_servers": kafka_broker.bootstrap_servers, "isolation_level": "read_committed"}
    async with trikafka.open_consumer(**settings) as consumer:
        tps = [trikafka.TopicPartition(target, number) for number in range(4)]
        consumer.assign(tps)
        consumer.seek_to_beginning()
        with trio.fail_after(20):
            assert sum([len(batch) async for batch in consumer.batches(until=await consumer.end_offsets(tps))]) == 400


async def test_an_executor_is_killed_and_a_broker_goes_in_mid_export(
    cluster: Standalone, archive: Path, make_kafka_cluster: Any, tmp_path: Path
) -> None:
    """Spark starts another executor, its tasks go on from what the killed one has decided, and wait for the broker."""
    kafka = Cluster(await trio.to_thread.run_sync(make_kafka_cluster))
    records, root = 20_000, tmp_path / "out"
    topic = await make_topic(kafka.bootstrap_servers, "t", records, 4)
    options = {"spark_above": "0", "master": cluster.master, "spark.submit.pyFiles": str(archive)} | SMALL
    arguments = [part for name, value in options.items() for part in ("--option", f"{name}={value}")]
    command = [sys.executable, "-m", "trikafka.cli", "export", topic, str(root), "-b", kafka.bootstrap_servers]
    killed: list[int] = []

    async def trouble() -> None:
        while len(data_files(root)) < 10:  # noqa: ASYNC110  (other processes make them)
            await trio.sleep(0.01)
        killed.append(cluster.executors()[0])
        os.kill(killed[0], signal.SIGKILL)
        await kafka.brokers[0].kill()
        await trio.sleep(1)  # so long there is no broker
        await kafka.brokers[0].start()

    with trio.fail_after(150):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trouble)
            done = await trio.run_process(
                [*command, "--max-records-per-file", "100", "--json", *arguments],
                capture_stdout=True,
                capture_stderr=True,
                check=False,
                env=os.environ | {"TMPDIR": str(tmp_path)},
            )
    assert done.returncode == 0, done.stderr.decode()
    assert json.loads(done.stdout)["records"] == records
    assert len(killed) == 1
    check_whole(root, records, 4)
