"""The work of readers in Spark's Python workers beside reading."""

from __future__ import annotations

import pickle
import socket
from collections.abc import Callable
from itertools import chain, repeat

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StructType
from trikafka_spark import stream_reader
from trikafka_spark.read_options import read_options
from trikafka_spark.source import TrikafkaReader
from trikafka_spark.stream_reader import TrikafkaStreamReader

from trikafka import TopicPartition

_GIVEN = {"kafka.bootstrap.servers": "localhost:1", "subscribe": "t"}


def _batch() -> object:
    return TrikafkaReader(read_options(_GIVEN), StructType(), "token")


def _stream() -> object:
    return TrikafkaStreamReader(read_options(_GIVEN, streaming=True), StructType())


@pytest.mark.skipif(
    not hasattr(socket, "TCP_QUICKACK"),
    reason="Linux alone puts acknowledgements off where one can say not to",
)
@pytest.mark.parametrize("make", [_batch, _stream])
def test_worker_acknowledges_its_function_at_once(make: Callable[[], object]) -> None:
    # Spark sends a task's partition only after its function was acknowledged: 40 ms a task.
    function = pickle.dumps(make())
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as spark,
    ):
        worker, _ = server.accept()
        with worker:
            worker.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 0)
            assert not worker.getsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK)
            spark.sendall(function)
            pickle.loads(worker.recv(len(function), socket.MSG_WAITALL))
            assert worker.getsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK)


def test_pickled_reader_is_whole() -> None:
    reader = _batch()
    assert vars(pickle.loads(pickle.dumps(reader))).keys() == vars(reader).keys()


@pytest.mark.parametrize(("later", "end"), [(12, 9), (9, 9), (7, 7)])
def test_available_now_believes_no_low_end(
    monkeypatch: pytest.MonkeyPatch, later: int, end: int
) -> None:
    """A new leader may not know the end yet; a log that has lost records stays behind."""
    reader = TrikafkaStreamReader(read_options(_GIVEN, streaming=True), StructType())
    ends = chain([5], repeat(later))
    monkeypatch.setattr(reader, "_look", lambda known: {TopicPartition("t", 0): next(ends)})
    reader.prepareForTriggerAvailableNow()
    start = {"t": {"0": 9}}
    for _ in range(2):
        assert reader.latestOffset(start, ReadAllAvailable()) == {"t": {"0": end}}


def test_available_now_keeps_a_later_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    """A partition that is newer than the look at the ends has no records in this run."""
    reader = TrikafkaStreamReader(read_options(_GIVEN, streaming=True), StructType())
    old, new = TopicPartition("t", 0), TopicPartition("t", 1)
    looks = chain([{old: 5}], repeat({old: 9, new: 3}))
    monkeypatch.setattr(reader, "_look", lambda known: next(looks))
    reader.prepareForTriggerAvailableNow()
    start = {"t": {"0": 0, "1": 0}}
    for _ in range(2):
        assert reader.latestOffset(start, ReadAllAvailable()) == {"t": {"0": 5, "1": 0}}


def test_idle_stream_rests_between_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look that found something is followed by the next one at once, a slow idle one later."""
    now = 100.0
    looks: list[float] = []
    found = iter([(9, 0.002), (9, 0.1), (9, 0.002), (12, 0.002), (9, 30), (9, 0.002)])

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    monkeypatch.setattr(stream_reader.time, "monotonic", lambda: now)
    monkeypatch.setattr(stream_reader.time, "sleep", sleep)
    reader = TrikafkaStreamReader(read_options(_GIVEN, streaming=True), StructType())

    def look(known: object) -> dict[TopicPartition, int]:
        looks.append(now)
        end, seconds = next(found)
        sleep(seconds)
        return {TopicPartition("t", 0): end}

    monkeypatch.setattr(reader, "_look", look)
    for _ in range(6):
        reader.latestOffset({"t": {"0": 9}}, ReadAllAvailable())
    assert [round(at - 100, 3) for at in looks] == [0, 0.05, 0.45, 0.5, 0.502, 31.502]
