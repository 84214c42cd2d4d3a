"""How a consumer is put together: its managers, the signals between them, and the tasks that it lives as."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar
from uuid import UUID

import trio
from kafka.protocol.metadata import MetadataRequest

from .._managers.auto_commit import AutoCommit
from .._managers.commit import commit_failed
from .._managers.listener_invoker import RebalanceListenerInvoker
from .._managers.membership_events import MembershipEvents
from .._managers.metadata import read_metadata
from .._managers.reconciler import Reconciler
from .._managers.telemetry import Telemetry
from .._net.deadlines import Call, check_timeout, run_call
from .._state.arguments import checked_partition
from .._state.assignment import Assignment
from .._state.assignors import Assignor
from ..config import ConsumerConfig
from ..errors import CommitFailedError, ConfigurationError, ErrorCode, TrikafkaError, from_code
from ..hooks import BUILTIN, answers, first_answer
from ..interfaces import CommitManager, Found, MembershipManager, RebalanceListener
from ..types import PartitionInfo, TopicPartition
from .consumer_core import ConsumerCore
from .context import Context
from .guard import GuardedListener, guarded_assignor
from .receiving import Readers
from .service import Service
from .streams import Streams
from .watchdog import Watchdog

T = TypeVar("T")


class MembershipTask:
    """The task that keeps the consumer in its group: started again after each leave, once at a time."""

    def __init__(self, membership: MembershipManager, start_soon: Callable[..., None]) -> None:
        self._membership, self._start_soon = membership, start_soon
        self._scope = trio.CancelScope()
        self._ended: trio.Event | None = None  # while it runs

    def start(self) -> None:
        """Start it, unless it runs."""
        if self._ended is None:
            scope, ended = trio.CancelScope(), trio.Event()
            self._start_soon(self._run, scope, ended)
            self._scope, self._ended = scope, ended

    async def _run(self, scope: trio.CancelScope, ended: trio.Event) -> None:
        try:
            with scope:
                await self._membership.run()
        finally:
            self._ended = None
            ended.set()

    async def stop(self) -> None:
        """Stop joining, syncing and heartbeating; the group is not told. Once this returns, nothing of it runs any more."""
        self._scope.cancel()
        if self._ended is not None:
            with trio.CancelScope(shield=True):  # it ends at once, but a step that is due already is still made
                await self._ended.wait()


class ConsumerParts(Context[ConsumerConfig]):
    """The parts of one consumer. The consumer calls them directly; nothing here outlives its ``async with``."""

    def __init__(self, config: ConsumerConfig, service: Service) -> None:
        super().__init__(config, service)
        self.core = ConsumerCore(config)
        self.invoker = RebalanceListenerInvoker(self.before_revoke, self.core.news, lambda: self.core.poll_timer.limit)
        self.reconciler = Reconciler(config.group_id, self.core.assignment, self.invoker)
        self.readers = Readers(config, self.core.buffer)
        self.streams = Streams(config, self.core, self.readers, self.invoker)
        self.membership_events: MembershipEvents | None = None
        if config.group_id is not None:
            tell = partial(self.observers.tell, "membership_changed") if self.observers.has("membership_changed") else None
            self.membership_events = MembershipEvents(config.group_id, self.core.member, tell)
        for kind in ("metadata", "coordinator", "offsets"):
            self.fill(kind)
        self.metadata = self.manager("metadata")
        self.coordinators = self.manager("coordinator")
        self.offsets = self.manager("offsets")
        self.telemetry = Telemetry(config, self.metadata)
        self.commits: CommitManager | None = None
        self.auto_commit: AutoCommit | None = None
        self.membership: MembershipManager | None = None
        self._membership_task: MembershipTask | None = None
        if config.group_id is not None:
            self.fill("commit")
            self.commits = self.manager("commit")
        self.fill("positions")
        self.positions = self.manager("positions")
        self.fill("fetch")
        if config.group_id is not None:
            self._fill_group_seats()
        self.watchdog = Watchdog(
            self.core,
            self.brokers.outages,
            self.metadata,
            self.positions,
            self.manager("fetch"),
            config.stall_warning_ms / 1000,
            fetched_by=self.plugins_in.get("fetch"),
        )
        self.core.on_assigned(self._assigned)
        offered = answers(self.plugins, "trikafka_rebalance_listener", RebalanceListener, context=self)
        self._plugin_listeners = [GuardedListener(listener, self.seat(plugin, "listener")) for plugin, listener in offered]
        self.use_listener(None)

    def _fill_group_seats(self) -> None:
        assert self.commits is not None
        if self.config.enable_auto_commit:
            core, interval = self.core, self.config.auto_commit_interval_ms / 1000
            self.auto_commit = AutoCommit(self.commits, core.subscription, core.assignment, core.member, core.poll_timer, interval)
        self.assignors = [self._assignor(name) for name in self.config.partition_assignment_strategy]
        self.fill("heartbeat")
        self.fill("membership")
        self.membership = self.manager("membership")
        self._membership_task = MembershipTask(self.membership, self.start_soon)

    def _assignor(self, name: str) -> Assignor:
        offered = first_answer(self.plugins, "trikafka_assignor", Assignor, name=name)
        if offered is None:
            raise ConfigurationError(f"partition_assignment_strategy: no plugin offers an assignor named {name!r}")
        plugin, assignor = offered
        return assignor if plugin == BUILTIN else guarded_assignor(assignor, self.seat(plugin, f"assignor {name!r}"))

    async def start(self) -> None:
        """Make the first contact and start the tasks."""
        await self.metadata.bootstrap()
        start_soon = self.start_soon
        start_soon(self.metadata.run)
        start_soon(self.positions.run)
        start_soon(self.manager("fetch").run)
        start_soon(self.watchdog.run)
        if self.auto_commit is not None:
            start_soon(self.auto_commit.run)
        if self._membership_task is not None:
            self.core.poll_timer.polled(trio.current_time())
            self._membership_task.start()
        if self.config.memory_budget is not None:
            self.config.memory_budget._join()
        self.tell_opened()

    def _assigned(self, assignment: Assignment) -> None:
        """Partitions came or went."""
        if self.auto_commit is not None:
            self.auto_commit.keep(assignment.partitions)
        self.readers.keep(assignment)

    # The group.

    async def stop_membership(self) -> None:
        """Stop joining, syncing and heartbeating; the group is not told. Once this returns, nothing of it runs any more."""
        if self._membership_task is not None:
            await self._membership_task.stop()

    def start_over(self) -> None:
        """After unsubscribing, however that ended: no subscription, out of the group, ready for the next."""
        if self.membership is not None:
            self.membership.reset()
        self.invoker.forget()
        self.core.subscription.clear()
        if self.auto_commit is not None:
            self.auto_commit.hold(False)
        if self._membership_task is not None:
            self._membership_task.start()

    async def leave_group(self, *, closing: bool) -> None:
        """Leave the group, if there is one; ``closing``: for good (KIP-1092)."""
        if self.membership is not None:
            await self.membership.leave(closing=closing)

    def use_listener(self, listener: RebalanceListener | None) -> None:
        """Have the plugins' listeners and the user's told of rebalances, in this order."""
        self.invoker.use([*self._plugin_listeners, *([listener] if listener is not None else [])])

    async def before_revoke(self, partitions: Sequence[TopicPartition], since: float, deadline: float) -> bool:
        """Wait for what streams hold, and commit. Returns whether to go on: not if only this receive was too short for that."""
        deadline = min(deadline, since + self.core.poll_timer.limit)
        await self.streams.drained(partitions, since + (deadline - since) / 2)  # the other half is for the commit and the listeners
        patience = since + min(self.config.default_api_timeout, self.core.poll_timer.limit)
        return await self.auto_commit_now(partitions, deadline) or trio.current_time() >= patience

    async def auto_commit_now(self, partitions: Sequence[TopicPartition], deadline: float) -> bool:
        """Commit what is processed of ``partitions``, if auto commit is on, until ``deadline``.

        Returns False if only the time ran out.
        """
        if self.auto_commit is None:
            return True
        left = max(0.0, deadline - trio.current_time())
        return await self.auto_commit.commit(partitions, timeout=min(left, self.config.default_api_timeout))

    def need_commits(self) -> CommitManager:
        """The commit manager. Raises :exc:`ConfigurationError` without a group."""
        if self.commits is None:
            raise ConfigurationError("committed offsets belong to a group; open the consumer with a group_id")
        return self.commits

    def commit_failed(self) -> CommitFailedError:
        """The error of a commit by a member that is out of the group."""
        return commit_failed(self.config.group_id or "")

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

    async def ids_of(self, call: Call, topics: list[str]) -> dict[str, UUID | None]:
        """The ids of those topics that exist, asked for anew."""
        snapshot = await call.step(f"look up the ids of {', '.join(topics)}", lambda: self.metadata.refresh(topics))
        found = {name: info for name in topics if (info := snapshot.topics.get(name)) is not None}
        ids: dict[str, UUID | None] = {}
        for name, info in found.items():
            if info.error_code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                if info.error_code:
                    raise from_code(info.error_code, f"topic {name!r}", operation="Describe")
                topic_id = None if info.topic_id is None else UUID(info.topic_id)
                ids[name] = topic_id if topic_id is not None and topic_id.int else None
        return ids

    async def all_topics(self, call: Call) -> dict[str, list[PartitionInfo]]:
        """All topics that are not internal."""
        request = lambda: MetadataRequest(topics=None, allow_auto_topic_creation=False)  # noqa: E731
        response: Any = await call.step("list the topics", lambda: self.metadata.ask_any(request))
        topics = (await read_metadata(response)).topics.values()
        return {t.name: list(t.partitions.values()) for t in sorted(topics, key=lambda t: t.name) if not t.internal}

    def _recover(self, error: TrikafkaError) -> None:
        if error.refresh_metadata:
            self.metadata.request_update()
        if error.refresh_coordinator and self.config.group_id is not None:
            self.coordinators.mark_unknown(self.config.group_id)

    def shut_down(self) -> None:
        """Close the sockets; the tasks end with the service."""
        self.core.subscription.clear()
        if self.config.memory_budget is not None:
            self.config.memory_budget._leave()
        self.brokers.close()
        self.tell_closed()
