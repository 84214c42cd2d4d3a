"""A transaction that has failed, or is aborted: what waits for it is told at once, and other tasks run meanwhile."""

# ruff: noqa: PT012 (it is a whole block of a transaction that raises)

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import trio
from transacting import committed, transacting, until_closed
from trio.testing import MockClock as Clock

from trikafka import GroupMetadata, Producer, TopicPartition
from trikafka.error_codes import ErrorCode
from trikafka.errors import ArrowDeliveryError, BrokerResponseError, TransactionAbortableError, TransactionFatalError

both = pytest.mark.parametrize("version", [1, 2])


class Own(Exception):
    """Of the program."""


class Caller:
    """A call in a task of its own: what it raised, and when."""

    def __init__(self, nursery: trio.Nursery, call: Callable[[], Awaitable[object]]) -> None:
        self.error: Exception | None = None
        self.at: float | None = None
        nursery.start_soon(self._run, call)

    async def _run(self, call: Callable[[], Awaitable[object]]) -> None:
        try:
            await call()
        except Exception as error:
            self.error = error
        self.at = trio.current_time()


async def test_a_send_of_another_task_is_told_at_once_where_its_partition_is_not_added(autojump_clock: Clock) -> None:
    """Version 1: the coordinator does not know the partition yet, and will not be told any more."""
    async with transacting(1) as (cluster, producer), trio.open_nursery() as nursery:
        with pytest.raises(TransactionAbortableError):
            async with producer.transaction():
                await producer.send("t", b"x", partition=0)
                cluster.fail("Produce", ErrorCode.INVALID_RECORD)
                cluster.fail("AddPartitionsToTxn", ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, times=None)
                other = Caller(nursery, lambda: producer.send("t", b"y", partition=1))
                await trio.sleep(0.01)
                with pytest.raises(BrokerResponseError):
                    await producer.send("t", b"bad", partition=0)
                failed = trio.current_time()
                await trio.testing.wait_all_tasks_blocked()
                assert isinstance(other.error, TransactionAbortableError)
                assert isinstance(other.error.__cause__, BrokerResponseError)
                assert other.at == failed
                await trio.sleep(5)
        await until_closed(cluster)
        cluster._script._rules.clear()
        assert await committed(cluster) == []


@both
async def test_who_waits_for_room_is_told_at_once(version: int, autojump_clock: Clock) -> None:
    async with transacting(version, nodes=2, buffer_memory=1_000) as (cluster, producer), trio.open_nursery() as nursery:
        near, far = sorted((0, 1), key=lambda part: cluster.partition("t", part).leader or 0)
        with pytest.raises(TransactionAbortableError):
            async with producer.transaction():
                await producer.send("t", b"x", partition=far)
                await producer.send("t", b"x", partition=near)
                cluster.freeze(1)
                cluster.fail("Produce", ErrorCode.INVALID_RECORD)
                nursery.start_soon(failing, producer, near)
                producer.send_nowait("t", b"z" * 600, partition=far)
                others = [Caller(nursery, lambda: producer.send("t", b"y" * 300, partition=near)) for _ in range(2)]
                await trio.sleep(0.1)
                assert [type(other.error) for other in others] == [TransactionAbortableError] * 2
                cluster.thaw(1)


async def failing(producer: Producer, partition: int) -> None:
    with pytest.raises(BrokerResponseError):
        await producer.send("t", b"bad", partition=partition)


@both
async def test_what_is_sent_already_has_its_outcome_from_the_broker(version: int, autojump_clock: Clock) -> None:
    async with transacting(version, nodes=2) as (cluster, producer), trio.open_nursery() as nursery:
        near, far = sorted((0, 1), key=lambda part: cluster.partition("t", part).leader or 0)
        with pytest.raises(TransactionAbortableError):
            async with producer.transaction():
                for part in (near, far):
                    await producer.send("t", b"x", partition=part)
                cluster.delay("Produce", 1, node=1)
                slow = Caller(nursery, lambda: producer.send("t", b"slow", partition=far))
                await trio.sleep(0.1)
                cluster.fail("Produce", ErrorCode.INVALID_RECORD, node=0)
                await failing(producer, near)
                await trio.sleep(2)
                assert slow.error is None
                assert slow.at is not None


@both
async def test_a_producer_that_is_fatally_refused(version: int, autojump_clock: Clock) -> None:
    """What waits has the error that says so, though its partition cannot be written to."""
    async with transacting(version) as (cluster, producer):
        with pytest.raises(TransactionFatalError):
            async with producer.transaction() as txn:
                await producer.send("t", b"x", partition=0)
                cluster.freeze(0)
                acks = [producer.send_nowait("t", b"y", partition=part) for part in (0, 1)]
                cluster.thaw(0)
                for api in ("AddOffsetsToTxn", "TxnOffsetCommit"):
                    cluster.fail(api, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, times=None)
                cluster.silence("Produce")
                await txn.send_offsets({TopicPartition("t", 0): 1}, GroupMetadata("g"))
        for ack in acks:
            with trio.fail_after(0.1), pytest.raises(TransactionFatalError):
                await ack.wait()


# --- many batches -----------------------------------------------------------------------------------------------------


@both
@pytest.mark.parametrize("how", ["abort", "failure", "leave"])
async def test_others_run_while_many_batches_are_dropped(how: str, version: int, autojump_clock: Clock) -> None:
    """Each record is a batch here. (Counted, not timed: that would be a matter of chance.)"""
    count = 5_000
    settings = {"batch_size": 0, "max_in_flight_requests_per_connection": 1, "close_timeout_ms": 1_000}
    async with transacting(version, nodes=2, **settings) as (cluster, producer):
        near, far = sorted((0, 1), key=lambda part: cluster.partition("t", part).leader or 0)
        with pytest.raises(Own):
            async with producer.transaction() as txn:
                for part in (near, far):
                    await producer.send("t", b"x", partition=part)
                silence = cluster.silence("Produce", node=1)
                acks = [await producer.enqueue("t", b"%d" % number, partition=far) for number in range(count)]
                assert producer.statistics().batches_waiting >= count - 1
                if how == "abort":
                    assert await most_at_a_time(producer, txn.abort) <= 2_000
                elif how == "failure":
                    cluster.fail("Produce", ErrorCode.INVALID_RECORD, node=0)
                    await failing(producer, near)
                    assert await most_at_a_time(producer, acks[-1].wait) <= 2_000
                silence.remove()
                raise Own
        for ack in (acks[1], acks[-1]):
            with trio.fail_after(0.1), pytest.raises(TransactionAbortableError):
                await ack.wait()
        cluster.disconnect(1)
        async with producer.transaction():
            await producer.send("t", b"next", partition=far)
        await until_closed(cluster)
        assert await committed(cluster) == [b"next"]
        assert producer.statistics().buffer_used == 0


async def most_at_a_time(producer: Producer, call: Callable[[], Awaitable[object]]) -> int:
    """How many batches get their outcome between two turns of a task, while another makes this call.

    A step is 1,000, and two may come between, for Trio shuffles.
    """
    left, most = producer.statistics().batches_waiting, 0
    async with trio.open_nursery() as nursery:
        caller = Caller(nursery, call)
        while caller.at is None and left > 1:
            await trio.lowlevel.checkpoint()
            before, left = left, producer.statistics().batches_waiting
            most = max(most, before - left)
    return most


# --- whether it may be written ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.INVALID_TXN_STATE])
@pytest.mark.parametrize("lost", [False, True])
async def test_what_a_broker_refuses_is_not_written(code: ErrorCode, lost: bool, autojump_clock: Clock) -> None:
    """Unless an earlier attempt had no response."""
    pa = pytest.importorskip("pyarrow")
    async with transacting(2) as (cluster, producer):
        with pytest.raises(TransactionAbortableError):
            async with producer.transaction():
                await producer.send("t", b"x", partition=0)
                if lost:
                    cluster.drop("Produce")
                cluster.fail("Produce", code)
                table = pa.table({"value": [b"a", b"b"], "partition": [0, 0]})
                with pytest.raises(ArrowDeliveryError) as caught:
                    await producer.send_arrow("t", table)
                assert (caught.value.failed, caught.value.unknown) == ((0, 2) if lost else (2, 0))


# --- after the close --------------------------------------------------------------------------------------------------


@both
async def test_a_transaction_of_a_producer_that_is_closed_does_not_begin(version: int, autojump_clock: Clock) -> None:
    async with transacting(version) as (_, producer):
        made = producer.transaction()
        await producer.aclose()
        with pytest.raises(trio.ClosedResourceError, match="closed"):
            async with made:
                raise AssertionError("it began")
        with pytest.raises(trio.ClosedResourceError, match="closed"):
            producer.transaction()


@both
async def test_one_that_waits_to_begin_while_the_producer_closes(version: int, autojump_clock: Clock) -> None:
    async with transacting(version, close_timeout_ms=1_000) as (cluster, producer), trio.open_nursery() as nursery:
        with pytest.raises(Own):
            async with producer.transaction():
                await producer.send("t", b"x", partition=0)
                cluster.delay("EndTxn", 12)
                raise Own
        waits = Caller(nursery, lambda: begun(producer))
        await trio.sleep(1)
        assert waits.at is None
        await producer.aclose(timeout=20)
        await trio.testing.wait_all_tasks_blocked()
        assert type(waits.error) is trio.ClosedResourceError


async def begun(producer: Producer) -> None:
    async with producer.transaction():
        pass
