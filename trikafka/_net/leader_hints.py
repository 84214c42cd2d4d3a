"""The leaders that a broker names in the errors of a response (KIP-951)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol, TypeVar

from .._wire.reading import LeaderIdAndEpoch, NodeEndpoint
from ..interfaces import MetadataManager
from ..types import Node, TopicPartition
from .addresses import is_possible


class HintingPart(Protocol):
    """A partition's part of a response to Fetch, Produce, ShareFetch or ShareAcknowledge."""

    @property
    def error_code(self) -> int:
        """The error, or 0."""

    @property
    def current_leader(self) -> LeaderIdAndEpoch | None:
        """The leader that the broker names, if it names one."""


Part = TypeVar("Part", bound=HintingPart)


def learn_leaders(
    metadata: MetadataManager,
    parts: Iterable[Part],
    place_of: Callable[[Part], TopicPartition],
    endpoints: Iterable[NodeEndpoint],
) -> frozenset[TopicPartition]:
    """Pass the leaders that a response names to the metadata; return their partitions.

    Only the partitions whose leader was not known before are returned. They need no metadata
    request.
    """
    hints = {
        place_of(part): part.current_leader
        for part in parts
        if part.error_code and part.current_leader is not None
    }
    if not hints:
        return frozenset()
    nodes = [node for each in endpoints if is_possible(node := Node(*each))]
    return metadata.learn_leaders(hints, nodes)


class NamedPart(HintingPart, Protocol):
    """A part of a response that has the topic by its name."""

    @property
    def topic(self) -> str:
        """The topic."""

    @property
    def partition(self) -> int:
        """The number of the partition."""


def named_place(part: NamedPart) -> TopicPartition:
    """Return the partition of a part that has the topic by its name."""
    return TopicPartition(part.topic, part.partition)
