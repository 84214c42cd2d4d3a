"""Wrong arguments to each call of a producer.

A typed error is raised at once, without a request and without taking room.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, StrEnum
from typing import Any

import pyarrow as pa
import pytest
import trio
from producing import opened, ready, values
from test_producer_bad_input import WAYS
from transacting import committed, transacting
from trio.testing import MockClock as Clock

from trikafka import (
    ConfigurationError,
    GroupMetadata,
    OffsetAndMetadata,
    RecordTooLargeError,
    TopicPartition,
    TrikafkaError,
)
from trikafka.testing import ScriptedCluster

T0 = TopicPartition("t", 0)
G = GroupMetadata("g")


# --- a topic -------------------------------------------------------------------------------------


class Topic(StrEnum):
    """Topic names as an enumeration."""

    ORDERS = "t"


class Older(str, Enum):  # noqa: UP042
    """The same before Python 3.11, when str() gave the member's own name."""

    ORDERS = "t"


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("topic", [Topic.ORDERS, Older.ORDERS])
async def test_topic_may_be_an_enum_member(topic: str, known: bool, autojump_clock: Clock) -> None:
    async with ScriptedCluster(topics={"t": 1}) as cluster, opened(cluster) as producer:
        if known:
            await producer.send("t", b"first")
        with trio.fail_after(1):
            ack = await producer.enqueue(topic, b"1")
            assert str((await ack.wait()).topic) == "t"
            assert str(ack.partition) == "t-0"
            await producer.send(topic, b"2", key=b"k", headers=[("h", b"")])
            await producer.send_nowait(topic, b"3").wait()
            delivery = await producer.send_arrow(topic, pa.table({"value": [b"4"]}))
            assert [str(tp) for tp in delivery.partitions] == ["t-0"]
            (info,) = await producer.partitions_for(topic)
            assert info.topic == "t"
        assert values(cluster) == [b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize("wrong", [["t"], b"t", None, 5, "", "no/name"])
async def test_wrong_topic_is_refused_by_partitions_for(wrong: Any, autojump_clock: Clock) -> None:
    async with ready() as (cluster, producer):
        asked = len(cluster.requests())
        with pytest.raises(ConfigurationError, match="topic"):
            await producer.partitions_for(wrong)
        assert len(cluster.requests()) == asked


# --- a table --------------------------------------------------------------------------------------


def table(**more: Any) -> pa.Table:
    return pa.table({"value": [b"a", b"b"]} | more)


TABLES: list[tuple[Callable[[Any], Any], type[Exception], str]] = [
    (
        lambda p: p.send_arrow(["t"], table()),
        ConfigurationError,
        r"topic must be a name, not \['t'\]",
    ),
    (
        lambda p: p.send_arrow("t", table(), partition=1.0),
        ConfigurationError,
        "partition must be a whole number from 0, not 1.0",
    ),
    (
        lambda p: p.send_arrow("t", table(), partition=2**31),
        ConfigurationError,
        "from 0 to 2147483647, not 2147483648",
    ),
    (lambda p: p.send_arrow("t", table(partition=["0", "1"])), ConfigurationError, "partition"),
    (lambda p: p.send_arrow("t", table(partition=[1.0, 2.0])), ConfigurationError, "partition"),
    (
        lambda p: p.send_arrow("t", table(partition=pa.array([2**40, 0]))),
        ConfigurationError,
        "partition",
    ),
    (lambda p: p.send_arrow("t", table(key=[1, 2])), ConfigurationError, "key"),
    (lambda p: p.send_arrow("t", pa.table({"value": [1, 2]})), ConfigurationError, "value"),
    (lambda p: p.send_arrow("t", pa.table({})), ConfigurationError, "value"),
    (lambda p: p.send_arrow("t", table(timestamp=["a", "b"])), ConfigurationError, "timestamp"),
    (
        lambda p: p.send_arrow("t", table(timestamp=[-1, 0])),
        ConfigurationError,
        "row 0: a timestamp",
    ),
    (lambda p: p.send_arrow("t", table(headers=["a", "b"])), ConfigurationError, "headers"),
    (
        lambda p: p.send_arrow("t", table(), value=5),
        ConfigurationError,
        "value must be the name of a column, not 5",
    ),
    (
        lambda p: p.send_arrow("t", table(), key=b"value"),
        ConfigurationError,
        "key must be the name of a column, not b'value'",
    ),
    (lambda p: p.send_arrow("t", table(), headers="nope"), ConfigurationError, "no column 'nope'"),
    (
        lambda p: p.send_arrow("t", pa.table({"value": [b"a", b"x" * 1_100_000]})),
        RecordTooLargeError,
        "row 1",
    ),
]


@pytest.mark.parametrize(("call", "error", "text"), TABLES)
async def test_wrong_table_is_refused_at_once(
    call: Callable[[Any], Any], error: type[Exception], text: str, autojump_clock: Clock
) -> None:
    async with ready() as (cluster, producer):
        asked, start = len(cluster.requests()), trio.current_time()
        with pytest.raises(error, match=text):
            await call(producer)
        assert (trio.current_time(), len(cluster.requests())) == (start, asked)
        assert producer.statistics().buffer_used == 0


@pytest.mark.parametrize("wrong", [None, {"value": [b"a"]}, b"a", 5])
async def test_non_table_is_refused(wrong: Any) -> None:
    async with ready() as (cluster, producer):
        asked = len(cluster.requests("Produce"))
        with pytest.raises(ConfigurationError, match="neither an Arrow table"):
            await producer.send_arrow("t", wrong)
        assert len(cluster.requests("Produce")) == asked
        assert producer.statistics().buffer_used == 0


# --- a transaction --------------------------------------------------------------------------------

OFFSETS: list[tuple[tuple[Any, ...], type[Exception], str]] = [
    ((None, G), TypeError, "offsets to commit must be a mapping of partitions to offsets"),
    ((5, G), TypeError, "offsets to commit must be a mapping of partitions to offsets"),
    (([1, 2], G), TypeError, "offsets to commit must be a mapping of partitions to offsets"),
    (
        ({T0: -1}, G),
        ConfigurationError,
        "the offset to commit for t-0 must be a whole number from 0",
    ),
    (
        ({T0: 2**63}, G),
        ConfigurationError,
        "the offset to commit for t-0 must be a whole number from 0",
    ),
    (
        ({T0: True}, G),
        ConfigurationError,
        "the offset to commit for t-0 must be a whole number from 0",
    ),
    (
        ({T0: "1"}, G),
        ConfigurationError,
        "the offset to commit for t-0 must be a whole number from 0",
    ),
    (({T0: OffsetAndMetadata("1")}, G), ConfigurationError, "the offset to commit for t-0 must be"),  # type: ignore[arg-type]
    (({T0: OffsetAndMetadata(1, None, 5)}, G), ConfigurationError, "must be text"),  # type: ignore[arg-type]
    (
        ({T0: OffsetAndMetadata(1, "x")}, G),
        ConfigurationError,
        "leader epoch of the offset to commit",
    ),  # type: ignore[arg-type]
    (
        ({T0: OffsetAndMetadata(1, None, "x" * 40_000)}, G),
        ConfigurationError,
        "has 40000 bytes, and at most 32767 can be sent",
    ),
    (({"t": 1}, G), ConfigurationError, "a partition is a TopicPartition"),
    (
        ({("t", 2**31): 1}, G),
        ConfigurationError,
        "a partition's number must be a whole number from 0 to 2147483647",
    ),
    (({("no/name", 0): 1}, G), ConfigurationError, "no/name"),
    (({T0: 1}, None), TypeError, "group must be the consumer"),
    (({T0: 1}, "g"), TypeError, "group must be the consumer"),
    (({T0: 1}, GroupMetadata("")), ConfigurationError, "group must name a group"),
    (({T0: 1}, GroupMetadata(5)), ConfigurationError, "group must name a group"),  # type: ignore[arg-type]
    (({T0: 1}, GroupMetadata("g", "1")), ConfigurationError, "the generation must be"),  # type: ignore[arg-type]
    (({T0: 1}, GroupMetadata("g", 1, 5)), ConfigurationError, "group must name a group"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("given", "error", "text"), OFFSETS)
async def test_wrong_offsets_are_refused_at_once(
    given: tuple[Any, ...], error: type[Exception], text: str, autojump_clock: Clock
) -> None:
    """The transaction continues unharmed."""
    async with transacting() as (cluster, producer):
        async with producer.transaction() as txn:
            await producer.send("t", b"x", partition=0)
            asked, start = len(cluster.requests()), trio.current_time()
            with pytest.raises(error, match=text):
                await txn.send_offsets(*given)
            assert (trio.current_time(), len(cluster.requests())) == (start, asked)
            assert producer.statistics().buffer_used == 0
        assert await committed(cluster) == [b"x"]


async def test_wrong_records_leave_transaction_intact(autojump_clock: Clock) -> None:
    wrong = [
        {"value": "text"},
        {"value": b"x" * 1_100_000},
        {"value": b"v", "partition": -1},
        {"value": b"v", "topic": ""},
    ]
    async with transacting() as (cluster, producer):
        async with producer.transaction():
            await producer.send("t", b"1", partition=0)
            for way in WAYS.values():
                for fields in wrong:
                    with pytest.raises((TrikafkaError, TypeError)):
                        await way(producer, **{"topic": "t", **fields})
            with pytest.raises(ConfigurationError):
                await producer.send_arrow("t", table(key=[1, 2]))
            assert producer.health().transaction == "in transaction"
            assert producer.statistics().buffer_used == 0
            await producer.send("t", b"2", partition=0)
        assert await committed(cluster) == [b"1", b"2"]


# --- open_producer --------------------------------------------------------------------------------


async def by_coroutine(topic: str, key: bytes | None, partitions: Any) -> int:
    return 0


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        (
            {"transactional_id": "x" * 40_000},
            "transactional_id must have at most 32767 bytes, not 40000",
        ),
        (
            {"transactional_id": "ä" * 20_000},
            "transactional_id must have at most 32767 bytes, not 40000",
        ),
        ({"client_id": "x" * 40_000}, "client_id must have at most 32767 bytes, not 40000"),
        ({"buffer_memory": 10**30}, "buffer_memory must be at least 1 and at most"),
        (
            {"partitioner": by_coroutine},
            r"partitioner must be a plain function \(def\), not an async one",
        ),
    ],
)
async def test_wrong_settings_are_refused_without_dial(
    settings: dict[str, Any], text: str, autojump_clock: Clock
) -> None:
    async with ScriptedCluster() as cluster:
        with pytest.raises(ConfigurationError, match=text):
            async with opened(cluster, **settings):
                raise AssertionError("it opened")
        assert not cluster.dials


# --- a loop over calls that fail ------------------------------------------------------------------


async def test_failing_sends_let_others_run(autojump_clock: Clock) -> None:
    """A program that tries again at once does not keep the client's tasks from running."""
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    async with ready() as (_, producer), trio.open_nursery() as nursery:
        nursery.start_soon(count_turns)
        for _ in range(20):
            wrong: Any = 5
            with pytest.raises(TypeError):
                await producer.send("t", wrong)
        nursery.cancel_scope.cancel()
    assert turns >= 10
