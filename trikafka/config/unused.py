"""What a file of properties has that means nothing where it is used, for such files are shared between programs, and between
languages: as Java's client does, it is left out with a warning. What stands as a keyword of ``open_*`` is meant there, and is never
left out.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from .clients import ClientConfig, ConsumerConfig, ProducerConfig
from .secrets import plain
from .setting import Setting, settings_of

#: Settings that name Java's classes for keys and values: whose they are.
SERIALIZATION: Mapping[str, type[ClientConfig]] = {
    "key.deserializer": ConsumerConfig,
    "value.deserializer": ConsumerConfig,
    "key.serializer": ProducerConfig,
    "value.serializer": ProducerConfig,
}
_PROTOCOL = "security.protocol"
#: How the names begin that have no meaning with a security protocol. Only one that is given counts: where none is, who has written
#: down credentials may believe that they are used, and that is refused when the client is opened.
_WITHOUT = {"PLAINTEXT": ("ssl.", "sasl."), "SSL": ("sasl.",), "SASL_PLAINTEXT": ("ssl.",)}
#: Names, or their beginnings with a dot at the end, of what other clients have and no client here: their metrics and logs, sizes of
#: socket buffers, what is told to serializers, and interceptors, which nearly always watch. None says how records are protected.
_NOT_HERE = (
    "metric.reporters", "metrics.", "auto.include.jmx.reporter", "enable.metrics.push", "statistics.interval.ms",
    "interceptor.classes", "confluent.monitoring.", "send.buffer.bytes", "receive.buffer.bytes", "socket.send.buffer.bytes",
    "socket.receive.buffer.bytes", "socket.keepalive.enable", "socket.nagle.disable", "api.version.request", "debug", "log.level",
    "log.connection.close", "schema.registry.", "basic.auth.", "auto.register.schemas", "use.latest.version",
    "specific.avro.reader",
)  # fmt: skip
_log = logging.getLogger("trikafka.config")


def leave_out_unused(
    properties: Mapping[str, Any], client: type[ClientConfig] | None, known: Mapping[str, Setting]
) -> dict[str, Any]:
    """``properties`` without what their own security protocol, ``client`` or trikafka has no use for; one warning names it.

    ``known``: the settings of all clients, by each name that is understood.
    """
    protocol = plain(str(properties.get(_PROTOCOL, properties.get("security_protocol", "")))).upper()
    begins = _WITHOUT.get(protocol, ())
    insecure = [name for name in properties if begins and name.startswith(begins)]
    foreign = [] if client is None else [name for name in properties if name not in insecure and _is_foreign(name, client, known)]
    absent = [name for name in properties if _is_not_here(name)]
    told = [f"{', '.join(insecure)} ({_PROTOCOL} is {protocol})"] if insecure else []
    if client is not None and foreign:
        told.append(f"{', '.join(foreign)} (not for {client.given_to})")
    if absent:
        told.append(f"{', '.join(absent)} (trikafka has no such thing)")
    if told:
        _log.warning("these properties were given but are not used: %s", "; ".join(told))
    return {name: value for name, value in properties.items() if name not in {*insecure, *foreign, *absent}}


def _is_foreign(name: str, client: type[ClientConfig], known: Mapping[str, Setting]) -> bool:
    """Whether it is a setting of other clients alone. What no client has is not: it may be misspelt."""
    if name in SERIALIZATION:
        return not issubclass(client, SERIALIZATION[name])
    found = known.get(name) or known.get(name.replace(".", "_"))
    return found is not None and found.name not in settings_of(client)  # type: ignore[arg-type]  # mypy doubts that a class is hashable


def _is_not_here(name: str) -> bool:
    dotted = name.replace("_", ".")
    return any(dotted == one or (one.endswith(".") and dotted.startswith(one)) for one in _NOT_HERE)
