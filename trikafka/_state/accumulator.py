"""The records that a producer has accepted and not yet settled: batched, bounded, in order. No I/O, no awaits.

Owns every batch from the first record to the verdict, ``buffer_memory``, the choice of partition, and what an answer of a
broker means for order and sequence numbers. The produce manager alone calls what changes it; ``append`` is called by the
producer's ``send`` and its kin, and is the path that every record takes: it is written for speed.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from .._wire._format import HEADER_SIZE as BATCH_OVERHEAD
from .._wire._format import RECORD_OVERHEAD
from .._wire.partitioning import partition_for_key
from .._wire.records import BatchEncoder
from ..errors import (
    ConfigurationError,
    DeliveryTimeoutError,
    DuplicateSequenceError,
    MessageTooLargeError,
    OutOfOrderSequenceError,
    PluginError,
    ProducerFencedError,
    RecordTooLargeError,
    TrikafkaError,
    UnknownProducerIdError,
)
from ..types import TopicPartition
from .arguments import HeaderPairs, as_bytes, check_headers, check_timestamp
from .outbatch import BatchState, OutBatch
from .partition_queue import PartitionQueue, TopicEntry
from .sequences import Identity

Ack = TypeVar("Ack")
#: ``(topic, key, partition numbers) -> number``: chooses for records without an explicit partition.
Partitioner = Callable[[str, bytes | None, Sequence[int]], int]
_REFUSED_NUMBERS = (OutOfOrderSequenceError, UnknownProducerIdError, ProducerFencedError)


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


class Accumulator(Generic[Ack]):
    """All partitions of one producer. ``Ack`` is what ``append`` returns, made by ``make_ack(batch, index, timestamp)``.

    ``on_work(leader)`` is called when something may have become sendable to that broker (``None``: the leader is not known);
    ``on_room()`` when memory was given back; ``on_failed(batch)`` when a batch has failed. They must be quick and not call back.
    """

    def __init__(
        self,
        limits: Limits,
        *,
        make_encoder: Callable[[], BatchEncoder],
        make_ack: Callable[[OutBatch, int, int], Ack],
        clock: Callable[[], float],
        delay: Callable[[int], float],
        on_work: Callable[[int | None], object],
        on_room: Callable[[], object],
        on_failed: Callable[[OutBatch], object] = lambda batch: None,
        partitioner: Partitioner | None = None,
        choose: random.Random | None = None,
    ) -> None:
        self._limits = limits
        self._make_encoder, self._make_ack, self._clock, self._delay = make_encoder, make_ack, clock, delay
        self._on_work, self._on_room, self._on_failed = on_work, on_room, on_failed
        self._partitioner = partitioner
        self._random = choose or random.Random()
        self._batch_size = limits.batch_size
        self._largest = min(limits.max_request_size, limits.buffer_memory) - BATCH_OVERHEAD
        self._free = limits.buffer_memory
        self._entries: dict[str, TopicEntry] = {}
        self._queues: dict[TopicPartition, PartitionQueue] = {}
        self._work: dict[int | None, dict[PartitionQueue, None]] = {}
        #: The producer's identity; ``None`` while a new one is needed. Written by the manager, unset here.
        self.identity: Identity | None = None
        #: Set while somebody waits for room: newcomers get none, and batches do not linger.
        self.crowded = False
        self.counters = Counters()

    # --- what is there -----------------------------------------------------------------------------------------------

    @property
    def used(self) -> int:
        """Bytes of ``buffer_memory`` in use."""
        return self._limits.buffer_memory - self._free

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
            entry = self._entries[name] = TopicEntry(name)
        for gone in entry.queues[len(leaders) :]:
            self._lead(gone, None)
        if len(leaders) != len(entry.queues):
            entry.queues = [self._queue(entry, number) for number in range(len(leaders))]
            entry.sticky = entry.sticky_queue = None
        for queue, leader in zip(entry.queues, leaders, strict=True):
            self._lead(queue, leader)

    def forget_topic(self, name: str) -> None:
        """The cluster does not know the topic (any more): accept no records for it; what waits goes on waiting."""
        entry = self._entries.pop(name, None)
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
        if headers:
            headers, more = check_headers(headers)
            size += more
        timestamp = time.time_ns() // 1_000_000 if timestamp is None else check_timestamp(timestamp)
        if size > self._largest:
            self._too_large(topic, size)
        if size + BATCH_OVERHEAD > self._free or (self.crowded and not admitted):
            return None
        if partition is None and self._partitioner is not None:
            partition = self._ask_partitioner(entry, key)
        if partition is None and key is None:
            batch = entry.sticky
            if batch is None or batch.size + size > self._batch_size:
                batch = self._sticky_batch(entry, size)
        else:
            if partition is None:
                partition = partition_for_key(key, len(entry.queues))  # type: ignore[arg-type]
            elif partition >= len(entry.queues):
                return None
            elif partition < 0:
                raise ConfigurationError(f"partition must be at least 0, not {partition}")
            queue = entry.queues[partition]
            batch = queue.open
            if batch is None or batch.size + size > self._batch_size:
                batch = self._batch(queue, size)
        encoder: Any = batch.encoder
        index = encoder.append(timestamp, key, value, headers)
        size = encoder.size
        self._free -= size - batch.size
        batch.size = size
        return self._make_ack(batch, index, timestamp)

    def _ask_partitioner(self, entry: TopicEntry, key: bytes | None) -> int:
        numbers = range(len(entry.queues))
        assert self._partitioner is not None
        number = self._partitioner(entry.name, key, numbers)
        if type(number) is not int or number not in numbers:
            raise PluginError(f"the partitioner chose {number!r} of {len(numbers)} partitions of {entry.name!r}")
        return number

    def _too_large(self, topic: str, size: int) -> None:
        limits = self._limits
        name = "max_request_size" if limits.max_request_size <= limits.buffer_memory else "buffer_memory"
        most = self._largest + BATCH_OVERHEAD
        raise RecordTooLargeError(f"a record of up to {size} bytes for {topic!r} is larger than {name} ({most}) allows")

    def _sticky_batch(self, entry: TopicEntry, size: int) -> OutBatch:
        """The open batch of the partition that keyless records stick to; another partition's when that one is full."""
        queue = entry.sticky_queue
        if queue is not None and queue.open is not None and queue.open.size + size > self._batch_size:
            self._close(queue.open)
            entry.spent = self._batch_size
        if queue is None or entry.spent >= self._batch_size:
            queue = entry.sticky_queue = self._other_queue(entry)
            entry.spent = 0
        batch = self._batch(queue, size)
        entry.sticky = batch
        return batch

    def _other_queue(self, entry: TopicEntry) -> PartitionQueue:
        """Of two random partitions with a leader the less loaded one, not the same again."""
        led = [queue for queue in entry.queues if queue.leader is not None] or entry.queues
        others = [queue for queue in led if queue is not entry.sticky_queue] or led
        one, two = self._random.choice(others), self._random.choice(others)
        return one if len(one.batches) <= len(two.batches) else two

    def _batch(self, queue: PartitionQueue, size: int) -> OutBatch:
        """The open batch of ``queue`` if ``size`` more bytes fit in, or a new one."""
        if queue.open is not None:
            if queue.open.size + size <= self._batch_size:
                return queue.open
            self._close(queue.open)
        batch = OutBatch(queue.topic, queue.partition, self._make_encoder(), self._clock())
        self._free -= batch.size
        if not queue.batches:
            self._activate(queue)
        queue.batches.append(batch)
        queue.open = batch
        self._on_work(queue.leader)
        return batch

    def _close(self, batch: OutBatch) -> None:
        """Take no more records into ``batch``."""
        if batch.state is not BatchState.OPEN:
            return
        queue = self._queues[batch.place]
        batch.close()
        self.counters.accepted += batch.count
        queue.open = None
        entry = queue.entry
        if queue is entry.sticky_queue:
            entry.spent += batch.size
            entry.sticky = None
        self._on_work(queue.leader)

    def close_open(self) -> None:
        """Let no batch linger any more: what has been accepted so far is sent as soon as order allows."""
        for batch in self._batches():
            self._close(batch)

    # --- batches out -------------------------------------------------------------------------------------------------

    def due_at(self, node: int, now: float) -> float:
        """When something can be sent to ``node``: not after ``now`` if there is something, ``inf`` if nothing waits."""
        linger = 0.0 if self.crowded else self._limits.linger
        earliest = math.inf
        for queue in self._work.get(node, ()):
            batch = self._sendable(queue, node)
            if batch is not None:
                earliest = min(earliest, queue.ready_at(batch, linger))
                if earliest <= now:
                    break
        return earliest

    def drain(self, node: int, now: float, limit: int) -> list[OutBatch]:
        """Take the batches for the next request to ``node``: one a partition, ``limit`` bytes in all, in turn."""
        linger = 0.0 if self.crowded else self._limits.linger
        work = self._work.get(node, {})
        chosen: list[OutBatch] = []
        total = 0
        for queue in list(work):
            batch = self._sendable(queue, node)
            if batch is None or queue.ready_at(batch, linger) > now:
                continue
            if chosen and total + batch.size > limit:
                break
            self._take_off(queue, batch, node)
            total += batch.size
            chosen.append(batch)
            del work[queue]
            work[queue] = None  # the last one in turn now
        return chosen

    def _sendable(self, queue: PartitionQueue, node: int) -> OutBatch | None:
        if self._limits.idempotent and self.identity is None and queue.sequences.identity is None:
            return None
        return queue.sendable(node)

    def _take_off(self, queue: PartitionQueue, batch: OutBatch, node: int) -> None:
        self._close(batch)
        if self._limits.idempotent and batch.sequence is None:
            batch.sequence = queue.sequences.assign(batch.count, self.identity or Identity(-1, -1))
            batch.identity = queue.sequences.identity
        batch.state, batch.node = BatchState.IN_FLIGHT, node
        self.counters.batches_retried += batch.attempts > 0
        batch.attempts += 1

    # --- answers -----------------------------------------------------------------------------------------------------

    def succeeded(self, batch: OutBatch, base_offset: int | None, append_time: int | None) -> None:
        """The broker has the batch."""
        if batch.state is not BatchState.IN_FLIGHT:
            return
        queue = self._queues[batch.place]
        if batch.sequence is not None and batch.identity == queue.sequences.identity:
            queue.sequences.acknowledge(batch.sequence, batch.count)
        queue.failures, queue.not_before = 0, 0.0
        self._finish(queue, batch, base_offset, append_time, None)

    def refused(self, batch: OutBatch, error: TrikafkaError, now: float) -> None:
        """The broker refused the batch, or nobody knows whether it took it. Decides what becomes of it: the heart of order.

        A batch that has expired in flight is done now; others are sent again in their place, are split, or fail.
        """
        if batch.state is not BatchState.IN_FLIGHT:
            return
        queue = self._queues[batch.place]
        batch.note(error)
        outdated = batch.sequence is not None and batch.identity != queue.sequences.identity
        if isinstance(error, DuplicateSequenceError):
            self.succeeded(batch, None, None)
        elif batch.settled:
            self._give_up(queue, batch, None)
        elif outdated and (error.retriable or isinstance(error, _REFUSED_NUMBERS)):
            # It stood behind the gap that ended its epoch, so the broker cannot have taken it.
            batch.state = BatchState.WAITING
            batch.sequence = batch.identity = None
        elif isinstance(error, OutOfOrderSequenceError | UnknownProducerIdError):
            batch.state = BatchState.WAITING
            if queue.batches[0] is batch:  # else the verdict on those before it will tell
                self._restart(queue)
                self._back_off(queue, now)
        elif isinstance(error, MessageTooLargeError) and batch.count > 1 and not batch.maybe_written:
            self._split(queue, batch)  # one that may be in the log must not come again in other pieces
        elif error.retriable:
            batch.state = BatchState.WAITING
            self._back_off(queue, now)
        elif isinstance(error, ProducerFencedError):
            self.identity = None
            queue.renounce()
            self._give_up(queue, batch, error)
        else:
            self._give_up(queue, batch, error)
        self._on_work(queue.leader)

    def expire(self, now: float) -> int:
        """Fail the batches that are older than the delivery timeout, the oldest first (KIP-91). Returns how many.

        A batch in flight keeps its place until its request has ended, so that what follows knows what became of it.
        """
        count = 0
        limit = self._limits.delivery_timeout
        for batch in self._batches():
            if batch.settled or batch.created + limit > now:
                continue
            count += 1
            self._close(batch)
            error = DeliveryTimeoutError("send", limit, batch.attempts, batch.last_error)
            error.__cause__ = batch.last_error
            if batch.state is BatchState.IN_FLIGHT:
                self._settle(batch, None, None, error)
            else:
                self._give_up(self._queues[batch.place], batch, error)
        return count

    def next_deadline(self) -> float:
        """When the next batch expires; ``inf`` if there is none."""
        created = min((batch.created for batch in self._batches() if not batch.settled), default=math.inf)
        return created + self._limits.delivery_timeout

    def abort(self, error: Exception, *, anonymous: bool = False) -> None:
        """Fail everything, what is in flight included; with ``anonymous`` only what waits for a producer id."""
        for batch in self._batches():
            if anonymous and self._queues[batch.place].sequences.identity is not None:
                continue
            self._close(batch)
            self._give_up(self._queues[batch.place], batch, error)

    def _back_off(self, queue: PartitionQueue, now: float) -> None:
        if now >= queue.not_before:  # batches that fail together are one failure
            queue.failures += 1
            queue.not_before = now + self._delay(queue.failures)

    def _restart(self, queue: PartitionQueue) -> None:
        queue.restart(self.identity)
        self._note_identity(queue)

    def _note_identity(self, queue: PartitionQueue) -> None:
        if queue.sequences.identity is None:
            self.identity = None  # its last epoch is used up: the producer needs a new id

    def _split(self, queue: PartitionQueue, batch: OutBatch) -> None:
        self._free += batch.size
        halves = batch.split((self._make_encoder(), self._make_encoder()))
        self._free -= sum(half.size for half in halves)
        queue.replace(batch, halves)
        batch.state, batch.encoder = BatchState.DONE, None
        self.counters.batches_split += 1

    def _give_up(self, queue: PartitionQueue, batch: OutBatch, error: Exception | None) -> None:
        """Remove a batch that the broker may or may not have, or surely has not."""
        sequences = queue.sequences
        if batch.sequence is not None and batch.identity == sequences.identity:
            sequences.lose(batch.sequence, batch.count)
        self._finish(queue, batch, None, None, error)

    def _finish(
        self, queue: PartitionQueue, batch: OutBatch, base_offset: int | None, append_time: int | None, error: Exception | None
    ) -> None:
        batch.state, batch.encoder, batch.node = BatchState.DONE, None, None
        if not batch.settled:
            self._settle(batch, base_offset, append_time, error)
        if queue.batches[0] is batch:
            queue.batches.popleft()
        else:
            queue.batches.remove(batch)
        if queue.sequences.lost is not None:
            queue.settle(self.identity)
            self._note_identity(queue)
        if queue.batches:
            self._on_work(queue.leader)  # what stood behind it
        else:
            self._deactivate(queue)
        self._free += batch.size
        self._on_room()

    def _settle(self, batch: OutBatch, base_offset: int | None, append_time: int | None, error: Exception | None) -> None:
        batch.settle(base_offset, append_time, error)
        if error is None:
            self.counters.delivered += batch.count
        else:
            self.counters.failed += batch.count
            self._on_failed(batch)
