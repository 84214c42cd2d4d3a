"""The transaction coordinator: what it knows of each transactional id (KIP-98, KIP-360, KIP-890, KIP-939).

A state machine without messages. Every call changes a transaction at once; the only task is :meth:`Transactions.watch`, which
writes the markers when their time has come and aborts what has run for too long.

    state                        leaves it when
    EMPTY, COMPLETE_*            a partition or a group is added            -> ONGOING
                                 it is aborted all the same (KIP-890)       -> PREPARE_ABORT
    ONGOING                      the producer ends it                       -> PREPARE_COMMIT, PREPARE_ABORT
                                 its time is up, another producer comes     -> PREPARE_ABORT
    PREPARE_COMMIT               the markers are written                    -> COMPLETE_COMMIT
    PREPARE_ABORT                the markers are written                    -> COMPLETE_ABORT
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, TypeAlias

import trio

from trikafka.error_codes import ErrorCode

from ._signal import Signal

NOBODY = -1  # no producer id, no epoch
_LAST_EPOCH = 2**15 - 1
_NO_LIMIT_MS = 2**31 - 1

#: What a transaction may have written to: a partition (topic, number), or a group's offsets (its id).
Target: TypeAlias = tuple[str, int] | str


class TransactionState(Enum):
    """The names are those that DescribeTransactions and ListTransactions show."""

    EMPTY = "Empty"
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"


_ENDING = (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)
_STARTS = (TransactionState.EMPTY, TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT)


class Identity(NamedTuple):
    """A producer id and an epoch: who a producer says it is."""

    producer_id: int = NOBODY
    epoch: int = NOBODY


class Outcome(NamedTuple):
    """The answer to a call that gives a producer its identity."""

    error: int
    identity: Identity = Identity()
    ongoing: Identity = Identity()  # of a prepared transaction that was kept (KIP-939)


@dataclass(slots=True, eq=False)
class Transaction:
    """One transactional id."""

    transactional_id: str
    producer_id: int
    timeout_ms: int
    epoch: int = NOBODY
    last_epoch: int = NOBODY
    previous_id: int = NOBODY
    next_id: int = NOBODY
    state: TransactionState = TransactionState.EMPTY
    targets: set[Target] = field(default_factory=set)
    started_ms: int = -1
    deadline: float = math.inf  # of an ongoing transaction
    completes_at: float = math.inf  # when the markers may be written

    @property
    def identity(self) -> Identity:
        """Who the producer is from the next transaction on."""
        return Identity(self.producer_id, self.epoch) if self.next_id == NOBODY else Identity(self.next_id, 0)

    @property
    def exhausted(self) -> bool:
        """Whether the epoch cannot be raised for a client any more: it needs another producer id."""
        return self.epoch >= _LAST_EPOCH - 1

    @property
    def commits(self) -> bool:
        """How the transaction ends or ended."""
        return self.state in (TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT)

    def objection(self, producer: Identity) -> int:
        """The error for a producer that may not write to this transaction now, or 0."""
        if producer.producer_id != self.producer_id:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        if producer.epoch != self.epoch:
            return ErrorCode.PRODUCER_FENCED
        return ErrorCode.CONCURRENT_TRANSACTIONS if self.state in _ENDING else ErrorCode.NONE

    def knows(self, producer: Identity) -> bool:
        """Whether a producer that says who it was may go on (KIP-360): it was the last one, or was answered and did not hear it."""
        if self.epoch == NOBODY or producer.producer_id == self.producer_id:
            return True
        return producer.producer_id == self.previous_id and producer.epoch >= _LAST_EPOCH - 1

    def raise_epoch(self, expected: int | None) -> bool:
        """Begin the next epoch for a producer that comes or comes again. False: it is fenced."""
        if expected is None:
            self.epoch, self.last_epoch = self.epoch + 1, NOBODY
        elif expected == self.epoch or self.epoch == NOBODY:
            self.epoch, self.last_epoch = self.epoch + 1, self.epoch
        else:
            return expected == self.last_epoch  # it asks again, for it has not heard the answer
        return True

    def rotate(self, producer_id: int, *, recovers: bool) -> None:
        """Go on with another producer id, for the epochs of this one are used up."""
        self.previous_id, self.producer_id = self.producer_id, producer_id
        self.last_epoch, self.epoch = (self.epoch if recovers else NOBODY), 0


#: Writes the marker of one target; False if that cannot be done now.
WriteMarker: TypeAlias = Callable[[Target, Identity, bool], bool]


class Transactions:
    """All transactional ids of a cluster."""

    def __init__(self, clock: Callable[[], int], new_producer_id: Callable[[], int], changed: Signal) -> None:
        self.by_id: dict[str, Transaction] = {}
        self.version = 2  # the finalized level of the feature transaction.version
        self.verification = True  # transaction.partition.verification.enable
        self.completion = 0.0  # seconds from the end of a transaction to its markers
        self.max_timeout_ms = 900_000
        self.two_phase = False  # transaction.two.phase.commit.enable; offer version 6 of InitProducerId, too
        self.keeps_prepared = False  # as KIP-939 says it; Kafka 4.3 refuses it (UNSUPPORTED_VERSION)
        self.changed = changed
        self.write_marker: WriteMarker = lambda target, producer, commit: True
        self._clock, self._new_producer_id = clock, new_producer_id

    # -- the calls of the producers ----------------------------------------------------------------------------------

    def initialize(self, name: str, timeout_ms: int, expected: Identity | None, *, two_phase: bool, keep: bool) -> Outcome:
        """Give a producer its id and epoch. ``expected`` is who it was (KIP-360); others with its id are fenced."""
        if not name:
            return Outcome(ErrorCode.INVALID_REQUEST)
        if two_phase and not self.two_phase:
            return Outcome(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        if keep and not self.keeps_prepared:
            return Outcome(ErrorCode.UNSUPPORTED_VERSION)
        if not two_phase and not 0 < timeout_ms <= self.max_timeout_ms:
            return Outcome(ErrorCode.INVALID_TRANSACTION_TIMEOUT)
        found = self.by_id.get(name)
        if found is None:
            found = self.by_id[name] = Transaction(name, self._new_producer_id(), timeout_ms)
        if found.state in _ENDING:
            return Outcome(ErrorCode.CONCURRENT_TRANSACTIONS)
        if expected is not None and not found.knows(expected):
            return Outcome(ErrorCode.PRODUCER_FENCED)
        if found.state is TransactionState.ONGOING and keep:
            ongoing = Identity(found.producer_id, found.epoch)
            found.epoch, found.last_epoch = found.epoch + 1, NOBODY
            return Outcome(ErrorCode.NONE, found.identity, ongoing)
        if found.state is TransactionState.ONGOING:
            self._fence(found)
            return Outcome(ErrorCode.CONCURRENT_TRANSACTIONS)
        if found.exhausted and (expected is None or expected.epoch == found.epoch):
            found.rotate(self._new_producer_id(), recovers=expected is not None)
        elif not found.raise_epoch(None if expected is None else expected.epoch):
            return Outcome(ErrorCode.PRODUCER_FENCED)
        found.state, found.started_ms = TransactionState.EMPTY, -1
        found.timeout_ms = _NO_LIMIT_MS if two_phase else timeout_ms
        return Outcome(ErrorCode.NONE, found.identity)

    def add(self, name: str, producer: Identity, targets: Iterable[Target]) -> int:
        """Let a transaction write to these partitions or groups; the first begins it."""
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
            found.state, found.started_ms = TransactionState.ONGOING, self._clock()
            limited = found.timeout_ms < _NO_LIMIT_MS
            found.deadline = trio.current_time() + found.timeout_ms / 1000 if limited else math.inf
        found.targets.update(targets)
        self.changed.notify()
        return ErrorCode.NONE

    def verify(self, name: str, producer: Identity, target: Target) -> int:
        """Whether a transaction may write there: what a partition's leader asks before it takes the first batch."""
        if not name:
            return ErrorCode.INVALID_REQUEST
        found = self.by_id.get(name)
        if found is None:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        if code := found.objection(producer):
            return code
        ours = found.state is TransactionState.ONGOING and target in found.targets
        return ErrorCode.NONE if ours else ErrorCode.TRANSACTION_ABORTABLE

    def end(self, name: str, producer: Identity, *, commit: bool, bumps: bool) -> Outcome:
        """Commit or abort. ``bumps``: by version 5 of EndTxn, whose response has the next transaction's epoch."""
        if not name:
            return Outcome(ErrorCode.INVALID_REQUEST)
        found = self.by_id.get(name)
        if found is None:
            return Outcome(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        return self._end_bumping(found, producer, commit) if bumps else self._end_plainly(found, producer, commit)

    def _end_plainly(self, found: Transaction, producer: Identity, commit: bool) -> Outcome:
        if producer.producer_id != found.producer_id:
            return Outcome(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        if producer.epoch != found.epoch:
            return Outcome(ErrorCode.PRODUCER_FENCED)
        if found.state is TransactionState.ONGOING:
            self._prepare(found, commit, bumps=False)
            return Outcome(ErrorCode.NONE)
        if found.state in _ENDING:
            return Outcome(ErrorCode.CONCURRENT_TRANSACTIONS)
        wrong = found.state is TransactionState.EMPTY or found.commits != commit
        return Outcome(ErrorCode.INVALID_TXN_STATE if wrong else ErrorCode.NONE)

    def _end_bumping(self, found: Transaction, producer: Identity, commit: bool) -> Outcome:
        if found.state in _ENDING:
            return Outcome(ErrorCode.CONCURRENT_TRANSACTIONS)
        rotated = producer == Identity(found.previous_id, _LAST_EPOCH - 1) and found.epoch == 0
        raised = producer.epoch + 1 == found.epoch
        again = raised or rotated
        if producer.producer_id != found.producer_id and not rotated:
            return Outcome(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        running = found.state in (TransactionState.ONGOING, TransactionState.EMPTY)
        if producer.epoch != found.epoch and (running or not again):
            return Outcome(ErrorCode.PRODUCER_FENCED)
        if found.state is not TransactionState.ONGOING and again:
            said = found.commits == commit
            return Outcome(ErrorCode.NONE, found.identity) if said else Outcome(ErrorCode.INVALID_TXN_STATE)
        if found.state is not TransactionState.ONGOING:
            if commit:
                return Outcome(ErrorCode.INVALID_TXN_STATE)
            found.started_ms = self._clock()  # it may abort what it has not begun: only the epoch is raised
        self._prepare(found, commit, bumps=True)
        return Outcome(ErrorCode.NONE, found.identity)

    # -- the way to the end ------------------------------------------------------------------------------------------

    def _fence(self, found: Transaction) -> None:
        """Abort a transaction whose producer is given up: an epoch higher, so that it can write no more.

        Where each end raises the epoch the producer may still go on as itself (KIP-360), else never.
        """
        if self.version < 2:
            found.epoch, found.last_epoch = found.epoch + 1, NOBODY
        self._prepare(found, commit=False, bumps=self.version >= 2, fences=True)

    def _prepare(self, found: Transaction, commit: bool, *, bumps: bool, fences: bool = False) -> None:
        found.state = TransactionState.PREPARE_COMMIT if commit else TransactionState.PREPARE_ABORT
        found.deadline = math.inf
        if bumps:
            if not fences and found.exhausted:
                found.next_id = self._new_producer_id()
            found.epoch, found.last_epoch = found.epoch + 1, found.epoch
        found.completes_at = trio.current_time() + self.completion
        if not self.completion:
            self._complete(found)
        self.changed.notify()

    def _complete(self, found: Transaction) -> None:
        """Write the markers that are left; with the last of them the transaction is over."""
        producer = Identity(found.producer_id, found.epoch)
        found.targets = {target for target in found.targets if not self.write_marker(target, producer, found.commits)}
        if found.targets:
            return
        found.state = TransactionState.COMPLETE_COMMIT if found.commits else TransactionState.COMPLETE_ABORT
        found.completes_at = math.inf
        if found.next_id != NOBODY:
            found.previous_id, found.producer_id, found.next_id, found.epoch = found.producer_id, found.next_id, NOBODY, 0

    def settle(self, now: float) -> None:
        """Do what is due: abort transactions whose time is up, and write markers."""
        for found in self.by_id.values():
            if found.deadline <= now:
                self._fence(found)
            if found.completes_at <= now:
                self._complete(found)

    async def watch(self) -> None:
        """Do what is due when it is, for ever. Markers that could not be written are tried again when the cluster has changed."""
        while True:
            now = trio.current_time()
            self.settle(now)
            due = [when for found in self.by_id.values() for when in (found.deadline, found.completes_at) if when > now]
            with trio.move_on_at(min(due, default=math.inf)):
                await self.changed.wait()
