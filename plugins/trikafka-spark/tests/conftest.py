"""One Spark for all tests of the process, started as the sink starts it; topics with known records in a real Kafka."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
import quick_spark
import spark_delta
from spark_kafka import make_topic
from trikafka_spark import session

from benchmarks import parquet

_numbers = itertools.count()
MakeTopic = Callable[..., Awaitable[str]]


@pytest.fixture(scope="session")
def connector_jars() -> list[str]:
    """The jars of Spark's own Kafka connector; none where they cannot be had: then the tests that need them fail."""
    try:
        return parquet.connector_jars(lambda line: None)
    except parquet.NotMeasured:
        return []


@pytest.fixture(scope="session")
def delta_jars() -> list[str]:
    """The jars of Delta Lake; none where they cannot be had: then the tests that need them fail."""
    return spark_delta.delta_jars()


@pytest.fixture(scope="session", autouse=True)
def _quick_spark() -> None:
    """All that is started from here on, and is a Spark, starts quickly."""
    quick_spark.prepare()


@pytest.fixture(scope="session")
def spark_context(connector_jars: list[str], delta_jars: list[str]) -> Iterator[Any]:
    """A Spark context on ``local[2]``, made in a thread: in the main thread it would take SIGINT from Trio.

    One for all: so it has Spark's own connector and Delta Lake as well.
    """
    started: list[Any] = []
    conf = spark_delta.conf(delta_jars) | {"spark.jars": ",".join([*connector_jars, *delta_jars])}

    def start() -> None:
        started.append(session.acquire("local[2]", "tests", conf))

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    yield started[0]
    session.release(started[0])


@pytest.fixture(scope="session")
def spark(spark_context: Any) -> Any:
    """The session over it."""
    from pyspark.sql import SparkSession

    return SparkSession(spark_context)


@pytest.fixture
def sparks_connector(connector_jars: list[str]) -> None:
    """Spark's own Kafka connector, for the tests that compare with it: without it they would say nothing."""
    assert connector_jars, "Spark's Kafka connector could not be downloaded"


@pytest.fixture
def new_topic(kafka_broker: Any) -> MakeTopic:
    """``await new_topic(records, partitions=4)``: a new topic with so many records; returns its name."""

    async def make(records: int, partitions: int = 4) -> str:
        return await make_topic(kafka_broker.bootstrap_servers, f"topic-{next(_numbers)}", records, partitions)

    return make
