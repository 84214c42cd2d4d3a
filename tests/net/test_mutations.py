"""Responses with randomly changed bytes: a call ends soon, with its result or an error of ours."""

from __future__ import annotations

import math
import random
import re
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import trio
from damaged_apis import (
    ADMIN,
    GROUP,
    HANGING,
    MEMBERS,
    OPERATOR,
    PRODUCER,
    SHARE,
    TRANSACTIONS,
)
from kafka.protocol.api_key import ApiKey
from test_authentication import Broker, connecting
from trio.testing import MockClock as Clock

import trikafka
from trikafka import (
    ConfigResource,
    NewTopic,
    OffsetSpec,
    TopicPartition,
    TopicPartitionReplica,
    TrikafkaError,
)
from trikafka.testing import ScriptedCluster, encode_batch
from trikafka.testing.messages import api_name

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
REPLICA = TopicPartitionReplica("t", 0, 0)
TOPIC, OTHER = ConfigResource("topic", "t"), ConfigResource("topic", "other")
SASL = ["SaslHandshake", "SaslAuthenticate"]
ALL = ["Metadata", "ApiVersions"]
PUSHES = ["GetTelemetrySubscriptions", "PushTelemetry"]
RULE = trikafka.AclBinding("User:alice", "read", "topic", "t")
ALICE, BOB = trikafka.QuotaEntity(user="alice"), trikafka.QuotaEntity(user="bob")
REMOVAL = trikafka.ScramRemoval()
ENDPOINT = trikafka.VoterEndpoint("CONTROLLER", "broker-7", 9093)
_BYTES = (0x00, 0xFF, 0x7F, 0x80, 0x01)


class Steps(trio.abc.Instrument):
    """The longest step of any task, in seconds of processor time."""

    longest = 0.0
    _began = math.inf

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._began = time.thread_time()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        self.longest = max(self.longest, time.thread_time() - self._began)


def mutation(chosen: random.Random) -> Callable[[bytes], bytes]:
    """Return a change of one to four neighbouring bytes behind the correlation id."""

    def change(frame: bytes) -> bytes:
        if len(frame) <= 9:
            return frame
        place = chosen.randrange(8, len(frame))
        width = min(chosen.choice((1, 1, 2, 4)), len(frame) - place)
        return frame[:place] + bytes([chosen.choice(_BYTES)]) * width + frame[place + width :]

    return change


async def admin(cluster: ScriptedCluster, settings: dict[str, Any]) -> None:
    cluster.offer("GetTelemetrySubscriptions", (0, 0))
    async with trikafka.open_admin(**settings) as client:
        calls: list[Callable[[], Any]] = [
            lambda: client.list_offsets({T0: OffsetSpec.LATEST, T1: 5}, timeout=20),
            lambda: client.list_topics(timeout=20),
            lambda: client.list_groups(timeout=20),
            lambda: client.describe_groups(["g"], timeout=20),
            lambda: client.create_topics({"new": NewTopic(1)}, timeout=20),
            lambda: client.create_partitions({"new": 3}, timeout=20),
            lambda: client.delete_topics(["new"], timeout=20),
            lambda: client.topic_configs(["t"], timeout=20),
            lambda: client.alter_configs({TOPIC: {"a": 1}, OTHER: {"a": None}}, timeout=20),
            lambda: client.describe_configs([TOPIC, OTHER], timeout=20),
            lambda: client.delete_records({T0: 0, T1: OffsetSpec.LATEST}, timeout=20),
            lambda: client.alter_group_offsets("h", {T0: 1, T1: 0}, timeout=20),
            lambda: client.delete_group_offsets("h", [T0, T1], timeout=20),
            lambda: client.list_group_offsets("g", timeout=20),
            lambda: client.delete_groups(["g"], timeout=20),
            lambda: client.describe_cluster(fenced_brokers=True, timeout=20),
            lambda: client.describe_topics(["t", "u"], timeout=20),
            lambda: client.alter_partition_reassignments({T0: [1, 0], T1: None}, timeout=20),
            lambda: client.list_partition_reassignments(timeout=20),
            lambda: client.list_partition_reassignments([T0, T1], timeout=20),
            lambda: client.elect_leaders([T0, T1], timeout=20),
            lambda: client.elect_leaders(timeout=20),
            lambda: client.describe_log_dirs(timeout=20),
            lambda: client.describe_replica_log_dirs([REPLICA], timeout=20),
            lambda: client.alter_replica_log_dirs({REPLICA: "/data-0"}, timeout=20),
            lambda: client.remove_group_members("h", ["no"], timeout=20),
            lambda: client.alter_share_group_offsets("s", {T0: 0, T1: 1}, timeout=20),
            lambda: client.describe_share_groups(["s", "no"], timeout=20),
            lambda: client.list_share_group_offsets({"s": None, "no": [T0]}, timeout=20),
            lambda: client.delete_share_group_offsets("s", ["t"], timeout=20),
            lambda: client.describe_streams_groups(["s"], timeout=20),
            lambda: client.client_instance_id(timeout=20),
        ]
        for call in calls:
            with suppress(TrikafkaError):
                await call()


async def operator(cluster: ScriptedCluster, settings: dict[str, Any]) -> None:
    async with trikafka.open_admin(**settings) as client:
        calls: list[Callable[[], Any]] = [
            lambda: client.create_acls([RULE], timeout=20),
            lambda: client.describe_acls(timeout=20),
            lambda: client.delete_acls([trikafka.AclFilter()], timeout=20),
            lambda: client.alter_client_quotas({ALICE: {"q": 1}, BOB: {"q": 1}}, timeout=20),
            lambda: client.describe_client_quotas(timeout=20),
            lambda: client.alter_user_scram_credentials({"a": REMOVAL, "b": REMOVAL}, timeout=20),
            lambda: client.describe_user_scram_credentials(timeout=20),
            lambda: client.create_delegation_token(timeout=20),
            lambda: client.describe_delegation_tokens(timeout=20),
            lambda: client.renew_delegation_token(b"secret 1", timeout=20),
            lambda: client.expire_delegation_token(b"secret 1", timeout=20),
            lambda: client.describe_features(timeout=20),
            lambda: client.update_features({"metadata.version": 21}, timeout=20),
            lambda: client.describe_metadata_quorum(timeout=20),
            lambda: client.add_raft_voter(7, "A" * 22, [ENDPOINT], timeout=20),
            lambda: client.remove_raft_voter(7, "A" * 22, timeout=20),
            lambda: client.unregister_broker(1, timeout=20),
            lambda: client.unregister_controller(1, timeout=20),
            lambda: client.list_config_resources(timeout=20),
            lambda: client.fence_producers(["a", "b"], timeout=20),
        ]
        for call in calls:
            with suppress(TrikafkaError):
                await call()


async def group(cluster: ScriptedCluster, settings: dict[str, Any]) -> None:
    async with trikafka.open_consumer(
        "t", group_id="g", auto_offset_reset="earliest", **settings
    ) as client:
        for _ in range(3):
            await client.receive_batch(timeout=5)
        cluster.move_leader("t", 0, 1)  # the new leader is asked whether it has what was read
        await client.receive_batch(timeout=5)
        await client.commit(timeout=10)
        await client.committed([T0], timeout=10)
        await client.end_offsets([T0], timeout=10)


async def members(cluster: ScriptedCluster, settings: dict[str, Any]) -> None:
    async with (
        trikafka.open_consumer("t", group_id="g", **settings) as member,
        trikafka.open_admin(**settings) as client,
    ):
        await member.receive_batch(timeout=5)
        for _ in range(3):
            with suppress(TrikafkaError):
                await client.describe_groups(["g"], timeout=20)


async def producer(cluster: ScriptedCluster, settings: dict[str, Any]) -> None:
    cluster.offer("DescribeTopicPartitions", (0, 0))
    async with trikafka.open_producer(delivery_timeout_ms=40_000, **settings) as client:
        with suppress(TrikafkaError):
            await client.send("missing", b"x")
        for number in range(3):
            await client.send("t", b"x", partition=number % 2)


async def transactions(cluster: ScriptedCluster, settings: dict[str, Any]) -> None:
    given = {"transactional_id": "x", "delivery_timeout_ms": 40_000, "max_block_ms": 30_000}
    async with trikafka.open_producer(**given, **settings) as client:
        for number in range(3):
            with suppress(TrikafkaError):
                async with client.transaction() as transaction:
                    await client.send("t", b"x", partition=number % 2)
                    await transaction.send_offsets(
                        {T1: number}, trikafka.GroupMetadata("g"), timeout=20
                    )


async def share(cluster: ScriptedCluster, settings: dict[str, Any]) -> None:
    cluster.shares.times.auto_offset_reset = "earliest"
    async with trikafka.open_share_consumer("t", group_id="q", **settings) as client:
        for _ in range(2):
            with suppress(TrikafkaError), trio.move_on_after(20):
                async with await client.receive() as delivery:
                    pass
                await delivery.acknowledged()


async def hanging(cluster: ScriptedCluster, settings: dict[str, Any]) -> None:
    """Write in a transaction that no coordinator knows, and leave another one open."""
    identity = cluster.transactions.initialize(
        "y", 60_000, None, two_phase=False, keep=False
    ).identity
    cluster.transactions.add("y", identity, [("t", 1)])
    cluster.partition("t", 0).store(
        encode_batch([b"x"], timestamp=0, producer=(5, 3, 0), transactional=True)
    )
    async with trikafka.open_admin(**settings) as client:
        calls: list[Callable[[], Any]] = [
            lambda: client.list_transactions(timeout=20),
            lambda: client.describe_transactions(["y"], timeout=20),
            lambda: client.describe_producers([T0, T1], timeout=20),
            lambda: client.find_hanging_transactions(["t"], timeout=20),
            lambda: client.abort_transaction(T0, cluster.partition("t", 0).end - 1, timeout=20),
        ]
        for call in calls:
            with suppress(TrikafkaError):
                await call()


async def pushes(cluster: ScriptedCluster, settings: dict[str, Any]) -> None:
    """Push metrics, and close with a last push."""
    for api in PUSHES:
        cluster.offer(api, (0, 0))
    cluster.want_metrics(["*"], interval=1)
    async with trikafka.open_consumer(**settings) as consumer:
        with suppress(TrikafkaError):
            await consumer.client_instance_id(timeout=20)
        await trio.sleep(20)
        consumer.statistics()


USES = {
    pushes: PUSHES,
    admin: ADMIN,
    operator: OPERATOR,
    members: MEMBERS,
    group: GROUP,
    producer: PRODUCER,
    transactions: TRANSACTIONS,
    hanging: HANGING,
    share: SHARE,
}


def cluster_of(seed: int) -> ScriptedCluster:
    """Open a cluster; every second one has classic groups and transactions of version 1."""
    cluster = ScriptedCluster(
        nodes=2, topics={"t": 2}, strict=False, transaction_version=1 + seed % 2
    )
    if seed % 2:
        cluster.offer("ConsumerGroupHeartbeat", None)
    cluster.append("t", 0, [b"a", b"b"])
    return cluster


def settings_of(cluster: ScriptedCluster) -> dict[str, Any]:
    return {
        "bootstrap_servers": cluster.bootstrap_servers,
        "dial": cluster.dial,
        "request_timeout_ms": 5_000,
    }


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("use", USES)
async def test_damaged_responses_end_in_our_errors(
    autojump_clock: Clock, use: Any, seed: int
) -> None:
    chosen, steps = random.Random(f"{use.__name__} {seed}"), Steps()
    trio.lowlevel.add_instrument(steps)
    async with cluster_of(seed) as cluster:
        for api in chosen.sample([*USES[use], *ALL], 2):
            cluster.damage(api, times=chosen.choice((1, 3, 10)), change=mutation(chosen))
        with suppress(TrikafkaError), trio.fail_after(600):
            await use(cluster, settings_of(cluster))
    trio.lowlevel.remove_instrument(steps)
    assert steps.longest < 5


@pytest.mark.parametrize("use", USES)
async def test_each_use_meets_its_responses(autojump_clock: Clock, use: Any) -> None:
    met: set[str] = set()
    for seed in (0, 1):
        async with cluster_of(seed) as cluster:
            with trio.fail_after(600):
                await use(cluster, settings_of(cluster))
            met |= {seen.api_name for seen in cluster.log}
    assert set(USES[use]) <= met


def test_every_api_is_damaged() -> None:
    """Every request that trikafka makes has its response damaged here."""
    package = Path(trikafka.__file__).parent
    named: set[str] = set()
    for folder in ("_api", "_managers", "_net", "_wire"):
        for file in (package / folder).rglob("*.py"):
            named |= set(re.findall(r"\b([A-Z]\w+)Request\b", file.read_text()))
    spoken = named & {api_name(key) for key in range(128)}
    assert spoken == {*ALL, *SASL, *(api for apis in USES.values() for api in apis)}


@pytest.mark.parametrize("seed", range(12))
async def test_damaged_authentication_is_our_error(autojump_clock: Clock, seed: int) -> None:
    """The peer may be anything before it has authenticated itself."""
    change = mutation(random.Random(f"sasl {seed}"))

    class Damaging(Broker):
        @staticmethod
        def frame(request: Any, **values: Any) -> bytes:
            frame = Broker.frame(request, **values)
            return change(frame) if ApiKey.ApiVersions != request.API_KEY else frame

    async with connecting() as (line, broker, authenticator):
        damaging = Damaging(broker.stream)

        async def serve() -> None:
            with suppress(EOFError, trio.BrokenResourceError, trio.ClosedResourceError):
                await damaging.shake_hands()

        line.nursery.start_soon(serve)
        await line.connection.negotiate("1")
        with suppress(TrikafkaError), trio.fail_after(600):
            await line.connection.authenticate(authenticator)


async def test_impossible_metadata_fails_the_call(autojump_clock: Clock) -> None:
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        settings: dict[str, Any] = {
            "bootstrap_servers": cluster.bootstrap_servers,
            "dial": cluster.dial,
        }
        async with (
            trikafka.open_admin(**settings) as client,
            trikafka.open_consumer(**settings) as consumer,
        ):

            async def absurd(request: Any, default: Any) -> Any:
                response = await default()
                response.topics[0].partitions[0].partition_index = number
                return response

            cluster.on("Metadata", absurd)
            for number in (20_000_000, -1):
                for call in (client.list_topics, consumer.list_topics):
                    with pytest.raises(trikafka.KafkaTimeoutError) as caught:
                        await call(timeout=1)
                    assert isinstance(caught.value.__cause__, trikafka.ProtocolError)
                    assert f"a partition {number} of topic 't'" in str(caught.value)


@pytest.mark.parametrize(("host", "port"), [("", 9092), ("broker-0", 0), ("broker-0", 65536 + 9)])
async def test_impossible_coordinator_is_not_dialled(
    autojump_clock: Clock, host: str, port: int
) -> None:
    """The system would cut the port, and connect to another one."""
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        settings: dict[str, Any] = {
            "bootstrap_servers": cluster.bootstrap_servers,
            "dial": cluster.dial,
        }

        async def absurd(request: Any, default: Any) -> Any:
            response = await default()
            response.coordinators[0].host = host
            response.coordinators[0].port = port
            return response

        cluster.on("FindCoordinator", absurd)
        async with trikafka.open_consumer("t", group_id="g", **settings) as consumer:
            with pytest.raises(trikafka.KafkaTimeoutError) as caught:
                await consumer.committed([("t", 0)], timeout=1)
        assert isinstance(caught.value.__cause__, trikafka.ProtocolError)
        assert f"the coordinator of group 'g' is impossible: broker 0 at {host!r}" in str(
            caught.value
        )


@pytest.mark.parametrize("versions", [(-1, 9), (5, 3), (-3, -1)])
async def test_impossible_version_range_is_not_offered(
    autojump_clock: Clock, versions: tuple[int, int]
) -> None:
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        settings: dict[str, Any] = {
            "bootstrap_servers": cluster.bootstrap_servers,
            "dial": cluster.dial,
        }
        cluster.offer("ListGroups", versions)
        async with trikafka.open_admin(**settings) as client:
            assert "t" in await client.list_topics()
            with pytest.raises(
                trikafka.UnsupportedVersionError, match="does not offer ListGroupsRequest"
            ):
                await client.list_groups()


async def test_omitted_group_is_requested_again(autojump_clock: Clock) -> None:
    """A damaged name must be no ``KeyError``."""
    async with ScriptedCluster() as cluster:
        settings: dict[str, Any] = {
            "bootstrap_servers": cluster.bootstrap_servers,
            "dial": cluster.dial,
        }

        async def another(request: Any, default: Any) -> Any:
            response = await default()
            response.groups[0].group_id = "h"
            return response

        async with trikafka.open_admin(**settings) as client:
            cluster.on("DescribeGroups", another, 1)
            with pytest.raises(trikafka.GroupIdNotFoundError):
                await client.describe_groups(["g"])
            cluster.on("DescribeGroups", another)
            with pytest.raises(
                trikafka.KafkaTimeoutError, match="leaves out g, which was asked for"
            ):
                await client.describe_groups(["g"], timeout=5)
