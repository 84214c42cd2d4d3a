"""Whether a destination holds what its manifests say: every file, whole, with its rows, once, and nothing beside."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from threading import Event

import pyarrow as pa
import pyarrow.parquet as pq

from trikafka import ExportError, ExportStore, TopicPartition
from trikafka.interfaces import ExportCheck, WrittenFile

from .object_address import ObjectStoreError


def check(store: ExportStore, given_up: Event | None = None) -> ExportCheck:
    """Count. Raises :exc:`trikafka.ExportError` for damaged manifests, and when the store fails. Blocks.

    Once it is ``given_up``, by another thread, no file is looked at any more, and that is an error.
    """
    listed = store.listed()
    problems = [*_doubles(listed)]
    rows = size = 0
    with store.explained(f"cannot check {store.title}"):
        looks = store.each(partial(_look, store, given_up), listed)
    for file, (found, problem) in zip(listed, looks, strict=True):
        rows += found
        size += file.bytes if problem is None else 0
        problems += [problem] if problem else []
    known = {file.name for file in listed} | store.being_written()
    with store.explained(f"cannot list {store.title}"):
        standing = sorted(store.data_files())
    for name in standing:
        if name not in known and not name.startswith(("_", ".")):
            problems.append(f"{name} is in no manifest, but a reader who globs sees it")
    return ExportCheck(len(listed), rows, size, tuple(problems))


def _look(store: ExportStore, given_up: Event | None, file: WrittenFile) -> tuple[int, str | None]:
    if given_up is not None and given_up.is_set():
        raise ExportError(f"the check of {store.title} was given up")
    try:
        with store.open_data(file.name) as (opened, size):
            rows: int = pq.read_metadata(opened).num_rows
    except FileNotFoundError:
        return 0, f"{file.name} is lost, with {file.rows:,} rows"
    except ObjectStoreError:
        raise  # which says nothing of the file
    except (OSError, pa.ArrowException) as error:
        return 0, f"{file.name} is not a whole Parquet file: {error}"
    if (size, rows) != (file.bytes, file.rows):
        return rows, f"{file.name} has {rows:,} rows in {size:,} bytes, not {file.rows:,} in {file.bytes:,}"
    return rows, None


def _doubles(listed: list[WrittenFile]) -> Iterator[str]:
    """Files of one partition whose offsets overlap; those of one piece, in several folders, have the same."""
    last: dict[TopicPartition, WrittenFile] = {}
    for file in sorted(listed, key=lambda each: (each.planned.tp, each.start, each.end)):
        before = last.get(file.planned.tp)
        if before is not None and file.start < before.end and (file.start, file.end) != (before.start, before.end):
            yield f"{before.name} and {file.name} have offsets in common"
        last[file.planned.tp] = file
