"""Brings a member of the consumer protocol (KIP-848) to the assignment that its coordinator wants, one step at a time.

Beside the :class:`Reconciler`, which runs the listeners and changes the assignment, this knows the topics' ids and the target. A
new target may come while a listener runs: each step is decided anew.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable

import trio

from .._net.gather import with_background
from .._net.retry import Retry
from .._state.cluster import ClusterSnapshot
from .._state.member import MemberState
from .._state.target_assignment import Part, Report, Step, TargetAssignment
from ..errors import TrikafkaError
from .membership_base import GroupParts
from .topic_ids import TopicIds

_log = logging.getLogger("trikafka.membership")


class News:
    """Something to do, for the one task that does it: what is told while that task is busy waits for it."""

    def __init__(self) -> None:
        self._told = trio.Event()

    def tell(self) -> None:
        """There is something to do."""
        self._told.set()

    def take(self) -> None:
        """All that was told until now is about to be done."""
        if self._told.is_set():
            self._told = trio.Event()

    async def wait(self, deadline: float = math.inf) -> None:
        """Wait until there is something to do, or for the deadline."""
        with trio.CancelScope(deadline=deadline):
            await self._told.wait()


class TargetReconciler:
    """Follows the target assignment. ``say``: the coordinator has something to hear."""

    def __init__(self, parts: GroupParts, topic_ids: TopicIds, say: Callable[[], None]) -> None:
        self._config, self._member, self._subscription = parts.config, parts.member, parts.subscription
        self._reconciler, self._topics, self._topic_ids = parts.reconciler, parts.topics, topic_ids
        self._say = say
        self._target = TargetAssignment()
        self._news, self._nameless = News(), News()

    @property
    def reached(self) -> bool:
        """Whether the member owns what the coordinator wants."""
        return self._target.reached

    @property
    def empty(self) -> bool:
        """Whether the coordinator wants the member to own nothing."""
        return not self._target.parts

    @property
    def report(self) -> Report:
        """What the coordinator is to hear."""
        return self._target.report

    def start_over(self) -> None:
        """The member joins, and owns nothing."""
        self._target = TargetAssignment()

    def aim(self, parts: Iterable[Part]) -> None:
        """The coordinator wants the member to own these."""
        self._target.aim(parts)
        self.look()

    def look(self) -> None:
        """Something changed, of the target, the subscription or the cluster: see what is to be done."""
        self._news.tell()

    async def run(self, seen: ClusterSnapshot) -> None:
        """Follow the target until cancelled. ``seen`` is the snapshot that a pattern was last matched with."""

        async def watch() -> None:
            nonlocal seen
            while True:
                seen = await self._topics.changed(seen)
                if self._topics.match():
                    self._say()
                self.look()

        await with_background([watch, self._find_names], self._follow)

    async def _follow(self) -> None:
        while True:
            await self._news.wait()
            self._news.take()
            while (step := self._step()).revoke:
                self._member.to(MemberState.RECONCILING)
                await self._reconciler.revoke(step.revoke)
                self._target.gave_up(step.revoke)
                self._say()  # others wait for them, whatever is still to be done here
            if step.added or not (step.unnamed or self._target.reached):
                await self._assign(step)

    def _step(self) -> Step:
        going = self._reconciler.to_revoke(self._reconciler.owned)
        step = self._target.step(self._topic_ids.known(), self._subscription.follows, going)
        self._topics.add({tp.topic for tp in step.wanted})
        if step.unnamed:
            self._nameless.tell()
        return step

    async def _assign(self, step: Step) -> None:
        self._member.to(MemberState.RECONCILING)
        await self._reconciler.assign(step.wanted)
        self._target.took(step)
        self._member.to(MemberState.ACKNOWLEDGING)
        self._say()

    async def _find_names(self) -> None:
        """Look up topics that have no name yet, until they have one."""
        retry = Retry(self._config)
        while True:
            await self._nameless.wait()
            self._nameless.take()
            ids = self._target.step(self._topic_ids.known(), self._subscription.follows).unnamed
            try:
                names = await self._topic_ids.look_up(ids) if ids else {}
            except TrikafkaError as error:
                _log.debug("the names of topics could not be looked up: %s", error)
                names = {}
            if names:
                self._target.name(names)
                self.look()
            if len(names) == len(ids):
                retry.reset()
            else:
                await retry.wait()
                self._nameless.tell()
