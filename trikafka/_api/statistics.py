"""What a consumer knows of itself, as a snapshot for the user."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from .._managers.coordinator import Coordinators, CoordinatorState
from ..types import BrokerThrottle, ConnectionStatistics, TopicPartition
from .consumer_parts import ConsumerParts


@dataclass(frozen=True, slots=True)
class ConsumerStatistics:
    """What a consumer knows of itself. ``lag``: records between the position and the end that the last fetch told.

    ``state`` is that of the member, which outlives an outage for a session; ``unreachable`` are the ids of the brokers that cannot
    be reached or do not respond (why, says ``Consumer.health``). ``coordinator`` is ``"down"`` (closed, or there is no group),
    ``"initialized"`` (nothing has needed it yet), ``"coordinator discovery"``, ``"stable"`` (it is known), or ``"unknown"`` where a
    plugin looks for coordinators. ``connections`` tells of each connection in which state it is, and was for how long.
    ``throttled``, by the broker's id, of the waits that brokers' quotas ask for (KIP-219).
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


def statistics_of(parts: ConsumerParts, *, closed: bool) -> ConsumerStatistics:
    """A snapshot of what the consumer knows of itself."""
    member, assignment = parts.core.member, parts.core.assignment
    return ConsumerStatistics(
        member.state.value,
        member.identity.member_id,
        member.identity.generation,
        MappingProxyType({partition.tp: partition.position for partition in assignment}),
        MappingProxyType({partition.tp: partition.lag for partition in assignment}),
        parts.core.buffer.buffered,
        frozenset(node.node_id for node in parts.brokers.outages.unreachable()),
        _coordinator_state(parts, closed=closed),
        parts.brokers.statistics(),
        MappingProxyType(dict(parts.brokers.throttles.statistics())),
    )


def _coordinator_state(parts: ConsumerParts, *, closed: bool) -> str:
    group = parts.config.group_id
    if closed or group is None:
        return CoordinatorState.DOWN.value
    coordinators = parts.coordinators
    return coordinators.state(group).value if isinstance(coordinators, Coordinators) else "unknown"
