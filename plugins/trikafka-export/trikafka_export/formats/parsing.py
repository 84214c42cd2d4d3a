"""The parser of a table's columns: keys and values of one topic in a plan's format."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from trikafka import ConfigurationError

from .errors import SchemaError, UnreadableError
from .framing import Framed
from .json_format import JsonDecoder
from .options import COLUMNS, RegistrySettings, check_package
from .registry import Registered, RegistryClient, client_of
from .rows import Decoder, join
from .sizes import rows_at_once

#: The names of the schemas in a plan's format. Plans are older than the parsing of keys, so the
#: name for the values does not name a column.
_SCHEMAS = {"value": "schemas", "key": "key_schemas"}
#: The most records whose keys and values are parsed at a time.
_MOST_AT_ONCE = 32_768
Wait = Callable[[float], None]


class Parser:
    """Parses columns of one topic, with one decoder per column."""

    def __init__(self, decoders: Mapping[str, Decoder]) -> None:
        self._decoders = decoders
        #: The records to parse at a time. They are fewer if columns have many fields.
        self.at_once = rows_at_once([each.type for each in decoders.values()], _MOST_AT_ONCE)

    @staticmethod
    def of(
        format: Mapping[str, Any],
        topic: str,
        registry: RegistrySettings | None = None,
        wait: Wait = time.sleep,
    ) -> Parser | None:
        """Return the parser for a plan's format; ``None`` if nothing is parsed.

        ``wait(seconds)`` is called between two attempts to reach the registry.

        Raises:
            ConfigurationError: A package or the registry's URL is missing.
        """
        decoders = {}
        for column in COLUMNS:
            kind = format.get(column, "binary")
            if kind != "binary":
                check_package(kind)
                framed = f"{column}_framing" in format
                if framed and registry is None:
                    what = f"the {column}s of {topic!r} name schemas of a registry"
                    raise ConfigurationError(f"{what}: give schema_registry, its URL")
                client = client_of(registry) if framed and registry is not None else None
                decoders[column] = _MAKERS[kind](format[_SCHEMAS[column]][topic], client, wait)
        return Parser(decoders) if decoders else None

    @property
    def types(self) -> dict[str, pa.DataType]:
        """The types of the parsed columns."""
        return {column: decoder.type for column, decoder in self._decoders.items()}

    def parse(self, table: pa.Table) -> tuple[pa.Table, list[tuple[dict[str, Any], str]]]:
        """Return the table with parsed columns, and the unreadable records with their faults.

        The table lacks the unreadable records. A null value (a tombstone) stays null.
        """
        read: dict[str, pa.Array] = {}
        bad: dict[int, str] = {}
        for column, decoder in self._decoders.items():
            read[column], wrong = _read(table[column], decoder)
            for index, why in wrong.items():
                text = why if column == "value" else f"{column}: {why}"
                bad[index] = f"{bad[index]}; {text}" if index in bad else text
        refused = (
            list(
                zip(
                    rows_of(table.take(sorted(bad))),
                    (bad[index] for index in sorted(bad)),
                    strict=True,
                )
            )
            if bad
            else []
        )
        for column, array in read.items():
            table = table.set_column(
                table.schema.get_field_index(column), pa.field(column, array.type), array
            )
        if bad:
            table = table.filter(pa.array([index not in bad for index in range(table.num_rows)]))
        return table, refused


def type_of(format: Mapping[str, Any], column: str, topic: str) -> pa.DataType:
    """Return the type of a parsed column of one topic, by its pinned schema."""
    return _MAKERS[format[column]](format[_SCHEMAS[column]][topic], None, time.sleep).type


# Python's times end with the year 9999. A producer may send later ones, such as microseconds in the
# place of milliseconds. Such a record would end every export of its partition if its time became
# one of Python's.
def rows_of(records: pa.Table) -> list[dict[str, Any]]:
    """Return records as rows for dead letters, with their times in microseconds."""
    place = records.schema.get_field_index("timestamp")
    if place >= 0:
        times = records.column(place).cast(pa.int64())
        records = records.set_column(place, "timestamp", times)
    rows: list[dict[str, Any]] = records.to_pylist()
    return rows


def _read(column: pa.ChunkedArray, decoder: Decoder) -> tuple[pa.Array, dict[int, str]]:
    """Return a column's decoded values, and the faults of the wrong ones by their row."""
    whole = join(column.chunks, column.type)
    if not whole.null_count:
        return decoder.decode(whole)
    valid = pc.is_valid(whole)
    array, wrong = decoder.decode(whole.filter(valid))
    # Put the nulls back: a null index takes a null.
    places = pc.if_else(valid, pc.subtract(pc.cumulative_sum(valid.cast(pa.int64())), 1), None)
    if wrong:
        numbers = pc.indices_nonzero(valid).to_pylist()
        wrong = {numbers[number]: why for number, why in wrong.items()}
    return array.take(places), wrong


# --- the decoder of each format, for a pinned schema, and for the schemas that values name ---


def _json(pinned: Mapping[str, Any], client: RegistryClient | None, wait: Wait) -> Decoder:
    decoder = JsonDecoder(pinned)
    if client is None:
        return decoder

    def by_id(id: int) -> Decoder:
        _of_type(client.schema(id, wait=wait), "JSON")
        return decoder

    return Framed(decoder.type, by_id)


def _avro(pinned: Mapping[str, Any], client: RegistryClient | None, wait: Wait) -> Decoder:
    from .avro_format import AvroDecoder, RawDecoder
    from .avro_types import AvroSchema

    reader = AvroSchema.of_pinned(pinned)
    if client is None:
        return AvroDecoder(reader)

    def by_id(id: int) -> Decoder:
        found = _of_type(client.schema(id, wait=wait), "AVRO")
        try:
            writer = AvroSchema.of_texts(
                found.text, [text for _, text in found.references], f"schema {id}"
            )
            return (
                RawDecoder() if writer.is_bytes and reader.is_bytes else AvroDecoder(reader, writer)
            )
        except SchemaError as error:
            raise UnreadableError(str(error)) from error

    return Framed(reader.type, by_id)


def _protobuf(pinned: Mapping[str, Any], client: RegistryClient | None, wait: Wait) -> Decoder:
    from .protobuf_format import IndexedDecoder, ProtobufDecoder
    from .protobuf_registry import file_of
    from .protobuf_types import ProtobufSchema, name_at

    decoder = ProtobufDecoder(schema := ProtobufSchema.of_pinned(pinned))
    if client is None:
        return decoder

    def by_id(id: int) -> Decoder:
        found = _of_type(client.schema(id, serialized=True, wait=wait), "PROTOBUF")
        try:
            file = file_of(found)
        except SchemaError as error:
            raise UnreadableError(str(error)) from error
        return IndexedDecoder(decoder, lambda indexes: name_at(file, indexes), schema.message)

    return Framed(decoder.type, by_id)


_MAKERS: dict[str, Callable[[Mapping[str, Any], RegistryClient | None, Wait], Decoder]] = {
    "json": _json,
    "avro": _avro,
    "protobuf": _protobuf,
}


def _of_type(found: Registered, type: str) -> Registered:
    if found.type != type:
        raise UnreadableError(f"schema {found.id} is one of {found.type}, not of {type}")
    return found
