"""Avro schemas: parsed, turned into Arrow types, and prepared for reading many values at once.

Dates and times are read as the whole numbers that they are, and become Arrow's types without Python objects between.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from decimal import Decimal
from typing import Any, Self

from .avro_unions import Converter, converter, groups
from .errors import SchemaError

#: The most records, arrays and maps that stand in each other: more would end in the stack's depth.
_DEEPEST = 60
#: Fields of all records that stand in each other. A few records, each twice in the next, are soon more than any memory holds.
_MOST_FIELDS = 10_000
#: What stands behind each value when many are read at once: so one that takes too few bytes or too many is found.
MARK_BYTES = 8


class AvroSchema:
    """A schema, with those that it refers to. ``where`` begins what is said of it. Raises :exc:`SchemaError`."""

    def __init__(self, schema: Any, references: Iterable[Any] = (), where: str = "the Avro schema") -> None:
        self._raw, self._references, self._where = _plain(schema), [_plain(each) for each in references], where
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
        except Exception as error:  # fastavro raises whatever comes: KeyError, TypeError, its own
            raise SchemaError(f"{where} cannot be parsed: {type(error).__name__}: {str(error)[:300]}") from error

    @classmethod
    def of_pinned(cls, pinned: Mapping[str, Any], where: str = "the Avro schema") -> Self:
        """From what a plan says."""
        return cls(pinned["schema"], pinned.get("references", ()), where)

    @classmethod
    def of_texts(cls, text: str, references: Iterable[str], where: str) -> Self:
        """From what a registry gives."""
        try:
            return cls(json.loads(text), [json.loads(each) for each in references], where)
        except (ValueError, RecursionError) as error:
            if isinstance(error, SchemaError):
                raise
            raise SchemaError(f"{where} is not JSON: {error}") from error

    def pinned(self) -> dict[str, Any]:
        """What a plan says of it."""
        return {"schema": self._raw} | ({"references": self._references} if self._references else {})

    def same(self, other: AvroSchema) -> bool:
        """Whether what the one has written the other reads as it is."""
        return self.pinned() == other.pinned()

    @property
    def is_bytes(self) -> bool:
        """Whether it is bytes and nothing else."""
        return bool(self._full in ("bytes", {"type": "bytes"}))

    def checked(self) -> Self:
        """Raise :exc:`SchemaError` if it cannot become a column."""
        from .column_type import check_column

        found = self.type
        self.check_sizes()
        check_column(found, self._where)
        self.rows()
        self.quick_reader(self)
        return self

    @contextmanager
    def _said(self) -> Iterator[None]:
        """Whatever a strange schema brings about (sizes that are no sizes, defaults that are none) as :exc:`SchemaError`.

        A registry has the schemas that any producer gave it: one must not end the export of records that others have written.
        """
        try:
            yield
        except (SchemaError, ImportError, MemoryError):
            raise
        except Exception as error:
            raise SchemaError(f"{self._where} cannot be used: {type(error).__name__}: {str(error)[:300]}") from error

    @property
    def type(self) -> Any:
        """The Arrow type of what it describes. Raises :exc:`SchemaError`."""
        with self._said():
            found = _Types(self._logical, self._where).of(self._full, "")
        import pyarrow as pa

        if pa.types.is_null(found):
            raise SchemaError(f"{self._where} is null: there is nothing to read")
        return found

    def check_sizes(self) -> None:
        """Raise :exc:`SchemaError` if it is endless, or a few bytes could become endless arrays: whatever it is read as."""
        with self._said():
            _Sizes(self._named, self._where).walk(self._parsed, (), 0)

    def converter(self, *, tagged: bool) -> Converter | None:
        """What makes values of unions into what Arrow takes, if there are such: see :func:`converter`."""
        with self._said():
            return converter(self._parsed, self._named, tagged=tagged)

    def quick_reader(self, writer: AvroSchema) -> Callable[[Any], Any] | None:
        """What reads many values, written by ``writer``, without objects between; ``None`` where the schemas are not so plain.

        Raises :exc:`SchemaError`.
        """
        with self._said():
            return self._quick_reader(writer)

    def _quick_reader(self, writer: AvroSchema) -> Callable[[Any], Any] | None:
        from .avro_columns import reader_of, resolved_reader_of

        if writer.same(self):
            return reader_of(self._parsed, self._named, self.type)
        try:
            fields = self._plainly_resolved(writer)
        except SchemaError:  # the writer has types that no column can have
            return None
        written = None if fields is None else reader_of(writer._parsed, writer._named, writer.type)
        return None if written is None or fields is None else resolved_reader_of(written, fields)

    def _plainly_resolved(self, writer: AvroSchema) -> list[tuple[Any, Any]] | None:
        """The fields with their defaults, if those that the writer has too are the same there, and nothing is renamed."""
        mine, its = self._parsed, writer._parsed
        if not all(isinstance(each, dict) and each["type"] == "record" for each in (mine, its)) or mine["name"] != its["name"]:
            return None
        type, written = self.type, writer.type
        known = {each["name"]: _expanded(each["type"], writer._named) for each in its["fields"]}
        found = []
        for field in self.rows()["items"]["fields"][0]["type"]["fields"]:  # whose defaults are values
            name, kind = field["name"], type.field(field["name"])
            if field.get("aliases") or ("default" not in field and name not in known):
                return None
            if name in known and (known[name], written.field(name).type) != (_expanded(field["type"], self._named), kind.type):
                return None
            made = converter(field["type"], self._named, tagged=False)
            default = field.get("default")
            found.append((kind, default if made is None or "default" not in field else made(default)))
        return found

    def rows(self) -> Any:
        """For fastavro: an array of records ``v``, the value, and ``m``, the mark behind it. Raises :exc:`SchemaError`."""
        with self._said():
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
        # What fastavro writes into records that are parsed, and takes them as they are for. Else it would parse at each call.
        return parsed | {"__fastavro_parsed": True, "__named_schemas": names}


def _without_times(schema: Any) -> Any:
    """The schema with no logical types but decimals: the others are read as what is written."""
    if isinstance(schema, list):
        return [_without_times(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {name: each for name, each in schema.items() if name != "logicalType" or each == "decimal"}
    for name in ("items", "values"):
        if name in found:
            found[name] = _without_times(found[name])
    if isinstance(found.get("type"), list | dict):
        found["type"] = _without_times(found["type"])
    if isinstance(found.get("fields"), list):
        found["fields"] = [
            {**each, "type": _without_times(each["type"])} if isinstance(each, dict) and "type" in each else each
            for each in found["fields"]
        ]
    return found


def _expanded(schema: Any, named: Mapping[str, Any]) -> Any:
    """What decides how bytes are read, with definitions in the place of names. For schemas that do not contain themselves."""
    if isinstance(schema, list):
        return [_expanded(each, named) for each in schema]
    if isinstance(schema, str):
        return schema if schema in _SIMPLE or schema not in named else _expanded(named[schema], named)
    if isinstance(schema["type"], dict | list):
        return _expanded(schema["type"], named)
    found = {name: schema[name] for name in _DECISIVE if name in schema}
    found |= {name: _expanded(schema[name], named) for name in ("items", "values") if name in schema}
    fields = [(each["name"], _expanded(each["type"], named)) for each in schema.get("fields", ())]
    plain = found.get("type") in _SIMPLE and "logicalType" not in found
    return found["type"] if plain else found | ({"fields": fields} if fields else {})


def _mend_defaults(schema: Any, named: Mapping[str, Any]) -> None:
    """Make values of the defaults of a record's fields: fastavro hands them out as JSON has them."""
    for field in schema.get("fields", ()) if isinstance(schema, dict) else ():
        if "default" in field and not field.get("trikafka_mended"):
            field["default"] = _value_of(field["default"], field["type"], named)
            field["trikafka_mended"] = True


def _value_of(default: Any, schema: Any, named: Mapping[str, Any]) -> Any:
    if isinstance(schema, list):  # a union's default is of its first branch; since Avro 1.12 of any, which is null or what it is
        schema = next((each for each in schema if (_kind(each) == "null") == (default is None)), schema[0])
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
        given = {name: _value_of(each, fields[name]["type"], named) for name, each in default.items() if name in fields}
        return {name: field["default"] for name, field in fields.items() if "default" in field} | given
    return default


def _kind(schema: Any) -> str:
    return schema if isinstance(schema, str) else "union" if isinstance(schema, list) else str(schema["type"])


#: What of a definition decides how bytes are read, beside what stands in it.
_DECISIVE = ("type", "name", "size", "symbols", "logicalType", "precision", "scale")


class _Types:
    """Arrow types of parsed schemas, in which names are whole and stand for what was defined before."""

    def __init__(self, named: Mapping[str, Any], where: str) -> None:
        self._named, self._where = named, where
        self._found = 0

    def of(self, schema: Any, path: str, above: tuple[str, ...] = ()) -> Any:
        """The type. All may be null: where a record has no value, none of its fields has one."""
        import pyarrow as pa

        self._found += 1
        if self._found > 2 * _MOST_FIELDS:  # a field and its type, or the union that it is in
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
            raise SchemaError(f"{self._at(path)} is the record {name}, which has no fields: Parquet cannot hold that")
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
            raise SchemaError(f"{self._at(path)} is a union of {kinds}: {error}; that cannot be read") from None
        if not members:
            return pa.null()
        if len(members) == 1:
            return self._member([schema[place] for place in members[0]], path, above)
        found = []
        for number, places in enumerate(members):
            name = f"member{number}"
            found.append(pa.field(name, self._member([schema[place] for place in places], f"{path}.{name}", above)))
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
    """The type of a logical type; ``None`` for one that is not known, which Avro says to pass over."""
    import pyarrow as pa

    name, base = schema.get("logicalType"), schema["type"]
    if name == "decimal" and base in ("bytes", "fixed"):
        precision, scale = schema.get("precision"), schema.get("scale", 0)
        if not isinstance(precision, int) or not isinstance(scale, int) or not 0 <= scale <= precision or not 1 <= precision <= 76:
            raise SchemaError(f"{where} is a decimal of precision {precision!r} and scale {scale!r}: 1 to 76 digits can be read")
        return pa.decimal128(precision, scale) if precision <= 38 else pa.decimal256(precision, scale)
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
    """Finds what makes little data into much: arrays of what takes no bytes, and schemas that contain themselves."""

    def __init__(self, named: Mapping[str, Any], where: str) -> None:
        self._named, self._where = named, where
        self._known: dict[str, bool] = {}

    def walk(self, schema: Any, above: tuple[str, ...], depth: int) -> bool:
        """Whether a value takes a byte at least. Raises :exc:`SchemaError`."""
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
            raise SchemaError(f"{self._where} has an array of what takes no bytes: nobody knows how long it may be")
        if kind == "map":
            self.walk(schema["values"], above, depth + 1)
        if kind in ("record", "error"):
            return self._record(schema, above, depth)
        if kind in self._named and isinstance(self._named[kind], dict) and kind not in _SIMPLE:
            return self._known[kind] if kind in self._known else self.walk(self._named[kind], above, depth + 1)
        return kind != "null" and not (kind == "fixed" and not schema["size"])

    def _record(self, schema: Mapping[str, Any], above: tuple[str, ...], depth: int) -> bool:
        name = str(schema["name"])
        if name in above:
            raise SchemaError(f"{self._where} contains itself, by the record {name}: that is not read")
        found = [self.walk(each["type"], (*above, name), depth + 1) for each in schema["fields"]]
        self._known[name] = any(found)
        return any(found)

def _plain(value: Any) -> Any:
    """A copy of what JSON can hold: lists for tuples, dictionaries for mappings."""
    if isinstance(value, dict):
        return {str(name): _plain(each) for name, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value
