"""The options of writes, and the columns to write. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql.types import StructType

from trikafka import ConfigurationError
from trikafka.config.topics import check_topic_name

from .kafka_settings import producer_settings
from .option_parsing import QueryOptions
from .read_options import READ_OPTIONS

#: The known options. Spark passes its own ``checkpointLocation`` and ``queryName`` as well.
WRITE_OPTIONS = (
    "topic",
    "exactlyOnce",
    "transactionalId",
    "exactlyOnceVersion",
    "includeHeaders",
    "checkpointLocation",
    "queryName",
    "path",
)
#: What options of reads are, and what to do, as the end of a sentence.
_ADVICE = dict.fromkeys(READ_OPTIONS, "for reads") | dict.fromkeys(
    ("assign", "subscribe", "subscribePattern"), "for reads; a write takes 'topic'"
)
_TYPES = {
    "key": ("binary", "string"),
    "value": ("binary", "string"),
    "topic": ("string",),
    "partition": ("int",),
    "headers": ("array<struct<key:string,value:binary>>",),
    "timestamp": ("timestamp",),
}
#: The default of ``transaction.timeout.ms``: the most that brokers allow by default, since a
#: task is one transaction and may take long.
_TRANSACTION_TIMEOUT_MS = 900_000


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """The options of a write, checked.

    ``settings`` are those of the producer. ``columns`` maps the names of the data source's columns
    to those of the frame. ``version`` is the option ``exactlyOnceVersion``.
    """

    settings: Mapping[str, Any]
    columns: Mapping[str, str]
    topic: str | None = None
    exactly_once: bool = False
    transactional_id: str | None = None
    version: int | None = None
    #: The names of the job's options ``kafka.*``, for errors (:func:`.kafka_settings.by_option`).
    kafka: tuple[str, ...] = ()


def write_options(
    options: Mapping[str, str], schema: StructType, *, overwrite: bool, streaming: bool
) -> WriteOptions:
    """Check the options of a write against each other and against the frame's columns.

    Args:
        options: The options as Spark passes them.
        schema: The frame's columns.
        overwrite: Whether the frame is written with the mode "overwrite".
        streaming: Whether this is a write of a stream.

    Raises:
        ConfigurationError: An option or a column is missing, unknown or not valid.
    """
    given = QueryOptions(options)
    given.refuse_unknown(WRITE_OPTIONS, _ADVICE)
    if overwrite and not streaming:
        raise ConfigurationError(
            "the mode 'overwrite' is not possible, because records can only be added to a topic; "
            "use mode('append')"
        )
    if "path" in given:
        raise ConfigurationError(
            "'path' is not an option of the data source 'trikafka': call save() without a path, "
            "and set the option 'topic'"
        )
    topic = given.text("topic")
    if topic is not None and not topic.strip():
        raise ConfigurationError("the option 'topic' is empty: give the name of a topic")
    if topic is not None:
        check_topic_name(topic)  # here, and not by each attempt of each task
    exactly_once = given.flag("exactlyOnce", False)
    transactional_id = given.text("transactionalId")
    settings = producer_settings(given.kafka, exactly_once=exactly_once)
    version = given.whole("exactlyOnceVersion", least=0)
    if not exactly_once and (transactional_id is not None or version is not None):
        raise ConfigurationError("transactionalId and exactlyOnceVersion need exactlyOnce=true")
    if exactly_once:
        if not streaming and not transactional_id:
            raise ConfigurationError(
                "exactlyOnce=true needs a transactionalId: the same for each run of this job, and "
                "different from those of other jobs"
            )
        if streaming and version is not None:
            raise ConfigurationError(
                "exactlyOnceVersion is for batch writes: in a stream it is the number of the batch"
            )
        settings = {"transaction_timeout_ms": _TRANSACTION_TIMEOUT_MS} | settings
    elif "transaction_timeout_ms" in settings:
        raise ConfigurationError("the option 'kafka.transaction.timeout.ms' needs exactlyOnce=true")
    return WriteOptions(
        settings,
        _columns(schema, topic),
        topic,
        exactly_once,
        transactional_id or None,
        version,
        tuple(given.kafka),
    )


def _columns(schema: StructType, topic: str | None) -> dict[str, str]:
    """Return the frame's columns to write. Others are left out, as in Spark's connector."""
    found: dict[str, str] = {}
    for field in schema.fields:
        name = field.name.lower()
        kind = field.dataType.simpleString()
        if name not in _TYPES or (name == "topic" and topic is not None):
            continue  # the option wins over the column, as in Spark's connector
        if name in found:
            raise ConfigurationError(f"the column {field.name!r} occurs twice")
        if kind not in _TYPES[name]:
            how = "cast it to TIMESTAMP_LTZ" if name == "timestamp" else "cast it"
            what = how if name == "value" else f"{how}, or drop it"
            raise ConfigurationError(
                f"the column {field.name!r} is {kind}, but must be {' or '.join(_TYPES[name])}: "
                f"{what}"
            )
        found[name] = field.name
    if "value" not in found:
        raise ConfigurationError("the frame has no column 'value'")
    if topic is None and "topic" not in found:
        raise ConfigurationError(
            "no topic: set the option 'topic', or give the frame a column 'topic'"
        )
    # In one order for all frames: the digest of a row depends on it, and another run of a write may
    # select the same columns in another order.
    return {name: found[name] for name in _TYPES if name in found}
