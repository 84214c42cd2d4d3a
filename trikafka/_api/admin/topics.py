"""The descriptions of topics, page by page (KIP-966): values, requests and responses."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import trio
from kafka.protocol.admin import DescribeTopicPartitionsRequest
from kafka.protocol.metadata import MetadataRequest

from ..._net.deadlines import RunningCall
from ...errors import (
    ConfigurationError,
    DamagedResponseError,
    ErrorCode,
    TrikafkaError,
    UnsupportedVersionError,
    from_code,
    topic_error,
)
from ..client.option_parsing import names_of
from .messages import named, number_or_none, operations_of
from .routing import Parts, Routing

#: The partitions of one response, as Java's client asks for.
_PAGE = 2000
Cursor = tuple[str, int]
#: The version of Metadata that finds topics by their ids.
_SINCE_IDS = 12
#: A topic's name or its id.
TopicKey = TypeVar("TopicKey", str, uuid.UUID)
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class PartitionDescription:
    """A partition as the cluster described it.

    Attributes:
        partition: The number of the partition.
        leader: The broker that leads it; ``None`` while there is none.
        leader_epoch: The epoch of the leader; ``None`` if unknown.
        replicas: The brokers that have it; the first one is the preferred leader.
        in_sync_replicas: Of these, the brokers that are in sync.
        offline_replicas: Of these, the brokers that are down.
        eligible_leader_replicas: Brokers that are not in sync and have all acknowledged records, so
            they may lead (KIP-966); ``None`` if the broker does not say.
        last_known_eligible_leader_replicas: The last such brokers of a partition without a leader;
            ``None`` if the broker does not say.
    """

    partition: int
    leader: int | None
    leader_epoch: int | None
    replicas: tuple[int, ...]
    in_sync_replicas: tuple[int, ...]
    offline_replicas: tuple[int, ...] = ()
    eligible_leader_replicas: tuple[int, ...] | None = None
    last_known_eligible_leader_replicas: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """A topic and its partitions.

    Attributes:
        name: The topic.
        topic_id: Its id; ``None`` if the broker is too old.
        is_internal: True for topics of Kafka itself.
        partitions: The partitions, by number.
        authorized_operations: The operations that this client may perform, named as in access
            rules, such as ``"describe_configs"``; ``None`` if the broker does not say.
    """

    name: str
    topic_id: uuid.UUID | None
    is_internal: bool
    partitions: tuple[PartitionDescription, ...]
    authorized_operations: frozenset[str] | None


def checked_topics(topics: Iterable[Any]) -> tuple[list[Any], bool]:
    """Return the checked names, or ids, each once, and whether they are ids.

    Raises :exc:`ConfigurationError`.
    """
    if isinstance(topics, Iterator):
        topics = list(topics)  # it can be read only once
    if isinstance(topics, Collection) and any(isinstance(one, uuid.UUID) for one in topics):
        for one in topics:
            if not isinstance(one, uuid.UUID) or not one.int:
                raise ConfigurationError(
                    f"topics must be names, or be ids (uuid.UUID, not zero), not {one!r} among ids"
                )
        return list(dict.fromkeys(topics)), True
    return names_of("topics", topics), False


async def describe_by_id(
    routing: Routing, call: RunningCall, parts: Parts[uuid.UUID, TopicDescription]
) -> None:
    """Ask any broker for the topics of the ids that are left (KIP-516)."""
    asked = parts.left
    if not asked:
        await trio.lowlevel.checkpoint()
        return
    topic = MetadataRequest.MetadataRequestTopic
    request = MetadataRequest(
        min_version=_SINCE_IDS,
        topics=[topic(topic_id=topic_id, name=None) for topic_id in asked],
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=True,
    )
    response = await routing.request(call, "any", request)
    for each in response.topics:
        if each.error_code:
            parts.failed(each.topic_id, _id_error(each, "Describe"))
        else:
            parts.done(each.topic_id, _described(each))
    parts.check(asked, "the description of topics")


def _id_error(each: Any, operation: str) -> TrikafkaError:
    return from_code(each.error_code, f"topic id {each.topic_id}", operation=operation)


async def describe(
    routing: Routing, call: RunningCall, parts: Parts[str, TopicDescription]
) -> None:
    """Ask any broker for the topics that are left: page by page, or at once if it is too old."""
    names = sorted(parts.left)
    if not names:
        await trio.lowlevel.checkpoint()
        return
    try:
        await _by_pages(routing, call, parts, names)
    except UnsupportedVersionError:
        request = MetadataRequest(
            topics=[MetadataRequest.MetadataRequestTopic(name=name) for name in names],
            allow_auto_topic_creation=False,
            include_topic_authorized_operations=True,
        )
        response = await routing.request(call, "any", request)
        _settle(parts, response.topics, _listed(response.topics))
    parts.check(names, "the description of topics")


def read_deleted(response: Any, parts: Parts[Any, None], *, by_id: bool) -> None:
    """Record in ``parts`` the results in a DeleteTopics response."""
    if not by_id:
        gone = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        read_changed(response.responses, parts, "Delete", gone, lambda each: None)
        return
    for each in response.responses:
        if each.error_code:
            error = _id_error(each, "Delete")
            parts.failed(each.topic_id, error, made_before=ErrorCode.UNKNOWN_TOPIC_ID)
        else:
            parts.done(each.topic_id, None)


def read_changed(
    results: Iterable[Any],
    parts: Parts[str, V],
    operation: str,
    made_before: ErrorCode | None,
    made: Callable[[Any], V],
) -> None:
    """Record in ``parts`` the results of a change of topics.

    Args:
        results: The parts of the response.
        parts: The topics.
        operation: The permission that the change needs.
        made_before: The code by which a broker refuses a change that was made before.
        made: Makes the result of a topic that was changed.
    """
    for each in results:
        if not each.error_code:
            parts.done(each.name, made(each))
            continue
        error = (
            topic_error(each.error_code, each.name, make=False)
            if each.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            else from_code(
                each.error_code, named("topic", each.name, each.error_message), operation=operation
            )
        )
        parts.failed(each.name, error, made_before=made_before)


async def _by_pages(
    routing: Routing, call: RunningCall, parts: Parts[str, TopicDescription], names: Sequence[str]
) -> None:
    cursor: Cursor | None = None
    begun: dict[str, TopicDescription] = {}
    while True:
        response = await routing.request(call, "any", _page(names, cursor))
        for topic in _listed(response.topics):
            before = begun.get(topic.name)
            begun[topic.name] = topic if before is None else _joined(before, topic)
        following = response.next_cursor
        if following is None:
            _settle(parts, response.topics, begun.values())
            return
        # The topics before the cursor are complete. A cursor that does not advance would ask for
        # the same page for ever.
        at = (following.topic_name, following.partition_index)
        if cursor is not None and at <= cursor:
            raise DamagedResponseError(
                f"the response to DescribeTopicPartitions goes on with {at[0]!r}-{at[1]}, which "
                "it showed already"
            )
        cursor = at
        _settle(parts, response.topics, [begun.pop(name) for name in list(begun) if name < at[0]])


def _joined(before: TopicDescription, topic: TopicDescription) -> TopicDescription:
    """Return a topic of two pages; a partition that is on both counts once."""
    parts = {part.partition: part for part in (*topic.partitions, *before.partitions)}
    return replace(before, partitions=tuple(parts[number] for number in sorted(parts)))


def _page(names: Sequence[str], cursor: Cursor | None) -> DescribeTopicPartitionsRequest:
    topic = DescribeTopicPartitionsRequest.TopicRequest
    at = DescribeTopicPartitionsRequest.Cursor
    return DescribeTopicPartitionsRequest(
        topics=[topic(name=name) for name in names if cursor is None or name >= cursor[0]],
        response_partition_limit=_PAGE,
        cursor=None if cursor is None else at(topic_name=cursor[0], partition_index=cursor[1]),
    )


def _settle(
    parts: Parts[str, TopicDescription], topics: Any, described: Iterable[TopicDescription]
) -> None:
    for topic in described:
        parts.done(topic.name, topic)
    left = set(parts.left)
    for topic in topics:
        if topic.error_code and topic.name in left:
            parts.failed(
                topic.name,
                topic_error(topic.error_code, topic.name, operation="Describe", make=False),
            )


def _listed(topics: Any) -> list[TopicDescription]:
    return [_described(topic) for topic in topics if not topic.error_code]


def _described(topic: Any) -> TopicDescription:
    topic_id = getattr(topic, "topic_id", None)
    partitions = (
        PartitionDescription(
            part.partition_index,
            part.leader_id if part.leader_id >= 0 else None,
            number_or_none(getattr(part, "leader_epoch", None)),
            tuple(part.replica_nodes),
            tuple(part.isr_nodes),
            tuple(part.offline_replicas or ()),
            _brokers(getattr(part, "eligible_leader_replicas", None)),
            _brokers(getattr(part, "last_known_elr", None)),
        )
        for part in topic.partitions
    )
    return TopicDescription(
        topic.name,
        topic_id if topic_id else None,
        topic.is_internal,
        tuple(sorted(partitions, key=lambda part: part.partition)),
        # kafka-python has another name for it in Metadata's response.
        operations_of(
            topic.topic_authorized_operations
            if hasattr(topic, "topic_authorized_operations")
            else topic.authorized_operations
        ),
    )


def _brokers(numbers: Any) -> tuple[int, ...] | None:
    return None if numbers is None else tuple(numbers)
