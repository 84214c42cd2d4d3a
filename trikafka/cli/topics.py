"""``trikafka topics``: list, create, delete, describe and grow topics.

The options of ``kafka-topics`` are accepted as well.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from .admin import ask, chosen
from .elections import elect
from .offsets import offsets
from .options import Common, common_options, different, more_topics_option, output_option, pairs
from .partly import beside, changed, existing, known_topics
from .suggesting import Suggesting
from .tables import PARTITION_COLUMNS, say, say_done, say_json, say_objects, table_of

if TYPE_CHECKING:
    from .._api.admin.admin import Admin
    from ..types import PartitionInfo

#: Seconds within which the brokers know of a new topic.
_KNOWN_WITHIN = 5.0
_VERBS = ("list", "create", "delete", "describe", "alter")


class _TopicVerbs(Suggesting):
    """A group that accepts ``topics --create --topic x`` for ``topics create --topic x``.

    Beside a command, such an option is an error: ``topics describe x --delete`` deletes nothing.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        verb = next((verb for verb in _VERBS if f"--{verb}" in args), None)
        if verb is not None:
            rest = [arg for arg in args if arg != f"--{verb}"]
            if not self._words(ctx, rest, verb) & set(self.commands):
                args = [verb, *rest]
        return super().parse_args(ctx, args)


@click.group(
    cls=_TopicVerbs,
    otherwise="of a topic that is there, 'describe NAME' says more",
    default="list",
    words={
        "alter": "grow add-partitions partitions",
        "create": "add make",
        "delete": "remove rm drop",
        "describe": "show info get",
        "offsets": "get-offsets offset query at",
        "trikafka consume": "consume tail",
        "trikafka produce": "produce",
        "trikafka configs get topic": "config configs",
        "trikafka configs set topic": "alter-config set-config",
        "trikafka records delete": "trim trim-prefix",
        "trikafka cluster health": "health under-replicated under-replicated-partitions "
        "unavailable-partitions under-min-isr-partitions at-min-isr-partitions",
        "elect": "elect-leaders leader-election",
    },
)
@common_options
def command(common: Common) -> None:
    """List, create, delete, describe or grow topics; find offsets; elect leaders of partitions.

    Without a subcommand the topics are listed. As with kafka-topics, "--create --topic NAME" means
    "create NAME", and so on.
    """


command.add_command(elect)
command.add_command(offsets)


@command.command("list")
@click.option("--internal", is_flag=True, help="Internal topics too.")
@output_option
@common_options
def list_(common: Common, internal: bool, output: str) -> None:
    """List the topics."""
    topics = ask(common, lambda admin: admin.list_topics(include_internal=internal))
    columns = {
        "topic": "TOPIC",
        "partitions": "PARTITIONS",
        "replication_factor": "REPLICATION",
    }
    rows = [_row(name, found) for name, found in topics.items()]
    say_objects(output, columns, rows, "no topics")


@command.command()
@click.argument("names", nargs=-1, metavar="NAME...")
@more_topics_option
@click.option(
    "-p", "--partitions", type=click.IntRange(1), help="How many.  [default: the broker's]"
)
@click.option(
    "-r",
    "--replication-factor",
    type=click.IntRange(1),
    help="Copies of each.  [default: the broker's]",
)
@click.option(
    "--config",
    multiple=True,
    metavar="NAME=VALUE",
    callback=pairs,
    help="A setting of the topic; repeatable.",
)
@click.option("--if-not-exists", is_flag=True, help="Succeed if the topic exists already.")
@output_option
@common_options
def create(
    common: Common,
    names: tuple[str, ...],
    more: tuple[str, ...],
    partitions: int | None,
    replication_factor: int | None,
    config: tuple[tuple[str, str], ...],
    if_not_exists: bool,
    output: str,
) -> None:
    """Create topics."""
    from .._api.admin.types import NewTopic
    from ..errors import TopicAlreadyExistsError

    topic = NewTopic(partitions or -1, replication_factor or -1, different(config))

    async def work(admin: Admin) -> dict[str, list[PartitionInfo]]:
        todo = chosen("topic", names, more)
        if if_not_exists:
            known = await admin.list_topics(include_internal=True)
            todo = [name for name in todo if name not in known]
        excused = TopicAlreadyExistsError if if_not_exists else None
        new = await changed(todo, admin.create_topics(dict.fromkeys(todo, topic)), excused)
        return await _made(admin, new) if new else {}

    chosen("topic", names, more)
    made = ask(common, work)
    if output == "json":
        say_json({"created": list(made), "topics": [_row(name, made[name]) for name in made]})
    for name, found in made.items() if output != "json" else ():
        settings = " ".join(f"{name}={value}" for name, value in config)
        say(f"created: {name}{_size(found)}" + (f"  ({settings})" if settings else ""))
    if not made and output != "json":
        say("nothing to create: all are there")


async def _made(admin: Admin, names: list[str]) -> dict[str, list[PartitionInfo]]:
    """Return the partitions of new topics; none where the brokers do not know them in time."""
    import trio

    from ..errors import TrikafkaError

    known: dict[str, list[PartitionInfo]] = {}
    # The topics are there, so a failing look-up is no failure of the command.
    with trio.move_on_after(_KNOWN_WITHIN), suppress(TrikafkaError):
        while not all(known.get(name) for name in names):
            known = await admin.list_topics(include_internal=True)
            await trio.sleep(0.05)
    return {name: known.get(name, []) for name in names}


def _size(partitions: list[PartitionInfo]) -> str:
    if not partitions:
        return ""
    count = len(partitions)
    copies = _replicas(partitions)
    return (
        f", {count} partition{'s' * (count != 1)}, {copies} "
        f"{'copy' if copies == 1 else 'copies'} of each"
    )


@command.command()
@click.argument("names", nargs=-1, metavar="NAME...")
@more_topics_option
@click.option("--if-exists", is_flag=True, help="Succeed if there is no such topic.")
@output_option
@common_options
def delete(
    common: Common, names: tuple[str, ...], more: tuple[str, ...], if_exists: bool, output: str
) -> None:
    """Delete topics and their records."""
    from ..errors import UnknownTopicOrPartitionError

    todo = chosen("topic", names, more)

    excused = UnknownTopicOrPartitionError if if_exists else None
    gone = ask(common, lambda admin: changed(todo, admin.delete_topics(todo), excused))
    say_done(
        output,
        f"deleted: {', '.join(gone)}" if gone else "nothing to delete: none is there",
        {"deleted": gone},
    )


@command.command()
@click.argument("names", nargs=-1, metavar="NAME...")
@more_topics_option
@click.option(
    "-p", "--partitions", type=click.IntRange(1), required=True, help="How many it has afterwards."
)
@output_option
@common_options
def alter(
    common: Common, names: tuple[str, ...], more: tuple[str, ...], partitions: int, output: str
) -> None:
    """Give topics more partitions."""
    todo = chosen("topic", names, more)
    counts = dict.fromkeys(todo, partitions)
    done = ask(common, lambda admin: changed(todo, admin.create_partitions(counts)))
    count = "1 partition" if partitions == 1 else f"{partitions} partitions"
    say_done(output, f"{count} now: {', '.join(done)}", {"altered": done, "partitions": partitions})


@command.command()
@click.argument("names", nargs=-1, metavar="NAME...")
@more_topics_option
@output_option
@common_options
def describe(common: Common, names: tuple[str, ...], more: tuple[str, ...], output: str) -> None:
    """Show partitions, where they are, their offsets, and the topic's settings.

    Without a name: of all topics.
    """
    everything = ask(
        common,
        lambda admin: _describe(admin, chosen("topic", names, more) if names or more else None),
    )
    if output == "json":
        say_json(everything)
        return
    for at, topic in enumerate(everything):
        settings = " ".join(f"{name}={value}" for name, value in (topic["config"] or {}).items())
        say(("\n" if at else "") + f"{topic['topic']}" + (f"  ({settings})" if settings else ""))
        columns = {**PARTITION_COLUMNS, "begin": "BEGIN", "end": "END"}
        del columns["topic"]
        say(table_of(columns, topic["partitions"]))


async def _describe(admin: Admin, names: list[str] | None) -> list[dict[str, Any]]:
    from ..types import OffsetSpec, TopicPartition

    if names is None:
        topics = await admin.list_topics()
        wanted = list(topics)
    else:
        topics, missing = await known_topics(admin, names, make=True)
        wanted = existing(names, topics, missing)
    places = [
        TopicPartition(name, info.partition)
        for name in wanted
        for info in topics[name]
        if info.leader is not None
    ]
    # Each of the three is worth printing without the others, and may last for the whole timeout.
    begins, ends, configs = await beside(
        {
            "first offsets": admin.list_offsets(dict.fromkeys(places, OffsetSpec.EARLIEST)),
            "end offsets": admin.list_offsets(dict.fromkeys(places, OffsetSpec.LATEST)),
            "settings": admin.topic_configs(wanted),
        }
    )

    def partition(info: PartitionInfo) -> dict[str, Any]:
        begin, end = (
            found.get(TopicPartition(info.topic, info.partition)) for found in (begins, ends)
        )
        return {
            "partition": info.partition,
            "leader": info.leader,
            "replicas": list(info.replicas),
            "in_sync_replicas": list(info.in_sync_replicas),
            "begin": begin.offset if begin is not None else None,
            "end": end.offset if end is not None else None,
        }

    return [
        {
            "topic": name,
            "config": configs.get(name),
            "partitions": [partition(info) for info in topics[name]],
        }
        for name in wanted
    ]


def _row(name: str, partitions: list[PartitionInfo]) -> dict[str, Any]:
    return {
        "topic": name,
        "partitions": len(partitions),
        "replication_factor": _replicas(partitions),
    }


def _replicas(partitions: list[PartitionInfo]) -> int:
    return max((len(info.replicas) for info in partitions), default=0)
