"""Handlers of ApiVersions, Metadata, FindCoordinator, topics and their configs."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, TypeAlias

from kafka.protocol.api_key import ApiKey

from trikafka.error_codes import ErrorCode

from .call import ScriptedCall
from .messages import RESPONSES, Message, build, decoded
from .state import LEGAL_NAME, Partition, ScriptedNode, Topic
from .topic_configs import fault_of

_TOPIC_RESOURCE = 2
_BROKER_RESOURCE = 4
_GROUP_RESOURCE = 32
_TRANSACTIONS = "transaction.version"
#: APIs with their lowest and highest versions, in order.
_Offered: TypeAlias = tuple[tuple[int, int, int], ...]
#: Features with their name, level, and lowest and highest supported level.
_Features: TypeAlias = tuple[tuple[str, int, int, int], ...]


async def api_versions(call: ScriptedCall) -> Message:
    """List every API of this node with its versions.

    A version that is too new gets UNSUPPORTED_VERSION in the oldest form of the response.
    """
    offered = call.node.versions
    low, high = offered[ApiKey.ApiVersions]
    code = call.error() or (0 if low <= call.version <= high else ErrorCode.UNSUPPORTED_VERSION)
    if code == ErrorCode.UNSUPPORTED_VERSION:
        # KIP-511: brokers since 2.4, which know v3, return at least their versions of ApiVersions.
        own = (
            [{"api_key": int(ApiKey.ApiVersions), "min_version": low, "max_version": high}]
            if high >= 3
            else []
        )
        return build(
            RESPONSES[ApiKey.ApiVersions],
            0,
            {"error_code": ErrorCode.UNSUPPORTED_VERSION, "api_keys": own},
        )
    request = call.request
    # KIP-1242: a client that expects another cluster or node is sent back to the bootstrap.
    if call.version >= 5 and not code:
        expected = request.cluster_id, request.node_id
        if (request.cluster_id is None) != (request.node_id < 0):
            code = ErrorCode.INVALID_REQUEST
        elif request.node_id >= 0 and expected != (call.state.cluster_id, call.node.node_id):
            code = ErrorCode.REBOOTSTRAP_REQUIRED
    keys = tuple((int(key), low, high) for key, (low, high) in sorted(offered.items()))
    quorum = call.state.quorum
    levels = {_TRANSACTIONS: (call.state.transactions.version, 0, 2), **quorum.features}
    features = tuple((name, *level) for name, level in levels.items())
    if code:
        return call.respond(
            error_code=code, **_versions(call.version, keys, features, quorum.epoch)
        )
    encoded = _encoded_versions(call.version, keys, features, quorum.epoch)
    response = decoded(RESPONSES[ApiKey.ApiVersions], encoded, version=call.version)
    response._header = None  # kafka-python leaves it unset, and other responses have it
    return response


# Each connection begins with this response, and its sixty parts are the dearest of all to make.
# They hardly ever change, so their bytes are kept. A handler of a test may change the message, so
# each connection gets one of its own.
@functools.lru_cache(maxsize=64)
def _encoded_versions(version: int, keys: _Offered, features: _Features, epoch: int) -> bytes:
    values = {"error_code": 0, **_versions(version, keys, features, epoch)}
    return bytes(build(RESPONSES[ApiKey.ApiVersions], version, values).encode())


def _versions(version: int, keys: _Offered, features: _Features, epoch: int) -> dict[str, Any]:
    """Return the APIs of a node, and the levels of the cluster's features (KIP-584).

    A feature at level 0 is omitted. Older clients do not get features whose range begins at 0.
    """
    return {
        "api_keys": [
            {"api_key": key, "min_version": low, "max_version": high} for key, low, high in keys
        ],
        "supported_features": [
            {"name": name, "min_version": low, "max_version": high}
            for name, _, low, high in features
            if low or version >= 4
        ],
        "finalized_features_epoch": epoch,
        "finalized_features": [
            {"name": name, "max_version_level": level, "min_version_level": level}
            for name, level, _, _ in features
            if level
        ],
    }


async def metadata(call: ScriptedCall) -> Message:
    """Describe the cluster as this node knows it."""
    asked, state = call.request.topics, call.state
    if asked is None or (call.version == 0 and not asked):
        found = [_topic(call, topic) for topic in state.topics.values()]
    else:
        found = [_asked_topic(call, item) for item in asked]
    controller = state.nodes[state.controller]
    return call.respond(
        brokers=[_broker(node) for node in state.nodes if node.listed],
        cluster_id=state.cluster_id,
        controller_id=controller.node_id if controller.listed else -1,
        topics=found,
    )


async def describe_topic_partitions(call: ScriptedCall) -> Message:
    """Return a page of the topics in the order of their names.

    Offered only if a test enables it.
    """
    begins = call.request.cursor.topic_name if call.request.cursor is not None else ""
    names = {each.name for each in call.request.topics} or set(call.state.topics)
    found, left = [], call.request.response_partition_limit
    for name in sorted(name for name in names & set(call.state.topics) if name >= begins):
        topic = _topic(call, call.state.topics[name])
        if (left := left - len(topic["partitions"])) < 0:
            break
        found.append(topic)
    return call.respond(topics=found)


def _asked_topic(call: ScriptedCall, item: Any) -> dict[str, Any]:
    topic, code = call.state.find_topic(item.name, item.topic_id)
    if topic is not None:
        return _topic(call, topic)
    if item.name and not LEGAL_NAME.fullmatch(item.name):
        code = ErrorCode.INVALID_TOPIC_EXCEPTION
    elif item.name and call.state.auto_create and call.request.allow_auto_topic_creation:
        call.state.create_topic(item.name, 1, 1)
        # As in Kafka, the topic is created now, and the next request describes it.
        code = ErrorCode.LEADER_NOT_AVAILABLE
    return {
        "error_code": call.error(item.name) or code,
        "name": item.name,
        "topic_id": item.topic_id,
        "partitions": [],
    }


def _topic(call: ScriptedCall, topic: Topic) -> dict[str, Any]:
    if code := call.error(topic.name):
        return {
            "error_code": code,
            "name": topic.name,
            "topic_id": topic.topic_id,
            "partitions": [],
        }
    return {
        "name": topic.name,
        "topic_id": topic.topic_id,
        "is_internal": topic.name.startswith("__"),
        "partitions": [_partition(call, partition) for partition in topic.partitions],
    }


def _partition(call: ScriptedCall, partition: Partition) -> dict[str, Any]:
    leader = call.state.leader_of(partition)
    here = [number for number in partition.replicas if call.state.nodes[number].listed]
    return {
        "error_code": 0 if leader else ErrorCode.LEADER_NOT_AVAILABLE,
        "partition_index": partition.index,
        "leader_id": leader.node_id if leader else -1,
        "leader_epoch": partition.leader_epoch,
        "replica_nodes": partition.replicas,
        "isr_nodes": here,
        "offline_replicas": [number for number in partition.replicas if number not in here],
    }


def _broker(node: ScriptedNode) -> dict[str, Any]:
    return {"node_id": node.node_id, "host": node.host, "port": node.port, "rack": node.rack}


async def find_coordinator(call: ScriptedCall) -> Message:
    """Return the coordinator of a group or a transactional id."""
    if call.version >= 4:
        return call.respond(
            coordinators=[_coordinator(call, key) for key in call.request.coordinator_keys]
        )
    found = _coordinator(call, call.request.key)
    del found["key"]
    return call.respond(**found)


def _coordinator(call: ScriptedCall, key: str) -> dict[str, Any]:
    node = call.state.coordinator_of(key)
    code = call.error(key) or (0 if node else ErrorCode.COORDINATOR_NOT_AVAILABLE)
    if code or node is None:
        return {"key": key, "error_code": code, "node_id": -1, "host": "", "port": -1}
    return {
        "key": key,
        "error_code": 0,
        "node_id": node.node_id,
        "host": node.host,
        "port": node.port,
    }


async def create_topics(call: ScriptedCall) -> Message:
    """Create topics, each with its own result."""
    return call.respond(topics=[_create(call, item) for item in call.request.topics])


def _create(call: ScriptedCall, item: Any) -> dict[str, Any]:
    state = call.state
    partitions = len(item.assignments) or (1 if item.num_partitions == -1 else item.num_partitions)
    replication = 1 if item.replication_factor == -1 else item.replication_factor
    code = call.error(item.name)
    message = None
    config = {entry.name: entry.value for entry in item.configs}
    if not code:
        code, message = _objection(call, item.name, partitions, replication)
    if not code and (message := fault_of(config)) is not None:
        code = ErrorCode.INVALID_CONFIG
    answer = {"name": item.name, "error_code": code, "error_message": message}
    if code:
        return answer | {"configs": None}
    answer |= {"num_partitions": partitions, "replication_factor": replication}
    answer["configs"] = [
        {
            "name": name,
            "value": value,
            "read_only": False,
            "config_source": 1,
            "is_sensitive": False,
        }
        for name, value in config.items()
    ]
    if not call.request.validate_only:
        answer["topic_id"] = state.create_topic(item.name, partitions, replication, config).topic_id
    return answer


def _objection(
    call: ScriptedCall, name: str, partitions: int, replication: int
) -> tuple[int, str | None]:
    if not LEGAL_NAME.fullmatch(name):
        return ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic name is invalid: '{name}'"
    if name in call.state.topics:
        return ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists."
    # The names of Kafka's metrics have '_' in place of '.'.
    alike = (other for other in call.state.topics if _metric_name(other) == _metric_name(name))
    if (other := next(alike, None)) is not None:
        text = f"Topic '{name}' collides with existing topic: {other}"
        return ErrorCode.INVALID_TOPIC_EXCEPTION, text
    if partitions < 1:
        return (
            ErrorCode.INVALID_PARTITIONS,
            "Number of partitions was set to an invalid non-positive value.",
        )
    if not 1 <= replication <= sum(node.listed for node in call.state.nodes):
        return (
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"Unable to replicate the partition {replication} time(s).",
        )
    return 0, None


def _metric_name(topic: str) -> str:
    return topic.replace(".", "_")


async def delete_topics(call: ScriptedCall) -> Message:
    """Delete topics by name or id, each with its own result."""
    if call.version >= 6:
        asked = [(item.name, item.topic_id) for item in call.request.topics]
    else:
        asked = [(name, None) for name in call.request.topic_names]
    responses = []
    for name, topic_id in asked:
        topic, code = call.state.find_topic(name, topic_id)
        code = call.error(topic.name if topic else name) or code
        if topic is not None and not code:
            del call.state.topics[topic.name]
            call.groups.forget_topic(topic.name)
            call.state.changed.notify()
        responses.append(
            {
                "name": topic.name if topic else name,
                "topic_id": topic.topic_id if topic else topic_id,
                "error_code": code,
            }
        )
    return call.respond(responses=responses)


async def create_partitions(call: ScriptedCall) -> Message:
    """Add partitions to topics that exist."""
    results = []
    for item in call.request.topics:
        topic, code = call.state.find_topic(item.name, None)
        if topic is not None and item.count <= len(topic.partitions):
            code = ErrorCode.INVALID_PARTITIONS
        code = call.error(item.name) or code
        if topic is not None and not code and not call.request.validate_only:
            call.state.grow_topic(topic, item.count)
        results.append({"name": item.name, "error_code": code})
    return call.respond(results=results)


def _configured(call: ScriptedCall, item: Any) -> tuple[Mapping[str, str], int]:
    """Return the configured values of one resource, and an error code or 0."""
    if item.resource_type == _GROUP_RESOURCE:
        times = call.groups.modern
        return {
            "consumer.session.timeout.ms": str(round(times.session_timeout * 1000)),
            "consumer.heartbeat.interval.ms": str(round(times.heartbeat_interval * 1000)),
        }, 0
    if item.resource_type != _TOPIC_RESOURCE:
        return {}, ErrorCode.INVALID_REQUEST
    topic, code = call.state.find_topic(item.resource_name, None)
    return {} if topic is None else topic.config, code


async def describe_configs(call: ScriptedCall) -> Message:
    """Return the configured values of topics and the times of groups.

    Brokers have no configured values.
    """
    results = []
    for item in call.request.resources:
        set_here, code = _configured(call, item)
        code = call.error(item.resource_name) or code
        wanted = item.configuration_keys
        set_here = {} if code else set_here
        configs = [
            {
                "name": name,
                "value": value,
                "read_only": False,
                "config_source": 1,
                "is_sensitive": False,
                "synonyms": [],
            }
            for name, value in set_here.items()
            if wanted is None or name in wanted
        ]
        results.append(
            {
                "error_code": code,
                "resource_type": item.resource_type,
                "resource_name": item.resource_name,
                "configs": configs,
            }
        )
    return call.respond(results=results)


async def list_config_resources(call: ScriptedCall) -> Message:
    """Return topics and brokers; version 0 lists metrics subscriptions, of which there are none."""
    code = call.error()
    known = {
        _TOPIC_RESOURCE: sorted(call.state.topics),
        _BROKER_RESOURCE: [str(node.node_id) for node in call.state.nodes],
    }
    asked = () if code or call.version < 1 else call.request.resource_types or known
    return call.respond(
        error_code=code,
        config_resources=[
            {"resource_type": kind, "resource_name": name}
            for kind in asked
            for name in known.get(kind, ())
        ],
    )


#: The times of groups that can be configured, with their fields. Here they hold for all groups.
_TIMES = {
    "consumer.session.timeout.ms": "session_timeout",
    "consumer.heartbeat.interval.ms": "heartbeat_interval",
    "consumer.assignment.interval.ms": "assignment_interval",
}


async def alter_configs(call: ScriptedCall) -> Message:
    """Change configured values of topics and the times of groups; brokers have none to change."""
    results = []
    for item in call.request.resources:
        topic: Topic | None = None
        code: int = ErrorCode.INVALID_REQUEST
        if item.resource_type == _TOPIC_RESOURCE:
            topic, code = call.state.find_topic(item.resource_name, None)
        elif item.resource_type == _GROUP_RESOURCE:
            known = all(each.name in _TIMES and not each.config_operation for each in item.configs)
            code = 0 if known else ErrorCode.INVALID_CONFIG
        code = call.error(item.resource_name) or code
        changed = dict(topic.config) if topic is not None else {}
        message = None
        if topic is not None and not code:
            for change in item.configs:
                _change(changed, change)
            here = {each.name: changed.get(each.name) for each in item.configs}
            if (message := fault_of(here)) is not None:
                code = ErrorCode.INVALID_CONFIG
        if not code and not call.request.validate_only:
            if topic is not None:
                topic.config = changed
            else:
                for change in item.configs:
                    seconds = {_TIMES[change.name]: int(change.value) / 1000}
                    call.groups.modern = call.groups.modern._replace(**seconds)
        results.append(
            {
                "error_code": code,
                "error_message": message,
                "resource_type": item.resource_type,
                "resource_name": item.resource_name,
            }
        )
    return call.respond(responses=results)


def _change(config: dict[str, str], change: Any) -> None:
    """Carry out a change: 0 sets, 1 deletes, 2 appends to a list, 3 subtracts from it."""
    if change.config_operation == 0:
        config[change.name] = change.value
    elif change.config_operation == 1:
        config.pop(change.name, None)
    else:
        had = [text for text in config.get(change.name, "").split(",") if text]
        given = change.value.split(",")
        left = [text for text in had if text not in given]
        config[change.name] = ",".join(
            [*had, *(text for text in given if text not in had)]
            if change.config_operation == 2
            else left
        )


async def delete_records(call: ScriptedCall) -> Message:
    """Delete the records before an offset; -1 stands for the end of the log."""
    topics = []
    for item in call.request.topics:
        parts = []
        for part in item.partitions:
            topic, code = call.state.find_topic(item.name, None)
            log = topic.partition(part.partition_index) if topic is not None else None
            if log is None:
                code = code or ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            elif log.leader != call.node.node_id:
                code = ErrorCode.NOT_LEADER_OR_FOLLOWER
            elif part.offset > log.end:
                code = ErrorCode.OFFSET_OUT_OF_RANGE
            code = call.error(item.name, part.partition_index) or code
            if log is not None and not code:
                log.truncate_before(log.end if part.offset < 0 else part.offset)
            parts.append(
                {
                    "partition_index": part.partition_index,
                    "low_watermark": -1 if code or log is None else log.start,
                    "error_code": code,
                }
            )
        topics.append({"name": item.name, "partitions": parts})
    return call.respond(topics=topics)
