"""Addresses of brokers: bootstrap addresses as nodes, and those that responses name. No I/O."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ..errors import ConfigurationError, ProtocolError
from ..types import Node


def parse_bootstrap(servers: str | Sequence[str], setting: str = "bootstrap_servers") -> list[Node]:
    """Read ``'host:port,[::1]:port'`` (or a sequence of such) into nodes with negative ids.

    Raises :exc:`ConfigurationError` that names the wrong address.
    """
    parts = servers.split(",") if isinstance(servers, str) else servers
    good = (
        isinstance(parts, Sequence)
        and not isinstance(parts, bytes | bytearray)
        and all(isinstance(p, str) for p in parts)
    )
    texts = [part.strip() for part in parts if part.strip()] if good else []
    if not texts:
        shown = (
            repr(servers)
            if isinstance(servers, str | int | None)
            else "none"
            if good
            else type(servers).__name__
        )
        raise ConfigurationError(f"{setting} must name at least one 'host:port', not {shown}")
    return [Node(-1 - index, *_parse(text, setting)) for index, text in enumerate(texts)]


def is_possible(node: Node) -> bool:
    """Return whether a broker that a response names can exist.

    The system cuts a port beyond 65535 to 16 bits, and would connect to another port.
    """
    return bool(node.host) and node.node_id >= 0 and 0 < node.port < 65536


def impossible(node: Node, what: str) -> ProtocolError:
    """Return the error for ``what`` of a response, which names an impossible broker."""
    error = ProtocolError(
        f"{what} is impossible: broker {node.node_id} at {node.host!r}:{node.port}"
    )
    # Another broker may send a good response, and so may this one later.
    error.retriable = True
    return error


def _parse(text: str, setting: str) -> tuple[str, int]:
    scheme, separator, address = text.rpartition("://")
    if separator and scheme.upper() != "PLAINTEXT":
        secured = scheme.upper() in ("SSL", "SASL_PLAINTEXT", "SASL_SSL")
        more = f", and security_protocol={scheme.upper()!r}" if secured else ""
        raise ConfigurationError(f"{setting}: write 'host:port' without {scheme}://{more}")
    host, colon, port = address.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if not colon or not host or (":" in host and not bracketed):
        if re.search(r":\d+[;\s]", text):
            raise ConfigurationError(
                f"{setting}: separate addresses by commas, or give a list; not {text!r}"
            )
        raise ConfigurationError(
            f"bootstrap address {text!r} has no port; write it as 'host:port', such as "
            "'localhost:9092'"
        )
    if not port.isascii() or not port.isdigit() or len(port) > 5 or not 0 < int(port) < 65536:
        raise ConfigurationError(
            f"bootstrap address {text!r} has no valid port: {port!r} is not a number from 1 to "
            "65535"
        )
    if bracketed:
        host = host[1:-1]
    if not host or any(c.isspace() or c in "[]/@" for c in host):
        raise ConfigurationError(
            f"bootstrap address {text!r} has no valid host; write it as 'host:port', such as "
            "'localhost:9092'"
        )
    return host, int(port)
