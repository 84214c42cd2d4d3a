"""The producer as the user holds it. What it does lives in the produce manager."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any, cast

import trio

from .._managers.outcomes import waiters_of
from .._managers.produce import Fields
from .._managers.telemetry import Telemetry
from .._managers.transaction_signals import TransactionSignals
from .._net.deadlines import GRACE, Call, check_timeout, run_call
from .._state.accumulator import Partitioner
from .._state.arguments import HeaderPairs, check_target, plain
from .._state.producer_batch import ProducerBatch
from .._state.transaction import ProducerTransaction
from ..config import ProducerConfig
from ..errors import ClientFailedError, ConfigurationError, DeliveryTimeoutError, PluginError, TransactionError, TrikafkaError
from ..hooks import first_answer
from ..interfaces import TransactionManager
from ..types import BrokerLatency, BrokerThrottle, ConnectionStatistics, PartitionInfo, RecordMetadata
from .ack import Ack
from .arrow_sending import ArrowAck, ArrowDelivery, ArrowSending, open_rows
from .context import Context
from .guard import guarded_partitioner
from .producer_health import ProducerHealth, producer_health
from .service import CANCELLED_CLOSE_LIMIT, Exit, Service
from .transaction import Transaction
from .waiting import fairness, within

#: What a producer's observers may be told of its batches.
_POINTS = ("batch_sent", "batch_retried", "batch_delivered", "batch_failed")
#: How many batches fail at a close before other tasks run.
_STEP = 1_000


@dataclass(frozen=True, slots=True)
class ProducerStatistics:
    """What a producer knows of itself.

    ``buffer_used`` of ``buffer_memory`` bytes are taken by records that wait or are in flight; ``batches_waiting`` counts
    their batches; ``tasks_waiting`` wait for room. The rest has been counted since the producer was opened; a record is
    counted as accepted when its batch is closed. ``batches_by_state``: ``open`` (takes records), ``waiting``, ``retrying`` (waits
    to be sent again) and ``in flight``. ``latency`` of Produce requests by the broker's id, without what its quotas had them wait,
    which stands beside. ``connections`` tells of each connection in which state it is, and was for how long. ``throttled``, by the
    broker's id, of the waits that brokers' quotas ask for (KIP-219).
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


class Producer:
    """Writes records. Made by :func:`trikafka.open_producer`; any number of tasks may use it.

    Records of one task for one partition are written in the order of the calls. ``value`` and ``key`` are bytes-like or
    ``None``; ``headers`` are a list of pairs of a name and bytes; ``timestamp`` is in milliseconds since the epoch (default: now).
    Without ``partition`` the key decides (as in Java's client), without a key a partition is kept for a batch.
    :meth:`send_arrow` writes whole tables.
    """

    def __init__(self, config: ProducerConfig, service: Service) -> None:
        self._config, self._service = config, service
        self._closed = False  # first: a traceback with locals shows what is half made
        self._context = ProducerParts(config, service)
        self._metadata = self._context.metadata
        self._telemetry = Telemetry(config, self._metadata)
        self._manager = self._context.produce
        self._transaction, self._transactions = self._context.transaction, self._context.transactions
        self._take = cast("Callable[..., Ack | None]", self._manager.append)
        self._append = self._take if self._transaction is None else self._append_in_transaction
        self._converting = trio.CapacityLimiter(2)
        self._over = trio.Event()

    def __repr__(self) -> str:
        return f"<trikafka.Producer client_id={self._config.client_id!r}{' closed' if self._closed else ''}>"

    async def _start(self) -> None:
        await self._metadata.bootstrap()
        self._service.start_soon(self._metadata.run)
        self._service.start_soon(self._manager.run)
        if self._transactions is not None:
            await self._transactions.initialize()
            self._service.start_soon(self._transactions.run)
        self._context.tell_opened()

    # --- transactions ------------------------------------------------------------------------------------------------

    def transaction(self, *, timeout: float | None = None) -> Transaction:
        """A transaction, for ``async with``: what is sent inside is seen by ``read_committed`` readers as a whole, or not at all.

        There is one at a time. Its block begins once the last one is over, for which it waits ``timeout`` seconds (default:
        ``default_api_timeout_ms``): past them it raises :exc:`KafkaTimeoutError`, or :exc:`TransactionUndecidedError` if the
        outcome of a commit is still missing. It raises :exc:`TransactionAbortableError` if such a commit turned out to be refused;
        :exc:`ProducerFencedError` if another producer has this ``transactional_id`` now; :exc:`IllegalStateError` while
        another one is open; :exc:`trio.ClosedResourceError` once the producer is closed;
        :exc:`ConfigurationError` without a ``transactional_id``. See :class:`Transaction` for its end.
        """
        check_timeout(timeout, 0.0)
        self._check_open()
        if self._transactions is None or self._transaction is None:
            raise ConfigurationError("transactions need a producer that was opened with a transactional_id")
        return Transaction(self._transactions, self._transaction, self._config, timeout, self._check_open)

    def _append_in_transaction(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        headers: HeaderPairs,
        timestamp: int | None,
        partition: int | None,
    ) -> Ack | None:
        transaction: Any = self._transaction
        if not transaction.takes_records:
            transaction.check("send")
        return self._take(topic, value, key, headers, timestamp, partition)

    def _joining(self) -> Callable[[], None]:
        """Raise if no record may join a transaction now; returns what raises once it could not join the same one."""
        if self._transaction is None:
            return lambda: None
        return partial(self._transaction.still, self._transaction.joining())

    # --- records -----------------------------------------------------------------------------------------------------

    async def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: HeaderPairs = (),
        timestamp: int | None = None,
        partition: int | None = None,
    ) -> RecordMetadata:
        """Write a record and wait until it is delivered. Raises what :meth:`enqueue` and :meth:`Ack.wait` raise.

        Cancelled before the record was accepted: nothing is written. Cancelled after that: it stays on its way.
        """
        # As in enqueue and Ack.wait, written out: each coroutine more is seen where thousands of tasks send.
        if time.perf_counter() >= fairness.due:
            await fairness.take()
        else:
            await trio.lowlevel.checkpoint_if_cancelled()
        if self._closed:
            self._raise_closed()
        ack = self._append(topic, value, key, headers, timestamp, partition)
        if ack is None:
            ack = await self._enqueue_slowly((topic, value, key, headers, timestamp, partition))
        batch: ProducerBatch = ack._batch
        if not (batch.settled or batch.outcome.parts):
            waiters: Any = batch.outcome.signal or waiters_of(batch)
            waiters.add(trio.lowlevel.current_task())
            await trio.lowlevel.wait_task_rescheduled(waiters)
            if batch.settled and not batch.outcome.parts:
                return batch.metadata(ack._index, ack._timestamp)
        return await ack.wait()

    async def enqueue(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: HeaderPairs = (),
        timestamp: int | None = None,
        partition: int | None = None,
    ) -> Ack:
        """Hand a record over and return its :class:`Ack`. Waits only for the topic's metadata and for room in the buffer.

        Raises :exc:`KafkaTimeoutError` past ``max_block_ms``, :exc:`UnknownTopicOrPartitionError` if there is no such topic
        or partition (after 3 s of asking), :exc:`RecordTooLargeError`, :exc:`TypeError` for what is not bytes-like,
        :exc:`trio.ClosedResourceError` once closed. If it raises, :exc:`trio.Cancelled` included, nothing was accepted.
        """
        if time.perf_counter() >= fairness.due:
            await fairness.take()
        else:
            await trio.lowlevel.checkpoint_if_cancelled()
        if self._closed:
            self._raise_closed()
        ack = self._append(topic, value, key, headers, timestamp, partition)
        if ack is None:
            ack = await self._enqueue_slowly((topic, value, key, headers, timestamp, partition))
        return ack

    def send_nowait(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: HeaderPairs = (),
        timestamp: int | None = None,
        partition: int | None = None,
    ) -> Ack:
        """Hand a record over without waiting. Raises :exc:`trio.WouldBlock` if the buffer is full, others wait for room,
        or the topic's metadata is not there yet: it is asked for, so that a later call succeeds. Else raises as :meth:`enqueue`,
        for a topic that is not found within 3 s too.

        Nothing is sent, and nothing asked, before the calling task comes to a checkpoint.
        """
        if self._closed:
            self._raise_closed()
        ack = self._append(topic, value, key, headers, timestamp, partition)
        if ack is None:
            topic = plain(topic)
            if not self._manager.knows(topic, partition):
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
        """Write the rows of a table as records, and wait until all of them are delivered; needs pyarrow.

        ``data`` is a pyarrow Table or RecordBatch, or anything with Arrow's PyCapsule interface (a frame of Polars or pandas, a
        relation of DuckDB; a stream is read to its end first), and must not change meanwhile. The other arguments name its
        columns. What is not named is taken from the column that is called so (``key``, ``value``, ``partition``,
        ``timestamp``, ``headers``) if there is one, and for the values else from the only column left; all others are ignored.

        Keys and values are binary or strings; null is ``None``. ``partition`` is a column of integers, or one number for all rows;
        where there is none, or null, the key decides, as in :meth:`enqueue`. Timestamps are timestamps, or integers
        (milliseconds); null is now. Headers are lists of (name, value) structs, or maps.

        Rows of one partition are written in the table's order, and in order with what the same task has enqueued before and
        enqueues after. They fill batches up to 256 KiB (or ``batch_size``, if that is more; at most ``max_request_size``), which do
        not linger; there too, what does not fit into ``buffer_memory`` waits for room.

        Raises before anything is written: :exc:`ConfigurationError` for columns that are not there or of the wrong type,
        :exc:`RecordTooLargeError` (it names the row), and what :meth:`enqueue` raises. After that: :exc:`ArrowDeliveryError`
        with the number of rows that were delivered, when all that was accepted has its outcome; no row is accepted
        after the first failure. No room for ``max_block_ms`` is such a failure, and so is the producer's end.

        Cancellation: rows accepted so far stay on their way, the others are not written. Data that must be converted first is
        converted in a thread, which is waited for.
        """
        names = {"key": key, "value": value, "partition": partition, "timestamp": timestamp, "headers": headers}
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
        """Hand the rows of a table over and return the :class:`ArrowAck` of all of them: the next table is encoded meanwhile.

        Waits only for the topic's metadata and for room in the buffer; ``data`` may change once it has returned. What is not a
        whole batch lingers for ``linger_ms``, or until somebody waits for the ack. All else, and what is raised before
        anything is written, is as in :meth:`send_arrow`; if a failure is known before all rows are accepted, it raises
        :exc:`ArrowDeliveryError` itself, in the same way.

        Cancellation: as :meth:`send_arrow`.
        """
        names = {"key": key, "value": value, "partition": partition, "timestamp": timestamp, "headers": headers}
        sending = await self._sending(topic, data, names, call="enqueue_arrow", awaited=False)
        with self._whole(sending):
            if not await sending.accept():
                await sending.outcome()
        return ArrowAck(sending)

    async def _sending(self, topic: str, data: Any, names: dict[str, Any], *, call: str, awaited: bool) -> ArrowSending:
        await trio.lowlevel.checkpoint()
        self._check_open()
        joins, partition = self._joining(), names["partition"]
        topic = check_target(topic, None if isinstance(partition, str) else partition)
        rows = await open_rows(data, self._converting, **names)
        self._check_open()
        return ArrowSending(self._manager, self._config, topic, rows, joins, call=call, awaited=awaited)

    @contextmanager
    def _whole(self, sending: ArrowSending) -> Iterator[None]:
        """A part of a table is not to be committed."""
        try:
            yield
        except BaseException as error:
            if sending.accepted and self._transaction is not None:
                cancelled = TransactionError(f"{sending.call} was cancelled")
                self._transaction.failed(error if isinstance(error, Exception) else cancelled)
            raise

    async def _enqueue_slowly(self, record: Fields) -> Ack:
        topic, partition = plain(record[0]), record[5]
        joins = self._joining()

        def admitted() -> Ack | None:
            joins()
            return cast("Ack | None", self._manager.append_admitted(*record))

        async def attempt(call: Call) -> Ack:
            if not self._manager.knows(topic, partition):
                await call.step(f"metadata of {topic!r}", lambda: self._manager.learn(topic, partition))
            if self._closed:
                self._raise_closed()
            joins()
            ack = self._take(*record)
            if ack is None:
                call.blame(TrikafkaError(f"no room in buffer_memory ({self._config.buffer_memory} bytes)"))
                ack = await within(call, 0.0, lambda: self._manager.wait_for_room(admitted, topic, partition))
            return ack

        return await run_call("enqueue", attempt, config=self._config, timeout=self._config.max_block_ms / 1000)

    # --- the rest ----------------------------------------------------------------------------------------------------

    async def flush(self, timeout: float | None = None) -> None:
        """Send what was accepted before this call without lingering; return when each record is delivered or has failed.

        Failures are seen through the acks. Raises :exc:`KafkaTimeoutError` past ``timeout`` (seconds); what is on its way
        stays there, also when cancelled.
        """
        self._check_open()
        await run_call("flush", lambda call: within(call, GRACE, self._manager.drain), config=self._config, timeout=timeout)

    async def client_instance_id(self, *, timeout: float | None = None) -> uuid.UUID:
        """The id by which the cluster's metrics know this client (KIP-714), asked for once.

        Raises :exc:`TelemetryNotSupportedError` where the brokers take no metrics from clients, :exc:`KafkaTimeoutError`.
        """
        check_timeout(timeout, 0.0)
        self._check_open()
        return await self._telemetry.client_instance_id(timeout)

    async def partitions_for(self, topic: str, *, timeout: float | None = None) -> list[PartitionInfo]:
        """The partitions of ``topic``; empty if there is no such topic. Raises :exc:`KafkaTimeoutError` past ``timeout``."""
        self._check_open()
        topic = check_target(topic, None)

        async def attempt(call: Call) -> list[PartitionInfo]:
            info = await call.step(f"metadata of {topic!r}", lambda: self._metadata.topic(topic))
            if info is None:
                return []
            await call.step(f"metadata of {topic!r}", lambda: self._manager.learn(topic, None))
            return [info.partitions[number] for number in sorted(info.partitions)]

        return await run_call("partitions_for", attempt, config=self._config, timeout=timeout)

    def statistics(self) -> ProducerStatistics:
        """A snapshot of what the producer knows of itself."""
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
            batches_by_state=MappingProxyType(dict(accumulator.by_state())),
            latency=MappingProxyType(dict(self._manager.latency)),
            batches_expired=counters.batches_expired,
            connections=self._context.brokers.statistics(),
            throttled=MappingProxyType(dict(self._context.brokers.throttles.statistics())),
        )

    def health(self) -> ProducerHealth:
        """Whether the producer works, and if not, why: for a liveness probe. Cheap, and never waits.

        It is not well when it is closed or has failed, when no broker can be reached, when no more transactions are possible, when
        the last records were refused for what concerns them all (credentials, permission) or expired, and when a record has had no
        outcome for longer than one attempt may take (``linger_ms + request_timeout_ms``).
        """
        brokers, failure = self._context.brokers, self._service.failure
        return producer_health(self._config, brokers, self._manager, self._transaction, failure, closed=self._closed)

    async def aclose(self, timeout: float | None = None) -> None:
        """Take no more records, flush within ``timeout`` (seconds, default ``close_timeout_ms``), fail what is left, close.

        Closing twice is fine. Cancelled: what is not delivered fails at once, and the sockets are closed all the same.
        """
        limit = check_timeout(timeout, self._config.close_timeout_ms / 1000)
        with trio.move_on_after(max(GRACE, limit)):
            await self._finish(Exit.CLEAN)

    async def _finish(self, how: Exit) -> None:
        if self._closed:
            await self._over.wait()
            return
        self._closed = True
        self._manager.close()
        error: Exception = DeliveryTimeoutError("close", self._close_limit(how))
        try:
            if self._service.failure is None:
                if self._transactions is not None:
                    await self._transactions.finish()
                await self._manager.drain()
            else:
                error = ClientFailedError("the producer failed in the background")
                error.__cause__ = self._service.failure
        finally:
            with trio.CancelScope(shield=True):  # many batches that fail are work: others run meanwhile
                while self._manager.drop(error, _STEP):
                    await trio.lowlevel.checkpoint()
            self._context.brokers.close()
            self._service.stop()
            self._over.set()
            self._context.tell_closed()

    def _close_limit(self, how: Exit) -> float:
        left = trio.current_effective_deadline() - trio.current_time()
        return CANCELLED_CLOSE_LIMIT if how is Exit.CANCELLED else min(left, self._config.close_timeout_ms / 1000)

    def _check_open(self) -> None:
        if self._closed:
            self._raise_closed()

    def _raise_closed(self) -> None:
        raise trio.ClosedResourceError("this producer is closed")


class ProducerParts(Context[ProducerConfig]):
    """The parts of one producer."""

    def __init__(self, config: ProducerConfig, service: Service) -> None:
        super().__init__(config, service)
        self.partitioner = self._find_partitioner(config.partitioner)
        self.watch = self.observers.tell if any(self.observers.has(point) for point in _POINTS) else None
        self.fill("metadata")
        self.metadata = self.manager("metadata")
        transactional = config.transactional_id is not None
        self.transaction_signals = signals = TransactionSignals()
        self.transaction: ProducerTransaction | None = None
        if transactional:
            self.transaction = ProducerTransaction(changed=signals.changed.notify, wanted=signals.wanted.notify)
            self.fill("coordinator")
        self.fill("produce")
        self.produce = self.manager("produce")
        self.transactions: TransactionManager | None = None
        if transactional:
            self.fill("transactions")
            self.transactions = self.manager("transactions")

    def _find_partitioner(self, name: str | Partitioner) -> Partitioner | None:
        """The user's partitioner, or the one that a plugin offers by this name; ``None`` for the default."""
        if name == "default":
            return None
        if callable(name):
            return guarded_partitioner(name, "the partitioner")
        offered = first_answer(self.plugins, "trikafka_partitioner", name=name)
        if offered is None:
            raise ConfigurationError(f"partitioner: no plugin offers one named {name!r}")
        plugin, made = offered
        if not callable(made):
            raise PluginError(f"plugin {plugin}: trikafka_partitioner returned {made!r}, which cannot be called")
        return guarded_partitioner(made, f"plugin {plugin}: partitioner {name!r}")
