"""The log of requests and the rules of a test.

This module owns the list of :class:`Seen` and the rules. Each connection calls :meth:`Script.plan`
once per request; nothing else consumes rules.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from ._signal import WakeSignal
from .faults import Change
from .messages import Api, Message, api_key, api_name

Default: TypeAlias = Callable[[], Awaitable[Message | None]]
Handler: TypeAlias = Callable[[Message, Default], Awaitable[Message | None]]
Predicate: TypeAlias = Callable[[Message], bool]


@dataclass(slots=True)
class Seen:
    """One request as it arrived.

    ``request`` is ``None`` for an ApiVersions request in a version that the node lacks and cannot
    decode. ``answered_at``, ``response`` and ``response_bytes`` are set once a response has been
    sent. Byte counts include the frame's length field.
    """

    time: float
    node_id: int
    connection: int
    api_key: int
    api_name: str
    version: int
    correlation_id: int
    client_id: str | None
    request: Message
    request_bytes: int = 0
    response_bytes: int = 0
    answered_at: float | None = None
    response: Message | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Fail:
    """Respond with an error code, for all items or for one topic or partition."""

    code: int
    topic: str | None = None
    partition: int | None = None
    after: bool = False

    def concerns(self, topic: str | None, partition: int | None) -> bool:
        """Return whether this item of the response carries the code."""
        return self.topic in (None, topic) and self.partition in (None, partition)


@dataclass(frozen=True, slots=True)
class Delay:
    """Wait before the request is executed, or before the response."""

    seconds: float
    after: bool = False


@dataclass(frozen=True, slots=True)
class Drop:
    """Close the connection instead of responding."""

    after: bool = False


@dataclass(frozen=True, slots=True)
class Garbage:
    """Send these bytes instead of a response."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Handle:
    """Let the test respond."""

    handler: Handler


@dataclass(frozen=True, slots=True)
class Silence:
    """Never respond, nor to later requests of the connection: responses are in order."""

    after: bool = False


@dataclass(frozen=True, slots=True)
class Damage:
    """Change the bytes of the response."""

    change: Change


@dataclass(frozen=True, slots=True)
class LeaveOut:
    """Omit a topic or one of its partitions from the response."""

    topic: str
    partition: int | None = None


Verdict: TypeAlias = Fail | Drop | Garbage | Handle | Silence | Damage | LeaveOut


@dataclass(slots=True, eq=False)
class Rule:
    """One rule of the script. ``used`` counts its applications; :meth:`remove` ends it."""

    api: int
    action: Verdict | Delay
    times: int | None = 1
    node: int | None = None
    where: Predicate | None = None
    used: int = 0
    # The requests with and without what the action concerns.
    _hits: int = field(default=0, init=False, repr=False)
    _misses: int = field(default=0, init=False, repr=False)

    def remove(self) -> None:
        """Stop applying this rule."""
        self.times = self.used

    def note(self, hit: bool) -> None:
        """Record whether what the action concerns was there, or exists."""
        if hit:
            self._hits += 1
        else:
            self._misses += 1

    @property
    def missed(self) -> bool:
        """True if the rule was applied, and what it concerns never existed."""
        return self._misses > 0 and not self._hits

    @property
    def spent(self) -> bool:
        """True once the rule has been applied ``times`` times."""
        return self.times is not None and self.used >= self.times

    def matches(self, seen: Seen) -> bool:
        """Return whether the rule applies to this request."""
        if self.spent or self.api != seen.api_key or self.node not in (None, seen.node_id):
            return False
        return self.where is None or (seen.request is not None and self.where(seen.request))


@dataclass(slots=True)
class Plan:
    """The script for one request: delays add up, the first verdict counts."""

    before: float = 0
    after: float = 0
    rule: Rule | None = None

    @property
    def verdict(self) -> Verdict | None:
        """The action of the first rule that is no delay."""
        if self.rule is None or isinstance(self.rule.action, Delay):
            return None
        return self.rule.action


class Script:
    """The log and the rules of one cluster."""

    def __init__(self) -> None:
        self.log: list[Seen] = []
        self.arrived = WakeSignal()
        self._rules: list[Rule] = []
        self._added: list[Rule] = []

    def add(self, rule: Rule) -> Rule:
        """Add a rule behind the existing ones."""
        self._rules.append(rule)
        self._added.append(rule)
        return rule

    def missed(self) -> list[str]:
        """Return the rules that were applied, and concern nothing that exists, as text."""
        return [
            f"{api_name(rule.api)} ({rule.action}, used {rule.used} times)"
            for rule in self._added
            if rule.missed
        ]

    def record(self, seen: Seen) -> None:
        """Log a request that has arrived."""
        self.log.append(seen)
        self.arrived.notify()

    def requests(self, api: Api | None, node: int | None, where: Predicate | None) -> list[Seen]:
        """Return the matching requests so far, in order."""
        key = None if api is None else api_key(api)
        found = [
            seen
            for seen in self.log
            if key in (None, seen.api_key) and node in (None, seen.node_id)
        ]
        return (
            found
            if where is None
            else [seen for seen in found if seen.request is not None and where(seen.request)]
        )

    def plan(self, seen: Seen) -> Plan:
        """Consume the rules that apply to a request; return their sum."""
        plan = Plan()
        for rule in self._rules:
            if not rule.matches(seen):
                continue
            if isinstance(rule.action, Delay):
                rule.used += 1
                if rule.action.after:
                    plan.after += rule.action.seconds
                else:
                    plan.before += rule.action.seconds
            elif plan.rule is None:
                rule.used += 1
                plan.rule = rule
        self._rules = [rule for rule in self._rules if not rule.spent]
        return plan
