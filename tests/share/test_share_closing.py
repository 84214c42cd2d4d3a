"""The end of a share consumer: in order, within its time, and within a second when cancelled."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from sharing import GROUP, cluster_of, queue_of, states, until
from trio.testing import MockClock as Clock

from trikafka.errors import ErrorCode, LockLostError
from trikafka.testing import ScriptedCluster


def ending(cluster: ScriptedCluster) -> list[tuple[str, int]]:
    """Return the last requests: the API and its epoch."""
    return [
        (
            seen.api_name,
            getattr(seen.request, "share_session_epoch", None)
            or getattr(seen.request, "member_epoch", 0),
        )
        for seen in cluster.log
        if seen.api_name.startswith("Share")
    ][-2:]


async def test_a_close_acknowledges_then_leaves(autojump_clock: Clock) -> None:
    async with cluster_of(records=4) as cluster:
        async with queue_of(cluster) as queue:
            one, two = await queue.receive(), await queue.receive()
            one.accept()
            two.reject()
        assert ending(cluster) == [("ShareAcknowledge", -1), ("ShareGroupHeartbeat", -1)]
        # What was not acknowledged is given back.
        assert states(cluster) == ["acknowledged", "archived", "available", "available"]
        assert not cluster.shares.sessions
        assert not cluster.shares.by_id[GROUP].members
        with pytest.raises(trio.ClosedResourceError):
            await queue.receive()
        assert not queue.health().ok


async def test_a_group_that_is_gone_needs_no_leave(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    async with cluster_of(records=1) as cluster:
        async with queue_of(cluster) as queue:
            await queue.receive()
            cluster.fail("ShareGroupHeartbeat", ErrorCode.GROUP_ID_NOT_FOUND, None)
    assert "could not leave" not in caplog.text


async def test_a_stale_member_that_closes_has_left(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """The close comes while the stale member leaves by itself, and leaves once more."""

    def leaves(request: Any) -> bool:
        return bool(request.member_epoch == -1)

    async with cluster_of(records=1) as cluster:
        async with queue_of(cluster, max_poll_interval_ms=1_000) as queue:
            await queue.receive()
            cluster.delay("ShareGroupHeartbeat", 0.5, where=leaves)
            await cluster.seen("ShareGroupHeartbeat", where=leaves)
        assert "could not leave" not in caplog.text
        assert not cluster.shares.by_id[GROUP].members


async def test_a_close_needs_no_more_than_a_long_poll(autojump_clock: Clock) -> None:
    async with cluster_of(records=1) as cluster:
        async with queue_of(cluster) as queue:
            async with await queue.receive():
                pass
            await trio.sleep(1.2)
            began = trio.current_time()
        assert trio.current_time() - began <= 0.5
        assert states(cluster) == ["acknowledged"]


async def test_a_cancelled_close_takes_a_second(autojump_clock: Clock) -> None:
    async with cluster_of(records=2) as cluster:
        with trio.CancelScope() as scope:
            async with queue_of(cluster) as queue:
                (await queue.receive()).accept()
                await queue.receive()
                await trio.sleep(1.2)
                began = trio.current_time()
                scope.cancel()
                await trio.sleep_forever()
        assert scope.cancelled_caught
        assert trio.current_time() - began <= 1
        assert states(cluster) == ["acknowledged", "available"]
        assert not cluster.shares.by_id[GROUP].members


@pytest.mark.parametrize(("cancelled", "limit"), [(True, 1.1), (False, 10.1)])
async def test_a_frozen_broker_does_not_hold_a_close(
    autojump_clock: Clock, cancelled: bool, limit: float
) -> None:
    async with cluster_of(records=2) as cluster:
        with trio.CancelScope() as scope:
            async with queue_of(cluster, close_timeout_ms=10_000) as queue:
                (await queue.receive()).accept()
                await trio.sleep(1.2)
                cluster.freeze(0)
                began = trio.current_time()
                if cancelled:
                    scope.cancel()
                    await trio.sleep_forever()
        assert trio.current_time() - began <= limit
        cluster.thaw(0)


async def test_a_close_waits_for_no_connection(autojump_clock: Clock) -> None:
    """A broker without a session gets nothing from a close."""
    async with cluster_of(2, records=1, nodes=2) as cluster:
        async with queue_of(cluster) as queue:
            for _ in range(2):
                (await queue.receive()).accept()
            await queue.flush()
            cluster.freeze(1)
            cluster.disconnect(1)
            await trio.sleep(3)
            began = trio.current_time()
        assert trio.current_time() - began < 0.5
        cluster.thaw(1)


async def test_a_close_before_the_join_is_quick(autojump_clock: Clock) -> None:
    async with cluster_of() as cluster:
        cluster.silence("ShareGroupHeartbeat")
        async with queue_of(cluster, close_timeout_ms=2_000):
            await trio.sleep(0.1)
            began = trio.current_time()
        assert trio.current_time() - began <= 2.1


async def test_an_open_block_ends_with_its_consumer(autojump_clock: Clock) -> None:
    """A task outside of the consumer's block works on one of its records."""
    raised = []

    async with cluster_of(records=1) as cluster, trio.open_nursery() as nursery:

        async def work(delivery: object) -> None:
            try:
                async with delivery:  # type: ignore[attr-defined]
                    await trio.sleep_forever()
            except LockLostError as error:
                raised.append(str(error))

        async with queue_of(cluster) as queue:
            nursery.start_soon(work, await queue.receive())
            await trio.sleep(1)
        await until(lambda: bool(raised))
        assert "the consumer is being closed" in raised[0]
        assert states(cluster) == ["available"]


async def test_late_records_of_a_close_are_given_back(autojump_clock: Clock) -> None:
    async with cluster_of() as cluster:
        cluster.delay("ShareFetch", 0.3, after=True)
        async with queue_of(cluster) as queue:
            await until(lambda: bool(queue.assignment))
            await trio.sleep(0.9)
            cluster.append("t", 0, [b"late"])
        assert states(cluster) == ["available"]
        assert not cluster.shares.sessions


async def test_a_receive_ends_with_the_consumer(autojump_clock: Clock) -> None:
    ended = []
    async with cluster_of() as cluster, trio.open_nursery() as nursery:
        async with queue_of(cluster) as queue:

            async def receive() -> None:
                with pytest.raises(trio.ClosedResourceError):
                    await queue.receive()
                ended.append(True)

            nursery.start_soon(receive)
            await trio.sleep(1)
    assert ended


async def test_an_accept_in_a_block_cut_by_a_close(autojump_clock: Clock) -> None:
    """The close has released the record, and ``acknowledged`` says so."""
    async with cluster_of(records=1) as cluster:
        deliveries = []

        async def handle(queue: Any) -> None:
            async with await queue.receive() as delivery:
                deliveries.append(delivery)
                delivery.accept()
                await trio.sleep_forever()

        async with trio.open_nursery() as nursery:

            async def handled(queue: Any) -> None:
                with pytest.raises(LockLostError, match="is being closed"):
                    await handle(queue)

            async with queue_of(cluster) as queue:
                nursery.start_soon(handled, queue)
                await until(lambda: bool(deliveries))
        assert states(cluster) == ["available"]
        with pytest.raises(LockLostError, match="is being closed"):
            await deliveries[0].acknowledged()


async def test_a_new_leader_during_a_close(autojump_clock: Clock) -> None:
    """The close waits for the brokers that there are, and for none that comes to lead now."""
    async with cluster_of(records=2, nodes=2) as cluster, trio.open_nursery() as nursery:

        async def move(queue: Any) -> None:
            await trio.sleep(0.2)
            cluster.move_leader("t", 0, 1)
            queue._parts.metadata.request_update()

        async with queue_of(cluster) as queue:
            (await queue.receive()).accept()
            cluster.delay("ShareAcknowledge", 2)
            nursery.start_soon(move, queue)
        assert queue._parts.metadata.snapshot.topics["t"].partitions[0].leader == 1


async def test_a_shortened_close_leaves_the_group(autojump_clock: Clock) -> None:
    """A cancellation meets a close that waits for a broker without a response."""
    async with cluster_of(records=2, nodes=2) as cluster:
        cluster.move_coordinator(1)
        with trio.CancelScope() as scope:
            async with queue_of(cluster) as queue:
                (await queue.receive()).accept()
                await trio.sleep(1.2)
                cluster.freeze(0)
                scope.deadline = trio.current_time() + 3
        assert trio.current_time() - scope.deadline <= 1
        assert not cluster.shares.by_id[GROUP].members
        cluster.thaw(0)


@pytest.mark.parametrize("codes", [(15, 15), (16, 14), (7, -1)])
async def test_a_cut_leave_makes_all_its_attempts(
    autojump_clock: Clock, codes: tuple[int, int]
) -> None:
    """The last acknowledgement has taken all but a quarter of a second."""
    async with cluster_of(records=2, nodes=2) as cluster:
        with trio.CancelScope() as scope:
            async with queue_of(cluster) as queue:
                (await queue.receive()).accept()
                await trio.sleep(1.2)
                cluster.delay("ShareAcknowledge", 5, None)
                (await queue.receive()).accept()
                for code in codes:
                    cluster.fail(
                        "ShareGroupHeartbeat", code, where=lambda each: each.member_epoch < 0
                    )
                began = trio.current_time()
                scope.cancel()
                await trio.sleep_forever()
        assert trio.current_time() - began <= 1
        assert not cluster.shares.by_id[GROUP].members


async def test_the_last_attempt_to_leave_ends_it(autojump_clock: Clock) -> None:
    """No wait follows the third attempt, because no attempt does."""
    async with cluster_of() as cluster:
        async with queue_of(cluster, retry_backoff_ms=500):
            await until(lambda: bool(cluster.shares.by_id))
            cluster.fail("ShareGroupHeartbeat", 15, None)
        beats = cluster.requests("ShareGroupHeartbeat")
        assert [seen.request.member_epoch for seen in beats] == [0, -1, -1, -1]
        assert trio.current_time() == beats[-1].time
