"""Transactions in virtual time, in both versions of the protocol: all or nothing, with typed
errors.
"""

# ruff: noqa: PT012 (it is a whole block of a transaction that raises)

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import trio
from transacting import committed, open_at_the_broker, producer_of, transacting, until_closed
from trio.testing import MockClock as Clock

import trikafka
from trikafka import GroupMetadata, OffsetAndMetadata, TopicPartition
from trikafka.error_codes import ErrorCode
from trikafka.errors import (
    ArrowDeliveryError,
    AuthorizationError,
    BrokerResponseError,
    CommitFailedError,
    ConfigurationError,
    IllegalStateError,
    KafkaTimeoutError,
    ProducerFencedError,
    TransactionAbortableError,
    TransactionFatalError,
    TransactionUndecidedError,
    UnsupportedVersionError,
)
from trikafka.testing import ScriptedCluster

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
both = pytest.mark.parametrize("version", [1, 2])


class Own(Exception):
    """An exception of the program."""


@both
async def test_only_committed_records_are_seen(version: int, autojump_clock: Clock) -> None:
    async with transacting(version) as (cluster, producer):
        for number in range(3):
            async with producer.transaction():
                await producer.send("t", b"a%d" % number, partition=0)
                await producer.send("t", b"b%d" % number, partition=1)
            with pytest.raises(Own):
                async with producer.transaction():
                    await producer.send("t", b"never", partition=0)
                    raise Own
        await until_closed(cluster)
        assert await committed(cluster) == [b"a0", b"a1", b"a2", b"b0", b"b1", b"b2"]


@both
async def test_requests_are_those_of_the_version(version: int, autojump_clock: Clock) -> None:
    """Version 2 has no round trip for a partition or a group, and each end gives the next epoch
    (KIP-890).
    """
    async with transacting(version) as (cluster, producer):
        for _ in range(2):
            async with producer.transaction() as txn:
                await producer.send("t", b"a", partition=0)
                await txn.send_offsets({T1: 5}, trikafka.GroupMetadata("g"))
        asked = [
            len(cluster.requests(api))
            for api in ("InitProducerId", "AddPartitionsToTxn", "AddOffsetsToTxn", "EndTxn")
        ]
        assert asked == ([1, 2, 2, 2] if version == 1 else [1, 0, 0, 2])
        assert {seen.version for seen in cluster.requests("EndTxn")} == {4 if version == 1 else 5}
        assert {seen.version for seen in cluster.requests("TxnOffsetCommit")} == {
            4 if version == 1 else 5
        }
        assert {seen.version for seen in cluster.requests("Produce")} == {
            11 if version == 1 else 12
        }
        await until_closed(cluster)
        assert cluster.transactions.by_id["x"].epoch == (0 if version == 1 else 2)
        assert cluster.committed("g", T1) == OffsetAndMetadata(5)


@both
async def test_empty_transaction_makes_no_request(version: int, autojump_clock: Clock) -> None:
    async with transacting(version) as (cluster, producer):
        async with producer.transaction():
            pass
        async with producer.transaction() as txn:
            await txn.abort()
        assert not cluster.requests("EndTxn")


async def test_records_outside_a_transaction_are_refused(autojump_clock: Clock) -> None:
    import pyarrow as pa

    async with transacting() as (cluster, producer):
        for call in (
            lambda: producer.send("t", b"x"),
            lambda: producer.enqueue("t", b"x"),
            lambda: producer.enqueue("unknown", b"x"),
            lambda: producer.send_arrow("t", pa.table({"value": [b"x"]})),
        ):
            with pytest.raises(IllegalStateError, match="no transaction is open"):
                await call()
        with pytest.raises(IllegalStateError, match="no transaction is open"):
            producer.send_nowait("t", b"x")
        assert producer.statistics().buffer_used == 0
        assert not cluster.requests("Produce")


async def test_producer_without_id_has_no_transactions(autojump_clock: Clock) -> None:
    async with (
        ScriptedCluster(topics={"t": 1}) as cluster,
        producer_of(cluster, transactional_id=None) as producer,
    ):
        with pytest.raises(ConfigurationError, match="transactional_id"):
            producer.transaction()


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"two_phase_commit": True, "transactional_id": None}, "transactional_id"),
        ({"two_phase_commit": True, "transaction_timeout_ms": 5_000}, "transaction_timeout_ms"),
        ({"commit_prepared": "1:2"}, "two_phase_commit"),
        ({"commit_prepared": "one", "two_phase_commit": True}, "<producer id>:<epoch>"),
        ({"enable_idempotence": False}, "enable_idempotence"),
        ({"transactional_id": ""}, "transactional_id"),
    ],
)
async def test_conflicting_settings_are_refused(
    settings: dict[str, Any], named: str, autojump_clock: Clock
) -> None:
    async with ScriptedCluster() as cluster:
        with pytest.raises(ConfigurationError, match=named):
            async with producer_of(cluster, **settings):
                pass
        assert not cluster.dials


async def test_timeout_without_an_id_is_no_error(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """As with Java's client: a file that several programs share may have it."""
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        given = trikafka.from_properties({"transaction.timeout.ms": "5000"})
        async with trikafka.open_producer(
            bootstrap_servers=cluster.bootstrap_servers, dial=cluster.dial, **given
        ) as producer:
            assert (await producer.send("t", b"x")).offset == 0
    assert "transaction_timeout_ms has no effect without a transactional_id" in caplog.text


async def test_second_transaction_at_a_time_is_refused(autojump_clock: Clock) -> None:
    async with transacting() as (_, producer):
        async with producer.transaction() as txn:
            with pytest.raises(
                IllegalStateError, match=r"^transaction\(\) is not .* one at a time"
            ):
                async with producer.transaction():
                    pass
            with pytest.raises(IllegalStateError, match="cannot begin twice"):
                async with txn:
                    pass
        with pytest.raises(IllegalStateError, match=r"over|no transaction"):
            await txn.abort()
        await txn.commit()  # it is
        with pytest.raises(IllegalStateError, match="has not begun"):
            await producer.transaction().commit()


@both
async def test_failed_record_fails_its_transaction(version: int, autojump_clock: Clock) -> None:
    async with transacting(version) as (cluster, producer):
        cluster.fail("Produce", ErrorCode.INVALID_RECORD)
        with pytest.raises(TransactionAbortableError) as caught:
            async with producer.transaction() as txn:
                ack = await producer.enqueue("t", b"bad", partition=0)
                with pytest.raises(BrokerResponseError):
                    await ack.wait()
                with pytest.raises(TransactionAbortableError, match="INVALID_RECORD"):
                    await producer.send("t", b"more", partition=1)
                with pytest.raises(TransactionAbortableError):
                    await txn.send_offsets({T1: 1}, trikafka.GroupMetadata("g"))
        assert isinstance(caught.value.__cause__, BrokerResponseError)
        async with producer.transaction():
            await producer.send("t", b"good", partition=0)
        await until_closed(cluster)
        assert await committed(cluster) == [b"good"]


@both
async def test_commit_fails_at_once_with_a_record(version: int, autojump_clock: Clock) -> None:
    """It does not wait for the outcomes of other records."""
    async with transacting(version, nodes=2) as (cluster, producer):
        leaders = {part: cluster.partition("t", part).leader for part in (0, 1)}
        assert leaders[0] != leaders[1]
        async with producer.transaction():
            await producer.send("t", b"0", partition=0)
            await producer.send("t", b"1", partition=1)
        away = 1  # the coordinator is node 0
        cluster.freeze(away)
        good, bad = (0, 1) if leaders[1] == away else (1, 0)
        before = trio.current_time()
        cluster.fail("Produce", ErrorCode.INVALID_RECORD)
        with pytest.raises(TransactionAbortableError, match="INVALID_RECORD"):
            async with producer.transaction():
                if version == 2:
                    await producer.enqueue("t", b"waits", partition=bad)
                await producer.enqueue("t", b"fails", partition=good)
        assert trio.current_time() - before < 1


@both
async def test_second_producer_with_the_id_fences(version: int, autojump_clock: Clock) -> None:
    async with transacting(version) as (cluster, producer):
        with pytest.raises(ProducerFencedError):
            async with producer.transaction():
                await producer.send("t", b"old", partition=0)
                async with producer_of(cluster) as other, other.transaction():
                    await other.send("t", b"new", partition=0)
        for _ in range(2):
            with pytest.raises(ProducerFencedError):
                async with producer.transaction():
                    pass
        with pytest.raises(ProducerFencedError):
            producer.send_nowait("t", b"x")
        await until_closed(cluster)
        assert await committed(cluster) == [b"new"]


@both
async def test_producer_is_fenced_while_it_sends(version: int, autojump_clock: Clock) -> None:
    async with transacting(version) as (cluster, producer):
        with pytest.raises(ProducerFencedError):
            async with producer.transaction():
                await producer.send("t", b"old", partition=0)
                async with producer_of(cluster) as other, other.transaction():
                    await other.send("t", b"new", partition=0)
                await producer.send("t", b"older", partition=0)
        assert await committed(cluster) == [b"new"]


@both
async def test_overlong_transaction_is_aborted(version: int, autojump_clock: Clock) -> None:
    """In version 2 the producer continues. In version 1 the error is the same as a fenced one's."""
    async with transacting(version, transaction_timeout_ms=1_000) as (cluster, producer):
        with pytest.raises((TransactionAbortableError, ProducerFencedError)) as caught:
            async with producer.transaction():
                await producer.send("t", b"late", partition=0)
                await trio.sleep(3)
        assert "transaction_timeout_ms" in str(caught.value)
        if version == 2:
            assert isinstance(caught.value, TransactionAbortableError)
            async with producer.transaction():
                await producer.send("t", b"good", partition=0)
            await until_closed(cluster)
            assert await committed(cluster) == [b"good"]


async def test_offsets_of_an_overlong_transaction_abort_it(autojump_clock: Clock) -> None:
    async with transacting(2, transaction_timeout_ms=1_000) as (cluster, producer):
        async with producer.transaction() as txn:
            await producer.send("t", b"late", partition=0)
            await trio.sleep(3)
            with pytest.raises(TransactionAbortableError, match="transaction_timeout_ms"):
                await txn.send_offsets({T1: 1}, trikafka.GroupMetadata("g"))
            await txn.abort()
        async with producer.transaction() as txn:
            await producer.send("t", b"good", partition=0)
            await txn.send_offsets({T1: 2}, trikafka.GroupMetadata("g"))
        await until_closed(cluster)
        assert await committed(cluster) == [b"good"]
        assert cluster.committed("g", T1) == OffsetAndMetadata(2)


@both
async def test_lost_commit_response_is_retried(version: int, autojump_clock: Clock) -> None:
    async with transacting(version) as (cluster, producer):
        cluster.drop("EndTxn", after=True)
        async with producer.transaction():
            await producer.send("t", b"once", partition=0)
        async with producer.transaction():
            await producer.send("t", b"twice", partition=0)
        await until_closed(cluster)
        assert await committed(cluster) == [b"once", b"twice"]


@both
@pytest.mark.parametrize(
    ("api", "trouble"),
    [
        (api, trouble)
        for api in (
            "InitProducerId",
            "AddPartitionsToTxn",
            "AddOffsetsToTxn",
            "TxnOffsetCommit",
            "EndTxn",
            "Produce",
        )
        for trouble in ("moved", "loading", "concurrent", "lost", "response lost")
        # A leader of a partition returns neither error.
        if api != "Produce" or trouble not in ("moved", "loading")
    ],
)
async def test_transient_errors_are_retried(
    version: int, api: str, trouble: str, autojump_clock: Clock
) -> None:
    codes = {
        "moved": ErrorCode.NOT_COORDINATOR,
        "loading": ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        "concurrent": ErrorCode.CONCURRENT_TRANSACTIONS,
    }
    async with ScriptedCluster(topics={"t": 2}, transaction_version=version) as cluster:
        if trouble in codes:
            cluster.fail(api, codes[trouble], times=2)
        else:
            cluster.drop(api, times=2, after=trouble == "response lost")
        with trio.fail_after(30):
            async with producer_of(cluster) as producer:
                for number in range(2):
                    async with producer.transaction() as txn:
                        await producer.send("t", b"%d" % number, partition=0)
                        await txn.send_offsets({T1: number + 1}, trikafka.GroupMetadata("g"))
            await until_closed(cluster)
        assert await committed(cluster) == [b"0", b"1"]
        assert cluster.committed("g", T1) == OffsetAndMetadata(2)


@pytest.mark.parametrize(
    ("version", "api"), [(1, "AddPartitionsToTxn"), (1, "InitProducerId"), (2, "EndTxn")]
)
async def test_long_end_is_not_asked_for_all_the_time(
    version: int, api: str, autojump_clock: Clock
) -> None:
    async with transacting(version) as (cluster, producer):
        async with producer.transaction() as txn:
            await producer.send("t", b"aborted", partition=0)
            await txn.abort()
        rule = cluster.fail(api, ErrorCode.CONCURRENT_TRANSACTIONS, None)
        before = len(cluster.requests(api))

        async def transact() -> None:
            async with producer.transaction():
                await producer.send("t", b"x", partition=0)
            # Version 1 asks for the next epoch after an abort alone.
            async with producer.transaction() as txn:
                await producer.send("t", b"aborted", partition=0)
                await txn.abort()
            async with producer.transaction():
                await producer.send("t", b"y", partition=0)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(transact)
            await trio.sleep(30)
            assert len(cluster.requests(api)) - before < 80
            rule.remove()
        assert await committed(cluster) == [b"x", b"y"]


async def test_opening_leaves_an_older_producer_no_time(autojump_clock: Clock) -> None:
    """Between two requests a busy older producer could begin another transaction each time."""
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        cluster.fail("InitProducerId", ErrorCode.CONCURRENT_TRANSACTIONS, 5)
        settings: Any = {"bootstrap_servers": cluster.bootstrap_servers, "dial": cluster.dial}
        async with trikafka.open_producer(transactional_id="x", **settings):
            times = [seen.time for seen in cluster.requests("InitProducerId")]
    assert [after - before for before, after in pairwise(times)] == pytest.approx([0.02] * 5)


async def test_failures_of_an_ended_one_do_not_count(autojump_clock: Clock) -> None:
    """The next transaction waits for the end of the longest wait, and not for another one."""
    async with transacting(1) as (cluster, producer):
        api = "AddPartitionsToTxn"
        rule = cluster.fail(api, ErrorCode.CONCURRENT_TRANSACTIONS, None)
        async with producer.transaction() as txn:
            await producer.enqueue("t", b"x", partition=0)
            await trio.sleep(20)
            seen = len(cluster.requests(api))
            while len(cluster.requests(api)) == seen:  # noqa: ASYNC110
                await trio.sleep(0.001)
            await txn.abort()
        rule.remove()
        cluster.fail(api, ErrorCode.CONCURRENT_TRANSACTIONS, 1)
        before = trio.current_time()
        async with producer.transaction():
            await producer.send("t", b"y", partition=0)
        assert 0.7 < trio.current_time() - before < 1.1


@both
async def test_commit_without_outcome_is_undecided(version: int, autojump_clock: Clock) -> None:
    async with transacting(version, nodes=2) as (cluster, producer):
        before = 0.0
        with pytest.raises(TransactionUndecidedError) as caught:
            async with producer.transaction() as txn:
                await producer.send("t", b"x", partition=0)
                cluster.freeze(0)
                before = trio.current_time()
                await txn.commit(timeout=2)
        assert trio.current_time() - before == pytest.approx(2)
        assert (caught.value.call, caught.value.limit) == ("commit", 2)
        assert isinstance(caught.value, KafkaTimeoutError)
        assert isinstance(caught.value.__cause__, Exception)
        with pytest.raises(TransactionUndecidedError):
            producer.send_nowait("t", b"joins?")
        with pytest.raises(TransactionUndecidedError, match="only commit"):
            await txn.abort()
        with pytest.raises(TransactionUndecidedError):
            async with producer.transaction(timeout=1):
                pass
        with pytest.raises(TransactionUndecidedError):
            await txn.commit(timeout=0)
        cluster.thaw(0)
        await txn.commit(timeout=60)
        await txn.commit()
        async with producer.transaction():
            await producer.send("t", b"y", partition=0)
        await until_closed(cluster)
        assert await committed(cluster) == [b"x", b"y"]


@both
async def test_next_transaction_settles_the_last(version: int, autojump_clock: Clock) -> None:
    async with transacting(version, nodes=2) as (cluster, producer):
        with trio.move_on_after(1):
            async with producer.transaction():
                await producer.send("t", b"x", partition=0)
                cluster.freeze(0)
        with pytest.raises(TransactionUndecidedError):
            producer.send_nowait("t", b"joins?")
        cluster.thaw(0)
        async with producer.transaction():
            await producer.send("t", b"y", partition=0)
        await until_closed(cluster)
        assert await committed(cluster) == [b"x", b"y"]


@both
async def test_next_begin_raises_an_unraised_refusal(version: int, autojump_clock: Clock) -> None:
    async with transacting(version, nodes=2) as (cluster, producer):
        with trio.move_on_after(1):
            async with producer.transaction():
                await producer.send("t", b"x", partition=0)
                cluster.fail("EndTxn", ErrorCode.TRANSACTION_ABORTABLE)
                cluster.delay("EndTxn", 5)
        with pytest.raises(TransactionAbortableError, match="before was not committed"):
            async with producer.transaction():
                pass
        async with producer.transaction():
            await producer.send("t", b"y", partition=0)
        await until_closed(cluster)
        assert await committed(cluster) == [b"y"]


@both
async def test_refused_commit_is_abortable(version: int, autojump_clock: Clock) -> None:
    for code in (
        ErrorCode.TRANSACTION_ABORTABLE,
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.INVALID_TXN_STATE,
    ):
        async with transacting(version) as (cluster, producer):
            cluster.fail("EndTxn", code)
            with pytest.raises(TransactionAbortableError) as caught:
                async with producer.transaction():
                    await producer.send("t", b"x", partition=0)
            assert caught.value.__cause__ is not None
            assert getattr(caught.value.__cause__, "code", None) == code
            async with producer.transaction():
                await producer.send("t", b"y", partition=0)
            await until_closed(cluster)
            assert await committed(cluster) == [b"y"]


@both
async def test_fatal_error_ends_the_producer(version: int, autojump_clock: Clock) -> None:
    async with transacting(version) as (cluster, producer):
        cluster.fail("EndTxn", ErrorCode.UNSUPPORTED_VERSION)
        with pytest.raises(TransactionFatalError) as caught:
            async with producer.transaction():
                await producer.send("t", b"x", partition=0)
        assert isinstance(caught.value.__cause__, BrokerResponseError)
        with pytest.raises(TransactionFatalError):
            async with producer.transaction():
                pass
        with pytest.raises(TransactionFatalError):
            producer.send_nowait("t", b"x")


@both
async def test_missing_right_is_raised_at_open(version: int, autojump_clock: Clock) -> None:
    async with ScriptedCluster(transaction_version=version) as cluster:
        cluster.fail("InitProducerId", ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        with pytest.raises(AuthorizationError, match="'x'"):
            async with producer_of(cluster):
                pass
        assert cluster.connections() == 0


async def test_missing_topic_right_is_abortable_in_v1(autojump_clock: Clock) -> None:
    async with transacting(1) as (cluster, producer):
        cluster.fail("AddPartitionsToTxn", ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        with pytest.raises(TransactionAbortableError) as caught:
            async with producer.transaction():
                await producer.send("t", b"x", partition=0)
        assert isinstance(caught.value.__cause__, AuthorizationError)
        async with producer.transaction():
            await producer.send("t", b"y", partition=0)
        assert len(cluster.requests("Produce")) == 1


async def test_abort_in_v1_waits_for_batches_in_flight(autojump_clock: Clock) -> None:
    """A broker that does not verify would begin a transaction with the late batch that no end
    closes.
    """
    async with transacting(1) as (cluster, producer):
        cluster.transactions.verification = False
        with pytest.raises(Own):
            async with producer.transaction():
                await producer.send("t", b"first", partition=0)
                cluster.delay("Produce", 5, times=1)
                ack = producer.send_nowait("t", b"late", partition=0)
                await cluster.seen("Produce", 2)
                raise Own
        with pytest.raises(TransactionAbortableError):
            await ack.wait()
        await trio.sleep(20)
        async with producer.transaction():
            await producer.send("t", b"next", partition=0)
        await until_closed(cluster)
        assert cluster.partition("t", 0).stable_end == cluster.partition("t", 0).end
        assert await committed(cluster) == [b"next"]


@both
async def test_abort_drops_waiting_records(version: int, autojump_clock: Clock) -> None:
    async with transacting(version, linger_ms=10_000, request_timeout_ms=5_000) as (
        cluster,
        producer,
    ):
        with pytest.raises(Own):
            async with producer.transaction():
                ack = producer.send_nowait("t", b"waits", partition=0)
                raise Own
        with pytest.raises(TransactionAbortableError, match="aborted"):
            await ack.wait()
        assert not cluster.requests("Produce")
        assert producer.statistics().buffer_used == 0


@both
async def test_waiting_record_skips_next_transaction(version: int, autojump_clock: Clock) -> None:
    async with transacting(version, nodes=2, buffer_memory=1_000) as (cluster, producer):
        other = next(part for part in (0, 1) if cluster.partition("t", part).leader == 1)
        raised: list[Exception] = []

        async def late() -> None:
            try:
                await producer.enqueue("t", b"y" * 300, partition=other)
            except Exception as error:
                raised.append(error)

        async with trio.open_nursery() as nursery:
            with pytest.raises(Own):
                async with producer.transaction():
                    cluster.freeze(1)
                    with pytest.raises(trio.WouldBlock):
                        while True:
                            producer.send_nowait("t", b"x" * 300, partition=other)
                    nursery.start_soon(late)
                    await trio.testing.wait_all_tasks_blocked()
                    nursery.start_soon(_thaw_soon, cluster)
                    raise Own
        assert [type(error) for error in raised] == [IllegalStateError]
        async with producer.transaction():
            await producer.send("t", b"z", partition=other)
        await until_closed(cluster)
        assert await committed(cluster) == [b"z"]


async def _thaw_soon(cluster: ScriptedCluster) -> None:
    await trio.sleep(1)
    cluster.thaw(1)


@both
async def test_closing_aborts_an_open_transaction(version: int, autojump_clock: Clock) -> None:
    async with ScriptedCluster(topics={"t": 2}, transaction_version=version) as cluster:
        async with producer_of(cluster) as producer:
            txn = producer.transaction()
            await txn.__aenter__()
            await producer.send("t", b"x", partition=0)
            assert open_at_the_broker(cluster)
        await until_closed(cluster)
        assert await committed(cluster) == []


@both
async def test_commit_is_undecided_if_producer_closes(version: int, autojump_clock: Clock) -> None:
    ends: list[BaseException | None] = []
    async with transacting(version) as (cluster, producer):

        async def commit() -> None:
            try:
                async with producer.transaction():
                    await producer.send("t", b"x", partition=0)
                    cluster.freeze(0)
                ends.append(None)
            except TransactionUndecidedError as error:
                ends.append(error)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(commit)
            await trio.sleep(1)
            await producer.aclose(timeout=1)
        assert len(ends) == 1
        assert isinstance(ends[0], TransactionUndecidedError)


@both
async def test_cancelled_block_leaves_nothing_open(version: int, autojump_clock: Clock) -> None:
    async with transacting(version) as (cluster, producer):
        before = trio.current_time()
        with trio.move_on_after(1) as scope:
            async with producer.transaction():
                await producer.send("t", b"x", partition=0)
                await trio.sleep_forever()
        assert scope.cancelled_caught
        assert trio.current_time() - before < 1.5
        assert not open_at_the_broker(cluster)
        async with producer.transaction():
            await producer.send("t", b"y", partition=0)
        await until_closed(cluster)
        assert await committed(cluster) == [b"y"]


@both
async def test_cancelled_block_waits_1_s_for_the_abort(version: int, autojump_clock: Clock) -> None:
    """The abort continues in the background when the coordinator thaws."""
    async with transacting(version) as (cluster, producer):
        before = trio.current_time()
        with trio.move_on_after(1):
            async with producer.transaction():
                await producer.send("t", b"x", partition=0)
                cluster.freeze(0)
                await trio.sleep_forever()
        assert trio.current_time() - before == pytest.approx(2)
        cluster.thaw(0)
        async with producer.transaction():
            await producer.send("t", b"y", partition=0)
        await until_closed(cluster)
        assert await committed(cluster) == [b"y"]


@both
async def test_expired_record_is_abortable(version: int, autojump_clock: Clock) -> None:
    async with transacting(
        version, nodes=2, delivery_timeout_ms=3_000, request_timeout_ms=1_000
    ) as (cluster, producer):
        far = next(part for part in (0, 1) if cluster.partition("t", part).leader == 1)
        async with producer.transaction():
            await producer.send("t", b"first", partition=far)
        cluster.freeze(1)
        with pytest.raises(TransactionAbortableError) as caught:
            async with producer.transaction():
                producer.send_nowait("t", b"x", partition=far)
        assert isinstance(caught.value.__cause__, KafkaTimeoutError)
        cluster.thaw(1)
        async with producer.transaction():
            await producer.send("t", b"last", partition=far)
        await until_closed(cluster)
        assert await committed(cluster) == [b"first", b"last"]


@both
async def test_offsets_of_a_consumer_are_committed(version: int, autojump_clock: Clock) -> None:
    async with transacting(version) as (cluster, producer):
        cluster.create_topic("in", 1)
        cluster.append("in", 0, [b"1", b"2", b"3"])
        given: dict[str, Any] = {
            "bootstrap_servers": cluster.bootstrap_servers,
            "dial": cluster.dial,
            "group_id": "g",
        }
        given |= {"auto_offset_reset": "earliest", "enable_auto_commit": False}
        async with trikafka.open_consumer("in", **given) as consumer:
            records = [await consumer.receive() for _ in range(3)]
            async with producer.transaction() as txn:
                await producer.send("t", records[0].value, partition=0)
                await txn.send_offsets(records[0], consumer)
            await until_closed(cluster)
            assert cluster.committed("g", ("in", 0)) == OffsetAndMetadata(1)
            with pytest.raises(Own):
                async with producer.transaction() as txn:
                    await txn.send_offsets(consumer)
                    raise Own
            await until_closed(cluster)
            assert cluster.committed("g", ("in", 0)) == OffsetAndMetadata(1)
            async with producer.transaction() as txn:
                await txn.send_offsets(consumer)
            await until_closed(cluster)
            after = cluster.committed("g", ("in", 0))
            assert after is not None
            assert after.offset == 3
        assert cluster.requests("TxnOffsetCommit")[0].request.member_id
        versions = {seen.version for seen in cluster.requests("TxnOffsetCommit")}
        assert versions == {4 if version == 1 else 6}


async def test_offset_of_a_recreated_topic_is_refused(autojump_clock: Clock) -> None:
    """The offset belongs to the topic that was read, not to the next one of that name (KIP-1319)."""
    async with transacting() as (cluster, producer):
        cluster.create_topic("in", 1)
        cluster.append("in", 0, [b"1", b"2", b"3"])
        given: dict[str, Any] = {
            "bootstrap_servers": cluster.bootstrap_servers,
            "dial": cluster.dial,
            "auto_offset_reset": "earliest",
            "enable_auto_commit": False,
        }
        async with trikafka.open_consumer("in", **given, group_id="g") as consumer:
            await consumer.receive()
            group = consumer.group_metadata()
        cluster.delete_topic("in")
        cluster.create_topic("in", 1)
        name = GroupMetadata("g", topic_ids=group.topic_ids)
        with pytest.raises(TransactionAbortableError, match="does not know this topic id"):
            async with producer.transaction() as txn:
                await txn.send_offsets({TopicPartition("in", 0): 3}, name)
        await until_closed(cluster)
        assert cluster.committed("g", ("in", 0)) is None
        async with producer.transaction() as txn:
            await txn.send_offsets({TopicPartition("in", 0): 1}, GroupMetadata("g"))
        assert [seen.version for seen in cluster.requests("TxnOffsetCommit")][-1] == 5


async def test_auto_committing_consumer_is_refused(autojump_clock: Clock) -> None:
    async with transacting() as (cluster, producer):
        given: dict[str, Any] = {
            "bootstrap_servers": cluster.bootstrap_servers,
            "dial": cluster.dial,
        }
        async with (
            trikafka.open_consumer(**given, group_id="g") as consumer,
            producer.transaction() as txn,
        ):
            with pytest.raises(ConfigurationError, match="enable_auto_commit"):
                await txn.send_offsets({T1: 1}, consumer)
        async with trikafka.open_consumer(**given) as consumer, producer.transaction() as txn:
            with pytest.raises(ConfigurationError, match="group_id"):
                await txn.send_offsets({T1: 1}, consumer)
            with pytest.raises(TypeError, match="group_metadata"):
                await txn.send_offsets({T1: 1})


@both
@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.FENCED_MEMBER_EPOCH,
        ErrorCode.STALE_MEMBER_EPOCH,  # an epoch that the program has noted stays stale
    ],
)
async def test_offsets_of_a_removed_member_are_refused(
    version: int, code: ErrorCode, autojump_clock: Clock
) -> None:
    async with transacting(version) as (cluster, producer):
        cluster.fail("TxnOffsetCommit", code)
        with pytest.raises(TransactionAbortableError) as caught:
            async with producer.transaction() as txn:
                await producer.send("t", b"x", partition=0)
                await txn.send_offsets({T1: 1}, trikafka.GroupMetadata("g", 3, "m"))
        assert isinstance(caught.value.__cause__, CommitFailedError)
        assert len(cluster.requests("TxnOffsetCommit")) == 1
        await until_closed(cluster)
        assert await committed(cluster) == []


@both
async def test_stale_epoch_of_a_consumer_is_asked_again(
    version: int, autojump_clock: Clock
) -> None:
    """Its next heartbeat may bring the new epoch."""

    class Member:
        def offsets_for_transaction(self, offsets: Any = None) -> Any:
            return {T1: trikafka.OffsetAndMetadata(1)}, lambda: trikafka.GroupMetadata("g", 3, "m")

    async with transacting(version) as (cluster, producer):
        cluster.fail("TxnOffsetCommit", ErrorCode.STALE_MEMBER_EPOCH)
        with pytest.raises(TransactionAbortableError) as caught:
            async with producer.transaction() as txn:
                await producer.send("t", b"x", partition=0)
                await txn.send_offsets(Member())
        # The second answer is that the scripted group has no such member.
        assert isinstance(caught.value.__cause__, CommitFailedError)
        assert len(cluster.requests("TxnOffsetCommit")) == 2


@both
async def test_cancelled_offsets_fail_the_transaction(version: int, autojump_clock: Clock) -> None:
    async with transacting(version) as (cluster, producer):
        cluster.delay("TxnOffsetCommit", 5)
        with pytest.raises(TransactionAbortableError, match="send_offsets was cancelled"):
            async with producer.transaction() as txn:
                await producer.send("t", b"x", partition=0)
                with trio.move_on_after(1):
                    await txn.send_offsets({T1: 1}, trikafka.GroupMetadata("g"))
        await trio.sleep(6)
        assert cluster.committed("g", T1) is None
        assert await committed(cluster) == []


@both
async def test_table_is_all_or_nothing(version: int, autojump_clock: Clock) -> None:
    import pyarrow as pa

    table = pa.table(
        {
            "value": [b"%03d" % number for number in range(100)],
            "partition": [n % 2 for n in range(100)],
        }
    )
    async with transacting(version) as (cluster, producer):
        async with producer.transaction():
            await producer.send_arrow("t", table)
        await until_closed(cluster)
        assert len(await committed(cluster)) == 100
        cluster.fail("Produce", ErrorCode.INVALID_RECORD)
        with pytest.raises(TransactionAbortableError):
            async with producer.transaction():
                with pytest.raises(ArrowDeliveryError):
                    await producer.send_arrow("t", table)
        cluster.delay("Produce", 5)
        with pytest.raises(TransactionAbortableError, match="send_arrow was cancelled"):
            async with producer.transaction():
                with trio.move_on_after(1):
                    await producer.send_arrow("t", table)
        await until_closed(cluster)
        assert len(await committed(cluster)) == 100


@both
async def test_killed_program_is_fenced_by_its_next_run(
    version: int, autojump_clock: Clock
) -> None:
    async with ScriptedCluster(topics={"t": 2}, transaction_version=version) as cluster:
        async with producer_of(cluster, close_timeout_ms=0) as first:
            await first.transaction().__aenter__()
            await first.send("t", b"of the dead", partition=0)
            # The abort at its end never succeeds.
            cluster.fail("EndTxn", ErrorCode.COORDINATOR_NOT_AVAILABLE, times=3)
        assert open_at_the_broker(cluster)
        async with producer_of(cluster) as second, second.transaction():
            await second.send("t", b"of the living", partition=0)
        await until_closed(cluster)
        assert await committed(cluster) == [b"of the living"]


async def test_prepared_transactions_survive_a_restart(autojump_clock: Clock) -> None:
    async with ScriptedCluster(topics={"t": 2}) as cluster:
        cluster.transactions.two_phase = True
        cluster.offer("InitProducerId", (0, 6))
        prepared = []
        for value in (b"kept", b"dropped"):
            async with producer_of(
                cluster, transactional_id=value.decode(), two_phase_commit=True
            ) as producer:
                async with producer.transaction() as txn:
                    await producer.send("t", value, partition=0)
                    prepared.append(str(await txn.prepare()))
                    with pytest.raises(IllegalStateError, match="prepared"):
                        producer.send_nowait("t", b"x")
                with pytest.raises(IllegalStateError, match="prepared"):
                    async with producer.transaction():
                        pass
        await trio.sleep(3600)
        assert open_at_the_broker(cluster, "kept")
        assert open_at_the_broker(cluster, "dropped")
        for _ in range(2):  # the second time it is known already
            async with producer_of(
                cluster, transactional_id="kept", two_phase_commit=True, commit_prepared=prepared[0]
            ):
                pass
        async with producer_of(
            cluster, transactional_id="dropped", two_phase_commit=True
        ) as producer:
            async with producer.transaction() as txn:
                await producer.send("t", b"both", partition=1)
                await txn.prepare()
                await txn.commit()
        await until_closed(cluster, "dropped")
        assert await committed(cluster) == [b"kept", b"both"]


@pytest.mark.parametrize("inside", [True, False])
async def test_cut_commit_leaves_it_prepared(inside: bool, autojump_clock: Clock) -> None:
    """The decision to commit may be recorded elsewhere, so the end of the block does not abort."""
    async with ScriptedCluster(topics={"t": 2}) as cluster:
        cluster.transactions.two_phase = True
        cluster.offer("InitProducerId", (0, 6))
        async with producer_of(cluster, two_phase_commit=True) as producer:
            with trio.CancelScope() as outer:
                async with producer.transaction() as txn:
                    await producer.send("t", b"x", partition=0)
                    prepared = str(await txn.prepare())
                    with trio.CancelScope() as inner:
                        (inner if inside else outer).cancel()
                        await txn.commit()
            assert (inner if inside else outer).cancelled_caught
        assert open_at_the_broker(cluster)
        async with producer_of(cluster, two_phase_commit=True, commit_prepared=prepared):
            pass
        await until_closed(cluster)
        assert await committed(cluster) == [b"x"]


async def test_missing_two_phase_commit_is_explained(autojump_clock: Clock) -> None:
    async with ScriptedCluster() as cluster:
        cluster.offer("InitProducerId", (0, 6))
        with pytest.raises(AuthorizationError, match=r"transaction\.two\.phase\.commit\.enable"):
            async with producer_of(cluster, two_phase_commit=True):
                pass
        cluster.offer("InitProducerId", (0, 5))
        with pytest.raises(UnsupportedVersionError, match="KIP-939"):
            async with producer_of(cluster, two_phase_commit=True):
                pass
    async with transacting() as (_, producer):
        with pytest.raises(ConfigurationError, match="two_phase_commit"):
            async with producer.transaction() as txn:
                await txn.prepare()


@both
async def test_exhausted_epochs_are_replaced(version: int, autojump_clock: Clock) -> None:
    """The coordinator gives another producer id, unnoticed by the program."""
    async with ScriptedCluster(topics={"t": 2}, transaction_version=version) as cluster:
        async with producer_of(cluster):
            pass
        cluster.transactions.by_id["x"].epoch = 2**15 - 6
        async with producer_of(cluster) as producer:
            for number in range(10):
                async with producer.transaction():
                    await producer.send("t", b"%d" % number, partition=0)
                with pytest.raises(Own):
                    async with producer.transaction():
                        await producer.send("t", b"never", partition=0)
                        raise Own
        await until_closed(cluster)
        assert await committed(cluster) == [b"%d" % number for number in range(10)]


@both
async def test_quota_on_transactions_is_kept(version: int, autojump_clock: Clock) -> None:
    """KIP-219: responses of the coordinator may ask for a pause."""
    async with transacting(version) as (cluster, producer):

        async def slow_down(request: Any, default: Any) -> Any:
            response = await default()
            response.throttle_time_ms = 1500
            return response

        cluster.on("EndTxn", slow_down, times=1)
        for _ in range(2):
            async with producer.transaction():
                await producer.send("t", b"v", partition=0)
        first, second = [seen.time for seen in cluster.requests("EndTxn")]
        assert second - first == 1.5


async def test_lent_transaction_is_filled_and_not_ended(autojump_clock: Clock) -> None:
    """Blocks may overlap; the lender ends the transaction after all of them."""
    async with transacting() as (cluster, producer):
        async with producer.transaction() as txn:
            with txn.lend():
                with txn.lend():
                    await producer.send("t", b"a", partition=0)
                for end in (txn.commit, txn.abort, txn.prepare, txn.detach):
                    with pytest.raises(trikafka.IllegalStateError, match="does not end its"):
                        await end()
            await txn.commit()
        await until_closed(cluster)
        assert await committed(cluster) == [b"a"]
