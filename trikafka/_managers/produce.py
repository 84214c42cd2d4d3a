"""The produce manager: takes batches out of the accumulator to the brokers, and answers back into it.

Its tasks: ``follow`` (leaders, from the metadata), ``identify`` (the producer id), ``expire`` (delivery timeouts), and for each
broker as many workers as requests may be in flight. The workers of a broker take turns: one collects batches while the others
wait for answers; it gives the turn away in the same step in which its request is queued, so that requests reach the wire in
the order in which their batches were taken. What an answer means for order is decided in the accumulator.
"""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

import trio
from kafka.protocol.producer import ProduceRequest

from .._net.brokers import Brokers
from .._net.connection import Connection
from .._net.deadlines import backoff
from .._net.singleflight import StartSoon
from .._state.accumulator import Accumulator, Limits, Partitioner
from .._state.arguments import HeaderPairs
from .._state.cluster import ClusterSnapshot
from .._state.outbatch import BatchState, OutBatch
from .._wire.records import BatchEncoder
from ..config import ProducerConfig
from ..errors import ProtocolError, TrikafkaError, from_code
from ..types import TopicPartition
from .metadata import Metadata
from .producer_id import ProducerIds

Ack = TypeVar("Ack")
#: A record as ``append`` takes it: topic, value, key, headers, timestamp, partition.
Fields = tuple[str, bytes | None, bytes | None, HeaderPairs, int | None, int | None]
#: Compression that takes longer than this (seconds) goes to a thread.
_LONG = 0.005
_log = logging.getLogger("trikafka.produce")


class _Sender:
    """What the workers of one broker share."""

    __slots__ = ("awake", "node_id", "turn")

    def __init__(self, node_id: int) -> None:
        self.node_id = node_id
        self.turn = trio.Lock()
        self.awake = trio.Event()


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
        metadata: Metadata,
        start_soon: StartSoon,
        make_ack: Callable[[OutBatch, int, int], Ack],
        partitioner: Partitioner | None = None,
    ) -> None:
        self._config, self._brokers, self._metadata, self._start_soon = config, brokers, metadata, start_soon
        self._ids = ProducerIds(config, metadata)
        self._senders: dict[int, _Sender] = {}
        self._topics: set[str] = set()
        self._anonymous = trio.Event()  # set when batches wait for a producer id
        self._waiters: deque[_Waiter] = deque()  # as many as tasks that wait for room; the first is next
        self._rate = 2e7 if config.compression_type == "gzip" else 2e8  # bytes a second that compression takes, learned
        self._compressing = trio.CapacityLimiter(2)
        self._closed = False
        self.requests_in_flight = 0
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
            make_ack=make_ack,
            clock=trio.current_time,
            delay=lambda failures: backoff(failures, config.retry_backoff_ms, config.retry_backoff_max_ms),
            on_work=self._work_for,
            on_room=self._room,
            on_failed=_tell,
            partitioner=partitioner,
        )

    async def run(self) -> None:
        """The background work, beside the workers, which are started as leaders become known."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._follow)
            nursery.start_soon(self._expire)
            if self._config.enable_idempotence:
                nursery.start_soon(self._identify)

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
            raise from_code(3, f"topic {topic!r}")
        if partition is not None and partition not in info.partitions:
            raise from_code(3, f"topic {topic!r} has {len(info.partitions)} partitions, and no partition {partition}")
        self._topics.add(topic)
        self._metadata.also_want(topic)
        self._adopt(self._metadata.snapshot, [topic])

    async def wait_for_room(self, record: Fields) -> Ack:
        """Wait until it is this record's turn and there is room, and take it. Cancelled: nothing has been taken.

        Raises a retriable error when the record's partition is gone, :exc:`trio.ClosedResourceError` when closed meanwhile.
        """
        waiter = _Waiter()
        self._waiters.append(waiter)
        self._crowd()
        try:
            while not self._closed:
                if self._waiters[0] is waiter:
                    ack = self.accumulator.append(*record, admitted=True)
                    if ack is not None:
                        return ack
                    if not self.knows(record):
                        raise from_code(3, f"topic {record[0]!r} while waiting for room")
                waiter.turn = trio.Event()
                await waiter.turn.wait()
            raise trio.ClosedResourceError("the producer was closed")
        finally:
            self._waiters.remove(waiter)
            self._crowd()
            self._room()

    def knows(self, record: Fields) -> bool:
        """Whether the partition of ``record`` is known, so that only room can be missing."""
        count = self.accumulator.partition_count(record[0])
        return count is not None and (record[5] is None or record[5] < count)

    def _crowd(self) -> None:
        crowded = bool(self._waiters)
        if crowded and not self.accumulator.crowded:
            self._wake(self.accumulator.leaders)  # nothing lingers now
        self.accumulator.crowded = crowded

    def _room(self) -> None:
        if self._waiters:
            self._waiters[0].turn.set()

    # --- the end -----------------------------------------------------------------------------------------------------

    async def drain(self) -> None:
        """Send what has been accepted so far without lingering; return when each record has its outcome."""
        self.accumulator.close_open()
        for batch in self.accumulator.unsettled():
            await settled(batch)

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
                self._metadata.mark_stale()
            seen = await self._metadata.changed(seen)

    def _adopt(self, snapshot: ClusterSnapshot, topics: Iterable[str]) -> None:
        for name in topics:
            info = snapshot.topics.get(name)
            if info is None or info.error_code == 3:
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
                self.accumulator.identity = await self._ids.obtain()
            except TrikafkaError as error:
                self.accumulator.abort(error, anonymous=True)
            self._anonymous = trio.Event()
            self._wake(self.accumulator.leaders)

    async def _expire(self) -> None:
        while True:
            now = trio.current_time()
            self.accumulator.expire(now)
            # What is accepted from now on expires later than this, so nothing has to wake this task.
            latest = now + self._config.delivery_timeout_ms / 1000
            await trio.sleep_until(min(self.accumulator.next_deadline(), latest))

    def _work_for(self, leader: int | None) -> None:
        """There may be something to send to ``leader``."""
        if leader is None:
            self._metadata.mark_stale()
            return
        if self.accumulator.identity is None and self._config.enable_idempotence:
            self._anonymous.set()
        sender = self._senders.get(leader)
        if sender is None:
            sender = self._senders[leader] = _Sender(leader)
            for _ in range(self._config.max_in_flight_requests_per_connection):
                self._start_soon(self._work, sender)
        sender.awake.set()

    def _wake(self, leaders: Iterable[int]) -> None:
        for leader in leaders:
            self._work_for(leader)

    async def _work(self, sender: _Sender) -> None:
        """One worker: collect batches when it is its turn, send them, take the answer."""
        while True:
            await sender.turn.acquire()
            try:
                connection, batches = await self._collect(sender)
                request = self._request(batches)
            finally:
                sender.turn.release()
            # No checkpoint between the release and the queue of the connection: see the module's docstring.
            await self._send(connection, batches, request)

    async def _collect(self, sender: _Sender) -> tuple[Connection, list[OutBatch]]:
        """Wait for something to send and for a connection to send it on, then take it and compress it."""
        while True:
            due = self.accumulator.due_at(sender.node_id, trio.current_time())
            if due > trio.current_time():
                sender.awake = trio.Event()
                with trio.CancelScope(deadline=due):
                    await sender.awake.wait()
                continue
            # Dialled before anything is taken: so batches that expire meanwhile were surely never sent.
            connection = await self._connect(sender)
            if connection is None:
                continue
            batches = self.accumulator.drain(sender.node_id, trio.current_time(), self._config.max_request_size)
            await self._seal(batches)
            batches = [batch for batch in batches if batch.state is BatchState.IN_FLIGHT]
            if batches:
                return connection, batches

    async def _connect(self, sender: _Sender) -> Connection | None:
        """A connection to the broker, or ``None`` after a failure: then it is time to look at the leaders again."""
        node = self._metadata.snapshot.nodes.get(sender.node_id)
        if node is None:
            self._metadata.mark_stale()
            await self._metadata.changed(self._metadata.snapshot)
            return None
        try:
            return await self._brokers.connection(node, "produce")
        except TrikafkaError as error:
            _log.debug("no connection to %s: %s", node, error)
            if not error.retriable:
                self._refuse(self.accumulator.drain(sender.node_id, math.inf, self._config.max_request_size), error)
            self._metadata.mark_stale()
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

    def _request(self, batches: list[OutBatch]) -> ProduceRequest:
        topics: dict[str, list[Any]] = {}
        data = ProduceRequest.TopicProduceData
        for batch in batches:
            part = data.PartitionProduceData(index=batch.partition, records=batch.to_bytes())
            topics.setdefault(batch.topic, []).append(part)
        return ProduceRequest(
            transactional_id=None,
            acks=self._config.acks_code,
            timeout_ms=int(self._config.request_timeout_ms),
            topic_data=[data(name=name, partition_data=parts) for name, parts in topics.items()],
        )

    async def _send(self, connection: Connection, batches: list[OutBatch], request: ProduceRequest) -> None:
        self.requests_in_flight += 1
        try:
            answer = await connection.request(request)
        except TrikafkaError as error:
            self._refuse(batches, error)
            return
        finally:
            self.requests_in_flight -= 1
        if answer is None:  # acks=0
            for batch in batches:
                self.accumulator.succeeded(batch, None, None)
        else:
            self._take(batches, answer)

    def _take(self, batches: list[OutBatch], answer: Any) -> None:
        """Hand each batch its part of the answer."""
        parts = {TopicPartition(topic.name, part.index): part for topic in answer.responses for part in topic.partition_responses}
        for batch in batches:
            part = parts.get(batch.place)
            if part is None:
                self._refuse([batch], ProtocolError(f"the answer to a produce request says nothing of {batch.place}"))
            elif part.error_code:
                self._refuse([batch], from_code(part.error_code, _detail(batch, part)))
            else:
                self.accumulator.succeeded(batch, _known(part.base_offset), _known(part.log_append_time_ms))

    def _refuse(self, batches: list[OutBatch], error: TrikafkaError) -> None:
        if error.refresh_metadata:
            self._metadata.mark_stale()
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


def _known(value: int | None) -> int | None:
    return None if value is None or value < 0 else value


def _detail(batch: OutBatch, part: Any) -> str:
    text = part.error_message or next((each.batch_index_error_message for each in part.record_errors or ()), None)
    return f"{batch.place}, {batch.count} records" + (f": {text}" if text else "")


def _tell(batch: OutBatch) -> None:
    """Say in the log that records failed of which nobody waits for the outcome (so far)."""
    if batch.signal is None:
        _log.warning("%d records for %s were not delivered: %s", batch.count, batch.place, batch.error)
