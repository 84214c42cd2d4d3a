"""The scripted cluster and a real Kafka, which give the same responses to the same requests.

Live.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING

import pytest
import trio
from conversations import CONVERSATIONS, Peer
from fetch_conversations import FETCH_CONVERSATIONS
from modern_conversations import MODERN_CONVERSATIONS
from rawclient import RawClient
from transaction_conversations import TRANSACTION_CONVERSATIONS, two_phase_commits

from trikafka.testing import KAFKA_4, ScriptedCluster

if TYPE_CHECKING:
    from trikafka_broker import KafkaBroker
    from trikafka_broker.pytest_plugin import MakeKafkaCluster

Conversation = Callable[[Peer], Awaitable[None]]
EVERYTHING = [
    *CONVERSATIONS,
    *FETCH_CONVERSATIONS,
    *MODERN_CONVERSATIONS,
    *TRANSACTION_CONVERSATIONS,
]


async def both_hold(real: Peer, scripted: Peer, conversation: Conversation) -> None:
    """Hold a conversation with both at the same time: some of them wait for seconds."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(real.hold, conversation)
        nursery.start_soon(scripted.hold, conversation)


@pytest.mark.parametrize("conversation", EVERYTHING, ids=lambda conversation: conversation.__name__)
async def test_scripted_cluster_answers_like_kafka(
    kafka_broker: KafkaBroker, pytestconfig: pytest.Config, conversation: Conversation
) -> None:
    set_so = dict(line.split("=") for line in pytestconfig.getini("kafka_properties"))
    heartbeat = float(set_so.get("group.consumer.heartbeat.interval.ms", 5000)) / 1000
    name = conversation.__name__.replace("_", "-")
    real = Peer(partial(trio.open_tcp_stream, kafka_broker.host, kafka_broker.port), name)
    async with ScriptedCluster(
        consumer_assignment_interval=0, consumer_heartbeat_interval=heartbeat
    ) as cluster:
        scripted = Peer(partial(cluster.dial, "broker-0", 9092), name)
        await both_hold(real, scripted, conversation)
    assert scripted.notes == real.notes


async def test_transactions_are_like_an_older_kafkas(make_kafka_cluster: MakeKafkaCluster) -> None:
    unstable = {
        "unstable.api.versions.enable": True,
        "transaction.two.phase.commit.enable": True,
        "broker.session.timeout.ms": 18_000,
    }
    with make_kafka_cluster(properties=unstable) as kafka:
        broker = kafka.brokers[0]
        async with await trio.open_tcp_stream(broker.host, broker.port) as stream:
            downgrade = {
                "feature": "transaction.version",
                "max_version_level": 1,
                "upgrade_type": 2,
            }
            client = RawClient(stream)
            answer = await client.call(
                "UpdateFeatures", 2, timeout_ms=60_000, feature_updates=[downgrade]
            )
            assert answer.error_code == 0
            level = None
            while level != 1:  # the controller has it first, and the broker learns of it later
                found = await client.call(
                    "ApiVersions", 3, client_software_name="raw", client_software_version="1"
                )
                level = {
                    item.name: item.max_version_level for item in found.finalized_features or ()
                }.get("transaction.version")
        for conversation in [*TRANSACTION_CONVERSATIONS, two_phase_commits]:
            name = conversation.__name__.replace("_", "-")
            real = Peer(partial(trio.open_tcp_stream, broker.host, broker.port), name)
            async with ScriptedCluster(
                consumer_assignment_interval=0, transaction_version=1
            ) as cluster:
                cluster.transactions.two_phase = True
                cluster.offer("InitProducerId", (0, 6))
                scripted = Peer(partial(cluster.dial, "broker-0", 9092), name)
                await both_hold(real, scripted, conversation)
            assert scripted.notes == real.notes


async def test_scripted_versions_are_within_kafkas(kafka_broker: KafkaBroker) -> None:
    async with await trio.open_tcp_stream(kafka_broker.host, kafka_broker.port) as stream:
        answer = await RawClient(stream).call(
            "ApiVersions", 3, client_software_name="raw", client_software_version="1"
        )
    real = {item.api_key: (item.min_version, item.max_version) for item in answer.api_keys}
    beyond = {
        key: (own, real[key])
        for key, own in KAFKA_4.items()
        if key in real or key <= max(real)  # an API newer than this broker
        if own[0] < real[key][0] or own[1] > real[key][1]
    }
    assert beyond == {}
