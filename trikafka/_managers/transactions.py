"""The transaction manager: begins, fills and ends the transactions of one producer, with the coordinator of its id.

What ends a transaction, and what comes after that, is done by a task of the client, whoever of the callers gives up: so nothing is
left open at the broker because a call was cancelled, and the outcome of a commit is found out whether somebody waits for it or not.
What the calls may do when stands in :mod:`trikafka._state.transaction`; this manager and the produce manager tell it what happened.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

import trio

from .._net.deadlines import Call, run_call
from .._net.gather import with_background
from .._net.retry import Retry
from .._net.singleflight import SingleFlight, StartSoon
from .._state.sequences import Identity
from .._state.transaction import ProducerTransaction, TransactionState
from ..config import ProducerConfig
from ..errors import (
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
from ..errors.copies import again
from ..interfaces import ProduceManager
from ..types import GroupMetadata, OffsetAndMetadata, PreparedTransaction, TopicPartition
from .offsets_under_way import OffsetsUnderWay
from .transaction_coordinator import TransactionCoordinator
from .transaction_ends import FORGOTTEN, Ending, TransactionEnds, back_off
from .transaction_failures import TransactionFailures, undecided
from .transaction_signals import TransactionSignals

_log = logging.getLogger("trikafka.transactions")
_S = TransactionState


class Transactions:
    """See the module. ``transaction`` is shared with the produce manager, which asks it what may be sent."""

    def __init__(
        self,
        config: ProducerConfig,
        coordinator: TransactionCoordinator,
        produce: ProduceManager,
        transaction: ProducerTransaction,
        signals: TransactionSignals,
        start_soon: StartSoon,
    ) -> None:
        self._config, self._coordinator, self._produce, self._start_soon = config, coordinator, produce, start_soon
        self._transaction, self._signals = transaction, signals
        self._failures = TransactionFailures(produce, transaction, signals)
        self._offsets = OffsetsUnderWay()
        self._ends = TransactionEnds(config, coordinator, produce, transaction, self._failures, self._offsets)
        self._ending: Ending | None = None  # the last
        self._finished = False

    # --- the calls ---------------------------------------------------------------------------------------------------

    async def initialize(self) -> None:
        """Get the producer id: older producers of this transactional id are fenced, their transactions aborted.

        But the one that was prepared and is to be committed is committed before that (KIP-939). Raises what the coordinator
        refuses it with, :exc:`KafkaTimeoutError` past ``default_api_timeout_ms``.
        """
        self._transaction.initializing()

        async def attempt(call: Call) -> None:
            await self._commit_prepared(call)
            identity = await call.step("InitProducerId", lambda: self._coordinator.initialize(None))
            self._transaction.initialized(identity)
            self._produce.identify(identity)

        await run_call("open", attempt, config=self._config, recover=self._coordinator.failed)

    async def _commit_prepared(self, call: Call) -> None:
        prepared = self._config.prepared
        if prepared is None:
            return
        identity = Identity(prepared.producer_id, prepared.epoch)
        try:
            await call.step("EndTxn of what was prepared", lambda: self._coordinator.end(identity, 2, commit=True))
        except TrikafkaError as error:
            if isinstance(error, ProducerFencedError) or error.code == FORGOTTEN:  # its producer went on, or another came
                _log.warning("transaction %s was completed before: %s", prepared, error)
                return
            if error.retriable:
                raise
            raise TransactionFatalError(f"the transaction {prepared}, which was prepared, cannot be committed: {error}") from error

    async def begin(self, *, timeout: float | None = None) -> int:
        """Begin a transaction, once the last one is over; returns its number.

        Raises :exc:`TransactionAbortableError` if the last one, which was undecided, was not committed (it is aborted then),
        :exc:`TransactionUndecidedError` or :exc:`KafkaTimeoutError` if it is not over within ``timeout`` seconds,
        :exc:`trio.ClosedResourceError` if the producer is being closed.
        """

        async def attempt(call: Call) -> int:
            last = self._ending
            if last is not None:
                await self._await(call, last)
            if last is not None and not last.told:
                last.will_be_told()
                if self._transaction.state is _S.ABORTABLE_ERROR:
                    refused = self._transaction.error
                    await self._await(call, self._start_end(commit=False))
                    raise TransactionAbortableError(f"the transaction before was not committed: {refused}") from refused
            if self._finished:  # meanwhile
                raise trio.ClosedResourceError("this producer is closed")
            self._transaction.check("begin")
            return self._transaction.begun(self._coordinator.version)

        try:
            return await run_call("transaction", attempt, config=self._config, timeout=timeout)
        except KafkaTimeoutError as error:
            if self._transaction.state is not _S.UNDECIDED:
                raise
            raise undecided(error) from error.__cause__

    async def send_offsets(
        self,
        number: int,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        group: Callable[[], GroupMetadata],
        *,
        timeout: float | None = None,
    ) -> None:
        """Make offsets part of transaction ``number`` (KIP-447). ``group`` is asked anew for each attempt.

        If this raises, :exc:`trio.Cancelled` included, the transaction can only be aborted. A commit waits for it, and so do later
        calls, whose offsets it must not overwrite.
        """
        self._same(number)
        self._transaction.check("send_offsets")
        with self._offsets.call() as earlier:

            async def attempt(call: Call) -> None:
                await call.wait(earlier)
                with self._offsets.turn():
                    await self._send_offsets_once(call, number, offsets, group)

            try:
                await run_call("send_offsets", attempt, config=self._config, timeout=timeout, recover=self._coordinator.failed)
            except trio.Cancelled:
                if self._is_open(number):
                    self._transaction.failed(TransactionError("send_offsets was cancelled"))
                raise
            except TrikafkaError as error:
                if not self._is_open(number):
                    raise IllegalStateError("send_offsets: the transaction was ended meanwhile") from error
                if isinstance(error, TransactionError | KafkaTimeoutError | IllegalStateError):
                    self._transaction.failed(error)
                    raise
                raise self._failures.broken("send_offsets", error) from error

    async def _send_offsets_once(
        self, call: Call, number: int, offsets: Mapping[TopicPartition, OffsetAndMetadata], group: Callable[[], GroupMetadata]
    ) -> None:
        self._still(number)
        transaction, identity, member = self._transaction, self._transaction.given, group()
        transaction.adding()
        if transaction.version < 2 and not transaction.knows_group(member.group_id):
            await call.step("AddOffsetsToTxn", lambda: self._coordinator.add_offsets(identity, member.group_id))
            self._still(number)
            transaction.group_added(member.group_id)
        version = transaction.version

        async def commit_offsets() -> None:
            with self._offsets.request():
                await self._coordinator.commit_offsets(identity, member, offsets, version)

        # In version 1 a late one would join the next transaction: waited for before that, though this call may be cancelled.
        once = SingleFlight(self._start_soon, commit_offsets) if version < 2 else commit_offsets
        try:
            await call.step("TxnOffsetCommit", once)
        except MemberFencedError as error:
            error.retriable |= group() != member  # it has got into the next generation meanwhile, and may ask as a member of that
            if error.retriable:
                raise
            raise CommitFailedError(
                f"group {member.group_id!r} has moved on without this member, and its partitions may be with another"
            ) from error

    async def prepare(self, number: int, *, timeout: float | None = None) -> PreparedTransaction:
        """Have everything at the brokers, so that only the outcome is missing (KIP-939). Fails as :meth:`commit` before its end."""
        self._same(number)
        self._transaction.check("prepare")
        self._transaction.closing()

        async def attempt(call: Call) -> PreparedTransaction:
            await self._flush(call, number)
            self._transaction.prepared()
            return PreparedTransaction(*self._transaction.given)

        try:
            return await run_call("prepare", attempt, config=self._config, timeout=timeout)
        finally:
            self._transaction.reopened(number)

    async def commit(self, number: int, *, timeout: float | None = None) -> None:
        """Commit transaction ``number``. May be called again after it was cut off.

        Raises :exc:`TransactionAbortableError` if something of it failed, :exc:`ProducerFencedError`,
        :exc:`TransactionFatalError`; :exc:`TransactionUndecidedError` if only the outcome did not come within ``timeout`` seconds,
        :exc:`KafkaTimeoutError` if the records were not delivered by then. Cancelled before all records are delivered, it is as if
        it had not been called; cancelled after that, the transaction is undecided.
        """
        if (over := self._over(number)) is not None and over.commit:
            await trio.lowlevel.checkpoint()
            over.will_be_told()
            if over.error is not None:
                raise again(over.error)
            return
        self._same(number)
        self._transaction.check("commit")
        if closing := self._transaction.state is _S.IN_TRANSACTION:
            self._transaction.closing()

        async def attempt(call: Call) -> None:
            if self._transaction.state is _S.IN_TRANSACTION:
                await self._flush(call, number)
            ending = self._over(number) or self._start_end(commit=True)  # over: by another task's commit
            await self._await(call, ending, raises=True)

        try:
            await run_call("commit", attempt, config=self._config, timeout=timeout)
        except KafkaTimeoutError as error:
            if (over := self._over(number)) is not None and over.error is None:
                return  # only the next epoch did not come in time
            if not self._cut_off(number, error):
                raise
            raise undecided(error) from error.__cause__
        except trio.Cancelled:
            self._cut_off(number, TransactionError("commit was cancelled"))
            raise
        finally:
            if closing:
                self._transaction.reopened(number)

    async def abort(self, number: int, *, timeout: float | None = None) -> None:
        """Abort transaction ``number``: what is not at a broker is dropped at once, and what is there will be seen by nobody.

        Raises :exc:`TransactionUndecidedError` after a commit that was cut off, :exc:`KafkaTimeoutError` past ``timeout`` seconds;
        after that, and when cancelled, it goes on in the background, and the next transaction waits for it.
        """
        if (over := self._over(number)) is not None and not over.commit:
            await trio.lowlevel.checkpoint()
            if over.error is not None:
                raise again(over.error)
            return
        self._same(number)
        self._transaction.check("abort")
        ending = self._start_end(commit=False)
        await run_call("abort", lambda call: self._await(call, ending, raises=True), config=self._config, timeout=timeout)

    async def finish(self) -> None:
        """The producer closes: nothing begins any more, what is open is aborted unless it is prepared; wait until it has ended."""
        self._finished = True
        while True:
            if self._transaction.state in (_S.IN_TRANSACTION, _S.ABORTABLE_ERROR):
                self._start_end(commit=False)
            if self._ending is not None:
                await self._ending.settled()
            if self._transaction.state is not _S.ABORTABLE_ERROR:  # by the end of a commit that was waited for
                return

    # --- tasks -------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """The background work, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._failures.run)
            await self._add_partitions()

    async def _add_partitions(self) -> None:
        """Tell the coordinator of partitions before their first record (version 1)."""
        retry = Retry(self._config)
        while True:
            missing = self._transaction.missing
            if not missing or self._transaction.state is not _S.IN_TRANSACTION:
                await self._signals.wanted.wait()
                continue
            number = self._transaction.number
            self._transaction.adding()
            try:
                added, error = await self._coordinator.add_partitions(self._transaction.given, missing)
            except TrikafkaError as failure:
                added, error = [], failure
            if not self._is_open(number):
                continue
            self._transaction.added(added)
            if added:
                self._produce.admitted()
            if error is None:
                retry.reset()
                continue
            self._coordinator.failed(error)
            if not error.retriable:
                self._failures.broken("AddPartitionsToTxn", error)
            else:
                self._produce.delayed(error)
                await back_off(retry, error)

    def _start_end(self, *, commit: bool) -> Ending:
        """End the open transaction in the background, unless that is under way; returns the end."""
        transaction, ending = self._transaction, self._ending
        if ending is not None and ending.number == transaction.number and not ending.done.is_set():
            if commit and transaction.state is _S.UNDECIDED:
                transaction.committing()
            return ending
        ending = self._ending = Ending(transaction.number, commit, named=transaction.state is _S.PREPARED)
        if commit:
            transaction.committing()
        else:
            transaction.aborting()
        if (not commit and self._failures.begin_to_abort()) or transaction.started:
            self._start_soon(self._ends.carry_out, ending)
        else:
            transaction.ended()
            ending.done.set()
        return ending

    # --- parts -------------------------------------------------------------------------------------------------------

    def _same(self, number: int) -> None:
        if number != self._transaction.number:
            raise IllegalStateError("this transaction is over")

    def _is_open(self, number: int) -> bool:
        return number == self._transaction.number and self._transaction.state in (_S.IN_TRANSACTION, _S.ABORTABLE_ERROR)

    def _still(self, number: int) -> None:
        self._same(number)
        if self._transaction.state is not _S.IN_TRANSACTION:  # a commit that waits for these offsets is no hindrance
            self._transaction.check("send_offsets")

    def _over(self, number: int) -> Ending | None:
        """How transaction ``number`` ended, if it has and nothing came after it. The next epoch may still be missing."""
        ending = self._ending
        if ending is None or ending.number != number:
            return None
        return ending if ending.done.is_set() or self._transaction.state is _S.INITIALIZING else None

    async def _flush(self, call: Call, number: int) -> None:
        """Have all records and offsets delivered. Raises :exc:`TransactionAbortableError` as soon as one of them is not."""

        def check() -> None:
            over = self._over(number)
            if over is None or not over.commit:  # else another task's commit was as far before
                self._transaction.check("commit")

        async def watch() -> None:
            while self._transaction.state is _S.IN_TRANSACTION:
                await self._signals.changed.wait()
            check()

        async def deliver() -> None:
            await self._produce.drain()
            await self._offsets.ended()

        await call.wait(lambda: with_background([watch], deliver))
        check()

    async def _await(self, call: Call, ending: Ending, *, raises: bool = False) -> None:
        await call.wait(ending.settled)
        if raises and ending.error is not None:
            raise again(ending.error)

    def _cut_off(self, number: int, why: TrikafkaError) -> bool:
        """A commit was cut off. Returns whether the coordinator may have been asked for it, so that it is undecided."""
        ending = self._ending
        if ending is None or ending.number != number:
            return False
        ending.will_not_be_told()
        self._transaction.undecided(why)
        return True
