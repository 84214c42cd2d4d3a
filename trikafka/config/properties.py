"""Java's names of settings, as they stand in ``.properties`` files and on the command line, to ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import ConfigurationError
from .clients import AdminConfig, ConsumerConfig, ProducerConfig
from .secrets import holds_secret, plain, secret
from .security_properties import OTHER_NAMES, take_security
from .setting import Setting, settings_of, unknown


def from_properties(properties: Mapping[str, Any]) -> dict[str, Any]:
    """Turn Java-style names (``{"group.id": "g"}``) into settings: ``open_consumer(**from_properties(...))``.

    For TLS and SASL those of librdkafka are understood as well, and of Java's ``sasl.jaas.config`` the known login modules.

    Strings are turned into numbers and booleans where the setting is one. Raises :exc:`ConfigurationError` for a name that
    no client has, and for a setting that is given under two names.
    """
    known = {name: found for cls in (AdminConfig, ConsumerConfig, ProducerConfig) for name, found in settings_of(cls).items()}
    by_java = {found.java: found for found in known.values() if found.java is not None}
    properties = {name: secret(value) for name, value in properties.items()}
    settings, rest = take_security(properties)
    for dotted, value in rest.items():
        found = by_java.get(dotted) or known.get(dotted.replace(".", "_"))
        if found is None:
            raise unknown(dotted, {*by_java, *(name.replace("_", ".") for name in known), *OTHER_NAMES}, "any client")
        if found.name in settings:
            raise ConfigurationError(f"{found.name} is given twice, the second time as {dotted!r}")
        settings[found.name] = _from_text(dotted, value, found) if isinstance(value, str) else value
    return {name: value if known[name].secret or holds_secret(value) else plain(value) for name, value in settings.items()}


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
        return tuple(part.strip() for part in text.split(",") if part.strip())
    given = text.upper() if known.name == "security_protocol" else text  # librdkafka writes it small
    return next((choice for choice in known.choices or () if str(choice) == given), text)
