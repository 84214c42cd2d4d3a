"""Settings: every wrong name, type and value is one clear error before any I/O."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

from trikafka.config import AdminConfig, ClientConfig, ConsumerConfig, ProducerConfig, from_properties
from trikafka.errors import ConfigurationError

CLASSES: list[type[ClientConfig]] = [AdminConfig, ConsumerConfig, ProducerConfig]
SETTINGS = [(cls, f) for cls in CLASSES for f in dataclasses.fields(cls)]
NUMBERS = [(cls, f) for cls, f in SETTINGS if f.metadata["least"] is not None]
IDS = [f"{cls.__name__}.{f.name}" for cls, f in SETTINGS]
NUMBER_IDS = [f"{cls.__name__}.{f.name}" for cls, f in NUMBERS]


@pytest.mark.parametrize("cls", CLASSES)
def test_defaults_are_valid_and_frozen(cls: type[ClientConfig]) -> None:
    config = cls.build({"bootstrap_servers": "a:1"})
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.client_id = "x"  # type: ignore[misc]


@pytest.mark.parametrize(("cls", "setting"), SETTINGS, ids=IDS)
def test_every_setting_has_a_sentence_and_takes_its_default(cls: type[ClientConfig], setting: Any) -> None:
    assert setting.metadata["doc"]
    assert getattr(cls.build({setting.name: setting.default}), setting.name) == setting.default


@pytest.mark.parametrize(("cls", "setting"), SETTINGS, ids=IDS)
def test_every_setting_refuses_what_is_no_value_of_its_kind(cls: type[ClientConfig], setting: Any) -> None:
    wrong: list[Any] = [b"bytes", 1j]
    if not isinstance(setting.default, bool):
        wrong += [True, False]
    if setting.default is not None:
        wrong.append(None)
    if isinstance(setting.default, str | None) and setting.metadata["least"] is None and setting.name not in ("dial", "acks"):
        wrong += [5, 1.5, ["x"]]
    if isinstance(setting.default, tuple):
        wrong += ["text", 5]
    if setting.name == "dial":
        wrong += ["text", 5]
    if setting.name == "bootstrap_servers":
        wrong = [True, False]  # the rest is refused where the addresses are read
    for value in wrong:
        with pytest.raises(ConfigurationError, match=f"^{setting.name} must be"):
            cls.build({setting.name: value})


@pytest.mark.parametrize(("cls", "setting"), NUMBERS, ids=NUMBER_IDS)
def test_every_number_has_its_limits(cls: type[ClientConfig], setting: Any) -> None:
    least, most = setting.metadata["least"], setting.metadata["most"]
    wrong: list[Any] = [least - 1, -math.inf, math.nan, "100", [1]]
    if most is not None:
        wrong += [most + 1, math.inf]
    if not setting.name.endswith("_ms"):
        wrong += [least + 0.5, math.inf]
    for value in wrong:
        with pytest.raises(ConfigurationError, match=f"^{setting.name} must be"):
            cls.build({setting.name: value})


def test_what_goes_into_an_int32_of_the_protocol_is_limited_to_it() -> None:
    wire = {
        "fetch_max_bytes", "fetch_max_wait_ms", "fetch_min_bytes", "max_partition_fetch_bytes", "max_poll_interval_ms",
        "request_timeout_ms", "session_timeout_ms",
    }  # fmt: skip
    assert {f.name for _, f in SETTINGS if f.metadata["most"] == 2**31 - 1} >= wire


@pytest.mark.parametrize(
    ("cls", "name", "says"),
    [
        (ConsumerConfig, "group", "unknown setting 'group' for ConsumerConfig; did you mean 'group_id'?"),
        (ConsumerConfig, "bootstrap_server", "did you mean 'bootstrap_servers'?"),
        (ConsumerConfig, "acks", "unknown setting 'acks' for ConsumerConfig"),
        (ProducerConfig, "linger", "did you mean 'linger_ms'?"),
        (AdminConfig, "qqqqq", "unknown setting 'qqqqq' for AdminConfig$"),
    ],
)
def test_an_unknown_name_gets_the_nearest_right_one(cls: type[ClientConfig], name: str, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says.replace("?", r"\?")):
        cls.build({name: 1})


@pytest.mark.parametrize(
    ("cls", "settings", "says"),
    [
        (ConsumerConfig, {"auto_offset_reset": "first"}, "must be one of 'earliest', 'latest', 'none', not 'first'"),
        (ConsumerConfig, {"isolation_level": "none"}, "must be one of"),
        (ConsumerConfig, {"heartbeat_interval_ms": 50_000}, "must be below session_timeout_ms"),
        (ConsumerConfig, {"group_instance_id": "i"}, "group_instance_id needs a group_id"),
        (ConsumerConfig, {"partition_assignment_strategy": ()}, "at least one assignor"),
        (ConsumerConfig, {"max_poll_records": 1.5}, "max_poll_records must be a whole number"),
        (ProducerConfig, {"acks": 2}, "acks must be one of 0, 1, -1, 'all', not 2"),
        (ProducerConfig, {"acks": "1"}, "acks must be one of"),
        (ProducerConfig, {"acks": 1}, "enable_idempotence=True needs acks='all', not 1"),
        (ProducerConfig, {"max_in_flight_requests_per_connection": 6}, "at most 5"),
        (ProducerConfig, {"max_in_flight_requests_per_connection": 101, "enable_idempotence": False}, "100"),
        (ProducerConfig, {"transactional_id": "t", "enable_idempotence": False}, "transactional_id needs"),
        (ProducerConfig, {"delivery_timeout_ms": 30_000}, "must be at least linger_ms \\+ request_timeout_ms \\(30005\\)"),
    ],
)
def test_settings_that_do_not_fit(cls: type[ClientConfig], settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        cls.build(settings)


def test_times_that_no_broker_sees_may_be_endless() -> None:
    assert (
        ConsumerConfig.build({"default_api_timeout_ms": math.inf, "connections_max_idle_ms": math.inf}).default_api_timeout
        == math.inf
    )


def test_acks_as_the_protocol_has_them() -> None:
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
        ({"group.idd": "g"}, "unknown setting 'group.idd' for any client; did you mean 'group.id'?"),
        ({"enable.auto.commit": "yes"}, "enable.auto.commit must be true or false, not 'yes'"),
        ({"session.timeout.ms": "ten"}, "session.timeout.ms must be a number, not 'ten'"),
        ({"session.timeout.ms": "1.2.3"}, "must be a number"),
        ({"session.timeout.ms": ""}, "must be a number"),
    ],
)
def test_java_names_and_values_that_are_wrong(properties: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says.replace("?", r"\?")):
        from_properties(properties)


@pytest.mark.parametrize("properties", [{"acks": "two"}, {"acks": ""}, {"max.poll.records": "many"}, {"dial": "x"}])
def test_what_from_properties_lets_through_is_refused_when_built(properties: dict[str, str]) -> None:
    cls = ProducerConfig if "acks" in properties else ConsumerConfig
    with pytest.raises(ConfigurationError):
        cls.build(from_properties(properties))
