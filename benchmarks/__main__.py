"""The command ``python -m benchmarks`` (``make bench``): one run with tables, JSON and chart."""

from __future__ import annotations

import argparse
import json
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console

from . import chart, plan, report, results
from .kafka import running_kafka
from .run import ROOT, Findings, Options, Runner

OUT = ROOT / "benchmarks" / "out"
DOCS = ROOT / "docs"
_QUICK_CAP = 2_000
#: The width of the tables without a terminal.
_WIDTH = 140


def main() -> int:
    options = _parse()
    console = Console()
    if not console.is_terminal:
        console.width = _WIDTH
    cases = _choose(options)
    if not cases:
        console.print("Error: no case is called like that", highlight=False)
        return 2
    started = datetime.now(UTC)
    began = time.monotonic()
    findings = _run(
        cases,
        Options(1 if options.quick else options.rounds, options.limit),
        console,
        quick=options.quick,
    )
    found = results.document(
        findings,
        seconds=time.monotonic() - began,
        started=started.isoformat(timespec="seconds"),
        quick=options.quick,
    )
    report.show(found, console)
    partial = options.quick or options.only or options.records is not None
    path = _write(
        found, Path(options.out), "quick" if options.quick else started.strftime("%Y%m%d-%H%M%S")
    )
    console.print(f"\n{path}", highlight=False)
    if not partial and options.docs and not findings.failed:
        chart.draw(found, DOCS / "benchmarks.png")
        chart.update(found, DOCS)
        console.print(
            f"docs/benchmarks.png and the tables in {', '.join(chart.PAGES)} are of this run now",
            highlight=False,
        )
    return 1 if findings.failed else 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description="trikafka beside other clients, on one real broker"
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="a look at whether everything works: tiny sizes, one round",
    )
    parser.add_argument(
        "--rounds",
        type=int,
        default=5,
        help="every second one of the main setup and the slow cases (default: 5)",
    )
    parser.add_argument(
        "--limit",
        type=float,
        default=1620,
        help="begin no round that would end later, in seconds (default: 1620)",
    )
    parser.add_argument(
        "--records", type=int, metavar="N", help="move no more than N records in a case"
    )
    parser.add_argument(
        "--only",
        metavar="TEXT",
        help="only cases =KIND/WAY/SIZE/COMPRESSION/PEER= with one of TEXT,TEXT in them",
    )
    parser.add_argument(
        "--out",
        default=str(OUT),
        metavar="FOLDER",
        help="where the JSON goes (default: benchmarks/out)",
    )
    parser.add_argument("--no-docs", dest="docs", action="store_false", help="leave docs/ as it is")
    return parser.parse_args()


def _choose(options: argparse.Namespace) -> list[plan.Case]:
    cap = options.records or (_QUICK_CAP if options.quick else None)
    cases = plan.all_cases(cap=cap, quick=options.quick)
    if options.only:
        wanted = options.only.split(",")
        cases = [case for case in cases if any(text in f"={case.name}=" for text in wanted)]
    return cases


def _run(cases: list[plan.Case], options: Options, console: Console, *, quick: bool) -> Findings:
    with console.status("starting the broker") as status:

        def tell(line: str) -> None:
            if console.is_terminal:
                status.update(line)
            else:
                console.print(line, highlight=False)

        with running_kafka(quick=quick) as kafka:
            return Runner(kafka, cases, options, tell).run()


def _write(found: dict[str, Any], folder: Path, name: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    path.write_text(json.dumps(found, indent=1) + "\n")
    return path


if __name__ == "__main__":
    sys.exit(main())
