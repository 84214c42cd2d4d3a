"""The topics that offsets belong to, by topic id (KIP-516).

A topic that was deleted and recreated is another one, whatever its name.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from uuid import UUID

from ..._state.consumer.assignment import Assignment
from ...error_codes import ErrorCode
from ...errors import BrokerResponseError, from_code
from ...interfaces import MetadataManager
from ...types import TopicPartition

_NO_ID = UUID(int=0)


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
            if partition is not None and (topic_id := partition.progress.topic_id) is not None
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

    async def look_again(self, tps: Iterable[TopicPartition]) -> None:
        """Refresh the metadata of topics that a broker does not know.

        Raises :exc:`UnknownTopicOrPartitionError`, not retriable, for a partition number beyond the
        topic's count. A whole topic may be new, and not known to every broker yet.
        """
        tps = list(tps)
        snapshot = await self._metadata.refresh({tp.topic for tp in tps})
        for tp in tps:
            if snapshot.lacks(tp):
                count = len(snapshot.partitions_of(tp.topic))
                raise _final(
                    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                    f"partition {tp} (the topic has {count} partitions)",
                )

    def request_update(self) -> None:
        """Request the metadata, which proved wrong."""
        self._metadata.request_update()


@lru_cache(maxsize=1_000)
def _parsed(topic_id: str) -> UUID | None:
    """Return the id that metadata gives as text.

    It is asked for with each partition of a commit.
    """
    parsed = UUID(topic_id)
    return None if parsed == _NO_ID else parsed


def _final(code: ErrorCode, what: str) -> BrokerResponseError:
    error = from_code(code, what)
    error.retriable = False
    return error
