"""Locks in virtual time: renewed at half their time, and a block that loses its lock is cancelled."""

from __future__ import annotations

import gc
import math
import random
import signal
import sys
from contextlib import nullcontext, suppress
from inspect import signature
from typing import Any

import pytest
import trio
import trio.testing
from sharing import (
    cluster_of,
    queue_of,
    quiet,
    shared,
    states,
    take_complete_ways,
    until,
)
from trio.testing import MockClock as Clock

from trikafka import Delivery, TopicPartition
from trikafka._api.share.core import ShareCore
from trikafka._state.share.acquired import RecordState
from trikafka._wire._implementation import name_in_use
from trikafka.error_codes import ErrorCode
from trikafka.errors import AcknowledgementError, AuthorizationError, LockLostError
from trikafka.testing import ScriptedCluster
from trikafka.testing.steps import StepCounter


def renewals(cluster: ScriptedCluster) -> list[float]:
    """Return the times of the requests that renew locks."""
    return [
        seen.time
        for seen in cluster.requests("ShareAcknowledge")
        if getattr(seen.request, "is_renew_ack", False)
    ]


async def test_an_open_block_renews_at_half_time(autojump_clock: Clock) -> None:
    async with cluster_of(records=10) as cluster:
        cluster.shares.times.lock = 20
        async with queue_of(cluster, max_in_flight=10) as queue:
            # The other nine wait to be delivered, so no fetch is under way that would delay it.
            delivery = await queue.receive()
            assert (trio.current_time(), delivery.deadline) == (0, 20)
            async with delivery:
                await trio.sleep(65)
                assert delivery.deadline == 80
            await delivery.acknowledged()
        assert renewals(cluster) == [10, 20, 30, 40, 50, 60]
        assert (shared(cluster)[0].count, states(cluster)[0]) == (1, "acknowledged")


async def test_records_that_wait_are_renewed(autojump_clock: Clock) -> None:
    async with cluster_of(records=3) as cluster, queue_of(cluster) as queue:
        for _ in range(3):
            async with await queue.receive():
                await trio.sleep(40)
        await queue.flush()
        assert [shared(cluster)[offset].count for offset in range(3)] == [1, 1, 1]
        assert states(cluster) == ["acknowledged"] * 3


async def test_a_block_ends_at_max_processing(autojump_clock: Clock) -> None:
    async with cluster_of(records=1) as cluster:
        async with queue_of(cluster, max_processing_ms=45_000) as queue:
            delivery = await queue.receive()
            began = trio.current_time()
            with pytest.raises(
                LockLostError, match=r"max_processing_ms passed; .*its last delivery"
            ):
                async with delivery:
                    await trio.sleep_forever()
            assert trio.current_time() == pytest.approx(began + 45)
            assert (await queue.receive()).delivery_count == 2


@pytest.mark.parametrize("ends", ["cut", "late", "late and cut"])
async def test_a_call_before_the_cut_counts(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture, ends: str
) -> None:
    """Also if the handler cannot be cancelled; error and log do not say that it comes again."""
    async with cluster_of(records=1) as cluster:
        async with queue_of(cluster, max_processing_ms=40_000) as queue:
            delivery = await queue.receive()
            with pytest.raises(LockLostError, match="acknowledged before counts"):  # noqa: PT012
                async with delivery:
                    delivery.accept()
                    with trio.CancelScope(shield="late" in ends):
                        await trio.sleep(50)
                    if ends == "late and cut":
                        await trio.lowlevel.checkpoint()
            await queue.flush()
            assert ("acknowledged, as the handler asked" in caplog.text) is ("late" in ends)
        assert states(cluster) == ["acknowledged"]


async def test_a_retracted_call_does_not_count(autojump_clock: Clock) -> None:
    async with cluster_of(records=3) as cluster:
        async with queue_of(cluster) as queue:
            async with await queue.receive() as delivery:
                delivery.reject()
                delivery.retract()
            with suppress(ValueError):
                async with await queue.receive() as delivery:
                    delivery.accept()
                    delivery.retract()
                    raise ValueError
            delivery = await queue.receive()
            delivery.retract()  # no block is open
            delivery.accept()
            delivery.retract()
            await delivery.acknowledged()
            await queue.flush()
            assert states(cluster) in (
                ["acknowledged", "available", "acknowledged"],
                ["acknowledged", "acquired", "acknowledged"],
            )


async def test_a_block_that_does_not_end_is_released(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """Its handler cannot be cancelled: the record goes to others, and the member leaves in time."""
    async with cluster_of(records=1) as cluster:
        limits = {"max_processing_ms": 40_000, "max_poll_interval_ms": 20_000}
        async with queue_of(cluster, **limits) as queue:
            delivery = await queue.receive()
            with pytest.raises(LockLostError, match="max_processing_ms passed"):  # noqa: PT012
                async with delivery:
                    with trio.CancelScope(shield=True):
                        await trio.sleep(44)
                        assert states(cluster) == ["acquired"]
                        assert queue.health().ok
                        await trio.sleep(2)
                        assert "has not ended" in caplog.text
                        assert "1 blocks were cancelled" in queue.health().reasons[0]
                        await trio.sleep(60)
                        assert queue.statistics().state == "stale"
            assert (await queue.receive()).delivery_count > 1
            assert queue.health().ok


async def test_health_names_a_block_without_a_limit(autojump_clock: Clock) -> None:
    async with cluster_of(records=1) as cluster:
        limits = {"max_processing_ms": math.inf, "max_poll_interval_ms": 20_000}
        async with queue_of(cluster, **limits) as queue:
            async with await queue.receive():
                await trio.sleep(19)
                assert queue.health().ok
                await trio.sleep(21)
                assert "a block has been open for 40 s" in queue.health().reasons[0]
            assert queue.health().ok


@pytest.mark.parametrize(
    ("step", "kept"),
    [("_enter", False), ("_exit", False), ("_exit", True), ("enter_scope", True)],
)
def test_an_interrupt_leaves_no_record_open(step: str, kept: bool) -> None:
    """Ctrl-C comes at each line of a block's beginning, and of its end, in turn.

    ``enter_scope`` is called by a block of the usual kind: others wait, so that its acknowledgement
    is neither the first nor the last. If scopes are ``kept``, ``_exit`` keeps that of its block.
    """
    earlier = signal.signal(signal.SIGINT, signal.default_int_handler)
    usual, enters = step.endswith("scope"), "enter" in step
    code = getattr(ShareCore if usual else Delivery, step).__code__
    lines = sorted({line for _, _, line in code.co_lines() if line and line > code.co_firstlineno})
    struck: list[int] = []

    def trace(line: int) -> Any:
        def local(frame: Any, event: str, argument: object) -> Any:
            if event == "line" and frame.f_lineno == line and line not in struck:
                struck.append(line)
                signal.raise_signal(signal.SIGINT)
            return local

        return lambda frame, event, argument: local if frame.f_code is code else None

    async def main(line: int) -> None:
        async with cluster_of(records=4 if usual else 1) as cluster:
            async with queue_of(cluster, max_processing_ms=1_000) as queue:
                core = queue._parts.core
                if usual:
                    (await queue.receive()).accept()
                elif not kept:
                    take_complete_ways(queue)
                delivery = await queue.receive()
                # A collector's callback, as hypothesis has one, would swallow the interrupt.
                gc.disable()
                sys.settrace(trace(line))
                try:
                    async with delivery:
                        if enters:
                            await trio.lowlevel.checkpoint()
                    await trio.lowlevel.checkpoint()
                except KeyboardInterrupt:
                    pass
                finally:
                    sys.settrace(None)
                    gc.enable()
                await trio.sleep(5)
                assert queue.statistics().delivered == 0
                assert core.holdings.blocks == {}
                if not usual:
                    assert states(cluster) != ["acquired"] or shared(cluster)[0].count == 2

    try:
        for line in lines:
            trio.run(main, line, clock=trio.testing.MockClock(autojump_threshold=0))
    finally:
        signal.signal(signal.SIGINT, earlier)
    assert len(struck) >= (1 if usual else 4)


@pytest.mark.parametrize("seed", range(30))
async def test_both_ways_of_a_block_end_alike(autojump_clock: Clock, seed: int) -> None:
    """The quick way of a block, and the complete one, acknowledge the same."""
    outcomes = [await _blocks_at_random(seed, quick=quick) for quick in (True, False)]
    assert outcomes[0] == outcomes[1]


async def _blocks_at_random(seed: int, *, quick: bool) -> list[Any]:
    chance, seen = random.Random(seed), []
    async with cluster_of(records=40) as cluster, queue_of(cluster, max_in_flight=40) as queue:
        if not quick:
            take_complete_ways(queue)
        deliveries = [await queue.receive() for _ in range(40)]
        chance.shuffle(deliveries)
        lost_at = chance.randrange(80)
        for number, delivery in enumerate(deliveries):
            call = chance.choice(["accept", "release", "reject", "acknowledged", "repr", "fail"])
            accepts, limit = chance.random() < 0.2, 0 if chance.random() < 0.1 else 10
            with trio.move_on_after(limit) as scope:
                try:
                    if accepts:
                        delivery.accept()
                    async with delivery as entered:
                        assert entered is delivery
                        assert queue._parts.core.holdings.blocks.keys() == {delivery}
                        if number == lost_at:
                            delivery.acquired.lose("a test")
                        if call == "fail":
                            raise LookupError("a failing handler")
                        if call == "acknowledged":
                            await trio.lowlevel.checkpoint()
                        elif call != "repr":
                            getattr(delivery, call)()
                except Exception as error:
                    seen.append(repr(error))
            assert not queue._parts.core.holdings.blocks
            seen.append((number, scope.cancelled_caught, delivery._verdict))
            assert trio.current_effective_deadline() == math.inf
        acquired = deliveries[0].acquired
        decided = (RecordState.DECIDED, RecordState.SENT, RecordState.SETTLED)
        states = [RecordState.DECIDED if each in decided else each for each in acquired.states]
        seen.append((states, bytes(acquired._types), acquired.held))
    return seen


@pytest.mark.parametrize("seed", range(10))
async def test_blocks_beside_each_other_end_alike(autojump_clock: Clock, seed: int) -> None:
    """Scopes that are kept change nothing for tasks whose blocks overlap, or are cut."""
    outcomes = [await _overlapping_blocks(seed, quick=quick) for quick in (True, False)]
    assert outcomes[0] == outcomes[1]


async def _overlapping_blocks(seed: int, *, quick: bool) -> dict[int, Any]:
    chance, seen = random.Random(seed), {}
    plans = [
        (chance.choice(["work", "inner", "nested", "children", "fail", "limit", "cut"]), *times)
        for times in ((chance.random(), chance.random()) for _ in range(60))
    ]

    async def handle(queue: Any, number: int, began: float) -> None:
        how, begins, lasts = plans[number]
        await trio.sleep(begins)
        try:
            with trio.move_on_after(lasts / 2 if how == "limit" else math.inf) as scope:
                async with queue.receive_nowait() as delivery:
                    if how == "nested":
                        async with queue.receive_nowait():
                            await trio.sleep(lasts)
                    if how == "cut":
                        delivery.acquired.why_lost = "a test"
                        delivery.lock_lost()
                    if how == "fail":
                        raise LookupError("a failing handler")
                    with trio.CancelScope() if how == "inner" else nullcontext():
                        await trio.sleep(lasts)
                    if how == "children":
                        async with trio.open_nursery() as nursery:
                            nursery.start_soon(trio.sleep, lasts)
            result = scope.cancelled_caught
        except (LookupError, LockLostError) as error:
            result = type(error).__name__
        lasted = round(trio.current_time() - began, 6)
        seen[number] = (how, result, lasted, trio.current_effective_deadline())
        await trio.lowlevel.checkpoint()  # nothing that was cancelled is left

    async with cluster_of(records=120) as cluster, queue_of(cluster, max_in_flight=120) as queue:
        if not quick:
            take_complete_ways(queue)
        await queue.wait_receivable()
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            for number in range(len(plans)):
                nursery.start_soon(handle, queue, number, began)
        assert not queue._parts.core.holdings.blocks
    return seen


async def test_a_kept_scope_serves_the_next_block(autojump_clock: Clock) -> None:
    async with cluster_of(records=3) as cluster, queue_of(cluster) as queue:
        task: Any = trio.lowlevel.current_task()
        status = task._cancel_status
        before = (set(status._children), set(status._tasks))
        scopes = []
        for _ in range(3):
            async with await queue.receive() as delivery:
                scopes.append(delivery._scope)
                assert task._cancel_status is scopes[-1]._cancel_status
            assert task._cancel_status is status
            assert (status._children, status._tasks) == before
        assert len(set(scopes)) == (3 if name_in_use == "pure" else 1)


@pytest.mark.skipif(
    "reason" not in signature(trio.CancelScope.cancel).parameters, reason="this Trio has no reasons"
)
async def test_a_kept_scope_keeps_no_reason(autojump_clock: Clock) -> None:
    """A shield ended an earlier block's cancellation; its reason must not be a later block's."""
    async with cluster_of(records=3) as cluster, queue_of(cluster) as queue:
        await queue.wait_receivable()
        with trio.CancelScope() as outer, trio.CancelScope() as inner:
            async with queue.receive_nowait():
                outer.cancel(reason="an earlier reason")
                inner.shield = True
        cancelled: list[str] = []
        with suppress(LockLostError):
            async with queue.receive_nowait() as delivery:
                delivery.acquired.why_lost = "a test"
                delivery.lock_lost()
                try:
                    await trio.sleep(1)
                except trio.Cancelled as error:
                    cancelled.append(str(error))
                    raise
        assert "a test" in cancelled[0]


async def test_the_watch_over_blocks_sleeps(autojump_clock: Clock) -> None:
    """Also where rounding leaves a time until the limit by which no clock moves."""
    async with cluster_of(records=1) as cluster:
        cluster.shares.times.delivery_limit = 1_000
        async with queue_of(cluster, max_processing_ms=700) as queue:
            counter, scope = StepCounter(), trio.CancelScope()
            counter.plan((20_000, scope.cancel))
            trio.lowlevel.add_instrument(counter)
            with scope:
                for number in range(20):
                    await trio.sleep(number / 7)
                    with pytest.raises(LockLostError, match="max_processing_ms"):
                        async with await queue.receive():
                            await trio.sleep_forever()
            trio.lowlevel.remove_instrument(counter)
            assert not scope.cancelled_caught


async def test_a_delivery_without_a_block_is_given_back(autojump_clock: Clock) -> None:
    async with cluster_of(records=1) as cluster:
        async with queue_of(cluster, max_processing_ms=45_000) as queue:
            delivery = await queue.receive()
            again = await queue.receive()
            assert trio.current_time() == pytest.approx(45, abs=1)
            assert again.delivery_count == 2
            with pytest.raises(LockLostError, match="max_processing_ms"):
                delivery.accept()
            with pytest.raises(LockLostError):
                async with delivery:
                    pass
            again.accept()


async def test_a_delivery_after_an_error_is_given_back(autojump_clock: Clock) -> None:
    """The receive before it, in the same turn, raised the error and delivered nothing."""
    async with cluster_of(records=2) as cluster:
        async with queue_of(cluster, max_processing_ms=1_000) as queue:
            (await queue.receive()).accept()
            cluster.fail("ShareGroupHeartbeat", 30, 1_000)
            await trio.sleep(10)
            with pytest.raises(AuthorizationError):
                await queue.receive()
            delivery = await queue.receive()
            await trio.sleep(2)
            with pytest.raises(LockLostError, match="max_processing_ms"):
                delivery.accept()


async def test_a_refused_renewal_cancels_the_block(autojump_clock: Clock) -> None:
    async with cluster_of(records=1) as cluster, queue_of(cluster) as queue:
        cluster.fail("ShareAcknowledge", 121, where=lambda request: request.is_renew_ack, topic="t")
        delivery = await queue.receive()
        with pytest.raises(
            LockLostError, match="t-0 at offset 0 is lost: the broker did not renew"
        ):
            async with delivery:
                await trio.sleep_forever()
        assert trio.current_time() == pytest.approx(15, abs=1)
        assert queue.statistics().lost == 1


async def test_a_silent_broker_ends_the_lock_in_time(autojump_clock: Clock) -> None:
    async with cluster_of(records=1) as cluster, queue_of(cluster) as queue:
        delivery = await queue.receive()
        ends = delivery.deadline
        cluster.freeze(0)
        with pytest.raises(LockLostError, match="its time is over"):
            async with delivery:
                await trio.sleep_forever()
        assert trio.current_time() == pytest.approx(ends)
        cluster.thaw(0)


@pytest.mark.parametrize("max_in_flight", [10, 100], ids=["no request", "a fetch in flight"])
async def test_a_disconnect_ends_the_block_at_once(
    autojump_clock: Clock, max_in_flight: int
) -> None:
    async with (
        cluster_of(records=10) as cluster,
        queue_of(cluster, max_in_flight=max_in_flight) as queue,
    ):
        delivery = await queue.receive()
        with pytest.raises(LockLostError, match="lost the connection"):  # noqa: PT012
            async with delivery:
                await trio.sleep(3)
                began = trio.current_time()
                cluster.disconnect(0)
                await trio.sleep_forever()
        assert trio.current_time() == pytest.approx(began, abs=0.01)
        assert (await queue.receive()).delivery_count == 2


async def test_a_new_leader_ends_the_locks_of_the_old(autojump_clock: Clock) -> None:
    async with cluster_of(records=1, nodes=2) as cluster, queue_of(cluster) as queue:
        delivery = await queue.receive()
        with pytest.raises(LockLostError, match="does not lead t-0 now"):  # noqa: PT012
            async with delivery:
                await trio.sleep(1)
                cluster.move_leader("t", 0, 1)
                await trio.sleep_forever()
        assert trio.current_time() < 3


async def test_a_cancellation_of_the_user_stays_one(autojump_clock: Clock) -> None:
    """Also in the very step in which the lock is lost."""
    async with cluster_of(records=1) as cluster, queue_of(cluster) as queue:
        delivery = await queue.receive()
        with trio.CancelScope() as scope:
            async with delivery:
                await trio.sleep(1)
                cluster.disconnect(0)
                scope.cancel()
                await trio.sleep_forever()
        assert scope.cancelled_caught


async def test_an_exception_beats_the_lost_lock(autojump_clock: Clock) -> None:
    async with cluster_of(records=1) as cluster, queue_of(cluster) as queue:
        delivery = await queue.receive()
        with pytest.raises(KeyError):  # noqa: PT012
            async with delivery:
                cluster.disconnect(0)
                with trio.CancelScope(shield=True):
                    await trio.sleep(0.1)
                    raise KeyError


async def test_work_done_after_the_loss_does_not_count(autojump_clock: Clock) -> None:
    async with cluster_of(records=1) as cluster, queue_of(cluster) as queue:
        delivery = await queue.receive()
        with pytest.raises(LockLostError):  # noqa: PT012
            async with delivery:
                cluster.disconnect(0)
                with trio.CancelScope(shield=True):
                    await trio.sleep(0.1)
        with pytest.raises(LockLostError):
            await delivery.acknowledged()
        assert (await queue.receive()).delivery_count == 2


async def test_brokers_without_renewals_end_the_block(autojump_clock: Clock) -> None:
    async with cluster_of(records=1) as cluster:
        cluster.offer("ShareFetch", (1, 1))
        cluster.offer("ShareAcknowledge", (1, 1))
        async with queue_of(cluster) as queue:
            delivery = await queue.receive()
            ends = delivery.deadline
            with pytest.raises(LockLostError, match="its time is over"):
                async with delivery:
                    await trio.sleep_forever()
            assert trio.current_time() == pytest.approx(ends)
            assert (await queue.receive()).delivery_count == 2


async def test_a_renewal_is_repeated_when_that_may_help(autojump_clock: Clock) -> None:
    async with cluster_of(records=1) as cluster:
        cluster.fail("ShareAcknowledge", 15, 2, where=lambda each: each.is_renew_ack, topic="t")
        async with queue_of(cluster) as queue:
            async with await queue.receive():
                await trio.sleep(40)
            await queue.flush()
        assert states(cluster) == ["acknowledged"]
        assert len(renewals(cluster)) >= 4


async def test_only_what_is_held_is_renewed(autojump_clock: Clock) -> None:
    async with cluster_of(records=4) as cluster, queue_of(cluster) as queue:
        held = [await queue.receive() for _ in range(4)]
        for each in held[:2]:
            each.accept()
        async with held[3]:
            await trio.sleep(20)
        held[2].release()
        renewal = next(
            seen for seen in cluster.requests("ShareAcknowledge") if seen.request.is_renew_ack
        )
        batches: Any = renewal.request.topics[0].partitions[0].acknowledgement_batches
        assert [(each.first_offset, each.last_offset) for each in batches] == [(2, 3)]
        assert batches[0].acknowledge_types == [4]


async def test_health_is_well_while_locks_are_renewed(autojump_clock: Clock) -> None:
    async with cluster_of(records=1) as cluster, queue_of(cluster) as queue:
        async with await queue.receive():
            await trio.sleep(100)
            assert queue.health().ok
            assert queue.health().state == "stable"
        await until(lambda: queue.statistics().accepted == 1)


async def test_slow_work_burns_no_deliveries(autojump_clock: Clock) -> None:
    """Records that wait for a slow program keep their count, however long they wait."""
    async with cluster_of(records=10) as cluster:
        cluster.shares.times.lock = 3
        async with queue_of(cluster, max_processing_ms=4_000) as queue:
            for _ in range(10):
                async with await queue.receive() as delivery:
                    assert delivery.delivery_count == 1
                    await trio.sleep(3)
            await queue.flush()
        assert states(cluster) == ["acknowledged"] * 10


async def test_a_stale_member_gives_back_what_waits(autojump_clock: Clock) -> None:
    async with cluster_of(records=5) as cluster:
        async with queue_of(cluster, max_poll_interval_ms=20_000) as queue:
            (await queue.receive()).accept()
            await trio.sleep(25)
            assert states(cluster) == ["acknowledged", *["available"] * 4]


async def test_a_frozen_leader_that_is_replaced_is_noticed(autojump_clock: Clock) -> None:
    async with cluster_of(records=1, nodes=2) as cluster, queue_of(cluster) as queue:
        delivery = await queue.receive()
        with pytest.raises(LockLostError, match="broker 1 leads t-0 now"):  # noqa: PT012
            async with delivery:
                await trio.sleep(1)
                cluster.freeze(0)
                cluster.move_leader("t", 0, 1)
                await trio.sleep_forever()
        assert trio.current_time() < 5
        cluster.thaw(0)


@pytest.mark.parametrize("max_in_flight", [10, 100], ids=["no request", "a fetch in flight"])
async def test_a_frozen_leaders_successor_is_noticed(
    autojump_clock: Clock, max_in_flight: int
) -> None:
    """Within 100 ms, also if the frozen broker has nothing to answer: it is asked something."""
    async with (
        cluster_of(records=10, nodes=2) as cluster,
        queue_of(cluster, max_in_flight=max_in_flight) as queue,
    ):
        delivery = await queue.receive()
        with pytest.raises(LockLostError, match=r"broker 1 leads t-0|has taken over"):  # noqa: PT012
            async with delivery:
                await trio.sleep(0.3)
                cluster.freeze(0)
                await trio.sleep(8)
                cluster.move_leader("t", 0, 1)
                moved = trio.current_time()
                await trio.sleep_forever()
        assert trio.current_time() - moved < 0.1
        cluster.thaw(0)


@pytest.mark.parametrize("order", range(6))
@pytest.mark.parametrize("election", [0.5, 1, 2])
async def test_two_frozen_brokers_delay_no_block(
    autojump_clock: Clock, election: float, order: int
) -> None:
    """A frozen broker that was asked for metadata once is asked after the others."""
    async with (
        cluster_of(records=10, nodes=3) as cluster,
        queue_of(cluster, max_in_flight=10) as queue,
    ):
        delivery = await queue.receive()
        random.seed(order)
        with pytest.raises(LockLostError, match=r"broker 2 leads t-0|taken over"):  # noqa: PT012
            async with delivery:
                await trio.sleep(0.3)
                cluster.freeze(0)
                cluster.freeze(1)
                await trio.sleep(election)
                cluster.move_leader("t", 0, 2)
                moved = trio.current_time()
                await trio.sleep_forever()
        assert trio.current_time() - moved < 0.3
        cluster.thaw(0)
        cluster.thaw(1)


@pytest.mark.parametrize("order", range(4))
async def test_a_refresh_under_way_delays_no_block(autojump_clock: Clock, order: int) -> None:
    """It was begun without a hurry, and asks the frozen broker first in some orders."""
    async with (
        cluster_of(records=10, nodes=3) as cluster,
        queue_of(cluster, max_in_flight=10) as queue,
    ):
        delivery = await queue.receive()
        random.seed(order)
        with pytest.raises(LockLostError, match=r"broker 2 leads t-0|taken over"):  # noqa: PT012
            async with delivery:
                await trio.sleep(0.3)
                cluster.freeze(0)
                queue._parts.metadata.request_update()
                await trio.sleep(0.04)
                cluster.move_leader("t", 0, 2)
                moved = trio.current_time()
                await trio.sleep_forever()
        assert trio.current_time() - moved < 0.3
        cluster.thaw(0)


async def test_an_old_leaders_late_records_are_dropped(autojump_clock: Clock) -> None:
    """Its last response comes after the news of the new leader, which delivers them again."""
    async with cluster_of(nodes=2) as cluster, queue_of(cluster) as queue:
        await trio.sleep(1)
        old = cluster.partition("t", 0).leader
        cluster.delay("ShareFetch", 0.5, 1, node=old, after=True)
        before = len(cluster.requests("ShareFetch", node=old))
        await until(lambda: len(cluster.requests("ShareFetch", node=old)) > before)
        cluster.append("t", 0, [b"x"])
        await trio.sleep(0.1)
        cluster.move_leader("t", 0, 1 - old)
        queue._parts.metadata.request_update()
        delivery = await queue.receive()
        assert delivery.record.offset == 0
        await until(lambda: all(seen.answered_at for seen in cluster.requests("ShareFetch")[:-1]))
        with trio.move_on_after(2):
            pytest.fail(f"the same record comes again: {await queue.receive()!r}")
        delivery.accept()
        await delivery.acknowledged()


async def test_an_old_leaders_word_ends_the_block(autojump_clock: Clock) -> None:
    """The old leader's response suffices; the metadata comes seconds later."""
    async with cluster_of(records=1, nodes=2) as cluster, queue_of(cluster) as queue:
        delivery = await queue.receive()
        with pytest.raises(LockLostError, match="does not lead t-0 now"):  # noqa: PT012
            async with delivery:
                await trio.sleep(0.3)
                cluster.delay("Metadata", 5)
                cluster.move_leader("t", 0, 1)
                moved = trio.current_time()
                await trio.sleep_forever()
        assert trio.current_time() - moved <= 0.5


async def test_unassigned_partitions_leader_is_noticed(autojump_clock: Clock) -> None:
    """Its records are held, and no fetch names it any more, so no response says who leads."""
    async with cluster_of(2, records=1, nodes=2) as cluster:
        cluster.move_leader("t", 0, 1)  # one broker leads both, and responds all the time
        async with queue_of(cluster) as queue:
            held = [await queue.receive(), await queue.receive()]
            async with queue_of(cluster):
                await until(lambda: len(queue.assignment) == 1)
                (gone,) = (each for each in held if _place(each) not in queue.assignment)
                with pytest.raises(LockLostError):  # noqa: PT012
                    async with gone:
                        await trio.sleep(3)
                        cluster.move_leader("t", gone.record.partition, 0)
                        moved = trio.current_time()
                        await trio.sleep_forever()
                assert trio.current_time() - moved < 0.1


def _place(delivery: Delivery) -> TopicPartition:
    return TopicPartition(delivery.record.topic, delivery.record.partition)


async def test_leaders_that_move_one_after_the_other(autojump_clock: Clock) -> None:
    """The pause after the first one's error does not hide the others."""
    async with cluster_of(3, records=1, nodes=2) as cluster:
        for number in range(3):
            cluster.move_leader("t", number, 0)
        async with queue_of(cluster, retry_backoff_ms=500) as queue:
            held = [await queue.receive() for _ in range(3)]
            ended: dict[int, float] = {}

            async def work(delivery: Delivery) -> None:
                with pytest.raises(LockLostError):
                    async with delivery:
                        await trio.sleep_forever()
                ended[delivery.record.partition] = trio.current_time()

            async def receive() -> None:
                async for _ in queue:
                    pass

            async with trio.open_nursery() as nursery:
                nursery.start_soon(receive)  # the new leader delivers the records again
                for each in held:
                    nursery.start_soon(work, each)
                await trio.sleep(0.05)
                cluster.delay("Metadata", 5)
                moved = {}
                for number in range(3):
                    cluster.move_leader("t", number, 1)
                    moved[number] = trio.current_time()
                    await trio.sleep(0.01)
                await until(lambda: len(ended) == 3)
                nursery.cancel_scope.cancel()
            assert all(ended[number] - moved[number] < 0.1 for number in moved), (moved, ended)


@pytest.mark.parametrize("max_in_flight", [1, 10], ids=["full", "fetching"])
async def test_a_moved_leader_is_noticed_in_time(autojump_clock: Clock, max_in_flight: int) -> None:
    """Within 100 ms, both brokers being healthy, however long the handler has been at work."""
    async with (
        cluster_of(records=1, nodes=2) as cluster,
        queue_of(cluster, max_in_flight=max_in_flight) as queue,
    ):
        delivery = await queue.receive()
        # Without fetches only the metadata can name the new leader.
        says = r"broker 1 leads t-0" if max_in_flight == 1 else r"broker 1 leads t-0|does not lead"
        with pytest.raises(LockLostError, match=says):  # noqa: PT012
            async with delivery:
                await trio.sleep(5)
                cluster.move_leader("t", 0, 1)
                moved = trio.current_time()
                await trio.sleep_forever()
        assert trio.current_time() - moved < 0.1


@pytest.mark.parametrize("away", [0, 0.15], ids=["near", "far"])
async def test_a_responding_leader_spares_the_metadata(autojump_clock: Clock, away: float) -> None:
    """Its fetches end often enough, however long a block is open."""
    async with cluster_of(records=1, nodes=2) as cluster, queue_of(cluster) as queue:
        cluster.shares.times.lock = 100
        async with await queue.receive():
            cluster.delay("ShareFetch", away)
            await trio.sleep(2)
            before = len(cluster.requests("Metadata"))
            await trio.sleep(20)
            assert len(cluster.requests("Metadata")) == before


@pytest.mark.parametrize(
    ("takes", "least", "most"),
    [
        (0, 240, 251),  # thirteen a second
        # Metadata of a large topic keep a processor busy: half of the time is the program's.
        (0.5, 18, 21),
    ],
)
async def test_a_full_member_asks_steadily(
    autojump_clock: Clock, takes: float, least: int, most: int
) -> None:
    """It awaits no response that would name a new leader."""
    async with (
        cluster_of(records=1, nodes=2) as cluster,
        queue_of(cluster, max_in_flight=1) as queue,
    ):
        cluster.shares.times.lock = 100
        async with await queue.receive():
            cluster.delay("Metadata", takes)
            await trio.sleep(2)
            before = len(cluster.requests("Metadata"))
            await trio.sleep(20)
            assert least <= len(cluster.requests("Metadata")) - before <= most


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.GROUP_ID_NOT_FOUND,
        ErrorCode.FENCED_STATE_EPOCH,
    ],
)
async def test_an_old_leaders_ack_error_ends_the_block(
    autojump_clock: Clock, code: ErrorCode
) -> None:
    """An acknowledgement's response says it of all records of the partition."""
    async with (
        cluster_of(records=10, nodes=2) as cluster,
        queue_of(cluster, max_in_flight=10) as queue,
    ):
        first, second = await queue.receive(), await queue.receive()
        with pytest.raises(LockLostError, match=r"does not lead t-0 now|has no locks of t-0 now"):  # noqa: PT012
            async with second:
                cluster.delay("Metadata", 20)
                cluster.fail("ShareAcknowledge", code, topic="t")
                first.accept()
                moved = trio.current_time()
                await trio.sleep_forever()
        assert trio.current_time() - moved <= 0.5


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.GROUP_ID_NOT_FOUND,
        ErrorCode.FENCED_STATE_EPOCH,
    ],
)
async def test_a_fetch_error_ends_the_block(autojump_clock: Clock, code: ErrorCode) -> None:
    """After these errors a broker has discarded the locks, and gives the records to others."""
    quiet()
    async with cluster_of(records=1, nodes=2) as cluster, queue_of(cluster) as queue:
        delivery = await queue.receive()
        with pytest.raises(LockLostError, match=r"does not lead t-0 now|has no locks of t-0 now"):  # noqa: PT012
            async with delivery:
                await trio.sleep(1)
                cluster.fail("ShareFetch", code, topic="t")
                failed = trio.current_time()
                await trio.sleep(10)
        assert trio.current_time() - failed <= 0.1
        cluster.append("t", 0, [b"more"])
        assert (await queue.receive()).record.value == b"more"  # and no receive raises the error


async def test_a_failed_ack_takes_no_renewal_along(autojump_clock: Clock) -> None:
    async with cluster_of(records=10) as cluster:
        async with queue_of(cluster, max_in_flight=10) as queue:
            first, second = await queue.receive(), await queue.receive()
            cluster.fail(
                "ShareAcknowledge", 121, where=lambda request: not request.is_renew_ack, topic="t"
            )
            async with second:
                # In the very moment in which the locks are to be renewed.
                await trio.sleep_until(first.deadline - 15)
                first.accept()
                with pytest.raises(AcknowledgementError, match="INVALID_RECORD_STATE"):
                    await first.acknowledged()
                await trio.sleep(20)
            await second.acknowledged()
            assert queue.statistics().lost == 0


@pytest.mark.parametrize("work", [0.02, 0.1, 0.4])
async def test_an_ack_waits_no_longer_than_the_work_took(
    autojump_clock: Clock, work: float
) -> None:
    async with cluster_of(records=1) as cluster, queue_of(cluster) as queue:
        async with await queue.receive() as delivery:
            began = trio.current_time()
            await trio.sleep(work)
        await delivery.acknowledged()
        assert trio.current_time() - began < 2 * work + 0.02
        assert len(cluster.requests("ShareFetch")) < 20


async def test_an_accept_in_an_overdue_block_counts(autojump_clock: Clock) -> None:
    """What the broker has is what ``acknowledged`` says."""
    async with cluster_of(records=2) as cluster:
        async with queue_of(cluster, max_processing_ms=10_000) as queue:
            first, second = await queue.receive(), await queue.receive()

            async def stay(delivery: Delivery[Any, Any], *, accept: bool) -> None:
                with pytest.raises(LockLostError, match="max_processing_ms passed"):  # noqa: PT012
                    async with delivery:
                        if accept:
                            delivery.accept()
                        with trio.CancelScope(shield=True):
                            await trio.sleep(16)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(lambda: stay(first, accept=True))
                nursery.start_soon(lambda: stay(second, accept=False))
            await first.acknowledged()
            assert states(cluster)[0] == "acknowledged"
            with pytest.raises(LockLostError):
                await second.acknowledged()
            with pytest.raises(LockLostError):
                second.accept()


async def test_a_broker_unlisted_for_a_moment_keeps_locks(autojump_clock: Clock) -> None:
    """The metadata do not list it, and it leads nothing there, but its connection lives."""
    async with cluster_of(records=3, nodes=2) as cluster:
        async with queue_of(cluster, metadata_max_age_ms=500) as queue:
            leader = cluster.partition("t", 0).leader
            async with await queue.receive() as delivery:
                cluster._state.nodes[leader].listed = False
                await trio.sleep(40)  # longer than a lock
                cluster._state.nodes[leader].listed = True
                await trio.sleep(2)
            await delivery.acknowledged()
            for _ in range(2):
                async with await queue.receive():
                    pass
            await queue.flush()
        assert states(cluster) == ["acknowledged"] * 3
        assert [shared(cluster)[offset].count for offset in range(3)] == [1, 1, 1]
        epochs = [
            seen.request.share_session_epoch for seen in cluster.requests("ShareFetch", node=leader)
        ]
        assert epochs.count(0) == 1  # one session from the first record to the last


def fetches_from(queue: Any, node: int) -> list[int]:
    """Return the ports of the connections over which a member fetches from a broker."""
    return [
        each.node.port
        for each in queue.statistics().connections
        if each.node.node_id == node and each.purpose == "fetch" and each.state == "ready"
    ]


@pytest.mark.parametrize("how", ["closed", "lost"])
async def test_a_broker_that_has_left_keeps_no_connection(autojump_clock: Clock, how: str) -> None:
    """Once its session is over, nothing holds the connection."""
    async with cluster_of(records=1, nodes=2) as cluster:
        async with queue_of(cluster, metadata_max_age_ms=500) as queue:
            leader = cluster.partition("t", 0).leader
            assert leader is not None
            async with await queue.receive():
                pass
            await queue.flush()
            assert fetches_from(queue, leader)
            if how == "lost":
                # The broker has forgotten the session, and says so once its partition has moved.
                cluster.delay("ShareFetch", 2, 1, node=leader)
                cluster.fail("ShareFetch", ErrorCode.SHARE_SESSION_NOT_FOUND, None, node=leader)
                await trio.sleep(1)
            cluster._state.nodes[leader].listed = False
            cluster.move_leader("t", 0, 1 - leader)
            with trio.fail_after(60):
                await until(lambda: not fetches_from(queue, leader), step=0.1)
            cluster.append("t", 0, [b"new"])
            async with await queue.receive() as delivery:
                assert delivery.record.value == b"new"


async def test_a_moved_brokers_old_connection_ends(
    autojump_clock: Clock,
) -> None:
    async with cluster_of(records=2, nodes=2) as cluster, queue_of(cluster) as queue:
        leader = cluster.partition("t", 0).leader
        assert leader is not None
        async with await queue.receive():
            pass
        await queue.flush()
        cluster._state.nodes[leader].port = 9999
        queue._parts.metadata.request_update()
        with trio.fail_after(10):
            await until(lambda: fetches_from(queue, leader) == [9999], step=0.1)
        async with await queue.receive():
            pass


@pytest.mark.parametrize("max_in_flight", [1, 10], ids=["full", "fetching"])
async def test_a_leader_that_came_back_is_noticed(
    autojump_clock: Clock, max_in_flight: int
) -> None:
    """Meanwhile another member may have got the record, and accepted it."""
    async with (
        cluster_of(records=1, nodes=2) as cluster,
        queue_of(cluster, max_in_flight=max_in_flight) as queue,
    ):
        delivery = await queue.receive()
        with pytest.raises(LockLostError, match=r"did not lead t-0 for a moment|does not lead"):  # noqa: PT012
            async with delivery:
                await trio.sleep(5)
                cluster.move_leader("t", 0, 1)
                cluster.move_leader("t", 0, 0)
                moved = trio.current_time()
                if max_in_flight > 1:  # fetches respond, so nothing asks for the metadata
                    queue._parts.metadata.request_update()
                await trio.sleep(10)
        assert trio.current_time() - moved < 0.1
        assert (await queue.receive()).record.offset == 0


async def test_a_leaders_next_epoch_costs_no_lock(autojump_clock: Clock) -> None:
    """As when replicas are reassigned, and the leader stays."""
    async with (
        cluster_of(records=1, nodes=2) as cluster,
        queue_of(cluster, max_in_flight=1) as queue,
    ):
        async with await queue.receive() as delivery:
            for _ in range(3):
                await trio.sleep(1)
                cluster.move_leader("t", 0, 0)
        await delivery.acknowledged()


async def test_an_epoch_during_a_rest_costs_no_lock(autojump_clock: Clock) -> None:
    """A partition that fails is not fetched for a while. Its leader may begin an epoch then."""
    async with cluster_of(2, records=1) as cluster, queue_of(cluster, max_in_flight=1) as queue:
        rule = cluster.fail("ShareFetch", 15, None, topic="t", partition=0)
        (await queue.receive()).accept()
        await queue.flush()
        session = next(iter(queue._parts.fetcher._brokers.values())).session
        await until(lambda: len(session.resting) == 1)
        cluster.move_leader("t", 0, 0)
        await queue._parts.metadata.refresh({"t"})
        assert session.resting
        rule.remove()
        async with await queue.receive() as delivery:
            assert delivery.record.partition == 0
            cluster.move_leader("t", 0, 0)
            await trio.sleep(1)
        await delivery.acknowledged()


async def test_a_far_frozen_leaders_successor(autojump_clock: Clock) -> None:
    """What its responses took is waited for, and no more."""
    async with cluster_of(records=1, nodes=2) as cluster, queue_of(cluster) as queue:
        delivery = await queue.receive()
        with pytest.raises(LockLostError, match=r"broker 1 leads t-0|taken over"):  # noqa: PT012
            async with delivery:
                cluster.delay("ShareFetch", 0.15)
                await trio.sleep(2)
                cluster.freeze(0)
                cluster.move_leader("t", 0, 1)
                moved = trio.current_time()
                await trio.sleep_forever()
        assert trio.current_time() - moved < 0.4
        cluster.thaw(0)


async def test_a_leader_without_successor(autojump_clock: Clock) -> None:
    """After the time of an election the metadata is asked once in a second."""
    async with (
        cluster_of(records=1, nodes=2) as cluster,
        queue_of(cluster, request_timeout_ms=90_000) as queue,
    ):
        cluster.shares.times.lock = 60
        with pytest.raises(LockLostError, match="its time is over"):  # noqa: PT012
            async with await queue.receive():
                await trio.sleep(1)
                cluster.freeze(0)
                before = len(cluster.requests("Metadata"))
                await trio.sleep_forever()
        assert trio.current_time() > 59
        # The refreshes in the background, one a second, come on top.
        assert len(cluster.requests("Metadata")) - before < 15 * 13 + 2 * 60
        cluster.thaw(0)


async def test_a_new_leader_frees_the_locks(autojump_clock: Clock) -> None:
    """It knows the stored states alone, and the counts in them: that of the second delivery."""
    async with cluster_of(records=2, nodes=2) as cluster, queue_of(cluster) as queue:
        (await queue.receive()).release()
        held = [await queue.receive(), await queue.receive()]
        assert {each.record.offset: each.delivery_count for each in held} == {0: 2, 1: 1}
        cluster.move_leader("t", 0, 1)
        moved = trio.current_time()
        got = [await queue.receive(), await queue.receive()]
        assert trio.current_time() - moved < 1
        assert [(each.record.offset, each.delivery_count) for each in got] == [(0, 2), (1, 1)]
        for each in held:
            with pytest.raises(LockLostError):
                each.accept()
