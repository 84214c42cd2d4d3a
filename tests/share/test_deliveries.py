"""Deliveries and their blocks: what is accepted, released, rejected, and how often it comes."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import trio
from sharing import cluster_of, queue_of, shared, states, take_complete_ways, until
from trio.testing import MockClock as Clock

from trikafka.errors import (
    AcknowledgementError,
    CorruptRecordError,
    DeserializationError,
    IllegalStateError,
)


async def test_a_clean_block_accepts(autojump_clock: Clock) -> None:
    async with cluster_of(records=3) as cluster, queue_of(cluster) as queue:
        for value in (b"0", b"1", b"2"):
            delivery = await queue.receive()
            async with delivery as same:
                assert same is delivery
                assert delivery.record.value == value
                assert delivery.delivery_count == 1
        await queue.flush()
        assert states(cluster) == ["acknowledged"] * 3
        assert queue.statistics().accepted == 3


async def test_an_exception_releases(autojump_clock: Clock) -> None:
    async with cluster_of(records=1) as cluster, queue_of(cluster) as queue:
        delivery = await queue.receive()
        with pytest.raises(KeyError, match="bad"):
            async with delivery:
                raise KeyError("bad")
        again = await queue.receive()
        assert (again.record.offset, again.delivery_count) == (0, 2)
        again.accept()
        await again.acknowledged()
        assert queue.statistics().released == 1


async def test_a_cancellation_releases(autojump_clock: Clock) -> None:
    async with cluster_of(records=1) as cluster, queue_of(cluster) as queue:
        delivery = await queue.receive()
        with trio.CancelScope() as scope:
            async with delivery:
                scope.cancel()
                await trio.sleep_forever()
        assert scope.cancelled_caught
        assert (await queue.receive()).delivery_count == 2


async def test_cancelled_before_its_block_it_is_released(autojump_clock: Clock) -> None:
    async with cluster_of(records=1) as cluster, queue_of(cluster) as queue:
        delivery = await queue.receive()
        with trio.CancelScope() as scope:
            scope.cancel()
            async with delivery:
                raise AssertionError("the block was entered")
        assert (await queue.receive()).delivery_count == 2


@pytest.mark.parametrize("raises", [False, True])
async def test_the_last_word_in_a_block_counts(autojump_clock: Clock, raises: bool) -> None:
    async with cluster_of(records=1) as cluster, queue_of(cluster) as queue:
        delivery = await queue.receive()
        try:
            async with delivery:
                delivery.accept()
                delivery.release()
                delivery.reject("no use")
                if raises:
                    raise KeyError
        except KeyError:
            assert raises
        await delivery.acknowledged()
        assert states(cluster) == ["archived"]


async def test_without_a_block_a_word_is_final(autojump_clock: Clock) -> None:
    async with cluster_of(records=1) as cluster, queue_of(cluster) as queue:
        delivery = await queue.receive()
        with pytest.raises(IllegalStateError, match="nothing is acknowledged yet"):
            await delivery.acknowledged()
        delivery.accept()
        for call in (delivery.accept, delivery.release, delivery.reject):
            with pytest.raises(IllegalStateError, match="acknowledged before"):
                call()
        with pytest.raises(IllegalStateError, match="acknowledged before"):
            async with delivery:
                pass
        await delivery.acknowledged()
        assert states(cluster) == ["acknowledged"]


async def test_a_block_is_entered_once(autojump_clock: Clock) -> None:
    async with cluster_of(records=1) as cluster, queue_of(cluster) as queue:
        delivery = await queue.receive()
        async with delivery:
            with pytest.raises(IllegalStateError, match="entered only once"):
                async with delivery:
                    pass
            with pytest.raises(IllegalStateError, match="leave the block"):
                await delivery.acknowledged()


@pytest.mark.parametrize("quick", [True, False])
async def test_a_block_is_left_once(autojump_clock: Clock, quick: bool) -> None:
    async with cluster_of(records=3) as cluster, queue_of(cluster) as queue:
        if not quick:
            take_complete_ways(queue)
        for error in (None, LookupError()):
            delivery = await queue.receive()
            with pytest.raises(IllegalStateError, match="left once"):
                await delivery.__aexit__(None, None, None)
            with suppress(LookupError):
                async with delivery:
                    if error is not None:
                        raise error
            for _ in range(2):
                with pytest.raises(IllegalStateError, match="left once"):
                    await delivery.__aexit__(None, None, None)
        assert queue.health().ok


async def test_the_limit_of_deliveries_archives(autojump_clock: Clock) -> None:
    async with cluster_of(records=1) as cluster, queue_of(cluster) as queue:
        for count in range(1, 6):
            delivery = await queue.receive()
            assert delivery.delivery_count == count
            delivery.release()
        await queue.flush()
        with trio.move_on_after(10):
            raise AssertionError(f"delivered {await queue.receive()}")
        assert states(cluster) == ["archived"]


async def test_many_tasks_share_a_queue(autojump_clock: Clock) -> None:
    seen: list[Any] = []
    async with cluster_of(2, records=50) as cluster, queue_of(cluster) as queue:

        async def work() -> None:
            async for delivery in queue:
                async with delivery:
                    await trio.sleep(0.01)
                    seen.append((delivery.record.partition, delivery.record.offset))

        async with trio.open_nursery() as nursery:
            for _ in range(10):
                nursery.start_soon(work)
            await until(lambda: len(seen) == 100)
            nursery.cancel_scope.cancel()
        assert len(set(seen)) == 100
        await queue.flush()
        assert states(cluster, 0) == states(cluster, 1) == ["acknowledged"] * 50


async def test_two_members_share_a_partition(autojump_clock: Clock) -> None:
    async with (
        cluster_of(records=10) as cluster,
        queue_of(cluster, acquire="records", max_in_flight=1) as one,
        queue_of(cluster, acquire="records", max_in_flight=1) as other,
    ):
        await until(lambda: bool(one.assignment and other.assignment))
        for turn in range(10):
            queue = (one, other)[turn % 2]
            async with await queue.receive():
                pass
        await one.flush()
        await other.flush()
        assert states(cluster) == ["acknowledged"] * 10
        assert one.statistics().accepted == other.statistics().accepted == 5


async def test_record_mode_holds_no_more_than_asked(autojump_clock: Clock) -> None:
    async with cluster_of(2, records=20, nodes=2) as cluster:
        async with queue_of(cluster, acquire="records", max_in_flight=3) as queue:
            for _ in range(40):
                delivery = await queue.receive()
                held = queue.statistics()
                assert held.buffered + held.delivered <= 3
                async with delivery:
                    await trio.sleep(0.1)
            await queue.flush()
        assert states(cluster, 0) == states(cluster, 1) == ["acknowledged"] * 20


async def test_nothing_is_fetched_beyond_the_limit(autojump_clock: Clock) -> None:
    async with cluster_of(records=5) as cluster, queue_of(cluster, max_in_flight=5) as queue:
        held = [await queue.receive() for _ in range(5)]
        cluster.append("t", 0, [b"5"])
        await trio.sleep(5)
        assert queue.statistics().acquired == 5
        held[0].accept()
        assert (await queue.receive()).record.value == b"5"


async def test_an_ack_goes_alone_after_its_linger(autojump_clock: Clock) -> None:
    async with cluster_of(records=10) as cluster:
        async with queue_of(cluster, max_in_flight=10, ack_linger_ms=40) as queue:
            one, two = await queue.receive(), await queue.receive()
            await trio.sleep(1)
            # Eight records wait to be delivered, so no fetch that could carry it is under way.
            began = trio.current_time()
            one.accept()
            await trio.sleep(0.03)
            two.release()
            seen = await cluster.seen("ShareAcknowledge")
            assert seen.time == pytest.approx(began + 0.04)
            batch = seen.request.topics[0].partitions[0].acknowledgement_batches[0]
            assert (batch.first_offset, batch.last_offset) == (0, 1)
            assert batch.acknowledge_types == [1, 2]


async def test_an_ack_travels_with_the_next_fetch(autojump_clock: Clock) -> None:
    async with cluster_of(records=10) as cluster, queue_of(cluster, max_in_flight=10) as queue:
        held = [await queue.receive() for _ in range(10)]
        await trio.sleep(1)
        began = trio.current_time()
        held[0].accept()  # nothing waits to be delivered: room for one record is worth a fetch
        seen = await cluster.seen("ShareFetch", where=_acknowledges)
        assert seen.time == began
        assert seen.request.max_records == 1
        assert not cluster.requests("ShareAcknowledge")


def _acknowledges(request: Any) -> bool:
    return any(part.acknowledgement_batches for item in request.topics for part in item.partitions)


async def test_acknowledged_raises_the_brokers_error(autojump_clock: Clock) -> None:
    async with cluster_of(records=1) as cluster, queue_of(cluster) as queue:
        delivery = await queue.receive()
        cluster.fail("ShareAcknowledge", 121, topic="t")
        delivery.accept()
        with pytest.raises(AcknowledgementError, match=r"t-0, offset 0, failed.*INVALID"):
            await delivery.acknowledged()
        assert queue.statistics().failed == 1
        with pytest.raises(AcknowledgementError):
            await delivery.acknowledged()


class Column:
    """A column of a library whose columns are no ``Sequence``, such as a Series of polars."""

    def __init__(self, values: list[bool]) -> None:
        self._values = values

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, index: int) -> bool:
        return self._values[index]


@pytest.mark.parametrize(
    "kind",
    [
        np.array,
        pa.array,
        lambda mask: pa.chunked_array([mask]),
        tuple,
        Column,
        lambda mask: list(np.array(mask)),
        lambda mask: list(pa.array(mask)),
    ],
)
async def test_a_mask_may_be_any_array(autojump_clock: Clock, kind: Any) -> None:
    """A column of an Arrow table is a chunked array."""
    async with cluster_of(records=2) as cluster, queue_of(cluster) as queue:
        batch = await queue.receive_batch()
        batch.acknowledge(kind([True, False]))
        await batch.acknowledged()
        assert (states(cluster)[0], states(cluster)[1] == "acknowledged") == ("acknowledged", False)


async def test_flush_raises_a_failure(autojump_clock: Clock) -> None:
    async with cluster_of(records=3) as cluster, queue_of(cluster) as queue:
        for _ in range(3):
            (await queue.receive()).accept()
        cluster.fail("ShareAcknowledge", 121, topic="t")
        with pytest.raises(AcknowledgementError, match="offsets 0 to 2") as caught:
            await queue.flush()
        assert (caught.value.first_offset, caught.value.last_offset) == (0, 2)
        await queue.flush()


async def test_values_are_deserialized(autojump_clock: Clock) -> None:
    async with cluster_of() as cluster:
        cluster.append("t", 0, [b"1", b"x", b"3"])
        async with queue_of(cluster, value_deserializer=int) as queue:
            assert (await queue.receive()).record.value == 1
            with pytest.raises(DeserializationError, match="offset 1"):
                await queue.receive()
            assert (await queue.receive()).record.value == 3
            await queue.flush()
            assert shared(cluster)[1].count >= 1


async def test_corrupt_records_are_rejected_once_told(autojump_clock: Clock) -> None:
    async with cluster_of(records=2) as cluster:
        damaged = bytearray(cluster.partition("t", 0).batches[0].data)
        damaged[-1] ^= 1
        cluster.append_batch("t", 0, bytes(damaged))
        cluster.append("t", 0, [b"4"])
        async with queue_of(cluster) as queue:
            values = []
            errors = []
            while len(values) < 3:
                try:
                    values.append((await queue.receive()).record.value)
                except CorruptRecordError as error:
                    errors.append(error)
            if not errors:
                with pytest.raises(CorruptRecordError, match="t-0 at offset 2"):
                    await queue.receive()
            assert values == [b"0", b"1", b"4"]
            await queue.flush()
            assert states(cluster)[2:4] == ["archived", "archived"]


async def test_offsets_without_records_are_gaps(autojump_clock: Clock) -> None:
    async with cluster_of() as cluster:
        from trikafka.testing import control_batch

        cluster.append("t", 0, [b"0"])
        cluster.append_batch("t", 0, control_batch(7, 0, commit=True, timestamp=1))
        cluster.append("t", 0, [b"2"])
        async with queue_of(cluster) as queue:
            assert [(await queue.receive()).record.offset for _ in range(2)] == [0, 2]
            await queue.flush()
            assert states(cluster) == ["acquired", "archived", "acquired"]
            types = [
                list(batch.acknowledge_types)
                for seen in cluster.log
                if seen.api_name in ("ShareFetch", "ShareAcknowledge")
                for item in seen.request.topics
                for part in item.partitions
                for batch in part.acknowledgement_batches
            ]
            assert types == [[0]]


async def test_anext_with_a_default_waits(autojump_clock: Clock) -> None:
    async with (
        cluster_of(1) as cluster,
        queue_of(cluster) as queue,
        trio.open_nursery() as nursery,
    ):

        async def write() -> None:
            await trio.sleep(5)
            cluster.append("t", 0, [b"late"])

        nursery.start_soon(write)
        delivery = await anext(aiter(queue), None)
        assert delivery is not None
        assert delivery.record.value == b"late"
        delivery.accept()
