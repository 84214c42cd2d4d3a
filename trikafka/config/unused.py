"""Entries of a properties file that have no effect for the client that reads it.

Files are shared between programs and between languages. As in Java's client, such entries are left
out with a warning. Keywords of ``open_*`` are meant for that client and are never left out.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from .clients import ClientConfig, ConsumerConfig, ProducerConfig
from .secrets import plain
from .setting import Setting, settings_of

#: The settings that name Java's classes for keys and values, with the client that has each.
SERIALIZATION: Mapping[str, type[ClientConfig]] = {
    "key.deserializer": ConsumerConfig,
    "value.deserializer": ConsumerConfig,
    "key.serializer": ProducerConfig,
    "value.serializer": ProducerConfig,
}
_PROTOCOL = "security.protocol"
#: Prefixes of the names that have no effect with a security protocol. Only a protocol that is given
#: counts. If none is given, the author of credentials may believe that they are used, so opening
#: the client raises an error.
_WITHOUT = {
    "PLAINTEXT": ("ssl.", "sasl.", "https."),
    "SSL": ("sasl.", "https."),
    "SASL_PLAINTEXT": ("ssl.",),
}
#: Names of settings that exist only in other clients. A name that ends in a dot is a prefix. They
#: concern metrics, logs, socket buffers, serializers, and interceptors, which nearly always
#: observe. None affects how records are protected.
NOT_HERE = (
    "metric.reporters",
    "metrics.",
    "auto.include.jmx.reporter",
    "enable.metrics.push",
    "statistics.interval.ms",
    "interceptor.classes",
    "confluent.monitoring.",
    "send.buffer.bytes",
    "receive.buffer.bytes",
    "socket.send.buffer.bytes",
    "socket.receive.buffer.bytes",
    "socket.keepalive.enable",
    "socket.nagle.disable",
    "api.version.request",
    "debug",
    "log.level",
    "log.connection.close",
    "schema.registry.",
    "basic.auth.",
    "auto.register.schemas",
    "use.latest.version",
    "specific.avro.reader",
    # Java's schedule and timeouts for renewing tokens and tickets.
    "sasl.login.refresh.",
    "sasl.login.retry.",
    "sasl.login.connect.timeout.ms",
    "sasl.login.read.timeout.ms",
)
_log = logging.getLogger("trikafka.config")


def leave_out_unused(
    properties: Mapping[str, Any], client: type[ClientConfig] | None, known: Mapping[str, Setting]
) -> dict[str, Any]:
    """Return ``properties`` without entries that have no effect; log one warning about them.

    An entry has no effect because of the file's security protocol, the kind of client, or because
    trikafka lacks the feature.

    Args:
        properties: The entries.
        client: The client's class; ``None`` keeps settings of other clients.
        known: The settings of all clients by every accepted name.
    """
    protocol = plain(
        str(properties.get(_PROTOCOL, properties.get("security_protocol", "")))
    ).upper()
    begins = _WITHOUT.get(protocol, ())
    insecure = [name for name in properties if begins and name.startswith(begins)]
    foreign = (
        []
        if client is None
        else [
            name for name in properties if name not in insecure and _is_foreign(name, client, known)
        ]
    )
    absent = [name for name in properties if _is_not_here(name)]
    told = [f"{', '.join(insecure)} ({_PROTOCOL} is {protocol})"] if insecure else []
    if client is not None and foreign:
        told.append(f"{', '.join(foreign)} (not for {client.given_to})")
    if absent:
        told.append(f"{', '.join(absent)} (trikafka has no such thing)")
    if told:
        _log.warning("these properties were given but are not used: %s", "; ".join(told))
    return {
        name: value
        for name, value in properties.items()
        if name not in {*insecure, *foreign, *absent}
    }


def _is_foreign(name: str, client: type[ClientConfig], known: Mapping[str, Setting]) -> bool:
    """Return whether the setting belongs only to other clients.

    An unknown name does not: it may be misspelt.
    """
    if name in SERIALIZATION:
        return not issubclass(client, SERIALIZATION[name])
    found = known.get(name) or known.get(name.replace(".", "_"))
    return found is not None and found.name not in settings_of(client)  # type: ignore[arg-type]  # mypy doubts that a class is hashable


def _is_not_here(name: str) -> bool:
    dotted = name.replace("_", ".")
    return any(dotted == one or (one.endswith(".") and dotted.startswith(one)) for one in NOT_HERE)
