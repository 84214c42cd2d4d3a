"""The ways from Kafka to Parquet, in the measured process.

``python -m benchmarks.parquet_ways JOB`` prints the measurements. Memory is the highest resident
set of each process below this process. The figure is reset before every turn.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

from .parquet_streams import Moved, run_stream
from .plan import PARTITIONS

#: The suffix of a stream's way for its rate from the second micro-batch on.
STEADY = "-steady"


@dataclass(frozen=True)
class Way:
    """A way from Kafka to Parquet. ``run(folder)`` moves the records."""

    name: str
    who: str
    call: str
    run: Callable[[str], Moved]


def main() -> None:
    job = json.loads(sys.argv[1])
    spark = _session(job)
    ways = [
        way
        for way in (*_ours(job), *_sparks(spark, job), *_streams(spark, job))
        if way.name in job["ways"]
    ]
    found = {way.name: _Found() for way in ways}
    with tempfile.TemporaryDirectory(prefix="trikafka-bench-") as folder:
        for number in range(job["rounds"] + 1):
            for way in ways[number % len(ways) :] + ways[: number % len(ways)]:
                one = _Found() if number == 0 else found[way.name]
                _turn(way, job["records"], f"{folder}/{number}-{way.name}", one)
    print(
        json.dumps([line for way in ways for line in _lines(way, found[way.name], job["records"])])
    )
    spark.stop()


@dataclass
class _Found:
    """Records per second of each turn and of running streams, and the highest memory."""

    rates: list[float] = field(default_factory=list)
    steady: list[float] = field(default_factory=list)
    peaks: dict[str, int] = field(default_factory=dict)


def _turn(way: Way, records: int, target: str, found: _Found) -> None:
    Path(target).mkdir()
    _forget_peaks()
    began = time.perf_counter()
    moved = way.run(f"{target}/data")
    seconds = time.perf_counter() - began
    rows = _rows(f"{target}/data") if moved.rows is None else moved.rows
    if rows != records:
        raise RuntimeError(f"{way.who} moved {rows} of {records} records")
    found.rates.append(records / seconds)
    if moved.steady is not None:
        found.steady.append(moved.steady)
    for who, peak in _peaks().items():
        found.peaks[who] = max(peak, found.peaks.get(who, 0))
    shutil.rmtree(target)


def _lines(way: Way, found: _Found, records: int) -> Iterator[dict[str, Any]]:
    line = {
        "what": "parquet",
        "way": way.name,
        "who": way.who,
        "call": way.call,
        "records": records,
        "peaks": found.peaks,
    }
    yield {**line, "rates": found.rates}
    if found.steady:
        yield {
            **line,
            "way": f"{way.name}{STEADY}",
            "call": f"{way.call}, running",
            "rates": found.steady,
        }


def _session(job: dict[str, Any]) -> Any:
    from pyspark.sql import SparkSession

    logging = Path(_folder_of("trikafka_spark"), "quiet-log4j2.properties").as_uri()
    return (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.extraJavaOptions", f"-Dlog4j2.configurationFile={logging}")
        .config("spark.jars", ",".join(job["jars"]))
        .getOrCreate()
    )


def _ours(job: dict[str, Any]) -> Iterator[Way]:
    import trio

    import trikafka

    def export(**options: object) -> Callable[[str], Moved]:
        async def run(target: str) -> Moved:
            await trikafka.export(
                job["topic"], target, bootstrap_servers=job["bootstrap"], sink_options=options
            )
            return Moved()

        return lambda target: trio.run(run, target)

    def from_memory(target: str) -> Moved:
        """Run the whole export with tasks that have another reader."""
        from .parquet_memory import run_unit

        # Spark pickles the function by name, so this one takes the place of the other.
        with patch("trikafka_spark.spark_job.run_unit", run_unit):
            return export(spark_above=0, compression="snappy")(target)

    yield Way(
        "export", "trikafka", "export() by Spark", export(spark_above=0, compression="snappy")
    )
    yield Way("export-zstd", "trikafka", "export() by Spark, zstd", export(spark_above=0))
    yield Way("export-memory", "trikafka, from memory", "export() by Spark", from_memory)
    yield Way(
        "threads",
        "trikafka without Spark",
        "export() in threads",
        export(spark_above="never", compression="snappy"),
    )


def _sparks(spark: Any, job: dict[str, Any]) -> Iterator[Way]:
    from .parquet_memory import MemorySource

    def write(source: str, codec: str = "snappy") -> Callable[[str], Moved]:
        def run(target: str) -> Moved:
            spark.read.format(source).options(**_options(job)).load().write.option(
                "compression", codec
            ).parquet(target)
            return Moved()

        return run

    def noop(source: str) -> Callable[[str], Moved]:
        def run(target: str) -> Moved:
            spark.read.format(source).options(**_options(job)).load().write.format("noop").mode(
                "overwrite"
            ).save()
            return Moved(job["records"])

        return run

    def memory(target: str) -> Moved:
        spark.read.format("memory").options(**given).load().write.parquet(target)
        return Moved()

    spark.dataSource.register(MemorySource)
    given = {
        "bootstrap": job["bootstrap"],
        "topic": job["topic"],
        "each": job["records"] // PARTITIONS,
        "partitions": PARTITIONS,
    }
    yield Way("source", "trikafka's data source", 'format("trikafka")', write("trikafka"))
    yield Way("source-memory", "trikafka's data source, from memory", "its Arrow batches", memory)
    yield Way("connector", "Spark's connector", 'format("kafka")', write("kafka"))
    yield Way(
        "connector-zstd", "Spark's connector", 'format("kafka"), zstd', write("kafka", "zstd")
    )
    yield Way(
        "source-noop", "trikafka's data source", 'format("trikafka"), to nowhere', noop("trikafka")
    )
    yield Way("connector-noop", "Spark's connector", 'format("kafka"), to nowhere', noop("kafka"))


def _streams(spark: Any, job: dict[str, Any]) -> Iterator[Way]:
    def stream(source: str, *, parquet: bool) -> Callable[[str], Moved]:
        return lambda target: run_stream(spark, source, options, target, parquet=parquet)

    most = -(-job["records"] // job["micro_batches"])
    options = {**_options(job), "startingOffsets": "earliest", "maxOffsetsPerTrigger": str(most)}
    for source, who in (("trikafka", "trikafka's stream"), ("kafka", "Spark's connector's stream")):
        name = "stream" if source == "trikafka" else "connector-stream"
        yield Way(name, who, f'format("{source}"), availableNow', stream(source, parquet=True))
        yield Way(
            f"{name}-noop",
            who,
            f'format("{source}"), availableNow, to nowhere',
            stream(source, parquet=False),
        )


def _options(job: dict[str, Any]) -> dict[str, str]:
    return {
        "kafka.bootstrap.servers": job["bootstrap"],
        "subscribe": job["topic"],
        "includeHeaders": "true",
    }


def _rows(target: str) -> int:
    import pyarrow.parquet as pq

    return sum(pq.read_metadata(file).num_rows for file in Path(target).glob("*.parquet"))


def _folder_of(package: str) -> str:
    spec = importlib.util.find_spec(package)
    return next(iter((spec.submodule_search_locations if spec else None) or ["."]))


# --- memory, on Linux ---


def _processes() -> dict[int, str]:
    """Return this process and those below it: number -> kind."""
    parents, names = {}, {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            fields = entry.joinpath("stat").read_text().rpartition(")")[2].split()
            name = entry.joinpath("comm").read_text().strip()
        except OSError:  # it has ended
            continue
        parents[int(entry.name)] = int(fields[1])
        names[int(entry.name)] = name
    me = int(Path("/proc/self").resolve().name)
    found = {me: "driver"}
    for number in sorted(parents):
        above = number
        while above in parents and above != me:
            above = parents[above]
        if above == me and number != me:
            found[number] = "jvm" if names[number].startswith("java") else "worker"
    return found


def _forget_peaks() -> None:
    for number in _processes():
        try:
            Path(f"/proc/{number}/clear_refs").write_text("5")
        except OSError:
            continue


def _peaks() -> dict[str, int]:
    """Return the highest resident set (bytes) of each kind of process."""
    found: dict[str, int] = {}
    for number, kind in _processes().items():
        try:
            lines = Path(f"/proc/{number}/status").read_text().splitlines()
        except OSError:
            continue
        peak = next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), 0)
        found[kind] = max(peak, found.get(kind, 0))
    return found


if __name__ == "__main__":
    main()
