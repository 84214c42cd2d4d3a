"""The reassignment of partitions to other brokers (KIP-455): values, requests and responses."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import trio
from kafka.protocol.admin import (
    AlterPartitionReassignmentsRequest,
    ListPartitionReassignmentsRequest,
)

from ..._net.deadlines import RunningCall
from ...errors import ConfigurationError, ErrorCode, from_code
from ...types import TopicPartition
from .messages import by_topic, of_partition, partitions_of, words
from .routing import Parts, Routing
from .types import checked_brokers

#: The new brokers of a partition; ``None`` cancels its reassignment.
Targets = dict[TopicPartition, tuple[int, ...] | None]
#: The version that can forbid another number of replicas (KIP-860).
_SINCE_SAME_FACTOR = 1


@dataclass(frozen=True, slots=True)
class PartitionReassignment:
    """A reassignment that is under way.

    Attributes:
        replicas: All brokers that have the partition now, those that get it included.
        adding: Of these, the brokers that get it.
        removing: Of these, the brokers that will lose it.
    """

    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]

    @property
    def target(self) -> tuple[int, ...]:
        """The brokers that have the partition afterwards."""
        return tuple(broker for broker in self.replicas if broker not in self.removing)


def checked_targets(targets: Mapping[TopicPartition, Sequence[int] | None]) -> Targets:
    """Return the checked argument of ``alter_partition_reassignments``.

    Raises :exc:`ConfigurationError`.
    """
    if not isinstance(targets, Mapping):
        raise ConfigurationError(
            "targets must be a mapping of TopicPartition to the numbers of brokers, not "
            f"{targets!r}"
        )
    return {
        tp: None if targets[tp] is None else checked_brokers(str(tp), targets[tp])
        for tp in partitions_of(targets)
    }


async def alter(
    routing: Routing,
    call: RunningCall,
    parts: Parts[TopicPartition, None],
    targets: Targets,
    *,
    other_factor: bool,
) -> None:
    """Let the controller begin or cancel the reassignments that are left."""
    if not parts.left:
        await trio.lowlevel.checkpoint()
        return
    asked = parts.left
    request = _alter_request(targets, asked, call, other_factor=other_factor)
    response = await routing.change(call, "controller", request, parts, asked)
    if response.error_code:
        raise from_code(
            response.error_code,
            f"the reassignment{words(response.error_message)}",
            operation="Alter",
        )
    for topic in response.responses:
        for part in topic.partitions:
            tp = TopicPartition(topic.name, part.partition_index)
            if part.error_code:
                error = of_partition(tp, part.error_code, part.error_message, "Alter")
                parts.failed(tp, error, made_before=ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)
            else:
                parts.done(tp, None)
    parts.check(asked, "AlterPartitionReassignments")


def _alter_request(
    targets: Targets, partitions: Iterable[TopicPartition], call: RunningCall, *, other_factor: bool
) -> AlterPartitionReassignmentsRequest:
    topic = AlterPartitionReassignmentsRequest.ReassignableTopic
    part = topic.ReassignablePartition
    topics = [
        topic(
            name=name,
            partitions=[
                part(
                    partition_index=number, replicas=_listed(targets[TopicPartition(name, number)])
                )
                for number in numbers
            ],
        )
        for name, numbers in by_topic(partitions).items()
    ]
    return AlterPartitionReassignmentsRequest(
        min_version=0 if other_factor else _SINCE_SAME_FACTOR,
        timeout_ms=int(call.step_limit * 1000),
        allow_replication_factor_change=other_factor,
        topics=topics,
    )


def _listed(replicas: tuple[int, ...] | None) -> list[int] | None:
    return None if replicas is None else list(replicas)


async def under_way(
    routing: Routing, call: RunningCall, partitions: Iterable[TopicPartition] | None
) -> dict[TopicPartition, PartitionReassignment]:
    """Return the reassignments of these partitions; ``None`` means all."""
    topic = ListPartitionReassignmentsRequest.ListPartitionReassignmentsTopics
    request = ListPartitionReassignmentsRequest(
        timeout_ms=int(call.step_limit * 1000),
        topics=None
        if partitions is None
        else [
            topic(name=name, partition_indexes=numbers)
            for name, numbers in by_topic(partitions).items()
        ],
    )
    response = await routing.request(call, "controller", request)
    if response.error_code:
        raise from_code(
            response.error_code,
            f"listing the reassignments{words(response.error_message)}",
            operation="Describe",
        )
    found = {
        TopicPartition(each.name, part.partition_index): PartitionReassignment(
            tuple(part.replicas), tuple(part.adding_replicas), tuple(part.removing_replicas)
        )
        for each in response.topics
        for part in each.partitions
    }
    return dict(sorted(found.items()))
