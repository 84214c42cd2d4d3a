"""Mistakes in a user's arguments: one sentence before any request, also as a ``ValueError``."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy
import pandas
import pyarrow
import pytest
from trio.testing import MockClock as Clock

import trikafka
from trikafka.cli.groups import _as_text
from trikafka.errors import ConfigurationError, TrikafkaError
from trikafka.testing import ScriptedCluster

T0 = trikafka.TopicPartition("t", 0)
CALLS: dict[str, Callable[[Any], Awaitable[object]]] = {
    "commit": lambda consumer: consumer.commit(timeout=-1),
    "commit of no offset": lambda consumer: consumer.commit({T0: -5}),
    "end_offsets": lambda consumer: consumer.end_offsets([T0], timeout=-1),
    "offsets_for_times": lambda consumer: consumer.offsets_for_times({T0: -1}),
    "a time past all times": lambda consumer: consumer.offsets_for_times({T0: 2**63}),
    "partitions_for": lambda consumer: consumer.partitions_for(None),
    "partitions_for of a number": lambda consumer: consumer.partitions_for(5),
    "partitions_for of a name that no topic has": lambda consumer: consumer.partitions_for("a b"),
    "topic_ids of one name": lambda consumer: consumer.topic_ids("t"),
    "topic_ids": lambda consumer: consumer.topic_ids([None]),
    "topic_ids of half a character": lambda consumer: consumer.topic_ids(["\ud800"]),
    "receive_batch": lambda consumer: consumer.receive_batch(timeout=float("nan")),
    "unsubscribe": lambda consumer: consumer.unsubscribe(timeout="5"),
    "aclose": lambda consumer: consumer.aclose(timeout=True),
}


COLLECTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "topics of subscribe": lambda consumer, given: consumer.subscribe(given),
    "topics of topic_ids": lambda consumer, given: consumer.topic_ids(given),
    "partitions of assign": lambda consumer, given: consumer.assign(given),
    "partitions of pause": lambda consumer, given: consumer.pause(given),
    "partitions of resume": lambda consumer, given: consumer.resume(given),
    "partitions of committed": lambda consumer, given: consumer.committed(given),
    "partitions of end_offsets": lambda consumer, given: consumer.end_offsets(given),
    "partitions of seek_to_end": lambda consumer, given: consumer.seek_to_end(given),
    "partition of seek": lambda consumer, given: consumer.seek(given, 1),
    "partition of current_lag": lambda consumer, given: consumer.current_lag(given),
    "partition of assignment_epoch": lambda consumer, given: consumer.assignment_epoch(given),
    "partition of position": lambda consumer, given: consumer.position(given),
}


@pytest.mark.parametrize("name", COLLECTIONS)
@pytest.mark.parametrize("wrong", [None, 5, Path("t"), {T0: []}.items(), T0[0]])
async def test_no_collection_is_explained(autojump_clock: Clock, name: str, wrong: Any) -> None:
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        given = {"bootstrap_servers": cluster.bootstrap_servers, "dial": cluster.dial}
        async with trikafka.open_consumer(group_id="g", **given) as consumer:

            async def call() -> None:
                result = COLLECTIONS[name](consumer, wrong)
                if inspect.isawaitable(result):
                    await result

            with pytest.raises(ConfigurationError, match=r"must be|is a TopicPartition"):
                await call()


async def test_one_partition_is_no_collection(autojump_clock: Clock) -> None:
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        given = {"bootstrap_servers": cluster.bootstrap_servers, "dial": cluster.dial}
        async with trikafka.open_consumer(**given) as consumer:
            with pytest.raises(ConfigurationError, match=r"write \[TopicPartition\('t', 0\)\]$"):
                consumer.assign(T0)


@pytest.mark.parametrize("name", CALLS)
async def test_wrong_argument_is_refused_early(autojump_clock: Clock, name: str) -> None:
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        given = {"bootstrap_servers": cluster.bootstrap_servers, "dial": cluster.dial}
        async with trikafka.open_consumer(group_id="g", **given) as consumer:
            consumer.assign([T0])
            before = len(cluster.log)
            with pytest.raises(ConfigurationError) as caught:
                await CALLS[name](consumer)
            assert len(cluster.log) == before
            with pytest.raises(
                ConfigurationError, match="an offset must be a whole number from 0, not -1"
            ):
                consumer.seek(T0, -1)
            # The mistake has no effect on what is called later.
            assert await consumer.end_offsets([T0]) == {T0: 0}
            assert len(await consumer.partitions_for("t")) == 1
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, TrikafkaError)
    assert not caught.value.retriable


@pytest.mark.parametrize("epoch", ["1", 2**31, -1, 0.5, True])
async def test_wrong_epoch_stops_no_other_partition(autojump_clock: Clock, epoch: Any) -> None:
    """It would be part of each fetch from the broker, and so stop all its partitions."""
    async with ScriptedCluster(topics={"t": 2}) as cluster:
        given = {"bootstrap_servers": cluster.bootstrap_servers, "dial": cluster.dial}
        cluster.append("t", 1, [b"x"])
        async with trikafka.open_consumer(auto_offset_reset="earliest", **given) as consumer:
            consumer.assign([T0, trikafka.TopicPartition("t", 1)])
            with pytest.raises(ConfigurationError, match="a leader epoch must be a whole number"):
                consumer.seek(T0, trikafka.OffsetAndMetadata(0, epoch))
            assert (await consumer.receive()).partition == 1


async def test_numbers_of_other_kinds_are_offsets(autojump_clock: Clock) -> None:
    """As tables of numpy and pandas have them."""
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        given = {"bootstrap_servers": cluster.bootstrap_servers, "dial": cluster.dial}
        cluster.append("t", 0, [b"0", b"1", b"2"])
        async with trikafka.open_consumer(group_id="g", **given) as consumer:
            consumer.assign([T0])
            consumer.seek(T0, numpy.int64(1))
            assert (await consumer.receive()).offset == 1
            consumer.seek(T0, trikafka.OffsetAndMetadata(numpy.int64(2), numpy.int32(0)))
            assert (await consumer.receive()).offset == 2
            found = await consumer.offsets_for_times({T0: numpy.int64(0)})
            at = found[T0]
            assert at is not None
            assert at.offset == 0
            with pytest.raises(ConfigurationError, match="an offset must be a whole number"):
                consumer.seek(T0, numpy.float64(1))


async def test_times_of_other_kinds_are_explained(autojump_clock: Clock) -> None:
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        given = {"bootstrap_servers": cluster.bootstrap_servers, "dial": cluster.dial}
        cluster.append("t", 0, [b"0"])
        async with trikafka.open_consumer(group_id="g", **given) as consumer:
            consumer.assign([T0])
            for when in (datetime(2026, 1, 31, tzinfo=UTC), pandas.Timestamp("2026-01-31")):
                wrong: Any = {T0: when}
                with pytest.raises(ConfigurationError, match=r"int\(when\.timestamp\(\) \* 1000\)"):
                    await consumer.offsets_for_times(wrong)
            seconds: Any = {T0: 1.5}
            with pytest.raises(ConfigurationError, match=r"int\(time\.time\(\) \* 1000\)"):
                await consumer.offsets_for_times(seconds)
            found: Any = (await consumer.offsets_for_times({T0: 0}))[T0]
            with pytest.raises(ConfigurationError, match="; pass its offset"):
                consumer.seek(T0, found)


class _Whole:
    """A zero of another kind, equal to the ``int``."""

    def __index__(self) -> int:
        return 0

    def __eq__(self, other: object) -> bool:
        return other == 0

    def __hash__(self) -> int:
        return hash(0)


@pytest.mark.parametrize("zero", [numpy.int64(0), numpy.uint8(0), _Whole()])
async def test_other_integers_name_partitions(autojump_clock: Clock, zero: Any) -> None:
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        given = {"bootstrap_servers": cluster.bootstrap_servers, "dial": cluster.dial}
        place = trikafka.TopicPartition("t", zero)
        async with trikafka.open_producer(**given) as producer:
            for _ in range(2):  # the first one looks the topic up
                found = await producer.send("t", b"x", partition=zero, timestamp=zero)
                assert (type(found.partition), found.timestamp) == (int, 0)
            await producer.enqueue("t", b"x", partition=zero, timestamp=zero)
            producer.send_nowait("t", b"x", partition=zero, timestamp=zero)
            table = pyarrow.table({"value": [b"x"]})
            assert list((await producer.send_arrow("t", table, partition=zero)).partitions) == [T0]
            await producer.flush()
        async with trikafka.open_consumer(group_id="g", **given) as consumer:
            consumer.assign([place])
            assert await consumer.beginning_offsets([place]) == {T0: 0}
            consumer.seek(T0, zero)
            assert (await consumer.receive()).timestamp == 0
            await consumer.commit({place: trikafka.OffsetAndMetadata(zero, zero)})
            assert type(next(iter(await consumer.committed([place]))).partition) is int
            async for batch in consumer.batches(until={place: zero}):
                pytest.fail(f"{batch} is beyond the end")
            assert [tp.partition for tp in consumer.assignment()] == [0]
        async with trikafka.open_admin(**given) as admin:
            listed = await admin.list_offsets({place: zero})
            assert listed[T0] is not None
            await admin.alter_group_offsets("g", {place: zero})
            assert (await admin.list_group_offsets("g", [place]))[T0].offset == 0
            assert await admin.delete_records({place: zero}) == {T0: 0}
            await admin.create_topics({"u": trikafka.NewTopic(numpy.int64(2), numpy.int32(1))})
            await admin.create_partitions({"u": numpy.int64(3)})


TEXTS = numpy.array(["a:1", "b:1"])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("bootstrap_servers", TEXTS),
        ("bootstrap_servers", pandas.Series(["a:1", "b:1"])),
        ("bootstrap_servers", pyarrow.array(["a:1", "b:1"])),
        ("security_protocol", TEXTS),
        ("group_protocol", pandas.Series(["classic"])),
        ("isolation_level", pandas.NA),
    ],
)
async def test_arrays_are_no_settings(name: str, value: Any) -> None:
    """Once: The truth value of an array with more than one element is ambiguous."""
    settings: dict[str, Any] = {"bootstrap_servers": "nowhere:1", name: value}
    with pytest.raises(ConfigurationError, match=name):
        async with trikafka.open_consumer(group_id="g", **settings):
            pytest.fail("it opened")


@pytest.mark.parametrize(
    "value",
    [TEXTS, numpy.array([1]), numpy.int64(0), pandas.Series([1, 2]), pyarrow.array([1, 2])],
)
async def test_arrays_are_no_headers(autojump_clock: Clock, value: Any) -> None:
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        given = {"bootstrap_servers": cluster.bootstrap_servers, "dial": cluster.dial}
        async with trikafka.open_producer(**given) as producer:
            await producer.send("t", b"x")
            with pytest.raises(TypeError, match="headers must be"):
                await producer.send("t", b"x", headers=value)
            for none in ([], {}, None, ()):
                await producer.send("t", b"x", headers=none)  # type: ignore[arg-type]
        assert len(cluster.records("t", 0)) == 5


async def test_arrays_are_no_group(autojump_clock: Clock) -> None:
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        given = {"bootstrap_servers": cluster.bootstrap_servers, "dial": cluster.dial}
        async with trikafka.open_producer(transactional_id="x", **given) as producer:
            for wrong in (
                trikafka.GroupMetadata("g", group_instance_id=TEXTS),  # type: ignore[arg-type]
                trikafka.GroupMetadata("g", TEXTS),  # type: ignore[arg-type]
            ):
                async with producer.transaction() as txn:
                    with pytest.raises(ConfigurationError, match="group"):
                        await txn.send_offsets({T0: 1}, wrong)
    too_large: Any = TEXTS
    with pytest.raises(ConfigurationError, match="too_large must be one of"):
        trikafka.DeadLetter("d", too_large)


async def test_numpys_integers_are_numbers(autojump_clock: Clock) -> None:
    """As settings, as limits, and as a partitioner's choice."""
    chosen: Any = lambda topic, key, numbers: numpy.int64(1)  # noqa: E731
    async with ScriptedCluster(topics={"t": 2}) as cluster:
        given = {"bootstrap_servers": cluster.bootstrap_servers, "dial": cluster.dial}
        async with trikafka.open_producer(
            linger_ms=numpy.int64(0),  # type: ignore[arg-type]
            partitioner=chosen,
            **given,
        ) as producer:
            assert (await producer.send("t", b"x")).partition == 1
        limit: Any = numpy.int64(5)
        async with trikafka.open_consumer(max_poll_records=limit, **given) as consumer:
            assert consumer.config.max_poll_records == 5
            assert await consumer.end_offsets([T0], timeout=limit) == {T0: 0}


@pytest.mark.parametrize("reason", [5, TEXTS, "\ud800"])
async def test_a_reason_is_text(autojump_clock: Clock, reason: Any) -> None:
    """Once, the next JoinGroup request failed, and so the whole consumer."""
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        given = {"bootstrap_servers": cluster.bootstrap_servers, "dial": cluster.dial}
        cluster.append("t", 0, [b"0", b"1"])
        async with trikafka.open_consumer(
            "t", group_id="g", group_protocol="classic", auto_offset_reset="earliest", **given
        ) as consumer:
            await consumer.receive()
            with pytest.raises(ConfigurationError, match="reason must be text"):
                consumer.enforce_rebalance(reason)
            consumer.enforce_rebalance()
            assert (await consumer.receive()).offset == 1


class _Broken:
    def __index__(self) -> int:
        raise ValueError("not computed yet")


@pytest.mark.parametrize(
    "wrong", [True, numpy.float64(0), numpy.array([0, 1]), "0", 0.0, _Broken()]
)
async def test_no_whole_number_is_refused(autojump_clock: Clock, wrong: Any) -> None:
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        given = {"bootstrap_servers": cluster.bootstrap_servers, "dial": cluster.dial}
        async with trikafka.open_producer(**given) as producer:
            with pytest.raises(ConfigurationError, match="partition must be a whole number"):
                await producer.send("t", b"x", partition=wrong)
            with pytest.raises(ConfigurationError, match="timestamp must be milliseconds"):
                await producer.send("t", b"x", timestamp=wrong)


@pytest.mark.parametrize(
    "wrong",
    [
        trikafka.OffsetAndMetadata(0, -7),
        trikafka.OffsetAndMetadata(0, True),
        trikafka.OffsetAndMetadata(0, 2**31),
        trikafka.OffsetAndMetadata(0, None, 5),  # type: ignore[arg-type]
        trikafka.OffsetAndMetadata(0, None, "x" * 40_000),
        trikafka.OffsetAndMetadata(-1),
        True,
        None,
    ],
)
async def test_admins_offset_is_checked(autojump_clock: Clock, wrong: Any) -> None:
    """As a consumer's offset to commit is."""
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        given = {"bootstrap_servers": cluster.bootstrap_servers, "dial": cluster.dial}
        async with trikafka.open_admin(**given) as admin:
            with pytest.raises(ConfigurationError, match=r"offset .*for t-0"):
                await admin.alter_group_offsets("g", {T0: wrong})
        assert not cluster.requests("OffsetCommit")


async def test_huge_integer_is_no_limit(autojump_clock: Clock) -> None:
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        given = {"bootstrap_servers": cluster.bootstrap_servers, "dial": cluster.dial}
        async with trikafka.open_consumer(**given) as consumer:
            assert await consumer.end_offsets([T0], timeout=10**400) == {T0: 0}
            await consumer.aclose(10**400)
        async with trikafka.open_producer(**given) as producer:
            await producer.flush(10**400)
        for name in ("max_block_ms", "delivery_timeout_ms", "close_timeout_ms"):
            with pytest.raises(ConfigurationError, match=f"{name} is an integer of 1329 bits"):
                async with trikafka.open_producer(**given, **{name: 10**400}):
                    pytest.fail("it opened")


def test_memory_budget_is_shared_by_threads() -> None:
    budget = trikafka.MemoryBudget(1000)

    def come_and_go() -> None:
        for _ in range(20_000):
            budget._join()
            budget._leave()

    threads = [threading.Thread(target=come_and_go) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert repr(budget) == "<trikafka.MemoryBudget 1000 bytes, 0 consumers>"


def test_described_groups_show_the_client_id() -> None:
    members = [
        {
            "member_id": "m-1",
            "client_id": "billing",
            "host": "/10.0.0.1",
            "partitions": [{"topic": "t", "partition": 0}],
        },
        {"member_id": "m-2", "client_id": "idle", "host": "/10.0.0.2", "partitions": []},
    ]
    place = {"topic": "t", "partition": 0, "offset": 3, "end": 5, "lag": 2}
    group = {
        "group": "g",
        "state": "Stable",
        "type": "consumer",
        "protocol": "uniform",
        "members": members,
    }
    head, titles, *rows = _as_text(
        group | {"partitions": [place | {"member_id": "m-1"}]}
    ).splitlines()
    assert head == "g  (Stable, consumer, uniform, 2 members)  lag 2"
    assert titles.split() == [
        "TOPIC",
        "PARTITION",
        "OFFSET",
        "END",
        "LAG",
        "MEMBER",
        "CLIENT",
        "HOST",
    ]
    assert rows[0].split() == ["t", "0", "3", "5", "2", "m-1", "billing", "/10.0.0.1"]
    assert rows[1].split()[-3:] == ["m-2", "idle", "/10.0.0.2"]


@pytest.mark.parametrize("cls", [trikafka.PartitionStream, trikafka.MemoryBudget])
def test_internal_methods_are_not_public(cls: type) -> None:
    """Every public member of what users get is for users."""
    internals = {
        "warn",
        "taken_over",
        "end",
        "overdue_at",
        "attended",
        "attended_elsewhere",
        "in_use",
        "do_not_await_me",
    }
    assert not (internals | {"join", "leave"}) & {
        name for name in dir(cls) if not name.startswith("_")
    }
