"""Auto commit: what is processed is committed at an interval, before partitions go, and on leaving."""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Iterable

import trio

from .._state.assignment import Assignment
from .._state.member import Member
from .._state.subscription import Subscription
from ..errors import KafkaTimeoutError, PartitionNotOwnedError, TrikafkaError
from ..interfaces import CommitManager
from ..types import OffsetAndMetadata, TopicPartition
from .offset_messages import Positions
from .poll_timer import PollTimer

_log = logging.getLogger("trikafka.commit")


class AutoCommit:
    """Commits, at an interval, what is processed; never what was just delivered. One commit at a time is in flight."""

    def __init__(
        self,
        commits: CommitManager,
        subscription: Subscription,
        assignment: Assignment,
        member: Member,
        poll_timer: PollTimer,
        interval: float,
    ) -> None:
        self._commits, self._subscription, self._assignment = commits, subscription, assignment
        self._member, self._poll_timer, self._interval = member, poll_timer, interval
        self._begun = 0  # commits, the user's own included: they are written in the order in which they began
        self._last: dict[TopicPartition, tuple[int | None, int]] = {}  # the offset, if that is known, and by which of them
        self._left_behind: dict[TopicPartition, OffsetAndMetadata] = {}  # of partitions that ``assign`` took away
        self._tick = trio.CancelScope()
        self._failures = 0  # in a row: the first is told, and that they ended
        self.last_error: TrikafkaError | None = None  # of the last one, if that failed
        self._held = False

    def due(self, partitions: Iterable[TopicPartition] | None = None) -> dict[TopicPartition, OffsetAndMetadata]:
        """What is processed and not committed yet."""
        owned = self._assignment.partitions
        chosen = list(owned) if partitions is None else [tp for tp in partitions if tp in owned]
        mine = {
            tp: OffsetAndMetadata(processed, owned[tp].progress.leader_epoch)
            for tp in chosen
            if (processed := owned[tp].processed) is not None and self._last.get(tp, (None,))[0] != processed
        }
        # As a member it commits what it was assigned: the rest may be with another, who is further.
        return mine if self._subscription.grouped else self._left_behind | mine

    async def commit(self, partitions: Iterable[TopicPartition] | None = None, timeout: float | None = None) -> bool:
        """Commit what is due. A failure is logged: the records will be seen again. Returns False if only the time ran out."""
        due = self.due(partitions)
        if self._subscription.grouped:
            self._left_behind = {}
        if not due or (self._subscription.grouped and not self._member.identity.joined):
            return True  # outside the group there may be newer commits of others
        number = self.begin()
        try:
            await self._commits.commit(due, timeout=timeout, name="auto commit", check=self._check_of(due))
        except PartitionNotOwnedError as error:
            _log.debug("auto commit: %s", error)
            return await self.commit(partitions, timeout)  # of those that are there still
        except TrikafkaError as error:
            self.doubtful(due, number)
            self._failures, self.last_error = self._failures + 1, error
            _log.log(
                logging.WARNING if self._failures == 1 else logging.DEBUG,
                "auto commit failed, records may be seen again: %s",
                error,
            )
            return not isinstance(error, KafkaTimeoutError)
        except trio.Cancelled:
            self.doubtful(due, number)
            raise
        if self._failures:
            _log.info("auto commit works again, after %d that failed", self._failures)
        self._failures = 0
        self.committed(due, number)
        return True

    def _check_of(self, due: Positions) -> Callable[[], None]:
        """Raises once one of a group's partitions has been given to others, though it may have come back: they may be further."""
        before = {tp: self._assignment.partitions.get(tp) for tp in due} if self._subscription.grouped else {}

        def check() -> None:
            if gone := [tp for tp, partition in before.items() if self._assignment.partitions.get(tp) is not partition]:
                raise PartitionNotOwnedError(gone)

        return check

    def begin(self) -> int:
        """A commit begins, by whomever. Returns its number."""
        self._begun += 1
        return self._begun

    def committed(self, positions: Positions, number: int) -> None:
        """The commit of that number has succeeded: so commits are possible again. A later one may have done so before it."""
        self.last_error = None
        for tp, position in positions.items():
            if number > self._last.get(tp, (0, 0))[1]:
                self._last[tp] = position.offset, number
            self._left_behind.pop(tp, None)

    def doubtful(self, positions: Iterable[TopicPartition], number: int) -> None:
        """The commit of that number has not succeeded, yet what it holds may have been written: nobody knows what is committed."""
        for tp in positions:
            if number > self._last.get(tp, (0, 0))[1]:
                self._last[tp] = None, number

    def hold(self, held: bool = True) -> None:
        """Commit nothing at the interval: the consumer leaves, and commits last itself. ``False``: go on."""
        self._held = held
        if held:
            self._tick.cancel()  # the time of leaving is short

    def keep(self, partitions: Container[TopicPartition]) -> None:
        """Other partitions than these are not ours any more."""
        self._last = {tp: last for tp, last in self._last.items() if tp in partitions}

    def leave_behind(self, partitions: Container[TopicPartition]) -> None:
        """Before ``assign``: what is due of other partitions than these is committed with the next commit."""
        self._left_behind = {tp: position for tp, position in self.due().items() if tp not in partitions}

    async def run(self) -> None:
        """Commit at the interval while the group knows the member (or partitions were assigned by hand)."""
        while True:
            await trio.sleep(self._interval)
            if self._held:
                continue
            # After a loop that was blocked for a session this may run before the task that watches it: the member is out.
            self._poll_timer.check_session(trio.current_time())
            with trio.CancelScope() as self._tick:
                await self.commit([partition.tp for partition in self._assignment if partition.owned])
