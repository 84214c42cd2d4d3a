"""The membership manager of the classic group protocol: join, sync, run, as straight-line code around the state table.

It owns the member's state; what the group assigned it hands to the reconciler. Heartbeats run beside it from the moment that the
generation is known until the next JoinGroup is sent.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial

import trio

from .._net.deadlines import backoff
from .._net.gather import with_background
from .._state.assignors import AssignableTopics, Assignor
from .._state.cluster import ClusterSnapshot
from .._state.member import MemberState
from ..error_codes import ErrorCode
from ..errors import ProtocolError, TrikafkaError, from_code
from ..interfaces import HeartbeatManager
from ..types import TopicPartition
from . import group_messages
from .group_messages import Joined
from .membership_base import LEAVE_ATTEMPTS, LEAVE_LIMIT, GroupParts, MembershipBase

_log = logging.getLogger("trikafka.membership")
#: What a JoinGroup may take beyond the rebalance timeout (seconds).
_JOIN_SLACK = 5.0


class ClassicMembership(MembershipBase):
    """Keeps the consumer in its group by JoinGroup, SyncGroup and Heartbeat."""

    def __init__(self, parts: GroupParts, heartbeats: HeartbeatManager, assignors: Sequence[Assignor]) -> None:
        super().__init__(parts)
        self._heartbeats = heartbeats
        self._assignors = {assignor.name: assignor for assignor in assignors}
        self._eager = not all(assignor.cooperative for assignor in assignors)

    async def _generation(self, seen: ClusterSnapshot) -> None:
        joined = await self._join()
        works: list[Callable[[], Awaitable[object]]] = [
            partial(self._heartbeats.run, self.rejoin, self.fenced),
            partial(self._watch_topics, joined, seen),
        ]
        await with_background(works, partial(self._sync_and_run, joined))

    async def _sync_and_run(self, joined: Joined) -> None:
        self._member.to(MemberState.SYNCING)
        assignment = await self._sync(joined)
        self._member.to(MemberState.RECONCILING)
        await self._reconcile(assignment)
        self._member.to(MemberState.STABLE)
        while self._ending.reason is None and self._subscription.grouped:
            await self._ending.changed()
        if self._ending.out:  # lost, and not to be given up
            return
        owned = self._reconciler.owned
        await self._reconciler.revoke(owned if self._eager else self._reconciler.to_revoke(owned))

    async def _join(self) -> Joined:
        while True:
            identity, topics = self._member.identity, self._subscription.topics
            request = group_messages.join_request(self._config, identity, self._assignors, topics, self._owned())
            # The coordinator answers when the whole group has joined, or when the rebalance timeout has passed.
            response = await self._requests.ask(request, max(self._poll_timer.limit + _JOIN_SLACK, self._config.request_timeout))
            if response.error_code == ErrorCode.MEMBER_ID_REQUIRED and not identity.member_id:
                self._member.know_as(response.member_id)
                continue
            if response.error_code:
                raise from_code(response.error_code, f"joining group {self._group!r}")
            self._member.know_as(response.member_id, response.generation_id)
            return group_messages.join_response(response)

    async def _sync(self, joined: Joined) -> list[TopicPartition]:
        assignments: Mapping[str, Sequence[TopicPartition]] = {}
        if joined.is_leader:
            assignments = await self._perform_assignment(joined)
        request = group_messages.sync_request(self._group, self._member.identity, joined, assignments)
        response = await self._requests.ask(request, self._config.request_timeout)
        if response.error_code:
            raise from_code(response.error_code, f"syncing group {self._group!r}")
        return group_messages.decode_assignment(response.assignment)

    async def _perform_assignment(self, joined: Joined) -> Mapping[str, Sequence[TopicPartition]]:
        snapshot = await self._topics.known(joined.topics)
        joined.assigned_topics = AssignableTopics.from_snapshot(snapshot, joined.topics)
        if joined.protocol not in self._assignors:
            raise ProtocolError(f"group {self._group!r} chose the assignor {joined.protocol!r}, which was not offered")
        return self._assignors[joined.protocol].assign(joined.members, joined.assigned_topics)

    async def _reconcile(self, assignment: list[TopicPartition]) -> None:
        if await self._reconciler.revoke(self._reconciler.to_revoke(set(assignment))):
            self.rejoin("partitions were given up")
        self._topics.add({tp.topic for tp in assignment})
        await self._reconciler.assign(assignment)

    async def _watch_topics(self, joined: Joined, seen: ClusterSnapshot) -> None:
        """Join again when topics come or go that the pattern matches, or, as the leader, when a topic gets more partitions.

        ``seen`` is the snapshot that was looked at before the join: what came since then counts.
        """
        while True:
            seen = await self._topics.changed(seen)
            if self._topics.match():
                self.rejoin("topics that match the pattern came or went")
            if joined.assigned_topics not in (None, AssignableTopics.from_snapshot(seen, joined.topics)):
                self.rejoin("a topic's partitions changed")
                return

    def _owned(self) -> list[TopicPartition]:
        return [] if self._eager else self._reconciler.owned

    async def _leave_group(self) -> None:
        """Tell the group that this member leaves; static members stay until their session ends."""
        identity = self._member.identity
        static = identity.instance_id is not None
        # Until the group has confirmed it the id is kept: to join with a new one would leave the old self behind in the group.
        self._member.forget(keep_id=not static)
        if not identity.member_id or static:
            return
        with trio.move_on_after(LEAVE_LIMIT):
            for _ in range(LEAVE_ATTEMPTS):
                try:
                    request = group_messages.leave_request(self._group, identity)
                    response = await self._requests.ask(request, self._config.request_timeout, "coordinator")
                    if not response.error_code:
                        self._member.forget()
                        return
                    raise from_code(response.error_code, f"leaving group {self._group!r}")
                except TrikafkaError as error:
                    _log.info("group %s: could not leave: %s", self._group, error)
                    if not self._may_go_on(error):
                        return
                await trio.sleep(backoff(1, self._config.retry_backoff_ms, self._config.retry_backoff_max_ms))
