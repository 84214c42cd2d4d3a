"""A run: a feeder, a ``trikafka export`` and brokers that are killed, and a reader of the files."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import trio

import trikafka
from benchmarks.soak import killed_at_the_end, make_topics
from trikafka import NewTopic, TopicPartition

TOPIC = "exported"
#: Rows of one table that is sent.
_ROWS = 20_000


@dataclass(frozen=True)
class Options:
    """The settings of a run.

    ``pause`` is the longest time for which an exporter works, in seconds. Every second exporter
    works longer, until it has committed a file. Every ``spark_every``-th exporter works with Spark.
    """

    seed: int
    records: int = 5_000_000
    kills: int = 20
    broker_kills: int = 4
    partitions: int = 4
    pause: float = 6.0
    spark_every: int = 0


@dataclass
class Figures:
    """The results."""

    fed: int = 0
    kills: int = 0
    broker_kills: int = 0
    looks: int = 0
    files: int = 0
    doubled: int = 0
    lost: int = 0
    unreadable: list[str] = field(default_factory=list)

    @property
    def exact(self) -> bool:
        """True if each record is in the files once, and was never there twice."""
        return self.fed > 0 and not (self.lost or self.doubled or self.unreadable)


class Reader:
    """A reader that lists the destination's files and reads each once, since files never change.

    A file that was seen must stay, and each row must be there once.
    """

    def __init__(self, root: Path, figures: Figures) -> None:
        self._root = root
        self._figures = figures
        self._seen: dict[Path, np.ndarray[Any, Any]] = {}

    def look(self) -> None:
        """Read the files that are new."""
        there = set(self._root.glob("*.parquet"))
        figures = self._figures
        figures.unreadable += [f"{path.name} is gone" for path in set(self._seen) - there]
        for path in sorted(there - set(self._seen)):
            try:
                table = pq.read_table(path, columns=["partition", "offset"])
            except (OSError, pa.ArrowException) as error:
                figures.unreadable.append(f"{path.name}: {error}")
                continue
            places = (
                table["partition"].to_numpy().astype(np.int64) << 48 | table["offset"].to_numpy()
            )
            self._seen[path] = places
        figures.looks += 1
        figures.files = len(there)
        places = self.places()
        figures.doubled = max(figures.doubled, len(places) - len(np.unique(places)))

    def places(self) -> np.ndarray[Any, Any]:
        """Return all rows that were seen, with partition and offset as one number."""
        return np.concatenate([np.zeros(0, np.int64), *self._seen.values()])


def exporter(
    servers: str, root: Path, log: Path, *options: str
) -> AbstractContextManager[subprocess.Popen[bytes]]:
    """Run ``trikafka export`` in its own process group, which is killed at the end."""
    return killed_at_the_end(
        [sys.executable, "-m", "trikafka.cli", "export", TOPIC, str(root), "-b", servers, *options],
        log,
    )


async def run(
    options: Options,
    servers: str,
    brokers: Sequence[Any],
    directory: Path,
    say: Callable[[str], None] = lambda line: None,
) -> Figures:
    """Run on a cluster of these brokers.

    The destination and the exporters' log are created in ``directory``.
    """
    figures = Figures()
    chance = random.Random(options.seed)
    root, log = directory / "out", directory / "exporters.log"
    reader = Reader(root, figures)
    topic = NewTopic(options.partitions, len(brokers), {"retention.ms": "-1"})
    await make_topics(servers, {TOPIC: topic})
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_feed, options, servers, figures)
        nursery.start_soon(_kill_brokers, options, brokers, figures)
        over = trio.Event()
        nursery.start_soon(_look, reader, over)
        while figures.kills < options.kills:
            spark = options.spark_every and figures.kills % options.spark_every == 0
            how = ["--option", "spark_above=0"] if spark else []
            pause = options.pause * (2 if spark else 1)
            with exporter(
                servers, root, log, "--every", "200ms", "--max-records-per-file", "50000", *how
            ) as process:
                await _begun(process, root)
                files = figures.files
                await trio.sleep(chance.uniform(0, pause))
                if figures.kills % 2:
                    await _until(lambda files=files: figures.files > files, process)  # type: ignore[misc]
            figures.kills += 1
            killed = f"{figures.kills} exporters and {figures.broker_kills} brokers killed"
            say(f"{killed}; {figures.fed:,} fed, {figures.files:,} files")
        over.set()
    say("now the rest")
    await _finish(servers, root, log)
    reader.look()
    await _count(options, servers, reader, figures)
    return figures


async def _begun(process: subprocess.Popen[bytes], root: Path) -> None:
    """Wait until the exporter holds the destination's lock.

    A kill while its Python is still starting would prove nothing.
    """
    lock = root / "_trikafka" / "lock"

    def held() -> bool:
        try:
            return lock.read_text().endswith(f":{process.pid}\n")
        except FileNotFoundError:
            return False

    await _until(held, process)


async def _until(true: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    """Wait until this is true or the process has ended, for two minutes at most."""
    with trio.move_on_after(120):
        while process.poll() is None and not true():  # noqa: ASYNC110  (files have no events)
            await trio.sleep(0.02)


async def _feed(options: Options, servers: str, figures: Figures) -> None:
    """Send records at a rate that lasts about as long as the kills do.

    A slow exporter may start after all of that time. So each kill releases a part of the records:
    every exporter has something to do.
    """
    table = pa.table(
        {"value": pa.array([b"%060d" % number for number in range(_ROWS)], pa.binary())}
    )
    rows = min(_ROWS, max(1, options.records // 100))
    pause = options.kills * options.pause * 0.6 / max(1, options.records / rows)
    async with trikafka.open_producer(
        bootstrap_servers=servers, delivery_timeout_ms=600_000
    ) as producer:
        while figures.fed < options.records:
            while figures.fed * options.kills > options.records * (figures.kills + 0.9):  # noqa: ASYNC110
                await trio.sleep(0.05)
            await producer.send_arrow(
                TOPIC, table.slice(0, rows), partition=(figures.fed // rows) % options.partitions
            )
            figures.fed += rows
            await trio.sleep(pause / 2)


async def _kill_brokers(options: Options, brokers: Sequence[Any], figures: Figures) -> None:
    chance = random.Random(options.seed + 1)
    length = options.kills * options.pause * 0.5
    for _ in range(options.broker_kills):
        await trio.sleep(max(1.0, length / options.broker_kills - 4))
        broker = chance.choice(brokers)
        await broker.kill()
        figures.broker_kills += 1
        await trio.sleep(chance.uniform(0.5, 3))
        await broker.start()


async def _look(reader: Reader, over: trio.Event) -> None:
    while not over.is_set():
        await trio.to_thread.run_sync(reader.look)
        with trio.move_on_after(0.2):
            await over.wait()


async def _finish(servers: str, root: Path, log: Path) -> None:
    """Export until a run succeeds without being killed."""
    with trio.fail_after(300):
        for _ in range(20):
            with exporter(servers, root, log, "--json") as process:
                code = await trio.to_thread.run_sync(process.wait, 280)
            if code == 0:
                return
            await trio.sleep(1)
    raise RuntimeError(f"the last export failed again and again; see {log}")


async def _count(options: Options, servers: str, reader: Reader, figures: Figures) -> None:
    """Count the offsets of the log, all of which are data, that the files lack."""
    tps = [TopicPartition(TOPIC, number) for number in range(options.partitions)]
    async with trikafka.open_consumer(bootstrap_servers=servers) as consumer:
        ends = await consumer.end_offsets(tps)
    wanted = np.concatenate(
        [np.int64(tp.partition) << 48 | np.arange(ends[tp], dtype=np.int64) for tp in tps]
    )
    found = reader.places()
    figures.lost = len(np.setdiff1d(wanted, found))
    figures.doubled = max(figures.doubled, len(found) - len(np.unique(found)))
    if sum(ends.values()) != figures.fed or len(np.setdiff1d(found, wanted)):
        figures.unreadable.append(f"{sum(ends.values())} records in the log, {figures.fed} fed")
