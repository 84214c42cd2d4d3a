"""Mistakes in a user's arguments: one sentence before any request, raised as a ``ValueError`` too."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from typing import Any

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
    "receive_batch": lambda consumer: consumer.receive_batch(timeout=float("nan")),
    "unsubscribe": lambda consumer: consumer.unsubscribe(timeout="5"),
    "aclose": lambda consumer: consumer.aclose(timeout=True),
}


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
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, TrikafkaError)
    assert not caught.value.retriable


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
