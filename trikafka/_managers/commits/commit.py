"""The commit manager: committed offsets of a group, written and read at its coordinator.

Commits of one consumer reach the coordinator one at a time, in the order of the calls. A commit
that has to be retried does not overwrite a later one: the later one writes the partitions that both
contain.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from types import MappingProxyType
from uuid import UUID

import trio

from ..._net import reasons
from ..._net.brokers import Brokers
from ..._net.deadlines import RunningCall, run_call
from ..._state.group.member import Member, MemberIdentity
from ..._wire.messages import PORTION, portions
from ...config import ClientConfig
from ...error_codes import ErrorCode
from ...errors import (
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
from ...errors.groups import decisive
from ...interfaces import Call, CoordinatorManager
from ...types import Node, OffsetAndMetadata, TopicPartition
from .offset_messages import (
    OffsetTopics,
    Positions,
    commit_request,
    fetch_request,
    read_commit_response,
    read_fetch_response,
)


class _Commit:
    """One commit in progress, and the part of it that is not settled yet."""

    __slots__ = ("_given", "_left_to", "done", "left", "number", "reason", "succeeded", "topics")

    def __init__(self, offsets: Positions, topics: Mapping[TopicPartition, UUID]) -> None:
        self._given = dict(offsets)
        self.topics = topics  # topic ids of the offsets, where known
        self.left = dict(offsets)
        self._left_to: dict[TopicPartition, _Commit] = {}
        self.number = 0  # in the order of the calls
        self.done = trio.Event()
        self.reason = reasons.WaitContext()  # linked by tasks that wait for this commit
        self.succeeded = False  # everything has been written, by this commit or a later one

    @property
    def alive(self) -> bool:
        """True if the commit is in progress or has succeeded."""
        return self.succeeded or not self.done.is_set()

    async def settled(self) -> None:
        """Wait until the commit has succeeded or failed."""
        with reasons.waiting_behind(self.reason):
            await self.done.wait()

    @property
    def later(self) -> list[_Commit]:
        """The later commits that write a part of this one."""
        return list(dict.fromkeys(self._left_to.values()))

    def delegate_to_newer(self, order: _Order) -> None:
        """Leave partitions to later commits that contain them too."""
        # Who may skip whom. Two commits of one consumer may be in progress at the same time: tasks
        # call `commit()`, and auto commit runs beside them. Of each partition the offset of the
        # newest call that succeeds must stand in the end. The order in which calls begin is
        # recorded at once (`_Order.begun`), but the calls look up the coordinator, wait and retry
        # independently. So the order in which requests go out is not the order of the calls, and a
        # retry of an older call would set an offset back.
        #
        # The rule, for each partition:
        # * A newer commit with this partition is in progress or has succeeded: the older one leaves
        #   the partition to it, and waits for its end.
        # * That newer commit fails without having written the partition: the older one takes it
        #   back (`take_back`) and writes it. Its caller must not get a success for an offset that
        #   no request has written.
        # * The newer commit has failed, but had written this partition: the older one must not
        #   write it any more.
        #
        # Commits of other partitions are not affected. The rule is applied when an attempt begins,
        # and again right before the request is built, with the lock held (`_in_turn`): two commits
        # that waited for the coordinator go on in any order, and newer ones may have come
        # meanwhile.
        for tp in list(self.left):
            other = order.newest(tp)
            if other is not self and other.alive:
                self._left_to[tp] = other
                del self.left[tp]
            elif not other.has_pending(tp):  # it failed, but has written this partition
                del self.left[tp]

    def take_back(self) -> None:
        """Take back partitions that the later commits have not written."""
        for tp, other in self._left_to.items():
            if other.has_pending(tp):
                self.left[tp] = self._given[tp]
        self._left_to.clear()

    def has_pending(self, tp: TopicPartition) -> bool:
        """Return whether ``tp`` has not been written, by this commit or a later one."""
        return not self.succeeded and (tp in self.left or tp in self._left_to)


class _Order:
    """The commits in progress: for each partition in the order of the calls.

    Among them is the newest commit that has written the partition.
    """

    def __init__(self) -> None:
        self._begun = 0
        self._rows: dict[TopicPartition, dict[_Commit, None]] = {}
        self._written: dict[TopicPartition, _Commit] = {}  # the newest that has

    def begun(self, commit: _Commit) -> None:
        """Add a commit as the newest one."""
        self._begun += 1
        commit.number = self._begun
        for tp in commit.left:
            self._rows.setdefault(tp, {})[commit] = None

    def newest(self, tp: TopicPartition) -> _Commit:
        """Return the commit whose offset has to be the final one.

        Commits that failed without writing the partition are not considered.
        """
        return next(reversed(self._rows[tp]))

    def ended(self, commit: _Commit, partitions: Iterable[TopicPartition]) -> None:
        """Record the end of a commit of ``partitions``.

        A partition that it did not write falls to the commits before it, which stay in order.
        """
        for tp in partitions:
            row = self._rows[tp]
            before = self._written.get(tp)
            if commit.has_pending(tp) or (before is not None and before.number > commit.number):
                del row[commit]
            else:
                self._written[tp] = commit
                if before is not None:
                    del row[before]
            if len(row) == (1 if tp in self._written else 0):
                del self._rows[tp]
                self._written.pop(tp, None)


class Commits:
    """The commits of ``member`` for ``group``.

    A member in no generation is a stand-alone committer. One that is joining may be in the next
    generation already at the coordinator. ``topics`` has the topic ids of offsets.
    """

    def __init__(
        self,
        config: ClientConfig,
        group: str,
        brokers: Brokers,
        coordinators: CoordinatorManager,
        member: Member,
        topics: OffsetTopics,
    ) -> None:
        self._config = config
        self._group = group
        self._brokers = brokers
        self._coordinators = coordinators
        self._member = member
        self._topics = topics
        # Commits reach the coordinator one at a time.
        self._order = trio.Lock()
        self._turn = reasons.WaitContext()  # of the commit whose turn it is
        self._commits = _Order()

    async def commit(
        self,
        offsets: Positions,
        *,
        timeout: float | None = None,
        name: str = "commit",
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """Commit ``offsets``.

        Cancelled while the request is in flight, the commit may or may not have happened.

        Args:
            offsets: The position of each partition.
            timeout: The limit in seconds; default: ``default_api_timeout_ms``.
            name: The name of the call, for errors.
            check: Called before each attempt; raises when the offsets are not this member's to
                commit any more.

        Raises:
            CommitFailedError: The member was removed from the group.
            KafkaTimeoutError: The limit has passed.
        """
        if not offsets:
            await trio.lowlevel.checkpoint()
            return
        mine = _Commit(offsets, self._topics.of_positions(offsets))
        began = self._member.identity

        async def attempt(call: RunningCall) -> None:
            ours = partial(self._check, call, began, check)
            while True:
                ours()
                mine.take_back()  # the last attempt may have been cut off while it waited
                mine.delegate_to_newer(self._commits)
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
                    await run_call(
                        name, attempt, config=self._config, timeout=timeout, recover=self.recover
                    )
                # Other calls may have run out of time in this same moment.
                except KafkaTimeoutError as error:
                    reasons.failed(
                        error.last_error if isinstance(error.last_error, TrikafkaError) else error
                    )
                    raise
            mine.succeeded = True
        finally:
            mine.done.set()
            self._commits.ended(mine, offsets)

    async def committed(
        self,
        partitions: Iterable[TopicPartition] | None,
        *,
        timeout: float | None = None,
        name: str = "committed",
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Return the committed offsets of ``partitions``; ``None``: of all that have one."""
        wanted = None if partitions is None else list(partitions)
        if wanted is not None and not wanted:
            await trio.lowlevel.checkpoint()
            return {}

        return await run_call(
            name,
            lambda call: self.fetch_once(call, wanted),
            config=self._config,
            timeout=timeout,
            recover=self.recover,
        )

    def _check(self, call: RunningCall, began: MemberIdentity, check: Callable[[], None]) -> None:
        """Raise if the offsets are not this member's to commit any more.

        They would overwrite the new owner's.
        """
        try:
            check()
        except CommitFailedError as error:
            if type(error) is not CommitFailedError:
                raise
            raise commit_failed(self._group, call.last_error) from call.last_error
        now = self._member.identity
        if began.joined and (not now.joined or now.member_id != began.member_id):
            raise commit_failed(self._group, call.last_error) from call.last_error
        # A consumer with assign() may have subscribed and joined since. With the new identity the
        # coordinator would accept positions of partitions that other members own.
        if now.joined and not began.joined:
            raise _group_has_members(self._group) from call.last_error

    async def _commit_once(self, call: Call, commit: _Commit, ours: Callable[[], None]) -> None:
        """Make one attempt to commit what is left of ``commit``.

        Offsets of a topic that is gone are not sent.
        """
        failures = self._recreated(commit)
        if len(failures) < len(commit.left):
            node = await call.step(
                "find the coordinator", lambda: self._coordinators.find(self._group)
            )
            identity, failures = await call.step(
                "OffsetCommit", lambda: self._in_turn(node, commit, ours)
            )
        else:
            identity = self._member.identity
        if not failures:
            return
        failure = decisive(list(failures.values()))
        if isinstance(failure, UnknownTopicOrPartitionError) and failure.retriable:
            # The coordinator does not know a topic or partition. A retry cannot help if the
            # partition does not exist, or the topic was created again.
            await call.step("look up the topics", lambda: self._topics.refresh(commit.left))
            for recreated in self._recreated(commit).values():
                raise recreated
        # A refused identity is final only if the member still has it and no newer one is on its
        # way: then the group has moved on without the member. In two cases another attempt is
        # right. The member's identity has changed since the request was built. Or the new identity
        # is on its way: heartbeats and JoinGroup go on other tasks and connections than commits, so
        # the coordinator may be in the next epoch already, and refuse this commit, before the
        # response with that epoch has been read here.
        stale = identity.epochs and failure.code == ErrorCode.STALE_MEMBER_EPOCH
        stale |= self._member.joining and failure.code == ErrorCode.ILLEGAL_GENERATION
        if (
            isinstance(failure, MemberFencedError)
            and self._member.identity == identity
            and not stale
        ):
            raise (
                commit_failed(self._group) if identity.joined else _group_has_members(self._group)
            ) from failure
        if isinstance(failure, MemberFencedError | RebalanceInProgressError):
            # The member is joining the next generation; the user need not do anything.
            failure.retriable = True
        raise failure

    async def _in_turn(
        self, node: Node, commit: _Commit, ours: Callable[[], None]
    ) -> tuple[MemberIdentity, dict[TopicPartition, BrokerResponseError]]:
        """Send what is left of ``commit`` when its turn has come.

        Returns the identity that was used, and the errors by partition. Two checks are repeated
        when the turn has come. A later commit may now contain some of these partitions. And the
        offsets may belong to another member: in a new generation of this member, the coordinator
        would accept them nevertheless.
        """
        with reasons.waiting_behind(self._turn):
            await self._order.acquire()
        try:
            ours()
            commit.delegate_to_newer(self._commits)
            identity = self._member.identity
            failures = self._recreated(commit)
            possible = {tp: position for tp, position in commit.left.items() if tp not in failures}
            for portion in portions(possible):
                with reasons.reasoning(self._turn):
                    codes = await self._send(
                        node, identity, {tp: possible[tp] for tp in portion}, commit.topics
                    )
                self._turn.clear()
                for tp in portion:
                    if codes[tp]:
                        failures[tp] = from_code(
                            codes[tp], f"commit of {tp} for group {self._group!r}", operation="Read"
                        )
                    else:
                        del commit.left[tp]
            return identity, failures
        finally:
            self._order.release()

    async def _send(
        self,
        node: Node,
        identity: MemberIdentity,
        positions: Positions,
        topics: Mapping[TopicPartition, UUID],
    ) -> Mapping[TopicPartition, int]:
        """Return the coordinator's code for each partition."""
        ids = self._ids(positions, topics)
        request = commit_request(self._group, identity, positions, ids)
        codes = read_commit_response(
            await self._brokers.request(node, request, purpose="coordinator"), ids
        )
        if silent := [tp for tp in positions if tp not in codes]:
            raise DamagedResponseError(
                f"{node} left {silent[0]} out of its response to a commit of group {self._group!r}"
            )
        return codes

    def _recreated(self, commit: _Commit) -> dict[TopicPartition, BrokerResponseError]:
        """Return the errors of partitions whose topic was deleted and recreated."""
        found = ((tp, self._topics.recreated(tp, commit.topics.get(tp))) for tp in commit.left)
        return {tp: error for tp, error in found if error is not None}

    def _ids(
        self,
        tps: Iterable[TopicPartition],
        known: Mapping[TopicPartition, UUID] = MappingProxyType({}),
    ) -> dict[str, UUID | None]:
        """Return the topics' ids: the ``known`` ones of partitions, else those of the names."""
        ids: dict[str, UUID | None] = {}
        for tp in tps:
            topic_id = known.get(tp) or self._topics.current(tp.topic)
            if ids.setdefault(tp.topic, topic_id) != topic_id:
                ids[tp.topic] = None  # no request can distinguish the two
        return ids

    async def fetch_once(
        self, call: Call, partitions: list[TopicPartition] | None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Make one attempt to read committed offsets, as steps of ``call``."""
        node = await call.step("find the coordinator", lambda: self._coordinators.find(self._group))
        if partitions is None or len(partitions) <= PORTION:
            return await self._fetch_from(call, node, partitions)
        found: dict[TopicPartition, OffsetAndMetadata | None] = {}
        for portion in portions(partitions):
            found |= await self._fetch_from(call, node, portion)
        return found

    async def _fetch_from(
        self, call: Call, node: Node, partitions: list[TopicPartition] | None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        identity = self._member.identity
        ids = self._ids(partitions or ())
        request = fetch_request(self._group, identity, partitions, ids)
        response = await call.step(
            "OffsetFetch", lambda: self._brokers.request(node, request, purpose="coordinator")
        )
        group = response.groups[0] if response.groups else response
        if group.error_code:
            failure = from_code(group.error_code, f"group {self._group!r}", operation="Describe")
            # The member may ask again in another epoch.
            failure.retriable |= isinstance(failure, MemberFencedError)
            raise failure
        found = read_fetch_response(group, ids)
        if silent := [str(tp) for tp in partitions or () if tp not in found]:
            raise DamagedResponseError(
                f"{node} left {', '.join(silent)} out of its response with the offsets of group "
                f"{self._group!r}"
            )
        return found if partitions is None else {tp: found[tp] for tp in partitions}

    def recover(self, error: TrikafkaError) -> None:
        """Apply the error of a failed attempt to the coordinator."""
        if error.refresh_coordinator:
            self._coordinators.mark_unknown(self._group)
        if isinstance(error, UnknownTopicOrPartitionError):
            self._topics.request_update()


def commit_failed(group: str, last_error: TrikafkaError | None = None) -> CommitFailedError:
    """Return the error of a commit by a member that is not in the group's present generation.

    ``last_error`` is the failure of the attempt before. If the coordinator could not be reached,
    that is why the member is out.
    """
    if isinstance(last_error, KafkaConnectionError | RequestTimedOutError):
        why = f"The coordinator could not be reached for a session: {last_error}"
    else:
        why = (
            "If processing takes longer than max_poll_interval_ms, raise that or receive smaller "
            "batches"
        )
    return CommitFailedError(
        f"the offsets were not committed: group {group!r} has moved on without this member, and "
        f"its partitions may be with another. {why}"
    )


def _group_has_members(group: str) -> CommitFailedError:
    """Return the error of a commit from outside the group."""
    return CommitFailedError(
        f"the offsets were not committed: group {group!r} has members, and only they may commit "
        "while they are there. Use another group_id with assign(), or subscribe()"
    )
