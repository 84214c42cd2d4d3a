"""What becomes of a position that is not in its partition's log (any more): ``auto_offset_reset`` decides."""

from __future__ import annotations

import logging

from .._state.assignment import AssignedPartition
from .._wire.fetch import EpochEndOffset
from ..config import ConsumerConfig
from ..errors import LogTruncationError, OffsetOutOfRangeError, TrikafkaError
from ..types import OffsetAndMetadata

_log = logging.getLogger("trikafka.fetch")


class Resets:
    """Resets a partition by the policy, or fails it with a typed error where the policy is ``none``."""

    def __init__(self, config: ConsumerConfig) -> None:
        self._policy, self._name = config.offset_reset, config.auto_offset_reset

    def out_of_range(self, partition: AssignedPartition, cause: TrikafkaError | None = None) -> None:
        """The offset to fetch lies outside the log."""
        if self._policy.strategy == "none":
            what = cause or f"partition {partition.tp}: offset {partition.fetch_offset} is outside the log"
            error = OffsetOutOfRangeError(f"{what}; auto_offset_reset is 'none'")
            error.__cause__ = cause
            partition.failed(error)
            return
        _log.info("%s: offset %d is out of range, going to %s", partition.tp, partition.fetch_offset, self._name)
        partition.ask_reset(self._policy)

    def truncated(self, partition: AssignedPartition, agreed: EpochEndOffset | None) -> None:
        """Records that were read are not in the log any more (KIP-320); it agrees with them up to ``agreed``, if that is known."""
        position = partition.position or 0
        diverging = None if agreed is None else OffsetAndMetadata(agreed.end_offset, agreed.epoch)
        error = LogTruncationError(partition.tp, position, diverging)
        if self._policy.strategy == "none":
            partition.failed(error)
        elif diverging is not None:
            _log.warning("%s; going on at offset %d", error, diverging.offset)
            partition.located(diverging.offset, diverging.leader_epoch)
        else:
            _log.warning("%s; going to %s", error, self._name)
            partition.ask_reset(self._policy)

    def recreated(self, partition: AssignedPartition) -> None:
        """The topic was deleted and created anew (KIP-516): the position is one of the old topic."""
        _log.warning(
            "topic %r was deleted and created anew: position %s of %s is not used on it, auto_offset_reset is %r",
            partition.tp.topic,
            partition.position,
            partition.tp,
            self._name,
        )
        partition.ask_reset(self._policy)
