"""Cancellation at every await of streams, tables, look-ups, opening and leaving.

Receives are in ``test_cancelling.py``.
"""

from __future__ import annotations

import importlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from consuming import T0, T1, RecordingListener, cluster_of, consumer_of, member_of, until
from test_cancelling import (
    PROTOCOLS,
    STRATEGIES,
    Given,
    all_calls_work,
    fresh,
    listening,
    the_rest_comes,
)
from trio.testing import MockClock as Clock

from trikafka.error_codes import ErrorCode
from trikafka.testing import ScriptedCluster, assert_all_awaits_cancellable
from trikafka.testing._leftovers import assert_nothing_left


async def everything_comes_and_nothing_is_left(given: Given) -> None:
    """Check that each record is received once and that no byte is buffered and no task is left."""
    await the_rest_comes(given)
    assert given.consumer.statistics().buffered_bytes == 0
    given.cluster.append("t", 0, [b"new"])
    with trio.fail_after(10):
        assert (await given.consumer.receive()).value == b"new"


async def streams_in_one_task(given: Given) -> None:
    streams = []
    async for stream in given.consumer.partitions():
        streams.append(stream)
        if len(streams) == 2:
            break
    while len(given.got) < 8:
        for stream in streams:
            record = await stream.receive()
            given.got.append((record.partition, record.offset))


async def streams_by_batch(given: Given) -> None:
    async for stream in given.consumer.partitions():
        async for batch in stream.batches():
            given.got.extend((batch.partition, offset) for offset in batch.offsets)
            if batch.next_offset == 6:
                break
        if len(given.got) == 12:
            return


async def streams_by_table(given: Given) -> None:
    async for stream in given.consumer.partitions():
        async for table in stream.arrow_batches(max_rows=4):
            given.got.extend(
                (stream.partition.partition, offset)
                for offset in table.column("offset").to_pylist()
            )
            if stream.position == 6:
                break
        if len(given.got) == 12:
            return


async def tables(given: Given) -> None:
    async for table in given.consumer.arrow_batches({T0: 6, T1: 6}, max_rows=3):
        rows = zip(
            table.column("partition").to_pylist(), table.column("offset").to_pylist(), strict=True
        )
        given.got.extend(rows)


@pytest.mark.parametrize("scenario", [streams_in_one_task, streams_by_batch, streams_by_table])
@STRATEGIES
async def test_cancelled_streams_lose_nothing(
    autojump_clock: Clock, scenario: Any, strategy: dict[str, Any]
) -> None:
    # Otherwise it is imported in a thread, for which the virtual clock does not wait.
    importlib.import_module("trikafka._wire.arrow")

    def setup() -> Any:
        return fresh(**strategy)

    assert (
        await assert_all_awaits_cancellable(
            scenario, everything_comes_and_nothing_is_left, setup=setup
        )
        >= 5
    )


@PROTOCOLS
async def test_cancelled_streams_rerun_listeners(
    autojump_clock: Clock, protocol: dict[str, Any]
) -> None:
    def setup() -> Any:
        return listening(**protocol)

    assert (
        await assert_all_awaits_cancellable(
            streams_in_one_task, everything_comes_and_nothing_is_left, setup=setup
        )
        >= 5
    )


@pytest.mark.parametrize("group", [None, "classic", "consumer"])
async def test_cancelled_tables_lose_nothing(autojump_clock: Clock, group: str | None) -> None:
    importlib.import_module("trikafka._wire.arrow")

    @asynccontextmanager
    async def setup() -> AsyncIterator[Given]:
        settings = {} if group is None else {"group_id": "g", "group_protocol": group}
        async with (
            cluster_of(2, records=6) as cluster,
            consumer_of(cluster, **settings) as consumer,
        ):
            if group is None:
                consumer.assign([T0, T1])
            else:
                consumer.subscribe(["t"])
                await until(lambda: consumer.statistics().state == "stable")
            yield Given(cluster, consumer, [])

    assert (
        await assert_all_awaits_cancellable(
            tables, everything_comes_and_nothing_is_left, setup=setup
        )
        >= 3
    )


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
async def test_cancelled_rebalance_can_be_resumed(autojump_clock: Clock, strategy: str) -> None:
    """The iteration is cancelled while a handler, a commit or a listener is waited for.

    The next one continues.
    """
    settings = {"partition_assignment_strategy": [strategy], "auto_commit_interval_ms": 1_000_000}

    @asynccontextmanager
    async def setup() -> AsyncIterator[tuple[ScriptedCluster, Any, Any]]:
        log: list[Any] = []

        async def work(what: str) -> None:
            await trio.sleep(0.25)

        async with (
            cluster_of(2, records=6) as cluster,
            consumer_of(cluster, group_id="g", **settings) as consumer,
            trio.open_nursery() as nursery,
        ):
            consumer.subscribe(["t"], RecordingListener(log, then=work))
            streams: list[Any] = []

            async def hold(stream: Any) -> None:
                async for _ in stream:
                    await trio.sleep(2)

            async for stream in consumer.partitions():
                nursery.start_soon(hold, stream)
                streams.append(stream)
                if len(streams) == 2:
                    break
            await trio.sleep(1)
            cluster.group("g")._rebalance()
            yield cluster, consumer, log
            nursery.cancel_scope.cancel()

    async def serve(cluster: ScriptedCluster, consumer: Any, log: list[Any]) -> None:
        with trio.move_on_after(8):
            async for stream in consumer.partitions():
                stream.position  # noqa: B018

    async def check(given: Any) -> None:
        cluster, consumer, log = given
        count = len(cluster.requests("JoinGroup"))
        async with trio.open_nursery() as nursery:

            async def go_on() -> None:
                async for _ in consumer.partitions():
                    pass

            nursery.start_soon(go_on)
            with trio.fail_after(30):
                await until(
                    lambda: (
                        consumer.statistics().state == "stable" and len(consumer.assignment()) == 2
                    ),
                    0.1,
                )
                cluster.group("g")._rebalance()
                await until(lambda: len(cluster.requests("JoinGroup")) > count, 0.1)
                await until(
                    lambda: (
                        consumer.statistics().state == "stable" and len(consumer.assignment()) == 2
                    ),
                    0.1,
                )
            nursery.cancel_scope.cancel()
        await assert_nothing_left(cluster, consumer, buffered=1_000)  # no task reads the records
        listener_calls = [what for what, _ in log if what != "lost"]
        assert "lost" not in [what for what, _ in log]
        if strategy == "range":  # in the right order, none left out (a cancelled call is repeated)
            listener_calls = [
                what
                for what, before in zip(listener_calls, [None, *listener_calls], strict=False)
                if what != before
            ]
            assert listener_calls == ["assigned", "revoked"] * (len(listener_calls) // 2) + [
                "assigned"
            ] * (len(listener_calls) % 2)

    async def scenario(given: Any) -> None:
        await serve(*given)

    assert await assert_all_awaits_cancellable(scenario, check, setup=setup) >= 2


async def open_and_close(cluster: ScriptedCluster) -> None:
    async with member_of(cluster) as consumer:
        await consumer.receive()
        await consumer.aclose()


async def test_cancelled_open_and_close_leave_nothing(autojump_clock: Clock) -> None:
    @asynccontextmanager
    async def setup() -> AsyncIterator[ScriptedCluster]:
        async with cluster_of(records=5) as cluster:
            yield cluster

    async def check(cluster: ScriptedCluster) -> None:
        await trio.sleep(1)
        assert cluster.connections() == 0
        group = cluster.group("g")
        assert group is None or not group.members

    assert await assert_all_awaits_cancellable(open_and_close, check, setup=setup) > 5


CALLS: dict[str, Callable[[Given], Awaitable[object]]] = {
    "commit": lambda given: given.consumer.commit(),
    "committed": lambda given: given.consumer.committed([T0]),
    "position": lambda given: given.consumer.position(T0),
    "beginning_offsets": lambda given: given.consumer.beginning_offsets([T0, T1]),
    "end_offsets": lambda given: given.consumer.end_offsets([T0, T1]),
    "offsets_for_times": lambda given: given.consumer.offsets_for_times({T0: 0}),
    "topic_ids": lambda given: given.consumer.topic_ids(["t"]),
    "partitions_for": lambda given: given.consumer.partitions_for("t"),
    "list_topics": lambda given: given.consumer.list_topics(),
}


@pytest.mark.parametrize("name", CALLS)
@PROTOCOLS
async def test_each_cancelled_call_can_be_repeated(
    autojump_clock: Clock, name: str, protocol: dict[str, Any]
) -> None:
    @asynccontextmanager
    async def setup() -> AsyncIterator[Given]:
        async with fresh(enable_auto_commit=False, **protocol) as given:
            await given.consumer.receive()
            yield given

    async def twice(given: Given) -> None:
        await CALLS[name](given)
        await CALLS[name](given)

    assert await assert_all_awaits_cancellable(twice, all_calls_work, setup=setup) >= 2


@PROTOCOLS
async def test_cancelled_seek_can_be_repeated(
    autojump_clock: Clock, protocol: dict[str, Any]
) -> None:
    @asynccontextmanager
    async def setup() -> AsyncIterator[Given]:
        async with fresh(**protocol) as given:
            await given.consumer.receive()
            yield given

    async def scenario(given: Given) -> None:
        given.consumer.seek_to_end([T0, T1])
        assert await given.consumer.position(T0) == 6
        given.consumer.seek_to_beginning([T0, T1])
        assert await given.consumer.position(T0) == 0

    async def check(given: Given) -> None:
        given.consumer.seek_to_beginning()
        await the_rest_comes(given)

    assert await assert_all_awaits_cancellable(scenario, check, setup=setup) >= 3


async def test_cancelled_close_is_finished_by_the_exit(
    autojump_clock: Clock,
) -> None:
    @asynccontextmanager
    async def setup() -> AsyncIterator[Any]:
        async with cluster_of(2, records=6) as cluster:
            yield cluster

    async def scenario(cluster: ScriptedCluster) -> None:
        async with member_of(cluster) as consumer:
            for _ in range(3):
                await consumer.receive()
            async for stream in consumer.partitions():
                await stream.receive()
                break
            await consumer.aclose()

    async def check(cluster: ScriptedCluster) -> None:
        await trio.sleep(1)
        assert cluster.connections() == 0

    assert await assert_all_awaits_cancellable(scenario, check, setup=setup) > 5


@STRATEGIES
async def test_cancelled_lost_listener_is_called_again(
    autojump_clock: Clock, strategy: dict[str, Any]
) -> None:
    """It is called until it completes.

    Then the member joins again and reads from the last commit.
    """
    beat = "Heartbeat" if "group_protocol" not in strategy else "ConsumerGroupHeartbeat"

    @asynccontextmanager
    async def setup() -> AsyncIterator[tuple[Given, list[Any]]]:
        log: list[Any] = []

        async def work(what: str) -> None:
            await trio.sleep(0.5)
            log.append(what)

        settings = {"group_id": "g", "enable_auto_commit": False} | strategy
        async with (
            cluster_of(2, records=6) as cluster,
            consumer_of(cluster, **settings) as consumer,
        ):
            consumer.subscribe(["t"], RecordingListener([], then=work))
            given = Given(cluster, consumer, [])
            await consumer.receive()
            await until(lambda: consumer.statistics().state == "stable")
            cluster.fail(
                beat,
                ErrorCode.FENCED_MEMBER_EPOCH
                if "group_protocol" in strategy
                else ErrorCode.ILLEGAL_GENERATION,
                1,
            )
            await until(lambda: consumer.statistics().state == "fenced", 0.1)
            yield given, log

    async def scenario(both: tuple[Given, list[Any]]) -> None:
        given, log = both
        while "lost" not in log:
            await given.consumer.receive_batch(timeout=1)

    async def check(both: tuple[Given, list[Any]]) -> None:
        given, log = both
        await the_rest_comes(given)
        assert log == ["assigned", "lost", "assigned"]

    # There is at least one before, inside and after the listener.
    assert await assert_all_awaits_cancellable(scenario, check, setup=setup) >= 3
