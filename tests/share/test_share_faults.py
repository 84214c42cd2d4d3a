"""What a hostile or unlucky moment must not do to a share consumer."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest
import trio
from sharing import GROUP, cluster_of, queue_of, quiet, shared, states, until
from trio.testing import MockClock as Clock

import trikafka
from trikafka._managers.share import fetch
from trikafka.error_codes import ErrorCode
from trikafka.errors import (
    AcknowledgementError,
    DamagedResponseError,
    LockLostError,
    TrikafkaError,
    from_code,
)
from trikafka.testing.share import RecordState


async def test_a_close_settles_what_a_fetch_carries(autojump_clock: Clock) -> None:
    """A task outside of the consumer's block waits for the outcome of an acknowledgement."""
    outcome: list[str] = []
    async with cluster_of(records=1) as cluster, trio.open_nursery() as nursery:

        async def wait(delivery: Any) -> None:
            await delivery.acknowledged()
            outcome.append("accepted")

        async with queue_of(cluster, ack_linger_ms=10_000) as queue:
            delivery = await queue.receive()
            await trio.sleep(1.2)
            delivery.accept()
            # The next long poll carries it.
            await until(
                lambda: any(
                    part.acknowledgement_batches
                    for seen in cluster.requests("ShareFetch")
                    for topic in seen.request.topics
                    for part in topic.partitions
                )
            )
            nursery.start_soon(wait, delivery)
            await trio.sleep(0.1)
        with trio.fail_after(5):
            await until(lambda: bool(outcome))
        assert queue.statistics().accepted == 1


async def test_a_cut_close_fails_what_has_no_outcome(autojump_clock: Clock) -> None:
    raised: list[Exception] = []
    async with cluster_of(records=1) as cluster, trio.open_nursery() as nursery:

        async def wait(delivery: Any) -> None:
            try:
                await delivery.acknowledged()
            except TrikafkaError as error:
                raised.append(error)

        async with queue_of(cluster, close_timeout_ms=2_000) as queue:
            delivery = await queue.receive()
            await trio.sleep(1.2)
            cluster.freeze(0)
            delivery.accept()
            nursery.start_soon(wait, delivery)
            await trio.sleep(0.7)
        with trio.fail_after(5):
            await until(lambda: bool(raised))
        assert isinstance(raised[0], AcknowledgementError)
        cluster.thaw(0)


async def test_a_lost_session_takes_all_partitions(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session ends while the first partition of a response is decoded in a thread."""
    began = trio.Event()
    go_on = trio.Event()
    quick = fetch.is_quick
    slow = [True]

    async def run_sync(decode: Callable[[], Any], **_: Any) -> Any:
        began.set()
        await go_on.wait()
        return decode()

    async with cluster_of(2, records=3) as cluster:
        monkeypatch.setattr(fetch, "is_quick", lambda part: not slow or (slow.pop() and False))
        monkeypatch.setattr(fetch.trio.to_thread, "run_sync", run_sync)
        async with queue_of(cluster) as queue:
            await began.wait()
            cluster.disconnect(0)
            await trio.sleep(0.01)
            go_on.set()
            seen = [await queue.receive() for _ in range(6)]
            assert [each.delivery_count for each in seen] == [2] * 6
        assert quick


async def test_a_receive_while_leaving_joins_again(autojump_clock: Clock) -> None:
    """The member is overdue and leaves; the program receives before that has ended."""
    async with cluster_of(records=1) as cluster:
        async with queue_of(cluster, max_poll_interval_ms=20_000) as queue:
            (await queue.receive()).accept()
            cluster.delay("ShareGroupHeartbeat", 1)
            await until(lambda: queue.health().state == "stale")
            cluster.append("t", 0, [b"more"])
            with trio.fail_after(60):
                assert (await queue.receive()).record.value == b"more"


@pytest.mark.parametrize(
    "ranges",
    [
        [(0, 2**62, 1)],
        [(-5, 2, 1)],
        [(2, 0, 1)],
        [(0, 1, 1), (1, 2, 1)],
    ],
)
async def test_impossible_ranges_end_no_client(autojump_clock: Clock, ranges: Any) -> None:
    quiet()
    async with cluster_of(records=3) as cluster:

        async def absurd(request: Any, default: Callable[[], Awaitable[Any]]) -> Any:
            response = await default()
            for topic in response.responses or ():
                for part in topic.partitions:
                    kind = type(part.acquired_records[0])
                    part.acquired_records = [
                        kind(first_offset=first, last_offset=last, delivery_count=count)
                        for first, last, count in ranges
                    ]
            return response

        cluster.on("ShareFetch", absurd, 1)
        cluster.shares.times.delivery_limit = 100
        async with queue_of(cluster) as queue:
            with trio.fail_after(100):
                got = [await queue.receive() for _ in range(3)]
            assert [each.record.offset for each in got] == [0, 1, 2]
            assert [each.delivery_count for each in got] == [2] * 3


async def test_a_partition_not_fetched_is_refused(autojump_clock: Clock) -> None:
    quiet()
    async with cluster_of(records=3) as cluster:
        cluster.shares.times.delivery_limit = 100

        async def renamed(request: Any, default: Callable[[], Awaitable[Any]]) -> Any:
            response = await default()
            for topic in response.responses or ():
                topic.partitions[0].partition_index = 7
            return response

        async def doubled(request: Any, default: Callable[[], Awaitable[Any]]) -> Any:
            response = await default()
            for topic in response.responses or ():
                topic.partitions *= 2
            return response

        for change in (renamed, doubled):
            cluster.on("ShareFetch", change, 1)
        async with queue_of(cluster) as queue:
            got = [await queue.receive() for _ in range(3)]
            assert {each.record.partition for each in got} == {0}
            assert [each.record.offset for each in got] == [0, 1, 2]


@pytest.mark.parametrize("lock", [0, -1, -(2**31), 20])
async def test_locks_without_time_do_not_run_hot(autojump_clock: Clock, lock: int) -> None:
    """The broker itself ends the locks at once, and delivers again."""
    quiet()
    async with cluster_of(records=3) as cluster:
        cluster.shares.times.delivery_limit = 10_000
        cluster.shares.times.lock = 0.02
        damaged = True

        async def lockless(request: Any, default: Callable[[], Awaitable[Any]]) -> Any:
            response = await default()
            if damaged:
                response.acquisition_lock_timeout_ms = lock
            return response

        cluster.on("ShareFetch", lockless)
        async with queue_of(cluster) as queue:
            await trio.sleep(10)
            assert len(cluster.requests("ShareFetch")) < 200
            error = queue.health().last_error
            assert lock > 0 or f"a lock of {lock} ms" in str(error)
            cluster.shares.times.lock = 30
            damaged = False
            with suppress(DamagedResponseError):
                await queue.receive()
            with trio.fail_after(60):
                (await queue.receive()).accept()


async def test_a_renewal_by_no_time_shortens_nothing(autojump_clock: Clock) -> None:
    quiet()
    async with cluster_of(records=1) as cluster:

        async def lockless(request: Any, default: Callable[[], Awaitable[Any]]) -> Any:
            response = await default()
            response.acquisition_lock_timeout_ms = 0
            return response

        cluster.on("ShareAcknowledge", lockless)
        async with queue_of(cluster) as queue:
            delivery = await queue.receive()
            ends = delivery.deadline
            with pytest.raises(LockLostError, match="its time is over"):
                async with delivery:
                    await trio.sleep_forever()
            assert trio.current_time() == pytest.approx(ends)
            assert 10 < len(cluster.requests("ShareAcknowledge")) < 100


async def test_sessions_refused_do_not_run_hot(autojump_clock: Clock) -> None:
    quiet()
    async with cluster_of(records=3) as cluster:
        cluster.shares.times.delivery_limit = 10_000
        cluster.fail("ShareFetch", 123, None, where=lambda each: each.share_session_epoch > 0)
        async with queue_of(cluster):
            await trio.sleep(10)
            assert len(cluster.requests("ShareFetch")) < 200


async def test_a_close_waits_for_no_absent_broker(autojump_clock: Clock) -> None:
    async with cluster_of(2, records=1, nodes=2) as cluster:
        async with queue_of(cluster) as queue:
            await queue.receive()
            await queue.receive()
            cluster.stop(1)
            await trio.sleep(20)
            began = trio.current_time()
        assert trio.current_time() - began < 1


async def test_a_lifted_refusal_is_survived(autojump_clock: Clock) -> None:
    """A missing permission is raised by one receive, and tried again."""
    quiet()
    async with cluster_of(records=1) as cluster:
        cluster.fail("ShareGroupHeartbeat", 30, 3)
        async with queue_of(cluster) as queue:
            refusals = 0
            with trio.fail_after(60):
                while True:
                    try:
                        assert (await queue.receive()).record.offset == 0
                        break
                    except TrikafkaError:
                        refusals += 1
            assert 1 <= refusals <= 3
            assert queue.health().ok


async def test_long_first_fetch_is_no_standstill(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """A broker may hold a fetch longer than stall_warning_ms if the settings ask for it."""
    settings = {"fetch_max_wait_ms": 25_000, "stall_warning_ms": 5000}
    async with cluster_of() as cluster, queue_of(cluster, **settings) as queue:
        with trio.move_on_after(60):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(queue.receive)
                while True:
                    await trio.sleep(1)
                    assert queue.health().ok
        assert not caplog.records


async def test_a_leader_asked_again_is_no_standstill(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """A partition is assigned whose leader had nothing else for this member for a minute."""
    async with cluster_of(nodes=2) as cluster, queue_of(cluster) as queue:
        with trio.move_on_after(3):
            await queue.receive()
        first = cluster.partition("t", 0).leader
        assert first is not None
        cluster.move_leader("t", 0, 1 - first)
        await trio.sleep(60)
        cluster.add_partitions("t", 2)
        cluster.move_leader("t", 1, first)
        await until(lambda: len(queue.assignment) == 2)
        with trio.move_on_after(10):
            while True:
                assert queue.health().ok, queue.health().reasons
                await trio.sleep(0.05)
        assert queue.health().ok
        assert not [each.message for each in caplog.records if "no progress" in each.message]


@pytest.mark.parametrize(
    ("api", "code", "part"),
    [
        ("ShareFetch", 6, True),
        ("ShareFetch", 3, True),
        ("ShareFetch", 56, True),
        ("ShareFetch", -1, True),
        ("ShareFetch", 29, True),
        ("ShareFetch", 123, False),
        ("ShareFetch", 7, False),
        ("ShareFetch", 30, False),
        ("ShareGroupHeartbeat", 15, False),
        ("ShareGroupHeartbeat", 25, False),
        ("FindCoordinator", 15, False),
        ("frozen", 0, False),
        ("stopped", 0, False),
        ("leaderless", 0, False),
        ("refused sessions", 0, False),
    ],
)
async def test_nothing_stands_still_unheard(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture, api: str, code: int, part: bool
) -> None:
    """One log line and a reason of health(), within 1.25 times stall_warning_ms."""
    async with cluster_of(records=5) as cluster, queue_of(cluster) as queue:
        cluster.shares.times.delivery_limit = 1_000
        (await queue.receive()).accept()
        await queue.flush()
        for _ in range(4):
            (await queue.receive()).accept()
        await trio.sleep(3)  # the watch has looked, as at all times but the first two seconds
        assert queue.health().ok
        caplog.clear()
        match api:
            case "frozen":
                cluster.freeze(0)
            case "stopped":
                cluster.stop(0)
            case "leaderless":
                cluster.move_leader("t", 0, None)
            case "refused sessions":
                cluster.fail(
                    "ShareFetch", 123, None, where=lambda each: each.share_session_epoch > 0
                )
            case _:
                if api == "FindCoordinator":
                    cluster.fail("ShareGroupHeartbeat", 16, None)
                cluster.fail(api, code, None, topic="t" if part else None)
        # The fetch in flight, or the time until the next heartbeat, comes before.
        with trio.move_on_after(17.5 if api in ("FindCoordinator", "ShareGroupHeartbeat") else 13):
            while True:
                with suppress(TrikafkaError):
                    await queue.receive()
        logged = [each.message for each in caplog.records if each.levelno >= logging.WARNING]
        assert not queue.health().ok, logged
        assert logged
        assert len(logged) < 8
        with suppress(Exception):
            cluster.thaw(0)


async def test_a_stuck_acknowledgement_is_heard(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    async with cluster_of(records=5) as cluster, queue_of(cluster, max_in_flight=5) as queue:
        cluster.shares.times.lock = 60
        held = [await queue.receive() for _ in range(5)]
        cluster.fail("ShareAcknowledge", 7, None, topic="t")
        cluster.fail("ShareFetch", 7, None, topic="t")
        await trio.sleep(10)
        held[0].accept()
        await trio.sleep(12.5)
        assert not queue.health().ok
        assert any("acknowledgements to broker 0" in each.message for each in caplog.records)


async def test_a_quiet_queue_is_well(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    async with cluster_of(3, records=2, nodes=2) as cluster, queue_of(cluster) as queue:
        held = [await queue.receive() for _ in range(6)]
        for _ in range(15):
            await trio.sleep(5)
            assert queue.health().ok
        for each in held:
            each.accept()
        await queue.flush()
        with trio.move_on_after(60):
            await queue.receive()
        assert queue.health().ok
        assert not [each for each in caplog.records if each.levelno >= logging.WARNING]


async def test_a_waiting_task_gets_room_at_once(autojump_clock: Clock) -> None:
    """All that was fetched is delivered and open; there is room for two more."""
    async with cluster_of(records=8) as cluster, queue_of(cluster, max_in_flight=10) as queue:
        held = [await queue.receive() for _ in range(8)]
        cluster.append("t", 0, [b"more"])
        began = trio.current_time()
        assert (await queue.receive()).record.value == b"more"
        assert trio.current_time() - began < 1
        assert held


async def test_errors_that_nobody_receives_are_bounded(autojump_clock: Clock) -> None:
    quiet()
    async with cluster_of(records=1) as cluster:

        async def broken(request: Any, default: Callable[[], Awaitable[Any]]) -> Any:
            response = await default()
            for topic in response.responses or ():
                for part in topic.partitions:
                    if part.records:
                        part.records = part.records[:-1] + b"?"
            return response

        cluster.on("ShareFetch", broken)
        async with queue_of(cluster) as queue:
            for _ in range(50):
                cluster.append("t", 0, [b"x"])
                await trio.sleep(0.6)
            waiting = queue._parts.core.buffer._waiting
            assert len(waiting) < 10
        assert states(cluster)
        assert GROUP in cluster.shares.by_id


async def test_a_misnamed_coordinator_is_left(autojump_clock: Clock) -> None:
    """A response names the right address and a wrong number; the broker there refuses that."""
    quiet()
    async with cluster_of(records=1) as cluster:

        async def misnamed(request: Any, default: Callable[[], Awaitable[Any]]) -> Any:
            response = await default()
            response.coordinators[0].node_id = 77
            return response

        cluster.on("FindCoordinator", misnamed, 1)
        async with queue_of(cluster) as queue:
            with trio.fail_after(60):
                assert (await queue.receive()).record.offset == 0


async def test_an_absurd_interval_is_not_waited_for(autojump_clock: Clock) -> None:
    """The member's session would end before the next heartbeat."""
    async with cluster_of(records=1) as cluster:
        cluster.shares.times.heartbeat_interval = 2_000_000
        async with queue_of(cluster):
            await trio.sleep(60)
            assert len(cluster.requests("ShareGroupHeartbeat")) >= 4


async def test_a_damaged_fetch_answers_its_acks(autojump_clock: Clock) -> None:
    """The broker has taken the acknowledgement that rode on it, whatever the lock is."""
    async with cluster_of(records=1) as cluster:
        async with queue_of(cluster, ack_linger_ms=1000) as queue:
            delivery = await queue.receive()
            await trio.sleep(3)
            before = len(cluster.requests("ShareFetch"))
            delivery.accept()
            await until(lambda: len(cluster.requests("ShareFetch")) > before)
            cluster.shares.times.lock = 0
            cluster.append("t", 0, [b"x"])
            with trio.fail_after(10):
                await delivery.acknowledged()
            assert states(cluster)[0] == "acknowledged"


async def test_a_frozen_broker_delays_no_other(autojump_clock: Clock) -> None:
    """Its fetch has all the room. The others waited for its end, for request_timeout_ms."""
    got: list[tuple[float, int]] = []

    async def feed() -> None:
        while True:
            for number in range(3):
                cluster.append("t", number, [b"x"])
            await trio.sleep(0.2)

    async def consume() -> None:
        async for delivery in queue:
            delivery.accept()
            got.append((trio.current_time(), delivery.record.partition))

    async with (
        cluster_of(3, nodes=3) as cluster,
        queue_of(cluster, acquire="records", max_in_flight=10) as queue,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(feed)
        nursery.start_soon(consume)
        await trio.sleep(5)
        frozen = cluster.partition("t", 0).leader
        assert frozen is not None
        cluster.freeze(frozen)
        await trio.sleep(20)
        ended = trio.current_time()
        nursery.cancel_scope.cancel()
    for number in (1, 2):
        times = [*(at for at, partition in got if partition == number), ended]
        assert max(after - before for before, after in itertools.pairwise(times)) < 2


@pytest.mark.parametrize(("nodes", "frozen"), [(3, False), (2, True)])
async def test_empty_brokers_delay_no_other(
    autojump_clock: Clock, nodes: int, frozen: bool
) -> None:
    """One fetch at a time: that of an empty broker must not keep waiting the one with records.

    Nor are empty brokers fetched from without a pause while that one does not respond.
    """
    quiet()
    async with (
        cluster_of(nodes, nodes=nodes) as cluster,
        queue_of(cluster, acquire="records", max_in_flight=2) as queue,
    ):
        cluster.append("t", 0, [b"x"] * 100)
        began = trio.current_time()
        for _ in range(99):
            (await queue.receive()).accept()
        assert trio.current_time() - began < 3
        if frozen:
            cluster.freeze(0)
            before = len(cluster.requests("ShareFetch"))
            await trio.sleep(10)
            assert len(cluster.requests("ShareFetch")) - before < 500
            cluster.thaw(0)


async def test_refused_acknowledgements_are_logged(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """Once, although the group delivers the records again and again. A new leader is no refusal."""

    async def handle(delivery: Any) -> None:
        seen.append(delivery.record.offset)

    async with cluster_of(records=3, nodes=2) as cluster:
        for code, said in ((6, 0), (121, 1)):
            seen: list[int] = []
            rules = [
                cluster.fail(api, code, 2 if code == 6 else None, topic="t")
                for api in ("ShareAcknowledge", "ShareFetch")
            ]
            with trio.move_on_after(100):
                await trikafka.run_queue(
                    handle,
                    "t",
                    group_id=GROUP,
                    bootstrap_servers=cluster.bootstrap_servers,
                    dial=cluster.dial,
                )
            for rule in rules:
                rule.remove()
            refusals = [each for each in caplog.messages if "refuses acknowledgements" in each]
            assert len(refusals) == said
            cluster.append("t", 0, [b"x"] * 3)
        assert len(seen) > 3
        assert "INVALID_RECORD_STATE" in refusals[0]


def _acknowledges(request: Any) -> bool:
    return any(part.acknowledgement_batches for item in request.topics for part in item.partitions)


async def test_refusals_of_records_that_have_gone_end(autojump_clock: Clock) -> None:
    """Another member has accepted the record since, and no other record comes."""
    quiet()
    async with cluster_of(records=1) as cluster, queue_of(cluster) as queue:
        cluster.shares.times.delivery_limit = 1_000
        cluster.shares.times.lock = 5
        rules = [
            cluster.fail(api, 121, None, topic="t") for api in ("ShareAcknowledge", "ShareFetch")
        ]
        for _ in range(8):
            with suppress(LockLostError):
                async with await queue.receive():
                    pass
        await trio.sleep(1)
        assert not queue.health().ok
        shared(cluster)[0].state = RecordState.ACKNOWLEDGED
        for rule in rules:
            rule.remove()
        await trio.sleep(20)
        assert queue.health().ok


async def test_refusals_far_apart_are_no_series(autojump_clock: Clock) -> None:
    """The first one counted as the beginning of a series that lasted until the second."""
    quiet()

    async def work() -> None:
        while True:
            with suppress(LockLostError):
                async with await queue.receive():
                    pass

    async with (
        cluster_of() as cluster,
        queue_of(cluster) as queue,
        trio.open_nursery() as nursery,
    ):
        cluster.shares.times.lock = 5
        nursery.start_soon(work)
        for number in range(2):
            rules = [
                cluster.fail(api, 121, 1, where=_acknowledges, topic="t")
                for api in ("ShareAcknowledge", "ShareFetch")
            ]
            cluster.append("t", 0, [b"x"])
            await trio.sleep(3)
            assert sum(rule.used for rule in rules) == 1
            for rule in rules:
                rule.remove()
            shared(cluster)[number].state = RecordState.ACKNOWLEDGED
            for _ in range(60):
                await trio.sleep(1)
                assert queue.health().ok
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(("code", "part"), [(121, True), (122, False), (-1, False), (42, False)])
async def test_health_names_refused_acknowledgements(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture, code: int, part: bool
) -> None:
    """Fetches go on, so the program works on the same records again and again."""
    async with cluster_of(records=3) as cluster, queue_of(cluster, max_in_flight=1) as queue:
        cluster.shares.times.delivery_limit = 1_000
        cluster.shares.times.lock = 1
        async with await queue.receive():
            pass
        await queue.flush()
        rules = [
            cluster.fail(api, code, None, where=_acknowledges, topic="t" if part else None)
            for api in ("ShareAcknowledge", "ShareFetch")
        ]

        async def work(seconds: float) -> None:
            with trio.move_on_after(seconds):
                while True:
                    with suppress(TrikafkaError):
                        async with await queue.receive():
                            await trio.sleep(0.1)

        await work(5)
        assert queue.health().ok
        await work(20)
        (reason,) = queue.health().reasons
        assert "acknowledgements to broker 0: no progress" in reason
        assert ErrorCode(code).name in reason
        logged = [each.message for each in caplog.records if each.levelno >= logging.WARNING]
        assert len([each for each in logged if "refuses acknowledgements" in each]) == 1
        assert len(logged) < 5
        for rule in rules:
            rule.remove()
        await work(5)
        assert queue.health().ok
        assert states(cluster) == ["acknowledged"] * 3


@pytest.mark.parametrize("code", [-1, 3, 15, 29])
async def test_a_failing_partition_slows_no_other(autojump_clock: Clock, code: int) -> None:
    """It is asked for with pauses, and named by health(); the other is fetched as if alone."""
    quiet()
    async with cluster_of(2, records=100) as cluster:
        rule = cluster.fail("ShareFetch", code, None, topic="t", partition=0)
        async with queue_of(cluster, acquire="records", max_in_flight=2) as queue:
            took: list[float] = []
            while len(took) < 100:
                with suppress(TrikafkaError):
                    async with await queue.receive() as delivery:
                        assert delivery.record.partition == 1
                        took.append(trio.current_time())
            assert took[-1] - took[0] < 2
            before = len(cluster.requests("ShareFetch"))
            await trio.sleep(15)
            assert len(cluster.requests("ShareFetch")) - before < 100
            (reason,) = queue.health().reasons
            assert reason.startswith("t-0: no progress")
            rule.remove()
            with trio.fail_after(2):
                assert (await queue.receive()).record.partition == 0


@pytest.mark.parametrize("part", [False, True])
@pytest.mark.parametrize("code", [ErrorCode.UNKNOWN_SERVER_ERROR, 9_999])
async def test_a_brokers_own_fault_ends_no_receive(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture, part: bool, code: int
) -> None:
    async with cluster_of(records=1) as cluster, queue_of(cluster) as queue:
        (await queue.receive()).accept()
        await queue.flush()
        rule = cluster.fail("ShareFetch", code, 3, topic="t" if part else None)
        with trio.fail_after(10):
            await until(lambda: rule.spent)
            cluster.append("t", 0, [b"more"])
            (await queue.receive()).accept()
        assert len([each for each in caplog.messages if from_code(code).name in each]) == 1


async def test_busy_threads_delay_no_records(busy_threads: None) -> None:
    """Records that are decoded in a thread arrive while the program's handlers hold all threads."""
    async with cluster_of() as cluster:
        cluster.append("t", 0, [bytes(2**20)] * 6)
        async with queue_of(cluster) as queue:
            with trio.fail_after(240):
                assert len((await queue.receive()).record.value) == 2**20
