"""Requests sent ahead of their responses: as many as the setting allows and the network takes."""

from __future__ import annotations

import pytest
import trio
from producing import keyless_are_delivered, numbers, ready, values
from trio.testing import MockClock as Clock

from trikafka._net.transport import StreamTransport

_SETTINGS = {"batch_size": 0, "enable_idempotence": False}


class Backlog:
    """The number of unsent bytes that the operating system reports."""

    bytes = 0


@pytest.fixture
def backlog(monkeypatch: pytest.MonkeyPatch) -> Backlog:
    send_buffer = Backlog()
    monkeypatch.setattr(StreamTransport, "backlog", property(lambda _: send_buffer.bytes))
    return send_buffer


@pytest.mark.parametrize(("waiting", "in_flight"), [(0, 5), (1 << 19, 5), ((1 << 19) + 1, 2)])
async def test_backlog_limits_requests_in_flight(
    waiting: int, in_flight: int, backlog: Backlog, autojump_clock: Clock
) -> None:
    async with ready(**_SETTINGS) as (cluster, producer):
        backlog.bytes = waiting
        cluster.freeze(0)
        for value in numbers(8):
            producer.send_nowait("t", value)
        await trio.sleep(1)
        assert producer.statistics().requests_in_flight == in_flight
        cluster.thaw(0)
        await producer.flush()
        assert values(cluster) == numbers(8), "each response lets the next one go"


async def test_drained_backlog_is_used_soon(backlog: Backlog, autojump_clock: Clock) -> None:
    async with ready(**_SETTINGS) as (cluster, producer):
        backlog.bytes = 1 << 20
        cluster.freeze(0)
        for value in numbers(8):
            producer.send_nowait("t", value)
        await trio.sleep(1)
        backlog.bytes = 0
        start = trio.current_time()
        while producer.statistics().requests_in_flight < 5:  # noqa: ASYNC110
            await trio.sleep(0.001)
        assert trio.current_time() - start <= 0.006
        cluster.thaw(0)
        await producer.flush()
        assert values(cluster) == numbers(8)


@pytest.mark.parametrize("linger_ms", [0, 5])
async def test_broker_is_available_after_expiries(linger_ms: int, autojump_clock: Clock) -> None:
    settings = {
        "partitioner_availability_timeout_ms": 2_000,
        "partitioner_adaptive_partitioning_enable": False,
    }
    settings |= {
        "delivery_timeout_ms": 4_000 + linger_ms,
        "request_timeout_ms": 4_000,
        "linger_ms": linger_ms,
    }
    settings |= {"max_in_flight_requests_per_connection": 1}
    async with ready(nodes=2, partitions=4, **settings, **_SETTINGS) as (cluster, producer):
        cluster.freeze(1)
        far = next(n for n in range(4) if cluster.partition("t", n).leader == 1)
        acks = [await producer.enqueue("t", b"x", partition=far) for _ in range(3)]
        while not all(ack.done for ack in acks):  # noqa: ASYNC110
            await trio.sleep(0.1)
        cluster.thaw(1)
        await trio.sleep(60)
        assert {(await producer.send("t", b"x")).partition % 2 for _ in range(40)} == {0, 1}


@pytest.mark.parametrize("patience", [0, 2_000])
async def test_broker_with_a_backlog_is_unavailable(
    patience: int, backlog: Backlog, autojump_clock: Clock
) -> None:
    """Like a broker that has as many requests as allowed."""
    settings = {
        "partitioner_availability_timeout_ms": patience,
        "partitioner_adaptive_partitioning_enable": False,
    }
    async with ready(nodes=2, partitions=4, **settings, **_SETTINGS) as (cluster, producer):
        backlog.bytes = 1 << 20
        cluster.freeze(1)
        assert await keyless_are_delivered(cluster, producer, node=1, waiting=3) == (patience > 0)
        cluster.thaw(1)
        await producer.flush()


async def test_held_back_records_expire_on_time(backlog: Backlog, autojump_clock: Clock) -> None:
    settings = {"delivery_timeout_ms": 4_000, "request_timeout_ms": 3_000}
    async with ready(**_SETTINGS, **settings) as (cluster, producer):
        backlog.bytes = 1 << 20
        cluster.freeze(0)
        start = trio.current_time()
        acks = [producer.send_nowait("t", value) for value in numbers(8)]
        await trio.sleep(1)
        assert producer.statistics().requests_in_flight == 2
        while not all(ack.done for ack in acks):  # noqa: ASYNC110
            await trio.sleep(0.01)
        assert trio.current_time() - start == pytest.approx(4, abs=0.02)
        await producer.aclose()
        assert producer.statistics().buffer_used == 0
