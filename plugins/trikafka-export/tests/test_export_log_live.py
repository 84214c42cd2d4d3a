"""The log of an export whose clients, one in each of its threads, cannot reach a broker."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

import trikafka


async def test_dead_address_is_logged_once(
    kafka_broker: Any, new_topic: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Four threads with a client each log a dead bootstrap address once."""
    topic = await new_topic(400, partitions=4)
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound and not listening: refused
        dead = f"127.0.0.1:{unused.getsockname()[1]}"
        found = await trikafka.export(
            topic,
            tmp_path,
            bootstrap_servers=f"{dead},{kafka_broker.bootstrap_servers}",
            max_records_per_file=20,
            sink_options={"threads": 4},
        )
    assert found.rows == 400
    logged = [
        record
        for record in caplog.records
        if "a bootstrap address cannot be used" in record.getMessage()
        and dead in record.getMessage()  # and no client of another test
    ]
    assert len(logged) == 1
