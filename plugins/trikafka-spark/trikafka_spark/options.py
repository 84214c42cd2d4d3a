"""The options of the data source, named and meant as those of Spark's Kafka connector. Pure.

Spark hands option names over in lower case, so they are compared that way and spoken of as they are documented.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trikafka import ConfigurationError, TopicPartition, from_properties
from trikafka.config.secrets import secret

EARLIEST, LATEST = -2, -1

_READ = (
    "assign",
    "subscribe",
    "subscribePattern",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "startingOffsetsByTimestamp",
    "endingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "minPartitions",
    "maxRecordsPerPartition",
    "failOnDataLoss",
    "includeHeaders",
    "kafkaConsumer.pollTimeoutMs",
)
#: Known to Spark's connector and without meaning here: for streams, or for how its JVM client works inside.
_IGNORED = (
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "groupIdPrefix",
    "kafka.group.id",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
)
_REFUSED = (
    "auto.offset.reset",
    "enable.auto.commit",
    "interceptor.classes",
    "key.deserializer",
    "value.deserializer",
    "key.serializer",
    "value.serializer",
)


@dataclass(frozen=True, slots=True)
class Bound:
    """One end of what is read: one offset or time for all (``everywhere``), or for each partition."""

    everywhere: int | None = None
    offsets: Mapping[TopicPartition, int] = field(default_factory=dict)
    timestamp: int | None = None
    timestamps: Mapping[TopicPartition, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What to read, checked. Exactly one of ``assign``, ``subscribe`` and ``pattern`` is given."""

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


def read_options(options: Mapping[str, str]) -> ReadOptions:
    """Check what ``spark.read.format("trikafka").option(...)`` was given. Raises :exc:`ConfigurationError`."""
    given = {name.lower(): str(value) for name, value in options.items()}
    given = {name: secret(value) if name.startswith("kafka.") else value for name, value in given.items()}
    kafka = {name[len("kafka.") :]: value for name, value in given.items() if name.startswith("kafka.")}
    _refuse_unknown(given, kafka)
    kafka.pop("group.id", None)
    settings = from_properties(kafka)
    if not settings.get("bootstrap_servers"):
        raise ConfigurationError("the option 'kafka.bootstrap.servers' is missing")
    ways = [name for name in ("assign", "subscribe", "subscribePattern") if name.lower() in given]
    if len(ways) != 1:
        raise ConfigurationError(
            f"exactly one of the options 'assign', 'subscribe' and 'subscribePattern' is needed, not {ways or 'none'}"
        )
    strategy = given.get("startingoffsetsbytimestampstrategy", "error")
    if strategy not in ("error", "latest"):
        raise ConfigurationError(f"startingOffsetsByTimestampStrategy must be 'error' or 'latest', not {strategy!r}")
    starting = _bound(given, "starting", EARLIEST)
    if LATEST in (starting.everywhere, *starting.offsets.values()):
        raise ConfigurationError("startingOffsets must not be 'latest' (-1) in a batch query")
    ending = _bound(given, "ending", LATEST)
    if EARLIEST in (ending.everywhere, *ending.offsets.values()):
        raise ConfigurationError("endingOffsets must not be 'earliest' (-2)")
    return ReadOptions(
        settings=settings,
        assign=_assign(given["assign"]) if "assign" in given else (),
        subscribe=_topics(given["subscribe"]) if "subscribe" in given else (),
        pattern=_pattern(given["subscribepattern"]) if "subscribepattern" in given else None,
        starting=starting,
        ending=ending,
        after_the_last=strategy,
        min_partitions=_whole(given, "minPartitions"),
        max_records_per_partition=_whole(given, "maxRecordsPerPartition"),
        fail_on_data_loss=_flag(given, "failOnDataLoss", True),
        include_headers=_flag(given, "includeHeaders", False),
        stall_limit=(_whole(given, "kafkaConsumer.pollTimeoutMs") or 120_000) / 1000,
    )


def _refuse_unknown(given: Mapping[str, str], kafka: Mapping[str, str]) -> None:
    for name in kafka:
        if name in _REFUSED:
            raise ConfigurationError(f"the option 'kafka.{name}' is not supported: the data source decides it")
    known = {name.lower(): name for name in (*_READ, *_IGNORED, "kafka.bootstrap.servers")}
    for name in given:
        if name not in known and not name.startswith("kafka."):
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {known[near[0]]!r}?" if near else ""
            raise ConfigurationError(f"unknown option {name!r} of the data source 'trikafka'{hint}")


def _bound(given: Mapping[str, str], which: str, default: int) -> Bound:
    """The connector's precedence: a time for all, then times by partition, then offsets."""
    if f"{which}timestamp" in given:
        return Bound(timestamp=_whole(given, f"{which}Timestamp", least=0))
    if f"{which}offsetsbytimestamp" in given:
        name = f"{which}OffsetsByTimestamp"
        return Bound(timestamps=_by_partition(name, given[name.lower()], least=0))
    name = f"{which}Offsets"
    text = given.get(name.lower())
    if text is None:
        return Bound(everywhere=default)
    if text.lower() in ("earliest", "latest"):
        return Bound(everywhere=EARLIEST if text.lower() == "earliest" else LATEST)
    return Bound(offsets=_by_partition(name, text, least=EARLIEST))


def _by_partition(name: str, text: str, least: int) -> dict[TopicPartition, int]:
    example = '{"topic": {"0": 23, "1": -2}}'
    try:
        found = {
            TopicPartition(topic, int(partition)): offset
            for topic, offsets in json.loads(text).items()
            for partition, offset in offsets.items()
        }
    except (ValueError, AttributeError, TypeError) as error:
        raise ConfigurationError(f"{name} must be JSON like {example}, not {text!r}") from error
    for tp, offset in found.items():
        if isinstance(offset, bool) or not isinstance(offset, int) or offset < least:
            raise ConfigurationError(f"{name} has {offset!r} for {tp}, which is no whole number of at least {least}")
    return found


def _assign(text: str) -> tuple[TopicPartition, ...]:
    try:
        found = [TopicPartition(topic, int(number)) for topic, numbers in json.loads(text).items() for number in numbers]
    except (ValueError, AttributeError, TypeError) as error:
        raise ConfigurationError(f'assign must be JSON like {{"topic": [0, 1]}}, not {text!r}') from error
    if not found:
        raise ConfigurationError("assign names no partition")
    return tuple(dict.fromkeys(found))


def _topics(text: str) -> tuple[str, ...]:
    topics = tuple(dict.fromkeys(topic.strip() for topic in text.split(",") if topic.strip()))
    if not topics:
        raise ConfigurationError("subscribe names no topic")
    return topics


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ConfigurationError(f"subscribePattern is not a regular expression: {error}") from error
    return text


def _whole(given: Mapping[str, str], name: str, least: int = 1) -> int | None:
    text = given.get(name.lower())
    if text is None:
        return None
    if not text.strip().isdigit() or int(text) < least:
        raise ConfigurationError(f"{name} must be a whole number of at least {least}, not {text!r}")
    return int(text)


def _flag(given: Mapping[str, str], name: str, default: bool) -> bool:
    text = given.get(name.lower(), str(default)).lower()
    if text not in ("true", "false"):
        raise ConfigurationError(f"{name} must be true or false, not {text!r}")
    return text == "true"
