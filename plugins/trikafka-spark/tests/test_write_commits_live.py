"""Transactions that tasks leave open and the driver ends, in a real Kafka and without Spark.

The tests cover each moment at which a process may be killed. A task is :func:`write_task`, its
message is pickled as Spark does, and the driver is :mod:`verdict`. A killed process makes no more
calls.
"""

from __future__ import annotations

import pickle
import queue
import socket
import threading
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from typing import Any

import pyarrow as pa
import pytest
import trio
from known_topics import committed, make_topic
from trikafka_spark import commit_protocol, writing
from trikafka_spark.write_options import WriteOptions
from trikafka_spark.write_parts import Part, Written
from trikafka_spark.writing import write_task

import trikafka
from trikafka import (
    ProducerFencedError,
    TransactionAbortableError,
    TransactionUndecidedError,
    TrikafkaError,
)

ROWS = 20


class Job:
    """A write of four parts into one topic, done again and again."""

    def __init__(self, servers: str, topic: str, **settings: Any) -> None:
        self.topic = topic
        given = {"bootstrap_servers": servers, "transaction_timeout_ms": 600_000} | settings
        self.options = WriteOptions(
            given, {"value": "value"}, topic, exactly_once=True, transactional_id=topic
        )

    def part(self, number: int, batch: int = 0, write: str = "") -> Part:
        return Part(f"{self.topic}-{number}", "run", batch, write or uuid.uuid4().hex)

    def rows(self, number: int) -> Iterator[pa.RecordBatch]:
        yield pa.record_batch(
            {"value": pa.array([b"%d-%d" % (number, row) for row in range(ROWS)], pa.binary())}
        )

    async def task(
        self,
        number: int,
        *,
        batch: int = 0,
        rows: Iterator[pa.RecordBatch] | None = None,
        write: str = "",
    ) -> Written:
        """Run one attempt of a task, of the same ``write`` or of a new one.

        Returns its message as it arrives at the driver.
        """

        def attempt() -> Written:
            return write_task(
                self.options,
                self.rows(number) if rows is None else rows,
                self.part(number, batch, write),
            )

        message = pickle.loads(pickle.dumps(await trio.to_thread.run_sync(attempt)))
        assert isinstance(message, Written)
        return message

    async def tasks(self, batch: int = 0) -> list[Written]:
        return [await self.task(number, batch=batch) for number in range(4)]

    async def commit(self, messages: list[Any]) -> None:
        await trio.to_thread.run_sync(commit_protocol.commit, self.options, messages)

    async def abort(self, messages: list[Any], write: str | None = None) -> None:
        await trio.to_thread.run_sync(commit_protocol.abort, self.options, messages, write)

    async def seen(self) -> Counter[bytes]:
        """Return the committed rows, found by librdkafka."""
        return await committed(self.options.settings["bootstrap_servers"], self.topic)

    async def states(self, *parts: int) -> list[str]:
        """Return the states of the parts' transactions, in the coordinator's terms."""
        names = [self.part(number).transactional_id for number in parts or range(4)]
        async with trikafka.open_admin(
            bootstrap_servers=self.options.settings["bootstrap_servers"]
        ) as admin:
            found = await admin.describe_transactions(names)
        return [found[name].state for name in names]

    async def until(self, state: str, *parts: int) -> None:
        """Wait until all transactions have the state."""
        with trio.fail_after(900):
            while True:
                with suppress(trikafka.BrokerResponseError):  # an id that was never used
                    if set(await self.states(*parts)) == {state}:
                        return
                await trio.sleep(0.05)


ALL = Counter({b"%d-%d" % (number, row): 1 for number in range(4) for row in range(ROWS)})


@pytest.fixture
async def job(kafka_broker: Any, new_topic: Any) -> Job:
    return Job(kafka_broker.bootstrap_servers, await new_topic(0, partitions=2))


async def test_rows_are_visible_after_the_commit(job: Job) -> None:
    """No row is visible before all tasks are done, and all rows after the commit."""
    messages = await job.tasks()
    assert [(message.rows, message.again) for message in messages] == [(ROWS, False)] * 4
    assert await job.states() == ["Ongoing"] * 4
    assert await job.seen() == Counter()
    await job.commit(messages)
    assert await job.seen() == ALL
    assert [message.again for message in await job.tasks()] == [True] * 4
    await job.commit(await job.tasks())  # no transaction is open
    assert await job.seen() == ALL
    await job.commit(await job.tasks(batch=1))
    assert await job.seen() == ALL + ALL


async def test_rows_of_a_failed_job_are_aborted(job: Job) -> None:
    def failing() -> Iterator[pa.RecordBatch]:
        yield from job.rows(2)
        raise RuntimeError("the task failed")

    messages: list[Written | None] = [await job.task(0), await job.task(1), None, await job.task(3)]
    with pytest.raises(RuntimeError, match="the task failed"):
        await job.task(2, rows=failing())
    with pytest.raises(TrikafkaError, match="task 2 returned None instead of its part"):
        await job.commit(messages)
    assert await job.seen() == Counter()
    await job.abort(messages)
    await job.until("CompleteAbort", 0, 1, 3)
    await job.commit(await job.tasks())
    assert await job.seen() == ALL


async def test_rows_of_a_killed_worker_are_aborted(job: Job) -> None:
    messages: list[Written | None] = [*(await job.tasks())]
    # The worker was killed before its message; another had not begun its part.
    messages[2:] = [
        None,
        None,
    ]
    await job.abort(messages)
    await job.until("CompleteAbort")
    assert await job.seen() == Counter()


async def test_rows_of_a_dying_worker_are_aborted(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker writes its part after the job was cancelled, and before Spark kills the worker."""
    messages: list[Written | None] = [await job.task(0), None]

    async def write() -> None:
        messages.append(await job.task(1))

    monkeypatch.setattr(commit_protocol, "_until_killed", write)
    patient(monkeypatch)
    await job.abort(messages[:2])
    await job.until("CompleteAbort", 0, 1)


def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no limit of an abort end it on a slow machine."""
    for limit in ("_LOOK_LIMIT", "_ABORT_LIMIT"):
        monkeypatch.setattr(commit_protocol, limit, 300.0)


@pytest.fixture
def killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the workers be dead at once."""
    monkeypatch.setattr(commit_protocol, "_DYING", 0.0)
    patient(monkeypatch)


async def die(job: Job, number: int, write: str) -> None:
    """Run a task whose worker is killed when it has sent its rows, and before its note."""

    async def killed(*_: Any, **__: Any) -> None:
        raise KeyError("killed")

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(writing, "note_complete_part", killed)
        with pytest.raises(KeyError, match="killed"):
            await job.task(number, write=write)
    assert await job.states(number) == ["Ongoing"]


@pytest.mark.usefixtures("killed")
@pytest.mark.parametrize("first", [None, Written(0), Written(0, again=True)])
async def test_killed_tasks_without_a_result_are_aborted(first: Written | None, job: Job) -> None:
    """Readers do not wait for the time-out if no task has returned its transaction."""
    for number in (1, 2):
        await die(job, number, "w")
    await job.abort([first, None, None, None], "w")
    await job.until("CompleteAbort", 1, 2)
    await job.commit(await job.tasks())
    assert await job.seen() == ALL


@pytest.mark.usefixtures("killed")
async def test_abort_without_a_success_spares_other_runs(job: Job) -> None:
    """The next run has begun when the abort of the run before comes."""
    await die(job, 0, "w")
    following = await job.tasks()
    await job.abort([None] * 4, "w")
    assert await job.states() == ["Ongoing"] * 4
    await job.commit(following)
    await job.abort([None] * 4, "w")
    assert await job.seen() == ALL


@pytest.mark.usefixtures("killed")
async def test_begin_in_another_topic_replaces_others(job: Job, new_topic: Any) -> None:
    """The first row of another run may have another topic."""
    await die(job, 0, "w")
    job.options = replace(job.options, topic=await new_topic(0, partitions=1))
    await die(job, 0, "next")
    await job.abort([None], "w")
    assert await job.states(0) == ["Ongoing"]
    await job.abort([None], "next")
    await job.until("CompleteAbort", 0)


async def test_late_abort_spares_the_next_run(job: Job) -> None:
    messages: list[Written | None] = [*(await job.tasks())]
    messages[2] = None
    following = await job.tasks()
    await job.abort(messages)
    assert await job.states() == ["Ongoing"] * 4
    await job.commit(following)
    assert await job.seen() == ALL


@pytest.mark.parametrize("ended", [0, 1, 4])
async def test_driver_after_a_killed_one_completes(ended: int, job: Job) -> None:
    """The driver after a killed one writes only what is missing.

    The first driver is killed before the first EndTxn, after the first, and after the last (before
    Spark records the end).
    """
    await job.commit((await job.tasks())[:ended])
    messages = await job.tasks()
    assert [message.again for message in messages] == [number < ended for number in range(4)]
    await job.commit(messages)
    assert await job.seen() == ALL


async def test_write_of_a_driver_dead_too_long_fails(kafka_broker: Any, new_topic: Any) -> None:
    """A write whose transactions timed out commits no further part; the next run does."""
    patient = Job(kafka_broker.bootstrap_servers, await new_topic(0, partitions=2))
    messages = [await patient.task(0)]
    await patient.commit(messages)
    # A task that stands still must not meet the time-out itself.
    job = Job(kafka_broker.bootstrap_servers, patient.topic, transaction_timeout_ms=20_000)
    messages += [await job.task(number) for number in range(1, 4)]
    await job.until("CompleteAbort", 1, 2, 3)
    with pytest.raises(
        TransactionAbortableError,
        match=r"no part of this write.*kafka.transaction.timeout.ms \(20000 ms\)",
    ):
        await job.commit(messages[1:])
    await job.abort(messages)
    await patient.commit(await patient.tasks())
    assert await job.seen() == ALL


async def test_lost_part_keeps_the_others_back(job: Job) -> None:
    """If one part is lost, no part is committed."""
    messages = await job.tasks()
    other = await job.task(3)  # such as one of another run
    with pytest.raises(
        TransactionAbortableError,
        match=rf"no part of this write is committed, and {job.topic}-3 could not be",
    ):
        await job.commit(messages)
    await job.abort(messages)
    assert await job.seen() == Counter()
    await job.commit([*[await job.task(number) for number in range(3)], other])
    assert await job.seen() == ALL


async def test_late_abort_spares_committed_rows(job: Job) -> None:
    messages = await job.tasks()
    await job.commit(messages)
    await job.abort(messages)
    assert await job.seen() == ALL
    await job.commit(messages)  # a second commit: the marks exist


async def test_parts_of_the_older_protocol_are_found(job: Job) -> None:
    """Parts of the older protocol are found.

    There each task committed its rows and its mark itself. The ids, the groups and the notes are
    the same.
    """
    name, servers = f"{job.topic}-1", job.options.settings["bootstrap_servers"]
    async with trikafka.open_producer(bootstrap_servers=servers, transactional_id=name) as producer:
        async with producer.transaction() as txn:
            for row in range(ROWS):
                await producer.enqueue(job.topic, b"1-%d" % row)
            mark = trikafka.OffsetAndMetadata(5, metadata='{"trikafka": "run", "number": 5}')
            await txn.send_offsets(
                {trikafka.TopicPartition(job.topic, 0): mark}, trikafka.GroupMetadata(name)
            )
    messages = await job.tasks(batch=5)
    assert [message.again for message in messages] == [False, True, False, False]
    await job.commit(messages)
    assert await job.seen() == ALL


async def test_zombie_is_fenced_by_the_next_attempt(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The later attempt wins; the earlier one, which still writes, fails with the reason."""
    monkeypatch.setattr(writing, "_ROWS", ROWS)  # so each batch is sent at once
    feed: queue.Queue[pa.RecordBatch | None] = queue.Queue()

    def slowly() -> Iterator[pa.RecordBatch]:
        yield from job.rows(0)
        while (batch := feed.get(timeout=600)) is not None:
            yield batch

    async def zombie() -> None:
        with pytest.raises(TrikafkaError) as caught:
            await job.task(0, rows=slowly(), write="w")
        error: BaseException | None = caught.value
        assert "spark.speculation=false" in "".join(caught.value.__notes__)
        while error is not None and not isinstance(error, ProducerFencedError):
            error = error.__cause__
        assert error is not None
        fenced.set()

    fenced = trio.Event()
    with trio.fail_after(900):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(zombie)
            await job.until("Ongoing", 0)  # its first rows are written
            message = await job.task(0, write="w")
            feed.put(next(job.rows(0)))
            feed.put(None)
            await fenced.wait()
    await job.commit([message])
    assert await job.seen() == Counter({value: 1 for value in ALL if value.startswith(b"0-")})


async def test_slow_task_gets_the_time_out_as_reason(
    kafka_broker: Any, new_topic: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task that takes longer than its transaction's time-out gets that as the reason.

    The coordinator reports a newer producer, which does not exist.
    """
    monkeypatch.setattr(writing, "_ROWS", ROWS)
    job = Job(
        kafka_broker.bootstrap_servers,
        await new_topic(0, partitions=2),
        transaction_timeout_ms=1_000,
    )
    aborted = threading.Event()

    def slowly() -> Iterator[pa.RecordBatch]:
        yield from job.rows(0)
        assert aborted.wait(600)
        yield from job.rows(0)

    async def task() -> None:
        with pytest.raises(TrikafkaError) as caught:
            await job.task(0, rows=slowly())
        (note,) = caught.value.__notes__
        assert "the coordinator aborts it after kafka.transaction.timeout.ms (1000 ms)" in note
        assert "spark.speculation" not in note

    with trio.fail_after(900):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(task)
            await job.until("CompleteAbort", 0)
            aborted.set()


async def test_attempt_reports_a_part_already_written(job: Job) -> None:
    """An attempt that finds its part written reports that part.

    It may be a copy, in a repeated stage, or after a lost message. The part is complete and is not
    written again.
    """
    first = await job.task(0, write="w")
    assert await job.task(0, write="w") == first
    await job.commit([first])
    # One that comes late finds the mark.
    assert await job.task(0, write="w") == Written(0, again=True)
    assert sum((await job.seen()).values()) == ROWS


async def test_next_run_fences_the_earlier_one(job: Job) -> None:
    first, following = await job.task(0, write="killed"), await job.task(0, write="next")
    assert first.transaction != following.transaction
    with pytest.raises(TransactionAbortableError):
        await job.commit([first])
    await job.commit([following])
    assert sum((await job.seen()).values()) == ROWS


async def test_attempts_with_different_rows_fail(
    job: Job,
) -> None:
    """Two attempts with different rows are an error, and the third writes the part again."""
    await job.task(0, write="w")
    with pytest.raises(
        TrikafkaError,
        match=rf"{job.topic}-0 have different rows: 20 with 70 bytes, and 40 with 140",
    ):
        await job.task(0, rows=chain(job.rows(0), job.rows(0)), write="w")
    await job.until("CompleteAbort", 0)
    await job.commit([await job.task(0, rows=chain(job.rows(0), job.rows(0)), write="w")])
    assert sum((await job.seen()).values()) == 2 * ROWS


@pytest.mark.parametrize("verdict", ["commit", "abort"])
async def test_copy_that_fences_the_attempt_is_harmless(
    verdict: str, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy that fences the attempt that Spark knows does no harm.

    The copy looked for a note just before the other attempt left one, and fenced that attempt. The
    driver finds its note.
    """
    first = await job.task(0, write="w")
    with monkeypatch.context() as patched:
        patched.setattr(writing, "find_complete_part", _nothing)
        await job.task(0, write="w")
    await (job.commit if verdict == "commit" else job.abort)([first])
    await job.until("CompleteCommit" if verdict == "commit" else "CompleteAbort", 0)
    assert sum((await job.seen()).values()) == (ROWS if verdict == "commit" else 0)


async def test_producer_settings_do_not_fail_the_tasks(job: Job) -> None:
    patient = Job(job.options.settings["bootstrap_servers"], job.topic, retries=5, linger_ms=5)
    with trio.fail_after(900):
        await patient.commit([await patient.task(0)])
    assert sum((await job.seen()).values()) == ROWS


def _only(*values: bytes) -> Iterator[pa.RecordBatch]:
    yield pa.record_batch({"value": pa.array(values, pa.binary())})


async def test_part_with_other_rows_is_not_reported(job: Job) -> None:
    """A written part with other rows is not taken for the attempt's own.

    A repeated shuffle may give a task another's rows: as many, with as many bytes.
    """
    first = await job.task(0, rows=_only(b"aa", b"bb"), write="w")
    # In another order they are the same.
    assert await job.task(0, rows=_only(b"bb", b"aa"), write="w") == first
    with pytest.raises(TrikafkaError, match="2 with 4 bytes, and 2 with 4, with other contents"):
        await job.task(0, rows=_only(b"aa", b"bc"), write="w")
    await job.commit([await job.task(0, rows=_only(b"aa", b"bc"), write="w")])
    assert await job.seen() == Counter([b"aa", b"bc"])


async def test_empty_attempt_does_not_hide_a_part(job: Job) -> None:
    """An attempt without rows is an error if its part was written with rows."""
    await job.task(0, write="w")
    with pytest.raises(TrikafkaError, match="20 with 70 bytes, and 0 with 0"):
        await job.task(0, rows=iter(()), write="w")
    await job.until("CompleteAbort", 0)
    assert await job.task(0, rows=iter(()), write="w") == Written(0)


async def test_late_note_does_not_replace_a_newer_one(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[Written] = []

    async def late(*given: Any) -> None:
        patched.undo()
        # Fences the first, which is about to leave its note.
        heard.append(await job.task(0, write="w"))
        await plain(*given)

    plain = writing.note_complete_part
    with monkeypatch.context() as patched:
        patched.setattr(writing, "find_complete_part", _nothing)
        patched.setattr(writing, "note_complete_part", late)
        with pytest.raises(
            TransactionAbortableError, match="so this attempt fails: another attempt of its task"
        ):
            await job.task(0, write="w")
    assert [await job.task(0, write="w")] == heard  # and its note is there
    await job.commit(heard)
    assert sum((await job.seen()).values()) == ROWS


async def test_attempt_fenced_at_its_note_fails(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """An attempt that is fenced while it leaves its note fails: Spark must not count it."""
    plain, part = trikafka.Admin.alter_group_offsets, job.part(0)
    servers = job.options.settings["bootstrap_servers"]

    async def commit(admin: trikafka.Admin, group_id: str, offsets: Any) -> None:
        await plain(admin, group_id, offsets)
        if group_id == part.notes:  # a copy looked before the note was there
            async with trikafka.open_producer(
                bootstrap_servers=servers, transactional_id=part.transactional_id
            ):
                pass

    with monkeypatch.context() as patched:
        patched.setattr(trikafka.Admin, "alter_group_offsets", commit)
        with pytest.raises(TransactionAbortableError, match="so this attempt fails"):
            await job.task(0, write="w")
    await job.commit([await job.task(0, write="w")])
    assert sum((await job.seen()).values()) == ROWS


async def test_late_copy_is_committed_with_the_others(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy that completes just after the driver has looked is committed with the others."""
    messages = [await job.task(0, write="w"), await job.task(1, write="w")]
    plain = commit_protocol._not_open

    async def look(*given: Any) -> Any:
        found = await plain(*given)
        with monkeypatch.context() as patched:
            patched.setattr(writing, "find_complete_part", _nothing)
            await job.task(1, write="w")
        return found

    monkeypatch.setattr(commit_protocol, "_not_open", look)
    with trio.fail_after(900):
        await job.commit(messages)
    assert sum((await job.seen()).values()) == 2 * ROWS


async def test_fenced_part_does_not_keep_others_open(
    job: Job,
) -> None:
    """The abort also ends parts of killed workers, although another part was fenced."""
    messages: list[Written | None] = [await job.task(0, write="w"), await job.task(1, write="w")]
    async with trikafka.open_producer(
        bootstrap_servers=job.options.settings["bootstrap_servers"],
        transactional_id=job.part(0).transactional_id,
    ):
        pass  # a copy that was killed
    messages[1] = None  # this worker was killed, too, before its message; its note exists
    await job.abort(messages)
    with trio.fail_after(300):  # its time-out would end it only after ten minutes
        await job.until("CompleteAbort", 1)


async def _nothing(*_: Any) -> None:
    """Return the result of a search for a note that does not exist yet."""


async def test_commit_survives_a_frozen_coordinator(make_kafka_cluster: Any) -> None:
    # With the session of three seconds that test clusters have, the controller may fence the broker
    # after the thaw, and its partitions have no leader for a moment. A coordinator skips the
    # markers of partitions without a leader ("Couldn't find leader endpoint", in the broker's log)
    # and calls the transaction complete. Then its rows stay invisible for ever, although the commit
    # succeeded: that is Kafka's fault, and no test of the client's.
    patient = {"broker.session.timeout.ms": 120_000}
    cluster = await trio.to_thread.run_sync(lambda: make_kafka_cluster(properties=patient))
    (broker,) = cluster.brokers
    job = Job(broker.bootstrap_servers, await make_topic(broker.bootstrap_servers, "frozen", 0, 2))
    messages = await job.tasks()
    transaction = messages[0].transaction
    assert transaction is not None
    with trio.fail_after(900):
        async with (
            trikafka.open_admin(bootstrap_servers=broker.bootstrap_servers) as admin,
            trio.open_nursery() as nursery,
        ):
            broker.freeze()
            try:
                nursery.start_soon(job.commit, messages)
                with pytest.raises(
                    TransactionUndecidedError, match="end_transaction may be called again"
                ):
                    await admin.end_transaction(transaction, commit=True, timeout=6)
            finally:
                broker.thaw()
    assert await job.seen() == ALL


async def test_unreachable_abort_is_logged(job: Job, caplog: pytest.LogCaptureFixture) -> None:
    messages = [await job.task(0)]
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound and not listening: refused
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        await Job(address, job.topic).abort(messages)
    line = (
        "some transactions of a failed write may still be open; the next run aborts them, or the "
        "broker after kafka.transaction.timeout.ms"
    )
    assert f"{line}: {job.topic}-0" in caplog.text
    assert await job.states(0) == ["Ongoing"]
    await job.commit(messages)
