"""Statistics of a producer, and the observer's calls for batches. Times are exact."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock as Clock

import trikafka
from trikafka import BatchEvent, BrokerLatency, ErrorCode, hookimpl
from trikafka.interfaces import Observer, ProducerObserver
from trikafka.testing import ScriptedCluster


class Watching(ProducerObserver):
    """A plugin and its observer, which records its calls."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, BatchEvent]] = []

    @hookimpl
    def trikafka_observer(self, context: Any) -> Observer:
        return self

    def batch_sent(self, event: BatchEvent) -> None:
        self.seen.append(("sent", event))

    def batch_retried(self, event: BatchEvent) -> None:
        self.seen.append(("retried", event))

    def batch_delivered(self, event: BatchEvent) -> None:
        self.seen.append(("delivered", event))

    def batch_failed(self, event: BatchEvent) -> None:
        self.seen.append(("failed", event))


def settings(cluster: ScriptedCluster, *plugins: object, **more: Any) -> dict[str, Any]:
    return {
        "bootstrap_servers": cluster.bootstrap_servers,
        "dial": cluster.dial,
        "plugins": plugins,
    } | more


async def test_observer_is_notified_of_batches(autojump_clock: Clock) -> None:
    """No call is made for a single record."""
    watching = Watching()
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        given = settings(
            cluster, watching, linger_ms=100, retry_backoff_ms=50, retry_backoff_max_ms=50
        )
        async with trikafka.open_producer(**given) as producer:
            await producer.partitions_for("t")
            cluster.delay("Produce", 0.25)
            cluster.fail("Produce", ErrorCode.NOT_ENOUGH_REPLICAS)
            began = trio.current_time()
            acks = [await producer.enqueue("t", b"v") for _ in range(7)]
            await acks[0].wait()
            age = trio.current_time() - began
            cluster.fail("Produce", ErrorCode.INVALID_RECORD)
            with pytest.raises(trikafka.BrokerResponseError):
                await producer.send("t", b"w")
    points = [(point, event.records, event.attempt) for point, event in watching.seen]
    assert points == [
        ("sent", 7, 1),
        ("retried", 7, 2),
        ("sent", 7, 2),
        ("delivered", 7, 2),
        ("sent", 1, 1),
        ("failed", 1, 1),
    ]
    events = [event for _, event in watching.seen]
    assert [event.age for event in events[:1]] == pytest.approx([0.1])
    assert events[3].age == pytest.approx(age)
    assert isinstance(events[1].error, trikafka.BrokerResponseError)
    assert events[1].error.code == ErrorCode.NOT_ENOUGH_REPLICAS
    assert isinstance(events[5].error, trikafka.BrokerResponseError)
    assert all((event.topic, event.partition) == ("t", 0) and event.size > 0 for event in events)


async def test_error_of_an_observer_changes_nothing(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(Watching):
        def batch_sent(self, event: BatchEvent) -> None:
            raise RuntimeError("broken")

    async with ScriptedCluster(topics={"t": 1}) as cluster:
        async with trikafka.open_producer(**settings(cluster, broken := Broken())) as producer:
            for number in range(3):
                assert (await producer.send("t", b"v")).offset == number
    assert [point for point, _ in broken.seen] == ["delivered"] * 3
    assert sum("batch_sent" in record.message for record in caplog.records) == 1


async def test_async_observer_is_refused_at_open() -> None:
    class Async(Watching):
        async def batch_sent(self, event: BatchEvent) -> None:  # type: ignore[override]
            """No task would await this."""

    async with ScriptedCluster(topics={"t": 1}) as cluster:
        with pytest.raises(trikafka.PluginError, match=r"batch_sent must be plain functions"):
            async with trikafka.open_producer(**settings(cluster, Async())):
                pass


async def test_statistics_count_states_and_latency(autojump_clock: Clock) -> None:
    async with ScriptedCluster(nodes=2, topics={"t": 3}) as cluster:
        given = settings(
            cluster, linger_ms=1_000, retry_backoff_ms=10_000, retry_backoff_max_ms=10_000
        )
        async with trikafka.open_producer(**given) as producer:
            await producer.partitions_for("t")
            for partition in range(3):
                await producer.enqueue("t", b"v", partition=partition)
            assert producer.statistics().batches_by_state == {
                "open": 3,
                "waiting": 0,
                "retrying": 0,
                "in flight": 0,
            }
            assert producer.statistics().latency == {}
            slow = cluster.delay("Produce", 0.4, node=0)
            cluster.fail("Produce", ErrorCode.NOT_ENOUGH_REPLICAS, node=1)
            await trio.sleep(1.2)
            assert producer.statistics().batches_by_state == {
                "open": 0,
                "waiting": 0,
                "retrying": 1,
                "in flight": 2,
            }
            await producer.flush()
            slow.remove()
            cluster.delay("Produce", 0.1, node=0)
            await producer.enqueue("t", b"v", partition=0)
            await producer.flush()
            latency = producer.statistics().latency
            assert set(latency) == {0, 1}
            assert latency[1] == BrokerLatency(0, 0, 0, 2)
            assert (
                latency[0].last,
                latency[0].mean,
                latency[0].longest,
                latency[0].requests,
            ) == pytest.approx((0.1, 0.25, 0.4, 2))


class OtherError(BaseException):
    """An error that is no Exception, as pytest.fail() raises."""


class Raising(Watching):
    """An observer that raises."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error

    def batch_delivered(self, event: BatchEvent) -> None:
        raise self.error


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, OtherError])
async def test_observers_interrupt_is_raised(
    kind: type[BaseException], autojump_clock: Clock
) -> None:
    """Also if the client fails by it before: which task runs first is Trio's choice."""

    async def send(cluster: ScriptedCluster, watching: Watching) -> None:
        async with trikafka.open_producer(**settings(cluster, watching)) as producer:
            for number in range(3):
                await producer.send("t", b"%d" % number)

    for _ in range(8):
        async with ScriptedCluster(topics={"t": 1}) as cluster:
            raising = Raising(kind("stop"))
            with pytest.raises(kind) as caught:
                await send(cluster, raising)
            assert caught.value is raising.error
