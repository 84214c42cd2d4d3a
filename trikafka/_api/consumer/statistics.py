"""A snapshot of a consumer's counters and states."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..._managers.cluster.coordinator import Coordinators, CoordinatorState
from ...types import BrokerThrottle, ConnectionStatistics, MetricsPush, TopicPartition
from ..client.snapshots import ByKey
from .parts import ConsumerParts


@dataclass(frozen=True, slots=True)
class ConsumerStatistics:
    """Counters and states of a consumer.

    Attributes:
        state: The member's state; it outlives an outage for a session.
        member_id: The member's id in the group.
        generation: The generation, or the member epoch (KIP-848); -1 outside of the group.
        positions: The position of each partition; ``None`` while it is looked up.
        lag: The offsets between the position and the end in the last fetch response, by partition.
        buffered_bytes: Bytes in the fetch buffer, bounded by ``fetch_buffer_bytes``.
        unreachable: The ids of brokers that cannot be reached or do not respond;
            ``Consumer.health`` has the causes.
        coordinator: ``"down"`` (closed, or no group), ``"initialized"`` (not needed yet),
            ``"coordinator discovery"``, ``"stable"`` (known), or ``"unknown"`` where a plugin looks
            for coordinators.
        connections: The state of each connection, and since when.
        throttled: The waits that brokers' quotas ask for (KIP-219), by broker id.
        metrics_push: The pushes of metrics (KIP-714); ``None`` if they are switched off.
    """

    state: str
    member_id: str
    generation: int
    positions: Mapping[TopicPartition, int | None]
    lag: Mapping[TopicPartition, int | None]
    buffered_bytes: int
    unreachable: frozenset[int] = frozenset()
    coordinator: str = "down"
    connections: tuple[ConnectionStatistics, ...] = ()
    throttled: Mapping[int, BrokerThrottle] = field(default_factory=dict)
    metrics_push: MetricsPush | None = None


def statistics_of(parts: ConsumerParts, *, closed: bool) -> ConsumerStatistics:
    """Return a snapshot of a consumer's counters and states."""
    member = parts.core.member
    assignment = parts.core.assignment
    return ConsumerStatistics(
        member.state.value,
        member.identity.member_id,
        member.identity.generation,
        ByKey({partition.tp: partition.position for partition in assignment}),
        ByKey({partition.tp: partition.lag for partition in assignment}),
        parts.core.buffer.buffered,
        frozenset(node.node_id for node in parts.brokers.outages.unreachable()),
        _coordinator_state(parts, closed=closed),
        parts.brokers.statistics(),
        dict(parts.brokers.throttles.statistics()),
        parts.telemetry.statistics(),
    )


def _coordinator_state(parts: ConsumerParts, *, closed: bool) -> str:
    group = parts.config.group_id
    if closed or group is None:
        return CoordinatorState.DOWN.value
    coordinators = parts.coordinators
    return coordinators.state(group).value if isinstance(coordinators, Coordinators) else "unknown"
