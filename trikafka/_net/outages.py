"""The brokers that cannot be reached, since when and why; and the log lines about them.

The slots of connections report events, the managers of metadata and of coordinators the state of
the cluster. An outage is one WARNING when it begins, with the cause, one more each five minutes
while it goes on, and one INFO when it is over, with its duration. Failures meanwhile are counted,
not logged. A connection that ends is no outage yet, because brokers close connections for many
reasons. A connection that cannot be made again is one, and so is a broker that accepts requests and
stays silent for some seconds.

A broker is dialled when there is a request for it. Without requests for a while, the broker may
have been back for long; then the log names the shortest and the longest possible duration. A broker
that has left the metadata is not dialled before it leads something again. Its outage is over when
the metadata list it again, which is the cluster's statement about it.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import trio

from ..errors import RequestTimedOutError
from ..types import Node
from .reminders import Reminder

_log = logging.getLogger("trikafka.brokers")
#: A broker that has left the metadata may return, so its outage is remembered. This bounds how many
#: of them are.
_MOST_REMEMBERED = 100
_MOST_NAMED = 3  # of the groups that a broker coordinates
#: The number of groups and transactional ids that are remembered with their coordinators, and of
#: those without one. An admin client may ask for others for weeks.
_MOST_COORDINATED = 1_000
#: How long (seconds) a group may be without a coordinator before that is logged: the first one of a
#: new cluster takes a moment.
COORDINATOR_PATIENCE = 2.0
#: A group without a coordinator that was not looked up for this long (seconds) may be forgotten: it
#: may have had one since. Its next failure begins an outage of its own.
_IDLE = 60.0
#: After this long (seconds) without an attempt, the moment of a broker's return is not known.
_UNSURE = 5.0
#: A broker is away from the metadata only after this long (seconds), because brokers do not learn
#: at the same moment that one of them has gone.
_SETTLED = 1.0


@dataclass(slots=True)
class Outage:
    """Something that cannot be reached.

    ``since`` is Trio's clock; ``failures`` counts the attempts; ``error`` is the last failure.
    """

    node: Node | None
    since: float
    error: Exception
    failures: int = 1
    reminder: Reminder = field(default_factory=Reminder)  # of the log lines about the outage
    tried_at: float = -math.inf  # when the last attempt failed
    unlisted: float | None = None  # since when it is missing in the metadata

    @property
    def is_logged(self) -> bool:
        """True once the outage was logged."""
        return self.reminder.logged_at is not None


class Outages:
    """The outages of one client. Nothing here waits."""

    def __init__(self) -> None:
        # The brokers that cannot be reached, by node id; the oldest outage first.
        self._away: dict[int, Outage] = {}
        self._known: frozenset[int] = frozenset()  # the brokers of the cluster
        # By broker: when a connection ended for the first time since the last one was made.
        self._ended: dict[int, float] = {}
        # The log lines about the silence of each broker, and about the last one's of all.
        self._silences: dict[int, Reminder] = {}
        self._all_silent = Reminder()
        self._coordinators: dict[str, int] = {}
        # Groups and ids without a coordinator; the one whose last look-up is the oldest first.
        self._without: dict[str, Outage] = {}
        self._on_lost: Callable[[], object] = lambda: None
        self._on_silent: list[Callable[[Node], object]] = []

    def unreachable(self) -> Mapping[Node, Outage]:
        """Return the brokers of the cluster that cannot be reached."""
        return {
            away.node: away
            for number, away in self._away.items()
            if number in self._known and away.node is not None
        }

    def described(self) -> dict[Node, str]:
        """Return since when each broker of :meth:`unreachable` is away, and why.

        The text says also when the broker was last tried, if that is long ago. A broker that gets
        no requests may have been back since.
        """
        now = trio.current_time()
        return {
            node: f"since {now - away.since:.0f} s{_last_tried(away, now)}: {away.error}"
            for node, away in self.unreachable().items()
        }

    @property
    def all_away(self) -> bool:
        """True if no broker of the cluster can be reached."""
        return bool(self._known) and self._known <= self._away.keys()

    @property
    def cause(self) -> Exception | None:
        """The reason why a broker of the cluster cannot be reached; ``None`` if all can.

        Of several outages the oldest counts.
        """
        return next((away.error for away in self.unreachable().values()), None)

    def when_lost(self, ask: Callable[[], object]) -> None:
        """Call ``ask`` after each lost connection: is the broker still in the cluster?"""
        self._on_lost = ask

    def when_silent(self, act: Callable[[Node], object]) -> None:
        """Call ``act`` with each broker that stops responding: others may do its work now."""
        self._on_silent.append(act)

    def is_away(self, node: Node) -> bool:
        """Return whether a broker cannot be reached, or does not respond."""
        return node.node_id in self._away

    # Events.

    def overdue(self) -> None:
        """Request the metadata, because a broker has left a request unanswered for long.

        With a single broker nothing is requested: another request would make a slow broker slower.
        """
        if len(self._known) > 1:
            self._on_lost()

    def cluster_is(self, nodes: Iterable[Node]) -> None:
        """Set the brokers of the cluster; forget what is known of others."""
        listed = {node.node_id: node for node in nodes}
        self._known = frozenset(listed)
        self._ended = {
            number: when for number, when in self._ended.items() if number in self._known
        }
        self._silences = {
            number: each for number, each in self._silences.items() if number in self._known
        }
        now = trio.current_time()
        for number, away in list(self._away.items()):
            if number not in listed:
                away.unlisted = now if away.unlisted is None else away.unlisted
            elif away.unlisted is not None:
                gone_for = now - away.unlisted
                away.unlisted = None
                if gone_for >= _SETTLED:
                    self._listed_again(number, listed[number])
        gone = [number for number in self._away if number not in self._known]
        for number in gone[: max(0, len(gone) - _MOST_REMEMBERED)]:
            del self._away[number]

    def _listed_again(self, number: int, node: Node) -> None:
        away = self._away.pop(number)
        if away.is_logged:
            took = trio.current_time() - away.since
            tries = _tries(away)
            _log.info(
                "broker %d is in the cluster again, at %s: it was away for at most %.1f s%s",
                number,
                node,
                took,
                tries,
            )

    def connection_lost(self, node: Node) -> None:
        """Record the end of a connection that neither this client nor its idle limit has ended."""
        self._ended.setdefault(node.node_id, trio.current_time())
        if (away := self._away.get(node.node_id)) is not None:
            away.tried_at = trio.current_time()
        self._on_lost()

    def unreached(self, node: Node, error: Exception) -> None:
        """Record that no connection could be made."""
        number = node.node_id
        if number < 0:
            return  # a bootstrap address; the outages of the brokers are more informative
        away = self._away.get(number)
        if away is not None:
            away.error = error
            away.failures = away.failures + 1
            away.tried_at = trio.current_time()
            if away.is_logged:
                self._remind(number, away)
                return
        else:
            since = self._ended.get(number, trio.current_time())
            now = trio.current_time()
            unlisted = None if number in self._known else now
            away = self._away[number] = Outage(node, since, error, tried_at=now, unlisted=unlisted)
        away.reminder.logged(trio.current_time())
        _log.warning("broker %d%s is lost: %s%s", number, self._role(number), error, self._scope())

    def silent(self, node: Node, api: str, since: float) -> None:
        """Record that a broker has been silent on all connections since ``since``."""
        # The moving of partitions away from a frozen leader. A broker that is frozen (SIGSTOP, a
        # hung disk, a firewall that drops packets) keeps its connections open, so nothing fails,
        # and requests in flight would wait for `request_timeout_ms`. The cluster notices sooner and
        # elects other leaders. So five seconds of silence (`in_flight.SILENCE`) count as an outage.
        # The outage makes the metadata manager refresh each second while the broker leads something
        # wanted, and the coordinator manager look for successors. Only when another broker has
        # taken over are the connections closed (`Brokers.leave`), so that what is in flight is sent
        # again elsewhere.
        #
        # Silence alone closes nothing: a broker that is merely slow must keep its requests, or each
        # would be made twice. With one broker nothing is looked for, because there is no broker to
        # ask.
        number = node.node_id
        now = trio.current_time()
        if number < 0 or number in self._away:
            return
        error = RequestTimedOutError(f"{node} has left {api} unanswered for {now - since:.0f} s")
        away = self._away[number] = Outage(node, since, error, failures=0, tried_at=now)
        # A broker that is slow again and again is logged as seldom as a reminder. So is the fact
        # that no broker of several is left.
        last = len(self._known) > 1 and self.all_away and self._all_silent.is_due(now)
        silence = self._silences.setdefault(number, Reminder())
        if last or silence.is_due(now):
            away.reminder.logged(now)
            silence.logged(now)
            if last:
                self._all_silent.logged(now)
            _log.warning(
                "broker %d%s does not respond: %s%s",
                number,
                self._role(number),
                error,
                self._scope(),
            )
        if len(self._known) > 1:  # with one broker there is no other to ask
            for act in self._on_silent:
                act(node)

    def reached(self, node: Node) -> None:
        """Record a new connection. A bootstrap address may belong to a broker that was away."""
        if node.node_id < 0:
            gone = (away.node for away in self._away.values() if away.node is not None)
            node = next(
                (one for one in gone if (one.host, one.port) == (node.host, node.port)), node
            )
        away = self._away.get(node.node_id)
        self._over(node, 0.0 if away is None else trio.current_time() - away.tried_at)

    def heard(self, node: Node) -> None:
        """Record that the broker responds again."""
        self._over(node, 0.0)

    def _over(self, node: Node, unwatched: float) -> None:
        """Log that the broker is reachable again.

        ``unwatched`` are the seconds during which no request could have noticed.
        """
        self._ended.pop(node.node_id, None)
        away = self._away.pop(node.node_id, None)
        if away is not None and away.is_logged:
            _log.info(
                "broker %d is back at %s: it was away for %s%s",
                node.node_id,
                node,
                _duration(away, unwatched),
                _tries(away),
            )

    def coordinator_found(self, what: str, node: Node) -> None:
        """Record that ``node`` coordinates ``what``."""
        before = self._coordinators.get(what)
        self._coordinators[what] = node.node_id
        _keep_newest(self._coordinators)
        without = self._without.pop(what, None)
        if without is not None and without.is_logged:
            took = _duration(without, trio.current_time() - without.tried_at)
            tries = _times(without.failures)
            text = "%s has a coordinator again, broker %d at %s: it had none for %s (%s)"
            _log.info(text, what, node.node_id, node, took, tries)
        elif before != node.node_id and before in self._away:
            _log.info("%s is coordinated by broker %d at %s now", what, node.node_id, node)

    def coordinator_missing(self, what: str, error: Exception) -> None:
        """Record that the coordinator of ``what`` could not be found."""
        now = trio.current_time()
        without = self._without.pop(what, None)
        if without is None:
            without = Outage(None, now, error, failures=0)
            # Those that are looked up again and again keep their places. Otherwise each of many
            # would push another out before its patience is over, and none would be logged.
            if len(self._without) >= _MOST_COORDINATED:
                oldest = next(iter(self._without))
                if now - self._without[oldest].tried_at < _IDLE:
                    return
                del self._without[oldest]
        elif now - without.tried_at >= _IDLE:
            # The reminder is kept: a group that is looked up seldom is logged no more often.
            without = Outage(None, now, error, failures=0, reminder=without.reminder)
        self._without[what] = without
        without.tried_at = now
        without.error = error
        without.failures = without.failures + 1
        late = now - without.since >= COORDINATOR_PATIENCE
        if late and without.reminder.is_due(now) and not self.all_away:
            without.reminder.logged(now)
            _log.warning(
                "%s has had no coordinator for %.1f s: %s", what, now - without.since, error
            )

    def _remind(self, number: int, away: Outage) -> None:
        """Log an outage that goes on again; if all brokers are away, only one of them."""
        now = trio.current_time()
        if not away.reminder.is_due(now) or (
            self.all_away and number != next(n for n in self._away if n in self._known)
        ):
            return
        away.reminder.logged(now)
        text = "broker %d%s has been away for %.0f s (%s): %s%s"
        _log.warning(
            text,
            number,
            self._role(number),
            now - away.since,
            _times(away.failures),
            away.error,
            self._scope(),
        )

    def _role(self, number: int) -> str:
        coordinated = [
            what for what, coordinator in self._coordinators.items() if coordinator == number
        ][:_MOST_NAMED]
        return f", the coordinator of {' and '.join(coordinated)}," if coordinated else ""

    def _scope(self) -> str:
        if not self.all_away:
            return ""
        count = len(self._known)
        return (
            "; it is the only broker"
            if count == 1
            else f"; now none of the {count} brokers of the cluster can be reached"
        )


def _keep_newest(coordinated: dict[str, Any]) -> None:
    """Drop the oldest of too many groups and transactional ids."""
    if len(coordinated) > _MOST_COORDINATED:
        del coordinated[next(iter(coordinated))]


def _last_tried(away: Outage, now: float) -> str:
    # A silent broker (no failures) is noticed as soon as it responds.
    ago = now - away.tried_at
    return f", last tried {ago:.0f} s ago" if away.failures and ago > _UNSURE else ""


def _duration(away: Outage, unwatched: float) -> str:
    """Return the length of an outage whose end may have been ``unwatched`` seconds ago."""
    most = trio.current_time() - away.since
    if unwatched <= _UNSURE:
        return f"{most:.1f} s"
    return f"{max(0.0, most - unwatched):.1f} to {most:.1f} s"


def _tries(away: Outage) -> str:
    return f" ({_times(away.failures)})" if away.failures else ""


def _times(failures: int) -> str:
    return "one attempt failed" if failures == 1 else f"{failures} attempts failed"
