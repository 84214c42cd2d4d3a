"""``run_tasks`` in virtual time: a task that times out is skipped and retried while others continue
(KIP-572, seed 004).
"""

from __future__ import annotations

import logging
import signal
from itertools import pairwise
from typing import Any

import pytest
import trio
from tasking import Stuck, Values, cluster_of, committed, consumer_of, producer_of, running, until
from trio.testing import MockClock as Clock

import trikafka
from trikafka import (
    ConfigurationError,
    DeserializationError,
    KafkaTimeoutError,
    Record,
    RecordBatch,
    RetryPolicy,
)


@pytest.mark.parametrize(
    ("task_timeout_ms", "calls"),
    [(0, 1), (1, 2), (99, 2), (100, 3), (101, 3), (1_000, 12)],
)
async def test_task_timeout_bounds_the_calls(
    autojump_clock: Clock, task_timeout_ms: float, calls: int
) -> None:
    """Calls take 100 ms, without pauses. The timer begins when the first has timed out."""
    handler = Stuck(0)
    async with (
        cluster_of(1, records=3) as cluster,
        consumer_of(cluster, retry_backoff_ms=0) as consumer,
    ):
        with trio.fail_after(60), pytest.raises(KafkaTimeoutError) as raised:
            await trikafka.run_tasks(consumer, handler, task_timeout_ms=task_timeout_ms)
        assert len(handler.calls) == calls
        assert {offset for _, _, offset in handler.calls} == {0}
        assert raised.value is handler.errors[-1]
        assert raised.value.__cause__ is (handler.errors[0] if calls > 1 else None)
        assert "offset 0 of t-0" in raised.value.__notes__[0]


async def test_lone_task_waits_between_attempts(autojump_clock: Clock) -> None:
    """From retry_backoff_ms to retry_backoff_max_ms, though there is no other task."""
    handler = Stuck(0, seconds=0)
    async with (
        cluster_of(1, records=3) as cluster,
        consumer_of(cluster) as consumer,
        running(consumer, handler),
    ):
        await trio.sleep(30)
    times = [time for time, _, _ in handler.calls]
    waits = [later - sooner for sooner, later in pairwise(times)]
    assert 25 <= len(times) <= 45
    assert all(0.08 <= wait <= 1.2 for wait in waits)
    assert waits[0] < 0.2 < 0.7 < waits[-1]


async def test_skipped_task_delays_no_other(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """A warning names the call."""
    handler = Stuck(1, times=5)
    async with (
        cluster_of(3, records=20) as cluster,
        consumer_of(cluster, auto_commit_interval_ms=100) as consumer,
    ):
        async with running(consumer, handler):
            await until(lambda: len(handler.of(0)) == len(handler.of(2)) == 20)
            assert len(handler.of(1)) < 20
            await until(lambda: committed(cluster, 0) == committed(cluster, 2) == 20)
            await until(lambda: committed(cluster, 1) == 20)
    assert handler.of(1) == list(range(20))
    warned = [
        record
        for record in caplog.records
        if record.levelno == logging.WARNING and record.name == "trikafka.tasks"
    ]
    assert len(warned) == 5
    assert all(
        "the task of t-1 is skipped" in record.getMessage() and "send" in record.getMessage()
        for record in warned
    )


async def test_progress_clears_the_timer(autojump_clock: Clock) -> None:
    """Each record times out for one second of 1.5. A hundred of them do not end the run."""
    tried: dict[int, int] = {}

    async def handler(record: Record) -> None:
        tried[record.offset] = tried.get(record.offset, 0) + 1
        if tried[record.offset] < 4:
            await trio.sleep(0.25)
            raise KafkaTimeoutError("send", 0.25)

    async with (
        cluster_of(1, records=100) as cluster,
        consumer_of(cluster, retry_backoff_ms=0) as consumer,
    ):
        async with running(consumer, handler, task_timeout_ms=1_500):
            await until(lambda: len(tried) == 100 and tried[99] == 4)


async def test_slow_work_never_times_out(autojump_clock: Clock) -> None:
    handler = Values(100)
    async with cluster_of(1, records=3) as cluster, consumer_of(cluster) as consumer:
        async with running(consumer, handler, task_timeout_ms=1):
            await until(lambda: len(handler.done) == 3, 1, 400)


async def test_final_timeout_lets_others_finish(autojump_clock: Clock) -> None:
    """The error is raised in no group.

    Other tasks finish and commit the records in hand and begin no more.
    """
    began: list[tuple[int, int]] = []
    ended: list[tuple[int, int]] = []

    async def handler(record: Record) -> None:
        began.append((record.partition, record.offset))
        if record.partition == 0:
            raise KafkaTimeoutError("send", 1)
        await trio.sleep(7)
        ended.append((record.partition, record.offset))

    async with cluster_of(3, records=5) as cluster, consumer_of(cluster) as consumer:
        with pytest.raises(KafkaTimeoutError) as raised, trio.fail_after(60):
            await trikafka.run_tasks(consumer, handler, task_timeout_ms=0)
        assert raised.type is KafkaTimeoutError
        assert sorted(ended) == [(1, 0), (2, 0)]
        assert sorted(began) == [(0, 0), (1, 0), (2, 0)]
        assert [committed(cluster, number) for number in range(3)] == [None, 1, 1]
        handler2 = Values()
        async with running(consumer, handler2):  # it may be used again, and goes on where it was
            await until(lambda: len(handler2.done) == 13)
        assert [next(r.offset for r in handler2.done if r.partition == n) for n in range(3)] == [
            0,
            1,
            1,
        ]


async def test_outer_cancellation_is_no_timeout(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    handler = Values(10)
    async with (
        cluster_of(2, records=5) as cluster,
        consumer_of(cluster, auto_commit_interval_ms=1_000_000) as consumer,
    ):
        with trio.move_on_after(25) as scope:
            await trikafka.run_tasks(consumer, handler, task_timeout_ms=0)
        assert scope.cancelled_caught
        assert [record.offset for record in handler.done] == [0, 0, 1, 1]
        # What is done is committed.
        assert [committed(cluster, number) for number in range(2)] == [
            2,
            2,
        ]
        again = Values()
        async with running(consumer, again):
            await until(lambda: len(again.done) == 6)
    assert "skipped" not in caplog.text


async def test_timeout_of_the_handlers_scope_is_raised(autojump_clock: Clock) -> None:
    async def handler(record: Record) -> None:
        with trio.fail_after(1):
            await trio.sleep_forever()

    async with cluster_of(1, records=5) as cluster, consumer_of(cluster) as consumer:
        with pytest.raises(trio.TooSlowError) as raised:
            await trikafka.run_tasks(consumer, handler)
    assert raised.type is trio.TooSlowError


async def test_timed_out_commit_counts_for_its_tasks(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """One commit covers three tasks: it starts all their timers, and ends the run at the limit."""
    handler = Values()
    settings: dict[str, Any] = {
        "default_api_timeout_ms": 1_000,
        "auto_commit_interval_ms": 500,
        "request_timeout_ms": 1_000,
    }
    async with cluster_of(3, records=5) as cluster, consumer_of(cluster, **settings) as consumer:
        cluster.silence("OffsetCommit")
        began = trio.current_time()
        with pytest.raises(KafkaTimeoutError) as raised, trio.fail_after(100):
            await trikafka.run_tasks(consumer, handler, task_timeout_ms=5_000)
        assert raised.value.call == "commit"
        assert isinstance(raised.value.__cause__, KafkaTimeoutError)
        assert 6 < trio.current_time() - began < 12
        assert (
            "the commit of t-0, t-1, t-2 is skipped" in caplog.text
            or "the commit of t-2" in caplog.text
        )


async def test_timed_out_prepare_is_retried(autojump_clock: Clock) -> None:
    starts: list[tuple[float, int]] = []
    handler = Values()

    async def prepare(tp: trikafka.TopicPartition) -> None:
        starts.append((trio.current_time(), tp.partition))
        if tp.partition == 1 and len(starts) < 8:
            await trio.sleep(0.1)
            raise KafkaTimeoutError("beginning_offsets", 0.1)
        if tp.partition == 0:
            consumer.seek(tp, 3)

    async with (
        cluster_of(2, records=5) as cluster,
        consumer_of(cluster) as consumer,
        running(consumer, handler, prepare=prepare),
    ):
        await until(lambda: len(handler.done) >= 2)
        assert {record.partition for record in handler.done} == {0}
        await until(lambda: len(handler.done) == 7)
    assert [record.offset for record in handler.done if record.partition == 0] == [3, 4]
    waits = [
        later - sooner - 0.1 for (sooner, number), (later, _) in pairwise(starts[1:]) if number == 1
    ]
    assert waits[0] < 0.13
    assert waits[-1] > 0.7


@pytest.mark.parametrize(("task_timeout_ms", "calls"), [(0, 1), (1, 2), (1_000, 12)])
async def test_task_timeout_bounds_prepare(
    autojump_clock: Clock, task_timeout_ms: float, calls: int
) -> None:
    count = 0

    async def prepare(tp: trikafka.TopicPartition) -> None:
        nonlocal count
        count += 1
        await trio.sleep(0.1)
        raise KafkaTimeoutError("end_offsets", 0.1)

    async with (
        cluster_of(1, records=5) as cluster,
        consumer_of(cluster, retry_backoff_ms=0) as consumer,
    ):
        with pytest.raises(KafkaTimeoutError, match="end_offsets"):
            await trikafka.run_tasks(
                consumer, Values(), prepare=prepare, task_timeout_ms=task_timeout_ms
            )
    assert count == calls


# Other work of the run.


async def test_concurrency_keeps_the_order_of_each_key(autojump_clock: Clock) -> None:
    running_now = most = 0
    done: list[Record] = []

    async def handler(record: Record) -> None:
        nonlocal running_now, most
        running_now += 1
        most = max(most, running_now)
        await trio.sleep(1 + record.offset * 7 % 5)
        running_now -= 1
        done.append(record)

    async with (
        cluster_of(1) as cluster,
        consumer_of(cluster, auto_commit_interval_ms=100) as consumer,
    ):
        cluster.append("t", 0, [(b"k%d" % (number % 6), b"%d" % number) for number in range(60)])
        committed_at: list[int] = []
        async with running(consumer, handler, concurrency=4):
            while len(done) < 60:
                await trio.sleep(0.05)
                if (offset := committed(cluster)) is not None:
                    committed_at.append(offset)
                    assert set(range(offset)) <= {record.offset for record in done}
            await until(lambda: committed(cluster) == 60)
    assert most == 4
    assert [record.offset for record in done] != list(range(60))
    for key in range(6):
        assert [record.offset for record in done if record.key == b"k%d" % key] == list(
            range(key, 60, 6)
        )
    assert len(set(committed_at)) > 5


async def test_stuck_record_holds_only_key_and_commit(
    autojump_clock: Clock,
) -> None:
    """At most a thousand records behind it are taken."""
    done: list[int] = []

    async def handler(record: Record) -> None:
        if record.offset == 5:
            await trio.sleep_forever()
        done.append(record.offset)

    async with (
        cluster_of(1) as cluster,
        consumer_of(cluster, auto_commit_interval_ms=100) as consumer,
    ):
        cluster.append("t", 0, [(b"k%d" % (number % 10), b"") for number in range(3_000)])
        async with running(consumer, handler, concurrency=8):
            await trio.sleep(5)
        assert committed(cluster) == 5
        assert max(done) == 5 + 999
        assert not [offset for offset in done if offset % 10 == 5]


async def test_retry_policy_repeats_with_backoff(autojump_clock: Clock) -> None:
    times: list[float] = []

    async def handler(record: Record) -> None:
        times.append(trio.current_time())
        if len(times) < 4:
            raise ConnectionError("the database is away")

    policy = RetryPolicy(ConnectionError, attempts=4, backoff_ms=1_000, backoff_max_ms=3_000)
    async with (
        cluster_of(1, records=1) as cluster,
        consumer_of(cluster) as consumer,
        running(consumer, handler, retry=policy),
    ):
        await until(lambda: len(times) == 4)
        await until(lambda: committed(cluster) == 1)
    waits = [later - sooner for sooner, later in pairwise(times)]
    assert [round(wait) for wait in waits] in ([1, 2, 3], [1, 2, 2])


async def test_error_without_dead_letter_ends_the_run(
    autojump_clock: Clock,
) -> None:
    policy = RetryPolicy((ConnectionError,), attempts=3, backoff_ms=10)
    for error, calls in ((KeyError("x"), 1), (ConnectionError("away"), 3)):
        handler = Values(fail=lambda record, error=error: error if record.offset == 2 else None)  # type: ignore[misc]
        async with cluster_of(1, records=5) as cluster, consumer_of(cluster) as consumer:
            with pytest.raises(type(error)) as raised:
                await trikafka.run_tasks(consumer, handler, retry=policy)
            assert raised.value is error
            assert "offset 2 of t-0" in error.__notes__[0]
            assert len(handler.seen) == 2 + calls
            assert committed(cluster) == 2


async def test_dead_letter_has_coordinates_and_error(autojump_clock: Clock) -> None:
    handler = Values(
        fail=lambda record: ValueError("cannot read it") if record.offset == 2 else None
    )
    async with (
        cluster_of(1, topics={"dead": 1}) as cluster,
        consumer_of(cluster, auto_commit_interval_ms=100) as consumer,
        producer_of(cluster) as producer,
    ):
        cluster.append(
            "t", 0, [(b"key", b"%d" % number, 1234, (("mine", b"1"),)) for number in range(4)]
        )
        async with running(consumer, handler, dead_letter="dead", producer=producer):
            await until(lambda: committed(cluster) == 4)
        (dead,) = cluster.records("dead", 0)
    assert [record.offset for record in handler.done] == [0, 1, 3]
    assert (dead.key, dead.value) == (b"key", b"2")
    assert dead.headers[0] == ("mine", b"1")
    headers = dict(dead.headers[1:])
    place = (headers.pop("trikafka.traceback") or b"").decode().splitlines()
    assert place[0].startswith("File ")
    assert place[0].endswith("in __call__")
    assert place[-1] == "ValueError"
    assert headers == {
        "trikafka.topic": b"t",
        "trikafka.partition": b"0",
        "trikafka.offset": b"2",
        "trikafka.timestamp": b"1234",
        "trikafka.group": b"g",
        "trikafka.error": b"ValueError",
        "trikafka.message": b"cannot read it",
        "trikafka.attempts": b"1",
    }


class Mute(Exception):
    def __str__(self) -> str:
        raise AttributeError("no such field")


async def test_an_error_without_a_text_is_a_dead_letter(autojump_clock: Clock) -> None:
    handler = Values(fail=lambda record: Mute() if record.offset == 1 else None)
    async with (
        cluster_of(1, records=3, topics={"dead": 1}) as cluster,
        consumer_of(cluster, auto_commit_interval_ms=100) as consumer,
        producer_of(cluster) as producer,
    ):
        async with running(consumer, handler, dead_letter="dead", producer=producer):
            await until(lambda: committed(cluster) == 3)
        (dead,) = cluster.records("dead", 0)
    assert dict(dead.headers)["trikafka.message"] == b"<its __str__ failed>"


async def test_undeserializable_record_is_a_dead_letter(
    autojump_clock: Clock,
) -> None:
    handler = Values()
    async with (
        cluster_of(1, topics={"dead": 1}) as cluster,
        consumer_of(cluster, value_deserializer=int) as consumer,
        producer_of(cluster) as producer,
    ):
        cluster.append("t", 0, [b"1", b"two", b"3"])
        async with running(consumer, handler, dead_letter="dead", producer=producer):
            await until(lambda: len(handler.done) == 2)
        (dead,) = cluster.records("dead", 0)
    assert [record.value for record in handler.done] == [1, 3]
    assert dead.value == b"two"
    assert dict(dead.headers)["trikafka.error"] == b"trikafka.errors.classes.DeserializationError"
    assert b"ValueError" in (dict(dead.headers)["trikafka.message"] or b"")


async def test_undeserializable_record_says_how_to_go_on(autojump_clock: Clock) -> None:
    async with (
        cluster_of(1) as cluster,
        consumer_of(cluster, value_deserializer=int) as consumer,
    ):
        cluster.append("t", 0, [b"1", b"two"])
        with trio.fail_after(60), pytest.raises(DeserializationError) as caught:
            await trikafka.run_tasks(consumer, Values())
    skip, run = caught.value.__notes__
    assert skip.endswith("to skip it: consumer.seek(TopicPartition('t', 0), 2)")
    assert run.startswith("raised by a deserializer for offset 1 of t-0")
    assert "with dead_letter= run_tasks writes such records to a topic" in run


@pytest.mark.parametrize("batches", [False, True])
async def test_log_of_a_dead_letter_advises_no_seek(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture, batches: bool
) -> None:
    """The run goes on: a seek would deliver records again."""

    async def read(batch: Any) -> None:
        assert list(batch)

    async with (
        cluster_of(1, topics={"dead": 1}) as cluster,
        consumer_of(cluster, value_deserializer=int) as consumer,
        producer_of(cluster) as producer,
    ):
        cluster.append("t", 0, [b"two"])
        handler, more = (read, {"batches": True}) if batches else (Values(), {})
        async with running(consumer, handler, dead_letter="dead", producer=producer, **more):
            await until(lambda: bool(cluster.records("dead", 0)))
    assert "goes to dead after 1 attempt" in caplog.text
    assert "ValueError" in caplog.text
    assert "to skip it" not in caplog.text


async def test_timed_out_dead_letter_is_rewritten(
    autojump_clock: Clock,
) -> None:
    """Its handler is not called again."""
    handler = Values(fail=lambda record: KeyError() if record.offset == 0 else None)
    async with (
        cluster_of(1, records=2, topics={"dead": 1}) as cluster,
        consumer_of(cluster) as consumer,
        producer_of(cluster, delivery_timeout_ms=2_000, request_timeout_ms=1_000) as producer,
    ):
        cluster.silence("Produce", times=3)
        async with running(consumer, handler, dead_letter="dead", producer=producer):
            await until(lambda: len(handler.done) == 1)
        assert [record.offset for record in handler.seen] == [0, 1]
        assert dict(cluster.records("dead", 0)[-1].headers)["trikafka.offset"] == b"0"


async def test_handlers_may_take_batches(autojump_clock: Clock) -> None:
    seen: list[tuple[int, list[bytes | None]]] = []

    async def handler(batch: RecordBatch) -> None:
        seen.append((batch.partition, [record.value for record in batch]))

    settings: dict[str, Any] = {"max_poll_records": 4, "auto_commit_interval_ms": 100}
    async with cluster_of(2, records=10) as cluster, consumer_of(cluster, **settings) as consumer:
        async with running(consumer, handler, batches=True):
            await until(lambda: committed(cluster, 0) == committed(cluster, 1) == 10)
    assert [len(values) for number, values in seen if number == 0] == [4, 4, 2]


@pytest.mark.parametrize("protocol", ["range", "cooperative-sticky", "consumer"])
async def test_revoked_partition_is_drained(autojump_clock: Clock, protocol: str) -> None:
    done: list[tuple[str, int, int]] = []

    def slow(name: str) -> Any:
        async def handler(record: Record) -> None:
            await trio.sleep(2)
            done.append((name, record.partition, record.offset))

        return handler

    settings: dict[str, Any] = {
        "auto_commit_interval_ms": 1_000_000,
        "partition_assignment_strategy": [protocol],
    }
    if protocol == "consumer":
        settings = {"auto_commit_interval_ms": 1_000_000, "group_protocol": "consumer"}
    async with (
        cluster_of(2, records=20) as cluster,
        consumer_of(cluster, **settings) as first,
        running(first, slow("a")),
    ):
        await until(lambda: len(done) >= 5)
        async with consumer_of(cluster, **settings) as second, running(second, slow("b")):
            await until(lambda: len(done) >= 40)
    assert len(done) == len({(number, offset) for _, number, offset in done}) == 40
    assert {name for name, _, _ in done} == {"a", "b"}
    assert [committed(cluster, number) for number in range(2)] == [20, 20]


async def test_closing_the_consumer_ends_the_run(autojump_clock: Clock) -> None:
    handler = Values(2)
    async with (
        cluster_of(2, records=20) as cluster,
        consumer_of(cluster, auto_commit_interval_ms=1_000_000) as consumer,
    ):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trikafka.run_tasks, consumer, handler)
            await until(lambda: len(handler.done) >= 4)
            await consumer.aclose()
        assert len(handler.done) == len(handler.seen)
        assert sum(committed(cluster, number) or 0 for number in range(2)) == len(handler.done)


async def test_endless_handlers_are_cancelled_at_the_end(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    async def handler(record: Record) -> None:
        if record.partition == 0:
            raise KeyError("x")
        await trio.sleep_forever()

    async with (
        cluster_of(2, records=20) as cluster,
        consumer_of(cluster, close_timeout_ms=5_000) as consumer,
    ):
        began = trio.current_time()
        with pytest.raises(KeyError):
            await trikafka.run_tasks(consumer, handler)
        assert 5 <= trio.current_time() - began < 8
    assert "the handlers of t-1 did not end within close_timeout_ms" in caplog.text


async def test_timeout_in_a_nursery_is_retried(autojump_clock: Clock) -> None:
    calls = 0

    async def call() -> None:
        await trio.sleep(1)
        if calls < 3:
            raise KafkaTimeoutError("send", 1)

    async def handler(record: Record) -> None:
        nonlocal calls
        calls += 1
        async with trio.open_nursery() as nursery:
            nursery.start_soon(call)
            nursery.start_soon(call)

    async with (
        cluster_of(1, records=1) as cluster,
        consumer_of(cluster, auto_commit_interval_ms=100) as consumer,
    ):
        async with running(consumer, handler):
            await until(lambda: committed(cluster) == 1)
    assert calls == 3


async def test_retries_is_ignored_with_one_warning(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    async with cluster_of(1, records=1) as cluster, consumer_of(cluster) as consumer:
        handler = Stuck(0, times=2)
        async with running(consumer, handler, retries=0):
            await until(lambda: len(handler.done) == 1)
    warned = [record.getMessage() for record in caplog.records if "retries" in record.getMessage()]
    assert len(warned) == 1
    assert "task_timeout_ms" in warned[0]


async def test_retries_still_bound_the_producer(autojump_clock: Clock) -> None:
    """Seed 004 does not remove the setting there."""
    async with cluster_of(1) as cluster, producer_of(cluster, retries=0, acks="all") as producer:
        cluster.fail("Produce", 7, times=1)
        with pytest.raises(trikafka.TrikafkaError):
            await producer.send("t", b"x")
        assert len(cluster.requests("Produce")) == 1


async def test_conflicting_task_options_are_refused(autojump_clock: Clock) -> None:
    handler = Values()
    async with (
        cluster_of(1) as cluster,
        consumer_of(cluster) as consumer,
        producer_of(cluster) as producer,
    ):
        for match, options in (
            ("concurrency", {"concurrency": 0}),
            ("task_timeout_ms", {"task_timeout_ms": -1}),
            ("producer=", {"dead_letter": "dead"}),
            ("give dead_letter=, .* or open .* transactional_id", {"producer": producer}),
            ("batches=True", {"batches": True, "concurrency": 2}),
        ):
            with pytest.raises(ConfigurationError, match=match):
                await trikafka.run_tasks(consumer, handler, **options)  # type: ignore[call-overload]
        async with consumer_of(cluster, enable_auto_commit=True) as other:
            with pytest.raises(ConfigurationError, match="enable_auto_commit=False"):
                await trikafka.run_tasks(other, handler)
        for wrong in (
            {"on": ()},
            {"on": "x"},
            {"on": KeyError, "attempts": 0},
            {"on": KeyError, "backoff_ms": -1},
        ):
            with pytest.raises(ConfigurationError):
                RetryPolicy(**wrong)  # type: ignore[arg-type]


async def test_orderly_stop_repeats_no_record(autojump_clock: Clock) -> None:
    """Also with many records in parallel, some of them waiting behind their key."""
    done: list[int] = []

    async def handler(record: Record) -> None:
        await trio.sleep(0.1 + record.offset * 7 % 5 / 10)
        done.append(record.offset)

    async with cluster_of(1) as cluster:
        cluster.append("t", 0, [(b"k%d" % (number * number % 11), b"") for number in range(300)])
        while len(done) < 300:
            async with consumer_of(cluster) as consumer, trio.open_nursery() as nursery:
                nursery.start_soon(
                    lambda consumer=consumer: trikafka.run_tasks(consumer, handler, concurrency=6)
                )  # type: ignore[misc]
                before = len(done)
                await until(lambda before=before: len(done) >= min(300, before + 70))  # type: ignore[misc]
                await consumer.aclose()
            assert committed(cluster) == len(done) == len(set(done))
    assert sorted(done) == list(range(300))


async def test_waiting_record_does_not_delay_a_revoke(
    autojump_clock: Clock,
) -> None:
    """A record in backoff, or a prepare that waits for brokers, does not delay the group."""
    settings: dict[str, Any] = {
        "partition_assignment_strategy": ["range"],
        "max_poll_interval_ms": 100_000,
    }
    policy = RetryPolicy(ConnectionError, attempts=99, backoff_ms=50_000, backoff_max_ms=50_000)
    handler = Values(fail=lambda record: ConnectionError())

    async def prepare(tp: trikafka.TopicPartition) -> None:
        if tp.partition == 1:
            await trio.sleep_forever()

    other = Values()
    async with cluster_of(2, records=5) as cluster, consumer_of(cluster, **settings) as first:
        async with running(first, handler, retry=policy, prepare=prepare):
            await until(lambda: len(handler.seen) == 1)
            async with consumer_of(cluster, **settings) as second, running(second, other):
                began = trio.current_time()
                await until(lambda: len(other.done) == 5)
                assert trio.current_time() - began < 10


@pytest.mark.parametrize("kind", ["run", "transactions"])
async def test_signal_ends_the_run_in_order(kind: str) -> None:
    """In real time, since signals have no other."""
    done: list[int] = []

    async def handler(record: Record) -> None:
        if record.offset == 3:
            signal.raise_signal(signal.SIGUSR1)
            await trio.testing.wait_all_tasks_blocked(0.01)  # Trio has delivered the signal
        done.append(record.offset)

    async with cluster_of(1, records=50) as cluster, consumer_of(cluster) as consumer:
        async with producer_of(
            cluster, transactional_id="x" if kind == "transactions" else None
        ) as producer:
            options = {"producer": producer} if kind == "transactions" else {}
            with trio.fail_after(240):
                await trikafka.run_tasks(consumer, handler, stop_on=[signal.SIGUSR1], **options)
        assert done == [0, 1, 2, 3]
        assert committed(cluster) == len(done)
