"""The steps of the demo, in order.

Flights are written to Kafka, read by a group, exported to Parquet three times, and read back by
Spark. Each step is compared with the source.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import trio
from trikafka_broker import Cluster

import trikafka

from . import chart, exporting, reading, running, source, writing
from .display import Screen, Step
from .source import Flights
from .writing import Log


class OutputInUseError(Exception):
    """Another demo writes to the same folder."""


@dataclass(frozen=True)
class Options:
    """The options of the demo.

    Attributes:
        output: The folder for the Parquet files and the chart.
        limit: The number of flights; ``None`` for all.
        more: The number of flights to add before the last export.
        partitions: The number of partitions of the topic.
        servers: The brokers to use; ``None`` starts one.
        topic: The topic to create.
        group: The group of the two consumers.
        export_group: The group of the exports.
    """

    output: Path
    limit: int | None = None
    more: int = 1_000
    partitions: int = 6
    servers: str | None = None
    topic: str = "flights"
    group: str = "flights-readers"
    export_group: str = "flights-export"


async def run(options: Options, screen: Screen) -> None:
    """Run the demo and record every comparison on the screen.

    On cancellation no process is left.

    Raises:
        OutputInUseError: Another demo writes to the same place.
    """
    with _ours(options.output):
        await _run(options, screen)


async def _run(options: Options, screen: Screen) -> None:
    parquet = options.output / "flights"
    await trio.to_thread.run_sync(_clean, options.output, parquet)
    async with _flights_and_broker(options, screen) as (flights, servers):
        async with trikafka.open_admin(bootstrap_servers=servers) as admin:
            # The flights are of 2013: with any other retention the broker would delete them as soon
            # as it looks.
            topic = trikafka.NewTopic(options.partitions, 1, {"retention.ms": -1})
            await admin.create_topics({options.topic: topic})
        log = Log(options.topic, options.partitions)
        await _write(servers, flights, log, screen)
        await _read(servers, options.group, flights, log, screen)
        await _export(servers, options, parquet, log, screen)
        more = flights.first(options.more)
        with screen.step(f"{len(more):,} more flights", len(more)) as step:
            await writing.write(servers, more, log, step.at)
        await _export_more(servers, options, parquet, log, len(more), screen)
    await _read_back(options.output, parquet, flights.then(more), log, screen)


@contextmanager
def _ours(output: Path) -> Iterator[None]:
    """Lock the folder, so that no other demo removes the files of this one.

    The lock ends with the process at the latest.
    """
    output.mkdir(parents=True, exist_ok=True)
    folder = os.open(output, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise OutputInUseError(
            f"another demo is writing to {output}: wait for its end, or give this one a place of "
            "its own, as in make demo ARGS='--output other'"
        ) from None
    finally:
        os.close(folder)


def _clean(output: Path, parquet: Path) -> None:
    """Remove the files of an earlier demo.

    Its Kafka no longer exists, so nothing can be added to its export.
    """
    shutil.rmtree(parquet, ignore_errors=True)
    (output / "flights.png").unlink(missing_ok=True)


@asynccontextmanager
async def _flights_and_broker(
    options: Options, screen: Screen
) -> AsyncIterator[tuple[Flights, str]]:
    """Load the flights while Kafka starts."""
    flights = list[Flights]()
    async with AsyncExitStack() as stack:
        servers = options.servers or ""
        async with trio.open_nursery() as nursery:

            async def load() -> None:
                flights.append(await _load(options, screen))

            nursery.start_soon(load)
            if not servers:
                with screen.step("Kafka starts") as step:
                    cluster = Cluster.open(
                        progress=lambda line: trio.from_thread.run_sync(step.at, 0, line)
                    )
                    servers = (await stack.enter_async_context(cluster)).bootstrap_servers
        yield flights[0], servers


async def _load(options: Options, screen: Screen) -> Flights:
    with screen.step("flights made into JSON", options.limit or 336_776) as step:

        def tell(done: int) -> None:
            trio.from_thread.check_cancelled()
            trio.from_thread.run_sync(step.at, done)

        return await trio.to_thread.run_sync(source.load, options.limit, tell)


async def _write(servers: str, flights: Flights, log: Log, screen: Screen) -> None:
    with screen.step("written by our producer", len(flights)) as step:
        await writing.write(servers, flights, log, step.at)
    screen.check("records with a known offset", len(flights), len(log.places))
    screen.check("offsets of a partition out of turn", 0, log.refused)
    async with trikafka.open_consumer(bootstrap_servers=servers) as consumer:
        ends = await consumer.end_offsets(log.ends())
    screen.check("records in the topic, as the broker says", len(flights), sum(ends.values()))


async def _read(servers: str, group: str, flights: Flights, log: Log, screen: Screen) -> None:
    with screen.step("read by a group of two, one leaves half way", len(flights)) as step:
        tally = await reading.read_with_two(servers, group, flights, log, step.at)
    screen.check("records read", len(flights), tally.read)
    screen.check("records read twice", 0, tally.doubled)
    screen.check("records unlike what was written", 0, tally.different)
    carriers = dict(Counter(key.decode() for key in flights.keys))
    screen.check(
        "flights of each carrier", carriers, dict(tally.carriers), f"{len(carriers)} carriers"
    )
    screen.check(
        "offsets the group has committed: the ends",
        log.ends(),
        tally.committed,
        f"{len(log.ends())} partitions",
    )
    screen.check("both have read, the second went on for the first", True, tally.shared)
    screen.say(
        f"  the first consumer read {tally.by_member['first']:,} and left; the second read "
        f"{tally.by_member['second']:,}, {tally.taken_over:,} of them from partitions of the first"
    )


async def _export(servers: str, options: Options, parquet: Path, log: Log, screen: Screen) -> None:
    with screen.step("trikafka export, by Spark to Parquet", len(log.places)) as step:
        await _command(servers, options, parquet, step, by_spark=True)
        step.done = len(log.places)
    before = exporting.files_of(parquet)
    found = await trio.to_thread.run_sync(exporting.places_in, parquet, _data(before))
    screen.check("rows exported are the records written", True, found == sorted(log.places))
    with screen.step("trikafka export again") as step:
        said = await _command(servers, options, parquet, step)
    screen.check(
        "files changed by exporting again", [], _changed(before, exporting.files_of(parquet))
    )
    screen.say(f"  it said: {said.strip().splitlines()[-1] if said.strip() else 'nothing'}")


async def _export_more(
    servers: str, options: Options, parquet: Path, log: Log, count: int, screen: Screen
) -> None:
    before = exporting.files_of(parquet)
    with screen.step("trikafka export of what is new, in threads", count) as step:
        await _command(servers, options, parquet, step)
        step.done = count
    after = exporting.files_of(parquet)
    found = await trio.to_thread.run_sync(
        exporting.places_in, parquet, _data(after) - _data(before)
    )
    screen.check("rows of the new files", count, len(found))
    screen.check("they are the records that were added", True, found == sorted(log.places[-count:]))
    screen.check(
        "older files changed", [], [name for name in before if before[name] != after.get(name)]
    )


async def _read_back(
    output: Path, parquet: Path, flights: Flights, log: Log, screen: Screen
) -> None:
    with screen.step("read back and compared by Spark", len(flights)) as step:
        with tempfile.TemporaryDirectory(
            prefix="flights-spark-", ignore_cleanup_errors=True
        ) as temporary:
            expected = Path(temporary, "expected.parquet")
            await trio.to_thread.run_sync(_write_expected, expected, flights, log)
            job = [
                sys.executable,
                str(Path(__file__).with_name("spark_job.py")),
                str(parquet),
                str(expected),
                temporary,
            ]
            said = await running.run_program(
                job, lambda line: step.at(0, line) if line.startswith("Spark") else None
            )
        found = json.loads(said.strip().splitlines()[-1])
        step.at(len(flights))
    screen.check("rows in Parquet", len(flights), found["rows"] - found["missing"])
    screen.check("partitions and offsets of them", len(flights), found["places"])
    for what in ("missing", "unexpected", "different"):
        screen.check(f"rows {what}, record by record", 0, found[what])
    ours = _delays(flights)
    theirs = [tuple(row) for row in found["delays"]]
    screen.check("carriers and hours", len(ours), len(theirs))
    screen.check("flights and delays of each carrier and hour", True, ours == theirs)
    for what, column in (
        ("flights", 2),
        ("minutes of delay at departure", 4),
        ("minutes of delay at arrival", 5),
    ):
        expected_sum, found_sum = (sum(row[column] or 0 for row in rows) for rows in (ours, theirs))
        screen.check(f"{what}, all together", expected_sum, found_sum)
    picture = output / "flights.png"
    with screen.step("chart"):
        await trio.to_thread.run_sync(chart.draw, theirs, source.carriers(), picture)
    screen.say(f"  {picture}")


def _write_expected(path: Path, flights: Flights, log: Log) -> None:
    partitions, offsets = zip(*log.places, strict=True)
    columns = {
        "partition": pa.array(partitions, pa.int32()),
        "offset": pa.array(offsets, pa.int64()),
        "key": pa.array(flights.keys, pa.binary()),
        "value": pa.array(flights.values, pa.binary()),
        "timestamp": pa.array(flights.timestamps, pa.int64()),
    }
    pq.write_table(pa.table(columns), path)


def _delays(flights: Flights) -> list[tuple[Any, ...]]:
    """Return the same as ``spark_job.delays``, from the source and by Arrow."""
    table = flights.table.select(["carrier", "hour", "dep_delay", "arr_delay"])
    wanted = [([], "count_all"), ("dep_delay", "count"), ("dep_delay", "sum"), ("arr_delay", "sum")]
    rows = (
        table.group_by(["carrier", "hour"])
        .aggregate(wanted)
        .sort_by([("carrier", "ascending"), ("hour", "ascending")])
    )
    names = ["carrier", "hour", "count_all", "dep_delay_count", "dep_delay_sum", "arr_delay_sum"]
    return [tuple(row[name] for name in names) for row in rows.to_pylist()]


async def _command(
    servers: str, options: Options, parquet: Path, step: Step, *, by_spark: bool = False
) -> str:
    """Run the export, and show meanwhile how the directory grows."""
    async with trio.open_nursery() as nursery:

        async def watch() -> None:
            while True:
                files = await trio.to_thread.run_sync(exporting.files_of, parquet)
                size = sum(
                    size
                    for name, (size, _) in files.items()
                    if name.endswith((".parquet", ".partial"))
                )
                step.at(0, f"{len(_data(files))} files, {size:,} bytes there")
                await trio.sleep(0.5)

        nursery.start_soon(watch)
        said = await exporting.export(
            servers, options.topic, options.export_group, parquet, by_spark=by_spark
        )
        nursery.cancel_scope.cancel()
    return said


def _data(files: dict[str, tuple[int, int]]) -> set[str]:
    return {name for name in files if name.endswith(".parquet")}


def _changed(before: dict[str, tuple[int, int]], after: dict[str, tuple[int, int]]) -> list[str]:
    return sorted(
        name for name in before.keys() | after.keys() if before.get(name) != after.get(name)
    )
