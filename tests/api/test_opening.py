"""Mistakes in how a client is opened: one sentence before any dial, without a riddle of Python's."""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Callable
from typing import Any, NoReturn

import pytest
import trio

import trikafka
from trikafka import ConfigurationError, IllegalStateError
from trikafka.testing import ScriptedCluster

OPENERS: list[Callable[..., Any]] = [
    trikafka.open_consumer,
    trikafka.open_producer,
    trikafka.open_admin,
]
each_opener = pytest.mark.parametrize("opener", OPENERS, ids=["consumer", "producer", "admin"])


async def never_dialled(host: str, port: int) -> NoReturn:
    pytest.fail("it was dialled")


async def refused(
    opener: Callable[..., Any], says: str, *topics: object, **settings: object
) -> None:
    """Open a client, and check that one sentence with ``says`` is raised and nothing is dialled."""
    with pytest.raises(ConfigurationError, match=re.escape(says)) as caught:
        async with opener(*topics, bootstrap_servers="kafka:9092", dial=never_dialled, **settings):
            pytest.fail("it opened")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("topics", "says"),
    [
        (
            (["flights"],),
            "topics as separate arguments: open_consumer('flights', ...), not ['flights']",
        ),
        (
            ({"flights"},),
            "topics as separate arguments: open_consumer('flights', ...), not {'flights'}",
        ),
        (("",), "a topic's name must not be empty"),
        (("no such/topic",), "topic 'no such/topic' has ' ', '/' in its name; Kafka allows"),
        ((".",), "a topic cannot be called '.'"),
        (("^flights.*",), "only a consumer takes a pattern: re.compile('^flights.*')"),
        (("flights.*",), "only a consumer takes a pattern, such as re.compile('orders.*')"),
        ((b"flights",), "a topic's name must be text, not b'flights'"),
        ((re.compile("fl.*"), "flights"), "or one pattern alone, not re.compile('fl.*')"),
        (("flights", "flights"), "topic 'flights' is given twice"),
    ],
    ids=str,
)
async def test_invalid_topics_are_refused(topics: tuple[object, ...], says: str) -> None:
    await refused(trikafka.open_consumer, says, *topics, group_id="g")


@pytest.mark.parametrize("opener", [trikafka.open_consumer, trikafka.open_share_consumer])
async def test_settings_are_no_topic(opener: Callable[..., Any]) -> None:
    """confluent-kafka takes a mapping of settings. It may hold a password."""
    says = (
        f"{opener.__name__} takes topics; settings go by their names: {opener.__name__}(..., "
        "**trikafka.from_properties(settings))"
    )
    with pytest.raises(ConfigurationError) as caught:
        async with opener({"bootstrap.servers": "kafka:9092", "sasl.password": "s3cr3t"}):
            pytest.fail("it opened")
    assert str(caught.value) == says


async def test_topics_need_a_group() -> None:
    await refused(trikafka.open_consumer, "subscribing to topics needs a group_id", "flights")
    await refused(trikafka.open_consumer, "group_id must not be empty", "flights", group_id="")


async def test_exclusive_settings_are_refused() -> None:
    says = "heartbeat_interval_ms cannot be given with group_protocol='consumer'"
    await refused(
        trikafka.open_consumer,
        says,
        "flights",
        group_id="g",
        group_protocol="consumer",
        heartbeat_interval_ms=500,
    )
    await refused(
        trikafka.open_consumer, "enable_auto_commit=True needs a group_id", enable_auto_commit=True
    )


@each_opener
async def test_misspelt_setting_is_explained(opener: Callable[..., Any]) -> None:
    await refused(opener, "unknown setting 'client_ids' for ", client_ids="c")
    await refused(opener, "did you mean 'bootstrap_servers'?", bootstrap_server="kafka:9092")


@pytest.mark.parametrize(
    ("opener", "name", "says"),
    [
        (trikafka.open_consumer, "api_version", "leave it out: the versions of a broker are asked"),
        (trikafka.open_consumer, "consumer_timeout_ms", "leave it out: receive_batch(timeout=...)"),
        (trikafka.open_producer, "loop", "leave it out: a client runs where it is opened"),
        (trikafka.open_producer, "max_batch_size", "did you mean 'batch_size'?"),
        (trikafka.open_producer, "on_delivery", "await send(), or the ack that enqueue() returns"),
        (trikafka.open_producer, "socks5_proxy", "give dial, a function that opens a stream"),
        (
            trikafka.open_producer,
            "metadata.broker.list",
            "did you mean 'bootstrap_servers'? (trikafka.from_properties() takes such names)",
        ),
        (trikafka.open_consumer, "fetch.message.max.bytes", "'max_partition_fetch_bytes'"),
    ],
)
async def test_settings_of_others_are_explained(
    opener: Callable[..., Any], name: str, says: str
) -> None:
    """The nearest name of ours may mean something else: 'ssl_minimum_version' for an api_version."""
    await refused(opener, says, **{name: "5"})


async def test_names_that_nobody_offers_are_explained() -> None:
    sasl = {"sasl_plain_username": "u", "sasl_plain_password": "p"}
    says = "no plugin offers 'plain' (did you mean 'PLAIN'?); without plugins there are PLAIN, "
    await refused(
        trikafka.open_admin, says, sasl_mechanism="plain", security_protocol="SASL_SSL", **sasl
    )
    await refused(
        trikafka.open_consumer,
        "named 'round_robin'; without plugins there are range, roundrobin, sticky and",
        group_id="g",
        partition_assignment_strategy=["round_robin"],
    )
    await refused(
        trikafka.open_producer,
        "named 'crc32'; without plugins there are default, consistent, ",
        partitioner="crc32",
    )


@each_opener
def test_asyncio_program_needs_trio(opener: Callable[..., Any]) -> None:
    async def main() -> None:
        async with opener(bootstrap_servers="kafka:9092", dial=never_dialled):
            pytest.fail("it opened")

    says = (
        f"^{opener.__name__}\\(\\) needs Trio, and no Trio runs here: start the program with "
        "trio.run\\(main\\)"
    )
    with pytest.raises(IllegalStateError, match=says):
        asyncio.run(main())
    with pytest.raises(IllegalStateError, match=says):
        main().send(None)


def test_export_in_asyncio_goes_to_a_thread() -> None:
    """There is no trikafka.aio.open_exporter."""

    async def main() -> None:
        async with trikafka.open_exporter("t", "out", bootstrap_servers="kafka:9092"):
            pytest.fail("it opened")

    says = (
        r"in a program of asyncio, run it in a thread: await asyncio\.to_thread\(trio\.run, main\)$"
    )
    with pytest.raises(IllegalStateError, match=says):
        asyncio.run(main())


@each_opener
def test_trio_program_gets_no_asyncio_hint(opener: Callable[..., Any]) -> None:
    async def main() -> None:
        await refused(opener, "client_id must be text", client_id=5)

    trio.run(main)


BY_NAME: list[Callable[..., Any]] = [trikafka.open_producer, trikafka.open_admin]


def line(opener: Callable[..., Any]) -> str:
    name = opener.__name__
    return (
        f"{name}() opens with a block, 'async with trikafka.{name}(...) as "
        f"{name.removeprefix('open_')}:'"
    )


@each_opener
async def test_forgotten_async_with_is_explained(opener: Callable[..., Any]) -> None:
    """Python's own error was ``'_AsyncGeneratorContextManager' object has no attribute 'receive'``."""
    client = opener(bootstrap_servers="nowhere:1")

    async def iterate() -> None:
        async for _ in client:
            pass

    async def wait() -> None:
        await client

    async def iterate_plainly() -> None:
        list(client)

    def plain() -> None:
        with client:
            pass

    with pytest.raises(IllegalStateError) as caught:
        await client.close()
    assert str(caught.value).startswith(line(opener) + ": before that there is no ")
    consumes = opener.__name__.endswith("consumer")
    inside = f": inside of it 'async for' goes over the {opener.__name__.removeprefix('open_')}"
    for mistake, says in (
        (iterate, inside if consumes else ", not by 'async for'"),
        (iterate_plainly, inside if consumes else ", not by 'for'"),
        (wait, f", not by 'await {opener.__name__}(...)'"),
    ):
        with pytest.raises(IllegalStateError) as caught:
            await mistake()
        assert str(caught.value).startswith(line(opener) + says)
    with pytest.raises(IllegalStateError) as caught:
        plain()
    assert str(caught.value) == line(opener) + ", not by 'with'"


@each_opener
def test_introspection_of_an_opening_works(opener: Callable[..., Any]) -> None:
    client = opener()
    assert not hasattr(client, "receive")
    assert not hasattr(client, "__len__")
    assert not inspect.iscoroutine(client)
    assert "Opening" in repr(client)


@pytest.mark.parametrize("opener", BY_NAME)
@pytest.mark.parametrize(
    ("given", "shown"),
    [("localhost:9092", "'localhost:9092'"), ("u:s3cr3t@h:1", "..."), (["a:1"], "...")],
)
def test_positional_settings_are_explained(
    opener: Callable[..., Any], given: Any, shown: str
) -> None:
    """Python's own error was ``open_producer() takes 0 positional arguments but 1 was given``."""
    with pytest.raises(ConfigurationError) as caught:
        opener(given)
    name = opener.__name__
    assert str(caught.value) == (
        f"{name}() takes settings by their names, such as "
        f"trikafka.{name}(bootstrap_servers={shown})"
    )


async def test_address_as_topic_is_explained() -> None:
    with pytest.raises(ConfigurationError) as caught:
        async with trikafka.open_consumer("localhost:9092"):
            pass
    assert str(caught.value) == (
        "open_consumer takes topics; brokers go by their setting: open_consumer(..., "
        "bootstrap_servers='localhost:9092')"
    )


async def test_exception_of_the_block_is_unchanged() -> None:
    error = KeyError("mine")
    async with ScriptedCluster() as cluster:
        with pytest.raises(KeyError) as caught:
            async with trikafka.open_admin(
                bootstrap_servers=cluster.bootstrap_servers, dial=cluster.dial
            ):
                raise error
    assert caught.value is error


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"ssl_cafile": "/nope/ca.pem"}, "ssl_cafile: cannot read '/nope/ca.pem'"),
        ({"ssl_certfile": "/nope/me.pem"}, "ssl_certfile '/nope/me.pem': No such file"),
    ],
)
async def test_unreadable_tls_file_is_refused(settings: dict[str, Any], says: str) -> None:
    async def dial(host: str, port: int) -> Any:
        raise AssertionError("it was dialled")

    with pytest.raises(trikafka.ConfigurationError, match=says):
        async with trikafka.open_admin(
            bootstrap_servers="a:1", security_protocol="SSL", dial=dial, **settings
        ):
            pass


@each_opener
async def test_block_is_entered_once(opener: Callable[..., Any]) -> None:
    """A loop that enters one opening again and again gets a line that it can act on."""
    async with ScriptedCluster(topics={"flights": 1}) as cluster:
        opening = opener(bootstrap_servers=cluster.bootstrap_servers, dial=cluster.dial)
        async with opening:
            with pytest.raises(IllegalStateError, match="can be entered once: call"):
                async with opening:
                    pytest.fail("it opened again")
        with pytest.raises(IllegalStateError, match="again for another client"):
            async with opening:
                pytest.fail("it opened again")
