"""What the client knows of the cluster: an immutable snapshot, made and replaced by the metadata manager alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from itertools import chain

from ..errors import ErrorCode, from_code, topic_error
from ..types import Node, PartitionInfo, TopicPartition


class CoordinatorKind(IntEnum):
    """What a coordinator coordinates."""

    GROUP = 0
    TRANSACTION = 1


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """One topic as the cluster last described it; ``error_code`` is 0 unless the topic could not be described."""

    name: str
    error_code: int
    topic_id: str | None
    internal: bool
    partitions: Mapping[int, PartitionInfo]


@dataclass(frozen=True, slots=True, weakref_slot=True)
class ClusterSnapshot:
    """The cluster as last seen. ``version`` grows with each new snapshot.

    ``alike``: names of topics that may be meant where one is missing; of these no more is known.
    """

    version: int = 0
    cluster_id: str | None = None
    controller: int | None = None
    nodes: Mapping[int, Node] = field(default_factory=dict)
    topics: Mapping[str, TopicInfo] = field(default_factory=dict)
    alike: tuple[str, ...] = ()

    def updated(self, answer: ClusterSnapshot, keep: frozenset[str]) -> ClusterSnapshot:
        """A newer snapshot: ``answer``, and of what it is silent about the topics in ``keep``. Leader epochs never go back."""
        topics = {name: info for name, info in self.topics.items() if name in keep}
        for name, info in answer.topics.items():
            topics[name] = _newest(self.topics.get(name), info)
        return replace(answer, version=self.version + 1, topics=topics, alike=self.alike)

    def with_leaders(self, leaders: Mapping[TopicPartition, tuple[int, int]], nodes: Mapping[int, Node]) -> ClusterSnapshot:
        """A newer snapshot with the leaders (node, epoch) of which a broker gave a hint (KIP-951); this one if none is news."""
        everyone, topics = {**self.nodes, **nodes}, dict(self.topics)
        for tp, (node, epoch) in leaders.items():
            topic = topics.get(tp.topic)
            info = topic.partitions.get(tp.partition) if topic is not None else None
            if topic is not None and info is not None and node in everyone and epoch > (info.leader_epoch or 0):
                changed = {**topic.partitions, tp.partition: replace(info, leader=node, leader_epoch=epoch)}
                topics[tp.topic] = replace(topic, partitions=changed)
        if all(topics[name] is info for name, info in self.topics.items()):
            return self
        return replace(self, version=self.version + 1, nodes=everyone, topics=topics)

    def lacks(self, partition: TopicPartition) -> bool:
        """Whether the topic is known, and has no such partition."""
        topic = self.topics.get(partition.topic)
        return topic is not None and not topic.error_code and partition.partition not in topic.partitions

    @property
    def controller_node(self) -> Node | None:
        """The controller, or in KRaft a broker that passes on to it what the controller decides."""
        return None if self.controller is None else self.nodes.get(self.controller)

    def leader(self, partition: TopicPartition) -> Node:
        """The node that leads ``partition``. Raises the retriable error that fits when there is none."""
        topic = self.topics.get(partition.topic)
        if topic is None or topic.error_code:
            code = topic.error_code if topic else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            raise topic_error(code, partition.topic, operation="Describe")
        info = topic.partitions.get(partition.partition)
        if info is None:
            raise from_code(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"partition {partition} (the topic has {len(topic.partitions)} partitions)"
            )
        node = self.nodes.get(info.leader) if info.leader is not None else None
        if node is None:
            raise from_code(ErrorCode.LEADER_NOT_AVAILABLE, f"partition {partition}")
        return node

    def leader_epoch(self, partition: TopicPartition) -> int:
        """The leader epoch known for ``partition``, or -1."""
        topic = self.topics.get(partition.topic)
        info = topic.partitions.get(partition.partition) if topic else None
        return -1 if info is None or info.leader_epoch is None else info.leader_epoch

    def existing(self) -> Iterator[str]:
        """The names of topics that the cluster has, as far as they have been heard."""
        described = (name for name, info in self.topics.items() if not info.error_code)
        return chain(described, (name for name in self.alike if name not in self.topics))

    def partitions_of(self, topic: str) -> list[TopicPartition]:
        """The partitions of ``topic`` in order; empty when it is unknown."""
        info = self.topics.get(topic)
        return [TopicPartition(topic, number) for number in sorted(info.partitions)] if info and not info.error_code else []


def _newest(old: TopicInfo | None, new: TopicInfo) -> TopicInfo:
    if old is None or old.topic_id != new.topic_id or new.error_code:
        return new
    partitions = dict(new.partitions)
    for number, info in old.partitions.items():
        now = partitions.get(number)
        if now is not None and now.leader_epoch is not None and (info.leader_epoch or 0) > now.leader_epoch:
            partitions[number] = info
    return replace(new, partitions=partitions)
