"""One Spark for all tests of the process, started as the sink starts it; topics with known records in a real Kafka."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from spark_kafka import connector_jars, make_topic
from trikafka_spark import session

_numbers = itertools.count()
MakeTopic = Callable[..., Awaitable[str]]


@pytest.fixture(scope="session")
def spark_context() -> Iterator[Any]:
    """A Spark context on ``local[2]``, made in a thread: in the main thread it would take SIGINT from Trio."""
    started: list[Any] = []

    def start() -> None:
        jars = connector_jars()
        started.append(session.acquire("local[2]", "tests", {"spark.jars": ",".join(jars)} if jars else {}))

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
def sparks_connector() -> None:
    """Skips the test where the jars of Spark's own Kafka connector are not to be had."""
    if not connector_jars():
        pytest.skip("Spark's Kafka connector could not be downloaded")


@pytest.fixture
def new_topic(kafka_broker: Any) -> MakeTopic:
    """``await new_topic(records, partitions=4)``: a new topic with so many records; returns its name."""

    async def make(records: int, partitions: int = 4) -> str:
        return await make_topic(kafka_broker.bootstrap_servers, f"topic-{next(_numbers)}", records, partitions)

    return make
