"""The fetch manager of a share consumer (KIP-932): one task and one session for each broker.

A broker's session serves one request at a time, whether it fetches, acknowledges or renews locks,
and ends with its connection. The rules of sessions are in :mod:`trikafka._state.share.session`.
This manager decides when which request goes out:

* A fetch goes out while the consumer has room for more records. It carries the acknowledgements
  that wait.
* Acknowledgements that have waited for ``ack_linger_ms`` go out alone, in a ShareAcknowledge.
* So do renewals, at half the time of a lock.

A request keeps acknowledgements of records that were acquired together for up to 50 ms, if the
program is about to decide the others, too. After a crash such records are delivered again, as are
those whose acknowledgements were waiting for a response to the request before.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator
from contextlib import suppress
from functools import partial
from typing import Literal
from uuid import UUID

import trio

from ..._net.brokers import Brokers
from ..._net.connection import Connection
from ..._net.leader_hints import learn_leaders
from ..._net.retry import Retry
from ..._net.signal import Signal
from ..._net.singleflight import StartSoon
from ..._state.share.acquired import AcquiredRecords, Holdings
from ..._state.share.assignment import ShareAssignment
from ..._state.share.buffer import ShareBuffer
from ..._state.share.room import FetchRoom
from ..._state.share.session import ShareRequest, Slice
from ..._wire.compression import Codecs
from ..._wire.releases import explained_refusal
from ..._wire.share import (
    WITH_RENEWALS,
    AcknowledgedPartition,
    AckType,
    FetchLimits,
    ShareAcknowledgeMessage,
    ShareAcknowledgeResponse,
    ShareFetchedPartition,
    ShareFetchMessage,
    ShareFetchResponse,
    SharePartition,
)
from ...config import ShareConsumerConfig
from ...errors import (
    DamagedResponseError,
    ErrorCode,
    KafkaConnectionError,
    ShareSessionError,
    TrikafkaError,
    from_code,
)
from ...errors.copies import again
from ...errors.peer_text import peer_text
from ...errors.refusals import is_unexplained
from ...interfaces import MetadataManager
from ...types import Node, TopicPartition
from ..cluster.metadata import Metadata
from .acquiring import Piece, Pieces, is_quick, pieces_of
from .broker import URGENT, Arrived, ShareBroker

_log = logging.getLogger("trikafka.share")
#: After records with a shorter lock (seconds), the next fetch waits. Such records are lost before a
#: program can work on them, and the broker delivers them again at once.
_SHORT_LOCK = 0.1
#: The most threads that decode large responses at once.
_THREADS = 4
#: The errors by which a broker says that it does not lead the partition any more.
_LEADS_NO_MORE = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH})
#: The errors after which a broker has no locks of the partition. It discards them when it does not
#: lead the partition, or when the state of the group was deleted or taken over (Kafka's
#: SharePartitionManager). The next member that fetches gets these records.
_HAS_NO_LOCKS = _LEADS_NO_MORE | {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.GROUP_ID_NOT_FOUND,
    ErrorCode.FENCED_STATE_EPOCH,
}
#: What the task of a broker does next: fetch, acknowledge, or close the session.
_Step = Literal["fetch", "acknowledge", "close"]


class ShareFetcher:
    """The tasks that fetch, acknowledge and renew."""

    def __init__(
        self,
        config: ShareConsumerConfig,
        brokers: Brokers,
        metadata: MetadataManager,
        assignment: ShareAssignment,
        member_id: str,
        buffer: ShareBuffer,
        holdings: Holdings,
        wake: Signal,
        deliver: Signal,
        start_soon: StartSoon,
        codecs: Codecs,
    ) -> None:
        self._config = config
        self._connections = brokers
        self._metadata = metadata
        # A plugin's manager has no quicker way.
        self._refresh: Callable[[], Awaitable[object]] = (
            metadata.refresh_quickly if isinstance(metadata, Metadata) else metadata.refresh
        )
        self._assignment = assignment
        self._member_id = member_id
        self._buffer = buffer
        self._holdings = holdings
        self._wake = wake
        self._deliver = deliver
        self._start_soon = start_soon
        self._codecs = codecs
        # Of threads that decode. The program's own threads may have used up Trio's default limiter.
        self._decoding = trio.CapacityLimiter(_THREADS)
        self._brokers: dict[int, ShareBroker] = {}
        # What the partitions were last divided by: the metadata's version and the assignment.
        self._divided: tuple[int, frozenset[SharePartition]] | None = None
        self._names: dict[UUID, str] = {}
        self._unresolved = False  # an assigned partition has no known leader
        self._room = FetchRoom(
            buffer,
            holdings,
            most=config.max_in_flight,
            most_bytes=config.fetch_buffer_bytes,
            fetch_bytes=config.fetch_max_bytes,
            acquire=config.acquire,
            max_wait_ms=config.fetch_max_wait_ms,
            linger_ms=config.ack_linger_ms,
        )
        self._resting = 0  # tasks that wait for something to do
        self._settled = Signal()
        self._lock_scope = trio.CancelScope()
        self._closing = False
        #: The error in the responses of a broker from which something is wanted.
        self.last_error: TrikafkaError | None = None

    # --- tasks ---

    async def run(self) -> None:
        """Divide the assignment among the brokers' tasks, until cancelled."""
        self._start_soon(self._follow_metadata)
        self._start_soon(self._watch_locks)
        self._start_soon(self._watch_leaders)
        retry = Retry(self._config)
        while True:
            self._divide()
            if self._unresolved:
                # The coordinator names a new partition once. The metadata may come later.
                self._metadata.request_update()
                with trio.move_on_after(retry.delay()):
                    await self._wake.wait()
            else:
                retry.reset()
                await self._wake.wait()

    async def _follow_metadata(self) -> None:
        seen = self._metadata.snapshot
        while True:
            seen = await self._metadata.changed(seen)
            self._wake.notify()

    async def _watch_locks(self) -> None:
        """Lose locks at their time, also while the tasks of the brokers wait."""
        while True:
            soonest = min(
                (broker.session.ends_at() for broker in self._brokers.values()), default=math.inf
            )
            with trio.CancelScope(deadline=soonest) as self._lock_scope:
                await trio.sleep_forever()
            now = trio.current_time()
            for broker in self._brokers.values():
                broker.session.expire(now)
            self._wake.notify()

    # A new leader gives the records to others at once. The old leader says so in its next response.
    # But that broker may be frozen, and gets no request while this member is full (max_in_flight).
    # Nor does a fetch name a partition that was assigned to another member while its records are
    # held here. So the metadata is asked as often as responses come otherwise. Kafka has no request
    # by which the leader itself would confirm its locks, but for renewals. Asking again only once
    # the leader is known to be silent was tried: a leader that moved between healthy brokers was
    # noticed up to a second late.
    async def _watch_leaders(self) -> None:
        """Ask the metadata for leaders that no response names, while records are held."""
        asked_at = -math.inf
        while True:
            holders = [
                (broker, held)
                for broker in self._brokers.values()
                if (held := broker.session.live_partitions())
            ]
            if not holders:
                await self._deliver.wait()
                continue
            now = trio.current_time()
            asks_at = min(broker.asks_at(held, asked_at, now) for broker, held in holders)
            if now < asks_at:
                # Another broker may fall silent, or give records, meanwhile.
                await trio.sleep_until(min(asks_at, now + URGENT))
                continue
            asked_at = now
            with suppress(TrikafkaError):
                await self._refresh()

    def _divide(self) -> None:
        """Assign the partitions to the brokers that lead them."""
        # A close waits for the task of each broker that it has found. A broker that became a leader
        # only now would have no session to end, and would change that collection meanwhile.
        if self._closing:
            return
        snapshot = self._metadata.snapshot
        divided = (snapshot.version, self._assignment.partitions)
        if divided == self._divided:
            return
        self._divided = divided
        # What follows may lose the locks of a partition, also of what was not decoded so far.
        for broker in self._brokers.values():
            self._decode(broker)
        self._names = {
            UUID(info.topic_id): info.name
            for info in snapshot.topics.values()
            if info.topic_id is not None and not info.error_code
        }
        shares: dict[int, list[SharePartition]] = {}
        self._unresolved = False
        for key in sorted(self._assignment.partitions):
            leader = self._leader(key)
            if leader is None:
                self._unresolved = True
            else:
                shares.setdefault(leader, []).append(key)
        for node_id in shares.keys() - self._brokers.keys():
            broker = self._brokers[node_id] = ShareBroker(
                node_id, Retry(self._config), self._config.ack_linger_ms / 1000
            )
            self._start_soon(self._serve, broker)
        self._room.keep_only(self._assignment.partitions)
        changed = False
        for node_id, broker in self._brokers.items():
            changed |= broker.want(shares.get(node_id, ()))
            held = broker.session.live_partitions()
            known = held | broker.session.wanted.keys() | broker.session.resting
            broker.keep_only(known)
            for key in known:
                leader = self._leader(key)
                tp = self.name(key)
                if leader is None:
                    continue
                if leader != node_id:
                    why = f"broker {leader} leads {tp} now, and broker {node_id} held the lock"
                elif not broker.leads(key, snapshot.leader_epoch(tp)):
                    why = f"broker {node_id}, which held it, did not lead {tp} for a moment"
                else:
                    continue
                broker.session.lose_partition(key, why)
        if changed:
            self._wake.notify()

    def _leader(self, key: SharePartition) -> int | None:
        name = self._names.get(key[0])
        info = None if name is None else self._metadata.snapshot.topics.get(name)
        partition = None if info is None else info.partitions.get(key[1])
        leader = None if partition is None else partition.leader
        return leader if leader in self._metadata.snapshot.nodes else None

    def name(self, key: SharePartition) -> TopicPartition:
        """Return the partition's name; with the topic's id while its name is not known."""
        return TopicPartition(self._names.get(key[0], str(key[0])), key[1])

    # --- one broker ---

    async def _serve(self, broker: ShareBroker) -> None:
        retry = Retry(self._config)
        try:
            while True:
                self._divide()
                step, again_at = self._next(broker)
                if step is None:
                    if self._decode(broker):
                        continue
                    if self._closing:
                        return
                    await self._rest(again_at)
                elif await self._exchange(broker, step):
                    retry.reset()
                elif step == "fetch" and broker.session.is_open:
                    # Acknowledgements and renewals go on meanwhile.
                    broker.pause_fetching(trio.current_time() + self._pause(broker, retry.delay()))
                else:
                    self._wake.notify()  # others may take its turn
                    with trio.move_on_after(retry.delay()):
                        while not self._closing:
                            await self._wake.wait()
                    if self._closing and not broker.session.is_open:
                        return
        finally:
            broker.ended.set()

    # The leaders of several partitions often move together, but not in the same moment. Only the
    # next response reports the others, whose locks are lost meanwhile.
    def _pause(self, broker: ShareBroker, delay: float) -> float:
        """Return how long a broker is not fetched from after a response with errors."""
        moved = any(error.code in _LEADS_NO_MORE for error in broker.errors.values())
        return min(delay, URGENT) if moved and broker.session.live_partitions() else delay

    async def _rest(self, until: float) -> None:
        # A decision that makes room wakes the tasks that rest: see `Holdings.wake_at`.
        self._holdings.wake_at(self._room.enough, self._made_room)
        self._resting += 1
        try:
            with trio.move_on_at(until):
                await self._wake.wait()
        finally:
            self._resting -= 1
            if not self._resting:
                self._holdings.wake_no_more()

    # Once is enough: a task that is woken, and finds nothing to do, asks again. The program decides
    # some thousand records more before the task runs, and each would cost a call.
    def _made_room(self) -> None:
        if self._room.now_free():
            self._wake.notify()
            self._holdings.wake_no_more()

    def _next(self, broker: ShareBroker) -> tuple[_Step | None, float]:
        """Return what to do now; if nothing, the time at which to look again."""
        session = broker.session
        now = trio.current_time()
        session.expire(now)
        rests_until = broker.end_rest(now)
        late_at = self._room.pass_over_late(now)
        if self._closing:
            return ("close" if session.is_open else None), math.inf
        # A fetch carries acknowledgements as well, but its response may take fetch_max_wait_ms. A
        # caller that waits for the outcome gets a request of its own.
        flushes = broker.flushes and session.pending_since < math.inf
        if flushes or session.must_acknowledge(now):
            return "acknowledge", now
        if not session.wanted:
            self._decode(broker)  # with records, the session is not idle
            self._leave_line(broker)
            if session.is_open and session.is_idle:
                return "close", now
        elif broker.fetch_from > now:
            self._leave_line(broker)
        elif self._room.may_fetch(broker.node_id):
            return "fetch", now
        due = session.due_at(now)
        if due <= now:
            return "acknowledge", now
        again_at = min(due, session.renew_at(), late_at, rests_until)
        return None, min(again_at, broker.fetch_from) if broker.fetch_from > now else again_at

    def _leave_line(self, broker: ShareBroker) -> None:
        if self._room.leave_line(broker.node_id):
            self._wake.notify()

    async def _exchange(self, broker: ShareBroker, step: _Step) -> bool:
        """Make one request and take its response in; return whether to go on at once."""
        node = self._metadata.snapshot.nodes.get(broker.node_id)
        # A broker may be missing from the metadata for a moment: it was fenced, or another broker
        # does not know it yet. Its session goes on while the connection does, because a new one
        # would cost the locks. What another broker leads by now, `_divide` takes away.
        if node is None and broker.connection is not None:
            node = broker.connection.node
        try:
            connection = None if node is None else self._connections.ready(node, "fetch")
            if step != "fetch" or connection is None or connection is not broker.connection:
                self._decode(broker)
            if node is None:
                self._leave_line(broker)
                raise KafkaConnectionError(f"broker {broker.node_id} is not in the cluster now")
            if step != "fetch":
                self._leave_line(broker)
            if connection is None:
                self._leave_line(broker)
                connection = await self._connections.connection(node, "fetch")
                if connection is not broker.connection:
                    self._connected(broker, connection)
                return True  # what to do may have changed meanwhile
            if connection is not broker.connection:
                self._connected(broker, connection)
                return True
            connection.hold(True)
            try:
                if step == "fetch":
                    return await self._fetch(broker, node, connection)
                return await self._acknowledge(broker, node, connection, closes=step == "close")
            finally:
                connection.hold(broker.session.is_open)
        except TrikafkaError as error:
            return self._failed(broker, error)

    def _connected(self, broker: ShareBroker, connection: Connection) -> None:
        """Use another connection. The session of the previous one has ended with it."""
        if broker.connection is not None:
            broker.connection.close()
        broker.connected(connection)
        broker.session.lost(KafkaConnectionError("the connection was replaced"))
        connection.when_ended(lambda error: self._disconnected(broker, connection, error))

    def _disconnected(self, broker: ShareBroker, connection: Connection, error: Exception) -> None:
        # The broker releases what this member holds when the connection ends. So open blocks end
        # now, and not when the next request fails.
        if broker.connection is not connection:
            return
        broker.connected(None)
        if broker.session.in_flight is None:
            broker.session.lost(
                error if isinstance(error, TrikafkaError) else KafkaConnectionError(str(error))
            )
        self._changed()

    def _failed(self, broker: ShareBroker, error: TrikafkaError) -> bool:
        """Record that there is no usable response; return whether to continue at once."""
        known = broker.session.is_open
        if isinstance(error, ShareSessionError):
            # The broker has no session, so it takes none of the acknowledgements that wait, either.
            keys = {acquired.key for acquired, _, _ in broker.session.waiting()}
            self._refused(broker, keys, error)
        broker.session.lost(error)
        if broker.connection is not None:
            broker.connection.hold(False)
        broker.failed(error)
        broker.has_outcomes()
        self._changed()
        if isinstance(error, ShareSessionError):
            _log.debug("share session with broker %d: %s", broker.node_id, error)
            return known
        if error.refresh_metadata or isinstance(error, KafkaConnectionError):
            self._metadata.request_update()
        # The connection itself logs that a broker cannot be reached.
        if not isinstance(error, KafkaConnectionError):
            self._report(broker, error)
        return False

    # Most faults of a broker's own pass, and the fetches go on, as those of Java's consumers. An
    # error of a receive would end a worker for one of them. One that stays is in health(), as any
    # partition without progress.
    def _report(self, broker: ShareBroker, error: TrikafkaError) -> None:
        """Log an error once; have a receive raise it if it will not pass."""
        self.last_error = error
        if not broker.should_log(error):
            return
        _log.warning(
            "broker %d does not serve the share consumer, trying again: %s", broker.node_id, error
        )
        if not (error.retriable or is_unexplained(error)):
            self._buffer.put_error(again(explained_refusal(error, "share")))
            self._deliver.notify()

    # --- requests ---

    async def _fetch(self, broker: ShareBroker, node: Node, connection: Connection) -> bool:
        config = self._config
        session = broker.session
        sent = trio.current_time()
        self._buffer.drop_lost()
        room, size, wait = self._room.bounds(
            broker.node_id,
            sum(bool(each.session.wanted) for each in self._brokers.values()) or 1,
            {node_id for node_id, each in self._brokers.items() if each.brought},
            sent,
        )
        request = session.fetch(sent)
        if session.kept_until < math.inf:
            # The broker may wait no longer than the acknowledgements that the fetch does not carry.
            wait = min(wait, max(1, int((session.kept_until - sent) * 1000)))
        if request.awaited:
            broker.sends_acknowledgements(sent)
        message = ShareFetchMessage(
            config.group_id,
            self._member_id,
            request.epoch,
            request.named,
            FetchLimits(wait, min(config.fetch_min_bytes, size), size, room, room),
            by_record=config.acquire == "records",
            forgotten=request.forgotten,
        )
        self._room.fetch_begun(broker.node_id, room, sent + wait / 1000)
        self._wake.notify()  # the next one in line may have room, too
        try:
            response: ShareFetchResponse = await connection.request(
                message,
                config.request_timeout + wait / 1000,
                meanwhile=partial(self._decode, broker),
            )
        finally:
            self._decode(broker)  # the request could not be sent
            self._room.fetch_ended(broker.node_id)
        self._check(broker, request, response, node, sent, wait / 1000)
        if response.error_code:
            return False
        losses = session.losses
        learn_leaders(
            self._metadata,
            response.partitions,
            lambda part: self.name(part.key),
            response.node_endpoints,
        )
        lock = response.lock_ms / 1000
        # A response that brings nothing although it came early must not make this loop run hot.
        early = trio.current_time() - sent < wait / 2000 or not wait
        news = bool(request.named or request.forgotten)
        fine = self._outcomes(
            broker,
            request,
            (
                (part.key, part.acknowledge_error, part.acknowledge_message)
                for part in response.partitions
            ),
            sent,
            lock,
        )
        if self._closing:
            return True  # the end of the session releases what this response acquired
        # Behind the outcomes: the acknowledgements that this request carried are answered.
        session.check_fetched(part.key for part in response.partitions if part.acquired)
        if lock <= 0 and any(part.acquired for part in response.partitions):
            raise DamagedResponseError(
                f"{node} acquired records with a lock of {response.lock_ms} ms; a lock has a time"
            )
        renewable = connection.versions.get(message.API_KEY, (0, 0))[1] >= WITH_RENEWALS
        errors: dict[SharePartition, TrikafkaError] = {}
        ratio = self._room.ratio
        for part in response.partitions:
            if part.error_code:
                errors[part.key] = self._partition_failed(broker, part)
            elif part.acquired:
                news = news or lock >= _SHORT_LOCK
                size = int(len(part.records) * ratio)
                await self._acquired(broker, Arrived(part, size, sent, lock, losses, renewable))
        brought = any(part.acquired for part in response.partitions)
        now = trio.current_time()
        broker.fetched(now, errors, brought=brought, lock=lock)
        if fine and not broker.errors:
            broker.should_log(None)
            self.last_error = None
        goes_on = fine and (broker.rest_failing(now) if errors else news or not early)
        if not goes_on:
            self._decode(broker)
        return goes_on

    async def _acknowledge(
        self, broker: ShareBroker, node: Node, connection: Connection, *, closes: bool
    ) -> bool:
        session = broker.session
        sent = trio.current_time()
        keeps_unfinished = not (broker.flushes or closes)
        request = session.acknowledge(sent, closes=closes, keeps_unfinished=keeps_unfinished)
        if request is None:
            return True
        # Those behind a renewal go next.
        broker.flush(request.renews and session.pending_since < math.inf)
        if request.awaited:
            broker.sends_acknowledgements(sent)
        response: ShareAcknowledgeResponse = await connection.request(
            ShareAcknowledgeMessage(
                self._config.group_id,
                self._member_id,
                request.epoch,
                request.named,
                renews=request.renews,
            )
        )
        self._check(broker, request, response, node, sent)
        if response.error_code:
            return False
        learn_leaders(
            self._metadata,
            response.partitions,
            lambda part: self.name(part.key),
            response.node_endpoints,
        )
        lock = response.lock_ms / 1000
        return self._outcomes(
            broker,
            request,
            ((part.key, part.error_code, part.error_message) for part in response.partitions),
            sent,
            lock,
        )

    def _check(
        self,
        broker: ShareBroker,
        request: ShareRequest,
        response: ShareFetchResponse | ShareAcknowledgeResponse,
        node: Node,
        sent: float,
        wait: float = 0.0,
    ) -> None:
        """Move the session on. Raise the errors that end it, or that a user has to know."""
        session = broker.session
        now = trio.current_time()
        broker.heard(now, now - sent - wait)
        if session.in_flight is not request:
            raise KafkaConnectionError(f"the share session with {node} ended meanwhile")
        if not response.error_code:
            self._responded(broker, request, response, sent)
            return
        detail = f": {peer_text(response.error_message)}" if response.error_message else ""
        error = from_code(response.error_code, f"share group at {node}{detail}", operation="Read")
        if isinstance(error, ShareSessionError):
            raise error
        session.responded(request)
        self._refused(broker, request.decided, error)
        self.last_error = error
        if isinstance(response, ShareFetchResponse):
            broker.failed(error)
        # A fetch without acknowledgements may succeed between two requests that fail with them.
        # Then each error would be reported as the first one. The line about refusals has its own
        # times.
        if not request.awaited:
            self._report(broker, error)
        session.failed(request, error, sent)
        self._changed()

    def _responded(
        self,
        broker: ShareBroker,
        request: ShareRequest,
        response: ShareFetchResponse | ShareAcknowledgeResponse,
        sent: float,
    ) -> None:
        # Outcomes first: a response to the last request of a session ends the session, and fails
        # the acknowledgements without an outcome.
        if request.epoch < 0:
            for part in response.partitions:
                code, message = _acknowledge_error(part)
                self._outcome(broker, request, part.key, code, message, sent, 0.0)
        broker.session.responded(request)

    def _outcomes(
        self,
        broker: ShareBroker,
        request: ShareRequest,
        parts: Iterable[tuple[SharePartition, int, str | None]],
        sent: float,
        lock: float,
    ) -> bool:
        """Apply the outcome of acknowledgements; return False if some have to be repeated."""
        repeats = False
        for key, code, message in parts:
            repeats |= self._outcome(broker, request, key, code, message, sent, lock)
        for key in request.awaited:
            error = DamagedResponseError(f"the response says nothing of {self.name(key)}")
            broker.session.acknowledged(request, key, error, sent, lock, trio.current_time())
        if not repeats:
            broker.has_outcomes()
        self._changed()
        return not repeats

    def _outcome(
        self,
        broker: ShareBroker,
        request: ShareRequest,
        key: SharePartition,
        code: int,
        message: str | None,
        sent: float,
        lock: float,
    ) -> bool:
        if key not in request.awaited:
            return False
        error: TrikafkaError | None = None
        if code:
            detail = f": {peer_text(message)}" if message else ""
            error = from_code(code, f"partition {self.name(key)}{detail}", operation="Read")
            if error.refresh_metadata:
                self._metadata.request_update()
        now = trio.current_time()
        acknowledged = key in request.decided
        repeats = broker.session.acknowledged(request, key, error, sent, lock, now)
        if acknowledged and error is None:
            broker.refused(key, None, now)
        elif error is not None and acknowledged:
            self._refused(broker, (key,), error, repeats=repeats)
        if code in _HAS_NO_LOCKS:
            self._lose_discarded(broker, key, code)
        return repeats

    # A program that only leaves its blocks asks for no outcome. Without this line it would work on
    # the same records again and again, and nothing would say why.
    def _refused(
        self,
        broker: ShareBroker,
        keys: Collection[SharePartition],
        error: TrikafkaError,
        *,
        repeats: bool = False,
    ) -> None:
        """Record why acknowledgements of these partitions were refused.

        Unless they are repeated, log the refusal at once, and again every five minutes.
        """
        now = trio.current_time()
        moved = error.code in _HAS_NO_LOCKS  # part of the life of a cluster
        for key in keys:
            broker.refused(key, None if moved else error, now)
        if keys and not moved and not repeats and broker.refusals_logged.is_due(now):
            broker.refusals_logged.logged(now)
            _log.warning(
                "broker %d refuses acknowledgements, so the group may deliver their records again: "
                "%s",
                broker.node_id,
                error,
            )

    # The new leader gives the records to others, maybe before this member learns which broker that
    # is.
    def _lose_discarded(self, broker: ShareBroker, key: SharePartition, code: int) -> None:
        """Lose the locks of a partition that a broker has discarded, by its error."""
        name = self.name(key)
        who = f"broker {broker.node_id}, which held it,"
        if code in _LEADS_NO_MORE:
            why = f"{who} does not lead {name} now"
        else:
            why = f"{who} has no locks of {name} now ({ErrorCode(code).name})"
        broker.session.lose_partition(key, why)

    def _partition_failed(self, broker: ShareBroker, part: ShareFetchedPartition) -> TrikafkaError:
        detail = f": {peer_text(part.error_message)}" if part.error_message else ""
        error = from_code(
            part.error_code, f"partition {self.name(part.key)}{detail}", operation="Read"
        )
        if error.refresh_metadata:
            self._metadata.request_update()
        if has_no_locks := part.error_code in _HAS_NO_LOCKS:
            self._lose_discarded(broker, part.key, part.error_code)
            self._changed()
        # A broker that has discarded its locks loads the group's state for the next fetch. If there
        # is no such group any more, the heartbeat says so.
        if error.retriable or has_no_locks:
            _log.debug("share fetch from broker %d: %s", broker.node_id, error)
            self.last_error = error
        else:
            self._report(broker, error)
        return error

    # --- records ---

    # A session has one request at a time, so a broker has nothing to do from its response to the
    # next request. Decoding took half of that time. So the next fetch goes out first, if there is
    # one. For it, all that was acquired counts as held.
    async def _acquired(self, broker: ShareBroker, arrived: Arrived) -> None:
        """Decode what was acquired of a partition: now if it is large, else a little later."""
        if is_quick(arrived.part):
            self._expect(arrived, 1)
            broker.put_arrived(arrived)
            self._holdings.receives(trio.current_time())
            return
        self._decode(broker)  # the thread may take long
        found: Pieces = await trio.to_thread.run_sync(
            partial(self._pieces, arrived.part), limiter=self._decoding, abandon_on_cancel=True
        )
        self._buffer_pieces(broker, arrived, found)

    def _expect(self, arrived: Arrived, sign: int) -> None:
        self._holdings.expect(sign * arrived.number)
        self._buffer.expect(sign * arrived.size)

    def _decode(self, broker: ShareBroker) -> bool:
        """Decode and buffer what has arrived of a broker; return whether there was something."""
        found = False
        while (arrived := broker.pop_arrived()) is not None:
            found = True
            self._expect(arrived, -1)
            self._buffer_pieces(broker, arrived, self._pieces(arrived.part))
        return found

    def _pieces(self, part: ShareFetchedPartition) -> Pieces:
        return pieces_of(
            part,
            self.name(part.key),
            check_crcs=self._config.check_crcs,
            most=self._config.receive_message_max_bytes,
            codecs=self._codecs,
        )

    def _buffer_pieces(self, broker: ShareBroker, arrived: Arrived, found: Pieces) -> None:
        part = arrived.part
        if arrived.losses != broker.session.losses or self._closing:
            return  # the session ended meanwhile, and with it the locks
        # The last response of an old leader may come after the news of the new one, which delivers
        # these records again.
        if self._leader(part.key) not in (None, broker.node_id):
            return
        size = sum(each.size for each in found.pieces)
        if size and part.key in self._assignment.partitions:
            self._room.decoded(part.key, len(part.records), size)
        for piece in found.pieces:
            self._take(broker, arrived, piece)
        for error, verdict in found.faults:
            if verdict is AckType.REJECT:
                _log.error("%s; its records are rejected", error)
            else:
                _log.error("%s; its records are released", error)
            self._buffer.put_error(error)
        self._holdings.receives(trio.current_time())
        ends = arrived.sent + arrived.lock
        if ends < self._lock_scope.deadline:
            self._lock_scope.deadline = ends
        self._deliver.notify()

    def _take(self, broker: ShareBroker, arrived: Arrived, piece: Piece) -> None:
        key = arrived.part.key
        acquired = AcquiredRecords(
            self.name(key),
            key,
            piece.offsets,
            piece.counts,
            piece.records,
            holdings=self._holdings,
            queue=partial(self._queue, broker),
            settled=self._settled.notify,
            decided=partial(self._decided, piece, trio.current_time()),
            size=piece.size,
        )
        broker.session.add(acquired, arrived.sent, arrived.lock)
        if not arrived.renewable:
            acquired.renewing()
        if piece.verdict is not None:
            acquired.decide(0, len(acquired), bytes((piece.verdict,)))
            return
        self._buffer.put(acquired)

    def _queue(self, broker: ShareBroker, acquired: AcquiredRecords, start: int, stop: int) -> None:
        first = broker.session.pending_since == math.inf
        broker.session.queue(acquired, start, stop, trio.current_time())
        # For the first acknowledgement, a waiting task must set its timer. A later one matters to
        # it only if it makes room.
        if self._resting and (first or self._room.now_free()):
            self._wake.notify()

    def _decided(self, piece: Piece, came: float) -> None:
        # Offsets without records are decided here, which says nothing of the program's speed.
        if piece.verdict is None:
            self._room.decided(trio.current_time() - came)

    def _changed(self) -> None:
        """Wake what may have something to do: room, an outcome, a lost lock."""
        self._settled.notify()
        self._deliver.notify()
        self._wake.notify()

    # --- the user's calls ---

    def named_assignment(self) -> frozenset[TopicPartition]:
        """Return the assigned partitions whose names are known."""
        return frozenset(
            self.name(key) for key in self._assignment.partitions if key[0] in self._names
        )

    def last_fetch(self, key: SharePartition, now: float) -> tuple[float | None, Callable[[], str]]:
        """Return when a partition was last fetched without an error, and why it is not now.

        While the program holds all that it may, nothing has to be fetched.
        """
        if self._room.is_full():
            return now, str
        leader = self._leader(key)
        broker = None if leader is None else self._brokers.get(leader)
        if broker is None:
            return None, lambda: "no leader of it is known"
        if broker.failure is None and key not in broker.errors:
            return broker.fetched_at, lambda: f"its leader, broker {leader}, does not respond"
        error = broker.failure or broker.errors[key]
        return None, lambda: f"fetching it from broker {leader} fails: {error}"

    def has_first_fetch(self, key: SharePartition) -> bool:
        """Return whether a partition's broker may be holding the first fetch from it."""
        leader = self._leader(key)
        broker = None if leader is None else self._brokers.get(leader)
        return (
            broker is not None
            and broker.fetched_at is None
            and broker.failure is None
            and key not in broker.errors
        )

    def unacknowledged(
        self, now: float, limit: float
    ) -> Iterator[tuple[int, float, Callable[[], str]]]:
        """Yield for each broker since when acknowledgements wait for an outcome, and why.

        Those that were refused for ``limit`` seconds, with no success between them, count too.
        """
        for broker in list(self._brokers.values()):
            refusal = broker.longest_refusal(now, limit)
            error = broker.failure or (None if refusal is None else refusal.error)
            since = now if broker.without_outcome is None else broker.without_outcome
            if refusal is not None and refusal.seconds >= limit:
                since = min(since, refusal.since)
            yield (
                broker.node_id,
                since,
                lambda error=error: str(error or "no response"),  # type: ignore[misc]
            )

    async def settled(self, acquired: AcquiredRecords, start: int, stop: int) -> None:
        """Wait until these acknowledgements have an outcome; send them soon."""
        if not acquired.is_settled(start, stop):
            self._flush_soon()
        while not acquired.is_settled(start, stop):
            await self._settled.wait()

    def waiting(self) -> list[Slice]:
        """Return the acknowledgements that have no outcome yet."""
        return [each for broker in self._brokers.values() for each in broker.session.waiting()]

    async def flush(self) -> None:
        """Send all acknowledgements that wait, and wait until each has an outcome."""
        todo = self.waiting()
        self._flush_soon()
        for acquired, start, stop in todo:
            await self.settled(acquired, start, stop)

    def _flush_soon(self) -> None:
        for broker in self._brokers.values():
            broker.flush(True)
        self._wake.notify()

    async def close(self) -> None:
        """Release what is held, send the last acknowledgements, and close the sessions.

        When cancelled, the connections' end releases the records.
        """
        self._closing = True
        for broker in self._brokers.values():
            broker.session.release_all()
        self._buffer.clear()
        self._wake.notify()
        try:
            for broker in self._brokers.values():
                # The task of a broker that cannot be reached may wait for a connection. Without a
                # session there is nothing to send to this broker.
                if broker.session.is_open or broker.session.in_flight is not None:
                    await broker.ended.wait()
        finally:
            # A task outside of the consumer's block may wait for an outcome.
            for broker in self._brokers.values():
                broker.session.lost(KafkaConnectionError("the share consumer was closed"))
            self._settled.notify()


def _acknowledge_error(
    part: ShareFetchedPartition | AcknowledgedPartition,
) -> tuple[int, str | None]:
    if isinstance(part, ShareFetchedPartition):
        return part.acknowledge_error, part.acknowledge_message
    return part.error_code, part.error_message
