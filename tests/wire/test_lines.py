"""Lines of text to columns and back: the compiled part writes what the one in Python does."""

from __future__ import annotations

import json
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wirebatches import Rec, batch_v2, decode

from trikafka._wire import _fallback, _implementation
from trikafka._wire.column_rows import ColumnRows
from trikafka._wire.columns import Columns, RecordBatch
from trikafka._wire.rendering import SIGNS, json_of, line_of

data = st.none() | st.binary(max_size=40) | st.text(max_size=20).map(str.encode)
rows = st.lists(
    st.builds(
        Rec,
        data,
        data,
        st.lists(st.tuples(st.text(max_size=5), data), max_size=3).map(tuple),
        st.integers(0, 2**40),
        st.none(),
    ),
    min_size=1,
    max_size=12,
)
parts = st.lists(
    st.sampled_from(sorted(SIGNS)).map(lambda sign: (ord(sign), b""))
    | st.binary(max_size=5).map(lambda text: (0, text)),
    max_size=6,
)


def decoded(records: list[Rec]) -> RecordBatch:
    return decode(batch_v2(records))


def rendered(
    implementation: ModuleType, columns: Columns, line: Any, null: bytes, room: int, most: int
) -> tuple[list[bytes], list[int]]:
    """Return the pieces between the cuts, and how many rows are in each."""
    pieces: list[bytes] = []
    counts: list[int] = []
    row, into = 0, bytearray(room)
    while row < columns.count:
        first = row
        row, cuts = implementation.render_rows(
            columns, first, columns.count, line, null, into, most
        )
        assert row > first
        begin = before = 0
        for end, count in zip(cuts[::2], cuts[1::2], strict=True):
            pieces.append(bytes(into[begin:end]))
            counts.append(count - before)
            begin, before = end, count
        assert before == row - first
    return pieces, counts


@settings(deadline=None)
@given(rows, parts, st.binary(max_size=4), st.integers(0, 300), st.integers(1, 200))
def test_rows_become_the_lines_of_their_records(
    records: list[Rec], line: list[tuple[int, bytes]], null: bytes, room: int, most: int
) -> None:
    found = decoded(records)
    lines = [line_of(record, line, null) for record in found]
    for name in _implementation.available():
        implementation: Any = _implementation._load(name)
        pieces, counts = rendered(implementation, found.columns, line, null, room, most)
        assert b"".join(pieces) == b"".join(lines)
        assert sum(counts) == len(lines)
        at = 0
        for piece, count in zip(pieces, counts, strict=True):
            assert piece == b"".join(lines[at : at + count])
            whole = [text for text in lines[at : at + count] if text]
            assert len(piece) <= most or len(whole) == 1
            at += count


@settings(deadline=None)
@given(st.none() | st.binary(max_size=60) | st.text(max_size=30).map(str.encode))
def test_any_value_is_the_same_json(value: bytes | None) -> None:
    found = decoded([Rec(value=value)]).columns
    for name in _implementation.available():
        implementation: Any = _implementation._load(name)
        ((piece,), _) = rendered(implementation, found, [(ord("y"), b"")], b"", 10, 100)
        assert piece.decode() == json_of(value)
        assert json.loads(piece) is None or value is not None


@pytest.mark.parametrize(
    "value",
    [
        b"\xc3",
        b"\xc0\x80",
        b"\xed\xa0\x80",
        b"\xf4\x90\x80\x80",
        b"\xf5\x80\x80\x80",
        b"\xe2\x82",
        b"\xf0\x80\x80\x80",
        b"\xe0\x80\x80",
        b"12345678\x80",
        b"\x80",
        "\U0010ffff\ud7ff".encode(),
    ],
)
def test_utf8_is_told_as_python_does(implementation: ModuleType, value: bytes) -> None:
    ((piece,), _) = rendered(
        implementation, decoded([Rec(value=value)]).columns, [(ord("y"), b"")], b"", 10, 100
    )
    assert piece.decode() == json_of(value)


def test_inconsistent_columns_are_refused() -> None:
    """No byte beyond a column is read; Python's own slices need no such check."""
    implementation: Any = _implementation._load("native")
    columns = decoded([Rec(value=b"x"), Rec(value=b"yy")]).columns
    columns.value_data = b"x"
    with pytest.raises(ValueError, match="not consistent"):
        implementation.render_rows(columns, 0, 2, [(ord("s"), b"")], b"", bytearray(100), 100)
    with pytest.raises(ValueError, match="not consistent"):
        implementation.render_rows(columns, 0, 3, [(ord("o"), b"")], b"", bytearray(100), 100)


lines = st.lists(st.sampled_from([b"a", b":", b"::", b"\n", b"\r", b"\0", b""])).map(b"".join)


@settings(deadline=None)
@given(lines, st.sampled_from([None, b":", b"::"]), st.booleans())
def test_lines_become_the_same_columns(
    text: bytes, delimiter: bytes | None, empty_is_null: bool
) -> None:
    expected = _fallback.split_lines(text, delimiter, empty_is_null)
    for name in _implementation.available():
        implementation: Any = _implementation._load(name)
        count, *columns = implementation.split_lines(text, delimiter, empty_is_null)
        assert count == expected[0]
        for column, wanted in zip(columns, expected[1:], strict=True):
            if column is None or wanted is None:
                assert column is wanted
                continue
            offsets, content, bits = column
            assert list(offsets) == list(wanted[0])
            assert content[: offsets[-1]] == wanted[1]
            assert bits == wanted[2]


def test_lines_become_records(implementation: ModuleType) -> None:
    count, keys, values = implementation.split_lines(b"a=1\n=2\nb=\n\nc=d=e", b"=", True)
    assert (count, keys, values) == (3, None, None), "the fourth line has no delimiter"
    count, keys, values = implementation.split_lines(b"a=1\n=2\nb=\nc=d=e", b"=", True)
    made = ColumnRows.of_lines(count, keys, values, keyed=True)
    ((first, piece),) = made.pieces(100, 1 << 20)
    found = RecordBatch("t", 0, made.columns(piece, 7), 4)
    assert (first, len(made)) == (0, 4)
    assert [(record.key, record.value, record.timestamp) for record in found] == [
        (b"a", b"1", 7),
        (None, b"2", 7),
        (b"b", None, 7),
        (b"c", b"d=e", 7),
    ]


def test_rows_come_in_pieces() -> None:
    text = b"".join(b"%d\n" % number for number in range(100))
    count, keys, values = _implementation.current.split_lines(text, None, False)
    assert keys is not None
    assert values is not None
    made = ColumnRows.of_lines(count, keys, values, keyed=False)
    pieces = list(made.pieces(24, 1 << 20))
    assert [first for first, _ in pieces] == [0, 24, 48, 72, 96]
    seen = [r for _, piece in pieces for r in RecordBatch("t", 0, made.columns(piece, 1), 0)]
    assert [record.value for record in seen] == [b"%d" % number for number in range(100)]
    assert all(record.key is None for record in seen)
    made.release()
    assert list(made.pieces(24, 1 << 20)) == []
