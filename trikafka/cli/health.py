"""``trikafka cluster health``: the partitions that are in trouble."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from .admin import ask
from .options import Common, common_options, output_option
from .tables import PARTITION_COLUMNS, partition_info_json, say_objects

if TYPE_CHECKING:
    from .._api.admin.admin import Admin
    from ..types import PartitionInfo

#: What may be wrong with a partition, the worst first.
_NO_LEADER = "no leader"
_TOO_FEW = "too few in sync"
_BEHIND = "replica behind"


@dataclass(frozen=True, slots=True)
class Trouble:
    """A partition that is not healthy.

    ``min_in_sync``: ``min.insync.replicas`` of its topic; ``None``: not known.
    """

    info: PartitionInfo
    problem: str
    min_in_sync: int | None


@dataclass(frozen=True, slots=True)
class Health:
    """The partitions of a cluster: their number, and those in trouble.

    ``gone``: the brokers that have replicas and are not in the cluster.
    """

    partitions: int
    troubles: tuple[Trouble, ...]
    gone: tuple[int, ...]


@click.command()
@output_option
@common_options
def health(common: Common, output: str) -> None:
    """Show partitions without a leader or with replicas behind; fail if there are any.

    PROBLEM: "no leader" (it can neither be read nor written), "too few in sync" (fewer than
    min.insync.replicas, so writes with acks=all fail), "replica behind" (a further loss may do
    harm). The exit code is 0 if no partition is listed, and 1 otherwise.
    """
    report(ask(common, examine), output)


def report(found: Health, output: str) -> None:
    """Print the partitions in trouble.

    Raises:
        click.ClickException: There are some.
    """
    troubles = [
        {
            **partition_info_json(each.info),
            "min_in_sync_replicas": each.min_in_sync,
            "problem": each.problem,
        }
        for each in found.troubles
    ]
    columns = PARTITION_COLUMNS | {"min_in_sync_replicas": "NEEDED", "problem": "PROBLEM"}
    count = "1 partition" if found.partitions == 1 else f"{found.partitions} partitions, each"
    healthy = f"{count} with a leader and all replicas in sync"
    say_objects(output, columns, troubles, healthy)
    if found.troubles:
        raise click.ClickException(summary(found))


def summary(found: Health) -> str:
    """Return one sentence about the partitions in trouble."""
    counts = Counter(each.problem for each in found.troubles)
    parts = [
        f"{counts[problem]} {text}"
        for problem, text in (
            (_NO_LEADER, "without a leader"),
            (_TOO_FEW, "with fewer replicas in sync than min.insync.replicas"),
            (_BEHIND, "with a replica behind"),
        )
        if counts[problem]
    ]
    gone = ", ".join(map(str, found.gone))
    where = f"; brokers with replicas that are not in the cluster: {gone}" if gone else ""
    return (
        f"{len(found.troubles)} of {found.partitions} partitions are not healthy: "
        f"{', '.join(parts)}{where}"
    )


async def examine(admin: Admin) -> Health:
    """Return the health of all partitions, those of internal topics included."""
    topics = await admin.list_topics(include_internal=True)
    nodes = {node.node_id for node in (await admin.describe_cluster()).nodes}
    infos = [info for infos in topics.values() for info in infos]
    ailing = [
        info
        for info in infos
        if info.leader is None or len(info.in_sync_replicas) < len(info.replicas)
    ]
    needed = await _min_in_sync(admin, {info.topic for info in ailing})
    troubles = [
        Trouble(info, _problem(info, needed.get(info.topic)), needed.get(info.topic))
        for info in sorted(ailing, key=lambda info: (info.topic, info.partition))
    ]
    gone = {node for info in infos for node in info.replicas} - nodes
    return Health(len(infos), tuple(troubles), tuple(sorted(gone)))


def _problem(info: PartitionInfo, min_in_sync: int | None) -> str:
    if info.leader is None:
        return _NO_LEADER
    return _TOO_FEW if len(info.in_sync_replicas) < (min_in_sync or 1) else _BEHIND


async def _min_in_sync(admin: Admin, topics: set[str]) -> Mapping[str, int]:
    """Return ``min.insync.replicas`` of topics, without those that the user may not see."""
    from .._api.admin.configs import ConfigResource
    from ..errors import AdminErrors, TrikafkaError

    found: dict[str, int] = {}
    if topics:
        resources = [ConfigResource("topic", name) for name in sorted(topics)]
        try:
            described = await admin.describe_configs(resources)
        except AdminErrors as error:
            described = dict(error.results)
        except TrikafkaError:
            described = {}
        for resource, entries in described.items():
            entry = entries.get("min.insync.replicas")
            if entry is not None and (entry.value or "").isdecimal():
                found[resource.name] = int(entry.value or "")
    return found
