"""The check of a destination against its manifests.

Every file must exist, be whole, have its rows, and occur once. No other file may stand beside them.
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
        looks = store.each(partial(_look, store, stopped, deep, files), listed)
    for file, (found, problem) in zip(listed, looks, strict=True):
        rows += found
        size += file.bytes if problem is None else 0
        problems += [problem] if problem else []
    if deep:
        letters = [file for file in store.listed_letters() if file.crc32c is not None]
        with store.explained(f"cannot check {store.title}"):
            compared = store.each(partial(_compare_letters, store, stopped), letters)
        problems += [problem for problem in compared if problem]
    known = {file.name for file in listed} | store.being_written()
    with store.explained(f"cannot list {store.title}"):
        standing = sorted(store.data_files())
    for name in standing:
        if name not in known and not name.startswith(("_", ".")):
            problems.append(f"{name} is in no manifest, but readers of the directory see it")
    unhashed = sum(file.crc32c is None for file in listed) if deep else 0
    return ExportCheck(len(listed), rows, size, tuple(problems), unhashed=unhashed)


def _check_wanted(store: ExportStore, stopped: Event | None) -> None:
    if stopped is not None and stopped.is_set():
        raise ExportError(f"the check of {store.title} was cancelled")


def _compared(
    store: ExportStore, file: WrittenFile, check_wanted: Callable[[], None]
) -> str | None:
    """Return what is wrong with the bytes of a file, if something is."""
    with store.open_data(file.name) as (opened, _):
        found = checksum_of(opened, check_wanted)
    if found == file.crc32c:
        return None
    return f"{file.name} has changed: its CRC-32C is {found}, not {file.crc32c}"


def _compare_letters(store: ExportStore, stopped: Event | None, file: WrittenFile) -> str | None:
    """Return what is wrong with the bytes of a file of dead letters, or ``None``.

    A missing file is no problem: dead letters may be moved away.
    """
    check_wanted = partial(_check_wanted, store, stopped)
    check_wanted()
    try:
        return _compared(store, file, check_wanted)
    except FileNotFoundError:
        return None


def _look(
    store: ExportStore, stopped: Event | None, deep: bool, files: FileFormat, file: WrittenFile
) -> tuple[int, str | None]:
    check_wanted = partial(_check_wanted, store, stopped)
    check_wanted()
    try:
        hashed = deep and file.crc32c is not None  # before a damaged file is parsed
        if hashed and (problem := _compared(store, file, check_wanted)) is not None:
            return 0, problem
        with store.open_data(file.name) as (opened, size), _binary(opened) as binary:
            rows = files.count(binary)
        if (size, rows) != (file.bytes, file.rows):
            return (
                rows,
                f"{file.name} has {rows:,} rows in {size:,} bytes, not {file.rows:,} in "
                f"{file.bytes:,}",
            )
        # Older releases wrote Parquet files without a checksum in the manifest.
        if deep and file.crc32c is None and isinstance(files, ParquetFiles):
            with store.open_data(file.name) as (opened, _):
                files.decode(opened, check_wanted)
    except FileNotFoundError:
        return 0, f"{file.name} is lost, with {file.rows:,} rows"
    except ObjectStoreError:
        raise  # an error of the store says nothing about the file
    except (OSError, ValueError) as error:
        return 0, f"{file.name} is not a whole {files.title} file: {error}"
    return rows, None


@contextmanager
def _binary(opened: Any) -> Iterator[Any]:
    """Yield a binary file for what a store has opened: a path, or such a file."""
    if not isinstance(opened, Path):
        yield opened
        return
    with opened.open("rb") as file:
        yield file


def _doubles(listed: list[WrittenFile]) -> Iterator[str]:
    """Yield a problem for each pair of files of one partition whose offsets overlap.

    The files of one piece, in several folders, have the same offsets.
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
