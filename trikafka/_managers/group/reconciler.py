"""The reconciler: it brings the owned partitions in line with what the group wants.

Both group protocols use it. A membership only speaks its protocol; it reports here what the group
assigned, or that everything is lost. Revocations come before assignments, and the listeners (in the
consuming task) run before either takes effect.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable

from ..._state.consumer.assignment import Assignment
from ...types import TopicPartition
from .listener_invoker import Change, RebalanceListenerInvoker

_log = logging.getLogger("trikafka.membership")
#: How many partitions a line of the log names.
_NAMED = 10


class Reconciler:
    """The steps that revoke, assign and lose partitions, one at a time.

    After a cancelled step, the next one completes what was begun.
    """

    def __init__(
        self, group: str | None, assignment: Assignment, invoker: RebalanceListenerInvoker
    ) -> None:
        # The group is for the log.
        self._group = group
        self._assignment = assignment
        self._invoker = invoker

    @property
    def owned(self) -> list[TopicPartition]:
        """The partitions of this member, including those that are about to be revoked."""
        return list(self._assignment.partitions)

    def to_revoke(self, wanted: Collection[TopicPartition]) -> list[TopicPartition]:
        """Return the owned partitions to revoke if the group wants ``wanted``."""
        return [
            partition.tp
            for partition in self._assignment
            if partition.tp not in wanted or not partition.owned
        ]

    async def revoke(
        self, tps: Iterable[TopicPartition], before_listeners: Callable[[], object] | None = None
    ) -> bool:
        """Revoke these partitions: stop delivering them, run the listeners, release them.

        Returns whether there were any. ``before_listeners`` is called when the last commit is done
        and the listeners are about to run.
        """
        revoked = self._assignment.begin_revocation(tps)
        if revoked:
            await self._invoker.post(
                Change.REVOKED, revoked, before_listeners, lambda: self._assignment.revoked(revoked)
            )
            _log.info("group %s: revoked %s", self._group, _names(revoked))
        return bool(revoked)

    async def assign(self, wanted: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Take what is new in ``wanted``: run the listeners, then begin to fetch.

        Returns the new partitions.
        """
        added = self._assignment.add(wanted)
        waiting = [partition.tp for partition in self._assignment if partition.awaits_callback]
        if waiting and self._invoker.has_listeners:
            await self._invoker.post(Change.ASSIGNED, waiting)
        self._assignment.callback_done(waiting)
        _log.info(
            "group %s: assigned %s%s", self._group, _names(added), "" if added else " that is new"
        )
        return added

    def begin_loss(self) -> list[TopicPartition]:
        """Stop delivering everything, because the group has given it to others, or will.

        Returns the partitions.
        """
        return self._assignment.begin_revocation(lost=True)

    async def lose(self, *, wait: bool = False) -> None:
        """Lose everything owned: run the listeners, then release the partitions.

        With ``wait`` this waits for the next receive even if there is nothing to lose.
        """
        lost = self.begin_loss()
        if lost or wait:
            await self._invoker.post(Change.LOST, lost, then=lambda: self._assignment.lost(lost))
        if lost:
            _log.info("group %s: lost %s", self._group, _names(lost))


def _names(tps: Collection[TopicPartition]) -> str:
    """Return a few names, for a log line."""
    shown = [str(tp) for tp in sorted(tps)[:_NAMED]]
    more = f" and {len(tps) - _NAMED} more" if len(tps) > _NAMED else ""
    return ", ".join(shown) + more if shown else "nothing"
