"""The names of other Kafka clients, on ours."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest
from trio.testing import MockClock as Clock

import trikafka
import trikafka.aio
from trikafka._api.client.other_names import _HINTS
from trikafka.testing import ScriptedCluster

NAMES = [
    ("consumer", "getone", "receive()"),
    ("consumer", "commitSync", "commit()"),
    ("consumer", "seekToEnd", "seek_to_end()"),
    ("producer", "send_and_wait", "send()"),
    ("producer", "begin_transaction", "'async with producer.transaction() as transaction:'"),
    ("admin", "list_consumer_groups", "list_groups()"),
    ("admin", "describeConsumerGroups", "describe_groups()"),
    ("admin", "stop", "its 'async with' block, or aclose()"),
]


async def test_names_of_other_clients_get_a_hint(autojump_clock: Clock) -> None:
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        given: Any = {"bootstrap_servers": cluster.bootstrap_servers, "dial": cluster.dial}
        for kind, name, hint in NAMES:
            async with getattr(trikafka, f"open_{kind}")(**given) as client:
                with pytest.raises(AttributeError, match=f"{name}'; use {re.escape(hint)}$"):
                    getattr(client, name)
                with pytest.raises(AttributeError, match=r"has no attribute 'colour'$"):
                    _ = client.colour
                assert not hasattr(client, "_colour")
                with pytest.raises(TypeError, match="cannot be copied"):
                    copy.copy(client)


@pytest.mark.parametrize("kind", _HINTS)
def test_hints_exist(kind: str) -> None:
    """A hint names only what the client has, for a name that it does not have."""
    client = getattr(trikafka, kind)
    for name, hint in _HINTS[kind].items():
        assert not hasattr(client, name)
        for used in re.findall(r"(?<![.\w])([a-z_]+)\(", hint):
            assert hasattr(client, used), used


def test_hint_reaches_clients_of_asyncio() -> None:
    """Without an open client: the class of Trio's client has the hints."""
    client = trikafka.aio.Consumer.__new__(trikafka.aio.Consumer)
    client._client = trikafka.Consumer.__new__(trikafka.Consumer)
    with pytest.raises(AttributeError, match=r"getmany'; use receive_batch\(timeout=...\)$"):
        client.getmany()  # type: ignore[attr-defined]
