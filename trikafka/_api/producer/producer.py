"""The public producer.

Its methods check their arguments, and append records to the accumulator of the produce manager
(``_managers/producer/produce.py``). The manager's senders then send the batches, and an
:class:`~.ack.Ack` waits for a record's outcome.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import trio

from ..._managers.producer.produce import level_of
from ..._managers.producer.transaction_signals import ProducerTransactionSignals
from ..._net.deadlines import GRACE, RunningCall, check_timeout, run_call
from ..._net.signal import Signal
from ..._state.arguments import HeaderPairs, check_target
from ..._state.producer.producer_batch import ProducerBatch
from ..._state.producer.transaction_state import ProducerTransaction
from ..._wire import _implementation
from ..._wire.partitioning import KEY_RULES
from ...config import ProducerConfig
from ...config.text import plain_text
from ...config.whole import whole
from ...errors import (
    ClientFailedError,
    ConfigurationError,
    DeliveryTimeoutError,
    PluginError,
    TransactionError,
    TrikafkaError,
)
from ...hooks import check_takes, first_answer, name_of, signature_of
from ...interfaces import Partitioner, ProducerContext, TransactionManager
from ...types import (
    BrokerLatency,
    BrokerThrottle,
    BytesLike,
    ConnectionStatistics,
    MetricsPush,
    PartitionInfo,
    RecordMetadata,
)
from ..client.codecs import codec_of
from ..client.context import Context
from ..client.metering import MeteredClient
from ..client.plugin_proxy import guarded_partitioner
from ..client.service import CANCELLED_CLOSE_LIMIT, Exit, Service
from .ack import Ack
from .arrow_sending import ArrowAck, ArrowDelivery, ArrowSending, open_rows
from .builtin import ProducerBuiltin, ProducerClient
from .health import ProducerHealth, producer_health
from .transaction_handle import Transaction
from .waiting import current
from .watchdog import ProducerWatchdog

#: The events of batches that observers may implement.
_POINTS = ("batch_sent", "batch_retried", "batch_delivered", "batch_failed")
#: The arguments of a partitioner: topic, key, partition numbers.
_PARTITIONER_TAKES = ("", None, ())
#: First arguments of the partitioners of aiokafka and kafka-python.
_KEYS = ("key", "key_bytes")
#: Batches that fail at a close before other tasks run.
_STEP = 1_000
#: The arguments of a record; the accumulator makes bytes of key and value.
_Fields = tuple[str, Any, Any, HeaderPairs, int | None, int | None]


@dataclass(frozen=True, slots=True)
class ProducerStatistics:
    """Counters and states of a producer.

    Counters run since the producer was opened. A record counts as accepted once its batch is
    closed.

    Attributes:
        buffer_used: Bytes of ``buffer_memory`` taken by records that wait or are in flight.
        buffer_memory: The bound of ``buffer_used``.
        batches_waiting: Batches of the records in the buffer.
        requests_in_flight: Produce requests without a response.
        tasks_waiting: Tasks that wait for room in the buffer.
        records_accepted: Records accepted.
        records_delivered: Records acknowledged.
        records_failed: Records that failed.
        batches_retried: Batches sent again.
        batches_split: Batches split because they were too large.
        batches_by_state: Counts for ``open`` (takes records), ``waiting``, ``retrying`` (waits to
            be sent again) and ``in flight``.
        latency: Of Produce requests, by broker id; without the waits that the broker's quotas ask
            for.
        batches_expired: Batches past ``delivery_timeout_ms``.
        connections: The state of each connection, and since when.
        throttled: The waits that brokers' quotas ask for (KIP-219), by broker id.
        metrics_push: The pushes of metrics (KIP-714); ``None`` if they are switched off.
    """

    buffer_used: int
    buffer_memory: int
    batches_waiting: int
    requests_in_flight: int
    tasks_waiting: int
    records_accepted: int
    records_delivered: int
    records_failed: int
    batches_retried: int
    batches_split: int
    batches_by_state: Mapping[str, int]
    latency: Mapping[int, BrokerLatency]
    batches_expired: int
    connections: tuple[ConnectionStatistics, ...] = ()
    throttled: Mapping[int, BrokerThrottle] = field(default_factory=dict)
    metrics_push: MetricsPush | None = None


class Producer(MeteredClient):
    """A Kafka producer; made by :func:`trikafka.open_producer`.

    Any number of tasks may use it. Records that one task sends to one partition are written in the
    order of the calls.

    ``value`` and ``key`` are bytes-like or ``None``. ``headers`` are a list of pairs of a name and
    bytes. ``timestamp`` is in milliseconds since the epoch (default: now). Without ``partition``
    the key decides, as in Java's client; without a key all records of a batch go to one partition.
    :meth:`send_arrow` writes whole tables.
    """

    def __init__(self, config: ProducerConfig, service: Service) -> None:
        self._config = config
        self._service = service
        self._closed = False  # set first: a traceback with locals calls repr(), which reads it
        self._context = ProducerParts(config, service)
        self._metrics = self._context.metrics
        self._metadata = self._context.metadata
        self._telemetry = self._context.telemetry
        self._manager = self._context.produce
        self._fairness = current.fairness
        self._passes = self._fairness.passes
        self._transaction = self._context.transaction
        self._transactions = self._context.transactions
        self._quick_append = cast("Callable[..., Ack | None]", self._manager.append)
        self._append = (
            self._quick_append if self._transaction is None else self._append_in_transaction
        )
        # The acks of a plugin's manager have only the members of RecordAck, so ``send`` must wait
        # through their ``wait``.
        self._foreign_acks = "produce" in self._context.plugins_in
        # Common records need neither a Python frame nor a coroutine. The methods of the same names
        # document the two functions, and do the rest. A program may have replaced a method of the
        # class, for example to trace its calls, and then the method is used.
        self._quick: _implementation.current.QuickSending | None = None
        kind = type(self)
        own = kind.enqueue is _ENQUEUE and kind.send_nowait is _SEND_NOWAIT
        if own and not self._foreign_acks:
            ours: Any = self._manager.accumulator
            self._quick = _implementation.current.QuickSending(
                ours.appender,
                self._fairness.turn,
                self._transaction,
                self.enqueue,
                self.send_nowait,
            )
            vars(self).update(enqueue=self._quick.enqueue, send_nowait=self._quick.send_nowait)
        brokers = self._context.brokers
        self._watchdog = ProducerWatchdog(
            config,
            brokers.outages,
            self._metadata,
            self._manager,
            self._transaction,
            self._transactions,
        )
        self._converting = trio.CapacityLimiter(2)
        self._over = trio.Event()

    def __repr__(self) -> str:
        return (
            "<trikafka.Producer "
            f"client_id={self._config.client_id!r}{' closed' if self._closed else ''}>"
        )

    @property
    def config(self) -> ProducerConfig:
        """The settings of this producer, with their defaults.

        The object is frozen. Passwords and keys in it hide themselves from ``repr``.
        """
        return self._config

    @property
    def is_closed(self) -> bool:
        """True once closing has begun: no record is accepted any more."""
        return self._closed

    @property
    def cluster_id(self) -> str | None:
        """The id of the cluster, from the last metadata; ``None`` where the brokers give none."""
        return self._metadata.snapshot.cluster_id

    async def _start(self) -> None:
        await self._context.check_files()
        await self._metadata.bootstrap()
        self._service.start_soon(self._metadata.run)
        self._service.start_soon(self._manager.run)
        if self._transactions is not None:
            await self._transactions.initialize()
            self._service.start_soon(self._transactions.run)
        self._service.start_soon(self._watchdog.run)
        if self._config.enable_metrics_push:
            self._service.start_soon(self._telemetry.run)
        self._context.notify_opened()

    # --- transactions -----------------------------------------------------------------------------

    def transaction(self, *, timeout: float | None = None) -> Transaction:
        """Return a transaction for ``async with``.

        ``read_committed`` readers see all that is sent inside the block, or nothing. A producer has
        one transaction at a time. The block begins once the previous transaction has ended;
        entering waits ``timeout`` seconds for that. See :class:`Transaction` for how it ends.

        Args:
            timeout: Seconds to wait for the previous transaction (default:
                ``default_api_timeout_ms``).

        Raises:
            ConfigurationError: The producer has no ``transactional_id``.
            trio.ClosedResourceError: The producer is closed.
            IllegalStateError: By ``async with``: another transaction is open.
            KafkaTimeoutError: By ``async with``: the previous transaction did not end in time.
            TransactionUndecidedError: By ``async with``: the outcome of the previous commit is
                still missing after ``timeout``.
            TransactionAbortableError: By ``async with``: the broker refused the previous commit
                after all.
            ProducerFencedError: By ``async with``: another producer has this ``transactional_id``
                now.
        """
        check_timeout(timeout, 0.0)
        self._check_open()
        if self._transactions is None or self._transaction is None:
            raise ConfigurationError(
                "transactions need a producer that was opened with a transactional_id"
            )
        return Transaction(
            self._transactions,
            self._transaction,
            self._config,
            timeout,
            self._check_open,
            self._context.home,
        )

    def _append_in_transaction(
        self,
        topic: str,
        value: BytesLike | None,
        key: BytesLike | None,
        headers: HeaderPairs,
        timestamp: int | None,
        partition: int | None,
    ) -> Ack | None:
        transaction: Any = self._transaction
        if not transaction.takes_records:
            transaction.check("send")
        return self._quick_append(topic, value, key, headers, timestamp, partition)

    def _joining(self) -> Callable[[], None]:
        """Raise if no record may join a transaction now.

        The returned function raises once a record could no longer join that same transaction.
        """
        if self._transaction is None:
            return lambda: None
        return partial(self._transaction.still, self._transaction.joining())

    # --- records ----------------------------------------------------------------------------------

    async def send(
        self,
        topic: str,
        value: BytesLike | None,
        *,
        key: BytesLike | None = None,
        headers: HeaderPairs = (),
        timestamp: int | None = None,
        partition: int | None = None,
    ) -> RecordMetadata:
        """Write a record and wait until it is delivered.

        Args:
            topic: The topic.
            value: The value, bytes-like or ``None``.
            key: The key, bytes-like or ``None``.
            headers: Pairs of a name and bytes.
            timestamp: Milliseconds since the epoch (default: now).
            partition: The partition; by default the partitioner decides.

        Returns:
            The record's partition, offset and timestamp.

        Raises:
            TrikafkaError: As :meth:`enqueue` and :meth:`Ack.wait`.

        When cancelled before the record was accepted, nothing is written. When cancelled later, the
        delivery goes on.
        """
        # The fast way: one coroutine for a record, whose body repeats enqueue() and Ack.wait().
        # Where thousands of tasks send, each further coroutine frame a record shows in the
        # throughput, and so does a full checkpoint (6 to 9 µs; see Fairness in waiting.py).
        #
        # 1. Check for cancellation. No await lies between this check and step 2, so a cancellation
        #    here has written nothing.
        # 2. ``_append`` takes the record in one synchronous call. It returns None if a topic or
        #    room in the buffer is missing; only then the slow way, with its deadline, begins.
        # 3. Wait with the batch, not with an event a record: all tasks of a batch are in its
        #    ``Signal`` and are rescheduled together. The ``Signal`` object is its own abort
        #    function, so a waiting task adds no closure and no event. A batch whose ``parts`` exist
        #    was split; Ack.wait() finds the part that holds this record.
        #
        # Other tasks run in the wait of step 3. A send that fails before it does not get there, so
        # it lets them run itself: a loop may try again at once.
        await trio.lowlevel.checkpoint_if_cancelled()
        try:
            self._check_open()
            ack = self._append(topic, value, key, headers, timestamp, partition)
        except Exception:
            await trio.lowlevel.cancel_shielded_checkpoint()
            raise
        if ack is None:
            ack = await self._enqueue_slowly((topic, value, key, headers, timestamp, partition))
        if self._foreign_acks:
            return await ack.wait()
        batch: ProducerBatch = ack._batch
        if not (batch.settled or batch.parts):
            signal: Any = batch.signal or batch.claim(Signal)
            signal.add(trio.lowlevel.current_task())
            try:
                await trio.lowlevel.wait_task_rescheduled(signal)
            except trio.Cancelled:
                batch.unclaim()
                raise
            if batch.settled and not batch.parts:
                return batch.metadata(ack._index, ack._timestamp)
        return await ack.wait()

    async def enqueue(
        self,
        topic: str,
        value: BytesLike | None,
        *,
        key: BytesLike | None = None,
        headers: HeaderPairs = (),
        timestamp: int | None = None,
        partition: int | None = None,
    ) -> Ack:
        """Accept a record into the buffer and return its :class:`Ack`.

        Waits only for the topic's metadata and for room in the buffer; room goes to the waiting
        tasks in order of arrival.

        Args:
            topic: The topic.
            value: The value, bytes-like or ``None``.
            key: The key, bytes-like or ``None``.
            headers: Pairs of a name and bytes.
            timestamp: Milliseconds since the epoch (default: now).
            partition: The partition; by default the partitioner decides.

        Returns:
            The ack; :meth:`Ack.wait` returns the outcome.

        Raises:
            KafkaTimeoutError: Neither metadata nor room within ``max_block_ms``.
            UnknownTopicOrPartitionError: The topic or partition does not exist (after 3 s of
                asking).
            RecordTooLargeError: The record exceeds ``max_request_size`` or ``buffer_memory``.
            TypeError: Key, value or a header is not bytes-like.
            IllegalStateError: The producer has a ``transactional_id``, and no transaction is open.
            TransactionError: The open transaction has failed.
            trio.ClosedResourceError: The producer is closed.

        After an error or a cancellation, nothing was accepted.
        """
        if not self._passes():
            self._context.home.check()  # not for each record: it takes a tenth of the call
            await self._fairness.checkpoint()
        if self._closed:
            self._raise_closed()
        ack = self._append(topic, value, key, headers, timestamp, partition)
        if ack is None:
            ack = await self._enqueue_slowly((topic, value, key, headers, timestamp, partition))
        return ack

    def send_nowait(
        self,
        topic: str,
        value: BytesLike | None,
        *,
        key: BytesLike | None = None,
        headers: HeaderPairs = (),
        timestamp: int | None = None,
        partition: int | None = None,
    ) -> Ack:
        """Accept a record into the buffer without waiting.

        Nothing is sent before the calling task reaches a checkpoint.

        Args:
            topic: The topic.
            value: The value, bytes-like or ``None``.
            key: The key, bytes-like or ``None``.
            headers: Pairs of a name and bytes.
            timestamp: Milliseconds since the epoch (default: now).
            partition: The partition; by default the partitioner decides.

        Raises:
            trio.WouldBlock: The buffer is full, other tasks wait for room, or the topic's metadata
                is missing. The metadata is requested then, so that a later call succeeds.
            UnknownTopicOrPartitionError: The topic was not found within 3 s of such calls.
            TrikafkaError: As :meth:`enqueue`.
        """
        if self._closed:
            self._raise_closed()
        try:
            ack = self._append(topic, value, key, headers, timestamp, partition)
        except RuntimeError:  # perhaps Trio's, which does not run in this thread
            self._context.home.check()
            raise
        if ack is None:
            self._check_open()
            topic = plain_text(topic)
            if not self._knows(topic, partition):
                self._manager.look_up(topic, partition)
            raise trio.WouldBlock
        return ack

    async def send_arrow(
        self,
        topic: str,
        data: Any,
        *,
        key: str | None = None,
        value: str | None = None,
        partition: str | int | None = None,
        timestamp: str | None = None,
        headers: str | None = None,
    ) -> ArrowDelivery:
        """Write the rows of a table as records, and wait until all are delivered.

        Needs pyarrow. The column arguments name columns of the table. An argument that is not given
        means the column of that name, if there is one. Without a column ``value``, the only column
        left holds the values. All other columns are ignored.

        Rows of one partition are written in the table's order, and in order with what the same task
        enqueues before and after. Batches grow to 256 KiB (or ``batch_size``, if that is more; at
        most ``max_request_size``) and do not linger. Rows that do not fit into ``buffer_memory``
        wait for room.

        Args:
            topic: The topic.
            data: A pyarrow Table or RecordBatch, or anything with Arrow's PyCapsule interface (a
                frame of Polars or pandas, a relation of DuckDB). A stream is read to its end first.
                The data must not change during the call.
            key: The column of keys: binary or strings; null is ``None``.
            value: The column of values: binary or strings; null is ``None``.
            partition: A column of integers, or one number for all rows. Without a number the key
                decides, as in :meth:`enqueue`.
            timestamp: A column of timestamps, or of integers (milliseconds); null is now.
            headers: A column of lists of (name, value) structs, or of maps.

        Returns:
            The offsets written, by partition.

        Raises:
            ConfigurationError: A column is missing or of the wrong type. Nothing was written.
            RecordTooLargeError: A row is too large; the error names it. Nothing was written.
            ArrowDeliveryError: A row failed, there was no room for ``max_block_ms``, or the
                producer ended. The error has the number of delivered rows. It is raised once all
                accepted rows have their outcome; no row is accepted after the first failure.
            TrikafkaError: As :meth:`enqueue`, before anything is written.

        When cancelled, the delivery of accepted rows goes on; other rows are not written. Data
        that has to be converted first is converted in a thread, and the call waits for that thread.
        """
        names = {
            "key": key,
            "value": value,
            "partition": partition,
            "timestamp": timestamp,
            "headers": headers,
        }
        sending = await self._sending(topic, data, names, call="send_arrow", awaited=True)
        with self._whole(sending):
            await sending.accept()
            return await sending.outcome()

    async def enqueue_arrow(
        self,
        topic: str,
        data: Any,
        *,
        key: str | None = None,
        value: str | None = None,
        partition: str | int | None = None,
        timestamp: str | None = None,
        headers: str | None = None,
    ) -> ArrowAck:
        """Accept the rows of a table and return one :class:`ArrowAck` for all of them.

        So the next table is encoded while this one is delivered. Waits only for the topic's
        metadata and for room in the buffer. ``data`` may change once the call has returned. Rows
        that do not fill a batch linger for ``linger_ms``, or until a task waits for the ack.

        Args:
            topic: As in :meth:`send_arrow`.
            data: As in :meth:`send_arrow`.
            key: As in :meth:`send_arrow`.
            value: As in :meth:`send_arrow`.
            partition: As in :meth:`send_arrow`.
            timestamp: As in :meth:`send_arrow`.
            headers: As in :meth:`send_arrow`.

        Returns:
            The ack of all rows.

        Raises:
            ArrowDeliveryError: A failure is known before all rows are accepted.
            TrikafkaError: As :meth:`send_arrow`, before anything is written.

        When cancelled, the delivery of accepted rows goes on; other rows are not written.
        """
        names = {
            "key": key,
            "value": value,
            "partition": partition,
            "timestamp": timestamp,
            "headers": headers,
        }
        sending = await self._sending(topic, data, names, call="enqueue_arrow", awaited=False)
        with self._whole(sending):
            if not await sending.accept():
                await sending.outcome()
        return ArrowAck(sending, self._context.home)

    async def _sending(
        self, topic: str, data: Any, names: dict[str, Any], *, call: str, awaited: bool
    ) -> ArrowSending:
        await trio.lowlevel.checkpoint()
        self._check_open()
        joins = self._joining()
        names["partition"] = partition = whole(names["partition"])
        topic = check_target(topic, None if isinstance(partition, str) else partition)
        rows = await open_rows(data, self._converting, **names)
        self._check_open()
        asks = self._context.partitioner is not None
        return ArrowSending(
            self._manager, self._config, topic, rows, joins, call=call, awaited=awaited, asks=asks
        )

    @contextmanager
    def _whole(self, sending: ArrowSending) -> Iterator[None]:
        """Make the transaction abortable if only a part of the table was accepted."""
        transaction = self._transaction
        number = 0 if transaction is None else transaction.number
        try:
            yield
        except BaseException as error:
            # The call may end late, in the next transaction, which has none of its rows.
            if sending.accepted and transaction is not None and transaction.number == number:
                cancelled = TransactionError(f"{sending.call} was cancelled")
                transaction.failed(error if isinstance(error, Exception) else cancelled)
            raise

    # The next three are also the face for trikafka.aio, which keeps the order of calls itself while
    # a topic's metadata is missing.

    def _knows(self, topic: str, partition: int | None = None) -> bool:
        """Return whether the topic and this partition are known, so that only room can lack."""
        return self._manager.knows(topic, partition)

    async def _learn(self, topic: str, waited: float) -> None:
        """Wait for the topic's metadata; ``waited`` are seconds of ``max_block_ms``."""

        async def attempt(call: RunningCall) -> None:
            await call.step(f"metadata of {topic!r}", lambda: self._manager.learn(topic, None))

        await run_call("enqueue", attempt, config=self._config, timeout=self._block_left(waited))

    async def _enqueue_slowly(self, record: _Fields, waited: float = 0.0) -> Ack:
        """Wait for metadata and room, and append; ``waited`` are seconds of ``max_block_ms``."""
        topic = plain_text(record[0])
        partition = whole(record[5])
        joins = self._joining()

        def admitted() -> Ack | None:
            joins()
            return cast("Ack | None", self._manager.append_admitted(*record))

        async def attempt(call: RunningCall) -> Ack:
            if not self._knows(topic, partition):
                await call.step(
                    f"metadata of {topic!r}", lambda: self._manager.learn(topic, partition)
                )
            if self._closed:
                self._raise_closed()
            joins()
            ack = self._quick_append(*record)
            if ack is None:
                call.blame(
                    TrikafkaError(f"no room in buffer_memory ({self._config.buffer_memory} bytes)")
                )
                ack = await call.wait(
                    lambda: self._manager.wait_for_room(admitted, topic, partition), 0.0
                )
            return ack

        return await run_call(
            "enqueue", attempt, config=self._config, timeout=self._block_left(waited)
        )

    def _block_left(self, waited: float) -> float:
        return max(0.0, self._config.max_block_ms / 1000 - waited)

    # --- the rest ---------------------------------------------------------------------------------

    async def flush(self, timeout: float | None = None) -> None:
        """Send all accepted records without lingering; wait for their outcomes.

        Counts what was accepted before this call. Acks show the failures; ``flush`` raises none of
        them.

        Args:
            timeout: Seconds (default: ``default_api_timeout_ms``).

        Raises:
            KafkaTimeoutError: A record has no outcome yet. Its delivery goes on.
            trio.ClosedResourceError: The producer is closed.

        When cancelled, the delivery goes on.
        """
        self._check_open()
        await run_call(
            "flush",
            lambda call: call.wait(self._manager.drain),
            config=self._config,
            timeout=timeout,
        )

    async def client_instance_id(self, *, timeout: float | None = None) -> uuid.UUID:
        """Return the id by which the cluster's metrics know this client (KIP-714).

        The broker is asked once.

        Raises:
            TelemetryNotSupportedError: The brokers take no metrics from clients.
            KafkaTimeoutError: No answer within ``timeout`` seconds.

        When cancelled, nothing has changed.
        """
        check_timeout(timeout, 0.0)
        self._check_open()
        return await self._telemetry.client_instance_id(timeout)

    async def partitions_for(
        self, topic: str, *, timeout: float | None = None
    ) -> list[PartitionInfo]:
        """Return the partitions of a topic; an empty list if the topic does not exist.

        Args:
            topic: The topic.
            timeout: Seconds (default: ``default_api_timeout_ms``).

        Raises:
            KafkaTimeoutError: No answer in time.

        When cancelled, nothing has changed.
        """
        self._check_open()
        topic = check_target(topic, None)

        async def attempt(call: RunningCall) -> list[PartitionInfo]:
            info = await call.step(f"metadata of {topic!r}", lambda: self._metadata.topic(topic))
            if info is None:
                return []
            await call.step(f"metadata of {topic!r}", lambda: self._manager.learn(topic, None))
            return [info.partitions[number] for number in sorted(info.partitions)]

        return await run_call("partitions_for", attempt, config=self._config, timeout=timeout)

    def statistics(self) -> ProducerStatistics:
        """Return a snapshot of the producer's counters and states."""
        if not self._closed:
            self._context.home.check()
        accumulator = self._manager.accumulator
        counters = accumulator.counters
        return ProducerStatistics(
            buffer_used=accumulator.used,
            buffer_memory=self._config.buffer_memory,
            batches_waiting=len(accumulator.unsettled()),
            requests_in_flight=self._manager.requests_in_flight,
            tasks_waiting=self._manager.waiting,
            records_accepted=counters.accepted,
            records_delivered=counters.delivered,
            records_failed=counters.failed,
            batches_retried=counters.batches_retried,
            batches_split=counters.batches_split,
            batches_by_state=dict(accumulator.by_state()),
            latency=dict(self._manager.latency),
            batches_expired=counters.batches_expired,
            connections=self._context.brokers.statistics(),
            throttled=dict(self._context.brokers.throttles.statistics()),
            metrics_push=self._telemetry.statistics(),
        )

    def health(self) -> ProducerHealth:
        """Return whether the producer works, and if not, why: for probes and alerts.

        Returns at once and does no I/O. The producer is not healthy when one of these holds:

        * It is closed or has failed, or no broker can be reached.
        * No further transaction is possible.
        * The last records were refused for a reason that concerns all records (credentials,
          permission), or expired.
        * A record has had no outcome for longer than one attempt may take (``linger_ms +
          request_timeout_ms``).
        * A partition's records, the end of a transaction, or a call has made no progress for
          ``stall_warning_ms``.

        Another thread calls it by :func:`trio.from_thread.run_sync`.
        """
        if not self._closed:
            self._context.home.check()
        brokers = self._context.brokers
        failure = self._service.failure
        standing = self._watchdog.stalled(trio.current_time())
        return producer_health(
            self._config,
            brokers,
            self._manager,
            self._transaction,
            failure,
            standing,
            self._telemetry.statistics(),
            closed=self._closed,
        )

    async def aclose(self, timeout: float | None = None) -> None:
        """Flush, fail the records that are left, and close.

        No further record is accepted. A second call waits for the first one.

        Args:
            timeout: Seconds for the flush (default: ``close_timeout_ms``).

        When cancelled, records that are not delivered fail at once, and the sockets are closed all
        the same.
        """
        limit = check_timeout(timeout, self._config.close_timeout_ms / 1000)
        if not self._closed:
            self._context.home.check()
        with trio.move_on_after(max(GRACE, limit)):
            await self._finish(Exit.CLEAN)

    async def _finish(self, how: Exit) -> None:
        if self._closed:
            await self._over.wait()
            return
        self._closed = True
        if self._quick is not None:
            self._quick.close()
        self._watchdog.stop()
        self._manager.close()
        # In order: no new records, then the end of the transaction, then the flush, then the
        # failure of what is left, and only then the sockets. A record that is accepted has an
        # outcome before the producer is closed, whichever ended the wait: the time, a cancellation,
        # or a failed background task (then no task would send, so the flush is left out).
        #
        # Failing many batches is work of its own: each wakes its tasks. So it is done in steps, and
        # shielded, because tasks that wait for an ack would otherwise never be rescheduled.
        limit = self._close_limit(how)
        start = trio.current_time()
        error: Exception = DeliveryTimeoutError("close", limit)
        try:
            if self._service.failure is None:
                if self._transactions is not None:
                    await self._transactions.finish()
                await self._manager.drain()
                await self._telemetry.push_last()
            else:
                error = ClientFailedError("the producer failed in the background")
                error.__cause__ = self._service.failure
        except trio.Cancelled:
            # The task may have been cancelled long before the time was over.
            spent = round(trio.current_time() - start, 3)
            error = DeliveryTimeoutError("close", min(limit, spent))
            raise
        finally:
            try:
                with trio.CancelScope(shield=True):
                    while self._manager.drop(error, _STEP):
                        await trio.lowlevel.checkpoint()
            finally:  # also after a plugin's manager has failed
                self._context.brokers.close()
                self._service.stop()
                self._over.set()
                self._context.notify_closed()

    def _close_limit(self, how: Exit) -> float:
        # The deadline of a scope that is cancelled, or over, is minus infinity.
        left = max(0.0, trio.current_effective_deadline() - trio.current_time())
        return (
            CANCELLED_CLOSE_LIMIT
            if how is Exit.CANCELLED
            else min(left, self._config.close_timeout_ms / 1000)
        )

    def _check_open(self) -> None:
        if self._closed:
            self._raise_closed()
        self._context.home.check()

    def _raise_closed(self) -> None:
        raise trio.ClosedResourceError("this producer is closed")


class ProducerParts(Context[ProducerConfig]):
    """The parts of one producer."""

    def __init__(self, config: ProducerConfig, service: Service) -> None:
        super().__init__(config, service, ProducerBuiltin())
        self.partitioner = self._find_partitioner(config.partitioner)
        self.codec = codec_of(self.plugins, config.compression_type, level_of(config))
        self.watch = (
            self.observers.call if any(self.observers.has(point) for point in _POINTS) else None
        )
        for kind in ("metadata", "telemetry"):
            self.fill(kind)
        self.metadata = self.manager("metadata")
        self.telemetry = self.manager("telemetry")
        transactional = config.transactional_id is not None
        self.transaction_signals = signals = ProducerTransactionSignals()
        self.transaction: ProducerTransaction | None = None
        if transactional:
            self.transaction = ProducerTransaction(
                changed=signals.changed.notify, wanted=signals.wanted.notify
            )
            self.fill("coordinator")
        self.fill("produce")
        self.produce = self.manager("produce")
        self.transactions: TransactionManager | None = None
        if transactional:
            self.fill("transactions")
            self.transactions = self.manager("transactions")

    def _find_partitioner(self, name: str | Partitioner) -> Partitioner | None:
        """Return the user's partitioner, or a plugin's by its name.

        ``None`` means a built-in partitioner.
        """
        if callable(name):
            check_takes(
                name, _PARTITIONER_TAKES, ConfigurationError, f"partitioner: {name_of(name)}"
            )
            # The partitioners of aiokafka and kafka-python have three arguments, too: key, all
            # partitions, available partitions. Called with trikafka's, such a one would choose by
            # the topic, often without an error.
            signature = signature_of(name)
            if signature is not None and next(iter(signature.parameters), "") in _KEYS:
                raise ConfigurationError(
                    f"partitioner: {name_of(name)} takes a key first, as with aiokafka and "
                    "kafka-python, and is called with topic, key and partitions: give "
                    "partitioner=lambda topic, key, partitions: yours(key, partitions, partitions)"
                )
            return guarded_partitioner(name, "the partitioner")
        # A plugin may have had a partitioner of this name before there was a built-in one.
        own = name == ProducerConfig.partitioner
        offered = None if own else first_answer(self.plugins, "trikafka_partitioner", name=name)
        if offered is None and name in KEY_RULES:
            return None
        if offered is None:
            raise ConfigurationError(
                f"partitioner: no plugin offers one named {name!r}; without plugins there are "
                f"{', '.join(KEY_RULES)}"
            )
        plugin, made = offered
        if not callable(made):
            raise PluginError(
                f"plugin {plugin}: trikafka_partitioner returned {made!r}, which cannot be called"
            )
        who = f"plugin {plugin}: partitioner {name!r}"
        check_takes(made, _PARTITIONER_TAKES, PluginError, who)
        return guarded_partitioner(made, who)


_ENQUEUE = Producer.enqueue
_SEND_NOWAIT = Producer.send_nowait

if TYPE_CHECKING:

    def _fits(producer: ProducerParts) -> tuple[ProducerContext, ProducerClient]:
        """Return a producer as the contexts of plugins and of our factories, for type checkers."""
        return producer, producer
