"""The commit manager: committed offsets of a group, written and read at its coordinator.

Commits of one consumer reach the coordinator one at a time, in the order in which they were asked for. One that has to be tried
again does not overwrite a later one: what both are about is the later one's to write.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from types import MappingProxyType
from uuid import UUID

import trio

from .._net import reasons
from .._net.brokers import Brokers
from .._net.deadlines import Call as RunningCall
from .._net.deadlines import run_call
from .._state.member import Identity
from ..config import ClientConfig
from ..error_codes import ErrorCode
from ..errors import (
    BrokerResponseError,
    CommitFailedError,
    DamagedResponseError,
    KafkaConnectionError,
    KafkaTimeoutError,
    MemberFencedError,
    RebalanceInProgressError,
    RequestTimedOutError,
    TrikafkaError,
    UnknownTopicOrPartitionError,
    from_code,
)
from ..interfaces import Call, CoordinatorManager
from ..types import Node, OffsetAndMetadata, TopicPartition
from .offset_messages import Positions, commit_request, fetch_request, read_commit_response, read_fetch_response
from .offset_topics import OffsetTopics


class _Commit:
    """One commit under way, and what of it is not settled yet."""

    __slots__ = ("_given", "_left_to", "done", "left", "number", "reason", "succeeded", "topics")

    def __init__(self, offsets: Positions, topics: Mapping[TopicPartition, UUID]) -> None:
        self._given = dict(offsets)
        self.topics = topics  # that the offsets are of, by their ids, where that is known
        self.left = dict(offsets)
        self._left_to: dict[TopicPartition, _Commit] = {}
        self.number = 0  # in the order of the calls
        self.done = trio.Event()
        self.reason = reasons.Reason()  # of those that wait for it
        self.succeeded = False

    @property
    def alive(self) -> bool:
        """Whether it writes what it was given, or has."""
        return self.succeeded or not self.done.is_set()

    def succeed(self) -> None:
        """Everything has been written, by this or a later one."""
        self.succeeded = True

    async def settled(self) -> None:
        """Wait until it has succeeded or failed."""
        with reasons.waiting_behind(self.reason):
            await self.done.wait()

    @property
    def later(self) -> list[_Commit]:
        """The later commits to which something was left."""
        return list(dict.fromkeys(self._left_to.values()))

    def leave_to(self, order: _Order) -> None:
        """Leave to later commits what is theirs too."""
        for tp in list(self.left):
            other = order.newest(tp)
            if other is not self and other.alive:
                self._left_to[tp] = other
                del self.left[tp]
            elif not other.owes(tp):  # that one failed, but not with this partition
                del self.left[tp]

    def take_back(self) -> None:
        """What was left to later commits, and they have not written (yet), is this one's to write after all."""
        for tp, other in self._left_to.items():
            if other.owes(tp):
                self.left[tp] = self._given[tp]
        self._left_to.clear()

    def owes(self, tp: TopicPartition) -> bool:
        """Whether ``tp`` has not been written, by this or a later one."""
        return not self.succeeded and (tp in self.left or tp in self._left_to)


class _Order:
    """The commits under way, of each partition in the order of the calls; among them the newest that has written it."""

    def __init__(self) -> None:
        self._begun = 0
        self._rows: dict[TopicPartition, dict[_Commit, None]] = {}
        self._written: dict[TopicPartition, _Commit] = {}  # the newest that has

    def begun(self, commit: _Commit) -> None:
        """The newest one."""
        self._begun += 1
        commit.number = self._begun
        for tp in commit.left:
            self._rows.setdefault(tp, {})[commit] = None

    def newest(self, tp: TopicPartition) -> _Commit:
        """The one whose offset is to stand: of those that failed without having written it there is none."""
        return next(reversed(self._rows[tp]))

    def ended(self, commit: _Commit, partitions: Iterable[TopicPartition]) -> None:
        """A commit of ``partitions`` is done. What it owes is left to those before it, which may not go ahead of each other."""
        for tp in partitions:
            row, before = self._rows[tp], self._written.get(tp)
            if commit.owes(tp) or (before is not None and before.number > commit.number):
                del row[commit]
            else:
                self._written[tp] = commit
                if before is not None:
                    del row[before]
            if len(row) == (1 if tp in self._written else 0):
                del self._rows[tp]
                self._written.pop(tp, None)


class Commits:
    """Commits for ``group``. ``identity`` tells as which member (in no generation: as a stand-alone committer).

    ``joining`` tells whether the member is on its way into the next generation, and may be in it already by the coordinator's word.
    ``topics`` tells of which topics offsets are; without it (``None``) topics are their names.
    """

    def __init__(
        self,
        config: ClientConfig,
        group: str,
        brokers: Brokers,
        coordinators: CoordinatorManager,
        identity: Callable[[], Identity],
        topics: OffsetTopics | None = None,
        joining: Callable[[], bool] = lambda: False,
    ) -> None:
        self._config, self._group, self._brokers, self._coordinators = config, group, brokers, coordinators
        self._identity, self._topics, self._joining = identity, topics, joining
        self._order = trio.Lock()  # commits reach the coordinator in the order in which they were asked for
        self._turn = reasons.Reason()  # of the one whose turn it is
        self._commits = _Order()

    async def commit(
        self,
        offsets: Positions,
        *,
        timeout: float | None = None,
        name: str = "commit",
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """Commit ``offsets``. Raises :exc:`CommitFailedError` if the member was thrown out, :exc:`KafkaTimeoutError`.

        ``check`` is called before each attempt, and raises when the offsets are not this member's to commit any more.
        Cancelled while the request is under way, the commit may or may not have happened.
        """
        if not offsets:
            await trio.lowlevel.checkpoint()
            return
        mine = _Commit(offsets, {} if self._topics is None else self._topics.of_positions(offsets))
        began = self._identity()

        async def attempt(call: RunningCall) -> None:
            ours = partial(self._check, call, began, check)
            while True:
                ours()
                mine.take_back()  # the attempt before may have been cut while it waited
                mine.leave_to(self._commits)
                if mine.left:
                    await self._commit_once(call, mine, ours)
                for other in mine.later:
                    await call.step("wait for a later commit of the same partitions", other.settled)
                mine.take_back()
                if not mine.left:
                    return

        self._commits.begun(mine)
        try:
            with reasons.reasoning(mine.reason):
                try:
                    await run_call(name, attempt, config=self._config, timeout=timeout, recover=self.recover)
                except KafkaTimeoutError as error:  # others may have run out of time in this same moment
                    reasons.failed(error.last_error if isinstance(error.last_error, TrikafkaError) else error)
                    raise
            mine.succeed()
        finally:
            mine.done.set()
            self._commits.ended(mine, offsets)

    async def committed(
        self, partitions: Iterable[TopicPartition] | None, *, timeout: float | None = None, name: str = "committed"
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """What is committed for ``partitions`` (``None``: for all that have a commit)."""
        wanted = None if partitions is None else list(partitions)
        if wanted is not None and not wanted:
            await trio.lowlevel.checkpoint()
            return {}

        async def attempt(call: Call) -> dict[TopicPartition, OffsetAndMetadata | None]:
            return await self.fetch_once(call, wanted)

        return await run_call(name, attempt, config=self._config, timeout=timeout, recover=self.recover)

    def _check(self, call: RunningCall, began: Identity, check: Callable[[], None]) -> None:
        """Raise if the offsets are not this member's to commit any more: they would overwrite the new owner's."""
        try:
            check()
        except CommitFailedError as error:
            if type(error) is not CommitFailedError:
                raise
            raise commit_failed(self._group, call.last_error) from call.last_error
        now = self._identity()
        if began.joined and (not now.joined or now.member_id != began.member_id):
            raise commit_failed(self._group, call.last_error) from call.last_error

    async def _commit_once(self, call: Call, commit: _Commit, ours: Callable[[], None]) -> None:
        """One attempt to commit what is left of ``commit``. What is of a topic that is gone is not sent."""
        failures = self._recreated(commit)
        if len(failures) < len(commit.left):
            node = await call.step("find the coordinator", lambda: self._coordinators.find(self._group))
            identity, failures = await call.step(f"OffsetCommit to {node}", lambda: self._in_turn(node, commit, ours))
        else:
            identity = self._identity()
        if not failures:
            return
        failure = next((failure for failure in failures.values() if not failure.retriable), next(iter(failures.values())))
        if isinstance(failure, UnknownTopicOrPartitionError) and failure.retriable and self._topics is not None:
            await self._look_again(call, self._topics, commit)
        # A stale epoch, or generation, is told before the response to the heartbeat, or JoinGroup, that brings the new one.
        stale = identity.epochs and failure.code == ErrorCode.STALE_MEMBER_EPOCH
        stale |= self._joining() and failure.code == ErrorCode.ILLEGAL_GENERATION
        if isinstance(failure, MemberFencedError) and self._identity() == identity and not stale:
            raise (commit_failed(self._group) if identity.joined else _group_has_members(self._group)) from failure
        if isinstance(failure, MemberFencedError | RebalanceInProgressError):
            failure.retriable = True  # the member is on its way into the next generation, which does not need the user
        raise failure

    async def _in_turn(
        self, node: Node, commit: _Commit, ours: Callable[[], None]
    ) -> tuple[Identity, dict[TopicPartition, BrokerResponseError]]:
        """Send what is left of ``commit`` when its turn has come; returns as which member, and what failed.

        What it leaves to later ones is decided again then, for those may have been quicker to find the coordinator; and whether
        the offsets are this member's still: in another generation than it waited in they would be taken from it all the same.
        """
        with reasons.waiting_behind(self._turn):
            await self._order.acquire()
        try:
            ours()
            commit.leave_to(self._commits)
            identity, failures = self._identity(), self._recreated(commit)
            if possible := {tp: position for tp, position in commit.left.items() if tp not in failures}:
                with reasons.reasoning(self._turn):
                    codes = await self._send(node, identity, possible, commit.topics)
                self._turn.clear()
                for tp in possible:
                    if codes[tp]:
                        failures[tp] = from_code(codes[tp], f"commit of {tp} for group {self._group!r}", operation="Read")
                    else:
                        del commit.left[tp]
            return identity, failures
        finally:
            self._order.release()

    async def _send(
        self, node: Node, identity: Identity, positions: Positions, topics: Mapping[TopicPartition, UUID]
    ) -> Mapping[TopicPartition, int]:
        """What the coordinator said of each partition."""
        ids = self._ids(positions, topics)
        request = commit_request(self._group, identity, positions, ids)
        codes = read_commit_response(await self._brokers.request(node, request, purpose="coordinator"), ids)
        if silent := [tp for tp in positions if tp not in codes]:
            raise DamagedResponseError(f"{node} said nothing of {silent[0]} in its response to a commit of group {self._group!r}")
        return codes

    async def _look_again(self, call: Call, topics: OffsetTopics, commit: _Commit) -> None:
        """The coordinator does not know a topic or partition. Raises what will not be mended by waiting."""
        await call.step("look up the topics", lambda: topics.look_again(commit.left))
        for failure in self._recreated(commit).values():
            raise failure

    def _recreated(self, commit: _Commit) -> dict[TopicPartition, BrokerResponseError]:
        """What of a commit is known to be of topics that were deleted and created anew."""
        if self._topics is None:
            return {}
        found = ((tp, self._topics.recreated(tp, commit.topics.get(tp))) for tp in commit.left)
        return {tp: error for tp, error in found if error is not None}

    def _ids(
        self, tps: Iterable[TopicPartition], known: Mapping[TopicPartition, UUID] = MappingProxyType({})
    ) -> dict[str, UUID | None]:
        """The topics' ids: those ``known`` of partitions, else those that the names have now."""
        ids: dict[str, UUID | None] = {}
        if self._topics is not None:
            for tp in tps:
                topic_id = known.get(tp) or self._topics.current(tp.topic)
                if ids.setdefault(tp.topic, topic_id) != topic_id:
                    ids[tp.topic] = None  # no request can tell the two apart
        return ids

    async def fetch_once(
        self, call: Call, partitions: list[TopicPartition] | None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """One attempt to read committed offsets, as a step of ``call``."""
        node = await call.step("find the coordinator", lambda: self._coordinators.find(self._group))
        identity = self._identity()
        ids = self._ids(partitions or ())
        request = fetch_request(self._group, identity, partitions, ids)
        response = await call.step(f"OffsetFetch to {node}", lambda: self._brokers.request(node, request, purpose="coordinator"))
        group = response.groups[0] if response.groups else response
        if group.error_code:
            failure = from_code(group.error_code, f"group {self._group!r}", operation="Describe")
            failure.retriable |= isinstance(failure, MemberFencedError)  # in another epoch it may ask again
            raise failure
        found = read_fetch_response(group, ids)
        if silent := [str(tp) for tp in partitions or () if tp not in found]:
            raise DamagedResponseError(
                f"{node} said nothing of {', '.join(silent)} when asked what group {self._group!r} committed"
            )
        return found if partitions is None else {tp: found[tp] for tp in partitions}

    def recover(self, error: TrikafkaError) -> None:
        """Note what a failed attempt says of the coordinator."""
        if error.refresh_coordinator:
            self._coordinators.mark_unknown(self._group)
        if isinstance(error, UnknownTopicOrPartitionError) and self._topics is not None:
            self._topics.request_update()


def commit_failed(group: str, last_error: TrikafkaError | None = None) -> CommitFailedError:
    """The error of a commit by a member that is not in the group's present generation.

    ``last_error`` is how the attempt before failed: where the coordinator could not be reached, that is what put the member out.
    """
    if isinstance(last_error, KafkaConnectionError | RequestTimedOutError):
        why = f"The coordinator could not be reached for a session: {last_error}"
    else:
        why = "If processing takes longer than max_poll_interval_ms, raise that or receive smaller batches"
    return CommitFailedError(
        f"the offsets were not committed: group {group!r} has moved on without this member, and its partitions may be with"
        f" another. {why}"
    )


def _group_has_members(group: str) -> CommitFailedError:
    """The error of a commit from outside the group."""
    return CommitFailedError(
        f"the offsets were not committed: group {group!r} has members, and only they may commit while they are there. Use another"
        " group_id with assign(), or subscribe()"
    )
