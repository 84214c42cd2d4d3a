"""Bootstrap addresses: text to nodes. No I/O."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import ConfigurationError
from ..types import Node


def parse_bootstrap(servers: str | Sequence[str]) -> list[Node]:
    """Read ``'host:port,[::1]:port'`` (or a sequence of such) into nodes with negative ids.

    Raises :exc:`ConfigurationError` that names the address that is wrong.
    """
    parts = servers.split(",") if isinstance(servers, str) else list(servers)
    texts = [part.strip() for part in parts if isinstance(part, str) and part.strip()]
    if not texts or not all(isinstance(part, str) for part in parts):
        raise ConfigurationError(f"bootstrap_servers must name at least one 'host:port', not {servers!r}")
    return [Node(-1 - index, *_parse(text)) for index, text in enumerate(texts)]


def _parse(text: str) -> tuple[str, int]:
    address = text.partition("://")[2] if "://" in text else text
    host, colon, port = address.rpartition(":")
    if not colon or not host or (":" in host and not host.startswith("[")):
        raise ConfigurationError(f"bootstrap address {text!r} has no port; write it as 'host:port', such as 'localhost:9092'")
    if not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise ConfigurationError(f"bootstrap address {text!r} has no valid port: {port!r} is not a number from 1 to 65535")
    return host.strip("[]"), int(port)
