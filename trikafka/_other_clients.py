"""The names by which other packages have their clients."""

from __future__ import annotations

#: What opens a client here, by the end of its name in other packages.
_OPENINGS = {
    "AdminClient": "open_admin",
    "Consumer": "open_consumer",
    "Producer": "open_producer",
    "ShareConsumer": "open_share_consumer",
}


def hint_of_class(name: str) -> str:
    """Return what to use instead of another package's class, as the end of an error's text."""
    opens = _OPENINGS.get(name.removeprefix("AIO").removeprefix("Kafka"))
    package = "trikafka.aio" if name.startswith("AIO") else "trikafka"
    return f"; use 'async with {package}.{opens}(...)'" if opens else ""
