"""A sink without Spark.

It writes each planned file as JSON lines, with a consumer in the same Trio loop.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import trio
from trikafka_export.directory_pieces import RangeWork
from trikafka_export.directory_store import DirectoryStore
from trikafka_export.piece_log import ExportPiece, StagedFile

import trikafka
from trikafka import KafkaTimeoutError, OffsetRange, TrikafkaError
from trikafka.hooks import hookimpl
from trikafka.interfaces import (
    ExportManifest,
    ExportPlan,
    ExportState,
    PlannedRange,
    RangeResult,
    SinkReport,
)

#: Seconds without a record after which a range fails.
STALL_LIMIT = 30.0


class LinesSink:
    """A sink of JSON lines.

    ``before_file`` is called before each file. An exception from it ends the export there.
    """

    def __init__(self, root: Path, before_file: Callable[[int], None] = lambda index: None) -> None:
        self.store = DirectoryStore(root)
        self.before_file = before_file

    async def __aenter__(self) -> Self:
        self.store.open()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.store.close()

    async def load(self) -> ExportState:
        return self.store.load()

    async def store_plan(self, plan: ExportPlan) -> None:
        self.store.store_plan(plan)

    async def pin(
        self, state: ExportState, wanted: Sequence[OffsetRange], settings: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        return state.format or {"name": "lines"}

    async def publish(self, manifest: ExportManifest) -> None:
        self.store.publish(manifest)

    async def settle(
        self, plan: ExportPlan, ranges: Sequence[PlannedRange]
    ) -> Sequence[RangeResult]:
        return self.store.settle(plan, ranges)

    async def write(
        self,
        plan: ExportPlan,
        ranges: Sequence[PlannedRange],
        settings: Mapping[str, Any],
        report: SinkReport,
    ) -> Mapping[PlannedRange, Exception]:
        client = {name: value for name, value in settings.items() if name != "fail_on_data_loss"}
        results: list[RangeResult] = []
        for index, planned in enumerate(ranges):
            self.before_file(index)
            results.append(
                await self._write(RangeWork(self.store.root, plan.number, planned), planned, client)
            )
            report("writing", index + 1, sum(result.rows for result in results))
        return {result.planned: result.error for result in results if result.error is not None}

    async def _write(
        self, work: RangeWork, planned: PlannedRange, client: Mapping[str, Any]
    ) -> RangeResult:
        pieces = work.pieces()
        start = pieces[-1].end if pieces else planned.start
        if start >= planned.end:
            return work.result()
        lines: list[str] = []
        try:
            with trio.move_on_after(STALL_LIMIT) as scope:
                async with trikafka.open_consumer(**client, auto_offset_reset="none") as consumer:
                    consumer.assign([planned.tp])
                    consumer.seek(planned.tp, start)
                    async for batch in consumer.batches(until={planned.tp: planned.end}):
                        lines += [
                            json.dumps([r.partition, r.offset, (r.value or b"").decode()])
                            for r in batch
                        ]
            if scope.cancelled_caught:
                raise KafkaTimeoutError(f"reading {planned}", STALL_LIMIT)
        except TrikafkaError as error:
            return work.result(error)
        files = []
        if lines:
            staged = work.stage()
            staged.write_text("\n".join(lines) + "\n")
            files = [StagedFile(staged.name, planned.name, len(lines), staged.stat().st_size)]
        work.decide(ExportPiece(start, planned.end, tuple(files)))
        return work.result()


class LinesPlugin:
    """A plugin for ``lines://`` destinations."""

    def __init__(self, before_file: Callable[[int], None] = lambda index: None) -> None:
        self.before_file = before_file

    @hookimpl
    def trikafka_sink(self, scheme: str, options: Mapping[str, Any]) -> LinesSink | None:
        if scheme != "lines":
            return None
        return LinesSink(
            DirectoryStore.directory_of(options["destination"].removeprefix("lines://")),
            self.before_file,
        )


def read_lines(root: Path) -> Iterator[tuple[int, int, str]]:
    """Yield all rows that a reader of the destination finds."""
    for path in sorted(root.glob("*.parquet")):
        for line in path.read_text().splitlines():
            partition, offset, value = json.loads(line)
            yield partition, offset, value


def names_in(root: Path) -> set[str]:
    """Return all files of a destination, including hidden ones, without the data files."""
    return {
        str(path.relative_to(root))
        for path in root.rglob("*")
        if path.is_file() and path.suffix != ".parquet"
    }
