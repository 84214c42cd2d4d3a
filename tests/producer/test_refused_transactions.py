"""A transactional producer whose rights or credentials are missing for a while continues when they
return.
"""

from __future__ import annotations

from typing import Any

import pytest
import trio
from test_refused_credentials import PLAIN, Guarded
from transacting import Given, committed, producer_of, transacting
from trio.testing import MockClock as Clock

from trikafka import GroupMetadata, KafkaTimeoutError, TopicPartition
from trikafka._net.refusals import REFUSED_FOR
from trikafka.error_codes import ErrorCode
from trikafka.errors import (
    AuthenticationError,
    AuthorizationError,
    TransactionAbortableError,
    TransactionError,
)
from trikafka.testing import ScriptedCluster

NOT_FOR_ID = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
both = pytest.mark.parametrize("version", [1, 2])
APIS = (
    "InitProducerId",
    "AddPartitionsToTxn",
    "AddOffsetsToTxn",
    "TxnOffsetCommit",
    "Produce",
    "EndTxn",
)


class Rights:
    """The access rules of the transactional id."""

    def __init__(self, cluster: ScriptedCluster) -> None:
        self._cluster = cluster
        self._rules: list[Any] = []

    def take(self, *apis: str) -> None:
        code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        self._rules = [self._cluster.fail(api, code, None) for api in apis or APIS]

    def give(self) -> None:
        for rule in self._rules:
            rule.remove()


async def one_more(given: Given, value: bytes) -> None:
    async with given[1].transaction():
        await given[1].send("t", value, partition=0)


@both
@pytest.mark.parametrize("missing", APIS)
async def test_producer_continues_with_returned_rights(
    version: int, missing: str, autojump_clock: Clock
) -> None:
    async with transacting(version) as given:
        cluster, producer = given
        await one_more(given, b"first")
        rights = Rights(cluster)
        rights.take(missing)
        failed: Exception | None = None
        try:
            async with producer.transaction() as txn:
                await producer.send("t", b"lost", partition=0)
                await txn.send_offsets({TopicPartition("t", 0): 1}, GroupMetadata("g"))
        except (TransactionError, AuthorizationError) as error:
            failed = error
        if failed is not None:
            refusal = failed if isinstance(failed, AuthorizationError) else failed.__cause__
            assert isinstance(refusal, AuthorizationError)
        await trio.sleep(4)
        rights.give()
        began = trio.current_time()
        await one_more(given, b"last")
        assert trio.current_time() - began < 2
        expected = [b"first", b"last"] if failed is not None else [b"first", b"lost", b"last"]
        assert await committed(cluster) == expected


@pytest.mark.parametrize(
    ("version", "api", "code", "operation", "resource"),
    [
        (1, "AddOffsetsToTxn", ErrorCode.GROUP_AUTHORIZATION_FAILED, "Read", "'g'"),
        (1, "AddOffsetsToTxn", NOT_FOR_ID, "Write", "'x'"),
        (2, "TxnOffsetCommit", ErrorCode.GROUP_AUTHORIZATION_FAILED, "Read", "'g'"),
        (2, "TxnOffsetCommit", ErrorCode.TOPIC_AUTHORIZATION_FAILED, "Read", "t-0"),
        (2, "TxnOffsetCommit", NOT_FOR_ID, "Write", "'x'"),
        (2, "Produce", NOT_FOR_ID, "Write", "'x'"),
    ],
)
async def test_refusal_names_the_right(
    version: int, api: str, code: int, operation: str, resource: str, autojump_clock: Clock
) -> None:
    async with transacting(version) as (cluster, producer):
        cluster.fail(api, code, None)

        async def transact() -> None:
            async with producer.transaction() as txn:
                await producer.send("t", b"lost", partition=0)
                await txn.send_offsets({TopicPartition("t", 0): 1}, GroupMetadata("g"))

        with pytest.raises((TransactionAbortableError, AuthorizationError)) as raised:
            await transact()
        refusal = raised.value if api == "Produce" else raised.value.__cause__
        assert isinstance(refusal, AuthorizationError)
        assert refusal.operation == operation
        assert resource in str(refusal)


@both
async def test_next_transaction_waits_for_rights(version: int, autojump_clock: Clock) -> None:
    async with transacting(version, default_api_timeout_ms=5_000, close_timeout_ms=1_000) as given:
        cluster, producer = given
        rights = Rights(cluster)
        failed = None
        try:
            async with producer.transaction():
                await producer.send("t", b"lost", partition=0)
                rights.take()
        except TransactionAbortableError as error:
            failed = error
        assert failed is not None
        for _ in range(3):
            with pytest.raises(KafkaTimeoutError, match="TRANSACTIONAL_ID_AUTHORIZATION_FAILED"):
                async with producer.transaction():
                    pass
        asked = [seen.time for seen in cluster.requests("EndTxn")]
        assert len(asked) < 30, "about one a second"
        rights.give()
        await one_more(given, b"last")
        assert await committed(cluster) == [b"last"]


async def test_producer_continues_with_good_credentials(autojump_clock: Clock) -> None:
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        guard = Guarded(cluster)
        async with producer_of(cluster, **PLAIN) as producer:
            given = (cluster, producer)
            await one_more(given, b"first")
            failed: Exception | None = None
            try:
                async with producer.transaction():
                    await producer.send("t", b"lost")
                    guard.shut()
                    await trio.sleep(0.1)
            except (TransactionError, AuthenticationError) as error:
                failed = error
            assert failed is not None
            assert guard.asked <= 2
            await trio.sleep(4)
            guard.welcome = True
            began = trio.current_time()
            await one_more(given, b"last")
            assert trio.current_time() - began < REFUSED_FOR + 2
            assert await committed(cluster, 1) == [b"first", b"last"]
