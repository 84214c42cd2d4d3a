"""The check of a destination against its manifests.

Every file that a manifest lists must exist, be whole, have its rows, and overlap with no other
file. No data file may exist that no manifest lists.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

from trikafka import ExportError, TopicPartition
from trikafka.interfaces import ExportCheck, FileFormat, WrittenFile

from .guarded import counted
from .object_address import ObjectStoreError
from .parquet_files import ParquetFiles
from .store import ExportStore
from .summed_file import checksum_of

_PARQUET = ParquetFiles()


def check(
    store: ExportStore,
    stopped: Event | None = None,
    *,
    deep: bool = False,
    files: FileFormat = _PARQUET,
) -> ExportCheck:
    """Check the files, and count their rows and bytes. Blocks.

    Args:
        store: The destination.
        stopped: Set by another thread to end the check, which then raises.
        deep: Whether to read all bytes, and compare them with the checksums of the manifests.
        files: The kind of the files.

    Raises:
        ExportError: The manifests are damaged, the store fails, or ``stopped`` is set.
    """
    listed = store.listed()
    problems = [*_doubles(listed)]
    rows = size = 0
    with store.explained(f"cannot check {store.title}"):
        checks = store.each(partial(_check_file, store, stopped, deep, files), listed)
    for file, (file_rows, problem) in zip(listed, checks, strict=True):
        rows += file_rows
        size += file.bytes if problem is None else 0
        problems += [problem] if problem else []
    if deep:
        letters = [file for file in store.listed_letters() if file.crc32c is not None]
        with store.explained(f"cannot check {store.title}"):
            compared = store.each(partial(_compare_letters, store, stopped), letters)
        problems += [problem for problem in compared if problem]
    known = {file.name for file in listed} | store.being_written()
    with store.explained(f"cannot list {store.title}"):
        present = sorted(store.data_files())
    for name in present:
        if name not in known and not name.startswith(("_", ".")):
            problems.append(f"{name} is in no manifest, but readers of the directory see it")
    unhashed = sum(file.crc32c is None for file in listed) if deep else 0
    return ExportCheck(len(listed), rows, size, tuple(problems), unhashed=unhashed)


def _raise_if_stopped(store: ExportStore, stopped: Event | None) -> None:
    if stopped is not None and stopped.is_set():
        raise ExportError(f"the check of {store.title} was cancelled")


def _compare(
    store: ExportStore, file: WrittenFile, raise_if_stopped: Callable[[], None]
) -> str | None:
    """Return what is wrong with the bytes of a file; ``None`` if nothing is."""
    with store.open_data(file.name) as (opened, _):
        found = checksum_of(opened, raise_if_stopped)
    if found == file.crc32c:
        return None
    return f"{file.name} has changed: its CRC-32C is {found}, not {file.crc32c}"


def _compare_letters(store: ExportStore, stopped: Event | None, file: WrittenFile) -> str | None:
    """Return what is wrong with the bytes of a file of dead letters; ``None`` if nothing is.

    A missing file is no problem, because users may move dead letters away.
    """
    raise_if_stopped = partial(_raise_if_stopped, store, stopped)
    raise_if_stopped()
    try:
        return _compare(store, file, raise_if_stopped)
    except FileNotFoundError:
        return None


def _check_file(
    store: ExportStore, stopped: Event | None, deep: bool, files: FileFormat, file: WrittenFile
) -> tuple[int, str | None]:
    """Return the rows of a file, and what is wrong with the file; ``None`` if nothing is."""
    raise_if_stopped = partial(_raise_if_stopped, store, stopped)
    raise_if_stopped()
    try:
        # The checksum comes first: it finds most damage before the file is parsed.
        hashed = deep and file.crc32c is not None
        if hashed and (problem := _compare(store, file, raise_if_stopped)) is not None:
            return 0, problem
        with store.open_data(file.name) as (opened, size), _binary(opened) as binary:
            rows = counted(files, binary)
        if (size, rows) != (file.bytes, file.rows):
            return (
                rows,
                f"{file.name} has {rows:,} rows in {size:,} bytes, not {file.rows:,} in "
                f"{file.bytes:,}",
            )
        # Older releases wrote Parquet files without a checksum in the manifest.
        if deep and file.crc32c is None and isinstance(files, ParquetFiles):
            with store.open_data(file.name) as (opened, _):
                files.decode(opened, raise_if_stopped)
    except FileNotFoundError:
        return 0, f"{file.name} is lost, with {file.rows:,} rows"
    except ObjectStoreError:
        raise  # an error of the store says nothing about the file
    except (OSError, ValueError) as error:
        return 0, f"{file.name} is not a whole {files.title} file: {error}"
    return rows, None


@contextmanager
def _binary(opened: Any) -> Iterator[Any]:
    """Yield a binary file for what a store has opened, which is a path or a binary file."""
    if not isinstance(opened, Path):
        yield opened
        return
    with opened.open("rb") as file:
        yield file


def _doubles(listed: list[WrittenFile]) -> Iterator[str]:
    """Yield a problem for each file that overlaps with the one before it in its partition.

    The files of one piece may stand in several folders. They have the same offsets, which is no
    problem.
    """
    last: dict[TopicPartition, WrittenFile] = {}
    for file in sorted(listed, key=lambda each: (each.planned.tp, each.start, each.end)):
        before = last.get(file.planned.tp)
        if (
            before is not None
            and file.start < before.end
            and (file.start, file.end) != (before.start, before.end)
        ):
            yield f"{before.name} and {file.name} have offsets in common"
        last[file.planned.tp] = file
