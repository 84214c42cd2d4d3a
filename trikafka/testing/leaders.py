"""The leader check shared by Produce, Fetch, ListOffsets and OffsetForLeaderEpoch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from trikafka.error_codes import ErrorCode

from .call import ScriptedCall
from .state import Partition, Topic

_HINTS_SINCE = {0: 10, 1: 16}  # Produce and Fetch
#: The errors whose responses name the new leader.
_HINTED = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)


def led(
    call: ScriptedCall,
    name: str | None,
    topic_id: Any,
    index: int,
    epoch: int = -1,
    *,
    followers: bool = False,
) -> tuple[Topic | None, Partition | None, int]:
    """Return the requested partition, and an error code if this node does not serve it.

    A node serves the partitions that it leads, with ``followers`` also those that it replicates. As
    in Kafka, a wrong leader epoch counts before leadership.
    """
    topic, code = call.state.find_topic(name, topic_id)
    label = topic.name if topic else name
    if scripted := call.error(label, index):
        return topic, None, scripted
    partition = topic.partition(index) if topic else None
    if partition is None:
        return topic, None, code or ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if 0 <= epoch != partition.leader_epoch:
        return (
            topic,
            partition,
            ErrorCode.FENCED_LEADER_EPOCH
            if epoch < partition.leader_epoch
            else ErrorCode.UNKNOWN_LEADER_EPOCH,
        )
    serves = partition.leader == call.node.node_id or (
        followers and call.node.node_id in partition.replicas
    )
    return topic, partition, 0 if serves else ErrorCode.NOT_LEADER_OR_FOLLOWER


def hint(call: ScriptedCall, partition: Partition | None, code: int) -> dict[str, Any]:
    """Return the fields that name the new leader (KIP-951).

    As in Kafka, only versions that also carry its address have them: Produce v10, Fetch v16.
    """
    if (
        call.version < _HINTS_SINCE[call.request.API_KEY]
        or code not in _HINTED
        or partition is None
        or partition.leader is None
    ):
        return {}
    return {
        "current_leader": {"leader_id": partition.leader, "leader_epoch": partition.leader_epoch}
    }


def endpoints(call: ScriptedCall, parts: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the addresses of the leaders that the parts of a response name."""
    leaders = {part["current_leader"]["leader_id"] for part in parts if "current_leader" in part}
    nodes = [call.state.nodes[number] for number in sorted(leaders)]
    return [
        {"node_id": node.node_id, "host": node.host, "port": node.port, "rack": node.rack}
        for node in nodes
    ]
