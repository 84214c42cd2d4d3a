"""``trikafka consume``: print records as JSON lines, raw, or in a format like kcat's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from .options import Common, common_options, more_topics_option
from .record_lines import ValueFormat
from .running import run
from .value_formats import ValueFormatType

if TYPE_CHECKING:
    from .start import Start


@click.command()
@click.argument("names", nargs=-1, metavar="TOPIC...")
@more_topics_option
@click.option(
    "-p",
    "--partition",
    "partitions",
    type=click.IntRange(0),
    multiple=True,
    help="Only this partition; repeatable.",
)
@click.option(
    "-G",
    "--group",
    metavar="ID",
    help="Read as a member of this group, and commit what was printed.",
)
@click.option(
    "-o",
    "--from",
    "start",
    metavar="WHERE",
    help="beginning (default), end, stored, an offset, -N (the last N), or a time: "
    "2026-01-31T12:00 in UTC (or with +01:00), -1h (s, m, h, d), or @MILLISECONDS. With a group:"
    " where to begin what it has not committed yet.",
)
@click.option("-e", "--until-end", is_flag=True, help="End after the records of the start.")
@click.option(
    "--until",
    "until_time",
    metavar="TIME",
    help="End each partition before its first record from TIME on, or at its end.",
)
@click.option("-c", "--count", type=click.IntRange(1), metavar="N", help="End after N records.")
@click.option(
    "-f",
    "--format",
    "form",
    default="json",
    show_default=True,
    metavar="FORMAT",
    help="json, raw (values, a line each), or a format: %t %p %o %k %s %T %h %K %S %R, as of kcat.",
)
@click.option(
    "-K",
    "--key-delimiter",
    metavar="TEXT",
    help="Print keys and values as they are, with TEXT between.",
)
@click.option(
    "-Z", "--null", is_flag=True, help="Print NULL for a key or value that is null (not in JSON)."
)
@click.option(
    "--value-format",
    type=ValueFormatType(),
    default="text",
    show_default=True,
    help="How values are printed. In lines of JSON, json makes a value that is JSON a part of the "
    "line. Plugins may offer more formats.",
)
@click.option(
    "--key-format",
    type=ValueFormatType(),
    default="text",
    show_default=True,
    help="How keys are printed.",
)
@click.option(
    "--headers",
    is_flag=True,
    help="Print the headers first, as name=value, then a tab (not in JSON).",
)
@click.option(
    "--grep",
    metavar="REGEX",
    help="Only records with this regular expression in the key, the value or a header's value.",
)
@common_options
def command(
    common: Common,
    names: tuple[str, ...],
    more: tuple[str, ...],
    partitions: tuple[int, ...],
    group: str | None,
    start: str | None,
    until_end: bool,
    count: int | None,
    form: str,
    key_delimiter: str | None,
    null: bool,
    until_time: str | None,
    value_format: ValueFormat,
    key_format: ValueFormat,
    headers: bool,
    grep: str | None,
) -> None:
    """Print records of topics, as they come, or with -e those that are there.

    A line of JSON has topic, partition, offset, timestamp, timestamp_type, key, value and headers;
    bytes that are not UTF-8 are {"base64": "..."}. "trikafka produce" reads such lines.
    """
    from .admin import chosen
    from .consuming import ConsumePlan, Consuming
    from .record_lines import matching, output_format
    from .start import past_time

    settings, group, begin = reading(common, group, start)
    if group is not None and partitions:
        raise click.UsageError("-p cannot be used with a group, which assigns the partitions")
    if group is not None and until_time is not None:
        raise click.UsageError(
            "--until cannot be used with a group; use -e, which ends after the records that exist at "
            "the start"
        )
    topics = tuple(chosen("topic", names, more))
    for topic in topics:
        name, colon, numbers = topic.partition(":")
        places = numbers.split(",")
        if colon and all(map(str.isdecimal, places)):  # as for groups reset-offsets
            meant = " ".join(f"-p {number}" for number in places)
            raise click.UsageError(f"partitions are given by -p: trikafka consume {name} {meant}")
    plan = ConsumePlan(
        topics=topics,
        partitions=frozenset(partitions),
        group=group,
        start=begin,
        until_end=until_end,
        count=count,
        form=output_format(
            form,
            key_delimiter,
            b"NULL" if null else b"",
            key=key_format,
            value=value_format,
            headers=headers,
        ),
        keep=None if grep is None else matching(grep),
        until_time=None if until_time is None else past_time(until_time),
    )
    run(Consuming(settings, plan).main)


def reading(
    common: Common, group: str | None, start: str | None
) -> tuple[dict[str, Any], str | None, Start | None]:
    """Return the consumer's settings, its group and its start, from the options about them.

    Raises:
        click.UsageError: The options contradict each other.
        ConfigurationError: A setting is wrong.
    """
    from ..config import ConsumerConfig
    from .start import At, parse

    given = common.settings(ConsumerConfig)
    own = given.pop("group_id", None)
    group = own if group is None else group
    # Often a variable that is not set. Without the group, a copy would begin at the beginning again.
    if group == "":
        raise click.UsageError("the group's name is empty; leave it out to read without a group")
    begin = parse(start) if start is not None else None
    if (
        group is not None
        and begin is not None
        and begin.at not in (At.BEGINNING, At.END, At.STORED)
    ):
        raise click.UsageError(
            "with a group --from is 'beginning', 'end' or 'stored': the group knows where it is"
        )
    if group is None and begin is not None and begin.at is At.STORED:
        raise click.UsageError("--from stored needs a group")
    return _settings(given, group, begin.at.value if begin else None), group, begin


def _settings(given: dict[str, Any], group: str | None, start: str | None) -> dict[str, Any]:
    """Return the consumer's settings.

    An explicit ``--from`` overrides ``-X auto.offset.reset``. Without a group that setting has no
    effect either.

    Raises:
        ConfigurationError: A value is wrong, even one without an effect.
    """
    words = {"beginning": "earliest", "end": "latest", "stored": "none"}
    asked = given.get("auto_offset_reset")
    if asked is not None:
        _check_reset(asked, group, start, words)
    if group is None:
        return {**given, "auto_offset_reset": "earliest"}
    reset = words[start] if start is not None else asked or "earliest"
    return {**given, "group_id": group, "auto_offset_reset": reset}


def _check_reset(asked: str, group: str | None, start: str | None, words: dict[str, str]) -> None:
    from ..config.resets import parse_reset
    from .progress import warn

    parse_reset(asked)
    if start is not None and words.get(start) != asked:
        warn(f"--from decides where to begin: auto.offset.reset={asked} has no effect")
    elif start is None and group is None and asked != "earliest":
        warn(
            f"auto.offset.reset={asked} has no effect without a group: the first record is the "
            "earliest, or the one that --from gives"
        )
