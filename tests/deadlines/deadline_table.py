"""The table: every call of the three clients that reaches the network, and its faults (seed 000).

The rule that the tests hold, in virtual time, for a limit L and GRACE (25 ms, DESIGN 4):

* A call that gets no response ends exactly at ``max(L, GRACE)``: its one step is cut there.
* A call that fails again and again ends at L, or, when less than GRACE was left as its last step began, up to ``L + GRACE``.
* With ``L = 0`` there is one attempt: a response that comes in one round trip is taken.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Literal

import trio
import trio.testing

import trikafka
from trikafka import GroupMetadata, NewTopic, OffsetSpec, TopicPartition
from trikafka.testing import ScriptedCluster

TELEMETRY = "GetTelemetrySubscriptions"
GRACE = 0.025
LIMIT = 0.7
TP = TopicPartition("t", 0)
DETACHED = trikafka.DetachedTransaction("x", 1, 0, 2)
_numbers = itertools.count()

Fault = Literal["frozen", "killed", "black hole", "error"]
FAULTS: tuple[Fault, ...] = ("frozen", "killed", "black hole", "error")
#: Every API that a call may need: those that a slow broker is slow with.
APIS = (
    "Metadata",
    "FindCoordinator",
    "ListOffsets",
    "OffsetFetch",
    "OffsetCommit",
    "CreateTopics",
    "DeleteTopics",
    "CreatePartitions",
    "DescribeConfigs",
    "ListGroups",
    "DescribeGroups",
    "DeleteGroups",
    "DescribeCluster",
    "AlterPartitionReassignments",
    "DescribeShareGroupOffsets",
    "InitProducerId",
    "Produce",
    TELEMETRY,
    "ListTransactions",
    "DescribeTransactions",
    "DescribeProducers",
    "WriteTxnMarkers",
    "AddPartitionsToTxn",
    "AddOffsetsToTxn",
    "TxnOffsetCommit",
    "EndTxn",
)


@dataclass(frozen=True)
class Row:
    """One call.

    ``error`` is the code that the broker returns for ever (``None``: it closes the connection
    instead); ``needs`` the API whose response the call cannot do without. ``ends`` is how it
    ends past its limit: with ``KafkaTimeoutError``, or quietly. A call without ``timeout=``
    (``limited`` is false) has its limit from the settings. ``before`` is done before the broker
    gets into trouble, ``then`` after that and before the call.
    """

    client: Literal["consumer", "producer", "transactions", "admin"]
    name: str
    needs: str
    error: int | None
    run: Callable[[ScriptedCluster, Any, dict[str, Any]], Awaitable[Any]]
    ends: Literal["timeout", "quiet"] = "timeout"
    limited: bool = True
    call: str = ""  # the name that the error gives, where it is another
    refusals: tuple[type[Exception], ...] = ()  # of a healthy broker: a response all the same
    remembered: bool = False  # once answered, the broker is not asked again
    before: Callable[[Any], Awaitable[Any]] | None = None
    then: Callable[[Any], Awaitable[Any]] | None = None
    alone: bool = False  # one at a time
    # Of many at once several may end with the very same error: that of their batch.
    shared: bool = False
    version: int = 2  # of the protocol of transactions

    def __str__(self) -> str:
        return f"{self.client}-{self.name}"


def _new() -> str:
    return f"new{next(_numbers)}"


def _existing(cluster: ScriptedCluster) -> str:
    cluster.create_topic(name := _new(), 1)
    return name


CALLS = [
    Row(
        "consumer",
        "beginning_offsets",
        "ListOffsets",
        6,
        lambda _, c, k: c.beginning_offsets([TP], **k),
    ),
    Row("consumer", "end_offsets", "ListOffsets", 6, lambda _, c, k: c.end_offsets([TP], **k)),
    Row(
        "consumer",
        "offsets_for_times",
        "ListOffsets",
        6,
        lambda _, c, k: c.offsets_for_times({TP: 0}, **k),
    ),
    Row("consumer", "committed", "OffsetFetch", 16, lambda _, c, k: c.committed([TP], **k)),
    Row("consumer", "commit", "OffsetCommit", 16, lambda _, c, k: c.commit({TP: 2}, **k)),
    Row(
        "consumer", "position", "OffsetFetch", 16, lambda _, c, k: _position(c, k), remembered=True
    ),
    Row(
        "consumer",
        "client_instance_id",
        TELEMETRY,
        41,
        lambda _, c, k: c.client_instance_id(**k),
        remembered=True,
    ),
    Row(
        "consumer",
        "partitions_for",
        "Metadata",
        5,
        lambda cluster, c, k: c.partitions_for(_existing(cluster), **k),
    ),
    Row("consumer", "list_topics", "Metadata", None, lambda _, c, k: c.list_topics(**k)),
    Row("consumer", "topic_ids", "Metadata", None, lambda cluster, c, k: c.topic_ids(["t"], **k)),
    Row(
        "consumer",
        "receive_batch",
        "Fetch",
        6,
        lambda _, c, k: _receive(c, k),
        ends="quiet",
        alone=True,
    ),
    Row(
        "consumer",
        "receive",
        "Fetch",
        6,
        lambda _, c, k: _receive_one(c, k),
        ends="quiet",
        alone=True,
    ),
    Row("producer", "send", "Produce", 6, lambda _, p, k: p.send("t", b"v"), limited=False),
    Row(
        "producer",
        "send_arrow",
        "Produce",
        6,
        lambda _, p, k: _send_arrow(p),
        call="send",
        limited=False,
        shared=True,
    ),
    Row(
        "producer",
        "enqueue_arrow",
        "Metadata",
        5,
        lambda cluster, p, k: _enqueue_arrow(p, _existing(cluster)),
        limited=False,
    ),
    Row(
        "producer",
        "enqueue",
        "Metadata",
        5,
        lambda cluster, p, k: p.enqueue(_existing(cluster), b"v"),
        limited=False,
    ),
    Row("producer", "flush", "Produce", 6, lambda _, p, k: _flush(p, k)),
    Row(
        "producer",
        "partitions_for",
        "Metadata",
        5,
        lambda cluster, p, k: p.partitions_for(_existing(cluster), **k),
    ),
    Row(
        "producer",
        "client_instance_id",
        TELEMETRY,
        41,
        lambda _, p, k: p.client_instance_id(**k),
        remembered=True,
    ),
    Row(
        "transactions",
        "begin",
        "EndTxn",
        15,
        lambda _, t, k: t.begin(**k),
        call="transaction",
        before=lambda t: t.filled(),
        then=lambda t: t.abort_in_the_background(),
    ),
    Row(
        "transactions",
        "send",
        "Produce",
        6,
        lambda _, t, k: t.producer.send("t", b"v"),
        limited=False,
        before=lambda t: t.filled(),
    ),
    Row(
        "transactions",
        "send to a new partition",
        "AddPartitionsToTxn",
        15,
        lambda _, t, k: t.producer.send("t", b"v"),
        call="send",
        limited=False,
        before=lambda t: t.begun(),
        version=1,
    ),
    Row(
        "transactions",
        "send_offsets",
        "TxnOffsetCommit",
        15,
        lambda _, t, k: t.txn.send_offsets({TP: 1}, GroupMetadata("g"), **k),
        before=lambda t: t.begun(),
    ),
    Row(
        "transactions",
        "send_offsets, version 1",
        "AddOffsetsToTxn",
        15,
        lambda _, t, k: t.txn.send_offsets({TP: 1}, GroupMetadata("g"), **k),
        call="send_offsets",
        before=lambda t: t.begun(),
        version=1,
    ),
    Row(
        "transactions",
        "prepare",
        "Produce",
        6,
        lambda _, t, k: t.txn.prepare(**k),
        before=lambda t: t.filled(),
        then=lambda t: t.producer.enqueue("t", b"v"),
        alone=True,
    ),
    Row(
        "transactions",
        "detach",
        "Produce",
        6,
        lambda _, t, k: t.txn.detach(**k),
        before=lambda t: t.filled(),
        then=lambda t: t.producer.enqueue("t", b"v"),
        alone=True,
    ),
    Row(
        "transactions",
        "commit that delivers",
        "Produce",
        6,
        lambda _, t, k: t.txn.commit(**k),
        call="commit",
        before=lambda t: t.filled(),
        then=lambda t: t.producer.enqueue("t", b"v"),
    ),
    Row(
        "transactions",
        "commit",
        "EndTxn",
        15,
        lambda _, t, k: t.txn.commit(**k),
        before=lambda t: t.filled(),
    ),
    Row(
        "transactions",
        "abort",
        "EndTxn",
        15,
        lambda _, t, k: t.txn.abort(**k),
        before=lambda t: t.filled(),
    ),
    Row(
        "transactions",
        "flush",
        "Produce",
        6,
        lambda _, t, k: t.producer.flush(**k),
        before=lambda t: t.filled(),
        then=lambda t: t.producer.enqueue("t", b"v"),
    ),
    Row(
        "admin",
        "create_topics",
        "CreateTopics",
        41,
        lambda _, a, k: a.create_topics({_new(): NewTopic(1, 1)}, **k),
    ),
    Row(
        "admin",
        "delete_topics",
        "DeleteTopics",
        41,
        lambda cluster, a, k: a.delete_topics([_existing(cluster)], **k),
    ),
    Row(
        "admin",
        "create_partitions",
        "CreatePartitions",
        41,
        lambda o, a, k: a.create_partitions({_existing(o): 3}, **k),
    ),
    Row("admin", "list_topics", "Metadata", None, lambda _, a, k: a.list_topics(**k)),
    Row(
        "admin", "topic_configs", "DescribeConfigs", 7, lambda _, a, k: a.topic_configs(["t"], **k)
    ),
    Row(
        "admin",
        "client_instance_id",
        TELEMETRY,
        41,
        lambda _, a, k: a.client_instance_id(**k),
        remembered=True,
    ),
    Row(
        "admin",
        "describe_cluster",
        "DescribeCluster",
        41,
        lambda _, a, k: a.describe_cluster(**k),
    ),
    Row(
        "admin",
        "alter_partition_reassignments",
        "AlterPartitionReassignments",
        41,
        lambda _, a, k: a.alter_partition_reassignments({TP: [0]}, **k),
    ),
    Row(
        "admin",
        "list_share_group_offsets",
        "DescribeShareGroupOffsets",
        14,
        lambda _, a, k: a.list_share_group_offsets(["s"], **k),
    ),
    Row(
        "admin",
        "list_offsets",
        "ListOffsets",
        6,
        lambda _, a, k: a.list_offsets({TP: OffsetSpec.LATEST}, **k),
    ),
    Row("admin", "list_groups", "ListGroups", 14, lambda _, a, k: a.list_groups(**k)),
    Row(
        "admin",
        "describe_groups",
        "DescribeGroups",
        14,
        lambda _, a, k: a.describe_groups(["none"], **k),
        refusals=(trikafka.GroupIdNotFoundError,),
    ),
    Row(
        "admin",
        "list_group_offsets",
        "OffsetFetch",
        16,
        lambda _, a, k: a.list_group_offsets("g", **k),
    ),
    Row(
        "admin",
        "delete_groups",
        "DeleteGroups",
        14,
        lambda _, a, k: a.delete_groups([_new()], **k),
        refusals=(trikafka.errors.BrokerResponseError,),
    ),
    Row(
        "admin",
        "list_transactions",
        "ListTransactions",
        14,
        lambda _, a, k: a.list_transactions(**k),
    ),
    Row(
        "admin",
        "describe_transactions",
        "DescribeTransactions",
        14,
        lambda _, a, k: a.describe_transactions(["none"], **k),
        refusals=(trikafka.errors.BrokerResponseError,),
    ),
    Row(
        "admin",
        "describe_producers",
        "DescribeProducers",
        6,
        lambda _, a, k: a.describe_producers([TP], **k),
    ),
    Row(
        "admin",
        "find_hanging_transactions",
        "DescribeProducers",
        6,
        lambda _, a, k: a.find_hanging_transactions(**k),
    ),
    Row(
        "admin",
        "abort_transaction",
        "DescribeProducers",
        6,
        lambda _, a, k: a.abort_transaction(TP, 0, **k),
        refusals=(trikafka.TransactionNotOpenError,),
    ),
    Row(
        "admin",
        "end_transaction",
        "EndTxn",
        15,
        lambda _, a, k: a.end_transaction(DETACHED, commit=True, **k),
        refusals=(trikafka.TransactionNotOpenError,),
    ),
]
#: These end a client, so each is run once and alone.
CLOSINGS = [
    Row(
        "consumer",
        "unsubscribe",
        "LeaveGroup",
        14,
        lambda _, c, k: c.unsubscribe(**k),
        ends="quiet",
    ),
    Row("consumer", "aclose", "LeaveGroup", 14, lambda _, c, k: c.aclose(**k), ends="quiet"),
    Row("producer", "aclose", "Produce", 6, lambda _, p, k: p.aclose(**k), ends="quiet"),
    Row(
        "transactions",
        "aclose",
        "EndTxn",
        15,
        lambda _, t, k: t.producer.aclose(**k),
        ends="quiet",
        before=lambda t: t.filled(),
    ),
    Row("admin", "aclose", "Metadata", 5, lambda _, a, k: a.aclose(), ends="quiet", limited=False),
]


async def _position(consumer: trikafka.Consumer, options: dict[str, Any]) -> int:
    if not consumer.assignment():
        consumer.assign([TP])
    return await consumer.position(TP, **options)


async def _receive(consumer: trikafka.Consumer, options: dict[str, Any]) -> int:
    if not consumer.assignment():
        consumer.assign([TP])
    return len(await consumer.receive_batch(**options))


async def _receive_one(
    consumer: trikafka.Consumer, options: dict[str, Any]
) -> trikafka.Record | None:
    """Receive one record. The limit is the scope around the call.

    The row's own limit may end it, and a longer one must not have to.
    """
    if not consumer.assignment():
        consumer.assign([TP])
    limit = options["timeout"]
    with (trio.move_on_after if limit <= LIMIT else trio.fail_after)(limit):
        return await consumer.receive()
    return None


async def _enqueue_arrow(producer: trikafka.Producer, topic: str) -> trikafka.ArrowAck:
    import pyarrow as pa

    return await producer.enqueue_arrow(topic, pa.table({"value": [b"a", b"b"]}))


async def _send_arrow(producer: trikafka.Producer) -> trikafka.ArrowDelivery:
    """Raise the cause of the table's error, which is that of a record."""
    import pyarrow as pa

    try:
        return await producer.send_arrow("t", pa.table({"value": [b"a", b"b"]}))
    except trikafka.ArrowDeliveryError as error:
        cause = error.__cause__
        if error.delivered or cause is None or str(cause) not in str(error):
            raise
        raise cause from cause.__cause__


async def _flush(producer: trikafka.Producer, options: dict[str, Any]) -> None:
    await producer.enqueue("t", b"v")
    await producer.flush(**options)


class Transacting:
    """A producer of transactions, with its latest transaction."""

    def __init__(self, producer: trikafka.Producer) -> None:
        self.producer = producer
        self.txn: trikafka.Transaction | None = None

    async def begin(self, **options: Any) -> None:
        txn = self.producer.transaction(**options)
        await txn.__aenter__()
        self.txn = txn

    async def begun(self) -> None:
        """Open a transaction without records."""
        if self.txn is not None:
            with suppress(trikafka.TransactionError, trikafka.IllegalStateError):
                await self.txn.abort(timeout=60)
        await self.begin(timeout=60)

    async def filled(self) -> None:
        """Open a transaction, and wait until the brokers have a record of it."""
        await self.begun()
        await self.producer.send("t", b"v")

    async def abort_in_the_background(self) -> None:
        assert self.txn is not None
        with trio.CancelScope() as scope:
            scope.cancel()
            await self.txn.abort()


OPENERS: dict[str, Any] = {
    "consumer": trikafka.open_consumer,
    "producer": trikafka.open_producer,
    "admin": trikafka.open_admin,
}
SETTINGS: dict[str, dict[str, Any]] = {
    "consumer": {"group_id": "g", "enable_auto_commit": False, "auto_offset_reset": "earliest"},
    "producer": {
        "max_block_ms": LIMIT * 1000,
        "delivery_timeout_ms": LIMIT * 1000,
        "request_timeout_ms": 300,
    },
    "transactions": {"transactional_id": "x", "linger_ms": 0, "two_phase_commit": True},
    "admin": {},
}
OPENERS["transactions"] = trikafka.open_producer


@asynccontextmanager
async def opened(row: Row, **settings: Any) -> AsyncIterator[tuple[ScriptedCluster, Any]]:
    """Open a client of the row's kind that has used the broker, and its cluster of one."""
    async with ScriptedCluster(topics={"t": 1}, transaction_version=row.version) as cluster:
        cluster.append("t", 0, [b"a", b"b", b"c"])
        if row.name == "flush":
            settings = {"delivery_timeout_ms": 60_000, "request_timeout_ms": 30_000} | settings
        cluster.offer(TELEMETRY, (0, 0))
        cluster.offer("InitProducerId", (0, 6))
        cluster.transactions.two_phase = True  # so that they can be prepared
        if row.client == "transactions" and not row.limited:
            settings = {"delivery_timeout_ms": LIMIT * 1000, "request_timeout_ms": 300} | settings
        given = (
            SETTINGS[row.client]
            | {"bootstrap_servers": cluster.bootstrap_servers, "dial": cluster.dial}
            | {"enable_metrics_push": False}  # it would have asked for the id already
            | settings
        )
        async with OPENERS[row.client](**given) as client:
            if row.client in ("producer", "transactions"):
                # The topic is known, so later records wait for nothing but their delivery.
                await client.partitions_for("t")
            yield cluster, Transacting(client) if row.client == "transactions" else client


async def afflict(fault: Fault, cluster: ScriptedCluster, row: Row, client: Any) -> None:
    """Do what precedes the call, and let the broker's fault begin at its time."""
    if row.before is not None:
        await row.before(client)
    begin(fault, cluster, row)
    await trio.testing.wait_all_tasks_blocked()  # lost records are known to be lost
    if row.then is not None:
        await row.then(client)


def begin(fault: Fault, cluster: ScriptedCluster, row: Row, node: int = 0) -> None:
    """Begin the fault of the broker."""
    if fault == "frozen":
        cluster.freeze(node)
    elif fault == "killed":
        cluster.stop(node, noticed=False)
    elif fault == "black hole":
        cluster.lose(node)
        cluster.disconnect(node)
    elif row.error is None:
        cluster.drop(row.needs, times=None)
    else:
        cluster.fail(row.needs, row.error, times=None)


def mend(fault: Fault, cluster: ScriptedCluster) -> None:
    """End the fault of the broker."""
    if fault == "frozen":
        cluster.thaw(0)
    elif fault != "error":
        cluster.start(0)
    else:
        cluster._script._rules.clear()
