"""Partitioning by key, with the names and the results of Java's client and librdkafka."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import NamedTuple

from trikafka._wire import _implementation
from trikafka._wire._format import HASH_CRC32, HASH_FNV1A, HASH_MURMUR2
from trikafka._wire.columns import Buffer


class KeyRule(NamedTuple):
    """The use of a key by a built-in partitioner.

    A key of at least ``shortest`` bytes selects its partition by the hash ``kind``. A null key has
    length -1 here, and is hashed as an empty one. Records with shorter keys go to the sticky
    partition.
    """

    kind: int
    shortest: int


#: The rule of partitioners that do not use the key.
NO_KEYS = KeyRule(HASH_MURMUR2, sys.maxsize)
#: The rule of Java's client.
BY_MURMUR2 = KeyRule(HASH_MURMUR2, 0)
# The names, hashes and treatment of null and empty keys are librdkafka's, so that a program that
# moves keeps its keys where they are. Three facts surprise there:
#
# * Without "_random" a null key is hashed like an empty one, so all records without a key share a
#   partition: 0 for CRC-32.
# * "consistent_random", the default, also distributes empty keys. "murmur2_random" and
#   "fnv1a_random" hash them.
# * FNV-1a is taken as a signed number, of which the absolute value counts.
#
# Java's client has the rule of "murmur2_random".
#: The built-in partitioners by name.
KEY_RULES: Mapping[str, KeyRule] = {
    "default": BY_MURMUR2,
    "consistent": KeyRule(HASH_CRC32, -1),
    "consistent_random": KeyRule(HASH_CRC32, 1),
    "murmur2": KeyRule(HASH_MURMUR2, -1),
    "murmur2_random": BY_MURMUR2,
    "fnv1a": KeyRule(HASH_FNV1A, -1),
    "fnv1a_random": KeyRule(HASH_FNV1A, 0),
    "random": NO_KEYS,
}


def murmur2(data: Buffer) -> int:
    """Return Kafka's murmur2 hash as a signed 32-bit integer."""
    return _implementation.current.murmur2(data)


def hash_key(kind: int, key: Buffer) -> int:
    """Return the hash of a key, at least 0. The partition is the hash modulo their number."""
    return _implementation.current.hash_key(kind, key)


def partition_for_key(key: Buffer, n_partitions: int, kind: int = HASH_MURMUR2) -> int:
    """Return the partition of a record with this key; by default that of the Java client."""
    return hash_key(kind, key) % n_partitions


def partition_columns(
    key_offsets: Buffer,
    key_data: Buffer,
    key_validity: Buffer | None,
    n_partitions: int,
    explicit: Buffer | None = None,
    keyless: int = -1,
    rule: KeyRule = BY_MURMUR2,
) -> memoryview:
    """Return the partition of each row as a view of 32-bit integers.

    The keys are a binary column in Arrow's layout; ``keyless`` is used for keys that are too short
    for ``rule``. ``explicit`` are 32-bit numbers that take precedence over the key where they are
    not -1. Raises ``ValueError`` if one of them is not a partition.
    """
    return _implementation.current.partition_columns(
        key_offsets,
        key_data,
        key_validity,
        n_partitions,
        explicit,
        keyless,
        rule.kind,
        rule.shortest,
    )


def group_rows(partitions: Buffer, n_partitions: int) -> tuple[memoryview, memoryview]:
    """Return the row numbers sorted by partition, in order within each, and the bounds.

    The rows of partition p are ``rows[bounds[p]:bounds[p + 1]]``. Raises ``ValueError`` if a
    partition is outside ``range(n_partitions)``.
    """
    return _implementation.current.group_rows(partitions, n_partitions)
