"""Arguments of the wrong kind, refused with one typed error before any request."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator
from decimal import Decimal
from fractions import Fraction
from pathlib import PurePosixPath
from typing import Any

import numpy
import pytest
import trio.testing
from administering import opened

import trikafka
from trikafka import (
    AclBinding,
    BrokerResponseError,
    ConfigChange,
    ConfigResource,
    ConfigurationError,
    ErrorCode,
    NewTopic,
    QuotaEntity,
    ScramPassword,
    TopicPartition,
    VoterEndpoint,
)
from trikafka._api.admin.acls import broker_address
from trikafka._api.admin.admin import Admin
from trikafka._api.admin.configs import checked_changes
from trikafka.testing import ScriptedCluster

T0 = TopicPartition("t", 0)
#: Arguments that are right, so that one other argument alone is wrong.
RIGHT: dict[str, Any] = {
    "group_id": "g",
    "node_id": 1,
    "directory_id": "MvDxzVmcRsaTz33bUuRU6A",
    "endpoints": [VoterEndpoint("C", "h", 1)],
    "offsets": {T0: 1},
    "partitions": [T0],
    "totals": {"t": 2},
    "token": b"x",
}
#: No argument of an admin call may be one of these.
WRONG = (
    object(),
    [{}],
    [[]],
    [object()],
    b"x",
    "\ud800",
    ["\ud800"],
    [b"x"],
    {b"x": b"x"},
    math.nan,
)
#: Values that a call passes on, or that are anything with a truth value.
FREE = frozenset({"validate_only", "timeout", "reason", "include_defaults"})
FREE |= {"authorized_operations", "allow_replication_factor_change", "fenced_brokers"}
FREE |= {"include_internal", "include_synonyms", "include_documentation"}


def calls() -> Iterator[tuple[str, str]]:
    for name, call in inspect.getmembers(Admin, inspect.iscoroutinefunction):
        if not name.startswith("_") and name != "aclose":
            for parameter in list(inspect.signature(call).parameters)[1:]:
                if parameter not in FREE:
                    yield name, parameter


@pytest.mark.parametrize(("name", "parameter"), list(calls()))
async def test_wrong_argument_reaches_no_broker(
    autojump_clock: trio.testing.MockClock, name: str, parameter: str
) -> None:
    async with (
        ScriptedCluster(topics={"t": 1}) as cluster,
        opened(cluster) as admin,
    ):
        call = getattr(admin, name)
        needed = [
            each.name
            for each in inspect.signature(call).parameters.values()
            if each.default is each.empty
        ]
        before = len(cluster.requests())
        for wrong in WRONG:
            if parameter == "token" and wrong == b"x":
                continue
            given = {each: RIGHT.get(each, ["a"]) for each in needed} | {parameter: wrong}
            with pytest.raises(ConfigurationError):
                await call(**given)
        assert len(cluster.requests()) == before


def test_password_that_cannot_be_hashed_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="UTF-8 can encode") as caught:
        ScramPassword("geheim\ud800")
    assert "geheim" not in str(caught.value)


async def test_quota_beyond_floats_is_refused(autojump_clock: trio.testing.MockClock) -> None:
    async with (
        ScriptedCluster() as cluster,
        opened(cluster) as admin,
    ):
        with pytest.raises(ConfigurationError, match="above 0"):
            await admin.alter_client_quotas({QuotaEntity(user="a"): {"x": 10**400}})


class Bytes:
    """A path whose text is bytes."""

    def __fspath__(self) -> bytes:
        return b"s3cret"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (["compact", "delete"], "not a list; write a list as text, its items separated by commas"),
        (("compact",), "not a tuple; write a list"),
        (b"s3cret", "not a bytes"),
        ({}, "not a dict"),
        (object(), "not a object"),
        ("s3cret\ud800", "text that UTF-8 can carry"),
        (math.nan, "not infinite or NaN"),
        (-math.inf, "not infinite or NaN"),
        (numpy.float32("inf"), "not infinite or NaN"),
        (Decimal("sNaN"), "not infinite or NaN"),
        (Decimal("Infinity"), "not infinite or NaN"),
        (1j, "not a complex"),
        (Bytes(), "not a Bytes"),
    ],
)
def test_value_of_a_setting_is_checked(value: Any, text: str) -> None:
    """The text that Python has for another kind may be valid, and a password of ``b'...'``."""
    for make in (
        lambda: NewTopic(config={"x": value}),
        lambda: ConfigChange("set", value),
        lambda: ConfigChange("append", value),
        lambda: checked_changes({ConfigResource("topic", "t"): {"x": value}}),
    ):
        with pytest.raises(ConfigurationError, match=text) as caught:
            make()
        assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({"retention.ms": None}, "not None; leave it out for the default"),
        ({1: "x"}, "the name of a setting is a text, not 1"),
        ([("retention.ms", 5)], "must be a mapping .* not a list"),
        (None, "must be a mapping .* not None"),
    ],
)
def test_settings_of_a_topic_are_checked(config: Any, text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        NewTopic(config=config)


async def test_mistakes_have_advice(autojump_clock: trio.testing.MockClock) -> None:
    with pytest.raises(ConfigurationError, match=r"a topic's name is a key: {'t': NewTopic\(3\)}"):
        NewTopic("t", 3)  # type: ignore[arg-type]
    async with (
        ScriptedCluster(topics={"t": 1}) as cluster,
        opened(cluster) as admin,
    ):
        with pytest.raises(ConfigurationError, match=r"such as OffsetSpec\.LATEST"):
            await admin.list_offsets({T0: "latest"})  # type: ignore[dict-item]
        with pytest.raises(ConfigurationError, match=r"such as {\"jobs\": NewTopic\(3\)}"):
            await admin.create_topics(["t"])  # type: ignore[arg-type]
        with pytest.raises(ConfigurationError, match=r"write \[ConfigResource\(type='topic'"):
            await admin.describe_configs(ConfigResource("topic", "t"))  # type: ignore[arg-type]
        with pytest.raises(ConfigurationError, match=r"write \[TopicPartition\('t', 0\)\]"):
            await admin.elect_leaders(T0)  # type: ignore[arg-type]


async def test_other_numbers_and_paths_are_taken(autojump_clock: trio.testing.MockClock) -> None:
    async with (
        ScriptedCluster(topics={"t": 1}) as cluster,
        opened(cluster) as admin,
    ):
        values: dict[str, Any] = {
            "a": numpy.int64(5),
            "b": numpy.bool_(True),
            "c": numpy.float32(0.5),
            "d": numpy.float64(0.25),
            "e": Decimal("0.50"),
            "f": Fraction(5),
            "g": PurePosixPath("/keys/ca.pem"),
            "h": 10**400,
        }
        topic = ConfigResource("topic", "t")
        await admin.alter_configs({topic: values})
        (asked,) = cluster.requests("IncrementalAlterConfigs")
        sent = {each.name: each.value for each in asked.request.resources[0].configs}
        numbers = {"a": "5", "b": "true", "c": "0.5", "d": "0.25", "e": "0.50", "f": "5"}
        assert sent == {**numbers, "g": "/keys/ca.pem", "h": str(10**400)}
        assert NewTopic(config=values).config_entries == sent
        alice = QuotaEntity(user="alice")
        await admin.alter_client_quotas(
            {alice: {"producer_byte_rate": numpy.int64(5), "request_percentage": numpy.float32(2)}}
        )
        assert await admin.describe_client_quotas() == {
            alice: {"producer_byte_rate": 5.0, "request_percentage": 2.0}
        }
        assert ScramPassword("x", iterations=numpy.int32(4096)).iterations == 4096


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("::1", "0:0:0:0:0:0:0:1"),
        ("2001:DB8::a", "2001:db8:0:0:0:0:0:a"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("10.0.0.1", None),
        ("0:0:0:0:0:0:0:1", None),
        ("10.0.0.0/8", None),
        ("*", None),
    ],
)
async def test_rule_that_never_applies_is_logged(
    host: str,
    address: str | None,
    autojump_clock: trio.testing.MockClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Brokers compare the texts of addresses. A copy of a cluster's rules has this one, too."""
    rules = [AclBinding("User:a", "read", "topic", "t", host=each) for each in (host, "10.1.1.1")]
    async with (
        ScriptedCluster() as cluster,
        opened(cluster) as admin,
    ):
        await admin.create_acls(rules)
        found = await admin.describe_acls()
        assert sorted(found) == sorted(rules)
        caplog.clear()
        await admin.create_acls(found)
    said = [each.getMessage() for each in caplog.records if each.name == "trikafka.admin"]
    if address is None:
        assert said == []
        return
    assert broker_address(host) == address
    assert said == [
        f"the access rule {str(rules[0])!r} never applies: brokers write the address {host} as "
        f"{address}, and compare texts; create the rule with host={address!r}"
    ]


async def test_error_names_all_brokers(autojump_clock: trio.testing.MockClock) -> None:
    async with (
        ScriptedCluster(topics={"t": 1}) as cluster,
        opened(cluster) as admin,
    ):

        async def refuse(request: Any, default: Any) -> Any:
            response = await default()
            response.responses[0].error_code = ErrorCode.INVALID_CONFIG
            response.responses[0].error_message = "no such value"
            return response

        cluster.on("IncrementalAlterConfigs", refuse)
        with pytest.raises(BrokerResponseError, match=r"all brokers \(no such value\)"):
            await admin.alter_configs({ConfigResource("broker", ""): {"x": 1}})


#: A broker closes the connection when it reads a longer text.
LONG = "ü" * 16_384


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda admin: admin.delete_topics([LONG]), "'name' has 32768 bytes, and a text in a"),
        (lambda admin: admin.create_topics({LONG: NewTopic(1, 1)}), "'name' has 32768 bytes"),
        (lambda admin: admin.describe_groups([LONG]), "'key' has 32768 bytes"),
        (
            lambda admin: admin.alter_configs({ConfigResource("topic", "t"): {"x": LONG}}),
            "'value' has 32768 bytes",
        ),
        (lambda admin: admin.list_offsets({TopicPartition("x" * 250, 0): 0}), "Kafka allows 249"),
    ],
)
async def test_overlong_text_is_refused(
    autojump_clock: trio.testing.MockClock, call: Any, text: str
) -> None:
    """The call was repeated until its time was up: each attempt looked like an outage."""
    async with (
        ScriptedCluster(topics={"t": 1}) as cluster,
        opened(cluster) as admin,
    ):
        with pytest.raises(ConfigurationError, match=text):
            await call(admin)
        await admin.alter_configs({ConfigResource("topic", "t"): {"x": "y" * 32_767}})


async def test_long_name_fails_no_other_call(autojump_clock: trio.testing.MockClock) -> None:
    """One request for metadata is for all calls that wait for it."""
    long = TopicPartition("x" * 40_000, 0)
    async with (
        ScriptedCluster(topics={"t": 1}) as cluster,
        opened(cluster) as admin,
        trio.open_nursery() as nursery,
    ):

        async def wrong() -> None:
            with pytest.raises(ConfigurationError):
                await admin.list_offsets({long: trikafka.OffsetSpec.LATEST})

        nursery.start_soon(wrong)
        found = await admin.list_offsets({T0: trikafka.OffsetSpec.LATEST})
        assert found.keys() == {T0}


async def test_hanging_needs_a_number_of_seconds(autojump_clock: trio.testing.MockClock) -> None:
    async with (
        ScriptedCluster(topics={"t": 1}) as cluster,
        opened(cluster) as admin,
    ):
        with pytest.raises(ConfigurationError, match="longer_than must be a number of seconds"):
            await admin.find_hanging_transactions(longer_than=None)  # type: ignore[arg-type]
        assert await admin.list_transactions(longer_than=None) == []
