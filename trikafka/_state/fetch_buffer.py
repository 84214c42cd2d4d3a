"""Fetched records that wait to be received: bounded, in order within a partition, fair between partitions. No I/O.

The fetch manager puts, the consumer takes, and puts back what it did not hand out. What was fetched before a seek, a revoke or
a reset is dropped when it is met.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass

from .._wire.columns import RecordBatch
from .subscription import PartitionState


@dataclass(slots=True)
class Chunk:
    """The records of one partition out of one Fetch answer, not decoded yet; or, in ``batch``, what is left of them."""

    state: PartitionState
    epoch: int
    records: memoryview
    aborted: list[tuple[int, int]] | None
    end: int | None = None  # the offset after the last complete batch; None: known once decoded
    batch: RecordBatch | None = None

    @property
    def stale(self) -> bool:
        """Whether the position has jumped, or the partition is gone, since these were asked for."""
        return self.epoch != self.state.epoch

    @property
    def size(self) -> int:
        """What it counts for in the buffer (bytes)."""
        return len(self.records) if self.batch is None else self.batch.nbytes


class FetchBuffer:
    """Chunks in a queue a partition; partitions take turns. Chunks of paused partitions wait aside, outside the limit."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._queues: OrderedDict[PartitionState, deque[Chunk]] = OrderedDict()  # in the order of their turns

    @property
    def buffered(self) -> int:
        """Bytes that count against the limit."""
        return sum(state.buffered for state in self._queues if state.usable)

    def share(self, assigned: int) -> int:
        """The bytes below which another fetch of a partition may begin, of ``assigned`` that share the buffer.

        A partition that has nothing in the buffer is always fetched: so the bound is the limit and one fetch a partition.
        """
        return max(1, self._limit // max(1, assigned)) if self.buffered < self._limit else 1

    def put(self, chunk: Chunk) -> None:
        """Add a chunk behind those of its partition."""
        chunk.state.buffered += chunk.size
        self._queues.setdefault(chunk.state, deque()).append(chunk)

    def put_back(self, state: PartitionState, rest: RecordBatch) -> None:
        """Put what is left of the chunk that was just taken before all others; it is the next one, if it may be handed out."""
        chunk = Chunk(state, state.epoch, memoryview(b""), None, batch=rest)
        state.buffered += chunk.size
        self._queues.setdefault(state, deque()).appendleft(chunk)
        self._queues.move_to_end(state, last=False)

    def take(self) -> Chunk | None:
        """Remove and return the next chunk that may be handed out; its partition goes to the end of the row."""
        for state in list(self._queues):
            chunk = self.take_from(state)
            if chunk is not None:
                if state in self._queues:
                    self._queues.move_to_end(state)
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
        state.buffered -= chunk.size
        if not queue:
            del self._queues[state]
        return chunk
