"""The base of all stores of an export's state: numbered plans and manifests.

Each kind of store, such as a directory or a prefix of an object store, adds three things: where
bytes are, what keeps two exports apart, how a plan's work is closed. For all of them: no own file
is ever replaced, a plan is stored before its work, and a manifest after it.
"""

from __future__ import annotations

import logging
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TypeVar

from trikafka import ExportError
from trikafka.interfaces import (
    ExportManifest,
    ExportPlan,
    ExportState,
    PlannedRange,
    RangeResult,
    WrittenFile,
)

from .piece_log import PieceLog
from .plan import DEFAULT_SUFFIX
from .plan_json import (
    files_from_json,
    letters_from_json,
    manifest_to_json,
    plan_from_json,
    plan_to_json,
    state_from_json,
)

Item = TypeVar("Item")
Found = TypeVar("Found")
#: Marks a destination whose exports have found no record so far.
_VISITED = "visited.json"
_log = logging.getLogger("trikafka.export")
_NUMBERED = re.compile(r"(plan|manifest)-(\d{6,})\.json")


class ExportStore(ABC):
    """Plans, manifests and the lock of one destination.

    Every method blocks: call it in a thread, one call at a time. ``title`` names the destination in
    messages, ``own_title`` the place of the store's own files. A worker on another machine, which
    writes data files, has only the :class:`PieceLog` of its range.
    """

    title: str
    own_title: str
    #: True if each call goes over a network, and so may take long. A cancelled export does not wait
    #: for such a store.
    remote = False
    #: The suffix of the data files.
    suffix = DEFAULT_SUFFIX
    #: The numbers of the last plan and the last manifest, if known. Listing the own files takes
    #: longer with each export, which adds two. Only :meth:`load` lists them again.
    _known: tuple[int, int] | None = None
    #: True after a failure to tidy up was logged.
    _untidy = False

    # --- what a kind of store implements ---

    @abstractmethod
    def open(self) -> None:
        """Check that the destination can be written, and lock it.

        Raises:
            ExportError: The destination cannot be written, or another export has locked it.
        """

    @abstractmethod
    def close(self) -> None:
        """Remove what is left of finished plans, and release the lock.

        A second call is a no-op.
        """

    @abstractmethod
    def give_up(self) -> None:
        """Let the lock expire, where :meth:`close` is not waited for.

        Never blocks; any thread may call.
        """

    @abstractmethod
    def place(self, plan: ExportPlan) -> Any:
        """Return what a worker on another machine needs for :meth:`pieces`; it is pickled.

        ``None`` for a directory, which the worker knows by its name.

        Args:
            plan: The plan that is worked on.
        """

    @abstractmethod
    def store_plan(self, plan: ExportPlan) -> None:
        """Store a plan, and make its work folder; the plan's number must be free.

        Args:
            plan: The plan.

        Raises:
            ExportError: The number is taken, or the destination cannot be written.
        """

    @abstractmethod
    def settle(self, plan: ExportPlan, ranges: Sequence[PlannedRange]) -> list[RangeResult]:
        """Close the work of a plan; return how far these ranges have come.

        After this no worker can add to them.

        Args:
            plan: The plan.
            ranges: Ranges of the plan.
        """

    @abstractmethod
    def pieces(self, plan: ExportPlan, planned: PlannedRange) -> PieceLog:
        """Return the log of a range's pieces, while the plan is worked on.

        Args:
            plan: The plan.
            planned: A range of the plan.
        """

    @abstractmethod
    def data_files(self) -> Iterator[str]:
        """Yield the names of all data files below the destination, foreign ones included."""

    @abstractmethod
    def open_data(self, name: str) -> AbstractContextManager[tuple[Any, int]]:
        """Open a data file: a source for pyarrow, and the size in bytes.

        Args:
            name: The file's name below the destination.

        Raises:
            FileNotFoundError: The file does not exist.
        """

    @abstractmethod
    def explained(self, what: str) -> AbstractContextManager[None]:
        """Turn the store's errors into an :exc:`ExportError` that says what was done.

        Args:
            what: What is being done, for the error's text.
        """

    def read_data(self, name: str) -> bytes:
        """Return the bytes of a file below the destination.

        A remote store makes one request for them.

        Args:
            name: The file's name below the destination.

        Raises:
            FileNotFoundError: The file does not exist.
        """
        with self.open_data(name) as (opened, size):
            return opened.read_bytes() if isinstance(opened, Path) else bytes(opened.read(size))

    def each(self, function: Callable[[Item], Found], items: Sequence[Item]) -> list[Found]:
        """Return the results of ``function``, which asks the store, for all items.

        A remote store calls it for several at a time.

        Args:
            function: Called with one item.
            items: The items.
        """
        return [function(item) for item in items]

    @abstractmethod
    def _own_names(self) -> Iterable[str]:
        """Return the names of the own files and folders, without those below folders."""

    @abstractmethod
    def _read_own(self, name: str) -> bytes: ...

    @abstractmethod
    def _write_once(self, name: str, text: str) -> bool:
        """Store an own file durably; return False if the name is taken."""

    @abstractmethod
    def _resume(self, plan: ExportPlan) -> bool:
        """Resume an unfinished plan; return whether its work is closed and stays so."""

    @abstractmethod
    def _check_written(self, files: Sequence[WrittenFile]) -> None:
        """Raise :exc:`ExportError` unless all files exist, durably, with the written bytes."""

    @abstractmethod
    def _clear(self) -> None:
        """Remove what is left of finished plans."""

    # --- plans and manifests ---

    def _numbers(self) -> tuple[set[int], set[int]]:
        found: dict[str, set[int]] = {"plan": set(), "manifest": set()}
        for name in self._own_names():
            if match := _NUMBERED.fullmatch(name):
                found[match[1]].add(int(match[2]))
        return found["plan"], found["manifest"]

    def load(self) -> ExportState:
        """Read plans and manifests.

        Raises:
            ExportError: They are damaged, or the destination holds data of something else.
        """
        # Numbers have no gaps, and the manifests are those of all plans, or of all but the last: a
        # plan is only made after the manifest before it. Anything else means that files were
        # removed, or that two exports ran at once. Going on could repeat or skip records.
        with self.explained(f"cannot read {self.own_title}"):
            plans, manifests = self._numbers()
            last = max(plans | manifests, default=0)
            if plans != set(range(1, last + 1)) or manifests not in (plans, plans - {last}):
                raise ExportError(
                    f"{self.own_title} is damaged: plans {sorted(plans)}, manifests "
                    f"{sorted(manifests)}"
                )
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
                raise ExportError(
                    f"{self._where('plan', last)} is damaged: it says that it is number "
                    f"{plan.number}"
                )
            return _with_unfinished(self._checked(state, done), plan, self._resume(plan))

    def _unfinished(self) -> set[int]:
        """Return the numbers of plans without a manifest."""
        if self._known is None:
            plans, manifests = self._numbers()
            self._known = max(plans, default=0), max(manifests, default=0)
        return set(range(self._known[1] + 1, self._known[0] + 1))

    def note_visit(self) -> None:
        """Record that an export was here and had nothing to plan."""
        with self.explained(f"cannot write to {self.own_title}"):
            self._write_once(_VISITED, "{}")

    def format_name(self) -> str | None:
        """Return the format in the first plan, if there is a plan; needs no lock."""
        with self.explained(f"cannot read {self.own_title}"):
            try:
                plan = plan_from_json(*self._text("plan", 1))
            except FileNotFoundError:
                return None
            return plan.format.get("name")

    def _checked(self, state: ExportState, number: int) -> ExportState:
        if state.last_number != number:
            raise ExportError(
                f"{self._where('manifest', number)} is damaged: it says that it is number "
                f"{state.last_number}"
            )
        return state

    def _refuse_foreign(self) -> None:
        stranger = next(self.data_files(), None)
        if stranger is not None:
            raise ExportError(
                f"{self.title} holds {self.suffix} files that no export's manifest lists (such as "
                f"{stranger}); an export needs a directory without them, as readers would mix both"
            )

    def _where(self, kind: str, number: int) -> str:
        return f"{self.own_title}/{_own_name(kind, number)}"

    def _text(self, kind: str, number: int) -> tuple[bytes, str]:
        return self._read_own(_own_name(kind, number)), self._where(kind, number)

    def listed(self) -> list[WrittenFile]:
        """Return all data files that the manifests list, in their order."""
        return self._listed(files_from_json)

    def listed_letters(self) -> list[WrittenFile]:
        """Return the files of dead letters that the manifests list, in their order."""
        return self._listed(letters_from_json)

    def _listed(self, read: Callable[[bytes, str], list[WrittenFile]]) -> list[WrittenFile]:
        with self.explained(f"cannot read {self.own_title}"):
            _, manifests = self._numbers()
            found = self.each(
                lambda number: read(*self._text("manifest", number)), sorted(manifests)
            )
            return [file for own in found for file in own]

    def being_written(self) -> set[str]:
        """Return the files of decided pieces of a plan that has no manifest yet."""
        with self.explained(f"cannot read {self.own_title}"):
            plans, manifests = self._numbers()
            names: set[str] = set()
            for number in plans - manifests:
                plan = plan_from_json(*self._text("plan", number))
                for planned in plan.ranges:
                    names |= {
                        planned.name,
                        *(file.name for file in self.pieces(plan, planned).result().files),
                    }
            return names

    def publish(self, manifest: ExportManifest) -> None:
        """Publish the manifest, after a check that every file in it exists.

        Args:
            manifest: The manifest of the unfinished plan.

        Raises:
            ExportError: A file is missing or differs, or the manifest's number is taken.
        """
        with self.explained(f"cannot publish the export's manifest in {self.own_title}"):
            self._check_written(manifest.files)
            self._store("manifest", manifest.plan.number, manifest_to_json(manifest))
        # The manifest is published, so this is no failure. close() tidies up again, and reports it,
        # but an export may run for months until then.
        try:
            self._clear()
        except OSError as error:
            if not self._untidy:
                _log.warning(
                    "cannot tidy up %s: work of published plans stays there: %s",
                    self.own_title,
                    error,
                )
            self._untidy = True

    def _store_plan(self, plan: ExportPlan) -> None:
        self._store("plan", plan.number, plan_to_json(plan))

    def _store(self, kind: str, number: int, text: str) -> None:
        if not self._write_once(_own_name(kind, number), text):
            raise ExportError(
                f"{self._where(kind, number)} is there already: another export wrote to "
                f"{self.title} at the same time"
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
        since=plan.since,
        partitions=plan.partitions,
    )
