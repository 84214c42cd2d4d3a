"""The entries of a commit, read from the files' footers.

Reading the footer also proves that the file exists and is complete.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from trikafka import ExportError
from trikafka.errors.peer_text import peer_text
from trikafka.interfaces import WrittenFile

from ..folders import day_of
from ..store import ExportStore
from .abandoned_plans import FilesGoneError

#: Footers that are read at the same time.
_TOGETHER = 8


class Bounds(NamedTuple):
    """The smallest and largest value of an integer column, and its number of nulls.

    Times are in microseconds.
    """

    low: int
    high: int
    nulls: int


class DataFile(NamedTuple):
    """A file to be committed.

    ``offsets`` and ``times`` are ``None`` if the file does not have these statistics.
    """

    file: WrittenFile
    offsets: Bounds | None
    times: Bounds | None
    #: The positions of its row groups.
    splits: tuple[int, ...]

    @property
    def topic(self) -> str:
        """The topic of all its rows."""
        return self.file.planned.topic

    @property
    def partition(self) -> int:
        """The partition of all its rows."""
        return self.file.planned.partition

    @property
    def day(self) -> int | None:
        """The day of all its rows, in days since 1970, if files are partitioned by day."""
        return day_of(self.file.name)


def read_footers(store: ExportStore, files: Sequence[WrittenFile]) -> list[DataFile]:
    """Read the footers of files. Blocks.

    Raises:
        FilesGoneError: A file is missing or differs from what was written.
        ExportError: A file cannot be read.
    """

    def read(file: WrittenFile) -> DataFile:
        try:
            with store.open_data(file.name) as (opened, size):
                footer = pq.read_metadata(opened)
        except FileNotFoundError:
            raise FilesGoneError(
                f"{store.title}/{file.name} was written and no longer exists"
            ) from None
        except (OSError, pa.ArrowException) as error:
            raise ExportError(
                f"{store.title}/{file.name} cannot be read: {peer_text(error)}"
            ) from error
        if (size, footer.num_rows) != (file.bytes, file.rows):
            raise FilesGoneError(
                f"{store.title}/{file.name} does not have the {file.bytes} bytes that were written"
            )
        groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
        return DataFile(
            file,
            _bounds(groups, "offset"),
            _bounds(groups, "timestamp"),
            tuple(map(_beginning, groups)),
        )

    with ThreadPoolExecutor(_TOGETHER, thread_name_prefix="trikafka-footers") as pool:
        return list(pool.map(read, files))


def _bounds(groups: Iterable[pq.RowGroupMetaData], name: str) -> Bounds | None:
    found: list[Bounds] = []
    for group in groups:
        columns = (group.column(number) for number in range(group.num_columns))
        known = next((each.statistics for each in columns if each.path_in_schema == name), None)
        if known is None or not known.has_null_count:
            return None
        if known.has_min_max:
            found.append(Bounds(known.min_raw, known.max_raw, known.null_count))
        elif known.null_count < group.num_rows:
            return None
        else:
            found.append(Bounds(2**63 - 1, -(2**63), known.null_count))
    low = min((each.low for each in found), default=0)
    high = max((each.high for each in found), default=-1)
    return Bounds(low, high, sum(each.nulls for each in found)) if low <= high else None


def _beginning(group: pq.RowGroupMetaData) -> int:
    column = group.column(0)
    dictionary = column.dictionary_page_offset
    return int(
        min(dictionary, column.data_page_offset)
        if column.has_dictionary_page and dictionary
        else column.data_page_offset
    )
