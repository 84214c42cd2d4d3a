"""A transaction that has failed or is aborted: waiting calls fail at once, and other tasks run
meanwhile.
"""

# ruff: noqa: PT012 (it is a whole block of a transaction that raises)

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import trio
from transacting import committed, producer_of, transacting, until_closed
from trio.testing import MockClock as Clock

from trikafka import GroupMetadata, Producer, TopicPartition
from trikafka.error_codes import ErrorCode
from trikafka.errors import (
    ArrowDeliveryError,
    AuthorizationError,
    BrokerResponseError,
    ProducerFencedError,
    TransactionAbortableError,
    TransactionFatalError,
)
from trikafka.testing import ScriptedCluster

both = pytest.mark.parametrize("version", [1, 2])


class Own(Exception):
    """An exception of the program."""


class Caller:
    """A call in a task of its own, with its error and the time of its end."""

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


async def test_waiting_send_fails_with_the_transaction(
    autojump_clock: Clock,
) -> None:
    """Version 1: the partition has not been added yet, and will not be any more."""
    async with transacting(1) as (cluster, producer), trio.open_nursery() as nursery:
        with pytest.raises(TransactionAbortableError):
            async with producer.transaction():
                await producer.send("t", b"x", partition=0)
                cluster.fail("Produce", ErrorCode.INVALID_RECORD)
                cluster.fail(
                    "AddPartitionsToTxn", ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, times=None
                )
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
async def test_waiter_for_room_fails_at_once(version: int, autojump_clock: Clock) -> None:
    async with (
        transacting(version, nodes=2, buffer_memory=1_000) as (cluster, producer),
        trio.open_nursery() as nursery,
    ):
        near, far = sorted((0, 1), key=lambda part: cluster.partition("t", part).leader or 0)
        with pytest.raises(TransactionAbortableError):
            async with producer.transaction():
                await producer.send("t", b"x", partition=far)
                await producer.send("t", b"x", partition=near)
                cluster.freeze(1)
                cluster.fail("Produce", ErrorCode.INVALID_RECORD)
                nursery.start_soon(failing, producer, near)
                producer.send_nowait("t", b"z" * 600, partition=far)
                others = [
                    Caller(nursery, lambda: producer.send("t", b"y" * 300, partition=near))
                    for _ in range(2)
                ]
                await trio.sleep(0.1)
                assert [type(other.error) for other in others] == [TransactionAbortableError] * 2
                cluster.thaw(1)


async def failing(producer: Producer, partition: int) -> None:
    with pytest.raises(BrokerResponseError):
        await producer.send("t", b"bad", partition=partition)


@both
async def test_record_in_flight_keeps_its_outcome(version: int, autojump_clock: Clock) -> None:
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
async def test_fatal_refusal_fails_waiting_records(version: int, autojump_clock: Clock) -> None:
    """The records have the fatal error though their partition cannot be written to."""
    async with transacting(version) as (cluster, producer):
        with pytest.raises(TransactionFatalError):
            async with producer.transaction() as txn:
                await producer.send("t", b"x", partition=0)
                cluster.freeze(0)
                acks = [producer.send_nowait("t", b"y", partition=part) for part in (0, 1)]
                cluster.thaw(0)
                for api in ("AddOffsetsToTxn", "TxnOffsetCommit"):
                    cluster.fail(api, ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, times=None)
                cluster.silence("Produce")
                await txn.send_offsets({TopicPartition("t", 0): 1}, GroupMetadata("g"))
        for ack in acks:
            with trio.fail_after(0.1), pytest.raises(TransactionFatalError):
                await ack.wait()


# --- what is said of the failure ------------------------------------------------------------------


async def test_unknown_topic_is_retried_when_added(
    autojump_clock: Clock,
) -> None:
    """Version 1 adds all partitions or none.

    OPERATION_NOT_ATTEMPTED says nothing of a partition itself.
    """
    async with transacting(1) as (cluster, producer):
        rule = cluster.fail(
            "AddPartitionsToTxn",
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            times=3,
            topic="t",
            partition=1,
        )
        async with producer.transaction():
            for part in (0, 1):
                await producer.enqueue("t", b"x", partition=part)
        assert rule.used == 3
        await until_closed(cluster)
        assert await committed(cluster) == [b"x", b"x"]


async def test_refused_partition_is_named(autojump_clock: Clock) -> None:
    async with transacting(1) as (cluster, producer):
        # Every request, since the first one may name t-0 alone.
        cluster.fail(
            "AddPartitionsToTxn",
            ErrorCode.TOPIC_AUTHORIZATION_FAILED,
            times=None,
            topic="t",
            partition=1,
        )
        with pytest.raises(TransactionAbortableError, match="t-1") as caught:
            async with producer.transaction():
                for part in (0, 1):
                    await producer.enqueue("t", b"x", partition=part)
        error = caught.value.__cause__
        while isinstance(error, TransactionAbortableError):
            error = error.__cause__
        assert isinstance(error, AuthorizationError)


async def test_every_refused_partition_is_named(autojump_clock: Clock) -> None:
    async with transacting(1) as (cluster, producer):
        await producer.partitions_for("t")
        cluster.fail("AddPartitionsToTxn", ErrorCode.TOPIC_AUTHORIZATION_FAILED, times=None)
        with pytest.raises(TransactionAbortableError) as caught:
            async with producer.transaction():
                for part in (0, 1):
                    producer.send_nowait("t", b"x", partition=part)
        causes = [cause for cause in _causes(caught.value) if isinstance(cause, AuthorizationError)]
        named = [str(causes[0]), *getattr(causes[0], "__notes__", ())]
        assert len(named) == 2
        assert all(any(place in line for line in named) for place in ("t-0", "t-1"))


def _causes(error: BaseException | None) -> list[BaseException]:
    return [] if error is None else [error, *_causes(error.__cause__)]


@both
async def test_fencing_is_raised_by_the_block_not_offsets(
    version: int, autojump_clock: Clock
) -> None:
    """The later calls wait for the first one, which gets the error."""
    async with transacting(version) as (cluster, producer):
        with pytest.raises(ProducerFencedError):
            async with producer.transaction() as txn:
                await producer.send("t", b"x", partition=0)
                cluster.fail("TxnOffsetCommit", ErrorCode.INVALID_PRODUCER_EPOCH, times=None)
                cluster.fail("EndTxn", ErrorCode.PRODUCER_FENCED, times=None)
                async with trio.open_nursery() as nursery:
                    calls = [
                        Caller(
                            nursery,
                            lambda: txn.send_offsets(
                                {TopicPartition("t", 0): 1}, GroupMetadata("g")
                            ),
                        )
                        for _ in range(3)
                    ]
                assert [type(call.error) for call in calls] == [TransactionAbortableError] * 3


async def test_offsets_in_flight_raise_the_fencing(autojump_clock: Clock) -> None:
    """Another request gets the error while the offsets are at the group's coordinator."""
    async with transacting(1, nodes=2) as (cluster, producer):
        cluster.move_coordinator(1, "g")
        with pytest.raises(ProducerFencedError):
            async with producer.transaction() as txn, trio.open_nursery() as nursery:
                cluster.delay("TxnOffsetCommit", 1)
                cluster.fail("TxnOffsetCommit", ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
                cluster.fail("AddPartitionsToTxn", ErrorCode.PRODUCER_FENCED)
                call = Caller(
                    nursery,
                    lambda: txn.send_offsets({TopicPartition("t", 0): 1}, GroupMetadata("g")),
                )
                await cluster.seen("TxnOffsetCommit")
                await producer.enqueue("t", b"x", partition=0)
        assert type(call.error) is ProducerFencedError


# --- a scope around that is cancelled -------------------------------------------------------------


@both
@pytest.mark.parametrize("cancelled_at", [0, 3])
async def test_frozen_broker_delays_a_cancel_by_1_s(
    cancelled_at: float, version: int, autojump_clock: Clock
) -> None:
    """An exception that leaves the block would alone wait for all of close_timeout_ms."""
    async with transacting(version) as (cluster, producer):
        start = trio.current_time()
        with trio.CancelScope() as scope, pytest.raises(Own):
            async with producer.transaction():
                await producer.send("t", b"x", partition=0)
                cluster.freeze(0)
                scope.deadline = start + cancelled_at
                raise Own
        assert trio.current_time() - start == pytest.approx(cancelled_at + 1, abs=0.1)
        cluster.thaw(0)
        async with producer.transaction():
            await producer.send("t", b"y", partition=0)
        await until_closed(cluster)
        assert await committed(cluster) == [b"y"]


@both
async def test_cancel_ends_a_block_and_its_producer(version: int, autojump_clock: Clock) -> None:
    async with ScriptedCluster(nodes=1, topics={"t": 2}, transaction_version=version) as cluster:
        cluster.move_coordinator(0)
        with trio.move_on_after(5), pytest.raises(Own):
            async with producer_of(cluster) as producer, producer.transaction():
                await producer.send("t", b"x", partition=0)
                cluster.freeze(0)
                raise Own
        assert trio.current_time() <= 7.1
        cluster.thaw(0)


# --- many batches ---------------------------------------------------------------------------------


@both
@pytest.mark.parametrize("how", ["abort", "failure", "leave"])
async def test_tasks_run_while_batches_are_dropped(
    how: str, version: int, autojump_clock: Clock
) -> None:
    """Each record is a batch. Steps are counted instead of timed, so that load does not matter."""
    count = 5_000
    settings = {
        "batch_size": 0,
        "max_in_flight_requests_per_connection": 1,
        "close_timeout_ms": 1_000,
    }
    async with transacting(version, nodes=2, **settings) as (cluster, producer):
        near, far = sorted((0, 1), key=lambda part: cluster.partition("t", part).leader or 0)
        with pytest.raises(Own):
            async with producer.transaction() as txn:
                for part in (near, far):
                    await producer.send("t", b"x", partition=part)
                silence = cluster.silence("Produce", node=1)
                acks = [
                    await producer.enqueue("t", b"%d" % number, partition=far)
                    for number in range(count)
                ]
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
    """Return how many batches complete at most between two steps of a task during a call.

    One step drops 1,000 batches, and two may come between, because Trio shuffles tasks.
    """
    left, most = producer.statistics().batches_waiting, 0
    async with trio.open_nursery() as nursery:
        caller = Caller(nursery, call)
        while caller.at is None and left > 1:
            await trio.lowlevel.checkpoint()
            before, left = left, producer.statistics().batches_waiting
            most = max(most, before - left)
    return most


# --- whether it may be written --------------------------------------------------------------------


@pytest.mark.parametrize("code", [ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.INVALID_TXN_STATE])
@pytest.mark.parametrize("lost", [False, True])
async def test_refused_record_is_not_written(
    code: ErrorCode, lost: bool, autojump_clock: Clock
) -> None:
    """Unless an earlier attempt had no response."""
    import pyarrow as pa

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


# --- after the close ------------------------------------------------------------------------------


@both
async def test_closed_producer_begins_no_transaction(version: int, autojump_clock: Clock) -> None:
    async with transacting(version) as (_, producer):
        made = producer.transaction()
        await producer.aclose()
        with pytest.raises(trio.ClosedResourceError, match="closed"):
            async with made:
                raise AssertionError("it began")
        with pytest.raises(trio.ClosedResourceError, match="closed"):
            producer.transaction()


@both
async def test_waiting_begin_fails_when_closing(version: int, autojump_clock: Clock) -> None:
    async with (
        transacting(version, close_timeout_ms=1_000) as (cluster, producer),
        trio.open_nursery() as nursery,
    ):
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


@both
@pytest.mark.parametrize("code", [ErrorCode.UNKNOWN_SERVER_ERROR, 999])
async def test_abort_outlasts_a_failed_look_up(
    version: int, code: int, autojump_clock: Clock
) -> None:
    """The coordinator moves during the abort, and the broker fails at the look-up."""
    async with transacting(version) as (cluster, producer):
        with pytest.raises(Own):
            async with producer.transaction():
                await producer.send("t", b"x", partition=0)
                cluster.fail("EndTxn", ErrorCode.NOT_COORDINATOR)
                cluster.fail("FindCoordinator", code, 2)
                raise Own
        async with producer.transaction():
            await producer.send("t", b"y", partition=0)
        assert await committed(cluster) == [b"y"]
