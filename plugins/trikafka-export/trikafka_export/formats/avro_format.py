"""Values in Avro.

:mod:`.avro_columns` decodes schemas of simple types. All others are decoded by fastavro, many
values per call.
"""

from __future__ import annotations

import io
import secrets
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from fastavro import schemaless_reader

from .avro_types import MARK_BYTES, AvroSchema
from .column_bytes import OddError
from .rows import Decoded, PartsDecoder
from .sizes import Sizes, check, taken_by
from .times import check_times, has_times

Quick = Callable[[pa.BinaryArray], pa.Array]
#: Values per part. One wrong value makes its whole part take the slow way.
_AT_ONCE = 8192
_OTHER_END = "the value does not end where its schema says"


# fastavro reads one value per call, and the call costs more than the value. So many values are
# joined into one Avro array and read in one call. A value that is too short or too long for its
# schema would then shift all values after it. Therefore a mark follows each value: random bytes
# that no producer can know. If a mark is not at its place, each value is checked alone
# (decode_rows).
class AvroDecoder(PartsDecoder):
    """A decoder of values written with one schema into columns of another.

    Avro's resolution rules apply.

    Args:
        reader: The schema of the columns.
        writer: The schema of the values; ``None``: the same.

    Raises:
        SchemaError: The schemas cannot be used.
    """

    def __init__(self, reader: AvroSchema, writer: AvroSchema | None = None) -> None:
        self.type = reader.type
        self._sizes = Sizes(self.type, _AT_ONCE)
        self._row = pa.struct([pa.field("v", self.type), pa.field("m", pa.binary(MARK_BYTES))])
        written = writer or reader
        written.check_sizes()
        self._written = written.rows()
        self._wanted = None if written.same(reader) else reader.rows()
        self._quick = _with_time_check(reader.quick_reader(written), self.type)
        # With two schemas, fastavro (1.13) does not return the names of all types.
        self._convert = reader.converter(tagged=self._wanted is None)
        self._named = self._convert is not None and self._wanted is None
        self._mark = secrets.token_bytes(MARK_BYTES)

    def _large(self, values: Sequence[bytes]) -> pa.Array:
        self._check(values[0], measured=True)
        return self._block(values)

    def _block(self, values: Sequence[bytes]) -> pa.Array:
        data = b"".join((_count(len(values)), self._mark.join(values), self._mark, b"\0"))
        rows, end = self._read(data)
        if len(rows) != len(values) or end != len(data):
            raise ValueError(_OTHER_END)
        if self._convert is not None:
            rows = [row | {"v": self._convert(row["v"])} for row in rows]
        array = pa.array(rows, self._row)
        if not pc.all(
            pc.equal(array.field("m"), pa.scalar(self._mark, self._row["m"].type))
        ).as_py():
            raise ValueError(_OTHER_END)
        found = array.field("v")
        check_times(found)
        return found

    def _read(self, data: bytes) -> tuple[list[Any], int]:
        """Return the rows, each a value and its mark, and where they end in ``data``.

        Raises what fastavro raises. An error after the last value means that the value ends
        elsewhere. The reader then took the mark for a part of the value, so the error's text would
        be random.
        """
        file = io.BytesIO(data)
        try:
            rows = schemaless_reader(
                file, self._written, self._wanted, return_named_type=self._named
            )
        except MemoryError:
            raise
        except Exception as error:
            if isinstance(error, EOFError) or file.tell() >= len(data) - MARK_BYTES:
                raise ValueError(_OTHER_END) from None
            raise
        return rows, file.tell()

    def _check(self, value: bytes, measured: bool = False) -> None:
        """Raise the error of :meth:`_block` for one value, without conversion to Arrow.

        ``measured``: also refuse lists that would become too large.
        """
        data = b"".join((b"\x02", value, self._mark, b"\0"))
        rows, end = self._read(data)
        if end != len(data) or len(rows) != 1 or rows[0]["m"] != self._mark:
            raise ValueError(_OTHER_END)
        row = rows[0]
        if measured:
            check(taken_by(row["v"], self.type))
        if self._convert is not None:
            self._convert(row["v"])


def _with_time_check(quick: Quick | None, type: pa.DataType) -> Quick | None:
    """Return a quick reader that also checks times, if the type has any (see :mod:`.times`)."""
    if quick is None or not has_times(type):
        return quick

    def read(column: pa.BinaryArray) -> pa.Array:
        found = quick(column)
        try:
            check_times(found)
        except ValueError as error:
            raise OddError from error  # fastavro then finds the wrong values.
        return found

    return read


class RawDecoder:
    """A decoder for the schema ``bytes``.

    For this schema, a registry's serializers write the bytes alone, without Avro's length before
    them.
    """

    type = pa.binary()

    def decode(self, column: pa.BinaryArray) -> Decoded:
        """Decode values as :meth:`Decoder.decode`."""
        return column, {}


def _count(number: int) -> bytes:
    """Return a number from 0 in Avro's encoding: zigzag, seven bits a byte, the lowest first."""
    number = number << 1
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)
