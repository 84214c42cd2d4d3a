"""The reader of streams of Kafka topics: it plans micro-batches and reads their ranges.

One reader plans, in a process that lives as long as the query. Copies of it read, in the workers.
"""

# What Spark calls, and when
# --------------------------
#
# Spark's checkpoint alone has the offsets; this reader stores none. As far as it matters here,
# Spark 4.2 does this:
#
# * ``initialOffset`` is called by each run until the first batch has finished. A run that was
#   killed in its first batch may therefore begin elsewhere than the run before.
# * ``latestOffset(start)`` is called after the batch that ended at ``start`` has finished, also
#   after the last batch of a query with ``availableNow``. So ``start`` is what may be committed to
#   the group.
# * ``commit`` is not called for the last batch, so this reader has none. ``stop`` is not called at
#   all: Spark kills the process.
#
# Why the first batch may be empty: with ``startingOffsets=latest`` the start is the end of the log
# at the time of the call. If a run is killed in its first batch, the next run asks again, and the
# end has moved. Records between the two would be lost. So the first batch takes nothing of the
# partitions that begin at their end (``_moving``). Once it has finished, its start is in the
# checkpoint, and the next batch reads from there.
#
# Why offsets hold topic ids
# --------------------------
#
# A topic that is deleted and recreated has the same name and other records. Its offsets may even be
# beyond those in the checkpoint, so offsets alone do not show that anything was lost. The id does
# (KIP-516). It must survive a restart of the query, and a Python source keeps nothing in the
# checkpoint but its offsets. So the id is part of the offsets, in a form that Spark's own connector
# ignores (:mod:`.checkpoint_offsets`), and a query can change from one source to the other and
# back. Within a run, ``_Topics`` compares the ids at each look-up with those before, and ``plan``
# compares them with the ids at the batch's start. Each task compares the id once more while it
# reads (:mod:`trikafka_export.reading`).

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping
from typing import Any

import trio
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

import trikafka
from trikafka import (
    AuthorizationError,
    OffsetAndMetadata,
    OffsetOutOfRangeError,
    OffsetRange,
    TopicPartition,
    TrikafkaError,
)

from .batch_limits import share
from .checkpoint_offsets import from_json, ids_of, to_json
from .kafka_settings import by_option
from .lookup_consumer import LookupConsumer
from .range_partition import RangeReader
from .range_planning import Planned, find_partitions, resolve
from .read_options import LATEST, ReadOptions

Offsets = dict[TopicPartition, int]
#: While nothing is new: the least seconds from one look-up of the ends to the next, the share of
#: the time that looks may take, and the longest rest after one (seconds). A slow look may have
#: waited for a broker, and new records must not wait four times as long.
_IDLE, _IDLE_SHARE, _LONGEST_REST = 0.05, 0.25, 1.0
#: How often, and how many seconds apart, a partition is looked up that seems to be gone, or whose
#: end seems to go back.
_LOOKS, _BETWEEN_LOOKS = 5, 0.2
_log = logging.getLogger("trikafka.spark")


class TrikafkaStreamReader(RangeReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The planner of one query's micro-batches, and the reader of their ranges."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self._ask = LookupConsumer(options)
        self._topics = _Topics(options)
        self._initial: Offsets | None = None
        #: The partitions that begin at their end: a later run may find a later start for them.
        self._moving: set[TopicPartition] = set()
        #: The ends of the partitions at the last look.
        self._last: Offsets | None = None
        #: With ``availableNow``: the ends of the partitions when the query began.
        self._target: Offsets | None = None
        self._planning = False
        self._committed: Offsets | None = None
        #: When the last batch was planned (monotonic clock, seconds).
        self._last_batch = -math.inf
        #: When the ends may be looked up again (monotonic clock, seconds); in the past: at once.
        self._next_look = -math.inf

    def initialOffset(self) -> dict[str, Any]:
        """Return the offsets at which a new query begins."""
        if self._initial is None:
            self._initial = self._ask(self._find_start)
        return self._json(self._initial)

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit that Spark passes to ``latestOffset`` with an ordinary trigger.

        A trigger that ignores limits passes ``ReadAllAvailable``.
        """
        rates = self._options.rates
        if rates.most is not None:
            return ReadMaxRows(rates.most)
        return ReadAllAvailable() if rates.least is None else ReadMinRows(rates.least)

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the end of the query: from here on it reads nothing newer than the log has now."""
        self._target = self._look({})

    # With the default trigger Spark asks again 10 ms after an answer without news. A look at many
    # partitions takes longer than that, and an idle stream would use a processor all the time. So
    # the next look waits. A look that finds something is followed by the next one at once.
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the end of the next batch, or ``start`` itself if there is nothing to read."""
        time.sleep(max(0.0, self._next_look - time.monotonic()))
        began = time.monotonic()
        end = self._end_of_batch(start, limit)
        if end is start and self._target is None:
            took = time.monotonic() - began
            rest = max(_IDLE, took / _IDLE_SHARE) - took
            self._next_look = began + took + min(rest, _LONGEST_REST)
        return end

    def _end_of_batch(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        starts = from_json(start)
        first = not self._planning
        self._planning = True
        self._commit_to_group(starts)
        ends = self._last = self._look(starts) if self._target is None else self._fixed(starts)
        if first and starts == self._initial and self._moving:
            # The next run repeats an unfinished first batch, from a later start in the partitions
            # that begin at their end: the records in between would be lost. So the first batch has
            # nothing of these partitions, nor of new ones.
            ends = {tp: at if tp in self._moving else ends.get(tp, at) for tp, at in starts.items()}
            if ends == starts:
                return start
        if isinstance(limit, ReadAllAvailable):
            return self._same_or(start, starts, ends)
        begins = self._ask(lambda consumer: self._topics.begins(consumer, starts, ends))
        new = sum(max(0, end - begins[tp]) for tp, end in ends.items())
        rates, now = self._options.rates, time.monotonic()
        if self._target is None and rates.wait(new, now - self._last_batch):
            return start
        self._last_batch = now
        most = rates.most
        return self._same_or(start, starts, ends if most is None else share(most, begins, ends))

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the ends of the partitions at the last look, for the query's progress.

        The difference to the batch's end is the lag.
        """
        return None if self._last is None else to_json(self._last)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the tasks of a batch.

        Lost records raise or are logged, as ``failOnDataLoss`` says.
        """
        starts = from_json(start)
        ends = from_json(end)
        ids = ids_of(start)
        again = not self._planning and self._initial is not None
        self._planning = True
        if again:
            # This batch is the first one, and an earlier run has planned it and was killed. What
            # this run's start has beyond the batch's end is newer than the batch, and not lost: the
            # next batch reads it from its beginning.
            starts = {tp: at for tp, at in starts.items() if tp in ends}
        moved = again and self._moves
        planned = self._ask(
            lambda consumer: self._topics.plan(consumer, starts, ends, ids, first_again=moved)
        )
        return self._tasks(planned)

    def stop(self) -> None:
        """Close the client. Spark kills the process instead of calling this."""
        self._ask.close()

    @property
    def _moves(self) -> bool:
        """True if the same options may mean other offsets later."""
        starting = self._options.starting
        timed = starting.timestamp is not None or bool(starting.timestamps)
        return LATEST in starting.specials or (timed and self._options.after_the_last == "latest")

    def _json(self, offsets: Offsets) -> dict[str, Any]:
        return to_json(offsets, self._topics.ids)

    def _same_or(self, start: dict[str, Any], starts: Offsets, ends: Offsets) -> dict[str, Any]:
        """Return ``start`` as Spark passed it if nothing is new, else the ends as JSON.

        Spark compares texts, and the connector's offsets may be in another order. A recreated topic
        is new even with the same offsets: the next batch compares the ids, and its end has the new
        id.
        """
        known = ids_of(start)
        same = starts == ends and all(
            self._topics.ids.get(topic) in (None, its) for topic, its in known.items()
        )
        return start if same else self._json(ends)

    def _look(self, known: Offsets) -> Offsets:
        return self._ask(lambda consumer: self._topics.look(consumer, known))

    # The target is the first look of a run, so nothing showed then that an end was too low: a new
    # leader may not know the high watermark yet. A partition may be newer than that look, and the
    # start of the query has it. Both would count as lost records.
    def _fixed(self, starts: Offsets) -> Offsets:
        """Return the end of a query with ``availableNow``, which is not before ``starts``.

        If the log itself ends before them, its end is returned.
        """
        target = self._target or {}
        behind = {tp for tp, start in starts.items() if target.get(tp, -1) < start}
        if behind:
            now = self._look(starts)
            target |= {tp: min(now[tp], starts[tp]) for tp in behind if tp in now}
        return target

    async def _find_start(self, consumer: Any) -> Offsets:
        options = self._options
        tps, ids = await find_partitions(consumer, options)
        self._topics.saw(ids)
        beginnings = await consumer.beginning_offsets(tps)
        ends = await consumer.end_offsets(tps)
        starts = await resolve(consumer, options, "starting", tps, beginnings, ends)
        self._moving = {tp for tp, at in starts.items() if self._moves and at == ends[tp]}
        for tp, at in starts.items():
            if not beginnings[tp] <= at <= ends[tp]:
                self._topics.lost(
                    f"{tp} holds the offsets [{beginnings[tp]}, {ends[tp]}), but startingOffsets "
                    f"has {at}"
                )
        return {tp: min(max(at, beginnings[tp]), ends[tp]) for tp, at in starts.items()}

    def _commit_to_group(self, offsets: Offsets) -> None:
        """Commit the end of the last finished batch to the group of the option ``groupId``.

        A failure is logged, and the next batch tries again. Missing permissions are raised.
        """
        group_id = self._options.group_id
        if group_id is None or offsets in (self._committed, {}):
            return

        async def commit() -> None:
            async with trikafka.open_consumer(
                **self._options.settings, group_id=group_id, enable_auto_commit=False
            ) as consumer:
                await consumer.commit(
                    {tp: OffsetAndMetadata(offset) for tp, offset in offsets.items()}
                )

        try:
            with by_option(self._options.kafka):
                trio.run(commit)
        except AuthorizationError:
            raise
        except TrikafkaError as error:
            _log.warning(
                "the offsets of group %r could not be committed; the next batch retries: %s",
                group_id,
                error,
            )
        else:
            self._committed = offsets


class _Topics:
    """The topics of a stream, and the ids (as text) that they had at the last look."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self.ids: dict[str, str | None] = {}
        self._logged: set[tuple[str, str]] = set()

    async def look(self, consumer: Any, known: Offsets) -> Offsets:
        """Return the ends of all partitions that exist now.

        The stream has read up to ``known``. If a partition ends before that, or is missing, it is
        looked up again for a moment: a new leader may not yet know the high watermark, and another
        broker may not yet know the partition.
        """
        for _ in range(_LOOKS):
            ends: Offsets = await consumer.end_offsets(await self._find(consumer))
            if all(ends.get(tp, -1) >= at for tp, at in known.items()):
                break
            await trio.sleep(_BETWEEN_LOOKS)
        return ends

    async def _find(self, consumer: Any) -> list[TopicPartition]:
        """Return the partitions that exist now, and record the ids of their topics."""
        tps, ids = await find_partitions(
            consumer, self._options, gone_is_an_error=self._options.fail_on_data_loss
        )
        self.saw(ids)
        return tps

    async def begins(self, consumer: Any, starts: Offsets, ends: Offsets) -> Offsets:
        """Return where the partitions of ``ends`` begin: the new ones at their first record."""
        new = [tp for tp in ends if tp not in starts]
        return {**starts, **(await consumer.beginning_offsets(new) if new else {})}

    async def plan(
        self,
        consumer: Any,
        starts: Offsets,
        ends: Offsets,
        known: Mapping[str, str],
        *,
        first_again: bool,
    ) -> list[Planned]:
        """Return the ranges of a batch.

        ``known`` are the ids that the topics had at the start of the batch. ``first_again`` is true
        for a first batch that another run has planned. Such a batch has no records of partitions
        whose start may have moved, so a start after its end is no data loss.
        """
        for _ in range(_LOOKS):
            there = set(await self._find(consumer))
            if there >= ends.keys():
                break
            await trio.sleep(_BETWEEN_LOOKS)
        for tp in sorted({*starts, *ends}):
            if tp not in ends or tp not in there:
                self.lost(
                    f"partition {tp} was deleted, or the query no longer reads it; it was read up "
                    f"to offset {starts.get(tp, 0)}"
                )
        tps = [tp for tp in sorted(ends) if tp in there]
        beginnings = await consumer.beginning_offsets(tps)
        planned = []
        for tp in tps:
            first = starts.get(tp, 0)
            end = ends[tp]
            beginning = beginnings[tp]
            if first > end and not first_again:
                # A first batch of an earlier run, planned again after retention, was never read.
                self.lost(
                    f"{tp} begins with offset {beginning}, but the batch ends at offset {end}"
                    if beginning > end
                    else f"{tp} ended at offset {end}, but it was read up to offset {first} before"
                )
            if first < min(beginning, end):
                self.lost(
                    f"{tp} begins with offset {beginning}, but [{first}, {end}) were to be read"
                )
            if max(first, beginning) < end:
                planned.append(
                    Planned(
                        OffsetRange(tp.topic, tp.partition, max(first, beginning), end),
                        self.ids.get(tp.topic),
                    )
                )
        self.compare(known)
        return planned

    def lost(self, what: str, skipped: str = "missing records are skipped") -> None:
        """Raise :exc:`OffsetOutOfRangeError` or warn, as ``failOnDataLoss`` says."""
        if self._options.fail_on_data_loss:
            raise OffsetOutOfRangeError(
                f"{what}; set failOnDataLoss=false to continue with the existing records"
            )
        _log.warning("%s; %s (failOnDataLoss is false)", what, skipped)

    def saw(self, ids: Mapping[str, str | None]) -> None:
        """Record the ids that the topics have now.

        Raises or warns as :meth:`lost` if one has changed.
        """
        before = {topic: known for topic, known in self.ids.items() if known is not None}
        self.ids.update(ids)
        self.compare(before)

    def compare(self, known: Mapping[str, str]) -> None:
        """Raise or warn as :meth:`lost` for each topic whose id is not the ``known`` one.

        It is another topic of the same name.
        """
        for topic, before in known.items():
            now = self.ids.get(topic)
            if now is not None and now != before and (topic, now) not in self._logged:
                if not self._options.fail_on_data_loss:
                    self._logged.add((topic, now))
                self.lost(
                    f"topic {topic!r} was deleted and created again since it was read (its id was "
                    f"{before} and is {now})",
                    "records of the new one before the offsets read so far are skipped",
                )
