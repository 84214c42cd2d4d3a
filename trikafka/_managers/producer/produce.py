"""The produce manager: the owner of the accumulator, and its only writer.

Its tasks are ``follow`` (leaders, from the metadata), ``expire`` (delivery timeouts), the producer
id (:mod:`.producer_id`), and a sender for each broker (:mod:`.produce_senders`). Callers that find
no room wait in the order of their arrival.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import trio

from ..._net import reasons
from ..._net.brokers import Brokers
from ..._net.retry import backoff
from ..._net.singleflight import StartSoon
from ..._state.arguments import HeaderPairs
from ..._state.producer.accumulator import Accumulator, BufferLimits, Taken
from ..._state.producer.batch_completion import OldestBatch
from ..._state.producer.producer_batch import ProducerBatch
from ..._state.producer.queues import RowGroup
from ..._state.producer.sequences import (
    Idempotent,
    NonIdempotent,
    ProducerIdentity,
    ProducerState,
    Transactional,
)
from ..._state.producer.transaction_state import ProducerTransaction
from ..._state.producer.unknown_topics import UnknownTopics
from ..._state.telemetry.metrics import Meter
from ..._wire.columns import Columns
from ..._wire.compression import CodecImplementation, codec_named, replaced
from ..._wire.partitioning import BY_MURMUR2, KEY_RULES, NO_KEYS, KeyRule
from ..._wire.records import BatchEncoder
from ...config import ProducerConfig
from ...error_codes import ErrorCode
from ...errors import (
    BrokerResponseError,
    DeliveryTimeoutError,
    RequestTimedOutError,
    TrikafkaError,
    from_code,
    no_topic,
)
from ...errors.counts import counted
from ...hooks import renamed_member
from ...interfaces import ClusterSnapshot, MetadataManager, Partitioner, ProduceManager, TopicInfo
from ...types import BrokerLatency, TopicPartition
from .outcomes import FailureLog, Reports, Watch, settled
from .produce_senders import Senders
from .producer_id import ProducerIds

Ack = TypeVar("Ack")
T = TypeVar("T")
#: How many batches expire before other tasks run.
_STEP = 1_000
#: The time (seconds) after which a topic that the metadata lack is forgotten. Java's client forgets
#: one that is not used for as long (``metadata.max.idle.ms``).
_FORGOTTEN_AFTER = 300.0


class _Waiter:
    """A task that waits for room."""

    __slots__ = ("_turn",)

    def __init__(self) -> None:
        self._turn = trio.Event()

    def set(self) -> None:
        """Wake the task, so that it looks again."""
        self._turn.set()

    async def wait(self) -> None:
        """Wait for the next ``set``."""
        self._turn = trio.Event()
        await self._turn.wait()


class BatchProducing(Generic[Ack]):
    """The owner of the accumulator and of the conversation with the brokers about its batches.

    ``transaction`` is the state of a transactional producer, with its producer id and epoch. The
    transaction manager writes this state, too.
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
        codec: CodecImplementation | None = None,
        meter: Meter | None = None,
    ) -> None:
        self._config = config
        self._metadata = metadata
        self._throttles = brokers.throttles
        self._topics: set[str] = set()
        self._gone_since: dict[str, float] = {}  # of the topics that the metadata lack
        self._unknown = UnknownTopics(trio.current_time)
        self._failures = FailureLog()
        self._ids: ProducerIds | None = None
        producer: ProducerState = NonIdempotent()
        if transaction is not None:
            producer = Transactional(transaction)
        elif config.enable_idempotence:
            self._ids = ProducerIds(config, metadata)
            producer = Idempotent(self._ids.need)
        self._senders = Senders(config, brokers, metadata, start_soon, transaction, meter)
        level = level_of(config)
        compression = codec_named(config.compression_type)
        if codec is not None:
            compression = replaced(config.compression_type, codec)
        self._accumulator: Accumulator[Ack] = Accumulator(
            BufferLimits(
                batch_size=config.batch_size,
                linger=config.linger_ms / 1000,
                buffer_memory=config.buffer_memory,
                max_request_size=config.max_request_size,
                delivery_timeout=config.delivery_timeout_ms / 1000,
                retries=math.inf if config.retries is None else config.retries,
                availability_timeout=config.partitioner_availability_timeout_ms / 1000,
            ),
            producer,
            make_encoder=partial(BatchEncoder, compression, level),
            handle=handle,
            clock=trio.current_time,  # raises in another thread, before a batch is opened
            delay=lambda failures: backoff(
                failures, config.retry_backoff_ms, config.retry_backoff_max_ms
            ),
            on_work=self._senders.work_for,
            # The commit of a transaction reports its failures.
            reports=Reports(watch, self._failures if transaction is None else None),
            partitioner=partitioner,
            keys=_key_rule(config),
            adaptive=config.partitioner_adaptive_partitioning_enable,
            is_in_rack=self._is_in_rack
            if config.partitioner_rack_aware and config.client_rack
            else None,
        )
        #: True once no more records are accepted.
        self.closed = False
        self._senders.send_from(self._accumulator)

    async def run(self) -> None:
        """Do the background work, except for the senders.

        A sender is started when there is work for its broker.
        """
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._follow)
            nursery.start_soon(self._expire)
            nursery.start_soon(self._failures.write_lines)
            if self._ids is not None:
                accumulator = self._accumulator
                refused = lambda error: accumulator.abort(error, anonymous=True)  # noqa: E731
                nursery.start_soon(
                    self._ids.obtain_ids, accumulator.identified, accumulator.delayed, refused
                )

    def _is_in_rack(self, number: int) -> bool:
        node = self._metadata.snapshot.nodes.get(number)
        return node is not None and node.rack == self._config.client_rack

    @property
    def accumulator(self) -> Accumulator[Ack]:
        """The records accepted so far."""
        return self._accumulator

    @property
    def requests_in_flight(self) -> int:
        """The number of Produce requests without a response."""
        return self._senders.in_flight

    @property
    def latency(self) -> Mapping[int, BrokerLatency]:
        """The response times, by broker."""
        return self._senders.latency()

    # --- records in -------------------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        """The number of tasks that wait for room."""
        return self._accumulator.waiting

    @property
    def append(self) -> Callable[[str, Any, Any, Any, int | None, int | None], Ack | None]:
        """The quick way in for one record, as :meth:`.Accumulator.append`.

        The property returns the method of the compiled part, so that a call makes no detour.
        """
        quick: Callable[[str, Any, Any, Any, int | None, int | None], Ack | None] = (
            self._accumulator.appender.append
        )
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
        """Take a record from the caller whose turn it is among those that wait for room.

        Returns ``None`` if there is no room yet.
        """
        return self._accumulator.append(
            topic, value, key, headers, timestamp, partition, admitted=True
        )

    def split_rows(
        self, topic: str, columns: Columns, explicit: memoryview | int | None, keyed: bool
    ) -> list[RowGroup]:
        """Decide where the rows of a table go; see :meth:`TopicQueues.split_rows`.

        The topic must be known.
        """
        return self._accumulator.split_rows(topic, columns, explicit, keyed)

    def extend(
        self, topic: str, columns: Columns, group: RowGroup, start: int, admitted: bool = False
    ) -> Taken | None:
        """Take rows of a table; see :meth:`Accumulator.extend`."""
        return self._accumulator.extend(topic, columns, group, start, admitted)

    def flush_batches(self, batches: Iterable[ProducerBatch]) -> None:
        """End the linger of these batches.

        Open ones go on taking records until they are sent.
        """
        self._accumulator.flush_batches(batches)

    async def learn(self, topic: str, partition: int | None) -> None:
        """Look up a topic and take over its partitions.

        Raises a retriable error if there is no such topic or partition.
        """
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
        """Request the metadata of an unknown topic or partition, for a later call to find.

        Raises when waiting cannot help: access is refused, or the topic has been looked for without
        success for some time.
        """
        snapshot = self._metadata.snapshot
        info = snapshot.topics.get(topic)
        if info is not None and not info.error_code and _has(info, partition):
            # The metadata have come, but `_follow` has not run since. Without this look, a topic
            # that was searched for long would now be reported as missing.
            self._metadata.add_topic(topic)
            self._adopt(snapshot, [topic])
            return
        error = _missing(topic, info, partition)
        # No broker has said that the topic does not exist, so patience does not run out.
        patience = error.patience if info is not None else math.inf
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

    async def wait_for_room(
        self, take: Callable[[], T | None], topic: str, partition: int | None
    ) -> T:
        """Wait for the caller's turn and until ``take`` finds room; return its result.

        On cancellation nothing has been taken. Raises a retriable error when the topic or partition
        is gone, :exc:`trio.ClosedResourceError` when closed meanwhile.
        """
        waiter = _Waiter()
        self._accumulator.add_waiter(waiter)
        try:
            while not self.closed:
                if self._accumulator.is_first_waiter(waiter):
                    taken = take()
                    if taken is not None:
                        return taken
                    if not self.knows(topic, partition):
                        raise no_topic(topic)
                await waiter.wait()
            raise trio.ClosedResourceError("the producer was closed")
        finally:
            self._accumulator.remove_waiter(waiter)

    def knows(self, topic: str, partition: int | None) -> bool:
        """Return whether the partition of a record is known, so that only room can be missing."""
        count = self._accumulator.partition_count(topic)
        return count is not None and (partition is None or partition < count)

    # --- the end ----------------------------------------------------------------------------------

    async def drain(self) -> None:
        """Send what has been accepted so far without lingering; wait for each outcome."""
        self._accumulator.close_open()
        for batch in self._accumulator.unsettled():
            try:
                await settled(batch)
            except trio.Cancelled:
                self._explain(batch)
                raise

    def close(self) -> None:
        """Accept no more records.

        Callers that wait for room get :exc:`trio.ClosedResourceError`.
        """
        self.closed = True
        self._accumulator.wake_waiters(every=True)

    def drop(self, error: Exception, at_most: float = math.inf, *, unsent: bool = False) -> bool:
        """Fail the records that have no outcome, including those in flight.

        Returns whether batches are left: at most ``at_most`` batches fail in one step. With a
        :exc:`DeliveryTimeoutError` each record gets an error of its own, with where its time went.
        With ``unsent`` only batches that were never sent fail, and the first caller that waits for
        room looks again.
        """
        if unsent:
            self._accumulator.wake_waiters()
            return self._accumulator.abort_unsent(error, at_most) == at_most
        if isinstance(error, DeliveryTimeoutError):
            self._explain_delays()
        self._failures.hold()
        left = self._accumulator.abort(error, at_most=at_most) == at_most
        if not left:
            self._failures.log_now()
        return left

    # --- calls of a transaction manager -----------------------------------------------------------

    def identify(self, identity: tuple[int, int]) -> None:
        """Use this producer id and epoch from now on; sequence numbers start again at 0."""
        self._accumulator.identified(ProducerIdentity(*identity), restart=True)

    def partitions_added(self) -> None:
        """Send batches whose partitions the transaction's coordinator knows by now."""
        self._accumulator.wake()

    def delayed(self, error: Exception) -> None:
        """Record ``error`` as the cause, should a waiting batch expire now."""
        self._accumulator.delayed(error)

    async def wait_none_in_flight(self) -> None:
        """Wait until nothing is in flight."""
        await self._senders.wait_none_in_flight()

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Return a member by its name in the last release, with a warning."""
            return renamed_member(self, ProduceManager, name)

    # --- tasks ------------------------------------------------------------------------------------

    async def _follow(self) -> None:
        """Apply the leaders of each new snapshot; request another while a leader is unknown."""
        seen = self._metadata.snapshot
        while True:
            self._adopt(seen, self._topics | self._unknown.topics)
            self._forget_deleted()
            self._senders.end_others(seen.nodes)
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
                leaders = [
                    None if part is None or part.leader not in snapshot.nodes else part.leader
                    for part in found
                ]
                self._accumulator.update_topic(name, leaders)
                self._unknown.found(name, len(leaders))
                self._topics.add(name)
                self._gone_since.pop(name, None)

    # A broker whose metadata lag may say for a moment that a topic does not exist. If the client
    # then stopped asking for the topic, the next `send_nowait` would be refused, however much
    # later.
    def _forget_deleted(self) -> None:
        """Stop asking for topics that have been gone for long, and that no batch waits for.

        The next record of such a topic looks the topic up again.
        """
        now = trio.current_time()
        waiting = self._accumulator.leaderless
        gone = [
            topic
            for topic in self._topics
            if self._accumulator.partition_count(topic) is None and topic not in waiting
        ]
        self._gone_since = {topic: self._gone_since.get(topic, now) for topic in gone}
        deleted = {
            topic for topic, since in self._gone_since.items() if now - since >= _FORGOTTEN_AFTER
        }
        if deleted:
            self._topics -= deleted
            self._metadata.want(self._topics | self._unknown.topics)

    async def _expire(self) -> None:
        while True:
            now = trio.current_time()
            if self._accumulator.completion.next_deadline() <= now:
                self._explain_delays()
            while self._accumulator.completion.expire(now, _STEP) == _STEP:
                await trio.lowlevel.checkpoint()
            # Records accepted from now on expire later than `latest`, so no event has to wake this
            # task.
            latest = now + self._config.delivery_timeout_ms / 1000
            await trio.sleep_until(min(self._accumulator.completion.next_deadline(), latest))

    # --- why things take long ---------------------------------------------------------------------

    def _waits_for_id(self) -> bool:
        return self._ids is not None and self._accumulator.producer.current is None

    def _explain_delays(self) -> None:
        """Record why batches wait, for the errors of those that expire now.

        The causes are a connection attempt that has neither failed nor succeeded, a missing
        producer id, and a broker's quota.
        """
        for node_id, error in self._senders.delays():
            self._accumulator.completion.unreachable(node_id, error)
        if (
            self._ids is not None
            and self._waits_for_id()
            and (error_of_id := self._ids.reason.error()) is not None
        ):
            self._accumulator.delayed(error_of_id)
        for node, how in self._throttles.now().items():
            self._accumulator.completion.throttled(node.node_id, RequestTimedOutError(how))

    def heads(self) -> list[OldestBatch]:
        """Return the first batch without an outcome of each partition that has one."""
        return self._accumulator.heads()

    def obstacle_of(self, batch: ProducerBatch) -> str:
        """Return why ``batch`` is not delivered yet, as far as that is known."""
        if batch.last_error is not None:
            return str(batch.last_error)
        with reasons.reasoning() as reason:
            self._explain(batch)
            waiting_for, error = reason.blame()
        return (
            str(error)
            if error is not None
            else f"no response while waiting for {waiting_for or 'its turn'}"
        )

    def _explain(self, batch: ProducerBatch) -> None:
        """Record why ``batch`` is not delivered yet, for the call that is cut off."""
        if batch.last_error is not None:
            reasons.failed(batch.last_error)
        elif batch.node is not None:
            number = batch.node
            throttled = self._throttles.now_by(number)
            what = f"Produce to {self._metadata.snapshot.nodes.get(number, number)}"
            reasons.waiting_for(what if throttled is None else f"{what} ({throttled})")
        elif self._ids is not None and self._waits_for_id():
            reasons.waiting_for(*self._ids.reason.blame())
        else:
            # There may be no leader, or no sender to it yet.
            with contextlib.suppress(TrikafkaError):
                leader = self._metadata.snapshot.leader(
                    TopicPartition(batch.topic, batch.partition)
                )
                if (throttled := self._throttles.now_by(leader.node_id)) is not None:
                    reasons.waiting_for(f"Produce to {leader} ({throttled})")
                elif (held := self._senders.reason_of(leader.node_id)) is not None:
                    reasons.waiting_for(*held)


def level_of(config: ProducerConfig) -> int | None:
    """Return the configured level of the codec in use; ``None`` for the codec's default."""
    levels = {
        "gzip": config.compression_gzip_level,
        "lz4": config.compression_lz4_level,
        "zstd": config.compression_zstd_level,
    }
    return levels.get(config.compression_type)


def _key_rule(config: ProducerConfig) -> KeyRule:
    """Return how the built-in partitioner uses keys; any rule where a plugin or function does."""
    if config.partitioner_ignore_keys:
        return NO_KEYS
    return (
        BY_MURMUR2
        if callable(config.partitioner)
        else KEY_RULES.get(config.partitioner, BY_MURMUR2)
    )


def _has(info: TopicInfo, partition: int | None) -> bool:
    """Return whether a topic has this partition, or any partition if none is named."""
    return bool(info.partitions) if partition is None else partition in info.partitions


def _missing(topic: str, info: TopicInfo | None, partition: int | None) -> BrokerResponseError:
    if info is None or info.error_code or partition is None:
        return no_topic(topic)
    count = counted(len(info.partitions), "partition")
    detail = f"topic {topic!r} has {count}, and no partition {partition}"
    return from_code(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, detail)
