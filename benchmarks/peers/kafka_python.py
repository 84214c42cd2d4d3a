"""kafka-python: poll() and send().

It runs in the main configuration only, since it is the slowest peer by far.
"""

from __future__ import annotations

import importlib
from typing import Any

from .. import tuning
from ..jobs import Job, Outcome, Window

kafka: Any = importlib.import_module("kafka")
_PATIENCE = 240.0


def consume_batch(job: Job) -> Outcome:
    settings = tuning.kafka_python_consumer()
    consumer = kafka.KafkaConsumer(bootstrap_servers=job.bootstrap.split(","), **settings)
    places = [kafka.TopicPartition(job.topic, number) for number in range(job.partitions)]
    consumer.end_offsets(places)
    count = size = 0
    with Window() as window:
        consumer.assign(places)
        for place in places:
            consumer.seek(place, 0)
        while count < job.records:
            found = consumer.poll(timeout_ms=int(_PATIENCE * 1000))
            if not found:
                raise TimeoutError(f"{count} of {job.records} records")
            for records in found.values():
                for record in records:
                    size += len(record.value)
                count += len(records)
    consumer.close()
    return Outcome(count, size, window, "poll(max_records=10000)", settings)


def produce_one(job: Job) -> Outcome:
    settings = tuning.kafka_python_producer("one", job.compression)
    producer = kafka.KafkaProducer(bootstrap_servers=job.bootstrap.split(","), **settings)
    producer.send(job.topic, b"first").get(timeout=_PATIENCE)
    topic, size = job.topic, 0
    values = job.values()
    with Window() as window:
        for value in values:
            producer.send(topic, value)
            size += len(value)
        producer.flush()
    producer.close()
    return Outcome(job.records, size, window, "send()", settings)


WAYS = {("consume", "batch"): consume_batch, ("produce", "one"): produce_one}
