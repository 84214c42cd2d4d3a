"""What ``statistics()`` and ``health()`` return goes to other processes, and to JSON."""

from __future__ import annotations

import copy
import dataclasses
import json
import pickle
from contextlib import suppress
from typing import Any

import pytest
import trio
from trio.testing import MockClock as Clock

import trikafka
from trikafka import TopicPartition, TrikafkaError
from trikafka.testing import ScriptedCluster

STATES = ["idle", "unreachable", "frozen", "throttled", "refused", "leaderless"]


def checked(found: Any) -> dict[str, Any]:
    """Return the value as JSON has it, after checking that it can be copied."""
    twin = pickle.loads(pickle.dumps(found))
    # Errors are equal only to themselves.
    errors = {"error": None, "last_error": None, "metrics_push": None}
    names = {field.name for field in dataclasses.fields(found)}
    changes = {name: value for name, value in errors.items() if name in names}
    assert dataclasses.replace(twin, **changes) == dataclasses.replace(found, **changes)
    assert repr(twin) == repr(found)
    assert repr(copy.deepcopy(found)) == repr(found)
    written: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(found), default=str))
    assert written.keys() == names
    return written


def trouble(cluster: ScriptedCluster, state: str) -> None:
    """Bring the cluster's broker 0 into a state."""

    async def slow_down(request: Any, default: Any) -> Any:
        response = await default()
        response.throttle_time_ms = 20_000
        return response

    match state:
        case "unreachable":
            cluster.stop(0, noticed=False)
        case "frozen":
            cluster.freeze(0)
        case "throttled":
            for api in ("Fetch", "ShareFetch", "Produce"):
                cluster.on(api, slow_down, times=None)
        case "refused":
            for api in ("Fetch", "ShareFetch", "Produce"):
                cluster.fail(api, 29, None, topic="t")
            for api in ("Heartbeat", "ConsumerGroupHeartbeat", "ShareGroupHeartbeat"):
                cluster.fail(api, 15, None)
        case "leaderless":
            cluster.move_leader("t", 0, None)


@pytest.mark.parametrize("state", STATES)
async def test_snapshots_become_json(state: str, autojump_clock: Clock) -> None:
    """Once, asdict failed while a broker was unreachable, and json.dumps where partitions are."""
    async with ScriptedCluster(nodes=2, topics={"t": 2}) as cluster:
        given: dict[str, Any] = {
            "bootstrap_servers": cluster.bootstrap_servers,
            "dial": cluster.dial,
            "stall_warning_ms": 8_000,
        }
        async with (
            trikafka.open_consumer("t", group_id="g", **given) as consumer,
            trikafka.open_share_consumer("t", group_id="s", **given) as queue,
            trikafka.open_producer(linger_ms=0, **given) as producer,
        ):
            clients = (consumer, queue, producer)
            for client in clients:
                checked(client.health())
                checked(client.statistics())
            for number in (0, 1):
                await producer.send("t", b"x", partition=number)
            while not consumer.assignment():
                await consumer.receive_batch(timeout=0.1)
            await consumer.position(TopicPartition("t", 0))
            trouble(cluster, state)
            for second in range(14):
                if second % 5 == 0:
                    producer.send_nowait("t", b"x", partition=0)
                    producer.send_nowait("t", b"x", partition=1)
                with suppress(TrikafkaError):
                    await consumer.receive_batch(timeout=1)
                with trio.move_on_after(0.1), suppress(TrikafkaError):
                    await queue.receive_batch()
                for client in clients:
                    health = checked(client.health())
                    numbers = checked(client.statistics())
                    _keys_are_names(health, ("unreachable", "throttled"), ":9092")
                    _keys_are_names(health, ("stalled", "last_fetch"), "t-")
                    _keys_are_names(numbers, ("positions", "lag"), "t-")
        for client in (consumer, producer):
            checked(client.health())
            checked(client.statistics())


def _keys_are_names(written: dict[str, Any], names: tuple[str, ...], part: str) -> None:
    for name in names:
        assert all(part in key for key in written.get(name, ()))


async def test_mappings_answer_by_key(autojump_clock: Clock) -> None:
    async with (
        ScriptedCluster(topics={"t": 1}) as cluster,
        trikafka.open_consumer(
            bootstrap_servers=cluster.bootstrap_servers, dial=cluster.dial
        ) as consumer,
    ):
        first = TopicPartition("t", 0)
        consumer.assign([first])
        assert await consumer.position(first) == 0
        positions = consumer.statistics().positions
        assert positions == {first: 0}
        for copied in (copy.copy, copy.deepcopy, lambda it: pickle.loads(pickle.dumps(it, 0))):
            assert copied(positions) == positions
        assert repr(positions) == repr({first: 0})
        assert dataclasses.asdict(consumer.statistics())["positions"] == {"t-0": 0}
