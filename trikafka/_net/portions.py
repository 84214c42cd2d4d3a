"""Work on many partitions in portions.

Other tasks run between two portions, and no request takes too long to build. kafka-python builds
and encodes a request in about 10 microseconds a partition, and reads a response in as long. Ten
thousand partitions in one request would take a tenth of a second in which no other task runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TypeVar

T = TypeVar("T")
#: This many partitions take some 20 ms, whatever is done with them.
PORTION = 1_000


def portions(items: Iterable[T]) -> Iterator[list[T]]:
    """Yield ``items`` in lists of at most :data:`PORTION`.

    The caller lets other tasks run between two lists.
    """
    left = iter(items)
    while portion := list(islice(left, PORTION)):
        yield portion
