"""Topics with known records in a real Kafka, an S3 server and a small HDFS."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from hdfs_server import HdfsServer, hdfs_server
from known_topics import make_topic
from s3_server import S3Server, s3_server

MakeTopic = Callable[..., Awaitable[str]]


@pytest.fixture(scope="session")
def s3() -> Iterator[S3Server]:
    """An S3 server for all tests of the process: each has buckets of its own."""
    with s3_server() as server:
        yield server


@pytest.fixture(scope="session")
def hdfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HdfsServer]:
    """A small HDFS for all tests of the process."""
    with hdfs_server(tmp_path_factory.mktemp("hdfs")) as server:
        yield server


@pytest.fixture
def new_topic(kafka_broker: Any) -> MakeTopic:
    """``await new_topic(records, partitions=4)``: a new topic with so many records; returns its
    name.
    """

    async def make(records: int, partitions: int = 4) -> str:
        # The other processes of the run have topics at the same broker.
        name = f"topic-exported-{uuid.uuid4().hex[:8]}"
        return await make_topic(kafka_broker.bootstrap_servers, name, records, partitions)

    return make
