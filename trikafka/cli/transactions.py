"""``trikafka transactions``: list, describe, find hanging transactions, and abort one."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import click

from .._api.admin.types import TRANSACTION_STATES
from .admin import ask, chosen
from .options import Common, common_options, output_option
from .suggesting import Suggesting
from .tables import say, say_done, say_json, table


@click.group(cls=Suggesting, invoke_without_command=True)
@output_option
@common_options
def command(common: Common, output: str) -> None:
    """List or describe transactions, find those that hang, or abort one.

    Without a subcommand they are listed.
    """
    if click.get_current_context().invoked_subcommand is None:
        _list(common, output, (), None, None)


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
    _list(common, output, states, longer_than, pattern)


def _list(
    common: Common,
    output: str,
    states: tuple[str, ...],
    longer_than: float | None,
    pattern: str | None,
) -> None:
    found = ask(
        common,
        lambda admin: admin.list_transactions(
            states=states, longer_than=longer_than, pattern=pattern
        ),
    )
    if output == "json":
        say_json(
            [
                {
                    "transactional_id": t.transactional_id,
                    "producer_id": t.producer_id,
                    "state": t.state,
                }
                for t in found
            ]
        )
    elif not found:
        say("no transactions")
    else:
        say(
            table(
                ("TRANSACTIONAL ID", "PRODUCER", "STATE"),
                [(t.transactional_id, t.producer_id, t.state) for t in found],
            )
        )


@command.command()
@click.argument("names", nargs=-1, metavar="TRANSACTIONAL_ID...")
@output_option
@common_options
def describe(common: Common, names: tuple[str, ...], output: str) -> None:
    """Show state, producer, limit and partitions of transactional ids."""
    todo = chosen("transactional id", names)
    found = ask(common, lambda admin: admin.describe_transactions(todo))
    rows = [
        {
            "transactional_id": each.transactional_id,
            "state": each.state,
            "producer_id": each.producer_id,
            "producer_epoch": each.producer_epoch,
            "timeout_seconds": each.timeout,
            "started": _time(each.started),
            "partitions": [
                {"topic": tp.topic, "partition": tp.partition} for tp in each.partitions
            ],
        }
        for each in found.values()
    ]
    if output == "json":
        say_json(rows)
        return
    header = ("TRANSACTIONAL ID", "STATE", "PRODUCER", "EPOCH", "TIMEOUT", "STARTED", "PARTITIONS")
    say(
        table(
            header,
            [
                (
                    *list(row.values())[:4],
                    f"{row['timeout_seconds']:g} s",
                    row["started"],
                    _places(row),
                )
                for row in rows
            ],
        )
    )


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
    found = ask(
        common, lambda admin: admin.find_hanging_transactions(todo, longer_than=longer_than)
    )
    rows = [
        {
            "topic": each.partition.topic,
            "partition": each.partition.partition,
            "start_offset": each.start_offset,
            "producer_id": each.producer_id,
            "producer_epoch": each.producer_epoch,
            "last_written": _time(each.last_timestamp),
            "transactional_id": each.transactional_id,
        }
        for each in found
    ]
    if output == "json":
        say_json(rows)
    elif not rows:
        say("no transaction hangs")
    else:
        header = (
            "TOPIC",
            "PARTITION",
            "START OFFSET",
            "PRODUCER",
            "EPOCH",
            "LAST WRITTEN",
            "TRANSACTIONAL ID",
        )
        say(table(header, [tuple(row.values()) for row in rows]))


@command.command()
@click.option("-t", "--topic", required=True, metavar="TOPIC", help="Where it hangs.")
@click.option("-p", "--partition", type=click.IntRange(0), required=True, help="Where it hangs.")
@click.option(
    "--start-offset",
    type=click.IntRange(0),
    required=True,
    help="Where it begins, as find-hanging shows it.",
)
@output_option
@common_options
def abort(common: Common, topic: str, partition: int, start_offset: int, output: str) -> None:
    """Abort a transaction that hangs in a partition.

    One that a coordinator knows of would be torn by it.
    """
    from ..types import TopicPartition

    ask(
        common,
        lambda admin: admin.abort_transaction(TopicPartition(topic, partition), start_offset),
    )
    line = f"aborted: the transaction that began at offset {start_offset} of {topic} {partition}"
    say_done(
        output,
        line,
        {"aborted": {"topic": topic, "partition": partition, "start_offset": start_offset}},
    )


def _time(ms: int | None) -> str | None:
    return (
        None
        if ms is None
        else datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")
    )


def _places(row: dict[str, Any]) -> str:
    return " ".join(f"{place['topic']}-{place['partition']}" for place in row["partitions"])
