"""A run's JSON as a picture and as Markdown. Reads the JSON alone, and is a script as well:

``python benchmarks/chart.py JSON PNG`` draws, ``python benchmarks/chart.py JSON --markdown`` prints the tables,
``python benchmarks/chart.py JSON --update docs/benchmarks.md`` puts them between the marks in that page.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"
_COLOURS = {
    "trikafka": "#0b6e4f",
    "confluent-kafka": "#d17a22",
    "aiokafka": "#3b6fb6",
    "kafka-python": "#8d8d8d",
    "raw limit": "#1c1c1c",
}
_MARKERS = {"arrow": "D", "batch": "s", "one": "o", "concurrent": "^", "raw": "|"}

_STYLE: Any = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
}

Case = dict[str, Any]
Document = dict[str, Any]


# --- what all outputs have in common --------------------------------------------------------------------------------


def configurations(cases: Sequence[Case]) -> list[tuple[int, str]]:
    """The (size, compression) pairs that were measured, in order."""
    return list(dict.fromkeys((case["size"], case["compression"]) for case in cases))


def label(cases: Sequence[Case], peer: str, way: str) -> str:
    """What a client called in a way."""
    return next(str(case["call"]) for case in cases if case["peer"] == peer and case["way"] == way)


def least_of(aim: Case) -> str:
    return f"{aim['least']:g} {aim['unit']}"


def value_of(aim: Case) -> str:
    return "" if aim["value"] is None else f"{aim['value']:,.2f} {aim['unit']}"


def spread_of(aim: Case) -> str:
    return "" if aim["spread"] is None else f"{aim['spread'][0]:,.2f} to {aim['spread'][1]:,.2f}"


def _of(found: Document, kind: str, *, main: bool = False) -> list[Case]:
    return [case for case in found["cases"] if case["kind"] == kind and (case["main"] or not main)]


def _fastest_first(cases: Sequence[Case]) -> list[Case]:
    return sorted(cases, key=lambda case: -float(case["median"]["records_per_second"]))


# --- Markdown -------------------------------------------------------------------------------------------------------


def markdown(found: Document) -> str:
    """All tables of a run."""
    parts = [_about(found)]
    for kind, title in (("consume", "Reading"), ("produce", "Writing")):
        if cases := _fastest_first(_of(found, kind, main=True)):
            parts.append(f"**{title}** values of {cases[0]['size']} bytes, compression: {cases[0]['compression']}")
            parts.append(_rates(cases))
        if cases := _of(found, kind):
            parts.append(f"**{title}**, thousand records a second")
            parts.append(_grid(cases))
    if cases := _of(found, "latency"):
        parts.append(f"**End to end** at {found['about']['latency_rate']} records a second, milliseconds")
        rows = [[case["peer"], f"`{case['call']}`", *_figures(case, ("p50_ms", "p99_ms", "max_ms"), ".2f")] for case in cases]
        parts.append(_table(["client", "call", "p50", "p99", "max"], rows))
    parts.append("**The aims** (ratios of medians; the spread is of single rounds)")
    verdicts = {True: "met", False: "**missed**", None: "not measured"}
    head = ["aim", "at least", "found", "spread", ""]
    rows = [[aim["aim"], least_of(aim), value_of(aim), spread_of(aim), verdicts[aim["met"]]] for aim in found["aims"]]
    parts.append(_table(head, rows))
    parts += [f"Not measured: {name}: {why}" for name, why in found["missing"].items()]
    return "\n\n".join(parts) + "\n"


def update(found: Document, page: Path) -> None:
    """Replace what stands between the marks in ``page``. Raises ``ValueError`` if it has no marks."""
    text = page.read_text()
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{page} has no place for results: {BEGIN} ... {END}")
    page.write_text(f"{before}{BEGIN}\n{markdown(found)}{END}{after}")


def _about(found: Document) -> str:
    about = found["about"]
    machine = about["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    return (
        f"Run of {about['started'][:10]}: {about['rounds']} rounds in {about['seconds']:.0f} s on {machine['cores']} cores"
        f" ({machine['system']}), Python {machine['python']}, Kafka {about['kafka']}; {versions}."
    )


def _rates(cases: Sequence[Case]) -> str:
    rows = []
    for case in cases:
        low, high = case["spread"]
        rows.append(
            [
                *(case["peer"], f"`{case['call']}`"),
                *_figures(case, ("records_per_second",), ",.0f"),
                f"{low:,.0f} to {high:,.0f}",
                *_figures(case, ("mb_per_second",), ",.0f"),
                *_figures(case, ("cpu_per_million",), ".2f"),
                *_figures(case, ("peak_mb", "idle_mb"), ".0f"),
            ]
        )
    return _table(["client", "call", "records/s", "spread", "MB/s", "CPU s/million", "peak MB", "idle MB"], rows)


def _grid(cases: Sequence[Case]) -> str:
    setups = configurations(cases)
    rows: dict[tuple[str, str], dict[tuple[int, str], str]] = {}
    for case in cases:
        row = rows.setdefault((case["peer"], case["way"]), {})
        row[case["size"], case["compression"]] = f"{case['median']['records_per_second'] / 1e3:,.0f}"
    body = [[peer, f"`{label(cases, peer, way)}`", *(row.get(setup, "") for setup in setups)] for (peer, way), row in rows.items()]
    return _table(["client", "call", *(f"{size} B, {compression}" for size, compression in setups)], body)


def _figures(case: Case, names: Sequence[str], form: str) -> Iterator[str]:
    return (format(case["median"][name], form) for name in names)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    rule = ["---", "---:" if len(head) > 3 and head[1] != "call" else "---", *["---:"] * (len(head) - 2)]
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, rule, *rows))


# --- the picture ----------------------------------------------------------------------------------------------------


def draw(found: Document, path: Path) -> None:
    """Draw a run. Raises ``ImportError`` without matplotlib."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    with pyplot.rc_context(_STYLE):
        figure, axes = pyplot.subplots(4, 2, figsize=(13, 16), layout="constrained", height_ratios=(9, 8, 9, 9))
        reading, writing = _of(found, "consume", main=True), _of(found, "produce", main=True)
        _bars(axes[0][0], "Reading 100 B values: million records/s", reading, "records_per_second", 1e-6, "{:.2f}")
        _bars(axes[0][1], "Writing 100 B values: million records/s", writing, "records_per_second", 1e-6, "{:.2f}")
        _dots(axes[1][0], "Reading, by size and compression: records/s", _of(found, "consume"))
        _dots(axes[1][1], "Writing, by size and compression: records/s", _of(found, "produce"))
        _bars(axes[2][0], "Reading: CPU seconds a million records", reading, "cpu_per_million", 1, "{:.2f}")
        _bars(axes[2][1], "Writing: CPU seconds a million records", writing, "cpu_per_million", 1, "{:.2f}")
        _latencies(axes[3][0], found)
        memory = [case for case in reading if case["peer"] != "raw limit"] + writing
        _bars(axes[3][1], "Peak memory of the process, MB", memory, "peak_mb", 1, "{:.0f}")
        figure.suptitle(_caption(found), fontsize=9, color="#555555", x=0.01, ha="left")
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=110, metadata={"Software": None})
        pyplot.close(figure)


def _caption(found: Document) -> str:
    about = found["about"]
    machine = about["machine"]
    where = f"{machine['cores']} cores, Python {machine['python']}, Kafka {about['kafka']}"
    text = f"{about['started'][:10]}, {where}, medians of {about['rounds']} rounds"
    return text + (" (QUICK RUN: the figures mean nothing)" if about["quick"] else "")


def _bars(axes: Any, title: str, cases: Sequence[Case], name: str, unit: float, form: str) -> None:
    """One bar a case, the best on top, with a whisker from the lowest round to the highest."""
    axes.set_title(title)
    cases = sorted(cases, key=lambda case: float(case["median"][name]), reverse=name != "records_per_second")
    values = [case["median"][name] * unit for case in cases]
    axes.barh(range(len(cases)), values, color=[_COLOURS[case["peer"]] for case in cases], height=0.7)
    for place, (case, value) in enumerate(zip(cases, values, strict=True)):
        rounds = [each[name] * unit for each in case["rounds"]]
        axes.plot([min(rounds), max(rounds)], [place, place], color="#00000099", linewidth=1)
        axes.annotate(form.format(value), (max(rounds), place), xytext=(4, 0), textcoords="offset points", va="center")
    axes.set_yticks(range(len(cases)), [f"{case['peer']}  {case['call']}" for case in cases])
    axes.tick_params(axis="y", length=0)
    axes.margins(x=0.12)


def _dots(axes: Any, title: str, cases: Sequence[Case]) -> None:
    """A row for each configuration, a dot for each case, on a logarithmic axis."""
    axes.set_title(title)
    setups = configurations(cases)[::-1]
    for peer, way in dict.fromkeys((case["peer"], case["way"]) for case in cases):
        chosen = [case for case in cases if (case["peer"], case["way"]) == (peer, way)]
        axes.plot(
            [case["median"]["records_per_second"] for case in chosen],
            [setups.index((case["size"], case["compression"])) for case in chosen],
            _MARKERS[way],
            color=_COLOURS[peer],
            markersize=12 if way == "raw" else 6,
            alpha=0.9,
            label=f"{peer}  {label(cases, peer, way)}",
        )
    axes.set_xscale("log")
    axes.xaxis.set_minor_formatter("")
    axes.set_yticks(range(len(setups)), [f"{size} B, {compression}" for size, compression in setups])
    axes.set_ylim(-0.6, len(setups) - 0.4)
    axes.grid(axis="both", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    if cases:
        axes.legend(fontsize=7, frameon=False, loc="upper center", bbox_to_anchor=(0.45, -0.1), ncols=2)


def _latencies(axes: Any, found: Document) -> None:
    axes.set_title(f"End to end at {found['about']['latency_rate']} records/s: ms")
    cases = _of(found, "latency")[::-1]
    for place, case in enumerate(cases):
        for shift, name, alpha in ((0.19, "p50_ms", 1.0), (-0.19, "p99_ms", 0.6)):
            value = case["median"][name]
            axes.barh(place + shift, value, color=_COLOURS[case["peer"]], height=0.36, alpha=alpha)
            text = f"{name[:3]}  {value:.2f}"
            axes.annotate(text, (value, place + shift), xytext=(4, 0), textcoords="offset points", va="center")
    axes.set_yticks(range(len(cases)), [case["peer"] for case in cases])
    axes.tick_params(axis="y", length=0)
    axes.margins(x=0.15)


def main() -> int:
    parser = argparse.ArgumentParser(description="a run's JSON as a picture or as Markdown")
    parser.add_argument("json", type=Path)
    parser.add_argument("png", type=Path, nargs="?")
    parser.add_argument("--markdown", action="store_true", help="print the tables")
    parser.add_argument("--update", type=Path, metavar="PAGE", help="put the tables into a page")
    options = parser.parse_args()
    found = json.loads(options.json.read_text())
    if options.png is not None:
        draw(found, options.png)
    if options.markdown:
        sys.stdout.write(markdown(found))
    if options.update is not None:
        update(found, options.update)
    return 0


if __name__ == "__main__":
    sys.exit(main())
