"""Tables of resumed exports, read by an engine that did not write them: Polars.

``test_lake_rest_live.py`` reads Iceberg's tables with Java, ``test_lake_spark_live.py`` reads
Delta's with Spark.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from known_topics import add_records, value_of
from lakes import DeltaLake, Lake, make_lake
from test_lake_live import Stop, stop_at

import trikafka

RECORDS = 400


@pytest.fixture(params=["delta", "iceberg"])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    made = make_lake(request.param, tmp_path / "lake")
    if made.format == "delta":
        # Polars does not find a name with a blank.
        made = DeltaLake(f"{tmp_path}/table", made.options, tmp_path / "table")
    made.options["partition_by"] = "date,topic"
    return made


def scan(lake: Lake) -> pl.LazyFrame:
    if lake.format == "delta":
        return pl.scan_delta(lake.destination)
    table: Any = lake.table  # type: ignore[attr-defined]
    return pl.scan_iceberg(table, reader_override="native")


async def test_polars_reads_what_was_exported(
    kafka_broker: Any, new_topic: Any, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The planner alone; Polars' own reader needs one more package.
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")
    servers, topic = kafka_broker.bootstrap_servers, await new_topic(RECORDS)
    where = {"bootstrap_servers": servers, "sink_options": lake.options}
    with pytest.raises(Stop):
        await trikafka.export(topic, lake.destination, on_progress=stop_at("written"), **where)
    await add_records(servers, topic, RECORDS, 40, 4)
    result = await trikafka.export(topic, lake.destination, **where)
    assert (result.resumed, result.rows) == (True, RECORDS + 40)

    frame = scan(lake)
    columns = frame.collect_schema()
    assert (columns["partition"], columns["offset"], columns["value"]) == (
        pl.Int32,
        pl.Int64,
        pl.Binary,
    )
    assert columns["timestamp"] == pl.Datetime("us", "UTC")
    numbers = range(RECORDS + 40)
    found = frame.select("topic", "partition", "offset", "value").collect()
    assert sorted(found.rows()) == sorted(
        (topic, number % 4, number // 4, value_of(number)) for number in numbers
    )
    some = frame.filter(
        (pl.col("partition") == 2) & (pl.col("offset") >= 50) & (pl.col("topic") == topic)
    )
    assert sorted(some.collect()["offset"].to_list()) == [*range(50, (RECORDS + 40) // 4)]
    day = frame.filter(
        pl.col("timestamp").is_between(
            datetime(2023, 11, 14, tzinfo=UTC), datetime(2023, 11, 15, tzinfo=UTC)
        )
    )
    sums = (
        day.group_by("partition")
        .agg(pl.len().alias("rows"), pl.col("offset").sum())
        .sort("partition")
        .collect()
    )
    of_each = (RECORDS + 40) // 4
    assert sums.rows() == [
        (partition, of_each, of_each * (of_each - 1) // 2) for partition in range(4)
    ]
