"""Settings of the delivery timeout as programs of Java's have them (seed 002: "backwards
compatible").
"""

from __future__ import annotations

import logging
from typing import Any

import pytest
import trio
from producing import ready, values
from trio.testing import MockClock as Clock

import trikafka
from trikafka import DeliveryTimeoutError
from trikafka.config import ProducerConfig


@pytest.mark.parametrize(
    ("settings", "least"),
    [
        ({"request_timeout_ms": 150_000}, 150_005),
        ({"linger_ms": 100_000}, 130_000),
        ({"request_timeout_ms": 119_995}, 120_000),
    ],
)
def test_long_request_timeout_raises_the_default(
    settings: dict[str, Any], least: float, caplog: pytest.LogCaptureFixture
) -> None:
    """Settings from before KIP-91 with only a long request timeout are accepted.

    One warning names the delivery timeout that results.
    """
    config = ProducerConfig.build({"bootstrap_servers": "a:1"} | settings)
    assert config.delivery_timeout_ms == least
    warnings = [
        record.getMessage() for record in caplog.records if record.levelno == logging.WARNING
    ]
    assert len(warnings) == (least > 120_000)
    for line in warnings:
        assert f"delivery_timeout_ms is raised from 120000 to {least}" in line
        assert "linger_ms (" in line
        assert "request_timeout_ms (" in line


async def test_record_has_the_raised_timeout(autojump_clock: Clock) -> None:
    async with ready(request_timeout_ms=200_000, close_timeout_ms=0) as (cluster, producer):
        cluster.silence("Produce")
        start = trio.current_time()
        with pytest.raises(DeliveryTimeoutError, match="send did not finish within 200 s"):
            await producer.send("t", b"x")
        assert trio.current_time() - start == pytest.approx(200)


async def test_largest_java_numbers_mean_no_limit(autojump_clock: Clock) -> None:
    """Seed 002: ``retries=MAX_INT`` and ``delivery.timeout.ms=MAX_LONG`` let Kafka decide how long
    to try.
    """
    settings: Any = trikafka.from_properties(
        {"retries": str(2**31 - 1), "delivery.timeout.ms": str(2**63 - 1)}
    )
    async with ready(**settings) as (cluster, producer):
        cluster.stop(0)
        ack = await producer.enqueue("t", b"x")
        await trio.sleep(600)
        cluster.start(0)
        with trio.fail_after(60):
            await ack.wait()
        assert values(cluster) == [b"x"]
