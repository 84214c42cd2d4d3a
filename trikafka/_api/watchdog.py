"""Which partitions of a consumer make no progress, and why: the watchdog over them.

The watchdog owns what it saw of each partition. A partition that is assigned and not paused, and that may have records, but makes
no progress for ``stall_warning_ms``, is *stalled*: the log says so once, with the reason, and once more when it goes on.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass

import trio

from .._managers.fetch import Fetcher
from .._net.outages import Outages
from .._state.assignment import AssignedPartition
from .._state.partition_state import PartitionState
from ..errors import TrikafkaError
from ..interfaces import FetchManager, MetadataManager, PositionsManager
from ..types import TopicPartition
from .consumer_core import ConsumerCore

_log = logging.getLogger("trikafka.consumer")
_LOOKS = 4  # how often the watchdog looks within the time after which it warns


@dataclass(slots=True)
class _Seen:
    """A partition as the watchdog saw it last."""

    position: int | None
    ticket: int
    since: float  # when it was seen so first
    told: bool = False


class Watchdog:
    """Watches the partitions of one consumer."""

    def __init__(
        self,
        core: ConsumerCore,
        outages: Outages,
        metadata: MetadataManager,
        positions: PositionsManager,
        fetcher: FetchManager,
        limit: float,
        *,
        fetched_by: str | None = None,
    ) -> None:
        self._core, self._outages, self._metadata, self._positions, self._limit = core, outages, metadata, positions, limit
        self._fetcher = fetcher
        self._fetched_by = fetched_by  # the plugin in the fetch manager's seat
        self._seen: dict[AssignedPartition, _Seen] = {}
        self._scope = trio.CancelScope()

    async def run(self) -> None:
        """Look again and again, until :meth:`stop`."""
        with self._scope:
            while True:
                await trio.sleep(self._limit / _LOOKS)
                self.look(trio.current_time())

    def stop(self) -> None:
        """The consumer closes: that its partitions stand still is no news, and what takes long tells that itself."""
        self._scope.cancel()

    def look(self, now: float) -> None:
        """See what has made progress since the last time, and tell what has not for too long."""
        before, self._seen = self._seen, {}
        for partition in self._core.assignment:
            seen = before.get(partition)
            if seen is None or (seen.position, seen.ticket) != (partition.position, partition.ticket) or self._at_rest(partition):
                if seen is not None and seen.told:
                    _log.info("%s: goes on, after %.0f s without progress", partition.tp, now - seen.since)
                seen = _Seen(partition.position, partition.ticket, now)
            elif now - seen.since >= self._limit and not seen.told:
                seen.told = True
                _log.warning("%s: no progress for %.0f s: %s", partition.tp, now - seen.since, self.reason(partition))
            self._seen[partition] = seen

    def stalled(self, now: float) -> dict[TopicPartition, str]:
        """The partitions without progress for too long, each with the reason."""
        assigned = self._core.assignment.partitions
        late = [p for p, seen in self._seen.items() if now - seen.since >= self._limit and assigned.get(p.tp) is p]
        return {p.tp: self.reason(p) for p in late if p.position == self._seen[p].position and not self._at_rest(p)}

    def reason(self, partition: AssignedPartition) -> str:
        """Why a partition makes no progress, as far as one can tell from here."""
        if partition.error is not None:
            return f"it failed, and no receive has been told yet: {partition.error}"
        if (away := self._away(partition.tp)) is not None:
            return away
        if (leader := self._leaderless(partition.tp)) is not None:
            return f"it has no leader that can be asked: {leader}"
        match partition.state:
            case PartitionState.AWAITING_CALLBACK:
                return "the rebalance listeners have not run: they run inside receive(), which nobody has called since"
            case PartitionState.AWAITING_POSITION:
                return f"its position is not known: {self._positions.last_error or 'the look-up is under way'}"
            case PartitionState.VALIDATING:
                return "its position could not be checked against the new leader's log yet"
            case PartitionState.REVOKING | PartitionState.LOST:
                return "it is being given up, and a rebalance listener or a commit takes long, or nobody receives"
        if self._core.buffer.size_of(partition) or partition.progress.in_hand:
            return "records of it are there, but nobody receives them"
        if self._fetched_by is not None:
            return f"plugin {self._fetched_by}: fetch.run has fetched nothing of it, though there may be records"
        if isinstance(self._fetcher, Fetcher) and (error := self._fetcher.last_fetch(partition)[1]):
            return f"fetching it fails: {error}"
        return "its leader sends nothing, though there are records"

    def _at_rest(self, partition: AssignedPartition) -> bool:
        """Whether there is no reason for progress: paused, limited, or at the end of a log that has a leader."""
        if partition.error is not None:
            return False
        if partition.paused or partition.limit is not None:
            return True
        return partition.state is PartitionState.FETCHING and partition.lag == 0 and self._leaderless(partition.tp) is None

    def _away(self, tp: TopicPartition) -> str | None:
        """Why its leader, or any broker, cannot be reached, if that is so."""
        unreachable = self._outages.unreachable()
        if self._outages.all_away:
            return f"no broker of the cluster can be reached: {next(iter(unreachable.values())).error}"
        with suppress(TrikafkaError):
            outage = unreachable.get(self._metadata.snapshot.leader(tp))
            return None if outage is None else f"its leader cannot be reached: {outage.error}"
        return None

    def _leaderless(self, tp: TopicPartition) -> TrikafkaError | None:
        try:
            self._metadata.snapshot.leader(tp)
        except TrikafkaError as error:
            return error
        return None
