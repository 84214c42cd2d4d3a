"""Handlers with nurseries of their own: each member of an exception group is judged."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from tasking import Values, cluster_of, committed, consumer_of, producer_of, running, until
from trio.testing import MockClock as Clock

import trikafka
from trikafka import (
    ClientFailedError,
    HandshakeError,
    KafkaTimeoutError,
    Record,
    RetryPolicy,
    TopicPartition,
    TransactionAbortableError,
    TransactionFatalError,
)
from trikafka.error_codes import ErrorCode
from trikafka.errors import BrokerResponseError
from trikafka.errors.groups import members


async def test_failed_transaction_is_no_dead_letter(autojump_clock: Clock) -> None:
    async with (
        cluster_of(1, records=1, topics={"out": 1, "dead": 1}) as cluster,
        consumer_of(cluster) as consumer,
    ):
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
        assert [record.value for record in cluster.records("out", 0) if record.value == b"0"] == [
            b"0"
        ] * 3


LOST = ConnectionError("lost")
CLOSED = trio.ClosedResourceError("closed")


async def raised_by_tasks(*errors: BaseException, nested: bool = False) -> None:
    """Raise each of these errors in a task of its own, in one step."""

    async def fail(error: BaseException) -> None:
        raise error

    async def inner() -> None:
        await raised_by_tasks(*errors)

    async with trio.open_nursery() as nursery:
        if nested:
            nursery.start_soon(inner)
        else:
            for error in errors:
                nursery.start_soon(fail, error)


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize(
    "errors", [(LOST,), (LOST, ConnectionResetError()), (LOST, KafkaTimeoutError("send", 1.0))]
)
async def test_group_is_retriable_if_all_members_are(
    autojump_clock: Clock, errors: tuple[Exception, ...], nested: bool
) -> None:
    calls: list[int] = []

    async def handler(record: Record) -> None:
        calls.append(record.offset)
        if calls.count(record.offset) < 3:
            await raised_by_tasks(*errors, nested=nested)

    async with (
        cluster_of(1, records=2, topics={"dead": 1}) as cluster,
        consumer_of(cluster) as consumer,
    ):
        async with producer_of(cluster) as producer:
            options: Any = {
                "retry": RetryPolicy(ConnectionError, attempts=3),
                "producer": producer,
                "dead_letter": "dead",
            }
            async with running(consumer, handler, **options):
                await until(lambda: committed(cluster) == 2)
        assert cluster.records("dead", 0) == []
    assert calls == [0, 0, 0, 1, 1, 1]


async def test_group_with_one_bad_value_is_dead(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """The dead letter and the log name all members."""
    calls: list[int] = []

    async def handler(record: Record) -> None:
        calls.append(record.offset)
        await raised_by_tasks(LOST, ValueError("bad"))

    async with (
        cluster_of(1, records=1, topics={"dead": 1}) as cluster,
        consumer_of(cluster) as consumer,
    ):
        async with producer_of(cluster) as producer:
            options: Any = {
                "retry": RetryPolicy(ConnectionError),
                "producer": producer,
                "dead_letter": "dead",
            }
            async with running(consumer, handler, **options):
                await until(lambda: committed(cluster) == 1)
        headers = dict(cluster.records("dead", 0)[0].headers)
    assert calls == [0]
    assert headers["trikafka.error"] == b"ExceptionGroup"
    assert sorted(
        (headers["trikafka.message"] or b"").removeprefix(b"2 errors: ").split(b"; ")
    ) == [
        b"ConnectionError: lost",
        b"ValueError: bad",
    ]
    assert "ConnectionError('lost')" in caplog.text
    assert "ValueError('bad')" in caplog.text


FATAL = [
    CLOSED,
    ClientFailedError("in the background"),
    TransactionFatalError("fenced"),
    HandshakeError("no certificate"),
]


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("fatal", FATAL, ids=lambda error: type(error).__name__)
async def test_fatal_member_of_a_group_ends_the_run(
    autojump_clock: Clock, fatal: Exception, nested: bool
) -> None:
    """50 good records of a worker whose client was closed stay where they are."""

    async def handler(record: Record) -> None:
        if record.offset >= 3:
            await raised_by_tasks(LOST, fatal, ValueError("bad"), nested=nested)

    async with (
        cluster_of(1, records=50, topics={"dead": 1}) as cluster,
        consumer_of(cluster) as consumer,
    ):
        async with producer_of(cluster) as producer:
            options: Any = {
                "retry": RetryPolicy(ConnectionError),
                "producer": producer,
                "dead_letter": "dead",
            }
            with pytest.raises(ExceptionGroup) as raised:
                await trikafka.run_tasks(consumer, handler, **options)
        assert cluster.records("dead", 0) == []
        assert committed(cluster) == 3
    assert {type(member) for member in members(raised.value)} == {
        ConnectionError,
        type(fatal),
        ValueError,
    }


async def test_closed_producer_in_a_nursery_ends_run(autojump_clock: Clock) -> None:
    async with (
        cluster_of(1, records=50, topics={"out": 1, "dead": 1}) as cluster,
        consumer_of(cluster) as consumer,
    ):
        async with producer_of(cluster) as producer:
            async with producer_of(cluster) as other:
                pass

            async def handler(record: Record) -> None:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(other.send, "out", record.value)

            with pytest.raises(ExceptionGroup) as raised:
                await trikafka.run_tasks(consumer, handler, producer=producer, dead_letter="dead")
        assert raised.group_contains(trio.ClosedResourceError)
        assert cluster.records("dead", 0) == []
        assert not committed(cluster)


async def test_timeout_beside_an_abort_is_no_dead_letter(
    autojump_clock: Clock,
) -> None:
    calls = 0

    async def handler(record: Record) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            await raised_by_tasks(
                KafkaTimeoutError("send", 1.0), TransactionAbortableError("refused")
            )

    async with (
        cluster_of(1, records=2, topics={"dead": 1}) as cluster,
        consumer_of(cluster) as consumer,
    ):
        async with producer_of(cluster, transactional_id="x") as producer:
            async with running(consumer, handler, producer=producer, dead_letter="dead"):
                await until(lambda: committed(cluster) == 2)
        assert cluster.records("dead", 0) == []


@pytest.mark.parametrize("in_group", [False, True])
async def test_cancelled_handler_is_no_dead_letter(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture, in_group: bool
) -> None:
    """Another partition's timeout undoes the round.

    An error in this handler's clean-up makes its record no dead letter.
    """
    calls: list[int] = []

    async def handler(record: Record) -> None:
        calls.append(record.partition)
        if len(calls) > 2:
            return
        if record.partition == 0:
            await trio.sleep(1)
            raise KafkaTimeoutError("send", 1.0)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            try:
                await trio.sleep_forever()
            finally:
                if not in_group:
                    nursery.cancel_scope.shield = True
                    nursery.cancel_scope.cancel()
                raise ValueError("the clean-up failed")

    async with (
        cluster_of(2, records=1, topics={"dead": 1}) as cluster,
        consumer_of(cluster) as consumer,
    ):
        async with producer_of(cluster, transactional_id="x") as producer:
            async with running(consumer, handler, producer=producer, dead_letter="dead"):
                await until(lambda: committed(cluster, 0) == committed(cluster, 1) == 1)
        assert cluster.records("dead", 0) == []
    assert "the handler of offset 0 of t-1 was cut off, and failed in that" in caplog.text


async def test_failing_clean_up_hides_no_first_error(autojump_clock: Clock) -> None:
    """The error of a handler that is cancelled at the end does not replace the first one."""

    async def handler(record: Record) -> None:
        if record.partition == 0:
            await trio.sleep(1)
            raise KeyError("the first error")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            try:
                await trio.sleep_forever()
            finally:
                raise ValueError("the clean-up failed")

    async with (
        cluster_of(2, records=1) as cluster,
        consumer_of(cluster, close_timeout_ms=2_000) as consumer,
    ):
        with pytest.raises(KeyError, match="the first error"):
            await trikafka.run_tasks(consumer, handler)


async def test_groups_of_one_size_are_both_reported(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """Their texts are equal: "Exceptions from Trio nursery (1 sub-exception)"."""

    async def handler(record: Record) -> None:
        await trio.sleep(1 + record.partition)
        await raised_by_tasks(KeyError(record.partition))

    async with cluster_of(2, records=1) as cluster, consumer_of(cluster) as consumer:
        with pytest.raises(ExceptionGroup) as raised:
            await trikafka.run_tasks(consumer, handler)
    assert members(raised.value)[0].args == (0,)
    assert (
        "while the tasks were ending: ExceptionGroup('Exceptions from Trio nursery', [KeyError(1)])"
        in caplog.text
    )


async def test_grouped_timeouts_of_prepare_are_retried(autojump_clock: Clock) -> None:
    starts = 0

    async def prepare(tp: TopicPartition) -> None:
        nonlocal starts
        starts += 1
        if starts == 1:
            await raised_by_tasks(
                KafkaTimeoutError("committed", 1.0), KafkaTimeoutError("send", 1.0), nested=True
            )

    handler = Values()
    async with cluster_of(1, records=1) as cluster, consumer_of(cluster) as consumer:
        async with running(consumer, handler, prepare=prepare):
            await until(lambda: committed(cluster) == 1)
    assert starts == 2
