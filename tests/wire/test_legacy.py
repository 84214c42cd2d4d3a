"""Message formats v0 and v1: single messages and compressed sets, read in steps."""

import functools
import zlib

import pytest
from wirebatches import (
    FRAMINGS,
    NOW,
    Rec,
    batch_v2,
    decode,
    decode_in_steps,
    message_set,
    plain,
    wrapped,
)

from trikafka._wire.columns import RecordBatch
from trikafka._wire.records import decode_some
from trikafka.errors import CorruptRecordError
from trikafka.types import TimestampType

pytestmark = pytest.mark.usefixtures("implementation")

MIXED = [
    Rec(b"k", b"v"),
    Rec(None, b"v" * 300, (("a", b"1"),)),
    Rec(b"", None, timestamp=-1),
    Rec(),
]


def offsets(batch: RecordBatch) -> list[int]:
    return list(batch.offsets)


class TestLegacy:
    @pytest.mark.parametrize("magic", [0, 1])
    @pytest.mark.parametrize("codec", [0, 1])
    def test_message_sets_are_read(self, magic: int, codec: int) -> None:
        written = [
            Rec(b"k", b"v"),
            Rec(None, b"w" * 200, timestamp=NOW + 9),
            Rec(b"", None),
            Rec(None, b""),
        ]
        batch = decode(message_set(magic, written, codec=codec))
        stamps = [-1] * 4 if magic == 0 else [record.timestamp for record in written]
        expected = [
            r._replace(offset=i, timestamp=t)
            for i, (r, t) in enumerate(zip(written, stamps, strict=True))
        ]
        assert plain(batch) == expected
        assert batch.next_offset == 4

    @pytest.mark.parametrize(
        "framing", [name for name, (codec, _) in FRAMINGS.items() if 0 < codec < 4]
    )
    def test_every_codec_has_relative_offsets(self, framing: str) -> None:
        written = [Rec(b"k", b"v" * 99), Rec(None, b"w", timestamp=NOW + 9)]
        assert plain(decode(wrapped(1, written, framing, offset=71), fetch_offset=70)) == [
            record._replace(offset=70 + index) for index, record in enumerate(written)
        ]
        assert offsets(decode(wrapped(0, written, framing, offset=1))) == [0, 1]

    def test_wrong_lz4_header_checksum_is_accepted(self) -> None:
        """LZ4 frames of v0 have a wrong header checksum."""
        data = bytearray(wrapped(0, [Rec(None, b"v" * 99)], "lz4-independent"))
        frame = data.index(b"\x04\x22\x4d\x18")
        data[frame + 6] ^= 0x55
        assert decode(data, check_crcs=False)[0].value == b"v" * 99

    def test_log_append_time_of_the_wrapper_counts(self) -> None:
        record = decode(wrapped(1, [Rec(None, b"v")], "gzip", log_append=NOW + 5))[0]
        assert (record.timestamp, record.timestamp_type) == (NOW + 5, TimestampType.LOG_APPEND_TIME)

    @pytest.mark.parametrize("magic", [0, 1])
    def test_v2_batches_may_follow_old_messages(self, magic: int) -> None:
        data = message_set(magic, [Rec(b"k", b"v")] * 3, codec=1) + batch_v2(MIXED, base=3)
        assert offsets(decode(data, fetch_offset=1)) == [1, 2, 3, 4, 5, 6]


@functools.cache
def many_messages(magic: int, count: int) -> bytes:
    """Return ``count`` messages in one, compressed to a small size."""
    one = bytearray(message_set(magic, [Rec(None, b"")]))
    inner = b"".join(number.to_bytes(8, "big") + one[8:] for number in range(count))
    outer = bytearray(message_set(magic, [Rec(value=FRAMINGS["gzip"][1](inner))]))
    outer[17] |= 1
    outer[:8] = (count - 1).to_bytes(8, "big")
    outer[12:16] = zlib.crc32(outer[16:]).to_bytes(4, "big")
    return bytes(outer)


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("log_append", [None, NOW + 5])
def test_old_inner_messages_come_in_steps(magic: int, log_append: int | None) -> None:
    written = [Rec(b"%d" % number, None, timestamp=NOW + number) for number in range(4_500)]
    data = wrapped(
        magic, written, "lz4-independent", offset=4_499, log_append=log_append if magic else None
    )
    data = message_set(magic, [Rec(b"first")]) + data + batch_v2([Rec(b"after")], base=4_500)
    expected = plain(decode(data))
    assert len(expected) == 4_502 - 1  # the first has the offset of the second
    steps = list(decode_in_steps(data, 1 << 20))
    assert [record for step in steps for record in plain(step)] == expected
    assert [len(step) for step in steps] == [1, 1999, 2000, 501]
    again = list(decode_in_steps(data, 1 << 20, fetch_offset=3_999))
    assert [record for step in again for record in plain(step)] == expected[3_999:]
    assert [step.next_offset for step in again] == [3_999, 3_999, 4_000, 4_501]


def test_corrupt_inner_message_fails_its_step() -> None:
    data = bytearray(
        wrapped(1, [Rec(b"%d" % number) for number in range(3_000)], "snappy-raw", offset=2_999)
    )
    inner = bytearray(message_set(1, [Rec(b"%d" % number) for number in range(3_000)]))
    inner[inner.index(b"2500", 60_000)] ^= 1
    data = bytearray(message_set(1, [Rec(value=FRAMINGS["gzip"][1](bytes(inner)))]))
    data[17] |= 1
    data[:8] = (2_999).to_bytes(8, "big")
    data[12:16] = zlib.crc32(data[16:]).to_bytes(4, "big")
    steps = decode_in_steps(bytes(data), 1 << 20)
    assert offsets(next(steps)) == list(range(2_000))
    with pytest.raises(CorruptRecordError, match="offset 2000: checksum mismatch"):
        next(steps)
    with pytest.raises(CorruptRecordError, match="offset 0: checksum mismatch"):
        decode(bytes(data))


def test_too_many_inner_messages_are_refused() -> None:
    """One message holds at most a million others."""
    data = many_messages(1, 1_000_001)
    with pytest.raises(CorruptRecordError, match="must hold 1 to 1000000 messages"):
        decode(data, max_bytes=1 << 30)


@pytest.mark.parametrize("magic", [0, 1])
def test_step_reads_only_its_share_of_messages(magic: int) -> None:
    data = many_messages(magic, 50_000)
    given = {
        "topic": "t",
        "partition": 0,
        "aborted": None,
        "check_crcs": True,
        "enough": 1 << 20,
        "max_bytes": 1 << 26,
    }
    first = decode_some(data, fetch_offset=0, **given)
    assert (offsets(first.batch), first.batch.next_offset) == (list(range(2000)), 2000)
    second = decode_some(first.rest, fetch_offset=2000, **given)
    assert offsets(second.batch) == list(range(2000, 4000))
    assert first.rest.obj is second.rest.obj, "it is decompressed once"


def test_offsets_at_their_limit_are_refused() -> None:
    for offset in (2**63 - 1, 2**63 - 2**31, -1):
        data = bytearray(message_set(1, [Rec(b"k")]))
        data[:8] = offset.to_bytes(8, "big", signed=True)
        with pytest.raises(CorruptRecordError, match="offset"):
            decode(bytes(data) + batch_v2([Rec(b"after")], base=3))
