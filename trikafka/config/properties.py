"""Translation of Java's names of settings into trikafka's.

Java's names stand in ``.properties`` files and on the command line.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import ConfigurationError
from . import java_properties
from .clients import AdminConfig, ClientConfig, ConsumerConfig, ProducerConfig
from .secrets import holds_secret, plain, secret
from .security_properties import ADVICE, OTHER_NAMES, take_security
from .setting import Setting, settings_of, unknown
from .unused import SERIALIZATION, leave_out_unused

#: Java's classes for keys and values as bytes, which trikafka uses anyway.
_BYTES = ("ByteArray", "ByteBuffer", "Bytes")


_SETTINGS_NAME = re.compile(r"[a-z]+[0-9]*(?:[._-][a-z0-9]+)+")
_AS_WRITTEN = ("password", "passphrase", "secret")
_log = logging.getLogger("trikafka.config")
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
    """Return settings for ``open_*`` from properties with Java-style names.

    Example: ``open_consumer(**from_properties({"group.id": "g"}, ConsumerConfig))``. A path is read
    at once and blocks the thread. For TLS and SASL, librdkafka's names are accepted as well, and
    the known login modules of Java's ``sasl.jaas.config``. Java's ``StringDeserializer`` becomes
    ``bytes.decode``. Java's classes for bytes are accepted and ignored.

    One file may serve several programs. The following entries are left out, and one warning names
    them all:

    * TLS or SASL settings that the file's own ``security.protocol`` does not use;
    * settings of other clients than ``client``;
    * settings that exist only in other languages' clients (``metric.reporters``,
      ``interceptor.classes``, a schema registry, sizes of socket buffers).

    A file is read as Java reads it: byte by byte (ISO-8859-1), with Java's escapes. Blanks around a
    value are dropped as in Java's client, except for passwords and secrets. Strings become numbers
    and booleans where the setting requires it.

    Args:
        properties: A mapping, or the path of a ``.properties`` file.
        client: :class:`ConsumerConfig`, :class:`ProducerConfig` or :class:`AdminConfig`. Without
            it, settings of other clients are kept, and opening the client raises an error for them.

    Returns:
        The settings by trikafka's names.

    Raises:
        ConfigurationError: The file cannot be read, a name is unknown, a setting is given under two
            names, or a value cannot be read. One error names all of these.
    """
    if not isinstance(properties, Mapping):
        properties = _read_file(properties)
    known = {
        name: found
        for cls in (AdminConfig, ConsumerConfig, ProducerConfig)
        for name, found in settings_of(cls).items()
    }
    by_java = {found.java: found for found in known.values() if found.java is not None}
    if strangers := [name for name in properties if not isinstance(name, str)]:
        raise ConfigurationError(
            f"the names of properties are texts, such as 'group.id', not {strangers[0]!r}"
        )
    properties = {name: secret(_trimmed(name, value)) for name, value in properties.items()}
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
                settings[found.name] = (
                    _from_text(dotted, value, found) if isinstance(value, str) else value
                )
            except ConfigurationError as error:
                wrong.append(str(error))
    if strange:
        names = {*by_java, *(name.replace("_", ".") for name in known), *OTHER_NAMES}
        wrong.insert(
            0, str(unknown(strange, names, "any client", lambda name: ADVICE.get(name, "")))
        )
    if wrong:  # all faults in one error, so that a long file is corrected in one pass
        raise ConfigurationError("; ".join(wrong))
    return {
        name: value if known[name].secret or holds_secret(value) else plain(value)
        for name, value in settings.items()
    }


def _trimmed(name: str, value: Any) -> Any:
    """Return a text without surrounding blanks, as Java's ``ConfigDef`` does.

    Java trims passwords as well. Passwords stay unchanged here: one may end in a blank, and
    librdkafka keeps the blank.
    """
    if isinstance(value, str) and not name.endswith(_AS_WRITTEN):
        return value.strip()
    return value


def _read_file(path: str | os.PathLike[str]) -> dict[str, str]:
    try:
        return read_properties_file(path)
    except OSError as error:
        raise ConfigurationError(f"the properties cannot be read: {error}") from error
    except ConfigurationError as error:
        raise ConfigurationError(f"the properties cannot be read: {path}, {error}") from error


def _take_serialization(
    rest: MutableMapping[str, Any], settings: MutableMapping[str, Any]
) -> list[str]:
    """Remove the settings that name Java's serializers; return the faults in them.

    trikafka uses functions instead of such classes.
    """
    wrong = []
    for dotted in SERIALIZATION:
        if not isinstance(rest.get(dotted), str):
            continue
        given, reads = plain(str(rest.pop(dotted))), dotted.endswith("deserializer")
        kind = given.rpartition(".")[2].removesuffix("Deserializer" if reads else "Serializer")
        if kind == "String":  # what is written is encoded before the call: text is refused there
            settings.update({dotted.replace(".", "_"): bytes.decode} if reads else {})
        elif kind not in _BYTES:
            instead = (
                "give open_consumer() a function for it" if reads else "encode before the call"
            )
            wrong.append(
                f"{dotted}={given!r} is a class of Java's: leave it out, for records are bytes, "
                f"or {instead}"
            )
    return wrong


def read_properties_file(path: str | os.PathLike[str]) -> dict[str, str]:
    """Read a ``.properties`` file as Java does (see :mod:`.java_properties`).

    The bytes are ISO-8859-1. A warning names the line of an entry that is not ASCII, since its
    author may have meant UTF-8.

    Raises:
        OSError: The file cannot be read.
        ConfigurationError: The file is malformed.
    """
    text, strange = java_properties.decode(Path(path).read_bytes())
    if strange is not None:
        _log.warning(
            "%s, line %d: bytes beyond ASCII are read as ISO-8859-1, as Java reads them;"
            " write such characters as \\uXXXX",
            path,
            strange,
        )
    return read_properties(text)


def read_properties(text: str) -> dict[str, str]:
    """Read the text of a ``.properties`` file as Java does.

    The last entry of a name counts. A name alone on its line gets the empty value, as in Java, but
    only if the name looks like a setting's. Any other text may be a part of a secret that was
    broken into lines.

    Raises:
        ConfigurationError: The file is malformed. The error names the line and never shows the
            value.
    """
    found: dict[str, str] = {}
    for entry in java_properties.entries(text):
        if entry.lone and not _SETTINGS_NAME.fullmatch(entry.name):
            raise ConfigurationError(
                f"line {entry.line}: it is not NAME=VALUE; a line that goes on ends in a backslash"
            )
        found[entry.name] = entry.value
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
    given = (
        text.upper() if known.name == "security_protocol" else text
    )  # librdkafka writes the protocol in lower case
    return next((choice for choice in known.choices or () if str(choice) == given), text)
