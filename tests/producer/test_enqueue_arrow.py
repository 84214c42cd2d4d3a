"""Tables that are enqueued: the next one is encoded while the last is in flight, and each has an
ack. In virtual time.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pyarrow as pa
import pytest
import trio
from producing import opened, ready, values
from trio.testing import MockClock as Clock

from trikafka import ArrowAck, ArrowDelivery, ArrowDeliveryError, PartitionDelivery, TopicPartition
from trikafka._api.producer.producer import Producer
from trikafka.error_codes import ErrorCode
from trikafka.errors import ConfigurationError, DeliveryTimeoutError, TransactionAbortableError
from trikafka.testing import ScriptedCluster, assert_all_awaits_cancellable

Given = tuple[ScriptedCluster, Producer]
PLACE = TopicPartition("t", 0)


def table(contents: Sequence[bytes]) -> pa.Table:
    return pa.table({"value": pa.array(contents, pa.binary())})


def big(start: int, count: int, size: int = 300) -> pa.Table:
    return table([b"%05d" % number + b"x" * (size - 5) for number in range(start, start + count)])


def heads(cluster: ScriptedCluster) -> list[int]:
    return [int(value[:5]) for value in values(cluster) if value]


async def test_ack_waits_for_the_delivery(
    autojump_clock: Clock,
) -> None:
    """``enqueue_arrow`` itself returns when all rows are accepted."""
    async with ready(linger_ms=60_000) as (cluster, producer):
        start = trio.current_time()
        ack = await producer.enqueue_arrow("t", table([b"a", b"b"]))
        assert (trio.current_time(), values(cluster), ack.done) == (start, [], False)
        assert repr(ack) == "<trikafka.ArrowAck 2 rows waiting>"
        delivery = await ack.wait()
        assert trio.current_time() == start, "who waits does not wait for linger_ms"
        assert delivery == ArrowDelivery(2, {PLACE: PartitionDelivery(2, 1, 2)})
        assert (values(cluster), ack.done, repr(ack)) == (
            [b"a", b"b"],
            True,
            "<trikafka.ArrowAck 2 rows done>",
        )
        assert await ack.wait() == delivery, "any number of times"


async def test_unobserved_table_lingers_and_arrives(autojump_clock: Clock) -> None:
    async with ready(linger_ms=1_000) as (cluster, producer):
        ack = await producer.enqueue_arrow("t", table([b"a"]))
        start = trio.current_time()
        with trio.fail_after(10):
            while not ack.done:  # noqa: ASYNC110 (no task waits)
                await trio.sleep(0.01)
        assert trio.current_time() - start == pytest.approx(1.0, abs=0.02), "it lingers"
        assert values(cluster) == [b"a"]
        await producer.enqueue_arrow("t", table([b"b"]))
    assert values(cluster) == [b"a", b"b"], "a close delivers what was accepted"


async def test_tables_are_accepted_ahead_of_delivery(
    autojump_clock: Clock,
) -> None:
    async with ready() as (cluster, producer):
        cluster.freeze(0)
        acks = [
            await producer.enqueue_arrow("t", big(number * 2_000, 2_000)) for number in range(3)
        ]
        assert [ack.done for ack in acks] == [False] * 3
        cluster.thaw(0)
        async with trio.open_nursery() as nursery:  # several wait for each
            for ack in acks * 2:
                nursery.start_soon(ack.wait)
        assert [(await ack.wait()).rows for ack in acks] == [2_000] * 3
        assert heads(cluster) == list(range(6_000)), "in order"
        assert producer.statistics().buffer_used == 0


class Memory(bytearray):
    """Memory of a table, whose release can be observed."""


async def test_ack_does_not_keep_its_table(autojump_clock: Clock) -> None:
    async with ready() as (cluster, producer):
        cluster.freeze(0)
        memory = Memory(b"abc")
        freed = weakref.ref(memory)
        offsets = pa.array([0, 1, 2, 3], pa.int32()).buffers()[1]
        rows = pa.Array.from_buffers(pa.binary(), 3, [None, offsets, pa.py_buffer(memory)])
        ack = await producer.enqueue_arrow("t", pa.table({"value": rows}))
        del memory, rows
        gc.collect()
        assert not ack.done
        assert freed() is None, "the rows are copied when they are accepted"
        cluster.thaw(0)
        assert (await ack.wait()).rows == 3
        assert values(cluster) == [b"a", b"b", b"c"]


async def test_empty_table_is_done_at_once(autojump_clock: Clock) -> None:
    async with ready() as (_, producer):
        ack = await producer.enqueue_arrow("t", table([]))
        assert ack.done
        assert await ack.wait() == ArrowDelivery(0, {})


async def test_wrong_table_is_refused_by_enqueue(autojump_clock: Clock) -> None:
    async with ready() as (_, producer):
        with pytest.raises(ConfigurationError, match="no column"):
            await producer.enqueue_arrow("t", table([b"a"]), value="nothing")
        assert producer.statistics().buffer_used == 0
        await producer.aclose()
        with pytest.raises(trio.ClosedResourceError):
            await producer.enqueue_arrow("t", table([b"a"]))


@pytest.mark.parametrize("waits", [True, False])
async def test_failed_table_is_raised_or_logged(
    waits: bool, autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    async with ready(delivery_timeout_ms=5_000, request_timeout_ms=1_000) as (cluster, producer):
        cluster.freeze(0)
        ack = await producer.enqueue_arrow("t", table([b"a", b"b"]))
        if waits:
            with pytest.raises(ArrowDeliveryError) as caught:
                await ack.wait()
            assert isinstance(caught.value.__cause__, DeliveryTimeoutError)
            assert (caught.value.delivered, caught.value.unknown) == (0, 2)
        else:
            with trio.fail_after(60):
                while not (ack.done and "not delivered" in caplog.text):  # noqa: ASYNC110 (no task waits)
                    await trio.sleep(0.5)
        assert ("not delivered" in caplog.text) is not waits
        cluster.thaw(0)


async def test_failed_split_table_is_only_raised(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    async with ready(delivery_timeout_ms=5_000, request_timeout_ms=1_000) as (cluster, producer):
        cluster.fail("Produce", ErrorCode.MESSAGE_TOO_LARGE, 1)
        rule = cluster.drop("Produce", times=None)
        ack = await producer.enqueue_arrow("t", big(0, 6))
        with trio.fail_after(4):
            while not producer.statistics().batches_split:  # noqa: ASYNC110 (no task waits yet)
                await trio.sleep(0.01)
        with pytest.raises(ArrowDeliveryError):
            await ack.wait()
        await trio.sleep(2)
        assert "not delivered" not in caplog.text
        rule.remove()


async def test_partial_table_is_never_committed(autojump_clock: Clock) -> None:
    async with (
        ScriptedCluster(topics={"t": 1}) as cluster,
        opened(cluster, transactional_id="tables", buffer_memory=3_000) as producer,
    ):
        async with producer.transaction():
            await producer.send("t", b"00000")
        cluster.delay("Produce", 5)

        async def cut_off() -> None:
            async with producer.transaction():
                with trio.move_on_after(1):
                    await producer.enqueue_arrow("t", big(0, 60))

        with pytest.raises(TransactionAbortableError, match="enqueue_arrow was cancelled"):
            await cut_off()


async def test_table_is_committed_with_its_transaction(autojump_clock: Clock) -> None:
    async with (
        ScriptedCluster(topics={"t": 1}) as cluster,
        opened(cluster, transactional_id="tables") as producer,
    ):
        async with producer.transaction():
            ack = await producer.enqueue_arrow("t", big(0, 60))
        assert ack.done, "the end of a transaction delivers all"
        assert heads(cluster) == list(range(60))


async def test_cancelled_enqueue_keeps_the_order(
    autojump_clock: Clock,
) -> None:
    @asynccontextmanager
    async def setup() -> AsyncIterator[Given]:
        async with (
            ScriptedCluster(topics={"t": 1}) as cluster,
            opened(cluster, buffer_memory=3_000) as producer,
        ):
            yield cluster, producer

    async def scenario(given: Given) -> None:
        before: ArrowAck | None = None
        for start in (0, 30):
            ack = await given[1].enqueue_arrow("t", big(start, 30))
            if before is not None:
                await before.wait()
            before = ack
        assert before is not None
        await before.wait()

    async def check(given: Given) -> None:
        cluster, producer = given
        await producer.flush()
        found = heads(cluster)
        assert found == list(range(len(found)))
        statistics = producer.statistics()
        assert (statistics.buffer_used, statistics.tasks_waiting, statistics.batches_waiting) == (
            0,
            0,
            0,
        )

    assert await assert_all_awaits_cancellable(scenario, check, setup=setup) > 8
