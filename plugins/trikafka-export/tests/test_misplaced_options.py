"""Options of a sink that are given as settings of an export.

Plugins list the options of their sinks by a hook, so the core knows none.
"""

from __future__ import annotations

import types
from collections.abc import Collection
from typing import Any

import pytest

import trikafka
from trikafka import ConfigurationError, IllegalStateError, hookimpl


def writing(scheme: str, *options: str) -> object:
    """Return a plugin whose sinks for ``scheme`` have these options."""

    @hookimpl
    def trikafka_sink_options(scheme: str, _own: str = scheme) -> Collection[str] | None:
        return options if scheme == _own else None

    return types.SimpleNamespace(trikafka_sink_options=trikafka_sink_options)


PLUGINS = [writing("walls", "colour"), writing("roofs", "tiles", "colour_of_tiles")]


@pytest.mark.parametrize(
    ("destination", "given", "says"),
    [
        (
            "walls://x",
            "colour",
            "colour is an option of the sink: give sink_options={'colour': ...}",
        ),
        (
            "roofs://x",
            "tiles",
            "tiles is an option of the sink: give sink_options={'tiles': ...}",
        ),
        ("roofs://x", "colour", "unknown setting 'colour' for export()"),
        (
            "walls://x",
            "linger_ms",
            "unknown setting 'linger_ms' for export(); it is one of open_producer()",
        ),
        ("walls://x", "session_timeout_ms", "session_timeout_ms is not a setting of an export"),
        ("walls://x", "value_deserializer", "value_deserializer is not a setting of an export"),
    ],
)
async def test_misplaced_option_is_explained(destination: str, given: str, says: str) -> None:
    """The names of a sink's options come from its plugin."""
    settings: dict[str, Any] = {given: "red", "bootstrap_servers": "nowhere:1", "plugins": PLUGINS}
    with pytest.raises(ConfigurationError) as caught:
        await trikafka.export("t", destination, **settings)
    assert str(caught.value).startswith(says)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (
            {"sink_options": {"destination": "walls://y"}},
            "destination is an argument of its own, and no option of the sink",
        ),
        (
            {"start": {"t": 5}},
            "start must map each TopicPartition to an offset, and one key is 't'",
        ),
        (
            {"start": {0: 5}},
            "start must map each TopicPartition to an offset, and one key is 0",
        ),
    ],
    ids=["destination", "topic", "number"],
)
async def test_misunderstood_argument_is_refused(given: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        await trikafka.export("t", "walls://x", bootstrap_servers="nowhere:1", **given)
    assert str(caught.value) == says


@pytest.mark.parametrize(
    ("topics", "says"),
    [
        ("a b", "topic 'a b' has ' ' in its name"),
        (["t", "a,b"], "topic 'a,b' has ',' in its name"),
        ("t" * 250, "has 250 characters, and Kafka allows 249"),
        ("..", "a topic cannot be called '..'"),
    ],
    ids=["blank", "comma", "long", "dots"],
)
async def test_impossible_topic_is_refused(topics: str | list[str], says: str) -> None:
    """A name that no topic can have is an error before the first request."""
    with pytest.raises(ConfigurationError) as caught:
        await trikafka.export(topics, "walls://x", bootstrap_servers="nowhere:1")
    assert says in str(caught.value)


async def test_exporter_without_a_block_is_explained() -> None:
    with pytest.raises(
        IllegalStateError,
        match=r"open_exporter\(\) opens with a block, 'async with trikafka\.open_exporter",
    ):
        await trikafka.open_exporter("t", "walls://x").run()  # type: ignore[attr-defined]
