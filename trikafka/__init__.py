"""trikafka: a Kafka client for Trio. This module holds only the public names.

Each name is imported at its first use, so that ``import trikafka`` and the command start quickly.
Type checkers read the names in ``__init__.pyi``, which ``make docs`` generates from the table here.
"""

from importlib import import_module
from typing import Any

from ._version import VERSION as __version__

#: The module that defines each public name.
_HOMES = {
    "._api.admin.admin": ("Admin",),
    "._api.admin.configs": ("ConfigChange", "ConfigEntry", "ConfigResource"),
    "._api.admin.types": (
        "ClusterDescription",
        "GroupListing",
        "HangingTransaction",
        "ListedOffset",
        "NewTopic",
        "ProducerDescription",
        "TransactionDescription",
        "TransactionListing",
    ),
    "._api.producer.arrow_sending": (
        "ArrowAck",
        "ArrowDelivery",
        "PartitionDelivery",
    ),
    "._api.consumer.consumer": (
        "Consumer",
        "ConsumerStatistics",
    ),
    "._api.consumer.health": ("ConsumerHealth",),
    ".tasks.dead_letters": ("DeadLetter", "dead_letter_headers"),
    "._api.export": (
        "Exporter",
        "check_export",
        "export",
        "open_exporter",
    ),
    "._api.export_report": (
        "ExportProgress",
        "ExportResult",
    ),
    "._api.export_base": ("ExportStore",),
    "._api.export_pieces": (
        "ExportPiece",
        "PieceLog",
        "StagedFile",
    ),
    "._api.export_store": ("DirectoryStore",),
    "._api.export_tables": ("TableStore",),
    "._api.export_work": ("RangeWork",),
    "._api.admin.opening": ("open_admin",),
    "._api.consumer.opening": ("open_consumer",),
    "._api.producer.opening": ("open_producer",),
    "._api.producer.ack": ("Ack",),
    "._api.producer.producer": (
        "Producer",
        "ProducerStatistics",
    ),
    "._api.producer.health": ("ProducerHealth",),
    "._api.consumer.partition_stream": ("PartitionStream",),
    ".tasks.processing": ("process",),
    ".tasks.run_tasks": (
        "ensure_topics",
        "run_tasks",
    ),
    ".tasks.handling": ("RetryPolicy",),
    "._api.sinking": ("sink_batches",),
    "._api.producer.transaction_handle": ("Transaction",),
    "._wire.columns": ("RecordBatch",),
    ".config": (
        "AdminConfig",
        "ClientConfig",
        "ConsumerConfig",
        "MemoryBudget",
        "ProducerConfig",
        "from_properties",
    ),
    ".config.typed": (
        "AdminSettings",
        "ClientSettings",
        "ConsumerSettings",
        "ProducerSettings",
    ),
    ".error_codes": ("ErrorCode",),
    ".errors": (
        "ArrowDeliveryError",
        "AuthenticationError",
        "AuthorizationError",
        "BootstrapError",
        "BrokerResponseError",
        "ClientFailedError",
        "CommitFailedError",
        "CompiledPartWarning",
        "ConfigurationError",
        "CoordinatorError",
        "CorruptRecordError",
        "DamagedResponseError",
        "DeliveryTimeoutError",
        "DeserializationError",
        "DuplicateSequenceError",
        "ExportError",
        "ExportIncompleteError",
        "FencedInstanceIdError",
        "FetchSessionError",
        "GroupFullError",
        "GroupIdNotFoundError",
        "GroupProtocolMismatchError",
        "HandshakeError",
        "IllegalStateError",
        "InvalidRegularExpressionError",
        "InvalidTopicError",
        "KafkaConnectionError",
        "KafkaTimeoutError",
        "LogTruncationError",
        "MemberFencedError",
        "MessageTooLargeError",
        "NoOffsetForPartitionError",
        "NotLeaderError",
        "NotOpenError",
        "OffsetMovedToTieredStorageError",
        "OffsetOutOfRangeError",
        "OutOfOrderSequenceError",
        "PartitionNotOwnedError",
        "PluginError",
        "PollIntervalExceededError",
        "ProducerFencedError",
        "ProtocolError",
        "RebalanceInProgressError",
        "RecordTooLargeError",
        "RequestTimedOutError",
        "TelemetryNotSupportedError",
        "TopicAlreadyExistsError",
        "TopicsNotReadyError",
        "TransactionAbortableError",
        "TransactionError",
        "TransactionFatalError",
        "TransactionNotOpenError",
        "TransactionUndecidedError",
        "TrikafkaError",
        "UnknownProducerIdError",
        "UnknownTopicOrPartitionError",
        "UnstableOffsetCommitError",
        "UnsupportedAssignorError",
        "UnsupportedCompressionError",
        "UnsupportedVersionError",
    ),
    ".hooks": ("hookimpl",),
    ".interfaces": ("RebalanceListener",),
    ".types": (
        "BatchEvent",
        "BrokerLatency",
        "BrokerThrottle",
        "ConnectionEvent",
        "ConnectionStatistics",
        "DetachedTransaction",
        "GroupDescription",
        "GroupMembership",
        "GroupMetadata",
        "IsolationLevel",
        "MemberDescription",
        "MembershipEvent",
        "Node",
        "OAuthToken",
        "OffsetAndMetadata",
        "OffsetAndTimestamp",
        "OffsetRange",
        "OffsetSpec",
        "PartitionInfo",
        "PreparedTransaction",
        "Record",
        "RecordMetadata",
        "SubscriptionPattern",
        "TimestampType",
        "TopicPartition",
    ),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'trikafka' has no attribute {name!r}")
    value = getattr(import_module(_HOME[name], __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})


__all__ = ["__version__", *_HOME]
