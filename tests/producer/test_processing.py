"""Read, process, write in virtual time: exactly once through aborts, rebalances, cancelled commits
and failing handlers.
"""

from __future__ import annotations

from collections import Counter
from contextlib import AsyncExitStack
from typing import Any, Literal

import pytest
import trio
from transacting import committed, producer_of, until_closed
from trio.testing import MockClock as Clock

import trikafka
from trikafka import Consumer, Producer, RecordBatch, Transaction
from trikafka.error_codes import ErrorCode
from trikafka.errors import ConfigurationError, ProducerFencedError
from trikafka.testing import ScriptedCluster

COUNT = 40
Protocol = Literal["classic", "consumer"]
protocols = pytest.mark.parametrize("protocol", ["classic", "consumer"])
versions = pytest.mark.parametrize("version", [1, 2])
EXPECTED = Counter({b"%d-%d" % (part, number): 1 for part in range(4) for number in range(COUNT)})


def input_of(cluster: ScriptedCluster) -> None:
    cluster.create_topic("in", 4)
    for part in range(4):
        cluster.append("in", part, [b"%d-%d" % (part, number) for number in range(COUNT)])


def consumer_settings(
    cluster: ScriptedCluster, protocol: Protocol = "classic", **more: Any
) -> dict[str, Any]:
    given: dict[str, Any] = {
        "bootstrap_servers": cluster.bootstrap_servers,
        "dial": cluster.dial,
        "group_id": "g",
    }
    given |= {
        "enable_auto_commit": False,
        "auto_offset_reset": "earliest",
        "group_protocol": protocol,
        "max_poll_records": 7,
    }
    return given | more


class Copying:
    """A handler that copies records to ``t``. With ``fail_every`` some calls fail."""

    def __init__(self, producer: Producer, fail_every: int = 0, pause: float = 0.0) -> None:
        self._producer = producer
        self._fail_every = fail_every
        self._pause = pause
        self._calls = 0

    async def __call__(self, batch: RecordBatch, txn: Transaction) -> None:
        self._calls += 1
        for record in batch:
            await self._producer.enqueue("t", record.value, partition=record.partition % 2)
        await trio.sleep(self._pause)
        if self._fail_every and self._calls % self._fail_every == 0:
            raise KeyError("the handler's own")


async def all_processed(cluster: ScriptedCluster) -> None:
    with trio.fail_after(600):
        while any(  # noqa: ASYNC110
            (at := cluster.committed("g", ("in", part))) is None or at.offset < COUNT
            for part in range(4)
        ):
            await trio.sleep(0.1)


@protocols
@versions
async def test_each_record_is_processed_once(
    version: int, protocol: Protocol, autojump_clock: Clock
) -> None:
    async with ScriptedCluster(topics={"t": 2}, transaction_version=version) as cluster:
        input_of(cluster)
        async with (
            producer_of(cluster) as producer,
            trikafka.open_consumer("in", **consumer_settings(cluster, protocol)) as consumer,
        ):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trikafka.process, consumer, producer, Copying(producer))
                await all_processed(cluster)
                nursery.cancel_scope.cancel()
        assert Counter(await committed(cluster)) == EXPECTED


@versions
async def test_failed_transactions_are_repeated(version: int, autojump_clock: Clock) -> None:
    async with ScriptedCluster(topics={"t": 2}, transaction_version=version) as cluster:
        input_of(cluster)
        for api, code in (
            ("Produce", ErrorCode.UNKNOWN_SERVER_ERROR),
            ("EndTxn", ErrorCode.TRANSACTION_ABORTABLE),
            ("TxnOffsetCommit", ErrorCode.ILLEGAL_GENERATION),
        ):
            turn = iter(range(10_000))
            cluster.fail(
                api,
                code,
                times=5,
                where=lambda request, turn=turn: not _aborts(request) and next(turn) % 3 == 1,
            )  # type: ignore[misc]
        cluster.drop("EndTxn", times=2, after=True)
        async with (
            producer_of(cluster) as producer,
            trikafka.open_consumer("in", **consumer_settings(cluster)) as consumer,
        ):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trikafka.process, consumer, producer, Copying(producer))
                await all_processed(cluster)
                nursery.cancel_scope.cancel()
        assert Counter(await committed(cluster)) == EXPECTED


def _aborts(request: Any) -> bool:
    return getattr(request, "committed", True) is False


@versions
async def test_process_may_be_called_after_a_failure(version: int, autojump_clock: Clock) -> None:
    failures = 0
    async with ScriptedCluster(topics={"t": 2}, transaction_version=version) as cluster:
        input_of(cluster)
        async with (
            producer_of(cluster) as producer,
            trikafka.open_consumer("in", **consumer_settings(cluster)) as consumer,
        ):
            handler = Copying(producer, fail_every=3)

            async def go_on() -> None:
                nonlocal failures
                while True:
                    try:
                        await trikafka.process(consumer, producer, handler, max_records=10)
                    except KeyError:
                        failures += 1

            async with trio.open_nursery() as nursery:
                nursery.start_soon(go_on)
                await all_processed(cluster)
                nursery.cancel_scope.cancel()
        assert failures > 3
        assert Counter(await committed(cluster)) == EXPECTED


@versions
async def test_process_may_be_called_after_a_cancel(version: int, autojump_clock: Clock) -> None:
    async with ScriptedCluster(topics={"t": 2}, transaction_version=version) as cluster:
        input_of(cluster)
        cluster.delay("EndTxn", 0.2, times=None)
        async with (
            producer_of(cluster) as producer,
            trikafka.open_consumer("in", **consumer_settings(cluster)) as consumer,
        ):
            handler = Copying(producer, pause=0.05)
            with trio.fail_after(600):
                for tenth in range(3, 1000):
                    with trio.move_on_after(tenth / 100):
                        await trikafka.process(consumer, producer, handler, max_records=20)
                    done = [cluster.committed("g", ("in", part)) for part in range(4)]
                    if all(at is not None and at.offset == COUNT for at in done):
                        break
        await until_closed(cluster)
        assert Counter(await committed(cluster)) == EXPECTED


@protocols
@versions
async def test_records_are_written_once_in_rebalances(
    version: int, protocol: Protocol, autojump_clock: Clock
) -> None:
    async with ScriptedCluster(topics={"t": 2}, transaction_version=version) as cluster:
        input_of(cluster)

        async def member(name: str, life: float) -> None:
            with trio.move_on_after(life):
                async with AsyncExitStack() as stack:
                    producer = await stack.enter_async_context(
                        producer_of(cluster, transactional_id=name)
                    )
                    settings = consumer_settings(
                        cluster,
                        protocol,
                        session_timeout_ms=6_000 if protocol == "classic" else None,
                    )
                    settings = {key: value for key, value in settings.items() if value is not None}
                    consumer: Consumer = await stack.enter_async_context(
                        trikafka.open_consumer("in", **settings)
                    )
                    await trikafka.process(
                        consumer, producer, Copying(producer, pause=0.4), max_records=7
                    )

        with trio.fail_after(900):
            async with trio.open_nursery() as nursery:
                for number in range(6):
                    nursery.start_soon(member, f"m{number}", 4.0 + number)
                    await trio.sleep(2.5)
            await member("last", 120)
        assert Counter(await committed(cluster)) == EXPECTED


async def test_unfit_clients_are_refused(autojump_clock: Clock) -> None:
    async def never(batch: RecordBatch, txn: Transaction) -> None:
        raise AssertionError

    async with (
        ScriptedCluster(topics={"t": 2, "in": 1}) as cluster,
        producer_of(cluster) as producer,
    ):
        async with trikafka.open_consumer(
            "in", **consumer_settings(cluster, enable_auto_commit=True)
        ) as consumer:
            with pytest.raises(ConfigurationError, match="enable_auto_commit"):
                await trikafka.process(consumer, producer, never)
        async with trikafka.open_consumer(
            bootstrap_servers=cluster.bootstrap_servers, dial=cluster.dial
        ) as consumer:
            with pytest.raises(ConfigurationError, match="group_id"):
                await trikafka.process(consumer, producer, never)
        async with trikafka.open_consumer("in", **consumer_settings(cluster)) as consumer:
            with pytest.raises(ConfigurationError, match="max_records"):
                await trikafka.process(consumer, producer, never, max_records=0)
            async with producer_of(cluster, transactional_id=None) as plain:
                with pytest.raises(ConfigurationError, match="transactional_id"):
                    await trikafka.process(consumer, plain, never)


async def test_second_instance_fences_the_first(autojump_clock: Clock) -> None:
    async with ScriptedCluster(topics={"t": 2}) as cluster:
        input_of(cluster)
        async with (
            producer_of(cluster) as producer,
            trikafka.open_consumer("in", **consumer_settings(cluster)) as consumer,
        ):
            ends: list[BaseException] = []

            async def first() -> None:
                try:
                    await trikafka.process(consumer, producer, Copying(producer, pause=5))
                except ProducerFencedError as error:
                    ends.append(error)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(first)
                await trio.sleep(1)
                async with producer_of(cluster):
                    pass
            assert len(ends) == 1
        assert cluster.committed("g", ("in", 0)) is None
        assert await committed(cluster) == []


@versions
@pytest.mark.parametrize("call", ["commit", "abort", "prepare", "detach"])
async def test_handler_must_not_end_its_transaction(
    call: str, version: int, autojump_clock: Clock
) -> None:
    """Its records would be committed without the offsets they were made of, and made again by the
    next call.
    """

    async def handler(batch: trikafka.RecordBatch, txn: trikafka.Transaction) -> None:
        await producer.send("t", b"made")
        await getattr(txn, call)()

    async with ScriptedCluster(topics={"t": 2}, transaction_version=version) as cluster:
        input_of(cluster)
        async with (
            producer_of(cluster) as producer,
            trikafka.open_consumer("in", **consumer_settings(cluster)) as consumer,
        ):
            with pytest.raises(
                trikafka.IllegalStateError,
                match=rf"^{call}\(\): a handler does not end its transaction",
            ):
                await trikafka.process(consumer, producer, handler)
            assert not any((await consumer.committed(consumer.assignment())).values())
            async with producer.transaction() as txn:
                await txn.commit()
        await until_closed(cluster)
        assert not await committed(cluster)
