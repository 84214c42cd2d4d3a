"""A fast decoder for Protobuf: numpy reads one field of many messages at a time.

If one message of a part is odd (a repeated single field, a group, another wire type, invalid
UTF-8), :class:`ProtobufDecoder` reads that part again with Google's library, which finds the wrong
message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa

try:
    import numpy as np
except ImportError:
    np = None  # type: ignore[assignment]

from .column_bytes import GUARD, Data, OddError, check, gathered, texts, varints
from .protobuf_types import (
    AS_JSON,
    TIMESTAMP,
    WRAPPERS,
    is_map,
    is_required,
    message_type,
    repeated,
    type_of,
)

#: Seconds of 0001-01-01 and 10000-01-01, the range of a Timestamp.
FIRST, LAST = -62_135_596_800, 253_402_300_800
_VARINT, _I64, _LEN, _I32 = 0, 1, 2, 5
_MOST_NUMBER = (1 << 29) - 1
#: The most turns for unusual orders of fields, and for repeated fields.
_MOST_TURNS = 300
#: Returns the array of the values at some places: the data, the starts and the ends. For whole
#: numbers the values themselves stand in for the starts and the ends.
Reader = Callable[[Data, Any, Any], pa.Array]


# Fields of a message may come in any order, so a reader cannot be a fixed sequence as for Avro. The
# messages are walked side by side instead (_Walk). Each message has a position and the tag read
# there. In each turn one field of the schema is taken from all messages that are at its tag.
# Serializers write fields in the order of their numbers, so one turn per field usually suffices for
# all messages. Fields that the schema lacks are skipped. Messages in another order cost more turns;
# more than a limit is odd.
#
# What a value means is decided after the walk, from the sorted places of each field. A missing
# field gets its default or null. A field that occurs twice and is not a list is odd, because
# Protobuf keeps the last one. Two members of one oneof are odd, too.
#
# As in avro_columns, a reader may refuse anything rare, but must never return a value that Google's
# library would not return.
def reader_of(descriptor: Any) -> Callable[[pa.BinaryArray], pa.Array] | None:
    """Return a function that reads messages of one type into a column.

    The function raises :exc:`OddError`. Return ``None`` if the type is not plain enough.
    """
    if np is None:
        return None
    try:
        read = _message(descriptor)
    except OddError:
        return None

    def whole(column: pa.BinaryArray) -> pa.Array:
        data = Data(column)
        try:
            return read(data, data.offsets[:-1], data.offsets[1:])
        except (pa.ArrowException, OverflowError, IndexError) as error:
            raise OddError from error

    return whole


# --- the walk ---


class _Slot:
    """A field by its tag.

    Packed and single numbers have two tags, so a repeated number has two slots and one ``found``.
    """

    def __init__(self, number: int, wire: int, found: int, *, many: bool, packed: int = 0) -> None:
        self.tag = number << 3 | wire
        self.wire = wire
        self.found = found  # the index of the field's values in the result of a walk
        #: True if the field may be repeated.
        self.many = many
        #: The bytes per packed number, 1 for varints; 0 if the numbers are not packed.
        self.packed = packed


class _Found:
    """The values of a field: their owners, in order, and their places.

    For whole numbers the values themselves stand instead of the places (see :data:`Reader`).
    """

    def __init__(self) -> None:
        self._parts: list[tuple[Any, Any, Any]] = []

    def add(self, owners: Any, start: Any, stop: Any) -> None:
        self._parts.append((owners, start, stop))

    def sorted(self) -> tuple[Any, Any, Any]:
        """Return the values sorted by owner."""
        if not self._parts:
            none = np.empty(0, np.int64)
            return none, none, none
        owners, start, stop = (
            self._parts[0]
            if len(self._parts) == 1
            else map(np.concatenate, zip(*self._parts, strict=True))
        )
        if len(self._parts) > 1:
            order = np.argsort(owners, kind="stable")
            owners = owners[order]
            start = start[order]
            stop = stop[order]
        return owners, start, stop


class _Walk:
    """Messages side by side: the position of each, and the tag read there (0 at its end)."""

    def __init__(self, data: Data, begin: Any, end: Any) -> None:
        self._data = data
        self._at = begin.copy()
        self._end = end
        self._tags = np.zeros(len(begin), np.uint64)
        self._next(np.arange(len(begin)))

    def run(self, slots: Sequence[_Slot], count: int) -> list[_Found]:
        """Return the values of each field."""
        found = [_Found() for _ in range(count)]
        known = np.array([slot.tag for slot in slots], np.uint64)
        numbers = np.unique(known >> np.uint64(3))
        turns = 0
        while self._tags.any():
            for slot in slots:
                for chosen in self._at_tag(slot):
                    turns += 1
                    self._take(slot, chosen, found[slot.found])
            left = np.flatnonzero((self._tags != 0) & ~np.isin(self._tags, known))
            if len(left):
                self._skip(left, numbers)
            turns += 1
            if turns > _MOST_TURNS + 2 * len(slots):
                raise OddError
        return found

    def _at_tag(self, slot: _Slot) -> Iterator[Any]:
        chosen = np.flatnonzero(self._tags == slot.tag)
        for _ in range(_MOST_TURNS if slot.many else 1):
            if not len(chosen):
                return
            yield chosen
            chosen = chosen[self._tags[chosen] == slot.tag]
        if len(chosen):
            raise OddError

    def _take(self, slot: _Slot, chosen: Any, found: _Found) -> None:
        start, stop, after = self._extent(slot.wire, chosen)
        if slot.packed:
            found.add(*_unpacked(self._data, chosen, start, stop, slot.packed))
        else:
            found.add(chosen, start, stop)
        self._at[self._places(chosen)] = after
        self._next(chosen)

    def _places(self, chosen: Any) -> Any:
        """Return an index of the chosen messages: a slice for all, which numpy does not copy."""
        return slice(None) if len(chosen) == len(self._at) else chosen

    def _extent(self, wire: int, chosen: Any) -> tuple[Any, Any, Any]:
        places = self._places(chosen)
        at, end = self._at[places], self._end[places]
        if wire == _VARINT:
            value, after = varints(self._data, at, end)
            return value, value, after
        if wire == _LEN:
            length, start = varints(self._data, at, end)
            check(length <= (end - start).astype(np.uint64))
            stop = start + length.astype(np.int64)
            return start, stop, stop
        stop = at + (8 if wire == _I64 else 4)
        check(stop <= end)
        return at.copy(), stop, stop  # A copy, since the walk advances ``at``.

    def _skip(self, left: Any, numbers: Any) -> None:
        """Skip one field that the schema lacks, in each of these messages."""
        tags = self._tags[left]
        check(~np.isin(tags >> np.uint64(3), numbers))  # a known field with another wire type
        wires = tags & np.uint64(7)
        for wire in np.unique(wires):
            if wire not in (_VARINT, _I64, _LEN, _I32):
                raise OddError
            chosen = left[wires == wire]
            self._at[chosen] = self._extent(int(wire), chosen)[2]
        self._next(left)

    def _next(self, chosen: Any) -> None:
        """Read the next tags of these messages."""
        places = self._places(chosen)
        at, end = self._at[places], self._end[places]
        there = at < end
        if not there.any():
            self._tags[places] = 0
            return
        if not there.all():
            self._tags[places] = 0
            places, at, end = chosen[there], at[there], end[there]
        tags, self._at[places] = varints(self._data, at, end)
        self._tags[places] = tags
        number = tags >> np.uint64(3)
        check((number > 0) & (number <= _MOST_NUMBER))


def _unpacked(data: Data, owners: Any, start: Any, stop: Any, size: int) -> tuple[Any, Any, Any]:
    """Return the packed numbers in these places.

    Each has ``size`` bytes; if ``size`` is 1, they are varints.
    """
    length = stop - start
    if size > 1:
        check(length % size == 0)
        count = length // size
        begins = _ranges(start, count, size)
        return np.repeat(owners, count), begins, begins + size
    places = _ranges(start, length, 1)
    last = data.bytes[places] < 0x80
    filled = length > 0
    check(last[np.cumsum(length)[filled] - 1])  # No number extends beyond its field.
    ends = np.flatnonzero(last)
    begins = places[np.concatenate([[0], ends[:-1] + 1])] if len(ends) else places[:0]
    value, _ = varints(data, begins, places[ends] + 1)
    return np.repeat(owners, length)[ends], value, value


def _ranges(start: Any, count: Any, step: int) -> Any:
    """Return ``count`` numbers from each start on, at a distance of ``step``."""
    before = np.cumsum(count) - count
    return np.repeat(start - before * step, count) + np.arange(int(count.sum())) * step


# --- messages and fields ---


def _message(descriptor: Any) -> Reader:
    """Return the reader of a message type."""
    if descriptor.full_name == TIMESTAMP:
        return _timestamps(descriptor)
    if descriptor.full_name in WRAPPERS:
        return _wrapped(descriptor)
    if descriptor.full_name in AS_JSON:
        return _as_json(descriptor)
    if not descriptor.fields:
        return _fieldless
    fields = list(descriptor.fields)
    slots = [slot for number, field in enumerate(fields) for slot in _slots(field, number)]
    slots.sort(key=lambda slot: slot.tag)
    parts = [_field(field) for field in fields]
    kind = list(message_type(descriptor, "", "", ()))
    choices = [
        [field.index for field in each.fields] for each in descriptor.oneofs if len(each.fields) > 1
    ]

    def read(data: Data, begin: Any, end: Any) -> pa.Array:
        found = [each.sorted() for each in _Walk(data, begin, end).run(slots, len(fields))]
        for choice in choices:  # Two members of a oneof are odd: Protobuf keeps the last one.
            _once(np.concatenate([found[index][0] for index in choice]), len(begin))
        arrays = [part(data, begin, *each) for part, each in zip(parts, found, strict=True)]
        return pa.StructArray.from_arrays(arrays, fields=kind)

    return read


def _slots(field: Any, place: int) -> list[_Slot]:
    if field.type == field.TYPE_GROUP or is_required(field):
        raise OddError
    wire = _wire(field)
    many = repeated(field)
    found = [_Slot(field.number, wire, place, many=many)]
    if many and wire != _LEN:
        size = {_VARINT: 1, _I64: 8, _I32: 4}[wire]
        found.append(_Slot(field.number, _LEN, place, many=True, packed=size))
    return found


def _wire(field: Any) -> int:
    if field.type in (field.TYPE_DOUBLE, field.TYPE_FIXED64, field.TYPE_SFIXED64):
        return _I64
    if field.type in (field.TYPE_FLOAT, field.TYPE_FIXED32, field.TYPE_SFIXED32):
        return _I32
    if field.type in (field.TYPE_STRING, field.TYPE_BYTES, field.TYPE_MESSAGE):
        return _LEN
    return _VARINT


#: Arguments: the data, the start of each message, and the owners and places of the field's values.
Part = Callable[[Data, Any, Any, Any, Any], pa.Array]


def _field(field: Any) -> Part:
    if is_map(field):
        return _map(field)
    read = _values(field)
    if repeated(field):
        type = pa.list_(type_of(field))

        def lists(data: Data, begin: Any, owners: Any, start: Any, stop: Any) -> pa.Array:
            return pa.ListArray.from_arrays(
                _offsets(owners, len(begin)), read(data, start, stop), type=type
            )

        return lists
    if field.has_presence:

        def optional(data: Data, begin: Any, owners: Any, start: Any, stop: Any) -> pa.Array:
            there = _once(owners, len(begin))
            array = read(data, start, stop)
            return array if there.all() else array.take(pa.array(np.cumsum(there) - 1, mask=~there))

        return optional
    wire = _wire(field)

    def plain(data: Data, begin: Any, owners: Any, start: Any, stop: Any) -> pa.Array:
        there = _once(owners, len(begin))
        if not there.all():
            start, stop = _spread(data, begin, owners, start, stop, wire)
        return read(data, start, stop)

    return plain


def _spread(
    data: Data, begin: Any, owners: Any, start: Any, stop: Any, wire: int
) -> tuple[Any, Any]:
    """Return places for all messages, with zeros or empty places for missing values."""
    if wire == _LEN:
        starts = begin.copy()
        starts[owners] = start
        stops = begin.copy()
        stops[owners] = stop
        return starts, stops
    values = (
        np.zeros(len(begin), np.uint64)
        if wire == _VARINT
        else np.full(len(begin), len(data.bytes) - GUARD)
    )
    values[owners] = start
    return values, values


def _once(owners: Any, count: int) -> Any:
    """Return which messages have the field. A field that occurs twice is odd."""
    there = np.zeros(count, np.bool_)
    there[owners] = True
    if int(there.sum()) != len(owners):
        raise OddError
    return there


def _offsets(owners: Any, count: int) -> pa.Array:
    return pa.array(
        np.concatenate([[0], np.cumsum(np.bincount(owners, minlength=count))]), pa.int32()
    )


def _map(field: Any) -> Part:
    entry = field.message_type
    parts = [entry.fields_by_name[name] for name in ("key", "value")]
    kind = pa.map_(*(type_of(each) for each in parts))
    slots = sorted(
        (slot for number, each in enumerate(parts) for slot in _slots(each, number)),
        key=lambda slot: slot.tag,
    )
    reads = [(_values(each), _wire(each)) for each in parts]

    def maps(data: Data, begin: Any, owners: Any, start: Any, stop: Any) -> pa.Array:
        arrays = []
        for (read, wire), found in zip(reads, _Walk(data, start, stop).run(slots, 2), strict=True):
            inside, low, high = found.sorted()
            _once(inside, len(start))
            # A missing message is an empty one.
            arrays.append(read(data, *_spread(data, start, inside, low, high, wire)))
        keys = arrays[0].dictionary_encode().indices.to_numpy().astype(np.int64)
        # A key that occurs twice is odd: Protobuf keeps the last one.
        if len(np.unique(owners * (len(keys) + 1) + keys)) < len(keys):
            raise OddError
        return pa.MapArray.from_arrays(_offsets(owners, len(begin)), *arrays, type=kind)

    return maps


def _values(field: Any) -> Reader:
    """Return the reader of a field's single values."""
    if field.message_type is not None:
        return _message(field.message_type)
    type = type_of(field)
    if field.enum_type is not None:
        return _enum(field.enum_type)
    if _wire(field) == _LEN:
        return lambda data, start, stop: texts(data, start, stop, type)
    if _wire(field) == _VARINT:
        return _whole(field, type)
    code = "<f" if field.cpp_type in (field.CPPTYPE_DOUBLE, field.CPPTYPE_FLOAT) else "<i"
    size = type.bit_width // 8
    return lambda data, start, stop: pa.array(
        gathered(data, start, size).view(f"{code}{size}").reshape(-1)
    ).view(type)


def _whole(field: Any, type: pa.DataType) -> Reader:
    if field.type == field.TYPE_BOOL:
        return lambda data, value, stop: pa.array(value != 0)
    code = {
        pa.int32(): np.int32,
        pa.int64(): np.int64,
        pa.uint32(): np.uint32,
        pa.uint64(): np.uint64,
    }[type]
    if field.type == field.TYPE_SINT32:
        return lambda data, value, stop: pa.array(
            _signed(value.astype(np.uint32).astype(np.uint64)).astype(np.int32)
        )
    if field.type == field.TYPE_SINT64:
        return lambda data, value, stop: pa.array(_signed(value))
    return lambda data, value, stop: pa.array(value.astype(code))


def _signed(value: Any) -> Any:
    """Return the signed numbers that zigzag encoding (0, -1, 1, -2 as 0, 1, 2, 3) stands for."""
    value = value.astype(np.uint64, copy=False)
    return (value >> np.uint64(1)).astype(np.int64) ^ -(value & np.uint64(1)).astype(np.int64)


def _enum(type: Any) -> Reader:
    names = {each.number: each.name for each in reversed(type.values)}
    numbers = np.array(sorted(names), np.int64)
    in_order = pa.array([names[number] for number in sorted(names)], pa.string())

    def read(data: Data, value: Any, stop: Any) -> pa.Array:
        number = value.astype(np.int32).astype(np.int64)
        place = np.minimum(np.searchsorted(numbers, number), len(numbers) - 1)
        # An unknown number is odd: Google's library returns it, or drops it.
        check(numbers[place] == number)
        return in_order.take(pa.array(place))

    return read


def _timestamps(descriptor: Any) -> Reader:
    slots = [slot for number, each in enumerate(descriptor.fields) for slot in _slots(each, number)]

    def read(data: Data, start: Any, stop: Any) -> pa.Array:
        found = []
        for each in _Walk(data, start, stop).run(slots, 2):
            owners, value, _ = each.sorted()
            _once(owners, len(start))
            found.append(_spread(data, start, owners, value, value, _VARINT)[0].astype(np.int64))
        seconds = found[0]
        nanos = found[1].astype(np.int32).astype(np.int64)
        check((seconds >= FIRST) & (seconds < LAST) & (nanos >= 0) & (nanos <= 999_999_999))
        return pa.array(seconds * 1_000_000 + nanos // 1_000).cast(pa.timestamp("us", tz="UTC"))

    return read


def _wrapped(descriptor: Any) -> Reader:
    field = descriptor.fields_by_name["value"]
    slots = _slots(field, 0)
    part = _field(field)

    def read(data: Data, start: Any, stop: Any) -> pa.Array:
        (found,) = _Walk(data, start, stop).run(slots, 1)
        return part(data, start, *found.sorted())

    return read


def _fieldless(data: Data, start: Any, stop: Any) -> pa.Array:
    _Walk(data, start, stop).run((), 0)
    return pa.array(np.ones(len(start), np.bool_))


def _as_json(descriptor: Any) -> Reader:
    """Return the reader of types that contain themselves, which Google's library parses."""
    from google.protobuf import message_factory
    from google.protobuf.json_format import MessageToJson

    parse = message_factory.GetMessageClass(descriptor).FromString

    def read(data: Data, start: Any, stop: Any) -> pa.Array:
        try:
            messages = [
                parse(data.bytes[low:high].tobytes())
                for low, high in zip(start.tolist(), stop.tolist(), strict=True)
            ]
            return pa.array([MessageToJson(each, indent=None) for each in messages], pa.string())
        except Exception as error:
            raise OddError from error

    return read
