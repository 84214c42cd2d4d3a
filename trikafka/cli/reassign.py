"""``trikafka reassign``: move partitions to other brokers, see how far they are, cancel."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .admin import ask
from .options import Common, common_options, output_option
from .partly import changed
from .resetting import execute_option, parse_topics, partitions_of, topics_option
from .suggesting import Suggesting
from .tables import partition_json, say, say_json, table

if TYPE_CHECKING:
    from .._api.admin.admin import Admin
    from ..types import TopicPartition

Replicas = tuple[int, ...]
#: A partition with its replicas before and after.
Move = tuple["TopicPartition", Replicas, Replicas]


@click.group(
    cls=Suggesting,
    otherwise="'move' begins, 'status' shows and 'cancel' ends a reassignment",
    words={
        "move": "plan generate execute start to",
        "status": "verify list show progress",
        "cancel": "stop abort",
    },
)
@common_options
def command(common: Common) -> None:
    """Move partitions to other brokers, see how far they are, or cancel that."""


@command.command()
@topics_option
@click.option(
    "--to",
    "brokers",
    metavar="BROKER,...",
    help="The brokers that shall have the replicas. Default: all live brokers.",
)
@click.option(
    "--replicas",
    type=click.IntRange(min=1),
    metavar="N",
    help="The number of replicas afterwards. Default: as many as now.",
)
@click.option(
    "--file",
    "plan",
    type=click.Path(dir_okay=False, exists=True),
    help="A plan as kafka-reassign-partitions writes and reads it, instead of the options above.",
)
@execute_option
@output_option
@common_options
def move(
    common: Common,
    topics: tuple[str, ...],
    brokers: str | None,
    replicas: int | None,
    plan: str | None,
    execute: bool,
    output: str,
) -> None:
    """Move replicas of topics to other brokers.

    Replicas that are on one of the brokers stay there. The others go to the brokers with the fewest
    replicas of these topics, in racks that the partition does not have yet. Without --execute
    nothing is moved: the table shows what would be.
    """
    context = click.get_current_context()
    if bool(topics) is bool(plan) or (plan and (brokers or replicas)):
        raise click.UsageError("give --topic, or --file alone", context)
    chosen, given = parse_topics(topics), _numbers(brokers)
    wanted = _read_plan(plan) if plan else None

    async def work(admin: Admin) -> list[Move]:
        known = await admin.list_topics(include_internal=True)
        partitions = partitions_of(_topics_in(wanted) if wanted is not None else chosen, known)
        now = {
            tp: info.replicas
            for tp in partitions
            for info in known[tp.topic]
            if info.partition == tp.partition
        }
        if wanted is not None:
            after: Mapping[TopicPartition, Replicas] = wanted
        else:
            cluster = await admin.describe_cluster()
            racks = {node.node_id: node.rack for node in cluster.nodes}
            after = planned(now, _live(given, racks), replicas, racks)
        moves = [(tp, now[tp], after[tp]) for tp in partitions if now[tp] != after[tp]]
        if execute:
            new = {tp: replicas for tp, _, replicas in moves}
            begun = await changed(new, admin.alter_partition_reassignments(new))
            moves = [move for move in moves if move[0] in begun]
        return moves

    moves = ask(common, work)
    _say_moves(moves, output, executed=execute)


def planned(
    now: Mapping[TopicPartition, Replicas],
    brokers: Sequence[int],
    replicas: int | None,
    racks: Mapping[int, str | None],
) -> dict[TopicPartition, Replicas]:
    """Return the replicas of each partition on these brokers, with as few moves as possible.

    Raises:
        click.ClickException: There are fewer brokers than replicas.
    """
    kept = {tp: [each for each in own if each in brokers] for tp, own in now.items()}
    load = Counter(each for own in kept.values() for each in own)
    leads = Counter(own[0] for own in kept.values() if own)
    found = {}
    for tp, own in kept.items():
        count = len(now[tp]) if replicas is None else replicas
        if count > len(brokers):
            raise click.ClickException(
                f"{tp} shall have {count} replicas, and there are {len(brokers)} brokers for "
                "them; --replicas or --to changes that"
            )
        while len(own) > count:
            load[own[-1]] -= 1
            own.pop()
        if not own:  # the first one is the preferred leader
            own.append(min(brokers, key=lambda each: (leads[each], load[each], each)))
            load[own[0]] += 1
            leads[own[0]] += 1
        while len(own) < count:
            used = {racks.get(each) for each in own}
            new = min(
                (each for each in brokers if each not in own),
                key=lambda each: (
                    racks.get(each) is not None and racks.get(each) in used,
                    load[each],
                    each,
                ),
            )
            own.append(new)
            load[new] += 1
        found[tp] = tuple(own)
    return found


def _numbers(text: str | None) -> list[int] | None:
    if text is None:
        return None
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise click.BadParameter(
            f"{text!r} is not a list of broker numbers such as 1,2,3", param_hint="--to"
        )
    return list(dict.fromkeys(map(int, parts)))


def _live(given: list[int] | None, racks: Mapping[int, str | None]) -> list[int]:
    if given is None:
        return sorted(racks)
    if missing := [each for each in given if each not in racks]:
        raise click.ClickException(
            f"the cluster has no live broker {missing[0]}; it has "
            f"{', '.join(map(str, sorted(racks)))}"
        )
    return given


def _read_plan(path: str) -> dict[TopicPartition, Replicas]:
    from ..types import TopicPartition

    try:
        parts = json.loads(Path(path).read_text(encoding="utf-8"))["partitions"]
        return {
            TopicPartition(str(part["topic"]), int(part["partition"])): tuple(
                int(each) for each in part["replicas"]
            )
            for part in parts
        }
    except OSError as error:
        raise click.BadParameter(f"cannot read {path!r}: {error.strerror}") from None
    except (ValueError, TypeError, LookupError):
        raise click.BadParameter(
            f"{path!r} is not a plan such as "
            '{"partitions": [{"topic": "t", "partition": 0, "replicas": [1, 2]}]}',
            param_hint="--file",
        ) from None


def _topics_in(partitions: Iterable[TopicPartition]) -> dict[str, set[int] | None]:
    found: dict[str, set[int] | None] = {}
    for tp in partitions:
        numbers = found.setdefault(tp.topic, set())
        assert numbers is not None
        numbers.add(tp.partition)
    return found


def _say_moves(moves: list[Move], output: str, *, executed: bool) -> None:
    if output == "json":
        say_json(
            {
                "executed": executed,
                "partitions": [
                    {**partition_json(tp), "before": list(old), "after": list(new)}
                    for tp, old, new in moves
                ],
            }
        )
        return
    if not moves:
        say("nothing to move: the replicas are there")
        return
    rows = [(tp.topic, tp.partition, _listed(old), _listed(new)) for tp, old, new in moves]
    say(table(("TOPIC", "PARTITION", "REPLICAS", "NEW"), rows))
    say(
        "the moves have begun; 'trikafka reassign status' shows those that are not complete"
        if executed
        else "nothing was moved; add --execute"
    )


@command.command()
@topics_option
@output_option
@common_options
def status(common: Common, topics: tuple[str, ...], output: str) -> None:
    """Show the reassignments that are under way."""
    found = ask(common, lambda admin: _under_way(admin, parse_topics(topics)))
    if output == "json":
        say_json(
            [
                {
                    **partition_json(tp),
                    "replicas": list(each.replicas),
                    "adding": list(each.adding),
                    "removing": list(each.removing),
                }
                for tp, each in found.items()
            ]
        )
    elif not found:
        say("no reassignment is under way")
    else:
        say(
            table(
                ("TOPIC", "PARTITION", "REPLICAS", "ADDING", "REMOVING"),
                [
                    (
                        tp.topic,
                        tp.partition,
                        _listed(each.replicas),
                        _listed(each.adding),
                        _listed(each.removing),
                    )
                    for tp, each in found.items()
                ],
            )
        )


@command.command()
@topics_option
@click.option("--all", "everything", is_flag=True, help="All that are under way.")
@execute_option
@output_option
@common_options
def cancel(
    common: Common, topics: tuple[str, ...], everything: bool, execute: bool, output: str
) -> None:
    """Cancel reassignments: the replicas from before stay, the new ones go.

    Without --execute nothing is cancelled: the table shows what would be.
    """
    if bool(topics) is everything:
        raise click.UsageError("give --topic, or --all", click.get_current_context())

    async def work(admin: Admin) -> list[Move]:
        found = await _under_way(admin, parse_topics(topics))
        done = list(found)
        if execute and found:
            stop: dict[TopicPartition, None] = dict.fromkeys(found)
            done = await changed(found, admin.alter_partition_reassignments(stop))
        return [
            (tp, each.replicas, tuple(one for one in each.replicas if one not in each.adding))
            for tp in done
            for each in (found[tp],)
        ]

    moves = ask(common, work)
    if output == "json":
        _say_moves(moves, output, executed=execute)
    elif not moves:
        say("no reassignment is under way")
    else:
        rows = [(tp.topic, tp.partition, _listed(old), _listed(new)) for tp, old, new in moves]
        say(table(("TOPIC", "PARTITION", "REPLICAS", "NEW"), rows))
        say("cancelled" if execute else "nothing was cancelled; add --execute")


async def _under_way(admin: Admin, chosen: Mapping[str, set[int] | None]) -> dict[Any, Any]:
    partitions = None
    if chosen:
        partitions = partitions_of(chosen, await admin.list_topics(include_internal=True))
    return await admin.list_partition_reassignments(partitions)


def _listed(brokers: Iterable[int]) -> str:
    return ",".join(map(str, brokers))
