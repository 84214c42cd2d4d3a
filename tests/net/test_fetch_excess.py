"""A broker that sends far more than a fetch asks for: the client asks for less, then accepts it."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import trio
from trio.testing import MockClock as Clock

import trikafka
from trikafka import TopicPartition
from trikafka.testing import ScriptedCluster

PARTITIONS, RECORDS, LIMIT = 6, 40, 20_000


def logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        r.getMessage()
        for r in caplog.records
        if r.name == "trikafka.fetch" and r.levelno == logging.WARNING
    ]


@pytest.mark.parametrize("heeds", ["the partition's limit alone", "no limit"])
async def test_consumer_reads_all_of_an_excess(
    heeds: str, autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """Repeating the same request for ever would deliver no record."""
    async with ScriptedCluster(topics={"t": PARTITIONS}) as cluster:
        for number in range(PARTITIONS):
            for at in range(RECORDS):
                cluster.append("t", number, [b"%d" % at + b"x" * 900])

        async def generous(request: Any, default: Any) -> Any:
            request.max_bytes = 2**31 - 1
            if heeds == "no limit":
                for topic in request.topics:
                    for part in topic.partitions:
                        part.partition_max_bytes = 2**31 - 1
            return await default()

        cluster.on("Fetch", generous, times=None)
        given: dict[str, Any] = {
            "bootstrap_servers": cluster.bootstrap_servers,
            "dial": cluster.dial,
        }
        given |= {
            "auto_offset_reset": "earliest",
            "max_partition_fetch_bytes": LIMIT,
            "fetch_max_bytes": LIMIT,
        }
        async with trikafka.open_consumer(**given) as consumer:
            consumer.assign([TopicPartition("t", number) for number in range(PARTITIONS)])
            seen: dict[int, int] = dict.fromkeys(range(PARTITIONS), 0)
            with trio.fail_after(60):
                while sum(seen.values()) < PARTITIONS * RECORDS:
                    record = await consumer.receive()
                    assert record.offset == seen[record.partition]
                    seen[record.partition] += 1
        refused, *more = logged(caplog)
        assert "cannot fetch from broker 0, trying again: the response to Fetch brings" in refused
        if heeds == "no limit":
            [line] = more
            assert line.startswith(
                "broker 0 respects neither fetch_max_bytes nor max_partition_fetch_bytes: the "
                "response to Fetch"
            )
            assert "up to receive_message_max_bytes (100000000): set that" in line
        else:
            assert more == []


async def test_other_brokers_are_asked_for_the_usual(autojump_clock: Clock) -> None:
    async with ScriptedCluster(topics={"t": 2}) as cluster:
        cluster.append("t", 0, [b"a"])
        given: dict[str, Any] = {
            "bootstrap_servers": cluster.bootstrap_servers,
            "dial": cluster.dial,
        }
        async with trikafka.open_consumer(
            **given, auto_offset_reset="earliest", max_partition_fetch_bytes=LIMIT
        ) as consumer:
            consumer.assign([TopicPartition("t", 0), TopicPartition("t", 1)])
            await consumer.receive()
        topics = [topic for seen in cluster.requests("Fetch") for topic in seen.request.topics]
        assert {part.partition_max_bytes for topic in topics for part in topic.partitions} == {
            LIMIT
        }
