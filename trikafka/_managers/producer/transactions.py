"""The transaction manager: it begins, fills and ends the transactions of one producer.

A task of the client ends a transaction and prepares the next one, even if every caller is
cancelled. So no transaction stays open at the broker because a call was cancelled, and the outcome
of a commit becomes known even if no caller waits for it. The rules which call is legal when are in
:mod:`trikafka._state.producer.transaction_state`. This manager and the produce manager report
events to that state.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

import trio

from ..._net.deadlines import RunningCall, run_call
from ..._net.gather import with_background
from ..._net.retry import Retry
from ..._net.singleflight import SingleFlight, StartSoon
from ..._state.producer.sequences import ProducerIdentity
from ..._state.producer.transaction_proofs import Proof, proof_of
from ..._state.producer.transaction_state import ProducerTransaction, TransactionState
from ...config import ProducerConfig
from ...error_codes import ErrorCode
from ...errors import (
    CommitFailedError,
    IllegalStateError,
    KafkaTimeoutError,
    MemberFencedError,
    ProducerFencedError,
    TransactionAbortableError,
    TransactionError,
    TransactionFatalError,
    TrikafkaError,
)
from ...errors.copies import again
from ...interfaces import ProduceManager
from ...types import GroupMetadata, OffsetAndMetadata, PreparedTransaction, TopicPartition
from .offsets_under_way import OffsetsUnderWay
from .transaction_coordinator import TransactionCoordinator
from .transaction_ends import (
    FORGOTTEN,
    MARKERS,
    QUICK_ATTEMPTS,
    PendingEndTxn,
    TransactionEnds,
    back_off,
)
from .transaction_failures import TransactionFailures, undecided
from .transaction_signals import ProducerTransactionSignals

_log = logging.getLogger("trikafka.transactions")
_S = TransactionState
#: The most transactions that :class:`Transactions` keeps for a commit that may be repeated.
_MOST_KEPT = 100


class Begun:
    """A transaction, as the calls made for it know it.

    The object stays valid for those calls after the next transaction has begun.
    """

    __slots__ = ("cut_off", "number", "pending")

    def __init__(self, number: int) -> None:
        self.number = number
        #: True if the last call to commit was cut off before its outcome was known.
        self.cut_off = False
        #: Stored together with the start of the task that carries the end out. After a commit that
        #: the coordinator refused, an abort takes its place.
        self.pending: PendingEndTxn | None = None


class Transactions:
    """The transactions of one producer.

    ``transaction`` is shared with the produce manager, which asks it what may be sent.
    """

    def __init__(
        self,
        config: ProducerConfig,
        coordinator: TransactionCoordinator,
        produce: ProduceManager,
        transaction: ProducerTransaction,
        signals: ProducerTransactionSignals,
        start_soon: StartSoon,
    ) -> None:
        self._config = config
        self._coordinator = coordinator
        self._produce = produce
        self._start_soon = start_soon
        self._transaction = transaction
        self._signals = signals
        self._failures = TransactionFailures(produce, transaction, signals)
        self._offsets = OffsetsUnderWay()
        self._ends = TransactionEnds(
            config, coordinator, produce, transaction, self._failures, self._offsets
        )
        self._begun: Begun | None = None
        self._before: Begun | None = None
        # The earlier transactions whose commit was cut off, by number. Their blocks may still be
        # open, with the next transactions in other tasks, and ask for the outcome at their ends.
        self._cut_off_before: dict[int, Begun] = {}
        # Why the last transaction was not committed, as long as no call has raised that.
        self._unreported: Exception | None = None
        self._finished = False

    @property
    def obstacle(self) -> Exception | None:
        """The error of the last request to the coordinator, or the lack of a response."""
        return self._coordinator.reason.error()

    # --- the calls --------------------------------------------------------------------------------

    async def initialize(self) -> None:
        """Get the producer id.

        Older producers of this transactional id are fenced, and their transactions aborted. A
        prepared transaction that is to be committed is committed before that (KIP-939). Raises the
        coordinator's refusal, or :exc:`KafkaTimeoutError` past ``default_api_timeout_ms``.
        """
        self._transaction.initializing()
        quick = QUICK_ATTEMPTS

        # The first request makes the coordinator abort the transaction of the older producer. That
        # producer is fenced only by a later request: its own abort succeeds, and it may begin
        # another transaction. A busy one did so between each two requests that had the usual wait
        # between them, and the new one opened after half a minute (Kafka 4.4).
        async def attempt(call: RunningCall) -> None:
            nonlocal quick
            await self._commit_prepared(call)
            while True:
                try:
                    identity = await call.step(
                        "InitProducerId", lambda: self._coordinator.initialize(None)
                    )
                    break
                except TrikafkaError as error:
                    over = call.left <= MARKERS or call.attempts > self._config.call_retries
                    if (
                        over
                        or not quick
                        or error.code != ErrorCode.CONCURRENT_TRANSACTIONS
                        or not call.repeats(error)
                    ):
                        raise
                quick -= 1
                await trio.sleep(MARKERS)
            self._transaction.initialized(identity)
            self._produce.identify(identity)

        await run_call("open", attempt, config=self._config, recover=self._coordinator.failed)

    async def _commit_prepared(self, call: RunningCall) -> None:
        prepared = self._config.prepared
        if prepared is None:
            return
        identity = ProducerIdentity(prepared.producer_id, prepared.epoch)
        try:
            await call.step(
                "EndTxn of what was prepared",
                lambda: self._coordinator.end(identity, 2, commit=True),
            )
        except TrikafkaError as error:
            # Its producer has gone on, or another one has taken over.
            if isinstance(error, ProducerFencedError) or error.code == FORGOTTEN:
                _log.warning("transaction %s was completed before: %s", prepared, error)
                return
            if error.retriable:
                raise
            if proof_of(error, "EndTxn") is Proof.NOTHING:
                # The transaction may have been committed; a further attempt finds out.
                error.retriable = True
                raise
            raise TransactionFatalError(
                f"the transaction {prepared}, which was prepared, cannot be committed: {error}"
            ) from error

    async def begin(self, *, timeout: float | None = None) -> int:
        """Begin a transaction once the last one is over; return its number.

        Raises:
            TransactionAbortableError: The last transaction was undecided and was not committed. It
                is aborted before this is raised.
            TransactionUndecidedError: The outcome of the last commit is not known within
                ``timeout`` seconds.
            KafkaTimeoutError: The last transaction is not over within ``timeout`` seconds for
                another reason.
            trio.ClosedResourceError: The producer is being closed.
        """

        async def attempt(call: RunningCall) -> int:
            while self._begun is not None and (last := self._begun.pending) is not None:
                if not last.done.is_set():
                    await self._await(call, last)
                elif (
                    self._unreported is None
                    and not last.is_reported
                    and self._transaction.state is _S.ABORTABLE_ERROR
                ):
                    self._unreported = self._transaction.error
                    self._end(self._of(last.number), commit=False)
                else:
                    break
            if (refused := self._unreported) is not None:
                self._unreported = None
                raise TransactionAbortableError(
                    f"the transaction before was not committed: {refused}"
                ) from refused
            # The producer may have been closed while this call waited.
            if self._finished:
                raise trio.ClosedResourceError("this producer is closed")
            return self._begin()

        try:
            return await run_call("transaction", attempt, config=self._config, timeout=timeout)
        except KafkaTimeoutError as error:
            if self._transaction.state is not _S.UNDECIDED:
                raise
            raise undecided(error) from error.__cause__

    @trio.lowlevel.enable_ki_protection
    def _begin(self) -> int:
        self._transaction.check("begin")
        number = self._transaction.begun(self._coordinator.version)
        if self._before is not None and self._before.cut_off:
            self._cut_off_before[self._before.number] = self._before
            if len(self._cut_off_before) > _MOST_KEPT:
                del self._cut_off_before[next(iter(self._cut_off_before))]
        self._before = self._begun
        self._begun = Begun(number)
        return number

    async def send_offsets(
        self,
        number: int,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        group: Callable[[], GroupMetadata],
        *,
        timeout: float | None = None,
    ) -> None:
        """Make offsets part of transaction ``number`` (KIP-447).

        ``group`` is called for each attempt, because the member may be in another generation by
        then.

        If this raises, :exc:`trio.Cancelled` included, the transaction can only be aborted. A
        commit waits for this call. So do later calls to `send_offsets`: their offsets must not be
        overwritten by these.
        """
        self._check_current(number)
        self._transaction.check("send_offsets")
        with self._offsets.call() as earlier:

            async def attempt(call: RunningCall) -> None:
                await call.wait(earlier)
                with self._offsets.turn():
                    await self._send_offsets_once(call, number, offsets, group)

            try:
                await run_call(
                    "send_offsets",
                    attempt,
                    config=self._config,
                    timeout=timeout,
                    recover=self._coordinator.failed,
                )
            except trio.Cancelled:
                if self._is_open(number):
                    self._transaction.failed(TransactionError("send_offsets was cancelled"))
                raise
            except TrikafkaError as error:
                if not self._is_open(number):
                    raise self._closed_meanwhile(number) from error
                if isinstance(error, TransactionError | KafkaTimeoutError | IllegalStateError):
                    self._transaction.failed(error)
                    raise
                raise self._failures.broken("send_offsets", error) from error

    def _closed_meanwhile(self, number: int) -> Exception:
        """Return what ``send_offsets`` raises if it was overtaken.

        Its transaction has ended, or its producer was fenced, meanwhile.
        """
        if number == self._transaction.number and self._transaction.state is _S.FATAL_ERROR:
            assert self._transaction.error is not None
            return again(self._transaction.error)
        return IllegalStateError("send_offsets: the transaction was ended meanwhile")

    async def _send_offsets_once(
        self,
        call: RunningCall,
        number: int,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        group: Callable[[], GroupMetadata],
    ) -> None:
        self._check_open(number)
        transaction = self._transaction
        identity = self._transaction.given
        member = group()
        transaction.adding()
        if transaction.version < 2 and not transaction.knows_group(member.group_id):
            await call.step(
                "AddOffsetsToTxn", lambda: self._coordinator.add_offsets(identity, member.group_id)
            )
            self._check_open(number)
            transaction.group_added(member.group_id)
        version = transaction.version

        async def commit_offsets() -> None:
            with self._offsets.request():
                await self._coordinator.commit_offsets(identity, member, offsets, version)

        # In version 1 a request that arrives late would become part of the next transaction. So it
        # runs in a task of the client, and the end waits for it even if this call is cancelled.
        once = SingleFlight(self._start_soon, commit_offsets) if version < 2 else commit_offsets
        try:
            await call.step("TxnOffsetCommit", once)
        except MemberFencedError as error:
            # The member has reached the next generation meanwhile; a further attempt may use it. A
            # consumer returns its membership in a new object each time. One that the program has
            # noted is the same object, and no attempt makes it newer.
            now = group()
            error.retriable |= now != member
            if error.retriable and now is not member:
                raise
            raise CommitFailedError(
                f"group {member.group_id!r} has moved on without this member, and its partitions "
                "may be with another"
            ) from error

    async def prepare(self, number: int, *, timeout: float | None = None) -> PreparedTransaction:
        """Deliver everything, so that only the outcome is missing (KIP-939).

        Raises as :meth:`commit` does before its end.
        """
        begun = self._of(number, open_only=True)
        self._transaction.check("prepare")
        self._transaction.closing()

        async def attempt(call: RunningCall) -> PreparedTransaction:
            await self._flush(call, begun)
            return self._prepared(begun)

        try:
            return await run_call("prepare", attempt, config=self._config, timeout=timeout)
        finally:
            self._transaction.reopened(number)

    def _prepared(self, begun: Begun) -> PreparedTransaction:
        """Record that ``begun`` is prepared, unless it has ended while it was flushed."""
        if begun.pending is not None:
            raise _ended_meanwhile("prepare", begun.pending)
        self._transaction.check("commit")
        self._transaction.prepared()
        return PreparedTransaction(*self._transaction.given)

    async def commit(self, number: int, *, timeout: float | None = None) -> None:
        """Commit transaction ``number``.

        The call may be repeated after it was cut off. Cancelled before all records are delivered,
        the call has no effect; cancelled after that, the transaction is undecided.

        Raises:
            TransactionAbortableError: A part of the transaction failed.
            IllegalStateError: Another task has aborted the transaction.
            ProducerFencedError: Another producer has this transactional id.
            TransactionFatalError: The producer cannot go on.
            TransactionUndecidedError: The records are delivered, but the outcome did not arrive
                within ``timeout`` seconds.
            KafkaTimeoutError: The records were not delivered within ``timeout`` seconds.
        """
        begun = self._of(number)
        self._check_commit(begun)
        begun.cut_off = False
        if closing := begun.pending is None and self._transaction.state is _S.IN_TRANSACTION:
            self._transaction.closing()

        async def attempt(call: RunningCall) -> None:
            if begun.pending is None and self._transaction.state is _S.IN_TRANSACTION:
                await self._flush(call, begun)
            await self._await(call, self._end(begun, commit=True), raises=True)

        try:
            await run_call("commit", attempt, config=self._config, timeout=timeout)
        except KafkaTimeoutError as error:
            pending = begun.pending
            if pending is None or not pending.commit:
                raise
            if pending.over:
                # The commit succeeded; only the next epoch did not arrive in time.
                return
            # The outcome arrived at the last moment.
            if pending.error is not None and pending.done.is_set():
                pending.will_be_reported()
                raise again(pending.error) from pending.error.__cause__
            self._cut_off(begun, error)
            raise undecided(error) from error.__cause__
        except trio.Cancelled:
            self._cut_off(begun, TransactionError("commit was cancelled"))
            raise
        finally:
            if closing:
                self._transaction.reopened(number)

    async def abort(self, number: int, *, timeout: float | None = None) -> None:
        """Abort transaction ``number``.

        Records that are not at a broker are dropped at once; no consumer that reads committed
        records sees the others. Past ``timeout`` seconds, and when cancelled, the abort goes on in
        the background, and the next transaction waits for it.

        Raises:
            TransactionUndecidedError: A commit of the transaction was cut off.
            KafkaTimeoutError: The abort is not done within ``timeout`` seconds.
        """
        pending = self._end(self._of(number), commit=False)
        # The next epoch may still be missing; only the next transaction waits for it.
        if pending.over:
            await trio.lowlevel.checkpoint()
            return
        await run_call(
            "abort",
            lambda call: self._await(call, pending, raises=True),
            config=self._config,
            timeout=timeout,
        )

    async def finish(self) -> None:
        """End the transaction manager's work, as the producer closes.

        No transaction begins any more. An open one is aborted unless it is prepared, and this waits
        until it has ended.
        """
        self._finished = True
        while (begun := self._begun) is not None:
            if self._transaction.state in (_S.IN_TRANSACTION, _S.ABORTABLE_ERROR):
                self._end(begun, commit=False)
            if begun.pending is not None:
                await begun.pending.settled()
            # A commit that failed while this waited leaves ABORTABLE_ERROR, and the loop aborts it.
            if self._transaction.state is not _S.ABORTABLE_ERROR:
                return

    # --- tasks ------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Do the background work, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._failures.fail_records)
            await self._add_partitions()

    async def _add_partitions(self) -> None:
        """Announce partitions to the coordinator before their first record (version 1)."""
        retry = Retry(self._config)
        number = 0
        while True:
            missing = self._transaction.missing
            if not missing or self._transaction.state is not _S.IN_TRANSACTION:
                await self._signals.wanted.wait()
                continue
            if number != self._transaction.number:
                number = self._transaction.number
                retry.reset()  # the failures were those of another transaction
            self._transaction.adding()
            try:
                added, error = await self._coordinator.add_partitions(
                    self._transaction.given, missing
                )
            except TrikafkaError as failure:
                added, error = [], failure
            if not self._is_open(number):
                continue
            self._transaction.added(added)
            if added:
                self._produce.partitions_added()
            if error is None:
                retry.reset()
                continue
            self._coordinator.failed(error)
            if not error.retriable:
                self._failures.broken("AddPartitionsToTxn", error)
            else:
                self._produce.delayed(error)
                await back_off(retry, error)

    # --- the end ----------------------------------------------------------------------------------

    # Each call decides here which end it waits for, without a checkpoint between the look at the
    # state and the change of it. While a call waits, another task may end the transaction, and even
    # begin the next one. So a call asks its own transaction (:class:`Begun`) first, and the shared
    # state only if nothing has ended that: then the shared state is about the same transaction
    # still. An abort's end is never the outcome of a commit, nor the other way round.

    # Ctrl-C between the steps would leave an end stored that no task carries out.
    @trio.lowlevel.enable_ki_protection
    def _end(self, begun: Begun, *, commit: bool) -> PendingEndTxn:
        """Return the end of ``begun`` that a call waits for.

        The end is one in progress or over, or a new one, which is started. Raises if the
        transaction cannot end in this way any more.
        """
        transaction, pending = self._transaction, begun.pending
        if commit:
            self._check_commit(begun)
            if pending is not None:
                if begun is self._begun and transaction.state is _S.UNDECIDED:
                    transaction.committing()
                return pending
        elif pending is not None and not pending.commit:
            return pending
        else:
            if begun is not self._begun:
                raise _over()
            transaction.check("abort")
        return self._start(
            begun, PendingEndTxn(begun.number, commit, named=transaction.state is _S.PREPARED)
        )

    def _start(self, begun: Begun, pending: PendingEndTxn) -> PendingEndTxn:
        """Start a legal end. It becomes the pending one only if its task could be started."""
        transaction = self._transaction
        if needs_task := transaction.started or not pending.commit:
            # Raises once the client is closed; nothing has changed by then.
            self._start_soon(self._ends.carry_out, pending)
        begun.pending = pending
        if pending.commit:
            transaction.committing()
        else:
            transaction.aborting()
            self._failures.begin_to_abort()
        if not needs_task:
            transaction.ended()
            pending.ended()
            pending.done.set()
        return pending

    def _check_commit(self, begun: Begun) -> None:
        """Raise if ``begun`` cannot be committed any more.

        Passes if the commit is legal now, in progress, over, or was refused by the coordinator.
        """
        pending = begun.pending
        if pending is None:
            self._transaction.check("commit")
        elif not pending.commit:
            if begun is self._begun and self._transaction.state is _S.FATAL_ERROR:
                self._transaction.check("commit")
            raise _ended_meanwhile("commit", pending)

    # --- parts ------------------------------------------------------------------------------------

    def _of(self, number: int, *, open_only: bool = False) -> Begun:
        """Return the transaction that began as ``number``.

        Raises :exc:`IllegalStateError` if that transaction is neither the current nor the last one,
        and no commit of it was cut off.
        """
        for begun in (self._begun,) if open_only else (self._begun, self._before):
            if begun is not None and begun.number == number:
                return begun
        if not open_only and number in self._cut_off_before:
            return self._cut_off_before[number]
        raise _over()

    def _check_current(self, number: int) -> None:
        if number != self._transaction.number:
            raise _over()

    def _is_open(self, number: int) -> bool:
        return number == self._transaction.number and self._transaction.state in (
            _S.IN_TRANSACTION,
            _S.ABORTABLE_ERROR,
        )

    def _check_open(self, number: int) -> None:
        self._check_current(number)
        # A commit that waits for these offsets does not forbid them.
        if self._transaction.state is not _S.IN_TRANSACTION:
            self._transaction.check("send_offsets")

    async def _flush(self, call: RunningCall, begun: Begun) -> None:
        """Wait until all records and offsets are delivered.

        Raises as soon as one of them is not, or an abort has begun.
        """

        async def watch() -> None:
            while begun.pending is None and self._transaction.state is _S.IN_TRANSACTION:
                await self._signals.changed.wait()
            self._check_commit(begun)

        async def deliver() -> None:
            await self._produce.drain()
            await self._offsets.ended()

        await call.wait(lambda: with_background([watch], deliver))

    async def _await(
        self, call: RunningCall, pending: PendingEndTxn, *, raises: bool = False
    ) -> None:
        await call.wait(pending.settled)
        if raises:
            pending.will_be_reported()
            if pending.error is not None:
                raise again(pending.error)

    def _cut_off(self, begun: Begun, why: TrikafkaError) -> None:
        """Record that a call to commit was cut off.

        If the coordinator may have been asked, the transaction is undecided.
        """
        pending = begun.pending
        if pending is None or not pending.commit:
            return
        pending.will_not_be_reported()
        begun.cut_off = True
        if begun is self._begun:
            self._transaction.undecided(why)


def _over() -> IllegalStateError:
    return IllegalStateError("this transaction is over")


def _ended_meanwhile(call: str, pending: PendingEndTxn) -> IllegalStateError:
    if pending.commit:
        return IllegalStateError(
            f"{call}() is not possible now: another task has begun to commit the transaction"
        )
    return IllegalStateError(
        f"{call}() is not possible any more: the transaction was aborted, by another task or "
        "because the producer was closed, and nothing of it is committed"
    )
