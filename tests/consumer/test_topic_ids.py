"""Topic ids as the cluster has them at the time of the call."""

from __future__ import annotations

from consuming import cluster_of, consumer_of
from trio.testing import MockClock


async def test_recreated_topic_has_another_id(
    autojump_clock: MockClock,
) -> None:
    """A deleted one has none."""
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
