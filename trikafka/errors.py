"""Every exception that trikafka raises, and the one table of broker error codes.

Owns the meaning of an error: whether a call may try again, and what must be looked up anew before it does. Managers never
compare error codes: they call :func:`from_code` and look at the three flags of what comes back.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import trio


class TrikafkaError(Exception):
    """The root of all errors that trikafka raises.

    ``retriable`` tells whether the same call may succeed when it is made again; ``refresh_metadata`` and
    ``refresh_coordinator`` tell what has to be looked up before it is. A call gives up after ``patience`` seconds of the
    same error, even before its own limit: a topic that does not exist after that is not about to appear.
    """

    patience: float = math.inf
    retriable: bool = False
    refresh_metadata: bool = False
    refresh_coordinator: bool = False

    def __reduce__(self) -> tuple[Any, ...]:
        # Constructors here take parts, not the message: without this no copy could be made, and none sent to another process.
        return _remake, (type(self), self.args), self.__dict__


def _remake(cls: type[TrikafkaError], args: tuple[Any, ...]) -> TrikafkaError:
    error = cls.__new__(cls, *args)
    error.args = args
    return error


class ConfigurationError(TrikafkaError, ValueError):
    """A setting, an address or an argument is wrong. Raised before any I/O."""


class PluginError(TrikafkaError):
    """A plugin failed to load, returned something of the wrong shape, or does not know what was asked of it."""


class IllegalStateError(TrikafkaError, RuntimeError):
    """The call does not fit what the client is doing, such as seeking a partition that is not assigned."""


class KafkaTimeoutError(TrikafkaError, trio.TooSlowError):
    """A call did not finish within its limit (seed 000: the limit spans all attempts).

    Attributes: ``call`` (its name), ``limit`` (seconds), ``attempts``, ``last_error`` (also chained as the cause).
    """

    def __init__(self, call: str, limit: float, attempts: int = 1, last_error: BaseException | None = None) -> None:
        self.call, self.limit, self.attempts, self.last_error = call, limit, attempts, last_error
        tries = "1 attempt" if attempts == 1 else f"{attempts} attempts"
        why = f"; the last one failed with: {last_error}" if last_error is not None else ""
        super().__init__(f"{call} did not finish within {limit:g} s ({tries}{why})")


class DeliveryTimeoutError(KafkaTimeoutError):
    """A record was not acknowledged within ``delivery_timeout_ms`` (KIP-91). It may or may not be in the log."""


class RequestTimedOutError(TrikafkaError):
    """One request got no answer in its share of the call's time. The call's deadline decides whether to go on."""

    retriable = True
    refresh_metadata = True
    refresh_coordinator = True


class KafkaConnectionError(TrikafkaError, ConnectionError):
    """A connection to a broker could not be made or was lost."""

    retriable = True
    refresh_metadata = True
    refresh_coordinator = True


class BootstrapError(TrikafkaError, ConnectionError):
    """None of the bootstrap addresses answered as a Kafka broker. The message lists each address with its cause."""


class ProtocolError(TrikafkaError):
    """The peer sent bytes that are not Kafka's protocol, or answered what was not asked."""


class UnsupportedVersionError(TrikafkaError):
    """The broker and trikafka have no version of a request in common."""


class CorruptRecordError(TrikafkaError):
    """Fetched bytes are not valid records. Attributes: ``topic``, ``partition``, ``offset`` (where it is known)."""

    def __init__(self, reason: str, topic: str | None = None, partition: int | None = None, offset: int | None = None) -> None:
        self.reason, self.topic, self.partition, self.offset = reason, topic, partition, offset
        where = f" in {topic}-{partition} at offset {offset}" if topic is not None else ""
        super().__init__(f"corrupt records{where}: {reason}")


class UnsupportedCompressionError(TrikafkaError):
    """A compression codec is unknown, or the plugin for it is missing."""


class NoOffsetForPartitionError(TrikafkaError):
    """A partition has no committed offset, and ``auto_offset_reset='none'`` forbids choosing one."""


class OffsetOutOfRangeError(TrikafkaError):
    """A position lies outside the partition's log, and ``auto_offset_reset='none'`` forbids choosing another."""


class CommitFailedError(TrikafkaError):
    """The member is no longer in the group (or in that generation), so its offsets were not committed.

    Somebody else may be processing the same partitions already. Seen after ``max_poll_interval_ms`` (KIP-62).
    """


class RecordTooLargeError(TrikafkaError):
    """One record is larger than ``max_request_size`` or than the broker accepts."""


class ArrowDeliveryError(TrikafkaError):
    """Not all rows of a table were delivered. What went wrong first is chained as the cause, and in ``error``.

    Attributes: ``rows`` of the table, of which ``delivered`` are in the log, ``failed`` are surely not (they were refused, or
    never sent), and of ``unknown`` nobody can tell, such as those whose time was up while a broker had them.
    """

    def __init__(self, topic: str, rows: int, delivered: int, unknown: int, error: Exception) -> None:
        self.topic, self.rows, self.delivered, self.unknown, self.error = topic, rows, delivered, unknown, error
        self.failed = rows - delivered - unknown
        counts = f"{delivered} of {rows} rows were delivered, {self.failed} failed, {unknown} may be in the log"
        super().__init__(f"a table for {topic!r}: {counts}; the first failure: {error}")


class ClientFailedError(TrikafkaError):
    """A background task of the client failed; the cause is chained."""


class ExportError(TrikafkaError):
    """An export could not be carried out. What had been published before stays valid."""


class BrokerResponseError(TrikafkaError):
    """A broker answered with an error code. Attributes: ``code``, ``name`` and the three flags of the table."""

    def __init__(self, code: int, name: str, text: str, detail: str = "") -> None:
        self.code, self.name = code, name
        super().__init__(f"{text} [{name}]" + (f": {detail}" if detail else ""))


class UnknownTopicOrPartitionError(BrokerResponseError):
    """The topic or partition does not exist, or the broker does not know of it yet (metadata takes a moment to spread)."""

    patience = 3.0


class InvalidTopicError(BrokerResponseError, ValueError):
    """The name is not a valid topic name."""


class TopicAlreadyExistsError(BrokerResponseError):
    """The topic to create exists."""


class AuthorizationError(BrokerResponseError):
    """The principal may not do this."""


class AuthenticationError(BrokerResponseError):
    """The broker did not accept the credentials."""


class NotLeaderError(BrokerResponseError):
    """The broker does not lead the partition, or not in that leader epoch."""


class CoordinatorError(BrokerResponseError):
    """The coordinator is moving, loading or not there yet."""


class RebalanceInProgressError(BrokerResponseError):
    """The group rebalances; the member has to join again."""


class MemberFencedError(BrokerResponseError):
    """The group does not know this member (any more), or not in this generation."""


class OutOfOrderSequenceError(BrokerResponseError):
    """The broker got a batch with a sequence number that does not follow the last one."""


class DuplicateSequenceError(BrokerResponseError):
    """The broker has this batch already; its offset is not known any more."""


class ProducerFencedError(BrokerResponseError):
    """A newer producer with the same transactional id, or a newer epoch, has taken over."""


class UnknownProducerIdError(BrokerResponseError):
    """The broker has lost what it knew of this producer id."""


class MessageTooLargeError(BrokerResponseError, RecordTooLargeError):
    """The broker refused a batch as larger than ``max.message.bytes``."""


class FetchSessionError(BrokerResponseError):
    """The fetch session is unknown to the broker, or its epoch is not the next one."""


class _Row(NamedTuple):
    name: str
    text: str
    cls: type[BrokerResponseError] = BrokerResponseError
    retriable: bool = False
    metadata: bool = False
    coordinator: bool = False


_B, _R, _M, _C = BrokerResponseError, True, True, True
_TABLE: dict[int, _Row] = {
    -1: _Row("UNKNOWN_SERVER_ERROR", "the broker failed in a way it does not name"),
    1: _Row("OFFSET_OUT_OF_RANGE", "the offset is outside the partition's log"),
    2: _Row("CORRUPT_MESSAGE", "the broker found the records corrupt", _B, _R),
    3: _Row(
        "UNKNOWN_TOPIC_OR_PARTITION", "the broker does not know this topic or partition", UnknownTopicOrPartitionError, _R, _M
    ),
    4: _Row("INVALID_FETCH_SIZE", "the fetch size is not valid"),
    5: _Row("LEADER_NOT_AVAILABLE", "the partition has no leader at the moment", NotLeaderError, _R, _M),
    6: _Row("NOT_LEADER_OR_FOLLOWER", "the broker does not lead this partition", NotLeaderError, _R, _M),
    7: _Row("REQUEST_TIMED_OUT", "the request timed out inside the broker", _B, _R),
    8: _Row("BROKER_NOT_AVAILABLE", "the broker is not available", _B, _R, _M, _C),
    9: _Row("REPLICA_NOT_AVAILABLE", "the replica is not available", _B, _R, _M),
    10: _Row("MESSAGE_TOO_LARGE", "the broker refused records larger than its max.message.bytes", MessageTooLargeError),
    11: _Row("STALE_CONTROLLER_EPOCH", "the controller moved"),
    12: _Row("OFFSET_METADATA_TOO_LARGE", "the metadata string of the committed offset is too long"),
    13: _Row("NETWORK_EXCEPTION", "the broker lost a connection of its own", _B, _R, _M),
    14: _Row("COORDINATOR_LOAD_IN_PROGRESS", "the coordinator is loading", CoordinatorError, _R),
    15: _Row("COORDINATOR_NOT_AVAILABLE", "the coordinator is not available", CoordinatorError, _R, False, _C),
    16: _Row("NOT_COORDINATOR", "the broker is not the coordinator", CoordinatorError, _R, False, _C),
    17: _Row("INVALID_TOPIC_EXCEPTION", "the topic's name is not valid", InvalidTopicError),
    18: _Row("RECORD_LIST_TOO_LARGE", "the batch is larger than the segment size", MessageTooLargeError),
    19: _Row("NOT_ENOUGH_REPLICAS", "fewer in-sync replicas than min.insync.replicas", _B, _R, _M),
    20: _Row("NOT_ENOUGH_REPLICAS_AFTER_APPEND", "written, but to fewer in-sync replicas than required", _B, _R, _M),
    21: _Row("INVALID_REQUIRED_ACKS", "acks must be 0, 1 or all"),
    22: _Row("ILLEGAL_GENERATION", "the group has moved on to another generation", MemberFencedError),
    23: _Row("INCONSISTENT_GROUP_PROTOCOL", "the group's members have no assignor in common with this one"),
    24: _Row("INVALID_GROUP_ID", "the group id is not valid"),
    25: _Row("UNKNOWN_MEMBER_ID", "the group does not know this member", MemberFencedError),
    26: _Row("INVALID_SESSION_TIMEOUT", "session_timeout_ms is outside the broker's limits"),
    27: _Row("REBALANCE_IN_PROGRESS", "the group rebalances", RebalanceInProgressError),
    28: _Row("INVALID_COMMIT_OFFSET_SIZE", "the committed offset's metadata is too large"),
    29: _Row("TOPIC_AUTHORIZATION_FAILED", "not authorized for the topic", AuthorizationError),
    30: _Row("GROUP_AUTHORIZATION_FAILED", "not authorized for the group", AuthorizationError),
    31: _Row("CLUSTER_AUTHORIZATION_FAILED", "not authorized for the cluster", AuthorizationError),
    32: _Row("INVALID_TIMESTAMP", "a record's timestamp is out of the allowed range"),
    33: _Row("UNSUPPORTED_SASL_MECHANISM", "the broker does not offer this SASL mechanism", AuthenticationError),
    34: _Row("ILLEGAL_SASL_STATE", "the request does not fit the state of authentication", AuthenticationError),
    35: _Row("UNSUPPORTED_VERSION", "the broker does not support this version of the request"),
    36: _Row("TOPIC_ALREADY_EXISTS", "a topic of that name exists", TopicAlreadyExistsError),
    37: _Row("INVALID_PARTITIONS", "the number of partitions is not valid"),
    38: _Row("INVALID_REPLICATION_FACTOR", "the replication factor is not valid, or larger than the number of brokers"),
    39: _Row("INVALID_REPLICA_ASSIGNMENT", "the replica assignment is not valid"),
    40: _Row("INVALID_CONFIG", "a topic or broker setting is not valid"),
    41: _Row("NOT_CONTROLLER", "the broker is not the controller", _B, _R, _M),
    42: _Row("INVALID_REQUEST", "the broker finds the request malformed"),
    43: _Row("UNSUPPORTED_FOR_MESSAGE_FORMAT", "the topic's message format is too old for this"),
    44: _Row("POLICY_VIOLATION", "a policy of the broker forbids this"),
    45: _Row("OUT_OF_ORDER_SEQUENCE_NUMBER", "the batch's sequence number is out of order", OutOfOrderSequenceError),
    46: _Row("DUPLICATE_SEQUENCE_NUMBER", "the broker has this batch already", DuplicateSequenceError),
    47: _Row("INVALID_PRODUCER_EPOCH", "a newer producer of the same id is at work", ProducerFencedError),
    48: _Row("INVALID_TXN_STATE", "the transaction is in a state that does not allow this"),
    49: _Row("INVALID_PRODUCER_ID_MAPPING", "the transactional id belongs to another producer id", ProducerFencedError),
    50: _Row("INVALID_TRANSACTION_TIMEOUT", "the transaction timeout is above the broker's limit"),
    51: _Row("CONCURRENT_TRANSACTIONS", "the last transaction is still being finished", _B, _R),
    52: _Row("TRANSACTION_COORDINATOR_FENCED", "the transaction coordinator moved"),
    53: _Row("TRANSACTIONAL_ID_AUTHORIZATION_FAILED", "not authorized for the transactional id", AuthorizationError),
    54: _Row("SECURITY_DISABLED", "the broker has no authorizer"),
    55: _Row("OPERATION_NOT_ATTEMPTED", "not attempted, because another part of the request failed"),
    56: _Row("KAFKA_STORAGE_ERROR", "the broker could not read or write its disk", _B, _R, _M),
    57: _Row("LOG_DIR_NOT_FOUND", "the log directory does not exist"),
    58: _Row("SASL_AUTHENTICATION_FAILED", "the broker did not accept the credentials", AuthenticationError),
    59: _Row("UNKNOWN_PRODUCER_ID", "the broker has lost this producer's state", UnknownProducerIdError),
    60: _Row("REASSIGNMENT_IN_PROGRESS", "a reassignment of the partition is under way"),
    61: _Row("DELEGATION_TOKEN_AUTH_DISABLED", "delegation tokens are off"),
    62: _Row("DELEGATION_TOKEN_NOT_FOUND", "no such delegation token"),
    63: _Row("DELEGATION_TOKEN_OWNER_MISMATCH", "the delegation token belongs to somebody else"),
    64: _Row("DELEGATION_TOKEN_REQUEST_NOT_ALLOWED", "delegation tokens are not allowed on this connection"),
    65: _Row("DELEGATION_TOKEN_AUTHORIZATION_FAILED", "not authorized for the delegation token", AuthorizationError),
    66: _Row("DELEGATION_TOKEN_EXPIRED", "the delegation token has expired"),
    67: _Row("INVALID_PRINCIPAL_TYPE", "the principal type is not valid"),
    68: _Row("NON_EMPTY_GROUP", "the group has members"),
    69: _Row("GROUP_ID_NOT_FOUND", "no group of that id exists"),
    70: _Row("FETCH_SESSION_ID_NOT_FOUND", "the broker has dropped the fetch session", FetchSessionError, _R),
    71: _Row("INVALID_FETCH_SESSION_EPOCH", "the fetch session's epoch is not the next one", FetchSessionError, _R),
    72: _Row("LISTENER_NOT_FOUND", "the leader has no listener of this name", _B, _R, _M),
    73: _Row("TOPIC_DELETION_DISABLED", "the broker does not allow topics to be deleted"),
    74: _Row("FENCED_LEADER_EPOCH", "the leader epoch is older than the broker's", NotLeaderError, _R, _M),
    75: _Row("UNKNOWN_LEADER_EPOCH", "the leader epoch is newer than the broker's", NotLeaderError, _R, _M),
    76: _Row("UNSUPPORTED_COMPRESSION_TYPE", "the broker does not support the compression type"),
    77: _Row("STALE_BROKER_EPOCH", "the broker's epoch is stale"),
    78: _Row("OFFSET_NOT_AVAILABLE", "the new leader does not know its high watermark yet", _B, _R, _M),
    79: _Row("MEMBER_ID_REQUIRED", "the member has to join again with the id it was given"),
    80: _Row("PREFERRED_LEADER_NOT_AVAILABLE", "the preferred leader is not available", _B, _R, _M),
    81: _Row("GROUP_MAX_SIZE_REACHED", "the group is full"),
    82: _Row("FENCED_INSTANCE_ID", "another member with the same group_instance_id has taken over"),
    83: _Row("ELIGIBLE_LEADERS_NOT_AVAILABLE", "no eligible leader is available", _B, _R, _M),
    84: _Row("ELECTION_NOT_NEEDED", "no election is needed", _B, _R, _M),
    85: _Row("NO_REASSIGNMENT_IN_PROGRESS", "no reassignment is under way"),
    86: _Row("GROUP_SUBSCRIBED_TO_TOPIC", "members of the group subscribe to the topic"),
    87: _Row("INVALID_RECORD", "the broker refused a record"),
    88: _Row("UNSTABLE_OFFSET_COMMIT", "offsets of an open transaction are pending", _B, _R),
    89: _Row("THROTTLING_QUOTA_EXCEEDED", "a quota of the broker is used up", _B, _R),
    90: _Row("PRODUCER_FENCED", "a newer producer with the same transactional id is at work", ProducerFencedError),
    91: _Row("RESOURCE_NOT_FOUND", "no such resource"),
    92: _Row("DUPLICATE_RESOURCE", "the request names a resource twice"),
    93: _Row("UNACCEPTABLE_CREDENTIAL", "the credential is not acceptable"),
    94: _Row("INCONSISTENT_VOTER_SET", "the voter sets differ"),
    95: _Row("INVALID_UPDATE_VERSION", "the update version is not valid"),
    96: _Row("FEATURE_UPDATE_FAILED", "the feature could not be updated"),
    97: _Row("PRINCIPAL_DESERIALIZATION_FAILURE", "the principal could not be read"),
    98: _Row("SNAPSHOT_NOT_FOUND", "the snapshot does not exist"),
    99: _Row("POSITION_OUT_OF_RANGE", "the position is outside the snapshot"),
    100: _Row("UNKNOWN_TOPIC_ID", "the broker does not know this topic id", UnknownTopicOrPartitionError, _R, _M),
    101: _Row("DUPLICATE_BROKER_REGISTRATION", "another broker has this id"),
    102: _Row("BROKER_ID_NOT_REGISTERED", "no broker has this id"),
    103: _Row("INCONSISTENT_TOPIC_ID", "the topic id differs from the log's", UnknownTopicOrPartitionError, _R, _M),
    104: _Row("INCONSISTENT_CLUSTER_ID", "the cluster id differs"),
    105: _Row("TRANSACTIONAL_ID_NOT_FOUND", "no such transactional id"),
    106: _Row("FETCH_SESSION_TOPIC_ID_ERROR", "the fetch session mixes topic ids", FetchSessionError, _R, _M),
    107: _Row("INELIGIBLE_REPLICA", "the replica is not eligible"),
    108: _Row("NEW_LEADER_ELECTED", "a new leader was elected"),
    109: _Row("OFFSET_MOVED_TO_TIERED_STORAGE", "the offset has moved to tiered storage"),
    110: _Row("FENCED_MEMBER_EPOCH", "the member epoch is fenced", MemberFencedError),
    111: _Row("UNRELEASED_INSTANCE_ID", "another member still holds this group_instance_id"),
    112: _Row("UNSUPPORTED_ASSIGNOR", "the group does not support this assignor"),
    113: _Row("STALE_MEMBER_EPOCH", "the member epoch is stale", MemberFencedError),
    114: _Row("MISMATCHED_ENDPOINT_TYPE", "the request went to the wrong kind of endpoint: a broker's or a controller's"),
    115: _Row("UNSUPPORTED_ENDPOINT_TYPE", "the broker does not know this kind of endpoint"),
    116: _Row("UNKNOWN_CONTROLLER_ID", "no controller has this id"),
    117: _Row("UNKNOWN_SUBSCRIPTION_ID", "the telemetry subscription is unknown"),
    118: _Row("TELEMETRY_TOO_LARGE", "the telemetry is too large"),
    119: _Row("INVALID_REGISTRATION", "the registration is not valid"),
    120: _Row("TRANSACTION_ABORTABLE", "the transaction has to be aborted"),
    121: _Row("INVALID_RECORD_STATE", "the record is in a state that does not allow this"),
    122: _Row("SHARE_SESSION_NOT_FOUND", "the broker has dropped the share session", _B, _R),
    123: _Row("INVALID_SHARE_SESSION_EPOCH", "the share session's epoch is not the next one", _B, _R),
    124: _Row("FENCED_STATE_EPOCH", "the share coordinator has a newer state epoch"),
    125: _Row("INVALID_VOTER_KEY", "the voter key does not match the receiving replica's"),
    126: _Row("DUPLICATE_VOTER", "the voter is in the set already"),
    127: _Row("VOTER_NOT_FOUND", "the voter is not in the set"),
    128: _Row("INVALID_REGULAR_EXPRESSION", "the regular expression is not valid"),
    129: _Row("REBOOTSTRAP_REQUIRED", "the client has to bootstrap anew", _B, _R, _M),
    130: _Row("STREAMS_INVALID_TOPOLOGY", "the streams topology is not valid"),
    131: _Row("STREAMS_INVALID_TOPOLOGY_EPOCH", "the streams topology epoch is not valid"),
    132: _Row("STREAMS_TOPOLOGY_FENCED", "the streams topology epoch is outdated"),
    133: _Row("SHARE_SESSION_LIMIT_REACHED", "the broker has no room for another share session", _B, _R),
    134: _Row("GROUP_DELETION_FAILED", "the group could not be deleted"),
    135: _Row("STREAMS_TOPOLOGY_DESCRIPTION_UPDATE_FAILED", "the streams topology's description could not be updated"),
    136: _Row("CONTROLLER_ID_NOT_REGISTERED", "no controller is registered with this id"),
}


def from_code(code: int, detail: str = "") -> BrokerResponseError:
    """Return the exception for a broker's error ``code`` (not 0), with the flags of the table.

    ``detail`` says where it happened (a topic, a partition, the broker's own message). An unknown code is not retriable.
    """
    row = _TABLE.get(code) or _Row(f"ERROR_{code}", "the broker answered with a code that trikafka does not know")
    error = row.cls(code, row.name, row.text, detail)
    error.retriable, error.refresh_metadata, error.refresh_coordinator = row.retriable, row.metadata, row.coordinator
    return error
