"""The settings as typed keywords of ``open_*``.

Made by scripts/generate.py from trikafka/config/clients.py: run `make generated` after a change there; do not edit.
"""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal, TypedDict

import trio.abc

from ..types import Deserializer
from .budget import MemoryBudget
from .security import Credentials, TokenProvider


class ClientSettings(TypedDict, total=False):
    """The keywords of :class:`ClientConfig`, for annotations: ``**settings: Unpack[ClientSettings]``."""

    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]
    """'SSL' is TLS, 'SASL_PLAINTEXT' authenticates without TLS, 'SASL_SSL' does both. Default:
    "PLAINTEXT"."""

    ssl_context: ssl.SSLContext | None
    """A context for TLS, used unchanged, instead of the other TLS settings. Default: None."""

    ssl_cafile: str | None
    """The trusted authorities: a PEM file, a directory of them ('openssl rehash'), a store in
    PKCS12 or JKS, or PEM text; None: the system's. Java's name: ssl.truststore.certificates.
    Default: None."""

    ssl_ca_password: str | None
    """The password of a trust store in ssl_cafile. Default: None."""

    ssl_certfile: str | None
    """This client's certificate and chain (mutual TLS): a PEM file, a PKCS12 store with its key, or
    PEM text. Java's name: ssl.keystore.certificate.chain. Default: None."""

    ssl_keyfile: str | None
    """The private key: a PEM file, or PEM text; None: ssl_certfile has it. Java's name:
    ssl.keystore.key. Default: None."""

    ssl_password: str | None
    """The password of ssl_keyfile, or of the PKCS12 store. Java's name: ssl.key.password. Default:
    None."""

    ssl_check_hostname: bool
    """The broker's certificate must match the host name of its address. Default: True."""

    ssl_crlfile: str | None
    """Revoked certificates (CRL) of each authority up to the root: a PEM file, a directory of them,
    or PEM text. Default: None."""

    ssl_minimum_version: Literal["TLSv1.2", "TLSv1.3"]
    """The oldest accepted version of TLS. Default: "TLSv1.2"."""

    ssl_ciphers: str | None
    """The ciphers up to TLS 1.2, in OpenSSL's notation; None: OpenSSL's choice. Default: None."""

    sasl_mechanism: (
        Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "GSSAPI"] | str | None
    )
    """The mechanism, if security_protocol names SASL; plugins may offer others. Default: None."""

    sasl_plain_username: str | None
    """The user name for PLAIN and SCRAM. Default: None."""

    sasl_plain_password: str | None
    """The password for PLAIN and SCRAM. Default: None."""

    sasl_credentials: Credentials | None
    """A function, async or not, that returns (name, password) at each authentication. Default:
    None."""

    sasl_scram_token_auth: bool
    """SCRAM's name and password are the token_id and password of a delegation token. Default:
    False."""

    sasl_oauth_token_provider: TokenProvider | None
    """An async function that returns a token: text, or a trikafka.OAuthToken. Default: None."""

    sasl_oauth_token_endpoint_url: str | None
    """The endpoint of tokens, by OAuth 2's client credentials (KIP-768). Java's name:
    sasl.oauthbearer.token.endpoint.url. Default: None."""

    sasl_oauth_client_id: str | None
    """The client's id at the token endpoint. Java's name:
    sasl.oauthbearer.client.credentials.client.id. Default: None."""

    sasl_oauth_client_secret: str | None
    """The client's secret at the token endpoint. Java's name:
    sasl.oauthbearer.client.credentials.client.secret. Default: None."""

    sasl_oauth_header_urlencode: bool
    """The client's id and secret are sent URL-encoded (RFC 6749); False: as they are, as by Java's
    client without this setting. Java's name: sasl.oauthbearer.header.urlencode. Default: True."""

    sasl_oauth_grant_type: Literal["client_credentials", "jwt-bearer"]
    """The grant: the client's id and secret, or an assertion that the client signs (KIP-1139).
    Default: "client_credentials"."""

    sasl_oauth_assertion_private_key_file: str | None
    """The key that signs assertions: a PEM file, or PEM text. Java's name:
    sasl.oauthbearer.assertion.private.key.file. Default: None."""

    sasl_oauth_assertion_private_key_passphrase: str | None
    """The password of that private key. Java's name:
    sasl.oauthbearer.assertion.private.key.passphrase. Default: None."""

    sasl_oauth_assertion_algorithm: Literal["RS256", "ES256"]
    """The signature algorithm of assertions. Java's name: sasl.oauthbearer.assertion.algorithm.
    Default: "RS256"."""

    sasl_oauth_assertion_claim_iss: str | None
    """The issuer in assertions. Java's name: sasl.oauthbearer.assertion.claim.iss. Default:
    None."""

    sasl_oauth_assertion_claim_sub: str | None
    """The subject in assertions. Java's name: sasl.oauthbearer.assertion.claim.sub. Default:
    None."""

    sasl_oauth_assertion_claim_aud: str | None
    """The audience in assertions. Java's name: sasl.oauthbearer.assertion.claim.aud. Default:
    None."""

    sasl_oauth_assertion_claim_exp_seconds: int
    """The lifetime of an assertion. In s, at least 1, at most 2**31 - 1. Java's name:
    sasl.oauthbearer.assertion.claim.exp.seconds. Default: 300."""

    sasl_oauth_assertion_claim_nbf_seconds: int
    """An assertion is valid from this time before now. In s, at least 0, at most 2**31 - 1. Java's
    name: sasl.oauthbearer.assertion.claim.nbf.seconds. Default: 60."""

    sasl_oauth_assertion_claim_jti_include: bool
    """Each assertion has its own id. Java's name: sasl.oauthbearer.assertion.claim.jti.include.
    Default: False."""

    sasl_oauth_assertion_template_file: str | None
    """A JSON file with further parts of assertions: {"header": {...}, "payload": {...}}. Java's
    name: sasl.oauthbearer.assertion.template.file. Default: None."""

    sasl_oauth_assertion_file: str | None
    """An assertion that another program signs and renews, instead of a private key. Java's name:
    sasl.oauthbearer.assertion.file. Default: None."""

    sasl_oauth_cafile: str | None
    """The trusted authorities of the endpoint: a PEM file, a directory of them, or PEM text; None:
    the system's. Default: None."""

    sasl_oauth_scope: str | None
    """The scope to request at the token endpoint. Java's name: sasl.oauthbearer.scope. Default:
    None."""

    sasl_oauth_extensions: Mapping[str, str] | None
    """Extensions to send with a token (KIP-342). Default: None."""

    sasl_kerberos_service_name: str
    """The brokers' service name in Kerberos. Default: "kafka"."""

    sasl_kerberos_principal: str | None
    """This client's principal; None: that of the ticket, or the first in the key table. Default:
    None."""

    sasl_kerberos_keytab: str | None
    """A key table to get tickets with; None: an available ticket, or KRB5_CLIENT_KTNAME. Default:
    None."""

    bootstrap_servers: str | Sequence[str]
    """Some brokers, for the first contact: 'host:port,host:port', or a sequence of these. Default:
    ""."""

    bootstrap_resolve_timeout_ms: float
    """How long an opening client retries while no bootstrap name resolves; 0: no retry (KIP-909).
    In milliseconds, at least 0. Default: 0."""

    client_id: str
    """The client's name in the brokers' logs and quotas. At most 32767 bytes. Default:
    "trikafka"."""

    request_timeout_ms: float
    """The longest wait for the response to one request. In milliseconds, at least 1, at most 2**31
    - 1. Default: 30_000."""

    default_api_timeout_ms: float
    """The limit of a call without timeout=, over all attempts. In milliseconds, at least 0.
    Default: 60_000."""

    close_timeout_ms: float
    """The limit of closing: the last commit, leaving the group, flush, sockets. In milliseconds, at
    least 0. Default: 30_000."""

    retry_backoff_ms: float
    """The wait before the second attempt; it doubles with each attempt. In milliseconds, at least
    0. Default: 100."""

    retry_backoff_max_ms: float
    """The longest wait between two attempts. In milliseconds, at least 0. Default: 1000."""

    reconnect_backoff_ms: float
    """The wait before a new connection, at least 10 ms; it doubles with each failure. In
    milliseconds, at least 0. Default: 50."""

    reconnect_backoff_max_ms: float
    """The longest wait before a new connection. In milliseconds, at least 0. Default: 1000."""

    socket_connection_setup_timeout_ms: float
    """The limit of connecting and negotiating; it doubles with each timeout (KIP-601). In
    milliseconds, at least 1. Default: 10_000."""

    socket_connection_setup_timeout_max_ms: float
    """The longest limit of connecting and negotiating. In milliseconds, at least 1. Default:
    30_000."""

    connections_max_idle_ms: float
    """An idle connection is closed after this time. In milliseconds, at least 1. Default:
    540_000."""

    metadata_max_age_ms: float
    """Metadata older than this is refreshed. In milliseconds, at least 1. Default: 300_000."""

    metadata_recovery_strategy: Literal["rebootstrap", "none"]
    """When no known broker can be reached: 'rebootstrap' uses the bootstrap addresses again, 'none'
    keeps trying the known brokers (KIP-899). Default: "rebootstrap"."""

    metadata_recovery_rebootstrap_trigger_ms: float
    """'rebootstrap' replaces all connections after this time without a response (KIP-1102). In
    milliseconds, at least 0. Default: 300_000."""

    metadata_cluster_check_enable: bool
    """With 'rebootstrap', a connection names the broker and cluster that it expects; any other
    refuses it (KIP-1242, Kafka 4.4). Default: True."""

    receive_message_max_bytes: int
    """The largest response; a longer one is treated as damaged. In bytes, at least 1000, at most
    2**31 - 1. Default: 100_000_000."""

    enable_metrics_push: bool
    """Push metrics to brokers whose operator subscribed to them (KIP-714); False for an admin
    client. Default: True."""

    plugins: Sequence[object]
    """Plugin objects, in addition to those found by entry point. Default: ()."""

    dial: Callable[[str, int], Awaitable[trio.abc.Stream]] | None
    """An async function that opens a byte stream to (host, port), for proxies and tests; None: TCP.
    Default: None."""


class AdminSettings(ClientSettings, total=False):
    """The keywords of :class:`AdminConfig`, for annotations: ``**settings: Unpack[AdminSettings]``."""

    bootstrap_controllers: str | Sequence[str]
    """Some KRaft controllers, instead of bootstrap_servers: all calls then go to controllers
    (KIP-919, Kafka 3.7). Default: ""."""

    retries: int | None
    """The retries of a call before it fails with its last error; None: until the limit of the call.
    At least 0. Default: None."""


class ProducerSettings(ClientSettings, total=False):
    """The keywords of :class:`ProducerConfig`, for annotations: ``**settings: Unpack[ProducerSettings]``."""

    acks: Literal[0, 1, -1, "all"]
    """The replicas that must have a record: 0, 1 or 'all' (-1). Default: "all"."""

    enable_idempotence: bool
    """No duplicates and no reordering by retries; by default off where acks or retries exclude it.
    Default: True."""

    batch_size: int
    """The size at which a batch is sent without lingering. In bytes, at least 0, at most 2**31 - 1.
    Default: 16_384."""

    linger_ms: float
    """The time that a batch waits for more records. In milliseconds, at least 0. Default: 5."""

    compression_type: Literal["none", "gzip", "snappy", "lz4", "zstd"] | str
    """The compression of batches. Default: "none"."""

    compression_gzip_level: int | None
    """The level of 'gzip' (KIP-390); None: 6. At least 1, at most 9. Default: None."""

    compression_lz4_level: int | None
    """The level of 'lz4' (KIP-390); None: 1. At least 1, at most 17. Default: None."""

    compression_zstd_level: int | None
    """The level of 'zstd' (KIP-390); None: 3. At least -131072, at most 22. Default: None."""

    buffer_memory: int
    """The most bytes of records that wait or are in flight; send waits above this. In bytes, at
    least 1, at most 2**63 - 1. Default: 33_554_432."""

    max_block_ms: float
    """The longest time that a send waits for metadata and room. In milliseconds, at least 0.
    Default: 60_000."""

    max_request_size: int
    """The most bytes of one request, and therefore of one record. In bytes, at least 1, at most
    2**31 - 1. Default: 1_048_576."""

    delivery_timeout_ms: float
    """The time from send to the outcome, with retries (KIP-91); at least linger_ms +
    request_timeout_ms, to which the default rises. In milliseconds, at least 1. Default:
    120_000."""

    retries: int | None
    """The number of retries of a batch before it fails; None: only delivery_timeout_ms counts. At
    least 0. Default: None."""

    max_in_flight_requests_per_connection: int
    """The most produce requests in flight to one broker: up to 5 with idempotence, 100 without. At
    least 1. Default: 5."""

    transactional_id: str | None
    """Makes the producer transactional, and fences any other with this id; each instance of a
    program has its own. At most 32767 bytes. Default: None."""

    transaction_timeout_ms: float
    """The coordinator aborts a transaction that is open for longer; at most the broker's
    transaction.max.timeout.ms. In milliseconds, at least 1, at most 2**31 - 1. Default: 60_000."""

    two_phase_commit: bool
    """Transactions can be prepared, outlive the producer and never time out (KIP-939); needs a
    transactional_id and brokers that allow it. Java's name: transaction.two.phase.commit.enable.
    Default: False."""

    commit_prepared: str | None
    """The prepared transaction (its text) that the opening producer commits; it aborts any other of
    this transactional_id. Default: None."""

    stall_warning_ms: float
    """Log a warning after this time without progress of a partition's records or a transaction's
    end. In milliseconds, at least 1. Default: 10_000."""

    partitioner: (
        Literal[
            "default",
            "consistent",
            "consistent_random",
            "murmur2",
            "murmur2_random",
            "fnv1a",
            "fnv1a_random",
            "random",
        ]
        | str
        | Callable[[str, bytes | None, Sequence[int]], int]
    )
    """'default' (murmur2 of the key as in Java, sticky without one), one of librdkafka's (whose
    default is 'consistent_random'), a plugin's, or a function of topic, key and partition numbers.
    Java's name: partitioner.class. Default: "default"."""

    partitioner_ignore_keys: bool
    """Built-in partitioners ignore keys (KIP-794). Default: False."""

    partitioner_adaptive_partitioning_enable: bool
    """Partitions of a slow broker get fewer records without a key (KIP-794). Default: True."""

    partitioner_rack_aware: bool
    """Records without a key go to partitions whose leader is in client_rack, if there are any
    (KIP-1123). Default: False."""

    client_rack: str
    """This producer's rack, for partitioner_rack_aware. Default: ""."""

    partitioner_availability_timeout_ms: float
    """Records without a key avoid a broker that has been unreachable for this time; 0: never
    (KIP-794). In milliseconds, at least 0. Default: 0."""

    allow_auto_create_topics: bool
    """Let the broker create a topic that does not exist (always so in Java). Default: False."""


class BytesConsumerSettings(ClientSettings, total=False):
    """The keywords of :class:`ConsumerConfig`, for annotations: ``**settings: Unpack[BytesConsumerSettings]``.

    Without key_deserializer and value_deserializer: records have bytes.
    """

    group_id: str | None
    """The consumer group; None: no group and no commits. At most 32767 bytes. Default: None."""

    group_instance_id: str | None
    """A stable name that makes this a static member (KIP-345). At most 32767 bytes. Default:
    None."""

    group_protocol: Literal["auto", "classic", "consumer"]
    """'consumer': the broker assigns the partitions (KIP-848). 'classic': the members do (Java's
    default). 'auto': 'consumer' where the broker has it; but 'classic' if session_timeout_ms,
    heartbeat_interval_ms or partition_assignment_strategy is given. Default: "auto"."""

    group_remote_assignor: str | None
    """The broker's assignor with KIP-848; None: the broker chooses. Default: None."""

    group_membership_operation: Literal["default", "leave_group", "remain_in_group"]
    """What closing does with the membership (KIP-1092); by default a dynamic member leaves and a
    static one stays. Default: "default"."""

    auto_offset_reset: Literal["earliest", "latest", "none"] | str
    """The start without a committed offset: 'earliest', 'latest', 'none' (an error), or a time ago,
    'by_duration:PT1H' (KIP-1106). Default: "latest"."""

    enable_auto_commit: bool
    """Commit processed records in the background and on leaving; needs group_id. Default: True."""

    enable_auto_offset_store: bool
    """The next receive marks delivered records as processed; False: only mark_processed() does
    (librdkafka's enable.auto.offset.store). Default: True."""

    auto_commit_interval_ms: float
    """The interval of auto commits. In milliseconds, at least 1. Default: 5000."""

    isolation_level: Literal["read_uncommitted", "read_committed"]
    """'read_committed' leaves out records of open and aborted transactions. Default:
    "read_uncommitted"."""

    check_crcs: bool
    """Check the checksum of every record batch. Default: True."""

    fetch_min_bytes: int
    """The bytes that a fetch waits for. In bytes, at least 0, at most 2**31 - 1. Default: 1."""

    fetch_max_bytes: int
    """The most bytes that one fetch requests. In bytes, at least 1, at most 2**31 - 1. Default:
    52_428_800."""

    fetch_max_wait_ms: float
    """The longest time that a fetch waits for fetch_min_bytes. In milliseconds, at least 0, at most
    2**31 - 1. Default: 500."""

    max_partition_fetch_bytes: int
    """The most bytes that one fetch requests of one partition. In bytes, at least 1, at most 2**31
    - 1. Default: 1_048_576."""

    fetch_buffer_bytes: int
    """The most bytes in fetches, buffers and the last delivery; fetches wait above this (KIP-81).
    In bytes, at least 1. Default: 67_108_864."""

    memory_budget: MemoryBudget | None
    """A budget that consumers share; each gets an equal part, and at most fetch_buffer_bytes.
    Default: None."""

    max_poll_records: int | None
    """The most records of a batch; None: as many as were fetched (Java: 500). At least 1. Default:
    None."""

    session_timeout_ms: float
    """The group removes a member after this time without a heartbeat; with
    group_protocol='consumer' the broker decides, but a shorter value stops the member earlier. In
    milliseconds, at least 1, at most 2**31 - 1. Default: 45_000."""

    heartbeat_interval_ms: float
    """The interval of heartbeats, by which members notice a rebalance (Java: 3000); with
    group_protocol='consumer' the broker decides, and this setting is an error. In milliseconds, at
    least 1. Default: 500."""

    max_poll_interval_ms: float
    """A member leaves the group after this time without a receive (KIP-62). In milliseconds, at
    least 1, at most 2**31 - 1. Default: 300_000."""

    leave_when_stuck: bool
    """Leave the group when the handlers of all streams hold a record for longer than
    max_poll_interval_ms (KIP-62). Default: True."""

    partition_assignment_strategy: Sequence[str]
    """The assignors of the classic protocol, the preferred one first; an error with
    group_protocol='consumer'. Default: ("range", "cooperative-sticky")."""

    stall_warning_ms: float
    """Log a warning after this time without progress of a partition, the group, a commit or a call.
    In milliseconds, at least 1. Default: 10_000."""

    exclude_internal_topics: bool
    """A subscribed pattern excludes Kafka's internal topics. Default: True."""

    allow_auto_create_topics: bool
    """Let the broker create a topic that does not exist (True in Java). Default: False."""

    client_rack: str
    """This consumer's rack; it fetches from a replica there if the broker says so (KIP-392).
    Default: ""."""


class ConsumerSettings(BytesConsumerSettings, total=False):
    """The keywords of :class:`ConsumerConfig`, for annotations: ``**settings: Unpack[ConsumerSettings]``."""

    key_deserializer: Callable[[bytes], Any] | Deserializer[Any] | None
    """A function of the key's bytes, plain or async, or a Deserializer; None: bytes. Default:
    None."""

    value_deserializer: Callable[[bytes], Any] | Deserializer[Any] | None
    """A function of the value's bytes, plain or async, or a Deserializer; None: bytes. Default:
    None."""


class BytesShareConsumerSettings(ClientSettings, total=False):
    """The keywords of :class:`ShareConsumerConfig`, for annotations: ``**settings: Unpack[BytesShareConsumerSettings]``.

    Without key_deserializer and value_deserializer: records have bytes.
    """

    group_id: str
    """The share group. At most 32767 bytes. Default: ""."""

    acquire: Literal["batches", "records"]
    """What a fetch acquires: 'batches' (whole ones of the log, perhaps more than max_in_flight) or
    'records' (not more, from one broker at a time, unless one responds over a second late;
    KIP-1206). Default: "batches"."""

    max_in_flight: int
    """The most records that this member holds, delivered or waiting; it begins with 500 and holds
    more only while it needs under 200 ms for them. At least 1, at most 2**31 - 1. Default:
    20_000."""

    max_processing_ms: float
    """How long a delivered record's lock is renewed; then its block is cancelled and the record
    released. In milliseconds, at least 1. Default: 300_000."""

    ack_linger_ms: float
    """How long an acknowledgement waits for the next fetch before it is sent alone; ten times as
    long (at most 50 ms) if the rest of its batch is about to be decided by then. In milliseconds,
    at least 0. Default: 5."""

    max_poll_interval_ms: float
    """A member leaves the group after this time without a receive or an open block. In
    milliseconds, at least 1, at most 2**31 - 1. Default: 300_000."""

    fetch_min_bytes: int
    """The bytes that a fetch waits for. In bytes, at least 0, at most 2**31 - 1. Default: 1."""

    fetch_max_bytes: int
    """The most bytes that one fetch requests. In bytes, at least 1, at most 2**31 - 1. Default:
    52_428_800."""

    fetch_buffer_bytes: int
    """The most bytes of records that wait to be delivered; no fetch begins above half of it, and
    one brings at most half of what is left. In bytes, at least 1. Default: 67_108_864."""

    fetch_max_wait_ms: float
    """The longest time that a fetch waits for fetch_min_bytes; while records are held, at most 60
    ms. In milliseconds, at least 0, at most 2**31 - 1. Default: 500."""

    check_crcs: bool
    """Check the checksum of every record batch. Default: True."""

    allow_auto_create_topics: bool
    """Let the broker create a topic that does not exist. Default: False."""

    client_rack: str
    """This consumer's rack, for the group's assignor. Default: ""."""

    stall_warning_ms: float
    """Log a warning after this time without progress of a partition, the group or an
    acknowledgement. In milliseconds, at least 1. Default: 10_000."""


class ShareConsumerSettings(BytesShareConsumerSettings, total=False):
    """The keywords of :class:`ShareConsumerConfig`, for annotations: ``**settings: Unpack[ShareConsumerSettings]``."""

    key_deserializer: Callable[[bytes], Any] | Deserializer[Any] | None
    """A function of the key's bytes, plain or async, or a Deserializer; None: bytes. Default:
    None."""

    value_deserializer: Callable[[bytes], Any] | Deserializer[Any] | None
    """A function of the value's bytes, plain or async, or a Deserializer; None: bytes. Default:
    None."""
