"""The options ``kafka.*`` of a job that was written for Java's client. No I/O but the log.

A setting that trikafka's client has too is honoured (:func:`trikafka.from_properties`). A setting
that tunes Java's client, its threads or its metrics is ignored with a warning. A setting that would
change which records come, or how they are protected, is an error.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

from trikafka import ConfigurationError, ConsumerConfig, ProducerConfig
from trikafka.config.properties import read_settings
from trikafka.config.property_names import rule_of
from trikafka.config.security_properties import minimum_version

#: Names (or beginnings of names, with a dot at the end) of settings that change nothing about the
#: records, and so are ignored.
IGNORED = (
    "client.dns.lookup",
    "socket.",
    "ssl.provider",
    "ssl.keymanager.algorithm",
    "ssl.trustmanager.algorithm",
    "ssl.secure.random.implementation",
    "sasl.kerberos.kinit.cmd",
    "sasl.kerberos.min.time.before.relogin",
    "sasl.kerberos.ticket.renew.",
    "sasl.oauthbearer.jwks.endpoint.refresh.",
    "sasl.oauthbearer.jwks.endpoint.retry.",
    "internal.",
)
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
#: The properties of Java's clients from which settings of other names are made.
_JAVA_NAMES = {
    "sasl_plain_username": "sasl.jaas.config",
    "sasl_plain_password": "sasl.jaas.config",
    "ssl_cafile": "ssl.truststore.location",
    "ssl_ca_password": "ssl.truststore.password",
    "ssl_certfile": "ssl.keystore.location",
    "ssl_keyfile": "ssl.keystore.key",
    "ssl_password": "ssl.keystore.password",
    "ssl_check_hostname": "ssl.endpoint.identification.algorithm",
    "ssl_ciphers": "ssl.cipher.suites",
    "ssl_minimum_version": "ssl.enabled.protocols",
}
_log = logging.getLogger("trikafka.spark")


def consumer_settings(kafka: Mapping[str, str], warn: bool = True) -> dict[str, Any]:
    """Return the settings for :func:`trikafka.open_consumer` from options without ``kafka.``.

    Raises :exc:`ConfigurationError`.
    """
    with _by_option(kafka, ConsumerConfig):
        settings = _settings(
            kafka, REFUSED_READING, (*IGNORED, *_IGNORED_READING), ConsumerConfig, warn
        )
        ConsumerConfig.build(settings)
    return settings


def producer_settings(kafka: Mapping[str, str], *, exactly_once: bool = False) -> dict[str, Any]:
    """Return the settings for :func:`trikafka.open_producer` from options without ``kafka.``.

    With ``exactly_once``, they must be possible for a producer with transactions.

    Raises :exc:`ConfigurationError`.
    """
    with _by_option(kafka, ProducerConfig):
        settings = _settings(kafka, REFUSED_WRITING, IGNORED, ProducerConfig, True)
        if exactly_once:
            checked = {**settings, "transactional_id": "that of a task"}
        else:
            checked = {
                name: value for name, value in settings.items() if name != "transaction_timeout_ms"
            }
        ProducerConfig.build(checked)
    return settings


@contextmanager
def _by_option(
    kafka: Mapping[str, str], client: type[ConsumerConfig] | type[ProducerConfig]
) -> Iterator[None]:
    """Raise errors with the names of the job's options instead of those of trikafka's settings."""
    try:
        yield
    except ConfigurationError as error:
        # Of the other settings only those that no sentence has as a word, as "retries".
        others = (each.name for each in fields(client) if "_" in each.name)
        names = {name: name.replace("_", ".") for name in others} | _JAVA_NAMES | _by_setting(kafka)
        names |= {name: name for name in kafka}
        given = {each: f"kafka.{name}" for each, name in names.items()}
        text = str(error).replace(" (or sasl_credentials)", "")  # a function, which no option is
        text = re.sub(r"(?<![\w.])\w[\w.]*\w", lambda word: given.get(word[0], word[0]), text)
        text = re.sub(r"did you mean '(?!kafka\.)", "did you mean 'kafka.", text)
        # No job sets this one: exactlyOnce does.
        text = re.sub(r"^kafka\.transactional\.id needs", "exactlyOnce=true needs", text)
        raise ConfigurationError(text) from error.__cause__


def _by_setting(kafka: Mapping[str, str]) -> dict[str, str]:
    """Return the job's names by the settings that are made from them."""
    names = {"ssl_password": "ssl.key.password"} if "ssl.key.password" in kafka else {}
    for name in kafka:
        rule = rule_of(name)
        renamed = None if rule is None else rule.setting
        names[renamed if renamed and "_" in renamed else name.replace(".", "_")] = name
    return names


def _settings(
    kafka: Mapping[str, str],
    refused: Mapping[str, str],
    ignored: tuple[str, ...],
    client: type[ConsumerConfig] | type[ProducerConfig],
    warn: bool,
) -> dict[str, Any]:
    given = dict[str, str]()
    unused = list[str]()
    for name, value in kafka.items():
        if why := refused.get(name):
            raise ConfigurationError(f"the option 'kafka.{name}' is not supported: {why}")
        rule = rule_of(name)
        if any(name == one or (one.endswith(".") and name.startswith(one)) for one in ignored) or (
            rule is not None and rule.ignored
        ):
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
    names = _by_setting(kafka)
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
