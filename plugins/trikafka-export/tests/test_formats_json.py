"""JSON: later values beside a pinned schema, and values that are no objects.

A value gives the same result alone and among others.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trikafka_export.formats.json_format import JsonDecoder, infer

from trikafka import ExportError

SCHEMA = {
    "n": "int64",
    "d": "double",
    "s": "string",
    "l": ["int64"],
    "o": {"x": "int32"},
    "b": "bool",
}
DECODER = JsonDecoder(SCHEMA)


def both_ways(value: bytes) -> tuple[Any, str | None]:
    """Return the row, and what is wrong with it."""
    alone, wrong = DECODER.decode(pa.array([value]))
    among, also = DECODER.decode(pa.array([b'{"n": 11}', value, b'{"n": 12}']))
    among.validate(full=True)
    rows = among.to_pylist()
    assert (rows[0]["n"], rows[2]["n"]) == (11, 12)
    assert (repr(rows[1]), also.get(1)) == (repr(alone.to_pylist()[0]), wrong.get(0))
    assert set(also) <= {1}
    return alone.to_pylist()[0], wrong.get(0)


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (b"{}", {}),
        (b'{"n": -9223372036854775808} ', {"n": -(2**63)}),
        (b'{"d": 1}', {"d": 1.0}),
        (b'{"d": 9223372036854775808}', {"d": 2.0**63}),
        (b'{"d": Infinity}', {"d": float("inf")}),
        (b'{"d": ' + b"1" * 300 + b"}", {"d": float("1" * 300)}),
        (b'{"s": null, "o": null, "l": [1, null]}', {"l": [1, None]}),
        (b'{"\\u006e": 7}', {"n": 7}),
        (b'{"s": "\\ud83d\\ude00\\u0000"}', {"s": "\U0001f600\0"}),
        (b'\xef\xbb\xbf{"n": 1}', {"n": 1}),
        (b'{"new": {"deep": [1, {"a": 2}]}, "n": 3}', {"n": 3}),
        (b'{"new": ' + b"9" * 5_000 + b', "n": 3}', {"n": 3}),
        (b'{"new": 1, "new": "x", "n": 3}', {"n": 3}),
        (b'{"new": ' + b"[" * 100_000 + b"]" * 100_000 + b', "n": 3}', {"n": 3}),
        (b'{"o":' * 500 + b"1" + b"}" * 500, {"o": {"x": None}}),
    ],
    ids=lambda each: str(each[:40]) if isinstance(each, bytes) else "",
)
def test_value_is_read(value: bytes, found: dict[str, Any]) -> None:
    row, why = both_ways(value)
    assert (row, why) == (dict.fromkeys(SCHEMA) | found, None)


@pytest.mark.parametrize(
    ("value", "what"),
    [
        (b'{"n": 1.5}', "Failed to convert JSON to int64, couldn't parse:1.5"),
        (b'{"n": 1.0}', "int64"),
        (b'{"n": 9223372036854775808}', "int64"),
        (b'{"n": "1"}', r"Column\(/n\) changed from number to string"),
        (b'{"d": "1"}', r"Column\(/d\) changed from number to string"),
        (b'{"s": 5}', r"Column\(/s\) changed from string to number"),
        (b'{"s": {"a": 1}}', r"Column\(/s\) changed from string to object"),
        (b'{"b": 1}', r"Column\(/b\) changed from boolean to number"),
        (b'{"l": 5}', r"Column\(/l\) changed from array to number"),
        (b'{"o": {"x": 2147483648}}', "int32"),
        (b'{"d": 1e400}', "Number too big"),
        (b'{"n": 1, "n": 2}', r"Column\(/n\) was specified twice"),
        (b'{"o": {"x": 1, "x": 2}}', r"Column\(/o/x\) was specified twice"),
        (b'[{"n": 1}]', "it is JSON, but not an object"),
        (b"5", "it is JSON, but not an object"),
        (b"null", "it is JSON, but not an object"),
        (b"", "Expecting value"),
        (b'{"n": 1}\n{"n": 2}', "Extra data"),
        (b'{"n": 1}{"n": 2}', "Extra data"),
        (b'{"n": 1', "delimiter"),
        (b'{"s": "a\nb"}', "control character"),
        (b'{"s": "\\ud83d"}', "surrogate"),
        ('{"n": 1}'.encode("utf-16"), "Invalid value"),
        (b"[" * 100_000 + b"]" * 100_000, "it is JSON, but not an object"),
    ],
    ids=lambda each: str(each[:40]),
)
def test_invalid_value_is_a_dead_letter(value: bytes, what: str) -> None:
    import re

    row, why = both_ways(value)
    assert row is None
    assert why is not None
    assert re.search(what, why)
    assert len(why) <= 500
    assert "\n" not in why


@given(
    st.binary(max_size=30) | st.text(alphabet='{}[]":, n1.eE-sdlo\\u', max_size=30).map(str.encode)
)
@settings(max_examples=200, deadline=None)
def test_any_bytes_are_read_or_refused(value: bytes) -> None:
    """Any bytes are read or refused, with the same result alone and among others."""
    row, why = both_ways(value)
    assert (row is None) == (why is not None)


@pytest.mark.parametrize(
    ("values", "schema"),
    [
        ([b'{"n": 1}', b'{"n": 1.5}'], {"n": "double"}),
        ([b'{"n": 9223372036854775808}'], {"n": "double"}),
        ([b'{"n": 1, "n": "x"}'], {"n": "string"}),
        ([b'\xef\xbb\xbf{"n": 1}', b"[1]", b"junk", None], {"n": "int64"}),
        ([b'{"a": NaN}', b'{"b": null}'], {"a": "double", "b": "string"}),
    ],
)
def test_schema_is_inferred(values: list[bytes | None], schema: dict[str, Any]) -> None:
    assert infer(values, "t") == schema


@pytest.mark.parametrize(
    "values",
    [
        [b'{"n": 1}', b'{"n": "x"}'],
        [b'{"n": {"x": 1}}', b'{"n": [1]}'],
        [b'{"n": true}', b'{"n": 1}'],
    ],
)
def test_contradicting_values_have_no_schema(values: list[bytes]) -> None:
    with pytest.raises(
        ExportError,
        match=r"no schema fits the first 2 values of 't'; give value_schema: .*Column\(/n\) changed",
    ):
        infer(values, "t")
