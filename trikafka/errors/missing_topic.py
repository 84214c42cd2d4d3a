"""The one sentence about a topic that does not exist, wherever somebody misses one: which, what it may have been, what to do."""

from __future__ import annotations

import difflib
import heapq
from collections.abc import Iterable
from itertools import islice, takewhile
from operator import eq

from ..error_codes import ErrorCode
from .classes import BrokerResponseError
from .table import from_code

#: Names that are near are about as long, and no more of these are looked at: some clusters have 100,000 topics.
_LONGER, _MOST = 3, 1_000
#: So many are compared well, which takes a tenth of a millisecond each: those that begin and end most like the one that is missing.
_WELL = 10
_NEAR = 2


def topic_missing(topic: str, known: Iterable[str] = (), *, make: bool = True) -> str:
    """What is said of ``topic``, which does not exist. ``known`` are names of topics that do, as far as they are known anyway.

    ``make=False``: it was to be there, and making it would be no help.
    """
    alike = (name for name in known if name != topic and abs(len(name) - len(topic)) <= _LONGER)
    likely = heapq.nlargest(_WELL, islice(alike, _MOST), key=lambda name: _common(topic, name))
    near = difflib.get_close_matches(topic, likely, n=_NEAR, cutoff=0.7)
    meant = f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
    if not make:
        return f"topic {topic!r} does not exist{meant or '; see: trikafka topics list'}"
    how = f"make it: trikafka topics create {topic}, or admin.create_topics"
    return f"topic {topic!r} does not exist{meant} Else {how}" if near else f"topic {topic!r} does not exist; {how}"


def _common(one: str, other: str) -> int:
    """How many letters they have in common at their beginnings and ends."""
    ways = map(eq, one, other), map(eq, reversed(one), reversed(other))
    return sum(sum(takewhile(bool, way)) for way in ways)


def topic_error(
    code: ErrorCode | int, topic: str, known: Iterable[str] = (), *, operation: str = "", make: bool = True
) -> BrokerResponseError:
    """What a broker's ``code`` for a topic means, as :func:`from_code`; :func:`topic_missing` where it does not exist."""
    missing = code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return from_code(code, topic_missing(topic, known, make=make) if missing else f"topic {topic!r}", operation=operation)


def no_topic(topic: str, known: Iterable[str] = ()) -> BrokerResponseError:
    """The error, retriable for a while, of a topic that nobody knows."""
    return topic_error(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, topic, known)
