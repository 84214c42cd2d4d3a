"""What a worker does with one record: the user's handler, what follows when that fails, and the dead-letter topic.

A call that timed out is the task's to judge (:mod:`trikafka._state.task_timer`); everything else that a handler raises is judged
here: tried again where the policy says so, then written to the dead-letter topic, or raised.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from enum import Enum

import trio

from .._net.retry import backoff
from .._state.task_timer import timeout_in
from .._wire.columns import RecordBatch
from ..errors import (
    ArrowDeliveryError,
    ClientFailedError,
    ConfigurationError,
    ErrorCode,
    TransactionError,
    TrikafkaError,
    UnknownTopicOrPartitionError,
    from_code,
)
from ..types import Record, TopicPartition
from .callbacks import NotAsyncError, awaitable
from .dead_letters import dead_letter_headers
from .deserializing import DeserializedBatch
from .producer import Producer

_log = logging.getLogger("trikafka.tasks")
#: Of these no record is the reason: they come with the next one again, unless the policy knows better (a connection of the user's).
_NOT_THE_RECORDS = (trio.ClosedResourceError, trio.BrokenResourceError)


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Which errors of a handler may pass, and how often a record is tried: ``attempts`` in all.

    Between two of them the record's key (in a transaction: its partition) waits: ``backoff_ms``, then twice as long each time, up
    to ``backoff_max_ms``, give or take 20 %.
    """

    on: type[Exception] | tuple[type[Exception], ...]
    attempts: int = 5
    backoff_ms: float = 100
    backoff_max_ms: float = 10_000

    def __post_init__(self) -> None:
        kinds = self.on if isinstance(self.on, tuple) else (self.on,)
        if not kinds or not all(isinstance(kind, type) and issubclass(kind, Exception) for kind in kinds):
            raise ConfigurationError(f"on must be a class of errors, or a tuple of some, not {self.on!r}")
        if isinstance(self.attempts, bool) or not isinstance(self.attempts, int) or self.attempts < 1:
            raise ConfigurationError(f"attempts must be a whole number from 1, not {self.attempts!r}")
        for name, value in (("backoff_ms", self.backoff_ms), ("backoff_max_ms", self.backoff_max_ms)):
            if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
                raise ConfigurationError(f"{name} must be a number of milliseconds, at least 0, not {value!r}")


class Verdict(Enum):
    """What follows when a record's handler has failed."""

    TIMED_OUT = "a call timed out"
    AGAIN = "it is tried again"
    DEAD = "it goes to the dead-letter topic"
    RAISE = "it ends the run"


class Work:
    """One record, or one batch, on its way through the handler. Its judge writes ``attempts`` and ``dead``."""

    __slots__ = ("attempts", "dead", "item", "raw")

    def __init__(self, raw: Record | RecordBatch, item: Callable[[], Record | RecordBatch] | None = None) -> None:
        self.raw = raw  # with the bytes as they were written
        self.item = item  # makes what the handler gets of it
        self.attempts = 0  # that failed
        self.dead: Exception | None = None  # why it goes to the dead-letter topic

    @property
    def offset(self) -> int:
        """Where it begins."""
        return self.raw.offset if isinstance(self.raw, Record) else self.raw.offsets[0]

    def same(self, other: Work) -> bool:
        """Whether it is about the same records."""
        mine, its = self.raw, other.raw
        return isinstance(mine, Record) or (isinstance(its, RecordBatch) and mine.offsets[-1] == its.offsets[-1])

    @property
    def records(self) -> Iterable[Record]:
        """As they were written."""
        return (self.raw,) if isinstance(self.raw, Record) else raw_batch(self.raw)

    @property
    def partition(self) -> TopicPartition:
        """Where it comes from."""
        return TopicPartition(self.raw.topic, self.raw.partition)


class Handling:
    """The user's handler and what he says of its failures."""

    def __init__(
        self,
        handler: Callable[[Record], Awaitable[object]] | Callable[[RecordBatch], Awaitable[object]],
        retry: RetryPolicy | None,
        dead_letter: str | None,
        producer: Producer | None,
        group_id: str,
        by_batch: bool,
    ) -> None:
        self._handler: Callable[..., Awaitable[object]] = handler
        self._retry, self._dead_letter, self._producer, self._group_id = retry, dead_letter, producer, group_id
        self._in_transaction = producer is not None and producer._config.transactional_id is not None
        self.by_batch = by_batch

    def works(self, batch: RecordBatch) -> Iterable[Work]:
        """What there is to do in a batch, in order."""
        if self.by_batch:
            return (Work(batch),)
        if isinstance(batch, DeserializedBatch):
            apply = batch.deserialize
            return (Work(raw, lambda raw=raw: apply(raw)) for raw in raw_batch(batch))  # type: ignore[misc]
        return map(Work, batch)

    async def attempt(self, work: Work) -> None:
        """Handle it once, or once more; of one that is dead: write it to the dead-letter topic. Raises what goes wrong."""
        if work.dead is not None:
            await self._bury(work, work.dead)
            return
        called = self._handler(work.raw if work.item is None else work.item())
        await awaitable("handler", self._handler, called)

    def judge(self, work: Work, error: Exception) -> tuple[Verdict, float]:
        """An attempt failed. Returns what follows, and the seconds to wait before it."""
        if timeout_in(error) is not None:
            return Verdict.TIMED_OUT, 0.0
        if self._in_transaction and failed_transaction(error) is not None:
            _log.warning("%s is done again, for its transaction has failed: %s", _where(work), error)
            return Verdict.AGAIN, 0.0  # what it stands in has failed, not this record
        if work.dead is not None or getattr(error, "fatal", False) or isinstance(error, ClientFailedError | NotAsyncError):
            return Verdict.RAISE, 0.0
        work.attempts += 1
        policy = self._retry
        if policy is not None and isinstance(error, policy.on) and work.attempts < policy.attempts:
            delay = backoff(work.attempts, policy.backoff_ms, policy.backoff_max_ms)
            _log.info("%s is tried again in %.3g s: %r", _where(work), delay, error)
            return Verdict.AGAIN, delay
        if self._dead_letter is None or isinstance(error, _NOT_THE_RECORDS):
            return Verdict.RAISE, 0.0
        work.dead = error
        _log.warning("%s goes to %s after %s: %r", _where(work), self._dead_letter, _times(work.attempts), error)
        return Verdict.DEAD, 0.0

    async def _bury(self, work: Work, error: Exception) -> None:
        """Write it, and wait until it is there, or in the transaction."""
        assert self._producer is not None
        assert self._dead_letter is not None
        acks = []
        try:
            for record in work.records:
                headers = [*record.headers, *dead_letter_headers(record, error, attempts=work.attempts, group_id=self._group_id)]
                acks.append(await self._producer.enqueue(self._dead_letter, record.value, key=record.key, headers=headers))
            for ack in acks:
                await ack.wait()
        except UnknownTopicOrPartitionError:
            topic = self._dead_letter
            detail = f'the dead-letter topic {topic!r}; create it, or have run_tasks do it: topics={{"{topic}": NewTopic(1)}}'
            raise from_code(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, detail) from error


def failed_transaction(error: BaseException) -> TransactionError | None:
    """What says that the transaction has failed and no more: ``error``, or all that the tasks of a handler's nursery were told."""
    if isinstance(error, BaseExceptionGroup):
        found = [failed_transaction(inner) for inner in error.exceptions]
        return found[0] if all(found) else None
    if isinstance(error, ArrowDeliveryError):
        return failed_transaction(error.error)
    return error if isinstance(error, TransactionError) and not error.fatal else None


def raw_batch(batch: RecordBatch) -> RecordBatch:
    """The batch with the bytes as they were written."""
    if not isinstance(batch, DeserializedBatch):
        return batch
    return RecordBatch(batch.topic, batch.partition, batch.columns, batch.next_offset, batch.leader_epoch)


def explained(error: Exception, work: Work) -> Exception:
    """The error that ends a run, with a note that says at which record, and the handler's own as its cause if that is dead."""
    if isinstance(error, NotAsyncError) or (isinstance(error, TrikafkaError) and error.fatal):
        return error
    if work.dead is not None:
        error.add_note(f"raised while {_where(work)} was written to the dead-letter topic; its handler had raised {work.dead!r}")
        if error.__cause__ is None and error is not work.dead:
            error.__cause__ = work.dead
    else:
        error.add_note(f"raised by the handler for {_where(work)}, after which nothing more was taken")
    return error


def _times(attempts: int) -> str:
    return "1 attempt" if attempts == 1 else f"{attempts} attempts"


def _where(work: Work) -> str:
    if isinstance(work.raw, Record):
        return f"offset {work.offset} of {work.partition}"
    return f"the batch of offsets {work.offset} to {work.raw.offsets[-1]} of {work.partition}"
