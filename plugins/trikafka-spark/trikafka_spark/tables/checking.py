"""The check that a table has each row of the manifests once."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

from trikafka import OffsetRange, TableStore
from trikafka.interfaces import ExportCheck, WrittenFile

from .counting import Count, count_rows
from .work import TableWork

#: The most groups in which a partition's parts are counted. Groups that differ are counted part by
#: part.
_GROUPS = 64


class _Group(NamedTuple):
    parts: tuple[WrittenFile, ...]

    @property
    def span(self) -> OffsetRange:
        first, last = self.parts[0], self.parts[-1]
        return OffsetRange(*first.planned.tp, first.start, last.end)

    @property
    def rows(self) -> int:
        return sum(part.rows for part in self.parts)


def check_table(work: TableWork[ExportCheck], store: TableStore) -> ExportCheck:
    """Count the rows of the table. Blocks.

    Raises:
        ExportError: A manifest is damaged.
    """
    listed = sorted(store.listed(), key=lambda part: (part.planned.tp, part.start))
    groups = _grouped(listed)
    counts = _counted(work, groups)
    wrong = [group for group, count in zip(groups, counts, strict=True) if not _fits(group, count)]
    single = [_Group((part,)) for group in wrong for part in group.parts]
    problems = [
        _problem(group, count)
        for group, count in zip(single, _counted(work, single), strict=True)
        if not _fits(group, count)
    ]
    if wrong and not problems:
        problems = [
            f"{group.span} has rows between the offsets that were exported" for group in wrong
        ]
    return ExportCheck(len(listed), sum(count.rows for count in counts), 0, tuple(problems))


def _grouped(listed: Sequence[WrittenFile]) -> list[_Group]:
    groups = []
    for _, parts in groupby(listed, key=lambda part: part.planned.tp):
        own = list(parts)
        size = -(-len(own) // _GROUPS)
        groups += [_Group(tuple(own[at : at + size])) for at in range(0, len(own), size)]
    return groups


def _counted(work: TableWork[ExportCheck], groups: Sequence[_Group]) -> list[Count]:
    table = work.table.rows(work.session)
    if table is None:
        return [Count(0, 0)] * len(groups)
    return count_rows(table, [group.span for group in groups], distinct=True)


def _fits(group: _Group, count: Count) -> bool:
    return count.rows == count.offsets == group.rows


def _problem(group: _Group, count: Count) -> str:
    twice = (
        f", {count.rows - count.offsets:,} of them not for the first time"
        if count.rows > count.offsets
        else ""
    )
    span = group.span
    return (
        f"{span.topic}-{span.partition} [{span.start}, {span.end}) has {count.rows:,} "
        f"rows{twice}, not {group.rows:,}"
    )
