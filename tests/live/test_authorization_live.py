"""What a user without permission meets: one typed error that names what it is about, and a client that goes on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import trio
from telling import told
from trikafka_broker import KafkaCluster
from trikafka_broker.pytest_plugin import _open

import trikafka
from trikafka import AuthorizationError, TopicPartition


@pytest.fixture(scope="module")
def guarded(request: pytest.FixtureRequest) -> Iterator[KafkaCluster]:
    """A broker where alice may use the topic `mine` in the group `ours`, see that there is a topic `seen`, and nothing else."""
    with _open(request.config, {"sasl": ["plain"], "acl": True}) as cluster:
        rules = ("All", "--topic", "mine"), ("Describe", "--topic", "seen"), ("Read", "--group", "ours")
        for rule in (["--operation", *rule] for rule in rules):
            add = ["--bootstrap-server", cluster.bootstrap_servers, "--add", "--allow-principal", "User:alice", *rule]
            cluster.run_tool("org.apache.kafka.tools.AclCommand", *add)
        trio.run(_make_topics, cluster)
        yield cluster


async def _make_topics(cluster: KafkaCluster) -> None:
    async with trikafka.open_admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        await admin.create_topics({name: trikafka.NewTopic(1, 1) for name in ("mine", "theirs", "seen")})
        for name in ("mine", "theirs", "seen"):
            await told(admin, name, 1)


def settings(cluster: KafkaCluster, **more: Any) -> dict[str, Any]:
    return {**cluster.client_settings(), "auto_offset_reset": "earliest", **more}


async def test_a_producer(guarded: KafkaCluster) -> None:
    with trio.fail_after(90):
        async with trikafka.open_producer(**guarded.client_settings()) as producer:
            with pytest.raises(AuthorizationError, match=r"not authorized for the topic .*'theirs'.*operation Describe") as caught:
                await producer.send("theirs", b"x")
            assert caught.value.operation == "Describe"
            with pytest.raises(AuthorizationError, match=r"not authorized for the topic .*seen-0.*the operation Write"):
                await producer.send("seen", b"x")
            assert (await producer.send("mine", b"x")).topic == "mine"


async def test_an_admin(guarded: KafkaCluster) -> None:
    with trio.fail_after(90):
        async with trikafka.open_admin(**guarded.client_settings()) as admin:
            with pytest.raises(AuthorizationError, match=r"topic 'new'.*the operation Create"):
                await admin.create_topics({"new": trikafka.NewTopic(1, 1)})
            with pytest.raises(AuthorizationError, match=r"topic 'theirs'.*the operation Delete"):
                await admin.delete_topics(["theirs"])
            with pytest.raises(AuthorizationError, match=r"group 'others'.*the operation Describe"):
                await admin.list_group_offsets("others")
            assert list(await admin.list_topics()) == ["mine", "seen"]


async def test_an_admin_of_transactions(guarded: KafkaCluster) -> None:
    with trio.fail_after(90):
        async with (
            trikafka.open_producer(bootstrap_servers=guarded.bootstrap_servers, transactional_id="secret") as producer,
            trikafka.open_admin(**guarded.client_settings()) as admin,
        ):
            async with producer.transaction() as transaction:
                written = await producer.send("mine", b"x")
                with pytest.raises(AuthorizationError, match=r"producers of seen-0.*the operation Read"):
                    await admin.describe_producers([TopicPartition("seen", 0)])
                with pytest.raises(AuthorizationError, match=r"'secret'.*the operation Describe"):
                    await admin.describe_transactions(["secret"])
                with pytest.raises(AuthorizationError, match=r"topic 'theirs'.*the operation Describe"):
                    await admin.find_hanging_transactions(["theirs"])
                tp = TopicPartition("mine", 0)
                text = rf"not authorized for the cluster.*aborting.*offset {written.offset} of mine-0.*the operation ClusterAction"
                with pytest.raises(AuthorizationError, match=text) as caught:
                    await admin.abort_transaction(tp, written.offset)
                assert caught.value.operation == "ClusterAction"
                assert await admin.list_transactions() == []  # a broker tells each only of what it may see
                seen = (await admin.describe_producers([tp]))[tp]
                assert [each.transaction_start for each in seen if each.transaction_start is not None] == [written.offset]
                await transaction.abort()


async def test_a_member_of_a_group(guarded: KafkaCluster) -> None:
    with trio.fail_after(90):
        async with trikafka.open_producer(**guarded.client_settings()) as producer:
            await producer.send("mine", b"y")
        with pytest.raises(AuthorizationError, match="group 'others'"):
            async with trikafka.open_consumer("mine", **settings(guarded, group_id="others")) as consumer:
                await anext(aiter(consumer))
        async with trikafka.open_consumer("theirs", **settings(guarded, group_id="ours")) as consumer:
            with pytest.raises(AuthorizationError, match=r"topic 'theirs'.*the operation Describe"):
                await anext(aiter(consumer))
            await consumer.unsubscribe()
            consumer.subscribe(["mine"])
            assert (await anext(aiter(consumer))).topic == "mine"


async def test_a_consumer_without_a_group(guarded: KafkaCluster) -> None:
    with trio.fail_after(90):
        async with trikafka.open_consumer(**settings(guarded)) as consumer:
            consumer.assign([TopicPartition("seen", 0)])
            consumer.seek(TopicPartition("seen", 0), 0)
            with pytest.raises(AuthorizationError, match=r"seen-0.*the operation Read"):
                await anext(aiter(consumer))
            consumer.assign([TopicPartition("theirs", 0)])
            with pytest.raises(AuthorizationError, match="topic 'theirs'"):
                await anext(aiter(consumer))
