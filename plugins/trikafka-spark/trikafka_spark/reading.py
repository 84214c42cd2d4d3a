"""The one reader: the records of an offset range, inside a Python worker of Spark, for plain (not async) code.

A Trio loop in a thread of its own fetches and decodes while the caller works on what came before. What is there goes over in
groups of batches, since each step from thread to thread costs more than the batch; at most ``_GROUPS_AHEAD`` groups of
``_BYTES_AHEAD`` bytes together wait between them, or a single one that is larger. The thread always ends: at the end of the range,
on an error, and when the caller closes the generator early.
"""

from __future__ import annotations

import contextlib
import logging
import math
import queue
import threading
import time
import uuid
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing
from functools import partial
from typing import Any

import trio

from trikafka import (
    KafkaTimeoutError,
    NoOffsetForPartitionError,
    OffsetOutOfRangeError,
    OffsetRange,
    RecordBatch,
    TopicPartition,
    UnknownTopicOrPartitionError,
)

from .reader import Reader

_GROUPS_AHEAD, _BYTES_AHEAD = 8, 32 << 20
#: A group is not added to once it has so much.
_GROUP_ROWS, _GROUP_BYTES = 131_072, 4 << 20
#: A range of which nothing comes for so long (seconds) is given up, as Spark's own connector does.
STALL_LIMIT = 120.0
#: When nothing came for so long (seconds), it is asked whether the topic is still there.
_LOOK_EVERY = 5.0
#: How long ago (seconds) the client may have seen the topic's id when a range begins. Each look brings all partitions of the
#: topic: of thousands, it takes longer than a small range.
_JUST_SEEN = 1.0
_log = logging.getLogger("trikafka.spark")


class NothingYet(Exception):
    """Nothing has come of a range in the time it was given to begin with. Nothing of it was read."""


def read_groups(
    wanted: OffsetRange,
    settings: Mapping[str, Any],
    *,
    fail_on_data_loss: bool = True,
    stall_limit: float = STALL_LIMIT,
    topic_id: str | None = None,
    on_lost: Callable[[int, int, str], None] = lambda low, high, why: None,
    on_start: Callable[[Callable[[], None]], None] = lambda stop: None,
    reader: Reader | None = None,
    patience: float | None = None,
) -> Generator[list[RecordBatch], None, None]:
    """Yield the records of a range in order, in groups of batches; compacted and control records leave gaps.

    ``settings`` are those of a consumer without a group; ``topic_id`` is the id (as text) of the topic that the range was planned
    for. Raises :exc:`OffsetOutOfRangeError` when a part of the range is gone from the log, or the topic was deleted or created
    anew; with ``fail_on_data_loss=False`` what is gone is passed over with a warning, of which ``on_lost`` is told, and no record
    comes twice. ``on_start`` is given a function that ends the reading from another thread. Raises
    :exc:`KafkaTimeoutError` when nothing comes for ``stall_limit`` seconds, and what the consumer raises.

    A ``reader`` of the same settings has the client for it, and keeps it. :exc:`NothingYet` is raised when the partition's leader
    has given nothing within ``patience`` seconds.
    """
    own = Reader(settings) if reader is None else reader
    feed = _Feed(_Reading(wanted, fail_on_data_loss, stall_limit, topic_id, on_lost, own.seen), patience)
    own.begin(feed)
    stop = partial(own.stop, feed)
    on_start(stop)
    try:
        yield from feed
    finally:
        stop()
        feed.ended.wait()
        feed.drop()
        if reader is None:
            own.close()


def read_range(wanted: OffsetRange, settings: Mapping[str, Any], **more: Any) -> Generator[RecordBatch, None, None]:
    """As :func:`read_groups`, batch by batch."""
    with closing(read_groups(wanted, settings, **more)) as groups:
        for group in groups:
            yield from group


class _Feed:
    """The bridge between the two threads. ``_items`` holds groups, then ``None`` or the error that ended the reading."""

    def __init__(self, reading: _Reading, patience: float | None) -> None:
        self.name, self.stopped, self.ended = reading.name, False, threading.Event()
        self._reading = reading
        self._patience = math.inf if patience is None else patience
        self._items: queue.SimpleQueue[list[RecordBatch] | BaseException | None] = queue.SimpleQueue()
        self._token: trio.lowlevel.TrioToken | None = None
        self._scope, self._first = trio.CancelScope(), trio.CancelScope()
        self._groups = self._bytes = 0  # that wait

    # --- the caller's thread ---

    def __iter__(self) -> Iterator[list[RecordBatch]]:
        while (item := self._items.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            self._soon(partial(self._taken, _size(item)))
            yield item

    def drop(self) -> None:
        """Let go of what nobody has taken, once it has ended: whoever can stop it may hold it for long, and many of them."""
        self._items = queue.SimpleQueue()

    def _soon(self, function: Any) -> None:
        if self._token is not None:
            with contextlib.suppress(trio.RunFinishedError):
                self._token.run_sync_soon(function)

    # --- the thread of the loop ---

    async def run(self, consumer: Any) -> bool:
        """Read, in the client's loop. Says whether the client can read something else: it was not the one that failed."""
        self._room = trio.Event()
        self._token = trio.lowlevel.current_trio_token()
        error: BaseException | None = None
        with self._scope, self._first:
            if self.stopped:
                self.cut()
            try:
                await self._reading.run(consumer, self._begun, self._deliver)
            except Exception as failed:
                error = failed
        if self._first.cancelled_caught:
            error = NothingYet(f"nothing came of {self.name} within {self._patience:g} s")
        self.end(error)
        return error is None or isinstance(error, NothingYet | KafkaTimeoutError)

    def cut(self) -> None:
        """End the reading, wherever it is."""
        self._scope.cancel()

    def end(self, error: BaseException | None) -> None:
        """Nothing comes any more."""
        if not self.ended.is_set():
            self.ended.set()
            self._items.put(error)

    def _begun(self) -> None:
        """From now on only the partition's leader is asked. Any broker may have been before, one that does not respond, too."""
        self._first.deadline = trio.current_time() + self._patience

    async def _deliver(self, group: list[RecordBatch]) -> None:
        self._first.deadline = math.inf
        await trio.lowlevel.checkpoint_if_cancelled()
        size = _size(group)
        while self._groups >= _GROUPS_AHEAD or (self._groups and self._bytes + size > _BYTES_AHEAD):
            self._room = trio.Event()
            await self._room.wait()
        self._groups += 1
        self._bytes += size
        self._items.put(group)

    def _taken(self, size: int) -> None:
        self._groups -= 1
        self._bytes -= size
        self._room.set()


def _size(group: list[RecordBatch]) -> int:
    return sum(batch.nbytes for batch in group)


class _Reading:
    """One range, read once from its start to its end. Owns the position, which only grows: so no record comes twice."""

    def __init__(
        self,
        wanted: OffsetRange,
        fail_on_data_loss: bool,
        stall_limit: float,
        topic_id: str | None,
        on_lost: Callable[[int, int, str], None],
        seen: dict[str, tuple[float, uuid.UUID | None]],
    ) -> None:
        self._seen = seen
        self._tp = TopicPartition(wanted.topic, wanted.partition)
        self.name = str(self._tp)
        self._position, self._end = wanted.start, wanted.end
        self._fail_on_data_loss, self._stall_limit = fail_on_data_loss, stall_limit
        self._topic_id, self._on_lost = None if topic_id is None else uuid.UUID(topic_id), on_lost

    async def run(self, consumer: Any, begun: Callable[[], None], deliver: Any) -> None:
        """Read; ``await deliver(group)`` each group of batches; ``begun()`` when the partition's leader is asked."""
        try:
            await self._run(consumer, begun, deliver)
        except UnknownTopicOrPartitionError as error:  # it may have gone since the last look at it
            if await self._same_topic(consumer, error):
                raise

    async def _run(self, consumer: Any, begun: Callable[[], None], deliver: Any) -> None:
        if not self._just_seen() and not await self._same_topic(consumer):
            return
        begun()
        if not await self._find_start(consumer):
            return
        consumer.assign([self._tp])
        consumer.seek(self._tp, self._position)
        batches = consumer.batches(until={self._tp: self._end})
        while self._position < self._end:
            try:
                group = await self._next(consumer, batches)
            except (OffsetOutOfRangeError, NoOffsetForPartitionError) as error:
                if not await self._same_topic(consumer, error) or not await self._find_start(consumer, error):
                    return
                consumer.seek(self._tp, self._position)
                continue
            if group is None:
                break
            await deliver(group)
            self._position = max(self._position, group[-1].next_offset)
        await self._same_topic(consumer)  # the same id before and after: all of it was the topic that was planned

    def _just_seen(self) -> bool:
        """Whether a look at the topic for the range before says enough."""
        when, topic_id = self._seen.get(self._tp.topic, (-math.inf, None))
        return time.monotonic() - when < _JUST_SEEN and topic_id is not None and topic_id == self._topic_id

    async def _same_topic(self, consumer: Any, cause: Exception | None = None) -> bool:
        """Whether the topic is the planned one still. Raises as :meth:`_lost`."""
        name = self._tp.topic
        ids = await consumer.topic_ids([name])
        if name not in ids:
            self._seen.pop(name, None)
            return self._lost(f"topic {name!r} was deleted after the reading of {self._tp} was planned", cause)
        now: uuid.UUID | None = ids[name]
        self._seen[name] = time.monotonic(), now
        if self._topic_id is None:
            self._topic_id = now
        elif now is not None and now != self._topic_id:
            return self._lost(f"topic {name!r} was deleted and created anew after the reading of {self._tp} was planned", cause)
        return True

    async def _find_start(self, consumer: Any, cause: Exception | None = None) -> bool:
        """Fit the rest of the range to what the log holds; whether anything is left of it. Raises as :meth:`_lost`."""
        if self._position >= self._end:
            return False
        beginning: int = (await consumer.beginning_offsets([self._tp]))[self._tp]
        end: int = (await consumer.end_offsets([self._tp]))[self._tp]
        if beginning > self._position or end < self._end:
            first, last = max(self._position, beginning), min(self._end, end)
            self._lost(
                f"{self._tp} holds the offsets [{beginning}, {end}), but [{self._position}, {self._end}) are to be read: records"
                " were deleted by retention, or the log was truncated",
                cause,
                (self._position, min(first, self._end)),
                (max(last, first), self._end),
            )
        elif cause is not None:  # it was out of range a moment ago, and is not any more: the log went back and grew again
            return self._lost(f"{self._tp} was truncated while it was read at offset {self._position}", cause)
        self._position, self._end = max(self._position, beginning), min(self._end, end)
        return self._position < self._end

    def _lost(self, what: str, cause: Exception | None, *gone: tuple[int, int]) -> bool:
        """Tell that records are gone: as :exc:`OffsetOutOfRangeError`, or as a warning where that is allowed (then ``False``).

        ``gone``: which ones, from and to; by default all that is left.
        """
        if self._fail_on_data_loss:
            raise OffsetOutOfRangeError(f"{what}; set failOnDataLoss to false to read what is there") from cause
        _log.warning("%s; what is gone is passed over (failOnDataLoss is false)", what)
        for low, high in gone or ((self._position, self._end),):
            if low < high:
                self._on_lost(low, high, what)
        return False

    async def _next(self, consumer: Any, batches: Any) -> list[RecordBatch] | None:
        limit = self._stall_limit or math.inf
        with trio.move_on_after(limit):
            while True:
                with trio.move_on_after(_LOOK_EVERY):
                    try:
                        group: list[RecordBatch] = await batches.gather(_GROUP_ROWS, _GROUP_BYTES)
                    except StopAsyncIteration:
                        return None
                    return group
                with contextlib.suppress(KafkaTimeoutError):  # nobody responds just now: that is what the limit is for
                    if not await self._same_topic(consumer):
                        return None
        raise KafkaTimeoutError(f"reading {self._tp} from offset {self._position}", limit)
