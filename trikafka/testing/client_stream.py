"""The client's end of a connection in memory."""

from __future__ import annotations

from typing import Protocol

import trio


class Chunked(Protocol):
    """An object that bounds the bytes that reach the client at a time."""

    chunk: int | None


class ClientStream(trio.abc.HalfCloseableStream):
    """The client's end of a connection.

    It returns received bytes in pieces if the cluster says so.
    """

    def __init__(
        self, cluster: Chunked, stream: trio.abc.HalfCloseableStream, gulp: int | None
    ) -> None:
        self._cluster = cluster
        self._stream = stream
        self._gulp = gulp

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        if self._gulp is None:
            await self._stream.send_all(data)
            return
        # When cancelled, the rest is never sent.
        for start in range(0, max(len(data), 1), self._gulp):
            await self._stream.send_all(data[start : start + self._gulp])

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def send_eof(self) -> None:
        await self._stream.send_eof()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        limits = [limit for limit in (max_bytes, self._cluster.chunk) if limit is not None]
        return await self._stream.receive_some(min(limits, default=None))

    async def aclose(self) -> None:
        await self._stream.aclose()
