"""The reader of an offset range over a real Kafka: exact ends, and a thread that always ends."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from known_topics import make_anew
from trikafka_broker.waiting import wait_until
from trikafka_export import reading
from trikafka_export.reader import close_kept
from trikafka_export.reading import read_range

import trikafka
from trikafka import BootstrapError, KafkaTimeoutError, OffsetOutOfRangeError, OffsetRange


@pytest.fixture(autouse=True)
def _no_readers_of_others() -> None:
    """Wait until the clients of earlier tests, such as those of cancelled exports, have ended."""
    close_kept()
    assert wait_until(lambda: not readers(), 240)


def readers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("trikafka topic-")]


async def test_range_is_read_from_start_to_end(kafka_broker: Any, new_topic: Any) -> None:
    topic = await new_topic(1_000, partitions=1)
    settings = {"bootstrap_servers": kafka_broker.bootstrap_servers}
    batches = list(read_range(OffsetRange(topic, 0, 17, 555), settings))
    assert [offset for batch in batches for offset in batch.offsets] == list(range(17, 555))
    assert list(read_range(OffsetRange(topic, 0, 5, 5), settings)) == []
    assert readers() == []


async def test_oversized_batch_is_queued_alone(
    kafka_broker: Any, new_topic: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch above the limit of waiting bytes is queued alone."""
    topic = await new_topic(300, partitions=1)
    monkeypatch.setattr(reading, "_BYTES_AHEAD", 1)
    monkeypatch.setattr(reading, "_GROUP_BYTES", 1)
    waiting: list[int] = []
    taken = reading._RangeRead._taken

    def noted(feed: Any, size: int) -> None:
        waiting.append(feed._groups)
        taken(feed, size)

    monkeypatch.setattr(reading._RangeRead, "_taken", noted)
    settings = {"bootstrap_servers": kafka_broker.bootstrap_servers, "max_poll_records": 10}
    batches = list(read_range(OffsetRange(topic, 0, 0, 300), settings))
    assert [offset for batch in batches for offset in batch.offsets] == list(range(300))
    assert len(batches) > 20
    assert len(waiting) > 20
    assert set(waiting) == {1}


async def test_closing_early_ends_the_thread(
    kafka_broker: Any, new_topic: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = await new_topic(5_000, partitions=1)
    # Otherwise the thread could have read all and ended.
    monkeypatch.setattr(reading, "_BYTES_AHEAD", 1)
    monkeypatch.setattr(reading, "_GROUP_BYTES", 1)
    settings = {"bootstrap_servers": kafka_broker.bootstrap_servers, "max_poll_records": 10}
    batches = read_range(OffsetRange(topic, 0, 0, 5_000), settings)
    next(batches)
    assert len(readers()) == 1
    batches.close()
    assert readers() == []


async def test_missing_offsets_are_an_error(kafka_broker: Any, new_topic: Any) -> None:
    topic = await new_topic(100, partitions=1)
    settings = {"bootstrap_servers": kafka_broker.bootstrap_servers}
    with pytest.raises(
        OffsetOutOfRangeError,
        match=r"holds the offsets \[0, 100\), but \[50, 150\) were to be read",
    ):
        list(read_range(OffsetRange(topic, 0, 50, 150), settings))
    assert readers() == []


async def test_range_without_records_times_out(kafka_broker: Any, new_topic: Any) -> None:
    topic = await new_topic(100, partitions=1)
    settings = {
        "bootstrap_servers": kafka_broker.bootstrap_servers,
        "fetch_min_bytes": 1 << 30,
        "fetch_max_wait_ms": 20_000,
    }
    with pytest.raises(KafkaTimeoutError, match=r"from offset 0 did not finish within 0\.3 s"):
        list(read_range(OffsetRange(topic, 0, 0, 100), settings, stall_limit=0.3))
    assert readers() == []


def test_unreachable_broker_is_a_bootstrap_error() -> None:
    with pytest.raises(BootstrapError):
        list(read_range(OffsetRange("t", 0, 0, 1), {"bootstrap_servers": "127.0.0.1:1"}))
    assert readers() == []


def test_plugin_loads_without_spark() -> None:
    assert trikafka.hooks.load_plugins().get_plugin("spark") is not None


async def test_lost_offsets_are_skipped_on_request(kafka_broker: Any, new_topic: Any) -> None:
    """With fail_on_data_loss=False missing offsets are skipped, and no record is read twice."""
    topic = await new_topic(100, partitions=1)
    settings = {"bootstrap_servers": kafka_broker.bootstrap_servers}
    batches = read_range(OffsetRange(topic, 0, 50, 150), settings, fail_on_data_loss=False)
    assert [offset for batch in batches for offset in batch.offsets] == list(range(50, 100))
    assert (
        list(read_range(OffsetRange(topic, 0, 100, 150), settings, fail_on_data_loss=False)) == []
    )


async def test_namesake_of_a_topic_is_never_read(kafka_broker: Any, new_topic: Any) -> None:
    """A topic with the name of the planned one and another id is never read."""
    topic = await new_topic(100, partitions=1)
    settings = {"bootstrap_servers": kafka_broker.bootstrap_servers}
    other = "00000000-0000-0000-0000-00000000002a"
    with pytest.raises(
        OffsetOutOfRangeError,
        match=f"topic '{topic}' was deleted and created again after the read of {topic}-0",
    ):
        list(read_range(OffsetRange(topic, 0, 0, 100), settings, topic_id=other))
    assert (
        list(
            read_range(
                OffsetRange(topic, 0, 0, 100), settings, topic_id=other, fail_on_data_loss=False
            )
        )
        == []
    )
    with pytest.raises(
        OffsetOutOfRangeError,
        match="topic 'gone' was deleted after the read of gone-0 was planned",
    ):
        list(read_range(OffsetRange("gone", 0, 0, 100), settings))


async def test_recreated_topic_ends_the_read(
    kafka_broker: Any, new_topic: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A topic that is recreated during a read ends the read.

    The test limits how much is read ahead: a range that was read completely before has no loss.
    """
    monkeypatch.setattr(reading, "_BYTES_AHEAD", 1)
    monkeypatch.setattr(reading, "_GROUP_BYTES", 1)
    count = 5_000
    topic = await new_topic(count, partitions=1)
    settings = {
        "bootstrap_servers": kafka_broker.bootstrap_servers,
        "max_poll_records": 10,
        "fetch_max_bytes": 20_000,
    }
    settings |= {
        "max_partition_fetch_bytes": 20_000,
        "fetch_buffer_bytes": 40_000,
        "metadata_max_age_ms": 200,
    }
    for fail_on_data_loss in (True, False):
        rest = read_range(
            OffsetRange(topic, 0, 0, count), settings, fail_on_data_loss=fail_on_data_loss
        )
        offsets = list(next(rest).offsets)
        await make_anew(kafka_broker.bootstrap_servers, topic, count)
        if fail_on_data_loss:
            with pytest.raises(OffsetOutOfRangeError, match="was deleted"):
                list(rest)
        else:
            offsets += [offset for batch in rest for offset in batch.offsets]
            assert len(set(offsets)) == len(offsets) < count
    assert readers() == []
