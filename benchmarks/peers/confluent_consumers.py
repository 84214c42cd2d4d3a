"""confluent-kafka: many partitions, many consumers (a thread each), groups, 16 partitions."""

from __future__ import annotations

import importlib
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from .. import tuning
from ..consumers import SETTLES, Idle, Member, group_figures
from ..feeding import feeder
from ..jobs import Job, Outcome, Window
from .confluent import consume_batch

confluent: Any = importlib.import_module("confluent_kafka")
_PATIENCE = 240.0


def _value(message: Any) -> bytes:
    if message is None:
        raise TimeoutError(f"no record within {_PATIENCE:.0f} s")
    if message.error() is not None:
        raise RuntimeError(message.error())
    value: bytes = message.value()
    return value


def assigned(job: Job) -> Outcome:
    settings = tuning.confluent_consumer()
    consumer = confluent.Consumer({"bootstrap.servers": job.bootstrap, **settings})
    consumer.list_topics(job.topic, _PATIENCE)
    idle = Idle()
    count = 0
    size = 0
    with feeder(job) as feeding:
        consumer.assign(
            [
                confluent.TopicPartition(job.topic, each, confluent.OFFSET_END)
                for each in range(job.partitions)
            ]
        )
        consumer.poll(SETTLES)
        with idle:
            if consumer.poll(job.seconds) is not None:
                raise RuntimeError("a record came before there was one")
        feeding.begin()
        _value(consumer.poll(_PATIENCE))
        with Window() as window:
            end = time.perf_counter() + job.seconds
            # A machine may stand still for the whole time.
            while (left := end - time.perf_counter()) > 0 or not count:
                message = consumer.poll(max(left, 0.1))
                if message is not None:
                    size += len(_value(message))
                    count += 1
    consumer.close()
    return Outcome(count, size, window, "assign(), poll()", settings, figures=idle.figures())


def group(job: Job) -> Outcome:
    settings = tuning.confluent_member(job.way)
    members: list[Member] = []
    over = threading.Event()

    def live(member: Member) -> None:
        consumer = confluent.Consumer(
            {"bootstrap.servers": job.bootstrap, "group.id": job.topic, **settings}
        )
        consumer.subscribe([job.topic])
        while not over.is_set():
            message = consumer.poll(0.2)
            if message is not None and message.error() is None:
                member.arrived()
        consumer.close()

    with feeder(job) as feeding:
        feeding.begin()
        with Window() as window:
            threads = []
            for _ in range(job.tasks):
                members.append(Member())
                threads.append(threading.Thread(target=live, args=(members[-1],), daemon=True))
                threads[-1].start()
                while not members[-1].arrivals and not members[-1].waited_too_long:
                    time.sleep(0.005)
                time.sleep(job.seconds)
            over.set()
        figures = group_figures(members)
        for thread in threads:
            thread.join(_PATIENCE)
    count = sum(len(each.arrivals) for each in members)
    return Outcome(
        count, count * job.size, window, "subscribe(), poll()", settings, figures=figures
    )


def many(job: Job) -> Outcome:
    settings = tuning.confluent_of_many()
    share = -(-job.records // job.tasks)
    consumers, places = [], []
    for number in range(job.tasks):
        consumers.append(confluent.Consumer({"bootstrap.servers": job.bootstrap, **settings}))
        places.append(confluent.TopicPartition(job.topic, number % job.partitions, 0))
        consumers[-1].get_watermark_offsets(places[-1], timeout=_PATIENCE)
    sizes: list[int] = []
    counts: list[int] = []

    def read(consumer: Any, place: Any) -> None:
        count = size = 0
        consumer.assign([place])
        while count < share:
            messages = consumer.consume(min(10_000, share - count), _PATIENCE)
            if not messages:
                return
            size += sum(len(_value(message)) for message in messages)
            count += len(messages)
        counts.append(count)
        sizes.append(size)

    with Window() as window:
        _in_threads(read, list(zip(consumers, places, strict=True)))
    if len(counts) < job.tasks:
        raise TimeoutError(
            f"{job.tasks - len(counts)} of {job.tasks} consumers did not get their records"
        )
    for consumer in consumers:
        consumer.close()
    return Outcome(sum(counts), sum(sizes), window, "consume(10000), a thread each", settings)


def _in_threads(work: Callable[..., None], arguments: Sequence[tuple[Any, ...]]) -> None:
    threads = [threading.Thread(target=work, args=each, daemon=True) for each in arguments]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


WAYS = {
    **{("assigned", str(count)): assigned for count in (1, 50, 500, 2_000)},
    **{("group", way): group for way in ("cooperative", "consumer")},
    **{("many", str(count)): many for count in (1, 10, 100)},
    ("streams", "together"): consume_batch,
}
