"""A small real manager for each seat, with exactly the members of its Protocol.

The managers work with the scripted cluster. They are written as a third party would write them:
from ``trikafka.interfaces`` and kafka-python's requests and records alone. None of them delegates
to trikafka's own manager.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import trio
from kafka.protocol.consumer import FetchRequest
from kafka.protocol.consumer.group import JoinGroupRequest, LeaveGroupRequest, SyncGroupRequest
from kafka.protocol.consumer.offsets import ListOffsetsRequest
from kafka.protocol.metadata import FindCoordinatorRequest
from kafka.protocol.producer import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    ProduceRequest,
    TxnOffsetCommitRequest,
)
from kafka.record.default_records import DefaultRecordBatchBuilder

from trikafka import (
    BrokerLatency,
    GroupMetadata,
    MetricsPush,
    Node,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    PartitionInfo,
    PreparedTransaction,
    Record,
    RecordBatch,
    RecordMetadata,
    TopicPartition,
    TrikafkaError,
    hookimpl,
    interfaces,
)
from trikafka.config import ProducerConfig
from trikafka.errors import (
    KafkaConnectionError,
    RecordTooLargeError,
    TransactionAbortableError,
    from_code,
)
from trikafka.interfaces import (
    Call,
    ClientContext,
    ClusterSnapshot,
    Committed,
    ConsumerContext,
    CoordinatorKind,
    Found,
    ManagerKind,
    ProduceManager,
    ProducerContext,
    ShareConsumerContext,
    TopicInfo,
    TransactionManager,
)
from trikafka.testing.messages import MISSING as CLASSES
from trikafka.types import UnsentRecord

T = TypeVar("T")


class StaticMetadata:
    """One broker, which leads the two partitions of the one topic."""

    def __init__(self, context: ClientContext) -> None:
        self._brokers = context.brokers
        host, port = str(context.config.bootstrap_servers).split(",")[0].rsplit(":", 1)
        self._node = Node(0, host, int(port))
        parts = {number: PartitionInfo("t", number, 0, 0, (0,), (0,)) for number in range(2)}
        self._known = ClusterSnapshot(
            1, "c", 0, {0: self._node}, {"t": TopicInfo("t", 0, None, False, parts)}
        )

    @property
    def snapshot(self) -> ClusterSnapshot:
        return self._known

    def want(self, topics: Iterable[str], *, everything: bool = False) -> None: ...

    def add_topic(self, topic: str) -> None: ...

    def request_update(self) -> None: ...

    def learn_leaders(
        self, leaders: Mapping[TopicPartition, tuple[int, int]], nodes: Iterable[Node]
    ) -> frozenset[TopicPartition]:
        return frozenset()

    async def changed(self, seen: ClusterSnapshot) -> ClusterSnapshot:
        if seen.version >= self._known.version:
            await trio.sleep_forever()
        return self._known

    async def refresh(self, topics: Iterable[str] = ()) -> ClusterSnapshot:
        await trio.lowlevel.checkpoint()
        return self._known

    async def topic(self, name: str) -> TopicInfo | None:
        await trio.lowlevel.checkpoint()
        return self._known.topics.get(name)

    async def ask_any(self, message: Callable[[], Any]) -> Any:
        return await self._brokers.request(self._node, message())

    async def bootstrap(self) -> None:
        await self._brokers.connection(self._node)

    async def run(self) -> None:
        await trio.sleep_forever()


class EachTime:
    """A coordinator manager that looks the coordinator up at every use."""

    def __init__(self, context: ClientContext) -> None:
        self._metadata = context.manager("metadata")

    async def find(self, key: str, kind: CoordinatorKind = CoordinatorKind.GROUP) -> Node:
        found = await self._metadata.ask_any(
            lambda: FindCoordinatorRequest(key=key, key_type=int(kind), coordinator_keys=[key])
        )
        found = found.coordinators[0] if found.coordinators else found
        return Node(found.node_id, found.host, found.port)

    def mark_unknown(self, key: str, kind: CoordinatorKind = CoordinatorKind.GROUP) -> None: ...


class OneByOne:
    """An offsets manager that sends one request for each partition."""

    def __init__(self, context: ClientContext) -> None:
        self._brokers = context.brokers
        self._metadata = context.manager("metadata")

    async def look_up(
        self, call: Call, wanted: Mapping[TopicPartition, int], found: Found
    ) -> Found:
        topic = ListOffsetsRequest.ListOffsetsTopic
        part = ListOffsetsRequest.ListOffsetsTopic.ListOffsetsPartition
        for tp, what in wanted.items():
            node = self._metadata.snapshot.leader(tp)
            one = part(partition_index=tp.partition, current_leader_epoch=-1, timestamp=int(what))
            request = ListOffsetsRequest(
                replica_id=-1,
                isolation_level=0,
                topics=[topic(name=tp.topic, partitions=[one])],
                timeout_ms=1000,
            )
            sending = self._brokers.request(node, request)
            response = await call.step("look up an offset", lambda sending=sending: sending)  # type: ignore[misc]
            answer = response.topics[0].partitions[0]
            found[tp] = (
                None if answer.offset < 0 else OffsetAndTimestamp(answer.offset, answer.timestamp)
            )
        return found


class InMemory:
    """A commit manager that commits to a dict."""

    def __init__(
        self, context: ClientContext, stored: dict[TopicPartition, OffsetAndMetadata] | None = None
    ) -> None:
        self.stored = {} if stored is None else stored

    async def commit(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        *,
        timeout: float | None = None,
        name: str = "commit",
        check: Callable[[], None] = lambda: None,
    ) -> None:
        await trio.lowlevel.checkpoint()
        check()
        self.stored.update(offsets)

    async def committed(
        self,
        partitions: Iterable[TopicPartition] | None,
        *,
        timeout: float | None = None,
        name: str = "committed",
    ) -> Committed:
        await trio.lowlevel.checkpoint()
        return {
            tp: self.stored.get(tp) for tp in (self.stored if partitions is None else partitions)
        }

    async def fetch_once(self, call: Call, partitions: list[TopicPartition] | None) -> Committed:
        return await self.committed(partitions)

    def recover(self, error: TrikafkaError) -> None: ...


class FromTheStart:
    """A positions manager that begins at the committed offset, or at 0."""

    def __init__(self, context: ConsumerContext) -> None:
        self._core = context.core
        self._commits = context.manager("commit")

    @property
    def last_error(self) -> TrikafkaError | None:
        return None

    async def run(self) -> None:
        while True:
            for partition in list(self._core.assignment.unlocated):
                ticket = partition.ticket
                at = (await self._commits.committed([partition.tp]))[partition.tp]
                if partition.accepts(ticket):
                    partition.located(0 if at is None else at.offset)
            if not self._core.assignment.unlocated:
                await self._core.signals.locate.wait()


class InTurn:
    """A fetch manager that fetches one partition after the other while there is room."""

    def __init__(self, context: ConsumerContext) -> None:
        self._core = context.core
        self._brokers = context.brokers
        self._metadata = context.manager("metadata")

    async def run(self) -> None:
        core = self._core
        while True:
            share = core.buffer.share(len(core.assignment))
            for partition in list(core.assignment.fetchable):
                if core.buffered_of(partition.tp) < share:
                    tp, ticket = partition.tp, partition.ticket
                    records = await self._fetch(tp, partition.fetch_offset)
                    if records:
                        core.fetched(tp, ticket, memoryview(records), None)
            with trio.move_on_after(0.1):
                await core.signals.fetch.wait()

    async def _fetch(self, tp: TopicPartition, offset: int) -> bytes:
        topic, part = FetchRequest.FetchTopic, FetchRequest.FetchTopic.FetchPartition
        one = part(
            partition=tp.partition,
            current_leader_epoch=-1,
            fetch_offset=offset,
            log_start_offset=-1,
            partition_max_bytes=1 << 20,
        )
        request = FetchRequest(
            replica_id=-1,
            max_wait_ms=50,
            min_bytes=1,
            max_bytes=1 << 20,
            isolation_level=0,
            session_id=0,
            session_epoch=-1,
            topics=[topic(topic=tp.topic, partitions=[one])],
            forgotten_topics_data=[],
            rack_id="",
            max_version=11,
        )
        try:
            response = await self._brokers.request(
                self._metadata.snapshot.leader(tp), request, purpose="fetch"
            )
        except KafkaConnectionError:
            return b""
        return response.responses[0].partitions[0].records or b""


class NoHeart:
    """A heartbeat manager that sends nothing: the session must outlive the test."""

    def __init__(self, context: ConsumerContext) -> None: ...

    async def run(
        self, rejoin: Callable[[str], None], fenced: Callable[[TrikafkaError], None]
    ) -> None:
        await trio.sleep_forever()


class Alone:
    """A membership for the only member of a group.

    It joins, takes all partitions of its topics, and joins again when the subscription changes.
    """

    def __init__(self, context: ConsumerContext) -> None:
        self._context = context
        self._core = context.core
        self._news = trio.Event()

    @property
    def fatal(self) -> TrikafkaError | None:
        return None

    def subscription_changed(self) -> None:
        self._news.set()

    async def run(self) -> None:
        while True:
            self._news = trio.Event()
            if self._core.subscription.grouped:
                await self._join()
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._context.manager("heartbeat").run, print, print)
                    await self._take()
                    await self._news.wait()
                    nursery.cancel_scope.cancel()
            else:
                await self._news.wait()

    async def _join(self) -> None:
        protocol = JoinGroupRequest.JoinGroupRequestProtocol(name="alone", metadata=b"")
        while True:
            member_id = self._core.member.identity.member_id
            request = JoinGroupRequest(
                group_id="g",
                session_timeout_ms=30_000,
                rebalance_timeout_ms=30_000,
                member_id=member_id,
                group_instance_id=None,
                protocol_type="consumer",
                protocols=[protocol],
            )
            joined = await self._ask(request)
            self._core.member.know_as(joined.member_id, joined.generation_id)
            if not joined.error_code:
                break
        mine = SyncGroupRequest.SyncGroupRequestAssignment(
            member_id=joined.member_id, assignment=b""
        )
        request = SyncGroupRequest(
            group_id="g",
            generation_id=joined.generation_id,
            member_id=joined.member_id,
            group_instance_id=None,
            protocol_type="consumer",
            protocol_name="alone",
            assignments=[mine],
        )
        assert not (await self._ask(request)).error_code

    async def _take(self) -> None:
        snapshot = self._context.manager("metadata").snapshot
        wanted = {
            tp for topic in self._core.subscription.topics for tp in snapshot.partitions_of(topic)
        }
        await self._context.reconciler.revoke(self._context.reconciler.to_revoke(wanted))
        await self._context.reconciler.assign(sorted(wanted))

    async def _ask(self, request: Any) -> Any:
        node = await self._context.manager("coordinator").find("g")
        return await self._context.brokers.request(node, request, purpose="group")

    def rejoin(self, why: str) -> None:
        self._news.set()

    async def leave(self, *, closing: bool = False) -> None:
        identity = self._core.member.identity
        self._core.member.forget()
        if identity.joined:
            me = LeaveGroupRequest.MemberIdentity(
                member_id=identity.member_id, group_instance_id=None
            )
            await self._ask(
                LeaveGroupRequest(group_id="g", member_id=identity.member_id, members=[me])
            )

    def reset(self) -> None:
        self._core.member.forget()


class OwnBatch:
    """Records for one partition, sent in one request. Also a ``RowsBatch``."""

    def __init__(self, place: TopicPartition) -> None:
        self.place = place
        self.records: list[tuple[bytes | None, bytes | None, int, Any]] = []
        self.size = 0
        self.began = trio.current_time()
        self.sent = False
        self.maybe_written = False
        self.error: Exception | None = None
        self.base_offset: int | None = None
        self._over = trio.Event()

    @property
    def settled(self) -> bool:
        return self._over.is_set()

    def settle(self, base_offset: int | None, error: Exception | None) -> None:
        self.base_offset = base_offset
        self.error = error
        self._over.set()

    async def wait(self) -> None:
        await self._over.wait()

    def encoded(self, identity: tuple[int, int] | None, sequence: int) -> bytes:
        producer, epoch = identity or (-1, -1)
        builder = DefaultRecordBatchBuilder(
            magic=2,
            compression_type=0,
            is_transactional=int(identity is not None),
            producer_id=producer,
            producer_epoch=epoch,
            base_sequence=sequence,
            batch_size=1 << 24,
        )
        for offset, (key, value, timestamp, headers) in enumerate(self.records):
            builder.append(offset, timestamp=timestamp, key=key, value=value, headers=headers)
        return bytes(builder.build())


class OwnAck:
    """The promise for one record of a batch: exactly what ``RecordAck`` names."""

    def __init__(self, batch: OwnBatch) -> None:
        self._in = batch
        self._at = len(batch.records) - 1

    @property
    def done(self) -> bool:
        return self._in.settled

    async def wait(self) -> RecordMetadata:
        await self._in.wait()
        if self._in.error is not None:
            raise self._in.error
        offset = None if self._in.base_offset is None else self._in.base_offset + self._at
        return RecordMetadata(
            self._in.place.topic, self._in.place.partition, offset, self._in.records[self._at][2]
        )


class Counters:
    accepted = delivered = failed = batches_retried = batches_split = batches_expired = 0


class OwnAccumulator:
    """The batches without an outcome, oldest first."""

    def __init__(self, config: ProducerConfig) -> None:
        self._largest = config.max_request_size
        self._counters = Counters()
        self.batches: list[OwnBatch] = []
        self.error: Exception | None = None

    @property
    def used(self) -> int:
        return sum(batch.size for batch in self.batches)

    @property
    def largest(self) -> int:
        return self._largest

    @property
    def counters(self) -> Counters:
        return self._counters

    def unsettled(self) -> list[OwnBatch]:
        return self.batches

    @property
    def last_error(self) -> Exception | None:
        return self.error

    def oldest(self) -> UnsentRecord | None:
        if not self.batches:
            return None
        batch = self.batches[0]
        return UnsentRecord(batch.place, trio.current_time() - batch.began, "waiting", self.error)

    def by_state(self) -> dict[str, int]:
        return {"waiting": len(self.batches)}

    def too_large(self, topic: str, size: int, what: str = "a record") -> Exception:
        return RecordTooLargeError(
            f"{what} for {topic!r} has {size} bytes, the most is {self._largest}"
        )


class OwnRows:
    """Rows of a table for one partition."""

    def __init__(self, partition: int, records: list[Record]) -> None:
        self.partition: int | None = partition
        self.records = records
        self.start = 0
        self.stop = len(records)


class OwnTaken:
    """Rows of a table that are in a batch."""

    def __init__(self, batch: OwnBatch, first: int, after: int) -> None:
        self.batch = batch
        self.first = first
        self.next = after


class OneAfterAnother:
    """A produce manager that sends one batch after the other.

    In a transaction it numbers them itself. Records without a partition go to 0.
    """

    def __init__(self, context: ProducerContext) -> None:
        self._config = context.config
        self._brokers = context.brokers
        self._metadata = context.manager("metadata")
        self._transaction = context.transaction
        self._records = OwnAccumulator(context.config)
        self._topics: set[str] = set()
        self._changed = trio.Event()
        self._turn = trio.Lock()
        self._identity: tuple[int, int] | None = None
        self._sequences: dict[TopicPartition, int] = {}
        self._closed = False
        self._waiting = 0
        self._in_flight = 0

    @property
    def accumulator(self) -> OwnAccumulator:
        return self._records

    # Records in.

    @property
    def append(self) -> Callable[..., Any]:
        return self._append

    def _append(
        self,
        topic: str,
        value: Any,
        key: Any,
        headers: Any,
        timestamp: int | None,
        partition: int | None,
    ) -> OwnAck | None:
        if self._waiting:
            return None
        return self.append_admitted(topic, value, key, headers, timestamp, partition)

    def append_admitted(
        self,
        topic: str,
        value: Any,
        key: Any,
        headers: Any,
        timestamp: int | None,
        partition: int | None,
    ) -> OwnAck | None:
        if not self.knows(topic, partition):
            return None
        batch = self._put(TopicPartition(topic, partition or 0), value, key, headers, timestamp)
        return None if batch is None else OwnAck(batch)

    def _put(
        self, tp: TopicPartition, value: Any, key: Any, headers: Any, timestamp: int | None
    ) -> OwnBatch | None:
        if self._closed:
            raise trio.ClosedResourceError("closed")
        size = 100 + len(value or b"") + len(key or b"")
        if size > self._records.largest:
            raise self._records.too_large(tp.topic, size)
        if self._records.used + size > self._config.buffer_memory:
            return None
        batch = next(
            (
                one
                for one in self._records.batches
                if one.place == tp and not one.sent and one.size < 16_384
            ),
            None,
        )
        if batch is None:
            batch = OwnBatch(tp)
            self._records.batches.append(batch)
        now = int(time.time() * 1000) if timestamp is None else timestamp
        batch.records.append((key, value, now, list(headers)))
        batch.size += size
        self._records.counters.accepted += 1
        self._notify()
        return batch

    def split_rows(self, topic: str, columns: Any, explicit: Any, keyed: bool) -> list[OwnRows]:
        rows: dict[int, list[Record]] = {}
        for number, record in enumerate(RecordBatch(topic, 0, columns, 0)):
            place = (
                0
                if explicit is None
                else explicit
                if isinstance(explicit, int)
                else explicit[number]
            )
            rows.setdefault(max(0, place), []).append(record)
        return [OwnRows(partition, records) for partition, records in rows.items()]

    def extend(
        self, topic: str, columns: Any, group: OwnRows, start: int, admitted: bool = False
    ) -> OwnTaken | None:
        if self._waiting and not admitted:
            return None
        row = group.records[start]
        batch = self._put(
            TopicPartition(topic, group.partition or 0),
            row.value,
            row.key,
            row.headers,
            row.timestamp,
        )
        return None if batch is None else OwnTaken(batch, len(batch.records) - 1, start + 1)

    def flush_batches(self, batches: Iterable[Any]) -> None: ...

    @property
    def requests_in_flight(self) -> int:
        return self._in_flight

    @property
    def latency(self) -> Mapping[int, BrokerLatency]:
        return {}

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def waiting(self) -> int:
        return self._waiting

    # Records out.

    async def run(self) -> None:
        while True:
            changed = self._changed
            batch = next((one for one in self._records.batches if self._may_go(one)), None)
            if batch is None:
                await changed.wait()
            else:
                await self._send(batch)

    def _may_go(self, batch: OwnBatch) -> bool:
        return self._transaction is None or self._transaction.admits(batch.place)

    async def _send(self, batch: OwnBatch) -> None:
        batch.sent = True
        self._in_flight = 1
        try:
            offset = await self._request(batch)
        except TrikafkaError as error:
            self._records.error = error
            if error.retriable:
                self._metadata.request_update()
                await trio.sleep(0.1)
            else:
                self._settle(batch, None, error)
        else:
            self._records.error = None
            self._settle(batch, offset, None)
        finally:
            self._in_flight = 0
            self._notify()

    async def _request(self, batch: OwnBatch) -> int:
        topic = ProduceRequest.TopicProduceData
        part = ProduceRequest.TopicProduceData.PartitionProduceData
        tp, sequence = batch.place, self._sequences.get(batch.place, 0)
        one = part(
            index=tp.partition,
            records=batch.encoded(self._identity, -1 if self._identity is None else sequence),
        )
        request = ProduceRequest(
            transactional_id=self._config.transactional_id,
            acks=-1,
            timeout_ms=30_000,
            topic_data=[topic(name=tp.topic, partition_data=[one])],
            max_version=11,
        )
        response = await self._brokers.request(
            self._metadata.snapshot.leader(tp), request, purpose="produce"
        )
        answer = response.responses[0].partition_responses[0]
        if answer.error_code:
            raise from_code(answer.error_code, str(tp), operation="Write")
        self._sequences[tp] = sequence + len(batch.records)
        return int(answer.base_offset)

    def _settle(self, batch: OwnBatch, offset: int | None, error: Exception | None) -> None:
        if batch.settled:
            return
        self._records.batches.remove(batch)
        batch.settle(offset, error)
        counters, count = self._records.counters, len(batch.records)
        if error is None:
            counters.delivered += count
        else:
            counters.failed += count
            if self._transaction is not None:
                self._transaction.failed(error)
        self._notify()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    async def learn(self, topic: str, partition: int | None) -> None:
        info = await self._metadata.topic(topic)
        if info is None or (partition is not None and partition not in info.partitions):
            raise from_code(3, topic)
        self._topics.add(topic)
        self._metadata.add_topic(topic)

    def knows(self, topic: str, partition: int | None) -> bool:
        tps = self._metadata.snapshot.partitions_of(topic) if topic in self._topics else []
        return bool(tps) if partition is None else TopicPartition(topic, partition) in tps

    def look_up(self, topic: str, partition: int | None) -> None:
        self._topics.add(topic)
        self._metadata.add_topic(topic)
        self._metadata.request_update()

    async def wait_for_room(
        self, take: Callable[[], T | None], topic: str, partition: int | None
    ) -> T:
        self._waiting += 1
        try:
            async with self._turn:
                while (taken := take()) is None:
                    await self._changed.wait()
                return taken
        finally:
            self._waiting -= 1

    async def drain(self) -> None:
        for batch in list(self._records.batches):
            await batch.wait()

    def close(self) -> None:
        self._closed = True
        self._notify()

    # Transactions.

    def identify(self, identity: tuple[int, int]) -> None:
        self._identity = identity
        self._sequences.clear()

    def partitions_added(self) -> None:
        self._notify()

    def delayed(self, error: Exception) -> None:
        self._records.error = error

    def drop(
        self, error: Exception, at_most: float = float("inf"), *, unsent: bool = False
    ) -> bool:
        lost = [batch for batch in self._records.batches if not (unsent and batch.sent)]
        for number, batch in enumerate(lost):
            if number >= at_most:
                return True
            batch.maybe_written = batch.sent
            self._settle(batch, None, error)
        return False

    async def wait_none_in_flight(self) -> None:
        while self._in_flight:
            await self._changed.wait()


class FirstVersion:
    """A transactions manager for version 1 of the protocol.

    It sends one request after the other, and repeats each until it succeeds.
    """

    def __init__(self, context: ProducerContext) -> None:
        assert context.transaction is not None
        assert context.config.transactional_id is not None
        self._id = context.config.transactional_id
        self._brokers = context.brokers
        self._find = context.manager("coordinator").find
        self._produce = context.manager("produce")
        self._state = context.transaction
        self._signals = context.transaction_signals

    async def initialize(self) -> None:
        self._state.initializing()
        await self._renew(-1, -1)

    async def _renew(self, producer: int, epoch: int) -> None:
        request = InitProducerIdRequest(
            transactional_id=self._id,
            transaction_timeout_ms=60_000,
            producer_id=producer,
            producer_epoch=epoch,
            max_version=5,
        )
        response = await self._ask(self._id, request, CoordinatorKind.TRANSACTION)
        identity = response.producer_id, response.producer_epoch
        self._state.initialized(identity)
        self._produce.identify(identity)

    async def _ask(self, key: str, request: Any, kind: CoordinatorKind) -> Any:
        while True:
            response = await self._brokers.request(
                await self._find(key, kind), request, purpose="coordinator"
            )
            code = getattr(response, "error_code", 0)
            if not code:
                return response
            error = from_code(code, key, operation="Write")
            if not error.retriable:
                self._state.ruined(error)
                raise error
            await trio.sleep(0.1)

    async def run(self) -> None:
        while True:
            if missing := self._state.missing:
                await self._add(missing)
            else:
                await self._signals.wanted.wait()

    async def _add(self, missing: list[TopicPartition]) -> None:
        number, (producer, epoch) = self._state.number, self._state.given
        topics = [
            AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(
                name=tp.topic, partitions=[tp.partition]
            )
            for tp in missing
        ]
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self._id,
            v3_and_below_producer_id=producer,
            v3_and_below_producer_epoch=epoch,
            v3_and_below_topics=topics,
            max_version=3,
        )
        self._state.adding()
        response = await self._ask(self._id, request, CoordinatorKind.TRANSACTION)
        added = response.results_by_topic_v3_and_below
        if any(part.partition_error_code for topic in added for part in topic.results_by_partition):
            await trio.sleep(0.1)
        elif number == self._state.number:
            self._state.added(missing)
            self._produce.partitions_added()

    async def begin(self, *, timeout: float | None = None) -> int:
        await trio.lowlevel.checkpoint()
        self._state.check("begin")
        return self._state.begun(1)

    async def send_offsets(
        self,
        number: int,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        group: Callable[[], GroupMetadata],
        *,
        timeout: float | None = None,
    ) -> None:
        self._state.check("send_offsets")
        member, (producer, epoch) = group(), self._state.given
        self._state.adding()
        if not self._state.knows_group(member.group_id):
            add = AddOffsetsToTxnRequest(
                transactional_id=self._id,
                producer_id=producer,
                producer_epoch=epoch,
                group_id=member.group_id,
            )
            await self._ask(self._id, add, CoordinatorKind.TRANSACTION)
            self._state.group_added(member.group_id)
        topic = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
        part = topic.TxnOffsetCommitRequestPartition
        topics = [
            topic(
                name=tp.topic,
                partitions=[
                    part(
                        partition_index=tp.partition,
                        committed_offset=at.offset,
                        committed_leader_epoch=-1,
                        committed_metadata=at.metadata,
                    )
                ],
            )
            for tp, at in offsets.items()
        ]
        commit = TxnOffsetCommitRequest(
            transactional_id=self._id,
            group_id=member.group_id,
            producer_id=producer,
            producer_epoch=epoch,
            generation_id=member.generation,
            member_id=member.member_id,
            group_instance_id=member.group_instance_id,
            topics=topics,
            max_version=4,
        )
        response = await self._ask(member.group_id, commit, CoordinatorKind.GROUP)
        for one in response.topics:
            if code := one.partitions[0].error_code:
                error = from_code(code, member.group_id)
                self._state.failed(error)
                raise error

    async def prepare(self, number: int, *, timeout: float | None = None) -> PreparedTransaction:
        self._state.check("prepare")
        self._state.closing()
        try:
            await self._produce.drain()
            self._state.check("commit")
            self._state.prepared()
        finally:
            self._state.reopened(number)
        return PreparedTransaction(*self._state.given)

    async def commit(self, number: int, *, timeout: float | None = None) -> None:
        self._state.check("commit")
        self._state.closing()
        try:
            await self._produce.drain()
            self._state.check("commit")
            self._state.committing()
        finally:
            self._state.reopened(number)
        await self._end(commit=True)

    async def abort(self, number: int, *, timeout: float | None = None) -> None:
        self._state.check("abort")
        self._state.aborting()
        self._produce.drop(TransactionAbortableError("aborted"))
        await self._produce.wait_none_in_flight()
        await self._end(commit=False)

    async def _end(self, *, commit: bool) -> None:
        producer, epoch = self._state.given
        if self._state.started:
            end = EndTxnRequest(
                transactional_id=self._id,
                producer_id=producer,
                producer_epoch=epoch,
                committed=commit,
                max_version=4,
            )
            await self._ask(self._id, end, CoordinatorKind.TRANSACTION)
        self._state.ended(renew=not commit)
        if not commit:
            await self._renew(producer, epoch)

    async def finish(self) -> None:
        if self._state.state.value in ("in transaction", "abortable error"):
            await self.abort(self._state.number)


class OneBeat:
    """A membership that joins once, and learns its partitions from one response."""

    def __init__(self, context: ShareConsumerContext) -> None:
        self._brokers = context.brokers
        self._coordinators = context.manager("coordinator")
        self._group = context.config.group_id
        self._core = context.core

    @property
    def member_id(self) -> str:
        return "one-beat"

    @property
    def fatal(self) -> TrikafkaError | None:
        return None

    async def _beat(self, epoch: int, topics: list[str] | None) -> Any:
        node = await self._coordinators.find(self._group)
        request = CLASSES["ShareGroupHeartbeatRequest"](
            group_id=self._group,
            member_id=self.member_id,
            member_epoch=epoch,
            subscribed_topic_names=topics,
        )
        response = await self._brokers.request(node, request, purpose="coordinator")
        if response.error_code:
            raise from_code(response.error_code, "heartbeat")
        return response

    async def run(self) -> None:
        response = await self._beat(0, sorted(self._core.assignment.topics))
        self._core.assignment.assign(
            (topic.topic_id, number)
            for topic in response.assignment.topic_partitions
            for number in topic.partitions
        )
        await trio.sleep_forever()

    async def leave(self) -> None:
        await self._beat(-1, None)


class NothingAcquired:
    """Acquires no records, and so has nothing to acknowledge."""

    def __init__(self, context: ShareConsumerContext) -> None:
        self._wake = context.core.wake

    @property
    def last_error(self) -> TrikafkaError | None:
        return None

    async def run(self) -> None:
        while True:
            await self._wake.wait()

    async def settled(self, acquired: Any, start: int, stop: int) -> None: ...

    async def flush(self) -> None: ...

    async def close(self) -> None: ...


class OwnId:
    """Gives the client an id of its own, and pushes nothing but the number of metrics."""

    def __init__(self, context: ClientContext) -> None:
        self._metrics = context.metrics
        self._id = uuid.uuid4()
        self._pushes = 0

    async def run(self) -> None:
        self._metrics.select([""])
        await trio.sleep_forever()

    async def client_instance_id(self, timeout: float | None) -> uuid.UUID:
        await trio.lowlevel.checkpoint()
        return self._id

    async def push_last(self) -> None:
        self._metrics.collect(True)
        self._metrics.confirm()
        self._pushes += 1

    def statistics(self) -> MetricsPush | None:
        metrics, pushes = ("*",), self._pushes
        return MetricsPush("push needed", self._id, None, metrics, 1.0, 1.0, None, pushes, None)


#: How the fake for each seat is made.
FAKES: dict[ManagerKind, Callable[[Any], object]] = {
    "metadata": StaticMetadata,
    "coordinator": EachTime,
    "offsets": OneByOne,
    "commit": InMemory,
    "positions": FromTheStart,
    "fetch": InTurn,
    "heartbeat": NoHeart,
    "membership": Alone,
    "produce": OneAfterAnother,
    "transactions": FirstVersion,
    "share_membership": OneBeat,
    "share_fetch": NothingAcquired,
    "telemetry": OwnId,
}


if TYPE_CHECKING:

    def _meet(
        client: ClientContext,
        consumer: ConsumerContext,
        producer: ProducerContext,
        share: ShareConsumerContext,
    ) -> tuple[
        interfaces.MetadataManager,
        interfaces.CoordinatorManager,
        interfaces.OffsetsManager,
        interfaces.CommitManager,
        interfaces.PositionsManager,
        interfaces.FetchManager,
        interfaces.HeartbeatManager,
        interfaces.MembershipManager,
        ProduceManager,
        TransactionManager,
        interfaces.ShareMembershipManager,
        interfaces.ShareFetchManager,
        interfaces.TelemetryManager,
        interfaces.RowsBatch,
        interfaces.TableRows,
        interfaces.TakenRows,
    ]:
        batch, rows = OwnBatch(TopicPartition("t", 0)), OwnRows(0, [])
        return (
            StaticMetadata(client),
            EachTime(client),
            OneByOne(client),
            InMemory(client),
            FromTheStart(consumer),
            InTurn(consumer),
            NoHeart(consumer),
            Alone(consumer),
            OneAfterAnother(producer),
            FirstVersion(producer),
            OneBeat(share),
            NothingAcquired(share),
            OwnId(client),
            batch,
            rows,
            OwnTaken(batch, 0, 1),
        )


class Takes:
    """A plugin that fills the given seats."""

    def __init__(self, **seats: Callable[[Any], object]) -> None:
        self._seats = seats
        self.made: set[str] = set()

    @hookimpl
    def trikafka_request_manager(self, kind: str, context: Any) -> object | None:
        if kind not in self._seats:
            return None
        self.made.add(kind)
        return self._seats[kind](context)
