"""A quick run: writing, reading by batch, and Kafka to Parquet beside Spark's own Kafka connector.

It prints medians of interleaved rounds as a table and writes JSON. The full comparison of the
clients is ``python -m benchmarks``, and its parts are used here.
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

from rich.console import Console
from rich.table import Table

import trikafka

from . import parquet, plan
from .kafka import VERSION, running_kafka
from .run import ROOT, Options, Runner

#: (kind, way) -> the most records that each client moves. A slow client moves fewer, so it is not
#: timed for longer than a fast one.
CASES = {
    ("produce", "one"): {"ours": 500_000, "confluent": 500_000, "aio": 80_000},
    ("consume", "batch"): {"ours": 1_000_000, "confluent": 1_000_000, "aio": 500_000},
}
TITLES = {
    "produce/one": "writing, one call a record",
    "consume/batch": "reading, by batch",
    "parquet": "Kafka to Parquet, by Spark",
}

_PACKAGES = ("confluent-kafka", "aiokafka", "pyspark", "pyarrow")

Line = dict[str, Any]


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="smoke.py",
        description="a quick look at the rates, beside other clients, on one real broker",
    )
    parser.add_argument(
        "--rounds", type=int, default=3, help="of everything, interleaved (default: 3)"
    )
    parser.add_argument(
        "--records",
        type=int,
        default=1_000_000,
        metavar="N",
        help="the most that a case moves (default: 1,000,000)",
    )
    parser.add_argument(
        "--limit",
        type=float,
        default=150,
        help="begin no round of the clients that would end later (seconds)",
    )
    parser.add_argument(
        "--no-spark", dest="spark", action="store_false", help="leave out Kafka to Parquet"
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=ROOT / "benchmarks" / "out",
        metavar="FOLDER",
        help="where the JSON goes",
    )
    given = parser.parse_args()
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 120
    started = datetime.now(UTC)
    began = time.monotonic()
    lines, failed = measure(given, console)
    found = {
        "about": {
            "started": started.isoformat(timespec="seconds"),
            "seconds": round(time.monotonic() - began, 1),
            "cores": os.cpu_count(),
            "python": platform.python_version(),
            "kafka": VERSION,
            "versions": {
                "trikafka": trikafka.__version__,
                **{name: metadata.version(name) for name in _PACKAGES},
            },
        },
        "records": given.records,
        "rounds": given.rounds,
        "cases": lines,
        "failed": failed,
    }
    show(lines, console)
    for name, why in failed.items():
        console.print(f"failed: {name}: {why}", markup=False)
    given.out.mkdir(parents=True, exist_ok=True)
    path = given.out / f"smoke-{started:%Y%m%d-%H%M%S}.json"
    path.write_text(json.dumps(found, indent=1) + "\n")
    console.print(f"{path} after {time.monotonic() - began:.0f} s", markup=False)
    return 1 if failed else 0


def measure(given: argparse.Namespace, console: Console) -> tuple[list[Line], dict[str, str]]:
    """Run every case in every round. The second result has the cases that were not measured."""
    setup = plan.SETUPS[0]
    cases = [
        plan.Case(kind, way, peer, setup, min(records, given.records))
        for (kind, way), peers in CASES.items()
        for peer, records in peers.items()
    ]

    def tell(line: str) -> None:
        console.print(line, markup=False)

    tell("starting the broker")
    with running_kafka() as kafka:
        runner = Runner(kafka, cases, Options(given.rounds, given.limit), tell)
        findings = runner.run()
        lines = [
            {
                "what": f"{case.kind}/{case.way}",
                "who": plan.PEERS[case.peer],
                "call": runs[-1]["call"],
                "records": runs[-1]["records"],
                "rates": [run["records"] / run["seconds"] for run in runs],
            }
            for case, runs in findings.runs.items()
        ]
        failed = {**findings.missing, **findings.failed}
        if given.spark:
            topic = setup.topic
            records = kafka.count(setup.topic)
            try:
                lines += parquet.measure(kafka.bootstrap, topic, records, given.rounds, tell)
            except parquet.NotMeasured as error:
                failed["parquet"] = str(error)
    return lines, failed


def show(lines: list[Line], console: Console) -> None:
    """Print the table: medians, spreads, and the ratio of trikafka to each peer."""
    table = Table("what", "by", "call")
    for head in ("records", "records/s", "spread", "trikafka is"):
        table.add_column(head, justify="right")
    ours = {
        line["what"]: statistics.median(line["rates"])
        for line in reversed(lines)
        if line["who"] == "trikafka"
    }
    for line in sorted(lines, key=lambda line: list(TITLES).index(line["what"])):
        median = statistics.median(line["rates"])
        ratio = (
            f"{ours[line['what']] / median:.2f} x"
            if line["who"] != "trikafka" and line["what"] in ours
            else ""
        )
        spread = f"{min(line['rates']):,.0f} to {max(line['rates']):,.0f}"
        table.add_row(
            TITLES[line["what"]],
            line["who"],
            line["call"],
            f"{line['records']:,}",
            f"{median:,.0f}",
            spread,
            ratio,
        )
    console.print(table)
