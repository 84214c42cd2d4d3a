"""The steps of a member of the consumer protocol (KIP-848) towards its target assignment.

The :class:`Reconciler` runs the listeners and changes the assignment; this module knows the topics'
ids and the target. A new target may arrive while a listener runs, so each step is decided when it
begins.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable

import trio

from ..._net.gather import with_background
from ..._net.retry import Retry
from ..._state.consumer.subscription import Mode
from ..._state.group.member import MemberState
from ..._state.group.target_assignment import Part, Report, Step, TargetAssignment
from ...errors import TrikafkaError
from ...interfaces import ClusterSnapshot
from ..cluster.topic_ids import TopicIds
from .membership_base import MembershipDependencies

_log = logging.getLogger("trikafka.membership")
#: After this many look-ups in a row that did not find all names, the coordinator is asked for the
#: assignment again.
_PATIENCE = 8


class WakeFlag:
    """A flag for one task that there is something to do.

    A call of :meth:`set` while that task is busy is not lost.
    """

    def __init__(self) -> None:
        self._event = trio.Event()

    def set(self) -> None:
        """Set the flag."""
        self._event.set()

    def clear(self) -> None:
        """Clear the flag: everything up to now is about to be done."""
        if self._event.is_set():
            self._event = trio.Event()

    async def wait(self, deadline: float = math.inf) -> None:
        """Wait until the flag is set, or for the deadline."""
        with trio.CancelScope(deadline=deadline):
            await self._event.wait()


class TargetReconciler:
    """The follower of the target assignment.

    ``send_report`` is called when there is something to report to the coordinator, and
    ``request_assignment`` when the assignment cannot be followed and the coordinator has to repeat
    it.
    """

    def __init__(
        self,
        dependencies: MembershipDependencies,
        topic_ids: TopicIds,
        send_report: Callable[[], None],
        request_assignment: Callable[[], None],
    ) -> None:
        self._config = dependencies.config
        self._member = dependencies.member
        self._subscription = dependencies.subscription
        self._group = dependencies.config.group_id  # for the log
        self._reconciler = dependencies.reconciler
        self._topics = dependencies.topics
        self._topic_ids = topic_ids
        self._send_report = send_report
        self._request_assignment = request_assignment
        self._target = TargetAssignment()
        self._wake_flag = WakeFlag()
        self._names_missing = WakeFlag()
        self._left_out: set[str] = set()  # internal topics that a pattern matches, already logged

    @property
    def reached(self) -> bool:
        """True if the member owns what the coordinator wants."""
        return self._target.reached

    @property
    def empty(self) -> bool:
        """True if the coordinator wants the member to own nothing."""
        return not self._target.parts

    @property
    def report(self) -> Report:
        """The owned partitions, as the next heartbeat reports them."""
        return self._target.report

    def start_over(self) -> None:
        """Forget the target: the member joins, and owns nothing."""
        self._target = TargetAssignment()

    def set_target(self, parts: Iterable[Part]) -> None:
        """Follow a new target from the coordinator."""
        self._target.aim(parts)
        self.wake()

    def wake(self) -> None:
        """Let the task decide the next step: the target, subscription or cluster has changed."""
        self._wake_flag.set()

    async def follow_target(self, seen: ClusterSnapshot) -> None:
        """Follow the target until cancelled.

        ``seen`` is the snapshot with which a pattern was last matched.
        """

        async def watch() -> None:
            nonlocal seen
            while True:
                seen = await self._topics.changed(seen)
                if self._topics.match():
                    self._send_report()
                self.wake()

        await with_background([watch, self._find_names], self._follow)

    async def _follow(self) -> None:
        while True:
            await self._wake_flag.wait()
            self._wake_flag.clear()
            # Revocations come first, and are acknowledged at once (`_send_report`): other members
            # may take over these partitions only after that acknowledgement, and must not wait
            # until this member's own new partitions have their names looked up and their listeners
            # run. The step is decided again after each wait, because the target may have changed
            # while a listener ran.
            while (step := self._step()).revoke:
                self._member.to(MemberState.RECONCILING)
                await self._reconciler.revoke(step.revoke)
                self._target.revoked(step.revoke)
                self._send_report()  # at once, because other members wait for these partitions
            if step.added or not (step.unnamed or self._target.reached):
                await self._assign(step)

    def _step(self) -> Step:
        going = self._reconciler.to_revoke(set(self._reconciler.owned))
        step = self._target.step(self._topic_ids.known(), self._follows, going)
        self._topics.add({tp.topic for tp in step.wanted})
        if step.unnamed:
            self._names_missing.set()
        return step

    def _follows(self, topic: str) -> bool:
        """Return whether the member should own partitions of ``topic``.

        The broker matches a pattern with all topics, internal ones included, and RE2 cannot express
        "but not these". So the topics that ``exclude_internal_topics`` excludes are left out here.
        On the broker's side such partitions stay with this member, which neither owns nor fetches
        them.
        """
        if not self._subscription.follows(topic):
            return False
        by_broker = self._subscription.mode is Mode.BROKER_PATTERN
        if not (
            by_broker
            and self._config.exclude_internal_topics
            and self._topic_ids.is_internal(topic)
        ):
            return True
        if topic not in self._left_out:
            self._left_out.add(topic)
            _log.info(
                "the pattern matches %s, an internal topic, which exclude_internal_topics leaves "
                "out",
                topic,
            )
        return False

    async def _assign(self, step: Step) -> None:
        self._member.to(MemberState.RECONCILING)
        await self._reconciler.assign(step.wanted)
        self._target.took(step)
        self._member.to(MemberState.ACKNOWLEDGING)
        self._send_report()

    async def _find_names(self) -> None:
        """Look up topics that have no name yet, until they have one."""
        retry = Retry(self._config)
        while True:
            await self._names_missing.wait()
            self._names_missing.clear()
            ids = self._target.step(self._topic_ids.known(), self._follows).unnamed
            try:
                names = await self._topic_ids.look_up(ids) if ids else {}
            except TrikafkaError as error:
                _log.debug("the names of topics could not be looked up: %s", error)
                names = {}
            if names:
                self._target.name(names)
                self.wake()
            if len(names) == len(ids):
                retry.reset()
            else:
                await retry.wait()
                if retry.failures % _PATIENCE == 0:
                    # No broker knows these ids. The topics may be gone by now, or a damaged
                    # response has named them.
                    left = ", ".join(map(str, sorted(ids - names.keys())))
                    if retry.failures == _PATIENCE:
                        text = (
                            "group %s: no broker knows the assigned topics %s; asking for the "
                            "assignment again"
                        )
                        _log.warning(text, self._group, left)
                    self._request_assignment()
                self._names_missing.set()
