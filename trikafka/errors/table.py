"""The table of the brokers' error codes.

Each row has the exception for a code, and what must be refreshed before a retry.
"""

from __future__ import annotations

from typing import NamedTuple

from ..error_codes import ErrorCode
from .classes import (
    _CODES,
    AuthenticationError,
    AuthorizationError,
    BrokerResponseError,
    CoordinatorError,
    DuplicateSequenceError,
    FencedInstanceIdError,
    FetchSessionError,
    GroupFullError,
    GroupIdNotFoundError,
    GroupProtocolMismatchError,
    InvalidRegularExpressionError,
    InvalidTopicError,
    MemberFencedError,
    MessageTooLargeError,
    NotLeaderError,
    OffsetMovedToTieredStorageError,
    OutOfOrderSequenceError,
    ProducerFencedError,
    RebalanceInProgressError,
    ShareSessionError,
    TopicAlreadyExistsError,
    UnknownProducerIdError,
    UnknownTopicOrPartitionError,
    UnstableOffsetCommitError,
    UnsupportedAssignorError,
)


class _Row(NamedTuple):
    text: str
    cls: type[BrokerResponseError] = BrokerResponseError
    retriable: bool = False
    metadata: bool = False
    coordinator: bool = False


#: Codes after which a transactional producer can no longer be used. Missing permissions are not
#: among them: they may be granted (see :mod:`.refusals`), and the producer then continues.
_FATAL = frozenset(
    (
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_TRANSACTION_TIMEOUT,
        ErrorCode.UNSUPPORTED_VERSION,
        ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
    )
)
_E = ErrorCode
_B = BrokerResponseError
_R = True
_M = True
_C = True
_UNKNOWN = _Row("the broker answered with a code that trikafka does not know")
_TABLE: dict[int, _Row] = {
    _E.UNKNOWN_SERVER_ERROR: _Row("the broker failed in a way it does not name"),
    _E.OFFSET_OUT_OF_RANGE: _Row("the offset is outside the partition's log"),
    _E.CORRUPT_MESSAGE: _Row("the broker found the records corrupt", _B, _R),
    _E.UNKNOWN_TOPIC_OR_PARTITION: _Row(
        "the broker does not know this topic or partition", UnknownTopicOrPartitionError, _R, _M
    ),
    _E.INVALID_FETCH_SIZE: _Row("the fetch size is not valid"),
    _E.LEADER_NOT_AVAILABLE: _Row(
        "the partition has no leader at the moment", NotLeaderError, _R, _M
    ),
    _E.NOT_LEADER_OR_FOLLOWER: _Row(
        "the broker does not lead this partition", NotLeaderError, _R, _M
    ),
    _E.REQUEST_TIMED_OUT: _Row("the request timed out inside the broker", _B, _R),
    _E.BROKER_NOT_AVAILABLE: _Row("the broker is not available", _B, _R, _M, _C),
    _E.REPLICA_NOT_AVAILABLE: _Row("the replica is not available", _B, _R, _M),
    _E.MESSAGE_TOO_LARGE: _Row(
        "the broker refused records larger than its max.message.bytes", MessageTooLargeError
    ),
    _E.STALE_CONTROLLER_EPOCH: _Row("the controller moved"),
    _E.OFFSET_METADATA_TOO_LARGE: _Row(
        "the note beside the committed offset is longer than the broker's offset.metadata.max.bytes"
    ),
    _E.NETWORK_EXCEPTION: _Row("the broker lost a connection of its own", _B, _R, _M),
    _E.COORDINATOR_LOAD_IN_PROGRESS: _Row("the coordinator is loading", CoordinatorError, _R),
    _E.COORDINATOR_NOT_AVAILABLE: _Row(
        "the coordinator is not available", CoordinatorError, _R, False, _C
    ),
    _E.NOT_COORDINATOR: _Row("the broker is not the coordinator", CoordinatorError, _R, False, _C),
    _E.INVALID_TOPIC_EXCEPTION: _Row("the topic's name is not valid", InvalidTopicError),
    _E.RECORD_LIST_TOO_LARGE: _Row(
        "the batch is larger than the segment size", MessageTooLargeError
    ),
    _E.NOT_ENOUGH_REPLICAS: _Row("fewer in-sync replicas than min.insync.replicas", _B, _R, _M),
    _E.NOT_ENOUGH_REPLICAS_AFTER_APPEND: _Row(
        "written, but to fewer in-sync replicas than required", _B, _R, _M
    ),
    _E.INVALID_REQUIRED_ACKS: _Row("acks must be 0, 1 or all"),
    _E.ILLEGAL_GENERATION: _Row("the group has moved on to another generation", MemberFencedError),
    _E.INCONSISTENT_GROUP_PROTOCOL: _Row(
        "the group's members have no assignor in common with this one, or the id is that of a "
        "share group or a streams group, and a consumer needs another group_id",
        GroupProtocolMismatchError,
    ),
    _E.INVALID_GROUP_ID: _Row("the group id is not valid"),
    _E.UNKNOWN_MEMBER_ID: _Row("the group does not know this member", MemberFencedError),
    _E.INVALID_SESSION_TIMEOUT: _Row(
        "session_timeout_ms is outside the broker's limits, group.min.session.timeout.ms and "
        "group.max.session.timeout.ms"
    ),
    _E.REBALANCE_IN_PROGRESS: _Row("the group rebalances", RebalanceInProgressError),
    _E.INVALID_COMMIT_OFFSET_SIZE: _Row("the committed offset's metadata is too large"),
    _E.TOPIC_AUTHORIZATION_FAILED: _Row("not authorized for the topic", AuthorizationError),
    _E.GROUP_AUTHORIZATION_FAILED: _Row("not authorized for the group", AuthorizationError),
    _E.CLUSTER_AUTHORIZATION_FAILED: _Row("not authorized for the cluster", AuthorizationError),
    _E.INVALID_TIMESTAMP: _Row(
        "a record's timestamp, in milliseconds, is further from now than the topic's "
        "message.timestamp.before.max.ms or message.timestamp.after.max.ms"
    ),
    _E.UNSUPPORTED_SASL_MECHANISM: _Row(
        "the broker does not offer this SASL mechanism", AuthenticationError
    ),
    _E.ILLEGAL_SASL_STATE: _Row(
        "the request does not fit the state of authentication", AuthenticationError
    ),
    _E.UNSUPPORTED_VERSION: _Row("the broker does not support this version of the request"),
    _E.TOPIC_ALREADY_EXISTS: _Row("a topic of that name exists", TopicAlreadyExistsError),
    _E.INVALID_PARTITIONS: _Row("the number of partitions is not valid"),
    _E.INVALID_REPLICATION_FACTOR: _Row(
        "the replication factor is not valid, or larger than the number of brokers"
    ),
    _E.INVALID_REPLICA_ASSIGNMENT: _Row("the replica assignment is not valid"),
    _E.INVALID_CONFIG: _Row("a topic or broker setting is not valid"),
    _E.NOT_CONTROLLER: _Row("the broker is not the controller", _B, _R, _M),
    _E.INVALID_REQUEST: _Row("the broker finds the request malformed"),
    _E.UNSUPPORTED_FOR_MESSAGE_FORMAT: _Row("the topic's message format is too old for this"),
    _E.POLICY_VIOLATION: _Row("a policy of the broker forbids this"),
    _E.OUT_OF_ORDER_SEQUENCE_NUMBER: _Row(
        "the batch's sequence number is out of order", OutOfOrderSequenceError
    ),
    _E.DUPLICATE_SEQUENCE_NUMBER: _Row("the broker has this batch already", DuplicateSequenceError),
    _E.INVALID_PRODUCER_EPOCH: _Row(
        "a newer producer of the same id is at work", ProducerFencedError
    ),
    _E.INVALID_TXN_STATE: _Row("the transaction is in a state that does not allow this"),
    _E.INVALID_PRODUCER_ID_MAPPING: _Row(
        "the transactional id has another producer id, or none any more: it expires after "
        "transactional.id.expiration.ms"
    ),
    _E.INVALID_TRANSACTION_TIMEOUT: _Row(
        "transaction_timeout_ms is above the broker's transaction.max.timeout.ms"
    ),
    _E.CONCURRENT_TRANSACTIONS: _Row("the last transaction is still being finished", _B, _R),
    _E.TRANSACTION_COORDINATOR_FENCED: _Row("the transaction coordinator moved"),
    _E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: _Row(
        "not authorized for the transactional id", AuthorizationError
    ),
    _E.SECURITY_DISABLED: _Row("the broker has no authorizer"),
    _E.OPERATION_NOT_ATTEMPTED: _Row("not attempted, because another part of the request failed"),
    _E.KAFKA_STORAGE_ERROR: _Row("the broker could not read or write its disk", _B, _R, _M),
    _E.LOG_DIR_NOT_FOUND: _Row("the log directory does not exist"),
    _E.SASL_AUTHENTICATION_FAILED: _Row(
        "the broker did not accept the credentials", AuthenticationError
    ),
    _E.UNKNOWN_PRODUCER_ID: _Row(
        "the broker has lost this producer's state", UnknownProducerIdError
    ),
    _E.REASSIGNMENT_IN_PROGRESS: _Row("a reassignment of the partition is under way"),
    _E.DELEGATION_TOKEN_AUTH_DISABLED: _Row("delegation tokens are off"),
    _E.DELEGATION_TOKEN_NOT_FOUND: _Row("no such delegation token"),
    _E.DELEGATION_TOKEN_OWNER_MISMATCH: _Row("the delegation token belongs to another principal"),
    _E.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED: _Row(
        "delegation tokens are not allowed on this connection"
    ),
    _E.DELEGATION_TOKEN_AUTHORIZATION_FAILED: _Row(
        "not authorized for the delegation token", AuthorizationError
    ),
    _E.DELEGATION_TOKEN_EXPIRED: _Row("the delegation token has expired"),
    _E.INVALID_PRINCIPAL_TYPE: _Row("the principal type is not valid"),
    _E.NON_EMPTY_GROUP: _Row("the group has members"),
    _E.GROUP_ID_NOT_FOUND: _Row("no group of that id exists", GroupIdNotFoundError),
    _E.FETCH_SESSION_ID_NOT_FOUND: _Row(
        "the broker has dropped the fetch session", FetchSessionError, _R
    ),
    _E.INVALID_FETCH_SESSION_EPOCH: _Row(
        "the fetch session's epoch is not the next one", FetchSessionError, _R
    ),
    _E.LISTENER_NOT_FOUND: _Row("the leader has no listener of this name", _B, _R, _M),
    _E.TOPIC_DELETION_DISABLED: _Row("the broker does not allow topics to be deleted"),
    _E.FENCED_LEADER_EPOCH: _Row(
        "the leader epoch is older than the broker's", NotLeaderError, _R, _M
    ),
    _E.UNKNOWN_LEADER_EPOCH: _Row(
        "the leader epoch is newer than the broker's", NotLeaderError, _R, _M
    ),
    _E.UNSUPPORTED_COMPRESSION_TYPE: _Row("the broker does not support the compression type"),
    _E.STALE_BROKER_EPOCH: _Row("the broker's epoch is stale"),
    _E.OFFSET_NOT_AVAILABLE: _Row(
        "the new leader does not know its high watermark yet", _B, _R, _M
    ),
    _E.MEMBER_ID_REQUIRED: _Row("the member has to join again with the id it was given"),
    _E.PREFERRED_LEADER_NOT_AVAILABLE: _Row("the preferred leader is not available", _B, _R, _M),
    _E.GROUP_MAX_SIZE_REACHED: _Row("the group is full", GroupFullError),
    _E.FENCED_INSTANCE_ID: _Row(
        "another member with the same group_instance_id has taken over", FencedInstanceIdError
    ),
    _E.ELIGIBLE_LEADERS_NOT_AVAILABLE: _Row("no eligible leader is available", _B, _R, _M),
    _E.ELECTION_NOT_NEEDED: _Row("no election is needed", _B, _R, _M),
    _E.NO_REASSIGNMENT_IN_PROGRESS: _Row("no reassignment is under way"),
    _E.GROUP_SUBSCRIBED_TO_TOPIC: _Row("members of the group subscribe to the topic"),
    _E.INVALID_RECORD: _Row("the broker refused a record"),
    _E.UNSTABLE_OFFSET_COMMIT: _Row(
        "offsets of an open transaction are pending", UnstableOffsetCommitError, _R
    ),
    _E.THROTTLING_QUOTA_EXCEEDED: _Row("a quota of the broker is used up", _B, _R),
    _E.PRODUCER_FENCED: _Row(
        "a newer producer with the same transactional id is at work", ProducerFencedError
    ),
    _E.RESOURCE_NOT_FOUND: _Row("no such resource"),
    _E.DUPLICATE_RESOURCE: _Row("the request names a resource twice"),
    _E.UNACCEPTABLE_CREDENTIAL: _Row("the credential is not acceptable"),
    _E.INCONSISTENT_VOTER_SET: _Row("the voter sets differ"),
    _E.INVALID_UPDATE_VERSION: _Row("the update version is not valid"),
    _E.FEATURE_UPDATE_FAILED: _Row("the feature could not be updated"),
    _E.PRINCIPAL_DESERIALIZATION_FAILURE: _Row("the principal could not be read"),
    _E.SNAPSHOT_NOT_FOUND: _Row("the snapshot does not exist"),
    _E.POSITION_OUT_OF_RANGE: _Row("the position is outside the snapshot"),
    _E.UNKNOWN_TOPIC_ID: _Row(
        "the broker does not know this topic id", UnknownTopicOrPartitionError, _R, _M
    ),
    _E.DUPLICATE_BROKER_REGISTRATION: _Row("another broker has this id"),
    _E.BROKER_ID_NOT_REGISTERED: _Row("no broker has this id"),
    _E.INCONSISTENT_TOPIC_ID: _Row(
        "the topic id differs from the log's", UnknownTopicOrPartitionError, _R, _M
    ),
    _E.INCONSISTENT_CLUSTER_ID: _Row("the cluster id differs"),
    _E.TRANSACTIONAL_ID_NOT_FOUND: _Row("no such transactional id"),
    _E.FETCH_SESSION_TOPIC_ID_ERROR: _Row(
        "the fetch session mixes topic ids", FetchSessionError, _R, _M
    ),
    _E.INELIGIBLE_REPLICA: _Row("the replica is not eligible"),
    _E.NEW_LEADER_ELECTED: _Row("a new leader was elected"),
    _E.OFFSET_MOVED_TO_TIERED_STORAGE: _Row(
        "the offset has moved to tiered storage", OffsetMovedToTieredStorageError
    ),
    _E.FENCED_MEMBER_EPOCH: _Row("the member epoch is fenced", MemberFencedError),
    _E.UNRELEASED_INSTANCE_ID: _Row(
        "another member still holds this group_instance_id", FencedInstanceIdError
    ),
    _E.UNSUPPORTED_ASSIGNOR: _Row(
        "the group does not support this assignor", UnsupportedAssignorError
    ),
    _E.STALE_MEMBER_EPOCH: _Row("the member epoch is stale", MemberFencedError),
    _E.MISMATCHED_ENDPOINT_TYPE: _Row(
        "the request went to the wrong kind of endpoint: a broker's or a controller's"
    ),
    _E.UNSUPPORTED_ENDPOINT_TYPE: _Row("the broker does not know this kind of endpoint"),
    _E.UNKNOWN_CONTROLLER_ID: _Row("no controller has this id"),
    _E.UNKNOWN_SUBSCRIPTION_ID: _Row("the telemetry subscription is unknown"),
    _E.TELEMETRY_TOO_LARGE: _Row("the telemetry is too large"),
    _E.INVALID_REGISTRATION: _Row("the registration is not valid"),
    _E.TRANSACTION_ABORTABLE: _Row("the transaction has to be aborted"),
    _E.INVALID_RECORD_STATE: _Row("the record is in a state that does not allow this"),
    _E.SHARE_SESSION_NOT_FOUND: _Row(
        "the broker has dropped the share session", ShareSessionError, _R
    ),
    _E.INVALID_SHARE_SESSION_EPOCH: _Row(
        "the share session's epoch is not the next one", ShareSessionError, _R
    ),
    _E.FENCED_STATE_EPOCH: _Row("the share coordinator has a newer state epoch"),
    _E.INVALID_VOTER_KEY: _Row("the voter key does not match the receiving replica's"),
    _E.DUPLICATE_VOTER: _Row("the voter is in the set already"),
    _E.VOTER_NOT_FOUND: _Row("the voter is not in the set"),
    _E.INVALID_REGULAR_EXPRESSION: _Row(
        "the regular expression is not valid", InvalidRegularExpressionError
    ),
    _E.REBOOTSTRAP_REQUIRED: _Row("the client has to bootstrap again", _B, _R, _M, _C),
    _E.STREAMS_INVALID_TOPOLOGY: _Row("the streams topology is not valid"),
    _E.STREAMS_INVALID_TOPOLOGY_EPOCH: _Row("the streams topology epoch is not valid"),
    _E.STREAMS_TOPOLOGY_FENCED: _Row("the streams topology epoch is outdated"),
    _E.SHARE_SESSION_LIMIT_REACHED: _Row(
        "the broker has no room for another share session", ShareSessionError, _R
    ),
    _E.GROUP_DELETION_FAILED: _Row("the group could not be deleted"),
    _E.STREAMS_TOPOLOGY_DESCRIPTION_UPDATE_FAILED: _Row(
        "the streams topology's description could not be updated"
    ),
    _E.CONTROLLER_ID_NOT_REGISTERED: _Row("no controller is registered with this id"),
}


def from_code(
    code: ErrorCode | int, detail: str = "", *, operation: str = ""
) -> BrokerResponseError:
    """Return the exception for a broker's error ``code``, with the flags of the table.

    An unknown code is not retriable.

    Args:
        code: The code; not ``NONE``.
        detail: The topic or partition, or the broker's own message.
        operation: The operation of Kafka's ACLs that the request needs.
    """
    row = _TABLE.get(code, _UNKNOWN)
    needs = operation if row.cls is AuthorizationError else ""
    detail += f" (it needs the operation {needs})" if needs else ""
    error = row.cls(
        code, _CODES[code].name if code in _CODES else f"ERROR_{code}", row.text, detail
    )
    error.retriable = row.retriable
    error.refresh_metadata = row.metadata
    error.refresh_coordinator = row.coordinator
    error.fatal = code in _FATAL
    if isinstance(error, AuthorizationError):
        error.operation = needs
    return error
