"""A batch of records on its way to a partition. No I/O.

The accumulator alone reports events to a batch. Acks read it: a batch knows the outcome of each of
its records, and a batch that was split knows its parts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from itertools import pairwise
from typing import Protocol, TypeVar, cast

from ..._wire._format import Buffer
from ..._wire.records import BatchEncoder, decode_records
from ...error_codes import KNOWN_CODES, ErrorCode
from ...errors import BrokerResponseError, TransactionAbortableError
from ...errors.copies import again
from ...types import RecordMetadata, TopicPartition
from .sequences import ProducerIdentity, on_wire

#: Codes after which the broker may have the batch all the same: unknown, timed out, lost, too few
#: replicas after the append, disk. With ``acks=all`` a leader that loses its leadership while it
#: waits for the replicas answers NOT_LEADER_OR_FOLLOWER or UNKNOWN_TOPIC_OR_PARTITION. The new
#: leader may have the batch then (seen on Kafka 4.3.1). So may a broker with a code that trikafka
#: does not know.
AMBIGUOUS = frozenset(
    (
        ErrorCode.UNKNOWN_SERVER_ERROR,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    )
)


def _is_ambiguous(code: int | None) -> bool:
    return code in AMBIGUOUS or (code is not None and code not in KNOWN_CODES)


class OutcomeSignal(Protocol):
    """A signal that a batch notifies when its outcome is known, or when it is split."""

    def notify(self) -> object: ...


Waited = TypeVar("Waited", bound=OutcomeSignal)


class BatchState(Enum):
    """The place of a batch on its way.

    ``WAITING`` (also while the batch takes records) and ``IN_FLIGHT`` may follow each other;
    ``DONE`` is final.
    """

    WAITING = "waiting"
    IN_FLIGHT = "in flight"
    DONE = "done"


class ProducerBatch:
    """The records for one partition, the attempts to deliver them, and their outcome.

    The queue of the partition knows whether the batch is open, that is, takes records.
    """

    __slots__ = (
        "_backed_off",
        "_flown",
        "_resumes",
        "_since",
        "_size",
        "_waited",
        "abandoned",
        "append_time",
        "attempts",
        "base_offset",
        "claimed",
        "count",
        "created",
        "encoder",
        "error",
        "flushing",
        "identity",
        "is_part",
        "last_error",
        "maybe_written",
        "node",
        "partition",
        "parts",
        "possibly_in_flight_at",
        "sealed",
        "sequence",
        "settled",
        "signal",
        "state",
        "topic",
        "transactional",
    )

    def __init__(self, topic: str, partition: int, encoder: BatchEncoder, created: float) -> None:
        self.topic = topic
        self.partition = partition
        #: ``None`` once the batch is done: the records' memory is free then.
        self.encoder: BatchEncoder | None = encoder
        encoder.belong_to(self)
        self.created = created
        self._size = -1
        #: True once the batch does not linger, though it may still take records.
        self.flushing = False
        #: The number of records, known once the batch is closed.
        self.count = 0
        self.sealed = False
        self.sequence: int | None = None
        self.identity: ProducerIdentity | None = None
        self.transactional = False
        #: True for a part of a batch that was split.
        self.is_part = False
        # The attempts.
        self.state = BatchState.WAITING
        self.attempts = 0
        #: The broker to which the batch is in flight.
        self.node: int | None = None
        #: The failure of the last attempt, or what keeps the batch waiting.
        self.last_error: Exception | None = None
        #: True once an attempt ended without proof that the broker does not have the batch.
        self.maybe_written = False
        #: The brokers that may still read a copy of the batch: the connection was lost while the
        #: batch was in flight to them.
        self.possibly_in_flight_at: frozenset[int] = frozenset()
        # Where the time went: the seconds in each phase before the last change, when that was, and
        # when the backoff that began with it ends.
        self._waited = 0.0
        self._backed_off = 0.0
        self._flown = 0.0
        self._since = created
        self._resumes = created
        # The outcome.
        #: True once the acks have their outcome. That may be before ``DONE``: a batch may expire in
        #: flight (KIP-91).
        self.settled = False
        #: Notified when the batch gets its outcome or is split; made by the first task that waits.
        self.signal: OutcomeSignal | None = None
        #: True once a task will observe the outcome, so that a failure need not be logged.
        self.claimed = False
        self.abandoned = False
        self.error: Exception | None = None
        #: The offset of the first record, where the broker returned one.
        self.base_offset: int | None = None
        self.append_time: int | None = None
        #: The batches into which the batch was split, in order.
        self.parts: list[ProducerBatch] = []

    def __repr__(self) -> str:
        return (
            f"<ProducerBatch {self.topic}-{self.partition} {self.state.value} count={self.count} "
            f"sequence={self.sequence}>"
        )

    @property
    def place(self) -> TopicPartition:
        """The partition of the batch."""
        return TopicPartition(self.topic, self.partition)

    @property
    def size(self) -> int:
        """The uncompressed size: the bytes of ``buffer_memory`` that the batch occupies."""
        return self._size if self.encoder is None or self._size >= 0 else self.encoder.size

    @property
    def in_flight(self) -> bool:
        """True while the batch is part of a request that has not ended."""
        return self.state is BatchState.IN_FLIGHT

    # --- events, reported by the accumulator ------------------------------------------------------

    def close(self) -> None:
        """Take no more records: fix the count and the size."""
        assert self.encoder is not None
        self.count = self.encoder.count
        self._size = self.encoder.size

    def flush(self) -> None:
        """End the linger; the batch may still take records."""
        self.flushing = True

    def number(
        self, sequence: int, identity: ProducerIdentity | None, *, transactional: bool
    ) -> None:
        """Number the records in a row; ``sequence`` is the number of the first one."""
        self.sequence = sequence
        self.identity = identity
        self.transactional = transactional

    def unnumber(self) -> None:
        """Drop the sequence numbers, so that the batch gets others when it is sent again.

        Only for a batch that the broker cannot have.
        """
        self.sequence = None
        self.identity = None

    def sent(self, node: int, now: float) -> None:
        """Record that the batch is part of a request to this broker."""
        self.state = BatchState.IN_FLIGHT
        self.node = node
        self.attempts += 1
        stood_back = self._backoff_until(now)
        self._backed_off += stood_back
        self._waited += now - self._since - stood_back
        self._since = now

    def attempt_failed(self, error: Exception, now: float, *, unsent: bool = False) -> None:
        """Record a failed attempt: a refusal, or a request without a response.

        The caller decides afterwards what becomes of the batch. ``unsent``: no byte of it has left.
        """
        # TransactionAbortableError wraps the broker's refusal.
        said = error.__cause__ if isinstance(error, TransactionAbortableError) else error
        # Three cases. With a response the code decides whether the records may be in the log.
        # Without one, if any byte of the request left, the broker may have the batch, or may still
        # read it: bytes in the socket of a closed connection are processed late, for example after
        # the broker was frozen. The broker is remembered in ``possibly_in_flight_at``. A request
        # that was only queued (``unsent``) proves that the broker has nothing.
        if isinstance(said, BrokerResponseError):
            self.maybe_written |= _is_ambiguous(said.code)
        elif not unsent:
            self.maybe_written = True
            if self.node is not None:
                self.possibly_in_flight_at |= {self.node}
        self.last_error = error
        self.node = None
        self._flown += now - self._since
        self._since = now
        self._resumes = now

    def wait_again(self, until: float = 0.0) -> None:
        """Return to WAITING; the batch is not sent before ``until``."""
        self.state = BatchState.WAITING
        self._resumes = until

    def delayed(self, error: Exception) -> None:
        """Record the error that keeps the batch waiting, such as a broker out of reach."""
        self.last_error = error

    def ignore_response(self) -> None:
        """Record that the response of the request in flight no longer counts.

        So it stays unknown whether the broker has the batch.
        """
        self.maybe_written = True

    def settle(
        self, base_offset: int | None, append_time: int | None, error: Exception | None
    ) -> None:
        """Set the outcome of the acks, offsets or an error, and wake the waiting tasks."""
        self.base_offset = base_offset
        self.append_time = append_time
        self.error = error
        self.settled = True
        if self.signal is not None:
            self.signal.notify()

    def done(self) -> None:
        """Go to DONE, the final state, and free the records' memory."""
        self.state = BatchState.DONE
        self.node = None
        self.encoder = None

    # The parts keep the numbers that the records had. If the broker has the whole batch after all,
    # since its response was lost, it recognizes the numbers of the parts as duplicates, and the
    # records are not written twice. New numbers would be new records to the broker.
    #
    # The records are read back from the encoded batch: the encoder keeps no list of records, only
    # bytes.
    def split(
        self, cuts: Sequence[int], make_encoder: Callable[[], BatchEncoder]
    ) -> list[ProducerBatch]:
        """Return batches with the records of this one up to each of ``cuts``.

        Each record keeps its sequence number. This batch is done then.
        """
        records = decode_records(
            self.to_bytes(),
            topic=self.topic,
            partition=self.partition,
            fetch_offset=0,
            aborted=None,
            check_crcs=False,
            max_bytes=self.size,
        )
        parts = []
        for start, stop in pairwise((0, *cuts, self.count)):
            encoder = make_encoder()
            encoder.extend_columns(records.columns, start=start, stop=stop)
            parts.append(self._part(encoder, start))
        self.done()
        self.parts = parts
        if self.signal is not None:
            self.signal.notify()  # the waiting tasks go on to wait for a part
        return parts

    def _part(self, encoder: BatchEncoder, start: int) -> ProducerBatch:
        part = ProducerBatch(self.topic, self.partition, encoder, self.created)
        part.close()
        part.is_part = True
        part.identity = self.identity
        part.transactional = self.transactional
        part.sequence = None if self.sequence is None else self.sequence + start
        # The same past.
        part.attempts = self.attempts
        part.last_error = self.last_error
        part.maybe_written = self.maybe_written
        part.possibly_in_flight_at = self.possibly_in_flight_at
        part._waited = self._waited
        part._backed_off = self._backed_off
        part._flown = self._flown
        part._since = self._since
        part._resumes = self._resumes
        part.claimed = self.claimed
        part.abandoned = self.abandoned
        return part

    def _backoff_until(self, now: float) -> float:
        """Return how much of the time since the last change was backoff: its first part."""
        return max(0.0, min(now, self._resumes) - self._since)

    # --- the waiting tasks ------------------------------------------------------------------------

    def claim(self, make: Callable[[], Waited]) -> Waited:
        """Return the signal for a task that will observe the outcome.

        So a failure need not be logged.
        """
        self.claimed = True
        return self.signal_for(make)

    def unclaim(self) -> None:
        """Have a failure logged, too: a task that was to observe the outcome was cancelled.

        That holds although other tasks observe the outcomes of other records of the batch.
        """
        self.abandoned = True

    def signal_for(self, make: Callable[[], Waited]) -> Waited:
        """Return the signal that is notified when the batch gets its outcome or is split.

        The first caller makes the signal by ``make``; all callers make the same kind.
        """
        if self.signal is None:
            self.signal = make()
        return cast(Waited, self.signal)

    # --- reading ----------------------------------------------------------------------------------

    def time_spent(
        self, now: float, obstacle: tuple[str, float] | None
    ) -> tuple[str, dict[str, float]]:
        """Return the present phase, and the seconds in each phase so far.

        ``obstacle``: what keeps the batch from being sent, and since when. A batch in flight has
        none.
        """
        seconds = {"waiting": self._waited, "backoff": self._backed_off, "in flight": self._flown}
        if self.in_flight:
            phase = "in flight"
            seconds[phase] += now - self._since
        else:
            phase = "backoff" if now < self._resumes else "waiting"
            stood_back = self._backoff_until(now)
            seconds["backoff"] += stood_back
            seconds["waiting"] += now - self._since - stood_back
            if obstacle is not None:
                phase, since = f"waiting for {obstacle[0]}", obstacle[1]
                seconds[phase] = min(max(0.0, now - max(since, self._since)), seconds["waiting"])
                seconds["waiting"] -= seconds[phase]
        return phase, {name: spent for name, spent in seconds.items() if spent or name == phase}

    def seal(self) -> None:
        """Compress the records, once.

        This is the one step that may take long. It may run in a thread: no other task touches the
        encoder of a batch that was drained.
        """
        encoder = self.encoder
        if not self.sealed and encoder is not None:
            encoder.close()
            self.sealed = True

    # Two pieces rather than one: the records are encoded and compressed once, while identity and
    # number may change before each attempt (a new epoch, a new producer id). Only the header of 61
    # bytes is made for each attempt. The connection passes both to the socket as they are, so a
    # large batch is never copied; joining them would copy it for every attempt.
    def pieces(self) -> tuple[bytes, Buffer]:
        """Return the finished batch as its header and its records.

        The header has the identity and the sequence number that the batch has now.
        """
        assert self.encoder is not None
        producer_id, epoch = self.identity or (-1, -1)
        base = on_wire(self.sequence) if self.sequence is not None else -1
        return self.encoder.head(
            producer_id, epoch, base, transactional=self.transactional
        ), self.encoder.close()

    def to_bytes(self) -> bytes:
        """Return the pieces of :meth:`pieces` joined."""
        return b"".join(self.pieces())

    def part(self, index: int) -> tuple[ProducerBatch, int]:
        """Return the batch that record ``index`` is in after splits, and its index there."""
        batch = self
        while batch.parts:
            for part in batch.parts:
                if index < part.count:
                    break
                index -= part.count
            batch = part
        return batch, index

    def metadata(self, index: int, timestamp: int | None) -> RecordMetadata:
        """Return the metadata of record ``index`` of a settled batch that was not split.

        Raises the batch's error, if it failed.
        """
        if self.error is not None:
            raise again(self.error)
        return RecordMetadata(
            self.topic,
            self.partition,
            None if self.base_offset is None else self.base_offset + index,
            timestamp if self.append_time is None else self.append_time,
        )
