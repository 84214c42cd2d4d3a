"""The leave request of a closing member is sent whatever hangs or fails before it.

Each request has its own limit.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest
import trio
from consuming import T0, RecordingListener, cluster_of, consumer_of, member_of, until, values
from trio.testing import MockClock as Clock

from trikafka.error_codes import ErrorCode
from trikafka.errors import TrikafkaError
from trikafka.testing import ScriptedCluster

UNKNOWN_MEMBER_ID = 25
Trouble = Callable[[ScriptedCluster], Awaitable[None] | None]


async def hang(request: Any, default: Any) -> Any:
    await trio.sleep_forever()


async def forever(what: str) -> None:
    if what == "revoked":
        await trio.sleep_forever()


class Boom(Exception):
    pass


@pytest.mark.parametrize(
    "trouble", ["commit refused for ever", "commit unanswered", "listener hangs"]
)
@pytest.mark.parametrize("way", ["clean", "raising", "aclose"])
async def test_leave_is_sent_despite_troubles(
    autojump_clock: Clock, trouble: str, way: str
) -> None:
    async with cluster_of(records=9) as cluster:
        with suppress(Boom):
            async with consumer_of(
                cluster, group_id="g", close_timeout_ms=8_000, auto_commit_interval_ms=1e9
            ) as consumer:
                consumer.subscribe(
                    ["t"], RecordingListener([], then=forever if "listener" in trouble else None)
                )
                await values(consumer, 3)
                if trouble == "commit refused for ever":
                    cluster.fail("OffsetCommit", 14, None)
                elif trouble == "commit unanswered":
                    cluster.on("OffsetCommit", hang, None)
                began = trio.current_time()
                if way == "aclose":
                    await consumer.aclose()
                if way == "raising":
                    raise Boom
        took = trio.current_time() - began
        assert not cluster.group("g").members
        # A second of the eight is kept. Behind a commit that is stuck half of that is lost, then
        # another connection is tried.
        assert took == pytest.approx(7.5 if trouble == "commit unanswered" else 7)
        assert cluster.requests("LeaveGroup")[-1].answered_at == pytest.approx(began + took)


@pytest.mark.parametrize("code", [None, 14])
async def test_cancelled_program_sends_leave(autojump_clock: Clock, code: int | None) -> None:
    async with cluster_of(records=9) as cluster:
        with trio.move_on_after(5):
            async with consumer_of(cluster, group_id="g", auto_commit_interval_ms=1e9) as consumer:
                consumer.subscribe(["t"])
                await values(consumer, 3)
                if code is None:
                    cluster.on("OffsetCommit", hang, None)
                else:
                    cluster.fail("OffsetCommit", code, None)
                await trio.sleep_forever()
        assert not cluster.group("g").members
        assert trio.current_time() <= 6


@pytest.mark.parametrize("trouble", ["OffsetCommit", "listener"])
async def test_close_with_timeout_0_sends_leave(autojump_clock: Clock, trouble: str) -> None:
    async with cluster_of(records=9) as cluster, consumer_of(cluster, group_id="g") as consumer:
        consumer.subscribe(
            ["t"], RecordingListener([], then=forever if trouble == "listener" else None)
        )
        await values(consumer, 3)
        if trouble != "listener":
            cluster.fail("OffsetCommit", 14, None)
        began = trio.current_time()
        await consumer.aclose(timeout=0)
        assert trio.current_time() - began <= 0.051
        assert len(cluster.requests("LeaveGroup")) == 1
        assert not cluster.group("g").members


@pytest.mark.parametrize(
    "silent", [("OffsetCommit",), ("LeaveGroup",), ("OffsetCommit", "LeaveGroup")]
)
async def test_each_request_ends_at_its_own_limit(
    autojump_clock: Clock, silent: tuple[Any, ...]
) -> None:
    """A connection without a response counts as lost.

    The close does not use all of its five seconds.
    """
    async with (
        cluster_of(records=9) as cluster,
        member_of(cluster, request_timeout_ms=700) as consumer,
    ):
        await values(consumer, 3)
        for api in silent:
            cluster.on(api, hang, None)
        began = trio.current_time()
        await consumer.aclose(timeout=5)
        took = trio.current_time() - began
        assert len(cluster.requests("LeaveGroup")) >= 1
        assert took == pytest.approx(
            0.7 * ("OffsetCommit" in silent) + 3 * 0.7 * ("LeaveGroup" in silent)
        )
        assert bool(cluster.group("g").members) is ("LeaveGroup" in silent)


async def test_leave_avoids_a_stuck_connection(
    autojump_clock: Clock,
) -> None:
    async with cluster_of(records=9) as cluster:
        async with member_of(cluster) as consumer:
            await values(consumer, 3)
            cluster.on("OffsetCommit", hang, None)
            await consumer.aclose(timeout=3)
            assert not cluster.group("g").members


@pytest.mark.parametrize("operation", ["default", "leave_group", "remain_in_group"])
@pytest.mark.parametrize("static", [False, True])
async def test_close_leaves_as_configured(
    autojump_clock: Clock, operation: str, static: bool
) -> None:
    """KIP-1092: group_membership_operation."""
    settings = {"group_membership_operation": operation} | (
        {"group_instance_id": "one"} if static else {}
    )
    leaves = operation == "leave_group" or (operation == "default" and not static)
    async with cluster_of(records=9) as cluster:
        async with member_of(cluster, **settings) as consumer:
            await values(consumer, 3)
        assert len(cluster.requests("LeaveGroup")) == leaves
        assert bool(cluster.group("g").members) is not leaves
        if leaves and static:
            assert cluster.requests("LeaveGroup")[0].request.members[0].group_instance_id == "one"


@pytest.mark.parametrize("static", [False, True])
async def test_unsubscribe_ignores_that_choice(autojump_clock: Clock, static: bool) -> None:
    """An unsubscribed dynamic member would only delay the others."""
    settings = {"group_membership_operation": "remain_in_group"} | (
        {"group_instance_id": "one"} if static else {}
    )
    async with cluster_of(records=9) as cluster, member_of(cluster, **settings) as consumer:
        await values(consumer, 3)
        await consumer.unsubscribe()
        assert len(cluster.requests("LeaveGroup")) == (not static)
        assert cluster.committed("g", T0).offset == 3


@pytest.mark.parametrize("way", ["body", "aclose"])
async def test_exception_of_a_close_hides_no_other(autojump_clock: Clock, way: str) -> None:
    async def fail(what: str) -> None:
        if what == "revoked":
            raise LookupError("the listener's")

    async with cluster_of(records=9) as cluster:
        with pytest.raises(Boom) as caught:  # noqa: PT012
            async with consumer_of(cluster, group_id="g") as consumer:
                consumer.subscribe(["t"], RecordingListener([], then=fail))
                await consumer.receive()
                if way == "aclose":
                    with pytest.raises(LookupError):
                        await consumer.aclose()
                raise Boom("the body's")
        notes = getattr(caught.value, "__notes__", [])
        if way == "body":
            assert "LookupError: the listener's" in notes[0]
            assert "in fail" in notes[0]  # where it came from
        else:
            assert not notes  # it came out already
        assert not cluster.group("g").members


async def test_close_during_unsubscribe_leaves_once(autojump_clock: Clock) -> None:
    events: list[Any] = []

    async def slow(what: str) -> None:
        await trio.sleep(what == "revoked")

    async with (
        cluster_of(records=9) as cluster,
        consumer_of(cluster, group_id="g") as consumer,
        trio.open_nursery() as nursery,
    ):
        consumer.subscribe(["t"], RecordingListener(events, then=slow))
        await values(consumer, 3)
        nursery.start_soon(consumer.unsubscribe)
        await trio.sleep(0.5)
        await consumer.aclose()
        assert [what for what, _ in events] == ["assigned", "revoked"]
        assert len(cluster.requests("LeaveGroup")) == 1


async def test_leave_reason_names_the_poll_interval(autojump_clock: Clock) -> None:
    settings = {"session_timeout_ms": 6_000, "max_poll_interval_ms": 10_000}
    async with cluster_of(records=9) as cluster, member_of(cluster, **settings) as consumer:
        await values(consumer, 3)
        await until(lambda: bool(cluster.requests("LeaveGroup")))
        reason = cluster.requests("LeaveGroup")[0].request.members[0].reason
        assert reason == "max_poll_interval_ms passed without a receive"


async def test_member_that_is_out_leaves_once(autojump_clock: Clock) -> None:
    """Its session ended before it was stale, as of a program that was stopped for a while."""
    async with cluster_of(records=9) as cluster:
        async with member_of(cluster, max_poll_interval_ms=20_000) as consumer:
            await values(consumer, 3)
            cluster.fail("LeaveGroup", UNKNOWN_MEMBER_ID)
            await until(lambda: consumer.statistics().state == "stale")
            await trio.sleep(1)
        assert len(cluster.requests("LeaveGroup")) == 1


async def test_member_that_is_unknown_does_not_leave(autojump_clock: Clock) -> None:
    async with cluster_of(records=9) as cluster:
        async with member_of(cluster, group_protocol="consumer") as consumer:
            await values(consumer, 3)
            cluster.fail("ConsumerGroupHeartbeat", UNKNOWN_MEMBER_ID, None)
            await trio.sleep(60)
        epochs = [seen.request.member_epoch for seen in cluster.requests("ConsumerGroupHeartbeat")]
        assert -1 not in epochs


async def test_cancelled_leave_is_logged_as_such(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "trikafka.membership")
    async with cluster_of(records=1) as cluster, member_of(cluster) as consumer:
        await values(consumer, 1)
        with trio.CancelScope() as scope:

            async def cancel(request: Any, default: Any) -> None:
                scope.cancel()

            cluster.on("LeaveGroup", cancel, times=1)
            await consumer.aclose()
        assert caplog.messages[-1].endswith(
            "until its session ends: the leave was cancelled, or the time for the close was up, "
            "before a response"
        )
    assert caplog.messages[-1].endswith(" left")  # the end of the block leaves again


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_failed_member_that_closes_has_left(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture, protocol: str
) -> None:
    """The close comes while the failed member leaves by itself, and leaves once more."""
    async with cluster_of(records=1) as cluster:
        async with member_of(cluster, group_protocol=protocol) as consumer:
            if protocol == "classic":
                leave = "LeaveGroup"
                cluster.fail("SyncGroup", ErrorCode.INVALID_GROUP_ID)
            else:
                leave = "ConsumerGroupHeartbeat"
                await values(consumer, 1)
                cluster.fail(
                    leave, ErrorCode.INVALID_REQUEST, where=lambda request: request.member_epoch > 0
                )
            cluster.delay(leave, 0.5)
            with pytest.raises(TrikafkaError):
                await consumer.receive()
        assert not [line for line in caplog.messages if "could not leave" in line]
        leaves = cluster.requests(leave)
        assert protocol == "classic" or leaves[-1].request.member_epoch == -1
