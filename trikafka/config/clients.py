"""The settings of a client: each name, default, limit and meaning stands here once.

Names are those that users of kafka-python and aiokafka know; defaults are those of Kafka's Java client 4, or the sentence says why
not. A settings object is frozen. ``build`` checks everything before any I/O and answers a wrong name with the nearest right one.
After a change run ``make docs``: the typed keywords of ``open_*`` (``typed.py``) and ``docs/reference.md`` are made from this file.
"""

from __future__ import annotations

import inspect
import logging
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

import trio.abc

from ..errors import ConfigurationError
from ..types import PreparedTransaction
from .budget import MemoryBudget
from .resets import OffsetReset, parse_reset
from .secrets import holds_secret, secret
from .security import SecurityConfig
from .setting import INT32, LONGEST_TEXT, setting, settings_of, unknown

_log = logging.getLogger("trikafka.config")


@dataclass(frozen=True, kw_only=True)
class ClientConfig(SecurityConfig):
    """Settings that every client has. Times end in ``_ms`` and are milliseconds; sizes are bytes."""

    #: The settings that :meth:`build` was given (``None`` counts as not given); a default may give way where they may not. It is
    #: no setting, and so no field: ``build`` writes it into the instance.
    explicit: ClassVar[frozenset[str]] = frozenset()
    #: What users call with these settings.
    given_to: ClassVar[str] = "a client"

    bootstrap_servers: str | Sequence[str] = setting("", "addresses to begin with: 'host:port,host:port' or a sequence of these")
    client_id: str = setting("trikafka", "the name that brokers log and count quotas by", most=LONGEST_TEXT)
    request_timeout_ms: float = setting(30_000, "how long one request may wait for its response", least=1, most=INT32)
    default_api_timeout_ms: float = setting(60_000, "the limit of a call that is given no timeout=", least=0)
    close_timeout_ms: float = setting(
        30_000, "the limit for leaving: last commit, leave the group, flush, close sockets", least=0, java=None
    )
    retry_backoff_ms: float = setting(100, "the wait before the second attempt; doubles with each further one", least=0)
    retry_backoff_max_ms: float = setting(1_000, "the longest wait between two attempts", least=0)
    reconnect_backoff_ms: float = setting(50, "the wait before a broker is dialled again; doubles with each failure", least=0)
    reconnect_backoff_max_ms: float = setting(1_000, "the longest wait before a broker is dialled again", least=0)
    socket_connection_setup_timeout_ms: float = setting(
        10_000, "how long dialling and negotiating may take; doubles with each time that was not enough (KIP-601)", least=1
    )
    socket_connection_setup_timeout_max_ms: float = setting(30_000, "the longest that dialling and negotiating may take", least=1)
    connections_max_idle_ms: float = setting(540_000, "a connection that carried nothing for so long is closed", least=1)
    metadata_max_age_ms: float = setting(300_000, "metadata older than this is refreshed", least=1)
    metadata_recovery_strategy: Literal["rebootstrap", "none"] = setting(
        "rebootstrap",
        "what is done when no known broker can be reached: 'rebootstrap' asks the bootstrap addresses again, and resolves their"
        " names anew; 'none' goes on with the known brokers alone (KIP-899)",
    )
    metadata_recovery_rebootstrap_trigger_ms: float = setting(
        300_000, "with 'rebootstrap': when nobody has responded for so long, all connections are made anew (KIP-1102)", least=0
    )
    receive_message_max_bytes: int = setting(
        100_000_000, "a longer response is taken for bytes that are not Kafka's", least=1024, most=INT32, java=None
    )
    plugins: Sequence[object] = setting((), "plugin objects to use beside those found by entry point", java=None)
    dial: Callable[[str, int], Awaitable[trio.abc.Stream]] | None = setting(  # noqa: RUF009
        None, "an async function that opens a byte stream to (host, port); None: TCP. For proxies and tests", java=None
    )

    @classmethod
    def build(cls, settings: Mapping[str, Any], given_to: str | None = None, beside: Sequence[str] = ()) -> Self:
        """Check ``settings`` and return them frozen. Raises :exc:`ConfigurationError` for a wrong name, type or value.

        ``given_to``: what the user has called, where it is not what opens such a client; ``beside``: what else that takes.
        """
        known = settings_of(cls)  # type: ignore[arg-type]  # mypy doubts that a class is hashable
        if strange := [name for name in settings if name not in known]:
            raise unknown(strange, (*known, *beside), given_to or cls.given_to, lambda name: _whose(name, cls))
        config = cls(**cls.hidden(settings))
        for name, one in known.items():
            one.check(getattr(config, name))
        if holds_secret(config.bootstrap_servers):  # not repeated: a password may stand before it
            raise ConfigurationError("bootstrap_servers: an address has no '@'; user and password are other settings (sasl_...)")
        object.__setattr__(config, "explicit", frozenset(name for name, value in settings.items() if value is not None))
        config.check_security(config.explicit)
        config.check()
        return config

    @classmethod
    def hidden(cls, settings: Mapping[str, Any]) -> dict[str, Any]:
        """A copy of ``settings`` in which those that are secret, or of unknown names, hide themselves."""
        known = settings_of(cls)  # type: ignore[arg-type]  # as above
        return {
            name: secret(value) if name not in known or known[name].secret or holds_secret(value) else value
            for name, value in settings.items()
        }

    @classmethod
    def take(cls, settings: Mapping[str, Any]) -> Self:
        """As :meth:`build`, and empty ``settings``: who holds them lives as long as the client, and they show what is secret."""
        try:
            return cls.build(settings)
        finally:
            if isinstance(settings, dict):
                settings.clear()

    def check(self) -> None:
        """Check settings against each other. Raises :exc:`ConfigurationError`."""

    @property
    def default_api_timeout(self) -> float:
        """``default_api_timeout_ms`` in seconds."""
        return self.default_api_timeout_ms / 1000

    @property
    def request_timeout(self) -> float:
        """``request_timeout_ms`` in seconds."""
        return self.request_timeout_ms / 1000

    @property
    def call_retries(self) -> float:
        """How often an API call is tried again; only its time bounds that, but for an admin client that was told otherwise."""
        return math.inf


@dataclass(frozen=True, kw_only=True)
class AdminConfig(ClientConfig):
    """Settings of :func:`trikafka.open_admin`."""

    given_to = "open_admin()"

    retries: int | None = setting(
        None, "how often a call is tried again before it fails with its last error; None: until its limit", least=0
    )

    @property
    def call_retries(self) -> float:
        return math.inf if self.retries is None else self.retries


@dataclass(frozen=True, kw_only=True)
class ConsumerConfig(ClientConfig):
    """Settings of :func:`trikafka.open_consumer`."""

    given_to = "open_consumer()"

    group_id: str | None = setting(None, "the consumer group; None: no group, no commits", empty=False, most=LONGEST_TEXT)
    group_instance_id: str | None = setting(
        None, "a stable name makes this a static member (KIP-345)", empty=False, most=LONGEST_TEXT
    )
    group_protocol: Literal["auto", "classic", "consumer"] = setting(
        "auto",
        "how the group is coordinated: by its members ('classic'), by the broker ('consumer', KIP-848), or by the broker where it"
        " can ('auto'; Java's default is 'classic')",
    )
    group_remote_assignor: str | None = setting(
        None, "the broker's assignor to use with group_protocol='consumer'; None: the broker chooses", empty=False
    )
    group_membership_operation: Literal["default", "leave_group", "remain_in_group"] = setting(
        "default",
        "whether closing leaves the group (KIP-1092); 'default': a dynamic member leaves, a static one stays",
        java=None,
    )
    auto_offset_reset: Literal["earliest", "latest", "none"] | str = setting(
        "latest",
        "where to begin without a committed offset: 'earliest', 'latest', 'none' (an error), or"
        " 'by_duration:<ISO 8601 duration>', so far back in time, such as 'by_duration:PT1H' (KIP-1106)",
    )
    enable_auto_commit: bool = setting(True, "commit what was processed, in the background and on leaving (needs group_id)")
    enable_auto_offset_store: bool = setting(
        True,
        "whether coming back for more says that what was handed out is processed; False: only what mark_processed() is told"
        " (librdkafka's enable.auto.offset.store)",
        java=None,
    )
    auto_commit_interval_ms: float = setting(5_000, "how often what was processed is committed", least=1)
    isolation_level: Literal["read_uncommitted", "read_committed"] = setting(
        "read_uncommitted", "whether records of open and aborted transactions are seen"
    )
    key_deserializer: Callable[[bytes], Any] | None = setting(  # noqa: RUF009
        None, "a plain function that makes of a key's bytes what records have as their key; None: bytes"
    )
    value_deserializer: Callable[[bytes], Any] | None = setting(  # noqa: RUF009
        None, "a plain function that makes of a value's bytes what records have as their value; None: bytes"
    )
    check_crcs: bool = setting(True, "check the checksum of every record batch")
    fetch_min_bytes: int = setting(1, "a fetch waits for so many bytes", least=0, most=INT32)
    fetch_max_bytes: int = setting(52_428_800, "the most bytes one fetch asks for", least=1, most=INT32)
    fetch_max_wait_ms: float = setting(500, "how long a fetch waits for fetch_min_bytes", least=0, most=INT32)
    max_partition_fetch_bytes: int = setting(1_048_576, "the most bytes one fetch asks of one partition", least=1, most=INT32)
    fetch_buffer_bytes: int = setting(
        67_108_864, "bytes being fetched, buffered and just handed out: fetches wait above (KIP-81)", least=1, java=None
    )
    memory_budget: MemoryBudget | None = setting(  # noqa: RUF009
        None, "a budget that consumers of a program share: each has an equal part, or fetch_buffer_bytes if that is less", java=None
    )
    max_poll_records: int | None = setting(
        None,
        "the most records that receive_batch returns; None: as they were fetched (Java has 500; whoever needs long for a record"
        " sets it, so that a batch is done within max_poll_interval_ms)",
        least=1,
    )
    session_timeout_ms: float = setting(
        45_000, "the group gives up a member it has not heard of for so long; with KIP-848 the broker decides", least=1, most=INT32
    )
    heartbeat_interval_ms: float = setting(
        500,
        "how often a member says that it lives, and learns that others came or went: so long a new member waits for its partitions"
        " (Java's default is 3000); with KIP-848 the broker decides",
        least=1,
    )
    max_poll_interval_ms: float = setting(
        300_000, "a member that asks for nothing for so long leaves the group (KIP-62)", least=1, most=INT32
    )
    partition_assignment_strategy: Sequence[str] = setting(
        ("range", "cooperative-sticky"), "assignors of the classic protocol, the preferred one first"
    )
    stall_warning_ms: float = setting(
        10_000, "a partition that has lag and made no progress for so long is warned about", least=1, java=None
    )
    exclude_internal_topics: bool = setting(True, "whether a subscribed pattern leaves out Kafka's internal topics")
    allow_auto_create_topics: bool = setting(
        False, "whether asking for a topic may create it, where the broker does that (Java's default is True)"
    )
    client_rack: str = setting("", "the rack this consumer is in: it fetches from a replica there if the broker says so (KIP-392)")

    @property
    def offset_reset(self) -> OffsetReset:
        """``auto_offset_reset``, parsed."""
        return parse_reset(self.auto_offset_reset)

    def check(self) -> None:
        parse_reset(self.auto_offset_reset)
        if self.heartbeat_interval_ms >= self.session_timeout_ms:
            raise ConfigurationError(
                f"heartbeat_interval_ms ({self.heartbeat_interval_ms:g}) must be below"
                f" session_timeout_ms ({self.session_timeout_ms:g})"
            )
        for name in ("key_deserializer", "value_deserializer"):
            if inspect.iscoroutinefunction(getattr(self, name)):
                raise ConfigurationError(f"{name} must be a plain function (def), not an async one")
        self._check_group()
        self._check_assignors()

    def _check_group(self) -> None:
        if self.group_id is not None:
            return
        if self.group_instance_id is not None:
            raise ConfigurationError("group_instance_id needs a group_id")
        if self.enable_auto_commit and "enable_auto_commit" in self.explicit:
            raise ConfigurationError("enable_auto_commit=True needs a group_id: without a group there is nothing to commit to")

    def _check_assignors(self) -> None:
        names = self.partition_assignment_strategy
        if not names or not all(isinstance(name, str) and name for name in names):
            raise ConfigurationError(f"partition_assignment_strategy must name at least one assignor, not {names!r}")
        if len(set(names)) < len(names):
            raise ConfigurationError(f"partition_assignment_strategy must name each assignor once, not {names!r}")
        if self.group_remote_assignor is not None and self.group_protocol == "classic":
            raise ConfigurationError(
                "group_remote_assignor needs group_protocol='consumer' (or 'auto'); 'classic' has partition_assignment_strategy"
            )
        if self.group_remote_assignor is not None and self.group_protocol == "auto":
            for name in ("partition_assignment_strategy", "heartbeat_interval_ms", "session_timeout_ms"):
                if name in self.explicit:
                    raise ConfigurationError(
                        f"group_remote_assignor is for the consumer group protocol (KIP-848), {name} for the classic: give one"
                    )
        if self.group_protocol == "consumer":
            for name in ("partition_assignment_strategy", "heartbeat_interval_ms", "session_timeout_ms"):
                if name in self.explicit:
                    instead = "use group_remote_assignor" if name.startswith("partition") else "it is a setting of the broker there"
                    raise ConfigurationError(f"{name} cannot be given with group_protocol='consumer' (KIP-848): {instead}")


@dataclass(frozen=True, kw_only=True)
class ProducerConfig(ClientConfig):
    """Settings of :func:`trikafka.open_producer`."""

    given_to = "open_producer()"

    acks: Literal[0, 1, -1, "all"] = setting("all", "how many replicas must have a record: 0, 1 or 'all' (-1)")
    enable_idempotence: bool = setting(
        True, "no doubles and no reordering by retries; off where acks or retries rule it out, unless it is asked for"
    )
    batch_size: int = setting(16_384, "the size at which a batch is sent without lingering", least=0, most=INT32, unit="bytes")
    linger_ms: float = setting(5, "how long a batch waits for more records", least=0)
    compression_type: Literal["none", "gzip", "snappy", "lz4", "zstd"] | str = setting(
        "none", "how batches are compressed: 'none', 'gzip', 'snappy', 'lz4' or 'zstd'"
    )
    compression_gzip_level: int | None = setting(None, "of 'gzip' (KIP-390); None: 6", least=1, most=9)
    compression_lz4_level: int | None = setting(None, "of 'lz4' (KIP-390); None: 1", least=1, most=17)
    compression_zstd_level: int | None = setting(None, "of 'zstd' (KIP-390); None: 3", least=-131_072, most=22)
    buffer_memory: int = setting(
        33_554_432, "bytes of records that wait or are in flight; send waits above it", least=1, most=2**63 - 1, unit="bytes"
    )
    max_block_ms: float = setting(60_000, "how long a send waits for metadata and room", least=0)
    max_request_size: int = setting(
        1_048_576, "the most bytes of one request, and so of one record", least=1, most=INT32, unit="bytes"
    )
    delivery_timeout_ms: float = setting(
        120_000,
        "from send to the outcome, retries included (KIP-91): at least linger_ms + request_timeout_ms, and raised to that if it is"
        " not given, as in Java's client",
        least=1,
    )
    retries: int | None = setting(None, "how often a batch is sent again before it fails; None: until delivery_timeout_ms", least=0)
    max_in_flight_requests_per_connection: int = setting(
        5, "produce requests to one broker at a time: at most 5 with idempotence, and at most 100 without", least=1
    )
    transactional_id: str | None = setting(
        None,
        "makes this a producer of transactions, and fences any other that has this id: keep it over restarts, and give each"
        " instance of a program its own",
        empty=False,
        most=LONGEST_TEXT,
    )
    transaction_timeout_ms: float = setting(
        60_000,
        "the coordinator aborts a transaction that is open for longer (at most the broker's transaction.max.timeout.ms)",
        least=1,
        most=INT32,
    )
    two_phase_commit: bool = setting(
        False,
        "transactions can be prepared, survive the producer and never time out (KIP-939); needs a transactional_id, and brokers"
        " that allow it",
        java="transaction.two.phase.commit.enable",
    )
    commit_prepared: str | None = setting(
        None,
        "with two_phase_commit: str() of what Transaction.prepare() returned, to be committed while the producer opens; any other"
        " transaction that was prepared with this transactional_id is aborted",
        empty=False,
        java=None,
    )
    partitioner: Literal["default"] | str | Callable[[str, bytes | None, Sequence[int]], int] = setting(  # noqa: RUF009
        "default",
        "'default' (murmur2 of the key, sticky without one), the name of one that a plugin offers, or a function of the topic, the"
        " key and the partitions' numbers that returns one of these",
        java="partitioner.class",
    )
    partitioner_ignore_keys: bool = setting(False, "whether the default partitioner takes no notice of keys (KIP-794)")
    partitioner_adaptive_partitioning_enable: bool = setting(
        True, "whether partitions with a slow broker get fewer of the records without a key (KIP-794)"
    )
    partitioner_availability_timeout_ms: float = setting(
        0, "records without a key go elsewhere when a broker is out of reach for so long; 0: they do not (KIP-794)", least=0
    )
    allow_auto_create_topics: bool = setting(
        False, "whether asking for a topic may create it, where the broker does that (Java's producer always does)"
    )

    @property
    def acks_code(self) -> int:
        """``acks`` as the protocol has it: -1 for all."""
        return -1 if self.acks == "all" else int(self.acks)

    @property
    def prepared(self) -> PreparedTransaction | None:
        """``commit_prepared``, parsed."""
        return None if self.commit_prepared is None else PreparedTransaction.parse(self.commit_prepared)

    def check(self) -> None:
        self._check_transactions()
        self._check_idempotence()
        if self.transactional_id is not None and not self.enable_idempotence:
            raise ConfigurationError("transactional_id needs enable_idempotence=True")
        if inspect.iscoroutinefunction(self.partitioner):
            raise ConfigurationError("partitioner must be a plain function (def), not an async one")
        self._check_delivery_timeout()

    def _check_delivery_timeout(self) -> None:
        """There must be time for one attempt. Who had a longer one before KIP-91 keeps it: the default gives way, as in Java."""
        least = self.linger_ms + self.request_timeout_ms
        if self.delivery_timeout_ms >= least:
            return
        parts = f"linger_ms ({self.linger_ms:g}) + request_timeout_ms ({self.request_timeout_ms:g})"
        if "delivery_timeout_ms" in self.explicit:
            raise ConfigurationError(f"delivery_timeout_ms ({self.delivery_timeout_ms:g}) must be at least {parts} (KIP-91)")
        _log.warning(
            "delivery_timeout_ms is raised from %g to %g, for it must be at least %s", self.delivery_timeout_ms, least, parts
        )
        object.__setattr__(self, "delivery_timeout_ms", least)

    def _check_idempotence(self) -> None:
        """As Java's client: what rules idempotence out turns it off, and is an error where the user has asked for both."""
        ruled_out = None
        if self.acks_code != -1:
            ruled_out = f"needs acks='all', not {self.acks!r}"
        elif self.retries == 0:
            ruled_out = "needs retries, not retries=0"
        if ruled_out and self.enable_idempotence:
            if "enable_idempotence" in self.explicit:
                raise ConfigurationError(f"enable_idempotence=True {ruled_out}")
            if self.transactional_id is not None:
                raise ConfigurationError(f"transactional_id {ruled_out}")
            object.__setattr__(self, "enable_idempotence", False)
        most = 5 if self.enable_idempotence else 100
        if self.max_in_flight_requests_per_connection > most:
            raise ConfigurationError(
                f"max_in_flight_requests_per_connection must be at most {most} with enable_idempotence={self.enable_idempotence},"
                f" not {self.max_in_flight_requests_per_connection}"
            )

    def _check_transactions(self) -> None:
        if self.transactional_id is None and self.transaction_timeout_ms != 60_000:
            raise ConfigurationError("transaction_timeout_ms needs a transactional_id")
        if self.two_phase_commit and self.transactional_id is None:
            raise ConfigurationError("two_phase_commit=True needs a transactional_id")
        if self.two_phase_commit and "transaction_timeout_ms" in self.explicit:
            raise ConfigurationError("transaction_timeout_ms has no meaning with two_phase_commit=True: nothing times out")
        if self.commit_prepared is not None and not self.two_phase_commit:
            raise ConfigurationError("commit_prepared needs two_phase_commit=True")
        try:
            _ = self.prepared
        except ValueError as error:
            raise ConfigurationError(f"commit_prepared: {error}") from error


def _whose(name: str, client: type[ClientConfig]) -> str:
    """What is said of a setting that other clients have; empty if none has it."""
    others = [cls.given_to for cls in (AdminConfig, ConsumerConfig, ProducerConfig) if name in settings_of(cls)]
    if not others:
        return ""
    advice = f" (of a file that several clients share: from_properties(file, {client.__name__}))"
    return f"it is one of {' and '.join(others)}{advice}"
