"""``trikafka cluster``: the brokers, the health, the features and the controllers."""

from __future__ import annotations

from types import MappingProxyType

import click

from .admin import ask
from .health import health
from .log_dirs import log_dirs
from .options import Common, common_options, different, output_option, pairs
from .partly import changed
from .suggesting import WithVerbs
from .tables import say, say_done, say_json, say_rows, table_of, time_text


@click.command()
@click.option(
    "--set",
    "changes",
    multiple=True,
    metavar="NAME=LEVEL",
    callback=pairs,
    help="Change the level of a feature; repeatable.",
)
@click.option(
    "--downgrade",
    type=click.Choice(["safe", "unsafe"]),
    help="Levels may fall; 0 turns a feature off. With unsafe, metadata may be lost.",
)
@click.option("--dry-run", is_flag=True, help="Let the controller check the levels; change none.")
@click.option("--broker", "node_id", type=int, metavar="ID", help="The broker to ask.")
@output_option
@common_options
def features(
    common: Common,
    changes: tuple[tuple[str, str], ...],
    downgrade: str | None,
    dry_run: bool,
    node_id: int | None,
    output: str,
) -> None:
    """Show the levels of the cluster's features, and those that a broker supports.

    With --set the command changes levels, such as metadata.version after an upgrade.
    """
    if changes:
        _set_features(common, changes, downgrade, dry_run, output)
        return
    if downgrade or dry_run:
        raise click.UsageError("--downgrade and --dry-run go with --set")
    seen = ask(common, lambda admin: admin.describe_features(node_id=node_id))
    rows = [(one.name, one.level, one.lowest, one.highest) for one in seen.features.values()]
    columns = {"feature": "FEATURE", "level": "LEVEL", "lowest": "LOWEST", "highest": "HIGHEST"}
    say_rows(output, columns, rows)


def _set_features(
    common: Common,
    changes: tuple[tuple[str, str], ...],
    downgrade: str | None,
    dry_run: bool,
    output: str,
) -> None:
    levels = {}
    for name, text in different(changes).items():
        if not text.isdecimal():
            raise click.UsageError(f"the level of {name} must be a whole number, not {text!r}")
        levels[name] = int(text)
    names = ask(
        common,
        lambda admin: changed(
            levels,
            admin.update_features(
                levels,
                downgrade=downgrade,  # type: ignore[arg-type]
                validate_only=dry_run,
            ),
        ),
    )
    done = "valid; nothing was changed" if dry_run else "changed"
    said = ", ".join(f"{name}={levels[name]}" for name in names)
    new = {name: levels[name] for name in names}
    say_done(output, f"{said}: {done}", {"levels": new, "dry_run": dry_run})


@click.command()
@output_option
@common_options
def quorum(common: Common, output: str) -> None:
    """Show the controllers that keep the cluster's metadata, and how far each node is.

    LAG counts records that the leader has and the node has not; CAUGHT-UP says when the node last
    had all of them.
    """
    seen = ask(common, lambda admin: admin.describe_metadata_quorum())
    nodes = [
        (each, "leader" if each.node_id == seen.leader_id else role)
        for role, group in (("voter", seen.voters), ("observer", seen.observers))
        for each in group
    ]
    found = [
        {
            "node": each.node_id,
            "role": role,
            "directory_id": each.directory_id,
            "log_end_offset": each.log_end_offset,
            "lag": seen.lag(each),
            "last_fetch": each.last_fetch,
            "last_caught_up": each.last_caught_up,
        }
        for each, role in nodes
    ]
    if output == "json":
        say_json(found)
        return
    leader = "no leader" if seen.leader_id is None else f"leader {seen.leader_id}"
    say(f"{leader}, epoch {seen.leader_epoch}, high watermark {seen.high_watermark}")
    columns = {
        "node": "NODE",
        "role": "ROLE",
        "log_end_offset": "END",
        "lag": "LAG",
        "caught_up": "CAUGHT-UP",
        "directory_id": "DIRECTORY",
    }
    times = [time_text(each.last_caught_up, "seconds") for each, _ in nodes]
    say(table_of(columns, [{**one, "caught_up": at} for one, at in zip(found, times, strict=True)]))


class _Cluster(WithVerbs):
    verbs = MappingProxyType(
        {"features": features, "health": health, "quorum": quorum, "log-dirs": log_dirs}
    )
    words = MappingProxyType(
        {
            **dict.fromkeys(("brokers", "info", "describe", "status", "list", "id"), "cluster"),
            **dict.fromkeys(("elect", "elect-leaders"), "topics elect"),
            **dict.fromkeys(("config", "configs"), "configs get broker"),
            **dict.fromkeys(("controllers", "controller", "voters"), "cluster quorum"),
            **dict.fromkeys(("check", "unhealthy", "under-replicated"), "cluster health"),
            "versions": "cluster features",
        }
    )


@click.command(cls=_Cluster)
@output_option
@common_options
def command(common: Common, output: str) -> None:
    """Show the cluster's id, its live brokers, and the broker that takes changes.

    "trikafka cluster health" shows partitions that are in trouble, "trikafka cluster features"
    shows and changes feature levels, "trikafka cluster quorum" shows the controllers, and "trikafka
    cluster log-dirs" what lies in the brokers' directories.
    """
    seen = ask(common, lambda admin: admin.describe_cluster())
    controller = seen.controller.node_id if seen.controller is not None else None
    brokers = [
        {"id": node.node_id, "host": node.host, "port": node.port, "rack": node.rack}
        for node in seen.nodes
    ]
    if output == "json":
        say_json({"cluster_id": seen.cluster_id, "controller": controller, "brokers": brokers})
        return
    count = "1 broker" if len(seen.nodes) == 1 else f"{len(seen.nodes)} brokers"
    say(f"{seen.cluster_id or 'cluster without an id'}  ({count}, changes go to {controller})")
    say(table_of({"id": "BROKER", "host": "HOST", "port": "PORT", "rack": "RACK"}, brokers))
