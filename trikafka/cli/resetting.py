"""``trikafka groups reset-offsets``, and the choice of partitions and places for it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING

import click

from .admin import ask
from .options import Common, common_options, output_option
from .partly import changed, known_topics, no_leader, whole
from .progress import warn
from .start import TIMES, At, Start, check_come, not_come, parse
from .tables import partition_json, say, say_json, table_of

if TYPE_CHECKING:
    from .._api.admin.admin import Admin
    from ..types import PartitionInfo, TopicPartition

_SHIFT = re.compile(r"[+-]\d{1,18}")
topics_option = click.option(
    "-t",
    "--topic",
    "topics",
    multiple=True,
    metavar="TOPIC[:P,...]",
    help="A topic, or some of its partitions, such as orders:0,2; repeatable.",
)
execute_option = click.option(
    "--execute", is_flag=True, help="Do it. Without this, only what would happen is shown."
)


@dataclass(frozen=True, slots=True)
class Shift:
    """A place relative to the committed offset."""

    by: int


def parse_place(text: str, option: str = "--to") -> Start | Shift:
    """Return the place that ``--to`` or another option names.

    Raises:
        click.BadParameter: The text names none.
    """
    if _SHIFT.fullmatch(text):
        return Shift(int(text))
    try:
        start = parse(text)
    except click.BadParameter:
        start = Start(At.STORED)
    if start.at in (At.STORED, At.LAST):
        raise click.BadParameter(
            f"{text!r} is neither 'earliest', 'latest', an offset"
            + (", +N or -N from the committed offset" if option == "--to" else "")
            + f", nor a time: {TIMES}",
            param_hint=option,
        )
    return start


def parse_topics(given: Iterable[str]) -> dict[str, set[int] | None]:
    """Return the partitions by topic; ``None`` means all.

    Raises:
        click.BadParameter: A partition is not a number.
    """
    found: dict[str, set[int] | None] = {}
    for text in given:
        name, colon, numbers = text.partition(":")
        if not name or (colon and not re.fullmatch(r"\d+(,\d+)*", numbers)):
            raise click.BadParameter(
                f"{text!r} is not TOPIC or TOPIC:PARTITION, such as orders:0,2",
                param_hint="--topic",
            )
        known = found.setdefault(name, set() if colon else None)
        if not colon:
            found[name] = None
        elif known is not None:
            known.update(map(int, numbers.split(",")))
    return found


async def look_up(
    admin: Admin, chosen: Mapping[str, set[int] | None]
) -> tuple[list[TopicPartition], dict[str, list[PartitionInfo]]]:
    """Return the chosen partitions, and all topics.

    Raises:
        click.ClickException: A topic or partition does not exist, or the user may not see it.
    """
    known, missing = await known_topics(admin, chosen)
    return partitions_of(chosen, known, missing), known


def partitions_of(
    chosen: Mapping[str, set[int] | None],
    topics: Mapping[str, list[PartitionInfo]],
    missing: Callable[[str], str],
) -> list[TopicPartition]:
    """Return the chosen partitions; ``missing`` says why a topic is not among ``topics``.

    Raises:
        click.ClickException: A topic or partition does not exist.
    """
    from ..types import TopicPartition

    found = []
    for name, numbers in chosen.items():
        if name not in topics:
            raise click.ClickException(missing(name))
        there = {info.partition for info in topics[name]}
        if lacking := (numbers or set()) - there:
            raise click.ClickException(
                f"topic {name!r} has no partition {min(lacking)}, only 0 to {max(there)}"
            )
        found += [TopicPartition(name, number) for number in sorted(numbers or there)]
    return found


async def look_up_led(admin: Admin, chosen: Mapping[str, set[int] | None]) -> list[TopicPartition]:
    """Return the chosen partitions, which have leaders, or their offsets would not be known.

    Raises:
        click.ClickException: As :func:`look_up`, or a partition has no leader.
    """
    partitions, topics = await look_up(admin, chosen)
    check_led(partitions, topics)
    return partitions


def check_led(
    partitions: Iterable[TopicPartition], topics: Mapping[str, list[PartitionInfo]]
) -> None:
    """Refuse partitions without a leader: an admin client would wait for one.

    Raises:
        click.ClickException: A partition has no leader.
    """
    leaders = {
        (info.topic, info.partition): info.leader for infos in topics.values() for info in infos
    }
    for tp in partitions:
        if leaders.get(tp, 0) is None:
            raise click.ClickException(
                f"{no_leader(str(tp))}; -t {tp.topic}:P,... names only some partitions"
            )


async def offsets_at(
    admin: Admin,
    place: Start | Shift,
    partitions: list[TopicPartition],
    committed: Mapping[TopicPartition, int],
    *,
    deletes: bool = False,
) -> dict[TopicPartition, int]:
    """Return the offset of a place in each partition, moved into the log where it is outside.

    A time to come is the end, with a warning, as for Java's tool. With ``deletes``, records before
    the place are going to be deleted, and such a time is refused, like an offset beyond all ends.

    Raises:
        click.ClickException: The place is refused.
    """
    from ..types import OffsetSpec

    begins = await whole(admin.list_offsets(dict.fromkeys(partitions, OffsetSpec.EARLIEST)))
    ends = await whole(admin.list_offsets(dict.fromkeys(partitions, OffsetSpec.LATEST)))
    times = {}
    if isinstance(place, Start) and place.at is At.TIME:
        times = await whole(admin.list_offsets(dict.fromkeys(partitions, place.value)))
        if deletes:
            check_come(place, times.values())
        elif (why := not_come(place, times.values())) is not None:
            warn(f"{why}: the end is used")
    longest = max((end.offset for end in ends.values() if end is not None), default=0)
    if deletes and isinstance(place, Start) and place.at is At.OFFSET and place.value > longest:
        # It may be a date, such as 20260131, and all records would be gone. Java's tool refuses it.
        raise click.ClickException(
            f"no partition has an offset {place.value}, the highest one is {longest}; 'latest' "
            "deletes all records, and a date is written 2026-01-31"
        )
    found = {}
    for tp in partitions:
        begin = begins[tp]
        end = ends[tp]
        at_time = times.get(tp)
        assert begin is not None
        assert end is not None
        if isinstance(place, Shift):
            if tp not in committed:
                raise click.ClickException(f"{tp} has no committed offset to count from")
            wanted = committed[tp] + place.by
        elif place.at is At.OFFSET:
            wanted = place.value
        elif place.at is At.BEGINNING:
            wanted = begin.offset
        else:
            wanted = end.offset if at_time is None else at_time.offset
        found[tp] = min(max(wanted, begin.offset), end.offset)
        if found[tp] != wanted:
            warn(
                f"{tp} has no offset {wanted}, only {begin.offset} to {end.offset}: {found[tp]} "
                "is used"
            )
    return found


@click.command("reset-offsets")
@click.argument("group")
@topics_option
@click.option("--all-topics", is_flag=True, help="All topics of which the group has offsets.")
@click.option(
    "--to",
    "to",
    required=True,
    metavar="PLACE",
    help=f"earliest, latest, an offset, a time ({TIMES}), or +N or -N from the committed offset.",
)
@execute_option
@output_option
@common_options
def reset_offsets(
    common: Common,
    group: str,
    topics: tuple[str, ...],
    all_topics: bool,
    to: str,
    execute: bool,
    output: str,
) -> None:
    """Set the committed offsets of a group without members.

    Without --execute nothing is changed: the table shows what would be.
    """
    place = parse_place(to)
    chosen = parse_topics(topics)
    if bool(chosen) is all_topics:
        raise click.UsageError("give --topic, or --all-topics")

    wanted = None if all_topics else chosen
    rows = ask(common, lambda admin: reset(admin, group, wanted, place, acts=execute))
    say_reset(group, rows, "OFFSET", output, executed=execute)


async def reset(
    admin: Admin,
    group: str,
    chosen: Mapping[str, set[int] | None] | None,
    place: Start | Shift,
    *,
    acts: bool,
) -> list[tuple[TopicPartition, int | None, int]]:
    """Set a group's committed offsets to a place, if the command acts.

    ``None`` stands for all partitions of which the group has offsets.

    Returns:
        The partitions with their offsets before and after.
    """
    # Without the right to see the group, this fails. The list of groups would leave it out.
    committed = await whole(admin.list_group_offsets(group))
    stored = {tp: at.offset for tp, at in committed.items()}
    await check_group(admin, group)
    if chosen is None:
        partitions = sorted(stored)
        if not partitions:
            raise click.ClickException(f"group {group!r} has no offsets; give --topic")
        check_led(partitions, await admin.list_topics(include_internal=True))
    else:
        partitions = await look_up_led(admin, chosen)
    offsets = await offsets_at(admin, place, partitions, stored)
    done = partitions
    if acts:
        done = await changed(partitions, admin.alter_group_offsets(group, offsets))
    return [(tp, stored.get(tp), offsets[tp]) for tp in done]


def say_reset(
    group: str,
    rows: Iterable[tuple[TopicPartition, int | None, int]],
    column: str,
    output: str,
    *,
    executed: bool,
) -> None:
    """Print the offsets of a group's partitions before and after; ``column`` is their name."""
    found = [{**partition_json(tp), "before": old, "after": new} for tp, old, new in rows]
    if output == "json":
        say_json({"group": group, "executed": executed, "partitions": found})
        return
    columns = {"topic": "TOPIC", "partition": "PARTITION", "before": column, "after": "NEW"}
    say(table_of(columns, found))
    say(f"the offsets of {group} are set" if executed else "nothing was changed; add --execute")


async def check_group(admin: Admin, group: str, *, share: bool = False) -> None:
    """Refuse a group of another kind; warn of a group that is new, or that has members.

    Raises:
        click.ClickException: The group is a share group, or with ``share`` none.
    """
    listed = {each.group_id: each for each in await admin.list_groups()}
    if (found := listed.get(group)) is None:
        near = get_close_matches(group, listed, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        warn(f"group {group!r} does not exist yet{hint}")
    elif ((found.type or "").lower() == "share") is not share:
        kind, other = ("consumer", "groups") if share else ("share", "share-groups")
        raise click.ClickException(
            f"group {group!r} is a {found.type or kind} group: trikafka {other} reset-offsets "
            f"{group}"
        )
    elif (found.state or "Empty").lower() not in ("empty", "dead"):
        warn(
            f"group {group!r} has members ({found.state}): the broker refuses until they have left"
        )
