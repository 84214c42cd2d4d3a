"""Kafka's partitioning by key, the same as the Java client's: murmur2 over the key's bytes."""

from __future__ import annotations

from trikafka._wire import _implementation
from trikafka._wire.columns import Buffer


def murmur2(data: Buffer) -> int:
    """Return Kafka's murmur2 hash as a signed 32-bit integer."""
    return _implementation.current.murmur2(data)


def partition_for_key(key: Buffer, n_partitions: int) -> int:
    """Return the partition in which the Java client puts a record with this key."""
    return (murmur2(key) & 0x7FFFFFFF) % n_partitions


def partition_columns(
    key_offsets: Buffer,
    key_data: Buffer,
    key_validity: Buffer | None,
    n_partitions: int,
    explicit: Buffer | None = None,
    keyless: int = -1,
) -> memoryview:
    """Return the partition of each row as a view of 32-bit integers.

    The keys are a binary column in Arrow's layout; ``keyless`` is used where the key is null.
    ``explicit`` are 32-bit numbers that take precedence over the key where they are not -1. Raises
    ``ValueError`` if one of them is not a partition.
    """
    return _implementation.current.partition_columns(
        key_offsets, key_data, key_validity, n_partitions, explicit, keyless
    )


def group_rows(partitions: Buffer, n_partitions: int) -> tuple[memoryview, memoryview]:
    """Return the row numbers sorted by partition, in order within each, and the bounds.

    The rows of partition p are ``rows[bounds[p]:bounds[p + 1]]``. Raises ``ValueError`` if a
    partition is outside ``range(n_partitions)``.
    """
    return _implementation.current.group_rows(partitions, n_partitions)
