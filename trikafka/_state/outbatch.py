"""One batch of records on its way to a partition. No I/O.

Written by the accumulator alone. Acks read it: a batch knows the outcome of each of its records, and a batch that was split
knows its halves.
"""

from __future__ import annotations

import copy
from enum import Enum
from typing import Protocol

from .._wire._format import Buffer
from .._wire.records import BatchEncoder, decode_records
from ..error_codes import ErrorCode
from ..errors import BrokerResponseError
from ..types import RecordMetadata, TopicPartition
from .sequences import Identity, on_wire

#: Codes after which the broker may have the batch all the same: unknown, timed out, lost, too few replicas after the append, disk.
AMBIGUOUS = frozenset(
    (
        ErrorCode.UNKNOWN_SERVER_ERROR,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.KAFKA_STORAGE_ERROR,
    )
)


class Signal(Protocol):
    """What a batch sets when its outcome is known (an event of whoever waits)."""

    def set(self) -> object: ...


class BatchState(Enum):
    """Where a batch is. ``OPEN`` takes records; ``WAITING`` and ``IN_FLIGHT`` may follow each other; ``DONE`` is the end."""

    OPEN = "open"
    WAITING = "waiting"
    IN_FLIGHT = "in flight"
    DONE = "done"


class OutBatch:
    """Records for one partition, their encoder, and what became of them."""

    __slots__ = (
        "_size",
        "append_time",
        "attempts",
        "base_offset",
        "count",
        "created",
        "encoder",
        "error",
        "halves",
        "hurried",
        "identity",
        "last_error",
        "maybe_written",
        "node",
        "partition",
        "sealed",
        "sequence",
        "settled",
        "signal",
        "state",
        "topic",
    )

    def __init__(self, topic: str, partition: int, encoder: BatchEncoder, created: float) -> None:
        self.topic, self.partition = topic, partition
        #: ``None`` once it is done: the records' memory is free then.
        self.encoder: BatchEncoder | None = encoder
        encoder.owner = self
        self.created = created
        self.state = BatchState.OPEN
        self._size = encoder.size
        #: Whether it does not linger while it is open.
        self.hurried = False
        #: Known when the batch takes no more records.
        self.count = 0
        self.sealed = False
        self.attempts = 0
        #: The broker that it is in flight to.
        self.node: int | None = None
        self.sequence: int | None = None
        self.identity: Identity | None = None
        self.last_error: Exception | None = None
        #: Whether an attempt ended in a way that leaves open whether the broker has the batch.
        self.maybe_written = False
        #: Whether the acks have their outcome. That may be before ``DONE``: a batch may expire in flight (KIP-91).
        self.settled = False
        self.signal: Signal | None = None
        self.error: Exception | None = None
        self.base_offset: int | None = None
        self.append_time: int | None = None
        self.halves: list[OutBatch] = []

    def __repr__(self) -> str:
        return f"<OutBatch {self.topic}-{self.partition} {self.state.value} count={self.count} sequence={self.sequence}>"

    @property
    def place(self) -> TopicPartition:
        """The partition it is for."""
        return TopicPartition(self.topic, self.partition)

    @property
    def size(self) -> int:
        """The uncompressed size: what this batch occupies of ``buffer_memory``."""
        return self.encoder.size if self.state is BatchState.OPEN and self.encoder is not None else self._size

    def close(self) -> None:
        """Take no more records."""
        if self.state is BatchState.OPEN:
            assert self.encoder is not None
            self.state = BatchState.WAITING
            self.count, self._size = self.encoder.count, self.encoder.size

    def seal(self) -> None:
        """Compress, once. The one step that may take long; may run in a thread, for nobody else touches the encoder then."""
        encoder = self.encoder
        if not self.sealed and encoder is not None:
            encoder.close()
            self.sealed = True

    def pieces(self, *, transactional: bool = False) -> tuple[bytes, Buffer]:
        """The finished batch, with the producer's identity and number that it has now: its header, and its records."""
        assert self.encoder is not None
        producer_id, epoch = self.identity or (-1, -1)
        base = on_wire(self.sequence) if self.sequence is not None else -1
        return self.encoder.head(producer_id, epoch, base, transactional=transactional), self.encoder.close()

    def to_bytes(self) -> bytes:
        """As :meth:`pieces`, in one."""
        return b"".join(self.pieces())

    @property
    def unknown(self) -> bool:
        """Of a batch that failed: whether its records may be in the log all the same."""
        return self.maybe_written and self.error is not None

    def note(self, error: Exception) -> None:
        """Remember why an attempt failed."""
        self.last_error, self.node = error, None
        self.maybe_written |= not isinstance(error, BrokerResponseError) or error.code in AMBIGUOUS

    def settle(self, base_offset: int | None, append_time: int | None, error: Exception | None) -> None:
        """Give the acks their outcome: offsets, or an error."""
        self.base_offset, self.append_time, self.error = base_offset, append_time, error
        self.settled = True
        if self.signal is not None:
            self.signal.set()

    def part(self, index: int) -> tuple[OutBatch, int]:
        """The batch that record ``index`` went into after splits, and its index there."""
        batch = self
        while batch.halves:
            first, second = batch.halves
            if index < first.count:
                batch = first
            else:
                batch, index = second, index - first.count
        return batch, index

    def metadata(self, index: int, timestamp: int | None) -> RecordMetadata:
        """The outcome of record ``index`` of a settled batch, not split. Raises the error, if it is one."""
        if self.error is not None:
            raise fresh(self.error)
        offset = None if self.base_offset is None else self.base_offset + index
        return RecordMetadata(self.topic, self.partition, offset, timestamp if self.append_time is None else self.append_time)

    def split(self, encoders: tuple[BatchEncoder, BatchEncoder]) -> list[OutBatch]:
        """Two batches with the records of this one, and the numbers that each record had (so doubles stay visible)."""
        records = decode_records(
            self.to_bytes(),
            topic=self.topic,
            partition=self.partition,
            fetch_offset=0,
            aborted=None,
            check_crcs=False,
            max_bytes=self.size,
        )
        middle = self.count // 2
        for start, stop, encoder in ((0, middle, encoders[0]), (middle, self.count, encoders[1])):
            encoder.extend_columns(records.columns, start=start, stop=stop)
            half = OutBatch(self.topic, self.partition, encoder, self.created)
            half.close()
            half.attempts, half.last_error, half.identity = self.attempts, self.last_error, self.identity
            half.sequence = None if self.sequence is None else self.sequence + start
            self.halves.append(half)
        if self.signal is not None:
            self.signal.set()  # those who wait go on to wait for a half
        return self.halves


def fresh(error: Exception) -> Exception:
    """A copy of an error that several tasks raise, so that each has its own traceback."""
    twin = copy.copy(error)
    twin.__cause__ = error.__cause__
    return twin
