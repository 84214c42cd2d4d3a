"""What makes a share consumer fast, a window that grows, and what cancels its blocks."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.lowlevel
from sharing import cluster_of, queue_of
from trio.testing import MockClock as Clock

from trikafka._api.share import core
from trikafka._managers.share import fetch
from trikafka._net import connection
from trikafka._net.in_flight import InFlightRequest
from trikafka._state.share.window import FetchWindow
from trikafka.errors import LockLostError
from trikafka.testing import control_batch

Body = Callable[[], Any]


@pytest.fixture(params=["known", "unknown"], autouse=True)
def tasks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run each test also as with a Trio whose tasks have other attributes."""
    if request.param == "unknown":
        monkeypatch.setattr(core, "known_current_task", lambda: None)


async def sleep_in_a_scope() -> None:
    with trio.CancelScope():
        await trio.sleep_forever()


async def sleep_in_a_timeout() -> None:
    with trio.move_on_after(1_000) as scope:
        await trio.sleep_forever()
    assert not scope.cancelled_caught


async def sleep_in_a_nursery() -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.sleep_forever)
        nursery.start_soon(sleep_in_a_scope)


async def start_in_a_nursery() -> None:
    async def started(task_status: trio.TaskStatus[None]) -> None:
        task_status.started()
        await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        await nursery.start(started)
        await trio.sleep_forever()


async def sleep_after_scopes() -> None:
    with trio.CancelScope():
        await trio.lowlevel.checkpoint()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.sleep, 0.1)
    await trio.sleep_forever()


async def shield_for_a_while() -> None:
    with trio.CancelScope(shield=True):
        await trio.sleep(0.5)
    await trio.sleep_forever()


BODIES = [
    trio.sleep_forever,
    sleep_in_a_scope,
    sleep_in_a_timeout,
    sleep_in_a_nursery,
    start_in_a_nursery,
    sleep_after_scopes,
    shield_for_a_while,
]


@asynccontextmanager
async def a_delivery() -> AsyncIterator[tuple[Any, Any]]:
    """Yield a delivery after one whose block has ended: its cancel scope may serve again."""
    async with cluster_of(records=2) as cluster, queue_of(cluster) as queue:
        async with await queue.receive():
            pass
        yield cluster, await queue.receive()


@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.__name__)
async def test_a_lost_lock_cancels_any_body(autojump_clock: Clock, body: Body) -> None:
    async with a_delivery() as (cluster, delivery):
        with trio.CancelScope() as outer:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trio.sleep, 0.2)  # a neighbour, which goes on
                with pytest.raises(LockLostError, match="connection"):  # noqa: PT012
                    async with delivery:
                        await trio.sleep(0.01)
                        cluster.disconnect(0)
                        await body()
                assert trio.current_effective_deadline() == float("inf")
                await trio.lowlevel.checkpoint()  # nothing outside of the block is cancelled
        assert not outer.cancelled_caught
        assert trio.current_time() < 2


@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.__name__)
async def test_a_cancelled_body_is_the_users(autojump_clock: Clock, body: Body) -> None:
    async with a_delivery() as (cluster, delivery):
        with trio.move_on_after(0.1) as outer:
            async with delivery:
                cluster.disconnect(0)
                outer.cancel()
                await body()
        assert outer.cancelled_caught


async def test_blocks_in_each_other_end_one_by_one(autojump_clock: Clock) -> None:
    async with cluster_of(2, records=1, nodes=2) as cluster, queue_of(cluster) as queue:
        first, second = await queue.receive(), await queue.receive()
        nodes = {
            each: cluster.partition("t", each.record.partition).leader for each in (first, second)
        }
        with trio.fail_after(5):
            async with first:
                with pytest.raises(LockLostError):  # noqa: PT012
                    async with second:
                        await trio.sleep(0.01)
                        cluster.disconnect(nodes[second])
                        await trio.sleep_forever()
                await trio.sleep(1)  # the outer block goes on
        await first.acknowledged()


async def test_blocks_in_each_other_are_lost_at_once(autojump_clock: Clock) -> None:
    """The outer block hears of it first, and the inner one is left first."""
    async with cluster_of(records=3) as cluster, queue_of(cluster) as queue:
        first, second, third = [await queue.receive() for _ in range(3)]
        with trio.fail_after(5):
            with pytest.raises(LockLostError, match="t-0 at offset 0 is lost"):  # noqa: PT012
                async with first, second, third:
                    await trio.sleep(0.01)
                    cluster.disconnect(0)
                    await trio.sleep_forever()
            await trio.sleep(0.1)  # nothing outside of the blocks is cancelled
        async with await queue.receive() as again:
            assert again.delivery_count == 2


@pytest.mark.parametrize("limits", [(500, 900), (900, 500)], ids=["outer first", "inner first"])
async def test_blocks_of_two_consumers_are_cut(
    autojump_clock: Clock, limits: tuple[int, int]
) -> None:
    async with cluster_of(records=1) as cluster:
        async with (
            queue_of(cluster, group_id="one", max_processing_ms=limits[0]) as one,
            queue_of(cluster, group_id="other", max_processing_ms=limits[1]) as other,
        ):
            outer, inner = await one.receive(), await other.receive()
            with pytest.raises(LockLostError, match="max_processing_ms"):  # noqa: PT012
                async with outer, inner:
                    with trio.CancelScope(shield=True):
                        await trio.sleep(2)
                    await trio.sleep_forever()
            await trio.sleep(0.1)


async def test_a_block_around_started_is_cancelled(autojump_clock: Clock) -> None:
    """``started()`` moves the task into another nursery, while it is in the block."""
    async with a_delivery() as (cluster, delivery):

        async def work(task_status: trio.TaskStatus[None]) -> None:
            with pytest.raises(LockLostError, match="connection"):  # noqa: PT012
                async with delivery:
                    task_status.started()
                    await trio.sleep_forever()

        with trio.fail_after(5):
            async with trio.open_nursery() as nursery:
                await nursery.start(work)
                cluster.disconnect(0)


async def test_a_block_left_open_is_passed_over(autojump_clock: Clock) -> None:
    """Its task has ended, so nothing is left to cancel."""
    async with a_delivery() as (cluster, delivery):

        async def enter() -> None:
            await delivery.__aenter__()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(enter)
        cluster.disconnect(0)
        await trio.sleep(0.1)
        with pytest.raises(LockLostError):
            delivery.accept()


async def test_short_limits_cut_blocks_in_time(autojump_clock: Clock) -> None:
    async with cluster_of(records=3) as cluster:
        async with queue_of(cluster, max_processing_ms=700) as queue:
            await trio.sleep(0.3)
            for _ in range(3):
                delivery = await queue.receive()
                began = trio.current_time()
                with pytest.raises(LockLostError, match="max_processing_ms"):
                    async with delivery:
                        await trio.sleep_forever()
                assert trio.current_time() == pytest.approx(began + 0.7)


async def test_a_fast_program_is_fed_more(autojump_clock: Clock) -> None:
    async with cluster_of() as cluster, queue_of(cluster) as queue:
        for _ in range(20):
            cluster.append("t", 0, [b"x"] * 500)
        for _ in range(10_000):
            async with await queue.receive():
                pass
        sizes = [seen.request.max_records for seen in cluster.requests("ShareFetch")]
        assert sizes[0] == 500
        assert max(sizes) > 1_000


async def test_a_slow_program_is_fed_no_more(autojump_clock: Clock) -> None:
    async with cluster_of() as cluster, queue_of(cluster) as queue:
        for _ in range(4):
            cluster.append("t", 0, [b"x"] * 250)
        for _ in range(1_000):
            async with await queue.receive():
                await trio.sleep(0.01)
        sizes = [seen.request.max_records for seen in cluster.requests("ShareFetch")]
        assert max(sizes) == 500


async def test_gaps_do_not_feed_a_slow_program_more(autojump_clock: Clock) -> None:
    async with cluster_of() as cluster, queue_of(cluster) as queue:
        for count in range(4):
            cluster.append("t", 0, [b"x"] * 250)
            marker = control_batch(7, 251 * count + 250, commit=True, timestamp=1)
            cluster.append_batch("t", 0, marker)
        for _ in range(1_000):
            async with await queue.receive():
                await trio.sleep(0.01)
        sizes = [seen.request.max_records for seen in cluster.requests("ShareFetch")]
        assert max(sizes) == 500


async def test_long_work_makes_fetches_wait(autojump_clock: Clock) -> None:
    """Another receive waits meanwhile, and is woken by each response, which shows new leaders."""
    async with cluster_of(records=1) as cluster, queue_of(cluster) as queue:
        async with await queue.receive():
            with trio.move_on_after(20):
                await queue.receive()
        assert len(cluster.requests("ShareFetch")) < 350


def test_a_window_grows_and_shrinks() -> None:
    window = FetchWindow(1_600)
    sizes = []
    for seconds in (0.01, 0.1, 0.1, 0.5, 2, 2, 2):
        window.done(seconds)
        sizes.append(window.size)
    assert sizes == [1_000, 1_600, 1_600, 1_600, 800, 500, 500]
    small = FetchWindow(20)
    small.done(1)
    small.done(0.01)
    assert small.size == 20


@pytest.mark.parametrize(("size", "threads"), [(100, 0), (600, 1)])
async def test_many_small_records_need_no_thread(
    size: int, threads: int, monkeypatch: pytest.MonkeyPatch, autojump_clock: Clock
) -> None:
    """Only a response of half a megabyte and more is read in a thread."""
    in_threads: list[InFlightRequest] = []

    async def decoded(request: InFlightRequest) -> Any:
        in_threads.append(request)
        return request.response()

    monkeypatch.setattr(connection, "decoded", decoded)
    async with cluster_of() as cluster, queue_of(cluster, max_in_flight=2_000) as queue:
        cluster.append("t", 0, [bytes(size)] * 2_000)
        batch = await queue.receive_batch()
        assert len(batch) == 2_000
        assert len(in_threads) == threads
        batch.accept()


@pytest.mark.parametrize(("room", "under_way"), [(2_000, True), (10, False)])
async def test_decoding_waits_for_the_next_fetch(
    room: int, under_way: bool, monkeypatch: pytest.MonkeyPatch, autojump_clock: Clock
) -> None:
    """Without room there is no next fetch, and records are decoded at once."""
    seen: list[bool] = []
    pieces_of = fetch.pieces_of

    def decode(*args: Any, **settings: Any) -> Any:
        (broker,) = queue._parts.fetcher._brokers.values()
        seen.append(broker.session.in_flight is not None)
        return pieces_of(*args, **settings)

    monkeypatch.setattr(fetch, "pieces_of", decode)
    async with cluster_of() as cluster, queue_of(cluster, max_in_flight=room) as queue:
        cluster.append("t", 0, [b"x"] * 10)
        assert len(await queue.receive_batch()) == 10
        assert seen == [under_way]
        assert queue.statistics().buffered == 0
