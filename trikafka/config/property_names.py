"""The properties of other Kafka clients that have another name or meaning here, as one table.

A property that is one of trikafka's settings with dots for underscores (``group.id``) is not in the
table, unless some of its values need translation. ``security_properties.py`` has the few that more
than one entry of a file decides together (stores, JAAS, TLS versions).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple


class PropertyRule(NamedTuple):
    """The treatment of one property.

    Attributes:
        setting: trikafka's setting for it.
        why: The reason why it is ignored or refused.
        refused: True if the property is an error.
        only: The values that ask for what trikafka does anyway. Others are an error.
        values: Values that differ from trikafka's. ``None`` stands for the default.
        scale: The factor from the property's unit to the setting's.
        yields: True if the property has no effect beside another one for the same setting.
    """

    setting: str | None = None
    why: str = ""
    refused: bool = False
    only: tuple[str, ...] = ()
    values: Mapping[str, Any] = {}
    scale: int = 1
    yields: bool = False

    @property
    def ignored(self) -> bool:
        """True if the property has no effect."""
        return self.setting is None and not self.refused and not self.only


def _to(setting: str, values: Mapping[str, Any] | None = None, **how: Any) -> PropertyRule:
    return PropertyRule(setting, values=values or {}, **how)


def _ignored(why: str) -> PropertyRule:
    return PropertyRule(why=why)


def _refused(why: str) -> PropertyRule:
    return PropertyRule(why=why, refused=True)


def _anyway(*values: str, why: str = "") -> PropertyRule:
    return PropertyRule(only=values, why=why)


_ADDRESSES = _ignored("all addresses of a name are tried, of both families")
_APP_SERIALIZATION = _ignored("trikafka has no schema registry")
_BROKER_CHECKS = _ignored("the broker checks tokens, not the client")
_BROKERS = _ignored("a setting of brokers")
_BUFFERED_BYTES = _ignored("buffers are limited by bytes: buffer_memory and batch_size")
_COMMITS = _ignored("commit() raises, and a failed auto commit is logged")
_DELIVERY = _refused("await send(), or the ack that enqueue() returns")
_DIAL = _refused("give dial, a function that opens a stream to an address")
_ERRORS = _ignored("calls raise errors, and the rest is logged")
_FETCHES = _ignored("fetch_buffer_bytes and retry_backoff_ms decide when to fetch")
_INTERNAL = _ignored("it is internal to Java")
_JAVA_CLASS = "it names a class of Java: leave it out"
_KEY_IN_MEMORY = _refused("give its PEM text: ssl.ca.pem, ssl.certificate.pem or ssl.key.pem")
_LOGGING = _ignored("logging is Python's: logging.getLogger('trikafka')")
_MEMORY = _ignored("trikafka decides how memory is used")
_METADATA = _ignored("metadata_max_age_ms and retry_backoff_ms decide when to ask for metadata")
_METRICS = _ignored("statistics(), health() and observers replace metrics")
_OAUTH_FUNCTION = _refused("give sasl_oauth_token_provider, or the settings sasl_oauth_...")
_OFFSETS = _ignored("offsets are committed to the broker")
_OPENSSL = _ignored("TLS is OpenSSL's")
_SHARE = _ignored("open_share_consumer acknowledges each record, and has the setting acquire")
_SOCKETS = _ignored("sockets have the system's buffers, and send without delay")
_SSL_CONTEXT = _refused("give ssl_context")
_TICKETS = _ignored("tickets and tokens are renewed when they are needed")
_VERSIONS = _ignored("the versions of a broker are asked for on each connection")

_RESETS = {
    "earliest": "earliest",
    "latest": "latest",
    "none": "none",
    "smallest": "earliest",
    "beginning": "earliest",
    "largest": "latest",
    "end": "latest",
    "error": "none",
}
_NO_LIMIT = {"0": math.inf, "-1": math.inf}
#: A broker always returns at least one whole batch, so a limit of one byte acts as a limit of zero.
_LEAST_SIZE = {"0": 1}

_IAM = "software.amazon.msk.auth.iam"
_OAUTH = "org.apache.kafka.common.security.oauthbearer"
_OAUTH_HANDLER = "org.apache.kafka.common.security.oauthbearer{}.OAuthBearerLoginCallbackHandler"

#: librdkafka's, which Java's client does not have.
LIBRDKAFKA: Mapping[str, PropertyRule] = {
    "api.version.fallback.ms": _VERSIONS,
    "api.version.request": _VERSIONS,
    "api.version.request.timeout.ms": _VERSIONS,
    "auto.commit.enable": _to("enable_auto_commit", yields=True),
    "background_event_cb": _ERRORS,
    "batch.num.messages": _BUFFERED_BYTES,
    "broker.address.family": _ADDRESSES,
    "broker.address.ttl": _ADDRESSES,
    "broker.version.fallback": _VERSIONS,
    "builtin.features": _ignored("it describes a build of librdkafka"),
    "closesocket_cb": _DIAL,
    "compression.codec": _to("compression_type", {"inherit": None}, yields=True),
    "connect_cb": _DIAL,
    "consume.callback.max.messages": _ignored("max_poll_records limits a batch"),
    "consume_cb": _refused("read records with 'async for', or receive_batch()"),
    "coordinator.query.interval.ms": _ignored("a coordinator is looked up when one is needed"),
    "debug": _LOGGING,
    "default.topic.config": _refused("put its entries beside the others"),
    "default_topic_conf": _refused("put its entries beside the others"),
    "delivery.report.only.error": _ignored("each send has an outcome of its own"),
    "dr_cb": _DELIVERY,
    "dr_msg_cb": _DELIVERY,
    "enable.gapless.guarantee": _ignored("enable_idempotence keeps the order"),
    "enable.partition.eof": _ignored("batches(until=await end_offsets(...)) ends at the end"),
    "enable.random.seed": _ignored("Python's random numbers need no seed"),
    "enable.sasl.oauthbearer.unsecure.jwt": _anyway("false"),
    "enable.ssl.certificate.verification": _anyway(
        "true", why="certificates of an authority of your own need ssl_cafile"
    ),
    "enabled_events": _ERRORS,
    "error_cb": _ERRORS,
    "fetch.error.backoff.ms": _FETCHES,
    "fetch.message.max.bytes": _to("max_partition_fetch_bytes", yields=True),
    "fetch.queue.backoff.ms": _FETCHES,
    "fetch.wait.max.ms": _to("fetch_max_wait_ms"),
    "group.protocol.type": _ignored("the type of a group is 'consumer'"),
    "https.ca.location": _to("sasl_oauth_cafile", {"probe": None}),
    "https.ca.pem": _to("sasl_oauth_cafile"),
    "interceptors": _ignored("trikafka's plugins are Python objects: plugins"),
    "internal.termination.signal": _ignored("there are no threads to end"),
    "log.connection.close": _LOGGING,
    "log.level": _LOGGING,
    "log.queue": _LOGGING,
    "log.thread.name": _LOGGING,
    "log_cb": _LOGGING,
    "logger": _LOGGING,
    "max.in.flight": _to("max_in_flight_requests_per_connection", yields=True),
    "message.copy.max.bytes": _MEMORY,
    "message.max.bytes": _to("max_request_size"),
    "message.send.max.retries": _to("retries", yields=True),
    "message.timeout.ms": _to("delivery_timeout_ms", _NO_LIMIT, yields=True),
    "metadata.broker.list": _to("bootstrap_servers", yields=True),
    "msg_order_cmp": _ignored("records are sent in the order of the calls"),
    "oauth_cb": _OAUTH_FUNCTION,
    "oauthbearer_token_refresh_cb": _OAUTH_FUNCTION,
    "offset.store.method": _anyway("broker"),
    "offset.store.path": _OFFSETS,
    "offset.store.sync.interval.ms": _OFFSETS,
    "offset_commit_cb": _COMMITS,
    "on_commit": _COMMITS,
    "on_delivery": _DELIVERY,
    "opaque": _ignored("a closure holds what a callback needs"),
    "open_cb": _ignored("trikafka opens no files"),
    "partitioner_cb": _refused("give partitioner, a function of the topic, key and partitions"),
    "plugin.library.paths": _ignored("trikafka's plugins are Python objects: plugins"),
    "produce.offset.report": _ignored("each send returns its offset"),
    "queue.buffering.backpressure.threshold": _BUFFERED_BYTES,
    "queue.buffering.max.kbytes": _to("buffer_memory", scale=1024),
    "queue.buffering.max.messages": _BUFFERED_BYTES,
    "queue.buffering.max.ms": _to("linger_ms", yields=True),
    "queued.max.messages.kbytes": _to("fetch_buffer_bytes", scale=1024),
    "queued.min.messages": _FETCHES,
    "queuing.strategy": _anyway("fifo"),
    "rebalance_cb": _refused("give subscribe() a RebalanceListener"),
    "reconnect.backoff.jitter.ms": _ignored("each backoff has a jitter already"),
    "request.required.acks": _to("acks", yields=True),
    "resolve_cb": _DIAL,
    "sasl.mechanisms": _to("sasl_mechanism"),
    "sasl.oauthbearer.assertion.jwt.template.file": _to("sasl_oauth_assertion_template_file"),
    "sasl.oauthbearer.assertion.private.key.pem": _to("sasl_oauth_assertion_private_key_file"),
    "sasl.oauthbearer.client.id": _to("sasl_oauth_client_id"),
    "sasl.oauthbearer.client.secret": _to("sasl_oauth_client_secret"),
    "sasl.oauthbearer.config": _refused("give the settings sasl_oauth_..."),
    "sasl.oauthbearer.metadata.authentication.type": _anyway(
        "none", why="tokens of a cloud's metadata service need sasl_oauth_token_provider"
    ),
    # "default" is a function that returns tokens: sasl_oauth_token_provider.
    "sasl.oauthbearer.method": _anyway("oidc", "default"),
    "sasl.password": _to("sasl_plain_password"),
    "sasl.username": _to("sasl_plain_username"),
    "socket.blocking.max.ms": _SOCKETS,
    "socket.keepalive.enable": _ignored("connections_max_idle_ms ends idle connections"),
    "socket.max.fails": _ignored("a connection ends at its first error"),
    "socket.nagle.disable": _SOCKETS,
    "socket.receive.buffer.bytes": _SOCKETS,
    "socket.send.buffer.bytes": _SOCKETS,
    "socket.timeout.ms": _to("request_timeout_ms", yields=True),
    "socket_cb": _DIAL,
    "ssl.ca.certificate.stores": _ignored("without ssl_cafile the system's authorities count"),
    # librdkafka's "probe" looks for the system's authorities, which trikafka uses by default.
    "ssl.ca.location": _to("ssl_cafile", {"probe": None}),
    "ssl.ca.pem": _to("ssl_cafile"),
    "ssl.certificate.location": _to("ssl_certfile"),
    "ssl.certificate.pem": _to("ssl_certfile"),
    "ssl.certificate.verify_cb": _SSL_CONTEXT,
    "ssl.crl.location": _to("ssl_crlfile"),
    "ssl.curves.list": _SSL_CONTEXT,
    "ssl.engine.id": _SSL_CONTEXT,
    "ssl.engine.location": _SSL_CONTEXT,
    "ssl.key.location": _to("ssl_keyfile"),
    "ssl.key.pem": _to("ssl_keyfile"),
    "ssl.providers": _SSL_CONTEXT,
    "ssl.sigalgs.list": _SSL_CONTEXT,
    "ssl_ca": _KEY_IN_MEMORY,
    "ssl_certificate": _KEY_IN_MEMORY,
    "ssl_engine_callback_data": _SSL_CONTEXT,
    "ssl_key": _KEY_IN_MEMORY,
    "statistics.interval.ms": _METRICS,
    "stats_cb": _METRICS,
    "sticky.partitioning.linger.ms": _ignored("batch_size ends the stickiness of a partition"),
    "throttle_cb": _ignored("statistics() shows throttling"),
    "topic.blacklist": _refused("subscribe to a pattern that leaves these topics out"),
    "topic.metadata.propagation.max.ms": _METADATA,
    "topic.metadata.refresh.fast.cnt": _METADATA,
    "topic.metadata.refresh.fast.interval.ms": _METADATA,
    "topic.metadata.refresh.interval.ms": _to(
        "metadata_max_age_ms", {"-1": None, "0": None}, yields=True
    ),
    "topic.metadata.refresh.sparse": _METADATA,
}
#: Java's, and those that Java's client and librdkafka have in common.
JAVA: Mapping[str, PropertyRule] = {
    # With Java 0 is a commit at each poll; behave_as_librdkafka() has its own 0.
    "auto.commit.interval.ms": _to("auto_commit_interval_ms", {"0": 1}),
    "auto.include.jmx.reporter": _METRICS,
    "auto.offset.reset": _to("auto_offset_reset", _RESETS),
    "buffer.memory.allocation.strategy": _MEMORY,
    "client.dns.lookup": _anyway("use_all_dns_ips"),
    "compression.gzip.level": _to("compression_gzip_level", {"-1": None}),
    "config.providers": _refused(
        "its secrets would not be filled in: write them where it refers to them"
    ),
    "connections.max.idle.ms": _to("connections_max_idle_ms", {**_NO_LIMIT, "none": math.inf}),
    "delivery.timeout.ms": _to("delivery_timeout_ms", {"0": math.inf}),
    "fetch.max.bytes": _to("fetch_max_bytes", _LEAST_SIZE),
    "interceptor.classes": _ignored("observers replace interceptors"),
    "internal.leave.group.on.close": _INTERNAL,
    "internal.throw.on.fetch.stable.offset.unsupported": _INTERNAL,
    "max.partition.fetch.bytes": _to("max_partition_fetch_bytes", _LEAST_SIZE),
    # With 0, Java asks as often as retry.backoff.ms allows.
    "metadata.max.age.ms": _to("metadata_max_age_ms", {"0": 100}),
    "metadata.max.idle.ms": _METADATA,
    "metric.reporters": _METRICS,
    "metrics.": _METRICS,
    "receive.buffer.bytes": _SOCKETS,
    "sasl.client.callback.handler.class": _anyway(
        f"{_IAM}.IAMClientCallbackHandler",
        why="a plugin offers mechanisms that trikafka does not have",
    ),
    "sasl.kerberos.kinit.cmd": _refused(
        "tickets are those of the system, or of sasl_kerberos_keytab: leave it out"
    ),
    "sasl.kerberos.min.time.before.relogin": _TICKETS,
    "sasl.kerberos.ticket.renew.": _TICKETS,
    "sasl.login.callback.handler.class": _anyway(
        _OAUTH_HANDLER.format(""), _OAUTH_HANDLER.format(".secured")
    ),
    "sasl.login.class": _refused(_JAVA_CLASS),
    "sasl.login.connect.timeout.ms": _TICKETS,
    "sasl.login.read.timeout.ms": _TICKETS,
    "sasl.login.refresh.": _TICKETS,
    "sasl.login.retry.": _TICKETS,
    "sasl.oauthbearer.allow.unverified.": _BROKER_CHECKS,
    "sasl.oauthbearer.clock.skew.seconds": _BROKER_CHECKS,
    "sasl.oauthbearer.expected.": _BROKER_CHECKS,
    "sasl.oauthbearer.jwks.endpoint.": _BROKER_CHECKS,
    "sasl.oauthbearer.jwt.validator.class": _anyway(
        f"{_OAUTH}.DefaultJwtValidator", f"{_OAUTH}.ClientJwtValidator"
    ),
    "sasl.oauthbearer.scope.claim.name": _BROKER_CHECKS,
    "sasl.oauthbearer.sub.claim.name": _BROKER_CHECKS,
    "security.providers": _refused(_JAVA_CLASS),
    "send.buffer.bytes": _SOCKETS,
    "share.acknowledgement.mode": _SHARE,
    "share.acquire.mode": _SHARE,
    "ssl.engine.factory.class": _refused(f"{_JAVA_CLASS}, or give ssl_context"),
    "ssl.keymanager.algorithm": _OPENSSL,
    # These only name the newest version; ssl.enabled.protocols lists the enabled ones.
    "ssl.protocol": _anyway(
        "TLS",
        "TLSv1.2",
        "TLSv1.3",
        why="ssl_minimum_version is the oldest version that is spoken",
    ),
    "ssl.provider": _refused(f"{_JAVA_CLASS}: TLS is OpenSSL's"),
    "ssl.secure.random.implementation": _OPENSSL,
    "ssl.trustmanager.algorithm": _OPENSSL,
    # Settings of brokers about security, which Java's clients ignore in a file for both.
    "connections.max.reauth.ms": _BROKERS,
    "listener.": _BROKERS,
    "principal.builder.class": _BROKERS,
    "sasl.enabled.mechanisms": _BROKERS,
    "sasl.kerberos.principal.to.local.rules": _BROKERS,
    "sasl.mechanism.controller.protocol": _BROKERS,
    "sasl.mechanism.inter.broker.protocol": _BROKERS,
    "sasl.server.": _BROKERS,
    "security.inter.broker.protocol": _BROKERS,
    "ssl.allow.": _BROKERS,
    "ssl.client.auth": _BROKERS,
    "ssl.principal.mapping.rules": _BROKERS,
    # Settings of Confluent's serializers and interceptors, which stand in the same files.
    "auto.register.schemas": _APP_SERIALIZATION,
    "basic.auth.": _APP_SERIALIZATION,
    "confluent.monitoring.": _METRICS,
    "schema.registry.": _APP_SERIALIZATION,
    "specific.avro.reader": _APP_SERIALIZATION,
    "use.latest.version": _APP_SERIALIZATION,
}
#: Keywords of aiokafka and kafka-python. ``api_version_auto_timeout_ms``, ``legacy_iterator`` and
#: ``sock_chunk_...`` are those of kafka-python 2.
PYTHON: Mapping[str, PropertyRule] = {
    "api_version": _VERSIONS,
    "api_version_auto_timeout_ms": _VERSIONS,
    "bootstrap_timeout_ms": _ignored("opening a client takes at most default_api_timeout_ms"),
    "consumer_timeout_ms": _ignored("receive_batch(timeout=...) has a limit"),
    "default_offset_commit_callback": _COMMITS,
    "enable_incremental_fetch_sessions": _ignored("fetch sessions are used where brokers can"),
    "kafka_client": _ignored("there is one client"),
    "legacy_iterator": _ignored("there is one way to iterate over records"),
    "loop": _ignored("a client runs where it is opened"),
    "max_batch_size": _to("batch_size"),
    "metric_group_prefix": _METRICS,
    "metrics_enabled": _METRICS,
    "proxy_url": _DIAL,
    "rebalance_timeout_ms": _ignored("max_poll_interval_ms is the limit of a rebalance, too"),
    "retries": _to("retries", {"inf": None}),
    "sasl_kerberos_domain_name": _ignored("brokers are named as they advertise themselves"),
    "sasl_kerberos_name": _to("sasl_kerberos_principal"),
    "selector": _ignored("Trio, or asyncio's loop, waits for sockets"),
    "sock_chunk_buffer_count": _SOCKETS,
    "sock_chunk_bytes": _SOCKETS,
    "socket_options": _SOCKETS,
    "socks5_proxy": _DIAL,
    "topics": _refused("topics are arguments without a name"),
}
RULES: Mapping[str, PropertyRule] = {**LIBRDKAFKA, **JAVA, **PYTHON}


def _dotted(name: str) -> str:
    return name.replace("_", ".")


_BY_DOTTED = {_dotted(name): rule for name, rule in RULES.items() if not name.endswith(".")}
_BY_PREFIX = {name: rule for name, rule in RULES.items() if name.endswith(".")}
_OF_LIBRDKAFKA = frozenset(map(_dotted, LIBRDKAFKA))
#: Properties of Java's clients that librdkafka lacks. Most files for Java have one of them.
_OF_JAVA = frozenset(
    (
        "buffer.memory",
        "default.api.timeout.ms",
        "interceptor.classes",
        "key.deserializer",
        "key.serializer",
        "max.block.ms",
        "max.request.size",
        "partitioner.class",
        "sasl.jaas.config",
        "ssl.truststore.location",
        "value.deserializer",
        "value.serializer",
    )
)


def rule_of(name: str) -> PropertyRule | None:
    """Return what becomes of a property; ``None`` if the table does not have it.

    Dots and underscores are the same.
    """
    dotted = _dotted(name)
    found = _BY_DOTTED.get(dotted)
    if found is None:
        found = next((rule for one, rule in _BY_PREFIX.items() if dotted.startswith(one)), None)
    return found


#: trikafka's own name of a setting, which only with dots is librdkafka's.
_OF_SHARE_CONSUMERS = "max_in_flight"


def is_for_librdkafka(properties: Mapping[str, Any]) -> bool:
    """Return whether properties were written for librdkafka: it alone has some of these names."""
    names = {_dotted(name) for name in properties if name != _OF_SHARE_CONSUMERS}
    return bool(names & _OF_LIBRDKAFKA) and not names & _OF_JAVA
