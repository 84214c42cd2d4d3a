"""A transactional producer's states, their order, and the legal calls of each. No I/O.

The table holds the identity by which the coordinator knows the producer (producer id, epoch), the
partitions and groups of the transaction, and why it failed. The transaction manager and, through
:mod:`.sequences`, the accumulator *report* what happened; no other module assigns to the
table's attributes.

===============  ===============================================  =================================
state            meaning                                          next
===============  ===============================================  =================================
UNINITIALIZED    no producer id yet                               INITIALIZING
INITIALIZING     InitProducerId is under way, for the first time  READY, FATAL_ERROR
                 or for a newer epoch
READY            no transaction is open                           IN_TRANSACTION, FATAL_ERROR
IN_TRANSACTION   records and offsets may join it                  PREPARED, COMMITTING, ABORTING,
                                                                  ABORTABLE_ERROR, FATAL_ERROR
ABORTABLE_ERROR  a part of it failed: it cannot be committed      ABORTING, FATAL_ERROR
PREPARED         (KIP-939) it is at the brokers, no timeout       COMMITTING, ABORTING, FATAL_ERROR
                 counts
COMMITTING       EndTxn(commit) is under way                      READY, INITIALIZING, UNDECIDED,
                                                                  ABORTABLE_ERROR, FATAL_ERROR
UNDECIDED        EndTxn(commit) is under way, but the call that   READY, INITIALIZING, COMMITTING,
                 wanted it was cancelled or timed out             ABORTABLE_ERROR, FATAL_ERROR
ABORTING         EndTxn(abort) is under way                       READY, INITIALIZING, FATAL_ERROR
FATAL_ERROR      fenced, not authorized ...: the producer cannot  (none)
                 be used any more
===============  ===============================================  =================================

============  ==================================================  ============================
call          legal in                                            elsewhere
============  ==================================================  ============================
begin         READY                                               waits while a transaction
                                                                  ends or initializes
send          IN_TRANSACTION, until commit or prepare begins      raises, as below
send_offsets  as send                                             raises
prepare       as send                                             raises
commit        IN_TRANSACTION, PREPARED, COMMITTING, UNDECIDED     raises
abort         IN_TRANSACTION, PREPARED, ABORTABLE_ERROR,          raises
              ABORTING
============  ==================================================  ============================

An illegal call raises the error that led there in FATAL_ERROR, :exc:`TransactionAbortableError` in
ABORTABLE_ERROR, :exc:`TransactionUndecidedError` in UNDECIDED, and :exc:`IllegalStateError` in any
other state.

In version 1 of the protocol the client adds each partition at the coordinator before the first
record goes there (AddPartitionsToTxn), and keeps its epoch from one transaction to the next. In
version 2 (KIP-890) the first Produce request adds the partition, and each EndTxn gives a new epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum
from typing import Literal

from ...errors import (
    IllegalStateError,
    ProducerFencedError,
    TransactionAbortableError,
    TransactionFatalError,
    TransactionUndecidedError,
    TrikafkaError,
)
from ...errors.copies import again
from ...types import TopicPartition
from .sequences import ProducerIdentity

Call = Literal["begin", "send", "send_offsets", "prepare", "commit", "abort"]


class TransactionState(Enum):
    """The state of a transactional producer; the module's table gives the meanings."""

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


# Why a table of steps: transactions fail in many places at once (a batch, a coordinator's response,
# a cancelled caller, the close), and the steps overtake each other. Each reporter states what
# happened without knowing the others, and a step that is not in the table is a bug that raises at
# the spot instead of a transaction that is committed in part.
#
# Two states look redundant and are not. UNDECIDED differs from COMMITTING in that no call waits for
# the outcome: the coordinator may still commit, so neither a new transaction nor an abort is safe,
# and only commit() may be repeated. ABORTABLE_ERROR can follow COMMITTING only if the response
# proves that no attempt has committed, nor will (``transaction_proofs``).
_S = TransactionState
_ENDED = frozenset({_S.READY, _S.INITIALIZING, _S.FATAL_ERROR})
_AFTER: dict[TransactionState, frozenset[TransactionState]] = {
    _S.UNINITIALIZED: frozenset({_S.INITIALIZING}),
    _S.INITIALIZING: frozenset({_S.READY, _S.FATAL_ERROR}),
    _S.READY: frozenset({_S.IN_TRANSACTION, _S.FATAL_ERROR}),
    _S.IN_TRANSACTION: frozenset(
        {_S.PREPARED, _S.COMMITTING, _S.ABORTING, _S.ABORTABLE_ERROR, _S.FATAL_ERROR}
    ),
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
    """The state of one transactional producer.

    An illegal step is a bug and raises :exc:`AssertionError`.

    ``changed()`` is called after each step from one state to another, ``wanted()`` when partitions
    have to be added. Both must be quick.
    """

    def __init__(
        self,
        *,
        changed: Callable[[], object] = lambda: None,
        wanted: Callable[[], object] = lambda: None,
    ) -> None:
        self._changed = changed
        self._wanted = wanted
        self.state = TransactionState.UNINITIALIZED
        self.identity: ProducerIdentity | None = None
        #: The number of transactions begun: a call that waits to join one must not join the next.
        self.number = 0
        #: The protocol's version, 1 or 2 (KIP-890), of the open transaction or else of the last.
        self.version = 1
        #: The cause of ABORTABLE_ERROR, FATAL_ERROR or UNDECIDED.
        self.error: Exception | None = None
        #: True once a coordinator may know of the transaction, so that it has to be ended there.
        self.started = False
        #: The number of calls (commit, prepare) that let nothing more join and wait until all
        #: records are delivered.
        self.sealed = 0
        #: The partitions with records, and whether the coordinator knows each.
        self._partitions: dict[TopicPartition, bool] = {}
        #: The groups whose offsets the coordinator expects.
        self._groups: set[str] = set()

    def __repr__(self) -> str:
        return (
            f"<ProducerTransaction {self.number} {self.state.value} v{self.version} "
            f"{self.identity}>"
        )

    # --- reading ----------------------------------------------------------------------------------

    @property
    def given(self) -> ProducerIdentity:
        """The identity of an initialized producer."""
        assert self.identity is not None
        return self.identity

    @property
    def partitions(self) -> frozenset[TopicPartition]:
        """The partitions that are part of the open transaction."""
        return frozenset(tp for tp, added in self._partitions.items() if added)

    @property
    def missing(self) -> list[TopicPartition]:
        """The partitions that still have to be added at the coordinator (version 1)."""
        return [tp for tp, added in self._partitions.items() if not added]

    def knows_group(self, group: str) -> bool:
        """Return whether the coordinator expects offsets of ``group``."""
        return group in self._groups

    @property
    def takes_records(self) -> bool:
        """True while a send is legal. Cheaper than :meth:`check`: read for each record."""
        return self.state is _S.IN_TRANSACTION and not self.sealed

    def check(self, call: Call) -> None:
        """Raise if ``call`` is not legal now."""
        if self.state not in _LEGAL[call] or (
            self.sealed and call in ("send", "send_offsets", "prepare")
        ):
            raise self._refusal(call)

    def joining(self) -> int:
        """Raise if a send is not legal now; return the number of the transaction that it joins."""
        self.check("send")
        return self.number

    def still(self, number: int) -> None:
        """Raise if a record meant for transaction ``number`` can no longer join it."""
        if self.number != number:
            raise IllegalStateError("the transaction that the call was made for is over")
        self.check("send")

    def _refusal(self, call: Call) -> Exception:
        if self.state is _S.FATAL_ERROR:
            assert self.error is not None
            return again(self.error)
        if self.state is _S.ABORTABLE_ERROR:
            failed = TransactionAbortableError(
                f"{call}: the transaction has failed, and can only be aborted: {self.error}"
            )
            failed.__cause__ = self.error
            return failed
        if self.state is _S.UNDECIDED:
            text = (
                f"{call}: it is not known yet whether the transaction was committed; only "
                "commit() may be tried again"
            )
            undecided = TransactionUndecidedError(text, last_error=self.error)
            undecided.__cause__ = self.error
            return undecided
        advice = (
            "it is being committed"
            if self.sealed and self.state is _S.IN_TRANSACTION
            else _ADVICE.get(self.state, "")
        )
        name = "transaction" if call == "begin" else call  # as the program calls it
        return IllegalStateError(
            f"{name}() is not possible now: {advice or f'this producer is {self.state.value}'}"
        )

    # --- events -----------------------------------------------------------------------------------

    def initializing(self) -> None:
        """Record that InitProducerId is under way: the first time, or for a newer epoch."""
        if self.state is not _S.INITIALIZING:
            self._to(_S.INITIALIZING)

    def initialized(self, identity: tuple[int, int]) -> None:
        """Set the identity that the coordinator returned: the producer is ready."""
        self.identity = ProducerIdentity(*identity)
        self._to(_S.READY)

    def begun(self, version: int) -> int:
        """Begin a transaction in this version of the protocol; return its number."""
        self.version = version
        self.number += 1
        self.error = None
        self._forget()
        self._to(_S.IN_TRANSACTION)
        return self.number

    def admits(self, tp: TopicPartition) -> bool:
        """Return whether records may go to ``tp`` now.

        If the coordinator has to add the partition first, ``wanted()`` is called. Once ``True`` is
        returned the transaction has to be ended at the coordinator, whether or not the records
        arrive.
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
        """Record that AddPartitionsToTxn, AddOffsetsToTxn or TxnOffsetCommit is under way.

        The transaction has to be ended at the coordinator from now on, even if the request fails.
        """
        self.started = True

    def added(self, partitions: Iterable[TopicPartition]) -> None:
        """Record that the coordinator knows these partitions (version 1).

        The caller must drop a late response for another transaction.
        """
        self._partitions.update((tp, True) for tp in partitions if tp in self._partitions)

    def group_added(self, group: str) -> None:
        """Record that the coordinator expects offsets of ``group``."""
        self._groups.add(group)

    def failed(self, error: Exception) -> None:
        """Fail the open transaction: it can only be aborted.

        A failure after the end has begun changes nothing. A batch that the broker refuses because
        of an old epoch fails the transaction, too, and not the producer: only the coordinator knows
        what that means.
        """
        if self.state is _S.IN_TRANSACTION:
            self.error = error
            self._to(_S.ABORTABLE_ERROR)

    def ruined(self, error: TrikafkaError) -> None:
        """Make the producer unusable. The first error counts."""
        if self.state is not _S.FATAL_ERROR:
            self.error = error
            if not isinstance(error, ProducerFencedError | TransactionFatalError):
                self.error = TransactionFatalError(
                    f"this producer can make no more transactions: {error}"
                )
                self.error.__cause__ = error
            if self.state is _S.UNINITIALIZED:
                self._to(_S.INITIALIZING)
            self._to(_S.FATAL_ERROR)

    def closing(self) -> None:
        """Let nothing more join: commit or prepare waits until all records are delivered."""
        assert self.state in _INSIDE, self.state
        self.sealed += 1

    def reopened(self, number: int) -> None:
        """Record that one call which closed transaction ``number`` has ended.

        If the coordinator was not asked for anything, records may join again.
        """
        if self.state is _S.IN_TRANSACTION and self.number == number:
            self.sealed -= 1

    def prepared(self) -> None:
        """Record that all records are at the brokers, and only the outcome is missing."""
        self._to(_S.PREPARED)

    def committing(self) -> None:
        """Record that the coordinator is asked to commit, for the first time or again."""
        if self.state is not _S.COMMITTING:
            self._to(_S.COMMITTING)

    def undecided(self, why: Exception | None) -> None:
        """Record that the committing call ended before the coordinator's outcome was known."""
        if self.state is _S.COMMITTING:
            self.error = why
            self._to(_S.UNDECIDED)

    def not_committed(self, error: Exception) -> None:
        """Record that the coordinator refused to commit: only an abort is possible now."""
        self.error = error
        self._to(_S.ABORTABLE_ERROR)

    def aborting(self) -> None:
        """Record that the coordinator is asked to abort, for the first time or again."""
        if self.state is not _S.ABORTING:
            self._to(_S.ABORTING)

    def ended(self, identity: tuple[int, int] | None = None, *, renew: bool = False) -> None:
        """End the transaction, as committed or aborted.

        ``identity``: the next transaction's, where the coordinator gave one. With ``renew`` a newer
        epoch has to be requested before the next transaction begins.
        """
        assert self.state in (_S.COMMITTING, _S.UNDECIDED, _S.ABORTING), self.state
        if identity is not None:
            self.identity = ProducerIdentity(*identity)
        self.error = None
        self._forget()
        self._to(_S.INITIALIZING if renew else _S.READY)

    def _forget(self) -> None:
        self._partitions = {}
        self._groups = set()
        self.started = False
        self.sealed = 0

    def _to(self, state: TransactionState) -> None:
        if state not in _AFTER[self.state]:
            raise AssertionError(
                f"a transaction cannot go from {self.state.value} to {state.value}"
            )
        self.state = state
        self._changed()
