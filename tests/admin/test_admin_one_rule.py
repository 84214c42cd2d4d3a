"""One rule for every admin call about several things: what failed, beside the results of the rest.

A call about one thing raises the error of that thing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trio.testing

import trikafka
from trikafka import (
    AdminErrors,
    AuthorizationError,
    ConfigResource,
    NewTopic,
    OffsetSpec,
    TopicPartition,
    UnknownTopicOrPartitionError,
)
from trikafka.testing import ScriptedCluster

TOPIC, GROUP, ID = 29, 30, 53  # of the authorization errors


def partitions(names: list[str]) -> list[TopicPartition]:
    return [TopicPartition(name, 0) for name in names]


def resources(names: list[str]) -> list[ConfigResource]:
    return [ConfigResource("topic", name) for name in names]


Call = Callable[[trikafka.Admin, list[str]], Any]
#: For each call: the request, the code of a refused part, the things of these names, the call.
CALLS: dict[str, tuple[str, int, Callable[[list[str]], list[Any]], Call]] = {
    "create_topics": (
        "CreateTopics",
        TOPIC,
        list,
        lambda admin, names: admin.create_topics(dict.fromkeys(names, NewTopic(1))),
    ),
    "delete_topics": (
        "DeleteTopics",
        TOPIC,
        list,
        lambda admin, names: admin.delete_topics(names),
    ),
    "create_partitions": (
        "CreatePartitions",
        TOPIC,
        list,
        lambda admin, names: admin.create_partitions(dict.fromkeys(names, 2)),
    ),
    "topic_configs": (
        "DescribeConfigs",
        TOPIC,
        list,
        lambda admin, names: admin.topic_configs(names),
    ),
    "describe_configs": (
        "DescribeConfigs",
        TOPIC,
        resources,
        lambda admin, names: admin.describe_configs(resources(names)),
    ),
    "alter_configs": (
        "IncrementalAlterConfigs",
        TOPIC,
        resources,
        lambda admin, names: admin.alter_configs(
            {one: {"flush.ms": 7} for one in resources(names)}
        ),
    ),
    "list_offsets": (
        "ListOffsets",
        TOPIC,
        partitions,
        lambda admin, names: admin.list_offsets(
            dict.fromkeys(partitions(names), OffsetSpec.LATEST)
        ),
    ),
    "delete_records": (
        "DeleteRecords",
        TOPIC,
        partitions,
        lambda admin, names: admin.delete_records(dict.fromkeys(partitions(names), 0)),
    ),
    "describe_producers": (
        "DescribeProducers",
        TOPIC,
        partitions,
        lambda admin, names: admin.describe_producers(partitions(names)),
    ),
    "alter_group_offsets": (
        "OffsetCommit",
        TOPIC,
        partitions,
        lambda admin, names: admin.alter_group_offsets("g", dict.fromkeys(partitions(names), 1)),
    ),
    "list_group_offsets": (
        "OffsetFetch",
        TOPIC,
        partitions,
        lambda admin, names: admin.list_group_offsets("old", partitions(names)),
    ),
    "delete_group_offsets": (
        "OffsetDelete",
        TOPIC,
        partitions,
        lambda admin, names: admin.delete_group_offsets("old", partitions(names)),
    ),
    "describe_groups": (
        "DescribeGroups",
        GROUP,
        list,
        lambda admin, names: admin.describe_groups(names),
    ),
    "delete_groups": (
        "DeleteGroups",
        GROUP,
        list,
        lambda admin, names: admin.delete_groups(names),
    ),
    "describe_transactions": (
        "DescribeTransactions",
        ID,
        list,
        lambda admin, names: admin.describe_transactions(names),
    ),
}


@pytest.mark.parametrize("name", CALLS)
async def test_part_that_fails_leaves_the_others(
    name: str, autojump_clock: trio.testing.MockClock
) -> None:
    api, code, keys, call = CALLS[name]
    topics = {} if name == "create_topics" else {"a": 1, "b": 1}
    async with (
        ScriptedCluster(nodes=2, topics=topics) as cluster,
        trikafka.open_admin(
            bootstrap_servers=cluster.bootstrap_servers, dial=cluster.dial
        ) as admin,
    ):
        for group in ("a", "b", "old") if topics else ():
            await admin.alter_group_offsets(group, dict.fromkeys(partitions(["a", "b"]), 1))
        for one in ("a", "b"):
            cluster.transactions.initialize(one, 60_000, None, two_phase=False, keep=False)
        cluster.fail(api, code, None, topic="a")
        first, second = keys(["a", "b"])
        with pytest.raises(AuthorizationError) as alone:
            await call(admin, ["a"])
        assert list(alone.value.failures) == [first]
        with pytest.raises(AdminErrors, match="1 of 2 failed") as caught:
            await call(admin, ["a", "b"])
        assert list(caught.value.failures) == [first]
        assert isinstance(caught.value.failures[first], AuthorizationError)
        assert list(caught.value.results) == [second]


@pytest.mark.parametrize(
    "call",
    [
        lambda admin, tps: admin.list_offsets(dict.fromkeys(tps, OffsetSpec.LATEST)),
        lambda admin, tps: admin.describe_producers(tps),
        lambda admin, tps: admin.delete_records(dict.fromkeys(tps, 0)),
    ],
)
async def test_missing_partition_leaves_the_others(
    autojump_clock: trio.testing.MockClock, call: Any
) -> None:
    """A look-up waits for a new topic; a change does not. Both have the results of the others."""
    there, missing = TopicPartition("t", 0), TopicPartition("none", 0)
    async with (
        ScriptedCluster(topics={"t": 1}) as cluster,
        trikafka.open_admin(
            bootstrap_servers=cluster.bootstrap_servers, dial=cluster.dial
        ) as admin,
    ):
        with pytest.raises(AdminErrors) as caught:
            await call(admin, [there, missing])
        assert list(caught.value.results) == [there]
        assert isinstance(caught.value.failures[missing], UnknownTopicOrPartitionError)
        assert caught.value.retriable  # each of its failures is
        with pytest.raises(UnknownTopicOrPartitionError):
            await call(admin, [missing])
