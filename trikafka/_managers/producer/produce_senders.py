"""The senders of a producer: for each broker, one task takes batches and sends them.

Since a broker has one such task, its requests are sent in the order in which their batches leave
the accumulator. The connection's reader handles the responses, so no task waits for them. The
accumulator decides what a response means for the order of batches.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Container
from typing import Any

import trio

from ..._net import reasons
from ..._net.brokers import Brokers
from ..._net.clock import clock_of_run
from ..._net.connection import Connection
from ..._net.in_flight import LONG_THROTTLE, InFlightRequest
from ..._net.leader_hints import learn_leaders, named_place
from ..._net.signal import Signal
from ..._net.singleflight import StartSoon
from ..._state.producer.accumulator import Accumulator
from ..._state.producer.producer_batch import ProducerBatch
from ..._state.producer.transaction_state import ProducerTransaction
from ..._state.telemetry.metrics import Meter
from ..._wire.produce import (
    Part,
    ProduceBeforeV2,
    ProducedPartition,
    ProduceMessage,
    ProduceResponse,
)
from ...config import ProducerConfig
from ...error_codes import ErrorCode
from ...errors import DamagedResponseError, TrikafkaError, from_code
from ...errors.copies import without_traces
from ...errors.counts import counted
from ...errors.peer_text import peer_text
from ...interfaces import MetadataManager
from ...types import BrokerLatency
from .transaction_failures import over_at_broker

#: Requests in flight that keep a broker busy. It handles the requests of a connection one by one,
#: and with two in flight the second has arrived when the first is done.
_BUSY = 2
#: Above `_BUSY` a request is sent only while fewer bytes than this wait in the system's send
#: buffer. See `_held_until`.
_BACKLOG = 1 << 19
#: Seconds until the send buffer is checked again; a response ends this wait, too.
_LOOK_AGAIN = 0.005
#: Seconds between two checks whether a long throttle has ended with its connection.
_THROTTLED_LOOK = 1.0
#: Compression that takes longer than this (seconds) goes to a thread.
_LONG = 0.005
#: Codes of a partition leader after which only the coordinator knows the state of the transaction.
_DOUBTFUL = (
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.INVALID_TXN_STATE,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
)
_log = logging.getLogger("trikafka.produce")


class _Latency:
    """The response times of one broker, and the waits that its quotas caused, in seconds."""

    __slots__ = ("_count", "_last", "_longest", "_sum", "_throttled")

    def __init__(self) -> None:
        self._count = 0
        self._sum = 0.0
        self._last = 0.0
        self._longest = 0.0
        self._throttled = 0.0

    def took(self, seconds: float, throttled: float) -> None:
        """Record a response after ``seconds``, of which a quota caused ``throttled``."""
        seconds = max(0.0, seconds - throttled)
        self._throttled += throttled
        self._count += 1
        self._sum += seconds
        self._last = seconds
        self._longest = max(self._longest, seconds)

    def figures(self) -> BrokerLatency | None:
        """Return the figures so far; ``None`` before the first response."""
        if not self._count:
            return None
        return BrokerLatency(
            self._last, self._sum / self._count, self._longest, self._count, self._throttled
        )


class _Sender:
    """The state of one broker's sender. Only :class:`Senders` changes it."""

    __slots__ = ("awake", "in_flight", "latency", "node_id", "reason", "waiting_for_response")

    def __init__(self, node_id: int) -> None:
        self.node_id = node_id
        self.in_flight = 0
        # True while batches are due, but must wait for a response.
        self.waiting_for_response = False
        self.latency = _Latency()
        # Notified when there may be something to do.
        self.awake = Signal()
        # What the sender's task waits for.
        self.reason = reasons.WaitContext()


class Senders:
    """The senders of one producer. The first batch for a broker starts the broker's sender."""

    def __init__(
        self,
        config: ProducerConfig,
        brokers: Brokers,
        metadata: MetadataManager,
        start_soon: StartSoon,
        transaction: ProducerTransaction | None,
        meter: Meter | None,
    ) -> None:
        self._config = config
        self._now = clock_of_run()
        self._meter = meter
        self._brokers = brokers
        self._metadata = metadata
        self._start_soon = start_soon
        self._transaction = transaction
        self._senders: dict[int, _Sender] = {}
        self._compression: _Compression | None = None
        # With fewer requests in flight than this, `_serve` tries to send before it checks when a
        # batch is due. With a linger it would usually find no batch to send, so the number is 0.
        self._few = (
            min(_BUSY, config.max_in_flight_requests_per_connection) if config.linger_ms == 0 else 0
        )
        self._none_in_flight = Signal()
        self._acks = config.acks_code
        self._timeout_ms = int(config.request_timeout_ms)
        self.in_flight = 0

    def send_from(self, accumulator: Accumulator[Any]) -> None:
        """Set the accumulator, which has the batches and calls :meth:`work_for`."""
        self._accumulator = accumulator
        if self._config.compression_type != "none":
            self._compression = _Compression(self._config, accumulator)

    def work_for(self, node_id: int | None) -> None:
        """Wake the sender to this broker; start it if there is none.

        If ``node_id`` is ``None``, the leader of some batches is unknown: request the metadata.
        """
        if node_id is None:
            self._metadata.request_update()
            return
        sender = self._senders.get(node_id)
        if sender is None:
            sender = self._senders[node_id] = _Sender(node_id)
            self._start_soon(self._serve, sender)
        sender.awake.notify()

    def latency(self) -> dict[int, BrokerLatency]:
        """Return the response times of the brokers that have responded."""
        latencies = {sender.node_id: sender.latency.figures() for sender in self._senders.values()}
        return {node_id: found for node_id, found in latencies.items() if found is not None}

    def end_others(self, nodes: Container[int]) -> None:
        """End the senders to brokers outside ``nodes`` as soon as they have nothing in flight."""
        for sender in self._senders.values():
            if sender.node_id not in nodes:
                sender.awake.notify()

    def reason_of(self, node_id: int) -> reasons.Blame | None:
        """Return what the sender to this broker waits for; ``None`` if there is no sender."""
        sender = self._senders.get(node_id)
        return None if sender is None else sender.reason.blame()

    def delays(self) -> list[tuple[int, Exception]]:
        """Return the brokers whose senders wait, each with the cause as an error."""
        waiting = [sender for sender in self._senders.values() if sender.reason.blame().waiting_for]
        return [
            (sender.node_id, error)
            for sender in waiting
            if (error := sender.reason.error()) is not None
        ]

    async def wait_none_in_flight(self) -> None:
        """Wait until no request is in flight."""
        while self.in_flight:
            await self._none_in_flight.wait()

    # --- requests ---------------------------------------------------------------------------------

    async def _serve(self, sender: _Sender) -> None:
        """Send the due batches, until cancelled or until the broker has left the cluster."""
        # The loop sends one request after the other, with a checkpoint between two requests. With
        # few requests in flight and no linger it tries to send before it checks the queue
        # (`due_at`): the check would cost one step more for each record that is sent alone.
        # Otherwise the sender sleeps until a batch is due, then until a request may be made
        # (`_held_until`), and then dials if there is no connection. It reports the last two waits
        # to the accumulator, so that keyless records may go to other brokers
        # (`partitioner_availability_timeout_ms`).
        reasons.adopt(sender.reason)
        sent = False
        while True:
            now = self._now()
            connection = self._ready(sender) if not sent and sender.in_flight < self._few else None
            if connection is not None and not self._throttled_long(connection, now):
                sent = await self._send_due(sender, connection, now)
                if sent:
                    continue
            due = self._accumulator.due_at(sender.node_id, now)
            if due == math.inf:
                # No batch waits for this connection, so its absence delays nothing. A later batch
                # reports it again.
                self._accumulator.connected(sender.node_id)
            if (
                due == math.inf
                and not sender.in_flight
                and sender.node_id not in self._metadata.snapshot.nodes
            ):
                # The broker has left the cluster. A new task is started if the broker returns.
                del self._senders[sender.node_id]
                return
            if due > now:
                await self._sleep(sender, due)
            elif (until := self._held_until(sender, now)) > now:
                self._accumulator.slots_full(sender.node_id)
                await self._sleep(sender, until)
            elif sent:
                # Compressing and writing take time: let other tasks run.
                await trio.lowlevel.checkpoint()
            # The connection is made before any batch is taken. So a batch that expires while the
            # broker is dialled was certainly never sent.
            elif (connection := self._ready(sender) or await self._connect(sender)) is not None:
                sent = await self._send_due(sender, connection, self._now())
                if sent:
                    continue
            sent = False

    async def _send_due(self, sender: _Sender, connection: Connection, now: float) -> bool:
        """Send a request with the batches that are due; return whether there were any.

        The call is a checkpoint only if a thread compresses.
        """
        batches = self._accumulator.drain(sender.node_id, now, self._config.max_request_size)
        if self._compression is not None and batches:
            await self._compression.seal(batches)
            # While a thread compresses, a batch may expire. Then the batch's send() calls have
            # raised, and their callers may have sent the records again. So the batch must not be
            # written any more.
            for batch in batches:
                if batch.in_flight and isinstance(batch.error, TrikafkaError):
                    now = trio.current_time()
                    self._accumulator.completion.refused(batch, batch.error, now, unsent=True)
            batches = [batch for batch in batches if batch.in_flight]
        if batches:
            self._send(sender, connection, batches)
        return bool(batches)

    def _held_until(self, sender: _Sender, now: float) -> float:
        """Return when another request may be made, by Trio's clock.

        The result is ``now`` for a request at once, and infinity for one after the next response.
        """
        # How much is sent before the responses come. With `_BUSY` requests in flight the broker
        # always has the next one. More requests help only while the network transmits them at once.
        # On Linux the connection asks the kernel how many bytes it has not sent yet (SIOCOUTQNSD,
        # `Connection.backlog`). Above half a megabyte, a further request would not reach the broker
        # any sooner. With five requests of a megabyte in flight, four wait in the send buffer, and
        # have left the processor's caches when they are sent. Measured on one machine, with records
        # of 1,000 bytes: 891 thousand records a second with this bound, and 835 without. A million
        # records took 0.58 seconds of the broker's system time with it, and 0.70 without.
        #
        # While the sender waits, batches in the accumulator continue to fill, so the next request
        # carries more. `max_in_flight_requests_per_connection` is a bound in any case, and the only
        # one where the kernel cannot be asked and the backlog is 0.
        until = now
        connection = self._ready(sender)
        if connection is not None and self._throttled_long(connection, now):
            until = now + _THROTTLED_LOOK
        elif sender.in_flight >= self._config.max_in_flight_requests_per_connection:
            until = math.inf
        elif sender.in_flight >= _BUSY and connection is not None and connection.backlog > _BACKLOG:
            until = now + _LOOK_AGAIN
        sender.waiting_for_response = until > now
        return until

    @staticmethod
    def _throttled_long(connection: Connection, now: float) -> bool:
        """Return whether a request made now would not be written for a long time.

        A connection writes its requests when a throttle ends, which may take hours. Until then
        their batches could neither be sent to a new leader nor expire as unsent.
        """
        return connection.throttled_until > now + LONG_THROTTLE

    async def _sleep(self, sender: _Sender, until: float) -> None:
        if until == math.inf:
            await sender.awake.wait()
        else:
            with trio.CancelScope(deadline=until):
                await sender.awake.wait()

    def _ready(self, sender: _Sender) -> Connection | None:
        """Return the connection to the broker, if there is one now."""
        node = self._metadata.snapshot.nodes.get(sender.node_id)
        return None if node is None else self._brokers.ready(node, "produce")

    async def _connect(self, sender: _Sender) -> Connection | None:
        """Return a connection to the broker; on a failure request metadata and return ``None``."""
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
                drained = self._accumulator.drain(
                    sender.node_id, math.inf, self._config.max_request_size
                )
                self._refuse(drained, error, unsent=True)
            self._accumulator.completion.unreachable(sender.node_id, error)
            self._metadata.request_update()
            return None
        self._accumulator.connected(sender.node_id)
        return connection

    def _send(self, sender: _Sender, connection: Connection, batches: list[ProducerBatch]) -> None:
        began = self._now()
        before = connection.throttled
        if self._meter is not None and self._meter.recording:
            self._meter.queued([began - batch.created for batch in batches if batch.attempts == 1])

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
        kind = (
            ProduceBeforeV2
            if self._transaction is not None and self._transaction.version < 2
            else ProduceMessage
        )
        name = self._config.transactional_id
        return kind(
            topics,
            records=records,
            acks=self._acks,
            timeout_ms=self._timeout_ms,
            transactional_id=name,
        )

    # --- responses --------------------------------------------------------------------------------

    def _end(self, sender: _Sender) -> None:
        """Count a request as ended, with a response or without."""
        if sender.waiting_for_response:
            sender.waiting_for_response = False
            sender.awake.notify()
        sender.in_flight -= 1
        self.in_flight -= 1
        if not self.in_flight:
            self._none_in_flight.notify()

    def _settle(
        self, batches: list[ProducerBatch], connection: Connection, request: InFlightRequest
    ) -> bool:
        """Report the end of a request to its batches; return whether the broker responded."""
        try:
            response = request.response()
        except TrikafkaError as error:
            # The batches keep the error. Its frames, and those of its cause if the response is
            # damaged, have the batches, and what was read until now.
            self._refuse(batches, without_traces(error), unsent=request.unsent)
            return False
        if response is None:  # acks=0
            for batch in batches:
                self._accumulator.completion.succeeded(batch, None, None)
        else:
            if response.throttle_ms:
                connection.throttle(response.throttle_ms / 1000, "Produce")
            self._handle_response(batches, response)
        return response is not None

    def _handle_response(self, batches: list[ProducerBatch], response: ProduceResponse) -> None:
        """Apply the response to the batches of its request."""
        parts = {(part.topic, part.partition): part for part in response.partitions}
        refused = [part for part in response.partitions if part.error_code]
        # After a first refusal, batches of these partitions are sent to the new leaders at once.
        moved = (
            learn_leaders(self._metadata, refused, named_place, response.node_endpoints)
            if refused
            else frozenset()
        )
        for batch in batches:
            part = parts.get((batch.topic, batch.partition))
            if part is None:
                text = f"the response to a Produce request lacks {batch.place}"
                self._refuse([batch], DamagedResponseError(text))
            elif part.refused:
                self._refuse_records(batch, part)
            elif part.error_code:
                detail = f"{batch.place}, {counted(batch.count, 'record')}" + (
                    f": {peer_text(part.message)}" if part.message else ""
                )
                # Only at the first attempt: if the response named a wrong leader, the metadata must
                # be requested.
                named = batch.place in moved and batch.attempts <= 1
                self._refuse([batch], self._error(part.error_code, detail), leader_known=named)
            else:
                self._accumulator.completion.succeeded(batch, part.base_offset, part.append_time)

    def _refuse_records(self, batch: ProducerBatch, part: ProducedPartition) -> None:
        """Fail the records for which the broker has refused the whole batch (KIP-467)."""
        refused: dict[int, TrikafkaError] = {
            index: from_code(
                part.error_code,
                f"{batch.place}, one record" + (f": {peer_text(text)}" if text else ""),
            )
            for index, text in part.refused.items()
            if 0 <= index < batch.count
        }
        detail = f"{batch.place}, {counted(batch.count, 'record')}" + (
            f": {peer_text(part.message)}" if part.message else ""
        )
        self._accumulator.completion.records_refused(
            batch, self._error(part.error_code, detail), refused, trio.current_time()
        )

    def _error(self, code: int, detail: str) -> TrikafkaError:
        """Return the error for a code.

        In a transaction, some codes of a partition leader do not say whether another producer has
        taken over or the transaction has timed out. Only the coordinator knows that.
        """
        if code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
            detail = f"{detail}, in a transaction of {self._config.transactional_id!r}"
        error = from_code(code, detail, operation="Write")
        if self._transaction is None or code not in _DOUBTFUL:
            return error
        return over_at_broker(error)

    def _refuse(
        self,
        batches: list[ProducerBatch],
        error: TrikafkaError,
        *,
        unsent: bool = False,
        leader_known: bool = False,
    ) -> None:
        if error.refresh_metadata and not leader_known:
            self._metadata.request_update()
        for batch in batches:
            self._accumulator.completion.refused(batch, error, trio.current_time(), unsent=unsent)


class _Compression:
    """The compression of batches, in a thread if it will take long."""

    def __init__(self, config: ProducerConfig, accumulator: Accumulator[Any]) -> None:
        self._accumulator = accumulator
        # Bytes a second: an estimate that each measurement corrects.
        self._rate = 2e7 if config.compression_type == "gzip" else 2e8
        self._threads = trio.CapacityLimiter(2)

    async def seal(self, batches: list[ProducerBatch]) -> None:
        """Compress the batches that are not compressed yet.

        The call is a checkpoint only if a thread compresses.
        """
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
