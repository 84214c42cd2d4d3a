"""The broker's subscription to this client's metrics, as a state machine (KIP-714).

No I/O and no clock. Only the telemetry manager reports events to the :class:`PushSchedule`.

===================  ===================================================  =======================
state                the next request                                     comes after
===================  ===================================================  =======================
SUBSCRIPTION_NEEDED  GetTelemetrySubscriptions, at :attr:`due`            PUSH_NEEDED
PUSH_NEEDED          PushTelemetry, at :attr:`due`                        SUBSCRIPTION_NEEDED
OFF                  none, for the rest of the client's life              all others
===================  ===================================================  =======================

A subscription without metrics leaves the client in SUBSCRIPTION_NEEDED: the client asks again after
the interval.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from ...error_codes import ErrorCode

#: The least seconds between two pushes, even if a broker asks for less. Kafka allows no less.
LEAST_INTERVAL = 0.1
#: The seconds between two requests if the broker gives no interval.
DEFAULT_INTERVAL = 300.0
#: The first push of a subscription is due after between 0.5 and 1.5 intervals. So clients that
#: connect together do not push together.
_JITTER = (0.5, 1.5)
# Ask for the subscription again: the push named an outdated one, or used a codec that the broker
# does not accept any more.
_ASK_AGAIN = frozenset({ErrorCode.UNKNOWN_SUBSCRIPTION_ID, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE})
# This push is lost; the next one may succeed.
_NEXT_TIME = frozenset({ErrorCode.TELEMETRY_TOO_LARGE, ErrorCode.THROTTLING_QUOTA_EXCEEDED})


class PushState(Enum):
    """The state of the conversation; the module's table gives the meanings."""

    SUBSCRIPTION_NEEDED = "subscription needed"
    PUSH_NEEDED = "push needed"
    OFF = "off"


@dataclass(frozen=True, slots=True)
class Subscription:
    """A broker's subscription to metrics of this client.

    Attributes:
        id: The broker's number for the subscription.
        codecs: The codecs that the broker accepts, the best one first.
        interval: Seconds between two pushes.
        max_bytes: The largest payload, compressed; 0 or less: no limit is known.
        delta: True if the broker wants each total as the difference from the last push.
        prefixes: The prefixes of the wanted metrics; ``""`` wants all.
    """

    id: int
    codecs: tuple[int, ...]
    interval: float
    max_bytes: int
    delta: bool
    prefixes: tuple[str, ...]


def subscription_of(
    subscription_id: int,
    codecs: Sequence[int],
    interval_ms: int,
    max_bytes: int,
    delta: bool,
    requested: Sequence[str],
) -> Subscription:
    """Return the subscription of a broker's response."""
    # Kafka's rule: an entry "*" wants all metrics. The empty prefix means the same.
    prefixes = tuple("" if prefix == "*" else prefix for prefix in requested)
    interval = max(LEAST_INTERVAL, interval_ms / 1000) if interval_ms > 0 else DEFAULT_INTERVAL
    return Subscription(subscription_id, tuple(codecs), interval, max_bytes, delta, prefixes)


class PushSchedule:
    """The next request about this client's metrics, and when it is due."""

    def __init__(self, now: float) -> None:
        self.state = PushState.SUBSCRIPTION_NEEDED
        self.due = now  #: when the next request is due
        self.subscription: Subscription | None = None
        self.instance_id: uuid.UUID | None = None

    @property
    def wanted(self) -> bool:
        """True while the broker wants metrics of this client."""
        return (
            self.state is PushState.PUSH_NEEDED
            and self.subscription is not None
            and bool(self.subscription.prefixes)
        )

    @property
    def interval(self) -> float:
        """Seconds between two requests."""
        return DEFAULT_INTERVAL if self.subscription is None else self.subscription.interval

    def known_as(self, instance_id: uuid.UUID) -> None:
        """Set the id that the broker gave this client. A later id has no effect."""
        if self.instance_id is None:
            self.instance_id = instance_id

    def subscribed(self, subscription: Subscription, now: float, chance: float) -> None:
        """Record a subscription; ``chance``, a random number from 0 to 1, delays the first push."""
        if self.state is PushState.OFF:
            return
        self.subscription = subscription
        if subscription.prefixes:
            least, most = _JITTER
            self._next(
                PushState.PUSH_NEEDED,
                now + subscription.interval * (least + (most - least) * chance),
            )
        else:
            self._next(PushState.SUBSCRIPTION_NEEDED, now + subscription.interval)

    def get_failed(self, code: int, now: float) -> None:
        """Record that a broker has refused GetTelemetrySubscriptions with ``code``."""
        if code in _NEXT_TIME:
            self._next(PushState.SUBSCRIPTION_NEEDED, now + self.interval)
        else:
            self.off()

    def pushed(self, code: int, now: float) -> None:
        """Record the response to a PushTelemetry; ``code`` 0 accepts it."""
        if code in _ASK_AGAIN:
            self._next(PushState.SUBSCRIPTION_NEEDED, now)
        elif not code or code in _NEXT_TIME:
            self._next(PushState.PUSH_NEEDED, now + self.interval)
        else:
            self.off()

    def lost(self, now: float) -> None:
        """Record a request without a response, or a push that was not sent; retry it later."""
        self._next(self.state, now + self.interval)

    def withdrawn(self, now: float) -> None:
        """Record that a broker does not offer the requests any more; ask for them later."""
        self._next(PushState.SUBSCRIPTION_NEEDED, now + self.interval)

    def off(self) -> None:
        """End the conversation for the rest of the client's life."""
        self.state = PushState.OFF
        self.due = math.inf

    def _next(self, state: PushState, due: float) -> None:
        if self.state is not PushState.OFF:
            self.state = state
            self.due = due
