"""A topic to read that does not exist: the error suggests similar names of the cluster."""

from __future__ import annotations

import pytest
from trikafka_spark.range_planning import find_partitions
from trikafka_spark.read_options import read_options

import trikafka
from trikafka import TrikafkaError
from trikafka.testing import ScriptedCluster


async def test_missing_topic_suggests_those_of_the_cluster(autojump_clock: object) -> None:
    options = read_options({"kafka.bootstrap.servers": "b:1", "subscribe": "ordrs"})
    async with (
        ScriptedCluster(topics={"orders": 1}) as cluster,
        trikafka.open_consumer(
            bootstrap_servers=cluster.bootstrap_servers, dial=cluster.dial
        ) as consumer,
    ):
        with pytest.raises(
            TrikafkaError, match=r"^topic 'ordrs' does not exist; did you mean 'orders'\?$"
        ):
            await find_partitions(consumer, options)
