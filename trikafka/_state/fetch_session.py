"""What is to be fetched from one broker, and what the broker remembers of that: its fetch session (KIP-227). No I/O.

In a session a request names only what is new, has changed or is to be forgotten, and a response only what has news. The plan of
fetches says what is wanted; the fetch manager asks for the next request and tells how it ended. The session that the broker has
is known only while each request gets its response: whatever goes wrong, the next one names everything and begins anew.

=========  ============================================  ==========================================================
epoch      the next request                              then
=========  ============================================  ==========================================================
0, id 0    full, and wants a session                     0 again if the broker has no room for one, else 1
1, 2, ...  what has changed                              the next; after 2^31-1 comes 1
0, id > 0  full, ends the session that there may be      as after 0, id 0
=========  ============================================  ==========================================================
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple
from uuid import UUID

from ..types import TopicPartition
from .partition_state import Ticket

_LAST_EPOCH = 2**31 - 1


class Wanted(NamedTuple):
    """What to fetch of one partition. The epochs are -1 where they are not known."""

    ticket: Ticket
    leader_epoch: int
    fetch_epoch: int  # of the record before the offset (KIP-320)
    topic_id: UUID | None

    @property
    def overtaken(self) -> bool:
        """Whether what comes of it is not wanted any more: something overtook it, or another broker was quicker."""
        partition, number, offset = self.ticket
        return not partition.accepts(number) or partition.fetch_offset != offset


class SessionRequest(NamedTuple):
    """The contents of one Fetch request. ``full``: it names all that is wanted, and so must the response."""

    session: tuple[int, int]
    full: bool
    topics: dict[str, list[tuple[int, int, int, int]]]
    forgotten: dict[str, list[int]]
    topic_ids: dict[str, UUID] | None


class FetchSession:
    """What is wanted of one broker. See the module."""

    def __init__(self) -> None:
        self.wanted: dict[TopicPartition, Wanted] = {}
        self.names: dict[UUID, str] = {}  # of the topics that responses may name by their ids
        self._changed: dict[TopicPartition, None] = {}  # wanted otherwise than the broker knows
        self._forgotten: dict[TopicPartition, None] = {}  # the broker knows it, and is not to any more
        self.asked: dict[TopicPartition, Wanted] = {}  # what the last request, and its session, ask for: what responses are to
        self._ids: dict[str, UUID] | None = None  # of the topics in it; None: it goes by their names
        self._id = self._epoch = 0
        self._turn = 0  # of the partition that is named first
        self.requests = 0  # so many were made
        self.answered = 0  # the last of them whose response was taken in, and when: it was about all that is asked for
        self.answered_at = 0.0
        self.excesses = 0  # so often the broker brought far more than it was asked for

    def fetch(self, tp: TopicPartition, wanted: Wanted) -> None:
        """Fetch this partition so, from the next request on."""
        if self.wanted.get(tp) == wanted and tp not in self._forgotten:
            return
        self.wanted[tp] = wanted
        self._changed[tp] = None
        self._forgotten.pop(tp, None)

    def forget(self, tp: TopicPartition) -> None:
        """Do not fetch this partition any more."""
        if self.wanted.pop(tp, None) is not None:
            self._changed.pop(tp, None)
            if tp in self.asked:
                self._forgotten[tp] = None

    def next_request(self) -> SessionRequest:
        """What the next request says. The broker counts as knowing it from here on, until :meth:`lost` or :meth:`refused`."""
        self.requests += 1
        if self._epoch == 0 or not self._fits():
            return self._full()
        self._hand_over_log_ends()
        topics = self._topics(self._changed)
        forgotten: dict[str, list[int]] = defaultdict(list)
        for tp in self._forgotten:
            forgotten[tp.topic].append(tp.partition)
            del self.asked[tp]
        self._changed.clear()
        self._forgotten.clear()
        ids = None if self._ids is None else {name: self._ids[name] for name in {*topics, *forgotten}}
        return SessionRequest((self._id, self._epoch), False, topics, forgotten, ids)

    def _hand_over_log_ends(self) -> None:
        """What went and came back is the same to the broker, which only tells changes: so what it told before still holds."""
        for tp in self._changed:
            before, partition = self.asked.get(tp), self.wanted[tp].ticket.partition
            if before is not None and before.ticket.partition is not partition:
                partition.log_ends(before.ticket.partition.log)

    def responded(self, session_id: int) -> None:
        """The response came, and has this session: 0 if the broker has none (any more)."""
        if session_id == 0:
            self._id = self._epoch = 0
        elif self._epoch == 0 or session_id != self._id:
            self._id, self._epoch = session_id, 1
        else:
            self._epoch = 1 if self._epoch == _LAST_EPOCH else self._epoch + 1

    def taken_in(self, now: float) -> None:
        """All that the response to the last request says is taken in."""
        self.answered, self.answered_at = self.requests, now

    def brought_too_much(self) -> bool:
        """The response brings far more than was asked for. Whether that was so before, though it was asked for less."""
        self.excesses += 1
        return self.excesses > 1

    def partition_bytes(self, most: int) -> int:
        """How many bytes to ask for of each partition: ``most``, or of a broker that heeds that limit alone what makes it up."""
        return max(1, most // max(1, len(self.wanted))) if self.excesses else most

    def refused(self) -> bool:
        """The broker does not know the session, or not in this epoch: begin anew. Whether at once: there was one."""
        epoch, self._epoch = self._epoch, 0
        return epoch > 0

    def lost(self) -> None:
        """Nobody knows whether the request arrived: begin anew, and end the session that there may be."""
        self._epoch = 0

    def _fits(self) -> bool:
        """Whether what has changed can be told in the session that there is: by ids or names as it was begun."""
        return self._ids is None or self._learn_ids(self._changed, self._ids)

    def _learn_ids(self, tps: Iterable[TopicPartition], ids: dict[str, UUID]) -> bool:
        """Add the ids of these partitions' topics to ``ids``; whether all have one, and no topic two."""
        for tp in tps:
            topic_id = self.wanted[tp].topic_id
            if topic_id is None or ids.setdefault(tp.topic, topic_id) != topic_id:
                return False
            self.names[topic_id] = tp.topic
        return True

    def _full(self) -> SessionRequest:
        tps = list(self.wanted)
        self._turn = turn = (self._turn + 1) % max(1, len(tps))
        topics = self._topics(tps[turn:] + tps[:turn])  # the broker fills responses from the front; in a session it takes turns
        self.names.clear()
        ids: dict[str, UUID] = {}
        self._ids = ids if self._learn_ids(tps, ids) else None
        self.asked = dict(self.wanted)
        self._changed.clear()
        self._forgotten.clear()
        return SessionRequest((self._id, 0), True, topics, {}, self._ids and dict(ids))

    def _topics(self, tps: Iterable[TopicPartition]) -> dict[str, list[tuple[int, int, int, int]]]:
        topics: dict[str, list[tuple[int, int, int, int]]] = defaultdict(list)
        for tp in tps:
            self.asked[tp] = wanted = self.wanted[tp]
            topics[tp.topic].append((tp.partition, wanted.leader_epoch, wanted.ticket.offset, wanted.fetch_epoch))
        return topics
