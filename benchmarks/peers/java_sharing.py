"""Kafka's own share consumer, in Java: explicit acknowledgement of each record, or implicit."""

from __future__ import annotations

from collections.abc import Callable

import trio

from .. import tuning
from ..jobs import Job, Outcome
from ..programs import java, outcome
from ..share_groups import LOCKS, new_share_group


def way(mode: str, call: str, locks: int | None = LOCKS) -> Callable[[Job], Outcome]:
    def share(job: Job) -> Outcome:
        settings = tuning.java_share_consumer(mode)
        warm, group = (trio.run(new_share_group, job.bootstrap, {}, locks) for _ in range(2))
        given = settings | {"warm.group": warm, "group.id": group}
        result = outcome(java(), job, given, call)[0]
        result.settings = settings
        return result

    return share


WAYS = {
    ("share", "accept"): way("explicit", "poll(), acknowledge()"),
    ("share", "batch"): way("implicit", "poll()"),
    ("share", "defaults"): way("implicit", "poll(), 2,000 locks", None),
}
