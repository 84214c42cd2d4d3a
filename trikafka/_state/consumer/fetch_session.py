"""The partitions to fetch from one broker, and the broker's fetch session (KIP-227). No I/O.

In a session a request names only partitions that are new, have changed or are to be forgotten, and
a response names only partitions with news. The plan of fetches sets what is wanted; the fetch
manager requests the next message and reports how it ended. The broker's session is known only while
each request gets its response. After any failure the next request names everything and begins
another session.

=========  =========================================  =============================================
epoch      the next request                           then
=========  =========================================  =============================================
0, id 0    full, and wants a session                  1; 0 again if the broker has no room for one
1, 2, ...  the changes                                the next epoch; after 2^31-1 comes 1
0, id > 0  full, ends the session that may exist      as after 0, id 0
=========  =========================================  =============================================
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple
from uuid import UUID

from ...errors import TrikafkaError
from ...types import TopicPartition
from .assignment import Ticket

_LAST_EPOCH = 2**31 - 1


class Wanted(NamedTuple):
    """The parameters for fetching one partition. The epochs are -1 where they are not known."""

    ticket: Ticket
    leader_epoch: int
    #: The epoch of the record before the offset (KIP-320).
    fetch_epoch: int
    topic_id: UUID | None


class SessionRequest(NamedTuple):
    """The contents of one Fetch request.

    ``full``: the request names all wanted partitions, and so must the response.
    """

    session: tuple[int, int]
    full: bool
    topics: dict[str, list[tuple[int, int, int, int]]]
    forgotten: dict[str, list[int]]
    topic_ids: dict[str, UUID] | None


# Two dictionaries and two sets of differences: ``wanted`` is the goal, ``asked`` the content of the
# broker's session after the last request, and ``_changed`` and ``_forgotten`` are the differences
# to send. Responses are matched with ``asked``, not with ``wanted``: a partition may have moved, or
# its offset changed, while the request was in flight, and a response belongs to what was asked.
#
# Sessions know topics by id or by name, fixed when they begin (version 13 and later use ids). If a
# partition's topic has no id, or a recreated topic has another one, the session cannot express the
# change. The next request is a full one then.
#
# In a full request the partition that is named first rotates, since a broker fills its response
# from the front. Within a session the broker rotates the partitions.
class FetchSession:
    """The partitions wanted of one broker, and what the broker's session knows of them."""

    def __init__(self) -> None:
        self.wanted: dict[TopicPartition, Wanted] = {}
        #: The names of the topics that responses may name by id.
        self.names: dict[UUID, str] = {}
        #: Partitions wanted with other parameters than the broker knows.
        self._changed: dict[TopicPartition, None] = {}
        #: Partitions that the broker's session is to forget.
        self._forgotten: dict[TopicPartition, None] = {}
        #: What the last request and its session ask for, and so what responses answer.
        self.asked: dict[TopicPartition, Wanted] = {}
        #: The ids of the session's topics; ``None``: the session uses names.
        self._ids: dict[str, UUID] | None = None
        self._id = 0
        self._epoch = 0
        #: The index of the partition that is named first in a full request.
        self._turn = 0
        #: The number of requests made.
        self.requests = 0
        #: The last request whose response was taken in, and when. It covered all of ``asked``.
        self.answered = 0
        self.answered_at = 0.0
        #: Why the last request had no usable response, if it had none.
        self.error: TrikafkaError | None = None
        #: How often a response brought far more than was requested.
        self.excesses = 0

    def fetch(self, tp: TopicPartition, wanted: Wanted) -> None:
        """Fetch this partition with these parameters from the next request on."""
        if self.wanted.get(tp) == wanted and tp not in self._forgotten:
            return
        self.wanted[tp] = wanted
        self._changed[tp] = None
        self._forgotten.pop(tp, None)

    def forget(self, tp: TopicPartition) -> None:
        """Stop fetching this partition."""
        if self.wanted.pop(tp, None) is not None:
            self._changed.pop(tp, None)
            if tp in self.asked:
                self._forgotten[tp] = None

    def next_request(self) -> SessionRequest:
        """Return the contents of the next request.

        The broker counts as knowing them from here on, until :meth:`lost` or :meth:`refused`.
        """
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
        ids = (
            None if self._ids is None else {name: self._ids[name] for name in {*topics, *forgotten}}
        )
        return SessionRequest((self._id, self._epoch), False, topics, forgotten, ids)

    def _hand_over_log_ends(self) -> None:
        """Copy the log ends to partitions that were removed and added again.

        The broker sees no difference and reports only changes, so its last values still hold.
        """
        for tp in self._changed:
            before = self.asked.get(tp)
            partition = self.wanted[tp].ticket.partition
            if before is not None and before.ticket.partition is not partition:
                partition.log_ends(before.ticket.partition.log)

    def responded(self, session_id: int) -> None:
        """Record a response with this session id; 0: the broker has no session (any more)."""
        if session_id == 0:
            self._id = 0
            self._epoch = 0
        elif self._epoch == 0 or session_id != self._id:
            self._id = session_id
            self._epoch = 1
        else:
            self._epoch = 1 if self._epoch == _LAST_EPOCH else self._epoch + 1

    def taken_in(self, now: float) -> None:
        """Record that all of the response to the last request was taken in."""
        self.answered = self.requests
        self.answered_at = now
        self.error = None

    def brought_too_much(self) -> bool:
        """Record a response with far more bytes than requested; return whether it is a repetition.

        After the first one the request asked for less.
        """
        self.excesses += 1
        return self.excesses > 1

    def partition_bytes(self, most: int) -> int:
        """Return how many bytes to request of each partition: ``most``, usually.

        For a broker that respects only this limit, ``most`` is divided among the partitions.
        """
        return max(1, most // max(1, len(self.wanted))) if self.excesses else most

    def refused(self, error: TrikafkaError | None = None) -> bool:
        """Begin another session, since the broker does not know this one or its epoch.

        Returns whether to retry at once: there was a session.
        """
        epoch = self._epoch
        self._epoch = 0
        self.error = error
        return epoch > 0

    def lost(self, error: TrikafkaError | None = None) -> None:
        """Begin another session, since it is unknown whether the request arrived.

        The next request ends the session that may exist.
        """
        self._epoch = 0
        self.error = error

    def _fits(self) -> bool:
        """Return whether the session can express the changes, by ids or names as it was begun."""
        return self._ids is None or self._learn_ids(self._changed, self._ids)

    def _learn_ids(self, tps: Iterable[TopicPartition], ids: dict[str, UUID]) -> bool:
        """Add the ids of these partitions' topics to ``ids``.

        Returns whether every topic has one id, and only one.
        """
        for tp in tps:
            topic_id = self.wanted[tp].topic_id
            if topic_id is None or ids.setdefault(tp.topic, topic_id) != topic_id:
                return False
            self.names[topic_id] = tp.topic
        return True

    def _full(self) -> SessionRequest:
        tps = list(self.wanted)
        self._turn = turn = (self._turn + 1) % max(1, len(tps))
        topics = self._topics(tps[turn:] + tps[:turn])
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
            topics[tp.topic].append(
                (tp.partition, wanted.leader_epoch, wanted.ticket.offset, wanted.fetch_epoch)
            )
        return topics
