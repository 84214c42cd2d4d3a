"""``trikafka transactions``: list, describe, find and abort transactions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import click

from .._api.admin.types import TRANSACTION_STATES
from .admin import ask, chosen
from .options import Common, common_options, output_option
from .partly import changed, every_transaction, existing, fail_later, led, noted_errors, others
from .progress import warn
from .resetting import execute_option, look_up, parse_topics, topics_option
from .suggesting import Suggesting
from .tables import partition_json, say, say_json, say_rows, table, time_text

if TYPE_CHECKING:
    from .._api.admin.admin import Admin
    from .._api.admin.types import HangingTransaction, ProducerDescription, TransactionDescription
    from ..types import TopicPartition

#: The columns of a transaction that is open in a partition.
_OPEN = {
    "topic": "TOPIC",
    "partition": "PARTITION",
    "start_offset": "START OFFSET",
    "producer_id": "PRODUCER",
    "producer_epoch": "EPOCH",
    "last_written": "LAST WRITTEN",
}


@click.group(
    cls=Suggesting,
    default="list",
    words={
        "list": "ls show",
        "find-hanging": "hanging find",
        "producers": "describe-producers producer open",
        "abort": "kill end stop terminate force-terminate forceTerminateTransaction fence",
    },
)
@common_options
def command(common: Common) -> None:
    """List or describe transactions, find those that hang, or abort some.

    Without a subcommand they are listed.
    """


@command.command("list")
@click.option(
    "--state",
    "states",
    multiple=True,
    metavar="STATE",
    type=click.Choice(TRANSACTION_STATES, case_sensitive=False),
    help="In this state, such as Ongoing; repeatable.",
)
@click.option(
    "--longer-than",
    type=click.FloatRange(0),
    metavar="SECONDS",
    help="Under way for longer than that.",
)
@click.option("--pattern", metavar="REGEX", help="Whose whole transactional id fits.")
@output_option
@common_options
def list_(
    common: Common,
    states: tuple[str, ...],
    longer_than: float | None,
    pattern: str | None,
    output: str,
) -> None:
    """List the transactional ids, with their producer ids and states."""
    found = ask(
        common,
        lambda admin: every_transaction(
            admin, states=states, longer_than=longer_than, pattern=pattern
        ),
    )
    columns = {"transactional_id": "TRANSACTIONAL ID", "producer_id": "PRODUCER", "state": "STATE"}
    rows = [(each.transactional_id, each.producer_id, each.state) for each in found]
    say_rows(output, columns, rows, "no transactions")


@command.command()
@click.argument("names", nargs=-1, metavar="TRANSACTIONAL_ID...")
@output_option
@common_options
def describe(common: Common, names: tuple[str, ...], output: str) -> None:
    """Show state, producer, limit and partitions of transactional ids."""
    todo = chosen("transactional id", names)
    found = ask(common, lambda admin: others(admin.describe_transactions(todo)))
    if output == "json":
        say_json([_as_json(each) for each in found.values()])
    else:
        say(_as_table(found.values()))


def _as_json(each: TransactionDescription) -> dict[str, Any]:
    return {
        "transactional_id": each.transactional_id,
        "state": each.state,
        "producer_id": each.producer_id,
        "producer_epoch": each.producer_epoch,
        "timeout_seconds": each.timeout,
        "started": time_text(each.started),
        "partitions": [partition_json(tp) for tp in each.partitions],
    }


def _as_table(found: Iterable[TransactionDescription]) -> str:
    header = ("TRANSACTIONAL ID", "STATE", "PRODUCER", "EPOCH", "TIMEOUT", "STARTED", "PARTITIONS")
    rows = [
        (
            each.transactional_id,
            each.state,
            each.producer_id,
            each.producer_epoch,
            f"{each.timeout:g} s",
            time_text(each.started),
            " ".join(map(str, each.partitions)),
        )
        for each in found
    ]
    return table(header, rows)


@command.command("find-hanging")
@click.option(
    "-t",
    "--topic",
    "topics",
    multiple=True,
    metavar="TOPIC",
    help="Search this topic; repeatable.  [default: all]",
)
@click.option(
    "--longer-than",
    type=click.FloatRange(0),
    default=900,
    show_default=True,
    metavar="SECONDS",
    help="Leave alone what was written to since: at least the longest that a transaction may take.",
)
@output_option
@common_options
def find_hanging(common: Common, topics: tuple[str, ...], longer_than: float, output: str) -> None:
    """Find transactions that a partition waits for and that no coordinator knows of."""
    todo = chosen("topic", (), topics) if topics else None
    found = ask(common, lambda admin: hanging(admin, todo, longer_than))
    rows = [
        (
            *each.partition,
            each.start_offset,
            each.producer_id,
            each.producer_epoch,
            time_text(each.last_timestamp),
            each.transactional_id,
        )
        for each in found
    ]
    columns = {**_OPEN, "transactional_id": "TRANSACTIONAL ID"}
    where = " in the partitions that were searched" if noted_errors() else ""
    say_rows(output, columns, rows, f"no transaction hangs{where}")


async def hanging(
    admin: Admin, topics: list[str] | None, longer_than: float
) -> list[HangingTransaction]:
    """Return what hangs in the partitions that could be searched, and note the failures."""
    from ..errors import AdminErrors

    try:
        return await admin.find_hanging_transactions(topics, longer_than=longer_than)
    except AdminErrors as errors:
        fail_later(errors)
        return [each for found in errors.results.values() for each in found]


@command.command()
@click.argument("names", nargs=-1, metavar="TOPIC[:P,...]...")
@topics_option
@click.option("--open", "only_open", is_flag=True, help="Only those whose transaction is open.")
@output_option
@common_options
def producers(
    common: Common,
    names: tuple[str, ...],
    topics: tuple[str, ...],
    only_open: bool,
    output: str,
) -> None:
    """Show the producers that partitions remember, and who holds a transaction open there.

    START OFFSET is where the open transaction of a producer begins: readers of committed records
    wait there. TRANSACTIONAL ID is shown for these, if a coordinator knows it.
    """
    chosen = parse_topics((*names, *topics))
    if not chosen:
        raise click.UsageError("which topic?")

    async def work(admin: Admin) -> list[tuple[object, ...]]:
        partitions, known = await look_up(admin, chosen)
        return await remembered(admin, led(partitions, known), only_open=only_open)

    columns = {
        "topic": "TOPIC",
        "partition": "PARTITION",
        "producer_id": "PRODUCER",
        "producer_epoch": "EPOCH",
        "last_sequence": "SEQUENCE",
        "last_written": "LAST WRITTEN",
        "start_offset": "START OFFSET",
        "transactional_id": "TRANSACTIONAL ID",
    }
    none = "no transaction is open" if only_open else "no producers"
    say_rows(output, columns, ask(common, work), none)


async def remembered(
    admin: Admin, partitions: Iterable[TopicPartition], *, only_open: bool
) -> list[tuple[object, ...]]:
    """Return a row for each producer of the partitions, those with open transactions first."""
    described = await others(admin.describe_producers(partitions))
    found = [
        (tp, each)
        for tp, known in described.items()
        for each in known
        if each.transaction_start is not None or not only_open
    ]
    waiting = sorted({each.producer_id for _, each in found if each.transaction_start is not None})
    ids = {}
    if waiting:
        listed = await every_transaction(admin, producer_ids=waiting)
        ids = {each.producer_id: each.transactional_id for each in listed}
    found.sort(key=lambda row: (row[0], row[1].transaction_start is None, row[1].producer_id))
    return [
        (
            *tp,
            each.producer_id,
            each.producer_epoch,
            each.last_sequence,
            time_text(each.last_timestamp),
            each.transaction_start,
            None if each.transaction_start is None else ids.get(each.producer_id),
        )
        for tp, each in found
    ]


@command.command()
@click.argument("names", nargs=-1, metavar="[TRANSACTIONAL_ID]...")
@click.option("-t", "--topic", metavar="TOPIC", help="The topic, as find-hanging shows it.")
@click.option(
    "-p",
    "--partition",
    type=click.IntRange(0),
    help="The partition, as find-hanging shows it.",
)
@click.option(
    "--start-offset",
    type=click.IntRange(0),
    help="The transaction's first offset, as find-hanging shows it.",
)
@execute_option
@output_option
@common_options
def abort(
    common: Common,
    names: tuple[str, ...],
    topic: str | None,
    partition: int | None,
    start_offset: int | None,
    execute: bool,
    output: str,
) -> None:
    """Abort the open transactions of transactional ids, or one that hangs in one partition.

    By its transactional id, a transaction is aborted in all its partitions, and its producer is
    fenced: the program fails, and has to be started again.

    With --topic, --partition and --start-offset only that partition gets the abort marker. Use it
    only for what find-hanging shows. A transaction that a coordinator knows would be aborted in
    this partition and may be committed in others.

    Readers of committed records then get past it, and never see its records. Without --execute
    nothing is aborted: the table shows what would be.
    """
    given = [each for each in (topic, partition, start_offset) if each is not None]
    if bool(names) is bool(given):
        raise click.UsageError(
            "give transactional ids, or --topic, --partition and --start-offset of one that hangs"
        )
    if names:
        _abort_by_id(common, chosen("transactional id", names), execute, output)
        return
    if topic is None or partition is None or start_offset is None:
        raise click.UsageError("--topic, --partition and --start-offset go together")
    _abort_in_partition(common, topic, partition, start_offset, execute, output)


def _abort_by_id(common: Common, names: list[str], execute: bool, output: str) -> None:
    async def work(admin: Admin) -> list[TransactionDescription]:
        found = await open_transactions(admin, names)
        todo = [each.transactional_id for each in found]
        done = todo
        if execute:
            done = await changed(todo, admin.fence_producers(todo))
        return [each for each in found if each.transactional_id in done]

    found = ask(common, work)
    if output == "json":
        say_json({"executed": execute, "transactions": [_as_json(each) for each in found]})
        return
    say(_as_table(found))
    say("aborted; their producers are fenced" if execute else "nothing was aborted; add --execute")


async def open_transactions(admin: Admin, names: list[str]) -> list[TransactionDescription]:
    """Return the open transactions of transactional ids.

    Fencing an id that is unknown would make it, and one without an open transaction would end a
    program that does no harm.

    Raises:
        click.ClickException: The only id has no open transaction.
        AdminErrors: None of several ids has one.
    """
    found = await others(admin.describe_transactions(names))

    def closed(name: str) -> str:
        ends = found[name].state.startswith("Prepare")
        doing = "is ending already" if ends else "has no open transaction"
        return f"transactional id {name!r} {doing} ({found[name].state})"

    ongoing = {name for name, each in found.items() if each.state == "Ongoing"}
    return [found[name] for name in existing(found, ongoing, closed)]


def _abort_in_partition(
    common: Common, topic: str, partition: int, start_offset: int, execute: bool, output: str
) -> None:
    from ..types import TopicPartition

    place = TopicPartition(topic, partition)
    found, known = ask(common, lambda admin: aborted(admin, place, start_offset, acts=execute))
    if output == "json":
        say_json(
            {
                "executed": execute,
                ("aborted" if execute else "transaction"): {
                    "topic": topic,
                    "partition": partition,
                    "start_offset": start_offset,
                },
                "producer_id": found.producer_id,
                "producer_epoch": found.producer_epoch,
                "last_written": time_text(found.last_timestamp),
                "transactional_id": known,
            }
        )
    else:
        header = (*_OPEN.values(), "KNOWN AS")
        own = (found.producer_id, found.producer_epoch, time_text(found.last_timestamp), known)
        say(table(header, [(topic, partition, start_offset, *own)]))
        say("aborted" if execute else "nothing was aborted; add --execute")
    if known is not None:
        tense = "was not hanging" if execute else "does not hang"
        warn(
            f"this transaction {tense}: the coordinator of transactional id {known!r} knows it, "
            "and ends it at its timeout at the latest"
            + ("" if execute else f". 'trikafka transactions abort {known}' ends it everywhere")
        )


async def aborted(
    admin: Admin, place: TopicPartition, start_offset: int, *, acts: bool
) -> tuple[ProducerDescription, str | None]:
    """Return the open transaction at an offset, and abort it if the command acts.

    Returns:
        The producer, and the transactional id if its coordinator knows of the transaction in this
        partition.

    Raises:
        TransactionNotOpenError: No open transaction begins there.
    """
    from ..errors import TransactionNotOpenError, TrikafkaError

    producers = (await admin.describe_producers([place]))[place]
    found = next((each for each in producers if each.transaction_start == start_offset), None)
    if found is None:
        begins = sorted(
            each.transaction_start for each in producers if each.transaction_start is not None
        )
        there = f"; those that are open begin at {', '.join(map(str, begins))}" if begins else ""
        raise TransactionNotOpenError(
            f"{place} has no open transaction that begins at offset {start_offset}{there}"
        )
    known = None
    try:
        described = await _of_producer(admin, found.producer_id)
        known = next((name for name, each in described.items() if place in each.partitions), None)
        # In version 2 of transactions each end increments the epoch.
        epochs = (found.producer_epoch, found.producer_epoch + 1)
        for name, each in described.items():
            if known is None and "Commit" in each.state and each.producer_epoch in epochs:
                warn(
                    f"the coordinator of transactional id {name!r} has committed this producer's "
                    "last transaction. If that is this one, aborting it drops committed records"
                )
    except TrikafkaError as error:
        if not acts:
            raise
        # Only a warning depends on the look-up, and readers of committed records wait for the
        # abort.
        warn(
            "the look-up of a coordinator that knows the aborted transaction failed, so this "
            f"command cannot warn of a committed one: {error}"
        )
    if acts:
        await admin.abort_transaction(place, start_offset)
    return found, known


async def _of_producer(admin: Admin, producer_id: int) -> Mapping[str, TransactionDescription]:
    """Return what the coordinators know of a producer's last transaction, by transactional id."""
    ids = [
        each.transactional_id for each in await admin.list_transactions(producer_ids=[producer_id])
    ]
    return await admin.describe_transactions(ids) if ids else {}
