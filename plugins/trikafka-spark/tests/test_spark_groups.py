"""Groups of batches on their way to Parquet and Spark: no row lost or changed, and few pieces."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from made_batches import batch
from pyspark.sql.pandas.types import from_arrow_schema
from trikafka_export.columns import SCHEMA, spark_table
from trikafka_export.directory_pieces import RangeWork
from trikafka_export.pieces import PieceWriter, Shape
from trikafka_spark.query_columns import QueryColumns as Wanted

from trikafka.interfaces import PlannedRange

PLANNED = PlannedRange("t", 0, 0, 100_000, "t-0.parquet")
ALL = from_arrow_schema(SCHEMA)


def test_any_batches_become_one_table() -> None:
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
    assert [
        None if time is None else int(time.timestamp()) for time in table["timestamp"].to_pylist()
    ] == [
        *[1_700_000_000] * 5,
        None,
        None,
    ]


@pytest.mark.parametrize(
    ("rows", "batches"),
    [(3, 1), (2_000, 4)],
    ids=["small ones are joined", "large ones are not copied"],
)
def test_spark_gets_few_batches(rows: int, batches: int) -> None:
    group = [batch(number * rows, [b"%d" % number] * rows) for number in range(4)]
    made = list(Wanted(ALL).of(group))
    assert len(made) == batches
    assert all(each.schema == SCHEMA for each in made)
    assert pa.Table.from_batches(made)["offset"].to_pylist() == list(range(4 * rows))


def test_spark_gets_a_single_batch_unchanged() -> None:
    (made,) = Wanted(from_arrow_schema(pa.schema([SCHEMA.field("value")]))).of([batch(0, [b"a"])])
    assert made.to_pylist() == [{"value": b"a"}]


def test_row_groups_have_no_small_remainder(tmp_path: Path) -> None:
    """No row group is made of the surplus of another one.

    Previously 262,144 rows and the surplus of the last batch became two row groups, the second with
    some thousand rows.
    """
    (tmp_path / "work").mkdir()
    work = RangeWork(tmp_path, 1, PLANNED, folder=tmp_path / "work")
    writer = PieceWriter(work, PLANNED, 0, Shape(row_group_rows=1_000), {})
    rows = sum(writer.add(batch(first, [b"x"] * 300)) for first in range(0, 3_000, 300))
    piece, more = writer.finish(3_000)
    assert rows + more == 3_000
    footer = pq.read_metadata(tmp_path / piece.files[0].name)
    assert [footer.row_group(number).num_rows for number in range(footer.num_row_groups)] == [
        900,
        900,
        900,
        300,
    ]
