"""Responses with items that were not requested, duplicates, omissions and nulls.

``mutating.py`` has the random ones.
"""

from __future__ import annotations

import copy
import re
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import trio
from mutating import LONGEST, USES, run
from trio.testing import MockClock as Clock

import trikafka
from trikafka import NewTopic, TopicPartition
from trikafka._wire.asking import _NAMES
from trikafka.errors import DamagedResponseError
from trikafka.testing import ScriptedCluster

T0 = TopicPartition("t", 0)
Default = Callable[[], Awaitable[Any]]
#: Requests without an item that a response could replace, and requests whose readers look up what
#: they sent. Metadata's reader refuses the response as a whole, Fetch and Produce have their own
#: readers, and any error of a LeaveGroup is this member's.
NAMELESS = {
    "ApiVersions",
    "SaslHandshake",
    "SaslAuthenticate",
    "GetTelemetrySubscriptions",
    "PushTelemetry",
    "Heartbeat",
    "InitProducerId",
    "AddOffsetsToTxn",
    "EndTxn",
    "JoinGroup",
    "SyncGroup",
    "LeaveGroup",
    "ConsumerGroupHeartbeat",
    "ListGroups",
    "ListTransactions",
    "DescribeTopicPartitions",
    "DescribeCluster",
    "DescribeLogDirs",
    "AlterReplicaLogDirs",
    # Results in the order of the request, without a name.
    "CreateAcls",
    "DeleteAcls",
    # Each is about one thing, or asks for all that match.
    "AddRaftVoter",
    "AlterClientQuotas",
    "CreateDelegationToken",
    "DescribeAcls",
    "DescribeClientQuotas",
    "DescribeDelegationToken",
    "DescribeQuorum",
    "ExpireDelegationToken",
    "ListConfigResources",
    "RemoveRaftVoter",
    "RenewDelegationToken",
    "UnregisterBroker",
    "UnregisterController",
    "Metadata",
    "Fetch",
    "Produce",
    "ShareAcknowledge",
    "ShareFetch",
    "ShareGroupHeartbeat",
}


def test_every_request_has_its_response_checked() -> None:
    package = Path(trikafka.__file__).parent
    text = "".join(
        file.read_text()
        for room in ("_net", "_wire", "_managers", "_api")
        for file in (package / room).rglob("*.py")
    )
    made = set(re.findall(r'\b([A-Z]\w+)Request(?:\(|"\))', text)) - {
        "InFlight",
        "Encoded",
        "Raw",
        "Session",
        "Topic",
        "Malformed",
    }
    assert made - NAMELESS == {name.removesuffix("Request") for name in _NAMES}


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("use", USES)
def test_some_random_mutations_are_survived(use: Any, seed: int) -> None:
    found = run(use, seed)
    if found.longest >= LONGEST:  # the machine, or the same step again
        found = run(use, seed)
    assert found.fault == ""
    assert found.made > 0
    assert found.longest < LONGEST, found.whose


def settings_of(cluster: ScriptedCluster, **more: Any) -> dict[str, Any]:
    return {"bootstrap_servers": cluster.bootstrap_servers, "dial": cluster.dial, **more}


def more_of(field: str, **values: Any) -> Callable[[Any, Default], Awaitable[Any]]:
    """Respond with one topic more, like the first but for the given changes."""

    async def handle(request: Any, default: Default) -> Any:
        response = await default()
        topics = getattr(response, field)
        topic = copy.deepcopy(topics[0])
        for name, value in values.items():
            setattr(topic if hasattr(topic, name) else topic.partitions[0], name, value)
        setattr(response, field, [topic, *topics])
        return response

    return handle


@pytest.mark.parametrize(
    "values", [{"name": "u"}, {"partition_index": 7}, {"partition_index": -1}, {}]
)
async def test_unrequested_offsets_are_ignored(
    autojump_clock: Clock, values: dict[str, Any]
) -> None:
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        cluster.append("t", 0, [b"x"])
        cluster.on("ListOffsets", more_of("topics", **values))
        async with trikafka.open_consumer(
            **settings_of(cluster), auto_offset_reset="earliest"
        ) as consumer:
            consumer.assign([T0])
            with trio.fail_after(5):
                assert (await consumer.receive()).value == b"x"
                assert await consumer.end_offsets([T0]) == {T0: 1}


async def test_duplicated_metadata_is_refused(autojump_clock: Clock) -> None:
    async with (
        ScriptedCluster(topics={"t": 1, "u": 1}) as cluster,
        trikafka.open_admin(**settings_of(cluster)) as admin,
    ):

        def double(what: str) -> Callable[[Any, Default], Awaitable[Any]]:
            async def handle(request: Any, default: Default) -> Any:
                response = await default()
                holder = response.topics[0] if what == "partitions" else response
                if what == "topic ids":
                    response.topics[1].topic_id = response.topics[0].topic_id
                else:
                    setattr(holder, what, getattr(holder, what) * 2)
                return response

            return handle

        for what in ("topics", "partitions", "brokers", "topic ids"):
            cluster.on("Metadata", double(what), 1)
            assert set(await admin.list_topics(timeout=10)) == {"t", "u"}
            rule = cluster.on("Metadata", double(what))
            with pytest.raises(trikafka.KafkaTimeoutError, match="twice"):
                await admin.list_topics(timeout=2)
            rule.remove()


async def test_omitted_item_is_an_error(autojump_clock: Clock) -> None:
    """The call does not return as if all was well."""

    def first_only(field: str) -> Callable[[Any, Default], Awaitable[Any]]:
        async def handle(request: Any, default: Default) -> Any:
            response = await default()
            setattr(response, field, getattr(response, field)[:1])
            return response

        return handle

    async with (
        ScriptedCluster(topics={"t": 1}) as cluster,
        trikafka.open_admin(**settings_of(cluster)) as admin,
    ):
        calls: dict[str, tuple[str, Callable[[], Awaitable[Any]]]] = {
            "CreateTopics": (
                "topics",
                lambda: admin.create_topics({"a": NewTopic(1), "b": NewTopic(1)}, timeout=3),
            ),
            "CreatePartitions": (
                "results",
                lambda: admin.create_partitions({"a": 2, "t": 2}, timeout=3),
            ),
            "DescribeConfigs": ("results", lambda: admin.topic_configs(["t", "a"], timeout=3)),
            "DeleteTopics": ("responses", lambda: admin.delete_topics(["a", "t"], timeout=3)),
        }
        for api, (field, call) in calls.items():
            rule = cluster.on(api, first_only(field))
            with pytest.raises(trikafka.TrikafkaError):
                await call()
            rule.remove()
        cluster.transactions.initialize("y", 60_000, None, two_phase=False, keep=False)

        async def nothing(request: Any, default: Default) -> Any:
            response = await default()
            response.transaction_states = []
            return response

        cluster.on("DescribeTransactions", nothing)
        with pytest.raises(trikafka.KafkaTimeoutError, match="leaves out 'y'") as timed_out:
            await admin.describe_transactions(["y"], timeout=3)
        assert isinstance(timed_out.value.__cause__, DamagedResponseError)


async def changed_beat(change: Callable[[Any], None], times: int, *, pattern: bool = False) -> None:
    """Check that a member whose first assignments are changed so still gets its records."""
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        cluster.append("t", 0, [b"x"])

        async def handle(request: Any, default: Default) -> Any:
            response = await default()
            if response.assignment is not None:
                change(response)
            return response

        cluster.on("ConsumerGroupHeartbeat", handle, times)
        given: dict[str, Any] = {
            "group_id": "g",
            "auto_offset_reset": "earliest",
            "group_protocol": "consumer",
        }
        async with trikafka.open_consumer(**settings_of(cluster, **given)) as consumer:
            consumer.subscribe(["t"])
            with trio.fail_after(60):
                assert (await consumer.receive()).value == b"x"


@pytest.mark.parametrize("what", ["topics", "partitions", "topic", "number"])
async def test_impossible_assignment_is_survived(autojump_clock: Clock, what: str) -> None:
    def change(response: Any) -> None:
        assignment = response.assignment
        if what == "topics":
            assignment.topic_partitions = None
        elif assignment.topic_partitions:
            (topic,) = assignment.topic_partitions
            if what == "partitions":
                topic.partitions = None
            elif what == "topic":
                topic.topic_id = uuid.UUID(int=0)
            else:
                topic.partitions = [-1]

    await changed_beat(change, 3)


async def test_assigned_unknown_topic_is_survived(autojump_clock: Clock) -> None:
    """The coordinator repeats an assignment only to a member that sends everything again."""

    def change(response: Any) -> None:
        for topic in response.assignment.topic_partitions:
            topic.topic_id = uuid.UUID(int=99)

    await changed_beat(change, 1)


async def test_heartbeat_interval_is_bounded(autojump_clock: Clock) -> None:
    async with ScriptedCluster(topics={"t": 1}) as cluster:

        async def rarely(request: Any, default: Default) -> Any:
            response = await default()
            response.heartbeat_interval_ms = 2**31 - 1
            return response

        cluster.on("ConsumerGroupHeartbeat", rarely)
        async with trikafka.open_consumer(
            **settings_of(cluster, group_id="g", group_protocol="consumer")
        ) as consumer:
            consumer.subscribe(["t"])
            with trio.move_on_after(100):
                await consumer.receive()
        assert len(cluster.requests("ConsumerGroupHeartbeat")) >= 6


async def test_impossible_leader_epoch_is_survived(autojump_clock: Clock) -> None:
    """Epochs do not go back, so one too high would be believed for ever."""
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        cluster.append("t", 0, [b"x"])

        async def ahead(request: Any, default: Default) -> Any:
            response = await default()
            for topic in response.topics:
                for part in topic.partitions:
                    part.leader_epoch = 2**31 - 1
            return response

        cluster.on("Metadata", ahead, 2)
        async with trikafka.open_consumer(
            **settings_of(cluster), auto_offset_reset="earliest"
        ) as consumer:
            consumer.assign([T0])
            with trio.fail_after(30):
                assert (await consumer.receive()).value == b"x"
