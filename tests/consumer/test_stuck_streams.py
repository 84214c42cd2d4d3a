"""Handlers that hang (KIP-62).

The member leaves when all hang, and names them when some do. Times are exact.
"""

from __future__ import annotations

import logging
from typing import Any

import pytest
import trio
from test_streams import T0, T1, Handlers, cluster_of, handled, member_of, until
from trio.testing import MockClock as Clock

import trikafka
from trikafka import Consumer, PartitionStream, Record, RetryPolicy
from trikafka.testing import ScriptedCluster

LIMIT = 50.0
SETTINGS: dict[str, Any] = {"max_poll_interval_ms": LIMIT * 1000}
PROTOCOLS = ["classic", "consumer"]


def left_at(cluster: ScriptedCluster) -> list[float]:
    """Return the times at which a member left."""
    heartbeats = [
        seen.time
        for seen in cluster.requests("ConsumerGroupHeartbeat")
        if seen.request.member_epoch < 0
    ]
    return sorted([seen.time for seen in cluster.requests("LeaveGroup")] + heartbeats)


def warnings(caplog: pytest.LogCaptureFixture, tp: trikafka.TopicPartition = T0) -> list[str]:
    lines = [record.message for record in caplog.records if record.name == "trikafka.streams"]
    return [line for line in lines if line.startswith(f"the handler of {tp} has not returned")]


class Stuck:
    """A handler that hangs on some records until they are released."""

    def __init__(self, *offsets: tuple[int, int]) -> None:
        self.offsets = set(offsets)
        self.begun: dict[tuple[int, int], float] = {}
        self.let_go = {each: trio.Event() for each in offsets}
        self.done: list[tuple[int, int]] = []

    async def __call__(self, record: Record) -> None:
        at = record.partition, record.offset
        if at in self.let_go and not self.let_go[at].is_set():
            self.begun.setdefault(at, trio.current_time())
            await self.let_go[at].wait()
        self.done.append(at)


class Listener(trikafka.RebalanceListener):
    def __init__(self) -> None:
        self.lost: list[tuple[float, Any]] = []

    async def on_partitions_lost(self, partitions: Any) -> None:
        self.lost.append((trio.current_time(), sorted(partitions)))


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_member_leaves_when_all_handlers_hang(
    autojump_clock: Clock, protocol: str, caplog: pytest.LogCaptureFixture
) -> None:
    stuck, listener = Stuck((0, 1), (1, 2)), Listener()
    settings = SETTINGS | {"group_protocol": protocol}
    async with cluster_of(2, records=4) as cluster, member_of(cluster, **settings) as consumer:
        consumer.subscribe(["t"], listener)

        async def late(record: Record) -> None:
            if record.partition == 1:
                await trio.sleep(5)
            await stuck(record)

        async with handled(consumer, handlers := Handlers(late)):
            await until(lambda: len(stuck.begun) == 2)
            due = stuck.begun[1, 2] - 5 + LIMIT
            await trio.sleep_until(due - 0.01)
            assert left_at(cluster) == []
            assert [
                tp for tp, why in consumer.health().stalled.items() if "its handler has held" in why
            ] == [T0]
            await trio.sleep_until(due + 0.01)
            assert left_at(cluster) == [pytest.approx(due)]
            assert listener.lost == [(pytest.approx(due), [T0, T1])]
            assert all(stream.ended for stream in handlers.streams)
            (reason,) = consumer.health().reasons
            assert "t-0, t-1" in reason
            assert "it joins again when one of them returns" in reason
            async with (
                member_of(cluster, **settings) as second,
                handled(second, theirs := Handlers()),
            ):
                # It reads what was not committed, and the records that hang here.
                await until(lambda: theirs.count >= 5, 0.1)
                await trio.sleep(3 * LIMIT)
                assert len(left_at(cluster)) == 1
                assert consumer.statistics().state == "stale"
                stuck.let_go[0, 1].set()
                await until(
                    lambda: (
                        consumer.statistics().state == "stable" and len(consumer.assignment()) == 1
                    )
                )
            await until(lambda: len(consumer.assignment()) == 2)
    assert "leave_when_stuck" in caplog.text


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_hanging_handlers_are_named(
    autojump_clock: Clock, protocol: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The other stream is idle and would handle the next record."""
    stuck = Stuck((0, 1))
    async with (
        cluster_of(2, records=3) as cluster,
        member_of(cluster, **SETTINGS, group_protocol=protocol) as consumer,
    ):
        async with handled(consumer, handlers := Handlers(stuck)):
            await until(lambda: handlers.count == 4)
            began = stuck.begun[0, 1]
            await trio.sleep_until(began + LIMIT - 0.1)
            assert not warnings(caplog)
            assert (
                T0 not in consumer.health().stalled or "held" not in consumer.health().stalled[T0]
            )
            await trio.sleep_until(began + LIMIT + 0.1)
            health = consumer.health()
            assert not health.ok
            assert health.stalled == {T0: "its handler has held the records from offset 1 for 50 s"}
            assert len(warnings(caplog)) == 1
            await trio.sleep_until(began + LIMIT + 299.9)
            assert len(warnings(caplog)) == 1
            await trio.sleep_until(began + LIMIT + 300.1)
            assert len(warnings(caplog)) == 2
            assert left_at(cluster) == []
            stuck.let_go[0, 1].set()
            await until(lambda: handlers.count == 6)
            assert consumer.health().ok


@pytest.mark.parametrize("how", ["the setting", "paused"])
async def test_long_handlers_may_pause_or_opt_out(autojump_clock: Clock, how: str) -> None:
    stuck = Stuck((0, 1), (1, 1))
    async with cluster_of(2, records=3) as cluster:
        async with member_of(
            cluster, **SETTINGS, leave_when_stuck=how != "the setting"
        ) as consumer:

            async def handle(record: Record) -> None:
                if how == "paused" and record.partition == 0:
                    consumer.pause([T0])
                await stuck(record)
                consumer.resume([T0])

            async with handled(consumer, handlers := Handlers(handle)):
                await until(lambda: len(stuck.begun) == 2)
                await trio.sleep(10 * LIMIT)
                assert left_at(cluster) == []
                assert set(consumer.health().stalled) == ({T1} if how == "paused" else {T0, T1})
                for event in stuck.let_go.values():
                    event.set()
                await until(lambda: handlers.count == 6)


@pytest.mark.parametrize("pause", [LIMIT - 0.5, 2 * LIMIT - 0.5, 3 * LIMIT - 0.5])
async def test_ended_pause_is_no_hang(autojump_clock: Clock, pause: float) -> None:
    """The handler returns a second later. In that second the member checks for stuck handlers."""
    async with cluster_of(1, records=3) as cluster, member_of(cluster, **SETTINGS) as consumer:

        async def handle(record: Record) -> None:
            consumer.pause([T0])
            await trio.sleep(pause)
            consumer.resume([T0])
            await trio.sleep(1)

        async with handled(consumer, handlers := Handlers(handle)):
            await until(lambda: handlers.count == 3, 1)
            assert left_at(cluster) == []


async def test_paused_stream_does_not_keep_the_member(autojump_clock: Clock) -> None:
    """It waits for nothing. On the loss it ends, which is no reason to join again."""
    stuck = Stuck((0, 1))
    async with cluster_of(2, records=3) as cluster, member_of(cluster, **SETTINGS) as consumer:
        async with handled(consumer, handlers := Handlers(stuck)):
            await until(lambda: handlers.count == 4)
            consumer.pause([T1])
            await until(lambda: consumer.statistics().state == "stale", 1)
            await trio.sleep(3 * LIMIT)
            assert consumer.statistics().state == "stale"
            assert len(cluster.requests("JoinGroup")) <= 2


async def test_cancelled_handler_counts_as_returned(autojump_clock: Clock) -> None:
    scopes: list[trio.CancelScope] = []

    async def one(stream: PartitionStream) -> None:
        with trio.CancelScope() as scope:
            scopes.append(scope)
            async for _ in stream:
                await trio.sleep_forever()

    async with (
        cluster_of(1, records=3) as cluster,
        member_of(cluster, **SETTINGS) as consumer,
        trio.open_nursery() as nursery,
    ):

        async def run() -> None:
            async for stream in consumer.partitions():
                nursery.start_soon(one, stream)

        nursery.start_soon(run)
        await until(lambda: consumer.statistics().state == "stale", 1)
        await trio.sleep(2 * LIMIT)
        assert consumer.statistics().state == "stale"
        scopes[0].cancel()
        await until(lambda: consumer.statistics().state == "stable")
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("how", ["receive", "iteration"])
async def test_new_reader_joins_again(autojump_clock: Clock, how: str, protocol: str) -> None:
    async with (
        cluster_of(1, records=3) as cluster,
        member_of(cluster, **SETTINGS, group_protocol=protocol) as consumer,
    ):
        async with trio.open_nursery() as nursery:

            async def one(stream: PartitionStream) -> None:
                async for _ in stream:
                    await trio.sleep_forever()

            with trio.CancelScope() as iterating:

                async def stop() -> None:
                    await until(lambda: consumer.statistics().state == "stale", 1)
                    iterating.cancel()

                nursery.start_soon(stop)
                async for stream in consumer.partitions():
                    nursery.start_soon(one, stream)
            with trio.fail_after(10):
                source = consumer if how == "receive" else await anext(consumer.partitions())
                assert (await source.receive()).offset == 0
            nursery.cancel_scope.cancel()


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("call", ["aclose", "unsubscribe"])
async def test_stale_member_may_leave(autojump_clock: Clock, call: str, protocol: str) -> None:
    """Its wait for a handler ends."""
    async with (
        cluster_of(1, records=3) as cluster,
        member_of(cluster, **SETTINGS, group_protocol=protocol) as consumer,
    ):
        async with handled(consumer, Handlers(Stuck((0, 0)))):
            await until(lambda: consumer.statistics().state == "stale", 1)
            await trio.sleep(LIMIT)
            with trio.fail_after(5):
                await getattr(consumer, call)()
            if call == "unsubscribe":
                consumer.subscribe(["t"])
                with trio.fail_after(5):
                    assert (await consumer.receive()).offset == 0


async def running(consumer: Consumer, handler: Any, options: dict[str, Any]) -> None:
    await trikafka.run_tasks(consumer, handler, **options)


TASKS = SETTINGS | {"enable_auto_commit": False}


async def test_progressing_task_is_not_stuck(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """A batch of 300 records takes 300 s, and one record of another key hangs.

    The log names that record, and the member stays.
    """
    done: list[int] = []

    async def handler(record: Record) -> None:
        if record.offset == 3:
            await trio.sleep_forever()
        await trio.sleep(1)
        done.append(record.offset)

    async with (
        cluster_of(1, records=300) as cluster,
        member_of(cluster, **TASKS) as consumer,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(running, consumer, handler, {"concurrency": 2})
        await until(lambda: len(done) >= 298, 1)
        assert left_at(cluster) == []
        (warned,) = warnings(caplog)
        assert "has held the record at offset 3 for 50 s" in warned
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("concurrency", [1, 3])
async def test_run_with_only_hanging_tasks_leaves(autojump_clock: Clock, concurrency: int) -> None:
    """It joins again when one returns. Tasks that wait for hanging ones are no reason to."""
    stuck = Stuck((0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (1, 4))
    async with (
        cluster_of(2, records=9) as cluster,
        member_of(cluster, **TASKS) as consumer,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(running, consumer, stuck, {"concurrency": concurrency})
        await until(lambda: len(stuck.begun) == 2 * concurrency)
        due = max(stuck.begun.values()) + LIMIT
        await trio.sleep_until(due + 0.01)
        assert left_at(cluster) == [pytest.approx(due)]
        await trio.sleep(3 * LIMIT)
        assert consumer.statistics().state == "stale"
        for at in [(0, 1), (0, 2), (0, 3)][:concurrency]:
            stuck.let_go[at].set()
        await until(lambda: consumer.statistics().state == "stable")
        for at in [(0, 1), (0, 2), (0, 3)]:
            stuck.let_go[at].set()
        await until(lambda: (0, 8) in stuck.done)
        assert cluster.committed("g", T1) is None or cluster.committed("g", T1).offset <= 2  # type: ignore[union-attr]
        await trio.sleep(2 * LIMIT)
        assert T1 in consumer.health().stalled
        nursery.cancel_scope.cancel()


async def test_waiting_tasks_do_not_join_again(autojump_clock: Clock) -> None:
    stuck = Stuck((0, 1), (1, 1), (0, 2))
    async with (
        cluster_of(2, records=9) as cluster,
        member_of(cluster, **TASKS) as consumer,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(running, consumer, stuck, {})
        await until(lambda: consumer.statistics().state == "stale", 1)
        stuck.let_go[0, 1].set()
        await until(lambda: (0, 2) in stuck.begun)
        await until(lambda: consumer.statistics().state == "stale", 1)
        await trio.sleep(5 * LIMIT)
        assert consumer.statistics().state == "stale"
        assert len(left_at(cluster)) == 2
        stuck.let_go[1, 1].set()
        await until(lambda: (1, 8) in stuck.done)
        nursery.cancel_scope.cancel()


async def test_record_in_backoff_is_not_stuck(autojump_clock: Clock) -> None:
    failed: list[float] = []

    async def handler(record: Record) -> None:
        if len(failed) < 2:
            failed.append(trio.current_time())
            raise ConnectionError

    policy = RetryPolicy(ConnectionError, backoff_ms=4_000 * LIMIT, backoff_max_ms=4_000 * LIMIT)
    async with (
        cluster_of(1, records=1) as cluster,
        member_of(cluster, **TASKS) as consumer,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(running, consumer, handler, {"retry": policy})
        await until(lambda: cluster.committed("g", T0) is not None, 1)
        assert left_at(cluster) == []
        nursery.cancel_scope.cancel()


async def test_leave_line_names_the_remedies(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    async with cluster_of(1, records=3) as cluster, member_of(cluster, **SETTINGS) as consumer:
        async with handled(consumer, Handlers(Stuck((0, 0)))):
            await until(lambda: consumer.statistics().state == "stale", 1)
    (line,) = [
        each.message
        for each in caplog.records
        if each.name == "trikafka.membership" and each.levelno == logging.WARNING
    ]
    assert line == (
        "group g: the handlers of all streams in use (t-0) have held their records for 50000 ms, "
        "so this member leaves the group,"
        " until one of them returns; raise max_poll_interval_ms (now 50000), pause a partition "
        "whose record takes long, or set"
        " leave_when_stuck=False"
    )
