"""The produce manager: takes batches out of the accumulator to the brokers, and responses back into it.

Its tasks: ``follow`` (leaders, from the metadata), ``identify`` (the producer id), ``expire`` (delivery timeouts), and a sender for
each broker, which collects batches and writes them as long as no more requests are in flight than may be. One task a broker:
so requests reach the wire in the order in which their batches were taken. Responses are taken in where they are read, without a
task that waits for them. What a response means for order is decided in the accumulator.
"""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

import trio

from .._net import reasons
from .._net.brokers import Brokers
from .._net.connection import Connection
from .._net.in_flight import InFlightRequest
from .._net.retry import backoff
from .._net.signal import Signal
from .._net.singleflight import StartSoon
from .._state.accumulator import Accumulator, Limits, Partitioner
from .._state.arguments import HeaderPairs
from .._state.cluster import ClusterSnapshot
from .._state.outbatch import BatchState, OutBatch
from .._state.sequences import Identity
from .._state.transaction import ProducerTransaction
from .._wire.produce import Part, ProduceBeforeV2, ProduceMessage, ProduceResponse
from .._wire.records import BatchEncoder
from ..config import ProducerConfig
from ..error_codes import ErrorCode
from ..errors import ProtocolError, TransactionAbortableError, TrikafkaError, from_code
from ..interfaces import MetadataManager
from ..types import TopicPartition
from .producer_id import ProducerIds

Ack = TypeVar("Ack")
T = TypeVar("T")
#: A record as ``append`` takes it: topic, value, key, headers, timestamp, partition.
Fields = tuple[str, bytes | None, bytes | None, HeaderPairs, int | None, int | None]
#: Compression that takes longer than this (seconds) goes to a thread.
_LONG = 0.005
_log = logging.getLogger("trikafka.produce")


class _Sender:
    """One broker, and how many requests to it are in flight."""

    __slots__ = ("awake", "in_flight", "node_id", "reason")

    def __init__(self, node_id: int) -> None:
        self.node_id = node_id
        self.in_flight = 0
        self.awake = Signal()  # there may be something to do
        self.reason = reasons.Reason()  # what its task waits for


class _Waiter:
    """Somebody who waits for room."""

    __slots__ = ("turn",)

    def __init__(self) -> None:
        self.turn = trio.Event()


class ProduceManager(Generic[Ack]):
    """Owns the accumulator and the conversation with the brokers about its batches."""

    def __init__(
        self,
        config: ProducerConfig,
        brokers: Brokers,
        metadata: MetadataManager,
        start_soon: StartSoon,
        ticket: type[Ack],
        partitioner: Partitioner | None = None,
        transaction: ProducerTransaction | None = None,
    ) -> None:
        self._config, self._brokers, self._metadata, self._start_soon = config, brokers, metadata, start_soon
        self._ids = ProducerIds(config, metadata)
        self._transaction = transaction
        self._senders: dict[int, _Sender] = {}
        self._topics: set[str] = set()
        self._anonymous = trio.Event()  # set when batches wait for a producer id
        self._waiters: deque[_Waiter] = deque()  # as many as tasks that wait for room; the first is next
        self._rate = 2e7 if config.compression_type == "gzip" else 2e8  # bytes a second that compression takes, learned
        self._compressing = trio.CapacityLimiter(2)
        self._closed = False
        self.requests_in_flight = 0
        self._landing = Signal()  # there is none in flight any more
        self.accumulator: Accumulator[Ack] = Accumulator(
            Limits(
                batch_size=config.batch_size,
                linger=config.linger_ms / 1000,
                buffer_memory=config.buffer_memory,
                max_request_size=config.max_request_size,
                delivery_timeout=config.delivery_timeout_ms / 1000,
                idempotent=config.enable_idempotence,
            ),
            make_encoder=lambda: BatchEncoder(config.compression_type),
            ticket=ticket,
            clock=trio.current_time,
            delay=lambda failures: backoff(failures, config.retry_backoff_ms, config.retry_backoff_max_ms),
            on_work=self._work_for,
            on_room=self._room,
            on_failed=self._failed,
            partitioner=partitioner,
            transaction=transaction,
        )

    async def run(self) -> None:
        """The background work, beside the senders, which are started as leaders become known."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._follow)
            nursery.start_soon(self._expire)
            if self._config.enable_idempotence:
                nursery.start_soon(self._identify)

    @property
    def closed(self) -> bool:
        """Whether nobody is let in any more."""
        return self._closed

    @property
    def waiting(self) -> int:
        """How many tasks wait for room."""
        return len(self._waiters)

    # --- records in --------------------------------------------------------------------------------------------------

    async def learn(self, topic: str, partition: int | None) -> None:
        """Look up a topic and take over its partitions. Raises a retriable error if there is no such topic or partition."""
        info = await self._metadata.topic(topic)
        if info is not None and partition is not None and partition not in info.partitions:
            info = (await self._metadata.refresh([topic])).topics.get(topic)
        if info is None:
            raise from_code(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {topic!r}")
        if partition is not None and partition not in info.partitions:
            detail = f"topic {topic!r} has {len(info.partitions)} partitions, and no partition {partition}"
            raise from_code(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, detail)
        self._topics.add(topic)
        self._metadata.add_topic(topic)
        self._adopt(self._metadata.snapshot, [topic])

    async def wait_for_room(self, take: Callable[[], T | None], topic: str, partition: int | None) -> T:
        """Wait until it is one's turn and ``take`` finds room; return what it returns. Cancelled: nothing has been taken.

        Raises a retriable error when the topic or partition is gone, :exc:`trio.ClosedResourceError` when closed meanwhile.
        """
        waiter = _Waiter()
        self._waiters.append(waiter)
        self._crowd()
        try:
            while not self._closed:
                if self._waiters[0] is waiter:
                    taken = take()
                    if taken is not None:
                        return taken
                    if not self.knows(topic, partition):
                        raise from_code(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {topic!r} while waiting for room")
                waiter.turn = trio.Event()
                await waiter.turn.wait()
            raise trio.ClosedResourceError("the producer was closed")
        finally:
            self._waiters.remove(waiter)
            self._crowd()
            self._room()

    def knows(self, topic: str, partition: int | None) -> bool:
        """Whether the partition of a record is known, so that only room can be missing."""
        count = self.accumulator.partition_count(topic)
        return count is not None and (partition is None or partition < count)

    def _crowd(self) -> None:
        exhausted = bool(self._waiters)
        if exhausted and not self.accumulator.exhausted:
            self._wake(self.accumulator.leaders)  # nothing lingers now
        self.accumulator.exhausted = exhausted

    def _room(self) -> None:
        if self._waiters:
            self._waiters[0].turn.set()

    # --- the end -----------------------------------------------------------------------------------------------------

    async def drain(self) -> None:
        """Send what has been accepted so far without lingering; return when each record has its outcome."""
        self.accumulator.close_open()
        for batch in self.accumulator.unsettled():
            try:
                await settled(batch)
            except trio.Cancelled:
                self._explain(batch)
                raise

    def _explain(self, batch: OutBatch) -> None:
        """Note for the call that is cut off why ``batch`` is not delivered yet."""
        if batch.last_error is not None:
            reasons.failed(batch.last_error)
        elif batch.node is not None:
            reasons.waiting_for(f"Produce to {self._metadata.snapshot.nodes.get(batch.node, batch.node)}")
        elif self._config.enable_idempotence and self.accumulator.identity is None:
            reasons.waiting_for(*self._ids.reason.told())
        else:
            with contextlib.suppress(TrikafkaError, KeyError):  # no leader; nothing was due to it so far
                leader = self._metadata.snapshot.leader(TopicPartition(batch.topic, batch.partition))
                reasons.waiting_for(*self._senders[leader.node_id].reason.told())

    def _failed(self, batch: OutBatch) -> None:
        if self._transaction is not None:
            assert batch.error is not None
            self._transaction.failed(batch.error)  # the commit will tell
        elif batch.signal is None:
            _log.warning("%d records for %s were not delivered: %s", batch.count, batch.place, batch.error)

    # --- transactions ------------------------------------------------------------------------------------------------

    def identify(self, identity: tuple[int, int]) -> None:
        """Producer id and epoch for what is sent from now on; sequence numbers begin anew. Nothing waits then."""
        self.accumulator.identify(Identity(*identity))

    def admitted(self) -> None:
        """Partitions that waited for it may be written to now."""
        self._wake(self.accumulator.leaders)

    def delayed(self, error: Exception) -> None:
        """What waits, waits since this happened: should it expire now, that is the cause."""
        self._no_id(error)

    def drop(self, error: Exception) -> None:
        """Fail everything that has no outcome, what is in flight included."""
        self.accumulator.abort(error)

    async def landed(self) -> None:
        """Wait until nothing is in flight."""
        while self.requests_in_flight:
            await self._landing.wait()

    def close(self) -> None:
        """Let nobody in any more: who waits for room gets :exc:`trio.ClosedResourceError`."""
        self._closed = True
        for waiter in self._waiters:
            waiter.turn.set()

    # --- tasks -------------------------------------------------------------------------------------------------------

    async def _follow(self) -> None:
        """Take over the leaders of each new snapshot; ask for the next one as long as leaders are missing."""
        seen = self._metadata.snapshot
        while True:
            self._adopt(seen, self._topics)
            if self.accumulator.leaderless:
                self._metadata.request_update()
            seen = await self._metadata.changed(seen)

    def _adopt(self, snapshot: ClusterSnapshot, topics: Iterable[str]) -> None:
        for name in topics:
            info = snapshot.topics.get(name)
            if info is None or info.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                self.accumulator.forget_topic(name)
            elif not info.error_code and info.partitions:
                found = (info.partitions.get(number) for number in range(max(info.partitions) + 1))
                leaders = [None if part is None or part.leader not in snapshot.nodes else part.leader for part in found]
                self.accumulator.update_topic(name, leaders)

    async def _identify(self) -> None:
        """Get a producer id whenever batches wait for one; if that fails for good, so do they."""
        while True:
            await self._anonymous.wait()
            try:
                self.accumulator.identity = await self._ids.obtain(self._no_id)
            except TrikafkaError as error:
                self.accumulator.abort(error, anonymous=True)
            self._anonymous = trio.Event()
            self._wake(self.accumulator.leaders)

    def _explain_delays(self) -> None:
        """What waits for a connection that has neither failed nor come says so, should it expire now."""
        for sender in self._senders.values():
            if sender.reason.told().waiting_for and (error := sender.reason.error()) is not None:
                self.accumulator.unreachable(sender.node_id, error)
        nameless = self._config.enable_idempotence and self.accumulator.identity is None
        if nameless and (error := self._ids.reason.error()) is not None:
            self._no_id(error)

    def _no_id(self, error: Exception) -> None:
        for leader in self.accumulator.leaders:
            self.accumulator.unreachable(leader, error)

    async def _expire(self) -> None:
        while True:
            now = trio.current_time()
            if self.accumulator.next_deadline() <= now:
                self._explain_delays()
            self.accumulator.expire(now)
            # What is accepted from now on expires later than this, so nothing has to wake this task.
            latest = now + self._config.delivery_timeout_ms / 1000
            await trio.sleep_until(min(self.accumulator.next_deadline(), latest))

    def _work_for(self, leader: int | None) -> None:
        """There may be something to send to ``leader``."""
        if leader is None:
            self._metadata.request_update()
            return
        if self.accumulator.identity is None and self._config.enable_idempotence:
            self._anonymous.set()
        sender = self._senders.get(leader)
        if sender is None:
            sender = self._senders[leader] = _Sender(leader)
            self._start_soon(self._serve, sender)
        sender.awake.notify()

    def _wake(self, leaders: Iterable[int]) -> None:
        for leader in leaders:
            self._work_for(leader)

    async def _serve(self, sender: _Sender) -> None:
        """Send what is due, as long as the client lives."""
        reasons.adopt(sender.reason)
        sent = False
        while True:
            now = trio.current_time()
            due = self.accumulator.due_at(sender.node_id, now)
            if due > now:
                await self._sleep(sender, due)
            elif sender.in_flight >= self._config.max_in_flight_requests_per_connection:
                await self._sleep(sender, math.inf)
            elif sent:
                await trio.lowlevel.checkpoint()  # compressing and writing are work
            # Dialled before anything is taken: so batches that expire meanwhile were surely never sent.
            elif (connection := await self._connect(sender)) is not None:
                batches = self.accumulator.drain(sender.node_id, now, self._config.max_request_size)
                await self._seal(batches)
                batches = [batch for batch in batches if batch.state is BatchState.IN_FLIGHT]
                if batches:
                    self._send(sender, connection, batches)
                    sent = True
                    continue
            sent = False

    async def _sleep(self, sender: _Sender, until: float) -> None:
        if until == math.inf:
            await sender.awake.wait()
        else:
            with trio.CancelScope(deadline=until):
                await sender.awake.wait()

    async def _connect(self, sender: _Sender) -> Connection | None:
        """A connection to the broker, or ``None`` after a failure: then it is time to look at the leaders again."""
        node = self._metadata.snapshot.nodes.get(sender.node_id)
        if node is None:
            self._metadata.request_update()
            await self._metadata.changed(self._metadata.snapshot)
            return None
        try:
            return await self._brokers.connection(node, "produce")
        except TrikafkaError as error:
            _log.debug("no connection to %s: %s", node, error)
            if not error.retriable:
                self._refuse(self.accumulator.drain(sender.node_id, math.inf, self._config.max_request_size), error)
            self.accumulator.unreachable(sender.node_id, error)
            self._metadata.request_update()
            return None

    async def _seal(self, batches: list[OutBatch]) -> None:
        """Compress; in a thread if it is long."""
        if self._config.compression_type == "none":
            _seal_all(batches)
            return
        size = sum(batch.size for batch in batches if not batch.sealed)
        if not size:
            return
        if size / self._rate > _LONG:
            took = await trio.to_thread.run_sync(_seal_all, batches, limiter=self._compressing)
        else:
            took = _seal_all(batches)
        self._rate += (size / max(took, 1e-6) - self._rate) / 8

    def _request(self, batches: list[OutBatch]) -> ProduceMessage:
        topics: dict[str, list[Part]] = {}
        transactional_id = self._config.transactional_id
        for batch in batches:
            topics.setdefault(batch.topic, []).append((batch.partition, batch.pieces(transactional=transactional_id is not None)))
        kind = ProduceBeforeV2 if self._transaction is not None and self._transaction.version < 2 else ProduceMessage
        timeout_ms = int(self._config.request_timeout_ms)
        return kind(topics, acks=self._config.acks_code, timeout_ms=timeout_ms, transactional_id=transactional_id)

    def _send(self, sender: _Sender, connection: Connection, batches: list[OutBatch]) -> None:
        def ended(request: InFlightRequest) -> None:
            self._end(sender)
            self._settle(batches, connection, request)

        sender.in_flight += 1
        self.requests_in_flight += 1
        try:
            connection.begin(self._request(batches), ended)
        except TrikafkaError as error:
            self._end(sender)
            self._refuse(batches, error)

    def _end(self, sender: _Sender) -> None:
        """A request has its response, or will have none."""
        if sender.in_flight == self._config.max_in_flight_requests_per_connection:
            sender.awake.notify()
        sender.in_flight -= 1
        self.requests_in_flight -= 1
        if not self.requests_in_flight:
            self._landing.notify()

    def _settle(self, batches: list[OutBatch], connection: Connection, request: InFlightRequest) -> None:
        try:
            response = request.response()
        except TrikafkaError as error:
            self._refuse(batches, error)
            return
        if response is None:  # acks=0
            for batch in batches:
                self.accumulator.succeeded(batch, None, None)
        else:
            if throttle := getattr(response, "throttle_ms", 0):
                connection.throttle(throttle / 1000)
            self._take(batches, response)

    def _take(self, batches: list[OutBatch], response: ProduceResponse) -> None:
        """Hand each batch its part of the response."""
        parts = {(part.topic, part.partition): part for part in response.partitions}
        for batch in batches:
            part = parts.get(batch.place)
            if part is None:
                self._refuse([batch], ProtocolError(f"the response to a produce request says nothing of {batch.place}"))
            elif part.error_code:
                detail = f"{batch.place}, {batch.count} records" + (f": {part.message}" if part.message else "")
                self._refuse([batch], self._error(part.error_code, detail))
            else:
                self.accumulator.succeeded(batch, part.base_offset, part.append_time)

    def _error(self, code: int, detail: str) -> TrikafkaError:
        """What a code means. In a transaction only the coordinator knows whether another producer has come, or its time was up."""
        error = from_code(code, detail)
        if self._transaction is None or code not in (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.INVALID_TXN_STATE):
            return error
        doubtful = TransactionAbortableError(f"the transaction is over at the broker: {error}")
        doubtful.__cause__ = error
        return doubtful

    def _refuse(self, batches: list[OutBatch], error: TrikafkaError) -> None:
        if error.refresh_metadata:
            self._metadata.request_update()
        for batch in batches:
            self.accumulator.refused(batch, error, trio.current_time())


async def news(batch: OutBatch) -> None:
    """Wait until the batch, which has no outcome yet, gets it or is split."""
    if not isinstance(batch.signal, trio.Event):
        batch.signal = trio.Event()
    await batch.signal.wait()


async def settled(batch: OutBatch) -> None:
    """Wait until the batch, or all that it was split into, has its outcome."""
    while not batch.settled:
        if not batch.halves:
            await news(batch)
        for half in batch.halves:
            await settled(half)
        if batch.halves:
            return


def _seal_all(batches: list[OutBatch]) -> float:
    start = time.perf_counter()
    for batch in batches:
        batch.seal()
    return time.perf_counter() - start

