"""The order in which a ``java.util.HashMap`` yields its keys.

Java's assignors iterate over such maps, and the first member may keep one partition more. The order
is deterministic: hashes of strings are specified, and the table's size follows from the number of
keys. So it can be reproduced here, unless nine keys fall into one bucket (Java turns the bucket
into a tree then).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from ...types import TopicPartition
from .base import text_key

_K = TypeVar("_K")
_SMALLEST_TABLE = 16


def text_hash(text: str) -> int:
    """Return ``String.hashCode``, as 32 bits without sign."""
    value = 0
    for (unit,) in struct.iter_unpack(">H", text_key(text)):
        value = (31 * value + unit) & 0xFFFFFFFF
    return value


def partition_hash(partition: TopicPartition) -> int:
    """Return ``TopicPartition.hashCode``, as 32 bits without sign."""
    return (31 * (31 + partition.partition) + text_hash(partition.topic)) & 0xFFFFFFFF


def map_order(keys: Iterable[str]) -> list[str]:
    """Return ``keys`` in the order of iteration.

    ``keys`` has no duplicates and is in the order of insertion by ``put``.
    """
    keys = list(keys)
    return _ordered(keys, text_hash, _table(len(keys)))


def grouped_order(keys: Iterable[str]) -> list[str]:
    """Return the keys of a map for which ``computeIfAbsent`` was called with each of ``keys``.

    Duplicates count. ``computeIfAbsent`` puts new keys first in a bucket, and checks whether the
    table is full when it is called, not after an insertion.
    """
    met: dict[str, None] = {}
    size = _SMALLEST_TABLE
    for key in keys:
        size = max(size, _table(len(met)))
        met[key] = None
    return _ordered(list(met)[::-1], text_hash, size)


def first_of(partitions: Sequence[TopicPartition], peak: int) -> TopicPartition:
    """Return the first element that a ``HashSet`` with ``partitions`` yields.

    ``peak``: the most elements that the set ever had, since its table never shrinks.
    """
    return _ordered(partitions, partition_hash, _table(peak))[0]


def _table(count: int) -> int:
    size = _SMALLEST_TABLE
    while count > size * 3 // 4:
        size *= 2
    return size


def _ordered(keys: Sequence[_K], hash_of: Callable[[_K], int], size: int) -> list[_K]:
    def bucket(key: _K) -> int:
        value = hash_of(key)
        return (value ^ value >> 16) & (size - 1)

    return sorted(keys, key=bucket)  # sorting is stable, as a bucket is
