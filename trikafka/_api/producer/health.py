"""The health of a producer, for probes and alerts: plain functions over its parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..._net.brokers import Brokers
from ..._state.producer.transaction_state import ProducerTransaction, TransactionState
from ...config import ProducerConfig
from ...errors import (
    AuthenticationError,
    AuthorizationError,
    DeliveryTimeoutError,
    ProducerFencedError,
    UnsupportedVersionError,
)
from ...interfaces import ProduceManager
from ...types import MetricsPush, Node
from ..client.snapshots import ByKey
from ..client.stalls import Stalled

#: Errors after which other records will probably fail, too: they concern the producer itself, or
#: say that no records arrive in time.
_OF_THE_PRODUCER = (
    AuthenticationError,
    AuthorizationError,
    DeliveryTimeoutError,
    ProducerFencedError,
    UnsupportedVersionError,
)


@dataclass(frozen=True, slots=True)
class ProducerHealth:
    """The health of a producer.

    Attributes:
        ok: False when something is wrong that more waiting may not fix.
        reasons: What is wrong, one sentence each.
        connected: Brokers with a connection.
        unreachable: Brokers that cannot be reached or do not respond, with the cause. Not a reason
            while another broker responds.
        oldest_unsent: The age (seconds) of the oldest record without an outcome; ``None`` if there
            is none.
        error: The last error of an attempt or a record; ``None`` after a later delivery.
        transaction: The state of the transaction, such as ``"ready"`` or ``"in transaction"``;
            ``None`` without a ``transactional_id``.
        throttled: Brokers whose quota makes the producer wait now (KIP-219), with details. Not a
            reason: the producer works, but slowly.
        metrics_push: The pushes of metrics (KIP-714), with the last failure and its time; ``None``
            if they are switched off. Not a reason: the producer works without them.
    """

    ok: bool
    reasons: tuple[str, ...]
    connected: tuple[Node, ...]
    unreachable: Mapping[Node, str]
    oldest_unsent: float | None
    error: Exception | None
    transaction: str | None
    throttled: Mapping[Node, str]
    metrics_push: MetricsPush | None = None


def producer_health(
    config: ProducerConfig,
    brokers: Brokers,
    produce: ProduceManager,
    transaction: ProducerTransaction | None,
    failure: Exception | None,
    standing: Sequence[Stalled],
    metrics_push: MetricsPush | None,
    *,
    closed: bool,
) -> ProducerHealth:
    """Return the health of a producer, for :meth:`trikafka.Producer.health`."""
    outages = brokers.outages
    unreachable = outages.described()
    throttled = brokers.throttles.now()
    error = produce.accumulator.last_error
    oldest = produce.accumulator.oldest()
    reasons = []
    if closed:
        reasons.append("the producer is closed")
    if failure is not None:
        reasons.append(f"the producer failed in the background: {failure}")
    if transaction is not None and transaction.state is TransactionState.FATAL_ERROR:
        reasons.append(f"no more transactions are possible: {transaction.error}")
    if outages.all_away:
        reasons.append(
            "no broker of the cluster can be reached: " + "; ".join(unreachable.values())
        )
    if isinstance(error, _OF_THE_PRODUCER):
        reasons.append(f"the last records failed, and none has been delivered since: {error}")
    reasons += [f"{each.name}: {each.reason}" for each in standing]
    is_named = (
        any(each.key == oldest.partition for each in standing) if oldest is not None else False
    )
    if (
        oldest is not None
        and not is_named
        and oldest.age > config.linger_ms / 1000 + config.request_timeout
    ):
        causes = throttled.values() if oldest.error is None else (oldest.error,)
        why = f": {'; '.join(map(str, causes))}" if causes else ""
        reasons.append(
            f"{oldest.partition}: a record has had no outcome for {oldest.age:.0f} s "
            f"({oldest.phase}){why}"
        )
    return ProducerHealth(
        not reasons,
        tuple(reasons),
        brokers.connected(),
        ByKey(unreachable),
        None if oldest is None else oldest.age,
        error,
        None if transaction is None else transaction.state.value,
        ByKey(throttled),
        metrics_push,
    )
