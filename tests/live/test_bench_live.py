"""The benchmarks, small: a few cases of each kind through real processes and a real broker, and the shape of what comes out."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import trio

ROOT = Path(__file__).resolve().parent.parent.parent
CASES = {
    "consume/raw/100/none/raw": "raw limit",
    "consume/arrow/100/none/ours": "trikafka",
    "consume/batch/100/none/confluent": "confluent-kafka",
    "produce/one/100/none/ours": "trikafka",
    "produce/concurrent/100/none/aio": "aiokafka",
    "latency/one/100/none/ours": "trikafka",
}
FIGURES = {"seconds", "records_per_second", "mb_per_second", "cpu_per_million", "idle_mb", "peak_mb"}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    folder = tmp_path_factory.mktemp("bench")
    command = [sys.executable, "-m", "benchmarks", "--quick", "--only", ",".join(CASES), "--out", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads((folder / "quick.json").read_text()), folder / "quick.json"


async def test_every_case_is_measured_and_checked(run: tuple[dict[str, Any], Path]) -> None:
    found, _ = run
    assert found["schema"] == 1
    assert found["failed"] == {}
    assert found["missing"] == {}
    assert found["about"]["quick"] is True
    assert found["about"]["rounds"] == 1
    assert {case["name"]: case["peer"] for case in found["cases"]} == CASES
    for case in found["cases"]:
        assert set(case["median"]) == FIGURES | ({"p50_ms", "p99_ms", "max_ms"} if case["kind"] == "latency" else set())
        assert [set(each) - {"round"} for each in case["rounds"]] == [set(case["median"])]
        assert all(value > 0 for name, value in case["median"].items() if name != "cpu_per_million")
        assert case["spread"] == [case["median"]["records_per_second"]] * 2
        assert case["records"] >= (100 if case["kind"] == "latency" else 2_000)
        assert case["call"]
        assert case["settings"]


async def test_aims_are_ratios_of_what_was_measured(run: tuple[dict[str, Any], Path]) -> None:
    found, _ = run
    rates = {case["name"]: case["median"]["records_per_second"] for case in found["cases"]}
    aims = {aim["aim"]: aim for aim in found["aims"]}
    assert len(aims) == 11
    ratio = aims["Arrow consume / raw limit"]
    assert ratio["value"] == pytest.approx(rates["consume/arrow/100/none/ours"] / rates["consume/raw/100/none/raw"])
    assert ratio["met"] is (ratio["value"] >= ratio["least"])
    unmeasured = aims["async for / aiokafka async for"]
    assert (unmeasured["value"], unmeasured["met"]) == (None, None)
    memory = next(aim for name, aim in aims.items() if name.startswith("memory"))
    assert memory["unit"] == "MB"
    assert memory["value"] is not None


async def test_the_chart_and_the_tables_are_made_from_the_json(run: tuple[dict[str, Any], Path], tmp_path: Path) -> None:
    _, document = run
    page, picture = tmp_path / "page.md", tmp_path / "chart.png"
    page.write_text("above\n<!-- results: begin -->\nold\n<!-- results: end -->\nbelow\n")
    command = [sys.executable, str(ROOT / "benchmarks" / "chart.py"), str(document), str(picture), "--update", str(page)]
    await trio.run_process(command)
    assert picture.read_bytes().startswith(b"\x89PNG")
    text = page.read_text()
    assert text.startswith("above\n<!-- results: begin -->\n")
    assert text.endswith("<!-- results: end -->\nbelow\n")
    assert "old" not in text
    assert "| raw limit | `fetch and CRC` |" in text


async def test_docs_have_a_place_for_the_results() -> None:
    text = (ROOT / "docs" / "benchmarks.md").read_text()
    assert text.count("<!-- results: begin -->") == text.count("<!-- results: end -->") == 1
