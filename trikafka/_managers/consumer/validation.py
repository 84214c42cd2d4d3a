"""The check of positions against a new leader's log (KIP-320, OffsetForLeaderEpoch).

It finds out whether records that have been read were lost. The fetch manager starts it when
partitions need it; nothing of them is fetched or delivered meanwhile.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable

import trio
from kafka.protocol.consumer.offsets import OffsetForLeaderEpochRequest

from ..._net.brokers import Brokers
from ..._net.deadlines import within
from ..._net.retry import Retry
from ..._net.singleflight import StartSoon
from ..._state.consumer.assignment import AssignedPartition, Assignment
from ..._wire.fetch import EpochEndOffset
from ...config import ConsumerConfig
from ...errors import ErrorCode, TrikafkaError, UnsupportedVersionError, from_code
from ...errors.refusals import is_unexplained
from ...interfaces import MetadataManager
from ...types import Node, TopicPartition
from .missing import MissingPartitions
from .resets import Resets

_log = logging.getLogger("trikafka.fetch")
_Asked = dict[AssignedPartition, int]
_Topic = OffsetForLeaderEpochRequest.OffsetForLeaderTopic


class PositionValidator:
    """The validation of positions, at all brokers at once."""

    def __init__(
        self,
        config: ConsumerConfig,
        brokers: Brokers,
        metadata: MetadataManager,
        assignment: Assignment,
        missing: MissingPartitions,
        resets: Resets,
    ) -> None:
        self._config = config
        self._brokers = brokers
        self._metadata = metadata
        self._assignment = assignment
        self._missing = missing
        self._resets = resets
        # The partitions that are asked for now, with the tickets of the question.
        self._under_way: _Asked = {}
        # The errors of the last attempts, with the leader that each is about. They are kept by
        # partition: a partition may have another leader at its next attempt.
        self._errors: dict[AssignedPartition, tuple[Node, TrikafkaError]] = {}

    def error_of(self, partition: AssignedPartition) -> TrikafkaError | None:
        """Return the error of the partition's last attempt; ``None`` if it did not fail."""
        found = self._errors.get(partition)
        return found[1] if found is not None else None

    def start(self, start_soon: StartSoon) -> None:
        """Validate the positions that no task validates yet."""
        new = {
            partition: partition.ticket
            for partition in self._assignment.unvalidated
            if self._under_way.get(partition) != partition.ticket
        }
        if new:
            self._under_way |= new
            self._forget_errors(new)
            start_soon(self._run, start_soon, new)

    # Each leader is asked by a task of its own. A leader may be silent for half a minute, and the
    # positions in other logs must not wait for it, neither for a first attempt nor for another.
    async def _run(self, start_soon: StartSoon, mine: _Asked) -> None:
        """Validate these positions until none is left.

        A leader that does not respond is asked again after a wait, and looked up again.
        """
        retry = Retry(self._config)
        try:
            while by_leader := self._by_leader(mine):
                (node, asked), *others = by_leader.items()
                for _, theirs in others:
                    for partition in theirs:
                        del mine[partition]
                    start_soon(self._run, start_soon, theirs)
                if await self._attempt(node, asked):
                    retry.reset()
                    await trio.lowlevel.checkpoint()
                else:
                    self._metadata.request_update()
                    await retry.wait()
        finally:
            for partition, ticket in mine.items():
                if self._under_way.get(partition) == ticket:
                    del self._under_way[partition]
                    self._errors.pop(partition, None)

    def _by_leader(self, mine: _Asked) -> dict[Node | None, _Asked]:
        """Return what is left to validate by leader; ``None``: no leader is known."""
        by_leader: dict[Node | None, _Asked] = defaultdict(dict)
        for partition, ticket in mine.items():
            if partition not in self._assignment.unvalidated or not partition.accepts(ticket):
                continue
            if partition.position is None or partition.leader_epoch is None:
                partition.validated()  # nothing is known that could be checked
                continue
            by_leader[self._missing.leader(partition)][partition] = ticket
        return by_leader

    async def _attempt(self, node: Node | None, asked: _Asked) -> bool:
        """Ask a leader once; return whether all partitions were answered without an error."""
        for partition in asked:
            if partition in self._errors and self._errors[partition][0] != node:
                del self._errors[partition]  # of a leader that the partition has left
        if node is None:
            return False
        try:
            failed = await self._ask(node, asked)
        except TrikafkaError as error:
            failed = dict.fromkeys(asked, error)  # of the request, so of all partitions
        self._forget_errors(asked)
        for partition, why in failed.items():
            if partition.accepts(asked[partition]):
                _log.debug("a position could not be validated: %s", why)
                self._errors[partition] = (node, why)
        return not failed

    def _forget_errors(self, partitions: Iterable[AssignedPartition]) -> None:
        for partition in partitions:
            self._errors.pop(partition, None)

    async def _ask(self, node: Node, asked: _Asked) -> dict[AssignedPartition, TrikafkaError]:
        """Ask one leader; return the errors that may pass. Any other error fails its partition.

        Raises the error of the request.
        """
        limit = self._config.request_timeout
        request = self._request(asked)
        try:
            response = await within(
                f"OffsetForLeaderEpoch to {node}",
                limit,
                lambda: self._brokers.request(node, request),
            )
        except UnsupportedVersionError:
            for partition, ticket in asked.items():
                if partition.accepts(ticket):
                    partition.validated()
            return {}
        partitions = {partition.tp: (partition, ticket) for partition, ticket in asked.items()}
        failed: dict[AssignedPartition, TrikafkaError] = {}
        for topic in response.topics:
            for part in topic.partitions:
                found = partitions.pop(TopicPartition(topic.topic, part.partition), None)
                if found is None or not found[0].accepts(found[1]):
                    continue
                partition = found[0]
                if not part.error_code:
                    self._settle(partition, part.leader_epoch, part.end_offset)
                    continue
                error = from_code(
                    part.error_code,
                    f"validating the position of {partition.tp}",
                    operation="Describe",
                )
                if error.retriable or is_unexplained(error):
                    failed[partition] = error
                else:
                    partition.failed(error)
        for tp, (partition, _) in partitions.items():
            failed[partition] = from_code(
                ErrorCode.LEADER_NOT_AVAILABLE, f"{node} left {tp} out of its response"
            )
        return failed

    def _settle(self, partition: AssignedPartition, epoch: int | None, end_offset: int) -> None:
        if epoch is None or epoch < 0 or end_offset < 0:
            self._resets.truncated(partition, None)
        elif end_offset < (partition.position or 0):
            self._resets.truncated(partition, EpochEndOffset(epoch, end_offset))
        else:
            partition.validated()

    def _request(self, asked: _Asked) -> OffsetForLeaderEpochRequest:
        by_topic: dict[str, list[object]] = defaultdict(list)
        for partition in asked:
            by_topic[partition.tp.topic].append(
                _Topic.OffsetForLeaderPartition(
                    partition=partition.tp.partition,
                    current_leader_epoch=self._metadata.snapshot.leader_epoch(partition.tp),
                    leader_epoch=partition.leader_epoch,
                )
            )
        topics = [_Topic(topic=name, partitions=parts) for name, parts in by_topic.items()]
        return OffsetForLeaderEpochRequest(min_version=3, replica_id=-1, topics=topics)
