"""What a share consumer delivers: one record, or a batch of one partition, with its locks.

Both are blocks. While the program is inside, the client renews the locks. A lock that is lost
cancels the block: nothing works on for a record that is another member's.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self

import trio

from ..._state.share.acquired import AcquiredRecords
from ..._wire import _implementation
from ..._wire.columns import RecordBatch
from ..._wire.share import AckType
from ...errors import IllegalStateError, LockLostError, TrikafkaError
from ...errors.copies import again
from ...errors.counts import counted
from ...types import Key, Record, Value
from ..client.deserializing import DeserializedBatch
from .parts import ShareParts

if TYPE_CHECKING:
    import pyarrow

    from ..._wire._fallback_sharing import HeldRecords as _HeldRecords
else:
    _HeldRecords = _implementation.current.HeldRecords

_log = logging.getLogger("trikafka.share")
_ACCEPT, _RELEASE, _REJECT = (
    bytes((kind,)) for kind in (AckType.ACCEPT, AckType.RELEASE, AckType.REJECT)
)
_TOO_LONG = "max_processing_ms passed"
#: Older releases of Trio take no reason.
_TAKES_REASON = "reason" in inspect.signature(trio.CancelScope.cancel).parameters


def _cancel(scope: trio.CancelScope, reason: str) -> None:
    if _TAKES_REASON:
        scope.cancel(reason=reason)
    else:
        scope.cancel()


class _Held(_HeldRecords):
    """Records that the program has, from ``start`` to before ``stop`` among those acquired."""

    __slots__ = ()

    _parts: ShareParts
    acquired: AcquiredRecords
    # Of the block: its cancel scope, or what cancels it in another event loop.
    _scope: trio.CancelScope | None
    _cancel_elsewhere: Callable[[str], object] | None

    def __init__(self, parts: ShareParts, acquired: AcquiredRecords, start: int, stop: int) -> None:
        self._parts = parts
        self.acquired = acquired
        self._start = start
        self._stop = stop
        self._verdict = None
        self._scope = None
        self._cancel_elsewhere = None

    @property
    def deadline(self) -> float:
        """The time (Trio's clock) at which the lock ends; each renewal moves it."""
        return self.acquired.lock_ends

    def accept(self) -> None:
        """Acknowledge as processed.

        Inside the block the last of :meth:`accept`, :meth:`release` and :meth:`reject` counts, at
        its end. Without a block the call counts at once.

        Raises:
            LockLostError: The lock is lost; another member may have the record.
            IllegalStateError: The records were acknowledged before. Or, without a block, another
                thread calls: use :func:`trio.from_thread.run_sync` there.
        """
        self._acknowledge(_ACCEPT)

    def release(self) -> None:
        """Release the records: the group delivers them again, up to its limit of deliveries.

        Raises as :meth:`accept`.
        """
        self._acknowledge(_RELEASE)

    def reject(self, reason: object = None) -> None:
        """Reject the records: the group does not deliver them again.

        Args:
            reason: Why, for the log of this program.

        Raises as :meth:`accept`.
        """
        self._acknowledge(_REJECT)
        if reason is not None:
            acquired = self.acquired
            _log.debug(
                "%s at offset %d is rejected: %s",
                acquired.partition,
                acquired.offsets[self._start],
                reason,
            )

    async def acknowledged(self) -> None:
        """Wait until the broker has taken the acknowledgement.

        Raises:
            AcknowledgementError: The broker refused it, or its answer is missing.
            LockLostError: The lock ended before.
            IllegalStateError: Nothing was acknowledged so far, or the block is still open.
        """
        self._parts.home.check()
        undecided = self._verdict is None or self.acquired.are_open(self._start, self._stop)
        if undecided and not self._is_lost():
            raise IllegalStateError(
                "nothing is acknowledged yet: leave the block, or call accept(), release() or "
                "reject() without one"
            )
        await trio.lowlevel.checkpoint()
        await self._parts.fetcher.settled(self.acquired, self._start, self._stop)
        for index in range(self._start, self._stop):
            if (error := self.acquired.error(index)) is not None:
                raise again(error)
        if self._verdict is None:
            raise self._lost_error()  # the client has released the record

    # --- the block ---

    # `__aenter__` and `__aexit__` are in the base class. The compiled base class handles the usual
    # case by itself, and calls the next two methods in all other cases.
    #
    # An interrupt between two lines would leave records open that no block is left for. So Trio
    # holds it back until the next checkpoint, here and where a block ends.
    @trio.lowlevel.enable_ki_protection
    async def _enter(self) -> Self:
        self._check_block_is_new()
        self._parts.home.check()
        core = self._parts.core
        if not core.goes_on():
            try:
                await trio.lowlevel.checkpoint_if_cancelled()
            except BaseException:
                self._verdict = self._verdict or _RELEASE
                self.acquired.decide(self._start, self._stop, self._verdict)
                raise
        if not self.acquired.enter(self._start, self._stop):
            raise self._why_not()
        self._scope = core.scopes.enter()
        core.holdings.opened(self, core.now())
        return self

    def retract(self) -> None:
        """Withdraw :meth:`accept`, :meth:`release` or :meth:`reject` of the open block.

        A later call counts again; without one, the end of the block decides. No-op if the block has
        ended, or was not entered.
        """
        if self.acquired.are_open(self._start, self._stop):
            self._verdict = None

    def lock_lost(self) -> None:
        """Cancel the block: its lock is lost."""
        acquired = self.acquired
        self._verdict = None  # otherwise it would count at the end of the block
        self._cancel(
            f"lock of {acquired.partition} at offset {acquired.offsets[self._start]} lost: "
            f"{acquired.why_lost}"
        )

    def cut_off(self) -> None:
        """Cancel the block: it was open for too long."""
        self._cancel(_TOO_LONG)

    def release_overdue(self) -> None:
        """Release the records, unless the program has decided: the block does not end."""
        acquired = self.acquired
        _log.warning(
            "the block of %s at offset %d was cancelled after max_processing_ms and has not ended; "
            "its records are %s (does the handler wait in a thread, or shielded?)",
            acquired.partition,
            acquired.offsets[self._start],
            "acknowledged, as the handler asked" if self._has_acknowledged() else "released",
        )
        self._parts.core.holdings.outlasted(self)
        acquired.release_overdue(self._start, self._stop, self._verdict or _RELEASE, _TOO_LONG)

    # A block in a task of another event loop, which has no scopes (trikafka.aio).

    @trio.lowlevel.enable_ki_protection
    def open_elsewhere(self, cancel: Callable[[str], object]) -> None:
        """Open the block outside of Trio; ``cancel`` is called with the reason if it must end.

        Raises as :meth:`accept`.
        """
        self._check_block_is_new()
        if not self.acquired.enter(self._start, self._stop):
            raise self._why_not()
        self._cancel_elsewhere = cancel
        core = self._parts.core
        core.holdings.opened(self, core.now())

    @trio.lowlevel.enable_ki_protection
    def close_elsewhere(self, *, clean: bool, cut: bool) -> None:
        """Close that block as it has ended; ``cut``: ``cancel`` has ended it.

        Raises :exc:`LockLostError` if the lock is lost, unless an error of the program goes on.
        """
        held = self._leave(clean=clean)
        if cut:
            raise self._cut()
        if clean and not held:
            raise self._why_not_held()

    @trio.lowlevel.enable_ki_protection
    def _leave(self, *, clean: bool) -> bool:
        """Decide what the block leaves undecided; return whether its records were still held."""
        self._parts.core.holdings.closed(self)
        verdict = self._verdict or (_ACCEPT if clean else _RELEASE)
        held = self.acquired.leave(self._start, self._stop, verdict)
        if held:
            self._verdict = verdict
        return held

    def _cancel(self, reason: str) -> None:
        if self._cancel_elsewhere is not None:
            self._cancel_elsewhere(reason)
        elif self._scope is not None:
            _cancel(self._scope, reason)

    # What the block raises. The scope swallows only its own cancellation, after a lost lock or
    # after max_processing_ms: then the block raises LockLostError. A cancellation from outside goes
    # on unchanged, even if the lock is lost in the same moment, and so does an exception of the
    # program. A block may also end cleanly after its lock was lost, if it reached no checkpoint in
    # between. Its work is done but does not count, so the block raises LockLostError then, too.
    @trio.lowlevel.enable_ki_protection
    async def _exit(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        scope = self._scope
        scopes = self._parts.core.scopes
        if scope is None or scope is scopes.left:
            raise IllegalStateError(
                "this delivery has no open block: a block is entered once, and left once"
            )
        try:
            if error is not None or not scopes.leave(scope):
                scope.__exit__(kind, error, trace)
        finally:
            self._scope = scopes.left
            held = self._leave(clean=error is None)
        if scope.cancelled_caught:
            raise self._cut() from None
        if error is None and not held:
            raise self._why_not_held()
        return False

    def _why_not_held(self) -> LockLostError:
        """Return the error of a block that has ended cleanly, but too late."""
        return self._cut() if self._has_acknowledged() else self._lost_error()

    def _cut(self) -> LockLostError:
        acknowledged = self._has_acknowledged()
        if self._is_lost() and not acknowledged:
            return self._lost_error()
        acquired = self.acquired
        return LockLostError(
            acquired.partition.topic,
            acquired.partition.partition,
            acquired.offsets[self._start],
            _TOO_LONG,
            acknowledged=acknowledged,
        )

    # --- helpers ---

    def _check_block_is_new(self) -> None:
        if self._scope is not None or self._cancel_elsewhere is not None:
            raise IllegalStateError(
                "this delivery has had its block: a block can be entered only once"
            )

    def _acknowledge_several(self, verdict: bytes) -> None:
        acquired = self.acquired
        start = self._start
        stop = self._stop
        if acquired.are_open(start, stop):
            self._verdict = verdict
            return
        if not acquired.are_delivered(start, stop):
            raise self._why_not()
        self._parts.home.check()
        self._verdict = verdict
        acquired.decide(start, stop, verdict)

    def _has_acknowledged(self) -> bool:
        """Return whether the program has accepted or rejected records, and that call counts.

        A lost lock clears the call. Where a block does not end in time, the call decides.
        """
        return bool(self._verdict and self._verdict.strip(_RELEASE))

    def _is_lost(self) -> bool:
        """Return whether the lock ended, or the client gave the records back."""
        held = self.acquired.are_open(self._start, self._stop) or self.acquired.are_delivered(
            self._start, self._stop
        )
        return not held and bool(self.acquired.why_lost)

    def _lost_error(self) -> LockLostError:
        return self.acquired.lock_lost(self._start)

    def _why_not(self) -> TrikafkaError:
        if self._verdict is None and self._is_lost():
            return self._lost_error()
        return IllegalStateError(
            "this delivery was acknowledged before; an acknowledgement is final"
        )


class Delivery(_Held, Generic[Key, Value]):
    """One record that this member holds, until it is acknowledged.

    ``async with delivery:`` acknowledges: leaving it cleanly accepts the record; an exception or a
    cancellation releases it. :meth:`accept`, :meth:`release` and :meth:`reject` overrule that.
    While the block is open, the client renews the record's lock, up to ``max_processing_ms``. If
    the lock is lost, the block is cancelled and raises :exc:`LockLostError`.

    Attributes:
        record: The record.
    """

    __slots__ = ("record",)

    def __init__(
        self,
        parts: ShareParts,
        acquired: AcquiredRecords,
        index: int,
        record: Record[Key, Value],
    ) -> None:
        # What the base class does, written out: a call of its own took a tenth of a receive.
        self._parts = parts
        self.acquired = acquired
        self._start = index
        self._stop = index + 1
        self._verdict = self._scope = self._cancel_elsewhere = None
        self.record = record

    @property
    def delivery_count(self) -> int:
        """The number of deliveries of the record in the group, including this one."""
        return self.acquired.delivery_count(self._start)

    def __repr__(self) -> str:
        record = self.record
        return (
            f"<Delivery {self.delivery_count} of {record.topic}-{record.partition} at offset "
            f"{record.offset}>"
        )


class ShareBatch(_Held, Generic[Key, Value]):
    """Records of one partition that this member holds, until they are acknowledged.

    ``async with batch:`` acknowledges all of them as :class:`Delivery` does its record;
    :meth:`acknowledge` takes a verdict for each.

    A record that cannot be deserialized raises :exc:`DeserializationError` as it is read. If that
    leaves the block, all records are released, and each of them has used up a delivery. So catch it
    inside, and reject that record by :meth:`acknowledge`.

    Attributes:
        records: The records; keys and values are deserialized as they are read.
    """

    __slots__ = ("records",)

    def __init__(
        self,
        parts: ShareParts,
        acquired: AcquiredRecords,
        start: int,
        stop: int,
        records: RecordBatch[Key, Value] | None = None,
    ) -> None:
        super().__init__(parts, acquired, start, stop)
        self.records = self._records() if records is None else records

    def _records(self) -> RecordBatch[Key, Value]:
        acquired = self.acquired
        deserializers = self._parts.deserializers
        assert acquired.records is not None
        records: RecordBatch[Any, Any] = acquired.records[self._start : self._stop]
        if deserializers is not None:
            records = DeserializedBatch(records, deserializers)
        return records

    @property
    def topic(self) -> str:
        """The topic of the records."""
        return self.acquired.partition.topic

    @property
    def partition(self) -> int:
        """The partition of the records."""
        return self.acquired.partition.partition

    @property
    def delivery_counts(self) -> Sequence[int]:
        """The number of deliveries of each record in the group, including this one."""
        return self.acquired.counts(self._start, self._stop)

    def __len__(self) -> int:
        return self._stop - self._start

    def __iter__(self) -> Iterator[Record[Key, Value]]:
        return iter(self.records)

    def __repr__(self) -> str:
        return f"<ShareBatch {self.topic}-{self.partition}: {counted(len(self), 'record')}>"

    def acknowledge(self, verdicts: Sequence[Any]) -> None:
        """Acknowledge each record by itself.

        Args:
            verdicts: One for each record: ``True`` or ``"accept"``, ``False`` or ``"release"``, or
                ``"reject"``. An Arrow or NumPy array of booleans is a mask of what is accepted.

        Raises:
            ValueError: There are more or fewer verdicts than records, or one is none of these.
            LockLostError: As :meth:`accept`.
            IllegalStateError: As :meth:`accept`.
        """
        given: Any = verdicts
        for name in ("tolist", "to_pylist"):  # Arrow's chunked arrays have only the second
            if hasattr(verdicts, name):
                given = getattr(verdicts, name)()
                break
        # Columns of other libraries are no Sequence by name, but have a length and an order.
        ordered = hasattr(given, "__len__") and hasattr(given, "__getitem__")
        if not ordered or isinstance(given, str | bytes | Mapping):
            raise ValueError(
                f"verdicts must be a sequence, one for each record, not {given!r:.100}"
            )
        if len(given) != len(self):
            raise ValueError(f"{counted(len(given), 'verdict')} for {counted(len(self), 'record')}")
        self._acknowledge(
            bytes(map(_verdict, given)) if len(given) > 1 else bytes((_verdict(given[0]),))
        )

    def to_arrow(self) -> pyarrow.RecordBatch:
        """Return the records as a ``pyarrow.RecordBatch``.

        Its columns are those of :meth:`RecordBatch.to_arrow`, and ``delivery_count`` (int16).

        Raises:
            ImportError: pyarrow is not installed (the extra ``trikafka[arrow]``).
        """
        import pyarrow

        table = self.records.raw.to_arrow()
        counts = pyarrow.array(self.delivery_counts, pyarrow.int16())
        return table.append_column(
            pyarrow.field("delivery_count", pyarrow.int16(), nullable=False), counts
        )


_BY_NAME = {"accept": AckType.ACCEPT, "release": AckType.RELEASE, "reject": AckType.REJECT}


def _verdict(given: Any) -> int:
    if given is True:
        return AckType.ACCEPT
    if given is False:
        return AckType.RELEASE
    for name in ("item", "as_py"):  # what a comparison in NumPy returns; a scalar of Arrow
        if hasattr(given, name) and isinstance(plain := getattr(given, name)(), bool):
            return _verdict(plain)
    found = _BY_NAME.get(given) if isinstance(given, str) else None
    if found is None:
        raise ValueError(
            f"a verdict is True, False, 'accept', 'release' or 'reject', not {given!r:.100}"
        )
    return found
