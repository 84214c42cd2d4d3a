"""The work of readers in Spark's Python workers beside reading."""

from __future__ import annotations

import pickle
import socket
from collections.abc import Callable

import pytest
from pyspark.sql.types import StructType
from trikafka_spark.read_options import read_options
from trikafka_spark.source import TrikafkaReader
from trikafka_spark.stream_reader import TrikafkaStreamReader

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
