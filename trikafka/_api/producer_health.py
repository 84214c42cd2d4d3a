"""Is the producer working, and if not, why? What a liveness probe may ask: plain functions over what the parts know."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import trio

from .._net.brokers import Brokers
from .._state.transaction import ProducerTransaction, TransactionState
from ..config import ProducerConfig
from ..errors import AuthenticationError, AuthorizationError, DeliveryTimeoutError, ProducerFencedError, UnsupportedVersionError
from ..interfaces import ProduceManager
from ..types import Node

#: Errors that say that other records will fare no better: who or what the producer is, or that nothing gets through in time.
_OF_THE_PRODUCER = (
    AuthenticationError,
    AuthorizationError,
    DeliveryTimeoutError,
    ProducerFencedError,
    UnsupportedVersionError,
)


@dataclass(frozen=True, slots=True)
class ProducerHealth:
    """Whether a producer works. ``ok`` is false when something has gone wrong that more waiting may not mend.

    ``reasons`` says what, one sentence each. ``connected`` are the brokers that it has connections to; ``unreachable`` those that
    none can be made to, or that do not respond, each with the cause (one of several is not yet a reason). ``oldest_unsent`` is the
    age (seconds) of the oldest record without an outcome, ``None`` if there is none. ``error`` is what an attempt, or a record,
    failed with last, ``None`` once something was delivered after that. ``transaction`` is its state, as ``"ready"`` or ``"in
    transaction"``, ``None`` without a ``transactional_id``. ``throttled`` are the brokers that have it wait now by a quota of
    theirs (KIP-219), each with how: no reason, for it works, but slowly.
    """

    ok: bool
    reasons: tuple[str, ...]
    connected: tuple[Node, ...]
    unreachable: Mapping[Node, str]
    oldest_unsent: float | None
    error: Exception | None
    transaction: str | None
    throttled: Mapping[Node, str]


def producer_health(
    config: ProducerConfig,
    brokers: Brokers,
    produce: ProduceManager,
    transaction: ProducerTransaction | None,
    failure: Exception | None,
    *,
    closed: bool,
) -> ProducerHealth:
    """What :meth:`trikafka.Producer.health` returns."""
    outages, now = brokers.outages, trio.current_time()
    unreachable = {node: f"since {now - away.since:.0f} s: {away.error}" for node, away in outages.unreachable().items()}
    throttled = brokers.throttles.now()
    error, oldest = produce.accumulator.last_error, produce.accumulator.oldest()
    reasons = []
    if closed:
        reasons.append("the producer is closed")
    if failure is not None:
        reasons.append(f"the producer failed in the background: {failure}")
    if transaction is not None and transaction.state is TransactionState.FATAL_ERROR:
        reasons.append(f"no more transactions are possible: {transaction.error}")
    if outages.all_away:
        reasons.append("no broker of the cluster can be reached: " + "; ".join(unreachable.values()))
    if isinstance(error, _OF_THE_PRODUCER):
        reasons.append(f"the last records failed, and none has been delivered since: {error}")
    if oldest is not None and oldest.age > config.linger_ms / 1000 + config.request_timeout:
        causes = throttled.values() if oldest.error is None else (oldest.error,)
        why = f": {'; '.join(map(str, causes))}" if causes else ""
        reasons.append(f"{oldest.partition}: a record has had no outcome for {oldest.age:.0f} s ({oldest.phase}){why}")
    return ProducerHealth(
        not reasons,
        tuple(reasons),
        brokers.connected(),
        MappingProxyType(unreachable),
        None if oldest is None else oldest.age,
        error,
        None if transaction is None else transaction.state.value,
        MappingProxyType(throttled),
    )
