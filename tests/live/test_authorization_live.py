"""A user without permission gets a typed error with the resource, and the client continues."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import trio
from cluster_waits import PATIENT, topic_reported
from trikafka_broker import KafkaCluster
from trikafka_broker.pytest_plugin import _open

import trikafka
from trikafka import AuthorizationError, TopicPartition
from trikafka._net.tls import TlsTransport


@pytest.fixture(scope="module")
def guarded(request: pytest.FixtureRequest) -> Iterator[KafkaCluster]:
    """Run a broker with rules for alice.

    She may use the topic `mine` in the group `ours`, and see the topic `seen`, and nothing else.
    She uses a password at one port, and a certificate at another.
    """
    properties = PATIENT | {
        "listener.name.mtls.ssl.client.auth": "required",
        "ssl.principal.mapping.rules": "RULE:^CN=([^,]+),.*$/$1/",
        "num.network.threads": "3",  # Kafka's default: each thread has keys for sessions of its own
    }
    options: Any = {
        "tls": True,
        "sasl": ["plain"],
        "acl": True,
        "listeners": {"MTLS": "SSL"},
        "properties": properties,
    }
    with _open(request.config, options) as cluster:
        rules = (
            ("All", "--topic", "mine"),
            ("Describe", "--topic", "seen"),
            ("Read", "--group", "ours"),
        )
        for rule in (["--operation", *rule] for rule in rules):
            add = [
                "--bootstrap-server",
                cluster.bootstrap_servers,
                "--add",
                "--allow-principal",
                "User:alice",
                *rule,
            ]
            cluster.run_tool("org.apache.kafka.tools.AclCommand", *add, timeout=240)
        trio.run(_make_topics, cluster)
        yield cluster


async def _make_topics(cluster: KafkaCluster) -> None:
    async with trikafka.open_admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        await admin.create_topics(
            {name: trikafka.NewTopic(1, 1) for name in ("mine", "theirs", "seen")}
        )
        for name in ("mine", "theirs", "seen"):
            await topic_reported(admin, name, 1)


def settings(cluster: KafkaCluster, **more: Any) -> dict[str, Any]:
    return {**cluster.client_settings(), "auto_offset_reset": "earliest", **more}


async def test_producer_without_permission_gets_errors(guarded: KafkaCluster) -> None:
    with trio.fail_after(400):
        async with trikafka.open_producer(**guarded.client_settings()) as producer:
            with pytest.raises(
                AuthorizationError,
                match=r"not authorized for the topic .*'theirs'.*operation Describe",
            ) as caught:
                await producer.send("theirs", b"x")
            assert caught.value.operation == "Describe"
            with pytest.raises(
                AuthorizationError,
                match=r"not authorized for the topic .*seen-0.*the operation Write",
            ):
                await producer.send("seen", b"x")
            assert (await producer.send("mine", b"x")).topic == "mine"


async def test_admin_without_permission_gets_errors(guarded: KafkaCluster) -> None:
    with trio.fail_after(400):
        async with trikafka.open_admin(**guarded.client_settings()) as admin:
            with pytest.raises(AuthorizationError, match=r"topic 'new'.*the operation Create"):
                await admin.create_topics({"new": trikafka.NewTopic(1, 1)})
            with pytest.raises(AuthorizationError, match=r"topic 'theirs'.*the operation Delete"):
                await admin.delete_topics(["theirs"])
            with pytest.raises(AuthorizationError, match=r"group 'others'.*the operation Describe"):
                await admin.list_group_offsets("others")
            assert list(await admin.list_topics()) == ["mine", "seen"]


async def test_admin_of_transactions_gets_errors(guarded: KafkaCluster) -> None:
    with trio.fail_after(400):
        async with (
            trikafka.open_producer(
                bootstrap_servers=guarded.bootstrap_servers, transactional_id="secret"
            ) as producer,
            trikafka.open_admin(**guarded.client_settings()) as admin,
            trikafka.open_admin(bootstrap_servers=guarded.bootstrap_servers) as superuser,
        ):
            async with producer.transaction() as transaction:
                written = await producer.send("mine", b"x")
                with pytest.raises(
                    AuthorizationError, match=r"producers of seen-0.*the operation Read"
                ):
                    await admin.describe_producers([TopicPartition("seen", 0)])
                with pytest.raises(AuthorizationError, match=r"'secret'.*the operation Describe"):
                    await admin.describe_transactions(["secret"])
                with pytest.raises(
                    AuthorizationError, match=r"topic 'theirs'.*the operation Describe"
                ):
                    await admin.find_hanging_transactions(["theirs"])
                tp = TopicPartition("mine", 0)
                text = (
                    rf"not authorized for the cluster.*aborting.*offset {written.offset} of "
                    r"mine-0.*the operation ClusterAction"
                )
                with pytest.raises(AuthorizationError, match=text) as caught:
                    await admin.abort_transaction(tp, written.offset)
                assert caught.value.operation == "ClusterAction"
                # A broker only lists what the user may see.
                listed = await superuser.list_transactions()
                assert [each.transactional_id for each in listed] == ["secret"]
                assert await admin.list_transactions() == []
                seen = (await admin.describe_producers([tp]))[tp]
                assert [
                    each.transaction_start for each in seen if each.transaction_start is not None
                ] == [written.offset]
                await transaction.abort()


async def test_group_member_without_permission_fails(guarded: KafkaCluster) -> None:
    """A member without permission for its group or topic gets an error, and can continue."""
    with trio.fail_after(400):
        async with trikafka.open_producer(**guarded.client_settings()) as producer:
            await producer.send("mine", b"y")
        with pytest.raises(AuthorizationError, match="group 'others'"):
            async with trikafka.open_consumer(
                "mine", **settings(guarded, group_id="others")
            ) as consumer:
                await anext(aiter(consumer))
        async with trikafka.open_consumer(
            "theirs", **settings(guarded, group_id="ours")
        ) as consumer:
            with pytest.raises(AuthorizationError, match=r"topic 'theirs'.*the operation Describe"):
                await anext(aiter(consumer))
            await consumer.unsubscribe()
            consumer.subscribe(["mine"])
            assert (await anext(aiter(consumer))).topic == "mine"


async def test_consumer_without_a_group_gets_errors(guarded: KafkaCluster) -> None:
    with trio.fail_after(400):
        async with trikafka.open_consumer(**settings(guarded)) as consumer:
            consumer.assign([TopicPartition("seen", 0)])
            consumer.seek(TopicPartition("seen", 0), 0)
            with pytest.raises(AuthorizationError, match=r"seen-0.*the operation Read"):
                await anext(aiter(consumer))
            consumer.assign([TopicPartition("theirs", 0)])
            with pytest.raises(AuthorizationError, match="topic 'theirs'"):
                await anext(aiter(consumer))


async def test_member_continues_after_its_rights_return(guarded: KafkaCluster) -> None:
    """A member of either protocol gets an error from each receive while its rights are missing.

    The errors come seconds apart. After the rights are granted again, records arrive.
    """
    got: dict[str, int] = {}
    errors: dict[str, int] = {}

    async def read(protocol: str) -> None:
        given = settings(guarded, group_id=f"later-{protocol}", group_protocol=protocol)
        async with trikafka.open_consumer("mine", **given) as consumer:
            while True:
                try:
                    got[protocol] += len(await consumer.receive_batch())
                except AuthorizationError:
                    errors[protocol] += 1

    async def rule(change: str) -> None:
        which = ["--allow-principal", "User:alice", "--operation", "Read", "--group", "later-"]
        which += ["--resource-pattern-type", "prefixed", "--force"]
        arguments = ["--bootstrap-server", guarded.bootstrap_servers, change, *which]
        tool = partial(guarded.run_tool, "org.apache.kafka.tools.AclCommand", timeout=240)
        await trio.to_thread.run_sync(tool, *arguments)

    async def more() -> None:
        """Wait until both have read a record that is written now, and more."""
        before = dict(got)
        while not all(got[name] > before[name] for name in got):
            await producer.send("mine", b"more")
            await trio.sleep(0.5)

    async def until_refused(count: int) -> None:
        while min(errors.values()) < count:  # noqa: ASYNC110
            await trio.sleep(0.1)

    with trio.fail_after(400):
        async with (
            trikafka.open_producer(**guarded.client_settings()) as producer,
            trio.open_nursery() as nursery,
        ):
            for protocol in ("classic", "consumer"):
                got[protocol] = errors[protocol] = 0
                nursery.start_soon(read, protocol)
            began = trio.current_time()
            await until_refused(2)
            await rule("--add")
            await more()
            refused = dict(errors)
            assert max(refused.values()) <= 4 + (trio.current_time() - began) / 2, "no busy loop"
            await rule("--remove")
            await until_refused(max(refused.values()) + 1)
            await rule("--add")
            await more()
            nursery.cancel_scope.cancel()


async def test_resumed_session_keeps_its_user(
    guarded: KafkaCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    resumed = []
    shake_hands = TlsTransport.handshake

    async def handshake(transport: TlsTransport) -> None:
        await shake_hands(transport)
        resumed.append(transport.resumed)

    monkeypatch.setattr(TlsTransport, "handshake", handshake)
    given: dict[str, Any] = {
        "bootstrap_servers": guarded.bootstrap_servers_of("MTLS"),
        "security_protocol": "SSL",
        "ssl_cafile": str(guarded.security_directory / "ca.pem"),
        "ssl_certfile": str(guarded.security_directory / "client.pem"),
    }
    with trio.fail_after(400):
        while len(resumed) < 6 or (not any(resumed) and len(resumed) < 60):
            async with trikafka.open_admin(**given) as admin:
                assert list(await admin.list_topics()) == ["mine", "seen"]
    # The broker's three network threads have keys of their own, and take turns. A connection that is
    # made again, because the machine stood still, shifts the turns: then one in three is resumed.
    assert resumed[0] is False
    assert len(resumed) > 5
    assert any(resumed)
