"""The benchmarks at small size: each kind of case and peer against a real broker."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import trio

from benchmarks import plan
from benchmarks.chart import PAGES, markdown

ROOT = Path(__file__).resolve().parent.parent.parent
#: The ways of ours that are tried, of kinds with several. mypy checks that the others fit the API.
WAYS = {
    "consume": ("arrow", "one"),
    "produce": ("arrow", "one"),
    "streams": ("together",),
    "latency": ("acks",),
    "group": ("cooperative",),
    "process": ("one",),
    "share": ("block",),
    "assigned": ("1", "2000"),
    "many": ("1",),
}
#: Each port once in each of the two clients with TLS and SASL; the way in depends on nothing else.
SECURED = {
    ("connect", "TLS+SCRAM"),
    ("latency", "sessions"),
    ("consume/arrow/ours", "TLS"),
    ("consume/batch/confluent", "TLS"),
}


ALL = [case for case in plan.all_cases(cap=2_000, quick=True) if case.setup.main]
FIRST = {(case.kind, case.peer): case for case in reversed(ALL)}


def like_another(case: plan.Case) -> bool:
    """Return whether the case is left out, because it shows little that another case does not.

    One case of each kind and peer is enough here; ``make bench ARGS=--quick`` has all of them. It
    also has franz-go, whose program takes more than a minute of a processor to compile, and more of
    Java, which starts a virtual machine for each case.
    """
    if case.peer == "franz" or (case.peer == "java" and case.kind != "consume"):
        return True
    if case.port != plan.PLAIN:
        return (
            not {(case.kind, case.port), (f"{case.kind}/{case.way}/{case.peer}", case.port)}
            & SECURED
        )
    if case.peer != "ours":
        return case is not FIRST[case.kind, case.peer]
    return case.way not in WAYS.get(case.kind, ())


CASES = {case.name: case for case in ALL if not like_another(case)}
FIGURES = {
    "seconds",
    "records_per_second",
    "mb_per_second",
    "cpu_per_million",
    "idle_mb",
    "peak_mb",
}
MORE_FIGURES = {
    "latency": {"p50_ms", "p99_ms", "max_ms"},
    "assigned": {"idle_cpu_percent", "assigned_mb", "idle_bytes_per_second"},
    "group": {"join_ms", "hand_over_ms", "standstill_ms"},
    "connect": {"p50_ms", "p99_ms", "max_ms", "cpu_ms"},
}
#: Numbers of trikafka's cases that run at full speed in one task.
WATCHED = {
    *(("consume", way) for way in ("arrow", "batch", "one")),
    *(("produce", way) for way in ("arrow", "tables", "one")),
}
#: Numbers of trikafka's connections whose sessions have ended, which a quick run may be too short for.
RENEWALS = {"renewals", "renewal_ms"}
#: These may be nothing at all in a quick run: a processor's clock ticks, and one connection may be
#: silent for a moment.
MAY_BE_NOTHING = {
    "cpu_per_million",
    "idle_cpu_percent",
    "idle_bytes_per_second",
    "longest_gap_ms",
    "cpu_ms",
}


def figures_of(case: dict[str, Any]) -> set[str]:
    watched = case["peer"] == "trikafka" and (case["kind"], case["way"]) in WATCHED
    return (
        FIGURES | MORE_FIGURES.get(case["kind"], set()) | ({"longest_gap_ms"} if watched else set())
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    folder = tmp_path_factory.mktemp("bench")
    only = ",".join(f"={name}=" for name in CASES)
    command = [sys.executable, "-m", "benchmarks", "--quick", "--only", only, "--out", str(folder)]
    # Nothing is measured here, so Java's peers start quickly instead of running fast.
    quick = os.environ | {"JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=1_800, env=quick
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads((folder / "quick.json").read_text()), folder / "quick.json"


async def test_every_case_is_measured_and_checked(run: tuple[dict[str, Any], Path]) -> None:
    found, _ = run
    assert found["schema"] == 2
    assert found["failed"] == {}
    assert found["about"]["quick"] is True
    assert found["about"]["rounds"] == 1
    # Compilers for Java and C depend on the machine.
    missing = found["missing"]
    assert all(name.endswith(("/java", "/librdkafka")) for name in missing), missing
    measured = {case["name"]: case["peer"] for case in found["cases"]}
    assert measured == {
        name: plan.PEERS[case.peer] for name, case in CASES.items() if name not in missing
    }
    for case in found["cases"]:
        assert set(case["median"]) - RENEWALS == figures_of(case), case["name"]
        assert [set(each) - {"round", "turn"} for each in case["rounds"]] == [set(case["median"])]
        assert all(
            value > 0 for name, value in case["median"].items() if name not in MAY_BE_NOTHING
        ), case
        assert case["spread"] == [case["median"]["records_per_second"]] * 2
        assert case["records"] >= max(1, CASES[case["name"]].records)
        assert case["call"]
        assert case["settings"] or case["kind"] == "connect"


async def test_aims_are_ratios_of_the_measurements(run: tuple[dict[str, Any], Path]) -> None:
    found, _ = run
    lines = {case["name"]: case["median"] for case in found["cases"]}
    aims = {aim["aim"]: aim for aim in found["aims"]}
    assert len(aims) == 48
    ratio = aims["Arrow consume / raw limit"]
    ours, raw = (
        lines[f"consume/{name}"]["records_per_second"]
        for name in ("arrow/100/none/ours", "raw/100/none/raw")
    )
    assert ratio["value"] == pytest.approx(ours / raw)
    assert ratio["met"] is (ratio["value"] >= ratio["least"])
    less_is_more = aims["CPU a record: with 1 partition assigned / with 2,000"]
    one, many = (
        lines[f"assigned/{count}/100/none/ours"]["cpu_per_million"] for count in (1, 2_000)
    )
    assert less_is_more["value"] == pytest.approx(one / many)
    unmeasured = aims["Arrow consume / the best peer, 1,000 bytes"]
    assert (unmeasured["value"], unmeasured["met"]) == (None, None)
    over_tls = aims["Arrow consume / confluent-kafka consume() over TLS"]
    names = ("arrow/100/none/ours", "batch/100/none/confluent")
    ours, theirs = (lines[f"consume/{name}/TLS"]["records_per_second"] for name in names)
    assert over_tls["value"] == pytest.approx(ours / theirs)
    gap = aims[
        "no gap of the loop over 50 ms at full speed over TLS: room left in the worst case of all"
    ]
    gaps = [line["longest_gap_ms"] for name, line in lines.items() if name.endswith("ours/TLS")]
    assert gap["value"] == pytest.approx(50 - max(gaps))
    memory = next(aim for name, aim in aims.items() if name.startswith("memory"))
    assert memory["unit"] == "MB"
    assert memory["value"] is not None


async def test_chart_and_tables_are_made_from_the_json(
    run: tuple[dict[str, Any], Path], tmp_path: Path
) -> None:
    _, document = run
    picture = tmp_path / "chart.png"
    for name in PAGES:
        marks = "above\n<!-- results: begin -->\nold\n<!-- results: end -->\nbelow\n"
        (tmp_path / name).write_text(marks)
    command = [
        sys.executable,
        str(ROOT / "benchmarks" / "chart.py"),
        str(document),
        str(picture),
        "--update",
        str(tmp_path),
    ]
    await trio.run_process(command)
    assert picture.read_bytes().startswith(b"\x89PNG")
    rates, groups, tls = ((tmp_path / name).read_text() for name in PAGES)
    for text in (rates, groups, tls):
        assert text.startswith("above\n<!-- results: begin -->\n")
        assert text.endswith("<!-- results: end -->\nbelow\n")
        assert "old" not in text
    assert "| raw limit | `fetch and CRC` |" in rates
    assert "| Arrow consume / confluent-kafka consume() | " in rates
    assert "| trikafka | `assign(), async for` | 2000 |" in groups
    assert "| aiokafka | `topics, async for` | eager |" in groups
    found = json.loads(document.read_text())
    whole = markdown(found)
    tables = re.findall(r"^\*\*.*", whole, re.MULTILINE)
    pages = [re.findall(r"^\*\*.*", text, re.MULTILINE) for text in (rates, groups, tls)]
    assert sorted(tables) == sorted(title for page in pages for title in page)
    for text, times in ((rates, 1), (groups, 0), (tls, 1)):
        assert text.count("| trikafka | `arrow_batches()` |") == times


async def test_rounds_take_turns_with_the_cases() -> None:
    """A round has the slow cases or the other setups; a single round has all cases."""
    cases = plan.all_cases()
    odd, even = plan.order_of_round(cases, 1, slow=False), plan.order_of_round(cases, 2, main=True)
    assert {case.kind for case in odd} == {"consume", "produce", "streams", "latency", "process"}
    assert {case.kind for case in even} >= {"assigned", "group", "many", "connect"}
    assert all(case.setup.main for case in even)
    assert set(odd) | set(even) == set(plan.order_of_round(cases, 1)) == set(cases)


async def test_values_are_made_before_the_clock_starts() -> None:
    for file in (ROOT / "benchmarks" / "peers").glob("*.py"):
        windows = [
            node
            for node in ast.walk(ast.parse(file.read_text()))
            if isinstance(node, ast.With | ast.AsyncWith)
        ]
        for node in windows:
            if any(
                ast.unparse(item.context_expr) in ("Window()", "watched()") for item in node.items
            ):
                assert not any("job.values()" in ast.unparse(line) for line in node.body), (
                    f"{file.name}, line {node.lineno}"
                )


async def test_docs_have_a_place_for_the_results() -> None:
    for name in PAGES:
        text = (ROOT / "docs" / name).read_text()
        assert text.count("<!-- results: begin -->") == text.count("<!-- results: end -->") == 1
