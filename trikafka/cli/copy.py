"""``trikafka copy``: copy the records of topics, to another cluster or another topic."""

from __future__ import annotations

import click

from .options import Common, common_options, file_pairs, output_option, pairs
from .running import run


@click.command()
@click.argument("names", nargs=-1, metavar="TOPIC...")
@click.option(
    "-B",
    "--to-servers",
    metavar="HOST:PORT[,...]",
    help="Brokers of the other cluster.  [default: the same cluster]",
)
@click.option(
    "--to-topic", metavar="NAME", help="The topic to write to.  [default: that of the same name]"
)
@click.option(
    "--to-config-file",
    type=click.Path(dir_okay=False),
    callback=file_pairs,
    help="A file of settings of the cluster to write to, as -F.",
)
@click.option(
    "-T",
    "to_properties",
    multiple=True,
    metavar="NAME=VALUE",
    callback=pairs,
    help="A setting of the producer, as -X; repeatable.",
)
@click.option(
    "-G",
    "--group",
    metavar="ID",
    help="Go on where this group has got to, and commit to it what was copied.",
)
@click.option(
    "--from",
    "start",
    metavar="WHERE",
    help="Where to begin, as in 'trikafka consume'.  [default: beginning]",
)
@click.option("-e", "--until-end", is_flag=True, help="End after the records of the start.")
@click.option("-c", "--count", type=click.IntRange(1), metavar="N", help="End after N records.")
@click.option(
    "--keep-partitions",
    is_flag=True,
    help="Write each record to the partition of the same number.  [default: keys decide]",
)
@click.option(
    "--no-create", is_flag=True, help="Fail if a topic to write to is missing.  [default: make it]"
)
@click.option("-z", "--compression", metavar="CODEC", help="none, gzip, snappy, lz4 or zstd.")
@output_option
@common_options
def command(
    common: Common,
    output: str,
    names: tuple[str, ...],
    to_servers: str | None,
    to_topic: str | None,
    to_config_file: tuple[tuple[str, str], ...],
    to_properties: tuple[tuple[str, str], ...],
    group: str | None,
    start: str | None,
    until_end: bool,
    count: int | None,
    keep_partitions: bool,
    no_create: bool,
    compression: str | None,
) -> None:
    """Copy the records of topics: keys, values, headers and timestamps; say how many went where.

    -b, -X and -F are about the cluster to read from. Where no option names other brokers, they hold
    for the producer, too. A topic that is missing there is made with the partitions and settings
    that it has here. With --group, a copy that ended or was killed goes on where it was: no record
    is lost, and after a kill those of the last seconds may be written twice. Records of aborted
    transactions are left out, and those of open ones are waited for
    (-X isolation.level=read_uncommitted copies both).
    """
    from ..config import ProducerConfig
    from .admin import chosen
    from .consume import reading
    from .consuming import ConsumePlan
    from .copying import Copying
    from .record_lines import json_format

    topics = tuple(chosen("topic", names))
    if to_topic == "":  # often a variable that is not set
        raise click.UsageError("--to-topic is empty; leave it out to keep the names")
    target = target_of(common, to_servers, to_config_file, to_properties)
    if target is None and (to_topic is None or to_topic in topics):
        raise click.UsageError(
            "where to? Give --to-servers for another cluster, or --to-topic with another name"
        )
    settings, group, begin = reading(common, group, start)
    if target is None:
        target = here(common, to_config_file, to_properties)
    producer = target.settings(ProducerConfig)
    if producer.pop("transactional_id", None) is not None:
        raise click.UsageError("a copy writes no transactions: leave transactional.id out")
    if compression is not None:
        producer["compression_type"] = compression
    plan = ConsumePlan(
        topics=topics,
        partitions=frozenset(),
        group=group,
        start=begin,
        until_end=until_end,
        count=count,
        form=json_format(),
    )
    work = Copying(settings, plan, producer, to_topic, keep_partitions, not no_create)
    with work.delivered.reporting(output):
        run(work.main)


def target_of(
    common: Common,
    servers: str | None,
    from_file: tuple[tuple[str, str], ...],
    properties: tuple[tuple[str, str], ...],
) -> Common | None:
    """Return the options of another cluster; ``None``: no option names its brokers."""
    named = {name.replace("_", ".") for name, _ in from_file + properties}
    if servers is None and "bootstrap.servers" not in named:
        return None
    return Common(servers, properties, common.debug, from_file)


def here(
    common: Common, from_file: tuple[tuple[str, str], ...], properties: tuple[tuple[str, str], ...]
) -> Common:
    """Return the options of a producer for the cluster that is read from.

    The settings of ``-X`` are checked for the consumer; the producer takes those that it has.
    """
    shared = common.from_file + common.properties + from_file
    return Common(common.bootstrap_servers, properties, common.debug, shared)
