"""``trikafka.process`` repeats timed-out transactions until ``task_timeout_ms`` has passed without
a commit (KIP-572).
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import trio
from test_processing import EXPECTED, Copying, all_processed, consumer_settings, input_of
from transacting import committed, producer_of
from trio.testing import MockClock as Clock

import trikafka
from trikafka import Consumer, Producer, RecordBatch, Transaction
from trikafka.error_codes import ErrorCode
from trikafka.errors import (
    BrokerResponseError,
    ConfigurationError,
    DeliveryTimeoutError,
    KafkaTimeoutError,
    TransactionAbortableError,
    TransactionUndecidedError,
)
from trikafka.testing import ScriptedCluster

QUICK: dict[str, Any] = {
    "default_api_timeout_ms": 2_000,
    "request_timeout_ms": 1_000,
    "close_timeout_ms": 1_000,
}


class Stuck(Copying):
    """A handler whose calls take a second and time out, ``times`` in all, then copies."""

    def __init__(self, producer: Producer, times: int) -> None:
        super().__init__(producer)
        self.times = times
        self.ends: list[float] = []
        self.errors: list[KafkaTimeoutError] = []

    async def __call__(self, batch: RecordBatch, txn: Transaction) -> None:
        if self.times:
            self.times -= 1
            await trio.sleep(1)
            self.ends.append(trio.current_time())
            self.errors.append(KafkaTimeoutError("send", 1))
            raise self.errors[-1]
        await super().__call__(batch, txn)


async def goes_on(cluster: ScriptedCluster, producer: Producer, consumer: Consumer) -> None:
    """Check that nothing was left open and the consumer continues after the last commit."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trikafka.process, consumer, producer, Copying(producer))
        await all_processed(cluster)
        nursery.cancel_scope.cancel()
    assert Counter(await committed(cluster)) == EXPECTED


@pytest.mark.parametrize("limit_ms", [0, 1, 10_000])
async def test_last_timeout_has_the_first_as_cause(
    limit_ms: float, autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    async with ScriptedCluster(topics={"t": 2}) as cluster:
        input_of(cluster)
        async with (
            producer_of(cluster) as producer,
            trikafka.open_consumer("in", **consumer_settings(cluster)) as consumer,
        ):
            handler = Stuck(producer, 1000)
            with pytest.raises(KafkaTimeoutError) as raised, trio.fail_after(100):
                await trikafka.process(consumer, producer, handler, task_timeout_ms=limit_ms)
            assert raised.value is handler.errors[-1]
            logged = [
                line
                for line in caplog.messages
                if line.startswith("the transaction timed out, and is tried again in")
            ]
            assert len(logged) == len(handler.errors) - 1
            since = [end - handler.ends[0] for end in handler.ends]
            if limit_ms == 0:
                assert since == [0]
            else:
                assert raised.value.__cause__ is handler.errors[0]
                assert since[-2] <= limit_ms / 1000 < since[-1]
            await goes_on(cluster, producer, consumer)


async def test_commit_clears_the_task_timer(autojump_clock: Clock) -> None:
    """Each batch times out twice, together for much longer than the limit."""
    async with ScriptedCluster(topics={"t": 2}) as cluster:
        input_of(cluster)
        async with (
            producer_of(cluster, retry_backoff_ms=0) as producer,
            trikafka.open_consumer(
                "in", **consumer_settings(cluster, retry_backoff_ms=0)
            ) as consumer,
        ):
            handler = Stuck(producer, 2)

            async def each_twice(batch: RecordBatch, txn: Transaction) -> None:
                await handler(batch, txn)
                handler.times = 2

            begun = trio.current_time()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(
                    lambda: trikafka.process(
                        consumer, producer, each_twice, max_records=1, task_timeout_ms=3_000
                    )
                )
                await all_processed(cluster)
                nursery.cancel_scope.cancel()
            assert trio.current_time() - begun > 24 * 2
        assert Counter(await committed(cluster)) == EXPECTED


async def test_expired_records_count_as_timeouts(autojump_clock: Clock) -> None:
    async with ScriptedCluster(topics={"t": 2}) as cluster:
        input_of(cluster)
        settings = {"request_timeout_ms": 1_000, "delivery_timeout_ms": 2_000}
        async with (
            producer_of(cluster, **settings) as producer,
            trikafka.open_consumer("in", **consumer_settings(cluster)) as consumer,
        ):
            rule = cluster.silence("Produce")
            begun = trio.current_time()
            with pytest.raises(DeliveryTimeoutError) as raised, trio.fail_after(200):
                await trikafka.process(
                    consumer, producer, Copying(producer), task_timeout_ms=10_000
                )
            assert isinstance(raised.value.__cause__, DeliveryTimeoutError)
            assert 12 < trio.current_time() - begun < 25
            rule.remove()
            await goes_on(cluster, producer, consumer)


async def test_undecided_commit_is_settled_by_next_call(
    autojump_clock: Clock,
) -> None:
    async with ScriptedCluster(topics={"t": 2}) as cluster:
        input_of(cluster)
        async with (
            producer_of(cluster, **QUICK) as producer,
            trikafka.open_consumer("in", **consumer_settings(cluster)) as consumer,
        ):
            rule = cluster.silence("EndTxn", after=True)
            begun = trio.current_time()
            with pytest.raises(TransactionUndecidedError) as raised, trio.fail_after(100):
                await trikafka.process(
                    consumer, producer, Copying(producer), task_timeout_ms=10_000
                )
            assert isinstance(raised.value.__cause__, TransactionUndecidedError)
            assert 10 < trio.current_time() - begun < 20
            begun = trio.current_time()
            # Settling has a time limit of its own.
            with (
                pytest.raises(KafkaTimeoutError),
                trio.fail_after(100),
            ):
                await trikafka.process(consumer, producer, Copying(producer), task_timeout_ms=5_000)
            assert 5 < trio.current_time() - begun < 12
            rule.remove()
            await goes_on(cluster, producer, consumer)


async def test_grouped_errors_of_a_handler_are_retried(
    autojump_clock: Clock,
) -> None:
    """The nursery raises a group of timeouts, or of the errors of a failed transaction."""
    async with ScriptedCluster(topics={"t": 2}) as cluster:
        input_of(cluster)
        async with (
            producer_of(cluster) as producer,
            trikafka.open_consumer("in", **consumer_settings(cluster)) as consumer,
        ):
            seen: list[set[type[BaseException]]] = []
            cluster.fail("Produce", ErrorCode.UNKNOWN_SERVER_ERROR, times=1)

            async def one(value: bytes | None, partition: int) -> None:
                if len(seen) == 1:
                    raise KafkaTimeoutError("send", 1)
                await producer.send("t", value, partition=partition)

            async def handler(batch: RecordBatch, txn: Transaction) -> None:
                if not seen:
                    with pytest.raises(BrokerResponseError):
                        await producer.send("t", b"refused", partition=0)
                try:
                    async with trio.open_nursery() as nursery:
                        for record in batch:
                            nursery.start_soon(one, record.value, record.partition % 2)
                except BaseExceptionGroup as group:
                    seen.append({type(error) for error in group.exceptions})
                    raise

            async with trio.open_nursery() as nursery:
                nursery.start_soon(trikafka.process, consumer, producer, handler)
                await all_processed(cluster)
                nursery.cancel_scope.cancel()
            assert seen == [{TransactionAbortableError}, {KafkaTimeoutError}]
        assert Counter(await committed(cluster)) == EXPECTED


@pytest.mark.parametrize("wrong", [-1, float("nan"), True, "1"])
async def test_wrong_task_timeout_is_refused(wrong: Any, autojump_clock: Clock) -> None:
    async def never(batch: RecordBatch, txn: Transaction) -> None:
        raise AssertionError

    async with ScriptedCluster(topics={"t": 2, "in": 1}) as cluster:
        async with (
            producer_of(cluster) as producer,
            trikafka.open_consumer("in", **consumer_settings(cluster)) as consumer,
        ):
            with pytest.raises(
                ConfigurationError,
                match="task_timeout_ms must be a number of milliseconds, at least 0, not",
            ):
                await trikafka.process(consumer, producer, never, task_timeout_ms=wrong)
