"""``run_queue``: concurrency, retries, rejections, and the end in order."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
import trio
from trio.testing import MockClock as Clock

from trikafka import Delivery, RetryPolicy, run_queue
from trikafka.errors import ClientFailedError, ConfigurationError, GroupFullError
from trikafka.testing import ScriptedCluster


@asynccontextmanager
async def jobs(count: int, partitions: int = 1) -> AsyncIterator[ScriptedCluster]:
    async with ScriptedCluster(topics={"jobs": partitions}) as cluster:
        cluster.shares.times.auto_offset_reset = "earliest"
        for number in range(partitions):
            cluster.append("jobs", number, [b"%d" % offset for offset in range(count)])
        yield cluster


async def worked(cluster: ScriptedCluster, handler: Any, **settings: Any) -> None:
    await run_queue(
        handler,
        "jobs",
        group_id="g",
        bootstrap_servers=cluster.bootstrap_servers,
        dial=cluster.dial,
        **settings,
    )


def states(cluster: ScriptedCluster) -> list[str]:
    (partition,) = cluster.shares.by_id["g"].partitions.values()
    return [each.state.value for _, each in sorted(partition.records.items())]


async def run_until(
    done: Callable[[], bool], work: Callable[[], Awaitable[object]], limit: float = 100
) -> None:
    """Run ``work`` until ``done()`` holds, then cancel it."""
    with trio.fail_after(limit):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(work)
            while not done():  # noqa: ASYNC110
                await trio.sleep(0.05)
            await trio.sleep(1)
            nursery.cancel_scope.cancel()


async def test_records_are_handled_side_by_side(autojump_clock: Clock) -> None:
    at_once = most = 0
    seen: list[bytes | None] = []

    async def handle(delivery: Delivery) -> None:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        await trio.sleep(0.1)
        at_once -= 1
        seen.append(delivery.record.value)

    async with jobs(20) as cluster:
        await run_until(lambda: len(seen) == 20, lambda: worked(cluster, handle, concurrency=4))
        assert sorted(seen) == sorted(b"%d" % number for number in range(20))
        assert most == 4
        assert states(cluster) == ["acknowledged"] * 20


async def test_a_failure_releases_then_rejects(autojump_clock: Clock) -> None:
    counts = []

    async def handle(delivery: Delivery) -> None:
        if delivery.record.offset == 1:
            counts.append(delivery.delivery_count)
            raise ValueError("no")

    async with jobs(3) as cluster:
        await run_until(lambda: len(counts) == 3, lambda: worked(cluster, handle, reject_after=3))
        assert counts == [1, 2, 3]
        assert states(cluster) == ["acknowledged", "archived", "acknowledged"]


async def test_the_last_failure_may_archive(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """The broker archives what is released at the group's last delivery."""

    async def handle(delivery: Delivery) -> None:
        raise ValueError("no")

    async with jobs(1) as cluster:
        cluster.shares.times.delivery_limit = 2
        await run_until(
            lambda: caplog.text.count("handler failed") == 2, lambda: worked(cluster, handle)
        )
        assert states(cluster) == ["archived"]
    first, last = (each.message for each in caplog.records if "handler failed" in each.message)
    assert "which is released: ValueError" in first
    assert "or archived if this reaches the group's share.delivery.count.limit: Value" in last


async def test_errors_are_retried_in_one_delivery(autojump_clock: Clock) -> None:
    counts = []

    async def handle(delivery: Delivery) -> None:
        counts.append(delivery.delivery_count)
        if len(counts) < 3:
            raise OSError("not yet")

    async with jobs(1) as cluster:
        retry = RetryPolicy(OSError, attempts=3)
        await run_until(lambda: len(counts) == 3, lambda: worked(cluster, handle, retry=retry))
        assert counts == [1, 1, 1]
        assert states(cluster) == ["acknowledged"]


@pytest.mark.parametrize("said", ["accept", "release", "reject"])
async def test_a_failed_attempt_decides_nothing(autojump_clock: Clock, said: str) -> None:
    counts = []

    async def handle(delivery: Delivery) -> None:
        counts.append(delivery.delivery_count)
        if len(counts) == 1:
            getattr(delivery, said)()
            raise OSError("not yet")

    async with jobs(1) as cluster:
        retry = RetryPolicy(OSError)
        await run_until(lambda: len(counts) == 2, lambda: worked(cluster, handle, retry=retry))
        assert counts == [1, 1]
        assert states(cluster) == ["acknowledged"]


@pytest.mark.parametrize("how", ["max_processing_ms", "close_timeout_ms"])
async def test_an_accept_before_a_cut_is_none(autojump_clock: Clock, how: str) -> None:
    """The handler is cut off after its time, or after that of a stop."""
    counts = []

    async def handle(delivery: Delivery) -> None:
        counts.append(delivery.delivery_count)
        if len(counts) == 1:
            delivery.accept()
            if how == "close_timeout_ms":
                signal.raise_signal(signal.SIGTERM)
            await trio.sleep_forever()

    async with jobs(1) as cluster:
        limits = {"max_processing_ms": 2_000} if how == "max_processing_ms" else {}
        work = partial(worked, cluster, handle, stop_on=[signal.SIGTERM], **limits)
        if how == "close_timeout_ms":
            await work()
            assert states(cluster) == ["available"]
        else:
            await run_until(lambda: len(counts) == 2, work)
            assert (counts, states(cluster)) == ([1, 2], ["acknowledged"])


@pytest.mark.parametrize("how", ["pause", "fatal"])
async def test_an_accept_before_a_failure_is_none(autojump_clock: Clock, how: str) -> None:
    """The pause before the next attempt is cut off, or the error ends the run."""
    failed = []

    async def handle(delivery: Delivery) -> None:
        delivery.accept()
        failed.append(delivery)
        raise OSError("not yet") if how == "pause" else trio.ClosedResourceError

    async with jobs(1) as cluster:
        retry = RetryPolicy(OSError, backoff_ms=60_000)
        if how == "pause":
            await run_until(lambda: bool(failed), lambda: worked(cluster, handle, retry=retry))
        else:
            with pytest.raises(trio.ClosedResourceError):
                await worked(cluster, handle, retry=retry)
        assert states(cluster) == ["available"]


async def test_a_stop_waits_for_no_next_attempt(autojump_clock: Clock) -> None:
    """The record is released, although this delivery was its last one."""
    failed: list[float] = []

    async def handle(delivery: Delivery) -> None:
        failed.append(trio.current_time())
        if len(failed) == 2:
            signal.raise_signal(signal.SIGTERM)
        raise OSError("not yet")

    async with jobs(1) as cluster:
        retry = RetryPolicy(OSError, attempts=20, backoff_ms=1_000)
        await worked(cluster, handle, retry=retry, reject_after=1, stop_on=[signal.SIGTERM])
        assert len(failed) == 2
        assert trio.current_time() - failed[-1] < 0.5
        assert states(cluster) == ["available"]


async def test_a_handler_may_decide_itself(autojump_clock: Clock) -> None:
    seen = []

    async def handle(delivery: Delivery) -> None:
        delivery.reject("bad")
        seen.append(delivery)

    async with jobs(1) as cluster:
        await run_until(lambda: bool(seen), lambda: worked(cluster, handle))
        assert states(cluster) == ["archived"]


async def test_a_lost_lock_cuts_the_handler_off(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    counts = []

    async def handle(delivery: Delivery) -> None:
        counts.append(delivery.delivery_count)
        if len(counts) == 1:
            cluster.disconnect(0)
            await trio.sleep_forever()

    async with jobs(1) as cluster:
        await run_until(lambda: len(counts) == 2, lambda: worked(cluster, handle))
        assert counts == [1, 2]
        assert states(cluster) == ["acknowledged"]
        assert "was cut off" in caplog.text


@pytest.mark.parametrize("event", ["the lock is lost", "its time is over"])
async def test_a_late_failure_does_not_end_the_run(autojump_clock: Clock, event: str) -> None:
    """The handler accepts, cannot be cancelled, and fails once its record is another's."""

    async def handle(delivery: Delivery) -> None:
        if delivery.record.offset == 0 and delivery.delivery_count == 1:
            delivery.accept()
            if event == "the lock is lost":
                cluster.disconnect(0)
            with trio.CancelScope(shield=True):
                await trio.sleep(10)
            raise ValueError

    async with jobs(3) as cluster:
        await run_until(
            lambda: "g" in cluster.shares.by_id and states(cluster) == ["acknowledged"] * 3,
            lambda: worked(cluster, handle, max_processing_ms=2_000),
        )


async def test_a_signal_ends_it_in_order(autojump_clock: Clock) -> None:
    finished = []

    async def handle(delivery: Delivery) -> None:
        signal.raise_signal(signal.SIGTERM)
        await trio.sleep(5)
        finished.append(delivery.record.offset)

    async with jobs(10) as cluster:
        with trio.fail_after(60):
            await worked(cluster, handle, stop_on=[signal.SIGTERM])
        assert finished == [0]
        assert states(cluster)[0] == "acknowledged"
        assert "acquired" not in states(cluster)


async def test_cut_handlers_are_logged(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    async def handle(delivery: Delivery) -> None:
        signal.raise_signal(signal.SIGTERM)
        await trio.sleep_forever()

    async with jobs(2) as cluster:
        with trio.fail_after(60):
            await worked(cluster, handle, stop_on=[signal.SIGTERM], close_timeout_ms=3_000)
        assert set(states(cluster)) == {"available"}
    assert "handlers did not end within close_timeout_ms" in caplog.text


async def test_cancelled_it_gives_back(autojump_clock: Clock) -> None:
    begun = trio.Event()

    async def handle(delivery: Delivery) -> None:
        begun.set()
        await trio.sleep_forever()

    async with jobs(2) as cluster, trio.open_nursery() as nursery:
        nursery.start_soon(lambda: worked(cluster, handle))
        await begun.wait()
        began = trio.current_time()
        nursery.cancel_scope.cancel()
    assert trio.current_time() - began <= 1
    assert set(states(cluster)) == {"available"}


async def test_a_fatal_error_is_raised_as_it_is(autojump_clock: Clock) -> None:
    async def handle(delivery: Delivery) -> None: ...

    async with jobs(1) as cluster:
        cluster.fail("ShareGroupHeartbeat", 81, None)
        with pytest.raises(GroupFullError):
            await worked(cluster, handle, concurrency=3)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"concurrency": 0}, "concurrency must be a whole number from 1, not 0"),
        ({"reject_after": 0}, "reject_after must be a whole number from 1, not 0"),
        ({"retry": 3}, "retry must be a RetryPolicy, such as .*, not 3"),
        ({"auto_offset_reset": "earliest"}, "share.auto.offset.reset"),
        ({"concurency": 3}, r"'concurency' for run_queue\(\); did you mean 'concurrency'\?"),
        ({"dead_letter": "x"}, r"run_queue\(\) has no dead_letter=.*errors.deadletterqueue"),
        ({"topics": ["t"]}, r"'topics' for run_queue\(\); topics are arguments without a name"),
    ],
)
async def test_wrong_arguments_of_a_queue(settings: Any, text: str) -> None:
    async def handle(delivery: Delivery) -> None: ...

    given: Any = {"group_id": "g", "bootstrap_servers": "nowhere:1"} | settings
    with pytest.raises(ConfigurationError, match=text):
        await run_queue(handle, "jobs", **given)


async def test_a_queue_without_topics_is_refused() -> None:
    async def handle(delivery: Delivery) -> None: ...

    with pytest.raises(ConfigurationError, match=r"^run_queue\(\) needs the names of topics"):
        await run_queue(handle, group_id="g")


async def test_a_plain_handler_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="handler"):
        await run_queue(3, "jobs", group_id="g")  # type: ignore[arg-type]


async def test_a_group_is_retried_by_its_members(autojump_clock: Clock) -> None:
    """A handler with a nursery raises a group."""
    tries: list[int] = []
    async with jobs(1) as cluster, trio.open_nursery() as nursery:

        async def handler(delivery: Any) -> None:
            tries.append(delivery.delivery_count)
            if len(tries) < 3:
                raise ExceptionGroup("of a nursery", [ConnectionError()])
            nursery.cancel_scope.cancel()

        retry = RetryPolicy(ConnectionError, attempts=5, backoff_ms=1)
        await worked(cluster, handler, retry=retry)
    assert tries == [1, 1, 1]


async def test_a_fatal_error_of_a_handler_ends_the_run(autojump_clock: Clock) -> None:
    """Every record would meet it, and be rejected."""
    async with jobs(3) as cluster:

        async def handler(delivery: Any) -> None:
            raise ExceptionGroup("of a nursery", [ClientFailedError("another client is closed")])

        with pytest.raises(ExceptionGroup), trio.fail_after(60):
            await worked(cluster, handler, reject_after=1)
        assert "archived" not in states(cluster)


@pytest.mark.parametrize("name", ["value", "colour"])
async def test_a_handler_for_records_gets_a_hint(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    """The handler is one of ``run_tasks``, which gets a record."""

    async def handle(record: Any) -> None:
        getattr(record, name)

    async with jobs(1) as cluster:
        await run_until(
            lambda: "the handler failed at" in caplog.text,
            lambda: worked(cluster, handle, reject_after=1),
        )
    assert f"'Delivery' object has no attribute '{name}'" in caplog.text
    assert ("use delivery.record" in caplog.text) == (name == "value")


async def test_a_storm_of_failures_has_few_tracebacks(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """Each failure has its line. A traceback comes once a kind, and again after five minutes."""
    handled = 0

    async def handle(delivery: Delivery) -> None:
        nonlocal handled
        handled += 1
        if delivery.record.offset == 5:
            raise KeyError("another kind")
        raise OSError(f"the database is down at {delivery.record.offset}")

    async def work() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: worked(cluster, handle, reject_after=1))
            # No record is held meanwhile. Handlers that take five minutes would cost thousands of
            # requests: the metadata is asked for a new leader while records are held.
            await trio.sleep(310)
            assert handled == 40
            cluster.append("jobs", 0, [b"%d" % offset for offset in range(40, 50)])

    async with jobs(40) as cluster:
        await run_until(lambda: handled == 50, work, limit=1000)
    failures = [record for record in caplog.records if "the handler failed at" in record.message]
    assert len(failures) >= 49
    assert all(": the database is down at" in each.message for each in failures[:5])
    with_traceback = [each for each in failures if each.exc_info]
    assert [each.exc_info[0] for each in with_traceback if each.exc_info] == [
        OSError,
        KeyError,
        OSError,
    ]
    assert "more failed there since the last traceback)" in with_traceback[2].message


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("in_nursery", [False, True])
async def test_an_interrupt_comes_in_no_group(
    autojump_clock: Clock, interrupt: type[BaseException], in_nursery: bool
) -> None:
    async def fail() -> None:
        raise interrupt

    async def handle(delivery: Delivery) -> None:
        if delivery.record.offset < 2:
            return
        if in_nursery:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(fail)
        await fail()

    async with jobs(3) as cluster:
        with pytest.raises(interrupt):
            await worked(cluster, handle, concurrency=3)
        assert "acquired" not in states(cluster)


async def fail_when_cut_off(in_nursery: bool) -> None:
    async def fail() -> None:
        try:
            await trio.sleep_forever()
        finally:
            raise ValueError("in the clean-up")

    if not in_nursery:
        await fail()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(fail)
        nursery.start_soon(trio.sleep_forever)


@pytest.mark.parametrize("in_nursery", [False, True])
async def test_a_handler_cut_off_rejects_nothing(autojump_clock: Clock, in_nursery: bool) -> None:
    """The end of the run cuts it off, and its clean-up fails: the record is not at fault."""
    begun = []

    async def handle(delivery: Delivery) -> None:
        begun.append(delivery)
        await fail_when_cut_off(in_nursery)

    async with jobs(1) as cluster:
        await run_until(lambda: bool(begun), lambda: worked(cluster, handle, reject_after=1))
        assert states(cluster) == ["available"]


@pytest.mark.parametrize("in_nursery", [False, True])
@pytest.mark.parametrize("event", ["the lock is lost", "its time is over"])
async def test_a_failing_clean_up_ends_no_run(
    autojump_clock: Clock, event: str, in_nursery: bool, caplog: pytest.LogCaptureFixture
) -> None:
    counts = []

    async def handle(delivery: Delivery) -> None:
        counts.append(delivery.delivery_count)
        if len(counts) == 1:
            if event == "the lock is lost":
                cluster.disconnect(0)
            await fail_when_cut_off(in_nursery)

    async with jobs(1) as cluster:
        await run_until(
            lambda: len(counts) == 2,
            lambda: worked(cluster, handle, max_processing_ms=2_000, reject_after=1),
        )
        assert counts == [1, 2]
        assert states(cluster) == ["acknowledged"]
    assert "was cut off, and failed in that" in caplog.text


@pytest.mark.parametrize("retried", [False, True])
async def test_a_closed_client_rejects_nothing(autojump_clock: Clock, retried: bool) -> None:
    """Every record would meet it. The policy may name it nevertheless."""
    tried = 0

    async def handle(delivery: Delivery) -> None:
        nonlocal tried
        tried += 1
        raise trio.ClosedResourceError("this producer is closed")

    retry = RetryPolicy(trio.ClosedResourceError, attempts=3) if retried else None
    async with jobs(3) as cluster:
        with pytest.raises(trio.ClosedResourceError), trio.fail_after(60):
            await worked(cluster, handle, reject_after=1, retry=retry)
        assert set(states(cluster)) == {"available"}
    assert tried == (3 if retried else 1)


@pytest.mark.parametrize("in_group", [False, True])
async def test_a_peers_broken_connection_ends_no_run(autojump_clock: Clock, in_group: bool) -> None:
    """A handler that dials a peer for each record gets another connection for the next one."""
    counts = []

    async def handle(delivery: Delivery) -> None:
        counts.append(delivery.delivery_count)
        if len(counts) == 1:
            broken = trio.BrokenResourceError("the peer has gone")
            raise ExceptionGroup("of a nursery", [broken]) if in_group else broken

    async with jobs(1) as cluster:
        await run_until(lambda: len(counts) == 2, lambda: worked(cluster, handle))
        assert counts == [1, 2]
        assert states(cluster) == ["acknowledged"]


class Mute(Exception):
    def __str__(self) -> str:
        raise AttributeError("no such field")


@pytest.mark.parametrize("in_group", [False, True])
async def test_an_error_without_a_text_is_released(autojump_clock: Clock, in_group: bool) -> None:
    counts: list[int] = []

    async def handle(delivery: Delivery) -> None:
        counts.append(delivery.delivery_count)
        if len(counts) == 1:
            raise ExceptionGroup("both", [Mute(), Mute()]) if in_group else Mute

    async with jobs(1) as cluster:
        await run_until(lambda: len(counts) == 2, lambda: worked(cluster, handle))
        assert counts == [1, 2]


async def test_a_forgotten_await_ends_the_run(autojump_clock: Clock) -> None:
    """Nothing was done for the record, so it is released."""

    async def work(delivery: Delivery) -> None:
        raise AssertionError("this work never begins")

    async def handle(delivery: Delivery) -> object:
        return work(delivery)

    async with jobs(3) as cluster:
        with trio.fail_after(60), pytest.raises(ConfigurationError, match=r"write 'await .*work"):
            await worked(cluster, handle)
        assert states(cluster)[0] == "available"


async def test_an_unreadable_record_is_logged_as_released(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    handled: list[int | None] = []

    async def handle(delivery: Delivery[bytes, int]) -> None:
        handled.append(delivery.record.value)

    async with jobs(2) as cluster:
        cluster.append("jobs", 0, [b"tea"])
        await run_until(
            lambda: "deserialize" in caplog.text and len(handled) == 2,
            lambda: worked(cluster, handle, value_deserializer=int),
        )
        assert handled == [0, 1]
        assert states(cluster) == ["acknowledged"] * 2 + ["archived"]
    text = (
        "a record is released, because it cannot be deserialized; the group delivers it again, "
        "unless this was its last delivery (share.delivery.count.limit): "
    )
    (said,) = {record.message for record in caplog.records if text in record.message}
    assert "jobs-0" in said
    assert "offset 2" in said
