"""The plan of ``trikafka reassign move --file``, and the log directories that it names."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .partly import fail_later, whole

if TYPE_CHECKING:
    from .._api.admin.admin import Admin
    from .._api.admin.log_dirs import TopicPartitionReplica
    from ..types import TopicPartition

Replicas = tuple[int, ...]
#: The word of a plan for "the directory does not matter".
_ANY = "any"
#: Seconds to wait until the brokers have the replicas that go to directories, as Kafka's tool does.
_THERE_WITHIN = 10.0


@dataclass(frozen=True, slots=True)
class Plan:
    """The planned replicas of each partition, and the log directories for some of them."""

    replicas: Mapping[TopicPartition, Replicas]
    directories: Mapping[TopicPartitionReplica, str]


def read_plan(path: str) -> Plan:
    """Return the plan in a file.

    Raises:
        click.BadParameter: The file cannot be read, or has no plan.
    """
    from ..errors import ConfigurationError

    try:
        parts = json.loads(Path(path).read_text(encoding="utf-8"))["partitions"]
        return _plan_of(parts)
    except OSError as error:
        raise click.BadParameter(
            f"cannot read {path!r}: {error.strerror}", param_hint="--file"
        ) from None
    except ConfigurationError as error:
        raise click.BadParameter(f"{path!r}: {error}", param_hint="--file") from None
    except (ValueError, TypeError, LookupError, AttributeError):
        raise click.BadParameter(
            f"{path!r} is not a plan such as "
            '{"partitions": [{"topic": "t", "partition": 0, "replicas": [1, 2]}]}',
            param_hint="--file",
        ) from None


def _plan_of(parts: Iterable[Any]) -> Plan:
    from .._api.admin.log_dirs import TopicPartitionReplica
    from .._api.admin.messages import partitions_of
    from .._api.admin.types import checked_brokers
    from ..errors import ConfigurationError
    from ..types import TopicPartition

    replicas: dict[TopicPartition, Replicas] = {}
    directories: dict[TopicPartitionReplica, str] = {}
    for part in parts:
        (tp,) = partitions_of([TopicPartition(part["topic"], part["partition"])])
        if tp in replicas:
            raise ConfigurationError(f"{tp} is there twice")
        replicas[tp] = checked_brokers(str(tp), part["replicas"])
        paths = part.get("log_dirs") or [_ANY] * len(replicas[tp])
        if not isinstance(paths, list) or not all(isinstance(each, str) for each in paths):
            raise ConfigurationError(f"the log_dirs of {tp} are paths or {_ANY!r}, not {paths!r}")
        if len(paths) != len(replicas[tp]):
            raise ConfigurationError(
                f"{tp} has {len(replicas[tp])} replicas and {len(paths)} log_dirs: each replica "
                f"needs one, such as {_ANY!r}"
            )
        directories.update(
            (TopicPartitionReplica(*tp, broker), path)
            for broker, path in zip(replicas[tp], paths, strict=True)
            if path != _ANY
        )
    return Plan(replicas, directories)


def check_brokers(
    wanted: Mapping[TopicPartition, Replicas],
    now: Mapping[TopicPartition, Replicas],
    live: Collection[int],
) -> None:
    """Check that each new replica is for a live broker.

    Raises:
        click.ClickException: One is not.
    """
    for tp, replicas in wanted.items():
        if missing := [each for each in replicas if each not in live and each not in now[tp]]:
            raise click.ClickException(
                f"{tp} cannot move to broker {missing[0]}: the cluster has no such live broker; "
                f"it has {', '.join(map(str, sorted(live)))}"
            )


async def elsewhere(
    admin: Admin, directories: Mapping[TopicPartitionReplica, str]
) -> dict[TopicPartitionReplica, str]:
    """Return the directories of those replicas that are not there, nor on their way.

    Raises:
        click.ClickException: A broker has no such directory.
    """
    from .._api.admin.log_dirs import place_of
    from ..types import TopicPartition

    if not directories:
        return {}
    places = {TopicPartition(one.topic, one.partition) for one in directories}
    brokers = {one.broker for one in directories}
    found = await whole(admin.describe_log_dirs(brokers, partitions=places))
    todo = {}
    for one, path in directories.items():
        if path not in found[one.broker]:
            raise click.ClickException(
                f"broker {one.broker} has no log directory {path!r}; it has "
                f"{', '.join(sorted(found[one.broker]))}"
            )
        place = place_of(TopicPartition(one.topic, one.partition), found[one.broker])
        if (place.future_path or place.path) != path:
            todo[one] = path
    return todo


async def place_replicas(admin: Admin, directories: Mapping[TopicPartitionReplica, str]) -> None:
    """Let the brokers put replicas into directories; note the failures.

    A broker that has not got the replica yet says so, and remembers the directory for it.
    """
    import trio

    from .._api.admin.log_dirs import TopicPartitionReplica
    from ..error_codes import ErrorCode
    from ..errors import AdminErrors, TrikafkaError

    left = dict(directories)
    failures: dict[Any, TrikafkaError] = {}
    until = trio.current_time() + _THERE_WITHIN
    while left:
        try:
            await admin.alter_replica_log_dirs(left)
            break
        except TrikafkaError as error:
            failed = {
                one: each
                for one, each in error.failures.items()
                if isinstance(one, TopicPartitionReplica)
            } or dict.fromkeys(left, error)
            waits = {
                one: path
                for one, path in left.items()
                if one in failed and failed[one].code == ErrorCode.REPLICA_NOT_AVAILABLE
            }
            late = trio.current_time() >= until
            failures.update((one, failed[one]) for one in failed if late or one not in waits)
            left = {} if late else waits
        if left:
            await trio.sleep(0.1)
    if failures:
        done = {one: path for one, path in directories.items() if one not in failures}
        fail_later(AdminErrors.of(failures, done))
