"""Which topic an id belongs to: as the cluster was last seen, or looked up."""

from __future__ import annotations

from collections.abc import Collection
from uuid import UUID

from kafka.protocol.metadata import MetadataRequest

from .._state.cluster import ClusterSnapshot
from ..interfaces import MetadataManager
from .metadata import read_metadata

#: The first version of Metadata that is asked by id (KIP-516).
_BY_ID = 12


class TopicIds:
    """Names of topics by their ids."""

    def __init__(self, metadata: MetadataManager) -> None:
        self._metadata = metadata

    def known(self) -> dict[UUID, str]:
        """The topics that the cluster showed last."""
        return _names(self._metadata.snapshot)

    async def look_up(self, ids: Collection[UUID]) -> dict[UUID, str]:
        """The names of ``ids``, of those that a broker knows. Raises a retriable error when no broker answered."""

        def request() -> MetadataRequest:
            topics = [MetadataRequest.MetadataRequestTopic(topic_id=topic_id, name=None) for topic_id in sorted(ids)]
            return MetadataRequest(topics=topics, allow_auto_topic_creation=False, min_version=_BY_ID)

        return _names(await read_metadata(await self._metadata.ask_any(request)))


def _names(snapshot: ClusterSnapshot) -> dict[UUID, str]:
    topics = snapshot.topics.values()
    return {UUID(info.topic_id): info.name for info in topics if info.topic_id is not None and not info.error_code}
