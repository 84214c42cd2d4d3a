"""What every store of an export's destination has: plans and manifests under numbers, which of them stand, and what they say.

A kind of store (a directory, a prefix of an object store) adds where bytes lie, what keeps two exports apart, and how the work of
a plan is closed. What holds for all: nothing of ours is ever replaced, a plan stands before its work, a manifest after it.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from ..errors import ExportError
from ..interfaces import ExportManifest, ExportPlan, ExportState, PlannedRange, RangeResult, WrittenFile
from .export_json import files_from_json, manifest_to_json, plan_from_json, plan_to_json, state_from_json
from .export_pieces import PieceLog

Item = TypeVar("Item")
Found = TypeVar("Found")
#: The file of ours that stands where exports have found no record so far.
_VISITED = "visited.json"
_NUMBERED = re.compile(r"(plan|manifest)-(\d{6,})\.json")


class ExportStore(ABC):
    """Plans, manifests and the lock of one destination. Everything blocks: call it in a thread, one call at a time.

    ``title`` is how messages call the destination, ``own_title`` the place of ours in it. A worker elsewhere, who writes data
    files, has only the :class:`PieceLog` of its range.
    """

    title: str
    own_title: str
    #: Whether each call goes over a network, and so may take long: it is not waited for when an export is cancelled.
    remote = False
    #: The numbers of the last plan and the last manifest, if known: to list the place of ours takes long in the end, for each
    #: export leaves two files there. Only :meth:`load` looks again.
    _known: tuple[int, int] | None = None

    # --- what a kind of store does ---

    @abstractmethod
    def open(self) -> None:
        """Check that the destination can be written, and lock it. Raises :exc:`ExportError` when another export is at work."""

    @abstractmethod
    def close(self) -> None:
        """Remove what is left of plans that are done, and give back the lock. Closing twice is fine."""

    @abstractmethod
    def give_up(self) -> None:
        """Where :meth:`close` is not waited for: let the lock end by itself. Never blocks; any thread may call."""

    @abstractmethod
    def place(self, plan: ExportPlan) -> Any:
        """What a worker on another machine needs for :meth:`pieces`, pickled; ``None``: a directory, which it has by its name."""

    @abstractmethod
    def store_plan(self, plan: ExportPlan) -> None:
        """Store a plan, and make the place it is worked on in; its number must be free."""

    @abstractmethod
    def settle(self, plan: ExportPlan, ranges: Sequence[PlannedRange]) -> list[RangeResult]:
        """How far these ranges of a plan have come. From now on no worker adds to them."""

    @abstractmethod
    def pieces(self, plan: ExportPlan, planned: PlannedRange) -> PieceLog:
        """What is decided of a range, while the plan is worked on."""

    @abstractmethod
    def data_files(self) -> Iterator[str]:
        """The names of all Parquet files that stand below the destination, whoever wrote them."""

    @abstractmethod
    def open_data(self, name: str) -> AbstractContextManager[tuple[Any, int]]:
        """A data file as pyarrow reads it, and its bytes. Raises FileNotFoundError."""

    @abstractmethod
    def explained(self, what: str) -> AbstractContextManager[None]:
        """Errors of the store as an :exc:`ExportError` that says what was being done."""

    def each(self, function: Callable[[Item], Found], items: Sequence[Item]) -> list[Found]:
        """Call ``function``, which asks the store, for each of them; several at a time, where a store is remote."""
        return [function(item) for item in items]

    @abstractmethod
    def _own_names(self) -> Iterable[str]:
        """What stands in the place of ours, without what is below folders of it."""

    @abstractmethod
    def _read_own(self, name: str) -> bytes: ...

    @abstractmethod
    def _write_once(self, name: str, text: str) -> bool:
        """Store a file of ours durably under a name that is free; say whether it was."""

    @abstractmethod
    def _resume(self, plan: ExportPlan) -> bool:
        """A run goes on with an unfinished plan; say whether its work is closed for good."""

    @abstractmethod
    def _check_written(self, files: Sequence[WrittenFile]) -> None:
        """Raise :exc:`ExportError` unless all of them stand, durably, with the bytes that were written."""

    @abstractmethod
    def _clear(self) -> None:
        """Remove what is left of plans that are done."""

    # --- plans and manifests ---

    def _numbers(self) -> tuple[set[int], set[int]]:
        found: dict[str, set[int]] = {"plan": set(), "manifest": set()}
        for name in self._own_names():
            if match := _NUMBERED.fullmatch(name):
                found[match[1]].add(int(match[2]))
        return found["plan"], found["manifest"]

    def load(self) -> ExportState:
        """Read plans and manifests. Raises :exc:`ExportError` if they are damaged or the data is not ours."""
        with self.explained(f"cannot read {self.own_title}"):
            plans, manifests = self._numbers()
            last = max(plans | manifests, default=0)
            if plans != set(range(1, last + 1)) or manifests not in (plans, plans - {last}):
                raise ExportError(f"{self.own_title} is damaged: plans {sorted(plans)}, manifests {sorted(manifests)}")
            if not last:
                self._refuse_foreign()
                return ExportState(visited=_VISITED in self._own_names())
            done = last if last in manifests else last - 1
            self._known = last, done
            state = state_from_json(*self._text("manifest", done)) if done else ExportState()
            if done == last:
                return self._checked(state, done)
            plan = plan_from_json(*self._text("plan", last))
            if plan.number != last:
                raise ExportError(f"{self._where('plan', last)} is damaged: it says that it is number {plan.number}")
            return _with_unfinished(self._checked(state, done), plan, self._resume(plan))

    def _unfinished(self) -> set[int]:
        """The numbers of plans without a manifest."""
        if self._known is None:
            plans, manifests = self._numbers()
            self._known = max(plans, default=0), max(manifests, default=0)
        return set(range(self._known[1] + 1, self._known[0] + 1))

    def note_visit(self) -> None:
        """Note that an export was here and had nothing to plan."""
        with self.explained(f"cannot write to {self.own_title}"):
            self._write_once(_VISITED, "{}")

    def format_name(self) -> str | None:
        """The name of the format that the first plan has, if there is one; needs no lock."""
        with self.explained(f"cannot read {self.own_title}"):
            try:
                plan = plan_from_json(*self._text("plan", 1))
            except FileNotFoundError:
                return None
            return plan.format.get("name")

    def _checked(self, state: ExportState, number: int) -> ExportState:
        if state.last_number != number:
            raise ExportError(f"{self._where('manifest', number)} is damaged: it says that it is number {state.last_number}")
        return state

    def _refuse_foreign(self) -> None:
        stranger = next(self.data_files(), None)
        if stranger is not None:
            raise ExportError(
                f"{self.title} holds Parquet files that no export's manifest lists (such as {stranger}); "
                "readers would mix them with the export: choose an empty directory"
            )

    def _where(self, kind: str, number: int) -> str:
        return f"{self.own_title}/{_own_name(kind, number)}"

    def _text(self, kind: str, number: int) -> tuple[bytes, str]:
        return self._read_own(_own_name(kind, number)), self._where(kind, number)

    def listed(self) -> list[WrittenFile]:
        """All data files that the manifests list, in their order."""
        with self.explained(f"cannot read {self.own_title}"):
            _, manifests = self._numbers()
            found = self.each(lambda number: files_from_json(*self._text("manifest", number)), sorted(manifests))
            return [file for own in found for file in own]

    def being_written(self) -> set[str]:
        """The files of pieces that are decided, of a plan that has no manifest yet."""
        with self.explained(f"cannot read {self.own_title}"):
            plans, manifests = self._numbers()
            names: set[str] = set()
            for number in plans - manifests:
                plan = plan_from_json(*self._text("plan", number))
                for planned in plan.ranges:
                    names |= {planned.name, *(file.name for file in self.pieces(plan, planned).result().files)}
            return names

    def publish(self, manifest: ExportManifest) -> None:
        """Publish the manifest, having seen that every file it lists is there."""
        with self.explained(f"cannot publish the export's manifest in {self.own_title}"):
            self._check_written(manifest.files)
            self._store("manifest", manifest.plan.number, manifest_to_json(manifest))
            self._clear()

    def _store_plan(self, plan: ExportPlan) -> None:
        self._store("plan", plan.number, plan_to_json(plan))

    def _store(self, kind: str, number: int, text: str) -> None:
        if not self._write_once(_own_name(kind, number), text):
            raise ExportError(
                f"{self._where(kind, number)} is there already: another export wrote to {self.title} at the same time"
            )
        self._known = number, number - (kind == "plan")


def _own_name(kind: str, number: int) -> str:
    return f"{kind}-{number:06d}.json"


def _with_unfinished(before: ExportState, plan: ExportPlan, settled: bool) -> ExportState:
    return ExportState(
        last_number=plan.number,
        cluster_id=before.cluster_id,
        topic_ids=before.topic_ids,
        positions=before.positions,
        unfinished=plan,
        settled=settled,
        carried=before.carried,
        isolation_level=plan.isolation_level,
        format=plan.format or None,
    )
