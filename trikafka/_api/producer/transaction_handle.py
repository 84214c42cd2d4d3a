"""The public transaction. The transaction manager does its work."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Protocol, runtime_checkable

import trio

from ..._net.deadlines import check_timeout
from ..._state.arguments import ToCommit, check_group, offsets_to_commit
from ..._state.producer.transaction_state import ProducerTransaction, TransactionState
from ...config import ProducerConfig
from ...errors import (
    ConfigurationError,
    IllegalStateError,
    KafkaTimeoutError,
    TransactionAbortableError,
    TransactionUndecidedError,
    TrikafkaError,
)
from ...interfaces import TransactionManager
from ...types import (
    DetachedTransaction,
    GroupMetadata,
    OffsetAndMetadata,
    PreparedTransaction,
    TopicPartition,
)
from ..client.service import CANCELLED_CLOSE_LIMIT, Service, run_shielded

_log = logging.getLogger("trikafka.transactions")


@runtime_checkable
class OffsetSource(Protocol):
    """A member of a group whose offsets a transaction can commit; :class:`Consumer` is one."""

    def offsets_for_transaction(
        self, offsets: ToCommit | None = None
    ) -> tuple[dict[TopicPartition, OffsetAndMetadata], Callable[[], GroupMetadata]]:
        """Return the offsets to commit, and a function that returns the membership of now.

        Args:
            offsets: The offsets; by default those after all records that were delivered.
        """


class Transaction:
    """A producer's transaction; made by :meth:`Producer.transaction`.

    ``read_committed`` readers see all of its records and offsets, or none. Use it with ``async
    with``. Records that any task sends through the producer inside the block belong to the
    transaction. The end of the block commits; an exception or a cancellation aborts. :meth:`commit`
    and :meth:`abort` do either earlier.
    """

    def __init__(
        self,
        manager: TransactionManager,
        state: ProducerTransaction,
        config: ProducerConfig,
        timeout: float | None,
        check_open: Callable[[], object],
        home: Service,
    ) -> None:
        self._manager = manager
        self._state = state
        self._config = config
        self._timeout = timeout
        self._check_open = check_open
        self._home = home
        self._number = 0  # 0: not begun
        self._lent = 0  # open blocks of lend()
        # Nothing is left to do for this transaction, or nothing that this object may do.
        self._over = False

    def __repr__(self) -> str:
        return (
            "<trikafka.Transaction of "
            f"{self._config.transactional_id!r}{' over' if self._over else ''}>"
        )

    async def __aenter__(self) -> Transaction:
        if self._number:
            raise IllegalStateError(
                "a transaction cannot begin twice: ask the producer for another"
            )
        self._check_open()
        self._number = await self._manager.begin(timeout=self._timeout)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._over:
            return
        if error is None:
            try:
                await self.commit()
            except TransactionUndecidedError:
                raise
            except BaseException as failed:
                await self._leave(failed)
                raise
        else:
            await self._leave(error)

    async def send_offsets(
        self,
        offsets: OffsetSource | ToCommit,
        group: OffsetSource | GroupMetadata | None = None,
        *,
        timeout: float | None = None,
    ) -> None:
        """Commit a consumer's position with this transaction, or not at all (KIP-447).

        The consumer must not commit itself: open it with ``enable_auto_commit=False``. When several
        tasks call this at once, the offsets of the last call stand.

        Args:
            offsets: The consumer, for the offsets after all records that it has delivered. Or what
                :meth:`Consumer.commit` takes; then ``group`` is required.
            group: The consumer, or what its :meth:`Consumer.group_metadata` returned.
            timeout: Seconds (default: ``default_api_timeout_ms``).

        Raises:
            ConfigurationError: The consumer has no ``group_id``, or auto commit is on.
            TransactionAbortableError: The offsets were refused. The cause is a
                :exc:`CommitFailedError` if the group has removed the consumer.
            KafkaTimeoutError: No answer in time.
            IllegalStateError: The transaction has not begun or is over.

        After an error of the broker, a timeout or a cancellation, the transaction can only be
        aborted.
        """
        check_timeout(timeout, 0.0)
        self._begun("send_offsets")
        todo, who = _offsets_of(offsets, group)
        if not todo:
            self._state.check("send_offsets")
            await trio.lowlevel.checkpoint()
            return
        await self._manager.send_offsets(self._number, todo, who, timeout=timeout)

    async def commit(self, *, timeout: float | None = None) -> None:
        """Deliver what was sent, and commit. The end of the block calls this, too.

        Args:
            timeout: Seconds (default: ``default_api_timeout_ms``).

        Raises:
            TransactionAbortableError: A record or an offset failed; the cause is chained.
            IllegalStateError: Another task has aborted the transaction, or a handler called this.
            ProducerFencedError: Another producer has this ``transactional_id`` now.
            TransactionFatalError: The producer can begin no further transaction.
            KafkaTimeoutError: Not all records were delivered in time.
            TransactionUndecidedError: Only the outcome did not arrive in time.

        When cancelled before all records are delivered, the transaction goes on as if this had not
        been called. After :exc:`TransactionUndecidedError`, and after a later cancellation, only
        ``commit`` may be called (again). A block that ends without an exception calls it again, too.
        A transaction that is prepared or detached stays so if the call is cancelled before it asks
        the coordinator.
        """
        check_timeout(timeout, 0.0)
        self._begun("commit")
        try:
            await self._manager.commit(self._number, timeout=timeout)
        finally:
            self._over = self._is_over()

    async def abort(self, *, timeout: float | None = None) -> None:
        """Abort: drop what was sent, or hide it from ``read_committed`` readers.

        Args:
            timeout: Seconds (default: ``default_api_timeout_ms``).

        Raises:
            TransactionUndecidedError: A commit was cut off before; its outcome is unknown.
            KafkaTimeoutError: The abort takes longer. It goes on in the background.

        When cancelled, the abort goes on in the background. The next transaction begins after it.
        """
        check_timeout(timeout, 0.0)
        self._begun("abort")
        try:
            await self._manager.abort(self._number, timeout=timeout)
        finally:
            self._over = self._is_over()

    async def prepare(self, *, timeout: float | None = None) -> PreparedTransaction:
        """Deliver everything and leave only the outcome open (KIP-939).

        The transaction then outlives this producer. Decide elsewhere, and call :meth:`commit` or
        :meth:`abort`; the end of the block does neither. After a restart, open the producer with
        ``commit_prepared=str(...)`` of the returned value to commit, and without that setting to
        abort.

        Args:
            timeout: Seconds (default: ``default_api_timeout_ms``).

        Returns:
            The producer id and epoch of the prepared transaction.

        Raises:
            ConfigurationError: The producer was not opened with ``two_phase_commit=True``.
            TrikafkaError: As :meth:`commit`.

        When cancelled, the transaction goes on as if this had not been called.
        """
        check_timeout(timeout, 0.0)
        self._begun("prepare")
        if not self._config.two_phase_commit:
            raise ConfigurationError(
                "prepare() needs a producer that was opened with two_phase_commit=True"
            )
        prepared = await self._manager.prepare(self._number, timeout=timeout)
        self._over = True
        return prepared

    async def detach(self, *, timeout: float | None = None) -> DetachedTransaction:
        """Deliver everything and leave the transaction open for another program to end.

        The other program calls :meth:`Admin.end_transaction` with the returned value. Its time is
        ``transaction_timeout_ms`` from the transaction's first record on; then the coordinator
        aborts. Opening a producer with this ``transactional_id`` aborts the transaction, too.

        After this, the end of the block does nothing, and neither does closing the producer. The
        producer takes no further transaction. :meth:`commit` and :meth:`abort` are still possible
        here.

        Args:
            timeout: Seconds (default: ``default_api_timeout_ms``).

        Returns:
            All that the other program needs to end the transaction.

        Raises:
            IllegalStateError: Nothing was sent.
            TrikafkaError: As :meth:`commit`.

        When cancelled, the transaction goes on as if this had not been called.
        """
        check_timeout(timeout, 0.0)
        self._begun("detach")
        try:
            prepared = await self._manager.prepare(self._number, timeout=timeout)
        except KafkaTimeoutError as error:
            raise KafkaTimeoutError(
                "detach", error.limit, error.attempts, error.last_error
            ) from error.__cause__
        if not self._state.started:
            raise IllegalStateError(
                "detach(): nothing was sent in this transaction, so there is nothing to end "
                "elsewhere"
            )
        self._over = True
        assert self._config.transactional_id is not None
        return DetachedTransaction(
            self._config.transactional_id, prepared.producer_id, prepared.epoch, self._state.version
        )

    @contextmanager
    def lend(self) -> Iterator[None]:
        """Lend the transaction to other code: it may fill the transaction, and not end it.

        Inside this block records and :meth:`send_offsets` are accepted as before. :meth:`commit`,
        :meth:`abort`, :meth:`prepare` and :meth:`detach` raise :exc:`IllegalStateError`, in any
        task. The lender ends the transaction after the block.
        """
        self._lent += 1
        try:
            yield
        finally:
            self._lent -= 1

    def _is_over(self) -> bool:
        """Return whether the end of the block has nothing left to do, after a commit or abort."""
        if self._state.number != self._number:
            return True
        # A call that was cut off before it asked the coordinator leaves the transaction prepared.
        # Another program may have recorded the decision by then, so the block must not abort.
        if self._state.state is TransactionState.PREPARED:
            return self._over
        # A commit that was cut off inside the block has no outcome yet, and the program may rely on
        # a block that ends without an exception. So the end asks for the outcome again.
        return (
            self._state.state not in _OPEN and self._state.state is not TransactionState.UNDECIDED
        )

    def _take_back(self) -> None:
        """Let the end of the block end the transaction in spite of :meth:`prepare` or `detach`.

        For a program that was cancelled before it got their result.
        """
        self._over = False

    async def _leave(self, error: BaseException) -> None:
        """Abort because the block ends with ``error``, even inside a cancelled scope.

        Failures of the abort are logged. The abort continues in the background after
        ``close_timeout_ms``, or after a second once a surrounding scope is cancelled.
        """
        if self._over or self._state.state not in _OPEN or self._state.number != self._number:
            return
        limit = (
            self._config.close_timeout_ms / 1000
            if isinstance(error, Exception)
            else CANCELLED_CLOSE_LIMIT
        )
        scope = trio.CancelScope(shield=True, deadline=trio.current_time() + limit)
        try:
            await run_shielded(scope, lambda: self.abort(timeout=limit))
            if scope.cancelled_caught:
                _log.warning("the transaction is still being aborted, in the background")
        except KafkaTimeoutError as late:
            _log.warning("the transaction is still being aborted: %s", late)
        except TrikafkaError as failed:
            if isinstance(error, TransactionAbortableError):
                raise failed from error  # the abort found a worse error
            _log.warning("the transaction was not aborted: %s", failed)

    def _begun(self, call: str) -> None:
        self._home.check()
        if self._lent and call != "send_offsets":
            raise IllegalStateError(
                f"{call}(): a handler does not end its transaction; return from it to go on, "
                "raise to abort"
            )
        if not self._number:
            raise IllegalStateError(
                f"{call}(): the transaction has not begun; use it as `async with "
                "producer.transaction() as txn`"
            )


_OPEN = frozenset(
    {TransactionState.IN_TRANSACTION, TransactionState.ABORTABLE_ERROR, TransactionState.PREPARED}
)


def _offsets_of(
    offsets: OffsetSource | ToCommit, group: OffsetSource | GroupMetadata | None
) -> tuple[dict[TopicPartition, OffsetAndMetadata], Callable[[], GroupMetadata]]:
    """Return the offsets, and a function that returns the membership."""
    if isinstance(offsets, OffsetSource):
        if group is not None and group is not offsets:
            raise ConfigurationError("send_offsets(consumer) is for the group of that consumer")
        return offsets.offsets_for_transaction()
    if isinstance(group, OffsetSource):
        return group.offsets_for_transaction(offsets)
    if isinstance(group, GroupMetadata):
        member = check_group(group)
        return offsets_to_commit(offsets), lambda: member
    raise TypeError(
        f"group must be the consumer, or what its group_metadata() returned, not {group!r}"
    )
