"""Fetched records that wait to be delivered: bounded, in order, fair between partitions. No I/O.

The fetch manager puts fetches in. Readers take them, and put back what they did not deliver. What a
seek, a reset or a loss has overtaken is dropped at once: the assignment calls
:meth:`FetchBuffer.drop`. Each change here wakes the tasks that it concerns.

How the bound holds
-------------------

A broker answers with at least one whole record batch, however few bytes were requested (KIP-74). So
the size of the next response is estimated from the past: the largest recent batch. A fetch may
begin if the buffered bytes, the bytes that fetches under way may bring, and the bytes that this one
may bring fit into the limit. It may also begin if nothing is buffered or under way, since a batch
that is larger than the limit has to pass, too. A quarter of the limit more is for fetches that
cannot wait, see below. Brokers that found no room take turns.

Where one reader takes the records of all partitions (a receive), it makes room as it continues.
Where each partition has a reader of its own (a stream), slow readers may fill the buffer while
others wait for records. So once the buffer is *crowded*, only partitions are fetched whose readers
have found nothing. Records that arrive for them are taken at once, so these fetches may use the
quarter. If the quarter is full as well, partitions are dropped whose readers are at work, and are
fetched again when those readers return. A reader that waits never loses records that arrived for
it, so two readers cannot take the room from each other for ever.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Container
from dataclasses import dataclass, field

from ..._wire.columns import RecordBatch
from ...config import MemoryBudget
from .assignment import AssignedPartition, ChangeCallbacks

#: The factor by which the largest recent batch size fades with each fetch.
_FADING = 0.95


@dataclass(slots=True)
class CompletedFetch:
    """The records of one partition out of one Fetch response, not decoded yet.

    With ``batch``, the rest of a decoded batch instead.
    """

    partition: AssignedPartition
    ticket: int
    records: memoryview
    aborted: list[tuple[int, int]] | None
    #: The offset after the last complete batch; ``None``: known once decoded.
    end: int | None = None
    batch: RecordBatch | None = None
    #: The part that was not decoded with the batch that was delivered, if any.
    rest: CompletedFetch | None = None
    #: The decoding that a cancelled receive has left to its thread. Only the reader uses it.
    work: object = None

    def decoded_before(self, rest: CompletedFetch) -> None:
        """Record that only the bytes before ``rest`` were decoded."""
        self.rest = rest

    def decoded_by(self, work: object) -> None:
        """Record that a thread decodes the fetch."""
        self.work = work

    @property
    def size(self) -> int:
        """The bytes that the fetch counts for in the buffer."""
        return len(self.records) if self.batch is None else self.batch.nbytes


@dataclass(slots=True)
class _Queue:
    """The fetches of one partition, their bytes, and the broker for which the bytes count."""

    node: int
    size: int = 0
    fetches: deque[CompletedFetch] = field(default_factory=deque)


class FetchBuffer:
    """A queue of completed fetches for each partition; partitions take turns.

    The limit covers the buffered bytes, the bytes being fetched, and the bytes delivered by the
    last two receives, which the user still holds. Each broker has an equal part of the limit, so
    that no broker's fetches wait for another broker's response.
    """

    #: The part of the limit that may be used beyond it, for what cannot wait.
    BEYOND = 0.25

    def __init__(
        self, limit: int, wake: ChangeCallbacks | None = None, budget: MemoryBudget | None = None
    ) -> None:
        self._own_limit = limit
        self._budget = budget
        self._wake = wake or ChangeCallbacks()
        #: In the order of the partitions' turns.
        self._queues: OrderedDict[AssignedPartition, _Queue] = OrderedDict()
        #: The bytes that the last receive delivered, and those of the receive before.
        self._held = 0
        self._held_before = 0
        #: True while each partition has a reader of its own.
        self.by_stream = False
        self._share = limit
        self._fetcher_idle = False
        self._size = 0
        #: The broker from which the fetches here, or the last taken one, came.
        self._nodes: dict[AssignedPartition, int] = {}
        #: Bytes by broker.
        self._size_at: dict[int, int] = {}
        #: The partitions that wait for room, and the bytes at which they have none.
        self._full: dict[AssignedPartition, int] = {}
        #: The bytes that the fetch under way from each broker may bring.
        self._coming: dict[int, int] = {}
        #: The bytes of the largest recent batch.
        self._largest = 0.0
        #: The brokers that found no room, in the order of their turns.
        self._denied: dict[int, None] = {}
        #: The streams that wait for records now.
        self._awaited: set[AssignedPartition] = set()
        #: The streams that found nothing when they last asked.
        self._asked: set[AssignedPartition] = set()
        #: True while only partitions are fetched whose streams have found nothing. For reading.
        self.crowded = False

    @property
    def _limit(self) -> int:
        return self._own_limit if self._budget is None else min(self._own_limit, self._budget.share)

    @property
    def empty(self) -> bool:
        """True while nothing is buffered."""
        return not self._queues

    @property
    def buffered(self) -> int:
        """The buffered bytes, those of paused partitions included."""
        return self._size

    def buffered_from(self, node: int) -> int:
        """Return the buffered bytes from one broker, those of paused partitions included."""
        return self._size_at.get(node, 0)

    def idle_from(self, node: int) -> list[AssignedPartition]:
        """Return the partitions with records from one broker that may not be delivered now.

        Such a partition is paused or at its limit.
        """
        return [
            partition
            for partition, queue in self._queues.items()
            if queue.node == node and not partition.deliverable
        ]

    def size_of(self, partition: AssignedPartition) -> int:
        """Return the buffered bytes of one partition."""
        queue = self._queues.get(partition)
        return 0 if queue is None else queue.size

    def begin(self) -> None:
        """Begin a receive: the user has released what was delivered before the last one."""
        self._held_before = self._held
        self._held = 0

    def count_delivered(self, size: int) -> None:
        """Add ``size`` bytes to those that the user holds."""
        self._held += size

    def read_by_stream(self, by_stream: bool) -> None:
        """Set whether each partition has a reader of its own.

        If so, the limit is divided by partition, so that records left here take no room from the
        others. A third of a partition's part is buffered, a third may come with the response under
        way when that is reached, and a third is with its handler. Nothing else is counted.
        """
        if by_stream != self.by_stream:
            self.by_stream = by_stream
            self._held = 0
            self._held_before = 0
            self._update_crowded()
            self._wake.fetch()

    def ask(self, partition: AssignedPartition, *, waits: bool) -> None:
        """Record that a stream found nothing to deliver. ``waits``: it waits for records.

        See :meth:`stop_waiting`.
        """
        self._asked.add(partition)
        if waits:
            self._awaited.add(partition)
        if self.crowded:
            partition.has_room()
            self._wake.fetch()

    def stop_waiting(self, partition: AssignedPartition, *, ended: bool = False) -> None:
        """Record that a stream no longer waits. ``ended``: the partition has no stream any more."""
        self._awaited.discard(partition)
        if ended:
            self._asked.discard(partition)

    def fetcher_idle(self, idle: bool) -> None:
        """Set whether the fetch manager waits for room, to be woken whenever a fetch is taken."""
        self._fetcher_idle = idle

    def share(self, partitions: int) -> int:
        """Return the bytes that each of ``partitions`` may have buffered before fetches omit it."""
        self._share = max(1, self._limit // max(1, partitions) // (3 if self.by_stream else 1))
        return self._share

    def decoded_at_once(self, most: int) -> int:
        """Return how many bytes of a partition's batches to decompress at once, at most ``most``.

        A stream's handler holds what was decompressed for it, and there is one for each partition.
        """
        return min(most, self._share) if self.by_stream else most

    # A fetch is small (a sixteenth of the broker's part), and begins only while there is room for
    # five of its size. The memory of a response is free only when the last of its records is
    # decoded, and the decoder needs memory too: decompressed batches are larger than their bytes
    # here.
    #
    # What the user holds counts three times. The next receive is expected to bring as much before
    # the last one is released, and the holes that its memory leaves in the allocator are as large
    # again.
    #
    # Where nothing from the broker is buffered a fetch may always begin. Otherwise a user who keeps
    # many records would make the fetcher wait for ever.
    def room(self, brokers: int, buffered: int, wanted: int) -> int:
        """Return how many bytes the next fetch from one of ``brokers`` may bring; 0: no room.

        The result is at most ``wanted`` and a sixteenth of the broker's part. ``buffered``: the
        bytes from this broker here.
        """
        part = self._limit // max(1, brokers)
        step = max(1, min(wanted, part // 16))
        if self.by_stream:
            return min(step, self._share)
        held = 3 * max(self._held, self._held_before) // max(1, brokers)
        return 0 if buffered and part - buffered - held < 5 * step else step

    def leaves_out(self, partition: AssignedPartition) -> bool:
        """Return whether fetches omit the partition now: enough is buffered of it, or in total."""
        size = self.size_of(partition)
        if size >= self._share:
            return True
        return self.crowded and (size > 0 or partition not in self._asked)

    def turn(self, node: int) -> float:
        """Return the fraction of the maximum wait that the next fetch from a broker may take.

        Brokers that wait for room have their turns in the rest.
        """
        fetching = len(self._coming.keys() | {node})
        return fetching / (fetching + len(self._denied))

    def may_fetch(self, node: int, room: int) -> bool:
        """Return whether the next fetch from a broker, for ``room`` bytes, may begin now.

        If not, the broker gets a place in the row of brokers that wait for room.
        """
        coming = sum(size for other, size in self._coming.items() if other != node)
        expected = max(room, int(self._largest))
        urgent = self.crowded or not self.by_stream
        cap = self._limit * (1 + self.BEYOND if urgent else 1)
        fits = self._size + coming + expected <= cap or not (self._size or coming)
        first = next(iter(self._denied), node)
        if fits and first != node and self._size + coming + 2 * expected > cap:
            fits = False  # the broker whose turn it is would find no room
        if fits:
            self._denied.pop(node, None)
        else:
            self._denied.setdefault(node)
        return fits

    def keep_in_row(self, nodes: Container[int]) -> None:
        """Forget the waiting brokers that are not among ``nodes``.

        ``nodes`` are the brokers from which something is still to be fetched.
        """
        if self._denied:
            self._denied = {node: None for node in self._denied if node in nodes}

    def droppable(self, room: int) -> list[AssignedPartition]:
        """Return the partitions to drop so that ``room`` bytes, or one batch, have room.

        First come partitions that cannot be delivered, then those that no stream has asked for.
        Nothing of a waiting stream is dropped. A stream that has asked loses records only while
        another one waits.
        """
        over = (
            self._size
            + sum(self._coming.values())
            + max(room, self._largest)
            - self._limit * (1 + self.BEYOND)
        )
        waits = any(partition not in self._queues for partition in self._awaited)
        ranks: list[list[AssignedPartition]] = [[], [], []]
        for partition in self._queues:
            if not partition.deliverable:
                ranks[0].append(partition)
            elif self.by_stream and partition not in self._asked:
                ranks[1].append(partition)
            elif self.by_stream and partition not in self._awaited and waits:
                ranks[2].append(partition)
        found: list[AssignedPartition] = []
        for partition in (*ranks[0], *ranks[1], *ranks[2]):
            if over <= 0:
                break
            over -= self.size_of(partition)
            found.append(partition)
        return found

    def fetch_begun(self, node: int, room: int) -> None:
        """Record that a fetch from a broker, for ``room`` bytes, is under way."""
        self._coming[node] = max(room, int(self._largest))

    def fetch_ended(self, node: int) -> None:
        """Record that the fetch from a broker has ended. Its records are put next."""
        self._coming.pop(node, None)
        if self._fetcher_idle:
            self._wake.fetch()

    def fetch_overdue(self, node: int) -> None:
        """Keep no room any more for the fetch under way from a broker, which is late."""
        self._coming.pop(node, None)

    def await_room(self, partition: AssignedPartition, share: int) -> None:
        """Call the partition's ``has_room`` once fewer than ``share`` bytes of it are buffered."""
        self._full[partition] = share

    def put(self, fetch: CompletedFetch, node: int = -1) -> None:
        """Add a fetch from a broker behind the others of its partition."""
        self._nodes[fetch.partition] = node
        self._largest = max(_first_batch_size(fetch.records), self._largest * _FADING)
        self._queue(fetch).append(fetch)
        self._wake.deliver(fetch.partition)

    def put_first(self, fetch: CompletedFetch) -> None:
        """Add a fetch before the others of its partition: the rest of the one just taken."""
        self._queue(fetch).appendleft(fetch)

    def put_back(self, partition: AssignedPartition, rest: RecordBatch) -> None:
        """Return undelivered records to the front of the buffer.

        They are next, if they may be delivered.
        """
        self.put_first(
            CompletedFetch(partition, partition.ticket, memoryview(b""), None, batch=rest)
        )
        self._queues.move_to_end(partition, last=False)

    def next_partition(self) -> AssignedPartition | None:
        """Return the partition whose turn it is; ``None`` if nothing may be delivered."""
        for partition in self._queues:
            if partition.deliverable:
                return partition
        return None

    def has(self, partition: AssignedPartition) -> bool:
        """Return whether something of the partition may be delivered."""
        return partition in self._queues and partition.deliverable

    def pop(self, partition: AssignedPartition) -> CompletedFetch | None:
        """Remove and return the partition's first fetch, if it may be delivered.

        The partition goes to the end of the row.
        """
        queue = self._queues.get(partition)
        if queue is None or not partition.deliverable:
            return None
        fetch = queue.fetches.popleft()
        self._asked.discard(partition)
        self._count(queue, -fetch.size)
        if queue.fetches:
            self._queues.move_to_end(partition)
        else:
            del self._queues[partition]
        self._note_room(partition, queue.size)
        return fetch

    def drop(self, partition: AssignedPartition) -> None:
        """Drop all fetches of a partition, which a seek, reset or loss has overtaken."""
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
        self._update_crowded()

    def _update_crowded(self) -> None:
        # Hysteresis: once crowded, the buffer stays so until half of that is free. Each change
        # makes the fetch plan look at every partition.
        if not self.by_stream:
            self.crowded = False
            return
        limit = self._limit
        most = max(0.0, limit - max(self._largest, limit / 16))
        self.crowded = self._size > (most / 2 if self.crowded else most)


def _first_batch_size(records: memoryview) -> int:
    """Return the bytes of the first record batch, as its header states."""
    return min(len(records), int.from_bytes(records[8:12], "big") + 12)
