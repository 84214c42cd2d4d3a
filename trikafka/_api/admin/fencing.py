"""Producers fenced by their transactional ids (KIP-588): requests and responses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kafka.protocol.producer import InitProducerIdRequest

from ...errors import from_code
from .routing import Parts

#: The timeout of the transaction that is never begun: the next producer brings its own.
_TIMEOUT_MS = 1


@dataclass(frozen=True, slots=True)
class FencedProducer:
    """The producer id and epoch of a transactional id once its producers are fenced.

    Attributes:
        producer_id: The producer id.
        epoch: The epoch. Producers with an older one are refused.
    """

    producer_id: int
    epoch: int


def fence_request(names: Sequence[str]) -> InitProducerIdRequest:
    """Return the InitProducerId request that fences the producers of one transactional id.

    It raises the epoch of the id, and aborts its open transaction.
    """
    return InitProducerIdRequest(
        transactional_id=names[0],
        transaction_timeout_ms=_TIMEOUT_MS,
        producer_id=-1,
        producer_epoch=-1,
    )


def read_fenced(response: Any, name: str, parts: Parts[str, FencedProducer]) -> None:
    """Take in an InitProducerId response."""
    if response.error_code:
        what = f"transactional id {name!r}"
        parts.failed(name, from_code(response.error_code, what, operation="Write"))
    else:
        parts.done(name, FencedProducer(response.producer_id, response.producer_epoch))
