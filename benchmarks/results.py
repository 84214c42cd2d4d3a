"""From measurements to the document of a run: medians, spreads, ratios to the aims. Owns the shape of the JSON."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Callable, Iterable, Sequence
from importlib import metadata
from typing import Any

from . import kafka, plan
from .run import Findings

SCHEMA = 1
#: The first tenth of the latencies of a run is left out: connections and caches are cold.
_WARM = 0.1
_PACKAGES = ("trio", "confluent-kafka", "aiokafka", "kafka-python", "pyarrow", "cramjam", "crc32c")
_MB = 1e6
#: What an aim allows beside the buffers.
_BESIDE_BUFFERS = 100e6

Line = dict[str, Any]


def document(findings: Findings, *, seconds: float, started: str, quick: bool) -> dict[str, Any]:
    """Everything that is known of a run, ready for JSON."""
    lines = [_line(case, runs) for case, runs in findings.runs.items()]
    return {
        "schema": SCHEMA,
        "about": {
            "started": started,
            "seconds": round(seconds, 1),
            "quick": quick,
            "rounds": findings.rounds,
            "partitions": plan.PARTITIONS,
            "tasks": plan.TASKS,
            "latency_rate": plan.LATENCY_RATE,
            "machine": _machine(),
            "kafka": kafka.VERSION,
            "versions": _versions(),
        },
        "cases": lines,
        "aims": aims(lines),
        "missing": findings.missing,
        "failed": findings.failed,
    }


def _line(case: plan.Case, runs: Sequence[Line]) -> Line:
    """One case: what it is, each round, and the medians."""
    rounds = [_round(case, run) for run in runs]
    median = {name: _median(each[name] for each in rounds) for name in rounds[0] if name != "round"}
    rates = [each["records_per_second"] for each in rounds]
    return {
        "name": case.name,
        "kind": case.kind,
        "way": case.way,
        "peer": plan.PEERS[case.peer],
        "call": runs[-1]["call"],
        "size": case.setup.size,
        "compression": case.setup.compression,
        "main": case.setup.main,
        "records": runs[-1]["records"],
        "settings": runs[-1]["settings"],
        "extra": runs[-1]["extra"],
        "rounds": rounds,
        "median": median,
        "spread": [min(rates), max(rates)],
    }


def _round(case: plan.Case, run: Line) -> Line:
    figures = {
        "round": run["round"],
        "seconds": run["seconds"],
        "records_per_second": run["records"] / run["seconds"],
        "mb_per_second": run["value_bytes"] / run["seconds"] / _MB,
        "cpu_per_million": run["cpu_seconds"] / run["records"] * 1e6,
        "idle_mb": run["rss_before"] / _MB,
        "peak_mb": run["rss_peak"] / _MB,
    }
    if latencies := run["latencies"][int(len(run["latencies"]) * _WARM) :]:
        latencies = sorted(latencies)
        figures["p50_ms"] = 1e3 * latencies[len(latencies) // 2]
        figures["p99_ms"] = 1e3 * latencies[len(latencies) * 99 // 100]
        figures["max_ms"] = 1e3 * latencies[-1]
    return figures


def _median(values: Iterable[float]) -> float:
    return statistics.median(values)


def _machine() -> dict[str, Any]:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {"cores": cores, "system": f"{platform.system()} {platform.machine()}", "python": platform.python_version()}


def _versions() -> dict[str, str]:
    found = {}
    for name in ("trikafka", *_PACKAGES):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


# --- the aims: name, sentence, least value --------------------------------------------------------------------------

_ARROW, _BATCH, _ONE = (f"consume/{way}/100/none/ours" for way in ("arrow", "batch", "one"))
_RATIOS = (
    ("Arrow consume / confluent-kafka consume()", _ARROW, "consume/batch/100/none/confluent", 8.0),
    ("Arrow consume / aiokafka getmany()", _ARROW, "consume/batch/100/none/aio", 15.0),
    ("Arrow consume / raw limit", _ARROW, "consume/raw/100/none/raw", 0.5),
    ("batches of records / confluent-kafka consume()", _BATCH, "consume/batch/100/none/confluent", 1.0),
    ("async for / confluent-kafka poll()", _ONE, "consume/one/100/none/confluent", 1.0),
    ("async for / aiokafka async for", _ONE, "consume/one/100/none/aio", 3.0),
    ("Arrow produce / confluent-kafka produce()", "produce/arrow/100/none/ours", "produce/one/100/none/confluent", 3.0),
    ("send_nowait() / confluent-kafka produce()", "produce/one/100/none/ours", "produce/one/100/none/confluent", 1.0),
)
_LATENCIES = (
    ("p99 latency: confluent-kafka / trikafka", "latency/one/100/none/confluent"),
    ("p99 latency: aiokafka / trikafka", "latency/one/100/none/aio"),
)


def aims(lines: Sequence[Line]) -> list[Line]:
    """Each aim with the value of this run: a ratio of medians, and the lowest and highest ratio within one round."""
    by_name = {line["name"]: line for line in lines}
    found = []
    for text, ours, other, least in _RATIOS:
        found.append(_ratio(text, by_name.get(ours), by_name.get(other), least, lambda each: each["records_per_second"]))
    ours_late = by_name.get("latency/one/100/none/ours")
    for text, other in _LATENCIES:
        found.append(_ratio(text, ours_late, by_name.get(other), 1.0, lambda each: 1 / each["p99_ms"]))
    found.append(_memory(lines))
    return found


def _ratio(text: str, ours: Line | None, other: Line | None, least: float, figure: Callable[[Line], float]) -> Line:
    aim: Line = {"aim": text, "least": least, "unit": "x", "value": None, "spread": None, "met": None}
    if ours is None or other is None:
        return aim
    beside = {each["round"]: figure(each) for each in other["rounds"]}
    ratios = [figure(each) / beside[each["round"]] for each in ours["rounds"] if each["round"] in beside]
    aim["value"] = _median(map(figure, ours["rounds"])) / _median(map(figure, other["rounds"]))
    aim["spread"] = [min(ratios), max(ratios)] if ratios else None
    aim["met"] = aim["value"] >= least
    return aim


def _memory(lines: Sequence[Line]) -> Line:
    """How far trikafka's worst process stayed below its buffer settings plus what is allowed beside them, interpreter included.

    The table that a job writes is not trikafka's: it comes on top.
    """
    room = []
    for line in lines:
        if buffers := line["extra"].get("buffer_bytes"):
            allowed = buffers + line["extra"].get("own_bytes", 0) + _BESIDE_BUFFERS
            room += [allowed / _MB - each["peak_mb"] for each in line["rounds"]]
    least = min(room, default=None)
    return {
        "aim": "memory: room left below the buffer setting + 100 MB, in the worst case of all",
        "least": 0.0,
        "unit": "MB",
        "value": least,
        "spread": [least, max(room)] if room else None,
        "met": None if least is None else least >= 0,
    }
