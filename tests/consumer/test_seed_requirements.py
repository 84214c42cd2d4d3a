"""Requirements of the design documents of Java's consumer (seeds 000, 001 and 003) that no other
test shows.
"""

from __future__ import annotations

import logging
import threading
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing
from consuming import (
    T0,
    T1,
    T2,
    T3,
    RecordingListener,
    cluster_of,
    consumer_of,
    member_of,
    until,
    values,
)
from trio.testing import MockClock as Clock

from trikafka import hookimpl
from trikafka.config import ConsumerConfig, ProducerConfig
from trikafka.errors import CommitFailedError, KafkaTimeoutError
from trikafka.testing import ScriptedCluster

# --- seed 000: timeouts ---------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_polls_with_timeout_0_make_progress(protocol: str) -> None:
    """``poll(0)`` in a loop: the member joins, its listener runs, and records arrive.

    In real time.
    """
    events: list[Any] = []
    async with (
        cluster_of(2, records=3) as cluster,
        consumer_of(cluster, group_id="g", group_protocol=protocol) as consumer,
    ):
        consumer.subscribe(["t"], RecordingListener(events))
        got: list[tuple[int, int]] = []
        with trio.fail_after(240):
            while len(got) < 6:
                batch = await consumer.receive_batch(timeout=0)
                got += [(record.partition, record.offset) for record in batch]
        assert sorted(got) == [(partition, offset) for partition in range(2) for offset in range(3)]
        assert events == [("assigned", [T0, T1])]


@pytest.mark.parametrize(
    "api",
    [
        "Metadata",
        "FindCoordinator",
        "JoinGroup",
        "SyncGroup",
        "OffsetFetch",
        "ListOffsets",
        "Fetch",
    ],
)
async def test_poll_limit_covers_every_request(api: str, autojump_clock: Clock) -> None:
    """Metadata, the coordinator, the group and positions too.

    Java's first ``poll(long)`` waited for these without a limit.
    """
    # max_poll_interval_ms is also how long a JoinGroup may take.
    settings = {
        "session_timeout_ms": 6_000,
        "max_poll_interval_ms": 10_000,
    }
    async with (
        ScriptedCluster(topics={"other": 1}) as cluster,
        consumer_of(cluster, group_id="g", **settings) as consumer,
    ):
        cluster.create_topic("t", 1)
        cluster.append("t", 0, [b"0"])
        silence = cluster.silence(api)
        consumer.subscribe(["t"])
        start = trio.current_time()
        for number in range(3):
            assert not await consumer.receive_batch(timeout=0.7)
            assert trio.current_time() - start == pytest.approx((number + 1) * 0.7)
        assert cluster.requests(api)
        silence.remove()
        with trio.fail_after(120):
            assert await values(consumer, 1) == [b"0"]  # work cut by the limits continues by itself


@pytest.mark.parametrize("fault", ["frozen", "killed", "black hole", "error"])
@pytest.mark.parametrize("how", ["commit", "stream.commit", "committed", "end_offsets"])
async def test_calls_of_a_member_keep_their_limits(
    how: str, fault: str, autojump_clock: Clock
) -> None:
    """As tests/deadlines has it for consumers without a group.

    Here heartbeats, fetches and auto commit run beside the call.
    """
    async with cluster_of(records=3) as cluster, member_of(cluster) as consumer:
        stream = await anext(aiter(consumer.partitions()))
        await stream.receive()
        calls = {
            "commit": lambda: consumer.commit({T0: 1}, timeout=0.7),
            "stream.commit": lambda: stream.commit(timeout=0.7),
            "committed": lambda: consumer.committed([T0], timeout=0.7),
            "end_offsets": lambda: consumer.end_offsets([T0], timeout=0.7),
        }
        break_it = {
            "frozen": lambda: cluster.freeze(0),
            "killed": lambda: cluster.stop(0),
            "black hole": lambda: cluster.lose(0),
            "error": lambda: (
                [cluster.fail(api, 14, times=None) for api in ("OffsetCommit", "OffsetFetch")]
                + [cluster.fail("ListOffsets", 6, times=None)]
            ),
        }
        break_it[fault]()
        start = trio.current_time()
        with pytest.raises(KafkaTimeoutError) as caught:
            await calls[how]()
        assert 0.7 <= round(trio.current_time() - start, 6) <= 0.725
        assert caught.value.limit == 0.7
        assert caught.value.attempts >= 1
        assert caught.value.last_error is not None


async def test_thread_may_cancel_a_receive() -> None:
    """The recipe of docs/java.md. In real time."""
    async with cluster_of(records=1) as cluster, consumer_of(cluster) as consumer:
        consumer.assign([T0])
        assert await values(consumer, 1) == [b"0"]
        token = trio.lowlevel.current_trio_token()
        scope = trio.CancelScope()
        thread = threading.Timer(
            0.05, lambda: trio.from_thread.run_sync(scope.cancel, trio_token=token)
        )
        thread.start()
        with trio.fail_after(240), scope:
            await consumer.receive()
        assert scope.cancelled_caught
        cluster.append("t", 0, [b"1"])
        with trio.fail_after(240):
            assert await values(consumer, 1) == [b"1"]


# --- seed 001: what is done in the background, and what in the user's task ------------------------


async def test_old_subscription_is_not_delivered(
    autojump_clock: Clock,
) -> None:
    """Subscribing clears the fetch buffer of topics no longer subscribed.

    Other records stay and are not fetched twice.
    """
    async with ScriptedCluster(topics={"a": 1, "b": 1, "c": 1}) as cluster:
        for topic in "abc":
            cluster.append(topic, 0, [b"%s%d" % (topic.encode(), number) for number in range(50)])
        async with consumer_of(cluster, group_id="g", max_poll_records=1) as consumer:
            consumer.subscribe(["a", "b"])
            await until(lambda: consumer.statistics().buffered_bytes > 1_000)
            seen = [(await consumer.receive()).topic for _ in range(2)]
            assert "a" in seen or "b" in seen
            consumer.subscribe(["b", "c"])
            after = [await consumer.receive() for _ in range(100 - seen.count("b"))]
            assert {record.topic for record in after} == {"b", "c"}
            assert [record.offset for record in after if record.topic == "b"] == list(
                range(seen.count("b"), 50)
            )


async def test_listeners_run_in_the_callers_task(
    autojump_clock: Clock,
) -> None:
    """Assigned inside a receive, revoked inside ``unsubscribe``, never in a task of the client."""
    tasks: list[tuple[str, str]] = []

    async def note(what: str) -> None:
        tasks.append((what, trio.lowlevel.current_task().name))

    async def receiving() -> None:
        await consumer.receive()

    async def leaving() -> None:
        await consumer.unsubscribe()

    async with cluster_of(records=3) as cluster, consumer_of(cluster, group_id="g") as consumer:
        consumer.subscribe(["t"], RecordingListener([], then=note))
        for work in (receiving, leaving):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(work, name=work.__name__)
    assert tasks == [("assigned", "receiving"), ("revoked", "leaving")]


async def test_second_listener_error_is_logged(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    async def plugin_fails(what: str) -> None:
        raise LookupError(f"of the plugin: {what}")

    async def fail(what: str) -> None:
        raise LookupError(f"of the user: {what}")

    plugin = SimpleNamespace(
        trikafka_rebalance_listener=hookimpl(
            lambda context: RecordingListener([], then=plugin_fails)
        )
    )
    async with (
        cluster_of(records=1) as cluster,
        consumer_of(cluster, group_id="g", plugins=[plugin]) as consumer,
    ):
        consumer.subscribe(["t"], RecordingListener([], then=fail))
        with pytest.raises(Exception, match="of the plugin: assigned"):
            await consumer.receive()
        assert await values(consumer, 1) == [b"0"]
        with pytest.raises(LookupError, match="of the user: revoked"):
            await consumer.unsubscribe()
    logged = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(logged) == 2
    assert "on_partitions_assigned" in logged[0]
    assert "of the user: assigned" in logged[0]
    assert "on_partitions_revoked" in logged[1]
    assert "of the plugin: revoked" in logged[1]


async def test_unsubscribe_commits_revokes_and_leaves(
    autojump_clock: Clock,
) -> None:
    """The order of seed 001's test plan. Nothing is fetched during the commit."""
    order: list[str] = []

    async def note(what: str) -> None:
        order.append(what)

    def noting(what: str, seconds: float = 0) -> Any:
        async def handler(request: Any, default: Any) -> Any:
            await trio.sleep(seconds)
            order.append(what)
            return await default()

        return handler

    async with (
        cluster_of(records=20) as cluster,
        consumer_of(cluster, group_id="g", max_poll_records=1) as consumer,
    ):
        consumer.subscribe(["t"], RecordingListener([], then=note))
        await consumer.receive()
        await consumer.receive()
        cluster.move_coordinator(0)
        cluster.fail("OffsetCommit", 16)  # NOT_COORDINATOR: it has to be found again
        cluster.on("OffsetCommit", noting("commit", 5))
        cluster.on("FindCoordinator", noting("find"))
        cluster.on("LeaveGroup", noting("leave"))
        await trio.sleep(1)
        start = trio.current_time()
        await consumer.unsubscribe()
        assert order[:1] == ["assigned"]
        assert [what for what in order[1:] if what != "find"] == ["commit", "revoked", "leave"]
        assert order.index("find") < order.index("commit")
        assert trio.current_time() > start + 5
        assert not [seen for seen in cluster.requests("Fetch") if seen.time > start]
        assert cluster.committed("g", T0).offset == 2


# --- seed 003: the poll interval ------------------------------------------------------------------


async def test_overdue_static_member_does_not_leave(
    autojump_clock: Clock,
) -> None:
    """As in Java's client: its place is kept for a session."""
    settings = {
        "group_instance_id": "one",
        "session_timeout_ms": 30_000,
        "max_poll_interval_ms": 30_000,
    }
    events: list[Any] = []
    async with (
        cluster_of(records=5) as cluster,
        consumer_of(cluster, group_id="g", **settings) as consumer,
    ):
        consumer.subscribe(["t"], RecordingListener(events))
        await consumer.receive()
        came, generation = trio.current_time(), cluster.group("g").generation
        await trio.sleep(45)
        assert consumer.statistics().state == "stale"
        assert not cluster.requests("LeaveGroup")
        assert max(seen.time for seen in cluster.requests("Heartbeat")) <= came + 30
        assert cluster.group("g").members
        assert cluster.group("g").generation == generation
        with pytest.raises(CommitFailedError, match="max_poll_interval_ms"):
            await consumer.commit()
        assert await values(consumer, 1) == [b"0"]
        assert events == [("assigned", [T0]), ("lost", [T0]), ("assigned", [T0])]
        assert len(cluster.group("g").members) == 1


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
async def test_overdue_member_leaves_during_rebalance(strategy: str, autojump_clock: Clock) -> None:
    """Its join waits for another member, and its own user's time runs all the same."""
    settings = {
        "session_timeout_ms": 6_000,
        "heartbeat_interval_ms": 1_000,
        "max_poll_interval_ms": 60_000,
        "partition_assignment_strategy": [strategy],
    }
    async with (
        cluster_of(2, records=50) as cluster,
        member_of(cluster, **settings | {"max_poll_interval_ms": 300_000}) as slow,
    ):
        await slow.receive_batch()
        async with member_of(cluster, **settings) as consumer:
            came = trio.current_time()  # it joins, and an eager group waits for `slow`
            await trio.sleep(100)
            assert consumer.statistics().state == "stale"
            assert [round(seen.time - came) for seen in cluster.requests("LeaveGroup")] == [60]
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_drain, slow)
                await consumer.receive_batch(timeout=60)  # there may be nothing left to read
                assert consumer.statistics().state == "stable"
                assert len(consumer.assignment()) == len(slow.assignment()) == 1
                nursery.cancel_scope.cancel()


async def _drain(consumer: Any) -> None:
    async for _ in consumer:
        pass


async def test_small_batches_are_fair_to_partitions(autojump_clock: Clock) -> None:
    """KIP-41, which seed 003 builds on: one fetch of a partition is delivered, then others have
    their turn.
    """
    async with cluster_of(4) as cluster:
        for number in range(4):
            for _ in range(25):  # batches of 20 records: one a fetch
                cluster.append("t", number, [b"x"] * 20)
        async with consumer_of(
            cluster, max_poll_records=10, max_partition_fetch_bytes=1
        ) as consumer:
            consumer.assign([T0, T1, T2, T3])
            turns = []
            for _ in range(80):
                await trio.testing.wait_all_tasks_blocked()
                batch = await consumer.receive_batch()
                assert len(batch) == 10
                turns.append(batch.partition)
        assert turns[::2] == turns[1::2]  # the two halves of a fetch
        for turn in range(0, 80, 8):
            assert set(turns[turn : turn + 8]) == {0, 1, 2, 3}


async def test_very_long_intervals_are_allowed(autojump_clock: Clock) -> None:
    """With Java's largest number heartbeats and commits continue."""
    settings = {"max_poll_interval_ms": 2**31 - 1, "default_api_timeout_ms": 2**31 - 1}
    async with cluster_of(records=3) as cluster, member_of(cluster, **settings) as consumer:
        assert await values(consumer, 1) == [b"0"]
        assert cluster.requests("JoinGroup")[-1].request.rebalance_timeout_ms == 2**31 - 1
        await trio.sleep(400)  # longer than the default
        assert await values(consumer, 1) == [b"1"]
        assert consumer.statistics().state == "stable"
        assert not cluster.requests("LeaveGroup")


# --- defaults -------------------------------------------------------------------------------------


def test_defaults_of_the_seeds_hold() -> None:
    """Deviations are Java's present defaults, or docs/java.md gives the reason ("The consumer")."""
    consumer = ConsumerConfig.build({"bootstrap_servers": "a:1"})
    producer = ProducerConfig.build({"bootstrap_servers": "a:1"})
    assert consumer.default_api_timeout_ms == 60_000
    assert consumer.request_timeout_ms == 30_000
    assert consumer.retry_backoff_ms == 100
    assert consumer.max_poll_interval_ms == 300_000
    assert consumer.session_timeout_ms == 45_000  # seed 003: 10 s; Java since KIP-735: 45 s
    assert consumer.max_poll_records is None  # seed 003: 500
    assert consumer.heartbeat_interval_ms == 500  # Java: 3 s
    assert producer.delivery_timeout_ms == 120_000
    assert producer.retries is None  # Java's largest number: until delivery_timeout_ms
    assert producer.max_in_flight_requests_per_connection == 5
