"""Record batches as a client decodes them, made without a broker."""

from __future__ import annotations

from array import array
from itertools import accumulate

from trikafka import RecordBatch
from trikafka._wire.columns import Columns


def batch(
    first: int,
    values: list[bytes],
    *,
    times: list[int] | None = None,
    headers: list[int] | None = None,
) -> RecordBatch:
    """Return records without keys from the offset ``first`` on.

    ``headers`` says how many headers each record has; all of them are x=y.
    """
    count = len(values)

    def numbers(form: str, items: list[int]) -> memoryview:
        return memoryview(array(form, items))

    none = numbers("i", [0] * (count + 1))
    more: tuple[object, ...] = ()
    if headers is not None:
        total = sum(headers)
        starts = numbers("i", [0, *accumulate(headers)])
        each = numbers("i", list(range(total + 1)))
        more = (starts, each, b"x" * total, each, b"y" * total, None)
    columns = Columns(
        count,
        numbers("q", list(range(first, first + count))),
        numbers("q", times or [1_700_000_000_000] * count),
        numbers("b", [0] * count),
        none,
        b"",
        bytes((count + 7) // 8),
        numbers("i", [0, *accumulate(map(len, values))]),
        b"".join(values),
        None,
        *more,  # type: ignore[arg-type]
    )
    return RecordBatch("t", 0, columns, first + count)
