"""The watchdog's core: what a client owes its user, and since when that makes no progress.

It yields one log line for each stall, and a part of ``health()``. At its end are the sources that
all clients have.
"""
# A client owes a partition's records, its place in a group, a commit, a batch's delivery, the end
# of a transaction, the result of a call. Each of these has one source, which knows when it last
# made progress, and why it makes none now. A source reports all that is owed, healthy things
# included: a thing that is missing from a report is forgotten.
#
# The hard part is to distinguish a stall from a rest. A partition at the end of its log makes no
# progress, and neither does one whose leader is silent. So a source has to prove a rest
# (``well_at``): a fetch that succeeded at the end of the log is such a proof, the absence of an
# error is not. A source that cannot prove anything says NEVER, and the thing is late once the limit
# has passed without a step forward.
#
# The watch looks at intervals and compares, rather than having each step forward write a time: a
# step must cost nothing where millions of records pass.

from __future__ import annotations

import logging
import math
import re
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import trio

from ..._managers.cluster.metadata import Metadata
from ..._net.deadlines import calls_under_way
from ..._net.outages import Outages
from ...config import ClientConfig
from ...interfaces import MetadataManager

#: There has been no proof of rest.
NEVER = -math.inf
#: The watchdog's longest and shortest interval, as shares of the time after which it warns. A new
#: thing is seen after the longest interval at most. The look after that comes no later than the
#: thing is late, or the shortest interval after the last look. So a stall is reported within 1.24
#: times that time.
_INTERVAL = 0.22
_SHORTEST_INTERVAL = 0.02
#: The log names this many of the things that stall for the same cause; health() has all of them.
_MOST_NAMED = 10
#: The number of things that are looked at before other tasks run, about 10 ms.
_PORTION = 512
#: Numbers in a reason that differ between things which stall for one cause.
_AMOUNTS = re.compile(r"\b\d+(?:\.\d+)? (?:s|records?)\b")


class Owed(NamedTuple):
    """A thing that a client owes.

    ``progress`` changes with each step forward. ``well_at`` is the last time with proof that
    nothing was owed (Trio's clock): ``now`` for what rests or works, :data:`NEVER` where only steps
    forward count. ``patience`` is the time (seconds) beyond the limit that a healthy broker may
    take. A source is a generator that may be suspended between two things, while its subject
    changes.
    """

    key: Hashable
    name: object  # as the log names it
    progress: object
    well_at: float
    reason: Callable[[], str]
    patience: float = 0.0


class Stalled(NamedTuple):
    """A thing without progress for too long: since when (Trio's clock), and why."""

    key: Hashable
    name: object  # as the log names it
    since: float
    reason: str


@dataclass(slots=True)
class _Seen:
    """A thing at the watchdog's last look."""

    progress: object
    since: float
    logged: bool = False


class StallWatch:
    """The watch over what one client owes.

    Each of ``sources`` reports at a given time; ``limit`` is how long (seconds) a thing may make no
    progress. ``client`` is the client's name in the log. A program's producer and consumer name
    the same partitions.
    """

    def __init__(
        self,
        log: logging.Logger,
        limit: float,
        sources: Iterable[Callable[[float], Iterable[Owed]]],
        client: str,
    ) -> None:
        self._log = log
        self._client = client
        self._limit = limit
        self._sources = tuple(sources)
        self._seen: dict[Hashable, _Seen] = {}
        self._due = math.inf  # when something will be late, if it makes no progress until then
        self._scope = trio.CancelScope()

    async def run(self) -> None:
        """Look at intervals, until :meth:`stop`."""
        with self._scope:
            while True:
                now = trio.current_time()
                least = now + self._limit * _SHORTEST_INTERVAL
                most = now + self._limit * _INTERVAL
                await trio.sleep_until(max(least, min(most, self._due)))
                await self._look(trio.current_time())

    def stop(self) -> None:
        """Stop looking: the client closes, and the close reports its own delays."""
        self._scope.cancel()

    async def _look(self, now: float) -> None:
        """Record the progress since the last look; log new stalls and the end of old ones."""
        # A consumer of ten thousand partitions takes 0.2 s of CPU for a look, so other tasks run
        # between two portions. Until all portions are done, health() uses the previous look. A
        # reason is computed in the step that found the stall.
        found: dict[Hashable, _Seen] = {}
        late: dict[str, list[tuple[Owed, float, str]]] = defaultdict(list)
        resumed: list[tuple[Owed, float]] = []
        due = math.inf
        for source in self._sources:
            for number, owed in enumerate(source(now), 1):
                if number % _PORTION == 0:
                    await trio.lowlevel.checkpoint()
                seen = self._seen.get(owed.key)
                since = _since(owed, seen, now)
                if seen is not None and seen.logged:
                    if since <= seen.since:
                        found[owed.key] = seen
                        continue
                    resumed.append((owed, seen.since))
                limit = self._limit + owed.patience
                is_late = now - since >= limit
                if is_late:
                    reason = owed.reason()
                    late[_cause(owed, reason)].append((owed, since, reason))
                else:
                    due = min(due, since + limit)
                found[owed.key] = _Seen(owed.progress, since, is_late)
        self._seen = found
        self._due = due
        self._log_resumed(resumed, now)
        self._log_late(late, now)

    def _log_late(self, by_cause: Mapping[str, list[tuple[Owed, float, str]]], now: float) -> None:
        """Log each stall; of many with one cause, only some by name.

        The partitions of an unreachable broker, for example.
        """
        for items in by_cause.values():
            for owed, since, reason in items[:_MOST_NAMED]:
                self._log.warning(
                    "%s: no progress for %.0f s (%s): %s",
                    owed.name,
                    now - since,
                    self._client,
                    reason,
                )
            if len(items) > _MOST_NAMED:
                self._log.warning(
                    "%d more make no progress: %s", len(items) - _MOST_NAMED, items[-1][2]
                )

    def _log_resumed(self, resumed: list[tuple[Owed, float]], now: float) -> None:
        for owed, since in resumed[:_MOST_NAMED]:
            self._log.info(
                "%s: goes on, after %.0f s without progress (%s)",
                owed.name,
                now - since,
                self._client,
            )
        if len(resumed) > _MOST_NAMED:
            self._log.info("%d more go on", len(resumed) - _MOST_NAMED)

    def stalled(self, now: float) -> list[Stalled]:
        """Return the things that have made no progress for too long."""
        found = []
        for source in self._sources:
            for owed in source(now):
                seen = self._seen.get(owed.key)
                since = _since(owed, seen, now)
                # A stall that is in the log is one until something goes on.
                is_logged = seen is not None and seen.logged and since <= seen.since
                if is_logged or now - since >= self._limit + owed.patience:
                    found.append(Stalled(owed.key, owed.name, since, owed.reason()))
        return found


# A broker's error names the partition and the number of its records. A log with a line for each of
# a thousand partitions would hide the rest.
def _cause(owed: Owed, reason: str) -> str:
    """Return the reason without what is of this thing alone."""
    return _AMOUNTS.sub("", reason.replace(str(owed.name), ""))


def _since(owed: Owed, seen: _Seen | None, now: float) -> float:
    """Return the time since when no progress was seen."""
    if seen is None and owed.well_at > NEVER:
        return owed.well_at
    if seen is None or seen.progress != owed.progress:
        return now
    return max(seen.since, owed.well_at)


# --- what every client owes ---------------------------------------------------------------------


def metadata_owed(metadata: MetadataManager, outages: Outages, now: float) -> Iterator[Owed]:
    """Report the refresh of the metadata.

    Nothing is reported late while no broker can be reached: the outage is the cause then.
    """
    if not isinstance(metadata, Metadata):
        return
    since = (
        now if metadata.unanswered_since is None or outages.all_away else metadata.unanswered_since
    )
    why = lambda: str(metadata.last_error or "no broker has responded yet")  # noqa: E731
    yield Owed("metadata", "the refresh of the cluster's metadata", None, since, why)


def calls_owed(config: ClientConfig, now: float, *, but: str | None = None) -> Iterator[Owed]:
    """Report the API calls that wait for a broker, except those named ``but``."""
    for call in calls_under_way(config):
        if call.name == but:
            continue
        well_at = now if call.waits else call.began
        yield Owed(call, f"{call.name}()", None, well_at, call.obstacle)
