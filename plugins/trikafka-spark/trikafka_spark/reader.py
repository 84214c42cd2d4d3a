"""A client in the loop of a thread of its own, which reads one range after the other for plain (not async) code.

To open a client takes longer than to read a small range: so whoever has several keeps it from one to the next. After a range that
failed the next one gets a new client; one that was cut off, or that nobody has responded for, is no such failure.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import math
import os
import threading
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

import trio

import trikafka

#: What one fetch asks for at most, where nothing else was set: all of them are of one partition.
_FETCH_BYTES = 4 << 20
#: How long (seconds) a worker of Spark keeps a client that nobody uses: from one task, or micro-batch, to the next.
KEPT_FOR = 30.0
_log = logging.getLogger("trikafka.spark")


class Feed(Protocol):
    """A range that is read. Its methods belong to the loop, but for ``stopped``."""

    name: str
    #: Whether it is not wanted any more; set by any thread.
    stopped: bool

    async def run(self, consumer: Any) -> bool:
        """Read it and :meth:`end`; says whether the client can read another one. Raises nothing of its own."""

    def cut(self) -> None:
        """End :meth:`run`."""

    def end(self, error: BaseException | None) -> None:
        """The last there is; a second time nothing."""


class Reader:
    """One client at a time, opened for the first range, closed by :meth:`close` or when no range came for ``kept_for`` seconds.

    ``settings`` are those of a consumer without a group. The methods belong to one thread, but for :meth:`stop`.
    """

    def __init__(self, settings: Mapping[str, Any], *, kept_for: float = math.inf) -> None:
        self.settings = settings
        #: When (``time.monotonic()``) the topics were last asked for their ids, and these.
        self.seen: dict[str, tuple[float, uuid.UUID | None]] = {}
        self._kept_for = kept_for
        #: Held for the next range, and whether a thread takes it.
        self._lock = threading.Lock()
        self._next: Feed | None = None
        self._serving = self._closed = False
        self._thread: threading.Thread | None = None
        self._token: trio.lowlevel.TrioToken | None = None
        # --- of the loop ---
        self._current: Feed | None = None
        #: While a client is opened.
        self._opening: trio.CancelScope | None = None
        self._woken = trio.Event()

    def begin(self, feed: Feed) -> None:
        """Have it read; the one before has ended."""
        with self._lock:
            self._next = feed
            if not self._serving:
                thread, self._token = threading.Thread(target=self._serve, name=f"trikafka {feed.name}", daemon=True), None
                thread.start()  # there may be no room for another one
                self._serving, self._thread = True, thread
                return
        self._soon(self._wake)

    def stop(self, feed: Feed) -> None:
        """End a range, wherever it is."""
        feed.stopped = True
        self._soon(self._cut, feed)

    def close(self) -> None:
        """End the thread, and wait for that."""
        self._closed = True
        self._soon(self._wake)
        if self._thread is not None:
            self._thread.join()

    def _soon(self, function: Any, *args: Any) -> None:
        if (token := self._token) is not None:
            with contextlib.suppress(trio.RunFinishedError):
                token.run_sync_soon(function, *args)

    # --- the thread of the loop ---

    def _serve(self) -> None:
        try:
            trio.run(self._main)
        except BaseException as error:
            with self._lock:
                left, self._next, self._serving = self._next, None, False
            for feed in (self._current, left):
                if feed is not None:
                    feed.end(error)

    async def _main(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        while (feed := self._taken(last=True)) is not None:
            await self._read_from(feed)

    async def _read_from(self, feed: Feed) -> None:
        """Read this range, and those that come, with one client."""
        self._current = feed
        try:
            with trio.CancelScope() as self._opening:
                if feed.stopped:
                    feed.end(None)
                    return
                async with trikafka.open_consumer(**_settings_of(self.settings)) as consumer:
                    self._opening = None
                    while await self._current.run(consumer) and (following := await self._following(consumer)) is not None:
                        self._current = following
        except Exception as error:
            _log.debug("the client that read %s ended", self._current.name, exc_info=True)
            self._current.end(error)
        finally:
            self._opening = None
        # Only here: a loop that broke down is no end of a range, and :meth:`_serve` says what has happened.
        self._current.end(None)

    async def _following(self, consumer: Any) -> Feed | None:
        consumer.assign([])  # or it would go on fetching
        with trio.move_on_after(self._kept_for):
            while not self._closed:
                self._woken = trio.Event()
                if (feed := self._taken()) is not None:
                    return feed
                await self._woken.wait()
        return None

    def _taken(self, *, last: bool = False) -> Feed | None:
        """The next range; ``last``: where there is none, this thread ends."""
        with self._lock:
            feed, self._next = self._next, None
            self._serving = feed is not None or not last
            return feed

    def _wake(self) -> None:
        self._woken.set()

    def _cut(self, feed: Feed) -> None:
        if feed is self._current:
            feed.cut()
            if self._opening is not None:
                self._opening.cancel()


_kept: Reader | None = None
_keeping = threading.Lock()


@contextmanager
def kept_reader(settings: Mapping[str, Any]) -> Iterator[Reader]:
    """A reader for one task of a Python worker of Spark, which has one task after the other.

    The one that the task before has left, where its settings are the same, credentials and all; a worker keeps one.
    """
    global _kept
    with _keeping:
        reader, _kept = _kept, None
    if reader is not None and reader.settings != settings:
        reader.close()
        reader = None
    reader = reader or Reader(settings, kept_for=KEPT_FOR)
    try:
        yield reader
    finally:
        with _keeping:
            other, _kept = _kept, reader
        if other is not None:
            other.close()


def close_kept() -> None:
    """Close the one that is kept."""
    global _kept
    with _keeping:
        reader, _kept = _kept, None
    if reader is not None:
        reader.close()


def _after_fork() -> None:
    """In a fork, which has no threads."""
    global _kept, _keeping
    _kept, _keeping = None, threading.Lock()


atexit.register(close_kept)
os.register_at_fork(after_in_child=_after_fork)


def _settings_of(settings: Mapping[str, Any]) -> dict[str, Any]:
    given = {"max_partition_fetch_bytes": _FETCH_BYTES, **settings}
    return {**given, "group_id": None, "enable_auto_commit": False, "auto_offset_reset": "none"}
