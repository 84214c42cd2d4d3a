"""Fixtures: one Spark for all tests of the process, and topics with known records in a real Kafka.

Spark is started as the sink starts it.
"""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pyspark
import pytest
import quick_spark
import spark_delta
from hdfs_server import HdfsServer, hdfs_server
from known_topics import make_topic
from s3_server import S3Server, s3_server
from trikafka_spark import shared_context

from benchmarks import parquet

MakeTopic = Callable[..., Awaitable[str]]


def _before_4_2() -> bool:
    """Return whether this Spark cannot load the jars of the tests.

    They are built for 4.2 (``make test-spark``).
    """
    return tuple(map(int, pyspark.__version__.split(".")[:2])) < (4, 2)


@pytest.fixture(scope="session")
def connector_jars() -> list[str]:
    """Return the jars of Spark's own Kafka connector.

    The list is empty if they cannot be downloaded; the tests that need them fail then.
    """
    if _before_4_2():
        return []
    try:
        return parquet.connector_jars(lambda line: None)
    except parquet.NotMeasured:
        return []


@pytest.fixture(scope="session")
def delta_jars() -> list[str]:
    """Return the jars of Delta Lake.

    The list is empty if they cannot be downloaded; the tests that need them fail then.
    """
    if _before_4_2():
        return []
    return spark_delta.delta_jars()


@pytest.fixture(scope="session", autouse=True)
def _quick_spark() -> None:
    """Make every Spark that is started from here on start quickly."""
    quick_spark.prepare()


@pytest.fixture(scope="session")
def spark_context(connector_jars: list[str], delta_jars: list[str]) -> Iterator[Any]:
    """Return a Spark context on ``local[2]``, with Spark's own connector and Delta Lake.

    It is shared by all tests. It is made in a thread: in the main thread it would take SIGINT from
    Trio.
    """
    started: list[Any] = []
    conf = (
        spark_delta.conf(delta_jars)
        | quick_spark.WORKERS
        | {"spark.jars": ",".join([*connector_jars, *delta_jars])}
    )

    def start() -> None:
        started.append(shared_context.acquire("local[2]", "tests", conf))

    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
        thread = threading.Thread(target=start)
        thread.start()
        thread.join()
    yield started[0]
    shared_context.release(started[0])


@pytest.fixture(scope="session")
def spark(spark_context: Any) -> Any:
    """Return the session of the shared context."""
    from pyspark.sql import SparkSession

    return SparkSession(spark_context)


@pytest.fixture(scope="session")
def s3() -> Iterator[S3Server]:
    """Run an S3 server, shared by all tests: each has buckets of its own."""
    with s3_server() as server:
        yield server


@pytest.fixture(scope="session")
def hdfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HdfsServer]:
    """Run a small HDFS, shared by all tests."""
    with hdfs_server(tmp_path_factory.mktemp("hdfs")) as server:
        yield server


@pytest.fixture
def sparks_connector(connector_jars: list[str]) -> None:
    """Require Spark's own Kafka connector: without it a comparison with it would prove nothing."""
    assert connector_jars, "Spark's Kafka connector could not be downloaded"


@pytest.fixture
def new_topic(kafka_broker: Any) -> MakeTopic:
    """Make topics: ``await new_topic(records, partitions=4)`` returns a new topic's name."""

    async def make(records: int, partitions: int = 4) -> str:
        # The other processes of the run have topics at the same broker.
        name = f"topic-{uuid.uuid4().hex[:8]}"
        return await make_topic(kafka_broker.bootstrap_servers, name, records, partitions)

    return make
