"""A producer with a plugin's produce manager: its acks have only what their Protocols name."""

from __future__ import annotations

import pytest
import trio
from offered_plugins import settings
from seat_fakes import FAKES, Takes
from trio.testing import MockClock

import trikafka
from trikafka import TopicPartition
from trikafka.testing import ScriptedCluster

OWN = Takes(produce=FAKES["produce"])


async def test_send_is_cancelled_while_it_waits(autojump_clock: MockClock) -> None:
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        async with trikafka.open_producer(**settings(cluster, OWN)) as producer:
            cluster.delay("Produce", 5)
            with trio.move_on_after(1) as scope:
                await producer.send("t", b"1")
            assert scope.cancelled_caught
            await producer.flush()
        assert [record.value for record in cluster.records("t", 0)] == [b"1"]


async def test_dead_letters_are_written(autojump_clock: MockClock) -> None:
    async def handler(record: trikafka.Record) -> None:
        raise ValueError("no")

    async with ScriptedCluster(topics={"t": 1, "dead": 1}) as cluster:
        cluster.append("t", 0, [b"1", b"2"])
        given = settings(
            cluster, group_id="g", auto_offset_reset="earliest", enable_auto_commit=False
        )
        async with (
            trikafka.open_producer(**settings(cluster, OWN)) as producer,
            trikafka.open_consumer("t", **given) as consumer,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(
                lambda: trikafka.run_tasks(consumer, handler, producer=producer, dead_letter="dead")
            )
            with trio.fail_after(30):
                while len(cluster.records("dead", 0)) < 2:  # noqa: ASYNC110
                    await trio.sleep(0.1)
            nursery.cancel_scope.cancel()
        assert [record.value for record in cluster.records("dead", 0)] == [b"1", b"2"]


async def test_process_writes_its_results(autojump_clock: MockClock) -> None:
    plugin = Takes(produce=FAKES["produce"], transactions=FAKES["transactions"])

    async with ScriptedCluster(topics={"t": 1, "u": 1}) as cluster:
        cluster.append("t", 0, [b"1", b"2"])
        given = settings(
            cluster, group_id="g", auto_offset_reset="earliest", enable_auto_commit=False
        )
        async with (
            trikafka.open_producer(**settings(cluster, plugin, transactional_id="x")) as producer,
            trikafka.open_consumer("t", **given) as consumer,
            trio.open_nursery() as nursery,
        ):

            async def handler(batch: trikafka.RecordBatch, txn: trikafka.Transaction) -> None:
                for record in batch:
                    await producer.enqueue("u", record.value)

            nursery.start_soon(lambda: trikafka.process(consumer, producer, handler))
            with trio.fail_after(30):
                while (at := cluster.committed("g", ("t", 0))) is None or at.offset < 2:  # noqa: ASYNC110
                    await trio.sleep(0.1)
            nursery.cancel_scope.cancel()
        assert [record.value for record in cluster.records("u", 0)][:2] == [b"1", b"2"]


@pytest.mark.parametrize("end", ["commit", "refusal"])
async def test_table_is_part_of_a_transaction(end: str, autojump_clock: MockClock) -> None:
    import pyarrow as pa

    plugin = Takes(produce=FAKES["produce"], transactions=FAKES["transactions"])
    async with ScriptedCluster(topics={"t": 2}) as cluster:
        async with trikafka.open_producer(
            **settings(cluster, plugin, transactional_id="x")
        ) as producer:
            if end == "commit":
                async with producer.transaction():
                    sent = await producer.send_arrow(
                        "t", pa.table({"value": [b"a", b"b"], "partition": [0, 1]})
                    )
                assert set(sent.partitions) == {TopicPartition("t", 0), TopicPartition("t", 1)}
            else:
                cluster.fail("Produce", 87, times=1)
                with pytest.raises(trikafka.ArrowDeliveryError):
                    async with producer.transaction():
                        await producer.send_arrow("t", pa.table({"value": [b"a"]}))
                async with producer.transaction():
                    assert (await producer.send("t", b"b")).offset is not None
