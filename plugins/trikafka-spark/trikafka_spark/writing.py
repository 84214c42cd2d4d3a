"""Writes of data frames and streams into topics: each Spark task has a producer, and sends what comes as Arrow tables.

At least once, as Spark's connector: what a failed attempt had sent stays. With ``exactlyOnce`` each task writes in one transaction,
which also holds a mark (:mod:`.parts`): *this task's part of this write is done*. It leaves the transaction open, and the driver
commits those of all tasks once all have succeeded (:mod:`.verdict`). A further attempt that finds the part written hands over the
same transaction. Otherwise whoever does a part again, a further attempt or the next run, opens the same transactional id, which
aborts what was left open, and finds the mark if it was committed.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import trio
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

import trikafka
from trikafka import GroupMetadata, ProducerFencedError, TrikafkaError

from . import verdict
from .parts import Part, Whole, Written, admin_settings, find_whole, note_whole
from .write_options import WriteOptions

if TYPE_CHECKING:
    import pyarrow as pa

#: Tables that are sent together, each with its topic.
_Some: TypeAlias = "list[tuple[str, pa.Table]]"
#: Rows and bytes that are sent as one table; the next one is gathered meanwhile.
_ROWS, _BYTES = 65_536, 8 << 20
_FENCED = (
    "Another attempt of this task, or another run of this write, has taken its place. Copies of tasks do that to each other: set"
    " spark.speculation to false for writes with exactlyOnce. Two writes must not have the same transactionalId."
)
_TOO_LATE = (
    "No other producer need be at work: this task's transaction was open for {took:.0f} s, and the coordinator aborts it after"
    " kafka.transaction.timeout.ms ({limit} ms), which the whole write has, to its commit. Write less at once, or set more."
)


class TrikafkaWriter(DataSourceArrowWriter):
    """One batch write."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options
        self._run = uuid.uuid4().hex  # carried to all attempts of all tasks, and to no other write

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write what one task has."""
        return _write_part(self._options, iterator, self._part)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """All tasks have succeeded: commit what they have left open."""
        if self._options.exactly_once:
            verdict.commit(self._options, messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """A task has failed, or the commit: abort what is open. Spark calls this in a process of its own."""
        if self._options.exactly_once:
            verdict.abort(self._options, messages)

    def _part(self) -> Part:
        options, task = self._options, _task()
        run, number = (self._run, 0) if options.version is None else ("version", options.version)
        return Part(f"{options.transactional_id}-{task.partitionId()}", run, number, self._run)


class TrikafkaStreamWriter(DataSourceStreamArrowWriter):
    """The writes of one stream."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options
        self._run = uuid.uuid4().hex  # of this start of the query, at the least

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write what one task of a micro-batch has."""
        return _write_part(self._options, iterator, self._part)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """All tasks of the micro-batch have succeeded: commit what they have left open."""
        if self._options.exactly_once:
            verdict.commit(self._options, messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """A task has failed, or the commit: abort what is open. What was committed the next run of the batch finds."""
        if self._options.exactly_once:
            verdict.abort(self._options, messages)

    def _part(self) -> Part:
        task = _task()
        query, batch = task.getLocalProperty("sql.streaming.queryId"), task.getLocalProperty("streaming.sql.batchId")
        if not query or batch is None:
            raise TrikafkaError("Spark does not tell the number of the micro-batch here, so it cannot be written exactly once")
        return Part(f"{self._options.transactional_id or f'spark-{query}'}-{task.partitionId()}", query, int(batch), self._run)


def _task() -> Any:
    from pyspark import TaskContext

    task = TaskContext.get()
    if task is None:
        raise TrikafkaError("this is no Spark task")
    return task


def _write_part(options: WriteOptions, iterator: Iterator[pa.RecordBatch], part: Callable[[], Part]) -> Written:
    return write_task(options, iterator, part() if options.exactly_once else None)


def write_task(options: WriteOptions, iterator: Iterator[pa.RecordBatch], part: Part | None) -> Written:
    """Send all rows; return when each is delivered. Where there is a ``part``, they are in a transaction that is left open.

    Raises what the producer raises.
    """
    return trio.run(_write, options, iterator, part)


async def _write(options: WriteOptions, iterator: Iterator[pa.RecordBatch], part: Part | None) -> Written:
    with _Tables(options, iterator) as tables:
        first = await tables.next()
        if first is None:
            return Written(0)
        if part is not None:
            return await _write_once(options, tables, first, part)
        async with trikafka.open_producer(**options.settings) as producer:
            return Written((await _send(producer, tables, first)).rows)


async def _write_once(options: WriteOptions, tables: _Tables, first: _Some, part: Part) -> Written:
    topic = first[0][0]
    async with trikafka.open_admin(**admin_settings(options)) as admin:
        if (whole := await find_whole(admin, part)) is not None:
            return await _hand_over(admin, tables, first, part, whole)
        async with trikafka.open_producer(**options.settings, transactional_id=part.transactional_id) as producer:
            # It is open: so each transaction of its id before has its outcome.
            if await part.is_committed(admin, topic):
                await _count(tables, None)
                return Written(0, again=True)
            began = trio.current_time()
            try:
                async with producer.transaction() as txn:
                    sent = await _send(producer, tables, first)
                    # The mark comes last: a transaction that has it is whole.
                    await txn.send_offsets(part.mark(topic), GroupMetadata(part.transactional_id))
                    whole = Whole(await txn.detach(), sent.rows, sent.size)
            except TrikafkaError as error:
                if _is_fenced(error):
                    error.add_note(_why_fenced(options, trio.current_time() - began))
                raise
            await note_whole(options, part, topic, whole)
            return Written(whole.rows, part=part, transaction=whole.transaction)


async def _hand_over(admin: trikafka.Admin, tables: _Tables, first: _Some, part: Part, whole: Whole) -> Written:
    """Another attempt has written the part: it is the driver's to end, whichever of the two Spark hears."""
    counted = await _count(tables, first)
    if (counted.rows, counted.size) == (whole.rows, whole.size):
        return Written(whole.rows, part=part, transaction=whole.transaction)
    await admin.end_transaction(whole.transaction, commit=False)
    raise TrikafkaError(
        f"two attempts at {part.transactional_id} have different rows: {whole.rows} with {whole.size} bytes, and"
        f" {counted.rows} with {counted.size}. What was written is aborted; exactlyOnce needs a plan that gives a task the same"
        " rows each time"
    )


def _why_fenced(options: WriteOptions, took: float) -> str:
    """The coordinator refuses a transaction that it has aborted for its time with the same words as one of an older producer."""
    limit = options.settings["transaction_timeout_ms"]
    return _FENCED if took * 1000 < limit else _TOO_LATE.format(took=took, limit=limit)


def _is_fenced(error: BaseException | None) -> bool:
    while error is not None and not isinstance(error, ProducerFencedError):
        error = error.__cause__
    return error is not None


@dataclass
class _Count:
    """Of the rows of a task: how many, and the bytes of their keys and values."""

    rows: int = 0
    size: int = 0

    def add(self, table: pa.Table) -> None:
        import pyarrow.compute as pc

        self.rows += table.num_rows
        for name in {"key", "value"}.intersection(table.column_names):
            self.size += pc.sum(pc.binary_length(table.column(name))).as_py() or 0


async def _send(producer: Any, tables: _Tables, first: _Some) -> _Count:
    sent = _Count()
    following: _Some | None = first
    while following is not None:
        for topic, table in following:
            await producer.send_arrow(topic, table, **{name: name for name in table.column_names})
            sent.add(table)
        following = await tables.next()
    return sent


async def _count(tables: _Tables, first: _Some | None) -> _Count:
    """Take what there is, and send nothing: Spark wants all of it to be taken."""
    found = _Count()
    following: _Some | None = first or []
    while following is not None:
        for _, table in following:
            found.add(table)
        following = await tables.next()
    return found


class _Tables:
    """The rows of a task as tables, each for one topic, in order.

    Spark's iterator blocks, and so a thread reads it: one step ahead of what is sent. Leaving the block lets the thread end when
    Spark gives it something, or nothing more.
    """

    def __init__(self, options: WriteOptions, iterator: Iterator[pa.RecordBatch]) -> None:
        self._columns, self._topic = options.columns, options.topic
        self._iterator = iterator
        self._items: queue.Queue[_Some | BaseException | None] = queue.Queue(1)
        self._left = False
        self._limiter = trio.CapacityLimiter(1)

    def __enter__(self) -> Self:
        threading.Thread(target=self._run, name="trikafka rows", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._left = True
        with contextlib.suppress(queue.Empty):
            self._items.get_nowait()

    async def next(self) -> _Some | None:
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

    def _gather(self) -> _Some | None:
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


def _by_topic(table: pa.Table) -> _Some:
    import pyarrow.compute as pc

    topics, rest = table.column("topic"), table.drop_columns(["topic"])
    if topics.null_count:
        raise TrikafkaError("a row has no topic: its column 'topic' is null")
    names = pc.unique(topics).to_pylist()
    return [(name, rest if len(names) == 1 else rest.filter(pc.equal(topics, name))) for name in names]
