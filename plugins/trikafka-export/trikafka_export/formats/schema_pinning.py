"""The parsing of keys and values in a plan: formats that a destination keeps, and schemas.

Schemas are looked up once and pinned.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

from trikafka import ConfigurationError, ExportError, KafkaTimeoutError, OffsetRange, TrikafkaError

from .options import COLUMNS, ParseOptions, RegistrySettings, check_package
from .schema_choice import choose, named

if TYPE_CHECKING:
    from ..task import Stopper

_log = logging.getLogger("trikafka.export")
_SCHEMAS = {"value": "schemas", "key": "key_schemas"}
#: The most records that are searched for a schema.
_SAMPLE = 1000
_HEAD = 5


def formats(asked: ParseOptions) -> dict[str, Any]:
    """Return the formats of a new destination, without schemas."""
    found: dict[str, Any] = {"value": asked.value.format or "binary"}
    if asked.key.format not in (None, "binary"):
        found["key"] = asked.key.format
    for column in COLUMNS:
        if asked.registry is not None and found.get(column, "binary") != "binary":
            found[f"{column}_framing"] = "registry"
    return found


def check(format: Mapping[str, Any], asked: ParseOptions, destination: str) -> None:
    """Check the requested options against those that the destination keeps.

    Raises:
        ConfigurationError: They contradict each other, or a package is missing.
    """
    read = [column for column in COLUMNS if format.get(column, "binary") != "binary"]
    for column in COLUMNS:
        kept = format.get(column, "binary")
        wanted = asked.of(column).format
        if wanted is not None and wanted != kept:
            raise ConfigurationError(
                f"{destination} was exported with {column}_format={kept!r} and keeps it; choose "
                f"another destination for {wanted!r}"
            )
        known = format.get(_SCHEMAS[column], {})
        schema = asked.of(column).schema
        if schema is not None and any(each != schema for each in known.values()):
            raise ConfigurationError(
                f"{destination} was exported with another {column}_schema and keeps it: "
                f"{str(known)[:500]}"
            )
        check_package(kept)
        framed = f"{column}_framing" in format
        if framed and asked.registry is None:
            raise ConfigurationError(
                f"the {column}s of {destination} name schemas of a registry: give "
                "schema_registry, its URL"
            )
        if column in read and not framed and asked.registry is not None:
            raise ConfigurationError(
                f"{destination} was exported without schema_registry and keeps that; choose "
                "another destination"
            )
    if not read and (asked.registry is not None or asked.dead_letter_topic is not None):
        name = "schema_registry" if asked.registry is not None else "dead_letter_topic"
        raise ConfigurationError(
            f"{name} needs value_format or key_format: otherwise nothing is parsed"
        )


def check_letters(asked: ParseOptions, exported: Iterable[str]) -> None:
    """Raise :exc:`ConfigurationError` if the dead-letter topic is exported itself."""
    topic = asked.dead_letter_topic
    if topic is not None and topic in set(exported):
        raise ConfigurationError(
            f"dead_letter_topic {topic!r} is itself exported: its unreadable records would be "
            "exported again without end"
        )


def unpinned(
    format: Mapping[str, Any], asked: ParseOptions, topics: Iterable[str]
) -> list[tuple[str, str]]:
    """Return the columns and topics whose schema must be looked up.

    Given schemas are added to ``format``.
    """
    found = []
    for column in COLUMNS:
        if format.get(column, "binary") == "binary":
            continue
        schemas = format[_SCHEMAS[column]]
        for topic in topics:
            if topic in schemas:
                continue
            given = asked.of(column).schema
            if given is not None:
                schemas[topic] = given
            else:
                found.append((column, topic))
    return found


def with_schemas(format: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy to which schemas can be added."""
    found = dict(format)
    for column in COLUMNS:
        if found.get(column, "binary") != "binary":
            found[_SCHEMAS[column]] = dict(found.get(_SCHEMAS[column], {}))
    return found


def pin(format: dict[str, Any], column: str, topic: str, schema: Mapping[str, Any]) -> None:
    """Add a schema that was looked up."""
    format[_SCHEMAS[column]][topic] = schema


def is_pinned(format: Mapping[str, Any], topic: str) -> bool:
    """Return whether all schemas of a topic are pinned, so that its records can be read."""
    read = (column for column in COLUMNS if format.get(column, "binary") != "binary")
    return all(topic in format[_SCHEMAS[column]] for column in read)


def log_alike(
    format: Mapping[str, Any], before: Mapping[str, Any] | None, destination: str
) -> None:
    """Log the schemas that are new since ``before`` and have names that differ only in case.

    Other readers than Spark read such files, so an export is not refused. Delta tables refuse them.
    """
    for column in COLUMNS:
        schemas = format.get(_SCHEMAS[column], {})
        for topic in schemas.keys() - (before or {}).get(_SCHEMAS[column], {}).keys():
            from .column_type import alike_names
            from .parsing import type_of

            if (names := alike_names(type_of(format, column, topic))) is not None:
                _log.warning(
                    "%s: the schema of the %ss of %s has fields that differ only in case, %r and "
                    "%r: Spark reads such files only with spark.sql.caseSensitive=true",
                    destination,
                    column,
                    topic,
                    *names,
                )


def look_up(
    format: Mapping[str, Any],
    column: str,
    ranges: Sequence[OffsetRange],
    settings: Mapping[str, Any],
    registry: RegistrySettings | None,
    stopper: Stopper,
) -> Mapping[str, Any]:
    """Return the schema of one topic's keys or values. Blocks.

    A JSON schema is inferred from the first records. Others are the newest that the last records
    name.

    Raises:
        ExportError: No schema was found.
        SchemaError: The schema cannot be used.
        SchemaRegistryError: The registry refused.
        SchemaRegistryTimeoutError: The registry did not respond.
    """
    kind, framed = format[column], f"{column}_framing" in format
    topic = ranges[0].topic
    if kind == "json":
        from .column_type import check_column
        from .json_format import JsonDecoder, infer

        values = _sample(ranges, settings, stopper, column)
        found = infer(
            [value[_HEAD:] if framed and value is not None else value for value in values], topic
        )
        check_column(JsonDecoder(found).type, f"the schema of the {column}s of {topic!r}")
        return found
    assert registry is not None  # or there would be a schema
    newest = [
        OffsetRange(
            each.topic, each.partition, max(each.start, each.end - _share(ranges)), each.end
        )
        for each in ranges
    ]
    for sample in (newest, ranges):
        if ids := named(_sample(sample, settings, stopper, column)):
            return choose(kind, ids, topic, column, registry, stopper.wait)
    raise ExportError(
        f"no {column} of {topic!r} names a schema of the registry; give {column}_schema, or "
        "value_format=binary"
    )


def _share(ranges: Sequence[OffsetRange]) -> int:
    return max(1, _SAMPLE // len(ranges))


def _sample(
    ranges: Sequence[OffsetRange], settings: Mapping[str, Any], stopper: Stopper, column: str
) -> list[bytes | None]:
    """Return the first keys or values of the ranges."""
    from ..reader import Reader
    from ..reading import read_range

    client = {name: value for name, value in settings.items() if name != "fail_on_data_loss"}
    found: list[bytes | None] = []
    failed: TrikafkaError | None = None
    with closing(Reader(client)) as reader:
        for wanted in ranges:
            try:
                stopper.check()
                reading = read_range(
                    wanted,
                    client,
                    fail_on_data_loss=False,
                    loss_option="only in the search for a schema",
                    on_start=stopper.add,
                    reader=reader,
                )
                with closing(reading) as batches:
                    records = itertools.chain.from_iterable(batches)
                    found += [
                        getattr(record, column)
                        for record in itertools.islice(records, _share(ranges))
                    ]
            except TrikafkaError as error:
                failed = error
    if not found and isinstance(failed, KafkaTimeoutError):
        raise failed
    if not found and failed is not None:
        raise ExportError(f"no schema could be found for {ranges[0].topic!r}: {failed}") from failed
    return found
