"""How far one micro-batch goes: Spark's Kafka connector's arithmetic. Pure; the clock is handed in."""

from __future__ import annotations

import math
from collections.abc import Mapping

from trikafka import TopicPartition

from .options import Rates

Offsets = Mapping[TopicPartition, int]


def share(most: int, starts: Offsets, ends: Offsets) -> dict[TopicPartition, int]:
    """Where a batch of about ``most`` offsets ends: each partition has its part in proportion to its lag, and at least one.

    ``starts`` has every partition of ``ends``. Where less than ``most`` is there, it is all taken.
    """
    lags = {tp: end - starts[tp] for tp, end in ends.items() if end > starts[tp]}
    total = sum(lags.values())
    if total <= most:
        return dict(ends)
    found = dict(ends)
    for tp, lag in lags.items():
        part = most * lag / total
        found[tp] = min(ends[tp], starts[tp] + (math.ceil(part) if part < 1 else math.floor(part)))
    return found


class Patience:
    """Whether a batch waits for more: below ``least`` offsets it does, but never longer than ``delay`` after the one before."""

    def __init__(self, rates: Rates) -> None:
        self._least, self._delay = rates.least, rates.delay
        self._last = -math.inf

    def waits(self, new: int, now: float) -> bool:
        """Whether to wait when ``new`` offsets are there at the time ``now`` (seconds). Where not, the next delay begins now."""
        if self._least is not None and new < self._least and now - self._last < self._delay:
            return True
        self._last = now
        return False
