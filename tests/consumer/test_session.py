"""The session of a member by its own clock, and errors that reach the user. In virtual time."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import trio
from consuming import T0, T1, RecordingListener, cluster_of, consumer_of, member_of, until, values
from trio.testing import MockClock as Clock

from trikafka import TopicPartition, hookimpl
from trikafka.errors import (
    AuthorizationError,
    BrokerResponseError,
    CommitFailedError,
    ConfigurationError,
    FencedInstanceIdError,
    IllegalStateError,
    InvalidTopicError,
    KafkaTimeoutError,
    PluginError,
    PollIntervalExceededError,
)
from trikafka.interfaces import RebalanceListener
from trikafka.testing import ScriptedCluster
from trikafka.testing.faults import cut, flip, strange_id

FAST = {"session_timeout_ms": 6_000, "heartbeat_interval_ms": 1_000, "max_poll_interval_ms": 60_000}
STRATEGIES = ["range", "cooperative-sticky"]


async def hang(request: Any, default: Any) -> Any:
    await trio.sleep_forever()


async def fail_over(cluster: ScriptedCluster) -> None:
    """Have the coordinator's node answer nothing to members."""
    for api in ("Heartbeat", "JoinGroup", "SyncGroup", "LeaveGroup", "OffsetCommit"):
        cluster.on(api, hang, None)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("how", ["silent", "refused"])
async def test_unanswered_heartbeats_end_the_session(
    autojump_clock: Clock, strategy: str, how: str
) -> None:
    events: list[Any] = []
    settings: Any = FAST | {"group_id": "g", "partition_assignment_strategy": [strategy]}
    async with (
        cluster_of(2, nodes=2, records=3) as cluster,
        consumer_of(cluster, **settings) as consumer,
    ):
        for number in (0, 1):
            cluster.move_leader("t", number, 1)
        consumer.subscribe(["t"], RecordingListener(events))
        await values(consumer, 6)
        await trio.sleep(10.5)
        last = max(seen.time for seen in cluster.requests("Heartbeat"))
        if how == "silent":
            await fail_over(cluster)
        else:
            cluster.stop(0)
        await trio.sleep_until(last + 5.999)
        assert consumer.statistics().state == "stable"
        cluster.append("t", 0, [b"another member's"])
        await trio.sleep_until(last + 6.001)
        assert consumer.statistics().state == "fenced"
        with pytest.raises(trio.WouldBlock):
            consumer.receive_nowait()
        with pytest.raises(CommitFailedError):
            await consumer.commit()
        assert not await consumer.receive_batch(timeout=1)
        assert events == [("assigned", [T0, T1]), ("lost", [T0, T1])]
        assert not consumer.assignment()


async def test_member_rejoins_when_the_broker_returns(autojump_clock: Clock) -> None:
    events: list[Any] = []
    async with (
        cluster_of(nodes=2, records=9) as cluster,
        consumer_of(cluster, group_id="g", **FAST) as consumer,
    ):
        cluster.move_leader("t", 0, 1)
        consumer.subscribe(["t"], RecordingListener(events))
        await values(consumer, 3)
        cluster.stop(0)
        assert not await receive_nothing_new(consumer, 20)
        cluster.start(0)
        began = trio.current_time()
        assert await values(consumer, 1) == [b"0"]  # nothing had been committed
        assert trio.current_time() - began < 2.5
        assert [what for what, _ in events] == ["assigned", "lost", "assigned"]


async def receive_nothing_new(consumer: Any, seconds: float) -> list[Any]:
    """Return the batches after the first one, which was buffered before."""
    until_then = trio.current_time() + seconds
    got = []
    while (left := until_then - trio.current_time()) > 0:
        batch = await consumer.receive_batch(timeout=left)
        got.append(batch)
    return [batch for batch in got[1:] if batch]


@pytest.mark.parametrize(
    "way", ["receive", "receive_nowait", "receive_batch", "receive_batch_nowait"]
)
@pytest.mark.parametrize("begun", [False, True])
async def test_long_blocked_loop_delivers_nothing(
    autojump_clock: Clock, way: str, begun: bool
) -> None:
    """Buffered records, or the rest of a batch, may belong to another member."""
    events: list[Any] = []
    async with (
        cluster_of(2, records=50) as cluster,
        consumer_of(cluster, group_id="g", **FAST) as consumer,
    ):
        consumer.subscribe(["t"], RecordingListener(events))
        await (values(consumer, 3) if begun else consumer.receive_batch())
        await trio.sleep(0.5)
        autojump_clock.jump(20)  # as the program's own code does that never awaits
        if way.endswith("nowait"):
            with pytest.raises(trio.WouldBlock):
                getattr(consumer, way)()
        with trio.fail_after(10):
            got = await (consumer.receive() if "batch" not in way else consumer.receive_batch())
        offset = got.offset if "batch" not in way else got.offsets[0]
        assert offset == 0  # nothing had been committed, so it restarts
        assert events == [("assigned", [T0, T1]), ("lost", [T0, T1]), ("assigned", [T0, T1])]


async def test_short_blocked_loop_does_no_harm(autojump_clock: Clock) -> None:
    async with cluster_of(records=50) as cluster, member_of(cluster, **FAST) as consumer:
        await values(consumer, 3)
        autojump_clock.jump(4)
        assert await values(consumer, 2) == [b"3", b"4"]
        await trio.sleep(10)
        assert consumer.statistics().generation == 1


async def test_poll_interval_error_names_the_setting(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    settings = FAST | {"max_poll_interval_ms": 10_000}
    async with cluster_of(records=5) as cluster, member_of(cluster, **settings) as consumer:
        await consumer.receive()
        await trio.sleep(11)
        with pytest.raises(PollIntervalExceededError, match="raise max_poll_interval_ms") as caught:
            await consumer.commit()
        assert isinstance(caught.value, CommitFailedError)
        assert (caught.value.setting, caught.value.interval_ms) == ("max_poll_interval_ms", 10_000)
    (line,) = [
        record
        for record in caplog.records
        if record.name == "trikafka.membership" and record.levelno == logging.WARNING
    ]
    assert "10000 ms passed without a receive" in line.getMessage()
    assert "raise max_poll_interval_ms" in line.getMessage()


async def test_receive_at_the_exact_limit_is_too_late(autojump_clock: Clock) -> None:
    for _ in range(10):  # whichever task Trio runs first
        settings = FAST | {"max_poll_interval_ms": 10_000}
        async with cluster_of(records=5) as cluster, member_of(cluster, **settings) as consumer:
            await consumer.receive()
            await trio.sleep(10)
            await consumer.receive()
            await trio.sleep(0.01)
            assert [round(seen.time) for seen in cluster.requests("LeaveGroup")] == [
                round(trio.current_time())
            ]


@pytest.mark.parametrize("api", ["Heartbeat", "JoinGroup", "SyncGroup"])
@pytest.mark.parametrize("change", [flip, cut, strange_id])
async def test_damaged_group_response_is_retried(
    autojump_clock: Clock, api: Any, change: Any
) -> None:
    async with cluster_of(records=5) as cluster:
        if api != "Heartbeat":
            cluster.damage(api, 2, change=change)
        async with member_of(cluster, **FAST) as consumer:
            with trio.fail_after(30):
                assert await values(consumer, 1) == [b"0"]
            if api == "Heartbeat":
                cluster.damage(api, 2, change=change)
                await trio.sleep(5)
                assert consumer.statistics().generation == 1
            assert await values(consumer, 1) == [b"1"]


@pytest.mark.parametrize("api", ["JoinGroup", "SyncGroup"])
async def test_member_joins_despite_any_damaged_byte(autojump_clock: Clock, api: Any) -> None:
    """Each byte of the first fields, and every third of the rest: most are letters of a name."""
    size = 0
    for place in (*range(12, 40), *range(40, 400, 3)):  # behind the throttle time
        async with cluster_of(records=1) as cluster:

            def damage(frame: bytes, place: int = place) -> bytes:
                return (
                    frame[:place] + bytes([frame[place] ^ 0xFF]) + frame[place + 1 :]
                    if place < len(frame)
                    else frame
                )

            rule = cluster.damage(api, None, change=damage)
            async with member_of(cluster, request_timeout_ms=2_000, **FAST) as consumer:
                try:
                    await consumer.receive_batch(timeout=1)
                # The error code itself may be damaged, or the number of a partition: nothing shows
                # that.
                except BrokerResponseError:
                    assert place < 16 or api == "SyncGroup"
                    consumer.subscribe(["t"])
                rule.remove()
                size = cluster.requests(api)[-1].response_bytes
                with trio.fail_after(90):
                    if consumer.assignment() != {T0}:
                        # damage that still reads as an assignment cannot be seen
                        consumer.enforce_rebalance()
                        while consumer.assignment() != {T0}:
                            await consumer.receive_batch(timeout=0.1)
        if place > size:
            break
    assert size > 20


@pytest.mark.parametrize("api", ["Heartbeat", "JoinGroup", "SyncGroup"])
async def test_fenced_instance_is_raised(autojump_clock: Clock, api: str) -> None:
    async with cluster_of(records=9) as cluster:
        if api != "Heartbeat":
            cluster.fail(api, 82, None)
        async with member_of(cluster, group_instance_id="one", **FAST) as consumer:
            if api == "Heartbeat":
                await consumer.receive()
                cluster.fail(api, 82, None)
                await trio.sleep(3)
            for _ in range(2):
                with pytest.raises(FencedInstanceIdError, match="FENCED_INSTANCE_ID"):
                    await consumer.receive()
            joins = len(cluster.requests("JoinGroup"))
            await trio.sleep(60)
            assert len(cluster.requests("JoinGroup")) == joins


@pytest.mark.parametrize(("code", "error"), [(29, AuthorizationError), (17, InvalidTopicError)])
async def test_unreadable_topic_is_raised_by_receive(
    autojump_clock: Clock, code: int, error: type[Exception]
) -> None:
    async with ScriptedCluster(topics={"t": 1, "u": 1}) as cluster:
        cluster.append("u", 0, [b"u0", b"u1"])
        cluster.fail("Metadata", code, None, topic="t")
        async with consumer_of(cluster, group_id="g") as consumer:
            consumer.subscribe(["t", "u"])
            for _ in range(2):
                with trio.fail_after(1), pytest.raises(error, match="topic 't'"):
                    await consumer.receive()
            with trio.fail_after(1):
                await consumer.unsubscribe()
            assert not cluster.group("g") or not cluster.group("g").members
            consumer.subscribe(["u"])
            with trio.fail_after(1):
                assert await values(consumer, 1) == [b"u0"]


async def test_unauthorized_topic_makes_the_member_leave(autojump_clock: Clock) -> None:
    """The other members need not wait for its session."""
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        cluster.append("t", 0, [b"0"])
        async with member_of(cluster, metadata_max_age_ms=5_000) as consumer:
            assert await values(consumer, 1) == [b"0"]
            rule = cluster.fail("Metadata", 29, None, topic="t")
            with pytest.raises(AuthorizationError):
                await consumer.receive()
            await until(lambda: not cluster.group("g").members)
            assert trio.current_time() < 6
            rule.remove()
            consumer.subscribe(["t"])
            cluster.append("t", 0, [b"1"])
            with trio.fail_after(1):
                while (await consumer.receive()).value != b"1":
                    pass


class Plain:
    def on_partitions_assigned(self, partitions: Any) -> None: ...

    async def on_partitions_revoked(self, partitions: Any) -> None: ...

    async def on_partitions_lost(self, partitions: Any) -> None: ...


async def test_listener_with_plain_methods_is_refused(
    autojump_clock: Clock,
) -> None:
    async with cluster_of() as cluster:
        async with consumer_of(cluster, group_id="g") as consumer:
            with pytest.raises(
                ConfigurationError,
                match=r"`async def`: on_partitions_assigned of <test_session.Plain",
            ):
                consumer.subscribe(["t"], Plain())  # type: ignore[arg-type]
            with pytest.raises(IllegalStateError):
                await consumer.receive()  # nothing was subscribed to
        plugin = type(
            "Plug", (), {"trikafka_rebalance_listener": hookimpl(lambda self, context: Plain())}
        )()
        with pytest.raises(PluginError, match=r"on_partitions_assigned must be `async def`"):
            async with consumer_of(cluster, group_id="g", plugins=[plugin]):
                pass


@pytest.mark.parametrize("what", ["assigned", "revoked", "lost"])
@pytest.mark.parametrize("ends", ["raises", "hangs"])
@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_failing_listener_leaves_no_half_state(
    autojump_clock: Clock, what: str, ends: str, strategy: str
) -> None:
    events: list[str] = []

    class Bad(RebalanceListener):
        async def _do(self, now: str) -> None:
            events.append(now)
            if now == what and events.count(now) == 1:
                if ends == "raises":
                    raise LookupError(now)
                await trio.sleep_forever()

        async def on_partitions_assigned(self, partitions: Any) -> None:
            await self._do("assigned")

        async def on_partitions_revoked(self, partitions: Any) -> None:
            await self._do("revoked")

        async def on_partitions_lost(self, partitions: Any) -> None:
            await self._do("lost")

    settings: Any = FAST | {
        "max_poll_interval_ms": 10_000,
        "partition_assignment_strategy": [strategy],
        "group_id": "g",
    }
    async with (
        ScriptedCluster(topics={"t": 1, "u": 1}) as cluster,
        consumer_of(cluster, **settings) as consumer,
    ):
        for topic in "tu":
            cluster.append(topic, 0, [b"0", b"1", b"2"])
        consumer.subscribe(["t"], Bad())
        error: Any = LookupError if ends == "raises" else KafkaTimeoutError
        if what == "assigned":
            with pytest.raises(error):
                await consumer.receive()
        await consumer.receive()
        if what == "revoked":
            consumer.subscribe(["u"], Bad())
        elif what == "lost":
            cluster.group("g").remove(consumer.statistics().member_id)
        if what != "assigned":
            with pytest.raises(error):
                await values(consumer, 10)
        with trio.fail_after(30):
            record = await consumer.receive()
        await trio.sleep(1)
        assert consumer.statistics().state == "stable"
        topic = "u" if what == "revoked" else "t"
        assert (record.topic, consumer.assignment()) == (topic, {TopicPartition(topic, 0)})


async def test_empty_subscription_unsubscribes(autojump_clock: Clock) -> None:
    events: list[Any] = []
    async with cluster_of(records=9) as cluster, consumer_of(cluster, group_id="g") as consumer:
        for end in (lambda: consumer.subscribe([]), lambda: consumer.assign([])):
            end()  # there is nothing to end
            consumer.subscribe(["t"], RecordingListener(events))
            await consumer.receive()
            end()
            assert consumer.subscription() == frozenset()
            with pytest.raises(trio.BusyResourceError):
                consumer.receive_nowait()
            await consumer.unsubscribe()  # waits for it
            assert consumer.assignment() == frozenset()
            assert not cluster.group("g").members
            with pytest.raises(IllegalStateError, match="nothing to receive"):
                await consumer.receive()
        assert events == 2 * [("assigned", [T0]), ("revoked", [T0])]
        assert cluster.committed("g", T0).offset == 2


async def test_error_of_empty_subscribe_is_raised(
    autojump_clock: Clock,
) -> None:
    """The next receive raises it."""

    async def fail(what: str) -> None:
        if what == "revoked":
            raise LookupError(what)

    async with cluster_of(records=9) as cluster, consumer_of(cluster, group_id="g") as consumer:
        consumer.subscribe(["t"], RecordingListener([], then=fail))
        await consumer.receive()
        consumer.subscribe([])
        await consumer.unsubscribe()
        with pytest.raises(LookupError):
            await consumer.receive()
        consumer.subscribe(["t"])
        assert await consumer.receive()


async def test_empty_assignment_ends_the_assignment(autojump_clock: Clock) -> None:
    async with cluster_of(records=9) as cluster, consumer_of(cluster, group_id="g") as consumer:
        consumer.assign([T0])
        await values(consumer, 2)
        consumer.assign([])
        with pytest.raises(IllegalStateError, match="nothing to receive"):
            await consumer.receive()
        # Without an assignment a subscription is allowed.
        consumer.subscribe(["t"])
        assert await consumer.receive()
