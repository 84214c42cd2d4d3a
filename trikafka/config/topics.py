"""Kafka's rule for the names of topics, checked before any I/O."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ..errors import ConfigurationError

LONGEST_TOPIC_NAME = 249
#: What nobody calls a topic, and some take for the first argument.
_ADDRESS = re.compile(r"[\w.-]+:\d+(,[\w.-]+:\d+)*")
_FORBIDDEN = re.compile(r"[^a-zA-Z0-9._-]")


def check_topic_name(name: object) -> str:
    """``name``, if a topic can be called so. Raises :exc:`ConfigurationError` that says why not."""
    if not isinstance(name, str):
        raise ConfigurationError(f"a topic's name must be text, not {name!r}")
    if not name:
        raise ConfigurationError("a topic's name must not be empty")
    if name in (".", ".."):
        raise ConfigurationError(f"a topic cannot be called {name!r}")
    if len(name) > LONGEST_TOPIC_NAME:
        raise ConfigurationError(f"topic {name[:20]!r}... has {len(name)} characters, and Kafka allows {LONGEST_TOPIC_NAME}")
    wrong = sorted(set(_FORBIDDEN.findall(name)))
    if wrong:
        raise ConfigurationError(
            f"topic {name!r} has {', '.join(map(repr, wrong))} in its name; Kafka allows letters (a-z), digits, '.', '_' and '-'"
        )
    return name


def check_topics_given(call: str, topics: Sequence[object]) -> tuple[str, ...]:
    """The topics that were given to ``call`` as separate arguments. Raises :exc:`ConfigurationError`, one sentence."""
    for topic in topics:
        if isinstance(topic, list | tuple | set | frozenset):
            example = ", ".join(map(repr, sorted(topic, key=str)))
            raise ConfigurationError(f"{call} takes topics as separate arguments: {call}({example}, ...), not {topic!r}")
        if isinstance(topic, re.Pattern):
            raise ConfigurationError(f"{call} takes names of topics; a pattern goes to consumer.subscribe({topic!r})")
        if isinstance(topic, str) and _ADDRESS.fullmatch(topic):
            raise ConfigurationError(f"{call} takes topics; brokers go by their setting: {call}(..., bootstrap_servers={topic!r})")
    names = tuple(check_topic_name(topic) for topic in topics)
    for position, name in enumerate(names):
        if name in names[:position]:
            raise ConfigurationError(f"topic {name!r} is given twice")
    return names
