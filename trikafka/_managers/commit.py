"""The commit manager: committed offsets of a group, written and read at its coordinator.

Commits of one consumer reach the coordinator one at a time, in the order in which they were asked for. One that has to be tried
again does not overwrite a later one: what both are about is the later one's to write.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import trio
from kafka.protocol.consumer.group import OffsetCommitRequest, OffsetFetchRequest

from .._net import reasons
from .._net.brokers import Brokers
from .._net.deadlines import run_call
from .._state.member import Identity
from ..config import ClientConfig
from ..error_codes import ErrorCode
from ..errors import (
    CommitFailedError,
    DamagedResponseError,
    KafkaTimeoutError,
    MemberFencedError,
    RebalanceInProgressError,
    TrikafkaError,
    from_code,
)
from ..interfaces import Call, CoordinatorManager
from ..types import OffsetAndMetadata, TopicPartition

Positions = Mapping[TopicPartition, OffsetAndMetadata]


class _Commit:
    """One commit under way, and what of it is not settled yet."""

    __slots__ = ("_given", "done", "left", "reason", "succeeded")

    def __init__(self, offsets: Positions) -> None:
        self._given = dict(offsets)
        self.left = dict(offsets)
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

    def leave_to(self, newest: Mapping[TopicPartition, _Commit]) -> list[_Commit]:
        """Leave to later commits what is theirs too; returns those."""
        later: dict[_Commit, None] = {}
        for tp in list(self.left):
            other = newest[tp]
            if other is not self and other.alive:
                later[other] = None
                del self.left[tp]
            elif tp not in other.left:  # that one failed, but not with this partition
                del self.left[tp]
        return list(later)

    def take_back(self, failed: _Commit) -> None:
        """A later commit failed: what was left to it, and it has not written, is this one's to write after all."""
        self.left.update({tp: position for tp, position in self._given.items() if tp in failed.left})


class Commits:
    """Commits for ``group``. ``identity`` tells as which member (in no generation: as a stand-alone committer)."""

    def __init__(
        self,
        config: ClientConfig,
        group: str,
        brokers: Brokers,
        coordinators: CoordinatorManager,
        identity: Callable[[], Identity],
    ) -> None:
        self._config, self._group, self._brokers, self._coordinators = config, group, brokers, coordinators
        self._identity = identity
        self._order = trio.Lock()  # commits reach the coordinator in the order in which they were asked for
        self._turn = reasons.Reason()  # of the one whose turn it is
        self._newest: dict[TopicPartition, _Commit] = {}  # of each partition, while any commit is under way
        self._under_way = 0

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
        mine, began = _Commit(offsets), self._identity()

        async def attempt(call: Call) -> None:
            now = self._identity()
            if began.joined and (not now.joined or now.member_id != began.member_id):
                raise commit_failed(self._group)  # as somebody else, or outside the group, it would overwrite the new owner's
            while True:
                check()
                later = mine.leave_to(self._newest)
                if mine.left:
                    await self._commit_once(call, mine.left)
                for other in later:
                    await call.step("wait for a later commit of the same partitions", other.settled)
                    if not other.succeeded:
                        mine.take_back(other)
                if not mine.left:
                    return

        self._newest.update(dict.fromkeys(offsets, mine))
        self._under_way += 1
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
            self._under_way -= 1
            if not self._under_way:
                self._newest.clear()

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

    async def _commit_once(self, call: Call, left: dict[TopicPartition, OffsetAndMetadata]) -> None:
        identity = self._identity()
        node = await call.step("find the coordinator", lambda: self._coordinators.find(self._group))
        request = _commit_request(self._group, identity, left)

        async def send() -> object:
            with reasons.waiting_behind(self._turn):
                await self._order.acquire()
            try:
                with reasons.reasoning(self._turn):
                    response = await self._brokers.request(node, request, purpose="coordinator")
                self._turn.clear()
                return response
            finally:
                self._order.release()

        response: Any = await call.step(f"OffsetCommit to {node}", send)
        codes = {TopicPartition(t.name, part.partition_index): part.error_code for t in response.topics for part in t.partitions}
        failures = []
        for tp in list(left):
            if tp not in codes:
                raise DamagedResponseError(f"{node} said nothing of {tp} in its response to a commit of group {self._group!r}")
            if codes[tp]:
                failures.append(from_code(codes[tp], f"commit of {tp} for group {self._group!r}"))
            else:
                del left[tp]
        if not failures:
            return
        failure = next((failure for failure in failures if not failure.retriable), failures[0])
        # A stale epoch is told before the heartbeat's response that brings the new one.
        stale = identity.epochs and failure.code == ErrorCode.STALE_MEMBER_EPOCH
        if isinstance(failure, MemberFencedError) and self._identity() == identity and not stale:
            raise commit_failed(self._group) from failure
        if isinstance(failure, MemberFencedError | RebalanceInProgressError):
            failure.retriable = True  # the member is on its way into the next generation, which does not need the user
        raise failure

    async def fetch_once(
        self, call: Call, partitions: list[TopicPartition] | None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """One attempt to read committed offsets, as a step of ``call``."""
        node = await call.step("find the coordinator", lambda: self._coordinators.find(self._group))
        identity = self._identity()
        request = _fetch_request(self._group, identity, partitions)
        response = await call.step(f"OffsetFetch to {node}", lambda: self._brokers.request(node, request, purpose="coordinator"))
        group = response.groups[0] if response.groups else response
        if group.error_code:
            failure = from_code(group.error_code, f"group {self._group!r}")
            failure.retriable |= isinstance(failure, MemberFencedError)  # in another epoch it may ask again
            raise failure
        found = _read_committed(group)
        if silent := [str(tp) for tp in partitions or () if tp not in found]:
            raise DamagedResponseError(
                f"{node} said nothing of {', '.join(silent)} when asked what group {self._group!r} committed"
            )
        return found if partitions is None else {tp: found[tp] for tp in partitions}

    def recover(self, error: TrikafkaError) -> None:
        """Note what a failed attempt says of the coordinator."""
        if error.refresh_coordinator:
            self._coordinators.mark_unknown(self._group)


def _read_committed(group: Any) -> dict[TopicPartition, OffsetAndMetadata | None]:
    """What a response says of one group. Raises the first error that no new attempt can mend, or else the first."""
    found: dict[TopicPartition, OffsetAndMetadata | None] = {}
    failures = []
    for topic in group.topics:
        for part in topic.partitions:
            tp = TopicPartition(topic.name, part.partition_index)
            if part.error_code:
                failures.append(from_code(part.error_code, str(tp)))
            elif part.committed_offset < 0:
                found[tp] = None
            else:
                epoch = part.committed_leader_epoch
                known = epoch if epoch is not None and epoch >= 0 else None
                found[tp] = OffsetAndMetadata(part.committed_offset, known, part.metadata or "")
    if failures:
        raise next((failure for failure in failures if not failure.retriable), failures[0])
    return found


def commit_failed(group: str) -> CommitFailedError:
    """The error of a commit by a member that is not in the group's present generation."""
    return CommitFailedError(
        f"the offsets were not committed: group {group!r} has moved on without this member, and its partitions may be with"
        " another. If processing takes longer than max_poll_interval_ms, raise that or receive smaller batches"
    )


def _commit_request(group: str, identity: Identity, offsets: Positions) -> OffsetCommitRequest:
    by_topic: dict[str, list[object]] = defaultdict(list)
    part_type = OffsetCommitRequest.OffsetCommitRequestTopic.OffsetCommitRequestPartition
    for tp, position in offsets.items():
        by_topic[tp.topic].append(
            part_type(
                partition_index=tp.partition,
                committed_offset=position.offset,
                committed_leader_epoch=-1 if position.leader_epoch is None else position.leader_epoch,
                committed_metadata=position.metadata,
            )
        )
    topics = [OffsetCommitRequest.OffsetCommitRequestTopic(name=name, partitions=parts) for name, parts in by_topic.items()]
    return OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=identity.generation,
        member_id=identity.member_id if identity.joined else "",
        group_instance_id=identity.instance_id if identity.joined else None,
        topics=topics,
    )


def _fetch_request(group: str, identity: Identity, partitions: list[TopicPartition] | None) -> OffsetFetchRequest:
    old_topics = new_topics = None
    if partitions is not None:
        by_topic: dict[str, list[int]] = defaultdict(list)
        for tp in partitions:
            by_topic[tp.topic].append(tp.partition)
        old = OffsetFetchRequest.OffsetFetchRequestTopic
        new = OffsetFetchRequest.OffsetFetchRequestGroup.OffsetFetchRequestTopics
        old_topics = [old(name=name, partition_indexes=numbers) for name, numbers in by_topic.items()]
        new_topics = [new(name=name, partition_indexes=numbers) for name, numbers in by_topic.items()]
    # Only the consumer protocol refuses a member that is not up to date (KIP-848).
    who, epoch = (identity.member_id, identity.generation) if identity.epochs and identity.joined else (None, -1)
    groups = [OffsetFetchRequest.OffsetFetchRequestGroup(group_id=group, member_id=who, member_epoch=epoch, topics=new_topics)]
    return OffsetFetchRequest(group_id=group, topics=old_topics, groups=groups, require_stable=True)
