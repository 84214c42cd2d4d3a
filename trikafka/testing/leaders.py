"""What Produce, Fetch, ListOffsets and OffsetForLeaderEpoch have in common: is this the node for this partition?"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .call import Call
from .state import Partition, Topic

_HINTS_SINCE = {0: 10, 1: 16}  # Produce and Fetch
_HINTED = (6, 74)  # NOT_LEADER_OR_FOLLOWER and FENCED_LEADER_EPOCH say who leads instead


def led(
    call: Call, name: str | None, topic_id: Any, index: int, epoch: int = -1, *, followers: bool = False
) -> tuple[Topic | None, Partition | None, int]:
    """The partition that a request names, and the error if this node does not lead it (or with ``followers`` has no copy).

    As in Kafka, an epoch that is not the leader's counts before the question who leads.
    """
    topic, code = call.state.find_topic(name, topic_id)
    label = topic.name if topic else name
    if scripted := call.error(label, index):
        return topic, None, scripted
    partition = topic.partition(index) if topic else None
    if partition is None:
        return topic, None, code or 3
    if 0 <= epoch != partition.leader_epoch:
        return topic, partition, 74 if epoch < partition.leader_epoch else 75
    serves = partition.leader == call.node.node_id or (followers and call.node.node_id in partition.replicas)
    return topic, partition, 0 if serves else 6


def hint(call: Call, partition: Partition | None, code: int) -> dict[str, Any]:
    """Who leads instead (KIP-951). As in Kafka only where the answer has the addresses, too: Produce v10, Fetch v16."""
    if call.version < _HINTS_SINCE[call.request.API_KEY] or code not in _HINTED or partition is None or partition.leader is None:
        return {}
    return {"current_leader": {"leader_id": partition.leader, "leader_epoch": partition.leader_epoch}}


def endpoints(call: Call, parts: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The addresses of the leaders that the parts of an answer name."""
    leaders = {part["current_leader"]["leader_id"] for part in parts if "current_leader" in part}
    nodes = [call.state.nodes[number] for number in sorted(leaders)]
    return [{"node_id": node.node_id, "host": node.host, "port": node.port, "rack": node.rack} for node in nodes]
