"""Which brokers throttle this client by a quota (KIP-219), for how long and after which requests; and the log that says so, seldom.

The connections keep what a response asks for; nothing here waits. A quota in use throttles again and again, for as long as the
client wants more than it may have: so that is one WARNING when it begins and at most one each five minutes while it goes on, with
how often and how long since the one before. Throttles that nobody feels are counted and not told.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

import trio

from ..types import BrokerThrottle, Node
from .outages import REMINDER

_log = logging.getLogger("trikafka.brokers")
#: The longest that a response can have a connection wait (seconds).
MOST_THROTTLE = 60.0
#: Shorter ones (seconds) are not told.
LEAST_TOLD = 0.1
#: Between the end of one throttle and the response that asks for the next stands the request that had to wait: a broker is
#: said to throttle for so long (seconds) after the end.
_ROUND_TRIP = 1.0
#: A broker that is not in the metadata any more may come back; not more of those are remembered.
_MOST_REMEMBERED = 100
#: The quotas that each kind of request counts against, beside that on the broker's time (Kafka's names).
_QUOTAS = {"Produce": "producer_byte_rate", "Fetch": "consumer_byte_rate"} | dict.fromkeys(
    ("CreateTopics", "DeleteTopics", "CreatePartitions"), "controller_mutation_rate"
)


@dataclass(slots=True)
class _Throttle:
    """What a broker has asked for: ``until`` when nothing is sent to it (Trio's clock), ``total`` seconds with what is left."""

    node: Node
    until: float = 0.0
    total: float = 0.0
    last: float = 0.0
    responses: int = 0
    api: str = ""
    told_at: float | None = None
    told_total: float = 0.0
    told_responses: int = 0

    def snapshot(self, now: float) -> BrokerThrottle:
        left = max(0.0, self.until - now)
        return BrokerThrottle(self.total - left, self.last, left, self.responses, self.api)

    def __str__(self) -> str:
        number = self.node.node_id
        return f"broker {number} at {self.node}" if number >= 0 else f"the broker at {self.node}"

    @property
    def quota(self) -> str:
        """Which of its quotas that may be."""
        own = _QUOTAS.get(self.api)
        return "request_percentage" if own is None else f"{own} or request_percentage"


class Pause:
    """When nothing is written to one connection, for a response has asked for that; and how long that has been so."""

    __slots__ = ("_total", "until")

    def __init__(self) -> None:
        self.until = 0.0  # Trio's clock
        self._total = 0.0  # seconds, with what is left

    def ask(self, seconds: float) -> None:
        """From now on for so long, :data:`MOST_THROTTLE` at most; or for longer, if that was asked for before."""
        now = trio.current_time()
        until = max(self.until, now + min(seconds, MOST_THROTTLE))
        self._total += until - max(self.until, now)
        self.until = until

    @property
    def spent(self) -> float:
        """The seconds so far, of all of them."""
        return self._total - max(0.0, self.until - trio.current_time()) if self._total else 0.0


class Throttles:
    """The throttles of one client, by broker: of all connections to it, and time that several are throttled counts once."""

    def __init__(self) -> None:
        self._brokers: dict[int, _Throttle] = {}

    def throttled(self, node: Node, api: str, seconds: float) -> None:
        """A response to ``api`` asks to send nothing for so long; the connection does so, but no longer than a minute."""
        now, asked = trio.current_time(), seconds
        seconds = min(seconds, MOST_THROTTLE)
        known = self._brokers.setdefault(node.node_id, _Throttle(node))
        until = max(known.until, now + seconds)
        known.total += until - max(known.until, now)
        known.node, known.until, known.last, known.api = node, until, seconds, api
        known.responses += 1
        if seconds >= LEAST_TOLD and (known.told_at is None or now - known.told_at >= REMINDER):
            self._tell(known, now, asked)

    def _tell(self, known: _Throttle, now: float, asked: float) -> None:
        if asked > MOST_THROTTLE:
            text = "%s asks for %.0f s without requests, as no quota does: it has %.0f s"
            _log.warning(text, known.node, asked, MOST_THROTTLE)
        elif known.told_at is None:
            text = "%s throttles this client: nothing is sent to it for %.3g s after %s, by its quota %s"
            _log.warning(text, known, known.last, known.api, known.quota)
        else:
            times, spent, since = known.responses - known.told_responses, known.total - known.told_total, now - known.told_at
            text = "%s has throttled this client for %.1f s in the last %.0f s (%s), last for %.3g s after %s, by its quota %s"
            count = "one response asked for it" if times == 1 else f"{times} responses asked for it"
            _log.warning(text, known, spent, since, count, known.last, known.api, known.quota)
        known.told_at, known.told_total, known.told_responses = now, known.total, known.responses

    def keep_only(self, nodes: frozenset[Node]) -> None:
        """These are the brokers of the cluster. Of others not all are remembered."""
        listed = {node.node_id for node in nodes}
        gone = [number for number in self._brokers if number >= 0 and number not in listed]
        for number in gone[: max(0, len(gone) - _MOST_REMEMBERED)]:
            del self._brokers[number]

    def statistics(self) -> Mapping[int, BrokerThrottle]:
        """Of each broker that has throttled this client, by its id."""
        now = trio.current_time()
        return {number: known.snapshot(now) for number, known in self._brokers.items()}

    def now(self) -> dict[Node, str]:
        """The brokers that throttle this client now so that it is felt, and how."""
        now = trio.current_time()
        felt = [known for known in self._brokers.values() if known.last >= LEAST_TOLD and now < known.until + _ROUND_TRIP]
        return {known.node: self._how(known, now) for known in felt}

    def now_by(self, node_id: int) -> str | None:
        """How this broker throttles the client now; ``None`` if it does not."""
        return next((how for node, how in self.now().items() if node.node_id == node_id), None)

    @staticmethod
    def _how(known: _Throttle, now: float) -> str:
        done = known.snapshot(now)
        times = f"{done.left:.1f} s more, {done.total:.1f} s so far"
        return f"{known} throttles this client: {times}, after {known.api}, by its quota {known.quota}"
