"""The settings as typed keywords of ``open_*``.

Made by scripts/generate.py from trikafka/config/clients.py: run `make docs` after a change there; do not edit.
"""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal, TypedDict

import trio.abc

from .budget import MemoryBudget
from .security import Credentials, TokenProvider


class ClientSettings(TypedDict, total=False):
    """The keywords of :class:`ClientConfig`, for annotations: ``**settings: Unpack[ClientSettings]``."""

    security_protocol: Literal['PLAINTEXT', 'SSL', 'SASL_PLAINTEXT', 'SASL_SSL']
    """How to speak to brokers: 'SSL' is TLS, 'SASL_PLAINTEXT' credentials without TLS, 'SASL_SSL' both. Default: "PLAINTEXT"."""

    ssl_context: ssl.SSLContext | None
    """A context to use for TLS as it is, instead of the other ssl_ settings. Default: None."""

    ssl_cafile: str | None
    """The authorities to trust: a PEM file, or PEM text; None: the system's. Java's name: ssl.truststore.certificates. Default:
    None."""

    ssl_certfile: str | None
    """This client's certificate and its chain, for brokers that ask for one (mutual TLS): a PEM file, or PEM text. Java's name:
    ssl.keystore.certificate.chain. Default: None."""

    ssl_keyfile: str | None
    """The private key of ssl_certfile: a PEM file, or PEM text; None: it stands in ssl_certfile. Java's name: ssl.keystore.key.
    Default: None."""

    ssl_password: str | None
    """The password of ssl_keyfile. Java's name: ssl.key.password. Default: None."""

    ssl_check_hostname: bool
    """Whether the broker's certificate must be for the name that was dialled. Default: True."""

    ssl_crlfile: str | None
    """Certificates that were revoked: a PEM file, or PEM text. Default: None."""

    ssl_ciphers: str | None
    """The ciphers to offer up to TLS 1.2, in OpenSSL's words; None: OpenSSL's choice. Default: None."""

    sasl_mechanism: Literal['PLAIN', 'SCRAM-SHA-256', 'SCRAM-SHA-512', 'OAUTHBEARER', 'GSSAPI'] | str | None
    """How to authenticate, with a SASL_ security_protocol; a plugin may offer others. Default: None."""

    sasl_plain_username: str | None
    """The user's name for PLAIN and SCRAM. Default: None."""

    sasl_plain_password: str | None
    """The user's password for PLAIN and SCRAM. Default: None."""

    sasl_credentials: Credentials | None
    """A function, async or not, that returns (name, password) for PLAIN and SCRAM; asked at each authentication, so that they may
    change while the client runs. Default: None."""

    sasl_oauth_token_provider: TokenProvider | None
    """An async function that returns a token for OAUTHBEARER: text, or a trikafka.OAuthToken. Default: None."""

    sasl_oauth_token_endpoint_url: str | None
    """Where tokens for OAUTHBEARER come from, by OAuth 2's client credentials (KIP-768). Java's name:
    sasl.oauthbearer.token.endpoint.url. Default: None."""

    sasl_oauth_client_id: str | None
    """The client's id there. Java's name: sasl.oauthbearer.client.credentials.client.id. Default: None."""

    sasl_oauth_client_secret: str | None
    """The client's secret there. Java's name: sasl.oauthbearer.client.credentials.client.secret. Default: None."""

    sasl_oauth_scope: str | None
    """The scope to ask for there. Java's name: sasl.oauthbearer.scope. Default: None."""

    sasl_oauth_extensions: Mapping[str, str] | None
    """Extensions to send with a token (KIP-342). Default: None."""

    sasl_kerberos_service_name: str
    """The brokers' name with Kerberos, for GSSAPI. Default: "kafka"."""

    sasl_kerberos_principal: str | None
    """Who this client is with Kerberos; None: whose ticket is there, or the first in the key table. Default: None."""

    sasl_kerberos_keytab: str | None
    """A key table to get tickets with; None: the ticket that is there, or as KRB5_CLIENT_KTNAME says. Default: None."""

    bootstrap_servers: str | Sequence[str]
    """Addresses to begin with: 'host:port,host:port' or a sequence of these. Default: ""."""

    client_id: str
    """The name that brokers log and count quotas by. At most 32767 bytes. Default: "trikafka"."""

    request_timeout_ms: float
    """How long one request may wait for its response. In milliseconds, at least 1, at most 2**31 - 1. Default: 30_000."""

    default_api_timeout_ms: float
    """The limit of a call that is given no timeout=. In milliseconds, at least 0. Default: 60_000."""

    close_timeout_ms: float
    """The limit for leaving: last commit, leave the group, flush, close sockets. In milliseconds, at least 0. Default: 30_000."""

    retry_backoff_ms: float
    """The wait before the second attempt; doubles with each further one. In milliseconds, at least 0. Default: 100."""

    retry_backoff_max_ms: float
    """The longest wait between two attempts. In milliseconds, at least 0. Default: 1000."""

    reconnect_backoff_ms: float
    """The wait before a broker is dialled again; doubles with each failure. In milliseconds, at least 0. Default: 50."""

    reconnect_backoff_max_ms: float
    """The longest wait before a broker is dialled again. In milliseconds, at least 0. Default: 1000."""

    socket_connection_setup_timeout_ms: float
    """How long dialling and negotiating may take; doubles with each time that was not enough (KIP-601). In milliseconds, at least
    1. Default: 10_000."""

    socket_connection_setup_timeout_max_ms: float
    """The longest that dialling and negotiating may take. In milliseconds, at least 1. Default: 30_000."""

    connections_max_idle_ms: float
    """A connection that carried nothing for so long is closed. In milliseconds, at least 1. Default: 540_000."""

    metadata_max_age_ms: float
    """Metadata older than this is refreshed. In milliseconds, at least 1. Default: 300_000."""

    metadata_recovery_strategy: Literal['rebootstrap', 'none']
    """What is done when no known broker can be reached: 'rebootstrap' asks the bootstrap addresses again, and resolves their names
    anew; 'none' goes on with the known brokers alone (KIP-899). Default: "rebootstrap"."""

    metadata_recovery_rebootstrap_trigger_ms: float
    """With 'rebootstrap': when nobody has responded for so long, all connections are made anew (KIP-1102). In milliseconds, at
    least 0. Default: 300_000."""

    receive_message_max_bytes: int
    """A longer response is taken for bytes that are not Kafka's. In bytes, at least 1024, at most 2**31 - 1. Default:
    100_000_000."""

    plugins: Sequence[object]
    """Plugin objects to use beside those found by entry point. Default: ()."""

    dial: Callable[[str, int], Awaitable[trio.abc.Stream]] | None
    """An async function that opens a byte stream to (host, port); None: TCP. For proxies and tests. Default: None."""


class AdminSettings(ClientSettings, total=False):
    """The keywords of :class:`AdminConfig`, for annotations: ``**settings: Unpack[AdminSettings]``."""

    retries: int | None
    """How often a call is tried again before it fails with its last error; None: until its limit. At least 0. Default: None."""


class ConsumerSettings(ClientSettings, total=False):
    """The keywords of :class:`ConsumerConfig`, for annotations: ``**settings: Unpack[ConsumerSettings]``."""

    group_id: str | None
    """The consumer group; None: no group, no commits. At most 32767 bytes. Default: None."""

    group_instance_id: str | None
    """A stable name makes this a static member (KIP-345). At most 32767 bytes. Default: None."""

    group_protocol: Literal['auto', 'classic', 'consumer']
    """How the group is coordinated: by its members ('classic'), by the broker ('consumer', KIP-848), or by the broker where it can
    ('auto'; Java's default is 'classic'). Default: "auto"."""

    group_remote_assignor: str | None
    """The broker's assignor to use with group_protocol='consumer'; None: the broker chooses. Default: None."""

    group_membership_operation: Literal['default', 'leave_group', 'remain_in_group']
    """Whether closing leaves the group (KIP-1092); 'default': a dynamic member leaves, a static one stays. Default: "default"."""

    auto_offset_reset: Literal['earliest', 'latest', 'none'] | str
    """Where to begin without a committed offset: 'earliest', 'latest', 'none' (an error), or 'by_duration:<ISO 8601 duration>', so
    far back in time, such as 'by_duration:PT1H' (KIP-1106). Default: "latest"."""

    enable_auto_commit: bool
    """Commit what was processed, in the background and on leaving (needs group_id). Default: True."""

    enable_auto_offset_store: bool
    """Whether coming back for more says that what was handed out is processed; False: only what mark_processed() is told
    (librdkafka's enable.auto.offset.store). Default: True."""

    auto_commit_interval_ms: float
    """How often what was processed is committed. In milliseconds, at least 1. Default: 5000."""

    isolation_level: Literal['read_uncommitted', 'read_committed']
    """Whether records of open and aborted transactions are seen. Default: "read_uncommitted"."""

    key_deserializer: Callable[[bytes], Any] | None
    """A plain function that makes of a key's bytes what records have as their key; None: bytes. Default: None."""

    value_deserializer: Callable[[bytes], Any] | None
    """A plain function that makes of a value's bytes what records have as their value; None: bytes. Default: None."""

    check_crcs: bool
    """Check the checksum of every record batch. Default: True."""

    fetch_min_bytes: int
    """A fetch waits for so many bytes. In bytes, at least 0, at most 2**31 - 1. Default: 1."""

    fetch_max_bytes: int
    """The most bytes one fetch asks for. In bytes, at least 1, at most 2**31 - 1. Default: 52_428_800."""

    fetch_max_wait_ms: float
    """How long a fetch waits for fetch_min_bytes. In milliseconds, at least 0, at most 2**31 - 1. Default: 500."""

    max_partition_fetch_bytes: int
    """The most bytes one fetch asks of one partition. In bytes, at least 1, at most 2**31 - 1. Default: 1_048_576."""

    fetch_buffer_bytes: int
    """Bytes being fetched, buffered and just handed out: fetches wait above (KIP-81). In bytes, at least 1. Default: 67_108_864."""

    memory_budget: MemoryBudget | None
    """A budget that consumers of a program share: each has an equal part, or fetch_buffer_bytes if that is less. Default: None."""

    max_poll_records: int | None
    """The most records that receive_batch returns; None: as they were fetched (Java has 500; whoever needs long for a record sets
    it, so that a batch is done within max_poll_interval_ms). At least 1. Default: None."""

    session_timeout_ms: float
    """The group gives up a member it has not heard of for so long; with KIP-848 the broker decides. In milliseconds, at least 1, at
    most 2**31 - 1. Default: 45_000."""

    heartbeat_interval_ms: float
    """How often a member says that it lives, and learns that others came or went: so long a new member waits for its partitions
    (Java's default is 3000); with KIP-848 the broker decides. In milliseconds, at least 1. Default: 500."""

    max_poll_interval_ms: float
    """A member that asks for nothing for so long leaves the group (KIP-62). In milliseconds, at least 1, at most 2**31 - 1.
    Default: 300_000."""

    partition_assignment_strategy: Sequence[str]
    """Assignors of the classic protocol, the preferred one first. Default: ("range", "cooperative-sticky")."""

    stall_warning_ms: float
    """A partition that has lag and made no progress for so long is warned about. In milliseconds, at least 1. Default: 10_000."""

    exclude_internal_topics: bool
    """Whether a subscribed pattern leaves out Kafka's internal topics. Default: True."""

    allow_auto_create_topics: bool
    """Whether asking for a topic may create it, where the broker does that (Java's default is True). Default: False."""

    client_rack: str
    """The rack this consumer is in: it fetches from a replica there if the broker says so (KIP-392). Default: ""."""


class ProducerSettings(ClientSettings, total=False):
    """The keywords of :class:`ProducerConfig`, for annotations: ``**settings: Unpack[ProducerSettings]``."""

    acks: Literal[0, 1, -1, 'all']
    """How many replicas must have a record: 0, 1 or 'all' (-1). Default: "all"."""

    enable_idempotence: bool
    """No doubles and no reordering by retries; off where acks or retries rule it out, unless it is asked for. Default: True."""

    batch_size: int
    """The size at which a batch is sent without lingering. In bytes, at least 0, at most 2**31 - 1. Default: 16_384."""

    linger_ms: float
    """How long a batch waits for more records. In milliseconds, at least 0. Default: 5."""

    compression_type: Literal['none', 'gzip', 'snappy', 'lz4', 'zstd'] | str
    """How batches are compressed: 'none', 'gzip', 'snappy', 'lz4' or 'zstd'. Default: "none"."""

    compression_gzip_level: int | None
    """Of 'gzip' (KIP-390); None: 6. At least 1, at most 9. Default: None."""

    compression_lz4_level: int | None
    """Of 'lz4' (KIP-390); None: 1. At least 1, at most 17. Default: None."""

    compression_zstd_level: int | None
    """Of 'zstd' (KIP-390); None: 3. At least -131072, at most 22. Default: None."""

    buffer_memory: int
    """Bytes of records that wait or are in flight; send waits above it. In bytes, at least 1, at most 2**63 - 1. Default:
    33_554_432."""

    max_block_ms: float
    """How long a send waits for metadata and room. In milliseconds, at least 0. Default: 60_000."""

    max_request_size: int
    """The most bytes of one request, and so of one record. In bytes, at least 1, at most 2**31 - 1. Default: 1_048_576."""

    delivery_timeout_ms: float
    """From send to the outcome, retries included (KIP-91): at least linger_ms + request_timeout_ms, and raised to that if it is not
    given, as in Java's client. In milliseconds, at least 1. Default: 120_000."""

    retries: int | None
    """How often a batch is sent again before it fails; None: until delivery_timeout_ms. At least 0. Default: None."""

    max_in_flight_requests_per_connection: int
    """Produce requests to one broker at a time: at most 5 with idempotence, and at most 100 without. At least 1. Default: 5."""

    transactional_id: str | None
    """Makes this a producer of transactions, and fences any other that has this id: keep it over restarts, and give each instance
    of a program its own. At most 32767 bytes. Default: None."""

    transaction_timeout_ms: float
    """The coordinator aborts a transaction that is open for longer (at most the broker's transaction.max.timeout.ms). In
    milliseconds, at least 1, at most 2**31 - 1. Default: 60_000."""

    two_phase_commit: bool
    """Transactions can be prepared, survive the producer and never time out (KIP-939); needs a transactional_id, and brokers that
    allow it. Java's name: transaction.two.phase.commit.enable. Default: False."""

    commit_prepared: str | None
    """With two_phase_commit: str() of what Transaction.prepare() returned, to be committed while the producer opens; any other
    transaction that was prepared with this transactional_id is aborted. Default: None."""

    partitioner: Literal['default'] | str | Callable[[str, bytes | None, Sequence[int]], int]
    """'default' (murmur2 of the key, sticky without one), the name of one that a plugin offers, or a function of the topic, the key
    and the partitions' numbers that returns one of these. Java's name: partitioner.class. Default: "default"."""

    partitioner_ignore_keys: bool
    """Whether the default partitioner takes no notice of keys (KIP-794). Default: False."""

    partitioner_adaptive_partitioning_enable: bool
    """Whether partitions with a slow broker get fewer of the records without a key (KIP-794). Default: True."""

    partitioner_availability_timeout_ms: float
    """Records without a key go elsewhere when a broker is out of reach for so long; 0: they do not (KIP-794). In milliseconds, at
    least 0. Default: 0."""

    allow_auto_create_topics: bool
    """Whether asking for a topic may create it, where the broker does that (Java's producer always does). Default: False."""
