"""The offsets manager: where partitions begin and end, and which offset belongs to a time (ListOffsets)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from functools import partial

from kafka.protocol.consumer.offsets import ListOffsetsRequest

from .._net.brokers import Brokers
from .._net.gather import all_of
from ..errors import ProtocolError, TrikafkaError, from_code
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
        unknown = {tp.topic for tp in missing if tp.topic not in self._metadata.snapshot.topics}
        if unknown:
            await call.step("look up the topics", lambda: self._metadata.refresh(unknown))
        by_leader: dict[Node, list[TopicPartition]] = defaultdict(list)
        leaderless: TrikafkaError | None = None
        for tp in missing:
            try:
                by_leader[self._metadata.snapshot.leader(tp)].append(tp)
            except TrikafkaError as error:
                leaderless = error
        if leaderless is not None and not by_leader:
            await call.step("look up the leaders", lambda: self._metadata.refresh({tp.topic for tp in missing}))
            raise leaderless
        works = [partial(self._ask, call, node, tps, wanted, found) for node, tps in by_leader.items()]
        await all_of(works)
        if leaderless is not None:
            raise leaderless
        return found

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
                        failure = from_code(part.error_code, str(tp))
                elif part.offset < 0:
                    found[tp] = None
                else:
                    epoch = part.leader_epoch if part.leader_epoch is not None and part.leader_epoch >= 0 else None
                    found[tp] = OffsetAndTimestamp(part.offset, part.timestamp, epoch)
        if failure is not None:
            raise failure
        if not all(tp in found for tp in tps):
            raise ProtocolError(f"{node} did not respond for each partition that ListOffsets asked for")

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


def end_or_none(found: OffsetAndTimestamp | None) -> int:
    """The offset of a look-up by :class:`OffsetSpec`, which always finds one."""
    return found.offset if found is not None else 0


__all__ = ["Found", "OffsetSpec", "Offsets", "end_or_none"]
