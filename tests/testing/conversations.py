"""Conversations with a real Kafka and with the scripted one, whose notes must be equal.

Each is ``async def (peer) -> None`` and calls ``peer.note(what, value)``. Names that differ from
run to run (member ids) are noted by :meth:`Peer.alias`.
"""

from __future__ import annotations

import struct
from collections.abc import Awaitable, Callable
from typing import Any

import trio
from rawclient import RawClient, fetch_fields, produce_fields

from trikafka._checksum import crc32c
from trikafka.testing import encode_batch
from trikafka.testing.messages import REQUESTS, api_key, build

#: UNKNOWN_TOPIC_OR_PARTITION, LEADER_NOT_AVAILABLE, NOT_LEADER_OR_FOLLOWER
NOT_SERVED = (3, 5, 6)


class Peer:
    """One of the two sides: how to connect to it, and its notes."""

    def __init__(self, dial: Callable[[], Awaitable[trio.abc.Stream]], prefix: str) -> None:
        self._dial = dial
        self._prefix = prefix
        self._aliases: dict[str, str] = {"": ""}
        self._streams: list[trio.abc.Stream] = []
        self.notes: list[tuple[str, Any]] = []

    async def open(self, client_id: str = "raw") -> RawClient:
        self._streams.append(await self._dial())
        return RawClient(self._streams[-1], client_id)

    async def hold(self, conversation: Callable[[Peer], Awaitable[None]]) -> None:
        """Hold a conversation and close the connections."""
        try:
            with trio.fail_after(240):
                await conversation(self)
        finally:
            for stream in self._streams:
                await trio.aclose_forcefully(stream)

    def name(self, what: str) -> str:
        """Return the name of a topic or group of this conversation."""
        return f"{self._prefix}-{what}"

    def note(self, what: str, *value: Any) -> None:
        self.notes.append((what, value[0] if len(value) == 1 else value))

    def alias(self, member_id: str) -> str:
        return self._aliases.setdefault(member_id, f"member {len(self._aliases)}")

    async def settle(self, group: str) -> RawClient:
        """Wait until a real cluster has a coordinator for the group.

        The cluster makes its own topics at the first request.
        """
        client = await self.open()
        while True:
            found = await client.call("FindCoordinator", 3, key=group, key_type=0)
            fields = {
                "group_id": group,
                "generation_id": 1,
                "member_id": "m",
                "group_instance_id": None,
            }
            if not found.error_code and (
                await client.call("Heartbeat", 4, **fields)
            ).error_code not in (14, 15, 16):
                return client
            await trio.sleep(0.1)

    async def topic(
        self, client: RawClient, name: str = "t", partitions: int = 1, **config: str
    ) -> str:
        topic = self.name(name)
        configs = [{"name": key.replace("_", "."), "value": value} for key, value in config.items()]
        item = {
            "name": topic,
            "num_partitions": partitions,
            "replication_factor": 1,
            "assignments": [],
            "configs": configs,
        }
        answer = await client.call(
            "CreateTopics", 7, topics=[item], timeout_ms=10_000, validate_only=False
        )
        assert answer.topics[0].error_code == 0
        while True:  # a real cluster takes a moment
            found = (
                await client.call(
                    "Metadata", 12, topics=[{"name": topic}], allow_auto_topic_creation=False
                )
            ).topics[0]
            if not found.error_code and all(not part.error_code for part in found.partitions):
                break
            await trio.sleep(0.05)
        # A broker's metadata names it as the leader before it serves the partition.
        parts = [{"partition_index": number, "timestamp": -1} for number in range(partitions)]
        item = {"name": topic, "partitions": parts}
        while True:
            answer = await client.call(
                "ListOffsets", 4, replica_id=-1, isolation_level=0, topics=[item]
            )
            if all(part.error_code not in NOT_SERVED for part in answer.topics[0].partitions):
                return topic
            await trio.sleep(0.05)


def part_of(answer: Any) -> Any:
    topic = (answer.responses if hasattr(answer, "responses") else answer.topics)[0]
    return (
        topic.partition_responses if hasattr(topic, "partition_responses") else topic.partitions
    )[0]


def batch(*values: bytes, producer: tuple[int, int, int] = (-1, -1, -1), **keywords: Any) -> bytes:
    return encode_batch(values, timestamp=1_700_000_000_000, producer=producer, **keywords)


def unreadable() -> bytes:
    """Return a batch whose header and CRC are right and whose records are not."""
    good = batch(b"abc")
    bad = good[:61] + b"\x02" + good[62:]
    return bad[:17] + struct.pack(">I", crc32c(bad[21:])) + bad[21:]


async def versions(peer: Peer) -> None:
    client = await peer.open()
    await client.stream.send_all(struct.pack(">ihhihxx", 12, 18, 99, 7, -1))
    frame = await client.frame()
    peer.note(
        "too new",
        struct.unpack_from(">ihi", frame),
        struct.unpack_from(">h", frame, 10),
        len(frame),
    )
    offered = await client.call(
        "ApiVersions", 3, client_software_name="raw", client_software_version="1"
    )
    peer.note("asked again on the same connection", offered.error_code)


async def expected_brokers(peer: Peer) -> None:
    """A client states which broker of which cluster it expects (KIP-1242)."""
    client = await peer.open()
    known = await client.call("Metadata", 12, topics=[], allow_auto_topic_creation=False)
    right = {"cluster_id": known.cluster_id, "node_id": known.brokers[0].node_id}
    for what, other in (
        ("right", {}),
        ("another cluster", {"cluster_id": "another"}),
        ("another node", {"node_id": 7}),
        ("no cluster", {"cluster_id": None}),
        ("no node", {"node_id": -1}),
        ("none", {"cluster_id": None, "node_id": -1}),
        ("right again", {}),
    ):
        fields = {"client_software_name": "raw", "client_software_version": "1", **right, **other}
        try:
            await client.send(build(REQUESTS[api_key("ApiVersions")], 5, fields))
            code: object = struct.unpack_from(">h", await client.frame(), 4)[0]
        except EOFError:
            code = "closed"
            client = await peer.open()
        peer.note(what, code)


async def metadata(peer: Peer) -> None:
    client = await peer.open()
    topic = await peer.topic(client, partitions=2)
    for version in (1, 5, 7, 9, 12):
        answer = await client.call(
            "Metadata", version, topics=[{"name": topic}], allow_auto_topic_creation=False
        )
        (node,) = answer.brokers
        for item in answer.topics:
            peer.note(
                "topic",
                version,
                item.error_code,
                item.is_internal,
                answer.controller_id == node.node_id,
            )
            for part in sorted(item.partitions, key=lambda each: each.partition_index):
                own = (
                    part.leader_id == node.node_id,
                    part.replica_nodes == [node.node_id],
                    part.isr_nodes == [node.node_id],
                )
                peer.note(
                    "partition",
                    part.error_code,
                    part.partition_index,
                    part.leader_epoch,
                    part.offline_replicas,
                    own,
                )
    asked = [{"name": peer.name("none")}, {"name": "a/b"}, {"name": "x" * 250}]
    answer = await client.call("Metadata", 12, topics=asked, allow_auto_topic_creation=False)
    peer.note(
        "refused",
        sorted(
            (item.name[:3] == "a/b", len(item.name) > 200, item.error_code)
            for item in answer.topics
        ),
    )
    import uuid

    answer = await client.call(
        "Metadata", 12, topics=[{"name": None, "topic_id": uuid.UUID(int=9)}]
    )
    peer.note("unknown id", [(item.name, item.error_code) for item in answer.topics])
    answer = await client.call("Metadata", 12, topics=[])
    peer.note("none asked for", answer.topics, len(answer.brokers))


async def making_topics(peer: Peer) -> None:
    client = await peer.open()
    topic = await peer.topic(client, retention_ms="1000")

    def item(name: str, partitions: int = 1, replication: int = 1) -> dict[str, Any]:
        return {
            "name": name,
            "num_partitions": partitions,
            "replication_factor": replication,
            "assignments": [],
            "configs": [],
        }

    asked = [
        item(topic),
        item("a/b"),
        item(peer.name("zero"), 0),
        item(peer.name("wide"), 1, 3),
        item(".."),
    ]
    for version in (2, 5, 7):
        answer = await client.call(
            "CreateTopics", version, topics=asked, timeout_ms=10_000, validate_only=False
        )
        peer.note(
            "refused", [(each.error_code, each.error_message is not None) for each in answer.topics]
        )
    answer = await client.call(
        "CreateTopics", 7, topics=[item(peer.name("dry"), 3)], timeout_ms=10_000, validate_only=True
    )
    peer.note(
        "only checked",
        [(each.error_code, each.num_partitions, each.replication_factor) for each in answer.topics],
    )
    answer = await client.call(
        "CreateTopics",
        7,
        topics=[item(peer.name("default"), -1, -1)],
        timeout_ms=10_000,
        validate_only=False,
    )
    peer.note(
        "defaults",
        [(each.error_code, each.num_partitions, each.replication_factor) for each in answer.topics],
    )
    for count in (1, 3):
        asked = [{"name": topic, "count": count, "assignments": None}]
        answer = await client.call(
            "CreatePartitions", 3, topics=asked, timeout_ms=10_000, validate_only=False
        )
        peer.note("more partitions", [each.error_code for each in answer.results])
    both = {
        "topics": [{"name": topic}, {"name": peer.name("none")}],
        "topic_names": [topic, peer.name("none")],
    }
    for version in (6, 5):
        answer = await client.call("DeleteTopics", version, **both, timeout_ms=10_000)
        peer.note("deleted", version, sorted(each.error_code for each in answer.responses))


async def producing(peer: Peer) -> None:
    client = await peer.open()
    topic = await peer.topic(client, max_message_bytes="2000")

    async def send(
        what: str,
        data: bytes | None,
        version: int = 12,
        where: str = topic,
        partition: int = 0,
        **fields: Any,
    ) -> None:
        found = part_of(
            await client.call(
                "Produce", version, **produce_fields(where, partition, data or b"", **fields)
            )
        )
        start = found.log_start_offset if version >= 5 and not found.error_code else 0
        peer.note(
            what, version, found.error_code, found.base_offset, found.log_append_time_ms, start
        )

    for version in (3, 5, 8, 9, 12):
        await send("plain", batch(b"a", b"b"), version)
    spoiled = bytearray(batch(b"abc"))
    spoiled[-2] ^= 1
    await send("wrong crc", bytes(spoiled))
    await send("cut", batch(b"abc")[:-1])
    await send("short", b"short")
    await send("none", b"")
    await send("two", batch(b"a") + batch(b"b"))
    await send("records that are none", unreadable())
    await send("too large", batch(b"x" * 3000))
    await send("no topic", batch(b"a"), where=peer.name("none"))
    await send("no partition", batch(b"a"), partition=7)
    await send("acks 3", batch(b"a"), acks=3)
    for codec in ("gzip", "snappy", "lz4", "zstd"):
        await send(codec, batch(b"a" * 100, compression=codec))
    stamped = await peer.topic(client, "stamped", message_timestamp_type="LogAppendTime")
    found = part_of(await client.call("Produce", 12, **produce_fields(stamped, 0, batch(b"a"))))
    fetched = part_of(
        await client.call("Fetch", 12, **fetch_fields(stamped, 0, 0, max_wait_ms=1000))
    )
    attributes, _, _, latest = struct.unpack_from(">hiqq", fetched.records, 21)
    peer.note("stamped", found.error_code, attributes, latest == found.log_append_time_ms)


async def sequences(peer: Peer) -> None:
    client = await peer.open()
    topic = await peer.topic(client)
    given = await client.call(
        "InitProducerId", 4, transactional_id=None, transaction_timeout_ms=1000
    )
    while given.error_code == 14:  # a real cluster takes a moment
        await trio.sleep(0.1)
        given = await client.call(
            "InitProducerId", 4, transactional_id=None, transaction_timeout_ms=1000
        )
    peer.note("given", given.error_code, given.producer_epoch, given.producer_id >= 0)

    async def send(
        sequence: int, count: int = 2, epoch: int = 0, producer: int | None = None
    ) -> None:
        number = given.producer_id if producer is None else producer
        data = batch(*[b"x"] * count, producer=(number, epoch, sequence))
        found = part_of(await client.call("Produce", 12, **produce_fields(topic, 0, data)))
        peer.note(
            f"sequence {sequence} x {count} in epoch {epoch}", found.error_code, found.base_offset
        )

    for sequence in (0, 2, 2, 0, 6, 4, 6, 8, 10, 12):
        await send(sequence)
    await send(12, count=1)
    await send(0)
    await send(2)
    await send(4)
    await send(0, epoch=1, count=3)
    await send(14)
    await send(7, epoch=2)
    await send(9, producer=given.producer_id + 500)


async def fetching(peer: Peer) -> None:
    client = await peer.open()
    topic = await peer.topic(client)
    for data in (batch(b"a" * 100, b"b"), batch(b"c" * 100), batch(b"d" * 100)):
        await client.call("Produce", 12, **produce_fields(topic, 0, data))

    async def fetch(
        what: str,
        offset: int,
        version: int = 12,
        where: str = topic,
        partition: int = 0,
        **fields: Any,
    ) -> None:
        answer = await client.call(
            "Fetch", version, **fetch_fields(where, partition, offset, **fields)
        )
        peer.note(
            what,
            version,
            answer.error_code if version >= 7 else 0,
            answer.session_id if version >= 7 else 0,
        )
        for item in answer.responses:
            for found in item.partitions:
                places = (
                    found.high_watermark,
                    found.last_stable_offset,
                    found.log_start_offset if version >= 5 else 0,
                )
                peer.note(
                    "  partition",
                    found.error_code,
                    places,
                    found.aborted_transactions,
                    found.records,
                )

    for version in range(4, 13):
        for offset in (0, 1, 2, 4):
            await fetch("all", offset, version)
    await fetch("at the end", 4, max_wait_ms=200)
    await fetch("before", -1)
    await fetch("behind", 5)
    await fetch("first batch only", 0, partition_max_bytes=10)
    await fetch("cut", 0, partition_max_bytes=300)
    await fetch("cut by all", 0, max_bytes=300)
    await fetch("committed", 0, isolation_level=1)
    await fetch("no topic", 0, where=peer.name("none"))
    await fetch("no partition", 0, partition=5)
    await fetch("newer epoch", 0, current_leader_epoch=3)
    await fetch("this epoch", 0, current_leader_epoch=0)
    await fetch("no session", 0, session_id=12345, session_epoch=1)


async def topics_by_id(peer: Peer) -> None:
    import uuid

    group = peer.name("ids")
    client = await peer.settle(group)
    topic = await peer.topic(client)
    known = (await client.call("Metadata", 12, topics=[{"name": topic}])).topics[0].topic_id
    for number in (known, uuid.UUID(int=9)):
        found = part_of(
            await client.call("Produce", 13, **produce_fields("", 0, batch(b"a"), topic_id=number))
        )
        peer.note("produced", found.error_code, found.base_offset)
        for version in range(13, 19):
            answer = await client.call("Fetch", version, **fetch_fields("", 0, 0, topic_id=number))
            found = part_of(answer)
            peer.note(
                "fetched",
                version,
                answer.error_code,
                found.error_code,
                found.high_watermark,
                found.records,
            )
        part = {
            "partition_index": 0,
            "committed_offset": 1,
            "committed_leader_epoch": 0,
            "committed_metadata": "m",
        }
        values = {"group_id": group, "generation_id_or_member_epoch": -1, "member_id": ""}
        answer = await client.call(
            "OffsetCommit", 10, **values, topics=[{"topic_id": number, "partitions": [part]}]
        )
        peer.note("committed", answer.topics[0].topic_id == number, part_of(answer).error_code)
        asked = [{"topic_id": number, "partition_indexes": [0]}]
        answer = await client.call("OffsetFetch", 10, groups=[{"group_id": group, "topics": asked}])
        (item,) = answer.groups[0].topics
        places = [
            (each.committed_offset, each.metadata, each.error_code) for each in item.partitions
        ]
        peer.note("offsets", item.topic_id == number, places)
    answer = await client.call("OffsetFetch", 10, groups=[{"group_id": group, "topics": None}])
    peer.note(
        "all offsets",
        [(item.topic_id == known, len(item.partitions)) for item in answer.groups[0].topics],
    )
    item = {
        "topics": [{"name": None, "topic_id": known}, {"name": None, "topic_id": uuid.UUID(int=9)}],
        "timeout_ms": 10_000,
    }
    answer = await client.call("DeleteTopics", 6, **item)
    peer.note("deleted", sorted((each.name or "", each.error_code) for each in answer.responses))


async def looking_up(peer: Peer) -> None:
    client = await peer.open()
    topic = await peer.topic(client)

    async def ask(timestamp: int, version: int = 7, **fields: Any) -> None:
        part = {"partition_index": 0, "timestamp": timestamp} | fields
        item = {"name": topic, "partitions": [part]}
        found = part_of(
            await client.call(
                "ListOffsets", version, replica_id=-1, isolation_level=0, topics=[item]
            )
        )
        epoch = found.leader_epoch if version >= 4 else 0
        peer.note(
            f"time {timestamp}", version, found.error_code, found.offset, found.timestamp, epoch
        )

    for timestamp in (-1, -2, -3, 0):
        await ask(timestamp)
    data = encode_batch([(None, b"a", 100), (None, b"b", 300), (None, b"c", 200)], timestamp=0)
    await client.call("Produce", 12, **produce_fields(topic, 0, data))
    await client.call(
        "Produce", 12, **produce_fields(topic, 0, encode_batch([(None, b"d", 400)], timestamp=0))
    )
    for version in (1, 2, 4, 6, 7):
        for timestamp in (-1, -2, 0, 101, 300, 400, 401):
            await ask(timestamp, version)
    await ask(-3)
    await ask(-1, current_leader_epoch=5)
    for epoch in (0, 1, 5):
        part = {"partition": 0, "current_leader_epoch": -1, "leader_epoch": epoch}
        answer = await client.call(
            "OffsetForLeaderEpoch",
            4,
            replica_id=-1,
            topics=[{"topic": topic, "partitions": [part]}],
        )
        found = part_of(answer)
        peer.note(f"epoch {epoch}", found.error_code, found.leader_epoch, found.end_offset)
    missing = {"name": peer.name("none"), "partitions": [{"partition_index": 0, "timestamp": -1}]}
    found = part_of(
        await client.call("ListOffsets", 7, replica_id=-1, isolation_level=0, topics=[missing])
    )
    peer.note("no topic", found.error_code, found.offset, found.timestamp)


async def membership(peer: Peer) -> None:
    group = peer.name("g")
    client, other = await peer.settle(group), await peer.open()

    def noted(what: str, joined: Any) -> None:
        members = [(peer.alias(each.member_id), each.group_instance_id) for each in joined.members]
        who = peer.alias(joined.leader), peer.alias(joined.member_id)
        named = joined.protocol_type, joined.protocol_name, joined.skip_assignment
        peer.note(what, joined.error_code, joined.generation_id, who, named, sorted(members))

    noted("no group", await client.join(""))
    noted("unknown member", await client.join(group, "nobody"))
    noted("short session", await client.join(group, session_timeout_ms=10))
    noted("no protocols", await client.join(group, protocols=[]))
    given = await client.receive(await client.send(client.join_request(group)))
    peer.note(
        "id required",
        given.error_code,
        given.generation_id,
        given.protocol_name,
        given.leader,
        given.members,
    )
    first = await client.join(group, given.member_id)
    noted("first", first)
    peer.note("heartbeat before sync", await client.heartbeat(group, first))
    synced = await client.sync(group, first, {first.member_id: {"t": [0]}})
    peer.note(
        "synced", synced.error_code, synced.protocol_type, synced.protocol_name, synced.assignment
    )
    peer.note("synced again", (await client.sync(group, first)).assignment)
    noted(
        "other protocol", await other.join(group, protocols=[{"name": "strange", "metadata": b""}])
    )
    noted("other type", await other.join(group, protocol_type="connect"))
    joined: list[Any] = []

    async def join_other() -> None:
        joined.append(await other.join(group))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(join_other)
        while (code := await client.heartbeat(group, first)) == 0:  # until the other one has joined
            pass
        peer.note("told to join again", code)
        peer.note("sync meanwhile", (await client.sync(group, first)).error_code)
        again = await client.join(group, first.member_id)
    noted("both: leader", again)
    noted("both: follower", joined[0])
    wrong = await client.join(
        group, first.member_id, protocols=[{"name": "strange", "metadata": b""}]
    )
    peer.note("changed to what the other has not", wrong.error_code)
    await client.sync(group, again, {again.member_id: {"t": [0]}, joined[0].member_id: {"t": [1]}})
    peer.note("follower", (await other.sync(group, joined[0])).assignment)
    noted("follower once more", await other.join(group, joined[0].member_id))
    again.generation_id += 1
    peer.note(
        "wrong generation",
        await client.heartbeat(group, again),
        (await client.sync(group, again)).error_code,
    )
    again.generation_id -= 1
    again.protocol_name = "strange"
    peer.note("wrong protocol", (await client.sync(group, again)).error_code)
    gone = await client.call(
        "LeaveGroup",
        5,
        group_id=group,
        members=[{"member_id": again.member_id}, {"member_id": "nobody"}, {"member_id": ""}],
    )
    peer.note("left", gone.error_code, [each.error_code for each in gone.members])
    peer.note(
        "heartbeats after",
        await client.heartbeat(group, again),
        await other.heartbeat(group, joined[0]),
    )
    left = await other.call("LeaveGroup", 2, group_id=group, member_id=joined[0].member_id)
    peer.note(
        "left, too",
        left.error_code,
        (await other.call("LeaveGroup", 2, group_id=group, member_id="nobody")).error_code,
    )
    peer.note("no name", await other.heartbeat("", joined[0]))
    peer.note("no such group", await other.heartbeat(peer.name("none"), joined[0]))


async def static_members(peer: Peer) -> None:
    group = peer.name("s")
    client, other = await peer.settle(group), await peer.open()
    first = await client.join(group, group_instance_id="i")
    peer.note(
        "first",
        first.error_code,
        first.generation_id,
        [each.group_instance_id for each in first.members],
    )
    who = {"group_id": group, "group_instance_id": "i", "generation_id": 1}
    named = {"protocol_type": "consumer", "protocol_name": "range"}
    part = [{"member_id": first.member_id, "assignment": b"mine"}]
    synced = await client.call(
        "SyncGroup", 5, **who, **named, member_id=first.member_id, assignments=part
    )
    peer.note("synced", synced.error_code, synced.assignment)
    for version in (9, 8):
        back = await other.join(group, group_instance_id="i", version=version)
        leads = back.leader == back.member_id
        peer.note(
            "back",
            version,
            back.error_code,
            back.generation_id,
            leads,
            back.skip_assignment,
            len(back.members),
        )
    synced = await other.call(
        "SyncGroup", 5, **who, **named, member_id=back.member_id, assignments=[]
    )
    peer.note("synced", synced.error_code, synced.assignment)
    peer.note(
        "fenced", (await client.call("Heartbeat", 4, **who, member_id=first.member_id)).error_code
    )
    peer.note(
        "fenced", (await client.join(group, first.member_id, group_instance_id="i")).error_code
    )
    strange = who | {"group_instance_id": "j"}
    peer.note(
        "unknown instance",
        (await client.call("Heartbeat", 4, **strange, member_id=first.member_id)).error_code,
    )
    members = [
        {"member_id": first.member_id, "group_instance_id": "i"},
        {"member_id": "", "group_instance_id": "j"},
    ]
    gone = await client.call("LeaveGroup", 5, group_id=group, members=members)
    peer.note("leaving wrongly", gone.error_code, [each.error_code for each in gone.members])
    gone = await client.call(
        "LeaveGroup", 5, group_id=group, members=[{"member_id": "", "group_instance_id": "i"}]
    )
    peer.note("leaving by instance", gone.error_code, [each.error_code for each in gone.members])


async def offsets(peer: Peer) -> None:
    group = peer.name("o")
    client = await peer.settle(group)
    topic = await peer.topic(client)

    async def commit(
        what: str,
        offset: int,
        version: int = 8,
        metadata: str | None = "note",
        where: str = topic,
        **fields: Any,
    ) -> None:
        part = {
            "partition_index": 0,
            "committed_offset": offset,
            "committed_leader_epoch": 0,
            "committed_metadata": metadata,
        }
        values = {"group_id": group, "generation_id_or_member_epoch": -1, "member_id": ""} | fields
        answer = await client.call(
            "OffsetCommit", version, **values, topics=[{"name": where, "partitions": [part]}]
        )
        peer.note(what, version, part_of(answer).error_code)

    async def fetch(what: str, version: int, topics: Any, name: str = group) -> None:
        old = {"group_id": name, "topics": topics}
        answer = await client.call(
            "OffsetFetch", version, **(old if version < 8 else {"groups": [old]})
        )
        answer = answer if version < 8 else answer.groups[0]
        found = [
            (p.committed_offset, p.committed_leader_epoch, p.metadata, p.error_code)
            for t in answer.topics
            for p in t.partitions
        ]
        peer.note(what, version, answer.error_code, sorted(found))

    await commit("nobody's group", 1)
    await commit("no group", 1, group_id="")
    await fetch("no group", 8, None, "")
    await commit("no topic", 1, where=peer.name("none"))
    await commit("long metadata", 1, metadata="x" * 5000)
    await commit("no metadata", 2, metadata=None)
    await commit("a generation that never was", 1, generation_id_or_member_epoch=5, member_id="m")
    await commit(
        "in a group that never was",
        1,
        generation_id_or_member_epoch=5,
        member_id="m",
        group_id=peer.name("never"),
    )
    asked = [
        {"name": topic, "partition_indexes": [0, 1]},
        {"name": peer.name("none"), "partition_indexes": [0]},
    ]
    for version in (1, 2, 5, 7, 8, 9):
        await fetch("offsets", version, asked)
        await fetch("offsets of a group that never was", version, asked, peer.name("never"))
        if version >= 2:
            await fetch("all offsets", version, None)
    joined = await client.join(group)
    member = {"generation_id_or_member_epoch": joined.generation_id, "member_id": joined.member_id}
    await commit("before sync", 3, **member)
    await client.sync(group, joined, {joined.member_id: {"t": [0]}})
    for version in (2, 5, 6, 8, 9):
        await commit("as a member", 4, version, **member)
    await commit("in another generation", 5, **(member | {"generation_id_or_member_epoch": 9}))
    await commit("as somebody else", 5, **(member | {"member_id": "x"}))
    await commit("as nobody", 5)
    await fetch("offsets", 8, asked)


async def administration(peer: Peer) -> None:
    group, none = peer.name("a"), peer.name("none")
    client = await peer.settle(group)
    joined = await client.join(group)
    await client.sync(group, joined, {joined.member_id: {"t": [0]}})

    async def describe(version: int) -> None:
        answer = await client.call(
            "DescribeGroups", version, groups=[group, none], include_authorized_operations=False
        )
        for item in answer.groups:
            peer.note(
                "described",
                version,
                item.error_code,
                item.group_state,
                item.protocol_type,
                item.protocol_data,
            )
            for each in item.members:
                peer.note(
                    "  member",
                    peer.alias(each.member_id),
                    each.client_id,
                    each.member_metadata,
                    each.member_assignment,
                )

    for version in (0, 4, 5, 6):
        await describe(version)
    for version in (0, 4, 5):
        for state in ([], ["Stable"], ["stable"], ["Empty"]):
            fields = {"states_filter": state, "types_filter": []} if version >= 4 else {}
            answer = await client.call("ListGroups", version, **fields)
            found = [
                (each.protocol_type, each.group_state.lower(), each.group_type)
                for each in answer.groups
                if each.group_id == group
            ]
            peer.note("listed", version, state if version >= 4 else None, answer.error_code, found)
    answer = await client.call("DeleteGroups", 2, groups_names=[group, none])
    peer.note("not deleted", sorted(each.error_code for each in answer.results))
    await client.call("LeaveGroup", 5, group_id=group, members=[{"member_id": joined.member_id}])
    await describe(5)
    answer = await client.call("DeleteGroups", 2, groups_names=[group])
    peer.note("deleted", [each.error_code for each in answer.results])
    for version in (3, 4):
        for key in (group, ""):
            found = await client.call(
                "FindCoordinator", version, key=key, key_type=0, coordinator_keys=[key]
            )
            found = found if version < 4 else found.coordinators[0]
            peer.note("coordinator", version, found.error_code)


CONVERSATIONS = [
    versions,
    expected_brokers,
    metadata,
    making_topics,
    producing,
    sequences,
    fetching,
    topics_by_id,
    looking_up,
    membership,
    static_members,
    offsets,
    administration,
]
