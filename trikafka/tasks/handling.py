"""A record and the user's handler: the attempt, the judgement of a failure, the dead letter.

A timeout is judged by the task's timer (:mod:`trikafka.tasks.timer`). Every other error of a
handler is judged here: it is retried where the policy allows, then written to the dead-letter
topic, or raised.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Container, Iterable
from dataclasses import dataclass
from enum import Enum
from functools import partial

import trio

from .. import Consumer, Producer, RecordBatch
from ..config.whole import is_number, is_whole
from ..errors import (
    ArrowDeliveryError,
    AuthenticationError,
    AuthorizationError,
    ClientFailedError,
    ConfigurationError,
    DeserializationError,
    ErrorCode,
    IllegalStateError,
    RecordTooLargeError,
    TransactionError,
    TrikafkaError,
    UnknownTopicOrPartitionError,
    from_code,
)
from ..errors.counts import counted
from ..errors.cut_off import await_user_call
from ..errors.groups import members, outlined
from ..errors.notes import note_how_to_skip
from ..toolkit import backoff
from ..types import Record, TopicPartition
from .callbacks import NotAsyncError, called
from .dead_letters import DeadLetter, Letter, about_error, coordinates
from .timer import timeout_in
from .tracebacks import Tracebacks

_log = logging.getLogger("trikafka.tasks")
#: Errors that the next record would meet, too. The retry policy may name them nevertheless (a
#: connection of the user's own).
_NOT_THE_RECORDS = (trio.ClosedResourceError, trio.BrokenResourceError, AuthenticationError)


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """The errors of a handler that may be retried, and how often.

    Between two attempts the record's key waits (in a transaction: its partition). Other keys go on.

    Attributes:
        on: A class of errors, or a tuple of classes. A group of exceptions counts if all of its
            members do.
        attempts: All attempts of a record, the first one included.
        backoff_ms: The first wait, in milliseconds. Each further wait is twice as long, give or
            take 20 %.
        backoff_max_ms: The longest wait, in milliseconds.
    """

    on: type[Exception] | tuple[type[Exception], ...]
    attempts: int = 5
    backoff_ms: float = 100
    backoff_max_ms: float = 10_000

    def __post_init__(self) -> None:
        kinds = self.on if isinstance(self.on, tuple) else (self.on,)
        if not kinds or not all(
            isinstance(kind, type) and issubclass(kind, Exception) for kind in kinds
        ):
            raise ConfigurationError(
                f"on must be a class of errors, or a tuple of some, not {self.on!r}"
            )
        if not is_whole(self.attempts, 1):
            raise ConfigurationError(
                f"attempts must be a whole number from 1, not {self.attempts!r}"
            )
        for name, value in (
            ("backoff_ms", self.backoff_ms),
            ("backoff_max_ms", self.backoff_max_ms),
        ):
            if not is_number(value) or not value >= 0:
                raise ConfigurationError(
                    f"{name} must be a number of milliseconds, at least 0, not {value!r}"
                )


class FailureAction(Enum):
    """The consequence of a failed attempt."""

    TIMED_OUT = "a call timed out"
    AGAIN = "it is tried again"
    SHORTER = "its dead letter was too large, and has been shortened or skipped"
    DEAD = "it goes to the dead-letter topic"
    RAISE = "it ends the run"


class RecordAttempt:
    """A record, or a batch, with the state of its attempts.

    Only :class:`Handling` writes to it.
    """

    __slots__ = ("attempts", "batch", "begun", "dead", "letters", "raw", "shortened")

    def __init__(self, raw: Record | RecordBatch, batch: RecordBatch | None = None) -> None:
        self.raw = raw  # with the bytes as they were written
        self.batch = batch  # the batch that deserializes the record
        self.begun = False  # True from the first attempt on
        self.attempts = 0  # the failed attempts
        self.dead: Exception | None = None  # why the record goes to the dead-letter topic
        self.letters: list[Letter] = []  # the records for the dead-letter topic
        # A letter was refused since the last judgement, and has been shortened.
        self.shortened = False

    @property
    def argument(self) -> Record | RecordBatch:
        """The handler's argument.

        Raises:
            DeserializationError: The record cannot be deserialized.
        """
        if self.batch is None or isinstance(self.raw, RecordBatch):
            return self.raw
        return self.batch.deserialize(self.raw)

    async def deserialize_again(self) -> None:
        """Call an async deserializer again, if it has failed."""
        if isinstance(self.raw, RecordBatch):
            self.raw = await self.raw.deserialized_again()
        elif self.batch is not None:
            self.batch = await self.batch.deserialized_again()

    @property
    def offset(self) -> int:
        """The first offset."""
        return self.raw.offset if isinstance(self.raw, Record) else self.raw.offsets[0]

    def same(self, other: RecordAttempt) -> bool:
        """Return whether work that begins at the same offset has the same records."""
        mine, its = self.raw, other.raw
        return isinstance(mine, Record) or (
            isinstance(its, RecordBatch) and mine.offsets[-1] == its.offsets[-1]
        )

    @property
    def records(self) -> Iterable[Record]:
        """The records with their bytes as written."""
        return (self.raw,) if isinstance(self.raw, Record) else self.raw.raw

    @property
    def partition(self) -> TopicPartition:
        """The partition of the records."""
        return TopicPartition(self.raw.topic, self.raw.partition)


class Handling:
    """The user's handler, and the user's settings for its failures."""

    def __init__(
        self,
        handler: Callable[[Record], Awaitable[object]] | Callable[[RecordBatch], Awaitable[object]],
        retry: RetryPolicy | None,
        dead_letter: DeadLetter | None,
        consumer: Consumer,
        producer: Producer | None,
        by_batch: bool,
    ) -> None:
        assert consumer.config.group_id is not None
        self._consumer = consumer
        self._handler: Callable[..., Awaitable[object]] = handler
        self._retry = retry
        self._dead_letter = dead_letter
        self._producer = producer
        self._group_id = consumer.config.group_id
        self._in_transaction = producer is not None and producer.config.transactional_id is not None
        self._tracebacks = Tracebacks()
        self.by_batch = by_batch

    def works(self, batch: RecordBatch) -> Iterable[RecordAttempt]:
        """Return the units of work in a batch, in order."""
        if self.by_batch:
            # Detached, because a record that cannot be deserialized must not move the partition's
            # position: the run retries the record, or writes it as a dead letter.
            return (RecordAttempt(batch.detached()),)
        if (raw := batch.raw) is not batch:
            return (RecordAttempt(each, batch) for each in raw)
        return map(RecordAttempt, batch)

    def check_not_read(self, topics: Container[str]) -> None:
        """Raise :exc:`ConfigurationError` if dead letters go to one of the topics that are read.

        A topic of the same name in another cluster is another topic.
        """
        if self._dead_letter is None or self._producer is None:
            return
        clusters = {self._consumer.cluster_id, self._producer.cluster_id} - {None}
        if len(clusters) < 2:
            self._dead_letter.check_not_read(topics)

    async def attempt(self, work: RecordAttempt) -> None:
        """Call the handler once; for a record judged dead, write its dead letter.

        Raises:
            Exception: The error of the handler, or of the dead letter.
        """
        if work.dead is not None:
            await self._send_to_dead_letter(work, work.dead)
            return
        await await_user_call(f"the handler of {_where(work)}", partial(self._call, work), _log)

    async def _call(self, work: RecordAttempt) -> None:
        if work.begun:
            await work.deserialize_again()
        work.begun = True
        await called("handler", self._handler, work.argument)

    def classify_failure(
        self, work: RecordAttempt, error: Exception
    ) -> tuple[FailureAction, float]:
        """Judge a failed attempt.

        A handler with a nursery raises a group. The group is as fatal as its worst member, and as
        retriable as its least retriable one. One closed client among three lost connections ends
        the run; one bad value among them is not retried.

        Returns:
            What follows, and the seconds to wait before it.
        """
        # The order of the checks is the policy:
        #
        # 1. A timeout says nothing of the record: the broker did not answer. The task's timer
        #    bounds it, not the attempts (KIP-572).
        # 2. A fatal error (a closed client, a fenced producer, a handler that is not async) meets
        #    every record. A dead letter for each of them would drain the partition into the
        #    dead-letter topic.
        # 3. A dead letter that was refused as too large has been shortened, and is written again.
        # 4. A failed transaction fails each call in it. The record is handled again in the next
        #    transaction, without counting an attempt.
        # 5. An error while the dead letter is written ends the run: there is no place left for the
        #    record.
        # 6. Then the user's policy, then the dead-letter topic, unless the next record would fail
        #    in the same way.
        if timeout_in(error) is not None:
            return FailureAction.TIMED_OUT, 0.0
        if any(map(is_fatal, members(error))):
            return FailureAction.RAISE, 0.0
        if work.shortened:
            work.shortened = False
            return FailureAction.SHORTER, 0.0
        if self._in_transaction and failed_transactions(error):
            _log.warning(
                "%s is handled again, because its transaction has failed: %s",
                _where(work),
                outlined(error),
            )
            return FailureAction.AGAIN, 0.0
        if work.dead is not None:
            return FailureAction.RAISE, 0.0
        work.attempts += 1
        policy = self._retry
        if (
            policy is not None
            and self._retriable(error, policy)
            and work.attempts < policy.attempts
        ):
            delay = backoff(work.attempts, policy.backoff_ms, policy.backoff_max_ms)
            _log.info("%s is tried again in %.3g s: %r", _where(work), delay, error)
            return FailureAction.AGAIN, delay
        if self._dead_letter is None or any(map(self._meets_every_record, members(error))):
            return FailureAction.RAISE, 0.0
        work.dead = error
        # Once, and the records of a batch share the bytes: a traceback for each of them would take
        # hundreds of megabytes.
        about = about_error(error, work.attempts, self._group_id)
        work.letters = [Letter(record, [*coordinates(record), *about]) for record in work.records]
        others = self._tracebacks.others_until_due(error, trio.current_time())
        more = f" ({others} more failed there since the last traceback)" if others else ""
        _log.warning(
            "%s goes to %s after %s: %r%s",
            _where(work),
            self._dead_letter.topic,
            counted(work.attempts, "attempt"),
            error,
            more,
            exc_info=None if others is None else error,
        )
        return FailureAction.DEAD, 0.0

    # What a transaction does not allow (consumer.commit(), a second transaction), it allows for no
    # record. Dead letters would drain the topic, and commit it.
    def _meets_every_record(self, member: BaseException) -> bool:
        """Return whether the next record would meet the same error."""
        return is_not_the_records(member) or (
            self._in_transaction and isinstance(member, IllegalStateError)
        )

    def _retriable(self, error: Exception, policy: RetryPolicy) -> bool:
        """Return whether the policy allows another attempt after this error.

        The policy names the error itself (perhaps a class of groups), or each of its members may
        succeed in another attempt. A timeout or a failed transaction beside a named error does not
        make a group less retriable.
        """
        return isinstance(error, policy.on) or all(
            isinstance(member, policy.on) or self._is_no_fault(member) for member in members(error)
        )

    def _is_no_fault(self, member: BaseException) -> bool:
        """Return whether an error is a timeout or a failed transaction, no fault of the record."""
        return timeout_in(member) is not None or (
            self._in_transaction and failed_transaction(member) is not None
        )

    async def _send_to_dead_letter(self, work: RecordAttempt, error: Exception) -> None:
        """Write the dead letters, and wait until the broker has acknowledged them.

        Letters that are written already are not written again, except in a transaction, whose
        repetition writes all of them.
        """
        assert self._producer is not None
        assert self._dead_letter is not None
        topic, acks = self._dead_letter.topic, []
        try:  # Since the start, a topic that a pattern matches may have been created.
            self.check_not_read([record.topic for record in work.records])
        except ConfigurationError as reads_itself:
            raise reads_itself from error
        refused: RecordTooLargeError | None = None
        try:
            for letter in work.letters:
                if not letter.open:
                    continue
                try:
                    ack = await self._producer.enqueue(
                        topic, letter.value, key=letter.key, headers=letter.headers
                    )
                    acks.append((letter, ack))
                except RecordTooLargeError as too_large:
                    refused = self._shorten(work, letter, too_large)
            for letter, ack in acks:
                try:
                    await ack.wait()
                except RecordTooLargeError as too_large:
                    refused = self._shorten(work, letter, too_large)
                else:
                    if not self._in_transaction:
                        letter.close()
        except UnknownTopicOrPartitionError:
            detail = (
                f"the dead-letter topic {topic!r}; create it, or have run_tasks do it: "
                f'topics={{"{topic}": NewTopic(1)}}'
            )
            raise from_code(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, detail) from error
        if refused is not None:
            raise refused

    def _shorten(
        self, work: RecordAttempt, letter: Letter, refused: RecordTooLargeError
    ) -> RecordTooLargeError:
        """Shorten a letter that was refused as too large, or skip it.

        In a transaction the refusal has failed the whole transaction. So ``refused`` is raised at
        once, without a wait for the other letters, and the round is repeated.

        Returns:
            ``refused``, to be raised when the other letters are written.

        Raises:
            RecordTooLargeError: ``refused``, in a transaction, or if the policy is to raise and the
                letter had no traceback to leave out.
        """
        assert self._dead_letter is not None
        how = self._dead_letter.too_large
        topic = self._dead_letter.topic
        if letter.drop_traceback():
            if self._in_transaction:
                # Each refusal costs a round. The other letters have the same traceback.
                for other in work.letters:
                    other.drop_traceback()
            _log.warning(
                "%s is too large for %s, and goes there without its traceback: %s",
                letter.where,
                topic,
                refused,
            )
        elif how == "raise":
            raise refused
        elif how == "truncate" and letter.shorten():
            kept = f"{len(letter.value or b'')} of the {letter.size} bytes of its value"
            _log.warning(
                "%s is too large for %s, and goes there with %s: %s",
                letter.where,
                topic,
                kept,
                refused,
            )
        else:
            letter.close()
            _log.error("%s is too large for %s, and is skipped: %s", letter.where, topic, refused)
        work.shortened = True
        if self._in_transaction:
            raise refused
        return refused


def failed_transaction(error: BaseException) -> TransactionError | None:
    """Return the error of a failed transaction, or ``None`` for any other error.

    The error of a table counts by its first failure.
    """
    if isinstance(error, ArrowDeliveryError):
        return failed_transaction(error.error)
    return error if isinstance(error, TransactionError) and not error.fatal else None


def failed_transactions(error: BaseException) -> list[TransactionError]:
    """Return the failed-transaction error of each member of a group.

    The list is empty if a member is another error. Timeouts are left out: the tasks of a handler's
    nursery all meet the same failed transaction, and one of them may time out meanwhile.
    """
    found = [failed_transaction(member) for member in members(error)]
    others = [
        member for member, failed in zip(members(error), found, strict=True) if failed is None
    ]
    if any(timeout_in(member) is None for member in others):
        return []
    return [failed for failed in found if failed is not None]


def is_fatal(member: BaseException) -> bool:
    """Return whether every record would meet this error, such as that of a closed client."""
    if isinstance(member, TrikafkaError) and member.fatal:
        return True
    return isinstance(member, ClientFailedError | NotAsyncError)


def is_not_the_records(member: BaseException) -> bool:
    """Return whether the next record would meet the same error.

    Of authorization errors only a topic's may concern the record alone: the handler may choose the
    topic by the record.
    """
    if isinstance(member, AuthorizationError):
        return member.code != ErrorCode.TOPIC_AUTHORIZATION_FAILED
    return isinstance(member, _NOT_THE_RECORDS)


def explained(error: Exception, work: RecordAttempt, *, at_work: bool = False) -> Exception:
    """Add a note with the record to an error that ends the run; return the error.

    ``at_work``: after the run the consumer's position is at the start of the work. If the record
    was judged dead, its handler's error becomes the cause. A fatal error concerns every record, so
    it gets no note.
    """
    if isinstance(error, NotAsyncError) or (isinstance(error, TrikafkaError) and error.fatal):
        return error
    if work.dead is not None:
        error.add_note(
            f"raised while {_where(work)} was written to the dead-letter topic; its handler had "
            f"raised {work.dead!r}"
        )
        if error.__cause__ is None and error is not work.dead:
            error.__cause__ = work.dead
    elif isinstance(error, DeserializationError):
        if at_work and error.offset == work.offset:
            note_how_to_skip(error)
        error.add_note(
            f"raised by a deserializer for {_where(work)}, after which nothing more was taken; "
            "with dead_letter= run_tasks writes such records to a topic, and goes on"
        )
    else:
        error.add_note(
            f"raised by the handler for {_where(work)}, after which nothing more was taken"
        )
    return error


def _where(work: RecordAttempt) -> str:
    if isinstance(work.raw, Record):
        return f"offset {work.offset} of {work.partition}"
    return f"the batch of offsets {work.offset} to {work.raw.offsets[-1]} of {work.partition}"
