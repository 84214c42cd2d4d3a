"""Blocks of JSON lines as columns: the records are those of the lines, read one by one."""

from __future__ import annotations

import json
from base64 import b64encode
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trikafka._wire import _implementation
from trikafka._wire.columns import RecordBatch
from trikafka.cli.json_columns import read_json_block
from trikafka.cli.record_lines import BadLineError, Line, from_json

text = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)
encoded = st.binary(max_size=7).map(lambda data: {"base64": b64encode(data).decode()})
binary = st.none() | text | encoded
documents = st.fixed_dictionaries(
    {},
    optional={
        "key": binary,
        "value": binary,
        "partition": st.none() | st.integers(0, 2**31 - 1),
        "timestamp": st.none() | st.integers(0, 2**40),
        "headers": st.none() | st.lists(st.tuples(text, binary), max_size=3),
        "topic": st.sampled_from(["t", None]),
        "offset": st.integers(0, 5),
        "timestamp_type": st.sampled_from(["create", None]),
    },
)
#: The blanks of a writer of JSON.
styles = st.sampled_from([(", ", ": "), (",", ":"), (" ,\t", " :  ")])
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
            '{"key": "\\ud83d\\ude00"}',
            "\\",
            "u00e4",
            "\\ud83d",
            '{"value": {"base64": "QUJD"}}',
            "=",
            '{"headers": [["a", "b"], ["c", null]]}',
            '["a",null]',
            "\x00",
            "\ufeff",
            " ",
            "-",
            "1.5",
            "0",
            "e1",
        ]
    ),
    max_size=14,
).map("".join)


def lines_of(block: bytes, name: str = "native") -> list[tuple[Any, ...]] | None:
    """Return partition, timestamp, key, value and headers of each line of the block as columns."""
    before = _implementation.use(name)
    try:
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
                lines.append((at, record.timestamp, record.key, record.value, record.headers))
        return lines
    finally:
        _implementation.use(before)


def singly(line: bytes) -> tuple[Any, ...]:
    read: Line = from_json(line)
    return read.partition, read.timestamp or 0, read.key, read.value, read.headers


def check(block: bytes) -> None:
    """Check that a block which is accepted has one right object on each line."""
    for name in _implementation.available():
        found = lines_of(block, name)
        if found is not None:
            lines = block.split(b"\n")
            assert found == [singly(line) for line in (lines if lines[-1] else lines[:-1])]


@settings(deadline=None)
@given(st.lists(documents, min_size=1, max_size=20), st.booleans(), st.booleans(), styles)
def test_columns_are_the_records_of_lines(
    documents: list[dict[str, Any]], ascii_: bool, ended: bool, style: tuple[str, str]
) -> None:
    lines = [json.dumps(each, ensure_ascii=ascii_, separators=style).encode() for each in documents]
    block = b"\n".join(lines) + b"\n" * ended
    for name in _implementation.available():
        assert lines_of(block, name) == [singly(line) for line in lines]


@settings(deadline=None, max_examples=500)
@given(pieces)
def test_no_wrong_line_is_accepted(text: str) -> None:
    check(text.encode())


@settings(deadline=None, max_examples=500)
@given(st.lists(documents, min_size=1, max_size=3), st.data())
def test_changed_lines_are_read_as_singly(documents: list[dict[str, Any]], data: Any) -> None:
    """One byte that is lost, doubled or replaced makes no other record of a line."""
    block = b"\n".join(json.dumps(each).encode() for each in documents)
    at = data.draw(st.integers(0, len(block) - 1))
    gone = data.draw(st.integers(0, 1))
    new = data.draw(
        st.sampled_from([*(bytes([byte]) for byte in range(256)), b"", block[at : at + 1]])
    )
    check(block[:at] + new + block[at + gone :])


@pytest.mark.parametrize("name", _implementation.available())
@pytest.mark.parametrize(
    "line",
    [
        "{}",
        '{"value": "a"}\r',
        '{ "value":"a" }',
        '{"key": null, "value": null, "headers": null}',
        '{"value": "{\\"a\\": 1}", "headers": []}',
        '{"value": "\\u00e4\\ud83d\\ude00\\n\\/ \u00e4"}',
        '{"value": {"base64": "AA=="}, "key": { "base64" : "/+8=" }}',
        '{"headers": [["a", "b"], [ "c" , null ], ["", {"base64": "/w=="}]]}',
        '{"topic":"t","partition":2147483647,"offset":123456789012,"timestamp":1769860000000,'
        '"timestamp_type":"create","key":"k","value":"v","headers":[]}',
    ],
)
def test_usual_lines_become_columns(name: str, line: str) -> None:
    assert lines_of(line.encode(), name) == [singly(line.encode())]


@pytest.mark.parametrize("name", _implementation.available())
@pytest.mark.parametrize(
    "block",
    [
        b"",
        b"\n",
        b'{"value": "a"}\n\n{"value": "b"}\n',
        b'{"value": {"base64": "eA="}}',
        b'{"value": {"base64": "eA==", "a": 1}}',
        b'{"value": {"base64": "e\xc3\xa4=="}}',
        b'{"value": {"base64": "eA==eA=="}}',
        b'{"value": {"base64": "e==="}}',
        b'{"value": "a", "headers": {"h": "1"}}',
        b'{"value": "a", "headers": [["h"]]}',
        b'{"value": "a", "headers": [["h", "1", "2"]]}',
        b'{"value": "a", "headers": [[null, "1"]]}',
        b'{"value": "\\ud800"}',
        b'{"value": "\\udc00"}',
        b'{"value": "\\ud800\\ud800"}',
        b'{"value": "\\u12"}',
        b'{"value": "\\x41"}',
        b'{"value": "\t"}',
        b'{"value": "\xff"}',
        b'{"value": "\xed\xa0\x80"}',
        b'\xef\xbb\xbf{"value": "a"}',
        b'{"value": "a",}',
        b'{"value": "a"',
        b'{"value": "a',
        b'{"value": "a\\',
        b'{"value"',
        b'{"partition": -1}',
        b'{"partition": 01}',
        b'{"partition": 1e1}',
        b'{"partition": true}',
        b'{"partition": 3000000000}',
        b'{"timestamp": 1.5}',
        b'{"timestamp": 99999999999999999999}',
        b'{"topic": "\xc3\xa4"}',
        b'{"unknown": 1}',
        b'{"headers": [{}\n{}]}\n{},{}',
        b'{"headers": [{"a": [1]}\n{}]}\n{},{}',
        b'{"partition": [{}\n{}]}\n{},{}',
        b'{"value": [{}\n{}], "value": "x"}\n{},{}',
        b'{"value": "a}\n{b"}\n{},{}',
        b'{"value":\n"a"}',
        b'{"value": "a"} {"value": "b"}\n{',
        b"[" * 100_000,
    ],
)
def test_other_lines_are_left_to_be_read_singly(name: str, block: bytes) -> None:
    assert lines_of(block, name) is None


@pytest.mark.parametrize("name", _implementation.available())
def test_topic_of_lines_is_theirs(name: str) -> None:
    def topic(*names: str | None, given: str | None = None) -> str | None:
        lines = b"\n".join(json.dumps({"topic": name}).encode() for name in names)
        found = read_json_block(lines, given, with_partitions=False, partition=1)
        assert found is None or found[1].highest_partition == 1
        return None if found is None else found[0]

    before = _implementation.use(name)
    try:
        assert topic("a", "a") == "a"
        assert topic("a", "b") is None
        assert topic("a", None) is None
        assert topic(None, "a") is None
        assert topic("a", "ab") is None
        assert topic("a", None, given="t") == "t"
        assert topic("\u00fc", given="t") is None
    finally:
        _implementation.use(before)
    with pytest.raises(BadLineError, match="name of a topic"):
        from_json('{"topic": "\u00fc"}'.encode())


def test_lines_of_no_columns_have_none() -> None:
    """Nulls and empty texts in rows before and after others keep their places."""
    lines = [
        b'{"key":"","headers":[]}',
        b'{"value":""}',
        b'{"headers":[["a",""],["b",null]],"key":"k"}',
        b"{}",
        b'{"headers":[["c","d"]],"timestamp":5}',
    ]
    check(b"\n".join(lines))
    found = lines_of(b"\n".join(lines))
    assert found is not None
    assert found[2] == (None, 0, b"k", None, (("a", b""), ("b", None)))
    assert found[4] == (None, 5, None, None, (("c", b"d"),))
