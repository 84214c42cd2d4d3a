"""Fetched bytes that wait to be received: bounded, in order within a partition, fair between partitions. No I/O.

The fetch manager puts, the consumer takes. What was fetched before a seek, a revoke or a reset is dropped when it is met.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from .subscription import PartitionState


@dataclass(slots=True)
class Chunk:
    """The records of one partition out of one Fetch answer, not decoded yet."""

    state: PartitionState
    epoch: int
    records: memoryview
    aborted: list[tuple[int, int]] | None

    @property
    def stale(self) -> bool:
        """Whether the position has jumped, or the partition is gone, since these were asked for."""
        return self.epoch != self.state.epoch


class FetchBuffer:
    """Chunks in a queue a partition; partitions take turns. Chunks of paused partitions wait aside, outside the limit."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._queues: dict[PartitionState, deque[Chunk]] = {}  # in the order of their turns

    @property
    def buffered(self) -> int:
        """Bytes that count against the limit."""
        return sum(state.buffered for state in self._queues if state.usable)

    def has_room(self, state: PartitionState, assigned: int) -> bool:
        """Whether another fetch of ``state`` may begin, of ``assigned`` partitions that share the buffer."""
        return state.buffered == 0 or (state.buffered < self._limit // max(1, assigned) and self.buffered < self._limit)

    def put(self, chunk: Chunk) -> None:
        """Add a chunk behind those of its partition."""
        chunk.state.buffered += len(chunk.records)
        self._queues.setdefault(chunk.state, deque()).append(chunk)

    def take(self) -> Chunk | None:
        """Remove and return the next chunk that may be handed out; its partition goes to the end of the row."""
        for state in list(self._queues):
            chunk = self.take_from(state)
            if chunk is not None:
                if (queue := self._queues.pop(state, None)) is not None:
                    self._queues[state] = queue
                return chunk
        return None

    def take_from(self, state: PartitionState) -> Chunk | None:
        """As :meth:`take`, of one partition. Stale chunks are dropped on the way."""
        queue = self._queues.get(state)
        while queue:
            if queue[0].stale:
                self._drop_first(state, queue)
            elif not state.usable:
                return None
            else:
                return self._drop_first(state, queue)
        return None

    def drop_stale(self) -> None:
        """Free what can never be handed out."""
        for state, queue in list(self._queues.items()):
            while queue and queue[0].stale:
                self._drop_first(state, queue)

    def _drop_first(self, state: PartitionState, queue: deque[Chunk]) -> Chunk:
        chunk = queue.popleft()
        state.buffered -= len(chunk.records)
        if not queue:
            del self._queues[state]
        return chunk
