"""A manager for each seat that has exactly what its Protocol names, and does a small real job over the scripted cluster.

Written as a third party would: from ``trikafka.interfaces`` and kafka-python's requests alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import trio
from kafka.protocol.consumer import FetchRequest
from kafka.protocol.consumer.group import JoinGroupRequest, LeaveGroupRequest, SyncGroupRequest
from kafka.protocol.consumer.offsets import ListOffsetsRequest
from kafka.protocol.metadata import FindCoordinatorRequest

from trikafka import (
    GroupMetadata,
    Node,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    PartitionInfo,
    PreparedTransaction,
    TopicPartition,
    TrikafkaError,
    hookimpl,
)
from trikafka.errors import KafkaConnectionError
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
    RecordAccumulator,
    RecordAck,
    TakenRows,
    TopicInfo,
    TransactionManager,
)


class StaticMetadata:
    """One broker, which leads the two partitions of the one topic."""

    def __init__(self, context: ClientContext) -> None:
        self._brokers = context.brokers
        host, port = str(context.config.bootstrap_servers).split(",")[0].rsplit(":", 1)
        self._node = Node(0, host, int(port))
        parts = {number: PartitionInfo("t", number, 0, 0, (0,), (0,)) for number in range(2)}
        self._known = ClusterSnapshot(1, "c", 0, {0: self._node}, {"t": TopicInfo("t", 0, None, False, parts)})

    @property
    def snapshot(self) -> ClusterSnapshot:
        return self._known

    def want(self, topics: Iterable[str], *, everything: bool = False) -> None: ...

    def add_topic(self, topic: str) -> None: ...

    def request_update(self) -> None: ...

    def learn_leaders(self, leaders: Mapping[TopicPartition, tuple[int, int]], nodes: Iterable[Node]) -> frozenset[TopicPartition]:
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
    """Looks the coordinator up at every use."""

    def __init__(self, context: ClientContext) -> None:
        self._metadata = context.manager("metadata")

    async def find(self, key: str, kind: CoordinatorKind = CoordinatorKind.GROUP) -> Node:
        found = await self._metadata.ask_any(lambda: FindCoordinatorRequest(key=key, key_type=int(kind), coordinator_keys=[key]))
        found = found.coordinators[0] if found.coordinators else found
        return Node(found.node_id, found.host, found.port)

    def mark_unknown(self, key: str, kind: CoordinatorKind = CoordinatorKind.GROUP) -> None: ...


class OneByOne:
    """Looks up offsets with a request for each partition."""

    def __init__(self, context: ClientContext) -> None:
        self._brokers, self._metadata = context.brokers, context.manager("metadata")

    async def look_up(self, call: Call, wanted: Mapping[TopicPartition, int], found: Found) -> Found:
        topic, part = ListOffsetsRequest.ListOffsetsTopic, ListOffsetsRequest.ListOffsetsTopic.ListOffsetsPartition
        for tp, what in wanted.items():
            node = self._metadata.snapshot.leader(tp)
            one = part(partition_index=tp.partition, current_leader_epoch=-1, timestamp=int(what))
            request = ListOffsetsRequest(
                replica_id=-1, isolation_level=0, topics=[topic(name=tp.topic, partitions=[one])], timeout_ms=1000
            )
            sending = self._brokers.request(node, request)
            response = await call.step("look up an offset", lambda sending=sending: sending)  # type: ignore[misc]
            answer = response.topics[0].partitions[0]
            found[tp] = None if answer.offset < 0 else OffsetAndTimestamp(answer.offset, answer.timestamp)
        return found


class InMemory:
    """Commits to a dict."""

    def __init__(self, context: ClientContext, stored: dict[TopicPartition, OffsetAndMetadata] | None = None) -> None:
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
        self, partitions: Iterable[TopicPartition] | None, *, timeout: float | None = None, name: str = "committed"
    ) -> Committed:
        await trio.lowlevel.checkpoint()
        return {tp: self.stored.get(tp) for tp in (self.stored if partitions is None else partitions)}

    async def fetch_once(self, call: Call, partitions: list[TopicPartition] | None) -> Committed:
        return await self.committed(partitions)

    def recover(self, error: TrikafkaError) -> None: ...


class FromTheStart:
    """Begins everywhere at what is committed, or at 0."""

    def __init__(self, context: ConsumerContext) -> None:
        self._core, self._commits = context.core, context.manager("commit")

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
    """Fetches one partition after the other, a request each, while there is room for it."""

    def __init__(self, context: ConsumerContext) -> None:
        self._core, self._brokers, self._metadata = context.core, context.brokers, context.manager("metadata")

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
            partition=tp.partition, current_leader_epoch=-1, fetch_offset=offset, log_start_offset=-1, partition_max_bytes=1 << 20
        )
        request = FetchRequest(
            replica_id=-1, max_wait_ms=50, min_bytes=1, max_bytes=1 << 20, isolation_level=0, session_id=0, session_epoch=-1,
            topics=[topic(topic=tp.topic, partitions=[one])], forgotten_topics_data=[], rack_id="", max_version=11,
        )  # fmt: skip
        try:
            response = await self._brokers.request(self._metadata.snapshot.leader(tp), request, purpose="fetch")
        except KafkaConnectionError:
            return b""
        return response.responses[0].partitions[0].records or b""


class NoHeart:
    """Sends nothing: the session has to outlive the test."""

    def __init__(self, context: ConsumerContext) -> None: ...

    async def run(self, rejoin: Callable[[str], None], fenced: Callable[[TrikafkaError], None]) -> None:
        await trio.sleep_forever()


class Alone:
    """The only member of its group: it joins, takes all partitions of its topics, and joins anew for another subscription."""

    def __init__(self, context: ConsumerContext) -> None:
        self._context, self._core = context, context.core
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
                group_id="g", session_timeout_ms=30_000, rebalance_timeout_ms=30_000, member_id=member_id,
                group_instance_id=None, protocol_type="consumer", protocols=[protocol],
            )  # fmt: skip
            joined = await self._ask(request)
            self._core.member.know_as(joined.member_id, joined.generation_id)
            if not joined.error_code:
                break
        mine = SyncGroupRequest.SyncGroupRequestAssignment(member_id=joined.member_id, assignment=b"")
        request = SyncGroupRequest(
            group_id="g", generation_id=joined.generation_id, member_id=joined.member_id, group_instance_id=None,
            protocol_type="consumer", protocol_name="alone", assignments=[mine],
        )  # fmt: skip
        assert not (await self._ask(request)).error_code

    async def _take(self) -> None:
        snapshot = self._context.manager("metadata").snapshot
        wanted = {tp for topic in self._core.subscription.topics for tp in snapshot.partitions_of(topic)}
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
            me = LeaveGroupRequest.MemberIdentity(member_id=identity.member_id, group_instance_id=None)
            await self._ask(LeaveGroupRequest(group_id="g", member_id=identity.member_id, members=[me]))

    def reset(self) -> None:
        self._core.member.forget()


class Passed:
    """Hands everything to trikafka's own manager."""

    def __init__(self, inner: ProduceManager) -> None:
        self._inner = inner

    @property
    def accumulator(self) -> RecordAccumulator:
        return self._inner.accumulator

    @property
    def append(self) -> Callable[..., Any]:
        return self._inner.append

    def append_admitted(
        self, topic: str, value: Any, key: Any, headers: Any, timestamp: int | None, partition: int | None
    ) -> RecordAck | None:
        return self._inner.append_admitted(topic, value, key, headers, timestamp, partition)

    def split_rows(self, topic: str, columns: Any, explicit: Any, keyed: bool) -> Iterable[Any]:
        return self._inner.split_rows(topic, columns, explicit, keyed)

    def extend(self, topic: str, columns: Any, group: Any, start: int, admitted: bool = False) -> TakenRows | None:
        return self._inner.extend(topic, columns, group, start, admitted)

    def hurry(self, batches: Iterable[Any]) -> None:
        self._inner.hurry(batches)

    @property
    def requests_in_flight(self) -> int:
        return self._inner.requests_in_flight

    @property
    def latency(self) -> Any:
        return self._inner.latency

    @property
    def closed(self) -> bool:
        return self._inner.closed

    @property
    def waiting(self) -> int:
        return self._inner.waiting

    async def run(self) -> None:
        await self._inner.run()

    async def learn(self, topic: str, partition: int | None) -> None:
        await self._inner.learn(topic, partition)

    def knows(self, topic: str, partition: int | None) -> bool:
        return self._inner.knows(topic, partition)

    def look_up(self, topic: str, partition: int | None) -> None:
        self._inner.look_up(topic, partition)

    async def wait_for_room(self, take: Callable[[], Any], topic: str, partition: int | None) -> Any:
        return await self._inner.wait_for_room(take, topic, partition)

    async def drain(self) -> None:
        await self._inner.drain()

    def close(self) -> None:
        self._inner.close()

    def drop(self, error: Exception, at_most: float = float("inf"), *, unsent: bool = False) -> bool:
        return self._inner.drop(error, at_most, unsent=unsent)

    def identify(self, identity: tuple[int, int]) -> None:
        self._inner.identify(identity)

    def admitted(self) -> None:
        self._inner.admitted()

    def delayed(self, error: Exception) -> None:
        self._inner.delayed(error)

    async def landed(self) -> None:
        await self._inner.landed()


def passed(context: ProducerContext) -> Passed:
    return Passed(context.builtin("produce"))


class Counted:
    """Counts the transactions that were committed; trikafka's own manager does the work."""

    def __init__(self, inner: TransactionManager) -> None:
        self._inner = inner
        self._count = 0

    async def initialize(self) -> None:
        await self._inner.initialize()

    async def run(self) -> None:
        await self._inner.run()

    async def begin(self, *, timeout: float | None = None) -> int:
        return await self._inner.begin(timeout=timeout)

    async def send_offsets(
        self,
        number: int,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        group: Callable[[], GroupMetadata],
        *,
        timeout: float | None = None,
    ) -> None:
        await self._inner.send_offsets(number, offsets, group, timeout=timeout)

    async def prepare(self, number: int, *, timeout: float | None = None) -> PreparedTransaction:
        return await self._inner.prepare(number, timeout=timeout)

    async def commit(self, number: int, *, timeout: float | None = None) -> None:
        await self._inner.commit(number, timeout=timeout)
        self._count += 1

    async def abort(self, number: int, *, timeout: float | None = None) -> None:
        await self._inner.abort(number, timeout=timeout)

    async def finish(self) -> None:
        await self._inner.finish()


def counted(context: ProducerContext) -> Counted:
    return Counted(context.builtin("transactions"))


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
    "produce": passed,
    "transactions": counted,
}


class Takes:
    """A plugin that fills these seats."""

    def __init__(self, **seats: Callable[[Any], object]) -> None:
        self._seats = seats

    @hookimpl
    def trikafka_request_manager(self, kind: str, context: Any) -> object | None:
        return self._seats[kind](context) if kind in self._seats else None
