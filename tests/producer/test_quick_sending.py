"""The quick ways of a common record: the outcome of the complete ways, without their frames."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
import trio
from producing import opened, ready, values

from trikafka import IllegalStateError, Producer
from trikafka._api.producer import waiting
from trikafka._wire.records import IMPLEMENTATION
from trikafka.testing import ScriptedCluster


@pytest.fixture(autouse=True)
async def long_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give producers a turn that lasts as long as the test, so that calls pass on any machine."""
    monkeypatch.setattr(waiting.current, "fairness", waiting.Fairness(3_600))


def functions_in(call: Callable[[], Any]) -> set[str]:
    """Return the names of trikafka's Python functions that run in ``call``."""
    names = set()

    def see(frame: Any, event: str, _: object) -> None:
        if event == "call" and "trikafka" in frame.f_globals.get("__name__", ""):
            names.add(frame.f_code.co_qualname)

    before = sys.getprofile()
    sys.setprofile(see)
    try:
        call()
    finally:
        sys.setprofile(before)
    return names


async def test_common_record_runs_no_function_in_python() -> None:
    async with ready() as (cluster, producer):
        await producer.enqueue("t", b"opens the batch", partition=0)

        def enqueue() -> None:
            with pytest.raises(StopIteration):
                producer.enqueue("t", b"x", partition=0).send(None)

        ways = enqueue, lambda: producer.send_nowait("t", b"x", partition=0)
        for way in ways:
            assert not functions_in(way) or IMPLEMENTATION == "pure"
        await producer.flush()
        assert values(cluster) == [b"opens the batch", b"x", b"x"]


async def test_records_of_both_ways_are_written_in_order() -> None:
    async with ready() as (cluster, producer):
        for number in range(20):
            record: tuple[Any, ...] = ("t", b"%d" % number if number % 3 else bytearray(b"other"))
            given = {"key": b"k", "headers": [("h", b"1")] if number % 4 == 0 else ()}
            way = (producer, Producer)[number % 2]
            bound = (producer,) if way is Producer else ()
            if number % 5:
                ack = await way.enqueue(*bound, *record, partition=0, **given)
            else:
                ack = way.send_nowait(*bound, *record, partition=0, **given)
            assert ack.partition.partition == 0
        await producer.flush()
        wanted = [b"%d" % number if number % 3 else b"other" for number in range(20)]
        assert values(cluster) == wanted


async def test_cancelled_task_enqueues_nothing() -> None:
    async with ready() as (cluster, producer):
        await producer.enqueue("t", b"before", partition=0)
        begun = producer.enqueue("t", b"never", partition=0)
        with trio.CancelScope() as scope:
            scope.cancel()
            await begun
        assert scope.cancelled_caught
        await producer.flush()
        assert values(cluster) == [b"before"]


async def test_call_without_await_warns() -> None:
    async with ready() as (cluster, producer):
        with pytest.warns(RuntimeWarning, match="'Producer.enqueue' was never awaited"):
            producer.enqueue("t", b"never", partition=0)  # type: ignore[unused-coroutine]
        producer.enqueue("t", b"never", partition=0).close()
        with pytest.raises(KeyError):
            producer.enqueue("t", b"never", partition=0).throw(KeyError())
        await producer.flush()
        assert values(cluster) == []


async def test_awaitable_of_enqueue_is_of_one_use() -> None:
    async with ready() as (cluster, producer):
        for _ in range(2):
            once = producer.enqueue("t", b"x", partition=0)
            await once
            with pytest.raises(RuntimeError, match="cannot reuse already awaited"):
                await once
        await producer.flush()
        assert values(cluster) == [b"x", b"x"]


async def test_enqueue_runs_as_a_task() -> None:
    async with ready() as (cluster, producer):
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(producer.enqueue, "t", b"x")
        await producer.flush()
        assert values(cluster) == [b"x"] * 3


async def test_kept_functions_refuse_after_the_close() -> None:
    async with ready() as (cluster, producer):
        enqueue, send_nowait = producer.enqueue, producer.send_nowait
        await enqueue("t", b"x", partition=0)
        late = enqueue("t", b"late", partition=0)
        await producer.aclose()
        for way in (send_nowait, enqueue):
            with pytest.raises(trio.ClosedResourceError):
                await way("t", b"late", partition=0)  # type: ignore[misc]
        with pytest.raises(trio.ClosedResourceError):
            await late
        assert values(cluster) == [b"x"]


async def test_quick_call_needs_an_open_transaction() -> None:
    async with (
        ScriptedCluster(topics={"t": 1}) as cluster,
        opened(cluster, transactional_id="x") as producer,
    ):
        for number in range(2):
            with pytest.raises(IllegalStateError):
                producer.send_nowait("t", b"outside")
            with pytest.raises(IllegalStateError):
                await producer.enqueue("t", b"outside")
            async with producer.transaction():
                await producer.enqueue("t", b"%d" % number)
                producer.send_nowait("t", b"%d" % number)
        await producer.aclose()
        with pytest.raises(trio.ClosedResourceError):
            await producer.enqueue("t", b"late")
        assert [value for value in values(cluster) if value] == [b"0", b"0", b"1", b"1"]


async def test_replaced_method_of_the_class_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that traces the calls of all producers replaces the method."""
    plain = Producer.enqueue
    traced = []

    async def enqueue(producer: Producer, *args: Any, **options: Any) -> Any:
        traced.append(args)
        return await plain(producer, *args, **options)

    monkeypatch.setattr(Producer, "enqueue", enqueue)
    async with ready() as (cluster, producer):
        await producer.enqueue("t", b"x", partition=0)
        producer.send_nowait("t", b"y", partition=0)
        await producer.flush()
        assert values(cluster) == [b"x", b"y"]
    assert traced == [("t", b"x")]


async def test_missing_argument_is_named() -> None:
    async with ready() as (_, producer):
        for call in (producer.enqueue, producer.send_nowait):
            with pytest.raises(TypeError, match=r"missing 1 required positional argument: 'value'"):
                call("t")  # type: ignore[call-arg]
            with pytest.raises(TypeError, match=r"missing 1 required positional argument: 'topic'"):
                call(value=b"x")  # type: ignore[call-arg]
            with pytest.raises(TypeError, match=r"missing 2 .*: 'topic' and 'value'"):
                call()  # type: ignore[call-arg]


async def test_waiting_call_is_awaited_by_one_task() -> None:
    async with ready(buffer_memory=65_536) as (cluster, producer):
        for _ in range(21):
            producer.send_nowait("t", bytes(3_000), partition=0)
        waiting_call = producer.enqueue("t", bytes(3_000), partition=0)
        outcomes = []

        async def wait() -> None:
            try:
                await waiting_call
                outcomes.append("accepted")
            except RuntimeError as error:
                outcomes.append(str(error))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            nursery.start_soon(wait)
        await producer.flush()
        assert outcomes == ["coroutine is being awaited already", "accepted"]
        assert len(values(cluster)) == 22
