"""Leaving by unsubscribe and aclose: from several tasks, in listeners, cancelled at every await,
after errors.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing
from consuming import T0, T1, RecordingListener, cluster_of, consumer_of, member_of, until, values
from trio.testing import MockClock as Clock

from trikafka._api.consumer.consumer import Consumer
from trikafka.errors import AuthorizationError, BrokerResponseError, IllegalStateError
from trikafka.testing import ScriptedCluster, assert_all_awaits_cancellable

FAST = {"session_timeout_ms": 6_000, "heartbeat_interval_ms": 1_000, "max_poll_interval_ms": 10_000}
Pair = tuple[ScriptedCluster, Consumer]


async def half_a_second(what: str) -> None:
    await trio.sleep(0.5)


@asynccontextmanager
async def member_in(
    state: str, events: list[Any] | None = None, **settings: Any
) -> AsyncIterator[Pair]:
    """Open a member that has received a record and then got into ``state``.

    At the end nothing of it may be left.
    """
    async with cluster_of(2, records=6) as cluster:
        async with consumer_of(cluster, group_id="g", **(FAST | settings)) as consumer:
            consumer.subscribe(
                ["t"], RecordingListener([] if events is None else events, then=half_a_second)
            )
            await consumer.receive()
            if state == "fenced":
                cluster.group("g").remove(consumer.statistics().member_id)
            await until(lambda: consumer.statistics().state == state)
            yield cluster, consumer
        assert not cluster.group("g").members
        await trio.sleep(1)
        assert cluster.connections() == 0


async def unsubscribe(cluster: ScriptedCluster, consumer: Consumer) -> None:
    await consumer.unsubscribe()


async def can_start_over(cluster: ScriptedCluster, consumer: Consumer) -> None:
    assert consumer.statistics().state == "unjoined"
    assert consumer.assignment() == consumer.subscription() == frozenset()
    consumer.subscribe(["t"])
    with trio.fail_after(5):
        assert await values(consumer, 3)
    assert consumer.assignment() == {T0, T1}
    assert len(cluster.group("g").members) == 1


@pytest.mark.parametrize("state", ["stable", "fenced", "stale"])
async def test_cancelled_unsubscribe_keeps_it_usable(autojump_clock: Clock, state: str) -> None:
    @asynccontextmanager
    async def setup() -> AsyncIterator[Pair]:
        async with member_in(state) as pair:
            yield pair

    steps = await assert_all_awaits_cancellable(
        lambda given: unsubscribe(*given), lambda given: can_start_over(*given), setup=setup
    )
    assert steps >= (2 if state == "stale" else 1)


async def test_cancelled_unsubscribe_sends_leave(
    autojump_clock: Clock,
) -> None:
    async with member_in("stable") as (cluster, consumer):
        with trio.move_on_after(0.1):
            await consumer.unsubscribe()
        await trio.sleep(0.1)
        assert not cluster.group("g").members
        assert len(cluster.requests("LeaveGroup")) == 1


@pytest.mark.parametrize("exit_cancelled", [False, True])
async def test_cancelled_close_leaves_the_group(
    autojump_clock: Clock, exit_cancelled: bool
) -> None:
    @asynccontextmanager
    async def setup() -> AsyncIterator[Pair]:
        with trio.CancelScope() as around:
            async with member_in("stable") as pair:
                yield pair
                if exit_cancelled:
                    around.cancel()
                    await trio.lowlevel.checkpoint()

    async def close(given: Pair) -> None:
        await given[1].aclose()

    async def check(given: Pair) -> None:
        with pytest.raises(trio.ClosedResourceError):
            await given[1].receive()

    assert await assert_all_awaits_cancellable(close, check, setup=setup) >= 3


async def test_cancelled_close_commits_and_leaves_once(autojump_clock: Clock) -> None:
    events: list[Any] = []
    async with member_in("stable", events) as (cluster, consumer):
        with trio.move_on_after(0.1):
            await consumer.aclose()
    # The call that was cancelled is made again.
    assert [what for what, _ in events] == [
        "assigned",
        "revoked",
        "revoked",
    ]
    assert len(cluster.requests("OffsetCommit")) == len(cluster.requests("LeaveGroup")) == 1


@pytest.mark.parametrize("first_is_cut", [False, True])
async def test_second_unsubscribe_waits_for_the_first(
    autojump_clock: Clock, first_is_cut: bool
) -> None:
    events: list[Any] = []
    async with member_in("stable", events) as (cluster, consumer):
        joins, began = len(cluster.requests("JoinGroup")), trio.current_time()

        async def one() -> None:
            with trio.move_on_after(0.2 if first_is_cut else 10):
                await consumer.unsubscribe()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(one)
            await trio.sleep(0.1)
            await consumer.unsubscribe()
            assert trio.current_time() - began == pytest.approx(0.2 if first_is_cut else 0.5)
            assert consumer.statistics().state == "unjoined"
        assert [what for what, _ in events] == ["assigned", "revoked"]
        await trio.sleep(1)
        assert len(cluster.requests("LeaveGroup")) == 1
        await can_start_over(cluster, consumer)
        assert len(cluster.requests("JoinGroup")) == joins + 2


async def test_earlier_limit_of_two_leaves_counts(autojump_clock: Clock) -> None:
    async def long(what: str) -> None:
        await trio.sleep(8 if what == "revoked" else 0)

    async with cluster_of(2, records=6) as cluster, consumer_of(cluster, group_id="g") as consumer:
        consumer.subscribe(["t"], RecordingListener([], then=long))
        await consumer.receive()
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(consumer.unsubscribe)
            await trio.sleep(1)
            await consumer.aclose(2)
            # Of the three seconds a quarter is kept for leaving the group.
            assert trio.current_time() - began == 2.25
        assert trio.current_time() - began == 2.25
        assert not cluster.group("g").members
        assert cluster.committed("g", T1) or cluster.committed("g", T0)


async def test_calls_during_unsubscribe_are_refused(autojump_clock: Clock) -> None:
    async with member_in("stable") as (cluster, consumer), trio.open_nursery() as nursery:
        nursery.start_soon(consumer.unsubscribe)
        await trio.sleep(0.1)
        for change in (
            lambda: consumer.subscribe(["t"]),
            lambda: consumer.assign([T0]),
            consumer.receive_nowait,
        ):
            with pytest.raises(trio.BusyResourceError, match="unsubscribe"):
                change()
        with pytest.raises(trio.BusyResourceError, match="unsubscribe"):
            await consumer.receive()
        await consumer.unsubscribe()
        await can_start_over(cluster, consumer)


async def test_receive_ends_with_the_subscription(autojump_clock: Clock) -> None:
    async with member_in("stable") as (_, consumer), trio.open_nursery() as nursery:
        ended: list[float] = []

        async def receive() -> None:
            with pytest.raises(IllegalStateError, match="nothing to receive"):
                await values(consumer, 100)
            ended.append(trio.current_time())

        nursery.start_soon(receive)
        await trio.sleep(3)
        await consumer.unsubscribe()
        now = trio.current_time()
        await trio.testing.wait_all_tasks_blocked()
        assert ended == [now]


@pytest.mark.parametrize("call", ["unsubscribe", "aclose"])
@pytest.mark.parametrize("where", ["assigned", "revoked"])
@pytest.mark.parametrize("in_a_child", [False, True])
async def test_listener_may_not_leave(
    autojump_clock: Clock, call: str, where: str, in_a_child: bool
) -> None:
    events: list[Any] = []

    async def leave(what: str) -> None:
        if what == where:
            with pytest.raises(IllegalStateError, match="listener"):
                await getattr(consumer, call)()
            events.append("refused")

    async def act(what: str) -> None:
        if in_a_child:
            async with trio.open_nursery() as children:
                children.start_soon(leave, what)
        else:
            await leave(what)

    async with cluster_of(records=3) as cluster, consumer_of(cluster, group_id="g") as consumer:
        consumer.subscribe(["t"], RecordingListener(events, then=act))
        assert await values(consumer, 1) == [b"0"]
        await consumer.unsubscribe()
        assert events.count("refused") == 1
        assert len(events) == 3
        consumer.subscribe(["t"])
        assert await values(consumer, 1) == [b"1"]


async def test_listener_may_let_another_task_leave(autojump_clock: Clock) -> None:
    async with (
        cluster_of(records=3) as cluster,
        consumer_of(cluster, group_id="g") as consumer,
        trio.open_nursery() as nursery,
    ):

        async def act(what: str) -> None:
            if what == "assigned":
                nursery.start_soon(consumer.unsubscribe)
                await trio.sleep(1)

        consumer.subscribe(["t"], RecordingListener([], then=act))
        with pytest.raises((IllegalStateError, trio.BusyResourceError)):
            await values(consumer, 4)


@pytest.mark.parametrize("leave", ["unsubscribe", "aclose"])
async def test_revoked_listener_may_not_receive(autojump_clock: Clock, leave: str) -> None:
    async def act(what: str) -> None:
        if what == "revoked":
            await consumer.receive()

    async with cluster_of(records=3) as cluster, consumer_of(cluster, group_id="g") as consumer:
        consumer.subscribe(["t"], RecordingListener([], then=act))
        await consumer.receive()
        began = trio.current_time()
        with pytest.raises(
            trio.BusyResourceError if leave == "unsubscribe" else trio.ClosedResourceError
        ):
            await getattr(consumer, leave)()
        assert trio.current_time() == began
        assert not cluster.group("g").members


async def test_listener_of_a_close_may_commit_and_close(autojump_clock: Clock) -> None:
    async with cluster_of(records=9) as cluster:

        async def act(what: str) -> None:
            if what == "revoked":
                await consumer.commit({T0: 7})
                assert await consumer.position(T0) == 2
                await consumer.aclose()
                with pytest.raises(trio.ClosedResourceError):
                    consumer.subscribe(["t"])

        async with consumer_of(cluster, group_id="g", enable_auto_commit=False) as consumer:
            consumer.subscribe(["t"], RecordingListener([], then=act))
            await values(consumer, 2)
        assert cluster.committed("g", T0).offset == 7


async def test_last_commit_comes_before_listeners(autojump_clock: Clock) -> None:
    async with cluster_of(records=9) as cluster:
        seen: list[int] = []

        async def act(what: str) -> None:
            seen.append(len(cluster.requests("OffsetCommit")))

        async with consumer_of(cluster, group_id="g") as consumer:
            consumer.subscribe(["t"], RecordingListener([], then=act))
            await values(consumer, 2)
        assert seen == [0, 1]
        (last_commit,) = cluster.requests("OffsetCommit")
        (goodbye,) = cluster.requests("LeaveGroup")
        assert cluster.log.index(last_commit) < cluster.log.index(goodbye)


@pytest.mark.parametrize("leave", ["unsubscribe", "aclose"])
async def test_listeners_do_not_overlap_when_leaving(autojump_clock: Clock, leave: str) -> None:
    events: list[Any] = []

    async def slow(what: str) -> None:
        await trio.sleep(2)
        events.append(f"{what}: through")

    async with (
        cluster_of() as cluster,
        consumer_of(cluster, group_id="g") as consumer,
        trio.open_nursery() as nursery,
    ):

        async def receive() -> None:
            with pytest.raises((IllegalStateError, trio.ClosedResourceError)):
                await consumer.receive()

        consumer.subscribe(["t"], RecordingListener(events, then=slow))
        nursery.start_soon(receive)
        await trio.sleep(1)
        await getattr(consumer, leave)()
    assert events == [
        ("assigned", [T0]),
        "assigned: through",
        ("revoked", [T0]),
        "revoked: through",
    ]


async def test_hanging_listener_ends_at_the_close_limit(
    autojump_clock: Clock,
) -> None:
    async def hang(what: str) -> None:
        await trio.sleep(100)

    async with (
        cluster_of(records=1) as cluster,
        consumer_of(cluster, group_id="g") as consumer,
        trio.open_nursery() as nursery,
    ):
        consumer.subscribe(["t"], RecordingListener([], then=hang))
        nursery.start_soon(consumer.receive_batch)
        await trio.sleep(1)
        await consumer.aclose(3)
        # Of the three seconds a quarter is kept for leaving the group.
        assert trio.current_time() == 3.25
        assert not cluster.group("g").members
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("api", ["JoinGroup", "SyncGroup"])
async def test_new_subscription_clears_a_fatal_error(autojump_clock: Clock, api: str) -> None:
    async with cluster_of(2, records=6) as cluster:
        cluster.fail(api, 24, times=1)
        async with member_of(cluster) as consumer:
            for _ in range(2):
                with pytest.raises(BrokerResponseError, match="INVALID_GROUP_ID"):
                    await consumer.receive()
            consumer.subscribe(["t"])
            with trio.fail_after(5):
                await values(consumer, 12)
            assert len(cluster.group("g").members) == 1


@pytest.mark.parametrize("api", ["JoinGroup", "Heartbeat"])
@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
async def test_fatal_error_releases_old_partitions(
    autojump_clock: Clock, api: str, strategy: str
) -> None:
    events: list[Any] = []
    settings: Any = FAST | {"group_id": "g", "partition_assignment_strategy": [strategy]}
    async with cluster_of(2, records=6) as cluster, consumer_of(cluster, **settings) as consumer:
        consumer.subscribe(["t"], RecordingListener(events))
        await consumer.receive()
        if api == "JoinGroup":
            cluster.fail("Heartbeat", 27, times=1)
        cluster.fail(api, 30, times=1)
        with pytest.raises(AuthorizationError):
            await values(consumer, 100)
        consumer.subscribe(["t"], RecordingListener(events))
        await consumer.receive_batch(timeout=2)
        await consumer.receive_batch(timeout=0)
        assert consumer.statistics().state == "stable"
        # A member that is out commits nothing.
        assert bool(cluster.requests("OffsetCommit")) == ((api, strategy) == ("JoinGroup", "range"))
        gone = "revoked" if (api, strategy) == ("JoinGroup", "range") else "lost"
        assert events == [("assigned", [T0, T1]), (gone, [T0, T1]), ("assigned", [T0, T1])]
        assert len(cluster.group("g").members) == 1


async def test_auto_commit_does_not_meet_a_leave(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    async def slow(what: str) -> None:
        await trio.sleep(3 if what == "revoked" else 0)

    caplog.set_level(logging.WARNING, "trikafka")
    async with cluster_of(records=9) as cluster:
        cluster.delay("LeaveGroup", 2)
        async with consumer_of(cluster, group_id="g", auto_commit_interval_ms=1_000) as consumer:
            for _ in range(2):
                consumer.subscribe(["t"], RecordingListener([], then=slow))
                await values(consumer, 2)
                await consumer.unsubscribe()
            consumer.assign([T0])
            consumer.seek(T0, 7)
            await values(consumer, 2)
            await trio.sleep(2)
            # Afterwards it commits at the interval again.
            assert cluster.committed("g", T0).offset == 8
    assert not caplog.records


async def test_cancelled_exit_calls_no_listener(
    autojump_clock: Clock,
) -> None:
    """It commits and leaves the group."""
    events: list[Any] = []
    async with cluster_of(records=5) as cluster:
        with trio.move_on_after(3):
            async with consumer_of(cluster, group_id="g") as consumer:
                consumer.subscribe(["t"], RecordingListener(events))
                await values(consumer, 100)
        assert events == [("assigned", [T0])]
        assert cluster.committed("g", T0)
        assert not cluster.group("g").members


async def test_cancelled_exit_sends_the_leave(autojump_clock: Clock) -> None:
    """The second of a cancelled exit is enough for the leave request."""

    async def slow(what: str) -> None:
        await trio.sleep(20)

    async with cluster_of(2, records=6) as cluster:
        with trio.move_on_after(5):
            async with consumer_of(cluster, group_id="g") as consumer:
                consumer.subscribe(["t"], RecordingListener([], then=slow))
                with trio.move_on_after(1):
                    await consumer.receive()
                assert cluster.group("g").members
        assert trio.current_time() <= 6
        assert cluster.requests("LeaveGroup")
        assert not cluster.group("g").members
