"""The life of a classic member as a state machine, checked through its listeners.

Hypothesis chooses the events; each run is played against the scripted cluster in virtual time.
Revocations come before assignments, ``lost`` exactly when the member is out of its group, and each
partition alternates. No event is lost: once calm, the member has its share.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import trio
from consuming import cluster_of, consumer_of, member_of
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from trio.testing import MockClock

from trikafka import TopicPartition
from trikafka._state.group import member
from trikafka._state.group.member import _AFTER, MemberState
from trikafka.interfaces import RebalanceListener

FAST: dict[str, Any] = {
    "group_id": "g",
    "session_timeout_ms": 6_000,
    "heartbeat_interval_ms": 500,
    "max_poll_interval_ms": 10_000,
    "auto_commit_interval_ms": 1_000,
    "metadata_max_age_ms": 3_000,
}
PARTITIONS = 4
#: The states of the member in which each listener method may run.
ToldIn = dict[str, set[str]]
TOLD_IN: ToldIn = {
    "assigned": {"assigning"},
    "revoked": {"revoking", "leaving"},
    "lost": {"fenced", "stale"},
}


class Witness(RebalanceListener):
    """A listener that tracks the owned partitions and checks each call."""

    def __init__(self, told_in: ToldIn) -> None:
        self.told_in = told_in
        self.owned: set[TopicPartition] = set()
        self.consumer: Any = None
        self.wrong: list[str] = []
        self.raises = False
        self.takes = 0.0  # seconds, the next time
        self.cut: dict[TopicPartition, bool] = {}  # in an unfinished call: True for assigned ones

    async def _told(self, what: str, partitions: Any) -> None:
        state = self.consumer.statistics().state
        if state not in self.told_in[what]:
            self.wrong.append(f"{what} in state {state}")
        if not partitions:
            self.wrong.append(f"{what} of nothing")
        comes = what == "assigned"
        for tp in partitions:
            if (tp in self.owned) is comes and self.cut.get(tp) is not comes:
                self.wrong.append(f"{what} {tp}, while it has {sorted(self.owned)}")
        self.owned = self.owned | set(partitions) if comes else self.owned - set(partitions)
        raises = self.raises
        self.raises = False
        takes = self.takes
        self.takes = 0.0
        # A cancelled call is repeated, or followed by lost.
        self.cut.update(dict.fromkeys(partitions, comes))
        await trio.sleep(takes)
        for tp in partitions:
            self.cut.pop(tp, None)
        if raises:
            raise LookupError(what)

    async def on_partitions_assigned(self, partitions: Any) -> None:
        await self._told("assigned", partitions)

    async def on_partitions_revoked(self, partitions: Any) -> None:
        await self._told("revoked", partitions)

    async def on_partitions_lost(self, partitions: Any) -> None:
        await self._told("lost", partitions)


class Play:
    """One run against the scripted cluster: our member, and at most two others that only read."""

    def __init__(
        self,
        settings: dict[str, Any],
        told_in: ToldIn = TOLD_IN,
        times: dict[str, Any] | None = None,
    ) -> None:
        self.settings = settings
        self.times = times or {}
        self.mine: dict[str, Any] = {}  # settings of our member alone
        self.witness = Witness(told_in)
        self.others: list[tuple[trio.CancelScope, Any]] = []
        self.cluster: Any = None
        self.consumer: Any = None
        self.nursery: Any = None

    async def run(self, steps: list[Callable[[Play], Awaitable[None]]]) -> None:
        async with (
            cluster_of(PARTITIONS, records=3, nodes=2, **self.times) as self.cluster,
            consumer_of(self.cluster, **self.settings, **self.mine) as self.consumer,
            trio.open_nursery() as self.nursery,
        ):
            self.witness.consumer = self.consumer
            self.consumer.subscribe(["t"], self.witness)
            for step in steps:
                await step(self)
                assert not self.witness.wrong
            await self.calm()
            await self.consumer.aclose()
            self.nursery.cancel_scope.cancel()
        assert not self.witness.wrong
        assert not self.witness.owned  # assigned partitions were revoked or lost

    async def calm(self) -> None:
        """Remove the other members, then check that all partitions are owned and read."""
        for scope, _ in self.others:
            scope.cancel()
        if not self.consumer.subscription():
            self.consumer.subscribe(["t"], self.witness)
        everything = {TopicPartition("t", number) for number in range(PARTITIONS)}
        with trio.fail_after(120):
            while self.witness.owned != everything or self.consumer.statistics().state != "stable":
                await self.receive(0.5)
                assert not self.witness.wrong
            for number in range(PARTITIONS):
                self.cluster.append("t", number, [b"last"])
            left = set(everything)
            while left:
                with suppress(LookupError):
                    record = await self.consumer.receive()
                    if record.value == b"last":
                        left.discard(TopicPartition("t", record.partition))

    async def receive(self, seconds: float) -> None:
        with trio.move_on_after(seconds):
            while True:
                try:
                    await self.consumer.receive()
                except LookupError:
                    pass
                except trio.BusyResourceError:
                    await trio.sleep(0.1)

    async def other(self, scope: trio.CancelScope) -> None:
        with scope:
            async with member_of(self.cluster, **self.settings) as consumer:
                async for _ in consumer:
                    pass


class Life(RuleBasedStateMachine):
    """The rules: events for a member of either protocol."""

    def begin_with(self, play: Play) -> None:
        self.play = play
        self.steps: list[Callable[[Play], Awaitable[None]]] = []

    def then(self, step: Callable[[Play], Awaitable[None]]) -> None:
        self.steps.append(step)

    @rule(seconds=st.sampled_from([0.001, 0.1, 0.6, 3.0]))
    def the_user_receives(self, seconds: float) -> None:
        self.then(lambda play: play.receive(seconds))

    @rule(seconds=st.sampled_from([0.001, 0.3, 4.0, 11.0]))
    def the_user_is_away(self, seconds: float) -> None:
        async def step(play: Play) -> None:
            await trio.sleep(seconds)

        self.then(step)

    @rule()
    def another_joins(self) -> None:
        async def step(play: Play) -> None:
            if len(play.others) < 2:
                scope = trio.CancelScope()
                play.others.append((scope, None))
                play.nursery.start_soon(play.other, scope)

        self.then(step)

    @rule()
    def another_leaves(self) -> None:
        async def step(play: Play) -> None:
            if play.others:
                play.others.pop()[0].cancel()

        self.then(step)

    @rule(node=st.sampled_from([0, 1]))
    def the_coordinator_moves(self, node: int) -> None:
        async def step(play: Play) -> None:
            play.cluster.move_coordinator(node)

        self.then(step)

    @rule()
    def a_rebalance_is_enforced(self) -> None:
        async def step(play: Play) -> None:
            if play.consumer.subscription():
                play.consumer.enforce_rebalance("the test wants it")

        self.then(step)

    @rule()
    def the_user_unsubscribes(self) -> None:
        async def step(play: Play) -> None:
            with suppress(LookupError):
                await play.consumer.unsubscribe()
            play.consumer.subscribe(["t"], play.witness)

        self.then(step)

    @rule()
    def a_listener_raises(self) -> None:
        async def step(play: Play) -> None:
            play.witness.raises = True

        self.then(step)

    @rule(seconds=st.sampled_from([0.2, 1.5, 5.0]))
    def a_listener_takes_its_time(self, seconds: float) -> None:
        async def step(play: Play) -> None:
            play.witness.takes = seconds

        self.then(step)

    @rule()
    def the_loop_is_blocked(self) -> None:
        async def step(play: Play) -> None:
            clock.jump(7)

        self.then(step)

    def teardown(self) -> None:
        if not hasattr(self, "play"):
            return
        global clock
        clock = MockClock(autojump_threshold=0)
        self.steps.append(lambda play: unset(play))
        trio.run(self.play.run, self.steps, clock=clock)


async def unset(play: Play) -> None:
    play.witness.raises = False
    play.witness.takes = 0.0


class ClassicLife(Life):
    """Events of the classic protocol."""

    @initialize(strategy=st.sampled_from(["range", "sticky", "cooperative-sticky"]))
    def begin(self, strategy: str) -> None:
        self.begin_with(Play(FAST | {"partition_assignment_strategy": [strategy]}))

    @rule()
    def the_group_forgets_the_member(self) -> None:
        async def step(play: Play) -> None:
            if play.cluster.group("g") is not None:
                play.cluster.group("g").remove(play.consumer.statistics().member_id)

        self.then(step)

    @rule(
        api=st.sampled_from(["Heartbeat", "JoinGroup", "SyncGroup"]),
        code=st.sampled_from([14, 15, 16, 22, 25, 27]),
    )
    def a_response_is_an_error(self, api: Any, code: int) -> None:
        async def step(play: Play) -> None:
            play.cluster.fail(api, code, 1)

        self.then(step)

    @rule(
        api=st.sampled_from(["Heartbeat", "JoinGroup", "SyncGroup", "LeaveGroup", "OffsetCommit"])
    )
    def a_connection_breaks(self, api: Any) -> None:
        async def step(play: Play) -> None:
            play.cluster.drop(api, 1)

        self.then(step)


clock = MockClock()
SETTINGS = settings(
    max_examples=30,
    stateful_step_count=12,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    print_blob=True,
)
ClassicLife.TestCase.settings = SETTINGS
TestLife = ClassicLife.TestCase


def test_state_table_is_complete() -> None:
    assert set(_AFTER) == set(MemberState)
    assert all(after <= set(MemberState) for after in _AFTER.values())
    reached, todo = {MemberState.UNJOINED}, [MemberState.UNJOINED]
    while todo:
        for state in _AFTER[todo.pop()] - reached:
            reached.add(state)
            todo.append(state)
    assert reached == set(MemberState)
    in_the_group = set(MemberState) - {
        MemberState.UNJOINED,
        MemberState.FENCED,
        MemberState.STALE,
        MemberState.LEAVING,
    }
    for state in in_the_group:  # in each state a member can be removed, be late, and leave
        assert {MemberState.FENCED, MemberState.STALE, MemberState.LEAVING} <= _AFTER[state] | {
            state
        }


def test_docstring_has_the_table_of_states() -> None:
    names = [state.name for state in MemberState]
    written: dict[str, str] = {}
    for line in (member.__doc__ or "").splitlines():
        name, comes_after = line[:18].strip(), line[70:].strip()
        if name in names:
            written[name] = comes_after
        elif written and comes_after and not name:
            written[list(written)[-1]] += " " + comes_after
    in_the_group = names[names.index("JOINING") : names.index("STABLE") + 1]
    for name in names:
        before = {state.name for state, after in _AFTER.items() if MemberState[name] in after}
        match written[name]:
            case "all from JOINING to STABLE":
                assert before == set(in_the_group), name
            case "all others":
                assert before == set(names) - {name}, name
            case text:
                assert before == set(text.split(", ")), name
