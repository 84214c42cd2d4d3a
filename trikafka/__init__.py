"""trikafka: a Kafka client for Trio. The public names, nothing else."""

from ._api.admin import Admin
from ._api.admin_types import ClusterDescription, GroupListing, ListedOffset, NewTopic
from ._api.consumer import Consumer, ConsumerStatistics
from ._api.export import ExportProgress, ExportResult, export
from ._api.opening import open_admin, open_consumer
from ._api.producer import Ack, Producer, ProducerStatistics, open_producer
from ._version import VERSION as __version__
from ._wire.columns import RecordBatch
from .config import AdminConfig, ClientConfig, ConsumerConfig, ProducerConfig, from_properties
from .errors import *  # noqa: F403
from .hooks import hookimpl
from .interfaces import RebalanceListener
from .types import (
    GroupDescription,
    IsolationLevel,
    MemberDescription,
    Node,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    OffsetRange,
    OffsetSpec,
    PartitionInfo,
    Record,
    RecordMetadata,
    TimestampType,
    TopicPartition,
)
