"""Records as lines and back, without I/O."""

from __future__ import annotations

import json
from contextlib import suppress

import click
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trikafka import Record, TimestampType
from trikafka.cli.record_lines import (
    BadLineError,
    Line,
    from_json,
    from_raw,
    from_template,
    json_format,
    literal,
    matching,
    output_format,
)

data = st.none() | st.binary() | st.text().map(str.encode)
headers = st.lists(st.tuples(st.text(), data)).map(tuple)
records = st.builds(
    Record,
    st.just("topic"),
    st.integers(0, 2**31 - 1),
    st.integers(0, 2**63 - 1),
    st.none() | st.integers(0, 2**53),
    st.sampled_from(TimestampType),
    data,
    data,
    headers,
)
RECORD = Record(
    "t",
    2,
    40,
    1_700_000_000_000,
    TimestampType.CREATE_TIME,
    b"k",
    "value ü".encode(),
    (("h", b"1"), ("n", None)),
)


@settings(deadline=None)
@given(records)
def test_every_record_survives_json(record: Record) -> None:
    line = json_format()(record)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert from_json(line) == Line(
        record.topic, record.partition, record.timestamp, record.key, record.value, record.headers
    )


@settings(deadline=None)
@given(st.binary() | st.text().map(str.encode))
def test_any_line_is_read_or_refused(line: bytes) -> None:
    with suppress(BadLineError):
        from_json(line)


@settings(deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text() | st.integers(),
        lambda s: st.lists(s) | st.dictionaries(st.text(), s),
    )
)
def test_any_json_in_a_field_is_read_or_refused(value: object) -> None:
    for name in ("key", "value", "headers", "partition", "timestamp", "topic"):
        with suppress(BadLineError):
            from_json(json.dumps({name: value}).encode())


def test_json_of_a_record() -> None:
    assert json_format()(RECORD).decode() == (
        '{"topic":"t","partition":2,"offset":40,"timestamp":1700000000000,"timestamp_type":"create",'
        '"key":"k","value":"value ü","headers":[["h","1"],["n",null]]}\n'
    )
    assert json.loads(json_format()(RECORD._replace(key=b"\xff\x00", value=None)))["key"] == {
        "base64": "/wA="
    }


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("hello", "--format raw"),
        ("[1]", "not an object"),
        ('{"vlaue": "x"}', "did you mean 'value'"),
        (
            '{"id": 5, "name": "x"}',
            "the fields are topic, .*; for lines that are the values themselves",
        ),
        ('{"id": 5, "value": "x"}', "timestamp_type, key, value, headers$"),
        ("{ \n", r"a line of its own \(jq -c\)"),
        ('{"value": 5}', "value must be text, null or"),
        ('{"value": {"base64": "?"}}', "base64 of value"),
        ('{"value": "\\ud800"}', "surrogate"),
        ('{"partition": -1}', "partition must be"),
        ('{"partition": true}', "partition must be"),
        ('{"timestamp": 1.5}', "timestamp must be"),
        ('{"headers": "x"}', "headers must be"),
        ('{"headers": [["a"]]}', "headers must be"),
        ('{"headers": [[1, "a"]]}', "headers must be"),
        ('{"headers": ["ab"]}', "headers must be"),
        ('{"headers": [{"name": "a", "value": "b"}]}', "headers must be"),
        ('{"topic": 1}', "topic must be"),
        ("[" * 100_000, "not JSON"),
        ('{"value": "a", "value": "b"}', "'value' occurs twice$"),
        ('{"value": {"base64": "", "base64": ""}}', "'base64' occurs twice$"),
        ('{"headers": {"a": "1", "a": "2"}}', "'a' occurs twice; headers of one name need a list"),
    ],
)
def test_wrong_line_is_explained(line: str, says: str) -> None:
    with pytest.raises(BadLineError, match=says):
        from_json(line.encode())


def test_headers_may_be_an_object() -> None:
    assert from_json(b'{"headers": {"a": "1", "b": null}}').headers == (("a", b"1"), ("b", None))


def test_raw_lines_are_read() -> None:
    assert from_raw(None, False)(b"a:b") == Line(None, None, None, None, b"a:b", ())
    assert from_raw(b":", False)(b"a:b:c")[3:5] == (b"a", b"b:c")
    assert from_raw(b":", False)(b":")[3:5] == (b"", b"")
    assert from_raw(b":", True)(b":")[3:5] == (None, None)
    with pytest.raises(BadLineError, match="no key delimiter ':'"):
        from_raw(b":", False)(b"abc")


def test_formats_of_kcat_are_understood() -> None:
    assert (
        from_template(r"%t-%p@%o %k=%s %T %K %S %h%%\n")(RECORD)
        == "t-2@40 k=value ü 1700000000000 1 8 h=1,n=NULL%\n".encode()
    )
    assert from_template("%R%s")(RECORD) == b"\0\0\0\x08" + RECORD.value  # type: ignore[operator]
    nothing = RECORD._replace(key=None, value=None, timestamp=None)
    assert from_template("%k|%s|%K|%S|%T")(nothing) == b"||-1|-1|-1"
    assert from_template("%k|%s", b"NULL")(nothing) == b"NULL|NULL"
    assert output_format("raw", None)(RECORD) == "value ü\n".encode()
    assert output_format("json", r"\t")(RECORD) == "k\tvalue ü\n".encode()
    with pytest.raises(click.BadParameter, match="%q"):
        from_template("%q")


def test_escapes_are_read() -> None:
    assert literal(r"a\tb\n\x00\xff\\\q%") == b"a\tb\n\0\xff\\\\q%"


def test_arguments_need_not_be_utf8() -> None:
    """The system hands bytes that are no UTF-8 as half surrogate pairs."""
    argument = b"\xff\\t\\x".decode("utf-8", "surrogateescape")
    assert literal(argument) == b"\xff\t\\x"
    keep = matching(b"a\xff".decode("utf-8", "surrogateescape"))
    assert [keep(RECORD._replace(value=value)) for value in (b"a\xffb", b"ab")] == [True, False]


@pytest.mark.parametrize(
    ("pattern", "value", "found"),
    [
        ("[äö]", "ü", False),
        ("[äö]", "schön", True),
        ("(?i)ÄRGER", "ärger", True),
        (r"^\w{3}$", "größe"[:3], True),
        ("^..$", "日本", True),
        ("(?<=ß|s)e", "große", True),
        (r"(?u)\d", "٣", True),
    ],
)
def test_grep_matches_characters(pattern: str, value: str, found: bool) -> None:
    """A pattern that was matched byte by byte took a part of a character for one."""
    assert matching(pattern)(RECORD._replace(value=value.encode(), key=None)) is found


def test_grep_finds_bytes_beside_a_pattern_for_text() -> None:
    value = b"\xff\xfe ok"
    assert matching("ok")(RECORD._replace(value=value))
    assert matching(r"\xfe")(RECORD._replace(value=value))
    assert not matching("(?u)ok")(RECORD._replace(value=value, key=None, headers=()))


@pytest.mark.parametrize("pattern", ["(", "a{99999999999999}"])
def test_wrong_pattern_is_explained(pattern: str) -> None:
    with pytest.raises(click.BadParameter, match="is not a regular expression"):
        matching(pattern)
