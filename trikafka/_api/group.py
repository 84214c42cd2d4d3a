"""What a consumer has for its group: the commits, the auto commit, and the membership with the task that it lives in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import trio

from .._managers.auto_commit import AutoCommit
from .._managers.commit import commit_failed
from .._managers.membership_events import MembershipEvents
from .._state.assignment import Assignment
from .._state.assignors import Assignor
from ..config import ConsumerConfig
from ..errors import CommitFailedError, ConfigurationError
from ..hooks import BUILTIN, first_answer
from ..interfaces import CommitManager, MembershipManager
from ..types import TopicPartition
from .consumer_core import ConsumerCore
from .context import Context
from .guard import guarded_assignor


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


class GroupParts:
    """A consumer's seats that belong to a group. Without a ``group_id`` they stay empty, and no method does anything."""

    def __init__(self, config: ConsumerConfig, context: Context[ConsumerConfig], core: ConsumerCore) -> None:
        self._config, self._context, self._core = config, context, core
        self.events: MembershipEvents | None = None
        if config.group_id is not None:
            observers = context.observers
            tell = partial(observers.tell, "membership_changed") if observers.has("membership_changed") else None
            self.events = MembershipEvents(config.group_id, core.member, tell)
        self.assignors: list[Assignor] = []
        self.commits: CommitManager | None = None
        self.auto_commit: AutoCommit | None = None
        self.membership: MembershipManager | None = None
        self._task: MembershipTask | None = None

    def fill_commits(self) -> None:
        """Have the plugins make the manager of commits."""
        if self._config.group_id is not None:
            self._context.fill("commit")
            self.commits = self._context.manager("commit")

    def fill_membership(self) -> None:
        """Have the plugins make what keeps the consumer in its group. The last of a consumer's seats."""
        if self.commits is None:
            return
        config, context, core = self._config, self._context, self._core
        if config.enable_auto_commit:
            interval = config.auto_commit_interval_ms / 1000
            self.auto_commit = AutoCommit(self.commits, core.subscription, core.assignment, core.member, core.poll_timer, interval)
        self.assignors = [self._assignor(name) for name in config.partition_assignment_strategy]
        context.fill("heartbeat")
        context.fill("membership")
        self.membership = context.manager("membership")
        self._task = MembershipTask(self.membership, context.start_soon)

    def _assignor(self, name: str) -> Assignor:
        offered: tuple[str, Any] | None = first_answer(self._context.plugins, "trikafka_assignor", Assignor, name=name)
        if offered is None:
            raise ConfigurationError(f"partition_assignment_strategy: no plugin offers an assignor named {name!r}")
        plugin, assignor = offered
        if plugin != BUILTIN:
            return guarded_assignor(assignor, self._context.seat(plugin, f"assignor {name!r}"))
        built_in: Assignor = assignor
        return built_in

    def start(self) -> None:
        """Start the tasks."""
        if self.auto_commit is not None:
            self._context.start_soon(self.auto_commit.run)
        if self._task is not None:
            self._core.poll_timer.polled(trio.current_time())
            self._task.start()

    def keep(self, assignment: Assignment) -> None:
        """Partitions came or went."""
        if self.auto_commit is not None:
            self.auto_commit.keep(assignment.partitions)

    # Leaving, and what comes after it.

    async def stop(self) -> None:
        """Stop joining, syncing and heartbeating; the group is not told. Once this returns, nothing of it runs any more."""
        if self._task is not None:
            await self._task.stop()

    async def leave(self, *, closing: bool) -> None:
        """Tell the group that the member leaves; ``closing``: for good (KIP-1092)."""
        if self.membership is not None:
            await self.membership.leave(closing=closing)

    def reset(self) -> None:
        """The member is out of the group."""
        if self.membership is not None:
            self.membership.reset()

    def go_on(self) -> None:
        """After a reset: ready for the next subscription."""
        if self.auto_commit is not None:
            self.auto_commit.hold(False)
        if self._task is not None:
            self._task.start()

    # Commits.

    async def auto_commit_now(self, partitions: Sequence[TopicPartition], deadline: float) -> bool:
        """Commit what is processed of ``partitions``, if auto commit is on, until ``deadline``.

        Returns False if only the time ran out.
        """
        if self.auto_commit is None:
            return True
        left = max(0.0, deadline - trio.current_time())
        return await self.auto_commit.commit(partitions, timeout=min(left, self._config.default_api_timeout))

    def need_commits(self) -> CommitManager:
        """The commit manager. Raises :exc:`ConfigurationError` without a group."""
        if self.commits is None:
            raise ConfigurationError("committed offsets belong to a group; open the consumer with a group_id")
        return self.commits

    def commit_failed(self) -> CommitFailedError:
        """The error of a commit by a member that is out of the group."""
        return commit_failed(self._config.group_id or "")
