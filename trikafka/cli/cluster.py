"""``trikafka cluster``: the brokers and the controller."""

from __future__ import annotations

import click

from .admin import ask
from .options import Common, common_options, output_option
from .tables import say, say_json, table


@click.command()
@output_option
@common_options
def command(common: Common, output: str) -> None:
    """Show the cluster's id, its live brokers, and the broker that takes changes."""
    seen = ask(common, lambda admin: admin.describe_cluster())
    controller = seen.controller.node_id if seen.controller is not None else None
    if output == "json":
        say_json(
            {
                "cluster_id": seen.cluster_id,
                "controller": controller,
                "brokers": [
                    {"id": node.node_id, "host": node.host, "port": node.port, "rack": node.rack}
                    for node in seen.nodes
                ],
            }
        )
        return
    count = "1 broker" if len(seen.nodes) == 1 else f"{len(seen.nodes)} brokers"
    say(f"{seen.cluster_id or 'cluster without an id'}  ({count}, changes go to {controller})")
    rows = [(node.node_id, node.host, node.port, node.rack) for node in seen.nodes]
    say(table(("BROKER", "HOST", "PORT", "RACK"), rows))
