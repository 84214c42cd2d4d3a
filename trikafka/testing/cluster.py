"""The scripted cluster: what a test holds.

Owns the nodes' life (up, frozen, down), the connections and the script. What is in the logs and groups is in ``state`` and
``group``; how an API is answered stands in ``topics``, ``records`` and ``groups``.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from types import TracebackType

import trio
import trio.testing

from trikafka.types import OffsetAndMetadata, Record

from .batches import Appendable, decode_batch, encode_batch
from .client_stream import ClientStream
from .connection import Connection
from .faults import Change, flip
from .group import Group, Groups
from .markers import write_marker
from .messages import Api, Versions, api_key, api_name
from .modern import ModernTimes
from .script import (
    Damage,
    Delay,
    Drop,
    Fail,
    Garbage,
    Handle,
    Handler,
    LeaveOut,
    Predicate,
    Rule,
    Script,
    Seen,
    Silence,
    Verdict,
)
from .state import NodeState, Partition, State
from .transactions import Transactions

_GULP = 8
_EPOCH_MS = 1_700_000_000_000


class ScriptedCluster:
    """A small Kafka cluster in memory that does what Kafka does, until the script says otherwise.

    Use it as an async context manager, and give :attr:`bootstrap_servers` and :meth:`dial` to the client::

        async with ScriptedCluster(nodes=2, topics={"t": 3}) as cluster:
            cluster.fail("Fetch", 6)
            async with trikafka.open_consumer("t", bootstrap_servers=cluster.bootstrap_servers, dial=cluster.dial) as consumer:
                ...

    Nothing here does real I/O or looks at a real clock: with ``trio.testing.MockClock(autojump_threshold=0)`` a test with
    minutes of waiting takes milliseconds, and its times are exact. An exception in a handler of the test ends the ``async with``
    block with it. A request that no Kafka could read closes the connection and, if ``strict``, fails the block at its end.

    What Kafka 4 offers is offered, groups of the new kind (KIP-848) among it: :meth:`offer` takes it away. A group that has members
    of one kind takes none of the other. With ``racks`` (one a node) consumers are sent to the follower in their rack (KIP-392);
    without, only leaders answer a fetch. ``transaction_version`` is the finalized level of the feature of that name: 2 for KIP-890,
    where each end of a transaction raises the epoch, or 1. A node has room for so many ``fetch_sessions`` (KIP-227). All times are
    in seconds.
    """

    def __init__(
        self,
        *,
        nodes: int = 1,
        racks: Sequence[str | None] = (),
        topics: Mapping[str, int] | None = None,
        api_versions: Mapping[Api, Versions | None] | None = None,
        coordinator: int = 0,
        auto_create_topics: bool = False,
        initial_rebalance_delay: float = 0,
        session_timeouts: tuple[float, float] = (6, 1800),
        consumer_session_timeout: float = 45,
        consumer_heartbeat_interval: float = 5,
        consumer_assignment_interval: float = 1,
        fetch_sessions: int = 1000,
        transaction_version: int = 2,
        cluster_id: str = "scripted-cluster",
        strict: bool = True,
    ) -> None:
        if nodes < 1:
            raise ValueError("a cluster needs at least one node")
        self._state = State(nodes, self.now_ms, cluster_id, racks, fetch_sessions)
        self._state.coordinator = coordinator
        self._state.auto_create = auto_create_topics
        self._groups = Groups(
            initial_rebalance_delay,
            session_timeouts,
            ModernTimes(consumer_session_timeout, consumer_heartbeat_interval, consumer_assignment_interval),
        )
        self._state.transactions.version = transaction_version
        self._state.transactions.write_marker = partial(write_marker, self._state, self._groups)
        self._script = Script()
        self._connections: list[Connection] = []
        self._connections_made = 0
        self._nursery_manager: AbstractAsyncContextManager[trio.Nursery] | None = None
        self._nursery: trio.Nursery | None = None
        self._started = 0.0
        self.strict = strict
        #: What came in that was no request of Kafka's, in words.
        self.malformed: list[str] = []
        #: At most so many bytes at a time reach the client; ``None``: as they come.
        self.chunk: int | None = None
        #: New connections have no buffer, as if the sockets' were full: a send waits until the other side has read it all. A
        #: frozen node stops reading in the middle of a request, so that a send to it can be cut there.
        self.unbuffered = False
        #: Seconds that a dial takes.
        self.dial_delay: float = 0
        #: Every dial: (time, node id or None, what came of it).
        self.dials: list[tuple[float, int | None, str]] = []
        for name, count in (topics or {}).items():
            self._state.create_topic(name, count)
        for api, versions in (api_versions or {}).items():
            self.offer(api, versions)

    async def __aenter__(self) -> ScriptedCluster:
        self._started = trio.current_time()
        self._nursery_manager = trio.open_nursery()
        self._nursery = await self._nursery_manager.__aenter__()
        self._nursery.start_soon(self._groups.watch)
        self._nursery.start_soon(self._state.transactions.watch)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        assert self._nursery is not None
        assert self._nursery_manager is not None
        self._nursery.cancel_scope.cancel()
        try:
            # The body's exception is kept out of the nursery, so that it leaves the block as it is and in no group.
            await self._nursery_manager.__aexit__(None, None, None)
        except BaseExceptionGroup as group:
            single: BaseException = group
            while isinstance(single, BaseExceptionGroup) and len(single.exceptions) == 1:
                single = single.exceptions[0]
            raise single from None
        finally:
            self._nursery = None
        if self.strict and self.malformed and error is None:
            raise AssertionError("the cluster got what no Kafka understands: " + "; ".join(self.malformed))

    # -- what a client needs -----------------------------------------------------------------------------------------

    @property
    def bootstrap_servers(self) -> str:
        """The addresses of all nodes: ``"broker-0:9092,broker-1:9092"``."""
        return ",".join(f"{node.host}:{node.port}" for node in self._state.nodes)

    async def dial(self, host: str, port: int) -> trio.abc.Stream:
        """Connect to a node. Raises :exc:`ConnectionRefusedError` if it is down and :exc:`OSError` if there is none."""
        node = next((node for node in self._state.nodes if (node.host, node.port) == (host, port)), None)
        await trio.lowlevel.checkpoint()
        if self.dial_delay:
            await trio.sleep(self.dial_delay)
        now, node_id = trio.current_time(), node.node_id if node else None
        if node is not None and node.state is NodeState.LOST:
            self.dials.append((now, node_id, "lost"))
            await trio.sleep_forever()
        if self._nursery is None or node is None or node.state is NodeState.DOWN or not node.accepts:
            self.dials.append((now, node_id, "refused"))
            if node is None:
                raise OSError(f"there is no host {host}:{port}")
            raise ConnectionRefusedError(f"nobody listens at {host}:{port}")
        self.dials.append((now, node_id, "connected"))
        ours, theirs = trio.testing.lockstep_stream_pair() if self.unbuffered else trio.testing.memory_stream_pair()
        gulp = _GULP if self.unbuffered else None
        self._connections_made += 1
        connection = Connection(self._connections_made, node, ours, self._state, self._groups, self._script, gulp)
        self._connections.append(connection)
        self._nursery.start_soon(self._serve, connection)
        return ClientStream(self, theirs, gulp)

    async def _serve(self, connection: Connection) -> None:
        try:
            await connection.run()
        finally:
            self.malformed += connection.malformed
            self._connections.remove(connection)

    # -- what was seen -----------------------------------------------------------------------------------------------

    @property
    def log(self) -> list[Seen]:
        """Every request that arrived, in order."""
        return self._script.log

    def requests(self, api: Api | None = None, *, node: int | None = None, where: Predicate | None = None) -> list[Seen]:
        """Those requests of the log that fit: by API (``"Fetch"`` or its number), node, and what they say."""
        return self._script.requests(api, node, where)

    def transferred(self, api: Api | None = None, *, node: int | None = None) -> tuple[int, int]:
        """The bytes of such requests and of their responses so far, frames' lengths included."""
        found = self._script.requests(api, node, None)
        return sum(seen.request_bytes for seen in found), sum(seen.response_bytes for seen in found)

    async def seen(self, api: Api, count: int = 1, *, node: int | None = None, where: Predicate | None = None) -> Seen:
        """Wait until ``count`` such requests have arrived since the cluster started, and return the last of these."""
        while len(found := self._script.requests(api, node, where)) < count:
            await self._script.arrived.wait()
        return found[count - 1]

    def connections(self, node: int | None = None) -> int:
        """How many connections are open."""
        return sum(node in (None, connection.node.node_id) for connection in self._connections)

    def now_ms(self) -> int:
        """The cluster's clock, for timestamps: ms since the epoch, a fixed start plus the time since the cluster started."""
        return _EPOCH_MS + (round((trio.current_time() - self._started) * 1000) if self._nursery else 0)

    # -- the script --------------------------------------------------------------------------------------------------

    def fail(
        self,
        api: Api,
        code: int,
        times: int | None = 1,
        *,
        node: int | None = None,
        where: Predicate | None = None,
        topic: str | None = None,
        partition: int | None = None,
        after: bool = False,
    ) -> Rule:
        """Answer the next ``times`` requests (``None``: all) with an error code, where the API has its place for one.

        ``topic`` (for calls on groups: the group id) and ``partition`` limit the code to these items; the rest is answered as
        usual. ``after``: the request is carried out first, as when the broker fails between doing and answering.
        """
        return self._rule(api, Fail(code, topic, partition, after), times, node, where)

    def delay(
        self,
        api: Api,
        seconds: float,
        times: int | None = None,
        *,
        node: int | None = None,
        where: Predicate | None = None,
        after: bool = False,
    ) -> Rule:
        """Let requests wait before they are carried out; with ``after`` between that and the answer. Delays add up."""
        return self._rule(api, Delay(seconds, after), times, node, where)

    def drop(
        self, api: Api, times: int | None = 1, *, node: int | None = None, where: Predicate | None = None, after: bool = False
    ) -> Rule:
        """Close the connection instead of answering; with ``after`` the request is carried out first (a lost answer)."""
        return self._rule(api, Drop(after), times, node, where)

    def garbage(
        self, api: Api, data: bytes, times: int | None = 1, *, node: int | None = None, where: Predicate | None = None
    ) -> Rule:
        """Send these bytes instead of an answer, as they are: no length is put before them."""
        return self._rule(api, Garbage(data), times, node, where)

    def silence(
        self, api: Api, times: int | None = None, *, node: int | None = None, where: Predicate | None = None, after: bool = False
    ) -> Rule:
        """Never answer; with ``after`` the request is carried out all the same. As Kafka answers in order, nothing that follows
        on the same connection is answered either.
        """
        return self._rule(api, Silence(after), times, node, where)

    def damage(
        self,
        api: Api,
        times: int | None = 1,
        *,
        change: Change = flip,
        node: int | None = None,
        where: Predicate | None = None,
    ) -> Rule:
        """Change the bytes of the answer by :func:`flip`, :func:`cut`, :func:`strange_id` or your own function."""
        return self._rule(api, Damage(change), times, node, where)

    def leave_out(
        self,
        api: Api,
        topic: str,
        partition: int | None = None,
        times: int | None = 1,
        *,
        node: int | None = None,
        where: Predicate | None = None,
    ) -> Rule:
        """Leave a topic, or one partition of it, out of the answer to a request that is carried out."""
        return self._rule(api, LeaveOut(topic, partition), times, node, where)

    def on(
        self, api: Api, handler: Handler, times: int | None = None, *, node: int | None = None, where: Predicate | None = None
    ) -> Rule:
        """Answer by ``async def handler(request, default) -> response | None``.

        ``await default()`` carries the request out and returns the response that the cluster would give; :func:`respond` makes
        one from plain values. ``None`` sends nothing; to keep the client waiting, do not return.
        """
        return self._rule(api, Handle(handler), times, node, where)

    def _rule(self, api: Api, action: Verdict | Delay, times: int | None, node: int | None, where: Predicate | None) -> Rule:
        return self._script.add(Rule(api_key(api), action, times, node, where))

    def offer(self, api: Api, versions: Versions | None, *, node: int | None = None) -> None:
        """Offer an API in these versions only (lowest, highest), on one node or all; ``None``: not at all."""
        key = api_key(api)
        for each in self._state.nodes:
            if node not in (None, each.node_id):
                continue
            if versions is None:
                each.versions.pop(key, None)
            else:
                each.versions[key] = versions

    def want_metrics(self, metrics: Iterable[str], *, interval: float = 300) -> None:
        """Let the clients push the metrics whose names begin so (``""``: all), every so many seconds (KIP-714). Offer both APIs."""
        telemetry = self._state.telemetry
        telemetry.metrics, telemetry.interval = tuple(metrics), interval
        telemetry.subscription_id += 1

    # -- the nodes' life ---------------------------------------------------------------------------------------------

    def freeze(self, node: int) -> None:
        """Let a node take connections and bytes but answer nothing, like a process that was stopped."""
        self._set_state(node, NodeState.FROZEN)

    def thaw(self, node: int) -> None:
        """Let a frozen node go on; what it got meanwhile is answered now."""
        self._set_state(node, NodeState.UP)

    def stop(self, node: int, *, noticed: bool = True) -> None:
        """Close a node's connections and refuse new ones. ``noticed``: the others' metadata shows that it is away."""
        self._set_state(node, NodeState.DOWN)
        self._state.nodes[node].listed = not noticed
        self.disconnect(node)
        self.forget_fetch_sessions(node)
        self._state.changed.notify()

    def lose(self, node: int) -> None:
        """Let a node become unreachable: nothing it is sent is answered, and a new dial hangs."""
        self._set_state(node, NodeState.LOST)

    def start(self, node: int) -> None:
        """Bring a node back that was stopped or lost."""
        self._state.nodes[node].listed = True
        self._set_state(node, NodeState.UP)

    def refuse(self, node: int, refused: bool = True) -> None:
        """Refuse new connections to a node; those that are open go on. ``False``: accept them again."""
        self._state.nodes[node].accepts = not refused

    def disconnect(self, node: int | None = None) -> None:
        """Close the connections of a node, or all; new ones are accepted."""
        for connection in self._connections:
            if node in (None, connection.node.node_id):
                connection.close()

    def move_leader(self, topic: str, partition: int, node: int | None) -> None:
        """Let another node lead a partition, in the next leader epoch; ``None``: nobody."""
        self.partition(topic, partition).elect(node)
        self._state.changed.notify()

    def elect_uncleanly(self, topic: str, partition: int, node: int, end: int) -> None:
        """Let a node lead in the next leader epoch whose log ends at ``end``: what comes after is lost, as in Kafka's unclean
        election. Records are lost by whole batches.
        """
        log = self.partition(topic, partition)
        log.truncate_to(end)
        log.elect(node)
        self._state.changed.notify()

    def lag(self, topic: str, partition: int, node: int, end: int | None) -> None:
        """Let a follower have the records before ``end`` only (``None``: all). Of use in a cluster with racks."""
        lagging = self.partition(topic, partition).lagging
        lagging.pop(node, None)
        if end is not None:
            lagging[node] = end
        self._state.changed.notify()

    def tier(self, topic: str, partition: int, before: int, *, readable: bool = True) -> None:
        """Move the records before an offset to remote storage (KIP-405). Without ``readable`` a fetch of them is answered with
        OFFSET_MOVED_TO_TIERED_STORAGE.
        """
        log = self.partition(topic, partition)
        log.tiered, log.remote_readable = before, readable
        self._state.changed.notify()

    def forget_fetch_sessions(self, node: int | None = None) -> None:
        """Let a node forget its fetch sessions (KIP-227), or all; a stop does so, too."""
        for each in self._state.nodes:
            if node in (None, each.node_id):
                each.sessions.by_id.clear()

    def move_coordinator(self, node: int, group: str | None = None) -> None:
        """Let another node coordinate a group, or all. Those who wait in a rebalance get NOT_COORDINATOR."""
        if group is None:
            self._state.coordinator = node
            self._state.coordinators.clear()
        else:
            self._state.coordinators[group] = node
        for each in self._groups.by_id.values():
            if group in (None, each.group_id):
                each.refuse_all(16)

    def _set_state(self, node: int, state: NodeState) -> None:
        self._state.nodes[node].state = state
        self._state.changed.notify()

    # -- the data ----------------------------------------------------------------------------------------------------

    def create_topic(self, name: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> None:
        """Make a topic. Of its config, ``max.message.bytes`` and ``message.timestamp.type`` have an effect."""
        self._state.create_topic(name, partitions, None, config)

    def delete_topic(self, name: str) -> None:
        """Delete a topic, and what groups committed of it. One that is made with its name afterwards has another id."""
        del self._state.topics[name]
        self._groups.forget_topic(name)
        self._state.changed.notify()

    def add_partitions(self, topic: str, count: int) -> None:
        """Let a topic have so many partitions."""
        self._state.grow_topic(self._state.topics[topic], count)

    def topic_id(self, topic: str) -> uuid.UUID:
        """The id of a topic, the same in every run."""
        return self._state.topics[topic].topic_id

    def partition(self, topic: str, partition: int) -> Partition:
        """What the cluster knows of a partition. Raises ``LookupError`` if there is none."""
        found = self._state.topics[topic].partition(partition)
        if found is None:
            raise LookupError(f"{topic} has no partition {partition}")
        return found

    def append(self, topic: str, partition: int, records: Iterable[Appendable], *, compression: str = "none") -> int:
        """Put records into a partition's log as one batch and return its first offset.

        A record is a value, or ``(key, value[, timestamp in ms[, headers]])``; without a timestamp it gets the cluster's time.
        """
        data = encode_batch(records, timestamp=self.now_ms(), compression=compression)
        return self.append_batch(topic, partition, data)

    def append_batch(self, topic: str, partition: int, data: bytes, *, offset: int | None = None, count: int | None = None) -> int:
        """Put one record batch into the log, its checks left out, and return its first offset.

        Without ``offset`` it goes to the end and the offset is written into it; with one the bytes stay as they are, right or
        wrong. ``count`` is how many offsets it takes, where its header does not say so.
        """
        log = self.partition(topic, partition)
        base = log.end if offset is None else offset
        log.append_raw(data, base, count, rewrite=offset is None)
        self._state.changed.notify()
        return base

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        """Forget the records before an offset, as retention does: the earliest offset moves."""
        self.partition(topic, partition).truncate_before(before)

    def records(self, topic: str, partition: int) -> list[Record]:
        """What is in a partition's log, decoded."""
        log = self.partition(topic, partition)
        return [
            record for batch in log.batches for record in decode_batch(batch.data, topic, partition) if record.offset >= log.start
        ]

    @property
    def transactions(self) -> Transactions:
        """The transaction coordinator; a test may set its ``completion`` and other settings, and look at ``by_id``."""
        return self._state.transactions

    def group(self, group: str) -> Group | None:
        """A consumer group as the coordinator knows it: its state, generation and members."""
        return self._groups.by_id.get(group)

    def committed(self, group: str, partition: tuple[str, int]) -> OffsetAndMetadata | None:
        """What a group has committed for a partition."""
        known = self._groups.by_id.get(group)
        found = known.offsets.get((partition[0], partition[1])) if known else None
        if found is None:
            return None
        return OffsetAndMetadata(found.offset, found.leader_epoch if found.leader_epoch >= 0 else None, found.metadata)

    def __repr__(self) -> str:
        states = ", ".join(f"{node.host}: {node.state.value}" for node in self._state.nodes)
        last = f", last {api_name(self.log[-1].api_key)}" if self.log else ""
        return f"<ScriptedCluster {states}; {len(self.log)} requests{last}>"
