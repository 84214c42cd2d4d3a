"""The metadata manager: what the cluster looks like, looked up once for all who ask, and kept fresh.

It alone writes the :class:`ClusterSnapshot`. Any broker can respond, so a broker that does not within a second is overtaken by
the next one. The bootstrap addresses are asked among them (see ``recovery``).
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import trio
from kafka.protocol.metadata import MetadataRequest, MetadataResponse

from .._net import decoding, reasons
from .._net.brokers import Brokers
from .._net.deadlines import within
from .._net.interrupts import interrupts_unwrapped
from .._net.retry import Retry
from .._net.singleflight import SingleFlight, StartSoon
from .._state.cluster import ClusterSnapshot, TopicInfo
from ..config import ClientConfig
from ..error_codes import ErrorCode
from ..errors import (
    AuthenticationError,
    BootstrapError,
    BrokerResponseError,
    KafkaConnectionError,
    ProtocolError,
    TrikafkaError,
    from_code,
    topic_error,
)
from ..types import Node, PartitionInfo, TopicPartition
from .missing_topics import MissingTopics
from .recovery import Recovery

T = TypeVar("T")
_STAGGER = 1.0
#: How long (seconds) a refresh waits after the brokers have refused who this client says it is: many attempts lock an account.
_REFUSED = 30.0
#: A topic has the partitions from 0 on: so many may be left out of a response, and no more.
_MOST_MISSING = 10_000
#: How many names of topics are kept that were only heard of.
_MOST_HEARD = 5_000
_UNKNOWN_TOPIC = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
_BROKER_NOT_AVAILABLE = ErrorCode.BROKER_NOT_AVAILABLE
_log = logging.getLogger("trikafka.metadata")


class Metadata:
    """Holds the snapshot, refreshes it on demand and by age, and asks questions that any broker can respond."""

    def __init__(self, config: ClientConfig, brokers: Brokers, start_soon: StartSoon) -> None:
        self._config, self._brokers = config, brokers
        self._recovery = Recovery(config, brokers)
        self._create_topics = bool(getattr(config, "allow_auto_create_topics", False))
        self._snapshot = ClusterSnapshot()
        self._wanted: set[str] = set()
        self._wants_all = False
        self._asked: set[str] = set()
        self._flying: frozenset[str] | None = None  # what the request under way asks for, if that is not everything
        self._under_way = False
        self._start_soon = start_soon
        self._flight = SingleFlight(start_soon, self._look_up)
        self._missing = MissingTopics(brokers, start_soon, self._heard_of)
        self._update_requested = trio.Event()
        self._changed = trio.Event()
        brokers.outages.when_lost(self.request_update)

    @property
    def snapshot(self) -> ClusterSnapshot:
        """The cluster as last seen."""
        return self._snapshot

    def want(self, topics: Iterable[str], *, everything: bool = False) -> None:
        """Set which topics every refresh asks for; ``everything``: all topics of the cluster (for patterns)."""
        self._wanted, self._wants_all = set(topics), everything

    def add_topic(self, topic: str) -> None:
        """Add a topic to those that every refresh asks for."""
        self._wanted.add(topic)

    def request_update(self) -> None:
        """Have the background task refresh soon."""
        self._update_requested.set()

    def learn_leaders(self, leaders: Mapping[TopicPartition, tuple[int, int]], nodes: Iterable[Node]) -> frozenset[TopicPartition]:
        """A broker said who leads instead of it, and where that is (KIP-951). Returns the partitions for which that is news."""
        seen, snapshot = self._snapshot, self._snapshot.with_leaders(leaders, {node.node_id: node for node in nodes})
        if snapshot is seen:
            return frozenset()
        self._replace(snapshot)
        return frozenset(tp for tp in leaders if snapshot.leader_epoch(tp) > seen.leader_epoch(tp))

    async def changed(self, seen: ClusterSnapshot) -> ClusterSnapshot:
        """Wait until the snapshot is newer than ``seen``; return it."""
        while self._snapshot.version <= seen.version:
            await self._changed.wait()
        return self._snapshot

    async def refresh(self, topics: Iterable[str] = ()) -> ClusterSnapshot:
        """Ask the cluster now, for the wanted topics and ``topics``; callers at the same time share the request.

        Raises a retriable error when no broker responded.
        """
        names = set(topics)
        if not self._under_way or self._lacks(names):
            self._asked |= names
        await self._fly(lambda: self._lacks(names))
        return self._snapshot

    async def leader(self, partition: TopicPartition) -> Node:
        """The node that leads ``partition``, looked up if it is not known. Raises a retriable error when there is none."""
        try:
            return self._snapshot.leader(partition)
        except TrikafkaError:
            return (await self.refresh([partition.topic])).leader(partition)

    async def topic(self, name: str) -> TopicInfo | None:
        """What is known of a topic, looked up if it is not; ``None`` when the cluster does not know it."""
        info = self._snapshot.topics.get(name)
        if info is None or info.error_code:
            info = (await self.refresh([name])).topics.get(name)
        if info is None or info.error_code == _UNKNOWN_TOPIC:
            self._missing.look_for_alike(name, next(iter(self._snapshot.nodes.values()), None))
            return None
        if info.error_code:
            raise topic_error(info.error_code, name, operation="Describe")
        return info

    def _heard_of(self, names: tuple[str, ...]) -> None:
        names = tuple(dict.fromkeys((*names, *self._snapshot.alike)))[:_MOST_HEARD]
        self._snapshot = replace(self._snapshot, alike=names)

    async def bootstrap(self) -> None:
        """Make the first contact. Raises :exc:`BootstrapError` with each address's cause when none of them responds."""
        names = self._names()
        responses, errors = await self._first_contact(names)
        if not responses:
            for error in errors:
                if isinstance(error, AuthenticationError):  # the other addresses are of no help
                    raise error
            reached = any(not isinstance(error, KafkaConnectionError) for error in errors)
            what = "no bootstrap address answered as a Kafka broker" if reached else "no bootstrap address could be reached"
            raise BootstrapError(f"{what}: {'; '.join(map(str, errors))}") from errors[0]
        for error in errors:
            _log.warning("a bootstrap address is of no use: %s", error)
        await self._take(responses[0], names)

    async def _first_contact(self, names: frozenset[str] | None) -> tuple[list[ClusterSnapshot], list[TrikafkaError]]:
        """Ask the bootstrap addresses. A cluster that has just started knows of no broker for a moment: it is waited for."""
        retry, ends = Retry(self._config), trio.current_time() + self._config.default_api_timeout
        while True:
            responses, errors = await self._first(self._recovery.addresses, lambda node: self._ask(node, names))
            refused = any(isinstance(error, AuthenticationError) for error in errors)
            starting = any(isinstance(error, BrokerResponseError) and error.code == _BROKER_NOT_AVAILABLE for error in errors)
            if responses or refused or not starting or trio.current_time() + (delay := retry.delay()) > ends:
                return responses, errors
            if retry.failures == 1:
                _log.info("%s; it is asked again for up to %g s", errors[-1], self._config.default_api_timeout)
            await trio.sleep(delay)

    async def ask_any(self, message: Callable[[], Any]) -> Any:
        """Send a request that any broker can respond; ``message`` makes it anew for each broker that is asked.

        Raises a broker's error when none responds, a retriable one if there is any.
        """
        return await self._any(lambda node: self._brokers.request(node, message()))

    async def _any(self, ask: Callable[[Node], Awaitable[T]]) -> T:
        recovery = self._recovery
        responses, errors = await self._first(recovery.order(self._snapshot.nodes.values()), ask, recovery.asked_for)
        if not responses and any(map(recovery.asked_for, errors)):
            responses, errors = await self._first(recovery.follow(), ask)
        if responses:
            recovery.responded()
            return responses[0]
        refused = (error for error in errors if isinstance(error, AuthenticationError))  # no other broker makes that good
        why = next(refused, next((error for error in errors if error.retriable), errors[-1]))
        recovery.failed(why)
        raise why

    async def run(self) -> None:
        """Refresh when the snapshot is stale or old; a failed refresh is tried again after a wait."""
        retry = Retry(self._config)
        while True:
            with trio.move_on_after(self._next_refresh()):
                await self._update_requested.wait()
            self._update_requested = trio.Event()
            try:
                await self._fly(lambda: self._lacks(self._wanted, everything=self._wants_all))
                retry.reset()
                await trio.sleep(self._config.retry_backoff_ms / 1000)  # a storm of errors is one refresh
            except AuthenticationError as error:
                _log.error("the brokers refuse this client: %s; it asks again after %g s", error, _REFUSED)
                self._update_requested.set()
                await trio.sleep(_REFUSED)
            except TrikafkaError as error:
                _log.debug("metadata refresh failed (%d in a row before): %s", retry.failures, error)
                self._update_requested.set()
                await retry.wait()

    def _next_refresh(self) -> float:
        """How long (seconds) the snapshot is good for: not long while a wanted topic does not exist."""
        topics = self._snapshot.topics
        missing = any(name not in topics or topics[name].error_code for name in self._wanted)
        return (self._config.retry_backoff_max_ms if missing else self._config.metadata_max_age_ms) / 1000

    async def _fly(self, lacks: Callable[[], bool]) -> None:
        """Have the next request made that does not lack what is wanted of it, and wait for that, or for the one under way."""
        while True:
            if self._recovery.last_error is not None:
                reasons.failed(self._recovery.last_error)  # until this one has come to something, that is why there is nothing
            if not lacks():
                break
            with contextlib.suppress(TrikafkaError):  # the next one has its own
                await self._flight()
        await self._flight()

    def _lacks(self, names: Iterable[str], *, everything: bool = False) -> bool:
        """Whether there is a request under way that does not ask for these topics."""
        return self._under_way and self._flying is not None and (everything or not self._flying.issuperset(names))

    async def _look_up(self) -> None:
        self._flying, self._under_way = self._names(), True
        names, self._asked = self._flying, set()
        try:
            await self._take(await self._any(lambda node: self._ask(node, names)), names)
        finally:
            self._under_way = False

    def _names(self) -> frozenset[str] | None:
        return None if self._wants_all else frozenset(self._wanted | self._asked)

    async def _ask(self, node: Node, names: frozenset[str] | None) -> ClusterSnapshot:
        topics = None if names is None else [MetadataRequest.MetadataRequestTopic(name=name) for name in sorted(names)]
        request = MetadataRequest(topics=topics, allow_auto_topic_creation=self._create_topics)
        response = await self._brokers.request(node, request)
        if response.error_code:
            raise from_code(response.error_code, f"metadata from {node}")
        if not response.brokers:  # it has just started; what is known already is better
            raise from_code(_BROKER_NOT_AVAILABLE, f"{node} does not know of any broker yet")
        return await _read_checked(response, node, None if names is None else len(names))

    async def _take(self, known: ClusterSnapshot, names: frozenset[str] | None) -> None:
        seen: ClusterSnapshot | None = None
        while seen is not self._snapshot:  # a broker may have said who leads meanwhile
            seen = self._snapshot
            keep = frozenset(self._wanted) if names is not None else frozenset()
            count = _partitions(known.topics.values()) + _partitions(seen.topics.values())
            updated, remains = await decoding.worked_out(count, partial(_updated, seen, known, keep))
        self._replace(updated)
        if len(remains) >= decoding.MANY:
            decoding.free_after(seen, remains, self._start_soon)
        missing = {name for name in self._wanted if name in known.topics and known.topics[name].error_code == _UNKNOWN_TOPIC}
        self._missing.tell(missing, known)

    def _replace(self, snapshot: ClusterSnapshot) -> None:
        self._snapshot = snapshot
        self._brokers.keep_only(frozenset(snapshot.nodes.values()))
        changed, self._changed = self._changed, trio.Event()
        changed.set()

    async def _first(
        self, nodes: list[Node], ask: Callable[[Node], Awaitable[T]], ends: Callable[[TrikafkaError], bool] = lambda error: False
    ) -> tuple[list[T], list[TrikafkaError]]:
        """Ask the nodes one after the other, a slow one overlapped by the next after a second; the first response wins.

        Returns the response, if there is one, and the errors. An error that ``ends`` it is the last.
        """
        responses: list[T] = []
        errors: list[TrikafkaError] = []
        foreign: list[Exception] = []  # the client was closed meanwhile; a bug
        limit = self._config.request_timeout

        @trio.lowlevel.enable_ki_protection
        async def attempt(node: Node, done: trio.Event) -> None:
            try:
                responses.append(await within(str(node), limit, lambda: ask(node)))
                nursery.cancel_scope.cancel()
            except TrikafkaError as error:
                errors.append(error)
                reasons.failed(error)
                if ends(error):
                    nursery.cancel_scope.cancel()
            except Exception as error:
                foreign.append(error)
                nursery.cancel_scope.cancel()
            finally:
                done.set()

        with interrupts_unwrapped():
            async with trio.open_nursery() as nursery:
                for node in nodes:
                    done = trio.Event()
                    nursery.start_soon(attempt, node, done)
                    with trio.move_on_after(_STAGGER):
                        await done.wait()
                    while decoding.busy() and not done.is_set():  # a large response is there: another one would be of no help
                        with trio.move_on_after(_STAGGER):
                            await done.wait()
                    if responses:
                        break
        if foreign:
            raise foreign[0]
        return responses, errors


async def read_metadata(response: MetadataResponse) -> ClusterSnapshot:
    """Turn a Metadata response into a snapshot, and use it up. Raises :exc:`ProtocolError` for one that cannot be."""
    return await _read_checked(response, "a broker", None)


async def _read_checked(response: MetadataResponse, node: Node | str, most_topics: int | None) -> ClusterSnapshot:
    """In a thread if it is large."""

    def read() -> ClusterSnapshot:
        _check(response, node, most_topics)
        snapshot = _read(response)
        for topic in response.topics:
            decoding.use_up(topic.partitions)
        decoding.use_up(response.topics)
        return snapshot

    return await decoding.worked_out(_partitions(response.topics or ()), read)


def _updated(seen: ClusterSnapshot, known: ClusterSnapshot, keep: frozenset[str]) -> tuple[ClusterSnapshot, list[object]]:
    """The newer snapshot, and what the others were made of: the topics behind the partitions that they hold."""
    topics = list(seen.topics.values())
    parts = [part for topic in topics for part in topic.partitions.values()]
    return seen.updated(known, keep), [*parts, *topics, *known.topics.values()]


def _partitions(topics: Iterable[Any]) -> int:
    return sum(len(topic.partitions or ()) + 1 for topic in topics)


def _check(response: MetadataResponse, node: Node | str, most_topics: int | None) -> None:
    """Raise :exc:`ProtocolError`, retriable, for what no cluster can look like: believed, it would cost memory and time."""
    what = ""
    if most_topics is not None and len(response.topics or ()) > most_topics:
        what = f"{len(response.topics)} topics, and was asked for {most_topics}"
    for broker in response.brokers or ():
        if not broker.host or broker.node_id < 0 or not 0 < broker.port < 65536:
            what = f"a broker {broker.node_id} at {broker.host!r}:{broker.port}"
    for topic in response.topics or ():
        if topic.partitions is None:
            what = f"no partitions of topic {topic.name!r}"
        for part in topic.partitions or ():
            if not 0 <= part.partition_index < len(topic.partitions) + _MOST_MISSING:
                what = f"a partition {part.partition_index} of topic {topic.name!r}, which has {len(topic.partitions)}"
            if part.replica_nodes is None or part.isr_nodes is None:
                what = f"no replicas of {topic.name}-{part.partition_index}"
    if response.topics is None:
        what = "no list of topics"
    if what:
        error = ProtocolError(f"the metadata of {node} cannot be: it names {what}")
        error.retriable = True  # another broker, or this one later, may know better
        raise error


def _read(response: MetadataResponse) -> ClusterSnapshot:
    nodes = {broker.node_id: Node(broker.node_id, broker.host, broker.port, broker.rack) for broker in response.brokers}
    topics = {topic.name: _read_topic(topic) for topic in response.topics if topic.name is not None}
    controller = response.controller_id if response.controller_id is not None and response.controller_id >= 0 else None
    return ClusterSnapshot(0, response.cluster_id, controller, nodes, topics)


def _read_topic(topic: Any) -> TopicInfo:
    partitions = {
        part.partition_index: PartitionInfo(
            topic.name,
            part.partition_index,
            part.leader_id if part.leader_id >= 0 else None,
            part.leader_epoch if part.leader_epoch is not None and part.leader_epoch >= 0 else None,
            tuple(part.replica_nodes),
            tuple(part.isr_nodes),
        )
        for part in topic.partitions
    }
    topic_id = str(topic.topic_id) if topic.topic_id is not None else None
    return TopicInfo(topic.name, topic.error_code, topic_id, bool(topic.is_internal), partitions)
