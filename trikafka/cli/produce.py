"""``trikafka produce``: write JSON or raw lines to a topic."""

from __future__ import annotations

import os

import click

from .options import Common, common_options
from .running import run


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
    type=click.Choice(["json", "raw"]),
    help="What lines are.  [default: json; raw with -K]",
)
@click.option(
    "-K", "--key-delimiter", metavar="TEXT", help="Lines are keys and values with TEXT between."
)
@click.option("-Z", "--null", is_flag=True, help="An empty key or value of a raw line is null.")
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
    help="For every record; repeatable.",
)
@click.option("-z", "--compression", metavar="CODEC", help="none, gzip, snappy, lz4 or zstd.")
@common_options
def command(
    common: Common,
    files: tuple[str, ...],
    topic: str | None,
    form: str | None,
    key_delimiter: str | None,
    null: bool,
    key: str | None,
    partition: int | None,
    any_partition: bool,
    headers: tuple[str, ...],
    compression: str | None,
) -> None:
    """Write lines of the standard input, or of files, to a topic.

    A line of JSON is {"key": ..., "value": ..., "headers": [["name", "value"]], "partition": 0,
    "timestamp": 0}; what is left out is null, or chosen. Keys and values are text, null or
    {"base64": "..."}, as "trikafka consume" prints them.
    """
    from ..config import ProducerConfig
    from .options import pair
    from .producing import ProducePlan, Producing
    from .record_lines import from_json, from_raw, literal

    ctx = click.get_current_context()
    _check_files(files, topic, ctx)
    if form == "json" and key_delimiter is not None:
        raise click.UsageError("-K is for raw lines; JSON has its keys inside", ctx)
    if key_delimiter == "":
        raise click.UsageError("the key delimiter must not be empty", ctx)
    raw = form == "raw" or key_delimiter is not None
    if raw and topic is None:
        raise click.UsageError("which topic? Raw lines need --topic", ctx)
    plan = ProducePlan(
        files=files or ("-",),
        topic=topic,
        read=from_raw(None if key_delimiter is None else literal(key_delimiter), null)
        if raw
        else from_json,
        skip_blank=not raw,
        key=None if key is None else key.encode(),
        partition=partition,
        any_partition=any_partition,
        headers=tuple((name, value.encode()) for name, value in map(pair, headers)),
    )
    settings = common.settings(ProducerConfig)
    if settings.pop("transactional_id", None) is not None:
        raise click.UsageError(
            "'trikafka produce' writes no transactions: leave transactional.id out", ctx
        )
    if compression is not None:
        settings["compression_type"] = compression
    run(Producing(settings, plan).main)


def _check_files(files: tuple[str, ...], topic: str | None, ctx: click.Context) -> None:
    """Check that each file exists.

    An argument that is no file, without ``--topic``, is probably the topic; the error suggests
    that.
    """
    for name in files:
        if name != "-" and not os.path.exists(name):
            hint = (
                ""
                if topic is not None or "/" in name
                else f"; if that is the topic: trikafka produce -t {name}"
            )
            raise click.BadParameter(f"file {name!r} does not exist{hint}", ctx, param_hint="FILE")
