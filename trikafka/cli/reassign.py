"""``trikafka reassign``: move partitions to other brokers, see how far they are, cancel."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from ..errors.counts import counted
from .admin import ask
from .options import Common, common_options, output_option
from .partly import changed, known_topics, whole
from .progress import warn
from .reassign_plan import Plan, Replicas, check_brokers, elsewhere, place_replicas, read_plan
from .resetting import execute_option, look_up, parse_topics, partitions_of, topics_option
from .suggesting import Suggesting
from .tables import partition_json, say, say_json, say_rows, table

if TYPE_CHECKING:
    from .._api.admin.admin import Admin
    from ..types import TopicPartition


class Move(NamedTuple):
    """A partition with its replicas before and after.

    ``directories`` are the paths to which some of the replicas go, by broker.
    """

    partition: TopicPartition
    before: Replicas
    after: Replicas
    directories: Mapping[int, str] = MappingProxyType({})


@click.group(
    cls=Suggesting,
    otherwise="'move' begins, 'status' shows and 'cancel' ends a reassignment",
    words={
        "move": "plan generate execute start to",
        "trikafka reassign move --off BROKER": "drain decommission evacuate off from",
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
    help="The brokers to move the replicas to. Default: all live brokers.",
)
@click.option(
    "--off",
    metavar="BROKER,...",
    help="Brokers, live or not, to move all of these replicas away from. Without --topic: those of "
    "all topics.",
)
@click.option(
    "--replicas",
    type=click.IntRange(min=1),
    metavar="N",
    help="The number of replicas afterwards; with --off only of partitions that move. Default: as "
    "many as now.",
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
    off: str | None,
    replicas: int | None,
    plan: str | None,
    execute: bool,
    output: str,
) -> None:
    """Move replicas of topics to other brokers, or all replicas off some brokers.

    Replicas that are on one of the brokers stay there. The others go to the brokers with the fewest
    replicas of these topics, in racks that the partition does not have yet. With --off only the
    replicas on these brokers move. A plan may name log directories, too. Without --execute nothing
    is moved: the table shows what would be.
    """
    if bool(topics or off) is bool(plan) or (plan and (brokers or replicas)):
        raise click.UsageError("give --topic or --off, or --file alone")
    chosen = parse_topics(topics)
    given = _numbers(brokers, "--to")
    emptied = _numbers(off, "--off") or []
    if both := [each for each in given or () if each in emptied]:
        raise click.UsageError(f"broker {both[0]} is in --to and in --off: choose one")
    wanted = read_plan(plan) if plan else None

    async def work(admin: Admin) -> list[Move]:
        if wanted is not None:
            partitions, known = await look_up(admin, _topics_in(wanted.replicas))
        elif chosen:
            partitions, known = await look_up(admin, chosen)
        else:
            known, missing = await known_topics(admin, ())
            partitions = partitions_of(dict.fromkeys(known), known, missing)
        there = {
            tp: info.replicas
            for tp in partitions
            for info in known[tp.topic]
            if info.partition == tp.partition
        }
        # While a partition moves it has its old replicas and the new ones. Only the latter stay, so
        # they are what another move begins with.
        moving = await _moving(admin, partitions, needed=execute)
        now = {tp: moving[tp].target if tp in moving else own for tp, own in there.items()}
        cluster = await admin.describe_cluster()
        racks = {node.node_id: node.rack for node in cluster.nodes}
        if wanted is None:
            _check_emptied(emptied, racks, now.values())
            places = [each for each in _live(given, racks) if each not in emptied]
            todo = Plan(planned(now, places, replicas, racks, emptied), {})
        else:
            check_brokers(wanted.replicas, there, racks)
            todo = Plan(wanted.replicas, await elsewhere(admin, wanted.directories))
        moves = _moves(now, todo)
        for each in moves:
            if each.partition in moving and each.before != each.after:
                warn(
                    f"{each.partition} moves to {_listed(each.before)} already: the new move "
                    "replaces that one"
                )
        if execute:
            new = {move.partition: move.after for move in moves if move.before != move.after}
            begun = await changed(new, admin.alter_partition_reassignments(new))
            moves = [each for each in moves if each.partition not in new or each.partition in begun]
            todays = {each.partition for each in moves}
            await place_replicas(
                admin,
                {
                    one: path
                    for one, path in todo.directories.items()
                    if (one.topic, one.partition) in todays
                },
            )
        return moves

    moves = ask(common, work)
    _say_moves(moves, output, executed=execute)


def _moves(now: Mapping[TopicPartition, Replicas], wanted: Plan) -> list[Move]:
    """Return the partitions of a plan that are not yet as it wants them."""
    directories: dict[tuple[str, int], dict[int, str]] = {}
    for one, path in wanted.directories.items():
        directories.setdefault((one.topic, one.partition), {})[one.broker] = path
    return [
        Move(tp, before, wanted.replicas[tp], directories.get(tp, {}))
        for tp, before in now.items()
        if before != wanted.replicas[tp] or tp in directories
    ]


def planned(
    now: Mapping[TopicPartition, Replicas],
    brokers: Sequence[int],
    replicas: int | None,
    racks: Mapping[int, str | None],
    emptied: Collection[int] = (),
) -> dict[TopicPartition, Replicas]:
    """Return the replicas of each partition on these brokers, with as few moves as possible.

    With brokers to be ``emptied``, partitions without a replica there stay as they are, and so do
    replicas on a broker that is only down.

    Raises:
        click.ClickException: There are fewer brokers than replicas.
    """
    kept = {
        tp: [each for each in own if (each not in emptied if emptied else each in brokers)]
        for tp, own in now.items()
    }
    load = Counter(each for own in kept.values() for each in own)
    leads = Counter(own[0] for own in kept.values() if own)
    found = {}
    for tp, own in kept.items():
        if emptied and len(own) == len(now[tp]):
            found[tp] = now[tp]
            continue
        count = len(now[tp]) if replicas is None else replicas
        if count > len({*own, *brokers}):
            raise click.ClickException(
                f"{tp} needs {count} replicas, and has "
                f"{counted(len({*own, *brokers}), 'broker')} for them; --replicas or --to changes "
                "that"
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


def _check_emptied(
    emptied: Iterable[int], live: Container[int], replicas: Iterable[Replicas]
) -> None:
    """Refuse a broker that is not live and has no replicas: the number may be wrong.

    Raises:
        click.ClickException: There is such a broker.
    """
    known = {each for own in replicas for each in own}
    for each in emptied:
        if each not in live and each not in known:
            raise click.ClickException(
                f"broker {each} is not live, and has none of these partitions' replicas"
            )


def _numbers(text: str | None, option: str) -> list[int] | None:
    if text is None:
        return None
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise click.BadParameter(
            f"{text!r} is not a list of broker numbers such as 1,2,3", param_hint=option
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
                    {
                        **partition_json(move.partition),
                        "before": list(move.before),
                        "after": list(move.after),
                        **({"log_dirs": _paths(move)} if move.directories else {}),
                    }
                    for move in moves
                ],
            }
        )
        return
    if not moves:
        say("nothing to move: the replicas are there, or on their way")
        return
    directories = any(move.directories for move in moves)
    header = ["TOPIC", "PARTITION", "REPLICAS", "NEW", "DIRECTORIES"]
    rows = [
        [*move.partition, _listed(move.before), _listed(move.after), ",".join(_paths(move))]
        for move in moves
    ]
    if not directories:
        header, rows = header[:-1], [row[:-1] for row in rows]
    say(table(header, rows))
    say(
        "the moves have begun; 'trikafka reassign status' shows those that are not complete"
        + (", and 'trikafka cluster log-dirs -o json' the directories" if directories else "")
        if executed
        else "nothing was moved; add --execute"
    )


def _paths(move: Move) -> list[str]:
    """Return the directory of each replica, as in a plan; none if the plan names none."""
    return [move.directories.get(each, "any") for each in move.after] if move.directories else []


@command.command()
@topics_option
@output_option
@common_options
def status(common: Common, topics: tuple[str, ...], output: str) -> None:
    """Show the reassignments that are under way."""
    found = ask(common, lambda admin: _under_way(admin, parse_topics(topics)))
    columns = {
        "topic": "TOPIC",
        "partition": "PARTITION",
        "replicas": "REPLICAS",
        "adding": "ADDING",
        "removing": "REMOVING",
    }
    rows = [
        (*tp, list(each.replicas), list(each.adding), list(each.removing))
        for tp, each in found.items()
    ]
    say_rows(output, columns, rows, "no reassignment is under way")


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
        raise click.UsageError("give --topic, or --all")

    async def work(admin: Admin) -> list[Move]:
        found = await _under_way(admin, parse_topics(topics))
        done = list(found)
        if execute and found:
            stop: dict[TopicPartition, None] = dict.fromkeys(found)
            done = await changed(found, admin.alter_partition_reassignments(stop))
        return [
            Move(tp, each.replicas, tuple(one for one in each.replicas if one not in each.adding))
            for tp in done
            for each in (found[tp],)
        ]

    moves = ask(common, work)
    if output == "json":
        _say_moves(moves, output, executed=execute)
    elif not moves:
        say("no reassignment is under way")
    else:
        rows = [(*move.partition, _listed(move.before), _listed(move.after)) for move in moves]
        say(table(("TOPIC", "PARTITION", "REPLICAS", "NEW"), rows))
        say("cancelled" if execute else "nothing was cancelled; add --execute")


async def _under_way(admin: Admin, chosen: Mapping[str, set[int] | None]) -> dict[Any, Any]:
    partitions = None
    if chosen:
        partitions, _ = await look_up(admin, chosen)
    return await whole(admin.list_partition_reassignments(partitions))


async def _moving(
    admin: Admin, partitions: Iterable[TopicPartition], *, needed: bool
) -> Mapping[Any, Any]:
    """Return the reassignments that are under way.

    Without the right to list them, return none and warn, unless they are ``needed``. A plan that is
    only shown takes no more than the right to describe the topics. A move takes ``Alter``, which
    includes that right.
    """
    from ..errors import AuthorizationError

    try:
        return await whole(admin.list_partition_reassignments(partitions))
    except AuthorizationError:
        if needed:
            raise
        warn(
            "this user may not list reassignments (Describe on the cluster): a partition that is "
            "moving counts with its old and its new replicas"
        )
        return {}


def _listed(brokers: Iterable[int]) -> str:
    return ",".join(map(str, brokers))
