"""Damaged and hostile bytes.

They decode to the right records or raise ``CorruptRecordError`` with the place.
"""

import struct
from types import ModuleType
from typing import Any

import pytest
from fuzz import Outcome, mutated, outcome
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kafka.record._crc32c import crc as reference
from wirebatches import (
    CONTROL,
    TRANSACTIONAL,
    Rec,
    batch_v2,
    control,
    decode,
    message_set,
    seal,
    wrapped,
)

from trikafka._wire import _fallback, _format, _implementation
from trikafka.errors import CorruptRecordError

pytestmark = pytest.mark.usefixtures("implementation")
each_example = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None
)

TWO = [Rec(b"key", b"value", (("h", b"x"),)), Rec(None, b"second")]


def refused(data: bytes, **settings: Any) -> str:
    with pytest.raises(CorruptRecordError) as caught:
        decode(data, **settings)
    assert (caught.value.topic, caught.value.partition) == ("t", 3)
    assert caught.value.offset == settings.get("fetch_offset", 0)
    return caught.value.reason


@pytest.mark.parametrize("framing", ["none", "zstd", "snappy-xerial"])
def test_batch_cut_at_every_byte_is_refused(framing: str) -> None:
    first, second = batch_v2(TWO, framing=framing), batch_v2(TWO, base=2, framing=framing)
    whole = decode(first)
    for end in range(1, len(first)):
        assert "without one complete batch" in refused(first[:end])
    for end in range(len(second)):
        batch = decode(first + second[:end])
        assert list(batch) == list(whole)
        assert batch.next_offset == 2


def test_flipped_bit_under_checksum_is_refused() -> None:
    data = batch_v2(TWO)
    for position in range(16, len(data)):
        assert refused(data[:position] + bytes([data[position] ^ 0x10]) + data[position + 1 :])


def test_records_before_a_corrupt_batch_are_read() -> None:
    """The next fetch, which begins with the corrupt batch, fails."""
    bad = bytearray(batch_v2(TWO, base=2))
    bad[-1] ^= 1
    data = batch_v2(TWO) + bytes(bad) + batch_v2(TWO, base=4)
    batch = decode(data)
    assert (len(batch), batch.next_offset) == (2, 2)
    assert refused(data, fetch_offset=2) == "checksum mismatch"
    inner = batch_v2(TWO) + body(b"\x00" * 7, base=2)
    batch = decode(inner)
    assert (len(batch), batch.next_offset, list(batch)[1].value) == (2, 2, b"second")


def body(
    records: bytes, *, count: int = 1, base: int = 0, last_delta: int = 0, first_timestamp: int = 0
) -> bytes:
    """Return a batch around these bytes, with a correct checksum."""
    header = struct.pack(
        ">qiibIhiqqqhii", base, 0, -1, 2, 0, 0, last_delta, first_timestamp, 0, -1, -1, -1, count
    )
    return seal(header + records)


# length 6; no attributes, deltas 0, null key, null value, no headers
MINIMAL = b"\x0c\x00\x00\x00\x01\x01\x00"


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (body(MINIMAL, count=2), _format.BAD_COUNT),
        (body(MINIMAL, count=2**31 - 1), _format.BAD_COUNT),
        (body(MINIMAL, count=-1), _format.BAD_COUNT),
        (body(MINIMAL + b"\x00"), _format.LEFTOVER),
        (body(b"", count=1), _format.BAD_COUNT),
        (body(b"\x0e" + MINIMAL[1:]), _format.CUT),
        (body(b"\x01" + MINIMAL[1:]), _format.CUT),
        (body(b"\xff\xff\xff\xff\xff\x01" + MINIMAL), _format.BAD_VARINT),
        (body(b"\xff\xff\xff\xff\x1f" + MINIMAL), _format.BAD_VARINT),
        (body(b"\x0e\x00\x00\x00\x01\x01\x00\x00"), _format.BAD_LENGTH),
        (body(b"\x0c\x00\x00\x00\x03\x01\x00"), _format.NEGATIVE_LENGTH),
        (body(b"\x0c\x00\x00\x00\x01\x03\x00"), _format.NEGATIVE_LENGTH),
        (body(b"\x0c\x00\x00\x00\x08\x01\x00"), _format.CUT),
        (body(b"\x0c\x00\x00\x00\x01\x04\x00"), _format.CUT),
        (body(b"\x0c\x00\x00\x00\x01\x01\x01"), _format.BAD_HEADERS),
        (body(b"\x0c\x00\x00\x00\x01\x01\x02"), _format.BAD_HEADERS),
        (body(b"\x10\x00\x00\x00\x01\x01\x02\x01\x01"), _format.BAD_HEADERS),
        (body(b"\x10\x00\x00\x00\x01\x01\x02\x04\x01"), _format.CUT),
        (body(b"\x10\x00\x00\x00\x01\x01\x02\x00\x03"), _format.NEGATIVE_LENGTH),
        (body(b"\x0c\x00\x00\x02\x01\x01\x00"), _format.BAD_OFFSET),
        (body(b"\x0c\x00\x00\x01\x01\x01\x00"), _format.BAD_OFFSET),
        (body(MINIMAL * 2, count=2, last_delta=1), _format.BAD_OFFSET),
        (body(b"\x0c\x00\x02\x00\x01\x01\x00", first_timestamp=2**63 - 1), _format.BAD_TIMESTAMP),
        (body(b"\x0c\x00\x01\x00\x01\x01\x00", first_timestamp=-(2**63)), _format.BAD_TIMESTAMP),
        (body(b"\x1e\x00" + b"\xff" * 9 + b"\x02" + MINIMAL[3:]), _format.BAD_VARINT),
        (body(b"\x20\x00" + b"\xff" * 10 + b"\x01" + MINIMAL[3:]), _format.BAD_VARINT),
    ],
)
def test_lies_inside_a_batch_are_refused(data: bytes, reason: int) -> None:
    assert refused(data) == _format.REASONS[reason]


def test_smallest_record_is_read() -> None:
    assert len(decode(body(MINIMAL))) == 1
    wide = body(b"\x1e\x00" + b"\xff" * 9 + b"\x01" + MINIMAL[3:], first_timestamp=0)
    assert decode(wide)[0].timestamp == -(2**63)


@pytest.mark.parametrize(
    ("patch", "at", "words"),
    [
        (struct.pack(">b", 3), 16, "unknown message format"),
        (struct.pack(">b", -1), 16, "unknown message format"),
        (struct.pack(">h", 7), 21, "codec"),
        (struct.pack(">i", -1), 23, "offsets"),
        (struct.pack(">q", -1), 0, "offsets"),
        (struct.pack(">q", 2**63 - 1), 0, "offsets"),
    ],
)
def test_lies_in_a_header_are_refused(patch: bytes, at: int, words: str) -> None:
    data = bytearray(batch_v2(TWO))
    data[at : at + len(patch)] = patch
    assert words in refused(seal(data))


@pytest.mark.parametrize("length", [-(2**31), -1, 0, 13, 20, 48])
def test_impossible_lengths_are_refused(length: int) -> None:
    data = bytearray(batch_v2(TWO))
    data[8:12] = struct.pack(">i", length)
    assert refused(bytes(data))


def test_false_marker_is_refused() -> None:
    data = batch_v2([Rec(value=b"x")], attributes=TRANSACTIONAL, producer_id=1)
    bad = batch_v2([Rec(b"\x00")], base=1, attributes=CONTROL | TRANSACTIONAL, producer_id=1)
    assert decode(data + bad, aborted=[(1, 0)]).next_offset == 1
    assert "marker" in refused(data + bad, aborted=[(1, 0)], fetch_offset=1)
    assert decode(data + control(1, 1, abort=True), aborted=[(1, 0)]).next_offset == 2


@pytest.mark.parametrize(
    "framing",
    [
        "gzip",
        "snappy-raw",
        "snappy-xerial",
        "lz4-linked",
        "lz4-independent",
        "zstd",
        "zstd-streamed",
    ],
)
def test_decompression_bomb_is_bounded(framing: str) -> None:
    data = batch_v2([Rec(value=bytes(4 << 20))], framing=framing)
    assert len(decode(data, max_bytes=5 << 20)) == 1
    assert "limit" in refused(data, max_bytes=1 << 20)


def test_expansion_over_the_limit_ends_the_fetch() -> None:
    """Batches that together expand beyond ``max_bytes`` are left for the next fetch."""
    data = b"".join(
        batch_v2([Rec(value=bytes(1 << 20))], base=base, framing="zstd") for base in range(4)
    )
    batch = decode(data, max_bytes=5 << 19)
    assert (len(batch), batch.next_offset) == (2, 2)
    assert decode(data, max_bytes=5 << 19, fetch_offset=2).next_offset == 4


def test_small_input_makes_no_large_allocation() -> None:
    import tracemalloc

    inputs = [
        body(MINIMAL, count=2**31 - 1),
        body(b"\xfe\xff\xff\xff\x0f" + MINIMAL),
        b"\x00" * 200,
    ]
    tracemalloc.start()
    for data in inputs:
        refused(data)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 200_000


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", [0, 1])
def test_damage_in_legacy_messages_is_noticed(magic: int, codec: int) -> None:
    data = message_set(magic, TWO, codec=codec)
    complete = decode(data)
    for end in range(len(data)):
        batch_or_reason = outcome(data[:end], check_crcs=True)
        if not isinstance(batch_or_reason, str):
            assert batch_or_reason[0] in ([], list(complete)[:1])
    # The next message's offset is not under the checksum.
    first_end = 12 + int.from_bytes(data[8:12], "big")
    for position in range(16, first_end):
        bad = data[:position] + bytes([data[position] ^ 0x04]) + data[position + 1 :]
        given = outcome(bad, check_crcs=True)
        assert isinstance(given, str) or given[0] == list(complete)[: len(given[0])]


@pytest.mark.parametrize("magic", [0, 1])
def test_lies_in_legacy_messages_are_refused(magic: int) -> None:
    assert "limit" in refused(
        wrapped(magic, [Rec(value=bytes(1 << 21))], "gzip"), max_bytes=1 << 20
    )
    assert "cannot hold" in refused(wrapped(magic, TWO, "zstd"))
    short = bytearray(message_set(magic, [Rec(b"key", b"value")]))
    key = short.index(b"key")
    for length in (2, 90, 2**31 - 1, -2, -9):
        short[key - 4 : key] = struct.pack(">i", length)
        assert refused(bytes(short), check_crcs=False)


@settings(each_example, max_examples=300)
@given(mutated(), st.booleans())
def test_mutated_bytes_have_one_outcome(
    implementation: ModuleType, data: bytes, check_crcs: bool
) -> None:
    """Every implementation raises the same error or returns the same records."""
    given: dict[str, Outcome] = {}
    before = _implementation.name_in_use
    for name in _implementation.available():
        _implementation.use(name)
        given[name] = outcome(data, check_crcs=check_crcs)
    _implementation.use(before)
    assert len({repr(one) for one in given.values()}) == 1


@each_example
@given(st.lists(mutated(), max_size=3).map(b"".join), st.integers(0, 100))
def test_end_of_batches_is_the_same_everywhere(
    implementation: ModuleType, data: bytes, start: int
) -> None:
    end = implementation.end_of_batches(data, start)
    assert end == _fallback.end_of_batches(data, start)
    assert end is None or start <= end < 2**63


@pytest.mark.parametrize("base", [0, 2**63 - 1, 2**63 - 2, 2**63 - 3, -(2**63), -1])
@pytest.mark.parametrize("delta", [0, 1, 2**31 - 1, -1, -(2**31)])
@pytest.mark.parametrize("size", [0, 48, 49, 50, 2**31 - 1, -1, -(2**31)])
def test_end_of_batches_bears_extreme_numbers(
    implementation: ModuleType, base: int, delta: int, size: int
) -> None:
    data = bytearray(61)
    struct.pack_into(">qi", data, 0, base, size)
    data[16] = 2
    struct.pack_into(">i", data, 23, delta)
    whole = size == 49 and base + delta < 2**63 - 1
    assert implementation.end_of_batches(data, 0) == (max(0, base + delta + 1) if whole else 0)


@each_example
@given(st.binary(max_size=300))
def test_checksums_are_equal(implementation: ModuleType, data: bytes) -> None:
    """The processor's instruction and the tables give the same sum, whichever this machine uses."""
    if hasattr(implementation, "checksums"):
        assert implementation.checksums(data) == (reference(data), reference(data))
