"""Lines of the standard input or a file, read by a worker thread in bounded pieces."""

from __future__ import annotations

import errno
import os
import select
import stat
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

import trio

from .._wire.column_rows import ColumnRows
from .record_lines import BadLineError, Line

T = TypeVar("T")
_PIECE = 1 << 20
#: Bytes of the longest line.
LONGEST = 100_000_000
#: Flags of the file. O_BINARY is Windows' own: without it, line ends are translated. Without
#: O_NONBLOCK, opening a named pipe would block the whole process until the pipe has a writer, and
#: no signal would be handled.
_READ = os.O_RDONLY
for _name in ("O_CLOEXEC", "O_BINARY", "O_NONBLOCK"):
    _READ |= getattr(os, _name, 0)


def standard_input() -> int:
    """Return the descriptor of the standard input.

    Raises:
        OSError: The standard input is closed.
    """
    # Python sets `sys.stdin` before it imports anything. A library that opens a file later, as
    # libffi does, gets the free number of a closed stream.
    if sys.stdin is None:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))
    return 0


class Block(NamedTuple):
    """Lines that were read, both as columns and as single records.

    Attributes:
        lines: The number of lines.
        topic: The topic of the rows.
        rows: The records as columns; ``None``: they must be sent one by one.
        places: For each row its line, counted from the first line of the block.
        singly: Yields the records one by one: the place of the line, and a function that parses it.
        error: The fault in the line after the block.
    """

    lines: int
    topic: str | None = None
    rows: ColumnRows | None = None
    places: Sequence[int] = ()
    singly: Callable[[], Iterable[tuple[int, Callable[[], Line]]]] = tuple
    error: BadLineError | None = None


class Lines:
    """The lines of one input, in blocks of about a megabyte, or of what has arrived."""

    def __init__(self, path: str) -> None:
        """Open ``path``; ``-`` is the standard input.

        Raises:
            OSError: The file cannot be opened, or the standard input is closed.
        """
        self._owned = path != "-"
        self._fd = os.open(path, _READ) if self._owned else standard_input()
        if self._owned and hasattr(os, "O_NONBLOCK"):
            os.set_blocking(self._fd, True)
        self._limiter = trio.CapacityLimiter(1)
        self._rest: list[bytes] = []
        self._size = 0
        self._ended = False
        # A thread whose call was cancelled may have read lines already, which must not be lost. So
        # the thread waits for input without the lock, and reads while it holds the lock. So `kept`
        # either gets the block that the thread has read, or prevents the reading.
        self._lock = threading.Lock()
        self._left = False
        self._unclaimed: Any = None

    @property
    def unfinished(self) -> bool:
        """True if the beginning of a line was read, but not its end."""
        return bool(self._rest)

    def close(self) -> None:
        """Close the file; the standard input stays open."""
        if self._owned:
            os.close(self._fd)

    async def read(self, convert: Callable[[bytes], T]) -> T | None:
        """Return the next lines, converted in the thread; ``None`` at the end.

        A block consists of whole lines with their line ends, and may be empty. Only the last line
        of the input may lack its line end. A cancelled call ends at once, even without any input;
        :meth:`kept` returns lines that its thread has read.

        Raises:
            BadLineError: The next line is too long.
        """
        if self._ended:
            await trio.lowlevel.checkpoint()
            return None
        block = await trio.to_thread.run_sync(
            self._read_unclaimed, convert, limiter=self._limiter, abandon_on_cancel=True
        )
        self._unclaimed = None
        return block

    async def kept(self) -> Any:
        """Return the lines that a cancelled :meth:`read` has read; ``None`` if there are none.

        Nothing is read afterwards. Call this with a time limit: another reader of the same pipe may
        have taken the input that the thread saw, and then the thread holds the lock until more
        arrives.
        """

        def leave() -> Any:
            with self._lock:
                self._left = True
                return self._unclaimed

        return await trio.to_thread.run_sync(
            leave, limiter=trio.CapacityLimiter(1), abandon_on_cancel=True
        )

    def _read_unclaimed(self, convert: Callable[[bytes], T]) -> T | None:
        if not hasattr(select, "poll"):
            # Windows cannot wait for input without reading it. The lock is not held meanwhile, or
            # `kept` would wait for the lock after a signal.
            return self._next_block(convert)
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        poll.poll()
        with self._lock:
            if self._left:
                return None
            block = self._next_block(convert)
            self._unclaimed = block
        return block

    def _next_block(self, convert: Callable[[bytes], T]) -> T | None:
        piece = self._read_piece()
        if not piece:
            self._ended = True
            rest, self._rest = self._rest, []
            return convert(b"".join(rest)) if rest else None
        end = piece.rfind(b"\n") + 1
        if not end:
            self._keep_rest(piece)
            return convert(b"")
        block = b"".join([*self._rest, piece[:end]]) if self._rest else piece[:end]
        self._rest = []
        self._size = 0
        self._keep_rest(piece[end:])
        return convert(block)

    def _read_piece(self) -> bytes:
        """Return what can be read without waiting, or the first bytes that arrive.

        A pipe returns at most 64 KiB at once, so several reads make up a block.
        """
        pieces = [os.read(self._fd, _PIECE)]
        size = len(pieces[0])
        while pieces[-1] and size < _PIECE and self._is_ready():
            pieces.append(os.read(self._fd, _PIECE - size))
            size += len(pieces[-1])
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _is_ready(self) -> bool:
        if not stat.S_ISFIFO(os.fstat(self._fd).st_mode) or not hasattr(select, "poll"):
            return False
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        return any(events & select.POLLIN for _, events in poll.poll(0))

    def _keep_rest(self, rest: bytes) -> None:
        if rest:
            self._rest.append(rest)
            self._size += len(rest)
        if self._size > LONGEST:
            raise BadLineError(f"the line is longer than {LONGEST} bytes")


def split(block: bytes) -> list[bytes]:
    """Return the lines of a block without their line ends."""
    lines = block.split(b"\n")
    if not lines[-1]:
        lines.pop()
    return lines
