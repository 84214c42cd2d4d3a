"""What plugins implement, and the values that they exchange with trikafka. No I/O, no behaviour.

A plugin's hook (see :mod:`trikafka.hooks`) returns an object that meets one of these Protocols.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Literal, Protocol, Self, runtime_checkable

from .config import ClientConfig
from .errors import TrikafkaError
from .types import Node, OffsetAndMetadata, TopicPartition

# --- Clients and their request managers (hooks ``trikafka_request_manager``, ``trikafka_observer``) -------------------

#: The seats that a request manager can take. Each owns its state and one kind of conversation with the brokers.
ManagerKind = Literal["metadata", "coordinator", "offsets", "commit", "positions", "fetch", "heartbeat", "membership", "produce"]


@runtime_checkable
class ClientContext(Protocol):
    """What a factory gets to know of the client that opens.

    ``manager(kind)`` is the manager in another seat; seats are filled in the order of :data:`ManagerKind`. ``brokers`` sends
    requests: ``await brokers.request(node, message, purpose=...)``. ``start_soon`` starts a task that ends with the client, and
    whose failure ends it. What a consumer's or a producer's context has beside these (``subscription``, ``member``,
    ``partitioner``) is there for managers that inherit from trikafka's own, and may change with them.
    """

    brokers: Any

    @property
    def config(self) -> ClientConfig:
        """The client's settings: a ``ConsumerConfig``, a ``ProducerConfig`` or an ``AdminConfig``."""

    def manager(self, kind: ManagerKind) -> Any:
        """The manager in a seat that is filled already."""

    def start_soon(self, async_fn: Callable[..., Awaitable[object]], *args: object) -> None:
        """Start a background task of the client."""


@runtime_checkable
class MetadataManager(Protocol):
    """Knows the cluster. ``snapshot`` is immutable and replaced by each refresh."""

    @property
    def snapshot(self) -> Any:
        """The cluster as last seen."""

    def want(self, topics: Iterable[str], *, everything: bool = False) -> None:
        """Set which topics every refresh asks for."""

    def add_topic(self, topic: str) -> None:
        """Add one."""

    def request_update(self) -> None:
        """Refresh soon."""

    def learn_leaders(self, leaders: Any, endpoints: Any) -> frozenset[TopicPartition]:
        """A broker's hint who leads partitions by now (KIP-951): (node id, epoch) by partition. For which that was news."""

    async def changed(self, seen: Any) -> Any:
        """Wait for a snapshot newer than ``seen``."""

    async def refresh(self, topics: Iterable[str] = ()) -> Any:
        """Ask now; callers at the same time share the request."""

    async def leader(self, partition: TopicPartition) -> Node:
        """The leader of a partition, looked up if unknown."""

    async def topic(self, name: str) -> Any:
        """A topic, looked up if unknown; ``None`` if there is none."""

    async def ask_any(self, message: Callable[[], Any]) -> Any:
        """Ask what any broker can answer."""

    async def bootstrap(self) -> None:
        """Make the first contact."""

    async def run(self) -> None:
        """The background work."""


@runtime_checkable
class CoordinatorManager(Protocol):
    """Finds coordinators of groups and transactional ids."""

    async def find(self, key: str, kind: Any = ...) -> Node:
        """The coordinator of ``key``."""

    def mark_unknown(self, key: str, kind: Any = ...) -> None:
        """Look it up again at the next use."""


@runtime_checkable
class OffsetsManager(Protocol):
    """Looks up offsets by time, or of the ends of partitions."""

    async def look_up(self, call: Any, wanted: Mapping[TopicPartition, int], found: Any) -> Any:
        """One attempt; adds to ``found``."""


@runtime_checkable
class CommitManager(Protocol):
    """Writes and reads the committed offsets of a group."""

    async def commit(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        *,
        timeout: float | None = None,
        name: str = "commit",
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """Commit ``offsets``; ``check`` is called before each attempt and raises when they are not the member's any more."""

    async def committed(
        self, partitions: Iterable[TopicPartition] | None, *, timeout: float | None = None, name: str = "committed"
    ) -> Any:
        """What is committed."""

    async def fetch_once(self, call: Any, partitions: Any) -> Any:
        """One attempt to read, as a step of another call."""

    def recover(self, error: TrikafkaError) -> None:
        """Note what a failed attempt says of the coordinator."""


@runtime_checkable
class PositionsManager(Protocol):
    """Finds where to begin in a partition."""

    @property
    def last_error(self) -> TrikafkaError | None:
        """Why the last attempt did not find all positions, if it did not: the cause of a ``position()`` that times out."""

    async def run(self) -> None:
        """The background work."""


@runtime_checkable
class FetchManager(Protocol):
    """Fetches what is assigned into the consumer's fetch buffer."""

    async def run(self) -> None:
        """The background work."""


@runtime_checkable
class HeartbeatManager(Protocol):
    """Says to the coordinator that the member lives."""

    async def run(self, rejoin: Callable[[str], None], fenced: Callable[[TrikafkaError], None]) -> None:
        """Send heartbeats until cancelled."""


@runtime_checkable
class MembershipManager(Protocol):
    """Keeps the consumer in its group. ``fatal`` is the error that stopped that."""

    @property
    def fatal(self) -> TrikafkaError | None:
        """The error that stopped the group's work, until the user subscribes again."""

    def subscription_changed(self) -> None:
        """The user subscribed to something else: ``fatal`` is forgotten, and it is tried again."""

    async def run(self) -> None:
        """The background work, until cancelled. Started anew after each :meth:`reset`."""

    def rejoin(self, why: str) -> None:
        """Join again soon; ``why`` is for the broker's log (KIP-800)."""

    async def leave(self, *, closing: bool = False) -> None:
        """Leave the group. :meth:`run` has ended before."""

    def reset(self) -> None:
        """Be out of the group, also where :meth:`leave` was cancelled or not reached; the next :meth:`run` makes up for it."""


@runtime_checkable
class ProduceManager(Protocol):
    """Owns the producer's ``accumulator``, sends what waits in it and settles its acknowledgements."""

    accumulator: Any
    requests_in_flight: int

    @property
    def closed(self) -> bool:
        """Whether nobody is let in any more."""

    @property
    def waiting(self) -> int:
        """How many tasks wait for room."""

    async def run(self) -> None:
        """The background work."""

    async def learn(self, topic: str, partition: int | None) -> None:
        """Get to know a topic. Raises a retriable error if there is no such topic or partition."""

    def knows(self, topic: str, partition: int | None) -> bool:
        """Whether a record's partition is known, so that only room can be missing."""

    async def wait_for_room(self, take: Callable[[], Any], topic: str, partition: int | None) -> Any:
        """Wait until it is one's turn and ``take`` finds room; return what it returns. Cancelled: nothing has been taken."""

    async def drain(self) -> None:
        """Send what has been accepted so far; return when each record has its outcome."""

    def close(self) -> None:
        """Let nobody in any more."""


@runtime_checkable
class Observer(Protocol):
    """Watches one client. Inherit from it to get methods that do nothing. Plain functions, called in the client's tasks."""

    def opened(self, context: ClientContext) -> None:
        """The client is open."""

    def failed(self, error: Exception) -> None:
        """A background task failed; the client ends."""

    def closed(self) -> None:
        """The client is closed."""


# --- Rebalance listeners (hook ``trikafka_rebalance_listener``) -------------------------------------------------------


@runtime_checkable
class RebalanceListener(Protocol):
    """Is told when the group gives and takes partitions, inside ``receive``, in the task that consumes.

    Inherit from it to get methods that do nothing. Heartbeats go on meanwhile. A method that is cancelled is called again by the
    next receive. What it raises comes out of ``receive``, and the rebalance goes on. One that takes longer than
    ``max_poll_interval_ms`` is cancelled for good, for the group has gone on by then: ``receive`` raises
    :exc:`~trikafka.errors.KafkaTimeoutError`, and the next one loses what was assigned and joins again.

    On ``unsubscribe``, ``aclose`` and at the end of ``async with`` the methods run in the task that leaves, within its limit, and
    only once a method that still runs in another task has ended: two never run at the same time. No heartbeats are sent then.
    ``unsubscribe`` and ``aclose`` cannot be called inside a method, and no new receive can be begun there.

    When the ``async with`` block is cancelled, no method is called: a second is left, for the last commit and the goodbye. What
    must be done then too, belongs into a ``finally`` of the user's.
    """

    async def on_partitions_assigned(self, partitions: Sequence[TopicPartition]) -> None:
        """These partitions are new. Nothing of them has been fetched yet: ``seek`` here wins."""

    async def on_partitions_revoked(self, partitions: Sequence[TopicPartition]) -> None:
        """These partitions go to another member after this returns; they can still be committed here, also on leaving.

        What auto commit has to commit of them was committed just before.
        """

    async def on_partitions_lost(self, partitions: Sequence[TopicPartition]) -> None:
        """These partitions are gone already, and may be with another member: committing them fails."""


# --- Sink: where an export writes (hook ``trikafka_sink``) -----------------------------------------------------------

#: What an export is doing, in this order. ``planned`` or ``resumed``: the plan is stored. ``starting``: the sink makes
#: ready. ``writing``: again and again. ``written``: all data files stand. ``published``: the manifest stands.
#: ``committed``: the group's offsets are in Kafka.
ExportStage = Literal["planned", "resumed", "starting", "writing", "written", "published", "committed"]


@dataclass(frozen=True, slots=True)
class PlannedFile:
    """The records ``start <= offset < end`` of one partition, and the name of the file that they go to."""

    topic: str
    partition: int
    start: int
    end: int
    name: str

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} [{self.start}, {self.end})"


@dataclass(frozen=True, slots=True)
class ExportPlan:
    """What one export does, stored before it begins and never changed.

    ``positions`` holds, for each partition ever exported to this destination, the offset after the plan's last one.
    ``topic_ids`` and ``cluster_id`` are ``None`` where the broker does not give them.
    """

    number: int
    plan_id: str
    created: str
    cluster_id: str | None
    topic_ids: Mapping[str, str | None]
    isolation_level: str
    files: tuple[PlannedFile, ...]
    positions: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """What became of a planned file. ``name`` is ``None``, and there is no file, where the range held no record."""

    planned: PlannedFile
    name: str | None
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class ExportManifest:
    """An export that is done: published last, and at once. Before it stands, nothing counts."""

    plan: ExportPlan
    files: tuple[WrittenFile, ...]

    @property
    def rows(self) -> int:
        """The rows of all files."""
        return sum(file.rows for file in self.files)

    @property
    def bytes(self) -> int:
        """The bytes of all files."""
        return sum(file.bytes for file in self.files)


@dataclass(frozen=True, slots=True)
class ExportState:
    """What a destination says of itself. ``unfinished`` is a stored plan without its manifest."""

    last_number: int = 0
    cluster_id: str | None = None
    topic_ids: Mapping[str, str | None] = field(default_factory=dict)
    positions: Mapping[TopicPartition, int] = field(default_factory=dict)
    unfinished: ExportPlan | None = None


#: ``report(stage, files_done, rows_done)``: plain, quick, called in the task that called ``write``.
SinkReport = Callable[[ExportStage, int, int], None]


@runtime_checkable
class Sink(Protocol):
    """A place that an export writes to. Entered before anything else is done; left in every case.

    All methods raise :exc:`trikafka.ExportError`, with the cause chained, and may be cancelled at any checkpoint. None
    may block the Trio thread.
    """

    async def __aenter__(self) -> Self:
        """Check that the destination can be written and that what the sink needs is there; lock the destination.

        Raises :exc:`trikafka.ExportError` when another export is at work there.
        """

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Remove what a cancelled or failed write left aside, give back the lock. Published files stay."""

    async def load(self) -> ExportState:
        """Return what is there."""

    async def store_plan(self, plan: ExportPlan) -> None:
        """Store the plan, atomically, unless one of its number is there already."""

    async def write(self, plan: ExportPlan, settings: Mapping[str, Any], report: SinkReport) -> Sequence[WrittenFile]:
        """Write the plan's files, each visible to readers only when it is whole; answer once for each planned file.

        A file that an earlier run has finished is kept. ``settings`` are those of a consumer without a group; beside
        them stands ``fail_on_data_loss``: whether offsets that the broker has deleted are an error.
        """

    async def publish(self, manifest: ExportManifest) -> None:
        """Publish the manifest, atomically: after this, and not before, the export is done."""


# --- end of Sink -----------------------------------------------------------------------------------------------------
