"""Partitions that the cluster does not know, or that have no leader.

They are reported to the assignment, which decides when that is an error.
"""

from __future__ import annotations

import trio

from ..._state.consumer.assignment import AssignedPartition, Assignment
from ..._state.consumer.subscription import Subscription
from ...errors import TrikafkaError, UnknownTopicOrPartitionError
from ...interfaces import MetadataManager
from ...types import Node


class MissingPartitions:
    """The record of missing leaders, shared by fetches, positions and validations."""

    def __init__(
        self, metadata: MetadataManager, subscription: Subscription, assignment: Assignment
    ) -> None:
        self._metadata = metadata
        self._subscription = subscription
        self._assignment = assignment

    def is_for_the_group(self, error: TrikafkaError) -> bool:
        """Return whether the group deals with this error, so that no receive raises it.

        A topic was recreated with fewer partitions: the coordinator takes them from the member.
        """
        return self._subscription.grouped and isinstance(error, UnknownTopicOrPartitionError)

    def leader(self, partition: AssignedPartition) -> Node | None:
        """Return the leader in the metadata; record its absence and return ``None`` without one."""
        try:
            node = self._metadata.snapshot.leader(partition.tp)
        except TrikafkaError as error:
            self.add(partition, error)
            return None
        self._assignment.found(partition)
        return node

    def add(self, partition: AssignedPartition, error: TrikafkaError) -> None:
        """Record that the partition has no leader.

        A partition number beyond the topic's count is an error at once; waiting cannot help.
        """
        snapshot = self._metadata.snapshot
        if snapshot.lacks(partition.tp):
            error.retriable = False
        self._assignment.missing(
            partition,
            error,
            trio.current_time(),
            snapshot.version,
            grouped=self._subscription.grouped,
        )
