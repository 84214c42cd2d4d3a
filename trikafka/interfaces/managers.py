"""The contracts of a client's request managers.

Each Protocol here is the whole contract of one kind of manager. An object that has the Protocol's
members can replace the built-in manager; nothing else is required.

Async methods may be cancelled at any checkpoint. They raise errors of trikafka's hierarchy. Any
other exception of a plugin's manager reaches the user as a :exc:`PluginError` that names the
plugin, the kind of manager and the method, with the cause chained. A ``run`` method continues until
it is cancelled. If it returns, the client fails with such an error.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable, Iterable, Mapping, Sized
from typing import Any, Literal, Protocol, TypeVar, runtime_checkable

from ..errors import TrikafkaError
from ..types import (
    BrokerLatency,
    GroupMetadata,
    MetricsPush,
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

#: The kinds of request managers. Each manager owns its state and one kind of conversation with the
#: brokers.
ManagerKind = Literal[
    "metadata",
    "coordinator",
    "offsets",
    "commit",
    "positions",
    "fetch",
    "heartbeat",
    "membership",
    "produce",
    "transactions",
    "share_membership",
    "share_fetch",
    "telemetry",
]
#: The offset found for each partition; ``None`` where every record is older than the wanted time.
Found = dict[TopicPartition, OffsetAndTimestamp | None]
#: The committed offset of each partition; ``None`` where none is committed.
Committed = dict[TopicPartition, OffsetAndMetadata | None]


@runtime_checkable
class MetadataManager(Protocol):
    """The manager of the cluster's metadata, in every client."""

    @property
    def snapshot(self) -> ClusterSnapshot:
        """The cluster as last described: immutable, replaced with each refresh.

        ``version`` grows with each new snapshot.
        """

    def want(self, topics: Iterable[str], *, everything: bool = False) -> None:
        """Set the topics that every refresh requests.

        Args:
            topics: Names of topics.
            everything: Request all topics of the cluster.
        """

    def add_topic(self, topic: str) -> None:
        """Add a topic to those that every refresh requests."""

    def request_update(self) -> None:
        """Refresh soon, in the background, because a part of the snapshot proved wrong."""

    def learn_leaders(
        self, leaders: Mapping[TopicPartition, tuple[int, int]], nodes: Iterable[Node]
    ) -> frozenset[TopicPartition]:
        """Apply a broker's hint about new leaders (KIP-951).

        Args:
            leaders: Node id and leader epoch by partition.
            nodes: Brokers that the hint describes. They may be new.

        Returns:
            The partitions for which the hint was news.
        """

    async def changed(self, seen: ClusterSnapshot) -> ClusterSnapshot:
        """Wait for a snapshot newer than ``seen``; return that snapshot."""

    async def refresh(self, topics: Iterable[str] = ()) -> ClusterSnapshot:
        """Request the metadata now; concurrent callers share one request.

        Args:
            topics: Topics to include in this refresh.

        Raises:
            TrikafkaError: A retriable error, if no broker responds.
        """

    async def topic(self, name: str) -> TopicInfo | None:
        """Return a topic, looked up if unknown; ``None`` if the cluster has no such topic."""

    async def ask_any(self, message: Callable[[], Any]) -> Any:
        """Send a request that any broker can answer; return the response.

        Args:
            message: Creates the request. Called once per broker that is tried.
        """

    async def bootstrap(self) -> None:
        """Make the first contact with the cluster, while the client opens.

        Raises:
            BootstrapError: No bootstrap address responded.
        """

    async def run(self) -> None:
        """Refresh by age and on :meth:`request_update`, until cancelled."""


@runtime_checkable
class CoordinatorManager(Protocol):
    """The manager that finds coordinators of groups and transactional ids.

    It exists in consumers, admin clients, and producers with a ``transactional_id``.
    """

    async def find(self, key: str, kind: CoordinatorKind = CoordinatorKind.GROUP) -> Node:
        """Return the coordinator of ``key``.

        Raises:
            TrikafkaError: A retriable error, while there is no coordinator.
        """

    def mark_unknown(self, key: str, kind: CoordinatorKind = CoordinatorKind.GROUP) -> None:
        """Forget the coordinator of ``key``, which moved or does not respond.

        The next :meth:`find` looks it up again.
        """


@runtime_checkable
class OffsetsManager(Protocol):
    """The manager that looks up offsets by time and the ends of partitions.

    It exists in consumers and admin clients.
    """

    async def look_up(
        self, call: Call, wanted: Mapping[TopicPartition, int], found: Found
    ) -> Found:
        """Make one attempt to find the offset of a time in each partition.

        Args:
            call: The API call that this attempt belongs to.
            wanted: The time of each partition, in milliseconds since the epoch, or an
                ``OffsetSpec``.
            found: The results of earlier attempts. New results are added.

        Returns:
            ``found``.

        Raises:
            TrikafkaError: A retriable error, if some partitions are missing.
        """


@runtime_checkable
class CommitManager(Protocol):
    """The manager of a group's committed offsets, in consumers with a ``group_id``."""

    async def commit(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        *,
        timeout: float | None = None,
        name: str = "commit",
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """Commit ``offsets``.

        If the caller is cancelled during a request, the commit may or may not have happened.

        Args:
            offsets: The offset to commit for each partition.
            timeout: Seconds for the whole call; ``None`` means ``default_api_timeout_ms``.
            name: The name of the API call, for errors.
            check: Called before each attempt. It raises if the member no longer owns the
                partitions.

        Raises:
            CommitFailedError: The group refused the commit.
            KafkaTimeoutError: The timeout passed.
        """

    async def committed(
        self,
        partitions: Iterable[TopicPartition] | None,
        *,
        timeout: float | None = None,
        name: str = "committed",
    ) -> Committed:
        """Return the committed offsets.

        Args:
            partitions: The partitions to look up; ``None`` means all partitions with a committed
                offset.
            timeout: Seconds for the whole call; ``None`` means ``default_api_timeout_ms``.
            name: The name of the API call, for errors.

        Raises:
            KafkaTimeoutError: The timeout passed.
        """

    async def fetch_once(self, call: Call, partitions: list[TopicPartition] | None) -> Committed:
        """Make one attempt to read committed offsets, as a step of another call.

        The result has an entry for each partition that was requested. The positions manager uses
        this method to find where to start.
        """

    def recover(self, error: TrikafkaError) -> None:
        """Discard what ``error`` proves wrong, such as the known coordinator.

        Called after an attempt of :meth:`fetch_once` failed with ``error``.
        """


@runtime_checkable
class PositionsManager(Protocol):
    """The manager that finds start positions, in consumers.

    It works on the partitions in ``ConsumerState.assignment.unlocated``.
    """

    @property
    def last_error(self) -> TrikafkaError | None:
        """The reason why the last attempt did not find all positions; ``None`` if it did.

        A ``position()`` that times out names this error as its cause.
        """

    async def run(self) -> None:
        """Locate partitions until cancelled.

        A partition that can never be located is marked by ``failed(error)``.
        """


@runtime_checkable
class FetchManager(Protocol):
    """The manager that fetches assigned partitions into the buffer, in consumers.

    It works on the partitions in ``ConsumerState.assignment.fetchable``.
    """

    async def run(self) -> None:
        """Fetch until cancelled."""


@runtime_checkable
class HeartbeatManager(Protocol):
    """The manager of heartbeats of the classic protocol, in consumers with a ``group_id``."""

    async def run(
        self, rejoin: Callable[[str], None], fenced: Callable[[TrikafkaError], None]
    ) -> None:
        """Send heartbeats until cancelled, or until the member is fenced.

        Started again for each generation.

        Args:
            rejoin: Called with the reason when the group rebalances.
            fenced: Called with the error when the group has removed the member.
        """


@runtime_checkable
class MembershipManager(Protocol):
    """The manager of the group membership, in consumers with a ``group_id``."""

    @property
    def fatal(self) -> TrikafkaError | None:
        """The error that stopped the membership, until the next subscription.

        Every receive raises this error.
        """

    def subscription_changed(self) -> None:
        """Handle a new subscription: clear ``fatal`` and join again."""

    async def run(self) -> None:
        """Keep the membership until cancelled. Started again after each :meth:`reset`."""

    def rejoin(self, why: str) -> None:
        """Join the group again soon; ``why`` goes to the broker's log (KIP-800)."""

    async def leave(self, *, closing: bool = False) -> None:
        """Leave the group.

        :meth:`run` has ended before. A failure is logged, not raised.

        Args:
            closing: True if the consumer closes, False if only its subscription ends.
        """

    def reset(self) -> None:
        """Forget the membership, also where :meth:`leave` was cancelled or not reached.

        The next :meth:`run` catches up on what was missed.
        """


# --- managers of producers ------------------------------------------------------------------------


class RecordCounters(Protocol):
    """Counts of records and batches since the producer was opened, for ``statistics()``."""

    accepted: int
    delivered: int
    failed: int
    batches_retried: int
    batches_split: int
    batches_expired: int


@runtime_checkable
class RecordAccumulator(Protocol):
    """A read-only view of the records that a producer has accepted and not completed."""

    @property
    def used(self) -> int:
        """The bytes of ``buffer_memory`` in use."""

    @property
    def largest(self) -> int:
        """The size of the largest record that is accepted, in bytes."""

    @property
    def counters(self) -> RecordCounters:
        """The counts of completed and failed records."""

    def unsettled(self) -> Sized:
        """Return the batches without an outcome."""

    @property
    def last_error(self) -> Exception | None:
        """The last failure of an attempt or a record; ``None`` after a later delivery."""

    def oldest(self) -> UnsentRecord | None:
        """Return the record that has waited longest for its outcome; ``None`` if none waits."""

    def by_state(self) -> Mapping[str, int]:
        """Return the number of batches in each state."""

    def too_large(self, topic: str, size: int, what: str = "a record") -> Exception:
        """Return the error for a record that is too large.

        Args:
            topic: The record's topic.
            size: The record's size in bytes.
            what: The subject of the error's message.
        """


class RecordAck(Protocol):
    """The future outcome of one record, as returned by :meth:`ProduceManager.append`.

    :class:`trikafka.Ack` implements this Protocol. The acks of another manager reach the user
    unchanged. ``send`` waits by :meth:`wait`.
    """

    @property
    def done(self) -> bool:
        """True once the outcome is known."""

    async def wait(self) -> RecordMetadata:
        """Wait for the outcome; raise it if the record failed."""


class TableRows(Protocol):
    """Rows of a table that may go into the same batches.

    :meth:`ProduceManager.split_rows` creates them, and :meth:`ProduceManager.extend` takes them in
    turn.
    """

    @property
    def partition(self) -> int | None:
        """The partition of all rows; ``None`` if each batch may go to another partition."""

    @property
    def start(self) -> int:
        """The position of the first row."""

    @property
    def stop(self) -> int:
        """The position after the last row."""


class RowsBatch(Protocol):
    """A batch with rows of a table, for managers with batches of their own.

    Hashable.
    """

    @property
    def place(self) -> TopicPartition:
        """The partition of the batch."""

    @property
    def settled(self) -> bool:
        """True once the outcome is known."""

    @property
    def error(self) -> Exception | None:
        """The failure of a settled batch; ``None`` if it was delivered."""

    @property
    def base_offset(self) -> int | None:
        """The offset of the first record of a settled batch.

        ``None`` where the broker returns none.
        """

    @property
    def maybe_written(self) -> bool:
        """True if the records may be in the log although the batch failed."""

    async def wait(self) -> None:
        """Wait until the batch is settled. A failed batch raises nothing here."""


class TakenRows(Protocol):
    """Rows of a table that went into one batch."""

    @property
    def batch(self) -> Any:
        """The batch: a :class:`RowsBatch`, or a batch of the built-in manager."""

    @property
    def first(self) -> int:
        """The index in the batch of the first of these rows."""

    @property
    def next(self) -> int:
        """The position of the next row to take."""


@runtime_checkable
class ProduceManager(Protocol):
    """The manager that accepts records, sends them and completes their acks, in producers.

    Only this manager changes the ``accumulator``. Acks, groups of rows and batches are its own
    classes: :class:`RecordAck`, :class:`TableRows` and :class:`RowsBatch` have all the members that
    trikafka uses. A :class:`trikafka.RecordBatch` reads the ``columns`` of a table as records:

        trikafka.RecordBatch(topic, 0, columns, 0)

    With a ``transactional_id`` the manager asks ``context.transaction``: ``admits(partition)`` adds
    the partition and returns whether a batch may be sent, ``given`` is the identity for the batch,
    and ``failed(error)`` reports the failure of one of the transaction's records.
    """

    @property
    def accumulator(self) -> RecordAccumulator:
        """The records accepted so far; the same object for the manager's whole life."""

    # Accepting records: plain functions without a checkpoint. They never wait.

    @property
    def append(self) -> Callable[[str, Any, Any, Any, int | None, int | None], RecordAck | None]:
        """The function that accepts a record; the same object for the manager's whole life.

        Its arguments are topic, value, key, headers, timestamp (milliseconds) and partition. It
        returns the record's ack. It returns ``None`` if there is no room, if other tasks wait for
        room, or if the partition is unknown.

        This function is called for every record. It is therefore the only member without a wrapper:
        its exceptions reach the user unchanged.
        """

    def append_admitted(
        self,
        topic: str,
        value: Any,
        key: Any,
        headers: Any,
        timestamp: int | None,
        partition: int | None,
    ) -> RecordAck | None:
        """Accept a record as :attr:`append`, for the task whose turn it is to get room."""

    def split_rows(
        self, topic: str, columns: Any, explicit: Any, keyed: bool
    ) -> Iterable[TableRows]:
        """Group the rows of a table by the partitions that they go to.

        Args:
            topic: The topic.
            columns: The table's columns.
            explicit: One partition for all rows, a sequence with one partition per row (-1: none),
                or ``None``.
            keyed: True if the table has keys.
        """

    def extend(
        self, topic: str, columns: Any, group: Any, start: int, admitted: bool = False
    ) -> TakenRows | None:
        """Take rows of a group into a batch.

        Args:
            topic: The topic.
            columns: The table's columns.
            group: A group from :meth:`split_rows`.
            start: The position of the first row to take.
            admitted: True for the task whose turn it is to get room.

        Returns:
            The rows taken; ``None`` if there is no room.
        """

    def flush_batches(self, batches: Iterable[Any]) -> None:
        """Send these batches without lingering."""

    @property
    def requests_in_flight(self) -> int:
        """The number of Produce requests without a response."""

    @property
    def latency(self) -> Mapping[int, BrokerLatency]:
        """The response times of each broker, by node id."""

    @property
    def closed(self) -> bool:
        """True once the manager accepts no more records."""

    @property
    def waiting(self) -> int:
        """The number of tasks that wait for room."""

    async def run(self) -> None:
        """Send batches until cancelled.

        Every accepted record gets its outcome within ``delivery_timeout_ms``.
        """

    async def learn(self, topic: str, partition: int | None) -> None:
        """Look up a topic or partition.

        Raises:
            TrikafkaError: A retriable error, if there is no such topic or partition.
        """

    def knows(self, topic: str, partition: int | None) -> bool:
        """Return whether a record's partition is known.

        If so, only a lack of room can make :attr:`append` return ``None``.
        """

    def look_up(self, topic: str, partition: int | None) -> None:
        """Start the look-up of an unknown topic or partition without waiting.

        A later call may find the topic.

        Raises:
            TrikafkaError: The look-up cannot succeed: the topic has been unknown for too long, or
                access is denied.
        """

    async def wait_for_room(
        self, take: Callable[[], T | None], topic: str, partition: int | None
    ) -> T:
        """Wait for this task's turn and until ``take`` finds room; return its result.

        If the caller is cancelled, nothing has been taken.

        Args:
            take: Takes room; returns ``None`` if there is none.
            topic: The record's topic.
            partition: The record's partition; ``None`` if the record names none.

        Raises:
            TrikafkaError: A retriable error, if the topic or partition is gone.
            trio.ClosedResourceError: The producer was closed meanwhile.
        """

    async def drain(self) -> None:
        """Send all records accepted so far without lingering; return once all are completed."""

    def close(self) -> None:
        """Accept no more records.

        Tasks that wait for room get :exc:`trio.ClosedResourceError`.
        """

    # Called by the transaction manager of a producer with a transactional_id.

    def identify(self, identity: tuple[int, int]) -> None:
        """Set the producer id and epoch of all later batches; restart the sequence numbers.

        No batch is waiting at that time.
        """

    def partitions_added(self) -> None:
        """Resume sending: partitions have joined the transaction and may be written to."""

    def delayed(self, error: Exception) -> None:
        """Record why waiting batches are delayed; the error is the cause if they expire."""

    def drop(self, error: Exception, at_most: float = math.inf, *, unsent: bool = False) -> bool:
        """Fail batches without an outcome, including those in flight.

        Called when the producer or its transaction ends.

        Args:
            error: The failure.
            at_most: The largest number of batches to fail in this call.
            unsent: Fail only batches that were never sent, because the transaction failed. Tasks
                that wait for room then look again.

        Returns:
            True if batches are left.
        """

    async def wait_none_in_flight(self) -> None:
        """Wait until no request is in flight."""


@runtime_checkable
class TransactionManager(Protocol):
    """The manager of transactions, in producers with a ``transactional_id``.

    Timeouts are in seconds. The manager reports each step to ``context.transaction``
    (:class:`ProducerTransactionState`), and raises what its ``check(call)`` raises:

    * InitProducerId, when the producer opens: ``initializing``, ``initialized``, then the produce
      manager's ``identify``.
    * :meth:`begin`: ``begun``.
    * AddPartitionsToTxn for ``missing``, when ``transaction_signals.wanted`` is notified
      (version 1): ``adding``, ``added``, then the produce manager's ``partitions_added``.
    * AddOffsetsToTxn, unless ``knows_group``, and TxnOffsetCommit: ``adding``, ``group_added``.
    * A refused request: ``failed``, or ``ruined`` if the producer cannot continue.
    * :meth:`prepare`: ``closing``, ``prepared``, ``reopened``.
    * :meth:`commit`: ``closing``, ``committing``, ``reopened``; then ``ended``, ``not_committed``
      or ``undecided``.
    * :meth:`abort`: ``aborting``, the produce manager's ``drop``, ``ended``.

    While ``started`` is False, no coordinator knows of the transaction, and EndTxn is not sent.
    After ``ended(renew=True)`` the manager requests a new epoch; ``initialized`` follows.
    """

    async def initialize(self) -> None:
        """Get a producer id while the producer opens.

        This fences older producers with the same transactional id.
        """

    async def run(self) -> None:
        """Do the background work until cancelled."""

    async def begin(self, *, timeout: float | None = None) -> int:
        """Begin a transaction once the last one has ended; return its number."""

    async def send_offsets(
        self,
        number: int,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        group: Callable[[], GroupMetadata],
        *,
        timeout: float | None = None,
    ) -> None:
        """Add offsets to transaction ``number`` (KIP-447).

        Args:
            number: The number that :meth:`begin` returned.
            offsets: The offset of each partition.
            group: Returns the consumer's group metadata. Called again for each attempt.
            timeout: Seconds for the whole call.
        """

    async def prepare(self, number: int, *, timeout: float | None = None) -> PreparedTransaction:
        """Send all records of the transaction, so that only its outcome is missing (KIP-939)."""

    async def commit(self, number: int, *, timeout: float | None = None) -> None:
        """Commit transaction ``number``. After one of these errors it may be called again.

        Raises:
            TransactionAbortableError: The transaction failed and can only be aborted.
            TransactionUndecidedError: The call was cut off, so the outcome is unknown.
        """

    async def abort(self, number: int, *, timeout: float | None = None) -> None:
        """Abort transaction ``number``. If cancelled, the abort continues in the background."""

    async def finish(self) -> None:
        """Abort an open transaction, and wait for one that is ending.

        Called because the producer closes.
        """


@runtime_checkable
class ShareMembershipManager(Protocol):
    """The manager of a share consumer's membership of its group (KIP-932)."""

    @property
    def member_id(self) -> str:
        """The member's id, the same for the member's life. Requests for records carry it, too."""

    @property
    def fatal(self) -> TrikafkaError | None:
        """The error that ended the membership, which each receive raises; ``None`` without one."""

    async def run(self) -> None:
        """Join, and report each assignment to the client's state, until cancelled."""

    async def leave(self) -> None:
        """Leave the group; :meth:`run` has ended before."""


@runtime_checkable
class ShareFetchManager(Protocol):
    """The manager that acquires records of a share group, acknowledges them and renews locks.

    It puts acquired records into the client's buffer (:attr:`ShareConsumerContext.core`).
    """

    @property
    def last_error(self) -> TrikafkaError | None:
        """The last error of a broker; ``None`` since a fetch succeeded."""

    async def run(self) -> None:
        """Acquire records while there is room, until cancelled."""

    async def settled(self, acquired: Any, start: int, stop: int) -> None:
        """Wait until acknowledgements have an outcome.

        Args:
            acquired: The acquired records.
            start: The index of the first record.
            stop: The index after the last one.
        """

    async def flush(self) -> None:
        """Send the acknowledgements that wait; return when each has an outcome."""

    async def close(self) -> None:
        """Release what is held, send the last acknowledgements, and end the sessions.

        :meth:`run` may still be running.
        """


@runtime_checkable
class TelemetryManager(Protocol):
    """The manager of the client's identity in the cluster's metrics, and of its pushes (KIP-714).

    It exists in every client. The metrics are those of :attr:`ClientContext.metrics`.
    """

    async def run(self) -> None:
        """Push what brokers subscribe to, until cancelled."""

    async def client_instance_id(self, timeout: float | None) -> uuid.UUID:
        """Return the id that a broker gave this client, the same for the client's life.

        Args:
            timeout: Seconds for the whole call.

        Raises:
            TelemetryNotSupportedError: The brokers take no metrics from clients.
            KafkaTimeoutError: No broker answered in time.
        """

    async def push_last(self) -> None:
        """Push once more, because the client closes, if a broker wants metrics.

        Called with a deadline, and once :meth:`run` has nothing more to do. Must not raise errors
        of the brokers.
        """

    def statistics(self) -> MetricsPush | None:
        """Return what is pushed and when; ``None`` for a client that pushes nothing."""
