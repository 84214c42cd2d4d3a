"""Options of an export into a table, and its plan's part in writes and in the table's log. Pure."""

from __future__ import annotations

from typing import Any

import pytest
from trikafka_export.plugin import trikafka_sink
from trikafka_export.sink_options import sink_options
from trikafka_spark.tables.commits import Commit
from trikafka_spark.tables.gaps import cut
from trikafka_spark.tables.options import TableOptions, table_options

from trikafka import ConfigurationError, ExportError, OffsetRange, TopicPartition
from trikafka.interfaces import ExportPlan, LostRange, PlannedRange

A, B = (PlannedRange("t", n, 0, 100, f"t-{n}.parquet") for n in range(2))
GAP = LostRange("t", 0, 0, 10, "deleted")
PLAN = ExportPlan(
    7,
    "id",
    "now",
    None,
    {},
    "read_committed",
    (A, B),
    {TopicPartition("t", n): 100 for n in range(2)},
    {"app_id": "trikafka-1"},
)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"format": "csv"}, "a CSV file cannot hold binary keys"),
        ({"format": "kafka"}, "it would write to Kafka"),
        ({"format": "orc; drop"}, "format must be the name of a table format"),
        (
            {"format": "orc", "value_format": "json"},
            "value_format is an option of exports to Parquet, not of format=orc",
        ),
        ({"format": "orc", "spark_above": 5}, "spark_above is an option of exports to Parquet"),
        ({"format": "orc", "partition_by": "hour"}, "partition_by must name some of date, topic"),
        ({"format": "orc", "write.path": 5}, "write.path is what an export decides itself"),
        (
            {"format": "orc", "mergeSchema": "true"},
            "options of the format's writer begin with 'write.'",
        ),
        ({"format": "orc", "mastre": "local"}, "did you mean 'master'"),
    ],
)
def test_impossible_options_are_refused_by_name(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        table_options(given)


def test_writers_and_sparks_options_are_passed_on() -> None:
    given = {"format": "Orc", "write.mergeSchema": True, "spark.x": 1, "partition_by": "date,topic"}
    wanted = TableOptions(
        "orc", partition_by=("topic", "date"), write={"mergeSchema": "True"}, conf={"spark.x": "1"}
    )
    assert table_options(given) == wanted
    assert sink_options({"format": "parquet"}) == sink_options({})


def test_table_in_a_store_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="format=orc is for folders of a file system"):
        trikafka_sink("s3", {"destination": "s3://bucket/prefix", "format": "orc"}, ())


@pytest.mark.parametrize(
    "name", ["orc", "json", "avro", "hudi", "lance", "paimon", "org.example.Orcs"]
)
def test_formats_of_packages_are_accepted(name: str) -> None:
    assert table_options({"format": name}).format == name


def test_note_of_a_commit_has_its_results() -> None:
    commit = Commit.of(PLAN, {A: (GAP,)})
    again = Commit.from_json(commit.to_json())
    assert again == commit
    assert again is not None
    one, other = again.results((A, B), {A: 90})
    assert (one.reached, one.rows, one.lost, one.files[0].name) == (100, 90, (GAP,), "t-0")
    assert (other.reached, other.files) == (0, ())
    nothing = Commit.from_json(Commit.empty(PLAN).to_json())
    assert nothing is not None
    assert [result.reached for result in nothing.results((A, B), {})] == [0, 0]


@pytest.mark.parametrize("text", [None, "", "x", "[]", '{"other": 1}', '{"trikafka": 5}'])
def test_foreign_notes_are_ignored(text: str | None) -> None:
    assert Commit.from_json(text) is None


def test_damaged_note_is_an_error() -> None:
    with pytest.raises(ExportError, match="noted of what it wrote is damaged"):
        Commit.from_json('{"trikafka": {"app_id": "a"}}')


@pytest.mark.parametrize(
    ("beginning", "end", "there", "lost"),
    [
        (0, 200, (0, 100), []),
        (10, 100, (10, 100), [(0, 10)]),
        (0, 60, (0, 60), [(60, 100)]),
        (40, 60, (40, 60), [(0, 40), (60, 100)]),
        (100, 200, None, [(0, 100)]),
        (0, 0, None, [(0, 100)]),
    ],
)
def test_range_is_cut_to_the_log(
    beginning: int, end: int, there: tuple[int, int] | None, lost: list[tuple[int, int]]
) -> None:
    found, gaps = cut(A, beginning, end)
    assert found == (None if there is None else OffsetRange("t", 0, *there))
    assert [(gap.start, gap.end) for gap in gaps] == lost
