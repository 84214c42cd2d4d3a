"""The names of other Kafka clients, on ours."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable
from typing import Any

import pytest
from trio.testing import MockClock as Clock

import trikafka
import trikafka.aio
from trikafka._api.client.other_names import _ALL, _HINTS, _hint
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
                with pytest.raises(
                    AttributeError, match=f"{name}'; use {re.escape(hint)}$"
                ) as raised:
                    getattr(client, name)
                assert raised.value.obj is None, "Python would suggest a private name, too"
                with pytest.raises(AttributeError, match=r"has no attribute 'colour'$"):
                    _ = client.colour
                assert not hasattr(client, "_colour")
                with pytest.raises(TypeError, match="cannot be copied"):
                    copy.copy(client)
                assert not isinstance(client, Iterable)


@pytest.mark.parametrize(
    ("name", "opens"),
    [
        ("AIOKafkaProducer", "aio.open_producer"),
        ("KafkaAdminClient", "open_admin"),
        ("KafkaConsumer", "open_consumer"),
        ("KafkaShareConsumer", "open_share_consumer"),
    ],
)
def test_classes_of_other_clients_get_a_hint(name: str, opens: str) -> None:
    with pytest.raises(AttributeError, match=rf"use 'async with trikafka\.{opens}\("):
        getattr(trikafka, name)


@pytest.mark.parametrize("package", [trikafka, trikafka.aio], ids=lambda each: each.__name__)
@pytest.mark.parametrize("kind", _HINTS)
def test_hints_exist(kind: str, package: Any) -> None:
    """A hint names only what the client has, for a name that it does not have."""
    client = getattr(package, kind)
    for name in (*_HINTS[kind], *_ALL):
        assert not hasattr(client, name)
        hint = _hint(client, name)
        assert hint is not None
        assert hint.startswith(("use ", "no call is needed: "))
        for used in re.findall(r"(?<![.\w])([a-z_]+)\(", hint):
            assert hasattr(client, used), used
        for part, used in re.findall(r"([a-z]+)\.([a-z_]+)\(", hint):
            assert hasattr(getattr(package, part.capitalize()), used), used


@pytest.mark.parametrize(
    ("kind", "name", "hint"),
    [
        ("Consumer", "clusterId", "use cluster_id"),
        ("ShareConsumer", "memberId", "use member_id"),
        ("Admin", "isClosed", "use is_closed"),
        ("Consumer", "beginningOffsets", "use beginning_offsets()"),
    ],
)
def test_hint_calls_no_property(kind: str, name: str, hint: str) -> None:
    assert _hint(getattr(trikafka, kind), name) == hint
    assert _hint(getattr(trikafka.aio, kind), name) == hint


@pytest.mark.parametrize("name", ["cluster_id", "_private"])
@pytest.mark.parametrize("package", [trikafka, trikafka.aio], ids=lambda each: each.__name__)
def test_error_inside_a_property_is_not_hidden(
    monkeypatch: pytest.MonkeyPatch, package: Any, name: str
) -> None:
    """The client does have that attribute."""

    def fail(client: object) -> None:
        raise AttributeError("inner")

    monkeypatch.setattr(package.Consumer, name, property(fail), raising=False)
    client = package.Consumer.__new__(package.Consumer)
    if package is trikafka.aio:
        client._client = trikafka.Consumer.__new__(trikafka.Consumer)
    with pytest.raises(AttributeError, match=r"^inner$"):
        getattr(client, name)


def test_hint_reaches_clients_of_asyncio() -> None:
    """Without an open client: the class of Trio's client has the hints."""
    client = trikafka.aio.Consumer.__new__(trikafka.aio.Consumer)
    client._client = trikafka.Consumer.__new__(trikafka.Consumer)
    with pytest.raises(AttributeError, match=r"getmany'; use receive_batch\(timeout=...\)$"):
        client.getmany()  # type: ignore[attr-defined]
