"""The requests and responses of the admin client.

Pure functions; the admin client does the I/O.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from kafka.protocol.admin import CreatePartitionsRequest, CreateTopicsRequest, DeleteTopicsRequest
from kafka.protocol.metadata import MetadataRequest

from ..._managers.group.group_messages import PROTOCOL_TYPE, decode_assignment, decode_subscription
from ..._state.arguments import is_one_partition, of_one_partition, offset_and_metadata
from ..._wire._format import MAX_INT32, MAX_INT64
from ...config.text import in_place_of, plain_text
from ...config.topics import check_topic_length
from ...config.whole import is_whole, whole
from ...errors import (
    BrokerResponseError,
    ConfigurationError,
    ErrorCode,
    ProtocolError,
    from_code,
    topic_error,
)
from ...errors.peer_text import peer_text
from ...interfaces.cluster import TopicInfo
from ...types import (
    GroupDescription,
    MemberDescription,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    OffsetSpec,
    TopicPartition,
)
from ..client.option_parsing import is_name
from .types import CreatedTopic, GroupListing, ListedOffset, NewTopic

T = TypeVar("T")
#: The version of DeleteTopics that takes ids.
_SINCE_TOPIC_IDS = 6


def collection_of(kind: type[T], what: str, given: Any, *refused: type) -> list[T]:
    """Return the values of an argument that takes a collection of ``kind``, each once.

    Args:
        kind: The class of the values.
        what: The name of the argument.
        given: The argument.
        refused: Iterable types that are an error for this argument. ``str`` always is.

    Raises:
        ConfigurationError: The argument is not a collection, or a value in it is not a ``kind``.
    """
    if isinstance(given, kind):
        raise ConfigurationError(
            f"{what} must be a collection of {kind.__name__}: write [{given!r}]"
        )
    if isinstance(given, (str, *refused)) or not isinstance(given, Iterable):
        raise ConfigurationError(
            f"{what} must be a collection of {kind.__name__}, not {in_place_of(kind, given)}"
        )
    found = list(given)
    for one in found:
        if not isinstance(one, kind):
            raise ConfigurationError(
                f"{what} must hold {kind.__name__}, not {in_place_of(kind, one)}"
            )
    return list(dict.fromkeys(found))


def partitions_of(partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
    """Return the checked partitions, each once. Raises :exc:`ConfigurationError`."""
    if is_one_partition(partitions):
        raise of_one_partition(partitions)
    if isinstance(partitions, str | bytes) or not isinstance(partitions, Iterable):
        raise ConfigurationError(
            "partitions must be a collection of TopicPartition, not "
            f"{in_place_of(TopicPartition, partitions)}"
        )
    found = []
    for tp in partitions:
        topic, given = tp if isinstance(tp, tuple) and len(tp) == 2 else (tp, None)
        number = whole(given)
        if not is_name(topic) or not is_whole(number, most=MAX_INT32):
            raise ConfigurationError(
                f"a partition is a TopicPartition, not {in_place_of(TopicPartition, tp)}"
            )
        # One request for metadata serves all calls of the client that wait for it. A name that does
        # not fit into it would fail the others, too.
        check_topic_length(topic)
        found.append(TopicPartition(plain_text(topic), number))
    return list(dict.fromkeys(found))


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Return the numbers of partitions by topic, as requests list them."""
    found: dict[str, list[int]] = {}
    for topic, number in sorted(partitions):
        found.setdefault(topic, []).append(number)
    return found


def check_offset(offset: object) -> int:
    """Return the offset as an ``int``. Raises :exc:`ConfigurationError` for anything else."""
    number: object = whole(offset)
    if not is_whole(number, most=MAX_INT64):
        raise ConfigurationError(f"an offset is a whole number from 0, not {offset!r}")
    return number


def positions_of(
    offsets: Mapping[TopicPartition, OffsetAndMetadata | int],
) -> dict[TopicPartition, OffsetAndMetadata]:
    """Return the checked offsets of a group. Raises :exc:`ConfigurationError`."""
    if not isinstance(offsets, Mapping):
        raise ConfigurationError(
            f"offsets must be a mapping of TopicPartition to offset, not {offsets!r}"
        )
    return {tp: offset_and_metadata(tp, offsets[tp]) for tp in partitions_of(offsets)}


def topics_request(names: Iterable[str] | None) -> MetadataRequest:
    """Return a Metadata request for these topics; ``None`` means all."""
    topics = (
        None
        if names is None
        else [MetadataRequest.MetadataRequestTopic(name=name) for name in names]
    )
    return MetadataRequest(topics=topics, allow_auto_topic_creation=False)


def partitions_in(topics: Iterable[TopicInfo]) -> dict[TopicPartition, bool]:
    """Return the partitions of topics with whether they have a leader.

    Raises the error of a topic.
    """
    found: dict[TopicPartition, bool] = {}
    for topic in topics:
        if topic.error_code:
            raise topic_error(topic.error_code, topic.name, operation="Describe", make=False)
        for number, info in topic.partitions.items():
            found[TopicPartition(topic.name, number)] = info.leader is not None
    return dict(sorted(found.items()))


def create_topics(
    topics: Mapping[str, NewTopic], timeout_ms: int, *, validate_only: bool
) -> CreateTopicsRequest:
    """Return a CreateTopics request."""
    creatable = CreateTopicsRequest.CreatableTopic
    todo = [
        creatable(
            name=name,
            num_partitions=topic.partitions,
            replication_factor=topic.replication_factor,
            assignments=[
                creatable.CreatableReplicaAssignment(
                    partition_index=number, broker_ids=list(brokers)
                )
                for number, brokers in sorted((topic.assignments or {}).items())
            ],
            configs=[
                creatable.CreatableTopicConfig(name=key, value=value)
                for key, value in topic.config_entries.items()
            ],
        )
        for name, topic in topics.items()
    ]
    return CreateTopicsRequest(topics=todo, timeout_ms=timeout_ms, validate_only=validate_only)


def created_topic(result: Any, *, exists: bool) -> CreatedTopic:
    """Return the broker's words about a topic to create; its result has no error."""
    configs = getattr(result, "configs", None)
    # With validate_only the response has an id, too, but no topic gets it.
    topic_id = (getattr(result, "topic_id", None) or None) if exists else None
    if configs is None or getattr(result, "topic_config_error_code", False):
        return CreatedTopic(topic_id, None, None, None)
    return CreatedTopic(
        topic_id,
        result.num_partitions,
        result.replication_factor,
        {each.name: None if each.is_sensitive else each.value for each in configs},
    )


def delete_topics(topics: Iterable[Any], timeout_ms: int, *, by_id: bool) -> DeleteTopicsRequest:
    """Return a DeleteTopics request."""
    state = DeleteTopicsRequest.DeleteTopicState
    return DeleteTopicsRequest(
        min_version=_SINCE_TOPIC_IDS if by_id else 0,
        topics=[state(name=None, topic_id=one) if by_id else state(name=one) for one in topics],
        timeout_ms=timeout_ms,
    )


def create_partitions(
    totals: Mapping[str, int],
    assignments: Mapping[str, Sequence[Sequence[int]]],
    timeout_ms: int,
    *,
    validate_only: bool,
) -> CreatePartitionsRequest:
    """Return a CreatePartitions request.

    The broker chooses the replicas of new partitions without assignments.
    """
    topic = CreatePartitionsRequest.CreatePartitionsTopic
    topics = [
        topic(
            name=name,
            count=count,
            assignments=[
                topic.CreatePartitionsAssignment(broker_ids=list(brokers))
                for brokers in assignments[name]
            ]
            if name in assignments
            else None,
        )
        for name, count in totals.items()
    ]
    return CreatePartitionsRequest(
        topics=topics, timeout_ms=timeout_ms, validate_only=validate_only
    )


def read_listed(response: Any) -> list[GroupListing]:
    """Return the groups of one broker. Raises the broker's error."""
    if response.error_code:
        raise from_code(response.error_code, "listing the groups", operation="Describe")
    return [
        GroupListing(
            group.group_id,
            group.protocol_type,
            group.group_state or None,
            (group.group_type or "").lower() or None,
        )
        for group in response.groups
    ]


def read_group(group: Any) -> GroupDescription:
    """Return a described group of the classic protocol; its response has no error."""
    members = []
    for member in group.members:
        rack, topics = _subscription(group, member)
        members.append(
            MemberDescription(
                member.member_id,
                member.client_id,
                member.client_host.lstrip("/"),
                _assignment(group, member.member_assignment),
                getattr(member, "group_instance_id", None),
                rack,
                topics=topics,
            )
        )
    return GroupDescription(
        group.group_id,
        group.group_state,
        group.protocol_data,
        tuple(members),
        "classic",
        assignor=group.protocol_data if group.protocol_type == PROTOCOL_TYPE else None,
        authorized_operations=operations_of(getattr(group, "authorized_operations", None)),
    )


def read_modern_group(group: Any, kind: str) -> GroupDescription:
    """Return a described group of KIP-848's protocol or a share group, which have equal fields."""
    members = tuple(
        MemberDescription(
            member.member_id,
            member.client_id,
            member.client_host.lstrip("/"),
            _named(member.assignment.topic_partitions),
            getattr(member, "instance_id", None),
            member.rack_id,
            member.member_epoch,
            _target(member),
            tuple(sorted(member.subscribed_topic_names)),
            getattr(member, "subscribed_topic_regex", None) or None,
        )
        for member in group.members
    )
    return GroupDescription(
        group.group_id,
        group.group_state,
        kind,
        members,
        kind,
        group.group_epoch,
        group.assignment_epoch,
        group.assignor_name or None,
        operations_of(group.authorized_operations),
    )


def _target(member: Any) -> tuple[TopicPartition, ...] | None:
    """Return the target assignment of a member; ``None`` for members of share groups."""
    target = getattr(member, "target_assignment", None)
    return None if target is None else _named(target.topic_partitions)


#: The operations of Kafka's access rules, by the number of their bit.
_OPERATIONS = {
    3: "read",
    4: "write",
    5: "create",
    6: "delete",
    7: "alter",
    8: "describe",
    9: "cluster_action",
    10: "describe_configs",
    11: "alter_configs",
    12: "idempotent_write",
    13: "create_tokens",
    14: "describe_tokens",
    15: "two_phase_commit",
}
#: Brokers set this bit alone if they were not asked.
_NOT_ASKED = 31


def operations_of(bits: int | Collection[int] | None) -> frozenset[str] | None:
    """Return the operations that a response allows; ``None`` if it says nothing of them.

    kafka-python reads the field of some responses as a set of the bits' numbers.
    """
    if isinstance(bits, int):
        bits = {bit for bit in range(32) if bits >> bit & 1}
    if bits is None or _NOT_ASKED in bits:
        return None
    return frozenset(name for bit, name in _OPERATIONS.items() if bit in bits)


def _named(topics: Any) -> tuple[TopicPartition, ...]:
    return tuple(
        sorted(
            TopicPartition(topic.topic_name, number)
            for topic in topics
            for number in topic.partitions
        )
    )


def _subscription(group: Any, member: Any) -> tuple[str | None, tuple[str, ...]]:
    """Return rack and topics of a member; nothing if the group is not one of consumers."""
    if group.protocol_type != PROTOCOL_TYPE or not member.member_metadata:
        return None, ()
    try:
        subscription = decode_subscription(bytes(member.member_metadata), None)
    except ProtocolError:
        return None, ()
    return subscription.rack, tuple(sorted(subscription.topics))


def _assignment(group: Any, data: bytes) -> tuple[TopicPartition, ...]:
    """Return the assignment of a member; empty if the group is not one of consumers."""
    if group.protocol_type != PROTOCOL_TYPE:
        return ()
    try:
        return tuple(sorted(decode_assignment(bytes(data))))
    except ProtocolError:
        return ()


def wanted_offsets(wanted: Mapping[TopicPartition, OffsetSpec | int]) -> dict[TopicPartition, int]:
    """Return the checked argument of ``list_offsets``. Raises :exc:`ConfigurationError`."""
    if not isinstance(wanted, Mapping):
        raise ConfigurationError(
            "list_offsets wants a mapping of TopicPartition to an OffsetSpec or milliseconds, not "
            f"{wanted!r}"
        )
    chosen = partitions_of(wanted)
    for tp, what in wanted.items():
        if not isinstance(what, OffsetSpec) and not is_whole(whole(what), most=MAX_INT64):
            raise ConfigurationError(
                f"for {tp}: {what!r} is neither an OffsetSpec, such as OffsetSpec.LATEST, nor "
                "milliseconds since the epoch"
            )
    return {tp: int(wanted[tp]) for tp in chosen}


def number_or_none(number: int | None) -> int | None:
    """Return a number of a response; ``None`` for -1, by which a broker says that it has none."""
    return number if number is not None and number >= 0 else None


def listed_offset(at: OffsetAndTimestamp | None) -> ListedOffset | None:
    """Return the result of ``list_offsets`` for a partition."""
    return (
        None
        if at is None
        else ListedOffset(at.offset, number_or_none(at.timestamp), at.leader_epoch)
    )


def words(message: str | None) -> str:
    """Return the broker's own words as an addition to the subject of an error."""
    # A refusal shows the insides of a Java object, and says nothing that its code does not.
    if not message or message.startswith("Request Request("):
        return ""
    return f" ({peer_text(message.strip().rstrip('.'))})"


def named(kind: str, name: str, message: str | None) -> str:
    """Return the subject of an error, with the broker's own words."""
    return f"{kind} {name!r}" + words(message)


def of_partition(
    tp: TopicPartition, code: int, message: str | None, operation: str
) -> BrokerResponseError:
    """Return the error of a partition, with the broker's own words."""
    return from_code(code, f"{tp}{words(message)}", operation=operation)


# The code stands for both, and a broker says no more: to name only the topic would be wrong for a
# partition that a topic lacks.
def partition_error(code: int, tp: TopicPartition, operation: str) -> BrokerResponseError:
    """Return the error of a partition; that of an unknown one says what may be missing."""
    if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return from_code(
            code,
            f"topic {tp.topic!r} does not exist, or has no partition {tp.partition}; see: trikafka "
            "topics list",
        )
    return from_code(code, str(tp), operation=operation)
