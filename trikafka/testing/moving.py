"""Handlers for the cluster's description, reassignments, elections and log directories.

A reassignment is complete at once. Each node has one log directory, ``/data-<node id>``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from trikafka.error_codes import ErrorCode

from .call import ScriptedCall
from .messages import Message
from .state import NodeState, Partition

#: The bits of the operations on the cluster that a response allows each user.
_OPERATIONS = {5, 7, 8, 9, 10, 11, 12}
#: The bit for a request that did not ask for the operations.
_NOT_ASKED = {31}


async def describe_cluster(call: ScriptedCall) -> Message:
    """Describe the nodes; those that are stopped and no longer listed count as fenced."""
    state, request = call.state, call.request
    if code := call.error():
        return call.respond(error_code=code, brokers=[], cluster_id="")
    fenced = call.version >= 2 and request.include_fenced_brokers
    controller = state.nodes[state.controller]
    return call.respond(
        error_code=0,
        cluster_id=state.cluster_id,
        endpoint_type=request.endpoint_type if call.version >= 1 else 1,
        controller_id=controller.node_id if controller.listed else -1,
        brokers=[
            {
                "broker_id": node.node_id,
                "host": node.host,
                "port": node.port,
                "rack": node.rack,
                "is_fenced": not node.listed,
            }
            for node in state.nodes
            if node.listed or fenced
        ],
        authorized_operations=_OPERATIONS
        if request.include_cluster_authorized_operations
        else _NOT_ASKED,
    )


async def alter_partition_reassignments(call: ScriptedCall) -> Message:
    """Move partitions to other nodes at once, so there is never a reassignment to cancel."""
    responses = []
    for topic in call.request.topics:
        parts = []
        for part in topic.partitions:
            log, code = find_partition(call, topic.name, part.partition_index)
            if log is not None and not code:
                code = _objection(call, log, part.replicas)
            if log is not None and not code:
                log.move_to(part.replicas)
                call.state.changed.notify()
            parts.append({"partition_index": part.partition_index, "error_code": code})
        responses.append({"name": topic.name, "partitions": parts})
    return call.respond(error_code=0, responses=responses)


def _objection(call: ScriptedCall, log: Partition, replicas: list[int] | None) -> int:
    if replicas is None:
        return ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
    known = {node.node_id for node in call.state.nodes}
    if not replicas or len(set(replicas)) != len(replicas) or not set(replicas) <= known:
        return ErrorCode.INVALID_REPLICA_ASSIGNMENT
    same = call.version < 1 or call.request.allow_replication_factor_change
    if len(replicas) != len(log.replicas) and not same:
        return ErrorCode.INVALID_REPLICATION_FACTOR
    return 0


async def list_partition_reassignments(call: ScriptedCall) -> Message:
    """Return no reassignment: each is complete at once."""
    return call.respond(error_code=call.error(), topics=[])


async def elect_leaders(call: ScriptedCall) -> Message:
    """Elect leaders of the named partitions, or of all: the first replica, or uncleanly any."""
    asked = call.request.topic_partitions
    unclean = call.version >= 1 and call.request.election_type == 1
    results: dict[str, list[dict[str, Any]]] = {}
    for name, number in _named(call):
        log, code = find_partition(call, name, number)
        if log is not None and not code:
            code = _elect(call, log, unclean=unclean)
        if asked is None and code == ErrorCode.ELECTION_NOT_NEEDED:
            continue
        results.setdefault(name, []).append({"partition_id": number, "error_code": code})
    return call.respond(
        error_code=0,
        replica_election_results=[
            {"topic": name, "partition_result": parts} for name, parts in results.items()
        ],
    )


def _named(call: ScriptedCall) -> Iterator[tuple[str, int]]:
    """Yield the partitions of the request, or all."""
    asked = call.request.topic_partitions
    if asked is None:
        for topic in call.state.topics.values():
            yield from ((topic.name, log.index) for log in topic.partitions)
        return
    for item in asked:
        yield from ((item.topic, number) for number in item.partitions)


def _elect(call: ScriptedCall, log: Partition, *, unclean: bool) -> int:
    leader = call.state.leader_of(log)
    if leader is not None and (unclean or log.leader == log.replicas[0]):
        return ErrorCode.ELECTION_NOT_NEEDED
    alive = [each for each in log.replicas if call.state.nodes[each].state is NodeState.UP]
    wanted = alive if unclean else [each for each in alive if each == log.replicas[0]]
    if not wanted:
        return (
            ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
            if unclean
            else ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
        )
    log.elect(wanted[0])
    call.state.changed.notify()
    return 0


async def describe_log_dirs(call: ScriptedCall) -> Message:
    """Describe the directory of this node with its replicas."""
    wanted = call.request.topics
    asked = None if wanted is None else {item.topic: set(item.partitions) for item in wanted}
    topics = []
    for topic in call.state.topics.values():
        parts = [
            {
                "partition_index": log.index,
                "partition_size": sum(len(batch.data) for batch in log.batches),
                "offset_lag": 0,
                "is_future_key": False,
            }
            for log in topic.partitions
            if call.node.node_id in log.replicas
            and (asked is None or log.index in asked.get(topic.name, ()))
        ]
        if parts:
            topics.append({"name": topic.name, "partitions": parts})
    directory = {
        "error_code": 0,
        "log_dir": _directory(call),
        "topics": topics,
        "total_bytes": 1 << 40,
        "usable_bytes": 1 << 39,
    }
    code = call.error()
    return call.respond(error_code=code, results=[] if code else [directory])


async def alter_replica_log_dirs(call: ScriptedCall) -> Message:
    """Accept moves to this node's only directory."""
    results = []
    for directory in call.request.dirs:
        for topic in directory.topics:
            parts = []
            for number in topic.partitions:
                log, code = find_partition(call, topic.name, number)
                if directory.path != _directory(call):
                    code = code or ErrorCode.LOG_DIR_NOT_FOUND
                elif log is not None and call.node.node_id not in log.replicas:
                    code = code or ErrorCode.REPLICA_NOT_AVAILABLE
                parts.append({"partition_index": number, "error_code": code})
            results.append({"topic_name": topic.name, "partitions": parts})
    return call.respond(results=results)


def _directory(call: ScriptedCall) -> str:
    return f"/data-{call.node.node_id}"


def find_partition(call: ScriptedCall, name: str, number: int) -> tuple[Partition | None, int]:
    """Return a partition, and an error code: a scripted one, or that of an unknown partition."""
    topic, code = call.state.find_topic(name, None)
    log = topic.partition(number) if topic is not None else None
    if log is None:
        code = code or ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return log, call.error(name, number) or code
