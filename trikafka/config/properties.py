"""Java's names of settings, as they stand in ``.properties`` files and on the command line, to ours."""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import ConfigurationError
from .clients import AdminConfig, ClientConfig, ConsumerConfig, ProducerConfig
from .secrets import holds_secret, plain, secret
from .security_properties import OTHER_NAMES, take_security
from .setting import Setting, settings_of, unknown
from .unused import SERIALIZATION, leave_out_unused

#: Java's classes that say what trikafka does anyway: keys and values are bytes.
_BYTES = ("ByteArray", "ByteBuffer", "Bytes")


_ASSIGNORS_OF_JAVA = "org.apache.kafka.clients.consumer."
_ASSIGNORS = {
    "RangeAssignor": "range",
    "RoundRobinAssignor": "roundrobin",
    "StickyAssignor": "sticky",
    "CooperativeStickyAssignor": "cooperative-sticky",
}


def from_properties(
    properties: Mapping[str, Any] | str | os.PathLike[str], client: type[ClientConfig] | None = None
) -> dict[str, Any]:
    """Turn Java-style names (``{"group.id": "g"}``) into settings: ``open_consumer(**from_properties(..., ConsumerConfig))``.

    ``properties`` may be the path of a file of them, which is read at once. For TLS and SASL the names of librdkafka are
    understood as well, and of Java's ``sasl.jaas.config`` the known login modules. Java's ``StringDeserializer`` becomes
    ``bytes.decode``; its classes for bytes are what trikafka does anyway.

    One file may serve several programs. What it has for TLS or SASL that its own ``security.protocol`` does not use is left out,
    and what other clients have than ``client`` (:class:`ConsumerConfig`, :class:`ProducerConfig`, :class:`AdminConfig`), too, and
    what only other languages' clients have (``metric.reporters``, ``interceptor.classes``, a schema registry, sizes of socket
    buffers): one warning names all of that. Without ``client`` what the client does not have is an error when it is opened.

    Strings are turned into numbers and booleans where the setting is one. Raises :exc:`ConfigurationError` for names that
    no client has, for a setting that is given under two names, and for values that cannot be read: one error names all of these.
    So is a file that cannot be read.
    """
    if not isinstance(properties, Mapping):
        properties = _read_file(properties)
    known = {name: found for cls in (AdminConfig, ConsumerConfig, ProducerConfig) for name, found in settings_of(cls).items()}
    by_java = {found.java: found for found in known.values() if found.java is not None}
    if strangers := [name for name in properties if not isinstance(name, str)]:
        raise ConfigurationError(f"the names of properties are texts, such as 'group.id', not {strangers[0]!r}")
    properties = {name: secret(value) for name, value in properties.items()}
    settings, rest = take_security(leave_out_unused(properties, client, {**known, **by_java}))
    wrong = _take_serialization(rest, settings)
    strange: list[str] = []
    for dotted, value in rest.items():
        found = by_java.get(dotted) or known.get(dotted.replace(".", "_"))
        if found is None:
            strange.append(dotted)
        elif found.name in settings:
            wrong.append(f"{found.name} is given twice, the second time as {dotted!r}")
        else:
            try:
                settings[found.name] = _from_text(dotted, value, found) if isinstance(value, str) else value
            except ConfigurationError as error:
                wrong.append(str(error))
    if strange:
        names = {*by_java, *(name.replace("_", ".") for name in known), *OTHER_NAMES}
        wrong.insert(0, str(unknown(strange, names, "any client")))
    if wrong:  # who has a long file mends it in one go
        raise ConfigurationError("; ".join(wrong))
    return {name: value if known[name].secret or holds_secret(value) else plain(value) for name, value in settings.items()}


def _read_file(path: str | os.PathLike[str]) -> dict[str, str]:
    try:
        return read_properties(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"the properties cannot be read: {error}") from error


def _take_serialization(rest: MutableMapping[str, Any], settings: MutableMapping[str, Any]) -> list[str]:
    """Java names classes here, of which trikafka has none; return what is wrong with them."""
    wrong = []
    for dotted in SERIALIZATION:
        if not isinstance(rest.get(dotted), str):
            continue
        given, reads = plain(str(rest.pop(dotted))), dotted.endswith("deserializer")
        kind = given.rpartition(".")[2].removesuffix("Deserializer" if reads else "Serializer")
        if kind == "String":  # what is written is encoded before the call: text is refused there
            settings.update({dotted.replace(".", "_"): bytes.decode} if reads else {})
        elif kind not in _BYTES:
            instead = "give open_consumer() a function for it" if reads else "encode before the call"
            wrong.append(f"{dotted}={given!r} is a class of Java's: leave it out, for records are bytes, or {instead}")
    return wrong


def read_properties(text: str) -> dict[str, str]:
    """Read a file of properties as Java and librdkafka write them: ``name=value``, comments after ``#``, ``\\`` at the end goes on.

    Raises :exc:`ConfigurationError` that names the line, and never shows the value.
    """
    found: dict[str, str] = {}
    joined = ""
    for number, line in enumerate(text.splitlines(), 1):
        part = line.strip() if not joined else line.lstrip()
        if not joined and (not part or part[0] in "#!"):
            continue
        if part.endswith("\\") and not part.endswith("\\\\"):
            joined += part[:-1]
            continue
        name, separator, value = (joined + part).partition("=")
        joined = ""
        if not separator or not name.strip():
            raise ConfigurationError(f"line {number}: it is not NAME=VALUE")
        found[name.strip()] = secret(value.strip().replace("\\\\", "\\"))
    return found


def _from_text(name: str, text: str, known: Setting) -> object:
    if bool in known.kinds:
        if text.lower() not in ("true", "false"):
            raise ConfigurationError(f"{name} must be true or false, not {plain(text)!r}")
        return text.lower() == "true"
    if known.number:
        try:
            return float(text) if "." in text else int(text)
        except ValueError:
            raise ConfigurationError(f"{name} must be a number, not {plain(text)!r}") from None
    if Sequence in known.kinds and str not in known.kinds:
        parts = (part.strip() for part in text.split(",") if part.strip())
        return tuple(_ASSIGNORS.get(part.removeprefix(_ASSIGNORS_OF_JAVA), part) for part in parts)
    given = text.upper() if known.name == "security_protocol" else text  # librdkafka writes it small
    return next((choice for choice in known.choices or () if str(choice) == given), text)
