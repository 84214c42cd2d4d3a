"""The records that a producer has accepted and not yet settled: batched, bounded, in order.

No I/O, no awaits.

The accumulator takes records in and gives batches out. Beside it stand parts with one state each:

- the buffer memory: the bytes of ``buffer_memory`` and the callers waiting for them;
- the queues: the batches of each partition, grouped by topic, and the choice of a partition;
- the completion: the meaning of responses, and of missing ones;
- the producer's state: identity, epochs, sequence numbers, transaction.

One record takes the fast path of the record path's ``Appender`` where possible. ``append`` is the
complete path and defines the behaviour of both.

The produce manager alone calls the methods that change it. ``append`` is called by the producer's
``send`` and similar calls, ``extend`` by ``send_arrow``.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import NoneType
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from ..._wire import _implementation
from ..._wire._format import HEADER_SIZE as BATCH_OVERHEAD
from ..._wire._format import RECORD_OVERHEAD
from ..._wire.columns import Columns
from ..._wire.partitioning import BY_MURMUR2, KeyRule
from ..._wire.records import BatchEncoder
from ...config.whole import whole
from ...errors import RecordTooLargeError
from ...interfaces import Partitioner
from ...types import Headers, UnsentRecord
from ..arguments import HeaderPairs, as_bytes, check_headers, check_target, check_timestamp
from .batch_completion import BatchCompletion, BatchReports, Counters, OldestBatch
from .producer_batch import ProducerBatch
from .queues import (
    PRODUCER_ID,
    BlockedSince,
    Partitioning,
    PartitionQueue,
    Queues,
    RowGroup,
    TopicQueues,
    not_added,
)
from .sequences import ProducerIdentity, ProducerState

Ack = TypeVar("Ack")
#: The size up to which rows of a table fill a batch, unless ``batch_size`` is larger. From here on
#: the fixed cost of a batch is not noticeable, while a broker's work for a record grows with the
#: batch (twice as much at 1 MiB, measured).
TABLE_BATCH = 1 << 18


@dataclass(frozen=True, slots=True)
class BufferLimits:
    """The bounds of an accumulator. Times are in seconds."""

    batch_size: int
    linger: float
    buffer_memory: int
    max_request_size: int
    delivery_timeout: float
    retries: float = math.inf
    #: How long (seconds) a broker may be out of reach before keyless records go elsewhere; 0: no
    #: limit.
    availability_timeout: float = 0.0

    @property
    def largest(self) -> int:
        """The largest upper bound of a record's size that is accepted."""
        return min(self.max_request_size, self.buffer_memory) - BATCH_OVERHEAD

    @property
    def table_batch(self) -> int:
        """The size up to which rows of a table fill a batch."""
        return max(self.batch_size, min(self.max_request_size, TABLE_BATCH))


class Taken(NamedTuple):
    """The rows of a table that went into one batch.

    ``first`` is the index of the first of them in the batch, ``next`` the position in the table
    from which to continue.
    """

    batch: ProducerBatch
    first: int
    next: int


class Waiter(Protocol):
    """A caller that waits for room. ``set`` is called when the caller is to check again."""

    def set(self) -> object: ...


class Accumulator(Generic[Ack]):
    """The batches of all partitions of one producer.

    ``Ack`` is the type that ``append`` returns, a subclass of the record path's ``DeliveryHandle``.

    ``on_work(leader)`` is called when something may have become sendable to that broker. With
    ``None`` the leader is not known. It must be quick and must not call the accumulator.
    """

    def __init__(
        self,
        limits: BufferLimits,
        producer: ProducerState,
        *,
        make_encoder: Callable[[], BatchEncoder],
        handle: type[Ack],
        clock: Callable[[], float],
        delay: Callable[[int], float],
        on_work: Callable[[int | None], object],
        reports: BatchReports | None = None,
        partitioner: Partitioner | None = None,
        keys: KeyRule = BY_MURMUR2,
        adaptive: bool = True,
        choose: random.Random | None = None,
        is_in_rack: Callable[[int], bool] | None = None,
    ) -> None:
        self._limits = limits
        self._linger = limits.linger
        self._make_encoder = make_encoder
        self._on_work = on_work
        self._clock = clock
        self._blocked_since: BlockedSince = {}
        #: The identity, epochs and sequence numbers by which brokers know the producer.
        self.producer = producer
        self._memory = _implementation.current.BufferMemory(limits.buffer_memory)
        how = Partitioning(
            limits.batch_size,
            partitioner,
            keys,
            adaptive,
            self._is_out_of_reach,
            is_in_rack,
            choose or random.Random(),
        )
        self._queues = Queues(
            how,
            limits.table_batch,
            producer,
            self._blocked_since,
            clock,
            on_work=on_work,
            on_closed=lambda batch: self.completion.closed(batch),
        )
        #: The part that learns what became of batches.
        self.completion = BatchCompletion(
            self._queues,
            self._memory,
            producer,
            self._blocked_since,
            delivery_timeout=limits.delivery_timeout,
            retries=limits.retries,
            make_encoder=make_encoder,
            delay=delay,
            on_work=on_work,
            reports=reports or BatchReports(),
        )
        # Read for each record, so kept without an indirection.
        self._batch_size = limits.batch_size
        self._largest = limits.largest
        #: The fast path for one record.
        self.appender: Any = _implementation.current.Appender(
            handle,  # type: ignore[arg-type]
            self.append,
            self._memory,
            limits.batch_size,
            limits.largest,
            careful=partitioner is not None,
            key_hash=keys.kind,
            shortest_key=keys.shortest,
        )

    def _is_out_of_reach(self, node: int) -> bool:
        patience = self._limits.availability_timeout
        if not patience:
            return False
        known = (self._blocked_since.get(obstacle) for obstacle in (node, _full(node)))
        first = min((since for since in known if since is not None), default=math.inf)
        return patience <= self._clock() - first

    # --- contents ---------------------------------------------------------------------------------

    @property
    def used(self) -> int:
        """The bytes of ``buffer_memory`` in use."""
        return self._memory.capacity - self._memory.free

    @property
    def largest(self) -> int:
        """The largest upper bound of a record's size that is accepted."""
        return self._largest

    @property
    def counters(self) -> Counters:
        """The counts of records and batches by outcome."""
        return self.completion.counters

    @property
    def leaderless(self) -> set[str]:
        """The topics with batches for partitions without a known leader."""
        return {queue.place.topic for queue in self._queues.led_by(None)}

    def partition_count(self, topic: str) -> int | None:
        """Return the number of partitions of the topic; ``None`` if the topic is not known here."""
        known = self._queues.topics.get(topic)
        return None if known is None else len(known.queues)

    def batches(self) -> list[ProducerBatch]:
        """Return the batches that are not done."""
        return list(self._queues.batches())

    def by_state(self) -> dict[str, int]:
        """Return the number of batches in each state.

        The keys are ``open``, ``waiting``, ``retrying`` and ``in flight``.
        """
        found = dict.fromkeys(("open", "waiting", "retrying", "in flight"), 0)
        for batch in self._queues.batches():
            if batch.in_flight:
                found["in flight"] += 1
            else:
                is_open = self._queues.is_open(batch)
                found["open" if is_open else "retrying" if batch.attempts else "waiting"] += 1
        return found

    def unsettled(self) -> list[ProducerBatch]:
        """Return the batches whose acks have no outcome yet."""
        return [batch for batch in self._queues.batches() if not batch.settled]

    @property
    def last_error(self) -> Exception | None:
        """The error of the last failed attempt or batch; ``None`` after a later delivery."""
        return self.completion.last_error

    def oldest(self) -> UnsentRecord | None:
        """Return the record that has been without an outcome for longest."""
        return self.completion.oldest(self._clock())

    def heads(self) -> list[OldestBatch]:
        """Return the first batch without an outcome of each partition that has one."""
        return self.completion.heads(self._clock(), self._linger)

    # --- the cluster and the producer's identity --------------------------------------------------

    def update_topic(self, name: str, leaders: Sequence[int | None]) -> None:
        """Set a topic's partitions and leaders: ``leaders[p]`` leads partition ``p``."""
        self.appender.topics[name] = self._queues.update(name, leaders).open

    def forget_topic(self, name: str) -> None:
        """Accept no more records for a topic that the cluster does not know (any more).

        Batches that wait keep waiting.
        """
        self.appender.topics.pop(name, None)
        self._queues.forget(name)

    def identified(self, identity: ProducerIdentity, *, restart: bool = False) -> None:
        """Set the id and epoch that a broker has assigned to the producer.

        ``restart``: every partition restarts its sequence numbers under this identity. Without it,
        only partitions that have no numbers yet use the identity.
        """
        self.producer.initialized(identity)
        self._blocked_since.pop(PRODUCER_ID, None)
        if restart:
            self._queues.reset_sequences()
        self.wake()

    def wake(self) -> None:
        """Call ``on_work`` for every broker with batches: something may have become sendable."""
        for leader in self._queues.leaders:
            self._on_work(leader)

    # --- records in -------------------------------------------------------------------------------

    # Two ways for one record. The compiled ``Appender`` (``_wire/_native_producing.pxi``) handles
    # the common case: plain bytes, no headers, a known topic whose open batch has room. It calls
    # this method for every other case, errors included, so that only this method decides them. The
    # pure Python ``Appender`` knows no fast path and always comes here. ``QuickSending`` is the
    # same for the producer's calls of one record.
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
        """Append a record and return its ack; ``None`` if there is no room or no such partition.

        ``admitted``: it is the caller's turn among those that wait for room.

        Raises:
            TypeError: a part of the record has a wrong type; nothing was appended.
            ConfigurationError: a value is out of range; nothing was appended.
            RecordTooLargeError: no batch can hold the record; nothing was appended.
        """
        if type(partition) not in (int, NoneType):
            partition = whole(partition)
        known = self._queues.topics.get(topic) if type(topic) is str else None
        if known is None or type(partition) not in (int, NoneType):
            known = self._queues.topics.get(check_target(topic, partition))
        if type(value) is not bytes and value is not None:
            value = as_bytes("value", value)
        if type(key) is not bytes and key is not None:
            key = as_bytes("key", key)
        size = RECORD_OVERHEAD + len(value or b"") + len(key or b"")
        checked: Headers = ()
        if headers is not None and (type(headers) is not tuple or headers):
            checked, more = check_headers(headers)
            size += more
        timestamp = time.time_ns() // 1_000_000 if timestamp is None else check_timestamp(timestamp)
        if size > self._largest:
            raise self.too_large(topic, size)
        memory = self._memory
        if (
            known is None
            or size + BATCH_OVERHEAD > memory.free
            or (memory.waiters and not admitted)
        ):
            return None
        chosen = known.choose(key, partition)
        if chosen is None:
            # Raises if the number is larger than any partition's number can be.
            check_target(topic, partition)
            return None
        encoder = self._encoder_for(known, chosen, size)
        before = encoder.size
        index = encoder.append(timestamp, key, value, checked)
        memory.take(encoder.size - before)
        ack: Ack = self.appender.make(encoder.owner, index, timestamp)
        return ack

    def _encoder_for(self, topic: TopicQueues, partition: int, size: int) -> BatchEncoder:
        """Return the encoder of an open batch with room for ``size`` bytes.

        Partition -1 means the partition that keyless records stick to.
        """
        queue = topic.stuck_to() if partition < 0 else topic.queues[partition]
        encoder: BatchEncoder | None = topic.open.encoders[queue.place.partition]
        if encoder is not None and encoder.size + size > self._batch_size:
            if partition < 0:
                self._queues.close(queue)
                return self._encoder_for(topic, topic.switch().place.partition, size)
            encoder = None
        if encoder is None:
            encoder = self._make_encoder()
            self._open(queue, encoder)
        return encoder

    def _open(self, queue: PartitionQueue, encoder: BatchEncoder) -> ProducerBatch:
        """Open a batch with the content of ``encoder``; the batch before it is closed."""
        batch = ProducerBatch(queue.place.topic, queue.place.partition, encoder, self._clock())
        self._memory.take(batch.size)
        self._queues.add(queue, batch)
        return batch

    def split_rows(
        self, topic: str, columns: Columns, explicit: memoryview | int | None, keyed: bool
    ) -> list[RowGroup]:
        """Group the rows of a table by partition; see :meth:`TopicQueues.split_rows`.

        The topic must be known.
        """
        return self._queues.topics[topic].split_rows(columns, explicit, keyed)

    def extend(
        self, topic: str, columns: Columns, group: RowGroup, start: int, admitted: bool = False
    ) -> Taken | None:
        """Append rows of ``group`` from ``start`` on, as many as one batch takes.

        ``None``: there is no room, or no such partition.
        """
        known = self._queues.topics.get(topic)
        if known is None or (self._memory.waiters and not admitted):
            return None
        if group.partition is None:
            queue = known.stuck_to()
        elif group.partition < len(known.queues):
            queue = known.queues[group.partition]
        else:
            return None
        taken = self._extend_open(queue, known.table_batch, columns, group, start)
        batch = queue.open
        # The open batch is full: the next row did not fail for lack of memory.
        if (
            taken is None
            and group.partition is None
            and batch is not None
            and batch.size + self._memory.free >= known.table_batch
        ):
            self._queues.close(queue)
            queue = known.stuck_to()
            taken = self._extend_open(queue, known.table_batch, columns, group, start)
        return taken or self._extend_new(queue, known.table_batch, columns, group, start)

    def _extend_open(
        self, queue: PartitionQueue, most: int, columns: Columns, group: RowGroup, start: int
    ) -> Taken | None:
        batch = queue.open
        if batch is None or batch.encoder is None:
            return None
        first, before = batch.encoder.count, batch.encoder.size
        end = group.put(batch.encoder, columns, start, min(most, before + self._memory.free))
        self._memory.take(batch.encoder.size - before)
        return Taken(batch, first, end) if end > start else None

    def _extend_new(
        self, queue: PartitionQueue, most: int, columns: Columns, group: RowGroup, start: int
    ) -> Taken | None:
        free = self._memory.free
        encoder = self._make_encoder()
        end = group.put(encoder, columns, start, min(most, free))
        if end == start:
            # A row larger than the usual size of a table's batches gets a batch for itself.
            largest = self._limits.largest + BATCH_OVERHEAD
            end = group._replace(stop=start + 1).put(encoder, columns, start, min(largest, free))
        if end == start:
            return None
        return Taken(self._open(queue, encoder), 0, end)

    def too_large(self, topic: str, size: int, what: str = "a record") -> RecordTooLargeError:
        """Return the error for a record of up to ``size`` bytes, with the exceeded setting."""
        limits = self._limits
        name = (
            "max_request_size"
            if limits.max_request_size <= limits.buffer_memory
            else "buffer_memory"
        )
        advice = name
        if name == "max_request_size":
            advice += " and the topic's max.message.bytes"
        most = limits.largest + BATCH_OVERHEAD
        return RecordTooLargeError(
            f"{what} of up to {size} bytes for {topic!r} is larger than {name} ({most}) allows: "
            f"raise {advice}, or send less at once"
        )

    # First come, first served. Without this rule, a caller with a large record, or with rows of a
    # table, could wait for ever while small records fill each gap. So new calls get no memory while
    # any caller waits, and freed memory wakes only the first waiter. When that one leaves, served
    # or cancelled, it wakes the next.
    def add_waiter(self, waiter: Waiter) -> None:
        """Add ``waiter`` behind the other callers waiting for room.

        While any caller waits, new calls get no room, and no batch lingers.
        """
        self._memory.waiters.append(waiter)
        if self.waiting == 1:
            self.wake()

    def remove_waiter(self, waiter: Waiter) -> None:
        """Remove ``waiter`` and wake the waiter that is first now."""
        self._memory.waiters.remove(waiter)
        self.wake_waiters()

    def is_first_waiter(self, waiter: Waiter) -> bool:
        """Return whether it is the turn of ``waiter``."""
        return self._memory.waiters[0] is waiter

    def wake_waiters(self, *, every: bool = False) -> None:
        """Wake the first waiter, or all waiters, to check again."""
        for waiter in self._memory.waiters[: None if every else 1]:
            waiter.set()

    @property
    def waiting(self) -> int:
        """The number of callers waiting for room."""
        return len(self._memory.waiters)

    def close_open(self) -> None:
        """Close all open batches, so that they are sent as soon as order allows."""
        self._queues.close_all()

    def flush_batches(self, batches: Iterable[ProducerBatch]) -> None:
        """End the linger of these batches.

        An open batch keeps taking records until it is sent.
        """
        for batch in batches:
            if self._queues.is_open(batch) and not batch.flushing:
                batch.flush()
                self._on_work(self._queues.of(batch).leader)

    # --- batches out ------------------------------------------------------------------------------

    def due_at(self, node: int, now: float) -> float:
        """Return the time at which a batch can next be sent to ``node``.

        The time is not after ``now`` if a batch is due, and ``inf`` if none waits.
        """
        linger = 0.0 if self._memory.waiters else self._linger
        earliest = math.inf
        for queue in self._queues.led_by(node):
            batch = self._sendable(queue, node)
            if batch is not None:
                earliest = min(earliest, queue.ready_at(batch, linger))
                if earliest <= now:
                    break
        return earliest

    # One batch a partition and request: a broker answers by partition, so two batches of one
    # partition could not be distinguished in the response. Several requests may be in flight
    # instead, and ``PartitionQueue.sendable`` decides what may follow a batch in flight.
    #
    # The turn of the queues is what keeps a request limit from starving partitions: ``limit`` ends
    # the loop, and the next call begins behind the partitions that were served. The first batch is
    # taken at any size, since a batch larger than ``limit`` has to be sent some time.
    #
    # While any caller waits for room nothing lingers. ``buffer_memory`` is bound in open batches
    # then, and waiting for more records would wait for callers that cannot continue.
    def drain(self, node: int, now: float, limit: int) -> list[ProducerBatch]:
        """Take the batches for the next request to ``node``: one a partition, in turn.

        ``limit``: the request's size in bytes. A queue that contributes a batch goes to the end.
        """
        linger = 0.0 if self._memory.waiters else self._linger
        chosen: list[ProducerBatch] = []
        total = 0
        self._blocked_since.pop(_full(node), None)
        for queue in list(self._queues.led_by(node)):
            batch = self._sendable(queue, node)
            if batch is None or queue.ready_at(batch, linger) > now:
                continue
            if chosen and total + batch.size > limit:
                break
            if batch is queue.open:
                self._queues.close(queue)
            self.completion.sending(batch)
            queue.send(batch, node, self.producer, now)
            total += batch.size
            chosen.append(batch)
            self._queues.move_to_end(queue)
        return chosen

    def seal(self, batches: Iterable[ProducerBatch]) -> None:
        """Compress the drained batches, each once.

        This may run in a thread: a drained batch takes no more records.
        """
        for batch in batches:
            batch.seal()

    def _sendable(self, queue: PartitionQueue, node: int) -> ProducerBatch | None:
        if self.producer.numbered and not self.producer.may_send(queue.sequences):
            obstacle = PRODUCER_ID if self.producer.current is None else not_added(queue.place)
            self._blocked_since.setdefault(obstacle, self._clock())
            return None
        if self.producer.transactional:
            self._blocked_since.pop(not_added(queue.place), None)
        return queue.sendable(node)

    # --- what keeps batches waiting ---------------------------------------------------------------

    def slots_full(self, node: int) -> None:
        """Record that a batch is due to ``node``, and must wait for a response.

        ``node`` has as many requests in flight as allowed.
        """
        self._blocked_since.setdefault(_full(node), self._clock())

    def connecting(self, node: int) -> None:
        """Record that there is no connection to ``node`` yet."""
        self._blocked_since.setdefault(node, self._clock())

    def connected(self, node: int) -> None:
        """Clear the obstacles of ``node``.

        It is connected, or no batch waits for it any more: those that did may have expired.
        """
        self._blocked_since.pop(node, None)
        self._blocked_since.pop(_full(node), None)

    def delayed(self, error: Exception) -> None:
        """Record ``error`` as :meth:`BatchCompletion.unreachable` does, for every broker."""
        for leader in self._queues.leaders:
            self.completion.unreachable(leader, error)

    def abort(self, error: Exception, *, anonymous: bool = False, at_most: float = math.inf) -> int:
        """Fail all batches, those in flight included; see :meth:`BatchCompletion.abort`."""
        return self.completion.abort(error, self._clock(), anonymous=anonymous, at_most=at_most)

    def abort_unsent(self, error: Exception, at_most: float) -> int:
        """Fail the batches that were never sent; see :meth:`BatchCompletion.abort_unsent`."""
        return self.completion.abort_unsent(error, self._clock(), at_most)


def _full(node: int) -> tuple[str, int]:
    """Return the obstacle key of a broker with as many requests in flight as allowed."""
    return "full", node
