"""Partitions by key, equal to the Java client's and librdkafka's."""

import struct
import zlib
from types import ModuleType

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kafka.partitioner import murmur2 as kafka_python_murmur2

from trikafka._wire.partitioning import (
    HASH_CRC32,
    HASH_FNV1A,
    HASH_MURMUR2,
    KEY_RULES,
    group_rows,
    hash_key,
    murmur2,
    partition_columns,
    partition_for_key,
)

pytestmark = pytest.mark.usefixtures("implementation")
each_example = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None
)


@pytest.mark.parametrize(
    ("key", "expected"),
    [  # from UtilsTest of the Java client
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_hashes_equal_javas(key: bytes, expected: int) -> None:
    assert murmur2(key) == expected
    assert murmur2(bytearray(key)) == murmur2(memoryview(key)) == expected


@each_example
@given(st.binary(max_size=50), st.integers(1, 1000))
def test_hashes_equal_kafka_pythons(key: bytes, count: int) -> None:
    assert murmur2(key) & 0xFFFFFFFF == kafka_python_murmur2(key) & 0xFFFFFFFF
    assert partition_for_key(key, count) == (kafka_python_murmur2(key) & 0x7FFFFFFF) % count


@each_example
@given(st.lists(st.none() | st.binary(max_size=9), max_size=40), st.integers(1, 12))
def test_column_of_keys_is_partitioned(keys: list[bytes | None], count: int) -> None:
    bounds = [0]
    for key in keys:
        bounds.append(bounds[-1] + len(key or b""))
    bits = bytearray((len(keys) + 7) // 8)
    for index, key in enumerate(keys):
        bits[index // 8] |= (key is not None) << index % 8
    data = b"".join(key or b"" for key in keys)
    partitions = partition_columns(
        struct.pack(f"{len(bounds)}i", *bounds), data, bytes(bits), count
    )
    assert list(partitions) == [
        -1 if key is None else partition_for_key(key, count) for key in keys
    ]
    assert list(
        partition_columns(
            struct.pack(f"{len(bounds)}i", *bounds), data, bytes(bits), count, None, 7
        )
    ) == [7 if key is None else partition_for_key(key, count) for key in keys]
    given = [row % (count + 1) - 1 for row in range(len(keys))]
    explicit = struct.pack(f"{len(given)}i", *given)
    assert list(
        partition_columns(
            struct.pack(f"{len(bounds)}i", *bounds), data, bytes(bits), count, explicit
        )
    ) == [
        by_key if wanted == -1 else wanted for wanted, by_key in zip(given, partitions, strict=True)
    ]
    known = struct.pack(f"{len(keys)}i", *(max(partition, 0) for partition in partitions))
    rows, starts = group_rows(known, count)
    groups = [list(rows[starts[p] : starts[p + 1]]) for p in range(count)]
    assert groups == [
        [row for row, partition in enumerate(partitions) if max(partition, 0) == p]
        for p in range(count)
    ]


@pytest.mark.parametrize("partition", [-1, 3, 2**31 - 1])
def test_unknown_partition_is_refused(partition: int) -> None:
    with pytest.raises(ValueError, match="of 3"):
        group_rows(struct.pack("2i", 0, partition), 3)


@pytest.mark.parametrize("partition", [-2, 3, 2**31 - 1])
def test_unknown_explicit_partition_is_refused(partition: int) -> None:
    with pytest.raises(ValueError, match=f"partition {partition} of 3"):
        partition_columns(struct.pack("2i", 0, 1), b"k", None, 3, struct.pack("i", partition))
    with pytest.raises(ValueError, match="not consistent"):
        partition_columns(struct.pack("2i", 0, 1), b"k", None, 3, b"")


@pytest.mark.parametrize(
    ("bounds", "data", "validity"),
    [
        ((0, 5), b"abc", None),
        ((2, 1), b"abc", None),
        ((-1, 1), b"abc", None),
        ((0, 1, 2), b"ab", b""),
    ],
)
def test_inconsistent_columns_are_refused(
    implementation: ModuleType, bounds: tuple[int, ...], data: bytes, validity: bytes | None
) -> None:
    with pytest.raises(ValueError, match="not consistent"):
        partition_columns(struct.pack(f"{len(bounds)}i", *bounds), data, validity, 3)
    with pytest.raises(ValueError, match="no partitions"):
        partition_columns(struct.pack("2i", 0, 1), b"a", None, 0)


@pytest.mark.parametrize(
    ("kind", "key", "expected"),
    [  # what librdkafka's partitioners compute, before the remainder
        (HASH_MURMUR2, b"", 275646681),
        (HASH_CRC32, b"", 0),
        (HASH_CRC32, b"123456789", 0xCBF43926),
        (HASH_FNV1A, b"", 2128831035),
        (HASH_FNV1A, b"a", 2**32 - 0xE40C292C),
        (HASH_FNV1A, b"foobar", 1080231576),
    ],
)
def test_hashes_equal_librdkafkas(kind: int, key: bytes, expected: int) -> None:
    assert hash_key(kind, key) == expected
    assert partition_for_key(key, 1000, kind) == expected % 1000


@each_example
@given(st.binary(max_size=300))
def test_crc32_equals_zlibs(key: bytes) -> None:
    assert hash_key(HASH_CRC32, key) == zlib.crc32(key)


@pytest.mark.parametrize("name", KEY_RULES)
def test_rules_hold_for_single_keys_and_columns(name: str) -> None:
    rule = KEY_RULES[name]
    keys = [None, b"", b"a", b"ab", b"abc"]
    bounds = struct.pack("6i", 0, 0, 0, 1, 3, 6)
    found = partition_columns(bounds, b"aababc", bytes([0b11110]), 1000, None, 777, rule)
    expected = [
        777
        if (-1 if key is None else len(key)) < rule.shortest
        else partition_for_key(key or b"", 1000, rule.kind)
        for key in keys
    ]
    assert list(found) == expected
    assert (
        found[:2].tolist()
        == {
            "default": [777, 681],
            "consistent": [0, 0],
            "consistent_random": [777, 777],
            "murmur2": [681, 681],
            "murmur2_random": [777, 681],
            "fnv1a": [35, 35],
            "fnv1a_random": [777, 35],
            "random": [777, 777],
        }[name]
    )
