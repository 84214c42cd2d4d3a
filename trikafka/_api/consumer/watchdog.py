"""The watchdog of a consumer: it finds partitions, a membership or commits without progress.

:mod:`trikafka._api.client.stalls` describes watchdogs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from ..._managers.commits.auto_commit import AUTO_COMMIT, AutoCommit
from ..._managers.consumer.fetch import Fetcher
from ..._managers.group.listener_invoker import RebalanceListenerInvoker
from ..._managers.group.membership_base import MembershipBase
from ..._managers.group.membership_choice import MembershipChoice
from ..._net.outages import Outages
from ..._state.consumer.assignment import AssignedPartition
from ..._state.consumer.partition_state import PartitionState
from ..._state.group.member import MemberState
from ...config import ConsumerConfig
from ...errors import TrikafkaError
from ...interfaces import FetchManager, MembershipManager, MetadataManager, PositionsManager
from ...types import TopicPartition
from ..client.stalls import NEVER, Owed, StallWatch, calls_owed, metadata_owed
from .core import ConsumerCore

_log = logging.getLogger("trikafka.consumer")
#: The memberships that report their heartbeats and the cause of a wait. A plugin's does not.
_OURS = (MembershipBase, MembershipChoice)
#: The key of the member's place in its group.
GROUP = "group"
_OPEN_TRANSACTION = (
    "a transaction is open there, and a read_committed consumer waits for its end. "
    "Admin.find_hanging_transactions(), or trikafka transactions find-hanging, finds one that will "
    "never end"
)


@dataclass(frozen=True, slots=True)
class CommittedRecords:
    """The records of a partition behind an open transaction, as a key of what is owed."""

    partition: AssignedPartition

    def __str__(self) -> str:
        return f"committed records of {self.partition.tp}"


class Watchdog(StallWatch):
    """The watch over the records, the membership and the commits of one consumer."""

    def __init__(
        self,
        config: ConsumerConfig,
        core: ConsumerCore,
        outages: Outages,
        metadata: MetadataManager,
        positions: PositionsManager,
        fetcher: FetchManager,
        invoker: RebalanceListenerInvoker,
        *,
        membership: MembershipManager | None,
        auto_commit: AutoCommit | None,
        fetched_by: str | None,
        held: Callable[[AssignedPartition], str | None],
    ) -> None:
        limit = config.stall_warning_ms / 1000
        sources: list[Callable[[float], Iterator[Owed]]] = [
            self._partitions,
            self._transactions,
            self._group,
            self._commits,
        ]
        sources.append(partial(metadata_owed, metadata, outages))
        # Auto commit makes many calls. It is watched as a whole by `_commits`.
        sources.append(partial(calls_owed, config, but=AUTO_COMMIT))
        of_group = f" of group {config.group_id!r}" if config.group_id else ""
        super().__init__(_log, limit, sources, f"consumer {config.client_id!r}{of_group}")
        self._config = config
        self._core = core
        self._outages = outages
        self._metadata = metadata
        self._positions = positions
        self._fetcher = fetcher
        self._invoker = invoker
        self._membership = membership
        self._auto_commit = auto_commit
        self._fetched_by = fetched_by  # the plugin that fills the fetch manager's seat
        # Returns a sentence about the user's code that keeps records of the partition from being
        # delivered, or None.
        self._held = held
        # A broker may wait for fetch_max_wait_ms before it responds to a fetch. So a partition
        # counts as idle until twice that time after its last successful fetch.
        two_fetches = 2 * config.fetch_max_wait_ms / 1000
        self._fresh = max(0.0, two_fetches - limit)
        # For so long (seconds) the last fetch counts as the present state of the log.
        self._believed = max(limit / 2, two_fetches)

    # --- partitions ---

    def _partitions(self, now: float) -> Iterator[Owed]:
        for partition in list(self._core.assignment):
            if self._core.assignment.partitions.get(partition.tp) is not partition:
                continue  # revoked while the watch was suspended
            progress = partition.position, partition.ticket
            yield Owed(
                partition,
                partition.tp,
                progress,
                self._rested_at(partition, now),
                partial(self.reason, partition),
                self._fresh if self._fresh and self._may_be_held(partition) else 0.0,
            )

    def _rested_at(self, partition: AssignedPartition, now: float) -> float:
        """Return until when a partition had no reason to make progress.

        It was paused or at its limit until then, or a fetch at the end of its log succeeded.
        """
        if partition.error is not None:
            return NEVER
        if partition.paused or partition.at_limit:
            return now
        if (
            partition.state is not PartitionState.FETCHING
            or partition.lag != 0
            or self._leaderless(partition.tp) is not None
        ):
            return NEVER
        if not isinstance(self._fetcher, Fetcher):
            return now  # a plugin does not report when it fetched
        fetched_at = self._fetcher.last_fetch(partition)[0]
        return NEVER if fetched_at is None else fetched_at + self._fresh

    def _may_be_held(self, partition: AssignedPartition) -> bool:
        """Return whether a healthy broker may be holding the partition's fetch.

        That is so before the first response, and while there are fewer bytes than
        ``fetch_min_bytes``.
        """
        return (
            partition.state is PartitionState.FETCHING
            and partition.error is None
            and not partition.in_hand
            and not self._core.buffer.size_of(partition)
            and not self._core.buffer.leaves_out(partition)
            and self._away(partition.tp) is None
            and self._leaderless(partition.tp) is None
            and isinstance(self._fetcher, Fetcher)
            and self._fetcher.last_fetch(partition)[1] is None
        )

    def reason(self, partition: AssignedPartition) -> str:
        """Return why a partition makes no progress, as far as the client can see."""
        # A cause makes all later ones in this list irrelevant: an error that is still to be raised,
        # no broker, no leader, a state that waits for something, records that the user does not
        # receive, no room in the buffer, the error of the last fetch. If none of these is true, the
        # leader itself does not respond.
        if partition.error is not None:
            return f"it failed, and no receive has raised the error yet: {partition.error}"
        if (away := self._away(partition.tp)) is not None:
            return away
        if (leader := self._leaderless(partition.tp)) is not None:
            return f"it has no leader that can be asked: {leader}"
        match partition.state:
            case PartitionState.AWAITING_CALLBACK:
                return self._invoker.obstacle or "the rebalance listeners have not run"
            case PartitionState.AWAITING_POSITION:
                return (
                    "its position is not known: "
                    f"{self._positions.last_error or 'the look-up is under way'}"
                )
            case PartitionState.VALIDATING:
                error = (
                    self._fetcher.validation_error(partition)
                    if isinstance(self._fetcher, Fetcher)
                    else None
                )
                return (
                    "its position could not be checked against the new leader's log yet: "
                    f"{error or 'the look-up is under way'}"
                )
            case PartitionState.REVOKING | PartitionState.LOST:
                return f"it is being revoked: {self._invoker.obstacle or 'this takes long'}"
        if (held := self._held(partition)) is not None:
            return held
        if self._core.buffer.size_of(partition) or partition.in_hand:
            return "records of it are there, but no task receives them"
        if self._core.buffer.leaves_out(partition):
            return (
                "fetch_buffer_bytes is used up by other partitions, and no task receives records "
                "of this one"
            )
        if self._fetched_by is not None:
            return (
                f"plugin {self._fetched_by}: fetch.run has fetched nothing of it, though there "
                "may be records"
            )
        if isinstance(self._fetcher, Fetcher) and (error := self._fetcher.last_fetch(partition)[1]):
            return f"fetching it fails: {error}"
        if self._core.buffer.buffered and partition.lag == 0:
            return (
                "nothing is fetched from its leader: the fetch buffer is full of records that no "
                "task receives"
            )
        return (
            "its leader sends nothing, though there are records"
            if partition.lag
            else "its leader does not respond to fetches"
        )

    def _away(self, tp: TopicPartition) -> str | None:
        """Return why the leader, or every broker, is unreachable; ``None`` if it is reachable."""
        unreachable = self._outages.unreachable()
        if self._outages.all_away:
            return (
                f"no broker of the cluster can be reached: {next(iter(unreachable.values())).error}"
            )
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

    # --- transactions of others ---

    # A read_committed consumer at the last stable offset is at the end of what it may read. So its
    # lag is 0, each fetch succeeds, and the partition is at rest, while later records are in the
    # log. They may stay out of reach for ever: nothing ends a transaction whose coordinator has
    # forgotten it (KIP-664). So this wait has an entry of its own, whose progress is the last
    # stable offset. Health reports it apart from the stalls: another program causes it, and a
    # restart of this one would not end it.
    #
    # Only a fetch shows an open transaction. When a broker is lost, the last fetches of busy topics
    # show one that was about to end. So without recent fetches nothing is said of transactions:
    # `_partitions` names the cause.
    def _transactions(self, now: float) -> Iterator[Owed]:
        if self._config.isolation_level != "read_committed":
            return
        for partition in list(self._core.assignment):
            behind = partition.behind_transaction
            if behind and not self._waits_for_commits(partition, now):
                continue
            key = CommittedRecords(partition)
            yield Owed(
                key,
                key,
                partition.log.last_stable_offset,
                NEVER if behind else now,
                lambda: _OPEN_TRANSACTION,
            )

    def _waits_for_commits(self, partition: AssignedPartition, now: float) -> bool:
        """Return whether the user waits for records of a partition, and a recent fetch found none.

        A plugin does not report when it fetched.
        """
        if (
            partition.state is not PartitionState.FETCHING
            or partition.error is not None
            or partition.paused
            or partition.at_limit
        ):
            return False
        if not isinstance(self._fetcher, Fetcher):
            return True
        fetched_at = self._fetcher.last_fetch(partition)[0]
        return fetched_at is not None and now - fetched_at <= self._believed

    # --- the group ---

    def _group(self, now: float) -> Iterator[Owed]:
        member = self._core.member
        if not self._core.subscription.grouped or self._membership is None:
            return
        well_at = NEVER
        progress = (member.settlings, member.last_heartbeat)
        if member.state is MemberState.STALE or member.hindrance is not None:
            # The member has left because nothing was received, or the group refuses it: the log and
            # health() already say so.
            well_at = now
        elif member.state is MemberState.STABLE:
            # A plugin's member does not report its heartbeats.
            well_at = member.heartbeat_due if isinstance(self._membership, _OURS) else now
        else:
            progress = (member.settlings, None)
        yield Owed(GROUP, f"group {self._config.group_id!r}", progress, well_at, self._why_outside)

    def _why_outside(self) -> str:
        """Return why the member is not in its group, or why that is in doubt."""
        member, membership = self._core.member, self._membership
        if membership is not None and membership.fatal is not None:
            return f"the group's work has stopped: {membership.fatal}"
        if self._outages.all_away:
            return "no broker of the cluster can be reached"
        if (obstacle := self._invoker.obstacle) is not None:
            return f"the member is {member.state.value}: {obstacle}"
        error = member.heartbeat_error
        if error is None and isinstance(membership, _OURS):
            error = membership.reason.error()
        if member.state is MemberState.STABLE:
            return f"no heartbeat has been answered: {error or 'no response from the coordinator'}"
        return (
            f"the member is {member.state.value}: "
            f"{error or 'the coordinator has not responded yet'}"
        )

    # --- commits ---

    def _commits(self, now: float) -> Iterator[Owed]:
        if (auto_commit := self._auto_commit) is None:
            return
        since = auto_commit.unsettled_since
        name = f"auto commit of group {self._config.group_id!r}"

        def why() -> str:
            return str(auto_commit.obstacle or "the coordinator has not responded yet")

        yield Owed("auto commit", name, None, now if since is None else since, why)
