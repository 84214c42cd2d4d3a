"""The positions manager: it finds where the consumer begins in a partition without a position.

If the user has requested a reset, that decides. Otherwise it is the committed offset, and if there
is none, ``auto_offset_reset``. A seek by the user in the meantime takes precedence.
"""

from __future__ import annotations

import logging
import math
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from functools import partial

import trio

from ..._net.deadlines import RunningCall
from ..._net.gather import all_of
from ..._net.reasons import WaitContext, adopt, failed
from ..._net.retry import Retry
from ..._net.signal import Signal
from ..._net.singleflight import StartSoon
from ..._state.consumer.assignment import AssignedPartition, Assignment
from ..._state.consumer.subscription import Subscription
from ..._wire.messages import PORTION, portions
from ...config import ConsumerConfig
from ...config.resets import OffsetReset
from ...errors import NoOffsetForPartitionError, TrikafkaError
from ...errors.copies import again
from ...errors.refusals import is_unexplained
from ...interfaces import CommitManager, Found, MetadataManager, OffsetsManager
from ...types import Node, OffsetSpec, TopicPartition
from ..commits.offset_messages import OffsetTopics
from .missing import MissingPartitions

_log = logging.getLogger("trikafka.positions")
_Asked = Mapping[AssignedPartition, int]
#: Attempts for one partition at a time: a reset by the user need not wait for the look-up before
#: it, but resets or assignments in a loop must not pile up requests to a silent broker.
_ATTEMPTS = 2


class _AttemptFailures:
    """The errors of one attempt, by partition."""

    def __init__(self) -> None:
        self.errors: list[TrikafkaError] = []
        self._by_partition: dict[TopicPartition, TrikafkaError] = {}

    def add(self, error: TrikafkaError, asked: Collection[TopicPartition]) -> None:
        """Record an error.

        If the error names the partitions that failed, it concerns those. Otherwise it concerns all
        partitions in ``asked``.
        """
        self.errors.append(error)
        named = {tp: failure for tp in asked if (failure := error.failures.get(tp)) is not None}
        self._by_partition.update(named or dict.fromkeys(asked, error))

    def of(self, tp: TopicPartition) -> TrikafkaError | None:
        """Return the error of a partition, if there is one."""
        return self._by_partition.get(tp)


class Positions:
    """The task that finds the positions of assigned partitions that need one."""

    def __init__(
        self,
        config: ConsumerConfig,
        subscription: Subscription,
        assignment: Assignment,
        metadata: MetadataManager,
        offsets: OffsetsManager,
        commits: CommitManager | None,
        unlocated: Signal,
        start_soon: StartSoon,
    ) -> None:
        self._config = config
        self._start_soon = start_soon
        self._assignment = assignment
        self._metadata = metadata
        self._missing = MissingPartitions(metadata, subscription, assignment)
        self._topics = OffsetTopics(metadata, assignment)
        self._offsets = offsets
        self._commits = commits
        self._wake = unlocated  # a partition needs a position
        self._reason = WaitContext()  # why positions are not known yet
        # The partitions that are asked for now, each with what its attempt asks for.
        self._under_way: dict[AssignedPartition, _Asked] = {}
        # By partition, all attempts that wait for an answer, also those that a seek, a reset or an
        # assignment has superseded; no more than _ATTEMPTS.
        self._attempts: dict[TopicPartition, list[_Asked]] = {}
        # The partitions whose last attempt has failed, with its tickets.
        self._failed: dict[AssignedPartition, int] = {}
        self._retry = Retry(config)
        self._retry_at = 0.0  # when the failed partitions are due again

    @property
    def last_error(self) -> TrikafkaError | None:
        """The error because of which a position is not known; ``None`` if there is none.

        This is the error of the last look-up, or of a step that the first one is repeating.
        """
        error = self._reason.error()
        return error if isinstance(error, TrikafkaError) else None

    # One look-up must not wait for another one's broker. That may be silent for half a minute, and
    # then the other partitions would stand still behind it. So every partition that needs a
    # position is asked for at once, in a new attempt beside those under way. A failed partition
    # leaves its attempt as soon as its own broker has answered. It waits for the common back-off,
    # and then one attempt asks for all that have failed.
    async def run(self) -> None:
        """Find positions until cancelled; retry a failed look-up after a wait."""
        adopt(self._reason)
        while True:
            if due := self._due():
                self._under_way |= dict.fromkeys(due, due)
                for partition in due:
                    self._attempts.setdefault(partition.tp, []).append(due)
                self._start_soon(self._attempt, due)
            with trio.move_on_at(self._next_retry()):
                await self._wake.wait()

    def _due(self) -> dict[AssignedPartition, int]:
        """Return the partitions to ask for now, with their tickets."""
        unlocated = self._assignment.unlocated
        # A seek by the user, or the loss of the partition, ends its failure.
        self._failed = {
            partition: ticket
            for partition, ticket in self._failed.items()
            if _needs_position(partition, ticket)
        }
        if not self._under_way and not self._failed:
            self._retry.reset()
            if not unlocated:
                self._reason.clear()
        waits = trio.current_time() < self._retry_at
        due = {
            partition: partition.ticket
            for partition in unlocated
            if self._under_way.get(partition, {}).get(partition) != partition.ticket
            and len(self._attempts.get(partition.tp, ())) < _ATTEMPTS
            and not (waits and self._failed.get(partition) == partition.ticket)
        }
        for partition in due:
            self._failed.pop(partition, None)
        return due

    def _next_retry(self) -> float:
        """Return when a failed partition is due again (``math.inf``: there is none)."""
        unlocated = self._assignment.unlocated
        waits = any(partition in unlocated for partition in self._failed)
        return self._retry_at if waits else math.inf

    async def _attempt(self, asked: _Asked) -> None:
        """Make one attempt for these partitions."""
        failures = _AttemptFailures()
        try:
            await self._resolve(asked, failures)
            await self._end(list(asked), asked, failures)
            if not failures.errors and not self._failed and not self._under_way:
                self._reason.clear()
        finally:
            self._forget(asked, asked)

    async def _end(
        self, partitions: list[AssignedPartition], asked: _Asked, failures: _AttemptFailures
    ) -> None:
        """End the attempt for these partitions, which are some of ``asked``."""
        left = [
            partition
            for partition in partitions
            if self._under_way.get(partition) is asked
            and _needs_position(partition, asked[partition])
        ]
        for portion in portions(left):
            if portion[0] is not left[0]:
                await trio.lowlevel.checkpoint()
            for partition in portion:
                if partition not in self._assignment.unlocated:
                    continue  # located, gone or refused meanwhile
                failure = failures.of(partition.tp)
                if failure is not None and not (
                    failure.retriable
                    or is_unexplained(failure)
                    or self._missing.is_for_the_group(failure)
                ):
                    partition.failed(again(failure))
                else:
                    self._missing.leader(partition)
        if left:
            self._failed |= {partition: asked[partition] for partition in left}
            # A program may receive again at once after each error. That must not cause a request
            # each time.
            if (now := trio.current_time()) >= self._retry_at:
                self._retry_at = now + self._retry.delay()
        self._forget(partitions, asked)
        self._wake.notify()

    def _forget(self, partitions: Iterable[AssignedPartition], asked: _Asked) -> None:
        """Record that the attempt for these partitions is over."""
        for partition in partitions:
            if self._under_way.get(partition) is asked:
                del self._under_way[partition]
            left = [each for each in self._attempts.pop(partition.tp, ()) if each is not asked]
            if left:
                self._attempts[partition.tp] = left

    def _record(
        self, error: TrikafkaError, failures: _AttemptFailures, asked: Collection[TopicPartition]
    ) -> None:
        """Record an error of an attempt, and have its cause looked into."""
        failures.add(error, asked)
        if error.refresh_metadata:
            self._metadata.request_update()
        if self._commits is not None:
            self._commits.recover(error)
        failed(error)
        _log.debug("positions could not be resolved: %s", error)

    async def _resolve(self, unlocated: _Asked, failures: _AttemptFailures) -> None:
        """Look up these positions, and record the errors in ``failures``.

        All look-ups run at the same time. So a reset by the user does not wait for the coordinator.
        """
        call = RunningCall(
            "positions", self._config.default_api_timeout, self._config.request_timeout
        )
        asked = {
            partition: partition.reset for partition in unlocated if partition.reset is not None
        }
        fresh = [partition for partition in unlocated if partition not in asked]
        works = [partial(self._reset, call, asked, unlocated, failures)] if asked else []
        if fresh:
            works.append(partial(self._go_on, call, fresh, unlocated, failures))
        await all_of(works)

    async def _go_on(
        self,
        call: RunningCall,
        fresh: list[AssignedPartition],
        unlocated: _Asked,
        failures: _AttemptFailures,
    ) -> None:
        """Set positions to the committed offsets, or by ``auto_offset_reset`` without one."""
        while fresh:
            try:
                without = await self._from_commits(call, fresh, unlocated)
            except TrikafkaError as error:
                self._record(error, failures, [partition.tp for partition in fresh])
                # The response had offsets of other partitions, too, but they are lost with the
                # error. So request them again without the failed partitions.
                refused = [partition for partition in fresh if failures.of(partition.tp)]
                await self._end(refused, unlocated, failures)
                fresh = [partition for partition in fresh if failures.of(partition.tp) is None]
            else:
                rest = dict.fromkeys(without, self._config.offset_reset)
                done = [partition for partition in fresh if partition not in rest]
                await self._end(done, unlocated, failures)
                await self._reset(call, rest, unlocated, failures)
                return

    async def _reset(
        self,
        call: RunningCall,
        resets: Mapping[AssignedPartition, OffsetSpec | OffsetReset],
        unlocated: _Asked,
        failures: _AttemptFailures,
    ) -> None:
        """Request the offsets of these resets from the leaders; apply each response at once."""
        forbidden = [
            p
            for p, reset in resets.items()
            if isinstance(reset, OffsetReset) and reset.strategy == "none"
        ]
        # For a partition that no longer accepts its ticket, the user has called seek() meanwhile.
        self._refuse(
            [partition for partition in forbidden if partition.accepts(unlocated[partition])]
        )
        await self._end(forbidden, unlocated, failures)
        by_leader: dict[Node | None, dict[TopicPartition, int]] = defaultdict(dict)
        for partition, reset in resets.items():
            if partition not in forbidden:
                by_leader[self._leader(partition.tp)][partition.tp] = _where(reset)
        asked = {partition.tp: (partition, ticket) for partition, ticket in unlocated.items()}

        async def look_up(wanted: dict[TopicPartition, int]) -> None:
            try:
                await self._from_log(call, wanted, asked)
            except TrikafkaError as error:
                self._record(error, failures, list(wanted))
            await self._end([asked[tp][0] for tp in wanted], unlocated, failures)

        await all_of([partial(look_up, wanted) for wanted in by_leader.values()])

    def _leader(self, tp: TopicPartition) -> Node | None:
        with suppress(TrikafkaError):  # the look-up finds one, or raises why there is none
            return self._metadata.snapshot.leader(tp)
        return None

    async def _from_commits(
        self, call: RunningCall, fresh: list[AssignedPartition], tickets: _Asked
    ) -> list[AssignedPartition]:
        """Set positions to the committed offsets; return the partitions without one.

        If a topic was replaced by another one of its name during the request, its partitions are
        left to the next attempt.
        """
        # Offsets are requested by topic id, because a response by name could be about an earlier
        # topic of that name. Right after assign() the look-up of the ids is still in progress.
        known = self._metadata.snapshot.topics
        if self._commits is not None and (
            unknown := {p.tp.topic for p in fresh if p.tp.topic not in known}
        ):
            await call.step("look up the topics", lambda: self._metadata.refresh(unknown))
        before = {
            partition.tp.topic: self._topics.current(partition.tp.topic) for partition in fresh
        }
        committed = (
            {}
            if self._commits is None
            else await self._commits.fetch_once(call, [partition.tp for partition in fresh])
        )
        without = []
        for number, partition in enumerate(fresh, 1):
            if number % PORTION == 0:
                await trio.lowlevel.checkpoint()
            topic_id = self._topics.current(partition.tp.topic)
            if topic_id != before[partition.tp.topic]:
                continue
            if (position := committed.get(partition.tp)) is not None:
                if (
                    self._settle(
                        partition, tickets[partition], position.offset, position.leader_epoch
                    )
                    and topic_id is not None
                ):
                    partition.is_in(topic_id)
            elif partition.accepts(tickets[partition]):
                without.append(partition)
        return without

    async def _from_log(
        self,
        call: RunningCall,
        wanted: dict[TopicPartition, int],
        asked: Mapping[TopicPartition, tuple[AssignedPartition, int]],
    ) -> None:
        """Set positions to the offsets of an :class:`OffsetSpec` or a time.

        If no record is as young as the time, the position is the end of the log (KIP-1106).
        """
        found: Found = {}
        # Read before the request, whose epoch may be newer. A lower one is safe: it only causes a
        # validation.
        snapshot = self._metadata.snapshot
        epochs = {tp: snapshot.leader_epoch(tp) for tp in wanted}
        try:
            await self._offsets.look_up(call, wanted, found)
        finally:
            # Offsets that were found are used even after an error or a cancellation. So the
            # checkpoints here are shielded. Each one follows some milliseconds of work.
            too_old = {tp: OffsetSpec.LATEST for tp in wanted if tp in found and found[tp] is None}
            for number, tp in enumerate(wanted, 1):
                if (where := found.get(tp)) is not None:
                    # The start of the log needs no epoch: the consumer has read no record before it.
                    epoch = None if wanted[tp] == OffsetSpec.EARLIEST else where.leader_epoch
                    self._settle(*asked[tp], where.offset, epoch, located_by=epochs[tp])
                if number % PORTION == 0:
                    await trio.lowlevel.cancel_shielded_checkpoint()
        if too_old:
            await self._from_log(call, dict(too_old), asked)

    def _refuse(self, partitions: list[AssignedPartition]) -> None:
        """Fail these partitions, because ``auto_offset_reset`` is ``none``; the error names all."""
        if not partitions:
            return
        names = ", ".join(str(partition.tp) for partition in partitions)
        group = self._config.group_id
        lack = "partition {} has" if len(partitions) == 1 else "partitions {} have"
        text = (
            f"{lack.format(names)} no committed offset in group {group!r} to go on from, and "
            "auto_offset_reset is 'none': seek, commit an offset, or set 'earliest' or 'latest'"
        )
        for partition in partitions:
            partition.failed(NoOffsetForPartitionError(text))

    def _settle(
        self,
        partition: AssignedPartition,
        ticket: int,
        offset: int,
        leader_epoch: int | None = None,
        *,
        located_by: int | None = None,
    ) -> bool:
        """Set a position, unless a seek or a reset has superseded the look-up; return whether."""
        fits = partition.accepts(ticket) and partition.position is None
        if fits:
            partition.located(offset, leader_epoch, located_by=located_by)
        return fits


def _needs_position(partition: AssignedPartition, ticket: int) -> bool:
    """Return whether the partition still needs the position that was asked for."""
    return partition.accepts(ticket) and partition.owned and partition.position is None


def _where(reset: OffsetSpec | OffsetReset) -> int:
    """Return what to look up: an :class:`OffsetSpec`, or a time (ms since the epoch)."""
    if isinstance(reset, OffsetSpec):
        return reset
    if reset.duration_ms is not None:
        return max(0, round(time.time() * 1000) - reset.duration_ms)
    return OffsetSpec.EARLIEST if reset.strategy == "earliest" else OffsetSpec.LATEST
