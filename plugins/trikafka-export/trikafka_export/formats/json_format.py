"""Values in JSON, by pyarrow's reader.

A schema is JSON itself, with Arrow's names of types:

    {"n": "int64", "name": "string", "inner": {"x": "double"}, "tags": ["string"]}

A decimal is "decimal(10, 2)": ten digits, two of them behind the point. pyarrow reads it from a
number or a text of JSON, digit by digit, and refuses a value that needs more digits.

A date is a text, "2024-02-29", or the number of days since 1970; a time of day is a text,
"23:59:59", or a number of its unit. Those of one value are all texts, or all numbers.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from trikafka import ConfigurationError, ExportError

from .errors import SchemaError
from .rows import AT_ONCE, PartsDecoder, reason
from .sizes import Sizes, check

#: The deepest nesting in values from which a schema is inferred. Readers of Parquet go no deeper
#: than 100.
_DEEPEST = 30
#: The largest precision of a decimal, by its number of bits.
_DIGITS = {"128": 38, "256": 76}
_DECIMAL = re.compile(r"decimal(128|256)?\(\s*(\d{1,2})\s*,\s*(\d{1,2})\s*\)")
#: The fault of a value that has a number for a text, or the reverse, and the path of the field.
_OTHER_KIND = re.compile(
    r"Column\(/(.*)\) changed from (?:number to string|string to number)", re.DOTALL
)
#: The begin of a time of day. pyarrow takes a text of two digits for an hour.
_TIME = "^[0-9]{2}:[0-9]{2}"
#: Null items of lists.
_NULLS = re.compile(rb"[\[,]\s*null")


class JsonDecoder(PartsDecoder):
    """A decoder of JSON objects of one schema."""

    def __init__(self, schema: Mapping[str, Any], where: str = "value_schema") -> None:
        self._schema = pa.schema(
            [pa.field(name, type_of(each, name, where)) for name, each in schema.items()]
        )
        self.type = pa.struct(list(self._schema))
        self._sizes = Sizes(self.type, AT_ONCE)
        # pyarrow reads dates and times of day from numbers only. Where values have texts for them,
        # they are read as texts and converted. The kind that was found last is tried first.
        as_texts = pa.schema([pa.field(each.name, _with_texts(each.type)) for each in self._schema])
        self._kinds = [self._schema] + ([as_texts] if as_texts != self._schema else [])

    def check_readable(self, where: str) -> None:
        """Check that pyarrow reads all types of the schema from JSON; it does not read float16.

        Raises:
            SchemaError: It does not read one of them, so no value could be parsed. ``where`` begins
                the message.
        """
        try:
            self._block([b"{}"])
        except pa.ArrowNotImplementedError as error:
            raise SchemaError(
                f"{where} has a type that pyarrow does not read from JSON: {reason(error)}"
            ) from error

    def _large(self, values: Sequence[bytes]) -> pa.Array:
        # Numbers and texts need about as much room as their JSON. Objects and nulls may need more,
        # so they are counted: there are no more objects than opening braces.

        (value,) = values
        check((value.count(b"{") + len(_NULLS.findall(value))) * self._sizes.item)
        return self._block(values)

    def _block(self, values: Sequence[bytes]) -> pa.Array:
        text = b"\n".join(values) + b"\n"
        size = max(len(text) + 1, 1 << 16)
        if len(values) == 1:
            _check_object(values[0])
        elif not all(map(_like_object, values)):
            # Without this check, two objects in one value and none in another would give the
            # expected number of rows. If each value begins and ends with a brace, no object can
            # extend over two values.
            raise ValueError("a value is not a JSON object")
        table = self._table(text, size)
        if table.num_rows != len(values):
            raise ValueError(f"{table.num_rows} JSON objects, not {len(values)}")
        arrays = [column.combine_chunks() for column in table.columns]
        if not arrays:
            return pa.array([{}] * len(values), self.type)
        array = pa.StructArray.from_arrays(arrays, fields=list(self._schema))
        # pyarrow reads invalid UTF-8, but other readers refuse a whole file because of it.
        array.validate(full=True)
        return array

    def _table(self, text: bytes, size: int) -> pa.Table:
        """Read objects of JSON; dates and times of day may all be numbers, or all be texts."""
        errors = []
        for kind in self._kinds:
            options = pj.ParseOptions(
                explicit_schema=kind, newlines_in_values=True, unexpected_field_behavior="ignore"
            )
            try:
                found = pj.read_json(
                    io.BytesIO(text), pj.ReadOptions(use_threads=False, block_size=size), options
                ).select(self._schema.names)
                if kind is not self._schema:
                    found = pa.table(
                        [
                            _of_texts(column.combine_chunks(), field.type)
                            for column, field in zip(found.columns, self._schema, strict=True)
                        ],
                        schema=self._schema,
                    )
                found = found.cast(self._schema)
            except pa.ArrowInvalid as error:
                errors.append(error)
                continue
            if errors:
                self._kinds = self._kinds[::-1]
            return found
        if len(errors) == 1:
            raise errors[0]
        # An error that only says that a date is of the other kind hides the fault.
        dates = set(_paths_of_text(pa.struct(list(self._schema))))
        for each in errors:
            if (found := _OTHER_KIND.search(str(each))) is None or found[1] not in dates:
                raise each
        raise ValueError("dates and times of one value must all be texts, or all numbers")


def _is_of_text(type: pa.DataType) -> bool:
    return bool(pa.types.is_date(type) or pa.types.is_time(type))


def _paths_of_text(type: pa.DataType, path: str = "") -> Iterator[str]:
    """Yield the paths of dates and times of day, as pyarrow's errors have them."""
    if pa.types.is_struct(type):
        for field in type:
            yield from _paths_of_text(field.type, f"{path}/{field.name}" if path else field.name)
    elif pa.types.is_list(type):
        yield from _paths_of_text(type.value_type, f"{path}/[]")
    elif _is_of_text(type):
        yield path


def _with_texts(type: pa.DataType) -> pa.DataType:
    """Return the type with texts in the place of dates and times of day."""
    if pa.types.is_struct(type):
        return pa.struct([pa.field(field.name, _with_texts(field.type)) for field in type])
    if pa.types.is_list(type):
        return pa.list_(_with_texts(type.value_type))
    return pa.string() if _is_of_text(type) else type


def _of_texts(array: pa.Array, type: pa.DataType) -> pa.Array:
    """Return an array of a type of :func:`_with_texts` with the dates and times of its texts."""
    if pa.types.is_struct(type):
        parts = [_of_texts(array.field(number), each.type) for number, each in enumerate(type)]
        return pa.StructArray.from_arrays(parts, fields=list(type), mask=array.is_null())
    if pa.types.is_list(type):
        return pa.ListArray.from_arrays(
            array.offsets, _of_texts(array.values, type.value_type), type=type, mask=array.is_null()
        )
    if pa.types.is_time(type):
        if pc.all(pc.match_substring_regex(array, _TIME)).as_py() is False:
            raise pa.ArrowInvalid("a time of day must be a text such as '23:59:59'")
        # pyarrow reads no time of day from a text, but a timestamp.
        return (
            pc.binary_join_element_wise("1970-01-01T", array, "")
            .cast(pa.timestamp(type.unit))
            .cast(type)
        )
    return array.cast(type) if pa.types.is_date(type) else array


def _check_object(value: bytes) -> None:
    try:
        # Numbers are not converted, because they may have thousands of digits.
        known = json.loads(value, parse_int=len, parse_float=len)
    except RecursionError:  # deep nesting is allowed in fields outside of the schema
        known = {} if _like_object(value) else None
    if not isinstance(known, dict):
        raise ValueError("it is JSON, but not an object")


def _like_object(value: bytes) -> bool:
    stripped = value.strip(b" \t\r\n")
    return stripped[:1] == b"{" and stripped[-1:] == b"}"


def type_of(spec: Any, path: str, where: str = "value_schema") -> pa.DataType:
    """Return the Arrow type that a schema's entry names.

    Raises:
        ConfigurationError: Arrow has no such type.
    """
    if isinstance(spec, Mapping):
        return pa.struct(
            [pa.field(name, type_of(each, f"{path}.{name}", where)) for name, each in spec.items()]
        )
    if isinstance(spec, list) and len(spec) == 1:
        return pa.list_(type_of(spec[0], f"{path}[]", where))
    if isinstance(spec, list):
        raise ConfigurationError(
            f"{where}: {path!r} has {len(spec)} types in its list, and needs one, that of its "
            'items, as in ["string"]'
        )
    if isinstance(spec, str) and spec.startswith("decimal"):
        return _decimal(spec, path, where)
    try:
        return pa.type_for_alias(spec)
    except (ValueError, TypeError, AttributeError) as error:  # the last for a number or null
        raise ConfigurationError(
            f"{where}: {spec!r} of {path!r} is not the name of an Arrow type"
        ) from error


def _decimal(spec: str, path: str, where: str) -> pa.DataType:
    """Return the type of a name such as ``decimal(10, 2)`` or ``decimal128(10, 2)``."""
    if (found := _DECIMAL.fullmatch(spec)) is not None:
        precision = int(found[2])
        scale = int(found[3])
        bits = found[1] or ("128" if precision <= _DIGITS["128"] else "256")
        if 1 <= precision <= _DIGITS[bits] and scale <= precision:
            return getattr(pa, f"decimal{bits}")(precision, scale)
    raise ConfigurationError(
        f"{where}: {spec!r} of {path!r} must be decimal(PRECISION, SCALE): 1 to 76 digits "
        "(decimal128: 38), and SCALE of them, from 0 to PRECISION, are behind the point"
    )


def spec_of(type: pa.DataType) -> Any:
    """Return the schema's entry for an inferred Arrow type.

    A field that was always null becomes text. So does a field of times: pyarrow infers times of
    whole seconds, and would refuse a later value with a fraction. For objects that were always
    empty, ``None`` is returned; they are left out, since no Parquet column can hold them.
    """
    if pa.types.is_struct(type):
        known = {field.name: spec_of(field.type) for field in type}
        return {name: spec for name, spec in known.items() if spec is not None} or None
    if pa.types.is_list(type):
        inner = spec_of(type.value_type)
        return None if inner is None else [inner]
    return "string" if pa.types.is_null(type) or pa.types.is_temporal(type) else str(type)


def _depth(value: Any) -> int:
    inside = (
        value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    )
    return 0 if inside is None else 1 + max(map(_depth, inside), default=0)


# pyarrow takes a whole number that needs more than 64 bits for a double, which would change its
# last digits: those of an id, for example.
def _exact(spec: Any, values: Sequence[Any]) -> Any:
    """Return a schema's entry with decimals for doubles of which all values are whole numbers."""
    if isinstance(spec, dict):
        objects = [value for value in values if isinstance(value, dict)]
        return {
            name: _exact(each, [value[name] for value in objects if name in value])
            for name, each in spec.items()
        }
    if isinstance(spec, list):
        return [_exact(spec[0], [item for value in values for item in value or ()])]
    numbers = [value for value in values if value is not None]
    if spec == "double" and all(
        isinstance(number, int) and abs(number) < 10 ** _DIGITS["128"] for number in numbers
    ):
        return f"decimal({_DIGITS['128']}, 0)"
    return spec


def infer(values: Iterable[bytes | None], topic: str) -> dict[str, Any]:
    """Return the schema of the values that are JSON objects; others are ignored.

    Raises:
        ExportError: No value is a JSON object, or no schema fits all objects.
    """
    good = []
    for value in values:
        try:
            if (
                value is not None
                and isinstance(known := json.loads(value), dict)
                and _depth(known) <= _DEEPEST
            ):
                good.append(json.dumps(known).encode())
        except (ValueError, RecursionError):
            continue
    if good:
        try:
            text = b"\n".join(good) + b"\n"
            schema = pj.read_json(
                io.BytesIO(text), pj.ReadOptions(use_threads=False, block_size=len(text) + 1)
            ).schema
        except pa.ArrowException as error:
            raise ExportError(
                f"no schema fits the first {len(good)} values of {topic!r}; give value_schema: "
                f"{error}"
            ) from error
        if (spec := spec_of(pa.struct(list(schema)))) is None:
            raise ExportError(
                f"the first {len(good)} values of {topic!r} are empty objects; give value_schema"
            )
        found: dict[str, Any] = _exact(spec, [json.loads(value) for value in good])
        return found
    raise ExportError(
        f"no value of {topic!r} is a JSON object, so there is no schema to infer; give value_schema"
    )
