"""A client that reads one range after the other for synchronous code, in a thread of its own.

Opening a client takes longer than reading a small range, so the client is kept from one range to
the next. After a range that failed, the next one gets a new client. A range that was stopped, or
for which no broker responded, does not count as failed.
"""

# Threads, and what is kept in module state
# -----------------------------------------
#
# A ``Reader`` is used by one thread, the *caller's*. It reads its ranges in another, the *loop's*.
# ``_lock`` guards the hand-over of the next range: the loop's thread may just be ending because no
# range came for ``kept_for`` seconds. Both sides decide under the lock. So either the old thread
# takes the range, or a new thread is started for it. All other calls are passed into the loop with
# its token. After the loop has ended they have no effect, since its range has ended as well.
#
# The thread is a daemon, because a process of Spark's may end without notice. It has a copy of the
# caller's context, because all clients of an export share the log that this context holds.
#
# Module state: a Python worker of Spark runs one task after the other, and Spark passes no object
# from one task to the next. So the client that stays open between tasks, or micro-batches, is kept
# here (``_kept``), and only here. It is used again only with the same settings, credentials
# included: another query gets another client. A fork has none of the threads, so it forgets the
# reader instead of closing it (``_after_fork``).

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
from contextvars import copy_context
from functools import partial
from typing import Any, Protocol

import trio

import trikafka

#: The most bytes that one fetch asks for by default; each reader fetches one partition only.
_FETCH_BYTES = 4 << 20
#: Seconds for which a worker of Spark keeps an idle client for the next task or micro-batch.
KEPT_FOR = 30.0
_log = logging.getLogger("trikafka.export")


class RangeRead(Protocol):
    """A range to read. Its methods are called in the loop's thread."""

    name: str
    #: True once the caller does not want the range any more; any thread may set it.
    stopped: bool

    async def run(self, consumer: Any) -> bool:
        """Read the range and call :meth:`end`; return whether the client can read another range.

        An error of the range is passed to :meth:`end` and not raised.
        """

    def cut(self) -> None:
        """Make :meth:`run` end soon."""

    def end(self, error: BaseException | None) -> None:
        """Complete the range; a second call has no effect."""


class Reader:
    """A thread with at most one client, which is opened for the first range.

    The client closes after :meth:`close`, or when no range came for ``kept_for`` seconds. All
    methods but :meth:`stop` must be called from one thread.

    Args:
        settings: The settings of a consumer without a group.
        kept_for: The seconds for which an idle client stays open.
    """

    def __init__(self, settings: Mapping[str, Any], *, kept_for: float = math.inf) -> None:
        self.settings = settings
        #: By topic: when its id was last looked up (``time.monotonic()``), and the id.
        self.seen: dict[str, tuple[float, uuid.UUID | None]] = {}
        self._kept_for = kept_for
        #: Guards the next range, and whether a thread will take that range.
        self._lock = threading.Lock()
        self._next: RangeRead | None = None
        self._serving = False
        self._closed = False
        self._thread: threading.Thread | None = None
        self._token: trio.lowlevel.TrioToken | None = None
        # --- of the loop ---
        self._current: RangeRead | None = None
        #: The scope in which a client is being opened.
        self._opening: trio.CancelScope | None = None
        self._woken = trio.Event()

    def begin(self, read: RangeRead) -> None:
        """Start to read a range. The range before it must have ended."""
        with self._lock:
            self._next = read
            if not self._serving:
                # In a copy of the context: the clients of all threads of an export share its log.
                work = partial(copy_context().run, self._serve)
                thread = threading.Thread(target=work, name=f"trikafka {read.name}", daemon=True)
                self._token = None
                thread.start()  # raises if the process can have no further thread
                self._serving = True
                self._thread = thread
                return
        self._soon(self._wake)

    def stop(self, read: RangeRead) -> None:
        """Stop a range, whatever it does at the moment. Any thread may call this."""
        read.stopped = True
        self._soon(self._cut, read)

    def close(self) -> None:
        """End the thread, and wait for its end."""
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
                left = self._next
                self._next = None
                self._serving = False
            for read in (self._current, left):
                if read is not None:
                    read.end(error)

    async def _main(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        while (read := self._taken(last=True)) is not None:
            await self._read_from(read)

    async def _read_from(self, read: RangeRead) -> None:
        """Read this range, and those that follow, with one client."""
        self._current = read
        try:
            with trio.CancelScope() as self._opening:
                if read.stopped:
                    read.end(None)
                    return
                async with trikafka.open_consumer(**_settings_of(self.settings)) as consumer:
                    self._opening = None
                    while (
                        await self._current.run(consumer)
                        and (following := await self._following(consumer)) is not None
                    ):
                        self._current = following
        except Exception as error:
            _log.debug("the client that read %s ended", self._current.name, exc_info=True)
            self._current.end(error)
        finally:
            self._opening = None
        # Only here, after the client has closed: if the loop breaks down, :meth:`_serve` ends the
        # range with the error.
        self._current.end(None)

    async def _following(self, consumer: Any) -> RangeRead | None:
        """Wait for the next range; return ``None`` if the client is to close."""
        consumer.assign([])  # or the consumer would go on fetching
        with trio.move_on_after(self._kept_for):
            while not self._closed:
                self._woken = trio.Event()
                if (read := self._taken()) is not None:
                    return read
                await self._woken.wait()
        return None

    def _taken(self, *, last: bool = False) -> RangeRead | None:
        """Take the next range. With ``last``, record that this thread ends if there is none."""
        with self._lock:
            read = self._next
            self._next = None
            self._serving = read is not None or not last
            return read

    def _wake(self) -> None:
        self._woken.set()

    def _cut(self, read: RangeRead) -> None:
        if read is self._current:
            read.cut()
            if self._opening is not None:
                self._opening.cancel()


_kept: Reader | None = None
_keeping = threading.Lock()


@contextmanager
def kept_reader(settings: Mapping[str, Any]) -> Iterator[Reader]:
    """Yield a reader for one task of a Python worker of Spark.

    A worker keeps one reader. The next task uses it again if its settings are the same, credentials
    included. A reader whose range was left early, as a ``limit`` does, is closed: such a query
    seldom reads another range.
    """
    global _kept
    with _keeping:
        reader, _kept = _kept, None
    if reader is not None and reader.settings != settings:
        reader.close()
        reader = None
    reader = reader or Reader(settings, kept_for=KEPT_FOR)
    wanted = True
    try:
        yield reader
    except GeneratorExit:
        wanted = False
        raise
    finally:
        if wanted:
            _keep(reader)
        else:
            reader.close()


def _keep(reader: Reader) -> None:
    """Keep the reader for the next task, and close the one that was kept before."""
    global _kept
    with _keeping:
        other, _kept = _kept, reader
    if other is not None:
        other.close()


def close_kept() -> None:
    """Close the reader that is kept, if there is one."""
    global _kept
    with _keeping:
        reader, _kept = _kept, None
    if reader is not None:
        reader.close()


def _after_fork() -> None:
    """Forget the reader in a fork, which has no threads."""
    global _kept, _keeping
    _kept = None
    _keeping = threading.Lock()


atexit.register(close_kept)
os.register_at_fork(after_in_child=_after_fork)


def _settings_of(settings: Mapping[str, Any]) -> dict[str, Any]:
    given = {"max_partition_fetch_bytes": _FETCH_BYTES, **settings}
    return {**given, "group_id": None, "enable_auto_commit": False, "auto_offset_reset": "none"}
