"""What tasks leave open and the driver ends, in a real Kafka and without Spark: each moment at which something may die.

A task is :func:`write_task`, its message goes through pickle as Spark's does, and the driver is :mod:`verdict`. Who dies just calls
nothing more.
"""

from __future__ import annotations

import pickle
import queue
import socket
import threading
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from itertools import chain
from typing import Any

import pyarrow as pa
import pytest
import trio
from spark_kafka import committed
from trikafka_spark import verdict, writing
from trikafka_spark.parts import Part, Written
from trikafka_spark.write_options import WriteOptions
from trikafka_spark.writing import write_task

import trikafka
from trikafka import ProducerFencedError, TransactionAbortableError, TransactionUndecidedError, TrikafkaError

ROWS = 20


class Job:
    """A write of four parts into one topic, done again and again."""

    def __init__(self, servers: str, topic: str, **settings: Any) -> None:
        self.topic = topic
        given = {"bootstrap_servers": servers, "transaction_timeout_ms": 60_000} | settings
        self.options = WriteOptions(given, {"value": "value"}, topic, exactly_once=True, transactional_id=topic)

    def part(self, number: int, batch: int = 0, write: str = "") -> Part:
        return Part(f"{self.topic}-{number}", "run", batch, write or uuid.uuid4().hex)

    def rows(self, number: int) -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"value": pa.array([b"%d-%d" % (number, row) for row in range(ROWS)], pa.binary())})

    async def task(
        self, number: int, *, batch: int = 0, rows: Iterator[pa.RecordBatch] | None = None, write: str = ""
    ) -> Written:
        """One attempt of a task, of the same ``write`` or of a new one; its message as it comes to the driver."""

        def attempt() -> Written:
            return write_task(self.options, self.rows(number) if rows is None else rows, self.part(number, batch, write))

        message = pickle.loads(pickle.dumps(await trio.to_thread.run_sync(attempt)))
        assert isinstance(message, Written)
        return message

    async def tasks(self, batch: int = 0) -> list[Written]:
        return [await self.task(number, batch=batch) for number in range(4)]

    async def commit(self, messages: list[Any]) -> None:
        await trio.to_thread.run_sync(verdict.commit, self.options, messages)

    async def abort(self, messages: list[Any]) -> None:
        await trio.to_thread.run_sync(verdict.abort, self.options, messages)

    async def seen(self) -> Counter[bytes]:
        """By librdkafka, of what is committed."""
        return await committed(self.options.settings["bootstrap_servers"], self.topic)

    async def states(self, *parts: int) -> list[str]:
        """Of the parts' transactions, as the coordinator names them."""
        names = [self.part(number).transactional_id for number in parts or range(4)]
        async with trikafka.open_admin(bootstrap_servers=self.options.settings["bootstrap_servers"]) as admin:
            found = await admin.describe_transactions(names)
        return [found[name].state for name in names]

    async def until(self, state: str, *parts: int) -> None:
        """Wait until all of them have it."""
        with trio.fail_after(90):
            while True:
                with suppress(trikafka.BrokerResponseError):  # an id that nobody has had yet
                    if set(await self.states(*parts)) == {state}:
                        return
                await trio.sleep(0.05)


ALL = Counter({b"%d-%d" % (number, row): 1 for number in range(4) for row in range(ROWS)})


@pytest.fixture
async def job(kafka_broker: Any, new_topic: Any) -> Job:
    return Job(kafka_broker.bootstrap_servers, await new_topic(0, partitions=2))


async def test_nothing_shows_before_all_tasks_are_done_and_then_all_does(job: Job) -> None:
    messages = await job.tasks()
    assert [(message.rows, message.again) for message in messages] == [(ROWS, False)] * 4
    assert await job.states() == ["Ongoing"] * 4
    assert await job.seen() == Counter()
    await job.commit(messages)
    assert await job.seen() == ALL
    assert [message.again for message in await job.tasks()] == [True] * 4
    await job.commit(await job.tasks())  # nothing is left to be ended
    assert await job.seen() == ALL
    await job.commit(await job.tasks(batch=1))
    assert await job.seen() == ALL + ALL


async def test_what_a_job_that_fails_has_written_is_aborted(job: Job) -> None:
    def failing() -> Iterator[pa.RecordBatch]:
        yield from job.rows(2)
        raise RuntimeError("the task failed")

    messages: list[Written | None] = [await job.task(0), await job.task(1), None, await job.task(3)]
    with pytest.raises(RuntimeError, match="the task failed"):
        await job.task(2, rows=failing())
    with pytest.raises(TrikafkaError, match="task 2 of this write has left None"):
        await job.commit(messages)
    assert await job.seen() == Counter()
    await job.abort(messages)
    await job.until("CompleteAbort", 0, 1, 3)
    await job.commit(await job.tasks())
    assert await job.seen() == ALL


async def test_what_a_killed_worker_has_left_open_is_aborted_with_its_job(job: Job) -> None:
    messages: list[Written | None] = [*(await job.tasks())]
    messages[2:] = [None, None]  # the worker was killed before Spark had its word; another had not begun its part
    await job.abort(messages)
    await job.until("CompleteAbort")
    assert await job.seen() == Counter()


async def test_a_late_abort_leaves_those_alone_who_have_taken_over(job: Job) -> None:
    messages: list[Written | None] = [*(await job.tasks())]
    messages[2] = None
    following = await job.tasks()
    await job.abort(messages)
    assert await job.states() == ["Ongoing"] * 4
    await job.commit(following)
    assert await job.seen() == ALL


@pytest.mark.parametrize("ended", [0, 1, 4])
async def test_a_driver_that_died_is_followed_by_one_that_writes_what_is_missing(ended: int, job: Job) -> None:
    """Before the first EndTxn, after the first, after the last (and before Spark notes it)."""
    await job.commit((await job.tasks())[:ended])
    messages = await job.tasks()
    assert [message.again for message in messages] == [number < ended for number in range(4)]
    await job.commit(messages)
    assert await job.seen() == ALL


async def test_a_driver_that_was_dead_for_longer_than_the_time_out(kafka_broker: Any, new_topic: Any) -> None:
    job = Job(kafka_broker.bootstrap_servers, await new_topic(0, partitions=2), transaction_timeout_ms=4_000)
    messages = [await job.task(0)]
    await job.commit(messages)
    messages += [await job.task(number) for number in range(1, 4)]
    await job.until("CompleteAbort", 1, 2, 3)
    with pytest.raises(TransactionAbortableError, match=r"no part of this write.*kafka.transaction.timeout.ms \(4000 ms\)"):
        await job.commit(messages[1:])
    await job.abort(messages)
    patient = Job(kafka_broker.bootstrap_servers, job.topic)
    await patient.commit(await patient.tasks())
    assert await job.seen() == ALL


async def test_one_part_that_is_lost_keeps_all_others_back(job: Job) -> None:
    messages = await job.tasks()
    other = await job.task(3)  # another run's, say
    with pytest.raises(TransactionAbortableError, match=rf"no part of this write is committed, and {job.topic}-3 could not be"):
        await job.commit(messages)
    await job.abort(messages)
    assert await job.seen() == Counter()
    await job.commit([*[await job.task(number) for number in range(3)], other])
    assert await job.seen() == ALL


async def test_what_is_committed_is_not_aborted_by_a_late_abort(job: Job) -> None:
    messages = await job.tasks()
    await job.commit(messages)
    await job.abort(messages)
    assert await job.seen() == ALL
    await job.commit(messages)  # asked twice: the marks are there


async def test_what_the_older_way_has_written_is_found(job: Job) -> None:
    """Each task committed by itself then, rows and mark: of the ids, the groups and the notes nothing has changed."""
    name, servers = f"{job.topic}-1", job.options.settings["bootstrap_servers"]
    async with trikafka.open_producer(bootstrap_servers=servers, transactional_id=name) as producer:
        async with producer.transaction() as txn:
            for row in range(ROWS):
                await producer.enqueue(job.topic, b"1-%d" % row)
            mark = trikafka.OffsetAndMetadata(5, metadata='{"trikafka": "run", "number": 5}')
            await txn.send_offsets({trikafka.TopicPartition(job.topic, 0): mark}, trikafka.GroupMetadata(name))
    messages = await job.tasks(batch=5)
    assert [message.again for message in messages] == [False, True, False, False]
    await job.commit(messages)
    assert await job.seen() == ALL


async def test_a_zombie_is_fenced_by_the_next_attempt(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """The later attempt wins; the earlier one, which still writes, fails, and says why."""
    monkeypatch.setattr(writing, "_ROWS", ROWS)  # so each batch is sent as it comes
    feed: queue.Queue[pa.RecordBatch | None] = queue.Queue()

    def slowly() -> Iterator[pa.RecordBatch]:
        yield from job.rows(0)
        while (batch := feed.get(timeout=60)) is not None:
            yield batch

    async def zombie() -> None:
        with pytest.raises(TrikafkaError) as caught:
            await job.task(0, rows=slowly(), write="w")
        error: BaseException | None = caught.value
        assert "spark.speculation to false" in "".join(caught.value.__notes__)
        while error is not None and not isinstance(error, ProducerFencedError):
            error = error.__cause__
        assert error is not None
        fenced.set()

    fenced = trio.Event()
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(zombie)
            await job.until("Ongoing", 0)  # its first rows are there
            message = await job.task(0, write="w")
            feed.put(next(job.rows(0)))
            feed.put(None)
            await fenced.wait()
    await job.commit([message])
    assert await job.seen() == Counter({value: 1 for value in ALL if value.startswith(b"0-")})


async def test_a_task_that_takes_longer_than_its_transaction_may_is_told_so(
    kafka_broker: Any, new_topic: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The coordinator says that a newer producer is at work, which is not so."""
    monkeypatch.setattr(writing, "_ROWS", ROWS)
    job = Job(kafka_broker.bootstrap_servers, await new_topic(0, partitions=2), transaction_timeout_ms=1_000)
    aborted = threading.Event()

    def slowly() -> Iterator[pa.RecordBatch]:
        yield from job.rows(0)
        assert aborted.wait(60)
        yield from job.rows(0)

    async def task() -> None:
        with pytest.raises(TrikafkaError) as caught:
            await job.task(0, rows=slowly())
        (note,) = caught.value.__notes__
        assert "the coordinator aborts it after kafka.transaction.timeout.ms (1000 ms)" in note
        assert "spark.speculation" not in note

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(task)
            await job.until("CompleteAbort", 0)
            aborted.set()


async def test_an_attempt_that_finds_its_part_written_hands_that_over(job: Job) -> None:
    """A copy, a stage that is tried again, a message that was lost: the part is whole, and is not written again."""
    first = await job.task(0, write="w")
    assert await job.task(0, write="w") == first
    await job.commit([first])
    assert await job.task(0, write="w") == Written(0, again=True)  # one that comes late finds the mark
    assert sum((await job.seen()).values()) == ROWS


async def test_a_next_run_takes_over_what_another_has_written_whole(job: Job) -> None:
    first, following = await job.task(0, write="killed"), await job.task(0, write="next")
    assert first.transaction != following.transaction
    with pytest.raises(TransactionAbortableError):
        await job.commit([first])
    await job.commit([following])
    assert sum((await job.seen()).values()) == ROWS


async def test_two_attempts_with_different_rows_are_an_error_and_the_third_writes_anew(job: Job) -> None:
    await job.task(0, write="w")
    with pytest.raises(TrikafkaError, match=rf"{job.topic}-0 have different rows: 20 with 70 bytes, and 40 with 140"):
        await job.task(0, rows=chain(job.rows(0), job.rows(0)), write="w")
    await job.until("CompleteAbort", 0)
    await job.commit([await job.task(0, rows=chain(job.rows(0), job.rows(0)), write="w")])
    assert sum((await job.seen()).values()) == 2 * ROWS


@pytest.mark.parametrize("verdict", ["commit", "abort"])
async def test_a_copy_that_was_as_quick_as_the_one_that_spark_has_heard(
    verdict: str, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It looked for a note just before the other one left it, and has fenced that; the driver finds its note."""
    first = await job.task(0, write="w")
    with monkeypatch.context() as patched:
        patched.setattr(writing, "find_whole", _nothing)
        await job.task(0, write="w")
    await (job.commit if verdict == "commit" else job.abort)([first])
    await job.until("CompleteCommit" if verdict == "commit" else "CompleteAbort", 0)
    assert sum((await job.seen()).values()) == (ROWS if verdict == "commit" else 0)


async def test_settings_that_only_producers_have_do_not_fail_the_tasks(job: Job) -> None:
    patient = Job(job.options.settings["bootstrap_servers"], job.topic, retries=5, linger_ms=5)
    with trio.fail_after(30):
        await patient.commit([await patient.task(0)])
    assert sum((await job.seen()).values()) == ROWS


def _only(*values: bytes) -> Iterator[pa.RecordBatch]:
    yield pa.record_batch({"value": pa.array(values, pa.binary())})


async def test_as_many_other_rows_of_the_same_length_are_not_handed_over(job: Job) -> None:
    """A shuffle computed anew may give a task another's rows: as many, with as many bytes."""
    first = await job.task(0, rows=_only(b"aa", b"bb"), write="w")
    assert await job.task(0, rows=_only(b"bb", b"aa"), write="w") == first  # in another order they are the same
    with pytest.raises(TrikafkaError, match="2 with 4 bytes, and 2 with 4, of other contents"):
        await job.task(0, rows=_only(b"aa", b"bc"), write="w")
    await job.commit([await job.task(0, rows=_only(b"aa", b"bc"), write="w")])
    assert await job.seen() == Counter([b"aa", b"bc"])


async def test_a_further_attempt_without_rows_does_not_pass_over_what_is_written(job: Job) -> None:
    await job.task(0, write="w")
    with pytest.raises(TrikafkaError, match="20 with 70 bytes, and 0 with 0"):
        await job.task(0, rows=iter(()), write="w")
    await job.until("CompleteAbort", 0)
    assert await job.task(0, rows=iter(()), write="w") == Written(0)


async def test_a_note_that_comes_late_does_not_replace_that_of_who_has_taken_over(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[Written] = []

    async def late(*given: Any) -> None:
        patched.undo()
        heard.append(await job.task(0, write="w"))  # fences the first, which is about to leave its note
        await plain(*given)

    plain = writing.note_whole
    with monkeypatch.context() as patched:
        patched.setattr(writing, "find_whole", _nothing)
        patched.setattr(writing, "note_whole", late)
        with pytest.raises(TransactionAbortableError, match="so this attempt fails: another attempt of its task"):
            await job.task(0, write="w")
    assert [await job.task(0, write="w")] == heard  # and its note is there
    await job.commit(heard)
    assert sum((await job.seen()).values()) == ROWS


async def test_an_attempt_that_is_fenced_while_it_leaves_its_note_fails(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """It must not be the one that Spark hears."""
    opened = trikafka.open_consumer

    @asynccontextmanager
    async def slowly(**settings: Any) -> AsyncIterator[Any]:
        async with opened(**settings) as committer:
            yield committer
        name, servers = job.part(0).transactional_id, settings["bootstrap_servers"]
        async with trikafka.open_producer(bootstrap_servers=servers, transactional_id=name):
            pass  # a copy, which looked before the note was there

    with monkeypatch.context() as patched:
        patched.setattr(trikafka, "open_consumer", slowly)
        with pytest.raises(TransactionAbortableError, match="so this attempt fails"):
            await job.task(0, write="w")
    await job.commit([await job.task(0, write="w")])
    assert sum((await job.seen()).values()) == ROWS


async def test_a_copy_that_is_whole_just_after_the_driver_has_looked(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others are committed then, and so must this one be."""
    messages = [await job.task(0, write="w"), await job.task(1, write="w")]
    plain = verdict._not_open

    async def look(*given: Any) -> Any:
        found = await plain(*given)
        with monkeypatch.context() as patched:
            patched.setattr(writing, "find_whole", _nothing)
            await job.task(1, write="w")
        return found

    monkeypatch.setattr(verdict, "_not_open", look)
    with trio.fail_after(30):
        await job.commit(messages)
    assert sum((await job.seen()).values()) == 2 * ROWS


async def test_a_part_that_was_fenced_does_not_keep_the_whole_ones_of_the_dead_open(job: Job) -> None:
    messages: list[Written | None] = [await job.task(0, write="w"), await job.task(1, write="w")]
    async with trikafka.open_producer(
        bootstrap_servers=job.options.settings["bootstrap_servers"], transactional_id=job.part(0).transactional_id
    ):
        pass  # a copy that was killed
    messages[1] = None  # this worker, too, before Spark had its word; its note is there
    await job.abort(messages)
    with trio.fail_after(20):  # its time-out would, after a minute
        await job.until("CompleteAbort", 1)


async def _nothing(*_: Any) -> None:
    """What is found of a note that is not there yet."""


async def test_a_coordinator_that_is_frozen_while_the_driver_commits(job: Job, kafka_broker: Any) -> None:
    messages = await job.tasks()
    transaction = messages[0].transaction
    assert transaction is not None
    with trio.fail_after(90):
        async with trikafka.open_admin(bootstrap_servers=kafka_broker.bootstrap_servers) as admin, trio.open_nursery() as nursery:
            kafka_broker.freeze()
            try:
                nursery.start_soon(job.commit, messages)
                with pytest.raises(TransactionUndecidedError, match="end_transaction may be called again"):
                    await admin.end_transaction(transaction, commit=True, timeout=2)
            finally:
                kafka_broker.thaw()
    assert await job.seen() == ALL


async def test_an_abort_that_reaches_nobody_is_told_and_fails_nothing(job: Job, caplog: pytest.LogCaptureFixture) -> None:
    messages = [await job.task(0)]
    with socket.create_server(("127.0.0.1", 0)) as unused:
        address = f"127.0.0.1:{unused.getsockname()[1]}"
    await Job(address, job.topic).abort(messages)
    told = "a failed write is not wholly aborted yet; kafka.transaction.timeout.ms will, or the next run"
    assert f"{told}: {job.topic}-0" in caplog.text
    assert await job.states(0) == ["Ongoing"]
    await job.commit(messages)
