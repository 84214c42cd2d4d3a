"""What becomes of the records of a transaction that cannot be committed any more: they fail at once, whoever waits for them.

Many fail in steps, between which other tasks run.
"""

from __future__ import annotations

import trio

from .._state.transaction import ProducerTransaction, TransactionState
from ..errors import KafkaTimeoutError, TransactionAbortableError, TransactionUndecidedError, TrikafkaError
from ..errors.copies import again
from ..interfaces import ProduceManager
from .transaction_signals import TransactionSignals

#: How many batches fail before other tasks run.
_STEP = 1_000
_S = TransactionState


class TransactionFailures:
    """A part of the transaction manager."""

    def __init__(self, produce: ProduceManager, transaction: ProducerTransaction, signals: TransactionSignals) -> None:
        self._produce, self._transaction, self._signals = produce, transaction, signals

    def broken(self, what: str, error: TrikafkaError) -> Exception:
        """Something was refused for good: the transaction, or the producer, is at its end. Returns what to raise."""
        if error.fatal:
            self._transaction.ruined(error)
            assert self._transaction.error is not None
            return again(self._transaction.error)
        failed = TransactionAbortableError(f"{what} was refused, so the transaction can only be aborted: {error}")
        failed.__cause__ = error
        self._transaction.failed(failed)
        return failed

    async def run(self) -> None:
        """Fail what was never sent of a transaction that has failed, and all that a producer has that is of no use any more.

        What was sent once of a failed transaction has its outcome from the broker.
        """
        while True:
            seen, error = self._seen(), self._transaction.error
            if error is not None and seen[1] in (_S.ABORTABLE_ERROR, _S.FATAL_ERROR):
                error, unsent = self._for_records(error), seen[1] is _S.ABORTABLE_ERROR
                while self._seen() == seen and self._produce.drop(error, _STEP, unsent=unsent):  # else an abort is at it
                    await trio.lowlevel.checkpoint()
            if self._seen() == seen:
                await self._signals.changed.wait()

    def _seen(self) -> tuple[int, TransactionState]:
        return self._transaction.number, self._transaction.state

    def _for_records(self, error: Exception) -> Exception:
        if isinstance(error, TransactionAbortableError) or self._transaction.state is _S.FATAL_ERROR:
            return again(error)
        failed = TransactionAbortableError(f"the transaction has failed, and can only be aborted: {error}")
        failed.__cause__ = error
        return failed

    def begin_to_abort(self) -> bool:
        """Fail what a transaction has that is being aborted, as much as one step may; returns whether something is left."""
        return self._produce.drop(TransactionAbortableError("the transaction was aborted"), _STEP)

    async def abort_all(self) -> None:
        """Fail all of it."""
        while self.begin_to_abort():
            await trio.lowlevel.checkpoint()


def undecided(error: KafkaTimeoutError) -> TransactionUndecidedError:
    """What to raise of a commit that has run out of time."""
    text = f"{error}; whether the transaction is committed is not known yet, and only commit() may be tried again"
    return TransactionUndecidedError(text, error.limit, error.attempts, error.last_error, error.call)
