"""The messages of the classic group protocol: built and read here, sent by the membership manager. No I/O."""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from kafka.protocol.consumer.group import JoinGroupRequest, JoinGroupResponse, LeaveGroupRequest, SyncGroupRequest
from kafka.protocol.consumer.metadata import ConsumerProtocolAssignment, ConsumerProtocolSubscription

from .._state.assignors import Assignor, MemberSubscription
from .._state.member import Identity
from ..config import ConsumerConfig
from ..errors import ProtocolError
from ..types import TopicPartition

PROTOCOL_TYPE = "consumer"
#: The version of the subscription that members exchange: with owned partitions, generation and rack.
_SUBSCRIPTION_VERSION = 3
_ASSIGNMENT_VERSION = 0


@dataclass(slots=True)
class Joined:
    """A JoinGroup answer. ``members`` is empty unless this member ``leads``; ``dealt`` is what it dealt out then."""

    protocol: str
    leads: bool
    members: dict[str, MemberSubscription]
    dealt: dict[str, list[int]] | None = None

    @property
    def topics(self) -> frozenset[str]:
        """The topics of all members."""
        return frozenset().union(*(member.topics for member in self.members.values()))


def join_request(
    config: ConsumerConfig,
    identity: Identity,
    assignors: Mapping[str, Assignor],
    topics: frozenset[str],
    owned: Iterable[TopicPartition],
) -> JoinGroupRequest:
    """A JoinGroup. The rebalance timeout is ``max_poll_interval_ms`` (KIP-62)."""
    subscription = _encode_subscription(topics, owned, identity.generation, config.client_rack)
    protocols = [JoinGroupRequest.JoinGroupRequestProtocol(name=name, metadata=subscription) for name in assignors]
    return JoinGroupRequest(
        group_id=config.group_id,
        session_timeout_ms=int(config.session_timeout_ms),
        rebalance_timeout_ms=int(max(config.max_poll_interval_ms, config.session_timeout_ms)),
        member_id=identity.member_id,
        group_instance_id=identity.instance_id,
        protocol_type=PROTOCOL_TYPE,
        protocols=protocols,
    )


def read_join(answer: JoinGroupResponse) -> Joined:
    """Read a JoinGroup answer without an error. Raises :exc:`ProtocolError` if a member's subscription cannot be read."""
    members = {member.member_id: read_subscription(member.metadata, member.group_instance_id) for member in answer.members}
    return Joined(answer.protocol_name or "", answer.leader == answer.member_id, members)


def sync_request(
    group: str, identity: Identity, joined: Joined, assignments: Mapping[str, Sequence[TopicPartition]]
) -> SyncGroupRequest:
    """A SyncGroup; the leader's carries everybody's assignment."""
    dealt = [
        SyncGroupRequest.SyncGroupRequestAssignment(member_id=member, assignment=encode_assignment(partitions))
        for member, partitions in assignments.items()
    ]
    return SyncGroupRequest(
        group_id=group,
        generation_id=identity.generation,
        member_id=identity.member_id,
        group_instance_id=identity.instance_id,
        protocol_type=PROTOCOL_TYPE,
        protocol_name=joined.protocol,
        assignments=dealt,
    )


def leave_request(group: str, identity: Identity) -> LeaveGroupRequest:
    """A LeaveGroup of one member."""
    me = LeaveGroupRequest.MemberIdentity(
        member_id=identity.member_id, group_instance_id=identity.instance_id, reason="the consumer is closing or too slow"
    )
    return LeaveGroupRequest(group_id=group, member_id=identity.member_id, members=[me])


def encode_assignment(partitions: Iterable[TopicPartition]) -> bytes:
    """A member's assignment as bytes (ConsumerProtocolAssignment)."""
    topics = [
        ConsumerProtocolAssignment.TopicPartition(topic=topic, partitions=numbers)
        for topic, numbers in _by_topic(partitions).items()
    ]
    message = ConsumerProtocolAssignment(version=_ASSIGNMENT_VERSION, assigned_partitions=topics, user_data=None)
    return bytes(message.encode(version=_ASSIGNMENT_VERSION))


def read_assignment(data: bytes) -> list[TopicPartition]:
    """Read an assignment; empty bytes are an empty one. Raises :exc:`ProtocolError`."""
    if not data:
        return []
    try:
        message = ConsumerProtocolAssignment.decode(bytes(data))
        return [TopicPartition(part.topic, number) for part in message.assigned_partitions for number in part.partitions]
    except (ValueError, struct.error, TypeError) as error:
        raise ProtocolError(f"the group's assignment cannot be read: {error}") from error


def read_subscription(data: bytes, instance_id: str | None) -> MemberSubscription:
    """Read what a member told when it joined. Raises :exc:`ProtocolError`."""
    try:
        message = ConsumerProtocolSubscription.decode(bytes(data))
        owned = tuple(TopicPartition(part.topic, number) for part in message.owned_partitions for number in part.partitions)
        generation = message.generation_id if message.generation_id is not None else -1
        return MemberSubscription(frozenset(message.topics), owned, generation, instance_id, message.user_data)
    except (ValueError, struct.error, TypeError) as error:
        raise ProtocolError(f"a member's subscription cannot be read: {error}") from error


def _encode_subscription(topics: frozenset[str], owned: Iterable[TopicPartition], generation: int, rack: str) -> bytes:
    parts = [
        ConsumerProtocolSubscription.TopicPartition(topic=topic, partitions=numbers) for topic, numbers in _by_topic(owned).items()
    ]
    message = ConsumerProtocolSubscription(
        version=_SUBSCRIPTION_VERSION,
        topics=sorted(topics),
        user_data=None,
        owned_partitions=parts,
        generation_id=generation,
        rack_id=rack or None,
    )
    return bytes(message.encode(version=_SUBSCRIPTION_VERSION))


def _by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    by_topic: dict[str, list[int]] = defaultdict(list)
    for tp in partitions:
        by_topic[tp.topic].append(tp.partition)
    return by_topic
