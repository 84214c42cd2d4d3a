"""Quotas of a broker: the client keeps the throttle time for the whole connection (KIP-219)."""

from __future__ import annotations

from typing import Any

import pytest
import trio
import trio.testing
from netting import NODE, Asked, Parts, connected, metadata_request, open_parts, throttle
from trio.testing import MockClock as Clock

from trikafka import (
    DeliveryTimeoutError,
    KafkaConnectionError,
    KafkaTimeoutError,
    TopicPartition,
    open_consumer,
    open_producer,
)
from trikafka._wire.messages import (
    ApiMessage,
    EncodedRequest,
    decode_response,
    late_throttle,
    read_throttle,
)
from trikafka.testing import ScriptedCluster
from trikafka.testing.messages import encode_response


async def ask(parts: Parts, **options: Any) -> Any:
    return await parts.brokers.request(NODE, metadata_request(), **options)


async def test_only_the_next_request_waits(autojump_clock: Clock) -> None:
    async with ScriptedCluster() as cluster, open_parts(cluster, bootstrap=False) as parts:
        throttle(cluster, 1500)
        for _ in range(3):
            await ask(parts)
        assert [seen.time for seen in cluster.requests("Metadata")] == [0, 1.5, 1.5]


async def test_other_connections_to_the_broker_go_on(autojump_clock: Clock) -> None:
    async with ScriptedCluster() as cluster, open_parts(cluster, bootstrap=False) as parts:
        throttle(cluster, 1500)
        await ask(parts)
        await ask(parts, purpose="coordinator")
        assert trio.current_time() == 0


async def test_waiting_requests_are_sent_in_order(autojump_clock: Clock) -> None:
    """A request whose caller left is not sent."""
    async with (
        ScriptedCluster() as cluster,
        open_parts(cluster, bootstrap=False) as parts,
        trio.open_nursery() as nursery,
    ):
        throttle(cluster, 1500)
        await ask(parts)
        asked = [Asked(nursery, lambda: ask(parts)) for _ in range(5)]
        await trio.sleep(1)
        asked[2].scope.cancel()
        for each in asked:
            await each.done.wait()
        assert asked[2].cancelled
        assert [seen.time for seen in cluster.requests("Metadata")] == [0, 1.5, 1.5, 1.5, 1.5]
        ids = [seen.correlation_id for seen in cluster.requests("Metadata")]
        assert ids == sorted(ids)


async def test_time_of_a_request_begins_when_sent(autojump_clock: Clock) -> None:
    async with (
        ScriptedCluster() as cluster,
        open_parts(cluster, bootstrap=False, request_timeout_ms=1000) as parts,
    ):
        throttle(cluster, 5000)
        await ask(parts)
        await ask(parts)
        assert trio.current_time() == 5
        assert len(cluster.dials) == 1


@pytest.mark.parametrize(("version", "waits"), [(2, 0), (3, 1.5), (13, 1.5)])
async def test_every_version_with_the_field_waits(
    autojump_clock: Clock, version: int, waits: float
) -> None:
    async with (
        ScriptedCluster(api_versions={"Metadata": (0, version)}) as cluster,
        open_parts(cluster, bootstrap=False) as parts,
    ):
        throttle(cluster, 1500)
        await ask(parts)
        await ask(parts)
        assert trio.current_time() == waits


async def test_negative_throttle_is_none(autojump_clock: Clock) -> None:
    async with ScriptedCluster() as cluster, open_parts(cluster, bootstrap=False) as parts:
        throttle(cluster, -5)
        await ask(parts)
        await ask(parts)
        assert trio.current_time() == 0


async def test_connection_can_be_throttled_directly(autojump_clock: Clock) -> None:
    async with connected() as line:
        line.connection.throttle(2, "Metadata")
        line.connection.throttle(1, "Metadata")
        asked = line.ask()
        await line.peer.answer(await line.peer.request(), brokers=[], topics=[])
        await asked.outcome()
        assert trio.current_time() == 2


async def test_throttle_grown_too_long_holds_no_request(autojump_clock: Clock) -> None:
    async with connected() as line:
        asked = line.ask()
        await line.peer.request()
        for seconds in (50, 100, 150):
            line.connection.throttle(seconds, "Metadata")
        with pytest.raises(KafkaConnectionError):
            await asked.outcome()
        assert trio.current_time() == 50 + 30  # and request_timeout_ms


def logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "trikafka.brokers"]


async def test_two_hours_are_two_hours(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """Java's client also waits as long as the broker says.

    Calls end at their own limits.
    """
    async with ScriptedCluster() as cluster, open_parts(cluster, bootstrap=False) as parts:
        throttle(cluster, 7_200_000)
        await ask(parts)
        with trio.move_on_after(100) as scope:
            await ask(parts)
        assert scope.cancelled_caught
        (how,) = parts.brokers.throttles.now().values()
        assert how.startswith(
            "broker 0 at broker-0:9092 throttles this client: 7100.0 s more, 100.0 s so far, "
            "after Metadata"
        )
        await ask(parts, response_timeout=1)
        assert trio.current_time() == 7_200
        assert [seen.time for seen in cluster.requests("Metadata")] == [0, 7_200]
        assert len(cluster.dials) == 1
    text = (
        "broker 0 at broker-0:9092 throttles this client: nothing is sent to it for 7200 s after "
        "Metadata, by its quota"
    )
    assert logged(caplog) == [f"{text} request_percentage"]


async def test_throttled_call_ends_at_its_limit(autojump_clock: Clock) -> None:
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        settings: Any = {"bootstrap_servers": cluster.bootstrap_servers, "dial": cluster.dial}
        async with open_consumer(**settings) as consumer:
            place = TopicPartition("t", 0)
            await consumer.end_offsets([place])
            throttle(cluster, 7_200_000, api="ListOffsets")
            await consumer.end_offsets([place])
            began = trio.current_time()
            with pytest.raises(
                KafkaTimeoutError, match="ListOffsets to broker-0:9092, which throttles this client"
            ):
                await consumer.end_offsets([place], timeout=40)
            assert trio.current_time() - began == 40
            assert [how.split(", ")[0] for how in consumer.health().throttled.values()] == [
                "broker 0 at broker-0:9092 throttles this client: 7160.0 s more"
            ]
            with pytest.raises(KafkaTimeoutError):
                await consumer.end_offsets([place], timeout=7_159)
            assert await consumer.end_offsets([place], timeout=10) == {place: 0}
            assert trio.current_time() - began == 7_200
            assert not [
                seen
                for seen in cluster.requests("ListOffsets")
                if began < seen.time < began + 7_200
            ]


async def test_throttled_records_expire_and_resume(autojump_clock: Clock) -> None:
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        settings: Any = {
            "bootstrap_servers": cluster.bootstrap_servers,
            "dial": cluster.dial,
            "linger_ms": 0,
        }
        async with open_producer(**settings, delivery_timeout_ms=30_000) as producer:
            throttle(cluster, 7_200_000, api="Produce")
            await producer.send("t", b"1")
            began = trio.current_time()
            for passed in (30, 60):
                with pytest.raises(DeliveryTimeoutError, match="throttles this client"):
                    await producer.send("t", b"2")
                assert trio.current_time() - began == passed
            await trio.sleep_until(began + 7_195)
            await producer.send("t", b"3")
            assert trio.current_time() - began == 7_200


async def test_long_throttle_takes_no_batches(autojump_clock: Clock) -> None:
    """Expired records were surely not sent, and waiting ones go to a new leader at once."""
    async with ScriptedCluster(nodes=2, topics={"t": 1}) as cluster:
        settings: Any = {
            "bootstrap_servers": cluster.bootstrap_servers,
            "dial": cluster.dial,
            "linger_ms": 0,
        }
        async with open_producer(
            **settings, delivery_timeout_ms=30_000, metadata_max_age_ms=5_000
        ) as producer:
            throttle(cluster, 7_200_000, api="Produce")
            await producer.send("t", b"1")
            with pytest.raises(DeliveryTimeoutError, match="throttles this client") as caught:
                await producer.send("t", b"2")
            assert not caught.value.maybe_written
            waiting = await producer.enqueue("t", b"3")
            began = trio.current_time()
            cluster.move_leader("t", 0, 1)
            await waiting.wait()
            assert trio.current_time() - began <= 6


@pytest.mark.parametrize("seconds", [10, 40])
async def test_request_behind_a_throttle_is_not_silence(
    seconds: int, autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """The broker reads it late. Made again on another connection, it would be written twice."""
    muted_until = 0.0

    async def mute(request: Any, default: Any) -> Any:
        nonlocal muted_until
        await trio.sleep_until(muted_until)
        response = await default()
        await trio.sleep(0.1)
        if not muted_until:
            response.throttle_time_ms = seconds * 1_000
            muted_until = trio.current_time() + seconds
        return response

    async with ScriptedCluster(topics={"t": 1}) as cluster:
        settings: Any = {
            "bootstrap_servers": cluster.bootstrap_servers,
            "dial": cluster.dial,
            "linger_ms": 0,
            "enable_idempotence": False,
        }
        async with open_producer(**settings) as producer:
            await producer.send("t", b"0")
            cluster.on("Produce", mute, times=None)
            await producer.enqueue("t", b"1")
            await trio.sleep(0.05)
            behind = await producer.enqueue("t", b"2")
            await trio.sleep(7)
            assert producer.health().ok
            await behind.wait()
            assert trio.current_time() == pytest.approx(seconds + 0.2)
            assert len(cluster.requests("Produce")) == 3
    assert "does not respond" not in caplog.text


async def test_throttle_ends_with_its_connection(autojump_clock: Clock) -> None:
    async with ScriptedCluster() as cluster, open_parts(cluster, bootstrap=False) as parts:
        throttle(cluster, 7_200_000)
        await ask(parts)
        throttle(cluster, 10_000)
        await ask(parts, purpose="fetch")
        await trio.sleep(1)
        assert parts.brokers.throttles.statistics()[0].left == 7_199
        for connection in parts.brokers.connections():
            if connection.throttled_until > 10:
                connection.close()
        await trio.testing.wait_all_tasks_blocked()
        statistics = parts.brokers.throttles.statistics()[0]
        assert (statistics.left, statistics.total) == (9, 1)
        await ask(parts)
        assert trio.current_time() == 1


async def test_long_throttle_behind_a_short_is_logged(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """No response may come before it ends, so it cannot wait for the next reminder."""
    async with ScriptedCluster() as cluster, open_parts(cluster, bootstrap=False) as parts:
        for milliseconds in (200, 200, 7_200_000):
            throttle(cluster, milliseconds)
            await ask(parts)
    text = (
        "broker 0 at broker-0:9092 throttles this client: nothing is sent to it for {} s after "
        "Metadata"
    )
    assert [line.partition(", by its quota")[0] for line in logged(caplog)] == [
        text.format(0.2),
        text.format(7200),
    ]


async def test_negative_throttle_changes_nothing(autojump_clock: Clock) -> None:
    async with connected() as line:
        line.connection.throttle(-5, "Produce")
        assert (line.connection.throttled, line.connection.throttled_until) == (0, 0)


def responses() -> list[Any]:
    """Return every class of a response that trikafka can decode by kafka-python's decoder."""
    kinds, found = [ApiMessage], []
    while kinds:
        kind = kinds.pop()
        kinds += kind.__subclasses__()
        if kind.__name__.endswith("Response") and kind[None] is kind:
            found.append(kind)
    return sorted(found, key=lambda kind: kind.__name__)


@pytest.mark.parametrize("kind", responses(), ids=lambda kind: kind.__name__)
def test_throttle_of_each_response_is_read(kind: Any) -> None:
    """No table has to name a request that is added, in no version."""
    for version in range(kind.min_version, kind.max_version + 1):
        field = kind.fields.get("throttle_time_ms")
        throttles = field is not None and field.for_version_q(version)
        try:
            message = kind(version=version, **({"throttle_time_ms": 1234} if throttles else {}))
            frame = memoryview(encode_response(message, version, 7))[4:]
        except (TypeError, AttributeError):
            continue  # it has a field without a default
        sent = EncodedRequest([], kind.__name__, version, kind, True)
        late = late_throttle(sent, decode_response(sent, frame))
        assert read_throttle(sent, frame) + late == (1.234 if throttles else 0)
