"""The effects of a Fetch response on the assignment, the fetch plan, the buffer and the metadata.

A partition's part of a response is dropped if a seek, a loss, a reset or a faster broker has
superseded its request.
"""

from __future__ import annotations

import logging

import trio

from ..._net.leader_hints import learn_leaders, named_place
from ..._net.retry import backoff
from ..._state.consumer.assignment import AssignedPartition, LogEnds
from ..._state.consumer.fetch_buffer import CompletedFetch, FetchBuffer
from ..._state.consumer.fetch_plan import FetchPlan
from ..._state.consumer.fetch_session import FetchSession, SessionRequest, Wanted
from ..._state.consumer.partition_state import PartitionState
from ..._wire.fetch import (
    FetchedPartition,
    FetchResponse,
    TooManyBytesError,
    end_of_batches,
    is_damaged,
    read_fetch_response,
)
from ...config import ConsumerConfig
from ...errors import (
    BrokerResponseError,
    CorruptRecordError,
    ErrorCode,
    OffsetMovedToTieredStorageError,
    from_code,
)
from ...errors.refusals import is_unexplained
from ...interfaces import MetadataManager
from ...types import Node, TopicPartition
from .resets import Resets

_log = logging.getLogger("trikafka.fetch")
#: Bytes of a response from which on a small part of it is copied (:func:`_unpinned`).
_LARGE_RESPONSE = 262_144
#: How often in a row a preferred replica may be unknown or fail. After that all partitions are read
#: from their leaders for ``metadata_max_age_ms``.
_PATIENCE_FOR_REPLICAS = 3
#: How often in a row a response may hold only the beginning of a partition's next batch, because
#: other partitions have filled the response before it.
_PATIENCE_FOR_TURNS = 20


class FetchResponses:
    """The handler of Fetch responses. It applies each response without an await in between."""

    def __init__(
        self,
        config: ConsumerConfig,
        metadata: MetadataManager,
        plan: FetchPlan,
        buffer: FetchBuffer,
        resets: Resets,
    ) -> None:
        self._config = config
        self._metadata = metadata
        self._plan = plan
        self._buffer = buffer
        self._resets = resets
        # By partition: the number of its ticket, and how many responses in a row for that ticket
        # held no whole batch.
        self._cut: dict[AssignedPartition, tuple[int, int]] = {}
        self.isolation = 1 if config.isolation_level == "read_committed" else 0

    def carry_out_plan(self) -> None:
        """Carry out the resets that the plan has found due.

        Those are the partitions of recreated topics, and those whose reset was backed off.
        """
        found = self._plan.pop_actions()
        for partition in found.recreated:
            self._resets.recreated(partition)
        for partition in found.resets:
            self._resets.out_of_range(partition)

    def handle(
        self,
        node: Node,
        session: FetchSession,
        request: SessionRequest,
        body: memoryview,
        version: int,
        most: int,
    ) -> bool:
        """Apply the response to ``request``; return whether it changed anything.

        Args:
            node: The broker that sent the response.
            session: The fetch session with this broker.
            request: The request.
            body: The response as it was received.
            version: The version of the request and the response.
            most: The number of bytes that the request asked for at most.

        Raises:
            TrikafkaError: The response as a whole has an error, or cannot be read.
        """
        response = self._read(node, session, body, version, most)
        if response.error_code:
            raise from_code(response.error_code, f"Fetch from {node}", operation="Read")
        session.responded(response.session_id)
        refused = [part for part in response.partitions if part.error_code]
        led_elsewhere = (
            learn_leaders(self._metadata, refused, named_place, response.node_endpoints)
            if refused
            else frozenset()
        )
        # `news` decides whether the next fetch may follow at once (`Fetcher._fetch`). Only a change
        # counts: records, an error that makes the partition back off, a reset, another replica. A
        # part that repeats known facts does not count, nor does one for a partition that the
        # request did not ask for. So a fetch that follows at once always comes after progress or
        # after the start of a back-off. A broker that answers early with nothing new cannot make
        # the loop run hot.
        news, stuck = False, None
        for part in response.partitions:
            tp = TopicPartition(part.topic, part.partition)
            wanted = session.asked.get(tp)
            if wanted is None:
                # The request did not ask for this partition.
                continue
            partition, number, offset = wanted.ticket
            if self._plan.source_of(partition) not in (None, node.node_id):
                # This broker took long to respond, and the partition is fetched from another one by
                # now.
                news = True
            elif not partition.awaits_fetch(number, offset):
                # A seek, or the end of the assignment, has overtaken this response. The records are
                # of no use, but the log ends are: the session does not report them again.
                if not part.error_code:
                    _keep_log_ends(partition, part)
                news = True
            elif part.error_code:
                self._handle_error(wanted, part, node, hinted=tp in led_elsewhere)
                news = True
            elif not self._handle_partition(wanted, part, node):
                stuck = stuck or ((wanted, part) if part.records else None)
            else:
                news = True
        if request.full:
            self._back_off_from_omitted(session, request, response, node)
        # KIP-74: at least the first batch of the whole response comes complete.
        if stuck is not None and not news:
            self._fail_as_corrupt(*stuck)
            return True
        return news

    def _read(
        self, node: Node, session: FetchSession, body: memoryview, version: int, most: int
    ) -> FetchResponse:
        """Decode the response.

        The first response with far more bytes than requested raises :exc:`TooManyBytesError`. The
        next requests ask for less of each partition. If that does not help, the broker ignores both
        limits, and its responses are accepted as they are: the bytes have arrived already, and
        ``receive_message_max_bytes`` bounds them.
        """
        try:
            return read_fetch_response(
                body,
                version,
                session.names,
                len(session.asked),
                None if session.excesses > 1 else most,
            )
        except TooManyBytesError as error:
            if not session.brought_too_much():
                raise
            _log.warning(
                "broker %d respects neither fetch_max_bytes nor max_partition_fetch_bytes: %s; "
                "from now on its responses are accepted up to receive_message_max_bytes (%d): set "
                "that to the memory that is available, or limit the broker",
                node.node_id,
                error,
                self._config.receive_message_max_bytes,
            )
            return read_fetch_response(body, version, session.names, len(session.asked))

    def _handle_partition(self, wanted: Wanted, part: FetchedPartition, node: Node) -> bool:
        """Apply a partition's part that has no error; return whether it changed anything."""
        partition, number, offset = wanted.ticket
        records = part.records
        _keep_log_ends(partition, part)
        if part.diverging is not None:
            if part.diverging.end_offset < offset:
                self._resets.truncated(partition, part.diverging)
            elif wanted.fetch_epoch == part.diverging.epoch:
                # The request named this epoch already: nothing has changed.
                return False
            else:
                partition.confirmed(part.diverging.epoch)
            return True
        # A partition is fetched from its leader until the leader names a preferred replica
        # (KIP-392: one in the client's rack, `client_rack`). Then it is fetched from that follower
        # until one of these happens: `metadata_max_age_ms` has passed, so that the leader chooses
        # again; the follower fails or does not respond; the position is not within the follower's
        # log; the follower names another replica. In each case the partition goes back to the
        # leader, because only the leader chooses.
        if part.preferred_replica >= 0 and part.preferred_replica != node.node_id:
            if not self._plan.reads_from_follower(partition, node.node_id):
                self._prefer(partition, part.preferred_replica)
                return True
            # Only a leader names the replica to use.
            self._plan.prefer(partition, None)
        self._plan.progressed(partition)
        if not records:
            return False
        end = end_of_batches(records, offset)
        if end == offset:
            # Not even the first batch is complete: the response was full, and the partition's turn
            # comes later (KIP-74).
            if is_damaged(records) or self._is_cut_again(wanted):
                self._fail_as_corrupt(wanted, part)
                return True
            return False
        if self._cut:
            self._cut.pop(partition, None)
        # The old message formats reveal their end only when they are decoded. For these the reader
        # of the partition records the next offset.
        partition.fetched(end)
        aborted = (part.aborted or []) if self.isolation else None
        self._buffer.put(
            CompletedFetch(partition, number, _unpinned(records), aborted, end), node.node_id
        )
        return True

    def _is_cut_again(self, wanted: Wanted) -> bool:
        """Count a part without a whole batch; return whether there were too many in a row.

        By then the partition has had its turn at the front of a response, so the cause is not
        another partition's size.
        """
        partition, number, _ = wanted.ticket
        # Entries of partitions that are no longer assigned are never removed one by one. Clearing
        # the table only makes the counts of the others start again.
        if len(self._cut) > 2 * self._plan.partitions:
            self._cut.clear()
        seen, times = self._cut.get(partition, (number, 0))
        times = times + 1 if seen == number else 1
        self._cut[partition] = (number, times)
        return times > max(_PATIENCE_FOR_TURNS, 2 * self._plan.partitions)

    def _fail_as_corrupt(self, wanted: Wanted, part: FetchedPartition) -> None:
        """Fail the partition: the response holds no complete batch where it must."""
        offset = wanted.ticket.offset
        error = CorruptRecordError(
            "no complete record batch", part.topic, part.partition, offset, part.records
        )
        self._plan.fetch_failed(wanted.ticket.partition, error)
        # A program that receives again at once must not cause a request each time.
        self._back_off_from(wanted.ticket.partition)
        wanted.ticket.partition.failed(error)

    def _prefer(self, partition: AssignedPartition, replica: int) -> None:
        """Follow the leader's wish to have the partition fetched from a replica (KIP-392)."""
        if replica in self._metadata.snapshot.nodes:
            _log.debug("%s: fetching from the preferred replica %d", partition.tp, replica)
            self._plan.prefer(
                partition, replica, trio.current_time() + self._config.metadata_max_age_ms / 1000
            )
        else:
            self._metadata.request_update()
            self._doubt_replicas(partition)
            self._back_off_from(partition)

    def _doubt_replicas(self, partition: AssignedPartition) -> None:
        """Record that a replica named by the leader could not be used.

        After several in a row, preferred replicas are ignored for a while.
        """
        if self._plan.failures(partition) >= _PATIENCE_FOR_REPLICAS:
            self._plan.distrust_replicas(
                trio.current_time() + self._config.metadata_max_age_ms / 1000
            )

    def _handle_error(
        self, wanted: Wanted, part: FetchedPartition, node: Node, *, hinted: bool
    ) -> None:
        partition, _, offset = wanted.ticket
        error = from_code(
            part.error_code, f"partition {partition.tp} at offset {offset}", operation="Read"
        )
        self._plan.fetch_failed(partition, error)
        from_follower = self._plan.reads_from_follower(partition, node.node_id)
        # For any error of a follower, the leader is the authority.
        if from_follower:
            self._plan.prefer(partition, None)
            # A follower that has no record of an epoch yet does not know the epoch, and refuses a
            # fetch that names it. Only the leader can compare such an epoch. Then the fetches name
            # none, and the follower may serve them.
            if (
                error.code == ErrorCode.OFFSET_OUT_OF_RANGE
                and wanted.fetch_epoch >= 0
                and partition.position == offset
                and partition.state is PartitionState.FETCHING
            ):
                partition.begin_validation()
                return
            self._doubt_replicas(partition)
        if from_follower and error.code in (
            ErrorCode.OFFSET_OUT_OF_RANGE,
            ErrorCode.OFFSET_NOT_AVAILABLE,
        ):
            self._back_off_from(partition)
        elif error.code == ErrorCode.OFFSET_OUT_OF_RANGE:
            self._out_of_range(partition, offset, error)
        elif isinstance(error, OffsetMovedToTieredStorageError):
            partition.failed(error)
        elif hinted:
            # The new leader is known already (KIP-951): no wait, no metadata request.
            pass
        elif error.retriable or is_unexplained(error):
            # Most faults of a broker's own pass, and the fetches go on, as those of Java's
            # consumer. An error of a receive would end a worker for one of them. One that stays is
            # in health().
            if error.refresh_metadata:
                self._metadata.request_update()
            self._back_off_from(partition)
        else:
            # A program that receives again at once must not cause a request each time.
            self._back_off_from(partition)
            partition.failed(error)

    def _out_of_range(
        self, partition: AssignedPartition, offset: int, cause: BrokerResponseError
    ) -> None:
        # Records before this offset have been fetched and not delivered yet: they come first.
        if partition.position is not None and partition.position < offset:
            self._back_off_from(partition, longest=True)
        elif self._plan.failures(partition) and self._config.offset_reset.strategy != "none":
            # The offset of the last reset was out of range, too: the next reset waits.
            self._back_off_from(partition, reset=True)
        else:
            self._back_off_from(partition)
            self._resets.out_of_range(partition, cause)

    def _back_off_from(
        self, partition: AssignedPartition, *, reset: bool = False, longest: bool = False
    ) -> None:
        first = self._config.retry_backoff_ms
        most = self._config.retry_backoff_max_ms
        wait = backoff(self._plan.failures(partition) + 1, most if longest else first, most)
        self._plan.back_off(partition, trio.current_time() + wait, reset=reset)

    def _back_off_from_omitted(
        self, session: FetchSession, request: SessionRequest, response: FetchResponse, node: Node
    ) -> None:
        """Back off from the partitions that the response to a full request has left out.

        The response to a full request must name every partition of the request.
        """
        reported = {(part.topic, part.partition) for part in response.partitions}
        for topic, parts in request.topics.items():
            for number, *_ in parts:
                if (topic, number) not in reported and (
                    wanted := session.asked.get(TopicPartition(topic, number))
                ) is not None:
                    _log.warning(
                        "%s left %s out of its response to a Fetch",
                        node,
                        wanted.ticket.partition.tp,
                    )
                    self._back_off_from(wanted.ticket.partition)


def _keep_log_ends(partition: AssignedPartition, part: FetchedPartition) -> None:
    """Record where the log begins and ends.

    The values must not be lost: a fetch session sends a value only when it has changed. A part with
    a diverging epoch has valid ones, too, unless they are negative.
    """
    if part.diverging is None or part.high_watermark >= 0:
        stable = part.last_stable_offset if part.last_stable_offset >= 0 else None
        start = part.log_start_offset if part.log_start_offset >= 0 else None
        partition.log_ends(LogEnds(part.high_watermark, start, stable))


def _unpinned(records: memoryview) -> memoryview:
    """Return the records; copy them if they are a small part of a large response.

    Without a copy, the slice would keep the memory of the whole response alive.
    """
    whole = memoryview(records.obj).nbytes
    return (
        memoryview(bytes(records))
        if whole >= _LARGE_RESPONSE and len(records) * 8 < whole
        else records
    )
