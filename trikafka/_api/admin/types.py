"""The admin client's values. All are immutable."""

from __future__ import annotations

import math
import os
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from numbers import Number
from typing import Any, TypeAlias

from ..._wire._format import MAX_INT32
from ...config.text import is_utf8, plain_text
from ...config.whole import is_whole, plain_number, whole
from ...errors import ConfigurationError
from ...types import Node, TopicPartition

#: The value of a setting.
SettingValue: TypeAlias = str | int | float | bool | Decimal | Fraction | os.PathLike[str]
#: The states of a transaction, as brokers name them.
TRANSACTION_STATES = (
    "Empty",
    "Ongoing",
    "PrepareCommit",
    "PrepareAbort",
    "CompleteCommit",
    "CompleteAbort",
    "PrepareEpochFence",
    "Dead",
)


def config_text(value: object) -> str:
    """Return the value of a setting in the brokers' notation."""
    value = _plain(value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def _plain(value: object) -> Any:
    """Return text and numbers as Python's own, and a path as text; other kinds as they are."""
    if isinstance(value, os.PathLike):
        path = os.fspath(value)
        return path if isinstance(path, str) else value  # bytes may not be UTF-8
    return plain_number(plain_text(value))


def _is_finite(number: Any) -> bool:
    if isinstance(number, Decimal):
        return number.is_finite()
    try:
        return math.isfinite(number)
    except OverflowError:  # a whole number or a fraction beyond the floats
        return True


def checked_value(what: str, value: Any) -> str | int | float | bool:
    """Return the value of a setting as text or a number of Python.

    Paths, decimals and fractions become text.

    Raises :exc:`ConfigurationError`, which does not show the value: it may be a password.
    """
    plain = _plain(value)
    if isinstance(plain, Number) and not isinstance(plain, complex):
        if not _is_finite(plain):
            raise ConfigurationError(f"{what} must be text or a number, not infinite or NaN")
        if not isinstance(plain, int | float):  # a Decimal or a Fraction
            plain = str(plain)
    if not isinstance(plain, str | int | float):
        # Their text in Python is not the brokers' notation, and may even be a valid value.
        hint = (
            "; write a list as text, its items separated by commas"
            if isinstance(value, list | tuple | set | frozenset)
            else "; leave it out for the default"
            if value is None
            else ""
        )
        raise ConfigurationError(f"{what} must be text or a number, not {_kind(value)}{hint}")
    if isinstance(plain, str) and not is_utf8(plain):
        raise ConfigurationError(f"{what} must be text that UTF-8 can carry")
    return plain


def _kind(value: object) -> str:
    return "None" if value is None else f"a {type(value).__name__}"


def checked_brokers(what: str, brokers: Any) -> tuple[int, ...]:
    """Return the brokers of a partition. Raises :exc:`ConfigurationError`."""
    given = brokers if isinstance(brokers, Sequence) and not isinstance(brokers, str) else ()
    numbers = [whole(each) for each in given]
    if (
        not numbers
        or not all(is_whole(each, most=MAX_INT32) for each in numbers)
        or len(set(numbers)) != len(numbers)
    ):
        raise ConfigurationError(
            f"the replicas of {what} are numbers of brokers, each once, such as (1, 2, 3), not "
            f"{brokers!r}"
        )
    return tuple(numbers)


def checked_assignments(
    assignments: Mapping[str, Sequence[Sequence[int]]], topics: Sequence[str]
) -> dict[str, list[tuple[int, ...]]]:
    """Return the brokers of new partitions, by topic. Raises :exc:`ConfigurationError`."""
    if not isinstance(assignments, Mapping):
        raise ConfigurationError(
            f"assignments must be a mapping of topics to lists of brokers, not {assignments!r}"
        )
    found = {}
    for topic, places in assignments.items():
        if topic not in topics:
            raise ConfigurationError(f"assignments name topic {topic!r}, which is not to grow")
        if not isinstance(places, Sequence) or isinstance(places, str) or not places:
            raise ConfigurationError(
                f"the assignments of {topic!r} are the brokers of each new partition, such as "
                f"[(1, 2), (2, 3)], not {places!r}"
            )
        found[topic] = [checked_brokers(f"a new partition of {topic!r}", each) for each in places]
    return found


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create.

    Attributes:
        partitions: The number of partitions; -1 means the broker's default.
        replication_factor: The number of replicas; -1 means the broker's default.
        config: The topic's own settings, by Kafka's names.
        assignments: For each partition, by number from 0, its brokers; the first one is the
            preferred leader. Replaces ``partitions`` and ``replication_factor``.
    """

    partitions: int = -1
    replication_factor: int = -1
    config: Mapping[str, SettingValue] = field(default_factory=dict)
    assignments: Mapping[int, Sequence[int]] | None = None

    def __post_init__(self) -> None:
        for name, value in (
            ("partitions", self.partitions),
            ("replication_factor", self.replication_factor),
        ):
            value = whole(value)
            object.__setattr__(self, name, value)
            if not is_whole(value, -1) or value == 0:
                named = f"; a topic's name is a key: {{{value!r}: NewTopic(3)}}"
                raise ConfigurationError(
                    f"{name} must be a whole number from 1, or -1 for the broker's default, not "
                    f"{value!r}{named if isinstance(value, str) and not value.isdigit() else ''}"
                )
        if not isinstance(self.config, Mapping):
            raise ConfigurationError(
                "config must be a mapping of the names of settings to values, not "
                f"{_kind(self.config)}"
            )
        for key, given in self.config.items():
            if not isinstance(key, str) or not key:
                raise ConfigurationError(f"the name of a setting is a text, not {key!r}")
            checked_value(f"the value of {key}", given)
        if self.assignments is not None:
            self._check_assignments(self.assignments)

    def _check_assignments(self, given: object) -> None:
        # Numbers of several types, or text among them, may have no order.
        if not isinstance(given, Mapping) or set(given) != set(range(len(given))):
            raise ConfigurationError(
                "assignments must be a mapping of each partition's number, from 0 on, to the "
                f"numbers of brokers, not {given!r}"
            )
        if not given or self.partitions != -1 or self.replication_factor != -1:
            raise ConfigurationError(
                "assignments stand for partitions and replication_factor: give either, and at "
                "least one partition"
            )
        for number, brokers in given.items():
            checked_brokers(f"partition {number}", brokers)

    @property
    def config_entries(self) -> dict[str, str]:
        """The topic's own settings as text, in the brokers' notation.

        :meth:`Admin.topic_configs` returns the same texts for a topic with these settings.
        """
        return {plain_text(name): config_text(value) for name, value in self.config.items()}


@dataclass(frozen=True, slots=True)
class CreatedTopic:
    """A topic that was created.

    Attributes:
        topic_id: Its id; ``None`` if the topic was only checked, or the broker is too old.
        partitions: The number of partitions; ``None`` if this client may not describe the topic.
        replication_factor: The number of replicas; ``None`` as above.
        config: All effective settings; ``None`` as above. The value of a secret setting is
            ``None``.
    """

    topic_id: uuid.UUID | None
    partitions: int | None
    replication_factor: int | None
    config: Mapping[str, str | None] | None


@dataclass(frozen=True, slots=True)
class ClusterDescription:
    """The cluster and its live brokers.

    Attributes:
        cluster_id: The cluster's id.
        controller: The broker for the controller's requests; in KRaft any broker takes them.
        nodes: The live brokers.
        fenced_nodes: The brokers that are registered and not live; empty unless they were asked
            for.
        authorized_operations: The operations that this client may perform on the cluster, named as
            in access rules; ``None`` unless they were asked for.
    """

    cluster_id: str | None
    controller: Node | None
    nodes: tuple[Node, ...]
    fenced_nodes: tuple[Node, ...] = ()
    authorized_operations: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class GroupListing:
    """A group as ``list_groups`` shows it.

    Attributes:
        group_id: The group.
        protocol_type: ``consumer`` for consumers; empty for a group that has only offsets.
        state: The group's state; ``None`` if the broker is too old to report one.
        type: ``classic``, ``consumer`` (KIP-848), ``share`` or ``streams``; ``None`` if the broker
            is too old.
    """

    group_id: str
    protocol_type: str
    state: str | None
    type: str | None


@dataclass(frozen=True, slots=True)
class ListedOffset:
    """An offset that ``list_offsets`` found.

    Attributes:
        offset: The offset.
        timestamp: Of its record, in ms since the epoch; only for a look-up by time.
        leader_epoch: The leader epoch of that offset, if known.
    """

    offset: int
    timestamp: int | None
    leader_epoch: int | None


@dataclass(frozen=True, slots=True)
class TransactionListing:
    """A transactional id as ``list_transactions`` shows it (KIP-664).

    Attributes:
        transactional_id: The id.
        producer_id: Its producer.
        state: ``Empty``, ``Ongoing``, ``PrepareCommit``, ``PrepareAbort``, ``CompleteCommit`` or
            ``CompleteAbort``, as the coordinator names it.
    """

    transactional_id: str
    producer_id: int
    state: str


@dataclass(frozen=True, slots=True)
class TransactionDescription:
    """The coordinator's knowledge of a transactional id.

    Attributes:
        transactional_id: The id.
        state: The state, as the coordinator names it.
        producer_id: Its producer.
        producer_epoch: The producer's epoch.
        timeout: The transaction's timeout, in seconds.
        started: The start of the transaction, in ms since the epoch; ``None`` if there was none.
        partitions: Partitions that the open or ending transaction wrote to and that still wait for
            their marker. ``__consumer_offsets`` is among them for offsets of groups.
    """

    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int
    timeout: float
    started: int | None
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class ProducerDescription:
    """A partition leader's knowledge of a producer; ``None`` where it knows nothing.

    Attributes:
        producer_id: The producer.
        producer_epoch: Its epoch.
        last_sequence: The last sequence number.
        last_timestamp: Of its last record, in ms since the epoch.
        coordinator_epoch: The epoch of the coordinator that wrote the last marker.
        transaction_start: The first offset of its open transaction in this partition.
    """

    producer_id: int
    producer_epoch: int
    last_sequence: int | None
    last_timestamp: int | None
    coordinator_epoch: int | None
    transaction_start: int | None


@dataclass(frozen=True, slots=True)
class HangingTransaction:
    """A transaction that a partition waits for and that no coordinator will end.

    ``abort_transaction(partition, start_offset)`` ends it.

    Attributes:
        partition: The partition.
        start_offset: The transaction's first offset in it.
        producer_id: The producer.
        producer_epoch: Its epoch.
        last_timestamp: Of its last record, in ms since the epoch.
        transactional_id: The producer's transactional id, if known.
    """

    partition: TopicPartition
    start_offset: int
    producer_id: int
    producer_epoch: int
    last_timestamp: int | None
    transactional_id: str | None
