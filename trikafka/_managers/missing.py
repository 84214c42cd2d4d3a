"""Partitions that the cluster does not know, or that nobody leads: told to the assignment, which decides when that is an error."""

from __future__ import annotations

import trio

from .._state.assignment import AssignedPartition, Assignment
from .._state.subscription import Subscription
from ..errors import TrikafkaError
from ..interfaces import MetadataManager
from ..types import Node


class MissingPartitions:
    """Shared by those who look for leaders: fetches, positions, validations."""

    def __init__(self, metadata: MetadataManager, subscription: Subscription, assignment: Assignment) -> None:
        self._metadata, self._subscription, self._assignment = metadata, subscription, assignment

    def leader(self, partition: AssignedPartition) -> Node | None:
        """The leader as metadata show it; ``None``, and noted, if there is none."""
        try:
            node = self._metadata.snapshot.leader(partition.tp)
        except TrikafkaError as error:
            self.note(partition, error)
            return None
        self._assignment.found(partition)
        return node

    def note(self, partition: AssignedPartition, error: TrikafkaError) -> None:
        """Nobody leads it, by ``error``. One that a known topic does not have will not appear by waiting."""
        snapshot = self._metadata.snapshot
        if snapshot.lacks(partition.tp):
            error.retriable = False
        self._assignment.missing(partition, error, trio.current_time(), snapshot.version, grouped=self._subscription.grouped)
