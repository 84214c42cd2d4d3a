"""Kafka's own client, in Java: members of a group, a thread each."""

from __future__ import annotations

from .. import tuning
from ..consumers import Member, group_figures
from ..feeding import feeder
from ..jobs import Job, Outcome
from ..programs import java, outcome


def group(job: Job) -> Outcome:
    with feeder(job) as feeding:
        feeding.begin()
        result, found = outcome(java(), job, tuning.java_member(job.way), "subscribe(), poll()")
    result.figures = group_figures(
        [Member(each["opened"], each["arrivals"]) for each in found["members"]]
    )
    return result


WAYS = {("group", way): group for way in ("cooperative", "consumer")}
