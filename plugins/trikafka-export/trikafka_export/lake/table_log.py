"""Parts of the logs of tables (:class:`trikafka.interfaces.TableLog`)."""

from __future__ import annotations

import os
import random
from collections.abc import Iterable
from pathlib import Path

#: The name of the exports' entries in commits and tables.
KEY = "trikafka"
#: The number of attempts to commit while other writers commit to the same table.
ATTEMPTS = 30


def pause(attempt: int) -> float:
    """Return the seconds to wait before the next attempt to commit."""
    longest: float = min(0.02 * 2**attempt, 1.0)
    return random.uniform(longest / 2, longest)


def sync(paths: Iterable[Path]) -> None:
    """Write files and their folders to the disk (fsync).

    The libraries of table formats leave that to the operating system.
    """
    paths = list(paths)
    for path in [*paths, *{path.parent for path in paths}]:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
