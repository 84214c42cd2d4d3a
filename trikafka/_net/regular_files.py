"""The files that settings name: certificates, keys, stores, assertions."""

from __future__ import annotations

import errno
import os
import stat

from ..config.secrets import secret


def check_regular(path: str) -> None:
    """Raise unless ``path`` is a regular file.

    A pipe blocks its reader until a writer comes, and can be read once. These files are read in the
    event loop, and again when they change.

    Raises:
        OSError: There is no such file, or it is a directory, a pipe or a device.
        ValueError: The text is not a path.
    """
    mode = os.stat(path).st_mode
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "a pipe or a device, not a regular file")


def read_regular(path: str, size: int = -1) -> bytes:
    """Return the content of a regular file, or its first ``size`` bytes.

    Raises:
        OSError: As :func:`check_regular`, or the file cannot be read.
        ValueError: The text is not a path.
    """
    check_regular(path)
    with open(path, "rb") as file:
        return secret(file.read(size))
