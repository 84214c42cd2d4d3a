"""``trikafka share-groups``: list, describe and delete share groups, and their offsets."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

import click

from .admin import ask, chosen
from .deleting import delete_groups
from .options import Common, common_options, output_option
from .partly import changed, each, every_group, existing, named_groups, others, whole
from .resetting import (
    check_group,
    execute_option,
    look_up_led,
    offsets_at,
    parse_place,
    parse_topics,
    say_reset,
    topics_option,
)
from .running import printable
from .start import TIMES
from .suggesting import Suggesting
from .tables import partition_json, say, say_done, say_json, say_rows, table

if TYPE_CHECKING:
    from .._api.admin.admin import Admin
    from .._api.admin.share_groups import SharePartitionOffset
    from ..types import GroupDescription, TopicPartition

_names = click.argument("names", nargs=-1, metavar="[GROUP]...")


@click.group(
    cls=Suggesting,
    otherwise="'describe GROUP' shows a group",
    default="list",
    words={
        "list": "ls show",
        "offsets": "lag state offset",
        "describe": "members",
        "reset-offsets": "reset reset-offset alter",
        "delete": "rm remove",
    },
)
@common_options
def command(common: Common) -> None:
    """Show share groups and their offsets, reset or delete them.

    Without a subcommand they are listed.
    """


@command.command("list")
@output_option
@common_options
def list_(common: Common, output: str) -> None:
    """List the share groups."""
    groups = ask(common, _listed)
    say_rows(output, {"group": "GROUP", "state": "STATE"}, groups, "no share groups")


async def _listed(admin: Admin) -> list[tuple[str, str | None]]:
    found = await every_group(admin)
    return [(name, group.state) for name, group in found.items() if group.type == "share"]


async def _chosen(admin: Admin, names: Collection[str]) -> list[str]:
    """Return the named share groups, or all; note those that are missing or of another kind.

    Raises:
        ClickException: The only group is missing, or is not a share group.
        AdminErrors: None of several is a share group.
    """
    if not names:
        return [name for name, _ in await _listed(admin)]
    found = await named_groups(admin, names)

    def other(name: str) -> str:
        return (
            f"{name!r} is not a share group but a {found[name].type or 'consumer'} group; see "
            "`trikafka groups`"
        )

    return existing(found, {name for name in found if found[name].type == "share"}, other)


@command.command()
@_names
@output_option
@common_options
def describe(common: Common, names: tuple[str, ...], output: str) -> None:
    """Show state and members of share groups: those that are given, or all."""

    async def work(admin: Admin) -> list[GroupDescription]:
        found = await others(admin.describe_share_groups(await _chosen(admin, names)))
        return list(found.values())

    groups = ask(common, work)
    if output == "json":
        say_json([_as_json(group) for group in groups])
        return
    if not groups:
        say("no share groups")
    for at, group in enumerate(groups):
        count = f"{len(group.members)} members" if len(group.members) != 1 else "1 member"
        head = printable(f"{group.group_id}  ({group.state}, epoch {group.epoch}, {count})")
        rows = [
            (
                member.member_id,
                member.client_id,
                member.client_host,
                member.epoch,
                ",".join(member.topics),
                " ".join(map(str, member.assignment)),
            )
            for member in group.members
        ]
        header = ("MEMBER", "CLIENT", "HOST", "EPOCH", "TOPICS", "PARTITIONS")
        say(("\n" if at else "") + head + ("\n" + table(header, rows) if rows else ""))


def _as_json(group: GroupDescription) -> dict[str, Any]:
    return {
        "group": group.group_id,
        "state": group.state,
        "epoch": group.epoch,
        "assignment_epoch": group.assignment_epoch,
        "assignor": group.assignor,
        "members": [
            {
                "member_id": member.member_id,
                "client_id": member.client_id,
                "host": member.client_host,
                "rack": member.rack,
                "epoch": member.epoch,
                "topics": list(member.topics),
                "partitions": [partition_json(tp) for tp in member.assignment],
            }
            for member in group.members
        ],
    }


@command.command()
@_names
@output_option
@common_options
def offsets(common: Common, names: tuple[str, ...], output: str) -> None:
    """Show start offsets and lag of share groups: those that are given, or all.

    START is where the group begins, which the broker moves now and then. LAG is the number of
    records that are not settled.
    """

    async def work(admin: Admin) -> Mapping[str, Mapping[TopicPartition, SharePartitionOffset]]:
        return await others(admin.list_share_group_offsets(await _chosen(admin, names)))

    found = ask(common, work)
    rows = [
        (group, *tp, at.start_offset, at.lag)
        for group, places in found.items()
        for tp, at in places.items()
    ]
    columns = {
        "group": "GROUP",
        "topic": "TOPIC",
        "partition": "PARTITION",
        "start_offset": "START",
        "lag": "LAG",
    }
    say_rows(output, columns, rows, "no offsets")


@command.command("reset-offsets")
@click.argument("group")
@topics_option
@click.option(
    "--to",
    "to",
    required=True,
    metavar="PLACE",
    help=f"earliest, latest, an offset, a time ({TIMES}), or +N or -N from the start offset.",
)
@execute_option
@output_option
@common_options
def reset_offsets(
    common: Common, group: str, topics: tuple[str, ...], to: str, execute: bool, output: str
) -> None:
    """Set the start offsets of a share group without members.

    Without --execute nothing is changed: the table shows what would be.
    """
    place = parse_place(to)
    wanted = parse_topics(topics)
    if not wanted:
        raise click.UsageError("which topic? give --topic")

    async def work(admin: Admin) -> list[tuple[TopicPartition, int | None, int]]:
        partitions = await look_up_led(admin, wanted)
        places = (await whole(admin.list_share_group_offsets({group: partitions})))[group]
        stored = {tp: at.start_offset for tp, at in places.items()}
        await check_group(admin, group, share=True)
        new = await offsets_at(admin, place, partitions, stored)
        done: Collection[TopicPartition] = partitions
        if execute:
            done = await changed(partitions, admin.alter_share_group_offsets(group, new))
        return [(tp, stored.get(tp), new[tp]) for tp in done]

    say_reset(group, ask(common, work), "START", output, executed=execute)


@command.command()
@_names
@click.option(
    "-t",
    "--topic",
    "topics",
    multiple=True,
    metavar="TOPIC",
    help="Delete only the offsets of this topic; repeatable.",
)
@output_option
@common_options
def delete(common: Common, names: tuple[str, ...], topics: tuple[str, ...], output: str) -> None:
    """Delete share groups without members, or with --topic only their offsets of topics."""
    named = chosen("group", names)

    async def work(admin: Admin) -> Collection[str]:
        # The broker deletes a group of any kind, so only those that are share groups are named.
        todo = await _chosen(admin, named)
        if not topics:
            cure = "stop them first"
            return await delete_groups(admin, todo, admin.describe_share_groups, cure)
        return await each(todo, lambda group: admin.delete_share_group_offsets(group, topics))

    gone = list(ask(common, work))
    what = f"offsets of {', '.join(topics)} in " if topics else ""
    said: dict[str, object] = {"deleted": gone}
    if topics:
        said["topics"] = list(topics)
    say_done(output, f"deleted: {what}{', '.join(gone)}", said)
