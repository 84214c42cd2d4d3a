"""What is read goes to Parquet and to Spark in groups of batches: no row is lost or changed by that, and few pieces come of it."""

from __future__ import annotations

from array import array
from itertools import accumulate
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.pandas.types import from_arrow_schema
from trikafka_spark.columns import SCHEMA, spark_table
from trikafka_spark.pieces import PieceWriter, Shape
from trikafka_spark.pruning import Columns as Wanted

from trikafka import RangeWork, RecordBatch
from trikafka._wire.columns import Columns
from trikafka.interfaces import PlannedRange

PLANNED = PlannedRange("t", 0, 0, 100_000, "t-0.parquet")
ALL = from_arrow_schema(SCHEMA)


def batch(first: int, values: list[bytes], *, times: list[int] | None = None, headers: list[int] | None = None) -> RecordBatch:
    """Records from an offset on without keys; ``headers``: how many each has, all of them x=y."""
    count = len(values)

    def numbers(form: str, items: list[int]) -> memoryview:
        return memoryview(array(form, items))

    none = numbers("i", [0] * (count + 1))
    more: tuple[object, ...] = ()
    if headers is not None:
        total = sum(headers)
        starts = numbers("i", [0, *accumulate(headers)])
        each = numbers("i", list(range(total + 1)))
        more = (starts, each, b"x" * total, each, b"y" * total, None)
    columns = Columns(
        count,
        numbers("q", list(range(first, first + count))),
        numbers("q", times or [1_700_000_000_000] * count),
        numbers("b", [0] * count),
        none,
        b"",
        bytes((count + 7) // 8),
        numbers("i", [0, *accumulate(map(len, values))]),
        b"".join(values),
        None,
        *more,  # type: ignore[arg-type]
    )
    return RecordBatch("t", 0, columns, first + count)


def test_batches_of_every_kind_become_one_table() -> None:
    group = [
        batch(0, [b"a", b"b"]),
        batch(2, [b"c"], headers=[2]),
        batch(3, [b"d", b"e"], headers=[0, 1]),
        batch(5, [b"f"], times=[-1]),
        batch(6, [b"g"], times=[2**62]),
    ]
    table = spark_table([each.to_arrow() for each in group])
    assert table.schema == SCHEMA
    assert table["value"].to_pylist() == [b"a", b"b", b"c", b"d", b"e", b"f", b"g"]
    assert table["offset"].to_pylist() == list(range(7))
    assert table["topic"].to_pylist() == ["t"] * 7
    one = {"key": "x", "value": b"y"}
    assert table["headers"].to_pylist() == [None, None, [one, one], None, [one], None, None]
    assert [None if time is None else int(time.timestamp()) for time in table["timestamp"].to_pylist()] == [
        *[1_700_000_000] * 5,
        None,
        None,
    ]


@pytest.mark.parametrize(("rows", "batches"), [(3, 1), (2_000, 4)], ids=["small ones are joined", "large ones are not copied"])
def test_spark_is_given_few_batches(rows: int, batches: int) -> None:
    group = [batch(number * rows, [b"%d" % number] * rows) for number in range(4)]
    made = list(Wanted(ALL).of(group))
    assert len(made) == batches
    assert all(each.schema == SCHEMA for each in made)
    assert pa.Table.from_batches(made)["offset"].to_pylist() == list(range(4 * rows))


def test_spark_is_given_single_batches_as_they_are() -> None:
    (made,) = Wanted(from_arrow_schema(pa.schema([SCHEMA.field("value")]))).of([batch(0, [b"a"])])
    assert made.to_pylist() == [{"value": b"a"}]


def test_no_row_group_is_left_with_what_was_too_much_for_another(tmp_path: Path) -> None:
    """262,144 rows and what the last batch had too many were two row groups, the second one of some thousand rows."""
    (tmp_path / "work").mkdir()
    work = RangeWork(tmp_path, 1, PLANNED, folder=tmp_path / "work")
    writer = PieceWriter(work, PLANNED, 0, Shape(row_group_rows=1_000), {})
    rows = sum(writer.add(batch(first, [b"x"] * 300)) for first in range(0, 3_000, 300))
    piece, more = writer.finish(3_000)
    assert rows + more == 3_000
    footer = pq.read_metadata(tmp_path / piece.files[0].name)
    assert [footer.row_group(number).num_rows for number in range(footer.num_row_groups)] == [900, 900, 900, 300]
