"""Iteration over records one by one in both implementations: the short way differs only in speed."""

import gc
import signal
import sys
import weakref
from collections.abc import Awaitable, Callable
from types import ModuleType
from typing import Any

import pytest
import trio
import trio.testing
from trio.testing import MockClock
from wirebatches import Rec, batch_v2, decode

from trikafka._api.client.turns import TURN, known_current_task, record_iterator
from trikafka._wire.columns import RecordBatch
from trikafka.types import Record

pytestmark = pytest.mark.usefixtures("implementation")


def batch_of(count: int, first: int = 0) -> RecordBatch:
    records = [Rec(None, b"%d" % i, (), 1000 + i, 2 * i) for i in range(count)]
    return decode(batch_v2(records, base=first), fetch_offset=first)


class Source:
    """A stand-in for the iterator's receiver: it delivers one batch and notes when it was asked."""

    def __init__(self, implementation: ModuleType, count: int = 5, yields: bool = True) -> None:
        self.cursor = implementation.Cursor(batch_of(count), 0, None)
        self.yields = yields
        self.asked = 0
        self.event: trio.Event | None = None  # to be waited for
        self.records = record_iterator(self.record)

    async def record(self) -> Record:
        self.asked += 1
        if self.event is not None:
            await self.event.wait()
        if self.yields:
            await trio.lowlevel.checkpoint()
            self.records.turn_begun()
        if not self.cursor.live:
            raise StopAsyncIteration
        self.records.follow(self.cursor)
        record: Record = self.cursor.take()
        return record


def in_virtual_time(work: Callable[[], Awaitable[None]]) -> None:
    trio.run(work, clock=MockClock())


# The cursor.


def test_cursor_knows_the_users_position(implementation: ModuleType) -> None:
    batch = batch_of(3, first=10)
    cursor = implementation.Cursor(batch, 7, 5)
    assert (cursor.live, cursor.position, cursor.processed, len(cursor.rest)) == (True, 7, 5, 3)
    assert cursor.take() == batch[0]
    assert (cursor.live, cursor.position, cursor.processed) == (True, 11, 7)
    assert [record.offset for record in cursor.rest] == [12, 14]
    cursor.take()
    assert (cursor.live, cursor.position, cursor.processed) == (True, 13, 11)
    cursor.processed_upto(12)
    assert cursor.processed == 12
    cursor.take()
    assert (cursor.live, cursor.position, cursor.processed) == (False, batch.next_offset, 13)
    assert cursor.rest is None


def test_ended_cursor_leaves_the_rest(implementation: ModuleType) -> None:
    cursor = implementation.Cursor(batch_of(3), 0, None)
    assert cursor.processed is None
    cursor.take()
    cursor.end()
    assert not cursor.live
    assert [record.offset for record in cursor.rest] == [2, 4]
    assert (cursor.position, cursor.processed) == (1, 0)


def test_failed_record_stays_the_next_one(implementation: ModuleType) -> None:
    class Failing(RecordBatch):
        def __iter__(self) -> Any:
            records = super().__iter__()
            kept: list[Record] = []

            class Records:
                failures = 1

                def __next__(self) -> Record:
                    kept.extend([next(records)] if not kept else [])
                    if kept[0].offset == 2 and Records.failures:
                        Records.failures -= 1
                        raise RuntimeError("not yet")
                    return kept.pop()

                def __iter__(self) -> Any:
                    return self

            return Records()

    whole = batch_of(3)
    cursor = implementation.Cursor(Failing("t", 0, whole.columns, whole.next_offset), 0, None)
    assert cursor.take().offset == 0
    with pytest.raises(RuntimeError, match="not yet"):
        cursor.take()
    assert (cursor.live, cursor.position, cursor.processed) == (True, 1, 1)
    assert [cursor.take().offset, cursor.take().offset] == [2, 4]


# The iterator.


def test_all_records_come_in_order(implementation: ModuleType) -> None:
    async def main() -> None:
        source = Source(implementation)
        assert [record.offset async for record in source.records] == [0, 2, 4, 6, 8]
        assert [record.offset async for record in source.records] == []
        assert source.cursor.processed == 7

    in_virtual_time(main)


def test_compiled_iterator_asks_once_a_turn(implementation: ModuleType) -> None:
    async def main() -> None:
        source = Source(implementation, 6)
        clock = trio.lowlevel.current_clock()
        assert isinstance(clock, MockClock)
        for _ in range(3):
            await source.records.__anext__()
        assert source.asked == (1 if implementation.__name__.endswith("_native") else 3)
        before = source.asked
        clock.jump(TURN * 0.9)
        await source.records.__anext__()
        assert source.asked == (
            before if implementation.__name__.endswith("_native") else before + 1
        )
        before = source.asked
        clock.jump(TURN * 0.1)
        await source.records.__anext__()
        assert source.asked == before + 1

    in_virtual_time(main)


def test_other_tasks_have_turns(implementation: ModuleType) -> None:
    async def main() -> None:
        source = Source(implementation, 2000)
        turns = 0

        async def other() -> None:
            nonlocal turns
            while True:
                turns += 1
                await trio.lowlevel.checkpoint()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(other)
            clock = trio.lowlevel.current_clock()
            assert isinstance(clock, MockClock)
            async for _ in source.records:
                clock.jump(TURN / 4)
            nursery.cancel_scope.cancel()
        assert turns >= 2000 / 5 - 1  # floats make 0.25 inexact

    in_virtual_time(main)


def test_wall_clock_also_ends_a_turn(implementation: ModuleType) -> None:
    async def main() -> None:
        source = Source(implementation, 3)
        await source.records.__anext__()
        until = trio.current_time() + 2 * TURN
        while trio.current_time() < until:
            pass
        before = source.asked
        await source.records.__anext__()
        assert source.asked == before + 1

    trio.run(main)


@pytest.mark.parametrize("where", ["around", "outside", "between"])
def test_cancelling_between_records_loses_none(implementation: ModuleType, where: str) -> None:
    async def main() -> None:
        source = Source(implementation)
        await source.records.__anext__()
        with trio.CancelScope() as outer, trio.CancelScope() as inner:
            await source.records.__anext__()
            upcoming = source.records.__anext__()
            (outer if where == "outside" else inner).cancel()
            if where != "between":
                await upcoming
            else:
                with trio.CancelScope(shield=True):
                    assert (await upcoming).offset == 4
                await source.records.__anext__()
            raise AssertionError("went on")
        rest = [record.offset async for record in source.records]
        assert rest == ([6, 8] if where == "between" else [4, 6, 8])

    in_virtual_time(main)


def test_control_c_interrupts_iteration(implementation: ModuleType) -> None:
    async def main() -> None:
        source = Source(implementation)
        taken = []

        @trio.lowlevel.enable_ki_protection
        async def protected() -> None:
            async for record in source.records:
                taken.append(record.offset)
                if len(taken) == 2:
                    signal.raise_signal(signal.SIGINT)

        with pytest.raises(KeyboardInterrupt):
            await protected()
        assert taken == [0, 2]
        assert [record.offset async for record in source.records] == [4, 6, 8]

    in_virtual_time(main)


def test_cursor_ended_before_the_await_stops(implementation: ModuleType) -> None:
    """A cursor that ends between ``__anext__()`` and its await ends the iteration."""

    async def main() -> None:
        source = Source(implementation)
        await source.records.__anext__()
        upcoming = source.records.__anext__()
        source.cursor.end()
        with pytest.raises(StopAsyncIteration):
            await upcoming
        upcoming = source.records.__anext__()
        source.records.follow(None)
        with pytest.raises(StopAsyncIteration):
            await upcoming

    in_virtual_time(main)


@pytest.mark.parametrize("cancelled", [False, True])
def test_short_way_waits_like_a_coroutine(implementation: ModuleType, cancelled: bool) -> None:
    """The awaitable shows its frames, is resumed with values, and is cancelled like a coroutine."""

    async def main() -> None:
        source = Source(implementation)
        await source.records.__anext__()
        upcoming = source.records.__anext__()
        source.records.follow(None)
        source.event = trio.Event()
        tasks, ended = [], []

        async def handler() -> None:
            tasks.append(trio.lowlevel.current_task())
            try:
                ended.append((await upcoming).offset)
            except trio.Cancelled:
                ended.append("cancelled")
                raise

        async with trio.open_nursery() as nursery:
            nursery.start_soon(handler)
            await trio.testing.wait_all_tasks_blocked()
            assert "record" in [frame.f_code.co_name for frame, _ in tasks[0].iter_await_frames()]
            if cancelled:
                nursery.cancel_scope.cancel()
            else:
                source.event.set()
        assert ended == ["cancelled" if cancelled else 2]

    in_virtual_time(main)


def test_a_record_is_awaited_once(implementation: ModuleType) -> None:
    async def main() -> None:
        source = Source(implementation)
        await source.records.__anext__()
        upcoming = source.records.__anext__()
        await upcoming
        with pytest.raises(RuntimeError, match="cannot reuse"):
            await upcoming
        assert [record.offset async for record in source.records] == [4, 6, 8]

    in_virtual_time(main)


def test_awaitable_without_await_takes_nothing(implementation: ModuleType) -> None:
    async def main() -> None:
        source = Source(implementation)
        await source.records.__anext__()
        closed: Any = source.records.__anext__()
        closed.close()
        with pytest.raises(RuntimeError, match="cannot reuse"):
            closed.send(None)
        thrown: Any = source.records.__anext__()
        with pytest.raises(KeyError):
            thrown.throw(KeyError("x"))
        with pytest.raises(RuntimeError, match="cannot reuse"):
            thrown.send(None)
        assert [record.offset async for record in source.records] == [2, 4, 6, 8]

    in_virtual_time(main)


def test_awaitable_is_sent_to_by_hand(implementation: ModuleType) -> None:
    async def main() -> None:
        source = Source(implementation)
        await source.records.__anext__()
        source.yields = False
        upcoming: Any = source.records.__anext__()
        with pytest.raises(StopIteration) as ended:
            upcoming.send(None)
        assert ended.value.value.offset == 2

    in_virtual_time(main)


def test_iteration_works_while_traced(implementation: ModuleType) -> None:
    """A debugger or a coverage tool changes how awaitables are driven."""

    async def main() -> None:
        source = Source(implementation)
        seen: list[str] = []
        before = sys.gettrace()
        sys.settrace(lambda frame, event, argument: seen.append(event))  # type: ignore[arg-type,func-returns-value]
        try:
            offsets = [record.offset async for record in source.records]
        finally:
            sys.settrace(before)
        assert offsets == [0, 2, 4, 6, 8]
        assert seen

    in_virtual_time(main)


def test_two_tasks_share_one_iterator(implementation: ModuleType) -> None:
    async def main() -> None:
        source = Source(implementation, 100)
        taken: list[int] = []

        async def take() -> None:
            async for record in source.records:
                taken.append(record.offset)
                await trio.lowlevel.checkpoint()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(take)
            nursery.start_soon(take)
        assert sorted(taken) == list(range(0, 200, 2))

    in_virtual_time(main)


def test_unknown_trio_uses_the_long_way(
    implementation: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        monkeypatch.setattr(trio.lowlevel, "current_task", lambda: object())
        source = Source(implementation)
        monkeypatch.undo()
        assert [record.offset async for record in source.records] == [0, 2, 4, 6, 8]
        assert source.asked == 6

    in_virtual_time(main)


def test_deserializer_may_end_its_cursor(implementation: ModuleType) -> None:
    """A deserializer is the user's: it may seek, and the cursor that calls it must stay alive."""

    async def main() -> None:
        source = Source(implementation)
        whole = batch_of(4)

        class Away(RecordBatch):
            def __iter__(self) -> Any:
                for record in super().__iter__():
                    if record.offset == 4:
                        source.cursor.end()
                        source.cursor = None  # type: ignore[assignment]
                        source.records.follow(None)
                        gc.collect()
                    yield record

        source.cursor = implementation.Cursor(
            Away("t", 0, whole.columns, whole.next_offset), 0, None
        )
        offsets = [(await source.records.__anext__()).offset for _ in range(3)]
        assert offsets == [0, 2, 4]

    in_virtual_time(main)


def test_cursor_that_ends_meanwhile_gives_no_record(implementation: ModuleType) -> None:
    """A signal's handler may run in a call of Python, such as that of the clock."""

    async def main() -> None:
        source = Source(implementation)
        calls: list[int] = []

        def now() -> float:
            calls.append(1)
            if len(calls) == 2:
                source.cursor.end()
                source.records.follow(None)
            return trio.current_time()

        turn = implementation.Turn(1.0, known_current_task(), now)
        source.records = implementation.RecordIterator(source.record, turn)
        assert (await source.records.__anext__()).offset == 0
        calls[:] = [1]
        rest = [record.offset async for record in source.records]
        assert rest == ([] if len(calls) > 1 else [2, 4, 6, 8])  # only the compiled one reads it

    in_virtual_time(main)


def test_dropped_source_is_freed(implementation: ModuleType) -> None:
    """The iterator holds its receiver, and the receiver holds the iterator."""
    gone: list[weakref.ref[Source]] = []

    async def main() -> None:
        source = Source(implementation)
        async for _ in source.records:
            break
        gone.append(weakref.ref(source))

    in_virtual_time(main)
    gc.collect()
    assert gone[0]() is None


# The turn.


def test_call_passes_within_its_turn(implementation: ModuleType) -> None:
    async def main() -> None:
        clock: Any = trio.lowlevel.current_clock()
        turn = implementation.Turn(1.0, known_current_task(), trio.current_time)
        assert turn.is_over
        assert not turn.passes()
        turn.begin()
        clock.jump(0.999)
        assert turn.passes()
        clock.jump(0.002)
        assert turn.is_over
        assert not turn.passes()

    in_virtual_time(main)


@pytest.mark.parametrize("now", [None, trio.current_time])
def test_cancelled_task_does_not_pass(implementation: ModuleType, now: Any) -> None:
    async def main() -> None:
        turn = implementation.Turn(60.0, known_current_task(), now)
        turn.begin()
        with trio.CancelScope() as scope:
            assert turn.passes()
            scope.cancel()
            assert not turn.passes()
            await trio.lowlevel.checkpoint()
        assert turn.passes()

    in_virtual_time(main)


def test_no_call_passes_without_known_tasks(implementation: ModuleType) -> None:
    turn = implementation.Turn(60.0, None)
    turn.begin()
    assert not turn.is_over
    assert not turn.passes()
