"""The ids of topics, as the cluster has them at the moment of asking."""

from __future__ import annotations

from consuming import cluster_of, consumer_of
from trio.testing import MockClock


async def test_a_topic_made_anew_has_another_id_and_one_that_is_gone_has_none(autojump_clock: MockClock) -> None:
    async with cluster_of(1) as cluster, consumer_of(cluster) as consumer:
        first = await consumer.topic_ids(["t", "t"])
        assert list(first) == ["t"]
        assert first["t"] is not None
        assert await consumer.topic_ids(["t"]) == first
        cluster.delete_topic("t")
        assert await consumer.topic_ids(["t"]) == {}
        cluster.create_topic("t", 1)
        second = await consumer.topic_ids(["t", "nowhere"])
        assert list(second) == ["t"]
        assert second["t"] not in (None, first["t"])
