"""A handler of ``run_tasks`` with a nursery of its own: what its tasks are told together is no failure of its record."""

from __future__ import annotations

import pytest
import trio
from tasking import cluster_of, committed, consumer_of, producer_of, running, until
from trio.testing import MockClock as Clock

from trikafka import Record, TransactionAbortableError
from trikafka.error_codes import ErrorCode
from trikafka.errors import BrokerResponseError


async def test_a_failed_transaction_is_no_reason_for_a_dead_letter(autojump_clock: Clock) -> None:
    async with cluster_of(1, records=1, topics={"out": 1, "dead": 1}) as cluster, consumer_of(cluster) as consumer:
        async with producer_of(cluster, transactional_id="x") as producer:
            seen: list[set[type[BaseException]]] = []
            cluster.fail("Produce", ErrorCode.UNKNOWN_SERVER_ERROR, times=1)

            async def handler(record: Record) -> None:
                if not seen:
                    with pytest.raises(BrokerResponseError):
                        await producer.send("out", b"refused")
                try:
                    async with trio.open_nursery() as nursery:
                        for _ in range(3):
                            nursery.start_soon(producer.send, "out", record.value)
                except BaseExceptionGroup as group:
                    seen.append({type(error) for error in group.exceptions})
                    raise

            async with running(consumer, handler, producer=producer, dead_letter="dead"):
                await until(lambda: committed(cluster) == 1, limit=60)
            assert seen == [{TransactionAbortableError}]
        assert cluster.records("dead", 0) == []
        assert [record.value for record in cluster.records("out", 0) if record.value == b"0"] == [b"0"] * 3
