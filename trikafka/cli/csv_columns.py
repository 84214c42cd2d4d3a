"""Rows of CSV as columns, a block of lines at once."""

from __future__ import annotations

import codecs
import csv
import io
import json
from array import array
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import accumulate, repeat
from json.encoder import encode_basestring
from typing import Any, NamedTuple

from .._wire.column_rows import BinaryColumn, ColumnRows
from .._wire.columns import Columns
from ..errors.counts import counted
from . import source
from .record_lines import BadLineError, Line
from .source import Block
from .start import whole

#: Columns that are parts of a record by their names alone.
PLACES = ("partition", "timestamp")
_NONE = type(None)


class Choice(NamedTuple):
    """The options about the columns of a table.

    ``with_partitions``: the column of partitions decides. ``partition`` is that of all rows.
    """

    key: str | None
    value: str | None
    empty_is_null: bool = False
    with_partitions: bool = True
    partition: int | None = None


# The csv module reads whole lines, and a quoted field may contain line ends. So a block may end in
# the middle of a row. That row is read again with the next block, from its first line on.
class CsvBlocks:
    """The rows of a CSV file, whose first line names the columns."""

    def __init__(self, topic: str | None, choice: Choice) -> None:
        csv.field_size_limit(source.LONGEST)  # a value may be as long as a line of other inputs
        self._topic = topic
        self._choice = choice
        self._begun = False
        self._names: list[str] | None = None
        self._roles: dict[str, int] = {}
        self._template = ""
        self._rest: list[str] = []
        self._size = 0

    @property
    def unfinished(self) -> bool:
        """True if a part of a row was read, and not its end."""
        return bool(self._rest)

    def finish(self) -> None:
        """Check that the file ends with a row.

        Raises:
            BadLineError: It ends in a quoted field.
        """
        if self._rest:
            raise BadLineError("this is no CSV (a quoted field that begins here has no end)")

    def take(self, data: bytes) -> Block:
        """Return the rows that end in these lines.

        An error of the block is about the line behind its rows.
        """
        if data and not self._begun:
            self._begun = True
            data = data.removeprefix(codecs.BOM_UTF8)
        wrong: BadLineError | None = None
        try:
            text = data.decode()
        except UnicodeDecodeError as error:
            wrong = BadLineError(f"this is not UTF-8 ({error.reason})")
            text = data[: data.rfind(b"\n", 0, error.start) + 1].decode()
        if '"' not in text and wrong is None:
            if self._rest:  # the field goes on
                self._keep(text)
                return Block(0)
            if (block := self._unquoted(text)) is not None:
                return block
        # As a file with newline="": a line ends at \r, too, and keeps its end.
        lines = list(io.StringIO("".join(self._rest) + text, newline=""))
        rows, ends, bad_row = self._read(lines, final=wrong is not None)
        return self._block(rows, ends, bad_row or wrong)

    def _unquoted(self, text: str) -> Block | None:
        """Return the rows of a text without quotes, in which each line is a row.

        This takes a third of the time of the csv module, which makes a list for each row.

        Returns:
            The rows; ``None`` if the csv module has to read them: a carriage return alone ends a
            line, or a line is blank or has too many fields or too few.
        """
        names = self._names
        body = text.replace("\r\n", "\n").removesuffix("\n")
        if names is None or "\r" in body:
            return None
        lines = body.split("\n")
        if "" in lines or set(map(str.count, lines, repeat(","))) != {len(names) - 1}:
            return None
        fields = body.replace("\n", ",").split(",")
        return Block(
            len(lines),
            topic=self._topic,
            rows=self._columns([fields[at :: len(names)] for at in range(len(names))]),
            places=range(len(lines)),
            singly=lambda: (
                (place, partial(self._line, line.split(",")))
                for place, line in enumerate(body.split("\n"))
            ),
        )

    def _keep(self, text: str) -> None:
        self._rest.append(text)
        self._size += len(text)
        if self._size > source.LONGEST:
            raise BadLineError(f"a row that begins here is longer than {source.LONGEST} bytes")

    def _read(
        self, lines: list[str], *, final: bool
    ) -> tuple[list[list[str]], list[int], BadLineError | None]:
        """Return the rows, the number of lines up to the end of each, and what is wrong behind."""
        rows: list[list[str]] = []
        ends: list[int] = []
        exhausted = False

        def fed() -> Iterator[str]:
            nonlocal exhausted
            yield from lines
            exhausted = True

        reader = csv.reader(fed(), strict=True)
        self._rest = []
        self._size = 0
        wrong = None
        try:
            for row in reader:
                rows.append(row)
                ends.append(reader.line_num)
        except csv.Error as error:
            if not exhausted:
                wrong = BadLineError(f"this is no CSV ({error})")
            elif not final:
                self._keep("".join(lines[ends[-1] if ends else 0 :]))
        return rows, ends, wrong

    def _block(self, rows: list[list[str]], ends: list[int], wrong: BadLineError | None) -> Block:
        count = ends[-1] if ends else 0
        if self._names is None and rows:
            try:
                self._name(rows[0])
            except BadLineError as error:
                return Block(0, error=error)
            del rows[0], ends[0]
        # A row is named by its last line, counted from 0.
        places: Sequence[int] = [end - 1 for end in ends]
        if not all(rows):  # blank lines are none
            places = [place for place, row in zip(places, rows, strict=True) if row]
            rows = [row for row in rows if row]
        if places and places[-1] - places[0] + 1 == len(places):
            places = range(places[0], places[0] + len(places))
        whole = set(map(len, rows)) == {len(self._names or ())}
        return Block(
            count,
            topic=self._topic,
            rows=self._columns(list(zip(*rows, strict=True))) if whole else None,
            places=places,
            singly=lambda: (
                (place, partial(self._line, row)) for place, row in zip(places, rows, strict=True)
            ),
            error=wrong,
        )

    def _name(self, names: list[str]) -> None:
        if not names:
            raise BadLineError("this line is blank; the first line must name the columns")
        if len(set(names)) != len(names):
            raise BadLineError("two columns have the same name")
        if (
            len(names) == 1
            and names[0] not in (self._choice.key, self._choice.value)
            and any(sign in names[0] for sign in ";\t|")
        ):
            raise BadLineError(
                f"the header names one column, {names[0]!r}: columns are separated by commas "
                "(--value-column takes this one as it is)"
            )
        found = roles(names, self._choice.key, self._choice.value)
        self._roles = {role: names.index(name) for role, name in found.items()}
        fields = (encode_basestring(name).replace("%", "%%") + ": %s" for name in names)
        self._template = "{" + ", ".join(fields) + "}"
        self._names = names

    def _columns(self, columns: Sequence[Sequence[str]]) -> ColumnRows | None:
        """Return columns as parts of records; ``None``: a number is wrong."""

        def texts(role: str) -> Sequence[str | None] | None:
            if role not in self._roles:
                return None
            found = columns[self._roles[role]]
            return [text or None for text in found] if self._choice.empty_is_null else found

        values = texts("value")
        if values is None:
            encoded = [self._encoded(column) for column in columns]
            values = list(map(self._template.__mod__, zip(*encoded, strict=True)))
        try:
            timestamps, partitions = (
                None if role not in self._roles else _numbers(columns[self._roles[role]])
                for role in ("timestamp", "partition")
            )
        except ValueError:
            return None
        return _rows_of(
            len(columns[0]),
            keys=texts("key"),
            values=values,
            timestamps=timestamps,
            partitions=partitions,
            with_partitions=self._choice.with_partitions,
            partition=self._choice.partition,
        )

    def _encoded(self, column: Sequence[str]) -> list[str]:
        if self._choice.empty_is_null:
            return [encode_basestring(text) if text else "null" for text in column]
        return list(map(encode_basestring, column))

    def _line(self, row: list[str]) -> Line:
        names, places = self._names or [], self._roles
        if len(row) != len(names):
            raise BadLineError(
                f"the row has {counted(len(row), 'field')}, and the file has "
                f"{counted(len(names), 'column')}"
            )
        texts: list[str | None] = [
            None if self._choice.empty_is_null and not text else text for text in row
        ]
        fields = {role: texts[at] for role, at in places.items()}
        all_of_it = dict(zip(names, texts, strict=True))
        value = fields["value"] if "value" in places else json.dumps(all_of_it, ensure_ascii=False)
        key = fields.get("key")
        partition, timestamp = (_number(role, fields.get(role)) for role in PLACES)
        return Line(
            None,
            partition,
            timestamp,
            None if key is None else key.encode(),
            None if value is None else value.encode(),
            (),
        )


def roles(names: list[str], key: str | None, value: str | None) -> dict[str, str]:
    """Return the columns of the roles.

    Raises:
        BadLineError: A column that an option names is not there.
    """
    for name, option in ((key, "--key-column"), (value, "--value-column")):
        if name is not None and name not in names:
            raise BadLineError(
                f"there is no column {name!r} ({option}); the columns are: {', '.join(names)}"
            )
    wanted = {"key": key or "key"}
    if (value or "value") in names:
        wanted |= {"value": value or "value", **{role: role for role in PLACES}}
    return {role: name for role, name in wanted.items() if name in names}


def _number(role: str, text: str | None) -> int | None:
    if not text:
        return None
    if whole(text) is None:
        raise BadLineError(f"{role} must be a whole number from 0, not {text!r:.100}")
    return whole(text)


def _numbers(texts: Sequence[str]) -> list[int | None]:
    """Return the numbers of a column; an empty text is null.

    Raises:
        ValueError: One is not a whole number from 0.
    """
    if (digits := "".join(texts)) and not (digits.isascii() and digits.isdigit()):
        raise ValueError("no number")
    return [int(text) if text else None for text in texts]


def _rows_of(
    count: int,
    *,
    keys: Sequence[str | None] | None,
    values: Sequence[str | None] | None,
    timestamps: Sequence[int | None] | None,
    partitions: Sequence[int | None] | None,
    with_partitions: bool,
    partition: int | None,
) -> ColumnRows | None:
    """Return rows to write from the parts of their records; ``None`` stands for nulls alone.

    ``partitions`` has the partition of each row, and decides if ``with_partitions``. ``partition``
    is that of all rows.

    Returns:
        The rows; ``None`` if a part is neither text, a number in its range, nor null.
    """
    key_column = _text_column(keys)
    value_column = _text_column(values)
    times = _number_column("q", timestamps)
    explicit = _number_column("i", partitions)
    if key_column is None or value_column is None or times is None or explicit is None:
        return None
    columns = Columns(
        count,
        memoryview(array("q", range(count))),
        memoryview(times or array("q", [-1]) * count),
        memoryview(bytes(count)).cast("b"),
        *(key_column or _nulls(count)),
        *(value_column or _nulls(count)),
    )
    return ColumnRows(
        columns,
        keyed=bool(key_column),
        timed=bool(times),
        partition=partition,
        explicit=memoryview(explicit) if explicit and with_partitions else None,
    )


def _number_column(form: str, numbers: Sequence[Any] | None) -> array[int] | None:
    """Return numbers from 0, -1 for a null; empty without any; ``None``: one is out of range."""
    if numbers is None:
        return array(form)
    if not set(map(type, numbers)) <= {int, _NONE}:
        return None
    try:
        found = array(form, [-1 if number is None else number for number in numbers])
    except OverflowError:
        return None
    given = (number for number in numbers if number is not None)
    return found if min(given, default=0) >= 0 else None


def _text_column(texts: Sequence[Any] | None) -> BinaryColumn | tuple[()] | None:
    """Return texts as a column, ``()`` for a column of nulls; ``None``: one is not text."""
    if texts is None:
        return ()
    try:
        whole = "".join(texts)
    except TypeError:
        return _column_with_nulls(texts)
    try:
        if whole.isascii():  # then a text has as many bytes as letters
            return _offsets(texts), whole.encode(), None
        parts = [text.encode() for text in texts]
    except UnicodeEncodeError:  # half of a surrogate pair
        return None
    return _offsets(parts), b"".join(parts), None


def _column_with_nulls(texts: Sequence[Any]) -> BinaryColumn | None:
    if not set(map(type, texts)) <= {str, _NONE}:
        return None
    column = _text_column(["" if text is None else text for text in texts])
    if not column:
        return None
    bits = "".join(["0" if text is None else "1" for text in texts])[::-1]
    validity = int(bits, 2).to_bytes((len(texts) + 7) // 8, "little")
    return column[0], column[1], validity


def _offsets(parts: Sequence[str | bytes]) -> memoryview:
    return memoryview(array("i", accumulate(map(len, parts), initial=0)))


def _nulls(count: int) -> BinaryColumn:
    return memoryview(bytes(4 * count + 4)).cast("i"), b"", bytes((count + 7) // 8)
