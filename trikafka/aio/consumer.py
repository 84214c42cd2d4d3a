"""The consumer for asyncio: records are taken directly, only the wait for them crosses."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Generic, Self

from .. import Consumer as _Consumer
from .. import ConsumerConfig, Record, RecordBatch, SubscriptionPattern, TopicPartition
from ..interfaces import RebalanceListener
from ..toolkit import check_timeout
from ..types import Key, Value
from .crossing import OpenedClient, on_host
from .guest import Guest
from .methods import crossing, direct, ending, report
from .streams import PartitionStreams
from .taking import ArrowBatches, RecordTaker, taken


# How a record reaches asyncio
# ----------------------------
#
# `receive_nowait` takes a record, or a batch, in one step of the asyncio task that returns it. It
# is the Trio consumer's own method, so everything that it promises holds here: what counts as
# processed, what a commit covers, what a seek does. If nothing is buffered, or a rebalance has to
# be served, it raises `WouldBlock`. Then the *wait* crosses: a Trio task runs the listeners, waits,
# and takes nothing. When it has ended, the asyncio task tries again.
#
# So no record is ever in a future. A cancelled task has either taken its record in the step before,
# or taken nothing.
class Consumer(RecordTaker[Key, Value], OpenedClient):
    """A Kafka consumer for asyncio; made by :func:`trikafka.aio.open_consumer`.

    Iterate over it for records, or use :meth:`batches`, :meth:`arrow_batches` or
    :meth:`partitions`. One task at a time may receive. Arguments and errors are those of
    :class:`trikafka.Consumer`.
    """

    _client: _Consumer[Key, Value]

    @property
    def config(self) -> ConsumerConfig:
        """The settings of this consumer; see :attr:`trikafka.Consumer.config`."""
        return self._client.config

    @property
    def cluster_id(self) -> str | None:
        """The id of the cluster, from the last metadata; ``None`` where the brokers give none."""
        return self._client.cluster_id

    # --- receiving ---

    async def receive(self) -> Record[Key, Value]:
        """Return the next record; wait until there is one.

        Rebalance listeners are called meanwhile. A record counts as processed when the next receive
        begins.

        Raises:
            TrikafkaError: As :meth:`trikafka.Consumer.receive`.

        When cancelled, no record is lost: the next receive returns the same one.
        """
        return await self.__anext__()

    async def receive_batch(self, timeout: float | None = None) -> RecordBatch[Key, Value]:
        """Return the next batch of one partition's records.

        Args:
            timeout: Seconds; ``None`` waits until there is a record.

        Returns:
            A batch; an empty one past ``timeout``.

        Raises:
            TrikafkaError: As :meth:`trikafka.Consumer.receive_batch`.

        When cancelled, no record is lost.
        """
        self._check()
        limit = None if timeout is None else check_timeout(timeout, 0.0)
        deadline = math.inf if limit is None else time.perf_counter() + limit

        async def wait() -> bool:
            left = None if limit is None else max(0.0, deadline - time.perf_counter())
            return await self._client.wait_receivable(left)

        try:
            return await taken(self, self._client.receive_batch_nowait, wait)
        except StopAsyncIteration:
            return RecordBatch.empty()

    def batches(self, until: Mapping[TopicPartition, int] | None = None) -> Batches[Key, Value]:
        """Iterate over batches, endlessly or up to given offsets.

        As :meth:`trikafka.Consumer.batches`.

        Args:
            until: For each partition to read, the offset at which to stop. ``None`` iterates
                endlessly over all partitions.
        """
        self._check()
        return Batches(self, until)

    def arrow_batches(
        self,
        until: Mapping[TopicPartition, int] | None = None,
        *,
        max_rows: int = 131_072,
        max_bytes: int = 16_777_216,
    ) -> ArrowBatches:
        """Iterate over :class:`pyarrow.Table` s, as :meth:`trikafka.Consumer.arrow_batches`.

        Args:
            until: As in :meth:`batches`.
            max_rows: A table grows until it has this many rows.
            max_bytes: A table grows until it has this many bytes.
        """
        self._check()
        self._client.arrow_batches(until, max_rows=max_rows, max_bytes=max_bytes)  # checks them
        return ArrowBatches(self._guest, self.batches(until), max_rows, max_bytes)

    def partitions(self) -> PartitionStreams[Key, Value]:
        """Iterate over a :class:`PartitionStream` for each assigned partition.

        A new stream comes whenever a partition is assigned. Run each one in a task of its own::

            async with asyncio.TaskGroup() as tasks:
                async for stream in consumer.partitions():
                    tasks.create_task(handle(stream))

        As :meth:`trikafka.Consumer.partitions`: go on iterating, because this task serves the
        rebalances. A stream ends when its partition is revoked.

        Raises:
            trio.BusyResourceError: By the iteration, while another task receives or iterates over
                partitions. Receives raise this while other tasks use streams.
        """
        self._check()
        return PartitionStreams(self, self._client.partitions())

    # --- the group ---

    def subscribe(
        self,
        topics: Iterable[str] | re.Pattern[str] | SubscriptionPattern,
        listener: RebalanceListener | None = None,
    ) -> None:
        """Subscribe to topics as a member of the group, as :meth:`trikafka.Consumer.subscribe`.

        Args:
            topics: Names of topics; or a compiled pattern; or a :class:`SubscriptionPattern`.
            listener: An object with the async methods of :class:`RebalanceListener`. They run in
                asyncio, in a copy of the context of the task that receives.
        """
        self._check()
        # The object itself comes first: Trio's side checks it, and errors name it. No rebalance can
        # begin between the two calls.
        if not isinstance(topics, str | re.Pattern | SubscriptionPattern) and isinstance(
            topics, Iterable
        ):
            topics = list(topics)  # an iterator is read once; an array of numpy has no truth value
        self._client.subscribe(topics, listener)
        if listener is not None and topics:
            self._client.subscribe(topics, _HostListener(self._guest, listener))
        self._guest.wake()

    aclose = ending(_Consumer.aclose)
    assign = direct(_Consumer.assign)
    assignment = direct(_Consumer.assignment)
    assignment_epoch = direct(_Consumer.assignment_epoch)
    beginning_offsets = crossing(_Consumer.beginning_offsets)
    client_instance_id = crossing(_Consumer.client_instance_id)
    commit = crossing(_Consumer.commit)
    committed = crossing(_Consumer.committed)
    current_lag = direct(_Consumer.current_lag)
    end_offsets = crossing(_Consumer.end_offsets)
    enforce_rebalance = direct(_Consumer.enforce_rebalance)
    group_metadata = direct(_Consumer.group_metadata)
    health = report(_Consumer.health)
    list_topics = crossing(_Consumer.list_topics)
    mark_processed = direct(_Consumer.mark_processed)
    membership = direct(_Consumer.membership)
    offsets_for_times = crossing(_Consumer.offsets_for_times)
    partitions_for = crossing(_Consumer.partitions_for)
    pause = direct(_Consumer.pause)
    paused = direct(_Consumer.paused)
    position = crossing(_Consumer.position)
    register_metric = direct(_Consumer.register_metric)
    resume = direct(_Consumer.resume)
    seek = direct(_Consumer.seek)
    seek_to_beginning = direct(_Consumer.seek_to_beginning)
    seek_to_end = direct(_Consumer.seek_to_end)
    statistics = report(_Consumer.statistics)
    subscription = direct(_Consumer.subscription)
    topic_ids = crossing(_Consumer.topic_ids)
    unregister_metric = direct(_Consumer.unregister_metric)
    unsubscribe = crossing(_Consumer.unsubscribe)


class Batches(Generic[Key, Value]):
    """An async iterator of :class:`RecordBatch`; made by :meth:`Consumer.batches`.

    A loop may leave it at any time; no record is lost.
    """

    def __init__(
        self, consumer: Consumer[Key, Value], until: Mapping[TopicPartition, int] | None
    ) -> None:
        self._consumer = consumer
        self._batches = consumer._client.batches(until)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> RecordBatch[Key, Value]:
        """Return the next batch; end the iteration when all is read."""
        batches = self._batches
        return await taken(self._consumer, batches.receive_nowait, batches.wait_receivable)

    async def gather(self, max_rows: int, max_bytes: int) -> list[RecordBatch[Any, Any]]:
        """Return the next batch and what else is buffered, up to the given size."""
        batches = self._batches
        return await taken(
            self._consumer,
            partial(batches.gather_nowait, max_rows, max_bytes),
            partial(batches.wait_receivable, raw=True),
        )


class _HostListener(RebalanceListener):
    """A listener for Trio that calls the user's listener in asyncio."""

    def __init__(self, guest: Guest, listener: RebalanceListener) -> None:
        self._guest = guest
        self._listener = listener

    def __repr__(self) -> str:
        return repr(self._listener)

    async def on_partitions_assigned(self, partitions: Sequence[TopicPartition]) -> None:
        await self._call(self._listener.on_partitions_assigned, partitions)

    async def on_partitions_revoked(self, partitions: Sequence[TopicPartition]) -> None:
        await self._call(self._listener.on_partitions_revoked, partitions)

    async def on_partitions_lost(self, partitions: Sequence[TopicPartition]) -> None:
        await self._call(self._listener.on_partitions_lost, partitions)

    async def _call(
        self,
        method: Callable[[Sequence[TopicPartition]], Awaitable[None]],
        partitions: Sequence[TopicPartition],
    ) -> None:
        await on_host(self._guest, "a rebalance listener's method", method, partitions)
