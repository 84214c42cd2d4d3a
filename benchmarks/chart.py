"""A run's JSON as a picture and as Markdown.

The module reads nothing but the JSON, and is a script as well. ``python benchmarks/chart.py JSON
PNG`` draws the picture. ``python benchmarks/chart.py JSON --markdown`` prints the tables. ``python
benchmarks/chart.py JSON --update docs`` puts them between the marks in the pages of that folder.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

BEGIN = "<!-- results: begin -->"
END = "<!-- results: end -->"
#: The pages with a run's tables. One page with all of them would be too long to read.
RATES_PAGE = "benchmarks.md"
GROUPS_PAGE = "benchmarks-groups.md"
TLS_PAGE = "benchmarks-tls.md"
PAGES = (RATES_PAGE, GROUPS_PAGE, TLS_PAGE)
_COLOURS = {
    "trikafka": "#0b6e4f",
    "confluent-kafka": "#d17a22",
    "aiokafka": "#3b6fb6",
    "kafka-python": "#8d8d8d",
    "franz-go": "#7a4fa3",
    "Java": "#b23a48",
    "librdkafka in C": "#a8763e",
    "raw limit": "#1c1c1c",
}
#: Beginnings of the titles of tables that only the terminal shows.
_TERMINAL_ONLY = ("End to end at 500 ", "Reading 16 ", "From nothing ", "The acknowledgement at ")
#: Parts of the names of ratios that only the terminal shows: other setups than the main one, and
#: peers beside which the page has a harder ratio.
_TERMINAL_RATIOS = (
    "TLS",
    "1,000 bytes",
    "lz4",
    "1 partition",
    "p99 latency: ",
    "aiokafka getmany()",
    "confluent-kafka poll()",
    "batches of records / confluent-kafka",
    "process() / confluent-kafka",
)
#: Columns, setups and ways that only the terminal and the JSON have: a reader who chooses a client
#: does not decide by them.
_TERMINAL_COLUMNS = ("max", "MB", "part", "without")
_TERMINAL_SETUPS = ((100, "zstd"), (1000, "lz4"), (1000, "zstd"))
_TERMINAL_WAYS = ("tables",)
#: The broker's ports, in the order of the tables.
_PORTS = ("plain", "TLS", "SCRAM", "TLS+SCRAM", "sessions")
_MARKERS = {
    "arrow": "D",
    "tables": "d",
    "batch": "s",
    "one": "o",
    "concurrent": "^",
    "crowd": "v",
    "enqueue": "P",
    "raw": "|",
}

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
#: A title, the heads of the columns (from the third on they are figures), the rows.
Grid = tuple[str, list[str], list[list[str]]]


# --- helpers of all outputs -----------------------------------------------------------------------


def configurations(cases: Sequence[Case]) -> list[tuple[int, str]]:
    """Return the measured (size, compression) pairs in order."""
    return list(dict.fromkeys((case["size"], case["compression"]) for case in cases))


def label(cases: Sequence[Case], peer: str, way: str) -> str:
    """Return the functions that a client called in a way."""
    call = next(str(case["call"]) for case in cases if case["peer"] == peer and case["way"] == way)
    return f"{call}, 10,000 tasks" if way == "crowd" else call


def least_of(aim: Case) -> str:
    return f"{aim['least']:g} {aim['unit']}"


def value_of(aim: Case) -> str:
    return "" if aim["value"] is None else f"{aim['value']:,.2f} {aim['unit']}"


def spread_of(aim: Case) -> str:
    return "" if aim["spread"] is None else f"{aim['spread'][0]:,.2f} to {aim['spread'][1]:,.2f}"


def of_kind(
    cases: Sequence[Case], kind: str, *, main: bool = False, port: str = "plain"
) -> list[Case]:
    """Return the cases of a kind at a port of the broker.

    ``main`` selects only the cases by which the aims are judged.
    """
    return [
        case
        for case in cases
        if (case["kind"], _port(case)) == (kind, port) and (case["main"] or not main)
    ]


def _of(found: Document, kind: str, *, main: bool = False) -> list[Case]:
    return of_kind(found["cases"], kind, main=main)


def _port(case: Case) -> str:
    return str(case.get("port", "plain"))  # JSON of early runs has no ports


def _fastest_first(cases: Sequence[Case]) -> list[Case]:
    return sorted(cases, key=lambda case: -float(case["median"]["records_per_second"]))


# --- figures beside rates, as grids for both kinds of tables --------------------------------------


def grids(found: Document) -> Iterator[Grid]:
    """Yield the latencies, and the costs of consumers that idle, share a group or are many."""
    about = found["about"]
    for way, rate in about["latency_rates"].items():
        what = "From the call to the acknowledgement" if way == "acks" else "End to end"
        title = f"{what} at {rate:,} records a second, milliseconds; processor time"
        cases = [case for case in _of(found, "latency") if case["way"] == way]
        columns = {
            "p50": "p50_ms .2f",
            "p99": "p99_ms .2f",
            "max": "max_ms .2f",
            "CPU us/record": "cpu_per_million ,.0f",
        }
        yield from _grid_of(title, cases, columns)
    title = (
        f"Partitions assigned: idle for some seconds, then {about['trickle_rate']} records a "
        "second over all of them"
    )
    columns = {
        "CPU %": "idle_cpu_percent .2f",
        "bytes/s": "idle_bytes_per_second ,.0f",
        "MB": "assigned_mb .0f",
    }
    columns["CPU us/record"] = "cpu_per_million ,.0f"
    yield from _grid_of(title, _of(found, "assigned"), columns, way="partitions")
    title = (
        "Groups, milliseconds: the first member's join, the hand-over to member "
        f"{about['members']}, another's standstill"
    )
    columns = {
        "join": "join_ms ,.0f",
        "hand-over": "hand_over_ms ,.0f",
        "standstill": "standstill_ms ,.0f",
    }
    yield from _grid_of(title, _of(found, "group"), columns, way="protocol")
    columns = {"records/s": "records_per_second ,.0f", "CPU us/record": "cpu_per_million .2f"}
    title = "One member of a share group, which acknowledges each record"
    yield from _grid_of(title, _of(found, "share"), columns)
    columns = {
        "records/s": "records_per_second ,.0f",
        "CPU s/million": "cpu_per_million .2f",
        "peak MB": "peak_mb ,.0f",
    }
    yield from _grid_of(
        "Consumers in one program, reading at the same time",
        _of(found, "many"),
        columns,
        way="consumers",
    )
    title = "Reading, processing and writing, exactly once, a commit every 100 ms"
    yield from _grid_of(title, _of(found, "process"), columns)
    yield from _grid_of(
        "Reading 16 partitions, a stream and a task each, beside one loop",
        _of(found, "streams"),
        columns,
    )
    yield from _secured(found)


def _secured(found: Document) -> Iterator[Grid]:
    """Yield the costs of TLS and SCRAM."""
    cases = found["cases"]
    columns = {
        "records/s": "records_per_second ,.0f",
        "without TLS": "plain_per_second ,.0f",
        "part": "part_of_plain .2f",
    }
    columns |= {
        "CPU s/million": "cpu_per_million .2f",
        "without": "plain_cpu .2f",
        "longest gap, ms": "longest_gap_ms .1f",
    }
    titles = {"consume": "Reading", "produce": "Writing"}
    titles |= {
        "streams": "Reading 16 partitions",
        "process": "Reading, processing and writing, exactly once,",
    }
    for kind, title in titles.items():
        secured = [_beside_plain(case, cases) for case in of_kind(cases, kind, port="TLS")]
        for size in dict.fromkeys(case["size"] for case in secured):
            rows = _fastest_first([case for case in secured if case["size"] == size])
            yield from _grid_of(
                f"{title} over TLS, values of {size} bytes, and the same without",
                rows,
                columns,
                ordered=True,
            )
    opened = [case for case in cases if case["kind"] == "connect"]
    columns = {"p50": "p50_ms .1f", "max": "max_ms .1f", "CPU ms": "cpu_ms .1f"}
    yield from _grid_of(
        "From nothing to a client that knows the cluster, milliseconds", opened, columns, way="port"
    )
    sent = [
        {**case, "way": port}
        for port in ("TLS+SCRAM", "sessions")
        for case in of_kind(cases, "latency", port=port)
    ]
    columns = {
        "p50": "p50_ms .2f",
        "p99": "p99_ms .2f",
        "max": "max_ms .2f",
        "CPU us/record": "cpu_per_million ,.0f",
    }
    columns |= {"renewals": "renewals .0f", "one, ms": "renewal_ms .1f"}
    title = (
        "The acknowledgement at 1,000 records a second over TLS, by SCRAM; with sessions of two "
        "seconds, renewed"
    )
    yield from _grid_of(title, sent, columns, way="port")


def _beside_plain(case: Case, cases: Sequence[Case]) -> Case:
    """Return the case with the figures of the same case without TLS, if that was measured."""
    same = ("peer", "way", "size", "compression")
    for each in of_kind(cases, case["kind"]):
        if all(each[name] == case[name] for name in same):
            more = {
                "plain_per_second": each["median"]["records_per_second"],
                "plain_cpu": each["median"]["cpu_per_million"],
            }
            more["part_of_plain"] = case["median"]["records_per_second"] / more["plain_per_second"]
            return {**case, "median": {**case["median"], **more}}
    return case


def _grid_of(
    title: str,
    cases: Sequence[Case],
    columns: dict[str, str],
    *,
    way: str = "",
    ordered: bool = False,
) -> Iterator[Grid]:
    """Yield one grid, or none if there is no case.

    Args:
        title: The title.
        cases: The rows.
        columns: Head of a column -> the figure's name and format.
        way: The head of a column of ways; no such column if empty.
        ordered: The cases already have their order.
    """
    if not cases:
        return
    rows = []
    for case in cases if ordered else sorted(cases, key=_place):
        ways = [case["way"]] if way else []
        rows.append(
            [
                case["peer"],
                f"`{case['call']}`",
                *ways,
                *(_cell(case, *each.split()) for each in columns.values()),
            ]
        )
    yield title, ["client", "call", *([way] if way else []), *columns], rows


def _place(case: Case) -> tuple[int, str, int]:
    """Return the sort key of a row, which places rows of the same way next to each other.

    Ways that are numbers are sorted by size, the broker's ports by their order.
    """
    way = case["way"]
    place = int(way) if way.isdigit() else _PORTS.index(way) if way in _PORTS else 0
    return place, way, list(_COLOURS).index(case["peer"])


def _cell(case: Case, name: str, form: str) -> str:
    return format(case["median"][name], form) if name in case["median"] else ""


# --- Markdown -------------------------------------------------------------------------------------


def markdown(found: Document, page: str | None = None) -> str:
    """Return the tables of a run for readers who choose a client.

    The terminal and the JSON have more.

    Args:
        found: The run.
        page: One of ``PAGES``, for the tables of that page only.
    """
    if page in (None, RATES_PAGE):
        missing = (f"Not measured: {name}: {why}" for name, why in found["missing"].items())
        parts = [*_rates(found), *missing]
    else:
        parts = [f"Run of {found['about']['started'][:10]} ([versions]({RATES_PAGE}#results))."]
    for title, head, rows in grids(found):
        if page in (None, _page_of(title)) and not title.startswith(_TERMINAL_ONLY):
            if head[2] in ("partitions", "consumers"):  # the largest number
                rows = [row for row in rows if row[2] == rows[-1][2]]
            shown = [place for place, name in enumerate(head) if name not in _TERMINAL_COLUMNS]
            head, *rows = ([row[place] for place in shown] for row in (head, *rows))
            parts += [f"**{title}**", _table(head, rows)]
    return "\n\n".join(parts) + "\n"


def _rates(found: Document) -> Iterator[str]:
    """Yield the description of the run, the ratios, and the rates of reading and writing."""
    yield _about(found)
    rows = [
        [aim["aim"], f"{aim['value']:,.2f}", spread_of(aim)]
        for aim in found["aims"]
        if aim["value"] is not None
        and aim["unit"] == "x"
        and not any(each in aim["aim"] for each in _TERMINAL_RATIOS)
    ]
    if rows:
        yield (
            "**Ratios of medians**: above 1, the first named is better. The spread is that of "
            "single rounds."
        )
        yield _table(["ratio", "found", "spread"], rows)
    for kind, title in (("consume", "Reading"), ("produce", "Writing")):
        if cases := [case for case in _of(found, kind) if case["way"] not in _TERMINAL_WAYS]:
            yield (
                f"**{title}**, thousand records a second by size and compression; processor time "
                "and memory for the first"
            )
            yield _speeds(cases)


def _page_of(title: str) -> str:
    """Return the page of a grid."""
    return TLS_PAGE if " over TLS" in title else GROUPS_PAGE


def update(found: Document, folder: Path) -> None:
    """Replace the text between the marks in the pages of ``folder``.

    Raises:
        ValueError: A page has no marks.
    """
    texts = {}
    for name in PAGES:
        before, begin, rest = (folder / name).read_text().partition(BEGIN)
        _, end, after = rest.partition(END)
        if not begin or not end:
            raise ValueError(f"{folder / name} has no place for results: {BEGIN} ... {END}")
        texts[name] = f"{before}{BEGIN}\n{markdown(found, name)}{END}{after}"
    for name, text in texts.items():
        (folder / name).write_text(text)


def _about(found: Document) -> str:
    about = found["about"]
    machine = about["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    return (
        f"Run of {about['started'][:10]}: {about['rounds']} rounds in {about['seconds']:.0f} s on "
        f"{machine['cores']} cores ({machine['system']}), Python {machine['python']}, Kafka "
        f"{about['kafka']}; {versions}."
    )


def _speeds(cases: Sequence[Case]) -> str:
    """Return one row for each call of a client, the fastest in the first setup on top."""
    setups = [each for each in configurations(cases) if each not in _TERMINAL_SETUPS]
    rows: dict[tuple[str, str], dict[tuple[int, str], Case]] = {}
    for case in _fastest_first(cases):
        row = rows.setdefault((case["peer"], case["way"]), {})
        row[case["size"], case["compression"]] = case["median"]
    body = []
    for (peer, way), row in sorted(rows.items(), key=lambda item: -_speed(item[1].get(setups[0]))):
        speeds = [f"{_speed(row[each]) / 1e3:,.0f}" if each in row else "" for each in setups]
        first = row.get(setups[0], {})
        costs = [
            format(first[name], form) if first else ""
            for name, form in (("cpu_per_million", ".2f"), ("peak_mb", ".0f"))
        ]
        body.append([peer, f"`{label(cases, peer, way)}`", *speeds, *costs])
    head = [f"{size} B, {compression}" for size, compression in setups]
    return _table(["client", "call", *head, "CPU s/million", "peak MB"], body)


def _speed(median: Case | None) -> float:
    return float(median["records_per_second"]) if median else 0.0


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    rule = [
        "---",
        "---:" if len(head) > 3 and head[1] != "call" else "---",
        *["---:"] * (len(head) - 2),
    ]
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, rule, *rows))


# --- the picture ----------------------------------------------------------------------------------


def draw(found: Document, path: Path) -> None:
    """Draw a run.

    Raises:
        ImportError: matplotlib is not installed.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    with pyplot.rc_context(_STYLE):
        figure, axes = pyplot.subplots(
            5, 2, figsize=(13, 20), layout="constrained", height_ratios=(10, 8, 10, 10, 8)
        )
        reading = _of(found, "consume", main=True)
        writing = _of(found, "produce", main=True)
        _bars(
            axes[0][0],
            "Reading 100 B values: million records/s",
            reading,
            "records_per_second",
            1e-6,
            "{:.2f}",
        )
        _bars(
            axes[0][1],
            "Writing 100 B values: million records/s",
            writing,
            "records_per_second",
            1e-6,
            "{:.2f}",
        )
        _dots(axes[1][0], "Reading, by size and compression: records/s", _of(found, "consume"))
        _dots(axes[1][1], "Writing, by size and compression: records/s", _of(found, "produce"))
        _bars(
            axes[2][0],
            "Reading: CPU seconds a million records",
            reading,
            "cpu_per_million",
            1,
            "{:.2f}",
        )
        _bars(
            axes[2][1],
            "Writing: CPU seconds a million records",
            writing,
            "cpu_per_million",
            1,
            "{:.2f}",
        )
        _latencies(axes[3][0], found)
        memory = [case for case in reading if case["peer"] != "raw limit"] + writing
        _bars(axes[3][1], "Peak memory of the process, MB", memory, "peak_mb", 1, "{:.0f}")
        _groups(axes[4][0], found)
        _assigned(axes[4][1], found)
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
    """Draw one bar per case, the best on top; a whisker spans the lowest to the highest round."""
    axes.set_title(title)
    cases = sorted(
        cases, key=lambda case: float(case["median"][name]), reverse=name != "records_per_second"
    )
    values = [case["median"][name] * unit for case in cases]
    axes.barh(
        range(len(cases)), values, color=[_COLOURS[case["peer"]] for case in cases], height=0.7
    )
    for place, (case, value) in enumerate(zip(cases, values, strict=True)):
        rounds = [each[name] * unit for each in case["rounds"]]
        axes.plot([min(rounds), max(rounds)], [place, place], color="#00000099", linewidth=1)
        axes.annotate(
            form.format(value),
            (max(rounds), place),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
        )
    axes.set_yticks(range(len(cases)), [f"{case['peer']}  {case['call']}" for case in cases])
    axes.tick_params(axis="y", length=0)
    axes.margins(x=0.12)


def _dots(axes: Any, title: str, cases: Sequence[Case]) -> None:
    """Draw a row per configuration and a dot per case, on a logarithmic axis."""
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
    axes.set_yticks(
        range(len(setups)), [f"{size} B, {compression}" for size, compression in setups]
    )
    axes.set_ylim(-0.6, len(setups) - 0.4)
    axes.grid(axis="both", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    if cases:
        axes.legend(
            fontsize=7, frameon=False, loc="upper center", bbox_to_anchor=(0.45, -0.1), ncols=2
        )


def _latencies(axes: Any, found: Document) -> None:
    way, rate = list(found["about"]["latency_rates"].items())[1]
    cases = [case for case in _of(found, "latency") if case["way"] == way]
    _pairs(
        axes,
        f"End to end at {rate:,} records/s: ms",
        cases,
        {"p50_ms": "p50", "p99_ms": "p99"},
        "{:.2f}",
    )


def _groups(axes: Any, found: Document) -> None:
    cases = sorted(_of(found, "group"), key=_place)
    title = (
        f"Member {found['about']['members']} joins: ms to its first record; standstill of another"
    )
    _pairs(
        axes,
        title,
        cases,
        {"hand_over_ms": "joins", "standstill_ms": "stands"},
        "{:,.0f}",
        way=True,
    )


def _pairs(
    axes: Any,
    title: str,
    cases: Sequence[Case],
    names: dict[str, str],
    form: str,
    *,
    way: bool = False,
) -> None:
    """Draw two bars per case."""
    axes.set_title(title)
    cases = cases[::-1]
    for place, case in enumerate(cases):
        for (name, said), shift, alpha in zip(
            names.items(), (0.19, -0.19), (1.0, 0.6), strict=True
        ):
            value = case["median"][name]
            axes.barh(place + shift, value, color=_COLOURS[case["peer"]], height=0.36, alpha=alpha)
            text = f"{said}  {form.format(value)}"
            axes.annotate(
                text, (value, place + shift), xytext=(4, 0), textcoords="offset points", va="center"
            )
    axes.set_yticks(
        range(len(cases)),
        [f"{case['peer']}  {case['way']}" if way else case["peer"] for case in cases],
    )
    axes.tick_params(axis="y", length=0)
    axes.margins(x=0.15)


def _assigned(axes: Any, found: Document) -> None:
    """Draw a line per client over the number of partitions, on logarithmic axes."""
    axes.set_title(f"CPU us a record at {found['about']['trickle_rate']}/s, by assigned partitions")
    cases = sorted(_of(found, "assigned"), key=_place)
    for peer in dict.fromkeys(case["peer"] for case in cases):
        chosen = [case for case in cases if case["peer"] == peer]
        values = [case["median"]["cpu_per_million"] for case in chosen]
        axes.plot(
            [int(case["way"]) for case in chosen], values, "o-", color=_COLOURS[peer], label=peer
        )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.grid(axis="both", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    if cases:
        axes.legend(fontsize=7, frameon=False)


def main() -> int:
    parser = argparse.ArgumentParser(description="a run's JSON as a picture or as Markdown")
    parser.add_argument("json", type=Path)
    parser.add_argument("png", type=Path, nargs="?")
    parser.add_argument("--markdown", action="store_true", help="print the tables")
    parser.add_argument(
        "--update", type=Path, metavar="FOLDER", help="put the tables into the pages of a folder"
    )
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
