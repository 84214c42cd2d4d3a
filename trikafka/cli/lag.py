"""``trikafka groups lag``: how far groups are behind, once or repeatedly."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from .options import Common, common_options, is_terminal, output_option
from .partly import consumer_groups, each, every_group, log_ends, noted_failures, others
from .progress import warn
from .running import Stop, run, sentence
from .tables import say, say_json, table

if TYPE_CHECKING:
    from .._api.admin.admin import Admin
    from ..types import TopicPartition

Places = dict["TopicPartition", tuple[int, int | None]]
_CLEAR = "\x1b[H\x1b[2J"


@click.command("lag")
@click.argument("names", nargs=-1, metavar="[GROUP]...")
@click.option("-w", "--watch", is_flag=True, help="Repeat until a signal.")
@click.option(
    "--every",
    type=click.FloatRange(0.1),
    default=2.0,
    show_default=True,
    metavar="SECONDS",
    help="With --watch: the time between two reports.",
)
@click.option(
    "--by-group", is_flag=True, help="A row for each group, with the sum of its partitions."
)
@output_option
@common_options
def lag(
    common: Common, names: tuple[str, ...], watch: bool, every: float, by_group: bool, output: str
) -> None:
    """Show how many records groups have still to read: of those that are given, or of all.

    With --watch, RATE is the number of records a second that the group has passed since the last
    report.
    """
    from .._api.admin.opening import open_admin
    from ..config import AdminConfig

    async def main(stop: Stop) -> None:
        import trio

        before: dict[str, Places] = {}
        then = 0.0
        warned = ""
        async with open_admin(**common.settings(AdminConfig)) as admin:
            with stop.here():
                while True:
                    found = await _read_places(admin, list(names))
                    now = time.monotonic()
                    rows = _rows(found, before, now - then)
                    _show(_summed(rows) if by_group else rows, output, watch, by_group)
                    if not watch:
                        return
                    failed = noted_failures()  # the next attempt may succeed
                    warning = sentence(failed)[0] if failed is not None else ""
                    if warning and warning != warned:
                        warn(warning)
                    warned = warning
                    before, then = found, now
                    await trio.sleep(every)

    run(main)


async def _read_places(admin: Admin, names: list[str]) -> dict[str, Places]:
    """Return committed offset and end of each partition, by group."""
    if names:
        listed = await consumer_groups(admin, names, "offsets")
    else:
        found = await every_group(admin)
        listed = {name: group for name, group in found.items() if group.type != "share"}
    stored = await each(listed, lambda name: others(admin.list_group_offsets(name), of=name))
    places = {tp for offsets in stored.values() for tp in offsets}
    ends = await log_ends(admin, places)
    return {
        name: {
            tp: (at.offset, end.offset if (end := ends.get(tp)) is not None else None)
            for tp, at in sorted(offsets.items())
        }
        for name, offsets in stored.items()
    }


def _rows(
    found: dict[str, Places], before: dict[str, Places], seconds: float
) -> list[dict[str, Any]]:
    rows = []
    for group, places in found.items():
        for tp, (offset, end) in places.items():
            earlier = before.get(group, {}).get(tp)
            rows.append(
                {
                    "group": group,
                    "topic": tp.topic,
                    "partition": tp.partition,
                    "offset": offset,
                    "end": end,
                    "lag": None if end is None else max(0, end - offset),
                    "rate": None if earlier is None else round((offset - earlier[0]) / seconds),
                }
            )
    return rows


def _summed(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a row for each group, with the number of its partitions whose lag is unknown.

    The sum is that of the others; ``None`` if no lag is known.
    """
    sums: dict[str, dict[str, Any]] = {}
    for row in rows:
        known = sums.setdefault(
            row["group"],
            {"group": row["group"], "partitions": 0, "lag": None, "unknown": 0, "rate": None},
        )
        known["partitions"] += 1
        known["unknown"] += row["lag"] is None
        for name in ("lag", "rate"):
            if row[name] is not None:
                known[name] = (known[name] or 0) + row[name]
    return list(sums.values())


def at_least(total: int | None, unknown: int) -> int | str | None:
    """Return a sum as a table shows it, marked if ``unknown`` numbers are missing from it."""
    return f"at least {total}" if unknown and total is not None else total


def _show(rows: list[dict[str, Any]], output: str, watch: bool, by_group: bool) -> None:
    if not watch:
        rows = [{name: row[name] for name in row if name != "rate"} for row in rows]
    if output == "json":
        say_json(rows)
        return
    if not rows and not watch:
        say("no group has offsets")
        return
    names = (
        ["group", "partitions"] if by_group else ["group", "topic", "partition", "offset", "end"]
    )
    names += ["lag", "rate"] if watch else ["lag"]
    if by_group:
        rows = [
            {name: row[name] for name in names} | {"lag": at_least(row["lag"], row["unknown"])}
            for row in rows
        ]
    text = table([name.upper() for name in names], [tuple(row.values()) for row in rows])
    if watch and is_terminal():
        text = _CLEAR + time.strftime("%H:%M:%S\n") + text
    say(text)
