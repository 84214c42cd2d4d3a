"""The requests of each use of a client whose responses are damaged, by bytes and by items."""

from __future__ import annotations

ADMIN = (
    "IncrementalAlterConfigs",
    "DeleteRecords",
    "OffsetCommit",
    "OffsetDelete",
    "DescribeCluster",
    "AlterPartitionReassignments",
    "ListPartitionReassignments",
    "ElectLeaders",
    "DescribeLogDirs",
    "AlterReplicaLogDirs",
    "ShareGroupDescribe",
    "DescribeShareGroupOffsets",
    "AlterShareGroupOffsets",
    "DeleteShareGroupOffsets",
    "StreamsGroupDescribe",
    "LeaveGroup",
    "ListOffsets",
    "ListGroups",
    "DescribeGroups",
    "CreateTopics",
    "DescribeConfigs",
    "OffsetFetch",
    "FindCoordinator",
    "CreatePartitions",
    "DeleteTopics",
    "DeleteGroups",
    "GetTelemetrySubscriptions",
)
OPERATOR = (
    "CreateAcls",
    "DescribeAcls",
    "DeleteAcls",
    "AlterClientQuotas",
    "DescribeClientQuotas",
    "AlterUserScramCredentials",
    "DescribeUserScramCredentials",
    "CreateDelegationToken",
    "DescribeDelegationToken",
    "RenewDelegationToken",
    "ExpireDelegationToken",
    "UpdateFeatures",
    "DescribeQuorum",
    "AddRaftVoter",
    "RemoveRaftVoter",
    "UnregisterBroker",
    "UnregisterController",
    "ListConfigResources",
    "InitProducerId",
)
MEMBERS = ("ListGroups", "DescribeGroups", "ConsumerGroupDescribe")
GROUP = (
    "JoinGroup",
    "SyncGroup",
    "Heartbeat",
    "LeaveGroup",
    "OffsetCommit",
    "ConsumerGroupHeartbeat",
    "OffsetFetch",
    "ListOffsets",
    "Fetch",
    "OffsetForLeaderEpoch",
)
PRODUCER = ("InitProducerId", "Produce", "DescribeTopicPartitions")
TRANSACTIONS = (
    "InitProducerId",
    "AddPartitionsToTxn",
    "AddOffsetsToTxn",
    "TxnOffsetCommit",
    "EndTxn",
    "FindCoordinator",
    "Produce",
)
SHARE = ("ShareGroupHeartbeat", "ShareFetch", "ShareAcknowledge")
HANGING = ("ListTransactions", "DescribeTransactions", "DescribeProducers", "WriteTxnMarkers")
