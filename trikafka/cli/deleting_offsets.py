"""``trikafka groups delete-offsets``: delete the committed offsets of topics from a group."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import click

from .admin import ask
from .options import Common, common_options, output_option
from .partly import changed, consumer_groups, whole
from .resetting import execute_option, parse_topics, topics_option
from .tables import partition_json, say, say_json, table_of

if TYPE_CHECKING:
    from .._api.admin.admin import Admin
    from ..types import TopicPartition


@click.command("delete-offsets")
@click.argument("group")
@topics_option
@execute_option
@output_option
@common_options
def delete_offsets(
    common: Common, group: str, topics: tuple[str, ...], execute: bool, output: str
) -> None:
    """Delete a group's committed offsets of topics or of some partitions.

    The group may have members, if none of them is subscribed to these topics. Without --execute
    nothing is deleted: the table shows what would be.
    """
    chosen = parse_topics(topics)
    if not chosen:
        raise click.UsageError("give at least one --topic")

    async def work(admin: Admin) -> list[tuple[TopicPartition, int]]:
        # Without the right to see the group, this fails. The list of groups would leave it out.
        committed = await whole(admin.list_group_offsets(group))
        stored = {tp: at.offset for tp, at in committed.items()}
        await consumer_groups(admin, [group], "delete --topic TOPIC")
        found = stored_places(group, stored, chosen)
        if execute:
            found = await changed(found, admin.delete_group_offsets(group, found))
        return [(tp, stored[tp]) for tp in found]

    found = [{**partition_json(tp), "offset": at} for tp, at in ask(common, work)]
    if output == "json":
        say_json({"group": group, "executed": execute, "partitions": found})
        return
    say(table_of({"topic": "TOPIC", "partition": "PARTITION", "offset": "OFFSET"}, found))
    say("deleted" if execute else "nothing was deleted; add --execute")


def stored_places(
    group: str, stored: Iterable[TopicPartition], chosen: Mapping[str, set[int] | None]
) -> list[TopicPartition]:
    """Return the chosen partitions of which the group has offsets.

    Raises:
        click.ClickException: The group has no offset of a chosen topic or partition.
    """
    there: dict[str, dict[int, TopicPartition]] = {}
    for tp in sorted(stored):
        there.setdefault(tp.topic, {})[tp.partition] = tp
    found: list[TopicPartition] = []
    for topic, numbers in chosen.items():
        own = there.get(topic, {})
        if not own:
            has = f"; it has those of {', '.join(there)}" if there else ""
            raise click.ClickException(f"group {group!r} has no offsets of topic {topic!r}{has}")
        if missing := (numbers or set()) - own.keys():
            raise click.ClickException(
                f"group {group!r} has no offset of partition {min(missing)} of topic {topic!r}"
            )
        found += [own[number] for number in sorted(numbers or own)]
    return found
