"""Auto commit: the commits of processed records.

They happen at an interval, before partitions are revoked, and on leaving.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Container, Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple
from uuid import UUID

import trio

from ..._net.reasons import WaitContext, reasoning
from ..._state.consumer.assignment import Assignment
from ..._state.consumer.subscription import Subscription
from ..._state.group.member import Member
from ...errors import KafkaTimeoutError, PartitionNotOwnedError, TrikafkaError
from ...interfaces import CommitManager
from ...types import OffsetAndMetadata, TopicPartition
from ..group.poll_timer import PollTimer
from .offset_messages import OffsetTopics, Positions

_log = logging.getLogger("trikafka.commit")
#: The name of these calls in errors.
AUTO_COMMIT = "auto commit"


class LeftBehind(NamedTuple):
    """The position to be committed of a partition that ``assign`` took away.

    ``topic_id`` is ``None`` if it is not known. ``begun`` is the number of the last commit that
    began before ``assign``.
    """

    position: OffsetAndMetadata
    topic_id: UUID | None
    begun: int


class AutoCommit:
    """The commits of what is processed; never of what was just delivered.

    One commit at a time is in flight. ``nothing_left`` is called once everything is committed that
    ``assign`` took away.
    """

    def __init__(
        self,
        commits: CommitManager,
        subscription: Subscription,
        assignment: Assignment,
        member: Member,
        poll_timer: PollTimer,
        topics: OffsetTopics,
        interval: float,
        nothing_left: Callable[[], object],
    ) -> None:
        self._commits = commits
        self._subscription = subscription
        self._assignment = assignment
        self._member = member
        self._poll_timer = poll_timer
        self._topics = topics
        self._interval = interval
        self._nothing_left = nothing_left
        self._keeps_topics = False  # until `_nothing_left` is called
        # Counts the commits, including the user's own: they are written in the order in which they
        # began.
        self._begun = 0
        # By partition: the committed offset, if it is known, and the number of its commit.
        self._last: dict[TopicPartition, tuple[int | None, int]] = {}
        # What is due of partitions that ``assign`` took away.
        self._left_behind: dict[TopicPartition, LeftBehind] = {}
        self._tick = trio.CancelScope()
        # The numbers of the commits in progress.
        self._under_way: set[int] = set()
        # True if ``assign`` has taken away something since the last commit at the interval began.
        self._urgent = False
        self._soon = trio.Event()  # set: commit before the interval is over
        self._failures = 0  # in a row; the first one and the end of the row are logged
        self.last_error: TrikafkaError | None = None  # the error of the last commit, if it failed
        # The time since which something has been due and no commit of it has succeeded.
        self.unsettled_since: float | None = None
        self._reason = WaitContext()  # what the commit in progress waits for
        self._held = False

    def due(
        self, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return what is processed and not committed yet."""
        owned = self._assignment.partitions
        chosen = list(owned) if partitions is None else [tp for tp in partitions if tp in owned]
        mine = {
            tp: OffsetAndMetadata(processed, owned[tp].leader_epoch)
            for tp in chosen
            if (processed := owned[tp].processed) is not None
            and self._last.get(tp, (None,))[0] != processed
        }
        # A member commits only what it is assigned. The rest may be with another member, which may
        # be further.
        if self._subscription.grouped:
            return mine
        return {tp: left.position for tp, left in self._left_behind.items()} | mine

    async def commit(
        self, partitions: Iterable[TopicPartition] | None = None, timeout: float | None = None
    ) -> bool:
        """Commit what is due.

        A failure is logged: the records will be delivered again. Returns False if only the time ran
        out.
        """
        due = self.due(partitions)
        # Decided here: the member may join, or be fenced, while the commit is in progress.
        alone = self._subscription.grouped and not self._member.identity.joined
        if alone:
            # Outside the group, others may have committed newer offsets. What `assign` took away
            # before `subscribe` goes out as a commit without a member, which the coordinator
            # accepts only while the group has no members.
            due = {tp: left.position for tp, left in self._left_behind.items()}
        elif self._subscription.grouped:
            self._left_behind = {}
        if not due:
            self._settled()
            return True
        number = self.begin()
        if self.unsettled_since is None:
            self.unsettled_since = trio.current_time()
        try:
            with reasoning(self._reason):
                await self._commits.commit(
                    due, timeout=timeout, name=AUTO_COMMIT, check=self._check_of(due)
                )
        except PartitionNotOwnedError as error:
            _log.debug("auto commit: %s", error)
            self._ended(number)
            # Commit the partitions that are still assigned.
            return await self.commit(partitions, timeout)
        except TrikafkaError as error:
            if alone:
                # Once only: when the group is empty again, its members may have got further.
                self._left_behind = {}
                self.commit_unknown(due, number)
                self._settled()
                _log.warning(
                    "what was processed of partitions that assign() took away is not committed, so "
                    "its records may be seen again: %s",
                    error,
                )
                return not isinstance(error, KafkaTimeoutError)
            self.commit_unknown(due, number)
            self._failures += 1
            self.last_error = error
            _log.log(
                logging.WARNING if self._failures == 1 else logging.DEBUG,
                "auto commit failed, records may be seen again: %s",
                error,
            )
            return not isinstance(error, KafkaTimeoutError)
        except trio.Cancelled:
            self.commit_unknown(due, number)
            raise
        if self._failures:
            _log.info("auto commit works again, after %d that failed", self._failures)
        self._failures = 0
        # What ``assign`` took away during this commit is newer, also where the user has sought back.
        newer = {tp: left for tp, left in self._left_behind.items() if left.position != due.get(tp)}
        self.committed(due, number, newer)
        return True

    def _check_of(self, due: Positions) -> Callable[[], None]:
        """Return a check that raises once a position of ``due`` must not be committed any more.

        Either the group has given the partition to others. It raises also if the partition has
        returned since: the others may be further. Or ``assign`` had taken the partition away, and
        its topic was deleted and created again. That position is forgotten.
        """
        before = (
            {tp: self._assignment.partitions.get(tp) for tp in due}
            if self._subscription.grouped
            else {}
        )

        def check() -> None:
            if gone := [
                tp
                for tp, partition in before.items()
                if self._assignment.partitions.get(tp) is not partition
            ]:
                raise PartitionNotOwnedError(gone)
            recreated = [
                tp
                for tp, left in self._left_behind.items()
                if tp in due and self._topics.recreated(tp, left.topic_id) is not None
            ]
            for tp in recreated:
                del self._left_behind[tp]
            if recreated:
                raise PartitionNotOwnedError(recreated)

        return check

    def begin(self) -> int:
        """Count a commit that begins, by any caller. Returns its number.

        :meth:`committed` or :meth:`commit_unknown` must follow.
        """
        self._begun += 1
        self._under_way.add(self._begun)
        return self._begun

    def committed(
        self,
        positions: Positions,
        number: int,
        newer: Mapping[TopicPartition, LeftBehind] = MappingProxyType({}),
    ) -> None:
        """Record that commit ``number`` has succeeded, so commits are possible again.

        A later one may have succeeded before it. ``newer`` is to be committed nevertheless.
        """
        self.last_error = None
        self._settled()
        for tp, position in positions.items():
            if number > self._last.get(tp, (0, 0))[1]:
                self._last[tp] = position.offset, number
            left = self._left_behind.get(tp)
            if left is not None and (
                number > left.begun or position.offset >= left.position.offset
            ):
                del self._left_behind[tp]
        self._left_behind |= newer
        self._ended(number)

    @property
    def obstacle(self) -> Exception | None:
        """The reason why nothing is committed.

        It is the failure of the last commit, or what the one in progress waits for.
        """
        return self.last_error or self._reason.error()

    def _settled(self) -> None:
        self.unsettled_since = None
        self._reason.clear()

    def commit_unknown(self, positions: Iterable[TopicPartition], number: int) -> None:
        """Record that the outcome of commit ``number`` is unknown: it may have been written."""
        for tp in positions:
            if number > self._last.get(tp, (0, 0))[1]:
                self._last[tp] = None, number
        self._ended(number)

    def _ended(self, number: int) -> None:
        self._under_way.discard(number)
        self._hurry()
        if self._keeps_topics and not self._left_behind:
            self._keeps_topics = False
            self._nothing_left()

    def _hurry(self) -> None:
        """Commit now what ``assign`` took away.

        A commit in progress comes first: it may write a later offset of the same partition.
        """
        if self._urgent and self._left_behind and not self._under_way:
            self._soon.set()

    def hold(self, held: bool = True) -> None:
        """Commit nothing at the interval, because the consumer leaves.

        The leave makes the last commit itself. With ``False`` go on.
        """
        self._held = held
        if held:
            self._tick.cancel()  # a leave has little time

    def forget_others(self, partitions: Container[TopicPartition]) -> None:
        """Forget the commits of partitions other than these."""
        self._last = {tp: last for tp, last in self._last.items() if tp in partitions}

    def carry_over(
        self, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, LeftBehind]:
        """Keep what is due of partitions other than these, and have it committed at once.

        Called before ``assign``. Returns the positions of those partitions that ``assign`` took
        away before and now returns. They are not committed yet, so the group's offsets are older.
        """
        # A program may hand a partition to another consumer of the group by assign(). That consumer
        # reads the group's offset, and commits newer ones. A commit that waited for the interval
        # would come after those, and set the group back. Java's client forgets the position unless
        # the interval is over at the call, so the other consumer gets up to an interval of records
        # again.
        returning = {tp: self._left_behind[tp] for tp in partitions if tp in self._left_behind}
        owned = self._assignment.partitions
        self._left_behind = {
            tp: LeftBehind(position, owned[tp].topic_id, self._begun)
            if tp in owned
            else self._left_behind[tp]
            for tp, position in self.due().items()
            if tp not in partitions
        }
        self._keeps_topics = bool(self._left_behind)
        self._urgent |= any(tp in owned for tp in self._left_behind)
        self._hurry()
        return returning

    @property
    def left_topics(self) -> set[str]:
        """The topics of what ``assign`` took away and no commit has written yet.

        While their ids are known, a commit cannot write to a new topic of the same name.
        """
        return {tp.topic for tp in self._left_behind}

    async def run(self) -> None:
        """Commit at the interval, and at once what ``assign`` took away, until cancelled.

        A commit happens only while the group knows the member, or partitions were assigned by hand.
        """
        while True:
            with trio.move_on_after(self._interval):
                await self._soon.wait()
            self._soon = trio.Event()
            self._urgent = False
            if self._held:
                continue
            # After an event loop that was blocked for a session, this may run before the task that
            # watches the session. The group has removed the member then.
            self._poll_timer.check_session(trio.current_time())
            with trio.CancelScope() as self._tick:
                await self.commit(
                    [partition.tp for partition in self._assignment if partition.owned]
                )
