"""The records of a transaction that cannot be committed any more: they fail at once.

Many records fail in steps, between which other tasks run.
"""

from __future__ import annotations

import trio

from ..._state.producer.transaction_state import ProducerTransaction, TransactionState
from ...errors import (
    KafkaTimeoutError,
    TransactionAbortableError,
    TransactionUndecidedError,
    TrikafkaError,
)
from ...errors.copies import again
from ...interfaces import ProduceManager
from .transaction_signals import ProducerTransactionSignals

#: How many batches fail before other tasks run.
_STEP = 1_000
_S = TransactionState


class TransactionFailures:
    """The part of the transaction manager that fails records."""

    def __init__(
        self,
        produce: ProduceManager,
        transaction: ProducerTransaction,
        signals: ProducerTransactionSignals,
    ) -> None:
        self._produce = produce
        self._transaction = transaction
        self._signals = signals

    def broken(self, what: str, error: TrikafkaError) -> Exception:
        """Record a permanent refusal of a request; return the error to raise.

        The transaction can only be aborted, or the producer cannot go on if the error is fatal.
        """
        if error.fatal:
            self._transaction.ruined(error)
            assert self._transaction.error is not None
            return again(self._transaction.error)
        failed = TransactionAbortableError(
            f"{what} was refused, so the transaction can only be aborted: {error}"
        )
        failed.__cause__ = error
        self._transaction.failed(failed)
        return failed

    async def fail_records(self) -> None:
        """Fail the unsent records of a failed transaction, and all records of a failed producer.

        A batch of a failed transaction that was sent gets its outcome from the broker.
        """
        while True:
            seen = self._seen()
            error = self._transaction.error
            if error is not None and seen[1] in (_S.ABORTABLE_ERROR, _S.FATAL_ERROR):
                error = self._for_records(error)
                unsent = seen[1] is _S.ABORTABLE_ERROR
                # If the state has changed, an abort fails the rest.
                while self._seen() == seen and self._produce.drop(error, _STEP, unsent=unsent):
                    await trio.lowlevel.checkpoint()
            if self._seen() == seen:
                await self._signals.changed.wait()

    def _seen(self) -> tuple[int, TransactionState]:
        return self._transaction.number, self._transaction.state

    def _for_records(self, error: Exception) -> Exception:
        if (
            isinstance(error, TransactionAbortableError)
            or self._transaction.state is _S.FATAL_ERROR
        ):
            return again(error)
        failed = TransactionAbortableError(
            f"the transaction has failed, and can only be aborted: {error}"
        )
        failed.__cause__ = error
        return failed

    def begin_to_abort(self) -> bool:
        """Fail the records of an aborted transaction, as many as one step may.

        Returns whether some are left.
        """
        return self._produce.drop(TransactionAbortableError("the transaction was aborted"), _STEP)

    async def abort_all(self) -> None:
        """Fail all records of an aborted transaction."""
        while self.begin_to_abort():
            await trio.lowlevel.checkpoint()


def over_at_broker(error: TrikafkaError) -> TransactionAbortableError:
    """Return the error for a part of a transaction that a broker refuses because of its epoch.

    Leaders of partitions and coordinators of groups do not know whether another producer has taken
    over, or whether the transaction has timed out. The abort asks the coordinator, which knows.
    """
    failed = TransactionAbortableError(
        "the transaction is over at the broker: either it was open for longer than "
        "transaction_timeout_ms, or another producer has this transactional id. Its abort shows "
        f"which: {error}"
    )
    failed.__cause__ = error
    return failed


def undecided(error: KafkaTimeoutError) -> TransactionUndecidedError:
    """Return the error for a commit that has run out of time."""
    text = (
        f"{error}; whether the transaction is committed is not known yet, and only commit() may "
        "be tried again"
    )
    return TransactionUndecidedError(
        text, error.limit, error.attempts, error.last_error, error.call
    )
