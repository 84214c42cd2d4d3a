"""What a Fetch response says of each partition, told to those whom it concerns: assignment, plan, buffer and metadata.

A response to what has been overtaken (a seek, a loss, a reset, another broker that was quicker) is dropped.
"""

from __future__ import annotations

import logging

import trio

from .._net.retry import backoff
from .._state.assignment import AssignedPartition, LogEnds
from .._state.fetch_buffer import CompletedFetch, FetchBuffer
from .._state.fetch_plan import FetchPlan
from .._state.fetch_session import FetchSession, SessionRequest, Wanted
from .._wire.fetch import FetchedPartition, FetchResponse, TooManyBytesError, end_of_batches, is_damaged, read_fetch_response
from .._wire.reading import LeaderIdAndEpoch
from ..config import ConsumerConfig
from ..errors import BrokerResponseError, CorruptRecordError, ErrorCode, OffsetMovedToTieredStorageError, from_code
from ..interfaces import MetadataManager
from ..types import Node, TopicPartition
from .resets import Resets

_log = logging.getLogger("trikafka.fetch")
_LARGE_RESPONSE = 262_144
#: So often in a row a leader may name a replica that is unknown, or fails, before it is read from itself.
_PATIENCE_FOR_REPLICAS = 3
#: So often in a row a partition may come with nothing but the beginning of a batch: the response was full with others before it.
_PATIENCE_FOR_TURNS = 20


class FetchResponses:
    """Takes in responses, in the step in which they come."""

    def __init__(
        self, config: ConsumerConfig, metadata: MetadataManager, plan: FetchPlan, buffer: FetchBuffer, resets: Resets
    ) -> None:
        self._config, self._metadata, self._plan = config, metadata, plan
        self._buffer, self._resets = buffer, resets
        self._cut: dict[AssignedPartition, tuple[int, int]] = {}  # how often in a row nothing whole came, at a position
        self.isolation = 1 if config.isolation_level == "read_committed" else 0

    def carry_out_plan(self) -> None:
        """Reset what the plan found out to have no position any more, and what it has put off until now."""
        found = self._plan.take_found()
        for partition in found.recreated:
            self._resets.recreated(partition)
        for partition in found.resets:
            self._resets.out_of_range(partition)

    def take(
        self, node: Node, session: FetchSession, request: SessionRequest, body: memoryview, version: int, most: int
    ) -> bool:
        """Take in the response to ``request``, which asked for ``most`` bytes; whether it changed anything.

        Raises the error of the whole response.
        """
        response = self._read(node, session, body, version, most)
        if response.error_code:
            raise from_code(response.error_code, f"Fetch from {node}", operation="Read")
        session.responded(response.session_id)
        led_elsewhere = self._learn_leaders(response)
        news, stuck = False, None
        for part in response.partitions:
            tp = TopicPartition(part.topic, part.partition)
            wanted = session.asked.get(tp)
            if wanted is None:  # nobody asked for it: not even a broker that says such things all the time is asked without end
                continue
            if wanted.overtaken:
                news = True
            elif part.error_code:
                self._take_error(wanted, part, node, hinted=tp in led_elsewhere)
                news = True
            elif not self._take(wanted, part, node):
                stuck = stuck or ((wanted, part) if part.records else None)
            else:
                news = True
        if request.full:
            self._note_silence(session, request, response, node)
        if stuck is not None and not news:  # KIP-74: at least the first batch of all comes whole
            self._fail_as_corrupt(*stuck)
            return True
        return news

    def _read(self, node: Node, session: FetchSession, body: memoryview, version: int, most: int) -> FetchResponse:
        """Read it. The first one that brings far more than was asked for raises; then less is asked for of each partition.

        A broker that heeds none of that is taken as it is: what it sends is there, and ``receive_message_max_bytes`` bounds it.
        """
        try:
            return read_fetch_response(body, version, session.names, len(session.asked), None if session.excesses > 1 else most)
        except TooManyBytesError as error:
            if not session.brought_too_much():
                raise
            _log.warning(
                "broker %d heeds neither fetch_max_bytes nor max_partition_fetch_bytes: %s; from now on its responses are taken"
                " as they come, up to receive_message_max_bytes (%d): set that to what memory there is, or limit the broker",
                node.node_id, error, self._config.receive_message_max_bytes,
            )  # fmt: skip
            return read_fetch_response(body, version, session.names, len(session.asked))

    def _take(self, wanted: Wanted, part: FetchedPartition, node: Node) -> bool:
        """Take in one partition's part that is no error; whether it changed anything."""
        (partition, number, offset), records = wanted.ticket, part.records
        if part.diverging is None or part.high_watermark >= 0:  # also then: a session does not tell twice
            stable = part.last_stable_offset if part.last_stable_offset >= 0 else None
            partition.log_ends(LogEnds(part.high_watermark, part.log_start_offset, stable))
        if part.diverging is not None:
            if part.diverging.end_offset < offset:
                self._resets.truncated(partition, part.diverging)
            elif wanted.fetch_epoch == part.diverging.epoch:
                return False  # that was said in the request: nothing has changed
            else:
                partition.confirmed(part.diverging.epoch)
            return True
        if part.preferred_replica >= 0 and part.preferred_replica != node.node_id:
            if not self._plan.reads_from_follower(partition, node.node_id):
                self._prefer(partition, part.preferred_replica)
                return True
            self._plan.prefer(partition, None)  # only a leader knows better
        self._plan.progressed(partition)
        if not records:
            return False
        end = end_of_batches(records, offset)
        if end == offset:  # not even the first batch is whole: the response was full, and its turn will come (KIP-74)
            if is_damaged(records) or self._is_cut_again(wanted):
                self._fail_as_corrupt(wanted, part)
                return True
            return False
        if self._cut:
            self._cut.pop(partition, None)
        partition.fetched(end)  # the old formats tell their end only when they are decoded: the reader then says where to go on
        aborted = (part.aborted or []) if self.isolation else None
        self._buffer.put(CompletedFetch(partition, number, _unpinned(records), aborted, end), node.node_id)
        return True

    def _is_cut_again(self, wanted: Wanted) -> bool:
        """Whether it has had its turn by now, beside all others of the assignment, and yet nothing whole came."""
        partition, number, _ = wanted.ticket
        if len(self._cut) > 2 * self._plan.partitions:  # what is not assigned any more
            self._cut.clear()
        seen, times = self._cut.get(partition, (number, 0))
        times = times + 1 if seen == number else 1
        self._cut[partition] = (number, times)
        return times > max(_PATIENCE_FOR_TURNS, 2 * self._plan.partitions)

    def _fail_as_corrupt(self, wanted: Wanted, part: FetchedPartition) -> None:
        error = CorruptRecordError("no complete record batch", part.topic, part.partition, wanted.ticket.offset)
        self._plan.fetch_failed(wanted.ticket.partition, error)
        wanted.ticket.partition.failed(error)

    def _prefer(self, partition: AssignedPartition, replica: int) -> None:
        """The leader wants it to be fetched from a replica (KIP-392)."""
        if replica in self._metadata.snapshot.nodes:
            _log.debug("%s: going on at the preferred replica %d", partition.tp, replica)
            self._plan.prefer(partition, replica, trio.current_time() + self._config.metadata_max_age_ms / 1000)
        else:
            self._metadata.request_update()
            self._doubt_replicas(partition)
            self._put_off(partition)

    def _doubt_replicas(self, partition: AssignedPartition) -> None:
        """A replica that its leader named is no use. A leader that goes on naming such is read from itself for a while."""
        if self._plan.failures(partition) >= _PATIENCE_FOR_REPLICAS:
            self._plan.distrust_replicas(trio.current_time() + self._config.metadata_max_age_ms / 1000)

    def _take_error(self, wanted: Wanted, part: FetchedPartition, node: Node, *, hinted: bool) -> None:
        partition, _, offset = wanted.ticket
        error = from_code(part.error_code, f"partition {partition.tp} at offset {offset}", operation="Read")
        self._plan.fetch_failed(partition, error)
        from_follower = self._plan.reads_from_follower(partition, node.node_id)
        if from_follower:  # whatever it is, the leader knows better
            self._plan.prefer(partition, None)
            self._doubt_replicas(partition)
        if from_follower and error.code in (ErrorCode.OFFSET_OUT_OF_RANGE, ErrorCode.OFFSET_NOT_AVAILABLE):
            self._put_off(partition)
        elif error.code == ErrorCode.OFFSET_OUT_OF_RANGE:
            self._out_of_range(partition, offset, error)
        elif isinstance(error, OffsetMovedToTieredStorageError):
            partition.failed(error)
        elif hinted:
            pass  # the new leader is known already (KIP-951)
        elif error.retriable:
            if error.refresh_metadata:
                self._metadata.request_update()
            self._put_off(partition)
        else:
            partition.failed(error)

    def _out_of_range(self, partition: AssignedPartition, offset: int, cause: BrokerResponseError) -> None:
        if partition.position is not None and partition.position < offset:  # first deliver what is fetched
            self._put_off(partition, longest=True)
        elif self._plan.failures(partition) and self._config.offset_reset.strategy != "none":
            self._put_off(partition, reset=True)  # where the last reset led was out of range, too
        else:
            self._put_off(partition)
            self._resets.out_of_range(partition, cause)

    def _put_off(self, partition: AssignedPartition, *, reset: bool = False, longest: bool = False) -> None:
        first, most = self._config.retry_backoff_ms, self._config.retry_backoff_max_ms
        wait = backoff(self._plan.failures(partition) + 1, most if longest else first, most)
        self._plan.put_off(partition, trio.current_time() + wait, reset=reset)

    def _note_silence(self, session: FetchSession, request: SessionRequest, response: FetchResponse, node: Node) -> None:
        """A response to a full request has to name all that was asked for. What it left out waits."""
        told = {(part.topic, part.partition) for part in response.partitions}
        for topic, parts in request.topics.items():
            for number, *_ in parts:
                if (topic, number) not in told and (wanted := session.asked.get(TopicPartition(topic, number))) is not None:
                    _log.warning("%s said nothing of %s, which was to be fetched", node, wanted.ticket.partition.tp)
                    self._put_off(wanted.ticket.partition)

    def _learn_leaders(self, response: FetchResponse) -> frozenset[TopicPartition]:
        """Take in the hints who leads by now (KIP-951); returns the partitions for which they were news."""
        hints: dict[TopicPartition, LeaderIdAndEpoch] = {
            TopicPartition(part.topic, part.partition): part.current_leader
            for part in response.partitions
            if part.error_code and part.current_leader is not None
        }
        nodes = [Node(*each) for each in response.node_endpoints]
        return self._metadata.learn_leaders(hints, nodes) if hints else frozenset()


def _unpinned(records: memoryview) -> memoryview:
    """The records, copied if they are a small part of a large response, which they would keep in memory."""
    whole = memoryview(records.obj).nbytes
    return memoryview(bytes(records)) if whole >= _LARGE_RESPONSE and len(records) * 8 < whole else records
