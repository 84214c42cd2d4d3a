"""One broker for all workers of pytest-xdist."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import AuthenticationError
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from broker_waiting import eventually, processes_naming, running
from trikafka_broker import BrokerError, KafkaBroker, KafkaCluster
from trikafka_broker.cluster import ToolFiles
from trikafka_broker.probe import registered_brokers
from trikafka_broker.workers import Lender, borrow

#: A test file whose test notes its process and the broker, and waits until the other has done so.
TEST = """
import os, time
from pathlib import Path

def test_it(kafka_broker, kafka_broker_cluster):
    kafka_broker_cluster.run_tool("org.apache.kafka.tools.TopicCommand", "--version", timeout=240)
    here = Path(__file__)
    words = f"{os.getpid()} {kafka_broker.bootstrap_servers} {kafka_broker.pid}"
    here.with_suffix(".part").write_text(words)
    here.with_suffix(".part").rename(here.with_suffix(".noted"))
    while len(list(here.parent.glob("*.noted"))) < 2 or here.with_name("wait").exists():
        time.sleep(0.02)
"""
OPTIONS = ["-q", "-n", "2", "--dist", "loadfile", "-p", "no:cacheprovider"]


@contextmanager
def two_workers(folder: Path) -> Iterator[Any]:
    """Run a test in each of two workers; yield the controller once both have noted the broker."""
    folder.mkdir()
    (folder / "pytest.ini").write_text("[pytest]\nkafka_shared_by_workers = true\n")
    for name in ("one", "two"):
        (folder / f"test_{name}.py").write_text(TEST)
    (folder / "wait").touch()
    place = ["-c", str(folder / "pytest.ini"), "--rootdir", str(folder), str(folder)]
    with running([sys.executable, "-m", "pytest", *OPTIONS, *place]) as controller:
        assert eventually(lambda: len(list(folder.glob("*.noted"))) == 2, 400)
        yield controller


def noted(folder: Path) -> list[tuple[str, ...]]:
    """Return the process, the broker's address and the broker's process, of each test."""
    return [tuple(file.read_text().split()) for file in folder.glob("*.noted")]


@pytest.mark.parametrize("ending", ["passed", "killed"])
def test_workers_share_a_broker(ending: str, tmp_path: Path, temporary: Path) -> None:
    """It ends with the run, also if the controller is killed."""
    folder = tmp_path / "suite"
    with two_workers(folder) as controller:
        (one, servers, *broker), (two, *same) = noted(folder)
        assert one != two
        assert same == [servers, *broker]
        host, port = servers.split(":")
        assert registered_brokers(host, int(port)) == {0}
        if ending == "killed":
            controller.kill()
        else:
            (folder / "wait").unlink()
            out, err = controller.communicate(timeout=240)
            assert controller.returncode == 0, out + err
        assert eventually(lambda: not processes_naming(str(temporary)))


class Cluster(KafkaCluster):
    """A cluster of one broker without a process, which counts its ends."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        jars: Any = SimpleNamespace(libs=folder, archive=None)
        self._adopt(ToolFiles(folder, folder, folder / "java", jars))
        self.brokers = (Broker(self, 0, {"PLAINTEXT": 9092}, folder, folder / "log"),)
        self.closed = 0

    def close(self) -> None:
        self.closed += 1


class Broker(KafkaBroker):
    @property
    def pid(self) -> int | None:
        return os.getpid()


@pytest.fixture
def started() -> list[Cluster]:
    return []


@pytest.fixture
def lender(started: list[Cluster], tmp_path: Path) -> Iterator[Lender]:
    """Lend a cluster whose first two starts fail."""
    failures = [ValueError("a wrong option"), BrokerError("no room")]

    def start() -> Cluster:
        if failures:
            raise failures.pop()
        started.append(Cluster(tmp_path))
        return started[-1]

    lender = Lender(start)
    yield lender
    lender.close()
    assert [cluster.closed for cluster in started] == [1] * len(started)


def test_failed_start_is_tried_again(lender: Lender, started: list[Cluster]) -> None:
    for says in ("BrokerError: no room", "ValueError: a wrong option"):
        with pytest.raises(BrokerError, match=says):
            borrow(*lender.address)
    first, second = borrow(*lender.address), borrow(*lender.address)
    assert len(started) == 1
    assert first.bootstrap_servers == second.bootstrap_servers == "127.0.0.1:9092"


def test_borrowed_broker_is_left_running(lender: Lender, started: list[Cluster]) -> None:
    for _ in range(2):
        with pytest.raises(BrokerError):
            borrow(*lender.address)
    with borrow(*lender.address) as cluster:
        (broker,) = cluster.brokers
        assert (broker.alive, broker.pid) == (True, os.getpid())
        broker.start()
        for call in (broker.stop, broker.kill, broker.freeze, broker.restart, cluster.stop):
            with pytest.raises(BrokerError, match="make_kafka_cluster"):
                call()
    assert started[0].closed == 0


def test_stranger_gets_no_broker(lender: Lender, started: list[Cluster]) -> None:
    host, port, key = lender.address
    with pytest.raises(AuthenticationError):
        borrow(host, port, key[::-1])
    assert started == []
