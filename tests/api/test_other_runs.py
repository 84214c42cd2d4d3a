"""Clients that are used in another Trio run than the one that opened them."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pyarrow
import pytest
import trio

import trikafka
from trikafka import IllegalStateError, TopicPartition
from trikafka.testing import ScriptedCluster

T0 = TopicPartition("t", 0)
OPENINGS: dict[str, Callable[..., Any]] = {
    "consumer": lambda given: trikafka.open_consumer("t", group_id="g", **given),
    "producer": lambda given: trikafka.open_producer(**given),
    "admin": lambda given: trikafka.open_admin(**given),
    "share consumer": lambda given: trikafka.open_share_consumer("t", group_id="s", **given),
}
CALLS: list[tuple[str, Callable[[Any], Awaitable[object]]]] = [
    ("consumer", lambda client: client.receive()),
    ("consumer", lambda client: client.receive_batch()),
    ("consumer", lambda client: client.commit({T0: 1})),
    ("consumer", lambda client: client.end_offsets([T0])),
    ("consumer", lambda client: client.position(T0)),
    ("consumer", lambda client: client.unsubscribe()),
    ("consumer", lambda client: client.aclose()),
    ("consumer", lambda client: anext(client)),
    ("consumer", lambda client: anext(client.batches())),
    ("consumer", lambda client: anext(client.partitions())),
    ("producer", lambda client: client.send("t", b"x")),
    ("producer", lambda client: client.enqueue("t", b"x")),
    ("producer", lambda client: client.flush()),
    ("producer", lambda client: client.partitions_for("t")),
    ("producer", lambda client: client.aclose()),
    ("admin", lambda client: client.list_topics()),
    ("admin", lambda client: client.aclose()),
    ("share consumer", lambda client: client.receive()),
    ("share consumer", lambda client: client.receive_batch()),
    ("share consumer", lambda client: client.wait_receivable()),
    ("share consumer", lambda client: client.flush()),
]


def run_in_thread(work: Callable[[], Awaitable[None]]) -> None:
    """Do the work in a Trio run of another thread."""
    failures: list[BaseException] = []

    def run() -> None:
        try:
            trio.run(work)
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(240)
    assert not thread.is_alive()
    assert failures == []


@pytest.mark.parametrize(
    ("kind", "call"), CALLS, ids=[f"{kind}-{number}" for number, (kind, _) in enumerate(CALLS)]
)
async def test_another_threads_run_is_refused(
    kind: str, call: Callable[[Any], Awaitable[object]]
) -> None:
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        given = {"bootstrap_servers": cluster.bootstrap_servers, "dial": cluster.dial}
        async with OPENINGS[kind](given) as client:

            async def elsewhere() -> None:
                with pytest.raises(
                    IllegalStateError, match=r"another trio\.run\(\).*open a client"
                ):
                    await call(client)

            run_in_thread(elsewhere)


NOW: list[Callable[[Any], object]] = [
    lambda client: client.seek(T0, 0),
    lambda client: client.seek_to_end(),
    lambda client: client.pause([T0]),
    lambda client: client.resume([T0]),
]


@pytest.mark.parametrize("call", NOW)
async def test_a_seek_stays_in_its_run(call: Callable[[Any], object]) -> None:
    """It would wake tasks of the consumer's run in the other one."""
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        given = {"bootstrap_servers": cluster.bootstrap_servers, "dial": cluster.dial}
        async with trikafka.open_consumer(**given) as consumer:
            consumer.assign([T0])

            async def elsewhere() -> None:
                with pytest.raises(IllegalStateError, match=r"another trio\.run\(\)"):
                    call(consumer)

            run_in_thread(elsewhere)
            call(consumer)


async def test_a_thread_is_refused() -> None:
    """Programs of confluent-kafka and kafka-python call their producers from threads."""
    async with ScriptedCluster(topics={"t": 1, "u": 1}) as cluster:
        cluster.append("t", 0, [b"0", b"1"])
        given = {"bootstrap_servers": cluster.bootstrap_servers, "dial": cluster.dial}
        async with (
            trikafka.open_producer(**given) as producer,
            trikafka.open_consumer(
                "t",
                group_id="g",
                auto_offset_reset="earliest",
                enable_auto_offset_store=False,
                **given,
            ) as consumer,
            trikafka.open_share_consumer("t", group_id="s", **given) as queue,
        ):
            record = await consumer.receive()
            await producer.send("t", b"x")
            calls: list[Callable[[], object]] = [
                *(partial(call, consumer) for call in NOW),
                lambda: consumer.mark_processed(record),
                consumer.receive_nowait,
                consumer.receive_batch_nowait,
                consumer.health,
                consumer.statistics,
                producer.health,
                producer.statistics,
                queue.health,
                queue.statistics,
                lambda: consumer.subscribe(["u"]),
                lambda: consumer.enforce_rebalance(),
                lambda: producer.send_nowait("t", b"x"),
                lambda: producer.send_nowait("u", b"x"),
            ]

            def work() -> None:
                for call in calls:
                    with pytest.raises(
                        IllegalStateError, match=r"another one: .* trio\.from_thread\.run_sync"
                    ):
                        call()

            await trio.to_thread.run_sync(work)
            assert producer.statistics().buffer_used == 0
            assert consumer.mark_processed(record)
            assert await consumer.position(T0) == 1


async def test_a_thread_ends_no_stream() -> None:
    """A receive of the consumer itself ends streams that no other task reads."""
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        cluster.append("t", 0, [b"0", b"1"])
        given = {"bootstrap_servers": cluster.bootstrap_servers, "dial": cluster.dial}
        async with trikafka.open_consumer(
            "t", group_id="g", auto_offset_reset="earliest", **given
        ) as consumer:
            stream = await anext(consumer.partitions())
            assert (await stream.receive()).offset == 0

            def work() -> None:
                for receive in (consumer.receive_nowait, consumer.receive_batch_nowait):
                    with pytest.raises(IllegalStateError, match=r"trio\.from_thread\.run_sync"):
                        receive()

            await trio.to_thread.run_sync(work)
            assert (await stream.receive()).offset == 1


@pytest.mark.parametrize("streamed", [False, True])
async def test_buffered_records_stay_in_their_run(streamed: bool) -> None:
    """Once, the clock of the other run made the member lose its session."""
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        cluster.append("t", 0, [b"0", b"1", b"2"])
        given = {"bootstrap_servers": cluster.bootstrap_servers, "dial": cluster.dial}
        async with trikafka.open_consumer(
            "t", group_id="g", auto_offset_reset="earliest", **given
        ) as consumer:
            reader: Any = await anext(consumer.partitions()) if streamed else consumer
            assert (await reader.receive()).offset == 0
            await trio.sleep(0.01)  # the next record has to look around

            async def elsewhere() -> None:
                with pytest.raises(IllegalStateError, match=r"another trio\.run\(\)"):
                    await reader.receive()
                for receive in (reader.receive_nowait, reader.receive_batch_nowait):
                    with pytest.raises(IllegalStateError, match=r"another trio\.run\(\)"):
                        receive()

            run_in_thread(elsewhere)
            assert (await reader.receive()).offset == 1
            assert consumer.statistics().state == "stable"


async def test_an_ack_stays_in_its_run() -> None:
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        given = {"bootstrap_servers": cluster.bootstrap_servers, "dial": cluster.dial}
        async with trikafka.open_producer(linger_ms=60_000, **given) as producer:
            ack = await producer.enqueue("t", b"x")
            rows = await producer.enqueue_arrow("t", pyarrow.table({"value": [b"y"]}))

            async def elsewhere() -> None:
                for each in (ack, rows):
                    with pytest.raises(IllegalStateError, match=r"another trio\.run\(\)"):
                        await each.wait()

            run_in_thread(elsewhere)
            await producer.flush()
            assert (await ack.wait()).offset == 0
            assert (await rows.wait()).rows == 1
            assert isinstance(ack, trikafka.Ack)


async def test_a_transaction_stays_in_its_run() -> None:
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        given = {"bootstrap_servers": cluster.bootstrap_servers, "dial": cluster.dial}
        async with (
            trikafka.open_producer(transactional_id="x", **given) as producer,
            producer.transaction() as txn,
        ):
            await producer.send("t", b"x")

            async def elsewhere() -> None:
                for end in (txn.commit, txn.abort, txn.detach):
                    with pytest.raises(IllegalStateError, match=r"another trio\.run\(\)"):
                        await end()

            run_in_thread(elsewhere)
        assert len(cluster.records("t", 0)) == 1


@asynccontextmanager
async def held_records(batch: bool) -> AsyncIterator[Any]:
    """Open a share consumer; yield a batch that it has received, or a delivery."""
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        cluster.shares.times.auto_offset_reset = "earliest"
        cluster.append("t", 0, [b"a", b"b"])
        given = {"bootstrap_servers": cluster.bootstrap_servers, "dial": cluster.dial}
        async with OPENINGS["share consumer"](given) as queue:
            held = await (queue.receive_batch() if batch else queue.receive())
            yield held


@pytest.mark.parametrize("batch", [False, True])
async def test_a_delivery_stays_in_its_run(batch: bool) -> None:
    async with held_records(batch) as held:

        async def elsewhere() -> None:
            with pytest.raises(IllegalStateError, match=r"another trio\.run\(\)"):
                async with held:
                    pass
            with pytest.raises(IllegalStateError, match=r"another trio\.run\(\)"):
                await held.acknowledged()

        run_in_thread(elsewhere)
        async with held:
            pass
        await held.acknowledged()


@pytest.mark.parametrize("batch", [False, True])
async def test_a_thread_decides_no_record(batch: bool) -> None:
    """Once, such a verdict reached no broker, and a flush waited for it for ever."""
    async with held_records(batch) as held:

        def work() -> None:
            for call in (held.accept, lambda: held.__aenter__().send(None)):
                with pytest.raises(IllegalStateError, match=r"trio\.from_thread\.run_sync"):
                    call()

        await trio.to_thread.run_sync(work)
        await trio.to_thread.run_sync(trio.from_thread.run_sync, held.accept)
        with trio.fail_after(240):
            await held.acknowledged()


@pytest.mark.parametrize("kind", OPENINGS)
def test_a_later_run_is_refused(kind: str) -> None:
    """The first run has ended without the end of the client's block."""
    kept: list[Any] = []
    call = next(call for of, call in CALLS if of == kind)

    async def first() -> None:
        async with ScriptedCluster(topics={"t": 1}) as cluster:
            given = {"bootstrap_servers": cluster.bootstrap_servers, "dial": cluster.dial}
            async with OPENINGS[kind](given) as client:
                kept.append(client)

    async def second() -> None:
        with pytest.raises(trio.ClosedResourceError, match="closed"):
            await call(kept[0])

    trio.run(first)
    trio.run(second)
