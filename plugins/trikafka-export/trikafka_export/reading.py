"""The reader of one offset range, for plain (not async) code in a Python worker of Spark.

A Trio loop in a thread of its own fetches and decodes, while the caller works on earlier batches.
The thread ends at the end of the range, on an error, and when the caller closes the generator
early.
"""

# Why a thread, and groups of batches
# -----------------------------------
#
# Spark's Python API is synchronous: a data source yields Arrow batches, and Spark asks for the next
# when it wants it. A client that runs only during ``next()`` would fetch nothing in the meantime,
# and would miss its time-outs. So the client has a loop and a thread of its own (:mod:`.reader`),
# which fetches ahead.
#
# Each step from thread to thread costs more than a batch, so batches cross in groups. At most
# ``_GROUPS_AHEAD`` groups with ``_BYTES_AHEAD`` bytes wait between the threads, or one larger
# group. That bounds the memory of a worker whose caller is slow.
#
# ``_RangeRead`` is the bridge. The caller's thread uses ``_items``, and schedules calls in the loop
# with the token. All other state belongs to the loop. ``_Reading`` knows nothing of threads. It
# owns the position, which only grows, so no record comes twice even if the log changes meanwhile.
#
# The topic's id is compared before the first and after the last record (or was seen within
# ``_JUST_SEEN`` seconds). If it is the same both times, all records were of the topic that was
# planned, and not of a topic that was recreated under the same name.

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

from .plan import LOSS_OPTION
from .reader import Reader

_GROUPS_AHEAD, _BYTES_AHEAD = 8, 32 << 20
#: A group is complete once it has this many rows or bytes.
_GROUP_ROWS, _GROUP_BYTES = 131_072, 4 << 20
#: Seconds without progress after which a range fails, as in Spark's own connector.
STALL_LIMIT = 120.0
#: Seconds without a record after which the reader checks that the topic still exists.
_LOOK_EVERY = 5.0
#: How old (seconds) the client's last look at the topic's id may be when a range begins. Each look
#: fetches all partitions of the topic: with thousands, it takes longer than a small range.
_JUST_SEEN = 1.0
#: How often, and how many seconds apart, a topic is looked up that seems to be deleted: a broker
#: may not know a new topic yet.
_LOOKS, _BETWEEN_LOOKS = 5, 0.2
_log = logging.getLogger("trikafka.export")


class NothingYet(Exception):
    """No record of a range came within the time for the first attempt.

    Nothing of the range was read.
    """


def read_groups(
    wanted: OffsetRange,
    settings: Mapping[str, Any],
    *,
    fail_on_data_loss: bool = True,
    loss_option: str = LOSS_OPTION,
    stall_limit: float = STALL_LIMIT,
    topic_id: str | None = None,
    on_lost: Callable[[int, int, str], None] = lambda low, high, why: None,
    on_start: Callable[[Callable[[], None]], None] = lambda stop: None,
    reader: Reader | None = None,
    patience: float | None = None,
) -> Generator[list[RecordBatch], None, None]:
    """Yield the records of a range in order, in groups of batches.

    Compacted and control records leave gaps in the offsets. A caller that closes the generator ends
    the reading, and waits for its end.

    Args:
        wanted: The range; its end is exclusive.
        settings: The settings of a consumer without a group.
        fail_on_data_loss: With ``False`` the offsets that are gone are skipped with a warning. No
            record comes twice.
        loss_option: The caller's option for that, as errors and warnings name it.
        stall_limit: Seconds without progress after which the reading fails; 0 for no limit. Aborted
            records are progress, too.
        topic_id: The id (as text) of the topic that the range was planned for.
        on_lost: Called for each gap that is skipped, with its offsets and the reason. It is called
            in the reading thread.
        on_start: Called with a function that ends the reading from another thread.
        reader: A reader of the same settings, whose client is used and kept.
        patience: Seconds to wait for the first records; ``None`` waits for ``stall_limit``.

    Raises:
        OffsetOutOfRangeError: A part of the range is gone from the log, or the topic was deleted or
            recreated.
        KafkaTimeoutError: The reading made no progress for ``stall_limit`` seconds.
        NothingYet: The partition's leader returned no record within ``patience`` seconds.
        TrikafkaError: The consumer failed.
    """
    own = Reader(settings) if reader is None else reader
    read = _RangeRead(
        _Reading(wanted, fail_on_data_loss, loss_option, stall_limit, topic_id, on_lost, own.seen),
        patience,
    )
    own.begin(read)
    stop = partial(own.stop, read)
    on_start(stop)
    try:
        yield from read
    finally:
        stop()
        read.ended.wait()
        read.drop()
        if reader is None:
            own.close()


def read_range(
    wanted: OffsetRange, settings: Mapping[str, Any], **more: Any
) -> Generator[RecordBatch, None, None]:
    """Yield the batches of :func:`read_groups` one by one."""
    with closing(read_groups(wanted, settings, **more)) as groups:
        for group in groups:
            yield from group


class _RangeRead:
    """The bridge between the thread of the loop and the caller's thread.

    ``_items`` holds groups, and at the end ``None`` or the error that ended the reading.
    """

    def __init__(self, reading: _Reading, patience: float | None) -> None:
        self.name = reading.name
        self.stopped = False
        self.ended = threading.Event()
        self._reading = reading
        self._patience = math.inf if patience is None else patience
        self._items: queue.SimpleQueue[list[RecordBatch] | BaseException | None] = (
            queue.SimpleQueue()
        )
        self._token: trio.lowlevel.TrioToken | None = None
        self._scope = trio.CancelScope()
        self._first = trio.CancelScope()
        # That wait for the caller:
        self._groups = 0
        self._bytes = 0

    # --- the caller's thread ---

    def __iter__(self) -> Iterator[list[RecordBatch]]:
        while (item := self._items.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            self._soon(partial(self._taken, _size(item)))
            yield item

    def drop(self) -> None:
        """Release the groups that the caller has not taken, after the end.

        The object that can stop the reading may live long, and there may be many of them.
        """
        self._items = queue.SimpleQueue()

    def _soon(self, function: Any) -> None:
        if self._token is not None:
            with contextlib.suppress(trio.RunFinishedError):
                self._token.run_sync_soon(function)

    # --- the thread of the loop ---

    async def run(self, consumer: Any) -> bool:
        """Read the range, in the client's loop.

        Returns ``True`` if the client can read another range: the client itself has not failed.
        """
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
            error = NothingYet(f"no record of {self.name} arrived within {self._patience:g} s")
        self.end(error)
        return error is None or isinstance(error, NothingYet | KafkaTimeoutError)

    def cut(self) -> None:
        """End the reading, at any step."""
        self._scope.cancel()

    def end(self, error: BaseException | None) -> None:
        """Complete the read, once."""
        if not self.ended.is_set():
            self.ended.set()
            self._items.put(error)

    def _begun(self) -> None:
        """Start the clock of ``patience``: from here on only the partition's leader is asked.

        Before, any broker may have been asked, such as one that does not respond.
        """
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
    """One range, read once from its start to its end.

    Its position only grows, so no record comes twice.
    """

    def __init__(
        self,
        wanted: OffsetRange,
        fail_on_data_loss: bool,
        loss_option: str,
        stall_limit: float,
        topic_id: str | None,
        on_lost: Callable[[int, int, str], None],
        seen: dict[str, tuple[float, uuid.UUID | None]],
    ) -> None:
        self._seen = seen
        self._tp = TopicPartition(wanted.topic, wanted.partition)
        self.name = str(self._tp)
        self._position = wanted.start
        self._end = wanted.end
        self._fail_on_data_loss = fail_on_data_loss
        self._loss_option = loss_option
        self._stall_limit = stall_limit
        self._topic_id = None if topic_id is None else uuid.UUID(topic_id)
        self._on_lost = on_lost

    async def run(self, consumer: Any, begun: Callable[[], None], deliver: Any) -> None:
        """Read the range, and await ``deliver(group)`` for each group of batches.

        ``begun()`` is called before the partition's leader is asked for the first time.
        """
        try:
            await self._run(consumer, begun, deliver)
        except UnknownTopicOrPartitionError as error:  # deleted since the last look, perhaps
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
                if not await self._same_topic(consumer, error) or not await self._find_start(
                    consumer, error
                ):
                    return
                consumer.seek(self._tp, self._position)
                continue
            if group is None:
                break
            await deliver(group)
            self._position = max(self._position, group[-1].next_offset)
        # The same id before and after: all records were of the topic that was planned.
        await self._same_topic(consumer)

    def _just_seen(self) -> bool:
        """Return whether the last look at the topic is recent enough, and showed the planned id."""
        when, topic_id = self._seen.get(self._tp.topic, (-math.inf, None))
        return (
            time.monotonic() - when < _JUST_SEEN
            and topic_id is not None
            and topic_id == self._topic_id
        )

    async def _same_topic(self, consumer: Any, cause: Exception | None = None) -> bool:
        """Return whether the topic is still the planned one. Raises as :meth:`_lost`."""
        name = self._tp.topic
        for _ in range(_LOOKS):
            if name in (ids := await consumer.topic_ids([name])):
                break
            await trio.sleep(_BETWEEN_LOOKS)
        if name not in ids:
            self._seen.pop(name, None)
            return self._lost(
                f"topic {name!r} was deleted after the read of {self._tp} was planned", cause
            )
        now: uuid.UUID | None = ids[name]
        self._seen[name] = time.monotonic(), now
        if self._topic_id is None:
            self._topic_id = now
        elif now is not None and now != self._topic_id:
            return self._lost(
                (
                    f"topic {name!r} was deleted and created again after the read of {self._tp} "
                    "was planned"
                ),
                cause,
            )
        return True

    async def _find_start(self, consumer: Any, cause: Exception | None = None) -> bool:
        """Fit the rest of the range to the log, and return whether anything is left of it.

        Raises as :meth:`_lost`.
        """
        if self._position >= self._end:
            return False
        beginning: int = (await consumer.beginning_offsets([self._tp]))[self._tp]
        end: int = (await consumer.end_offsets([self._tp]))[self._tp]
        if beginning > self._position or end < self._end:
            first = max(self._position, beginning)
            last = min(self._end, end)
            self._lost(
                (
                    f"{self._tp} holds the offsets [{beginning}, {end}), but [{self._position}, "
                    f"{self._end}) were to be read: records were deleted by retention, or the log "
                    "was truncated"
                ),
                cause,
                (self._position, min(first, self._end)),
                (max(last, first), self._end),
            )
        elif cause is not None:
            # The position was out of range before, and is not any more: the log was truncated and
            # has grown again.
            return self._lost(
                f"{self._tp} was truncated while it was read at offset {self._position}", cause
            )
        self._position = max(self._position, beginning)
        self._end = min(self._end, end)
        return self._position < self._end

    def _lost(self, what: str, cause: Exception | None, *gone: tuple[int, int]) -> bool:
        """Raise :exc:`OffsetOutOfRangeError`, or log that records are gone and return ``False``.

        ``gone`` are the ranges that are gone, each from an offset to another; by default the whole
        rest.
        """
        if self._fail_on_data_loss:
            raise OffsetOutOfRangeError(
                f"{what}; {self._loss_option} continues with the existing records"
            ) from cause
        _log.warning("%s; missing records are skipped: %s", what, self._loss_option)
        for low, high in gone or ((self._position, self._end),):
            if low < high:
                self._on_lost(low, high, what)
        return False

    # Records of an aborted transaction are fetched and skipped, and so are control records. There
    # may be gigabytes of them, so the position counts as progress, and not only a record: a range
    # that begins with them would otherwise fail at each attempt.
    async def _next(self, consumer: Any, batches: Any) -> list[RecordBatch] | None:
        """Return the next group; ``None`` at the end, or if the topic is gone.

        Raises:
            KafkaTimeoutError: The position did not move for ``stall_limit`` seconds.
        """
        limit = self._stall_limit or math.inf
        position = self._position
        ends = trio.current_time() + limit
        while True:
            with trio.move_on_at(min(ends, trio.current_time() + _LOOK_EVERY)):
                try:
                    group: list[RecordBatch] = await batches.gather(_GROUP_ROWS, _GROUP_BYTES)
                except StopAsyncIteration:
                    return None
                return group
            # If no broker responds now, the limit decides how long to wait. A look may not use it
            # up: nothing is read meanwhile.
            with (
                trio.move_on_at(min(ends, trio.current_time() + _LOOK_EVERY)),
                contextlib.suppress(KafkaTimeoutError),
            ):
                if not await self._same_topic(consumer):
                    return None
            if (at := await self._reached(consumer)) > position:
                position = at
                ends = trio.current_time() + limit
            if trio.current_time() >= ends:
                raise KafkaTimeoutError(f"reading {self._tp} from offset {position}", limit)

    async def _reached(self, consumer: Any) -> int:
        """Return the client's position; that of this reading while the client looks it up."""
        with contextlib.suppress(KafkaTimeoutError):
            position: int = await consumer.position(self._tp, timeout=0)
            return position
        return self._position
