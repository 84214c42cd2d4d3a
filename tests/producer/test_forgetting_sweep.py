"""A deleted topic is forgotten while a record for it comes, and while the topic returns.

Each of the three happens before, with, and after each other. Tasks that wake together run in an
order that is random.
"""

from __future__ import annotations

from typing import Any

import pytest
import trio
from producing import opened
from trio.testing import MockClock as Clock

from trikafka import Producer, TrikafkaError
from trikafka._managers.producer import produce
from trikafka._state.producer import unknown_topics
from trikafka.testing import ScriptedCluster

#: Seconds, instead of five minutes.
_FORGOTTEN_AFTER = 3.0
#: Moments by the number of metadata updates and of steps after the one that forgets the topic.
_MOMENTS = [(-1, 0), (0, 0), (0, 2), (1, 0)]


@pytest.fixture(autouse=True)
def soon_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(produce, "_FORGOTTEN_AFTER", _FORGOTTEN_AFTER)
    monkeypatch.setattr(unknown_topics, "_UNUSED_AFTER", _FORGOTTEN_AFTER)


class Scene:
    """A producer whose topic ``d`` was deleted, and is about to be forgotten."""

    def __init__(self, cluster: ScriptedCluster, producer: Producer) -> None:
        self.cluster = cluster
        self.producer = producer
        self.manager: Any = producer._manager
        self.delivered: list[bytes] = []
        self._update = trio.current_time()

    async def delete(self) -> None:
        self.cluster.delete_topic("d")
        metadata = self.manager._metadata
        metadata.request_update()
        await metadata.changed(metadata.snapshot)
        self._update = trio.current_time()

    async def until(self, moment: tuple[int, int]) -> None:
        """Wait for the update that forgets the topic, or one of those beside it, and some steps."""
        updates, steps = moment
        metadata = self.manager._metadata
        seen = metadata.snapshot
        due = self._update + _FORGOTTEN_AFTER + updates
        while trio.current_time() < due:
            seen = await metadata.changed(seen)
        for _ in range(steps):
            await trio.lowlevel.checkpoint()

    async def returns(self, moment: tuple[int, int]) -> None:
        await self.until(moment)
        self.cluster.create_topic("d", 1)

    async def sends(self, moment: tuple[int, int]) -> None:
        """Send a record, and wait for the topic as long as it may come."""
        await self.until(moment)
        try:
            await self.producer.send("d", b"sent")
        except TrikafkaError:
            return
        self.delivered.append(b"sent")

    async def tries(self, moment: tuple[int, int]) -> None:
        """Send a record without waiting, if that is possible."""
        await self.until(moment)
        try:
            ack = self.producer.send_nowait("d", b"tried")
        except (trio.WouldBlock, TrikafkaError):
            return
        await ack.wait()
        self.delivered.append(b"tried")

    def asked(self, since: int) -> set[str]:
        """Return the topics of the Metadata requests, from the one with this number on."""
        seen = self.cluster.requests("Metadata")[since:]
        return {topic.name for each in seen for topic in each.request.topics}


@pytest.mark.parametrize("returns", [*_MOMENTS, None])
@pytest.mark.parametrize("comes", _MOMENTS)
@pytest.mark.parametrize("way", [Scene.sends, Scene.tries])
async def test_record_meets_a_forgotten_topic(
    way: Any, comes: tuple[int, int], returns: tuple[int, int] | None, autojump_clock: Clock
) -> None:
    async with (
        ScriptedCluster(topics={"t": 1, "d": 1}) as cluster,
        opened(cluster, delivery_timeout_ms=4_000, request_timeout_ms=2_000) as producer,
    ):
        scene = Scene(cluster, producer)
        await producer.send("t", b"x")
        await producer.send("d", b"first")
        await scene.delete()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(way, scene, comes)
            if returns is not None:
                nursery.start_soon(scene.returns, returns)
        if returns is not None:
            await trio.sleep(2)
            await producer.send_nowait("d", b"last").wait()
            found = [record.value for record in cluster.records("d", 0)]
            assert sorted(map(str, found)) == sorted(map(str, [*scene.delivered, b"last"]))
            assert scene.delivered or way is Scene.tries
        else:
            assert not scene.delivered
        await trio.sleep(3 * _FORGOTTEN_AFTER)
        since = len(cluster.requests("Metadata"))
        scene.manager._metadata.request_update()
        await trio.sleep(1)
        assert scene.asked(since) == ({"t"} if returns is None else {"t", "d"})
