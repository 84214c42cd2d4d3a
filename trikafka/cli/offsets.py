"""``trikafka topics offsets``: the offsets of a place or a time in each partition."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

import click

from .admin import ask
from .options import Common, common_options, output_option
from .partly import beside, existing, known_topics, led, others
from .resetting import Shift, parse_place, parse_topics, partitions_of, topics_option
from .start import TIMES, At, Start
from .tables import say_rows, time_text

if TYPE_CHECKING:
    from .._api.admin.admin import Admin
    from ..types import OffsetSpec, TopicPartition

#: The time of the newest record, by its timestamp.
_NEWEST = "newest"


class Found(NamedTuple):
    """The offset of a place in a partition, and the timestamp of its record.

    ``offset`` is ``None`` if no record is there. ``behind``: the records from the offset on.
    """

    place: TopicPartition
    offset: int | None
    timestamp: int | None
    behind: int


class Ends(NamedTuple):
    """The first offset of a partition's log and the one after its last; ``None``: not known."""

    place: TopicPartition
    earliest: int | None
    latest: int | None


@click.command()
@click.argument("names", nargs=-1, metavar="TOPIC[:P,...]...")
@topics_option
@click.option(
    "--at",
    "at",
    metavar="PLACE",
    help=f"earliest, latest, newest (the record with the highest timestamp), or a time: {TIMES}.",
)
@output_option
@common_options
def offsets(
    common: Common, names: tuple[str, ...], topics: tuple[str, ...], at: str | None, output: str
) -> None:
    """Show the offset of a place or a time in each partition; without --at, both ends of its log.

    The offset of a time is that of the first record that is as late; a partition without such a
    record has none. BEHIND counts the offsets from there to the end of the log.
    """
    chosen = parse_topics((*names, *topics))
    if not chosen:
        raise click.UsageError("which topic?")
    if at is None:
        _print_ends(ask(common, lambda admin: found_ends(admin, chosen)), output)
        return
    place = parse_at(at)
    rows = ask(common, lambda admin: found_at(admin, chosen, place))
    columns = {
        "topic": "TOPIC",
        "partition": "PARTITION",
        "offset": "OFFSET",
        "timestamp": "TIMESTAMP",
        "behind": "BEHIND",
    }
    as_time = time_text if output != "json" else lambda ms: ms
    cells = [(*each.place, each.offset, as_time(each.timestamp), each.behind) for each in rows]
    say_rows(output, columns, cells)


def _print_ends(rows: list[Ends], output: str) -> None:
    columns = {
        "topic": "TOPIC",
        "partition": "PARTITION",
        "earliest": "EARLIEST",
        "latest": "LATEST",
    }
    say_rows(output, columns, [(*each.place, each.earliest, each.latest) for each in rows])


def parse_at(text: str) -> OffsetSpec | int:
    """Return the place that ``--at`` names, as an admin client takes it.

    Raises:
        click.BadParameter: The text names none.
    """
    from ..types import OffsetSpec

    if text == _NEWEST:
        return OffsetSpec.MAX_TIMESTAMP
    try:
        place: Start | Shift = parse_place(text)
    except click.BadParameter:
        place = Shift(0)
    if isinstance(place, Start) and place.at is At.TIME:
        return place.value
    if isinstance(place, Start) and place.at in (At.BEGINNING, At.END):
        return OffsetSpec.EARLIEST if place.at is At.BEGINNING else OffsetSpec.LATEST
    raise click.BadParameter(
        f"{text!r} is neither 'earliest', 'latest', 'newest', nor a time: {TIMES}",
        param_hint="--at",
    )


async def found_at(
    admin: Admin, chosen: Mapping[str, set[int] | None], place: OffsetSpec | int
) -> list[Found]:
    """Return the offset of a place in each chosen partition."""
    from ..types import OffsetSpec

    partitions = await _existing(admin, chosen)
    found = await others(admin.list_offsets(dict.fromkeys(partitions, place)))
    ends = await others(admin.list_offsets(dict.fromkeys(found, OffsetSpec.LATEST)))
    rows = []
    for tp, at in found.items():
        end = ends.get(tp)
        offset = None if at is None else at.offset
        behind = 0 if offset is None or end is None else max(0, end.offset - offset)
        stamp = None if at is None else at.timestamp
        rows.append(Found(tp, offset, None if stamp is None or stamp < 0 else stamp, behind))
    return rows


async def found_ends(admin: Admin, chosen: Mapping[str, set[int] | None]) -> list[Ends]:
    """Return the first offset and the end of the log in each chosen partition."""
    from ..types import OffsetSpec

    partitions = await _existing(admin, chosen)
    first, last = await beside(
        {
            "first offsets": admin.list_offsets(dict.fromkeys(partitions, OffsetSpec.EARLIEST)),
            "end offsets": admin.list_offsets(dict.fromkeys(partitions, OffsetSpec.LATEST)),
        }
    )
    found = [(tp, first.get(tp), last.get(tp)) for tp in partitions if tp in first or tp in last]
    return [
        Ends(tp, None if begin is None else begin.offset, None if end is None else end.offset)
        for tp, begin, end in found
    ]


async def _existing(
    admin: Admin, chosen: Mapping[str, set[int] | None]
) -> Iterable[TopicPartition]:
    known, missing = await known_topics(admin, chosen)
    there = existing(chosen, known, missing)
    return led(partitions_of({name: chosen[name] for name in there}, known, missing), known)
