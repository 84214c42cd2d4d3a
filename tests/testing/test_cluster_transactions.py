"""Transactions in the scripted cluster: what a test can set, and exact times.

test_cluster_truth.py compares them with Kafka's.
"""

from __future__ import annotations

from typing import Any

import pytest
import trio
from conversations import part_of
from rawclient import RawClient, produce_fields
from trio.testing import MockClock as Clock

from trikafka.error_codes import ErrorCode
from trikafka.testing import ScriptedCluster, encode_batch


class Producer:
    """A minimal transactional producer."""

    def __init__(self, client: RawClient, name: str = "x") -> None:
        self.client = client
        self.name = name
        self.producer_id = -1
        self.epoch = -1

    async def init(self, version: int = 5, **fields: Any) -> int:
        values = {"transactional_id": self.name, "transaction_timeout_ms": 10_000} | fields
        found = await self.client.call("InitProducerId", version, **values)
        if not found.error_code:
            self.producer_id = found.producer_id
            self.epoch = found.producer_epoch
        return int(found.error_code)

    async def write(self, sequence: int = 0, version: int = 12, partition: int = 0) -> int:
        data = encode_batch(
            [b"x"],
            timestamp=1,
            producer=(self.producer_id, self.epoch, sequence),
            transactional=True,
        )
        fields = produce_fields("t", partition, data, transactional_id=self.name)
        return int(part_of(await self.client.call("Produce", version, **fields)).error_code)

    async def end(self, commit: bool = True, version: int = 5) -> int:
        values = {
            "transactional_id": self.name,
            "producer_id": self.producer_id,
            "producer_epoch": self.epoch,
            "committed": commit,
        }
        found = await self.client.call("EndTxn", version, **values)
        if not found.error_code and version >= 5:
            self.producer_id = found.producer_id
            self.epoch = found.producer_epoch
        return int(found.error_code)


def stable(cluster: ScriptedCluster, partition: int = 0) -> tuple[int, int]:
    log = cluster.partition("t", partition)
    return log.stable_end, log.end


async def test_completion_of_a_transaction_may_be_late(autojump_clock: Clock) -> None:
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        cluster.transactions.completion = 3
        producer = Producer(await RawClient.connect(cluster))
        assert [await producer.init(), await producer.write(), await producer.end()] == [0, 0, 0]
        ended = trio.current_time()
        assert (
            await producer.write()
            == await producer.end()
            == await producer.init()
            == ErrorCode.CONCURRENT_TRANSACTIONS
        )
        assert stable(cluster) == (0, 1)
        with trio.fail_after(60):
            while stable(cluster) != (2, 2):
                await cluster._state.changed.wait()
        assert trio.current_time() - ended == 3
        assert await producer.write() == 0


async def test_transaction_ends_at_its_time_limit(autojump_clock: Clock) -> None:
    for version, epoch in ((2, 1), (1, 1)):
        async with ScriptedCluster(topics={"t": 1}, transaction_version=version) as cluster:
            producer = Producer(await RawClient.connect(cluster))
            await producer.init()
            await trio.sleep(7)
            assert await producer.write() == 0
            await trio.sleep(9.999)
            assert stable(cluster) == (0, 1)
            await trio.sleep(0.002)
            assert stable(cluster) == (2, 2)
            assert cluster.transactions.by_id["x"].epoch == epoch
            assert cluster.partition("t", 0).aborted == [(1000, 0, 1)]
            assert await producer.write(1) == ErrorCode.INVALID_PRODUCER_EPOCH


async def test_marker_waits_for_the_leader(autojump_clock: Clock) -> None:
    async with ScriptedCluster(nodes=2, topics={"t": 2}) as cluster:
        here = Producer(await RawClient.connect(cluster))
        there = Producer(await RawClient.connect(cluster, 1))
        await here.init()
        there.producer_id = here.producer_id
        there.epoch = here.epoch
        assert [await here.write(), await there.write(partition=1)] == [0, 0]
        cluster.freeze(1)
        assert await here.end() == 0
        assert (stable(cluster, 0), stable(cluster, 1)) == ((2, 2), (0, 1))
        assert await here.write() == ErrorCode.CONCURRENT_TRANSACTIONS
        cluster.thaw(1)
        await trio.testing.wait_all_tasks_blocked()
        assert stable(cluster, 1) == (2, 2)
        assert await here.write() == 0


async def test_unverified_write_hangs(autojump_clock: Clock) -> None:
    """Without verification a write without a transaction hangs for ever."""
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        producer = Producer(await RawClient.connect(cluster))
        await producer.init()
        assert await producer.write(version=11) == ErrorCode.TRANSACTION_ABORTABLE
        cluster.transactions.verification = False
        assert await producer.write(version=11) == 0
        await trio.sleep(60)
        assert stable(cluster) == (0, 1)


async def test_coordinator_moves_and_fails_by_script(autojump_clock: Clock) -> None:
    async with ScriptedCluster(nodes=2, topics={"t": 1}) as cluster:
        producer = Producer(await RawClient.connect(cluster))
        assert await producer.init() == 0
        cluster.move_coordinator(1, "x")
        assert await producer.init() == await producer.end() == ErrorCode.NOT_COORDINATOR
        cluster.move_coordinator(0, "x")
        for api, call in (
            ("InitProducerId", producer.init),
            ("EndTxn", producer.end),
            ("Produce", producer.write),
        ):
            cluster.fail(api, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
            assert await call() == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


async def test_used_up_epochs_give_a_new_producer_id(autojump_clock: Clock) -> None:
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        producer = Producer(await RawClient.connect(cluster))
        await producer.init()
        cluster.transactions.by_id["x"].epoch = 32766
        producer.epoch = 32766
        assert [await producer.write(), await producer.end()] == [0, 0]
        assert (producer.producer_id, producer.epoch) == (1001, 0)
        producer.producer_id = 1000
        producer.epoch = 32766
        assert await producer.end() == 0  # repeated, as if the response was lost
        assert (producer.producer_id, producer.epoch) == (1001, 0)
        cluster.transactions.by_id["x"].epoch = 32766
        assert await producer.init() == 0
        assert (producer.producer_id, producer.epoch) == (1002, 0)


@pytest.mark.parametrize("commit", [True, False])
async def test_prepared_transaction_is_completed(autojump_clock: Clock, commit: bool) -> None:
    async with ScriptedCluster(topics={"t": 1}, api_versions={"InitProducerId": (0, 6)}) as cluster:
        cluster.transactions.two_phase = True
        cluster.transactions.keeps_prepared = True
        client = await RawClient.connect(cluster)
        first, second = Producer(client), Producer(client)
        assert [await first.init(6, enable2_pc=True), await first.write()] == [0, 0]
        await trio.sleep(80_000)
        assert stable(cluster) == (0, 1)
        values = {
            "transactional_id": "x",
            "transaction_timeout_ms": 1,
            "enable2_pc": True,
            "keep_prepared_txn": True,
        }
        kept = await client.call("InitProducerId", 6, **values)
        assert (kept.ongoing_txn_producer_id, kept.ongoing_txn_producer_epoch) == (
            first.producer_id,
            first.epoch,
        )
        second.producer_id = kept.producer_id
        second.epoch = kept.producer_epoch
        assert await first.end() == ErrorCode.PRODUCER_FENCED
        assert await second.end(commit) == 0
        assert stable(cluster) == (2, 2)
        assert bool(cluster.partition("t", 0).aborted) != commit
