"""librdkafka itself: the C program in ``librdkafka_c/``, with confluent-kafka's own library."""

from __future__ import annotations

from typing import Any

from .. import tuning
from ..jobs import Job, Outcome
from ..programs import librdkafka, outcome


def produce(job: Job) -> Outcome:
    settings = tuning.confluent_producer("one", job.compression)

    def words(order: dict[str, Any]) -> list[str]:
        pairs = {"bootstrap.servers": job.bootstrap, **settings}
        given = [
            f"{name}={str(value).lower() if isinstance(value, bool) else value}"
            for name, value in pairs.items()
        ]
        return [order["values"], str(job.size), str(job.records), job.topic, *given]

    return outcome(librdkafka(), job, settings, "rd_kafka_produce()", words)[0]


WAYS = {("produce", "one"): produce}
