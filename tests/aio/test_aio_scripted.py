"""The scripted cluster of ``trikafka.aio.testing``, as the tests of a program of asyncio use it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import trio
from hosting import LOOPS, T0, Cluster, consumer_of, nothing_left, producer_of, run

import trikafka.testing
from trikafka import IllegalStateError
from trikafka.aio.testing import ScriptedCluster


@pytest.mark.parametrize("kind", LOOPS)
def test_consumer_gets_what_is_appended(kind: str) -> None:
    async def main() -> None:
        async with Cluster(topics={"t": 1}) as cluster:
            async with consumer_of(cluster, "t", group_id="g") as consumer:
                cluster.append("t", 0, [b"first"])
                assert (await consumer.receive()).value == b"first"
                waiting = asyncio.create_task(consumer.receive())
                await cluster.seen("Fetch", where=_reads_from_one)
                cluster.append("t", 0, [b"second"])
                assert (await waiting).value == b"second"
                await consumer.commit()
            found = cluster.committed("g", T0)
            assert found is not None
            assert found.offset == 2

    with nothing_left(kind):
        run(main, kind)


def _reads_from_one(request: Any) -> bool:
    return any(
        partition.fetch_offset == 1 for topic in request.topics for partition in topic.partitions
    )


def test_handler_runs_in_asyncio() -> None:
    seen: list[str] = []

    async def slow(request: Any, default: Any) -> Any:
        await asyncio.sleep(0)
        seen.append("before")
        response = await default()
        seen.append("after")
        return response

    async def main() -> None:
        async with Cluster(topics={"t": 1}) as cluster:
            cluster.on("Produce", slow, times=1)
            async with producer_of(cluster) as producer:
                assert (await producer.send("t", b"x")).offset == 0
        assert seen == ["before", "after"]

    with nothing_left():
        run(main)


def test_error_of_a_handler_ends_the_block() -> None:
    async def bad(request: Any, default: Any) -> Any:
        raise ZeroDivisionError

    async def main() -> None:
        with pytest.raises(ZeroDivisionError):  # noqa: PT012
            async with Cluster(topics={"t": 1}) as cluster:
                cluster.on("Produce", bad)
                async with producer_of(cluster) as producer:
                    await producer.send("t", b"x")

    with nothing_left():
        run(main)


def test_error_of_the_body_is_raised_alone() -> None:
    async def main() -> None:
        with pytest.raises(KeyError):
            async with ScriptedCluster():
                raise KeyError

    with nothing_left():
        run(main)


def test_stopped_broker_is_noticed() -> None:
    async def main() -> None:
        async with Cluster(nodes=2, topics={"t": 2}) as cluster:
            async with producer_of(cluster) as producer:
                await producer.send("t", b"1", partition=1)
                cluster.stop(1)
                cluster.move_leader("t", 1, 0)
                await producer.send("t", b"2", partition=1)
            assert [record.value for record in cluster.records("t", 1)] == [b"1", b"2"]
            assert cluster.connections(1) == 0

    with nothing_left():
        run(main)


def test_state_can_be_read_after_the_block() -> None:
    async def main() -> None:
        cluster = Cluster(topics={"t": 1})
        cluster.append("t", 0, [b"before"])
        async with cluster, producer_of(cluster) as producer:
            await producer.send("t", b"inside")
        assert [record.value for record in cluster.records("t", 0)] == [b"before", b"inside"]
        with pytest.raises(IllegalStateError, match="can be entered once"):
            async with cluster:
                pass
        with pytest.raises(IllegalStateError, match="'async with' block only"):
            await cluster.seen("Produce")

    with nothing_left():
        run(main)


def test_wrong_cluster_is_refused() -> None:
    """Trio's cluster in asyncio, and asyncio's in Trio."""

    async def main() -> None:
        with pytest.raises(IllegalStateError, match=r"use trikafka\.aio\.testing"):
            async with trikafka.testing.ScriptedCluster():
                pass
        async with trikafka.aio.testing.ScriptedCluster():  # Trio's run alone is not enough
            with pytest.raises(IllegalStateError, match=r"use trikafka\.aio\.testing"):
                async with trikafka.testing.ScriptedCluster():
                    pass

    with nothing_left():
        run(main)

    async def trios() -> None:
        with pytest.raises(IllegalStateError, match=r"use trikafka\.testing\.ScriptedCluster"):
            async with ScriptedCluster():
                pass

    trio.run(trios)
