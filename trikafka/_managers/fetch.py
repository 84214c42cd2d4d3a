"""The fetch manager: one task a broker keeps one fetch in flight while the buffer has room.

It tells each partition what was fetched of it; the records go undecoded into the buffer, from where readers take them.
A response to what has been overtaken (a seek, a loss, a reset) is dropped.
"""

from __future__ import annotations

import logging
from collections import defaultdict

import trio

from .._net.brokers import Brokers
from .._net.connection import Exchange
from .._net.deadlines import backoff
from .._net.signal import Signal
from .._net.singleflight import StartSoon
from .._state.assignment import AssignedPartition, Assignment, LogEnds, Ticket
from .._state.fetch_buffer import CompletedFetch, FetchBuffer
from .._state.subscription import Subscription
from .._wire.fetch import FetchedPartition, FetchMessage, Wanted, end_of_batches, is_damaged, read_fetch_answer
from ..config import ConsumerConfig
from ..errors import (
    BrokerResponseError,
    CorruptRecordError,
    OffsetOutOfRangeError,
    TrikafkaError,
    from_code,
)
from ..interfaces import MetadataManager
from ..types import Node, OffsetSpec, TopicPartition

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
        metadata: MetadataManager,
        subscription: Subscription,
        assignment: Assignment,
        buffer: FetchBuffer,
        fetchable: Signal,
        start_soon: StartSoon,
    ) -> None:
        self._config, self._brokers, self._metadata = config, brokers, metadata
        self._subscription, self._assignment, self._buffer = subscription, assignment, buffer
        self._wake = fetchable  # something may have become fetchable
        self._start_soon = start_soon
        self._nodes: set[int] = set()
        self._resting = 0  # fetch tasks that found nothing to do
        self._in_flight: set[AssignedPartition] = set()
        self._turns: dict[int, int] = defaultdict(int)
        self._isolation = 1 if config.isolation_level == "read_committed" else 0

    async def run(self) -> None:
        """Start a task for each broker that leads what is to be fetched. Ends with the client."""
        self._start_soon(self._follow_metadata)
        failures, again = 0, 0.0
        while True:
            if not self._start_tasks():
                failures = 0
                await self._wake.wait()
                continue
            if trio.current_time() >= again:
                failures += 1
                again = trio.current_time() + backoff(failures, self._config.retry_backoff_ms, self._config.retry_backoff_max_ms)
                self._metadata.request_update()
            with trio.move_on_at(again):
                await self._wake.wait()

    def _start_tasks(self) -> bool:
        """Have a task for each broker that is needed; whether something has no leader."""
        leaderless = False
        for partition in list(self._assignment.fetchable):
            try:
                node = self._metadata.snapshot.leader(partition.tp)
            except TrikafkaError as error:
                leaderless = True
                self._assignment.missing(partition, error, trio.current_time(), grouped=self._subscription.grouped)
                continue
            self._assignment.found(partition)
            if node.node_id not in self._nodes:
                self._nodes.add(node.node_id)
                self._start_soon(self._fetch_from, node.node_id)
        return leaderless

    async def _follow_metadata(self) -> None:
        """A partition may have another leader now: the fetch of its old one has ended, that of the new one has to begin."""
        seen = self._metadata.snapshot
        while True:
            seen = await self._metadata.changed(seen)
            self._wake.notify()

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
                self._wake.notify()  # some may be another broker's now, whose task found them in flight here
            failures = failures + 1 if failed else 0
            if failed:
                await trio.sleep(backoff(failures, self._config.retry_backoff_ms, self._config.retry_backoff_max_ms))

    async def _rest(self, node_id: int) -> None:
        """Wait until something may be fetchable: the signal, or the end of a partition's wait after an error."""
        now = trio.current_time()
        times = [partition.retry_at for partition in self._assignment.fetchable if partition.retry_at > now]
        self._resting += 1
        self._buffer.fetcher_idle(True)
        try:
            with trio.move_on_at(min(times, default=float("inf"))):
                await self._wake.wait()
        finally:
            self._resting -= 1
            self._buffer.fetcher_idle(self._resting > 0)

    def _choose(self, node_id: int) -> tuple[list[AssignedPartition], bool, int]:
        """What to fetch from a broker now; whether something was left out because it is full; and how many bytes of it."""
        now, full, chosen = trio.current_time(), False, []
        leaders, buffered = set(), 0
        share = self._buffer.share(len(self._assignment))
        for partition in self._assignment.fetchable:
            try:
                leader = self._metadata.snapshot.leader(partition.tp).node_id
            except TrikafkaError:
                continue
            leaders.add(leader)
            if leader != node_id:
                continue
            size = self._buffer.size_of(partition)
            buffered += size
            if partition in self._in_flight or partition.retry_at > now:
                continue
            if size < share:
                chosen.append(partition)
            else:
                full = True
        wanted = min(self._config.fetch_max_bytes, len(chosen) * self._config.max_partition_fetch_bytes)
        room = self._buffer.room(len(leaders), buffered, wanted)
        if chosen and room:  # each partition comes first in its turn, for the broker fills responses from the front
            turn = self._turns[node_id] = (self._turns[node_id] + 1) % len(chosen)
            return chosen[turn:] + chosen[:turn], full, room
        return [], full, 0

    async def _fetch(self, node: Node, chosen: list[AssignedPartition], full: bool, room: int) -> bool:
        tickets = {partition.tp: partition.fetch_begun() for partition in chosen}
        request = self._request(chosen, room, _SHORT_WAIT if full else self._config.fetch_max_wait_ms)
        patience = self._config.request_timeout + self._config.fetch_max_wait_ms / 1000
        done, fine = Signal(), None

        def ended(exchange: Exchange) -> None:  # in the reader's step: so the records are there a turn of the loop earlier
            nonlocal fine
            try:
                fine = self._take_response(node, tickets, *exchange.body())
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

    def _note_failure(self, node: Node, chosen: list[AssignedPartition], error: TrikafkaError) -> None:
        _log.debug("fetch from %s failed: %s", node, error)
        self._metadata.request_update()
        if not error.retriable:
            for partition in chosen:
                partition.failed(error)

    def _take_response(self, node: Node, tickets: dict[TopicPartition, Ticket], body: memoryview, version: int) -> bool:
        """Take in a response; return whether to go on without a wait."""
        response = read_fetch_answer(body, version)
        if response.error_code:
            raise from_code(response.error_code, f"Fetch from {node}")
        fine = True
        alone = sum(bool(part.records) for part in response.partitions) == 1
        for part in response.partitions:
            ticket = tickets.get(TopicPartition(part.topic, part.partition))
            if ticket is not None and ticket.partition.accepts(ticket.number):
                fine = self._take(ticket, part, alone) and fine
        return fine

    def _take(self, ticket: Ticket, part: FetchedPartition, alone: bool) -> bool:
        """Take in one partition's response, ``alone`` if no other has records; return whether to go on without a wait."""
        partition, offset = ticket.partition, ticket.offset
        if part.error_code:
            return self._take_error(partition, offset, part.error_code)
        partition.log_ends(LogEnds(part.high_watermark, part.log_start_offset))
        if not part.records:
            return True
        aborted = (part.aborted or []) if self._isolation else None
        end = end_of_batches(part.records, offset)
        if end == offset and not alone and not is_damaged(part.records):
            return True  # the response was full: only the first batch of all is sure to come whole (KIP-74); its turn will come
        if end == offset:
            partition.failed(CorruptRecordError("no complete record batch", part.topic, part.partition, offset))
            return True
        partition.fetched(end)  # the old formats tell their end only when they are decoded: the reader then says where to go on
        self._buffer.put(CompletedFetch(partition, ticket.number, _unpinned(part.records), aborted, end))
        return True

    def _take_error(self, partition: AssignedPartition, offset: int, code: int) -> bool:
        error = from_code(code, f"partition {partition.tp} at offset {offset}")
        if code == _OFFSET_OUT_OF_RANGE:
            self._reset(partition, offset, error)
        elif error.retriable:
            self._metadata.request_update()
            wait = backoff(1, self._config.retry_backoff_ms, self._config.retry_backoff_max_ms)
            partition.back_off(trio.current_time() + wait)
        else:
            partition.failed(error)
        return True

    def _reset(self, partition: AssignedPartition, offset: int, cause: BrokerResponseError) -> None:
        if partition.position is not None and partition.position < offset:  # first deliver what is fetched
            wait = backoff(1, self._config.retry_backoff_max_ms, self._config.retry_backoff_max_ms)
            partition.back_off(trio.current_time() + wait)
        elif self._config.auto_offset_reset == "none":
            error = OffsetOutOfRangeError(f"{cause}; auto_offset_reset is 'none'")
            error.__cause__ = cause
            partition.failed(error)
        else:
            _log.info("%s: offset %d is out of range, going to the %s", partition.tp, offset, self._config.auto_offset_reset)
            earliest = self._config.auto_offset_reset == "earliest"
            partition.ask_reset(OffsetSpec.EARLIEST if earliest else OffsetSpec.LATEST)

    def _request(self, chosen: list[AssignedPartition], max_bytes: int, wait_ms: float) -> FetchMessage:
        by_topic: dict[str, list[Wanted]] = defaultdict(list)
        for partition in chosen:
            epoch = self._metadata.snapshot.leader_epoch(partition.tp)
            by_topic[partition.tp.topic].append((partition.tp.partition, epoch, partition.fetch_offset))
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
