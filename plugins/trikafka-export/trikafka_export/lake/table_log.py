"""Parts of the logs of tables (:class:`trikafka.interfaces.TableLog`)."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

from trikafka import ExportError
from trikafka.errors.peer_text import peer_text
from trikafka.interfaces import ExportPlan

#: The name of the exports' entries in commits and tables.
KEY = "trikafka"
#: The number of attempts to commit while other writers commit to the same table.
_ATTEMPTS = 30
T = TypeVar("T")


# Another writer may commit between the look at the table and the commit. The library refuses the
# commit then. The next attempt looks at the newer state of the table, which may have the plan.
def commit_with_retries(
    title: str, plan: ExportPlan, refused: type[Exception], attempt: Callable[[], T]
) -> T:
    """Call ``attempt`` until it does not raise ``refused``; return its result.

    Raises:
        ExportError: All attempts were refused.
    """
    for number in range(_ATTEMPTS - 1):
        try:
            return attempt()
        except refused:
            longest: float = min(0.02 * 2**number, 1.0)
            time.sleep(random.uniform(longest / 2, longest))
    try:
        return attempt()
    except refused as error:
        raise ExportError(
            f"plan {plan.number} could not be committed to {title}: {peer_text(error)}"
        ) from error


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
