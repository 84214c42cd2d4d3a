"""The document of a run, made from its measurements: medians, spreads, ratios to the aims.

This module owns the shape of the JSON.
"""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Any

from . import kafka, plan
from .run import Findings

SCHEMA = 2
#: The share of latencies that is left out at the start of a run, when connections and caches are
#: cold.
_WARM = 0.1
_PACKAGES = ("trio", "confluent-kafka", "aiokafka", "kafka-python", "crc32c", "pyarrow", "cramjam")
_MB = 1e6
#: Bytes that the memory aim allows beside the buffers.
_BESIDE_BUFFERS = 100e6
#: The longest time (ms) that another task may wait for its turn.
_MOST_GAP = 50.0

Line = dict[str, Any]


def document(findings: Findings, *, seconds: float, started: str, quick: bool) -> dict[str, Any]:
    """Return all results of a run, ready for JSON."""
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
            "latency_rates": plan.LATENCY_RATES,
            "trickle_rate": plan.TRICKLE,
            "members": plan.MEMBERS,
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
    """Return one case: its description, each round, and the medians."""
    rounds = [_round(case, run) for run in runs]
    median = {
        name: _median([each[name] for each in rounds])
        for name in rounds[0]
        if name not in ("round", "turn")
    }
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
        "port": case.port,
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
        "turn": run["turn"],
        "seconds": run["seconds"],
        "records_per_second": run["records"] / run["seconds"],
        "mb_per_second": run["value_bytes"] / run["seconds"] / _MB,
        "cpu_per_million": run["cpu_seconds"] / run["records"] * 1e6,
        "idle_mb": run["rss_before"] / _MB,
        "peak_mb": run["rss_peak"] / _MB,
        **run["figures"],
    }
    if case.kind == "connect":
        figures["cpu_ms"] = 1e3 * run["cpu_seconds"] / run["records"]
    if latencies := run["latencies"][int(len(run["latencies"]) * _WARM) :]:
        latencies = sorted(latencies)
        figures["p50_ms"] = 1e3 * latencies[len(latencies) // 2]
        figures["p99_ms"] = 1e3 * latencies[len(latencies) * 99 // 100]
        figures["max_ms"] = 1e3 * latencies[-1]
    return figures


def _median(values: Sequence[float]) -> float:
    return statistics.median(values)


def _machine() -> dict[str, Any]:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "cores": cores,
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
    }


def _versions() -> dict[str, str]:
    found = {}
    for name in ("trikafka", *_PACKAGES):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


# --- the aims: a sentence, the cases that are compared, the least ratio, the figure ---------------
#
# What an aim is judged by: the ratio of two medians over all rounds. A single round may be slow
# because of the machine, and the median ignores it.
#
# The spread of an aim is that of the ratios within single turns. The two clients of a turn ran next
# to each other, so a slow minute of the machine divides out. A wide spread beside a stable ratio of
# medians says that the machine varied, and how far to trust the result.
#
# Where an aim has several peers, the best of the measured ones counts. Figures where less is better
# (latency, processor time) are inverted, so that every aim reads "at least".

Figure = Callable[[Line], float]


def _rate(line: Line) -> float:
    return float(line["records_per_second"])


def _quickness(name: str) -> Figure:
    """Return the reciprocal of a figure, so that a ratio of 2 is half the time or work."""
    return lambda line: 1 / float(line[name])


@dataclass(frozen=True)
class _Aim:
    """An aim: ``ours`` must be at least ``least`` times each of ``others``."""

    text: str
    ours: str
    others: tuple[str, ...]
    least: float
    figure: Figure = _rate


_P99 = _quickness("p99_ms")
_WORK = _quickness("cpu_per_million")
_HAND_OVER = _quickness("hand_over_ms")
_ARROW, _BATCH, _ONE = (f"consume/{way}/100/none/ours" for way in ("arrow", "batch", "one"))
_CONSUME = "consume/batch/100/none/confluent"
_PRODUCE = "produce/one/100/none/confluent"
_LARGE = tuple(f"consume/batch/1000/none/{peer}" for peer in ("confluent", "aio", "franz", "java"))
_ARROW_PRODUCE, _SEND_NOWAIT = (f"produce/{way}/100/none/ours" for way in ("arrow", "one"))
_LATE, _ALONE, _ACKS = (f"latency/{way}/100/none/" for way in ("one", "thousand", "acks"))
_AIMS = (
    _Aim("Arrow consume / franz-go PollFetches()", _ARROW, ("consume/batch/100/none/franz",), 2.0),
    _Aim("Arrow consume / the best peer, 1,000 bytes", "consume/arrow/1000/none/ours", _LARGE, 1.0),
    _Aim("Arrow consume / confluent-kafka consume()", _ARROW, (_CONSUME,), 8.0),
    _Aim("Arrow consume / aiokafka getmany()", _ARROW, ("consume/batch/100/none/aio",), 15.0),
    _Aim("Arrow consume / raw limit", _ARROW, ("consume/raw/100/none/raw",), 0.7),
    _Aim("batches of records / Java poll()", _BATCH, ("consume/batch/100/none/java",), 1.0),
    _Aim("batches of records / confluent-kafka consume()", _BATCH, (_CONSUME,), 1.0),
    _Aim("async for / confluent-kafka consume()", _ONE, (_CONSUME,), 1.5),
    _Aim("async for / confluent-kafka poll()", _ONE, ("consume/one/100/none/confluent",), 1.0),
    _Aim("async for / aiokafka async for", _ONE, ("consume/one/100/none/aio",), 3.0),
    _Aim("share group, batches / async for", "share/batch/100/none/ours", (_ONE,), 0.7),
    _Aim("share group, accept() / async for", "share/accept/100/none/ours", (_ONE,), 0.7),
    _Aim("share group, blocks / async for", "share/block/100/none/ours", (_ONE,), 0.7),
    _Aim(
        "share group, accept() / Java acknowledge()",
        *("share/accept/100/none/ours", ("share/accept/100/none/java",), 1.0),
    ),
    _Aim(
        "share group, accept() / franz-go Ack()",
        *("share/accept/100/none/ours", ("share/accept/100/none/franz",), 1.0),
    ),
    _Aim(
        "share group, batches / Java poll()",
        *("share/batch/100/none/ours", ("share/batch/100/none/java",), 1.0),
    ),
    _Aim(
        "share group, batches / franz-go MarkAcks()",
        *("share/batch/100/none/ours", ("share/batch/100/none/franz",), 1.0),
    ),
    _Aim("Arrow produce / confluent-kafka produce()", _ARROW_PRODUCE, (_PRODUCE,), 3.0),
    _Aim("send_nowait() / confluent-kafka produce()", _SEND_NOWAIT, (_PRODUCE,), 1.0),
    *(
        _Aim(
            f"Arrow produce / franz-go Produce(), {size:,} bytes, {codec}",
            *(f"produce/arrow/{size}/{codec}/ours", (f"produce/one/{size}/{codec}/franz",), 1.0),
        )
        for size, codec in ((100, "none"), *plan.JUDGED_SETUPS)
    ),
    _Aim(
        "send_nowait() / librdkafka in C", _SEND_NOWAIT, ("produce/one/100/none/librdkafka",), 1.0
    ),
    *(
        _Aim(
            f"enqueue() / confluent-kafka produce(), {size:,} bytes",
            *(f"produce/enqueue/{size}/none/ours", (f"produce/one/{size}/none/confluent",), 1.0),
        )
        for size in (100, 1_000)
    ),
    _Aim(
        "10,000 send() / aiokafka send_and_wait()",
        "produce/crowd/100/none/ours",
        ("produce/crowd/100/none/aio",),
        1.0,
    ),
    *(
        _Aim(
            f"process() / {name} in transactions",
            "process/one/100/none/ours",
            (f"process/one/100/none/{peer}",),
            1.0,
        )
        for peer, name in (("java", "Java"), ("confluent", "confluent-kafka"))
    ),
    _Aim(
        "p99 of send() at 1,000/s: confluent-kafka / trikafka",
        _ACKS + "ours",
        (_ACKS + "confluent",),
        1.0,
        _P99,
    ),
    _Aim(
        "p99 latency: confluent-kafka / trikafka", _LATE + "ours", (_LATE + "confluent",), 1.0, _P99
    ),
    _Aim("p99 latency: aiokafka / trikafka", _LATE + "ours", (_LATE + "aio",), 1.0, _P99),
    _Aim(
        "p99 latency at 1,000/s: confluent-kafka / trikafka",
        _ALONE + "ours",
        (_ALONE + "confluent",),
        1.0,
        _P99,
    ),
    _Aim(
        "p99 latency at 1,000/s: franz-go / trikafka",
        _ALONE + "ours",
        (_ALONE + "franz",),
        round(1 / 1.5, 2),
        _P99,
    ),
    *(
        _Aim(f"{text} over TLS", ours + "/TLS", (other + "/TLS",), 1.0)
        for text, ours, other in (
            ("Arrow consume / confluent-kafka consume()", _ARROW, _CONSUME),
            ("batches of records / confluent-kafka consume()", _BATCH, _CONSUME),
            ("async for / confluent-kafka consume()", _ONE, _CONSUME),
            ("async for / confluent-kafka poll()", _ONE, "consume/one/100/none/confluent"),
            ("Arrow produce / confluent-kafka produce()", _ARROW_PRODUCE, _PRODUCE),
            ("send_nowait() / confluent-kafka produce()", _SEND_NOWAIT, _PRODUCE),
        )
    ),
    *(
        _Aim(
            f"Arrow consume / batches of records, both over TLS, {size:,} bytes",
            *(f"consume/arrow/{size}/none/ours/TLS", (f"consume/batch/{size}/none/ours/TLS",), 1.0),
        )
        for size in (100, 1_000)
    ),
    _Aim("Arrow consume over TLS / without", _ARROW + "/TLS", (_ARROW,), 0.6),
    _Aim(
        "CPU a record: with 1 partition assigned / with 2,000",
        *("assigned/2000/100/none/ours", ("assigned/1/100/none/ours",), 0.5, _WORK),
    ),
    _Aim(
        "hand-over, cooperative: Java / trikafka",
        *("group/cooperative/100/none/ours", ("group/cooperative/100/none/java",), 1.0, _HAND_OVER),
    ),
    _Aim(
        "hand-over, KIP-848: Java / trikafka",
        *("group/consumer/100/none/ours", ("group/consumer/100/none/java",), 1.0, _HAND_OVER),
    ),
)


def aims(lines: Sequence[Line]) -> list[Line]:
    """Return each aim with the value of this run.

    The value is a ratio of medians. Its spread is the lowest and highest ratio within one turn.
    """
    by_name = {line["name"]: line for line in lines}
    return [*(_judged(aim, by_name) for aim in _AIMS), _gaps(lines), _memory(lines)]


def _judged(aim: _Aim, by_name: dict[str, Line]) -> Line:
    """Return the aim's result, compared with the best of the measured peers."""
    found: Line = {
        "aim": aim.text,
        "least": aim.least,
        "unit": "x",
        "value": None,
        "spread": None,
        "met": None,
    }
    ours = by_name.get(aim.ours)
    others = [by_name[name] for name in aim.others if name in by_name]
    if ours is None or not others:
        return found
    figure = aim.figure
    other = max(others, key=lambda line: _middle(line, figure))
    beside = {(each["round"], each["turn"]): figure(each) for each in other["rounds"]}
    ratios = [
        figure(each) / beside[turn]
        for each in ours["rounds"]
        if (turn := (each["round"], each["turn"])) in beside
    ]
    found["value"] = _middle(ours, figure) / _middle(other, figure)
    found["spread"] = [min(ratios), max(ratios)] if ratios else None
    found["met"] = found["value"] >= aim.least
    return found


def _middle(line: Line, figure: Figure) -> float:
    return _median([figure(each) for each in line["rounds"]])


def _gaps(lines: Sequence[Line]) -> Line:
    """Return the room below the longest time that another task may wait, at full speed over TLS.

    Each case counts with the median of its rounds. In a single round the operating system may have
    given the processor to the broker.
    """
    gaps = [
        line["median"]["longest_gap_ms"]
        for line in lines
        if line["port"] == "TLS" and "longest_gap_ms" in line["median"]
    ]
    room = [_MOST_GAP - gap for gap in gaps]
    least = min(room, default=None)
    return {
        "aim": "no gap of the loop over 50 ms at full speed over TLS: room left in the worst case of "
        "all",
        "least": 0.0,
        "unit": "ms",
        "value": least,
        "spread": [least, max(room)] if room else None,
        "met": None if least is None else least >= 0,
    }


def _memory(lines: Sequence[Line]) -> Line:
    """Return the room below the memory that trikafka may use, in its worst process.

    A process may use its buffer settings plus a fixed amount that includes the interpreter. The
    table that a job writes is not trikafka's and is allowed on top.
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
