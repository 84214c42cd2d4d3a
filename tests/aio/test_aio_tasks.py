"""``run_tasks`` of asyncio: handlers are tasks of asyncio, the run is Trio's."""

from __future__ import annotations

import asyncio
import contextvars
import os
import signal
from typing import Any

import pytest
import sniffio
from hosting import (
    LOOPS,
    T0,
    T1,
    cluster_of,
    consumer_of,
    member_of,
    nothing_left,
    producer_of,
    run,
    until,
)

import trikafka
import trikafka.aio

who: contextvars.ContextVar[str] = contextvars.ContextVar("who", default="no one")
SETTINGS: dict[str, Any] = {"enable_auto_commit": False, "auto_commit_interval_ms": 20}


@pytest.mark.parametrize("kind", LOOPS)
def test_handlers_run_in_asyncio(kind: str) -> None:
    async def main() -> None:
        seen: list[tuple[int, int]] = []

        async def handler(record: trikafka.Record) -> None:
            assert asyncio.current_task() is not None
            assert who.get() == "the caller"
            who.set("a handler")  # in a copy of the context
            async with asyncio.timeout(240):
                await asyncio.sleep(0)
            seen.append((record.partition, record.offset))

        async with cluster_of(2, records=20) as cluster, member_of(cluster, **SETTINGS) as consumer:
            who.set("the caller")
            task = asyncio.create_task(trikafka.aio.run_tasks(consumer, handler))
            await until(lambda: len(seen) == 40)
            await until(lambda: all(cluster.committed("g", tp) for tp in (T0, T1)))
            await until(lambda: {cluster.committed("g", tp).offset for tp in (T0, T1)} == {20})
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        for number in (0, 1):
            assert [offset for at, offset in seen if at == number] == list(range(20))

    with nothing_left(kind):
        run(main, kind)


def test_cancelled_run_cancels_handlers() -> None:
    """The run waits for a handler that cleans up, and commits what is done."""

    async def main() -> None:
        steps: list[str] = []

        async def handler(record: trikafka.Record) -> None:
            if record.offset < 3:
                return
            steps.append("begun")
            limit.reschedule(0)  # the time is over
            try:
                await asyncio.sleep(3600)
            finally:
                await asyncio.sleep(0.02)
                steps.append("cleaned")

        async with cluster_of(1, records=9) as cluster, member_of(cluster, **SETTINGS) as consumer:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(None) as limit:
                    await trikafka.aio.run_tasks(consumer, handler)
            assert steps == ["begun", "cleaned"]
            assert cluster.committed("g", T0).offset == 3

    with nothing_left():
        run(main)


def test_error_of_a_handler_ends_the_run() -> None:
    async def main() -> None:
        async def handler(record: trikafka.Record) -> None:
            if record.offset == 3:
                raise LookupError("no such thing")

        async with cluster_of(1, records=9) as cluster, member_of(cluster, **SETTINGS) as consumer:
            with pytest.raises(LookupError, match="no such thing"):
                await trikafka.aio.run_tasks(consumer, handler)
            assert cluster.committed("g", T0).offset == 3
            assert (await consumer.receive()).offset == 3

    with nothing_left():
        run(main)


def test_cancelled_error_of_a_handler_is_typed() -> None:
    """A handler that awaits a cancelled task must not look like a cancelled program."""

    async def main() -> None:
        async def handler(record: trikafka.Record) -> None:
            other = asyncio.create_task(asyncio.sleep(3600))
            other.cancel()
            await other

        async with cluster_of(1, records=1) as cluster, member_of(cluster, **SETTINGS) as consumer:
            with pytest.raises(trikafka.IllegalStateError, match="not by trikafka"):
                await trikafka.aio.run_tasks(consumer, handler)

    run(main)


def test_plain_handler_makes_no_dead_letter() -> None:
    """No record is the reason: the run ends at the first one, also with ``dead_letter=``."""

    async def main() -> None:
        handler: Any = lambda record: 5  # noqa: E731
        async with (
            cluster_of(1, records=4) as cluster,
            producer_of(cluster) as producer,
            member_of(cluster, **SETTINGS) as consumer,
        ):
            cluster.create_topic("dead", 1)
            with pytest.raises(trikafka.ConfigurationError, match="must be an async function"):
                await trikafka.aio.run_tasks(
                    consumer, handler, producer=producer, dead_letter="dead"
                )
            assert not cluster.records("dead", 0)
            assert cluster.committed("g", T0) is None

    run(main)


def test_failed_records_become_dead_letters() -> None:
    async def main() -> None:
        done: list[int] = []

        async def handler(batch: trikafka.RecordBatch) -> None:
            if batch.offsets[0] == 0:
                raise LookupError
            done.extend(batch.offsets)

        async with (
            cluster_of(1, records=4) as cluster,
            producer_of(cluster) as producer,
            member_of(cluster, max_poll_records=1, **SETTINGS) as consumer,
        ):
            cluster.create_topic("dead", 1)
            task = asyncio.create_task(
                trikafka.aio.run_tasks(
                    consumer, handler, batches=True, producer=producer, dead_letter="dead"
                )
            )
            await until(lambda: done == [1, 2, 3])
            await until(lambda: cluster.records("dead", 0))
            assert [record.value for record in cluster.records("dead", 0)] == [b"0"]
            task.cancel()
            await asyncio.wait([task])

    with nothing_left():
        run(main)


def test_exactly_once_with_a_transactional_producer() -> None:
    async def main() -> None:
        async with (
            cluster_of(1, records=5) as cluster,
            producer_of(cluster, transactional_id="x") as producer,
            member_of(cluster, **SETTINGS) as consumer,
        ):
            cluster.create_topic("out", 1)

            async def handler(record: trikafka.Record) -> None:
                await producer.send("out", record.value)

            task = asyncio.create_task(trikafka.aio.run_tasks(consumer, handler, producer=producer))
            await until(lambda: cluster.committed("g", T0))
            await until(lambda: cluster.committed("g", T0).offset == 5)
            task.cancel()
            await asyncio.wait([task])
            values = [record.value for record in cluster.records("out", 0)]
            assert [value for value in values if value is not None][:5] == [
                b"%d" % number for number in range(5)
            ]

    with nothing_left():
        run(main)


def test_signal_ends_the_run_in_order() -> None:
    async def main() -> None:
        seen: list[int] = []

        async def handler(record: trikafka.Record) -> None:
            seen.append(record.offset)
            if record.offset == 3:
                os.kill(os.getpid(), signal.SIGTERM)

        async with cluster_of(1, records=4) as cluster, member_of(cluster, **SETTINGS) as consumer:
            await trikafka.aio.run_tasks(consumer, handler, stop_on=[signal.SIGTERM])
            assert cluster.committed("g", T0).offset == 4
        assert seen == [0, 1, 2, 3]

    with nothing_left():
        run(main)


def test_closing_inside_a_handler_is_refused() -> None:
    async def main() -> None:
        async def handler(record: trikafka.Record) -> None:
            await consumer.aclose()

        async with cluster_of(1, records=1) as cluster, member_of(cluster, **SETTINGS) as consumer:
            with pytest.raises(trikafka.IllegalStateError, match="handler that it was called in"):
                await trikafka.aio.run_tasks(consumer, handler)

    run(main)


def test_wrong_arguments_are_refused() -> None:
    async def main() -> None:
        async def no_arguments() -> None: ...

        async def handler(record: trikafka.Record) -> None: ...

        async with cluster_of(1) as cluster, member_of(cluster, **SETTINGS) as consumer:
            with pytest.raises(trikafka.ConfigurationError, match=r"trikafka\.aio"):
                await trikafka.aio.run_tasks(consumer._client, handler)  # type: ignore[call-overload]
            with pytest.raises(trikafka.ConfigurationError, match="no_arguments"):
                await trikafka.aio.run_tasks(consumer, no_arguments)  # type: ignore[call-overload]
            with pytest.raises(trikafka.ConfigurationError, match="handler"):
                await trikafka.aio.run_tasks(consumer, None)  # type: ignore[call-overload]

    run(main)


def test_handler_that_is_not_async_ends_the_run() -> None:
    async def main() -> None:
        async with cluster_of(1, records=1) as cluster, member_of(cluster, **SETTINGS) as consumer:
            with pytest.raises(trikafka.ConfigurationError, match="async def"):
                await trikafka.aio.run_tasks(consumer, lambda record: None)  # type: ignore[arg-type, return-value]
            assert cluster.committed("g", T0) is None

    run(main)


def test_handler_leaves_a_task_running() -> None:
    """The call of a task that a handler started does not keep the handler from returning."""

    async def main() -> None:
        seen: list[int] = []
        left: list[asyncio.Task[object]] = []

        async with (
            cluster_of(1, records=3) as cluster,
            member_of(cluster, **SETTINGS) as consumer,
            consumer_of(cluster) as other,
        ):
            other.assign([T0])
            other.seek(T0, 3)

            async def handler(record: trikafka.Record) -> None:
                if not left:
                    left.append(asyncio.create_task(other.receive()))
                    await asyncio.sleep(0.01)
                seen.append(record.offset)

            task = asyncio.create_task(trikafka.aio.run_tasks(consumer, handler))
            await until(lambda: len(seen) == 3)
            task.cancel()
            await asyncio.wait([task])
            assert not left[0].done()
            cluster.append("t", 0, [b"more"])
            assert (await left[0]) is not None

    with nothing_left():
        run(main)


@pytest.mark.parametrize("knows_context", [True, False])
def test_task_factories_run_outside_of_trio(knows_context: bool) -> None:
    """A factory may run the first step at once: sniffio must not answer "trio" there."""

    async def main() -> None:
        found: list[object] = []

        def make(
            loop: asyncio.AbstractEventLoop, coroutine: Any, **settings: Any
        ) -> asyncio.Task[Any]:
            found.append(sniffio.thread_local.name)
            return asyncio.Task(coroutine, loop=loop, **settings)

        async def handler(record: trikafka.Record) -> None:
            if record.offset == 2:
                raise LookupError

        async with cluster_of(1, records=3) as cluster, member_of(cluster, **SETTINGS) as consumer:
            old = lambda loop, coroutine: make(loop, coroutine)  # noqa: E731
            asyncio.get_running_loop().set_task_factory(make if knows_context else old)
            with pytest.raises(LookupError):
                await trikafka.aio.run_tasks(consumer, handler)
        assert found == [None] * 3

    with nothing_left():
        run(main)


def test_error_of_a_task_factory_ends_the_run() -> None:
    async def main() -> None:
        def make(loop: asyncio.AbstractEventLoop, coroutine: object) -> asyncio.Task[object]:
            raise LookupError("no more tasks")

        async def handler(record: trikafka.Record) -> None:
            raise AssertionError

        async with cluster_of(1, records=3) as cluster, member_of(cluster, **SETTINGS) as consumer:
            asyncio.get_running_loop().set_task_factory(make)
            with pytest.raises(LookupError, match="no more tasks"):
                await trikafka.aio.run_tasks(consumer, handler)
            asyncio.get_running_loop().set_task_factory(None)

    run(main)
