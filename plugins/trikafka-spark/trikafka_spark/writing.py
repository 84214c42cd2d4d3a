"""Writes of data frames and streams into topics, by one producer for each Spark task.

A task sends its rows as Arrow tables. The default is at least once, as in Spark's connector: the
rows of a failed attempt stay. With ``exactlyOnce`` each task writes in one transaction, and the
driver commits the transactions of all tasks (:mod:`.commit_protocol`).
"""

# How a write is exactly once
# ---------------------------
#
# A task writes its rows and then a *mark* (:mod:`.write_parts`) in one transaction. The mark says
# that this task's part of this write is done. It is sent last, so a transaction with a mark has all
# rows. The task leaves the transaction open (``detach``), and returns its producer id and epoch to
# the driver.
# The driver commits the transactions once all tasks have succeeded. So a task that fails makes
# nothing visible.
#
# Spark may run a task again: after a failure, as a copy (speculation), or in the next run of the
# whole write. The transactional id names the part, so each attempt opens the same id:
#
# * Opening the id fences the earlier attempt and aborts its open transaction. From then on each
#   older transaction of the id has its outcome, so the mark can be read: if it is committed, the
#   part is done and the task sends nothing.
# * An open transaction that a finished attempt has left must not be aborted: Spark may have taken
#   the message of that attempt. So before it opens the id, a task looks for the *note* that a
#   finished attempt leaves. If it finds one, it compares the rows and hands over the same
#   transaction.
# * The note is committed after the transaction is detached. Between the two a second attempt may
#   have opened the id. So the first attempt checks that its transaction is still open, before and
#   after it leaves the note (``write_parts.note_complete_part``), and fails if it is not.
# * A killed attempt leaves neither a message nor a note. So each attempt leaves a *begin* before it
#   opens the id. If Spark kills all workers, the driver finds by it which transactions to abort.
#
# :mod:`.commit_protocol` describes the driver's part, and what a killed driver leaves. Another run
# may divide the rows into other tasks: :mod:`.whole_write` detects that.

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import TYPE_CHECKING, Any, Self, TypeAlias, TypeVar

import trio
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

import trikafka
from trikafka import (
    BootstrapError,
    GroupMetadata,
    ProducerConfig,
    ProducerFencedError,
    RequestTimedOutError,
    TrikafkaError,
)
from trikafka.errors.groups import chain
from trikafka.toolkit import call_each, decisive, with_others

from . import commit_protocol
from .kafka_settings import by_option
from .row_digest import RowDigest
from .whole_write import BATCH
from .write_options import WriteOptions
from .write_parts import (
    Account,
    CompletePart,
    Part,
    Written,
    admin_settings,
    find_complete_part,
    note_begun_part,
    note_complete_part,
)

if TYPE_CHECKING:
    import pyarrow as pa

_log = logging.getLogger("trikafka.spark")
Client = TypeVar("Client")
#: Tables to send together, each with its topic.
_Some: TypeAlias = "list[tuple[str, pa.Table]]"
#: Rows and bytes of one table; the next table is gathered while this one is sent.
_ROWS, _BYTES = 65_536, 8 << 20
_FENCED = (
    "Another attempt of this task, or another run of this write, has replaced this one. "
    "Speculative copies of tasks do that: set spark.speculation=false for writes with "
    "exactlyOnce. Two writes must not use the same transactionalId."
)
_TOO_LATE = (
    "This task's transaction was open for {took:.0f} s, and the coordinator aborts it "
    "after kafka.transaction.timeout.ms ({limit} ms), which covers the whole write up to "
    "its commit. Write less at once, or raise the setting."
)


class PartWriter(ABC):
    """The common part of the writers of batches and of streams.

    Spark passes ``batchId`` for a stream only.
    """

    def __init__(self, options: WriteOptions) -> None:
        self._options = options
        #: The same in all attempts of all tasks of a batch. A stream has another one in each start
        #: of the query, at the least.
        self._run = uuid.uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of one task."""
        return write_task(
            self._options, iterator, self._part() if self._options.exactly_once else None
        )

    def commit(
        self, messages: list[WriterCommitMessage | None], batchId: int | None = None
    ) -> None:
        """Commit the transactions of all tasks, which have all succeeded."""
        if self._options.exactly_once:
            commit_protocol.commit(self._options, messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int | None = None) -> None:
        """Abort the open transactions, after a task or the commit has failed.

        Spark calls this in a process of its own, which has another ``_run`` if this is a stream.
        The next run of a stream's batch finds the marks of the parts that were committed.
        """
        if self._options.exactly_once:
            write = self._run if batchId is None else None
            commit_protocol.abort(self._options, messages, write)

    @abstractmethod
    def _part(self) -> Part:
        """Return the part of this task."""


class TrikafkaWriter(PartWriter, DataSourceArrowWriter):
    """The writer of one batch."""

    def _part(self) -> Part:
        options = self._options
        task = this_task()
        run, number = (self._run, 0) if options.version is None else (BATCH, options.version)
        # A write without a version cannot run again, so it needs no mark of the whole write.
        whole = None if options.version is None else options.transactional_id
        return Part(
            f"{options.transactional_id}-{task.partitionId()}", run, number, self._run, whole
        )


def this_task() -> Any:
    """Return the Spark task that this process runs.

    Raises:
        TrikafkaError: The process runs no task.
    """
    from pyspark import TaskContext

    task = TaskContext.get()
    if task is None:
        raise TrikafkaError("this process does not run a Spark task")
    return task


def write_task(
    options: WriteOptions, iterator: Iterator[pa.RecordBatch], part: Part | None
) -> Written:
    """Send all rows, and return when each is delivered.

    With a ``part`` the rows are sent in a transaction, which stays open. Raises the errors of the
    producer.
    """
    with by_option(options.kafka):
        return trio.run(_write, options, iterator, part)


async def _write(
    options: WriteOptions, iterator: Iterator[pa.RecordBatch], part: Part | None
) -> Written:
    with _Tables(options, iterator) as tables:
        first = await tables.next()
        if part is not None:
            return await _write_once(options, tables, first, part)
        if first is None:
            return Written(0)
        async with AsyncExitStack() as stack:
            producer = await _enter(
                stack, options, lambda: trikafka.open_producer(**options.settings)
            )
            await _send(producer, tables, first)
        return Written(tables.rows)


async def _write_once(
    options: WriteOptions, tables: _Tables, first: _Some | None, part: Part
) -> Written:
    topic = None if first is None else first[0][0]
    async with AsyncExitStack() as stack:
        admin = await _enter(stack, options, lambda: trikafka.open_admin(**admin_settings(options)))
        if (whole := await find_complete_part(admin, part)) is not None:
            return await _hand_over(admin, tables, part, whole, topic)
        if first is None or topic is None:
            return Written(0, account=Account(part, tables.seen))
        await note_begun_part(admin, part, topic)
        async with trikafka.open_producer(
            **options.settings, transactional_id=part.transactional_id
        ) as producer:
            # The producer is open, so each earlier transaction of its id has its outcome.
            if (mark := await part.committed(admin, topic)) is not None:
                await tables.drain()
                return Written(0, again=True, account=Account(part, tables.seen, mark, topic))
            began = trio.current_time()
            try:
                async with producer.transaction() as txn:
                    await _send(producer, tables, first)
                    # The mark comes last: a transaction that has it is whole.
                    await txn.send_offsets(
                        part.mark(topic, tables.seen), GroupMetadata(part.transactional_id)
                    )
                    whole = CompletePart(await txn.detach(), tables.seen)
            except TrikafkaError as error:
                if any(isinstance(each, ProducerFencedError) for each in chain(error)):
                    error.add_note(_why_fenced(options, trio.current_time() - began))
                raise
            await note_complete_part(admin, part, topic, whole)
            account = Account(part, whole.rows, topic=topic)
            return Written(whole.rows.count, transaction=whole.transaction, account=account)


async def _enter(
    stack: AsyncExitStack,
    options: WriteOptions,
    make: Callable[[], AbstractAsyncContextManager[Client]],
) -> Client:
    """Enter the client that ``make`` makes, and return it.

    If no address responds, the opening is repeated for up to ``max.block.ms``. The last attempt is
    waited for: it takes ``request.timeout.ms``. If a connection is refused, there is no broker at
    the address, and the error is raised at once.
    """
    limit = options.settings.get("max_block_ms", ProducerConfig().max_block_ms) / 1000
    ends = trio.current_time() + limit
    logged = False
    while True:
        try:
            with by_option(options.kafka):
                client: Client = await stack.enter_async_context(make())
        except BootstrapError as error:
            if not isinstance(error.__cause__, RequestTimedOutError) or trio.current_time() >= ends:
                raise
            if not logged:
                _log.warning(
                    "%s; the opening is retried for up to %g s (kafka.max.block.ms)", error, limit
                )
            logged = True
        else:
            return client


async def _hand_over(
    admin: trikafka.Admin, tables: _Tables, part: Part, whole: CompletePart, topic: str | None
) -> Written:
    """Return the transaction of another attempt that has written this part.

    The driver ends the transaction, whichever of the two attempts Spark takes. If the rows of the
    two attempts differ, the transaction is aborted and the task fails: a plan that is not
    deterministic cannot be written exactly once.
    """
    await tables.drain()
    theirs, ours = whole.rows, tables.seen
    if ours == theirs:
        account = Account(part, ours, topic=topic)
        return Written(theirs.count, transaction=whole.transaction, account=account)
    await admin.end_transaction(whole.transaction, commit=False)
    same = ", with other contents" if (ours.count, ours.size) == (theirs.count, theirs.size) else ""
    raise TrikafkaError(
        f"two attempts at {part.transactional_id} have different rows: {theirs.count} with "
        f"{theirs.size} bytes, and {ours.count} with {ours.size}{same}. The written rows are "
        "aborted; exactlyOnce needs a query that gives a task the same rows in each attempt"
    )


def _why_fenced(options: WriteOptions, took: float) -> str:
    """Return the explanation of a fenced producer: another attempt, or the transaction's time-out.

    The coordinator responds with the same error to a producer whose transaction it has aborted
    after the time-out.
    """
    limit = options.settings["transaction_timeout_ms"]
    return _FENCED if took * 1000 < limit else _TOO_LATE.format(took=took, limit=limit)


async def _send(producer: Any, tables: _Tables, first: _Some) -> None:
    following: _Some | None = first
    while following is not None:
        await _send_each(producer, following)
        following = await tables.next()


async def _send_each(producer: Any, some: _Some) -> None:
    """Send tables of several topics at the same time, and wait until all rows are delivered.

    In turn, each topic would cost the task a round trip for each of its tables. After an error the
    task fails, so no further topic is begun: each may take as long to fail as the first one.
    """
    errors: list[Exception] = []
    tables = dict(some)

    async def send(topic: str) -> None:
        if errors:
            return
        table = tables[topic]
        try:
            await producer.send_arrow(topic, table, **{name: name for name in table.column_names})
        except Exception as error:
            errors.append(error)

    await call_each(send, tables)
    if errors:
        raise with_others(decisive(errors), errors)


class _Tables:
    """The rows of a task as tables, each for one topic, in order.

    Spark's iterator blocks, so a thread reads it, one step ahead of the tables that are sent. After
    the block is left, the thread ends when Spark returns from its next call.
    """

    def __init__(self, options: WriteOptions, iterator: Iterator[pa.RecordBatch]) -> None:
        self._options = options
        #: The rows that were read; complete once :meth:`next` has returned ``None``.
        self.rows = 0
        self.seen = RowDigest()
        self._iterator = iterator
        self._items: queue.Queue[_Some | BaseException | None] = queue.Queue(1)
        self._left = False
        self._ended = False
        self._limiter = trio.CapacityLimiter(1)

    def __enter__(self) -> Self:
        threading.Thread(target=self._run, name="trikafka rows", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._left = True
        with contextlib.suppress(queue.Empty):
            self._items.get_nowait()

    async def next(self) -> _Some | None:
        """Return the next tables, or ``None`` at the end. Raises the error of Spark's iterator."""
        item = await trio.to_thread.run_sync(
            self._items.get, limiter=self._limiter, abandon_on_cancel=True
        )
        self._ended = not isinstance(item, list)
        if isinstance(item, BaseException):
            raise item
        return item

    async def drain(self) -> None:
        """Take the remaining rows and send nothing, since Spark wants all rows to be taken."""
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
                chosen = [
                    batch.column(batch.schema.get_field_index(theirs))
                    for theirs in columns.values()
                ]
                batches.append(pa.RecordBatch.from_arrays(chosen, names=list(columns)))
                rows += batch.num_rows
                size += batches[-1].nbytes
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

    topics = table.column("topic")
    rest = table.drop_columns(["topic"])
    if topics.null_count:
        raise TrikafkaError("a row has no topic: its column 'topic' is null")
    names = pc.unique(topics).to_pylist()
    return [
        (name, rest if len(names) == 1 else rest.filter(pc.equal(topics, name))) for name in names
    ]
