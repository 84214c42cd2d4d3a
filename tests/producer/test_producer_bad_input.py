"""Records that can never be sent: the same error from each call, at once and without a request."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import numpy
import pytest
import trio
from producing import fill, opened, ready, values
from trio.testing import MockClock as Clock

from trikafka import (
    ConfigurationError,
    KafkaTimeoutError,
    Producer,
    RecordTooLargeError,
    TrikafkaError,
    UnknownTopicOrPartitionError,
)
from trikafka.error_codes import ErrorCode
from trikafka.errors import AuthorizationError
from trikafka.testing import ScriptedCluster

Way = Callable[..., Any]


@dataclass
class Order:
    """A value that a program forgot to encode."""

    number: int


async def send_nowait(producer: Producer, *record: Any, **fields: Any) -> None:
    producer.send_nowait(*record, **fields)


class Released:
    """Return a memory view that has been released."""

    @staticmethod
    def view() -> memoryview:
        view = memoryview(b"gone")
        view.release()
        return view


WAYS: dict[str, Way] = {
    "send": Producer.send,
    "enqueue": Producer.enqueue,
    "send_nowait": send_nowait,
}
WRONG: list[tuple[tuple[Any, ...], dict[str, Any], type[Exception], str]] = [
    (
        ("t", b"v"),
        {"partition": True},
        ConfigurationError,
        "partition must be a whole number from 0, not True",
    ),
    (
        ("t", b"v"),
        {"partition": 1.0},
        ConfigurationError,
        "partition must be a whole number from 0, not 1.0",
    ),
    (
        ("t", b"v"),
        {"partition": b"0"},
        ConfigurationError,
        "partition must be a whole number from 0, not b'0'",
    ),
    (
        ("t", b"v"),
        {"partition": "0"},
        ConfigurationError,
        "partition must be a whole number from 0, not '0'",
    ),
    (
        ("t", b"v"),
        {"partition": -1},
        ConfigurationError,
        "partition must be a whole number from 0, not -1",
    ),
    ((["t"], b"v"), {}, ConfigurationError, r"topic must be a name, not \['t'\]"),
    ((b"t", b"v"), {}, ConfigurationError, "topic must be a name, not b't'"),
    (("", b"v"), {}, ConfigurationError, "topic must be a name, not ''"),
    (("no/name", b"v"), {}, TrikafkaError, "no/name"),
    (("t", "text"), {}, TypeError, "value must be bytes, not str; encode it first"),
    (
        ("t", 5),
        {},
        TypeError,
        r"value must be bytes-like or None, not int; encode it first, such as "
        r"value=str\(value\).encode\(\)",
    ),
    (
        ("t", b"v"),
        {"key": 1.5},
        TypeError,
        r"key must be bytes-like or None, not float; encode it first, such as key=str\(key\)",
    ),
    (("t", True), {}, TypeError, "value must be bytes-like or None, not bool; encode it first$"),
    (("t", UUID(int=1)), {}, TypeError, "value must be .* not UUID; encode it first$"),
    (
        ("t", Order(5)),
        {},
        TypeError,
        r"value must be .* not Order; encode it first, such as "
        r"value=json\.dumps\(dataclasses\.asdict\(value\)\)\.encode\(\)",
    ),
    # Their memory: eight bytes instead of digits, addresses instead of objects.
    (
        ("t", b"v"),
        {"key": numpy.int64(5)},
        TypeError,
        r"key must be .* not int64; encode it first, such as key=str\(key\)\.encode\(\)",
    ),
    (("t", numpy.array(0.5)), {}, TypeError, "value must be .* not ndarray; encode it first"),
    (
        ("t", numpy.datetime64("2026-01-31")),
        {},
        TypeError,
        r"value must be .* not datetime64; encode it first, such as value=str\(value\)\.encode\(\)",
    ),
    (
        ("t", b"v"),
        {"key": numpy.timedelta64(5, "s")},
        TypeError,
        "key must be .* not timedelta64; encode it first",
    ),
    (("t", numpy.array([b"v"], object)), {}, TypeError, "value must be .* not ndarray; encode it"),
    (
        ("t", memoryview(numpy.array([b"v"], object))),
        {},
        TypeError,
        "value must be .* not memoryview; encode it first",
    ),
    (
        ("t", numpy.zeros(1, [("Order", "i4"), ("what", object)])),
        {},
        TypeError,
        "value must be .* not ndarray; encode it first",
    ),
    (
        ("t", b"v"),
        {"headers": [("a", numpy.bool_(True))]},
        TypeError,
        r"header value must be .* not bool.*; encode it first, such as str\(value\)",
    ),
    (
        ("t", b"v"),
        {"headers": [("a", 5)]},
        TypeError,
        r"header value must be .* not int; encode it first, such as str\(value\)",
    ),
    (("t", b"v"), {"key": "text"}, TypeError, "key must be bytes, not str"),
    (("t", b"v"), {"headers": {"a": b"b"}}, TypeError, "headers must be pairs"),
    (("t", b"v"), {"timestamp": -1}, ConfigurationError, "timestamp must be milliseconds"),
    (("t", b"v"), {"timestamp": True}, ConfigurationError, "timestamp must be milliseconds"),
    (
        ("t", b"v"),
        {"timestamp": 1.7e12},
        ConfigurationError,
        r"from 0 to 4611686018427387904, not 1700000000000\.0; write int\(time\.time\(\) \* 1000\)",
    ),
    (
        ("t", b"v"),
        {"timestamp": datetime(2026, 1, 31, tzinfo=UTC)},
        ConfigurationError,
        r"not datetime\..*; for a datetime write int\(when\.timestamp\(\) \* 1000\)",
    ),
    (
        ("t", b"v"),
        {"partition": 2**31},
        ConfigurationError,
        "partition must be a whole number from 0 to 2147483647, not 2147483648",
    ),
    (
        ("t", b"v"),
        {"partition": 10**30},
        ConfigurationError,
        "partition must be a whole number from 0 to 2147483647",
    ),
    (
        ("t", Released.view()),
        {},
        TypeError,
        "value must be bytes-like or None, not memoryview",
    ),
    (
        ("t", b"v"),
        {"headers": 5},
        TypeError,
        "headers must be a list of pairs of a name and a value, not int",
    ),
    (
        ("t", b"v"),
        {"headers": True},
        TypeError,
        "headers must be a list of pairs of a name and a value, not bool",
    ),
    (
        ("t", b"v"),
        {"headers": iter([("a", b"b")])},
        TypeError,
        "headers must be a list of pairs of a name and a value, not list_iterator",
    ),
    (
        ("t", b"v"),
        {"headers": zip(["a"], [b"b"], strict=True)},
        TypeError,
        "headers must be a list of pairs .*, not zip",
    ),
    (
        ("t", b"v"),
        {"headers": [("\ud800", b"b")]},
        TypeError,
        "a header's name must be text that can be written as UTF-8",
    ),
    (
        ("t", b"v"),
        {"headers": [("a", "b")]},
        TypeError,
        "header value must be bytes, not str; encode it first",
    ),
    (("t", b"v"), {"headers": [("a", b"b", 1)]}, TypeError, "headers must be pairs"),
    (("t", b"v"), {"headers": ["ab"]}, TypeError, "headers must be pairs"),
    (("t", b"x" * 1_048_577), {}, RecordTooLargeError, "max_request_size"),
]


@pytest.mark.parametrize(("record", "fields", "error", "text"), WRONG)
async def test_unsendable_record_is_refused_at_once(
    record: tuple[Any, ...],
    fields: dict[str, Any],
    error: type[Exception],
    text: str,
    autojump_clock: Clock,
) -> None:
    """Before and after the topic is known, by each call."""
    async with ScriptedCluster(topics={"t": 1}) as cluster, opened(cluster) as producer:
        for known in (False, True):
            if known:
                await producer.partitions_for("t")
            asked, start = len(cluster.requests()), trio.current_time()
            for way in WAYS.values():
                with pytest.raises(error, match=text):
                    await way(producer, *record, **fields)
                assert trio.current_time() == start
                assert len(cluster.requests()) == asked
                assert producer.statistics().buffer_used == 0


# --- send_nowait: full, and never -----------------------------------------------------------------


async def test_unknown_topic_is_requested_meanwhile(autojump_clock: Clock) -> None:
    async with ScriptedCluster(topics={"t": 1}) as cluster, opened(cluster) as producer:
        tries = 0
        with trio.fail_after(2):
            while True:
                tries += 1
                try:
                    ack = producer.send_nowait("t", b"x")
                    break
                except trio.WouldBlock:
                    await trio.sleep(0.01)
            await ack.wait()
        assert tries >= 2
        assert [record.value for record in cluster.records("t", 0)] == [b"x"]


async def test_missing_topic_ends_a_loop(autojump_clock: Clock) -> None:
    async with ready() as (cluster, producer):
        start = trio.current_time()
        with trio.fail_after(10), pytest.raises(UnknownTopicOrPartitionError, match="'nowhere'"):  # noqa: PT012
            while True:
                with pytest.raises(trio.WouldBlock):
                    producer.send_nowait("nowhere", b"x")
                await trio.sleep(0.1)
        assert 2.9 <= trio.current_time() - start <= 3.5
        cluster.create_topic("nowhere")
        with trio.fail_after(10):
            while True:
                try:
                    producer.send_nowait("nowhere", b"x")
                    break
                except UnknownTopicOrPartitionError:
                    await trio.sleep(0.1)


async def test_missing_partition_ends_a_loop(autojump_clock: Clock) -> None:
    async with ready() as (cluster, producer):
        with pytest.raises(trio.WouldBlock):
            producer.send_nowait("t", b"x", partition=1)
        await trio.sleep(3.1)
        with pytest.raises(
            UnknownTopicOrPartitionError, match="has 1 partition, and no partition 1"
        ):
            producer.send_nowait("t", b"x", partition=1)
        cluster.add_partitions("t", 2)
        with trio.fail_after(10):
            while True:
                try:
                    producer.send_nowait("t", b"x", partition=1)
                    break
                except UnknownTopicOrPartitionError:
                    await trio.sleep(0.1)


async def test_missing_permission_is_raised_soon(autojump_clock: Clock) -> None:
    async with ready() as (cluster, producer):
        cluster.create_topic("secret")
        cluster.fail("Metadata", ErrorCode.TOPIC_AUTHORIZATION_FAILED, times=None, topic="secret")
        with pytest.raises(trio.WouldBlock):
            producer.send_nowait("secret", b"x")
        await trio.sleep(1)
        with pytest.raises(AuthorizationError, match="secret"):
            producer.send_nowait("secret", b"x")


async def test_full_buffer_stays_would_block(autojump_clock: Clock) -> None:
    async with ready(buffer_memory=1_000) as (cluster, producer):
        cluster.freeze(0)
        assert fill(producer) > 0
        await trio.sleep(10)
        with pytest.raises(trio.WouldBlock):
            producer.send_nowait("t", b"x" * 300)


# --- metadata that cannot be true -----------------------------------------------------------------


@pytest.mark.parametrize("index", [2_000_000, 2**31 - 1])
async def test_huge_partition_number_is_rejected(index: int, autojump_clock: Clock) -> None:
    async with ready() as (cluster, producer):

        async def lie(request: Any, default: Callable[[], Any]) -> Any:
            response = await default()
            for topic in response.topics:
                for partition in topic.partitions:
                    partition.partition_index = index
            return response

        rule = cluster.on("Metadata", lie)
        cluster.create_topic("u")
        with pytest.raises(
            KafkaTimeoutError, match=f"it names a partition {index} of topic 'u', which has 1"
        ):
            await producer.send("u", b"x")
        rule.remove()
        await producer.send("t", b"x")
        assert values(cluster) == [b"x"]


# --- bytes-like values ----------------------------------------------------------------------------


@pytest.mark.parametrize("known", [True, False])
async def test_bytes_like_values_and_keys_are_sent(known: bool, autojump_clock: Clock) -> None:
    import pyarrow as pa

    given = [
        bytearray(b"0"),
        memoryview(b"x1x")[1:2],
        pa.scalar(b"2"),
        pa.scalar("3"),
        pa.scalar(b"4", pa.large_binary()),
        memoryview(b"56")[::2],
        numpy.bytes_(b"6"),
        numpy.array([b"7", b"8"])[:1],
        array("B", b"8"),
        ctypes.c_char(b"9"),
    ]
    null = pa.scalar(None, pa.binary())
    async with ScriptedCluster(topics={"t": 1}) as cluster, opened(cluster) as producer:
        if known:
            await producer.partitions_for("t")
        for value in given:
            await producer.send("t", value, key=value, headers=[("h", bytes(2)), ("n", None)])
        await producer.send("t", null, key=null)
        found = cluster.records("t", 0)
        digits = [b"%d" % digit for digit in range(10)]
        assert [record.value for record in found] == [*digits, None]
        assert [record.key for record in found] == [*digits, None]
        with pytest.raises(TypeError, match="value must be bytes-like or None, not Int64Scalar"):
            await producer.send("t", pa.scalar(5))
