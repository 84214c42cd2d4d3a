"""The positions manager: where the consumer begins in a partition that it has no position in.

The committed offset first, then ``auto_offset_reset``; or the reset that the user asked for. A user's seek meanwhile wins.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping

import trio

from .._net.deadlines import Call
from .._net.reasons import Reason, adopt, failed
from .._net.retry import Retry
from .._net.signal import Signal
from .._state.assignment import AssignedPartition, Assignment
from .._state.subscription import Subscription
from ..config import ConsumerConfig
from ..config.resets import OffsetReset
from ..errors import NoOffsetForPartitionError, TrikafkaError
from ..interfaces import CommitManager, Found, MetadataManager, OffsetsManager
from ..types import OffsetSpec, TopicPartition
from .missing import MissingPartitions
from .offset_topics import OffsetTopics

_log = logging.getLogger("trikafka.positions")
_Asked = Mapping[AssignedPartition, int]


class PositionsManager:
    """Resolves the positions of assigned partitions, in the background, as soon as they are needed."""

    def __init__(
        self,
        config: ConsumerConfig,
        subscription: Subscription,
        assignment: Assignment,
        metadata: MetadataManager,
        offsets: OffsetsManager,
        commits: CommitManager | None,
        unlocated: Signal,
    ) -> None:
        self._config, self._assignment, self._metadata = config, assignment, metadata
        self._missing = MissingPartitions(metadata, subscription, assignment)
        self._topics = OffsetTopics(metadata, assignment)
        self._offsets, self._commits = offsets, commits
        self._wake = unlocated  # a partition needs a position
        self._reason = Reason()  # why positions are not known yet

    @property
    def last_error(self) -> TrikafkaError | None:
        """Why not all positions are known: how the look-up failed last, or what the first one waits for; ``None`` if they are."""
        error = self._reason.error()
        return error if isinstance(error, TrikafkaError) else None

    async def run(self) -> None:
        """Resolve until cancelled; a failed look-up is tried again after a wait."""
        adopt(self._reason)
        retry = Retry(self._config)
        while True:
            if not (unlocated := {partition: partition.ticket for partition in self._assignment.unlocated}):
                retry.reset()
                self._reason.clear()  # the user has said where to, or they went: no look-up follows that could succeed
                await self._wake.wait()
                continue
            errors = await self._resolve(unlocated)
            if not errors:
                self._reason.clear()
            for error in errors:
                self._take_error(error)
            left = [p for p, ticket in unlocated.items() if p.accepts(ticket) and p in self._assignment.unlocated]
            fatal = next((error for error in errors if not error.retriable), None)
            for partition in left:
                if fatal is not None:
                    partition.failed(fatal)
                else:
                    self._missing.leader(partition)
            if left:
                with trio.move_on_after(retry.delay()):
                    await self._wake.wait()
            else:
                retry.reset()

    def _take_error(self, error: TrikafkaError) -> None:
        if error.refresh_metadata:
            self._metadata.request_update()
        if self._commits is not None:
            self._commits.recover(error)
        failed(error)
        _log.debug("positions could not be resolved: %s", error)

    async def _resolve(self, unlocated: _Asked) -> list[TrikafkaError]:
        """One attempt. A reset that was asked for does not wait for a coordinator that is away. Returns what went wrong."""
        call = Call("positions", self._config.default_api_timeout, self._config.request_timeout)
        resets = {partition: partition.reset for partition in unlocated if partition.reset is not None}
        errors: list[TrikafkaError] = []
        if fresh := [partition for partition in unlocated if partition not in resets]:
            try:
                for partition in await self._from_commits(call, fresh, unlocated):
                    resets[partition] = self._config.offset_reset
            except TrikafkaError as error:
                errors.append(error)
        forbidden = [p for p, reset in resets.items() if isinstance(reset, OffsetReset) and reset.strategy == "none"]
        self._refuse([partition for partition in forbidden if partition.accepts(unlocated[partition])])  # else the user has said it
        wanted = {p.tp: _where(reset) for p, reset in resets.items() if p not in forbidden}
        if wanted:
            try:
                await self._from_log(call, wanted, {partition.tp: (partition, ticket) for partition, ticket in unlocated.items()})
            except TrikafkaError as error:
                errors.append(error)
        return errors

    async def _from_commits(self, call: Call, fresh: list[AssignedPartition], tickets: _Asked) -> list[AssignedPartition]:
        """Go to what is committed; returns the partitions of which nothing is.

        A topic that proves to be another one meanwhile, of the same name, is left for the next attempt.
        """
        before = {partition.tp.topic: self._topics.current(partition.tp.topic) for partition in fresh}
        committed = {} if self._commits is None else await self._commits.fetch_once(call, [partition.tp for partition in fresh])
        without = []
        for partition in fresh:
            topic_id = self._topics.current(partition.tp.topic)
            if topic_id != before[partition.tp.topic]:
                continue
            if (position := committed.get(partition.tp)) is not None:
                if self._settle(partition, tickets[partition], position.offset, position.leader_epoch) and topic_id is not None:
                    partition.is_in(topic_id)
            elif partition.accepts(tickets[partition]):
                without.append(partition)
        return without

    async def _from_log(
        self, call: Call, wanted: dict[TopicPartition, int], asked: Mapping[TopicPartition, tuple[AssignedPartition, int]]
    ) -> None:
        """Look up offsets by :class:`OffsetSpec` or time. Where no record is young enough, it is the end (KIP-1106)."""
        found: Found = {}
        try:
            await self._offsets.look_up(call, wanted, found)
        finally:
            too_old = {tp: OffsetSpec.LATEST for tp, where in found.items() if where is None}
            for tp, where in found.items():
                if where is not None:
                    self._settle(*asked[tp], where.offset)
        if too_old:
            await self._from_log(call, dict(too_old), asked)

    def _refuse(self, partitions: list[AssignedPartition]) -> None:
        """Fail these, for ``auto_offset_reset`` is ``none``; the error names them all."""
        if not partitions:
            return
        names, group = ", ".join(str(partition.tp) for partition in partitions), self._config.group_id
        lack = "partition {} has" if len(partitions) == 1 else "partitions {} have"
        text = f"{lack.format(names)} no committed offset in group {group!r} to go on from, and auto_offset_reset is 'none'"
        for partition in partitions:
            partition.failed(NoOffsetForPartitionError(text))

    def _settle(self, partition: AssignedPartition, ticket: int, offset: int, leader_epoch: int | None = None) -> bool:
        fits = partition.accepts(ticket) and partition.position is None
        if fits:
            partition.located(offset, leader_epoch)
        return fits


def _where(reset: OffsetSpec | OffsetReset) -> int:
    """What to look up: an :class:`OffsetSpec`, or a time (ms since the epoch), counted from now."""
    if isinstance(reset, OffsetSpec):
        return reset
    if reset.duration_ms is not None:
        return max(0, round(time.time() * 1000) - reset.duration_ms)
    return OffsetSpec.EARLIEST if reset.strategy == "earliest" else OffsetSpec.LATEST
