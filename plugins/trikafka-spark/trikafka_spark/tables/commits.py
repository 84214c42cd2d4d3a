"""The description of one write to a table: its plan, and the ranges left out.

It is kept with the write, if the format can. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from trikafka import ExportError
from trikafka.interfaces import ExportPlan, LostRange, PlannedRange, RangeResult, WrittenFile

_KEY = "trikafka"


@dataclass(frozen=True, slots=True)
class Commit:
    """The one write of a plan: all ranges except those in ``left``, or ``nothing``."""

    app_id: str
    number: int
    plan_id: str
    nothing: bool = False
    left: tuple[tuple[str, int, int], ...] = ()
    lost: tuple[LostRange, ...] = ()

    @classmethod
    def of(cls, plan: ExportPlan, written: Mapping[PlannedRange, tuple[LostRange, ...]]) -> Commit:
        """Return the write of these ranges of a plan, each with its lost offsets."""
        left = tuple(_key(planned) for planned in plan.ranges if planned not in written)
        gaps = tuple(gap for lost in written.values() for gap in lost)
        return cls(str(plan.format["app_id"]), plan.number, plan.plan_id, left=left, lost=gaps)

    @classmethod
    def empty(cls, plan: ExportPlan) -> Commit:
        """Return the description of a plan without a write."""
        return cls(str(plan.format["app_id"]), plan.number, plan.plan_id, nothing=True)

    def has(self, planned: PlannedRange) -> bool:
        """Return whether the range was written."""
        return not self.nothing and _key(planned) not in self.left

    def results(
        self, ranges: Iterable[PlannedRange], rows: Mapping[PlannedRange, int]
    ) -> list[RangeResult]:
        """Return the results of ranges with these numbers of rows in the table."""
        return [self._result(planned, rows.get(planned, 0)) for planned in ranges]

    def _result(self, planned: PlannedRange, rows: int) -> RangeResult:
        if not self.has(planned):
            return RangeResult(planned, planned.start)
        name = planned.name.removesuffix(".parquet")
        part = WrittenFile(planned, name, planned.start, planned.end, rows, 0)
        lost = tuple(
            gap
            for gap in self.lost
            if (gap.topic, gap.partition) == planned.tp and planned.start <= gap.start < planned.end
        )
        return RangeResult(planned, planned.end, (part,) if rows else (), lost)

    def to_json(self) -> str:
        """Return the text to keep with the write."""
        lost = [[gap.topic, gap.partition, gap.start, gap.end, gap.reason] for gap in self.lost]
        body = {
            "app_id": self.app_id,
            "plan": self.number,
            "plan_id": self.plan_id,
            "nothing": self.nothing,
        }
        return json.dumps({_KEY: {**body, "left": self.left, "lost": lost}})

    @classmethod
    def from_json(cls, text: str | None) -> Commit | None:
        """Return the write that a text describes; ``None`` for a text of another origin.

        Raises:
            ExportError: The text is damaged.
        """
        found = _ours(text)
        if found is None:
            return None
        try:
            commit = cls(
                app_id=str(found["app_id"]),
                number=int(found["plan"]),
                plan_id=str(found["plan_id"]),
                nothing=bool(found["nothing"]),
                left=tuple(
                    (str(topic), int(partition), int(start))
                    for topic, partition, start in found["left"]
                ),
                lost=tuple(
                    LostRange(str(t), int(p), int(low), int(high), str(why))
                    for t, p, low, high, why in found["lost"]
                ),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ExportError(
                f"what an export noted of what it wrote is damaged: {error!r}"
            ) from error
        return commit


def _ours(text: str | None) -> Mapping[str, Any] | None:
    try:
        body = json.loads(text or "null")
    except ValueError:
        return None
    found = body.get(_KEY) if isinstance(body, dict) else None
    return found if isinstance(found, dict) else None


def _key(planned: PlannedRange) -> tuple[str, int, int]:
    return planned.topic, planned.partition, planned.start
