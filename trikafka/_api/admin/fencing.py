"""Producers fenced by their transactional ids (KIP-588): requests and responses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kafka.protocol.producer import InitProducerIdRequest

from ...errors import from_code
from .routing import Parts

#: The longest transaction timeout that is sent. Brokers refuse one above their
#: ``transaction.max.timeout.ms``, which few clusters set lower than this. Such a cluster accepts a
#: call with a smaller ``timeout``.
_LONGEST_MS = 30_000


@dataclass(frozen=True, slots=True)
class FencedProducer:
    """The producer id and epoch of a transactional id once its producers are fenced.

    Attributes:
        producer_id: The producer id.
        epoch: The epoch. Producers with an older one are refused.
    """

    producer_id: int
    epoch: int


def fence_request(names: Sequence[str], timeout_ms: int) -> InitProducerIdRequest:
    """Return the InitProducerId request that fences the producers of one transactional id.

    The coordinator raises the epoch of the id, and aborts its open transaction.

    Args:
        names: The transactional id alone: the request has room for one.
        timeout_ms: The time that the request may take.
    """
    # As a limit of transactions the timeout has no effect: none is begun, and the next producer
    # sends its own. But the coordinator also limits the replication of its own record by it. With
    # 1 ms, as in Java's client before KAFKA-16047, that replication times out wherever the
    # coordinator's log has followers.
    return InitProducerIdRequest(
        transactional_id=names[0],
        transaction_timeout_ms=min(timeout_ms, _LONGEST_MS),
        producer_id=-1,
        producer_epoch=-1,
    )


def read_fenced(response: Any, name: str, parts: Parts[str, FencedProducer]) -> None:
    """Record in ``parts`` the result of one InitProducerId request."""
    if response.error_code:
        what = f"transactional id {name!r}"
        parts.failed(name, from_code(response.error_code, what, operation="Write"))
    else:
        parts.done(name, FencedProducer(response.producer_id, response.producer_epoch))
