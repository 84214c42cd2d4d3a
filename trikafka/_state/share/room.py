"""Which broker may be fetched from now, for how many records and bytes, and for how long. No I/O.

How the bound of bytes holds
----------------------------

A fetch brings at most half of the bytes that are free, divided by the number of brokers, and none
begins while half of all bytes are in use and records wait. So all brokers together bring at most
half of the bytes at a time. Only a batch that is larger than its fetch may go over the bound, since
each response has one whole batch.

A broker counts bytes as they are in its log, compressed. What they become is estimated by a ratio
for each partition: that of its last records, or an earlier and larger one, which fades. The largest
of all partitions counts, since any of them may fill the next response. Before the first response a
large one is assumed.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection
from typing import Literal, NamedTuple

from ..._wire.share import SharePartition
from .acquired import Holdings
from .buffer import ShareBuffer
from .window import FetchWindow

#: A fetch that is this many seconds past its wait keeps no room from other brokers any more: its
#: broker may be frozen. If that broker responds nevertheless, more records are held than the window
#: has, until the program has decided the surplus. Releasing the surplus would cost each record one
#: of its deliveries.
_LATE = 1.0
#: The longest time (ms) for which a fetch waits while records are held. A broker that stops leading
#: a partition says so only when a fetch ends. The fetch manager asks the metadata for the leaders
#: after 80 ms without a response, so a broker that responds in time spares that question.
_WAIT_WHILE_HELD = 60
#: The assumed ratio of decompressed to compressed bytes before the first response.
_FIRST_RATIO = 16.0
#: The factor by which a partition's largest ratio fades with each response that has records of it.
_FADING = 0.95


class FetchBounds(NamedTuple):
    """The bounds of a fetch: what it may bring, and how long (milliseconds) it may wait."""

    records: int
    size: int
    wait: int


class FetchRoom:
    """The room for records that the fetches of all brokers share, and the line of those that wait.

    Args:
        buffer: The records that are not delivered yet.
        holdings: The numbers of held records.
        most: The setting ``max_in_flight``.
        most_bytes: The setting ``fetch_buffer_bytes``.
        fetch_bytes: The setting ``fetch_max_bytes``.
        acquire: The setting ``acquire``.
        max_wait_ms: The setting ``fetch_max_wait_ms``.
        linger_ms: The setting ``ack_linger_ms``.
    """

    def __init__(
        self,
        buffer: ShareBuffer,
        holdings: Holdings,
        *,
        most: int,
        most_bytes: int,
        fetch_bytes: int,
        acquire: Literal["batches", "records"],
        max_wait_ms: float,
        linger_ms: float,
    ) -> None:
        self._buffer = buffer
        self._holdings = holdings
        self._by_record = acquire == "records"
        self._most_bytes = most_bytes
        self._fetch_bytes = fetch_bytes
        # By partition: the ratio of decompressed to compressed bytes in its last records.
        self._ratios: dict[SharePartition, float] = {}
        self._max_wait_ms = max_wait_ms
        self._linger_ms = linger_ms
        self._window = FetchWindow(most)
        # The brokers that wait for room or for their turn, in this order.
        self._line: deque[int] = deque()
        self._reserved = 0  # the records that fetches in flight may bring
        # The brokers with a fetch in flight that is not late: its room, and when it will be late.
        self._fetching: dict[int, tuple[int, float]] = {}

    # --- the line ---

    def may_fetch(self, node_id: int) -> bool:
        """Return whether there is room and it is this broker's turn; if not, add it to the line."""
        # Brokers that wait for room are served in the order of their arrival. Otherwise a broker
        # whose fetches end early would take the room of all others each time.
        if node_id not in self._line:
            self._line.append(node_id)
        return self._line[0] == node_id and self.now_free() > 0

    def leave_line(self, node_id: int) -> bool:
        """Remove a broker from the line; return whether others may have their turn now."""
        if node_id not in self._line:
            return False
        self._line.remove(node_id)
        return True

    # --- how much, and for how long ---

    @property
    def ratio(self) -> float:
        """The bytes of records that each byte of the next response may become."""
        return max(self._ratios.values(), default=_FIRST_RATIO)

    def now_free(self) -> int:
        """Return how many records may be fetched now; 0 while it is better to wait."""
        if self._by_record and self._fetching:
            return 0
        return self._free(self._reserved)

    def is_full(self) -> bool:
        """Return whether nothing could be fetched even if no fetch were in flight."""
        return self._free(0) == 0

    @property
    def enough(self) -> int:
        """The number of held records at which there is room for a next fetch."""
        return self._window.size // 2 - self._reserved

    def bounds(
        self, node_id: int, active: int, brought: Collection[int], now: float
    ) -> FetchBounds:
        """Return what a broker's fetch may bring, and how long it may wait.

        Args:
            node_id: The broker.
            active: The number of brokers that are fetched from.
            brought: The brokers whose last response brought records.
            now: The current time.
        """
        free = (self._most_bytes - self._buffer.size) / (2 * active * self.ratio)
        size = max(1, min(self._fetch_bytes, int(free)))
        wait = self._max_wait_ms
        # An acknowledgement that is made while a fetch waits for records has to wait with it: a
        # session has one request at a time. So a fetch waits for as long as the program has been at
        # work on what it has, which at most doubles the time of a record.
        if self._holdings.held:
            at_work = 1000 * (now - self._holdings.received_at)
            wait = min(wait, max(at_work, self._linger_ms, 1), _WAIT_WHILE_HELD)
        if self._by_record or self._window.size < active:
            # A broker whose last response brought records probably has more. While it waits in
            # line, a fetch from another broker must not wait for records.
            if any(each in brought for each in self._line if each != node_id):
                return FetchBounds(self.now_free(), size, 1)
            return FetchBounds(self.now_free(), size, int(wait / active))
        records = min(self.now_free(), -(-self._window.size // active))
        return FetchBounds(records, size, int(wait))

    # --- what happens ---

    def fetch_begun(self, node_id: int, room: int, ends: float) -> None:
        """Record that a broker fetches up to ``room`` records, and waits for them until ``ends``.

        The broker is the first in the line, and leaves it.
        """
        if self._line:
            self._line.popleft()
        self._reserved += room
        self._fetching[node_id] = (room, ends + _LATE)

    def fetch_ended(self, node_id: int) -> None:
        """Record that a broker's fetch has ended."""
        room, _ = self._fetching.pop(node_id, (0, 0.0))
        self._reserved -= room

    def decoded(self, key: SharePartition, raw: int, size: int) -> None:
        """Record that ``raw`` bytes of a partition became ``size`` bytes of records."""
        self._ratios[key] = max(1.0, size / max(1, raw), self._ratios.get(key, 0.0) * _FADING)

    def keep_only(self, keys: Collection[SharePartition]) -> None:
        """Forget all partitions but these."""
        self._ratios = {key: ratio for key, ratio in self._ratios.items() if key in keys}

    def pass_over_late(self, now: float) -> float:
        """Keep no more room for fetches that are late; return when the next one will be late."""
        for node_id in [each for each, (_, at) in self._fetching.items() if at <= now]:
            self.fetch_ended(node_id)
        return min((at for _, at in self._fetching.values()), default=math.inf)

    def decided(self, seconds: float) -> None:
        """Record that records of one response were all decided, ``seconds`` after they came."""
        self._window.done(seconds)

    def _free(self, reserved: int) -> int:
        # Each fetch of a damaged partition brings another error, and no record that is held.
        if self._buffer.errors:
            return 0
        room = self._window.size - self._holdings.held - reserved
        # While records wait to be delivered, a fetch of a few more would be a waste. When none
        # wait, a handler may be idle, and a single record is worth a fetch.
        if self._holdings.buffered and (
            room < self._window.size / 2 or 2 * self._buffer.size > self._most_bytes
        ):
            return 0
        return max(0, room)
