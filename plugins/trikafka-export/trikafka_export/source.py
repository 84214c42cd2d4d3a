"""An export's requests to Kafka: partitions, their beginnings and ends, the group's offsets.

Each leader is asked separately, and its timeout is noted for its partitions: a leader that does not
answer delays no other.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

import trio

from trikafka import (
    Consumer,
    ExportError,
    KafkaTimeoutError,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    PartitionInfo,
    TopicPartition,
    TrikafkaError,
    open_consumer,
)
from trikafka.interfaces import ExportState

from .plan import SourceView, is_added
from .shared_log import Reminders

#: Seconds for listing the topics, which only improves an error message.
_NAMES_WITHIN = 5
Start = str | int | Mapping[TopicPartition, int]


@dataclass
class Look:
    """The cluster's answers, the timeouts of some partitions, and the missing topics.

    ``known``: names of existing topics, for suggestions; empty if no topic is newly missing.
    """

    view: SourceView
    errors: dict[TopicPartition, KafkaTimeoutError] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    known: Collection[str] = ()
    fatal: TrikafkaError | None = None


@dataclass(frozen=True)
class FirstOffsets:
    """The offsets at which new partitions begin.

    ``late``: the topics for which the start has not come yet, if no record of them is as late.
    """

    offsets: Mapping[TopicPartition, int]
    late: Sequence[str] = ()


class ExportSource:
    """The cluster, as an export sees it. Each method opens a client of its own."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._settings = settings
        self._missing: set[str] = set()
        #: The partitions that were logged as suspended, by all runs of an exporter.
        self.skipped = Reminders(trio.current_time)

    def _client(
        self, isolation_level: str, group_id: str | None = None
    ) -> AbstractAsyncContextManager[Consumer]:
        settings = {**self._settings, "isolation_level": isolation_level}
        return open_consumer(
            **settings, group_id=group_id, enable_auto_commit=False, auto_offset_reset="none"
        )

    async def topic_ids(
        self, topics: Iterable[str], isolation_level: str
    ) -> tuple[str | None, dict[str, str | None]]:
        """Return the cluster's id, and the ids of the topics that exist.

        An id is ``None`` where the broker has none.
        """
        async with self._client(isolation_level) as consumer:
            # One response may be of a broker that does not know a new topic yet, and a topic that
            # counts as gone may lose records. So partitions_for() decides, which asks again.
            names = dict.fromkeys(topics)
            there = [topic for topic in names if await consumer.partitions_for(topic)]
            return consumer.cluster_id, await _ids(consumer, there)

    async def look(
        self,
        topics: Iterable[str],
        isolation_level: str,
        only: frozenset[TopicPartition] | None,
        timeout: float | None,
    ) -> Look:
        """Return beginnings and ends of all partitions, or of ``only`` some.

        Each leader has ``timeout`` seconds.
        """
        look = Look(SourceView(None, {}, {}, {}))
        async with self._client(isolation_level) as consumer:
            infos: list[PartitionInfo] = []
            counts: dict[str, int] = {}
            for topic in topics:
                partitions = await consumer.partitions_for(topic)
                if not partitions:
                    look.missing.append(topic)
                counts[topic] = len(partitions)
                infos += [
                    info
                    for info in partitions
                    if only is None or TopicPartition(topic, info.partition) in only
                ]
            if not self._missing.issuperset(look.missing):
                # Without the permission to list topics, no names are suggested.
                with suppress(TrikafkaError):
                    look.known = await consumer.list_topics(timeout=_NAMES_WITHIN)
            ids = await _ids(consumer, [topic for topic in topics if topic not in look.missing])
            look.view = SourceView(consumer.cluster_id, ids, {}, {}, counts)
            by_leader: dict[object, list[TopicPartition]] = {}
            # One request for each leader, side by side: a leader that does not answer then costs
            # its own partitions a timeout, and the others nothing. A partition without a leader is
            # asked for alone, for the same reason.
            for info in infos:
                tp = TopicPartition(info.topic, info.partition)
                by_leader.setdefault(tp if info.leader is None else info.leader, []).append(tp)
            async with trio.open_nursery() as nursery:
                for tps in by_leader.values():
                    nursery.start_soon(_ask, consumer, tps, look, timeout)
        if look.fatal is not None:
            raise look.fatal
        self._missing &= set(look.missing)
        return look

    def is_news(self, missing: str) -> bool:
        """Return whether the last look is the first one without this topic.

        Repeated exports log a missing topic once.
        """
        known = missing in self._missing
        self._missing.add(missing)
        return not known

    async def first_offsets(
        self, start: Start, state: ExportState, view: SourceView, isolation_level: str
    ) -> FirstOffsets:
        """Return the offsets at which partitions begin that were not exported before.

        The others begin at their beginning. A time in ``start`` is for new topics. Partitions that
        were added to an exported topic begin at the time of that topic's first export: records
        between the two times would be lost.
        """
        new = [tp for tp in view.beginnings if tp not in state.positions]
        given = {tp: start[tp] for tp in new if tp in start} if isinstance(start, Mapping) else {}
        first = start if isinstance(start, int) else None
        times = {
            tp: since
            for tp in new
            if tp not in given
            and (since := state.since.get(tp.topic) if tp.topic in state.topic_ids else first)
            is not None
        }
        if not times:
            return FirstOffsets(given)
        async with self._client(isolation_level) as consumer:
            found = await consumer.offsets_for_times(times)
        offsets = given | {tp: _offset_at(found.get(tp), tp, state, view) for tp in times}
        # Only the caller's start is judged, and only where it is about to be used. The times of
        # topics that the destination has already were judged at their first export.
        starting = [tp for tp in times if tp.topic not in state.topic_ids]
        if (
            first is None
            or first <= time.time() * 1000
            or any(found.get(tp) is not None for tp in starting)
        ):
            return FirstOffsets(offsets)
        return FirstOffsets(offsets, sorted({tp.topic for tp in starting}))

    async def commit(
        self, group_id: str, isolation_level: str, ours: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        """Commit offsets of the group where they are behind ``ours``; return these.

        A deleted topic has no offsets any more, and none can be committed for it. Raises
        :exc:`ExportError`.
        """
        try:
            async with self._client(isolation_level, group_id) as consumer:
                known = await consumer.committed(list(ours))
                behind = {
                    tp: at
                    for tp, at in ours.items()
                    if (now := known.get(tp)) is None or now.offset < at
                }
                there = {
                    topic
                    for topic in {tp.topic for tp in behind}
                    if await consumer.partitions_for(topic)
                }
                behind = {tp: at for tp, at in behind.items() if tp.topic in there}
                if behind:
                    await consumer.commit({tp: OffsetAndMetadata(at) for tp, at in behind.items()})
                return behind
        except TrikafkaError as error:
            raise ExportError(
                f"the data is published, but the offsets of group {group_id!r} could not be "
                f"committed (the next export will try again): {error}"
            ) from error


def _offset_at(
    found: OffsetAndTimestamp | None, tp: TopicPartition, state: ExportState, view: SourceView
) -> int:
    """Return the first offset of a partition to export, from the one found for its topic's start.

    If all records that are left in an added partition are as young as that start, those that
    retention deleted may have been so, too: they count as lost.
    """
    offset = view.ends[tp] if found is None else min(found.offset, view.ends[tp])
    return 0 if offset == view.beginnings[tp] and is_added(state, tp) else offset


async def _ask(
    consumer: Consumer, tps: list[TopicPartition], look: Look, timeout: float | None
) -> None:
    try:
        beginnings = await consumer.beginning_offsets(tps, timeout=timeout)
        ends = await consumer.end_offsets(tps, timeout=timeout)
    except TrikafkaError as error:
        if not isinstance(error, KafkaTimeoutError):
            look.fatal = error
            return
        look.errors.update(dict.fromkeys(tps, error))
        return
    look.view = replace(
        look.view,
        beginnings={**look.view.beginnings, **beginnings},
        ends={**look.view.ends, **ends},
    )


async def _ids(consumer: Consumer, topics: Collection[str]) -> dict[str, str | None]:
    """Return the ids of existing topics, as plans hold them; ``None`` for an unknown id."""
    found = await consumer.topic_ids(topics) if topics else {}
    return {topic: None if (known := found.get(topic)) is None else str(known) for topic in topics}
