"""The options of writes, the written columns, and the end of a part of a write. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import permutations
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)
from trikafka_spark.row_digest import RowDigest
from trikafka_spark.write_options import WriteOptions, write_options
from trikafka_spark.write_parts import CompletePart, Part, _noted

from trikafka import ConfigurationError, DetachedTransaction

BASE = {"kafka.bootstrap.servers": "h:1", "topic": "t"}
ONCE = {**BASE, "exactlyOnce": "true"}
TYPES = {
    "key": StringType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
}


def schema(*names: str) -> StructType:
    return StructType([StructField(name, TYPES[name.lower()]) for name in names])


def options(
    given: dict[str, str], *names: str, overwrite: bool = False, streaming: bool = False
) -> WriteOptions:
    return write_options(
        given, schema(*(names or ("value",))), overwrite=overwrite, streaming=streaming
    )


def test_columns_are_found_by_name() -> None:
    """Columns are found by name in any case, and other columns are ignored."""
    found = options(
        {"kafka.bootstrap.servers": "h:1"}, "KEY", "value", "topic", "partition", "offset"
    )
    assert found.columns == {
        "key": "KEY",
        "value": "value",
        "topic": "topic",
        "partition": "partition",
    }
    assert "topic" not in options(BASE, "value", "topic").columns, "the option wins"
    other = StructType([*schema("value").fields, StructField("topic", IntegerType())])
    found = write_options(BASE, other, overwrite=False, streaming=False)
    assert "topic" not in found.columns, "its type does not matter then"
    assert not found.exactly_once
    assert "transaction_timeout_ms" not in found.settings


def test_order_of_columns_changes_no_digest() -> None:
    """Another run of an exactly-once write may select the same columns in another order."""
    given = {"kafka.bootstrap.servers": "h:1"}
    orders = permutations(("key", "value", "topic", "partition"))
    assert len({tuple(options(given, *order).columns) for order in orders}) == 1


def test_exactly_once_has_an_id_and_a_time_out() -> None:
    found = options({**ONCE, "transactionalId": "job"})
    assert (found.transactional_id, found.settings["transaction_timeout_ms"]) == ("job", 900_000)
    found = options({**ONCE, "kafka.transaction.timeout.ms": "60000"}, streaming=True)
    assert (found.transactional_id, found.settings["transaction_timeout_ms"]) == (None, 60_000)


@pytest.mark.parametrize(
    ("given", "names", "streaming", "message"),
    [
        ({"kafka.bootstrap.servers": "h:1"}, ("value",), False, "no topic: set the option 'topic'"),
        ({"topic": "t"}, ("value",), False, r"'kafka\.bootstrap\.servers' is missing"),
        (BASE, ("key",), False, "no column 'value'"),
        (BASE, ("value", "VALUE"), False, "the column 'VALUE' occurs twice"),
        ({**BASE, "topic": " "}, ("value",), False, "the option .topic. is empty"),
        ({**BASE, "topic": "a b"}, ("value",), False, "topic 'a b' has ' ' in its name"),
        (
            {**BASE, "topics": "t"},
            ("value",),
            False,
            "unknown option 'topics' .* did you mean 'topic'",
        ),
        ({**BASE, "path": "t"}, ("value",), False, "call save\\(\\) without a path"),
        ({**BASE, "subscribe": "t"}, ("value",), False, "is for reads; a write takes 'topic'"),
        ({**BASE, "startingoffsets": "x"}, ("value",), False, "'startingOffsets' is for reads"),
        (
            {**BASE, "kafka.transactional.id": "x"},
            ("value",),
            False,
            "use exactlyOnce=true with transactionalId",
        ),
        ({**BASE, "transactionalId": "x"}, ("value",), False, "need exactlyOnce=true"),
        ({**BASE, "exactlyOnceVersion": "1"}, ("value",), False, "need exactlyOnce=true"),
        (ONCE, ("value",), False, "exactlyOnce=true needs a transactionalId"),
        (
            {**ONCE, "transactionalId": "x", "kafka.acks": "1"},
            ("value",),
            False,
            "^exactlyOnce=true needs kafka.acks='all', not 1",
        ),
        (
            {**ONCE, "transactionalId": "x", "kafka.enable.idempotence": "false"},
            ("value",),
            False,
            "^exactlyOnce=true needs kafka.enable.idempotence=",
        ),
        (
            {**ONCE, "exactlyOnceVersion": "1"},
            ("value",),
            True,
            "exactlyOnceVersion is for batch writes",
        ),
        (
            {**BASE, "kafka.transaction.timeout.ms": "5"},
            ("value",),
            False,
            "needs exactlyOnce=true",
        ),
    ],
)
def test_wrong_option_is_named(
    given: dict[str, str], names: tuple[str, ...], streaming: bool, message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        options(given, *names, streaming=streaming)


def test_wrong_type_and_mode_are_named() -> None:
    with pytest.raises(
        ConfigurationError, match="the column 'value' is int, but must be binary or string: cast it"
    ):
        write_options(
            BASE,
            StructType([StructField("value", IntegerType())]),
            overwrite=False,
            streaming=False,
        )
    with pytest.raises(ConfigurationError, match="cast it to TIMESTAMP_LTZ, or drop it"):
        write_options(
            BASE,
            StructType([*schema("value").fields, StructField("timestamp", IntegerType())]),
            overwrite=False,
            streaming=False,
        )
    with pytest.raises(ConfigurationError, match="the mode 'overwrite' is not possible"):
        options(BASE, overwrite=True)


def test_mark_covers_its_run_up_to_its_number() -> None:
    """A mark covers its batch and earlier ones of the same run."""
    notes = [json.dumps({"trikafka": "run", "number": 5}), "", "something else", "{}"]
    assert Part("x-0", "run", 5, "w").find_mark(notes)
    assert Part("x-0", "run", 4, "w").find_mark(notes)
    assert not Part("x-0", "run", 6, "w").find_mark(notes)
    assert not Part("x-0", "another", 5, "w").find_mark(notes)


@pytest.mark.parametrize(
    "wrong",
    [
        {"write": "another"},
        {"number": 4},
        {"transaction": [7, 0]},
        {"transaction": None},
        {"rows": None},
    ],
)
def test_note_is_for_its_own_write(wrong: dict[str, Any]) -> None:
    part = Part("x-0", "run", 5, "w")
    body = {"write": "w", "number": 5, "transaction": [7, 0, 2], "rows": [3, 30, 2**64 - 1]}
    assert _noted(part, json.dumps(body)) == CompletePart(
        DetachedTransaction("x-0", 7, 0, 2), RowDigest(3, 30, 2**64 - 1)
    )
    assert _noted(part, json.dumps(body | wrong)) is None
    mark = json.dumps({"trikafka": "run", "number": 5})
    assert [_noted(part, note) for note in ("", "[]", "null", mark)] == [None] * 4


ROW: dict[str, Any] = {
    "key": b"ab",
    "value": "c",
    "partition": 1,
    "headers": [{"key": "h", "value": b"x"}],
    "timestamp": datetime(2026, 11, 22, tzinfo=UTC),
}
ANOTHER = ROW | {"value": "d", "partition": None}
KINDS = pa.schema(
    {
        "key": pa.binary(),
        "value": pa.string(),
        "partition": pa.int32(),
        "headers": pa.list_(pa.struct({"key": pa.string(), "value": pa.binary()})),
        "timestamp": pa.timestamp("us", "UTC"),
    }
)


def rows_of(*rows: dict[str, Any], topic: str = "t", batches: Sequence[int] = ()) -> RowDigest:
    found, table = RowDigest(), pa.Table.from_pylist(list(rows), KINDS)
    for begin, end in zip((0, *batches), (*batches, len(rows)), strict=True):
        found = found.plus(topic, table.slice(begin, end - begin))
    return found


def test_rows_have_one_digest_in_any_order() -> None:
    """The digest of rows does not depend on their order or on the tables."""
    rows = [ROW, ANOTHER, ROW, {**ROW, "key": None}]
    assert {
        rows_of(*order, batches=cut) for order in permutations(rows) for cut in ((), (1,), (1, 3))
    } == {rows_of(*rows)}
    assert rows_of(*rows).count == 4
    assert rows_of(*rows * 1000) == rows_of(*rows * 1000, batches=(999,))


@pytest.mark.parametrize(
    "changed",
    [
        {"key": b"ac"},
        {"key": None},
        {"key": b""},
        {"key": b"a", "value": "bc"},
        {"key": b"abc", "value": ""},
        {"value": None},
        {"partition": 2},
        {"partition": None},
        {"headers": None},
        {"headers": []},
        {"headers": [{"key": "h", "value": b"y"}]},
        {"timestamp": datetime(2026, 11, 22, 0, 0, 1, tzinfo=UTC)},
        {"timestamp": None},
    ],
)
def test_changed_field_changes_the_digest(changed: dict[str, Any]) -> None:
    assert rows_of(ANOTHER, ROW | changed).digest != rows_of(ANOTHER, ROW).digest


def test_exchanged_fields_change_the_digest() -> None:
    one, two = ROW | {"key": b"k1", "value": "v1"}, ROW | {"key": b"k2", "value": "v2"}
    assert rows_of(one, two).digest != rows_of(one | {"value": "v2"}, two | {"value": "v1"}).digest
    assert rows_of(one).digest != rows_of(one, topic="u").digest
    assert rows_of(one).digest != rows_of(one, one).digest
