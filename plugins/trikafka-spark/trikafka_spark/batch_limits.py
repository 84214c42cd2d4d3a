"""The size of a micro-batch, by the arithmetic of Spark's Kafka connector.

No I/O: the caller passes the offsets.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from trikafka import TopicPartition

Offsets = Mapping[TopicPartition, int]


def share(most: int, starts: Offsets, ends: Offsets) -> dict[TopicPartition, int]:
    """Return each partition's end of a batch of about ``most`` offsets.

    Each partition gets a share in proportion to its lag, and at least one offset. If all partitions
    together have at most ``most`` offsets, the batch takes them all.

    Args:
        most: The number of offsets that the batch should have.
        starts: The first offset of the batch, for every partition of ``ends``.
        ends: The end of each partition's log.
    """
    lags = {tp: end - starts[tp] for tp, end in ends.items() if end > starts[tp]}
    total = sum(lags.values())
    if total <= most:
        return dict(ends)
    found = dict(ends)
    for tp, lag in lags.items():
        part = most * lag / total
        # Rounded as in Spark's connector: up to one offset, otherwise down. So a partition with a
        # small lag is not left behind, and the sum may exceed `most` by that much.
        found[tp] = min(ends[tp], starts[tp] + (math.ceil(part) if part < 1 else math.floor(part)))
    return found
