"""Bootstrap addresses: valid ones, invalid ones, and names with several addresses (KIP-302)."""

from __future__ import annotations

import socket
from typing import Any

import pytest
import trio

import trikafka
from trikafka._net.addresses import parse_bootstrap
from trikafka.errors import ConfigurationError


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("localhost:9092", [("localhost", 9092)]),
        ("a:1,b:2", [("a", 1), ("b", 2)]),
        (" a:1 , b:2 ,", [("a", 1), ("b", 2)]),
        (["a:1", "b:65535"], [("a", 1), ("b", 65535)]),
        (("a:1",), [("a", 1)]),
        ("[::1]:9092", [("::1", 9092)]),
        ("[fe80::1%eth0]:9092,10.0.0.1:9092", [("fe80::1%eth0", 9092), ("10.0.0.1", 9092)]),
        ("PLAINTEXT://a:1,plaintext://b:2", [("a", 1), ("b", 2)]),
        ("kafka.example.com:09092", [("kafka.example.com", 9092)]),
    ],
)
def test_valid_addresses_are_read(given: Any, expected: list[tuple[str, int]]) -> None:
    nodes = parse_bootstrap(given)
    assert [(node.host, node.port) for node in nodes] == expected
    assert [node.node_id for node in nodes] == [-1 - index for index in range(len(nodes))]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("localhost", "'localhost' has no port; write it as 'host:port'"),
        ("a:1,b", "'b' has no port"),
        ("a:1;b:2", "servers: separate addresses by commas, or give a list; not 'a:1;b:2'"),
        ("a:1 b:2", "separate addresses by commas"),
        (":9092", "':9092' has no port"),
        ("::1:9092", "'::1:9092' has no port"),
        ("[::1:9092", "'\\[::1:9092' has no port"),
        ("a:", "'' is not a number from 1 to 65535"),
        ("a:b", "'b' is not a number"),
        ("a:0", "'0' is not a number"),
        ("a:65536", "'65536' is not a number"),
        ("a:-1", "'-1' is not a number"),
        ("a:9092/x", "'9092/x' is not a number"),
        ("a:९", "is not a number"),
        ("a:" + "9" * 5000, "is not a number"),
        ("a b:9092", "'a b:9092' has no valid host"),
        ("a]:9092", "has no valid host"),
        ("[]:9092", "has no valid host"),
        ("user@a:9092", "has no valid host"),
        ("SASL_SSL://a:1", "without SASL_SSL://, and security_protocol='SASL_SSL'"),
        ("a:1,kafka://b:1", "without kafka://"),
        ("", "must name at least one 'host:port', not ''"),
        (" , ", "must name at least one"),
        ([], "must name at least one"),
        (None, "must name at least one 'host:port', not None"),
        (9092, "must name at least one 'host:port', not 9092"),
        ([9092], "must name at least one"),
        (["a:1", None], "must name at least one"),
        (b"a:1", "must name at least one"),
        ({"a:1"}, "must name at least one"),
    ],
)
def test_invalid_addresses_are_refused(given: Any, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        parse_bootstrap(given)


class Names(trio.abc.HostnameResolver):
    """A resolver that knows one name with these addresses."""

    def __init__(self, *addresses: str) -> None:
        self.addresses = addresses
        self.asked = 0

    async def getaddrinfo(
        self, host: Any, port: Any, family: int = 0, type: int = 0, proto: int = 0, flags: int = 0
    ) -> Any:
        await trio.lowlevel.checkpoint()
        self.asked += 1
        assert host == b"kafka.test" or host == "kafka.test"
        found: list[Any] = []
        for address in self.addresses:
            is_6 = ":" in address
            kind = socket.AF_INET6 if is_6 else socket.AF_INET
            found.append(
                (
                    kind,
                    socket.SOCK_STREAM,
                    6,
                    "",
                    (address, int(port), 0, 0) if is_6 else (address, int(port)),
                )
            )
        return found

    async def getnameinfo(self, sockaddr: Any, flags: int) -> Any:
        raise NotImplementedError


async def opens(server: str, names: Names) -> str:
    """Open a client at the port of ``server``, by a name with these addresses; return its error."""
    trio.socket.set_custom_hostname_resolver(names)
    address = "kafka.test:" + server.rpartition(":")[2]
    with trio.fail_after(240), pytest.raises(trikafka.BootstrapError) as caught:
        async with trikafka.open_admin(
            bootstrap_servers=address, socket_connection_setup_timeout_ms=30_000
        ):
            pass
    assert names.asked
    return str(caught.value)


@pytest.mark.parametrize("dead", [("::1",), ("127.0.0.2",), ("::1", "127.0.0.2", "127.0.0.3")])
async def test_each_address_of_a_name_is_tried(web_server: str, dead: tuple[str, ...]) -> None:
    assert "does not speak Kafka's protocol" in await opens(web_server, Names(*dead, "127.0.0.1"))


async def test_dead_addresses_are_named(web_server: str) -> None:
    assert "refused" in await opens(web_server, Names("127.0.0.2", "127.0.0.3"))
