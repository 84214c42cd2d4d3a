"""The fetch manager: one task a broker keeps one fetch in flight while the buffer has room, in a fetch session (KIP-227).

What to fetch from where is the plan's (``_state/fetch_plan.py``); what a response says is taken in by
:mod:`trikafka._managers.fetch_responses`. The records go undecoded into the buffer, from where readers take them. No broker is
asked again at once after a response that changed nothing though it came early: so nothing can make a fetch loop run hot.
"""

from __future__ import annotations

import logging
import math

import trio

from .._net.brokers import Brokers
from .._net.in_flight import InFlightRequest
from .._net.retry import Retry
from .._net.signal import Signal
from .._net.singleflight import StartSoon
from .._state.assignment import AssignedPartition, Assignment
from .._state.fetch_buffer import FetchBuffer
from .._state.fetch_plan import FetchPlan
from .._state.fetch_session import FetchSession, SessionRequest
from .._state.subscription import Subscription
from .._wire.fetch import FetchMessage
from ..config import ConsumerConfig
from ..errors import FetchSessionError, KafkaConnectionError, TrikafkaError
from ..interfaces import MetadataManager
from ..types import Node
from .fetch_responses import FetchResponses
from .missing import MissingPartitions
from .resets import Resets
from .validation import PositionValidator

_log = logging.getLogger("trikafka.fetch")
#: How long (ms) a fetch waits in the broker while partitions that are full may soon have room again.
_SHORT_WAIT = 20


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
        self._buffer, self._start_soon = buffer, start_soon
        self._wake = fetchable  # something may have become fetchable
        self._missing, resets = MissingPartitions(metadata, subscription, assignment), Resets(config)
        self._plan = FetchPlan(assignment, buffer)
        self._responses = FetchResponses(config, metadata, self._plan, buffer, resets)
        self._validator = PositionValidator(config, brokers, metadata, assignment, self._missing, resets)
        self._nodes: set[int] = set()  # those that have a task
        self._failing: dict[int, TrikafkaError] = {}  # what was wrong with a broker's response just now
        self._told: dict[int, TrikafkaError] = {}  # the brokers of which the log has said so, with what it said
        self._watching = False  # what has no leader is looked after
        self._resting = 0  # fetch tasks that found nothing to do

    def last_fetch(self, partition: AssignedPartition) -> tuple[float | None, TrikafkaError | None]:
        """When a fetch of it last succeeded (``None``: none has), and what a later one failed with, if one did."""
        return self._plan.last_fetch(partition)

    @property
    def last_error(self) -> TrikafkaError | None:
        """Why the responses of a broker are no use from which something is to be fetched; ``None`` if those of all are."""
        sessions = self._plan.sessions
        return next((error for node_id, error in self._told.items() if node_id in sessions and sessions[node_id].wanted), None)

    async def run(self) -> None:
        """Start a task for each broker from which something is to be fetched. Ends with the client."""
        self._start_soon(self._follow_metadata)
        retry, again = Retry(self._config), 0.0
        while True:
            self._update()
            if not self._note_leaderless():
                retry.reset()
            elif trio.current_time() >= again:
                again = trio.current_time() + retry.delay()
                self._metadata.request_update()
            with trio.move_on_at(min(self._plan.next_timer, again if self._plan.leaderless else math.inf)):
                self._watching = bool(self._plan.leaderless)
                await self._wake.wait()

    def _note_leaderless(self) -> bool:
        """Tell the assignment of what has no leader; whether there is something."""
        for partition, error in list(self._plan.leaderless.items()):
            self._missing.note(partition, error)
        return bool(self._plan.leaderless)

    async def _follow_metadata(self) -> None:
        """A partition may have another leader now: the fetch of its old one has ended, that of the new one has to begin."""
        seen = self._metadata.snapshot
        while True:
            seen = await self._metadata.changed(seen)
            self._wake.notify()

    def _update(self, mine: int | None = None) -> None:
        """Bring the plan up to date, and carry out what it finds. ``mine``: the broker whose task does so."""
        joined = self._plan.update(self._metadata.snapshot, trio.current_time())
        self._responses.carry_out_plan()
        for node_id in joined - self._nodes:
            self._nodes.add(node_id)
            self._start_soon(self._fetch_from, node_id)
        if joined - {mine} or (self._plan.leaderless and not self._watching):
            self._wake.notify()  # the tasks of other brokers may be at rest
        self._validator.start(self._start_soon)

    async def _fetch_from(self, node_id: int) -> None:
        retry, session = Retry(self._config), self._plan.sessions[node_id]
        while True:
            self._update(node_id)
            node = self._metadata.snapshot.nodes.get(node_id)
            if node is None and self._plan.let_go(node_id):
                self._nodes.discard(node_id)  # a new task is started should it come back
                self._told.pop(node_id, None)
                return
            if node is None or not session.wanted or not (room := self._room(node_id)):
                await self._rest()
            elif not await self._fetch(node, session, room, retry):
                self._say_why(node_id)
                await retry.wait()

    def _went_well(self, node_id: int, retry: Retry) -> None:
        retry.reset()
        if self._told.pop(node_id, None) is not None:
            _log.info("fetching from broker %d again", node_id)

    def _say_why(self, node_id: int) -> None:
        """Say once in the log that a broker's responses are no use; not of a client that closes, which ends this task before."""
        if (error := self._failing.pop(node_id, None)) is not None and node_id not in self._told:
            self._told[node_id] = error
            _log.warning("cannot fetch from broker %d, trying again: %s", node_id, error)

    def _room(self, node_id: int) -> int:
        return self._plan.room(node_id, self._config.fetch_max_bytes, self._config.max_partition_fetch_bytes)

    async def _rest(self) -> None:
        """Wait until something may be fetchable: the signal, or the end of a partition's wait after an error."""
        self._resting += 1
        self._buffer.fetcher_idle(True)
        try:
            with trio.move_on_at(self._plan.next_timer):
                await self._wake.wait()
        finally:
            self._resting -= 1
            self._buffer.fetcher_idle(self._resting > 0)

    async def _fetch(self, node: Node, session: FetchSession, room: int, retry: Retry) -> bool:
        """Fetch for as long as one fetch follows another; whether the next one may begin at once.

        A response is taken in, and the next fetch goes out, in the step of the connection's reader: so the broker is at work on it
        while the user decodes, whoever's turn is first.
        """
        done = Signal()
        fine: bool | None = None
        over = False

        def begin(room: int) -> None:
            contents = session.next_request()
            wait_ms = _SHORT_WAIT if self._plan.is_short_of_room(node.node_id) else self._config.fetch_max_wait_ms
            began = trio.current_time()
            most = max(room, self._config.max_partition_fetch_bytes)  # with little room a broker may look at the partition's alone

            def ended(in_flight: InFlightRequest) -> None:
                nonlocal fine
                try:
                    body, version = in_flight.body()
                    news = self._responses.take(node, session, contents, body, version, most)
                    session.taken_in(trio.current_time())
                    fine = news or trio.current_time() - began >= wait_ms / 2000
                    if fine:
                        self._went_well(node.node_id, retry)
                        if not over and (more := self._follows(node, session)):
                            fine = None
                            begin(more)
                except TrikafkaError as error:
                    fine = self._note_failure(node, session, error)
                if fine is not None:
                    done.notify()

            share = session.partition_bytes(self._config.max_partition_fetch_bytes)
            connection.begin(self._message(contents, room, share, wait_ms), ended, self._config.request_timeout + wait_ms / 1000)

        try:
            connection = await self._brokers.connection(node, "fetch")
            begin(room)
        except TrikafkaError as error:
            return self._note_failure(node, session, error)
        try:
            while fine is None:
                await done.wait()
        finally:
            over = True
        return fine

    def _follows(self, node: Node, session: FetchSession) -> int:
        """How many bytes the next fetch may bring, if it may go to the same broker at once; else 0, and the task looks again."""
        self._update(node.node_id)
        if self._metadata.snapshot.nodes.get(node.node_id) != node or not session.wanted:
            return 0
        return self._room(node.node_id)

    def _note_failure(self, node: Node, session: FetchSession, error: TrikafkaError) -> bool:
        """Note why there is no response; whether to go on without a wait."""
        if isinstance(error, FetchSessionError):
            _log.debug("fetch from %s: %s", node, error)
            if error.refresh_metadata:
                self._metadata.request_update()
            return session.refused()
        if not isinstance(error, KafkaConnectionError):  # that a broker cannot be reached its connection says
            self._failing[node.node_id] = error
        session.lost()
        self._plan.unreachable(node.node_id, trio.current_time() + self._config.metadata_max_age_ms / 1000)
        self._metadata.request_update()
        if not error.retriable:
            for wanted in list(session.wanted.values()):
                wanted.ticket.partition.failed(error)
        return False

    def _message(self, contents: SessionRequest, max_bytes: int, partition_bytes: int, wait_ms: float) -> FetchMessage:
        return FetchMessage(
            contents.topics,
            max_wait_ms=int(wait_ms),
            min_bytes=self._config.fetch_min_bytes,
            max_bytes=max_bytes,
            partition_bytes=partition_bytes,
            isolation_level=self._responses.isolation,
            rack=self._config.client_rack if self._plan.trusts_replicas(trio.current_time()) else "",
            session=contents.session,
            forgotten=contents.forgotten,
            topic_ids=contents.topic_ids,
        )
