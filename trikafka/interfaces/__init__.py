"""What plugins implement, and the values that they exchange with trikafka. No I/O, no behaviour.

A plugin's hook (see :mod:`trikafka.hooks`) returns an object that meets one of these contracts. By idea:

* :mod:`.managers`: the seats of a client, each with the whole contract of the manager in it (``trikafka_request_manager``);
* :mod:`.context`: what a factory gets to know of the client; :mod:`.state`, :mod:`.network`, :mod:`.cluster`: the parts of that;
* :mod:`.listeners`: rebalance listeners and observers (``trikafka_rebalance_listener``, ``trikafka_observer``);
* :mod:`.sink`: where an export writes (``trikafka_sink``); :mod:`.batch_sink`: where a consumer hands its batches (the same).
"""

from .batch_sink import BatchSink, BatchWriter, SinkBatch
from .cluster import ClusterSnapshot, CoordinatorKind, TopicInfo
from .context import ClientContext, ConsumerContext, MembershipNews, OfferedAssignor, Partitioner, ProducerContext
from .listeners import ConnectionObserver, MembershipObserver, Observer, ProducerObserver, RebalanceListener
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
    TakenRows,
    TransactionManager,
)
from .network import BrokerAccess, BrokerConnection, Call, Purpose, Response
from .sink import (
    AbandoningSink,
    CheckableSink,
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
    "BatchSink",
    "BatchWriter",
    "BrokerAccess",
    "BrokerConnection",
    "Call",
    "CheckableSink",
    "ClientContext",
    "ClusterSnapshot",
    "CommitManager",
    "Committed",
    "ConnectionObserver",
    "ConsumerContext",
    "ConsumerState",
    "CoordinatorKind",
    "CoordinatorManager",
    "ExportCheck",
    "ExportManifest",
    "ExportPlan",
    "ExportStage",
    "ExportState",
    "FetchManager",
    "Found",
    "HeartbeatManager",
    "LostRange",
    "ManagerKind",
    "MembershipManager",
    "MembershipNews",
    "MembershipObserver",
    "MetadataManager",
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
    "RebalanceListener",
    "RecordAccumulator",
    "RecordAck",
    "Response",
    "Sink",
    "SinkBatch",
    "SinkReport",
    "TakenRows",
    "TopicInfo",
    "TransactionManager",
    "VisitedSink",
    "WrittenFile",
]
