"""The work of ``produce``, ``consume`` and ``copy`` on a scripted cluster, in virtual time."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from trikafka.cli.consuming import ConsumePlan, Consuming
from trikafka.cli.copying import Copying
from trikafka.cli.producing import ProducePlan, Producing
from trikafka.cli.record_lines import from_json, from_raw, json_format
from trikafka.cli.running import Stop
from trikafka.testing import ScriptedCluster


def settings(cluster: ScriptedCluster, **more: Any) -> dict[str, Any]:
    return {"bootstrap_servers": cluster.bootstrap_servers, "dial": cluster.dial, **more}


def plan_to_produce(
    cluster: ScriptedCluster, path: Path | str, form: str = "raw", client: Any = None, **plan: Any
) -> Producing:
    """Return the work that writes a file to topic ``t``."""
    delimiter = plan.get("key_delimiter")
    read = from_raw(delimiter, plan.get("empty_is_null", False)) if form == "raw" else from_json
    defaults: dict[str, Any] = {
        "topic": "t",
        "key": None,
        "partition": None,
        "any_partition": False,
        "headers": (),
    }
    return Producing(
        settings(cluster, **(client or {})),
        ProducePlan(files=(str(path),), form=form, read=read, **{**defaults, **plan}),
    )


async def produced(
    cluster: ScriptedCluster, path: Path | str, form: str = "raw", client: Any = None, **plan: Any
) -> Producing:
    """Write a file to topic ``t``."""
    work = plan_to_produce(cluster, path, form, client, **plan)
    await work.main(Stop())
    return work


def plan_of(*topics: str, **more: Any) -> ConsumePlan:
    defaults: dict[str, Any] = {
        "topics": topics or ("t",),
        "partitions": frozenset(),
        "group": None,
        "start": None,
        "until_end": True,
        "count": None,
        "form": json_format(),
    }
    return ConsumePlan(**{**defaults, **more})


async def consumed(cluster: ScriptedCluster, *topics: str, **more: Any) -> None:
    """Print topics to the standard output."""
    given = settings(cluster, auto_offset_reset="earliest")
    await Consuming(given, plan_of(*topics, **more)).main(Stop())


async def copied(
    source: ScriptedCluster,
    target: ScriptedCluster,
    *topics: str,
    to: str | None = None,
    keep_partitions: bool = False,
    create: bool = True,
    reads: Mapping[str, Any] = MappingProxyType({}),
    **more: Any,
) -> Copying:
    """Copy topics from a cluster to another; ``reads`` has more settings of the consumer."""
    plan = plan_of(*topics, **more)
    given = settings(source, auto_offset_reset="earliest", **reads)
    if plan.group is not None:
        given["group_id"] = plan.group
    work = Copying(given, plan, settings(target), to, keep_partitions, create)
    await work.main(Stop())
    return work
