"""Handlers for feature levels, the metadata quorum, and the registration of nodes.

Every node of the scripted cluster is broker and controller, and the voters are all of them until a
test changes that.
"""

from __future__ import annotations

import uuid
from typing import Any

from trikafka.error_codes import ErrorCode

from .call import ScriptedCall
from .messages import Message
from .stored import directory_of


async def update_features(call: ScriptedCall) -> Message:
    """Change levels: all, or none."""
    quorum = call.state.quorum
    code = call.error()
    message = None
    levels = dict(quorum.features)
    for item in [] if code else call.request.feature_updates:
        level, low, high = levels.get(item.feature, (0, 0, 0))
        falls = item.max_version_level < level
        if not low <= item.max_version_level <= high or falls != (item.upgrade_type != 1):
            code = ErrorCode.INVALID_UPDATE_VERSION
            message = f"Invalid update version for feature {item.feature}."
            break
        levels[item.feature] = (item.max_version_level, low, high)
    if not code and not call.request.validate_only:
        quorum.features = levels
        quorum.epoch += 1
    results = [
        {"feature": item.feature, "error_code": 0}
        for item in ([] if code else call.request.feature_updates)
    ]
    return call.respond(error_code=code, error_message=message, results=results)


async def describe_quorum(call: ScriptedCall) -> Message:
    """Describe the quorum; node 0 leads it."""
    code = call.error()
    quorum = call.state.quorum
    now = call.state.clock()
    voters = [_replica(node_id, number, now) for node_id, number in sorted(quorum.voters.items())]
    observers = [
        _replica(node.node_id, directory_of(node.node_id), now)
        for node in call.state.nodes
        if node.node_id not in quorum.voters
    ]
    partition = {
        "partition_index": 0,
        "error_code": 0,
        "leader_id": 0,
        "leader_epoch": 3,
        "high_watermark": 100,
        "current_voters": voters,
        "observers": observers,
    }
    topics = [{"topic_name": "__cluster_metadata", "partitions": [partition]}]
    nodes = [
        {
            "node_id": node.node_id,
            "listeners": [{"name": "CONTROLLER", "host": node.host, "port": 9093}],
        }
        for node in call.state.nodes
        if node.node_id in quorum.voters
    ]
    return call.respond(error_code=code, topics=[] if code else topics, nodes=nodes)


def _replica(node_id: int, directory: uuid.UUID, now: int) -> dict[str, Any]:
    return {
        "replica_id": node_id,
        "replica_directory_id": directory,
        "log_end_offset": 100 - node_id,
        "last_fetch_timestamp": now,
        "last_caught_up_timestamp": now - node_id,
    }


async def add_raft_voter(call: ScriptedCall) -> Message:
    """Add a voter; a node that votes already is refused."""
    voters = call.state.quorum.voters
    asked = call.request.voter_id
    code = call.error() or (ErrorCode.DUPLICATE_VOTER if asked in voters else 0)
    if not code:
        voters[asked] = call.request.voter_directory_id
    return call.respond(error_code=code)


async def remove_raft_voter(call: ScriptedCall) -> Message:
    """Remove a voter; node and directory must both fit."""
    voters = call.state.quorum.voters
    asked = call.request.voter_id
    fits = asked in voters and voters[asked] == call.request.voter_directory_id
    code = call.error() or (0 if fits else ErrorCode.VOTER_NOT_FOUND)
    if not code:
        del voters[asked]
    return call.respond(error_code=code)


async def unregister_broker(call: ScriptedCall) -> Message:
    """Forget a broker; an unknown one is refused."""
    return _unregister(call, call.request.broker_id, ErrorCode.BROKER_ID_NOT_REGISTERED)


async def unregister_controller(call: ScriptedCall) -> Message:
    """Forget a controller; an unknown one is refused."""
    return _unregister(call, call.request.controller_id, ErrorCode.CONTROLLER_ID_NOT_REGISTERED)


def _unregister(call: ScriptedCall, node_id: int, unknown: int) -> Message:
    gone = call.state.quorum.unregistered
    known = {node.node_id for node in call.state.nodes} - gone
    code = call.error() or (0 if node_id in known else unknown)
    if not code:
        gone.add(node_id)
    return call.respond(error_code=code)
