"""The uses of a client whose responses are damaged, by bytes and by items, and their requests."""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import trio

import trikafka
from trikafka import (
    Admin,
    ConfigResource,
    NewTopic,
    OffsetSpec,
    TopicPartition,
    TopicPartitionReplica,
    TrikafkaError,
)
from trikafka.testing import ScriptedCluster, encode_batch

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
REPLICA = TopicPartitionReplica("t", 0, 0)
TOPIC, OTHER = ConfigResource("topic", "t"), ConfigResource("topic", "other")
RULE = trikafka.AclBinding("User:alice", "read", "topic", "t")
ALICE, BOB = trikafka.QuotaEntity(user="alice"), trikafka.QuotaEntity(user="bob")
REMOVAL = trikafka.ScramRemoval()
ENDPOINT = trikafka.VoterEndpoint("CONTROLLER", "broker-7", 9093)
Calls = list[Callable[[], Awaitable[Any]]]

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


class Steps(trio.abc.Instrument):
    """The longest step of any task, in seconds of processor time.

    Wall-clock time would depend on the machine's other work.
    """

    def __init__(self) -> None:
        self.longest = 0.0
        self.whose = ""
        self._began = math.inf

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._began = time.thread_time()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        took = time.thread_time() - self._began
        if took > self.longest and "testing" not in task.name:  # steps of the cluster do not count
            self.longest = took
            self.whose = task.name


def admin_calls(client: Admin, timeout: float) -> Calls:
    """Return calls of an admin client about topics, groups and their offsets."""
    return [
        lambda: client.list_offsets({T0: OffsetSpec.LATEST, T1: 5}, timeout=timeout),
        lambda: client.list_topics(timeout=timeout),
        lambda: client.list_groups(timeout=timeout),
        lambda: client.describe_groups(["g", "h"], timeout=timeout),
        lambda: client.create_topics({"new": NewTopic(1), "newer": NewTopic(1)}, timeout=timeout),
        lambda: client.create_partitions({"new": 3}, timeout=timeout),
        lambda: client.delete_topics(["new", "newer"], timeout=timeout),
        lambda: client.topic_configs(["t"], timeout=timeout),
        lambda: client.alter_configs({TOPIC: {"a": 1}, OTHER: {"a": None}}, timeout=timeout),
        lambda: client.describe_configs([TOPIC, OTHER], timeout=timeout),
        lambda: client.delete_records({T0: 0, T1: OffsetSpec.LATEST}, timeout=timeout),
        lambda: client.alter_group_offsets("h", {T0: 1, T1: 0}, timeout=timeout),
        lambda: client.delete_group_offsets("h", [T0, T1], timeout=timeout),
        lambda: client.list_group_offsets("g", timeout=timeout),
        lambda: client.list_group_offsets("g", [T0, T1], timeout=timeout),
        lambda: client.delete_groups(["h"], timeout=timeout),
        lambda: client.describe_cluster(fenced_brokers=True, timeout=timeout),
        lambda: client.describe_topics(["t", "u"], timeout=timeout),
        lambda: client.alter_partition_reassignments({T0: [1, 0], T1: None}, timeout=timeout),
        lambda: client.list_partition_reassignments(timeout=timeout),
        lambda: client.list_partition_reassignments([T0, T1], timeout=timeout),
        lambda: client.elect_leaders([T0, T1], timeout=timeout),
        lambda: client.elect_leaders(timeout=timeout),
        lambda: client.describe_log_dirs(timeout=timeout),
        lambda: client.describe_replica_log_dirs([REPLICA], timeout=timeout),
        lambda: client.alter_replica_log_dirs({REPLICA: "/data-0"}, timeout=timeout),
        lambda: client.remove_group_members("h", ["no"], timeout=timeout),
        lambda: client.alter_share_group_offsets("s", {T0: 0, T1: 1}, timeout=timeout),
        lambda: client.describe_share_groups(["s", "no"], timeout=timeout),
        lambda: client.list_share_group_offsets({"s": None, "no": [T0]}, timeout=timeout),
        lambda: client.delete_share_group_offsets("s", ["t"], timeout=timeout),
        lambda: client.describe_streams_groups(["s"], timeout=timeout),
        lambda: client.client_instance_id(timeout=timeout),
    ]


def operator_calls(client: Admin, timeout: float) -> Calls:
    """Return calls about rules, quotas, users, tokens, features and controllers."""
    return [
        lambda: client.create_acls([RULE], timeout=timeout),
        lambda: client.describe_acls(timeout=timeout),
        lambda: client.delete_acls([trikafka.AclFilter()], timeout=timeout),
        lambda: client.alter_client_quotas({ALICE: {"q": 1}, BOB: {"q": 1}}, timeout=timeout),
        lambda: client.describe_client_quotas(timeout=timeout),
        lambda: client.alter_user_scram_credentials({"a": REMOVAL, "b": REMOVAL}, timeout=timeout),
        lambda: client.describe_user_scram_credentials(timeout=timeout),
        lambda: client.create_delegation_token(timeout=timeout),
        lambda: client.describe_delegation_tokens(timeout=timeout),
        lambda: client.renew_delegation_token(b"secret 1", timeout=timeout),
        lambda: client.expire_delegation_token(b"secret 1", timeout=timeout),
        lambda: client.describe_features(timeout=timeout),
        lambda: client.update_features({"metadata.version": 21}, timeout=timeout),
        lambda: client.describe_metadata_quorum(timeout=timeout),
        lambda: client.add_raft_voter(7, "A" * 22, [ENDPOINT], timeout=timeout),
        lambda: client.remove_raft_voter(7, "A" * 22, timeout=timeout),
        lambda: client.unregister_broker(1, timeout=timeout),
        lambda: client.unregister_controller(1, timeout=timeout),
        lambda: client.list_config_resources(timeout=timeout),
        lambda: client.fence_producers(["a", "b"], timeout=timeout),
    ]


def hanging_calls(client: Admin, cluster: ScriptedCluster, timeout: float) -> Calls:
    """Return calls about transactions that hang."""
    return [
        lambda: client.list_transactions(timeout=timeout),
        lambda: client.describe_transactions(["y"], timeout=timeout),
        lambda: client.describe_producers([T0, T1], timeout=timeout),
        lambda: client.find_hanging_transactions(["t"], timeout=timeout),
        lambda: client.abort_transaction(T0, cluster.partition("t", 0).end - 1, timeout=timeout),
    ]


def leave_transactions(cluster: ScriptedCluster) -> None:
    """Write in a transaction that no coordinator knows, and leave another one open."""
    identity = cluster.transactions.initialize(
        "y", 60_000, None, two_phase=False, keep=False
    ).identity
    cluster.transactions.add("y", identity, [("t", 1)])
    cluster.partition("t", 0).store(
        encode_batch([b"x"], timestamp=0, producer=(5, 3, 0), transactional=True)
    )


def cluster_of(seed: int) -> ScriptedCluster:
    """Open a cluster; every second one has classic groups and transactions of version 1."""
    cluster = ScriptedCluster(
        nodes=2, topics={"t": 2}, strict=False, transaction_version=1 + seed % 2
    )
    if seed % 2:
        cluster.offer("ConsumerGroupHeartbeat", None)
    cluster.append("t", 0, [b"a", b"b"])
    return cluster


async def each(calls: Calls) -> None:
    """Make the calls one after the other, whatever becomes of them."""
    for call in calls:
        with suppress(TrikafkaError):
            await call()
