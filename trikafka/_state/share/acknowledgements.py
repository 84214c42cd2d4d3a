"""The folding of acknowledgements into the ranges that a request carries."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from ..._wire.share import AckBatch

#: A run of equal types that is longer than this gets a range of its own, with a single type. In a
#: range of mixed types each offset has a byte.
_LONG_RUN = 10


class Run(NamedTuple):
    """Consecutive offsets with the same acknowledgement."""

    first: int
    last: int
    type: int


def runs_of(
    offsets: Sequence[int] | memoryview, types: bytes | bytearray, start: int, stop: int
) -> Iterator[Run]:
    """Yield the runs among ``offsets[start:stop]``, which ascend.

    Args:
        offsets: The offsets of some records.
        types: The type of each.
        start: The index of the first.
        stop: The index after the last.
    """
    begins = start
    # Most often the whole slice is one run; `count` and the difference show that without a loop.
    whole = offsets[stop - 1] - offsets[start] == stop - 1 - start
    if whole and types.count(types[start], start, stop) == stop - start:
        yield Run(offsets[start], offsets[stop - 1], types[start])
        return
    for index in range(start + 1, stop):
        if types[index] != types[begins] or offsets[index] != offsets[index - 1] + 1:
            yield Run(offsets[begins], offsets[index - 1], types[begins])
            begins = index
    yield Run(offsets[begins], offsets[stop - 1], types[begins])


def fold(runs: Iterable[Run]) -> list[AckBatch]:
    """Return the ranges for a request: ascending, apart from each other, as few as possible.

    Args:
        runs: Runs in any order, of which no two share an offset.
    """
    batches: list[AckBatch] = []
    mixed = bytearray()  # of the range being collected, one type an offset
    begins = ends = 0

    def close() -> None:
        if mixed:
            single = mixed.count(mixed[0]) == len(mixed)
            batches.append(AckBatch(begins, ends, bytes(mixed[:1] if single else mixed)))
            mixed.clear()

    for first, last, kind in _merged(runs):
        count = last - first + 1
        if count > _LONG_RUN:
            close()
            batches.append(AckBatch(first, last, bytes((kind,))))
            continue
        if mixed and first != ends + 1:
            close()
        if not mixed:
            begins = first
        mixed += bytes((kind,)) * count
        ends = last
    close()
    return batches


def _merged(runs: Iterable[Run]) -> Iterator[Run]:
    """Yield the runs in order, those that touch and are of one type as one."""
    before: Run | None = None
    for run in sorted(runs):
        if before is None:
            before = run
        elif run.type == before.type and run.first == before.last + 1:
            before = Run(before.first, run.last, run.type)
        else:
            yield before
            before = run
    if before is not None:
        yield before
