"""Avro's unions of several types, as structs with the fields ``member0``, ``member1`` and so on.

Null is not a member.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any

from .errors import SchemaError

Converter = Callable[[Any], Any]
_WIDER = {"int": "long", "float": "double"}
_NAMED = ("record", "error", "enum", "fixed")


# Arrow has a union type, but Parquet, Spark and the table formats do not. So a union becomes a
# struct with a field for each type, of which at most one has a value. Spark's from_avro does the
# same, so exported files have the same columns as those that Spark writes.
#
# Two more rules are Spark's. int and long are one member (long), and so are float and double
# (double). If that leaves only one member, the union becomes that type instead of a struct. So does
# a union of null and one type, because columns are nullable anyway.
#
# A union in which some whole numbers have a logical type and others have none is refused: a date
# and a count, for example, have no common type.
def groups(schema: Sequence[Any]) -> list[list[int]]:
    """Return for each member the places of its types in the union.

    Raises:
        SchemaError: A member would have whole numbers with and without a logical type.
    """
    found: dict[Any, list[int]] = {}
    for place, each in enumerate(schema):
        kind = _kind(each)
        if kind == "null":
            continue
        found.setdefault(
            _WIDER.get(kind, kind) if kind in (*_WIDER, *_WIDER.values()) else place, []
        ).append(place)
    for places in found.values():
        logical = [
            schema[place]
            for place in places
            if isinstance(schema[place], dict) and "logicalType" in schema[place]
        ]
        if len(places) > 1 and logical:
            raise SchemaError(
                f"some of its whole numbers have the logical type {logical[0]['logicalType']}, "
                "and some do not"
            )
    return list(found.values())


def converter(schema: Any, named: Mapping[str, Any], *, tagged: bool) -> Converter | None:
    """Return a function that converts fastavro's values into Arrow's.

    Args:
        schema: The parsed schema, which must not contain itself.
        named: The schema's named types.
        tagged: True if fastavro returns the names of types with values (``return_named_type``).

    Returns:
        The function; ``None`` if no conversion is needed.
    """
    return _Converters(named, tagged).of(schema) if _has_choice(schema, named) else None


def _has_choice(schema: Any, named: Mapping[str, Any]) -> bool:
    if isinstance(schema, list):
        return len(groups(schema)) > 1 or any(_has_choice(each, named) for each in schema)
    if isinstance(schema, str):
        return schema in named and _has_choice(named[schema], named)
    inner = [schema[name] for name in ("items", "values") if name in schema]
    inner += [each["type"] for each in schema.get("fields", ())]
    inner += [schema["type"]] if isinstance(schema["type"], list | dict) else []
    return any(_has_choice(each, named) for each in inner)


class _Converters:
    """The maker of converters for the parts of a schema."""

    def __init__(self, named: Mapping[str, Any], tagged: bool) -> None:
        self._named = named
        self._tagged = tagged

    def of(self, schema: Any) -> Converter | None:
        """Return the converter of a schema; ``None`` if its values need no conversion."""
        if isinstance(schema, list):
            return self._union(schema)
        if isinstance(schema, str):
            return self.of(self._named[schema]) if schema in self._named else None
        if isinstance(schema["type"], list | dict):
            return self.of(schema["type"])
        if schema["type"] == "array":
            return _array(self.of(schema["items"]))
        if schema["type"] == "map":
            return _map(self.of(schema["values"]))
        if schema["type"] in ("record", "error"):
            return _record({each["name"]: self.of(each["type"]) for each in schema["fields"]})
        return None

    def _union(self, schema: list[Any]) -> Converter:
        members = groups(schema)
        choice = _Choice(schema, members, self._named, self._tagged)
        inner = [None if len(places) > 1 else self.of(schema[places[0]]) for places in members]

        def convert(value: Any) -> Any:
            name = None
            if isinstance(value, tuple):
                name, value = value
            if value is None:
                return None
            number = 0 if len(members) == 1 else choice.of(name, value)
            own = inner[number]
            value = value if own is None else own(value)
            return value if len(members) == 1 else {f"member{number}": value}

        return convert


def _array(inner: Converter | None) -> Converter | None:
    return None if inner is None else lambda value: list(map(inner, value))


def _map(inner: Converter | None) -> Converter | None:
    return (
        None if inner is None else lambda value: {name: inner(each) for name, each in value.items()}
    )


def _record(fields: Mapping[str, Converter | None]) -> Converter | None:
    wanted = {name: each for name, each in fields.items() if each is not None}
    if not wanted:
        return None
    return lambda value: value | {name: each(value[name]) for name, each in wanted.items()}


class _Choice:
    """The choice of a value's member, by the name of its type or by its Python type."""

    def __init__(
        self, schema: list[Any], members: list[list[int]], named: Mapping[str, Any], tagged: bool
    ) -> None:
        self._by_name: dict[str, int] = {}
        self._by_kind: dict[str, int] = {}
        self._fits: list[tuple[int, Callable[[Any], bool]]] = []
        for number, places in enumerate(members):
            one = schema[places[0]]
            one = named.get(one, one) if isinstance(one, str) else one
            kind = _kind(one)
            if kind in _NAMED:
                self._by_name[one["name"]] = number
                if not tagged:  # Tagged values have their type's name.
                    self._fits.append((number, _fitting(one)))
            else:
                self._by_kind[_PYTHON[kind] if not _is_decimal(one) else "Decimal"] = number

    def of(self, name: str | None, value: Any) -> int:
        """Return the number of the value's member.

        Raises:
            ValueError: No member fits, or more than one.
        """
        if name is not None:
            return self._by_name[name]
        found = [number for number, fits in self._fits if fits(value)]
        own = self._by_kind.get(type(value).__name__)
        if own is not None:
            found.append(own)
        if len(found) != 1:
            what = "none" if not found else "more than one"
            raise ValueError(
                f"the value was written with another schema, and {what} of the types of a union "
                "fits it"
            )
        return found[0]


def _fitting(schema: Mapping[str, Any]) -> Callable[[Any], bool]:
    if schema["type"] == "enum":
        symbols = frozenset(schema["symbols"])
        return lambda value: isinstance(value, str) and value in symbols
    if schema["type"] == "fixed":
        if _is_decimal(schema):
            return lambda value: isinstance(value, Decimal)
        size = schema["size"]
        return lambda value: isinstance(value, bytes) and len(value) == size
    fields = {each["name"] for each in schema["fields"]}
    return lambda value: isinstance(value, dict) and value.keys() == fields


def _is_decimal(schema: Any) -> bool:
    return isinstance(schema, dict) and schema.get("logicalType") == "decimal"


def _kind(schema: Any) -> str:
    while isinstance(schema, dict) and isinstance(schema["type"], dict):
        schema = schema["type"]
    return schema if isinstance(schema, str) else str(schema["type"])


_PYTHON = {
    "boolean": "bool",
    "int": "int",
    "long": "int",
    "float": "float",
    "double": "float",
    "string": "str",
    "bytes": "bytes",
    "array": "list",
    "map": "dict",
}
