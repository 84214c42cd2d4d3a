"""Begins of exactly-once parts, and aborts by them, in a scripted cluster and virtual time."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
import trio
from trikafka_spark import commit_protocol
from trikafka_spark.write_options import WriteOptions
from trikafka_spark.write_parts import Part, find_begun_part, note_begun_part

import trikafka
from trikafka import Admin, ErrorCode, TrikafkaError
from trikafka.testing import ScriptedCluster

EARLIER, LATER = Part("x-0", "run", 0, "earlier"), Part("x-0", "run", 0, "later")


@pytest.fixture
async def cluster() -> AsyncIterator[ScriptedCluster]:
    async with ScriptedCluster(topics={"t": 2}) as cluster:
        yield cluster


@pytest.fixture
async def admin(cluster: ScriptedCluster) -> AsyncIterator[Admin]:
    async with trikafka.open_admin(**settings_for(cluster)) as admin:
        yield admin


def settings_for(cluster: ScriptedCluster) -> dict[str, Any]:
    return {"bootstrap_servers": cluster.bootstrap_servers, "dial": cluster.dial}


async def open_transaction(
    cluster: ScriptedCluster, stack: AsyncExitStack, name: str = EARLIER.transactional_id
) -> None:
    """Leave an open transaction, as a killed worker does."""
    producer = await stack.enter_async_context(
        trikafka.open_producer(**settings_for(cluster), transactional_id=name)
    )
    async with producer.transaction() as txn:
        await producer.send("t", b"row")
        await txn.detach()


async def test_missing_topic_costs_no_time(
    autojump_clock: object, cluster: ScriptedCluster, admin: Admin
) -> None:
    before = trio.current_time()
    await note_begun_part(admin, EARLIER, "missing")
    assert trio.current_time() - before < 1
    assert not cluster.requests("OffsetCommit")


async def keep_offsets(cluster: ScriptedCluster, admin: Admin, times: int | None = None) -> None:
    """Respond with the present begins, as a coordinator that has not noticed a deletion."""
    kept: list[Any] = []

    async def remember(request: Any, default: Any) -> Any:
        kept.append(await default())
        return kept[0]

    async def repeat(request: Any, default: Any) -> Any:
        return kept[0]

    cluster.on("OffsetFetch", remember, times=1)
    await admin.list_group_offsets(EARLIER.begins)
    cluster.on("OffsetFetch", repeat, times=times)


async def test_begin_in_a_deleted_topic_costs_no_time(
    autojump_clock: object, cluster: ScriptedCluster, admin: Admin
) -> None:
    cluster.create_topic("old", 1)
    await note_begun_part(admin, EARLIER, "old")
    await keep_offsets(cluster, admin)
    cluster.delete_topic("old")
    before = trio.current_time()
    await note_begun_part(admin, LATER, "t")
    assert trio.current_time() - before < 1
    assert (found := cluster.committed(LATER.begins, ("t", 0))) is not None
    assert "later" in str(found.metadata)


@pytest.mark.parametrize("topic", ["old", "missing"])
async def test_begin_of_another_run_must_be_replaced(
    autojump_clock: object, topic: str, cluster: ScriptedCluster, admin: Admin
) -> None:
    """An attempt without a begin must not open the id beside the begin of another run."""
    cluster.create_topic("old", 1)
    await note_begun_part(admin, EARLIER, "old")
    await keep_offsets(cluster, admin)
    cluster.delete_topic("old")
    with pytest.raises(TrikafkaError, match=r"x-0-begun has a begin of another run.* of old, "):
        await note_begun_part(admin, LATER, topic)
    await note_begun_part(admin, EARLIER, topic)


async def test_deletion_of_an_earlier_begin_is_waited_for(
    autojump_clock: object, cluster: ScriptedCluster, admin: Admin
) -> None:
    cluster.create_topic("old", 1)
    await note_begun_part(admin, EARLIER, "old")
    await keep_offsets(cluster, admin, times=1)
    cluster.delete_topic("old")
    await note_begun_part(admin, LATER, "old")


async def test_begin_that_may_not_be_replaced_is_no_abort(
    autojump_clock: object, cluster: ScriptedCluster, admin: Admin
) -> None:
    """Beside the begin of another run, no run may abort the transaction."""
    cluster.create_topic("old", 1)
    await note_begun_part(admin, EARLIER, "old")
    cluster.fail("OffsetCommit", ErrorCode.TOPIC_AUTHORIZATION_FAILED, None, topic="old")
    await note_begun_part(admin, LATER, "t")
    async with AsyncExitStack() as stack:
        await open_transaction(cluster, stack)
        assert await find_begun_part(admin, EARLIER) is None
        assert await find_begun_part(admin, LATER) is None


@pytest.mark.parametrize("at", ["before", "after"])
async def test_replaced_begin_is_not_found(
    autojump_clock: object, at: str, cluster: ScriptedCluster, admin: Admin
) -> None:
    """The begin of another run counts on both sides of the look at the transaction."""
    first, then = (LATER, EARLIER) if at == "before" else (EARLIER, LATER)
    await note_begun_part(admin, first, "t")

    async def replace(request: Any, default: Any) -> Any:
        async with trikafka.open_admin(**settings_for(cluster)) as another:
            await note_begun_part(another, then, "t")
        return await default()

    async with AsyncExitStack() as stack:
        await open_transaction(cluster, stack)
        assert await find_begun_part(admin, first) is not None
        cluster.on("DescribeTransactions", replace, times=1)
        assert await find_begun_part(admin, EARLIER) is None


async def test_begin_without_a_transaction_is_not_found(
    autojump_clock: object, cluster: ScriptedCluster, admin: Admin
) -> None:
    await note_begun_part(admin, EARLIER, "t")
    assert await find_begun_part(admin, EARLIER) is None


async def abort(cluster: ScriptedCluster, tasks: int) -> None:
    settings = {**settings_for(cluster), "default_api_timeout_ms": 10_000}
    options = WriteOptions(
        settings, {"value": "value"}, "t", exactly_once=True, transactional_id="x"
    )
    await commit_protocol._abort_begun(options, tasks, EARLIER.write)


@pytest.mark.parametrize("api", ["OffsetFetch", "DescribeTransactions", "EndTxn"])
async def test_transactions_that_stay_open_are_logged(
    autojump_clock: object,
    api: str,
    cluster: ScriptedCluster,
    admin: Admin,
    caplog: pytest.LogCaptureFixture,
) -> None:
    await note_begun_part(admin, EARLIER, "t")
    async with AsyncExitStack() as stack:
        await open_transaction(cluster, stack)
        rule = cluster.delay(api, 1_000)
        await abort(cluster, 1)
        assert "transactions of a failed write may still be open" in caplog.text
        assert "transaction.timeout.ms: x-0" in caplog.text
        rule.remove()


async def test_unreachable_cluster_is_logged(
    autojump_clock: object, cluster: ScriptedCluster, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.delay("ApiVersions", 1_000)
    await abort(cluster, 5)
    assert "transaction.timeout.ms: x-0, x-1, x-2 and 2 more" in caplog.text


async def test_complete_abort_logs_nothing(
    autojump_clock: object, cluster: ScriptedCluster, admin: Admin, caplog: pytest.LogCaptureFixture
) -> None:
    """A task may have begun, or not, and its transaction may be open, or not."""
    caplog.set_level(logging.WARNING)
    await note_begun_part(admin, EARLIER, "t")
    async with AsyncExitStack() as stack:
        await open_transaction(cluster, stack)
        await abort(cluster, 3)
        seen = await admin.describe_transactions([EARLIER.transactional_id])
        assert seen[EARLIER.transactional_id].state == "CompleteAbort"
        await abort(cluster, 3)
    assert not caplog.records
