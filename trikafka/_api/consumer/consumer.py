"""The public consumer.

Its methods check their arguments, and call the parts that do the work (:mod:`.parts`): receives the
:class:`~.receiving.Receiver`, iterations :mod:`.streams`, commits the commit manager, and
subscriptions the membership. The managers fetch and rebalance in the background.
``_state/consumer/assignment.py`` holds what the consumer knows of its partitions.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Container,
    Iterable,
    Iterator,
    Mapping,
)
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Generic, TypeVar

import trio

from ..._managers.commits.auto_commit import LeftBehind
from ..._managers.group.listener_invoker import check_listener
from ..._net.deadlines import RunningCall, check_timeout, run_call
from ..._state.arguments import (
    ToCommit,
    check_target,
    checked_partition,
    checked_partitions,
    offsets_to_commit,
    position_to_seek,
    times_to_find,
    topic_names,
)
from ..._state.consumer.assignment import AssignedPartition
from ..._state.consumer.subscription import Mode
from ..._state.group.member import MemberState
from ..._wire.columns import RecordBatch
from ...config import ConsumerConfig, check_pattern
from ...config.text import is_utf8, plain_text
from ...error_codes import ErrorCode
from ...errors import (
    ConfigurationError,
    IllegalStateError,
    PartitionNotOwnedError,
    PollIntervalExceededError,
    RequestTimedOutError,
    TrikafkaError,
    from_code,
)
from ...errors.copies import again
from ...interfaces import CommitManager, Found, RebalanceListener
from ...types import (
    AnyRecord,
    GroupMembership,
    GroupMetadata,
    Key,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    OffsetSpec,
    PartitionInfo,
    Record,
    SubscriptionPattern,
    TopicPartition,
    Value,
)
from ..client.metering import MeteredClient
from ..client.service import Exit
from .batches import ArrowBatches, Batches
from .handler_tasks import inside_handler, running_handlers
from .health import ConsumerHealth, consumer_health
from .leaving import Leaving
from .parts import ConsumerParts
from .receiving import Receiver
from .statistics import ConsumerStatistics, statistics_of
from .streams import PartitionStreams

T = TypeVar("T")

_UNSUBSCRIBING = "unsubscribe() is under way"


class Consumer(MeteredClient, Generic[Key, Value]):
    """A Kafka consumer; made by :func:`trikafka.open_consumer`.

    Iterate over the consumer for records, or use :meth:`batches`, :meth:`arrow_batches` or
    :meth:`partitions`. One task at a time may receive.

    ``timeout=`` is in seconds and bounds all attempts of one call together (default:
    ``default_api_timeout_ms``). Past the timeout the call raises
    :exc:`~trikafka.errors.KafkaTimeoutError`. Cancellation of any method takes effect at once and
    leaves the consumer usable.
    """

    def __init__(self, parts: ConsumerParts) -> None:
        core = parts.core
        self._parts = parts
        self._metrics = parts.metrics
        self._config = parts.config
        self._subscription = core.subscription
        self._assignment = core.assignment
        self._member = core.member
        self._signals = core.signals
        self._leaving = Leaving(parts)
        self._closed = False  # for the user; never set back
        self._closing_begun = trio.Event()
        self._shut = False  # the group was left, the sockets are closed
        # The partitions whose offsets a worker's open transaction commits.
        self._in_transaction: Container[TopicPartition] = ()
        # The error of a listener in the background, for the next receive.
        self._unsubscribe_error: Exception | None = None
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
            self._check_run,
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

    async def wait_closed(self) -> None:
        """Wait until closing has begun (:attr:`is_closed`). When cancelled, nothing has changed."""
        await self._closing_begun.wait()

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
        :meth:`unsubscribe` in the background. After an error that stopped the group's
        work, such as a missing authorization, this call makes the consumer join again.

        Args:
            topics: Names of topics; or a compiled pattern, for all topics whose whole name matches;
                or a :class:`SubscriptionPattern` in RE2's syntax, which the broker matches. The
                last one needs the consumer protocol (KIP-848).
            listener: An object with the async methods of :class:`RebalanceListener`.

        Raises:
            ConfigurationError: The consumer has no ``group_id``, or ``listener`` is not a listener
                (its methods must be ``async``), or a :class:`SubscriptionPattern` meets
                ``group_protocol="classic"`` or is empty, or a pattern is not of text.
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
        if isinstance(topics, re.Pattern | SubscriptionPattern):
            check_pattern(topics)
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

        Partitions that were assigned before keep their positions. With auto commit, what is
        processed of the others is committed at once, in the background; :meth:`unsubscribe` waits
        for that. A partition that a later call returns goes on after its last processed record in
        any case. An empty ``partitions`` assigns nothing; a consumer that was subscribed leaves
        its group in the background.

        Args:
            partitions: All partitions to read from now on.

        Raises:
            IllegalStateError: The consumer is subscribed to topics.
            trio.BusyResourceError: Another task unsubscribes.
            trio.ClosedResourceError: The consumer is closed.
        """
        self._settled()
        wanted = checked_partitions(partitions)
        if not wanted and self._subscription.grouped:
            # In the background: an empty subscription is a plain call.
            self._begin_unsubscribing(trio.current_time() + self._config.default_api_timeout)
            self._parts.start_soon(self._unsubscribe_in_background)
            return
        returning: dict[TopicPartition, LeftBehind] = {}
        topics = {tp.topic for tp in wanted}
        auto_commit = self._parts.group.auto_commit
        if auto_commit is not None and not self._subscription.grouped:
            returning = auto_commit.carry_over(frozenset(wanted))
            topics |= auto_commit.left_topics
        self._parts.metadata.want(topics)
        if wanted:
            self._subscription.assign(wanted)
        else:
            self._subscription.clear()
        # A look-up of the group's offset would find an older one, or none.
        for tp, left in returning.items():
            partition = self._assignment.get(tp)
            partition.located(left.position.offset, left.position.leader_epoch)
            if left.topic_id is not None:  # the topic may have been deleted and created again
                partition.is_in(left.topic_id)

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
        assigned = self._assignment.partitions.get(checked_partition(partition))
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
            ConfigurationError: ``reason`` is not text.
        """
        self._settled()
        if reason is not None and (not isinstance(reason, str) or not is_utf8(reason)):
            raise ConfigurationError(f"reason must be text that UTF-8 can carry, not {reason!r}")
        if self._parts.group.membership is None or not self._subscription.grouped:
            raise IllegalStateError("there is no group to rebalance: subscribe() first")
        self._parts.group.membership.rejoin(
            plain_text(reason) or "a rebalance was enforced by the user"
        )

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Stop delivering records of these partitions until :meth:`resume`.

        Heartbeats go on, and the partitions stay assigned. A rebalance that revokes a partition
        ends its pause, even if it is assigned again: pause it again in the listener's
        ``on_partitions_assigned``.

        Args:
            partitions: Assigned partitions.

        Raises:
            IllegalStateError: A partition is not assigned.
        """
        self._parts.home.check()
        for partition in [self._assignment.get(tp) for tp in checked_partitions(partitions)]:
            partition.pause()

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """End a :meth:`pause`.

        Args:
            partitions: Assigned partitions.

        Raises:
            IllegalStateError: A partition is not assigned.
        """
        self._parts.home.check()
        for partition in [self._assignment.get(tp) for tp in checked_partitions(partitions)]:
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
            ConfigurationError: ``offset``, or its leader epoch, is not a whole number from 0.
        """
        self._parts.home.check()
        self._assignment.get(checked_partition(partition)).seek(*position_to_seek(offset))

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
        return self._assignment.get(checked_partition(partition)).lag

    def statistics(self) -> ConsumerStatistics:
        """Return a snapshot of the consumer's counters and states."""
        self._check_run()
        return statistics_of(self._parts, closed=self._closed)

    def health(self) -> ConsumerHealth:
        """Return whether the consumer works, and if not, why: for probes and alerts.

        Returns at once and does no I/O. Raises nothing in the tasks of its Trio run; another thread
        calls it by :func:`trio.from_thread.run_sync`.
        """
        self._check_run()
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

        A table holds at least one record, and what else is buffered then, of any partition, up to
        the given size. Values are not copied, unless the table would consist of many small chunks.
        Records are committed as with :meth:`batches`.

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

    # --- commits ---

    def mark_processed(self, processed: AnyRecord | RecordBatch[Any, Any]) -> bool:
        """Mark a record, or a whole batch, as processed: in any order, from any task.

        For ``enable_auto_offset_store=False``. Then only marked records are committed: by auto
        commit, by :meth:`commit` without arguments, and when partitions are revoked. A commit never
        passes an earlier record that is not marked.

        Args:
            processed: A record or a batch that this consumer has delivered.

        Returns:
            False if the partition is no longer this consumer's. Nothing has to be done then: the
            partition's next owner receives the record again.

        Raises:
            IllegalStateError: ``enable_auto_offset_store`` is on. Then the next receive marks what
                was delivered before. Or another thread calls: use :func:`trio.from_thread.run_sync`
                there.
            TypeError: ``processed`` is neither a record nor a batch.
        """
        if self._config.enable_auto_offset_store:
            raise IllegalStateError(
                "mark_processed() needs enable_auto_offset_store=False; otherwise the next "
                "receive marks the records"
            )
        if not isinstance(processed, Record | RecordBatch):
            raise TypeError(f"mark_processed() takes a Record or a RecordBatch, not {processed!r}")
        self._parts.home.check()
        partition = self._assignment.partitions.get(
            TopicPartition(processed.topic, processed.partition)
        )
        if partition is None:
            return False
        partition.mark_processed(
            processed.offsets if isinstance(processed, RecordBatch) else (processed.offset,)
        )
        return True

    async def commit(
        self, offsets: ToCommit | None = None, *, timeout: float | None = None
    ) -> None:
        """Commit offsets; by default the offsets after all that was delivered.

        Of streams, the default is what their handlers have finished: a record counts once the
        handler asks for the next. With ``enable_auto_offset_store=False`` the default is what is
        marked. When several tasks commit at once, the offsets of the last call stand.

        Args:
            offsets: A mapping from partition to the offset of the next record to process, with an
                optional note (:class:`OffsetAndMetadata`). Or a record, a batch, or several of
                these: the offset after each partition's last one is committed.
            timeout: Seconds (default: ``default_api_timeout_ms``).

        Raises:
            CommitFailedError: The group has removed the member.
            PartitionNotOwnedError: A partition is not assigned to this member. A subclass of
                :exc:`CommitFailedError`.
            RebalanceInProgressError: The member has not joined its group yet.
            KafkaTimeoutError: No answer in time.
            IllegalStateError: :func:`process`, or :func:`run_tasks` with transactions, is in a
                transaction, which commits the offsets of one of the partitions.
            ConfigurationError: The consumer has no ``group_id``.

        When cancelled while the request is in flight, the commit may or may not have happened.
        """
        check_timeout(timeout, 0.0)
        self._open()
        commits = self._commits()
        owned = self._assignment.partitions
        todo = self._to_commit(offsets)
        for tp in todo:
            if tp in self._in_transaction:
                raise IllegalStateError(
                    f"commit() of {tp} inside a transaction of process() or run_tasks(): the "
                    "transaction commits the offsets, and after an abort these records would be "
                    "lost; leave the call out"
                )
        began = {tp: (owned[tp], owned[tp].position) for tp in todo if tp in owned}

        def check() -> None:
            self._check_membership()
            if gone := [
                tp
                for tp, (partition, _) in began.items()
                if self._assignment.partitions.get(tp) is not partition
            ]:
                raise PartitionNotOwnedError(gone)

        # Auto commit and explicit commits write the same offsets, so auto commit must know of this
        # one. After a success, its own next commit starts there. A commit that failed or was
        # cancelled is in doubt: the broker may hold other offsets than auto commit sent last, so
        # auto commit sends its own again.
        #
        # After the commit the user has declared everything before the offset processed. Without
        # that, the next auto commit would move the group back. A position that is now before the
        # one at the call means that the user has sought back meanwhile: then the newer wish counts.
        #
        # ``check`` runs in the commit's turn, right before the request is written: a rebalance
        # while the commit waited for the coordinator may have taken a partition away. The object is
        # compared, not the name: a partition that was assigned again is another assignment.
        auto_commit = self._parts.group.auto_commit
        number = 0 if auto_commit is None else auto_commit.begin()
        try:
            await commits.commit(todo, timeout=timeout, check=check)
        except BaseException:
            if auto_commit is not None:
                auto_commit.commit_unknown(todo, number)
            raise
        for tp, (partition, position) in began.items():
            if position is None or (partition.position or 0) >= position:
                partition.processed_upto(todo[tp].offset)
        if auto_commit is not None:
            auto_commit.committed(todo, number)

    async def committed(
        self, partitions: Iterable[TopicPartition], *, timeout: float | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Return the offsets that the group has committed; ``None`` where there is none.

        Args:
            partitions: The partitions; they need not be assigned.
            timeout: Seconds (default: ``default_api_timeout_ms``).

        Raises:
            KafkaTimeoutError: No answer in time.
            ConfigurationError: The consumer has no ``group_id``.

        When cancelled, nothing has changed.
        """
        check_timeout(timeout, 0.0)
        self._open()
        return await self._commits().committed(checked_partitions(partitions), timeout=timeout)

    def group_metadata(self) -> GroupMetadata:
        """Return this consumer's membership, for :meth:`Transaction.send_offsets` (KIP-447).

        Raises:
            ConfigurationError: The consumer has no ``group_id``.
        """
        self._commits()
        identity = self._member.identity
        assert self._config.group_id is not None
        topic_ids = self._assignment.topic_ids()
        if not (self._subscription.grouped and identity.joined):
            return GroupMetadata(self._config.group_id, topic_ids=topic_ids)
        return GroupMetadata(
            self._config.group_id,
            identity.generation,
            identity.member_id,
            identity.instance_id,
            topic_ids=topic_ids,
        )

    def membership(self) -> GroupMembership | None:
        """Return this consumer's membership of its group.

        Returns:
            Its generation, and whether it leads the group. ``None`` while nothing is subscribed: a
            consumer of :meth:`assign` is not a member.
        """
        if not self._subscription.grouped:
            return None
        who = self.group_metadata()
        member = self._member
        return GroupMembership(
            who.group_id,
            who.generation,
            who.member_id,
            who.group_instance_id,
            member.state.value,
            member.leads,
        )

    def offsets_for_transaction(
        self, offsets: ToCommit | None = None
    ) -> tuple[dict[TopicPartition, OffsetAndMetadata], Callable[[], GroupMetadata]]:
        """Return what :meth:`commit` would commit, and a function for the membership.

        :meth:`Transaction.send_offsets` calls this.

        Args:
            offsets: As in :meth:`commit`.

        Returns:
            The offsets, and a function that returns the member's :class:`GroupMetadata` of now.
            That function raises :exc:`CommitFailedError` once the member, or the owner of one of
            the partitions, has changed.

        Raises:
            ConfigurationError: The consumer commits by auto commit.
            TrikafkaError: As :meth:`commit` before any I/O.
        """
        self._open()
        self.check_fits_transactions()
        todo = self._to_commit(offsets)
        before = self.group_metadata()
        owned = {tp: self._assignment.partitions.get(tp) for tp in todo}

        def member() -> GroupMetadata:
            now = self.group_metadata()
            if now.member_id != before.member_id or (now.generation < 0) != (before.generation < 0):
                # outside the group nothing would keep it from overwriting another member's
                raise self._parts.group.commit_failed()
            if gone := [
                tp
                for tp, partition in owned.items()
                if self._assignment.partitions.get(tp) is not partition
            ]:
                raise PartitionNotOwnedError(gone)
            return now

        return todo, member

    def check_fits_transactions(self) -> None:
        """Raise if a transaction cannot commit this consumer's offsets.

        Raises:
            ConfigurationError: The consumer has no ``group_id``, or auto commit is on.
        """
        self._commits()
        if self._parts.group.auto_commit is not None:
            raise ConfigurationError(
                "offsets that a transaction commits must not be committed by the consumer too: "
                "set enable_auto_commit=False"
            )

    @contextmanager
    def in_transaction(self, partitions: Container[TopicPartition]) -> Iterator[None]:
        """Mark the time in which a worker's open transaction commits offsets of ``partitions``.

        :meth:`commit` raises :exc:`IllegalStateError` for them inside this block: what it commits
        stays committed if the transaction is aborted, and those records would be lost.

        Args:
            partitions: The partitions. The worker may add some inside the block.
        """
        self._in_transaction = partitions
        try:
            yield
        finally:
            self._in_transaction = ()

    def _commits(self) -> CommitManager:
        """Return the commit manager. Raises :exc:`ConfigurationError` without a group."""
        commits = self._parts.group.commits
        if commits is None:
            raise ConfigurationError(
                "committed offsets belong to a group; open the consumer with a group_id"
            )
        return commits

    def _to_commit(self, offsets: ToCommit | None) -> dict[TopicPartition, OffsetAndMetadata]:
        owned = self._assignment.partitions
        self._check_membership()
        if offsets is None:
            to_commit = self._parts.streams.to_commit
            found = {tp: to_commit(partition) for tp, partition in owned.items()}
            return {tp: position for tp, position in found.items() if position is not None}
        todo = offsets_to_commit(offsets)
        if self._subscription.grouped and (foreign := [tp for tp in todo if tp not in owned]):
            raise PartitionNotOwnedError(foreign)
        return todo

    def _check_membership(self) -> None:
        """Raise unless the member may commit now."""
        member = self._member
        if not self._subscription.grouped:
            return
        if member.state is MemberState.STALE:
            raise PollIntervalExceededError(int(self._parts.core.poll_timer.limit * 1000))
        if member.state is MemberState.FENCED:
            raise self._parts.group.commit_failed()
        if not member.identity.joined:
            raise from_code(
                ErrorCode.REBALANCE_IN_PROGRESS, "the consumer has not joined its group yet"
            )

    # --- look-ups ---

    async def position(self, partition: TopicPartition, *, timeout: float | None = None) -> int:
        """Return the offset of the next record to deliver; wait until it is known.

        May be called inside a rebalance listener.

        Args:
            partition: An assigned partition.
            timeout: Seconds (default: ``default_api_timeout_ms``).

        Raises:
            IllegalStateError: The partition is not assigned.
            KafkaTimeoutError: The position was not found in time; its cause is the last error.
            TrikafkaError: The partition has no valid position, or the group's work has stopped.

        When cancelled, nothing has changed.
        """
        check_timeout(timeout, 0.0)
        self._open()
        partition = checked_partition(partition)
        self._assignment.get(partition)

        async def known() -> int:
            while (position := (assigned := self._assignment.get(partition)).position) is None:
                self._check(assigned)
                assigned.request_position()
                await self._signals.position.wait()
                self._open()
            return position

        async def attempt(call: RunningCall) -> int:
            await trio.lowlevel.checkpoint()
            try:
                return await call.step(f"position of {partition}", known)
            except RequestTimedOutError:
                if (why := self._parts.positions.last_error) is None:
                    raise
                raise again(why)  # noqa: B904  # its cause is the root cause, not that it took long

        return await run_call("position", attempt, config=self._config, timeout=timeout)

    async def beginning_offsets(
        self, partitions: Iterable[TopicPartition], *, timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """Return the first offset of each partition that the log still holds.

        Args:
            partitions: The partitions; they need not be assigned.
            timeout: Seconds (default: ``default_api_timeout_ms``).

        Raises:
            KafkaTimeoutError: No answer in time.
            UnknownTopicOrPartitionError: A partition does not exist.

        When cancelled, nothing has changed.
        """
        return await self._ends("beginning_offsets", partitions, OffsetSpec.EARLIEST, timeout)

    async def end_offsets(
        self, partitions: Iterable[TopicPartition], *, timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """Return the offset after the last record of each partition.

        With ``read_committed`` this is the offset after the last stable record.

        Args:
            partitions: The partitions; they need not be assigned.
            timeout: Seconds (default: ``default_api_timeout_ms``).

        Raises:
            KafkaTimeoutError: No answer in time.
            UnknownTopicOrPartitionError: A partition does not exist.

        When cancelled, nothing has changed.
        """
        return await self._ends("end_offsets", partitions, OffsetSpec.LATEST, timeout)

    async def offsets_for_times(
        self, timestamps: Mapping[TopicPartition, int], *, timeout: float | None = None
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Return the first record at or after a time, for each partition.

        Args:
            timestamps: For each partition, milliseconds since the epoch.
            timeout: Seconds (default: ``default_api_timeout_ms``).

        Returns:
            Offset and timestamp of the record; ``None`` where all records are older.

        Raises:
            ConfigurationError: A timestamp is not a whole number from 0.
            KafkaTimeoutError: No answer within ``timeout`` seconds.
            UnknownTopicOrPartitionError: A partition does not exist.

        When cancelled, nothing has changed.
        """
        return await self._look_up("offsets_for_times", times_to_find(timestamps), timeout)

    async def partitions_for(
        self, topic: str, *, timeout: float | None = None
    ) -> list[PartitionInfo]:
        """Return the partitions of a topic; an empty list if the topic does not exist.

        Args:
            topic: The topic.
            timeout: Seconds (default: ``default_api_timeout_ms``).

        Raises:
            ConfigurationError: ``topic`` cannot be a topic's name.
            KafkaTimeoutError: No answer in time.

        When cancelled, nothing has changed.
        """
        name = check_target(topic, None)
        return await self._ask(
            "partitions_for", lambda call: self._parts.partitions_of(call, name), timeout
        )

    async def list_topics(self, *, timeout: float | None = None) -> dict[str, list[PartitionInfo]]:
        """Return all topics that the cluster shows, with their partitions.

        Internal topics are left out.

        Raises:
            KafkaTimeoutError: No answer within ``timeout`` seconds.

        When cancelled, nothing has changed.
        """
        return await self._ask("list_topics", self._parts.all_topics, timeout)

    async def topic_ids(
        self, topics: Iterable[str], *, timeout: float | None = None
    ) -> dict[str, uuid.UUID | None]:
        """Return the ids that topics have now (KIP-516).

        A topic that was deleted and created again has another id.

        Args:
            topics: The topics.
            timeout: Seconds (default: ``default_api_timeout_ms``).

        Returns:
            The id of each topic that exists; ``None`` where the brokers have no ids.

        Raises:
            ConfigurationError: ``topics`` has something else than names of topics.
            KafkaTimeoutError: No answer in time.

        When cancelled, nothing has changed.
        """
        names = list(dict.fromkeys(topic_names(topics)))
        return await self._ask("topic_ids", lambda call: self._parts.ids_of(call, names), timeout)

    async def client_instance_id(self, *, timeout: float | None = None) -> uuid.UUID:
        """Return the id by which the cluster's metrics know this client (KIP-714).

        The broker is asked once.

        Raises:
            TelemetryNotSupportedError: The brokers take no metrics from clients.
            KafkaTimeoutError: No answer within ``timeout`` seconds.

        When cancelled, nothing has changed.
        """
        check_timeout(timeout, 0.0)
        self._open()
        return await self._parts.telemetry.client_instance_id(timeout)

    async def _ends(
        self,
        name: str,
        partitions: Iterable[TopicPartition],
        spec: OffsetSpec,
        timeout: float | None,
    ) -> dict[TopicPartition, int]:
        found = await self._look_up(
            name, dict.fromkeys(checked_partitions(partitions), spec), timeout
        )
        return {tp: 0 if where is None else where.offset for tp, where in found.items()}

    async def _look_up(
        self, name: str, wanted: Mapping[TopicPartition, int], timeout: float | None
    ) -> Found:
        todo = {checked_partition(tp): int(what) for tp, what in wanted.items()}
        found: Found = {}

        async def attempt(call: RunningCall) -> Found:
            if not todo:
                await trio.lowlevel.checkpoint()
            return await self._parts.offsets.look_up(call, todo, found)

        return await self._ask(name, attempt, timeout)

    async def _ask(
        self, name: str, attempt: Callable[[RunningCall], Awaitable[T]], timeout: float | None
    ) -> T:
        """Run one call to the cluster under its deadline."""
        check_timeout(timeout, 0.0)
        self._open()
        return await run_call(
            name, attempt, config=self._config, timeout=timeout, recover=self._parts.recover
        )

    # --- leaving ---

    async def unsubscribe(self, *, timeout: float | None = None) -> None:
        """Leave the group and drop all partitions; the consumer stays open.

        In this order: the last auto commit, the listeners (in this task), LeaveGroup. While
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
            Exception: A rebalance listener failed; raised once the group has been left.

        When cancelled, nothing is subscribed all the same. The background sends LeaveGroup; the
        listeners are not called again.
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

        In this order: the last auto commit, the listeners (in this task, after a listener that
        runs in another task has ended), LeaveGroup. A second call is a no-op. While another task
        closes or unsubscribes, this call waits for that task, within the earlier limit of the two.

        Args:
            timeout: Seconds (default: ``close_timeout_ms``).

        Raises:
            IllegalStateError: Called inside a rebalance listener or a handler of :func:`run_tasks`.
            Exception: A rebalance listener failed; raised once the group has been left.

        When cancelled, nothing can be received any more, and the end of the ``async with`` block
        does the rest.
        """
        limit = check_timeout(timeout, self._config.close_timeout_ms / 1000)
        if not self._closed:
            self._parts.home.check()
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
        self._closing_begun.set()
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
        self._parts.home.check()
        for partition in [
            self._assignment.get(tp)
            for tp in checked_partitions(partitions) or list(self._assignment.partitions)
        ]:
            partition.ask_reset(spec)

    # --- the checks before a call ---

    def _open(self) -> None:
        """Raise :exc:`trio.ClosedResourceError` once the consumer is closed.

        The handlers that a close waits for, and the listeners that run in it, may still commit and
        look up offsets. So a close refuses calls only after its revoking steps.
        """
        if self._closed and (
            self._shut or not (self._leaving.revoking or self._parts.invoker.inside())
        ):
            raise trio.ClosedResourceError("this consumer is closed")
        self._parts.home.check()

    def _check_run(self) -> None:
        """Raise in another Trio run. A closed consumer says so instead, in :meth:`_check`."""
        if not self._closed:
            self._parts.home.check()

    def _settled(self) -> None:
        """Raise unless the subscription may be changed now."""
        if self._closed:
            raise trio.ClosedResourceError("this consumer is closed")
        self._parts.home.check()
        if self._leaving.under_way:
            raise trio.BusyResourceError(
                "unsubscribe() is under way: wait for it before subscribing or assigning"
            )

    def _fatal(self) -> TrikafkaError | None:
        """Return the error that stopped the whole group's work, if there is one."""
        return None if self._parts.group.membership is None else self._parts.group.membership.fatal

    def _check(self, partition: AssignedPartition | None = None) -> None:
        """Raise the errors that the user must see before a delivery.

        With a ``partition`` only that partition's error counts, not those of other partitions.
        Call ``_check_run`` first.
        """
        # The order is by how much an error stops. A closed consumer comes first. A fatal error of
        # the group is raised by every receive until the next subscription. A refusal
        # (errors/refusals.py) may be lifted, so one receive raises it and the next one goes on
        # waiting. Last comes the error of a partition, which is raised once. position() passes its
        # partition: it leaves the refusal, and the errors of other partitions, to the receives.
        if self._closed:
            raise trio.ClosedResourceError("this consumer is closed")
        if (fatal := self._fatal()) is not None:
            raise again(fatal)
        if (
            partition is None
            and self._member.refusal is not None
            and (refusal := self._member.pop_refusal()) is not None
        ):
            raise again(refusal)
        if (late := self._unsubscribe_error) is not None:
            self._unsubscribe_error = None
            raise late
        if (
            error := (self._assignment if partition is None else partition).pop_error()
        ) is not None:
            raise error

    def _end_receive(self) -> None:
        self._check_run()
        self._check_receive()
        self._receiver.return_rest()

    def _check_receive(self) -> None:
        """Raise as :meth:`_check`, and if nothing is subscribed or assigned."""
        self._check()
        if self._subscription.mode is Mode.NONE:
            raise IllegalStateError("there is nothing to receive: subscribe() or assign() first")


__all__ = ["Consumer", "ConsumerStatistics"]
