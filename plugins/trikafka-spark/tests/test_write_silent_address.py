"""Tasks of a write whose bootstrap addresses do not respond, or do not exist."""

from __future__ import annotations

import socket
import time

import pyarrow as pa
import pytest
from trikafka_spark.write_options import WriteOptions
from trikafka_spark.write_parts import Part
from trikafka_spark.writing import write_task

import trikafka


@pytest.mark.parametrize("exactly_once", [False, True])
def test_task_waits_for_a_silent_address(
    exactly_once: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """A task waits for a silent address as long as a send does.

    The only bootstrap address accepts connections and sends nothing. Previously the task failed
    after one request time-out.
    """
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        settings = {"bootstrap_servers": address, "request_timeout_ms": 200, "max_block_ms": 8_000}
        rows = iter([pa.record_batch({"value": pa.array([b"x"], pa.binary())})])
        part = Part("x-0", "run", 0, "w") if exactly_once else None
        begun = time.monotonic()
        with pytest.raises(trikafka.BootstrapError, match="no response within"):
            write_task(WriteOptions(settings, {"value": "value"}, "t", exactly_once), rows, part)
        assert 8 <= time.monotonic() - begun < 90
    assert caplog.text.count("the opening is retried for up to 8 s (kafka.max.block.ms)") == 1


def test_refused_connection_is_an_error_at_once() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound and not listening: refused
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        rows = iter([pa.record_batch({"value": pa.array([b"x"], pa.binary())})])
        begun = time.monotonic()
        with pytest.raises(trikafka.BootstrapError, match="no bootstrap address could be reached"):
            write_task(
                WriteOptions({"bootstrap_servers": address}, {"value": "value"}, "t"), rows, None
            )
    assert time.monotonic() - begun < 45
