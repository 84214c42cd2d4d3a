"""The user's options for parsing keys and values, checked.

Pure: needs none of the packages that parse.
"""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

from trikafka import ConfigurationError
from trikafka.config.secrets import Secret
from trikafka.config.topics import check_topic_name
from trikafka.config.whole import is_whole
from trikafka.toolkit import shown

from .errors import SchemaError

FORMATS = ("binary", "json", "avro", "protobuf")
COLUMNS = ("value", "key")
OPTIONS = (
    *(f"{column}_{what}" for column in COLUMNS for what in ("format", "schema", "message")),
    "schema_registry",
    "schema_registry_auth",
    "schema_registry_token",
    "schema_registry_cafile",
    "schema_registry_timeout_ms",
    "dead_letter_topic",
)
#: Options whose values are never shown. A registry's URL may contain a password.
SECRET_OPTIONS = ("schema_registry", "schema_registry_auth", "schema_registry_token")
#: The imported package of each format. The extra of trikafka-export has the format's name.
_PACKAGES = {"avro": "fastavro", "protobuf": "google.protobuf"}
_PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
_JSON_HINT = '{} must be JSON like {{"n": "int64", "tags": ["string"]}}'


@dataclass(frozen=True, slots=True)
class ColumnOptions:
    """The options of the key or the value.

    ``format`` is ``None`` if not given. ``schema`` is the pinned form; ``None`` means that it is
    looked up.
    """

    format: str | None = None
    schema: Mapping[str, Any] | None = None
    message: str | None = None


@dataclass(frozen=True, slots=True)
class RegistrySettings:
    """The address and credentials of a schema registry.

    Hashable, and sent to workers; secrets hide themselves.
    """

    url: str
    auth: Secret | None = None
    token: Secret | None = None
    cafile: str | None = None
    timeout: float = 15.0


@dataclass(frozen=True, slots=True)
class ParseOptions:
    """All options of parsing."""

    value: ColumnOptions = ColumnOptions()
    key: ColumnOptions = ColumnOptions()
    registry: RegistrySettings | None = None
    dead_letter_topic: str | None = None

    def of(self, column: str) -> ColumnOptions:
        """Return the options of a column."""
        return self.value if column == "value" else self.key


def parse_options(rest: MutableMapping[str, Any]) -> ParseOptions:
    """Remove the options of parsing from ``rest`` and return them checked.

    Raises:
        ConfigurationError: An option is wrong.
    """
    given = {name: rest.pop(name) for name in OPTIONS if name in rest}
    registry = _registry(given)
    topic = given.get("dead_letter_topic")
    if topic is not None and (not isinstance(topic, str) or not topic.strip()):
        raise ConfigurationError(f"dead_letter_topic must be the name of a topic, not {topic!r}")
    if topic is not None:
        check_topic_name(topic)
    value, key = (_column(name, given, registry is not None) for name in COLUMNS)
    return ParseOptions(value, key, registry, topic)


def check_schemas(options: ParseOptions) -> None:
    """Check that the given schemas can become columns. Imports pyarrow, which is slow.

    Raises:
        ConfigurationError: A schema cannot.
    """
    for column in COLUMNS:
        own = options.of(column)
        if own.schema is not None:
            _CHECKS[own.format or "json"](own.schema, f"{column}_schema")


def check_package(format: str) -> None:
    """Raise :exc:`ConfigurationError` if the package of a format is missing."""
    package = _PACKAGES.get(format)
    try:
        there = package is None or importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:  # "google"
        there = False
    if not there:
        raise ConfigurationError(
            f"{format} needs a package that is not installed: pip install "
            f"'trikafka-export[{format}]'"
        )


def _column(column: str, given: Mapping[str, Any], by_registry: bool) -> ColumnOptions:
    format, schema, message = (
        given.get(f"{column}_{what}") for what in ("format", "schema", "message")
    )
    if format is not None and format not in FORMATS:
        raise ConfigurationError(
            f"{column}_format must be one of {', '.join(map(repr, FORMATS))}, not {format!r}"
        )
    if schema is not None and format in (None, "binary"):
        raise ConfigurationError(f"{column}_schema needs {column}_format=json, avro or protobuf")
    if message is not None and (
        format != "protobuf" or schema is None or not isinstance(message, str)
    ):
        raise ConfigurationError(
            f"{column}_message is the name of a message in {column}_schema with "
            f"{column}_format=protobuf"
        )
    check_package(format or "binary")
    if format in ("avro", "protobuf") and schema is None and not by_registry:
        raise ConfigurationError(
            f"{column}_format={format} needs {column}_schema or schema_registry"
        )
    if format == "protobuf" and schema is not None and message is None:
        raise ConfigurationError(
            f"{column}_message is missing: give the name of the message in {column}_schema"
        )
    if schema is None:
        return ColumnOptions(format)
    return ColumnOptions(format, _SCHEMAS[format or "json"](column, schema, message), message)


def _json_schema(column: str, schema: Any, message: str | None) -> Mapping[str, Any]:
    hint = _JSON_HINT.format(f"{column}_schema")
    if isinstance(schema, str | os.PathLike):
        text = os.fspath(schema)
        given = text if text.lstrip()[:1] in ("{", "[") else _read(column, text)
        try:
            schema = json.loads(given)
        except ValueError as error:
            raise ConfigurationError(hint) from error
    if not isinstance(schema, Mapping) or not schema:
        raise ConfigurationError(hint)
    return schema


def _avro_schema(column: str, schema: Any, message: str | None) -> Mapping[str, Any]:
    """Return the checked Avro schema, so that its faults are reported at once."""
    from .avro_types import AvroSchema

    if isinstance(schema, str | os.PathLike):
        text = os.fspath(schema)
        if text in _PRIMITIVES:
            schema = text
        else:
            given = text if text.lstrip()[:1] in ("{", "[", '"') else _read(column, text)
            try:
                schema = json.loads(given)
            except ValueError as error:
                raise SchemaError(
                    f"{column}_schema is no Avro schema: it is not JSON: {error}"
                ) from error
    return AvroSchema(schema, where=f"{column}_schema").pinned()


def _protobuf_schema(column: str, schema: Any, message: str | None) -> Mapping[str, Any]:
    from .protobuf_types import ProtobufSchema

    if not isinstance(schema, bytes | str | os.PathLike):
        raise ConfigurationError(
            f"{column}_schema must be a descriptor set (bytes) or its file, not {shown(schema)}"
        )
    data = schema if isinstance(schema, bytes) else _read(column, os.fspath(schema))
    return ProtobufSchema.of_set(data, str(message), where=f"{column}_schema").pinned()


def _check_json(schema: Mapping[str, Any], where: str) -> None:
    from .column_type import check_column
    from .json_format import JsonDecoder

    decoder = JsonDecoder(schema, where)
    check_column(decoder.type, where)
    decoder.check_readable(where)


def _check_avro(schema: Mapping[str, Any], where: str) -> None:
    from .avro_types import AvroSchema

    AvroSchema.of_pinned(schema, where).checked()


def _check_protobuf(schema: Mapping[str, Any], where: str) -> None:
    from .protobuf_types import ProtobufSchema

    ProtobufSchema.of_pinned(schema, where).checked()


_CHECKS = {"json": _check_json, "avro": _check_avro, "protobuf": _check_protobuf}
_SCHEMAS = {"json": _json_schema, "avro": _avro_schema, "protobuf": _protobuf_schema}


def _read(column: str, path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"{column}_schema is neither a schema nor a file that can be read: {error}"
        ) from error


def _registry(given: Mapping[str, Any]) -> RegistrySettings | None:
    url = given.get("schema_registry")
    if url is None:
        for name in OPTIONS:
            if name.startswith("schema_registry_") and name in given:
                raise ConfigurationError(f"{name} needs schema_registry, the URL")
        return None
    bare, auth = _without_user(url)
    if (said := _secret(given, "schema_registry_auth")) is not None:
        if ":" not in said:
            raise ConfigurationError(
                "schema_registry_auth must be USER:PASSWORD, or @FILE that holds it"
            )
        auth = said
    token = _secret(given, "schema_registry_token")
    if auth is not None and token is not None:
        raise ConfigurationError(
            "schema_registry_auth and schema_registry_token exclude each other"
        )
    cafile = given.get("schema_registry_cafile")
    if cafile is not None and not isinstance(cafile, str | os.PathLike):
        raise ConfigurationError(
            f"schema_registry_cafile must be the name of a file, not {shown(cafile)}"
        )
    if cafile is not None and not Path(cafile).is_file():
        raise ConfigurationError(f"schema_registry_cafile: there is no file {os.fspath(cafile)!r}")
    timeout = given.get("schema_registry_timeout_ms", 15_000)
    if isinstance(timeout, str) and timeout.strip().isdigit():
        timeout = int(timeout)
    if not is_whole(timeout, 1):
        raise ConfigurationError(
            f"schema_registry_timeout_ms must be a whole number of at least 1, not {timeout!r}"
        )
    return RegistrySettings(
        bare, auth, token, None if cafile is None else os.fspath(cafile), timeout / 1000
    )


def _without_user(url: Any) -> tuple[str, Secret | None]:
    """Return the URL without credentials, and the credentials that it contained."""
    if not isinstance(url, str) or not _is_url(Secret(url)):
        raise ConfigurationError("schema_registry must be a URL like https://registry.example:8081")
    parts = urlsplit(str.__str__(url))
    user, at, host = parts.netloc.rpartition("@")
    bare = urlunsplit((parts.scheme, host, parts.path.rstrip("/"), "", ""))
    return bare, Secret(unquote(user) if ":" in user else f"{unquote(user)}:") if at else None


def _is_url(url: str) -> bool:
    try:
        parts = urlsplit(str.__str__(url))
        _ = parts.port
        (parts.hostname or "").encode("idna")
    except ValueError:
        return False
    if not parts.path.isascii() or any(sign <= " " for sign in f"{parts.hostname}{parts.path}"):
        return False  # requests to such a URL would fail, but much later
    return (
        parts.scheme in ("http", "https")
        and bool(parts.hostname)
        and not parts.query
        and not parts.fragment
    )


def _secret(given: Mapping[str, Any], name: str) -> Secret | None:
    """Return a secret, given directly or as ``@FILE``: command lines are visible to others."""
    value = given.get(name)
    if value is None:
        return None
    if not isinstance(value, str) or not value:
        raise ConfigurationError(f"{name} must be non-empty text, or @FILE that holds it")
    if value[0] == "@":
        try:
            value = Secret(Path(value[1:]).read_text(encoding="utf-8").strip())
        except (OSError, ValueError) as error:
            raise ConfigurationError(
                f"{name}: the file after @ cannot be read: {type(error).__name__}"
            ) from None
    if any(ord(letter) < 32 or ord(letter) == 127 for letter in value) or (
        name.endswith("token") and not value.isascii()
    ):
        raise ConfigurationError(f"{name} holds characters that no HTTP header may hold")
    return Secret(value)
