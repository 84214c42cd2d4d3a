"""Helpers of the tests of ``_net``.

They are the broker's end of a memory stream, which the test plays by hand, and clients in parts.
"""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import trio
import trio.testing
from kafka.protocol.metadata import MetadataRequest

from trikafka._api.client.service import Exit, Service, run_client
from trikafka._managers.cluster.coordinator import Coordinators
from trikafka._managers.cluster.metadata import Metadata
from trikafka._net.brokers import Brokers
from trikafka._net.connection import Connection
from trikafka._net.transport import transport_of
from trikafka.config import ConsumerConfig
from trikafka.testing import ScriptedCluster
from trikafka.testing.messages import RESPONSES, build, decode_request, encode_response, read_head
from trikafka.types import Node

NODE = Node(0, "broker-0", 9092)
OFFERED = [{"api_key": key, "min_version": 0, "max_version": 9} for key in (0, 1, 2, 3, 10, 16, 18)]


def config(**settings: Any) -> ConsumerConfig:
    return ConsumerConfig.build({"bootstrap_servers": "broker-0:9092"} | settings)


def metadata_request(cluster_topics: list[str] | None = None) -> Any:
    return MetadataRequest(topics=None, allow_auto_topic_creation=False)


class Peer:
    """The broker's end: it reads requests and responds when and how the test says."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.stream = stream
        self._buffer = bytearray()

    async def request(self) -> Any:
        """Return the next request.

        Raises:
            EOFError: The client closed the stream.
        """
        size = struct.unpack(">i", await self._exactly(4))[0]
        frame = await self._exactly(size)
        return decode_request(read_head(frame), frame)

    async def _exactly(self, count: int) -> bytes:
        while len(self._buffer) < count:
            data = await self.stream.receive_some()
            if not data:
                raise EOFError
            self._buffer += data
        taken = bytes(self._buffer[:count])
        del self._buffer[:count]
        return taken

    async def closed(self) -> bool:
        """Wait for the end of the stream; return whether no bytes came before it."""
        return not self._buffer and not await self.stream.receive_some()

    @staticmethod
    def frame(request: Any, **values: Any) -> bytes:
        """Return the frame of the response to ``request``."""
        response = build(RESPONSES[request.API_KEY], request.API_VERSION, values)
        return encode_response(response, request.API_VERSION, request.header.correlation_id)

    async def answer(self, request: Any, **values: Any) -> None:
        await self.stream.send_all(self.frame(request, **values))

    async def shake_hands(self) -> None:
        """Respond to the ApiVersions request with which every connection begins."""
        request = await self.request()
        await self.answer(request, error_code=0, api_keys=OFFERED)


@dataclass
class Line:
    """A connection and its peer."""

    connection: Connection
    peer: Peer
    nursery: trio.Nursery

    def ask(self, message: Any = None, response_timeout: float | None = None) -> Asked:
        """Make a request in a task of its own."""
        return Asked(
            self.nursery,
            lambda: self.connection.request(message or metadata_request(), response_timeout),
        )


class Asked:
    """A call in a task of its own, with its result and the time of its end."""

    def __init__(self, nursery: trio.Nursery, call: Callable[[], Awaitable[Any]]) -> None:
        self.scope = trio.CancelScope()
        self.done = trio.Event()
        self.result: Any = None
        self.error: Exception | None = None
        self.cancelled = False
        self.ended: float | None = None
        nursery.start_soon(self._run, call)

    async def _run(self, call: Callable[[], Awaitable[Any]]) -> None:
        with self.scope:
            try:
                self.result = await call()
            except Exception as error:
                self.error = error
            except trio.Cancelled:
                self.cancelled = True
                raise
            finally:
                self.ended = trio.current_time()
                self.done.set()

    async def outcome(self) -> Any:
        """Wait for the end of the call; return its result or raise its error."""
        await self.done.wait()
        if self.error is not None:
            raise self.error
        return self.result


@asynccontextmanager
async def connected(
    *, unbuffered: bool = False, greet: bool = True, **settings: Any
) -> AsyncIterator[Line]:
    """Open a negotiated connection over a memory stream. At the end no task may be left."""
    ours, theirs = (
        trio.testing.lockstep_stream_pair() if unbuffered else trio.testing.memory_stream_pair()
    )
    connection, peer = Connection(transport_of(ours), NODE, config(**settings)), Peer(theirs)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(connection.run)
        if greet:
            nursery.start_soon(peer.shake_hands)
            await connection.negotiate("1")
            await connection.authenticate(None)
        yield Line(connection, peer, nursery)
        await trio.testing.wait_all_tasks_blocked()
        connection.close()
    assert connection.in_flight == 0


class Parts:
    """A client without an API: brokers, metadata and coordinators."""

    def __init__(self, given: ConsumerConfig, service: Service) -> None:
        self.config = given
        self.service = service
        self.brokers = Brokers(given, service.start_soon)
        self.metadata = Metadata(given, self.brokers, service.start_soon)
        self.coordinators = Coordinators(
            self.metadata,
            service.start_soon,
            self.brokers.outages,
            leave=lambda node: self.brokers.leave(node, ("coordinator", "group")),
        )
        self.exits: list[Exit] = []

    async def _finish(self, how: Exit) -> None:
        self.exits.append(how)
        self.brokers.close()


@asynccontextmanager
async def open_parts(
    cluster: ScriptedCluster, *, bootstrap: bool = True, background: bool = False, **settings: Any
) -> AsyncIterator[Parts]:
    """Open the parts in the frame that every client has.

    ``background`` also starts the metadata's task.
    """
    given = config(
        **{"bootstrap_servers": cluster.bootstrap_servers, "dial": cluster.dial} | settings
    )

    async def start(service: Service) -> Parts:
        parts = Parts(given, service)
        if bootstrap:
            await parts.metadata.bootstrap()
        if background:
            service.start_soon(parts.metadata.run)
        return parts

    async with run_client(given, start) as parts:
        yield parts


def throttle(
    cluster: ScriptedCluster, milliseconds: int, times: int | None = 1, api: str = "Metadata"
) -> None:
    """Have the responses to these requests throttle the client."""

    async def slow_down(request: Any, default: Any) -> Any:
        response = await default()
        response.throttle_time_ms = milliseconds
        return response

    cluster.on(api, slow_down, times=times)
