"""trikafka: a Kafka client for Trio. The public names, nothing else.

Each name is imported when it is first used, so that ``import trikafka`` and the command begin at once.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ._version import VERSION as __version__

if TYPE_CHECKING:
    from ._api.ack import (
        Ack as Ack,
    )
    from ._api.admin import (
        Admin as Admin,
    )
    from ._api.admin_types import (
        ClusterDescription as ClusterDescription,
    )
    from ._api.admin_types import (
        GroupListing as GroupListing,
    )
    from ._api.admin_types import (
        ListedOffset as ListedOffset,
    )
    from ._api.admin_types import (
        NewTopic as NewTopic,
    )
    from ._api.arrow_sending import (
        ArrowDelivery as ArrowDelivery,
    )
    from ._api.arrow_sending import (
        PartitionDelivery as PartitionDelivery,
    )
    from ._api.consumer import (
        Consumer as Consumer,
    )
    from ._api.consumer import (
        ConsumerStatistics as ConsumerStatistics,
    )
    from ._api.export import (
        ExportProgress as ExportProgress,
    )
    from ._api.export import (
        ExportResult as ExportResult,
    )
    from ._api.export import (
        export as export,
    )
    from ._api.export_store import (
        DirectoryStore as DirectoryStore,
    )
    from ._api.opening import (
        open_admin as open_admin,
    )
    from ._api.opening import (
        open_consumer as open_consumer,
    )
    from ._api.producer import (
        Producer as Producer,
    )
    from ._api.producer import (
        ProducerStatistics as ProducerStatistics,
    )
    from ._api.producer import (
        open_producer as open_producer,
    )
    from ._wire.columns import (
        RecordBatch as RecordBatch,
    )
    from .config import (
        AdminConfig as AdminConfig,
    )
    from .config import (
        ClientConfig as ClientConfig,
    )
    from .config import (
        ConsumerConfig as ConsumerConfig,
    )
    from .config import (
        ProducerConfig as ProducerConfig,
    )
    from .config import (
        from_properties as from_properties,
    )
    from .errors import (
        ArrowDeliveryError as ArrowDeliveryError,
    )
    from .errors import (
        AuthenticationError as AuthenticationError,
    )
    from .errors import (
        AuthorizationError as AuthorizationError,
    )
    from .errors import (
        BootstrapError as BootstrapError,
    )
    from .errors import (
        BrokerResponseError as BrokerResponseError,
    )
    from .errors import (
        ClientFailedError as ClientFailedError,
    )
    from .errors import (
        CommitFailedError as CommitFailedError,
    )
    from .errors import (
        ConfigurationError as ConfigurationError,
    )
    from .errors import (
        CoordinatorError as CoordinatorError,
    )
    from .errors import (
        CorruptRecordError as CorruptRecordError,
    )
    from .errors import (
        DeliveryTimeoutError as DeliveryTimeoutError,
    )
    from .errors import (
        DuplicateSequenceError as DuplicateSequenceError,
    )
    from .errors import (
        ExportError as ExportError,
    )
    from .errors import (
        FetchSessionError as FetchSessionError,
    )
    from .errors import (
        IllegalStateError as IllegalStateError,
    )
    from .errors import (
        InvalidTopicError as InvalidTopicError,
    )
    from .errors import (
        KafkaConnectionError as KafkaConnectionError,
    )
    from .errors import (
        KafkaTimeoutError as KafkaTimeoutError,
    )
    from .errors import (
        MemberFencedError as MemberFencedError,
    )
    from .errors import (
        MessageTooLargeError as MessageTooLargeError,
    )
    from .errors import (
        NoOffsetForPartitionError as NoOffsetForPartitionError,
    )
    from .errors import (
        NotLeaderError as NotLeaderError,
    )
    from .errors import (
        OffsetOutOfRangeError as OffsetOutOfRangeError,
    )
    from .errors import (
        OutOfOrderSequenceError as OutOfOrderSequenceError,
    )
    from .errors import (
        PluginError as PluginError,
    )
    from .errors import (
        ProducerFencedError as ProducerFencedError,
    )
    from .errors import (
        ProtocolError as ProtocolError,
    )
    from .errors import (
        RebalanceInProgressError as RebalanceInProgressError,
    )
    from .errors import (
        RecordTooLargeError as RecordTooLargeError,
    )
    from .errors import (
        RequestTimedOutError as RequestTimedOutError,
    )
    from .errors import (
        TopicAlreadyExistsError as TopicAlreadyExistsError,
    )
    from .errors import (
        TrikafkaError as TrikafkaError,
    )
    from .errors import (
        UnknownProducerIdError as UnknownProducerIdError,
    )
    from .errors import (
        UnknownTopicOrPartitionError as UnknownTopicOrPartitionError,
    )
    from .errors import (
        UnsupportedCompressionError as UnsupportedCompressionError,
    )
    from .errors import (
        UnsupportedVersionError as UnsupportedVersionError,
    )
    from .hooks import (
        hookimpl as hookimpl,
    )
    from .interfaces import (
        RebalanceListener as RebalanceListener,
    )
    from .types import (
        GroupDescription as GroupDescription,
    )
    from .types import (
        IsolationLevel as IsolationLevel,
    )
    from .types import (
        MemberDescription as MemberDescription,
    )
    from .types import (
        Node as Node,
    )
    from .types import (
        OffsetAndMetadata as OffsetAndMetadata,
    )
    from .types import (
        OffsetAndTimestamp as OffsetAndTimestamp,
    )
    from .types import (
        OffsetRange as OffsetRange,
    )
    from .types import (
        OffsetSpec as OffsetSpec,
    )
    from .types import (
        PartitionInfo as PartitionInfo,
    )
    from .types import (
        Record as Record,
    )
    from .types import (
        RecordMetadata as RecordMetadata,
    )
    from .types import (
        TimestampType as TimestampType,
    )
    from .types import (
        TopicPartition as TopicPartition,
    )

#: Where each public name lives.
_HOMES = {
    "._api.admin": ("Admin",),
    "._api.admin_types": (
        "ClusterDescription",
        "GroupListing",
        "ListedOffset",
        "NewTopic",
    ),
    "._api.arrow_sending": (
        "ArrowDelivery",
        "PartitionDelivery",
    ),
    "._api.consumer": (
        "Consumer",
        "ConsumerStatistics",
    ),
    "._api.export": (
        "ExportProgress",
        "ExportResult",
        "export",
    ),
    "._api.export_store": ("DirectoryStore",),
    "._api.opening": (
        "open_admin",
        "open_consumer",
    ),
    "._api.ack": ("Ack",),
    "._api.producer": (
        "Producer",
        "ProducerStatistics",
        "open_producer",
    ),
    "._wire.columns": ("RecordBatch",),
    ".config": (
        "AdminConfig",
        "ClientConfig",
        "ConsumerConfig",
        "ProducerConfig",
        "from_properties",
    ),
    ".errors": (
        "ArrowDeliveryError",
        "AuthenticationError",
        "AuthorizationError",
        "BootstrapError",
        "BrokerResponseError",
        "ClientFailedError",
        "CommitFailedError",
        "ConfigurationError",
        "CoordinatorError",
        "CorruptRecordError",
        "DeliveryTimeoutError",
        "DuplicateSequenceError",
        "ExportError",
        "FetchSessionError",
        "IllegalStateError",
        "InvalidTopicError",
        "KafkaConnectionError",
        "KafkaTimeoutError",
        "MemberFencedError",
        "MessageTooLargeError",
        "NoOffsetForPartitionError",
        "NotLeaderError",
        "OffsetOutOfRangeError",
        "OutOfOrderSequenceError",
        "PluginError",
        "ProducerFencedError",
        "ProtocolError",
        "RebalanceInProgressError",
        "RecordTooLargeError",
        "RequestTimedOutError",
        "TopicAlreadyExistsError",
        "TrikafkaError",
        "UnknownProducerIdError",
        "UnknownTopicOrPartitionError",
        "UnsupportedCompressionError",
        "UnsupportedVersionError",
    ),
    ".hooks": ("hookimpl",),
    ".interfaces": ("RebalanceListener",),
    ".types": (
        "GroupDescription",
        "IsolationLevel",
        "MemberDescription",
        "Node",
        "OffsetAndMetadata",
        "OffsetAndTimestamp",
        "OffsetRange",
        "OffsetSpec",
        "PartitionInfo",
        "Record",
        "RecordMetadata",
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
