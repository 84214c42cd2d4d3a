"""The membership manager of the classic group protocol: join, sync, run, as straight-line code around the state table.

It owns the member's state; what the group assigned it hands to the reconciler. Heartbeats run beside it from the moment that the
generation is known until the next JoinGroup is sent.
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
from .._state.cluster import ClusterSnapshot
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
from .poll_timer import PollTimer
from .reconciler import Reconciler

_log = logging.getLogger("trikafka.membership")
_MEMBER_ID_REQUIRED = 79
_ILLEGAL_GENERATION = 22
#: What a JoinGroup may take beyond the rebalance timeout (seconds).
_JOIN_SLACK = 5.0
_LEAVE_LIMIT, _LEAVE_ATTEMPTS = 5.0, 3


class Reason(Enum):
    """Why a generation ends for this member. In the last two cases it is out of it at once, whatever it is doing."""

    REJOIN = "rejoin"
    FENCED = "fenced"
    STALE = "stale"


class Ending:
    """Why the generation that the member is in ends, if it does. The first reason to be out of it counts."""

    def __init__(self) -> None:
        self.reason: Reason | None = None
        self.error: TrikafkaError | None = None  # what fenced the member
        self._changed = Signal()

    @property
    def out(self) -> bool:
        """Whether the member is out of the generation, and not only about to join the next."""
        return self.reason in (Reason.FENCED, Reason.STALE)

    def rejoin(self) -> None:
        """The member is to join again soon."""
        if self.reason is None:
            self.reason = Reason.REJOIN
        self._changed.notify()

    def put_out(self, reason: Reason, error: TrikafkaError | None = None) -> None:
        """The member is out of its generation."""
        if not self.out:
            self.reason, self.error = reason, error
        self._changed.notify()

    def clear(self) -> None:
        """A new generation begins."""
        self.reason = self.error = None

    async def changed(self) -> None:
        """Wait until there is news: a reason, or another subscription."""
        await self._changed.wait()


class ClassicMembership:
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
        reconciler: Reconciler,
        poll_timer: PollTimer,
        assignors: Sequence[Assignor],
        wake: Callable[[], object],
    ) -> None:
        assert config.group_id is not None
        self._config, self._group = config, config.group_id
        self._brokers, self._metadata, self._coordinators = brokers, metadata, coordinators
        self._subscription, self._member = subscription, member
        self._heartbeats, self._reconciler, self._poll_timer = heartbeats, reconciler, poll_timer
        self._assignors = {assignor.name: assignor for assignor in assignors}
        self._eager = not all(assignor.cooperative for assignor in assignors)
        self._ending = Ending()
        self._wake = wake  # has the receive that waits look at ``fatal``
        self.fatal: TrikafkaError | None = None

    # What others tell the membership.

    def subscription_changed(self) -> None:
        """The user subscribed to something (else): what stopped the last subscription is for this one to meet again."""
        self.fatal = None
        self.rejoin("the subscription changed")

    def rejoin(self, why: str) -> None:
        """Join again soon."""
        _log.debug("group %s: joining again, because %s", self._group, why)
        self._ending.rejoin()

    def fenced(self, error: TrikafkaError) -> None:
        """The group does not know the member any more, or will not have it; its partitions are lost."""
        if not self._ending.out:
            _log.info("group %s: this member was fenced: %s", self._group, error)
        self._ending.put_out(Reason.FENCED, error)

    # The background work.

    async def run(self) -> None:
        """Join, follow the group and join again, until cancelled.

        An error that no new attempt can mend is :attr:`fatal` until the user subscribes again.
        """
        failures, self.fatal = 0, None
        if not self._subscription.grouped and self._member.identity.member_id:
            await self._leave_group()  # the leave before was cut
        while True:
            if not self._subscription.grouped:
                await self._ending.changed()
                continue
            try:
                failures = 0 if await self._cycle() else failures + 1
            except TrikafkaError as error:
                if not self._may_go_on(error):
                    await self._enter_fatal(error)
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

    async def _enter_fatal(self, error: TrikafkaError) -> None:
        """Tell the user of ``error``, and wait for a new subscription."""
        self.fatal = error
        if self._reconciler.begin_loss():  # nothing more is delivered, and at the end it is lost
            self._member.to(MemberState.FENCED)
        self._wake()
        while self.fatal is not None:
            await self._ending.changed()
        if self._member.state is MemberState.FENCED:
            await self._lose(MemberState.FENCED)

    async def _cycle(self) -> bool:
        """One generation: join it, live in it, and leave it for the next. Returns whether it was joined."""
        self._ending.clear()
        seen = self._metadata.snapshot
        self._match_pattern()
        self._want_topics()
        self._member.to(MemberState.JOINING)
        try:
            await self._until_out(partial(self._generation, seen))
        except MemberFencedError as error:
            self.fenced(error)
        except TrikafkaError:
            if not self._ending.out:
                raise
        reached = self._member.state is MemberState.STABLE
        if self._ending.reason is Reason.FENCED:
            await self._lose(MemberState.FENCED)
        elif self._ending.reason is Reason.STALE:
            await self._lose(MemberState.STALE)
        cause = self._ending.error
        if cause is not None and not isinstance(cause, MemberFencedError):
            raise cause
        return reached

    async def _until_out(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do ``work``, in or on the way into a generation, until it is done or the member is out."""

        async def guard() -> None:
            while not self._ending.out:
                await self._ending.changed()
            scope.cancel()

        with trio.CancelScope() as scope:
            await with_background([guard, self._watch_poll], work)

    async def _generation(self, seen: ClusterSnapshot) -> None:
        joined = await self._join()
        works: list[Callable[[], Awaitable[object]]] = [
            partial(self._heartbeats.run, self.rejoin, self.fenced),
            partial(self._watch_topics, joined, seen),
        ]
        await with_background(works, partial(self._sync_and_run, joined))

    async def _lose(self, state: MemberState) -> None:
        self._member.to(state)
        self._reconciler.begin_loss()
        if state is MemberState.STALE:
            await self._leave_group()
        if state is MemberState.FENCED:
            self._member.forget(keep_id=self._still_known())
        # A member that the user left alone comes back at the next receive, not before, also with nothing to lose.
        await self._reconciler.lose(wait=state is MemberState.STALE)
        self._member.to(MemberState.UNJOINED)

    def _still_known(self) -> bool:
        """Whether the group may know the member that is out: with a new id it would leave its old self behind in the group."""
        error = self._ending.error
        if isinstance(error, MemberFencedError):
            return error.code == _ILLEGAL_GENERATION  # only its generation has passed
        return self._member.identity.instance_id is None

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
            response = await self._ask(request, max(self._poll_timer.limit + _JOIN_SLACK, self._config.request_timeout))
            if response.error_code == _MEMBER_ID_REQUIRED and not identity.member_id:
                self._member.know_as(response.member_id)
                continue
            if response.error_code:
                raise from_code(response.error_code, f"joining group {self._group!r}")
            self._member.know_as(response.member_id, response.generation_id)
            return group_messages.read_join(response)

    async def _sync(self, joined: Joined) -> list[TopicPartition]:
        assignments: Mapping[str, Sequence[TopicPartition]] = {}
        if joined.is_leader:
            assignments = await self._perform_assignment(joined)
        request = group_messages.sync_request(self._group, self._member.identity, joined, assignments)
        response = await self._ask(request, self._config.request_timeout)
        if response.error_code:
            raise from_code(response.error_code, f"syncing group {self._group!r}")
        return group_messages.read_assignment(response.assignment)

    async def _perform_assignment(self, joined: Joined) -> Mapping[str, Sequence[TopicPartition]]:
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
        if await self._reconciler.revoke(self._reconciler.to_revoke(set(assignment))):
            self.rejoin("partitions were given up")
        unknown = {tp.topic for tp in assignment} - set(self._metadata.snapshot.topics)
        for topic in unknown:
            self._metadata.also_want(topic)
        if unknown:
            self._metadata.mark_stale()
        await self._reconciler.assign(assignment)

    async def _watch_poll(self) -> None:
        await self._poll_timer.expired()
        _log.warning(
            "group %s: nothing was received for max_poll_interval_ms (%g ms); leaving the group until the next receive",
            self._group,
            self._config.max_poll_interval_ms,
        )
        self._ending.put_out(Reason.STALE)

    async def _watch_topics(self, joined: Joined, seen: ClusterSnapshot) -> None:
        """Join again when topics come or go that the pattern matches, or, as the leader, when a topic gets more partitions.

        ``seen`` is the snapshot that was looked at before the join: what came since then counts.
        """
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
        return [] if self._eager else self._reconciler.owned

    async def _ask(self, message: ApiMessage, allowance: float) -> Any:
        """Ask the coordinator something that may take it ``allowance`` seconds."""
        with trio.move_on_after(allowance):
            node = await self._coordinators.find(self._group)
            return await self._brokers.request(node, message, purpose="group", allowance=allowance)
        raise RequestTimedOutError(f"no response from the coordinator of group {self._group!r} within {allowance:g} s")

    # On the way out.

    async def leave(self) -> None:
        """Leave the group, for good or until the next subscription. :meth:`run` has been cancelled before. Best effort."""
        self.fatal = None
        self._member.to(MemberState.LEAVING)
        try:
            await self._leave_group()
        finally:
            self._member.to(MemberState.UNJOINED)

    def reset(self) -> None:
        """Be out of the group, at whatever point a leave was cut. :meth:`run` has ended before, and leaves when it starts."""
        self.fatal = None
        self._ending.clear()
        self._member.to(MemberState.LEAVING)
        self._member.to(MemberState.UNJOINED)
        self._member.forget(keep_id=self._member.identity.instance_id is None)

    async def _leave_group(self) -> None:
        """Tell the group that this member leaves; static members stay until their session ends."""
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
                    response = await self._brokers.request(node, request, purpose="coordinator")
                    if not response.error_code:
                        self._member.forget()
                        return
                    raise from_code(response.error_code, f"leaving group {self._group!r}")
                except TrikafkaError as error:
                    _log.info("group %s: could not leave: %s", self._group, error)
                    if not self._may_go_on(error):
                        return
                await trio.sleep(backoff(1, self._config.retry_backoff_ms, self._config.retry_backoff_max_ms))
