"""Streams of Kafka topics: where the next micro-batch ends, which ranges it has, and what became of the topics meanwhile.

One reader plans, in a process that lives as long as the query; copies of it read, in the workers. Offsets are those of Spark's
checkpoint alone. What Spark does, as far as it matters here (4.2): ``initialOffset`` is asked anew by each run whose first batch
is not finished; ``latestOffset(start)`` comes after the batch that ended at ``start`` was finished, also after the last of a query
with ``availableNow``; ``stop`` does not come.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import trio
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, ReadMinRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

import trikafka
from trikafka import AuthorizationError, OffsetAndMetadata, OffsetOutOfRangeError, OffsetRange, TopicPartition, TrikafkaError

from .asking import Asking
from .limits import Patience, share
from .offsets import from_json, to_json
from .options import LATEST, ReadOptions
from .partition import RangePartition, read_planned
from .pruning import Columns
from .ranges import Planned, find_partitions, plan_each, resolve
from .worker import Acknowledging

if TYPE_CHECKING:
    import pyarrow as pa

Offsets = dict[TopicPartition, int]
#: How often, and how far apart in seconds, the end of a log is asked for that went back.
_LOOKS, _BETWEEN_LOOKS = 5, 0.2
_log = logging.getLogger("trikafka.spark")


class RefusedStream(DataSourceStreamReader):
    """Instead of a reader that could not be made: Spark (4.2, 4.3) shows an error of its own over one that is raised there."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def initialOffset(self) -> dict[str, Any]:
        """Raise what is wrong. (Of a stream that has a checkpoint :meth:`latestOffset` is what is called first.)"""
        raise self._error

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Raise what is wrong."""
        raise self._error

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Raise what is wrong."""
        raise self._error

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        """Raise what is wrong."""
        raise self._error


class TrikafkaStreamReader(Acknowledging, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans the micro-batches of one query, and reads their ranges."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options, self._columns = options, Columns(schema)
        self._ask = Asking(options)
        self._topics = _Topics(options)
        self._patience = Patience(options.rates)
        self._initial: Offsets | None = None
        self._last: Offsets | None = None  # how far the topics went when they were last looked at
        self._target: Offsets | None = None  # with availableNow: how far they went when the query began
        self._planning = False
        self._committed: Offsets | None = None

    # --- in the process that plans ---

    def initialOffset(self) -> dict[str, Any]:
        """Where a new query begins."""
        if self._initial is None:
            self._initial = self._ask(self._find_start)
        return to_json(self._initial)

    def getDefaultReadLimit(self) -> ReadLimit:
        """What ``latestOffset`` is handed with an ordinary trigger; one that ignores limits hands over ``ReadAllAvailable``."""
        rates = self._options.rates
        if rates.most is not None:
            return ReadMaxRows(rates.most)
        return ReadAllAvailable() if rates.least is None else ReadMinRows(rates.least)

    def prepareForTriggerAvailableNow(self) -> None:
        """From here on nothing newer than what is there now is read."""
        self._target = self._look({})

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Where the next batch ends; ``start`` itself where there is none."""
        starts = from_json(start)
        first, self._planning = not self._planning, True
        self._commit_to_group(starts)
        if first and starts == self._initial and self._moves:
            # An unfinished first batch is begun anew by the next run, whose start may be later: what is between would be lost.
            # So the first batch is empty.
            self._last = dict(starts)
            return start
        ends = self._last = self._target if self._target is not None else self._look(starts)
        if isinstance(limit, ReadAllAvailable):
            return _same_or(start, starts, ends)
        begins = self._ask(lambda consumer: self._topics.begins(consumer, starts, ends))
        new = sum(max(0, end - begins[tp]) for tp, end in ends.items())
        if self._target is None and self._patience.waits(new, time.monotonic()):
            return start
        most = self._options.rates.most
        return _same_or(start, starts, ends if most is None else share(most, begins, ends))

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """How far the topics went, for the query's progress: less the batch's end it is the lag."""
        return None if self._last is None else to_json(self._last)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """The tasks of a batch; what is lost of it is told, as ``failOnDataLoss`` says."""
        starts, ends = from_json(start), from_json(end)
        again = not self._planning and self._initial is not None and self._moves
        self._planning = True
        planned = self._ask(lambda consumer: self._topics.plan(consumer, starts, ends, first_again=again))
        return [RangePartition(one) for one in plan_each(planned, self._options)]

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing to do: Spark does not call it for the last batch, so the group's offsets are committed elsewhere."""

    def stop(self) -> None:
        """Spark does not call it, either; its process is killed."""
        self._ask.close()

    @property
    def _moves(self) -> bool:
        """Whether the same options may mean other offsets later."""
        starting = self._options.starting
        timed = starting.timestamp is not None or bool(starting.timestamps)
        return LATEST in starting.specials or (timed and self._options.after_the_last == "latest")

    def _look(self, known: Offsets) -> Offsets:
        return self._ask(lambda consumer: self._topics.look(consumer, known))

    async def _find_start(self, consumer: Any) -> Offsets:
        options = self._options
        tps, _ = await find_partitions(consumer, options)
        beginnings, ends = await consumer.beginning_offsets(tps), await consumer.end_offsets(tps)
        starts = await resolve(consumer, options, "starting", tps, beginnings, ends)
        for tp, at in starts.items():
            if not beginnings[tp] <= at <= ends[tp]:
                self._topics.lost(f"{tp} holds the offsets [{beginnings[tp]}, {ends[tp]}), but startingOffsets has {at}")
        return {tp: min(max(at, beginnings[tp]), ends[tp]) for tp, at in starts.items()}

    def _commit_to_group(self, offsets: Offsets) -> None:
        """Commit where the last finished batch ended. What goes wrong is told and tried again with the next batch."""
        group_id = self._options.group_id
        if group_id is None or offsets in (self._committed, {}):
            return

        async def commit() -> None:
            async with trikafka.open_consumer(**self._options.settings, group_id=group_id, enable_auto_commit=False) as consumer:
                await consumer.commit({tp: OffsetAndMetadata(offset) for tp, offset in offsets.items()})

        try:
            trio.run(commit)
        except AuthorizationError:
            raise
        except TrikafkaError as error:
            _log.warning("the offsets of group %r could not be committed, the next batch tries again: %s", group_id, error)
        else:
            self._committed = offsets

    # --- in the workers ---

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one range as Arrow batches."""
        if isinstance(partition, RangePartition):
            yield from read_planned(partition.planned, self._options, self._columns)


def _same_or(start: dict[str, Any], starts: Offsets, ends: Offsets) -> dict[str, Any]:
    """``start`` as Spark has it where nothing is new: it compares texts, and the connector's may be in another order."""
    return start if starts == ends else to_json(ends)


class _Topics:
    """What is known of the topics of a stream: the ids they had when they were first seen."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._ids: dict[str, str | None] = {}

    async def look(self, consumer: Any, known: Offsets) -> Offsets:
        """How far the topics go now, with all partitions that there are now. They have been read up to ``known``: one that ends
        before that is asked again for a moment, since a new leader may not know yet how far the log goes."""
        tps, ids = await find_partitions(consumer, self._options, gone_is_an_error=self._options.fail_on_data_loss)
        self._compare(ids)
        for _ in range(_LOOKS):
            ends: Offsets = await consumer.end_offsets(tps)
            if all(end >= known.get(tp, 0) for tp, end in ends.items()):
                break
            await trio.sleep(_BETWEEN_LOOKS)
        return ends

    async def begins(self, consumer: Any, starts: Offsets, ends: Offsets) -> Offsets:
        """Where the partitions of ``ends`` begin: those that came meanwhile with their first record."""
        new = [tp for tp in ends if tp not in starts]
        return {**starts, **(await consumer.beginning_offsets(new) if new else {})}

    async def plan(self, consumer: Any, starts: Offsets, ends: Offsets, *, first_again: bool) -> list[Planned]:
        """The ranges of a batch. ``first_again``: it is a first batch that another run has planned, and so empty."""
        there, ids = await find_partitions(consumer, self._options, gone_is_an_error=self._options.fail_on_data_loss)
        self._compare(ids)
        for tp in sorted({*starts, *ends}):
            if tp not in ends or tp not in there:
                self.lost(f"partition {tp} is gone, or is not read any more: it was read up to offset {starts.get(tp, 0)}")
        tps = [tp for tp in sorted(ends) if tp in there]
        beginnings = await consumer.beginning_offsets(tps)
        planned = []
        for tp in tps:
            first, end, beginning = starts.get(tp, 0), ends[tp], beginnings[tp]
            if first > end and not first_again:
                self.lost(f"{tp} ended at offset {end}, before the offset {first} up to which it had been read")
            if first < min(beginning, end):
                self.lost(f"{tp} begins with offset {beginning}, but [{first}, {end}) are to be read")
            if max(first, beginning) < end:
                planned.append(Planned(OffsetRange(tp.topic, tp.partition, max(first, beginning), end), ids.get(tp.topic)))
        return planned

    def lost(self, what: str) -> None:
        """Raise or warn, as ``failOnDataLoss`` says."""
        if self._options.fail_on_data_loss:
            raise OffsetOutOfRangeError(f"{what}; set failOnDataLoss to false to go on with what is there")
        _log.warning("%s; what is gone is passed over (failOnDataLoss is false)", what)

    def _compare(self, ids: dict[str, str | None]) -> None:
        for topic, topic_id in ids.items():
            before = self._ids.get(topic)
            self._ids[topic] = topic_id
            if before is not None and topic_id is not None and before != topic_id:
                self.lost(f"topic {topic!r} was deleted and created anew while it was read")
