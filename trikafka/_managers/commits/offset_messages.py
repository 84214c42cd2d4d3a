"""OffsetCommit and OffsetFetch, built and read without I/O, and the topic ids in them (KIP-516).

The commit manager sends them. A topic that was deleted and recreated is another one, whatever its
name. So from version 10 on both messages name topics by their ids. A request goes out in such a
version only if the ids of all its topics are known.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from uuid import UUID

from kafka.protocol.consumer.group import OffsetCommitRequest, OffsetFetchRequest

from ..._state.group.member import MemberIdentity
from ...error_codes import ErrorCode
from ...errors import BrokerResponseError, TrikafkaError, from_code
from ...errors.classes import combined
from ...errors.counts import counted
from ...interfaces import MetadataManager
from ...types import OffsetAndMetadata, TopicPartition

if TYPE_CHECKING:  # a transaction's messages need no consumer
    from ..._state.consumer.assignment import Assignment

#: partition -> the position to commit
Positions = Mapping[TopicPartition, OffsetAndMetadata]
#: topic -> its id; ``None`` where that is not known
TopicIdsByName = Mapping[str, UUID | None]
#: The first version that names topics by their ids, and the last that names them by name.
_BY_ID, _BY_NAME = 10, 9
_NO_ID = UUID(int=0)


def parts_by_topic(part_type: Callable[..., object], offsets: Positions) -> dict[str, list[object]]:
    """Return the offsets as parts of a commit request, by topic.

    ``part_type`` makes each part; it is that of a member's commit or of a transaction's.
    """
    by_topic: dict[str, list[object]] = defaultdict(list)
    for tp, position in offsets.items():
        by_topic[tp.topic].append(
            part_type(
                partition_index=tp.partition,
                committed_offset=position.offset,
                committed_leader_epoch=-1
                if position.leader_epoch is None
                else position.leader_epoch,
                committed_metadata=position.metadata,
            )
        )
    return by_topic


def commit_request(
    group: str, identity: MemberIdentity, offsets: Positions, ids: TopicIdsByName
) -> OffsetCommitRequest:
    """Return an OffsetCommit of a member.

    If ``identity`` is in no generation, the commit is that of a stand-alone committer.
    """
    topic_type = OffsetCommitRequest.OffsetCommitRequestTopic
    by_topic = parts_by_topic(topic_type.OffsetCommitRequestPartition, offsets)
    topics = [
        topic_type(name=name, partitions=parts, **_id(ids.get(name)))
        for name, parts in by_topic.items()
    ]
    return OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=identity.generation,
        member_id=identity.member_id if identity.joined else "",
        group_instance_id=identity.instance_id if identity.joined else None,
        topics=topics,
        max_version=_newest(by_topic, ids),
    )


def read_commit_response(response: Any, ids: TopicIdsByName) -> dict[TopicPartition, int]:
    """Return the error code (0: committed) of each partition in the response."""
    names = _names(ids)
    return {
        TopicPartition(_name(topic, names), part.partition_index): part.error_code
        for topic in response.topics
        for part in topic.partitions
    }


def fetch_request(
    group: str,
    identity: MemberIdentity,
    partitions: Iterable[TopicPartition] | None,
    ids: TopicIdsByName,
) -> OffsetFetchRequest:
    """Return an OffsetFetch for these partitions; ``None``: for all with a committed offset."""
    old_topics = new_topics = None
    by_topic: dict[str, list[int]] = defaultdict(list)
    if partitions is not None:
        for tp in partitions:
            by_topic[tp.topic].append(tp.partition)
        old = OffsetFetchRequest.OffsetFetchRequestTopic
        new = OffsetFetchRequest.OffsetFetchRequestGroup.OffsetFetchRequestTopics
        old_topics = [
            old(name=name, partition_indexes=numbers) for name, numbers in by_topic.items()
        ]
        new_topics = [
            new(name=name, partition_indexes=numbers, **_id(ids.get(name)))
            for name, numbers in by_topic.items()
        ]
    # Only the consumer protocol refuses a member whose epoch is out of date (KIP-848).
    member_id, epoch = (
        (identity.member_id, identity.generation)
        if identity.epochs and identity.joined
        else (None, -1)
    )
    groups = [
        OffsetFetchRequest.OffsetFetchRequestGroup(
            group_id=group, member_id=member_id, member_epoch=epoch, topics=new_topics
        )
    ]
    newest = _newest(by_topic, ids)
    return OffsetFetchRequest(
        group_id=group, topics=old_topics, groups=groups, require_stable=True, max_version=newest
    )


def read_fetch_response(
    group: Any, ids: TopicIdsByName
) -> dict[TopicPartition, OffsetAndMetadata | None]:
    """Return the committed offsets of one group in a response.

    Raises the :func:`combined` error of the partitions that failed.
    """
    found, failures = read_fetched(group, ids)
    if failures:
        raise combined(failures)
    return found


def read_fetched(
    group: Any, ids: TopicIdsByName
) -> tuple[dict[TopicPartition, OffsetAndMetadata | None], dict[TopicPartition, TrikafkaError]]:
    """Return the committed offsets of one group in a response, and the errors by partition."""
    names = _names(ids)
    found: dict[TopicPartition, OffsetAndMetadata | None] = {}
    failures: dict[TopicPartition, TrikafkaError] = {}
    for topic in group.topics:
        for part in topic.partitions:
            tp = TopicPartition(_name(topic, names), part.partition_index)
            if part.error_code:
                failures[tp] = from_code(part.error_code, str(tp), operation="Describe")
            elif part.committed_offset < 0:
                found[tp] = None
            else:
                epoch = part.committed_leader_epoch
                known = epoch if epoch is not None and epoch >= 0 else None
                found[tp] = OffsetAndMetadata(part.committed_offset, known, part.metadata or "")
    return found, failures


def _newest(topics: Iterable[str], ids: TopicIdsByName) -> int:
    known = [ids.get(name) for name in topics]
    return _BY_ID if known and None not in known else _BY_NAME


def _id(topic_id: UUID | None) -> dict[str, UUID]:
    return {} if topic_id is None else {"topic_id": topic_id}


def _names(ids: TopicIdsByName) -> dict[UUID, str]:
    return {topic_id: name for name, topic_id in ids.items() if topic_id is not None}


def _name(topic: Any, names: Mapping[UUID, str]) -> str:
    """Return the name of a topic in a response, which has only the id from version 10 on."""
    return topic.name or names.get(topic.topic_id, "")


class OffsetTopics:
    """The topic ids of positions (from the assignment) and of names (from the metadata)."""

    def __init__(self, metadata: MetadataManager, assignment: Assignment) -> None:
        self._metadata = metadata
        self._assignment = assignment

    def current(self, topic: str) -> UUID | None:
        """Return the id of the topic that has this name now, as far as is known."""
        info = self._metadata.snapshot.topics.get(topic)
        return (
            None
            if info is None or info.error_code or info.topic_id is None
            else _parsed(info.topic_id)
        )

    def of_positions(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, UUID]:
        """Return the topics of this consumer's positions.

        A commit belongs to these topics, whatever happens to the names meanwhile.
        """
        owned = ((tp, self._assignment.partitions.get(tp)) for tp in tps)
        return {
            tp: topic_id
            for tp, partition in owned
            if partition is not None and (topic_id := partition.topic_id) is not None
        }

    def recreated(self, tp: TopicPartition, topic_id: UUID | None) -> BrokerResponseError | None:
        """Return an error if the name of ``tp`` belongs to another topic than ``topic_id`` now."""
        current = self.current(tp.topic)
        if topic_id is None or current is None or current == topic_id:
            return None
        return _final(
            ErrorCode.UNKNOWN_TOPIC_ID,
            f"topic {tp.topic!r} was deleted and created again, and the offset of {tp} is one of "
            "the old topic",
        )

    async def refresh(self, tps: Iterable[TopicPartition]) -> None:
        """Refresh the metadata of these partitions' topics, which a broker does not know.

        Raises :exc:`UnknownTopicOrPartitionError`, not retriable, for a partition number beyond the
        topic's count. An unknown topic raises nothing: it may be new, and known to some brokers.
        """
        tps = list(tps)
        snapshot = await self._metadata.refresh({tp.topic for tp in tps})
        for tp in tps:
            if snapshot.lacks(tp):
                count = len(snapshot.partitions_of(tp.topic))
                raise _final(
                    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                    f"partition {tp} (the topic has {counted(count, 'partition')})",
                )

    def request_update(self) -> None:
        """Request new metadata: a response showed that the known one is out of date."""
        self._metadata.request_update()


@lru_cache(maxsize=1_000)
def _parsed(topic_id: str) -> UUID | None:
    """Return a topic's id from the text in the metadata; ``None`` for the id of no topic.

    Cached, since each partition of a commit needs the id.
    """
    parsed = UUID(topic_id)
    return None if parsed == _NO_ID else parsed


def _final(code: ErrorCode, what: str) -> BrokerResponseError:
    error = from_code(code, what)
    error.retriable = False
    return error
