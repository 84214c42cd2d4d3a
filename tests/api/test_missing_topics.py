"""Topics that do not exist: one sentence with the topic, similar names, and the remedy."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock as Clock

import trikafka
from trikafka import NewTopic, TopicPartition, UnknownTopicOrPartitionError
from trikafka.errors import TopicsNotReadyError, topic_missing
from trikafka.testing import ScriptedCluster

MAKE = "make it: trikafka topics create ordrs, or admin.create_topics"
SENTENCE = f"topic 'ordrs' does not exist; {MAKE}"
MEANT = f"topic 'ordrs' does not exist; did you mean 'orders'? If not, {MAKE}"


@pytest.mark.parametrize(
    ("known", "says"),
    [
        ((), SENTENCE),
        (("ordrs",), SENTENCE),
        (("payments", "ordrs-of-last-year"), SENTENCE),
        (("payments", "orders"), MEANT),
        (
            (*(f"order{number}" for number in range(9)), "Ordrs"),
            MEANT.replace("'orders'", "'Ordrs' or 'order8'"),
        ),
        (map(str, range(200_000)), SENTENCE),
    ],
)
def test_sentence_names_similar_topics(known: Any, says: str) -> None:
    assert topic_missing("ordrs", known) == says


def test_nearest_of_many_similar_topics_is_named() -> None:
    known = [f"orders-{number:03}-of-customers" for number in range(1_000)]
    for missing in (
        "orders-777-of-custmers",
        "order-777-of-customers",
        "orders-777-of-customer",
        "orders-7777-of-customers",
    ):
        assert "did you mean 'orders-777-of-customers'" in topic_missing(missing, known)


def test_pattern_is_no_name_to_make() -> None:
    says = "topic 'or*' does not exist; names are given in full, not as patterns"
    assert topic_missing("or*") == topic_missing("or*", ["x"], make=False) == says


def test_sentence_without_the_remedy_of_creating() -> None:
    assert (
        topic_missing("ordrs", make=False)
        == "topic 'ordrs' does not exist; see: trikafka topics list"
    )
    assert (
        topic_missing("ordrs", ["orders"], make=False)
        == "topic 'ordrs' does not exist; did you mean 'orders'?"
    )


def settings(cluster: ScriptedCluster, **more: Any) -> dict[str, Any]:
    return {"bootstrap_servers": cluster.bootstrap_servers, "dial": cluster.dial, **more}


async def test_producer_suggests_a_topic_that_it_knows(autojump_clock: Clock) -> None:
    async with (
        ScriptedCluster(topics={"orders": 1}) as cluster,
        trikafka.open_producer(**settings(cluster)) as producer,
    ):
        await producer.send("orders", b"v")
        with pytest.raises(UnknownTopicOrPartitionError) as caught:
            await producer.send("ordrs", b"v")
        assert str(caught.value).endswith(f": {MEANT}")


async def test_assigned_consumer_names_the_topic(autojump_clock: Clock) -> None:
    async with (
        ScriptedCluster(topics={"orders": 1}) as cluster,
        trikafka.open_consumer(**settings(cluster)) as consumer,
    ):
        consumer.assign([TopicPartition("ordrs", 0)])
        with pytest.raises(UnknownTopicOrPartitionError) as caught, trio.fail_after(30):
            await consumer.receive()
        assert str(caught.value).endswith(f": {SENTENCE}")
        with pytest.raises(UnknownTopicOrPartitionError) as caught:
            await consumer.end_offsets([TopicPartition("ordrs", 0)])
        assert str(caught.value).endswith(f": {SENTENCE}")


async def test_subscribed_member_logs_the_topic(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    async with ScriptedCluster(topics={"orders": 1}) as cluster:
        async with trikafka.open_consumer(
            "orders", "ordrs", **settings(cluster, group_id="g")
        ) as consumer:
            with trio.move_on_after(2):
                await consumer.receive()
            assert f"{MEANT} (it is subscribed to)" in consumer.health().reasons
    assert f"{MEANT}; a subscribed consumer waits until it does" in [
        record.getMessage() for record in caplog.records
    ]


async def test_admin_client_names_the_topic(autojump_clock: Clock) -> None:
    async with (
        ScriptedCluster(topics={"orders": 1}) as cluster,
        trikafka.open_admin(**settings(cluster)) as admin,
    ):
        with pytest.raises(UnknownTopicOrPartitionError) as caught:
            await admin.delete_topics(["ordrs"])
        assert str(caught.value).endswith(
            ": topic 'ordrs' does not exist; see: trikafka topics list"
        )


async def test_missing_partition_is_no_missing_topic(
    autojump_clock: Clock,
) -> None:
    """The coordinator of a group has one code for both."""
    async with (
        ScriptedCluster(topics={"orders": 1}) as cluster,
        trikafka.open_admin(**settings(cluster)) as admin,
    ):
        for tp in (TopicPartition("orders", 7), TopicPartition("ordrs", 7)):
            with pytest.raises(UnknownTopicOrPartitionError) as caught:
                await admin.alter_group_offsets("g", {tp: 1})
            assert str(caught.value).endswith(
                f": topic {tp.topic!r} does not exist, or has no partition 7; see: trikafka topics "
                "list"
            )


async def test_ensure_topics_names_the_topic(autojump_clock: Clock) -> None:
    async with ScriptedCluster(topics={"orders": 1}) as cluster:
        async with trikafka.open_consumer("ordrs", **settings(cluster, group_id="g")) as consumer:
            with pytest.raises(TopicsNotReadyError) as caught:
                await trikafka.ensure_topics(consumer, {"orders": NewTopic(1)}, timeout=2)
        assert str(caught.value) == f"not ready after 2 s: {MEANT}"
