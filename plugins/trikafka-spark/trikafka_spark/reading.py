"""The one reader: the records of an offset range, inside a Python worker of Spark, for plain (not async) code.

A Trio loop in a thread of its own fetches and decodes while the caller works on what came before; at most
``_BATCHES_AHEAD`` batches wait between them. The thread always ends: at the end of the range, on an error, and when the
caller closes the generator early.
"""

from __future__ import annotations

import contextlib
import math
import queue
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import trio

import trikafka
from trikafka import KafkaTimeoutError, OffsetOutOfRangeError, OffsetRange, RecordBatch, TopicPartition

_BATCHES_AHEAD = 8
#: A range of which nothing comes for so long (seconds) is given up, as Spark's own connector does.
STALL_LIMIT = 120.0


def read_range(
    wanted: OffsetRange,
    settings: Mapping[str, Any],
    *,
    fail_on_data_loss: bool = True,
    stall_limit: float = STALL_LIMIT,
    topic_id: str | None = None,
    on_lost: Callable[[int, int, str], None] = lambda low, high, why: None,
    on_start: Callable[[Callable[[], None]], None] = lambda stop: None,
) -> Iterator[RecordBatch]:
    """Yield the records of a range in order, batch by batch; compacted and control records leave gaps.

    ``settings`` are those of a consumer without a group. Raises :exc:`OffsetOutOfRangeError` when a part of the range is
    gone from the log (unless ``fail_on_data_loss`` is false), :exc:`KafkaTimeoutError` when nothing comes for
    ``stall_limit`` seconds, and what the consumer raises.
    """
    feed = _Feed(wanted, settings, fail_on_data_loss, stall_limit, topic_id, on_lost)
    thread = threading.Thread(target=feed.run, name=f"trikafka {wanted.topic}-{wanted.partition}", daemon=True)
    thread.start()
    on_start(feed.stop)
    try:
        yield from feed
    finally:
        feed.stop()
        thread.join()


class _Feed:
    """The bridge between the two threads. ``_items`` holds batches, then ``None`` or the error that ended the reading."""

    def __init__(
        self,
        wanted: OffsetRange,
        settings: Mapping[str, Any],
        fail_on_data_loss: bool,
        stall_limit: float,
        topic_id: str | None,
        on_lost: Callable[[int, int, str], None],
    ) -> None:
        self._wanted, self._settings = wanted, settings
        self._topic_id, self._on_lost = topic_id, on_lost
        self._fail_on_data_loss, self._stall_limit = fail_on_data_loss, stall_limit
        self._items: queue.SimpleQueue[RecordBatch | BaseException | None] = queue.SimpleQueue()
        self._ready = threading.Event()
        self._token: trio.lowlevel.TrioToken | None = None

    # --- the caller's thread ---

    def __iter__(self) -> Iterator[RecordBatch]:
        while (item := self._items.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            self._soon(self._room.release)
            yield item

    def stop(self) -> None:
        """End the reading, wherever it is."""
        self._ready.wait()
        self._soon(self._scope.cancel)

    def _soon(self, function: Any) -> None:
        if self._token is not None:
            with contextlib.suppress(trio.RunFinishedError):
                self._token.run_sync_soon(function)

    # --- the thread of the loop ---

    def run(self) -> None:
        last: BaseException | None = None
        try:
            trio.run(self._main)
        except BaseException as error:
            last = error
        self._ready.set()
        self._items.put(last)

    async def _main(self) -> None:
        self._room = trio.Semaphore(_BATCHES_AHEAD)
        self._scope = trio.CancelScope()
        self._token = trio.lowlevel.current_trio_token()
        self._ready.set()
        with self._scope:
            await self._read()

    async def _read(self) -> None:
        reset = "none" if self._fail_on_data_loss else "earliest"
        tp = TopicPartition(self._wanted.topic, self._wanted.partition)
        async with trikafka.open_consumer(
            **self._settings, group_id=None, enable_auto_commit=False, auto_offset_reset=reset
        ) as consumer:
            position = await self._start(consumer, tp)
            if position >= self._wanted.end:
                return
            consumer.assign([tp])
            consumer.seek(tp, position)
            batches = aiter(consumer.batches(until={tp: self._wanted.end}))
            self._check_topic(consumer)
            while (batch := await self._next(batches, position)) is not None:
                self._check_topic(consumer)
                if len(batch):
                    if batch.offsets[0] < position or batch.offsets[-1] >= self._wanted.end:
                        raise OffsetOutOfRangeError(
                            f"{tp} jumped from offset {position} to {batch.offsets[0]}: the log was truncated while it was read"
                        )
                    await self._room.acquire()
                    self._items.put(batch)
                position = max(position, batch.next_offset)

    def _check_topic(self, consumer: Any) -> None:
        """Records of a topic that was created anew come only after the metadata have its id."""
        topic = self._wanted.topic
        known = getattr(consumer._parts.metadata.snapshot.topics.get(topic), "topic_id", None)
        if self._topic_id and known and known.strip("0-") and known != self._topic_id:
            raise OffsetOutOfRangeError(f"topic {topic!r} was deleted and created anew since this range was planned")

    async def _start(self, consumer: Any, tp: TopicPartition) -> int:
        first, last = self._wanted.start, self._wanted.end
        beginning: int = (await consumer.beginning_offsets([tp]))[tp]
        end = (await consumer.end_offsets([tp]))[tp]
        if last > end or (self._fail_on_data_loss and first < beginning):
            raise OffsetOutOfRangeError(
                f"{tp} holds the offsets [{beginning}, {end}), but [{first}, {last}) are to be read: "
                "records were deleted by retention, or the topic was created anew"
            )
        if first < beginning:
            self._on_lost(first, min(beginning, last), "deleted from the log before it was exported")
        return max(first, beginning)

    async def _next(self, batches: Any, position: int) -> RecordBatch | None:
        with trio.move_on_after(self._stall_limit if self._stall_limit else math.inf):
            try:
                batch: RecordBatch = await anext(batches)
            except StopAsyncIteration:
                return None
            return batch
        raise KafkaTimeoutError(f"reading {self._wanted.topic}-{self._wanted.partition} from offset {position}", self._stall_limit)
