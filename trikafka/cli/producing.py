"""The work of ``trikafka produce``. It succeeds only if every record was acknowledged."""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import click
import trio

from .._api.producer.ack import Ack
from .._api.producer.arrow_sending import ArrowAck
from .._api.producer.opening import open_producer
from .._api.producer.producer import Producer
from .._wire import _implementation
from .._wire.column_rows import ColumnRows
from ..errors import ArrowDeliveryError, TrikafkaError
from ..errors.counts import counted
from ..types import PartitionDelivery, RecordMetadata, TopicPartition
from .admin import no_topic
from .csv_columns import Choice, CsvBlocks
from .delivered import Delivered
from .json_columns import read_json_block
from .parquet_in import ParquetFile
from .progress import Meter, meter, warn
from .record_lines import BadLineError, Line
from .running import Stop
from .source import Block, Lines, split

#: The most accepted records, or tables, without a collected outcome. The producer's buffer_memory
#: alone would admit millions of short records, whose acks and places take many times their bytes.
_MOST_UNSETTLED = 20_000


@dataclass(frozen=True, slots=True)
class ProducePlan:
    """The options of the command: the input to read and the records to write.

    ``form`` is ``json``, ``raw``, ``csv`` or ``parquet``. ``read`` parses a line of JSON or raw
    text.
    """

    files: tuple[str, ...]
    topic: str | None
    form: str
    read: Callable[[bytes], Line]
    key: bytes | None
    partition: int | None
    any_partition: bool
    headers: tuple[tuple[str, bytes | None], ...]
    key_delimiter: bytes | None = None
    empty_is_null: bool = False
    key_column: str | None = None
    value_column: str | None = None

    @property
    def of_columns(self) -> bool:
        """True if lines can become columns: no option adds a key or headers to each record."""
        return self.key is None and not self.headers


class Producing:
    """One run of the command."""

    def __init__(self, settings: dict[str, Any], plan: ProducePlan) -> None:
        self._settings = settings
        self._plan = plan
        #: The accepted records in order, with a function that names a row's place in the input.
        #: Bounded by _MOST_UNSETTLED.
        self._acks: deque[tuple[Callable[[int], str], Ack | ArrowAck]] = deque()
        self._partitions: dict[str, int] = {}
        self._total: int | None = None
        self._meter: Meter
        self._stop: Stop
        self.delivered = Delivered()

    async def main(self, stop: Stop) -> None:
        """Write all lines, or after a signal those read so far.

        Raises the first failure after the records before it have been acknowledged.
        """
        self._stop = stop
        failed: click.ClickException | None = None
        text = f"to {self._plan.topic}" if self._plan.topic else "writing"
        with meter(text, "records", beside_output=False) as self._meter:
            async with open_producer(**self._settings) as producer:
                if self._plan.topic is not None:
                    await self._count_partitions(producer, self._plan.topic)
                try:
                    with stop.here():
                        for path in self._plan.files:
                            await self._send_file(producer, path)
                except click.ClickException as error:
                    failed = error
                try:
                    # No limit here: each record has its own, delivery_timeout_ms.
                    await producer.flush(timeout=math.inf)
                    await self._settle(most=0)
                except click.ClickException as error:
                    failed = failed or error
                except trio.Cancelled:
                    with trio.CancelScope(shield=True):  # these outcomes are known
                        await self._settle()
                    self._warn_of_unknown()
                    raise
        if failed is not None:
            count = self.delivered.count
            before = f"; {count} {'record was' if count == 1 else 'records were'} written"
            raise click.ClickException(failed.message + before) from failed

    def _warn_of_unknown(self) -> None:
        """Print the place from which on records have no acknowledgement."""
        unknown = [where for where, ack in self._acks if not ack.done]
        if unknown:
            warn(f"no acknowledgement from {unknown[0](0)} on: records there may be written or not")

    async def _send_file(self, producer: Producer, path: str) -> None:
        name = "" if path == "-" else f"{path}: "
        try:
            if self._plan.form == "parquet":
                await self._send_parquet(producer, path, name)
            else:
                await self._send_lines(producer, path, name)
        except OSError as error:
            if isinstance(error, TrikafkaError):
                raise
            what = "the standard input" if path == "-" else path
            raise click.ClickException(
                f"cannot read {what}: {error.strerror or os.strerror(error.errno or 5)}"
            ) from error

    async def _send_lines(self, producer: Producer, path: str, name: str) -> None:
        number = 0
        csv = self._csv() if self._plan.form == "csv" else None
        convert = self._block if csv is None else csv.take
        lines = Lines(path)
        try:
            while True:
                try:
                    if (block := await lines.read(convert)) is None:
                        if csv is not None:
                            csv.finish()
                        break
                except BadLineError as error:
                    raise BadLineError(f"{name}line {number + 1}: {error.message}") from None
                # A signal does not interrupt the sending of lines that were read.
                with self._stop.finishing():
                    await self._send_read(producer, block, name, number)
                number += block.lines
                await self._settle()
        except trio.Cancelled:
            # Lines that the thread had taken from the input count as read, and are written.
            with self._stop.finishing():
                if (block := await lines.kept()) is not None:
                    await self._send_read(producer, block, name, number)
                    number += block.lines
            if lines.unfinished or (csv is not None and csv.unfinished):
                warn(f"{name}line {number + 1} had not arrived as a whole, and was not written")
            raise
        finally:
            lines.close()

    async def _send_read(self, producer: Producer, block: Block, name: str, number: int) -> None:
        """Send the lines of a block; ``number`` lines of the input are before it."""
        try:
            if not await self._send_block(producer, block, _places(name, number + 1, block.places)):
                for place, read in block.singly():
                    await self._send_line(producer, read, f"{name}line {number + place + 1}")
        except trio.Cancelled:
            where = f"{name}lines {number + 1} to {number + block.lines}"
            warn(f"the time after the signal was too short: {where} may not be written")
            raise
        if block.error is not None:
            where = f"{name}line {number + block.lines + 1}"
            raise BadLineError(f"{where}: {block.error.message}")

    def _csv(self) -> CsvBlocks:
        plan = self._plan
        choice = Choice(
            plan.key_column,
            plan.value_column,
            plan.empty_is_null,
            with_partitions=plan.partition is None and not plan.any_partition,
            partition=plan.partition,
        )
        return CsvBlocks(plan.topic if plan.of_columns else None, choice)

    def _block(self, text: bytes) -> Block:
        """Return lines as columns. The thread that reads the input calls this."""
        plan = self._plan
        count = text.count(b"\n") + (bool(text) and text[-1:] != b"\n")
        singly = partial(self._singly, text)
        topic, rows = plan.topic, None
        if plan.form == "raw" and plan.of_columns:
            found, keys, values = _implementation.current.split_lines(
                text, plan.key_delimiter, plan.empty_is_null
            )
            if keys is not None and values is not None:  # None: a line lacks its delimiter
                keyed = plan.key_delimiter is not None
                rows = ColumnRows.of_lines(
                    found, keys, values, keyed=keyed, partition=plan.partition
                )
        elif plan.of_columns:
            read = read_json_block(
                text,
                plan.topic,
                with_partitions=plan.partition is None and not plan.any_partition,
                partition=plan.partition,
            )
            topic, rows = read or (None, None)
        return Block(count, topic, rows, range(count), singly)

    def _singly(self, text: bytes) -> Iterator[tuple[int, Callable[[], Line]]]:
        for place, line in enumerate(split(text)):
            if line.strip() or self._plan.form == "raw":
                yield place, partial(self._plan.read, line)

    async def _send_block(
        self, producer: Producer, block: Block, where: Callable[[int], str]
    ) -> bool:
        """Send lines as columns; return whether they were accepted.

        False: the block was refused as a whole. The caller then sends its lines one by one, so that
        those before the wrong one are written and the error names that line.
        """
        topic, rows = block.topic, block.rows
        if rows is None or topic is None or not len(rows):
            return False
        if rows.highest_partition >= self._partitions.get(topic, 0):
            return False
        try:
            await self._send_table(producer.enqueue_arrow(topic, rows), where)
        except TrikafkaError:
            return False
        return True

    async def _send_table(self, sent: Awaitable[ArrowAck], where: Callable[[int], str]) -> None:
        try:
            ack = await sent
        except ArrowDeliveryError as error:
            self.delivered.add(error.partitions)
            raise BadLineError(f"{_first_failed(where, error)}: {error.error}") from error
        self._acks.append((where, ack))

    async def _send_parquet(self, producer: Producer, path: str, name: str) -> None:
        plan, number = self._plan, 0
        topic = plan.topic
        assert topic is not None  # the command has checked it
        count: int | None = None
        with ParquetFile(path, plan.key_column, plan.value_column, plan.any_partition) as file:
            try:
                count = await file.open()
                self._total = (self._total or 0) + count
                if plan.partition is not None:
                    self._check_partition(topic, plan.partition, name.rstrip(": "))
                while (table := await file.read()) is not None:
                    # A signal does not interrupt the sending of rows that were read.
                    with self._stop.finishing():
                        await self._send_rows(producer, topic, table, file.names, name, number)
                    number += table.num_rows
                    await self._settle()
            except trio.Cancelled:
                if count is None:
                    warn(f"{name}no row was written: a Parquet file is read from its end")
                elif number < count:
                    warn(f"{name}the last {count - number} of {count} rows were not written")
                raise

    async def _send_rows(
        self,
        producer: Producer,
        topic: str,
        table: Any,
        names: Mapping[str, Any],
        name: str,
        number: int,
    ) -> None:
        """Send rows of a Parquet file; ``number`` rows are before them."""
        sent = producer.enqueue_arrow(topic, table, partition=self._plan.partition, **names)
        try:
            await self._send_table(sent, lambda row: f"{name}row {number + row}")
        except TrikafkaError as error:
            raise BadLineError(f"{name}rows from {number}: {error}") from error

    async def _send_line(self, producer: Producer, read: Callable[[], Line], where: str) -> None:
        try:
            line = read()
        except click.ClickException as error:
            raise BadLineError(f"{where}: {error.message}") from error
        await self._send(producer, line, where)

    async def _send(self, producer: Producer, line: Line, where: str) -> None:
        plan = self._plan
        topic = plan.topic or line.topic
        if topic is None:
            raise BadLineError(f"{where}: it names no topic, and there is no --topic")
        partition = (
            plan.partition
            if plan.partition is not None
            else None
            if plan.any_partition
            else line.partition
        )
        if topic not in self._partitions:
            try:
                await self._count_partitions(producer, topic)
            except (click.ClickException, TrikafkaError) as error:
                text = error.message if isinstance(error, click.ClickException) else error
                raise BadLineError(f"{where}: {text}") from error
        if partition is not None:
            self._check_partition(topic, partition, where)
        try:
            ack = await producer.enqueue(
                topic,
                line.value,
                key=line.key if line.key is not None else plan.key,
                headers=line.headers + plan.headers,
                timestamp=line.timestamp,
                partition=partition,
            )
        except TrikafkaError as error:
            raise BadLineError(f"{where}: {error}") from error
        self._acks.append((lambda row: where, ack))
        if len(self._acks) > _MOST_UNSETTLED:
            await self._settle()

    def _check_partition(self, topic: str, partition: int, where: str) -> None:
        count = self._partitions[topic]
        if partition >= count:
            hint = "" if self._plan.partition is not None else "; with --any-partition keys decide"
            raise BadLineError(
                f"{where}: topic {topic!r} has {counted(count, 'partition')}, and no partition "
                f"{partition}{hint}"
            )

    async def _count_partitions(self, producer: Producer, topic: str) -> None:
        count = len(await producer.partitions_for(topic))
        if not count:
            raise await no_topic(self._settings, topic)
        self._partitions[topic] = count

    async def _settle(self, most: int = _MOST_UNSETTLED) -> None:
        """Collect the known outcomes; wait until at most ``most`` are left.

        Raises the first failure.
        """
        failed: BadLineError | None = None
        while len(self._acks) > most or (self._acks and self._acks[0][1].done):
            where, ack = self._acks[0]  # stays there if the wait is cancelled
            try:
                outcome = await ack.wait()
            except ArrowDeliveryError as error:
                self.delivered.add(error.partitions)
                failed = failed or BadLineError(f"{_first_failed(where, error)}: {error.error}")
                failed.__cause__ = failed.__cause__ or error
            except TrikafkaError as error:
                failed = failed or BadLineError(f"{where(0)}: {error}")
                failed.__cause__ = failed.__cause__ or error
            else:
                self.delivered.add(_by_partition(outcome))
            self._acks.popleft()
        self._meter(self.delivered.count, self._total)
        if failed is not None:
            raise failed


def _by_partition(outcome: Any) -> Mapping[TopicPartition, PartitionDelivery]:
    if isinstance(outcome, RecordMetadata):
        place = TopicPartition(outcome.topic, outcome.partition)
        return {place: PartitionDelivery(1, outcome.offset, outcome.offset)}
    parts: Mapping[TopicPartition, PartitionDelivery] = outcome.partitions
    return parts


def _first_failed(where: Callable[[int], str], error: ArrowDeliveryError) -> str:
    """Return the place of the first row that failed, or the first place where it can be."""
    return where(error.row) if error.row is not None else f"{where(0)} or later"


def _places(name: str, first: int, places: Sequence[int]) -> Callable[[int], str]:
    return lambda row: f"{name}line {first + places[row]}"
