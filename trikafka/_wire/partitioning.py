"""Kafka's partitioning by key, the same as the Java client's: murmur2 over the key's bytes."""

from __future__ import annotations

from trikafka._wire import _implementation
from trikafka._wire.columns import Buffer


def murmur2(data: Buffer) -> int:
    """Kafka's murmur2 hash as a signed 32-bit integer."""
    return _implementation.current.murmur2(data)


def partition_for_key(key: Buffer, n_partitions: int) -> int:
    """The partition in which the Java client puts a record with this key."""
    return (murmur2(key) & 0x7FFFFFFF) % n_partitions


def partition_columns(
    key_offsets: Buffer,
    key_data: Buffer,
    key_validity: Buffer | None,
    n_partitions: int,
    explicit: Buffer | None = None,
    keyless: int = -1,
) -> memoryview:
    """The partition of each row as a view of 32-bit integers: by its key, a column as in Arrow; ``keyless`` where that is null.

    ``explicit`` are 32-bit numbers, which go before the key's where they are not -1. Raises ``ValueError`` if one of them is no
    partition.
    """
    return _implementation.current.partition_columns(key_offsets, key_data, key_validity, n_partitions, explicit, keyless)


def group_rows(partitions: Buffer, n_partitions: int) -> tuple[memoryview, memoryview]:
    """Row numbers sorted by partition, in order within each, and the bounds: ``rows[bounds[p]:bounds[p + 1]]`` are p's.

    Raises ``ValueError`` if a partition is outside ``range(n_partitions)``.
    """
    return _implementation.current.group_rows(partitions, n_partitions)
