"""The time without progress of a task since one of its calls timed out (KIP-572).

No I/O; the caller gives the time.

A task may wait for its brokers as long as it needs, since each call has a limit of its own. The
timer starts with the first call that times out, and any progress stops the timer. So slow work that
succeeds never meets the limit, and a task that is stuck is not retried for ever.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..errors import (
    ArrowDeliveryError,
    KafkaTimeoutError,
    OutOfOrderSequenceError,
    TransactionAbortableError,
)
from ..errors.groups import members


class TaskTimer:
    """The timer of one task, written by the code that runs the task through these methods alone."""

    __slots__ = ("_limit_ms", "_since", "first")

    def __init__(self, timeout_ms: float) -> None:
        self._limit_ms = timeout_ms
        self._since = 0.0
        #: The time-out that started the timer; ``None``: the timer does not run.
        self.first: KafkaTimeoutError | None = None

    def timed_out(self, error: KafkaTimeoutError, now: float) -> bool:
        """Record that a call timed out at ``now`` (seconds); return whether to stop trying.

        ``True``: that was the last attempt, and the caller raises :meth:`final_error`. A time-out at
        the very millisecond of the limit is retried; one past it was the last attempt. So a task
        has at least two attempts, unless ``timeout_ms`` is 0.
        """
        if self.first is None:
            self.first = error
            self._since = now
            return self._limit_ms == 0
        # Whole milliseconds, as Kafka's clocks count.
        return int((now - self._since) * 1000 + 1e-3) > self._limit_ms

    def final_error(self, error: KafkaTimeoutError) -> KafkaTimeoutError:
        """Return the last attempt's error with the first one as its cause.

        The cause that the error had is in its ``last_error``.
        """
        if self.first is not None and self.first is not error:
            error.__cause__ = self.first
        return error

    def progressed(self) -> None:
        """Stop the timer: the task made progress."""
        self.first = None


def timeout_in(error: BaseException) -> KafkaTimeoutError | None:
    """Return the time-out in ``error``; ``None``: it is, or has, another failure.

    A time-out is a call's own, or the cause of a failed transaction. It may also be the cause of a
    failed record (or the first of a table): a record that failed because an earlier one expired is
    as late as that one. In a group all members must be time-outs.
    """
    found = [_timeout(member) for member in members(error)]
    return found[0] if all(found) else None


def _timeout(error: BaseException) -> KafkaTimeoutError | None:
    if isinstance(error, KafkaTimeoutError):
        return error
    if isinstance(error, TransactionAbortableError | OutOfOrderSequenceError | ArrowDeliveryError):
        return next(
            (cause for cause in causes(error) if isinstance(cause, KafkaTimeoutError)), None
        )
    return None


def causes(error: BaseException) -> Iterator[BaseException]:
    """Yield the cause of an error, the cause of that, and so on; each once.

    A user's ``raise error from error`` makes a circle of causes.
    """
    seen = {id(error)}
    cause = error.__cause__
    while cause is not None and id(cause) not in seen:
        yield cause
        seen.add(id(cause))
        cause = cause.__cause__
