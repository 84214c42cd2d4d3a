"""The brokers that throttle this client by a quota (KIP-219), and the log lines about them.

The connections wait for the times that responses ask for; nothing here waits. A quota in use
throttles again and again, for as long as the client wants more than the quota allows. So there is
one WARNING when it begins and at most one each five minutes while it goes on, with the number of
throttles and their length since the last line. Throttles too short to be felt are counted and not
logged.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field

import trio

from ..types import BrokerThrottle, Node
from .reminders import REMINDER, Reminder

_log = logging.getLogger("trikafka.brokers")
#: Shorter throttles (seconds) are not logged.
LEAST_LOGGED = 0.1
#: A broker counts as throttling for this long (seconds) after the end of a throttle. Only the
#: response to a request that had to wait for that end can bring the next throttle.
_ROUND_TRIP = 1.0
#: A broker that has left the metadata may return. This bounds how many of them are remembered.
_MOST_REMEMBERED = 100
#: The quotas that each kind of request counts against, apart from the one on the broker's time
#: (Kafka's names).
_QUOTAS = {"Produce": "producer_byte_rate", "Fetch": "consumer_byte_rate"} | dict.fromkeys(
    ("CreateTopics", "DeleteTopics", "CreatePartitions"), "controller_mutation_rate"
)


@dataclass(slots=True)
class _Throttle:
    """The throttles of one broker.

    ``until`` is the time before which nothing is sent to the broker (Trio's clock), ``total`` the
    seconds including those still to come. The ``logged_`` fields are the values of the last log
    line.
    """

    node: Node
    until: float = 0.0
    total: float = 0.0
    last: float = 0.0
    responses: int = 0
    api: str = ""
    reminder: Reminder = field(default_factory=Reminder)
    logged_until: float = 0.0
    logged_total: float = 0.0
    logged_responses: int = 0

    def snapshot(self, now: float) -> BrokerThrottle:
        left = max(0.0, self.until - now)
        return BrokerThrottle(self.total - left, self.last, left, self.responses, self.api)

    def logged(self, now: float) -> None:
        """Record that everything so far is in the log."""
        self.reminder.logged(now)
        self.logged_until = self.until
        self.logged_total = self.total
        self.logged_responses = self.responses

    def __str__(self) -> str:
        number = self.node.node_id
        return f"broker {number} at {self.node}" if number >= 0 else f"the broker at {self.node}"

    @property
    def quota(self) -> str:
        """The names of the quotas that may be the cause."""
        own = _QUOTAS.get(self.api)
        return "request_percentage" if own is None else f"{own} or request_percentage"


class Throttles:
    """The throttles of one client, by broker.

    All connections to a broker count together; a time in which several are throttled counts once.
    """

    def __init__(self) -> None:
        self._brokers: dict[int, _Throttle] = {}

    def throttled(self, node: Node, api: str, seconds: float) -> None:
        """Record that a response to ``api`` asks for a pause, which the connection keeps.

        A throttle that outlasts the next reminder is logged at once: before it ends there may be no
        response, and so no reminder.
        """
        now = trio.current_time()
        known = self._brokers.setdefault(node.node_id, _Throttle(node))
        until = max(known.until, now + seconds)
        known.total += until - max(known.until, now)
        known.node = node
        known.until = until
        known.last = seconds
        known.api = api
        known.responses += 1
        if seconds < LEAST_LOGGED:
            return
        outlasts = seconds >= REMINDER and until - known.logged_until >= REMINDER
        if (logged_at := known.reminder.logged_at) is None or outlasts:
            text = (
                "%s throttles this client: nothing is sent to it for %s s after %s, by its quota %s"
            )
            _log.warning(text, known, _seconds(known.last), known.api, known.quota)
            known.logged(now)
        elif known.reminder.is_due(now):
            self._remind(known, logged_at, now)

    def lifted(self, node: Node, until: float) -> None:
        """Record that a connection to the broker has ended.

        The remaining ones are throttled ``until`` then (Trio's clock). The broker counts a throttle
        by connection, so the next connection may write at once.
        """
        known = self._brokers.get(node.node_id)
        until = max(until, trio.current_time())
        if known is not None and known.until > until:
            known.total -= known.until - until
            known.until = until
            known.logged_until = min(known.logged_until, until)

    def _remind(self, known: _Throttle, logged_at: float, now: float) -> None:
        times = known.responses - known.logged_responses
        spent = known.total - known.logged_total
        since = now - logged_at
        text = (
            "%s has throttled this client for %.1f s in the last %.0f s (%s), last for %s s after "
            "%s, by its quota %s"
        )
        count = "one response asked for it" if times == 1 else f"{times} responses asked for it"
        _log.warning(text, known, spent, since, count, _seconds(known.last), known.api, known.quota)
        known.logged(now)

    def keep_only(self, nodes: frozenset[Node]) -> None:
        """Forget brokers outside of the cluster, except the last ``_MOST_REMEMBERED``."""
        listed = {node.node_id for node in nodes}
        gone = [number for number in self._brokers if number >= 0 and number not in listed]
        for number in gone[: max(0, len(gone) - _MOST_REMEMBERED)]:
            del self._brokers[number]

    def statistics(self) -> Mapping[int, BrokerThrottle]:
        """Return the figures of each broker that has throttled this client, by its id."""
        now = trio.current_time()
        return {number: known.snapshot(now) for number, known in self._brokers.items()}

    def now(self) -> dict[Node, str]:
        """Return the brokers whose throttles are felt now, each with a description."""
        now = trio.current_time()
        felt = [
            known
            for known in self._brokers.values()
            if known.last >= LEAST_LOGGED and now < known.until + _ROUND_TRIP
        ]
        return {known.node: self._how(known, now) for known in felt}

    def now_by(self, node_id: int) -> str | None:
        """Return how this broker throttles the client now, in words; ``None`` if it does not."""
        return next((how for node, how in self.now().items() if node.node_id == node_id), None)

    @staticmethod
    def _how(known: _Throttle, now: float) -> str:
        done = known.snapshot(now)
        times = f"{done.left:.1f} s more, {done.total:.1f} s so far"
        return (
            f"{known} throttles this client: {times}, after {known.api}, by its quota {known.quota}"
        )


def _seconds(seconds: float) -> str:
    """Return a time as text: three digits, and all of those before the point."""
    return f"{seconds:.3g}" if seconds < 1_000 else f"{seconds:.0f}"
