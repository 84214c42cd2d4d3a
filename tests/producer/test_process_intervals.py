"""The length of a transaction of ``trikafka.process``: as long as records are buffered, up to its
limits.
"""

from __future__ import annotations

from typing import Any

import pytest
import trio
from test_processing import all_processed, consumer_settings, input_of
from transacting import producer_of
from trio.testing import MockClock as Clock

import trikafka
from trikafka import RecordBatch, Transaction
from trikafka.errors import ConfigurationError
from trikafka.testing import ScriptedCluster


async def lengths(pause: float, **limits: Any) -> list[int]:
    """Return the number of batches of seven records in each transaction.

    The handler takes ``pause`` seconds.
    """
    found: list[tuple[Transaction, int]] = []
    async with ScriptedCluster(topics={"t": 2}) as cluster:
        input_of(cluster)
        async with (
            producer_of(cluster) as producer,
            trikafka.open_consumer("in", **consumer_settings(cluster)) as consumer,
            trio.open_nursery() as nursery,
        ):

            async def handler(batch: RecordBatch, txn: Transaction) -> None:
                if found and found[-1][0] is txn:
                    found[-1] = (txn, found[-1][1] + 1)
                else:
                    found.append((txn, 1))
                await producer.enqueue("t", b"x")
                await trio.sleep(pause)

            nursery.start_soon(lambda: trikafka.process(consumer, producer, handler, **limits))
            await all_processed(cluster)
            nursery.cancel_scope.cancel()
    return [count for _, count in found]


async def test_transaction_lasts_its_interval(autojump_clock: Clock) -> None:
    counts = await lengths(0.05, commit_interval=0.225)
    assert max(counts) == 5
    assert sum(counts) == 4 * 6


async def test_each_batch_has_its_own_transaction(autojump_clock: Clock) -> None:
    assert set(await lengths(0.0, commit_interval=0.0)) == {1}


async def test_transaction_ends_at_max_records(autojump_clock: Clock) -> None:
    counts = await lengths(0.001, max_records=15)
    assert max(counts) == 3


@pytest.mark.parametrize("wrong", [-1, float("nan"), "0.1", None, True, [1]])
async def test_wrong_limits_are_refused(wrong: Any, autojump_clock: Clock) -> None:
    async with ScriptedCluster(topics={"t": 2, "in": 1}) as cluster:
        async with (
            producer_of(cluster) as producer,
            trikafka.open_consumer("in", **consumer_settings(cluster)) as consumer,
        ):
            with pytest.raises(
                ConfigurationError,
                match="commit_interval must be a number of seconds, at least 0, not",
            ):
                await trikafka.process(consumer, producer, _nothing, commit_interval=wrong)
            with pytest.raises(ConfigurationError, match="max_records must be at least 1, not"):
                await trikafka.process(consumer, producer, _nothing, max_records=wrong)


async def _nothing(batch: RecordBatch, txn: Transaction) -> None:
    pass
