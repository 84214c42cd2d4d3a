"""The log directories of brokers and the replicas in them: values, requests and responses."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from kafka.protocol.admin import AlterReplicaLogDirsRequest, DescribeLogDirsRequest

from ..._net.deadlines import RunningCall
from ...config.text import plain_text
from ...config.whole import is_whole, whole
from ...errors import ConfigurationError, ErrorCode, TrikafkaError, from_code
from ...types import TopicPartition
from .messages import by_topic, partitions_of
from .routing import Parts, Place, Routing

#: The codes of a refused move that describe the broker's disks and replicas: no retry helps.
_FINAL = (
    ErrorCode.REPLICA_NOT_AVAILABLE,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.LOG_DIR_NOT_FOUND,
)


class TopicPartitionReplica(NamedTuple):
    """The replica of a partition on one broker.

    Attributes:
        topic: The topic.
        partition: The number of the partition.
        broker: The number of the broker.
    """

    topic: str
    partition: int
    broker: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} on broker {self.broker}"


@dataclass(frozen=True, slots=True)
class ReplicaInfo:
    """A replica in a log directory.

    Attributes:
        size: Bytes.
        offset_lag: How far it is behind the high watermark or, if ``is_future``, behind the replica
            that it will replace.
        is_future: True for a copy that replaces the present replica once it has caught up.
    """

    size: int
    offset_lag: int
    is_future: bool


@dataclass(frozen=True, slots=True)
class LogDirDescription:
    """A log directory of a broker.

    Attributes:
        error: The reason why the directory is offline; ``None`` if it is in use.
        total_bytes: The size of its volume (Kafka 3.3); ``None`` if unknown.
        usable_bytes: The free bytes of its volume (Kafka 3.3); ``None`` if unknown.
        is_cordoned: True if it gets no new replicas (Kafka 4.3).
        replicas: The replicas in it. A partition has two while it moves between two directories of
            a broker, each in its own directory.
    """

    error: TrikafkaError | None
    total_bytes: int | None
    usable_bytes: int | None
    is_cordoned: bool
    replicas: Mapping[TopicPartition, ReplicaInfo] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ReplicaLogDir:
    """The place of a replica on its broker.

    Attributes:
        path: Its directory; ``None`` if the broker has no such replica.
        offset_lag: How far it is behind the high watermark.
        future_path: The directory to which it moves; ``None`` if it does not move.
        future_offset_lag: How far the copy there is behind.
    """

    path: str | None
    offset_lag: int | None = None
    future_path: str | None = None
    future_offset_lag: int | None = None


Directories = dict[str, LogDirDescription]


def checked_numbers(brokers: Iterable[int]) -> list[int]:
    """Return the numbers of brokers, each once. Raises :exc:`ConfigurationError`."""
    if not isinstance(brokers, Iterable) or isinstance(brokers, str | bytes):
        raise ConfigurationError(f"brokers must be a collection of numbers, not {brokers!r}")
    found = list(map(whole, brokers))
    for one in found:
        if not is_whole(one):
            raise ConfigurationError(f"a broker is named by its number, not {one!r}")
    return list(dict.fromkeys(found))


def checked_replicas(replicas: Iterable[TopicPartitionReplica]) -> list[TopicPartitionReplica]:
    """Return the replicas, each once. Raises :exc:`ConfigurationError`."""
    if isinstance(replicas, str | bytes | TopicPartitionReplica) or not isinstance(
        replicas, Iterable
    ):
        raise ConfigurationError(
            f"replicas must be a collection of TopicPartitionReplica, not {replicas!r}"
        )
    found = []
    for one in replicas:
        if not isinstance(one, tuple) or len(one) != 3:
            raise ConfigurationError(f"a replica is a TopicPartitionReplica, not {one!r}")
        (tp,) = partitions_of([TopicPartition(*one[:2])])
        (broker,) = checked_numbers([one[2]])
        found.append(TopicPartitionReplica(*tp, broker))
    return list(dict.fromkeys(found))


def checked_moves(moves: Mapping[TopicPartitionReplica, str]) -> dict[TopicPartitionReplica, str]:
    """Return the checked argument of ``alter_replica_log_dirs``.

    Raises :exc:`ConfigurationError`.
    """
    if not isinstance(moves, Mapping):
        raise ConfigurationError(
            f"moves must be a mapping of TopicPartitionReplica to directory, not {moves!r}"
        )
    for replica, path in moves.items():
        if not isinstance(path, str) or not path:
            raise ConfigurationError(
                f"the directory of {replica} is its path on the broker, not {path!r}"
            )
    return {replica: plain_text(moves[replica]) for replica in checked_replicas(moves)}


async def describe(
    routing: Routing,
    call: RunningCall,
    parts: Parts[int, Directories],
    partitions: list[TopicPartition] | None,
) -> None:
    """Ask the brokers that are left for their directories.

    Args:
        routing: The routes to the brokers.
        call: The call.
        parts: The brokers.
        partitions: The partitions to show; ``None`` means all.
    """

    def read(response: Any, brokers: list[int]) -> None:
        (broker,) = brokers
        if (error := _error(response, broker)) is not None:
            parts.failed(broker, error)
        else:
            parts.done(broker, _directories(response, partitions))
        parts.check(brokers, "DescribeLogDirs")

    places: dict[Place, list[int]] = {broker: [broker] for broker in parts.left}
    await routing.each_broker(call, places, parts, lambda brokers: _request(partitions), read)


async def describe_replicas(
    routing: Routing, call: RunningCall, parts: Parts[TopicPartitionReplica, ReplicaLogDir]
) -> None:
    """Ask the brokers of the replicas that are left for their directories."""

    def build(replicas: list[TopicPartitionReplica]) -> DescribeLogDirsRequest:
        return _request(list(map(_partition, replicas)))

    def read(response: Any, replicas: list[TopicPartitionReplica]) -> None:
        error = _error(response, replicas[0].broker)
        directories = _directories(response, list(map(_partition, replicas)))
        for one in replicas:
            if error is not None:
                parts.failed(one, error)
            else:
                parts.done(one, place_of(_partition(one), directories))
        parts.check(replicas, "DescribeLogDirs")

    await routing.each_broker(call, _by_broker(parts.left), parts, build, read)


def _request(partitions: list[TopicPartition] | None) -> DescribeLogDirsRequest:
    topic = DescribeLogDirsRequest.DescribableLogDirTopic
    return DescribeLogDirsRequest(
        topics=None
        if partitions is None
        else [
            topic(topic=name, partitions=numbers) for name, numbers in by_topic(partitions).items()
        ]
    )


def _error(response: Any, broker: int) -> TrikafkaError | None:
    code = getattr(response, "error_code", 0)  # from version 3 on
    what = f"the log directories of broker {broker}"
    return from_code(code, what, operation="Describe") if code else None


def _directories(response: Any, partitions: list[TopicPartition] | None) -> Directories:
    only = None if partitions is None else set(partitions)
    return {each.log_dir: _directory(each, only) for each in response.results}


def _partition(replica: TopicPartitionReplica) -> TopicPartition:
    return TopicPartition(replica.topic, replica.partition)


def _directory(each: Any, only: set[TopicPartition] | None) -> LogDirDescription:
    """Return a directory with the replicas that were asked for; ``None`` means all."""
    total = getattr(each, "total_bytes", -1)
    usable = getattr(each, "usable_bytes", -1)
    error = from_code(each.error_code, f"directory {each.log_dir!r}") if each.error_code else None
    return LogDirDescription(
        error,
        total if total is not None and total >= 0 else None,
        usable if usable is not None and usable >= 0 else None,
        bool(getattr(each, "is_cordoned", False)),
        {
            tp: ReplicaInfo(part.partition_size, part.offset_lag, part.is_future_key)
            for topic in each.topics
            for part in topic.partitions
            if (tp := TopicPartition(topic.name, part.partition_index))
            and (only is None or tp in only)
        },
    )


def _by_broker(
    replicas: Iterable[TopicPartitionReplica],
) -> dict[Place, list[TopicPartitionReplica]]:
    found: dict[Place, list[TopicPartitionReplica]] = defaultdict(list)
    for one in replicas:
        found[one.broker].append(one)
    return found


def place_of(tp: TopicPartition, directories: Directories) -> ReplicaLogDir:
    """Return the place of a broker's replica among its directories."""
    place = ReplicaLogDir(None)
    for path, directory in directories.items():
        replica = directory.replicas.get(tp)
        if replica is None:
            continue
        if replica.is_future:
            place = ReplicaLogDir(place.path, place.offset_lag, path, replica.offset_lag)
        else:
            place = ReplicaLogDir(
                path, replica.offset_lag, place.future_path, place.future_offset_lag
            )
    return place


async def move(
    routing: Routing,
    call: RunningCall,
    parts: Parts[TopicPartitionReplica, None],
    moves: Mapping[TopicPartitionReplica, str],
) -> None:
    """Let the brokers move the replicas that are left to other directories."""

    def build(replicas: list[TopicPartitionReplica]) -> AlterReplicaLogDirsRequest:
        paths: dict[str, list[TopicPartition]] = defaultdict(list)
        for one in replicas:
            paths[moves[one]].append(_partition(one))
        directory = AlterReplicaLogDirsRequest.AlterReplicaLogDir
        topic = directory.AlterReplicaLogDirTopic
        return AlterReplicaLogDirsRequest(
            dirs=[
                directory(
                    path=path,
                    topics=[
                        topic(name=name, partitions=numbers)
                        for name, numbers in by_topic(partitions).items()
                    ],
                )
                for path, partitions in paths.items()
            ]
        )

    def read(response: Any, replicas: list[TopicPartitionReplica]) -> None:
        broker = replicas[0].broker
        for topic in response.results:
            for part in topic.partitions:
                one = TopicPartitionReplica(topic.topic_name, part.partition_index, broker)
                if one not in moves:
                    continue
                if not part.error_code:
                    parts.done(one, None)
                    continue
                error = from_code(part.error_code, f"{one}, to {moves[one]!r}", operation="Alter")
                if part.error_code in _FINAL:
                    error.retriable = False
                parts.failed(one, error)
        parts.check(replicas, "AlterReplicaLogDirs")

    await routing.each_broker(call, _by_broker(parts.left), parts, build, read)
