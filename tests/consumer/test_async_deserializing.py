"""Async ``key_deserializer`` and ``value_deserializer``: the receive awaits them.

A cancelled receive loses no record, a failed function is called again, and only those calls are
repeated that were cut.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.lowlevel
from consuming import T0, T1, cluster_of, consumer_of, until
from trio.testing import MockClock as Clock

import trikafka
from trikafka._api.consumer.consumer import Consumer
from trikafka.errors import DeserializationError
from trikafka.testing import ScriptedCluster
from trikafka.testing.cancellation import assert_all_awaits_cancellable
from trikafka.types import Headers


class Registry:
    """A server that is asked for each value: it may take long, and may not answer."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds
        self.asked: list[bytes] = []
        self.fails: Callable[[bytes], bool] = lambda data: False

    async def number(self, data: bytes) -> int:
        self.asked.append(data)
        await trio.sleep(self.seconds)
        if self.fails(data):
            raise ConnectionError("the registry does not answer")
        return int(data)


@asynccontextmanager
async def reading(
    registry: Registry, count: int = 0, *, partitions: int = 1, **settings: Any
) -> AsyncIterator[tuple[ScriptedCluster, Consumer[Any, Any]]]:
    async with cluster_of(partitions, records=count) as cluster:
        given = {"value_deserializer": registry.number} | settings
        async with consumer_of(cluster, **given) as consumer:
            consumer.assign([T0, T1][:partitions])
            yield cluster, consumer


async def test_records_hold_what_was_awaited(autojump_clock: Clock) -> None:
    registry = Registry(0.001)
    async with reading(registry, key_deserializer=bytes.decode) as (cluster, consumer):
        cluster.append("t", 0, [(b"a", b"1"), (None, None), (b"c", b"3")])
        found = [await consumer.receive() for _ in range(3)]
        assert [(record.key, record.value) for record in found] == [
            ("a", 1),
            (None, None),
            ("c", 3),
        ]
        assert registry.asked == [b"1", b"3"]  # a plain function beside it, and none for None
        consumer.seek(T0, 0)
        batch = await consumer.receive_batch()
        assert [record.value for record in batch] == [1, None, 3]
        assert (batch[0].value, batch[-1].value, batch[1:][1].value) == (1, 3, 3)
        assert [record.value for record in batch.head(2)] == [1, None]
        assert [record.value for record in batch.raw] == [b"1", None, b"3"]
        assert [batch.deserialize(record).value for record in batch.raw] == [1, None, 3]


class Described:
    async def deserialize(self, topic: str, headers: Headers, data: bytes) -> str:
        await trio.lowlevel.checkpoint()
        return f"{topic} {dict(headers).get('kind')} {data.decode()}"


class Called:
    async def __call__(self, data: bytes) -> str:
        return data.decode()


async def joined(first: str, data: bytes) -> str:
    return first + data.decode()


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (Described(), "t b'x' v"),
        (Called(), "v"),
        (functools.partial(joined, "a "), "a v"),
    ],
    ids=["object", "call", "partial"],
)
async def test_each_form_of_async_is_known(autojump_clock: Clock, given: Any, wanted: str) -> None:
    async with cluster_of() as cluster:
        async with trikafka.open_producer(
            bootstrap_servers=cluster.bootstrap_servers, dial=cluster.dial
        ) as producer:
            await producer.send("t", b"v", headers=[("kind", b"x")], partition=0)
        async with consumer_of(cluster, value_deserializer=given) as consumer:
            consumer.assign([T0])
            assert (await consumer.receive()).value == wanted


@pytest.mark.parametrize("way", ["receive", "batch", "stream", "stream batch"])
async def test_no_cancellation_loses_a_record(autojump_clock: Clock, way: str) -> None:
    """Each await of a receive is cancelled once; the next receives return all, in order."""
    seen: list[int] = []

    @asynccontextmanager
    async def setup() -> AsyncIterator[tuple[Consumer[Any, Any], Any]]:
        seen.clear()
        async with reading(Registry(0.004), 9) as (_, consumer):
            streamed = way.startswith("stream")
            yield consumer, await anext(consumer.partitions()) if streamed else None

    async def one(given: tuple[Consumer[Any, Any], Any]) -> None:
        consumer, stream = given
        if way == "receive":
            seen.append((await consumer.receive()).value)
        elif way == "batch":
            seen.extend([record.value for record in await consumer.receive_batch()])
        elif way == "stream":
            seen.append((await stream.receive()).value)
        else:
            seen.extend([record.value for record in await anext(stream.batches())])

    async def some(given: tuple[Consumer[Any, Any], Any]) -> None:
        for _ in range(2):
            await one(given)

    async def rest(given: tuple[Consumer[Any, Any], Any]) -> None:
        while len(seen) < 9:
            await one(given)
        assert seen == list(range(9))

    with trio.fail_after(600):
        assert await assert_all_awaits_cancellable(some, rest, setup=setup) > 3


async def test_cut_receives_make_progress(autojump_clock: Clock) -> None:
    """A receive that is always cut early is not one that always begins with the first record."""
    registry = Registry(1.0)
    async with reading(registry, 5) as (_, consumer):
        got: list[int] = []
        while len(got) < 5:
            with trio.move_on_after(1.5):
                while True:
                    got.append((await consumer.receive()).value)
        assert got == list(range(5))
        # Each is asked for at most twice: once for a call that was cut.
        assert max(map(registry.asked.count, registry.asked)) <= 2


async def test_slow_functions_deliver_soon(autojump_clock: Clock) -> None:
    """A receive does not wait for the functions of a whole batch, and its timeout cuts none."""
    registry = Registry(0.5)
    async with reading(registry, 5) as (_, consumer):
        began = trio.current_time()
        assert [record.value for record in await consumer.receive_batch(timeout=0.1)] == [0]
        assert trio.current_time() - began < 1.0
        registry.seconds = 0.0
        assert [record.value for record in await consumer.receive_batch()] == [1, 2, 3, 4]
        assert registry.asked == [b"%d" % number for number in range(5)]


@pytest.mark.parametrize("way", ["receive", "batch", "stream"])
@pytest.mark.parametrize("bad", [0, 2, 4])
async def test_failed_function_is_called_again(autojump_clock: Clock, way: str, bad: int) -> None:
    registry = Registry()
    registry.fails = lambda data: data == b"%d" % bad and registry.asked.count(data) < 3
    async with reading(registry, 5) as (_, consumer):
        got: list[int] = []
        failed: list[tuple[DeserializationError, int]] = []
        stream = await anext(consumer.partitions()) if way == "stream" else None
        with trio.fail_after(30):
            while len(got) < 5:
                try:
                    if way == "batch":
                        for record in await consumer.receive_batch():
                            got.append(record.value)
                    elif stream is not None:
                        got.append((await stream.receive()).value)
                    else:
                        got.append((await consumer.receive()).value)
                except DeserializationError as error:
                    failed.append((error, await consumer.position(T0)))
        assert got == list(range(5))
        assert [position for _, position in failed] == [bad, bad]
        assert {(error.part, error.offset, error.value) for error, _ in failed} == {
            ("value", bad, b"%d" % bad)
        }
        assert all(isinstance(error.__cause__, ConnectionError) for error, _ in failed)


async def test_failure_in_a_nursery_has_its_own_name(autojump_clock: Clock) -> None:
    async def fail() -> None:
        raise LookupError("no such schema")

    async def nested(data: bytes) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fail)

    async with reading(Registry(), 1, value_deserializer=nested) as (_, consumer):
        with pytest.raises(DeserializationError, match=r"\(LookupError\)"):
            await consumer.receive()


@pytest.mark.parametrize("way", ["receive", "batch"])
async def test_failing_record_can_be_skipped(autojump_clock: Clock, way: str) -> None:
    registry = Registry()
    registry.fails = lambda data: data == b"2"
    async with reading(registry, 5) as (_, consumer):
        got: list[int] = []
        with trio.fail_after(30):
            while len(got) < 4:
                try:
                    if way == "batch":
                        got.extend([record.value for record in await consumer.receive_batch()])
                    else:
                        got.append((await consumer.receive()).value)
                except DeserializationError as error:
                    got = [number for number in got if number < error.offset]
                    consumer.seek(T0, error.offset + 1)
                    got.extend(range(len(got), error.offset))
        assert got == [0, 1, 3, 4]


@pytest.mark.parametrize("nursery", [True, False])
async def test_cut_function_that_fails_is_no_error(autojump_clock: Clock, nursery: bool) -> None:
    """What a function raises because it is cancelled says nothing of its record."""
    cut: list[bytes] = []

    async def nested(data: bytes) -> int:
        async with trio.open_nursery() as tasks:
            tasks.start_soon(clumsy, data)
            await trio.sleep(1.0)
        return int(data)

    async def clumsy(data: bytes) -> int:
        try:
            await trio.sleep(1.0)
        except trio.Cancelled:
            cut.append(data)
            raise ConnectionError("closed") from None
        return int(data)

    given = nested if nursery else clumsy
    async with reading(Registry(), 1, value_deserializer=given) as (_, consumer):
        with trio.move_on_after(0.5):
            await consumer.receive()
        assert cut == [b"0"]
        assert (await consumer.receive()).value == 0


async def test_seek_overtakes_a_function(autojump_clock: Clock) -> None:
    registry = Registry(1.0)
    async with reading(registry, 9) as (_, consumer), trio.open_nursery() as nursery:
        got: list[int] = []

        async def receive() -> None:
            got.append((await consumer.receive()).value)

        nursery.start_soon(receive)
        await until(lambda: registry.asked == [b"0"])
        consumer.seek(T0, 7)
        await until(lambda: bool(got))
        assert got == [7]
        assert await consumer.position(T0) == 8


async def test_slow_function_is_named_as_the_cause(autojump_clock: Clock) -> None:
    """A standstill at a deserializer is not blamed on the broker."""
    registry = Registry(1_000.0)
    async with reading(registry, 2) as (_, consumer), trio.open_nursery() as nursery:
        nursery.start_soon(consumer.receive)
        await until(lambda: not consumer.health().ok)
        assert consumer.health().stalled == {
            T0: "a receive waits for an async deserializer of its records"
        }
        nursery.cancel_scope.cancel()
    assert registry.asked == [b"0"]


async def test_slow_function_is_why_a_member_leaves(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """The program does receive: the warning says what it waits for. The record comes again."""
    registry = Registry(90.0)
    settings = {"group_id": "g", "max_poll_interval_ms": 60_000, "auto_offset_reset": "earliest"}
    async with cluster_of(1, records=1) as cluster:
        async with consumer_of(cluster, value_deserializer=registry.number, **settings) as consumer:
            consumer.subscribe(["t"])
            async with trio.open_nursery() as nursery:
                got: list[int] = []

                async def receive() -> None:
                    got.append((await consumer.receive()).value)

                nursery.start_soon(receive)
                await trio.sleep(80)
                assert "waited 60000 ms for an async deserializer of t-0" in caplog.text
                registry.seconds = 1
                with trio.fail_after(60):
                    await until(lambda: bool(got))
            assert got == [0]


async def test_paused_partition_keeps_what_was_awaited(autojump_clock: Clock) -> None:
    registry = Registry(1.0)
    async with reading(registry, 2) as (_, consumer), trio.open_nursery() as nursery:
        nursery.start_soon(consumer.receive_batch, 5.0)
        await until(lambda: registry.asked == [b"0"])
        consumer.pause([T0])
        await trio.sleep(10)
        consumer.resume([T0])
        assert (await consumer.receive()).value == 0
        assert registry.asked == [b"0"]


async def test_nowait_takes_only_what_was_awaited(autojump_clock: Clock) -> None:
    registry = Registry(0.001)
    async with reading(registry, 3, partitions=2) as (_, consumer):
        await until(lambda: consumer.statistics().buffered_bytes > 0)
        for receive in (consumer.receive_nowait, consumer.receive_batch_nowait):
            with pytest.raises(trio.WouldBlock):
                receive()
        got = []
        while len(got) < 6:
            assert await consumer.wait_receivable()
            record = consumer.receive_nowait()
            got.append((record.partition, record.value))
            for record in consumer.receive_batch_nowait():
                got.append((record.partition, record.value))
        assert sorted(got) == [(number, value) for number in range(2) for value in range(3)]


async def test_batches_end_where_they_should(autojump_clock: Clock) -> None:
    async with reading(Registry(0.004), 20, max_poll_records=4) as (_, consumer):
        seen = [record.value async for batch in consumer.batches({T0: 13}) for record in batch]
        assert seen == list(range(13))


async def test_tables_need_no_function(autojump_clock: Clock) -> None:
    pytest.importorskip("pyarrow")
    registry = Registry(5.0)
    async with reading(registry, 4) as (_, consumer):
        table = await anext(consumer.arrow_batches())
        assert table["value"].to_pylist() == [b"0", b"1", b"2", b"3"]
        consumer.seek(T0, 0)
        stream = await anext(consumer.partitions())
        assert (await anext(stream.arrow_batches())).num_rows == 4
        assert registry.asked == []


@pytest.mark.parametrize("batches", [False, True])
async def test_tasks_retry_a_failed_function(autojump_clock: Clock, batches: bool) -> None:
    registry = Registry()
    registry.fails = lambda data: data == b"2" and registry.asked.count(data) < 3
    done: list[int] = []

    async def handler(given: Any) -> None:
        done.extend([one.value for one in given] if batches else [given.value])

    run: Any = trikafka.run_tasks
    async with cluster_of(records=5) as cluster:
        async with (
            consumer_of(
                cluster,
                "t",
                group_id="g",
                value_deserializer=registry.number,
                enable_auto_commit=False,
                auto_commit_interval_ms=20,
            ) as consumer,
            trio.open_nursery() as nursery,
        ):
            policy = trikafka.RetryPolicy(DeserializationError, attempts=5)
            nursery.start_soon(
                functools.partial(run, consumer, handler, batches=batches, retry=policy)
            )
            await until(lambda: cluster.committed("g", T0) is not None)
            await until(lambda: cluster.committed("g", T0).offset == 5)
            nursery.cancel_scope.cancel()
    assert done == list(range(5))
    assert registry.asked.count(b"2") == 3


@pytest.mark.parametrize("transactional", [False, True])
async def test_dead_letter_has_the_bytes(autojump_clock: Clock, transactional: bool) -> None:
    registry = Registry()
    registry.fails = lambda data: data == b"2"
    done: list[int] = []

    async def handler(record: Any) -> None:
        done.append(record.value)

    async with cluster_of(records=5) as cluster:
        cluster.create_topic("dead", 1)
        more: Any = {"transactional_id": "x"} if transactional else {}
        async with (
            consumer_of(
                cluster,
                "t",
                group_id="g",
                value_deserializer=registry.number,
                enable_auto_commit=False,
                auto_commit_interval_ms=20,
            ) as consumer,
            trikafka.open_producer(
                bootstrap_servers=cluster.bootstrap_servers, dial=cluster.dial, **more
            ) as producer,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(
                functools.partial(
                    trikafka.run_tasks, consumer, handler, producer=producer, dead_letter="dead"
                )
            )
            await until(lambda: cluster.committed("g", T0) is not None)
            await until(lambda: cluster.committed("g", T0).offset == 5)
            nursery.cancel_scope.cancel()
        (dead,) = [one.value for one in cluster.records("dead", 0) if one.value is not None]
    assert dead == b"2"
    assert sorted(set(done)) == [0, 1, 3, 4]


async def test_process_hands_over_values(autojump_clock: Clock) -> None:
    seen: list[int] = []

    async def handler(batch: Any, txn: trikafka.Transaction) -> None:
        seen.extend(record.value for record in batch)

    async with cluster_of(records=5) as cluster:
        async with (
            consumer_of(
                cluster,
                "t",
                group_id="g",
                value_deserializer=Registry(0.004).number,
                enable_auto_commit=False,
            ) as consumer,
            trikafka.open_producer(
                bootstrap_servers=cluster.bootstrap_servers, dial=cluster.dial, transactional_id="x"
            ) as producer,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(trikafka.process, consumer, producer, handler)
            await until(lambda: cluster.committed("g", T0) is not None)
            await until(lambda: cluster.committed("g", T0).offset == 5)
            nursery.cancel_scope.cancel()
    assert seen == list(range(5))


@pytest.mark.parametrize("side", ["key", "value"])
@pytest.mark.parametrize("other_is_async", [False, True])
async def test_coroutine_of_a_plain_function_is_an_error(
    autojump_clock: Clock, side: str, other_is_async: bool
) -> None:
    """A lambda around an async function is itself not async; its coroutine was the value."""
    registry = Registry()
    other = "value" if side == "key" else "key"
    given = {f"{side}_deserializer": lambda data: registry.number(data)}
    given[f"{other}_deserializer"] = registry.number if other_is_async else bytes.decode
    async with reading(registry, **given) as (cluster, consumer):
        cluster.append("t", 0, [(b"1", b"2")])
        with pytest.raises(DeserializationError) as caught:
            await consumer.receive()
        assert "returned the coroutine Registry.number(), which nothing awaits" in str(
            caught.value.__cause__
        )
        assert await consumer.position(T0) == 0
