"""The offsets manager: where partitions begin and end, and which offset belongs to a time (ListOffsets)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from functools import partial

from kafka.protocol.consumer.offsets import ListOffsetsRequest

from .._net.brokers import Brokers
from .._net.gather import all_of
from ..errors import DamagedResponseError, ErrorCode, TrikafkaError, from_code
from ..interfaces import Call, Found, MetadataManager
from ..types import Node, OffsetAndTimestamp, OffsetSpec, TopicPartition


class Offsets:
    """Asks the leaders of partitions, all at once."""

    def __init__(self, brokers: Brokers, metadata: MetadataManager, isolation: int = 0) -> None:
        self._brokers, self._metadata, self._isolation = brokers, metadata, isolation

    async def look_up(self, call: Call, wanted: Mapping[TopicPartition, int], found: Found) -> Found:
        """One attempt to find all of ``wanted`` (partition -> ms since the epoch or :class:`OffsetSpec`) not in ``found`` yet.

        Raises the error of a partition or broker that failed; what others responded stays in ``found`` for the next attempt.
        """
        missing = [tp for tp in wanted if tp not in found]
        by_leader, leaderless = self._by_leader(missing)
        if leaderless:
            await call.step("look up the leaders", lambda: self._metadata.refresh({tp.topic for tp in leaderless}))
            by_leader, leaderless = self._by_leader(missing)
        failure: TrikafkaError | None = None
        for tp, error in leaderless.items():
            if self._metadata.snapshot.lacks(tp):  # and that is fresh: it will not appear by waiting
                error.retriable = False
            if failure is None or failure.retriable:
                failure = error
        await all_of([partial(self._ask, call, node, tps, wanted, found) for node, tps in by_leader.items()])
        if failure is not None:
            raise failure
        return found

    def _by_leader(
        self, tps: list[TopicPartition]
    ) -> tuple[dict[Node, list[TopicPartition]], dict[TopicPartition, TrikafkaError]]:
        """The partitions by the broker that leads them; and those that have none, with the reason."""
        by_leader: dict[Node, list[TopicPartition]] = defaultdict(list)
        leaderless: dict[TopicPartition, TrikafkaError] = {}
        for tp in tps:
            try:
                by_leader[self._metadata.snapshot.leader(tp)].append(tp)
            except TrikafkaError as error:
                leaderless[tp] = error
        return by_leader, leaderless

    async def _ask(
        self, call: Call, node: Node, tps: list[TopicPartition], wanted: Mapping[TopicPartition, int], found: Found
    ) -> None:
        request = self._request(tps, wanted)
        response = await call.step(f"ListOffsets to {node}", lambda: self._brokers.request(node, request))
        failure: TrikafkaError | None = None
        for topic in response.topics:
            for part in topic.partitions:
                tp = TopicPartition(topic.name, part.partition_index)
                if part.error_code:
                    if failure is None or failure.retriable:
                        failure = from_code(part.error_code, str(tp), operation="Describe")
                elif part.offset < 0 and wanted.get(tp) in (OffsetSpec.EARLIEST, OffsetSpec.LATEST):
                    failure = failure or from_code(ErrorCode.OFFSET_NOT_AVAILABLE, f"{tp}: {node} gave no offset")
                elif part.offset < 0:
                    found[tp] = None  # no record is that young
                else:
                    epoch = part.leader_epoch if part.leader_epoch is not None and part.leader_epoch >= 0 else None
                    found[tp] = OffsetAndTimestamp(part.offset, part.timestamp, epoch)
        if failure is not None:
            raise failure
        if not all(tp in found for tp in tps):
            silent = ", ".join(str(tp) for tp in tps if tp not in found)
            raise DamagedResponseError(f"{node} said nothing of {silent}, which ListOffsets asked for")

    def _request(self, tps: list[TopicPartition], wanted: Mapping[TopicPartition, int]) -> ListOffsetsRequest:
        by_topic: dict[str, list[object]] = defaultdict(list)
        for tp in tps:
            by_topic[tp.topic].append(
                ListOffsetsRequest.ListOffsetsTopic.ListOffsetsPartition(
                    partition_index=tp.partition,
                    current_leader_epoch=self._metadata.snapshot.leader_epoch(tp),
                    timestamp=int(wanted[tp]),
                )
            )
        topics = [ListOffsetsRequest.ListOffsetsTopic(name=name, partitions=parts) for name, parts in by_topic.items()]
        return ListOffsetsRequest(replica_id=-1, isolation_level=self._isolation, topics=topics, timeout_ms=30_000)


__all__ = ["Found", "OffsetSpec", "Offsets"]
