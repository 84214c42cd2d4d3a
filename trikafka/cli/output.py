"""Writing records to the standard output from a worker thread, whole lines at a time.

A pipe takes up to ``PIPE_BUF`` bytes at once or not at all, so a process that is killed leaves no half line in it, and several
writers do not mix theirs. Nothing is buffered between two calls.
"""

from __future__ import annotations

import os
import select
import stat
from collections.abc import Iterable
from contextlib import suppress
from itertools import islice

import click
import trio

from ..types import Record
from .records import Format

_FILE_WRITE = 262_144
#: How long a cancelled write waits for the thread, which may hang on a reader that does not read (seconds).
_PATIENCE = 0.5
#: Records that are formatted and written between two looks at whether to stop.
_STRETCH = 2_000


class Output:
    """The standard output. ``written`` counts the records of the last :meth:`write` that are out."""

    def __init__(self, fd: int = 1) -> None:
        self._fd = fd
        self._limiter = trio.CapacityLimiter(1)
        self._token = trio.lowlevel.current_trio_token()
        self._idle = trio.Event()  # the thread has come to its end
        self._stopped = False
        self.written = 0
        try:
            self._pipe = stat.S_ISFIFO(os.fstat(fd).st_mode)
        except OSError as error:
            raise click.ClickException(f"cannot write to the standard output: {error.strerror}") from error
        self._most = os.fpathconf(fd, "PC_PIPE_BUF") if self._pipe else _FILE_WRITE

    def begin(self) -> None:
        """Nothing is out yet of what comes now, should it fail before the first :meth:`write`."""
        self.written = 0

    async def write(self, records: Iterable[Record], form: Format) -> None:
        """Write records. Raises :exc:`BrokenPipeError` when nobody reads any more.

        Cancelled: returns within half a second, also when the reader does not read; ``written`` tells how far it came, and the
        thread stops after what it is writing.
        """
        self.written = 0
        todo = iter(records)
        try:
            more = True
            while more:
                self._idle = trio.Event()
                more = await trio.to_thread.run_sync(self._stretch, todo, form, limiter=self._limiter, abandon_on_cancel=True)
        except trio.Cancelled:
            self._stopped = True
            with trio.move_on_after(_PATIENCE, shield=True):  # what is out has to be counted
                await self._idle.wait()
            raise

    async def broken(self) -> None:
        """Wait until nobody reads any more; for ever if the output is no pipe. So that one who waits for records notices it."""
        while self._pipe:
            await trio.lowlevel.wait_readable(self._fd)
            poll = select.poll()
            poll.register(self._fd, 0)
            if any(flags & (select.POLLERR | select.POLLHUP) for _, flags in poll.poll(0)):
                return
            break
        await trio.sleep_forever()

    def _stretch(self, records: Iterable[Record], form: Format) -> bool:
        """Format and write some records; return whether there were any. Runs in the thread."""
        try:
            return self._format_and_write(records, form)
        finally:
            with suppress(trio.RunFinishedError):
                self._token.run_sync_soon(self._idle.set)

    def _format_and_write(self, records: Iterable[Record], form: Format) -> bool:
        lines: list[bytes] = []
        size = count = 0
        for record in islice(records, _STRETCH):
            line = form(record)
            if size + len(line) > self._most and lines:
                self._write(lines)
                lines, size = [], 0
            lines.append(line)
            size += len(line)
            count += 1
        self._write(lines)
        return count > 0

    def _write(self, lines: list[bytes]) -> None:
        left = memoryview(b"".join(lines))
        while left and not self._stopped:
            try:
                left = left[os.write(self._fd, left) :]
            except BlockingIOError:  # somebody made the terminal or pipe non-blocking
                select.select((), (self._fd,), ())
            except BrokenPipeError:
                raise
            except OSError as error:
                raise click.ClickException(f"cannot write to the standard output: {error.strerror}") from error
        if not left:
            self.written += len(lines)
