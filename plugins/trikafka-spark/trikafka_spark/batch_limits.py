"""The size of a micro-batch, by the arithmetic of Spark's Kafka connector.

Pure; the caller passes the time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from trikafka import TopicPartition

from .read_options import Rates

Offsets = Mapping[TopicPartition, int]


def share(most: int, starts: Offsets, ends: Offsets) -> dict[TopicPartition, int]:
    """Return the end of a batch of about ``most`` offsets.

    Each partition has a share in proportion to its lag, and at least one offset. ``starts`` has
    every partition of ``ends``. If there are no more than ``most`` offsets, the batch takes all.
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


class BatchDelay:
    """The decision to wait for more offsets before a batch.

    A batch of less than ``least`` offsets waits, but no longer than ``delay`` seconds after the
    last one.
    """

    def __init__(self, rates: Rates) -> None:
        self._least = rates.least
        self._delay = rates.delay
        self._last = -math.inf

    def waits(self, new: int, now: float) -> bool:
        """Return whether to wait with ``new`` offsets at the time ``now`` (seconds).

        If not, the next delay begins now.
        """
        if self._least is not None and new < self._least and now - self._last < self._delay:
            return True
        self._last = now
        return False
