"""The health and the statistics of a share consumer: plain functions over its parts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import trio

from ..._state.group.member import MemberState
from ..._wire.share import AckType
from ...error_codes import ErrorCode
from ...errors import topic_missing
from ...types import BrokerThrottle, ConnectionStatistics, MetricsPush, Node
from ..client.snapshots import ByKey
from .parts import ShareParts
from .watchdog import GROUP


@dataclass(frozen=True, slots=True)
class ShareConsumerHealth:
    """The health of a share consumer.

    Attributes:
        ok: False when something is wrong that more waiting may not fix.
        reasons: What is wrong, one sentence each.
        state: The member's state.
        connected: Brokers with a connection.
        unreachable: Brokers that cannot be reached, with the cause. One of several is not yet a
            reason.
        error: The error that ended the membership, or keeps the member out of its group.
        last_heartbeat: Seconds since the last heartbeat that the coordinator answered was sent;
            ``None`` before the first one.
        last_error: The last error of something that has not worked since.
        throttled: Brokers whose quota makes the client wait now (KIP-219).
        metrics_push: The pushes of metrics (KIP-714), what fails of them and since when; ``None``
            if they are switched off. Not a reason: metrics do not concern the work of the client.
    """

    ok: bool
    reasons: tuple[str, ...]
    state: str
    connected: tuple[Node, ...]
    unreachable: Mapping[Node, str]
    error: Exception | None
    last_heartbeat: float | None
    last_error: Exception | None
    throttled: Mapping[Node, str]
    metrics_push: MetricsPush | None = None


@dataclass(frozen=True, slots=True)
class ShareConsumerStatistics:
    """Counters and states of a share consumer.

    Attributes:
        state: The member's state.
        member_id: The member's id in the group.
        member_epoch: The member's epoch; -1 while it is not in the group.
        partitions: The number of assigned partitions.
        buffered: Records acquired and not delivered.
        delivered: Records delivered and not acknowledged.
        acquired: Records acquired so far.
        accepted: Acceptances that the broker has taken.
        released: Releases that the broker has taken.
        rejected: Rejections that the broker has taken.
        failed: Acknowledgements that failed.
        lost: Locks that ended before there was an acknowledgement.
        unreachable: The ids of brokers that cannot be reached or do not respond.
        connections: The state of each connection, and since when.
        throttled: The waits that brokers' quotas ask for (KIP-219), by broker id.
        metrics_push: The pushes of metrics (KIP-714); ``None`` if they are switched off.
    """

    state: str
    member_id: str
    member_epoch: int
    partitions: int
    buffered: int
    delivered: int
    acquired: int
    accepted: int
    released: int
    rejected: int
    failed: int
    lost: int
    unreachable: frozenset[int]
    connections: tuple[ConnectionStatistics, ...]
    throttled: Mapping[int, BrokerThrottle]
    metrics_push: MetricsPush | None = None


def share_health(parts: ShareParts) -> ShareConsumerHealth:
    """Return the health of a share consumer."""
    member, outages = parts.core.member, parts.brokers.outages
    now = trio.current_time()
    unreachable = outages.described()
    fatal = parts.membership.fatal
    reasons = tuple(_reasons(parts, unreachable, now))
    return ShareConsumerHealth(
        not reasons,
        reasons,
        member.state.value,
        parts.brokers.connected(),
        ByKey(unreachable),
        fatal or member.hindrance,
        None if member.last_heartbeat is None else now - member.last_heartbeat,
        fatal or outages.cause or member.heartbeat_error or parts.fetcher.last_error,
        ByKey(parts.brokers.throttles.now()),
        parts.telemetry.statistics(),
    )


def _reasons(parts: ShareParts, unreachable: Mapping[Node, str], now: float) -> Iterator[str]:
    if parts.closed:
        yield "the share consumer is closed"
    if parts.membership.fatal is not None:
        yield f"the group's work has stopped: {parts.membership.fatal}"
    elif (hindrance := parts.core.member.hindrance) is not None:
        yield f"the member is not in its group: {hindrance}"
    if parts.core.member.state is MemberState.STALE:
        yield (
            "nothing was received for max_poll_interval_ms, so the member left the group; the "
            "next receive joins again"
        )
    yield from _long_blocks(parts)
    known = parts.metadata.snapshot
    for topic in sorted(parts.core.assignment.topics):
        info = known.topics.get(topic)
        if info is not None and info.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            yield f"{topic_missing(topic, known.existing())} (it is subscribed to)"
    if parts.brokers.outages.all_away:
        yield "no broker of the cluster can be reached: " + "; ".join(unreachable.values())
    for each in parts.watchdog.stalled(now):
        # A fatal error of the membership is a reason already, and explains the group's standstill.
        if each.key != GROUP or parts.membership.fatal is None:
            yield f"{each.name}: no progress: {each.reason}"


def _long_blocks(parts: ShareParts) -> Iterator[str]:
    holdings, config = parts.core.holdings, parts.config
    if holdings.overdue:
        yield (
            f"{holdings.overdue} blocks were cancelled after max_processing_ms and have not ended; "
            "their records were released"
        )
    if stuck := parts.core.stuck_deserializers:
        yield (
            f"{stuck} receives wait for async deserializers that were cancelled after "
            "max_processing_ms and have not ended"
        )
    if config.max_processing_ms < math.inf:
        return
    # Without a limit of its own what hangs would never be noticed otherwise.
    for what, begun in (
        ("a block has been open", holdings.blocks.values()),
        ("an async deserializer has been at work", holdings.deserializing),
    ):
        longest = parts.core.now() - min(begun, default=math.inf)
        if longest > config.max_poll_interval_ms / 1000:
            yield (
                f"{what} for {longest:.0f} s, longer than max_poll_interval_ms, and "
                "max_processing_ms does not limit it"
            )


def share_statistics(parts: ShareParts) -> ShareConsumerStatistics:
    """Return a snapshot of a share consumer's counters and states."""
    member, holdings = parts.core.member, parts.core.holdings
    return ShareConsumerStatistics(
        member.state.value,
        parts.membership.member_id,
        member.identity.generation,
        len(parts.core.assignment.partitions),
        holdings.buffered,
        holdings.delivered,
        holdings.acquired,
        holdings.settled[AckType.ACCEPT],
        holdings.settled[AckType.RELEASE],
        holdings.settled[AckType.REJECT],
        holdings.failed,
        holdings.lost,
        frozenset(node.node_id for node in parts.brokers.outages.unreachable()),
        parts.brokers.statistics(),
        dict(parts.brokers.throttles.statistics()),
        parts.telemetry.statistics(),
    )
