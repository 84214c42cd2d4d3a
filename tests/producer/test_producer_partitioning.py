"""Partitioning: KIP-480 and KIP-794, a function of the user's, and brokers that are slow or
unreachable.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
import trio
from accumulating import Bench
from producing import keyless_are_delivered, opened, ready
from trio.testing import MockClock as Clock

from trikafka import ConfigurationError, PluginError
from trikafka._wire.partitioning import KEY_RULES, NO_KEYS, partition_for_key
from trikafka.config import ProducerConfig, from_properties
from trikafka.testing import ScriptedCluster


def by_first_byte(topic: str, key: bytes | None, partitions: Sequence[int]) -> int:
    return partitions[key[0] % len(partitions) if key else -1]


async def test_function_may_be_the_partitioner(autojump_clock: Clock) -> None:
    async with (
        ScriptedCluster(topics={"t": 3}) as cluster,
        opened(cluster, partitioner=by_first_byte) as producer,
    ):
        for key in (b"\0", b"\1", b"\2", b"\3", None):
            await producer.send("t", b"v", key=key)
        await producer.send("t", b"v", key=b"\0", partition=1)
        found = [[record.key for record in cluster.records("t", number)] for number in range(3)]
        assert found == [[b"\0", b"\3"], [b"\1", b"\0"], [b"\2", None]]


@pytest.mark.parametrize("answer", [3, -1, None, "0", True])
async def test_wrong_choice_of_partitioner_is_refused(answer: Any, autojump_clock: Clock) -> None:
    async with (
        ScriptedCluster(topics={"t": 3}) as cluster,
        opened(cluster, partitioner=lambda *_: answer) as producer,
    ):
        with pytest.raises(PluginError, match=r"the partitioner chose .* of 3 partitions of 't'"):
            await producer.send("t", b"v")
        assert producer.statistics().buffer_used == 0


def of_aiokafka(key_bytes: bytes, every: list[int], available: list[int]) -> int:
    return every[len(key_bytes) % len(every)]


@pytest.mark.parametrize("theirs", [of_aiokafka, lambda key, every, available: every[0]])
async def test_partitioner_of_another_client_is_refused(theirs: Any, autojump_clock: Clock) -> None:
    """It takes three arguments, too, and would choose by the topic."""
    async with ScriptedCluster(topics={"t": 3}) as cluster:
        with pytest.raises(ConfigurationError, match="takes a key first, as with aiokafka and"):
            async with opened(cluster, partitioner=theirs):
                pass
        assert not cluster.log


@pytest.mark.parametrize("wrong", [5, b"default", ["default"]])
def test_wrong_partitioner_is_refused(wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match="partitioner must be"):
        ProducerConfig.build({"bootstrap_servers": "a:1", "partitioner": wrong})


@pytest.mark.usefixtures("record_path")
def test_keys_may_be_ignored() -> None:
    keys = [b"%d" % number for number in range(30)]
    bench = Bench(0, 0, 0, 0, batch_size=10_000, buffer_memory=100_000, max_request_size=20_000)
    assert [bench.put(key=key)[0].partition for key in keys] == [
        partition_for_key(key, 4) for key in keys
    ]
    bench = Bench(
        0,
        0,
        0,
        0,
        keys=NO_KEYS,
        batch_size=10_000,
        buffer_memory=100_000,
        max_request_size=20_000,
    )
    assert len({bench.put(key=key)[0].partition for key in keys}) == 1
    assert {bench.put(key=key, partition=3)[0].partition for key in keys} == {3}
    assert len({bench.put(b"x" * 3_000, key=key)[0].partition for key in keys}) >= 3


KEYS: list[bytes | None] = [None, b"", *(b"%d" % number for number in range(30))]


@pytest.mark.parametrize("name", [name for name in KEY_RULES if name != "random"])
async def test_named_partitioner_chooses_each_way(name: str, autojump_clock: Clock) -> None:
    """By ``enqueue``, into a new batch and an open one, and by ``send_arrow``."""
    pa = pytest.importorskip("pyarrow")
    rule = KEY_RULES[name]
    hashed = [key for key in KEYS if (-1 if key is None else len(key)) >= rule.shortest]
    expected = [partition_for_key(key or b"", 7, rule.kind) for key in hashed]
    async with ready(partitions=7, partitioner=name, linger_ms=1_000) as (_, producer):
        for _ in range(2):
            acks = [await producer.enqueue("t", b"v", key=key) for key in hashed]
            await producer.flush()
            assert [(await ack.wait()).partition for ack in acks] == expected
        table = pa.table({"key": pa.array(hashed, pa.binary()), "value": [b"v"] * len(hashed)})
        found = (await producer.send_arrow("t", table)).partitions
        assert {place.partition: part.rows for place, part in found.items()} == Counter(expected)
        keyless = (await producer.send_arrow("t", pa.table({"value": [b"v"] * 9}))).partitions
        assert len(keyless) == 1
        if rule.shortest < 0:
            assert [place.partition for place in keyless] == [partition_for_key(b"", 7, rule.kind)]


@pytest.mark.parametrize("settings", [{"partitioner": "random"}, {"partitioner_ignore_keys": True}])
async def test_random_partitioner_ignores_keys(
    settings: dict[str, Any], autojump_clock: Clock
) -> None:
    async with ready(partitions=7, linger_ms=1_000, **settings) as (_, producer):
        acks = [await producer.enqueue("t", b"v", key=key) for key in KEYS]
        await producer.flush()
        assert len({(await ack.wait()).partition for ack in acks}) == 1


async def test_keys_of_a_table_may_be_ignored(autojump_clock: Clock) -> None:
    import pyarrow as pa

    async with ready(partitions=4, partitioner_ignore_keys=True) as (_, producer):
        table = pa.table({"key": [b"%d" % number for number in range(50)], "value": [b"v"] * 50})
        assert len((await producer.send_arrow("t", table)).partitions) == 1
        some = table.append_column("partition", pa.array([3, None] * 25, pa.int32()))
        delivery = await producer.send_arrow("t", some)
        assert sum(part.rows for part in delivery.partitions.values()) == 50
        assert len(delivery.partitions) <= 2


@pytest.mark.parametrize("adaptive", [True, False])
@pytest.mark.parametrize(
    ("partitions", "slow", "fast", "most"), [(8, 0.5, 0.005, 225), (2, 0.2, 0, 150)]
)
async def test_slow_broker_gets_fewer_records(
    partitions: int, slow: float, fast: float, most: int, adaptive: bool, autojump_clock: Clock
) -> None:
    """Partitions are not served in turn: each choice is by the weights (KIP-794)."""
    settings = {
        "partitioner_adaptive_partitioning_enable": adaptive,
        "batch_size": 100,
        "max_in_flight_requests_per_connection": 1,
    }
    async with ready(nodes=2, partitions=partitions, **settings) as (cluster, producer):
        cluster.delay("Produce", slow, node=1)
        cluster.delay("Produce", fast, node=0)
        for _ in range(600):
            await producer.enqueue("t", b"x" * 50)
            await trio.sleep(0.005)
        await producer.flush(timeout=600)
        found = Counter(
            cluster.partition("t", number).leader
            for number in range(partitions)
            for _ in cluster.records("t", number)[1:]
        )
        assert found.total() == 600
        assert (found[1] < most) == adaptive, found


def test_weights_are_those_of_java() -> None:
    """BuiltInPartitioner: queues of 0, 3 and 1 batches weigh 4, 1 and 3."""
    bench = Bench(0, 0, 0, batch_size=0, buffer_memory=100_000)
    for number, count in enumerate((0, 3, 1)):
        bench.fill(count, number)
    topic = bench.accumulator._queues.topics["t"]
    found = Counter(topic.switch().place.partition for _ in range(8_000))
    assert [round(found[number] / 1_000) for number in range(3)] == [4, 1, 3]


@pytest.mark.parametrize("patience", [0, 2_000])
async def test_busy_broker_counts_as_unavailable(patience: int, autojump_clock: Clock) -> None:
    """It is connected and has as many requests as allowed, so it is unavailable, as in Java's
    client.
    """
    settings = {
        "partitioner_availability_timeout_ms": patience,
        "partitioner_adaptive_partitioning_enable": False,
        "batch_size": 0,
    }
    async with ready(
        nodes=2, partitions=4, **settings, max_in_flight_requests_per_connection=1
    ) as (cluster, producer):
        cluster.freeze(1)
        assert await keyless_are_delivered(cluster, producer, node=1, waiting=2) == (patience > 0)
        cluster.thaw(1)
        await producer.flush()
        assert {(await producer.send("t", b"x")).partition % 2 for _ in range(40)} == {0, 1}, (
            "it is back"
        )


@pytest.mark.parametrize("patience", [0, 2_000])
async def test_unreachable_broker_gets_no_records(patience: int, autojump_clock: Clock) -> None:
    settings = {
        "partitioner_availability_timeout_ms": patience,
        "partitioner_adaptive_partitioning_enable": False,
        "batch_size": 0,
    }
    async with ready(nodes=2, partitions=4, **settings) as (cluster, producer):
        cluster.stop(1, noticed=False)
        assert await keyless_are_delivered(cluster, producer, node=1, waiting=1) == (patience > 0)
        cluster.start(1)
        await producer.flush()


async def test_sender_of_a_removed_broker_ends(autojump_clock: Clock) -> None:
    async with ready(nodes=2, partitions=2, metadata_max_age_ms=1_000) as (cluster, producer):
        leaders = {cluster.partition("t", number).leader for number in range(2)}
        assert leaders == {0, 1}

        def senders() -> int:
            nursery = producer._context._service._nursery
            return sum("Senders._serve" in task.name for task in nursery.child_tasks)

        assert senders() == 2
        for number in range(2):
            cluster.move_leader("t", number, 0)
        cluster.stop(1)
        await trio.sleep(3)
        assert senders() == 1
        await producer.send("t", b"x", partition=1)
        cluster.start(1)
        cluster.move_leader("t", 1, 1)
        await trio.sleep(3)
        await producer.send("t", b"x", partition=1)
        assert senders() == 2


# --- codecs ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("codec", "low", "high"), [("gzip", 1, 9), ("zstd", 1, 19), ("lz4", 1, 12)]
)
async def test_compression_levels_change_the_size(
    codec: str, low: int, high: int, autojump_clock: Clock
) -> None:
    text = b" ".join(b"%d %f" % (number, math.sin(number)) for number in range(5_000))
    sizes = []
    for level in (low, high):
        settings = from_properties(
            {"compression.type": codec, f"compression.{codec}.level": str(level)}
        )
        async with (
            ScriptedCluster(topics={"t": 1}) as cluster,
            opened(cluster, **settings) as producer,
        ):
            await producer.send("t", text)
            assert [record.value for record in cluster.records("t", 0)] == [text]
            sizes.append(len(cluster.partition("t", 0).batches[0].data))
    assert sizes[1] < sizes[0]


@pytest.mark.parametrize(
    ("name", "wrong"),
    [("gzip", 0), ("gzip", 10), ("lz4", 18), ("zstd", 23), ("zstd", 1.5), ("gzip", True)],
)
def test_wrong_compression_levels_are_refused(name: str, wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"compression_{name}_level must be"):
        ProducerConfig.build({"bootstrap_servers": "a:1", f"compression_{name}_level": wrong})


@pytest.mark.parametrize("allowed", [True, False])
async def test_topics_are_created_if_allowed(allowed: bool, autojump_clock: Clock) -> None:
    async with (
        ScriptedCluster(auto_create_topics=True) as cluster,
        opened(cluster, allow_auto_create_topics=allowed) as producer,
    ):
        if allowed:
            await producer.send("new", b"x")
        else:
            with pytest.raises(Exception, match="'new'"):
                await producer.send("new", b"x")


@pytest.mark.parametrize(
    ("settings", "chosen"),
    [
        ({"partitioner_rack_aware": True, "client_rack": "b"}, {1, 3}),
        ({"partitioner_rack_aware": True, "client_rack": "nowhere"}, {0, 1, 2, 3}),
        ({"partitioner_rack_aware": True}, {0, 1, 2, 3}),
        ({"client_rack": "b"}, {0, 1, 2, 3}),
    ],
)
async def test_keyless_records_stay_in_the_rack(
    autojump_clock: Clock, settings: Any, chosen: set[int]
) -> None:
    """Leaders of the producer's rack are chosen while there are any (KIP-1123)."""
    async with ScriptedCluster(nodes=2, topics={"t": 4}, racks=["a", "b"]) as cluster:
        for partition in range(4):
            cluster.move_leader("t", partition, partition % 2)
        async with opened(cluster, batch_size=0, **settings) as producer:
            for number in range(60):
                await producer.send("t", b"%d" % number)
            for number in range(4):  # keys go where they always go
                await producer.send("t", b"keyed", key=b"%d" % number)
    found = {
        number
        for number in range(4)
        if any(record.key is None for record in cluster.records("t", number))
    }
    assert found == chosen
