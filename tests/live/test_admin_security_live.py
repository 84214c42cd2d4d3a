"""Rules, quotas, users, tokens, features and the quorum: trikafka's word beside Java's tools'."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, TypeVar

import pytest
import trio
from cluster_waits import PATIENT
from trikafka_broker import KafkaCluster
from trikafka_broker.pytest_plugin import _open

import trikafka
from trikafka import AclBinding, AclFilter, QuotaEntity, QuotaName, ScramPassword, ScramRemoval
from trikafka.cli.app import run

T = TypeVar("T")
ACLS = "org.apache.kafka.tools.AclCommand"
CONFIGS = "kafka.admin.ConfigCommand"
FEATURES = "org.apache.kafka.tools.FeatureCommand"
QUORUM = "org.apache.kafka.tools.MetadataQuorumCommand"


@pytest.fixture(scope="module")
def guarded(request: pytest.FixtureRequest) -> Iterator[KafkaCluster]:
    """Run one broker with an authorizer, SCRAM, and a secret for delegation tokens."""
    options: Any = {
        "sasl": ["scram"],
        "acl": True,
        "properties": PATIENT | {"delegation.token.secret.key": "of-the-test"},
    }
    with _open(request.config, options) as cluster:
        yield cluster


@pytest.fixture
async def admin(guarded: KafkaCluster) -> Any:
    async with trikafka.open_admin(bootstrap_servers=guarded.bootstrap_servers) as admin:
        yield admin


async def java(cluster: KafkaCluster, tool: str, *arguments: str) -> str:
    """Run one of Kafka's tools; return its output."""
    server = ("--bootstrap-server", cluster.bootstrap_servers)
    done = await trio.to_thread.run_sync(
        lambda: cluster.run_tool(tool, *server, *arguments, timeout=240)
    )
    return str(done.stdout)


async def until(ask: Callable[[], Awaitable[T]], wanted: Callable[[T], bool]) -> T:
    """Ask until the answer is as wanted: the controller has a change before the brokers."""
    with trio.fail_after(240):
        while True:
            found = await ask()
            if wanted(found):
                return found
            await trio.sleep(0.05)


async def test_rules_are_as_java_says(guarded: KafkaCluster, admin: trikafka.Admin) -> None:
    mine = [
        AclBinding("User:bob", "read", "topic", "orders"),
        AclBinding("User:bob", "write", "topic", "ord", "prefixed", "deny", "10.0.0.1"),
        AclBinding("User:bob", "describe_configs", "cluster"),
        AclBinding("User:bob", "two_phase_commit", "transactional_id", "tx"),
        AclBinding("User:bob", "create_tokens", "user", "User:bob"),
    ]
    bobs = AclFilter(principal="User:bob")
    await admin.create_acls(mine)
    assert await until(lambda: admin.describe_acls(bobs), lambda found: len(found) == 5) == sorted(
        mine
    )
    text = await java(guarded, ACLS, "--list", "--principal", "User:bob")
    resource, rules = "", set()
    for line in text.splitlines():
        if found := re.search(r"resourceType=(\w+), name=(\S+), patternType=(\w+)\)", line):
            resource = " ".join(found.groups())
        elif found := re.search(
            r"principal=(\S+), host=(\S+), operation=(\w+), permissionType=(\w+)\)", line
        ):
            rules.add(" ".join((resource, *found.groups())).lower())
    assert rules == {
        " ".join(
            (
                one.resource_type,
                one.resource_name,
                one.pattern,
                one.principal,
                one.host,
                one.operation,
                one.permission,
            )
        ).lower()
        for one in mine
    }
    # What Java adds is found here; what is deleted here is gone there.
    add = ("--add", "--allow-principal", "User:carol", "--operation", "Read", "--group", "g")
    await java(guarded, ACLS, *add)
    carols = AclFilter(principal="User:carol")
    expected = AclBinding("User:carol", "read", "group", "g")
    assert await until(lambda: admin.describe_acls(carols), bool) == [expected]
    gone = await admin.delete_acls([bobs, carols])
    assert gone == {bobs: tuple(sorted(mine)), carols: (expected,)}
    await until(admin.describe_acls, lambda found: not found)
    assert "operation=" not in await java(guarded, ACLS, "--list")


async def test_rules_need_the_right_to_see_them(guarded: KafkaCluster) -> None:
    settings: dict[str, Any] = guarded.client_settings()
    async with trikafka.open_admin(**settings) as alice:
        with pytest.raises(trikafka.AuthorizationError, match="operation Describe") as caught:
            await alice.describe_acls()
        assert caught.value.operation == "Describe"


async def test_quotas_are_as_java_says(guarded: KafkaCluster, admin: trikafka.Admin) -> None:
    wanted: dict[QuotaEntity, dict[str, float]] = {
        QuotaEntity(ip="10.0.0.1"): {"connection_creation_rate": 7.0},
        QuotaEntity(client_id=QuotaName.DEFAULT): {"request_percentage": 55.5},
        QuotaEntity(user="alice"): {"consumer_byte_rate": 1e6, "producer_byte_rate": 2e6},
        QuotaEntity(user="alice", client_id="app"): {"producer_byte_rate": 3e6},
    }
    await admin.alter_client_quotas(wanted)  # type: ignore[arg-type]
    assert await until(admin.describe_client_quotas, lambda found: len(found) == 4) == wanted
    text = await java(guarded, CONFIGS, "--describe", "--entity-type", "users")
    (theirs,) = re.findall(r"Quota configs for user-principal 'alice' are (.*)", text)
    assert set(theirs.split(", ")) == {
        "consumer_byte_rate=1000000.0",
        "producer_byte_rate=2000000.0",
    }
    text = await java(guarded, CONFIGS, "--describe", "--entity-type", "ips")
    assert "connection_creation_rate=7.0" in text
    with pytest.raises(trikafka.AdminErrors, match="no_such") as caught:
        await admin.alter_client_quotas({entity: {"no_such": 1} for entity in wanted})
    assert not caught.value.results
    await admin.alter_client_quotas(
        {entity: dict.fromkeys(values) for entity, values in wanted.items()}
    )
    assert await until(admin.describe_client_quotas, lambda found: not found) == {}


async def test_user_authenticates_by_a_set_password(
    guarded: KafkaCluster, admin: trikafka.Admin
) -> None:
    settings: dict[str, Any] = guarded.client_settings()
    await admin.alter_user_scram_credentials({"dora": ScramPassword("pässword")})
    found = await until(admin.describe_user_scram_credentials, lambda found: "dora" in found)
    text = await java(guarded, CONFIGS, "--describe", "--entity-type", "users")
    theirs = {
        user: set(re.findall(r"(SCRAM-SHA-\d+)=iterations=(\d+)", rest))
        for user, rest in re.findall(
            r"SCRAM credential configs for user-principal '(\w+)' are (.*)", text
        )
    }
    assert theirs == {
        user: {(one.mechanism, str(one.iterations)) for one in own} for user, own in found.items()
    }
    settings |= {
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_plain_username": "dora",
        "sasl_plain_password": "pässword",
    }

    async def tokens() -> Any:
        try:
            async with trikafka.open_admin(**settings) as dora:
                return await dora.describe_delegation_tokens()
        except trikafka.AuthenticationError:
            return None  # what a broker describes, its logins know a moment later

    assert await until(tokens, lambda found: found is not None) == []
    await admin.alter_user_scram_credentials({"dora": ScramRemoval()})
    await until(admin.describe_user_scram_credentials, lambda found: "dora" not in found)
    with pytest.raises(trikafka.BrokerResponseError, match="'dora'"):
        await admin.alter_user_scram_credentials({"dora": ScramRemoval()})


async def test_token_is_as_java_says(guarded: KafkaCluster, tmp_path: Any) -> None:
    settings: dict[str, Any] = guarded.client_settings()
    async with trikafka.open_admin(**settings) as alice:
        token = await alice.create_delegation_token(renewers=["User:bob"], max_lifetime=7_200)
        assert (token.owner, token.requester) == ("User:alice", "User:alice")
        assert token.latest - token.issued == 7_200_000
        (mine,) = await until(alice.describe_delegation_tokens, bool)
        assert mine == token
        assert mine.hmac == token.hmac
        by_token = settings | {
            "sasl_mechanism": "SCRAM-SHA-256",
            "sasl_plain_username": token.token_id,
            "sasl_plain_password": token.password,
            "sasl_scram_token_auth": True,
        }

        async def logs_in() -> bool:
            try:
                async with trikafka.open_admin(**by_token):
                    return True
            except trikafka.AuthenticationError:
                return False  # what a broker describes, its logins know a moment later

        assert await until(logs_in, bool)
        async with trikafka.open_admin(**by_token) as job:
            with pytest.raises(trikafka.BrokerResponseError, match="not allowed on this conn"):
                await job.create_delegation_token()  # a token may not make others
        properties = tmp_path / "alice.properties"
        properties.write_text(
            "\n".join(f"{name}={value}" for name, value in guarded.java_settings().items())
        )
        server = ("--bootstrap-server", settings["bootstrap_servers"])
        describe = ("--command-config", str(properties), "--describe", "--owner-principal")
        done = await trio.to_thread.run_sync(
            lambda: guarded.run_tool(
                "org.apache.kafka.tools.DelegationTokenCommand",
                *(*server, *describe, "User:alice"),
                timeout=240,
            )
        )
        assert token.token_id in done.stdout
        assert token.password in done.stdout
        assert "User:bob" in done.stdout
        expires = await alice.renew_delegation_token(token, period=600)
        await until(
            alice.describe_delegation_tokens, lambda found: [t.expires for t in found] == [expires]
        )
        await alice.expire_delegation_token(token)
        await until(alice.describe_delegation_tokens, lambda found: not found)
        with pytest.raises(trikafka.BrokerResponseError, match="no such delegation token"):
            await alice.renew_delegation_token(token)
        with pytest.raises(trikafka.AuthorizationError, match="CreateTokens"):
            await alice.create_delegation_token(owner="User:bob")


async def test_token_needs_a_user(admin: trikafka.Admin) -> None:
    with pytest.raises(trikafka.BrokerResponseError, match="not allowed on this connection"):
        await admin.create_delegation_token()


async def test_features_are_as_java_says(guarded: KafkaCluster, admin: trikafka.Admin) -> None:
    text = await java(guarded, FEATURES, "describe")
    theirs = re.findall(
        r"Feature: (\S+)\s+SupportedMinVersion: (\S+)\s+SupportedMaxVersion: (\S+)\s+"
        r"FinalizedVersionLevel: (\S+)\s+Epoch: (\d+)",
        text,
    )
    seen = await admin.describe_features()
    assert {name for name, *_ in theirs} <= set(seen.features)
    for name, _, _, level, _ in theirs:
        if name != "metadata.version":  # Java's tool shows its name, not its level
            assert str(seen.features[name].level) == level
    level = seen.features["metadata.version"].level
    await admin.update_features({"metadata.version": level}, validate_only=True)
    with pytest.raises(trikafka.BrokerResponseError, match=r"'metadata\.version'"):
        await admin.update_features({"metadata.version": level + 1_000})


async def test_quorum_is_as_java_says(guarded: KafkaCluster, admin: trikafka.Admin) -> None:
    text = await java(guarded, QUORUM, "describe", "--status")
    said = dict(re.findall(r"^(\w+):\s+(.*)$", text, re.MULTILINE))
    seen = await admin.describe_metadata_quorum()
    assert (str(seen.leader_id), str(seen.leader_epoch)) == (said["LeaderId"], said["LeaderEpoch"])
    assert [each.node_id for each in seen.voters] == [0]
    assert seen.high_watermark is not None
    assert seen.high_watermark >= int(said["HighWatermark"])
    with pytest.raises(trikafka.BrokerResponseError, match="node 77"):
        await admin.unregister_broker(77)
    fenced = await admin.fence_producers(["fenced-1", "fenced-2"])
    again = await admin.fence_producers(["fenced-1"])
    assert again["fenced-1"].epoch == fenced["fenced-1"].epoch + 1
    assert trikafka.ConfigResource("broker", "0") in await admin.list_config_resources()


def test_rules_by_the_command(
    guarded: KafkaCluster, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    def command(*args: str) -> Any:
        capfdbinary.readouterr()
        code = run(("acls", *args, "--json", "-b", guarded.bootstrap_servers))
        out, err = capfdbinary.readouterr()
        assert code == 0, err
        return json.loads(out)

    def listed(*args: str, count: int) -> list[Any]:
        deadline = time.monotonic() + 240
        while len(found := command("list", *args)) != count:
            assert time.monotonic() < deadline, found
            time.sleep(0.05)
        return found  # type: ignore[no-any-return]

    users, operations = ("-u", "erna", "-u", "User:fritz"), ("-O", "read", "-O", "describe")
    made = command("set", *users, *operations, "-t", "ord", "-G", "ord", "--prefix")["set"]
    assert len(made) == 8
    command("set", "-u", "*", "-O", "write", "-t", "orders", "--deny")
    assert len(listed("-t", "orders", count=5)) == 5  # the prefix, and the name
    denied = listed("--deny", count=1)
    assert (denied[0]["principal"], denied[0]["permission"]) == ("User:*", "deny")
    erna = ("-u", "erna", "-t", "ord", "--prefix")
    assert len(command("delete", *erna)) == 2
    assert len(listed("-u", "erna", count=4)) == 4  # nothing was changed
    assert len(command("delete", *erna, "--execute")) == 2
    assert {one["resource_type"] for one in listed("-u", "erna", count=2)} == {"group"}
    command("set", "-u", "erna", "-O", "create-tokens", "--token-owner", "fritz")
    (owner,) = listed("--token-owner", "fritz", count=1)
    assert (owner["resource_type"], owner["resource_name"]) == ("user", "User:fritz")
    for user in ("erna", "fritz", "*"):
        command("delete", "-u", user, "--execute")
    assert listed(count=0) == []
