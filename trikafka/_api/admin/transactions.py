"""The admin client's view of transactions (KIP-664): look-ups, and the search for hanging ones.

A transaction hangs in a partition when the partition waits for its end and no coordinator knows it.
Nothing will ever write the marker, and ``read_committed`` readers stop before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from kafka.protocol.admin import (
    DescribeProducersRequest,
    DescribeTransactionsRequest,
    ListTransactionsRequest,
)
from kafka.protocol.producer import WriteTxnMarkersRequest

from ..._net.deadlines import RunningCall
from ..._net.gather import all_of
from ...errors import (
    ConfigurationError,
    DamagedResponseError,
    TransactionNotOpenError,
    TrikafkaError,
    from_code,
)
from ...interfaces import BrokerAccess, CoordinatorKind, CoordinatorManager, MetadataManager
from ...types import Node, TopicPartition
from ..client.option_parsing import is_utf8
from .places import at_coordinators, at_leaders
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


class TransactionLookups:
    """The requests to coordinators and leaders, one attempt each.

    ``found`` keeps the results between attempts.
    """

    def __init__(
        self, brokers: BrokerAccess, metadata: MetadataManager, coordinators: CoordinatorManager
    ) -> None:
        self._brokers = brokers
        self._metadata = metadata
        self._coordinators = coordinators

    async def listed(self, call: RunningCall, filters: Filters) -> list[TransactionListing]:
        """Return the transactions of all coordinators, by name."""
        seen = await call.step("look up the brokers", self._metadata.refresh)
        found: dict[str, TransactionListing] = {}

        async def ask(node: Node) -> None:
            response = await call.step(
                f"ListTransactions to {node}",
                lambda: self._brokers.request(node, filters.request()),
            )
            if response.error_code:
                raise from_code(
                    response.error_code, "listing the transactions", operation="Describe"
                )
            for each in response.transaction_states:
                found[each.transactional_id] = TransactionListing(
                    each.transactional_id, each.producer_id, each.transaction_state
                )

        await all_of([partial(ask, node) for node in seen.nodes.values()])
        return [found[name] for name in sorted(found)]

    async def described(
        self,
        call: RunningCall,
        names: Sequence[str],
        found: dict[str, TransactionDescription],
        failed: dict[str, TrikafkaError],
    ) -> None:
        """Look up transactional ids at their coordinators.

        An id that cannot be described is in ``failed`` then.
        """

        async def ask(node: Node, names: list[str]) -> None:
            request = DescribeTransactionsRequest(transactional_ids=names)
            response = await call.step(
                f"DescribeTransactions to {node}", lambda: self._brokers.request(node, request)
            )
            passing: TrikafkaError | None = None
            for each in response.transaction_states:
                if not each.error_code:
                    found[each.transactional_id] = _described(each)
                    continue
                error = from_code(
                    each.error_code,
                    f"transactional id {each.transactional_id!r}",
                    operation="Describe",
                )
                if error.retriable:
                    passing = error
                else:
                    failed[each.transactional_id] = error
            if passing is not None:
                raise passing

        left = [name for name in names if name not in found and name not in failed]
        await at_coordinators(call, self._coordinators, CoordinatorKind.TRANSACTION, left, ask)

    async def producers(
        self,
        call: RunningCall,
        partitions: Iterable[TopicPartition],
        found: dict[TopicPartition, tuple[ProducerDescription, ...]],
    ) -> None:
        """Look up the producers of partitions at their leaders."""

        async def ask(node: Node, parts: list[TopicPartition]) -> None:
            by_topic: dict[str, list[int]] = {}
            for tp in parts:
                by_topic.setdefault(tp.topic, []).append(tp.partition)
            topics = [
                DescribeProducersRequest.TopicRequest(name=name, partition_indexes=own)
                for name, own in by_topic.items()
            ]
            request = DescribeProducersRequest(topics=topics)
            response = await call.step(
                f"DescribeProducers to {node}", lambda: self._brokers.request(node, request)
            )
            failure = _read_producers(response, found)
            if failure is not None:
                raise failure
            if not all(tp in found for tp in parts):
                raise DamagedResponseError(
                    f"{node} left some partitions out of its response to DescribeProducers"
                )

        await at_leaders(call, self._metadata, [tp for tp in partitions if tp not in found], ask)

    async def abort(self, call: RunningCall, tp: TopicPartition, start_offset: int) -> None:
        """Write the marker that ends the transaction at that offset."""
        found: dict[TopicPartition, tuple[ProducerDescription, ...]] = {}
        await self.producers(call, [tp], found)
        producer = next(
            (each for each in found[tp] if each.transaction_start == start_offset), None
        )
        if producer is None:
            if call.attempts > 1:
                return  # an earlier attempt, which got no response, wrote the marker
            raise TransactionNotOpenError(
                f"{tp} has no open transaction that begins at offset {start_offset}"
            )

        async def ask(node: Node, parts: list[TopicPartition]) -> None:
            request = _abort_marker(tp, producer)
            response = await call.step(
                f"WriteTxnMarkers to {node}", lambda: self._brokers.request(node, request)
            )
            for marker in response.markers:
                for part in (part for topic in marker.topics for part in topic.partitions):
                    if part.error_code:
                        what = f"aborting the transaction at offset {start_offset} of {tp}"
                        raise from_code(part.error_code, what, operation="ClusterAction")

        await at_leaders(call, self._metadata, [tp], ask)


@dataclass(slots=True)
class HangingSearch:
    """The search over all attempts of a call.

    ``before_ms``: a transaction whose last record is younger is left out.
    """

    lookups: TransactionLookups
    partitions: list[TopicPartition]
    before_ms: int

    async def attempt(self, call: RunningCall) -> list[HangingTransaction]:
        """Return transactions that are open in a partition and unknown to every coordinator."""
        # Partitions and coordinators are asked one after the other, so a transaction may end in
        # between. Such a one looks hanging: the partition still had it open, the coordinator no
        # longer knows it. So the partitions of the suspects are asked a second time, and only what
        # is still open there hangs.
        candidates = await self._open(call, self.partitions)
        if not candidates:
            return []
        numbers = {each.producer_id for _, each in candidates}
        listed = await self.lookups.listed(call, Filters(producer_ids=tuple(sorted(numbers))))
        names = {each.producer_id: each.transactional_id for each in listed}
        described: dict[str, TransactionDescription] = {}
        await self.lookups.described(call, sorted(names.values()), described, {})

        def is_known(tp: TopicPartition, producer: ProducerDescription) -> bool:
            known = described.get(names.get(producer.producer_id, ""))
            return (
                known is not None
                and known.producer_id == producer.producer_id
                and tp in known.partitions
            )

        unknown = [(tp, each) for tp, each in candidates if not is_known(tp, each)]
        # A transaction that ended meanwhile is unknown, too: only what is still open hangs.
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
        found: dict[TopicPartition, tuple[ProducerDescription, ...]] = {}
        await self.lookups.producers(call, partitions, found)
        return [
            (tp, each)
            for tp in sorted(found)
            for each in found[tp]
            if each.transaction_start is not None
            and (each.last_timestamp is None or each.last_timestamp <= self.before_ms)
        ]


def checked_producers(producer_ids: Iterable[int]) -> tuple[int, ...]:
    """Return the ids of producers. Raises :exc:`ConfigurationError`."""
    if not isinstance(producer_ids, Iterable) or isinstance(producer_ids, str | bytes):
        raise ConfigurationError(
            f"producer_ids must be a collection of whole numbers, not {producer_ids!r}"
        )
    found = tuple(producer_ids)
    for one in found:
        whole = isinstance(one, int) and not isinstance(one, bool)
        if not whole or not 0 <= one < 1 << 63:
            raise ConfigurationError(f"a producer id is a whole number from 0, not {one!r}")
    return found


def check_seconds(longer_than: float | None) -> None:
    """Raise :exc:`ConfigurationError` unless the value is a number of seconds, or ``None``."""
    number = isinstance(longer_than, int | float) and not isinstance(longer_than, bool)
    if longer_than is not None and not (number and 0 <= longer_than < 1e9):
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


def _read_producers(
    response: Any, found: dict[TopicPartition, tuple[ProducerDescription, ...]]
) -> TrikafkaError | None:
    failure: TrikafkaError | None = None
    for topic in response.topics:
        for part in topic.partitions:
            tp = TopicPartition(topic.name, part.partition_index)
            if part.error_code:
                error = from_code(part.error_code, f"producers of {tp}", operation="Read")
                failure = error if failure is None or failure.retriable else failure
            else:
                found[tp] = tuple(_producer(each) for each in part.active_producers)
    return failure


def _producer(each: Any) -> ProducerDescription:
    return ProducerDescription(
        each.producer_id,
        each.producer_epoch,
        _known(each.last_sequence),
        _known(each.last_timestamp),
        _known(each.coordinator_epoch),
        _known(each.current_txn_start_offset),
    )


def _known(number: int) -> int | None:
    return number if number >= 0 else None


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
