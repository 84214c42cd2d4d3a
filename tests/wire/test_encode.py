"""Encoding of records to batches.

Kafka-python reads the batches, and both implementations write the same bytes.
"""

import random
import struct
from types import ModuleType
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kafka.record.memory_records import MemoryRecords
from wirebatches import NOW, Rec, batch_v2, decode, plain, records

from trikafka._wire import _fallback
from trikafka._wire._format import HEADER_OVERHEAD, RECORD_OVERHEAD
from trikafka._wire.columns import Columns
from trikafka._wire.compression import BY_NAME
from trikafka.errors import UnsupportedCompressionError

each_example = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None
)

Encoder = _fallback.BatchEncoder


def encode(implementation: ModuleType, written: list[Rec], compression: str = "none") -> Encoder:
    encoder: Encoder = implementation.BatchEncoder(compression)
    for index, record in enumerate(written):
        assert encoder.append(record.timestamp, record.key, record.value, record.headers) == index
    return encoder


def most_bytes(record: Rec) -> int:
    """Return an upper bound of the bytes that the record takes in a batch."""
    size = RECORD_OVERHEAD + len(record.key or b"") + len(record.value or b"")
    return size + sum(
        HEADER_OVERHEAD + len(name.encode()) + len(content or b"")
        for name, content in record.headers
    )


@each_example
@given(records)
def test_bytes_equal_kafka_pythons(implementation: ModuleType, written: list[Rec]) -> None:
    ours = encode(implementation, written).build(-1, -1, -1)
    theirs = batch_v2(written)
    # kafka-python writes 0 for unset ids here, and ignores a missing timestamp in the highest one.
    assert ours[61:] == theirs[61:]
    assert (ours[:16], ours[21:27], ours[57:61]) == (
        theirs[:12] + b"\xff" * 4,
        theirs[21:27],
        theirs[57:61],
    )


@each_example
@given(records, st.sampled_from(sorted(BY_NAME)))
def test_round_trip(implementation: ModuleType, written: list[Rec], codec: str) -> None:
    encoder = encode(implementation, written, codec)
    batch = decode(encoder.build(7, 1, 100, transactional=True))
    assert plain(batch) == [record._replace(offset=index) for index, record in enumerate(written)]
    assert encoder.max_timestamp == max(record.timestamp for record in written)
    assert encoder.count == len(written)


@each_example
@given(records)
def test_sizes_are_exact(implementation: ModuleType, written: list[Rec]) -> None:
    encoder: Encoder = implementation.BatchEncoder()
    assert encoder.size == 61
    for record in written:
        bound = encoder.size + most_bytes(record)
        encoder.append(record.timestamp, record.key, record.value, record.headers)
        assert bound - 36 - 10 * len(record.headers) < encoder.size <= bound
    size = encoder.size
    assert size == len(encoder.build(-1, -1, -1)) == encoder.size


def test_kafka_python_reads_the_batch(implementation: ModuleType) -> None:
    written = [Rec(b"k", b"v", (("a", b"1"), ("a", None))), Rec(None, None, timestamp=NOW - 3)]
    [batch] = iter(
        MemoryRecords(
            encode(implementation, written, "gzip").build(9, 2, 5, transactional=True)
        ).next_batch,
        None,
    )
    assert batch.validate_crc()
    assert (
        batch.producer_id,
        batch.producer_epoch,
        batch.base_sequence,
        batch.is_transactional,
    ) == (9, 2, 5, True)
    assert (batch.first_timestamp, batch.max_timestamp, batch.last_offset_delta) == (NOW, NOW, 1)
    assert [(r.key, r.value, r.headers, r.timestamp) for r in batch] == [
        (b"k", b"v", [("a", b"1"), ("a", None)], NOW),
        (None, None, [], NOW - 3),
    ]


@pytest.mark.parametrize("codec", sorted(BY_NAME))
def test_new_ids_do_not_compress_again(implementation: ModuleType, codec: str) -> None:
    encoder = encode(implementation, [Rec(b"k", b"v" * 500)] * 20, codec)
    payload = encoder.close()
    assert encoder.close() is payload
    first, second = encoder.build(1, 0, 0), encoder.build(2, 0, 40)
    assert first[61:] == second[61:] == bytes(payload)
    assert list(decode(first)) == list(decode(second))
    with pytest.raises(ValueError, match="closed"):
        encoder.append(NOW, None, b"late")


@pytest.mark.parametrize("kind", [bytearray, memoryview])
def test_bytes_like_objects_are_encoded(implementation: ModuleType, kind: Any) -> None:
    encoder = implementation.BatchEncoder()
    encoder.append(NOW, kind(b"key"), kind(b"value"), [("h", kind(b"x"))])
    assert decode(encoder.build(-1, -1, -1))[0][5:] == (b"key", b"value", (("h", b"x"),))


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((NOW, "key", b""), TypeError),
        ((NOW, None, 5), TypeError),
        ((NOW, None, b"", [("h", "text")]), TypeError),
        ((NOW, None, b"", [(b"h", b"")]), AttributeError),
        ((NOW, None, b"", [("\ud800", b"")]), UnicodeEncodeError),
        ((-2, None, b""), ValueError),
        ((2**63 - 1, None, b""), ValueError),
    ],
)
def test_refused_record_leaves_batch_unchanged(
    implementation: ModuleType, arguments: Any, error: Any
) -> None:
    encoder = encode(implementation, [Rec(b"k", b"v")])
    size = encoder.size
    with pytest.raises(error):
        encoder.append(*arguments)
    assert (encoder.count, encoder.size, encoder.max_timestamp) == (1, size, NOW)
    assert len(decode(encoder.build(-1, -1, -1))) == 1


def test_build_without_records_is_refused(implementation: ModuleType) -> None:
    """An unknown codec is refused, too."""
    with pytest.raises(ValueError, match="needs a record"):
        implementation.BatchEncoder().build(-1, -1, -1)
    with pytest.raises(UnsupportedCompressionError, match="brotli"):
        implementation.BatchEncoder("brotli")


@each_example
@given(records, st.randoms(use_true_random=False))
def test_columns_encode_as_their_records_do(
    implementation: ModuleType, written: list[Rec], source: random.Random
) -> None:
    columns = decode(batch_v2(written)).columns
    whole: Encoder = implementation.BatchEncoder()
    assert whole.extend_columns(columns) == len(written)
    assert whole.build(-1, -1, -1) == encode(implementation, written).build(-1, -1, -1)
    rows = source.sample(range(len(written)), source.randrange(1, len(written) + 1))
    some: Encoder = implementation.BatchEncoder()
    assert some.extend_columns(columns, rows=struct.pack(f"{len(rows)}i", *rows), start=1) == len(
        rows
    )
    assert some.count == len(rows) - 1
    some.extend_columns(columns, start=rows[0], stop=rows[0] + 1)
    assert some.build(-1, -1, -1) == encode(
        implementation, [written[row] for row in (*rows[1:], rows[0])]
    ).build(-1, -1, -1)


@each_example
@given(records, st.integers(61, 800))
def test_columns_stop_at_the_size(
    implementation: ModuleType, written: list[Rec], max_size: int
) -> None:
    columns = decode(batch_v2(written)).columns
    at, sizes = 0, []
    while at < len(written):
        encoder: Encoder = implementation.BatchEncoder()
        following = encoder.extend_columns(columns, start=at, max_size=max_size)
        assert following - at == encoder.count
        assert encoder.size <= max_size
        if following < len(written):
            assert encoder.size + most_bytes(written[following]) > max_size
        if not encoder.count:
            following = encoder.extend_columns(columns, start=at, stop=at + 1)
            assert encoder.size > max_size - 36 - 10 * len(written[at].headers)
        sizes.append(encoder.count)
        at = following
    assert sum(sizes) == len(written)


@each_example
@given(records, st.integers(36, 300))
def test_row_beyond_any_batch_is_found(
    implementation: ModuleType, written: list[Rec], largest: int
) -> None:
    written = [record._replace(timestamp=max(record.timestamp, 0)) for record in written]
    columns = decode(batch_v2(written)).columns
    bounds = [most_bytes(record) for record in written]
    expected = next(((row, bound) for row, bound in enumerate(bounds) if bound > largest), None)
    assert implementation.find_unfit(columns, largest) == expected
    for bad in (-1, 2**62 + 1):
        timestamps = [record.timestamp for record in written]
        timestamps[-1] = bad
        columns.timestamps = memoryview(struct.pack(f"{len(timestamps)}q", *timestamps)).cast("q")
        assert implementation.find_unfit(columns, 10**9) == (len(written) - 1, -1)


def test_inconsistent_columns_are_refused(implementation: ModuleType) -> None:
    good = decode(batch_v2([Rec(b"k", b"v", (("a", b"b"),)), Rec(b"l", None)])).columns
    bad = struct.pack("3i", 0, 900, -5)
    for name in (
        "key_offsets",
        "value_offsets",
        "header_offsets",
        "header_name_offsets",
        "header_value_offsets",
    ):
        columns = Columns(*(getattr(good, field) for field in _FIELDS))
        setattr(columns, name, memoryview(bad).cast("i"))
        with pytest.raises(ValueError, match="not consistent"):
            implementation.BatchEncoder().extend_columns(columns)
        with pytest.raises(ValueError, match="not consistent"):
            implementation.find_unfit(columns, 10**9)
    for name in ("key_data", "value_data", "header_name_data"):
        columns = Columns(*(getattr(good, field) for field in _FIELDS))
        setattr(columns, name, b"")
        with pytest.raises(ValueError, match="not consistent"):
            implementation.BatchEncoder().extend_columns(columns)
    for rows, start, stop in (
        (struct.pack("i", 2), 0, None),
        (struct.pack("i", -1), 0, None),
        (None, 0, 3),
        (None, 2, 1),
    ):
        with pytest.raises(ValueError, match=r"rows? "):
            implementation.BatchEncoder().extend_columns(good, rows=rows, start=start, stop=stop)


_FIELDS = (
    *(
        "count",
        "offsets",
        "timestamps",
        "timestamp_types",
        "key_offsets",
        "key_data",
        "key_validity",
    ),
    *(
        "value_offsets",
        "value_data",
        "value_validity",
        "header_offsets",
        "header_name_offsets",
        "header_name_data",
    ),
    *("header_value_offsets", "header_value_data", "header_value_validity"),
)
