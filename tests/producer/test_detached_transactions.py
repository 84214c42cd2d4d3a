"""Transactions that a producer detaches and another client ends, in both protocol versions."""

# ruff: noqa: PT012 (it is a whole block of a transaction that raises)

from __future__ import annotations

import pickle
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Any

import pytest
import trio
from transacting import committed, open_at_the_broker, producer_of, transacting, until_closed
from trio.testing import MockClock as Clock

import trikafka
from trikafka import Admin, DetachedTransaction, ErrorCode, OffsetAndMetadata, TopicPartition
from trikafka.errors import (
    AuthorizationError,
    BrokerResponseError,
    ConfigurationError,
    IllegalStateError,
    KafkaConnectionError,
    KafkaTimeoutError,
    TransactionAbortableError,
    TransactionNotOpenError,
    TransactionUndecidedError,
)
from trikafka.testing import ScriptedCluster, assert_all_awaits_cancellable

T0 = TopicPartition("t", 0)
GROUP = trikafka.GroupMetadata("g")
both = pytest.mark.parametrize("version", [1, 2])
Detached = tuple[ScriptedCluster, Admin, DetachedTransaction]


def admin_of(cluster: ScriptedCluster) -> AbstractAsyncContextManager[Admin]:
    return trikafka.open_admin(bootstrap_servers=cluster.bootstrap_servers, dial=cluster.dial)


async def detach(cluster: ScriptedCluster, name: str = "x", **settings: Any) -> DetachedTransaction:
    """Return a transaction with two records and an offset, left open by a closed producer."""
    async with producer_of(cluster, transactional_id=name, **settings) as producer:
        await producer.partitions_for("t")
        async with producer.transaction() as txn:
            await producer.enqueue("t", b"a", partition=0)
            await producer.enqueue("t", b"b", partition=1)
            await txn.send_offsets({T0: OffsetAndMetadata(1, metadata="mark")}, GROUP)
            return await txn.detach()


@asynccontextmanager
async def detached(version: int, **settings: Any) -> AsyncIterator[Detached]:
    async with ScriptedCluster(nodes=2, topics={"t": 2}, transaction_version=version) as cluster:
        cluster.move_coordinator(0)
        async with admin_of(cluster) as admin:
            yield cluster, admin, await detach(cluster, **settings)


@both
async def test_cut_commit_leaves_it_detached(version: int, autojump_clock: Clock) -> None:
    async with transacting(version) as (cluster, producer):
        with trio.CancelScope() as scope:
            async with producer.transaction() as txn:
                await producer.send("t", b"x", partition=0)
                await txn.detach()
                scope.cancel()
                await txn.commit()
        assert open_at_the_broker(cluster)


def code_of(error: BaseException) -> int | None:
    """Return the coordinator's error code."""
    assert isinstance(error.__cause__, BrokerResponseError)
    return error.__cause__.code


async def seen(cluster: ScriptedCluster) -> list[bytes | None]:
    await until_closed(cluster)
    return await committed(cluster)


@both
async def test_admin_commits_a_detached_transaction(version: int, autojump_clock: Clock) -> None:
    async with detached(version) as (cluster, admin, transaction):
        assert pickle.loads(pickle.dumps(transaction)) == transaction
        assert (transaction.transactional_id, transaction.version) == ("x", version)
        assert open_at_the_broker(cluster)
        assert cluster.committed("g", T0) is None
        assert len(cluster.requests("EndTxn")) == 0
        await admin.end_transaction(transaction, commit=True)
        assert await seen(cluster) == [b"a", b"b"]
        assert cluster.committed("g", T0) == OffsetAndMetadata(1, metadata="mark")
        await admin.end_transaction(transaction, commit=True)  # it is as it was asked to be
        with pytest.raises(TransactionNotOpenError, match="it has been ended") as caught:
            await admin.end_transaction(transaction, commit=False)
        assert code_of(caught.value) == ErrorCode.INVALID_TXN_STATE
        assert await seen(cluster) == [b"a", b"b"]


@both
async def test_named_offset_waits_for_the_transaction(version: int, autojump_clock: Clock) -> None:
    async with detached(version) as (_, admin, transaction):
        assert await admin.list_group_offsets("g") == {}
        with pytest.raises(KafkaTimeoutError, match=r"list_group_offsets.*UNSTABLE_OFFSET_COMMIT"):
            await admin.list_group_offsets("g", [T0], timeout=1)
        await admin.end_transaction(transaction, commit=True)
        assert await admin.list_group_offsets("g", [T0]) == {
            T0: OffsetAndMetadata(1, metadata="mark")
        }
        assert await admin.list_group_offsets("g", [TopicPartition("t", 1)]) == {}


@both
async def test_admin_aborts_a_detached_transaction(version: int, autojump_clock: Clock) -> None:
    async with detached(version) as (cluster, admin, transaction):
        await admin.end_transaction(transaction, commit=False)
        await admin.end_transaction(transaction, commit=False)
        with pytest.raises(
            TransactionNotOpenError, match=r"committing the transaction 'x'.*it has been ended"
        ):
            await admin.end_transaction(transaction, commit=True)
        assert await seen(cluster) == []


@both
async def test_expired_transaction_cannot_be_ended(version: int, autojump_clock: Clock) -> None:
    async with detached(version, transaction_timeout_ms=30_000) as (cluster, admin, transaction):
        await trio.sleep(29)
        assert open_at_the_broker(cluster)
        await trio.sleep(2)
        with pytest.raises(
            TransactionNotOpenError, match="longer than its transaction_timeout_ms"
        ) as caught:
            await admin.end_transaction(transaction, commit=True)
        assert code_of(caught.value) == (
            ErrorCode.PRODUCER_FENCED if version == 1 else ErrorCode.INVALID_TXN_STATE
        )
        assert await seen(cluster) == []


@both
async def test_reused_id_ends_the_detached_transaction(version: int, autojump_clock: Clock) -> None:
    async with detached(version) as (cluster, admin, transaction):
        second = await detach(cluster)
        with pytest.raises(
            TransactionNotOpenError, match="another producer was opened with its transactional id"
        ):
            await admin.end_transaction(transaction, commit=True)
        with pytest.raises(TransactionNotOpenError):
            await admin.end_transaction(transaction, commit=False)
        await admin.end_transaction(second, commit=True)
        assert await seen(cluster) == [b"a", b"b"]


@both
@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    ],
)
async def test_transient_errors_of_the_end_are_retried(
    version: int, code: ErrorCode, autojump_clock: Clock
) -> None:
    async with detached(version) as (cluster, admin, transaction):
        cluster.fail("EndTxn", code, 3)
        await admin.end_transaction(transaction, commit=True)
        assert await seen(cluster) == [b"a", b"b"]
        assert len(cluster.requests("EndTxn")) == 4


@both
async def test_moved_coordinator_is_found(version: int, autojump_clock: Clock) -> None:
    async with detached(version) as (cluster, admin, transaction):
        other = await detach(cluster, "y")
        await admin.end_transaction(other, commit=False)
        cluster.move_coordinator(1)
        await admin.end_transaction(transaction, commit=True)
        assert await seen(cluster) == [b"a", b"b"]


@both
async def test_end_is_undecided_without_a_coordinator(version: int, autojump_clock: Clock) -> None:
    async with detached(version) as (cluster, admin, transaction):
        cluster.fail("EndTxn", ErrorCode.NOT_COORDINATOR, None)
        began = trio.current_time()
        with pytest.raises(
            TransactionUndecidedError, match="end_transaction may be called again"
        ) as caught:
            await admin.end_transaction(transaction, commit=True, timeout=5)
        assert trio.current_time() - began == pytest.approx(5, abs=0.05)
        assert isinstance(caught.value.__cause__, BrokerResponseError)


@both
@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.PRODUCER_FENCED,
    ],
)
async def test_final_error_of_the_end_is_not_retried(
    version: int, code: ErrorCode, autojump_clock: Clock
) -> None:
    async with detached(version) as (cluster, admin, transaction):
        cluster.fail("EndTxn", code, None)
        with pytest.raises(TransactionNotOpenError, match="not open any more") as caught:
            await admin.end_transaction(transaction, commit=True)
        assert code_of(caught.value) == code
        assert len(cluster.requests("EndTxn")) == 1
        with pytest.raises(TransactionNotOpenError):
            await admin.end_transaction(DetachedTransaction("nobody's", 7, 0, version), commit=True)


@both
async def test_lost_response_of_the_end_is_retried(version: int, autojump_clock: Clock) -> None:
    async with detached(version) as (cluster, admin, transaction):
        cluster.drop("EndTxn", 2, after=True)
        await admin.end_transaction(transaction, commit=True)
        assert await seen(cluster) == [b"a", b"b"]
        assert len(cluster.requests("EndTxn")) == 3


@both
async def test_lost_end_names_a_possible_earlier_one(version: int, autojump_clock: Clock) -> None:
    """The response is lost and another producer takes the id.

    The error says that an earlier attempt may have ended the transaction.
    """
    async with detached(version) as (cluster, admin, transaction):

        async def lose(request: Any, default: Callable[[], Awaitable[Any]]) -> Any:
            await default()
            async with producer_of(cluster):
                pass
            cluster.disconnect()

        cluster.on("EndTxn", lose, 1)
        with pytest.raises(
            TransactionNotOpenError,
            match="perhaps by an earlier attempt of this call, whose response is missing",
        ):
            await admin.end_transaction(transaction, commit=True)
        assert await seen(cluster) == [b"a", b"b"]


@both
async def test_frozen_coordinator_leaves_it_undecided(version: int, autojump_clock: Clock) -> None:
    async with detached(version) as (cluster, admin, transaction):
        await admin.describe_transactions(["x"])
        cluster.freeze(0)
        began = trio.current_time()
        with pytest.raises(
            TransactionUndecidedError,
            match=r"whether the transaction 'x' .* has ended is not known",
        ):
            await admin.end_transaction(transaction, commit=True, timeout=3)
        assert trio.current_time() - began == pytest.approx(3, abs=0.05)
        cluster.thaw(0)
        await admin.end_transaction(transaction, commit=True)
        assert await seen(cluster) == [b"a", b"b"]


@both
async def test_end_without_retries_is_undecided(version: int, autojump_clock: Clock) -> None:
    async with detached(version) as (cluster, _, transaction):
        given: dict[str, Any] = {
            "bootstrap_servers": cluster.bootstrap_servers,
            "dial": cluster.dial,
        }
        async with trikafka.open_admin(**given, retries=0) as admin:
            await admin.describe_transactions(["x"])
            cluster.drop("EndTxn", 1, after=True)
            with pytest.raises(TransactionUndecidedError, match="has ended is not known") as caught:
                await admin.end_transaction(transaction, commit=True)
            assert isinstance(caught.value.__cause__, KafkaConnectionError)
            await admin.end_transaction(transaction, commit=True)
            assert await seen(cluster) == [b"a", b"b"]


@both
async def test_transaction_of_another_cluster_is_refused(
    version: int, autojump_clock: Clock
) -> None:
    async with detached(version) as (_, admin, _transaction):
        with pytest.raises(
            TransactionNotOpenError, match="this cluster never had it, or it has been ended"
        ):
            await admin.end_transaction(DetachedTransaction("nobody's", 7, 0, version), commit=True)


@both
async def test_missing_permission_names_the_operation(version: int, autojump_clock: Clock) -> None:
    async with detached(version) as (cluster, admin, transaction):
        cluster.fail("EndTxn", ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        with pytest.raises(AuthorizationError, match="it needs the operation Write"):
            await admin.end_transaction(transaction, commit=True)
        assert open_at_the_broker(cluster)


@both
async def test_cancelled_end_can_be_repeated(version: int, autojump_clock: Clock) -> None:
    async def scenario(given: Detached) -> None:
        await given[1].end_transaction(given[2], commit=True)

    async def check(given: Detached) -> None:
        cluster, admin, transaction = given
        with trio.fail_after(60):
            await admin.end_transaction(transaction, commit=True)
            assert await seen(cluster) == [b"a", b"b"]

    assert (
        await assert_all_awaits_cancellable(scenario, check, setup=lambda: detached(version)) >= 3
    )


@both
async def test_cancelled_detach_aborts(version: int, autojump_clock: Clock) -> None:
    """A transaction cancelled before ``detach`` returns is aborted like any other."""
    handed: list[DetachedTransaction] = []

    async def scenario(given: tuple[ScriptedCluster, trikafka.Producer]) -> None:
        handed.clear()
        async with given[1].transaction() as txn:
            await given[1].enqueue("t", b"a", partition=0)
            handed.append(await txn.detach())

    async def check(given: tuple[ScriptedCluster, trikafka.Producer]) -> None:
        cluster, producer = given
        with trio.fail_after(60):
            await producer.aclose()
            async with admin_of(cluster) as admin:
                for transaction in handed:
                    await admin.end_transaction(transaction, commit=True)
            assert await seen(cluster) == [b"a"] * len(handed)

    assert (
        await assert_all_awaits_cancellable(scenario, check, setup=lambda: transacting(version))
        >= 3
    )


@both
async def test_producer_may_end_what_it_detached(version: int, autojump_clock: Clock) -> None:
    """Until then it takes no records and begins no other transaction."""
    async with transacting(version) as (cluster, producer):
        async with producer.transaction() as txn:
            await producer.send("t", b"a", partition=0)
            await txn.detach()
            with pytest.raises(IllegalStateError):
                producer.send_nowait("t", b"x", partition=0)
            with pytest.raises(IllegalStateError):
                await txn.detach()
        with pytest.raises(IllegalStateError):
            async with producer.transaction():
                pass
        await txn.commit()
        assert await seen(cluster) == [b"a"]
        async with producer.transaction():
            await producer.send("t", b"b", partition=0)
        assert await seen(cluster) == [b"a", b"b"]


@both
@pytest.mark.parametrize("own", ["commit", "abort"])
@pytest.mark.parametrize("late", [True, False])
async def test_late_end_spares_the_next_transaction(
    version: int, own: str, late: bool, autojump_clock: Clock
) -> None:
    """The producer has ended the transaction itself and begun the next one.

    In version 1 the next one would have the same epoch.
    """
    async with transacting(version) as (cluster, producer), admin_of(cluster) as admin:
        async with producer.transaction() as txn:
            await producer.send("t", b"a", partition=0)
            transaction = await txn.detach()
            await (txn.commit() if own == "commit" else txn.abort())
        async with producer.transaction():
            await producer.send("t", b"b", partition=0)
            with pytest.raises(TransactionNotOpenError, match="not open any more"):
                await admin.end_transaction(transaction, commit=late)
            assert open_at_the_broker(cluster)
            await producer.send("t", b"c", partition=0)
        assert await seen(cluster) == ([b"a"] if own == "commit" else []) + [b"b", b"c"]


@both
async def test_empty_or_failed_transaction_cannot_detach(
    version: int, autojump_clock: Clock
) -> None:
    async with transacting(version) as (cluster, producer):
        with pytest.raises(IllegalStateError, match="nothing was sent"):
            async with producer.transaction() as txn:
                await txn.detach()
        cluster.fail("Produce", ErrorCode.INVALID_RECORD)
        with pytest.raises(TransactionAbortableError):
            async with producer.transaction() as txn:
                with suppress(BrokerResponseError):
                    await producer.send("t", b"refused", partition=0)
                await txn.detach()
        async with producer.transaction():
            await producer.send("t", b"b", partition=0)
        assert await seen(cluster) == [b"b"]


async def test_wrong_type_is_refused_by_end_transaction(autojump_clock: Clock) -> None:
    async with detached(2) as (_, admin, _transaction):
        with pytest.raises(ConfigurationError, match=r"what Transaction.detach\(\) returned"):
            await admin.end_transaction("x", commit=True)  # type: ignore[arg-type]
