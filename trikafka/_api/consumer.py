"""The consumer as the user holds it. What it does lives in the managers; what it knows in ``_state``."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterable, Mapping

import trio

from .._managers.listener_invoker import check_listener
from .._net.deadlines import check_timeout
from .._state.arguments import checked_partition, topic_names
from .._state.subscription import Mode
from .._wire.columns import RecordBatch
from ..errors import ConfigurationError, IllegalStateError
from ..interfaces import RebalanceListener
from ..types import OffsetAndMetadata, OffsetSpec, Record, SubscriptionPattern, TopicPartition
from .batches import ArrowBatches, Batches
from .committing import Committing
from .consumer_health import ConsumerHealth, consumer_health
from .consumer_parts import ConsumerParts
from .handler_tasks import inside_handler
from .lookups import LookUps
from .receiving import Receiver
from .service import Exit
from .statistics import ConsumerStatistics, statistics_of
from .streams import PartitionStreams

_MAX_OFFSET = 2**63 - 1
_UNSUBSCRIBING = "unsubscribe() is under way"


class Consumer(LookUps, Committing):
    """Reads records. Made by :func:`trikafka.open_consumer`; receives in one task at a time.

    Iterate over it for records, or use :meth:`batches`. ``timeout=`` is in seconds and bounds all attempts of a call together
    (default: ``default_api_timeout_ms``); past it :exc:`~trikafka.errors.KafkaTimeoutError` is raised. Cancellation of any
    method takes effect at once and leaves the consumer usable.
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
        return f"<trikafka.Consumer group_id={self._config.group_id!r} partitions={len(self._assignment)}>"

    # What cannot block.

    def subscribe(
        self, topics: Iterable[str] | re.Pattern[str] | SubscriptionPattern, listener: RebalanceListener | None = None
    ) -> None:
        """Follow ``topics``, or all topics whose whole name matches a compiled pattern, as a member of the group.

        A :class:`SubscriptionPattern`, in RE2's syntax, is matched by the broker; that takes the consumer protocol (KIP-848).
        Replaces an earlier subscription and listener; without any topic it begins to :meth:`unsubscribe`, in the background.
        Raises :exc:`ConfigurationError` without a ``group_id`` or for what is no listener (its methods are ``async``),
        :exc:`IllegalStateError` after :meth:`assign` or another kind of subscription (topics, a pattern, the broker's pattern),
        :exc:`trio.BusyResourceError` while another task unsubscribes.
        After an error that stopped the group's work (no authorization, say) it is tried again.
        """
        self._settled()
        if self._parts.group.membership is None:
            raise ConfigurationError("subscribing needs a group_id; to read without a group use assign()")
        check_listener(listener)
        if isinstance(topics, re.Pattern):
            self._subscription.subscribe_pattern(topics)
            self._parts.metadata.want((), everything=True)
        elif isinstance(topics, SubscriptionPattern):
            if self._config.group_protocol == "classic":
                raise ConfigurationError("a SubscriptionPattern needs group_protocol='consumer' (or 'auto')")
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
        """Read exactly ``partitions``, without a group's coordination. Positions of those that stay are kept.

        Without any nothing is assigned or subscribed to any more (a group is left in the background).
        """
        self._settled()
        wanted = [checked_partition(tp) for tp in partitions]
        if not wanted and self._subscription.grouped:
            self._unsubscribe_soon()
            return
        if self._parts.group.auto_commit is not None and not self._subscription.grouped:
            self._parts.group.auto_commit.leave_behind(wanted)
        self._parts.metadata.want({tp.topic for tp in wanted})
        if wanted:
            self._subscription.assign(wanted)
        else:
            self._subscription.clear()

    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions that this consumer has now."""
        return frozenset(self._assignment.partitions)

    def subscription(self) -> frozenset[str]:
        """The topics that are subscribed to (of a pattern: those that match now; of a broker's: those assigned)."""
        if self._subscription.mode is Mode.BROKER_PATTERN and not self._leaving.under_way:
            return frozenset(tp.topic for tp in self._assignment.partitions)
        return self._subscription.topics if self._subscription.grouped and not self._leaving.under_way else frozenset()

    def enforce_rebalance(self, reason: str = "") -> None:
        """Have the group assign its partitions anew, in the background; ``reason`` is for the broker's log (KIP-568, KIP-800).

        Raises :exc:`IllegalStateError` without a subscription.
        """
        self._settled()
        if self._parts.group.membership is None or not self._subscription.grouped:
            raise IllegalStateError("there is no group to rebalance: subscribe() first")
        self._parts.group.membership.rejoin(reason or "a rebalance was enforced by the user")

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Deliver nothing of these partitions until :meth:`resume`; heartbeats and the assignment go on."""
        for partition in [self._assignment.get(tp) for tp in partitions]:
            partition.pause()

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """End a :meth:`pause`."""
        for partition in [self._assignment.get(tp) for tp in partitions]:
            partition.resume()

    def paused(self) -> frozenset[TopicPartition]:
        """The partitions that are paused."""
        return frozenset(partition.tp for partition in self._assignment if partition.paused)

    def seek(self, partition: TopicPartition, offset: int | OffsetAndMetadata) -> None:
        """Go on at ``offset``. Wins over any reset or response under way. Raises :exc:`IllegalStateError` if not assigned.

        With the leader epoch of an :class:`OffsetAndMetadata` (as :meth:`committed` returns it) it is found out whether the log
        was truncated since then (KIP-320).
        """
        leader_epoch: int | None = None
        if isinstance(offset, OffsetAndMetadata):
            leader_epoch, offset = offset.leader_epoch, offset.offset
        if isinstance(offset, bool) or not isinstance(offset, int) or not 0 <= offset <= _MAX_OFFSET:
            raise ConfigurationError(f"an offset must be a whole number from 0, not {offset!r}")
        self._assignment.get(partition).seek(offset, leader_epoch)

    def seek_to_beginning(self, partitions: Iterable[TopicPartition] = ()) -> None:
        """Go to the first offset (of all assigned partitions if none is given). It is looked up in the background."""
        self._reset(partitions, OffsetSpec.EARLIEST)

    def seek_to_end(self, partitions: Iterable[TopicPartition] = ()) -> None:
        """Go to the end, where the next record will be written. It is looked up in the background."""
        self._reset(partitions, OffsetSpec.LATEST)

    def current_lag(self, partition: TopicPartition) -> int | None:
        """How many offsets lie between the position and the end that the last fetch told; ``None`` until both are known.

        With ``read_committed`` the end is the last stable offset. Raises :exc:`IllegalStateError` if it is not assigned. Asks
        nobody: :meth:`end_offsets` does.
        """
        return self._assignment.get(partition).lag

    def statistics(self) -> ConsumerStatistics:
        """A snapshot of what the consumer knows of itself."""
        return statistics_of(self._parts, closed=self._closed)

    def health(self) -> ConsumerHealth:
        """Whether the consumer works, and if not, why: for a liveness probe. Plain and quick; raises nothing in a Trio task."""
        return consumer_health(self._parts, closed=self._closed)

    # Receiving.

    def __aiter__(self) -> AsyncIterator[Record]:
        return self._receiver.records

    async def __anext__(self) -> Record:
        return await self._receiver.records.__anext__()

    async def receive(self) -> Record:
        """The next record; waits for it, runs rebalance listeners meanwhile.

        Raises :exc:`trio.BusyResourceError` if another task receives, :exc:`trio.ClosedResourceError` once closed, and errors
        that stop consumption (authorization, :exc:`CorruptRecordError`, no valid offset). Cancelled: no record is lost.
        """
        return await self._receiver.records.__anext__()

    def receive_nowait(self) -> Record:
        """The next record if it is buffered. Raises :exc:`trio.WouldBlock` otherwise."""
        return self._receiver.record_nowait()

    async def receive_batch(self, timeout: float | None = None) -> RecordBatch:
        """The next batch of one partition's records; an empty one past ``timeout`` seconds. Raises as :meth:`receive`.

        Without a ``timeout`` it waits for as long as it takes, as a receive does: cancel scopes are for more.
        """
        limit = None if timeout is None else check_timeout(timeout, 0.0)
        batch = await self._receiver.batch(limit)
        return RecordBatch.empty() if batch is None else batch

    def receive_batch_nowait(self) -> RecordBatch:
        """The next batch if it is buffered. Raises :exc:`trio.WouldBlock` otherwise."""
        return self._receiver.batch_nowait()

    def batches(self, until: Mapping[TopicPartition, int] | None = None) -> Batches:
        """Iterate over batches: for ever, or with ``until`` (partition -> offset) until each is read up to its offset.

        Batches are cut there, and of other partitions nothing is handed out. What lies between the last record and the offset
        (control records, compacted gaps) is waited through. Raises :exc:`IllegalStateError` for a partition that is not
        assigned, also when a rebalance takes it away on the way.
        """
        return Batches(self._receiver, self._assignment, until)

    def arrow_batches(
        self,
        until: Mapping[TopicPartition, int] | None = None,
        *,
        max_rows: int = 131_072,
        max_bytes: int = 16_777_216,
    ) -> ArrowBatches:
        """Iterate over :class:`pyarrow.Table` s, with the columns of ``RecordBatch.to_arrow``; ``until`` as in :meth:`batches`.

        A table holds at least one record, and what is buffered beside it until it has ``max_rows`` rows or ``max_bytes`` bytes
        (which the last batch may exceed). It copies no values, unless it would be made of many small chunks. Commits as with
        :meth:`batches`. Raises ``ImportError`` without pyarrow (the extra ``trikafka[arrow]``).
        """
        return ArrowBatches(self.batches(until), max_rows, max_bytes)

    def partitions(self) -> PartitionStreams:
        """Iterate over a :class:`PartitionStream` for each assigned partition, as they come. Run each in a task of its own::

            async with trio.open_nursery() as nursery:
                async for stream in consumer.partitions():
                    nursery.start_soon(handle, stream)

        Go on iterating: this task serves the rebalances, and its waiting is the presence that ``max_poll_interval_ms`` asks for.
        A stream ends when its partition is revoked; what its handler holds then is waited for (at most half of
        ``max_poll_interval_ms``), what it finished is committed (with auto commit), and then the listener runs. A partition that
        is lost ends its stream at once. Records of one partition stay in order, and one that is slow holds back no other. Its
        handler may take as long as it wants: it is warned about after ``max_poll_interval_ms``, and stays in the group.

        Errors of one partition come out of its stream, those of the whole consumer out of all streams and of this iteration,
        which ends when the consumer unsubscribes or closes. Raises :exc:`trio.BusyResourceError` while another task receives
        or iterates over partitions; receives raise it while streams are in use in other tasks.
        """
        return PartitionStreams(self._parts.streams)

    # Calls that reach the network.

    async def unsubscribe(self, *, timeout: float | None = None) -> None:
        """Give up all partitions: last auto commit, revoke hooks (in this task), leave the group. The consumer stays open.

        While another task unsubscribes this waits for it, within the earlier limit. Meanwhile :meth:`subscribe`, :meth:`assign`
        and new receives raise :exc:`trio.BusyResourceError`; a receive that waits already raises :exc:`IllegalStateError` in the
        end, unless there is a new subscription by then. Raises :exc:`IllegalStateError` inside a rebalance listener or a handler of
        :func:`run_tasks`. Cancelled: nothing is subscribed all the same; the goodbye is said in the background, the hooks are not
        called again.
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
        """Leave within ``timeout`` (default ``close_timeout_ms``), then close the sockets.

        In this order: last auto commit, revoke hooks (in this task, once a listener that runs in another has ended), leave the
        group. Closing twice is fine; while another task closes or unsubscribes this waits for it, within the earlier limit.
        Raises :exc:`IllegalStateError` inside a rebalance listener or a handler of :func:`run_tasks`. Cancelled: nothing can be
        received any more, and the end of the ``async with`` block does the rest.
        """
        limit = check_timeout(timeout, self._config.close_timeout_ms / 1000)
        if not self._closed:
            self._outside_handlers("aclose")
        elif self._parts.invoker.inside() or inside_handler(self):
            await trio.lowlevel.checkpoint()
            return
        await self._close(Exit.CLEAN, trio.current_time() + limit)

    # Inside.

    async def _finish(self, how: Exit) -> None:
        try:
            await self._close(how, trio.current_effective_deadline())
        finally:
            self._shut_down()

    async def _close(self, how: Exit, deadline: float) -> None:
        """Leave for good, unless that has been done; if it was cut, this goes through all of it again."""
        self._closed = True
        self._parts.watchdog.stop()
        self._parts.streams.end_iteration()
        self._parts.core.news()
        left = False
        while self._leaving.under_way:
            self._parts.streams.do_not_await_me()
            await self._leaving.join(deadline)
            left = self._leaving.complete
        if left:  # another task has done it all
            self._shut_down()
        if self._shut:
            await trio.lowlevel.checkpoint()
            return
        self._leaving.begin(deadline)
        try:
            await self._leaving.run(how, closing=True)
        finally:
            if self._leaving.complete:
                self._shut_down()

    def _begin_unsubscribing(self, deadline: float) -> None:
        self._receiver.stop(_UNSUBSCRIBING)
        self._parts.streams.end_iteration()
        self._leaving.begin(deadline)

    async def _unsubscribe(self) -> None:
        try:
            await self._leaving.run(Exit.CLEAN, closing=False)
        finally:
            self._receiver.stop(None)
            if not self._closed:
                self._parts.start_over()

    def _unsubscribe_soon(self) -> None:
        """Subscribed to nothing (seed 001): unsubscribe, in the background, for who subscribes cannot wait."""
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
            raise IllegalStateError(f"{call}() would wait for the rebalance listener that it was called in; call it after that")
        if inside_handler(self):
            raise IllegalStateError(
                f"{call}() would wait for the handler of run_tasks() that it was called in; end the run by a signal of stop_on=,"
                " cancel it, or call this in another task"
            )

    def _reset(self, partitions: Iterable[TopicPartition], spec: OffsetSpec) -> None:
        for partition in [self._assignment.get(tp) for tp in (list(partitions) or list(self._assignment.partitions))]:
            partition.ask_reset(spec)

    def _give_up_receives(self) -> None:
        self._check_receive()
        self._receiver.give_up()

    def _check_receive(self) -> None:
        """As :meth:`_check`, for a receive."""
        self._check()
        if self._subscription.mode is Mode.NONE:
            raise IllegalStateError("there is nothing to receive: subscribe() or assign() first")


__all__ = ["Consumer", "ConsumerStatistics"]
