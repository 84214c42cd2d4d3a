"""Records in: what takes them, chooses their partition, and puts them into open batches, within bounds. No I/O, no awaits.

The first half of the accumulator, which inherits from it and alone is used. One record takes the quick way of the
:class:`Appender` where that is possible; ``append`` is the whole way, and the meaning of both. ``extend`` takes rows of a table.
"""

from __future__ import annotations

import random
import time
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

from .._wire import _implementation
from .._wire._format import HEADER_SIZE as BATCH_OVERHEAD
from .._wire._format import RECORD_OVERHEAD
from .._wire.columns import Columns, RecordBatch
from .._wire.partitioning import group_rows, partition_columns, partition_for_key
from .._wire.records import BatchEncoder
from ..errors import ConfigurationError, PluginError, RecordTooLargeError
from ..types import Headers, TopicPartition
from .arguments import HeaderPairs, as_bytes, check_headers, check_timestamp
from .outbatch import BatchState, OutBatch
from .partition_queue import PartitionQueue, TopicEntry
from .sequences import Identity

Ack = TypeVar("Ack")
#: ``(topic, key, partition numbers) -> number``: chooses for records without an explicit partition.
Partitioner = Callable[[str, bytes | None, Sequence[int]], int]
#: The size up to which rows of a table fill a batch (if ``batch_size`` is not larger): from here on a batch's own cost is not seen,
#: and a broker works the more on a record the larger it gets (twice as much at 1 MiB, measured).
TABLE_BATCH = 1 << 18


@dataclass(frozen=True, slots=True)
class Limits:
    """What bounds an accumulator. Times are in seconds."""

    batch_size: int
    linger: float
    buffer_memory: int
    max_request_size: int
    delivery_timeout: float
    idempotent: bool


@dataclass(slots=True)
class Counters:
    """What has become of the records and batches so far."""

    accepted: int = 0
    delivered: int = 0
    failed: int = 0
    batches_retried: int = 0
    batches_split: int = 0


class RowGroup(NamedTuple):
    """Rows of some columns, in order: the row numbers ``rows[start:stop]``, or without ``rows`` these positions themselves.

    ``partition`` is ``None`` where each batch may go to another: rows without a key, if none of the columns' rows has one.
    """

    partition: int | None
    rows: memoryview | None
    start: int
    stop: int

    def put(self, encoder: BatchEncoder, columns: Columns, start: int, max_size: int) -> int:
        """Encode rows from ``start`` on until ``max_size`` is reached; return where to go on."""
        return encoder.extend_columns(columns, rows=self.rows, start=start, stop=self.stop, max_size=max_size)


class Taken(NamedTuple):
    """Rows that went into one batch: the first's index there, and the position in the table to go on from."""

    batch: OutBatch
    first: int
    next: int


class Intake(Generic[Ack]):
    """All partitions of one producer, as far as records come in. See :class:`Accumulator` for the arguments."""

    def __init__(
        self,
        limits: Limits,
        *,
        make_encoder: Callable[[], BatchEncoder],
        ticket: type[Ack],
        clock: Callable[[], float],
        on_work: Callable[[int | None], object],
        partitioner: Partitioner | None,
        choose: random.Random | None,
    ) -> None:
        self._limits = limits
        self._make_encoder, self._clock, self._on_work = make_encoder, clock, on_work
        self._partitioner = partitioner
        self._random = choose or random.Random()
        self._batch_size = limits.batch_size
        self._table_batch = max(limits.batch_size, min(limits.max_request_size, TABLE_BATCH))
        self._largest = min(limits.max_request_size, limits.buffer_memory) - BATCH_OVERHEAD
        self._exhausted = False
        #: The quick way in for one record. It keeps ``free``, the bytes of ``buffer_memory`` that may still be taken.
        self.appender: Any = _implementation.current.Appender(
            ticket,  # type: ignore[arg-type]
            self.append,
            self._batch_size,
            self._largest,
            limits.buffer_memory,
        )
        self.appender.careful = partitioner is not None
        self._entries: dict[str, TopicEntry] = {}
        self._queues: dict[TopicPartition, PartitionQueue] = {}
        self._work: dict[int | None, dict[PartitionQueue, None]] = {}
        #: The producer's identity; ``None`` while a new one is needed. Written by the manager, unset here.
        self.identity: Identity | None = None
        self.counters = Counters()

    # --- what is there -----------------------------------------------------------------------------------------------

    @property
    def used(self) -> int:
        """Bytes of ``buffer_memory`` in use."""
        return int(self._limits.buffer_memory - self.appender.free)

    @property
    def exhausted(self) -> bool:
        """Whether somebody waits for room: then newcomers get none, and batches do not linger."""
        return self._exhausted

    @exhausted.setter
    def exhausted(self, exhausted: bool) -> None:
        self._exhausted = exhausted
        self.appender.careful = exhausted or self._partitioner is not None

    @property
    def largest(self) -> int:
        """The largest upper bound that a record may have."""
        return self._largest

    @property
    def leaders(self) -> list[int]:
        """The brokers that there are batches for."""
        return [leader for leader in self._work if leader is not None]

    @property
    def leaderless(self) -> set[str]:
        """Topics with batches for partitions whose leader is not known."""
        return {queue.topic for queue in self._work.get(None, ())}

    def partition_count(self, topic: str) -> int | None:
        """How many partitions the topic has; ``None`` if it is not known here."""
        entry = self._entries.get(topic)
        return None if entry is None else len(entry.queues)

    def unsettled(self) -> list[OutBatch]:
        """The batches whose acks have no outcome yet."""
        return [batch for batch in self._batches() if not batch.settled]

    def _batches(self) -> Iterable[OutBatch]:
        return [batch for work in self._work.values() for queue in work for batch in queue.batches]

    # --- the cluster -------------------------------------------------------------------------------------------------

    def update_topic(self, name: str, leaders: Sequence[int | None]) -> None:
        """Take over a topic's partitions: ``leaders[p]`` leads partition ``p``."""
        entry = self._entries.get(name)
        if entry is None:
            entry = self._entries[name] = TopicEntry(name, self._table_batch)
        for gone in entry.queues[len(leaders) :]:
            self._lead(gone, None)
        if len(leaders) != len(entry.queues):
            entry.take([self._queue(entry, number) for number in range(len(leaders))])
            self.appender.topics[name] = entry.targets
        for queue, leader in zip(entry.queues, leaders, strict=True):
            self._lead(queue, leader)

    def forget_topic(self, name: str) -> None:
        """The cluster does not know the topic (any more): accept no records for it; what waits goes on waiting."""
        entry = self._entries.pop(name, None)
        self.appender.topics.pop(name, None)
        for queue in entry.queues if entry is not None else ():
            self._lead(queue, None)

    def _queue(self, entry: TopicEntry, number: int) -> PartitionQueue:
        place = TopicPartition(entry.name, number)
        queue = self._queues.get(place)
        if queue is None:
            queue = self._queues[place] = PartitionQueue(entry.name, number, entry)
        queue.entry = entry
        return queue

    def _lead(self, queue: PartitionQueue, leader: int | None) -> None:
        if queue.leader == leader:
            return
        active = bool(queue.batches)
        if active:
            self._deactivate(queue)
        queue.leader = leader
        if active:
            self._activate(queue)
            self._on_work(leader)

    def _activate(self, queue: PartitionQueue) -> None:
        self._work.setdefault(queue.leader, {})[queue] = None

    def _deactivate(self, queue: PartitionQueue) -> None:
        work = self._work[queue.leader]
        del work[queue]
        if not work:
            del self._work[queue.leader]

    # --- records in --------------------------------------------------------------------------------------------------

    def append(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        headers: HeaderPairs,
        timestamp: int | None,
        partition: int | None,
        admitted: bool = False,
    ) -> Ack | None:
        """Take a record; return its ack, or ``None`` if there is no room or the partition is not known.

        ``admitted``: it is the caller's turn among those who wait for room. Raises :exc:`TypeError`,
        :exc:`ConfigurationError` and :exc:`RecordTooLargeError`; then nothing has been taken.
        """
        entry = self._entries.get(topic)
        if entry is None:
            return None
        size = RECORD_OVERHEAD
        if value is not None:
            if type(value) is not bytes:
                value = as_bytes("value", value)
            size += len(value)
        if key is not None:
            if type(key) is not bytes:
                key = as_bytes("key", key)
            size += len(key)
        checked: Headers = ()
        if headers:
            checked, more = check_headers(headers)
            size += more
        timestamp = time.time_ns() // 1_000_000 if timestamp is None else check_timestamp(timestamp)
        if size > self._largest:
            raise self.too_large(topic, size)
        if size + BATCH_OVERHEAD > self.appender.free or (self._exhausted and not admitted):
            return None
        if partition is None and self._partitioner is not None:
            partition = self._ask_partitioner(entry, key)
        encoder = self._encoder_for(entry, partition, key, size)
        if encoder is None:
            return None
        before = encoder.size
        index = encoder.append(timestamp, key, value, checked)
        self.appender.free -= encoder.size - before
        ack: Ack = self.appender.make(encoder.owner, index, timestamp)
        return ack

    def _encoder_for(self, entry: TopicEntry, partition: int | None, key: bytes | None, size: int) -> BatchEncoder | None:
        """The encoder of an open batch with room for ``size`` bytes; ``None`` if the partition is not known."""
        if partition is None and key is None:
            encoder = entry.targets.sticky
            if encoder is None or encoder.size + size > self._batch_size:
                encoder = self._sticky_batch(entry, size).encoder
            return encoder
        if partition is None:
            partition = partition_for_key(key, len(entry.queues))  # type: ignore[arg-type]
        elif partition >= len(entry.queues):
            return None
        elif partition < 0:
            raise ConfigurationError(f"partition must be at least 0, not {partition}")
        encoder = entry.targets.open[partition]
        if encoder is None or encoder.size + size > self._batch_size:
            encoder = self._batch(entry.queues[partition], size).encoder
        return encoder

    def _ask_partitioner(self, entry: TopicEntry, key: bytes | None) -> int:
        numbers = range(len(entry.queues))
        assert self._partitioner is not None
        number = self._partitioner(entry.name, key, numbers)
        if type(number) is not int or number not in numbers:
            raise PluginError(f"the partitioner chose {number!r} of {len(numbers)} partitions of {entry.name!r}")
        return number

    def too_large(self, topic: str, size: int, what: str = "a record") -> RecordTooLargeError:
        """The error that says so."""
        limits = self._limits
        name = "max_request_size" if limits.max_request_size <= limits.buffer_memory else "buffer_memory"
        most = self._largest + BATCH_OVERHEAD
        return RecordTooLargeError(f"{what} of up to {size} bytes for {topic!r} is larger than {name} ({most}) allows")

    def _sticky_batch(self, entry: TopicEntry, size: int) -> OutBatch:
        """The open batch of the partition that keyless records stick to; another partition's when that one is full."""
        queue = entry.sticky_queue
        if queue is not None and queue.open is not None and queue.open.size + size > self._batch_size:
            self._close(queue.open)
            entry.spent = self._batch_size
        batch = self._batch(self._sticky_queue(entry), size)
        entry.targets.sticky = batch.encoder
        return batch

    def _sticky_queue(self, entry: TopicEntry) -> PartitionQueue:
        """The partition that keyless records go to now: another one when a batch's worth of bytes has gone to the last."""
        queue = entry.sticky_queue
        if queue is None or entry.spent >= self._batch_size:
            queue = entry.sticky_queue = self._other_queue(entry)
            entry.targets.sticky = None
            entry.spent = 0
        return queue

    def _other_queue(self, entry: TopicEntry) -> PartitionQueue:
        """Of two random partitions with a leader the less loaded one, not the same again."""
        led = [queue for queue in entry.queues if queue.leader is not None] or entry.queues
        others = [queue for queue in led if queue is not entry.sticky_queue] or led
        one, two = self._random.choice(others), self._random.choice(others)
        return one if len(one.batches) <= len(two.batches) else two

    def _batch(self, queue: PartitionQueue, size: int) -> OutBatch:
        """The open batch of ``queue`` if ``size`` more bytes fit in, or a new one."""
        if queue.open is not None and queue.open.size + size <= self._batch_size:
            return queue.open
        return self._open(queue, self._make_encoder())

    def _open(self, queue: PartitionQueue, encoder: BatchEncoder) -> OutBatch:
        """A new open batch, with what is in ``encoder``; the one before is closed."""
        if queue.open is not None:
            self._close(queue.open)
        batch = OutBatch(queue.topic, queue.partition, encoder, self._clock())
        self.appender.free -= batch.size
        if not queue.batches:
            self._activate(queue)
        queue.batches.append(batch)
        queue.set_open(batch)
        self._on_work(queue.leader)
        return batch

    def _close(self, batch: OutBatch) -> None:
        """Take no more records into ``batch``."""
        if batch.state is not BatchState.OPEN:
            return
        queue = self._queues[batch.place]
        batch.close()
        self.counters.accepted += batch.count
        queue.set_open(None)
        entry = queue.entry
        if queue is entry.sticky_queue:
            entry.spent += batch.size
            entry.targets.sticky = None
        self._on_work(queue.leader)

    def close_open(self) -> None:
        """Let no batch linger any more: what has been accepted so far is sent as soon as order allows."""
        for batch in self._batches():
            self._close(batch)

    # --- tables in ---------------------------------------------------------------------------------------------------

    def split_rows(self, topic: str, columns: Columns, explicit: memoryview | int | None, keyed: bool) -> list[RowGroup]:
        """Decide where the rows go: groups of rows for one partition each, or for the partitions that keyless records go to.

        ``explicit`` is a partition, or one for each row (32-bit numbers, -1: the key decides); ``keyed``: there may be keys.
        Raises ``ValueError`` for a partition that there is not, and :exc:`PluginError`. The topic must be known.
        """
        entry = self._entries[topic]
        count = len(entry.queues)
        if isinstance(explicit, int):
            return [RowGroup(explicit, None, 0, columns.count)]
        if self._partitioner is not None:
            explicit = self._ask_for_rows(entry, columns, explicit)
        elif explicit is None and not keyed:
            return [RowGroup(None, None, 0, columns.count)]
        keyless = self._sticky_queue(entry).partition
        numbers = partition_columns(columns.key_offsets, columns.key_data, columns.key_validity, count, explicit, keyless)
        rows, bounds = group_rows(numbers, count)
        spans = ((number, bounds[number], bounds[number + 1]) for number in range(count))
        return [RowGroup(number, rows, start, stop) for number, start, stop in spans if start < stop]

    def _ask_for_rows(self, entry: TopicEntry, columns: Columns, explicit: memoryview | None) -> memoryview:
        numbers = array("i")
        for row, record in enumerate(RecordBatch(entry.name, -1, columns, -1)):
            given = -1 if explicit is None else explicit[row]
            numbers.append(self._ask_partitioner(entry, record.key) if given == -1 else given)
        return memoryview(numbers)

    def extend(self, topic: str, columns: Columns, group: RowGroup, start: int, admitted: bool = False) -> Taken | None:
        """Take rows of ``group`` from ``start`` on, as many as go into one batch; ``None`` if there is no room (or partition)."""
        entry = self._entries.get(topic)
        if entry is None or (self._exhausted and not admitted):
            return None
        if group.partition is None:
            queue = self._sticky_queue(entry)
        elif group.partition < len(entry.queues):
            queue = entry.queues[group.partition]
        else:
            return None
        taken = self._extend_open(queue, columns, group, start)
        if taken is None and group.partition is None and queue.open is not None and self._is_full(queue, queue.open):
            self._close(queue.open)
            queue = self._sticky_queue(entry)
            taken = self._extend_open(queue, columns, group, start)
        return taken or self._extend_new(queue, columns, group, start)

    def _is_full(self, queue: PartitionQueue, batch: OutBatch) -> bool:
        """Whether it is not for lack of room that a row found no place in ``batch``."""
        return bool(batch.size + self.appender.free >= queue.entry.table_batch)

    def _extend_open(self, queue: PartitionQueue, columns: Columns, group: RowGroup, start: int) -> Taken | None:
        batch = queue.open
        if batch is None or batch.encoder is None:
            return None
        first, before = batch.encoder.count, batch.encoder.size
        end = group.put(batch.encoder, columns, start, min(queue.entry.table_batch, before + self.appender.free))
        self.appender.free -= batch.encoder.size - before
        return Taken(batch, first, end) if end > start else None

    def _extend_new(self, queue: PartitionQueue, columns: Columns, group: RowGroup, start: int) -> Taken | None:
        free = self.appender.free
        encoder = self._make_encoder()
        end = group.put(encoder, columns, start, min(queue.entry.table_batch, free))
        if end == start:  # a row that is larger than what batches of a table are filled to has one for itself
            end = group._replace(stop=start + 1).put(encoder, columns, start, min(self._largest + BATCH_OVERHEAD, free))
        if end == start:
            return None
        return Taken(self._open(queue, encoder), 0, end)
