"""A broker that answers ApiVersions and hangs up, over real sockets.

Each such connection is a failed attempt with its cause.
"""

from __future__ import annotations

import struct
from functools import partial
from typing import Any

import pytest
import trio

from trikafka import open_producer
from trikafka.errors import TrikafkaError
from trikafka.testing import ScriptedCluster


async def frame(stream: trio.abc.ReceiveStream) -> bytes:
    data = b""
    while len(data) < 4 or len(data) < 4 + struct.unpack(">i", data[:4])[0]:
        data += await stream.receive_some()
    return data


async def test_hang_up_after_the_dial_is_an_attempt(
    nursery: trio.Nursery,
) -> None:
    async with ScriptedCluster(nodes=2, topics={"t": 1}) as cluster:
        cluster.move_leader("t", 0, 1)
        good, bad = cluster.bootstrap_servers.split(",")

        async def hang_up(stream: trio.SocketStream) -> None:
            host, port = bad.rsplit(":", 1)
            inner = await cluster.dial(host, int(port))
            await inner.send_all(await frame(stream))
            await stream.send_all(await frame(inner))
            await stream.aclose()
            await inner.aclose()

        listeners = await nursery.start(partial(trio.serve_tcp, hang_up, 0, host="127.0.0.1"))
        port = listeners[0].socket.getsockname()[1]

        async def dial(host: str, number: int) -> trio.abc.Stream:
            if f"{host}:{number}" == bad:
                return await trio.open_tcp_stream("127.0.0.1", port)
            return await cluster.dial(host, number)

        settings: Any = {
            "bootstrap_servers": good,
            "dial": dial,
            "linger_ms": 0,
            "enable_idempotence": False,
            "retries": 2,
        }
        with trio.fail_after(100):  # retries end it, not the delivery timeout of 120 s
            async with open_producer(**settings) as producer:
                with pytest.raises(
                    TrikafkaError, match="the broker closed it before its first response"
                ):
                    await producer.send("t", b"x")
        nursery.cancel_scope.cancel()
