"""What failed calls and lost connections had is freed at once, and not by the garbage collector."""

from __future__ import annotations

import gc
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
import trio
from trio.testing import MockClock as Clock

import trikafka
from trikafka import Consumer, RecordBatch, TopicPartition
from trikafka._net.deadlines import RunningCall, run_call
from trikafka._net.in_flight import InFlightRequest
from trikafka._net.transport import FrameReader
from trikafka._state.consumer.fetch_buffer import CompletedFetch
from trikafka._state.producer.producer_batch import ProducerBatch
from trikafka.config import AdminConfig
from trikafka.errors import CorruptRecordError, KafkaConnectionError, KafkaTimeoutError
from trikafka.errors.copies import without_traces
from trikafka.testing import ScriptedCluster, cut
from trikafka.testing.batches import encode_batch


class Given:
    """What a call was given, such as a large record."""


@pytest.fixture(autouse=True)
def without_collector() -> Iterator[None]:
    was_on = gc.isenabled()
    gc.collect()
    gc.disable()
    yield
    if was_on:
        gc.enable()


@asynccontextmanager
async def reading() -> AsyncIterator[tuple[ScriptedCluster, Consumer[Any, Any]]]:
    """Open a cluster with the topic ``t``, and a consumer that is assigned its partition."""
    async with (
        ScriptedCluster(topics={"t": 1}) as cluster,
        trikafka.open_consumer(
            bootstrap_servers=cluster.bootstrap_servers,
            dial=cluster.dial,
            auto_offset_reset="earliest",
        ) as consumer,
    ):
        consumer.assign([TopicPartition("t", 0)])
        yield cluster, consumer


def alive(*kinds: type) -> int:
    """Count the process's objects. Other tests may have left some, in errors that they keep."""
    return sum(isinstance(each, kinds) for each in gc.get_objects())


async def fail(given: Given) -> None:
    async def attempt(call: RunningCall) -> None:
        raise KafkaConnectionError(f"no use for {given}")

    await run_call("try", attempt, config=AdminConfig(bootstrap_servers="b:1"), timeout=1)


async def test_failed_call_is_freed_at_once(autojump_clock: Clock) -> None:
    given = Given()
    freed = weakref.ref(given)
    with suppress(KafkaTimeoutError):
        await fail(given)
    del given
    assert freed() is None


async def test_lost_connection_frees_its_batches(autojump_clock: Clock) -> None:
    async with (
        ScriptedCluster(topics={"t": 1}) as cluster,
        trikafka.open_producer(
            bootstrap_servers=cluster.bootstrap_servers, dial=cluster.dial
        ) as producer,
    ):
        await producer.send("t", b"x")
        before = alive(FrameReader, InFlightRequest, ProducerBatch)
        for _ in range(5):
            cluster.drop("Produce", times=1)
            await producer.send("t", b"x")
        assert alive(FrameReader, InFlightRequest, ProducerBatch) == before


def no_text(frame: bytes) -> bytes:
    """Make the topic's name no UTF-8."""
    changed = frame.replace(b"\x02t", b"\x02\xff")
    assert changed != frame
    return changed


@pytest.mark.parametrize("change", [cut, no_text])
async def test_damaged_response_frees_its_batches(
    autojump_clock: Clock, change: Callable[[bytes], bytes]
) -> None:
    async with (
        ScriptedCluster(topics={"t": 1}) as cluster,
        trikafka.open_producer(
            bootstrap_servers=cluster.bootstrap_servers, dial=cluster.dial
        ) as producer,
    ):
        await producer.send("t", b"x")
        before = alive(InFlightRequest, ProducerBatch)
        for _ in range(5):
            cluster.damage("Produce", change=change)
            await producer.send("t", b"x")
        assert alive(InFlightRequest, ProducerBatch) <= before


async def test_buffers_of_a_lost_fetch_are_freed_at_once(autojump_clock: Clock) -> None:
    async with reading() as (cluster, consumer):
        cluster.append("t", 0, [b"x"])
        await consumer.receive()
        before = alive(FrameReader)
        for _ in range(5):
            cluster.append("t", 0, [b"x"])
            cluster.disconnect()
            await consumer.receive()
        await trio.sleep(10)
        assert alive(FrameReader) <= before


async def test_records_of_the_decoder_thread_are_freed() -> None:
    """A compressed batch is decoded in a thread; dozens of them would stay in memory."""
    async with reading() as (cluster, consumer):
        before = alive(RecordBatch)
        for _ in range(5):
            cluster.append("t", 0, [bytes(100_000)] * 50, compression="gzip")
            assert len(await consumer.receive_batch()) == 50
        assert alive(RecordBatch) <= before + 1


@pytest.mark.parametrize("compression", ["none", "gzip"])
async def test_corrupt_batch_is_freed_at_once(autojump_clock: Clock, compression: str) -> None:
    async with reading() as (cluster, consumer):
        data = bytearray(encode_batch([bytes(1_000)], timestamp=0, compression=compression))
        data[-3] ^= 0xFF
        cluster.append_batch("t", 0, bytes(data))
        errors, fetches = alive(CorruptRecordError), alive(CompletedFetch)
        for _ in range(5):
            with suppress(CorruptRecordError):
                await consumer.receive_batch()
        assert alive(CorruptRecordError) <= errors + 1
        assert alive(CompletedFetch) <= fetches + 1


def test_kept_error_leaves_a_handled_exception_alone() -> None:
    """The program may send a record while it handles an exception of its own."""
    try:
        try:
            raise ValueError
        except ValueError:
            raise OSError from ConnectionError()
    except OSError as error:
        kept = without_traces(error)
    assert kept.__traceback__ is None
    assert kept.__context__ is not None
    assert kept.__context__.__traceback__ is not None
