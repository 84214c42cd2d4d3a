"""Output of records to the standard output from a worker thread, in whole lines."""

from __future__ import annotations

import errno
import os
import select
import stat
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import islice

import click
import trio

from .._wire import _implementation
from .._wire.columns import RecordBatch
from ..types import Record
from .record_lines import OutputFormat

#: Decides whether a record is printed.
Keep = Callable[[Record], bool]

_FILE_WRITE = 262_144
#: Bytes of lines that are formatted from columns at once.
_BLOCK = 1 << 20
#: Seconds for which a cancelled write waits for the thread. The thread may be blocked by a reader
#: that does not read.
_PATIENCE = 0.5
#: Records that are formatted one by one between two checks for cancellation.
_STRETCH = 2_000


# A write of up to PIPE_BUF bytes to a pipe is atomic: all or nothing (POSIX). Writes are therefore
# cut at line ends below that size. A killed process leaves no half line in the pipe, and several
# writers to one pipe do not mix their lines. Nothing is buffered between two calls, so `written` is
# exact, and the consumer commits only what was printed.
#
# The write happens in a thread, because a reader that stops reading blocks it without limit. A
# cancelled call cannot interrupt the thread. It waits half a second for the thread, to learn how many
# records were written, and then abandons it. The thread stops after the current write.
class Output:
    """The standard output.

    ``written`` is the number of records of the last :meth:`write` that were written or left out,
    ``printed`` the number of those that were written.
    """

    def __init__(self, fd: int = 1) -> None:
        self._fd = fd
        self._limiter = trio.CapacityLimiter(1)
        self._token = trio.lowlevel.current_trio_token()
        self._idle = trio.Event()  # set when the thread has finished
        self._stopped = False
        self._block = bytearray()
        self.written = 0
        self.printed = 0
        try:
            # As in `standard_input`: another file may have the number of a closed stream.
            if fd == 1 and sys.stdout is None:
                raise OSError(errno.EBADF, os.strerror(errno.EBADF))
            self._pipe = stat.S_ISFIFO(os.fstat(fd).st_mode)
        except OSError as error:
            raise click.ClickException(
                f"cannot write to the standard output: {error.strerror}"
            ) from error
        atomic = self._pipe and hasattr(os, "fpathconf")  # Windows promises nothing of its pipes
        self._most = os.fpathconf(fd, "PC_PIPE_BUF") if atomic else _FILE_WRITE

    def begin(self) -> None:
        """Reset the counts, in case the next step fails before :meth:`write`."""
        self.written = 0
        self.printed = 0

    async def write(
        self,
        batch: RecordBatch,
        form: OutputFormat,
        keep: Keep | None = None,
        most: int | None = None,
    ) -> None:
        """Write the records of a batch that ``keep`` accepts, at most ``most`` of them.

        If cancelled, the call returns within half a second, even if the reader does not read. The
        counts then show the progress, and the thread stops after the current write.

        Raises:
            BrokenPipeError: The reader has gone.
        """
        self.begin()
        if keep is None and form.of_columns:
            some = batch if most is None else batch[:most]
            await self._in_thread(lambda: self._write_columns(some, form))
            return
        todo = iter(batch)
        while await self._in_thread(lambda: self._write_records(todo, form, keep, most)):
            pass

    async def _in_thread(self, work: Callable[[], bool]) -> bool:
        self._idle = trio.Event()
        try:
            return await trio.to_thread.run_sync(
                self._watched, work, limiter=self._limiter, abandon_on_cancel=True
            )
        except trio.Cancelled:
            self._stopped = True
            with trio.move_on_after(_PATIENCE, shield=True):  # to learn the value of `written`
                await self._idle.wait()
            raise

    async def broken(self) -> None:
        """Wait until the reader has gone; forever if the output is not a pipe.

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

    def _watched(self, work: Callable[[], bool]) -> bool:
        """Do ``work`` in the thread, and set ``_idle`` when it has ended."""
        try:
            return work()
        finally:
            with suppress(trio.RunFinishedError):
                self._token.run_sync_soon(self._idle.set)

    def _write_columns(self, batch: RecordBatch, form: OutputFormat) -> bool:
        """Format and write a batch block by block, without a ``Record`` for each line."""
        if not self._block:
            self._block = bytearray(_BLOCK)
        columns = batch.columns
        parts = form.parts_of(batch.topic, batch.partition)
        row, stop = 0, columns.count
        while row < stop and not self._stopped:
            first = row
            row, cuts = _implementation.current.render_rows(
                columns, first, stop, parts, form.null, self._block, self._most
            )
            begin = 0
            with memoryview(self._block) as block:
                for end, rows in zip(cuts[::2].tolist(), cuts[1::2].tolist(), strict=True):
                    if not self._write_bytes(block[begin:end]):
                        return False
                    begin = end
                    self.printed = first + rows
                    self.written = first + rows
        return False

    def _write_records(
        self, records: Iterable[Record], form: OutputFormat, keep: Keep | None, most: int | None
    ) -> bool:
        """Format and write some records; return whether there may be more to write."""
        lines: list[bytes] = []
        size = seen = 0
        more = False
        for record in islice(records, _STRETCH):
            if most is not None and self.printed + len(lines) == most:
                more = False
                break
            more = True
            if keep is None or keep(record):
                line = form(record)
                if size + len(line) > self._most and lines:
                    if not self._write(lines, seen):
                        return False
                    lines, size, seen = [], 0, 0
                lines.append(line)
                size += len(line)
            seen += 1
        return self._write(lines, seen) and more

    def _write(self, lines: list[bytes], seen: int) -> bool:
        """Write lines, for which ``seen`` records were examined; return whether all were written."""
        if not self._write_bytes(memoryview(b"".join(lines))):
            return False
        self.written += seen
        self.printed += len(lines)
        return True

    def _write_bytes(self, left: memoryview) -> bool:
        """Write bytes; return whether all were written: a cancelled call stops in between."""
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
        return not left
