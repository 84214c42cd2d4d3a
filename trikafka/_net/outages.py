"""Which brokers cannot be reached, since when and why; and the log that says so once.

The slots of connections tell what happened, the managers of metadata and of coordinators what that means. An outage is one WARNING
when it begins, with the cause, one more each five minutes while it goes on, and one INFO when it is over, with how long it took;
what fails meanwhile is counted, not printed. A connection that ends is no outage yet: brokers close connections for many reasons.
One that cannot be made again is, and a broker that takes requests but says nothing for some seconds.

A broker is dialled when there is something to ask of it. So where nobody did for a while it may have been back for long, and both
ends of what is known are told. One that had left the metadata is not dialled before it leads something again: its outage is over
when it is in the metadata again, which is the cluster's word for it.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import trio

from ..errors import RequestTimedOutError
from ..types import Node

_log = logging.getLogger("trikafka.brokers")
#: A broker that is not in the metadata any more may come back, so its outage is remembered; not of more of them than this.
_MOST_REMEMBERED = 100
_MOST_NAMED = 3  # of the groups that it coordinates
#: How long (seconds) a group may be without a coordinator before that is told: the first of a new cluster takes a moment.
COORDINATOR_PATIENCE = 2.0
#: How often (seconds) an outage that goes on is told again.
REMINDER = 300.0
#: Nobody looked for so long (seconds): when a broker came back is not known any more.
_UNSURE = 5.0
#: Brokers do not learn at the same moment of one that has gone. It is away from the metadata when it was for so long (seconds).
_SETTLED = 1.0


@dataclass(slots=True)
class Outage:
    """Something that cannot be reached: ``since`` (Trio's clock), how often it was tried, and how that failed last."""

    node: Node | None
    since: float
    error: Exception
    failures: int = 1
    told: bool = True
    told_at: float = -math.inf
    tried_at: float = -math.inf  # when it was seen last that it is away
    unlisted: float | None = None  # since when it is not in the metadata


class Outages:
    """The outages of one client. Nothing here waits."""

    def __init__(self) -> None:
        self._away: dict[int, Outage] = {}  # by node id; the brokers that cannot be reached, the oldest outage first
        self._known: frozenset[int] = frozenset()  # the brokers of the cluster
        self._ended: dict[int, float] = {}  # when a connection to a broker ended first, since the last one was made
        self._silence_told: dict[int, float] = {}  # when it was told last that a broker does not respond
        self._all_silent_told = -math.inf  # and that none was left
        self._coordinators: dict[str, int] = {}
        self._without: dict[str, Outage] = {}  # what has no coordinator
        self._on_lost: Callable[[], object] = lambda: None

    def unreachable(self) -> Mapping[Node, Outage]:
        """The brokers of the cluster that cannot be reached."""
        return {away.node: away for number, away in self._away.items() if number in self._known and away.node is not None}

    @property
    def all_away(self) -> bool:
        """Whether none of the brokers of the cluster can be reached."""
        return bool(self._known) and self._known <= self._away.keys()

    @property
    def cause(self) -> Exception | None:
        """Why a broker of the cluster cannot be reached, the one for longest if there are several; ``None`` if all can."""
        return next((away.error for away in self.unreachable().values()), None)

    def when_lost(self, ask: Callable[[], object]) -> None:
        """Call ``ask`` whenever a connection is lost: it should look what has become of the broker."""
        self._on_lost = ask

    # What happened.

    def cluster_is(self, nodes: Iterable[Node]) -> None:
        """These are the brokers of the cluster."""
        listed = {node.node_id: node for node in nodes}
        self._known = frozenset(listed)
        self._ended = {number: when for number, when in self._ended.items() if number in self._known}
        self._silence_told = {number: when for number, when in self._silence_told.items() if number in self._known}
        now = trio.current_time()
        for number, away in list(self._away.items()):
            if number not in listed:
                away.unlisted = now if away.unlisted is None else away.unlisted
            elif away.unlisted is not None:
                gone_for, away.unlisted = now - away.unlisted, None
                if gone_for >= _SETTLED:
                    self._listed_again(number, listed[number])
        gone = [number for number in self._away if number not in self._known]
        for number in gone[: max(0, len(gone) - _MOST_REMEMBERED)]:
            del self._away[number]

    def _listed_again(self, number: int, node: Node) -> None:
        away = self._away.pop(number)
        if away.told:
            took, tries = trio.current_time() - away.since, _tries(away)
            _log.info("broker %d is in the cluster again, at %s: it was away for at most %.1f s%s", number, node, took, tries)

    def connection_lost(self, node: Node) -> None:
        """A connection ended that neither this client nor its idleness has ended."""
        self._ended.setdefault(node.node_id, trio.current_time())
        if (away := self._away.get(node.node_id)) is not None:
            away.tried_at = trio.current_time()
        self._on_lost()

    def unreached(self, node: Node, error: Exception) -> None:
        """No connection could be made."""
        number = node.node_id
        if number < 0:
            return  # a bootstrap address: that the brokers cannot be reached says more
        away = self._away.get(number)
        if away is not None:
            away.error, away.failures, away.tried_at = error, away.failures + 1, trio.current_time()
            if away.told:
                self._remind(number, away)
                return
            away.told, away.told_at = True, trio.current_time()
        else:
            since = self._ended.get(number, trio.current_time())
            now = trio.current_time()
            unlisted = None if number in self._known else now
            self._away[number] = Outage(node, since, error, told_at=now, tried_at=now, unlisted=unlisted)
        _log.warning("broker %d%s is lost: %s%s", number, self._role(number), error, self._scope())

    def silent(self, node: Node, api: str, since: float) -> None:
        """A broker has said nothing on any connection since it was asked something then, which was long ago."""
        number, now = node.node_id, trio.current_time()
        if number < 0 or number in self._away:
            return
        error = RequestTimedOutError(f"{node} has left {api} unanswered for {now - since:.0f} s")
        away = self._away[number] = Outage(node, since, error, failures=0, told_at=now, tried_at=now)
        # One that is slow again and again is told as seldom; and so is that it was the last of several that was left.
        last = len(self._known) > 1 and self.all_away and now - self._all_silent_told >= REMINDER
        away.told = last or now - self._silence_told.get(number, -math.inf) >= REMINDER
        if away.told:
            self._silence_told[number] = now
            self._all_silent_told = now if last else self._all_silent_told
            _log.warning("broker %d%s does not respond: %s%s", number, self._role(number), error, self._scope())

    def reached(self, node: Node) -> None:
        """A connection was made. A bootstrap address may be that of one that was away."""
        if node.node_id < 0:
            gone = (away.node for away in self._away.values() if away.node is not None)
            node = next((one for one in gone if (one.host, one.port) == (node.host, node.port)), node)
        away = self._away.get(node.node_id)
        self._over(node, 0.0 if away is None else trio.current_time() - away.tried_at)

    def heard(self, node: Node) -> None:
        """The broker responds again."""
        self._over(node, 0.0)

    def _over(self, node: Node, unwatched: float) -> None:
        """It is back, which nobody could have seen for ``unwatched`` seconds."""
        self._ended.pop(node.node_id, None)
        away = self._away.pop(node.node_id, None)
        if away is not None and away.told:
            most = trio.current_time() - away.since
            took = f"{most:.1f} s" if unwatched <= _UNSURE else f"{max(0.0, most - unwatched):.1f} to {most:.1f} s"
            _log.info("broker %d is back at %s: it was away for %s%s", node.node_id, node, took, _tries(away))

    def coordinator_found(self, what: str, node: Node) -> None:
        """``node`` coordinates ``what``."""
        before, self._coordinators[what] = self._coordinators.get(what), node.node_id
        without = self._without.pop(what, None)
        if without is not None and without.told:
            took, tries = trio.current_time() - without.since, _times(without.failures)
            text = "%s has a coordinator again, broker %d at %s: it had none for %.1f s (%s)"
            _log.info(text, what, node.node_id, node, took, tries)
        elif before != node.node_id and before in self._away:
            _log.info("%s is coordinated by broker %d at %s now", what, node.node_id, node)

    def coordinator_missing(self, what: str, error: Exception) -> None:
        """The coordinator of ``what`` could not be found."""
        now = trio.current_time()
        without = self._without.get(what)
        if without is None:
            without = self._without[what] = Outage(None, now, error, failures=0, told=False)
        without.error, without.failures = error, without.failures + 1
        patience = REMINDER if without.told else COORDINATOR_PATIENCE
        if now - max(without.since, without.told_at) >= patience and not self.all_away:
            without.told, without.told_at = True, now
            _log.warning("%s has had no coordinator for %.1f s: %s", what, now - without.since, error)

    def _remind(self, number: int, away: Outage) -> None:
        """Tell an outage again that goes on; where all brokers are away, of one of them."""
        now = trio.current_time()
        if now - away.told_at < REMINDER or (self.all_away and number != next(n for n in self._away if n in self._known)):
            return
        away.told_at = now
        text = "broker %d%s has been away for %.0f s (%s): %s%s"
        _log.warning(text, number, self._role(number), now - away.since, _times(away.failures), away.error, self._scope())

    def _role(self, number: int) -> str:
        coordinated = [what for what, coordinator in self._coordinators.items() if coordinator == number][:_MOST_NAMED]
        return f", the coordinator of {' and '.join(coordinated)}," if coordinated else ""

    def _scope(self) -> str:
        if not self.all_away:
            return ""
        count = len(self._known)
        return "; it is the only broker" if count == 1 else f"; now none of the {count} brokers of the cluster can be reached"


def _tries(away: Outage) -> str:
    return f" ({_times(away.failures)})" if away.failures else ""


def _times(failures: int) -> str:
    return "one attempt failed" if failures == 1 else f"{failures} attempts failed"
