"""``trikafka topics elect``: elect leaders of partitions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import click

from .admin import ask
from .options import Common, common_options, output_option
from .partly import known_topics, others
from .resetting import parse_topics, partitions_of, topics_option
from .tables import PARTITION_COLUMNS, partition_info_json, say, say_json, table_of

if TYPE_CHECKING:
    from .._api.admin.admin import Admin
    from .._api.admin.elections import Election
    from ..types import PartitionInfo, TopicPartition


@click.command("elect")
@click.argument("names", nargs=-1, metavar="TOPIC[:P,...]...")
@topics_option
@click.option("--all", "everything", is_flag=True, help="All topics.")
@click.option(
    "--unclean",
    is_flag=True,
    help="For partitions without a leader: any live replica, also one that lacks records. The "
    "records that it lacks are lost. Needs --execute.",
)
@click.option(
    "--execute", is_flag=True, help="Carry out an election with --unclean. Others are held at once."
)
@output_option
@common_options
def elect(
    common: Common,
    names: tuple[str, ...],
    topics: tuple[str, ...],
    everything: bool,
    unclean: bool,
    execute: bool,
    output: str,
) -> None:
    """Make the first replica of each partition its leader again, as after a broker's restart.

    That loses nothing, so it is done at once. With --unclean, which may lose records, the command
    shows without --execute what it would elect.
    """
    chosen = parse_topics((*names, *topics))
    if bool(chosen) is everything:
        raise click.UsageError("which topics? give their names, or --all")
    acts = execute or not unclean

    wanted = None if everything else chosen
    rows = ask(common, lambda admin: elected(admin, wanted, unclean=unclean, acts=acts))
    found = [{**partition_info_json(info), "elected": elected} for info, elected in rows]
    if output == "json":
        kind = "unclean" if unclean else "preferred"
        say_json({"executed": acts, "election": kind, "partitions": found})
        return
    if not rows:
        say(
            "each of these partitions has a leader"
            if unclean
            else "each of these partitions is led by its first replica"
        )
        return
    columns = PARTITION_COLUMNS | {"leader": "LEADER BEFORE"}
    if acts:
        columns["elected"] = "ELECTED"
    say(table_of(columns, found))
    if not acts:
        say("nothing was changed; add --execute")


async def elected(
    admin: Admin, chosen: Mapping[str, set[int] | None] | None, *, unclean: bool, acts: bool
) -> list[tuple[PartitionInfo, bool]]:
    """Elect leaders where they are needed, if the command acts; ``None`` stands for all topics.

    Returns:
        The partitions as they were before, and whether each got a leader.
    """
    known, missing = await known_topics(admin, chosen or ())
    wanted = dict.fromkeys(known) if chosen is None else chosen
    places = set(partitions_of(wanted, known, missing))
    todo = {
        place: info
        for infos in known.values()
        for info in infos
        if (place := _place(info)) in places and _needs(info, unclean)
    }
    done: Mapping[TopicPartition, bool] = {}
    if acts and todo:
        kind: Election = "unclean" if unclean else "preferred"
        done = await others(admin.elect_leaders(todo, election=kind))
    return [(info, done.get(place, False)) for place, info in sorted(todo.items())]


def _needs(info: PartitionInfo, unclean: bool) -> bool:
    if unclean:
        return info.leader is None
    return bool(info.replicas) and info.leader != info.replicas[0]


def _place(info: PartitionInfo) -> TopicPartition:
    from ..types import TopicPartition

    return TopicPartition(info.topic, info.partition)
