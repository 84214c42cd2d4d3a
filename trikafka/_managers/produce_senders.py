"""The senders of a producer, one a broker: each takes batches out of the accumulator and brings their responses back into it.

One task a broker, so requests reach the wire in the order in which their batches were taken. Responses are taken in where they are
read, without a task that waits for them. What a response means for order is decided in the accumulator.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Container
from typing import Any

import trio

from .._net import reasons
from .._net.brokers import Brokers
from .._net.connection import Connection
from .._net.in_flight import InFlightRequest
from .._net.signal import Signal
from .._net.singleflight import StartSoon
from .._state.accumulator import Accumulator
from .._state.producer_batch import ProducerBatch
from .._state.transaction import ProducerTransaction
from .._wire.produce import Part, ProduceBeforeV2, ProducedPartition, ProduceMessage, ProduceResponse
from ..config import ProducerConfig
from ..error_codes import ErrorCode
from ..errors import ProtocolError, TransactionAbortableError, TrikafkaError, from_code
from ..interfaces import MetadataManager
from ..types import BrokerLatency, Node, TopicPartition
from .batch_watch import Latency

#: So many requests keep a broker busy, which takes those of a connection one by one: the next is there while it works on the first.
_BUSY = 2
#: More go out ahead only as long as the network takes them: not while so many bytes wait in the system to be sent. They would be
#: at the broker no sooner, and memory that has left the caches before it is sent costs both sides (a tenth of the records a second,
#: measured on one machine).
_BACKLOG = 1 << 19
#: Then it is looked again after so many seconds, or with the next response.
_LOOK_AGAIN = 0.005
#: Compression that takes longer than this (seconds) goes to a thread.
_LONG = 0.005
#: What says no more of a transaction than that it is over at this broker.
_DOUBTFUL = (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.INVALID_TXN_STATE, ErrorCode.INVALID_PRODUCER_ID_MAPPING)
_log = logging.getLogger("trikafka.produce")


class _Sender:
    """One broker, and how many requests to it are in flight. Written by :class:`Senders` alone."""

    __slots__ = ("awake", "held", "in_flight", "latency", "node_id", "reason")

    def __init__(self, node_id: int) -> None:
        self.node_id = node_id
        self.in_flight = 0
        self.held = False  # something is due that waits for a response
        self.latency = Latency()
        self.awake = Signal()  # there may be something to do
        self.reason = reasons.Reason()  # what its task waits for


class Senders:
    """Their tasks are started as there is work for a broker."""

    def __init__(
        self,
        config: ProducerConfig,
        brokers: Brokers,
        metadata: MetadataManager,
        start_soon: StartSoon,
        accumulator: Accumulator[Any],
        transaction: ProducerTransaction | None = None,
    ) -> None:
        self._config, self._brokers, self._metadata, self._start_soon = config, brokers, metadata, start_soon
        self._accumulator, self._transaction = accumulator, transaction
        self._senders: dict[int, _Sender] = {}
        self._compression = None if config.compression_type == "none" else _Compression(config, accumulator)
        # Below so many in flight what is due is sent first thing. Where batches linger, that would be one look at them too many.
        self._few = min(_BUSY, config.max_in_flight_requests_per_connection) if config.linger_ms == 0 else 0
        self._landed = Signal()
        self._acks, self._timeout_ms = config.acks_code, int(config.request_timeout_ms)
        self.in_flight = 0

    def work_for(self, node_id: int) -> None:
        """There may be something to send to this broker."""
        sender = self._senders.get(node_id)
        if sender is None:
            sender = self._senders[node_id] = _Sender(node_id)
            self._start_soon(self._serve, sender)
        sender.awake.notify()

    def latency(self) -> dict[int, BrokerLatency]:
        """How long each broker took to respond, of those that have."""
        told = {sender.node_id: sender.latency.told() for sender in self._senders.values()}
        return {node_id: found for node_id, found in told.items() if found is not None}

    def keep(self, nodes: Container[int]) -> None:
        """The cluster consists of these brokers now: senders to others end when they have nothing in flight any more."""
        for sender in self._senders.values():
            if sender.node_id not in nodes:
                sender.awake.notify()

    def reason_of(self, node_id: int) -> reasons.Told | None:
        """What keeps the sender to this broker from sending."""
        sender = self._senders.get(node_id)
        return None if sender is None else sender.reason.told()

    def delays(self) -> list[tuple[int, Exception]]:
        """The brokers whose senders wait for something, and what that is, as an error."""
        waiting = [sender for sender in self._senders.values() if sender.reason.told().waiting_for]
        return [(sender.node_id, error) for sender in waiting if (error := sender.reason.error()) is not None]

    async def landed(self) -> None:
        """Wait until nothing is in flight."""
        while self.in_flight:
            await self._landed.wait()

    # --- out ---------------------------------------------------------------------------------------------------------

    async def _serve(self, sender: _Sender) -> None:
        """Send what is due, as long as the client lives."""
        reasons.adopt(sender.reason)
        sent = False
        while True:
            now = trio.current_time()
            if not sent and sender.in_flight < self._few and (connection := self._ready(sender)) is not None:
                sent = await self._send_due(sender, connection, now)
                if sent:
                    continue
            due = self._accumulator.due_at(sender.node_id, now)
            if due == math.inf:
                self._accumulator.connected(sender.node_id)  # or not: nothing waits for it, and the next batch will see
            if due == math.inf and not sender.in_flight and sender.node_id not in self._metadata.snapshot.nodes:
                del self._senders[sender.node_id]  # it is gone; a new task is started should it come back
                return
            if due > now:
                await self._sleep(sender, due)
            elif (until := self._held_until(sender, now)) > now:
                self._accumulator.held_up(sender.node_id)
                await self._sleep(sender, until)
            elif sent:
                await trio.lowlevel.checkpoint()  # compressing and writing are work
            # Dialled before anything is taken: so batches that expire meanwhile were surely never sent.
            elif (connection := self._ready(sender) or await self._connect(sender)) is not None:
                sent = await self._send_due(sender, connection, trio.current_time())
                if sent:
                    continue
            sent = False

    async def _send_due(self, sender: _Sender, connection: Connection, now: float) -> bool:
        """Send a request with what is due; returns whether there was anything. A checkpoint only where a thread compresses."""
        batches = self._accumulator.drain(sender.node_id, now, self._config.max_request_size)
        if self._compression is not None and batches:
            await self._compression.seal(batches)
            batches = [batch for batch in batches if batch.in_flight]
        if batches:
            self._send(sender, connection, batches)
        return bool(batches)

    def _held_until(self, sender: _Sender, now: float) -> float:
        """When to see whether another request may follow those in flight; ``now``: it may, ``inf``: not before a response."""
        until = now
        if sender.in_flight >= self._config.max_in_flight_requests_per_connection:
            until = math.inf
        elif sender.in_flight >= _BUSY:
            connection = self._ready(sender)
            if connection is not None and connection.backlog > _BACKLOG:
                until = now + _LOOK_AGAIN
        sender.held = until > now
        return until

    async def _sleep(self, sender: _Sender, until: float) -> None:
        if until == math.inf:
            await sender.awake.wait()
        else:
            with trio.CancelScope(deadline=until):
                await sender.awake.wait()

    def _ready(self, sender: _Sender) -> Connection | None:
        """The connection to the broker, if there is one now."""
        node = self._metadata.snapshot.nodes.get(sender.node_id)
        return None if node is None else self._brokers.ready(node, "produce")

    async def _connect(self, sender: _Sender) -> Connection | None:
        """A connection to the broker, or ``None`` after a failure: then it is time to look at the leaders again."""
        node = self._metadata.snapshot.nodes.get(sender.node_id)
        self._accumulator.connecting(sender.node_id)
        if node is None:
            self._metadata.request_update()
            await self._metadata.changed(self._metadata.snapshot)
            return None
        try:
            connection = await self._brokers.connection(node, "produce")
        except TrikafkaError as error:
            _log.debug("no connection to %s: %s", node, error)
            if not error.retriable:
                drained = self._accumulator.drain(sender.node_id, math.inf, self._config.max_request_size)
                self._refuse(drained, error, unsent=True)
            self._accumulator.unreachable(sender.node_id, error)
            self._metadata.request_update()
            return None
        self._accumulator.connected(sender.node_id)
        return connection

    def _send(self, sender: _Sender, connection: Connection, batches: list[ProducerBatch]) -> None:
        began, before = trio.current_time(), connection.throttled

        def ended(request: InFlightRequest) -> None:
            self._end(sender)
            if self._settle(batches, connection, request):
                sender.latency.took(connection.heard_at - began, connection.throttled - before)

        sender.in_flight += 1
        self.in_flight += 1
        try:
            connection.begin(self._request(batches), ended)
        except TrikafkaError as error:
            self._end(sender)
            self._refuse(batches, error, unsent=True)

    def _request(self, batches: list[ProducerBatch]) -> ProduceMessage:
        topics: dict[str, list[Part]] = {}
        records = 0
        for batch in batches:
            topics.setdefault(batch.topic, []).append((batch.partition, batch.pieces()))
            records += batch.count
        kind = ProduceBeforeV2 if self._transaction is not None and self._transaction.version < 2 else ProduceMessage
        name = self._config.transactional_id
        return kind(topics, records=records, acks=self._acks, timeout_ms=self._timeout_ms, transactional_id=name)

    # --- and back ----------------------------------------------------------------------------------------------------

    def _end(self, sender: _Sender) -> None:
        """A request has its response, or will have none."""
        if sender.held:
            sender.held = False
            sender.awake.notify()
        sender.in_flight -= 1
        self.in_flight -= 1
        if not self.in_flight:
            self._landed.notify()

    def _settle(self, batches: list[ProducerBatch], connection: Connection, request: InFlightRequest) -> bool:
        """Take in how a request ended. Returns whether the broker responded."""
        try:
            response = request.response()
        except TrikafkaError as error:
            self._refuse(batches, error)
            return False
        if response is None:  # acks=0
            for batch in batches:
                self._accumulator.succeeded(batch, None, None)
        else:
            if throttle := getattr(response, "throttle_ms", 0):
                connection.throttle(throttle / 1000, "Produce")
            self._take(batches, response)
        return response is not None

    def _take(self, batches: list[ProducerBatch], response: ProduceResponse) -> None:
        """Hand each batch its part of the response."""
        parts, refused = {}, False
        for each in response.partitions:
            parts[each.topic, each.partition] = each
            refused = refused or each.error_code != 0
        moved = self._learn_leaders(response) if refused else frozenset()
        for batch in batches:
            part = parts.get((batch.topic, batch.partition))
            if part is None:
                self._refuse([batch], ProtocolError(f"the response to a produce request says nothing of {batch.place}"))
            elif part.refused:
                self._refuse_records(batch, part)
            elif part.error_code:
                detail = f"{batch.place}, {batch.count} records" + (f": {part.message}" if part.message else "")
                named = batch.place in moved and batch.delivery.attempts <= 1  # hints that lead nowhere are no reason not to ask
                self._refuse([batch], self._error(part.error_code, detail), leader_known=named)
            else:
                self._accumulator.succeeded(batch, part.base_offset, part.append_time)

    def _learn_leaders(self, response: ProduceResponse) -> frozenset[TopicPartition]:
        """Take in who leads instead of the broker (KIP-951); returns the partitions for which that is news.

        The produce manager sends what they were refused to the new leaders at once, and nobody has to be asked: the first time.
        """
        hints = {
            TopicPartition(part.topic, part.partition): part.current_leader
            for part in response.partitions
            if part.error_code and part.current_leader is not None
        }
        return self._metadata.learn_leaders(hints, [Node(*each) for each in response.node_endpoints]) if hints else frozenset()

    def _refuse_records(self, batch: ProducerBatch, part: ProducedPartition) -> None:
        """Some records of the batch are why the broker has taken none of it (KIP-467)."""
        refused: dict[int, TrikafkaError] = {
            index: from_code(part.error_code, f"{batch.place}, one record" + (f": {text}" if text else ""))
            for index, text in part.refused.items()
            if 0 <= index < batch.count
        }
        detail = f"{batch.place}, {batch.count} records" + (f": {part.message}" if part.message else "")
        self._accumulator.records_refused(batch, self._error(part.error_code, detail), refused, trio.current_time())

    def _error(self, code: int, detail: str) -> TrikafkaError:
        """What a code means. In a transaction only the coordinator knows whether another producer has come, or its time was up."""
        error = from_code(code, detail, operation="Write")
        if self._transaction is None or code not in _DOUBTFUL:
            return error
        doubtful = TransactionAbortableError(f"the transaction is over at the broker: {error}")
        doubtful.__cause__ = error
        return doubtful

    def _refuse(
        self, batches: list[ProducerBatch], error: TrikafkaError, *, unsent: bool = False, leader_known: bool = False
    ) -> None:
        if error.refresh_metadata and not leader_known:
            self._metadata.request_update()
        for batch in batches:
            self._accumulator.refused(batch, error, trio.current_time(), unsent=unsent)


class _Compression:
    """Compresses batches; in a thread where it is long."""

    def __init__(self, config: ProducerConfig, accumulator: Accumulator[Any]) -> None:
        self._accumulator = accumulator
        self._rate = 2e7 if config.compression_type == "gzip" else 2e8  # bytes a second, learned
        self._threads = trio.CapacityLimiter(2)

    async def seal(self, batches: list[ProducerBatch]) -> None:
        """Compress what is not compressed yet. A checkpoint only where a thread does it."""
        size = sum(batch.size for batch in batches if not batch.sealed)
        if not size:
            return
        if size / self._rate > _LONG:
            took = await trio.to_thread.run_sync(self._seal, batches, limiter=self._threads)
        else:
            took = self._seal(batches)
        self._rate += (size / max(took, 1e-6) - self._rate) / 8

    def _seal(self, batches: list[ProducerBatch]) -> float:
        start = time.perf_counter()
        self._accumulator.seal(batches)
        return time.perf_counter() - start
