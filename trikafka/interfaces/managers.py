"""The seats of a client: what the request manager in each of them does. A Protocol here is the whole contract of its seat.

A manager that has what its Protocol names works in that seat; nothing beyond that is asked of it. Async methods may be cancelled
at any checkpoint. What they raise is an error of trikafka's tree; anything else that comes out of a plugin's
manager reaches the user as a :exc:`PluginError` that names the plugin, the seat and the method, with the cause chained. A ``run``
goes on until it is cancelled: if it returns, the client ends with such an error.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sized
from typing import Any, Literal, Protocol, TypeVar, runtime_checkable

from ..errors import TrikafkaError
from ..types import (
    BrokerLatency,
    GroupMetadata,
    Node,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    PreparedTransaction,
    RecordMetadata,
    TopicPartition,
    UnsentRecord,
)
from .cluster import ClusterSnapshot, CoordinatorKind, TopicInfo
from .network import Call

T = TypeVar("T")

#: The seats that a request manager can take. Each owns its state and one kind of conversation with the brokers.
ManagerKind = Literal[
    "metadata", "coordinator", "offsets", "commit", "positions", "fetch", "heartbeat", "membership", "produce", "transactions"
]
#: partition -> what was found; ``None`` where no record is that young.
Found = dict[TopicPartition, OffsetAndTimestamp | None]
#: partition -> what is committed; ``None`` where nothing is.
Committed = dict[TopicPartition, OffsetAndMetadata | None]


@runtime_checkable
class MetadataManager(Protocol):
    """Knows the cluster. In every client."""

    @property
    def snapshot(self) -> ClusterSnapshot:
        """The cluster as last seen: immutable, replaced by a newer one (``version``) with each refresh."""

    def want(self, topics: Iterable[str], *, everything: bool = False) -> None:
        """Set which topics every refresh asks for; ``everything``: all topics of the cluster."""

    def add_topic(self, topic: str) -> None:
        """Add a topic to those."""

    def request_update(self) -> None:
        """Refresh soon, in the background: something that the snapshot says was found wrong."""

    def learn_leaders(self, leaders: Mapping[TopicPartition, tuple[int, int]], nodes: Iterable[Node]) -> frozenset[TopicPartition]:
        """A broker's hint who leads partitions by now (KIP-951): node id and epoch of each; ``nodes`` may be new.

        Returns those for which that was news.
        """

    async def changed(self, seen: ClusterSnapshot) -> ClusterSnapshot:
        """Wait for a snapshot newer than ``seen``."""

    async def refresh(self, topics: Iterable[str] = ()) -> ClusterSnapshot:
        """Ask now, also for ``topics``; callers at the same time share the request. Raises a retriable error if nobody responds."""

    async def topic(self, name: str) -> TopicInfo | None:
        """A topic, looked up if unknown; ``None`` if there is none."""

    async def ask_any(self, message: Callable[[], Any]) -> Any:
        """Send what any broker can respond to (``message`` makes the request anew for each that is tried); the response."""

    async def bootstrap(self) -> None:
        """Make the first contact, while the client opens. Raises :exc:`BootstrapError` when no address answers."""

    async def run(self) -> None:
        """Refresh by age and on :meth:`request_update`, until cancelled."""


@runtime_checkable
class CoordinatorManager(Protocol):
    """Finds coordinators of groups and transactional ids.

    In consumers, admin clients, and producers with a ``transactional_id``.
    """

    async def find(self, key: str, kind: CoordinatorKind = CoordinatorKind.GROUP) -> Node:
        """The coordinator of ``key``. Raises a retriable error while there is none."""

    def mark_unknown(self, key: str, kind: CoordinatorKind = CoordinatorKind.GROUP) -> None:
        """It has moved or does not respond: look it up again at the next use."""


@runtime_checkable
class OffsetsManager(Protocol):
    """Looks up offsets by time, or of the ends of partitions. In consumers and admin clients."""

    async def look_up(self, call: Call, wanted: Mapping[TopicPartition, int], found: Found) -> Found:
        """One attempt to find, for each partition of ``wanted``, the offset of a time (ms since the epoch, or an ``OffsetSpec``).

        Adds to ``found``, which holds what earlier attempts found, and returns it. Raises a retriable error when some are missing.
        """


@runtime_checkable
class CommitManager(Protocol):
    """Writes and reads the committed offsets of a group. In consumers with a ``group_id``."""

    async def commit(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        *,
        timeout: float | None = None,
        name: str = "commit",
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """Commit ``offsets`` within ``timeout`` seconds (``None``: ``default_api_timeout_ms``); ``name`` is the call's, for errors.

        ``check`` is to be called before each attempt: it raises when they are not the member's to commit any more. Raises
        :exc:`CommitFailedError`, :exc:`KafkaTimeoutError`. Cancelled while it is under way, it may or may not have happened.
        """

    async def committed(
        self, partitions: Iterable[TopicPartition] | None, *, timeout: float | None = None, name: str = "committed"
    ) -> Committed:
        """What is committed for ``partitions`` (``None``: for all that have a commit). As :meth:`commit`."""

    async def fetch_once(self, call: Call, partitions: list[TopicPartition] | None) -> Committed:
        """One attempt to read, as a step of another call: where does the consumer begin? Says something of each partition."""

    def recover(self, error: TrikafkaError) -> None:
        """An attempt of :meth:`fetch_once` failed with ``error``: forget what that proves wrong (the coordinator, say)."""


@runtime_checkable
class PositionsManager(Protocol):
    """Finds where to begin in partitions without a position (``ConsumerState.assignment.unlocated``). In consumers."""

    @property
    def last_error(self) -> TrikafkaError | None:
        """Why the last attempt did not find all positions, if it did not: the cause of a ``position()`` that times out."""

    async def run(self) -> None:
        """Locate partitions until cancelled. What cannot be located for good is told ``failed(error)``."""


@runtime_checkable
class FetchManager(Protocol):
    """Fetches what is assigned (``ConsumerState.assignment.fetchable``) into the buffer. In consumers."""

    async def run(self) -> None:
        """Fetch until cancelled."""


@runtime_checkable
class HeartbeatManager(Protocol):
    """Says to the coordinator that the member lives. In consumers with a ``group_id``."""

    async def run(self, rejoin: Callable[[str], None], fenced: Callable[[TrikafkaError], None]) -> None:
        """Send heartbeats until cancelled, or until ``fenced`` was told why the member is out of its group.

        ``rejoin`` is told (why) when the group rebalances. Started anew for each generation.
        """


@runtime_checkable
class MembershipManager(Protocol):
    """Keeps the consumer in its group. In consumers with a ``group_id``."""

    @property
    def fatal(self) -> TrikafkaError | None:
        """The error that stopped the group's work, until the user subscribes again. Every receive raises it."""

    def subscription_changed(self) -> None:
        """The user subscribed to something else: ``fatal`` is forgotten, and it is tried again."""

    async def run(self) -> None:
        """The background work, until cancelled. Started anew after each :meth:`reset`."""

    def rejoin(self, why: str) -> None:
        """Join again soon; ``why`` is for the broker's log (KIP-800)."""

    async def leave(self, *, closing: bool = False) -> None:
        """Leave the group. :meth:`run` has ended before. Best effort: what fails is logged, not raised.

        ``closing``: the consumer closes, and does not only end its subscription.
        """

    def reset(self) -> None:
        """Be out of the group, also where :meth:`leave` was cancelled or not reached; the next :meth:`run` makes up for it."""


# --- the producer's ---------------------------------------------------------------------------------------------------


class RecordCounters(Protocol):
    """What has become of records and batches since the producer was opened: for ``statistics()``."""

    accepted: int
    delivered: int
    failed: int
    batches_retried: int
    batches_split: int
    batches_expired: int


class RecordAccumulator(Protocol):
    """The records that a producer has accepted and that have no outcome yet, for others than its manager: to look at."""

    @property
    def used(self) -> int:
        """Bytes of ``buffer_memory`` in use."""

    @property
    def largest(self) -> int:
        """The largest that a record may be, in bytes."""

    @property
    def counters(self) -> RecordCounters:
        """What has become of the records."""

    def unsettled(self) -> Sized:
        """The batches without an outcome."""

    @property
    def last_error(self) -> Exception | None:
        """What an attempt, or a record, failed with last; ``None`` once something was delivered after that."""

    def oldest(self) -> UnsentRecord | None:
        """The record that has been without an outcome for longest."""

    def by_state(self) -> Mapping[str, int]:
        """How many batches there are in each state."""

    def too_large(self, topic: str, size: int, what: str = "a record") -> Exception:
        """The error that says so."""


class RecordAck(Protocol):
    """What a user gets for a record that was taken: a :class:`trikafka.Ack`, which is more than this."""

    @property
    def done(self) -> bool:
        """Whether the outcome is known."""

    async def wait(self) -> RecordMetadata:
        """Wait for the outcome."""


class TakenRows(Protocol):
    """Rows of a table that went into one batch."""

    @property
    def batch(self) -> Any:
        """The batch."""

    @property
    def first(self) -> int:
        """The index of the first of them there."""

    @property
    def next(self) -> int:
        """The row to go on from."""


@runtime_checkable
class ProduceManager(Protocol):
    """Owns the producer's ``accumulator``, which it alone changes: takes records in, sends what waits, settles acks. In producers.

    Acks, groups of rows and batches are those of trikafka's accumulator: a manager that does not hand on the built-in one's makes
    them by it.
    """

    @property
    def accumulator(self) -> RecordAccumulator:
        """The records accepted so far. The same one for the manager's whole life."""

    # Records in: no checkpoint, no waiting.

    @property
    def append(self) -> Callable[[str, Any, Any, Any, int | None, int | None], RecordAck | None]:
        """What takes a record: topic, value, key, headers, timestamp, partition. The same one for the manager's whole life.

        It returns the record's ack, or ``None``: no room, others wait for room, or its partition is not known. Called for every
        record, and so the one member that nothing watches: what it raises reaches the user as it is.
        """

    def append_admitted(
        self, topic: str, value: Any, key: Any, headers: Any, timestamp: int | None, partition: int | None
    ) -> RecordAck | None:
        """As :attr:`append`, by whose turn it is among those who wait for room."""

    def split_rows(self, topic: str, columns: Any, explicit: Any, keyed: bool) -> Iterable[Any]:
        """Decide to which partitions the rows of a table go: groups of rows."""

    def extend(self, topic: str, columns: Any, group: Any, start: int, admitted: bool = False) -> TakenRows | None:
        """Take rows of a group, from ``start`` on, into a batch; ``None``: no room. ``admitted``: it is the caller's turn."""

    def hurry(self, batches: Iterable[Any]) -> None:
        """Let these batches linger no more."""

    @property
    def requests_in_flight(self) -> int:
        """Produce requests without a response."""

    @property
    def latency(self) -> Mapping[int, BrokerLatency]:
        """How long each broker took to respond, by its id."""

    @property
    def closed(self) -> bool:
        """Whether nobody is let in any more."""

    @property
    def waiting(self) -> int:
        """How many tasks wait for room."""

    async def run(self) -> None:
        """Send, until cancelled. Every record that was accepted has its outcome within ``delivery_timeout_ms``."""

    async def learn(self, topic: str, partition: int | None) -> None:
        """Get to know a topic. Raises a retriable error if there is no such topic or partition."""

    def knows(self, topic: str, partition: int | None) -> bool:
        """Whether a record's partition is known, so that only room can be missing."""

    def look_up(self, topic: str, partition: int | None) -> None:
        """Have a topic (or partition) looked up that is not known, without waiting: a later call may find it.

        Raises what says that it will not be found: unknown for too long, or access is refused.
        """

    async def wait_for_room(self, take: Callable[[], T | None], topic: str, partition: int | None) -> T:
        """Wait until it is one's turn and ``take`` finds room; return what it returns. Cancelled: nothing has been taken.

        Raises a retriable error when the topic or partition is gone, :exc:`trio.ClosedResourceError` when closed meanwhile.
        """

    async def drain(self) -> None:
        """Send what has been accepted so far without lingering; return when each record has its outcome."""

    def close(self) -> None:
        """Let nobody in any more: who waits for room gets :exc:`trio.ClosedResourceError`."""

    # Of a producer with a transactional_id, told by the transaction manager.

    def identify(self, identity: tuple[int, int]) -> None:
        """Producer id and epoch for what is sent from now on; sequence numbers begin anew. Nothing waits then."""

    def admitted(self) -> None:
        """Partitions that waited for it may be written to now."""

    def delayed(self, error: Exception) -> None:
        """What waits, waits since this happened: should it expire now, that is the cause."""

    def drop(self, error: Exception, at_most: float = math.inf, *, unsent: bool = False) -> bool:
        """Fail everything that has no outcome, what is in flight included: the producer, or its transaction, ends.

        Not more than ``at_most`` batches; returns whether something is left. ``unsent``: only what was never sent, for the
        transaction has failed; who waits for room is to look again.
        """

    async def landed(self) -> None:
        """Wait until nothing is in flight."""


@runtime_checkable
class TransactionManager(Protocol):
    """Begins, fills and ends transactions. In producers with a ``transactional_id``. Times are in seconds."""

    async def initialize(self) -> None:
        """Get a producer id, while the producer opens: fences older ones with this transactional id."""

    async def run(self) -> None:
        """The background work, until cancelled."""

    async def begin(self, *, timeout: float | None = None) -> int:
        """Begin a transaction once the last one is over; its number."""

    async def send_offsets(
        self,
        number: int,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        group: Callable[[], GroupMetadata],
        *,
        timeout: float | None = None,
    ) -> None:
        """Make offsets part of transaction ``number`` (KIP-447); ``group`` is asked for each attempt anew."""

    async def prepare(self, number: int, *, timeout: float | None = None) -> PreparedTransaction:
        """Have all of it at the brokers, so that only the outcome is missing (KIP-939)."""

    async def commit(self, number: int, *, timeout: float | None = None) -> None:
        """Commit it.

        Raises :exc:`TransactionAbortableError` or :exc:`TransactionUndecidedError`; may be called again after that.
        """

    async def abort(self, number: int, *, timeout: float | None = None) -> None:
        """Abort it. Goes on in the background when it is cancelled."""

    async def finish(self) -> None:
        """The producer closes: abort what is open, and wait until what is ending has ended."""
