"""The cluster as a client sees it: an immutable snapshot.

Only the metadata manager creates snapshots and replaces them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from itertools import chain

from ..errors import ErrorCode, from_code, topic_error
from ..errors.counts import counted
from ..types import Node, PartitionInfo, TopicPartition

#: Seconds for which all responses must contradict a leader epoch before the client accepts theirs.
#: Brokers learn of a new leader within a second or two.
DOUBT = 10.0


class CoordinatorKind(IntEnum):
    """The kind of coordinator: of a consumer group, or of a transactional id."""

    GROUP = 0
    TRANSACTION = 1


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """One topic as the cluster last described it.

    Attributes:
        name: The name of the topic.
        error_code: 0 unless the broker could not describe the topic.
        topic_id: The topic's UUID as text (KIP-516); ``None`` where the broker returns none.
        internal: True for Kafka's own topics, such as ``__consumer_offsets``.
        partitions: The partitions by number.
    """

    name: str
    error_code: int
    topic_id: str | None
    internal: bool
    partitions: Mapping[int, PartitionInfo]


@dataclass(frozen=True, slots=True, weakref_slot=True)
class ClusterSnapshot:
    """The cluster as last described by a broker.

    Attributes:
        version: A number that grows with each new snapshot.
        cluster_id: The cluster's id; ``None`` before the first response.
        controller: The node id of the controller; ``None`` if unknown.
        nodes: The brokers by node id.
        topics: The topics that the client follows, by name.
        alike: Names of existing topics, used for suggestions when a topic is missing. The client
            knows only their names.
        doubted: Partitions whose leader epoch is contradicted by later responses. The value is the
            time (Trio's clock) of the first contradiction.
    """

    version: int = 0
    cluster_id: str | None = None
    controller: int | None = None
    nodes: Mapping[int, Node] = field(default_factory=dict)
    topics: Mapping[str, TopicInfo] = field(default_factory=dict)
    alike: tuple[str, ...] = ()
    doubted: Mapping[TopicPartition, float] = field(default_factory=dict)

    # Leader epochs only grow, so a response with a lower epoch comes from a broker that lags behind
    # the controller. Such a response must not move the client back to the old leader, which would
    # answer NOT_LEADER_OR_FOLLOWER.
    #
    # The rule has one flaw. If a damaged response ever named an epoch that is too high, no real
    # epoch would exceed it, and the client would always keep the wrong leader. The snapshot
    # therefore counts how long every response has contradicted the known epoch. A broker that lags
    # catches up within a second or two. After DOUBT seconds of contradiction the higher epoch was
    # never true, and the client accepts the lower one.
    #
    # A topic that was deleted and created again has another topic id, and its epochs start at 0. It
    # is never compared with its predecessor (see _newest).
    def updated(
        self, answer: ClusterSnapshot, keep: frozenset[str], now: float = 0.0
    ) -> ClusterSnapshot:
        """Return a newer snapshot made from a metadata response.

        The topics of ``answer`` replace the known ones. A leader epoch moves back only after every
        response has contradicted it for :data:`DOUBT` seconds.

        Args:
            answer: The snapshot read from the response.
            keep: Topics that stay in the snapshot if ``answer`` does not mention them.
            now: The time of Trio's clock, in seconds.

        Returns:
            The new snapshot. Its ``version`` is one higher.
        """
        topics = {name: info for name, info in self.topics.items() if name in keep}
        doubted: dict[TopicPartition, float] = {}
        for name, info in answer.topics.items():
            topics[name] = _newest(self.topics.get(name), info, self.doubted, doubted, now)
        return replace(
            answer, version=self.version + 1, topics=topics, alike=self.alike, doubted=doubted
        )

    def with_leaders(
        self, leaders: Mapping[TopicPartition, tuple[int, int]], nodes: Mapping[int, Node]
    ) -> ClusterSnapshot:
        """Return a snapshot with the leaders that a broker's response named (KIP-951).

        A leader is taken over only if its epoch is higher than the known one and its node is known.

        Args:
            leaders: Node id and leader epoch by partition.
            nodes: Brokers that the response describes, by node id.

        Returns:
            A newer snapshot, or this one if no leader was taken over.
        """
        everyone = {**self.nodes, **nodes}
        # Each topic is copied once, even if many of its leaders have changed.
        changed: dict[str, dict[int, PartitionInfo]] = {}
        for tp, (node, epoch) in leaders.items():
            topic = self.topics.get(tp.topic)
            info = topic.partitions.get(tp.partition) if topic is not None else None
            if (
                topic is not None
                and info is not None
                and node in everyone
                and epoch > (info.leader_epoch or 0)
            ):
                partitions = changed.get(tp.topic)
                if partitions is None:
                    partitions = changed[tp.topic] = dict(topic.partitions)
                partitions[tp.partition] = replace(info, leader=node, leader_epoch=epoch)
        if not changed:
            return self
        news = {
            name: replace(self.topics[name], partitions=partitions)
            for name, partitions in changed.items()
        }
        return replace(
            self, version=self.version + 1, nodes=everyone, topics={**self.topics, **news}
        )

    def lacks(self, partition: TopicPartition) -> bool:
        """Return whether the topic is known and has no such partition."""
        topic = self.topics.get(partition.topic)
        return (
            topic is not None
            and not topic.error_code
            and partition.partition not in topic.partitions
        )

    @property
    def controller_node(self) -> Node | None:
        """The controller, or in KRaft a broker that forwards requests to the controller."""
        return None if self.controller is None else self.nodes.get(self.controller)

    def leader(self, partition: TopicPartition) -> Node:
        """Return the node that leads ``partition``.

        Raises:
            TrikafkaError: A retriable error: the topic or the partition is unknown, or the
                partition has no leader now.
        """
        topic = self.topics.get(partition.topic)
        if topic is None or topic.error_code:
            code = topic.error_code if topic else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            raise topic_error(code, partition.topic, operation="Describe")
        info = topic.partitions.get(partition.partition)
        if info is None:
            raise from_code(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"partition {partition} (the topic has "
                f"{counted(len(topic.partitions), 'partition')})",
            )
        node = self.nodes.get(info.leader) if info.leader is not None else None
        if node is None:
            raise from_code(ErrorCode.LEADER_NOT_AVAILABLE, f"partition {partition}")
        return node

    def leader_epoch(self, partition: TopicPartition) -> int:
        """Return the leader epoch known for ``partition``, or -1."""
        topic = self.topics.get(partition.topic)
        info = topic.partitions.get(partition.partition) if topic else None
        return -1 if info is None or info.leader_epoch is None else info.leader_epoch

    def existing(self) -> Iterator[str]:
        """Yield the names of all topics that the client knows to exist."""
        described = (name for name, info in self.topics.items() if not info.error_code)
        return chain(described, (name for name in self.alike if name not in self.topics))

    def partitions_of(self, topic: str) -> list[TopicPartition]:
        """Return the partitions of ``topic`` in order; an empty list for an unknown topic."""
        info = self.topics.get(topic)
        return (
            [TopicPartition(topic, number) for number in sorted(info.partitions)]
            if info and not info.error_code
            else []
        )


def _newest(
    old: TopicInfo | None,
    new: TopicInfo,
    before: Mapping[TopicPartition, float],
    doubted: dict[TopicPartition, float],
    now: float,
) -> TopicInfo:
    """Return the newer description of a topic, with the leaders whose epochs are the highest.

    ``before`` has the doubts so far (:attr:`ClusterSnapshot.doubted`); those that remain are added
    to ``doubted``.
    """
    if old is None or old.topic_id != new.topic_id or new.error_code:
        return new
    partitions = dict(new.partitions)
    for number, info in old.partitions.items():
        answer = partitions.get(number)
        if (
            answer is None
            or answer.leader_epoch is None
            or (info.leader_epoch or 0) <= answer.leader_epoch
        ):
            continue
        tp = TopicPartition(new.name, number)
        since = before.get(tp, now)
        if now - since < DOUBT:
            partitions[number] = info
            doubted[tp] = since
    return replace(new, partitions=partitions)
