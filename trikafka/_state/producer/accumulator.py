"""The records that a producer has accepted and not yet settled: batched, bounded, in order.

No I/O, no awaits.

The accumulator is a facade over parts with one state each:

- the buffer pool: ``buffer_memory`` and the callers waiting for it;
- the queues: the batches of each partition, grouped by topic, and the choice of a partition;
- the intake: records in;
- the outcomes: the meaning of responses, and of missing ones;
- the producer's state: identity, epochs, sequence numbers, transaction.

The produce manager alone calls the methods that change it. ``append`` is called by the producer's
``send`` and similar calls, ``extend`` by ``send_arrow``.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic

from ..._wire.columns import Columns
from ..._wire.records import BatchEncoder
from ...errors import RecordTooLargeError, TrikafkaError
from ...types import UnsentRecord
from ..arguments import HeaderPairs
from .batch_completion import BatchCompletion, Counters, OldestBatch
from .buffer_pool import BufferPool, Waiter
from .partition_chooser import Partitioner, Partitioning
from .partition_queue import PartitionQueue
from .producer_batch import ProducerBatch
from .producer_state import ProducerState
from .record_appender import Ack, BufferLimits, RecordAppender
from .sequences import ProducerIdentity
from .table_rows import RowGroup, Taken
from .topic_queues import PRODUCER_ID, BlockedSince, Queues, not_added

__all__ = ["Accumulator", "Counters", "BufferLimits", "Partitioner"]


class Accumulator(Generic[Ack]):
    """The batches of all partitions of one producer.

    ``Ack`` is the type that ``append`` returns, a subclass of the record path's ``DeliveryHandle``.

    ``on_work(leader)`` is called when something may have become sendable to that broker. With
    ``None`` the leader is not known. ``on_failed(batch)`` is called when a batch has failed. Both
    must be quick and must not call the accumulator.
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
        on_failed: Callable[[ProducerBatch], object] = lambda batch: None,
        partitioner: Partitioner | None = None,
        counters: Counters | None = None,
        ignore_keys: bool = False,
        adaptive: bool = True,
        choose: random.Random | None = None,
    ) -> None:
        self._linger = limits.linger
        self._on_work = on_work
        self._largest = limits.largest
        self._clock = clock
        self._blocked_since = BlockedSince(clock)
        #: The identity, epochs and sequence numbers by which brokers know the producer.
        self.producer = producer
        self.pool = BufferPool(limits.buffer_memory)
        self._patience = limits.availability_timeout
        how = Partitioning(
            limits.batch_size,
            partitioner,
            ignore_keys,
            adaptive,
            self._is_out_of_reach,
            choose or random.Random(),
        )
        self._queues = Queues(
            how,
            limits.table_batch,
            producer,
            self._blocked_since,
            on_work=on_work,
            on_closed=self._closed,
        )
        self._completion = BatchCompletion(
            self._queues,
            self.pool,
            producer,
            self._blocked_since,
            delivery_timeout=limits.delivery_timeout,
            retries=limits.retries,
            make_encoder=make_encoder,
            delay=delay,
            on_work=on_work,
            on_failed=on_failed,
            counters=counters,
        )
        self._appender: RecordAppender[Ack] = RecordAppender(
            limits,
            self.pool,
            self._queues,
            how,
            make_encoder=make_encoder,
            handle=handle,
            clock=clock,
        )

    def _is_out_of_reach(self, node: int) -> bool:
        if not self._patience:
            return False
        known = (self._blocked_since.since(obstacle) for obstacle in (node, _full(node)))
        first = min((since for since in known if since is not None), default=math.inf)
        return self._patience <= self._clock() - first

    def _closed(self, batch: ProducerBatch) -> None:
        self._completion.counters.closed(batch)

    # --- contents ---------------------------------------------------------------------------------

    @property
    def appender(self) -> Any:
        """The fast path for one record: the record path's ``Appender``."""
        return self._appender.appender

    @property
    def used(self) -> int:
        """The bytes of ``buffer_memory`` in use."""
        return self.pool.used

    @property
    def largest(self) -> int:
        """The largest upper bound of a record's size that is accepted."""
        return self._largest

    @property
    def counters(self) -> Counters:
        """The counts of records and batches by outcome."""
        return self._completion.counters

    @property
    def leaderless(self) -> set[str]:
        """The topics with batches for partitions without a known leader."""
        return {queue.place.topic for queue in self._queues.led_by(None)}

    def partition_count(self, topic: str) -> int | None:
        """Return the number of partitions of the topic; ``None`` if the topic is not known here."""
        known = self._queues.topic(topic)
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
                is_open = batch is self._queues.of(batch).open
                found["open" if is_open else "retrying" if batch.attempts else "waiting"] += 1
        return found

    def unsettled(self) -> list[ProducerBatch]:
        """Return the batches whose acks have no outcome yet."""
        return [batch for batch in self._queues.batches() if not batch.settled]

    @property
    def last_error(self) -> Exception | None:
        """The error of the last failed attempt or batch; ``None`` after a later delivery."""
        return self._completion.last_error

    def oldest(self) -> UnsentRecord | None:
        """Return the record that has been without an outcome for longest."""
        return self._completion.oldest(self._clock())

    def heads(self) -> list[OldestBatch]:
        """Return the first batch without an outcome of each partition that has one."""
        return self._completion.heads(self._clock(), self._linger)

    # --- the cluster and the producer's identity --------------------------------------------------

    def update_topic(self, name: str, leaders: Sequence[int | None]) -> None:
        """Take over a topic's partitions: ``leaders[p]`` leads partition ``p``."""
        self.appender.topics[name] = self._queues.update(name, leaders).open

    def forget_topic(self, name: str) -> None:
        """Accept no more records for a topic that the cluster does not know (any more).

        Batches that wait keep waiting.
        """
        self.appender.topics.pop(name, None)
        self._queues.forget(name)

    def identified(self, identity: ProducerIdentity, *, restart: bool = False) -> None:
        """Take over the id and epoch that a broker gave the producer.

        ``restart``: every partition restarts its sequence numbers under this identity. Without it only
        partitions that have no numbers yet use the identity.
        """
        self.producer.initialized(identity)
        self._blocked_since.overcome(PRODUCER_ID)
        if restart:
            for queue in self._queues.every():
                queue.reset_sequences()
        self.wake()

    def wake(self) -> None:
        """Call ``on_work`` for every broker with batches: something may have become sendable."""
        for leader in self._queues.leaders:
            self._on_work(leader)

    # --- records in -------------------------------------------------------------------------------

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
        """Append one record; see :meth:`RecordAppender.append`."""
        return self._appender.append(topic, value, key, headers, timestamp, partition, admitted)

    def split_rows(
        self, topic: str, columns: Columns, explicit: memoryview | int | None, keyed: bool
    ) -> list[RowGroup]:
        """Group the rows of a table by partition; see :meth:`PartitionChooser.split_rows`.

        The topic must be known.
        """
        known = self._queues.topic(topic)
        assert known is not None
        return known.chooser.split_rows(columns, explicit, keyed)

    def extend(
        self, topic: str, columns: Columns, group: RowGroup, start: int, admitted: bool = False
    ) -> Taken | None:
        """Append rows of a table; see :meth:`RecordAppender.extend`."""
        return self._appender.extend(topic, columns, group, start, admitted)

    def too_large(self, topic: str, size: int, what: str = "a record") -> RecordTooLargeError:
        """Return the error for a record of ``size`` bytes, which exceeds a limit."""
        return self._appender.too_large(topic, size, what)

    def add_waiter(self, waiter: Waiter) -> None:
        """Add ``waiter`` to the callers waiting for room.

        While any caller waits, new calls get no room, and no batch lingers.
        """
        lingered = not self.pool.exhausted
        self.pool.add_waiter(waiter)
        if lingered:
            self.wake()

    def close_open(self) -> None:
        """Close all open batches, so that they are sent as soon as order allows."""
        self._queues.close_all()

    def flush_batches(self, batches: Iterable[ProducerBatch]) -> None:
        """End the linger of these batches.

        An open batch keeps taking records until it is sent.
        """
        for batch in batches:
            queue = self._queues.of(batch)
            if batch is queue.open and not batch.flushing:
                batch.flush()
                self._on_work(queue.leader)

    # --- batches out ------------------------------------------------------------------------------

    def due_at(self, node: int, now: float) -> float:
        """Return the time at which a batch can next be sent to ``node``.

        The time is not after ``now`` if a batch is due, and ``inf`` if none waits.
        """
        linger = 0.0 if self.pool.exhausted else self._linger
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
        linger = 0.0 if self.pool.exhausted else self._linger
        chosen: list[ProducerBatch] = []
        total = 0
        self._blocked_since.overcome(_full(node))
        for queue in list(self._queues.led_by(node)):
            batch = self._sendable(queue, node)
            if batch is None or queue.ready_at(batch, linger) > now:
                continue
            if chosen and total + batch.size > limit:
                break
            if batch is queue.open:
                self._queues.close(queue)
            self._completion.counters.sent(batch)
            queue.send(batch, node, self.producer, now)
            total += batch.size
            chosen.append(batch)
            self._queues.to_the_end(queue)
        return chosen

    def seal(self, batches: Iterable[ProducerBatch]) -> None:
        """Compress the drained batches, each once.

        This may run in a thread: a drained batch takes no more records.
        """
        for batch in batches:
            batch.seal()

    def _sendable(self, queue: PartitionQueue, node: int) -> ProducerBatch | None:
        if self.producer.numbered and not self.producer.may_send(queue.sequences):
            self._blocked_since.met(
                PRODUCER_ID if self.producer.current is None else not_added(queue.place)
            )
            return None
        if self.producer.transactional:
            self._blocked_since.overcome(not_added(queue.place))
        return queue.sendable(node)

    # --- results of batches -----------------------------------------------------------------------

    def succeeded(
        self, batch: ProducerBatch, base_offset: int | None, append_time: int | None
    ) -> None:
        """Complete a batch that the broker acknowledged."""
        self._completion.succeeded(batch, base_offset, append_time)

    def refused(
        self, batch: ProducerBatch, error: TrikafkaError, now: float, *, unsent: bool = False
    ) -> None:
        """Handle a batch that was refused, or whose fate is unknown.

        See :meth:`BatchCompletion.refused`.
        """
        self._completion.refused(batch, error, now, unsent=unsent)

    def records_refused(
        self,
        batch: ProducerBatch,
        error: TrikafkaError,
        refused: Mapping[int, TrikafkaError],
        now: float,
    ) -> None:
        """Handle a batch refused because of some records.

        See :meth:`BatchCompletion.records_refused`.
        """
        self._completion.records_refused(batch, error, refused, now)

    def held_up(self, node: int) -> None:
        """Record that a batch is due to ``node``, which has no free request slot.

        ``node`` has as many requests in flight as allowed.
        """
        self._blocked_since.met(_full(node))

    def connecting(self, node: int) -> None:
        """Record that there is no connection to ``node`` yet."""
        self._blocked_since.met(node)

    def connected(self, node: int) -> None:
        """Clear the obstacles of ``node``.

        It is connected, or no batch waits for it any more: those that did may have expired.
        """
        self._blocked_since.overcome(node)
        self._blocked_since.overcome(_full(node))

    def unreachable(self, node: int, error: Exception) -> None:
        """Record why ``node`` has no connection, for batches that expire waiting for it."""
        self._completion.unreachable(node, error)

    def throttled(self, node: int, error: Exception) -> None:
        """Record that a quota of ``node`` delays its batches, waiting or in flight.

        Their errors name the quota if they expire.
        """
        self._completion.throttled(node, error)

    def delayed(self, error: Exception) -> None:
        """Record ``error`` as :meth:`unreachable` does, for every broker."""
        for leader in self._queues.leaders:
            self._completion.unreachable(leader, error)

    def expire(self, now: float, at_most: float = math.inf) -> int:
        """Fail the batches older than the delivery timeout (KIP-91).

        See :meth:`BatchCompletion.expire`.
        """
        return self._completion.expire(now, at_most)

    def next_deadline(self) -> float:
        """Return the time at which the next batch expires; ``inf`` if there is none."""
        return self._completion.next_deadline()

    def abort(self, error: Exception, *, anonymous: bool = False, at_most: float = math.inf) -> int:
        """Fail all batches, those in flight included; see :meth:`BatchCompletion.abort`."""
        return self._completion.abort(error, self._clock(), anonymous=anonymous, at_most=at_most)

    def abort_unsent(self, error: Exception, at_most: float = math.inf) -> int:
        """Fail the batches that were never sent; see :meth:`BatchCompletion.abort_unsent`."""
        return self._completion.abort_unsent(error, self._clock(), at_most)


def _full(node: int) -> tuple[str, int]:
    """Return the obstacle key of a broker with as many requests in flight as allowed."""
    return "full", node
