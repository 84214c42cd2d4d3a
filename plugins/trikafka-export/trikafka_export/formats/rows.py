"""The functions of all formats that turn many values into an array, and find the wrong ones."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Protocol

import pyarrow as pa

from .column_bytes import quickly
from .sizes import Sizes

#: The most values decoded at once. The library's objects of all of them are in memory together.
AT_ONCE = 4096
#: An array, and the faults by place in the array. Values with a fault are null.
Decoded = tuple[pa.Array, dict[int, str]]
#: The most characters of an error's text.
_MOST_TEXT = 500


class Decoder(Protocol):
    """A decoder of one format."""

    @property
    def type(self) -> pa.DataType:
        """The type of the column."""

    def decode(self, column: pa.BinaryArray) -> Decoded:
        """Decode a column without nulls; return an array of the same length, and the faults."""


class PartsDecoder(ABC):
    """A decoder that decodes many values at once, and cuts a column into parts for that."""

    #: The type of the column.
    type: pa.DataType
    _sizes: Sizes
    #: Reads a part whose values have simple types, or raises :exc:`OddError`.
    _quick: Callable[[pa.BinaryArray], pa.Array] | None = None
    #: The cheap check of a single value, as :func:`decode_rows` uses it.
    _check: Callable[[bytes], object] | None = None

    def decode(self, column: pa.BinaryArray) -> Decoded:
        """Decode values as :meth:`Decoder.decode`."""
        arrays: list[pa.Array] = []
        bad: dict[int, str] = {}
        for at, part, may_be_large in self._sizes.parts(column):
            if may_be_large:
                array, wrong = decode_rows(part.to_pylist(), self._large, self.type)
            elif (found := quickly(self._quick, part)) is not None:
                array, wrong = found, {}
            else:
                array, wrong = decode_rows(part.to_pylist(), self._block, self.type, self._check)
            arrays.append(array)
            bad |= {at + number: why for number, why in wrong.items()}
        return join(arrays, self.type), bad

    @abstractmethod
    def _large(self, values: Sequence[bytes]) -> pa.Array:
        """Decode one value whose lists may become too large."""

    @abstractmethod
    def _block(self, values: Sequence[bytes]) -> pa.Array:
        """Decode values, or raise if one of them is wrong."""


# A library that decodes many values at once reports only that one of them is wrong. To decode each
# value alone then would be slow. So a failed block is halved until the wrong values are alone,
# which needs about k log2(n) calls for k wrong values among n. If there is a cheap check of a
# single value (`check`), one pass with it replaces the halving.
def decode_rows(
    values: Sequence[bytes],
    block: Callable[[Sequence[bytes]], pa.Array],
    type: pa.DataType,
    check: Callable[[bytes], object] | None = None,
) -> Decoded:
    """Decode values with ``block``, which decodes many at once or raises.

    ``check`` raises for a single wrong value. It may miss faults that are slow to find.
    """
    arrays: list[pa.Array] = []
    bad: dict[int, str] = {}
    left = [(at, min(at + AT_ONCE, len(values))) for at in range(0, len(values), AT_ONCE)][::-1]
    while left:
        low, high = left.pop()
        try:
            arrays.append(block(values[low:high]))
        except MemoryError:
            raise
        except Exception as error:
            if high - low == 1:
                bad[low] = reason(error)
                arrays.append(pa.nulls(1, type))
            elif check is not None and (wrong := _wrong(values[low:high], check)):
                good = [number for number in range(high - low) if number not in wrong]
                array, also = decode_rows([values[low + number] for number in good], block, type)
                arrays.append(spread(array, good, high - low))
                bad |= {low + number: why for number, why in wrong.items()}
                bad |= {low + good[number]: why for number, why in also.items()}
            else:
                middle = (low + high) // 2
                left += [(middle, high), (low, middle)]
    return join(arrays, type), bad


def _wrong(values: Sequence[bytes], check: Callable[[bytes], object]) -> dict[int, str]:
    found = {}
    for number, value in enumerate(values):
        try:
            check(value)
        except MemoryError:
            raise
        except Exception as error:
            found[number] = reason(error)
    return found


def spread(array: pa.Array, places: Sequence[int], length: int) -> pa.Array:
    """Return an array of ``length`` that has the values at ``places``, and nulls elsewhere."""
    found: list[int | None] = [None] * length
    for number, place in enumerate(places):
        found[place] = number
    return array.take(pa.array(found, pa.int64()))


def join(arrays: Sequence[pa.Array], type: pa.DataType) -> pa.Array:
    """Return the arrays joined."""
    if len(arrays) == 1:
        return arrays[0]
    return pa.concat_arrays(arrays) if arrays else pa.nulls(0, type)


def reason(error: Exception) -> str:
    """Return the text of an error for a dead letter, on one line."""
    lines = str(error).splitlines()
    text = lines[0].strip() if lines else ""
    if type(error).__module__.startswith(("trikafka", "pyarrow")) or type(error) is ValueError:
        return (text or type(error).__name__)[:_MOST_TEXT]
    return f"{type(error).__name__}: {text}".removesuffix(": ")[:_MOST_TEXT]
