"""``run_tasks`` with transactions in virtual time: exactly once, with timeouts and dead letters."""

from __future__ import annotations

import itertools
from collections import Counter
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import pytest
import trio
from tasking import Stuck, cluster_of, committed, consumer_of, producer_of, running, until
from trio.testing import MockClock as Clock

import trikafka
from trikafka import (
    Consumer,
    IllegalStateError,
    KafkaTimeoutError,
    Producer,
    Record,
    RecordBatch,
    RetryPolicy,
    TopicPartition,
)
from trikafka.error_codes import ErrorCode
from trikafka.errors import ProducerFencedError
from trikafka.testing import ScriptedCluster

COUNT = 40
EXPECTED = Counter({b"%d-%d" % (part, number): 1 for part in range(4) for number in range(COUNT)})


async def seen_of(cluster: ScriptedCluster, topic: str) -> list[Record]:
    """Return what a reader of committed records sees."""
    tps = [TopicPartition(topic, number) for number in range(2)]
    settings: dict[str, Any] = {
        "bootstrap_servers": cluster.bootstrap_servers,
        "dial": cluster.dial,
    }
    async with trikafka.open_consumer(
        **settings, isolation_level="read_committed", auto_offset_reset="earliest"
    ) as consumer:
        consumer.assign(tps)
        with trio.fail_after(600):
            found = [
                record
                async for batch in consumer.batches(until=await consumer.end_offsets(tps))
                for record in batch
            ]
    return found


@pytest.mark.parametrize("by", ["run_tasks", "process"])
async def test_commit_in_a_transaction_is_refused(autojump_clock: Clock, by: str) -> None:
    """The transaction may be aborted; the records before the offset would be lost."""

    async def handler(given: Any, txn: object = None) -> None:
        await consumer.commit()

    async with (
        cluster_of(1, records=5) as cluster,
        transacting(cluster) as producer,
        consumer_of(cluster) as consumer,
    ):
        run: Any = partial(trikafka.process, consumer, producer, handler)
        if by == "run_tasks":
            run = partial(trikafka.run_tasks, consumer, handler, producer=producer)
        with trio.fail_after(60), pytest.raises(IllegalStateError, match="the transaction commits"):
            await run()
        assert cluster.committed("g", ("t", 0)) is None
        await consumer.receive()
        await consumer.commit()  # outside of the run
        assert cluster.committed("g", ("t", 0)) is not None


async def test_start_may_commit_beside_a_transaction(autojump_clock: Clock) -> None:
    """The transaction of other partitions says nothing of the one that begins."""
    begun: list[int] = []

    async def prepare(tp: TopicPartition) -> None:
        if tp.partition == 1:
            await until(lambda: bool(begun))
            consumer.seek(tp, 3)
            await consumer.commit({tp: 3})
            begun.append(1)

    async def handler(record: Record) -> None:
        begun.append(record.partition)
        if record.partition == 0:
            await until(lambda: 1 in begun)

    async with (
        cluster_of(2, records=5) as cluster,
        transacting(cluster) as producer,
        consumer_of(cluster) as consumer,
        running(consumer, handler, producer=producer, prepare=prepare),
    ):
        await until(lambda: committed(cluster, 0) == 5)
        await until(lambda: committed(cluster, 1) == 5)
        assert begun.count(1) == 3


@pytest.mark.parametrize("what", ["commit", "transaction"])
async def test_mistake_in_transaction_is_no_dead_letter(autojump_clock: Clock, what: str) -> None:
    """The handler of the next record would meet it, too."""

    async def handler(record: Record) -> None:
        if what == "commit":
            await consumer.commit()
        async with producer.transaction():
            raise AssertionError("a producer has one transaction at a time")

    async with (
        cluster_of(1, records=5) as cluster,
        transacting(cluster) as producer,
        consumer_of(cluster) as consumer,
    ):
        cluster.create_topic("dead", 1)
        with trio.fail_after(60), pytest.raises(IllegalStateError, match="transaction"):
            await trikafka.run_tasks(consumer, handler, producer=producer, dead_letter="dead")
        assert not cluster.records("dead", 0)
        assert cluster.committed("g", ("t", 0)) is None


def transacting(cluster: ScriptedCluster, name: str = "x", **settings: Any) -> Any:
    return producer_of(cluster, transactional_id=name, **settings)


def input_cluster() -> Any:
    return cluster_of(4, topics={"out": 2, "dead": 2})


def fill(cluster: ScriptedCluster) -> None:
    for part in range(4):
        cluster.append(
            "t",
            part,
            [(b"k%d" % (number % 3), b"%d-%d" % (part, number)) for number in range(COUNT)],
        )


class Copying:
    """A handler that copies records. It fails as ``fail`` says, after it has sent something."""

    def __init__(self, producer: Producer, fail: Any = None, pause: float = 0.0) -> None:
        self.producer = producer
        self.fail = fail
        self.pause = pause
        self.calls = Counter[bytes | None]()

    async def __call__(self, record: Record) -> None:
        self.calls[record.value] += 1
        await self.producer.enqueue("out", record.value, partition=record.partition % 2)
        await trio.sleep(self.pause)
        if (
            self.fail is not None
            and (error := self.fail(record, self.calls[record.value])) is not None
        ):
            raise error


async def all_processed(cluster: ScriptedCluster) -> None:
    await until(
        lambda: all(
            (at := cluster.committed("g", ("t", part))) is not None and at.offset == COUNT
            for part in range(4)
        ),
        0.1,
    )


@pytest.mark.parametrize("concurrency", [1, 5])
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_each_record_is_copied_once(
    autojump_clock: Clock, protocol: str, concurrency: int
) -> None:
    async with input_cluster() as cluster:
        fill(cluster)
        async with (
            transacting(cluster) as producer,
            consumer_of(cluster, group_protocol=protocol, max_poll_records=7) as consumer,
        ):
            handler = Copying(producer, pause=0.05)
            async with running(consumer, handler, producer=producer, concurrency=concurrency):
                await all_processed(cluster)
        found = await seen_of(cluster, "out")
    assert Counter(record.value for record in found) == EXPECTED
    for part in range(4):
        for key in range(3):
            mine = [
                record.value for record in found if (record.value or b"").startswith(b"%d-" % part)
            ]
            expected = [b"%d-%d" % (part, number) for number in range(key, COUNT, 3)]
            assert [value for value in mine if value in expected] == expected


async def test_failed_transactions_of_tasks_are_repeated(autojump_clock: Clock) -> None:
    async with input_cluster() as cluster:
        fill(cluster)
        for api, code in (
            ("Produce", ErrorCode.UNKNOWN_SERVER_ERROR),
            ("EndTxn", ErrorCode.TRANSACTION_ABORTABLE),
            ("TxnOffsetCommit", ErrorCode.ILLEGAL_GENERATION),
        ):
            turn = itertools.count()

            def every_third(request: Any, turn: itertools.count[int] = turn) -> bool:
                return getattr(request, "committed", True) and next(turn) % 3 == 1

            cluster.fail(api, code, times=3, where=every_third)
        async with (
            transacting(cluster) as producer,
            consumer_of(cluster, max_poll_records=7) as consumer,
        ):
            async with running(consumer, Copying(producer), producer=producer):
                await all_processed(cluster)
        assert Counter(record.value for record in await seen_of(cluster, "out")) == EXPECTED


async def test_dead_letters_join_the_transaction(autojump_clock: Clock) -> None:
    """Records that a failed handler had sent are never seen.

    Its input is in the dead-letter topic once.
    """
    bad = {b"%d-%d" % (part, number) for part in range(4) for number in (3, 4, 17)}
    async with input_cluster() as cluster:
        fill(cluster)
        async with transacting(cluster) as producer, consumer_of(cluster) as consumer:
            handler = Copying(
                producer, lambda record, calls: ValueError("bad") if record.value in bad else None
            )
            policy = RetryPolicy(ValueError, attempts=2, backoff_ms=10)
            async with running(
                consumer, handler, producer=producer, dead_letter="dead", retry=policy
            ):
                await all_processed(cluster)
        copied = Counter(record.value for record in await seen_of(cluster, "out"))
        dead = await seen_of(cluster, "dead")
    assert copied == Counter(value for value in EXPECTED if value not in bad)
    assert Counter(record.value for record in dead) == Counter(bad)
    assert {dict(record.headers)["trikafka.attempts"] for record in dead} == {b"2"}


async def test_many_dead_letters_cost_one_transaction(autojump_clock: Clock) -> None:
    async with input_cluster() as cluster:
        fill(cluster)
        async with transacting(cluster) as producer, consumer_of(cluster) as consumer:
            handler = Copying(
                producer, lambda record, calls: ValueError("bad") if record.offset % 2 else None
            )
            async with running(consumer, handler, producer=producer, dead_letter="dead"):
                await all_processed(cluster)
        assert len(await seen_of(cluster, "out")) == len(await seen_of(cluster, "dead")) == 80
        assert max(handler.calls.values()) <= 4


async def test_failing_batch_is_a_dead_letter_whole(autojump_clock: Clock) -> None:
    async with input_cluster() as cluster:
        fill(cluster)
        async with (
            transacting(cluster) as producer,
            consumer_of(cluster, max_poll_records=8) as consumer,
        ):

            async def handler(batch: RecordBatch) -> None:
                for record in batch:
                    await producer.enqueue("out", record.value, partition=0)
                if b"0-10" in [record.value for record in batch]:
                    raise ValueError

            async with running(
                consumer, handler, batches=True, producer=producer, dead_letter="dead"
            ):
                await all_processed(cluster)
        dead = [record.value for record in await seen_of(cluster, "dead")]
        copied = [record.value for record in await seen_of(cluster, "out")]
    assert b"0-10" in dead
    assert Counter(dead + copied) == EXPECTED


async def test_timed_out_task_is_skipped(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    async with input_cluster() as cluster:
        fill(cluster)
        async with transacting(cluster) as producer, consumer_of(cluster) as consumer:

            def fail(record: Record, calls: int) -> Exception | None:
                return (
                    KafkaTimeoutError("send", 1)
                    if record.partition == 2 and record.offset == 0 and calls < 6
                    else None
                )

            handler = Copying(producer, fail)
            async with running(consumer, handler, producer=producer):
                await until(
                    lambda: all(
                        cluster.committed("g", ("t", part)) is not None for part in (0, 1, 3)
                    )
                )
                assert cluster.committed("g", ("t", 2)) is None
                await all_processed(cluster)
            assert not consumer.paused()
        assert Counter(record.value for record in await seen_of(cluster, "out")) == EXPECTED
    assert (
        len(
            [
                line
                for line in caplog.messages
                if "the task of t-2 is skipped" in line and "send" in line
            ]
        )
        == 5
    )


@pytest.mark.parametrize(("task_timeout_ms", "calls"), [(0, 1), (1, 2), (1_000, 4)])
async def test_task_timeout_bounds_transactional_calls(
    autojump_clock: Clock, task_timeout_ms: float, calls: int
) -> None:
    """The last transaction is aborted, and the consumer is at its beginning.

    A round begins each half second, as long as a fetch at the end of the log waits, which a seek
    waits for.
    """
    async with cluster_of(1, records=3, topics={"out": 2}) as cluster:
        async with (
            transacting(cluster, retry_backoff_ms=0) as producer,
            consumer_of(cluster, retry_backoff_ms=0) as consumer,
        ):
            handler = Stuck(0)
            with pytest.raises(KafkaTimeoutError) as raised, trio.fail_after(100):
                await trikafka.run_tasks(
                    consumer, handler, producer=producer, task_timeout_ms=task_timeout_ms
                )
            assert len(handler.calls) == calls
            assert raised.value.__cause__ is (handler.errors[0] if calls > 1 else None)
            copied = Copying(producer)
            async with running(consumer, copied, producer=producer):
                await until(
                    lambda: (at := cluster.committed("g", ("t", 0))) is not None and at.offset == 3
                )
        assert [record.value for record in await seen_of(cluster, "out")] == [b"0", b"1", b"2"]


async def test_long_transaction_is_split(autojump_clock: Clock) -> None:
    """A record takes a second, there are 160.

    No transaction is open much longer than auto_commit_interval_ms.
    """
    async with input_cluster() as cluster:
        fill(cluster)
        async with (
            transacting(cluster, transaction_timeout_ms=20_000) as producer,
            consumer_of(cluster) as consumer,
        ):
            handler = Copying(producer, pause=1)
            async with running(consumer, handler, producer=producer):
                await all_processed(cluster)
            assert max(handler.calls.values()) == 1
        assert Counter(record.value for record in await seen_of(cluster, "out")) == EXPECTED
        assert 7 <= len(cluster.requests("EndTxn")) <= 10


async def test_prepare_comes_before_the_first_record(autojump_clock: Clock) -> None:
    tries = 0

    async def prepare(tp: TopicPartition) -> None:
        nonlocal tries
        if tp.partition == 1:
            tries += 1
            await trio.sleep(3)
            if tries < 3:
                raise KafkaTimeoutError("end_offsets", 3)
            consumer.seek(tp, 10)

    async with input_cluster() as cluster:
        fill(cluster)
        async with transacting(cluster) as producer, consumer_of(cluster) as consumer:
            handler = Copying(producer)
            async with running(consumer, handler, producer=producer, prepare=prepare):
                await until(lambda: sum(handler.calls.values()) == 3 * COUNT)
                assert tries < 3
                await all_processed(cluster)
        assert len(await seen_of(cluster, "out")) == 4 * COUNT - 10


async def test_error_without_dead_letter_topic_aborts(autojump_clock: Clock) -> None:
    async with input_cluster() as cluster:
        fill(cluster)
        async with transacting(cluster) as producer, consumer_of(cluster) as consumer:
            handler = Copying(
                producer,
                lambda record, calls: (
                    KeyError("x") if record.value == b"1-5" and calls == 1 else None
                ),
            )
            with pytest.raises(KeyError):
                await trikafka.run_tasks(consumer, handler, producer=producer)
            async with running(consumer, handler, producer=producer):
                await all_processed(cluster)
        assert Counter(record.value for record in await seen_of(cluster, "out")) == EXPECTED


async def test_run_may_be_repeated_after_a_cancel(autojump_clock: Clock) -> None:
    async with input_cluster() as cluster:
        fill(cluster)
        cluster.delay("EndTxn", 0.2, times=None)
        async with (
            transacting(cluster) as producer,
            consumer_of(cluster, max_poll_records=7) as consumer,
        ):
            handler = Copying(producer, pause=0.01)
            with trio.fail_after(600):
                for tenth in range(3, 1000):
                    with trio.move_on_after(tenth / 100):
                        await trikafka.run_tasks(consumer, handler, producer=producer)
                    done = [cluster.committed("g", ("t", part)) for part in range(4)]
                    if all(at is not None and at.offset == COUNT for at in done):
                        break
        assert Counter(record.value for record in await seen_of(cluster, "out")) == EXPECTED


async def test_rebalanced_tasks_copy_each_record_once(autojump_clock: Clock) -> None:
    async with input_cluster() as cluster:
        fill(cluster)

        async def member(name: str, life: float) -> None:
            with trio.move_on_after(life):
                async with AsyncExitStack() as stack:
                    producer = await stack.enter_async_context(transacting(cluster, name))
                    consumer: Consumer = await stack.enter_async_context(
                        consumer_of(cluster, session_timeout_ms=6_000, max_poll_records=7)
                    )
                    handler = Copying(producer, pause=0.05)
                    await trikafka.run_tasks(consumer, handler, producer=producer, concurrency=2)

        with trio.fail_after(900):
            async with trio.open_nursery() as nursery:
                for number in range(6):
                    nursery.start_soon(member, f"m{number}", 4.0 + number)
                    await trio.sleep(2.5)
            await member("last", 120)
        assert Counter(record.value for record in await seen_of(cluster, "out")) == EXPECTED


async def test_second_instance_fences_the_first_run(autojump_clock: Clock) -> None:
    async with input_cluster() as cluster:
        fill(cluster)
        async with transacting(cluster) as producer, consumer_of(cluster) as consumer:
            ends: list[BaseException] = []

            async def first() -> None:
                try:
                    await trikafka.run_tasks(
                        consumer, Copying(producer, pause=5), producer=producer, dead_letter="dead"
                    )
                except ProducerFencedError as error:
                    ends.append(error)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(first)
                await trio.sleep(1)
                async with transacting(cluster):
                    pass
            assert len(ends) == 1
        assert await seen_of(cluster, "dead") == []


async def test_undecided_commit_is_settled_by_next_run(
    autojump_clock: Clock,
) -> None:
    """It counts as a timeout of all tasks."""
    settings: dict[str, Any] = {
        "default_api_timeout_ms": 2_000,
        "request_timeout_ms": 1_000,
        "close_timeout_ms": 1_000,
    }
    async with input_cluster() as cluster:
        fill(cluster)
        async with transacting(cluster, **settings) as producer, consumer_of(cluster) as consumer:
            rule = cluster.silence("EndTxn", after=True, times=6)
            with pytest.raises(KafkaTimeoutError) as raised, trio.fail_after(100):
                await trikafka.run_tasks(
                    consumer, Copying(producer), producer=producer, task_timeout_ms=1_000
                )
            assert isinstance(raised.value.__cause__, KafkaTimeoutError)
            del rule
            with trio.fail_after(600):
                while True:
                    try:
                        async with running(consumer, Copying(producer), producer=producer):
                            await all_processed(cluster)
                        break
                    except* KafkaTimeoutError:
                        pass
        assert Counter(record.value for record in await seen_of(cluster, "out")) == EXPECTED
