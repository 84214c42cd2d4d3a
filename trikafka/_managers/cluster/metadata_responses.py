"""The reading of Metadata responses: a check of the whole, then a snapshot of the cluster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from kafka.protocol.metadata import MetadataResponse

from ..._net import decoding
from ..._net.addresses import is_possible
from ...errors import ProtocolError
from ...errors.counts import counted
from ...interfaces import ClusterSnapshot, TopicInfo
from ...types import Node, PartitionInfo

#: The partitions of a topic are numbered from 0. A response may leave out at most this many of
#: them.
_MOST_MISSING = 10_000


async def read_metadata(
    response: MetadataResponse,
    node: Node | str = "a broker",
    names: frozenset[str] | None = None,
) -> ClusterSnapshot:
    """Turn a Metadata response into a snapshot, and free the response's objects.

    A large response is read in a thread.

    Args:
        response: The response.
        node: The broker that sent it, for the error.
        names: The topics that were asked for; ``None`` means all topics, or topics by their ids.

    Raises:
        ProtocolError: The response contradicts itself, or names what was not asked for.
    """

    def read() -> ClusterSnapshot:
        _check(response, node, names)
        snapshot = _read(response)
        for topic in response.topics:
            decoding.use_up(topic.partitions)
        decoding.use_up(response.topics)
        return snapshot

    return await decoding.worked_out(count_partitions(response.topics or ()), read)


def count_partitions(topics: Iterable[Any]) -> int:
    """Return the number of topics and partitions together: about the work of reading them."""
    return sum(len(topic.partitions or ()) + 1 for topic in topics)


def _check(response: MetadataResponse, node: Node | str, names: frozenset[str] | None) -> None:
    """Raise a retriable :exc:`ProtocolError` for a response that no cluster can mean.

    Such a response, if believed, would cost memory and time. ``names`` are the topics that were
    asked for; ``None`` means all topics, or topics by their ids. A response with a topic that was
    not asked for, or with the same item twice, is refused whole: which of two leaders of one
    partition would be the right one?
    """
    what = ""
    if names is not None and len(response.topics or ()) > len(names):
        what = f"{counted(len(response.topics), 'topic')}, and was asked for {len(names)}"
    elif names is not None and (
        other := next((t for t in response.topics or () if t.name not in names), None)
    ):
        what = f"topic {other.name!r}, which was not asked for"
    elif (
        twice := _repeated(
            [topic.name for topic in response.topics or () if topic.name is not None]
        )
    ) is not None:
        what = f"topic {twice!r} twice"
    ids = [
        topic.topic_id for topic in response.topics or () if topic.topic_id and topic.topic_id.int
    ]
    if not what and (twice := _repeated(ids)) is not None:
        what = f"the topic id {twice} twice"
    if (twice := _repeated([broker.node_id for broker in response.brokers or ()])) is not None:
        what = f"broker {twice} twice"
    for broker in response.brokers or ():
        if not is_possible(Node(broker.node_id, broker.host, broker.port)):
            what = f"a broker {broker.node_id} at {broker.host!r}:{broker.port}"
    for topic in response.topics or ():
        if topic.partitions is None:
            what = f"no partitions of topic {topic.name!r}"
        for part in topic.partitions or ():
            if not 0 <= part.partition_index < len(topic.partitions) + _MOST_MISSING:
                what = (
                    f"a partition {part.partition_index} of topic {topic.name!r}, which has "
                    f"{len(topic.partitions)}"
                )
            if part.replica_nodes is None or part.isr_nodes is None:
                what = f"no replicas of {topic.name}-{part.partition_index}"
        if (
            twice := _repeated([part.partition_index for part in topic.partitions or ()])
        ) is not None:
            what = f"{topic.name}-{twice} twice"
    if response.topics is None:
        what = "no list of topics"
    if what:
        error = ProtocolError(f"the metadata response of {node} is impossible: it names {what}")
        # Another broker may send a good response, and so may this one later.
        error.retriable = True
        raise error


def _repeated(items: list[Any]) -> Any:
    """Return an item that occurs twice; ``None`` if each occurs once."""
    if len(set(items)) == len(items):
        return None
    return next(item for item, count in Counter(items).items() if count > 1)


def _read(response: MetadataResponse) -> ClusterSnapshot:
    nodes = {
        broker.node_id: Node(broker.node_id, broker.host, broker.port, broker.rack)
        for broker in response.brokers
    }
    topics = {topic.name: _read_topic(topic) for topic in response.topics if topic.name is not None}
    controller = (
        response.controller_id
        if response.controller_id is not None and response.controller_id >= 0
        else None
    )
    return ClusterSnapshot(0, response.cluster_id, controller, nodes, topics)


def _read_topic(topic: Any) -> TopicInfo:
    partitions = {
        part.partition_index: PartitionInfo(
            topic.name,
            part.partition_index,
            part.leader_id if part.leader_id >= 0 else None,
            part.leader_epoch if part.leader_epoch is not None and part.leader_epoch >= 0 else None,
            tuple(part.replica_nodes),
            tuple(part.isr_nodes),
        )
        for part in topic.partitions
    }
    topic_id = str(topic.topic_id) if topic.topic_id is not None else None
    return TopicInfo(topic.name, topic.error_code, topic_id, bool(topic.is_internal), partitions)
