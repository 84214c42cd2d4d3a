"""Conversations about fetch sessions, topic ids, epochs and named offsets."""

from __future__ import annotations

from typing import Any

from conversations import Peer, batch, part_of
from rawclient import RawClient, produce_fields

from trikafka.testing.offsets import (
    EARLIEST,
    EARLIEST_LOCAL,
    LATEST,
    LATEST_TIERED,
    OF_MAX_TIMESTAMP,
)


def wanting(topic: str | None, offsets: dict[int, int], **fields: Any) -> dict[str, Any]:
    """Return a topic of a fetch request: the partitions with their offsets."""
    parts = [
        {
            "partition": index,
            "fetch_offset": offset,
            "partition_max_bytes": 1_000_000,
            "current_leader_epoch": -1,
        }
        | fields
        for index, offset in offsets.items()
    ]
    return {"topic": topic, "partitions": parts}


class Fetcher:
    """A consumer with a session: it knows the session's id and epoch, and notes each response."""

    def __init__(self, peer: Peer, client: RawClient, version: int = 12) -> None:
        self.peer = peer
        self.client = client
        self.version = version
        self.session = 0
        self.epoch = 0
        self.ids: dict[Any, str] = {}

    async def ask(self, what: str, *topics: dict[str, Any], **fields: Any) -> Any:
        values = {
            "max_wait_ms": 0,
            "min_bytes": 1,
            "max_bytes": 50_000_000,
            "forgotten_topics_data": [],
        }
        values |= {"session_id": self.session, "session_epoch": self.epoch, "topics": list(topics)}
        answer = await self.client.call("Fetch", self.version, **(values | fields))
        opened = answer.session_id != 0, answer.session_id == self.session
        parts = [
            (
                part.partition_index,
                part.error_code,
                part.high_watermark,
                part.log_start_offset,
                len(part.records or b""),
            )
            for item in answer.responses
            for part in item.partitions
        ]
        named = [
            self.ids.get(item.topic_id, "") if self.version >= 13 else item.topic
            for item in answer.responses
        ]
        self.peer.note(what, answer.error_code, opened, named, parts)
        return answer

    async def open(self, *topics: dict[str, Any]) -> None:
        answer = await self.ask("opens", *topics, session_id=0, session_epoch=0)
        self.session = answer.session_id
        self.epoch = 1

    async def go_on(self, what: str, *topics: dict[str, Any], **fields: Any) -> None:
        await self.ask(what, *topics, **fields)
        self.epoch += 1


async def put(client: RawClient, topic: str, partition: int, *values: bytes) -> None:
    answer = await client.call("Produce", 12, **produce_fields(topic, partition, batch(*values)))
    assert part_of(answer).error_code == 0


async def fetch_sessions(peer: Peer) -> None:
    client = await peer.open()
    topic, other = await peer.topic(client, partitions=3), await peer.topic(client, "u")
    fetcher = Fetcher(peer, client)
    await put(client, topic, 0, b"a")
    await fetcher.open(wanting(topic, {0: 1, 1: 0, 2: 0}))
    await fetcher.go_on("nothing new", max_wait_ms=50)
    await put(client, topic, 1, b"b")
    await put(client, topic, 2, b"c")
    await fetcher.go_on("news of two")
    await fetcher.go_on("the same again, for it was not moved")
    await fetcher.go_on("moves one", wanting(topic, {1: 1}))
    await fetcher.go_on("moves the other", wanting(topic, {2: 1}), max_wait_ms=50)
    await fetcher.go_on("adds", wanting(other, {0: 0}), wanting(topic, {9: 0}))
    await fetcher.go_on("an error stays")
    await put(client, topic, 0, b"d")
    await fetcher.go_on(
        "forgets", forgotten_topics_data=[{"topic": topic, "partitions": [0, 9]}], max_wait_ms=50
    )
    await fetcher.go_on("too far", wanting(topic, {1: 7}))
    await fetcher.go_on("comes back", wanting(topic, {1: 1}), max_wait_ms=50)
    await fetcher.ask("old epoch", session_epoch=3)
    await fetcher.ask("another session", session_id=fetcher.session + 12345)
    by_id = Fetcher(peer, client, 13)
    by_id.session = fetcher.session
    by_id.epoch = fetcher.epoch
    await by_id.ask("by id in a session of names")
    await fetcher.go_on("still there", max_wait_ms=50)
    everything = [{"topic": topic, "partitions": [1, 2]}, {"topic": other, "partitions": [0]}]
    await fetcher.go_on("forgets all", forgotten_topics_data=everything)
    await fetcher.ask("and it is gone")
    await fetcher.open(wanting(topic, {0: 0}))
    await fetcher.ask("closes", session_epoch=-1)
    await fetcher.ask("closed")
    await fetcher.open()
    await fetcher.ask("empty")


async def recreated_topics(peer: Peer) -> None:
    client = await peer.open()
    topic = await peer.topic(client)

    async def topic_id() -> Any:
        return (await client.call("Metadata", 12, topics=[{"name": topic}])).topics[0].topic_id

    old = await topic_id()
    fetcher = Fetcher(peer, client, 16)
    fetcher.ids[old] = "old"
    await put(client, topic, 0, b"a")
    await fetcher.open(wanting(None, {0: 0}) | {"topic_id": old})
    await client.call("DeleteTopics", 6, topics=[{"name": topic}], timeout_ms=10_000)
    while (
        not (
            await client.call(
                "Metadata", 12, topics=[{"name": topic}], allow_auto_topic_creation=False
            )
        )
        .topics[0]
        .error_code
    ):
        pass
    await fetcher.go_on("deleted")
    await fetcher.ask(
        "deleted, no session",
        wanting(None, {0: 0}) | {"topic_id": old},
        session_id=0,
        session_epoch=-1,
    )
    await peer.topic(client)
    fetcher.ids[new := await topic_id()] = "new"
    peer.note("another id", old != new)
    while part_of(
        await client.call("Produce", 12, **produce_fields(topic, 0, batch(b"b")))
    ).error_code:
        pass  # a real cluster takes a moment
    await fetcher.go_on("the old one")
    await fetcher.go_on("the new one", wanting(None, {0: 0}) | {"topic_id": new})
    await fetcher.go_on(
        "forgets the old one",
        forgotten_topics_data=[{"topic_id": old, "partitions": [0]}],
        max_wait_ms=50,
    )


async def diverging_logs(peer: Peer) -> None:
    client = await peer.open()
    topic = await peer.topic(client)
    await put(client, topic, 0, b"a", b"b")

    async def fetch(what: str, offset: int, epoch: int, version: int = 12) -> None:
        values = {
            "max_wait_ms": 0,
            "min_bytes": 1,
            "max_bytes": 50_000_000,
            "session_id": 0,
            "session_epoch": -1,
        }
        answer = await client.call(
            "Fetch",
            version,
            **values,
            topics=[wanting(topic, {0: offset}, last_fetched_epoch=epoch)],
        )
        part = part_of(answer)
        found = part.diverging_epoch and (
            part.diverging_epoch.epoch,
            part.diverging_epoch.end_offset,
        )
        places = part.high_watermark, part.last_stable_offset, part.log_start_offset
        peer.note(
            what,
            part.error_code,
            places,
            found,
            len(part.records or b""),
            part.preferred_read_replica,
        )

    await fetch("right", 1, 0)
    await fetch("at the end", 2, 0)
    await fetch("beyond the end", 3, 0)
    await fetch("of an epoch to come", 1, 4)
    await fetch("before the start", -1, 0)
    await fetch("in an old version", 3, 0, 11)


async def named_offsets(peer: Peer) -> None:
    client = await peer.open()
    topic = await peer.topic(client)

    async def ask(version: int, timestamp: int) -> None:
        item = {"name": topic, "partitions": [{"partition_index": 0, "timestamp": timestamp}]}
        found = part_of(
            await client.call(
                "ListOffsets", version, replica_id=-1, isolation_level=0, topics=[item]
            )
        )
        peer.note(
            f"time {timestamp}",
            version,
            found.error_code,
            found.offset,
            found.timestamp,
            found.leader_epoch,
        )

    for _ in range(2):
        for version in (4, 6, 7, 8, 9, 10, 11):
            for timestamp in (
                LATEST,
                EARLIEST,
                OF_MAX_TIMESTAMP,
                EARLIEST_LOCAL,
                LATEST_TIERED,
                -6,
                -7,
            ):
                await ask(version, timestamp)
        await put(client, topic, 0, b"a", b"b")


FETCH_CONVERSATIONS = [fetch_sessions, recreated_topics, diverging_logs, named_offsets]
