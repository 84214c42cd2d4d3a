"""The choice of a record's partition. No I/O.

1. An explicit partition is used as it is.
2. Else the user's partitioner decides, if there is one.
3. Else the key decides, by the rule of the built-in partitioner (``_wire/partitioning.py``).
4. Else the record goes to the partition that keyless records stick to, until a batch's worth of
   bytes is there (KIP-480, KIP-794).

The hashes are in the record path, where the fast path of a record uses them.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..._wire.columns import Columns, RecordBatch
from ..._wire.partitioning import (
    BY_MURMUR2,
    NO_KEYS,
    KeyRule,
    group_rows,
    partition_columns,
    partition_for_key,
)
from ...errors import ConfigurationError, PluginError
from .table_rows import RowGroup

if TYPE_CHECKING:
    from ..._wire._fallback_producing import OpenBatches
    from .partition_queue import PartitionQueue

#: ``(topic, key, partition numbers) -> number``: chooses for records without an explicit partition.
Partitioner = Callable[[str, bytes | None, Sequence[int]], int]


@dataclass(frozen=True, slots=True)
class Partitioning:
    """The settings by which a producer chooses partitions.

    ``stick_for``: bytes after which keyless records go to another partition.
    """

    stick_for: int
    partitioner: Partitioner | None = None
    keys: KeyRule = BY_MURMUR2
    adaptive: bool = True
    #: Returns whether a broker has taken nothing for so long that keyless records go elsewhere.
    is_out_of_reach: Callable[[int], bool] = lambda node: False
    #: Returns whether a broker is in the producer's rack (KIP-1123); None: the rack does not matter.
    is_in_rack: Callable[[int], bool] | None = None
    random: random.Random = field(default_factory=random.Random)


class PartitionChooser:
    """The choice of partitions for one topic, whose ``queues`` it reads.

    The sticky partition is kept in ``open_batches``, where the fast path of a record reads it.
    """

    __slots__ = ("_how", "_open", "_queues", "_spent", "_topic")

    def __init__(
        self, topic: str, how: Partitioning, queues: list[PartitionQueue], open_batches: OpenBatches
    ) -> None:
        self._topic = topic
        self._how = how
        self._queues = queues
        self._open = open_batches
        self._spent = 0  # bytes in closed batches of the sticky partition

    def choose(self, key: bytes | None, partition: int | None) -> int | None:
        """Return the partition of a record; ``None``: there is no such ``partition``.

        -1 stands for the sticky partition.
        """
        if partition is not None:
            if partition < 0:
                raise ConfigurationError(
                    f"partition must be a whole number from 0, not {partition}"
                )
            return partition if partition < len(self._queues) else None
        if self._how.partitioner is not None:
            return self._ask(self._how.partitioner, key)
        rule = self._how.keys
        if (-1 if key is None else len(key)) < rule.shortest:
            return -1
        return partition_for_key(key or b"", len(self._queues), rule.kind)

    def _ask(self, partitioner: Partitioner, key: bytes | None) -> int:
        numbers = range(len(self._queues))
        number = partitioner(self._topic, key, numbers)
        if type(number) is not int or number not in numbers:
            raise PluginError(
                f"the partitioner chose {number!r} of {len(numbers)} partitions of {self._topic!r}"
            )
        return number

    def stuck_to(self) -> PartitionQueue:
        """Return the queue of the sticky partition, chosen now if there is none."""
        return self._queues[self._open.sticky] if self._open.sticky >= 0 else self.switch()

    # The weight of a partition is the length of the longest queue minus its own, plus one, as in
    # Java's client (KIP-794): a slow broker, whose queues are long, gets fewer records. Without
    # ``adaptive`` all weights are equal (KIP-480). Partitions without a leader, or whose leader has
    # taken nothing for ``partitioner_availability_timeout_ms``, are left out while there are
    # others. If there are no others the records wait there, as a partition has to be chosen.
    def switch(self) -> PartitionQueue:
        """Stick to another partition from now on, chosen at random by weight.

        Shorter queues have larger weights.
        """
        led = [queue for queue in self._queues if queue.leader is not None]
        far = {
            node
            for node in {queue.leader for queue in led}
            if node is not None and self._how.is_out_of_reach(node)
        }
        near = [queue for queue in led if queue.leader not in far] if far else led
        candidates = near or led or self._queues
        # After the others: a broker of the rack that takes nothing is worse than another rack.
        if (is_in_rack := self._how.is_in_rack) is not None:
            candidates = [
                queue
                for queue in candidates
                if queue.leader is not None and is_in_rack(queue.leader)
            ] or candidates
        weights = None
        if self._how.adaptive:
            longest = max(len(queue.batches) for queue in candidates)
            weights = [longest + 1 - len(queue.batches) for queue in candidates]
        (queue,) = self._how.random.choices(candidates, weights)
        self._spent = 0
        self._open.stick(queue.place.partition)
        return queue

    def closed(self, partition: int, size: int) -> None:
        """Count ``size`` bytes of a closed batch; end the stickiness after a batch's worth."""
        if partition == self._open.sticky:
            self._spent += size
            if self._spent >= self._how.stick_for:
                self._open.stick(-1)

    def split_rows(
        self, columns: Columns, explicit: memoryview | int | None, keyed: bool
    ) -> list[RowGroup]:
        """Group rows of a table by partition, or all for the sticky partition.

        ``explicit`` is a partition, or one for each row (32-bit numbers, -1: the key decides).
        ``keyed``: there may be keys.

        Raises:
            ValueError: a partition does not exist.
            PluginError: the partitioner returned something else than a partition.
        """
        if isinstance(explicit, int):
            return [RowGroup(explicit, None, 0, columns.count)]
        if self._how.partitioner is not None:
            explicit = self._ask_for_rows(self._how.partitioner, columns, explicit)
        elif explicit is None and (
            self._how.keys is NO_KEYS or (not keyed and self._how.keys.shortest >= 0)
        ):
            return [RowGroup(None, None, 0, columns.count)]
        count = len(self._queues)
        numbers = partition_columns(
            columns.key_offsets,
            columns.key_data,
            columns.key_validity,
            count,
            explicit,
            self.stuck_to().place.partition,
            self._how.keys,
        )
        rows, bounds = group_rows(numbers, count)
        spans = ((number, bounds[number], bounds[number + 1]) for number in range(count))
        return [
            RowGroup(number, rows, start, stop) for number, start, stop in spans if start < stop
        ]

    def _ask_for_rows(
        self, partitioner: Partitioner, columns: Columns, explicit: memoryview | None
    ) -> memoryview:
        numbers = array("i")
        for row, record in enumerate(RecordBatch(self._topic, -1, columns, -1)):
            given = -1 if explicit is None else explicit[row]
            numbers.append(self._ask(partitioner, record.key) if given == -1 else given)
        return memoryview(numbers)
