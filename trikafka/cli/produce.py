"""``trikafka produce``: write JSON lines, raw lines, CSV or Parquet to a topic."""

from __future__ import annotations

import os

import click

from .options import Common, common_options, output_option, pairs
from .running import run

_BY_NAME = {".csv": "csv", ".parquet": "parquet"}


@click.command()
@click.argument(
    "files", nargs=-1, metavar="[FILE]...", type=click.Path(dir_okay=False, allow_dash=True)
)
@click.option(
    "-t", "--topic", metavar="NAME", help="Where to; else every line of JSON has to name its topic."
)
@click.option(
    "-f",
    "--format",
    "form",
    type=click.Choice(["json", "raw", "csv", "parquet"]),
    help="What the input is.  [default: by the file's name, else json; raw with -K]",
)
@click.option(
    "-K", "--key-delimiter", metavar="TEXT", help="Lines are keys and values with TEXT between."
)
@click.option(
    "--key-column", metavar="NAME", help="The column of keys in CSV or Parquet.  [default: key]"
)
@click.option("--value-column", metavar="NAME", help="The column of values.  [default: value]")
@click.option(
    "-Z",
    "--null",
    is_flag=True,
    help="An empty key or value of a raw line is null, as in CSV any field.",
)
@click.option("-k", "--key", metavar="TEXT", help="The key of records without one.")
@click.option(
    "-p", "--partition", type=click.IntRange(0), help="To this partition, whatever key or line say."
)
@click.option(
    "--any-partition", is_flag=True, help="Ignore the partitions that lines name: keys decide."
)
@click.option(
    "-H",
    "--header",
    "headers",
    multiple=True,
    metavar="NAME=VALUE",
    callback=pairs,
    help="For every record; repeatable.",
)
@click.option("-z", "--compression", metavar="CODEC", help="none, gzip, snappy, lz4 or zstd.")
@output_option
@common_options
def command(
    common: Common,
    output: str,
    files: tuple[str, ...],
    topic: str | None,
    form: str | None,
    key_delimiter: str | None,
    null: bool,
    key: str | None,
    partition: int | None,
    any_partition: bool,
    headers: tuple[tuple[str, str], ...],
    compression: str | None,
    key_column: str | None,
    value_column: str | None,
) -> None:
    """Write lines of the standard input, or of files, to a topic; say how many went where.

    A line of JSON is {"key": ..., "value": ..., "headers": [["name", "value"]], "partition": 0,
    "timestamp": 0}; what is left out is null, or chosen. Keys and values are text, null or
    {"base64": "..."}, as "trikafka consume" prints them.

    CSV (its first line names the columns) and Parquet: the columns key, value, partition and
    timestamp are these parts of a record. Without a column of values, the value of a row is a JSON
    object of all its columns.
    """
    from ..config import ProducerConfig
    from .producing import ProducePlan, Producing
    from .record_lines import argument_bytes, from_json, from_raw, literal

    _check_files(files, topic)
    form = form or ("raw" if key_delimiter is not None else _form_of(files))
    if form != "raw" and key_delimiter is not None:
        raise click.UsageError("-K is for raw lines; JSON and tables have keys of their own")
    if key_delimiter == "":
        raise click.UsageError("the key delimiter must not be empty")
    if form != "json" and topic is None:
        raise click.UsageError("which topic? Only lines of JSON may name it: give --topic")
    if (key_column or value_column) and form not in ("csv", "parquet"):
        raise click.UsageError("--key-column and --value-column are for CSV and Parquet")
    if form == "parquet" and (key is not None or headers or null):
        raise click.UsageError("-k, -H and -Z are not for Parquet: its columns say it all")
    for name, _ in headers:
        if not _is_text(name):
            raise click.BadParameter(f"{name!r} is not text in UTF-8", param_hint="--header")
    delimiter = None if key_delimiter is None else literal(key_delimiter)
    plan = ProducePlan(
        files=files or ("-",),
        topic=topic,
        form=form,
        read=from_raw(delimiter, null) if form == "raw" else from_json,
        key=None if key is None else argument_bytes(key),
        partition=partition,
        any_partition=any_partition,
        headers=tuple((name, argument_bytes(value)) for name, value in headers),
        key_delimiter=delimiter,
        empty_is_null=null,
        key_column=key_column,
        value_column=value_column,
    )
    settings = common.settings(ProducerConfig)
    if settings.pop("transactional_id", None) is not None:
        raise click.UsageError(
            "'trikafka produce' writes no transactions: leave transactional.id out"
        )
    if compression is not None:
        settings["compression_type"] = compression
    work = Producing(settings, plan)
    with work.delivered.reporting(output):
        run(work.main)


def _is_text(argument: str) -> bool:
    """Return whether an argument's bytes are UTF-8; Python has half surrogates for other ones."""
    try:
        argument.encode()
    except UnicodeEncodeError:
        return False
    return True


def _form_of(files: tuple[str, ...]) -> str:
    """Return the form of the input by the names of the files, which must agree."""
    found = {_BY_NAME.get(os.path.splitext(name)[1].lower(), "json") for name in files}
    if len(found) > 1:
        raise click.UsageError(
            f"the files are of several forms ({', '.join(sorted(found))}): give --format, or "
            "write them one by one"
        )
    return found.pop() if found else "json"


def _check_files(files: tuple[str, ...], topic: str | None) -> None:
    """Check that each file exists.

    An argument that is not a file, without ``--topic``, is probably the topic; the error suggests
    that.
    """
    for name in files:
        if name != "-" and not os.path.exists(name):
            hint = (
                ""
                if topic is not None or "/" in name
                else f"; if that is the topic: trikafka produce -t {name}"
            )
            raise click.BadParameter(f"file {name!r} does not exist{hint}", param_hint="FILE")
