"""The check that a table has each row of the manifests once, counted through the table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

import numpy as np

from trikafka import TopicPartition
from trikafka.interfaces import ExportCheck, TableLog, WrittenFile

from ..store import ExportStore

#: Offsets that are counted at once, with one byte each.
_AT_ONCE = 16 << 20


class _Part(NamedTuple):
    """A piece of a manifest: in one file, or in one file per partition folder."""

    start: int
    end: int
    rows: int


def check_lake(log: TableLog, store: ExportStore) -> ExportCheck:
    """Count the rows of the table. Blocks.

    Raises:
        ExportError: A manifest is damaged.
    """
    listed = sorted(store.listed(), key=lambda file: (file.planned.tp, file.start, file.end))
    state = store.load()
    problems: list[str] = []
    rows = 0
    for tp, files in groupby(listed, key=lambda file: file.planned.tp):
        for parts in _groups(_parts(files)):
            assert state.format is not None  # there are manifests
            offsets = log.offsets(
                state.format, tp.topic, tp.partition, parts[0].start, parts[-1].end
            )
            found = _count(offsets, parts)
            rows += found.rows
            problems += found.problems(tp, parts)
    return ExportCheck(len(listed), rows, 0, tuple(problems))


def _parts(files: Iterable[WrittenFile]) -> list[_Part]:
    return [
        _Part(start, end, sum(file.rows for file in own))
        for (start, end), own in groupby(files, key=lambda file: (file.start, file.end))
    ]


def _groups(parts: Sequence[_Part]) -> Iterator[list[_Part]]:
    """Yield groups of neighbouring parts that together span a limited number of offsets."""
    group: list[_Part] = []
    for part in parts:
        if group and part.end - group[0].start > _AT_ONCE:
            yield group
            group = []
        group.append(part)
    if group:
        yield group


class _Counts(NamedTuple):
    seen: np.ndarray
    per_part: np.ndarray
    beside: int
    rows: int

    def problems(self, tp: TopicPartition, parts: Sequence[_Part]) -> Iterator[str]:
        """Yield a sentence for each part that differs."""
        first = parts[0].start
        for part, rows in zip(parts, self.per_part.tolist(), strict=True):
            known = int(self.seen[part.start - first : part.end - first].sum())
            if (rows, known) != (part.rows, part.rows):
                twice = f", {rows - known:,} of them not for the first time" if rows > known else ""
                yield (
                    f"{tp.topic}-{tp.partition} [{part.start}, {part.end}) has {rows:,} "
                    f"rows{twice}, not {part.rows:,}"
                )
        if self.beside:
            span = f"{tp.topic}-{tp.partition} [{first}, {parts[-1].end})"
            yield f"{span} has {self.beside:,} rows between the offsets that were exported"


def _count(offsets: Iterable[object], parts: Sequence[_Part]) -> _Counts:
    first, last = parts[0].start, parts[-1].end
    seen = np.zeros(last - first, dtype=bool)
    starts = np.array([part.start for part in parts])
    ends = np.array([part.end for part in parts])
    per_part = np.zeros(len(parts), dtype=np.int64)
    beside = rows = 0
    for batch in offsets:
        found = np.asarray(batch, dtype=np.int64)
        rows += len(found)
        places = np.searchsorted(starts, found, side="right") - 1
        inside = found < ends[places]
        beside += int((~inside).sum())
        per_part += np.bincount(places[inside], minlength=len(parts))
        seen[found[inside] - first] = True
    return _Counts(seen, per_part, beside, rows)
