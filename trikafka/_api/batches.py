"""Iteration over batches, for ever or up to given offsets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Self

from .._wire.columns import RecordBatch
from ..types import TopicPartition

if TYPE_CHECKING:
    from .consumer_parts import ConsumerParts


class Batches:
    """An async iterator of :class:`RecordBatch`; made by ``Consumer.batches``. Leave it at any time, nothing is lost."""

    def __init__(self, parts: ConsumerParts, until: Mapping[TopicPartition, int] | None) -> None:
        self._parts = parts
        self._until = None if until is None else {TopicPartition(*tp): offset for tp, offset in until.items()}
        if self._until is not None:
            for tp in self._until:
                parts.subscription.state(tp)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> RecordBatch:
        """The next batch; ends the iteration when all is read. Raises as ``Consumer.receive``."""
        batch = await self._parts.receiver.batch(None, self._until, None if self._until is None else self._reached)
        if batch is None:
            raise StopAsyncIteration
        return batch

    def _reached(self) -> bool:
        assert self._until is not None
        positions = ((self._parts.subscription.state(tp).position, end) for tp, end in self._until.items())
        return all(position is not None and position >= end for position, end in positions)
