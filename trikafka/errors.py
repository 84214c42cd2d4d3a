"""Every exception that trikafka raises, and the one table of broker error codes.

Owns the meaning of an error: whether a call may try again, and what must be looked up anew before it does. Managers never
compare error codes: they call :func:`from_code` and look at the three flags of what comes back.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import trio

from .error_codes import ErrorCode as ErrorCode

if TYPE_CHECKING:
    from .types import OffsetAndMetadata, TopicPartition


class TrikafkaError(Exception):
    """The root of all errors that trikafka raises.

    ``retriable`` tells whether the same call may succeed when it is made again; ``refresh_metadata`` and
    ``refresh_coordinator`` tell what has to be looked up before it is. A call gives up after ``patience`` seconds of the
    same error, even before its own limit: a topic that does not exist after that is not about to appear. ``code`` is the
    broker's, as an :class:`ErrorCode` where trikafka knows it; ``None`` where no broker said so.
    """

    code: int | None = None
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


class DamagedResponseError(ProtocolError):
    """A response came that cannot be what the broker wrote: cut, too long, of impossible lengths, or not what was asked.

    A connection that carries such bytes is as good as lost; so the call is tried again, as after a lost one. While a client
    opens it still ends in :exc:`BootstrapError`: the port may not be a Kafka broker's.
    """

    retriable = True
    refresh_metadata = True
    refresh_coordinator = True


class UnsupportedVersionError(TrikafkaError):
    """The broker and trikafka have no version of a request in common."""


class TelemetryNotSupportedError(UnsupportedVersionError):
    """The broker takes no metrics from clients (KIP-714), so it has no instance id to give. Nothing to try again."""


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


class LogTruncationError(OffsetOutOfRangeError):
    """Records that were read are not in the log any more: a leader without them took over (KIP-320).

    Attributes: ``partition``; ``position``, the offset that was to be read next; ``diverging``, up to where what was read and
    what is in the log agree (its ``offset`` is the first that may differ), ``None`` if the broker does not know.
    """

    def __init__(self, partition: TopicPartition, position: int, diverging: OffsetAndMetadata | None = None) -> None:
        self.partition, self.position, self.diverging = partition, position, diverging
        agree = "nobody knows since where" if diverging is None else f"what was read from offset {diverging.offset} on is gone"
        super().__init__(
            f"the log of {partition} was truncated below the position {position}: {agree}; seek, or set auto_offset_reset"
        )


class DeserializationError(TrikafkaError):
    """A record's key or value could not be turned into what was asked for. The deserializer's error is the cause.

    Attributes: ``topic``, ``partition``, ``offset``; ``part`` ("key" or "value"); the raw ``key`` and ``value``, which are
    not in the text. The position stands at the record: seek to ``offset + 1`` to step over it.
    """

    def __init__(
        self, topic: str, partition: int, offset: int, part: Literal["key", "value"], key: bytes | None, value: bytes | None
    ) -> None:
        self.topic, self.partition, self.offset, self.part, self.key, self.value = topic, partition, offset, part, key, value
        super().__init__(f"the {part} of the record at offset {offset} of {topic}-{partition} could not be deserialized")


class CommitFailedError(TrikafkaError):
    """The member is no longer in the group (or in that generation), so its offsets were not committed.

    Somebody else may be processing the same partitions already. Seen after ``max_poll_interval_ms`` (KIP-62).
    """


class PollIntervalExceededError(CommitFailedError):
    """The member left its group since the program took longer than ``max_poll_interval_ms`` between two receives (KIP-62).

    Attributes: ``setting`` (what to change), ``interval_ms`` (what it is now).
    """

    setting = "max_poll_interval_ms"

    def __init__(self, interval_ms: int) -> None:
        self.interval_ms = interval_ms
        super().__init__(
            f"more than {self.setting} ({interval_ms} ms) passed without a receive, so the member left its group;"
            f" raise {self.setting}, or take fewer records at a time"
        )


class PartitionNotOwnedError(CommitFailedError):
    """Offsets were to be committed of partitions that this member does not own (any more): another's could be overwritten.

    Attribute: ``partitions``. A consumer without a subscription, or the admin client, may set them all the same.
    """

    def __init__(self, partitions: Iterable[TopicPartition]) -> None:
        self.partitions = tuple(partitions)
        super().__init__(
            f"not committed, for this member does not own {', '.join(map(str, self.partitions))}, and might rewind the offsets of"
            " who does; to set a group's offsets by hand use a consumer without a subscription, or the admin client"
        )


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
        self.code: int = _CODES.get(code, code)
        self.name = name
        super().__init__(f"{text} [{name}]" + (f": {detail}" if detail else ""))


_CODES: dict[int, ErrorCode] = {code.value: code for code in ErrorCode}


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
    """The broker did not accept who this client says it is. It is never tried again by itself."""


class HandshakeError(AuthenticationError):
    """TLS or SASL ended without a broker's code: a certificate that is not trusted or not there, no token. ``code`` is ``None``."""

    name = ""

    def __init__(self, text: str) -> None:
        TrikafkaError.__init__(self, text)


class NotLeaderError(BrokerResponseError):
    """The broker does not lead the partition, or not in that leader epoch."""


class CoordinatorError(BrokerResponseError):
    """The coordinator is moving, loading or not there yet."""


class RebalanceInProgressError(BrokerResponseError):
    """The group rebalances; the member has to join again."""


class MemberFencedError(BrokerResponseError):
    """The group does not know this member (any more), or not in this generation."""


class FencedInstanceIdError(BrokerResponseError):
    """Another member has the same ``group_instance_id``: it took over, or still holds it. Give each process its own."""


class GroupProtocolMismatchError(BrokerResponseError):
    """The group's members have no assignor in common with this one, or the group is not one of consumers."""


class UnsupportedAssignorError(BrokerResponseError):
    """The coordinator does not have the assignor that ``group_remote_assignor`` names (KIP-848)."""


class InvalidRegularExpressionError(BrokerResponseError, ValueError):
    """The broker cannot read a subscription's pattern, which must be in RE2's syntax (KIP-848)."""


class GroupIdNotFoundError(BrokerResponseError):
    """No group of this id exists."""


class GroupFullError(BrokerResponseError):
    """The group has as many members as the broker's ``group.max.size`` allows."""


class UnstableOffsetCommitError(BrokerResponseError):
    """A transaction that is still open has offsets of this partition pending (KIP-447)."""


class OffsetMovedToTieredStorageError(BrokerResponseError):
    """The offset is not on the leader's own disk any more, but in tiered storage (KIP-405)."""


class OutOfOrderSequenceError(BrokerResponseError):
    """The broker got a batch whose sequence number does not follow the last one. An idempotent producer puts that right, but for a
    record behind one given up, if both were sent on a lost connection: it may be in the log, as after :exc:`DeliveryTimeoutError`.
    """


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
    text: str
    cls: type[BrokerResponseError] = BrokerResponseError
    retriable: bool = False
    metadata: bool = False
    coordinator: bool = False


_E, _B, _R, _M, _C = ErrorCode, BrokerResponseError, True, True, True
_UNKNOWN = _Row("the broker answered with a code that trikafka does not know")
_TABLE: dict[int, _Row] = {
    _E.UNKNOWN_SERVER_ERROR: _Row("the broker failed in a way it does not name"),
    _E.OFFSET_OUT_OF_RANGE: _Row("the offset is outside the partition's log"),
    _E.CORRUPT_MESSAGE: _Row("the broker found the records corrupt", _B, _R),
    _E.UNKNOWN_TOPIC_OR_PARTITION: _Row("the broker does not know this topic or partition", UnknownTopicOrPartitionError, _R, _M),
    _E.INVALID_FETCH_SIZE: _Row("the fetch size is not valid"),
    _E.LEADER_NOT_AVAILABLE: _Row("the partition has no leader at the moment", NotLeaderError, _R, _M),
    _E.NOT_LEADER_OR_FOLLOWER: _Row("the broker does not lead this partition", NotLeaderError, _R, _M),
    _E.REQUEST_TIMED_OUT: _Row("the request timed out inside the broker", _B, _R),
    _E.BROKER_NOT_AVAILABLE: _Row("the broker is not available", _B, _R, _M, _C),
    _E.REPLICA_NOT_AVAILABLE: _Row("the replica is not available", _B, _R, _M),
    _E.MESSAGE_TOO_LARGE: _Row("the broker refused records larger than its max.message.bytes", MessageTooLargeError),
    _E.STALE_CONTROLLER_EPOCH: _Row("the controller moved"),
    _E.OFFSET_METADATA_TOO_LARGE: _Row("the metadata string of the committed offset is too long"),
    _E.NETWORK_EXCEPTION: _Row("the broker lost a connection of its own", _B, _R, _M),
    _E.COORDINATOR_LOAD_IN_PROGRESS: _Row("the coordinator is loading", CoordinatorError, _R),
    _E.COORDINATOR_NOT_AVAILABLE: _Row("the coordinator is not available", CoordinatorError, _R, False, _C),
    _E.NOT_COORDINATOR: _Row("the broker is not the coordinator", CoordinatorError, _R, False, _C),
    _E.INVALID_TOPIC_EXCEPTION: _Row("the topic's name is not valid", InvalidTopicError),
    _E.RECORD_LIST_TOO_LARGE: _Row("the batch is larger than the segment size", MessageTooLargeError),
    _E.NOT_ENOUGH_REPLICAS: _Row("fewer in-sync replicas than min.insync.replicas", _B, _R, _M),
    _E.NOT_ENOUGH_REPLICAS_AFTER_APPEND: _Row("written, but to fewer in-sync replicas than required", _B, _R, _M),
    _E.INVALID_REQUIRED_ACKS: _Row("acks must be 0, 1 or all"),
    _E.ILLEGAL_GENERATION: _Row("the group has moved on to another generation", MemberFencedError),
    _E.INCONSISTENT_GROUP_PROTOCOL: _Row(
        "the group's members have no assignor in common with this one", GroupProtocolMismatchError
    ),
    _E.INVALID_GROUP_ID: _Row("the group id is not valid"),
    _E.UNKNOWN_MEMBER_ID: _Row("the group does not know this member", MemberFencedError),
    _E.INVALID_SESSION_TIMEOUT: _Row("session_timeout_ms is outside the broker's limits"),
    _E.REBALANCE_IN_PROGRESS: _Row("the group rebalances", RebalanceInProgressError),
    _E.INVALID_COMMIT_OFFSET_SIZE: _Row("the committed offset's metadata is too large"),
    _E.TOPIC_AUTHORIZATION_FAILED: _Row("not authorized for the topic", AuthorizationError),
    _E.GROUP_AUTHORIZATION_FAILED: _Row("not authorized for the group", AuthorizationError),
    _E.CLUSTER_AUTHORIZATION_FAILED: _Row("not authorized for the cluster", AuthorizationError),
    _E.INVALID_TIMESTAMP: _Row("a record's timestamp is out of the allowed range"),
    _E.UNSUPPORTED_SASL_MECHANISM: _Row("the broker does not offer this SASL mechanism", AuthenticationError),
    _E.ILLEGAL_SASL_STATE: _Row("the request does not fit the state of authentication", AuthenticationError),
    _E.UNSUPPORTED_VERSION: _Row("the broker does not support this version of the request"),
    _E.TOPIC_ALREADY_EXISTS: _Row("a topic of that name exists", TopicAlreadyExistsError),
    _E.INVALID_PARTITIONS: _Row("the number of partitions is not valid"),
    _E.INVALID_REPLICATION_FACTOR: _Row("the replication factor is not valid, or larger than the number of brokers"),
    _E.INVALID_REPLICA_ASSIGNMENT: _Row("the replica assignment is not valid"),
    _E.INVALID_CONFIG: _Row("a topic or broker setting is not valid"),
    _E.NOT_CONTROLLER: _Row("the broker is not the controller", _B, _R, _M),
    _E.INVALID_REQUEST: _Row("the broker finds the request malformed"),
    _E.UNSUPPORTED_FOR_MESSAGE_FORMAT: _Row("the topic's message format is too old for this"),
    _E.POLICY_VIOLATION: _Row("a policy of the broker forbids this"),
    _E.OUT_OF_ORDER_SEQUENCE_NUMBER: _Row("the batch's sequence number is out of order", OutOfOrderSequenceError),
    _E.DUPLICATE_SEQUENCE_NUMBER: _Row("the broker has this batch already", DuplicateSequenceError),
    _E.INVALID_PRODUCER_EPOCH: _Row("a newer producer of the same id is at work", ProducerFencedError),
    _E.INVALID_TXN_STATE: _Row("the transaction is in a state that does not allow this"),
    _E.INVALID_PRODUCER_ID_MAPPING: _Row("the transactional id belongs to another producer id", ProducerFencedError),
    _E.INVALID_TRANSACTION_TIMEOUT: _Row("the transaction timeout is above the broker's limit"),
    _E.CONCURRENT_TRANSACTIONS: _Row("the last transaction is still being finished", _B, _R),
    _E.TRANSACTION_COORDINATOR_FENCED: _Row("the transaction coordinator moved"),
    _E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: _Row("not authorized for the transactional id", AuthorizationError),
    _E.SECURITY_DISABLED: _Row("the broker has no authorizer"),
    _E.OPERATION_NOT_ATTEMPTED: _Row("not attempted, because another part of the request failed"),
    _E.KAFKA_STORAGE_ERROR: _Row("the broker could not read or write its disk", _B, _R, _M),
    _E.LOG_DIR_NOT_FOUND: _Row("the log directory does not exist"),
    _E.SASL_AUTHENTICATION_FAILED: _Row("the broker did not accept the credentials", AuthenticationError),
    _E.UNKNOWN_PRODUCER_ID: _Row("the broker has lost this producer's state", UnknownProducerIdError),
    _E.REASSIGNMENT_IN_PROGRESS: _Row("a reassignment of the partition is under way"),
    _E.DELEGATION_TOKEN_AUTH_DISABLED: _Row("delegation tokens are off"),
    _E.DELEGATION_TOKEN_NOT_FOUND: _Row("no such delegation token"),
    _E.DELEGATION_TOKEN_OWNER_MISMATCH: _Row("the delegation token belongs to somebody else"),
    _E.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED: _Row("delegation tokens are not allowed on this connection"),
    _E.DELEGATION_TOKEN_AUTHORIZATION_FAILED: _Row("not authorized for the delegation token", AuthorizationError),
    _E.DELEGATION_TOKEN_EXPIRED: _Row("the delegation token has expired"),
    _E.INVALID_PRINCIPAL_TYPE: _Row("the principal type is not valid"),
    _E.NON_EMPTY_GROUP: _Row("the group has members"),
    _E.GROUP_ID_NOT_FOUND: _Row("no group of that id exists", GroupIdNotFoundError),
    _E.FETCH_SESSION_ID_NOT_FOUND: _Row("the broker has dropped the fetch session", FetchSessionError, _R),
    _E.INVALID_FETCH_SESSION_EPOCH: _Row("the fetch session's epoch is not the next one", FetchSessionError, _R),
    _E.LISTENER_NOT_FOUND: _Row("the leader has no listener of this name", _B, _R, _M),
    _E.TOPIC_DELETION_DISABLED: _Row("the broker does not allow topics to be deleted"),
    _E.FENCED_LEADER_EPOCH: _Row("the leader epoch is older than the broker's", NotLeaderError, _R, _M),
    _E.UNKNOWN_LEADER_EPOCH: _Row("the leader epoch is newer than the broker's", NotLeaderError, _R, _M),
    _E.UNSUPPORTED_COMPRESSION_TYPE: _Row("the broker does not support the compression type"),
    _E.STALE_BROKER_EPOCH: _Row("the broker's epoch is stale"),
    _E.OFFSET_NOT_AVAILABLE: _Row("the new leader does not know its high watermark yet", _B, _R, _M),
    _E.MEMBER_ID_REQUIRED: _Row("the member has to join again with the id it was given"),
    _E.PREFERRED_LEADER_NOT_AVAILABLE: _Row("the preferred leader is not available", _B, _R, _M),
    _E.GROUP_MAX_SIZE_REACHED: _Row("the group is full", GroupFullError),
    _E.FENCED_INSTANCE_ID: _Row("another member with the same group_instance_id has taken over", FencedInstanceIdError),
    _E.ELIGIBLE_LEADERS_NOT_AVAILABLE: _Row("no eligible leader is available", _B, _R, _M),
    _E.ELECTION_NOT_NEEDED: _Row("no election is needed", _B, _R, _M),
    _E.NO_REASSIGNMENT_IN_PROGRESS: _Row("no reassignment is under way"),
    _E.GROUP_SUBSCRIBED_TO_TOPIC: _Row("members of the group subscribe to the topic"),
    _E.INVALID_RECORD: _Row("the broker refused a record"),
    _E.UNSTABLE_OFFSET_COMMIT: _Row("offsets of an open transaction are pending", UnstableOffsetCommitError, _R),
    _E.THROTTLING_QUOTA_EXCEEDED: _Row("a quota of the broker is used up", _B, _R),
    _E.PRODUCER_FENCED: _Row("a newer producer with the same transactional id is at work", ProducerFencedError),
    _E.RESOURCE_NOT_FOUND: _Row("no such resource"),
    _E.DUPLICATE_RESOURCE: _Row("the request names a resource twice"),
    _E.UNACCEPTABLE_CREDENTIAL: _Row("the credential is not acceptable"),
    _E.INCONSISTENT_VOTER_SET: _Row("the voter sets differ"),
    _E.INVALID_UPDATE_VERSION: _Row("the update version is not valid"),
    _E.FEATURE_UPDATE_FAILED: _Row("the feature could not be updated"),
    _E.PRINCIPAL_DESERIALIZATION_FAILURE: _Row("the principal could not be read"),
    _E.SNAPSHOT_NOT_FOUND: _Row("the snapshot does not exist"),
    _E.POSITION_OUT_OF_RANGE: _Row("the position is outside the snapshot"),
    _E.UNKNOWN_TOPIC_ID: _Row("the broker does not know this topic id", UnknownTopicOrPartitionError, _R, _M),
    _E.DUPLICATE_BROKER_REGISTRATION: _Row("another broker has this id"),
    _E.BROKER_ID_NOT_REGISTERED: _Row("no broker has this id"),
    _E.INCONSISTENT_TOPIC_ID: _Row("the topic id differs from the log's", UnknownTopicOrPartitionError, _R, _M),
    _E.INCONSISTENT_CLUSTER_ID: _Row("the cluster id differs"),
    _E.TRANSACTIONAL_ID_NOT_FOUND: _Row("no such transactional id"),
    _E.FETCH_SESSION_TOPIC_ID_ERROR: _Row("the fetch session mixes topic ids", FetchSessionError, _R, _M),
    _E.INELIGIBLE_REPLICA: _Row("the replica is not eligible"),
    _E.NEW_LEADER_ELECTED: _Row("a new leader was elected"),
    _E.OFFSET_MOVED_TO_TIERED_STORAGE: _Row("the offset has moved to tiered storage", OffsetMovedToTieredStorageError),
    _E.FENCED_MEMBER_EPOCH: _Row("the member epoch is fenced", MemberFencedError),
    _E.UNRELEASED_INSTANCE_ID: _Row("another member still holds this group_instance_id", FencedInstanceIdError),
    _E.UNSUPPORTED_ASSIGNOR: _Row("the group does not support this assignor", UnsupportedAssignorError),
    _E.STALE_MEMBER_EPOCH: _Row("the member epoch is stale", MemberFencedError),
    _E.MISMATCHED_ENDPOINT_TYPE: _Row("the request went to the wrong kind of endpoint: a broker's or a controller's"),
    _E.UNSUPPORTED_ENDPOINT_TYPE: _Row("the broker does not know this kind of endpoint"),
    _E.UNKNOWN_CONTROLLER_ID: _Row("no controller has this id"),
    _E.UNKNOWN_SUBSCRIPTION_ID: _Row("the telemetry subscription is unknown"),
    _E.TELEMETRY_TOO_LARGE: _Row("the telemetry is too large"),
    _E.INVALID_REGISTRATION: _Row("the registration is not valid"),
    _E.TRANSACTION_ABORTABLE: _Row("the transaction has to be aborted"),
    _E.INVALID_RECORD_STATE: _Row("the record is in a state that does not allow this"),
    _E.SHARE_SESSION_NOT_FOUND: _Row("the broker has dropped the share session", _B, _R),
    _E.INVALID_SHARE_SESSION_EPOCH: _Row("the share session's epoch is not the next one", _B, _R),
    _E.FENCED_STATE_EPOCH: _Row("the share coordinator has a newer state epoch"),
    _E.INVALID_VOTER_KEY: _Row("the voter key does not match the receiving replica's"),
    _E.DUPLICATE_VOTER: _Row("the voter is in the set already"),
    _E.VOTER_NOT_FOUND: _Row("the voter is not in the set"),
    _E.INVALID_REGULAR_EXPRESSION: _Row("the regular expression is not valid", InvalidRegularExpressionError),
    _E.REBOOTSTRAP_REQUIRED: _Row("the client has to bootstrap anew", _B, _R, _M),
    _E.STREAMS_INVALID_TOPOLOGY: _Row("the streams topology is not valid"),
    _E.STREAMS_INVALID_TOPOLOGY_EPOCH: _Row("the streams topology epoch is not valid"),
    _E.STREAMS_TOPOLOGY_FENCED: _Row("the streams topology epoch is outdated"),
    _E.SHARE_SESSION_LIMIT_REACHED: _Row("the broker has no room for another share session", _B, _R),
    _E.GROUP_DELETION_FAILED: _Row("the group could not be deleted"),
    _E.STREAMS_TOPOLOGY_DESCRIPTION_UPDATE_FAILED: _Row("the streams topology's description could not be updated"),
    _E.CONTROLLER_ID_NOT_REGISTERED: _Row("no controller is registered with this id"),
}


def from_code(code: ErrorCode | int, detail: str = "") -> BrokerResponseError:
    """Return the exception for a broker's error ``code`` (not ``NONE``), with the flags of the table.

    ``detail`` says where it happened (a topic, a partition, the broker's own message). An unknown code is not retriable.
    """
    row = _TABLE.get(code, _UNKNOWN)
    error = row.cls(code, _CODES[code].name if code in _CODES else f"ERROR_{code}", row.text, detail)
    error.retriable, error.refresh_metadata, error.refresh_coordinator = row.retriable, row.metadata, row.coordinator
    return error
