"""``trikafka groups``: list, describe and delete consumer groups, and change their offsets."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import click

from .admin import ask, chosen
from .deleting import delete_groups
from .deleting_offsets import delete_offsets
from .lag import at_least, lag
from .options import Common, common_options, output_option
from .partly import consumer_groups, each, every_group, log_ends, named_groups, others
from .removing import remove_members
from .resetting import reset_offsets
from .running import printable
from .suggesting import WithVerbs, complete_verbs
from .tables import partition_json, say, say_done, say_json, say_objects, table

if TYPE_CHECKING:
    from .._api.admin.admin import Admin
    from ..types import TopicPartition


#: What a word means that is not a group, by other tools' habits.
_HINTS = {
    **{
        verb: f"; did you mean 'trikafka groups {verb}{of}'?"
        for verb, of in (("list", ""), ("describe", " GROUP"), ("delete", " GROUP"))
    },
    **dict.fromkeys(
        ("reset", "reset-offset", "resetoffsets", "seek"),
        "; did you mean 'trikafka groups reset-offsets GROUP'?",
    ),
    **dict.fromkeys(
        ("offsets", "show", "members", "state"), "; did you mean 'trikafka groups GROUP'?"
    ),
    **dict.fromkeys(
        ("delete-offset", "offset-delete", "offsets-delete"),
        "; did you mean 'trikafka groups delete-offsets GROUP'?",
    ),
    **dict.fromkeys(
        ("remove", "remove-member", "kick"),
        "; did you mean 'trikafka groups remove-members GROUP'?",
    ),
}


_names = click.argument("names", nargs=-1, metavar="[GROUP]...")


@click.command("list")
@output_option
@common_options
def list_groups(common: Common, output: str) -> None:
    """List the groups of all types."""
    _list(common, output)


@click.command("describe")
@_names
@output_option
@common_options
def describe_groups(common: Common, names: tuple[str, ...], output: str) -> None:
    """Show members, offsets and lag of groups: of those that are given, or of all."""
    _show(common, list(names) or None, output)


@click.command("delete")
@_names
@output_option
@common_options
def delete_named(common: Common, names: tuple[str, ...], output: str) -> None:
    """Delete consumer groups without members, and their offsets."""
    _delete(common, chosen("group", names, ()), output)


class _Groups(WithVerbs):
    verbs = MappingProxyType(
        {
            "list": list_groups,
            "describe": describe_groups,
            "delete": delete_named,
            "lag": lag,
            "reset-offsets": reset_offsets,
            "delete-offsets": delete_offsets,
            "remove-members": remove_members,
        }
    )
    habits = MappingProxyType(_HINTS)


@click.command(cls=_Groups)
@click.argument("names", nargs=-1, metavar="[GROUP]...", shell_complete=complete_verbs)
@click.option(
    "-G",
    "--group",
    "more",
    multiple=True,
    metavar="GROUP",
    help="A group, as the argument; repeatable.",
)
@click.option("--list", "list_", is_flag=True, help="List the groups, as without an argument.")
@click.option("--describe", is_flag=True, help="Describe the groups that are given, or all.")
@click.option(
    "--delete",
    is_flag=True,
    help="Delete the groups that are given, and their offsets. They must have no members.",
)
@output_option
@common_options
def command(
    common: Common,
    names: tuple[str, ...],
    more: tuple[str, ...],
    list_: bool,
    describe: bool,
    delete: bool,
    output: str,
) -> None:
    """Show consumer groups: all of them, or the members, offsets and lag of those that are given.

    Of each partition: what is committed (OFFSET), where the log ends (END), how many lie between
    (LAG), and who reads it (MEMBER, CLIENT: the client_id of its program, HOST). A member without
    partitions has a line of its own.

    "trikafka groups lag GROUP" shows only the lag, with --watch again and again; "trikafka groups
    reset-offsets GROUP" sets the offsets of a group, "delete-offsets GROUP" deletes those of topics,
    and "remove-members GROUP" removes its members; see their --help. "list", "describe GROUP" and
    "delete GROUP" do what the options of these names do.
    """
    if list_ + describe + delete > 1:
        raise click.UsageError("give only one of --list, --describe and --delete")
    if delete:
        _delete(common, chosen("group", names, more), output)
    elif describe or ((names or more) and not list_):
        _show(common, chosen("group", names, more) if names or more else None, output)
    else:
        _list(common, output)


def _delete(common: Common, names: list[str], output: str) -> None:
    cure = "stop them first, or see 'trikafka groups remove-members {} --all'"

    async def work(admin: Admin) -> list[str]:
        own = await consumer_groups(admin, names, "delete", _HINTS)
        return await delete_groups(admin, own, admin.describe_groups, cure)

    gone = ask(common, work)
    say_done(output, f"deleted: {', '.join(gone)}", {"deleted": gone})


def _show(common: Common, names: list[str] | None, output: str) -> None:
    found = ask(common, lambda admin: _describe(admin, names))
    if output == "json":
        say_json(found)
    else:
        for at, group in enumerate(found):
            say(("\n" if at else "") + _as_text(group))


def _list(common: Common, output: str) -> None:
    groups = [
        {"group": g.group_id, "state": g.state, "type": g.type, "protocol_type": g.protocol_type}
        for g in ask(common, every_group).values()
    ]
    say_objects(output, {"group": "GROUP", "state": "STATE", "type": "TYPE"}, groups, "no groups")


async def _describe(admin: Admin, names: list[str] | None) -> list[dict[str, Any]]:
    if names is None:
        listed = await every_group(admin)
    else:
        listed = await named_groups(admin, names, _HINTS)
    described = await others(admin.describe_groups(listed))
    places = await each(
        described,
        lambda name: _partitions(
            admin,
            name,
            {
                tp: member.member_id
                for member in described[name].members
                for tp in member.assignment
            },
        ),
    )
    return [
        {
            "group": name,
            "state": described[name].state,
            "type": listed[name].type,
            "protocol": described[name].protocol,
            "members": [
                {
                    "member_id": member.member_id,
                    "client_id": member.client_id,
                    "host": member.client_host,
                    "partitions": [partition_json(tp) for tp in member.assignment],
                }
                for member in described[name].members
            ],
            "partitions": partitions,
        }
        for name, partitions in places.items()
    ]


async def _partitions(
    admin: Admin, group: str, owners: dict[TopicPartition, str]
) -> list[dict[str, Any]]:
    """Return offset, end and lag of every partition that is committed or assigned."""
    committed = await others(admin.list_group_offsets(group), of=group)
    places = sorted({*committed, *owners})
    ends = await log_ends(admin, places)

    def row(tp: TopicPartition) -> dict[str, Any]:
        at = committed.get(tp)
        end = ends.get(tp)
        lag = max(0, end.offset - at.offset) if at is not None and end is not None else None
        return {
            "topic": tp.topic,
            "partition": tp.partition,
            "offset": at.offset if at is not None else None,
            "end": end.offset if end is not None else None,
            "lag": lag,
            "member_id": owners.get(tp),
        }

    return [row(tp) for tp in places]


def _as_text(group: dict[str, Any]) -> str:
    members = {member["member_id"]: member for member in group["members"]}
    count = f"{len(members)} members" if len(members) != 1 else "1 member"
    kind = ", ".join(
        dict.fromkeys(
            text for text in (group["state"], group["type"], group["protocol"], count) if text
        )
    )
    rows = [
        (
            p["topic"],
            p["partition"],
            p["offset"],
            p["end"],
            p["lag"],
            *_who(members.get(p["member_id"]), p["member_id"]),
        )
        for p in group["partitions"]
    ]
    idle = [
        ("", None, None, None, None, *_who(member, member["member_id"]))
        for member in group["members"]
        if not member["partitions"]
    ]
    lags = [p["lag"] for p in group["partitions"] if p["lag"] is not None]
    total = at_least(sum(lags), len(rows) - len(lags)) if lags else None
    head = printable(f"{group['group']}  ({kind})") + (f"  lag {total}" if lags else "")
    if not rows and not idle:
        return head
    return (
        head
        + "\n"
        + table(
            ("TOPIC", "PARTITION", "OFFSET", "END", "LAG", "MEMBER", "CLIENT", "HOST"),
            [*rows, *idle],
        )
    )


def _who(
    member: dict[str, Any] | None, member_id: str | None
) -> tuple[str | None, str | None, str | None]:
    """Return a member's id, its program's ``client_id`` and its host."""
    return member_id, (member or {}).get("client_id"), (member or {}).get("host")
