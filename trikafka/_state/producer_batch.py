"""One batch of records on its way to a partition. No I/O.

The accumulator alone tells it what happens. Acks read it: a batch knows the outcome of each of its records, and a batch that was
split knows its parts.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from enum import Enum
from itertools import pairwise
from typing import Protocol, TypeVar, cast

from .._wire._format import Buffer
from .._wire.records import BatchEncoder, decode_records
from ..error_codes import ErrorCode
from ..errors import BrokerResponseError, TransactionAbortableError
from ..types import RecordMetadata, TopicPartition
from .delivery_time import Timeline
from .sequences import Identity, on_wire

#: Codes after which the broker may have the batch all the same: unknown, timed out, lost, too few replicas after the append, disk.
#: With ``acks=all`` a leader says also that it leads no more, or has the partition no more, when it was deposed while it waited for
#: the replicas: the new leader may have the batch.
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


class Signal(Protocol):
    """What a batch sets when its outcome is known (an event of whoever waits)."""

    def set(self) -> object: ...


Waited = TypeVar("Waited", bound=Signal)


class BatchState(Enum):
    """Where a batch is. ``WAITING`` (also while it takes records) and ``IN_FLIGHT`` may follow each other; ``DONE`` is the end."""

    WAITING = "waiting"
    IN_FLIGHT = "in flight"
    DONE = "done"


class Delivery:
    """How a batch fares: its attempts, what is known of them, and where its time went. Written by its batch alone."""

    __slots__ = ("attempts", "last_error", "maybe_written", "node", "state", "strays", "time")

    def __init__(self, created: float) -> None:
        self.state = BatchState.WAITING
        self.attempts = 0
        #: The broker that it is in flight to.
        self.node: int | None = None
        self.last_error: Exception | None = None
        #: Whether an attempt ended in a way that leaves open whether the broker has the batch.
        self.maybe_written = False
        #: The brokers that may read a copy of it still: it was on its way to them when the connection was lost.
        self.strays: frozenset[int] = frozenset()
        #: Where its time went.
        self.time = Timeline(created)

    def of_a_part(self) -> Delivery:
        """That of a batch with a part of the records: the same past, and it waits."""
        twin = Delivery(self.time.since)
        twin.attempts, twin.last_error, twin.time = self.attempts, self.last_error, self.time.copy()
        twin.maybe_written, twin.strays = self.maybe_written, self.strays
        return twin

    def sent(self, node: int, now: float) -> None:
        """It is part of a request to this broker."""
        self.state, self.node = BatchState.IN_FLIGHT, node
        self.attempts += 1
        self.time.sent(now)

    def attempt_failed(self, error: Exception, now: float, *, unsent: bool = False) -> None:
        """See :meth:`ProducerBatch.attempt_failed`."""
        said = error.__cause__ if isinstance(error, TransactionAbortableError) else error  # a refusal, as the transaction calls it
        if isinstance(said, BrokerResponseError):
            self.maybe_written |= said.code in AMBIGUOUS
        elif not unsent:
            self.maybe_written = True
            if self.node is not None:
                self.strays |= {self.node}
        self.last_error, self.node = error, None
        self.time.returned(now)

    def wait_again(self, until: float) -> None:
        """It is to be sent again, not before ``until``."""
        self.state = BatchState.WAITING
        self.time.stands_back(until)

    def delayed(self, error: Exception) -> None:
        """It waits because of this error, which is not its own."""
        self.last_error = error

    def given_up_in_flight(self) -> None:
        """Nobody waits for the response any more that would tell whether the broker has it."""
        self.maybe_written = True

    def done(self) -> None:
        """Nothing happens to it any more."""
        self.state, self.node = BatchState.DONE, None


class Outcome:
    """What became of the records of a batch, and who waits to learn it. Written by its batch alone."""

    __slots__ = ("append_time", "base_offset", "claimed", "error", "parts", "settled", "signal")

    def __init__(self, claimed: bool = False) -> None:
        #: Whether the acks have their outcome. That may be before ``DONE``: a batch may expire in flight (KIP-91).
        self.settled = False
        self.signal: Signal | None = None
        #: Whether somebody will be told what became of it, so that a failure need not be logged.
        self.claimed = claimed
        self.error: Exception | None = None
        self.base_offset: int | None = None
        self.append_time: int | None = None
        #: What the batch was split into, in order.
        self.parts: list[ProducerBatch] = []

    def settle(self, base_offset: int | None, append_time: int | None, error: Exception | None) -> None:
        """Give the acks their outcome: offsets, or an error."""
        self.base_offset, self.append_time, self.error = base_offset, append_time, error
        self.settled = True
        self.tell()

    def split_into(self, parts: list[ProducerBatch]) -> None:
        """Those who wait go on to wait for a part."""
        self.parts = parts
        self.tell()

    def tell(self) -> None:
        """Wake those who wait."""
        if self.signal is not None:
            self.signal.set()

    def claim(self) -> None:
        """Somebody will be told what became of it."""
        self.claimed = True

    def signal_for(self, make: Callable[[], Waited]) -> Waited:
        """What is set when the batch gets its outcome or is split; made by whoever waits first. All make the same kind."""
        if self.signal is None:
            self.signal = make()
        return cast(Waited, self.signal)


class ProducerBatch:
    """Records for one partition and their encoder; how they fare is their ``delivery``, what became of them their ``outcome``.

    Whether it takes records its queue knows.
    """

    __slots__ = (
        "_size",
        "count",
        "created",
        "delivery",
        "encoder",
        "hurried",
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
        self.topic, self.partition = topic, partition
        #: ``None`` once it is done: the records' memory is free then.
        self.encoder: BatchEncoder | None = encoder
        encoder.belong_to(self)
        self.created = created
        self._size = -1
        #: Whether it does not linger while it takes records.
        self.hurried = False
        #: Known when the batch takes no more records.
        self.count = 0
        self.sealed = False
        self.sequence: int | None = None
        self.identity: Identity | None = None
        self.transactional = False
        #: Whether it is of a batch that was split.
        self.is_part = False
        self.delivery, self.outcome = Delivery(created), Outcome()

    def __repr__(self) -> str:
        state = self.delivery.state.value
        return f"<ProducerBatch {self.topic}-{self.partition} {state} count={self.count} sequence={self.sequence}>"

    @property
    def place(self) -> TopicPartition:
        """The partition it is for."""
        return TopicPartition(self.topic, self.partition)

    @property
    def size(self) -> int:
        """The uncompressed size: what this batch occupies of ``buffer_memory``."""
        return self._size if self.encoder is None or self._size >= 0 else self.encoder.size

    @property
    def numbered(self) -> bool:
        """Whether its records have sequence numbers."""
        return self.sequence is not None

    @property
    def in_flight(self) -> bool:
        """Whether it is part of a request that has not ended."""
        return self.delivery.state is BatchState.IN_FLIGHT

    @property
    def settled(self) -> bool:
        """Whether the acks have their outcome."""
        return self.outcome.settled

    @property
    def unknown(self) -> bool:
        """Of a batch that failed: whether its records may be in the log all the same."""
        return self.delivery.maybe_written and self.outcome.error is not None

    # --- what happens to it, as the accumulator says ------------------------------------------------------------------

    def close(self) -> None:
        """It takes no more records."""
        assert self.encoder is not None
        self.count, self._size = self.encoder.count, self.encoder.size

    def hurry(self) -> None:
        """It lingers no more, though it may still take records."""
        self.hurried = True

    def number(self, sequence: int, identity: Identity | None, *, transactional: bool) -> None:
        """Its records have these sequence numbers, from the first on."""
        self.sequence, self.identity, self.transactional = sequence, identity, transactional

    def unnumber(self) -> None:
        """The broker cannot have it: it will get other numbers."""
        self.sequence = self.identity = None

    def sent(self, node: int, now: float) -> None:
        """It is part of a request to this broker."""
        self.delivery.sent(node, now)

    def attempt_failed(self, error: Exception, now: float, *, unsent: bool = False) -> None:
        """The broker refused it, or nobody knows whether it took it. What becomes of it is still to be decided.

        ``unsent``: no byte of it has left.
        """
        self.delivery.attempt_failed(error, now, unsent=unsent)

    def wait_again(self, until: float = 0.0) -> None:
        """It is to be sent again, not before ``until``."""
        self.delivery.wait_again(until)

    def delayed(self, error: Exception) -> None:
        """It waits because of this error, which is not its own."""
        self.delivery.delayed(error)

    def given_up_in_flight(self) -> None:
        """Nobody waits for the response any more that would tell whether the broker has it."""
        self.delivery.given_up_in_flight()

    def settle(self, base_offset: int | None, append_time: int | None, error: Exception | None) -> None:
        """Give the acks their outcome: offsets, or an error."""
        self.outcome.settle(base_offset, append_time, error)

    def done(self) -> None:
        """Nothing happens to it any more."""
        self.delivery.done()
        self.encoder = None

    def split(self, cuts: Sequence[int], make_encoder: Callable[[], BatchEncoder]) -> list[ProducerBatch]:
        """Batches with the records of this one up to each of ``cuts``, and the numbers that each record had.

        (So the broker sees a double as one.) This one is done then.
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
        part.is_part, part.identity, part.transactional = True, self.identity, self.transactional
        part.sequence = None if self.sequence is None else self.sequence + start
        part.delivery, part.outcome = self.delivery.of_a_part(), Outcome(self.outcome.claimed)
        return part

    # --- what reads it -----------------------------------------------------------------------------------------------

    def seal(self) -> None:
        """Compress, once. The one step that may take long; may run in a thread, for nobody else touches the encoder then."""
        encoder = self.encoder
        if not self.sealed and encoder is not None:
            encoder.close()
            self.sealed = True

    def pieces(self) -> tuple[bytes, Buffer]:
        """The finished batch, with the producer's identity and number that it has now: its header, and its records."""
        assert self.encoder is not None
        producer_id, epoch = self.identity or (-1, -1)
        base = on_wire(self.sequence) if self.sequence is not None else -1
        return self.encoder.head(producer_id, epoch, base, transactional=self.transactional), self.encoder.close()

    def to_bytes(self) -> bytes:
        """As :meth:`pieces`, in one."""
        return b"".join(self.pieces())

    def part(self, index: int) -> tuple[ProducerBatch, int]:
        """The batch that record ``index`` went into after splits, and its index there."""
        batch = self
        while batch.outcome.parts:
            for part in batch.outcome.parts:
                if index < part.count:
                    break
                index -= part.count
            batch = part
        return batch, index

    def metadata(self, index: int, timestamp: int | None) -> RecordMetadata:
        """The outcome of record ``index`` of a settled batch, not split. Raises the error, if it is one."""
        outcome = self.outcome
        if outcome.error is not None:
            raise fresh(outcome.error)
        offset = None if outcome.base_offset is None else outcome.base_offset + index
        return RecordMetadata(self.topic, self.partition, offset, timestamp if outcome.append_time is None else outcome.append_time)


def fresh(error: Exception) -> Exception:
    """A copy of an error that several tasks raise, so that each has its own traceback."""
    twin = copy.copy(error)
    twin.__cause__ = error.__cause__
    return twin
