"""The options ``kafka.*`` of a job that was written for Java's client. No I/O but the log.

A setting that trikafka's client has too is honoured (:func:`trikafka.from_properties`). A setting
that tunes Java's client, its threads or its metrics is ignored with a warning. A setting that would
change which records come, or how they are protected, is an error.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

from trikafka import ConfigurationError, ConsumerConfig, ProducerConfig, TrikafkaError
from trikafka.config.properties import read_settings
from trikafka.config.property_names import rule_of
from trikafka.config.security_properties import minimum_version
from trikafka.config.setting import settings_of
from trikafka.config.setting_names import (
    java_names,
    properties_by_setting,
    rename_settings,
    renamed,
)

#: Names (or beginnings of names, with a dot at the end) of settings that change nothing about the
#: records, and so are ignored, beside those that :func:`trikafka.from_properties` ignores.
IGNORED = ("client.dns.lookup", "ssl.provider", "sasl.kerberos.kinit.cmd", "internal.")
#: Settings of a group's member, and of Java's ``poll``. A Spark job is not a member of a group, and
#: Spark plans its reads.
_IGNORED_READING = (
    "group.id",
    "group.instance.id",
    "group.protocol",
    "group.remote.assignor",
    "group.membership.operation",
    "session.timeout.ms",
    "heartbeat.interval.ms",
    "max.poll.interval.ms",
    "max.poll.records",
    "partition.assignment.strategy",
    "auto.commit.interval.ms",
    "exclude.internal.topics",
    "allow.auto.create.topics",
    "stall.warning.ms",
)
_DECIDED = "the data source decides it"
#: Settings that are refused, and why.
REFUSED_READING = {
    "auto.offset.reset": f"{_DECIDED}: use startingOffsets",
    "enable.auto.commit": f"{_DECIDED}: the offsets are in Spark's checkpoint; groupId commits "
    "them as well",
    "enable.auto.offset.store": _DECIDED,
    "interceptor.classes": "the value names classes of Java",
    "key.deserializer": f"{_DECIDED}: keys are bytes; cast the column",
    "value.deserializer": f"{_DECIDED}: values are bytes; cast the column",
}
REFUSED_WRITING = {
    "interceptor.classes": "the value names classes of Java",
    "key.serializer": f"{_DECIDED}: keys are bytes or strings",
    "value.serializer": f"{_DECIDED}: values are bytes or strings",
    "transactional.id": "use exactlyOnce=true with transactionalId",
    "two.phase.commit": _DECIDED,
    "transaction.two.phase.commit.enable": _DECIDED,
    "commit.prepared": _DECIDED,
    "partitioner.class": (
        "the value names a class of Java; give a column 'partition', or leave it out for Kafka's "
        "default partitioner"
    ),
}
_READING = (ConsumerConfig, REFUSED_READING, (*IGNORED, *_IGNORED_READING))
_WRITING = (ProducerConfig, REFUSED_WRITING, IGNORED)
#: The data source's own options: Spark decides the properties of these names.
_OWN_NAMES = {"group_id": "groupId", "transactional_id": "transactionalId"}
_log = logging.getLogger("trikafka.spark")


def consumer_settings(kafka: Mapping[str, str], warn: bool = True) -> dict[str, Any]:
    """Return the settings for :func:`trikafka.open_consumer` from options without ``kafka.``.

    Raises :exc:`ConfigurationError`.
    """
    with _checked_by_option(kafka):
        settings = _settings(kafka, *_READING, warn)
        ConsumerConfig.build(settings)
    return settings


def producer_settings(kafka: Mapping[str, str], *, exactly_once: bool = False) -> dict[str, Any]:
    """Return the settings for :func:`trikafka.open_producer` from options without ``kafka.``.

    With ``exactly_once``, they must be possible for a producer with transactions.

    Raises :exc:`ConfigurationError`.
    """
    with _checked_by_option(kafka):
        settings = _settings(kafka, *_WRITING, True)
        if exactly_once:
            checked = {**settings, "transactional_id": "that of a task"}
        else:
            checked = {
                name: value for name, value in settings.items() if name != "transaction_timeout_ms"
            }
        ProducerConfig.build(checked)
    return settings


@contextmanager
def by_option(kafka: Iterable[str]) -> Iterator[None]:
    """Raise errors with the names of the job's options instead of those of trikafka's settings.

    The texts of causes are changed as well (:func:`rename_settings`).

    Args:
        kafka: The names of the job's options, without ``kafka.``.
    """
    try:
        yield
    except TrikafkaError as error:
        # A name without "_", such as "retries", is also a word of sentences.
        names = {each: option for each, option in _option_names(kafka).items() if "_" in each}
        rename_settings(error, names)
        raise


@contextmanager
def _checked_by_option(kafka: Iterable[str]) -> Iterator[None]:
    """Raise the errors of a check of the options with their names."""
    try:
        yield
    except ConfigurationError as error:
        text = renamed(str(error), _option_names(kafka))
        text = re.sub(r"did you mean '(?!kafka\.)", "did you mean 'kafka.", text)
        # No job sets this one: exactlyOnce does.
        text = re.sub(r"^transactionalId needs", "exactlyOnce=true needs", text)
        raise ConfigurationError(text) from error.__cause__


def _option_names(kafka: Iterable[str]) -> dict[str, str]:
    """Return the job's options by the names that an error may have for them."""
    kafka = tuple(kafka)
    # Of the settings that were not given only those that no sentence has as a word, as "retries".
    return {
        name: f"kafka.{option}"
        for name, option in properties_by_setting(kafka).items()
        if ("_" in name or option in kafka) and _is_honoured(name, option)
    } | _OWN_NAMES


def _is_honoured(setting: str, option: str) -> bool:
    """Return whether reads or writes honour the option, given without ``kafka.``, of a setting."""
    return any(
        option not in refused
        and not _is_ignored(option, ignored)
        and (setting in settings_of(client) or setting not in java_names())
        for client, refused, ignored in (_READING, _WRITING)
    )


def _is_ignored(name: str, ignored: Iterable[str]) -> bool:
    rule = rule_of(name)
    return (rule is not None and rule.ignored) or any(
        name == one or (one.endswith(".") and name.startswith(one)) for one in ignored
    )


def _settings(
    kafka: Mapping[str, str],
    client: type[ConsumerConfig] | type[ProducerConfig],
    refused: Mapping[str, str],
    ignored: tuple[str, ...],
    warn: bool,
) -> dict[str, Any]:
    given = dict[str, str]()
    unused = list[str]()
    for name, value in kafka.items():
        # An option may also have the name of a setting: group_id is as meaningless as group.id.
        java = java_names().get(name, name) if "_" in name else name
        if why := refused.get(java):
            raise ConfigurationError(f"the option 'kafka.{name}' is not supported: {why}")
        rule = rule_of(name)
        if _is_ignored(java, ignored):
            unused.append(name)
        elif rule is not None and rule.refused:
            raise ConfigurationError(f"the option 'kafka.{name}' is not supported: {rule.why}")
        elif name == "ssl.enabled.protocols" and minimum_version(value) is None:
            unused.append(name)
        else:
            given[name] = value
    # A Spark job ran Java's client, whatever the names of its options: keys stay by its hash.
    own = {} if "partitioner" in given else {"partitioner": "default"}
    settings = read_settings({**given, **own}, None, strict=True)
    for name in own:
        del settings[name]
    known = {field.name for field in fields(client)}
    names = properties_by_setting(kafka)
    unused += [names.get(name, name.replace("_", ".")) for name in settings if name not in known]
    settings = {name: value for name, value in settings.items() if name in known}
    if warn and unused:
        _log.warning(
            "these options mean nothing to trikafka and are ignored: %s",
            ", ".join(f"kafka.{name}" for name in unused),
        )
    if not settings.get("bootstrap_servers"):
        raise ConfigurationError("the option 'kafka.bootstrap.servers' is missing")
    return settings
