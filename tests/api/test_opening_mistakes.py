"""A client that is not opened as clients are: an error of ours that shows the right line, and no riddle of Python's."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

import trikafka
from trikafka import ConfigurationError, IllegalStateError
from trikafka.testing import ScriptedCluster

OPENERS: list[Callable[..., Any]] = [trikafka.open_consumer, trikafka.open_producer, trikafka.open_admin]
BY_NAME: list[Callable[..., Any]] = [trikafka.open_producer, trikafka.open_admin]


def line(opener: Callable[..., Any]) -> str:
    name = opener.__name__
    return f"{name}() opens with a block, 'async with trikafka.{name}(...) as {name.removeprefix('open_')}:'"


@pytest.mark.parametrize("opener", OPENERS)
async def test_a_forgotten_async_with(opener: Callable[..., Any]) -> None:
    """Before: ``'_AsyncGeneratorContextManager' object has no attribute 'receive'``, and TypeErrors."""
    client = opener(bootstrap_servers="nowhere:1")

    async def iterate() -> None:
        async for _ in client:
            pass

    async def wait() -> None:
        await client

    def plain() -> None:
        with client:
            pass

    with pytest.raises(IllegalStateError) as caught:
        await client.close()
    assert str(caught.value).startswith(line(opener) + ": before that there is no ")
    for mistake, says in ((iterate, ": inside of it 'async for'"), (wait, f", not by 'await {opener.__name__}(...)'")):
        with pytest.raises(IllegalStateError) as caught:
            await mistake()
        assert str(caught.value).startswith(line(opener) + says)
    with pytest.raises(IllegalStateError) as caught:
        plain()
    assert str(caught.value) == line(opener) + ", not by 'with'"


@pytest.mark.parametrize("opener", OPENERS)
def test_python_may_ask_what_it_has(opener: Callable[..., Any]) -> None:
    client = opener()
    assert not hasattr(client, "receive")
    assert not hasattr(client, "__len__")
    assert not inspect.iscoroutine(client)
    assert "Opening" in repr(client)


@pytest.mark.parametrize("opener", BY_NAME)
@pytest.mark.parametrize(("given", "shown"), [("localhost:9092", "'localhost:9092'"), ("u:s3cr3t@h:1", "..."), (["a:1"], "...")])
def test_settings_without_their_names(opener: Callable[..., Any], given: Any, shown: str) -> None:
    """Before: ``open_producer() takes 0 positional arguments but 1 was given``."""
    with pytest.raises(ConfigurationError) as caught:
        opener(given)
    name = opener.__name__
    assert str(caught.value) == (
        f"{name}() takes settings by their names, such as trikafka.{name}(bootstrap_servers={shown})"
    )


async def test_an_address_is_no_topic() -> None:
    with pytest.raises(ConfigurationError) as caught:
        async with trikafka.open_consumer("localhost:9092"):
            pass
    assert str(caught.value) == (
        "open_consumer takes topics; brokers go by their setting: open_consumer(..., bootstrap_servers='localhost:9092')"
    )


async def test_an_exception_of_the_block_comes_out_as_it_is() -> None:
    error = KeyError("mine")
    async with ScriptedCluster() as cluster:
        with pytest.raises(KeyError) as caught:
            async with trikafka.open_admin(bootstrap_servers=cluster.bootstrap_servers, dial=cluster.dial):
                raise error
    assert caught.value is error
