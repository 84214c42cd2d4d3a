"""Tables sent through the whole producer, in virtual time.

They are delivered once and in order, bounded, refused, expired or cancelled.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pyarrow as pa
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from producing import fill, numbers, opened, ready, values
from trio.testing import MockClock as Clock

import trikafka
from trikafka import ArrowDelivery, ArrowDeliveryError, PartitionDelivery, TopicPartition
from trikafka._api.producer.producer import Producer
from trikafka._wire.partitioning import partition_for_key
from trikafka.errors import (
    AuthorizationError,
    ConfigurationError,
    DeliveryTimeoutError,
    KafkaTimeoutError,
    MessageTooLargeError,
    RecordTooLargeError,
    UnknownTopicOrPartitionError,
)
from trikafka.testing import ScriptedCluster, assert_all_awaits_cancellable

Given = tuple[ScriptedCluster, Producer]


def table(contents: Sequence[bytes | None], **more: Any) -> pa.Table:
    return pa.table({"value": pa.array(contents, pa.binary())} | more)


def big(count: int, size: int = 300) -> pa.Table:
    return table([b"%05d" % number + b"x" * (size - 5) for number in range(count)])


def heads(cluster: ScriptedCluster, partition: int = 0) -> list[int]:
    return [int(value[:5]) for value in values(cluster, partition) if value]


async def test_table_is_delivered_without_linger(autojump_clock: Clock) -> None:
    async with ready(partitions=2, linger_ms=60_000) as (cluster, producer):
        start = trio.current_time()
        delivery = await producer.send_arrow("t", table([b"a", None, b"c"]), partition=1)
        assert trio.current_time() == start
        assert delivery == ArrowDelivery(3, {TopicPartition("t", 1): PartitionDelivery(3, 1, 3)})
        assert values(cluster, 1) == [b"a", None, b"c"]
        assert producer.statistics().buffer_used == 0


async def test_all_columns_are_written(autojump_clock: Clock) -> None:
    data = pa.table(
        {
            "k": ["x", None, "y"],
            "v": [b"1", b"2", None],
            "n": pa.array([1, 0, None], pa.int16()),
            "at": pa.array([1_000, 2_000, None], pa.timestamp("ms")),
            "h": pa.array([[("a", "1")], None, []], pa.map_(pa.string(), pa.string())),
            "other": [1.0, 2.0, 3.0],
        }
    )
    async with ready(partitions=2) as (cluster, producer):
        await producer.send_arrow(
            "t", data, key="k", value="v", partition="n", timestamp="at", headers="h"
        )
        first = cluster.records("t", 1)[1]
        assert (first.key, first.value, first.timestamp, first.headers) == (
            b"x",
            b"1",
            1_000,
            (("a", b"1"),),
        )
        second = cluster.records("t", 0)[1]
        assert (second.key, second.value, second.timestamp, second.headers) == (
            None,
            b"2",
            2_000,
            (),
        )
        third = cluster.records("t", partition_for_key(b"y", 2))[-1]
        assert (third.key, third.value, third.headers) == (b"y", None, ())
        assert third.timestamp is not None
        assert third.timestamp > 1_600_000_000_000, "null is now"


async def test_arrow_batches_can_be_written_unchanged() -> None:
    async with ScriptedCluster(topics={"from": 2, "to": 2}) as cluster, opened(cluster) as producer:
        for number in range(10):
            await producer.send(
                "from",
                b"%d" % number,
                key=b"k",
                partition=number % 2,
                headers=[("h", b"1")],
                timestamp=number,
            )
        consumer = trikafka.open_consumer(
            bootstrap_servers=cluster.bootstrap_servers,
            dial=cluster.dial,
            auto_offset_reset="earliest",
        )
        async with consumer as reader:
            places = [TopicPartition("from", number) for number in range(2)]
            reader.assign(places)
            ends = await reader.end_offsets(places)
            async for found in reader.arrow_batches(until=ends):
                await producer.send_arrow("to", found)
        for partition in range(2):
            written, read = (
                [r[2:] for r in cluster.records(topic, partition)] for topic in ("from", "to")
            )
            assert written == read


class Query:
    """Something with Arrow's PyCapsule interface, which notes where it ran."""

    def __init__(self, data: pa.Table) -> None:
        self.data = data
        self.in_trio = True

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        try:
            trio.lowlevel.current_task()
        except RuntimeError:
            self.in_trio = False
        return self.data.__arrow_c_stream__(requested_schema)


async def test_any_capsule_object_is_sent() -> None:
    async with ScriptedCluster(topics={"t": 1}) as cluster, opened(cluster) as producer:
        query = Query(table([b"a"]))
        await producer.send_arrow("t", query)
        assert not query.in_trio, "a query runs in a thread"
        await producer.send_arrow("t", table([b"b"]).to_batches()[0])
        await producer.send_arrow("t", Query(pa.table({"key": ["k"], "value": ["c"]})))
        await producer.send_arrow(
            "t", pa.RecordBatchReader.from_batches(table([]).schema, table([b"d"]).to_batches())
        )
        assert [record.value for record in cluster.records("t", 0)] == [b"a", b"b", b"c", b"d"]


async def test_empty_table_returns_at_once(autojump_clock: Clock) -> None:
    async with ScriptedCluster() as cluster, opened(cluster) as producer:
        cluster.freeze(0)
        assert await producer.send_arrow("nowhere", table([])) == ArrowDelivery(0, {})


async def test_order_holds_between_rows_and_records(autojump_clock: Clock) -> None:
    async with ready(linger_ms=60_000, batch_size=500) as (cluster, producer):
        await producer.enqueue("t", b"before")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(producer.send_arrow, "t", table(numbers(20)))
            await trio.testing.wait_all_tasks_blocked()
            producer.send_nowait("t", b"after")
            await producer.flush()
        assert values(cluster) == [b"before", *numbers(20), b"after"]


async def test_offsets_are_unknown_without_acks(autojump_clock: Clock) -> None:
    async with ready(acks=0, enable_idempotence=False) as (cluster, producer):
        delivery = await producer.send_arrow("t", table(numbers(5)))
        assert delivery == ArrowDelivery(
            5, {TopicPartition("t", 0): PartitionDelivery(5, None, None)}
        )
        await trio.testing.wait_all_tasks_blocked()
        assert values(cluster) == numbers(5)


async def test_table_larger_than_the_buffer_is_sent(autojump_clock: Clock) -> None:
    async with ready(buffer_memory=5_000) as (cluster, producer):
        most = 0

        def look(*_: object) -> None:
            nonlocal most
            most = max(most, producer.statistics().buffer_used)

        cluster.on("Produce", lambda request, default: _after(look, default))
        delivery = await producer.send_arrow("t", big(200))
        assert delivery == ArrowDelivery(
            200, {TopicPartition("t", 0): PartitionDelivery(200, 1, 200)}
        )
        assert heads(cluster) == list(range(200))
        assert 0 < most <= 5_000
        assert producer.statistics().buffer_used == 0


async def _after(look: Any, default: Any) -> Any:
    look()
    return await default()


async def test_tables_and_records_share_the_room(autojump_clock: Clock) -> None:
    async with ready(buffer_memory=2_000, batch_size=500) as (cluster, producer):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(producer.send_arrow, "t", big(100))
            nursery.start_soon(producer.send_arrow, "t", big(100))
            for _ in range(20):
                await producer.enqueue("t", b"99999" + b"y" * 300)
        found = heads(cluster)
        assert len(found) == 220
        assert found.index(99_999) < 150, (
            "one that waits gets its turn before the tables are through"
        )
        assert found.count(99_999) == 20
        assert producer.statistics().tasks_waiting == 0


# --- what goes wrong ------------------------------------------------------------------------------


async def test_lack_of_room_counts_accepted_rows(autojump_clock: Clock) -> None:
    """The error after max_block_ms says how many rows were delivered and how many failed."""
    async with ready(
        buffer_memory=2_000,
        max_block_ms=1_500,
        delivery_timeout_ms=40_000,
        request_timeout_ms=9_000,
    ) as given:
        cluster, producer = given
        cluster.freeze(0)
        start = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_thaw_at, cluster, start + 5)
            with pytest.raises(
                ArrowDeliveryError,
                match="6 of 20 rows were delivered, 14 failed, 0 may be in the log",
            ) as caught:
                await producer.send_arrow("t", big(20))
        assert trio.current_time() - start == pytest.approx(5)
        error = caught.value
        assert (error.rows, error.delivered, error.failed, error.unknown) == (20, 6, 14, 0)
        assert isinstance(error.__cause__, KafkaTimeoutError)
        assert (error.__cause__.call, error.__cause__.limit) == ("send_arrow", 1.5)
        assert heads(cluster) == list(range(6))
        await producer.send_arrow("t", big(20))


@pytest.mark.parametrize(("refused", "row"), [((4, 15), None), ((0, 4, 15), 0), ((15,), 15)])
async def test_first_refused_row_is_certain(
    autojump_clock: Clock, refused: tuple[int, ...], row: int | None
) -> None:
    """Rows 0 to 9 alternate between two partitions, so which one of them is refused is unknown."""
    keys = [None if number in refused else b"k" for number in range(20)]
    numbers = [number % 2 if number < 10 else 2 for number in range(20)]
    rows = big(20).append_column("key", pa.array(keys, pa.binary()))
    rows = rows.append_column("partition", pa.array(numbers, pa.int32()))
    async with ready(partitions=3) as (cluster, producer):
        async with trikafka.open_admin(
            bootstrap_servers=cluster.bootstrap_servers, dial=cluster.dial
        ) as admin:
            compacted = {"cleanup.policy": "compact"}
            await admin.alter_configs({trikafka.ConfigResource("topic", "t"): compacted})
        with pytest.raises(ArrowDeliveryError) as caught:
            await producer.send_arrow("t", rows, partition="partition")
        assert (caught.value.failed, caught.value.row) == (len(refused), row)


async def _thaw_at(cluster: ScriptedCluster, when: float) -> None:
    await trio.sleep_until(when)
    cluster.thaw(0)


async def test_lack_of_room_for_any_row_is_raised_plain(autojump_clock: Clock) -> None:
    async with ready(buffer_memory=2_000, max_block_ms=1_500, batch_size=500) as (
        cluster,
        producer,
    ):
        cluster.freeze(0)
        accepted = fill(producer)
        start = trio.current_time()
        with pytest.raises(KafkaTimeoutError, match=r"send_arrow .*no room in buffer_memory"):
            await producer.send_arrow("t", big(20))
        assert trio.current_time() - start == pytest.approx(1.5)
        cluster.thaw(0)
        await producer.flush()
        assert len(values(cluster)) == accepted


async def test_progress_extends_max_block(autojump_clock: Clock) -> None:
    async with ready(
        buffer_memory=2_000, max_block_ms=1_500, max_in_flight_requests_per_connection=1
    ) as (cluster, producer):
        cluster.delay("Produce", 1.0)
        start = trio.current_time()
        assert (await producer.send_arrow("t", big(60))).rows == 60
        assert trio.current_time() - start > 5


async def test_expired_rows_may_be_in_the_log(autojump_clock: Clock) -> None:
    async with ready(delivery_timeout_ms=10_000, request_timeout_ms=9_000) as (cluster, producer):
        cluster.freeze(0)
        start = trio.current_time()
        with pytest.raises(
            ArrowDeliveryError, match="0 of 7 rows were delivered, 0 failed, 7 may be in the log"
        ) as caught:
            await producer.send_arrow("t", big(7))
        assert trio.current_time() - start == pytest.approx(10)
        assert isinstance(caught.value.error, DeliveryTimeoutError)
        cluster.thaw(0)


async def test_refusal_of_one_partition_is_counted(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    async with ready(nodes=2, partitions=2) as (cluster, producer):
        cluster.fail("Produce", 29, node=cluster.partition("t", 1).leader)
        data = table(numbers(10), partition=pa.array([0, 1] * 5))
        with pytest.raises(
            ArrowDeliveryError, match="5 of 10 rows were delivered, 5 failed, 0 may"
        ) as caught:
            await producer.send_arrow("t", data)
        assert isinstance(caught.value.__cause__, AuthorizationError)
        assert values(cluster, 0) == numbers(10)[::2]
        assert values(cluster, 1) == []
        assert "not delivered" not in caplog.text, "it was raised"
        await producer.send_arrow("t", data)


async def test_no_rows_are_accepted_after_a_failure(autojump_clock: Clock) -> None:
    async with ready(buffer_memory=3_000) as (cluster, producer):
        cluster.fail("Produce", 29, times=1)
        with pytest.raises(ArrowDeliveryError) as caught:
            await producer.send_arrow("t", big(1_000))
        error = caught.value
        assert error.delivered == len(values(cluster)) < 30
        assert error.failed == 1_000 - error.delivered


async def test_oversized_batches_of_rows_are_split(autojump_clock: Clock) -> None:
    async with ScriptedCluster() as cluster, opened(cluster) as producer:
        cluster.create_topic("t", 1, {"max.message.bytes": "2000"})
        delivery = await producer.send_arrow("t", big(100))
        assert delivery == ArrowDelivery(
            100, {TopicPartition("t", 0): PartitionDelivery(100, 0, 99)}
        )
        assert heads(cluster) == list(range(100))
        assert producer.statistics().buffer_used == 0
        contents = table([b"small", b"x" * 3_000, b"small"])
        with pytest.raises(
            ArrowDeliveryError, match="2 of 3 rows were delivered, 1 failed, 0 may"
        ) as caught:
            await producer.send_arrow("t", contents)
        assert isinstance(caught.value.__cause__, MessageTooLargeError)


async def test_table_with_an_oversized_row_is_refused(autojump_clock: Clock) -> None:
    async with ready(max_request_size=20_000) as (cluster, producer):
        contents: list[bytes | None] = [b"x"] * 40_000
        contents[39_990] = b"x" * 20_000
        with pytest.raises(
            RecordTooLargeError,
            match=r"row 39990 of up to 20036 bytes for 't' .*max_request_size \(20000\)",
        ):
            await producer.send_arrow("t", table(contents))
        with pytest.raises(ConfigurationError, match="row 1: a timestamp must be"):
            await producer.send_arrow("t", table([b"a", b"b"], timestamp=[0, -5]))
        assert values(cluster) == []
        assert producer.statistics().records_accepted == 1


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"value": "v"}, ConfigurationError, r"no column 'v'; the columns are: value \(binary\)"),
        ({"partition": -1}, ConfigurationError, "from 0, not -1"),
        ({"partition": True}, ConfigurationError, "not True"),
        ({"partition": 5}, UnknownTopicOrPartitionError, "no partition 5"),
        ({"topic": ""}, ConfigurationError, "topic must be a name"),
        ({"topic": "nowhere"}, UnknownTopicOrPartitionError, "'nowhere'"),
        ({"data": [b"a"]}, ConfigurationError, "list is neither an Arrow table"),
        ({"data": pa.table({"a": [1]})}, ConfigurationError, "say which column has the values"),
        ({"data": table([b"a"], partition=[3])}, UnknownTopicOrPartitionError, "no partition 3"),
        ({"data": table([b"a"], partition=[-3])}, ConfigurationError, "partition numbers from -3"),
    ],
)
async def test_wrong_arguments_are_refused(
    arguments: dict[str, Any], error: type[Exception], text: str, autojump_clock: Clock
) -> None:
    async with ready() as (cluster, producer):
        with pytest.raises(error, match=text):
            await producer.send_arrow(**({"topic": "t", "data": table([b"a"])} | arguments))
        assert values(cluster) == []


async def test_closed_producer_refuses_a_table(autojump_clock: Clock) -> None:
    async with ready() as (_, producer):
        pass
    with pytest.raises(trio.ClosedResourceError):
        await producer.send_arrow("t", table([b"a"]))


async def test_closing_delivers_the_accepted_rows(autojump_clock: Clock) -> None:
    """The call ends with an error that counts the rows not accepted."""
    async with ready(buffer_memory=2_000) as (cluster, producer):
        cluster.freeze(0)
        errors = []

        async def send() -> None:
            with pytest.raises(ArrowDeliveryError) as caught:
                await producer.send_arrow("t", big(20))
            errors.append(caught.value)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send)
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(producer.aclose)
            await trio.testing.wait_all_tasks_blocked()
            cluster.thaw(0)
        assert (errors[0].delivered, errors[0].failed) == (6, 14)
        assert isinstance(errors[0].__cause__, trio.ClosedResourceError)
        assert heads(cluster) == list(range(6))


# --- cancellation ---------------------------------------------------------------------------------


async def test_cancelled_table_keeps_its_order(
    autojump_clock: Clock,
) -> None:
    """Cancelled at any await, a prefix of the rows is written."""

    @asynccontextmanager
    async def setup() -> AsyncIterator[Given]:
        async with (
            ScriptedCluster(topics={"t": 1}) as cluster,
            opened(cluster, buffer_memory=3_000) as producer,
        ):
            yield cluster, producer

    counts = set()

    async def scenario(given: Given) -> None:
        await given[1].send_arrow("t", big(60))

    async def check(given: Given) -> None:
        cluster, producer = given
        await producer.flush()
        found = heads(cluster)
        assert found == list(range(len(found)))
        counts.add(len(found))
        statistics = producer.statistics()
        assert (statistics.buffer_used, statistics.tasks_waiting, statistics.batches_waiting) == (
            0,
            0,
            0,
        )
        await producer.send("t", b"after")

    steps = await assert_all_awaits_cancellable(scenario, check, setup=setup)
    assert steps > 8
    assert 0 in counts
    assert 60 in counts
    assert len(counts) > 4, "cancelled in the middle, what was accepted is written"


async def test_cancelled_table_releases_its_turn(autojump_clock: Clock) -> None:
    def setup() -> AbstractAsyncContextManager[Given]:
        return ready(buffer_memory=1_000)

    async with setup() as (cluster, producer):
        cluster.freeze(0)
        fill(producer)
        with trio.move_on_after(1) as scope:
            await producer.send_arrow("t", big(20))
        assert scope.cancelled_caught
        assert producer.statistics().tasks_waiting == 0
        cluster.thaw(0)
        await producer.send("t", b"12345")
        assert heads(cluster) if values(cluster)[0] == b"0" else values(cluster)[-1] == b"12345"


# --- properties -----------------------------------------------------------------------------------

keys = st.none() | st.binary(max_size=4)
rows = st.lists(
    st.tuples(keys, st.none() | st.binary(max_size=40), st.none() | st.integers(0, 3)), max_size=60
)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(rows, min_size=1, max_size=3),
    st.booleans(),
    st.sampled_from(["none", "lz4"]),
    st.sampled_from([1_000, 10**6]),
)
def test_table_equals_its_rows_sent_singly(
    chunks: Any, explicit: bool, compression: str, memory: int
) -> None:
    flat = [row for chunk in chunks for row in chunk]
    types = {"key": pa.large_binary(), "value": pa.binary(), "partition": pa.int32()}
    pieces = [
        pa.table(
            {
                name: pa.array([row[at] for row in chunk], kind)
                for at, (name, kind) in enumerate(types.items())
            }
        )
        for chunk in chunks
    ]
    data = pa.concat_tables(pieces)
    if not explicit:
        data = data.drop_columns(["partition"])

    async def main() -> None:
        settings = {"compression_type": compression, "buffer_memory": memory}
        async with (
            ScriptedCluster(topics={"a": 4, "b": 4}) as cluster,
            opened(cluster, **settings) as producer,
        ):
            delivery = await producer.send_arrow("a", data, timestamp=None)
            for key, value, number in flat:
                await producer.send("b", value, key=key, partition=number if explicit else None)
            check(cluster, delivery)

    def check(cluster: ScriptedCluster, delivery: ArrowDelivery) -> None:
        assert delivery.rows == len(flat)
        logs: list[list[tuple[Any, Any]]] = [
            [(r.key, r.value) for r in cluster.records("a", number)] for number in range(4)
        ]
        keyless = []
        for number in range(4):
            fixed = [
                (key, value)
                for key, value, wanted in flat
                if _goes(key, wanted if explicit else None) == number
            ]
            found = [row for row in logs[number] if row in fixed]
            assert [row for row in found if row[0] is not None] == [
                row for row in fixed if row[0] is not None
            ]
            place = delivery.partitions.get(TopicPartition("a", number))
            assert (place is None) == (not logs[number])
            if place is not None:
                assert (place.rows, place.first_offset, place.last_offset) == (
                    len(logs[number]),
                    0,
                    len(logs[number]) - 1,
                )
            keyless += logs[number]
            if explicit or all(key is not None for key, _, _ in flat):
                theirs = [(r.key, r.value) for r in cluster.records("b", number)]
                if all(key is not None or wanted is not None for key, _, wanted in flat):
                    assert logs[number] == theirs
        assert sorted(keyless, key=repr) == sorted(
            ((key, value) for key, value, _ in flat), key=repr
        )

    trio.run(main, clock=Clock(autojump_threshold=0))


def _goes(key: bytes | None, wanted: int | None) -> int | float:
    if wanted is not None:
        return wanted
    return math.nan if key is None else partition_for_key(key, 4)
