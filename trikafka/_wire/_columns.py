"""Columns of records in Arrow's layout: filled by the decoders, read by the encoders.

A ``RecordBatch`` is a view of them. Only a decoder changes a ``Columns``, before others see it.
Slices share the bytes of keys and values. Imports nothing of this package but ``_format``.
"""

from __future__ import annotations

from array import array
from typing import Any, Literal

from trikafka._wire._format import Buffer

#: The items of each column, in the order of the arguments of ``Columns``; ``None``: bytes.
_FORMS: tuple[Literal["q", "b", "i"] | None, ...] = (
    *("q", "q", "b"),
    *("i", None, None),
    *("i", None, None),
    *("i", "i", None, "i", None, None),
)


class Columns:
    """``count`` records, column by column.

    Offsets have one entry more than there are records, and start anywhere.

    A validity is a bitmap (least significant bit first, 1 = not null), or ``None`` where nothing is
    null. The header columns are ``None`` when no record has headers; otherwise ``header_offsets``
    says which of the headers belong to a record. A timestamp of -1 means none.
    """

    __slots__ = (
        "count",
        "header_name_data",
        "header_name_offsets",
        "header_offsets",
        "header_value_data",
        "header_value_offsets",
        "header_value_validity",
        "key_data",
        "key_offsets",
        "key_validity",
        "offsets",
        "timestamp_types",
        "timestamps",
        "value_data",
        "value_offsets",
        "value_validity",
    )

    def __init__(
        self,
        count: int,
        offsets: memoryview,
        timestamps: memoryview,
        timestamp_types: memoryview,
        key_offsets: memoryview,
        key_data: Buffer,
        key_validity: Buffer | None,
        value_offsets: memoryview,
        value_data: Buffer,
        value_validity: Buffer | None,
        header_offsets: memoryview | None = None,
        header_name_offsets: memoryview | None = None,
        header_name_data: Buffer | None = None,
        header_value_offsets: memoryview | None = None,
        header_value_data: Buffer | None = None,
        header_value_validity: Buffer | None = None,
    ) -> None:
        self.count = count
        self.offsets = offsets
        self.timestamps = timestamps
        self.timestamp_types = timestamp_types
        self.key_offsets = key_offsets
        self.key_data = key_data
        self.key_validity = key_validity
        self.value_offsets = value_offsets
        self.value_data = value_data
        self.value_validity = value_validity
        self.header_offsets = header_offsets
        self.header_name_offsets = header_name_offsets
        self.header_name_data = header_name_data
        self.header_value_offsets = header_value_offsets
        self.header_value_data = header_value_data
        self.header_value_validity = header_value_validity

    def slice(self, start: int, stop: int) -> Columns:
        """Return the records from ``start`` to ``stop`` (``0 <= start <= stop <= count``).

        Only the validity bits are copied.
        """
        headers = self.header_offsets
        return Columns(
            stop - start,
            self.offsets[start:stop],
            self.timestamps[start:stop],
            self.timestamp_types[start:stop],
            self.key_offsets[start : stop + 1],
            self.key_data,
            slice_bits(self.key_validity, start, stop),
            self.value_offsets[start : stop + 1],
            self.value_data,
            slice_bits(self.value_validity, start, stop),
            None if headers is None else headers[start : stop + 1],
            self.header_name_offsets,
            self.header_name_data,
            self.header_value_offsets,
            self.header_value_data,
            self.header_value_validity,
        )

    # A batch is often a slice of a fetch of some megabytes. So of keys and values only the bytes of
    # its own records are copied, and the offsets into them are moved to zero.
    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        """Return copies of these records' bytes, for other processes."""
        keys, key_data = _own(self.key_offsets, self.key_data)
        values, value_data = _own(self.value_offsets, self.value_data)
        rows = (bytes(self.offsets), bytes(self.timestamps), bytes(self.timestamp_types))
        sides = (
            *(keys, key_data, _bytes(self.key_validity)),
            *(values, value_data, _bytes(self.value_validity)),
        )
        headers = (
            _bytes(self.header_offsets),
            _bytes(self.header_name_offsets),
            _bytes(self.header_name_data),
            _bytes(self.header_value_offsets),
            _bytes(self.header_value_data),
            _bytes(self.header_value_validity),
        )
        return _restored, (self.count, *rows, *sides, *headers)

    @property
    def nbytes(self) -> int:
        """The bytes of these records' keys, values, headers, and their entries in the columns."""
        size = 25 * self.count
        size += self.key_offsets[self.count] - self.key_offsets[0]
        size += self.value_offsets[self.count] - self.value_offsets[0]
        if self.header_offsets is not None:
            assert self.header_name_offsets is not None
            assert self.header_value_offsets is not None
            first = self.header_offsets[0]
            last = self.header_offsets[self.count]
            size += self.header_name_offsets[last] - self.header_name_offsets[first]
            size += self.header_value_offsets[last] - self.header_value_offsets[first]
            size += 4 * self.count + 8 * (last - first)
        return size

    @property
    def kept_nbytes(self) -> int:
        """The bytes that these records keep in memory, with those of records beside them."""
        data = (
            self.key_data,
            self.value_data,
            self.header_name_data or b"",
            self.header_value_data or b"",
        )
        return 25 * self.count + sum(memoryview(each).nbytes for each in data)

    def rename_headers(self, offsets: memoryview, data: Buffer) -> None:
        """Replace the names of the headers by as many others."""
        self.header_name_offsets = offsets
        self.header_name_data = data

    @classmethod
    def empty(cls) -> Columns:
        """Return columns without records."""
        none = memoryview(b"")
        offsets = memoryview(bytes(4)).cast("i")
        return cls(
            0,
            none.cast("q"),
            none.cast("q"),
            none.cast("b"),
            offsets,
            b"",
            None,
            offsets,
            b"",
            None,
        )


def _bytes(data: Buffer | None) -> bytes | None:
    return None if data is None else bytes(data)


def _own(offsets: memoryview, data: Buffer) -> tuple[bytes, bytes]:
    """Return the part of ``data`` that the offsets cover, and the offsets into that part."""
    first, last = offsets[0], offsets[-1]
    moved = bytes(offsets) if first == 0 else array("i", [at - first for at in offsets]).tobytes()
    return moved, bytes(memoryview(data)[first:last])


def _restored(count: int, *columns: bytes | None) -> Columns:
    """Return the columns that ``Columns.__reduce__`` described."""
    views: list[Any] = [
        data if data is None or form is None else memoryview(data).cast(form)
        for data, form in zip(columns, _FORMS, strict=True)
    ]
    return Columns(count, *views)


def slice_bits(bits: Buffer | None, start: int, stop: int) -> Buffer | None:
    """Return the bitmap of the entries from ``start`` to ``stop``.

    The bitmap is shared if it begins at a whole byte, and copied otherwise.
    """
    if bits is None:
        return None
    if start % 8 == 0:
        return memoryview(bits)[start // 8 : (stop + 7) // 8]
    number = int.from_bytes(bits[start // 8 : (stop + 7) // 8], "little") >> start % 8
    return (number & (1 << stop - start) - 1).to_bytes((stop - start + 7) // 8, "little")
