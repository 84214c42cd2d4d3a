"""The composition of a share consumer: its managers, its tasks, and its close."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable

import trio

from ..._managers.group.membership_events import MembershipEvents
from ..._managers.group.rebalance_times import RebalanceTimes
from ..._managers.share.fetch import ShareFetcher
from ..._net.deadlines import GRACE
from ..._state.share.session import Slice
from ...config import ShareConsumerConfig
from ...types import TopicPartition
from ..client.codecs import codecs_of
from ..client.context import Context
from ..client.deserializing import Deserializers
from ..client.service import Service
from .builtin import ShareBuiltin
from .core import ShareCore
from .watchdog import ShareWatchdog

_log = logging.getLogger("trikafka.share")
#: The share of the time of a close that is kept for leaving the group, and its limit in seconds.
_KEPT_SHARE, _KEPT_MOST = 0.25, 1.0


class ShareParts(Context[ShareConsumerConfig]):
    """The parts of one share consumer."""

    def __init__(
        self, config: ShareConsumerConfig, service: Service, topics: Iterable[str]
    ) -> None:
        super().__init__(config, service, ShareBuiltin())
        self.core = ShareCore(config, topics)
        RebalanceTimes(self.core.member, self.metrics.rebalanced)
        self.metrics.time_share("consumer.share.poll.idle.ratio.avg", self.core.poll_timer.waited)
        self.metrics.identify(self.core.member.attributes)
        watch = self.observers.caller("membership_changed")
        self.membership_events = MembershipEvents(config.group_id, self.core.member, watch)
        self.decompression = codecs_of(self.plugins)
        self.deserializers = Deserializers.of(config)
        for kind in ("metadata", "telemetry", "coordinator", "share_membership", "share_fetch"):
            self.fill(kind)
        self.metadata = self.manager("metadata")
        self.telemetry = self.manager("telemetry")
        self.membership = self.manager("share_membership")
        self.fetcher = self.manager("share_fetch")
        self.watchdog = ShareWatchdog(
            config, self.core, self.brokers.outages, self.metadata, self.membership, self.fetcher
        )
        self.closed = False
        self._close_ends = math.inf
        self._acknowledging = trio.CancelScope()  # of the close: the last acknowledgements
        self._member_scope = trio.CancelScope()
        self._member_ended = trio.Event()

    async def start(self) -> None:
        """Make the first contact and start the tasks."""
        self.metadata.want(self.core.assignment.topics)
        await self.check_files()
        await self.metadata.bootstrap()
        self.start_soon(self.metadata.run)
        self.core.poll_timer.polled(trio.current_time())
        self.start_soon(self._be_member)
        self.start_soon(self.fetcher.run)
        self.start_soon(self.watchdog.run)
        if self.config.enable_metrics_push:
            self.start_soon(self.telemetry.run)
        self.start_soon(self.core.end_long_blocks)
        self.notify_opened()

    def assignment(self) -> frozenset[TopicPartition]:
        """Return the assigned partitions; empty where a plugin acquires the records."""
        if isinstance(self.fetcher, ShareFetcher):
            return self.fetcher.named_assignment()
        return frozenset()

    def waiting(self) -> list[Slice]:
        """Return the acknowledgements that have no outcome yet."""
        return self.fetcher.waiting() if isinstance(self.fetcher, ShareFetcher) else []

    async def _be_member(self) -> None:
        try:
            with self._member_scope:
                await self.membership.run()
        finally:
            self._member_ended.set()

    # The order of a close. Acknowledgements first: they need the sessions, and the records that
    # this member releases go to another at once. Leaving the group comes last: until then the
    # coordinator assigns the partitions to no other member. Each step may be cut: the end of the
    # connections releases the records, and the end of the group's session the membership. So a
    # quarter of the time, a second at most, is kept for leaving. So it is when a cancellation
    # shortens a close that waits for acknowledgements.
    async def close(self, deadline: float) -> None:
        """Stop delivering, send the last acknowledgements, leave the group, close the sockets.

        Runs shielded, until ``deadline``.
        """
        self.closed = True
        self.watchdog.stop()
        self.core.deliver.notify()
        self._close_ends = deadline
        self._acknowledging.deadline = self._acknowledging_ends()
        try:
            with self._acknowledging:
                await self.fetcher.close()
            if self._acknowledging.cancelled_caught:
                _log.warning(
                    "closing: the time for the last acknowledgements was up; what this member "
                    "held is released with its connections"
                )
            self._member_scope.cancel()
            with trio.CancelScope(deadline=max(self._close_ends, trio.current_time() + GRACE)):
                await self._member_ended.wait()
                await self.membership.leave()
                await self.telemetry.push_last()
        finally:
            self.brokers.close()
            self.notify_closed()

    def shorten(self, deadline: float) -> None:
        """End the close under way by ``deadline``, with a share of the rest for leaving."""
        if deadline < self._close_ends:
            self._close_ends = deadline
            self._acknowledging.deadline = min(
                self._acknowledging.deadline, self._acknowledging_ends()
            )

    def _acknowledging_ends(self) -> float:
        now = trio.current_time()
        kept = min(_KEPT_MOST, _KEPT_SHARE * max(0.0, self._close_ends - now))
        return max(self._close_ends - kept, now + GRACE)
