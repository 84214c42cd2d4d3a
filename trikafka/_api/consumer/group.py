"""The group parts of a consumer: commits, auto commit, and the membership with its task."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import trio

from ..._managers.commits.auto_commit import AutoCommit
from ..._managers.commits.commit import commit_failed
from ..._managers.commits.offset_messages import OffsetTopics
from ..._managers.group.membership_events import MembershipEvents
from ..._state.assignors import Assignor
from ..._state.consumer.assignment import Assignment
from ...config import ConsumerConfig
from ...errors import CommitFailedError, ConfigurationError, PluginError
from ...hooks import BUILTIN, check_shape, first_answer
from ...interfaces import CommitManager, MembershipManager, SubscribesWithUserData
from ...types import TopicPartition
from ..client.context import Context
from ..client.plugin_proxy import guarded_assignor
from .core import ConsumerCore

_log = logging.getLogger("trikafka.membership")


class MembershipTask:
    """The task that keeps the consumer in its group.

    It is started again after each leave; at most one runs.
    """

    def __init__(self, membership: MembershipManager, start_soon: Callable[..., None]) -> None:
        self._membership = membership
        self._start_soon = start_soon
        self._scope = trio.CancelScope()
        self._ended: trio.Event | None = None  # set while the task runs

    def start(self) -> None:
        """Start the task, unless it runs."""
        if self._ended is None:
            scope = trio.CancelScope()
            ended = trio.Event()
            self._start_soon(self._run, scope, ended)
            self._scope = scope
            self._ended = ended

    async def _run(self, scope: trio.CancelScope, ended: trio.Event) -> None:
        try:
            with scope:
                await self._membership.run()
        finally:
            self._ended = None
            ended.set()

    async def stop(self) -> None:
        """Stop joining, syncing and heartbeats, without a LeaveGroup.

        Returns once the task has ended.
        """
        self._scope.cancel()
        if self._ended is not None:
            # The task ends at once, but a step that is due already still happens.
            with trio.CancelScope(shield=True):
                await self._ended.wait()


class ConsumerGroup:
    """The consumer's seats that belong to a group.

    Without a ``group_id`` they are empty, and the methods are no-ops.
    """

    def __init__(
        self, config: ConsumerConfig, context: Context[ConsumerConfig], core: ConsumerCore
    ) -> None:
        self._config = config
        self._context = context
        self._core = core
        self.events: MembershipEvents | None = None
        if config.group_id is not None:
            watch = context.observers.caller("membership_changed")
            self.events = MembershipEvents(config.group_id, core.member, watch)
        self.assignors: list[Assignor] = []
        self.commits: CommitManager | None = None
        self.auto_commit: AutoCommit | None = None
        self.membership: MembershipManager | None = None
        self._task: MembershipTask | None = None

    def fill_commits(self) -> None:
        """Let the plugins make the manager of commits."""
        if self._config.group_id is not None:
            self._context.fill("commit")
            self.commits = self._context.manager("commit")

    def fill_membership(self) -> None:
        """Let the plugins make the membership; the last of a consumer's seats."""
        if self.commits is None:
            return
        config = self._config
        context = self._context
        core = self._core
        if config.enable_auto_commit:
            interval = config.auto_commit_interval_ms / 1000
            self.auto_commit = AutoCommit(
                self.commits,
                core.subscription,
                core.assignment,
                core.member,
                core.poll_timer,
                OffsetTopics(context.manager("metadata"), core.assignment),
                interval,
                self._let_topics_go,
            )
        self.assignors = [self._assignor(name) for name in config.partition_assignment_strategy]
        context.fill("heartbeat")
        context.fill("membership")
        self._check_heartbeats()
        self.membership = context.manager("membership")
        self._task = MembershipTask(self.membership, context.start_soon)

    def _let_topics_go(self) -> None:
        """Ask no more for the topics of partitions that ``assign`` took away: all is committed.

        They may be deleted from now on.
        """
        if not self._core.subscription.grouped:
            metadata = self._context.manager("metadata")
            metadata.want({tp.topic for tp in self._core.assignment.partitions})

    def _check_heartbeats(self) -> None:
        """Raise if a plugin's heartbeats would never run.

        With ``group_protocol="auto"`` they select the classic protocol; the log says so.
        """
        plugin = self._context.plugins_in.get("heartbeat")
        protocol = self._config.group_protocol
        if plugin is None or "membership" in self._context.plugins_in:
            return
        if protocol == "consumer":
            raise ConfigurationError(
                f"plugin {plugin} makes the heartbeat manager, which only the classic protocol "
                "has; with group_protocol='consumer' (KIP-848) heartbeats are part of the "
                "membership: use group_protocol='classic', or a plugin for the seat 'membership'"
            )
        if protocol == "auto":
            text = (
                "group %s goes by the classic protocol: plugin %s makes the heartbeat manager, "
                "which only that protocol has"
            )
            _log.info(text, self._config.group_id, plugin)

    def _assignor(self, name: str) -> Assignor:
        offered: tuple[str, Any] | None = first_answer(
            self._context.plugins, "trikafka_assignor", Assignor, name=name
        )
        if offered is None:
            raise ConfigurationError(
                f"partition_assignment_strategy: no plugin offers an assignor named {name!r}; "
                "without plugins there are range, roundrobin, sticky and cooperative-sticky"
            )
        plugin, assignor = offered
        if not isinstance(assignor.name, str) or not assignor.name:
            # The coordinator's choice would never be one that was offered. (The name may differ
            # from that of the setting, which may be the one of a class in Java.)
            raise PluginError(
                f"plugin {plugin}: trikafka_assignor returned for {name!r} an assignor whose name "
                f"is not text: {assignor.name!r}"
            )
        if plugin != BUILTIN:
            if getattr(assignor, "user_data", None) is not None:
                check_shape(f"plugin {plugin}: trikafka_assignor", assignor, SubscribesWithUserData)
            return guarded_assignor(assignor, self._context.slot(plugin, f"assignor {name!r}"))
        built_in: Assignor = assignor
        return built_in

    def start(self) -> None:
        """Start the tasks."""
        if self.auto_commit is not None:
            self._context.start_soon(self.auto_commit.run)
        if self._task is not None:
            self._core.poll_timer.polled(trio.current_time())
            self._task.start()

    def forget_others(self, assignment: Assignment) -> None:
        """Forget auto-commit state of partitions that are no longer assigned."""
        if self.auto_commit is not None:
            self.auto_commit.forget_others(assignment.partitions)

    # --- leaving, and what follows ---

    async def stop(self) -> None:
        """Stop joining, syncing and heartbeats, without a LeaveGroup.

        Returns once nothing of it runs.
        """
        if self._task is not None:
            await self._task.stop()

    async def leave(self, *, closing: bool) -> None:
        """Leave the group; ``closing``: do not join again (KIP-1092)."""
        if self.membership is not None:
            await self.membership.leave(closing=closing)

    def reset(self) -> None:
        """Reset the member: it is out of the group."""
        if self.membership is not None:
            self.membership.reset()

    def go_on(self) -> None:
        """Get ready for the next subscription, after a reset."""
        if self.auto_commit is not None:
            self.auto_commit.hold(False)
        if self._task is not None:
            self._task.start()

    # --- commits ---

    async def auto_commit_now(self, partitions: Sequence[TopicPartition], deadline: float) -> bool:
        """Commit what is processed of ``partitions``, if auto commit is on, until ``deadline``.

        Returns False if only the time ran out.
        """
        if self.auto_commit is None:
            return True
        left = max(0.0, deadline - trio.current_time())
        return await self.auto_commit.commit(
            partitions, timeout=min(left, self._config.default_api_timeout)
        )

    def commit_failed(self) -> CommitFailedError:
        """Return the error of a commit by a member that the group has removed."""
        return commit_failed(self._config.group_id or "")
