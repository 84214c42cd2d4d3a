"""The message about a missing topic: its name, similar names and the remedy."""

from __future__ import annotations

import difflib
import heapq
from collections.abc import Iterable
from itertools import islice, takewhile
from operator import eq

from ..error_codes import ErrorCode
from .classes import BrokerResponseError
from .table import from_code

#: Similar names differ by at most ``_LONGER`` letters in length. At most ``_MOST`` such names are
#: considered: some clusters have 100,000 topics.
_LONGER, _MOST = 3, 1_000
#: The number of names compared thoroughly, at a tenth of a millisecond each. They are the names
#: with the longest common start and end.
_WELL = 10
_NEAR = 2


def topic_missing(topic: str, known: Iterable[str] = (), *, make: bool = True) -> str:
    """Return the message about ``topic``, which does not exist.

    Args:
        topic: The missing topic.
        known: Names of existing topics, as far as the client knows them.
        make: False if the advice to create the topic would be wrong.
    """
    alike = (name for name in known if name != topic and abs(len(name) - len(topic)) <= _LONGER)
    likely = heapq.nlargest(_WELL, islice(alike, _MOST), key=lambda name: _common(topic, name))
    near = difflib.get_close_matches(topic, likely, n=_NEAR, cutoff=0.7)
    meant = f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
    if "*" in topic and not near:
        return f"topic {topic!r} does not exist; names are given in full, not as patterns"
    if not make:
        return f"topic {topic!r} does not exist{meant or '; see: trikafka topics list'}"
    how = f"make it: trikafka topics create {topic}, or admin.create_topics"
    return (
        f"topic {topic!r} does not exist{meant} If not, {how}"
        if near
        else f"topic {topic!r} does not exist; {how}"
    )


def _common(one: str, other: str) -> int:
    """Return the number of letters that two names share at the start and at the end."""
    ways = map(eq, one, other), map(eq, reversed(one), reversed(other))
    return sum(sum(takewhile(bool, way)) for way in ways)


def topic_error(
    code: ErrorCode | int,
    topic: str,
    known: Iterable[str] = (),
    *,
    operation: str = "",
    make: bool = True,
) -> BrokerResponseError:
    """Return the exception for a broker's ``code`` for a topic, as :func:`from_code` does.

    For a missing topic the message is that of :func:`topic_missing`.
    """
    missing = code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return from_code(
        code,
        topic_missing(topic, known, make=make) if missing else f"topic {topic!r}",
        operation=operation,
    )


def no_topic(topic: str, known: Iterable[str] = ()) -> BrokerResponseError:
    """Return the error for an unknown topic. It is retriable for a few seconds."""
    return topic_error(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, topic, known)
