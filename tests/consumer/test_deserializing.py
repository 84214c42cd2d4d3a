"""``key_deserializer`` and ``value_deserializer`` are applied when records are delivered.

A failing record can be skipped by a seek.
"""

from __future__ import annotations

import functools
import importlib
import operator
import pickle
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
import trio
from consuming import T0, cluster_of, consumer_of, until
from trio.testing import MockClock as Clock

import trikafka
from trikafka._api.consumer.consumer import Consumer
from trikafka.config import ConsumerConfig
from trikafka.errors import ConfigurationError, DeserializationError
from trikafka.testing import ScriptedCluster
from trikafka.types import Headers


@asynccontextmanager
async def numbers(
    values: list[bytes | None], **settings: Any
) -> AsyncIterator[tuple[ScriptedCluster, Consumer]]:
    async with cluster_of() as cluster:
        cluster.append("t", 0, values)
        async with consumer_of(cluster, **({"value_deserializer": int} | settings)) as consumer:
            consumer.assign([T0])
            yield cluster, consumer


async def test_records_hold_deserialized_values(autojump_clock: Clock) -> None:
    async with cluster_of() as cluster:
        cluster.append("t", 0, [(b"a", b"1"), (None, None)])
        async with consumer_of(
            cluster, key_deserializer=bytes.decode, value_deserializer=int
        ) as consumer:
            consumer.assign([T0])
            assert [
                (r.key, r.value) for r in [await consumer.receive(), await consumer.receive()]
            ] == [("a", 1), (None, None)]
            consumer.seek(T0, 0)
            batch = await consumer.receive_batch()
            assert [record.value for record in batch] == [1, None]
            assert batch[0].value == 1
            assert [record.key for record in batch[:1]] == ["a"]
            importlib.import_module("trikafka._wire.arrow")
            assert batch.to_arrow().column("value").to_pylist() == [b"1", None]


class Described:
    """A deserializer that sees where a value is from."""

    def deserialize(self, topic: str, headers: Headers, data: bytes) -> str:
        if data == b"bad":
            raise ValueError("bad")
        return f"{topic} {dict(headers).get('kind')} {data.decode()}"


async def test_object_sees_topic_and_headers(autojump_clock: Clock) -> None:
    async with cluster_of() as cluster:
        async with trikafka.open_producer(
            bootstrap_servers=cluster.bootstrap_servers, dial=cluster.dial
        ) as producer:
            for value in (b"v", None, b"bad"):
                await producer.send("t", value, key=b"k", headers=[("kind", b"x")], partition=0)
        async with consumer_of(
            cluster, key_deserializer=Described(), value_deserializer=Described()
        ) as consumer:
            consumer.assign([T0])
            consumer.seek_to_beginning([T0])
            first, second = await consumer.receive(), await consumer.receive()
            assert (first.key, first.value) == ("t b'x' k", "t b'x' v")
            assert (second.key, second.value) == ("t b'x' k", None)
            with pytest.raises(DeserializationError) as caught:
                await consumer.receive()
            assert (caught.value.part, caught.value.value) == ("value", b"bad")


class Number:
    """A class whose instances are values; its methods have nothing to do with trikafka."""

    def __init__(self, data: bytes) -> None:
        self.number = int(data)

    @classmethod
    def deserialize(cls, text: str) -> Number:
        return cls(text.encode())


async def test_callable_with_such_a_method_is_called(autojump_clock: Clock) -> None:
    async with numbers([b"7"], value_deserializer=Number) as (_, consumer):
        value: Any = (await consumer.receive()).value
        assert value.number == 7


def test_wrong_deserializers_are_refused() -> None:
    wrong: Any = object()
    with pytest.raises(ConfigurationError, match="key_deserializer must be a function or None"):
        ConsumerConfig.build({"key_deserializer": wrong})


class OfBytes:
    """A Deserializer that takes the bytes alone."""

    def deserialize(self, data: bytes) -> bytes:
        return data


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (OfBytes(), r": deserialize cannot be called with 3 arguments, it is deserialize\(data\)"),
        (OfBytes, r" cannot be called with one argument, it is OfBytes\(\)"),  # not an object
        (lambda topic, data: data, " cannot be called with one argument, it is <lambda>"),
    ],
)
@pytest.mark.parametrize("part", ["key", "value"])
async def test_deserializer_of_other_arguments_is_refused(
    part: str, given: Any, text: str, autojump_clock: Clock
) -> None:
    """It would fail at each record."""
    async with cluster_of() as cluster:
        settings: dict[str, Any] = {f"{part}_deserializer": given}
        with pytest.raises(ConfigurationError, match=f"^{part}_deserializer{text}"):
            async with consumer_of(cluster, **settings):
                pass
        assert not cluster.log


@pytest.mark.parametrize(
    "given",
    [
        MagicMock(return_value=1),
        SimpleNamespace(deserialize=MagicMock(return_value=1)),
        SimpleNamespace(deserialize=lambda *given: int(given[-1])),
        functools.partial(int, base=10),
        functools.lru_cache(int),
        lambda data, base=10: int(data, base),
        operator.methodcaller("__len__"),
    ],
)
async def test_unusual_functions_are_deserializers(given: Any, autojump_clock: Clock) -> None:
    async with (
        cluster_of(1, records=2) as cluster,
        consumer_of(cluster, value_deserializer=given) as consumer,
    ):
        consumer.assign([T0])
        consumer.seek(T0, 1)
        assert (await consumer.receive()).value == 1


@pytest.mark.parametrize("bad", [0, 2, 199, 299])
async def test_failing_record_returns_until_a_seek(autojump_clock: Clock, bad: int) -> None:
    given: list[bytes | None] = [b"%d" % number for number in range(300)]
    given[bad] = b"secret"
    async with numbers(given) as (_, consumer):
        got = [(await consumer.receive()).value for _ in range(bad)]
        for _ in range(2):
            with pytest.raises(DeserializationError) as caught:
                await consumer.receive()
            error = caught.value
            assert (error.topic, error.partition, error.offset, error.part) == (
                "t",
                0,
                bad,
                "value",
            )
            assert (error.key, error.value) == (None, b"secret")
            assert str(error).endswith("could not be deserialized (ValueError)")
            (note,) = error.__notes__
            assert note.endswith(f"to skip it: consumer.seek(TopicPartition('t', 0), {bad + 1})")
            assert isinstance(error.__cause__, ValueError)
            assert await consumer.position(T0) == bad
        with pytest.raises(DeserializationError):
            consumer.receive_nowait()
        consumer.seek(T0, bad + 1)
        with trio.fail_after(5):
            got += [(await consumer.receive()).value for _ in range(299 - bad)]
        assert got == [number for number in range(300) if number != bad]


async def test_batch_raises_at_the_failing_record(autojump_clock: Clock) -> None:
    async with numbers([b"0", b"x", b"2"]) as (_, consumer):
        batch = await consumer.receive_batch()
        records = iter(batch)
        assert next(records).value == 0
        with pytest.raises(DeserializationError):
            next(records)
        with pytest.raises(DeserializationError):
            batch[1]
        assert batch[2].value == 2
        assert bytes(batch.columns.offsets)  # the bytes are still there for who wants them


async def test_skip_is_advised_where_the_position_stays(autojump_clock: Clock) -> None:
    def notes(read: Callable[[], object]) -> list[str]:
        with pytest.raises(DeserializationError) as caught:
            read()
        return getattr(caught.value, "__notes__", [])

    async with numbers([b"0", b"x", b"2"]) as (_, consumer):
        batch = await consumer.receive_batch()
        assert not notes(lambda: list(batch.detached()))
        assert not notes(lambda: batch.deserialize(batch.raw[1]))
        assert await consumer.position(T0) == 3
        for _ in range(2):
            (note,) = notes(lambda: list(batch))
            assert note.endswith("to skip it: consumer.seek(TopicPartition('t', 0), 2)")
            assert await consumer.position(T0) == 1
        consumer.seek(T0, 3)
        assert not notes(lambda: list(batch))


async def test_records_before_a_failure_are_committed(autojump_clock: Clock) -> None:
    settings = {"group_id": "g", "auto_commit_interval_ms": 1_000}
    async with numbers([b"0", b"1", b"x", b"3"], **settings) as (cluster, consumer):
        for _ in range(2):
            await consumer.receive()
        with pytest.raises(DeserializationError):
            await consumer.receive()
        await trio.sleep(3)
        assert cluster.committed("g", T0).offset == 2


async def test_stream_raises_its_own_failure(autojump_clock: Clock) -> None:
    async with numbers([b"0", b"x", b"2"]) as (_, consumer), trio.open_nursery() as nursery:
        got: list[Any] = []

        async def one(stream: Any) -> None:
            while True:
                try:
                    async for record in stream:
                        got.append(record.value)
                except DeserializationError as error:
                    got.append(error.value)
                    consumer.seek(stream.partition, error.offset + 1)

        async def run() -> None:
            async for stream in consumer.partitions():
                nursery.start_soon(one, stream)

        nursery.start_soon(run)
        await until(lambda: len(got) == 3)
        assert got == [0, b"x", 2]
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("bad", [0, 3, 9])
@pytest.mark.parametrize("way", ["receive_batch", "batches", "nowait", "stream"])
async def test_batch_continues_at_the_failure(autojump_clock: Clock, way: str, bad: int) -> None:
    """Without a seek the record returns; after one, the rest of the batch does."""
    given: list[bytes | None] = [b"%d" % number for number in range(10)]
    given[bad] = b"x"
    async with numbers(given) as (_, consumer):
        got: list[int] = []
        failed: list[int] = []
        stood: list[int] = []

        async def take(batch: Any) -> None:
            try:
                for record in batch:
                    got.append(record.value)
            except DeserializationError as error:
                failed.append(error.offset)
                stood.append(await consumer.position(T0))
                if len(failed) == 3:
                    consumer.seek(T0, error.offset + 1)

        async def batch() -> Any:
            if way == "receive_batch":
                return await consumer.receive_batch()
            if way == "batches":
                return await anext(consumer.batches())
            if way == "nowait":
                await until(lambda: consumer.statistics().buffered_bytes > 0)
                return consumer.receive_batch_nowait()
            return await anext(stream.batches())

        if way == "stream":
            stream = await anext(consumer.partitions())
        with trio.fail_after(10):
            while len(got) < 9 or len(failed) < 3:
                await take(await batch())
        assert got == [number for number in range(10) if number != bad]
        assert failed == stood == [bad] * 3


@pytest.mark.parametrize("marks", [False, True])
async def test_failing_batch_commits_what_was_before(autojump_clock: Clock, marks: bool) -> None:
    settings = {
        "group_id": "g",
        "auto_commit_interval_ms": 1_000,
        "enable_auto_offset_store": not marks,
    }
    async with numbers([b"0", b"1", b"x", b"3"], **settings) as (cluster, consumer):
        batch = await consumer.receive_batch()
        with pytest.raises(DeserializationError):
            list(batch)
        await trio.sleep(3)
        assert cluster.committed("g", T0).offset == 0
        if marks:
            consumer.mark_processed(batch[0])
        with pytest.raises(DeserializationError):
            list(await consumer.receive_batch())
        await trio.sleep(3)
        assert cluster.committed("g", T0).offset == (1 if marks else 2)


async def test_batch_from_before_a_seek_moves_nothing(autojump_clock: Clock) -> None:
    async with numbers([b"0", b"x", b"2", b"3"]) as (_, consumer):
        batch = await consumer.receive_batch()
        consumer.seek(T0, 3)
        with pytest.raises(DeserializationError):
            list(batch)
        assert await consumer.position(T0) == 3
        assert (await consumer.receive()).value == 3
        with pytest.raises(DeserializationError):
            list(batch)
        assert await consumer.position(T0) == 4


async def test_deserialized_batch_says_what_to_pickle(autojump_clock: Clock) -> None:
    async with (
        cluster_of(1, records=2) as cluster,
        consumer_of(cluster, value_deserializer=int) as consumer,
    ):
        consumer.assign([T0])
        batch = await consumer.receive_batch()
        with pytest.raises(TypeError, match=r"pickle batch\.raw"):
            pickle.dumps(batch)
        assert [record.value for record in pickle.loads(pickle.dumps(batch.raw))] == [b"0", b"1"]
        assert [record.value for record in pickle.loads(pickle.dumps(list(batch)))] == [0, 1]
