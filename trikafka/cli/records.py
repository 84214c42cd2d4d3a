"""``trikafka records``: delete the oldest records of topics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import click

from .admin import ask
from .options import Common, common_options, output_option
from .partly import others, whole
from .resetting import (
    Shift,
    execute_option,
    look_up_led,
    offsets_at,
    parse_place,
    parse_topics,
    topics_option,
)
from .start import TIMES
from .suggesting import Suggesting
from .tables import partition_json, say, say_json, table

if TYPE_CHECKING:
    from .._api.admin.admin import Admin
    from ..types import TopicPartition


@click.group(
    cls=Suggesting,
    otherwise="'trikafka consume' prints records, 'trikafka produce' writes them",
    words={"delete": "remove purge truncate"},
)
@common_options
def command(common: Common) -> None:
    """Delete the oldest records of topics."""


@command.command()
@topics_option
@click.option(
    "--before",
    required=True,
    metavar="PLACE",
    help=f"The first record to keep: latest (none), an offset, or a time ({TIMES}).",
)
@execute_option
@output_option
@common_options
def delete(
    common: Common, topics: tuple[str, ...], before: str, execute: bool, output: str
) -> None:
    """Delete all records before a place, for good and for every reader.

    Without --execute, the command deletes nothing and shows what it would delete.
    """
    place = parse_place(before, "--before")
    chosen = parse_topics(topics)
    if isinstance(place, Shift):
        raise click.BadParameter("+N and -N count from a group's offset", param_hint="--before")
    if not chosen:
        raise click.UsageError("give at least one --topic")

    async def work(admin: Admin) -> list[tuple[TopicPartition, int, int]]:
        from ..types import OffsetSpec

        partitions = await look_up_led(admin, chosen)
        begins = await whole(admin.list_offsets(dict.fromkeys(partitions, OffsetSpec.EARLIEST)))
        offsets: Mapping[TopicPartition, int] = await offsets_at(
            admin, place, partitions, {}, deletes=True
        )
        if execute:
            offsets = await others(admin.delete_records(offsets))
        return [
            (tp, begin.offset, offset)
            for tp, offset in offsets.items()
            if (begin := begins[tp]) is not None
        ]

    rows = ask(common, work)
    if output == "json":
        found = [{**partition_json(tp), "first": old, "after": new} for tp, old, new in rows]
        say_json({"executed": execute, "partitions": found})
        return
    cells = [(*tp, old, new, new - old) for tp, old, new in rows]
    say(table(("TOPIC", "PARTITION", "FIRST", "NEW FIRST", "DELETED"), cells))
    say("deleted" if execute else "nothing was deleted; add --execute")
