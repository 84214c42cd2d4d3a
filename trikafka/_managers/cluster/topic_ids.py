"""The names of topics by their ids, from the cluster as last seen or by a look-up."""

from __future__ import annotations

from collections.abc import Collection
from uuid import UUID

from kafka.protocol.metadata import MetadataRequest

from ...interfaces import ClusterSnapshot, MetadataManager
from .metadata_responses import read_metadata

#: The first version of Metadata that can be asked by topic id (KIP-516).
_BY_ID = 12


class TopicIds:
    """The names of topics by their ids."""

    def __init__(self, metadata: MetadataManager) -> None:
        self._metadata = metadata
        # Internal ones among the topics that were looked up; no snapshot may hold them yet.
        self._internal: set[str] = set()

    def is_internal(self, topic: str) -> bool:
        """Return whether ``topic``, whose name came from here, is one of Kafka's own."""
        info = self._metadata.snapshot.topics.get(topic)
        return topic in self._internal or (info is not None and info.internal)

    def known(self) -> dict[UUID, str]:
        """Return the topics in the current snapshot."""
        return _names(self._metadata.snapshot)

    async def look_up(self, ids: Collection[UUID]) -> dict[UUID, str]:
        """Return the names of those ``ids`` that a broker knows.

        Raises a retriable error when no broker responded.
        """

        def request() -> MetadataRequest:
            topics = [
                MetadataRequest.MetadataRequestTopic(topic_id=topic_id, name=None)
                for topic_id in sorted(ids)
            ]
            return MetadataRequest(
                topics=topics, allow_auto_topic_creation=False, min_version=_BY_ID
            )

        found = await read_metadata(await self._metadata.ask_any(request))
        self._internal.update(info.name for info in found.topics.values() if info.internal)
        return _names(found)


def _names(snapshot: ClusterSnapshot) -> dict[UUID, str]:
    topics = snapshot.topics.values()
    return {
        UUID(info.topic_id): info.name
        for info in topics
        if info.topic_id is not None and not info.error_code
    }
