"""Kafka to Parquet beside Spark's own connector, in full: ``python -m benchmarks.spark``.

A run takes some minutes. Each configuration has its own topic and a process with one Spark session,
in which all ways take turns. ``--ways`` selects some of them.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import trikafka

from . import parquet
from .jobs import Job
from .kafka import VERSION, Kafka, running_kafka
from .parquet_ways import STEADY
from .plan import PARTITIONS, Setup
from .run import ROOT, run_process

Line = dict[str, Any]
Document = dict[str, Any]
#: Setup -> the number of records.
SETUPS = {Setup(100, "none", 1.0, main=True): 5_000_000, Setup(1000, "lz4", 1.0): 1_000_000}
#: Way -> the way that it is compared with, in the order of the table.
WAYS = {
    "export": "connector",
    "export-zstd": "connector-zstd",
    "threads": "connector",
    "source": "connector",
    "connector": "",
    "connector-zstd": "",
    "export-memory": "connector",
    "source-memory": "connector",
    "source-noop": "connector-noop",
    "connector-noop": "",
    "stream": "connector-stream",
    "connector-stream": "",
    "stream-noop": "connector-stream-noop",
    "connector-stream-noop": "",
}
#: The same with the rates of running streams, each after its way.
_BESIDE = {
    name: beside
    for way, other in WAYS.items()
    for name, beside in ((way, other), (f"{way}{STEADY}", other and f"{other}{STEADY}"))
    if not name.endswith(STEADY) or "stream" in name
}
_BEGIN = "<!-- parquet: begin -->"
_END = "<!-- parquet: end -->"
_LIMIT = 1800.0


def main() -> int:
    given = _parse()
    document = _joined(given.table) if given.table else _measured(given)
    text = table(document)
    print(text)
    if given.docs:
        update(ROOT / "docs" / "benchmarks-spark.md", table(document, whole=False))
    return 0


def _measured(given: argparse.Namespace) -> Document:
    started = datetime.now(UTC)
    began = time.monotonic()
    setups = {
        setup: int(records * given.scale)
        for setup, records in SETUPS.items()
        if _name(setup) in given.setups.split(",")
    }
    found: dict[str, list[Line]] = {}
    with running_kafka() as kafka:
        for setup, records in setups.items():
            topic = _fill(kafka, setup, records)
            work = (kafka.bootstrap, topic, records, given.rounds)
            ways = given.ways.split(",")
            found[_name(setup)] = parquet.measure(*work, _say, ways, _LIMIT, given.micro_batches)
    document = {
        "about": {
            "started": started.isoformat(timespec="seconds"),
            "seconds": round(time.monotonic() - began),
            "cores": os.cpu_count(),
            "python": platform.python_version(),
            "kafka": VERSION,
            "versions": {
                "trikafka": trikafka.__version__,
                **{name: metadata.version(name) for name in ("pyspark", "pyarrow")},
            },
        },
        "setups": found,
    }
    given.out.mkdir(parents=True, exist_ok=True)
    path = given.out / f"spark-{started:%Y%m%d-%H%M%S}.json"
    path.write_text(json.dumps(document, indent=1) + "\n")
    print(path)
    return document


def _joined(paths: list[Path]) -> Document:
    """Return several runs, of some ways each, as one document.

    A way that occurs in several runs is taken from the last of them, with the rate of the way that
    it is compared with in that run.
    """
    documents = [json.loads(path.read_text()) for path in paths]
    setups: dict[str, dict[str, Line]] = {_name(setup): {} for setup in SETUPS}
    for document in documents:
        for name, lines in document["setups"].items():
            rates = _medians(lines)
            setups[name] |= {
                line["way"]: {**line, "beside": rates.get(_BESIDE[line["way"]])} for line in lines
            }
    return {
        "about": documents[-1]["about"],
        "setups": {name: list(lines.values()) for name, lines in setups.items() if lines},
    }


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.spark", description="Kafka to Parquet beside Spark's connector"
    )
    parser.add_argument(
        "--rounds",
        type=int,
        default=5,
        help="interleaved, after one that is not counted (default: 5)",
    )
    parser.add_argument(
        "--ways", default=",".join(WAYS), metavar="WAY,WAY", help=f"some of: {', '.join(WAYS)}"
    )
    parser.add_argument(
        "--setups",
        default=",".join(map(_name, SETUPS)),
        help="some of the sizes and compressions (default: all)",
    )
    parser.add_argument(
        "--scale", type=float, default=1.0, help="a part of the records (default: all)"
    )
    parser.add_argument(
        "--micro-batches",
        type=int,
        default=parquet.MICRO_BATCHES,
        help="of each stream (default: %(default)s)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=ROOT / "benchmarks" / "out",
        metavar="FOLDER",
        help="where the JSON goes",
    )
    parser.add_argument(
        "--table",
        type=Path,
        nargs="+",
        metavar="JSON",
        help="measure nothing: the table of these runs",
    )
    parser.add_argument(
        "--docs", action="store_true", help="put the table into docs/benchmarks-spark.md"
    )
    return parser.parse_args()


def _name(setup: Setup) -> str:
    return f"{setup.size}-{setup.compression}"


def _say(line: str) -> None:
    print(line, flush=True)


def _fill(kafka: Kafka, setup: Setup, records: int) -> str:
    """Return the topic with this number of records, filled if it is not yet."""
    topic = f"{setup.topic}-{records}"
    try:
        if kafka.count(topic) == records:
            return topic
    except trikafka.TrikafkaError:
        kafka.create(topic)
    _say(f"filling {topic}")
    shape = (setup.partitions, setup.size, setup.compression, records)
    answer = run_process(Job("confluent", "fill", "one", kafka.bootstrap, topic, *shape))
    if "seconds" not in answer or kafka.count(topic) != records:
        raise RuntimeError(f"{topic} could not be filled: {answer}")
    return topic


def _medians(lines: list[Line]) -> dict[str, float]:
    return {line["way"]: statistics.median(line["rates"]) for line in lines}


def table(document: Document, *, whole: bool = True) -> str:
    """Return the results as Markdown: medians, each beside the way that it is compared with.

    The ``whole`` table also has the memory, and the ways that show what limits the others: records
    from memory, Spark's format that writes nothing, and Parquet with zstd.
    """
    about = document["about"]
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    lines = [
        f"Run of {about['started'][:10]}: medians of interleaved rounds on {about['cores']} "
        f"cores, Kafka {about['kafka']}, Spark's connector {parquet.CONNECTOR}, {versions}.",
    ]
    for name, found in document["setups"].items():
        rates = _medians(found)
        size, compression = name.split("-")
        lines += [
            "",
            f"**Kafka to Parquet**: {found[0]['records']:,} records of {size} bytes, compression: "
            f"{compression}, {PARTITIONS} partitions, `local[2]`",
            "",
            "| by | call | records/s | spread | times the connector |"
            + (" peak MB: worker | JVM | driver |" if whole else ""),
            "| --- | --- | ---: | ---: | ---: |" + (" ---: | ---: | ---: |" if whole else ""),
        ]
        for line in sorted(found, key=lambda line: list(_BESIDE).index(line["way"])):
            other = line.get("beside", rates.get(_BESIDE[line["way"]]))
            times = "" if other is None else f"{rates[line['way']] / other:.2f}"
            spread = f"{min(line['rates']):,.0f} to {max(line['rates']):,.0f}"
            peaks = [
                f"{line['peaks'][who] / 2**20:.0f}" if who in line["peaks"] else ""
                for who in ("worker", "jvm", "driver")
            ]
            if not whole and (
                "from memory" in line["who"]
                or "to nowhere" in line["call"]
                or "zstd" in line["call"]
            ):
                continue
            cells = [
                line["who"],
                f"`{line['call']}`",
                f"{rates[line['way']]:,.0f}",
                spread,
                times,
                *(peaks if whole else []),
            ]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def update(path: Path, text: str) -> None:
    """Replace the table between its marks."""
    before, rest = path.read_text(encoding="utf-8").split(_BEGIN)
    path.write_text(f"{before}{_BEGIN}\n{text}{_END}{rest.split(_END)[1]}", encoding="utf-8")


if __name__ == "__main__":
    raise SystemExit(main())
