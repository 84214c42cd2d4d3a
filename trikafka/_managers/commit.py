"""The commit manager: committed offsets of a group, written and read at its coordinator, and auto commit."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Mapping

import trio
from kafka.protocol.consumer.group import OffsetCommitRequest, OffsetFetchRequest

from .._net.brokers import Brokers
from .._net.deadlines import Call, run_call
from .._state.assignment import Assignment
from .._state.member import Identity, Member
from .._state.subscription import Subscription
from ..config import ClientConfig
from ..errors import CommitFailedError, KafkaTimeoutError, MemberFencedError, RebalanceInProgressError, TrikafkaError, from_code
from ..types import OffsetAndMetadata, TopicPartition
from .coordinator import Coordinators

_log = logging.getLogger("trikafka.commit")
Positions = Mapping[TopicPartition, OffsetAndMetadata]


class Commits:
    """Commits for ``group``. ``identity`` tells as which member (in no generation: as a stand-alone committer)."""

    def __init__(
        self,
        config: ClientConfig,
        group: str,
        brokers: Brokers,
        coordinators: Coordinators,
        identity: Callable[[], Identity],
    ) -> None:
        self._config, self._group, self._brokers, self._coordinators = config, group, brokers, coordinators
        self._identity = identity
        self._order = trio.Lock()  # commits reach the coordinator in the order in which they were asked for

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
        left, began = dict(offsets), self._identity()

        async def attempt(call: Call) -> None:
            now = self._identity()
            if began.joined and (not now.joined or now.member_id != began.member_id):
                raise commit_failed(self._group)  # as somebody else, or outside the group, it would overwrite the new owner's
            check()
            await self._commit_once(call, left)

        await run_call(name, attempt, config=self._config, timeout=timeout, recover=self.recover)

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
            async with self._order:
                return await self._brokers.request(node, request, purpose="coordinator")

        response = await call.step(f"OffsetCommit to {node}", send)
        failure: TrikafkaError | None = None
        for topic in response.topics:  # type: ignore[attr-defined]
            for part in topic.partitions:
                tp = TopicPartition(topic.name, part.partition_index)
                if part.error_code:
                    failure = from_code(part.error_code, f"commit of {tp} for group {self._group!r}")
                else:
                    left.pop(tp, None)
        if failure is None:
            return
        if isinstance(failure, MemberFencedError) and self._identity() == identity:
            raise commit_failed(self._group) from failure
        if isinstance(failure, MemberFencedError | RebalanceInProgressError):
            failure.retriable = True  # the member is on its way into the next generation, which does not need the user
        raise failure

    async def fetch_once(
        self, call: Call, partitions: list[TopicPartition] | None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """One attempt to read committed offsets, as a step of ``call``."""
        node = await call.step("find the coordinator", lambda: self._coordinators.find(self._group))
        request = _fetch_request(self._group, partitions)
        response = await call.step(f"OffsetFetch to {node}", lambda: self._brokers.request(node, request, purpose="coordinator"))
        group = response.groups[0] if response.groups else response
        if group.error_code:
            raise from_code(group.error_code, f"group {self._group!r}")
        found: dict[TopicPartition, OffsetAndMetadata | None] = dict.fromkeys(partitions or ())
        for topic in group.topics:
            for part in topic.partitions:
                tp = TopicPartition(topic.name, part.partition_index)
                if part.error_code:
                    raise from_code(part.error_code, str(tp))
                if part.committed_offset >= 0:
                    epoch = part.committed_leader_epoch
                    known = epoch if epoch is not None and epoch >= 0 else None
                    found[tp] = OffsetAndMetadata(part.committed_offset, known, part.metadata or "")
        return found

    def recover(self, error: TrikafkaError) -> None:
        """Note what a failed attempt says of the coordinator."""
        if error.refresh_coordinator:
            self._coordinators.forget(self._group)


class AutoCommit:
    """Commits, at an interval, what the user has come back from; never what was just handed out."""

    def __init__(
        self, commits: Commits, subscription: Subscription, assignment: Assignment, member: Member, interval: float
    ) -> None:
        self._commits, self._subscription, self._assignment = commits, subscription, assignment
        self._member, self._interval = member, interval
        self._last: dict[TopicPartition, int] = {}
        self._left_behind: dict[TopicPartition, OffsetAndMetadata] = {}  # of partitions that ``assign`` took away
        self._tick = trio.CancelScope()
        self._held = False

    def due(self, partitions: Iterable[TopicPartition] | None = None) -> dict[TopicPartition, OffsetAndMetadata]:
        """What is processed and not committed yet."""
        owned = self._assignment.partitions
        chosen = list(owned) if partitions is None else [tp for tp in partitions if tp in owned]
        mine = {
            tp: OffsetAndMetadata(processed, owned[tp].progress.leader_epoch)
            for tp in chosen
            if (processed := owned[tp].processed) is not None and self._last.get(tp) != processed
        }
        return self._left_behind | mine

    async def commit(self, partitions: Iterable[TopicPartition] | None = None, timeout: float | None = None) -> bool:
        """Commit what is due. A failure is logged: the records will be seen again. Returns False if only the time ran out."""
        self.make_way()
        return await self._commit(partitions, timeout)

    async def _commit(self, partitions: Iterable[TopicPartition] | None, timeout: float | None) -> bool:
        due = self.due(partitions)
        if not due or (self._subscription.grouped and not self._member.identity.joined):
            return True  # outside the group there may be newer commits of others
        try:
            await self._commits.commit(due, timeout=timeout, name="auto commit")
            self.committed(due)
        except TrikafkaError as error:
            _log.warning("auto commit failed, records may be seen again: %s", error)
            return not isinstance(error, KafkaTimeoutError)
        return True

    def committed(self, positions: Positions) -> None:
        """These have been committed, by whomever."""
        self._last.update({tp: position.offset for tp, position in positions.items()})
        for tp in positions:
            self._left_behind.pop(tp, None)

    def make_way(self) -> None:
        """Give up the commit of the interval that is under way: its next attempt could overwrite a newer one."""
        self._tick.cancel()

    def hold(self, held: bool = True) -> None:
        """Commit nothing at the interval: the consumer leaves, and commits last itself. ``False``: go on."""
        self._held = held
        if held:
            self.make_way()

    def keep(self, partitions: Container[TopicPartition]) -> None:
        """Other partitions than these are not ours any more."""
        self._last = {tp: offset for tp, offset in self._last.items() if tp in partitions}

    def leave_behind(self, partitions: Container[TopicPartition]) -> None:
        """Before ``assign``: what is due of other partitions than these is committed with the next commit."""
        self._left_behind = {tp: position for tp, position in self.due().items() if tp not in partitions}

    async def run(self) -> None:
        """Commit at the interval while the group knows the member (or partitions were assigned by hand)."""
        while True:
            await trio.sleep(self._interval)
            if self._held:
                continue
            with trio.CancelScope() as self._tick:
                await self._commit(None, self._interval)


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


def _fetch_request(group: str, partitions: list[TopicPartition] | None) -> OffsetFetchRequest:
    old_topics = new_topics = None
    if partitions is not None:
        by_topic: dict[str, list[int]] = defaultdict(list)
        for tp in partitions:
            by_topic[tp.topic].append(tp.partition)
        old = OffsetFetchRequest.OffsetFetchRequestTopic
        new = OffsetFetchRequest.OffsetFetchRequestGroup.OffsetFetchRequestTopics
        old_topics = [old(name=name, partition_indexes=numbers) for name, numbers in by_topic.items()]
        new_topics = [new(name=name, partition_indexes=numbers) for name, numbers in by_topic.items()]
    groups = [OffsetFetchRequest.OffsetFetchRequestGroup(group_id=group, member_id=None, member_epoch=-1, topics=new_topics)]
    return OffsetFetchRequest(group_id=group, topics=old_topics, groups=groups, require_stable=True)
