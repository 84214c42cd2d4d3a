"""Details of a consumer's errors: the ends of the log and the corrupt bytes.

Also the requests of a cold start.
"""

from __future__ import annotations

import pickle
from contextlib import suppress
from typing import Any

import pytest
import trio
from consuming import T0, T1, cluster_of, consumer_of, values
from trio.testing import MockClock as Clock

from trikafka.errors import (
    CorruptRecordError,
    LogTruncationError,
    OffsetOutOfRangeError,
    UnknownTopicOrPartitionError,
)
from trikafka.testing import encode_batch


async def test_out_of_range_has_the_log_ends(autojump_clock: Clock) -> None:
    async with (
        cluster_of(records=6) as cluster,
        consumer_of(cluster, auto_offset_reset="none") as consumer,
    ):
        cluster.append("t", 0, [b"6"])
        cluster.delete_records("t", 0, 2)
        consumer.assign([T0])
        consumer.seek(T0, 4)
        await consumer.receive()
        consumer.seek(T0, 99)
        with (
            trio.fail_after(5),
            pytest.raises(OffsetOutOfRangeError, match="the offsets 2 to 7") as caught,
        ):
            await consumer.receive()
        for error in (caught.value, pickle.loads(pickle.dumps(caught.value))):
            assert (error.partition, error.offset, error.log_start, error.log_end) == (T0, 99, 2, 7)


async def test_reset_out_of_range_is_a_warning(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """Retention was quicker than the program: records are lost, and no call raises.

    The ends are those in the response that the second seek has overtaken.
    """
    async with (
        cluster_of(records=6) as cluster,
        consumer_of(cluster, auto_offset_reset="latest") as consumer,
    ):
        consumer.assign([T0])
        consumer.seek(T0, 0)
        assert await values(consumer, 1) == [b"0"]
        cluster.append("t", 0, [b"6"])
        cluster.delete_records("t", 0, 4)
        consumer.seek(T0, 1)
        with trio.fail_after(5):
            assert not await consumer.receive_batch(timeout=4)
        assert await consumer.position(T0) == 7
    lines = [record for record in caplog.records if record.name == "trikafka.fetch"]
    assert [(line.levelname, line.getMessage()) for line in lines] == [
        (
            "WARNING",
            "t-0: offset 1 is outside the log, which held the offsets 4 to 7 when it was last "
            "fetched: going to latest (auto_offset_reset), which skips the records in between, or "
            "reads them again",
        )
    ]


async def test_out_of_range_without_fetch_has_no_ends(autojump_clock: Clock) -> None:
    async with (
        cluster_of(records=3) as cluster,
        consumer_of(cluster, auto_offset_reset="none") as consumer,
    ):
        consumer.assign([T0])
        consumer.seek(T0, 99)
        with trio.fail_after(5), pytest.raises(OffsetOutOfRangeError) as caught:
            await consumer.receive()
        error = caught.value
        assert (error.partition, error.offset, error.log_start, error.log_end) == (
            T0,
            99,
            None,
            None,
        )


def test_truncation_has_the_same_details() -> None:
    error = LogTruncationError(T0, 42, None, 3, 40)
    assert (error.partition, error.offset, error.position, error.log_start, error.log_end) == (
        T0,
        42,
        42,
        3,
        40,
    )


@pytest.mark.parametrize("before", [0, 2])
async def test_corrupt_record_error_has_the_bytes(autojump_clock: Clock, before: int) -> None:
    """The bytes are those of the corrupt batch and do not appear in the text."""
    async with cluster_of() as cluster, consumer_of(cluster) as consumer:
        for number in range(before):
            cluster.append("t", 0, [b"%d" % number])
        broken = bytearray(encode_batch([b"a secret"], timestamp=0))
        broken[0:8] = before.to_bytes(8, "big")
        broken[-3] ^= 0xFF
        cluster.append_batch("t", 0, bytes(broken), offset=before)
        cluster.append("t", 0, [b"good"])
        consumer.assign([T0])
        await values(consumer, before)
        with trio.fail_after(5), pytest.raises(CorruptRecordError) as caught:
            await consumer.receive()
        error = caught.value
        assert (error.topic, error.partition, error.offset) == ("t", 0, before)
        # Neither the first offset nor the leader epoch is under the checksum: the broker writes
        # both.
        assert error.raw is not None
        assert error.raw[16:] == bytes(broken)[16:]
        assert "secret" not in str(error) + repr(error)


def test_corrupt_bytes_are_bounded() -> None:
    assert len(CorruptRecordError("cut", raw=memoryview(bytes(5_000_000))).raw or b"") == 2 * 2**20


@pytest.mark.parametrize("grouped", [False, True])
async def test_cold_start_fetches_commits_once(autojump_clock: Clock, grouped: bool) -> None:
    async with cluster_of(2, records=3) as cluster, consumer_of(cluster, group_id="g") as consumer:
        if grouped:
            consumer.subscribe(["t"])
        else:
            consumer.assign([T0, T1])
        with trio.fail_after(5):
            await values(consumer, 6)
        asked = cluster.requests("OffsetFetch")
        assert len(asked) == 1
        assert asked[0].version >= 10


async def test_missing_topic_delays_no_other(autojump_clock: Clock) -> None:
    """It does not keep the others waiting."""
    async with cluster_of(1, records=3) as cluster, consumer_of(cluster, group_id="g") as consumer:
        missing: Any = T0._replace(topic="missing")
        consumer.assign([missing, T0])
        got = []
        with trio.fail_after(20):
            while len(got) < 3:
                with suppress(UnknownTopicOrPartitionError):
                    got.append((await consumer.receive()).value)
        assert got == [b"0", b"1", b"2"]
