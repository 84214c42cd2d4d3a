"""How a consumer is put together: its managers, the signals between them, and the tasks that it lives as."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import trio
from kafka.protocol.metadata import MetadataRequest

from .._managers.commit import AutoCommit, Commits, thrown_out
from .._managers.coordinator import Coordinators
from .._managers.fetch import Fetcher
from .._managers.heartbeat import Heartbeats
from .._managers.membership import Membership
from .._managers.metadata import Metadata, read_metadata
from .._managers.offsets import Found, Offsets
from .._managers.positions import PositionsManager
from .._managers.rendezvous import Rendezvous
from .._net.deadlines import Call, check_timeout, run_call
from .._net.signal import Signal
from .._state.assignors import Assignor
from .._state.member import Member
from .._state.subscription import Subscription, checked_partition
from ..config import ConsumerConfig
from ..errors import CommitFailedError, ConfigurationError, TrikafkaError
from ..hooks import call_all, call_first
from ..interfaces import RebalanceListener
from ..types import PartitionInfo, TopicPartition
from .context import Context
from .receiving import Receiver
from .service import Service

T = TypeVar("T")


class ConsumerParts(Context[ConsumerConfig]):
    """The parts of one consumer. The consumer calls them directly; nothing here outlives its ``async with``."""

    def __init__(self, config: ConsumerConfig, service: Service) -> None:
        super().__init__(config, service)
        self.happened = Signal()  # records, positions, a rebalance or an error: whoever receives looks again
        self.subscription = Subscription()
        self.member = Member(config.group_instance_id)
        self.check: Callable[[], None] = lambda: None  # the consumer's: raises what the user has to know first
        self.rendezvous = Rendezvous(self._before_revoke, self.happened)
        self.metadata: Metadata = self.fill("metadata")
        self.coordinators: Coordinators = self.fill("coordinator")
        self.offsets: Offsets = self.fill("offsets")
        self.commits: Commits | None = None
        self.auto_commit: AutoCommit | None = None
        self.heartbeats: Heartbeats | None = None
        self.membership: Membership | None = None
        self._membership_scope = trio.CancelScope()
        self._membership_ended: trio.Event | None = None  # of the membership task, while there is one
        self.leave_deadline: float | None = None  # of the leave under way
        if config.group_id is not None:
            self.commits = self.fill("commit")
        self.positions: PositionsManager = self.fill("positions")
        self.fetcher: Fetcher = self.fill("fetch")
        if config.group_id is not None:
            self._fill_group_seats()
        self.receiver = Receiver(config, self.subscription, self.fetcher, self.rendezvous, self.heartbeats, lambda: self.check())
        self._plugin_listeners = call_all(self.plugins, "trikafka_rebalance_listener", RebalanceListener, context=self)
        self.use_listener(None)

    def _fill_group_seats(self) -> None:
        assert self.commits is not None
        if self.config.enable_auto_commit:
            interval = self.config.auto_commit_interval_ms / 1000
            self.auto_commit = AutoCommit(self.commits, self.subscription, self.member, interval)
        self.assignors = [self._assignor(name) for name in self.config.partition_assignment_strategy]
        self.heartbeats = self.fill("heartbeat")
        self.membership = self.fill("membership")

    def _assignor(self, name: str) -> Assignor:
        assignor: Assignor | None = call_first(self.plugins, "trikafka_assignor", Assignor, name=name)
        if assignor is None:
            raise ConfigurationError(f"partition_assignment_strategy: no plugin offers an assignor named {name!r}")
        return assignor

    async def start(self) -> None:
        """Make the first contact and start the tasks."""
        await self.metadata.bootstrap()
        start_soon = self.start_soon
        start_soon(self.metadata.run)
        start_soon(self.positions.run)
        start_soon(self.fetcher.run)
        if self.auto_commit is not None:
            start_soon(self.auto_commit.run)
        if self.heartbeats is not None:
            self.heartbeats.polled()
            self.restart_membership()
        self.tell_opened()

    def positioned(self) -> None:
        """A partition has got its position, and can be fetched; or an error."""
        self.fetcher.wake.notify()
        self.happened.notify()

    # The group.

    def restart_membership(self) -> None:
        """Start the membership task (again, after unsubscribing), unless it runs."""
        if self.membership is not None and self._membership_ended is None:
            scope, ended = trio.CancelScope(), trio.Event()
            self.start_soon(self._run_membership, scope, ended)
            self._membership_scope, self._membership_ended = scope, ended

    async def _run_membership(self, scope: trio.CancelScope, ended: trio.Event) -> None:
        assert self.membership is not None
        try:
            with scope:
                async with self._following_assignment():
                    await self.membership.run()
        finally:
            self._membership_ended = None
            ended.set()

    @asynccontextmanager
    async def _following_assignment(self) -> AsyncIterator[None]:
        assert self.membership is not None
        membership = self.membership

        async def follow() -> None:
            while True:
                await membership.assigned.wait()
                self.assignment_changed()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(follow)
            yield
            nursery.cancel_scope.cancel()

    async def stop_membership(self) -> None:
        """Stop joining, syncing and heartbeating; the group is not told. Once this returns, nothing of it runs any more."""
        self._membership_scope.cancel()
        if self._membership_ended is not None:
            with trio.CancelScope(shield=True):  # it ends at once, but a step that is due already is still made
                await self._membership_ended.wait()

    def start_over(self) -> None:
        """After unsubscribing, however that ended: no subscription, out of the group, ready for the next."""
        if self.membership is not None:
            self.membership.reset()
        self.rendezvous.forget()
        self.subscription.clear()
        if self.auto_commit is not None:
            self.auto_commit.hold(False)
        self.assignment_changed()
        self.restart_membership()

    async def leave_group(self) -> None:
        """Tell the group goodbye, if there is one."""
        if self.membership is not None:
            await self.membership.leave()

    def assignment_changed(self) -> None:
        """Partitions came or went."""
        if self.auto_commit is not None:
            self.auto_commit.keep(self.subscription.partitions)
        self.positions.wanted.notify()
        self.fetcher.wake.notify()
        self.happened.notify()

    def use_listener(self, listener: RebalanceListener | None) -> None:
        """Have the plugins' listeners and the user's told of rebalances, in this order."""
        self.rendezvous.listeners = [*self._plugin_listeners, *([listener] if listener is not None else [])]

    async def _before_revoke(self, partitions: Sequence[TopicPartition], since: float) -> bool:
        """Whether to go on: not if only this receive was too short for the commit."""
        patience = since + self.config.default_api_timeout
        return await self.auto_commit_now(partitions) or trio.current_time() >= patience

    async def auto_commit_now(self, partitions: Sequence[TopicPartition]) -> bool:
        """Commit what is done of ``partitions``, if auto commit is on, within the receive (or close) that is under way.

        Returns False if only the time ran out.
        """
        if self.auto_commit is None:
            return True
        deadline = self.receiver.deadline if self.leave_deadline is None else self.leave_deadline
        left = max(0.0, deadline - trio.current_time())
        return await self.auto_commit.commit(partitions, timeout=min(left, self.config.default_api_timeout))

    def need_commits(self) -> Commits:
        """The commit manager. Raises :exc:`ConfigurationError` without a group."""
        if self.commits is None:
            raise ConfigurationError("committed offsets belong to a group; open the consumer with a group_id")
        return self.commits

    def thrown_out(self) -> CommitFailedError:
        """The error of a commit after the member was put out."""
        return thrown_out(self.config.group_id or "")

    # Questions to the cluster.

    async def ask(
        self, name: str, attempt: Callable[[Call], Awaitable[T]], timeout: float | None, check_open: Callable[[], None]
    ) -> T:
        """Run one API call under its deadline."""
        check_timeout(timeout, 0.0)
        check_open()
        return await run_call(name, attempt, config=self.config, timeout=timeout, recover=self._recover)

    def look_up(self, wanted: Mapping[TopicPartition, int]) -> Callable[[Call], Awaitable[Found]]:
        """The attempt of a look-up of offsets."""
        todo = {checked_partition(tp): int(what) for tp, what in wanted.items()}
        found: Found = {}

        async def attempt(call: Call) -> Found:
            if not todo:
                await trio.lowlevel.checkpoint()
            return await self.offsets.look_up(call, todo, found)

        return attempt

    async def partitions_of(self, call: Call, topic: str) -> list[PartitionInfo]:
        """The partitions of a topic; empty if it is unknown."""
        info = await call.step(f"look up topic {topic!r}", lambda: self.metadata.topic(topic))
        return [] if info is None else [info.partitions[number] for number in sorted(info.partitions)]

    async def all_topics(self, call: Call) -> dict[str, list[PartitionInfo]]:
        """All topics that are not internal."""
        request = lambda: MetadataRequest(topics=None, allow_auto_topic_creation=False)  # noqa: E731
        answer: Any = await call.step("list the topics", lambda: self.metadata.ask_any(request))
        topics = read_metadata(answer).topics.values()
        return {t.name: list(t.partitions.values()) for t in sorted(topics, key=lambda t: t.name) if not t.internal}

    def _recover(self, error: TrikafkaError) -> None:
        if error.refresh_metadata:
            self.metadata.mark_stale()
        if error.refresh_coordinator and self.config.group_id is not None:
            self.coordinators.forget(self.config.group_id)

    def shut_down(self) -> None:
        """Close the sockets; the tasks end with the service."""
        self.subscription.clear()
        self.brokers.close()
        self.happened.notify()
        self.tell_closed()
