"""The messages of the classic group protocol, built and read without I/O.

The membership manager sends them.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from kafka.protocol.consumer.group import (
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    SyncGroupRequest,
)
from kafka.protocol.consumer.metadata import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
)

from ..._state.assignors import (
    AssignableTopics,
    Assignor,
    LastAssignment,
    MemberSubscription,
    SubscribesWithUserData,
)
from ..._state.group.member import MemberIdentity
from ...config import ConsumerConfig
from ...errors import DamagedResponseError
from ...types import TopicPartition

PROTOCOL_TYPE = "consumer"
#: The version of the data that members exchange, as in Java's client: subscriptions with owned
#: partitions, generation and rack.
_VERSION = 3
#: Brokers refuse longer reasons (KIP-800).
_LONGEST_REASON = 255


@dataclass(slots=True)
class Joined:
    """The content of a JoinGroup response.

    ``members`` is in the order of the response, and empty unless this member ``is_leader``.
    ``unreadable`` holds the members whose subscription cannot be read, with the reason: the leader
    assigns them nothing. ``skip_assignment``: the leader is a static member that returned, and the
    group goes on with the assignments that it has (KIP-814). ``assigned_topics`` are the partitions
    that the leader assigned from, to be compared with the cluster later.
    """

    protocol: str
    is_leader: bool
    members: dict[str, MemberSubscription]
    unreadable: dict[str, DamagedResponseError] = field(default_factory=dict)
    assigned_topics: AssignableTopics | None = None
    skip_assignment: bool = False

    @property
    def topics(self) -> frozenset[str]:
        """The topics of all members."""
        return frozenset().union(*(member.topics for member in self.members.values()))

    def assign_from(self, topics: AssignableTopics) -> AssignableTopics:
        """Record the partitions that the leader assigns from; return them."""
        self.assigned_topics = topics
        return topics


def join_request(
    config: ConsumerConfig,
    identity: MemberIdentity,
    assignors: Mapping[str, Assignor],
    topics: frozenset[str],
    owned: Iterable[TopicPartition],
    *,
    last: LastAssignment | None = None,
    reason: str = "",
) -> JoinGroupRequest:
    """Return a JoinGroup with a subscription for each assignor, the preferred one first.

    ``owned`` are the partitions that the member keeps while it joins: none under the eager
    protocol. ``last`` is its last assignment, even if it has been revoked since; only the assignor
    that made it sees it. The generation of the subscription is the one in ``identity``. ``reason``
    is for the broker's log and is cut to 255 characters (KIP-800). The rebalance timeout is
    ``max_poll_interval_ms`` (KIP-62), at least the session timeout.
    """
    subscription = MemberSubscription(
        topics,
        tuple(owned),
        identity.generation,
        identity.instance_id,
        rack=config.client_rack or None,
    )
    protocols = []
    for name, assignor in assignors.items():
        mine = last if last is not None and last.assignor == name else None
        user_data = (
            assignor.user_data(topics, mine)
            if isinstance(assignor, SubscribesWithUserData)
            else None
        )
        metadata = encode_subscription(replace(subscription, user_data=user_data))
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
    """Read a JoinGroup response without an error."""
    joined = Joined(
        protocol=response.protocol_name or "",
        is_leader=response.leader == response.member_id,
        members={},
        skip_assignment=bool(getattr(response, "skip_assignment", False)),
    )
    for member in response.members:
        try:
            joined.members[member.member_id] = decode_subscription(
                member.metadata, member.group_instance_id
            )
        except DamagedResponseError as error:
            joined.unreadable[member.member_id] = error
    return joined


def sync_request(
    group: str,
    identity: MemberIdentity,
    joined: Joined,
    assignments: Mapping[str, Sequence[TopicPartition]],
) -> SyncGroupRequest:
    """Return a SyncGroup; the leader's carries the assignments of all members."""
    encoded = [
        SyncGroupRequest.SyncGroupRequestAssignment(
            member_id=member, assignment=encode_assignment(partitions)
        )
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


def leave_request(group: str, identity: MemberIdentity, reason: str) -> LeaveGroupRequest:
    """Return a LeaveGroup of one member.

    ``reason`` is for the broker's log and is cut to 255 characters (KIP-800).
    """
    me = LeaveGroupRequest.MemberIdentity(
        member_id=identity.member_id,
        group_instance_id=identity.instance_id,
        reason=reason[:_LONGEST_REASON],
    )
    return LeaveGroupRequest(group_id=group, member_id=identity.member_id, members=[me])


def encode_assignment(partitions: Iterable[TopicPartition]) -> bytes:
    """Return a member's assignment as bytes (ConsumerProtocolAssignment)."""
    topics = [
        ConsumerProtocolAssignment.TopicPartition(topic=topic, partitions=numbers)
        for topic, numbers in _by_topic(partitions).items()
    ]
    message = ConsumerProtocolAssignment(
        version=_VERSION, assigned_partitions=topics, user_data=None
    )
    return bytes(message.encode(version=_VERSION))


def decode_assignment(data: bytes) -> list[TopicPartition]:
    """Read an assignment of any version; empty bytes are an empty one.

    A partition that is named twice appears once. Raises :exc:`DamagedResponseError`.
    """
    if not data:
        return []
    try:
        message = ConsumerProtocolAssignment.decode(bytes(data))
        found = [
            TopicPartition(part.topic, number)
            for part in message.assigned_partitions
            for number in part.partitions
        ]
        if wrong := [tp for tp in found if tp.partition < 0]:
            raise ValueError(f"there is no partition {wrong[0]}")
        return list(dict.fromkeys(found))
    except (ValueError, struct.error, TypeError) as error:
        raise DamagedResponseError(f"the group's assignment cannot be read: {error}") from error


def encode_subscription(subscription: MemberSubscription, version: int = _VERSION) -> bytes:
    """Return a member's subscription as bytes (ConsumerProtocolSubscription).

    Older versions leave out the fields that came later.
    """
    parts = [
        ConsumerProtocolSubscription.TopicPartition(topic=topic, partitions=numbers)
        for topic, numbers in _by_topic(sorted(subscription.owned)).items()
    ]
    message = ConsumerProtocolSubscription(
        version=version,
        topics=sorted(subscription.topics),
        user_data=subscription.user_data,
        owned_partitions=parts,
        generation_id=subscription.generation,
        rack_id=subscription.rack,
    )
    return bytes(message.encode(version=version))


def decode_subscription(data: bytes, instance_id: str | None) -> MemberSubscription:
    """Read a member's subscription, in any version. Raises :exc:`DamagedResponseError`."""
    try:
        message = ConsumerProtocolSubscription.decode(bytes(data))
        owned = tuple(
            TopicPartition(part.topic, number)
            for part in message.owned_partitions
            for number in part.partitions
        )
        generation = message.generation_id if message.generation_id is not None else -1
        user_data = None if message.user_data is None else bytes(message.user_data)
        return MemberSubscription(
            frozenset(message.topics),
            owned,
            generation,
            instance_id,
            user_data,
            message.rack_id or None,
        )
    except (ValueError, struct.error, TypeError) as error:
        raise DamagedResponseError(f"a member's subscription cannot be read: {error}") from error


def _by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    by_topic: dict[str, list[int]] = defaultdict(list)
    for tp in partitions:
        by_topic[tp.topic].append(tp.partition)
    return by_topic
