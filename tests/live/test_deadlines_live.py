"""Every call of the three clients ends at its limit, against a stopped or killed real broker.

tests/deadlines does the same in virtual time, with exact bounds, for every pair of call and fault.
"""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
import trio
from cluster_waits import topic_reported
from trikafka_broker.cluster import KafkaCluster
from trikafka_broker.trio_api import Broker, Cluster

import trikafka
from benchmarks.soak import opened_at_last
from trikafka import BootstrapError, KafkaTimeoutError, NewTopic, OffsetSpec, TopicPartition

LIMIT = 0.3
#: How late a call may be, in seconds, on a busy machine: two thousand at once took 17 s. Of a consumer
#: or admin client, a call that does not keep its limit would take a request's time at least, that of
#: ``UNLIMITED``.
TOLERANCE = 180.0
UNLIMITED = {"request_timeout_ms": 200_000, "default_api_timeout_ms": 240_000}
#: How often a call is made until its error says what it waited for. A process that stands still for
#: the whole limit of a call, between two of its lines, ends the call before anything was tried.
TRIES = 20
MANY = 2000
TP = TopicPartition("t", 0)

Call = Callable[..., Awaitable[Any]]
CONSUMER: dict[str, Call] = {
    "beginning_offsets": lambda c, **k: c.beginning_offsets([TP], **k),
    "end_offsets": lambda c, **k: c.end_offsets([TP], **k),
    "offsets_for_times": lambda c, **k: c.offsets_for_times({TP: 0}, **k),
    "committed": lambda c, **k: c.committed([TP], **k),
    "commit": lambda c, **k: c.commit({TP: 2}, **k),
    "position": lambda c, **k: c.position(TP, **k),
    "partitions_for": lambda c, **k: c.partitions_for("u", **k),
    "list_topics": lambda c, **k: c.list_topics(**k),
    "receive_batch": lambda c, **k: c.receive_batch(**k),
}
PRODUCER: dict[str, Call] = {
    "send": lambda p, **_: p.send("t", b"v"),
    "enqueue": lambda p, **_: p.enqueue("u", b"v"),
    "flush": lambda p, **k: p.flush(**k),
    "partitions_for": lambda p, **k: p.partitions_for("v", **k),
}
ADMIN: dict[str, Call] = {
    "create_topics": lambda a, **k: a.create_topics({"new": NewTopic(1, 1)}, **k),
    "delete_topics": lambda a, **k: a.delete_topics(["gone"], **k),
    "create_partitions": lambda a, **k: a.create_partitions({"t": 2}, **k),
    "list_topics": lambda a, **k: a.list_topics(**k),
    "describe_cluster": lambda a, **k: a.describe_cluster(**k),
    "topic_configs": lambda a, **k: a.topic_configs(["t"], **k),
    "list_offsets": lambda a, **k: a.list_offsets({TP: OffsetSpec.LATEST}, **k),
    "list_groups": lambda a, **k: a.list_groups(**k),
    "describe_groups": lambda a, **k: a.describe_groups(["g"], **k),
    "list_group_offsets": lambda a, **k: a.list_group_offsets("g", **k),
    "delete_groups": lambda a, **k: a.delete_groups(["none"], **k),
}
CALLS = {"consumer": CONSUMER, "producer": PRODUCER, "admin": ADMIN}
LOOK_UPS = {
    "consumer": [name for name in CONSUMER if name not in ("commit", "receive_batch")],
    "producer": ["partitions_for"],
    "admin": [name for name in ADMIN if name.startswith(("list", "describe", "topic"))],
}


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Run one broker for the tests of this file; ``t`` and ``u`` are topics of one partition."""
    version = request.config.getoption("--kafka-version")

    async def fill() -> None:
        async with trikafka.open_admin(bootstrap_servers=started.bootstrap_servers) as admin:
            await admin.create_topics({"t": NewTopic(1, 1), "u": NewTopic(1, 1)})
            for name in "t", "u":
                await topic_reported(admin, name, 1)
        async with trikafka.open_producer(bootstrap_servers=started.bootstrap_servers) as producer:
            await producer.send("t", b"v")

    options = {"version": version} if version else {}
    with KafkaCluster(**options) as started:
        started.start()
        trio.run(fill)
        yield Cluster(started)


@asynccontextmanager
async def clients(cluster: Cluster, *, patient: bool = False) -> AsyncIterator[dict[str, Any]]:
    """Open one client of each kind, with connections and a short limit for closing.

    ``patient``: the producer has the default limits. With a request's limit of 200 ms a busy
    machine makes it lose the broker again and again.
    """
    given = {"bootstrap_servers": cluster.bootstrap_servers, "close_timeout_ms": 200}
    patience = {
        "max_block_ms": LIMIT * 1000,
        "delivery_timeout_ms": LIMIT * 1000,
        "request_timeout_ms": 200,
        "linger_ms": 0,
    }
    unlimited: dict[str, Any] = {} if patient else UNLIMITED
    limits = {} if patient else patience
    async with AsyncExitStack() as stack:
        open_one = stack.enter_async_context
        consumer = await open_one(
            trikafka.open_consumer(
                group_id="g",
                enable_auto_commit=False,
                auto_offset_reset="earliest",
                **given,
                **unlimited,
            )
        )
        admin = await open_one(trikafka.open_admin(**given, **unlimited))
        producer = await opened_at_last(stack, lambda: trikafka.open_producer(**given, **limits))
        with trio.fail_after(240):
            consumer.assign([TP])
            consumer.seek_to_beginning()
            await consumer.receive_batch()
            await consumer.commit()
            await consumer.end_offsets([TP])
            await producer.partitions_for("t", timeout=240)
            await admin.list_groups()
        yield {"consumer": consumer, "producer": producer, "admin": admin}


@asynccontextmanager
async def broken(broker: Broker, how: str) -> AsyncIterator[None]:
    await getattr(broker, how)()
    try:
        yield
    finally:
        with trio.CancelScope(shield=True):
            await (broker.thaw() if how == "freeze" else broker.start())


async def is_well(cluster: Cluster) -> None:
    """Wait until clients can open again.

    A broker that was frozen for long is missing in its own metadata for a moment.
    """
    with trio.fail_after(240):
        while True:
            try:
                async with trikafka.open_admin(
                    bootstrap_servers=cluster.bootstrap_servers
                ) as admin:
                    await admin.list_offsets({TP: OffsetSpec.LATEST})
                    return
            except BootstrapError:
                await trio.sleep(0.1)


async def timed(name: str, call: Call, client: Any, timeout: float) -> tuple[float, Any]:
    """Return the duration of the call, and its result."""
    before = trio.current_time()
    try:
        result = await call(client, timeout=timeout)
    except trikafka.TrikafkaError as error:
        result = error
    return trio.current_time() - before, result


@pytest.mark.parametrize("how", ["freeze", "kill"])
async def test_each_call_ends_at_its_limit(cluster: Cluster, how: str) -> None:
    async with clients(cluster) as opened:
        async with broken(cluster.brokers[0], how):
            opened["consumer"].seek_to_end([TP])  # its position has to be looked up
            kept = trio.current_time()
            assert opened["producer"].send_nowait("t", b"kept back") is not None
            port = f":{cluster.brokers[0].port}"

            async def one_by_one(kind: str) -> None:
                for name, call in CALLS[kind].items():
                    for attempt in range(TRIES):
                        took, result = await timed(name, call, opened[kind], LIMIT)
                        assert took <= LIMIT + TOLERANCE, (kind, name)
                        if name in ("receive_batch", "flush"):
                            break
                        assert isinstance(result, KafkaTimeoutError), (kind, name, result)
                        # A record that joins the first one's batch has the batch's time.
                        joins = name == "send" and not attempt
                        lasted = trio.current_time() - kept if joins else took
                        assert lasted > LIMIT - 0.01, (kind, name)
                        if port in str(result) and result.__cause__ is not None:
                            break
                    else:
                        raise AssertionError((kind, name, str(result)))

            async with trio.open_nursery() as nursery:
                for kind in CALLS:  # a client does one thing at a time
                    nursery.start_soon(one_by_one, kind)
            many: list[tuple[float, Any]] = []

            async def one() -> None:
                many.append(
                    await timed(
                        "end_offsets", CONSUMER["end_offsets"], opened["consumer"], 3 * LIMIT
                    )
                )

            async with trio.open_nursery() as nursery:
                for _ in range(MANY):
                    nursery.start_soon(one)
            assert len(many) == MANY
            assert all(isinstance(result, KafkaTimeoutError) for _, result in many)
            assert min(took for took, _ in many) > 3 * LIMIT - 0.01
            assert max(took for took, _ in many) < 3 * LIMIT + TOLERANCE
    await is_well(cluster)


async def test_zero_time_is_enough_for_a_healthy_broker(cluster: Cluster) -> None:
    """A call with no time succeeds on a healthy broker in one attempt.

    A busy machine may take longer than the grace of 25 ms, but not every time.
    """
    async with clients(cluster) as opened:
        for kind, names in LOOK_UPS.items():
            for name in names:
                for _ in range(200):
                    took, result = await timed(name, CALLS[kind][name], opened[kind], 0)
                    if not isinstance(result, KafkaTimeoutError):
                        break
                    assert result.attempts == 1
                    assert took < TOLERANCE
                assert not isinstance(result, trikafka.TrikafkaError), (kind, name, result)


async def test_outage_is_logged_once(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    """An outage is logged once by each client, and its end as well.

    Only the broker is killed. The client waits for records, as most clients do most of the time.
    How soon it is logged is a matter of tests/net/test_outages.py.
    """
    caplog.set_level(logging.INFO, "trikafka")

    lost = "broker 0.* is lost: "
    # The first metadata after a start may lack the broker for a moment.
    back = re.compile("broker 0 is (back|in the cluster again,) at .*: it was away for ")

    def lines(wanted: str | re.Pattern[str]) -> list[str]:
        return [
            line
            for record in caplog.records
            if record.name == "trikafka.brokers" and re.match(wanted, line := record.getMessage())
        ]

    async with clients(cluster, patient=True) as opened, trio.open_nursery() as nursery:
        caplog.clear()  # a broker that stood still until now may have been logged
        nursery.start_soon(opened["consumer"].receive)
        nursery.start_soon(opened["consumer"].position, TP)
        async with broken(cluster.brokers[0], "kill"):
            with trio.fail_after(240):
                while len(lines(lost)) < 3:  # noqa: ASYNC110  # of each client
                    await trio.sleep(0.01)
            await trio.sleep(1)
            assert len(lines(lost)) == 3, lines("")
            assert lines(back) == []
        with trio.fail_after(240):
            while len(lines(back)) < 3:  # noqa: ASYNC110
                await trio.sleep(0.05)
        # A broker that has just started may be lost once more. Attempts are not logged: there were
        # dozens of each client.
        assert len(lines(lost)) <= 6, lines("")
        assert len(lines(back)) <= 6, lines("")
        nursery.cancel_scope.cancel()
