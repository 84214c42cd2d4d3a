"""The metadata manager: the client's one view of the cluster.

The manager looks the cluster up once for all callers that ask at the same time, and keeps the view
fresh. Nothing else writes the :class:`ClusterSnapshot`. Any broker can answer a Metadata request,
so a broker that has not responded within a second is overtaken by the next one, and sooner where a
caller is in a hurry. The bootstrap addresses are asked among the brokers (see ``recovery``).
"""

from __future__ import annotations

import contextlib
import logging
import math
import socket
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import trio
from kafka.protocol.admin import DescribeClusterRequest
from kafka.protocol.metadata import MetadataRequest

from ..._net import decoding, reasons
from ..._net.addresses import impossible, is_possible
from ..._net.brokers import Brokers, Purpose
from ..._net.deadlines import within
from ..._net.interrupts import interrupts_unwrapped
from ..._net.refusals import REFUSED_FOR
from ..._net.reminders import Reminder
from ..._net.retry import Retry
from ..._net.session import CredentialsUnavailableError
from ..._net.singleflight import SingleFlight, StartSoon
from ...config import AdminConfig, ClientConfig
from ...error_codes import ErrorCode
from ...errors import (
    AuthenticationError,
    BootstrapError,
    BrokerResponseError,
    ConfigurationError,
    HandshakeError,
    KafkaConnectionError,
    TrikafkaError,
    UnsupportedVersionError,
    from_code,
    topic_error,
)
from ...interfaces import ClusterSnapshot, TopicInfo
from ...types import Node, TopicPartition
from .metadata_responses import count_partitions, read_metadata
from .missing_topics import MissingTopics
from .recovery import Recovery

T = TypeVar("T")
#: The longest time (seconds) for which a node that has not responded is the only one asked.
_STAGGER = 1.0
#: In a hurry, a node gets this multiple of the time of the last response, and this many seconds at
#: least.
_TIMES_SLOWER = 10.0
_SHORTEST_STAGGER = 0.1
#: The longest pause (seconds) after refusals in a row that may be over soon.
_LONGEST_REFUSED = 10.0
#: How many topic names are kept that are known from other responses only, to suggest a similar
#: name.
_MOST_HEARD = 5_000
_UNKNOWN_TOPIC = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
_BROKER_NOT_AVAILABLE = ErrorCode.BROKER_NOT_AVAILABLE
#: In DescribeCluster: describe the controllers; and the version that has this (KIP-919).
CONTROLLERS = 2
_SINCE_ENDPOINT_TYPE = 1
#: The purposes of connections to the leader of a partition, and of those that any broker serves.
_BY_LEADER: tuple[Purpose, ...] = ("general", "fetch", "produce", "telemetry")
_log = logging.getLogger("trikafka.metadata")


class Metadata:
    """The owner of the cluster snapshot.

    It refreshes the snapshot on demand and by age, and sends requests that any broker can answer.
    """

    def __init__(self, config: ClientConfig, brokers: Brokers, start_soon: StartSoon) -> None:
        self._config = config
        self._brokers = brokers
        self._recovery = Recovery(config, brokers)
        self._of_controllers = isinstance(config, AdminConfig) and config.asks_controllers
        self._create_topics = bool(getattr(config, "allow_auto_create_topics", False))
        #: The cluster as last seen.
        self.snapshot = ClusterSnapshot()
        self._wanted: set[str] = set()
        self._wants_all = False
        self._asked: set[str] = set()
        # The topics of the last request; ``None`` if it asks for all topics.
        self._flying: frozenset[str] | None = None
        self._under_way = False
        self._unanswered_since: float | None = None
        # The calls of `refresh_quickly` under way, and the time (seconds) of the last response.
        self._hurried = 0
        self._took = math.inf
        self._rests_until = -math.inf  # the next quick refresh waits until then
        # The head start of the node that a refresh under way has asked last.
        self._head = trio.CancelScope()
        # By broker: when another broker was last seen to have taken over one of its partitions.
        self._lost_leadership: dict[int, float] = {}
        brokers.outages.when_silent(self._silent)
        self._start_soon = start_soon
        self._flight = SingleFlight(start_soon, self._look_up)
        self._missing = MissingTopics(brokers, start_soon, self._heard_of)
        self._update_requested = trio.Event()
        self._changed = trio.Event()
        brokers.outages.when_lost(self.request_update)
        brokers.misrouting.when_refused(self._misrouted)

    @property
    def unanswered_since(self) -> float | None:
        """The time since which no Metadata request got a response; ``None`` if the last one did."""
        return self._unanswered_since

    @property
    def last_error(self) -> TrikafkaError | None:
        """The reason why no broker has responded; ``None`` while there was no failure."""
        return self._recovery.last_error

    def want(self, topics: Iterable[str], *, everything: bool = False) -> None:
        """Set the topics that every refresh asks for.

        Args:
            topics: The names; they replace those of earlier calls.
            everything: Ask for all topics of the cluster, which a pattern subscription needs.
        """
        self._wanted = set(topics)
        self._wants_all = everything

    def add_topic(self, topic: str) -> None:
        """Add a topic to those that every refresh asks for."""
        self._wanted.add(topic)

    def request_update(self) -> None:
        """Have the background task refresh soon."""
        self._update_requested.set()

    def learn_leaders(
        self, leaders: Mapping[TopicPartition, tuple[int, int]], nodes: Iterable[Node]
    ) -> frozenset[TopicPartition]:
        """Apply the leaders that a broker named when it refused a request (KIP-951).

        Returns the partitions whose leader epoch is newer than the one known before.
        """
        seen = self.snapshot
        snapshot = self.snapshot.with_leaders(leaders, {node.node_id: node for node in nodes})
        if snapshot is seen:
            return frozenset()
        self._replace(snapshot)
        return frozenset(tp for tp in leaders if snapshot.leader_epoch(tp) > seen.leader_epoch(tp))

    async def changed(self, seen: ClusterSnapshot) -> ClusterSnapshot:
        """Wait until the snapshot is newer than ``seen``; return it."""
        while self.snapshot.version <= seen.version:
            await self._changed.wait()
        return self.snapshot

    async def refresh(self, topics: Iterable[str] = ()) -> ClusterSnapshot:
        """Ask the cluster now, for the wanted topics and ``topics``, and return the new snapshot.

        Callers at the same time share one request. Raises a retriable error when no broker
        responded. A cancelled caller does not cancel the shared request.
        """
        names = set(topics)
        if not self._under_way or self._lacks(names):
            self._asked |= names
        await self._fly(lambda: self._lacks(names))
        return self.snapshot

    async def refresh_quickly(self) -> None:
        """Refresh, and soon ask another broker if one does not respond; raises as :meth:`refresh`.

        For callers that must know of a new leader at once, and ask again and again. Where the
        metadata are large, each response keeps a processor busy. So after a response a refresh
        waits for as long as that one took, a second at most.
        """
        await trio.sleep_until(self._rests_until)
        self._hurried += 1
        # A refresh that is under way was perhaps begun without a hurry.
        soon = trio.current_time() + self._head_start()
        self._head.deadline = min(self._head.deadline, soon)
        try:
            await self.refresh()
        finally:
            self._hurried -= 1

    async def leader(self, partition: TopicPartition) -> Node:
        """Return the node that leads ``partition``; look the topic up if the leader is not known.

        Raises a retriable error when the partition has no leader.
        """
        try:
            return self.snapshot.leader(partition)
        except TrikafkaError:
            return (await self.refresh([partition.topic])).leader(partition)

    async def topic(self, name: str) -> TopicInfo | None:
        """Return what is known of a topic; look the topic up if it is not known.

        Returns ``None`` when the cluster does not have the topic, and raises any other error of the
        topic.
        """
        info = self.snapshot.topics.get(name)
        if info is None or info.error_code:
            info = (await self.refresh([name])).topics.get(name)
        if info is None or info.error_code == _UNKNOWN_TOPIC:
            self._missing.look_for_alike(name, next(iter(self.snapshot.nodes.values()), None))
            return None
        if info.error_code:
            raise topic_error(info.error_code, name, operation="Describe")
        return info

    def _heard_of(self, names: tuple[str, ...]) -> None:
        names = tuple(dict.fromkeys((*names, *self.snapshot.alike)))[:_MOST_HEARD]
        self.snapshot = replace(self.snapshot, alike=names)

    async def bootstrap(self) -> None:
        """Make the first contact with the cluster.

        Raises:
            BootstrapError: No bootstrap address responded; the message has the cause for each
                address.
            AuthenticationError: A broker refused the credentials. Other addresses would refuse them
                too.
            ConfigurationError: The function ``dial`` has a bug, or raised this error.
            HandshakeError: A broker was reached, but the client's own credentials were not
                available.
        """
        names = self._names()
        responses, errors = await self._first_contact(names)
        if not responses:
            for error in errors:
                # The other addresses would refuse the credentials too. A ConfigurationError is the
                # fault of this program, such as a bug in its `dial`, and of no broker.
                if isinstance(error, AuthenticationError | ConfigurationError):
                    raise error
                # A broker was reached; the fault lies with the source of the credentials.
                if isinstance(error, CredentialsUnavailableError):
                    raise HandshakeError(str(error)) from error
            reached = any(not isinstance(error, KafkaConnectionError) for error in errors)
            what = (
                "no bootstrap address answered as a Kafka broker"
                if reached
                else "no bootstrap address could be reached"
            )
            raise BootstrapError(f"{what}: {'; '.join(map(str, errors))}") from errors[0]
        for error in errors:
            _log.warning("a bootstrap address cannot be used: %s", error)
        await self._apply(responses[0], names)

    async def _first_contact(
        self, names: frozenset[str] | None
    ) -> tuple[list[ClusterSnapshot], list[TrikafkaError]]:
        """Ask the bootstrap addresses; return the responses and the errors.

        A cluster that has just started knows of no broker for a moment. In that case the addresses
        are asked again, for up to ``default_api_timeout_ms``. If no name can be resolved, as before
        the DNS of a new pod is ready, they are asked again for up to
        ``bootstrap_resolve_timeout_ms``.
        """
        retry = Retry(self._config)
        began = trio.current_time()
        while True:
            responses, errors = await self._first(
                self._recovery.addresses, lambda node: self._ask(node, names)
            )
            refused = any(isinstance(error, AuthenticationError) for error in errors)
            starting = any(
                isinstance(error, BrokerResponseError) and error.code == _BROKER_NOT_AVAILABLE
                for error in errors
            )
            patience = self._config.default_api_timeout if starting else 0.0
            # No address has an IP address (yet).
            if all(isinstance(error.__cause__, socket.gaierror) for error in errors):
                patience = self._config.bootstrap_resolve_timeout_ms / 1000
            delay = retry.delay()
            if responses or refused or trio.current_time() + delay > began + patience:
                return responses, errors
            if retry.failures == 1:
                _log.info("%s; it is asked again for up to %g s", errors[-1], patience)
            await trio.sleep(delay)

    async def ask_any(self, message: Callable[[], Any]) -> Any:
        """Send a request that any broker can answer, and return its response.

        ``message`` makes a new message for each broker that is asked. When no broker responds, one
        of the errors is raised: an authentication error first, then that the brokers are too old,
        then a retriable one.
        """
        return await self._any(lambda node: self._brokers.request(node, message()))

    async def _any(self, ask: Callable[[Node], Awaitable[T]], *, refreshes: bool = False) -> T:
        # The recovery decides the order: known brokers first, bootstrap addresses in between or at
        # the end. A broker may refuse with REBOOTSTRAP_REQUIRED (KIP-1102). That error ends the
        # round at once: the broker has just called the client's view of the cluster obsolete, so
        # the known brokers left in the list are not asked. A second round then asks the addresses
        # that `follow()` returns, and its result is the result of the request.
        #
        # A misrouted connection (KIP-1242) means the same: an address of the snapshot is no longer
        # that broker's, and other brokers of the snapshot may still confirm it. So they are not
        # asked.
        recovery = self._recovery
        first = (
            recovery.follow()
            if recovery.is_misrouted
            else recovery.order(self.snapshot.nodes.values())
        )
        responses, errors = await self._first(first, ask, recovery.asked_for, refreshes=refreshes)
        if not responses and any(map(recovery.asked_for, errors)):
            responses, errors = await self._first(recovery.follow(), ask)
        if responses:
            recovery.responded()
            return responses[0]
        # No other broker would accept the same credentials, and the brokers that are down are
        # hardly of a newer release than those that lack the request: these errors are the ones to
        # raise.
        refused = (
            error
            for error in sorted(
                errors, key=lambda error: isinstance(error, UnsupportedVersionError)
            )
            if isinstance(error, AuthenticationError | UnsupportedVersionError)
        )
        why = next(refused, next((error for error in errors if error.retriable), errors[-1]))
        recovery.failed(why)
        raise why

    async def run(self) -> None:
        """Refresh when the snapshot is stale or old; retry a failed refresh after a wait."""
        retry = Retry(self._config)
        reminder, refusal = Reminder(), None
        pause = 0.0  # after the last refusal in a row
        while True:
            with trio.move_on_after(self._next_refresh()):
                await self._update_requested.wait()
            self._update_requested = trio.Event()
            try:
                await self._fly(lambda: self._lacks(self._wanted, everything=self._wants_all))
                retry.reset()
                reminder.forget()
                pause = 0.0
                # Errors of many partitions at the same time lead to one refresh.
                await trio.sleep(self._config.retry_backoff_ms / 1000)
            except AuthenticationError as error:
                least = self._brokers.pause_after(error)
                pause = max(least, min(2 * pause, _LONGEST_REFUSED))
                now, kind = trio.current_time(), (type(error), error.code)
                if pause >= REFUSED_FOR or reminder.is_due(now) or kind != refusal:
                    reminder.logged(now)
                    refusal = kind
                    _log.error(
                        "the brokers refuse this client: %s; it asks again after %g s", error, pause
                    )
                self._update_requested.set()
                await trio.sleep(pause)
            except TrikafkaError as error:
                _log.debug(
                    "metadata refresh failed (%d in a row before): %s", retry.failures, error
                )
                pause = 0.0
                self._update_requested.set()
                await retry.wait()

    def _misrouted(self) -> None:
        self._recovery.misrouted()
        self.request_update()

    def _silent(self, node: Node) -> None:
        """Leave a broker whose silence is noticed only after its partitions have moved.

        `_replace` handles the usual order: silence first, then a snapshot with new leaders. Here
        the new leaders were known first. Only connections whose unanswered request is older than
        the move are closed (``begun_by``).
        """
        if (when := self._lost_leadership.get(node.node_id)) is not None:
            self._brokers.leave(node, _BY_LEADER, begun_by=when)

    def _next_refresh(self) -> float:
        """Return for how many seconds the snapshot remains good.

        The time is short while a wanted topic does not exist, and while an unreachable broker leads
        a partition of a wanted topic: another broker may take over soon.
        """
        topics = self.snapshot.topics
        missing = any(name not in topics or topics[name].error_code for name in self._wanted)
        soon = missing or self._leads(
            {node.node_id for node in self._brokers.outages.unreachable()}
        )
        return (
            self._config.retry_backoff_max_ms if soon else self._config.metadata_max_age_ms
        ) / 1000

    def _leads(self, nodes: set[int]) -> bool:
        """Return whether one of these brokers leads a partition of a wanted topic."""
        # There is no such broker, or no reachable broker left to ask.
        if not nodes or self._brokers.outages.all_away:
            return False
        topics = self.snapshot.topics.values()
        wanted = (topic for topic in topics if self._wants_all or topic.name in self._wanted)
        return any(part.leader in nodes for topic in wanted for part in topic.partitions.values())

    async def _fly(self, lacks: Callable[[], bool]) -> None:
        """Wait for a request that covers the wanted topics.

        Joins the request in flight if its topics suffice. Otherwise waits until that request ends
        and starts the next one.
        """
        while True:
            if self._recovery.last_error is not None:
                # Until this request has a result, the last error explains why there is no response.
                reasons.failed(self._recovery.last_error)
            if not lacks():
                break
            # The next request reports its own error.
            with contextlib.suppress(TrikafkaError):
                await self._flight()
        await self._flight()

    def _lacks(self, names: Iterable[str], *, everything: bool = False) -> bool:
        """Return whether the request in flight does not ask for these topics."""
        return (
            self._under_way
            and self._flying is not None
            and (everything or not self._flying.issuperset(names))
        )

    async def _look_up(self) -> None:
        self._flying = self._names()
        self._under_way = True
        names = self._flying
        self._asked = set()
        if self._unanswered_since is None:
            self._unanswered_since = trio.current_time()
        try:
            known = await self._any(lambda node: self._ask(node, names), refreshes=True)
            await self._apply(known, names)
            self._unanswered_since = None
        finally:
            self._under_way = False

    def _head_start(self) -> float:
        """Return for how long (seconds) a refresh asks one node alone."""
        # A small cluster responds in milliseconds. A frozen broker may then not keep a client in a
        # hurry from the news that another one leads: where several are frozen, each would cost a
        # second. Where the metadata are large, each response takes long, and asking more brokers
        # would only add load.
        if not self._hurried:
            return _STAGGER
        return max(_SHORTEST_STAGGER, min(_STAGGER, _TIMES_SLOWER * self._took))

    def _names(self) -> frozenset[str] | None:
        return None if self._wants_all else frozenset(self._wanted | self._asked)

    async def _ask(self, node: Node, names: frozenset[str] | None) -> ClusterSnapshot:
        began = trio.current_time()
        snapshot = await self._asked_node(node, names)
        now = trio.current_time()
        self._took = now - began
        self._rests_until = now + min(self._took, _STAGGER)
        return snapshot

    async def _asked_node(self, node: Node, names: frozenset[str] | None) -> ClusterSnapshot:
        if self._of_controllers:
            return await self._ask_controller(node)
        topics = (
            None
            if names is None
            else [MetadataRequest.MetadataRequestTopic(name=name) for name in sorted(names)]
        )
        request = MetadataRequest(topics=topics, allow_auto_topic_creation=self._create_topics)
        response = await self._brokers.request(node, request)
        if response.error_code:
            raise from_code(response.error_code, f"metadata from {node}")
        # The broker has just started. The snapshot at hand is better than an empty one.
        if not response.brokers:
            raise from_code(_BROKER_NOT_AVAILABLE, f"{node} does not know of any broker yet")
        return await read_metadata(response, node, names)

    async def _ask_controller(self, node: Node) -> ClusterSnapshot:
        """Return the controllers as nodes, without topics: controllers describe none to clients."""
        request = DescribeClusterRequest(
            min_version=_SINCE_ENDPOINT_TYPE, endpoint_type=CONTROLLERS
        )
        response = await self._brokers.request(node, request)
        if response.error_code:
            raise from_code(
                response.error_code,
                f"{node}, asked for the controllers (bootstrap_controllers)",
                operation="Describe",
            )
        if not response.brokers:
            raise from_code(_BROKER_NOT_AVAILABLE, f"{node} does not know of any controller yet")
        nodes = {
            each.broker_id: Node(each.broker_id, each.host, each.port, each.rack)
            for each in response.brokers
        }
        for controller in nodes.values():
            if not is_possible(controller):
                raise impossible(controller, f"the list of controllers of {node}")
        active = response.controller_id if response.controller_id in nodes else None
        return ClusterSnapshot(0, response.cluster_id, active, nodes, {})

    async def _apply(self, known: ClusterSnapshot, names: frozenset[str] | None) -> None:
        # Merging two large snapshots runs in a thread, so the event loop goes on meanwhile, and a
        # Fetch or Produce response may name a new leader (`learn_leaders`, KIP-951). To store the
        # merged snapshot then would undo that newer leader. So the loop compares the snapshot it
        # merged with the current one, and merges again until nothing changed in between. `_replace`
        # follows in the same step as that comparison.
        seen: ClusterSnapshot | None = None
        while seen is not self.snapshot:
            seen = self.snapshot
            keep = frozenset(self._wanted) if names is not None else frozenset()
            count = count_partitions(known.topics.values()) + count_partitions(seen.topics.values())
            updated, remains = await decoding.worked_out(
                count, partial(_updated, seen, known, keep, trio.current_time())
            )
        self._replace(updated)
        if len(remains) >= decoding.MANY:
            decoding.free_after(seen, remains, self._start_soon)
        missing = {
            name
            for name in self._wanted
            if name in known.topics and known.topics[name].error_code == _UNKNOWN_TOPIC
        }
        self._missing.log_new(missing, known)

    def _replace(self, snapshot: ClusterSnapshot) -> None:
        # A broker that does not respond may be frozen, not dead: its connections stay open, and the
        # requests in flight on them would wait for `request_timeout_ms`. Once another broker has
        # taken over one of its partitions, a response of the frozen broker for it is worthless. So
        # its connections to leaders (`_BY_LEADER`) are closed: what is in flight fails as on a lost
        # connection, and goes to the new leader.
        #
        # Both facts are needed. A broker that is merely slow still leads its partitions and keeps
        # its connections. A broker that responds, but has lost a partition, says so itself
        # (NOT_LEADER_OR_FOLLOWER). The two facts arrive in either order: silence first is handled
        # here, the move first in `_silent`, for which `_lost_leadership` keeps the times.
        seen = self.snapshot
        self.snapshot = snapshot
        left = _former_leaders(seen, snapshot)
        self._lost_leadership = {
            number: when
            for number, when in self._lost_leadership.items()
            if number in snapshot.nodes
        }
        self._lost_leadership.update(dict.fromkeys(left, trio.current_time()))
        for node in self._brokers.outages.unreachable():
            if node.node_id in left:
                self._brokers.leave(node, _BY_LEADER)
        self._brokers.misrouting.cluster_is(snapshot.cluster_id)
        self._brokers.keep_only(frozenset(snapshot.nodes.values()))
        changed = self._changed
        self._changed = trio.Event()
        changed.set()

    async def _first(
        self,
        nodes: list[Node],
        ask: Callable[[Node], Awaitable[T]],
        ends: Callable[[TrikafkaError], bool] = lambda error: False,
        *,
        refreshes: bool = False,
    ) -> tuple[list[T], list[TrikafkaError]]:
        """Ask the nodes in order until one responds.

        A node that has not responded within a second is overlapped by the next one, and sooner if
        this ``refreshes`` for a caller in a hurry. The first response wins. Returns the response,
        if there is one, and the errors. An error for which ``ends`` returns true ends the round and
        is the last of the list.
        """
        responses: list[T] = []
        errors: list[TrikafkaError] = []
        # A programming error, or the client was closed meanwhile: raised as it is.
        foreign: list[Exception] = []
        limit = self._config.request_timeout

        @trio.lowlevel.enable_ki_protection
        async def attempt(node: Node, done: trio.Event) -> None:
            try:
                responses.append(await within(str(node), limit, lambda: ask(node)))
                self._recovery.in_time(node)
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

        # One node after the other, each with a head start of at most a second. One strictly after
        # the other would be too slow: a node that is down may take the whole time of a connection's
        # setup. All at once would multiply the load of every refresh by the number of brokers.
        # While a large response is being decoded no further node is asked: a broker has responded
        # by then, and another response would only wait for the same thread.
        with interrupts_unwrapped():
            async with trio.open_nursery() as nursery:
                for node in nodes:
                    done = trio.Event()
                    nursery.start_soon(attempt, node, done)
                    with trio.move_on_after(self._head_start() if refreshes else _STAGGER) as head:
                        if refreshes:
                            self._head = head
                        await done.wait()
                    # A large response is being decoded. To ask another broker would not bring it
                    # sooner.
                    while decoding.busy() and not done.is_set():
                        with trio.move_on_after(_STAGGER):
                            await done.wait()
                    if responses:
                        break
                    if not done.is_set():
                        self._recovery.overtaken(node)
        if foreign:
            raise foreign[0]
        return responses, errors


def _updated(
    seen: ClusterSnapshot, known: ClusterSnapshot, keep: frozenset[str], now: float
) -> tuple[ClusterSnapshot, list[object]]:
    """Return the newer snapshot, and the objects that the older ones were made of.

    The caller frees those objects in portions. The partitions come before the topics that hold
    them.
    """
    topics = list(seen.topics.values())
    parts = [part for topic in topics for part in topic.partitions.values()]
    return seen.updated(known, keep, now), [*parts, *topics, *known.topics.values()]


def _former_leaders(before: ClusterSnapshot, after: ClusterSnapshot) -> set[int]:
    """Return the brokers that led a partition which another broker leads now."""
    found: set[int] = set()
    for name, topic in after.topics.items():
        known = before.topics.get(name)
        if known is None or known is topic:
            continue
        for number, part in topic.partitions.items():
            old = known.partitions.get(number)
            if old is not None and old.leader is not None and part.leader not in (None, old.leader):
                found.add(old.leader)
    return found
