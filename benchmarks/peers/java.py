"""Kafka's own client, in Java: the program in ``java_client/``, with the jars of the broker."""

from __future__ import annotations

from .. import tuning
from ..jobs import Job, Outcome
from ..programs import java, outcome


def consume(job: Job) -> Outcome:
    return outcome(java(), job, tuning.java_consumer(), "poll()")[0]


WAYS = {("consume", "batch"): consume}
