"""LZ4 frames as trikafka writes them: the form that Java's client writes, and that every LZ4 reads."""

from __future__ import annotations

import random

import cramjam
import pytest

from trikafka._wire.compression import BY_NAME

#: Around a block's size, around the size of reused memory, nothing, and little.
SIZES = (0, 1, 100, 65_535, 65_536, 65_537, 300_000, 3_000_000)
compress, decompress = BY_NAME["lz4"].compress, BY_NAME["lz4"].decompress


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    "letters", [b"a", b"abcdef", bytes(range(256))], ids=["one letter", "six letters", "noise"]
)
def test_every_lz4_reads_the_frame(size: int, letters: bytes) -> None:
    data = bytes(random.Random(size).choices(letters, k=size))
    frame = bytes(compress(memoryview(data), None))
    assert bytes(cramjam.lz4.decompress(frame)) == data
    assert bytes(decompress(frame, size, None)) == data
    # Independent blocks of 64 KiB, no checksums: the head that Java's client writes, with the
    # checksum that it expects.
    assert frame.startswith(bytes.fromhex("04224d18604082"))
    assert frame.endswith(bytes(4))
    assert len(frame) <= 11 + size + 4 * (size // 65_536 + 1)


def test_every_level_is_accepted() -> None:
    data = b"trikafka" * 20_000
    for level in (1, 5, 9):
        assert bytes(decompress(compress(data, level), len(data), None)) == data
