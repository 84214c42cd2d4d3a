"""``key_deserializer`` and ``value_deserializer``: applied to records as they are handed out; what fails can be sought past."""

from __future__ import annotations

import importlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from consuming import T0, cluster_of, consumer_of, until
from trio.testing import MockClock as Clock

from trikafka._api.consumer import Consumer
from trikafka.errors import DeserializationError
from trikafka.testing import ScriptedCluster


@asynccontextmanager
async def numbers(values: list[bytes | None], **settings: Any) -> AsyncIterator[tuple[ScriptedCluster, Consumer]]:
    async with cluster_of() as cluster:
        cluster.append("t", 0, values)
        async with consumer_of(cluster, **({"value_deserializer": int} | settings)) as consumer:
            consumer.assign([T0])
            yield cluster, consumer


async def test_records_hold_what_the_functions_make(autojump_clock: Clock) -> None:
    async with cluster_of() as cluster:
        cluster.append("t", 0, [(b"a", b"1"), (None, None)])
        async with consumer_of(cluster, key_deserializer=bytes.decode, value_deserializer=int) as consumer:
            consumer.assign([T0])
            assert [(r.key, r.value) for r in [await consumer.receive(), await consumer.receive()]] == [("a", 1), (None, None)]
            consumer.seek(T0, 0)
            batch = await consumer.receive_batch()
            assert [record.value for record in batch] == [1, None]
            assert batch[0].value == 1
            assert [record.key for record in batch[:1]] == ["a"]
            importlib.import_module("trikafka._wire.arrow")
            assert batch.to_arrow().column("value").to_pylist() == [b"1", None]


@pytest.mark.parametrize("bad", [0, 2, 199, 299])
async def test_what_fails_comes_again_until_sought_past(autojump_clock: Clock, bad: int) -> None:
    given: list[bytes | None] = [b"%d" % number for number in range(300)]
    given[bad] = b"secret"
    async with numbers(given) as (_, consumer):
        got = [(await consumer.receive()).value for _ in range(bad)]
        for _ in range(2):
            with pytest.raises(DeserializationError) as caught:
                await consumer.receive()
            error = caught.value
            assert (error.topic, error.partition, error.offset, error.part) == ("t", 0, bad, "value")
            assert (error.key, error.value) == (None, b"secret")
            assert "secret" not in str(error)
            assert isinstance(error.__cause__, ValueError)
            assert await consumer.position(T0) == bad
        with pytest.raises(DeserializationError):
            consumer.receive_nowait()
        consumer.seek(T0, bad + 1)
        with trio.fail_after(5):
            got += [(await consumer.receive()).value for _ in range(299 - bad)]
        assert got == [number for number in range(300) if number != bad]


async def test_in_a_batch_it_is_met_by_iterating(autojump_clock: Clock) -> None:
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


async def test_what_was_before_it_is_processed_and_it_is_not(autojump_clock: Clock) -> None:
    settings = {"group_id": "g", "auto_commit_interval_ms": 1_000}
    async with numbers([b"0", b"1", b"x", b"3"], **settings) as (cluster, consumer):
        for _ in range(2):
            await consumer.receive()
        with pytest.raises(DeserializationError):
            await consumer.receive()
        await trio.sleep(3)
        assert cluster.committed("g", T0).offset == 2


async def test_a_stream_raises_it_alone(autojump_clock: Clock) -> None:
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
