"""A hanging transaction in a real broker's log is found and aborted (KIP-664).

Both the admin client and the command do it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import confluent_kafka
import pytest
import trio
from cluster_waits import PATIENT, topic_reported

import trikafka
from trikafka import NewTopic, TopicPartition
from trikafka.testing import encode_batch
from trikafka.testing.messages import REQUESTS, RESPONSES, api_key, build

if TYPE_CHECKING:
    from trikafka_broker.pytest_plugin import MakeKafkaCluster


async def ask(stream: trio.SocketStream, api: str, version: int, **fields: Any) -> Any:
    """Send a request that no client sends."""
    request = build(REQUESTS[api_key(api)], version, fields)
    request.with_header(1, "by-hand")
    await stream.send_all(bytes(request.encode(header=True, framed=True)))
    data = b""
    while len(data) < 4 or len(data) < 4 + int.from_bytes(data[:4], "big"):
        data += await stream.receive_some()
    return RESPONSES[api_key(api)][version].decode(data[4:], header=True)


async def write_without_a_coordinator(
    stream: trio.SocketStream, topic: str, producer: tuple[int, int]
) -> None:
    """Write a batch of a transaction unknown to the coordinator, as a late old client does."""
    data = encode_batch(
        [b"lost"], timestamp=round(time.time() * 1000), producer=(*producer, 0), transactional=True
    )
    topics = [{"name": topic, "partition_data": [{"index": 0, "records": data}]}]
    answer = await ask(
        stream, "Produce", 11, transactional_id="late", acks=-1, timeout_ms=5000, topic_data=topics
    )
    assert answer.responses[0].partition_responses[0].error_code == 0


async def command(*args: str) -> str:
    done = await trio.run_process(
        [sys.executable, "-m", "trikafka.cli", "transactions", *args],
        env={**os.environ, "TRIKAFKA_OUTPUT": "table"},
        capture_stdout=True,
        capture_stderr=True,
    )
    return done.stdout.decode()


async def test_hanging_transaction_is_found_and_aborted(
    make_kafka_cluster: MakeKafkaCluster,
) -> None:
    with (
        make_kafka_cluster(
            properties={**PATIENT, "transaction.partition.verification.enable": False}
        ) as kafka,
        trio.fail_after(400),
    ):
        servers, broker = kafka.bootstrap_servers, kafka.brokers[0]
        async with trikafka.open_admin(bootstrap_servers=servers) as admin:
            await admin.create_topics({"hangs": NewTopic(1), "fine": NewTopic(1)})
            for topic in ("hangs", "fine"):
                await topic_reported(admin, topic, 1)
            open_one = confluent_kafka.Producer(
                {
                    "bootstrap.servers": servers,
                    "transactional.id": "fine",
                    "transaction.timeout.ms": 600_000,
                    "linger.ms": 0,
                }
            )
            await trio.to_thread.run_sync(open_one.init_transactions)
            open_one.begin_transaction()
            for topic in ("fine", "hangs"):
                open_one.produce(topic, b"open")
            await trio.to_thread.run_sync(open_one.flush)
            async with await trio.open_tcp_stream(broker.host, broker.port) as stream:
                for number in (700_001, 700_002):
                    await write_without_a_coordinator(stream, "hangs", (number, 4))
            assert await admin.find_hanging_transactions() == []  # too young
            found = await admin.find_hanging_transactions(longer_than=0)
            assert [
                (h.partition, h.start_offset, h.producer_id, h.producer_epoch, h.transactional_id)
                for h in found
            ] == [
                (TopicPartition("hangs", 0), 1, 700_001, 4, None),
                (TopicPartition("hangs", 0), 2, 700_002, 4, None),
            ]
            producers = (await admin.describe_producers([TopicPartition("hangs", 0)]))[
                TopicPartition("hangs", 0)
            ]
            assert sorted(p.transaction_start or 0 for p in producers) == [0, 1, 2]
            described = (await admin.describe_transactions(["fine"]))["fine"]
            assert (described.state, described.partitions) == (
                "Ongoing",
                (TopicPartition("fine", 0), TopicPartition("hangs", 0)),
            )
            assert [
                t.transactional_id
                for t in await admin.list_transactions(states=["Ongoing"], pattern="f.*")
            ] == ["fine"]

            shown = json.loads(
                await command(
                    "find-hanging", "-b", servers, "--longer-than", "0", "--output", "json"
                )
            )
            assert [(row["topic"], row["start_offset"], row["producer_id"]) for row in shown] == [
                ("hangs", 1, 700_001),
                ("hangs", 2, 700_002),
            ]
            aborting = ("abort", "-b", servers, "-t", "hangs", "-p", "0", "--execute")
            await command(*aborting, "--start-offset", "1")
            await admin.abort_transaction(TopicPartition("hangs", 0), 2)
            assert await admin.find_hanging_transactions(longer_than=0) == []
            with pytest.raises(subprocess.CalledProcessError) as refused:
                await command(*aborting, "--start-offset", "2")
            assert b"has no open transaction that begins at offset 2" in refused.value.stderr
            assert "fine" in await command("-b", servers)
            assert "hangs-0" in await command("describe", "-b", servers, "fine")

            await trio.to_thread.run_sync(open_one.commit_transaction)
            settings: trikafka.ConsumerSettings = {
                "bootstrap_servers": servers,
                "isolation_level": "read_committed",
            }
            async with trikafka.open_consumer(auto_offset_reset="earliest", **settings) as consumer:
                consumer.assign([TopicPartition("hangs", 0)])
                assert (await consumer.receive()).value == b"open"
                while await consumer.position(TopicPartition("hangs", 0)) < 6:
                    assert len(await consumer.receive_batch(timeout=0.5)) == 0
