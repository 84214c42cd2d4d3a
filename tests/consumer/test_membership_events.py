"""Observers of the membership: each change is notified once, in both group protocols."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
import trio
from consuming import cluster_of, consumer_of, values
from trio.testing import MockClock as Clock

from trikafka import MembershipEvent, hookimpl
from trikafka._managers.group.membership_events import MembershipEvents
from trikafka._state.group.member import Member
from trikafka.error_codes import ErrorCode
from trikafka.errors import (
    FencedInstanceIdError,
    MemberFencedError,
    PluginError,
    RequestTimedOutError,
)
from trikafka.interfaces import MembershipObserver
from trikafka.testing import ScriptedCluster

BEATS = {"classic": "Heartbeat", "consumer": "ConsumerGroupHeartbeat"}
GOODBYES = {"classic": "LeaveGroup", "consumer": "ConsumerGroupHeartbeat"}
both = pytest.mark.parametrize("protocol", list(BEATS))


class Watching(MembershipObserver):
    """An observer that records each event."""

    def __init__(self, problem: Exception | None = None) -> None:
        self.events: list[MembershipEvent] = []
        self.states: list[str] = []
        self.problem = problem
        self._context = None

    @hookimpl
    def trikafka_observer(self, context: Any) -> Watching:
        self._context = context
        return self

    def membership_changed(self, event: MembershipEvent) -> None:
        self.events.append(event)
        if self.problem is not None:
            raise self.problem

    def kinds(self) -> list[str]:
        return [event.kind for event in self.events]

    def of(self, kind: str) -> list[MembershipEvent]:
        return [event for event in self.events if event.kind == kind]

    def membership(self) -> list[str]:
        return [kind for kind in self.kinds() if not kind.startswith("coordinator")]


def watched(cluster: ScriptedCluster, watching: object, protocol: str, **settings: Any) -> Any:
    """Open a member of the group ``g``."""
    given: dict[str, Any] = {"group_id": "g", "group_protocol": protocol, "plugins": [watching]}
    return consumer_of(cluster, "t", **(given | settings))


@both
async def test_quiet_member_has_three_events(autojump_clock: Clock, protocol: str) -> None:
    watching = Watching()
    with trio.fail_after(100):
        async with (
            cluster_of(records=3) as cluster,
            watched(cluster, watching, protocol) as consumer,
        ):
            await values(consumer, 3)
            found = consumer.statistics()
            with trio.move_on_after(30):
                await consumer.receive()
            assert watching.kinds() == ["coordinator_found", "joined"]  # heartbeats are no news
    coordinator, joined, left = watching.events
    assert coordinator.group_id == "g"
    assert "broker 0 at" in coordinator.reason
    assert (joined.member_id, joined.error) == (found.member_id, None)
    assert (left.kind, left.member_id, left.error) == ("left", joined.member_id, None)
    assert left.reason == "the consumer is being closed"
    assert left.generation >= joined.generation > 0


@both
async def test_stale_member_rejoins_at_the_next_receive(
    autojump_clock: Clock, protocol: str
) -> None:
    watching = Watching()
    with trio.fail_after(100):
        async with cluster_of(records=3) as cluster:
            short = {"session_timeout_ms": 6_000} if protocol == "classic" else {}
            async with watched(
                cluster, watching, protocol, max_poll_interval_ms=12_000, **short
            ) as consumer:
                await values(consumer, 3)
                await trio.sleep(11.99)
                assert watching.membership() == ["joined"]
                await trio.sleep(0.02)
                assert watching.membership() == ["joined", "stale"]
                await trio.sleep(30)
                # Leaving because of that is no event of its own.
                assert watching.membership() == [
                    "joined",
                    "stale",
                ]
                cluster.append("t", 0, [b"more"])
                await consumer.receive()
                assert watching.membership() == ["joined", "stale", "joined"]
            assert watching.membership() == ["joined", "stale", "joined", "left"]
    (stale,) = watching.of("stale")
    assert "max_poll_interval_ms" in stale.reason
    assert "12000 ms passed without a receive" in stale.reason
    assert (stale.member_id, stale.generation) == (
        watching.of("joined")[0].member_id,
        stale.generation,
    )
    assert stale.generation > 0


def reported(kind: Any) -> MembershipEvent:
    """Return the event that observers get for a report of ``kind``."""
    seen: list[MembershipEvent] = []
    MembershipEvents("g", Member(None), seen.append).report(kind, "because")
    (event,) = seen
    return event


def test_report_works_by_its_old_name() -> None:
    """A plugin's manager may call ``tell``, the name in the last release."""
    seen: list[MembershipEvent] = []
    events: Any = MembershipEvents("g", Member(None), seen.append)
    with pytest.warns(DeprecationWarning, match="MembershipNews.tell is called report;") as caught:
        events.tell("joined", "because")
    assert [event.kind for event in seen] == ["joined"]
    assert caught[0].filename == __file__
    with pytest.raises(AttributeError, match="anything"):
        events.anything  # noqa: B018


def test_stale_equals_its_old_name_with_warning() -> None:
    kind: str = reported("stale").kind
    assert (kind, hash(kind), json.dumps(kind)) == ("stale", hash("stale"), '"stale"')
    assert kind != "fenced"
    with pytest.warns(DeprecationWarning, match='"stale"') as warned:
        found = kind == "expelled", "expelled" == kind, kind != "expelled"  # noqa: SIM300
    assert found == (True, True, False)
    assert [one.filename for one in warned] == [__file__] * 3


def test_a_manager_may_report_the_old_spelling() -> None:
    with pytest.warns(DeprecationWarning, match='"stale"') as warned:
        event = reported("expelled")
    assert (event.kind, len(warned)) == ("stale", 1)


@both
@pytest.mark.parametrize("code", [ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID])
async def test_fenced_event_has_its_cause(
    autojump_clock: Clock, protocol: str, code: ErrorCode
) -> None:
    watching = Watching()
    with trio.fail_after(100):
        async with (
            cluster_of(records=3) as cluster,
            watched(cluster, watching, protocol) as consumer,
        ):
            await values(consumer, 3)
            cluster.append("t", 0, [b"more"])
            was = consumer.statistics().member_id
            cluster.fail(BEATS[protocol], code, times=1)
            with trio.move_on_after(60):
                try:
                    while True:
                        await consumer.receive()
                except FencedInstanceIdError:
                    assert code is ErrorCode.FENCED_INSTANCE_ID  # for good
            back = [] if code is ErrorCode.FENCED_INSTANCE_ID else ["joined"]
            assert watching.membership() == ["joined", "fenced", *back]
    (fenced,) = watching.of("fenced")
    assert isinstance(fenced.error, MemberFencedError | FencedInstanceIdError)
    assert fenced.error.code == code
    assert (fenced.member_id, fenced.reason) == (was, str(fenced.error))
    assert watching.membership()[-1] == (
        "left" if code is ErrorCode.UNKNOWN_MEMBER_ID else "fenced"
    )


@both
async def test_session_lost_is_notified(autojump_clock: Clock, protocol: str) -> None:
    watching = Watching()
    with trio.fail_after(300):
        async with (
            cluster_of(records=3) as cluster,
            watched(cluster, watching, protocol) as consumer,
        ):
            await values(consumer, 3)
            cluster.fail(BEATS[protocol], ErrorCode.COORDINATOR_NOT_AVAILABLE, times=None)
            await consumer.receive_batch(timeout=40)
            assert watching.membership() == ["joined"]
            while watching.membership()[-1] == "joined":
                await consumer.receive_batch(timeout=1)
            cluster._script._rules.clear()
            while watching.membership()[-1] != "joined":
                await consumer.receive_batch(timeout=1)
    (lost,) = watching.of("session_lost")
    assert isinstance(lost.error, RequestTimedOutError)
    assert "no heartbeat reached the coordinator" in lost.reason
    assert "was the event loop blocked" in lost.reason
    assert watching.membership() == ["joined", "session_lost", "joined", "left"]


@both
async def test_coordinator_move_is_notified(autojump_clock: Clock, protocol: str) -> None:
    watching = Watching()
    with trio.fail_after(100):
        async with (
            cluster_of(nodes=2, records=3) as cluster,
            watched(cluster, watching, protocol) as consumer,
        ):
            await values(consumer, 3)
            cluster.move_coordinator(1)
            with trio.move_on_after(20):
                await consumer.receive()
            assert watching.membership() == ["joined"]
            assert watching.kinds() == [
                "coordinator_found",
                "joined",
                "coordinator_lost",
                "coordinator_found",
            ]
    assert "broker 1 at" in watching.of("coordinator_found")[-1].reason
    assert watching.of("coordinator_lost")[0].generation > 0


@both
async def test_left_event_has_the_cause_of_a_failure(autojump_clock: Clock, protocol: str) -> None:
    watching = Watching()
    with trio.fail_after(100):
        async with (
            cluster_of(records=3) as cluster,
            watched(cluster, watching, protocol) as consumer,
        ):
            await values(consumer, 3)
            await consumer.unsubscribe()
            assert watching.membership() == ["joined", "left"]
            consumer.subscribe(["t"])
            cluster.append("t", 0, [b"more"])
            await values(consumer, 1)
            assert watching.membership() == ["joined", "left", "joined"]
            cluster.silence(GOODBYES[protocol])
            await consumer.aclose(timeout=3)
    assert watching.membership() == ["joined", "left", "joined", "left"]
    first, second = watching.of("left")
    assert (first.reason, first.error) == ("the consumer unsubscribed", None)
    assert isinstance(second.error, RequestTimedOutError)


async def test_each_classic_generation_is_notified(autojump_clock: Clock) -> None:
    watching = Watching()
    with trio.fail_after(100):
        async with (
            cluster_of(2, records=3) as cluster,
            watched(cluster, watching, "classic") as consumer,
        ):
            await values(consumer, 3)
            consumer.enforce_rebalance("for the test")
            with trio.move_on_after(10):
                while True:
                    await consumer.receive()
    first, second = watching.of("joined")
    assert (second.generation, second.member_id) == (first.generation + 1, first.member_id)
    assert second.reason == "for the test"


async def test_failing_membership_observer_is_logged(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    watching = Watching(ValueError("mine"))
    with caplog.at_level(logging.ERROR), trio.fail_after(100):
        async with (
            cluster_of(records=3) as cluster,
            watched(cluster, watching, "classic") as consumer,
        ):
            await values(consumer, 3)
    assert watching.kinds() == ["coordinator_found", "joined", "left"]
    assert [
        one.getMessage() for one in caplog.records if "membership_changed" in one.getMessage()
    ] == ["plugin 'Watching': observer.membership_changed failed: ValueError('mine')"]


async def test_async_membership_observer_is_refused(autojump_clock: Clock) -> None:
    class Waits(Watching):
        async def membership_changed(self, event: MembershipEvent) -> None:  # type: ignore[override]
            pass

    async with cluster_of() as cluster:
        with pytest.raises(PluginError, match="membership_changed must be plain functions"):
            async with watched(cluster, Waits(), "classic"):
                pass
