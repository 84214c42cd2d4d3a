"""How much is in a pipe; not on Windows."""

from __future__ import annotations

import fcntl
import struct
import termios


def waiting_bytes(pipe: int) -> int:
    """Return the number of bytes in a pipe that were not read yet."""
    (count,) = struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)))
    return int(count)
