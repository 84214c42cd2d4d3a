"""CRC-32C, compiled and in Python, compared with kafka-python's and with the numbers of RFC 3720."""

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.record._crc32c import crc as reference

from trikafka import _checksum
from trikafka._checksum import _fallback, _native

WAYS: list[Callable[..., int]] = [_native.crc32c, _native.by_tables, _fallback.crc32c]
DATA = random.Random(1).randbytes(300_000)


@pytest.mark.parametrize("way", WAYS)
def test_known_sums(way: Callable[..., int]) -> None:
    assert way(b"") == 0
    assert way(b"", 7) == 7
    assert way(b"123456789") == 0xE3069283
    assert way(bytes(32)) == 0x8A9136AA  # RFC 3720, B.4
    assert way(b"\xff" * 32) == 0x62A8AB43
    assert way(bytes(range(32))) == 0x46DD794E


@given(st.binary(max_size=300), st.integers(0, 300))
def test_equals_kafka_pythons_also_in_pieces(data: bytes, cut: int) -> None:
    for way in WAYS:
        assert way(data) == reference(data)
        assert way(data[cut:], way(data[:cut])) == reference(data)


# The compiled checksum works in three lanes of 256 and 4096 bytes; the others in frames of 64 KiB.
@pytest.mark.parametrize(
    "size", [767, 768, 769, 12_287, 12_288, 13_063, 65_535, 65_536, 65_537, 131_072, 300_000]
)
def test_borders_of_lanes_and_frames_are_summed(size: int) -> None:
    data: Any
    for data in (memoryview(DATA)[:size], memoryview(DATA)[1 : size + 1], bytearray(DATA[-size:])):
        sums = {way(data) for way in WAYS} | {
            way(data[size // 3 :], way(data[: size // 3])) for way in WAYS
        }
        assert len(sums) == 1
        assert size > 20_000 or sums == {reference(bytes(data))}


def test_compiled_checksum_is_in_use() -> None:
    assert _checksum.crc32c is _native.crc32c


def test_non_buffer_is_refused() -> None:
    for way in WAYS:
        with pytest.raises(TypeError):
            way("text")
        with pytest.raises((BufferError, TypeError)):
            way(memoryview(DATA)[::2])
