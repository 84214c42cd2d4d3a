"""The options ``kafka.*`` of a job that was written for Java's client: what is honoured, what means nothing here, what is refused.

Honoured is what trikafka's client has too (by :func:`trikafka.from_properties`). What tunes Java's client, its threads or its
metrics is ignored with a warning. What would change which records come, or how they are protected, is an error. Pure, but for
the log.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from trikafka import ConfigurationError, ConsumerConfig, ProducerConfig, from_properties

#: Names (or beginnings of names, with a dot at the end) of settings that change nothing about the records, and so are ignored.
IGNORED = (
    "auto.include.jmx.reporter", "client.dns.lookup", "enable.metrics.push",
    "metric.reporters", "metrics.", "receive.buffer.bytes", "send.buffer.bytes", "socket.", "ssl.protocol", "ssl.provider",
    "ssl.keymanager.algorithm", "ssl.trustmanager.algorithm", "ssl.secure.random.implementation",
    "sasl.login.refresh.", "sasl.login.connect.timeout.ms", "sasl.login.read.timeout.ms", "sasl.login.retry.",
    "sasl.kerberos.kinit.cmd", "sasl.kerberos.min.time.before.relogin", "sasl.kerberos.ticket.renew.",
    "sasl.oauthbearer.jwks.endpoint.refresh.", "sasl.oauthbearer.jwks.endpoint.retry.", "internal.",
)  # fmt: skip
#: Settings of a group's member, and of Java's way to poll: a Spark job is no member, and Spark plans what is read.
_IGNORED_READING = (
    "group.id", "group.instance.id", "group.protocol", "group.remote.assignor", "group.membership.operation",
    "session.timeout.ms", "heartbeat.interval.ms", "max.poll.interval.ms", "max.poll.records", "partition.assignment.strategy",
    "auto.commit.interval.ms", "exclude.internal.topics", "allow.auto.create.topics", "stall.warning.ms",
)  # fmt: skip
_DECIDED = "the data source decides it"
#: What is refused, and why.
REFUSED_READING = {
    "auto.offset.reset": f"{_DECIDED}: use startingOffsets",
    "enable.auto.commit": f"{_DECIDED}: offsets stand in Spark's checkpoint; groupId has them committed as well",
    "enable.auto.offset.store": _DECIDED,
    "interceptor.classes": "it names classes of Java",
    "key.deserializer": f"{_DECIDED}: keys are bytes; cast the column",
    "value.deserializer": f"{_DECIDED}: values are bytes; cast the column",
}
REFUSED_WRITING = {
    "interceptor.classes": "it names classes of Java",
    "key.serializer": f"{_DECIDED}: keys are bytes or strings",
    "value.serializer": f"{_DECIDED}: values are bytes or strings",
    "transactional.id": "use exactlyOnce=true with transactionalId",
    "two.phase.commit": _DECIDED,
    "transaction.two.phase.commit.enable": _DECIDED,
    "commit.prepared": _DECIDED,
    "partitioner.class": "it names a class of Java; give a column 'partition', or leave it out for Kafka's default partitioner",
}
_REFUSED_SECURITY = {
    "security.providers": "it names classes of Java",
    "ssl.engine.factory.class": "it names a class of Java",
    "sasl.login.class": "it names a class of Java",
    "sasl.client.callback.handler.class": "it names a class of Java",
    "config.providers": "its secrets would not be filled in",
}
_TLS = {"TLSv1.2", "TLSv1.3"}
_log = logging.getLogger("trikafka.spark")


def consumer_settings(kafka: Mapping[str, str], tell: bool = True) -> dict[str, Any]:
    """Settings for :func:`trikafka.open_consumer` from options without their ``kafka.``. Raises :exc:`ConfigurationError`."""
    settings = _settings(kafka, REFUSED_READING, (*IGNORED, *_IGNORED_READING), ConsumerConfig, tell)
    ConsumerConfig.build(settings)
    return settings


def producer_settings(kafka: Mapping[str, str], tell: bool = True) -> dict[str, Any]:
    """Settings for :func:`trikafka.open_producer` from options without their ``kafka.``. Raises :exc:`ConfigurationError`."""
    settings = _settings(kafka, REFUSED_WRITING, IGNORED, ProducerConfig, tell)
    ProducerConfig.build({name: value for name, value in settings.items() if name != "transaction_timeout_ms"})
    return settings


def _settings(
    kafka: Mapping[str, str],
    refused: Mapping[str, str],
    ignored: tuple[str, ...],
    client: type[ConsumerConfig] | type[ProducerConfig],
    tell: bool,
) -> dict[str, Any]:
    given, unused = dict[str, str](), list[str]()
    for name, value in kafka.items():
        if why := refused.get(name) or _REFUSED_SECURITY.get(name):
            raise ConfigurationError(f"the option 'kafka.{name}' is not supported: {why}")
        if name == "ssl.enabled.protocols":
            _check_tls(value)
            unused.append(name)
        elif any(name == one or (one.endswith(".") and name.startswith(one)) for one in ignored):
            unused.append(name)
        else:
            given[name] = value
    settings = from_properties(given)
    known = {field.name for field in fields(client)}
    unused += [name.replace("_", ".") for name in settings if name not in known]
    settings = {name: value for name, value in settings.items() if name in known}
    if tell and unused:
        _log.warning("these options mean nothing to trikafka and are ignored: %s", ", ".join(f"kafka.{name}" for name in unused))
    if not settings.get("bootstrap_servers"):
        raise ConfigurationError("the option 'kafka.bootstrap.servers' is missing")
    return settings


def _check_tls(value: str) -> None:
    if not {one.strip() for one in value.split(",")} >= _TLS:
        raise ConfigurationError(
            f"the option 'kafka.ssl.enabled.protocols' is {value!r}, and trikafka offers {' and '.join(sorted(_TLS))}: leave it out"
        )
