"""The consumer as the user holds it. What it does lives in the managers; what it knows in ``_state``."""

from __future__ import annotations

import re
import uuid
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Self

import trio

from .._net.deadlines import Call, check_timeout, run_call
from .._net.singleflight import again
from .._state.arguments import checked_partition
from .._state.member import MemberState
from .._state.subscription import Mode
from .._wire.columns import RecordBatch
from ..errors import ConfigurationError, IllegalStateError, PartitionNotOwnedError, RequestTimedOutError, TrikafkaError, from_code
from ..hooks import missing_members
from ..interfaces import RebalanceListener
from ..types import OffsetAndMetadata, OffsetAndTimestamp, OffsetSpec, PartitionInfo, Record, TopicPartition
from .batches import ArrowBatches, Batches
from .consumer_parts import ConsumerParts
from .health import ConsumerHealth, consumer_health
from .leaving import Leaving
from .receiving import Receiver
from .service import Exit

_MAX_OFFSET = 2**63 - 1
_UNSUBSCRIBING = "unsubscribe() is under way"


@dataclass(frozen=True, slots=True)
class ConsumerStatistics:
    """What a consumer knows of itself. ``lag``: records between the position and the end that the last fetch told."""

    state: str
    member_id: str
    generation: int
    positions: Mapping[TopicPartition, int | None]
    lag: Mapping[TopicPartition, int | None]
    buffered_bytes: int


class Consumer:
    """Reads records. Made by :func:`trikafka.open_consumer`; receives in one task at a time.

    Iterate over it for records, or use :meth:`batches`. ``timeout=`` is in seconds and bounds all attempts of a call together
    (default: ``default_api_timeout_ms``); past it :exc:`~trikafka.errors.KafkaTimeoutError` is raised. Cancellation of any
    method takes effect at once and leaves the consumer usable.
    """

    def __init__(self, parts: ConsumerParts) -> None:
        core = parts.core
        self._parts, self._config = parts, parts.config
        self._subscription, self._assignment, self._signals = core.subscription, core.assignment, core.signals
        self._receiver = Receiver(
            parts.config,
            core.assignment,
            core.buffer,
            parts.readers,
            parts.invoker,
            core.poll_timer,
            core.signals.deliver,
            self._check_receive,
        )
        self._closed = False  # for the user; not to be taken back
        self._shut = False  # the group was told, the sockets are closed
        self._leaving = Leaving(parts)

    def __repr__(self) -> str:
        return f"<trikafka.Consumer group_id={self._config.group_id!r} partitions={len(self._assignment)}>"

    # What cannot block.

    def subscribe(self, topics: Iterable[str] | re.Pattern[str], listener: RebalanceListener | None = None) -> None:
        """Follow ``topics``, or all topics whose whole name matches a compiled pattern, as a member of the group.

        Replaces an earlier subscription and listener. Raises :exc:`ConfigurationError` without a ``group_id`` or for what is no
        listener, :exc:`IllegalStateError` after :meth:`assign`, :exc:`trio.BusyResourceError` while another task unsubscribes.
        After an error that stopped the group's work (no authorization, say) it is tried again.
        """
        self._settled()
        if self._parts.membership is None:
            raise ConfigurationError("subscribing needs a group_id; to read without a group use assign()")
        if listener is not None and (missing := missing_members(listener, RebalanceListener)):
            raise ConfigurationError(f"listener must be a RebalanceListener; {listener!r} has no {', '.join(missing)}")
        if isinstance(topics, re.Pattern):
            self._subscription.subscribe_pattern(topics)
            self._parts.metadata.want((), everything=True)
        else:
            self._subscription.subscribe(_topic_names(topics))
            self._parts.metadata.want(self._subscription.topics)
        self._parts.metadata.request_update()
        self._parts.use_listener(listener)
        self._parts.membership.subscription_changed()

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read exactly ``partitions``, without a group's coordination. Positions of those that stay are kept."""
        self._settled()
        wanted = [checked_partition(tp) for tp in partitions]
        if self._parts.auto_commit is not None and not self._subscription.grouped:
            self._parts.auto_commit.leave_behind(wanted)
        self._parts.metadata.want({tp.topic for tp in wanted})
        self._subscription.assign(wanted)

    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions that this consumer has now."""
        return frozenset(self._assignment.partitions)

    def subscription(self) -> frozenset[str]:
        """The topics that are subscribed to (of a pattern: those that match now)."""
        return self._subscription.topics if self._subscription.grouped else frozenset()

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

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Go on at ``offset``. Wins over any reset or answer under way. Raises :exc:`IllegalStateError` if not assigned."""
        if isinstance(offset, bool) or not isinstance(offset, int) or not 0 <= offset <= _MAX_OFFSET:
            raise ValueError(f"an offset must be a whole number from 0, not {offset!r}")
        self._assignment.get(partition).seek(offset)

    def seek_to_beginning(self, partitions: Iterable[TopicPartition] = ()) -> None:
        """Go to the first offset (of all assigned partitions if none is given). It is looked up in the background."""
        self._reset(partitions, OffsetSpec.EARLIEST)

    def seek_to_end(self, partitions: Iterable[TopicPartition] = ()) -> None:
        """Go to the end, where the next record will be written. It is looked up in the background."""
        self._reset(partitions, OffsetSpec.LATEST)

    def statistics(self) -> ConsumerStatistics:
        """A snapshot of what the consumer knows of itself."""
        member = self._parts.core.member
        return ConsumerStatistics(
            member.state.value,
            member.identity.member_id,
            member.identity.generation,
            MappingProxyType({partition.tp: partition.position for partition in self._assignment}),
            MappingProxyType({partition.tp: partition.lag for partition in self._assignment}),
            self._parts.core.buffer.buffered,
        )

    def health(self) -> ConsumerHealth:
        """Whether the consumer works, and if not, why: for a liveness probe. Plain and quick; raises nothing."""
        membership = self._parts.membership
        fatal = None if membership is None else membership.fatal
        return consumer_health(self._parts.core, self._parts.watchdog, fatal, closed=self._closed)

    # Receiving.

    def __aiter__(self) -> AsyncIterator[Record]:
        return self._receiver

    async def __anext__(self) -> Record:
        return await self._receiver.__anext__()

    async def receive(self) -> Record:
        """The next record; waits for it, runs rebalance listeners meanwhile.

        Raises :exc:`trio.BusyResourceError` if another task receives, :exc:`trio.ClosedResourceError` once closed, and errors
        that stop consumption (authorization, :exc:`CorruptRecordError`, no valid offset). Cancelled: no record is lost.
        """
        return await self._receiver.__anext__()

    def receive_nowait(self) -> Record:
        """The next record if it is buffered. Raises :exc:`trio.WouldBlock` otherwise."""
        return self._receiver.record_nowait()

    async def receive_batch(self, timeout: float | None = None) -> RecordBatch:
        """The next batch of one partition's records; an empty one past ``timeout`` seconds (``None``: wait). As :meth:`receive`."""
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

    # Calls that reach the network.

    async def commit(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata | int] | None = None, *, timeout: float | None = None
    ) -> None:
        """Commit ``offsets`` (of the next record to process; default: the positions, so all that was handed out).

        Raises :exc:`CommitFailedError` if the member is out of the group, :exc:`PartitionNotOwnedError` (one of these) for a
        partition that is not assigned to it, :exc:`RebalanceInProgressError` while it is not in the group yet,
        :exc:`KafkaTimeoutError`. Cancelled while the request is under way, it may or may not have happened.
        """
        check_timeout(timeout, 0.0)
        self._open()
        commits, owned = self._parts.need_commits(), self._assignment.partitions
        self._check_membership()
        if offsets is None:
            todo = {
                tp: OffsetAndMetadata(partition.position, partition.progress.leader_epoch)
                for tp, partition in owned.items()
                if partition.position is not None
            }
        else:
            todo = {checked_partition(tp): _position(tp, value) for tp, value in offsets.items()}
        if self._subscription.grouped and (foreign := [tp for tp in todo if tp not in owned]):
            raise PartitionNotOwnedError(foreign)
        began = {tp: owned[tp] for tp in todo if tp in owned}

        def check() -> None:
            self._check_membership()
            if gone := [tp for tp, partition in began.items() if self._assignment.partitions.get(tp) is not partition]:
                raise PartitionNotOwnedError(gone)

        await commits.commit(todo, timeout=timeout, check=check)
        for tp, partition in began.items():  # the user says that it is processed: auto commit must not go back
            partition.processed_upto(todo[tp].offset)
        if self._parts.auto_commit is not None:
            self._parts.auto_commit.committed(todo)

    async def committed(
        self, partitions: Iterable[TopicPartition], *, timeout: float | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """What the group has committed for ``partitions``; ``None`` where nothing is."""
        check_timeout(timeout, 0.0)
        self._open()
        return await self._parts.need_commits().committed([checked_partition(tp) for tp in partitions], timeout=timeout)

    async def position(self, partition: TopicPartition, *, timeout: float | None = None) -> int:
        """The offset of the next record that will be handed out; waits until it is known. A rebalance listener may ask, too."""
        check_timeout(timeout, 0.0)
        self._open()
        self._assignment.get(partition)

        async def known() -> int:
            while (position := (assigned := self._assignment.get(partition)).position) is None:
                self._check()
                assigned.request_position()
                await self._signals.deliver.wait()
                self._open()
            return position

        async def attempt(call: Call) -> int:
            await trio.lowlevel.checkpoint()
            try:
                return await call.step(f"position of {partition}", known)
            except RequestTimedOutError as error:
                why = self._parts.positions.last_error
                raise error if why is None else again(why) from error

        return await self._call("position", attempt, timeout)

    async def beginning_offsets(
        self, partitions: Iterable[TopicPartition], *, timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """The first offset of each partition that is still there."""
        return await self._ends("beginning_offsets", partitions, OffsetSpec.EARLIEST, timeout)

    async def end_offsets(self, partitions: Iterable[TopicPartition], *, timeout: float | None = None) -> dict[TopicPartition, int]:
        """The offset after the last record of each partition (with ``read_committed``: after the last stable one)."""
        return await self._ends("end_offsets", partitions, OffsetSpec.LATEST, timeout)

    async def offsets_for_times(
        self, timestamps: Mapping[TopicPartition, int], *, timeout: float | None = None
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first record at or after a time (ms since the epoch) in each partition; ``None`` where no record is so young."""
        for tp, timestamp in timestamps.items():
            if isinstance(timestamp, bool) or not isinstance(timestamp, int) or timestamp < 0:
                raise ValueError(f"the time for {tp} must be milliseconds since the epoch, at least 0, not {timestamp!r}")
        return await self._look_up("offsets_for_times", timestamps, timeout)

    async def partitions_for(self, topic: str, *, timeout: float | None = None) -> list[PartitionInfo]:
        """The partitions of ``topic``; an empty list if there is no such topic."""
        return await self._parts.ask("partitions_for", lambda call: self._parts.partitions_of(call, topic), timeout, self._open)

    async def list_topics(self, *, timeout: float | None = None) -> dict[str, list[PartitionInfo]]:
        """All topics that the cluster shows, with their partitions; internal ones are left out."""
        return await self._parts.ask("list_topics", self._parts.all_topics, timeout, self._open)

    async def client_instance_id(self, *, timeout: float | None = None) -> uuid.UUID:
        """The id by which the cluster's metrics know this client (KIP-714), asked for once.

        Raises :exc:`TelemetryNotSupportedError` where the brokers take no metrics from clients, :exc:`KafkaTimeoutError`.
        """
        check_timeout(timeout, 0.0)
        self._open()
        return await self._parts.telemetry.client_instance_id(timeout)

    async def unsubscribe(self, *, timeout: float | None = None) -> None:
        """Give up all partitions: last auto commit, revoke hooks (in this task), leave the group. The consumer stays open.

        While another task unsubscribes this waits for it, within the earlier limit. Meanwhile :meth:`subscribe`, :meth:`assign`
        and new receives raise :exc:`trio.BusyResourceError`; a receive that waits already raises :exc:`IllegalStateError` in the
        end, unless there is a new subscription by then. Raises :exc:`IllegalStateError` inside a rebalance listener. Cancelled:
        nothing is subscribed all the same; the goodbye is said in the background, the hooks are not called again.
        """
        limit = check_timeout(timeout, self._config.default_api_timeout)
        self._open()
        self._outside_listeners("unsubscribe")
        deadline = trio.current_time() + limit
        if self._leaving.under_way:
            await self._leaving.join(deadline)
            return
        self._receiver.stop(_UNSUBSCRIBING)
        try:
            await self._leaving.run(Exit.CLEAN, deadline)
        finally:
            self._receiver.stop(None)
            if not self._closed:
                self._parts.start_over()

    async def aclose(self, timeout: float | None = None) -> None:
        """Leave within ``timeout`` (default ``close_timeout_ms``), then close the sockets.

        In this order: last auto commit, revoke hooks (in this task, once a listener that runs in another has ended), leave the
        group. Closing twice is fine; while another task closes or unsubscribes this waits for it, within the earlier limit.
        Raises :exc:`IllegalStateError` inside a rebalance listener. Cancelled: nothing can be received any more, and the end of
        the ``async with`` block does the rest.
        """
        limit = check_timeout(timeout, self._config.close_timeout_ms / 1000)
        if not self._closed:
            self._outside_listeners("aclose")
        elif self._parts.invoker.inside():
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
        self._signals.deliver.notify()
        while self._leaving.under_way:
            await self._leaving.join(deadline)
        if self._shut:
            await trio.lowlevel.checkpoint()
            return
        try:
            await self._leaving.run(how, deadline)
        finally:
            if self._leaving.complete:
                self._shut_down()

    def _shut_down(self) -> None:
        if not self._shut:
            self._shut = True
            self._parts.shut_down()

    def _outside_listeners(self, call: str) -> None:
        if self._parts.invoker.inside():
            raise IllegalStateError(f"{call}() would wait for the rebalance listener that it was called in; call it after that")

    def _reset(self, partitions: Iterable[TopicPartition], spec: OffsetSpec) -> None:
        for partition in [self._assignment.get(tp) for tp in (list(partitions) or list(self._assignment.partitions))]:
            partition.ask_reset(spec)

    async def _ends(
        self, name: str, partitions: Iterable[TopicPartition], spec: OffsetSpec, timeout: float | None
    ) -> dict[TopicPartition, int]:
        found = await self._look_up(name, {checked_partition(tp): spec for tp in partitions}, timeout)
        return {tp: 0 if where is None else where.offset for tp, where in found.items()}

    async def _look_up(
        self, name: str, wanted: Mapping[TopicPartition, int], timeout: float | None
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        return await self._parts.ask(name, self._parts.look_up(wanted), timeout, self._open)

    async def _call(self, name: str, attempt: object, timeout: float | None) -> int:
        return await run_call(name, attempt, config=self._config, timeout=timeout)  # type: ignore[arg-type]

    def _open(self) -> None:
        """Raise once closed. The hooks that run on closing may still commit and ask."""
        if self._closed and (self._shut or not self._parts.invoker.inside()):
            raise trio.ClosedResourceError("this consumer is closed")

    def _settled(self) -> None:
        """Raise where what it subscribes to cannot be changed."""
        if self._closed:
            raise trio.ClosedResourceError("this consumer is closed")
        if self._leaving.under_way:
            raise trio.BusyResourceError("unsubscribe() is under way: wait for it before subscribing or assigning")

    def _check(self) -> None:
        """Raise what the user has to know before anything is handed out."""
        if self._closed:
            raise trio.ClosedResourceError("this consumer is closed")
        if self._parts.membership is not None and (fatal := self._parts.membership.fatal) is not None:
            raise fatal.with_traceback(None)
        if (error := self._assignment.take_error()) is not None:
            raise error

    def _check_receive(self) -> None:
        """As :meth:`_check`, for a receive."""
        self._check()
        if self._subscription.mode is Mode.NONE:
            raise IllegalStateError("there is nothing to receive: subscribe() or assign() first")

    def _check_membership(self) -> None:
        """A member that is out of its group cannot commit."""
        member = self._parts.core.member
        if not self._subscription.grouped:
            return
        if member.state in (MemberState.FENCED, MemberState.STALE):
            raise self._parts.commit_failed()
        if not member.identity.joined:
            raise from_code(27, "the consumer has not joined its group yet")


def _topic_names(topics: Iterable[str]) -> list[str]:
    if isinstance(topics, str):
        raise ConfigurationError(f"topics must be a collection of names, not the text {topics!r}; write [{topics!r}]")
    names = list(topics)
    if wrong := [name for name in names if not isinstance(name, str) or not name]:
        raise ConfigurationError(f"a topic must be a name, not {wrong[0]!r}")
    if not names:
        raise ConfigurationError("there is no topic to subscribe to; to end a subscription use unsubscribe()")
    return names


def _position(tp: TopicPartition, value: OffsetAndMetadata | int) -> OffsetAndMetadata:
    position = OffsetAndMetadata(value) if isinstance(value, int) and not isinstance(value, bool) else value
    if not isinstance(position, OffsetAndMetadata) or position.offset < 0:
        raise ValueError(f"the offset to commit for {tp} must be a whole number from 0 or an OffsetAndMetadata, not {value!r}")
    return position


__all__ = ["Consumer", "ConsumerStatistics", "IllegalStateError", "Self", "TrikafkaError"]
