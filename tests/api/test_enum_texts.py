"""Names as members of a string enum, as programs keep those of their topics and groups.

``class Topics(str, Enum)`` makes strings whose ``str()`` is another text than their value.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Any

import pytest
from trio.testing import MockClock as Clock

import trikafka
from trikafka import (
    AclBinding,
    AclFilter,
    ConfigResource,
    GroupMetadata,
    NewTopic,
    OffsetAndMetadata,
    QuotaEntity,
    QuotaFilter,
    ScramPassword,
    TopicPartition,
)
from trikafka.testing import ScriptedCluster


class Name(str, Enum):  # noqa: UP042  # before StrEnum programs had this, and it differs
    FLIGHTS = "flights"
    BILLING = "billing"
    NEW = "new-topic"
    POLICY = "cleanup.policy"
    COMPACT = "compact"
    ALICE = "User:alice"
    HOST = "10.0.0.1"
    RATE = "producer_byte_rate"


PLAIN = TopicPartition("flights", 0)
MEMBER = TopicPartition(Name.FLIGHTS, 0)


def settings_of(cluster: ScriptedCluster) -> dict[str, Any]:
    return {"bootstrap_servers": cluster.bootstrap_servers, "dial": cluster.dial}


def flights() -> ScriptedCluster:
    return ScriptedCluster(topics={"flights": 1})


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_group_and_topic_go_by_their_values(autojump_clock: Clock, protocol: str) -> None:
    async with flights() as cluster:
        cluster.append("flights", 0, [b"x"])
        async with trikafka.open_consumer(
            Name.FLIGHTS,
            group_id=Name.BILLING,
            group_protocol=protocol,
            auto_offset_reset="earliest",
            **settings_of(cluster),
        ) as consumer:
            assert (await consumer.receive()).value == b"x"
            await consumer.commit()
            assert consumer.subscription() == {"flights"}
            consumer.subscribe([Name.FLIGHTS])
        assert cluster.committed("billing", PLAIN) is not None


LOOK_UPS: dict[str, Callable[[trikafka.Consumer], Awaitable[object]]] = {
    "partitions_for": lambda consumer: consumer.partitions_for(Name.FLIGHTS),
    "topic_ids": lambda consumer: consumer.topic_ids([Name.FLIGHTS]),
    "end_offsets": lambda consumer: consumer.end_offsets([MEMBER]),
    "offsets_for_times": lambda consumer: consumer.offsets_for_times({MEMBER: 0}),
    "committed": lambda consumer: consumer.committed([MEMBER]),
    "commit": lambda consumer: consumer.commit({MEMBER: OffsetAndMetadata(1, None, Name.NEW)}),
    "position": lambda consumer: consumer.position(MEMBER),
    "receive": lambda consumer: consumer.receive(),
}


@pytest.mark.parametrize("name", LOOK_UPS)
async def test_assigned_topic_goes_by_its_value(autojump_clock: Clock, name: str) -> None:
    async with flights() as cluster:
        cluster.append("flights", 0, [b"x"])
        async with trikafka.open_consumer(
            group_id="g",
            auto_offset_reset="earliest",
            default_api_timeout_ms=5000,
            **settings_of(cluster),
        ) as consumer:
            consumer.assign([MEMBER])
            assert await LOOK_UPS[name](consumer) != []
            if name == "commit":
                assert cluster.committed("g", PLAIN) == OffsetAndMetadata(1, None, "new-topic")


async def test_transactional_id_and_offsets_go_by_values(autojump_clock: Clock) -> None:
    async with (
        flights() as cluster,
        trikafka.open_producer(transactional_id=Name.BILLING, **settings_of(cluster)) as producer,
    ):
        async with producer.transaction() as txn:
            await producer.send(Name.FLIGHTS, b"x")
            await txn.send_offsets({MEMBER: 7}, GroupMetadata(Name.BILLING))
        assert list(cluster.transactions.by_id) == ["billing"]
        assert cluster.committed("billing", PLAIN) == OffsetAndMetadata(7)


async def test_admin_makes_topics_by_their_values(autojump_clock: Clock) -> None:
    async with flights() as cluster, trikafka.open_admin(**settings_of(cluster)) as admin:
        made = NewTopic(1, config={Name.POLICY: Name.COMPACT})
        await admin.create_topics({Name.NEW: made})
        assert made.config_entries == {"cleanup.policy": "compact"}
        assert set(await admin.describe_topics([Name.NEW])) == {"new-topic"}
        assert set(await admin.list_offsets({MEMBER: trikafka.OffsetSpec.LATEST})) == {PLAIN}
        await admin.delete_topics([Name.NEW])
        assert set(await admin.list_topics()) == {"flights"}


async def test_admin_changes_things_by_their_values(autojump_clock: Clock) -> None:
    """Otherwise a rule, a password or a setting would silently be another one's."""
    async with flights() as cluster, trikafka.open_admin(**settings_of(cluster)) as admin:
        rule = AclBinding(Name.ALICE, "read", "topic", Name.FLIGHTS, host=Name.HOST)
        await admin.create_acls([rule])
        assert await admin.describe_acls(AclFilter(Name.ALICE)) == [
            AclBinding("User:alice", "read", "topic", "flights", host="10.0.0.1")
        ]
        await admin.alter_client_quotas({QuotaEntity(user=Name.BILLING): {Name.RATE: 5}})
        assert await admin.describe_client_quotas(QuotaFilter(user=Name.BILLING)) == {
            QuotaEntity(user="billing"): {"producer_byte_rate": 5.0}
        }
        await admin.alter_user_scram_credentials({Name.BILLING: ScramPassword(Name.NEW)})
        assert set(await admin.describe_user_scram_credentials()) == {"billing"}
        topic = ConfigResource("topic", Name.FLIGHTS)
        await admin.alter_configs({topic: {Name.POLICY: Name.COMPACT}})
        found = await admin.describe_configs([ConfigResource("topic", "flights")])
        assert found[topic]["cleanup.policy"].value == "compact"
        await admin.create_delegation_token(owner=Name.ALICE, renewers=[Name.ALICE])
        (token,) = await admin.describe_delegation_tokens([Name.ALICE])
        assert (token.owner, token.renewers) == ("User:alice", ("User:alice",))
    texts = [str(Name.FLIGHTS), str(Name.BILLING), str(Name.ALICE)]
    assert not [text for text in texts if text.encode() in repr(cluster.log).encode()]
