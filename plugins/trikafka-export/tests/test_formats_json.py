"""JSON: later values beside a pinned schema, and values that are no objects.

A value gives the same result alone and among others.
"""

from __future__ import annotations

import re
from datetime import date, time
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trikafka_export.formats.column_type import alike_names, check_column
from trikafka_export.formats.json_format import JsonDecoder, infer
from trikafka_export.lake.columns import table_type

from trikafka import ConfigurationError, ExportError

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
    row, why = both_ways(value)
    assert row is None
    assert why is not None
    assert re.search(what, why)
    assert len(why) <= 500
    assert "\n" not in why


DAY, LATE = date(2024, 2, 29), time(23, 59, 59)


@pytest.mark.parametrize(
    ("type", "given", "found"),
    [
        ("date32", b'"2024-02-29"', DAY),
        ("date32", b"19782", DAY),
        ("date64", b'"2024-02-29"', DAY),
        ("time32[s]", b'"23:59:59"', LATE),
        ("time32[s]", b"86399", LATE),
        ("time32[ms]", b'"23:59:59.250"', LATE.replace(microsecond=250_000)),
        ("time64[us]", b'"23:59:59.000001"', LATE.replace(microsecond=1)),
        (["date32"], b'["2024-02-29", null]', [DAY, None]),
        (["time64[us]"], b'["23:59:59", null]', [LATE, None]),
        ({"x": "time32[s]", "y": "int64"}, b'{"x": "23:59:59", "y": 1}', {"x": LATE, "y": 1}),
    ],
)
def test_date_is_read_from_text_or_number(type: Any, given: bytes, found: Any) -> None:
    decoder = JsonDecoder({"d": type, "n": "int64"})
    values = [b'{"n": 1}', b'{"d": null}', b'{"d": ' + given + b"}"]
    for _ in range(2):
        array, wrong = decoder.decode(pa.array(values))
        assert not wrong
        assert array.to_pylist() == [
            {"d": None, "n": 1},
            {"d": None, "n": None},
            {"d": found, "n": None},
        ]


def test_texts_and_numbers_of_dates_may_alternate() -> None:
    values = [b'{"d": %d}' % n if n % 3 else b'{"d": "2024-02-29"}' for n in range(20)]
    array, wrong = JsonDecoder({"d": "date32"}).decode(pa.array(values))
    assert not wrong
    assert array.field(0).cast(pa.int32()).to_pylist() == [
        n if n % 3 else 19_782 for n in range(20)
    ]


@pytest.mark.parametrize(
    ("type", "given", "what"),
    [
        ("date32", b'"2023-02-29"', "Failed to parse string: '2023-02-29'"),
        ("date32", b'"2024-02-29T01:00:00"', "Failed to parse string"),
        ("date32", b"1.5", "couldn't parse:1.5"),
        ("time32[s]", b'"24:00:00"', "Failed to parse string"),
        ("time32[s]", b'"10:00:00.5"', "Failed to parse string"),
        ("time32[s]", b'"12"', "a time of day must be a text such as '23:59:59'"),
        (["date32"], b'[1, "2024-02-29"]', "must all be texts, or all numbers"),
        ([{"t": "time32[s]"}], b'[{"t": "10:00"}, {"t": 1}]', "must all be texts, or all numbers"),
        ({"t": "time32[s]", "s": "string"}, b'{"t": 1, "s": 5}', "/s) changed from string"),
        ({"t": "time32[s]", "s": "string"}, b'{"t": "10:00", "s": 5}', "/s) changed from string"),
        ("time32[s]", b"86400", "not within the acceptable range"),
    ],
)
def test_impossible_date_is_a_dead_letter(type: Any, given: bytes, what: str) -> None:
    array, wrong = JsonDecoder({"d": type}).decode(pa.array([b"{}", b'{"d": ' + given + b"}"]))
    assert array.is_valid().to_pylist() == [True, False]
    assert what in wrong[1]


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (b'{"d": 1.25}', "1.25"),
        (b'{"d": "-1.5"}', "-1.50"),
        (b'{"d": 7}', "7.00"),
        (b'{"d": 12e-1}', "1.20"),
        (b'{"d": 123.4500}', "123.45"),
        (b'{"d": 99999999999999999.99}', "99999999999999999.99"),  # more than a double has
        (b'{"d": null}', None),
        (b"{}", None),
    ],
)
def test_decimal_is_read_digit_by_digit(value: bytes, found: str | None) -> None:
    decoder = JsonDecoder({"d": "decimal(19, 2)"})
    array, wrong = decoder.decode(pa.array([b"{}", value]))
    assert not wrong
    assert array.to_pylist()[1] == {"d": found and Decimal(found)}


@pytest.mark.parametrize(
    ("value", "what"),
    [
        (b'{"d": 1.234}', "requires scale 3"),
        (b'{"d": 123456}', "requires precision 6"),
        (b'{"d": 1234.5}', "does not fit in precision"),
        (b'{"d": "x"}', "'x' is not a valid decimal128 number"),
        (b'{"d": "NaN"}', "not a valid decimal128 number"),
        (b'{"d": ""}', "Empty string cannot be converted"),
        (b'{"d": true}', r"Column\(/d\) changed from number_or_string to boolean"),
        (b'{"d": 1e400}', "Number too big"),
    ],
)
def test_decimal_of_too_many_digits_is_a_letter(value: bytes, what: str) -> None:
    decoder = JsonDecoder({"d": "decimal(5, 2)"})
    array, wrong = decoder.decode(pa.array([b'{"d": 1}', value, b'{"d": "2"}']))
    assert [row and row["d"] for row in array.to_pylist()] == [1, None, 2]
    assert list(wrong) == [1]
    assert re.search(what, wrong[1])


@pytest.mark.parametrize(
    ("name", "type"),
    [
        ("decimal(10,2)", pa.decimal128(10, 2)),
        ("decimal128(38, 38)", pa.decimal128(38, 38)),
        ("decimal256(10, 0)", pa.decimal256(10, 0)),
        ("decimal(39, 1)", pa.decimal256(39, 1)),
        (["decimal(5, 1)"], pa.list_(pa.decimal128(5, 1))),
    ],
)
def test_decimal_type_has_a_name(name: Any, type: pa.DataType) -> None:
    assert JsonDecoder({"d": name}).type == pa.struct([("d", type)])


@pytest.mark.parametrize(
    "name",
    [
        *("decimal", "decimal128", "decimal(5)", "decimal(5, 2", "decimal(5, 6)", "decimal(5, -1)"),
        *("decimal(0, 0)", "decimal(77, 0)", "decimal128(39, 0)"),
    ],
)
def test_wrong_name_of_a_decimal_is_refused(name: str) -> None:
    says = re.escape(f"value_schema: {name!r} of 'o.d' must be decimal(PRECISION, SCALE)")
    with pytest.raises(ConfigurationError, match=says):
        JsonDecoder({"o": {"d": name}})


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        (5, "value_schema: 5 of 'a' is not the name of an Arrow type"),
        (None, "value_schema: None of 'a' is not the name of an Arrow type"),
        ({"x": True}, "value_schema: True of 'a.x' is not the name of an Arrow type"),
        ([], "value_schema: 'a' has 0 types in its list, and needs one"),
        (["int64", "string"], "value_schema: 'a' has 2 types in its list, and needs one"),
        ([[]], "value_schema: 'a[]' has 0 types in its list, and needs one"),
    ],
    ids=str,
)
def test_entry_without_a_type_is_refused(spec: Any, says: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        JsonDecoder({"a": spec})
    assert str(caught.value).startswith(says)


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
        ([b'{"n": 9223372036854775808}', b'{"n": 1}'], {"n": "decimal(38, 0)"}),
        ([b'{"n": 9223372036854775808}', b'{"n": 1.5}'], {"n": "double"}),
        ([b'{"n": ' + b"9" * 39 + b"}"], {"n": "double"}),
        (
            [b'{"o": [{"n": 18446744073709551615}, null], "m": 1}', b'{"o": null}'],
            {"o": [{"n": "decimal(38, 0)"}], "m": "int64"},
        ),
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


@pytest.mark.parametrize(
    ("schema", "names"),
    [
        ({"id": "int64", "ID": "int64"}, ("id", "ID")),
        ({"l": [{"Ä": "string", "ä": "string"}]}, ("Ä", "ä")),
        ({"id": "int64", "o": {"ID": "int64"}}, None),
    ],
)
def test_names_alike_but_for_case(schema: dict[str, Any], names: tuple[str, str] | None) -> None:
    """Spark refuses a file that has both, as ambiguous; Delta has no such table."""
    type = JsonDecoder(schema).type
    check_column(type, "v")
    assert alike_names(type) == names
    assert table_type(type, "iceberg", "v") == type
    if names is None:
        table_type(type, "delta", "v")
        return
    with pytest.raises(ConfigurationError, match=f"only in case, '{names[0]}' and '{names[1]}'"):
        table_type(type, "delta", "v")
