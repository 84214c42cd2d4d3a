"""The part of a membership that both group protocols share.

It holds the reasons why a generation ends, the poll interval, the topics wanted, losing partitions,
and leaving. A membership speaks its protocol in :meth:`MembershipBase._generation` and
:meth:`MembershipBase._leave_group`, and passes the group's assignment to the reconciler.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any

import trio

from ..._net import reasons
from ..._net.brokers import Brokers, Purpose
from ..._net.gather import with_background
from ..._net.in_flight import SILENCE
from ..._net.signal import Signal
from ..._state.consumer.subscription import Mode, Subscription
from ..._state.group.member import Member, MemberState
from ..._wire.messages import ApiMessage
from ...config import ConsumerConfig
from ...error_codes import ErrorCode
from ...errors import (
    FencedInstanceIdError,
    MemberFencedError,
    RebalanceInProgressError,
    RequestTimedOutError,
    TrikafkaError,
    from_code,
)
from ...errors.peer_text import peer_text
from ...errors.refusals import may_be_lifted
from ...interfaces import ClusterSnapshot, CoordinatorManager, MetadataManager
from ..cluster.coordinator import Coordinators
from .join_attempts import JoinAttempts
from .membership_events import MembershipEvents
from .poll_timer import PollTimer
from .reconciler import Reconciler

_log = logging.getLogger("trikafka.membership")
#: The most topics that an error names.
_NAMED = 5


class RejoinKind(Enum):
    """The kind of a :class:`RejoinReason`.

    With FENCED and STALE the member is removed from the generation at once, whatever it is doing.
    """

    REJOIN = "rejoin"
    FENCED = "fenced"
    STALE = "stale"


class RejoinReason:
    """The reason for which the member leaves its current generation, if there is one.

    The first reason that removes the member counts.
    """

    def __init__(self) -> None:
        self.kind: RejoinKind | None = None
        self.error: TrikafkaError | None = None  # the error that fenced the member
        self.why = ""  # sent with the next join, for the broker's log (KIP-800)
        self._changed = Signal()

    @property
    def removed(self) -> bool:
        """True if the member is removed from the generation, not only about to join the next."""
        return self.kind in (RejoinKind.FENCED, RejoinKind.STALE)

    def rejoin(self, why: str) -> None:
        """Record that the member has to join again soon."""
        if self.kind is None:
            self.kind = RejoinKind.REJOIN
            self.why = why
        self._changed.notify()

    def mark_removed(self, kind: RejoinKind, error: TrikafkaError | None = None) -> None:
        """Record that the member is removed from its generation."""
        if not self.removed:
            self.kind = kind
            self.error = error
            self.why = f"the member was out of the group: {kind.value}"
        self._changed.notify()

    def clear(self) -> None:
        """Forget the reason; keep its text for the next join."""
        self.kind = None
        self.error = None

    async def changed(self) -> None:
        """Wait for a reason, or another subscription."""
        await self._changed.wait()


class GroupTopics:
    """The topics that a subscription needs from the metadata, and those that a pattern matches."""

    def __init__(
        self, subscription: Subscription, metadata: MetadataManager, *, exclude_internal: bool
    ) -> None:
        self._subscription = subscription
        self._metadata = metadata
        self._exclude_internal = exclude_internal
        # The errors of topics in snapshots up to this version are older than the subscription.
        self._old = 0

    def subscribed(self) -> None:
        """Ignore the topic errors known before: the user has subscribed since.

        The cluster must confirm them in a newer snapshot.
        """
        self._old = self._metadata.snapshot.version

    @property
    def snapshot(self) -> ClusterSnapshot:
        """The current snapshot of the cluster."""
        return self._metadata.snapshot

    def match(self) -> bool:
        """Set a pattern's topics to those that match now; return whether that changed them."""
        if self._subscription.mode is not Mode.PATTERN:
            return False
        known = self._metadata.snapshot.topics.items()
        hidden = self._exclude_internal
        return self._subscription.match(
            [name for name, info in known if not info.error_code and not (hidden and info.internal)]
        )

    def want(self) -> None:
        """Have the metadata keep the subscribed topics (all, for a pattern)."""
        self._metadata.want(
            self._subscription.topics, everything=self._subscription.mode is Mode.PATTERN
        )

    def add(self, topics: set[str] | frozenset[str]) -> None:
        """Keep these topics too, and request those that are not known."""
        for topic in topics:
            self._metadata.add_topic(topic)
        if topics - set(self._metadata.snapshot.topics):
            self._metadata.request_update()

    async def known(self, topics: set[str] | frozenset[str]) -> ClusterSnapshot:
        """Return a snapshot that has these topics, and keep them from now on."""
        if missing := topics - set(self._metadata.snapshot.topics):
            await self._metadata.refresh(missing)
        for topic in topics:
            self._metadata.add_topic(topic)
        return self._metadata.snapshot

    async def changed(self, seen: ClusterSnapshot) -> ClusterSnapshot:
        """Wait until the cluster looks different from ``seen``."""
        return await self._metadata.changed(seen)

    async def watch_errors(self) -> None:
        """Raise once a subscribed topic has an error that waiting cannot fix.

        The member may not read the topic, or its name is invalid.
        """
        seen = self._metadata.snapshot
        while True:
            if seen.version <= self._old:
                seen = await self._metadata.changed(seen)
            self._raise_for(seen)
            seen = await self._metadata.changed(seen)

    async def check_again(self) -> None:
        """Refresh the subscribed topics, and raise as :meth:`watch_errors`."""
        if self._subscription.topics:
            self._raise_for(await self._metadata.refresh(self._subscription.topics))
        else:
            await trio.lowlevel.checkpoint()

    def _raise_for(self, seen: ClusterSnapshot) -> None:
        for name in sorted(self._subscription.topics):
            info = seen.topics.get(name)
            if info is not None and info.error_code:
                error = from_code(info.error_code, f"topic {name!r}", operation="Describe")
                # A code about a member says nothing of a topic. Raised from here it would make the
                # member join again, in whatever state it is.
                if not error.retriable and not isinstance(
                    error, MemberFencedError | RebalanceInProgressError
                ):
                    raise error


class GroupRequests:
    """Requests to the group's coordinator, one attempt each."""

    def __init__(self, group: str, brokers: Brokers, coordinators: CoordinatorManager) -> None:
        self._group = group
        self._brokers = brokers
        self._coordinators = coordinators

    async def ask(self, message: ApiMessage, limit: float, purpose: Purpose = "group") -> Any:
        """Send ``message`` to the coordinator, which may take ``limit`` seconds to respond.

        Raises :exc:`RequestTimedOutError` past that.
        """
        with trio.move_on_after(limit):
            node = await self._coordinators.find(self._group)
            request = partial(
                self._brokers.request, node, message, purpose=purpose, response_timeout=limit
            )
            if purpose == "group" and isinstance(self._coordinators, Coordinators):
                return await self._while_coordinator_stays(request, self._coordinators)
            return await request()
        raise RequestTimedOutError(
            f"no response from the coordinator of group {self._group!r} within "
            f"{round(limit, 3):g} s"
        )

    async def heartbeat(
        self, message: ApiMessage, what: str, limit: float, purpose: Purpose = "coordinator"
    ) -> Any:
        """Send a ConsumerGroupHeartbeat or a ShareGroupHeartbeat, and return the response.

        Raises as :meth:`ask`, and the error in the response. ``what`` says in that error what the
        heartbeat is for, such as "leaving group".
        """
        response = await self.ask(message, limit, purpose)
        if response.error_code:
            detail = (
                f": {peer_text(response.error_message).rstrip('.')}"
                if response.error_message
                else ""
            )
            if response.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
                detail += "; if a group has that id, it is of another kind: choose another group_id"
            operation = "Read"
            # A response does not name the topics that this client may not see.
            topics = getattr(message, "subscribed_topic_names", None)
            if response.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED and topics:
                operation = "Describe"
                shown = ", ".join(map(repr, topics[:_NAMED]))
                more = f" and {len(topics) - _NAMED} more" if len(topics) > _NAMED else ""
                detail = f", subscribed to {shown}{more}{detail}"
            raise from_code(
                response.error_code, f"{what} {self._group!r}{detail}", operation=operation
            )
        return response

    async def _while_coordinator_stays(
        self, request: Callable[[], Awaitable[Any]], coordinators: Coordinators
    ) -> Any:
        """Return the response to a request that waits for the group's other members."""
        # A JoinGroup may wait in the coordinator for the rebalance timeout, so its silence is no
        # sign of an outage. But a frozen coordinator is silent too, and its group moves to another
        # broker meanwhile. So other brokers are asked at intervals which broker coordinates the
        # group. If it is another one, the connection to the old one is closed, the request fails,
        # and the next attempt goes to the new coordinator.
        response: Any = None

        async def look_again() -> None:
            while True:
                await trio.sleep(SILENCE)
                # There may be no coordinator at the moment.
                with suppress(TrikafkaError):
                    await coordinators.look_again(self._group)

        async def ask() -> None:
            nonlocal response
            response = await request()

        await with_background([look_again], ask)
        return response

    async def offers(self, api: type[ApiMessage], limit: float) -> bool:
        """Return whether the coordinator offers ``api``. Raises as :meth:`ask`."""
        with trio.move_on_after(limit):
            node = await self._coordinators.find(self._group)
            return api.API_KEY in (await self._brokers.connection(node, "coordinator")).versions
        raise RequestTimedOutError(
            f"no response from the coordinator of group {self._group!r} within "
            f"{round(limit, 3):g} s"
        )

    def refused_until(self) -> float:
        """Return when this client may authenticate again; a past time if it was not refused."""
        return self._brokers.refused_until

    def recover(self, error: TrikafkaError) -> bool:
        """Forget the coordinator if the error says that another broker has this role.

        Returns whether the request may be sent again.
        """
        if error.refresh_coordinator:
            self._coordinators.mark_unknown(self._group)
        return error.retriable


@dataclass(frozen=True)
class MembershipDependencies:
    """The dependencies of a membership, whatever its protocol.

    ``wake`` makes a waiting receive look at the membership's ``fatal``.
    """

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
    """The consumer's membership of its group while it subscribes. Its task is :meth:`run`."""

    def __init__(self, dependencies: MembershipDependencies) -> None:
        assert dependencies.config.group_id is not None
        self._config = dependencies.config
        self._group = dependencies.config.group_id
        self._subscription = dependencies.subscription
        self._member = dependencies.member
        self._reconciler = dependencies.reconciler
        self._poll_timer = dependencies.poll_timer
        self._topics = dependencies.topics
        self._requests = dependencies.requests
        self._rejoin_reason = RejoinReason()
        self._events = dependencies.events
        self._wake = dependencies.wake
        self._attempts = JoinAttempts(
            dependencies.config,
            self._group,
            dependencies.member,
            dependencies.requests.refused_until,
            longest_pause_ms=dependencies.config.session_timeout_ms / 3,
        )
        # True if the user subscribed since the last attempt to join began.
        self._resubscribed = False
        self.fatal: TrikafkaError | None = None
        self.reason = reasons.WaitContext()  # what :meth:`run` waits for

    # The methods of a protocol.

    @abstractmethod
    async def _generation(self, seen: ClusterSnapshot) -> None:
        """Join, and stay in the group until it has to be joined again or the subscription ends.

        It has to be joined again once :attr:`_rejoin_reason` has a kind. ``seen`` is the snapshot
        with which the pattern was last matched. Cancelled as soon as the member is removed.
        """

    @abstractmethod
    async def _leave_group(self, *, closing: bool = False) -> None:
        """Leave the group at the coordinator. Best effort, within a limit of its own.

        With ``closing`` the member will not return, so ``group_membership_operation`` counts
        (KIP-1092). Otherwise dynamic members leave and static ones stay, and another leave follows
        if this one is cancelled: that of the close, or of the next :meth:`run`.
        """

    # Events from other parts of the consumer.

    def subscription_changed(self) -> None:
        """Join with the new subscription; errors that stopped the last one are forgotten."""
        self.fatal = None
        self._resubscribed = True
        self._member.unhindered()
        self._topics.subscribed()
        self.rejoin(
            "the subscription changed"
            if self._member.identity.joined
            else "the consumer subscribed"
        )

    def rejoin(self, why: str) -> None:
        """Join again soon."""
        _log.debug("group %s: joining again, because %s", self._group, why)
        self._rejoin_reason.rejoin(why)

    def fenced(self, error: TrikafkaError) -> None:
        """Take the member out of the group; its partitions are lost.

        The group does not know the member any more, or refuses it.
        """
        news = not self._rejoin_reason.removed
        if news:
            # If each attempt ends with a refused heartbeat, JoinAttempts logs that, at its own
            # intervals.
            again = self._attempts.refused and self._member.hindrance is not None
            level = logging.DEBUG if again else logging.WARNING
            _log.log(
                level,
                "group %s: this member is out of the group, its partitions are lost: %s",
                self._group,
                error,
            )
        self._reconciler.begin_loss()  # in this step, because others may own them already
        self._rejoin_reason.mark_removed(RejoinKind.FENCED, error)
        # A timeout here comes from the member's own clock: its session has ended.
        if news:
            self._events.report(
                "session_lost" if isinstance(error, RequestTimedOutError) else "fenced",
                str(error),
                error,
            )

    # The background work.

    async def run(self) -> None:
        """Join, follow the group and join again, until cancelled.

        A refusal that may be lifted (:mod:`trikafka.errors.refusals`) is raised by one receive, and
        tried again after a pause. An error that no new attempt can fix is :attr:`fatal` until the
        user subscribes again.
        """
        reasons.adopt(self.reason)
        self.fatal = None
        self._attempts.forget()
        if not self._subscription.grouped and self._member.identity.member_id:
            await self._leave_group()  # the last leave was cut off
        while True:
            if not self._subscription.grouped:
                await self._rejoin_reason.changed()
                continue
            # The back-off between attempts to join. If the member was in a generation, or the user
            # has changed the subscription, the next attempt follows at once, because the group
            # waits for this member. After a retriable failure (a lost connection, a coordinator
            # that moves or loads) it follows after a short back-off. After a refusal that an
            # operator may lift, such as a missing permission, the pauses grow to ten seconds, and
            # one receive raises the refusal. Any other error is fatal.
            #
            # The row of failures starts over only when the member has settled in a generation. An
            # attempt that joins and is removed before it settled counts as a failure. Otherwise
            # a member that is fenced each time would make its group rebalance without a pause.
            tried = False
            try:
                if self._attempts.refused:
                    # To join while a topic is still refused would make the whole group rebalance
                    # twice.
                    await self._topics.check_again()
                tried = True
                if await self._cycle():
                    self.reason.clear()
                    if self._member.hindrance is None:
                        self._attempts.forget()
                    continue
                delay = self._attempts.pause()
            except TrikafkaError as error:
                if tried and self._member.settled and self._member.hindrance is None:
                    # The member was in the group, so this failure is the first of a new row.
                    self._attempts.forget()
                if self._may_go_on(error):
                    delay = self._attempts.failed(error)
                elif may_be_lifted(error):
                    await self._wait_out(error)
                    continue
                else:
                    await self._enter_fatal(error)
                    self._attempts.forget()
                    continue
                reasons.failed(error)
            await trio.sleep(delay)

    def _may_go_on(self, error: TrikafkaError) -> bool:
        self._requests.recover(error)
        return error.retriable or isinstance(error, RebalanceInProgressError)

    async def _wait_out(self, error: TrikafkaError) -> None:
        """Have one receive raise ``error``, leave the group, and wait for the next attempt."""
        next_attempt = self._attempts.refused_by(error)
        self._stop_delivering()
        self._wake()
        if self._member.identity.joined:
            await self._leave_group()
        if self._member.state is MemberState.FENCED:
            await self._lose(MemberState.FENCED)
        with trio.move_on_at(next_attempt):
            while self._member.hindrance is not None:  # the user may subscribe before
                await self._rejoin_reason.changed()

    def _stop_delivering(self) -> None:
        """Deliver nothing more of what is owned; it is lost afterwards."""
        # A listener may have released the last partition in this very step. Then only the state
        # shows that the member was in the group.
        if self._reconciler.begin_loss() or self._member.state not in (
            MemberState.UNJOINED,
            MemberState.JOINING,
        ):
            self._member.to(MemberState.FENCED)

    async def _enter_fatal(self, error: TrikafkaError) -> None:
        """Have each receive raise ``error``, and wait for a new subscription."""
        self.fatal = error
        text = (
            "group %s: this member cannot go on, and leaves the group until the consumer "
            "subscribes again: %s"
        )
        _log.error(text, self._group, error)
        self._stop_delivering()
        if isinstance(error, FencedInstanceIdError) and not self._rejoin_reason.removed:
            self._events.report("fenced", str(error), error)
        self._wake()
        # No heartbeat is sent any more. The others need not wait for the session to end.
        if self._member.identity.joined:
            await self._leave_group()
        while self.fatal is not None:
            await self._rejoin_reason.changed()
        if self._member.state is MemberState.FENCED:
            await self._lose(MemberState.FENCED)

    async def _cycle(self) -> bool:
        """Join one generation, live in it, and leave it for the next.

        Return whether the next one may follow at once: the member was in this one, or the user has
        subscribed to something else.
        """
        self._rejoin_reason.clear()
        self._resubscribed = False
        seen = self._topics.snapshot
        self._topics.match()
        self._topics.want()
        self._member.to(MemberState.JOINING)
        # Cancellation included: a leave that follows must know that the partitions are lost.
        try:
            await self._until_out(partial(self._generation, seen))
        except MemberFencedError as error:
            self.fenced(error)
        except TrikafkaError:
            if not self._rejoin_reason.removed:
                raise
        finally:
            if self._rejoin_reason.removed:
                self._member.to(
                    MemberState.STALE
                    if self._rejoin_reason.kind is RejoinKind.STALE
                    else MemberState.FENCED
                )
        settled = self._member.settled
        if self._rejoin_reason.kind is RejoinKind.FENCED:
            await self._lose(MemberState.FENCED)
        elif self._rejoin_reason.kind is RejoinKind.STALE:
            await self._lose(MemberState.STALE)
        cause = self._rejoin_reason.error
        if cause is not None and not isinstance(cause, MemberFencedError):
            raise cause
        return settled or self._resubscribed

    async def _until_out(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run ``work`` until it ends, or until the member is removed from the group."""

        async def guard() -> None:
            while not self._rejoin_reason.removed:
                await self._rejoin_reason.changed()
            scope.cancel()

        with trio.CancelScope() as scope:
            await with_background([guard, self._watch_poll, self._topics.watch_errors], work)

    async def _watch_poll(self) -> None:
        await self._poll_timer.expired()
        if self._rejoin_reason.removed:
            return
        interval = f"raise max_poll_interval_ms (now {self._config.max_poll_interval_ms:g})"
        limit = f"{self._poll_timer.limit * 1000:g}"
        if stuck := self._poll_timer.stuck:
            why = (
                f"the handlers of all streams in use ({stuck}) have held their records for "
                f"{limit} ms, so this member leaves the group, until one of them returns; "
                f"{interval}, pause a partition whose record takes long, or set "
                "leave_when_stuck=False"
            )
        elif (partition := self._poll_timer.deserializing) is not None:
            why = (
                f"a receive has waited {limit} ms for an async deserializer of {partition}, so "
                "this member leaves the group, until the next receive; give the deserializer a "
                f"limit of time, or {interval}"
            )
        else:
            why = (
                f"{limit} ms passed without a receive, so this member leaves the group, until the "
                f"next receive; {interval}, or take fewer records at a time"
            )
        _log.warning("group %s: %s", self._group, why)
        self._rejoin_reason.mark_removed(RejoinKind.STALE)
        self._events.report("stale", why)

    async def _lose(self, state: MemberState) -> None:
        self._member.to(state)
        self._reconciler.begin_loss()
        if state is MemberState.STALE:
            await self._leave_group()
        if state is MemberState.FENCED:
            self._member.forget(keep_id=self._still_known())
        # A member whose user stopped receiving joins again at the next receive, not before. That
        # holds also if it owned nothing.
        await self._reconciler.lose(wait=state is MemberState.STALE)
        if state is MemberState.STALE:
            await self._poll_timer.returned()
        self._member.to(MemberState.UNJOINED)

    def _still_known(self) -> bool:
        """Return whether the group may still know the removed member.

        If so, the member keeps its id: with a new one, the group would wait for the old
        member too.
        """
        error = self._rejoin_reason.error
        if isinstance(error, MemberFencedError):
            return error.code == ErrorCode.ILLEGAL_GENERATION  # only its generation is over
        return self._member.identity.instance_id is None

    # Leaving.

    def _why_leaving(self, closing: bool) -> str:
        """Return the reason, for the broker's log (KIP-800) and for observers."""
        if closing:
            return "the consumer is being closed"
        if self._rejoin_reason.kind is RejoinKind.STALE:
            return "max_poll_interval_ms passed without a receive"
        stopped_by = self.fatal or self._member.hindrance
        return (
            "the consumer unsubscribed"
            if stopped_by is None
            else f"the consumer cannot go on: {stopped_by}"
        )

    async def leave(self, *, closing: bool = False) -> None:
        """Leave the group until the next subscription; with ``closing`` the member will not return.

        :meth:`run` was cancelled before. Best effort.
        """
        self.fatal = None
        self._member.unhindered()
        self._member.to(MemberState.LEAVING)
        try:
            await self._leave_group(closing=closing)
        finally:
            self._member.to(MemberState.UNJOINED)

    def reset(self) -> None:
        """Mark the member as out of the group, after a leave that may have been cut.

        Call it after :meth:`run` has ended. The next :meth:`run` begins with a leave.
        """
        self.fatal = None
        self._member.unhindered()
        self._rejoin_reason.clear()
        self._member.to(MemberState.LEAVING)
        self._member.to(MemberState.UNJOINED)
        self._member.forget(keep_id=self._member.identity.instance_id is None)
