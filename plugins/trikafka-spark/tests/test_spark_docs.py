"""The page of the data source names every option, ours and those of Spark's connector."""

from __future__ import annotations

from pathlib import Path

import pytest
from trikafka_spark.read_options import READ_OPTIONS
from trikafka_spark.write_options import WRITE_OPTIONS

PAGE = (Path(__file__).parents[3] / "docs" / "spark-options.md").read_text(encoding="utf-8")
#: The options of Spark's "Structured Streaming + Kafka Integration Guide" of 4.2 that are not for
#: reads.
SPARKS = (
    "topic",
    "spark.kafka.consumer.cache.",
    "spark.kafka.consumer.fetchedData.cache.",
    "spark.kafka.producer.cache.",
    "spark.kafka.clusters.",
    "spark.sql.streaming.kafka.useDeprecatedOffsetFetching",
    "avgOffsetsBehindLatest",
)


#: Spark's own options of any sink.
ANY = {"checkpointLocation", "queryName", "path"}


@pytest.mark.parametrize("name", sorted({*READ_OPTIONS, *WRITE_OPTIONS, *SPARKS} - ANY))
def test_option_is_on_the_page(name: str) -> None:
    assert f"`{name}" in PAGE
