"""Writes of data frames and streams into topics: each Spark task has a producer, and sends what comes as Arrow tables.

At least once, as Spark's connector: what a failed attempt had sent stays. With ``exactlyOnce`` each task writes in one transaction,
which also holds a mark: *this task's part of this write is done*. The mark is an offset's note in the group that is named as the
transactional id, so that rows and mark are committed together or not at all. Whoever does that part again, a further attempt or
the next run of a stream, opens the same transactional id, which ends what was open, and finds the mark.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import trio
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

import trikafka
from trikafka import GroupMetadata, OffsetAndMetadata, TopicPartition, TrikafkaError

from .write_options import WriteOptions

if TYPE_CHECKING:
    import pyarrow as pa

#: Rows and bytes that are sent as one table; the next one is gathered meanwhile.
_ROWS, _BYTES = 65_536, 8 << 20


@dataclass
class Written(WriterCommitMessage):
    """What a task has written; ``again``: it had been written by an earlier attempt or run, and was not written again."""

    rows: int
    again: bool = False


@dataclass(frozen=True, slots=True)
class Part:
    """The part of a write that a task has: ``number`` of the write called ``run``. Later numbers replace earlier ones."""

    transactional_id: str
    run: str
    number: int

    @property
    def note(self) -> str:
        """The mark."""
        return json.dumps({"trikafka": self.run, "number": self.number})

    def is_done(self, notes: Iterable[str]) -> bool:
        """Whether a mark among ``notes`` says so."""
        for note in notes:
            try:
                mark = json.loads(note)
                if mark["trikafka"] == self.run and mark["number"] >= self.number:
                    return True
            except (ValueError, TypeError, KeyError):
                continue
        return False


class TrikafkaWriter(DataSourceArrowWriter):
    """One batch write."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options
        self._run = uuid.uuid4().hex  # carried to all attempts of all tasks, and to no other write

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write what one task has."""
        return write_task(self._options, iterator, self._part() if self._options.exactly_once else None)

    def _part(self) -> Part:
        options, task = self._options, _task()
        run, number = (self._run, 0) if options.version is None else ("version", options.version)
        return Part(f"{options.transactional_id}-{task.partitionId()}", run, number)


class TrikafkaStreamWriter(DataSourceStreamArrowWriter):
    """The writes of one stream."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write what one task of a micro-batch has."""
        return write_task(self._options, iterator, self._part() if self._options.exactly_once else None)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing to do: each task's transaction is committed by itself."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing to undo: what was committed is found by the run that does the batch again."""

    def _part(self) -> Part:
        task = _task()
        query, batch = task.getLocalProperty("sql.streaming.queryId"), task.getLocalProperty("streaming.sql.batchId")
        if not query or batch is None:
            raise TrikafkaError("Spark does not tell the number of the micro-batch here, so it cannot be written exactly once")
        return Part(f"{self._options.transactional_id or f'spark-{query}'}-{task.partitionId()}", query, int(batch))


def _task() -> Any:
    from pyspark import TaskContext

    task = TaskContext.get()
    if task is None:
        raise TrikafkaError("this is no Spark task")
    return task


def write_task(options: WriteOptions, iterator: Iterator[pa.RecordBatch], part: Part | None) -> Written:
    """Send all rows; return when each is delivered, and committed where there is a ``part``. Raises what the producer raises."""
    return trio.run(_write, options, iterator, part)


async def _write(options: WriteOptions, iterator: Iterator[pa.RecordBatch], part: Part | None) -> Written:
    tables = _Tables(options, iterator)
    first = await tables.next()
    if first is None:
        return Written(0)
    settings = dict(options.settings)
    if part is not None:
        settings["transactional_id"] = part.transactional_id
    async with trikafka.open_producer(**settings) as producer:
        if part is not None and part.is_done(await _notes(options, part)):
            while await tables.next() is not None:
                pass
            return Written(0, again=True)
        async with _transaction(producer, part) as mark:
            rows = 0
            async with _gathering(tables, first) as gathered:
                async for topic, table in gathered:
                    names = {name: name for name in table.column_names}
                    if part is not None and rows == 0:
                        await mark(topic)
                    await producer.send_arrow(topic, table, **names)
                    rows += table.num_rows
    return Written(rows)


async def _notes(options: WriteOptions, part: Part) -> list[str]:
    """The marks that are committed. The producer is open: so no transaction of its id is undecided any more."""
    names = set(trikafka.AdminConfig.__dataclass_fields__)
    async with trikafka.open_admin(**{name: value for name, value in options.settings.items() if name in names}) as admin:
        found = await admin.list_group_offsets(part.transactional_id)
    return [at.metadata for at in found.values()]


@asynccontextmanager
async def _transaction(producer: Any, part: Part | None) -> AsyncIterator[Any]:
    """A transaction, and what puts the mark into it; neither where there is no ``part``."""
    if part is None:
        yield None
        return
    async with producer.transaction() as txn:

        async def mark(topic: str) -> None:
            offsets = {TopicPartition(topic, 0): OffsetAndMetadata(part.number, metadata=part.note)}
            await txn.send_offsets(offsets, GroupMetadata(part.transactional_id))

        yield mark


@asynccontextmanager
async def _gathering(tables: _Tables, first: list[tuple[str, Any]]) -> AsyncIterator[Any]:
    """Tables to send, while the next ones are gathered."""
    send, receive = trio.open_memory_channel[tuple[str, Any]](1)

    async def gather() -> None:
        async with send:
            following: list[tuple[str, Any]] | None = first
            while following is not None:
                for each in following:
                    await send.send(each)
                following = await tables.next()

    async with trio.open_nursery(strict_exception_groups=False) as nursery, receive:
        nursery.start_soon(gather)
        yield receive


class _Tables:
    """The rows of a task as tables, each for one topic, in order. Spark's iterator is read in a thread, for it blocks."""

    def __init__(self, options: WriteOptions, iterator: Iterator[pa.RecordBatch]) -> None:
        self._columns, self._topic = options.columns, options.topic
        self._iterator = iterator
        self._limiter = trio.CapacityLimiter(1)

    async def next(self) -> list[tuple[str, pa.Table]] | None:
        """The next tables, or ``None``. Where it is cancelled the thread is left behind: the task is over then."""
        return await trio.to_thread.run_sync(self._next, limiter=self._limiter, abandon_on_cancel=True)

    def _next(self) -> list[tuple[str, pa.Table]] | None:
        import pyarrow as pa

        batches, rows, size = [], 0, 0
        for batch in self._iterator:
            if batch.num_rows:
                chosen = [batch.column(batch.schema.get_field_index(theirs)) for theirs in self._columns.values()]
                batches.append(pa.RecordBatch.from_arrays(chosen, names=list(self._columns)))
                rows, size = rows + batch.num_rows, size + batches[-1].nbytes
            if rows >= _ROWS or size >= _BYTES:
                break
        if not batches:
            return None
        table = pa.Table.from_batches(batches)
        return [(self._topic, table)] if self._topic is not None else _by_topic(table)


def _by_topic(table: pa.Table) -> list[tuple[str, pa.Table]]:
    import pyarrow.compute as pc

    topics, rest = table.column("topic"), table.drop_columns(["topic"])
    if topics.null_count:
        raise TrikafkaError("a row has no topic: its column 'topic' is null")
    names = pc.unique(topics).to_pylist()
    return [(name, rest if len(names) == 1 else rest.filter(pc.equal(topics, name))) for name in names]
