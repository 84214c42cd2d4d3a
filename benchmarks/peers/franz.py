"""franz-go, the Go client: the program in ``franz_go/`` polls and produces."""

from __future__ import annotations

from .. import tuning
from ..jobs import Job, Outcome
from ..pace import Pace
from ..programs import franz, outcome


def consume(job: Job) -> Outcome:
    return outcome(franz(), job, tuning.franz_consumer(), "PollFetches()")[0]


def produce(job: Job) -> Outcome:
    return outcome(franz(), job, tuning.franz_producer("one", job.compression), "Produce()")[0]


def latency(job: Job) -> Outcome:
    settings = {**tuning.franz_producer("latency", job.compression), **tuning.franz_consumer()}
    with Pace(job.rate) as pace:
        return outcome(
            franz(), job, settings, "Produce() in a goroutine, PollFetches()", pace=pace
        )[0]


def acks(job: Job) -> Outcome:
    settings = tuning.franz_producer("latency", job.compression)
    with Pace(job.rate) as pace:
        return outcome(franz(), job, settings, "Produce(), its promise", pace=pace)[0]


WAYS = {
    ("consume", "batch"): consume,
    ("produce", "one"): produce,
    ("latency", "thousand"): latency,
    ("latency", "acks"): acks,
}
