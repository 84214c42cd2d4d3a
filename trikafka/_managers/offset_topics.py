"""To which topic, by its id, offsets belong (KIP-516): one that was deleted and created anew is another, whatever its name."""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from .._state.assignment import Assignment
from ..error_codes import ErrorCode
from ..errors import BrokerResponseError, from_code
from ..interfaces import MetadataManager
from ..types import TopicPartition

_NO_ID = UUID(int=0)


class OffsetTopics:
    """What is known of it: of positions by the assignment, of names by the metadata."""

    def __init__(self, metadata: MetadataManager, assignment: Assignment) -> None:
        self._metadata, self._assignment = metadata, assignment

    def current(self, topic: str) -> UUID | None:
        """The id of the topic that has this name now, as far as is known."""
        info = self._metadata.snapshot.topics.get(topic)
        if info is None or info.error_code or info.topic_id is None:
            return None
        topic_id = UUID(info.topic_id)
        return None if topic_id == _NO_ID else topic_id

    def of_positions(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, UUID]:
        """The topics in which this consumer's positions are: what it commits belongs there, whatever happens meanwhile."""
        owned = ((tp, self._assignment.partitions.get(tp)) for tp in tps)
        return {
            tp: topic_id
            for tp, partition in owned
            if partition is not None and (topic_id := partition.progress.topic_id) is not None
        }

    def recreated(self, tp: TopicPartition, topic_id: UUID | None) -> BrokerResponseError | None:
        """The error of an offset of ``tp`` in the topic of that id, if another topic has the name now."""
        current = self.current(tp.topic)
        if topic_id is None or current is None or current == topic_id:
            return None
        return _final(
            ErrorCode.UNKNOWN_TOPIC_ID,
            f"topic {tp.topic!r} was deleted and created anew, and the offset of {tp} is one of the old topic",
        )

    async def look_again(self, tps: Iterable[TopicPartition]) -> None:
        """Have the cluster asked for these, since a broker does not know them.

        Raises :exc:`UnknownTopicOrPartitionError`, not retriable, for a partition that its topic does not have; what is true of
        a whole topic may be news that has not come to every broker yet.
        """
        tps = list(tps)
        snapshot = await self._metadata.refresh({tp.topic for tp in tps})
        for tp in tps:
            if snapshot.lacks(tp):
                count = len(snapshot.partitions_of(tp.topic))
                raise _final(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"partition {tp} (the topic has {count} partitions)")

    def request_update(self) -> None:
        """What is known proved wrong."""
        self._metadata.request_update()


def _final(code: ErrorCode, what: str) -> BrokerResponseError:
    error = from_code(code, what)
    error.retriable = False
    return error
