"""trikafka: a Kafka client for Trio. This module holds only the public names.

Each name is imported at its first use, so that ``import trikafka`` and the command start quickly.
Type checkers read the names in ``__init__.pyi``, which ``make generated`` makes from the table
here.
"""

from importlib import import_module
from typing import Any
from warnings import warn

from ._importing import one_thread
from ._other_clients import hint_of_class
from ._version import VERSION as __version__

#: The module that defines each public name.
_HOMES = {
    "._api.admin.acls": ("AclBinding", "AclFilter"),
    "._api.admin.admin": ("Admin",),
    "._api.admin.configs": ("ConfigChange", "ConfigEntry", "ConfigResource"),
    "._api.admin.features": ("ClusterFeatures", "FeatureLevels"),
    "._api.admin.quorum": ("MetadataQuorum", "QuorumReplica", "VoterEndpoint"),
    "._api.admin.quotas": ("QuotaEntity", "QuotaFilter", "QuotaName"),
    "._api.admin.tokens": ("DelegationToken",),
    "._api.admin.transactions": ("FencedProducer",),
    "._api.admin.users": ("ScramCredential", "ScramPassword", "ScramRemoval"),
    "._api.admin.log_dirs": (
        "LogDirDescription",
        "ReplicaInfo",
        "ReplicaLogDir",
        "TopicPartitionReplica",
    ),
    "._api.admin.reassigning": ("PartitionReassignment",),
    "._api.admin.share_groups": ("SharePartitionOffset",),
    "._api.admin.streams_groups": (
        "StreamsGroupDescription",
        "StreamsMember",
        "StreamsSubtopology",
        "StreamsTasks",
    ),
    "._api.admin.topics": ("PartitionDescription", "TopicDescription"),
    "._api.admin.types": (
        "ClusterDescription",
        "CreatedTopic",
        "GroupListing",
        "HangingTransaction",
        "ListedOffset",
        "NewTopic",
        "ProducerDescription",
        "TransactionDescription",
        "TransactionListing",
    ),
    "._api.producer.arrow_sending": ("ArrowAck", "ArrowDelivery"),
    "._api.consumer.consumer": ("Consumer", "ConsumerStatistics"),
    "._api.consumer.health": ("ConsumerHealth",),
    ".tasks.dead_letters": ("DeadLetter", "dead_letter_headers"),
    "._api.exporting": ("check_export", "export", "open_exporter"),
    "._api.admin.opening": ("open_admin",),
    "._api.consumer.opening": ("open_consumer",),
    "._api.producer.opening": ("open_producer",),
    "._api.producer.ack": ("Ack",),
    "._api.producer.producer": ("Producer", "ProducerStatistics"),
    "._api.producer.health": ("ProducerHealth",),
    "._api.consumer.partition_stream": ("PartitionStream",),
    ".tasks.processing": ("process",),
    ".tasks.queue": ("run_queue",),
    ".tasks.run_tasks": ("ensure_topics", "run_tasks"),
    ".tasks.handling": ("RetryPolicy",),
    "._api.sinking": ("sink_batches",),
    "._api.producer.transaction_handle": ("Transaction",),
    "._api.share.consumer": ("ShareConsumer",),
    "._api.share.delivery": ("Delivery", "ShareBatch"),
    "._api.share.health": ("ShareConsumerHealth", "ShareConsumerStatistics"),
    "._api.share.opening": ("open_share_consumer",),
    "._wire.columns": ("RecordBatch",),
    ".config": (
        "AdminConfig",
        "ClientConfig",
        "ConsumerConfig",
        "MemoryBudget",
        "ProducerConfig",
        "ShareConsumerConfig",
        "from_properties",
    ),
    ".config.typed": (
        "AdminSettings",
        "ClientSettings",
        "BytesConsumerSettings",
        "ConsumerSettings",
        "ProducerSettings",
        "BytesShareConsumerSettings",
        "ShareConsumerSettings",
    ),
    ".error_codes": ("ErrorCode",),
    ".errors": (
        "AdminErrors",
        "AcknowledgementError",
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
        "LockLostError",
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
        "ShareSessionError",
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
    ".interfaces": ("ExportProgress", "ExportResult", "Exporter", "RebalanceListener"),
    ".types": (
        "BatchEvent",
        "BrokerLatency",
        "BrokerThrottle",
        "ConnectionEvent",
        "ConnectionStatistics",
        "DetachedTransaction",
        "GroupDescription",
        "GroupMembership",
        "AsyncDeserializer",
        "Deserializer",
        "GroupMetadata",
        "Headers",
        "IsolationLevel",
        "MemberDescription",
        "MembershipEvent",
        "MetricsPush",
        "Node",
        "OAuthToken",
        "OffsetAndMetadata",
        "OffsetAndTimestamp",
        "OffsetRange",
        "OffsetSpec",
        "PartitionDelivery",
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
#: Names that are now of another package. Their old place here goes with the next release.
_MOVED = {
    "DirectoryStore": "trikafka_export.directory_store",
    "ExportPiece": "trikafka_export.piece_log",
    "ExportStore": "trikafka_export.store",
    "PieceLog": "trikafka_export.piece_log",
    "RangeWork": "trikafka_export.directory_pieces",
    "StagedFile": "trikafka_export.piece_log",
    "TableStore": "trikafka_export.lake.table_store",
}


def __getattr__(name: str) -> Any:
    if name in _MOVED:
        return _moved(name)
    if name not in _HOME:
        raise AttributeError(f"module 'trikafka' has no attribute {name!r}{hint_of_class(name)}")
    with one_thread():
        value = getattr(import_module(_HOME[name], __name__), name)
    globals()[name] = value
    return value


def _moved(name: str) -> Any:
    """Return a name of another package, with a warning.

    Raises ModuleNotFoundError, which says what to install, if the package is missing.
    """
    try:
        value = getattr(import_module(_MOVED[name]), name)
    except ModuleNotFoundError as error:
        if error.name != "trikafka_export":
            raise
        raise ModuleNotFoundError(
            f"trikafka.{name} is now in the package trikafka-export: pip install trikafka-export",
            name=error.name,
        ) from error
    warn(
        f"trikafka.{name} is now {_MOVED[name]}.{name}, of the package trikafka-export; the old "
        "name goes with the next release",
        DeprecationWarning,
        stacklevel=3,
    )
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})


__all__ = ["__version__", *_HOME]
