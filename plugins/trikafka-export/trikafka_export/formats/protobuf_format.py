"""Values in Protobuf.

:mod:`.protobuf_columns` decodes messages with fields of simple types. All others are parsed by
Google's library, and then each field of many messages becomes an array. For speed, functions that
iterate in C do this, not loops of Python.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, chain
from operator import attrgetter, methodcaller
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from .errors import UnreadableError
from .framing import by_head
from .protobuf_columns import FIRST, LAST, reader_of
from .protobuf_items import check_items
from .protobuf_types import (
    AS_JSON,
    TIMESTAMP,
    WRAPPERS,
    ProtobufSchema,
    is_map,
    message_type,
    repeated,
    type_of,
)
from .rows import Decoded, Decoder, PartsDecoder, spread
from .sizes import Sizes

#: Messages per part. One unusual message makes its whole part take the slow way.
_AT_ONCE = 8192
#: The most message indexes of a value.
_MOST_INDEXES = 32
#: The most indexes whose decoder is kept. Finding a message needs the descriptor of the whole file.
_MOST_KNOWN = 256


class ProtobufDecoder(PartsDecoder):
    """A decoder of messages of one type."""

    def __init__(self, schema: ProtobufSchema) -> None:
        self.type = schema.type
        self._sizes = Sizes(self.type, _AT_ONCE)
        self._descriptor = schema.descriptor
        self._parse = self._check = schema.parse
        self._array = _message(schema.descriptor)
        self._quick = reader_of(schema.descriptor)

    def _large(self, values: Sequence[bytes]) -> pa.Array:
        """Decode one value whose lists may become too large, perhaps even as messages."""
        check_items(values[0], self._descriptor)
        return self._block(values)

    def _block(self, values: Sequence[bytes]) -> pa.Array:
        return self._array(list(map(self._parse, values)))


class IndexedDecoder:
    """A decoder of messages behind message indexes, as a registry's serializers write them.

    The indexes say which message of the schema's file follows.
    """

    def __init__(
        self, inner: ProtobufDecoder, name_at: Callable[[Sequence[int]], str | None], message: str
    ) -> None:
        self.type = inner.type
        self._inner = inner
        self._name_at = name_at
        self._message = message
        self._known: dict[tuple[int, ...], ProtobufDecoder | str] = {}
        self._first: Decoder | str = self._checked([0])

    def decode(self, column: pa.BinaryArray) -> Decoded:
        """Decode values as :meth:`Decoder.decode`.

        In nearly all values the indexes are one zero byte, which stands for the first message.
        """
        return by_head(column, 1, self.type, self._of)

    def _of(self, head: bytes) -> tuple[Decoder | str, int]:
        if head == b"\0":
            return self._first, 1
        return _Long(self.type, self._inner, self._checked), 0

    def _checked(self, indexes: Sequence[int]) -> ProtobufDecoder | str:
        key = tuple(indexes)
        if key not in self._known:
            if len(self._known) >= _MOST_KNOWN:  # indexes come from records, so there may be many
                self._known.clear()
            self._known[key] = self._named(indexes)
        return self._known[key]

    def _named(self, indexes: Sequence[int]) -> ProtobufDecoder | str:
        name = self._name_at(indexes)
        if name == self._message:
            return self._inner
        return (
            f"the value is a message {name}, not {self._message}"
            if name
            else f"the schema has no message with the indexes {indexes}"
        )


class _Long:
    """A decoder of messages whose indexes are more than one zero byte."""

    def __init__(
        self,
        type: pa.DataType,
        inner: ProtobufDecoder,
        checked: Callable[[Sequence[int]], ProtobufDecoder | str],
    ) -> None:
        self.type = type
        self._inner = inner
        self._checked = checked

    def decode(self, column: pa.BinaryArray) -> Decoded:
        rests: list[bytes | None] = []
        bad: dict[int, str] = {}
        for number, value in enumerate(column.to_pylist()):
            try:
                indexes, at = indexes_of(value)
                decoder = self._checked(indexes)
                if isinstance(decoder, str):
                    raise UnreadableError(decoder)
                rests.append(value[at:])
            except UnreadableError as error:
                bad[number] = str(error)
        good = [number for number in range(len(column)) if number not in bad]
        array, wrong = self._inner.decode(pa.array(rests, pa.binary()))
        return spread(array, good, len(column)), bad | {
            good[number]: why for number, why in wrong.items()
        }


def indexes_of(value: bytes) -> tuple[list[int], int]:
    """Return the message indexes at the beginning of a value, and the position behind them.

    Raises:
        UnreadableError: The value does not begin with message indexes.
    """
    count, at = _varint(value, 0)
    if not 0 <= count <= _MOST_INDEXES:
        raise UnreadableError("no message indexes follow the schema's id")
    found = []
    for _ in range(count):
        index, at = _varint(value, at)
        found.append(index)
    return found or [0], at


def _varint(value: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while at < len(value) and shift < 64:
        number |= (value[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if not value[at - 1] & 0x80:
            return number >> 1 ^ -(number & 1), at
    raise UnreadableError("no message indexes follow the schema's id")


# --- columns: each function returns a function that turns many messages into an array ---

Messages = Sequence[Any]
ToArray = Callable[[Messages], pa.Array]


def _message(descriptor: Any) -> ToArray:
    name = descriptor.full_name
    if name == TIMESTAMP:
        return _timestamps
    if name in WRAPPERS:
        return _field(descriptor.fields_by_name["value"])
    if name in AS_JSON:
        return _as_json
    if not descriptor.fields:
        return lambda messages: pa.array([True] * len(messages), pa.bool_())
    kind = message_type(descriptor, "", "", ())
    parts = [_field(field) for field in descriptor.fields]

    def arrays(messages: Messages) -> pa.Array:
        return pa.StructArray.from_arrays([part(messages) for part in parts], fields=list(kind))

    return arrays


def _field(field: Any) -> ToArray:
    get = attrgetter(field.name)
    if is_map(field):
        return _map(field, get)
    of_values = _values(field)
    if repeated(field):
        kind = pa.list_(type_of(field))

        def lists(messages: Messages) -> pa.Array:
            each = list(map(get, messages))
            values = of_values(list(chain.from_iterable(each)))
            return pa.ListArray.from_arrays(_offsets(each), values, type=kind)

        return lists
    if not field.has_presence:
        return lambda messages: of_values(list(map(get, messages)))
    there = methodcaller("HasField", field.name)

    def optional(messages: Messages) -> pa.Array:
        mask = list(map(there, messages))
        if all(mask):
            return of_values(list(map(get, messages)))
        values = of_values(
            [get(message) for message, has in zip(messages, mask, strict=True) if has]
        )
        places = accumulate(mask, initial=0)
        return values.take(
            pa.array(
                [at if has else None for at, has in zip(places, mask, strict=False)], pa.int64()
            )
        )

    return optional


def _map(field: Any, get: Callable[[Any], Any]) -> ToArray:
    key = field.message_type.fields_by_name["key"]
    value = field.message_type.fields_by_name["value"]
    kind = pa.map_(type_of(key), type_of(value))
    of_keys = _values(key)
    of_values = _values(value)

    def maps(messages: Messages) -> pa.Array:
        each = list(map(get, messages))
        keys = of_keys(list(chain.from_iterable(each)))
        items = of_values(list(chain.from_iterable(one.values() for one in each)))
        return pa.MapArray.from_arrays(_offsets(each), keys, items, type=kind)

    return maps


def _values(field: Any) -> ToArray:
    """Return the function that turns single values of a field into an array."""
    if field.message_type is not None:
        return _message(field.message_type)
    kind = type_of(field)
    if field.enum_type is not None:
        names = {each.number: each.name for each in reversed(field.enum_type.values)}

        def enums(values: Messages) -> pa.Array:
            return pa.array([names.get(number) or str(number) for number in values], kind)

        return enums
    return lambda values: pa.array(values, kind)


def _offsets(each: Iterable[Any]) -> pa.Array:
    return pa.array(accumulate(map(len, each), initial=0), pa.int32())


def _timestamps(messages: Messages) -> pa.Array:
    seconds = pa.array(list(map(attrgetter("seconds"), messages)), pa.int64())
    nanos = pa.array(list(map(attrgetter("nanos"), messages)), pa.int64())
    if len(seconds):
        times = pc.min_max(seconds).as_py()
        parts = pc.min_max(nanos).as_py()
        if (
            times["min"] < FIRST
            or times["max"] >= LAST
            or parts["min"] < 0
            or parts["max"] > 999_999_999
        ):
            raise ValueError("a Timestamp outside of the years 1 to 9999")
    return pc.add(pc.multiply(seconds, 1_000_000), pc.divide(nanos, 1_000)).cast(
        pa.timestamp("us", tz="UTC")
    )


def _as_json(messages: Messages) -> pa.Array:
    from google.protobuf.json_format import MessageToJson

    return pa.array([MessageToJson(each, indent=None) for each in messages], pa.string())
