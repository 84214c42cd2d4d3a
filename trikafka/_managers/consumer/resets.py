"""The reset of a position that is not in its partition's log (any more).

``auto_offset_reset`` decides what happens.
"""

from __future__ import annotations

import logging

from ..._state.consumer.assignment import AssignedPartition
from ..._wire.fetch import EpochEndOffset
from ...config import ConsumerConfig
from ...errors import LogTruncationError, OffsetOutOfRangeError, TrikafkaError
from ...errors.classes import truncation
from ...types import OffsetAndMetadata

_log = logging.getLogger("trikafka.fetch")


class Resets:
    """The resets of partitions by the policy.

    With the policy ``none`` the partition fails with a typed error.
    """

    def __init__(self, config: ConsumerConfig) -> None:
        self._policy = config.offset_reset
        self._name = config.auto_offset_reset

    def out_of_range(
        self, partition: AssignedPartition, cause: TrikafkaError | None = None
    ) -> None:
        """Handle an offset outside the log.

        A reset may skip records that were never read: it is a WARNING, as that of a truncated log.
        """
        start = partition.log.log_start
        end = partition.log.high_watermark
        bounds = (
            ""
            if start is None or end is None
            else f", which held the offsets {start} to {end} when it was last fetched"
        )
        if self._policy.strategy == "none":
            what = (
                cause
                or f"partition {partition.tp}: offset {partition.fetch_offset} is outside the log"
            )
            text = f"{what}{bounds}; auto_offset_reset is 'none'"
            error = OffsetOutOfRangeError(text, partition.tp, partition.fetch_offset, start, end)
            error.__cause__ = cause
            partition.failed(error)
            return
        _log.warning(
            "%s: offset %d is outside the log%s: going to %s (auto_offset_reset), which skips the "
            "records in between, or reads them again",
            partition.tp,
            partition.fetch_offset,
            bounds,
            self._name,
        )
        partition.ask_reset(self._policy)

    def truncated(self, partition: AssignedPartition, agreed: EpochEndOffset | None) -> None:
        """Handle the loss of records that were read (KIP-320).

        The log agrees with them up to ``agreed``, if that is known.
        """
        position = partition.position or 0
        diverging = None if agreed is None else OffsetAndMetadata(agreed.end_offset, agreed.epoch)
        what = truncation(partition.tp, position, diverging)
        if self._policy.strategy == "none":
            log = partition.log
            partition.failed(
                LogTruncationError(
                    partition.tp, position, diverging, log.log_start, log.high_watermark
                )
            )
        elif diverging is not None:
            _log.warning("%s; going on at offset %d", what, diverging.offset)
            partition.located(diverging.offset, diverging.leader_epoch)
        else:
            _log.warning("%s; going to %s", what, self._name)
            partition.ask_reset(self._policy)

    def recreated(self, partition: AssignedPartition) -> None:
        """Handle a topic that was deleted and recreated (KIP-516).

        The position belongs to the old topic.
        """
        _log.warning(
            "topic %r was deleted and created again: position %s of %s is not used on it, "
            "auto_offset_reset is %r",
            partition.tp.topic,
            partition.position,
            partition.tp,
            self._name,
        )
        partition.ask_reset(self._policy)
