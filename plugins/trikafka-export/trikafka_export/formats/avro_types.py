"""Avro schemas: parsed, mapped to Arrow types, and prepared for reading many values at once.

Dates and times are read as whole numbers, as Avro encodes them. The numbers become Arrow's types
without Python objects in between.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from decimal import Decimal
from typing import Any, Self

from trikafka.errors.peer_text import peer_text

from .avro_unions import Converter, converter, groups
from .errors import SchemaError

#: The deepest nesting of records, arrays and maps. Deeper schemas would exhaust the stack.
_DEEPEST = 60
#: The most fields of a record with all those nested in it. If each of thirty records had two fields
#: of the next one, the Arrow type would have a billion fields.
_MOST_FIELDS = 10_000
#: The bytes of the mark behind each value when many are read at once. The mark shows whether the
#: value has taken too few or too many bytes.
MARK_BYTES = 8


# Decisions of the type mapping:
#
# * Every column is nullable, because Parquet needs nulls for the fields of a record that is null.
# * Logical types become Arrow's dates, times, timestamps and decimals (decimals up to 76 digits).
#   An unknown logical type is ignored, as the Avro specification requires. Enums become text; a
#   fixed becomes binary of its length.
# * A record that contains itself has no finite column and is refused. So are a record without
#   fields, which Parquet cannot hold, and more than 10,000 fields.
# * An array of items that take no bytes (null, or an empty record) is refused: a few bytes could
#   claim billions of items.
# * Logical types except decimals are removed for fastavro (_without_times): it would make a Python
#   datetime of each value. The numbers are reinterpreted as Arrow types instead.
# * fastavro returns the defaults of missing fields in their JSON form. They are converted into
#   values once, in the schema (_mend_defaults).
#
# A registry has the schemas of all producers. Each failure of an unusual schema becomes a
# SchemaError, so that one schema never ends the export of records that others have written.
class AvroSchema:
    """A schema, with the schemas that it refers to.

    Args:
        schema: The schema, as JSON values.
        references: The schemas that it refers to.
        where: The words for the schema at the beginning of error messages.

    Raises:
        SchemaError: The schema cannot be parsed.
    """

    def __init__(
        self, schema: Any, references: Iterable[Any] = (), where: str = "the Avro schema"
    ) -> None:
        self._raw = _plain(schema)
        self._references = [_plain(each) for each in references]
        self._where = where
        self._named: dict[str, Any] = {}
        try:
            from fastavro import parse_schema

            for each in self._references:
                parse_schema(_without_times(each), named_schemas=self._named)
            self._parsed = parse_schema(_without_times(self._raw), named_schemas=self._named)
            # The names with their logical types, for the types of columns.
            self._logical: dict[str, Any] = {}
            for each in self._references:
                parse_schema(each, named_schemas=self._logical)
            self._full = parse_schema(self._raw, named_schemas=self._logical)
        except ImportError:
            raise
        except Exception as error:  # fastavro raises KeyError, TypeError and its own exceptions
            raise SchemaError(
                f"{where} cannot be parsed: {type(error).__name__}: {peer_text(error)}"
            ) from error

    @classmethod
    def of_pinned(cls, pinned: Mapping[str, Any], where: str = "the Avro schema") -> Self:
        """Return the schema that an export's plan has recorded with :meth:`pinned`."""
        return cls(pinned["schema"], pinned.get("references", ()), where)

    @classmethod
    def of_texts(cls, text: str, references: Iterable[str], where: str) -> Self:
        """Return a schema from a registry's texts."""
        try:
            return cls(json.loads(text), [json.loads(each) for each in references], where)
        except (ValueError, RecursionError) as error:
            if isinstance(error, SchemaError):
                raise
            raise SchemaError(f"{where} is not JSON: {peer_text(error)}") from error

    def pinned(self) -> dict[str, Any]:
        """Return the schema as JSON values, to be recorded in an export's plan."""
        return {"schema": self._raw} | (
            {"references": self._references} if self._references else {}
        )

    def same(self, other: AvroSchema) -> bool:
        """Return whether the schemas are the same, so that no value needs resolution."""
        return self.pinned() == other.pinned()

    @property
    def is_bytes(self) -> bool:
        """True if the schema is bytes and nothing else."""
        return bool(self._full in ("bytes", {"type": "bytes"}))

    def checked(self) -> Self:
        """Check that a Parquet column can hold values of the schema; return this schema.

        Raises:
            SchemaError: No column can hold them.
        """
        from .column_type import check_column

        found = self.type
        self.check_sizes()
        check_column(found, self._where)
        self.rows()
        self.quick_reader(self)
        return self

    @contextmanager
    def _as_schema_error(self) -> Iterator[None]:
        """Convert any failure of an unusual schema into :exc:`SchemaError`.

        Examples are sizes that are not numbers, and invalid defaults.
        """
        try:
            yield
        except (SchemaError, ImportError, MemoryError):
            raise
        except Exception as error:
            raise SchemaError(
                f"{self._where} cannot be used: {type(error).__name__}: {peer_text(error)}"
            ) from error

    @property
    def type(self) -> Any:
        """The Arrow type of the schema.

        Raises:
            SchemaError: No Arrow type can hold values of the schema.
        """
        with self._as_schema_error():
            found = _Types(self._logical, self._where).of(self._full, "")
        import pyarrow as pa

        if pa.types.is_null(found):
            raise SchemaError(f"{self._where} is null: such values have no content")
        return found

    def check_sizes(self) -> None:
        """Check that no array can have more items than the bytes of its value.

        Raises:
            SchemaError: There is such an array, or the schema contains itself.
        """
        with self._as_schema_error():
            _Sizes(self._named, self._where).walk(self._parsed, (), 0)

    def converter(self, *, tagged: bool) -> Converter | None:
        """Return the converter for values of unions: see :func:`converter`."""
        with self._as_schema_error():
            return converter(self._parsed, self._named, tagged=tagged)

    def quick_reader(self, writer: AvroSchema) -> Callable[[Any], Any] | None:
        """Return a fast reader of values written with ``writer``.

        ``None`` if the schemas have types that it cannot read.

        Raises:
            SchemaError: The schema cannot be used.
        """
        with self._as_schema_error():
            return self._quick_reader(writer)

    def _quick_reader(self, writer: AvroSchema) -> Callable[[Any], Any] | None:
        from .avro_columns import reader_of, resolved_reader_of

        if writer.same(self):
            return reader_of(self._parsed, self._named, self.type)
        try:
            fields = self._plainly_resolved(writer)
        except SchemaError:  # the writer's schema has types without a column
            return None
        written = None if fields is None else reader_of(writer._parsed, writer._named, writer.type)
        return None if written is None or fields is None else resolved_reader_of(written, fields)

    def _plainly_resolved(self, writer: AvroSchema) -> list[tuple[Any, Any]] | None:
        """Return the fields with their defaults, or ``None`` if resolution is not simple.

        It is simple if common fields have the same types and no field is renamed.
        """
        mine, its = self._parsed, writer._parsed
        if (
            not all(isinstance(each, dict) and each["type"] == "record" for each in (mine, its))
            or mine["name"] != its["name"]
        ):
            return None
        type, written = self.type, writer.type
        known = {each["name"]: _expanded(each["type"], writer._named) for each in its["fields"]}
        found = []
        # In the schema of rows, the defaults have been converted into values.
        value = self.rows()["items"]["fields"][0]["type"]
        for field in value["fields"]:
            name, kind = field["name"], type.field(field["name"])
            if field.get("aliases") or ("default" not in field and name not in known):
                return None
            if name in known and (known[name], written.field(name).type) != (
                _expanded(field["type"], self._named),
                kind.type,
            ):
                return None
            made = converter(field["type"], self._named, tagged=False)
            default = field.get("default")
            found.append(
                (kind, default if made is None or "default" not in field else made(default))
            )
        return found

    def rows(self) -> Any:
        """Return fastavro's schema of an array of records ``v``, the value, and ``m``, its mark.

        Raises:
            SchemaError: The schema cannot be used.
        """
        with self._as_schema_error():
            return self._rows()

    def _rows(self) -> Any:
        from fastavro import parse_schema

        names: dict[str, Any] = {}
        for each in self._references:
            parse_schema(_without_times(each), named_schemas=names)
        mark = {"type": "fixed", "name": "trikafka_mark", "size": MARK_BYTES}
        fields = [{"name": "v", "type": _without_times(self._raw)}, {"name": "m", "type": mark}]
        row = {"type": "record", "name": "trikafka_row", "fields": fields}
        parsed = parse_schema({"type": "array", "items": row}, named_schemas=names)
        for each in [parsed["items"], *names.values()]:
            _mend_defaults(each, names)
        # fastavro marks parsed schemas so. Without these entries it would parse at each call.
        return parsed | {"__fastavro_parsed": True, "__named_schemas": names}


def _without_times(schema: Any) -> Any:
    """Return the schema without logical types other than decimals."""
    if isinstance(schema, list):
        return [_without_times(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {
        name: each for name, each in schema.items() if name != "logicalType" or each == "decimal"
    }
    for name in ("items", "values"):
        if name in found:
            found[name] = _without_times(found[name])
    if isinstance(found.get("type"), list | dict):
        found["type"] = _without_times(found["type"])
    if isinstance(found.get("fields"), list):
        found["fields"] = [
            {**each, "type": _without_times(each["type"])}
            if isinstance(each, dict) and "type" in each
            else each
            for each in found["fields"]
        ]
    return found


def _expanded(schema: Any, named: Mapping[str, Any]) -> Any:
    """Return the parts of a schema that decide how bytes are read, with all names resolved.

    The schema must not contain itself.
    """
    if isinstance(schema, list):
        return [_expanded(each, named) for each in schema]
    if isinstance(schema, str):
        return (
            schema if schema in _SIMPLE or schema not in named else _expanded(named[schema], named)
        )
    if isinstance(schema["type"], dict | list):
        return _expanded(schema["type"], named)
    found = {name: schema[name] for name in _DECISIVE if name in schema}
    found |= {
        name: _expanded(schema[name], named) for name in ("items", "values") if name in schema
    }
    fields = [(each["name"], _expanded(each["type"], named)) for each in schema.get("fields", ())]
    plain = found.get("type") in _SIMPLE and "logicalType" not in found
    return found["type"] if plain else found | ({"fields": fields} if fields else {})


def _mend_defaults(schema: Any, named: Mapping[str, Any]) -> None:
    """Convert the defaults of a record's fields into values; fastavro keeps them as JSON."""
    for field in schema.get("fields", ()) if isinstance(schema, dict) else ():
        if "default" in field and not field.get("trikafka_mended"):
            field["default"] = _value_of(field["default"], field["type"], named)
            field["trikafka_mended"] = True


def _value_of(default: Any, schema: Any, named: Mapping[str, Any]) -> Any:
    # The default of a union belongs to its first branch, or since Avro 1.12 to any branch.
    if isinstance(schema, list):
        schema = next(
            (each for each in schema if (_kind(each) == "null") == (default is None)), schema[0]
        )
    if isinstance(schema, dict) and isinstance(schema["type"], dict | list):
        return _value_of(default, schema["type"], named)
    kind = _kind(schema)
    if kind in named and kind not in _SIMPLE:
        return _value_of(default, named[kind], named)
    if kind in ("bytes", "fixed") and isinstance(default, str):
        data = default.encode("latin-1")
        if isinstance(schema, dict) and schema.get("logicalType") == "decimal":
            return Decimal(int.from_bytes(data, "big", signed=True)).scaleb(-schema.get("scale", 0))
        return data
    if kind == "array" and isinstance(default, list):
        return [_value_of(each, schema["items"], named) for each in default]
    if kind == "map" and isinstance(default, dict):
        return {name: _value_of(each, schema["values"], named) for name, each in default.items()}
    if kind in ("record", "error") and isinstance(default, dict):
        _mend_defaults(schema, named)
        fields = {field["name"]: field for field in schema["fields"]}
        given = {
            name: _value_of(each, fields[name]["type"], named)
            for name, each in default.items()
            if name in fields
        }
        return {
            name: field["default"] for name, field in fields.items() if "default" in field
        } | given
    return default


def _kind(schema: Any) -> str:
    return (
        schema
        if isinstance(schema, str)
        else "union"
        if isinstance(schema, list)
        else str(schema["type"])
    )


#: The attributes of a definition that decide how bytes are read, besides its parts.
_DECISIVE = ("type", "name", "size", "symbols", "logicalType", "precision", "scale")


class _Types:
    """The Arrow types of parsed schemas, in which each name is complete and defined before."""

    def __init__(self, named: Mapping[str, Any], where: str) -> None:
        self._named = named
        self._where = where
        self._found = 0

    def of(self, schema: Any, path: str, above: tuple[str, ...] = ()) -> Any:
        """Return the type. Every part is nullable: a null record has null in all its fields."""
        import pyarrow as pa

        self._found += 1
        if self._found > 2 * _MOST_FIELDS:  # a field counts twice: its type, and its union
            raise SchemaError(f"{self._where} has more than {_MOST_FIELDS:,} fields")
        if isinstance(schema, list):
            return self._union(schema, path, above)
        if isinstance(schema, dict) and isinstance(schema["type"], dict | list):
            return self.of(schema["type"], path, above)
        kind = _kind(schema)
        if isinstance(schema, dict) and (logical := _logical(schema, self._at(path))) is not None:
            return logical
        if kind in _SIMPLE:
            return getattr(pa, _SIMPLE[kind])()
        if kind == "array":
            inner = self.of(schema["items"], f"{path}[]", above)
            return pa.list_(inner)
        if kind == "map":
            inner = self.of(schema["values"], f"{path}{{}}", above)
            return pa.map_(pa.string(), inner)
        if kind == "fixed":
            return pa.binary(int(schema["size"]))
        if kind == "enum":
            return pa.string()
        if kind in ("record", "error"):
            return self._record(schema, path, above)
        if kind in self._named and isinstance(self._named[kind], dict):
            if len(above) > _DEEPEST:
                raise SchemaError(f"{self._at(path)} is nested too deep")
            return self.of(self._named[kind], path, above)
        raise SchemaError(f"{self._at(path)} has the type {kind!r}, which is not known")

    def _record(self, schema: Mapping[str, Any], path: str, above: tuple[str, ...]) -> Any:
        import pyarrow as pa

        name = str(schema["name"])
        if name in above or len(above) > _DEEPEST:
            again = f"{self._at(path)} is the record {name} again, in itself"
            raise SchemaError(f"{again}: no column can hold that; leave the field out")
        if not schema["fields"]:
            raise SchemaError(
                f"{self._at(path)} is the record {name}, which has no fields: Parquet cannot hold "
                "that"
            )
        fields = []
        for field in schema["fields"]:
            inner = self.of(field["type"], f"{path}.{field['name']}", (*above, name))
            fields.append(pa.field(field["name"], inner))
        return pa.struct(fields)

    def _union(self, schema: list[Any], path: str, above: tuple[str, ...]) -> Any:
        import pyarrow as pa

        try:
            members = groups(schema)
        except SchemaError as error:
            kinds = ", ".join(_kind(each) for each in schema)
            raise SchemaError(
                f"{self._at(path)} is a union of {kinds}: {error}; that cannot be read"
            ) from None
        if not members:
            return pa.null()
        if len(members) == 1:
            return self._member([schema[place] for place in members[0]], path, above)
        found = []
        for number, places in enumerate(members):
            name = f"member{number}"
            found.append(
                pa.field(
                    name, self._member([schema[place] for place in places], f"{path}.{name}", above)
                )
            )
        return pa.struct(found)

    def _member(self, branches: list[Any], path: str, above: tuple[str, ...]) -> Any:
        import pyarrow as pa

        if len(branches) == 1:
            return self.of(branches[0], path, above)
        return pa.int64() if "long" in map(_kind, branches) else pa.float64()

    def _at(self, path: str) -> str:
        return f"{self._where}: field {path.lstrip('.')}" if path else self._where


_SIMPLE = {
    "null": "null",
    "boolean": "bool_",
    "int": "int32",
    "long": "int64",
    "float": "float32",
    "double": "float64",
    "bytes": "binary",
    "string": "string",
}


def _logical(schema: Mapping[str, Any], where: str) -> Any:
    """Return the Arrow type of a logical type; ``None`` for an unknown one, to be ignored."""
    import pyarrow as pa

    name = schema.get("logicalType")
    base = schema["type"]
    if name == "decimal" and base in ("bytes", "fixed"):
        precision = schema.get("precision")
        scale = schema.get("scale", 0)
        if (
            not isinstance(precision, int)
            or not isinstance(scale, int)
            or not 0 <= scale <= precision
            or not 1 <= precision <= 76
        ):
            raise SchemaError(
                f"{where} is a decimal of precision {precision!r} and scale {scale!r}: 1 to 76 "
                "digits can be read"
            )
        return (
            pa.decimal128(precision, scale) if precision <= 38 else pa.decimal256(precision, scale)
        )
    return {
        ("date", "int"): pa.date32(),
        ("time-millis", "int"): pa.time32("ms"),
        ("time-micros", "long"): pa.time64("us"),
        ("timestamp-millis", "long"): pa.timestamp("ms", tz="UTC"),
        ("timestamp-micros", "long"): pa.timestamp("us", tz="UTC"),
        ("timestamp-nanos", "long"): pa.timestamp("ns", tz="UTC"),
        ("local-timestamp-millis", "long"): pa.timestamp("ms"),
        ("local-timestamp-micros", "long"): pa.timestamp("us"),
        ("local-timestamp-nanos", "long"): pa.timestamp("ns"),
    }.get((str(name), str(base)))


class _Sizes:
    """The check for schemas by which few bytes become much data.

    Those have arrays whose items take no bytes, or contain themselves.
    """

    def __init__(self, named: Mapping[str, Any], where: str) -> None:
        self._named = named
        self._where = where
        self._known: dict[str, bool] = {}

    def walk(self, schema: Any, above: tuple[str, ...], depth: int) -> bool:
        """Return whether a value takes at least one byte.

        Raises:
            SchemaError: The schema contains itself, or has arrays of empty items.
        """
        if depth > 2 * _DEEPEST:
            raise SchemaError(f"{self._where} is nested too deep")
        if isinstance(schema, list):
            for each in schema:
                self.walk(each, above, depth + 1)
            return True
        if isinstance(schema, dict) and isinstance(schema["type"], dict | list):
            return self.walk(schema["type"], above, depth + 1)
        kind = _kind(schema)
        if kind == "array" and not self.walk(schema["items"], above, depth + 1):
            raise SchemaError(
                f"{self._where} has an array whose items take no bytes, so its length has no bound"
            )
        if kind == "map":
            self.walk(schema["values"], above, depth + 1)
        if kind in ("record", "error"):
            return self._record(schema, above, depth)
        if kind in self._named and isinstance(self._named[kind], dict) and kind not in _SIMPLE:
            return (
                self._known[kind]
                if kind in self._known
                else self.walk(self._named[kind], above, depth + 1)
            )
        return kind != "null" and not (kind == "fixed" and not schema["size"])

    def _record(self, schema: Mapping[str, Any], above: tuple[str, ...], depth: int) -> bool:
        name = str(schema["name"])
        if name in above:
            raise SchemaError(
                f"{self._where} contains itself through the record {name}, which is not supported"
            )
        found = [self.walk(each["type"], (*above, name), depth + 1) for each in schema["fields"]]
        self._known[name] = any(found)
        return any(found)


def _plain(value: Any) -> Any:
    """Return a copy that JSON can hold: lists for tuples, dictionaries for mappings."""
    if isinstance(value, dict):
        return {str(name): _plain(each) for name, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value
