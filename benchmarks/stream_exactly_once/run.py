"""A run: a feeder, a streaming query that is killed and restarted, and the count at the end."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import trio

import trikafka
from benchmarks.librdkafka import read_topic
from benchmarks.soak import killed_at_the_end, make_topics, no_transaction_open
from trikafka import NewTopic, TopicPartition

PARTITIONS = 2


@dataclass(frozen=True)
class Options:
    """The settings of a run.

    ``batches`` is the number of micro-batches for the records between two kills. ``pause`` is the
    longest time between a query's first batch and its kill, in seconds.
    """

    seed: int
    records: int = 100_000
    kills: int = 10
    pause: float = 4.0
    batches: int = 20


@dataclass
class Figures:
    """The results."""

    fed: int = 0
    kills: int = 0
    in_mid_batch: int = 0
    batches: int = 0
    lost: int = 0
    doubled: int = 0

    @property
    def exact(self) -> bool:
        """True if each record is there exactly once."""
        return self.fed > 0 and not (self.lost or self.doubled)


def query(arguments: list[str], log: Path) -> AbstractContextManager[subprocess.Popen[bytes]]:
    """Run the query in its own process group. Driver, JVM and workers are killed at the end."""
    command = [sys.executable, "-m", "benchmarks.stream_exactly_once.query", *arguments]
    environment = os.environ | {"TMPDIR": str(log.parent), "PYSPARK_PYTHON": sys.executable}
    return killed_at_the_end(command, log, environment)


async def run(
    options: Options, servers: str, directory: Path, say: Callable[[str], None] = lambda line: None
) -> Figures:
    """Run. The checkpoint and the queries' log are created in ``directory``."""
    figures = Figures()
    chance = random.Random(options.seed)
    source = f"from-{options.seed}"
    target = f"to-{options.seed}"
    checkpoint = directory / "checkpoint"
    log = directory / "runs.log"
    topic = NewTopic(PARTITIONS, 1, {"retention.ms": "-1"})
    await make_topics(servers, {source: topic, target: topic})
    part = options.records // (options.kills + 1)
    most = max(1, part // options.batches)

    def arguments(how: str) -> list[str]:
        return [
            servers,
            source,
            target,
            str(checkpoint),
            str(most if how == "on" else options.records),
            how,
        ]

    async with trikafka.open_producer(bootstrap_servers=servers) as producer:
        while figures.kills < options.kills:
            await _feed(producer, source, part, figures)
            before = _count(checkpoint / "commits")
            with query(arguments("on"), log) as process:
                while _count(checkpoint / "commits") <= before:
                    if process.poll() is not None:
                        raise RuntimeError(
                            f"the query ended by itself; see {log}: {log.read_text()[-2_000:]}"
                        )
                    await trio.sleep(0.02)
                await trio.sleep(chance.uniform(0, options.pause))
            figures.kills += 1
            figures.in_mid_batch += _count(checkpoint / "offsets") > _count(checkpoint / "commits")
            say(
                f"{figures.kills} runs killed, {_count(checkpoint / 'commits')} batches finished, "
                f"{figures.fed:,} records fed"
            )
        await _feed(producer, source, options.records - figures.fed, figures)
    with query(arguments("rest"), log) as process:
        if await trio.to_thread.run_sync(process.wait, 900):
            raise RuntimeError(f"the last run failed; see {log}: {log.read_text()[-2_000:]}")
    figures.batches = _count(checkpoint / "commits")
    written = [TopicPartition(target, number) for number in range(PARTITIONS)]
    await no_transaction_open(servers, written)
    messages = await trio.to_thread.run_sync(read_topic, servers, target, "read_committed")
    found = Counter(message.value() or b"" for message in messages)
    figures.lost = sum(found[b"%d" % number] == 0 for number in range(figures.fed))
    figures.doubled = sum(count - 1 for count in found.values())
    return figures


async def _feed(producer: trikafka.Producer, topic: str, count: int, figures: Figures) -> None:
    for _ in range(count):
        await producer.enqueue(topic, b"%d" % figures.fed, partition=figures.fed % PARTITIONS)
        figures.fed += 1
    await producer.flush()


def _count(folder: Path) -> int:
    """Return the number of batches that Spark has recorded in the folder."""
    return sum(entry.name.isdigit() for entry in folder.iterdir()) if folder.exists() else 0
