"""The public consumer.

The managers do its work; ``_state`` holds what the consumer knows of its partitions.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Generic

import trio

from ..._managers.group.listener_invoker import check_listener
from ..._net.deadlines import check_timeout
from ..._state.arguments import checked_partition, topic_names
from ..._state.consumer.subscription import Mode
from ..._wire.columns import RecordBatch
from ...config import ConsumerConfig
from ...errors import ConfigurationError, IllegalStateError
from ...interfaces import RebalanceListener
from ...types import (
    Key,
    OffsetAndMetadata,
    OffsetSpec,
    Record,
    SubscriptionPattern,
    TopicPartition,
    Value,
)
from ..client.service import Exit
from .batches import ArrowBatches, Batches
from .committing import Committing
from .handler_tasks import inside_handler, running_handlers
from .health import ConsumerHealth, consumer_health
from .lookups import LookUps
from .parts import ConsumerParts
from .receiving import Receiver
from .statistics import ConsumerStatistics, statistics_of
from .streams import PartitionStreams

_MAX_OFFSET = 2**63 - 1
_UNSUBSCRIBING = "unsubscribe() is under way"


class Consumer(LookUps, Committing, Generic[Key, Value]):
    """A Kafka consumer; made by :func:`trikafka.open_consumer`.

    Iterate over the consumer for records, or use :meth:`batches`, :meth:`arrow_batches` or
    :meth:`partitions`. One task at a time may receive.

    ``timeout=`` is in seconds and bounds all attempts of one call together (default:
    ``default_api_timeout_ms``). Past the timeout the call raises
    :exc:`~trikafka.errors.KafkaTimeoutError`. Cancellation of any method takes effect at once and
    leaves the consumer usable.
    """

    def __init__(self, parts: ConsumerParts) -> None:
        super().__init__(parts)
        core = parts.core
        parts.streams.serve(self)
        self._receiver = Receiver(
            parts.config,
            core.assignment,
            core.buffer,
            parts.readers,
            parts.invoker,
            core.poll_timer,
            core.signals.deliver,
            self._check_receive,
            parts.streams.give_way,
        )
        core.on_news(self._receiver.news)

    def __repr__(self) -> str:
        return (
            f"<trikafka.Consumer group_id={self._config.group_id!r} "
            f"partitions={len(self._assignment)}>"
        )

    @property
    def config(self) -> ConsumerConfig:
        """The settings of this consumer, with their defaults.

        The object is frozen. Passwords and keys in it hide themselves from ``repr``.
        """
        return self._config

    @property
    def is_closed(self) -> bool:
        """True once closing has begun: nothing is received any more."""
        return self._closed

    @property
    def cluster_id(self) -> str | None:
        """The id of the cluster, from the last metadata; ``None`` where the brokers give none."""
        return self._parts.metadata.snapshot.cluster_id

    # --- calls that return at once ---

    def subscribe(
        self,
        topics: Iterable[str] | re.Pattern[str] | SubscriptionPattern,
        listener: RebalanceListener | None = None,
    ) -> None:
        """Subscribe to topics as a member of the group.

        Replaces an earlier subscription and its listener. An empty ``topics`` starts
        :meth:`unsubscribe` in the background (seed 001). After an error that stopped the group's
        work, such as a missing authorization, this call makes the consumer join again.

        Args:
            topics: Names of topics; or a compiled pattern, for all topics whose whole name matches;
                or a :class:`SubscriptionPattern` in RE2's syntax, which the broker matches. The
                last one needs the consumer protocol (KIP-848).
            listener: An object with the async methods of :class:`RebalanceListener`.

        Raises:
            ConfigurationError: The consumer has no ``group_id``, or ``listener`` is not a listener
                (its methods must be ``async``), or a :class:`SubscriptionPattern` meets
                ``group_protocol="classic"``.
            IllegalStateError: The consumer has called :meth:`assign`, or has another kind of
                subscription (topics, a pattern, the broker's pattern). :meth:`unsubscribe` first.
            trio.BusyResourceError: Another task unsubscribes.
            trio.ClosedResourceError: The consumer is closed.
        """
        self._settled()
        if self._parts.group.membership is None:
            raise ConfigurationError(
                "subscribing needs a group_id; to read without a group use assign()"
            )
        check_listener(listener)
        if isinstance(topics, re.Pattern):
            self._subscription.subscribe_pattern(topics)
            self._parts.metadata.want((), everything=True)
        elif isinstance(topics, SubscriptionPattern):
            if self._config.group_protocol == "classic":
                raise ConfigurationError(
                    "a SubscriptionPattern needs group_protocol='consumer' (or 'auto')"
                )
            self._subscription.subscribe_broker_pattern(topics)
        elif not (names := topic_names(topics)):
            self.assign(())
            return
        else:
            self._subscription.subscribe(names)
            self._parts.metadata.want(self._subscription.topics)
        self._parts.metadata.request_update()
        self._parts.use_listener(listener)
        self._parts.group.membership.subscription_changed()

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read exactly these partitions, without a group's coordination.

        Partitions that were assigned before keep their positions. An empty ``partitions`` assigns
        nothing; a consumer that was subscribed leaves its group in the background.

        Args:
            partitions: All partitions to read from now on.

        Raises:
            IllegalStateError: The consumer is subscribed to topics.
            trio.BusyResourceError: Another task unsubscribes.
            trio.ClosedResourceError: The consumer is closed.
        """
        self._settled()
        wanted = [checked_partition(tp) for tp in partitions]
        if not wanted and self._subscription.grouped:
            self._unsubscribe_soon()
            return
        if self._parts.group.auto_commit is not None and not self._subscription.grouped:
            self._parts.group.auto_commit.carry_over(frozenset(wanted))
        self._parts.metadata.want({tp.topic for tp in wanted})
        if wanted:
            self._subscription.assign(wanted)
        else:
            self._subscription.clear()

    def assignment(self) -> frozenset[TopicPartition]:
        """Return the partitions that this consumer has now."""
        return frozenset(self._assignment.partitions)

    def assignment_epoch(self, partition: TopicPartition) -> int | None:
        """Return the number of a partition's assignment to this consumer.

        A partition that was revoked and is assigned again has a higher number. So a worker can
        distinguish records of an earlier assignment from records of this one.

        Args:
            partition: The partition.

        Returns:
            The number; ``None`` while the partition is not assigned.
        """
        assigned = self._assignment.partitions.get(partition)
        return None if assigned is None else assigned.number

    def subscription(self) -> frozenset[str]:
        """Return the subscribed topics.

        For a pattern these are the topics that match now. For a :class:`SubscriptionPattern` these
        are the topics of the assigned partitions. Empty while the consumer unsubscribes.
        """
        if self._subscription.mode is Mode.BROKER_PATTERN and not self._leaving.under_way:
            return frozenset(tp.topic for tp in self._assignment.partitions)
        return (
            self._subscription.topics
            if self._subscription.grouped and not self._leaving.under_way
            else frozenset()
        )

    def enforce_rebalance(self, reason: str = "") -> None:
        """Ask the group for a new assignment, in the background (KIP-568).

        Args:
            reason: Text for the broker's log (KIP-800).

        Raises:
            IllegalStateError: The consumer has no subscription.
        """
        self._settled()
        if self._parts.group.membership is None or not self._subscription.grouped:
            raise IllegalStateError("there is no group to rebalance: subscribe() first")
        self._parts.group.membership.rejoin(reason or "a rebalance was enforced by the user")

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Stop delivering records of these partitions until :meth:`resume`.

        Heartbeats go on, and the partitions stay assigned.

        Args:
            partitions: Assigned partitions.

        Raises:
            IllegalStateError: A partition is not assigned.
        """
        for partition in [self._assignment.get(tp) for tp in partitions]:
            partition.pause()

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """End a :meth:`pause`.

        Args:
            partitions: Assigned partitions.

        Raises:
            IllegalStateError: A partition is not assigned.
        """
        for partition in [self._assignment.get(tp) for tp in partitions]:
            if partition.paused:
                self._parts.streams.resumed(partition)
            partition.resume()

    def paused(self) -> frozenset[TopicPartition]:
        """Return the partitions that are paused."""
        return frozenset(partition.tp for partition in self._assignment if partition.paused)

    def seek(self, partition: TopicPartition, offset: int | OffsetAndMetadata) -> None:
        """Set the offset of the next record to deliver.

        The seek takes precedence over any reset, and over any response that is under way.

        Args:
            partition: An assigned partition.
            offset: The offset, from 0. An :class:`OffsetAndMetadata`, as :meth:`committed` returns
                it, also carries a leader epoch: with that the consumer checks whether the log was
                truncated meanwhile (KIP-320).

        Raises:
            IllegalStateError: The partition is not assigned.
            ConfigurationError: ``offset`` is not a whole number from 0.
        """
        leader_epoch: int | None = None
        if isinstance(offset, OffsetAndMetadata):
            leader_epoch, offset = offset.leader_epoch, offset.offset
        if (
            isinstance(offset, bool)
            or not isinstance(offset, int)
            or not 0 <= offset <= _MAX_OFFSET
        ):
            raise ConfigurationError(f"an offset must be a whole number from 0, not {offset!r}")
        self._assignment.get(partition).seek(offset, leader_epoch)

    def seek_to_beginning(self, partitions: Iterable[TopicPartition] = ()) -> None:
        """Go to the first offset of these partitions, by default of all assigned ones.

        The offset is looked up in the background.

        Args:
            partitions: Assigned partitions; by default all of them.

        Raises:
            IllegalStateError: A partition is not assigned.
        """
        self._reset(partitions, OffsetSpec.EARLIEST)

    def seek_to_end(self, partitions: Iterable[TopicPartition] = ()) -> None:
        """Go to the end of these partitions, by default of all assigned ones.

        The end is the offset of the next record to be written. The offset is looked up in the
        background.

        Args:
            partitions: Assigned partitions; by default all of them.

        Raises:
            IllegalStateError: A partition is not assigned.
        """
        self._reset(partitions, OffsetSpec.LATEST)

    def current_lag(self, partition: TopicPartition) -> int | None:
        """Return how many offsets lie between the position and the end of the log.

        The end is the one in the last fetch response; :meth:`end_offsets` asks the broker. With
        ``read_committed`` the end is the last stable offset.

        Args:
            partition: An assigned partition.

        Returns:
            The number of offsets; ``None`` until both position and end are known.

        Raises:
            IllegalStateError: The partition is not assigned.
        """
        return self._assignment.get(partition).lag

    def statistics(self) -> ConsumerStatistics:
        """Return a snapshot of the consumer's counters and states."""
        return statistics_of(self._parts, closed=self._closed)

    def health(self) -> ConsumerHealth:
        """Return whether the consumer works, and if not, why: for a liveness probe.

        Returns at once and does no I/O. Raises nothing inside a Trio task.
        """
        return consumer_health(self._parts, closed=self._closed)

    # --- receiving ---

    def __aiter__(self) -> AsyncIterator[Record[Key, Value]]:
        return self._receiver.records

    async def __anext__(self) -> Record[Key, Value]:
        return await self._receiver.records.__anext__()

    async def receive(self) -> Record[Key, Value]:
        """Return the next record; wait until there is one.

        Rebalance listeners run inside this call. A record counts as processed when the next receive
        begins (unless ``enable_auto_offset_store=False``).

        Raises:
            trio.BusyResourceError: Another task receives, iterates over :meth:`partitions`, or
                unsubscribes.
            trio.ClosedResourceError: The consumer is closed.
            IllegalStateError: Nothing is subscribed or assigned.
            CorruptRecordError: The records at the position are damaged; seek past them to go on.
            TrikafkaError: Consumption cannot go on: no authorization, no valid offset, and the
                like.

        When cancelled, no record is lost: the next receive returns the same one.
        """
        return await self._receiver.records.__anext__()

    def receive_nowait(self) -> Record[Key, Value]:
        """Return the next record if one is buffered.

        Raises:
            trio.WouldBlock: Nothing is buffered, or a rebalance has to be served by an async
                receive first.
            TrikafkaError: As :meth:`receive`.
        """
        return self._receiver.record_nowait()

    async def receive_batch(self, timeout: float | None = None) -> RecordBatch[Key, Value]:
        """Return the next batch of one partition's records.

        A rebalance listener that takes longer than ``timeout`` goes on in a task of the client; the
        next receive waits for that listener.

        Args:
            timeout: Seconds; ``None`` waits until there is a record.

        Returns:
            A batch; an empty one past ``timeout``.

        Raises:
            TrikafkaError: As :meth:`receive`.

        When cancelled, no record is lost.
        """
        limit = None if timeout is None else check_timeout(timeout, 0.0)
        batch = await self._receiver.batch(limit)
        return RecordBatch.empty() if batch is None else batch

    def receive_batch_nowait(self) -> RecordBatch[Key, Value]:
        """Return the next batch if one is buffered.

        Raises:
            trio.WouldBlock: Nothing is buffered, or a rebalance has to be served by an async
                receive first.
            TrikafkaError: As :meth:`receive`.
        """
        return self._receiver.batch_nowait()

    async def wait_receivable(self, timeout: float | None = None) -> bool:
        """Wait until :meth:`receive_batch_nowait` has something to return; deliver nothing.

        Otherwise like a receive: rebalance listeners run inside this call, and the records of the
        receive before it count as processed.

        Args:
            timeout: Seconds; ``None`` waits until there is a record.

        Returns:
            False past ``timeout``. After True, another task may still be quicker to receive.

        Raises:
            TrikafkaError: As :meth:`receive`.

        When cancelled, no record is lost.
        """
        return await self._receiver.wait(None if timeout is None else check_timeout(timeout, 0.0))

    def batches(self, until: Mapping[TopicPartition, int] | None = None) -> Batches[Key, Value]:
        """Iterate over batches, endlessly or up to given offsets.

        With ``until``, batches are cut at the offsets, and other partitions deliver nothing. The
        iteration waits through offsets without a record (control records, compacted gaps).

        Args:
            until: For each partition to read, the offset at which to stop (that record is not
                delivered). ``None`` iterates endlessly over all partitions.

        Raises:
            IllegalStateError: A partition of ``until`` is not assigned. The iteration raises this
                when a rebalance takes the partition away.
            ConfigurationError: An offset is not a whole number from 0.
        """
        return Batches(self._receiver, self._assignment, until)

    def arrow_batches(
        self,
        until: Mapping[TopicPartition, int] | None = None,
        *,
        max_rows: int = 131_072,
        max_bytes: int = 16_777_216,
    ) -> ArrowBatches:
        """Iterate over :class:`pyarrow.Table` s with the columns of ``RecordBatch.to_arrow``.

        A table holds at least one record, and what else is buffered then, up to the given size.
        Values are not copied, unless the table would consist of many small chunks. Records are
        committed as with :meth:`batches`.

        Args:
            until: As in :meth:`batches`.
            max_rows: A table grows until it has this many rows.
            max_bytes: A table grows until it has this many bytes. The last batch may exceed either
                bound.

        Raises:
            ImportError: pyarrow is missing (the extra ``trikafka[arrow]``).
            ConfigurationError: ``max_rows`` or ``max_bytes`` is less than 1.
        """
        return ArrowBatches(self.batches(until), max_rows, max_bytes)

    def partitions(self) -> PartitionStreams[Key, Value]:
        """Iterate over a :class:`PartitionStream` for each assigned partition.

        A new stream comes whenever a partition is assigned. Run each one in a task of its own::

            async with trio.open_nursery() as nursery:
                async for stream in consumer.partitions():
                    nursery.start_soon(handle, stream)

        Go on iterating: this task serves the rebalances, and its waiting satisfies
        ``max_poll_interval_ms``. Records of one partition stay in order, and a slow partition
        delays no other.

        A stream ends when its partition is revoked. The consumer waits for the records that the
        handler holds, at most half of ``max_poll_interval_ms``. Then it commits what the handler
        finished (with auto commit), and the listener runs. A lost partition ends its stream at
        once.

        A handler that holds a record for ``max_poll_interval_ms`` is named by the log and by
        :meth:`health`. When the handlers of all streams do, the member leaves its group until one
        of them asks for more (``leave_when_stuck``).

        A stream raises the errors of its partition. Errors of the whole consumer are raised by all
        streams and by this iteration. The iteration ends when the consumer unsubscribes or closes.

        Raises:
            trio.BusyResourceError: By the iteration, while another task receives or iterates over
                partitions. Receives raise this while other tasks use streams.
        """
        return PartitionStreams(self._parts.streams)

    def handling(self) -> AbstractContextManager[None]:
        """Mark this task, and the tasks below it, as handlers of this consumer's records.

        :meth:`unsubscribe` and :meth:`aclose` wait for the handlers. So they raise
        :exc:`IllegalStateError` inside this block instead of waiting for themselves. Open the block
        before the task's first nursery.
        """
        return running_handlers(self)

    # --- calls that reach the network ---

    async def unsubscribe(self, *, timeout: float | None = None) -> None:
        """Leave the group and drop all partitions; the consumer stays open.

        In this order: the last auto commit, the revoke hooks (in this task), LeaveGroup. While
        another task unsubscribes, this call waits for that task, within the earlier limit of the
        two.

        Meanwhile :meth:`subscribe`, :meth:`assign` and new receives raise
        :exc:`trio.BusyResourceError`. A receive that waits already raises :exc:`IllegalStateError`
        at the end, unless there is a new subscription by then.

        Args:
            timeout: Seconds (default: ``default_api_timeout_ms``).

        Raises:
            IllegalStateError: Called inside a rebalance listener or a handler of :func:`run_tasks`.
            trio.ClosedResourceError: The consumer is closed.
            Exception: A revoke hook failed; raised once the group has been left.

        When cancelled, nothing is subscribed all the same. The background sends LeaveGroup; the
        hooks are not called again.
        """
        limit = check_timeout(timeout, self._config.default_api_timeout)
        self._open()
        self._outside_handlers("unsubscribe")
        deadline = trio.current_time() + limit
        if self._leaving.under_way:
            self._parts.streams.do_not_await_me()
            await self._leaving.join(deadline)
            return
        self._begin_unsubscribing(deadline)
        await self._unsubscribe()

    async def aclose(self, timeout: float | None = None) -> None:
        """Leave the group and close the sockets.

        In this order: the last auto commit, the revoke hooks (in this task, after a listener that
        runs in another task has ended), LeaveGroup. A second call is a no-op. While another task
        closes or unsubscribes, this call waits for that task, within the earlier limit of the two.

        Args:
            timeout: Seconds (default: ``close_timeout_ms``).

        Raises:
            IllegalStateError: Called inside a rebalance listener or a handler of :func:`run_tasks`.
            Exception: A revoke hook failed; raised once the group has been left.

        When cancelled, nothing can be received any more, and the end of the ``async with`` block
        does the rest.
        """
        limit = check_timeout(timeout, self._config.close_timeout_ms / 1000)
        if not self._closed:
            self._outside_handlers("aclose")
        elif self._parts.invoker.inside() or inside_handler(self):
            await trio.lowlevel.checkpoint()
            return
        await self._close(Exit.CLEAN, trio.current_time() + limit)

    async def _finish(self, how: Exit) -> None:
        try:
            await self._close(how, trio.current_effective_deadline())
        finally:
            self._shut_down()

    async def _close(self, how: Exit, deadline: float) -> None:
        """Leave the group and close; start over if an earlier leave was cut."""
        # Two tasks may close at once: aclose() in one and the end of ``async with`` in the other.
        # Only one leave may run at a time, since LeaveGroup must follow the last commit. So the
        # second task waits for the first, and may shorten its leave by its own deadline.
        #
        # ``left`` is read after each wait. A leave that was cut (its task was cancelled) may have
        # stopped before LeaveGroup, so this task then goes through the whole leave again. After a
        # complete leave, an ``unsubscribe`` included, only the sockets are left to close.
        #
        # The flag comes first: from here on receives and iterations end with ClosedResourceError,
        # and core.news() wakes the waiting ones to see it.
        self._closed = True
        self._parts.watchdog.stop()
        self._parts.streams.end_iteration()
        self._parts.core.news()
        left = False
        while self._leaving.under_way:
            self._parts.streams.do_not_await_me()
            await self._leaving.join(deadline)
            left = self._leaving.complete
        if left:  # another task has left the group
            self._shut_down()
        if self._shut:
            await trio.lowlevel.checkpoint()
            return
        self._leaving.begin(deadline)
        try:
            await self._leaving.leave(how, closing=True)
        finally:
            if self._leaving.complete:
                self._shut_down()

    def _begin_unsubscribing(self, deadline: float) -> None:
        self._receiver.stop(_UNSUBSCRIBING)
        self._parts.streams.end_iteration()
        self._leaving.begin(deadline)

    async def _unsubscribe(self) -> None:
        try:
            await self._leaving.leave(Exit.CLEAN, closing=False)
        finally:
            self._receiver.stop(None)
            if not self._closed:
                self._parts.start_over()

    def _unsubscribe_soon(self) -> None:
        """Unsubscribe in the background: an empty subscription is a plain call (seed 001)."""
        self._begin_unsubscribing(trio.current_time() + self._config.default_api_timeout)
        self._parts.start_soon(self._unsubscribe_in_background)

    async def _unsubscribe_in_background(self) -> None:
        try:
            await self._unsubscribe()
        except Exception as error:
            self._unsubscribe_error = error
            self._parts.core.news()

    def _shut_down(self) -> None:
        if not self._shut:
            self._shut = True
            self._parts.shut_down()

    def _outside_handlers(self, call: str) -> None:
        if self._parts.invoker.inside():
            raise IllegalStateError(
                f"{call}() would wait for the rebalance listener that it was called in; call it "
                "after that"
            )
        if inside_handler(self):
            raise IllegalStateError(
                f"{call}() would wait for the handler that it was called in; call it in another "
                "task, cancel the run, or end the run by a signal (stop_on= of run_tasks)"
            )

    def _reset(self, partitions: Iterable[TopicPartition], spec: OffsetSpec) -> None:
        for partition in [
            self._assignment.get(tp)
            for tp in (list(partitions) or list(self._assignment.partitions))
        ]:
            partition.ask_reset(spec)

    def _give_up_receives(self) -> None:
        self._check_receive()
        self._receiver.give_up()

    def _check_receive(self) -> None:
        """Raise as :meth:`_check`, and if nothing is subscribed or assigned."""
        self._check()
        if self._subscription.mode is Mode.NONE:
            raise IllegalStateError("there is nothing to receive: subscribe() or assign() first")


__all__ = ["Consumer", "ConsumerStatistics"]
