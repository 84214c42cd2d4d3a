"""Rows of CSV without quotes, which are split as a whole, beside the csv module's reading."""

from __future__ import annotations

from typing import Any

import pytest

from trikafka.cli.csv_columns import Choice, CsvBlocks
from trikafka.cli.record_lines import BadLineError
from trikafka.cli.source import Block

PARTS = ("key_offsets", "key_data", "key_validity", "value_offsets", "value_data", "value_validity")
HEADER = b"key,value,partition\n"


def taken(data: bytes, *, quoted: bool, empty_is_null: bool) -> Block:
    """Return the second block of a file; a quote in it sends it through the csv module."""
    blocks = CsvBlocks("t", Choice(None, None, empty_is_null))
    blocks.take(HEADER)
    return blocks.take(b'"k",v,1\n' + data if quoted else b"k,v,1\n" + data)


def seen(block: Block) -> tuple[Any, ...]:
    """Return what a block says, with the records of its lines, or the error of each."""
    lines: list[object] = []
    for place, read in block.singly():
        try:
            lines.append((place, read()))
        except BadLineError as error:
            lines.append((place, error.message))
    columns = None
    if block.rows is not None:
        ((_, whole),) = block.rows.pieces(1_000, 1_000_000)
        columns = [
            None if (part := getattr(whole, name)) is None else bytes(part) for name in PARTS
        ]
    return block.lines, list(block.places), lines, columns


@pytest.mark.parametrize("empty_is_null", [False, True])
@pytest.mark.parametrize(
    "data",
    [
        b"a,b,2\nc,d,3\n",
        b"a,b,2\r\nc,d,3\r\n",
        b"a,b,2\nc,d,3",
        b"a,b,2\r\nc,d,3\r",
        b"a,b,2\rc,d,3\n",
        b",,\n,b,\n",
        b"a,b,2\n\nc,d,3\n",
        b"a,b,2\n\n",
        b"a,b\n",
        b"a,b,c,d\n",
        b"a,b,c\n",
        b"a,b,-1\n",
        "\u00e4, b \u2028 \x85,0\n".encode(),
        b"a\0,b,0\n",
        b"a,b\xff,0\n",
        b"",
    ],
)
def test_unquoted_rows_are_read_as_by_csv(data: bytes, empty_is_null: bool) -> None:
    ways = [taken(data, quoted=quoted, empty_is_null=empty_is_null) for quoted in (False, True)]
    assert seen(ways[0]) == seen(ways[1])
    assert str(ways[0].error) == str(ways[1].error)


def test_single_column_keeps_out_blank_lines() -> None:
    blocks = CsvBlocks("t", Choice(None, None))
    blocks.take(b"value\n")
    assert list(blocks.take(b"a\n\nb\n").places) == [0, 2]
    assert list(blocks.take(b"a\nb\n").places) == [0, 1]
