"""Cancellation from asyncio: nothing is lost, nothing stays behind, and errors are trikafka's."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
import trio
from hosting import (
    LOOPS,
    T0,
    cluster_of,
    consumer_of,
    cut_off,
    member_of,
    nothing_left,
    producer_of,
    run,
    until,
)

import trikafka
import trikafka.aio
from trikafka import TopicPartition

PARTITIONS = 3
#: Records that wait to be read, at most about: a machine under load must not read ever more.
BACKLOG = 10


class Reader:
    """A consumer's calls, cut off at random; keeps what they returned, by partition."""

    def __init__(self, consumer: trikafka.aio.Consumer, dice: random.Random) -> None:
        self._consumer = consumer
        self._dice = dice
        self.seen: dict[TopicPartition, list[int]] = {}
        self.cut = 0

    @property
    def count(self) -> int:
        """The number of records seen."""
        return sum(map(len, self.seen.values()))

    async def step(self) -> None:
        way = self._dice.choice([self._record, self._record, self._batch, self._commit])
        _, error = await cut_off(way(), self._dice.choice([0, 1, 1, 2, 3, 5, 8, 20]))
        if error is not None:
            assert isinstance(error, asyncio.CancelledError), repr(error)
            self.cut += 1

    async def _record(self) -> None:
        record = await self._consumer.receive()
        self._keep(TopicPartition(record.topic, record.partition), [record.offset])

    async def _batch(self) -> None:
        batch = await self._consumer.receive_batch(timeout=0.05)
        if batch:
            self._keep(TopicPartition(batch.topic, batch.partition), list(batch.offsets))

    async def _commit(self) -> None:
        await self._consumer.commit(timeout=240)

    def _keep(self, partition: TopicPartition, offsets: list[int]) -> None:
        self.seen.setdefault(partition, []).extend(offsets)


@pytest.mark.parametrize("kind", LOOPS)
def test_random_cancels_lose_no_record(kind: str, pytestconfig: pytest.Config) -> None:
    dice = random.Random(20261124)
    wanted = pytestconfig.getoption("--aio-cancels") // 2 // len(LOOPS)

    async def main() -> None:
        written = 0
        async with (
            cluster_of(PARTITIONS) as cluster,
            member_of(cluster, enable_auto_commit=False) as consumer,
        ):
            cluster.append("t", 0, [b"first"])
            written += 1
            reader = Reader(consumer, dice)
            await reader._record()  # a commit needs a member that has joined
            while reader.cut < wanted:
                if written - reader.count < BACKLOG:
                    values = [b"x"] * dice.randrange(1, 5)
                    cluster.append("t", dice.randrange(PARTITIONS), values)
                    written += len(values)
                await reader.step()
            while reader.count < written:
                await reader._record()
            ends = {tp: cluster.partition(*tp).end for tp in reader.seen}
            assert reader.seen == {tp: list(range(end)) for tp, end in ends.items()}
            await consumer.commit()
            assert {tp: cluster.committed("g", tp).offset for tp in ends} == ends

    with nothing_left(kind):
        run(main, kind)


@pytest.mark.parametrize("kind", LOOPS)
def test_random_cancels_double_no_send(kind: str, pytestconfig: pytest.Config) -> None:
    dice = random.Random(20261125)
    wanted = pytestconfig.getoption("--aio-cancels") // 2 // len(LOOPS)

    async def main() -> None:
        acked: dict[bytes, int | None] = {}
        cut = number = 0

        async def send(producer: trikafka.aio.Producer, value: bytes) -> None:
            nonlocal cut
            way = dice.choice([send_one, send_one, enqueue_one, flush])
            metadata, error = await cut_off(
                way(producer, value), dice.choice([0, 1, 2, 3, 5, 8, 13])
            )
            if error is None:
                if metadata is not None:
                    acked[value] = metadata.offset
            else:
                assert isinstance(error, asyncio.CancelledError), repr(error)
                cut += 1

        async with cluster_of(1) as cluster, producer_of(cluster) as producer:
            while cut < wanted:
                async with asyncio.TaskGroup() as tasks:
                    for _ in range(20):
                        tasks.create_task(send(producer, b"%d" % number))
                        number += 1
            await producer.flush()
            written = [record.value for record in cluster.records("t", 0)]
            assert len(written) == len(set(written))
            assert acked
            assert all(written[offset] == value for value, offset in acked.items() if offset)

    with nothing_left(kind):
        run(main, kind)


async def send_one(producer: trikafka.aio.Producer, value: bytes) -> trikafka.RecordMetadata:
    return await producer.send("t", value)


async def enqueue_one(producer: trikafka.aio.Producer, value: bytes) -> trikafka.RecordMetadata:
    return await (await producer.enqueue("t", value)).wait()


async def flush(producer: trikafka.aio.Producer, value: bytes) -> None:
    await producer.flush()


@pytest.mark.parametrize("turns", range(40))
def test_cancelled_openings_leave_nothing(turns: int) -> None:
    async def main() -> None:
        async with cluster_of(1, records=1) as cluster:

            async def use() -> None:
                async with member_of(cluster) as consumer:
                    await consumer.receive()
                    await asyncio.sleep(3600)

            _, error = await cut_off(use(), turns * turns // 4)
            assert isinstance(error, asyncio.CancelledError)
            await until(lambda: cluster.connections() == 0)

    with nothing_left():
        run(main)


def test_asyncio_timeout_cuts_a_receive() -> None:
    async def main() -> None:
        async with cluster_of(1) as cluster, member_of(cluster) as consumer:
            with pytest.raises(TimeoutError) as caught:
                async with asyncio.timeout(0.05):
                    await consumer.receive()
            assert type(caught.value) is asyncio.TimeoutError
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(consumer.receive(), 0.05)
            cluster.append("t", 0, [b"late"])
            assert (await consumer.receive()).value == b"late"

    run(main)


def test_cancel_waits_for_the_trio_call() -> None:
    """A listener that cleans up holds the cancelled receive until it has ended."""

    async def main() -> None:
        steps: list[str] = []

        class Slow(trikafka.RebalanceListener):
            async def on_partitions_assigned(self, partitions: object) -> None:
                steps.append("begun")
                try:
                    await asyncio.sleep(3600)
                finally:
                    await asyncio.sleep(0.02)
                    steps.append("cleaned")

        async with cluster_of(1) as cluster, consumer_of(cluster, group_id="g") as consumer:
            consumer.subscribe(["t"], Slow())
            task = asyncio.create_task(consumer.receive())
            await until(lambda: steps)
            task.cancel()
            await asyncio.sleep(0)
            task.cancel()  # a second one waits, too
            with pytest.raises(asyncio.CancelledError):
                await task
            assert steps == ["begun", "cleaned"]
            consumer.subscribe(["t"])

    with nothing_left():
        run(main)


def test_timeouts_of_calls_are_trikafkas() -> None:
    async def main() -> None:
        async with cluster_of(1) as cluster, consumer_of(cluster) as consumer:
            cluster.silence("ListOffsets")
            with pytest.raises(trikafka.KafkaTimeoutError, match="end_offsets") as caught:
                await consumer.end_offsets([T0], timeout=0.05)
            assert isinstance(caught.value, trio.TooSlowError)

    run(main)


def test_close_ends_calls_of_other_tasks() -> None:
    async def main() -> None:
        async with cluster_of(1) as cluster:
            async with member_of(cluster) as consumer:
                task = asyncio.create_task(consumer.receive())
                await until(lambda: consumer.assignment())
            with pytest.raises(trio.ClosedResourceError):
                await task
            with pytest.raises(trio.ClosedResourceError):
                await consumer.receive()

    with nothing_left():
        run(main)


def test_body_error_comes_out_as_it_is() -> None:
    async def main() -> None:
        async with cluster_of(1) as cluster:
            error = KeyError("mine")
            with pytest.raises(KeyError) as caught:
                async with producer_of(cluster):
                    raise error
            assert caught.value is error
            assert error.__traceback__ is not None
            frames = [frame.name for frame in caught.traceback]
            assert frames == ["main"]

    run(main)


def test_failed_client_cancels_its_body() -> None:
    async def main() -> None:
        class Broken(Exception):
            pass

        async with cluster_of(1) as cluster:
            kept: list[trikafka.aio.Producer] = []

            async def use() -> None:
                async with producer_of(cluster) as producer:
                    kept.append(producer)
                    fail(producer, Broken("broken"))
                    await asyncio.sleep(3600)

            with pytest.raises(trikafka.ClientFailedError) as caught:
                await use()
            assert isinstance(caught.value.__cause__, Broken)
            task = asyncio.current_task()
            assert task is not None
            assert task.cancelling() == 0
            with pytest.raises(trikafka.ClientFailedError):
                await kept[0].send("t", b"late")
            health = kept[0].health()
            assert not health.ok
            assert "the producer failed in the background: broken" in health.reasons

    with nothing_left():
        run(main)


@pytest.mark.parametrize("call", ["send", "wait"])
def test_failure_after_a_cancel_is_logged(call: str, caplog: pytest.LogCaptureFixture) -> None:
    """As on Trio: no task is left that could raise it."""

    async def main() -> None:
        async with cluster_of(1) as cluster, producer_of(cluster) as producer:
            await producer.send("t", b"0")
            cluster.fail("Produce", trikafka.ErrorCode.TOPIC_AUTHORIZATION_FAILED)
            work = producer.send("t", b"1")
            if call == "wait":
                work.close()
                work = (await producer.enqueue("t", b"1")).wait()
            _, error = await cut_off(work, 1)
            assert isinstance(error, asyncio.CancelledError)
            await until(lambda: "1 record for t-0 was not delivered" in caplog.text)

    run(main)


def test_failure_does_not_cancel_what_follows() -> None:
    """The body ends in the turn in which its client fails: the cancellation must not come later."""

    async def main() -> None:
        async with cluster_of(1) as cluster:

            async def use() -> None:
                async with producer_of(cluster) as producer:
                    fail(producer, RuntimeError("broken"))
                    await until(lambda: producer._failure)

            with pytest.raises(trikafka.ClientFailedError):
                await use()
            for _ in range(5):
                await asyncio.sleep(0)

    with nothing_left():
        run(main)


def fail(producer: trikafka.aio.Producer, error: Exception) -> None:
    """Let a background task of the producer fail."""

    async def task() -> Any:
        raise error

    producer._client._service.start_soon(task)
    producer._guest.wake()


def test_failure_and_a_cancel_are_a_cancel() -> None:
    async def main() -> None:
        async with cluster_of(1) as cluster:

            async def use() -> None:
                async with producer_of(cluster) as producer:
                    fail(producer, RuntimeError("broken"))
                    task = asyncio.current_task()
                    assert task is not None
                    task.cancel()
                    await asyncio.sleep(3600)

            with pytest.raises(asyncio.CancelledError):
                await asyncio.create_task(use())

    with nothing_left():
        run(main)


def test_cut_transactions_are_not_left_open() -> None:
    """A cancellation meets the answer of the coordinator at the beginning of the block."""

    async def main() -> None:
        async with (
            cluster_of(1) as cluster,
            producer_of(cluster, transactional_id="x") as producer,
        ):

            async def begin() -> None:
                await producer.transaction().__aenter__()

            for turns in range(100):
                _, error = await cut_off(begin(), turns)
                if error is None:
                    break
                assert isinstance(error, asyncio.CancelledError)
                async with producer.transaction():
                    await producer.send("t", b"x")
            assert error is None
            assert turns > 1

    run(main)


@pytest.mark.parametrize("outcome", ["commit", "cut commit", "abort"])
def test_cut_detach_leaves_the_end_to_the_block(outcome: str) -> None:
    async def once(producer: trikafka.aio.Producer, turns: int) -> BaseException | None:
        found: BaseException | None = None
        try:
            async with producer.transaction() as txn:
                await producer.send("t", b"x")
                _, found = await cut_off(txn.detach(), turns)
                if found is not None and outcome == "cut commit":
                    await cut_off(txn.commit(), 1)
                if found is not None and outcome == "abort":
                    raise KeyError
        except KeyError:
            pass
        return found

    async def main() -> None:
        cut = 0
        for turns in range(100):
            async with (
                cluster_of(1) as cluster,
                producer_of(cluster, transactional_id="x") as producer,
            ):
                if (error := await once(producer, turns)) is None:
                    break
                assert isinstance(error, asyncio.CancelledError)
                cut += 1
                async with consumer_of(cluster, isolation_level="read_committed") as reader:
                    reader.assign([T0])
                    ends = await reader.end_offsets([T0])
                    assert ends[T0] == 2  # the record and the marker
                    read = [one.value async for batch in reader.batches(ends) for one in batch]
                assert read == ([] if outcome == "abort" else [b"x"])
        assert error is None
        assert cut > 1

    run(main)


def test_failed_client_ends_its_transaction() -> None:
    """The guest has ended with its last client when the block of the transaction is left."""

    async def main() -> None:
        class Broken(Exception):
            pass

        async def use() -> None:
            cluster = cluster_of(1)
            inside = await cluster.__aenter__()
            async with producer_of(inside, transactional_id="x") as producer:
                async with producer.transaction():
                    await producer.send("t", b"x")
                    await asyncio.create_task(cluster.__aexit__(None, None, None))
                    fail(producer, Broken())
                    await asyncio.sleep(3600)

        with pytest.raises(trikafka.ClientFailedError) as caught:
            await asyncio.create_task(use())
        assert isinstance(caught.value.__cause__, Broken)

    with nothing_left():
        run(main)


@pytest.mark.parametrize("ends", ["the guest", "the producer"])
def test_transaction_lets_the_cancellation_out(ends: str) -> None:
    """A failed client cancels its body. The transaction, which ended with it, has no other error."""

    async def main() -> None:
        seen: list[BaseException] = []

        async def use(cluster: Any) -> None:
            inside = await cluster.__aenter__()
            async with producer_of(inside, transactional_id="x") as producer:
                try:
                    async with producer.transaction():
                        await producer.send("t", b"x")
                        if ends == "the guest":
                            await asyncio.create_task(cluster.__aexit__(None, None, None))
                        fail(producer, RuntimeError("broken"))
                        await asyncio.sleep(3600)
                except BaseException as error:
                    seen.append(error)
                    raise

        cluster = cluster_of(1)
        with pytest.raises(trikafka.ClientFailedError):
            await asyncio.create_task(use(cluster))
        if ends == "the producer":
            await cluster.__aexit__(None, None, None)
        assert [type(error) for error in seen] == [asyncio.CancelledError]

    with nothing_left():
        run(main)


@pytest.mark.parametrize("timeout", [-1, float("nan"), True, "1"])
def test_wrong_timeouts_of_a_receive_are_refused(timeout: Any) -> None:
    async def main() -> None:
        async with cluster_of(1) as cluster, consumer_of(cluster) as consumer:
            consumer.assign([T0])
            with pytest.raises(trikafka.ConfigurationError, match="timeout"):
                await consumer.receive_batch(timeout)

    run(main)


def test_close_elsewhere_keeps_the_owners_cancel() -> None:
    """The task that opened a failed client is cancelled; another task leaves the block."""

    async def main() -> None:
        async with cluster_of(1) as cluster:
            opening = producer_of(cluster)
            opened, closed = asyncio.Event(), asyncio.Event()

            async def own() -> None:
                await opening.__aenter__()
                opened.set()
                try:
                    await asyncio.sleep(3600)
                finally:
                    await closed.wait()

            owner = asyncio.create_task(own())
            await opened.wait()
            fail(opening._client, RuntimeError("broken"))
            await until(owner.cancelling)
            with pytest.raises(trikafka.ClientFailedError):
                await opening.__aexit__(None, None, None)
            assert owner.cancelling() == 1
            closed.set()
            await asyncio.wait([owner])
            assert owner.cancelled()

    with nothing_left():
        run(main)
