"""How long a task has made no progress since one of its calls timed out (KIP-572, seed 004). No I/O; the clock is the caller's.

A task may wait for its brokers as long as it likes, for each call has its own limit. The timer begins with the first of these that
passes, and any progress ends it. So work that is slow and succeeds never meets it, and a task that is stuck is not tried for ever.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..errors import ArrowDeliveryError, KafkaTimeoutError, OutOfOrderSequenceError, TransactionAbortableError


class TaskTimer:
    """The timer of one task. Written by who runs that task, through these methods alone."""

    __slots__ = ("_limit_ms", "_since", "first")

    def __init__(self, timeout_ms: float) -> None:
        self._limit_ms = timeout_ms
        self._since = 0.0
        self.first: KafkaTimeoutError | None = None  # what started it; None: it does not run

    def timed_out(self, error: KafkaTimeoutError, now: float) -> bool:
        """A call timed out at ``now`` (seconds). True: that was the last attempt, and :meth:`last_word` is to be raised.

        What times out at the very millisecond at which the time is up is tried again; one past it was the last attempt. So a
        task has always at least two, unless ``timeout_ms`` is 0.
        """
        if self.first is None:
            self.first, self._since = error, now
            return self._limit_ms == 0
        return int((now - self._since) * 1000 + 1e-3) > self._limit_ms  # whole milliseconds, as Kafka's clocks count

    def last_word(self, error: KafkaTimeoutError) -> KafkaTimeoutError:
        """The last attempt's error, with the first one as its cause. (What it had as its cause is in ``last_error``.)"""
        if self.first is not None and self.first is not error:
            error.__cause__ = self.first
        return error

    def progressed(self) -> None:
        """Something succeeded."""
        self.first = None


def timeout_in(error: BaseException) -> KafkaTimeoutError | None:
    """The time-out that ``error`` is: a call's, those of a nursery's tasks and nothing else, or what made a transaction fail.

    Or what became of a record, or of the first of a table that failed: one that had to be given up since it stands behind one that
    expired is late as that one is.
    """
    if isinstance(error, KafkaTimeoutError):
        return error
    if isinstance(error, TransactionAbortableError | OutOfOrderSequenceError | ArrowDeliveryError):
        return next((cause for cause in _causes(error) if isinstance(cause, KafkaTimeoutError)), None)
    if isinstance(error, BaseExceptionGroup):
        found = [timeout_in(inner) for inner in error.exceptions]
        return found[0] if all(found) else None
    return None


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen = {id(error)}
    cause = error.__cause__
    while cause is not None and id(cause) not in seen:
        yield cause
        seen.add(id(cause))
        cause = cause.__cause__
