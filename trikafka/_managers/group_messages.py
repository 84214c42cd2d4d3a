"""The messages of the classic group protocol: built and read here, sent by the membership manager. No I/O."""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from kafka.protocol.consumer.group import JoinGroupRequest, JoinGroupResponse, LeaveGroupRequest, SyncGroupRequest
from kafka.protocol.consumer.metadata import ConsumerProtocolAssignment, ConsumerProtocolSubscription

from .._state.assignors import AssignableTopics, Assignor, LastAssignment, MemberSubscription, SubscribesWithUserData
from .._state.member import Identity
from ..config import ConsumerConfig
from ..errors import DamagedResponseError
from ..types import TopicPartition

PROTOCOL_TYPE = "consumer"
#: The version of what members exchange, as Java's have it: subscriptions with owned partitions, generation and rack.
_VERSION = 3
#: Brokers refuse longer reasons (KIP-800).
_LONGEST_REASON = 255


@dataclass(slots=True)
class Joined:
    """A JoinGroup response.

    ``members`` is empty unless this member ``is_leader``, and in the order of the response. ``skip_assignment``: the leader is a
    static member that came back, and the group goes on with the assignments that it has (KIP-814). ``assigned_topics`` is what the
    leader assigned from, to be compared with what the cluster looks like later.
    """

    protocol: str
    is_leader: bool
    members: dict[str, MemberSubscription]
    assigned_topics: AssignableTopics | None = None
    skip_assignment: bool = False

    @property
    def topics(self) -> frozenset[str]:
        """The topics of all members."""
        return frozenset().union(*(member.topics for member in self.members.values()))

    def assign_from(self, topics: AssignableTopics) -> AssignableTopics:
        """As the leader, assign from these; returns them."""
        self.assigned_topics = topics
        return topics


def join_request(
    config: ConsumerConfig,
    identity: Identity,
    assignors: Mapping[str, Assignor],
    topics: frozenset[str],
    owned: Iterable[TopicPartition],
    *,
    last: LastAssignment | None = None,
    reason: str = "",
) -> JoinGroupRequest:
    """A JoinGroup, with a subscription for each assignor, the preferred one first.

    ``owned`` is what the member keeps while it joins: nothing under the eager protocol. ``last`` is what it was assigned last, even
    if it has given it up since; only the assignor that assigned it gets to see it. The generation of the subscription is that of
    ``identity``. ``reason`` is for the broker's log and cut to 255 characters (KIP-800). The rebalance timeout is
    ``max_poll_interval_ms`` (KIP-62).
    """
    told = MemberSubscription(topics, tuple(owned), identity.generation, identity.instance_id, rack=config.client_rack or None)
    protocols = []
    for name, assignor in assignors.items():
        mine = last if last is not None and last.assignor == name else None
        user_data = assignor.user_data(topics, mine) if isinstance(assignor, SubscribesWithUserData) else None
        metadata = encode_subscription(replace(told, user_data=user_data))
        protocols.append(JoinGroupRequest.JoinGroupRequestProtocol(name=name, metadata=metadata))
    return JoinGroupRequest(
        group_id=config.group_id,
        session_timeout_ms=int(config.session_timeout_ms),
        rebalance_timeout_ms=int(max(config.max_poll_interval_ms, config.session_timeout_ms)),
        member_id=identity.member_id,
        group_instance_id=identity.instance_id,
        protocol_type=PROTOCOL_TYPE,
        protocols=protocols,
        reason=reason[:_LONGEST_REASON],
    )


def join_response(response: JoinGroupResponse) -> Joined:
    """Read a JoinGroup response without an error. Raises :exc:`DamagedResponseError` if a member's subscription cannot be read."""
    members = {member.member_id: decode_subscription(member.metadata, member.group_instance_id) for member in response.members}
    skip = bool(getattr(response, "skip_assignment", False))
    return Joined(response.protocol_name or "", response.leader == response.member_id, members, skip_assignment=skip)


def sync_request(
    group: str, identity: Identity, joined: Joined, assignments: Mapping[str, Sequence[TopicPartition]]
) -> SyncGroupRequest:
    """A SyncGroup; the leader's carries everybody's assignment."""
    encoded = [
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
        assignments=encoded,
    )


def leave_request(group: str, identity: Identity, reason: str = "the consumer is being closed") -> LeaveGroupRequest:
    """A LeaveGroup of one member. ``reason`` is for the broker's log and cut to 255 characters (KIP-800)."""
    me = LeaveGroupRequest.MemberIdentity(
        member_id=identity.member_id, group_instance_id=identity.instance_id, reason=reason[:_LONGEST_REASON]
    )
    return LeaveGroupRequest(group_id=group, member_id=identity.member_id, members=[me])


def encode_assignment(partitions: Iterable[TopicPartition]) -> bytes:
    """A member's assignment as bytes (ConsumerProtocolAssignment)."""
    topics = [
        ConsumerProtocolAssignment.TopicPartition(topic=topic, partitions=numbers)
        for topic, numbers in _by_topic(partitions).items()
    ]
    message = ConsumerProtocolAssignment(version=_VERSION, assigned_partitions=topics, user_data=None)
    return bytes(message.encode(version=_VERSION))


def decode_assignment(data: bytes) -> list[TopicPartition]:
    """Read an assignment of any version; empty bytes are an empty one. Raises :exc:`DamagedResponseError`."""
    if not data:
        return []
    try:
        message = ConsumerProtocolAssignment.decode(bytes(data))
        found = [TopicPartition(part.topic, number) for part in message.assigned_partitions for number in part.partitions]
        if wrong := [tp for tp in found if tp.partition < 0]:
            raise ValueError(f"there is no partition {wrong[0]}")
        return found
    except (ValueError, struct.error, TypeError) as error:
        raise DamagedResponseError(f"the group's assignment cannot be read: {error}") from error


def encode_subscription(told: MemberSubscription, version: int = _VERSION) -> bytes:
    """What a member tells when it joins, as bytes (ConsumerProtocolSubscription). Older versions leave out what came later."""
    parts = [
        ConsumerProtocolSubscription.TopicPartition(topic=topic, partitions=numbers)
        for topic, numbers in _by_topic(sorted(told.owned)).items()
    ]
    message = ConsumerProtocolSubscription(
        version=version,
        topics=sorted(told.topics),
        user_data=told.user_data,
        owned_partitions=parts,
        generation_id=told.generation,
        rack_id=told.rack,
    )
    return bytes(message.encode(version=version))


def decode_subscription(data: bytes, instance_id: str | None) -> MemberSubscription:
    """Read what a member told when it joined, in any version. Raises :exc:`DamagedResponseError`."""
    try:
        message = ConsumerProtocolSubscription.decode(bytes(data))
        owned = tuple(TopicPartition(part.topic, number) for part in message.owned_partitions for number in part.partitions)
        generation = message.generation_id if message.generation_id is not None else -1
        user_data = None if message.user_data is None else bytes(message.user_data)
        return MemberSubscription(frozenset(message.topics), owned, generation, instance_id, user_data, message.rack_id or None)
    except (ValueError, struct.error, TypeError) as error:
        raise DamagedResponseError(f"a member's subscription cannot be read: {error}") from error


def _by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    by_topic: dict[str, list[int]] = defaultdict(list)
    for tp in partitions:
        by_topic[tp.topic].append(tp.partition)
    return by_topic
