"""A name with several addresses (KIP-302), of both families: all are tried, and one that is dead costs no time."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest
import trio

import trikafka


class Names(trio.abc.HostnameResolver):
    """Knows one name, which has these addresses."""

    def __init__(self, *addresses: str) -> None:
        self.addresses, self.asked = addresses, 0

    async def getaddrinfo(self, host: Any, port: Any, family: int = 0, type: int = 0, proto: int = 0, flags: int = 0) -> Any:
        await trio.lowlevel.checkpoint()
        self.asked += 1
        assert host == b"kafka.test" or host == "kafka.test"
        found: list[Any] = []
        for address in self.addresses:
            is_6 = ":" in address
            kind = socket.AF_INET6 if is_6 else socket.AF_INET
            found.append((kind, socket.SOCK_STREAM, 6, "", (address, int(port), 0, 0) if is_6 else (address, int(port))))
        return found

    async def getnameinfo(self, sockaddr: Any, flags: int) -> Any:
        raise NotImplementedError


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    """At 127.0.0.1 alone; nothing is said there."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(30)
        yield server


async def opens(server: socket.socket, names: Names) -> str:
    """What opening a client at that port of the name ends with."""
    trio.socket.set_custom_hostname_resolver(names)
    address = f"kafka.test:{server.getsockname()[1]}"
    with trio.fail_after(60), pytest.raises(trikafka.BootstrapError) as caught:
        async with trikafka.open_admin(bootstrap_servers=address, socket_connection_setup_timeout_ms=1_500):
            pass
    assert names.asked
    return str(caught.value)


@pytest.mark.parametrize("dead", [("::1",), ("127.0.0.2",), ("::1", "127.0.0.2", "127.0.0.3")])
async def test_each_address_of_a_name_is_tried(listening: socket.socket, dead: tuple[str, ...]) -> None:
    assert "did not answer as a Kafka broker" in await opens(listening, Names(*dead, "127.0.0.1"))
    listening.accept()[0].close()


async def test_when_all_are_dead_that_is_said(listening: socket.socket) -> None:
    assert "refused" in await opens(listening, Names("127.0.0.2", "127.0.0.3"))
