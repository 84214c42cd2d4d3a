"""Bootstrap addresses: what is read, and what is refused with a sentence that helps."""

from __future__ import annotations

from typing import Any

import pytest

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
def test_addresses_that_are_read(given: Any, expected: list[tuple[str, int]]) -> None:
    nodes = parse_bootstrap(given)
    assert [(node.host, node.port) for node in nodes] == expected
    assert [node.node_id for node in nodes] == [-1 - index for index in range(len(nodes))]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("localhost", "'localhost' has no port; write it as 'host:port'"),
        ("a:1,b", "'b' has no port"),
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
def test_addresses_that_are_refused(given: Any, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        parse_bootstrap(given)
