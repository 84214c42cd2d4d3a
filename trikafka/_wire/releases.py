"""The releases of Kafka that introduced what a broker may lack, for errors that name the release.

No I/O. The oldest broker that trikafka is tested with is 3.3.2; its features are not listed.
"""

from __future__ import annotations

from kafka.protocol.api_key import ApiKey

from ..errors import ErrorCode, TrikafkaError, UnsupportedVersionError

_CONSUMER_GROUP_HEARTBEAT, _CONSUMER_GROUP_DESCRIBE = 68, 69
_GET_TELEMETRY_SUBSCRIPTIONS, _PUSH_TELEMETRY = 71, 72
_ADD_RAFT_VOTER = 80
_REMOVE_RAFT_VOTER = 81
_UNREGISTER_CONTROLLER = 94
_CREATE_TOKEN = 38
_RENEW_TOKEN = 39
_EXPIRE_TOKEN = 40
_DESCRIBE_TOKEN = 41
_SHARE_GROUP_DESCRIBE, _STREAMS_GROUP_DESCRIBE = 77, 89
_DESCRIBE_SHARE_OFFSETS = 90
_ALTER_SHARE_OFFSETS = 91
_DELETE_SHARE_OFFSETS = 92
_SHARE_GROUP_HEARTBEAT = 76
_SHARE_FETCH = 78
_SHARE_ACKNOWLEDGE = 79

#: (API, version) -> the first release whose brokers support it without enabling unfinished
#: features.
_FIRST = {
    (_CONSUMER_GROUP_HEARTBEAT, 0): "4.0",
    (_CONSUMER_GROUP_DESCRIBE, 0): "4.0",
    (_GET_TELEMETRY_SUBSCRIPTIONS, 0): "3.7",
    (_PUSH_TELEMETRY, 0): "3.7",
    (int(ApiKey.DescribeUserScramCredentials), 0): "3.5",  # with KRaft, as the next five
    (int(ApiKey.AlterUserScramCredentials), 0): "3.5",
    (_CREATE_TOKEN, 0): "3.6",
    (_RENEW_TOKEN, 0): "3.6",
    (_EXPIRE_TOKEN, 0): "3.6",
    (_DESCRIBE_TOKEN, 0): "3.6",
    (int(ApiKey.ListConfigResources), 0): "3.7",
    (int(ApiKey.ListConfigResources), 1): "4.1",
    (_ADD_RAFT_VOTER, 0): "3.9",
    (_REMOVE_RAFT_VOTER, 0): "3.9",
    (_UNREGISTER_CONTROLLER, 0): "4.4",
    (int(ApiKey.ListOffsets), 8): "3.5",
    (int(ApiKey.ListOffsets), 9): "3.9",
    (int(ApiKey.ListOffsets), 11): "4.2",
    (_SHARE_GROUP_DESCRIBE, 0): "4.2",
    (_STREAMS_GROUP_DESCRIBE, 0): "4.2",
    (_DESCRIBE_SHARE_OFFSETS, 0): "4.2",
    (_ALTER_SHARE_OFFSETS, 0): "4.2",
    (_DELETE_SHARE_OFFSETS, 0): "4.2",
    (int(ApiKey.AlterPartitionReassignments), 1): "4.1",
    (int(ApiKey.DescribeCluster), 2): "4.0",
    (_SHARE_GROUP_HEARTBEAT, 1): "4.2",
    (_SHARE_FETCH, 1): "4.2",
    (_SHARE_ACKNOWLEDGE, 1): "4.2",
    (int(ApiKey.ListTransactions), 1): "3.8",
    (int(ApiKey.ListTransactions), 2): "4.1",
    (int(ApiKey.OffsetCommit), 10): "4.1",
    (int(ApiKey.OffsetFetch), 10): "4.1",
}


def needed(api_key: int, version: int) -> str:
    """Return the addition to an error about a request in a version that a broker lacks.

    It names the release that is needed; empty if that is not known.
    """
    known = [
        (since, release)
        for (key, since), release in _FIRST.items()
        if key == api_key and since <= version
    ]
    return f"; it needs Kafka {max(known)[1]} or newer" if known else ""


#: The protocols of groups that a feature of the cluster turns on: name, release, feature.
_GROUP_PROTOCOLS = {
    "consumer": ("the consumer group protocol (KIP-848)", "4.0", "group.version"),
    "share": ("the share group protocol (KIP-932)", "4.2", "share.version"),
    "streams": ("the streams group protocol (KIP-1071)", "4.2", "streams.version"),
}


def explained_refusal(error: TrikafkaError, kind: str, instead: str = "") -> TrikafkaError:
    """Return an error that explains UNSUPPORTED_VERSION about a group of this kind.

    A broker offers a request whose feature is off, and refuses it. An upgrade of the brokers leaves
    the features as they are. Any other error is returned as it is.

    Args:
        error: The error of a request.
        kind: The kind of the group: ``consumer``, ``share`` or ``streams``.
        instead: What to do without the protocol, for the end of the text.
    """
    if error.code != ErrorCode.UNSUPPORTED_VERSION:
        return error
    what, release, feature = _GROUP_PROTOCOLS[kind]
    explained = UnsupportedVersionError(
        f"the brokers do not have {what}: it needs Kafka {release} or newer and there the feature "
        f"{feature} ({error}){instead}"
    )
    explained.__cause__ = error
    return explained
