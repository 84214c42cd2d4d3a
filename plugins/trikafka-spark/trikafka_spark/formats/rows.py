"""What all formats have in common: bytes of many records become one Arrow array, and what cannot be read is told apart."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import pyarrow as pa

#: Values that are decoded at once: the objects that a library makes of them live so long.
_AT_ONCE = 4096
#: Where one of so few values is wrong, they are decoded one by one.
_FEW = 16
#: The most that is told of an error, in characters.
_MOST_TEXT = 500


class Decoder(Protocol):
    """Reads one format."""

    @property
    def type(self) -> pa.DataType:
        """Of the column."""

    def decode(self, column: pa.BinaryArray) -> tuple[pa.Array, dict[int, str]]:
        """Read values, none of which is null; return as many, and what is wrong with those that cannot be read (they are null)."""


def decode_rows(
    values: Sequence[bytes], block: Callable[[Sequence[bytes]], pa.Array], type: pa.DataType
) -> tuple[pa.Array, dict[int, str]]:
    """Read them with ``block``, which reads many at once or raises: where it does, they are halved until the culprits stand alone."""
    arrays: list[pa.Array] = []
    bad: dict[int, str] = {}
    left = [(at, min(at + _AT_ONCE, len(values))) for at in range(0, len(values), _AT_ONCE)][::-1]
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
            elif high - low <= _FEW:
                left += [(at, at + 1) for at in reversed(range(low, high))]
            else:
                middle = (low + high) // 2
                left += [(middle, high), (low, middle)]
    return join(arrays, type), bad


def join(arrays: Sequence[pa.Array], type: pa.DataType) -> pa.Array:
    """One after the other."""
    if len(arrays) == 1:
        return arrays[0]
    return pa.concat_arrays(arrays) if arrays else pa.nulls(0, type)


def reason(error: Exception) -> str:
    """What a dead letter says of the error: never more than a line."""
    lines = str(error).splitlines()
    text = lines[0].strip() if lines else ""
    if type(error).__module__.startswith(("trikafka", "pyarrow")) or type(error) is ValueError:
        return (text or type(error).__name__)[:_MOST_TEXT]
    return f"{type(error).__name__}: {text}".removesuffix(": ")[:_MOST_TEXT]


def plain_json(value: Any) -> Any:
    """A copy of what JSON can hold: lists for tuples, dictionaries for mappings."""
    if isinstance(value, dict):
        return {str(name): plain_json(each) for name, each in value.items()}
    return [plain_json(each) for each in value] if isinstance(value, list | tuple) else value
