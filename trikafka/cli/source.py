"""Lines of the standard input or a file, read by a worker thread in bounded pieces."""

from __future__ import annotations

import os
from collections.abc import Sequence

import trio

from .record_lines import BadLineError

_PIECE = 65_536
_LONGEST = 100_000_000
#: Flags of the file. O_BINARY is Windows' own: without it, line ends are translated.
_READ = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)


class Lines:
    """The lines of one input without their line ends.

    The last line may lack its line end.
    """

    def __init__(self, path: str) -> None:
        """Open ``path``; ``-`` is the standard input.

        Raises:
            OSError: The file cannot be opened.
        """
        self._fd = 0 if path == "-" else os.open(path, _READ)
        self._limiter = trio.CapacityLimiter(1)
        self._rest: list[bytes] = []
        self._size = 0
        self._ended = False

    def close(self) -> None:
        """Close the file; the standard input stays open."""
        if self._fd > 0:
            os.close(self._fd)

    async def read(self) -> Sequence[bytes] | None:
        """Return the next lines, possibly none; ``None`` at the end.

        If cancelled, the call returns at once, even if no input arrives.
        """
        if self._ended:
            await trio.lowlevel.checkpoint()
            return None
        piece = await trio.to_thread.run_sync(
            os.read, self._fd, _PIECE, limiter=self._limiter, abandon_on_cancel=True
        )
        if not piece:
            self._ended = True
            return [b"".join(self._rest)] if self._rest else None
        *whole, rest = piece.split(b"\n")
        if not whole:
            self._keep_rest(rest)
            return ()
        whole[0] = b"".join([*self._rest, whole[0]])
        self._rest = []
        self._size = 0
        self._keep_rest(rest)
        return whole

    def _keep_rest(self, rest: bytes) -> None:
        if rest:
            self._rest.append(rest)
            self._size += len(rest)
        if self._size > _LONGEST:
            raise BadLineError(f"a line is longer than {_LONGEST} bytes")
