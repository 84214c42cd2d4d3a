"""The membership manager of the classic group protocol: join, sync, run.

The manager is straight-line code around the member's state table, which it owns. The group's
assignment goes to the reconciler. Heartbeats (:mod:`.heartbeat`) run in a task beside it, from the
moment that the generation is known until the next JoinGroup is sent.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial

from kafka.protocol.admin import DescribeGroupsRequest
from kafka.protocol.consumer.group import LeaveGroupRequest

from ..._net.brokers import Purpose
from ..._net.gather import with_background
from ..._state.assignors import (
    AssignableTopics,
    Assignor,
    CooperativeStickyAssignor,
    LastAssignment,
    RebalanceProtocol,
    rebalance_protocol,
    transferring_ownership,
)
from ..._state.group.member import MemberState
from ...error_codes import ErrorCode
from ...errors import DamagedResponseError, PluginError, TrikafkaError, from_code
from ...errors.peer_text import peer_text
from ...interfaces import ClusterSnapshot, HeartbeatManager
from ...types import TopicPartition
from . import group_messages
from .group_messages import Joined
from .leave_report import LeaveReport, leave_with_retries
from .membership_base import MembershipBase, MembershipDependencies

_log = logging.getLogger("trikafka.membership")
#: How much longer than the rebalance timeout a JoinGroup may take (seconds).
_JOIN_SLACK = 5.0
#: How many members or topics a log line names.
_MOST_NAMED = 5


class ClassicMembership(MembershipBase):
    """The membership of a group by JoinGroup, SyncGroup and Heartbeat."""

    def __init__(
        self,
        dependencies: MembershipDependencies,
        heartbeats: HeartbeatManager,
        assignors: Sequence[Assignor],
    ) -> None:
        super().__init__(dependencies)
        self._heartbeats = heartbeats
        self._assignors = {assignor.name: assignor for assignor in assignors}
        self._protocol = rebalance_protocol(assignors)
        # The last assignment, for the assignor that made it: partitions that should stay where they
        # are.
        self._last: LastAssignment | None = None

    async def _generation(self, seen: ClusterSnapshot) -> None:
        joined = await self._join_while_owning() if self._owned() else await self._join()
        works: list[Callable[[], Awaitable[object]]] = [
            partial(self._heartbeats.run, self.rejoin, self.fenced),
            partial(self._watch_topics, joined, seen),
        ]
        await with_background(works, partial(self._sync_and_run, joined))

    async def _sync_and_run(self, joined: Joined) -> None:
        self._member.to(MemberState.SYNCING)
        assignment = await self._sync(joined)
        if self._is_outdated(assignment):
            await self._revoke(self._reconciler.to_revoke(self._reconciler.owned))
            return
        self._last = LastAssignment(
            joined.protocol, self._member.identity.generation, tuple(assignment)
        )
        if joined.skip_assignment and await self._is_incomplete(joined, assignment):
            self.rejoin("the cluster changed while this static member, the leader, was away")
            return
        await self._reconcile(assignment)
        self._member.to(MemberState.STABLE)
        while self._rejoin_reason.kind is None and self._subscription.grouped:
            await self._rejoin_reason.changed()
        if self._rejoin_reason.removed:  # the partitions are lost, so none is revoked
            return
        owned = self._reconciler.owned
        await self._revoke(
            owned
            if self._protocol is RebalanceProtocol.EAGER
            else self._reconciler.to_revoke(owned)
        )

    async def _join_while_owning(self) -> Joined:
        """Join, with heartbeats beside it.

        A cooperative member goes on reading its partitions while it joins, so it must notice the
        end of its session. A slow JoinGroup is no sign of that: its response waits for the slowest
        member, up to the rebalance timeout.
        """
        joined: list[Joined] = []

        async def join() -> None:
            joined.append(await self._join())

        await with_background(
            [partial(self._heartbeats.run, lambda why: None, self._fenced_while_joining)], join
        )
        return joined[0]

    def _fenced_while_joining(self, error: TrikafkaError) -> None:
        """Take the member out of the group, unless only its generation has ended.

        This very join may have ended the generation, with its response still on the way.
        """
        if error.code != ErrorCode.ILLEGAL_GENERATION:
            self.fenced(error)

    async def _join(self) -> Joined:
        while True:
            identity = self._member.identity
            topics = self._subscription.topics
            request = group_messages.join_request(
                self._config,
                identity,
                self._assignors,
                topics,
                self._owned(),
                last=self._last,
                reason=self._rejoin_reason.why,
            )
            # The coordinator responds when the whole group has joined, or when the rebalance
            # timeout has passed.
            response = await self._requests.ask(
                request, max(self._poll_timer.limit + _JOIN_SLACK, self._config.request_timeout)
            )
            if response.error_code == ErrorCode.MEMBER_ID_REQUIRED and not identity.member_id:
                self._member.know_as(response.member_id)
                continue
            if response.error_code:
                raise from_code(
                    response.error_code, f"joining group {self._group!r}", operation="Read"
                )
            self._member.know_as(response.member_id, response.generation_id)
            joined = group_messages.join_response(response)
            if joined.protocol not in self._assignors:
                raise DamagedResponseError(
                    f"group {self._group!r} chose the assignor {joined.protocol!r}, which was not "
                    "offered"
                )
            self._member.set_leader(joined.is_leader)
            self._leave_out(joined)
            _log.info(
                "group %s: joined generation %d as %s%s",
                self._group,
                response.generation_id,
                peer_text(response.member_id),
                ", the leader" if joined.is_leader else "",
            )
            self._events.report("joined", self._rejoin_reason.why)
            return joined

    async def _sync(self, joined: Joined) -> list[TopicPartition]:
        assignments: Mapping[str, Sequence[TopicPartition]] = {}
        if joined.is_leader and not joined.skip_assignment:
            assignments = await self._perform_assignment(joined)
        request = group_messages.sync_request(
            self._group, self._member.identity, joined, assignments
        )
        response = await self._requests.ask(request, self._config.request_timeout)
        if response.error_code:
            raise from_code(response.error_code, f"syncing group {self._group!r}", operation="Read")
        return group_messages.decode_assignment(response.assignment)

    def _is_outdated(self, assignment: list[TopicPartition]) -> bool:
        """Return whether the assignment was made for an earlier subscription of this member.

        Nothing of such an assignment is adopted, as in Java's client. The next one may give its
        partitions to others, and until then records of a topic that is not subscribed any more
        would be delivered. Raises :exc:`DamagedResponseError` if the subscription is the same: then
        the leader made a mistake, and would make it again.
        """
        strange = sorted(
            {tp.topic for tp in assignment if not self._subscription.follows(tp.topic)}
        )
        if not strange:
            return False
        names = ", ".join(map(repr, strange[:_MOST_NAMED]))
        if self._rejoin_reason.kind is None:
            raise DamagedResponseError(
                f"the group's leader assigned partitions of {names}, to which this member does "
                "not subscribe"
            )
        _log.info(
            "group %s: the assignment is for an earlier subscription, with %s: joining again",
            self._group,
            names,
        )
        return True

    async def _perform_assignment(self, joined: Joined) -> Mapping[str, Sequence[TopicPartition]]:
        topics = joined.assign_from(
            AssignableTopics.from_snapshot(await self._topics.known(joined.topics), joined.topics)
        )
        nothing: Mapping[str, Sequence[TopicPartition]] = dict.fromkeys(
            [*joined.members, *joined.unreadable], ()
        )
        if not joined.members:
            return nothing
        assignments = self._assignors[joined.protocol].assign(joined.members, topics)
        checked = (
            self._protocol is RebalanceProtocol.COOPERATIVE
            and joined.protocol != CooperativeStickyAssignor.name
        )
        if checked and (moved := transferring_ownership(joined.members, assignments)):
            raise PluginError(
                f"the assignor {joined.protocol!r} gave {', '.join(map(str, sorted(moved)))} to a "
                "new owner before the old one had released it, which a cooperative assignor must "
                "not do (KIP-429)"
            )
        # A member without an entry would get no bytes. Other clients may not read that as an empty
        # assignment.
        return {**nothing, **assignments}

    def _leave_out(self, joined: Joined) -> None:
        """Record and log the members whose subscription cannot be read.

        They are assigned nothing, so that the others get their partitions.
        """
        self._member.set_left_out(tuple(joined.unreadable))
        for member_id, error in list(joined.unreadable.items())[:_MOST_NAMED]:
            _log.warning(
                "group %s: this member leads the group and assigns nothing to member %s (of %d "
                "such members): %s",
                self._group,
                member_id,
                len(joined.unreadable),
                error,
            )

    async def _is_incomplete(self, joined: Joined, mine: list[TopicPartition]) -> bool:
        """Return whether the group's present assignments do not fit the cluster any more.

        With KIP-814 a static leader that returns is not asked for new assignments. A leader that
        stayed would have seen the cluster change. One that was away can only compare all
        assignments with the partitions that exist.
        """
        topics = joined.assign_from(
            AssignableTopics.from_snapshot(await self._topics.known(joined.topics), joined.topics)
        )
        assigned = set(mine)
        if joined.members.keys() != {self._member.identity.member_id}:
            request = DescribeGroupsRequest(
                groups=[self._group], include_authorized_operations=False
            )
            response = await self._requests.ask(
                request, self._config.request_timeout, "coordinator"
            )
            described = [group for group in response.groups if not group.error_code]
            if not described:
                return True  # not known, so everything is assigned again
            try:
                for member in described[0].members:
                    assigned.update(group_messages.decode_assignment(member.member_assignment))
            except DamagedResponseError:
                return True
        return assigned != {
            TopicPartition(topic, number) for topic, numbers in topics.items() for number in numbers
        }

    async def _reconcile(self, assignment: list[TopicPartition]) -> None:
        if await self._revoke(self._reconciler.to_revoke(set(assignment))):
            self.rejoin("partitions were released")
        self._member.to(MemberState.ASSIGNING)
        self._topics.add({tp.topic for tp in assignment})
        await self._reconciler.assign(assignment)

    async def _revoke(self, tps: list[TopicPartition]) -> bool:
        """Revoke these partitions, if there are any, step by step through the member's states."""
        if not tps:
            return False
        self._member.to(MemberState.PREPARE_REVOCATION)
        await self._reconciler.revoke(tps, partial(self._member.to, MemberState.REVOKING))
        self._member.to(MemberState.REVOKED)
        return True

    async def _watch_topics(self, joined: Joined, seen: ClusterSnapshot) -> None:
        """Join again when the topics of the pattern change, or as the leader when partitions do.

        ``seen`` is the snapshot that was looked at before the join; changes since then count.
        """
        while True:
            seen = await self._topics.changed(seen)
            if self._topics.match():
                self.rejoin("topics that match the pattern came or went")
            if joined.assigned_topics not in (
                None,
                AssignableTopics.from_snapshot(seen, joined.topics),
            ):
                self.rejoin("a topic's partitions changed")
                return

    def _owned(self) -> list[TopicPartition]:
        return [] if self._protocol is RebalanceProtocol.EAGER else self._reconciler.owned

    async def _leave_group(self, *, closing: bool = False) -> None:
        identity = self._member.identity
        static = identity.instance_id is not None
        operation = self._config.group_membership_operation if closing else "default"
        stay = static if operation == "default" else operation == "remain_in_group"
        # The id is kept until the group has confirmed the leave: to join with a new one would leave
        # the old self behind in the group.
        self._member.forget(keep_id=not static)
        if not identity.member_id or stay:
            return
        why = self._why_leaving(closing)
        await leave_with_retries(
            self._config,
            LeaveReport(self._group, identity, self._events, why, repeated=not closing),
            partial(self._ask_to_leave, group_messages.leave_request(self._group, identity, why)),
            self._may_go_on,
        )

    async def _ask_to_leave(
        self, request: LeaveGroupRequest, limit: float, purpose: Purpose
    ) -> None:
        response = await self._requests.ask(request, limit, purpose)
        members = response.members or ()
        if code := response.error_code or next(
            (member.error_code for member in members if member.error_code), 0
        ):
            if code == ErrorCode.UNKNOWN_MEMBER_ID:
                self._member.forget()  # it is out already: the close sends no leave
            raise from_code(code, f"leaving group {self._group!r}", operation="Read")
        self._member.forget()
