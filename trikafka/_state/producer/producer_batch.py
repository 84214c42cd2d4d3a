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
from ...error_codes import ErrorCode
from ...errors import BrokerResponseError, TransactionAbortableError
from ...errors.copies import again
from ...types import RecordMetadata, TopicPartition
from .delivery_time import Timeline
from .sequences import ProducerIdentity, on_wire

#: Codes after which the broker may have the batch all the same: unknown, timed out, lost, too few
#: replicas after the append, disk. With ``acks=all`` a leader that loses its leadership while it
#: waits for the replicas answers NOT_LEADER_OR_FOLLOWER or UNKNOWN_TOPIC_OR_PARTITION. The new
#: leader may have the batch then (seen on Kafka 4.3.1).
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


class OutcomeSignal(Protocol):
    """An event that a batch sets when its outcome is known, or when it is split."""

    def set(self) -> object: ...


Waited = TypeVar("Waited", bound=OutcomeSignal)


class BatchState(Enum):
    """The place of a batch on its way.

    ``WAITING`` (also while the batch takes records) and ``IN_FLIGHT`` may follow each other;
    ``DONE`` is final.
    """

    WAITING = "waiting"
    IN_FLIGHT = "in flight"
    DONE = "done"


class Delivery:
    """The attempts to deliver a batch, what is known of them, and where the time went.

    Written by its batch alone.
    """

    __slots__ = (
        "attempts",
        "last_error",
        "maybe_written",
        "node",
        "possibly_in_flight_at",
        "state",
        "time",
    )

    def __init__(self, created: float) -> None:
        self.state = BatchState.WAITING
        self.attempts = 0
        #: The broker to which the batch is in flight.
        self.node: int | None = None
        self.last_error: Exception | None = None
        #: True once an attempt ended without proof that the broker does not have the batch.
        self.maybe_written = False
        #: The brokers that may still read a copy of the batch: the connection was lost while the
        #: batch was in flight to them.
        self.possibly_in_flight_at: frozenset[int] = frozenset()
        self.time = Timeline(created)

    def of_a_part(self) -> Delivery:
        """Return the delivery of a part of this batch: the same past, and waiting."""
        twin = Delivery(self.time.since)
        twin.attempts = self.attempts
        twin.last_error = self.last_error
        twin.time = self.time.copy()
        twin.maybe_written = self.maybe_written
        twin.possibly_in_flight_at = self.possibly_in_flight_at
        return twin

    def sent(self, node: int, now: float) -> None:
        """Record that the batch is part of a request to this broker."""
        self.state = BatchState.IN_FLIGHT
        self.node = node
        self.attempts += 1
        self.time.sent(now)

    def attempt_failed(self, error: Exception, now: float, *, unsent: bool = False) -> None:
        """Record a failed attempt; see :meth:`ProducerBatch.attempt_failed`."""
        # TransactionAbortableError wraps the broker's refusal.
        said = error.__cause__ if isinstance(error, TransactionAbortableError) else error
        # Three cases. With a response the code decides whether the records may be in the log.
        # Without one, if any byte of the request left, the broker may have the batch, or may still
        # read it: bytes in the socket of a closed connection are processed late, for example after
        # the broker was frozen. The broker is remembered in ``possibly_in_flight_at``. A request
        # that was only queued (``unsent``) proves that the broker has nothing.
        if isinstance(said, BrokerResponseError):
            self.maybe_written |= said.code in AMBIGUOUS
        elif not unsent:
            self.maybe_written = True
            if self.node is not None:
                self.possibly_in_flight_at |= {self.node}
        self.last_error = error
        self.node = None
        self.time.returned(now)

    def wait_again(self, until: float) -> None:
        """Return to WAITING; the batch is not sent before ``until``."""
        self.state = BatchState.WAITING
        self.time.set_retry_at(until)

    def delayed(self, error: Exception) -> None:
        """Record the error that keeps the batch waiting, such as a broker out of reach."""
        self.last_error = error

    def given_up_in_flight(self) -> None:
        """Record that the response of the request in flight no longer counts.

        So it stays unknown whether the broker has the batch.
        """
        self.maybe_written = True

    def done(self) -> None:
        """Go to DONE, the final state."""
        self.state = BatchState.DONE
        self.node = None


class BatchOutcome:
    """The outcome of a batch's records, and the signal of the tasks that wait for it.

    Written by its batch alone.
    """

    __slots__ = ("append_time", "base_offset", "claimed", "error", "parts", "settled", "signal")

    def __init__(self, claimed: bool = False) -> None:
        #: True once the acks have their outcome. That may be before ``DONE``: a batch may expire in
        #: flight (KIP-91).
        self.settled = False
        self.signal: OutcomeSignal | None = None
        #: True once a task will observe the outcome, so that a failure need not be logged.
        self.claimed = claimed
        self.error: Exception | None = None
        self.base_offset: int | None = None
        self.append_time: int | None = None
        #: The batches into which the batch was split, in order.
        self.parts: list[ProducerBatch] = []

    def settle(
        self, base_offset: int | None, append_time: int | None, error: Exception | None
    ) -> None:
        """Set the outcome of the acks, offsets or an error, and wake the waiting tasks."""
        self.base_offset = base_offset
        self.append_time = append_time
        self.error = error
        self.settled = True
        self.wake()

    def split_into(self, parts: list[ProducerBatch]) -> None:
        """Record the parts and wake the waiting tasks, which go on to wait for a part."""
        self.parts = parts
        self.wake()

    def wake(self) -> None:
        """Wake the waiting tasks."""
        if self.signal is not None:
            self.signal.set()

    def claim(self) -> None:
        """Record that a task will observe the outcome."""
        self.claimed = True

    def signal_for(self, make: Callable[[], Waited]) -> Waited:
        """Return the signal that is set when the batch gets its outcome or is split.

        The first caller makes the signal by ``make``; all callers make the same kind.
        """
        if self.signal is None:
            self.signal = make()
        return cast(Waited, self.signal)


class ProducerBatch:
    """The records for one partition with their encoder, their ``delivery`` and their ``outcome``.

    The queue of the partition knows whether the batch is open, that is, takes records.
    """

    __slots__ = (
        "_size",
        "count",
        "created",
        "delivery",
        "encoder",
        "flushing",
        "identity",
        "is_part",
        "outcome",
        "partition",
        "sealed",
        "sequence",
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
        self.delivery = Delivery(created)
        self.outcome = BatchOutcome()

    def __repr__(self) -> str:
        state = self.delivery.state.value
        return (
            f"<ProducerBatch {self.topic}-{self.partition} {state} count={self.count} "
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
    def numbered(self) -> bool:
        """True while the records have sequence numbers."""
        return self.sequence is not None

    @property
    def in_flight(self) -> bool:
        """True while the batch is part of a request that has not ended."""
        return self.delivery.state is BatchState.IN_FLIGHT

    @property
    def settled(self) -> bool:
        """True once the acks have their outcome."""
        return self.outcome.settled

    @property
    def error(self) -> Exception | None:
        """The error of a settled batch that failed."""
        return self.outcome.error

    @property
    def base_offset(self) -> int | None:
        """The offset of the first record of a settled batch, where the broker returned one."""
        return self.outcome.base_offset

    @property
    def maybe_written(self) -> bool:
        """True if the batch failed and its records may be in the log all the same."""
        return self.delivery.maybe_written and self.outcome.error is not None

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
        """Give the records their sequence numbers, ``sequence`` being the first one's."""
        self.sequence = sequence
        self.identity = identity
        self.transactional = transactional

    def unnumber(self) -> None:
        """Drop the sequence numbers, so that the batch gets others when it is sent again.

        Only for a batch that the broker cannot have.
        """
        self.sequence = self.identity = None

    def sent(self, node: int, now: float) -> None:
        """Record that the batch is part of a request to this broker."""
        self.delivery.sent(node, now)

    def attempt_failed(self, error: Exception, now: float, *, unsent: bool = False) -> None:
        """Record a failed attempt: a refusal, or a request without a response.

        The caller decides afterwards what becomes of the batch. ``unsent``: no byte of it has left.
        """
        self.delivery.attempt_failed(error, now, unsent=unsent)

    def wait_again(self, until: float = 0.0) -> None:
        """Return to WAITING; the batch is not sent before ``until``."""
        self.delivery.wait_again(until)

    def delayed(self, error: Exception) -> None:
        """Record the error that keeps the batch waiting, such as a broker out of reach."""
        self.delivery.delayed(error)

    def given_up_in_flight(self) -> None:
        """Record that the response of the request in flight no longer counts."""
        self.delivery.given_up_in_flight()

    def settle(
        self, base_offset: int | None, append_time: int | None, error: Exception | None
    ) -> None:
        """Set the outcome of the acks: offsets, or an error."""
        self.outcome.settle(base_offset, append_time, error)

    def done(self) -> None:
        """Go to DONE and free the records' memory."""
        self.delivery.done()
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
        self.outcome.split_into(parts)
        return parts

    def _part(self, encoder: BatchEncoder, start: int) -> ProducerBatch:
        part = ProducerBatch(self.topic, self.partition, encoder, self.created)
        part.close()
        part.is_part = True
        part.identity = self.identity
        part.transactional = self.transactional
        part.sequence = None if self.sequence is None else self.sequence + start
        part.delivery = self.delivery.of_a_part()
        part.outcome = BatchOutcome(self.outcome.claimed)
        return part

    # --- reading ----------------------------------------------------------------------------------

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
        while batch.outcome.parts:
            for part in batch.outcome.parts:
                if index < part.count:
                    break
                index -= part.count
            batch = part
        return batch, index

    def metadata(self, index: int, timestamp: int | None) -> RecordMetadata:
        """Return the metadata of record ``index`` of a settled batch that was not split.

        Raises the batch's error, if it failed.
        """
        outcome = self.outcome
        if outcome.error is not None:
            raise again(outcome.error)
        offset = None if outcome.base_offset is None else outcome.base_offset + index
        return RecordMetadata(
            self.topic,
            self.partition,
            offset,
            timestamp if outcome.append_time is None else outcome.append_time,
        )
