"""The reconciler: brings what is owned to what the group wants, listeners included. It stands beside both group protocols.

A membership only speaks its protocol; it says here what the group assigned, or that everything is lost. Revoke comes before
assign, and the listeners (in the consuming task) before both take effect.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable

from .._state.assignment import Assignment
from ..types import TopicPartition
from .listener_invoker import Change, RebalanceListenerInvoker

_log = logging.getLogger("trikafka.membership")
#: How many partitions a line of the log names.
_NAMED = 10


class Reconciler:
    """Revokes, assigns and loses partitions, one step at a time. Cancelled: what was begun is made good by the next step."""

    def __init__(self, group: str | None, assignment: Assignment, invoker: RebalanceListenerInvoker) -> None:
        self._group, self._assignment, self._invoker = group, assignment, invoker  # the group for the log

    @property
    def owned(self) -> list[TopicPartition]:
        """What is this member's, what is about to be given up included."""
        return list(self._assignment.partitions)

    def to_revoke(self, wanted: Collection[TopicPartition]) -> list[TopicPartition]:
        """What is owned, and to be given up if ``wanted`` is what the group wants."""
        return [partition.tp for partition in self._assignment if partition.tp not in wanted or not partition.owned]

    async def revoke(self, tps: Iterable[TopicPartition], telling: Callable[[], object] | None = None) -> bool:
        """Give up these: deliver nothing more of them, run the listeners, let go. Returns whether there were any.

        ``telling`` is called when the last commit is through and the listeners are about to run.
        """
        revoked = self._assignment.begin_revocation(tps)
        if revoked:
            await self._invoker.post(Change.REVOKED, revoked, telling, lambda: self._assignment.revoked(revoked))
            _log.info("group %s: revoked %s", self._group, _names(revoked))
        return bool(revoked)

    async def assign(self, wanted: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Take what is new in ``wanted``: run the listeners, then begin to fetch. Returns that."""
        added = self._assignment.add(wanted)
        waiting = [partition.tp for partition in self._assignment if partition.awaits_callback]
        if waiting and self._invoker.has_listeners:
            await self._invoker.post(Change.ASSIGNED, waiting)
        self._assignment.callback_done(waiting)
        _log.info("group %s: assigned %s%s", self._group, _names(added), "" if added else " that is new")
        return added

    def begin_loss(self) -> list[TopicPartition]:
        """Deliver nothing more of anything: the group has given it to others, or will. Returns what that is."""
        return self._assignment.begin_revocation(lost=True)

    async def lose(self, *, wait: bool = False) -> None:
        """Everything owned is lost: tell the listeners, let go. ``wait``: also with nothing to lose, until the next receive."""
        lost = self.begin_loss()
        if lost or wait:
            await self._invoker.post(Change.LOST, lost, then=lambda: self._assignment.lost(lost))
        if lost:
            _log.info("group %s: lost %s", self._group, _names(lost))


def _names(tps: Collection[TopicPartition]) -> str:
    """A few names, for a line of the log."""
    shown = [str(tp) for tp in sorted(tps)[:_NAMED]]
    more = f" and {len(tps) - _NAMED} more" if len(tps) > _NAMED else ""
    return ", ".join(shown) + more if shown else "nothing"
