"""Records that a share consumer cannot read: only damaged ones are rejected, and no others."""

from __future__ import annotations

import struct
import uuid
import zlib

import pytest
import trio
from sharing import cluster_of, queue_of, quiet, shared, states
from trio.testing import MockClock as Clock

from trikafka._managers.share.acquiring import pieces_of
from trikafka._wire import compression
from trikafka._wire.share import AckType, AcquiredRange, ShareFetchedPartition
from trikafka.errors import CorruptRecordError
from trikafka.testing.batches import encode_batch
from trikafka.types import TopicPartition


async def test_a_batch_over_the_limit_is_released(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """Its checksum is right; a member with a higher limit processes it."""
    async with cluster_of(records=1) as cluster:
        cluster.append_batch(
            "t", 0, encode_batch([bytes(400_000)], compression="gzip", timestamp=1)
        )
        async with queue_of(cluster, receive_message_max_bytes=200_000) as queue:
            (await queue.receive()).accept()
            with pytest.raises(CorruptRecordError, match=r"t-0 at offset 1: .*limit of 200000"):
                await queue.receive()
        assert any("its records are released" in each.message for each in caplog.records)
        assert states(cluster) == ["acknowledged", "available"]
        async with queue_of(cluster) as queue:
            assert len((await queue.receive()).record.value) == 400_000


async def test_a_limit_ends_with_the_deliveries(autojump_clock: Clock) -> None:
    quiet()
    async with cluster_of() as cluster:
        cluster.append_batch(
            "t", 0, encode_batch([bytes(400_000)], compression="gzip", timestamp=1)
        )
        async with queue_of(cluster, receive_message_max_bytes=200_000) as queue:
            for _ in range(5):
                with pytest.raises(CorruptRecordError):
                    await queue.receive()
            with trio.move_on_after(5):
                await queue.receive()
            assert shared(cluster)[0].count == 5
            assert states(cluster) == ["archived"]


def message(offset: int, value: bytes, form: int) -> bytes:
    """Return one message of format v0 or v1."""
    stamp = struct.pack(">q", 1) if form else b""
    body = struct.pack(">bb", form, 0) + stamp + struct.pack(">ii", -1, len(value)) + value
    sealed = struct.pack(">I", zlib.crc32(body)) + body
    return struct.pack(">qi", offset, len(sealed)) + sealed


@pytest.mark.parametrize("form", [0, 1])
@pytest.mark.parametrize("value", [b"", b"value"])
def test_a_damaged_message_costs_no_other(form: int, value: bytes) -> None:
    data = bytearray(b"".join(message(offset, value, form) for offset in range(6)))
    size = len(data) // 6
    data[3 * size - 1] ^= 1
    part = ShareFetchedPartition(
        uuid.uuid4(), 0, 0, None, 0, None, None, memoryview(bytes(data)), [AcquiredRange(0, 5, 1)]
    )
    found = pieces_of(
        part, TopicPartition("t", 0), check_crcs=True, most=10_000, codecs=compression.BY_ID
    )
    assert [(list(each.offsets), each.verdict) for each in found.pieces] == [
        ([0, 1], None),
        ([2], AckType.REJECT),
        ([3, 4, 5], None),
    ]
    assert [each.error.offset for each in found.faults] == [2]
