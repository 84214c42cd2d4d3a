"""The admin client's view of transactions (KIP-664): look-ups, and the search for hanging ones.

A transaction hangs in a partition when the partition waits for its end and no coordinator knows it.
Nothing will ever write the marker, and ``read_committed`` readers stop before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from kafka.protocol.admin import (
    DescribeProducersRequest,
    DescribeTransactionsRequest,
    ListTransactionsRequest,
)
from kafka.protocol.producer import InitProducerIdRequest, WriteTxnMarkersRequest

from ..._net.deadlines import RunningCall
from ..._wire._format import MAX_INT64
from ...config.text import is_utf8
from ...config.whole import is_number, is_whole, whole
from ...error_codes import ErrorCode
from ...errors import (
    AdminErrors,
    ConfigurationError,
    TransactionNotOpenError,
    TrikafkaError,
    combined,
    from_code,
)
from ...interfaces import CoordinatorKind
from ...types import TopicPartition
from .messages import by_topic, number_or_none
from .routing import Parts, Routing
from .types import (
    TRANSACTION_STATES,
    HangingTransaction,
    ProducerDescription,
    TransactionDescription,
    TransactionListing,
)

#: The first versions of ListTransactions with a limit of duration (KIP-994) and a pattern
#: (KIP-1152).
_SINCE_DURATION, _SINCE_PATTERN = 1, 2
#: The longest transaction timeout that is sent. Brokers refuse one above their
#: ``transaction.max.timeout.ms``, which few clusters set lower than this. Such a cluster accepts a
#: call with a smaller ``timeout``.
_LONGEST_MS = 30_000
#: The producers that the leader of a partition remembers.
Producers: TypeAlias = tuple[ProducerDescription, ...]


@dataclass(frozen=True, slots=True)
class FencedProducer:
    """The producer id and epoch of a transactional id once its producers are fenced.

    Attributes:
        producer_id: The producer id.
        epoch: The epoch. Producers with an older one are refused.
    """

    producer_id: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Filters:
    """The filters of ListTransactions; ``longer_than`` is in seconds.

    Raises :exc:`ConfigurationError` for values that cannot match.
    """

    states: tuple[str, ...] = ()
    producer_ids: tuple[int, ...] = ()
    longer_than: float | None = None
    pattern: str | None = None

    def __post_init__(self) -> None:
        for state in self.states:
            if state not in TRANSACTION_STATES:
                raise ConfigurationError(
                    f"there is no state of a transaction {state!r}; they are "
                    f"{', '.join(TRANSACTION_STATES)}"
                )
        if self.longer_than is not None:
            check_seconds(self.longer_than)
        pattern = self.pattern
        if pattern is not None and not (isinstance(pattern, str) and is_utf8(pattern)):
            raise ConfigurationError(f"pattern must be text, not {self.pattern!r}")

    def request(self) -> ListTransactionsRequest:
        """Return a ListTransactions request in a version that has these filters."""
        low = (
            _SINCE_PATTERN
            if self.pattern
            else _SINCE_DURATION
            if self.longer_than is not None
            else 0
        )
        return ListTransactionsRequest(
            min_version=low,
            state_filters=list(self.states),
            producer_id_filters=list(self.producer_ids),
            duration_filter=-1 if self.longer_than is None else int(self.longer_than * 1000),
            transactional_id_pattern=self.pattern or None,
        )


async def listed(
    routing: Routing,
    call: RunningCall,
    parts: Parts[int, list[TransactionListing]],
    filters: Filters,
) -> None:
    """List the transactions of each broker, which coordinates them."""

    def read(response: Any) -> list[TransactionListing]:
        if response.error_code:
            raise from_code(response.error_code, "listing the transactions", operation="Describe")
        return [
            TransactionListing(each.transactional_id, each.producer_id, each.transaction_state)
            for each in response.transaction_states
        ]

    await routing.every_broker(call, parts, filters.request, read)


async def described(
    routing: Routing, call: RunningCall, parts: Parts[str, TransactionDescription]
) -> None:
    """Look up the transactional ids that are left at their coordinators."""

    def read(response: Any, names: list[str]) -> None:
        for each in response.transaction_states:
            name = each.transactional_id
            if not each.error_code:
                parts.done(name, _described(each))
                continue
            what = f"transactional id {name!r}"
            parts.failed(name, from_code(each.error_code, what, operation="Describe"))

    await routing.coordinators(
        call,
        CoordinatorKind.TRANSACTION,
        parts.left,
        lambda names: DescribeTransactionsRequest(transactional_ids=names),
        read,
        refuse=parts.refuse,
    )
    parts.check(parts.left, "DescribeTransactions")


async def producers(
    routing: Routing, call: RunningCall, parts: Parts[TopicPartition, Producers]
) -> None:
    """Look up the producers of the partitions that are left at their leaders."""
    topic = DescribeProducersRequest.TopicRequest

    def build(partitions: list[TopicPartition]) -> Any:
        return DescribeProducersRequest(
            topics=[
                topic(name=name, partition_indexes=numbers)
                for name, numbers in by_topic(partitions).items()
            ]
        )

    def read(response: Any, partitions: list[TopicPartition]) -> None:
        for each in response.topics:
            for part in each.partitions:
                tp = TopicPartition(each.name, part.partition_index)
                if part.error_code:
                    what = f"producers of {tp}"
                    parts.failed(tp, from_code(part.error_code, what, operation="Read"))
                else:
                    parts.done(tp, tuple(_producer(one) for one in part.active_producers))

    await routing.leaders(call, parts, build, read)
    parts.check(parts.left, "DescribeProducers")


def fence_request(names: Sequence[str], timeout_ms: int) -> InitProducerIdRequest:
    """Return the InitProducerId request that fences the producers of one transactional id.

    The coordinator raises the epoch of the id, and aborts its open transaction.

    Args:
        names: The transactional id alone: the request has room for one.
        timeout_ms: The time that the request may take.
    """
    # As a limit of transactions the timeout has no effect: none is begun, and the next producer
    # sends its own. But the coordinator also limits the replication of its own record by it. With
    # 1 ms, as in Java's client before KAFKA-16047, that replication times out wherever the
    # coordinator's log has followers.
    return InitProducerIdRequest(
        transactional_id=names[0],
        transaction_timeout_ms=min(timeout_ms, _LONGEST_MS),
        producer_id=-1,
        producer_epoch=-1,
    )


def read_fenced(response: Any, name: str, parts: Parts[str, FencedProducer]) -> None:
    """Record in ``parts`` the result of one InitProducerId request."""
    if response.error_code:
        what = f"transactional id {name!r}"
        parts.failed(name, from_code(response.error_code, what, operation="Write"))
    else:
        parts.done(name, FencedProducer(response.producer_id, response.producer_epoch))


class TransactionAbort:
    """The abort of the transaction at an offset of a partition, over all attempts of a call."""

    def __init__(self, routing: Routing, tp: TopicPartition, start_offset: int) -> None:
        self._routing = routing
        self._tp = tp
        self._start_offset = start_offset
        self._asked = False  # a leader may have written the marker

    async def attempt(self, call: RunningCall) -> None:
        """Write the marker that ends the transaction."""
        tp = self._tp
        found: Parts[TopicPartition, Producers] = Parts([tp], patient=True)
        await producers(self._routing, call, found)
        producer = next(
            (each for each in found.finish()[tp] if each.transaction_start == self._start_offset),
            None,
        )
        if producer is None:
            if self._asked:
                return  # an earlier attempt, which got no response, wrote the marker
            raise TransactionNotOpenError(
                f"{tp} has no open transaction that begins at offset {self._start_offset}"
            )
        aborted: Parts[TopicPartition, None] = Parts([tp], patient=True)

        def build(partitions: list[TopicPartition]) -> Any:
            self._asked = True
            return _abort_marker(tp, producer)

        def read(response: Any, partitions: list[TopicPartition]) -> None:
            for part in (
                part
                for marker in response.markers
                for topic in marker.topics
                for part in topic.partitions
            ):
                if part.error_code:
                    what = f"aborting the transaction at offset {self._start_offset} of {tp}"
                    error = from_code(part.error_code, what, operation="ClusterAction")
                    aborted.failed(tp, error)
                else:
                    aborted.done(tp, None)

        await self._routing.leaders(call, aborted, build, read)
        aborted.check(aborted.left, "WriteTxnMarkers")
        aborted.finish()


@dataclass(slots=True)
class HangingSearch:
    """One attempt of the search.

    ``before_ms``: a transaction whose last record is younger is left out. ``results`` and
    ``failures``: the partitions that were searched, and those that could not be.
    """

    routing: Routing
    before_ms: int
    results: dict[TopicPartition, list[HangingTransaction]] = field(default_factory=dict)
    failures: dict[TopicPartition, TrikafkaError] = field(default_factory=dict)

    async def search(self, call: RunningCall, partitions: Mapping[TopicPartition, bool]) -> None:
        """Find transactions that are open in a partition and unknown to every coordinator.

        The partitions come with whether they have a leader.
        """
        # A leader may be away for hours, and the other partitions have what is searched for.
        for tp, led in partitions.items():
            if not led:
                what = f"producers of {tp}"
                self.failures[tp] = from_code(ErrorCode.LEADER_NOT_AVAILABLE, what)
        self.results = {tp: [] for tp, led in partitions.items() if led}
        for found in await self._hanging(call, list(self.results)):
            self.results[found.partition].append(found)

    def finish(self) -> list[HangingTransaction]:
        """Return what hangs.

        Raises:
            AdminErrors: Some partitions could not be searched. The error of the only one is raised.
        """
        others = {tp: found for tp, found in self.results.items() if tp not in self.failures}
        if self.failures:
            raise AdminErrors.of(self.failures, others) if others else combined(self.failures)
        return [each for found in others.values() for each in found]

    async def _hanging(
        self, call: RunningCall, partitions: list[TopicPartition]
    ) -> list[HangingTransaction]:
        # Partitions and coordinators are asked one after the other. A transaction that ends in
        # between looks like a hanging one: it was open in the partition, and the coordinator no
        # longer knows it. So the partitions of the suspects are asked a second time, and only what
        # is still open there hangs.
        candidates = await self._open(call, partitions)
        if not candidates:
            return []
        numbers = {each.producer_id for _, each in candidates}
        brokers: Parts[int, list[TransactionListing]] = Parts(())
        filters = Filters(producer_ids=tuple(sorted(numbers)))
        await listed(self.routing, call, brokers, filters)
        # A coordinator that was not asked may know any of the candidates.
        if brokers.failures:
            raise combined(brokers.failures)
        names = {
            each.producer_id: each.transactional_id
            for known in brokers.results.values()
            for each in known
        }
        # An id that is gone by now, or may not be described, knows nothing of the partition.
        seen: Parts[str, TransactionDescription] = Parts(sorted(names.values()), patient=True)
        await described(self.routing, call, seen)

        def is_known(tp: TopicPartition, producer: ProducerDescription) -> bool:
            known = seen.results.get(names.get(producer.producer_id, ""))
            return (
                known is not None
                and known.producer_id == producer.producer_id
                and tp in known.partitions
            )

        unknown = [(tp, each) for tp, each in candidates if not is_known(tp, each)]
        still = {
            (tp, each.producer_id, each.transaction_start)
            for tp, each in (
                await self._open(call, dict.fromkeys(tp for tp, _ in unknown)) if unknown else ()
            )
        }
        hanging = [
            HangingTransaction(
                partition=tp,
                start_offset=each.transaction_start,
                producer_id=each.producer_id,
                producer_epoch=each.producer_epoch,
                last_timestamp=each.last_timestamp,
                transactional_id=names.get(each.producer_id),
            )
            for tp, each in unknown
            if each.transaction_start is not None
            and (tp, each.producer_id, each.transaction_start) in still
        ]
        return sorted(hanging, key=lambda each: (each.partition, each.start_offset))

    async def _open(
        self, call: RunningCall, partitions: Iterable[TopicPartition]
    ) -> list[tuple[TopicPartition, ProducerDescription]]:
        found: Parts[TopicPartition, Producers] = Parts(partitions, patient=True)
        await producers(self.routing, call, found)
        self.failures.update(found.failures)
        return [
            (tp, each)
            for tp, known in sorted(found.results.items())
            for each in known
            if each.transaction_start is not None
            and (each.last_timestamp is None or each.last_timestamp <= self.before_ms)
        ]


def checked_producers(producer_ids: Iterable[int]) -> tuple[int, ...]:
    """Return the ids of producers. Raises :exc:`ConfigurationError`."""
    if not isinstance(producer_ids, Iterable) or isinstance(producer_ids, str | bytes):
        raise ConfigurationError(
            f"producer_ids must be a collection of whole numbers, not {producer_ids!r}"
        )
    found = tuple(map(whole, producer_ids))
    for one in found:
        if not is_whole(one, most=MAX_INT64):
            raise ConfigurationError(f"a producer id is a whole number from 0, not {one!r}")
    return found


def check_seconds(longer_than: float) -> None:
    """Raise :exc:`ConfigurationError` unless the value is a number of seconds."""
    if not is_number(longer_than) or not 0 <= longer_than < 1e9:
        raise ConfigurationError(
            f"longer_than must be a number of seconds from 0, not {longer_than!r}"
        )


def _described(each: Any) -> TransactionDescription:
    partitions = sorted(
        TopicPartition(topic.topic, number) for topic in each.topics for number in topic.partitions
    )
    return TransactionDescription(
        each.transactional_id,
        each.transaction_state,
        each.producer_id,
        each.producer_epoch,
        each.transaction_timeout_ms / 1000,
        each.transaction_start_time_ms if each.transaction_start_time_ms >= 0 else None,
        tuple(partitions),
    )


def _producer(each: Any) -> ProducerDescription:
    return ProducerDescription(
        each.producer_id,
        each.producer_epoch,
        number_or_none(each.last_sequence),
        number_or_none(each.last_timestamp),
        number_or_none(each.coordinator_epoch),
        number_or_none(each.current_txn_start_offset),
    )


def _abort_marker(tp: TopicPartition, producer: ProducerDescription) -> WriteTxnMarkersRequest:
    marker = WriteTxnMarkersRequest.WritableTxnMarker
    topics = [marker.WritableTxnMarkerTopic(name=tp.topic, partition_indexes=[tp.partition])]
    return WriteTxnMarkersRequest(
        markers=[
            marker(
                producer_id=producer.producer_id,
                producer_epoch=producer.producer_epoch,
                transaction_result=False,
                topics=topics,
                # A partition without any marker so far knows no epoch: any value will do.
                coordinator_epoch=producer.coordinator_epoch or 0,
            )
        ]
    )
