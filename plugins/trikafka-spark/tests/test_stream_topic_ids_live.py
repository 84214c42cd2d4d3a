"""Readers of two runs of a stream, over a real Kafka and without Spark, and changes of the topic.

A run is a reader that gets the checkpoint of the run before, as Spark calls it.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio
from known_topics import add_records, known_with, make_anew
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import BinaryType, StructField, StructType
from trikafka_spark.read_options import read_options
from trikafka_spark.stream_reader import TrikafkaStreamReader

import trikafka
from trikafka import OffsetOutOfRangeError

Offsets = dict[str, Any]


class Runs:
    """The runs of one stream."""

    def __init__(self, servers: str, topic: str) -> None:
        self.given = {
            "kafka.bootstrap.servers": servers,
            "subscribe": topic,
            "startingOffsets": "earliest",
        }
        self.readers: list[TrikafkaStreamReader] = []

    def reader(self, **more: str) -> TrikafkaStreamReader:
        """Return the reader of a new run."""
        options = read_options({**self.given, **more}, streaming=True, warn=False)
        schema = StructType([StructField("value", BinaryType())])
        self.readers.append(TrikafkaStreamReader(options, schema))
        return self.readers[-1]

    async def batch(
        self, reader: TrikafkaStreamReader, start: Offsets | None
    ) -> tuple[Offsets, list[Any]]:
        """Return the end of the next batch, in the form of the checkpoint, and its ranges."""

        def work() -> tuple[Offsets, list[Any]]:
            begin = reader.initialOffset() if start is None else start
            end = reader.latestOffset(begin, ReadAllAvailable())
            if json.dumps(end) == json.dumps(begin):
                return end, []
            ends.append(end)
            return end, [each.value.wanted for each in reader.partitions(begin, end)]

        ends: list[Offsets] = []
        try:
            return await trio.to_thread.run_sync(work)
        except OffsetOutOfRangeError as error:
            error.add_note(json.dumps(ends[-1]))  # Spark has stored it, and plans that batch again
            raise


@pytest.fixture
async def runs(kafka_broker: Any, new_topic: Any) -> Any:
    made = Runs(kafka_broker.bootstrap_servers, await new_topic(5, partitions=1))
    yield made
    for reader in made.readers:
        await trio.to_thread.run_sync(reader.stop)


@pytest.mark.parametrize("records", [5, 9])
async def test_recreated_topic_is_lost(records: int, runs: Runs) -> None:
    """A topic that was recreated between two runs is lost.

    Its offsets alone do not show that; the id in the checkpoint does.
    """
    topic, servers = runs.given["subscribe"], runs.given["kafka.bootstrap.servers"]
    first, ranges = await runs.batch(runs.reader(), None)
    assert ranges == [(topic, 0, 0, 5)]
    assert await runs.batch(runs.reader(), first) == (first, [])
    await make_anew(servers, topic, records)
    words = f"topic '{topic}' was deleted and created again since it was read"
    with pytest.raises(OffsetOutOfRangeError, match=words) as caught:
        await runs.batch(runs.reader(), first)
    (noted,) = caught.value.__notes__
    with pytest.raises(OffsetOutOfRangeError, match=words):  # the unfinished batch, by the next run
        await trio.to_thread.run_sync(runs.reader().partitions, first, json.loads(noted))
    second, ranges = await runs.batch(runs.reader(failOnDataLoss="false"), first)
    assert ranges == ([(topic, 0, 5, 9)] if records == 9 else [])
    assert second != first
    await add_records(servers, topic, records, 1, 1)
    third, ranges = await runs.batch(runs.reader(), second)  # the id is that of the new topic
    assert ranges == [(topic, 0, records, records + 1)]
    assert (await runs.batch(runs.reader(), third))[1] == []


async def test_checkpoint_without_ids_gets_them(runs: Runs) -> None:
    """A checkpoint without ids, as of the connector or an older release, gets them."""
    topic, servers = runs.given["subscribe"], runs.given["kafka.bootstrap.servers"]
    plain = {topic: {"0": 5}}
    assert await runs.batch(runs.reader(), plain) == (plain, [])
    await add_records(servers, topic, 5, 1, 1)
    found, ranges = await runs.batch(runs.reader(), plain)
    assert ranges == [(topic, 0, 5, 6)]
    assert found.pop(topic) == {"0": 6}
    ((name, nothing),) = found.items()
    assert name.startswith(f"{topic}=")
    assert nothing == {}


@pytest.mark.parametrize("start", ["earliest", "latest"])
@pytest.mark.parametrize("new", ["partition", "topic"])
async def test_news_spare_an_unfinished_first_batch(
    new: str, start: str, runs: Runs, new_topic: Any
) -> None:
    """A run that repeats the first batch of a killed one begins where the topics are now.

    What is newer than the batch is not lost: the next batch reads it from its beginning.
    """
    topic, servers = runs.given["subscribe"], runs.given["kafka.bootstrap.servers"]
    runs.given["startingOffsets"] = start
    killed = runs.reader()
    begin = await trio.to_thread.run_sync(killed.initialOffset)
    end = await trio.to_thread.run_sync(killed.latestOffset, begin, ReadAllAvailable())
    planned = [(topic, 0, 0, 5)] if start == "earliest" else []
    if new == "topic":
        other, number = await new_topic(3, partitions=1), 0
        runs.given["subscribe"] = f"{topic},{other}"
    else:
        other, number = topic, 1
        async with trikafka.open_admin(bootstrap_servers=servers) as admin:
            await admin.create_partitions({topic: 2})
            await known_with(admin, topic, 2)
        await add_records(servers, topic, 5, 6, 2)
    again = runs.reader()
    now = await trio.to_thread.run_sync(again.initialOffset)
    ranges = await trio.to_thread.run_sync(again.partitions, now, end)
    assert [each.value.wanted for each in ranges] == planned
    _, ranges = await runs.batch(again, end)
    assert (other, number, 0, 3) in ranges
