"""Access rules, quotas, SCRAM users and delegation tokens against the scripted cluster."""

from __future__ import annotations

import base64
import hashlib
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest
import trio
import trio.testing
from administering import opened

import trikafka
from trikafka import (
    AclBinding,
    AclFilter,
    AdminErrors,
    BrokerResponseError,
    ConfigurationError,
    DelegationToken,
    QuotaEntity,
    QuotaFilter,
    QuotaName,
    ScramCredential,
    ScramPassword,
    ScramRemoval,
)
from trikafka._api.admin.users import Salting
from trikafka.testing import ScriptedCluster

NOT_CONTROLLER, REFUSED, THROTTLED = 41, 42, 89
READ = AclBinding("User:alice", "read", "topic", "orders")
PREFIXED = AclBinding("User:bob", "write", "topic", "ord", "prefixed", "deny", "10.0.0.1")
ANY_TOPIC = AclBinding("User:*", "describe", "topic", "*")
CLUSTER = AclBinding("User:alice", "alter", "cluster")


@pytest.fixture
async def cluster() -> AsyncIterator[ScriptedCluster]:
    async with ScriptedCluster() as cluster:
        yield cluster


async def test_rules_are_created_and_found(
    autojump_clock: trio.testing.MockClock, cluster: ScriptedCluster
) -> None:
    async with opened(cluster) as admin:
        await admin.create_acls([READ, PREFIXED, ANY_TOPIC, CLUSTER])
        await admin.create_acls([READ])
        assert await admin.describe_acls() == sorted([READ, PREFIXED, ANY_TOPIC, CLUSTER])
        found = await admin.describe_acls(AclFilter(principal="User:alice", operation="read"))
        assert found == [READ]
        matching = AclFilter(resource_type="topic", resource_name="orders", pattern="match")
        assert await admin.describe_acls(matching) == sorted([READ, PREFIXED, ANY_TOPIC])
        exact = AclFilter(resource_type="topic", resource_name="orders", pattern="literal")
        assert await admin.describe_acls(exact) == [READ]


async def test_rules_are_deleted_filter_by_filter(
    autojump_clock: trio.testing.MockClock, cluster: ScriptedCluster
) -> None:
    async with opened(cluster) as admin:
        await admin.create_acls([READ, PREFIXED, CLUSTER])
        alice, nobody = AclFilter(principal="User:alice"), AclFilter(principal="User:nobody")
        gone = await admin.delete_acls([alice, nobody])
        assert gone == {alice: tuple(sorted([READ, CLUSTER])), nobody: ()}
        assert await admin.describe_acls() == [PREFIXED]


async def test_refused_rule_leaves_the_others(
    autojump_clock: trio.testing.MockClock, cluster: ScriptedCluster
) -> None:
    async with opened(cluster) as admin:
        cluster.fail("CreateAcls", REFUSED, topic="ord")
        with pytest.raises(AdminErrors, match=r"1 of 2 failed; the first: .*'ord'") as caught:
            await admin.create_acls([READ, PREFIXED])
        assert caught.value.results == {READ: None}
        assert set(caught.value.failures) == {PREFIXED}
        assert await admin.describe_acls() == [READ]


async def test_failures_are_handled_by_class(
    autojump_clock: trio.testing.MockClock, cluster: ScriptedCluster
) -> None:
    handled: list[Any] = []
    async with opened(cluster) as admin:
        cluster.fail("CreateAcls", 31, topic="ord")
        try:
            await admin.create_acls([READ, PREFIXED])
        except* trikafka.AuthorizationError as errors:
            handled += errors.failures  # type: ignore[attr-defined]
            handled += errors.results  # type: ignore[attr-defined]
    assert handled == [PREFIXED, READ]


async def test_one_thing_that_fails_raises_its_error(
    autojump_clock: trio.testing.MockClock, cluster: ScriptedCluster
) -> None:
    async with opened(cluster) as admin:
        cluster.fail("CreateAcls", 54)
        with pytest.raises(BrokerResponseError, match="no authorizer"):
            await admin.create_acls([READ])


async def test_only_what_is_left_is_sent_again(
    autojump_clock: trio.testing.MockClock, cluster: ScriptedCluster
) -> None:
    async with opened(cluster) as admin:
        cluster.fail("CreateAcls", NOT_CONTROLLER, topic="ord")
        await admin.create_acls([READ, PREFIXED])
        asked = [len(seen.request.creations) for seen in cluster.requests("CreateAcls")]
        assert asked == [2, 1]


async def test_timeout_keeps_what_is_done(
    autojump_clock: trio.testing.MockClock, cluster: ScriptedCluster
) -> None:
    async with opened(cluster) as admin:
        cluster.fail("CreateAcls", THROTTLED, None, topic="ord")
        with pytest.raises(AdminErrors) as caught:
            await admin.create_acls([READ, PREFIXED], timeout=3)
        assert caught.value.results == {READ: None}
        assert isinstance(caught.value.failures[PREFIXED], trikafka.KafkaTimeoutError)
        began = trio.current_time()
        cluster.fail("DescribeAcls", THROTTLED, None)
        with pytest.raises(trikafka.KafkaTimeoutError):
            await admin.describe_acls(timeout=3)
        assert trio.current_time() == pytest.approx(began + 3)


async def test_results_that_are_missing_are_damage(
    autojump_clock: trio.testing.MockClock, cluster: ScriptedCluster
) -> None:
    async def cut(request: Any, default: Any) -> Any:
        response = await default()
        response.results.pop()
        return response

    async with opened(cluster) as admin:
        cluster.on("CreateAcls", cut, times=1)
        await admin.create_acls([READ, PREFIXED])
        assert len(cluster.requests("CreateAcls")) == 2


ALICE = QuotaEntity(user="alice")
BOTH = QuotaEntity(user="alice", client_id="app")
EVERY_CLIENT = QuotaEntity(client_id=QuotaName.DEFAULT)
ADDRESS = QuotaEntity(ip="10.0.0.1")


async def test_quotas_are_set_found_and_removed(
    autojump_clock: trio.testing.MockClock, cluster: ScriptedCluster
) -> None:
    async with opened(cluster) as admin:
        rates: dict[str, float | None] = {"producer_byte_rate": 1e6, "consumer_byte_rate": 2e6}
        await admin.alter_client_quotas(
            {
                ALICE: rates,
                BOTH: {"request_percentage": 12.5},
                EVERY_CLIENT: {"request_percentage": 50},
                ADDRESS: {"connection_creation_rate": 3},
            }
        )
        found = await admin.describe_client_quotas()
        assert found == {
            ADDRESS: {"connection_creation_rate": 3.0},
            ALICE: {"consumer_byte_rate": 2e6, "producer_byte_rate": 1e6},
            BOTH: {"request_percentage": 12.5},
            EVERY_CLIENT: {"request_percentage": 50.0},
        }
        await admin.alter_client_quotas({ALICE: dict.fromkeys(rates)})
        await admin.alter_client_quotas({BOTH: {"request_percentage": 1}}, validate_only=True)
        assert await admin.describe_client_quotas(QuotaFilter(user=QuotaName.ANY)) == {
            BOTH: {"request_percentage": 12.5}
        }


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (QuotaFilter(user="alice"), {ALICE, BOTH}),
        (QuotaFilter(user="alice", strict=True), {ALICE}),
        (QuotaFilter(client_id=QuotaName.DEFAULT), {EVERY_CLIENT}),
        (QuotaFilter(client_id=QuotaName.ANY), {BOTH, EVERY_CLIENT}),
        (QuotaFilter(ip="10.0.0.1"), {ADDRESS}),
        (QuotaFilter(ip="10.0.0.2"), set()),
    ],
)
async def test_quota_filter_matches(
    autojump_clock: trio.testing.MockClock,
    cluster: ScriptedCluster,
    wanted: QuotaFilter,
    found: set[QuotaEntity],
) -> None:
    async with opened(cluster) as admin:
        await admin.alter_client_quotas(
            {one: {"q": 1} for one in (ALICE, BOTH, EVERY_CLIENT, ADDRESS)}
        )
        assert set(await admin.describe_client_quotas(wanted)) == found


async def test_refused_quota_names_its_entity(
    autojump_clock: trio.testing.MockClock, cluster: ScriptedCluster
) -> None:
    async with opened(cluster) as admin:
        cluster.fail("AlterClientQuotas", REFUSED, topic="alice")
        with pytest.raises(AdminErrors, match="user 'alice'") as caught:
            await admin.alter_client_quotas({ALICE: {"q": 1}, ADDRESS: {"q": 1}})
        assert set(caught.value.results) == {ADDRESS}


async def test_password_is_salted_as_rfc_5802_says(cluster: ScriptedCluster) -> None:
    async with opened(cluster) as admin:
        with trio.fail_after(240):
            await admin.alter_user_scram_credentials(
                {"alice": ScramPassword("s3cret"), "bob": ScramPassword("x", "SCRAM-SHA-256", 4096)}
            )
            found = await admin.describe_user_scram_credentials()
            assert found == {
                "alice": (ScramCredential("SCRAM-SHA-512", 8192),),
                "bob": (ScramCredential("SCRAM-SHA-256", 4096),),
            }
            assert await admin.describe_user_scram_credentials(["bob"]) == {"bob": found["bob"]}
        # A broker that refuses a null fails with a NullPointerException, and never responds.
        everyone, _ = cluster.requests("DescribeUserScramCredentials")
        assert everyone.request.users == []
        (sent,) = cluster.requests("AlterUserScramCredentials")
        alice, bob = sent.request.upsertions
        for made, password, name in ((alice, b"s3cret", "sha512"), (bob, b"x", "sha256")):
            salt = bytes(made.salt)
            assert len(salt) == 24
            assert bytes(made.salted_password) == hashlib.pbkdf2_hmac(
                name, password, salt, made.iterations
            )
        assert alice.salt != bob.salt


async def test_busy_threads_delay_no_password(cluster: ScriptedCluster, busy_threads: None) -> None:
    """A password is salted in a thread, also while the program's own hold Trio's default limiter."""
    async with opened(cluster) as admin:
        with trio.fail_after(240):
            await admin.alter_user_scram_credentials({"alice": ScramPassword("s3cret")})


async def test_password_is_in_no_text(
    cluster: ScriptedCluster, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    change = ScramPassword("s3cret")
    assert "s3cret" not in repr(change) + repr({"alice": change})
    async with opened(cluster) as admin:
        cluster.fail("AlterUserScramCredentials", 93)
        with trio.fail_after(240), pytest.raises(BrokerResponseError) as caught:
            await admin.alter_user_scram_credentials({"alice": change})
        (sent,) = cluster.requests("AlterUserScramCredentials")
        salted = bytes(sent.request.upsertions[0].salted_password)
    said = (
        f"{caught.value!r} {caught.value.__notes__ if hasattr(caught.value, '__notes__') else ''}"
    )
    for secret in ("s3cret", repr(salted)[2:-1], base64.b64encode(salted).decode()):
        assert secret not in said + caplog.text


async def test_same_salt_is_sent_again(cluster: ScriptedCluster) -> None:
    async with opened(cluster) as admin:
        cluster.fail("AlterUserScramCredentials", NOT_CONTROLLER)
        with trio.fail_after(240):
            await admin.alter_user_scram_credentials({"alice": ScramPassword("x")})
        first, second = cluster.requests("AlterUserScramCredentials")
        assert first.request.upsertions[0].salt == second.request.upsertions[0].salt


async def test_removal_without_response_is_in_doubt(cluster: ScriptedCluster) -> None:
    async with opened(cluster) as admin:
        with trio.fail_after(240):
            await admin.alter_user_scram_credentials({"alice": ScramPassword("x")})
            cluster.drop("AlterUserScramCredentials", after=True)
            with pytest.raises(BrokerResponseError, match="may have done it") as caught:
                await admin.alter_user_scram_credentials({"alice": ScramRemoval()})
            assert caught.value.code == trikafka.ErrorCode.RESOURCE_NOT_FOUND
            with pytest.raises(BrokerResponseError) as caught:
                await admin.alter_user_scram_credentials({"alice": ScramRemoval()})
            assert "may have done it" not in str(caught.value)


async def test_unknown_user_has_an_error_of_its_own(
    autojump_clock: trio.testing.MockClock, cluster: ScriptedCluster
) -> None:
    async with opened(cluster) as admin:
        assert await admin.describe_user_scram_credentials() == {}
        assert await admin.describe_user_scram_credentials([]) == {}
        with pytest.raises(BrokerResponseError, match="user 'nobody'"):
            await admin.describe_user_scram_credentials(["nobody"])


async def test_token_lives_as_it_is_told(
    autojump_clock: trio.testing.MockClock, cluster: ScriptedCluster
) -> None:
    async with opened(cluster) as admin:
        token = await admin.create_delegation_token(renewers=["User:bob"], max_lifetime=3600)
        assert (token.owner, token.requester) == ("User:scripted", "User:scripted")
        assert token.latest - token.issued == 3_600_000
        assert "secret" not in repr(token)
        assert base64.b64decode(token.password) == token.hmac
        other = await admin.create_delegation_token(owner="User:alice")
        assert await admin.describe_delegation_tokens() == [other, token]
        assert await admin.describe_delegation_tokens(["User:alice"]) == [other]
        assert await admin.describe_delegation_tokens([]) == []
        expires = await admin.renew_delegation_token(token, period=60)
        assert expires - cluster.now_ms() == 60_000
        assert await admin.expire_delegation_token(token.hmac, after=5) == expires - 55_000
        await admin.expire_delegation_token(other)
        assert [each.token_id for each in await admin.describe_delegation_tokens()] == [
            token.token_id
        ]
        with pytest.raises(BrokerResponseError, match="no such delegation token"):
            await admin.renew_delegation_token(other)


async def test_owner_needs_a_broker_that_knows_it(
    autojump_clock: trio.testing.MockClock,
) -> None:
    old: Any = {"CreateDelegationToken": (1, 2)}
    async with ScriptedCluster(api_versions=old) as cluster, opened(cluster) as admin:
        token = await admin.create_delegation_token()
        assert token.requester is None
        with pytest.raises(trikafka.UnsupportedVersionError):
            await admin.create_delegation_token(owner="User:alice")


@pytest.mark.parametrize(
    ("api", "release", "call"),
    [
        ("CreateDelegationToken", "3.6", lambda admin: admin.create_delegation_token()),
        ("DescribeUserScramCredentials", "3.5", lambda a: a.describe_user_scram_credentials()),
        ("AddRaftVoter", "3.9", lambda admin: admin.add_raft_voter(1, "A" * 22, [ENDPOINT])),
        ("RemoveRaftVoter", "3.9", lambda admin: admin.remove_raft_voter(1, "A" * 22)),
        ("UnregisterController", "4.4", lambda admin: admin.unregister_controller(1)),
        ("ListConfigResources", "4.1", lambda admin: admin.list_config_resources()),
        (
            "ListConfigResources",
            "3.7",
            lambda admin: admin.list_config_resources(["client_metrics"]),
        ),
    ],
)
async def test_old_broker_names_the_release(
    autojump_clock: trio.testing.MockClock, api: str, release: str, call: Any
) -> None:
    async with ScriptedCluster(api_versions={api: None}) as cluster, opened(cluster) as admin:
        with pytest.raises(trikafka.UnsupportedVersionError, match=f"needs Kafka {release}"):
            await call(admin)


ENDPOINT = trikafka.VoterEndpoint("CONTROLLER", "localhost", 9093)
TOKEN = DelegationToken("t", "User:a", None, 0, 0, 0)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda admin: admin.create_acls(READ), "a collection of AclBinding"),
        (lambda admin: admin.create_acls([AclFilter()]), "must hold AclBinding"),
        (lambda admin: admin.delete_acls([READ]), "must hold AclFilter"),
        (lambda admin: admin.delete_acls("x"), "a collection of AclFilter, not 'x'"),
        (lambda admin: admin.describe_acls(READ), "an AclFilter or None"),
        (lambda admin: admin.alter_client_quotas([ALICE]), "a mapping of QuotaEntity"),
        (lambda admin: admin.alter_client_quotas({"a": {"q": 1}}), "for a QuotaEntity, not 'a'"),
        (lambda admin: admin.alter_client_quotas({ALICE: {}}), "a mapping .* not empty"),
        (lambda admin: admin.alter_client_quotas({ALICE: {"q": 0}}), "a number above 0, .*not 0"),
        (lambda admin: admin.alter_client_quotas({ALICE: {"q": float("nan")}}), "a number above 0"),
        (lambda admin: admin.alter_client_quotas({ALICE: {"q": True}}), "a number above 0"),
        (lambda admin: admin.describe_client_quotas(ALICE), "a QuotaFilter or None"),
        (
            lambda admin: admin.alter_user_scram_credentials({"a": "s3cret"}),
            "ScramRemoval, not a s",
        ),
        (lambda admin: admin.alter_user_scram_credentials({"": ScramRemoval()}), "must be names"),
        (lambda admin: admin.alter_user_scram_credentials("s3cret"), "not a str"),
        (lambda admin: admin.describe_user_scram_credentials("alice"), "a collection of names"),
        (lambda admin: admin.create_delegation_token(owner="alice"), "'User:alice', not 'alice'"),
        (lambda admin: admin.create_delegation_token(renewers="User:a"), "a collection of princip"),
        (lambda admin: admin.create_delegation_token(max_lifetime=-1), "seconds from 0, not -1"),
        (lambda admin: admin.renew_delegation_token("s3cret"), "not a str"),
        (lambda admin: admin.renew_delegation_token(TOKEN), "without its secret"),
        (lambda admin: admin.renew_delegation_token(b"x", period="1"), "seconds from 0, not '1'"),
        (lambda admin: admin.expire_delegation_token(b"x", after=-2), "seconds from 0, not -2"),
        (lambda admin: admin.describe_delegation_tokens(["a"]), "User:alice"),
        (lambda admin: admin.describe_features(node_id=-1), "a whole number from 0"),
        (lambda admin: admin.update_features({"f": 0}), "from 1, not 0; downgrade= allows 0"),
        (lambda admin: admin.update_features({"f": 1}, downgrade="x"), "'safe', 'unsafe' or None"),
        (lambda admin: admin.update_features(["f"]), "a mapping of features"),
        (lambda admin: admin.add_raft_voter(-1, "A" * 22, [ENDPOINT]), "a whole number from 0"),
        (lambda admin: admin.add_raft_voter(1, "short", [ENDPOINT]), "22 letters"),
        (lambda admin: admin.add_raft_voter(1, "A" * 22, []), "at least one VoterEndpoint"),
        (lambda admin: admin.add_raft_voter(1, "A" * 22, ENDPOINT), "a collection of VoterEndp"),
        (lambda admin: admin.remove_raft_voter(1, None), "22 letters"),
        (lambda admin: admin.unregister_broker("1"), "a whole number from 0, not '1'"),
        (lambda admin: admin.unregister_controller(True), "a whole number from 0, not True"),
        (lambda admin: admin.fence_producers("tx"), "a collection of names"),
        (lambda admin: admin.force_terminate_transaction(""), "must be names"),
        (lambda admin: admin.list_config_resources(["x"]), "one of topic, broker"),
        (lambda admin: admin.list_config_resources("topic"), "a collection of types"),
    ],
)
async def test_bad_input_is_refused_before_any_request(
    autojump_clock: trio.testing.MockClock, cluster: ScriptedCluster, call: Any, text: str
) -> None:
    async with opened(cluster) as admin:
        before = len(cluster.log)
        with pytest.raises(ConfigurationError, match=text) as caught:
            await call(admin)
        assert "s3cret" not in str(caught.value)
        assert len(cluster.log) == before


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: AclBinding("alice", "read", "topic", "t"), "like 'User:alice', not 'alice'"),
        (lambda: AclBinding("User:a", "reed", "topic", "t"), "operation is one of all, read"),
        (lambda: AclBinding("User:a", "read", "topics", "t"), "resource_type is one of topic"),
        (lambda: AclBinding("User:a", "read", "topic", ""), "resource_name must be a text"),
        (
            lambda: AclBinding("User:a", "read", "topic"),
            "other type has it: got 'kafka-cluster' with 'topic'",
        ),
        (
            lambda: AclBinding("User:a", "read", "cluster", "c"),
            "only the resource_name 'kafka-cluster', and no other type has it: got 'c'",
        ),
        (lambda: AclBinding("User:a", "read", "topic", "t", "match"), "literal, prefixed"),
        (lambda: AclFilter(pattern="exact"), "pattern is one of match, literal, prefixed"),
        (lambda: AclFilter(principal="a"), "User:alice"),
        (lambda: QuotaEntity(), "a user, a client_id, both, or an ip alone, not nothing"),
        (lambda: QuotaEntity(user="a", ip="b"), "not user, ip"),
        (lambda: QuotaEntity(user=QuotaName.ANY), "QuotaName.ANY is for filters"),
        (lambda: QuotaFilter(user=""), "user must be a text that is not empty"),
        (lambda: ScramPassword(""), "the password must be a text"),
        (lambda: ScramPassword(b"s3cret"), "the password must be a text"),
        (lambda: ScramPassword("s3cret", "PLAIN"), "SCRAM-SHA-256 or SCRAM-SHA-512, not 'PLAIN'"),
        (lambda: ScramPassword("s3cret", iterations=100), "from 4096 to 16384, not 100"),
        (lambda: ScramRemoval("sha"), "mechanism is"),
        (lambda: trikafka.VoterEndpoint("", "h", 1), "listener must be a text"),
        (lambda: trikafka.VoterEndpoint("C", "h", 0), "port must be a whole number"),
    ],
)
def test_values_check_themselves(make: Any, text: str) -> None:
    with pytest.raises(ConfigurationError, match=text) as caught:
        make()
    assert "s3cret" not in str(caught.value)


async def test_salting_goes_on_where_it_was_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """Passwords whose salting takes longer than one attempt are salted in the end."""
    salted: list[bytes] = []

    def counting(name: str, password: bytes, salt: bytes, iterations: int) -> bytes:
        salted.append(password)
        if salted == [b"one", b"two"]:
            trio.from_thread.run_sync(scope.cancel)
        return b"salted"

    monkeypatch.setattr(hashlib, "pbkdf2_hmac", counting)
    salting = Salting({"a": ScramPassword("one"), "b": ScramPassword("two")})
    with trio.CancelScope() as scope:
        await salting.run()
    assert scope.cancelled_caught
    await salting.run()
    assert salted.count(b"one") == 1
    assert len(salting.request(["a", "b"]).upsertions) == 2
