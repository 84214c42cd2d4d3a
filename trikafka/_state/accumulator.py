"""The records that a producer has accepted and not yet settled: batched, bounded, in order. No I/O, no awaits.

Made of parts: the buffer pool (``buffer_memory`` and who waits for it), the queues (a partition's batches each, under their topics,
which choose partitions), the intake (records in), the outcomes (what responses mean), and the producer's state. The produce
manager alone calls what changes it; ``append`` is called by the producer's ``send`` and its kin, ``extend`` by its ``send_arrow``.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic

from .._wire.columns import Columns
from .._wire.records import BatchEncoder
from ..errors import RecordTooLargeError, TrikafkaError
from ..types import UnsentRecord
from .arguments import HeaderPairs
from .buffer_pool import BufferPool, Waiter
from .delivery_time import PRODUCER_ID, Obstacles, not_added
from .intake import Ack, Intake, Limits
from .outcomes import Counters, Outcomes
from .partition_chooser import Partitioner, Partitioning
from .partition_queue import PartitionQueue
from .producer_batch import ProducerBatch
from .producer_state import ProducerState
from .sequences import Identity
from .table_rows import RowGroup, Taken
from .topic_queues import Queues

__all__ = ["Accumulator", "Counters", "Limits", "Partitioner"]


class Accumulator(Generic[Ack]):
    """All partitions of one producer. ``Ack`` is what ``append`` returns, a subclass of the record path's ``DeliveryHandle``.

    ``on_work(leader)`` is called when something may have become sendable to that broker (``None``: the leader is not known);
    ``on_failed(batch)`` when a batch has failed. They must be quick and not call back.
    """

    def __init__(
        self,
        limits: Limits,
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
        self._linger, self._on_work = limits.linger, on_work
        self._largest, self._clock = limits.largest, clock
        self._obstacles = Obstacles(clock)
        #: Who the producer is to the brokers.
        self.producer = producer
        self.pool = BufferPool(limits.buffer_memory)
        self._patience = limits.availability_timeout
        how = Partitioning(limits.batch_size, partitioner, ignore_keys, adaptive, self._is_out_of_reach, choose or random.Random())
        self._queues = Queues(how, limits.table_batch, producer, self._obstacles, on_work=on_work, on_closed=self._closed)
        self._outcomes = Outcomes(
            self._queues,
            self.pool,
            producer,
            self._obstacles,
            delivery_timeout=limits.delivery_timeout,
            retries=limits.retries,
            make_encoder=make_encoder,
            delay=delay,
            on_work=on_work,
            on_failed=on_failed,
            counters=counters,
        )
        self._intake: Intake[Ack] = Intake(
            limits, self.pool, self._queues, how, make_encoder=make_encoder, handle=handle, clock=clock
        )

    def _is_out_of_reach(self, node: int) -> bool:
        if not self._patience:
            return False
        known = (self._obstacles.since(obstacle) for obstacle in (node, _full(node)))
        first = min((since for since in known if since is not None), default=math.inf)
        return self._patience <= self._clock() - first

    def _closed(self, batch: ProducerBatch) -> None:
        self._outcomes.counters.closed(batch)

    # --- what is there -----------------------------------------------------------------------------------------------

    @property
    def appender(self) -> Any:
        """The quick way in for one record."""
        return self._intake.appender

    @property
    def used(self) -> int:
        """Bytes of ``buffer_memory`` in use."""
        return self.pool.used

    @property
    def largest(self) -> int:
        """The largest upper bound that a record may have."""
        return self._largest

    @property
    def counters(self) -> Counters:
        """What has become of the records."""
        return self._outcomes.counters

    @property
    def leaderless(self) -> set[str]:
        """Topics with batches for partitions whose leader is not known."""
        return {queue.place.topic for queue in self._queues.led_by(None)}

    def partition_count(self, topic: str) -> int | None:
        """How many partitions the topic has; ``None`` if it is not known here."""
        known = self._queues.topic(topic)
        return None if known is None else len(known.queues)

    def batches(self) -> list[ProducerBatch]:
        """The batches that are not done."""
        return list(self._queues.batches())

    def by_state(self) -> dict[str, int]:
        """How many batches there are in each state: ``open``, ``waiting``, ``retrying`` and ``in flight``."""
        found = dict.fromkeys(("open", "waiting", "retrying", "in flight"), 0)
        for batch in self._queues.batches():
            if batch.in_flight:
                found["in flight"] += 1
            else:
                is_open = batch is self._queues.of(batch).open
                found["open" if is_open else "retrying" if batch.delivery.attempts else "waiting"] += 1
        return found

    def unsettled(self) -> list[ProducerBatch]:
        """The batches whose acks have no outcome yet."""
        return [batch for batch in self._queues.batches() if not batch.settled]

    @property
    def last_error(self) -> Exception | None:
        """What an attempt, or a batch, failed with last; ``None`` once one was delivered after that."""
        return self._outcomes.last_error

    def oldest(self) -> UnsentRecord | None:
        """The record that has been without an outcome for longest."""
        return self._outcomes.oldest(self._clock())

    # --- the cluster, and who the producer is ------------------------------------------------------------------------

    def update_topic(self, name: str, leaders: Sequence[int | None]) -> None:
        """Take over a topic's partitions: ``leaders[p]`` leads partition ``p``."""
        self.appender.topics[name] = self._queues.update(name, leaders).open

    def forget_topic(self, name: str) -> None:
        """The cluster does not know the topic (any more): accept no records for it; what waits goes on waiting."""
        self.appender.topics.pop(name, None)
        self._queues.forget(name)

    def identified(self, identity: Identity, *, anew: bool = False) -> None:
        """A broker gave the producer this id and epoch.

        With ``anew`` all sequence numbers begin anew under it; otherwise those of partitions that have none.
        """
        self.producer.initialized(identity)
        self._obstacles.overcome(PRODUCER_ID)
        if anew:
            for queue in self._queues.every():
                queue.renounce()
        self.wake()

    def wake(self) -> None:
        """Something may have become sendable to every broker."""
        for leader in self._queues.leaders:
            self._on_work(leader)

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
        """Take a record; see :meth:`Intake.append`."""
        return self._intake.append(topic, value, key, headers, timestamp, partition, admitted)

    def split_rows(self, topic: str, columns: Columns, explicit: memoryview | int | None, keyed: bool) -> list[RowGroup]:
        """Decide where rows of a table go, see :meth:`PartitionChooser.split_rows`. The topic must be known."""
        known = self._queues.topic(topic)
        assert known is not None
        return known.chooser.split_rows(columns, explicit, keyed)

    def extend(self, topic: str, columns: Columns, group: RowGroup, start: int, admitted: bool = False) -> Taken | None:
        """Take rows of a table; see :meth:`Intake.extend`."""
        return self._intake.extend(topic, columns, group, start, admitted)

    def too_large(self, topic: str, size: int, what: str = "a record") -> RecordTooLargeError:
        """The error that says so."""
        return self._intake.too_large(topic, size, what)

    def join(self, waiter: Waiter) -> None:
        """``waiter`` waits for room. While somebody does, newcomers get none, and no batch lingers."""
        lingered = not self.pool.exhausted
        self.pool.join(waiter)
        if lingered:
            self.wake()

    def close_open(self) -> None:
        """Let no batch linger any more: what has been accepted so far is sent as soon as order allows."""
        self._queues.close_all()

    def hurry(self, batches: Iterable[ProducerBatch]) -> None:
        """Let these batches linger no more; those that are open go on taking records until they are sent."""
        for batch in batches:
            queue = self._queues.of(batch)
            if batch is queue.open and not batch.hurried:
                batch.hurry()
                self._on_work(queue.leader)

    # --- batches out -------------------------------------------------------------------------------------------------

    def due_at(self, node: int, now: float) -> float:
        """When something can be sent to ``node``: not after ``now`` if there is something, ``inf`` if nothing waits."""
        linger = 0.0 if self.pool.exhausted else self._linger
        earliest = math.inf
        for queue in self._queues.led_by(node):
            batch = self._sendable(queue, node)
            if batch is not None:
                earliest = min(earliest, queue.ready_at(batch, linger))
                if earliest <= now:
                    break
        return earliest

    def drain(self, node: int, now: float, limit: int) -> list[ProducerBatch]:
        """Take the batches for the next request to ``node``: one a partition, ``limit`` bytes in all, in turn."""
        linger = 0.0 if self.pool.exhausted else self._linger
        chosen: list[ProducerBatch] = []
        total = 0
        self._obstacles.overcome(_full(node))
        for queue in list(self._queues.led_by(node)):
            batch = self._sendable(queue, node)
            if batch is None or queue.ready_at(batch, linger) > now:
                continue
            if chosen and total + batch.size > limit:
                break
            if batch is queue.open:
                self._queues.close(queue)
            self._outcomes.counters.sent(batch)
            queue.send(batch, node, self.producer, now)
            total += batch.size
            chosen.append(batch)
            self._queues.to_the_end(queue)
        return chosen

    def seal(self, batches: Iterable[ProducerBatch]) -> None:
        """Compress what was drained, each batch once. May run in a thread: a batch that was drained takes no more records."""
        for batch in batches:
            batch.seal()

    def _sendable(self, queue: PartitionQueue, node: int) -> ProducerBatch | None:
        if self.producer.numbered and not self.producer.admits(queue.sequences):
            self._obstacles.met(PRODUCER_ID if self.producer.current is None else not_added(queue.place))
            return None
        if self.producer.transactional:
            self._obstacles.overcome(not_added(queue.place))
        return queue.sendable(node)

    # --- what became of them -----------------------------------------------------------------------------------------

    def succeeded(self, batch: ProducerBatch, base_offset: int | None, append_time: int | None) -> None:
        """The broker has the batch."""
        self._outcomes.succeeded(batch, base_offset, append_time)

    def refused(self, batch: ProducerBatch, error: TrikafkaError, now: float, *, unsent: bool = False) -> None:
        """The broker refused the batch, or nobody knows whether it took it; see :meth:`Outcomes.refused`."""
        self._outcomes.refused(batch, error, now, unsent=unsent)

    def records_refused(self, batch: ProducerBatch, error: TrikafkaError, refused: Mapping[int, TrikafkaError], now: float) -> None:
        """The broker refused the batch because of some of its records (KIP-467); see :meth:`Outcomes.records_refused`."""
        self._outcomes.records_refused(batch, error, refused, now)

    def held_up(self, node: int) -> None:
        """Something is due to ``node``, which has as many requests to respond to as it may have."""
        self._obstacles.met(_full(node))

    def connecting(self, node: int) -> None:
        """There is no connection to ``node`` yet."""
        self._obstacles.met(node)

    def connected(self, node: int) -> None:
        """There is one, or nothing waits for it any more: what was held up may have expired."""
        self._obstacles.overcome(node)
        self._obstacles.overcome(_full(node))

    def unreachable(self, node: int, error: Exception) -> None:
        """There is no connection to ``node``: what waits for it knows why, should its time be up."""
        self._outcomes.unreachable(node, error)

    def throttled(self, node: int, error: Exception) -> None:
        """A quota of ``node`` keeps back what waits for it and what is in flight: they know why, should their time be up."""
        self._outcomes.throttled(node, error)

    def delayed(self, error: Exception) -> None:
        """Nothing can be sent to any broker: as :meth:`unreachable`."""
        for leader in self._queues.leaders:
            self._outcomes.unreachable(leader, error)

    def expire(self, now: float, at_most: float = math.inf) -> int:
        """Fail the batches that are older than the delivery timeout (KIP-91); see :meth:`Outcomes.expire`."""
        return self._outcomes.expire(now, at_most)

    def next_deadline(self) -> float:
        """When the next batch expires; ``inf`` if there is none."""
        return self._outcomes.next_deadline()

    def abort(self, error: Exception, *, anonymous: bool = False, at_most: float = math.inf) -> int:
        """Fail everything, what is in flight included; see :meth:`Outcomes.abort`."""
        return self._outcomes.abort(error, self._clock(), anonymous=anonymous, at_most=at_most)

    def abort_unsent(self, error: Exception, at_most: float = math.inf) -> int:
        """Fail what was never sent; see :meth:`Outcomes.abort_unsent`."""
        return self._outcomes.abort_unsent(error, self._clock(), at_most)


def _full(node: int) -> tuple[str, int]:
    """The obstacle that a broker is which has as many requests to respond to as it may have."""
    return "full", node
