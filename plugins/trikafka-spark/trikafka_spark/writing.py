"""Writes of data frames and streams into topics: each Spark task has a producer, and sends what comes as Arrow tables.

At least once, as Spark's connector: what a failed attempt had sent stays. With ``exactlyOnce`` each task writes in one transaction,
which also holds a mark: *this task's part of this write is done*. The mark is an offset's note in the group that is named as the
transactional id, so that rows and mark are committed together or not at all. Whoever does that part again, a further attempt or
the next run of a stream, opens the same transactional id, which ends what was open, and finds the mark.
"""

from __future__ import annotations

import contextlib
import json
import queue
import threading
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

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
    with _Tables(options, iterator) as tables:
        first = await tables.next()
        if first is None:
            return Written(0)
        settings = dict(options.settings)
        if part is None:
            async with trikafka.open_producer(**settings) as producer:
                return Written(await _send(producer, tables, first))
        async with trikafka.open_producer(**settings, transactional_id=part.transactional_id) as producer:
            if part.is_done(await _notes(options, part)):
                while await tables.next() is not None:
                    pass
                return Written(0, again=True)
            async with producer.transaction() as txn:
                mark = {TopicPartition(first[0][0], 0): OffsetAndMetadata(part.number, metadata=part.note)}
                await txn.send_offsets(mark, GroupMetadata(part.transactional_id))
                rows = await _send(producer, tables, first)
            return Written(rows)


async def _send(producer: Any, tables: _Tables, first: list[tuple[str, Any]]) -> int:
    rows = 0
    following: list[tuple[str, Any]] | None = first
    while following is not None:
        for topic, table in following:
            await producer.send_arrow(topic, table, **{name: name for name in table.column_names})
            rows += table.num_rows
        following = await tables.next()
    return rows


async def _notes(options: WriteOptions, part: Part) -> list[str]:
    """The marks that are committed. The producer is open: so no transaction of its id is undecided any more."""
    names = set(trikafka.AdminConfig.__dataclass_fields__)
    async with trikafka.open_admin(**{name: value for name, value in options.settings.items() if name in names}) as admin:
        found = await admin.list_group_offsets(part.transactional_id)
    return [at.metadata for at in found.values()]


class _Tables:
    """The rows of a task as tables, each for one topic, in order.

    Spark's iterator blocks, and so a thread reads it: one step ahead of what is sent. Leaving the block lets the thread end when
    Spark gives it something, or nothing more.
    """

    def __init__(self, options: WriteOptions, iterator: Iterator[pa.RecordBatch]) -> None:
        self._columns, self._topic = options.columns, options.topic
        self._iterator = iterator
        self._items: queue.Queue[list[tuple[str, pa.Table]] | BaseException | None] = queue.Queue(1)
        self._left = False
        self._limiter = trio.CapacityLimiter(1)

    def __enter__(self) -> Self:
        threading.Thread(target=self._run, name="trikafka rows", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._left = True
        with contextlib.suppress(queue.Empty):
            self._items.get_nowait()

    async def next(self) -> list[tuple[str, pa.Table]] | None:
        """The next tables, or ``None`` at the end. Raises what Spark's iterator raised."""
        item = await trio.to_thread.run_sync(self._items.get, limiter=self._limiter, abandon_on_cancel=True)
        if isinstance(item, BaseException):
            raise item
        return item

    # --- the thread ---

    def _run(self) -> None:
        last: BaseException | None = None
        try:
            while not self._left and (tables := self._gather()) is not None:
                self._items.put(tables)
        except BaseException as error:
            last = error
        if not self._left:
            self._items.put(last)

    def _gather(self) -> list[tuple[str, pa.Table]] | None:
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
