"""Fetch sessions (KIP-227): the partitions that a node remembers for its consumers.

No I/O. A session serves one request at a time, since a connection's responses are made in order.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from trikafka.error_codes import ErrorCode

FINAL = -1  # the epoch of a full request without a session, or one that ends its session
INITIAL = 0  # the epoch of a full request that opens a session
_LAST_EPOCH = 2**31 - 1

#: A partition as a request names it: its topic's name or id, and its number.
PartKey: TypeAlias = tuple[Any, int]


@dataclass(slots=True)
class SessionPartition:
    """A requested partition, and the last response about it."""

    topic: str
    topic_id: Any
    part: Any
    high_watermark: int = -1
    log_start: int = -1
    name: str | None = None  # of the topic whose id this is, once a session has seen it

    def news(self, answer: dict[str, Any]) -> bool:
        """Return whether an incremental response must contain the partition; remember it."""
        changed = bool(
            answer["records"]
            or answer["error_code"]
            or "diverging_epoch" in answer
            or "preferred_read_replica" in answer
            or answer["high_watermark"] != self.high_watermark
            or answer.get("log_start_offset", -1) != self.log_start
        )
        # After an error the next response always counts as news.
        self.high_watermark = -1 if answer["error_code"] else answer["high_watermark"]
        self.log_start = answer.get("log_start_offset", -1)
        return changed


@dataclass(slots=True, eq=False)
class ScriptedFetchSession:
    """One session. ``epoch`` is the epoch that the next request must have."""

    session_id: int
    by_id: bool  # True: requests name topics by id
    wanted: dict[PartKey, SessionPartition] = field(default_factory=dict)
    epoch: int = 1

    def advance(self) -> None:
        """Expect the next epoch; after the last one comes 1."""
        self.epoch = 1 if self.epoch == _LAST_EPOCH else self.epoch + 1

    def update(self, request: Any) -> None:
        """Apply the partitions that a request adds, changes and forgets."""
        for key, new in asked(request, self.by_id).items():
            if key in self.wanted:
                self.wanted[key].part = new.part
            else:
                self.wanted[key] = new
        for item in request.forgotten_topics_data or ():
            for index in item.partitions:
                self.wanted.pop((item.topic_id if self.by_id else item.topic, index), None)

    def move_to_end(self, served: Iterable[PartKey]) -> None:
        """Move partitions that returned records to the end, so that the others do not starve."""
        for key in served:
            self.wanted[key] = self.wanted.pop(key)


def asked(request: Any, by_id: bool) -> dict[PartKey, SessionPartition]:
    """Return the partitions that a request names."""
    return {
        (item.topic_id if by_id else item.topic, part.partition): SessionPartition(
            item.topic, item.topic_id, part
        )
        for item in request.topics
        for part in item.partitions
    }


class FetchSessions:
    """The sessions of one node, at most ``limit``; further consumers continue without one."""

    def __init__(self, first_id: int, limit: int) -> None:
        self.limit = limit
        self.by_id: dict[int, ScriptedFetchSession] = {}
        self._next_id = first_id

    def open(
        self, by_id: bool, wanted: dict[PartKey, SessionPartition]
    ) -> ScriptedFetchSession | None:
        """Return a new session; ``None`` if there is no room."""
        if len(self.by_id) >= self.limit:
            return None
        session = ScriptedFetchSession(self._next_id, by_id, wanted)
        self._next_id += 1
        self.by_id[session.session_id] = session
        return session

    def close(self, session_id: int) -> None:
        """Discard a session, if it exists."""
        self.by_id.pop(session_id, None)

    def find(
        self, session_id: int, epoch: int, by_id: bool
    ) -> tuple[ScriptedFetchSession | None, int]:
        """Return the session of an incremental request, and its error code or 0."""
        session = self.by_id.get(session_id)
        if session is None:
            return None, ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        if session.by_id != by_id:
            return None, ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
        if session.epoch != epoch:
            return None, ErrorCode.INVALID_FETCH_SESSION_EPOCH
        return session, ErrorCode.NONE
