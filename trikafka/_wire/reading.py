"""The parts that the readers of Produce, Fetch and other frequent responses share. No I/O.

These readers are written by hand, because a general decoder would cost too much for responses that
come with every few records.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NamedTuple
from uuid import UUID

from ..errors import DamagedResponseError

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_LEADER = struct.Struct(">ii")
#: The most tagged fields in one place; Kafka 4.4 has the same limit.
MOST_TAGS = 10_000


class LeaderIdAndEpoch(NamedTuple):
    """The current leader of a partition, and its leader epoch (KIP-951)."""

    leader_id: int
    leader_epoch: int


class NodeEndpoint(NamedTuple):
    """The address of a broker that has become the leader of a partition (KIP-951)."""

    node_id: int
    host: str
    port: int
    rack: str | None


class FieldReader:
    """A cursor over a response, with compact or fixed lengths.

    ``compact``: whether lengths are variable-length numbers (KIP-482). ``name``: the API, for
    errors. Every method that reads checks for the end of the response first, and raises
    :exc:`DamagedResponseError` for malformed data.
    """

    __slots__ = ("_allowed", "compact", "data", "name", "position")

    def __init__(self, data: memoryview, compact: bool, name: str) -> None:
        self.data = data
        self.position = 0
        self.compact = compact
        self.name = name
        self._allowed = len(data)

    def allow(self, elements: int) -> None:
        """Refuse the response once its arrays have more than ``elements`` elements in total."""
        self._allowed = elements

    def take(self, size: int) -> memoryview:
        """Return the next ``size`` bytes, not copied."""
        end = self.position + size
        if size < 0 or end > len(self.data):
            raise self._ended()
        part = self.data[self.position : end]
        self.position = end
        return part

    def unpack(self, layout: struct.Struct) -> tuple[Any, ...]:
        """Return the next fields, which have the given layout."""
        # A caught error would be the context of the next one. Its frames hold the request.
        if self.position + layout.size > len(self.data):
            raise self._ended()
        fields = layout.unpack_from(self.data, self.position)
        self.position += layout.size
        return fields

    def uvarint(self) -> int:
        """Return a number in one to five bytes, with seven bits in each."""
        data, position, value = self.data, self.position, 0
        for shift in range(0, 35, 7):
            if position == len(data):
                raise self._ended()
            byte: int = data[position]
            position += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                self.position = position
                return value
        raise DamagedResponseError(f"a {self.name} response holds a malformed length")

    def length(self, wide: bool = True) -> int:
        """Return the length of an array or of bytes, or without ``wide`` of a string; -1: null."""
        if self.compact:
            position = self.position
            # Nearly all lengths fit into one byte.
            if position < len(self.data) and (byte := self.data[position]) < 0x80:
                self.position = position + 1
                return byte - 1
            return self.uvarint() - 1
        size = int(self.unpack(_INT32 if wide else _INT16)[0])
        if size < -1:
            raise DamagedResponseError(f"a {self.name} response holds a negative length")
        return size

    def count(self, least: int = 1) -> int:
        """Return the length of an array, -1 for null.

        ``least``: the size of the shortest element in bytes. A count that the remaining bytes
        cannot hold is refused here, before a loop over the elements begins.
        """
        count = self.length()
        if count * least > len(self.data) - self.position:
            raise DamagedResponseError(f"a {self.name} response holds an array longer than itself")
        self._allowed -= count
        if self._allowed < 0:
            raise DamagedResponseError(f"a {self.name} response holds more than was asked for")
        return count

    def text(self) -> str | None:
        """Return a string, or ``None`` for null."""
        size = self.length(wide=False)
        return None if size < 0 else self._text(size)

    def required_text(self) -> str:
        """Return a string that is never null, such as a topic's name."""
        return self._text(self.length(wide=False))

    def topic_id(self) -> UUID:
        """Return a topic's id."""
        return UUID(bytes=bytes(self.take(16)))

    def _text(self, size: int) -> str:
        part = self.take(size)
        with suppress(UnicodeDecodeError):
            return str(part, "utf-8")
        raise DamagedResponseError(f"a {self.name} response holds a text that is not UTF-8")

    def no_tags(self) -> bool:
        """Return whether there are no tagged fields, as is usual; if so, skip their count."""
        position = self.position
        if position < len(self.data) and not self.data[position]:
            self.position = position + 1
            return True
        return False

    def tags(self) -> None:
        """Skip the tagged fields."""
        if self.compact and not self.no_tags():
            for _ in self.tagged():
                pass

    def tagged(self) -> Iterator[tuple[int, FieldReader]]:
        """Yield the number of each tagged field, and a reader of its bytes.

        The caller must call that reader's :meth:`end`.
        """
        count = self.uvarint()
        if count > MOST_TAGS:
            raise DamagedResponseError(f"a {self.name} response holds {count} tagged fields")
        for _ in range(count):
            tag = self.uvarint()
            yield tag, FieldReader(self.take(self.uvarint()), True, self.name)

    def end(self) -> None:
        """Raise an error if any bytes are left."""
        if self.position != len(self.data):
            raise DamagedResponseError(
                f"a {self.name} response has {len(self.data) - self.position} bytes after its end"
            )

    def _ended(self) -> DamagedResponseError:
        return DamagedResponseError(
            f"a {self.name} response of {len(self.data)} bytes ends inside a field"
        )


def read_leader(field: FieldReader) -> LeaderIdAndEpoch | None:
    """Return the leader in a tagged field; ``None`` if the broker does not know the leader."""
    leader_id, epoch = field.unpack(_LEADER)
    field.tags()
    field.end()
    return LeaderIdAndEpoch(leader_id, epoch) if leader_id >= 0 and epoch >= 0 else None


def read_endpoints(field: FieldReader) -> tuple[NodeEndpoint, ...]:
    """Return the addresses of the leaders in a tagged field."""
    endpoints = []
    for _ in range(field.count(11)):  # the size of the shortest one in bytes
        (node_id,) = field.unpack(_INT32)
        host = field.required_text()
        (port,) = field.unpack(_INT32)
        endpoints.append(NodeEndpoint(node_id, host, port, field.text()))
        field.tags()
    field.end()
    return tuple(endpoints)
