"""Entries of a properties file that have no effect for the client that reads it.

Files are shared between programs and between languages. As in Java's client, such entries are left
out with a warning. Keywords of ``open_*`` are meant for that client and are never left out.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Mapping
from typing import Any

from .clients import ClientConfig, ConsumerConfig, ProducerConfig
from .property_names import rule_of
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
_log = logging.getLogger("trikafka.config")


def leave_out_unused(
    properties: Mapping[str, Any], client: type[ClientConfig] | None, known: Mapping[str, Setting]
) -> dict[str, Any]:
    """Return ``properties`` without entries that have no effect; log one warning about them.

    An entry has no effect because of the file's security protocol, the kind of client, or because
    trikafka lacks the feature; the last is in the table of ``property_names.py``.

    Args:
        properties: The entries.
        client: The client's class; ``None`` keeps settings of other clients.
        known: The settings of all clients by every accepted name.
    """
    protocol = plain(
        str(properties.get(_PROTOCOL, properties.get("security_protocol", "")))
    ).upper()
    begins = _WITHOUT.get(protocol, ())
    # aiokafka has "PLAIN" and "PLAINTEXT" as defaults, so its programs give both. ``None`` asks for
    # nothing, and is no part of the warning.
    insecure = [
        name
        for name, value in properties.items()
        if begins and name.replace("_", ".").startswith(begins) and value is not None
    ]
    foreign = (
        []
        if client is None
        else [
            name for name in properties if name not in insecure and _is_foreign(name, client, known)
        ]
    )
    absent: dict[str, list[str]] = {}
    for name in properties:
        rule = rule_of(name)
        if rule is not None and rule.ignored and name not in insecure:
            absent.setdefault(rule.why, []).append(name)
    lines = [f"{', '.join(insecure)} ({_PROTOCOL} is {protocol})"] if insecure else []
    if client is not None:
        lines += _foreign_lines(foreign, client, known)
    lines += [f"{', '.join(names)} ({why})" for why, names in absent.items()]
    if lines:
        _log.warning("these properties were given but are not used: %s", "; ".join(lines))
    return {
        name: value
        for name, value in properties.items()
        if name not in {*insecure, *foreign, *itertools.chain(*absent.values())}
    }


def _foreign_lines(
    names: list[str], client: type[ClientConfig], known: Mapping[str, Setting]
) -> list[str]:
    """Return the parts of the warning about settings of other clients."""
    # Some have a counterpart that is set elsewhere. Without it a share group, for example, would
    # begin at the end of its topics, although the file says "earliest".
    elsewhere: dict[str, str] = {}
    for name in names:
        found = known.get(name) or known.get(name.replace(".", "_"))
        if found is not None and found.name in client.set_elsewhere:
            elsewhere[name] = client.set_elsewhere[found.name]
    rest = [name for name in names if name not in elsewhere]
    lines = [f"{', '.join(rest)} (not for {client.given_to})"] if rest else []
    if elsewhere:
        lines.append(
            f"{', '.join(elsewhere)} (settings of the group, by admin.alter_configs on the "
            f"resource type GROUP: {', '.join(elsewhere.values())})"
        )
    return lines


def _is_foreign(name: str, client: type[ClientConfig], known: Mapping[str, Setting]) -> bool:
    """Return whether the setting belongs only to other clients.

    An unknown name does not: it may be misspelt.
    """
    if name in SERIALIZATION:
        return not issubclass(client, SERIALIZATION[name])
    found = known.get(name) or known.get(name.replace(".", "_"))
    if found is None:
        return False
    # mypy doubts that a class is hashable.
    return found.name not in settings_of(client)  # type: ignore[arg-type]
