"""The positions manager: where the consumer begins in a partition that it has no position in.

The committed offset first, then ``auto_offset_reset``; or the reset that the user asked for. A user's seek meanwhile wins.
"""

from __future__ import annotations

import logging

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


class PositionsManager:
    """Resolves the positions of assigned partitions, in the background, as soon as they are needed."""

    def __init__(
        self,
        config: ConsumerConfig,
        subscription: Subscription,
        metadata: Metadata,
        offsets: Offsets,
        commits: Commits | None,
        known: Signal,
    ) -> None:
        self._config, self._subscription, self._metadata = config, subscription, metadata
        self._offsets, self._commits = offsets, commits
        self.wanted = Signal()  # a partition needs a position
        self.known = known  # a partition has got its position, or an error
        self.last_error: TrikafkaError | None = None

    async def run(self) -> None:
        """Resolve until cancelled; a failed look-up is tried again after a wait."""
        failures = 0
        while True:
            if not self._open():
                await self.wanted.wait()
                continue
            try:
                await self._resolve()
                failures, self.last_error = 0, None
            except TrikafkaError as error:
                failures += 1
                self.last_error = error
                if not error.retriable:
                    for state in self._open():
                        state.error = error
                if error.refresh_metadata:
                    self._metadata.mark_stale()
                if self._commits is not None:
                    self._commits.recover(error)
                _log.debug("positions could not be resolved (%d in a row): %s", failures, error)
            self.known.notify()
            if failures:
                with trio.move_on_after(backoff(failures, self._config.retry_backoff_ms, self._config.retry_backoff_max_ms)):
                    await self.wanted.wait()

    def _open(self) -> list[PartitionState]:
        states = self._subscription.partitions.values()
        return [s for s in states if s.position is None and s.ready and not s.revoking and s.error is None]

    async def _resolve(self) -> None:
        call = Call("positions", self._config.default_api_timeout, self._config.request_timeout)
        states = {state.tp: (state, state.epoch) for state in self._open()}
        resets: dict[TopicPartition, OffsetSpec] = {}
        fresh = []
        for tp, (state, _) in states.items():
            if state.reset is not None:
                resets[tp] = state.reset
            else:
                fresh.append(tp)
        if fresh and self._commits is not None:
            for tp, position in (await self._commits.fetch_once(call, fresh)).items():
                if position is not None:
                    self._settle(*states[tp], position.offset)
                    fresh.remove(tp)
        for tp in fresh:
            self._choose(states[tp][0], resets)
        if not resets:
            return
        found: Found = {}
        try:
            await self._offsets.look_up(call, resets, found)
        finally:
            for tp, where in found.items():
                if where is not None:
                    self._settle(*states[tp], where.offset)

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
            self.known.notify()
