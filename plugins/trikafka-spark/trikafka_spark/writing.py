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
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import trio
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

import trikafka
from trikafka import GroupMetadata, ProducerFencedError, TrikafkaError

from . import verdict
from .parts import Part, Whole, Written, admin_settings, find_whole, note_whole
from .row_digest import Rows
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
        if part is not None:
            return await _write_once(options, tables, first, part)
        if first is None:
            return Written(0)
        async with trikafka.open_producer(**options.settings) as producer:
            await _send(producer, tables, first)
        return Written(tables.rows)


async def _write_once(options: WriteOptions, tables: _Tables, first: _Some | None, part: Part) -> Written:
    async with trikafka.open_admin(**admin_settings(options)) as admin:
        if (whole := await find_whole(admin, part)) is not None:
            return await _hand_over(admin, tables, part, whole)
        if first is None:
            return Written(0)
        topic = first[0][0]
        async with trikafka.open_producer(**options.settings, transactional_id=part.transactional_id) as producer:
            # It is open: so each transaction of its id before has its outcome.
            if await part.is_committed(admin, topic):
                await tables.drain()
                return Written(0, again=True)
            began = trio.current_time()
            try:
                async with producer.transaction() as txn:
                    await _send(producer, tables, first)
                    # The mark comes last: a transaction that has it is whole.
                    await txn.send_offsets(part.mark(topic), GroupMetadata(part.transactional_id))
                    whole = Whole(await txn.detach(), tables.seen)
            except TrikafkaError as error:
                if _is_fenced(error):
                    error.add_note(_why_fenced(options, trio.current_time() - began))
                raise
            await note_whole(options, admin, part, topic, whole)
            return Written(whole.rows.count, part=part, transaction=whole.transaction)


async def _hand_over(admin: trikafka.Admin, tables: _Tables, part: Part, whole: Whole) -> Written:
    """Another attempt has written the part: it is the driver's to end, whichever of the two Spark hears."""
    await tables.drain()
    theirs, ours = whole.rows, tables.seen
    if ours == theirs:
        return Written(theirs.count, part=part, transaction=whole.transaction)
    await admin.end_transaction(whole.transaction, commit=False)
    same = ", of other contents" if (ours.count, ours.size) == (theirs.count, theirs.size) else ""
    raise TrikafkaError(
        f"two attempts at {part.transactional_id} have different rows: {theirs.count} with {theirs.size} bytes, and"
        f" {ours.count} with {ours.size}{same}. What was written is aborted; exactlyOnce needs a plan that gives a task the same"
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


async def _send(producer: Any, tables: _Tables, first: _Some) -> None:
    following: _Some | None = first
    while following is not None:
        for topic, table in following:
            await producer.send_arrow(topic, table, **{name: name for name in table.column_names})
        following = await tables.next()


class _Tables:
    """The rows of a task as tables, each for one topic, in order.

    Spark's iterator blocks, and so a thread reads it: one step ahead of what is sent. Leaving the block lets the thread end when
    Spark gives it something, or nothing more.
    """

    def __init__(self, options: WriteOptions, iterator: Iterator[pa.RecordBatch]) -> None:
        self._options = options
        #: All rows that were read; whole once :meth:`next` has said that there are no more.
        self.rows, self.seen = 0, Rows()
        self._iterator = iterator
        self._items: queue.Queue[_Some | BaseException | None] = queue.Queue(1)
        self._left = self._ended = False
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
        self._ended = not isinstance(item, list)
        if isinstance(item, BaseException):
            raise item
        return item

    async def drain(self) -> None:
        """Take what there is, and send nothing: Spark wants all of it to be taken."""
        while not self._ended:
            await self.next()

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

        columns, topic = self._options.columns, self._options.topic
        batches, rows, size = [], 0, 0
        for batch in self._iterator:
            if batch.num_rows:
                chosen = [batch.column(batch.schema.get_field_index(theirs)) for theirs in columns.values()]
                batches.append(pa.RecordBatch.from_arrays(chosen, names=list(columns)))
                rows, size = rows + batch.num_rows, size + batches[-1].nbytes
            if rows >= _ROWS or size >= _BYTES:
                break
        if not batches:
            return None
        table = pa.Table.from_batches(batches)
        tables = [(topic, table)] if topic is not None else _by_topic(table)
        self.rows += rows
        if self._options.exactly_once:  # here, beside the event loop
            for name, some in tables:
                self.seen = self.seen.plus(name, some)
        return tables


def _by_topic(table: pa.Table) -> _Some:
    import pyarrow.compute as pc

    topics, rest = table.column("topic"), table.drop_columns(["topic"])
    if topics.null_count:
        raise TrikafkaError("a row has no topic: its column 'topic' is null")
    names = pc.unique(topics).to_pylist()
    return [(name, rest if len(names) == 1 else rest.filter(pc.equal(topics, name))) for name in names]
