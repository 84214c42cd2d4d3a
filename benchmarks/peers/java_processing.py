"""Kafka's own client, in Java: poll(), send(), and the polled offsets sent to the transaction."""

from __future__ import annotations

from .. import tuning
from ..jobs import Job, Outcome
from ..programs import java, outcome


def process(job: Job) -> Outcome:
    reading, writing = tuning.java_processing(job.target, job.compression)
    result, found = outcome(java(), job, {**reading, **writing}, "poll(), send()")
    result.extra = {"written": found["written"]}
    return result


WAYS = {("process", "one"): process}
