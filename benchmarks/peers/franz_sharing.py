"""franz-go's share consumer: an acknowledgement of each record, or of the records of each poll."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import trio

from .. import tuning
from ..jobs import Job, Outcome
from ..programs import franz, outcome
from ..share_groups import LOCKS, new_share_group


def way(acknowledges: str, call: str, locks: int | None = LOCKS) -> Callable[[Job], Outcome]:
    def share(job: Job) -> Outcome:
        group = trio.run(new_share_group, job.bootstrap, {}, locks)
        job = replace(job, way=acknowledges)
        result = outcome(franz(), job, tuning.franz_share_consumer(group), call)[0]
        result.settings = tuning.franz_share_consumer("a new one")
        return result

    return share


WAYS = {
    ("share", "accept"): way("accept", "PollFetches(), Ack()"),
    ("share", "batch"): way("batch", "PollFetches(), MarkAcks()"),
    ("share", "defaults"): way("batch", "PollFetches(), MarkAcks(), 2,000 locks", None),
}
