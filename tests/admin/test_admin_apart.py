"""Parts of one admin call that fail beside others, and changes whose response is lost."""

from __future__ import annotations

from typing import Any

import pytest
import trio.testing
from administering import opened

import trikafka
from trikafka import (
    AdminErrors,
    AuthorizationError,
    BrokerResponseError,
    KafkaTimeoutError,
    TopicPartition,
    UnsupportedVersionError,
    VoterEndpoint,
)
from trikafka.testing import ScriptedCluster

T0 = TopicPartition("t", 0)
REQUEST_TIMED_OUT, NOT_COORDINATOR, GROUP_REFUSED, NOT_CONTROLLER, TXN_REFUSED = 7, 16, 30, 41, 53


@pytest.mark.parametrize(
    ("code", "call"),
    [
        (GROUP_REFUSED, lambda admin: admin.list_share_group_offsets(["a", "b"])),
        (TXN_REFUSED, lambda admin: admin.fence_producers(["a", "b"])),
    ],
)
async def test_name_without_coordinator_fails_alone(
    autojump_clock: trio.testing.MockClock, code: int, call: Any
) -> None:
    async with ScriptedCluster() as cluster, opened(cluster) as admin:
        cluster.fail("FindCoordinator", code, None, topic="a")
        with pytest.raises(AdminErrors) as caught:
            await call(admin)
        assert isinstance(caught.value.failures["a"], AuthorizationError)
        assert list(caught.value.results) == ["b"]


async def test_old_coordinator_fails_its_own_groups(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with ScriptedCluster(nodes=2) as cluster, opened(cluster) as admin:
        cluster.move_coordinator(1, "a")
        cluster.offer("DescribeShareGroupOffsets", None, node=1)
        # Node 0 has to be asked twice: its passing failure is not that of node 1.
        cluster.fail("DescribeShareGroupOffsets", NOT_COORDINATOR, node=0)
        with pytest.raises(AdminErrors) as caught:
            await admin.list_share_group_offsets(["a", "b"])
        assert isinstance(caught.value.failures["a"], UnsupportedVersionError)
        assert list(caught.value.failures) == ["a"]
        assert list(caught.value.results) == ["b"]


async def test_unknown_broker_fails_alone(autojump_clock: trio.testing.MockClock) -> None:
    async with ScriptedCluster(nodes=2) as cluster, opened(cluster) as admin:
        cluster.drop("DescribeLogDirs", 1, node=1)  # passes
        with pytest.raises(AdminErrors) as caught:
            await admin.describe_log_dirs([0, 1, 9])
        assert "no live broker 9; it has 0, 1" in str(caught.value.failures[9])
        assert list(caught.value.failures) == [9]
        assert sorted(caught.value.results) == [0, 1]


async def test_broker_out_of_reach_fails_alone(autojump_clock: trio.testing.MockClock) -> None:
    async with ScriptedCluster(nodes=3) as cluster, opened(cluster) as admin:
        await admin.describe_log_dirs()
        cluster.stop(2, noticed=False)
        with pytest.raises(AdminErrors) as caught:
            await admin.describe_log_dirs(timeout=5)
        assert isinstance(caught.value.failures[2], KafkaTimeoutError)
        assert sorted(caught.value.results) == [0, 1]
        assert len(cluster.requests("DescribeLogDirs", node=0)) == 2


async def test_passing_failure_of_a_feature_is_retried(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async def refuse(request: Any, default: Any) -> Any:
        response = await default()
        response.results[0].error_code = NOT_CONTROLLER
        return response

    offered: Any = {"UpdateFeatures": (0, 1)}
    async with ScriptedCluster(api_versions=offered) as cluster, opened(cluster) as admin:
        cluster.on("UpdateFeatures", refuse, times=1)
        await admin.update_features({"metadata.version": 21})
        assert len(cluster.requests("UpdateFeatures")) == 2


async def test_feature_that_a_response_leaves_out(autojump_clock: trio.testing.MockClock) -> None:
    async def forget(request: Any, default: Any) -> Any:
        response = await default()
        response.results = []
        return response

    offered: Any = {"UpdateFeatures": (0, 1)}
    async with ScriptedCluster(api_versions=offered) as cluster, opened(cluster) as admin:
        cluster.on("UpdateFeatures", forget, times=None)
        with pytest.raises(KafkaTimeoutError, match=r"leaves out metadata\.version"):
            await admin.update_features({"metadata.version": 20}, timeout=5)


async def test_lost_cancellation_of_a_move_says_so(autojump_clock: trio.testing.MockClock) -> None:
    topics = {"t": 1}
    async with ScriptedCluster(nodes=2, topics=topics) as cluster, opened(cluster) as admin:
        cluster.drop("AlterPartitionReassignments", after=True)
        with pytest.raises(BrokerResponseError, match="NO_REASSIGNMENT") as caught:
            await admin.alter_partition_reassignments({T0: None})
        assert "may have done it" in str(caught.value)


async def test_lost_removal_of_a_member_says_so(autojump_clock: trio.testing.MockClock) -> None:
    async with ScriptedCluster(topics={"t": 1}) as cluster, opened(cluster) as admin:
        async with trikafka.open_consumer(
            "t",
            group_id="g",
            group_instance_id="i",
            bootstrap_servers=cluster.bootstrap_servers,
            dial=cluster.dial,
        ) as consumer:
            while not consumer.assignment():
                await consumer.receive_batch(timeout=0.1)
            cluster.drop("LeaveGroup", after=True)
            with pytest.raises(BrokerResponseError, match="may have done it"):
                await admin.remove_group_members("g", instance_ids=["i"])


async def test_change_that_went_on_after_its_time_says_so(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with ScriptedCluster(nodes=2) as cluster, opened(cluster) as admin:
        cluster.fail("UnregisterBroker", REQUEST_TIMED_OUT, after=True)
        with pytest.raises(BrokerResponseError, match="may have done it"):
            await admin.unregister_broker(1)


async def test_change_that_was_never_sent_is_not_doubted(
    autojump_clock: trio.testing.MockClock,
) -> None:
    endpoint = VoterEndpoint("C", "h", 1)
    async with ScriptedCluster(nodes=3) as cluster, opened(cluster) as admin:
        quorum = await admin.describe_metadata_quorum()
        voter = quorum.voters[1].directory_id
        assert voter is not None
        cluster.disconnect()
        for node in range(3):
            cluster.refuse(node)
        async with trio.open_nursery() as nursery:

            @nursery.start_soon
            async def back() -> None:
                await trio.sleep(3)
                for node in range(3):
                    cluster.refuse(node, False)

            with pytest.raises(BrokerResponseError, match="DUPLICATE_VOTER") as caught:
                await admin.add_raft_voter(1, voter, [endpoint])
        assert len(cluster.requests("AddRaftVoter")) == 1
        assert "may have done it" not in str(caught.value)
