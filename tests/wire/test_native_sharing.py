"""The share consumer's work for each record: both implementations have the same outcome."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

import pytest
import trio
import trio.lowlevel
from trio.testing import MockClock

from trikafka._api.client.turns import TURN, known_current_task
from trikafka._state.share.acquired import RecordState
from trikafka._wire import _implementation

ACCEPT, RELEASE = b"\1", b"\2"
both = pytest.mark.usefixtures("implementation")


class World:
    """Acquired records, the buffer that they wait in, and deliveries of them, in one module."""

    def __init__(self, module: ModuleType, count: int = 4) -> None:
        self.calls: list[Any] = []

        class Records(module.AcquiredStates):  # type: ignore[misc]
            __slots__ = ("made",)

            def record(self, index: int) -> Any:
                self._chunk_start = index
                self._chunk = [f"record {each}" for each in (index, index + 1)]
                return self._chunk[0]

        class Held(module.HeldRecords):  # type: ignore[misc]
            __slots__ = ("record",)

            def _acknowledge_several(self, verdict: bytes) -> None:
                raise NotImplementedError("several")

            def _why_not(self) -> Exception:
                return RuntimeError("final")

        self.kind = Held
        self.counts = module.HoldingCounts()
        self.counts.buffered = self.counts.held = count
        self.counts.made_room = lambda: self.calls.append("room")
        self.entry = module.OpenEntry()
        self.entry.stop = 0
        self.acquired = Records()
        self.acquired.states = bytearray(count)
        self.acquired._types = bytearray(count)
        self.acquired._holdings = self.counts
        self.acquired._chunk = []
        self.acquired._chunk_start = 0
        self.acquired._decided = lambda: self.calls.append("decided")
        self.acquired._queue = lambda of, start, stop: self.calls.append((start, stop))
        self.acquired.held = count
        self.acquired.queued = None
        self.buffer = module.BufferFront()
        self.buffer._index = 0
        self.buffer._waiting = deque([self.acquired])

    def delivery(self, index: int) -> Any:
        made = self.kind.__new__(self.kind)
        made._parts = None
        made.acquired = self.acquired
        made._start = index
        made._stop = index + 1
        made._verdict = None
        return made

    def look(self) -> tuple[Any, ...]:
        acquired, counts = self.acquired, self.counts
        rows = bytes(acquired.states), bytes(acquired._types)
        sums = acquired.held, counts.held, counts.buffered, self.entry.stop, self.buffer._index
        return *rows, *sums, list(self.calls)


def attempt(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except Exception as error:
        return type(error).__name__


@pytest.mark.parametrize("seed", range(20))
def test_both_move_the_same_states(seed: int) -> None:
    modules = [_implementation._load(name) for name in _implementation.available()]
    if len(modules) < 2:
        pytest.skip("there is one implementation")
    seen = []
    for module in modules:
        chance = random.Random(seed)
        world = World(module, 12)  # type: ignore[arg-type]
        found: list[Any] = []
        for _ in range(60):
            index, acquired = chance.randrange(12), world.acquired
            step = chance.randrange(7)
            if step == 0:
                found.append(attempt(partial(acquired.take, index)))
            elif step == 1:
                taken = attempt(world.buffer.pop_front)
                found.append(taken and taken[1:])
            elif step == 2:
                attempt(partial(acquired.decide_one, index, 3))
            elif step == 3:
                given = world.delivery(index)
                found.append(attempt(lambda of=given: of._acknowledge(RELEASE)))  # type: ignore[misc]
                found.append(given._verdict)
            elif step == 4:
                acquired.queued = chance.choice([None, world.entry])
                world.entry.upto(index)
            elif step == 5:
                world.counts.enough = chance.randrange(12)
            elif acquired.states[index] == RecordState.DELIVERED:
                acquired.states[index] = RecordState.OPEN
            found.append(world.look())
        seen.append(found)
    assert seen[0] == seen[1]


@both
def test_states_are_those_of_the_table(implementation: ModuleType) -> None:
    world = World(implementation)
    assert world.acquired.take(0) == "record 0"
    assert world.acquired.states[0] == RecordState.DELIVERED
    world.acquired.decide_one(0, 1)
    assert world.acquired.states[0] == RecordState.DECIDED
    world.acquired.states[1] = RecordState.OPEN
    inside = world.delivery(1)
    inside._acknowledge(ACCEPT)
    assert (inside._verdict, world.acquired.states[1]) == (ACCEPT, RecordState.OPEN)
    for state in (RecordState.DECIDED, RecordState.SENT, RecordState.FAILED, RecordState.LOST):
        world.acquired.states[2] = state
        world.acquired.decide_one(2, 1)
        assert world.acquired.take(2) is None
        assert world.acquired.states[2] == state


@both
def test_record_is_decided_once(implementation: ModuleType) -> None:
    world = World(implementation)
    world.acquired.take(0)
    delivery = world.delivery(0)
    delivery._acknowledge(ACCEPT)
    before = world.look()
    with pytest.raises(RuntimeError, match="final"):
        delivery._acknowledge(RELEASE)
    assert world.look() == before
    assert delivery._verdict == ACCEPT
    delivery._stop = 3
    with pytest.raises(NotImplementedError, match="several"):
        delivery._acknowledge(RELEASE)


@both
def test_unknown_record_is_refused(implementation: ModuleType) -> None:
    world = World(implementation)
    assert world.acquired.take(4) is None
    with pytest.raises(IndexError):
        world.acquired.decide_one(4, 1)


class Source:
    """A stand-in for a share consumer: what its iterator asks, and how often."""

    def __init__(self, module: ModuleType, count: int = 4, **settings: Any) -> None:
        self.world = World(module, count)
        self.asked = 0
        self.iterator = module.DeliveryIterator(
            self.wait,
            module.Turn(
                TURN, settings.get("current_task", known_current_task()), trio.current_time
            ),
            self.world.buffer,
            "parts",
            self.world.kind,
            settings.get("deliver"),
        )

    async def wait(self) -> Any:
        self.asked += 1
        await trio.lowlevel.checkpoint()
        self.iterator.turn_begun(7.0)
        found = self.world.buffer.pop_front()
        if found is None:
            raise StopAsyncIteration
        delivery = self.world.delivery(found[1])
        delivery.record = found[2]
        return delivery


def is_compiled(module: ModuleType) -> bool:
    return module.__name__.endswith("_native")


@both
async def test_all_deliveries_come_in_order(
    implementation: ModuleType, autojump_clock: MockClock
) -> None:
    source = Source(implementation)
    got = []
    async for delivery in source.iterator:
        delivery._acknowledge(ACCEPT)
        got.append((delivery.record, delivery._start, delivery._stop))
    assert got == [(f"record {index}", index, index + 1) for index in range(4)]
    assert source.world.counts.held == source.world.counts.buffered == 0
    assert source.world.calls[-2:] == ["decided", (3, 4)]
    # Once for the first record, and once for the end.
    assert source.asked == (2 if is_compiled(implementation) else 5)
    if is_compiled(implementation):
        assert source.world.acquired.keep_until == 7.0


@both
async def test_turn_ends_for_deliveries(
    implementation: ModuleType, autojump_clock: MockClock
) -> None:
    source = Source(implementation)
    await source.iterator.__anext__()
    before = source.asked
    autojump_clock.jump(TURN)
    await source.iterator.__anext__()
    assert source.asked == before + 1
    autojump_clock.jump(TURN)
    assert source.iterator.at_hand() is None


@both
async def test_cancelled_task_takes_no_record(
    implementation: ModuleType, autojump_clock: MockClock
) -> None:
    source = Source(implementation)
    await source.iterator.__anext__()
    with trio.CancelScope() as scope:
        upcoming = source.iterator.__anext__()
        scope.cancel()
        assert source.iterator.at_hand() is None
        await upcoming
    assert scope.cancelled_caught
    assert source.world.buffer._index == 1
    assert (await source.iterator.__anext__()).record == "record 1"


@both
async def test_unknown_tasks_take_the_whole_way(
    implementation: ModuleType, autojump_clock: MockClock
) -> None:
    source = Source(implementation, current_task=None)
    assert len([each async for each in source.iterator]) == 4
    assert source.asked == 5


@both
@pytest.mark.parametrize("taken", [1, 4])
async def test_record_taken_meanwhile_is_not_at_hand(
    implementation: ModuleType, autojump_clock: MockClock, taken: int
) -> None:
    """A signal's handler may run in a call of Python, such as that of the clock."""
    source = Source(implementation)
    turn = implementation.Turn(TURN, known_current_task(), lambda: source.now())
    source.iterator = implementation.DeliveryIterator(
        source.wait, turn, source.world.buffer, "parts", source.world.kind, None
    )
    source.now = trio.current_time
    await source.iterator.__anext__()

    def taking() -> float:
        for _ in range(taken):
            source.world.buffer.pop_front()
        source.now = trio.current_time
        return trio.current_time()

    source.now = taking
    found = source.iterator.at_hand()
    if found is not None:
        assert (found.record, found._start) == ("record 2", 2)


@both
async def test_error_at_the_front_is_left_there(
    implementation: ModuleType, autojump_clock: MockClock
) -> None:
    source = Source(implementation)
    await source.iterator.__anext__()
    source.world.buffer._waiting.appendleft(RuntimeError("damaged"))
    assert source.iterator.at_hand() is None
    assert source.world.buffer.pop_front() is None
    assert len(source.world.buffer._waiting) == 2


@both
async def test_consumer_may_make_the_delivery(
    implementation: ModuleType, autojump_clock: MockClock
) -> None:
    source = Source(implementation, deliver=lambda _, index, record: (index, record))
    await source.iterator.__anext__()
    found = source.iterator.at_hand()
    assert found == ((1, "record 1") if is_compiled(implementation) else None)


def test_strange_arguments_do_not_crash() -> None:
    if "native" not in _implementation.available():
        pytest.skip("there is no compiled part")
    native: Any = _implementation._load("native")
    empty = native.AcquiredStates()
    assert empty.take(0) is None
    with pytest.raises(IndexError):
        empty.decide_one(0, 1)
    with pytest.raises(AttributeError):
        native.HeldRecords()._acknowledge_several(ACCEPT)
    front = native.BufferFront()
    assert front.pop_front() is None
    with pytest.raises(TypeError):
        native.DeliveryIterator(None, native.Turn(1.0, None), front, None, object, None)
    with pytest.raises(TypeError):
        native.DeliveryIterator(None, None, front, None, native.HeldRecords, None)
