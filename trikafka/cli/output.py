"""Output of records to the standard output from a worker thread, in whole lines."""

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
from .record_lines import Format

_FILE_WRITE = 262_144
#: Seconds for which a cancelled write waits for the thread. The thread may be blocked by a reader
#: that does not read.
_PATIENCE = 0.5
#: Records formatted and written between two checks for cancellation.
_STRETCH = 2_000


# A write of up to PIPE_BUF bytes to a pipe is atomic: all or nothing (POSIX). Writes are therefore
# cut at line ends below that size. A killed process leaves no half line in the pipe, and several
# writers to one pipe do not mix their lines. Nothing is buffered between two calls, so `written` is
# exact, and the consumer commits only what was printed.
#
# The write happens in a thread, because a reader that stops reading blocks it without limit. A
# cancelled call cannot interrupt the thread. It waits half a second for it, to learn how many
# records are out, and then abandons it. The thread stops after the current write.
class Output:
    """The standard output.

    ``written`` is the number of records of the last :meth:`write` that were written.
    """

    def __init__(self, fd: int = 1) -> None:
        self._fd = fd
        self._limiter = trio.CapacityLimiter(1)
        self._token = trio.lowlevel.current_trio_token()
        self._idle = trio.Event()  # set when the thread has finished
        self._stopped = False
        self.written = 0
        try:
            self._pipe = stat.S_ISFIFO(os.fstat(fd).st_mode)
        except OSError as error:
            raise click.ClickException(
                f"cannot write to the standard output: {error.strerror}"
            ) from error
        atomic = self._pipe and hasattr(os, "fpathconf")  # Windows promises nothing of its pipes
        self._most = os.fpathconf(fd, "PC_PIPE_BUF") if atomic else _FILE_WRITE

    def begin(self) -> None:
        """Reset ``written``, in case the next step fails before :meth:`write`."""
        self.written = 0

    async def write(self, records: Iterable[Record], form: Format) -> None:
        """Write records.

        If cancelled, the call returns within half a second, even if the reader does not read.
        ``written`` then shows the progress, and the thread stops after the current write.

        Raises:
            BrokenPipeError: The reader has gone.
        """
        self.written = 0
        todo = iter(records)
        try:
            more = True
            while more:
                self._idle = trio.Event()
                more = await trio.to_thread.run_sync(
                    self._stretch, todo, form, limiter=self._limiter, abandon_on_cancel=True
                )
        except trio.Cancelled:
            self._stopped = True
            with trio.move_on_after(_PATIENCE, shield=True):  # to learn the value of `written`
                await self._idle.wait()
            raise

    async def broken(self) -> None:
        """Wait until the reader has gone; forever if the output is no pipe.

        Without this, a command that waits for records would not notice. On Windows a pipe cannot be
        waited for, so there the next write notices.
        """
        while self._pipe and hasattr(select, "poll"):
            await trio.lowlevel.wait_readable(self._fd)
            poll = select.poll()
            poll.register(self._fd, 0)
            if any(flags & (select.POLLERR | select.POLLHUP) for _, flags in poll.poll(0)):
                return
            break
        await trio.sleep_forever()

    def _stretch(self, records: Iterable[Record], form: Format) -> bool:
        """Format and write some records in the thread; return whether there were any."""
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
            except BlockingIOError:  # another program made the terminal or pipe non-blocking
                select.select((), (self._fd,), ())
            except BrokenPipeError:
                raise
            except OSError as error:
                raise click.ClickException(
                    f"cannot write to the standard output: {error.strerror}"
                ) from error
        if not left:
            self.written += len(lines)
