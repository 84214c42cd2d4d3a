"""The state of the scripted cluster: nodes, topics, partition logs and producers.

No I/O, no messages. Handlers and the script change it. Tasks that wait for a change wait for
``changed``.
"""

from __future__ import annotations

import re
import uuid
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from trikafka.error_codes import ErrorCode

from ._signal import WakeSignal
from .batches import BadBatch, BatchInfo, commits, decode_batch, inspect, place, stamp
from .messages import KAFKA_4, Versions
from .sessions import FetchSessions
from .share import ShareGroups
from .stored import Quorum, Security, directory_of
from .transactions import TransactionCoordinatorState

_NAMESPACE = uuid.UUID("7472696b-6166-6b61-0000-000000000000")
#: The names that Kafka allows for topics.
LEGAL_NAME = re.compile(r"(?!\.{1,2}$)[a-zA-Z0-9._-]{1,249}")


class NodeState(Enum):
    """The state of a node.

    UP: the node responds. FROZEN: it accepts connections and bytes but does not respond. DOWN: it
    refuses connections. LOST: a dial hangs forever.
    """

    UP = "up"
    FROZEN = "frozen"
    DOWN = "down"
    LOST = "lost"


@dataclass(slots=True, eq=False)
class ScriptedNode:
    """One broker."""

    node_id: int
    host: str
    port: int
    versions: dict[int, Versions]
    sessions: FetchSessions
    rack: str | None = None
    state: NodeState = NodeState.UP
    listed: bool = True  # True: metadata lists the node
    accepts: bool = True  # True: new connections are accepted


@dataclass(frozen=True, slots=True)
class StoredBatch:
    """A batch in a log, with the offsets ``base <= offset < end``."""

    base: int
    end: int
    data: bytes
    info: BatchInfo


@dataclass(slots=True)
class RememberedProducer:
    """A partition's memory of a producer: its epoch and its last five batches.

    A batch is (first sequence, last sequence, offset).
    """

    epoch: int
    batches: deque[tuple[int, int, int]] = field(default_factory=lambda: deque(maxlen=5))
    timestamp: int = -1
    coordinator_epoch: int = -1  # of the last marker


@dataclass(slots=True, eq=False)
class Partition:
    """One partition with its log. ``leader`` is ``None`` while there is none."""

    topic: str
    index: int
    leader: int | None
    replicas: list[int]
    leader_epoch: int = 0
    led_since: int = 0  # the epoch in which the leader became one
    start: int = 0
    end: int = 0
    batches: list[StoredBatch] = field(default_factory=list)
    producers: dict[int, RememberedProducer] = field(default_factory=dict)
    open_transactions: dict[int, int] = field(default_factory=dict)  # producer id -> first offset
    # Producer id, first and last offset.
    aborted: list[tuple[int, int, int]] = field(default_factory=list)
    # Leader epoch and its first offset.
    epochs: list[tuple[int, int]] = field(default_factory=lambda: [(0, 0)])
    # The ends of the followers that lag behind.
    lagging: dict[int, int] = field(default_factory=dict)
    tiered: int = 0  # records below this offset are only in remote storage
    remote_readable: bool = True

    @property
    def stable_end(self) -> int:
        """The last stable offset: the start of the first open transaction."""
        return min(self.open_transactions.values(), default=self.end)

    def store(self, batch: bytes, *, log_append_time: int | None = None) -> int:
        """Append one checked batch; return its base offset.

        A duplicate returns the offset of the batch in the log.

        Raises:
            BadBatch: The producer epoch or the sequence number is wrong. It has the error code.
        """
        info = inspect(batch)
        if info.producer_id >= 0 and not info.control:
            known = self._check_sequence(info)
            if known is not None:
                return known
            if info.producer_id in self.open_transactions and not info.transactional:
                raise BadBatch(
                    ErrorCode.INVALID_TXN_STATE,
                    "a batch outside of the transaction that its producer has open",
                )
        base = self.end
        if log_append_time is not None:
            batch = stamp(batch, log_append_time)
        self.append_raw(batch, base)
        self._remember(info, base)
        return base

    def append_raw(
        self, data: bytes, base: int, count: int | None = None, *, rewrite: bool = True
    ) -> None:
        """Append bytes at ``base`` without checks.

        ``count`` is the number of offsets, if the header does not show it.
        """
        if rewrite:
            data = place(data, base, self.leader_epoch)
        info = inspect(data, check=False)
        end = base + (info.last_offset_delta + 1 if count is None else count)
        self.batches.append(StoredBatch(base, end, data, info))
        self.end = max(self.end, end)
        self._follow_transaction(data, base)

    def _follow_transaction(self, data: bytes, base: int) -> None:
        try:
            info = inspect(data)
        except BadBatch:
            return
        if info.control:
            self._follow_marker(info)
            first = self.open_transactions.pop(info.producer_id, None)
            if first is not None and not commits(data):
                self.aborted.append((info.producer_id, first, base))
        elif info.transactional:
            self.open_transactions.setdefault(info.producer_id, base)

    def _follow_marker(self, info: BatchInfo) -> None:
        """Apply a marker: a later epoch (KIP-890) begins with it, at sequence 0."""
        known = self.producers.get(info.producer_id)
        if known is None or known.epoch < info.producer_epoch:
            known = self.producers[info.producer_id] = RememberedProducer(info.producer_epoch)
        known.coordinator_epoch = 0
        known.timestamp = info.max_timestamp

    def in_transaction(self, producer_id: int, epoch: int) -> bool:
        """Return whether a producer has an open transaction here, in this epoch."""
        known = self.producers.get(producer_id)
        return producer_id in self.open_transactions and known is not None and known.epoch == epoch

    def end_transaction(self, marker: bytes) -> int:
        """Append the marker of a transaction's end.

        Return the error code for an outdated producer epoch, or 0.
        """
        info = inspect(marker)
        known = self.producers.get(info.producer_id)
        if known is not None and info.producer_epoch < known.epoch:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        self.append_raw(marker, self.end)
        return ErrorCode.NONE

    def read(self, offset: int, limit: int) -> list[StoredBatch]:
        """Return the batches from ``offset`` on that start before ``limit``.

        The first one contains ``offset`` or follows it.
        """
        return [batch for batch in self.batches if batch.end > offset and batch.base < limit]

    def find_time(self, timestamp: int) -> tuple[int, int] | None:
        """Return offset and timestamp of the first record at or after a time."""
        for batch in self.batches:
            for record in decode_batch(batch.data, self.topic, self.index):
                if (
                    record.timestamp is not None
                    and record.timestamp >= timestamp
                    and record.offset >= self.start
                ):
                    return record.offset, record.timestamp
        return None

    def epoch_at(self, offset: int) -> int:
        """Return the leader epoch of the record at an offset."""
        return max((epoch for epoch, first in self.epochs if first <= offset), default=-1)

    def epoch_end(self, epoch: int) -> tuple[int, int] | None:
        """Return the largest epoch of this log up to ``epoch``, and its end offset.

        ``None`` if ``epoch`` is newer than this log.
        """
        latest = self.epochs[-1][0]
        if epoch >= latest:
            return (epoch, self.end) if epoch == latest else None
        own = max((each for each, _ in self.epochs if each <= epoch), default=epoch)
        return own, min(first for each, first in self.epochs if each > epoch)

    def move_to(self, replicas: Sequence[int]) -> None:
        """Change the replicas; if the leader is not among them, elect the first."""
        self.replicas = list(replicas)
        if self.leader not in self.replicas:
            self.elect(self.replicas[0])

    def elect(self, node: int | None) -> None:
        """Begin the next leader epoch, with this leader or none."""
        self.leader_epoch += 1
        if node != self.leader:
            self.led_since = self.leader_epoch
        self.leader = node
        if node is not None:
            self.epochs = [
                *(entry for entry in self.epochs if entry[1] < self.end),
                (self.leader_epoch, self.end),
            ]

    def high_watermark(self, node: int) -> int:
        """Return the high watermark that a node knows: for the leader, the end of the log.

        A follower may lag behind.
        """
        return self.end if node == self.leader else min(self.lagging.get(node, self.end), self.end)

    def truncate_to(self, offset: int) -> None:
        """Remove the batches that reach beyond an offset."""
        self.batches = [batch for batch in self.batches if batch.end <= offset]
        self.end = self.batches[-1].end if self.batches else min(self.start, offset)
        self.start = min(self.start, self.end)
        self.epochs = [entry for entry in self.epochs if entry[1] < self.end] or [(0, self.start)]
        for state in self.producers.values():
            state.batches = deque(
                (batch for batch in state.batches if batch[2] < self.end), maxlen=5
            )
        reopened = {producer: first for producer, first, last in self.aborted if last >= self.end}
        self.aborted = [entry for entry in self.aborted if entry[2] < self.end]
        self.open_transactions |= reopened
        self.open_transactions = {
            producer: first
            for producer, first in self.open_transactions.items()
            if first < self.end
        }

    def truncate_before(self, offset: int) -> None:
        """Remove the records before an offset, as retention does."""
        self.start = max(self.start, min(offset, self.end))
        self.batches = [batch for batch in self.batches if batch.end > self.start]

    def _check_sequence(self, info: BatchInfo) -> int | None:
        known = self.producers.get(info.producer_id)
        if known is None:
            return None  # as in Kafka: an unknown producer may start with any sequence
        if info.producer_epoch < known.epoch:
            raise BadBatch(
                ErrorCode.INVALID_PRODUCER_EPOCH, f"epoch {info.producer_epoch} after {known.epoch}"
            )
        if info.producer_epoch > known.epoch:
            if info.base_sequence != 0:
                raise BadBatch(
                    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                    f"a new epoch starts with sequence {info.base_sequence}",
                )
            return None
        for first, last, offset in known.batches:
            if (first, last) == (info.base_sequence, info.last_sequence):
                return offset
        latest = known.batches[-1][1] if known.batches else -1
        if info.base_sequence == (latest + 1) % 2**31:
            return None
        raise BadBatch(
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, f"sequence {info.base_sequence} after {latest}"
        )

    def _remember(self, info: BatchInfo, base: int) -> None:
        if info.producer_id < 0 or info.control:
            return
        state = self.producers.get(info.producer_id)
        if state is None or state.epoch != info.producer_epoch:
            state = self.producers[info.producer_id] = RememberedProducer(info.producer_epoch)
        state.batches.append((info.base_sequence, info.last_sequence, base))
        state.timestamp = info.max_timestamp


@dataclass(slots=True, eq=False)
class Topic:
    """A topic. Its id stays the same while the topic exists."""

    name: str
    topic_id: uuid.UUID
    partitions: list[Partition]
    config: dict[str, str] = field(default_factory=dict)

    def partition(self, index: int) -> Partition | None:
        """Return the partition with that number, or ``None``."""
        return self.partitions[index] if 0 <= index < len(self.partitions) else None


@dataclass(slots=True)
class Telemetry:
    """The brokers' subscription to client metrics (KIP-714). ``interval`` is in seconds."""

    metrics: tuple[str, ...] = ()
    interval: float = 300
    subscription_id: int = 1
    clients: int = 0


class State:
    """The whole cluster's data."""

    def __init__(
        self,
        nodes: int,
        clock: Callable[[], int],
        cluster_id: str,
        racks: Sequence[str | None] = (),
        fetch_sessions: int = 1000,
    ) -> None:
        self.cluster_id = cluster_id
        self.clock = clock  # ms since the epoch, in virtual time
        self.nodes = [
            ScriptedNode(
                i,
                f"broker-{i}",
                9092,
                dict(KAFKA_4),
                FetchSessions(1000 * i + 1, fetch_sessions),
                rack,
            )
            for i, rack in zip(range(nodes), [*racks, *[None] * nodes], strict=False)
        ]
        self.topics: dict[str, Topic] = {}
        self.created: set[str] = set()  # the names of all topics, also of deleted ones
        self.changed = WakeSignal()
        self.controller = 0
        self.coordinator = 0
        self.coordinators: dict[str, int] = {}
        self.auto_create = False
        self.next_producer_id = 1000
        self.transactions = TransactionCoordinatorState(clock, self.new_producer_id, self.changed)
        self.telemetry = Telemetry()
        self.security = Security()
        self.quorum = Quorum({number: directory_of(number) for number in range(nodes)})
        #: The start offsets of each share group, by topic and partition.
        self.share_offsets: dict[str, dict[tuple[str, int], int]] = {}
        self.shares = ShareGroups(self.changed)
        self._topics_made = 0

    def new_producer_id(self) -> int:
        """Return a new producer id."""
        self.next_producer_id += 1
        return self.next_producer_id - 1

    def create_topic(
        self,
        name: str,
        partitions: int,
        replication: int | None = None,
        config: Mapping[str, str] | None = None,
    ) -> Topic:
        """Create a topic; its leaders are spread over the nodes.

        Raises ``ValueError`` for a name that no Kafka topic can have.
        """
        if not isinstance(name, str) or not LEGAL_NAME.fullmatch(name):
            raise ValueError(
                f"a topic cannot be called {name!r}: a name has up to 249 of the characters a-z, "
                "A-Z, 0-9, '.', '_' and '-', and is neither '.' nor '..'"
            )
        if not isinstance(partitions, int):
            raise TypeError(
                f"the number of partitions of topic {name!r} must be a number, not {partitions!r}"
            )
        if partitions < 0:
            raise ValueError(f"topic {name!r} cannot have {partitions!r} partitions")
        count = len(self.nodes)
        width = count if replication is None else replication
        self._topics_made += 1
        topic = Topic(
            name, uuid.uuid5(_NAMESPACE, f"{name}/{self._topics_made}"), [], dict(config or {})
        )
        self.topics[name] = topic
        self.created.add(name)
        self.grow_topic(topic, partitions, width)
        return topic

    def grow_topic(self, topic: Topic, partitions: int, replication: int | None = None) -> None:
        """Add partitions until the topic has ``partitions``."""
        count = len(self.nodes)
        width = len(topic.partitions[0].replicas) if replication is None else replication
        for index in range(len(topic.partitions), partitions):
            replicas = [(index + step) % count for step in range(width)]
            topic.partitions.append(Partition(topic.name, index, replicas[0], replicas))
        self.changed.notify()

    def find_topic(self, name: str | None, topic_id: uuid.UUID | None) -> tuple[Topic | None, int]:
        """Return the topic that a request names, and an error code if there is none."""
        if name:
            topic = self.topics.get(name)
            return topic, 0 if topic else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        for topic in self.topics.values():
            if topic.topic_id == topic_id:
                return topic, 0
        return None, ErrorCode.UNKNOWN_TOPIC_ID

    @property
    def has_racks(self) -> bool:
        """True if consumers are sent to followers in their rack, which serve fetches (KIP-392)."""
        return any(node.rack is not None for node in self.nodes)

    def leader_of(self, partition: Partition) -> ScriptedNode | None:
        """Return the leader of a partition, unless the metadata shows it as absent."""
        if partition.leader is None or not self.nodes[partition.leader].listed:
            return None
        return self.nodes[partition.leader]

    def coordinator_of(self, key: str) -> ScriptedNode | None:
        """Return the coordinator of a group or transactional id, unless it is shown as absent."""
        node = self.nodes[self.coordinators.get(key, self.coordinator)]
        return node if node.listed else None
