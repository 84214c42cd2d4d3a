"""Values that name their schema: a zero byte, the schema's id in four bytes, and the data.

A batch is grouped by these first bytes. In most batches all are alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa
import pyarrow.compute as pc

from .errors import UnreadableError
from .rows import Decoder, join

_HEAD = 5
#: Ids without a decoder that are remembered. Values that no registry's serializer wrote may name
#: any id.
_MOST_UNREADABLE = 10_000


class Framed:
    """A decoder of values of many schemas.

    ``by_id`` returns the decoder of an id, or raises :exc:`UnreadableError`.
    """

    def __init__(self, type: pa.DataType, by_id: Callable[[int], Decoder]) -> None:
        self.type = type
        self._by_id = by_id
        self._decoders: dict[int, Decoder] = {}
        self._unreadable: dict[int, str] = {}

    def decode(self, column: pa.BinaryArray) -> tuple[pa.Array, dict[int, str]]:
        """Decode values as :meth:`Decoder.decode`."""
        return by_head(column, _HEAD, self.type, self._of)

    def _of(self, head: bytes) -> tuple[Decoder | str, int]:
        if len(head) < _HEAD or head[0]:
            return "the value does not begin with a zero byte and the id of a schema", _HEAD
        id = int.from_bytes(head[1:], "big")
        if id not in self._decoders and id not in self._unreadable:
            try:
                self._decoders[id] = self._by_id(id)
            except UnreadableError as error:
                if len(self._unreadable) >= _MOST_UNREADABLE:
                    self._unreadable.clear()
                self._unreadable[id] = str(error)
        return self._decoders.get(id) or self._unreadable[id], _HEAD


def by_head(
    column: pa.BinaryArray,
    size: int,
    type: pa.DataType,
    decoder_of: Callable[[bytes], tuple[Decoder | str, int]],
) -> tuple[pa.Array, dict[int, str]]:
    """Decode values with the decoder of their first ``size`` bytes.

    ``decoder_of`` returns the decoder, or the reason why there is none, and the number of bytes to
    skip.
    """
    arrays, places = [], []
    bad: dict[int, str] = {}
    for head, indices in _groups(column, size):
        decoder, skipped = decoder_of(head)
        chosen = column if indices is None else column.take(indices)
        if isinstance(decoder, str):
            array = pa.nulls(len(chosen), type)
            wrong = dict.fromkeys(range(len(chosen)), decoder)
        else:
            array, wrong = decoder.decode(_after(chosen, skipped) if skipped else chosen)
        if indices is None:
            return array, wrong
        arrays.append(array)
        places.append(indices)
        numbers = indices.to_pylist() if wrong else []
        bad |= {numbers[number]: why for number, why in wrong.items()}
    if not arrays:
        return pa.nulls(0, type), {}
    # Sorting the original places yields the order that restores them.
    return join(arrays, type).take(pc.sort_indices(pa.concat_arrays(places))), bad


def _after(column: pa.BinaryArray, skipped: int) -> pa.BinaryArray:
    # Without an end, pyarrow (26) miscalculates the size of short values and raises.
    return pc.binary_slice(
        column, skipped, max(skipped, pc.max(pc.binary_length(column)).as_py() or 0)
    )


def _groups(column: pa.BinaryArray, size: int) -> Iterator[tuple[bytes, pa.Array | None]]:
    """Yield each head with its places; ``None`` means all places."""
    heads = pc.binary_slice(column, 0, size).dictionary_encode()
    if len(heads.dictionary) == 1:
        yield heads.dictionary[0].as_py(), None
        return
    order = pc.sort_indices(heads.indices).cast(pa.int64())
    counts = {each["values"]: each["counts"] for each in pc.value_counts(heads.indices).to_pylist()}
    at = 0
    for number, head in enumerate(heads.dictionary.to_pylist()):
        yield head, order.slice(at, counts[number])
        at += counts[number]
