"""The watchdog of a share consumer: its partitions, its acknowledgements, its place in the group.

See :mod:`trikafka._api.client.stalls`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import partial

from ..._managers.share.fetch import ShareFetcher
from ..._managers.share.membership import ShareMembership
from ..._net.outages import Outages
from ..._state.group.member import MemberState
from ...config import ShareConsumerConfig
from ...interfaces import MetadataManager, ShareFetchManager, ShareMembershipManager
from ..client.stalls import NEVER, Owed, StallWatch, metadata_owed
from .core import ShareCore

_log = logging.getLogger("trikafka.share")
#: The key of the member's place in its group.
GROUP = "group"


class ShareWatchdog(StallWatch):
    """The watch over the progress that one share consumer owes."""

    def __init__(
        self,
        config: ShareConsumerConfig,
        core: ShareCore,
        outages: Outages,
        metadata: MetadataManager,
        membership: ShareMembershipManager,
        fetcher: ShareFetchManager,
    ) -> None:
        limit = config.stall_warning_ms / 1000
        sources: list[Callable[[float], Iterator[Owed]]] = [
            self._group,
            self._partitions,
            self._acknowledgements,
            partial(metadata_owed, metadata, outages),
        ]
        client = f"share consumer {config.client_id!r} of group {config.group_id!r}"
        super().__init__(_log, limit, sources, client)
        self._core = core
        self._outages = outages
        self._membership = membership
        self._fetcher = fetcher
        self._name = f"share group {config.group_id!r}"
        # A broker may hold a fetch that long without a response.
        self._fresh = max(0.0, 2 * config.fetch_max_wait_ms / 1000 - limit)

    def _group(self, now: float) -> Iterator[Owed]:
        member = self._core.member
        well_at = NEVER
        progress = (member.settlings, member.last_heartbeat)
        if member.state is MemberState.STALE or member.hindrance is not None:
            well_at = now  # the log and health() say so already
        elif member.state is MemberState.STABLE:
            # A plugin's member does not report its heartbeats.
            ours = isinstance(self._membership, ShareMembership)
            well_at = member.heartbeat_due if ours else now
        else:
            # A member that joins and is fenced each time makes no progress.
            progress = (0, member.last_heartbeat)
        yield Owed(GROUP, self._name, progress, well_at, self._why_outside)

    def _why_outside(self) -> str:
        member, fatal = self._core.member, self._membership.fatal
        if fatal is not None:
            return f"the group's work has stopped: {fatal}"
        if self._outages.all_away:
            return "no broker of the cluster can be reached"
        error = member.heartbeat_error or "the coordinator does not respond"
        if member.state is MemberState.STABLE:
            return f"no heartbeat has been answered: {error}"
        return f"the member is {member.state.value}: {error}"

    def _partitions(self, now: float) -> Iterator[Owed]:
        if not isinstance(self._fetcher, ShareFetcher):
            return  # a plugin does not report when it fetched
        for key in self._core.assignment.partitions:
            if key not in self._core.assignment.partitions:
                continue  # unassigned while the watch was suspended
            fetched_at, why = self._fetcher.last_fetch(key, now)
            well_at = NEVER if fetched_at is None else fetched_at + self._fresh
            # A broker may hold the first fetch, too.
            patience = self._fresh if self._fetcher.has_first_fetch(key) else 0.0
            yield Owed(key, self._fetcher.name(key), None, well_at, why, patience)

    def _acknowledgements(self, now: float) -> Iterator[Owed]:
        if not isinstance(self._fetcher, ShareFetcher):
            return
        for node_id, since, why in self._fetcher.unacknowledged(now, self._limit):
            name = f"acknowledgements to broker {node_id}"
            yield Owed(("acknowledgements", node_id), name, None, since + self._fresh, why)
