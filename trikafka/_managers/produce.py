"""The produce manager: owns the accumulator, and alone tells it what happens.

Its tasks: ``follow`` (leaders, from the metadata), ``expire`` (delivery timeouts), the producer id (:mod:`.producer_id`), and a
sender for each broker (:mod:`.produce_senders`). Who finds no room waits in :mod:`.produce_room`.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, TypeVar

import trio

from .._net import reasons
from .._net.brokers import Brokers
from .._net.retry import backoff
from .._net.singleflight import StartSoon
from .._state.accumulator import Accumulator, Limits, Partitioner
from .._state.arguments import HeaderPairs
from .._state.cluster import ClusterSnapshot
from .._state.producer_batch import ProducerBatch
from .._state.producer_state import Idempotent, Plain, ProducerState, Transactional
from .._state.sequences import Identity
from .._state.table_rows import RowGroup, Taken
from .._state.transaction import ProducerTransaction
from .._state.unknown_topics import UnknownTopics
from .._wire.columns import Columns
from .._wire.records import BatchEncoder
from ..config import ProducerConfig
from ..error_codes import ErrorCode
from ..errors import BrokerResponseError, DeliveryTimeoutError, RequestTimedOutError, TrikafkaError, from_code, no_topic
from ..interfaces import MetadataManager, TopicInfo
from ..types import BrokerLatency, TopicPartition
from .batch_watch import Watch, WatchedCounters
from .failure_log import FailureLog
from .outcomes import settled
from .produce_room import Room
from .produce_senders import Senders
from .producer_id import ProducerIds

Ack = TypeVar("Ack")
T = TypeVar("T")
#: A record as ``append`` takes it: topic, value, key, headers, timestamp, partition.
Fields = tuple[str, bytes | None, bytes | None, HeaderPairs, int | None, int | None]
#: How many batches expire before other tasks run.
_STEP = 1_000


class ProduceManager(Generic[Ack]):
    """Owns the accumulator and the conversation with the brokers about its batches.

    ``transaction`` is that of a transactional producer, told by its transaction manager too, and is its identity.
    """

    def __init__(
        self,
        config: ProducerConfig,
        brokers: Brokers,
        metadata: MetadataManager,
        start_soon: StartSoon,
        handle: type[Ack],
        partitioner: Partitioner | None = None,
        transaction: ProducerTransaction | None = None,
        watch: Watch | None = None,
    ) -> None:
        self._config, self._metadata, self._throttles = config, metadata, brokers.throttles
        self._topics: set[str] = set()
        self._unknown = UnknownTopics(trio.current_time)
        self._failures = FailureLog()
        self._ids: ProducerIds | None = None
        producer: ProducerState = Plain()
        if transaction is not None:
            producer = Transactional(transaction)
        elif config.enable_idempotence:
            self._ids = ProducerIds(config, metadata)
            producer = Idempotent(self._ids.need)
        level = _level(config)
        self._accumulator: Accumulator[Ack] = Accumulator(
            Limits(
                batch_size=config.batch_size,
                linger=config.linger_ms / 1000,
                buffer_memory=config.buffer_memory,
                max_request_size=config.max_request_size,
                delivery_timeout=config.delivery_timeout_ms / 1000,
                retries=math.inf if config.retries is None else config.retries,
                availability_timeout=config.partitioner_availability_timeout_ms / 1000,
            ),
            producer,
            make_encoder=lambda: BatchEncoder(config.compression_type, level),
            handle=handle,
            clock=trio.current_time,
            delay=lambda failures: backoff(failures, config.retry_backoff_ms, config.retry_backoff_max_ms),
            on_work=self._work_for,
            on_failed=self._failures.failed if transaction is None else _told_by_the_commit,
            partitioner=partitioner,
            counters=None if watch is None else WatchedCounters(watch),
            ignore_keys=config.partitioner_ignore_keys,
            adaptive=config.partitioner_adaptive_partitioning_enable,
        )
        self._room = Room(self._accumulator)
        self._senders = Senders(config, brokers, metadata, start_soon, self._accumulator, transaction)

    async def run(self) -> None:
        """The background work, beside the senders, which are started as leaders become known."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._follow)
            nursery.start_soon(self._expire)
            nursery.start_soon(self._failures.run)
            if self._ids is not None:
                accumulator = self._accumulator
                refused = lambda error: accumulator.abort(error, anonymous=True)  # noqa: E731
                nursery.start_soon(self._ids.run, accumulator.identified, accumulator.delayed, refused)

    @property
    def accumulator(self) -> Accumulator[Ack]:
        """The records accepted so far."""
        return self._accumulator

    @property
    def requests_in_flight(self) -> int:
        """Produce requests without a response."""
        return self._senders.in_flight

    @property
    def latency(self) -> Mapping[int, BrokerLatency]:
        """How long each broker took to respond."""
        return self._senders.latency()

    # --- records in --------------------------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        """Whether nobody is let in any more."""
        return self._room.closed

    @property
    def waiting(self) -> int:
        """How many tasks wait for room."""
        return self._accumulator.pool.waiting

    @property
    def append(self) -> Callable[[str, Any, Any, Any, int | None, int | None], Ack | None]:
        """The quick way in for one record, as :meth:`.Intake.append`: what the compiled part has, called without a detour."""
        quick: Callable[[str, Any, Any, Any, int | None, int | None], Ack | None] = self._accumulator.appender.append
        return quick

    def append_admitted(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        headers: HeaderPairs,
        timestamp: int | None,
        partition: int | None,
    ) -> Ack | None:
        """Take a record by whose turn it is among those who wait for room; ``None``: there is no room yet."""
        return self._accumulator.append(topic, value, key, headers, timestamp, partition, admitted=True)

    def split_rows(self, topic: str, columns: Columns, explicit: memoryview | int | None, keyed: bool) -> list[RowGroup]:
        """Decide where rows of a table go, see :meth:`PartitionChooser.split_rows`. The topic must be known."""
        return self._accumulator.split_rows(topic, columns, explicit, keyed)

    def extend(self, topic: str, columns: Columns, group: RowGroup, start: int, admitted: bool = False) -> Taken | None:
        """Take rows of a table; see :meth:`Intake.extend`."""
        return self._accumulator.extend(topic, columns, group, start, admitted)

    def hurry(self, batches: Iterable[ProducerBatch]) -> None:
        """Let these batches linger no more; those that are open go on taking records until they are sent."""
        self._accumulator.hurry(batches)

    async def learn(self, topic: str, partition: int | None) -> None:
        """Look up a topic and take over its partitions. Raises a retriable error if there is no such topic or partition."""
        info = await self._metadata.topic(topic)
        if info is not None and partition is not None and partition not in info.partitions:
            info = (await self._metadata.refresh([topic])).topics.get(topic)
        if info is None:
            raise no_topic(topic, self._metadata.snapshot.existing())
        if partition is not None and partition not in info.partitions:
            raise _missing(topic, info, partition)
        self._topics.add(topic)
        self._metadata.add_topic(topic)
        self._adopt(self._metadata.snapshot, [topic])

    def look_up(self, topic: str, partition: int | None) -> None:
        """Have a topic looked up that is not known, or has not that partition: a later call may find it.

        Raises what says that it will not be found: it has been looked for without success for some time, or access is refused.
        """
        snapshot = self._metadata.snapshot
        info = snapshot.topics.get(topic)
        error = _missing(topic, info, partition)
        patience = error.patience if info is not None else math.inf  # nobody has said that there is no such topic
        if info is not None and info.error_code not in (0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
            refused = from_code(info.error_code, f"topic {topic!r}", operation="Describe")
            error, patience = (error, math.inf) if refused.retriable else (refused, 0.0)
        before = self._unknown.changes
        never = self._unknown.look_for((topic, partition), patience, snapshot.version)
        if self._unknown.changes != before:
            self._metadata.want(self._topics | self._unknown.topics)
        self._metadata.request_update()
        if never or not error.retriable:
            raise error

    async def wait_for_room(self, take: Callable[[], T | None], topic: str, partition: int | None) -> T:
        """Wait until it is one's turn and ``take`` finds room; see :meth:`Room.wait_for`."""
        return await self._room.wait_for(take, topic, partition)

    def knows(self, topic: str, partition: int | None) -> bool:
        """Whether the partition of a record is known, so that only room can be missing."""
        return self._room.knows(topic, partition)

    # --- the end -----------------------------------------------------------------------------------------------------

    async def drain(self) -> None:
        """Send what has been accepted so far without lingering; return when each record has its outcome."""
        self._accumulator.close_open()
        for batch in self._accumulator.unsettled():
            try:
                await settled(batch)
            except trio.Cancelled:
                self._explain(batch)
                raise

    def close(self) -> None:
        """Let nobody in any more: who waits for room gets :exc:`trio.ClosedResourceError`."""
        self._room.close()

    def drop(self, error: Exception, at_most: float = math.inf, *, unsent: bool = False) -> bool:
        """Fail everything that has no outcome, what is in flight included; not more than ``at_most`` batches in one step.

        Returns whether something is left. Of a :exc:`DeliveryTimeoutError` each record gets one that says where its time went.
        ``unsent``: only what was never sent; the first that waits for room looks again, too.
        """
        if unsent:
            self._accumulator.pool.wake()
            return self._accumulator.abort_unsent(error, at_most) == at_most
        if isinstance(error, DeliveryTimeoutError):
            self._explain_delays()
        self._failures.hold()
        left = self._accumulator.abort(error, at_most=at_most) == at_most
        if not left:
            self._failures.tell()
        return left

    # --- what a transaction manager tells ----------------------------------------------------------------------------

    def identify(self, identity: tuple[int, int]) -> None:
        """Producer id and epoch for what is sent from now on; sequence numbers begin anew."""
        self._accumulator.identified(Identity(*identity), anew=True)

    def admitted(self) -> None:
        """Partitions that waited for it may be written to now."""
        self._accumulator.wake()

    def delayed(self, error: Exception) -> None:
        """What waits, waits since this happened: should it expire now, that is the cause."""
        self._accumulator.delayed(error)

    async def landed(self) -> None:
        """Wait until nothing is in flight."""
        await self._senders.landed()

    # --- tasks -------------------------------------------------------------------------------------------------------

    async def _follow(self) -> None:
        """Take over the leaders of each new snapshot; ask for the next one as long as leaders are missing."""
        seen = self._metadata.snapshot
        while True:
            self._adopt(seen, self._topics | self._unknown.topics)
            self._senders.keep(seen.nodes)
            if self._accumulator.leaderless:
                self._metadata.request_update()
            seen = await self._metadata.changed(seen)

    def _adopt(self, snapshot: ClusterSnapshot, topics: Iterable[str]) -> None:
        for name in topics:
            info = snapshot.topics.get(name)
            if info is None or info.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                self._accumulator.forget_topic(name)
            elif not info.error_code and info.partitions:
                found = (info.partitions.get(number) for number in range(max(info.partitions) + 1))
                leaders = [None if part is None or part.leader not in snapshot.nodes else part.leader for part in found]
                self._accumulator.update_topic(name, leaders)
                self._unknown.found(name, len(leaders))
                self._topics.add(name)

    async def _expire(self) -> None:
        while True:
            now = trio.current_time()
            if self._accumulator.next_deadline() <= now:
                self._explain_delays()
            while self._accumulator.expire(now, _STEP) == _STEP:
                await trio.lowlevel.checkpoint()
            # What is accepted from now on expires later than this, so nothing has to wake this task.
            latest = now + self._config.delivery_timeout_ms / 1000
            await trio.sleep_until(min(self._accumulator.next_deadline(), latest))

    def _work_for(self, leader: int | None) -> None:
        """There may be something to send to ``leader``."""
        if leader is None:
            self._metadata.request_update()
        else:
            self._senders.work_for(leader)

    # --- why things take long ----------------------------------------------------------------------------------------

    def _waits_for_id(self) -> bool:
        return self._ids is not None and self._accumulator.producer.current is None

    def _explain_delays(self) -> None:
        """What waits for a connection that has neither failed nor come says so, or for a broker's quota, should it expire now."""
        for node_id, error in self._senders.delays():
            self._accumulator.unreachable(node_id, error)
        if self._ids is not None and self._waits_for_id() and (error_of_id := self._ids.reason.error()) is not None:
            self._accumulator.delayed(error_of_id)
        for node, how in self._throttles.now().items():
            self._accumulator.throttled(node.node_id, RequestTimedOutError(how))

    def _explain(self, batch: ProducerBatch) -> None:
        """Note for the call that is cut off why ``batch`` is not delivered yet."""
        if batch.delivery.last_error is not None:
            reasons.failed(batch.delivery.last_error)
        elif batch.delivery.node is not None:
            number = batch.delivery.node
            throttled = self._throttles.now_by(number)
            what = f"Produce to {self._metadata.snapshot.nodes.get(number, number)}"
            reasons.waiting_for(what if throttled is None else f"{what} ({throttled})")
        elif self._ids is not None and self._waits_for_id():
            reasons.waiting_for(*self._ids.reason.told())
        else:
            with contextlib.suppress(TrikafkaError):  # no leader; nothing was due to it so far
                leader = self._metadata.snapshot.leader(TopicPartition(batch.topic, batch.partition))
                if (told := self._senders.reason_of(leader.node_id)) is not None:
                    reasons.waiting_for(*told)


def _level(config: ProducerConfig) -> int | None:
    """The level of the codec that is used; ``None``: its default."""
    levels = {"gzip": config.compression_gzip_level, "lz4": config.compression_lz4_level, "zstd": config.compression_zstd_level}
    return levels.get(config.compression_type)


def _missing(topic: str, info: TopicInfo | None, partition: int | None) -> BrokerResponseError:
    if info is None or info.error_code or partition is None:
        return no_topic(topic)
    detail = f"topic {topic!r} has {len(info.partitions)} partitions, and no partition {partition}"
    return from_code(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, detail)


def _told_by_the_commit(batch: ProducerBatch) -> None:
    """The transaction knows."""
