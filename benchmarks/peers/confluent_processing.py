"""confluent-kafka: consume(), produce(), and the consumed offsets sent to the transaction."""

from __future__ import annotations

import importlib
import time
from typing import Any

from .. import tuning
from ..jobs import Job, Outcome, Window

confluent: Any = importlib.import_module("confluent_kafka")
_PATIENCE = 240.0
_SERVE_EVERY = 1_000


def process(job: Job) -> Outcome:
    reading, writing = tuning.confluent_processing(job.target, job.compression)
    common = {"bootstrap.servers": job.bootstrap, **job.connection}
    producer = confluent.Producer({**common, "delivery.report.only.error": True, **writing})
    producer.init_transactions(_PATIENCE)
    producer.list_topics(job.target, _PATIENCE)
    consumer = confluent.Consumer({**common, **reading})
    places = [confluent.TopicPartition(job.topic, number, 0) for number in range(job.partitions)]
    for place in places:
        consumer.get_watermark_offsets(place, timeout=_PATIENCE)
    count = 0
    with Window() as window:
        consumer.assign(places)
        while count < job.records:
            count += _transaction(job, consumer, producer)
    consumer.close()
    settings = {**reading, **writing}
    return Outcome(
        count,
        count * job.size,
        window,
        "consume(10000), produce()",
        settings,
        extra={"written": count},
    )


def _transaction(job: Job, consumer: Any, producer: Any) -> int:
    """Run one transaction, open for ``job.seconds``; return the number of processed records."""
    count, target, produce = 0, job.target, producer.produce
    producer.begin_transaction()
    until = time.perf_counter() + job.seconds
    while (left := until - time.perf_counter()) > 0:
        messages = consumer.consume(10_000, left)
        for number, message in enumerate(messages):
            if message.error() is not None:
                raise RuntimeError(message.error())
            while True:
                try:
                    produce(target, message.value())
                    break
                except BufferError:
                    producer.poll(0.01)
            if not number % _SERVE_EVERY:
                producer.poll(0)
        count += len(messages)
    positions = [place for place in consumer.position(consumer.assignment()) if place.offset >= 0]
    producer.send_offsets_to_transaction(positions, consumer.consumer_group_metadata(), _PATIENCE)
    producer.commit_transaction(_PATIENCE)
    return count


WAYS = {("process", "one"): process}
