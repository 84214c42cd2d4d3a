"""Contracts for plugins, and the values that plugins exchange with trikafka. No I/O, no behaviour.

A plugin's hook (see :mod:`trikafka.hooks`) returns an object that meets one of these contracts:

* :mod:`.managers`: the request managers of a client. One Protocol is the whole contract of one
  manager (hook ``trikafka_request_manager``).
* :mod:`.context`: the client as a plugin's factory sees it. :mod:`.state`, :mod:`.network` and
  :mod:`.cluster` hold the parts of the context.
* :mod:`.assignors`: an assignor and its input (``trikafka_assignor``).
* :mod:`.metrics`: what a client measures for its brokers.
* :mod:`.listeners`: rebalance listeners and observers (``trikafka_rebalance_listener``,
  ``trikafka_observer``).
* :mod:`.sink`: the destination of an export (``trikafka_sink``). :mod:`.export`: the format of an
  export and the runner of its ranges (``trikafka_export_format``, ``trikafka_export_runner``).
  :mod:`.export_report`: the exporter and its reports, as :func:`trikafka.export` returns them.
* :mod:`.command`: a subcommand of the command line (``trikafka_command``).
"""

from .assignors import (
    LastAssignment,
    MemberSubscription,
    OfferedAssignor,
    SubscribesWithUserData,
)
from .cluster import ClusterSnapshot, CoordinatorKind, TopicInfo
from .command import Subcommand
from .context import (
    ClientContext,
    CompressionCodec,
    ConsumerContext,
    MembershipNews,
    Partitioner,
    ProducerContext,
    ShareConsumerContext,
)
from .export import (
    ExportFormat,
    ExportRunner,
    FileFormat,
    FileShape,
    FileWriter,
    RangeTask,
    TableLog,
)
from .export_report import Exporter, ExportProgress, ExportResult
from .listeners import (
    ConnectionObserver,
    MembershipObserver,
    Observer,
    ProducerObserver,
    RebalanceListener,
)
from .managers import (
    CommitManager,
    Committed,
    CoordinatorManager,
    FetchManager,
    Found,
    HeartbeatManager,
    ManagerKind,
    MembershipManager,
    MetadataManager,
    OffsetsManager,
    PositionsManager,
    ProduceManager,
    RecordAccumulator,
    RecordAck,
    RowsBatch,
    ShareFetchManager,
    ShareMembershipManager,
    TableRows,
    TakenRows,
    TelemetryManager,
    TransactionManager,
)
from .metrics import AttributeValue, ClientMetrics, Metric, MetricPoint
from .network import BrokerAccess, BrokerConnection, Call, Purpose, Response
from .sink import (
    AbandoningSink,
    CheckableSink,
    DeepCheckableSink,
    ExportCheck,
    ExportManifest,
    ExportPlan,
    ExportStage,
    ExportState,
    LostRange,
    PlannedRange,
    RangeResult,
    Sink,
    SinkReport,
    VisitedSink,
    WrittenFile,
)
from .state import ConsumerState

__all__ = [
    "AbandoningSink",
    "AttributeValue",
    "BrokerAccess",
    "BrokerConnection",
    "Call",
    "CheckableSink",
    "DeepCheckableSink",
    "ClientContext",
    "ClientMetrics",
    "ClusterSnapshot",
    "CommitManager",
    "Committed",
    "CompressionCodec",
    "ConnectionObserver",
    "ConsumerContext",
    "ConsumerState",
    "CoordinatorKind",
    "CoordinatorManager",
    "ExportCheck",
    "ExportFormat",
    "ExportManifest",
    "ExportPlan",
    "ExportProgress",
    "ExportResult",
    "ExportRunner",
    "ExportStage",
    "ExportState",
    "FileFormat",
    "FileShape",
    "FileWriter",
    "Exporter",
    "FetchManager",
    "Found",
    "HeartbeatManager",
    "LastAssignment",
    "LostRange",
    "ManagerKind",
    "MemberSubscription",
    "MembershipManager",
    "MembershipNews",
    "MembershipObserver",
    "MetadataManager",
    "Metric",
    "MetricPoint",
    "Observer",
    "OffsetsManager",
    "OfferedAssignor",
    "Partitioner",
    "PlannedRange",
    "PositionsManager",
    "ProduceManager",
    "ProducerObserver",
    "ProducerContext",
    "Purpose",
    "RangeResult",
    "RangeTask",
    "RebalanceListener",
    "RecordAccumulator",
    "RecordAck",
    "Response",
    "RowsBatch",
    "Sink",
    "SinkReport",
    "Subcommand",
    "SubscribesWithUserData",
    "TableLog",
    "TableRows",
    "TakenRows",
    "TelemetryManager",
    "TopicInfo",
    "ShareConsumerContext",
    "ShareFetchManager",
    "ShareMembershipManager",
    "TransactionManager",
    "VisitedSink",
    "WrittenFile",
]
