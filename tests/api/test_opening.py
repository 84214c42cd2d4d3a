"""What is wrong with the arguments of ``open_*`` is one sentence, before anything is dialled."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any, NoReturn

import pytest
import trio

import trikafka
from trikafka import ConfigurationError, IllegalStateError

OPENERS: list[Callable[..., Any]] = [trikafka.open_consumer, trikafka.open_producer, trikafka.open_admin]
each_opener = pytest.mark.parametrize("opener", OPENERS, ids=["consumer", "producer", "admin"])


async def never_dialled(host: str, port: int) -> NoReturn:
    pytest.fail("it was dialled")


async def refused(opener: Callable[..., Any], says: str, *topics: object, **settings: object) -> None:
    """Opening raises one sentence with ``says`` in it, and dials nobody."""
    with pytest.raises(ConfigurationError, match=re.escape(says)) as caught:
        async with opener(*topics, bootstrap_servers="kafka:9092", dial=never_dialled, **settings):
            pytest.fail("it opened")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("topics", "says"),
    [
        ((["flights"],), "topics as separate arguments: open_consumer('flights', ...), not ['flights']"),
        (({"flights"},), "topics as separate arguments: open_consumer('flights', ...), not {'flights'}"),
        (("",), "a topic's name must not be empty"),
        (("no such/topic",), "topic 'no such/topic' has ' ', '/' in its name; Kafka allows"),
        ((".",), "a topic cannot be called '.'"),
        ((b"flights",), "a topic's name must be text, not b'flights'"),
        ((re.compile("fl.*"),), "a pattern goes to consumer.subscribe(re.compile('fl.*'))"),
        (("flights", "flights"), "topic 'flights' is given twice"),
    ],
    ids=str,
)
async def test_topics_that_are_none(topics: tuple[object, ...], says: str) -> None:
    await refused(trikafka.open_consumer, says, *topics, group_id="g")


async def test_topics_need_a_group() -> None:
    await refused(trikafka.open_consumer, "subscribing to topics needs a group_id", "flights")
    await refused(trikafka.open_consumer, "group_id must not be empty", "flights", group_id="")


async def test_settings_that_exclude_each_other() -> None:
    says = "session_timeout_ms cannot be given with group_protocol='consumer'"
    await refused(trikafka.open_consumer, says, "flights", group_id="g", group_protocol="consumer", session_timeout_ms=45_000)
    await refused(trikafka.open_consumer, "enable_auto_commit=True needs a group_id", enable_auto_commit=True)


@each_opener
async def test_a_name_of_a_setting_that_is_nearly_right(opener: Callable[..., Any]) -> None:
    await refused(opener, "unknown setting 'client_ids' for ", client_ids="c")
    await refused(opener, "did you mean 'bootstrap_servers'?", bootstrap_server="kafka:9092")


@each_opener
def test_under_asyncio(opener: Callable[..., Any]) -> None:
    async def main() -> None:
        async with opener(bootstrap_servers="kafka:9092", dial=never_dialled):
            pytest.fail("it opened")

    says = f"^{opener.__name__}\\(\\) needs Trio, and no Trio runs here: start the program with trio.run\\(main\\)"
    with pytest.raises(IllegalStateError, match=says):
        asyncio.run(main())
    with pytest.raises(IllegalStateError, match=says):
        main().send(None)


@each_opener
def test_under_trio_nothing_of_that_is_said(opener: Callable[..., Any]) -> None:
    async def main() -> None:
        await refused(opener, "client_id must be text", client_id=5)

    trio.run(main)
