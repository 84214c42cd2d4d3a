"""INVALID_TXN_STATE, from any request, is raised as one of the client's own errors."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from transacting import committed, transacting, until_closed
from trio.testing import MockClock as Clock

import trikafka
from trikafka import TopicPartition
from trikafka.error_codes import ErrorCode
from trikafka.errors import ProducerFencedError, TransactionAbortableError, TransactionFatalError

APIS = (
    "AddPartitionsToTxn",
    "Produce",
    "AddOffsetsToTxn",
    "TxnOffsetCommit",
    "EndTxn",
    "InitProducerId",
)
OURS = (TransactionAbortableError, TransactionFatalError, ProducerFencedError)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("ending", ["commit", "abort"])
@pytest.mark.parametrize("api", APIS)
async def test_invalid_txn_state_is_never_raised_plain(
    api: str, ending: str, version: int, autojump_clock: Clock
) -> None:
    raised: list[Exception] = []
    async with transacting(version) as (cluster, producer):

        async def step(call: Any, *args: Any, **fields: Any) -> None:
            try:
                await call(*args, **fields)
            except trikafka.TrikafkaError as error:
                raised.append(error)

        said = cluster.fail(api, ErrorCode.INVALID_TXN_STATE)
        with trio.fail_after(60):
            try:
                async with producer.transaction() as txn:
                    await step(producer.send, "t", b"x", partition=0)
                    await step(
                        txn.send_offsets, {TopicPartition("t", 1): 1}, trikafka.GroupMetadata("g")
                    )
                    await step(txn.commit if ending == "commit" else txn.abort)
                async with producer.transaction():
                    await producer.send("t", b"after", partition=1)
            except trikafka.TrikafkaError as error:
                raised.append(error)
        assert [error for error in raised if not isinstance(error, OURS)] == []
        said.remove()
        if not any(
            isinstance(error, TransactionFatalError | ProducerFencedError) for error in raised
        ):
            async with producer.transaction():
                await producer.send("t", b"last", partition=1)
            await until_closed(cluster)
            assert (await committed(cluster))[-1:] == [b"last"]
