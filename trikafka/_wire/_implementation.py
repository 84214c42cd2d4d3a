"""The choice of the record path: the compiled ``_native`` if it was built, else ``_fallback``.

``TRIKAFKA_PURE=1`` in the environment forces the fallback. Only the tests of the record path call
:func:`use`.

The compiled part does the work that is done for each record: reading and writing varints, filling
columns, making ``Record`` objects, hashing keys. Everything that is decided once for a batch or a
request stays in Python (``records.py``). Without the compiled part trikafka handles records at
about a twentieth of the speed. Both parts give the same bytes, values and errors: the tests of the
record path run on both, and ``_fallback`` documents what each function does.
"""

from __future__ import annotations

import importlib
import os
import warnings
import zipimport
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol, cast

from trikafka._wire._format import Buffer, Fields, Section
from trikafka.errors import CompiledPartWarning
from trikafka.types import AnyRecord

if TYPE_CHECKING:
    from trikafka._wire._columns import Columns
    from trikafka._wire._fallback import BatchEncoder
    from trikafka._wire._fallback_iterating import Cursor, RecordIterator
    from trikafka._wire._fallback_producing import (
        Appender,
        BufferMemory,
        DeliveryHandle,
        OpenBatches,
    )
    from trikafka._wire._fallback_sharing import (
        AcquiredStates,
        BufferFront,
        DeliveryIterator,
        HeldRecords,
        HoldingCounts,
        OpenEntry,
    )


class Implementation(Protocol):
    """The interface of both modules; ``_fallback`` documents it."""

    @property
    def BatchEncoder(self) -> type[BatchEncoder]: ...
    def walk(
        self,
        data: Buffer,
        start: int,
        position: int,
        *,
        check_crcs: bool,
        most: int,
        committed: bool,
        first_abort: int | None,
        aborting: Collection[int],
    ) -> tuple[int, int, int, int, Any]: ...
    def fill(self, sections: Sequence[Section]) -> tuple[Fields, int, int]: ...
    def end_of_batches(self, records: Buffer, start: int) -> int | None: ...
    def make_records(
        self, columns: Columns, topic: str, partition: int, start: int, stop: int
    ) -> list[AnyRecord]: ...
    def iterate(self, columns: Columns, topic: str, partition: int) -> Iterator[AnyRecord]: ...
    def writable_memory(self, size: int) -> memoryview: ...
    def free_memory(self) -> int: ...
    def trim_memory(self, at_once: bool = False) -> None: ...
    def murmur2(self, data: Buffer) -> int: ...
    def hash_key(self, kind: int, data: Buffer) -> int: ...
    def partition_columns(
        self,
        key_offsets: Buffer,
        key_data: Buffer,
        key_validity: Buffer | None,
        n_partitions: int,
        explicit: Buffer | None = None,
        keyless: int = -1,
        kind: int = 0,
        shortest: int = 0,
    ) -> memoryview: ...
    def group_rows(
        self, partitions: Buffer, n_partitions: int
    ) -> tuple[memoryview, memoryview]: ...
    def find_unfit(self, columns: Columns, largest: int) -> tuple[int, int] | None: ...
    def render_rows(
        self,
        columns: Columns,
        start: int,
        stop: int,
        parts: Sequence[tuple[int, bytes]],
        null: bytes,
        into: bytearray,
        most: int,
    ) -> tuple[int, memoryview]: ...
    def split_lines(
        self, data: Buffer, delimiter: bytes | None, empty_is_null: bool
    ) -> tuple[
        int, tuple[memoryview, bytes, bytes] | None, tuple[memoryview, bytes, bytes] | None
    ]: ...
    def split_json_lines(
        self, data: Buffer, one_topic: bool
    ) -> (
        tuple[
            int,
            str | None,
            tuple[memoryview, bytes, bytes] | None,
            tuple[memoryview, bytes, bytes] | None,
            memoryview | None,
            memoryview | None,
            tuple[memoryview, tuple[memoryview, bytes, bytes], tuple[memoryview, bytes, bytes]]
            | None,
        ]
        | None
    ): ...
    @property
    def Cursor(self) -> type[Cursor]: ...
    @property
    def RecordIterator(self) -> type[RecordIterator]: ...
    @property
    def Appender(self) -> type[Appender]: ...
    @property
    def BufferMemory(self) -> type[BufferMemory]: ...
    @property
    def DeliveryHandle(self) -> type[DeliveryHandle]: ...
    @property
    def OpenBatches(self) -> type[OpenBatches]: ...
    @property
    def AcquiredStates(self) -> type[AcquiredStates]: ...
    @property
    def BufferFront(self) -> type[BufferFront]: ...
    @property
    def DeliveryIterator(self) -> type[DeliveryIterator]: ...
    @property
    def HeldRecords(self) -> type[HeldRecords]: ...
    @property
    def HoldingCounts(self) -> type[HoldingCounts]: ...
    @property
    def OpenEntry(self) -> type[OpenEntry]: ...


def _load(name: str) -> Implementation:
    module = {"native": "trikafka._wire._native", "pure": "trikafka._wire._fallback"}[name]
    return cast(Implementation, importlib.import_module(module))


def available() -> tuple[str, ...]:
    """Return the names of the implementations that can be imported here."""
    names = []
    for name in ("native", "pure"):
        try:
            _load(name)
        except ImportError:
            continue
        names.append(name)
    return tuple(names)


def use(name: str) -> str:
    """Switch to the implementation ``name`` and return the name of the one before."""
    global current, name_in_use
    before, current, name_in_use = name_in_use, _load(name), name
    return before


def _why(error: ImportError) -> str:
    if isinstance(getattr(__spec__, "loader", None), zipimport.zipimporter):
        return (
            "it is in a zip archive, from which nothing compiled can be loaded; ship an unpacked "
            "environment instead"
        )
    if isinstance(error, ModuleNotFoundError) and error.name == "trikafka._wire._native":
        return "it was not built: there was no Cython or no C compiler when trikafka was installed"
    return f"it cannot be loaded: {error}"


def warn_if_missing(stacklevel: int) -> None:
    """Warn once if the compiled part is not in use and TRIKAFKA_PURE=1 did not ask for that.

    ``stacklevel`` as for :func:`warnings.warn`.
    """
    global _warned
    if missing is not None and not _warned:
        _warned = True
        text = (
            "trikafka runs without its compiled part, at about a twentieth of the speed with "
            f"records; {missing}"
        )
        warnings.warn(
            f"{text} (TRIKAFKA_PURE=1 says that it is meant)",
            CompiledPartWarning,
            stacklevel=stacklevel + 1,
        )


_warned = False
#: The reason why the compiled part is not in use; ``None``: it is in use.
missing: str | None = None
name_in_use = "pure"
current: Implementation
if os.environ.get("TRIKAFKA_PURE") != "1":
    try:
        current = _load("native")
        name_in_use = "native"
    except ImportError as error:
        current = _load("pure")
        missing = _why(error)
else:
    current = _load("pure")
    missing = "TRIKAFKA_PURE=1 is in the environment"
    _warned = True
