"""The fetch manager: one task a broker keeps one fetch in flight while the buffer has room.

It writes where each partition is fetched next; the records go undecoded into the buffer, from where the consumer takes them.
An answer to what has been overtaken (a seek, a revoke, a reset) is dropped.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable

import trio

from .._net.brokers import Brokers
from .._net.connection import Exchange
from .._net.deadlines import backoff
from .._net.signal import Signal
from .._net.singleflight import StartSoon
from .._state.fetch_buffer import Chunk, FetchBuffer
from .._state.subscription import PartitionState, Subscription
from .._wire.fetch import FetchedPartition, FetchMessage, Wanted, end_of_batches, is_damaged, read_fetch_answer
from ..config import ConsumerConfig
from ..errors import (
    BrokerResponseError,
    CorruptRecordError,
    OffsetOutOfRangeError,
    TrikafkaError,
    from_code,
)
from ..types import Node, OffsetSpec, TopicPartition
from .metadata import Metadata

_log = logging.getLogger("trikafka.fetch")
_OFFSET_OUT_OF_RANGE = 1
#: How long (ms) a fetch waits in the broker while partitions that are full may soon have room again.
_SHORT_WAIT = 20
_LARGE_ANSWER = 262_144


class Fetcher:
    """Fetches what is assigned, known where to begin, and not paused."""

    def __init__(
        self,
        config: ConsumerConfig,
        brokers: Brokers,
        metadata: Metadata,
        subscription: Subscription,
        start_soon: StartSoon,
        ask_position: Callable[[], None],
        arrived: Signal,
    ) -> None:
        self._config, self._brokers, self._metadata, self._subscription = config, brokers, metadata, subscription
        self._start_soon, self._ask_position = start_soon, ask_position
        self.buffer = FetchBuffer(config.fetch_buffer_bytes)
        self.arrived = arrived  # something to receive: records or an error
        self.wake = Signal()  # something may have become fetchable
        self._nodes: set[int] = set()
        self._resting = 0  # fetch tasks that found nothing to do
        self.buffer.awaited = False
        self._in_flight: set[PartitionState] = set()
        self._turns: dict[int, int] = defaultdict(int)
        self._isolation = 1 if config.isolation_level == "read_committed" else 0

    async def run(self) -> None:
        """Start a task for each broker that leads what is to be fetched. Ends with the client."""
        self._start_soon(self._follow_metadata)
        failures, again = 0, 0.0
        while True:
            leaderless = False
            for state in self._fetchable():
                try:
                    node = self._metadata.snapshot.leader(state.tp)
                except TrikafkaError as error:
                    leaderless = True
                    self._subscription.note_missing(state, error, trio.current_time())
                    if state.error is not None:
                        self.arrived.notify()
                    continue
                state.missing_since = None
                if node.node_id not in self._nodes:
                    self._nodes.add(node.node_id)
                    self._start_soon(self._fetch_from, node.node_id)
            if not leaderless:
                failures = 0
                await self.wake.wait()
                continue
            if trio.current_time() >= again:
                failures += 1
                again = trio.current_time() + backoff(failures, self._config.retry_backoff_ms, self._config.retry_backoff_max_ms)
                self._metadata.mark_stale()
            with trio.move_on_at(again):
                await self.wake.wait()

    async def _follow_metadata(self) -> None:
        """A partition may have another leader now: the fetch of its old one has ended, that of the new one has to begin."""
        seen = self._metadata.snapshot
        while True:
            seen = await self._metadata.changed(seen)
            self.wake.notify()

    async def _fetch_from(self, node_id: int) -> None:
        failures = 0
        while True:
            node = self._metadata.snapshot.nodes.get(node_id)
            chosen, full, room = self._choose(node_id)
            if node is None or not chosen:
                await self._rest(node_id)
                continue
            self._in_flight.update(chosen)
            seen = self._metadata.snapshot
            try:
                failed = not await self._fetch(node, chosen, full, room)
            finally:
                self._in_flight.difference_update(chosen)
            if self._metadata.snapshot is not seen:
                self.wake.notify()  # some may be another broker's now, whose task found them in flight here
            failures = failures + 1 if failed else 0
            if failed:
                await trio.sleep(backoff(failures, self._config.retry_backoff_ms, self._config.retry_backoff_max_ms))

    async def _rest(self, node_id: int) -> None:
        """Wait until something may be fetchable: the signal, or the end of a partition's wait after an error."""
        now = trio.current_time()
        times = [state.retry_at for state in self._subscription.partitions.values() if state.retry_at > now]
        self._resting += 1
        self.buffer.awaited = True
        try:
            with trio.move_on_at(min(times, default=float("inf"))):
                await self.wake.wait()
        finally:
            self._resting -= 1
            self.buffer.awaited = self._resting > 0

    def _fetchable(self) -> list[PartitionState]:
        states = self._subscription.partitions.values()
        return [state for state in states if state.fetchable]

    def _choose(self, node_id: int) -> tuple[list[PartitionState], bool, int]:
        """What to fetch from a broker now; whether something was left out because it is full; and how many bytes of it."""
        self.buffer.drop_stale()
        now, full, chosen = trio.current_time(), False, []
        leaders, buffered = set(), 0
        share = self.buffer.share(len(self._subscription.partitions))
        for state in self._fetchable():
            try:
                leader = self._metadata.snapshot.leader(state.tp).node_id
            except TrikafkaError:
                continue
            leaders.add(leader)
            if leader != node_id:
                continue
            buffered += state.buffered
            if state in self._in_flight or state.retry_at > now:
                continue
            if state.buffered < share:
                chosen.append(state)
            else:
                full = True
        wanted = min(self._config.fetch_max_bytes, len(chosen) * self._config.max_partition_fetch_bytes)
        room = self.buffer.room(len(leaders), buffered, wanted)
        if chosen and room:  # each partition comes first in its turn, for the broker fills answers from the front
            turn = self._turns[node_id] = (self._turns[node_id] + 1) % len(chosen)
            return chosen[turn:] + chosen[:turn], full, room
        return [], full, 0

    async def _fetch(self, node: Node, chosen: list[PartitionState], full: bool, room: int) -> bool:
        epochs = {state.tp: (state, state.epoch, state.fetch_offset) for state in chosen}
        request = self._request(chosen, room, _SHORT_WAIT if full else self._config.fetch_max_wait_ms)
        patience = self._config.request_timeout + self._config.fetch_max_wait_ms / 1000
        done, fine = Signal(), None

        def ended(exchange: Exchange) -> None:  # in the reader's step: so the records are there a turn of the loop earlier
            nonlocal fine
            try:
                fine = self._take_answer(node, epochs, *exchange.body())
            except TrikafkaError as error:
                self._note_failure(node, chosen, error)
                fine = False
            done.notify()

        try:
            connection = await self._brokers.connection(node, "fetch")
            connection.begin(request, ended, patience)
        except TrikafkaError as error:
            self._note_failure(node, chosen, error)
            return False
        while fine is None:
            await done.wait()
        return fine

    def _note_failure(self, node: Node, chosen: list[PartitionState], error: TrikafkaError) -> None:
        _log.debug("fetch from %s failed: %s", node, error)
        self._metadata.mark_stale()
        if not error.retriable:
            self._fail(chosen, error)

    def _take_answer(
        self, node: Node, epochs: dict[TopicPartition, tuple[PartitionState, int, int]], body: memoryview, version: int
    ) -> bool:
        """Take in an answer; return whether to go on without a wait."""
        answer = read_fetch_answer(body, version)
        if answer.error_code:
            raise from_code(answer.error_code, f"Fetch from {node}")
        fine = True
        alone = sum(bool(part.records) for part in answer.partitions) == 1
        for part in answer.partitions:
            asked = epochs.get(TopicPartition(part.topic, part.partition))
            if asked is not None and asked[0].epoch == asked[1]:
                fine = self._take(asked[0], asked[2], part, alone) and fine
        return fine

    def _take(self, state: PartitionState, offset: int, part: FetchedPartition, alone: bool) -> bool:
        """Take in one partition's answer, ``alone`` if no other has records; return whether to go on without a wait."""
        if part.error_code:
            return self._take_error(state, offset, part.error_code)
        state.high_watermark, state.log_start = part.high_watermark, part.log_start_offset
        if not part.records:
            return True
        aborted = (part.aborted or []) if self._isolation else None
        end = end_of_batches(part.records, offset)
        if end == offset and not alone and not is_damaged(part.records):
            return True  # the answer was full: only the first batch of all is sure to come whole (KIP-74); its turn will come
        if end == offset:
            self._fail([state], CorruptRecordError("no complete record batch", part.topic, part.partition, offset))
            return True
        self.buffer.put(Chunk(state, state.epoch, _unpinned(part.records), aborted, end))
        # The old formats tell their end only when they are decoded: the consumer then says where to go on.
        state.fetch_offset = -1 if end is None else end
        self.arrived.notify()
        return True

    def _take_error(self, state: PartitionState, offset: int, code: int) -> bool:
        error = from_code(code, f"partition {state.tp} at offset {offset}")
        if code == _OFFSET_OUT_OF_RANGE:
            self._reset(state, offset, error)
        elif error.retriable:
            self._metadata.mark_stale()
            state.retry_at = trio.current_time() + backoff(1, self._config.retry_backoff_ms, self._config.retry_backoff_max_ms)
        else:
            self._fail([state], error)
        return True

    def _reset(self, state: PartitionState, offset: int, cause: BrokerResponseError) -> None:
        if state.position is not None and state.position < offset:  # first hand out what is fetched
            state.retry_at = trio.current_time() + backoff(1, self._config.retry_backoff_max_ms, self._config.retry_backoff_max_ms)
        elif self._config.auto_offset_reset == "none":
            error = OffsetOutOfRangeError(f"{cause}; auto_offset_reset is 'none'")
            error.__cause__ = cause
            self._fail([state], error)
        else:
            _log.info("%s: offset %d is out of range, going to the %s", state.tp, offset, self._config.auto_offset_reset)
            earliest = self._config.auto_offset_reset == "earliest"
            state.ask_reset(OffsetSpec.EARLIEST if earliest else OffsetSpec.LATEST)
            self._ask_position()

    def _fail(self, states: list[PartitionState], error: Exception) -> None:
        for state in states:
            state.error = error
        self.arrived.notify()

    def _request(self, chosen: list[PartitionState], max_bytes: int, wait_ms: float) -> FetchMessage:
        by_topic: dict[str, list[Wanted]] = defaultdict(list)
        for state in chosen:
            epoch = self._metadata.snapshot.leader_epoch(state.tp)
            by_topic[state.tp.topic].append((state.tp.partition, epoch, state.fetch_offset))
        return FetchMessage(
            by_topic,
            max_wait_ms=int(wait_ms),
            min_bytes=self._config.fetch_min_bytes,
            max_bytes=max_bytes,
            partition_bytes=self._config.max_partition_fetch_bytes,
            isolation_level=self._isolation,
            rack=self._config.client_rack,
        )


def _unpinned(records: memoryview) -> memoryview:
    """The records, copied if they are a small part of a large answer, which they would keep in memory."""
    whole = memoryview(records.obj).nbytes
    return memoryview(bytes(records)) if whole >= _LARGE_ANSWER and len(records) * 8 < whole else records
