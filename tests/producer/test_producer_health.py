"""``health()``: whether the producer works, and why not. An outage is logged once."""

from __future__ import annotations

import logging

import pytest
import trio
from producing import opened, ready
from transacting import producer_of, transacting
from trio.testing import MockClock as Clock

from trikafka.error_codes import ErrorCode
from trikafka.errors import (
    AuthorizationError,
    DeliveryTimeoutError,
    ProducerFencedError,
    RecordTooLargeError,
)


async def test_working_producer_is_healthy(autojump_clock: Clock) -> None:
    async with ready(nodes=2, partitions=2) as (_, producer):
        health = producer.health()
        assert (
            health.ok,
            health.reasons,
            health.oldest_unsent,
            health.error,
            health.transaction,
        ) == (True, (), None, None, None)
        assert [node.node_id for node in health.connected] == [0, 1]
        assert not health.unreachable
    health = producer.health()
    assert (health.ok, health.reasons) == (False, ("the producer is closed",))


async def test_health_names_an_unreachable_cluster(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with ready() as (cluster, producer):
        cluster.stop(0)
        for _ in range(100):
            producer.send_nowait("t", b"x")
            await trio.sleep(0.5)
        health = producer.health()
        assert not health.ok
        assert health.connected == ()
        assert health.oldest_unsent == pytest.approx(50)
        assert health.reasons[0].startswith("no broker of the cluster can be reached: since 50 s: ")
        assert (
            "t-0: a record has had no outcome for 50 s (waiting for a connection)"
            in health.reasons[1]
        )
        assert "nothing listens" in str(health.error)
        assert [node.node_id for node in health.unreachable] == [0]
        cluster.start(0)
        await producer.flush()
        assert producer.health().ok
        assert producer.health().error is None
        lines = [record.message for record in caplog.records if record.name == "trikafka.brokers"]
        assert [line for line in lines if "is lost" in line] == lines[:1]
        assert [line for line in lines if "is back" in line] == lines[1:]


async def test_health_names_an_unreachable_leader(autojump_clock: Clock) -> None:
    async with ready(nodes=2, partitions=2) as (cluster, producer):
        cluster.freeze(1)
        far = next(part for part in (0, 1) if cluster.partition("t", part).leader == 1)
        producer.send_nowait("t", b"x", partition=far)
        await trio.sleep(8)
        health = producer.health()
        assert health.ok, "it may come back soon"
        assert [node.node_id for node in health.unreachable] == [1]
        assert health.oldest_unsent == pytest.approx(8)
        await trio.sleep(5)
        health = producer.health()
        assert health.reasons[0].startswith(
            f"t-{far}: a record has had no outcome for 13 s (in flight): its leader cannot be"
        )
        cluster.thaw(1)


async def test_health_names_expired_records(autojump_clock: Clock) -> None:
    async with ready(delivery_timeout_ms=5_000, request_timeout_ms=4_000) as (cluster, producer):
        cluster.fail("Produce", ErrorCode.NOT_ENOUGH_REPLICAS, times=None)
        with pytest.raises(DeliveryTimeoutError):
            await producer.send("t", b"x")
        health = producer.health()
        assert not health.ok
        assert (
            "the last records failed, and none has been delivered since: send did not finish"
            in health.reasons[0]
        )
        assert "NOT_ENOUGH_REPLICAS" in health.reasons[0]
        cluster._script._rules.clear()
        await producer.send("t", b"x")
        assert producer.health().ok


async def test_only_general_refusals_are_unhealthy(
    autojump_clock: Clock,
) -> None:
    """A record that is too large leaves the producer healthy; a missing right does not."""
    async with ready() as (cluster, producer):
        cluster.fail("Produce", ErrorCode.MESSAGE_TOO_LARGE)
        with pytest.raises(RecordTooLargeError):
            await producer.send("t", b"x")
        assert producer.health().ok
        assert isinstance(producer.health().error, RecordTooLargeError)
        cluster.fail("Produce", ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        with pytest.raises(AuthorizationError):
            await producer.send("t", b"x")
        assert "not authorized" in producer.health().reasons[0]


@pytest.mark.parametrize("version", [1, 2])
async def test_health_has_the_transaction_state(version: int, autojump_clock: Clock) -> None:
    async with transacting(version) as (cluster, producer):
        assert producer.health().transaction == "ready"
        with pytest.raises(ProducerFencedError):  # noqa: PT012
            async with producer.transaction() as txn:
                await producer.send("t", b"x", partition=0)
                assert (producer.health().transaction, producer.health().ok) == (
                    "in transaction",
                    True,
                )
                async with producer_of(cluster):
                    pass
                await txn.commit()
        health = producer.health()
        assert (health.ok, health.transaction) == (False, "fatal error")
        assert "no more transactions are possible: a newer producer" in health.reasons[0]


async def test_health_makes_no_request(autojump_clock: Clock) -> None:
    """Also for a producer that has never sent a record."""
    async with ready() as (cluster, _), opened(cluster) as producer:
        asked = len(cluster.requests())
        assert producer.health().ok
        assert len(cluster.requests()) == asked
