"""Translation of other clients' names of settings into trikafka's.

Such names come from ``.properties`` files, from the command line, and from programs that change to
trikafka.
"""

from __future__ import annotations

import logging
import math
import os
import re
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import ConfigurationError
from . import java_properties
from .clients import (
    AdminConfig,
    ClientConfig,
    ConsumerConfig,
    ProducerConfig,
    ShareConsumerConfig,
)
from .property_names import RULES, PropertyRule, is_for_librdkafka, rule_of
from .secrets import holds_secret, plain, secret
from .security_properties import NAMES, take_security
from .setting import Setting, nearest, settings_of, unknown
from .text import plain_text
from .unused import SERIALIZATION, leave_out_unused
from .whole import is_number

#: Java's classes for keys and values as bytes, which trikafka uses anyway.
_BYTES = ("ByteArray", "ByteBuffer", "Bytes")


_SETTINGS_NAME = re.compile(r"[a-z]+[0-9]*(?:[._-][a-z0-9]+)+")
_ENCODE = "keys and values are bytes: encode before the call"
_LEVEL = "compression.level"
#: The levels of each codec. librdkafka takes 0 to 12 for all of them: it lowers what is too high,
#: and 0 is its fastest level (with gzip the one that only stores, which trikafka does not have).
_LEVELS = {"gzip": (1, 9), "lz4": (1, 12), "zstd": (0, 12)}
#: A name that has one of these words, in any case and after any prefix, is about security.
_ABOUT_SECURITY = frozenset(("ssl", "sasl", "security"))
#: A variable of Java's ``config.providers``. Each search ends at the first brace.
_PLACEHOLDER = re.compile(r"\$\{[a-zA-Z][\w.-]*:[^${}]+\}")
_WORD = re.compile(r"[a-z0-9]+")
#: The ends of names whose values keep their blanks.
_AS_WRITTEN = ("password", "passphrase", "secret")
_log = logging.getLogger("trikafka.config")
_ASSIGNORS_OF_JAVA = "org.apache.kafka.clients.consumer."
_ASSIGNORS = {
    "RangeAssignor": "range",
    "RoundRobinAssignor": "roundrobin",
    "StickyAssignor": "sticky",
    "CooperativeStickyAssignor": "cooperative-sticky",
}
_PARTITIONERS_OF_JAVA = "org.apache.kafka.clients.producer."
#: What to give instead of the partitioners that Java has beside the default one.
_INSTEAD_OF_PARTITIONER = {
    "UniformStickyPartitioner": "give partitioner.ignore.keys=true",
    "RoundRobinPartitioner": "give partitioner, a function of the topic, key and partitions",
}


def from_properties(
    properties: Mapping[str, Any] | str | os.PathLike[str], client: type[ClientConfig] | None = None
) -> dict[str, Any]:
    """Return settings for ``open_*`` from properties with the names of other clients.

    Example: ``open_consumer(**from_properties({"group.id": "g"}, ConsumerConfig))``. A file is read
    at once, which blocks the thread. The names are those of Java's client and librdkafka, and the
    keywords of aiokafka and kafka-python. Java's ``StringDeserializer`` becomes ``bytes.decode``.
    Java's classes for bytes are accepted and ignored.

    One file may serve several programs. The following entries are left out, and one warning names
    them all, with the reasons:

    * TLS or SASL settings that the file's own ``security.protocol`` does not use;
    * settings of other clients than ``client``;
    * settings without a meaning here (``metric.reporters``, ``interceptor.classes``, a schema
      registry, sizes of socket buffers);
    * names that resemble no setting of a Kafka client. Java ignores these, too. A name that is
      nearly right is an error.

    Properties with names of librdkafka select two of its defaults, with a warning, unless they name
    the setting: ``partitioner="consistent_random"`` for a producer, so that keys keep their
    partitions, and ``isolation_level="read_committed"`` with :class:`ConsumerConfig`.

    A file is read as Java reads it: byte by byte (ISO-8859-1), with Java's escapes. Blanks around a
    value are dropped as in Java's client, except for passwords and secrets. Strings become numbers
    and booleans where the setting requires it.

    Args:
        properties: A mapping, or the path of a ``.properties`` file.
        client: :class:`ConsumerConfig`, :class:`ProducerConfig`, :class:`ShareConsumerConfig` or
            :class:`AdminConfig`. Without it, settings of other clients are kept, and opening the
            client raises an error for them.

    Returns:
        The settings by trikafka's names.

    Raises:
        ConfigurationError: The file cannot be read, a name is refused or nearly right, a setting is
            given under two names with different values, or a value cannot be read. One error names
            all of these.
    """
    properties = _hidden(properties)  # an error tracker records the locals of each frame
    return read_settings(properties, client, strict=False)


def read_settings(
    properties: Mapping[str, Any] | str | os.PathLike[str],
    client: type[ClientConfig] | None,
    *,
    strict: bool,
    complete: bool = True,
) -> dict[str, Any]:
    """Do what :func:`from_properties` does; ``strict`` makes each unknown name an error.

    With ``complete=False`` no settings are added for properties of librdkafka. A caller that has
    properties from several places then calls :func:`behave_as_librdkafka` with all of them.
    """
    properties = _hidden(properties)
    _warn_of_placeholders(properties)
    known = {
        name: found
        for cls in (ShareConsumerConfig, AdminConfig, ConsumerConfig, ProducerConfig)
        for name, found in settings_of(cls).items()
    }
    by_name = {found.java: found for found in known.values() if found.java is not None}
    by_name |= {name: known[rule.setting] for name, rule in RULES.items() if rule.setting}
    settings, rest = take_security(leave_out_unused(properties, client, {**known, **by_name}))
    wrong = _take_serialization(rest, settings)
    strange: list[str] = []
    beside = _name_the_level(rest)
    # If a setting is given under two names and one of them yields, that one comes second.
    for dotted, value in sorted(rest.items(), key=lambda entry: _rule(entry[0]).yields):
        rule = _rule(dotted)
        found = by_name.get(dotted) or known.get(dotted.replace(".", "_"))
        if found is None and rule.setting is not None:
            found = known[rule.setting]
        if value is None and (rule.refused or rule.only):
            continue  # the default of an argument of a Python client: it asks for nothing
        if rule.refused or rule.only:
            wrong += _faults(dotted, value, rule)
        elif found is None:
            strange.append(dotted)
        elif found.name in settings and rule.yields:
            beside.append(f"{dotted} ({found.name} is given)")
        else:
            try:
                translated = _translated(dotted, value, rule, found)
            except ConfigurationError as error:
                wrong.append(str(error))
            else:
                # None is the default of some arguments of Python clients, and confluent-kafka's
                # word for a default. Where trikafka has no such value, its own default counts.
                if translated is None and not (value is None and found.optional):
                    continue
                # A file for Java and librdkafka may have the same value under both names.
                if settings.get(found.name, translated) != translated:
                    wrong.append(
                        f"{found.name} is given twice, the second time as {dotted!r}, with "
                        "another value"
                    )
                settings.setdefault(found.name, translated)
    names = {*by_name, *(name.replace("_", ".") for name in known), *NAMES, _LEVEL}
    names |= {name for name in RULES if not name.endswith(".")}  # no prefixes
    if misspelt := [name for name in strange if strict or _is_misspelt(name, names)]:
        wrong.insert(0, str(unknown(misspelt, names, "any client")))
    if wrong:  # all faults in one error, so that a long file is corrected in one pass
        raise ConfigurationError("; ".join(wrong))
    beside += [f"{name} (no Kafka client's)" for name in strange]
    if beside:
        _log.warning("these properties were given but are not used: %s", "; ".join(beside))
    if complete:
        behave_as_librdkafka(settings, properties, client)
    return {
        name: value if known[name].secret or holds_secret(value) else plain(value)
        for name, value in settings.items()
    }


def _warn_of_placeholders(properties: Mapping[str, Any]) -> None:
    """Log the names of properties that another program was to fill in.

    With Java's client too, such a value is used as it is where no ``config.providers`` is given. A
    broker then refuses the password, and no error says why.
    """
    names = [
        name
        for name, value in properties.items()
        if isinstance(value, str) and _PLACEHOLDER.search(value) is not None
    ]
    if names:
        _log.warning(
            "these properties hold placeholders such as ${env:NAME}, which are used as they are: "
            "%s; fill them in before",
            ", ".join(names),
        )


def _name_the_level(rest: MutableMapping[str, Any]) -> list[str]:
    """Rename librdkafka's ``compression.level`` to the setting of the codec that is used.

    Returns the property with the reason, in a list, if it has no effect.
    """
    names = ("compression.type", "compression_type", "compression.codec", "compression_codec")
    codec = plain(str(next((rest[name] for name in names if rest.get(name) is not None), "none")))
    given = rest.pop(_LEVEL, None)
    level = plain(str(given))
    if given is None or level == "-1":
        return []
    if codec not in _LEVELS:
        return [f"{_LEVEL} ({codec} has no levels)"]
    if level.isdecimal():
        least, most = _LEVELS[codec]
        level = str(min(max(int(level), least), most))
    rest.setdefault(f"compression.{codec}.level", level)
    return []


def _rule(name: str) -> PropertyRule:
    return rule_of(name) or PropertyRule()


def _faults(name: str, value: Any, rule: PropertyRule) -> list[str]:
    """Return the fault of a property that is refused, or whose value must be one of a few."""
    if rule.refused:
        return [f"{name!r} is not supported: {rule.why}"]
    given = plain(str(value)).strip().lower()
    truth = _truth(given)
    if given in map(str.lower, rule.only) or (
        truth is not None and truth in map(_truth, rule.only)
    ):
        return []
    known = " or ".join(map(repr, rule.only))
    instead = f"; {rule.why}" if rule.why else ""
    return [f"{name} must be {known}, which is what trikafka does, or be left out{instead}"]


def _partitioner(name: str, value: object) -> object:
    """Return a partitioner as trikafka has it; ``None`` stands for the default one.

    Raises:
        ConfigurationError: It is a class of Java's client that trikafka has nothing for.
    """
    if isinstance(value, str) and value.startswith(_PARTITIONERS_OF_JAVA):
        kind = value.rpartition(".")[2]
        if kind == "DefaultPartitioner":
            return None
        if kind in _INSTEAD_OF_PARTITIONER:
            raise ConfigurationError(f"{name}={plain(value)!r}: {_INSTEAD_OF_PARTITIONER[kind]}")
    made_by = type(value)
    if made_by.__name__ == "DefaultPartitioner" and made_by.__module__.startswith(
        ("aiokafka.", "kafka.")
    ):
        return None  # the default argument of a Python client: murmur2, too
    return value


def _translated(name: str, value: Any, rule: PropertyRule, found: Setting) -> Any:
    """Return a property's value in the form of its setting; ``None`` stands for the default."""
    # None asks for nothing, unlike the text "none": that makes a missing offset an error, or means
    # no limit of idle time. Only in aiokafka's keyword None means no limit, too.
    if value is None and name != "connections_max_idle_ms":
        return None
    if rule.values and (text := plain(str(value)).lower()) in rule.values:
        return rule.values[text]
    if found.name == "partitioner":
        value = _partitioner(name, value)
    if isinstance(value, str):
        value = _from_text(name, value, found)
    elif bool in found.kinds and isinstance(value, int) and value in (0, 1):
        value = bool(value)  # confluent-kafka writes each value as text, and librdkafka reads it
    elif found.name == "partition_assignment_strategy" and isinstance(value, list | tuple):
        # aiokafka and kafka-python take classes, which have the assignor's name.
        value = tuple(getattr(one, "name", one) for one in value)
    return value * rule.scale if is_number(value) else value


def _is_misspelt(name: str, known: Iterable[str]) -> bool:
    """Return whether an unknown name is probably meant for a Kafka client.

    Names about security always count as such: a program must not run with less security than its
    author has asked for.
    """
    dotted = name.replace("_", ".").lower()
    return not _ABOUT_SECURITY.isdisjoint(_WORD.findall(dotted)) or bool(
        nearest(dotted, known, 0.8)
    )


# The defaults of librdkafka that affect data, and the values that only librdkafka accepts:
#
# * Keys are hashed by CRC-32. With trikafka's default most keys would change their partition, so
#   records of one key would no longer be in order.
# * A consumer reads committed records only. With trikafka's default, as with Java's, a program that
#   moves would read aborted ones, too.
# * A consumer with the interval 0 of auto commits commits only when it closes and when partitions
#   are revoked. With Java's client it commits at each poll.
# * With librdkafka, a record may time out earlier than a request. With trikafka,
#   delivery_timeout_ms includes at least one whole request (KIP-91).
# * With librdkafka, any number of requests may be in flight by default. With idempotence, which is
#   trikafka's default, at most five may: a broker recognizes duplicates only of the last five
#   batches.
def behave_as_librdkafka(
    settings: MutableMapping[str, Any],
    properties: Mapping[str, Any],
    client: type[ClientConfig] | None,
) -> None:
    """Add to the settings if the properties are librdkafka's; log what was added.

    Without ``client``, the settings count as a producer's if only a producer has one of them.
    """
    if not is_for_librdkafka(properties):
        return
    if client is None:
        others = {*settings_of(AdminConfig), *settings_of(ConsumerConfig)}
        if any(name in settings_of(ProducerConfig) for name in {*settings} - others):
            client = ProducerConfig
    added: dict[str, object] = {}
    choice = ""
    if client is not None and issubclass(client, ProducerConfig):
        added = _as_librdkafkas_producer(settings)
        choice = " (partitioner='default' is Java's)"
    elif client is not None and issubclass(client, ConsumerConfig):
        added = {} if "isolation_level" in settings else {"isolation_level": "read_committed"}
        if any(
            name.replace("_", ".") == "auto.commit.interval.ms" and plain(str(value)).strip() == "0"
            for name, value in properties.items()
        ):
            added["auto_commit_interval_ms"] = math.inf
    if added:
        settings.update(added)
        _log.warning(
            "the properties are librdkafka's, so these settings are chosen to behave as there: %s; "
            "set them to choose otherwise%s",
            ", ".join(f"{name}={value!r}" for name, value in added.items()),
            choice,
        )


def _as_librdkafkas_producer(settings: Mapping[str, Any]) -> dict[str, object]:
    """Return what a producer's settings lack to behave as with librdkafka."""
    added: dict[str, object] = {}
    if "partitioner" not in settings and not settings.get("partitioner_ignore_keys"):
        added["partitioner"] = "consistent_random"
    most = 100 if settings.get("enable_idempotence") is False else 5
    in_flight = settings.get("max_in_flight_requests_per_connection")
    if is_number(in_flight) and in_flight > most:
        added["max_in_flight_requests_per_connection"] = most
    delivery = settings.get("delivery_timeout_ms")
    defaults = settings_of(ProducerConfig)
    linger = settings.get("linger_ms", defaults["linger_ms"].default)
    request = settings.get("request_timeout_ms", defaults["request_timeout_ms"].default)
    # A value that is not a number is an error when the client opens, and not here.
    numbers = is_number(delivery) and is_number(linger) and is_number(request)
    if numbers and linger + request > delivery > linger:
        added["request_timeout_ms"] = max(1, delivery - linger)
    return added


def _hidden(properties: Mapping[str, Any] | str | os.PathLike[str]) -> dict[str, Any]:
    """Return the properties, or those of a file, with values that no traceback shows."""
    if not isinstance(properties, Mapping):
        path = os.fspath(properties) if isinstance(properties, os.PathLike) else properties
        if not isinstance(path, str):
            raise ConfigurationError(
                f"properties must be a mapping, or the path of a file, not {type(properties)!r}"
            )
        properties = _read_file(path)
    if strangers := [name for name in properties if not isinstance(name, str)]:
        raise ConfigurationError(
            f"the names of properties are texts, such as 'group.id', not {strangers[0]!r}"
        )
    return {
        name: secret(_trimmed(name, _as_line(name, value))) for name, value in properties.items()
    }


def _as_line(name: str, value: Any) -> Any:
    """Return a list of texts as the line that a file has for it.

    Java's maps of properties may have lists, such as the names of assignors.
    """
    if "." in name and isinstance(value, list | tuple):
        parts = list(value)
        if parts and all(isinstance(part, str) for part in parts):
            return ",".join(map(plain_text, parts))
    return value


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
    except ValueError as error:  # a null character, or half a surrogate pair
        raise ConfigurationError(
            f"the properties cannot be read: {path!r} is not a path: {error}"
        ) from error


def _take_serialization(
    rest: MutableMapping[str, Any], settings: MutableMapping[str, Any]
) -> list[str]:
    """Remove the settings that name Java's serializers; return the faults in them.

    trikafka uses functions instead of such classes.
    """
    wrong = []
    for dotted in SERIALIZATION:
        if dotted.endswith(".serializer"):  # for a Python client: a function, not a class's name
            for name in (dotted, dotted.replace(".", "_")):
                if isinstance(rest.get(name, ""), str):
                    continue
                if rest.pop(name) is not None:
                    wrong.append(f"{name!r} is not supported: {_ENCODE}")
        if not isinstance(rest.get(dotted), str):
            continue
        given = plain(str(rest.pop(dotted)))
        reads = dotted.endswith("deserializer")
        kind = given.rpartition(".")[2].removesuffix("Deserializer" if reads else "Serializer")
        if kind == "String":  # no serializer is needed: a producer refuses text that is not encoded
            settings.update({dotted.replace(".", "_"): bytes.decode} if reads else {})
        elif kind not in _BYTES:
            instead = (
                "give open_consumer() a function for it" if reads else "encode before the call"
            )
            wrong.append(
                f"{dotted}={given!r} is a class of Java's, and records are bytes: leave it out, or "
                f"{instead}"
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
            "%s, line %d: bytes beyond ASCII are read as ISO-8859-1, as Java reads them; write "
            "such characters as \\uXXXX",
            path,
            strange,
        )
    return read_properties(text)


def read_properties(text: str) -> dict[str, str]:
    """Read the text of a ``.properties`` file as Java does.

    If a name occurs twice, the last entry counts. A name alone on its line gets the empty value, as
    in Java, but only if it looks like the name of a setting. Any other text is an error, since it
    may be a part of a secret that was broken into lines.

    Raises:
        ConfigurationError: The file is malformed. The error names the line and never shows the
            value.
    """
    found: dict[str, str] = {}
    for entry in java_properties.entries(text):
        if entry.lone and not _SETTINGS_NAME.fullmatch(entry.name):
            raise ConfigurationError(
                f"line {entry.line}: this is not NAME=VALUE; a line that continues on the next one "
                "ends in a backslash"
            )
        found[entry.name] = entry.value
    return found


def _truth(text: str) -> bool | None:
    """Return the boolean that a text stands for in Java or librdkafka; ``None`` if it is none."""
    lower = text.lower()
    if lower in ("true", "t", "1"):
        return True
    return False if lower in ("false", "f", "0") else None


def _from_text(name: str, text: str, known: Setting) -> object:
    if bool in known.kinds:
        if (truth := _truth(text)) is None:
            raise ConfigurationError(f"{name} must be true or false, not {plain(text)!r}")
        return truth
    if known.number:
        try:
            return float(text) if "." in text else int(text)
        except ValueError:
            raise ConfigurationError(f"{name} must be a number, not {plain(text)!r}") from None
    if Sequence in known.kinds and str not in known.kinds:
        parts = (part.strip() for part in text.split(",") if part.strip())
        return tuple(_ASSIGNORS.get(part.removeprefix(_ASSIGNORS_OF_JAVA), part) for part in parts)
    # librdkafka writes protocols in lower case, and Java accepts either.
    given = text.lower()
    return next((choice for choice in known.choices or () if str(choice).lower() == given), text)
