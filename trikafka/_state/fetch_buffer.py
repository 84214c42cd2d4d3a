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
    rest: Chunk | None = None  # what was not decoded with the batch that was handed out, if anything

    @property
    def stale(self) -> bool:
        """Whether the position has jumped, or the partition is gone, since these were asked for."""
        return self.epoch != self.state.epoch

    @property
    def size(self) -> int:
        """What it counts for in the buffer (bytes)."""
        return len(self.records) if self.batch is None else self.batch.nbytes


class FetchBuffer:
    """Chunks in a queue a partition; partitions take turns. Chunks of paused partitions wait aside, outside the limit.

    The limit is for what is buffered, for what is being fetched, and for what the last two receives have handed out, which
    the user still holds. Each broker has an equal part of it, so that none waits for another one's answer.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._queues: OrderedDict[PartitionState, deque[Chunk]] = OrderedDict()  # in the order of their turns
        self._held = self._held_before = 0
        self.awaited = True  # whether the fetch manager waits for room, and is to be woken when something is taken

    @property
    def empty(self) -> bool:
        """Whether nothing at all is here."""
        return not self._queues

    @property
    def buffered(self) -> int:
        """Bytes here that may be handed out."""
        return sum(state.buffered for state in self._queues if state.usable)

    def begin(self) -> None:
        """The user came back, and has let go of what was handed out before the last time."""
        self._held_before, self._held = self._held, 0

    def hand_out(self, size: int) -> None:
        """``size`` more bytes are with the user."""
        self._held += size

    def share(self, assigned: int) -> int:
        """The bytes below which another fetch of a partition may begin, of ``assigned`` that share the buffer."""
        return max(1, self._limit // max(1, assigned))

    def room(self, brokers: int, buffered: int, wanted: int) -> int:
        """How many bytes the next fetch from a broker may bring, of ``brokers`` and with ``buffered`` bytes of its own here.

        At most ``wanted``, and a sixteenth of the broker's part. 0 unless there is room for five of them: the memory of an answer
        is free only when the last of it is decoded, and the decoder needs some. What the user holds counts as if the next
        receive brought as much, for that comes before the last is let go, and once more for the holes that it leaves in the
        allocator's memory. Where nothing is here, a fetch may always begin: so what the user holds is no reason to wait for ever.
        """
        part = self._limit // max(1, brokers)
        step = max(1, min(wanted, part // 16))
        held = 3 * max(self._held, self._held_before) // max(1, brokers)
        return 0 if buffered and part - buffered - held < 5 * step else step

    def put(self, chunk: Chunk) -> None:
        """Add a chunk behind those of its partition."""
        chunk.state.buffered += chunk.size
        self._queues.setdefault(chunk.state, deque()).append(chunk)

    def put_first(self, chunk: Chunk) -> None:
        """Add a chunk before those of its partition: what is left of the one just taken."""
        chunk.state.buffered += chunk.size
        self._queues.setdefault(chunk.state, deque()).appendleft(chunk)

    def put_back(self, state: PartitionState, rest: RecordBatch) -> None:
        """Put what is left of the chunk that was just taken before all others; it is the next one, if it may be handed out."""
        self.put_first(Chunk(state, state.epoch, memoryview(b""), None, batch=rest))
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
