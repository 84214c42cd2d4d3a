"""A run: members, faults, and what the members' logs and the group say at the end."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import trio
from trikafka_broker import Cluster, FaultProxy

import trikafka
from trikafka import ConfigResource, NewTopic

from .faults import Member, Nemesis
from .judge import Figures, check, read

PARTITIONS = 6
# Kafka 4.4.0 delivers nothing more of a partition, to no client, once all of this has happened: a
# record was held while as many as `share.partition.max.record.locks` behind it were accepted, the
# partition got another leader, and the record was accepted there. It goes on with the next leader,
# or when the group has been empty. With the default of 2,000 records, handlers of 20 s and moving
# leaders this happens in every second run. The highest limit is out of reach here.
_LOCKS = "10000"
PROPERTIES = {
    "offsets.topic.num.partitions": "6",
    "share.coordinator.state.topic.num.partitions": "6",
    "share.coordinator.state.topic.replication.factor": "3",
    "share.coordinator.state.topic.min.isr": "2",
    "group.share.min.session.timeout.ms": "6000",
    "group.share.session.timeout.ms": "6000",
    "group.share.min.heartbeat.interval.ms": "1000",
    "group.share.heartbeat.interval.ms": "1000",
    "group.share.partition.max.record.locks": _LOCKS,
    "group.share.max.partition.max.record.locks": _LOCKS,
}
TOPIC, GROUP = "jobs", "workers"
_SETTINGS = {
    "share.auto.offset.reset": "earliest",
    "share.record.lock.duration.ms": "15000",
    "share.delivery.count.limit": "10",
}
#: Otherwise the faults follow each other so closely that one of them excuses whatever happens. So
#: before each twentieth one, and before the last, comes a long pause (seconds).
_EVERY, _QUIET = 20, 60.0
#: The usual time of a fault (seconds), over which the records are spread as well.
_USUAL = 4.0
#: Seconds without progress after which the rest of the records is given up.
_PATIENCE = 120.0


@dataclass(frozen=True)
class Options:
    """The settings of a run; ``pause`` is the longest time (seconds) between two faults."""

    seed: int
    records: int = 2_000_000
    members: int = 8
    faults: int = 100
    pause: float = 4.0


def pauses_of(options: Options, rng: random.Random) -> list[float]:
    """Return the seconds before each fault."""
    return [
        _QUIET
        if number % _EVERY == 0 or number == options.faults
        else rng.uniform(0, options.pause)
        for number in range(1, options.faults + 1)
    ]


async def run(
    options: Options,
    cluster: Cluster,
    directory: Path,
    say: Callable[[str], None] = lambda line: None,
) -> Figures:
    """Run on ``cluster``. The members' logs go to ``directory``."""
    rng = random.Random(options.seed)
    figures = Figures(records=options.records)
    bootstrap = cluster.bootstrap_servers
    async with trikafka.open_admin(bootstrap_servers=bootstrap) as admin:
        await admin.create_topics({TOPIC: NewTopic(PARTITIONS, 3, {"min.insync.replicas": 2})})
        await admin.alter_configs({ConfigResource("group", GROUP): _SETTINGS})
    each = options.records // PARTITIONS
    async with AsyncExitStack() as stack:
        members = []
        for number in range(options.members):
            proxy = await stack.enter_async_context(FaultProxy.open(bootstrap.split(",")))
            members.append(Member(number, [bootstrap, GROUP, TOPIC], directory, proxy))
        nemesis = Nemesis(cluster, members, TOPIC, PARTITIONS, rng)
        try:
            for member in members:
                await trio.to_thread.run_sync(member.start)
            began = time.monotonic()
            pauses = pauses_of(options, rng)
            async with trio.open_nursery() as nursery:
                seconds = sum(pauses) + _USUAL * options.faults
                nursery.start_soon(_feed, bootstrap, each, seconds, say)
                for kind, pause in zip(nemesis.plan(options.faults), pauses, strict=True):
                    await trio.sleep(pause)
                    await nemesis.cause(kind, say)
                    figures.faults[kind] += 1
                say("the faults are over")
            left = await _drained(bootstrap, each, say)
        finally:
            await _end(members)
    figures.seconds = time.monotonic() - began
    if left:
        figures.violated("left in the group", f"{left} records")
    for member in members:
        if member.ended_by_itself:
            figures.violated("a member has ended by itself, or not at its signal", member.name)
    say("reading the members' logs")
    for partition in range(PARTITIONS):
        handled = await trio.to_thread.run_sync(read, directory, partition)
        everything = [(partition, offset) for offset in range(each)]
        check(handled, everything, nemesis.faults, figures)
    return figures


async def _end(members: Sequence[Member]) -> None:
    """Have all members end in order, at once."""
    with trio.CancelScope(shield=True):
        async with trio.open_nursery() as nursery:
            for member in members:
                nursery.start_soon(trio.to_thread.run_sync, member.end, signal.SIGTERM)


async def _feed(bootstrap: str, each: int, seconds: float, say: Callable[[str], None]) -> None:
    """Write the records over the time of the faults, as many into each partition."""
    began = trio.current_time()
    async with trikafka.open_producer(
        bootstrap_servers=bootstrap, delivery_timeout_ms=600_000
    ) as producer:
        for offset in range(each):
            for partition in range(PARTITIONS):
                await producer.enqueue(TOPIC, b"%d" % offset, partition=partition)
            if offset % 100 == 99:
                await trio.sleep_until(began + seconds * offset / each)
        await producer.flush(timeout=600)
    say(f"{each * PARTITIONS:,} records written")


async def _drained(bootstrap: str, each: int, say: Callable[[str], None]) -> int:
    """Wait until the group has settled each record; return how many it has not, without progress.

    The broker is asked, not the members: their logs may lack its word.
    """
    fewest = each * PARTITIONS + 1
    since = trio.current_time()
    async with trikafka.open_admin(bootstrap_servers=bootstrap) as admin:
        while True:
            try:
                offsets = (await admin.list_share_group_offsets([GROUP]))[GROUP]
            except trikafka.TrikafkaError as error:
                say(f"the group's offsets are not known: {error}")
                offsets = {}
            # The start offset alone says less: the broker stores it with the next acknowledgement.
            known = {tp.partition: part.lag for tp, part in offsets.items()}
            lags = [known.get(partition) for partition in range(PARTITIONS)]
            left = sum(each if lag is None else lag for lag in lags)
            if left <= 0:
                say("the group has settled each record")
                return 0
            if left < fewest:
                fewest = left
                since = trio.current_time()
            elif trio.current_time() > since + _PATIENCE:
                return left
            say(f"{left:,} records are not settled yet")
            await trio.sleep(2)
