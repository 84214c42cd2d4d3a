"""Answers read by hand, for the two that come with every record: what they share. No I/O."""

from __future__ import annotations

import struct
from typing import Any

from ..errors import ProtocolError

_INT16, _INT32 = struct.Struct(">h"), struct.Struct(">i")


class Reader:
    """A cursor over an answer, in one of the two ways in which lengths are written.

    Every step is checked against the end of the answer. Raises :exc:`ProtocolError`; ``name`` says of what.
    """

    __slots__ = ("compact", "data", "name", "position")

    def __init__(self, data: memoryview, compact: bool, name: str) -> None:
        self.data, self.position, self.compact, self.name = data, 0, compact, name

    def take(self, size: int) -> memoryview:
        """The next ``size`` bytes, not copied."""
        end = self.position + size
        if size < 0 or end > len(self.data):
            raise self._ended()
        part = self.data[self.position : end]
        self.position = end
        return part

    def unpack(self, layout: struct.Struct) -> tuple[Any, ...]:
        """The next fields."""
        try:
            fields = layout.unpack_from(self.data, self.position)
        except struct.error:
            raise self._ended() from None
        self.position += layout.size
        return fields

    def uvarint(self) -> int:
        """A number of up to five bytes, seven bits in each."""
        data, position, value = self.data, self.position, 0
        try:
            for shift in range(0, 35, 7):
                byte: int = data[position]
                position += 1
                value |= (byte & 0x7F) << shift
                if byte < 0x80:
                    self.position = position
                    return value
        except IndexError:
            raise self._ended() from None
        raise ProtocolError(f"a {self.name} answer holds a malformed length")

    def length(self, wide: bool = True) -> int:
        """The length of an array or of bytes (``wide``) or of a string; -1 for null."""
        if self.compact:
            position = self.position
            if position < len(self.data) and (byte := self.data[position]) < 0x80:  # as it nearly always is
                self.position = position + 1
                return byte - 1
            return self.uvarint() - 1
        return int(self.unpack(_INT32 if wide else _INT16)[0])

    def count(self) -> int:
        """The length of an array, of which every element takes at least one byte."""
        count = self.length()
        if count > len(self.data) - self.position:
            raise ProtocolError(f"a {self.name} answer holds an array longer than itself")
        return count

    def text(self) -> str | None:
        """A string, or null."""
        size = self.length(wide=False)
        return None if size < 0 else self._text(size)

    def topic(self) -> str:
        """A topic's name, which is never null."""
        return self._text(self.length(wide=False))

    def _text(self, size: int) -> str:
        try:
            return str(self.take(size), "utf-8")
        except UnicodeDecodeError:
            raise ProtocolError(f"a {self.name} answer holds a text that is not UTF-8") from None

    def tags(self) -> None:
        """Skip the tagged fields."""
        if self.compact:
            position = self.position
            if position < len(self.data) and not self.data[position]:  # as it nearly always is
                self.position = position + 1
                return
            for _ in range(self.uvarint()):
                self.uvarint()
                self.take(self.uvarint())

    def end(self) -> None:
        """Check that nothing is left."""
        if self.position != len(self.data):
            raise ProtocolError(f"a {self.name} answer has {len(self.data) - self.position} bytes after its end")

    def _ended(self) -> ProtocolError:
        return ProtocolError(f"a {self.name} answer of {len(self.data)} bytes ends inside a field")
