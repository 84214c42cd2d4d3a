"""Kafka's rule for topic names, checked before any I/O."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import ConfigurationError
from ..types import SubscriptionPattern
from .text import is_utf8, plain_text

LONGEST_TOPIC_NAME = 249
#: The form of a broker's address, which some users pass as the first argument.
_ADDRESS = re.compile(r"[\w.-]+:\d+(,[\w.-]+:\d+)*")
_FORBIDDEN = re.compile(r"[^a-zA-Z0-9._-]")
_OF_PATTERNS = re.compile(r"[*+?|$\\\[(]")


def check_topic_name(name: object) -> str:
    """Return ``name`` as a plain string if it is a valid topic name.

    Raises:
        ConfigurationError: The name is invalid. The error says why.
    """
    if not isinstance(name, str):
        raise ConfigurationError(f"a topic's name must be text, not {name!r}")
    if not name:
        raise ConfigurationError("a topic's name must not be empty")
    if name in (".", ".."):
        raise ConfigurationError(f"a topic cannot be called {name!r}")
    check_topic_length(name)
    wrong = sorted(set(_FORBIDDEN.findall(name)))
    if wrong:
        raise ConfigurationError(
            f"topic {name!r} has {', '.join(map(repr, wrong))} in its name; Kafka allows letters "
            f"(a-z), digits, '.', '_' and '-'{_of_a_pattern(name)}"
        )
    return plain_text(name)


def check_topic_length(name: str) -> None:
    """Raise :exc:`ConfigurationError` if a topic's name is longer than Kafka's names are."""
    if len(name) > LONGEST_TOPIC_NAME:
        raise ConfigurationError(
            f"topic {name[:20]!r}... has {len(name)} characters, and Kafka allows "
            f"{LONGEST_TOPIC_NAME}"
        )


def _of_a_pattern(name: str) -> str:
    """Return a hint for a pattern that was given as text; empty for other texts."""
    if name.startswith("^"):  # as librdkafka takes a pattern
        return f"; only a consumer takes a pattern: re.compile({name!r})"
    if _OF_PATTERNS.search(name):
        return "; only a consumer takes a pattern, such as re.compile('orders.*')"
    return ""


def check_pattern(pattern: re.Pattern[Any] | SubscriptionPattern) -> None:
    """Raise :exc:`ConfigurationError` unless a pattern can match names of topics.

    A pattern of bytes would fail at the first name that it meets, in the background. A broker's
    pattern that is not text would be written as one, and match nothing.
    """
    if isinstance(pattern, re.Pattern):
        if isinstance(pattern.pattern, bytes):
            raise ConfigurationError(
                f"a pattern for topics must be compiled from text, not from {pattern.pattern!r}"
            )
    elif not isinstance(pattern.pattern, str) or not pattern.pattern:
        raise ConfigurationError(
            f"a SubscriptionPattern needs a text that is not empty, not {pattern.pattern!r}"
        )
    elif not is_utf8(pattern.pattern):
        raise ConfigurationError(
            f"a SubscriptionPattern must be text that UTF-8 can carry, not {pattern.pattern!r}"
        )


def check_topics_given(call: str, topics: Sequence[object]) -> tuple[str, ...]:
    """Return the topics passed to ``call`` as separate arguments.

    Raises:
        ConfigurationError: An argument is not a topic name.
    """
    for topic in topics:
        if isinstance(topic, Mapping):  # settings, as confluent-kafka takes them; not shown
            raise ConfigurationError(
                f"{call} takes topics; settings go by their names: {call}(..., "
                "**trikafka.from_properties(settings))"
            )
        if isinstance(topic, list | tuple | set | frozenset):
            example = ", ".join(map(repr, sorted(topic, key=str)))
            raise ConfigurationError(
                f"{call} takes topics as separate arguments: {call}({example}, ...), not {topic!r}"
            )
        if isinstance(topic, re.Pattern | SubscriptionPattern):
            raise ConfigurationError(
                f"{call} takes names of topics, or one pattern alone, not {topic!r} among others"
            )
        if isinstance(topic, str) and _ADDRESS.fullmatch(topic):
            raise ConfigurationError(
                f"{call} takes topics; brokers go by their setting: {call}(..., "
                f"bootstrap_servers={topic!r})"
            )
    names = tuple(check_topic_name(topic) for topic in topics)
    for position, name in enumerate(names):
        if name in names[:position]:
            raise ConfigurationError(f"topic {name!r} is given twice")
    return names
