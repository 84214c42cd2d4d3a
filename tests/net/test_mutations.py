"""Responses with randomly changed bytes: a call ends soon, with its result or an error of ours."""

from __future__ import annotations

import random
import re
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
    T0,
    T1,
    TRANSACTIONS,
    Steps,
    admin_calls,
    cluster_of,
    each,
    hanging_calls,
    leave_transactions,
    operator_calls,
)
from kafka.protocol.api_key import ApiKey
from mutating import change_bytes
from test_authentication import Broker, connecting
from trio.testing import MockClock as Clock

import trikafka
from trikafka import (
    TrikafkaError,
)
from trikafka.testing import ScriptedCluster
from trikafka.testing.messages import api_name

SASL = ["SaslHandshake", "SaslAuthenticate"]
ALL = ["Metadata", "ApiVersions"]
PUSHES = ["GetTelemetrySubscriptions", "PushTelemetry"]


def mutation(chosen: random.Random) -> Callable[[bytes], bytes]:
    return lambda frame: change_bytes(frame, chosen)


async def admin(cluster: ScriptedCluster, settings: dict[str, Any]) -> None:
    cluster.offer("GetTelemetrySubscriptions", (0, 0))
    async with trikafka.open_admin(**settings) as client:
        await each(admin_calls(client, 20))


async def operator(cluster: ScriptedCluster, settings: dict[str, Any]) -> None:
    async with trikafka.open_admin(**settings) as client:
        await each(operator_calls(client, 20))


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
    leave_transactions(cluster)
    async with trikafka.open_admin(**settings) as client:
        await each(hanging_calls(client, cluster, 20))


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
