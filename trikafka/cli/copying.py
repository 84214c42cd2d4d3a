"""The work of ``trikafka copy``: records of topics into a topic, of this or another cluster.

Several batches are under way at once. A batch counts as copied, and is committed, once the other
cluster has acknowledged it and all batches before it. So a copy that was killed goes on with its
group and loses nothing; records that were not committed yet may be there twice.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import click
import trio

from .._api.admin.opening import open_admin
from .._api.admin.types import NewTopic
from .._api.consumer.consumer import Consumer
from .._api.consumer.opening import open_consumer
from .._api.producer.arrow_sending import ArrowAck
from .._api.producer.opening import open_producer
from .._api.producer.producer import Producer
from .._net.gather import with_background
from .._wire.column_rows import ColumnRows
from .._wire.columns import RecordBatch
from ..config import AdminConfig, settings_of
from ..errors import ArrowDeliveryError, TopicAlreadyExistsError, TrikafkaError
from ..errors.counts import counted
from ..interfaces import RebalanceListener
from ..types import OffsetSpec, TopicPartition
from .admin import no_topic
from .consuming import ConsumePlan, Consuming
from .delivered import Delivered
from .partly import whole
from .progress import warn
from .running import LEAVING_LIMIT, Stop

#: Batches without an outcome. Their bytes are bounded by the producer's buffer_memory.
_MOST = 64
#: Seconds between two commits.
_COMMIT_EVERY = 5.0
#: Seconds until a topic that was made is known to the producer.
_KNOWN_WITHIN = 30.0
#: Seconds for the look-up of settings on which only a warning depends.
_SETTINGS_WITHIN = 5.0
#: Settings of a topic that are not copied to the one that is made: the first would replace the
#: timestamps, the others name brokers of this cluster.
_NOT_COPIED = {
    "message.timestamp.type",
    "leader.replication.throttled.replicas",
    "follower.replication.throttled.replicas",
}


@dataclass(slots=True, eq=False)
class _UnderWay:
    """A batch that was handed to the producer.

    ``owned``: this member still has the partition, so it may commit the batch.
    """

    place: TopicPartition
    offsets: Sequence[int]
    next_offset: int
    ack: ArrowAck
    owned: bool = True


class Copying(Consuming):
    """One run of the command.

    ``to``: the topic; ``None``: each topic has its own name there, too. ``create``: missing topics
    are made.
    """

    def __init__(
        self,
        settings: dict[str, Any],
        plan: ConsumePlan,
        target: Mapping[str, Any],
        to: str | None,
        keep_partitions: bool,
        create: bool = True,
    ) -> None:
        # Records of an aborted transaction would be in the copy like any others, since a copy has
        # no transactions: readers there could no longer leave them out.
        settings = {"isolation_level": "read_committed", **settings}
        # A delivered record is not copied yet. So the command commits after the copy, and auto
        # commit is off.
        own = {} if plan.group is None else {"enable_auto_commit": False}
        super().__init__({**settings, **own}, plan)
        self._target = dict(target)
        self._to = to
        self._keep_partitions = keep_partitions
        self._create = create
        self._producer: Producer
        self._stop: Stop
        self._scope = trio.CancelScope()
        self._under_way: deque[_UnderWay] = deque()
        self._changed = trio.lowlevel.ParkingLot()
        self._copied: dict[TopicPartition, int] = {}  # the offsets to commit
        self._failed: dict[TopicPartition, click.ClickException] = {}
        self._untimed: set[TopicPartition] = set()  # warned of timestamps before 1970
        self.delivered = Delivered()

    async def main(self, stop: Stop) -> None:
        """Copy until the end, the count or a signal."""
        self._stop = stop
        async with (
            open_producer(**self._target) as self._producer,
            open_consumer(**self._settings) as consumer,
        ):
            commit = partial(self._commit_regularly, consumer)
            await with_background((self._settle, commit), lambda: self._copy(consumer))

    async def _copy(self, consumer: Consumer) -> None:
        broken: Exception | None = None
        with self._stop.here(), self._scope:
            try:
                await self._check_target(consumer)
                await self._consume(consumer)
            # What is under way has its outcome all the same, and is committed.
            except Exception as error:
                broken = error
        try:
            if broken is None:
                await self._until(lambda: not self._under_way)
            else:
                await self._wait_while_answered()
        except trio.Cancelled:
            self._warn_of_unknown()
            raise
        failures = [*self._failed.values(), *([] if broken is None else [broken])]
        if self._under_way:
            self._warn_of_unknown()
            await self._producer.aclose(0)  # then each batch has its outcome
            await self._until(lambda: not self._under_way)
        try:
            await self._commit(consumer, None if broken is None else LEAVING_LIMIT)
        except click.ClickException as error:
            if not failures:
                raise
            warn(error.message)
        for failure in failures:
            raise failure

    # The command has failed already. A cluster that does not answer would delay its error by
    # delivery_timeout_ms, so what it owes is waited for only while outcomes arrive.
    async def _wait_while_answered(self) -> None:
        """Wait for the batches under way, until none gets its outcome within LEAVING_LIMIT."""
        left = len(self._under_way) + 1
        while 0 < len(self._open()) < left:
            left = len(self._open())
            with trio.move_on_after(LEAVING_LIMIT):
                await self._until(lambda: not self._under_way)

    def _open(self) -> list[_UnderWay]:
        """Return the batches without an outcome; outcomes may be known of those behind them."""
        return [each for each in self._under_way if not each.ack.done]

    def _warn_of_unknown(self) -> None:
        """Warn of the offsets from which on records have no acknowledgement."""
        firsts: dict[TopicPartition, int] = {}
        for each in self._open():
            firsts.setdefault(each.place, each.offsets[0])
        for place, offset in firsts.items():
            warn(
                f"no acknowledgement for {place} from offset {offset} on: records from there may "
                "be written or not"
            )

    async def _places(self, consumer: Consumer) -> list[TopicPartition]:
        places = await super()._places(consumer)
        # Without a group nothing remembers what was copied: the next copy begins at the start.
        if self._plan.group is None and self._ends_by_itself and self._lost:
            raise click.ClickException(
                "nothing was copied, so that the command can be repeated; with --group it copies "
                "the other partitions, and a later run copies the rest"
            )
        return places

    def _subscribe(self, consumer: Consumer) -> None:
        """Subscribe to the topics; partitions that are revoked are copied and committed first."""
        listener = _Revoked(partial(self._finish, consumer), self._forget)
        consumer.subscribe(self._plan.topics, listener)

    # The topics of the other cluster.

    async def _check_target(self, consumer: Consumer) -> None:
        """Check that each topic is there, or make it, and that it has the partitions it needs.

        Raises:
            click.ClickException: It is not, or has not; or it is the topic that is read.
        """
        await self._check_clusters(consumer)
        sources: dict[str, dict[str, int]] = {}
        for topic in self._plan.topics:
            here = len(await consumer.partitions_for(topic))
            if not here:
                raise await no_topic(self._settings, topic)
            sources.setdefault(self._to or topic, {})[topic] = here
        # All topics are checked before the first one is made, so that an error leaves none behind.
        missing = []
        for to, of in sources.items():
            there = len(await self._producer.partitions_for(to))
            if there:
                self._check_partitions(of, to, there)
            elif not self._create:
                raise await no_topic(self._target, to)
            else:
                missing.append(to)
        for to in missing:
            like = max(sources[to], key=sources[to].__getitem__)  # the others fit into it, too
            self._check_partitions(sources[to], to, await self._make(like, to, sources[to][like]))
        await self._warn_of_append_time(sources)

    def _check_partitions(self, sources: Mapping[str, int], to: str, there: int) -> None:
        for topic, here in sources.items():
            if self._keep_partitions and there < here:
                raise click.ClickException(
                    f"topic {topic!r} has {counted(here, 'partition')}, and {to!r} only {there}: "
                    "without --keep-partitions keys decide"
                )

    async def _warn_of_append_time(self, topics: Collection[str]) -> None:
        """Warn of topics whose broker replaces the timestamps of records."""
        # Only a warning depends on the look-up: without the right to see the settings there is none.
        with suppress(TrikafkaError):
            async with open_admin(**_of_admin(self._target)) as admin:
                asked = admin.topic_configs(topics, include_defaults=True, timeout=_SETTINGS_WITHIN)
                for topic, config in (await asked).items():
                    if config.get("message.timestamp.type") == "LogAppendTime":
                        warn(
                            f"topic {topic!r} has message.timestamp.type=LogAppendTime: the copies "
                            "of records get the time of the copy"
                        )

    async def _check_clusters(self, consumer: Consumer) -> None:
        """Check that no topic is copied into itself: another address may be the same cluster."""
        same = [topic for topic in self._plan.topics if (self._to or topic) == topic]
        if not same:
            return
        await consumer.partitions_for(same[0])  # then the consumer knows its cluster
        async with open_admin(**_of_admin(self._target)) as admin:
            there = (await admin.describe_cluster()).cluster_id
        if there is not None and there == consumer.cluster_id:
            raise click.ClickException(
                f"both addresses are those of one cluster ({there}), and {same[0]!r} would be "
                "copied into itself: give --to-topic with another name"
            )

    async def _make(self, topic: str, to: str, partitions: int) -> int:
        """Make a topic like ``topic``; return its number of partitions."""
        config: Mapping[str, str | None] = {}
        try:
            async with open_admin(**_of_admin(self._settings)) as admin:
                config = (await admin.topic_configs([topic]))[topic]
        except TrikafkaError as error:
            warn(f"the settings of topic {topic!r} cannot be read, so those of {to!r} are the "
                 f"cluster's: {error}")  # fmt: skip
        own = {n: v for n, v in config.items() if v is not None and n not in _NOT_COPIED}
        async with open_admin(**_of_admin(self._target)) as admin:
            try:
                await admin.create_topics({to: NewTopic(partitions, config=own)})
            except TopicAlreadyExistsError:
                return len(await self._producer.partitions_for(to))
        few = f"{partitions} partition" + "s" * (partitions > 1)
        but = f" and its settings ({', '.join(sorted(own))})" if own else ""
        warn(f"topic {to!r} was missing: made it with {few}, as {topic!r} has{but}")
        with trio.move_on_after(_KNOWN_WITHIN):
            while not await self._producer.partitions_for(to):  # noqa: ASYNC110
                await trio.sleep(0.1)
        return partitions

    # For a reader of committed records, the end of a partition is the offset of its first open
    # transaction. A copy up to there would leave out all records behind it, without an error, and
    # for good if the transaction hangs. So these two look the offsets up as a reader of all
    # records.
    async def _ends(
        self, consumer: Consumer, places: Collection[TopicPartition]
    ) -> dict[TopicPartition, int]:
        """Return the ends of the log: open transactions before them are waited for."""
        found = await self._listed(dict.fromkeys(places, OffsetSpec.LATEST))
        ends = {tp: end for tp, end in found.items() if end is not None}
        for tp, stable in (await consumer.end_offsets(places)).items():
            if stable < ends.get(tp, 0):
                warn(
                    f"{tp} has an open transaction, which began at offset {stable}: the copy waits"
                    " for its end. Is it hanging ('trikafka transactions find-hanging')?"
                    " -X isolation.level=read_uncommitted copies open and aborted records, too"
                )
        return ends

    async def _firsts(
        self, consumer: Consumer, places: Collection[TopicPartition], time: int
    ) -> dict[TopicPartition, int | None]:
        return await self._listed(dict.fromkeys(places, time))

    async def _listed(
        self, wanted: Mapping[TopicPartition, OffsetSpec | int]
    ) -> dict[TopicPartition, int | None]:
        async with open_admin(**_of_admin(self._settings)) as admin:
            found = await whole(admin.list_offsets(wanted))
        return {tp: None if place is None else place.offset for tp, place in found.items()}

    # Records.

    async def _take(self, consumer: Consumer, batch: RecordBatch) -> bool:
        """Hand a batch to the producer; return whether the requested count is reached."""
        count = self._plan.count
        some = batch if count is None else batch[: count - self._printed]
        rows = ColumnRows(
            some.columns,
            keyed=True,
            timed=True,
            partition=batch.partition if self._keep_partitions else None,
        )
        await self._until(lambda: len(self._under_way) < _MOST)
        place = TopicPartition(batch.topic, batch.partition)
        self._warn_of_times(place, some)
        # A signal does not cut a batch: a part of it would be there, and not known.
        with self._stop.finishing():
            try:
                ack = await self._producer.enqueue_arrow(self._to or batch.topic, rows)
            except trio.Cancelled:
                warn(f"records of {place} from offset {some.offsets[0]} on may be there or not")
                raise
            except TrikafkaError as error:
                self._fail(place, some.offsets, error)
                return True
            self._under_way.append(_UnderWay(place, some.offsets, some.next_offset, ack))
            self._changed.unpark_all()
        self._printed += len(some)
        return self._printed == count

    def _warn_of_times(self, place: TopicPartition, batch: RecordBatch) -> None:
        """Warn once of timestamps before 1970, which no producer may write; -1 stands for none."""
        times = batch.timestamps
        if place in self._untimed or min(times, default=0) >= -1:
            return
        self._untimed.add(place)
        first = next(at for at, time in zip(batch.offsets, times, strict=True) if time < -1)
        warn(
            f"{place} has timestamps before 1970, the first one at offset {first}: no producer may "
            "write them, so these records get the time of the copy"
        )

    async def _settle(self) -> None:
        """Wait for the outcome of each batch, in order."""
        while True:
            await self._until(lambda: bool(self._under_way))
            each = self._under_way[0]  # stays there if the wait is cancelled
            try:
                outcome = await each.ack.wait()
            except TrikafkaError as error:
                self._fail(each.place, each.offsets, error)
            else:
                self.delivered.add(outcome.partitions)
                if each.place in self._failed:
                    self._warn_of_double(each.place, each.offsets[0])
                elif each.owned:
                    self._copied[each.place] = each.next_offset
            self._under_way.popleft()
            self._meter(self.delivered.count)
            self._changed.unpark_all()

    def _fail(self, place: TopicPartition, offsets: Sequence[int], error: TrikafkaError) -> None:
        """Record the first failure of a partition: no offset after it is committed."""
        where, reason = f"offset {offsets[0]}", f"{error}"
        if isinstance(error, ArrowDeliveryError):
            self.delivered.add(error.partitions)
            later = " or later" if error.row is None else ""
            where = f"offset {offsets[error.row or 0]}{later}"
            reason = f"{error.error}"
            if error.delivered:
                self._warn_of_double(place, offsets[0])
        if place not in self._failed:
            self._failed[place] = click.ClickException(f"{place} {where}: {reason}")
            self._failed[place].__cause__ = error
        self._scope.cancel()

    def _warn_of_double(self, place: TopicPartition, offset: int) -> None:
        warn(f"some records of {place} from offset {offset} on are there already: the next copy "
             "writes them again")  # fmt: skip

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await self._changed.park()

    # The group.

    async def _commit_regularly(self, consumer: Consumer) -> None:
        while True:
            await trio.sleep(_COMMIT_EVERY)
            try:
                await self._commit(consumer)
            except click.ClickException as error:  # the commit at the end is decisive
                warn(error.message)

    async def _commit(self, consumer: Consumer, limit: float | None = None) -> None:
        """Commit what was copied of the partitions that this member has, within ``limit`` seconds.

        Raises:
            click.ClickException: The commit failed.
        """
        if self._plan.group is None:
            return
        owned = consumer.assignment()
        offsets = {tp: offset for tp, offset in self._copied.items() if tp in owned}
        if not offsets:
            return
        try:
            await consumer.commit(offsets, timeout=limit)
        except TrikafkaError as error:
            raise click.ClickException(
                f"what was copied is not committed, so the next copy writes it again: {error}"
            ) from error
        for tp, offset in offsets.items():
            if self._copied.get(tp) == offset:
                del self._copied[tp]

    async def _finish(self, consumer: Consumer, partitions: Sequence[TopicPartition]) -> None:
        """Let the batches of revoked partitions end, and commit them."""
        revoked = set(partitions)
        try:
            await self._until(lambda: not any(each.place in revoked for each in self._under_way))
            await self._commit(consumer)
        except click.ClickException as error:
            warn(error.message)
        finally:
            self._forget(revoked)

    # Another member may have copied and committed more by now. Once this member has the partition
    # again, a commit of what it copied before would set the group back.
    def _forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Commit nothing of partitions that this member does not have any more."""
        gone = set(partitions)
        for tp in gone:
            self._copied.pop(tp, None)
        for each in self._under_way:
            each.owned = each.owned and each.place not in gone


class _Revoked(RebalanceListener):
    """A listener for partitions that this member has to hand over, or has lost."""

    def __init__(
        self,
        finish: Callable[[Sequence[TopicPartition]], Awaitable[None]],
        forget: Callable[[Sequence[TopicPartition]], None],
    ) -> None:
        self._finish = finish
        self._forget = forget

    async def on_partitions_revoked(self, partitions: Sequence[TopicPartition]) -> None:
        await self._finish(partitions)

    async def on_partitions_lost(self, partitions: Sequence[TopicPartition]) -> None:
        self._forget(partitions)


def _of_admin(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of a client's settings that an admin client has."""
    return {name: value for name, value in settings.items() if name in settings_of(AdminConfig)}
