"""The options of reads, with the names and meanings of Spark's Kafka connector. Pure."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trikafka import ConfigurationError, TopicPartition
from trikafka.config.topics import check_topic_name

from .kafka_settings import consumer_settings
from .option_parsing import QueryOptions, lists_of_partitions
from .topic_patterns import topic_pattern

EARLIEST, LATEST = -2, -1

_CHOICES = ("assign", "subscribe", "subscribePattern")
_STARTING = (
    "startingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
)
_ENDING = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
_SPLITTING = ("minPartitions", "maxRecordsPerPartition")
_RATES = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay")
_OTHERS = ("failOnDataLoss", "includeHeaders", "kafkaConsumer.pollTimeoutMs")
#: Options about the inside of the connector's JVM client. They have no effect here.
_IGNORED = ("groupIdPrefix", "fetchOffset.numRetries", "fetchOffset.retryIntervalMs")
#: Options that the connector does not have: a group to commit to (streams).
_OURS = ("groupId",)
READ_OPTIONS = (*_CHOICES, *_STARTING, *_ENDING, *_SPLITTING, *_RATES, *_OTHERS, *_IGNORED, *_OURS)
#: What options of other queries are, and what to do, as the end of a sentence.
_ADVICE = {
    "topic": "for writes; a read takes 'subscribe', 'subscribePattern' or 'assign'",
    "path": "not for topics: call load() without a path, and set 'subscribe'",
    "checkpointLocation": "for writeStream; set the checkpoint there",
    "exactlyOnce": "for writes",
    "transactionalId": "for writes",
    "exactlyOnceVersion": "for writes",
}
_log = logging.getLogger("trikafka.spark")


@dataclass(frozen=True, slots=True)
class Bound:
    """One end of a read: one offset or time for all partitions, or one for each.

    ``everywhere`` is the offset for all partitions.
    """

    everywhere: int | None = None
    offsets: Mapping[TopicPartition, int] = field(default_factory=dict)
    timestamp: int | None = None
    timestamps: Mapping[TopicPartition, int] = field(default_factory=dict)

    def time_of(self, tp: TopicPartition) -> int | None:
        """Return the time (ms) that bounds a partition; ``None`` if its bound is an offset."""
        return self.timestamp if self.timestamp is not None else self.timestamps.get(tp)

    @property
    def specials(self) -> set[int | None]:
        """The special offsets ``EARLIEST`` and ``LATEST``, as far as this bound uses them."""
        return {self.everywhere, *self.offsets.values()} & {EARLIEST, LATEST}


@dataclass(frozen=True, slots=True)
class Rates:
    """The size of a micro-batch in offsets.

    ``least`` is waited for, but no longer than ``delay`` seconds.
    """

    most: int | None = None
    least: int | None = None
    delay: float = 900.0

    def wait(self, new: int, since: float) -> bool:
        """Return whether ``new`` offsets wait for more, ``since`` seconds after the last batch."""
        return self.least is not None and new < self.least and since < self.delay


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The options of a read, checked.

    Exactly one of ``assign``, ``subscribe`` and ``pattern`` is given.
    """

    settings: Mapping[str, Any]
    assign: tuple[TopicPartition, ...] = ()
    subscribe: tuple[str, ...] = ()
    pattern: str | None = None
    starting: Bound = Bound(everywhere=EARLIEST)
    ending: Bound = Bound(everywhere=LATEST)
    after_the_last: str = "error"
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    fail_on_data_loss: bool = True
    include_headers: bool = False
    stall_limit: float = 120.0
    rates: Rates = Rates()
    group_id: str | None = None
    #: The names of the job's options ``kafka.*``, for errors (:func:`.kafka_settings.by_option`).
    kafka: tuple[str, ...] = ()


def read_options(
    options: Mapping[str, str], *, streaming: bool = False, warn: bool = True
) -> ReadOptions:
    """Check the options of ``spark.read.format("trikafka").option(...)``.

    Args:
        options: The options, with names in any case.
        streaming: Whether the query is a stream.
        warn: Whether to log the options without effect.

    Raises:
        ConfigurationError: An option is unknown or not valid.
    """
    given = QueryOptions(options)
    if "pushFilters" in given:
        raise ConfigurationError(
            "the option 'pushFilters' was removed: choose what is fetched by startingOffsets, "
            "endingOffsets, startingTimestamp or assign; Spark applies all filters to the rows"
        )
    given.refuse_unknown(READ_OPTIONS, _ADVICE)
    settings = consumer_settings(given.kafka, warn)
    assign, subscribe, pattern = _chosen(given)
    starting, ending = _bounds(given, streaming)
    if warn and not streaming:
        _warn_ignored(given, (*_RATES, "groupId"), "streams only")
    if warn:
        _warn_ignored(given, _IGNORED, "the JVM's client only")
    strategy = (given.text("startingOffsetsByTimestampStrategy") or "error").strip().lower()
    if strategy not in ("error", "latest"):
        raise ConfigurationError(
            f"startingOffsetsByTimestampStrategy must be 'error' or 'latest', not {strategy!r}"
        )
    return ReadOptions(
        settings=settings,
        assign=assign,
        subscribe=subscribe,
        pattern=pattern,
        starting=starting,
        ending=ending,
        after_the_last=strategy,
        min_partitions=given.whole("minPartitions"),
        max_records_per_partition=given.whole("maxRecordsPerPartition"),
        fail_on_data_loss=given.flag("failOnDataLoss", True),
        include_headers=given.flag("includeHeaders", False),
        stall_limit=(given.whole("kafkaConsumer.pollTimeoutMs") or 120_000) / 1000,
        rates=_rates(given),
        group_id=_group(given),
        kafka=tuple(given.kafka),
    )


def _chosen(given: QueryOptions) -> tuple[tuple[TopicPartition, ...], tuple[str, ...], str | None]:
    ways = [name for name in _CHOICES if name in given]
    if len(ways) != 1:
        raise ConfigurationError(
            "exactly one of the options 'assign', 'subscribe' and 'subscribePattern' is needed, "
            f"not {ways or 'none'}"
        )
    text = (given.text(ways[0]) or "").strip()
    if ways[0] == "assign":
        chosen = lists_of_partitions("assign", text)
        for tp in chosen:
            check_topic_name(tp.topic)
        return chosen, (), None
    if ways[0] == "subscribe":
        topics = tuple(dict.fromkeys(topic.strip() for topic in text.split(",") if topic.strip()))
        if not topics:
            raise ConfigurationError("subscribe names no topic")
        if any(topic.startswith("^") for topic in topics):
            raise ConfigurationError("subscribe takes names: give the pattern as subscribePattern")
        return (), tuple(map(check_topic_name, topics)), None
    if not text:
        raise ConfigurationError("subscribePattern is empty")
    topic_pattern(text)
    return (), (), text


def _bounds(given: QueryOptions, streaming: bool) -> tuple[Bound, Bound]:
    if streaming:
        if named := [name for name in _ENDING if name in given]:
            raise ConfigurationError(
                f"{named[0]} is not valid in a streaming query, which has no end"
            )
        return _bound(given, "starting", LATEST), Bound(everywhere=LATEST)
    starting = _bound(given, "starting", EARLIEST)
    ending = _bound(given, "ending", LATEST)
    if LATEST in starting.specials:
        raise ConfigurationError("startingOffsets must not be 'latest' (-1) in a batch query")
    if EARLIEST in ending.specials:
        raise ConfigurationError("endingOffsets must not be 'earliest' (-2)")
    _check_order(starting, ending)
    return starting, ending


def _check_order(starting: Bound, ending: Bound) -> None:
    """Raise if a bound ends before it starts, as far as the options alone show."""
    for tp, start in starting.offsets.items():
        end = ending.offsets.get(tp)
        if start >= 0 and end is not None and 0 <= end < start:
            raise ConfigurationError(
                f"startingOffsets has {start} for {tp}, which is after {end} of endingOffsets"
            )
    if (
        starting.timestamp is not None
        and ending.timestamp is not None
        and ending.timestamp < starting.timestamp
    ):
        raise ConfigurationError(
            f"endingTimestamp {ending.timestamp} is before startingTimestamp {starting.timestamp}"
        )
    for tp in {*starting.timestamps, *ending.timestamps}:
        first = starting.time_of(tp)
        last = ending.time_of(tp)
        if first is not None and last is not None and last < first:
            raise ConfigurationError(
                f"the ending timestamp {last} of {tp} is before its starting timestamp {first}"
            )


def _bound(given: QueryOptions, which: str, default: int) -> Bound:
    """Return a bound by the connector's precedence: one time, times by partition, offsets."""
    if f"{which}Timestamp" in given:
        return Bound(timestamp=given.whole(f"{which}Timestamp", 0, "milliseconds since 1970"))
    if f"{which}OffsetsByTimestamp" in given:
        return Bound(timestamps=given.by_partition(f"{which}OffsetsByTimestamp", least=0))
    name = f"{which}Offsets"
    text = (given.text(name) or "").strip().lower()
    if name not in given:
        return Bound(everywhere=default)
    if text in ("earliest", "latest"):
        return Bound(everywhere=EARLIEST if text == "earliest" else LATEST)
    return Bound(offsets=given.by_partition(name, least=EARLIEST))


def _rates(given: QueryOptions) -> Rates:
    most = given.whole("maxOffsetsPerTrigger")
    least = given.whole("minOffsetsPerTrigger")
    if most is not None and least is not None and least > most:
        raise ConfigurationError(
            f"minOffsetsPerTrigger ({least}) must not be above maxOffsetsPerTrigger ({most})"
        )
    return Rates(most, least, given.milliseconds("maxTriggerDelay", 900_000.0) / 1000)


def _group(given: QueryOptions) -> str | None:
    if "groupId" not in given:
        return None
    name = (given.text("groupId") or "").strip()
    if not name:
        raise ConfigurationError("groupId is empty")
    return name


def _warn_ignored(given: QueryOptions, names: tuple[str, ...], whose: str) -> None:
    if found := [name for name in names if name in given]:
        _log.warning(
            "these options have no effect here, because they are for %s: %s",
            whose,
            ", ".join(found),
        )
