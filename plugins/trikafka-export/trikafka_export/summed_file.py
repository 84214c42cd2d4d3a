"""A file whose checksum is computed while it is written, and the checksum of a file that is read.

The checksum is CRC-32C, as in object stores and in Kafka's record batches. The processor computes
some gigabytes of it a second, ten times as many as of SHA-256. It detects each change of up to 32
consecutive bits, and all but one in four billion other changes. It is no protection against
deliberate changes.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trikafka.toolkit import crc32c

_AT_ONCE = 4 << 20


class SummedFile(io.RawIOBase):
    """A new local file, written from its beginning to its end."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb", buffering=0)
        self._sum = 0
        self.size = 0

    def writable(self) -> bool:
        """Return true."""
        return True

    def write(self, data: Any) -> int:
        """Write all of the data, in several calls if the system takes only a part."""
        view = memoryview(data).cast("B")
        written = 0
        while written < len(view):
            written += self._file.write(view[written:])
        self._sum = crc32c(view, self._sum)
        self.size += written
        return written

    def tell(self) -> int:
        """Return the number of bytes that were written."""
        return self.size

    def fileno(self) -> int:
        """Return the descriptor."""
        return self._file.fileno()

    def close(self) -> None:
        """Close the file."""
        self._file.close()
        super().close()

    @property
    def crc32c(self) -> str:
        """The checksum of the written bytes, in the form of a manifest."""
        return _text(self._sum)


def checksum_of(file: Any, check: Callable[[], object]) -> str:
    """Return the checksum of a path or an open file, in the form of a manifest.

    Calls ``check`` after each 4 MiB. Blocks.
    """
    if isinstance(file, Path):
        with file.open("rb", buffering=0) as opened:
            return checksum_of(opened, check)
    found = 0
    while data := file.read(_AT_ONCE):
        found = crc32c(data, found)
        check()
    return _text(found)


def checksum_text(data: bytes) -> str:
    """Return the checksum of these bytes, in the form of a manifest."""
    return _text(crc32c(data))


def _text(number: int) -> str:
    return f"{number:08x}"
