"""A transaction as the user holds it. What it does lives in the transaction manager."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING

import trio

from .._net.deadlines import check_timeout
from .._state.arguments import check_group
from .._state.transaction import ProducerTransaction, TransactionState
from ..config import ProducerConfig
from ..errors import (
    ConfigurationError,
    IllegalStateError,
    KafkaTimeoutError,
    TransactionAbortableError,
    TransactionUndecidedError,
    TrikafkaError,
)
from ..interfaces import TransactionManager
from ..types import DetachedTransaction, GroupMetadata, OffsetAndMetadata, PreparedTransaction, TopicPartition
from .service import CANCELLED_CLOSE_LIMIT

if TYPE_CHECKING:
    from .committing import ToCommit
    from .consumer import Consumer

_log = logging.getLogger("trikafka.transactions")


class Transaction:
    """A transaction of a producer: all of its records and offsets are seen by ``read_committed`` readers, or none.

    Made by :meth:`Producer.transaction`, for ``async with``. What any task sends by the producer inside the block is part of it.
    The end of the block commits; an exception, or a cancellation, aborts. Either can be done before, by :meth:`commit` or
    :meth:`abort`.
    """

    def __init__(
        self,
        manager: TransactionManager,
        state: ProducerTransaction,
        config: ProducerConfig,
        timeout: float | None,
        check_open: Callable[[], object],
    ) -> None:
        self._manager, self._state, self._config, self._timeout = manager, state, config, timeout
        self._check_open = check_open
        self._number = 0  # not begun
        self._lent = False  # to somebody who must not end it
        self._over = False  # there is nothing to do for this one any more, or nothing that can be done here

    def __repr__(self) -> str:
        return f"<trikafka.Transaction of {self._config.transactional_id!r}{' over' if self._over else ''}>"

    async def __aenter__(self) -> Transaction:
        if self._number:
            raise IllegalStateError("a transaction cannot begin twice: ask the producer for another")
        self._check_open()
        self._number = await self._manager.begin(timeout=self._timeout)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
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
        offsets: Consumer | ToCommit,
        group: Consumer | GroupMetadata | None = None,
        *,
        timeout: float | None = None,
    ) -> None:
        """Make the position of a consumer part of this transaction (KIP-447): committed with it, or not at all.

        ``offsets`` is the consumer, for all that it has handed out; or what :meth:`Consumer.commit` takes, and then ``group`` is
        the consumer, or what its :meth:`Consumer.group_metadata` returned. The consumer must not commit by itself: open it with
        ``enable_auto_commit=False``, else :exc:`ConfigurationError` is raised. Of calls by several tasks at once, the last one's
        offsets stand.

        Raises :exc:`TransactionAbortableError` if it is refused, with :exc:`CommitFailedError` as the cause if the consumer is
        out of
        its group; :exc:`KafkaTimeoutError` past ``timeout`` seconds (default: ``default_api_timeout_ms``). After any of these,
        and when cancelled, the transaction can only be aborted.
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
        """Deliver what was sent, and commit. Also at the end of the block.

        Raises :exc:`TransactionAbortableError` if a record or an offset failed (the cause is chained),
        :exc:`ProducerFencedError` if
        another producer has this transactional id now, :exc:`TransactionFatalError`; :exc:`KafkaTimeoutError` if not all
        records are delivered within ``timeout`` seconds (default: ``default_api_timeout_ms``).
        :exc:`TransactionUndecidedError`: only the outcome did not come in time. Then, and after it was cancelled in that state,
        ``commit`` may be called again, and nothing else.
        """
        check_timeout(timeout, 0.0)
        self._begun("commit")
        try:
            await self._manager.commit(self._number, timeout=timeout)
        finally:
            self._over = self._state.state not in _OPEN or self._state.number != self._number

    async def abort(self, *, timeout: float | None = None) -> None:
        """Abort: what was sent is dropped, or seen by no ``read_committed`` reader.

        Raises :exc:`TransactionUndecidedError` after a commit that was cut off, :exc:`KafkaTimeoutError` past ``timeout``
        seconds. Then, and when cancelled, it goes on in the background; the next transaction begins after it.
        """
        check_timeout(timeout, 0.0)
        self._begun("abort")
        try:
            await self._manager.abort(self._number, timeout=timeout)
        finally:
            self._over = self._state.state not in _OPEN or self._state.number != self._number

    async def prepare(self, *, timeout: float | None = None) -> PreparedTransaction:
        """Have everything at the brokers, so that the transaction outlives this producer and only its outcome is missing (KIP-939).

        Then decide elsewhere, and :meth:`commit` or :meth:`abort`; the end of the block does neither after this. After a restart
        open the
        producer with ``commit_prepared=str(...)`` of what this returned if it is to be committed, and without that if not. Raises
        as :meth:`commit`; :exc:`ConfigurationError` without ``two_phase_commit=True``.
        """
        check_timeout(timeout, 0.0)
        self._begun("prepare")
        if not self._config.two_phase_commit:
            raise ConfigurationError("prepare() needs a producer that was opened with two_phase_commit=True")
        prepared = await self._manager.prepare(self._number, timeout=timeout)
        self._over = True
        return prepared

    async def detach(self, *, timeout: float | None = None) -> DetachedTransaction:
        """Have everything at the brokers and leave the transaction open, so that another program ends it.

        That one calls :meth:`Admin.end_transaction` with what this returned, within ``transaction_timeout_ms`` of the transaction's
        first record: then the coordinator aborts it. Opening a producer with this transactional id aborts it, too. The end of the
        block does nothing after this, and neither does closing the producer, which takes no further transaction; :meth:`commit` and
        :meth:`abort` are still possible here. Raises as :meth:`commit`; :exc:`IllegalStateError` if nothing was sent. Cancelled, it
        is as if it had not been called.
        """
        check_timeout(timeout, 0.0)
        self._begun("detach")
        try:
            prepared = await self._manager.prepare(self._number, timeout=timeout)
        except KafkaTimeoutError as error:
            raise KafkaTimeoutError("detach", error.limit, error.attempts, error.last_error) from error.__cause__
        if not self._state.started:
            raise IllegalStateError("detach(): nothing was sent in this transaction, so there is nothing to end elsewhere")
        self._over = True
        assert self._config.transactional_id is not None
        return DetachedTransaction(self._config.transactional_id, prepared.producer_id, prepared.epoch, self._state.version)

    @contextmanager
    def _lend(self) -> Iterator[None]:
        """Until the end of this block more may become part of it, but it is not to be ended: who lends it does that."""
        self._lent = True
        try:
            yield
        finally:
            self._lent = False

    async def _leave(self, error: BaseException) -> None:
        """The block ends with ``error``: abort, however much is being cancelled around. What goes wrong is logged."""
        if self._over or self._state.state not in _OPEN or self._state.number != self._number:
            return
        limit = self._config.close_timeout_ms / 1000 if isinstance(error, Exception) else CANCELLED_CLOSE_LIMIT
        try:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + limit):
                await self.abort(timeout=limit)
        except KafkaTimeoutError as late:
            _log.warning("the transaction is still being aborted: %s", late)
        except TrikafkaError as failed:
            if isinstance(error, TransactionAbortableError):
                raise failed from error  # the abort told that it is worse
            _log.warning("the transaction was not aborted: %s", failed)

    def _begun(self, call: str) -> None:
        if self._lent and call != "send_offsets":
            raise IllegalStateError(f"{call}(): a handler does not end its transaction; return from it to go on, raise to abort")
        if not self._number:
            raise IllegalStateError(
                f"{call}(): the transaction has not begun; use it as `async with producer.transaction() as txn`"
            )


_OPEN = frozenset({TransactionState.IN_TRANSACTION, TransactionState.ABORTABLE_ERROR, TransactionState.PREPARED})


def _offsets_of(
    offsets: Consumer | ToCommit, group: Consumer | GroupMetadata | None
) -> tuple[dict[TopicPartition, OffsetAndMetadata], Callable[[], GroupMetadata]]:
    """The offsets, and how to learn as which member."""
    from .committing import offsets_to_commit
    from .consumer import Consumer

    if isinstance(offsets, Consumer):
        if group is not None and group is not offsets:
            raise ConfigurationError("send_offsets(consumer) is for the group of that consumer")
        return offsets.offsets_for_transaction()
    if isinstance(group, Consumer):
        return group.offsets_for_transaction(offsets)
    if isinstance(group, GroupMetadata):
        member = check_group(group)
        return offsets_to_commit(offsets), lambda: member
    raise TypeError(f"group must be the consumer, or what its group_metadata() returned, not {group!r}")
