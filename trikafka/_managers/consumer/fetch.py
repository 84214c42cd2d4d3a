"""The fetch manager: one task a broker keeps one Fetch in flight while the buffer has room.

Each broker has a fetch session (KIP-227). The plan (``_state/consumer/fetch_plan.py``) decides what
to fetch from which broker; :mod:`trikafka._managers.consumer.fetch_responses` takes in the
responses. Records go undecoded into the buffer, and readers take them from there. After a response
that changed nothing although it came early, the task waits before it asks the same broker again. So
no response causes a busy loop.
"""

from __future__ import annotations

import logging
import math

import trio

from ..._net.brokers import Brokers
from ..._net.clock import clock_of_run
from ..._net.in_flight import SILENCE, InFlightRequest
from ..._net.retry import Retry
from ..._net.signal import Signal
from ..._net.singleflight import StartSoon
from ..._state.consumer.assignment import AssignedPartition, Assignment
from ..._state.consumer.fetch_buffer import FetchBuffer
from ..._state.consumer.fetch_plan import FetchPlan
from ..._state.consumer.fetch_session import FetchSession, SessionRequest
from ..._state.consumer.subscription import Subscription
from ..._wire.fetch import FetchMessage
from ...config import ConsumerConfig
from ...errors import FetchSessionError, KafkaConnectionError, TrikafkaError
from ...errors.refusals import is_unexplained
from ...interfaces import MetadataManager
from ...types import Node
from .fetch_responses import FetchResponses
from .missing import MissingPartitions
from .resets import Resets
from .validation import PositionValidator

_log = logging.getLogger("trikafka.fetch")
#: How long (ms) a fetch waits in the broker while full partitions may soon have room again.
_SHORT_WAIT = 20


class Fetcher:
    """The tasks that fetch every assigned partition that has a position and is not paused."""

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
        self._config = config
        self._now = clock_of_run()
        self._brokers = brokers
        self._metadata = metadata
        self._buffer = buffer
        self._start_soon = start_soon
        # Notified when something may have become fetchable.
        self._wake = fetchable
        self._assignment = assignment
        self._missing = MissingPartitions(metadata, subscription, assignment)
        resets = Resets(config)
        self._plan = FetchPlan(assignment, buffer)
        self._responses = FetchResponses(config, metadata, self._plan, buffer, resets)
        self._validator = PositionValidator(
            config, brokers, metadata, assignment, self._missing, resets
        )
        # The brokers that have a fetch task.
        self._nodes: set[int] = set()
        # By broker: the error of its last response, if it had one that is not logged yet.
        self._failing: dict[int, TrikafkaError] = {}
        # By broker: the error that was logged; removed when a fetch succeeds again.
        self._logged_errors: dict[int, TrikafkaError] = {}
        # True while `run` waits with a timer for partitions without a leader.
        self._watching = False
        # How many fetch tasks wait because they found nothing to do.
        self._resting = 0
        brokers.outages.when_silent(self._silent)

    def last_fetch(self, partition: AssignedPartition) -> tuple[float | None, TrikafkaError | None]:
        """Return when a fetch of the partition last succeeded, and the error of a later one.

        Each is ``None`` if there was none.
        """
        return self._plan.last_fetch(partition)

    @property
    def last_error(self) -> TrikafkaError | None:
        """The error in the responses of a broker from which something is wanted.

        ``None`` if the responses of all such brokers are good.
        """
        sessions = self._plan.sessions
        return next(
            (
                error
                for node_id, error in self._logged_errors.items()
                if node_id in sessions and sessions[node_id].wanted
            ),
            None,
        )

    def validation_error(self, partition: AssignedPartition) -> TrikafkaError | None:
        """Return why a position could not be checked against a new leader's log.

        ``None`` if no attempt has failed, or the last one is under way at another leader.
        """
        return self._validator.error_of(partition)

    async def run(self) -> None:
        """Start a fetch task for each broker from which something is wanted, until cancelled."""
        self._start_soon(self._follow_metadata)
        retry = Retry(self._config)
        again = 0.0
        while True:
            self._update()
            for partition, error in list(self._plan.leaderless.items()):
                self._missing.add(partition, error)
            if not self._plan.leaderless:
                retry.reset()
            elif trio.current_time() >= again:
                again = trio.current_time() + retry.delay()
                self._metadata.request_update()
            with trio.move_on_at(
                min(self._plan.next_timer, again if self._plan.leaderless else math.inf)
            ):
                self._watching = bool(self._plan.leaderless)
                await self._wake.wait()

    async def _follow_metadata(self) -> None:
        """Wake the fetch tasks on each new snapshot.

        A partition may have another leader now: the fetch from the old one has ended, and the fetch
        from the new one has to begin.
        """
        seen = self._metadata.snapshot
        while True:
            seen = await self._metadata.changed(seen)
            self._wake.notify()

    def _silent(self, node: Node) -> None:
        """Fetch the partitions of a silent follower from their leaders instead."""
        # A partition is fetched from its leader, or from the follower that the leader prefers
        # (KIP-392). A silent follower must not stop the partition: the leader is there, and the
        # plan goes back to it at once. `unreachable` also ignores preferred replicas for
        # `metadata_max_age_ms`, because the leader would name the same follower in its next
        # response. A silent leader is another matter: only the cluster can elect a new one, and its
        # name comes with the metadata.
        if node.node_id in self._plan.sessions:
            self._plan.unreachable(
                node.node_id, trio.current_time() + self._config.metadata_max_age_ms / 1000
            )
            self._wake.notify()

    def _update(self, mine: int | None = None) -> None:
        """Bring the plan up to date, and carry out its decisions.

        ``mine`` is the broker whose task calls; ``None`` for `run`.
        """
        joined = self._plan.update(self._metadata.snapshot, self._now())
        self._responses.carry_out_plan()
        for node_id in joined - self._nodes:
            self._nodes.add(node_id)
            self._start_soon(self._fetch_from, node_id)
        if joined - {mine} or (self._plan.leaderless and not self._watching):
            # The tasks of other brokers may be waiting.
            self._wake.notify()
        if self._assignment.unvalidated:
            self._validator.start(self._start_soon)

    async def _fetch_from(self, node_id: int) -> None:
        retry = Retry(self._config)
        session = self._plan.sessions[node_id]
        while True:
            self._update(node_id)
            node = self._metadata.snapshot.nodes.get(node_id)
            if node is None and self._plan.remove_if_idle(node_id):
                # A new task is started if the broker returns.
                self._nodes.discard(node_id)
                self._logged_errors.pop(node_id, None)
                return
            if node is None or not session.wanted or not (room := self._room(node_id)):
                await self._rest()
            elif not await self._fetch(node, session, room, retry):
                self._log_failure(node_id)
                await retry.wait()

    def _record_success(self, node_id: int, retry: Retry) -> None:
        if retry.failures:
            retry.reset()
        if self._logged_errors.pop(node_id, None) is not None:
            _log.info("fetching from broker %d again", node_id)

    def _log_failure(self, node_id: int) -> None:
        """Log once that a broker's responses cannot be used.

        A client that closes ends this task before, so it logs nothing.
        """
        if (
            error := self._failing.pop(node_id, None)
        ) is not None and node_id not in self._logged_errors:
            self._logged_errors[node_id] = error
            _log.warning("cannot fetch from broker %d, trying again: %s", node_id, error)

    def _room(self, node_id: int) -> int:
        return self._plan.room(
            node_id, self._config.fetch_max_bytes, self._config.max_partition_fetch_bytes
        )

    def _wait_ms(self, node_id: int) -> float:
        """Return how long (ms) a fetch may wait in the broker.

        The time is short while partitions may have room again, or other brokers wait for this fetch
        to end.
        """
        longest = self._config.fetch_max_wait_ms
        if self._plan.is_short_of_room(node_id):
            return min(_SHORT_WAIT, longest)
        # Each broker has its turn within the longest time, and there are no more fetches than if no
        # broker had to wait.
        return longest * self._buffer.turn(node_id)

    async def _rest(self) -> None:
        """Wait for the signal that something may be fetchable, or for the end of a back-off."""
        self._resting += 1
        self._buffer.fetcher_idle(True)
        try:
            with trio.move_on_at(self._plan.next_timer):
                await self._wake.wait()
        finally:
            self._resting -= 1
            self._buffer.fetcher_idle(self._resting > 0)

    async def _fetch(self, node: Node, session: FetchSession, room: int, retry: Retry) -> bool:
        """Fetch for as long as one fetch follows another; return whether to go on at once."""
        # The next fetch goes out in the step of the connection's reader that took the response in,
        # and no task is woken for it. So the broker works on it while the user decodes the last
        # one, whichever task Trio runs next. With a task that waits for each response, a fetch loop
        # loses two turns of Trio's scheduler for every response, and behind a busy user a fetch
        # starts only after decoding.
        #
        # For that, the next offset must be known before decoding; `end_of_batches` reads it from
        # the batch headers. The chain ends when the response changed nothing and came early,
        # when there is no room, when the broker's address changed, or after an error. Then `fine`
        # is set and this task decides what follows. `over` stops a chain whose task was cancelled:
        # its last response is still taken in, but nothing follows it.
        #
        # In a small buffer the other brokers wait until this fetch has brought its bytes. So a late
        # one keeps no room. The connection's own watch for silence does not notice each late fetch:
        # the broker may respond to heartbeats.
        done = Signal()
        fine: bool | None = None
        over = late = False
        late_at = math.inf  # when the fetch under way is late

        def begin(room: int) -> None:
            nonlocal late_at
            contents = session.next_request()
            wait_ms = self._wait_ms(node.node_id)
            began = self._now()
            late_at = began + wait_ms / 1000 + SILENCE
            # With little room a broker may apply the partition's limit alone.
            most = max(room, self._config.max_partition_fetch_bytes)

            def ended(in_flight: InFlightRequest) -> None:
                nonlocal fine
                self._buffer.fetch_ended(node.node_id)
                try:
                    body, version = in_flight.body()
                    news = self._responses.handle(node, session, contents, body, version, most)
                    now = self._now()
                    session.taken_in(now)
                    fine = news or now - began >= wait_ms / 2000
                    if fine:
                        self._record_success(node.node_id, retry)
                        # After a late one this task has to wake, to watch the next.
                        if not (over or late) and (more := self._follows(node, session)):
                            fine = None
                            begin(more)
                except TrikafkaError as error:
                    fine = self._record_failure(node, session, error)
                if fine is not None:
                    done.notify()

            share = session.partition_bytes(self._config.max_partition_fetch_bytes)
            message = self._message(contents, room, share, wait_ms, began)
            self._buffer.fetch_begun(node.node_id, room)
            try:
                connection.begin(message, ended, (self._config.request_timeout_ms + wait_ms) / 1000)
            except BaseException:
                self._buffer.fetch_ended(node.node_id)
                raise

        try:
            connection = await self._brokers.connection(node, "fetch")
            begin(room)
        except TrikafkaError as error:
            return self._record_failure(node, session, error)
        try:
            while fine is None:
                with trio.move_on_at(math.inf if late else late_at):
                    await done.wait()
                if fine is None and not late and trio.current_time() >= late_at:
                    late = True
                    self._buffer.fetch_overdue(node.node_id)
                    self._wake.notify()
        finally:
            over = True
        return fine

    def _follows(self, node: Node, session: FetchSession) -> int:
        """Return how many bytes the next fetch may bring; 0 if it cannot follow at once.

        After 0 the fetch task looks again.
        """
        self._update(node.node_id)
        if self._metadata.snapshot.nodes.get(node.node_id) != node or not session.wanted:
            return 0
        return self._room(node.node_id)

    def _record_failure(self, node: Node, session: FetchSession, error: TrikafkaError) -> bool:
        """Record why there is no response; return whether to go on without a wait."""
        if isinstance(error, FetchSessionError):
            _log.debug("fetch from %s: %s", node, error)
            if error.refresh_metadata:
                self._metadata.request_update()
            return session.refused(error)
        # The connection itself logs that a broker cannot be reached.
        if not isinstance(error, KafkaConnectionError):
            self._failing[node.node_id] = error
        session.lost(error)
        self._plan.unreachable(
            node.node_id, trio.current_time() + self._config.metadata_max_age_ms / 1000
        )
        self._metadata.request_update()
        if not (error.retriable or is_unexplained(error)):
            for wanted in list(session.wanted.values()):
                wanted.ticket.partition.failed(error)
        return False

    def _message(
        self,
        contents: SessionRequest,
        max_bytes: int,
        partition_bytes: int,
        wait_ms: float,
        now: float,
    ) -> FetchMessage:
        return FetchMessage(
            contents.topics,
            max_wait_ms=int(wait_ms),
            min_bytes=self._config.fetch_min_bytes,
            max_bytes=max_bytes,
            partition_bytes=partition_bytes,
            isolation_level=self._responses.isolation,
            rack=self._config.client_rack if self._plan.trusts_replicas(now) else "",
            session=contents.session,
            forgotten=contents.forgotten,
            topic_ids=contents.topic_ids,
        )
