"""The descriptions of streams groups (KIP-1071): values, request and response."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from ..._wire.extra_messages import StreamsGroupDescribeRequest
from .messages import operations_of
from .share_groups import describe


@dataclass(frozen=True, slots=True)
class StreamsTasks:
    """The tasks of a member, by subtopology with the numbers of their partitions.

    Attributes:
        active: The tasks that process records.
        standby: Copies that follow the state of an active task elsewhere.
        warmup: Copies that catch up, to become active here.
    """

    active: Mapping[str, tuple[int, ...]]
    standby: Mapping[str, tuple[int, ...]]
    warmup: Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class StreamsMember:
    """A member of a streams group.

    Attributes:
        member_id: The id that the member has in its group.
        epoch: The member's epoch.
        instance_id: The id of a static member; ``None`` for others.
        rack: The member's rack, if it named one.
        client_id: The ``client_id`` of its program.
        client_host: The address from which it connects.
        process_id: The id of its process, which may have several members.
        topology_epoch: The epoch of the topology that the member runs.
        tasks: The member's tasks now.
        target_tasks: The member's tasks in the target assignment.
    """

    member_id: str
    epoch: int
    instance_id: str | None
    rack: str | None
    client_id: str
    client_host: str
    process_id: str
    topology_epoch: int
    tasks: StreamsTasks
    target_tasks: StreamsTasks


@dataclass(frozen=True, slots=True)
class StreamsSubtopology:
    """A part of a topology.

    Attributes:
        subtopology_id: Its id.
        source_topics: The topics that it reads.
        repartition_sink_topics: The repartition topics that it writes.
        changelog_topics: The topics of its state.
        repartition_source_topics: The repartition topics that it reads.
    """

    subtopology_id: str
    source_topics: tuple[str, ...]
    repartition_sink_topics: tuple[str, ...]
    changelog_topics: tuple[str, ...]
    repartition_source_topics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StreamsGroupDescription:
    """A streams group, its topology and its members.

    Attributes:
        group_id: The group.
        state: The broker's name of the state, such as ``Stable`` or ``NotReady``.
        epoch: The epoch of the group.
        assignment_epoch: The epoch of the target assignment.
        topology_epoch: The epoch of the topology; ``None`` if there is none yet.
        subtopologies: The parts of the topology; ``None`` until they are configured.
        members: The members.
        assignor: The assignor for the next assignment (Kafka 4.4); ``None`` if unknown.
        authorized_operations: The operations that this client may perform, named as in access
            rules, such as ``"describe_configs"``; ``None`` unless they were asked for.
    """

    group_id: str
    state: str
    epoch: int
    assignment_epoch: int
    topology_epoch: int | None
    subtopologies: tuple[StreamsSubtopology, ...] | None
    members: tuple[StreamsMember, ...]
    assignor: str | None
    authorized_operations: frozenset[str] | None


def _described(group: Any) -> StreamsGroupDescription:
    topology = group.topology
    configured = topology is not None and topology.subtopologies is not None
    return StreamsGroupDescription(
        group.group_id,
        group.group_state,
        group.group_epoch,
        group.assignment_epoch,
        topology.epoch if topology is not None else None,
        tuple(map(_subtopology, topology.subtopologies)) if configured else None,
        tuple(map(_member, group.members)),
        group.assignor_name or None,
        operations_of(group.authorized_operations),
    )


#: Describe streams groups.
describe_streams = partial(
    describe, kind="streams", request=StreamsGroupDescribeRequest, read_group=_described
)


def _subtopology(part: Any) -> StreamsSubtopology:
    return StreamsSubtopology(
        part.subtopology_id,
        tuple(part.source_topics),
        tuple(part.repartition_sink_topics),
        tuple(topic.name for topic in part.state_changelog_topics),
        tuple(topic.name for topic in part.repartition_source_topics),
    )


def _member(member: Any) -> StreamsMember:
    return StreamsMember(
        member.member_id,
        member.member_epoch,
        member.instance_id,
        member.rack_id,
        member.client_id,
        member.client_host.lstrip("/"),
        member.process_id,
        member.topology_epoch,
        _tasks(member.assignment),
        _tasks(member.target_assignment),
    )


def _tasks(assignment: Any) -> StreamsTasks:
    def numbers(tasks: Any) -> dict[str, tuple[int, ...]]:
        return {each.subtopology_id: tuple(sorted(each.partitions)) for each in tasks}

    return StreamsTasks(
        numbers(assignment.active_tasks),
        numbers(assignment.standby_tasks),
        numbers(assignment.warmup_tasks),
    )
