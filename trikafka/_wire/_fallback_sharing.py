"""The work of a share consumer for each record, in pure Python.

The interface and the outcomes are those of ``_native_sharing.pxi``. ``_state/share/acquired.py``
has the states of acquired records, and their rules.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from types import TracebackType
from typing import Any, Self

from trikafka._wire._fallback_iterating import Turn
from trikafka.types import AnyRecord

#: States of a record. ``RecordState`` has them all; tests hold the two lists together.
_BUFFERED, _DELIVERED, _OPEN, _DECIDED = range(4)


class HoldingCounts:
    """The numbers of records that a share consumer holds.

    ``made_room`` is called whenever the decision of one record leaves no more than ``enough`` held
    records, or none that is buffered.
    """

    __slots__ = ("_thread", "buffered", "enough", "held", "made_room")

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        self.buffered = 0
        self.held = 0
        self.enough = -1
        self.made_room: Callable[[], object] | None = None


class OpenEntry:
    """An entry of acknowledgements that waits for a request; ``stop``: the index after its last."""

    __slots__ = ("stop",)

    stop: int

    def upto(self, stop: int) -> None:
        """Extend the range to before ``stop``."""
        self.stop = stop


class AcquiredStates:
    """The states of some acquired records, and the transitions of a single one."""

    __slots__ = (
        "_chunk",
        "_chunk_start",
        "_decided",
        "_holdings",
        "_queue",
        "_types",
        "held",
        "keep_until",
        "queued",
        "states",
    )

    _chunk: list[AnyRecord]
    _chunk_start: int
    _decided: Callable[[], object]
    _holdings: HoldingCounts
    _queue: Callable[[Any, int, int], object]
    _types: bytearray
    held: int
    keep_until: float
    queued: Any
    states: bytearray

    def record(self, index: int) -> AnyRecord:
        """Return a record. A subclass makes some at a time."""
        raise NotImplementedError

    def take(self, index: int) -> AnyRecord | None:
        """Record that the program has a record, and return it; ``None`` if it is not BUFFERED."""
        states = self.states
        if index >= len(states) or states[index] != _BUFFERED:
            return None
        at = index - self._chunk_start
        chunk = self._chunk
        record = chunk[at] if 0 <= at < len(chunk) else self.record(index)
        states[index] = _DELIVERED
        self._holdings.buffered -= 1
        return record

    def decide_one(self, index: int, kind: int) -> None:
        """Record the acknowledgement of a record, if the record is held."""
        states = self.states
        state = states[index]
        if state > _OPEN:
            return
        self._types[index] = kind
        states[index] = _DECIDED
        holdings = self._holdings
        if state == _BUFFERED:
            holdings.buffered -= 1
        holdings.held -= 1
        self.held -= 1
        if not self.held:
            self._decided()
        queued = self.queued
        if queued is not None and queued.stop == index:
            queued.stop = index + 1
            if holdings.made_room is not None and (
                holdings.held <= holdings.enough or not holdings.buffered
            ):
                holdings.made_room()
        else:
            self._queue(self, index, index + 1)


class BufferFront:
    """The acquired records that wait to be delivered, and the next index in the first of them."""

    __slots__ = ("_index", "_waiting")

    _index: int
    _waiting: deque[Any]

    def pop_front(self) -> tuple[Any, int, AnyRecord] | None:
        """Take the next record if it is at the front; ``None``: the complete way has to look."""
        if not self._waiting:
            return None
        first, index = self._waiting[0], self._index
        if not isinstance(first, AcquiredStates):
            return None
        record = first.take(index)
        if record is None:
            return None
        self._index = index + 1
        return first, index, record


class BlockScopes:
    """The cancel scopes of a share consumer's blocks.

    To enter and to leave a scope of Trio's takes 7 microseconds, more than all the rest of a
    record. So the compiled implementation keeps a scope that was left without a cancellation, and
    puts it around the next block by itself. The pure implementation enters a new one each time.

    Args:
        enter_new: Returns a new cancel scope, which the running task has entered.
        left: A cancel scope that was entered and left before. It stands for those that were kept.
        current_task: Returns the running task; ``None``: no scope is kept.
    """

    __slots__ = ("enter", "left")

    def __init__(
        self,
        enter_new: Callable[[], Any],
        left: Any,
        current_task: Callable[[], object] | None,
    ) -> None:
        #: Returns a cancel scope that the running task has entered.
        self.enter = enter_new
        self.left = left

    def leave(self, scope: Any) -> bool:
        """Leave a scope after no error, and keep it; return False if the caller has to leave it."""
        return False


class HeldRecords:
    """Records that the program has: ``acquired``, from ``_start`` to before ``_stop``.

    ``async with`` opens their block. If it is the block of a single record, the compiled
    implementation usually enters and leaves it without a coroutine.
    """

    __slots__ = ("_cancel_elsewhere", "_parts", "_scope", "_start", "_stop", "_verdict", "acquired")

    _cancel_elsewhere: Any
    _parts: Any
    _scope: Any
    _start: int
    _stop: int
    _verdict: bytes | None
    acquired: Any

    def _acknowledge(self, verdict: bytes) -> None:
        if self._stop - self._start != 1:
            self._acknowledge_several(verdict)
            return
        state = self.acquired.states[self._start]
        if state == _OPEN:
            self._verdict = verdict
        elif state == _DELIVERED:
            # A decision may wake tasks of Trio's, which another thread cannot do.
            if self.acquired._holdings._thread != threading.get_ident():
                self._parts.home.check()
            self._verdict = verdict
            self.acquired.decide_one(self._start, verdict[0])
        else:
            raise self._why_not()

    # Coroutines, not only awaitables: an ``AsyncExitStack`` takes nothing else, for type checkers.

    def __aenter__(self) -> Coroutine[Any, Any, Self]:
        """Open the block: see :class:`trikafka.Delivery`."""
        return self._enter()

    def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> Coroutine[Any, Any, bool]:
        """Close the block, and acknowledge."""
        return self._exit(kind, error, trace)

    # A subclass defines these: the complete ways through a block, and what the quick ways call.

    def _acknowledge_several(self, verdict: bytes) -> None:
        raise NotImplementedError

    def _why_not(self) -> Exception:
        raise NotImplementedError

    def _lost_error(self) -> Exception:
        raise NotImplementedError

    async def _enter(self) -> Self:
        raise NotImplementedError

    async def _exit(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        raise NotImplementedError

    def _leave(self, *, clean: bool) -> bool:
        raise NotImplementedError


class DeliveryIterator:
    """The asynchronous iterator that gives a task of Trio's the deliveries of a share consumer.

    ``wait()`` is the complete way to the next delivery. The fast way is taken while a record is at
    the front of ``buffer`` and ``turn`` lets it pass. The pure implementation always takes the
    complete way.

    Args:
        wait: The complete way.
        turn: The turn of the task that iterates.
        buffer: What the records are taken from.
        parts: The consumer's parts, for its deliveries.
        kind: The type of a delivery, which has an attribute ``record``.
        deliver: Makes the delivery of a record; ``None``: the iterator makes it.
    """

    __slots__ = ("_wait",)

    def __init__(
        self,
        wait: Callable[[], Coroutine[Any, Any, Any]],
        turn: Turn,
        buffer: BufferFront,
        parts: object,
        kind: type[HeldRecords],
        deliver: Callable[[Any, int, AnyRecord], Any] | None,
    ) -> None:
        self._wait = wait

    def __aiter__(self) -> Self:
        return self

    def __anext__(self) -> Awaitable[Any]:
        return self._wait()

    def at_hand(self) -> Any:
        """Return the next delivery, or ``None`` if the complete way has to be taken."""
        return None

    def turn_begun(self, keep_until: float = math.inf) -> None:
        """Begin a turn: other tasks have just run.

        What is delivered in this turn is renewed until ``keep_until``.
        """
