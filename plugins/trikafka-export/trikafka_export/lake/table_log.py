"""Parts of the logs of tables (:class:`trikafka.interfaces.TableLog`)."""

from __future__ import annotations

import logging
import os
import random
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

from trikafka import ExportError
from trikafka.errors.peer_text import peer_text
from trikafka.interfaces import ExportPlan

from ..cut_responses import DELAYS
from .waiting import responded

_log = logging.getLogger("trikafka.export")
#: The name of the exports' entries in commits and tables.
KEY = "trikafka"
#: The number of attempts to commit while other writers commit to the same table.
_ATTEMPTS = 30
T = TypeVar("T")


# Another writer may commit between the look at the table and the commit. The library refuses the
# commit then. The next attempt looks at the newer state of the table, which may have the plan.
#
# If a commit ends with another error, such as a lost response or status 500, it may have been
# carried out, or may still be. So the next attempt looks for the plan, too. If the table lacks it,
# to commit again is safe: each commit names its base, and the table accepts one commit on a base.
# So of two commits of a plan, the later one is refused.
def commit_with_retries(
    title: str,
    plan: ExportPlan,
    look: Callable[[], tuple[T, bool]],
    commit: Callable[[T], object],
    refused: type[Exception],
    may_pass: Callable[[BaseException], bool],
) -> T | None:
    """Commit a plan, unless the table has it.

    Args:
        title: The table's name in errors.
        plan: The plan.
        look: Return the newest state of the table, and whether it has the plan.
        commit: Commit the plan on top of exactly that state.
        refused: The error of a commit whose base is no longer the newest state.
        may_pass: Return whether another attempt may succeed after an error of the library.

    Returns:
        The state with an earlier commit of the plan, or ``None`` after a new commit.

    Raises:
        ExportError: All attempts failed, and the table does not have the plan.
    """
    delays = iter(DELAYS)
    refusals = 0
    is_sent = False
    while True:
        try:
            state, has_it = look()
            if has_it:
                return state
            responded()  # an abandoned thread commits nothing
            is_sent = True
            commit(state)
            return None
        except refused as error:
            refusals += 1
            if refusals == _ATTEMPTS:
                raise ExportError(
                    f"plan {plan.number} could not be committed to {title}: {peer_text(error)}"
                ) from error
            longest: float = min(0.01 * 2**refusals, 1.0)
            time.sleep(random.uniform(longest / 2, longest))
        except Exception as error:
            delay = next(delays, None) if may_pass(library_error(error)) else None
            if delay is None:
                if is_sent and (found := _looked(look)) is not None:
                    _log.info("%s; but plan %d is in the table", error, plan.number)
                    return found
                raise
            _log.info(
                "%s; the export looks for plan %d in the table in %g s, and commits it if it is "
                "not there",
                error,
                plan.number,
                delay,
            )
            time.sleep(delay)
            responded()


def library_error(error: BaseException) -> BaseException:
    """Return the library's error behind an :exc:`ExportError`, or the error itself.

    The cause of an error that hides a secret is only in its context.
    """
    return (error.__context__ if isinstance(error, ExportError) else None) or error


def _looked(look: Callable[[], tuple[T, bool]]) -> T | None:
    """Return the state of the table if it has the plan; ``None`` also if it cannot be read."""
    try:
        state, has_it = look()
    except Exception:  # the error of the commit says more
        return None
    return state if has_it else None


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
