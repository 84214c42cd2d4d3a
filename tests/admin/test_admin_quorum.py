"""Features, the quorum, registrations, resources and fenced producers on the scripted cluster."""

from __future__ import annotations

from typing import Any

import pytest
import trio.testing
from administering import opened

import trikafka
from trikafka import BrokerResponseError, ConfigResource, ErrorCode, VoterEndpoint
from trikafka.testing import ScriptedCluster

ENDPOINT = VoterEndpoint("CONTROLLER", "broker-7", 9093)
DIRECTORY = "MvDxzVmcRsaTz33bUuRU6A"


async def test_feature_levels_are_read_and_raised(autojump_clock: trio.testing.MockClock) -> None:
    async with ScriptedCluster(nodes=2) as cluster, opened(cluster) as admin:
        seen = await admin.describe_features(node_id=1)
        version = seen.features["metadata.version"]
        assert (version.level, version.lowest, version.highest) == (20, 7, 30)
        assert list(seen.features) == ["metadata.version", "transaction.version"]
        await admin.update_features({"metadata.version": 21}, validate_only=True)
        assert await admin.describe_features() == seen
        await admin.update_features({"metadata.version": 21})
        after = await admin.describe_features()
        assert after.features["metadata.version"].level == 21
        assert after.epoch == (seen.epoch or 0) + 1
        with pytest.raises(BrokerResponseError, match=r"'metadata\.version'"):
            await admin.update_features({"metadata.version": 20})
        await admin.update_features({"metadata.version": 20}, downgrade="safe")
        assert (await admin.describe_features()).features["metadata.version"] == version
        assert cluster.requests("ApiVersions", node=1)


async def test_features_are_asked_of_a_known_broker(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with ScriptedCluster() as cluster, opened(cluster) as admin:
        with pytest.raises(trikafka.TrikafkaError, match="no live broker 7; it has 0"):
            await admin.describe_features(node_id=7)


@pytest.mark.parametrize("version", [1, 2])
async def test_failed_update_names_the_feature(
    autojump_clock: trio.testing.MockClock, version: int
) -> None:
    async def refuse(request: Any, default: Any) -> Any:
        response = await default()
        if version == 1:
            response.results[0].error_code = 96
        else:
            response.error_code = 96
        return response

    offered: Any = {"UpdateFeatures": (0, version)}
    async with ScriptedCluster(api_versions=offered) as cluster, opened(cluster) as admin:
        cluster.on("UpdateFeatures", refuse)
        with pytest.raises(trikafka.TrikafkaError, match="FEATURE_UPDATE_FAILED") as caught:
            await admin.update_features({"metadata.version": 21})
        assert "metadata.version" in str(caught.value)


async def test_quorum_shows_voters_and_lag(autojump_clock: trio.testing.MockClock) -> None:
    async with ScriptedCluster(nodes=3) as cluster, opened(cluster) as admin:
        seen = await admin.describe_metadata_quorum()
        assert (seen.leader_id, seen.leader_epoch, seen.high_watermark) == (0, 3, 100)
        assert [each.node_id for each in seen.voters] == [0, 1, 2]
        assert [seen.lag(each) for each in seen.voters] == [0, 1, 2]
        assert seen.observers == ()
        assert seen.endpoints[2] == (VoterEndpoint("CONTROLLER", "broker-2", 9093),)
        directory = seen.voters[2].directory_id
        assert directory is not None
        await admin.remove_raft_voter(2, directory)
        after = await admin.describe_metadata_quorum()
        assert [each.node_id for each in after.observers] == [2]
        await admin.add_raft_voter(2, directory, [ENDPOINT], cluster_id="scripted-cluster")
        assert (await admin.describe_metadata_quorum()).voters == seen.voters
        (sent,) = cluster.requests("AddRaftVoter")
        assert [(one.name, one.host, one.port) for one in sent.request.listeners] == [
            ("CONTROLLER", "broker-7", 9093)
        ]


async def test_old_quorum_has_no_directories(autojump_clock: trio.testing.MockClock) -> None:
    offered: Any = {"DescribeQuorum": (0, 0)}
    async with ScriptedCluster(api_versions=offered) as cluster, opened(cluster) as admin:
        (voter,) = (await admin.describe_metadata_quorum()).voters
        assert (voter.directory_id, voter.last_fetch, voter.log_end_offset) == (None, None, 100)


@pytest.mark.parametrize(
    ("api", "call", "code"),
    [
        ("UnregisterBroker", lambda admin: admin.unregister_broker(1), "BROKER_ID_NOT_REGISTERED"),
        (
            "UnregisterController",
            lambda admin: admin.unregister_controller(1),
            "CONTROLLER_ID_NOT_REGISTERED",
        ),
        (
            "AddRaftVoter",
            lambda admin: admin.add_raft_voter(7, DIRECTORY, [ENDPOINT]),
            "DUPLICATE_VOTER",
        ),
    ],
)
async def test_change_of_a_node_is_made_once(
    autojump_clock: trio.testing.MockClock, api: str, call: Any, code: str
) -> None:
    async with ScriptedCluster(nodes=2) as cluster, opened(cluster) as admin:
        await call(admin)
        with pytest.raises(BrokerResponseError, match=r"node \d") as caught:
            await call(admin)
        assert caught.value.code == ErrorCode[code]
        assert "may have done it" not in str(caught.value)
    async with ScriptedCluster(nodes=2) as cluster, opened(cluster) as admin:
        cluster.drop(api, after=True)
        with pytest.raises(BrokerResponseError, match="may have done it"):
            await call(admin)


async def test_removed_voter_must_have_that_directory(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with ScriptedCluster() as cluster, opened(cluster) as admin:
        with pytest.raises(BrokerResponseError, match="VOTER_NOT_FOUND"):
            await admin.remove_raft_voter(0, DIRECTORY)


async def test_change_moves_with_the_controller(autojump_clock: trio.testing.MockClock) -> None:
    async with ScriptedCluster(nodes=2) as cluster, opened(cluster) as admin:
        cluster.fail("UnregisterBroker", ErrorCode.NOT_CONTROLLER)
        await admin.unregister_broker(1)
        assert len(cluster.requests("UnregisterBroker")) == 2


async def test_resources_are_listed_by_type(autojump_clock: trio.testing.MockClock) -> None:
    async with ScriptedCluster(nodes=2, topics={"t": 1}) as cluster, opened(cluster) as admin:
        brokers = [ConfigResource("broker", "0"), ConfigResource("broker", "1")]
        assert await admin.list_config_resources() == [*brokers, ConfigResource("topic", "t")]
        assert await admin.list_config_resources(["broker"]) == brokers
        assert await admin.list_config_resources(["client_metrics"]) == []


async def test_fenced_producer_fails(autojump_clock: trio.testing.MockClock) -> None:
    async with (
        ScriptedCluster(nodes=2, topics={"t": 1}) as cluster,
        opened(cluster) as admin,
        trikafka.open_producer(
            bootstrap_servers=cluster.bootstrap_servers, dial=cluster.dial, transactional_id="a"
        ) as producer,
    ):
        async with producer.transaction():
            await producer.send("t", b"v")
        found = await admin.fence_producers(["a", "b"])
        assert list(found) == ["a", "b"]
        assert found["a"].epoch > found["b"].epoch == 0
        # The coordinator bounds the replication of its record by this timeout.
        asked = [seen.request for seen in cluster.requests("InitProducerId")][1:]
        assert [request.transaction_timeout_ms for request in asked] == [30_000, 30_000]
        with pytest.raises(trikafka.TrikafkaError):
            async with producer.transaction():
                await producer.send("t", b"v")


async def test_forced_end_aborts_the_transaction(autojump_clock: trio.testing.MockClock) -> None:
    async with (
        ScriptedCluster(topics={"t": 1}) as cluster,
        opened(cluster) as admin,
        trikafka.open_producer(
            bootstrap_servers=cluster.bootstrap_servers, dial=cluster.dial, transactional_id="a"
        ) as producer,
    ):
        with pytest.raises(trikafka.TrikafkaError):  # noqa: PT012 - the end of the block fails
            async with producer.transaction():
                await producer.send("t", b"v")
                assert (await admin.describe_transactions(["a"]))["a"].state == "Ongoing"
                await admin.force_terminate_transaction("a")
                assert (await admin.describe_transactions(["a"]))["a"].state != "Ongoing"


async def test_id_that_fails_leaves_the_others_fenced(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with ScriptedCluster() as cluster, opened(cluster) as admin:
        cluster.fail(
            "InitProducerId",
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            where=lambda request: request.transactional_id == "b",
        )
        with pytest.raises(trikafka.AdminErrors, match="'b'") as caught:
            await admin.fence_producers(["a", "b", "c"])
        assert set(caught.value.results) == {"a", "c"}
        assert isinstance(caught.value.failures["b"], trikafka.AuthorizationError)
