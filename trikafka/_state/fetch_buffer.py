"""Fetched records that wait to be delivered: bounded, in order within a partition, fair between partitions. No I/O.

The fetch manager puts, readers take, and put back what they did not deliver. What a seek, a reset or a loss has overtaken is
dropped at once: the assignment tells (:meth:`FetchBuffer.drop`). A change here wakes whom it concerns.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass

from .._wire.columns import RecordBatch
from ..config import MemoryBudget
from .assignment import AssignedPartition, Wake


@dataclass(slots=True)
class CompletedFetch:
    """The records of one partition out of one Fetch response, not decoded yet; or, in ``batch``, what is left of them."""

    partition: AssignedPartition
    ticket: int
    records: memoryview
    aborted: list[tuple[int, int]] | None
    end: int | None = None  # the offset after the last complete batch; None: known once decoded
    batch: RecordBatch | None = None
    rest: CompletedFetch | None = None  # what was not decoded with the batch that was delivered, if anything
    work: object = None  # the decoding of it that a cancelled receive has left to its thread; the reader's own

    def decoded_before(self, rest: CompletedFetch) -> None:
        """Only what stands before ``rest`` was decoded."""
        self.rest = rest

    def decoded_by(self, work: object) -> None:
        """It is being decoded in a thread."""
        self.work = work

    @property
    def size(self) -> int:
        """What it counts for in the buffer (bytes)."""
        return len(self.records) if self.batch is None else self.batch.nbytes


class _Queue:
    """The fetches of one partition, their bytes, and the broker that these count for."""

    __slots__ = ("fetches", "node", "size")

    def __init__(self, node: int) -> None:
        self.fetches: deque[CompletedFetch] = deque()
        self.node = node
        self.size = 0


class FetchBuffer:
    """Completed fetches in a queue a partition; partitions take turns.

    The limit is for what is buffered, for what is being fetched, and for what the last two receives have delivered, which the
    user still holds. Each broker has an equal part of it, so that none waits for another one's response.
    """

    def __init__(self, limit: int, wake: Wake | None = None, budget: MemoryBudget | None = None) -> None:
        self._own_limit, self._budget, self._wake = limit, budget, wake or Wake()
        self._queues: OrderedDict[AssignedPartition, _Queue] = OrderedDict()  # in the order of their turns
        self._held = self._held_before = 0
        self._by_stream = False  # each partition has a reader of its own
        self._share = limit
        self._fetcher_idle = False
        self._size = 0
        self._nodes: dict[AssignedPartition, int] = {}  # from where what is here, or was taken last, has come
        self._size_at: dict[int, int] = {}  # bytes by broker
        self._full: dict[AssignedPartition, int] = {}  # those that wait for room, and how many bytes are too many

    @property
    def _limit(self) -> int:
        return self._own_limit if self._budget is None else min(self._own_limit, self._budget.share)

    @property
    def empty(self) -> bool:
        """Whether nothing at all is here."""
        return not self._queues

    @property
    def buffered(self) -> int:
        """Bytes here, those of paused partitions included."""
        return self._size

    def buffered_from(self, node: int) -> int:
        """Bytes here that came from one broker, those of paused partitions included."""
        return self._size_at.get(node, 0)

    def idle_from(self, node: int) -> list[AssignedPartition]:
        """The partitions of which something from one broker is here that may not be delivered now (paused, at their limit)."""
        return [partition for partition, queue in self._queues.items() if queue.node == node and not partition.deliverable]

    def size_of(self, partition: AssignedPartition) -> int:
        """Bytes here of one partition."""
        queue = self._queues.get(partition)
        return 0 if queue is None else queue.size

    def begin(self) -> None:
        """The user came back, and has let go of what was delivered before the last time."""
        self._held_before, self._held = self._held, 0

    def count_delivered(self, size: int) -> None:
        """``size`` more bytes are with the user."""
        self._held += size

    def read_by_stream(self, by_stream: bool) -> None:
        """Whether each partition has a reader of its own, so that what one leaves here must take no room from the others.

        Then the limit is divided by partition: a third of its part is buffered, a third may come with the response under way
        when that is reached, and a third is with its handler. Nothing else is counted.
        """
        if by_stream != self._by_stream:
            self._by_stream = by_stream
            self._held = self._held_before = 0
            self._wake.fetch()

    def fetcher_idle(self, idle: bool) -> None:
        """Whether the fetch manager waits for room: then it is woken whenever something is taken."""
        self._fetcher_idle = idle

    def share(self, partitions: int) -> int:
        """How many bytes each of so many partitions may have buffered before it is left out of fetches."""
        self._share = max(1, self._limit // max(1, partitions) // (3 if self._by_stream else 1))
        return self._share

    def room(self, brokers: int, buffered: int, wanted: int) -> int:
        """How many bytes the next fetch from a broker may bring, of ``brokers`` and with ``buffered`` bytes of its own here.

        At most ``wanted``, and a sixteenth of the broker's part. 0 unless there is room for five of them: the memory of a response
        is free only when the last of it is decoded, and the decoder needs some. What the user holds counts as if the next
        receive brought as much, for that comes before the last is let go, and once more for the holes that it leaves in the
        allocator's memory. Where nothing is here, a fetch may always begin: so what the user holds is no reason to wait for ever.
        """
        part = self._limit // max(1, brokers)
        step = max(1, min(wanted, part // 16))
        if self._by_stream:
            return min(step, self._share)
        held = 3 * max(self._held, self._held_before) // max(1, brokers)
        return 0 if buffered and part - buffered - held < 5 * step else step

    def await_room(self, partition: AssignedPartition, share: int) -> None:
        """Tell the partition that it has room as soon as less than ``share`` bytes of it are here."""
        self._full[partition] = share

    def put(self, fetch: CompletedFetch, node: int = -1) -> None:
        """Add a fetch, from that broker, behind those of its partition."""
        self._nodes[fetch.partition] = node
        self._queue(fetch).append(fetch)
        self._wake.deliver(fetch.partition)

    def put_first(self, fetch: CompletedFetch) -> None:
        """Add a fetch before those of its partition: what is left of the one just taken."""
        self._queue(fetch).appendleft(fetch)

    def put_back(self, partition: AssignedPartition, rest: RecordBatch) -> None:
        """Put what was taken and not delivered before everything else; it is the next one, if it may be delivered."""
        self.put_first(CompletedFetch(partition, partition.ticket, memoryview(b""), None, batch=rest))
        self._queues.move_to_end(partition, last=False)

    def next_partition(self) -> AssignedPartition | None:
        """The partition whose turn it is to be delivered; ``None`` if nothing here may be."""
        for partition in self._queues:
            if partition.deliverable:
                return partition
        return None

    def has(self, partition: AssignedPartition) -> bool:
        """Whether something of it may be delivered."""
        return partition in self._queues and partition.deliverable

    def take(self, partition: AssignedPartition) -> CompletedFetch | None:
        """Remove and return the first fetch of a partition, if it may be delivered; the partition goes to the end of the row."""
        queue = self._queues.get(partition)
        if queue is None or not partition.deliverable:
            return None
        fetch = queue.fetches.popleft()
        self._count(queue, -fetch.size)
        if queue.fetches:
            self._queues.move_to_end(partition)
        else:
            del self._queues[partition]
        self._note_room(partition, queue.size)
        return fetch

    def drop(self, partition: AssignedPartition) -> None:
        """What was fetched of a partition is worth nothing any more."""
        self._nodes.pop(partition, None)
        if (queue := self._queues.pop(partition, None)) is not None:
            self._count(queue, -queue.size)
            self._note_room(partition, 0)

    def _note_room(self, partition: AssignedPartition, size: int) -> None:
        if partition in self._full and size < self._full[partition]:
            del self._full[partition]
            partition.has_room()
        if self._fetcher_idle:
            self._wake.fetch()

    def _queue(self, fetch: CompletedFetch) -> deque[CompletedFetch]:
        queue = self._queues.get(fetch.partition)
        if queue is None:
            queue = self._queues[fetch.partition] = _Queue(self._nodes.get(fetch.partition, -1))
        self._count(queue, fetch.size)
        return queue.fetches

    def _count(self, queue: _Queue, size: int) -> None:
        queue.size += size
        self._size += size
        self._size_at[queue.node] = self._size_at.get(queue.node, 0) + size
