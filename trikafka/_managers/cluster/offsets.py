"""The offsets manager: where partitions begin and end, and the offset of a time (ListOffsets)."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Mapping
from functools import partial

import trio
from kafka.protocol.consumer.offsets import ListOffsetsRequest

from ..._net.brokers import Brokers
from ..._net.gather import all_of
from ..._state.seconds import seconds_hint
from ..._wire.messages import portions
from ...errors import DamagedResponseError, ErrorCode, TrikafkaError, from_code
from ...errors.classes import combined
from ...interfaces import Call, Found, MetadataManager
from ...types import Node, OffsetAndTimestamp, OffsetSpec, TopicPartition

#: The version of ListOffsets from which a broker knows what to look up.
_SINCE: dict[int, int] = {
    OffsetSpec.MAX_TIMESTAMP: 7,
    OffsetSpec.EARLIEST_LOCAL: 8,
    OffsetSpec.LATEST_TIERED: 9,
    OffsetSpec.EARLIEST_PENDING_UPLOAD: 11,
}
_log = logging.getLogger("trikafka.offsets")


class Offsets:
    """The look-up of offsets at the leaders of partitions, all at once."""

    def __init__(self, brokers: Brokers, metadata: MetadataManager, isolation: int = 0) -> None:
        self._brokers = brokers
        self._metadata = metadata
        self._isolation = isolation
        self._hinted = False

    async def look_up(
        self, call: Call, wanted: Mapping[TopicPartition, int], found: Found
    ) -> Found:
        """Make one attempt to find those of ``wanted`` that are not in ``found`` yet.

        ``wanted`` maps partitions to a time (ms since the epoch) or an :class:`OffsetSpec`. What
        was found stays in ``found`` for the next attempt. Raises the :func:`combined` error of the
        partitions that failed.
        """
        missing = [tp for tp in wanted if tp not in found]
        self._check_times(wanted)
        by_leader, leaderless = await self._by_leader(missing)
        if leaderless:
            await call.step(
                "look up the leaders",
                lambda: self._metadata.refresh({tp.topic for tp in leaderless}),
            )
            by_leader, leaderless = await self._by_leader(missing)
        for tp, error in leaderless.items():
            # The metadata are fresh: waiting will not make the partition appear.
            if self._metadata.snapshot.lacks(tp):
                error.retriable = False
        failures: dict[TopicPartition, TrikafkaError] = dict(leaderless)
        questions = [
            (node, portion) for node, tps in by_leader.items() for portion in portions(tps)
        ]
        await all_of(
            [
                partial(self._ask, call, node, tps, wanted, found, failures)
                for node, tps in questions
            ]
        )
        if failures:
            raise combined(failures)
        return found

    def _check_times(self, wanted: Mapping[TopicPartition, int]) -> None:
        """Log, once a client, a time that is probably in seconds."""
        if self._hinted:
            return
        for time in set(wanted.values()):
            if (hint := seconds_hint(time)) is not None:
                self._hinted = True
                _log.warning("a time to look up was probably given in seconds: %s", hint)
                return

    async def _by_leader(
        self, tps: list[TopicPartition]
    ) -> tuple[dict[Node, list[TopicPartition]], dict[TopicPartition, TrikafkaError]]:
        """Return the partitions by leader, and those without one with the reason."""
        by_leader: dict[Node, list[TopicPartition]] = defaultdict(list)
        leaderless: dict[TopicPartition, TrikafkaError] = {}
        for portion in portions(tps):
            if by_leader or leaderless:
                await trio.lowlevel.checkpoint()
            snapshot = self._metadata.snapshot
            for tp in portion:
                try:
                    by_leader[snapshot.leader(tp)].append(tp)
                except TrikafkaError as error:
                    leaderless[tp] = error
        return by_leader, leaderless

    async def _ask(
        self,
        call: Call,
        node: Node,
        tps: list[TopicPartition],
        wanted: Mapping[TopicPartition, int],
        found: Found,
        failures: dict[TopicPartition, TrikafkaError],
    ) -> None:
        """Ask one leader; record the result of each partition in ``found`` or ``failures``."""
        request = self._request(tps, wanted)
        try:
            response = await call.step("ListOffsets", lambda: self._brokers.request(node, request))
        except TrikafkaError as error:
            failures.update(dict.fromkeys(tps, error))
            return
        asked = frozenset(tps)
        for topic in response.topics:
            for part in topic.partitions:
                tp = TopicPartition(topic.name, part.partition_index)
                if tp not in asked:
                    continue
                if part.error_code:
                    failures[tp] = from_code(part.error_code, str(tp), operation="Describe")
                elif part.offset < 0 and wanted.get(tp) in (OffsetSpec.EARLIEST, OffsetSpec.LATEST):
                    failures[tp] = from_code(
                        ErrorCode.OFFSET_NOT_AVAILABLE, f"{tp}: {node} gave no offset"
                    )
                elif part.offset < 0:
                    found[tp] = None  # no record is that young
                else:
                    epoch = (
                        part.leader_epoch
                        if part.leader_epoch is not None and part.leader_epoch >= 0
                        else None
                    )
                    found[tp] = OffsetAndTimestamp(part.offset, part.timestamp, epoch)
        if silent := [tp for tp in tps if tp not in found and tp not in failures]:
            names = ", ".join(map(str, silent))
            left_out = DamagedResponseError(
                f"{node} left {names} out of its response to ListOffsets"
            )
            failures.update(dict.fromkeys(silent, left_out))

    def _request(
        self, tps: list[TopicPartition], wanted: Mapping[TopicPartition, int]
    ) -> ListOffsetsRequest:
        by_topic: dict[str, list[object]] = defaultdict(list)
        for tp in tps:
            by_topic[tp.topic].append(
                ListOffsetsRequest.ListOffsetsTopic.ListOffsetsPartition(
                    partition_index=tp.partition,
                    current_leader_epoch=self._metadata.snapshot.leader_epoch(tp),
                    timestamp=int(wanted[tp]),
                )
            )
        topics = [
            ListOffsetsRequest.ListOffsetsTopic(name=name, partitions=parts)
            for name, parts in by_topic.items()
        ]
        # An older broker would take a special value for a time before 1970.
        oldest = max((_SINCE.get(int(wanted[tp]), 0) for tp in tps), default=0)
        return ListOffsetsRequest(
            replica_id=-1,
            isolation_level=self._isolation,
            topics=topics,
            timeout_ms=30_000,
            **({"min_version": oldest} if oldest else {}),
        )
