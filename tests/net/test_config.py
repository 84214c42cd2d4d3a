"""Settings: every wrong name, type and value is one clear error before any I/O."""

from __future__ import annotations

import ast
import dataclasses
import math
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from parsed import nodes, tree_of

import trikafka
from trikafka.config import (
    AdminConfig,
    ClientConfig,
    ConsumerConfig,
    OffsetReset,
    ProducerConfig,
    Setting,
    check_topic_name,
    check_topics_given,
    from_properties,
    parse_reset,
    settings_of,
)
from trikafka.errors import ConfigurationError

CLASSES: list[type[ClientConfig]] = [AdminConfig, ConsumerConfig, ProducerConfig]
SETTINGS = [(cls, one) for cls in CLASSES for one in settings_of(cls).values()]
NUMBERS = [(cls, one) for cls, one in SETTINGS if one.number]
IDS = [f"{cls.__name__}.{f.name}" for cls, f in SETTINGS]
JAVA = [one for _, one in SETTINGS if one.java is not None]
NUMBER_IDS = [f"{cls.__name__}.{f.name}" for cls, f in NUMBERS]


@pytest.mark.parametrize("cls", CLASSES)
def test_defaults_are_valid_and_frozen(cls: type[ClientConfig]) -> None:
    config = cls.build({"bootstrap_servers": "a:1"})
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.client_id = "x"  # type: ignore[misc]


@pytest.mark.parametrize(("cls", "setting"), SETTINGS, ids=IDS)
def test_every_setting_has_a_doc_and_its_default(cls: type[ClientConfig], setting: Setting) -> None:
    assert setting.doc
    assert not setting.doc.endswith(".")
    group = {"group_id": "g"} if cls is ConsumerConfig else {}
    assert (
        getattr(cls.build({**group, setting.name: setting.default}), setting.name)
        == setting.default
    )


@pytest.mark.parametrize(("cls", "setting"), SETTINGS, ids=IDS)
def test_every_setting_refuses_other_kinds(cls: type[ClientConfig], setting: Setting) -> None:
    wrong: list[Any] = [b"bytes", 1j]
    if not isinstance(setting.default, bool):
        wrong += [True, False]
    if setting.default is not None:
        wrong.append(None)
    if str in setting.kinds and setting.name != "acks":
        wrong += [5, 1.5, ["x"]]
    if isinstance(setting.default, tuple) or setting.name in (
        "dial",
        "key_deserializer",
        "value_deserializer",
    ):
        wrong += ["text", 5]
    if setting.name in ("bootstrap_servers", "bootstrap_controllers"):
        wrong = [True, False]  # the rest is refused where the addresses are read
    for value in wrong:
        with pytest.raises(ConfigurationError, match=f"^{setting.name} must be") as caught:
            cls.build({setting.name: value})
        assert "SecretBytes" not in str(caught.value)  # which no program knows


@pytest.mark.parametrize(("cls", "setting"), NUMBERS, ids=NUMBER_IDS)
def test_every_number_has_its_limits(cls: type[ClientConfig], setting: Setting) -> None:
    least, most = setting.least, setting.most
    wrong: list[Any] = [least - 1, -math.inf, math.nan, "100", [1]]
    if most is not None:
        wrong += [most + 1, math.inf]
    if not setting.name.endswith("_ms"):
        wrong += [least + 0.5, math.inf]
    for value in wrong:
        with pytest.raises(ConfigurationError, match=f"^{setting.name} must be") as caught:
            cls.build({setting.name: value})
        assert "SecretBytes" not in str(caught.value)  # which no program knows


def test_int32_settings_are_limited_to_int32() -> None:
    wire = {
        "fetch_max_bytes",
        "fetch_max_wait_ms",
        "fetch_min_bytes",
        "max_partition_fetch_bytes",
        "max_poll_interval_ms",
        "request_timeout_ms",
        "session_timeout_ms",
    }
    assert {one.name for _, one in SETTINGS if one.most == 2**31 - 1} >= wire


@pytest.mark.parametrize(
    ("cls", "name", "says"),
    [
        (
            ConsumerConfig,
            "group",
            "unknown setting 'group' for open_consumer(); did you mean 'group_id'?",
        ),
        (ConsumerConfig, "bootstrap_server", "did you mean 'bootstrap_servers'?"),
        (ConsumerConfig, "brokers", "did you mean 'bootstrap_servers'?"),
        (ConsumerConfig, "auto_commit", "did you mean 'enable_auto_commit'?"),
        (ConsumerConfig, "consumer_group", "did you mean 'group_id'?"),
        (ConsumerConfig, "qqqqq", "unknown setting 'qqqqq' for open_consumer()"),
        (ProducerConfig, "linger", "did you mean 'linger_ms'?"),
        (AdminConfig, "qqqqq", "unknown setting 'qqqqq' for open_admin()"),
    ],
)
def test_unknown_name_suggests_the_nearest(cls: type[ClientConfig], name: str, says: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(says) + "$"):
        cls.build({name: 1})


async def test_unknown_name_error_names_the_function() -> None:
    with pytest.raises(
        ConfigurationError,
        match=r"^unknown setting 'bootstrap_server' for export\(\); did you mean",
    ):
        await trikafka.export("t", "/nowhere", bootstrap_server="localhost:9092")
    with pytest.raises(
        ConfigurationError,
        match=r"^unknown setting 'bootstrap_server' for open_consumer\(\); did you mean",
    ):
        async with trikafka.open_consumer("t", bootstrap_server="localhost:9092"):  # type: ignore[call-arg]
            pass


@pytest.mark.parametrize(
    ("cls", "settings", "says"),
    [
        (
            ConsumerConfig,
            {"auto_offset_reset": "first"},
            "'none', 'by_duration:<ISO 8601 duration>', not 'first'",
        ),
        (
            ConsumerConfig,
            {"auto_offset_reset": "by_duration:1h"},
            "must be 'by_duration:' and an ISO 8601 duration",
        ),
        (ConsumerConfig, {"group_id": ""}, "group_id must not be empty"),
        (
            ConsumerConfig,
            {"group_id": "g", "group_instance_id": ""},
            "group_instance_id must not be empty",
        ),
        (
            ConsumerConfig,
            {"group_protocol": "streams"},
            "must be one of 'auto', 'classic', 'consumer', not 'streams'",
        ),
        (
            ConsumerConfig,
            {"group_membership_operation": "stay"},
            "one of 'default', 'leave_group', 'remain_in_group', not 'stay'",
        ),
        (ConsumerConfig, {"enable_auto_commit": True}, "enable_auto_commit=True needs a group_id"),
        (
            ConsumerConfig,
            {"partition_assignment_strategy": ("range", "range")},
            "each assignor once",
        ),
        (
            ConsumerConfig,
            {"partition_assignment_strategy": (b"range",)},
            "must be names of assignors, such as",
        ),
        (
            ConsumerConfig,
            {"partition_assignment_strategy": ()},
            "must name at least one assignor",
        ),
        (ConsumerConfig, {"session_timeout_ms": True}, "must be a number, not True"),
        (ConsumerConfig, {"group_id": True}, "must be text or None, not True"),
        # A provider of aiokafka or kafka-python.
        (
            ConsumerConfig,
            {"sasl_oauth_token_provider": SimpleNamespace(token=print)},
            "must be a function or None, not SimpleNamespace; give its method token",
        ),
        (
            ConsumerConfig,
            {"group_remote_assignor": "uniform", "group_protocol": "classic"},
            "group_remote_assignor needs group_protocol='consumer'",
        ),
        (
            ConsumerConfig,
            {
                "group_protocol": "consumer",
                "partition_assignment_strategy": ("range", "cooperative-sticky"),
            },
            "partition_assignment_strategy cannot be given with group_protocol='consumer' .* use "
            "group_remote_assignor",
        ),
        (
            ConsumerConfig,
            {"group_protocol": "consumer", "heartbeat_interval_ms": 3_000},
            "heartbeat_interval_ms cannot be given with group_protocol='consumer'",
        ),
        (ConsumerConfig, {"isolation_level": "none"}, "must be one of"),
        (ConsumerConfig, {"heartbeat_interval_ms": 50_000}, "must be below session_timeout_ms"),
        (ConsumerConfig, {"group_instance_id": "i"}, "group_instance_id needs a group_id"),
        (ConsumerConfig, {"partition_assignment_strategy": ()}, "at least one assignor"),
        (ConsumerConfig, {"max_poll_records": 1.5}, "max_poll_records must be a whole number"),
        (ProducerConfig, {"acks": 2}, "acks must be one of 0, 1, -1, 'all', not 2"),
        (ProducerConfig, {"acks": "1"}, "acks must be one of"),
        (
            ProducerConfig,
            {"acks": 1, "enable_idempotence": True},
            "enable_idempotence=True needs acks='all', not 1",
        ),
        (ProducerConfig, {"max_in_flight_requests_per_connection": 6}, "at most 5"),
        (
            ProducerConfig,
            {"max_in_flight_requests_per_connection": 101, "enable_idempotence": False},
            "100",
        ),
        (
            ProducerConfig,
            {"transactional_id": "t", "enable_idempotence": False},
            "transactional_id needs",
        ),
        (
            ProducerConfig,
            {"delivery_timeout_ms": 30_000},
            r"at least linger_ms \(5\) \+ request_timeout_ms \(30000\)",
        ),
    ],
)
def test_contradictory_settings_are_refused(
    cls: type[ClientConfig], settings: dict[str, Any], says: str
) -> None:
    with pytest.raises(ConfigurationError, match=says):
        cls.build(settings)


def test_times_unknown_to_brokers_may_be_endless() -> None:
    assert (
        ConsumerConfig.build(
            {"default_api_timeout_ms": math.inf, "connections_max_idle_ms": math.inf}
        ).default_api_timeout
        == math.inf
    )


def test_acks_become_the_protocols_codes() -> None:
    for given, code in [("all", -1), (-1, -1), (0, 0), (1, 1)]:
        assert ProducerConfig.build({"acks": given, "enable_idempotence": False}).acks_code == code


def test_java_names_become_settings() -> None:
    given = {
        "bootstrap.servers": "a:1,b:2",
        "group.id": "g",
        "enable.auto.commit": "False",
        "max.poll.records": "500",
        "session.timeout.ms": "10000",
        "linger.ms": "0.5",
        "acks": "1",
        "partition.assignment.strategy": "range, cooperative-sticky,",
        "fetch.min.bytes": 7,
    }
    assert from_properties(given) == {
        "bootstrap_servers": "a:1,b:2",
        "group_id": "g",
        "enable_auto_commit": False,
        "max_poll_records": 500,
        "session_timeout_ms": 10000,
        "linger_ms": 0.5,
        "acks": 1,
        "partition_assignment_strategy": ("range", "cooperative-sticky"),
        "fetch_min_bytes": 7,
    }


@pytest.mark.parametrize(
    ("properties", "says"),
    [
        (
            {"group.idd": "g"},
            "unknown setting 'group.idd' for any client; did you mean 'group.id'?",
        ),
        ({"enable.auto.commit": "yes"}, "enable.auto.commit must be true or false, not 'yes'"),
        ({"session.timeout.ms": "ten"}, "session.timeout.ms must be a number, not 'ten'"),
        ({"session.timeout.ms": "1.2.3"}, "must be a number"),
        ({"session.timeout.ms": ""}, "must be a number"),
        (
            {"group.id": "g", "group_id": "h"},
            "group_id is given twice, the second time as 'group_id'",
        ),
        ({"max.poll.records": "many"}, "max.poll.records must be a number, not 'many'"),
        (
            {"key.deserializer": "x.MyDeserializer"},
            "key.deserializer='x.MyDeserializer' is a class of Java's, and records are bytes: leave it out",
        ),
        (
            {"value.serializer": "x.LongSerializer"},
            "and records are bytes: leave it out, or encode before the call",
        ),
    ],
)
def test_wrong_java_settings_are_explained(properties: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says.replace("?", r"\?")):
        from_properties(properties)


def test_file_of_java_is_read_unchanged(tmp_path: Path) -> None:
    file = tmp_path / "java.properties"
    java = "org.apache.kafka.common.serialization."
    file.write_text(
        f"group.id=g\nkey.deserializer={java}StringDeserializer\nvalue.deserializer={java}ByteArrayDeserializer\n"
    )
    assert (
        from_properties(file)
        == from_properties(str(file))
        == {"group_id": "g", "key_deserializer": bytes.decode}
    )
    ConsumerConfig.build(from_properties(file))
    with pytest.raises(
        ConfigurationError, match=r"the properties cannot be read: .*missing\.properties"
    ):
        from_properties(tmp_path / "missing.properties")


@pytest.mark.parametrize("properties", [{"acks": "two"}, {"acks": ""}, {"dial": "x"}])
def test_wrong_property_is_refused_when_built(properties: dict[str, str]) -> None:
    cls = ProducerConfig if "acks" in properties else ConsumerConfig
    with pytest.raises(ConfigurationError):
        cls.build(from_properties(properties))


def test_explicit_settings_differ_from_defaults() -> None:
    assert ConsumerConfig.build({}).explicit == frozenset()
    given = {"group_id": "g", "session_timeout_ms": 45_000, "group_instance_id": None}
    assert ConsumerConfig.build(given).explicit == {"group_id", "session_timeout_ms"}
    assert ConsumerConfig().explicit == frozenset()
    assert ConsumerConfig.build(given) == ConsumerConfig.build({"group_id": "g"})


def test_valid_group_settings_are_accepted() -> None:
    for protocol in ("auto", "consumer"):
        ConsumerConfig.build(
            {"group_id": "g", "group_protocol": protocol, "group_remote_assignor": "uniform"}
        )
    ConsumerConfig.build({"group_id": "g", "group_protocol": "auto", "session_timeout_ms": 10_000})
    ConsumerConfig.build(
        {"group_id": "g", "group_protocol": "classic", "session_timeout_ms": 10_000}
    )
    ConsumerConfig.build(
        {"group_id": "g", "group_protocol": "consumer", "session_timeout_ms": 10_000}
    )
    ConsumerConfig.build({"enable_auto_commit": False})


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("PT0S", 0),
        ("PT1.5S", 1_500),
        ("PT0,001S", 1),
        ("PT0.0009S", 0),
        ("PT1H30M", 5_400_000),
        ("P7D", 604_800_000),
        ("P1DT2H3M4.005S", 93_784_005),
        ("pt10m", 600_000),
    ],
)
def test_durations_of_resets_are_read(text: str, milliseconds: int) -> None:
    assert parse_reset(f"by_duration:{text}") == OffsetReset("by_duration", milliseconds)
    config = ConsumerConfig.build({"auto_offset_reset": f"by_duration:{text}"})
    assert config.offset_reset == OffsetReset("by_duration", milliseconds)


@pytest.mark.parametrize("text", ["earliest", "latest", "none"])
def test_resets_without_a_duration_are_read(text: str) -> None:
    assert parse_reset(text) == OffsetReset(text)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("by_duration", "the duration is missing"),
        ("by_duration:", "the duration is missing"),
        ("by_duration:PT-5S", "must not be negative"),
        ("by_duration:-PT5S", "must not be negative"),
        ("by_duration:P1M", "years, months and weeks are not taken"),
        ("by_duration:P2W", "years, months and weeks are not taken"),
        ("by_duration:P", "there is no number after the 'P'"),
        ("by_duration:PT", "there is no number after the 'T'"),
        ("by_duration:P1DT", "there is no number after the 'T'"),
        ("by_duration:1 hour", "it is not a duration"),
        ("by_duration:PT1M1H", "it is not a duration"),
        ("by_duration:PT\u0661S", "it is not a duration"),
        ("by_durationPT1S", "must be one of"),
        ("Earliest", "must be one of"),
        (5, "must be one of"),
    ],
)
def test_invalid_resets_are_refused(text: object, says: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^auto_offset_reset .*{says}"):
        parse_reset(text)


@pytest.mark.parametrize("name", ["t", "a.b_c-9", "...", "x" * 249, "__consumer_offsets"])
def test_valid_topic_names_are_accepted(name: str) -> None:
    assert check_topic_name(name) == name


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("", "a topic's name must not be empty"),
        (".", "a topic cannot be called '.'"),
        ("..", "a topic cannot be called '..'"),
        ("x" * 250, "has 250 characters, and Kafka allows 249"),
        ("no such/topic", "topic 'no such/topic' has ' ', '/' in its name; Kafka allows letters"),
        ("t\u00e4glich", "in its name"),
        ("t\n", "in its name"),
        (b"t", "must be text, not b't'"),
        (None, "must be text, not None"),
        (True, "must be text, not True"),
    ],
)
def test_invalid_topic_names_are_refused(name: object, says: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(says)):
        check_topic_name(name)


@pytest.mark.parametrize(
    ("topics", "says"),
    [
        (
            (["t"],),
            "open_consumer takes topics as separate arguments: open_consumer('t', ...), not ['t']",
        ),
        ((("t", "u"),), "as separate arguments: open_consumer('t', 'u', ...), not ('t', 'u')"),
        (
            (re.compile("t.*"),),
            "takes names of topics, or one pattern alone, not re.compile('t.*') among others",
        ),
        (("t", "u", "t"), "topic 't' is given twice"),
        (("t", ""), "must not be empty"),
        ((5,), "must be text, not 5"),
    ],
)
def test_topics_in_a_wrong_shape_are_refused(topics: tuple[object, ...], says: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(says)):
        check_topics_given("open_consumer", topics)
    assert check_topics_given("open_consumer", ("t", "u")) == ("t", "u")


def test_every_java_name_leads_to_its_setting() -> None:
    others = {one.name: one.java for one in JAVA if one.java != one.name.replace("_", ".")}
    assert others.pop("partitioner") == "partitioner.class"
    assert others.pop("two_phase_commit") == "transaction.two.phase.commit.enable"
    assert all(name.startswith(("ssl_", "sasl_oauth_")) for name in others)
    for one in JAVA:
        assert one.java is not None
        assert list(from_properties({one.java: one.default})) == [one.name]


#: Settings without any effect yet. A setting leaves this list when it gets one.
NOT_HEEDED_YET: set[str] = set()


#: Properties of a config, and the setting that each is made of.
DERIVED = {
    "acks_code": "acks",
    "default_api_timeout": "default_api_timeout_ms",
    "offset_reset": "auto_offset_reset",
    "request_timeout": "request_timeout_ms",
    "uses_tls": "security_protocol",
    "prepared": "commit_prepared",
}


def test_every_setting_is_used_somewhere() -> None:
    package = Path(trikafka.__file__).parent
    files = [path for path in package.rglob("*.py") if path.parent != package / "config"]
    found = [node for path in files for node in nodes(tree_of(path))]
    read = {node.attr for node in found if isinstance(node, ast.Attribute)}
    calls = [
        node
        for node in found
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "getattr"
    ]
    read |= {call.args[1].value for call in calls if isinstance(call.args[1], ast.Constant)}
    read |= {setting for derived, setting in DERIVED.items() if derived in read}
    assert {one.name for _, one in SETTINGS} - read == NOT_HEEDED_YET


@pytest.mark.parametrize(
    "servers",
    ["me:hunter2@a:9092", ["a:9092", "me:hunter2@b:9092"], "SASL_SSL://me:hunter2@a:9092"],
)
def test_password_in_an_address_is_hidden(servers: object) -> None:
    """The address is refused and not repeated."""
    with pytest.raises(
        ConfigurationError, match=r"must not contain '@'.* sasl_plain_username"
    ) as caught:
        AdminConfig.build({"bootstrap_servers": servers})
    assert "hunter2" not in str(caught.value)
