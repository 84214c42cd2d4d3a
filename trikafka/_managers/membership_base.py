"""What the memberships of both group protocols share: why a generation ends, the poll interval, topics wanted, losing, leaving.

A membership speaks its protocol in :meth:`MembershipBase._generation` and :meth:`MembershipBase._leave_group`, and what the group
assigned it hands to the reconciler. Everything around that stands here once.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any

import trio

from .._net.brokers import Brokers, Purpose
from .._net.gather import with_background
from .._net.retry import Retry
from .._net.signal import Signal
from .._state.cluster import ClusterSnapshot
from .._state.member import Member, MemberState
from .._state.subscription import Mode, Subscription
from .._wire.messages import ApiMessage
from ..config import ConsumerConfig
from ..error_codes import ErrorCode
from ..errors import (
    FencedInstanceIdError,
    MemberFencedError,
    RebalanceInProgressError,
    RequestTimedOutError,
    TrikafkaError,
    from_code,
)
from ..interfaces import CoordinatorManager, MetadataManager
from .membership_events import MembershipEvents
from .poll_timer import PollTimer
from .reconciler import Reconciler

_log = logging.getLogger("trikafka.membership")
#: What leaving may take (seconds), and how often it is tried.
LEAVE_LIMIT, LEAVE_ATTEMPTS = 5.0, 3


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
        self.why = ""  # for the broker's log, when the member joins again (KIP-800)
        self._changed = Signal()

    @property
    def out(self) -> bool:
        """Whether the member is out of the generation, and not only about to join the next."""
        return self.reason in (Reason.FENCED, Reason.STALE)

    def rejoin(self, why: str) -> None:
        """The member is to join again soon."""
        if self.reason is None:
            self.reason, self.why = Reason.REJOIN, why
        self._changed.notify()

    def put_out(self, reason: Reason, error: TrikafkaError | None = None) -> None:
        """The member is out of its generation."""
        if not self.out:
            self.reason, self.error = reason, error
            self.why = f"the member was out of the group: {reason.value}"
        self._changed.notify()

    def clear(self) -> None:
        """A new generation begins. (Why it does is kept.)"""
        self.reason = self.error = None

    async def changed(self) -> None:
        """Wait until there is news: a reason, or another subscription."""
        await self._changed.wait()


class GroupTopics:
    """What the metadata has to know for a subscription, and what of it a pattern matches."""

    def __init__(self, subscription: Subscription, metadata: MetadataManager, *, exclude_internal: bool) -> None:
        self._subscription, self._metadata = subscription, metadata
        self._exclude_internal = exclude_internal
        self._old = 0  # what snapshots up to this version say of a topic may have changed

    def subscribed(self) -> None:
        """The user subscribed: errors that were known before are for the cluster to say again."""
        self._old = self._metadata.snapshot.version

    @property
    def snapshot(self) -> ClusterSnapshot:
        """What the cluster looks like."""
        return self._metadata.snapshot

    def match(self) -> bool:
        """Set a pattern's topics to those that it matches now; return whether that changed them."""
        if self._subscription.mode is not Mode.PATTERN:
            return False
        known = self._metadata.snapshot.topics.items()
        hidden = self._exclude_internal
        return self._subscription.match([name for name, info in known if not info.error_code and not (hidden and info.internal)])

    def want(self) -> None:
        """Have the metadata keep the subscribed topics (all, for a pattern)."""
        self._metadata.want(self._subscription.topics, everything=self._subscription.mode is Mode.PATTERN)

    def add(self, topics: set[str] | frozenset[str]) -> None:
        """These are wanted besides, and those that are not known looked up."""
        for topic in topics:
            self._metadata.add_topic(topic)
        if topics - set(self._metadata.snapshot.topics):
            self._metadata.request_update()

    async def known(self, topics: set[str] | frozenset[str]) -> ClusterSnapshot:
        """The cluster with these topics looked up, and kept from now on."""
        if missing := topics - set(self._metadata.snapshot.topics):
            await self._metadata.refresh(missing)
        for topic in topics:
            self._metadata.add_topic(topic)
        return self._metadata.snapshot

    async def changed(self, seen: ClusterSnapshot) -> ClusterSnapshot:
        """Wait until the cluster looks different from ``seen``."""
        return await self._metadata.changed(seen)

    async def watch_errors(self) -> None:
        """Raise, once the cluster says of a subscribed topic what waiting cannot mend: it may not be read, or has no valid name."""
        seen = self._metadata.snapshot
        while True:
            if seen.version <= self._old:
                seen = await self._metadata.changed(seen)
            for name in sorted(self._subscription.topics):
                info = seen.topics.get(name)
                if info is not None and info.error_code:
                    error = from_code(info.error_code, f"topic {name!r}", operation="Describe")
                    if not error.retriable:
                        raise error
            seen = await self._metadata.changed(seen)


class GroupRequests:
    """Requests to the group's coordinator, one attempt each."""

    def __init__(self, group: str, brokers: Brokers, coordinators: CoordinatorManager) -> None:
        self._group, self._brokers, self._coordinators = group, brokers, coordinators

    async def ask(self, message: ApiMessage, limit: float, purpose: Purpose = "group") -> Any:
        """Send ``message``; it may take the coordinator ``limit`` seconds. Raises :exc:`RequestTimedOutError` past that."""
        with trio.move_on_after(limit):
            node = await self._coordinators.find(self._group)
            return await self._brokers.request(node, message, purpose=purpose, response_timeout=limit)
        raise RequestTimedOutError(f"no response from the coordinator of group {self._group!r} within {round(limit, 3):g} s")

    async def offers(self, api: type[ApiMessage], limit: float) -> bool:
        """Whether the coordinator offers ``api``. Raises as :meth:`ask`."""
        with trio.move_on_after(limit):
            node = await self._coordinators.find(self._group)
            return api.API_KEY in (await self._brokers.connection(node, "coordinator")).versions.ranges
        raise RequestTimedOutError(f"no response from the coordinator of group {self._group!r} within {round(limit, 3):g} s")

    def recover(self, error: TrikafkaError) -> None:
        """Note what an error says of the coordinator."""
        if error.refresh_coordinator:
            self._coordinators.mark_unknown(self._group)


@dataclass(frozen=True)
class GroupParts:
    """What a membership works with, whatever its protocol. ``wake`` has the receive that waits look at its ``fatal``."""

    config: ConsumerConfig
    subscription: Subscription
    member: Member
    reconciler: Reconciler
    poll_timer: PollTimer
    topics: GroupTopics
    requests: GroupRequests
    events: MembershipEvents
    wake: Callable[[], object]


class MembershipBase(ABC):
    """Keeps the consumer in its group while it subscribes. Its background work is :meth:`run`."""

    def __init__(self, parts: GroupParts) -> None:
        assert parts.config.group_id is not None
        self._config, self._group = parts.config, parts.config.group_id
        self._subscription, self._member = parts.subscription, parts.member
        self._reconciler, self._poll_timer = parts.reconciler, parts.poll_timer
        self._topics, self._requests = parts.topics, parts.requests
        self._ending = Ending()
        self._events, self._wake = parts.events, parts.wake
        self.fatal: TrikafkaError | None = None

    # What a protocol brings.

    @abstractmethod
    async def _generation(self, seen: ClusterSnapshot) -> None:
        """Join, and live in the group until :attr:`_ending` has a reason or the subscription ends.

        ``seen`` is the snapshot that the pattern was last matched with. Cancelled as soon as the member is out.
        """

    @abstractmethod
    async def _leave_group(self, *, closing: bool = False) -> None:
        """Tell the group that this member leaves. Best effort, within a limit of its own.

        ``closing``: for good, so ``group_membership_operation`` counts (KIP-1092); else dynamic members leave and static ones stay.
        """

    # What others tell the membership.

    def subscription_changed(self) -> None:
        """The user subscribed to something (else): what stopped the last subscription is for this one to meet again."""
        self.fatal = None
        self._topics.subscribed()
        self.rejoin("the subscription changed" if self._member.identity.joined else "the consumer subscribed")

    def rejoin(self, why: str) -> None:
        """Join again soon."""
        _log.debug("group %s: joining again, because %s", self._group, why)
        self._ending.rejoin(why)

    def fenced(self, error: TrikafkaError) -> None:
        """The group does not know the member any more, or will not have it; its partitions are lost."""
        news = not self._ending.out
        if news:
            _log.warning("group %s: this member is out of the group, its partitions are lost: %s", self._group, error)
        self._reconciler.begin_loss()  # in this step: others may own them already
        self._ending.put_out(Reason.FENCED, error)
        if news:  # a time-out is the member's own clock, which says that its session has ended
            self._events.tell("session_lost" if isinstance(error, RequestTimedOutError) else "fenced", str(error), error)

    # The background work.

    async def run(self) -> None:
        """Join, follow the group and join again, until cancelled.

        An error that no new attempt can mend is :attr:`fatal` until the user subscribes again.
        """
        retry, self.fatal = Retry(self._config), None
        if not self._subscription.grouped and self._member.identity.member_id:
            await self._leave_group()  # the leave before was cut
        while True:
            if not self._subscription.grouped:
                await self._ending.changed()
                continue
            try:
                if await self._cycle():
                    retry.reset()
                    continue
            except TrikafkaError as error:
                if not self._may_go_on(error):
                    await self._enter_fatal(error)
                    retry.reset()
                    continue
                _log.debug("group %s: an attempt to join failed: %s", self._group, error)
            await retry.wait()

    def _may_go_on(self, error: TrikafkaError) -> bool:
        self._requests.recover(error)
        return error.retriable or isinstance(error, RebalanceInProgressError)

    async def _enter_fatal(self, error: TrikafkaError) -> None:
        """Tell the user of ``error``, and wait for a new subscription."""
        self.fatal = error
        # Nothing more is delivered, and at the end it is lost. A listener may have given up the last of it in this very step.
        if self._reconciler.begin_loss() or self._member.state not in (MemberState.UNJOINED, MemberState.JOINING):
            self._member.to(MemberState.FENCED)
        if isinstance(error, FencedInstanceIdError) and not self._ending.out:
            self._events.tell("fenced", str(error), error)
        self._wake()
        if self._member.identity.joined:  # no heartbeat is sent any more: the others need not wait for the session to end
            await self._leave_group()
        while self.fatal is not None:
            await self._ending.changed()
        if self._member.state is MemberState.FENCED:
            await self._lose(MemberState.FENCED)

    async def _cycle(self) -> bool:
        """One generation: join it, live in it, and leave it for the next. Returns whether it was joined."""
        self._ending.clear()
        seen = self._topics.snapshot
        self._topics.match()
        self._topics.want()
        self._member.to(MemberState.JOINING)
        try:
            await self._until_out(partial(self._generation, seen))
        except MemberFencedError as error:
            self.fenced(error)
        except TrikafkaError:
            if not self._ending.out:
                raise
        finally:  # also where this is cancelled now: who leaves then has lost what he had
            if self._ending.out:
                self._member.to(MemberState.STALE if self._ending.reason is Reason.STALE else MemberState.FENCED)
        settled = self._member.settled
        if self._ending.reason is Reason.FENCED:
            await self._lose(MemberState.FENCED)
        elif self._ending.reason is Reason.STALE:
            await self._lose(MemberState.STALE)
        cause = self._ending.error
        if cause is not None and not isinstance(cause, MemberFencedError):
            raise cause
        return settled

    async def _until_out(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do ``work``, in or on the way into a generation, until it is done or the member is out."""

        async def guard() -> None:
            while not self._ending.out:
                await self._ending.changed()
            scope.cancel()

        with trio.CancelScope() as scope:
            await with_background([guard, self._watch_poll, self._topics.watch_errors], work)

    async def _watch_poll(self) -> None:
        await self._poll_timer.expired()
        if self._ending.out:
            return
        why = (
            f"{self._poll_timer.limit * 1000:g} ms passed without a receive, so this member leaves the group,"
            f" until the next receive; raise max_poll_interval_ms (now {self._config.max_poll_interval_ms:g}),"
            " or take fewer records at a time"
        )
        _log.warning("group %s: %s", self._group, why)
        self._ending.put_out(Reason.STALE)
        self._events.tell("expelled", why)

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
            return error.code == ErrorCode.ILLEGAL_GENERATION  # only its generation has passed
        return self._member.identity.instance_id is None

    # On the way out.

    def _why_leaving(self, closing: bool) -> str:
        """For the broker's log (KIP-800), and for observers."""
        if closing:
            return "the consumer is being closed"
        if self._ending.reason is Reason.STALE:
            return "max_poll_interval_ms passed without a receive"
        return "the consumer unsubscribed" if self.fatal is None else f"the consumer cannot go on: {self.fatal}"

    async def leave(self, *, closing: bool = False) -> None:
        """Leave the group, for good (``closing``) or until the next subscription. :meth:`run` was cancelled before. Best effort."""
        self.fatal = None
        self._member.to(MemberState.LEAVING)
        try:
            await self._leave_group(closing=closing)
        finally:
            self._member.to(MemberState.UNJOINED)

    def reset(self) -> None:
        """Be out of the group, at whatever point a leave was cut. :meth:`run` has ended before, and leaves when it starts."""
        self.fatal = None
        self._ending.clear()
        self._member.to(MemberState.LEAVING)
        self._member.to(MemberState.UNJOINED)
        self._member.forget(keep_id=self._member.identity.instance_id is None)
