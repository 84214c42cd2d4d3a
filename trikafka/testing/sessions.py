"""Fetch sessions (KIP-227): what one node remembers of its consumers, so that they need not say it again.

No I/O. A session is used by one request at a time, for the answers of a connection are made in order.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

FINAL = -1  # the epoch of a full request that wants no session, or ends its own
INITIAL = 0  # of a full request that wants a new session
_LAST_EPOCH = 2**31 - 1

#: A partition as a request names it: its topic's name or id, and its number.
PartKey: TypeAlias = tuple[Any, int]


@dataclass(slots=True)
class Wanted:
    """A partition that is to be fetched, as the consumer said it, and what it was told of it last."""

    topic: str
    topic_id: Any
    part: Any
    high_watermark: int = -1
    log_start: int = -1
    name: str | None = None  # of the topic whose id this is, once a session has seen it

    def news(self, answer: dict[str, Any]) -> bool:
        """Whether an incremental answer has to name the partition. Remembers what it says."""
        changed = bool(
            answer["records"]
            or answer["error_code"]
            or "diverging_epoch" in answer
            or "preferred_read_replica" in answer
            or answer["high_watermark"] != self.high_watermark
            or answer.get("log_start_offset", -1) != self.log_start
        )
        # After an error the next answer is news, whatever it says.
        self.high_watermark = -1 if answer["error_code"] else answer["high_watermark"]
        self.log_start = answer.get("log_start_offset", -1)
        return changed


@dataclass(slots=True, eq=False)
class FetchSession:
    """One session. ``epoch`` is what the next request has to say."""

    session_id: int
    by_id: bool  # whether it names topics by id
    wanted: dict[PartKey, Wanted] = field(default_factory=dict)
    epoch: int = 1

    def advance(self) -> None:
        """Expect the next epoch; after the last comes 1."""
        self.epoch = 1 if self.epoch == _LAST_EPOCH else self.epoch + 1

    def update(self, request: Any) -> None:
        """Take in what a request adds, changes and forgets."""
        for key, new in asked(request, self.by_id).items():
            if key in self.wanted:
                self.wanted[key].part = new.part
            else:
                self.wanted[key] = new
        for item in request.forgotten_topics_data or ():
            for index in item.partitions:
                self.wanted.pop((item.topic_id if self.by_id else item.topic, index), None)

    def move_to_end(self, served: Iterable[PartKey]) -> None:
        """Let those that have got records come last in the next answer, so that the others are not starved."""
        for key in served:
            self.wanted[key] = self.wanted.pop(key)


def asked(request: Any, by_id: bool) -> dict[PartKey, Wanted]:
    """The partitions that a request names."""
    return {
        (item.topic_id if by_id else item.topic, part.partition): Wanted(item.topic, item.topic_id, part)
        for item in request.topics
        for part in item.partitions
    }


class FetchSessions:
    """The sessions of one node; no more than ``limit``: who comes then gets none and goes on without."""

    def __init__(self, first_id: int, limit: int) -> None:
        self.limit = limit
        self.by_id: dict[int, FetchSession] = {}
        self._next_id = first_id

    def open(self, by_id: bool, wanted: dict[PartKey, Wanted]) -> FetchSession | None:
        """A new session, if there is room."""
        if len(self.by_id) >= self.limit:
            return None
        session = FetchSession(self._next_id, by_id, wanted)
        self._next_id += 1
        self.by_id[session.session_id] = session
        return session

    def close(self, session_id: int) -> None:
        """Forget a session, if it is there."""
        self.by_id.pop(session_id, None)

    def find(self, session_id: int, epoch: int, by_id: bool) -> tuple[FetchSession | None, int]:
        """The session of an incremental request, and the error that it gets."""
        session = self.by_id.get(session_id)
        if session is None:
            return None, 70
        if session.by_id != by_id:
            return None, 106
        return (session, 0) if session.epoch == epoch else (None, 71)
