"""Async deserializers of share consumers: awaited before a record is delivered, by each receive."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from sharing import cluster_of, queue_of, shared, states, until
from trio.testing import MockClock as Clock

from trikafka._api.share.core import ShareCore
from trikafka._state.share.buffer import Resolved
from trikafka.errors import DeserializationError


class Registry:
    """Async deserializers that take some time, and note what they were asked."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.asked: list[bytes] = []
        self.failing: set[bytes] = set()

    async def deserialize(self, topic: str, headers: Any, data: bytes) -> int:
        assert topic == "t"
        self.asked.append(data)
        await trio.sleep(self.seconds)
        if data in self.failing:
            self.failing.discard(data)
            raise KeyError(data)
        return int(data)


async def test_async_deserializers_are_awaited(autojump_clock: Clock) -> None:
    registry = Registry(1)
    registry.failing = {b"1"}
    async with cluster_of(records=3) as cluster:
        async with queue_of(cluster, value_deserializer=registry) as queue:
            with pytest.raises(trio.WouldBlock):
                queue.receive_nowait()
            async with await queue.receive() as first:
                assert first.record.value == 0
            with pytest.raises(DeserializationError):
                await queue.receive()
            assert await queue.wait_receivable()
            third = queue.receive_nowait()
            assert (third.record.value, third.delivery_count) == (2, 1)
            third.accept()
            batch = await queue.receive_batch()
            assert [record.value for record in batch] == [1]
            assert list(batch.delivery_counts) == [2]
            assert batch.to_arrow().column("value").to_pylist() == [b"1"]
            batch.accept()
            await queue.flush()
            assert states(cluster) == ["acknowledged"] * 3


async def test_a_cut_receive_keeps_the_count(autojump_clock: Clock) -> None:
    """Its record stays in the buffer, and what its deserializer returned is not asked again."""
    registry = Registry(1)
    async with cluster_of(records=2) as cluster:
        async with queue_of(cluster, value_deserializer=registry) as queue:
            for _ in range(8):
                with trio.move_on_after(0.5):
                    await queue.receive()
            assert set(registry.asked) == {b"0"}
            with trio.move_on_after(1.2):
                await queue.wait_receivable()
            asked = len(registry.asked)
            delivery = await queue.receive()
            assert (delivery.record.value, delivery.delivery_count) == (0, 1)
            assert len(registry.asked) == asked
            assert (await queue.receive()).record.value == 1


async def test_deserializers_run_at_once_in_tasks(autojump_clock: Clock) -> None:
    registry = Registry(1)
    async with cluster_of(3, records=1) as cluster:
        async with queue_of(cluster, value_deserializer=registry) as queue:
            got: list[int] = []

            async def receive() -> None:
                got.append((await queue.receive()).record.value)

            began = trio.current_time()
            async with trio.open_nursery() as nursery:
                for _ in range(3):
                    nursery.start_soon(receive)
            assert got == [0, 0, 0]
            assert trio.current_time() < began + 2


async def test_a_deserializer_has_the_time_of_a_block(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """Meanwhile the program counts as present, and the lock is renewed."""
    registry = Registry(1_000)
    async with cluster_of(records=1) as cluster:
        cluster.shares.times.lock = 3
        limits = {"max_processing_ms": 7_000, "max_poll_interval_ms": 2_000}
        async with queue_of(cluster, value_deserializer=registry, **limits) as queue:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(queue.receive)
                await trio.sleep(6)
                assert queue.statistics().state == "stable"
                assert shared(cluster)[0].count == 1
                await trio.sleep(7)
                assert "cancelled after max_processing_ms" in caplog.text
                registry.seconds = 0
                nursery.cancel_scope.cancel()
            delivery = await queue.receive()
            assert delivery.record.value == 0
            assert delivery.delivery_count == 2


async def test_a_lock_lost_while_deserializing(autojump_clock: Clock) -> None:
    registry = Registry(5)
    async with cluster_of(records=1) as cluster:
        async with queue_of(cluster, value_deserializer=registry) as queue:
            async with trio.open_nursery() as nursery:

                @nursery.start_soon
                async def cut() -> None:
                    await until(lambda: bool(registry.asked))
                    cluster.disconnect(0)

                delivery = await queue.receive()
            assert delivery.delivery_count == 2
            async with delivery:
                pass
            await queue.flush()
            assert states(cluster) == ["acknowledged"]


async def test_a_slow_record_costs_no_other(autojump_clock: Clock) -> None:
    """The other records of its acquisition keep their first delivery."""

    async def decode(data: bytes) -> int:
        if data == b"0":
            await trio.sleep_forever()
        return int(data)

    async with cluster_of(records=5) as cluster:
        async with queue_of(cluster, value_deserializer=decode, max_processing_ms=70_000) as queue:
            with trio.fail_after(100):
                for value in range(1, 5):
                    delivery = await queue.receive()
                    assert (delivery.record.value, delivery.delivery_count) == (value, 1)
                    delivery.accept()
            await queue.flush()
            assert states(cluster)[1:] == ["acknowledged"] * 4


async def test_a_deserializer_that_stays_is_named(autojump_clock: Clock) -> None:
    """One that ignores its cancellation is not the program's presence for ever."""

    over = trio.Event()

    async def stay(data: bytes) -> int:
        with trio.CancelScope(shield=True, deadline=trio.current_time() + 100):
            await over.wait()
        return int(data)

    async with (
        cluster_of(records=1) as cluster,
        queue_of(
            cluster,
            value_deserializer=stay,
            max_processing_ms=6_000,
            max_poll_interval_ms=12_000,
        ) as queue,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(queue.receive)
        await trio.sleep(5)
        assert queue.health().ok
        await trio.sleep(45)
        assert queue.statistics().state == "stale"
        assert any("async deserializers" in reason for reason in queue.health().reasons)
        nursery.cancel_scope.cancel()
        over.set()


async def test_an_interrupted_deserializer_releases(autojump_clock: Clock) -> None:
    """The program goes on after the interrupt, and gets the record again."""
    calls = 0

    def interrupted_once(data: bytes) -> bytes:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise KeyboardInterrupt
        return data

    async with (
        cluster_of(records=1) as cluster,
        queue_of(cluster, value_deserializer=interrupted_once) as queue,
    ):
        with pytest.raises(KeyboardInterrupt):
            await queue.receive()
        with trio.fail_after(5):
            assert (await queue.receive()).delivery_count == 2


@pytest.mark.parametrize("taken", [False, True])
async def test_an_interrupt_releases_the_record(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch, taken: bool
) -> None:
    """The records behind it, whose deserializers have returned, stay at hand."""
    take = Resolved.take

    def interrupted(resolved: Resolved, count: int) -> Any:
        monkeypatch.undo()
        if taken:
            take(resolved, count)
        raise KeyboardInterrupt

    async with cluster_of(records=3) as cluster:
        async with queue_of(cluster, value_deserializer=Registry(0)) as queue:
            await queue.wait_receivable()
            monkeypatch.setattr(Resolved, "take", interrupted)
            with pytest.raises(KeyboardInterrupt):
                await queue.receive()
            got = [await queue.receive() for _ in range(3)]
            assert [each.record.offset for each in got] == [1, 2, 0]
            assert [each.delivery_count for each in got] == [1, 1, 2]


async def test_an_interrupted_start_gives_back(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C comes when the records are taken, and no deserializer has been called."""

    def interrupted(core: ShareCore) -> Any:
        monkeypatch.undo()
        raise KeyboardInterrupt

    async with cluster_of(records=3) as cluster:
        limits = {"max_processing_ms": 2_000}
        async with queue_of(cluster, value_deserializer=Registry(0), **limits) as queue:
            monkeypatch.setattr(ShareCore, "deserializes", interrupted)
            with pytest.raises(KeyboardInterrupt):
                await queue.receive()
            with trio.fail_after(30):
                got = [await queue.receive() for _ in range(3)]
            assert [each.delivery_count for each in got] == [2] * 3


async def test_a_batch_goes_on_without_a_bad_record(autojump_clock: Clock) -> None:
    """As docs/share-groups.md has it. Otherwise the good records would be archived, too."""

    def number(data: bytes) -> int:
        if data == b"1":
            raise ValueError(data)
        return int(data)

    async with cluster_of(records=4) as cluster:
        async with queue_of(cluster, value_deserializer=number) as queue:
            done: list[int] = []
            while len(done) < 3:
                async with await queue.receive_batch() as batch:
                    try:
                        done += [record.value for record in list(batch)]
                    except DeserializationError as error:
                        batch.acknowledge(
                            [
                                "reject" if at == error.offset else "release"
                                for at in batch.records.offsets
                            ]
                        )
                await batch.acknowledged()
        assert done == [0, 2, 3]
        assert states(cluster) == ["acknowledged", "archived", "acknowledged", "acknowledged"]
