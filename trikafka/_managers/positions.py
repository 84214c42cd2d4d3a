"""The positions manager: where the consumer begins in a partition that it has no position in.

The committed offset first, then ``auto_offset_reset``; or the reset that the user asked for. A user's seek meanwhile wins.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

import trio

from .._net.deadlines import Call, backoff
from .._net.signal import Signal
from .._state.subscription import PartitionState, Subscription
from ..config import ConsumerConfig
from ..errors import NoOffsetForPartitionError, TrikafkaError
from ..types import OffsetSpec, TopicPartition
from .commit import Commits
from .metadata import Metadata
from .offsets import Found, Offsets

_log = logging.getLogger("trikafka.positions")
_Asked = Mapping[TopicPartition, tuple[PartitionState, int]]


class PositionsManager:
    """Resolves the positions of assigned partitions, in the background, as soon as they are needed."""

    def __init__(
        self,
        config: ConsumerConfig,
        subscription: Subscription,
        metadata: Metadata,
        offsets: Offsets,
        commits: Commits | None,
        known: Callable[[], object],
    ) -> None:
        self._config, self._subscription, self._metadata = config, subscription, metadata
        self._offsets, self._commits = offsets, commits
        self.wanted = Signal()  # a partition needs a position
        self._known = known  # is told that a partition has got its position, or an error
        self.last_error: TrikafkaError | None = None

    async def run(self) -> None:
        """Resolve until cancelled; a failed look-up is tried again after a wait."""
        failures = 0
        while True:
            if not (unknown := self._unknown()):
                failures = 0
                await self.wanted.wait()
                continue
            errors = await self._resolve(unknown)
            self.last_error = errors[-1] if errors else None
            for error in errors:
                self._take_error(error)
            left = [state for state, epoch in unknown if state.epoch == epoch and state.position is None and state.error is None]
            fatal = next((error for error in errors if not error.retriable), None)
            for state in left if fatal is not None else ():
                state.error = fatal
            for state in left:
                self._miss(state)
            failures = failures + 1 if left else 0
            self._known()
            if failures:
                with trio.move_on_after(backoff(failures, self._config.retry_backoff_ms, self._config.retry_backoff_max_ms)):
                    await self.wanted.wait()

    def _unknown(self) -> list[tuple[PartitionState, int]]:
        """The partitions that need a position, each with its epoch now."""
        states = self._subscription.partitions.values()
        wanted = (s for s in states if s.position is None and (s.ready or s.position_asked))
        return [(s, s.epoch) for s in wanted if not s.revoking and s.error is None]

    def _miss(self, state: PartitionState) -> None:
        try:
            self._metadata.snapshot.leader(state.tp)
        except TrikafkaError as error:
            self._subscription.note_missing(state, error, trio.current_time())

    def _take_error(self, error: TrikafkaError) -> None:
        if error.refresh_metadata:
            self._metadata.mark_stale()
        if self._commits is not None:
            self._commits.recover(error)
        _log.debug("positions could not be resolved: %s", error)

    async def _resolve(self, unknown: list[tuple[PartitionState, int]]) -> list[TrikafkaError]:
        """One attempt. A reset that was asked for does not wait for a coordinator that is away. Returns what went wrong."""
        call = Call("positions", self._config.default_api_timeout, self._config.request_timeout)
        asked = {state.tp: (state, epoch) for state, epoch in unknown}
        resets = {state.tp: state.reset for state, _ in unknown if state.reset is not None}
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
            state, epoch = asked[tp]
            if (position := committed.get(tp)) is not None:
                self._settle(state, epoch, position.offset)
            elif state.epoch == epoch:
                self._choose(state, resets)

    async def _from_log(self, call: Call, asked: _Asked, resets: dict[TopicPartition, OffsetSpec]) -> None:
        found: Found = {}
        try:
            await self._offsets.look_up(call, resets, found)
        finally:
            for tp, where in found.items():
                if where is not None:
                    self._settle(*asked[tp], where.offset)

    def _choose(self, state: PartitionState, resets: dict[TopicPartition, OffsetSpec]) -> None:
        if self._config.auto_offset_reset == "none":
            state.error = NoOffsetForPartitionError(
                f"partition {state.tp} has no committed offset in group {self._config.group_id!r} and auto_offset_reset is 'none'"
            )
        else:
            resets[state.tp] = OffsetSpec.EARLIEST if self._config.auto_offset_reset == "earliest" else OffsetSpec.LATEST

    def _settle(self, state: PartitionState, epoch: int, offset: int) -> None:
        if state.epoch == epoch and state.position is None:
            state.jump(offset)
            self._known()
