"""A transactional producer's life as a table: its states, which may follow which, and which call is legal when. No I/O.

It holds what the coordinator knows the producer by (producer id, epoch), what is part of the transaction, and why it failed. The
transaction manager and, through :mod:`.producer_state`, the accumulator *tell* it what happened; nobody assigns to what it holds.

================  =====================================================  ==================================================
state             meaning                                                next
================  =====================================================  ==================================================
UNINITIALIZED     no producer id yet                                     INITIALIZING
INITIALIZING      InitProducerId is under way, at first or for an epoch  READY, FATAL_ERROR
READY             no transaction is open                                 IN_TRANSACTION, FATAL_ERROR
IN_TRANSACTION    records and offsets may join it                        PREPARED, COMMITTING, ABORTING, ABORTABLE_ERROR,
                                                                         FATAL_ERROR
ABORTABLE_ERROR   something of it failed: it cannot be committed         ABORTING, FATAL_ERROR
PREPARED          (KIP-939) it is at the brokers, no timeout counts      COMMITTING, ABORTING, FATAL_ERROR
COMMITTING        EndTxn(commit) is under way                            READY, INITIALIZING, UNDECIDED, ABORTABLE_ERROR,
                                                                         FATAL_ERROR
UNDECIDED         so it is, but the call that wanted it was cut off      READY, INITIALIZING, COMMITTING, ABORTABLE_ERROR,
                                                                         FATAL_ERROR
ABORTING          EndTxn(abort) is under way                             READY, INITIALIZING, FATAL_ERROR
FATAL_ERROR       fenced, not authorized ...: it is of no use any more   (none)
================  =====================================================  ==================================================

=============  ===================================================  ==============================================================
call           legal in                                             elsewhere
=============  ===================================================  ==============================================================
begin          READY                                                waits while one ends or initializes
send           IN_TRANSACTION, until commit or prepare begins       raises, as below
send_offsets   as send                                              raises
prepare        as send                                              raises
commit         IN_TRANSACTION, PREPARED, COMMITTING, UNDECIDED      raises
abort          IN_TRANSACTION, PREPARED, ABORTABLE_ERROR, ABORTING  raises
=============  ===================================================  ==============================================================

What is raised: in FATAL_ERROR the error that led there; in ABORTABLE_ERROR :exc:`TransactionAbortableError`; in UNDECIDED
:exc:`TransactionUndecidedError`; in any other state :exc:`IllegalStateError`.

Version 1 of the protocol tells the coordinator of each partition before the first record goes there (AddPartitionsToTxn), and keeps
its epoch from one transaction to the next. In version 2 (KIP-890) the first record tells it, and each EndTxn gives a new epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum
from typing import Literal

from ..errors import (
    IllegalStateError,
    ProducerFencedError,
    TransactionAbortableError,
    TransactionFatalError,
    TransactionUndecidedError,
    TrikafkaError,
)
from ..errors.copies import again
from ..types import TopicPartition
from .sequences import Identity

Call = Literal["begin", "send", "send_offsets", "prepare", "commit", "abort"]


class TransactionState(Enum):
    """See the module."""

    UNINITIALIZED = "uninitialized"
    INITIALIZING = "initializing"
    READY = "ready"
    IN_TRANSACTION = "in transaction"
    ABORTABLE_ERROR = "abortable error"
    PREPARED = "prepared"
    COMMITTING = "committing"
    UNDECIDED = "undecided"
    ABORTING = "aborting"
    FATAL_ERROR = "fatal error"


_S = TransactionState
_ENDED = frozenset({_S.READY, _S.INITIALIZING, _S.FATAL_ERROR})
_AFTER: dict[TransactionState, frozenset[TransactionState]] = {
    _S.UNINITIALIZED: frozenset({_S.INITIALIZING}),
    _S.INITIALIZING: frozenset({_S.READY, _S.FATAL_ERROR}),
    _S.READY: frozenset({_S.IN_TRANSACTION, _S.FATAL_ERROR}),
    _S.IN_TRANSACTION: frozenset({_S.PREPARED, _S.COMMITTING, _S.ABORTING, _S.ABORTABLE_ERROR, _S.FATAL_ERROR}),
    _S.ABORTABLE_ERROR: frozenset({_S.ABORTING, _S.FATAL_ERROR}),
    _S.PREPARED: frozenset({_S.COMMITTING, _S.ABORTING, _S.FATAL_ERROR}),
    _S.COMMITTING: _ENDED | {_S.UNDECIDED, _S.ABORTABLE_ERROR},
    _S.UNDECIDED: _ENDED | {_S.COMMITTING, _S.ABORTABLE_ERROR},
    _S.ABORTING: _ENDED,
    _S.FATAL_ERROR: frozenset(),
}
_LEGAL: dict[Call, frozenset[TransactionState]] = {
    "begin": frozenset({_S.READY}),
    "send": frozenset({_S.IN_TRANSACTION}),
    "send_offsets": frozenset({_S.IN_TRANSACTION}),
    "prepare": frozenset({_S.IN_TRANSACTION}),
    "commit": frozenset({_S.IN_TRANSACTION, _S.PREPARED, _S.COMMITTING, _S.UNDECIDED}),
    "abort": frozenset({_S.IN_TRANSACTION, _S.PREPARED, _S.ABORTABLE_ERROR, _S.ABORTING}),
}
_INSIDE = frozenset({_S.IN_TRANSACTION, _S.ABORTABLE_ERROR})
_ADVICE: dict[TransactionState, str] = {
    _S.READY: "no transaction is open: use `async with producer.transaction()`",
    _S.IN_TRANSACTION: "a transaction of this producer is open, and there is one at a time",
    _S.PREPARED: "the transaction is prepared: all that is left is to commit or to abort it",
    _S.COMMITTING: "the transaction is being committed",
    _S.ABORTING: "the transaction is being aborted",
}


class ProducerTransaction:
    """The state of one transactional producer. An illegal step is a bug and raises :exc:`AssertionError`.

    ``changed()`` is called after each step from one state to another, ``wanted()`` when partitions have to be added. Both must
    be quick.
    """

    def __init__(self, *, changed: Callable[[], object] = lambda: None, wanted: Callable[[], object] = lambda: None) -> None:
        self._changed, self._wanted = changed, wanted
        self.state = TransactionState.UNINITIALIZED
        self.identity: Identity | None = None
        #: How many transactions have begun: what waits to join one must not join the next.
        self.number = 0
        #: 1, or 2 (KIP-890): of the transaction that is open, or else of the last.
        self.version = 1
        #: Why it is in one of the two states of errors, or undecided.
        self.error: Exception | None = None
        #: Whether a coordinator may know of it, so that it has to be ended there.
        self.started = False
        #: How many calls want nothing more to join, though it is still to be seen whether all of it arrives.
        self.sealed = 0
        self._partitions: dict[TopicPartition, bool] = {}  # those that have records: whether the coordinator knows
        self._groups: set[str] = set()  # whose offsets the coordinator expects

    def __repr__(self) -> str:
        return f"<ProducerTransaction {self.number} {self.state.value} v{self.version} {self.identity}>"

    # --- questions ---------------------------------------------------------------------------------------------------

    @property
    def given(self) -> Identity:
        """The identity, of a producer that has been initialized."""
        assert self.identity is not None
        return self.identity

    @property
    def partitions(self) -> frozenset[TopicPartition]:
        """Those that are part of the open transaction."""
        return frozenset(tp for tp, added in self._partitions.items() if added)

    @property
    def missing(self) -> list[TopicPartition]:
        """Those that the coordinator has to be told of (version 1)."""
        return [tp for tp, added in self._partitions.items() if not added]

    def knows_group(self, group: str) -> bool:
        """Whether the coordinator expects offsets of ``group``."""
        return group in self._groups

    @property
    def takes_records(self) -> bool:
        """Whether a send is legal now; :meth:`check` takes too long for who asks with every record."""
        return self.state is _S.IN_TRANSACTION and not self.sealed

    def check(self, call: Call) -> None:
        """Raise if ``call`` is not legal now."""
        if self.state not in _LEGAL[call] or (self.sealed and call in ("send", "send_offsets", "prepare")):
            raise self._refusal(call)

    def joining(self, call: Call = "send") -> int:
        """As :meth:`check`; return the number of the transaction that the call is for."""
        self.check(call)
        return self.number

    def still(self, number: int) -> None:
        """Raise if what was meant for transaction ``number`` cannot join it any more."""
        if self.number != number:
            raise IllegalStateError("the transaction that the call was made for is over")
        self.check("send")

    def _refusal(self, call: Call) -> Exception:
        if self.state is _S.FATAL_ERROR:
            assert self.error is not None
            return again(self.error)
        if self.state is _S.ABORTABLE_ERROR:
            failed = TransactionAbortableError(f"{call}: the transaction has failed, and can only be aborted: {self.error}")
            failed.__cause__ = self.error
            return failed
        if self.state is _S.UNDECIDED:
            text = f"{call}: it is not known yet whether the transaction was committed; only commit() may be tried again"
            undecided = TransactionUndecidedError(text, last_error=self.error)
            undecided.__cause__ = self.error
            return undecided
        advice = "it is being committed" if self.sealed and self.state is _S.IN_TRANSACTION else _ADVICE.get(self.state, "")
        return IllegalStateError(f"{call}() is not possible now: {advice or f'this producer is {self.state.value}'}")

    # --- what happened -----------------------------------------------------------------------------------------------

    def initializing(self) -> None:
        """InitProducerId is asked for: the first time, or for a newer epoch."""
        if self.state is not _S.INITIALIZING:
            self._to(_S.INITIALIZING)

    def initialized(self, identity: Identity) -> None:
        """The coordinator gave an identity."""
        self.identity = identity
        self._to(_S.READY)

    def begun(self, version: int) -> int:
        """A transaction begins, in this version of the protocol. Returns its number."""
        self.version = version
        self.number += 1
        self.error = None
        self._forget()
        self._to(_S.IN_TRANSACTION)
        return self.number

    def admits(self, tp: TopicPartition) -> bool:
        """Whether records may go to ``tp`` now. If not, the coordinator has to be told first, and ``wanted()`` is called.

        Records that go make it something to end, whatever becomes of them.
        """
        if self.state not in _INSIDE:
            return False
        added = self._partitions.get(tp)
        if added is None:
            added = self._partitions[tp] = self.version >= 2
            if not added:
                self._wanted()
        self.started |= added
        return added

    def adding(self) -> None:
        """AddPartitionsToTxn, AddOffsetsToTxn or TxnOffsetCommit is under way: whatever comes of it, there is something to end."""
        self.started = True

    def added(self, partitions: Iterable[TopicPartition]) -> None:
        """The coordinator knows of these partitions (version 1).

        A late response for another transaction is to be dropped before.
        """
        self._partitions.update((tp, True) for tp in partitions if tp in self._partitions)

    def group_added(self, group: str) -> None:
        """The coordinator expects offsets of ``group``."""
        self._groups.add(group)

    def failed(self, error: Exception) -> None:
        """Something of the transaction failed: it cannot be committed. What fails once it is being ended changes nothing.

        A batch that the broker refuses as an old producer's is such a failure, too: what that means, the coordinator knows.
        """
        if self.state is _S.IN_TRANSACTION:
            self.error = error
            self._to(_S.ABORTABLE_ERROR)

    def ruined(self, error: TrikafkaError) -> None:
        """The producer is of no use any more. The first error counts."""
        if self.state is not _S.FATAL_ERROR:
            self.error = error
            if not isinstance(error, ProducerFencedError | TransactionFatalError):
                self.error = TransactionFatalError(f"this producer can make no more transactions: {error}")
                self.error.__cause__ = error
            if self.state is _S.UNINITIALIZED:
                self._to(_S.INITIALIZING)
            self._to(_S.FATAL_ERROR)

    def closing(self) -> None:
        """Nothing more is to join: it will be committed or prepared, once all that is in it has arrived."""
        assert self.state in _INSIDE, self.state
        self.sealed += 1

    def reopened(self, number: int) -> None:
        """One call that closed transaction ``number`` has ended. If the coordinator was not asked anything, all is as before."""
        if self.state is _S.IN_TRANSACTION and self.number == number:
            self.sealed -= 1

    def prepared(self) -> None:
        """All of it is at the brokers, and only the outcome is missing."""
        self._to(_S.PREPARED)

    def committing(self) -> None:
        """The coordinator is asked to commit, for the first time or again."""
        if self.state is not _S.COMMITTING:
            self._to(_S.COMMITTING)

    def undecided(self, why: Exception | None) -> None:
        """The call that commits was cut off, before the coordinator had told the outcome."""
        if self.state is _S.COMMITTING:
            self.error = why
            self._to(_S.UNDECIDED)

    def not_committed(self, error: Exception) -> None:
        """The coordinator refused to commit: it can only be aborted now."""
        self.error = error
        self._to(_S.ABORTABLE_ERROR)

    def aborting(self) -> None:
        """The coordinator is asked to abort."""
        if self.state is not _S.ABORTING:
            self._to(_S.ABORTING)

    def ended(self, identity: Identity | None = None, *, renew: bool = False) -> None:
        """The transaction is over, as it was asked for. ``identity`` is the next one's, where the coordinator gave one.

        With ``renew`` a newer epoch has to be asked for before the next transaction begins.
        """
        assert self.state in (_S.COMMITTING, _S.UNDECIDED, _S.ABORTING), self.state
        self.identity = identity or self.identity
        self.error = None
        self._forget()
        self._to(_S.INITIALIZING if renew else _S.READY)

    def _forget(self) -> None:
        self._partitions, self._groups = {}, set()
        self.started, self.sealed = False, 0

    def _to(self, state: TransactionState) -> None:
        if state not in _AFTER[self.state]:
            raise AssertionError(f"a transaction cannot go from {self.state.value} to {state.value}")
        self.state = state
        self._changed()
