"""The positions manager: where the consumer begins in a partition that it has no position in.

The committed offset first, then ``auto_offset_reset``; or the reset that the user asked for. A user's seek meanwhile wins.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

import trio

from .._net.deadlines import Call, backoff
from .._net.signal import Signal
from .._state.assignment import AssignedPartition, Assignment
from .._state.subscription import Subscription
from ..config import ConsumerConfig
from ..errors import NoOffsetForPartitionError, TrikafkaError
from ..interfaces import CommitManager, Found, MetadataManager, OffsetsManager
from ..types import OffsetSpec, TopicPartition

_log = logging.getLogger("trikafka.positions")
_Asked = Mapping[TopicPartition, tuple[AssignedPartition, int]]


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
        self._config, self._subscription, self._assignment, self._metadata = config, subscription, assignment, metadata
        self._offsets, self._commits = offsets, commits
        self._wake = unlocated  # a partition needs a position
        self._last_error: TrikafkaError | None = None

    @property
    def last_error(self) -> TrikafkaError | None:
        """Why the last attempt did not find all positions, if it did not."""
        return self._last_error

    async def run(self) -> None:
        """Resolve until cancelled; a failed look-up is tried again after a wait."""
        failures = 0
        while True:
            if not (unlocated := [(partition, partition.ticket) for partition in self._assignment.unlocated]):
                failures = 0
                await self._wake.wait()
                continue
            errors = await self._resolve(unlocated)
            self._last_error = errors[-1] if errors else None
            for error in errors:
                self._take_error(error)
            left = [p for p, ticket in unlocated if p.accepts(ticket) and p in self._assignment.unlocated]
            fatal = next((error for error in errors if not error.retriable), None)
            for partition in left:
                if fatal is not None:
                    partition.failed(fatal)
                else:
                    self._note_missing(partition)
            failures = failures + 1 if left else 0
            if failures:
                with trio.move_on_after(backoff(failures, self._config.retry_backoff_ms, self._config.retry_backoff_max_ms)):
                    await self._wake.wait()

    def _note_missing(self, partition: AssignedPartition) -> None:
        try:
            self._metadata.snapshot.leader(partition.tp)
            self._assignment.found(partition)
        except TrikafkaError as error:
            self._assignment.missing(partition, error, trio.current_time(), grouped=self._subscription.grouped)

    def _take_error(self, error: TrikafkaError) -> None:
        if error.refresh_metadata:
            self._metadata.request_update()
        if self._commits is not None:
            self._commits.recover(error)
        _log.debug("positions could not be resolved: %s", error)

    async def _resolve(self, unlocated: list[tuple[AssignedPartition, int]]) -> list[TrikafkaError]:
        """One attempt. A reset that was asked for does not wait for a coordinator that is away. Returns what went wrong."""
        call = Call("positions", self._config.default_api_timeout, self._config.request_timeout)
        asked = {partition.tp: (partition, ticket) for partition, ticket in unlocated}
        resets = {partition.tp: partition.reset for partition, _ in unlocated if partition.reset is not None}
        errors: list[TrikafkaError] = []
        if fresh := [tp for tp in asked if tp not in resets]:
            try:
                await self._from_commits(call, fresh, asked, resets)
            except TrikafkaError as error:
                errors.append(error)
        if resets:
            try:
                await self._from_log(call, asked, resets)
            except TrikafkaError as error:
                errors.append(error)
        return errors

    async def _from_commits(
        self, call: Call, fresh: list[TopicPartition], asked: _Asked, resets: dict[TopicPartition, OffsetSpec]
    ) -> None:
        committed = {} if self._commits is None else await self._commits.fetch_once(call, fresh)
        for tp in fresh:
            partition, ticket = asked[tp]
            if (position := committed.get(tp)) is not None:
                self._settle(partition, ticket, position.offset)
            elif partition.accepts(ticket):
                self._choose(partition, resets)

    async def _from_log(self, call: Call, asked: _Asked, resets: dict[TopicPartition, OffsetSpec]) -> None:
        found: Found = {}
        try:
            await self._offsets.look_up(call, resets, found)
        finally:
            for tp, where in found.items():
                if where is not None:
                    self._settle(*asked[tp], where.offset)

    def _choose(self, partition: AssignedPartition, resets: dict[TopicPartition, OffsetSpec]) -> None:
        if self._config.auto_offset_reset == "none":
            group = self._config.group_id
            text = f"partition {partition.tp} has no committed offset in group {group!r} and auto_offset_reset is 'none'"
            partition.failed(NoOffsetForPartitionError(text))
        else:
            resets[partition.tp] = OffsetSpec.EARLIEST if self._config.auto_offset_reset == "earliest" else OffsetSpec.LATEST

    def _settle(self, partition: AssignedPartition, ticket: int, offset: int) -> None:
        if partition.accepts(ticket) and partition.position is None:
            partition.located(offset)
