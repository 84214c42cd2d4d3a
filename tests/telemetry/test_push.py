"""The pushes of a client's metrics (KIP-714), in virtual time: what is sent, and when."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from otlp_messages import Decoded
from trio.testing import MockClock

import trikafka
from trikafka import TopicPartition
from trikafka._wire.compression import BY_ID
from trikafka.error_codes import ErrorCode
from trikafka.testing import ScriptedCluster, assert_all_awaits_cancellable
from trikafka.testing._leftovers import assert_nothing_left

GET, PUSH = "GetTelemetrySubscriptions", "PushTelemetry"
KAFKA = "org.apache.kafka."
INTERVAL = 10.0
T0 = TopicPartition("t", 0)
PRODUCER = {
    "connection.creation.rate",
    "connection.creation.total",
    "node.request.latency.avg",
    "node.request.latency.max",
    "produce.throttle.time.avg",
    "produce.throttle.time.max",
    "record.queue.time.avg",
    "record.queue.time.max",
}
CONSUMER = {
    "connection.creation.rate",
    "connection.creation.total",
    "node.request.latency.avg",
    "node.request.latency.max",
    "poll.idle.ratio.avg",
    "coordinator.commit.latency.avg",
    "coordinator.commit.latency.max",
    "coordinator.assigned.partitions",
    "coordinator.rebalance.latency.avg",
    "coordinator.rebalance.latency.max",
    "coordinator.rebalance.latency.total",
    "fetch.manager.fetch.latency.avg",
    "fetch.manager.fetch.latency.max",
}
REQUIRED = {f"{KAFKA}producer.{name}" for name in PRODUCER} | {
    f"{KAFKA}consumer.{name}" for name in CONSUMER
}


@asynccontextmanager
async def receiving(
    *metrics: str, nodes: int = 1, interval: float = INTERVAL
) -> AsyncIterator[ScriptedCluster]:
    """Yield a cluster with a receiver that is subscribed to these metrics."""
    async with ScriptedCluster(nodes=nodes, topics={"t": 2}) as cluster:
        cluster.offer(GET, (0, 0))
        cluster.offer(PUSH, (0, 0))
        cluster.want_metrics(metrics, interval=interval)
        yield cluster


def settings(cluster: ScriptedCluster, **more: Any) -> dict[str, Any]:
    return {"bootstrap_servers": cluster.bootstrap_servers, "dial": cluster.dial, **more}


def times(cluster: ScriptedCluster, api: str) -> list[float]:
    return [seen.time for seen in cluster.requests(api)]


def decoded(seen: Any) -> Decoded:
    codec = BY_ID[seen.request.compression_type]
    return Decoded(bytes(codec.decompress(bytes(seen.request.metrics), 1_000_000, None)))


def payloads(cluster: ScriptedCluster) -> list[Decoded]:
    return [decoded(seen) for seen in cluster.requests(PUSH)]


def answer(cluster: ScriptedCluster, **values: Any) -> None:
    """Change some values of each subscription."""

    async def handler(request: Any, default: Any) -> Any:
        response = await default()
        for name, value in values.items():
            setattr(response, name, value)
        return response

    cluster.on(GET, handler)


# --- when ---


async def test_pushes_come_at_the_interval(autojump_clock: MockClock) -> None:
    async with receiving("*") as cluster:
        async with trikafka.open_consumer(**settings(cluster)) as consumer:
            began = trio.current_time()
            await trio.sleep(100)
            assert times(cluster, GET) == [began]
            first, *later = times(cluster, PUSH)
            assert 0.5 * INTERVAL <= first - began <= 1.5 * INTERVAL
            assert later == pytest.approx([first + INTERVAL * n for n in range(1, len(later) + 1)])
            assert len(later) >= 8
            push = consumer.statistics().metrics_push
            assert push is not None
            assert (push.state, push.metrics, push.interval) == ("push needed", ("*",), INTERVAL)
            assert push.pushes == len(later) + 1
            assert push.last == pytest.approx(trio.current_time() - later[-1])
            assert push.next == pytest.approx(INTERVAL - (push.last or 0))
            assert (push.broker or trikafka.Node(-1, "", 0)).node_id == 0
            assert push.client_instance_id == await consumer.client_instance_id(timeout=0)
            ends = trio.current_time()
        *_, last = cluster.requests(PUSH)
        assert (last.time, last.request.terminating) == (ends, True)
        assert not any(seen.request.terminating for seen in cluster.requests(PUSH)[:-1])
        assert {seen.request.client_instance_id for seen in cluster.requests(PUSH)} == {
            push.client_instance_id
        }
        assert len(times(cluster, GET)) == 1


async def test_no_subscription_is_asked_again(autojump_clock: MockClock) -> None:
    async with receiving() as cluster:
        async with trikafka.open_producer(**settings(cluster)) as producer:
            began = trio.current_time()
            await trio.sleep(25)
            assert times(cluster, GET) == pytest.approx([began, began + 10, began + 20])
            push = producer.statistics().metrics_push
            assert push is not None
            assert (push.metrics, push.pushes, push.last) == ((), 0, None)
            ids = [seen.request.client_instance_id for seen in cluster.requests(GET)]
            assert ids[0] is None  # kafka-python reads a zero id as None
            assert ids[1:] == [push.client_instance_id] * 2
        assert not cluster.requests(PUSH)


async def test_broker_without_receiver_is_not_asked(autojump_clock: MockClock) -> None:
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        async with trikafka.open_consumer(**settings(cluster)) as consumer:
            consumer.assign([T0])
            await trio.sleep(1000)
        assert not cluster.requests(GET)
        assert not cluster.requests(PUSH)


async def test_receiver_that_comes_later_is_found(autojump_clock: MockClock) -> None:
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        async with trikafka.open_producer(**settings(cluster)) as producer:
            await producer.send("t", b"1")
            for api in (GET, PUSH):
                cluster.offer(api, (0, 0))
            cluster.want_metrics(["*"], interval=1)
            cluster.disconnect()  # the connections of a restarted broker
            await producer.send("t", b"2")
            with trio.fail_after(305):
                await cluster.seen(PUSH)


@pytest.mark.parametrize("opening", [trikafka.open_consumer, trikafka.open_producer])
async def test_setting_switches_it_off(opening: Any, autojump_clock: MockClock) -> None:
    async with receiving("*") as cluster:
        async with opening(**settings(cluster, enable_metrics_push=False)) as client:
            await trio.sleep(100)
            assert client.statistics().metrics_push is None
            assert not cluster.requests(GET)
            assert (await client.client_instance_id()).int  # the id alone
            await trio.sleep(100)
        assert not cluster.requests(PUSH)


async def test_admin_pushes_only_if_it_is_told(autojump_clock: MockClock) -> None:
    async with receiving("*") as cluster:
        async with trikafka.open_admin(**settings(cluster)):
            await trio.sleep(100)
        assert not cluster.requests(GET)
        async with trikafka.open_admin(**settings(cluster, enable_metrics_push=True)) as admin:
            await trio.sleep(16)
            await admin.list_topics()
        assert cluster.requests(PUSH)[-1].request.terminating
        assert f"{KAFKA}admin.client.node.request.latency.avg" in payloads(cluster)[-1].metrics


# --- errors ---


@pytest.mark.parametrize(
    ("code", "again", "asks"),
    [
        (117, "at once", True),  # unknown subscription
        (76, "at once", True),  # unsupported compression
        (118, "later", False),  # too large
        (89, "later", False),  # throttled
        (42, "never", False),  # invalid request
        (87, "never", False),  # invalid record
        (35, "never", False),  # unsupported version
        (41, "never", False),  # one that no broker sends
    ],
)
async def test_each_error_of_a_push(
    code: int, again: str, asks: bool, autojump_clock: MockClock
) -> None:
    async with receiving("*") as cluster:
        cluster.fail(PUSH, code, times=1)
        async with trikafka.open_producer(**settings(cluster)) as producer:
            await trio.sleep(15)  # the first push was made
            first = times(cluster, PUSH)[0]
            push = producer.statistics().metrics_push
            assert push is not None
            assert push.pushes <= len(times(cluster, PUSH)) - 1
            await trio.sleep(35)
            pushed, asked = times(cluster, PUSH), times(cluster, GET)
            push = producer.statistics().metrics_push
            assert push is not None
            if again == "never":
                assert (pushed, len(asked)) == ([first], 1)
                assert (push.state, push.next) == ("off", None)
                assert getattr(push.last_error, "code", None) == code
            elif again == "later":
                assert pushed[1] == pytest.approx(first + INTERVAL)
                assert len(asked) == 1
            else:
                assert asked[1] == pytest.approx(first)
                assert 0.5 * INTERVAL <= pushed[1] - first <= 1.5 * INTERVAL
                assert len(asked) == 2
            if again != "never":
                assert push.last_error is None
        assert cluster.requests(PUSH)[-1].request.terminating is (again != "never")


async def test_refused_subscription_is_final(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with receiving("*") as cluster:
        cluster.fail(GET, 42, times=None)
        async with trikafka.open_producer(**settings(cluster)):
            await trio.sleep(1000)
        assert len(cluster.requests(GET)) == 1
        assert not cluster.requests(PUSH)
        lines = [record for record in caplog.records if record.name == "trikafka.telemetry"]
        assert len(lines) == 1
        assert "pushes no more" in lines[0].getMessage()


@pytest.mark.parametrize("pushing", [True, False])
async def test_refused_id_records_nothing(
    pushing: bool, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Calls for the id neither warn of pushes again nor begin to record."""
    async with receiving("*") as cluster:
        cluster.fail(GET, 42, times=3)
        async with trikafka.open_producer(
            **settings(cluster, enable_metrics_push=pushing)
        ) as producer:
            await trio.sleep(1)
            for _ in range(2 if pushing else 3):
                with pytest.raises(trikafka.BrokerResponseError):
                    await producer.client_instance_id()
            assert (await producer.client_instance_id()).int
            assert not producer._metrics.recording
        assert not cluster.requests(PUSH)
    lines = [record for record in caplog.records if record.name == "trikafka.telemetry"]
    assert len(lines) == pushing


async def test_new_subscription_is_taken_over(autojump_clock: MockClock) -> None:
    async with receiving(f"{KAFKA}producer.connection.") as cluster:
        async with trikafka.open_producer(**settings(cluster)):
            await trio.sleep(30)
            assert set(payloads(cluster)[-1].metrics) == {
                f"{KAFKA}producer.connection.creation.{kind}" for kind in ("rate", "total")
            }
            cluster.want_metrics([f"{KAFKA}producer.node."], interval=2)
            await trio.sleep(30)
            assert set(payloads(cluster)[-1].metrics) == {
                f"{KAFKA}producer.node.request.latency.{kind}" for kind in ("avg", "max")
            }
            asked = len(cluster.requests(GET))
            assert asked == 2
            cluster.want_metrics([])
            await trio.sleep(10)
            pushes = len(cluster.requests(PUSH))
            await trio.sleep(50)
            assert len(cluster.requests(PUSH)) == pushes
        assert not cluster.requests(PUSH)[-1].request.terminating


async def test_lost_push_goes_to_another_broker(autojump_clock: MockClock) -> None:
    async with receiving("*", nodes=2) as cluster:
        async with trikafka.open_producer(**settings(cluster)) as producer:
            await producer.send("t", b"1", partition=0)
            await producer.send("t", b"1", partition=1)
            await trio.sleep(60)
            pinned = {seen.node_id for seen in cluster.requests(PUSH)}
            assert len(pinned) == 1
            (node,) = pinned
            cluster.stop(node)
            await trio.sleep(60)
            later = [seen for seen in cluster.requests(PUSH) if seen.node_id != node]
            assert len(later) >= 3
            assert len({seen.request.client_instance_id for seen in cluster.requests(PUSH)}) == 1
            assert len(cluster.requests(GET)) == 1


async def test_failed_broker_may_be_chosen_again(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with receiving("*", nodes=3) as cluster:
        gone: set[int] = set()

        async def hide(request: Any, default: Any) -> Any:
            response = await default()
            response.brokers = [each for each in response.brokers if each.node_id not in gone]
            return response

        async def silent(request: Any, default: Any) -> None:
            await trio.lowlevel.checkpoint()

        cluster.on("Metadata", hide)
        # The broker with the lowest number is chosen.
        monkeypatch.setattr("random.choice", lambda nodes: min(nodes, key=str))
        async with trikafka.open_consumer(**settings(cluster, metadata_max_age_ms=1_000)):
            await trio.sleep(60)
            failed = cluster.requests(PUSH)[-1].node_id
            cluster.on(PUSH, silent, times=1)
            await trio.sleep(90)
            used = cluster.requests(PUSH)[-1].node_id
            assert used != failed
            gone.add(used)
            await trio.sleep(60)
            assert cluster.requests(PUSH)[-1].node_id == failed


async def test_withdrawn_receiver_is_asked_no_more(autojump_clock: MockClock) -> None:
    """A broker that lost its receiver is left for one that has it, and the pushes have metrics."""
    async with receiving("*", nodes=2) as cluster:
        async with trikafka.open_producer(**settings(cluster)) as producer:

            async def work(seconds: int) -> None:
                for _ in range(seconds):
                    await producer.send("t", b"1", partition=0)
                    await producer.send("t", b"1", partition=1)
                    await trio.sleep(1)

            await work(40)
            (node,) = {seen.node_id for seen in cluster.requests(PUSH)}
            for api in (GET, PUSH):
                cluster.offer(api, None, node=node)
            cluster.disconnect()
            before = len(cluster.requests(PUSH))
            await work(100)
            later = cluster.requests(PUSH)[before:]
            assert {seen.node_id for seen in later} == {1 - node}
            assert len(later) >= 5
            assert all(decoded(seen).metrics for seen in later)
            for api in (GET, PUSH):
                cluster.offer(api, None)
            cluster.disconnect()
            before = len(cluster.log)
            await work(100)
            push = producer.statistics().metrics_push
            assert push is not None
            assert push.state == "subscription needed"
            assert not [s for s in cluster.log[before:] if s.api_name in (GET, PUSH)]


async def test_null_in_a_subscription_is_refused(autojump_clock: MockClock) -> None:
    async with receiving("*") as cluster:
        answer(cluster, requested_metrics=["a", None])
        async with trikafka.open_producer(**settings(cluster)) as producer:
            await trio.sleep(1000)
            await producer.send("t", b"1")
            push = producer.statistics().metrics_push
            assert push is not None
            assert "requested_metrics has a null item" in str(push.last_error)


async def test_too_large_is_not_sent(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with receiving("*") as cluster:
        answer(cluster, telemetry_max_bytes=100)
        async with trikafka.open_producer(**settings(cluster)) as producer:
            await trio.sleep(100)
            push = producer.statistics().metrics_push
            assert push is not None
            assert "the broker accepts at most 100" in str(push.last_error)
        assert not cluster.requests(PUSH)
    lines = [record for record in caplog.records if record.name == "trikafka.telemetry"]
    assert len(lines) == 1


# --- what ---


@pytest.mark.parametrize(
    ("accepted", "used"), [([4, 3, 1], 4), ([1], 1), ([2, 4], 2), ([9, 3], 3), ([], 0), ([9], 0)]
)
async def test_brokers_preferred_codec(
    accepted: list[int], used: int, autojump_clock: MockClock
) -> None:
    async with receiving("*", interval=1) as cluster:
        answer(cluster, accepted_compression_types=accepted)
        async with trikafka.open_producer(**settings(cluster)):
            await cluster.seen(PUSH)
        (seen, *_) = cluster.requests(PUSH)
        assert seen.request.compression_type == used
        assert decoded(seen).metrics


async def test_refused_codec_is_not_used_again(autojump_clock: MockClock) -> None:
    async with receiving("*") as cluster:

        async def refuse(request: Any, default: Any) -> Any:
            response = await default()
            if request.compression_type:
                response.error_code = ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
            return response

        cluster.on(PUSH, refuse)
        async with trikafka.open_producer(**settings(cluster)) as producer:
            await trio.sleep(20 * INTERVAL)
            push = producer.statistics().metrics_push
            assert push is not None
            assert push.pushes >= 10
        used = [seen.request.compression_type for seen in cluster.requests(PUSH)]
        listed = [4, 3, 1, 2]
        assert used[:5] == [*listed, 0]
        assert not any(used[4:])


async def produce_and_consume(cluster: ScriptedCluster, seconds: int, protocol: str) -> None:
    async with (
        trikafka.open_producer(**settings(cluster, client_rack="r1")) as producer,
        trikafka.open_consumer(
            "t",
            **settings(
                cluster,
                group_id="g",
                group_instance_id="i",
                group_protocol=protocol,
                auto_offset_reset="earliest",
                enable_auto_commit=False,
            ),
        ) as consumer,
    ):

        async def send_later(partition: int) -> None:
            await trio.sleep(0.2)
            await producer.send("t", b"secret", key=b"private", partition=partition)

        for second in range(seconds):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(send_later, second % 2)
                await consumer.receive()
                await consumer.commit()
            await trio.sleep(1)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
@pytest.mark.parametrize("delta", [True, False])
async def test_required_metrics_with_real_figures(
    delta: bool, protocol: str, autojump_clock: MockClock
) -> None:
    async with receiving("*", interval=4) as cluster:
        answer(cluster, delta_temporality=delta)
        for api, seconds in (("Fetch", 0.01), ("OffsetCommit", 0.02), ("Produce", 0.04)):
            cluster.delay(api, seconds, times=None)
        await produce_and_consume(cluster, 20, protocol)
        found = payloads(cluster)
        assert {name for payload in found for name in payload.metrics} == REQUIRED
        producers = [payload for payload in found if f"{KAFKA}producer." in str(payload.metrics)]
        consumers = [payload for payload in found if payload not in producers]
        consumer, producer = consumers[-2], producers[-2]
        value = lambda payload, name: payload.value(KAFKA + name)  # noqa: E731
        assert value(consumer, "consumer.coordinator.assigned.partitions") == 2
        assert value(consumer, "consumer.coordinator.commit.latency.avg") == pytest.approx(20)
        assert value(consumer, "consumer.fetch.manager.fetch.latency.max") >= 10
        assert 0 < value(consumer, "consumer.poll.idle.ratio.avg") < 0.5
        assert value(producer, "producer.produce.throttle.time.avg") == 0
        assert value(producer, "producer.record.queue.time.avg") < 10
        nodes = producer.metrics[f"{KAFKA}producer.node.request.latency.max"]
        assert nodes == {(("node_id", "0"),): pytest.approx(40, abs=1)}
        # Totals: since the client opened, or since the last push.
        name = f"{KAFKA}consumer.connection.creation.total"
        totals = [payload.value(name) for payload in consumers]
        assert {payload.sums[name] for payload in consumers} == {(1 if delta else 2, True)}
        assert (sum(totals) if delta else totals[-1]) >= 3
        assert totals == sorted(totals, reverse=delta)
        spans = [(p.start_time, p.time) for payload in consumers for p in payload.points[name]]
        starts, ends = [start for start, _ in spans], [end for _, end in spans]
        assert starts[1:] == (ends[:-1] if delta else [starts[0]] * (len(starts) - 1))
        rebalances = [
            payload.value(f"{KAFKA}consumer.coordinator.rebalance.latency.total")
            for payload in consumers
        ]
        assert (sum(rebalances) if delta else rebalances[-1]) >= 0
        assert consumer.resource["group_id"] == "g"
        assert consumer.resource["group_instance_id"] == "i"
        assert consumer.resource["group_member_id"]
        assert producer.resource == {"client_rack": "r1"}


async def test_throttle_and_rebalance_are_timed(autojump_clock: MockClock) -> None:
    async with receiving("*", interval=100) as cluster:
        cluster.delay("JoinGroup", 3, times=1)

        async def throttled(request: Any, default: Any) -> Any:
            response = await default()
            response.throttle_time_ms = 2_000
            return response

        cluster.on("Produce", throttled, times=1)
        async with (
            trikafka.open_producer(**settings(cluster)) as producer,
            trikafka.open_consumer(
                "t", **settings(cluster, group_id="g", group_protocol="classic")
            ) as consumer,
        ):
            await trio.sleep(0.1)  # the subscription has come
            await producer.send("t", b"1")
            await producer.send("t", b"2")
            with trio.move_on_after(10):
                await consumer.receive()
        consumed, produced = payloads(cluster)  # the last pushes
        assert produced.value(f"{KAFKA}producer.produce.throttle.time.avg") == 1000
        assert produced.value(f"{KAFKA}producer.produce.throttle.time.max") == 2000
        name = f"{KAFKA}consumer.coordinator.rebalance.latency"
        assert consumed.value(f"{name}.max") == pytest.approx(3000, abs=500)
        assert consumed.value(f"{name}.total") == consumed.value(f"{name}.max")
        assert consumed.value(f"{KAFKA}consumer.poll.idle.ratio.avg") > 0.5


async def test_payload_has_no_data_and_no_settings(autojump_clock: MockClock) -> None:
    async with receiving("*", interval=1) as cluster:
        async with trikafka.open_producer(
            **settings(cluster, client_id="my-client", transactional_id=None)
        ) as producer:
            for _ in range(5):
                await producer.send("t", b"secret", key=b"private")
                await trio.sleep(1)
        for seen in cluster.requests(PUSH):
            codec = BY_ID[seen.request.compression_type]
            text = bytes(codec.decompress(bytes(seen.request.metrics), 1_000_000, None))
            for word in (b"secret", b"private", b"my-client", cluster.bootstrap_servers.encode()):
                assert word not in text


# --- no harm ---


@pytest.mark.parametrize("api", [GET, PUSH])
async def test_silent_receiver_delays_nothing(
    api: str, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with receiving("*") as cluster:
        cluster.silence(api)
        async with trikafka.open_producer(
            **settings(cluster, request_timeout_ms=31_000, linger_ms=0)
        ) as client:
            await cluster.seen(api)
            asked = trio.current_time()
            for wait in (0.0, 4.0, 3.0, 13.0, 11.5):  # until after the request has expired
                await trio.sleep(wait)
                began = trio.current_time()
                assert len(await client.partitions_for("t")) == 2
                await client.send("t", b"1")
                await client._metadata.refresh()
                assert trio.current_time() == began
                health = client.health()
                assert (health.ok, health.reasons, dict(health.unreachable)) == (True, (), {})
            assert health.metrics_push is not None
            limit = 31.0 if api == PUSH else 5.0
            assert health.metrics_push.failing == pytest.approx(31.5 - limit)
            assert isinstance(health.metrics_push.last_error, trikafka.KafkaConnectionError)
            assert (health.metrics_push.last, health.metrics_push.pushes) == (None, 0)
            assert times(cluster, api) == [asked]
            await trio.sleep(400)
            every = limit + (INTERVAL if api == PUSH else 300)
            assert times(cluster, api)[:2] == pytest.approx([asked, asked + every])
    assert not [record for record in caplog.records if record.levelname == "WARNING"]


async def test_refused_dial_harms_nothing(autojump_clock: MockClock) -> None:
    """Such as where the broker limits the connections of a client."""
    async with receiving("*") as cluster:
        refused = [False]

        async def dial(host: str, port: int) -> trio.abc.Stream:
            if refused[0]:
                raise OSError("too many connections")
            return await cluster.dial(host, port)

        async with trikafka.open_producer(**settings(cluster) | {"dial": dial}) as producer:
            await producer.send("t", b"1")
            await cluster.seen(PUSH)
            (pushed,) = times(cluster, PUSH)
            await trio.sleep(1)
            cluster.disconnect()
            await producer.send("t", b"2")
            await trio.sleep(1)  # the connections for other purposes are there again
            refused[0] = True
            await trio.sleep(60)
            health = producer.health()
            assert (health.ok, dict(health.unreachable)) == (True, {})
            assert health.metrics_push is not None
            since = trio.current_time() - (pushed + INTERVAL)
            assert health.metrics_push.failing == pytest.approx(since)
            assert "too many connections" in str(health.metrics_push.last_error)
            refused[0] = False
            before = len(cluster.requests(PUSH))
            await trio.sleep(INTERVAL)
            assert len(cluster.requests(PUSH)) == before + 1
            push = producer.health().metrics_push
            assert push is not None
            assert (push.failing, push.last_error) == (None, None)


async def test_id_is_asked_of_another_broker(autojump_clock: MockClock) -> None:
    async with receiving(nodes=2) as cluster:
        cluster.silence(GET, times=1)
        async with trikafka.open_admin(**settings(cluster)) as admin:
            began = trio.current_time()
            assert (await admin.client_instance_id()).int
            assert 5.0 <= trio.current_time() - began <= 5.2
        first, second = cluster.requests(GET)
        assert first.node_id != second.node_id


async def test_broker_without_receiver_is_passed(autojump_clock: MockClock) -> None:
    """During a rolling upgrade some brokers have the requests."""
    async with receiving(nodes=3) as cluster:
        for node in (0, 2):
            cluster.offer(GET, None, node=node)
        for _ in range(5):
            async with trikafka.open_admin(**settings(cluster)) as admin:
                assert (await admin.client_instance_id()).int
        assert {seen.node_id for seen in cluster.requests(GET)} == {1}


@pytest.mark.parametrize("opening", [trikafka.open_consumer, trikafka.open_producer])
async def test_health_shows_the_push(opening: Any, autojump_clock: MockClock) -> None:
    async with receiving("*") as cluster:
        async with opening(**settings(cluster)) as client:
            await trio.sleep(50)
            push = client.health().metrics_push
            assert push == client.statistics().metrics_push
            assert push.failing is None
            cluster.fail(PUSH, 42)
            await trio.sleep(50)
            health = client.health()
            push = health.metrics_push
            assert health.ok
            assert push is not None
            assert (push.state, getattr(push.last_error, "code", None)) == ("off", 42)
            assert push.failing == pytest.approx((push.last or 0) - INTERVAL)
        async with opening(**settings(cluster, enable_metrics_push=False)) as client:
            assert client.health().metrics_push is None


# --- the end ---


async def test_idle_connection_is_no_obstacle(autojump_clock: MockClock) -> None:
    """Where the interval is longer than connections live, the last push has another connection."""
    async with receiving("*", interval=3600) as cluster:
        async with trikafka.open_producer(**settings(cluster)) as producer:
            await trio.sleep(1200)
            await producer._metadata.refresh()
        (last,) = cluster.requests(PUSH)
        assert last.request.terminating


async def test_cancelled_close_pushes_last(autojump_clock: MockClock) -> None:
    async with receiving("*") as cluster:
        with trio.CancelScope() as scope:
            async with trikafka.open_consumer("t", **settings(cluster, group_id="g")):
                await trio.sleep(20)
                scope.cancel()
                await trio.sleep_forever()
        assert cluster.requests(PUSH)[-1].request.terminating


@pytest.mark.parametrize("cancelled", [True, False])
@pytest.mark.parametrize("opening", [trikafka.open_consumer, trikafka.open_producer])
async def test_silent_broker_delays_no_close(
    opening: Any, cancelled: bool, autojump_clock: MockClock
) -> None:
    async with receiving("*") as cluster:
        with trio.CancelScope() as scope:
            async with opening(**settings(cluster)):
                await trio.sleep(20)
                cluster.silence(PUSH)
                began = trio.current_time()
                if cancelled:
                    scope.cancel()
                    await trio.sleep_forever()
        assert trio.current_time() - began <= 1.0 + 0.03
        assert cluster.requests(PUSH)[-1].request.terminating


@pytest.mark.parametrize(("limit", "takes"), [(0.2, 0.2), (None, 1.0), (5, 1.0)])
async def test_admin_close_waits_for_the_last_push(
    limit: float | None, takes: float, autojump_clock: MockClock
) -> None:
    async with receiving("*") as cluster:
        async with trikafka.open_admin(**settings(cluster, enable_metrics_push=True)) as admin:
            await trio.sleep(20)
            cluster.silence(PUSH)
            began = trio.current_time()
            await admin.aclose(limit)
            assert trio.current_time() - began == pytest.approx(takes)
        assert cluster.connections() == 0


async def test_short_limit_of_a_close_counts(autojump_clock: MockClock) -> None:
    async with receiving("*") as cluster:
        async with trikafka.open_consumer(**settings(cluster, close_timeout_ms=200)):
            await trio.sleep(20)
            cluster.silence(PUSH)
            began = trio.current_time()
        assert trio.current_time() - began <= 0.2 + 0.03


async def test_push_in_flight_ends_before_the_last(autojump_clock: MockClock) -> None:
    async with receiving("*", interval=1) as cluster:
        cluster.delay(PUSH, 0.5, times=None)
        async with trikafka.open_producer(**settings(cluster)):
            await cluster.seen(PUSH)
            began = trio.current_time()
        first, last = cluster.requests(PUSH)
        assert last.time == pytest.approx(first.time + 0.5)
        assert (first.request.terminating, last.request.terminating) == (False, True)
        assert trio.current_time() - began == pytest.approx(1.0)


@pytest.mark.parametrize("opening", [trikafka.open_consumer, trikafka.open_producer])
async def test_close_may_be_cancelled_at_each_await(
    opening: Any, autojump_clock: MockClock
) -> None:
    @asynccontextmanager
    async def setup() -> AsyncIterator[tuple[ScriptedCluster, Any]]:
        async with receiving("*") as cluster:
            cluster.delay(PUSH, 0.01, times=None)
            async with opening(**settings(cluster)) as client:
                await trio.sleep(20)
                yield cluster, client
            assert cluster.connections() == 0

    async def scenario(given: tuple[ScriptedCluster, Any]) -> None:
        await given[1].aclose()

    with trio.fail_after(1000):
        assert await assert_all_awaits_cancellable(scenario, setup=setup) >= 1


@pytest.mark.parametrize("api", [GET, PUSH])
async def test_close_cuts_each_await_of_the_task(api: str, autojump_clock: MockClock) -> None:
    """The block ends while the task waits for its turn, a connection, or a response."""
    for moment in (0.0, 0.001, 0.005, 0.011, 4.0, 15.0, 15.01):
        async with receiving("*", interval=10) as cluster:
            cluster.delay(api, 0.01, times=None)
            with trio.fail_after(100), trio.move_on_after(moment):
                async with trikafka.open_producer(**settings(cluster)):
                    await trio.sleep_forever()
            assert cluster.connections() == 0


async def test_nothing_is_left_after_pushes(autojump_clock: MockClock) -> None:
    async with receiving("*", interval=1) as cluster:
        async with trikafka.open_consumer(**settings(cluster)) as consumer:
            consumer.assign([T0])
            await trio.sleep(20)
            cluster.want_metrics([], interval=1000)
            await trio.sleep(20)
            await assert_nothing_left(cluster, consumer)


class Steps(trio.abc.Instrument):
    """Cancels a scope after a thousand steps of the client's task that pushes."""

    def __init__(self, scope: trio.CancelScope) -> None:
        self.scope = scope
        self.count = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.count += "Telemetry.run" in task.name
        if self.count > 1_000:
            self.scope.cancel()


async def test_closed_client_does_not_spin(autojump_clock: MockClock) -> None:
    """The client is closed, its block stays open, and the next request would be due."""
    async with (
        ScriptedCluster(topics={"t": 1}) as cluster,
        trikafka.open_consumer(
            "t", group_id="g", bootstrap_servers=cluster.bootstrap_servers, dial=cluster.dial
        ) as consumer,
    ):
        with trio.move_on_after(1):
            await consumer.receive()
        await consumer.aclose()
        with trio.CancelScope() as scope:
            steps = Steps(scope)
            trio.lowlevel.add_instrument(steps)
            await trio.sleep(2_000)
        trio.lowlevel.remove_instrument(steps)
        assert not scope.cancelled_caught
