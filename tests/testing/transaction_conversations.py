"""Conversations about transactions, whose notes of a real Kafka and the scripted one must be equal."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import trio
from conversations import Peer, part_of
from rawclient import RawClient, fetch_fields, produce_fields

from trikafka.testing import encode_batch

CONCURRENT, FENCED = 51, 90
_OWN = "the speaker's own"
_SETTLING = (3, 14, 15, 16)  # a real cluster takes a moment to make its own topics


class Who(NamedTuple):
    """A producer's id and epoch."""

    producer_id: int
    epoch: int

    def later(self, by: int = 1) -> Who:
        return Who(self.producer_id, self.epoch + by)


async def until(call: Callable[[], Awaitable[Any]], fits: Callable[[Any], bool]) -> Any:
    """Repeat the request until the response fits."""
    while True:
        answer = await call()
        if fits(answer):
            return answer
        await trio.sleep(0.02)


class Speaker:
    """The producer of one transactional id, whose calls are noted with their errors."""

    def __init__(self, peer: Peer, client: RawClient, topic: str, name: str) -> None:
        self.peer = peer
        self.client = client
        self.topic = topic
        self.name = name
        self.known: dict[int, str] = {-1: "nobody"}

    @classmethod
    async def begin(cls, peer: Peer, name: str = "x", partitions: int = 2) -> Speaker:
        client = await peer.open()
        topic = await peer.topic(client, f"{name}-topic", partitions)
        speaker = cls(peer, client, topic, peer.name(name))

        async def find() -> Any:
            return await client.call("FindCoordinator", 3, key=speaker.name, key_type=1)

        await speaker.settled(find, *_SETTLING)
        return speaker

    def alias(self, producer_id: int) -> str:
        return self.known.setdefault(producer_id, f"producer {len(self.known)}")

    async def settled(self, call: Callable[[], Awaitable[Any]], *codes: int) -> Any:
        return await until(call, lambda answer: answer.error_code not in codes)

    async def init(self, what: str, version: int = 5, wait: bool = True, **fields: Any) -> Who:
        values = {"transactional_id": self.name, "transaction_timeout_ms": 60_000} | fields

        async def call() -> Any:
            return await self.client.call("InitProducerId", version, **values)

        found = await self.settled(call, *_SETTLING, *([CONCURRENT] if wait else []))
        self.peer.note(
            what, version, found.error_code, self.alias(found.producer_id), found.producer_epoch
        )
        return Who(found.producer_id, found.producer_epoch)

    async def add(
        self,
        what: str,
        who: Who,
        *parts: int,
        version: int = 3,
        name: str | None = None,
        topic: str = "",
    ) -> None:
        topics = [
            {"name": self.topic, "partitions": list(parts)},
            *([{"name": topic, "partitions": [0]}] if topic else []),
        ]
        values = {
            "v3_and_below_transactional_id": self.name if name is None else name,
            "v3_and_below_topics": topics,
        }
        values |= {
            "v3_and_below_producer_id": who.producer_id,
            "v3_and_below_producer_epoch": who.epoch,
        }
        while True:
            found = (
                await self.client.call("AddPartitionsToTxn", version, **values)
            ).results_by_topic_v3_and_below
            codes = [
                (each.name == self.topic, p.partition_index, p.partition_error_code)
                for each in found
                for p in each.results_by_partition
            ]
            if all(code not in (CONCURRENT, *_SETTLING[1:]) for *_, code in codes):
                self.peer.note(what, version, sorted(codes))
                return
            await trio.sleep(0.02)

    async def produce(
        self,
        what: str,
        who: Who,
        sequence: int,
        *,
        version: int = 11,
        partition: int = 0,
        count: int = 1,
        plain: bool = False,
        name: str | None = _OWN,
    ) -> None:
        # With the current time: otherwise a real broker begins a segment with the marker, and a
        # fetch does not continue into the next segment.
        now = round(time.time() * 1000)
        data = encode_batch(
            [b"x"] * count, timestamp=now, producer=(*who, sequence), transactional=not plain
        )
        fields = produce_fields(
            self.topic, partition, data, transactional_id=self.name if name == _OWN else name
        )

        async def call() -> Any:
            return part_of(await self.client.call("Produce", version, **fields))

        found = await self.settled(call, CONCURRENT, 6, 19)
        self.peer.note(what, version, found.error_code, found.base_offset)

    async def end(
        self,
        what: str,
        who: Who,
        commit: bool,
        version: int = 4,
        name: str | None = None,
        wait: bool = True,
    ) -> Who:
        values = {"transactional_id": self.name if name is None else name, "committed": commit}
        values |= {"producer_id": who.producer_id, "producer_epoch": who.epoch}

        async def call() -> Any:
            return await self.client.call("EndTxn", version, **values)

        found = await self.settled(call, *([CONCURRENT] if wait else []))
        says = (self.alias(found.producer_id), found.producer_epoch) if version >= 5 else ()
        self.peer.note(what, version, found.error_code, says)
        return Who(found.producer_id, found.producer_epoch)

    async def over(self) -> None:
        """Wait until the markers are written."""
        await until(self._describe, lambda found: not found.transaction_state.startswith("Prepare"))

    async def completed(self) -> None:
        """Wait until the transaction has been ended."""
        await until(self._describe, lambda found: found.transaction_state.startswith("Complete"))

    async def _describe(self, name: str | None = None) -> Any:
        found = await self.client.call(
            "DescribeTransactions", 0, transactional_ids=[self.name if name is None else name]
        )
        return found.transaction_states[0]

    async def describe(self, what: str, name: str | None = None) -> None:
        if name is None:
            await self.over()
        found = await self._describe(name)
        topics = sorted(
            (item.topic == self.topic, sorted(item.partitions) if item.topic == self.topic else 0)
            for item in found.topics
        )
        who = None if found.error_code else self.alias(found.producer_id), found.producer_epoch
        times = found.transaction_timeout_ms, found.transaction_start_time_ms > 0
        self.peer.note(what, found.error_code, found.transaction_state, who, times, topics)

    async def read(
        self, what: str, partition: int = 0, isolation: int = 1, offset: int = 0
    ) -> None:
        fields = fetch_fields(self.topic, partition, offset, isolation_level=isolation)
        found = part_of(await self.client.call("Fetch", 12, **fields))
        aborted = [
            (self.alias(each.producer_id), each.first_offset)
            for each in found.aborted_transactions or ()
        ]
        self.peer.note(
            what,
            found.error_code,
            found.high_watermark,
            found.last_stable_offset,
            aborted,
            shape(found.records),
        )

    async def producers(self, what: str, partition: int = 0) -> None:
        asked = [{"name": self.topic, "partition_indexes": [partition]}]
        (found,) = (
            (await self.client.call("DescribeProducers", 0, topics=asked)).topics[0].partitions
        )
        active = [  # of the coordinator's epoch: whether there is one, see shape()
            (
                self.alias(each.producer_id),
                each.producer_epoch,
                each.last_sequence,
                each.last_timestamp > 0,
                min(each.coordinator_epoch, 0),
                each.current_txn_start_offset,
            )
            for each in found.active_producers
        ]
        self.peer.note(what, found.error_code, sorted(active))


def shape(records: bytes | None) -> list[Any]:
    """Return each batch's base offset, kind, epoch and base sequence, and how a marker ends.

    The coordinator's epoch is left out: a real broker that was too busy for its heartbeats leads
    its own topics again, in a later epoch.
    """
    found, data = [], bytes(records or b"")
    while len(data) >= 61:
        end = 12 + int.from_bytes(data[8:12], "big")
        attributes, epoch = int.from_bytes(data[21:23], "big"), int.from_bytes(data[51:53], "big")
        sequence = int.from_bytes(data[53:57], "big", signed=True)
        count = int.from_bytes(data[57:61], "big")
        marker = (
            f"{data[61 : end - 5].hex()}.{data[end - 1 : end].hex()}" if attributes & 0x20 else ""
        )
        found.append((int.from_bytes(data[:8], "big"), attributes, epoch, sequence, count, marker))
        data = data[end:]
    return found


async def initializing(peer: Peer) -> None:
    speaker = await Speaker.begin(peer)
    first = await speaker.init("first")
    for version in (0, 1, 2, 3, 4, 5):
        await speaker.init("again", version)
    await speaker.init("no name", transactional_id="")
    for timeout in (0, -1, 900_000, 900_001):
        await speaker.init(f"timeout {timeout}", transaction_timeout_ms=timeout)
    now = await speaker.init("who it is now")

    async def as_one(what: str, who: Who, **fields: Any) -> Who:
        return await speaker.init(
            what, producer_id=who.producer_id, producer_epoch=who.epoch, **fields
        )

    await as_one("no epoch", Who(now.producer_id, -1))
    await as_one("no id", Who(-1, now.epoch))
    after = await as_one("who was there last", now)
    await as_one("who has not heard", now)
    await as_one("who was there before that", first)
    await as_one("who was there before that", first, version=3)
    await as_one("who comes from the future", after.later())
    await as_one("somebody else", Who(after.producer_id + 1_000_000, after.epoch))
    await as_one("still there", after)
    await speaker.init("another one")
    await as_one("fenced by it", after.later())
    await as_one("unknown id, known producer", Who(77, 5), transactional_id=peer.name("never"))
    await speaker.describe("described")
    await speaker.describe("never was", peer.name("nobody"))
    await speaker.describe("no name", "")


async def transactions_1(peer: Peer) -> None:
    """Use the requests before KIP-890."""
    speaker = await Speaker.begin(peer)
    who = await speaker.init("first")
    for version in (3, 7, 10, 11):
        await speaker.produce("not added", who, 0, version=version)
    await speaker.produce("without its id", who, 0, name=None)
    await speaker.produce("with another id", who, 0, name=peer.name("never"))
    await speaker.produce("with an empty id", who, 0, name="")
    await speaker.end("nothing to commit", who, True)
    await speaker.end("nothing to abort", who, False)
    for version in (0, 1, 2, 3):
        await speaker.add("no such id", who, 0, version=version, name=peer.name("never"))
        await speaker.add("no id", who, 0, version=version, name="")
        await speaker.add(
            "another producer", Who(who.producer_id + 1_000_000, 0), 0, version=version
        )
        await speaker.add("a later epoch", who.later(), 0, version=version)
    await speaker.add("one unknown", who, 0, 9)
    await speaker.add("topic unknown", who, 0, topic=peer.name("none"))
    await speaker.describe("nothing yet")
    await speaker.add("added", who, 0)
    await speaker.add("added again", who, 0)
    await speaker.describe("one")
    await speaker.produce("added", who, 0, count=2)
    await speaker.produce("the same", who, 0, count=2)
    await speaker.produce("a gap", who, 5)
    await speaker.produce("not in the transaction", who, 2, plain=True)
    await speaker.produce("not added", who, 0, partition=1)
    await speaker.add("added", who, 1)
    await speaker.produce("begins with a wrong sequence", who, 4, partition=1)
    await speaker.producers("producers")
    await speaker.read("open", isolation=0)
    await speaker.read("open")
    await speaker.end("another's epoch", who.later(), True)
    await speaker.end("another's id", Who(who.producer_id + 1_000_000, 0), True)
    await speaker.end("an id that is not there", who, True, name=peer.name("never"))
    await speaker.end("no id", who, True, name="")
    for version in (0, 1, 2, 3):
        await speaker.end("another's epoch", who.later(), True, version)
    await speaker.end("commits", who, True)
    await speaker.end("commits again", who, True)
    await speaker.end("aborts then", who, False)
    await speaker.describe("committed")
    await speaker.producers("producers")
    await speaker.read("committed")
    await speaker.produce("a late batch", who, 2)
    await speaker.add("the second", who, 0, 1)
    await speaker.produce("the second", who, 2)
    await speaker.produce("the second, elsewhere, wrong sequence", who, 5, partition=1)
    await speaker.produce("the second, elsewhere", who, 0, partition=1)
    await speaker.end("aborts", who, False)
    await speaker.end("aborts again", who, False)
    await speaker.end("commits then", who, True)
    await speaker.describe("aborted")
    await speaker.read("aborted")
    await speaker.read("aborted, all", isolation=0)
    await speaker.read("elsewhere", 1)
    await speaker.add("the third", who, 0)
    await speaker.produce("the third", who, 3)
    await speaker.init("comes again: not yet", wait=False)
    after = await speaker.init("comes again")
    await speaker.produce("the old one", who, 4)
    await speaker.add("the old one", who, 0)
    await speaker.end("the old one", who, True)
    await speaker.describe("fenced")
    await speaker.read("fenced")
    await speaker.add("the new one", after, 0)
    await speaker.produce("the new one, wrong sequence", after, 4)
    await speaker.produce("the new one", after, 0)
    await speaker.end("commits", after, True)
    await speaker.over()
    await speaker.read("at last")


async def transactions_2(peer: Peer) -> None:
    """Use the requests of KIP-890.

    An end raises the epoch, and a batch adds its partition by itself.
    """
    speaker = await Speaker.begin(peer)
    who = await speaker.init("first")
    await speaker.produce("with another id", who, 0, version=12, name=peer.name("never"))
    await speaker.produce("with no id", who, 0, version=12, name=None)
    await speaker.produce("another epoch", who.later(), 0, version=12)
    await speaker.produce("another id", Who(who.producer_id + 1_000_000, 0), 0, version=12)
    await speaker.describe("nothing yet")
    await speaker.end("commits nothing", who, True, 5)
    who = await speaker.end("aborts nothing", who, False, 5)
    await speaker.describe("aborted nothing")
    await speaker.end("aborts nothing, again", who.later(-1), False, 5)
    await speaker.end("commits nothing, again", who.later(-1), True, 5)
    await speaker.produce("begins with a wrong sequence", who, 3, version=12, partition=1)
    await speaker.produce("adds itself", who, 0, version=12, count=2)
    await speaker.describe("begun")
    await speaker.produce("the same", who, 0, version=12, count=2)
    await speaker.produce("a gap", who, 5, version=12)
    await speaker.produce("next", who, 2, version=12)
    await speaker.read("open")
    await speaker.producers("producers")
    await speaker.end("another's epoch", who.later(), True, 5)
    old, who = who, await speaker.end("commits", who, True, 5)
    await speaker.end("commits again", old, True, 5)
    await speaker.end("aborts then", old, False, 5)
    await speaker.end("commits as the next one", who, True, 5)
    await speaker.describe("committed")
    await speaker.producers("producers")
    await speaker.read("committed")
    await speaker.produce("a late batch", old, 3, version=12)
    await speaker.produce("the same, late", old, 2, version=12)
    await speaker.produce("a sequence that goes on", who, 3, version=12)
    await speaker.produce("the second", who, 0, version=12)
    old, who = who, await speaker.end("aborts", who, False, 5)
    await speaker.end("aborts again", old, False, 5)
    await speaker.end("commits then", old, True, 5)
    await speaker.describe("aborted")
    await speaker.read("aborted")
    await speaker.produce("the third", who, 0, version=12)
    await speaker.init("comes again: not yet", wait=False)
    await speaker.describe("fenced")
    await speaker.read("fenced")
    after = await speaker.init("comes again")
    await speaker.produce("the old one", who, 1, version=12)
    await speaker.end("the old one", who, True, 5)
    await speaker.produce("the new one", after, 0, version=12)
    await speaker.init(
        "goes on as itself: not yet",
        producer_id=after.producer_id,
        producer_epoch=after.epoch,
        wait=False,
    )
    await speaker.init(
        "goes on as itself", producer_id=after.producer_id, producer_epoch=after.epoch
    )
    await speaker.describe("ended")
    await speaker.read("at last")


async def transactions_mixed(peer: Peer) -> None:
    """Mix old and new requests, as no client does."""
    speaker = await Speaker.begin(peer)
    who = await speaker.init("first")
    await speaker.add("added by the old", who, 0)
    await speaker.produce("by the new", who, 0, version=12)
    who = await speaker.end("ended by the new", who, True, 5)
    await speaker.describe("ended")
    await speaker.produce("begun by the new", who, 0, version=12)
    await speaker.end("ended by the old", who, True, 4)
    await speaker.describe("ended")
    await speaker.end("ended by the old again", who, True, 4)
    await speaker.end("ended by the new again", who, False, 5)
    await speaker.describe("ended")
    await speaker.read("at last")


async def timed_out_transactions(peer: Peer) -> None:
    speaker = await Speaker.begin(peer)
    for version in (11, 12):
        # A machine may stand still for seconds before the transaction is described.
        who = await speaker.init("first", transaction_timeout_ms=6_000)
        if version == 11:
            await speaker.add("added", who, 0)
        await speaker.produce("begun", who, 0, version=version)
        await speaker.describe("begun")
        await speaker.completed()
        await speaker.describe("timed out")
        await speaker.read("timed out")
        await speaker.producers("timed out")
        await speaker.produce("late", who, 1, version=version)
        await speaker.add("late", who, 1)
        await speaker.end("late", who, True, 4)
        await speaker.end("late", who, True, 5)
        await speaker.init("late", producer_id=who.producer_id, producer_epoch=who.epoch)
        await speaker.init(
            "as the coordinator left it", producer_id=who.producer_id, producer_epoch=who.epoch + 1
        )


async def transactional_offsets(peer: Peer) -> None:
    speaker = await Speaker.begin(peer)
    group = peer.name("g")
    member_client = await peer.settle(group)
    who = await speaker.init("first")

    async def add(what: str, name: str = group, who: Who = who, version: int = 3) -> None:
        fields = {
            "transactional_id": speaker.name,
            "producer_id": who.producer_id,
            "producer_epoch": who.epoch,
            "group_id": name,
        }

        async def call() -> Any:
            return await speaker.client.call("AddOffsetsToTxn", version, **fields)

        peer.note(what, version, (await speaker.settled(call, CONCURRENT)).error_code)

    async def commit(
        what: str, offset: int, version: int = 3, who: Who = who, **fields: Any
    ) -> None:
        part = {
            "partition_index": fields.pop("partition", 0),
            "committed_offset": offset,
            "committed_leader_epoch": 0,
        }
        part["committed_metadata"] = fields.pop("metadata", "note")
        topic = {"name": fields.pop("topic", speaker.topic), "partitions": [part]}
        values = {
            "transactional_id": speaker.name,
            "producer_id": who.producer_id,
            "producer_epoch": who.epoch,
            "group_id": group,
        }
        values |= {
            "generation_id_or_member_epoch": -1,
            "member_id": "",
            "group_instance_id": None,
        } | fields
        while True:
            found = part_of(
                await speaker.client.call("TxnOffsetCommit", version, **values, topics=[topic])
            )
            if found.error_code not in (14, CONCURRENT):
                peer.note(what, version, found.error_code)
                return
            await trio.sleep(0.02)

    async def fetch(what: str, stable: bool, name: str = group, version: int = 8) -> None:
        item = {"group_id": name, "topics": [{"name": speaker.topic, "partition_indexes": [0, 1]}]}
        found = await speaker.client.call(
            "OffsetFetch",
            version,
            require_stable=stable,
            **({"groups": [item]} if version >= 8 else item),
        )
        found = found.groups[0] if version >= 8 else found
        parts = [
            (p.partition_index, p.committed_offset, p.metadata, p.error_code)
            for p in found.topics[0].partitions
        ]
        peer.note(what, stable, found.error_code, sorted(parts))

    for version in (0, 3, 4):
        await commit("not added", 1, version)
    await add("no group", "")
    await add("another epoch", who=who.later())
    for version in (0, 1, 2):
        await add("another epoch", who=who.later(), version=version)
    await add("added")
    await speaker.describe("added")
    await commit("unknown topic", 1, topic=peer.name("none"))
    await commit("long metadata", 1, metadata="x" * 5000)
    await commit("no metadata", 1, metadata=None)
    await commit("no group", 1, group_id="")
    await commit("a generation that never was", 1, generation_id_or_member_epoch=3, member_id="m")
    await commit(
        "a group that never was",
        1,
        group_id=peer.name("never"),
        generation_id_or_member_epoch=3,
        member_id="m",
    )
    for version in (0, 1, 2, 3, 4):
        await commit("in an empty group", 10 + version, version)
    await commit("another epoch", 1, who=who.later())
    for stable in (False, True):
        await fetch("open", stable)
        await fetch("open", stable, version=7)
    await speaker.end("commits", who, True)
    await speaker.over()
    await fetch("committed", True)

    joined = await member_client.join(group)
    member = {
        "generation_id_or_member_epoch": joined.generation_id,
        "member_id": joined.member_id,
    }
    await add("added")
    await commit("before sync", 20, **member)
    await member_client.sync(group, joined, {joined.member_id: {"t": [0]}})
    await commit("a member", 21, **member)
    await commit("another generation", 22, **(member | {"generation_id_or_member_epoch": 9}))
    await commit("no member", 22, **(member | {"member_id": "x"}))
    await commit("no instance", 22, **(member | {"group_instance_id": "i"}))
    await commit("nameless", 23)
    await commit(
        "a member without generation", 24, **(member | {"generation_id_or_member_epoch": -1})
    )
    await speaker.end("aborts", who, False)
    await speaker.over()
    await fetch("aborted", True)

    who = await speaker.init("once more")
    await commit("adds itself", 30, 5, who, **member)
    await commit("another epoch", 30, 5, who.later(), **member)
    await commit(
        "another generation", 31, 5, who, **(member | {"generation_id_or_member_epoch": 9})
    )
    await commit("adds itself", 31, 5, who, **member, partition=1)
    await speaker.describe("added")
    await fetch("open", True)
    who = await speaker.end("commits", who, True, 5)
    await speaker.over()
    await fetch("committed", True)
    await commit("late", 32, 5, who.later(-1), **member)


async def transactional_offsets_of_new_groups(peer: Peer) -> None:
    speaker = await Speaker.begin(peer)
    group = peer.name("g")
    client = await peer.settle(group)
    beat = {
        "group_id": group,
        "member_id": "AAAAAAAAAAAAAAAAAAAAAA",
        "member_epoch": 0,
        "rebalance_timeout_ms": 10_000,
    }
    joined = await client.call(
        "ConsumerGroupHeartbeat",
        1,
        **beat,
        subscribed_topic_names=[speaker.topic],
        topic_partitions=[],
    )
    peer.note("joined", joined.error_code)
    who = await speaker.init("first")

    async def commit(what: str, **fields: Any) -> None:
        part = {
            "partition_index": 0,
            "committed_offset": 1,
            "committed_leader_epoch": 0,
            "committed_metadata": "",
        }
        values = {
            "transactional_id": speaker.name,
            "producer_id": who.producer_id,
            "producer_epoch": who.epoch,
            "group_id": group,
        }
        values |= {
            "generation_id_or_member_epoch": joined.member_epoch,
            "member_id": beat["member_id"],
            "group_instance_id": None,
        }
        topics = [{"name": speaker.topic, "partitions": [part]}]
        found = part_of(
            await speaker.client.call("TxnOffsetCommit", 5, **(values | fields), topics=topics)
        )
        peer.note(what, found.error_code)

    await commit("a member")
    await commit("an older epoch", generation_id_or_member_epoch=joined.member_epoch - 1)
    await commit("a newer epoch", generation_id_or_member_epoch=joined.member_epoch + 1)
    await commit("no member", member_id="x")
    await commit("nameless", member_id="", generation_id_or_member_epoch=-1)
    await commit("no epoch", generation_id_or_member_epoch=-1)


async def looking_after_transactions(peer: Peer) -> None:
    speaker = await Speaker.begin(peer)
    await speaker.init("first")
    who = await speaker.init("again")
    await speaker.produce("begun", who, 0, version=12)
    await speaker.produce(
        "plain", Who(who.producer_id + 2_000_000, 3), 0, plain=True, partition=1, name=None
    )
    await speaker.producers("both", 1)
    await speaker.producers("none there", 9)
    ours = [speaker.name]

    async def listed(what: str, version: int = 2, **fields: Any) -> None:
        values = {"state_filters": [], "producer_id_filters": [who.producer_id]} | fields
        found = await speaker.client.call("ListTransactions", version, **values)
        states = [
            (speaker.alias(each.producer_id), each.transaction_state)
            for each in found.transaction_states
            if each.transactional_id in ours
        ]
        peer.note(what, version, found.error_code, sorted(found.unknown_state_filters), states)

    for version in (0, 1, 2):
        await listed("all", version)
    await listed("of a state", state_filters=["Ongoing"])
    await listed("of another state", state_filters=["Empty", "CompleteCommit"])
    await listed("of a strange state", state_filters=["Ongoing", "Strange"])
    await listed("of strange states", state_filters=["ongoing", "Strange"])
    await listed("of another producer", producer_id_filters=[1_000_000_007])
    await listed("long running", duration_filter=1_000_000)
    await trio.sleep(0.01)
    await listed("not so long", duration_filter=1)
    await listed("by pattern", transactional_id_pattern=f"{speaker.name[:-2]}.*")
    await listed("by half a pattern", transactional_id_pattern=speaker.name[:-2])
    await listed("by no pattern", transactional_id_pattern="")
    await listed("by a wrong pattern", transactional_id_pattern="(")

    async def mark(
        what: str, who: Who, *parts: int, version: int = 2, commit: bool = False, **fields: Any
    ) -> None:
        topics = [{"name": fields.pop("topic", speaker.topic), "partition_indexes": list(parts)}]
        marker = {
            "producer_id": who.producer_id,
            "producer_epoch": who.epoch,
            "transaction_result": commit,
            "coordinator_epoch": 0,
        }
        found = await speaker.client.call(
            "WriteTxnMarkers", version, markers=[marker | {"topics": topics} | fields]
        )
        codes = [
            (part.partition_index, part.error_code)
            for item in found.markers[0].topics
            for part in item.partitions
        ]
        peer.note(what, version, sorted(codes))

    await mark("an older epoch", who.later(-1), 0)
    await mark("partly unknown", who, 0, 9, version=1)
    await speaker.read("marked")
    await speaker.producers("marked")
    await speaker.describe("the coordinator knows nothing of it")
    await mark("nothing open", who, 0)
    await mark("nothing open, newer version", who, 0, transaction_version=2)
    await mark("a later epoch", who.later(), 0, transaction_version=2)
    await mark("nobody's", Who(who.producer_id + 3_000_000, 0), 1)
    await mark("unknown topic", who, 0, topic=peer.name("none"))
    await speaker.producers("marked")
    await speaker.producers("nobody's", 1)
    await speaker.read("marked")


async def two_phase_commits(peer: Peer) -> None:
    """Use KIP-939 as far as Kafka 4.3 has it.

    The brokers offer and allow unstable APIs.
    """
    speaker = await Speaker.begin(peer)
    for keep in (False, True):
        for two_phase in (False, True):
            for timeout in (60_000, 0, 2**31 - 1):
                options = {
                    "enable2_pc": two_phase,
                    "keep_prepared_txn": keep,
                    "transaction_timeout_ms": timeout,
                }
                await speaker.init(f"{two_phase} {keep} {timeout}", 6, **options)
    who = await speaker.init("first", 6, enable2_pc=True)
    await speaker.describe("no limit")
    await speaker.produce("begun", who, 0, version=12)
    await speaker.init("keeps it", 6, wait=False, enable2_pc=True, keep_prepared_txn=True)
    await speaker.describe("still there")
    await speaker.init("aborts it: not yet", 6, wait=False, enable2_pc=True)
    await speaker.init("aborts it", 6, enable2_pc=True)
    await speaker.read("aborted")


async def features(peer: Peer) -> None:
    client = await peer.open()
    for version in (3, 4):
        answer = await client.call(
            "ApiVersions", version, client_software_name="raw", client_software_version="1"
        )
        name = "transaction.version"
        peer.note(
            "features",
            version,
            [(e.min_version, e.max_version) for e in answer.supported_features if e.name == name],
            [
                (e.min_version_level, e.max_version_level)
                for e in answer.finalized_features
                if e.name == name
            ],
            answer.finalized_features_epoch >= 0,
        )


TRANSACTION_CONVERSATIONS = [
    features,
    initializing,
    transactions_1,
    transactions_2,
    transactions_mixed,
    timed_out_transactions,
    transactional_offsets,
    transactional_offsets_of_new_groups,
    looking_after_transactions,
]
