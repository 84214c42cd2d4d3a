"""A raw client: one connection, single or pipelined requests, in kafka-python's messages.

It uses nothing of trikafka's clients.
"""

from __future__ import annotations

import struct
from typing import Any

import trio
from kafka.protocol.consumer import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    HeartbeatRequest,
    JoinGroupRequest,
    SyncGroupRequest,
)

from trikafka.testing import ScriptedCluster
from trikafka.testing.messages import REQUESTS, RESPONSES, api_key, build


class RawClient:
    """A client that sends frames and reads responses."""

    def __init__(self, stream: trio.abc.Stream, client_id: str = "raw") -> None:
        self.stream = stream
        self.client_id = client_id
        self.next_id = 1
        self.buffer = b""

    @classmethod
    async def connect(
        cls, cluster: ScriptedCluster, node: int = 0, client_id: str = "raw"
    ) -> RawClient:
        return cls(await cluster.dial(f"broker-{node}", 9092), client_id)

    async def send(self, request: Any) -> tuple[int, Any]:
        """Send a request that has its version; return the argument for :meth:`receive`."""
        number = self.next_id
        self.next_id = self.next_id + 1
        request.with_header(number, self.client_id)
        await self.stream.send_all(bytes(request.encode(header=True, framed=True)))
        return number, RESPONSES[request.API_KEY][request.API_VERSION]

    async def frame(self) -> bytes:
        """Return the next frame without its length.

        Raises:
            EOFError: The connection was closed.
        """
        size = struct.unpack(">i", await self.exactly(4))[0]
        return await self.exactly(size)

    async def exactly(self, count: int) -> bytes:
        while len(self.buffer) < count:
            data = await self.stream.receive_some()
            if not data:
                raise EOFError
            self.buffer += data
        taken = self.buffer[:count]
        self.buffer = self.buffer[count:]
        return taken

    async def receive(self, expected: tuple[int, Any]) -> Any:
        number, cls = expected
        response = cls.decode(await self.frame(), header=True)
        assert response.header.correlation_id == number
        return response

    async def call(self, api: str, version: int, /, **fields: Any) -> Any:
        """Send one request made from plain values, and return its response."""
        key = api_key(api)
        return await self.receive(await self.send(build(REQUESTS[key], version, fields)))

    async def closed(self) -> bool:
        """Wait for the end of the connection; return whether no byte came before it."""
        return not await self.stream.receive_some()

    # -- conversations of several requests

    def join_request(self, group: str, member: str = "", version: int = 9, **fields: Any) -> Any:
        metadata = bytes(
            ConsumerProtocolSubscription(version=1, topics=["t"], user_data=None).encode()
        )
        values = {
            "group_id": group,
            "session_timeout_ms": 10_000,
            "rebalance_timeout_ms": 60_000,
            "member_id": member,
            "group_instance_id": None,
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": metadata}],
            "reason": None,
        }
        return build(JoinGroupRequest, version, values | fields)

    async def join(self, group: str, member: str = "", **fields: Any) -> Any:
        """Join, with the second request after MEMBER_ID_REQUIRED where the broker demands it."""
        response = await self.receive(await self.send(self.join_request(group, member, **fields)))
        if response.error_code == 79:
            response = await self.receive(
                await self.send(self.join_request(group, response.member_id, **fields))
            )
        return response

    async def sync(
        self, group: str, joined: Any, assignments: dict[str, dict[str, list[int]]] | None = None
    ) -> Any:
        items = [
            {"member_id": member, "assignment": assignment(parts)}
            for member, parts in (assignments or {}).items()
        ]
        values = {
            "group_id": group,
            "generation_id": joined.generation_id,
            "member_id": joined.member_id,
            "group_instance_id": None,
            "protocol_type": "consumer",
            "protocol_name": joined.protocol_name,
            "assignments": items,
        }
        return await self.receive(await self.send(build(SyncGroupRequest, 5, values)))

    async def heartbeat(self, group: str, joined: Any) -> int:
        values = {
            "group_id": group,
            "generation_id": joined.generation_id,
            "member_id": joined.member_id,
        }
        response = await self.receive(await self.send(build(HeartbeatRequest, 4, values)))
        return int(response.error_code)


def assignment(parts: dict[str, list[int]]) -> bytes:
    cls = ConsumerProtocolAssignment.TopicPartition
    pairs = [cls(version=0, topic=topic, partitions=numbers) for topic, numbers in parts.items()]
    return bytes(
        ConsumerProtocolAssignment(version=0, assigned_partitions=pairs, user_data=None).encode()
    )


def fetch_fields(topic: str, partition: int, offset: int, **fields: Any) -> dict[str, Any]:
    part = {
        "partition": partition,
        "fetch_offset": offset,
        "partition_max_bytes": 1_000_000,
        "current_leader_epoch": -1,
    }
    part |= {
        name: fields.pop(name)
        for name in list(fields)
        if name in ("partition_max_bytes", "current_leader_epoch")
    }
    item = {"topic": topic, "partitions": [part]} | {
        name: fields.pop(name) for name in ("topic_id",) if name in fields
    }
    values = {
        "max_wait_ms": 0,
        "min_bytes": 1,
        "max_bytes": 50_000_000,
        "topics": [item],
        "session_id": 0,
        "session_epoch": -1,
    }
    return values | fields


def produce_fields(topic: str, partition: int, records: bytes, **fields: Any) -> dict[str, Any]:
    item = {"name": topic, "partition_data": [{"index": partition, "records": records}]}
    item |= {name: fields.pop(name) for name in ("topic_id",) if name in fields}
    return {"transactional_id": None, "acks": -1, "timeout_ms": 1000, "topic_data": [item]} | fields
