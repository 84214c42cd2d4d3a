"""A client that reads one range after the other over a real Kafka.

It is kept if nothing failed, and no longer than it is needed.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import trio
from known_topics import make_anew
from pyspark.sql.types import BinaryType, StructField, StructType
from trikafka_broker.waiting import wait_until
from trikafka_export import reader as reader_module
from trikafka_export import reading
from trikafka_export.reader import Reader, close_kept, kept_reader
from trikafka_export.reading import NothingYet, read_range
from trikafka_spark.query_columns import QueryColumns
from trikafka_spark.range_partition import read_planned
from trikafka_spark.range_planning import Planned
from trikafka_spark.read_options import read_options

import trikafka
from trikafka import OffsetOutOfRangeError, OffsetRange, UnknownTopicOrPartitionError


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """Return the consumers that are opened during the test."""
    found: list[Any] = []
    original = trikafka.open_consumer

    def noted(*args: Any, **settings: Any) -> Any:
        context = original(*args, **settings)
        enter = context.__aenter__

        class Noted:
            async def __aenter__(self) -> Any:
                found.append(await enter())
                return found[-1]

            async def __aexit__(self, *error: Any) -> Any:
                return await context.__aexit__(*error)

        return Noted()

    monkeypatch.setattr(trikafka, "open_consumer", noted)
    yield found
    close_kept()


@pytest.fixture(autouse=True)
def _no_threads_of_others() -> None:
    """Wait until the clients of earlier tests, such as those of cancelled exports, have ended."""
    close_kept()
    assert wait_until(lambda: not threads(), 240)


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("trikafka topic-")]


def offsets(batches: Any) -> list[int]:
    return [offset for batch in batches for offset in batch.offsets]


async def test_ranges_of_several_topics_share_a_client(
    kafka_broker: Any, new_topic: Any, opened: list[Any]
) -> None:
    settings = {"bootstrap_servers": kafka_broker.bootstrap_servers}
    one, two = await new_topic(1_000, partitions=2), await new_topic(300, partitions=1)
    reader = Reader(settings)
    for low in range(0, 500, 50):
        for part in range(2):
            found = offsets(
                read_range(OffsetRange(one, part, low, low + 50), settings, reader=reader)
            )
            assert found == list(range(low, low + 50))
        assert offsets(
            read_range(OffsetRange(two, 0, low // 2, low // 2 + 7), settings, reader=reader)
        ) == list(range(low // 2, low // 2 + 7))
    assert len(opened) == 1
    assert len(threads()) == 1
    reader.close()
    assert threads() == []


async def test_failed_range_gives_the_next_a_new_client(
    kafka_broker: Any, new_topic: Any, opened: list[Any]
) -> None:
    settings = {"bootstrap_servers": kafka_broker.bootstrap_servers}
    topic = await new_topic(100, partitions=1)
    reader = Reader(settings)
    for _ in range(2):
        with pytest.raises(OffsetOutOfRangeError):
            list(read_range(OffsetRange(topic, 0, 50, 150), settings, reader=reader))
        assert offsets(read_range(OffsetRange(topic, 0, 0, 100), settings, reader=reader)) == list(
            range(100)
        )
    reader.close()
    assert len(opened) == 3
    assert threads() == []


async def test_recent_look_up_of_a_topic_is_used_again(
    kafka_broker: Any, new_topic: Any, opened: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A recent look-up of a topic is used again, but an error is only raised after a new one.

    Each look-up returns all partitions of a topic. With a thousand partitions it takes longer than
    reading a small range.
    """
    settings = {"bootstrap_servers": kafka_broker.bootstrap_servers}
    topic = await new_topic(100, partitions=1)
    async with trikafka.open_consumer(**settings) as consumer:
        planned = str((await consumer.topic_ids([topic]))[topic])
    asked, plain = [], trikafka.Consumer.topic_ids

    async def noted(self: Any, topics: Any, **more: Any) -> Any:
        asked.append(topics)
        return await plain(self, topics, **more)

    monkeypatch.setattr(trikafka.Consumer, "topic_ids", noted)
    monkeypatch.setattr(reading, "_JUST_SEEN", 3_600.0)
    reader = Reader(settings)
    for low in (0, 20, 40):
        assert (
            len(
                offsets(
                    read_range(
                        OffsetRange(topic, 0, low, low + 20),
                        settings,
                        topic_id=planned,
                        reader=reader,
                    )
                )
            )
            == 20
        )
    assert len(asked) == 4  # before the first, and after each
    await make_anew(kafka_broker.bootstrap_servers, topic, 100)
    with pytest.raises(OffsetOutOfRangeError, match="created again"):
        list(read_range(OffsetRange(topic, 0, 60, 80), settings, topic_id=planned, reader=reader))
    reader.close()


@pytest.mark.parametrize("strict", [True, False])
async def test_deleted_topic_is_reported_as_lost(
    strict: bool, kafka_broker: Any, new_topic: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A topic that was deleted since the last look-up is reported as lost.

    Previously the error was that of an unknown topic, for each value of failOnDataLoss.
    """
    servers = {"bootstrap_servers": kafka_broker.bootstrap_servers}
    settings = {**servers, "default_api_timeout_ms": 10_000}
    topic = await new_topic(100, partitions=1)
    async with trikafka.open_consumer(**servers) as consumer:
        planned = str((await consumer.topic_ids([topic]))[topic])
    monkeypatch.setattr(reading, "_JUST_SEEN", 3_600.0)
    reader = Reader(settings)
    assert (
        len(
            offsets(
                read_range(OffsetRange(topic, 0, 0, 20), settings, topic_id=planned, reader=reader)
            )
        )
        == 20
    )
    async with trikafka.open_admin(**servers) as admin:
        await admin.delete_topics([topic])
        with trio.fail_after(900):
            while topic in await admin.list_topics():  # noqa: ASYNC110  (a broker hears of it later)
                await trio.sleep(0.02)
    lost: list[tuple[int, int]] = []

    def rest() -> list[int]:
        more = {
            "topic_id": planned,
            "fail_on_data_loss": strict,
            "on_lost": lambda low, high, why: lost.append((low, high)),
        }
        return offsets(read_range(OffsetRange(topic, 0, 20, 40), settings, reader=reader, **more))

    if strict:
        with pytest.raises(
            OffsetOutOfRangeError, match=f"topic '{topic}' was deleted after the read of"
        ) as caught:
            await trio.to_thread.run_sync(rest)
        assert isinstance(caught.value.__cause__, UnknownTopicOrPartitionError)
    else:
        assert await trio.to_thread.run_sync(rest) == []
        assert lost == [(20, 40)]
    assert topic not in reader.seen
    reader.close()


async def test_abandoned_range_is_not_fetched(
    kafka_broker: Any, new_topic: Any, opened: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A range that is left early is not fetched any more, and its client is used again."""
    monkeypatch.setattr(reading, "_BYTES_AHEAD", 1)
    monkeypatch.setattr(reading, "_GROUP_BYTES", 1)
    settings = {"bootstrap_servers": kafka_broker.bootstrap_servers, "max_poll_records": 10}
    topic, other = await new_topic(5_000, partitions=1), await new_topic(10, partitions=1)
    reader = Reader(settings)
    batches = read_range(OffsetRange(topic, 0, 0, 5_000), settings, reader=reader)
    next(batches)
    batches.close()
    (consumer,) = opened
    assert wait_until(lambda: not consumer.assignment(), 240)
    assert offsets(read_range(OffsetRange(other, 0, 0, 10), settings, reader=reader)) == list(
        range(10)
    )
    assert offsets(
        read_range(OffsetRange(topic, 0, 4_900, 5_000), settings, reader=reader)
    ) == list(range(4_900, 5_000))
    assert len(opened) == 1
    reader.close()


async def test_impatient_range_keeps_its_client(
    kafka_broker: Any, new_topic: Any, opened: list[Any]
) -> None:
    """A range without records within its patience raises an error and keeps its client."""
    settings = {
        "bootstrap_servers": kafka_broker.bootstrap_servers,
        "fetch_min_bytes": 1 << 30,
        "fetch_max_wait_ms": 8_000,  # longer than this process stands still
    }
    topic = await new_topic(100, partitions=1)
    reader = Reader(settings)
    with pytest.raises(NothingYet, match=rf"no record of {topic}-0 arrived within 0\.2 s"):
        list(read_range(OffsetRange(topic, 0, 0, 100), settings, reader=reader, patience=0.2))
    assert offsets(
        read_range(OffsetRange(topic, 0, 0, 100), settings, reader=reader, patience=900)
    ) == list(range(100))
    assert len(opened) == 1
    reader.close()


async def test_patience_is_for_the_first_records(
    kafka_broker: Any, new_topic: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The patience only limits the wait for the first records of a range.

    After them, an error would throw away the written part of the range.
    """
    # Otherwise the reader could have read everything by then.
    monkeypatch.setattr(reading, "_BYTES_AHEAD", 1)
    monkeypatch.setattr(reading, "_GROUP_BYTES", 1)
    settings = {"bootstrap_servers": kafka_broker.bootstrap_servers, "max_poll_records": 10}
    topic = await new_topic(200, partitions=1)
    batches = read_range(OffsetRange(topic, 0, 0, 200), settings, patience=8.0)
    first = next(batches)
    await trio.sleep(8.2)  # longer than the patience
    assert list(first.offsets) + offsets(batches) == list(range(200))


async def test_idle_client_is_closed(kafka_broker: Any, new_topic: Any, opened: list[Any]) -> None:
    settings = {"bootstrap_servers": kafka_broker.bootstrap_servers}
    topic = await new_topic(100, partitions=1)
    reader = Reader(settings, kept_for=0.1)
    for _ in range(2):
        assert offsets(read_range(OffsetRange(topic, 0, 0, 100), settings, reader=reader)) == list(
            range(100)
        )
        assert wait_until(lambda: not threads(), 240)
    assert len(opened) == 2
    reader.close()


async def test_worker_keeps_a_client_of_equal_settings(
    kafka_broker: Any, new_topic: Any, opened: list[Any]
) -> None:
    """A worker keeps one client for tasks of equal settings, and closes those of others."""
    settings = {"bootstrap_servers": kafka_broker.bootstrap_servers}
    topic = await new_topic(100, partitions=1)

    def task(settings: dict[str, Any]) -> None:
        with kept_reader(settings) as reader:
            assert offsets(
                read_range(OffsetRange(topic, 0, 0, 100), settings, reader=reader)
            ) == list(range(100))

    task(settings)
    task(dict(settings))
    assert (len(opened), len(threads())) == (1, 1)
    task({**settings, "client_id": "another"})
    assert (len(opened), len(threads())) == (2, 1), (
        "credentials, say: the client of others is closed"
    )
    with kept_reader({**settings, "client_id": "another"}) as outer:
        task({**settings, "client_id": "another"})  # a task in another thread
        assert offsets(read_range(OffsetRange(topic, 0, 0, 1), settings, reader=outer)) == [0]
    assert (len(opened), len(threads())) == (3, 1)
    close_kept()
    assert threads() == []


async def test_limited_task_leaves_no_client(
    kafka_broker: Any, new_topic: Any, opened: list[Any]
) -> None:
    """A task that ends early, as with a ``limit``, leaves no client.

    Previously its worker kept the connection for half a minute.
    """
    options = read_options(
        {"kafka.bootstrap.servers": kafka_broker.bootstrap_servers, "subscribe": "t"}
    )
    planned = Planned(OffsetRange(await new_topic(20_000, partitions=1), 0, 0, 20_000), None)
    columns = QueryColumns(StructType([StructField("value", BinaryType())]))
    rows = read_planned(planned, options, columns)
    assert next(rows).num_rows
    assert (len(opened), len(threads())) == (1, 1)
    rows.close()  # type: ignore[attr-defined]
    assert threads() == []
    assert sum(batch.num_rows for batch in read_planned(planned, options, columns)) == 20_000
    assert len(threads()) == 1, "of a range that was read to its end the client is kept"


async def test_fork_does_not_use_its_parents_client(
    kafka_broker: Any, new_topic: Any, opened: list[Any]
) -> None:
    settings = {"bootstrap_servers": kafka_broker.bootstrap_servers}
    topic = await new_topic(10, partitions=1)
    with kept_reader(settings) as reader:
        list(read_range(OffsetRange(topic, 0, 0, 10), settings, reader=reader))
    assert reader_module._kept is reader
    if (child := os.fork()) == 0:
        os._exit(reader_module._kept is not None)
    _, status = await trio.to_thread.run_sync(os.waitpid, child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert len(opened) == 1


def test_unreachable_broker_fails_each_range() -> None:
    settings = {"bootstrap_servers": "127.0.0.1:1"}
    reader = Reader(settings)
    for _ in range(3):
        with pytest.raises(trikafka.BootstrapError):
            list(read_range(OffsetRange("topic", 0, 0, 1), settings, reader=reader))
    reader.close()
    assert threads() == []
