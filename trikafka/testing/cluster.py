"""The scripted cluster, the object that a test holds.

It owns the states of the nodes (up, frozen, down, lost), the connections and the script. Logs and
groups are in ``state`` and ``group``. The handlers of the APIs are in ``topics``, ``records`` and
``groups``.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from types import TracebackType
from typing import Self

import trio
import trio.testing

from trikafka.error_codes import ErrorCode
from trikafka.errors import BootstrapError, IllegalStateError
from trikafka.errors.counts import counted
from trikafka.errors.groups import unwrapped
from trikafka.hooks import check_takes
from trikafka.types import OffsetAndMetadata, Record

from .batches import Appendable, decode_batch, encode_batch
from .client_stream import ClientStream
from .connection import ScriptedConnection
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
from .share import SharedRecord, ShareGroups
from .state import NodeState, Partition, ScriptedNode, State, Topic
from .topic_configs import fault_of
from .transactions import TransactionCoordinatorState

_GULP = 8
_EPOCH_MS = 1_700_000_000_000


# Why a cluster and no mocks: the errors that matter in a Kafka client arise between its layers,
# from an order of events that mocks of our own classes would not produce. So only the byte stream
# is replaced. The client runs unchanged, with its own framing, decoding, deadlines and reconnects;
# only `dial` differs. Tests say what the network and the brokers do, and check requests and
# results.
#
# Three decisions follow:
#
# * Byte level. Frames are encoded and decoded by kafka-python's classes, not by trikafka's wire
#   code (see messages.py), so an encoding error on one side is not repeated on the other. A request
#   whose re-encoding has another length than its frame is malformed and fails the test (`strict`).
# * Virtual time. Nothing here does real I/O or reads a real clock; waits use Trio's clock. With
#   MockClock(autojump_threshold=0) a session timeout of 45 s passes in milliseconds, and a test
#   asserts exact times. The same events happen in the same order in every run.
# * Real rules. Brokers check what Kafka checks: epochs, sequences, group generations, transaction
#   states, fetch sessions. A test scripts only the deviation (fail, delay, drop, damage ...), and
#   the rest stays what a broker would do. Where Kafka and a KIP disagree, Kafka's behaviour counts;
#   a comment says so.
class ScriptedCluster:
    """A small Kafka cluster in memory that behaves like Kafka until the script deviates.

    Use it as an async context manager. Pass :attr:`bootstrap_servers` and :meth:`dial` to the
    client::

        async with ScriptedCluster(nodes=2, topics={"t": 3}) as cluster:
            cluster.fail("Fetch", 6)
            servers = cluster.bootstrap_servers
            async with trikafka.open_consumer(
                "t", bootstrap_servers=servers, dial=cluster.dial
            ) as consumer:
                ...

    The cluster does no real I/O and reads no real clock. With
    ``trio.testing.MockClock(autojump_threshold=0)``, a test with minutes of waiting takes
    milliseconds, and its times are exact. An exception in a test's handler ends the ``async with``
    block. A request that a real broker could not read closes the connection.

    The cluster offers the APIs of Kafka 4, including groups of the consumer protocol (KIP-848);
    :meth:`offer` changes that. It has neither TLS nor SASL. A group with members of one protocol
    refuses members of the other.
    All times are in seconds.

    Args:
        nodes: The number of brokers.
        racks: The rack of each node. With racks, consumers are sent to the follower in their rack
            (KIP-392). Without, only leaders answer a fetch.
        topics: The number of partitions by topic.
        api_versions: Versions to offer, as :meth:`offer`.
        coordinator: The node that coordinates all groups and transactional ids.
        auto_create_topics: Whether a metadata request that allows it creates missing topics.
        initial_rebalance_delay: The delay of an empty group's first rebalance.
        session_timeouts: The smallest and largest session timeout of classic groups.
        consumer_session_timeout: The session timeout of the consumer protocol.
        consumer_heartbeat_interval: The heartbeat interval of the consumer protocol.
        consumer_assignment_interval: The shortest time between two assignments of the consumer
            protocol.
        fetch_sessions: The fetch sessions that a node can hold (KIP-227).
        transaction_version: The finalized level of the feature ``transaction.version``: 1, or 2 for
            KIP-890, where each end of a transaction raises the epoch.
        cluster_id: The cluster's id.
        strict: Raise :exc:`AssertionError` at the end of the block if a malformed request arrived,
            or if a rule of :meth:`fail` or :meth:`leave_out` was applied, and its topic or
            partition never existed.
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
        if len(racks) > nodes:
            raise ValueError(f"there are {len(racks)} racks, but {nodes} nodes")
        if not 0 <= coordinator < nodes:
            raise ValueError(f"coordinator={coordinator} is not a node: there are {nodes}, from 0")
        if transaction_version not in (1, 2):
            raise ValueError(f"transaction_version must be 1 or 2, not {transaction_version!r}")
        if session_timeouts[0] > session_timeouts[1]:
            raise ValueError(f"session_timeouts must be (least, most), not {session_timeouts!r}")
        self._state = State(nodes, self.now_ms, cluster_id, racks, fetch_sessions)
        self._state.coordinator = coordinator
        self._state.auto_create = auto_create_topics
        self._groups = Groups(
            initial_rebalance_delay,
            session_timeouts,
            ModernTimes(
                consumer_session_timeout, consumer_heartbeat_interval, consumer_assignment_interval
            ),
        )
        self._state.transactions.version = transaction_version
        self._state.transactions.write_marker = partial(write_marker, self._state, self._groups)
        self._script = Script()
        self._connections: list[ScriptedConnection] = []
        self._connections_made = 0
        self._nursery_manager: AbstractAsyncContextManager[trio.Nursery] | None = None
        self._nursery: trio.Nursery | None = None
        self._started = 0.0
        self.strict = strict
        #: Descriptions of the malformed requests.
        self.malformed: list[str] = []
        #: The most bytes that reach the client at a time; ``None``: no limit.
        self.chunk: int | None = None
        #: True: new connections have no buffer, as if the sockets' buffers were full. Then a send
        #: waits until the other side has read all bytes. A frozen node stops reading in the middle
        #: of a request, so that a test can cancel a send there.
        self.unbuffered = False
        #: Seconds that a dial takes.
        self.dial_delay: float = 0
        #: Every dial: (time, node id or None, result).
        self.dials: list[tuple[float, int | None, str]] = []
        if not isinstance(topics or {}, Mapping):
            raise TypeError(
                f"topics must be names with their numbers of partitions, such as {{'t': 3}}, not "
                f"{topics!r}"
            )
        for name, count in (topics or {}).items():
            self._state.create_topic(name, count)
        for api, versions in (api_versions or {}).items():
            self.offer(api, versions)

    async def __aenter__(self) -> Self:
        if not trio.lowlevel.in_trio_task():
            raise IllegalStateError(
                "trikafka.testing.ScriptedCluster needs a task of Trio; in a program of asyncio "
                "use trikafka.aio.testing.ScriptedCluster"
            )
        if self._nursery is not None:
            raise IllegalStateError("the block of this scripted cluster is entered already")
        self._started = trio.current_time()
        self._nursery_manager = trio.open_nursery()
        self._nursery = await self._nursery_manager.__aenter__()
        self._nursery.start_soon(self._groups.watch)
        self._nursery.start_soon(self._state.transactions.watch)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._nursery is not None
        assert self._nursery_manager is not None
        self._nursery.cancel_scope.cancel()
        if isinstance(error, BootstrapError) and not self.dials:
            error.add_note("no client has dialed the scripted cluster: give it dial=cluster.dial")
        try:
            # The body's exception does not pass through the nursery, so it leaves the block
            # unchanged and in no group.
            await self._nursery_manager.__aexit__(None, None, None)
        except BaseExceptionGroup as group:
            raise unwrapped(group) from None
        finally:
            self._nursery = None
        if not self.strict or error is not None:
            return
        if self.malformed:
            raise AssertionError(
                "the cluster got requests that Kafka cannot read: " + "; ".join(self.malformed)
            )
        if missed := self._script.missed():
            raise AssertionError(
                "rules of the script had no effect, since their topic or partition does not exist: "
                f"{'; '.join(missed)}"
            )

    # -- used by clients

    @property
    def bootstrap_servers(self) -> str:
        """The addresses of all nodes: ``"broker-0:9092,broker-1:9092"``."""
        return ",".join(f"{node.host}:{node.port}" for node in self._state.nodes)

    async def dial(self, host: str, port: int) -> trio.abc.Stream:
        """Connect to a node; pass this method to a client as ``dial``.

        A lost node (:meth:`lose`) never answers: the call waits until it is cancelled.

        Args:
            host: The host of the node's address.
            port: Its port.

        Raises:
            ConnectionRefusedError: The node is down, or refuses connections.
            OSError: There is no such node.
        """
        node = next(
            (node for node in self._state.nodes if (node.host, node.port) == (host, port)), None
        )
        await trio.lowlevel.checkpoint()
        if self.dial_delay:
            await trio.sleep(self.dial_delay)
        now = trio.current_time()
        node_id = node.node_id if node else None
        if node is not None and node.state is NodeState.LOST:
            self.dials.append((now, node_id, "lost"))
            await trio.sleep_forever()
        if (
            self._nursery is None
            or node is None
            or node.state is NodeState.DOWN
            or not node.accepts
        ):
            self.dials.append((now, node_id, "refused"))
            if self._nursery is None:
                raise ConnectionRefusedError(
                    "a scripted cluster answers in its 'async with' block only"
                )
            if node is None:
                raise OSError(f"there is no host {host}:{port}")
            raise ConnectionRefusedError(f"nothing listens at {host}:{port}")
        self.dials.append((now, node_id, "connected"))
        ours, theirs = (
            trio.testing.lockstep_stream_pair()
            if self.unbuffered
            else trio.testing.memory_stream_pair()
        )
        gulp = _GULP if self.unbuffered else None
        self._connections_made += 1
        connection = ScriptedConnection(
            self._connections_made, node, ours, self._state, self._groups, self._script, gulp
        )
        self._connections.append(connection)
        self._nursery.start_soon(self._serve, connection)
        return ClientStream(self, theirs, gulp)

    async def _serve(self, connection: ScriptedConnection) -> None:
        try:
            await connection.serve()
        finally:
            self.malformed += connection.malformed
            self._connections.remove(connection)

    # -- observed requests

    @property
    def log(self) -> list[Seen]:
        """Every request that arrived, in order."""
        return self._script.log

    def requests(
        self, api: Api | None = None, *, node: int | None = None, where: Predicate | None = None
    ) -> list[Seen]:
        """Return the matching requests of the log.

        Args:
            api: The name (``"Fetch"``) or number of the API; ``None`` for all.
            node: The node id; ``None`` for all.
            where: A predicate of the decoded request.
        """
        self._check_node(node)
        if where is not None:
            _check_function("where", where)
        return self._script.requests(api, node, where)

    def transferred(self, api: Api | None = None, *, node: int | None = None) -> tuple[int, int]:
        """Return the bytes of the matching requests and of their responses, with frame lengths.

        Args:
            api: The name or number of the API; ``None`` for all.
            node: The node id; ``None`` for all.
        """
        found = self.requests(api, node=node)
        return sum(seen.request_bytes for seen in found), sum(seen.response_bytes for seen in found)

    async def seen(
        self, api: Api, count: int = 1, *, node: int | None = None, where: Predicate | None = None
    ) -> Seen:
        """Wait until ``count`` matching requests have arrived since the start; return the last one.

        There is no limit: cancel the wait by a scope.

        Args:
            api: The name or number of the API.
            count: The number of requests.
            node: The node id; ``None`` for all.
            where: A predicate of the decoded request.
        """
        while len(found := self.requests(api, node=node, where=where)) < count:
            await self._script.arrived.wait()
        return found[count - 1]

    def connections(self, node: int | None = None) -> int:
        """Return the number of open connections."""
        self._check_node(node)
        return sum(node in (None, connection.node.node_id) for connection in self._connections)

    def now_ms(self) -> int:
        """Return the cluster's time in milliseconds since the epoch.

        The clock starts at a fixed time and runs with Trio's clock.
        """
        return _EPOCH_MS + (
            round((trio.current_time() - self._started) * 1000) if self._nursery else 0
        )

    # -- the script

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
        """Respond with an error code, in the field that the API has for it.

        Args:
            api: The name or number of the API.
            code: The error code, such as ``ErrorCode.NOT_LEADER_OR_FOLLOWER``.
            times: The number of requests to fail; ``None`` for all.
            node: Only requests to this node.
            where: Only requests for which this predicate is true.
            topic: Only items of this topic; for calls on groups, the group id. The rest of the
                response is as usual.
            partition: Only items of this partition.
            after: Execute the request first, as if the broker failed before it responded.
        """
        if not isinstance(code, int):
            raise TypeError(f"code must be a number, such as ErrorCode.{code}, not {code!r}")
        if code == 0:
            raise ValueError("code must be an error, and 0 is none")
        _check_item(topic, partition)
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
        """Delay requests before they are executed, or with ``after`` before the response.

        Delays add up. The other arguments are those of :meth:`fail`.
        """
        if not seconds >= 0:
            raise ValueError(f"seconds must be at least 0, not {seconds!r}")
        return self._rule(api, Delay(seconds, after), times, node, where)

    def drop(
        self,
        api: Api,
        times: int | None = 1,
        *,
        node: int | None = None,
        where: Predicate | None = None,
        after: bool = False,
    ) -> Rule:
        """Close the connection instead of responding.

        With ``after`` the request is executed first, so only the response is lost. The other
        arguments are those of :meth:`fail`.
        """
        return self._rule(api, Drop(after), times, node, where)

    def garbage(
        self,
        api: Api,
        data: bytes,
        times: int | None = 1,
        *,
        node: int | None = None,
        where: Predicate | None = None,
    ) -> Rule:
        """Send these bytes instead of a response, without a length in front.

        The other arguments are those of :meth:`fail`.
        """
        if not isinstance(data, bytes | bytearray):
            raise TypeError(f"data must be bytes, not {data!r}")
        return self._rule(api, Garbage(data), times, node, where)

    def silence(
        self,
        api: Api,
        times: int | None = None,
        *,
        node: int | None = None,
        where: Predicate | None = None,
        after: bool = False,
    ) -> Rule:
        """Never respond; with ``after`` the request is executed nevertheless.

        Kafka responds in order, so later requests of the same connection get no response either.
        The other arguments are those of :meth:`fail`.
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
        """Change the bytes of the response.

        ``change`` is :func:`flip`, :func:`cut`, :func:`strange_id` or a function of the test. The
        other arguments are those of :meth:`fail`.
        """
        _check_function("change", change)
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
        """Omit a topic, or one of its partitions, from the response to an executed request.

        Args:
            api: The name or number of the API.
            topic: The topic.
            partition: The partition to omit; ``None`` for the whole topic.
            times: The number of responses; ``None`` for all.
            node: Only responses of this node.
            where: Only responses to requests for which this predicate is true.
        """
        _check_item(topic, partition)
        return self._rule(api, LeaveOut(topic, partition), times, node, where)

    def on(
        self,
        api: Api,
        handler: Handler,
        times: int | None = None,
        *,
        node: int | None = None,
        where: Predicate | None = None,
    ) -> Rule:
        """Let the test respond by ``async def handler(request, default) -> response | None``.

        ``await default()`` executes the request and returns the cluster's response. :func:`respond`
        creates a response from plain values. ``None`` sends nothing. A handler that does not return
        keeps the client waiting.
        """
        if not callable(handler):
            raise TypeError(f"the handler of {api!r} is not a function: {handler!r}")
        check_takes(handler, (None, None), TypeError, f"the handler of {api!r}", may_wait=True)
        return self._rule(api, Handle(handler), times, node, where)

    def _rule(
        self,
        api: Api,
        action: Verdict | Delay,
        times: int | None,
        node: int | None,
        where: Predicate | None,
    ) -> Rule:
        self._check_node(node)
        if where is not None:
            _check_function("where", where)
        if times is not None and (isinstance(times, bool) or not isinstance(times, int)):
            raise TypeError(f"times must be a number, or None for all requests, not {times!r}")
        # A parametrized test may ask for 0.
        if times is not None and times < 0:
            raise ValueError(f"times must be at least 0, or None for all requests, not {times}")
        return self._script.add(Rule(api_key(api), action, times, node, where))

    def offer(self, api: Api, versions: Versions | None, *, node: int | None = None) -> None:
        """Offer an API only in these versions (lowest, highest).

        Args:
            api: The name or number of the API.
            versions: The versions; ``None`` withdraws the API. A range that no broker has, such as
                ``(5, 3)``, is offered as it is: clients must cope with it.
            node: The node; ``None`` for all.
        """
        key = api_key(api)
        if versions is not None and not (
            isinstance(versions, tuple | list)
            and len(versions) == 2
            and all(isinstance(version, int) for version in versions)
        ):
            raise TypeError(f"versions must be (lowest, highest), or None, not {versions!r}")
        self._check_node(node)
        for each in self._state.nodes:
            if node not in (None, each.node_id):
                continue
            if versions is None:
                each.versions.pop(key, None)
            else:
                each.versions[key] = versions

    def want_metrics(self, metrics: Iterable[str], *, interval: float = 300) -> None:
        """Request client metrics (KIP-714). Both APIs must be offered.

        Args:
            metrics: Prefixes of the metrics' names; ``""`` for all.
            interval: Seconds between two pushes.
        """
        if isinstance(metrics, str):
            raise TypeError(f"metrics must be a collection of prefixes: write [{metrics!r}]")
        telemetry = self._state.telemetry
        telemetry.metrics = tuple(metrics)
        telemetry.interval = interval
        telemetry.subscription_id += 1

    # -- states of nodes, leaders and coordinators

    def freeze(self, node: int) -> None:
        """Freeze a node: it accepts connections and bytes but does not respond.

        A stopped process behaves like this.
        """
        self._set_state(node, NodeState.FROZEN)

    def thaw(self, node: int) -> None:
        """Resume a frozen node; it now responds to the requests received meanwhile."""
        self._set_state(node, NodeState.UP)

    def stop(self, node: int, *, noticed: bool = True) -> None:
        """Close a node's connections and refuse new ones.

        Args:
            node: The node.
            noticed: True if the other nodes' metadata no longer lists it.
        """
        self._set_state(node, NodeState.DOWN)
        self._node(node).listed = not noticed
        self.disconnect(node)
        self.forget_fetch_sessions(node)
        self._state.changed.notify()

    def lose(self, node: int) -> None:
        """Make a node unreachable: it does not respond, and new dials hang."""
        self._set_state(node, NodeState.LOST)

    def start(self, node: int) -> None:
        """Start a node that was stopped or lost."""
        self._node(node).listed = True
        self._set_state(node, NodeState.UP)

    def refuse(self, node: int, refused: bool = True) -> None:
        """Refuse new connections to a node, or accept them again; open ones continue.

        Args:
            node: The node id.
            refused: False to accept connections again.
        """
        self._node(node).accepts = not refused

    def disconnect(self, node: int | None = None) -> None:
        """Close the connections of a node, or of all nodes; new ones are accepted."""
        self._check_node(node)
        for connection in self._connections:
            if node in (None, connection.node.node_id):
                connection.close()

    def move_leader(self, topic: str, partition: int, node: int | None) -> None:
        """Elect another leader of a partition, in the next leader epoch.

        Args:
            topic: The topic.
            partition: The partition.
            node: The id of the new leader; ``None``: there is no leader.
        """
        self._check_node(node)
        self.partition(topic, partition).elect(node)
        self._state.changed.notify()

    def elect_uncleanly(self, topic: str, partition: int, node: int, end: int) -> None:
        """Elect a leader whose log lacks the last records, in the next leader epoch.

        Args:
            topic: The topic.
            partition: The partition.
            node: The id of the new leader.
            end: The end of its log. Later records are lost in whole batches, as in Kafka's unclean
                election.
        """
        self._node(node)
        log = self.partition(topic, partition)
        _check_offset(log, end)
        log.truncate_to(end)
        log.elect(node)
        self._state.changed.notify()

    def lag(self, topic: str, partition: int, node: int, end: int | None) -> None:
        """Let a follower lag behind; it has an effect in a cluster with racks.

        Args:
            topic: The topic.
            partition: The partition.
            node: The id of the follower.
            end: The end of its log; ``None``: it has all records.
        """
        self._check_node(node)
        log = self.partition(topic, partition)
        log.lagging.pop(node, None)
        if end is not None:
            if end < 0:
                raise ValueError(f"end must be at least 0, not {end}")
            log.lagging[node] = end  # may be beyond the log, which grows
        self._state.changed.notify()

    def tier(self, topic: str, partition: int, before: int, *, readable: bool = True) -> None:
        """Move the records before an offset to remote storage (KIP-405).

        Args:
            topic: The topic.
            partition: The partition.
            before: The first offset that stays on the brokers.
            readable: False to let a fetch of the others fail with
                OFFSET_MOVED_TO_TIERED_STORAGE.
        """
        log = self.partition(topic, partition)
        _check_offset(log, before)
        log.tiered = before
        log.remote_readable = readable
        self._state.changed.notify()

    def forget_fetch_sessions(self, node: int | None = None) -> None:
        """Discard the fetch sessions (KIP-227) of a node, or of all nodes.

        A stop does so as well.
        """
        self._check_node(node)
        for each in self._state.nodes:
            if node in (None, each.node_id):
                each.sessions.by_id.clear()

    def move_coordinator(self, node: int, group: str | None = None) -> None:
        """Move the coordinator of a group; members that wait in a rebalance get NOT_COORDINATOR.

        Args:
            node: The id of the new coordinator.
            group: The group; ``None`` for all groups.
        """
        self._node(node)
        if group is None:
            self._state.coordinator = node
            self._state.coordinators.clear()
        else:
            self._state.coordinators[group] = node
        for each in self._groups.by_id.values():
            if group in (None, each.group_id):
                each.refuse_all(ErrorCode.NOT_COORDINATOR)

    def _set_state(self, node: int, state: NodeState) -> None:
        self._node(node).state = state
        self._state.changed.notify()

    def _node(self, node: int) -> ScriptedNode:
        known = self._state.nodes
        if not 0 <= node < len(known):
            raise LookupError(f"there is no node {node}: there are {len(known)}, from 0")
        return known[node]

    def _check_node(self, node: int | None) -> None:
        """Raise :exc:`LookupError` unless there is such a node, or ``None`` stands for all."""
        if node is not None:
            self._node(node)

    # -- topics, records and groups

    def create_topic(
        self, name: str, partitions: int = 1, config: Mapping[str, str] | None = None
    ) -> None:
        """Create a topic.

        Args:
            name: Its name.
            partitions: The number of its partitions.
            config: Its config, of which ``max.message.bytes``, ``message.timestamp.type`` and
                ``cleanup.policy`` have an effect.

        Raises:
            ValueError: There is such a topic, or Kafka refuses the name or the config.
        """
        if name in self._state.topics:
            raise ValueError(f"there is a topic {name!r}: delete it first")
        if wrong := [value for value in (config or {}).values() if not isinstance(value, str)]:
            raise TypeError(f"a config's value must be text, not {wrong[0]!r}")
        if (fault := fault_of(config or {})) is not None:
            raise ValueError(f"topic {name!r}: {fault}")
        self._state.create_topic(name, partitions, None, config)

    def delete_topic(self, name: str) -> None:
        """Delete a topic and the groups' committed offsets of it.

        A topic created later with the same name has another id.
        """
        self._topic(name)
        del self._state.topics[name]
        self._groups.forget_topic(name)
        self._state.changed.notify()

    def add_partitions(self, topic: str, count: int) -> None:
        """Increase the number of a topic's partitions to ``count``."""
        found = self._topic(topic)
        if count < len(found.partitions):
            raise ValueError(
                f"{topic!r} has {counted(len(found.partitions), 'partition')}, and cannot be cut "
                f"to {count}"
            )
        self._state.grow_topic(found, count)

    def topic_id(self, topic: str) -> uuid.UUID:
        """Return the id of a topic, the same in every run."""
        return self._topic(topic).topic_id

    def partition(self, topic: str, partition: int) -> Partition:
        """Return the state of a partition.

        Raises:
            LookupError: There is no such partition.
        """
        found = self._topic(topic).partition(partition)
        if found is None:
            raise LookupError(f"{topic} has no partition {partition}")
        return found

    def _topic(self, name: str) -> Topic:
        try:
            return self._state.topics[name]
        except KeyError:
            known = ", ".join(self._state.topics) or "none"
            raise LookupError(f"there is no topic {name!r}; there are: {known}") from None

    def append(
        self,
        topic: str,
        partition: int,
        records: Iterable[Appendable],
        *,
        compression: str = "none",
    ) -> int:
        """Append records to a partition as one batch; return its first offset.

        Does nothing without records.

        Args:
            topic: The topic.
            partition: The partition.
            records: Each a value, or ``(key, value[, timestamp in ms[, headers]])``. Without a
                timestamp a record gets the cluster's time.
            compression: The codec of the batch.
        """
        if isinstance(records, str | bytes | bytearray | memoryview):
            one = records.encode() if isinstance(records, str) else bytes(records)
            raise TypeError(f"records must be a collection of records, such as [{one[:20]!r}]")
        found = list(records)
        if not found:
            return self.partition(topic, partition).end
        data = encode_batch(found, timestamp=self.now_ms(), compression=compression)
        return self.append_batch(topic, partition, data)

    def append_batch(
        self,
        topic: str,
        partition: int,
        data: bytes,
        *,
        offset: int | None = None,
        count: int | None = None,
    ) -> int:
        """Append one record batch without checks; return its first offset.

        Args:
            topic: The topic.
            partition: The partition.
            data: The bytes of the batch.
            offset: The first offset; the bytes stay unchanged, right or wrong. ``None``: the end of
                the log, which is written into the batch.
            count: The number of offsets, if the header does not show it.
        """
        log = self.partition(topic, partition)
        base = log.end if offset is None else offset
        log.append_raw(data, base, count, rewrite=offset is None)
        self._state.changed.notify()
        return base

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        """Delete the records before an offset, as retention does: the earliest offset moves."""
        log = self.partition(topic, partition)
        _check_offset(log, before)
        log.truncate_before(before)

    def records(self, topic: str, partition: int) -> list[Record]:
        """Return the records in a partition's log, decoded."""
        log = self.partition(topic, partition)
        return [
            record
            for batch in log.batches
            for record in decode_batch(batch.data, topic, partition)
            if record.offset >= log.start
        ]

    @property
    def transactions(self) -> TransactionCoordinatorState:
        """The transaction coordinator.

        A test may change its ``completion`` and other settings, and inspect ``by_id``.
        """
        return self._state.transactions

    @property
    def shares(self) -> ShareGroups:
        """The share groups.

        A test may change ``times``, which is a :class:`ShareTimes`, and inspect ``by_id`` and
        ``sessions``. :meth:`shared` has the states of the records.
        """
        return self._state.shares

    def group(self, group: str) -> Group | None:
        """Return a group as its coordinator knows it; ``None`` if there is none."""
        return self._groups.by_id.get(group)

    def committed(self, group: str, partition: tuple[str, int]) -> OffsetAndMetadata | None:
        """Return a group's committed offset for a partition; ``None`` if there is none."""
        topic, number = _checked_partition(partition)
        self.partition(topic, number)
        known = self._groups.by_id.get(group)
        found = known.offsets.get((topic, number)) if known else None
        if found is None:
            return None
        return OffsetAndMetadata(
            found.offset, found.leader_epoch if found.leader_epoch >= 0 else None, found.metadata
        )

    def shared(self, group: str, partition: tuple[str, int]) -> dict[int, SharedRecord]:
        """Return the state of each record that a share group has delivered, by its offset.

        A record that is not among them was never delivered.
        """
        topic, number = _checked_partition(partition)
        self.partition(topic, number)
        known = self._state.shares.by_id.get(group)
        part = (self.topic_id(topic), number)
        found = known.partitions.get(part) if known else None
        if found is None:
            return {}
        if self._nursery is not None:
            found.expire(trio.current_time())
        return dict(sorted(found.records.items()))

    def __repr__(self) -> str:
        states = ", ".join(f"{node.host}: {node.state.value}" for node in self._state.nodes)
        last = f", last {api_name(self.log[-1].api_key)}" if self.log else ""
        return f"<ScriptedCluster {states}; {len(self.log)} requests{last}>"


def _check_function(name: str, function: object) -> None:
    """Raise :exc:`TypeError` unless this is a function of one argument."""
    if not callable(function):
        raise TypeError(f"{name} is not a function: {function!r}")
    check_takes(function, (None,), TypeError, name)


def _check_item(topic: str | None, partition: int | None) -> None:
    """Raise :exc:`TypeError` unless a response can have this topic and partition."""
    if not isinstance(topic, str | None):
        raise TypeError(f"topic must be a name, not {topic!r}")
    if not isinstance(partition, int | None):
        raise TypeError(f"partition must be a number, not {partition!r}")


def _check_offset(log: Partition, offset: int) -> None:
    """Raise :exc:`ValueError` unless the offset is in the log, or its end."""
    if not 0 <= offset <= log.end:
        raise ValueError(f"{log.topic}-{log.index} ends at {log.end}: no offset {offset} is there")


def _checked_partition(given: tuple[str, int]) -> tuple[str, int]:
    """Return the topic and the number of a partition.

    Raises:
        TypeError: ``given`` is something else, such as the name of a topic.
    """
    if isinstance(given, tuple | list) and len(given) == 2:
        topic, number = given
        if isinstance(topic, str) and isinstance(number, int):
            return topic, number
    raise TypeError(f"a partition is (topic, number), not {given!r}")
