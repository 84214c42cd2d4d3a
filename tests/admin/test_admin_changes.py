"""Settings, offsets of groups and deleted records against the scripted cluster."""

from __future__ import annotations

from typing import Any

import pytest
import trio.testing
from administering import opened, refuses

import trikafka
from trikafka import (
    AdminErrors,
    BrokerResponseError,
    ConfigChange,
    ConfigResource,
    ConfigurationError,
    ErrorCode,
    OffsetAndMetadata,
    OffsetSpec,
    TopicPartition,
    UnsupportedVersionError,
)
from trikafka.testing import ScriptedCluster

T, U = ConfigResource("topic", "t"), ConfigResource("topic", "u")
T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)
NOT_CONTROLLER, REFUSED = 41, 40


async def test_settings_are_changed_and_read(autojump_clock: trio.testing.MockClock) -> None:
    async with ScriptedCluster(topics={"t": 1, "u": 1}) as cluster, opened(cluster) as admin:
        await admin.alter_configs({T: {"a": 1, "b": True, "c": "x,y"}, U: {"a": "2"}})
        await admin.alter_configs(
            {T: {"a": None, "c": ConfigChange("append", "z"), "b": ConfigChange("set", False)}}
        )
        await admin.alter_configs({T: {"c": ConfigChange("subtract", "x")}})
        found = await admin.describe_configs([U, T])
        assert list(found) == [U, T]
        assert {name: entry.value for name, entry in found[T].items()} == {"b": "false", "c": "y,z"}
        assert found[U]["a"].source == "topic"
        assert len(cluster.requests("IncrementalAlterConfigs")) == 3


@pytest.mark.parametrize(("kind", "release"), [("group", "4.0"), ("client_metrics", "3.7")])
@pytest.mark.parametrize(
    "words", ["Unknown resource type 32", "or the message was sent to an incompatible broker."]
)
async def test_unsupported_kind_names_the_release(
    autojump_clock: trio.testing.MockClock, kind: Any, release: str, words: str
) -> None:
    """Older releases refuse the request as invalid, Kafka 3.3 as malformed."""

    async def refuse(request: Any, default: Any) -> Any:
        response = await default()
        results = getattr(response, "results", None) or response.responses
        for result in results:
            if result.resource_name == "g":
                result.error_code = int(ErrorCode.INVALID_REQUEST)
                result.error_message = words
        return response

    group = ConfigResource(kind, "g")
    async with ScriptedCluster(topics={"t": 1}) as cluster, opened(cluster) as admin:
        cluster.on("DescribeConfigs", refuse)
        cluster.on("IncrementalAlterConfigs", refuse)
        with pytest.raises(UnsupportedVersionError, match=f"need Kafka {release} or newer"):
            await admin.describe_configs([group])
        with pytest.raises(AdminErrors, match=f"need Kafka {release} or newer") as caught:
            await admin.alter_configs({group: {"a": 1}, T: {"a": 1}})
        assert list(caught.value.results) == [T]
        words = "Unknown client metrics configuration: a"
        with pytest.raises(BrokerResponseError, match="INVALID_REQUEST"):
            await admin.alter_configs({group: {"a": 1}})


async def test_refused_change_names_its_resource(autojump_clock: trio.testing.MockClock) -> None:
    async with ScriptedCluster(topics={"t": 1, "u": 1}) as cluster, opened(cluster) as admin:
        cluster.fail("IncrementalAlterConfigs", REFUSED, topic="t")
        with pytest.raises(AdminErrors, match="topic 't'") as raised:
            await admin.alter_configs({T: {"a": 1}, U: {"a": 1}})
        assert (list(raised.value.failures), list(raised.value.results)) == ([T], [U])
        assert list((await admin.describe_configs([U]))[U]) == ["a"]


async def test_retry_changes_only_what_failed(autojump_clock: trio.testing.MockClock) -> None:
    async with ScriptedCluster(topics={"t": 1, "u": 1}) as cluster, opened(cluster) as admin:
        cluster.fail("IncrementalAlterConfigs", NOT_CONTROLLER, topic="u")
        await admin.alter_configs({T: {"a": 1}, U: {"a": 1}})
        asked = [
            [one.resource_name for one in seen.request.resources]
            for seen in cluster.requests("IncrementalAlterConfigs")
        ]
        assert asked == [["t", "u"], ["u"]]


async def test_settings_of_a_broker_come_from_it(autojump_clock: trio.testing.MockClock) -> None:
    async with ScriptedCluster(nodes=3, topics={"t": 1}) as cluster, opened(cluster) as admin:
        with pytest.raises(
            trikafka.BrokerResponseError
        ):  # the scripted cluster has no settings of brokers
            await admin.describe_configs([ConfigResource("broker", "2")])
        assert {seen.node_id for seen in cluster.requests("DescribeConfigs")} == {2}
        with pytest.raises(trikafka.TrikafkaError, match="no live broker 7; it has 0, 1, 2"):
            await admin.describe_configs([ConfigResource("broker", "7")])


async def test_records_are_deleted_at_their_leaders(autojump_clock: trio.testing.MockClock) -> None:
    async with ScriptedCluster(nodes=2, topics={"t": 2}) as cluster, opened(cluster) as admin:
        for tp in (T0, T1):
            cluster.append(*tp, [b"v"] * 4)
        assert await admin.delete_records({T0: 3, T1: OffsetSpec.LATEST}) == {T0: 3, T1: 4}
        assert len(cluster.records("t", 0)) == 1
        with pytest.raises(AdminErrors, match="OFFSET_OUT_OF_RANGE") as caught:
            await admin.delete_records({T0: 4, T1: 9})
        assert set(caught.value.failures) == {T1}
        assert caught.value.results == {T0: 4}
        assert cluster.records("t", 0) == []


async def test_offsets_of_a_group_are_set_and_deleted(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with ScriptedCluster(topics={"t": 2}) as cluster, opened(cluster) as admin:
        await admin.alter_group_offsets("g", {T0: 3, T1: OffsetAndMetadata(4, metadata="m")})
        await admin.delete_group_offsets("g", [T0])
        left = await admin.list_group_offsets("g")
        assert {tp: (at.offset, at.metadata) for tp, at in left.items()} == {T1: (4, "m")}
        with pytest.raises(trikafka.GroupIdNotFoundError, match="'other'"):
            await admin.delete_group_offsets("other", [T0])


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda admin: admin.alter_configs([T]), "a mapping of ConfigResource"),
        (lambda admin: admin.alter_configs({T: {}}), "topic 't' must be a mapping"),
        (lambda admin: admin.alter_configs({"t": {"a": 1}}), "must hold ConfigResource, not 't'"),
        (lambda admin: admin.alter_configs({T: {"a": [1]}}), "the value of a must be text"),
        (lambda admin: admin.describe_configs("t"), "a collection of ConfigResource, not 't'"),
        (lambda admin: admin.delete_records([T0]), "a mapping of TopicPartition to offset"),
        (lambda admin: admin.delete_records({T0: -1}), "the offset of the first record to keep"),
        (
            lambda admin: admin.delete_records({T0: OffsetSpec.EARLIEST}),
            "the offset of the first record to keep",
        ),
        (
            lambda admin: admin.alter_group_offsets("g", {T0: -1}),
            "a whole number from 0 or an OffsetAndMetadata, not -1",
        ),
        (lambda admin: admin.alter_group_offsets("", {T0: 1}), "group_id"),
        (lambda admin: admin.delete_group_offsets("g", ["t"]), "a partition is a TopicPartition"),
    ],
)
async def test_bad_input_is_refused_before_any_request(
    autojump_clock: trio.testing.MockClock, call: Any, text: str
) -> None:
    await refuses(call, text)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: ConfigResource("topics", "t"), "one of topic, broker"),  # type: ignore[arg-type]
        (lambda: ConfigResource("topic", ""), "a text that is not empty"),
        (lambda: ConfigResource("broker", "one"), "by its number, not 'one'"),
        (lambda: ConfigChange("replace", "x"), "one of set, delete"),  # type: ignore[arg-type]
        (lambda: ConfigChange("append"), "'append' needs a value"),
        (lambda: ConfigChange("delete", "x"), "'delete' takes no value"),
    ],
)
def test_invalid_value_is_refused(make: Any, text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        make()


def test_value_of_a_change_is_hidden() -> None:
    assert "s3cret" not in repr(ConfigChange("set", "s3cret"))


@pytest.mark.parametrize("given", [[{"p": "s3cret"}], {T: [("p", "s3cret")]}, {T: "p=s3cret"}])
async def test_refused_changes_are_not_shown(
    given: Any, autojump_clock: trio.testing.MockClock
) -> None:
    async with ScriptedCluster(topics={"t": 1}) as cluster, opened(cluster) as admin:
        with pytest.raises(ConfigurationError, match="mapping") as raised:
            await admin.alter_configs(given)
        assert "s3cret" not in str(raised.value)


async def test_error_names_other_failures(autojump_clock: trio.testing.MockClock) -> None:
    async with ScriptedCluster(topics={"t": 1}) as cluster, opened(cluster) as admin:
        cluster.fail("IncrementalAlterConfigs", REFUSED, topic="t")
        broker = ConfigResource("broker", "7")
        with pytest.raises(AdminErrors, match="topic 't'; also failed: broker '7'") as raised:
            await admin.alter_configs({T: {"a": 1}, broker: {"a": 1}})
        assert "no live broker 7; it has 0" in str(raised.value.failures[broker])


async def test_partition_left_out_is_asked_for_again(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with ScriptedCluster(topics={"t": 2}) as cluster, opened(cluster) as admin:
        cluster.append("t", 0, [b"1"])
        cluster.append("t", 1, [b"1", b"2"])
        cluster.leave_out("DeleteRecords", "t", 1)
        limits = {T0: OffsetSpec.LATEST, T1: OffsetSpec.LATEST}
        assert await admin.delete_records(limits) == {T0: 1, T1: 2}
        cluster.leave_out("DeleteRecords", "t", 1, times=None)
        with pytest.raises(AdminErrors, match="leaves out t-1") as raised:
            await admin.delete_records(limits, timeout=1)
        assert isinstance(raised.value.failures[T1], trikafka.KafkaTimeoutError)
        assert list(raised.value.results) == [T0]
