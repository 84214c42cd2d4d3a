"""A run: a feeder, groups of workers and brokers that are killed, and the count at the end."""

from __future__ import annotations

import contextlib
import random
import signal
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import trio
from trikafka_broker import Cluster

import trikafka
from benchmarks.exactly_once.worker import COPYING
from benchmarks.librdkafka import read_topic
from benchmarks.soak import Worker, make_topics, no_transaction_open
from trikafka import NewTopic, OffsetSpec, TopicPartition

#: The records that are fed at least, in seconds of feeding.
_LEAST = 3
#: Partitions of the topic that is read, and of each topic that is written.
PARTITIONS, TARGETS = 6, 3
PROPERTIES = {
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "500",
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.session.timeout.ms": "2000",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "300",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
    "offsets.topic.num.partitions": "6",
    "transaction.state.log.num.partitions": "6",
}


class Group(NamedTuple):
    """The group protocol of the workers, and their function.

    ``worker`` is ``process``, or ``tasks`` for ``run_tasks``.
    """

    protocol: str
    worker: str

    def __str__(self) -> str:
        return f"{self.protocol}-{self.worker}"


GROUPS = tuple(
    Group(protocol, worker)
    for worker in ("process", "tasks")
    for protocol in ("classic", "consumer")
)


@dataclass(frozen=True)
class Options:
    """The settings of a run, in which all groups copy the same records.

    ``pause`` is the longest time between two kills of workers, in seconds.
    """

    seed: int
    kills: int
    broker_kills: int
    groups: tuple[Group, ...] = GROUPS
    slots: int = 2
    rate: int = 400
    pause: float = 3.0


@dataclass
class Figures:
    """The results, for each group."""

    fed: int = 0
    kills: int = 0
    leaves: int = 0
    broker_kills: int = 0
    lost: dict[Group, int] = field(default_factory=dict)
    doubled: dict[Group, int] = field(default_factory=dict)
    #: Exit codes of workers that ended without a signal.
    ends: Counter[int] = field(default_factory=Counter)

    @property
    def exact(self) -> bool:
        """True if each record is there exactly once."""
        return self.fed > 0 and not any(self.lost.values()) and not any(self.doubled.values())


async def run(
    options: Options,
    cluster: Cluster,
    directory: Path,
    say: Callable[[str], None] = lambda line: None,
) -> Figures:
    """Run on ``cluster``. The workers' logs go to ``directory``."""
    figures = Figures()
    names = {group: f"out-{group}" for group in options.groups}
    replicas = len(cluster.brokers)
    topics = {
        "in": NewTopic(PARTITIONS, replicas),
        **{name: NewTopic(TARGETS, replicas) for name in names.values()},
    }
    await make_topics(cluster.bootstrap_servers, topics)
    workers = [
        Worker(
            "benchmarks.exactly_once.worker",
            _arguments(cluster, group, slot, name),
            directory / f"worker-{group}-{slot}.log",
        )
        for group, name in names.items()
        for slot in range(options.slots)
    ]
    try:
        async with trio.open_nursery() as nursery:
            fed = trio.Event()
            nursery.start_soon(_feed, options, cluster, figures, fed)
            nursery.start_soon(_kill_brokers, options, cluster, figures, say)
            await _kill_workers(options, workers, figures, say)
            fed.set()
        say(
            f"{figures.kills} workers and {figures.broker_kills} brokers killed; {figures.fed:,} "
            "records fed; now the rest"
        )
        await _finish(options, cluster, workers)
    finally:
        for worker in workers:
            worker.end(signal.SIGKILL)
            figures.ends += worker.ends
    written = [TopicPartition(name, number) for name in names.values() for number in range(TARGETS)]
    await no_transaction_open(cluster.bootstrap_servers, written)
    for group, name in names.items():
        messages = await trio.to_thread.run_sync(
            read_topic, cluster.bootstrap_servers, name, "read_committed"
        )
        found = Counter(message.value() or b"" for message in messages)
        figures.lost[group] = sum(found[b"%d" % number] == 0 for number in range(figures.fed))
        figures.doubled[group] = sum(count - 1 for count in found.values())
    return figures


def _arguments(cluster: Cluster, group: Group, slot: int, target: str) -> list[str]:
    return [
        cluster.bootstrap_servers,
        f"group-{group}",
        group.protocol,
        group.worker,
        str(slot),
        "in",
        target,
    ]


async def _feed(options: Options, cluster: Cluster, figures: Figures, over: trio.Event) -> None:
    async with trikafka.open_producer(
        bootstrap_servers=cluster.bootstrap_servers, delivery_timeout_ms=600_000
    ) as producer:
        # On a slow machine the kills may be over before there is enough to copy.
        while not over.is_set() or figures.fed < _LEAST * options.rate:
            for _ in range(options.rate // 10):
                await producer.enqueue(
                    "in", b"%d" % figures.fed, partition=figures.fed % PARTITIONS
                )
                figures.fed += 1
            await trio.sleep(0.1)
        await producer.flush(timeout=600)


async def _kill_workers(
    options: Options, workers: list[Worker], figures: Figures, say: Callable[[str], None]
) -> None:
    chance = random.Random(options.seed)
    while figures.kills < options.kills:
        for worker in workers:
            worker.start()
        worker = chance.choice(workers)
        # On a slow machine all would be killed before they have joined their groups.
        if figures.kills % 2:
            with trio.move_on_after(120):
                while not worker.has_said(COPYING):  # noqa: ASYNC110  (logs have no events)
                    await trio.sleep(0.05)
        await trio.sleep(chance.uniform(options.pause / 6, options.pause))
        if chance.random() < 0.2:
            await trio.to_thread.run_sync(worker.end, signal.SIGTERM)  # the worker leaves its group
            figures.leaves += 1
        else:
            await trio.to_thread.run_sync(worker.end, signal.SIGKILL)
            figures.kills += 1
            if figures.kills % 10 == 0:
                say(
                    f"{figures.kills} workers killed, {figures.leaves} left; {figures.fed:,} "
                    "records fed"
                )
        if chance.random() < 0.3:
            await trio.sleep(chance.uniform(0, options.pause))  # the slot stays empty for a while


async def _kill_brokers(
    options: Options, cluster: Cluster, figures: Figures, say: Callable[[str], None]
) -> None:
    chance = random.Random(options.seed + 1)
    length = options.kills * options.pause * 0.7
    for _ in range(options.broker_kills):
        await trio.sleep(max(1.0, length / options.broker_kills - 4))
        broker = chance.choice(cluster.brokers)
        await broker.kill()
        figures.broker_kills += 1
        await trio.sleep(chance.uniform(0.5, 3))
        await broker.start()


async def _finish(options: Options, cluster: Cluster, workers: list[Worker]) -> None:
    """Wait until each group has committed everything."""
    places = [TopicPartition("in", number) for number in range(PARTITIONS)]
    with trio.fail_after(600):
        async with trikafka.open_admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
            ends = await admin.list_offsets(dict.fromkeys(places, OffsetSpec.LATEST))
            left = set(options.groups)
            while left:
                for worker in workers:
                    worker.start()
                await trio.sleep(0.5)
                for group in list(left):
                    committed: dict[TopicPartition, Any] = {}
                    with contextlib.suppress(trikafka.TrikafkaError):
                        committed = dict(await admin.list_group_offsets(f"group-{group}"))
                    if all(_is_read(committed.get(place), ends[place]) for place in places):
                        left.discard(group)


def _is_read(committed: Any, end: Any) -> bool:
    """Return whether a partition's committed offset is at its end."""
    return committed is not None and end is not None and committed.offset >= end.offset
