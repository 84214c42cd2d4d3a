"""Writes that run again with other tasks, in a real Kafka and without Spark.

The number of tasks may differ, or their rows. No row may be lost or doubled without an error,
wherever the driver of the first run was killed.
"""

from __future__ import annotations

import json
import pickle
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest
import trio
from known_topics import committed
from trikafka_spark import commit_protocol
from trikafka_spark.write_options import WriteOptions
from trikafka_spark.write_parts import Part, Written
from trikafka_spark.writing import write_task

import trikafka
from trikafka import TransactionError

ROWS = 40
EACH_ONCE = Counter({b"%d" % row: 1 for row in range(ROWS)})


class Died(BaseException):
    """The kill of the driver."""


class Job:
    """A write of forty rows, by any number of tasks; ``run``: ``version``, or a query's id."""

    def __init__(self, servers: str, topic: str, name: str, run: str = "version") -> None:
        self.topic = topic
        self.name = name
        self.run = run
        self.options = WriteOptions(
            {"bootstrap_servers": servers, "transaction_timeout_ms": 600_000},
            {"value": "value"},
            topic,
            True,
            name,
            1,
        )

    async def tasks(self, shares: Sequence[Sequence[int]], number: int = 1) -> list[Written]:
        """Run all tasks, each with a share of the rows; return their messages."""
        write = uuid.uuid4().hex
        found: dict[int, Written] = {}

        def attempt(task: int, share: Sequence[int]) -> Written:
            part = Part(f"{self.name}-{task}", self.run, number, write, self.name)
            return write_task(self.options, _rows(share), part)

        async def one(task: int, share: Sequence[int]) -> None:
            found[task] = pickle.loads(
                pickle.dumps(await trio.to_thread.run_sync(attempt, task, share))
            )

        async with trio.open_nursery() as nursery:
            for task, share in enumerate(shares):
                nursery.start_soon(one, task, share)
        return [found[task] for task in range(len(shares))]

    async def write(self, shares: Sequence[Sequence[int]], number: int = 1) -> None:
        """Do one run as Spark does: a failed commit is followed by an abort."""
        messages = await self.tasks(shares, number)
        try:
            await trio.to_thread.run_sync(commit_protocol.commit, self.options, messages)
        except Exception:
            await trio.to_thread.run_sync(commit_protocol.abort, self.options, messages)
            raise

    async def die_after(
        self,
        ends: int,
        shares: Sequence[Sequence[int]],
        monkeypatch: pytest.MonkeyPatch,
        number: int = 1,
    ) -> None:
        """Do one run whose driver is killed when it has committed so many parts."""
        plain = commit_protocol._end

        async def end(admin: Any, waiting: Any, **more: Any) -> Any:
            await plain(admin, dict(list(waiting.items())[:ends]), **more)
            raise Died

        messages = await self.tasks(shares, number)
        with monkeypatch.context() as patched:
            patched.setattr(commit_protocol, "_end", end)
            with pytest.raises(Died):
                await trio.to_thread.run_sync(commit_protocol.commit, self.options, messages)

    async def seen(self) -> Counter[bytes]:
        return await committed(self.options.settings["bootstrap_servers"], self.topic)


def _rows(share: Sequence[int]) -> Iterator[pa.RecordBatch]:
    if share:
        yield pa.record_batch({"value": pa.array([b"%d" % row for row in share], pa.binary())})


def cut(tasks: int) -> list[range]:
    """Divide the rows in order, as evenly as possible."""
    return [range(ROWS * task // tasks, ROWS * (task + 1) // tasks) for task in range(tasks)]


@pytest.fixture
async def new_job(kafka_broker: Any, new_topic: Any) -> Any:
    """Make jobs: ``await new_job()`` returns a job with a topic of its own."""

    async def make(run: str = "version") -> Job:
        topic = await new_topic(0, partitions=1)
        return Job(kafka_broker.bootstrap_servers, topic, topic, run)

    return make


@pytest.mark.parametrize(("first", "then"), [(4, 8), (8, 4), (4, 5)])
async def test_other_number_of_tasks_is_safe(
    first: int, then: int, new_job: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run with another number of tasks doubles no row: it writes all, nothing, or fails."""
    whole, none, some = await new_job(), await new_job(), await new_job("a query")
    await whole.write(cut(first))
    await whole.write(cut(then))  # finds all rows, and writes none
    assert await whole.seen() == EACH_ONCE
    await none.die_after(0, cut(first), monkeypatch)
    await none.write(cut(then))
    assert await none.seen() == EACH_ONCE
    await some.die_after(2, cut(first), monkeypatch)
    named = rf"had {first} tasks and committed 2 of their parts, and this run has {then} tasks"
    for _ in range(2):
        with pytest.raises(TransactionError, match=named):
            await some.write(cut(then))
    assert sum((await some.seen()).values()) == ROWS * 2 // first
    await some.write(cut(first))  # as the error advises
    assert await some.seen() == EACH_ONCE


async def test_other_rows_of_the_tasks_are_safe(
    new_job: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same number of tasks may have other rows.

    Adaptive execution moves rows, and may leave a task without any.
    """
    turned = [*cut(4)[2:], *cut(4)[:2]]
    for shares in (turned, [(), (), range(20), range(20, 40)]):
        job = await new_job()
        await job.die_after(2, cut(4), monkeypatch)
        with pytest.raises(
            TransactionError,
            match=r"committed part 0 has 10 rows with 10 bytes.*but task 0 of this run has",
        ):
            await job.write(shares)
        await job.write(cut(4))
        assert await job.seen() == EACH_ONCE
        await job.write(shares)  # all rows are there, wherever
        with pytest.raises(TransactionError, match=r"nothing of this run of version 1"):
            await job.write([range(50)])
        assert await job.seen() == EACH_ONCE


async def test_complete_batch_does_not_stop_the_stream(
    new_job: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """A complete batch that runs again with other rows does not stop the stream.

    A plan with ``uuid()`` gives other rows when its last batch runs again. Each row is there, and
    the stream continues.
    """
    job = await new_job("a query")
    await job.write(cut(4))
    await job.write([[100 + row for row in share] for share in cut(4)])
    assert "micro-batch 1" in caplog.text
    assert "not deterministic" in caplog.text
    assert await job.seen() == EACH_ONCE


async def test_older_version_is_written_already(
    new_job: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The log says so: a ``foreachBatch`` whose checkpoint is new counts from 0 again."""
    job = await new_job()
    await job.write(cut(4), 2)
    await job.write(cut(8), 1)
    assert await job.seen() == EACH_ONCE
    assert f"version 1 of {job.name!r} is skipped: a later one, 2, is committed" in caplog.text
    begun = await new_job()
    await begun.die_after(0, cut(4), monkeypatch, 2)
    await begun.write(cut(8), 1)  # no row of the later version is written
    assert await begun.seen() == EACH_ONCE


async def test_late_driver_commits_nothing(new_job: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that was thought dead commits nothing after the next run.

    Its parts beyond those of the next run are fenced before that run commits.
    """
    job = await new_job()
    sleeping = await job.tasks(cut(8))
    with monkeypatch.context() as patched:

        async def die(*_: Any, **__: Any) -> None:
            raise Died

        patched.setattr(commit_protocol, "_end", die)
        with pytest.raises(Died):
            await trio.to_thread.run_sync(commit_protocol.commit, job.options, sleeping)
    await job.write(cut(4))
    with pytest.raises(TransactionError):
        await trio.to_thread.run_sync(commit_protocol.commit, job.options, sleeping)
    assert await job.seen() == EACH_ONCE


async def test_mark_of_a_write_is_one_offset(new_job: Any) -> None:
    """The mark of a write is one offset, independent of the topic of its first row."""
    job = await new_job()
    await job.write(cut(2), 1)
    await job.write(cut(3), 2)
    async with trikafka.open_admin(
        bootstrap_servers=job.options.settings["bootstrap_servers"]
    ) as admin:
        (at,) = (await admin.list_group_offsets(f"{job.name}-write")).values()
    assert json.loads(at.metadata) == {"trikafka": "version", "number": 2, "tasks": 3}
