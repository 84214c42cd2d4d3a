"""The membership manager of the classic group protocol: join, sync, reconcile, as straight-line code around the state table.

It owns the member's state and, for a subscription, which partitions are assigned. Heartbeats run beside it from the moment
that the generation is known until the next JoinGroup is sent. KIP-848's protocol takes the same seat.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from enum import Enum
from functools import partial
from typing import Any

import trio

from .._net.brokers import Brokers
from .._net.deadlines import backoff
from .._net.gather import with_background
from .._net.signal import Signal
from .._state.assignors import Assignor
from .._state.member import Member, MemberState
from .._state.subscription import Mode, Subscription
from .._wire.messages import ApiMessage
from ..config import ConsumerConfig
from ..errors import (
    MemberFencedError,
    ProtocolError,
    RebalanceInProgressError,
    RequestTimedOutError,
    TrikafkaError,
    from_code,
)
from ..types import TopicPartition
from . import group_messages
from .coordinator import Coordinators
from .group_messages import Joined
from .heartbeat import Heartbeats
from .metadata import Metadata
from .rendezvous import Change, Rendezvous

_log = logging.getLogger("trikafka.membership")
_MEMBER_ID_REQUIRED = 79
_ILLEGAL_GENERATION = 22
#: What a JoinGroup may take beyond the rebalance timeout (seconds).
_JOIN_SLACK = 5.0
_LEAVE_LIMIT, _LEAVE_ATTEMPTS = 5.0, 3


class _Reason(Enum):
    """Why a generation ends for this member. In the last two cases it is out of it at once, whatever it is doing."""

    REJOIN = "rejoin"
    FENCED = "fenced"
    EXPELLED = "expelled"


_OUT = (_Reason.FENCED, _Reason.EXPELLED)


class Membership:
    """Keeps the consumer in its group while it subscribes. Its background work is :meth:`run`."""

    def __init__(
        self,
        config: ConsumerConfig,
        brokers: Brokers,
        metadata: Metadata,
        coordinators: Coordinators,
        subscription: Subscription,
        member: Member,
        heartbeats: Heartbeats,
        rendezvous: Rendezvous,
        assignors: Sequence[Assignor],
    ) -> None:
        assert config.group_id is not None
        self._config, self._group = config, config.group_id
        self._brokers, self._metadata, self._coordinators = brokers, metadata, coordinators
        self._subscription, self._member = subscription, member
        self._heartbeats, self._rendezvous = heartbeats, rendezvous
        self._assignors = {assignor.name: assignor for assignor in assignors}
        self._eager = not all(assignor.cooperative for assignor in assignors)
        self._reason: _Reason | None = None
        self._fenced_by: TrikafkaError | None = None
        self._nudge = Signal()  # the subscription or the reason changed
        self.assigned = Signal()  # partitions came or went
        self.fatal: TrikafkaError | None = None

    # What others tell the membership.

    def subscription_changed(self) -> None:
        """The user subscribed to something (else): what stopped the last subscription is for this one to meet again."""
        self.fatal = None
        self.rejoin("the subscription changed")

    def rejoin(self, why: str) -> None:
        """Join again soon."""
        _log.debug("group %s: joining again, because %s", self._group, why)
        if self._reason is None:
            self._reason = _Reason.REJOIN
        self._nudge.notify()

    def fenced(self, error: TrikafkaError) -> None:
        """The group does not know the member any more, or will not have it; its partitions are lost."""
        _log.info("group %s: this member is out: %s", self._group, error)
        if self._reason not in _OUT:
            self._fenced_by = error
            self._put_out(_Reason.FENCED)

    def _put_out(self, reason: _Reason) -> None:
        self._reason = reason
        self._nudge.notify()

    # The background work.

    async def run(self) -> None:
        """Join, follow the group and join again, until cancelled.

        An error that no new attempt can mend is :attr:`fatal` until the user subscribes again.
        """
        failures, self.fatal = 0, None
        if not self._subscription.grouped and self._member.identity.member_id:
            await self._say_goodbye()  # the leave before was cut
        while True:
            if not self._subscription.grouped:
                await self._nudge.wait()
                continue
            try:
                failures = 0 if await self._cycle() else failures + 1
            except TrikafkaError as error:
                if not self._may_go_on(error):
                    await self._stand_still(error)
                    failures = 0
                    continue
                failures += 1
                _log.debug("group %s: attempt %d to join failed: %s", self._group, failures, error)
            if failures:
                await trio.sleep(backoff(failures, self._config.retry_backoff_ms, self._config.retry_backoff_max_ms))

    def _may_go_on(self, error: TrikafkaError) -> bool:
        if error.refresh_coordinator:
            self._coordinators.forget(self._group)
        return error.retriable or isinstance(error, RebalanceInProgressError)

    async def _stand_still(self, error: TrikafkaError) -> None:
        """Tell the user of ``error``, and wait for a new subscription."""
        self.fatal = error
        if self._subscription.partitions:  # nothing more is handed out, and at the end they are lost
            self._member.to(MemberState.FENCED)
            for state in self._subscription.partitions.values():
                state.revoking = True
        self._rendezvous.posted.notify()
        while self.fatal is not None:
            await self._nudge.wait()
        if self._member.state is MemberState.FENCED:
            await self._lose(MemberState.FENCED)

    async def _cycle(self) -> bool:
        """One generation: join it, live in it, and leave it for the next. Returns whether it was joined."""
        self._reason = self._fenced_by = None
        self._match_pattern()
        self._want_topics()
        self._member.to(MemberState.JOINING)
        try:
            await self._until_out(self._generation)
        except MemberFencedError as error:
            self.fenced(error)
        except TrikafkaError:
            if self._reason not in _OUT:
                raise
        reached = self._member.state is MemberState.STABLE
        if self._reason is _Reason.FENCED:
            await self._lose(MemberState.FENCED)
        elif self._reason is _Reason.EXPELLED:
            await self._lose(MemberState.EXPELLED)
        if self._fenced_by is not None and not isinstance(self._fenced_by, MemberFencedError):
            raise self._fenced_by
        return reached

    async def _until_out(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do ``work``, in or on the way into a generation, until it is done or the member is put out."""

        async def guard() -> None:
            while self._reason not in _OUT:
                await self._nudge.wait()
            scope.cancel()

        with trio.CancelScope() as scope:
            await with_background([guard, self._watch_poll], work)

    async def _generation(self) -> None:
        joined = await self._join()
        works: list[Callable[[], Awaitable[object]]] = [
            partial(self._heartbeats.run, self.rejoin, self.fenced),
            partial(self._watch_topics, joined),
        ]
        await with_background(works, partial(self._live, joined))

    async def _lose(self, state: MemberState) -> None:
        self._member.to(state)
        lost = list(self._subscription.partitions)
        for tp in lost:
            self._subscription.partitions[tp].revoking = True
        if state is MemberState.EXPELLED:
            await self._say_goodbye()
        if state is MemberState.FENCED:
            self._member.forget(keep_id=self._still_known())
        if lost or state is MemberState.EXPELLED:  # come back at the next receive, not before
            await self._rendezvous.post(Change.LOST, lost)
            self._drop(lost)
        self._member.to(MemberState.UNJOINED)

    def _still_known(self) -> bool:
        """Whether the group may know the member that is out: with a new id it would leave its old self behind in the group."""
        if isinstance(self._fenced_by, MemberFencedError):
            return self._fenced_by.code == _ILLEGAL_GENERATION  # only its generation has passed
        return self._member.identity.instance_id is None

    async def _live(self, joined: Joined) -> None:
        self._member.to(MemberState.SYNCING)
        assignment = await self._sync(joined)
        self._member.to(MemberState.RECONCILING)
        await self._reconcile(assignment)
        self._member.to(MemberState.STABLE)
        while self._reason is None and self._subscription.grouped:
            await self._nudge.wait()
        if self._reason in _OUT:  # lost, and not to be given up
            return
        await self._give_up([tp for tp, state in self._subscription.partitions.items() if self._eager or state.revoking])

    async def _join(self) -> Joined:
        while True:
            identity, topics = self._member.identity, self._subscription.topics
            request = group_messages.join_request(self._config, identity, self._assignors, topics, self._owned())
            # The coordinator answers when the whole group has joined, or when the rebalance timeout has passed.
            answer = await self._ask(request, max(self._heartbeats.poll_limit + _JOIN_SLACK, self._config.request_timeout))
            if answer.error_code == _MEMBER_ID_REQUIRED and not identity.member_id:
                self._member.know_as(answer.member_id)
                continue
            if answer.error_code:
                raise from_code(answer.error_code, f"joining group {self._group!r}")
            self._member.know_as(answer.member_id, answer.generation_id)
            return group_messages.read_join(answer)

    async def _sync(self, joined: Joined) -> list[TopicPartition]:
        assignments: Mapping[str, Sequence[TopicPartition]] = {}
        if joined.leads:
            assignments = await self._deal_out(joined)
        request = group_messages.sync_request(self._group, self._member.identity, joined, assignments)
        answer = await self._ask(request, self._config.request_timeout)
        if answer.error_code:
            raise from_code(answer.error_code, f"syncing group {self._group!r}")
        return group_messages.read_assignment(answer.assignment)

    async def _deal_out(self, joined: Joined) -> Mapping[str, Sequence[TopicPartition]]:
        topics = set().union(*(member.topics for member in joined.members.values()))
        if missing := topics - set(self._metadata.snapshot.topics):
            await self._metadata.refresh(missing)
        for topic in topics:
            self._metadata.also_want(topic)
        joined.dealt = self._numbers(topics)
        if joined.protocol not in self._assignors:
            raise ProtocolError(f"group {self._group!r} chose the assignor {joined.protocol!r}, which was not offered")
        return self._assignors[joined.protocol].assign(joined.members, joined.dealt)

    async def _reconcile(self, assignment: list[TopicPartition]) -> None:
        owned, wanted = self._subscription.partitions, set(assignment)
        if revoked := [tp for tp, state in owned.items() if tp not in wanted or state.revoking]:
            await self._give_up(revoked)
            self.rejoin("partitions were given up")
        added = [tp for tp in assignment if tp not in owned]
        for topic in {tp.topic for tp in added} - set(self._metadata.snapshot.topics):
            self._metadata.also_want(topic)
            self._metadata.mark_stale()
        self._subscription.add(added, ready=False)
        if added and self._rendezvous.listeners:
            await self._rendezvous.post(Change.ASSIGNED, added)
        for tp in added:
            self._subscription.partitions[tp].ready = True
        self.assigned.notify()

    async def _give_up(self, partitions: list[TopicPartition]) -> None:
        if not partitions:
            return
        for tp in partitions:
            self._subscription.partitions[tp].revoking = True
        await self._rendezvous.post(Change.REVOKED, partitions)
        self._drop(partitions)

    def _drop(self, partitions: Sequence[TopicPartition]) -> None:
        self._subscription.remove(partitions)
        self.assigned.notify()

    async def _watch_poll(self) -> None:
        await self._heartbeats.watch()
        _log.warning(
            "group %s: nothing was received for max_poll_interval_ms (%g ms); leaving the group until the next receive",
            self._group,
            self._config.max_poll_interval_ms,
        )
        self._put_out(_Reason.EXPELLED)

    async def _watch_topics(self, joined: Joined) -> None:
        """Join again when topics come or go that the pattern matches, or, as the leader, when a topic gets more partitions."""
        seen = self._metadata.snapshot
        while True:
            seen = await self._metadata.changed(seen)
            if self._match_pattern():
                self.rejoin("topics that match the pattern came or went")
            if joined.dealt is not None and joined.dealt != self._numbers(joined.topics):
                self.rejoin("a topic's partitions changed")
                return

    def _match_pattern(self) -> bool:
        if self._subscription.mode is not Mode.PATTERN:
            return False
        names = [name for name, info in self._metadata.snapshot.topics.items() if not info.internal and not info.error_code]
        return self._subscription.match(names)

    def _want_topics(self) -> None:
        pattern = self._subscription.mode is Mode.PATTERN
        self._metadata.want(self._subscription.topics, everything=pattern)

    def _numbers(self, topics: set[str] | frozenset[str]) -> dict[str, list[int]]:
        snapshot = self._metadata.snapshot
        return {name: [tp.partition for tp in snapshot.partitions_of(name)] for name in topics if snapshot.partitions_of(name)}

    def _owned(self) -> list[TopicPartition]:
        return [] if self._eager else list(self._subscription.partitions)

    async def _ask(self, message: ApiMessage, allowance: float) -> Any:
        """Ask the coordinator something that may take it ``allowance`` seconds."""
        with trio.move_on_after(allowance):
            node = await self._coordinators.find(self._group)
            return await self._brokers.request(node, message, purpose="group", allowance=allowance)
        raise RequestTimedOutError(f"no answer from the coordinator of group {self._group!r} within {allowance:g} s")

    # On the way out.

    async def leave(self) -> None:
        """Leave the group, for good or until the next subscription. :meth:`run` has been cancelled before. Best effort."""
        self.fatal = None
        self._member.to(MemberState.LEAVING)
        try:
            await self._say_goodbye()
        finally:
            self._member.to(MemberState.UNJOINED)

    def reset(self) -> None:
        """Be out of the group, at whatever point a leave was cut. :meth:`run` has ended before, and when it starts says goodbye."""
        self.fatal = self._fenced_by = self._reason = None
        self._member.to(MemberState.LEAVING)
        self._member.to(MemberState.UNJOINED)
        self._member.forget(keep_id=self._member.identity.instance_id is None)

    async def _say_goodbye(self) -> None:
        """Tell the group that this member goes; static members stay until their session ends."""
        identity = self._member.identity
        static = identity.instance_id is not None
        # Until the group has confirmed it the id is kept: to join with a new one would leave the old self behind in the group.
        self._member.forget(keep_id=not static)
        if not identity.member_id or static:
            return
        with trio.move_on_after(_LEAVE_LIMIT):
            for _ in range(_LEAVE_ATTEMPTS):
                try:
                    node = await self._coordinators.find(self._group)
                    request = group_messages.leave_request(self._group, identity)
                    answer = await self._brokers.request(node, request, purpose="coordinator")
                    if not answer.error_code:
                        self._member.forget()
                        return
                    raise from_code(answer.error_code, f"leaving group {self._group!r}")
                except TrikafkaError as error:
                    _log.info("group %s: could not say goodbye: %s", self._group, error)
                    if not self._may_go_on(error):
                        return
                await trio.sleep(backoff(1, self._config.retry_backoff_ms, self._config.retry_backoff_max_ms))
