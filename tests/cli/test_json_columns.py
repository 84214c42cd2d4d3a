"""Blocks of JSON lines as columns: the records are those of the lines, read one by one."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trikafka._wire.columns import RecordBatch
from trikafka.cli.json_columns import read_json_block
from trikafka.cli.record_lines import BadLineError, Line, from_json

text = st.none() | st.text(max_size=5)
documents = st.fixed_dictionaries(
    {},
    optional={
        "key": text,
        "value": text,
        "partition": st.none() | st.integers(0, 5),
        "timestamp": st.none() | st.integers(0, 2**40),
        "headers": st.none() | st.just([]),
        "topic": st.sampled_from(["t", None]),
        "offset": st.integers(0, 5),
    },
)
#: Parts of lines whose sum may look like lines of their own.
pieces = st.lists(
    st.sampled_from(
        [
            '{"value":',
            '"x"',
            "}",
            "{",
            '{"value": "a"}',
            ",",
            "[",
            "]",
            "\n",
            '"headers": [',
            "\r",
            '{"headers": [{}',
            "{}]}",
            '"key"',
            ":",
            "null",
            "5",
            '{"value": "a"},{"value": "b"}',
            '{"offset": [{}',
            '{"partition": [{}',
            '], "value": "x"}',
            '"a}',
        ]
    ),
    max_size=14,
).map("".join)


def lines_of(block: bytes) -> list[tuple[int | None, ...] | tuple[Any, ...]] | None:
    """Return partition, timestamp, key and value of each line of the block as columns."""
    found = read_json_block(block, "t", with_partitions=True, partition=None)
    if found is None:
        return None
    _, rows = found
    lines: list[Any] = []
    for _, piece in rows.pieces(8, 1 << 20):
        explicit = rows.partitions(piece)
        partitions = [-1] * piece.count if explicit is None else list(explicit)
        batch = RecordBatch("t", 0, rows.columns(piece, 0), 0)
        for record, partition in zip(batch, partitions, strict=True):
            at = None if partition < 0 else partition
            lines.append((at, record.timestamp, record.key, record.value))
    return lines


def singly(line: bytes) -> tuple[Any, ...]:
    read: Line = from_json(line)
    assert read.headers == ()
    return read.partition, read.timestamp or 0, read.key, read.value


@settings(deadline=None)
@given(st.lists(documents, min_size=1, max_size=20), st.booleans())
def test_columns_are_the_records_of_lines(documents: list[dict[str, Any]], ended: bool) -> None:
    lines = [json.dumps(each, ensure_ascii=each.get("offset") == 1).encode() for each in documents]
    block = b"\n".join(lines) + b"\n" * ended
    assert lines_of(block) == [singly(line) for line in lines]


@settings(deadline=None, max_examples=500)
@given(pieces)
def test_no_wrong_line_is_accepted(text: str) -> None:
    """A block that is accepted has one right object on each line."""
    block = text.encode()
    found = lines_of(block)
    if found is not None:
        lines = block.split(b"\n")
        assert found == [singly(line) for line in (lines if lines[-1] else lines[:-1])]


@pytest.mark.parametrize(
    "block",
    [
        b"",
        b"\n",
        b'{"value": "a"}\n\n{"value": "b"}\n',
        b'{"value": {"base64": "eA=="}}',
        b'{"value": "a", "headers": [["h", "1"]]}',
        b'{"value": "\\ud800"}',
        b'{"partition": -1}',
        b'{"partition": true}',
        b'{"partition": 3000000000}',
        b'{"timestamp": 1.5}',
        b'{"unknown": 1}',
        b'{"headers": [{}\n{}]}\n{},{}',
        b'{"headers": [{"a": [1]}\n{}]}\n{},{}',
        b'{"offset": [{}\n{}]}\n{},{}',
        b'{"partition": [{}\n{}]}\n{},{}',
        b'{"value": [{}\n{}], "value": "x"}\n{},{}',
        b'{"headers": [{}\n{}], "headers": []}\n{},{}',
        b'{"value": "a}\n{b"}\n{},{}',
        b'{"value":\n"a"}',
        b'{"value": "a"} {"value": "b"}\n{',
        b"[" * 100_000,
    ],
)
def test_other_lines_are_left_to_be_read_singly(block: bytes) -> None:
    assert lines_of(block) is None


def test_topic_of_lines_is_theirs() -> None:
    def topic(*names: str | None, given: str | None = None) -> str | None:
        lines = b"\n".join(json.dumps({"topic": name}).encode() for name in names)
        found = read_json_block(lines, given, with_partitions=False, partition=1)
        assert found is None or found[1].highest_partition == 1
        return None if found is None else found[0]

    assert topic("a", "a") == "a"
    assert topic("a", "b") is None
    assert topic("a", None) is None
    assert topic("a", None, given="t") == "t"
    assert topic("ü", given="t") is None
    with pytest.raises(BadLineError, match="name of a topic"):
        from_json('{"topic": "ü"}'.encode())
