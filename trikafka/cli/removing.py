"""``trikafka groups remove-members``: remove members from a consumer group."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from .admin import ask
from .options import Common, common_options, output_option
from .partly import changed
from .resetting import execute_option
from .tables import partition_json, say, say_json, table

if TYPE_CHECKING:
    from .._api.admin.admin import Admin
    from ..types import MemberDescription


@click.command("remove-members")
@click.argument("group")
@click.option(
    "--member", "members", multiple=True, metavar="ID", help="A member by its id; repeatable."
)
@click.option(
    "--instance",
    "instances",
    multiple=True,
    metavar="ID",
    help="A static member by its group.instance.id; repeatable.",
)
@click.option("--all", "everyone", is_flag=True, help="All members.")
@click.option("--reason", metavar="TEXT", help="The reason for the coordinator's log.")
@execute_option
@output_option
@common_options
def remove_members(
    common: Common,
    group: str,
    members: tuple[str, ...],
    instances: tuple[str, ...],
    everyone: bool,
    reason: str | None,
    execute: bool,
    output: str,
) -> None:
    """Remove members from a consumer group; their partitions go to others at once.

    A member that still runs joins again. Without --execute, the command removes no member and shows
    those that it would remove.
    """
    if bool(members or instances) is everyone:
        raise click.UsageError("give --member or --instance, or --all")

    async def work(admin: Admin) -> list[MemberDescription]:
        from ..errors import GroupIdNotFoundError

        try:
            found = (await admin.describe_groups([group]))[group]
        except GroupIdNotFoundError:
            raise click.ClickException(f"group {group!r} does not exist") from None
        if found.type == "share":  # Kafka removes members from consumer groups only
            raise click.ClickException(
                f"group {group!r} is a share group, whose members cannot be removed: stop them"
            )
        chosen = [
            member
            for member in found.members
            if everyone or member.member_id in members or member.instance_id in instances
        ]
        known = {id for member in chosen for id in (member.member_id, member.instance_id)}
        if missing := [id for id in (*members, *instances) if id not in known]:
            raise click.ClickException(f"group {group!r} has no member {missing[0]!r}")
        if execute and chosen:
            removal = admin.remove_group_members(
                group,
                [member.member_id for member in chosen if not member.instance_id],
                instance_ids=[member.instance_id for member in chosen if member.instance_id],
                reason=reason,
            )
            done = await changed([each.instance_id or each.member_id for each in chosen], removal)
            chosen = [each for each in chosen if (each.instance_id or each.member_id) in done]
        return chosen

    removed = ask(common, work)
    if output == "json":
        say_json(
            {
                "group": group,
                "executed": execute,
                "members": [
                    {
                        "member_id": member.member_id,
                        "instance_id": member.instance_id,
                        "client_id": member.client_id,
                        "host": member.client_host,
                        "partitions": [partition_json(tp) for tp in member.assignment],
                    }
                    for member in removed
                ],
            }
        )
        return
    if not removed:
        say(f"group {group} has no members")
        return
    rows = [
        (m.member_id, m.instance_id, m.client_id, m.client_host, len(m.assignment)) for m in removed
    ]
    say(table(("MEMBER", "INSTANCE", "CLIENT", "HOST", "PARTITIONS"), rows))
    say("removed" if execute else "no member was removed; add --execute")
