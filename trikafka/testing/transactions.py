"""The transaction coordinator of a scripted cluster (KIP-98, KIP-360, KIP-890, KIP-939).

A state machine without messages. Every call changes a transaction at once. The only task is
:meth:`TransactionCoordinatorState.watch`, which writes due markers and aborts transactions that
have been open for too long.

    state                what ends it                               -> the next state
    EMPTY, COMPLETE_*    a partition or a group is added            -> ONGOING
                         an abort without a transaction (KIP-890)   -> PREPARE_ABORT
    ONGOING              the producer commits it                    -> PREPARE_COMMIT
                         the producer aborts it                     -> PREPARE_ABORT
                         a time-out, or a new producer of the id    -> PREPARE_ABORT
    PREPARE_COMMIT       the markers are written                    -> COMPLETE_COMMIT
    PREPARE_ABORT        the markers are written                    -> COMPLETE_ABORT
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, TypeAlias

import trio

from trikafka.error_codes import ErrorCode

from ._signal import WakeSignal

NO_PRODUCER = -1  # stands for no producer id, and for no epoch
#: Another name of :data:`NO_PRODUCER`, for tests that import it.
NOBODY = NO_PRODUCER
_LAST_EPOCH = 2**15 - 1
_NO_LIMIT_MS = 2**31 - 1

#: A target of a transaction: a partition (topic, number), or a group's offsets (its id).
Target: TypeAlias = tuple[str, int] | str


class CoordinatorTransactionState(Enum):
    """The state of a transaction, by the names of DescribeTransactions."""

    EMPTY = "Empty"
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"


_ENDING = (CoordinatorTransactionState.PREPARE_COMMIT, CoordinatorTransactionState.PREPARE_ABORT)
_STARTS = (
    CoordinatorTransactionState.EMPTY,
    CoordinatorTransactionState.COMPLETE_COMMIT,
    CoordinatorTransactionState.COMPLETE_ABORT,
)


class Identity(NamedTuple):
    """A producer id and epoch."""

    producer_id: int = NO_PRODUCER
    epoch: int = NO_PRODUCER


class IdentityResponse(NamedTuple):
    """The response to a call that returns a producer's identity."""

    error: int
    identity: Identity = Identity()
    ongoing: Identity = Identity()  # of a prepared transaction that was kept (KIP-939)


@dataclass(slots=True, eq=False)
class CoordinatorTransaction:
    """A transactional id, with its producer and its current or last transaction.

    ``previous_id`` is the producer id before the last change of id, ``next_id`` the one that
    follows when the transaction is complete.
    """

    transactional_id: str
    producer_id: int
    timeout_ms: int
    epoch: int = NO_PRODUCER
    last_epoch: int = NO_PRODUCER
    previous_id: int = NO_PRODUCER
    next_id: int = NO_PRODUCER
    state: CoordinatorTransactionState = CoordinatorTransactionState.EMPTY
    targets: set[Target] = field(default_factory=set)
    started_ms: int = -1
    deadline: float = math.inf  # of an ongoing transaction
    completes_at: float = math.inf  # when the markers may be written

    @property
    def identity(self) -> Identity:
        """The producer's identity from the next transaction on."""
        return (
            Identity(self.producer_id, self.epoch)
            if self.next_id == NO_PRODUCER
            else Identity(self.next_id, 0)
        )

    @property
    def exhausted(self) -> bool:
        """True if the epoch cannot be raised further and the producer needs another id."""
        return self.epoch >= _LAST_EPOCH - 1

    @property
    def commits(self) -> bool:
        """True if the transaction ends or ended with a commit."""
        return self.state in (
            CoordinatorTransactionState.PREPARE_COMMIT,
            CoordinatorTransactionState.COMPLETE_COMMIT,
        )

    def objection(self, producer: Identity) -> int:
        """Return the error code for a producer that may not write to this transaction, or 0."""
        if producer.producer_id != self.producer_id:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        if producer.epoch != self.epoch:
            return ErrorCode.PRODUCER_FENCED
        return ErrorCode.CONCURRENT_TRANSACTIONS if self.state in _ENDING else ErrorCode.NONE

    def knows(self, producer: Identity) -> bool:
        """Return whether a producer with this former identity may continue (KIP-360).

        It may if it is the current producer, or if the response with its new producer id was lost.
        """
        if self.epoch == NO_PRODUCER or producer.producer_id == self.producer_id:
            return True
        return producer.producer_id == self.previous_id and producer.epoch >= _LAST_EPOCH - 1

    def raise_epoch(self, expected: int | None) -> bool:
        """Begin the next epoch for a producer; return False if the producer is fenced."""
        if expected is None:
            self.epoch = self.epoch + 1
            self.last_epoch = NO_PRODUCER
        elif expected == self.epoch or self.epoch == NO_PRODUCER:
            self.last_epoch = self.epoch
            self.epoch += 1
        else:
            return expected == self.last_epoch  # a retry: the last response was lost
        return True

    def rotate(self, producer_id: int, *, recovers: bool) -> None:
        """Continue with another producer id, because the epochs of this one are used up."""
        self.previous_id = self.producer_id
        self.producer_id = producer_id
        self.last_epoch = self.epoch if recovers else NO_PRODUCER
        self.epoch = 0


#: Writes the marker of one target; returns False if that is not possible now.
WriteMarker: TypeAlias = Callable[[Target, Identity, bool], bool]


class TransactionCoordinatorState:
    """All transactional ids of a cluster."""

    def __init__(
        self, clock: Callable[[], int], new_producer_id: Callable[[], int], changed: WakeSignal
    ) -> None:
        self.by_id: dict[str, CoordinatorTransaction] = {}
        self.version = 2  # the finalized level of the feature transaction.version
        self.verification = True  # transaction.partition.verification.enable
        self.completion = 0.0  # seconds from the end of a transaction to its markers
        self.max_timeout_ms = 900_000
        # transaction.two.phase.commit.enable. A test that sets it must also offer version 6 of
        # InitProducerId.
        self.two_phase = False
        # Whether InitProducerId may keep a prepared transaction, as KIP-939 says. Kafka 4.3 refuses
        # such a request (UNSUPPORTED_VERSION).
        self.keeps_prepared = False
        self.changed = changed
        self.write_marker: WriteMarker = lambda target, producer, commit: True
        self._clock = clock
        self._new_producer_id = new_producer_id

    # -- requests of producers

    def initialize(
        self, name: str, timeout_ms: int, expected: Identity | None, *, two_phase: bool, keep: bool
    ) -> IdentityResponse:
        """Assign a producer its id and epoch; fence other producers of the transactional id.

        ``expected`` is the producer's former identity (KIP-360).
        """
        if not name:
            return IdentityResponse(ErrorCode.INVALID_REQUEST)
        if two_phase and not self.two_phase:
            return IdentityResponse(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        if keep and not self.keeps_prepared:
            return IdentityResponse(ErrorCode.UNSUPPORTED_VERSION)
        if not two_phase and not 0 < timeout_ms <= self.max_timeout_ms:
            return IdentityResponse(ErrorCode.INVALID_TRANSACTION_TIMEOUT)
        found = self.by_id.get(name)
        if found is None:
            found = self.by_id[name] = CoordinatorTransaction(
                name, self._new_producer_id(), timeout_ms
            )
        if found.state in _ENDING:
            return IdentityResponse(ErrorCode.CONCURRENT_TRANSACTIONS)
        if expected is not None and not found.knows(expected):
            return IdentityResponse(ErrorCode.PRODUCER_FENCED)
        if found.state is CoordinatorTransactionState.ONGOING and keep:
            ongoing = Identity(found.producer_id, found.epoch)
            found.epoch = found.epoch + 1
            found.last_epoch = NO_PRODUCER
            return IdentityResponse(ErrorCode.NONE, found.identity, ongoing)
        if found.state is CoordinatorTransactionState.ONGOING:
            self._fence(found)
            return IdentityResponse(ErrorCode.CONCURRENT_TRANSACTIONS)
        if found.exhausted and (expected is None or expected.epoch == found.epoch):
            found.rotate(self._new_producer_id(), recovers=expected is not None)
        elif not found.raise_epoch(None if expected is None else expected.epoch):
            return IdentityResponse(ErrorCode.PRODUCER_FENCED)
        found.state = CoordinatorTransactionState.EMPTY
        found.started_ms = -1
        found.timeout_ms = _NO_LIMIT_MS if two_phase else timeout_ms
        return IdentityResponse(ErrorCode.NONE, found.identity)

    def add(self, name: str, producer: Identity, targets: Iterable[Target]) -> int:
        """Add partitions or groups to a transaction; the first one begins it."""
        if not name:
            return ErrorCode.INVALID_REQUEST
        found = self.by_id.get(name)
        if found is None:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        if found.state in _ENDING:
            return ErrorCode.CONCURRENT_TRANSACTIONS
        if code := found.objection(producer):
            return code
        if found.state in _STARTS:
            found.state = CoordinatorTransactionState.ONGOING
            found.started_ms = self._clock()
            limited = found.timeout_ms < _NO_LIMIT_MS
            found.deadline = trio.current_time() + found.timeout_ms / 1000 if limited else math.inf
        found.targets.update(targets)
        self.changed.notify()
        return ErrorCode.NONE

    def verify(self, name: str, producer: Identity, target: Target) -> int:
        """Return the error code for a write to this target, or 0.

        A partition's leader asks this before it accepts a transaction's first batch.
        """
        if not name:
            return ErrorCode.INVALID_REQUEST
        found = self.by_id.get(name)
        if found is None:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        if code := found.objection(producer):
            return code
        ours = found.state is CoordinatorTransactionState.ONGOING and target in found.targets
        return ErrorCode.NONE if ours else ErrorCode.TRANSACTION_ABORTABLE

    def end(self, name: str, producer: Identity, *, commit: bool, bumps: bool) -> IdentityResponse:
        """Commit or abort a transaction.

        ``bumps``: True for EndTxn v5, whose response has the next transaction's epoch.
        """
        if not name:
            return IdentityResponse(ErrorCode.INVALID_REQUEST)
        found = self.by_id.get(name)
        if found is None:
            return IdentityResponse(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        return (
            self._end_bumping(found, producer, commit)
            if bumps
            else self._end_plainly(found, producer, commit)
        )

    def _end_plainly(
        self, found: CoordinatorTransaction, producer: Identity, commit: bool
    ) -> IdentityResponse:
        if producer.producer_id != found.producer_id:
            return IdentityResponse(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        if producer.epoch != found.epoch:
            return IdentityResponse(ErrorCode.PRODUCER_FENCED)
        if found.state is CoordinatorTransactionState.ONGOING:
            self._prepare(found, commit, bumps=False)
            return IdentityResponse(ErrorCode.NONE)
        if found.state in _ENDING:
            return IdentityResponse(ErrorCode.CONCURRENT_TRANSACTIONS)
        wrong = found.state is CoordinatorTransactionState.EMPTY or found.commits != commit
        return IdentityResponse(ErrorCode.INVALID_TXN_STATE if wrong else ErrorCode.NONE)

    def _end_bumping(
        self, found: CoordinatorTransaction, producer: Identity, commit: bool
    ) -> IdentityResponse:
        if found.state in _ENDING:
            return IdentityResponse(ErrorCode.CONCURRENT_TRANSACTIONS)
        rotated = producer == Identity(found.previous_id, _LAST_EPOCH - 1) and found.epoch == 0
        raised = producer.epoch + 1 == found.epoch
        repeated = raised or rotated  # The producer repeats an EndTxn that has been executed.
        if producer.producer_id != found.producer_id and not rotated:
            return IdentityResponse(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        running = found.state in (
            CoordinatorTransactionState.ONGOING,
            CoordinatorTransactionState.EMPTY,
        )
        if producer.epoch != found.epoch and (running or not repeated):
            return IdentityResponse(ErrorCode.PRODUCER_FENCED)
        if found.state is not CoordinatorTransactionState.ONGOING and repeated:
            same_end = found.commits == commit
            return (
                IdentityResponse(ErrorCode.NONE, found.identity)
                if same_end
                else IdentityResponse(ErrorCode.INVALID_TXN_STATE)
            )
        if found.state is not CoordinatorTransactionState.ONGOING:
            if commit:
                return IdentityResponse(ErrorCode.INVALID_TXN_STATE)
            # An abort without a transaction is allowed: it only raises the epoch.
            found.started_ms = self._clock()
        self._prepare(found, commit, bumps=True)
        return IdentityResponse(ErrorCode.NONE, found.identity)

    # -- ending a transaction

    def _fence(self, found: CoordinatorTransaction) -> None:
        """Abort a transaction and raise its epoch, so that its producer can write no more.

        With transaction version 2 the producer may continue with a new epoch (KIP-360). Otherwise
        it is fenced for good.
        """
        if self.version < 2:
            found.epoch = found.epoch + 1
            found.last_epoch = NO_PRODUCER
        self._prepare(found, commit=False, bumps=self.version >= 2, fences=True)

    def _prepare(
        self, found: CoordinatorTransaction, commit: bool, *, bumps: bool, fences: bool = False
    ) -> None:
        found.state = (
            CoordinatorTransactionState.PREPARE_COMMIT
            if commit
            else CoordinatorTransactionState.PREPARE_ABORT
        )
        found.deadline = math.inf
        if bumps:
            if not fences and found.exhausted:
                found.next_id = self._new_producer_id()
            found.last_epoch = found.epoch
            found.epoch += 1
        found.completes_at = trio.current_time() + self.completion
        if not self.completion:
            self._complete(found)
        self.changed.notify()

    def _complete(self, found: CoordinatorTransaction) -> None:
        """Write the missing markers; the last one completes the transaction."""
        producer = Identity(found.producer_id, found.epoch)
        found.targets = {
            target
            for target in found.targets
            if not self.write_marker(target, producer, found.commits)
        }
        if found.targets:
            return
        found.state = (
            CoordinatorTransactionState.COMPLETE_COMMIT
            if found.commits
            else CoordinatorTransactionState.COMPLETE_ABORT
        )
        found.completes_at = math.inf
        if found.next_id != NO_PRODUCER:
            found.previous_id = found.producer_id
            found.producer_id = found.next_id
            found.next_id = NO_PRODUCER
            found.epoch = 0

    def settle(self, now: float) -> None:
        """Abort overdue transactions and write due markers."""
        for found in self.by_id.values():
            if found.deadline <= now:
                self._fence(found)
            if found.completes_at <= now:
                self._complete(found)

    async def watch(self) -> None:
        """Abort overdue transactions and write due markers, forever.

        Markers that could not be written are retried after a change of the cluster.
        """
        while True:
            now = trio.current_time()
            self.settle(now)
            due = [
                when
                for found in self.by_id.values()
                for when in (found.deadline, found.completes_at)
                if when > now
            ]
            with trio.move_on_at(min(due, default=math.inf)):
                await self.changed.wait()
