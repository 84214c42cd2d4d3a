"""The settings of the clients; each name, default, limit and meaning is declared here once.

Names are those of kafka-python and aiokafka. Defaults are those of Kafka's Java client 4, or the
description gives the reason. A settings object is frozen. ``build`` checks everything before any
I/O, and its error for a wrong name suggests the nearest right one.

After a change run ``make docs``. That generates the typed keywords of ``open_*`` (``typed.py``) and
``docs/settings.md``.
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
from ..types import Deserializer, PreparedTransaction
from .budget import MemoryBudget
from .property_names import rule_of
from .resets import OffsetReset, parse_reset
from .secrets import holds_secret, secret
from .security import SecurityConfig
from .setting import INT32, LONGEST_TEXT, setting, settings_of, unknown
from .text import plain_text
from .whole import whole

_log = logging.getLogger("trikafka.config")


@dataclass(frozen=True, kw_only=True)
class ClientConfig(SecurityConfig):
    """Settings of every client.

    Times end in ``_ms`` and are milliseconds. Sizes are bytes.
    """

    #: The settings that :meth:`build` received (``None`` counts as not given). A default may be
    #: adjusted where an explicit value may not. This is not a setting and therefore no field:
    #: ``build`` writes it into the instance.
    explicit: ClassVar[frozenset[str]] = frozenset()
    #: The function that takes these settings, for errors.
    given_to: ClassVar[str] = "a client"
    #: What to set instead of settings of other clients, in the cluster.
    set_elsewhere: ClassVar[Mapping[str, str]] = {}

    bootstrap_servers: str | Sequence[str] = setting(
        "",
        "some brokers, for the first contact: 'host:port,host:port', or a sequence of these",
    )
    bootstrap_resolve_timeout_ms: float = setting(
        0,
        "how long an opening client retries while no bootstrap name resolves; 0: no retry "
        "(KIP-909)",
        least=0,
    )
    client_id: str = setting(
        "trikafka", "the client's name in the brokers' logs and quotas", most=LONGEST_TEXT
    )
    request_timeout_ms: float = setting(
        30_000, "the longest wait for the response to one request", least=1, most=INT32
    )
    default_api_timeout_ms: float = setting(
        60_000, "the limit of a call without timeout=, over all attempts", least=0
    )
    close_timeout_ms: float = setting(
        30_000,
        "the limit of closing: the last commit, leaving the group, flush, sockets",
        least=0,
        java=None,
    )
    retry_backoff_ms: float = setting(
        100, "the wait before the second attempt; it doubles with each attempt", least=0
    )
    retry_backoff_max_ms: float = setting(1_000, "the longest wait between two attempts", least=0)
    reconnect_backoff_ms: float = setting(
        50,
        "the wait before a new connection, at least 10 ms; it doubles with each failure",
        least=0,
    )
    reconnect_backoff_max_ms: float = setting(
        1_000, "the longest wait before a new connection", least=0
    )
    socket_connection_setup_timeout_ms: float = setting(
        10_000,
        "the limit of connecting and negotiating; it doubles with each timeout (KIP-601)",
        least=1,
    )
    socket_connection_setup_timeout_max_ms: float = setting(
        30_000, "the longest limit of connecting and negotiating", least=1
    )
    connections_max_idle_ms: float = setting(
        540_000, "an idle connection is closed after this time", least=1
    )
    metadata_max_age_ms: float = setting(300_000, "metadata older than this is refreshed", least=1)
    metadata_recovery_strategy: Literal["rebootstrap", "none"] = setting(
        "rebootstrap",
        "when no known broker can be reached: 'rebootstrap' uses the bootstrap addresses "
        "again, 'none' keeps trying the known brokers (KIP-899)",
    )
    metadata_recovery_rebootstrap_trigger_ms: float = setting(
        300_000,
        "'rebootstrap' replaces all connections after this time without a response (KIP-1102)",
        least=0,
    )
    metadata_cluster_check_enable: bool = setting(
        True,
        "with 'rebootstrap', a connection names the broker and cluster that it expects; any "
        "other refuses it (KIP-1242, Kafka 4.4)",
    )
    receive_message_max_bytes: int = setting(
        100_000_000,
        "the largest response; a longer one is treated as damaged",
        least=1000,
        most=INT32,
        java=None,
    )
    enable_metrics_push: bool = setting(
        True,
        "push metrics to brokers whose operator subscribed to them (KIP-714); False for an "
        "admin client",
    )
    plugins: Sequence[object] = setting(
        (), "plugin objects, in addition to those found by entry point", java=None
    )
    dial: Callable[[str, int], Awaitable[trio.abc.Stream]] | None = setting(  # noqa: RUF009
        None,
        "an async function that opens a byte stream to (host, port), for proxies and tests; "
        "None: TCP",
        java=None,
    )

    @classmethod
    def build(
        cls, settings: Mapping[str, Any], given_to: str | None = None, beside: Sequence[str] = ()
    ) -> Self:
        """Check ``settings`` and return them as a frozen object.

        Args:
            settings: The settings by name.
            given_to: The function that the user called, if another than the one that opens this
                client.
            beside: Further keywords of that function, for suggestions.

        Raises:
            ConfigurationError: A name, type or value is wrong.
        """
        known = settings_of(cls)  # type: ignore[arg-type]  # mypy doubts that a class is hashable
        if strange := [name for name in settings if name not in known]:
            error = unknown(
                strange, (*known, *beside), given_to or cls.given_to, lambda name: _hint(name, cls)
            )
            if any("." in name for name in strange):
                raise ConfigurationError(f"{error} (trikafka.from_properties() takes such names)")
            raise error
        config = cls(**cls.hidden(settings))
        for name, one in known.items():
            one.check(getattr(config, name))
        if holds_secret(config.bootstrap_servers):  # not shown: the value may hold a password
            raise ConfigurationError(
                "bootstrap_servers: an address must not contain '@'; give user and password by "
                "sasl_plain_username and sasl_plain_password"
            )
        object.__setattr__(
            config,
            "explicit",
            frozenset(name for name, value in settings.items() if value is not None),
        )
        config.check_security(config.explicit)
        config.check()
        return config

    @classmethod
    def hidden(cls, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return a copy of ``settings`` with secret values hidden, also those of unknown names."""
        known = settings_of(cls)  # type: ignore[arg-type]  # as above
        return {
            name: secret(value)
            if name not in known or known[name].secret or holds_secret(value)
            else whole(plain_text(value))
            for name, value in settings.items()
        }

    @classmethod
    def take(cls, settings: Mapping[str, Any]) -> Self:
        """Build the settings as :meth:`build` does, and empty ``settings``.

        A caller keeps its keywords for as long as the client is open, and a traceback would show
        the secrets in them.
        """
        try:
            return cls.build(settings)
        finally:
            if isinstance(settings, dict):
                settings.clear()

    def check(self) -> None:
        """Check the settings against each other.

        Raises:
            ConfigurationError: Two settings contradict each other.
        """

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
        """The number of retries of an API call.

        Infinite, except for an admin client with the setting ``retries``.
        """
        return math.inf


@dataclass(frozen=True, kw_only=True)
class AdminConfig(ClientConfig):
    """Settings of :func:`trikafka.open_admin`."""

    given_to = "open_admin()"

    bootstrap_controllers: str | Sequence[str] = setting(
        "",
        "some KRaft controllers, instead of bootstrap_servers: all calls then go to "
        "controllers (KIP-919, Kafka 3.7)",
    )
    retries: int | None = setting(
        None,
        "the retries of a call before it fails with its last error; None: until the limit of "
        "the call",
        least=0,
    )
    enable_metrics_push: bool = setting(
        False,
        "push metrics to brokers whose operator subscribed to them (KIP-714)",
    )

    def check(self) -> None:
        super().check()
        if self.bootstrap_controllers and self.bootstrap_servers:
            raise ConfigurationError(
                "give bootstrap_servers or bootstrap_controllers, not both: a client asks either "
                "brokers or controllers"
            )

    @property
    def asks_controllers(self) -> bool:
        return bool(self.bootstrap_controllers)

    @property
    def call_retries(self) -> float:
        return math.inf if self.retries is None else self.retries


@dataclass(frozen=True, kw_only=True)
class ConsumerConfig(ClientConfig):
    """Settings of :func:`trikafka.open_consumer`."""

    given_to = "open_consumer()"

    group_id: str | None = setting(
        None, "the consumer group; None: no group and no commits", empty=False, most=LONGEST_TEXT
    )
    group_instance_id: str | None = setting(
        None,
        "a stable name that makes this a static member (KIP-345)",
        empty=False,
        most=LONGEST_TEXT,
    )
    group_protocol: Literal["auto", "classic", "consumer"] = setting(
        "auto",
        "'consumer': the broker assigns the partitions (KIP-848). 'classic': the members do "
        "(Java's default). 'auto': 'consumer' where the broker has it; but 'classic' if "
        "session_timeout_ms, heartbeat_interval_ms or partition_assignment_strategy is given",
    )
    group_remote_assignor: str | None = setting(
        None,
        "the broker's assignor with KIP-848; None: the broker chooses",
        empty=False,
    )
    group_membership_operation: Literal["default", "leave_group", "remain_in_group"] = setting(
        "default",
        "what closing does with the membership (KIP-1092); by default a dynamic member leaves "
        "and a static one stays",
        java=None,
    )
    auto_offset_reset: Literal["earliest", "latest", "none"] | str = setting(
        "latest",
        "the start without a committed offset: 'earliest', 'latest', 'none' (an error), or a "
        "time ago, 'by_duration:PT1H' (KIP-1106)",
    )
    enable_auto_commit: bool = setting(
        True, "commit processed records in the background and on leaving; needs group_id"
    )
    enable_auto_offset_store: bool = setting(
        True,
        "the next receive marks delivered records as processed; False: only mark_processed() "
        "does (librdkafka's enable.auto.offset.store)",
        java=None,
    )
    auto_commit_interval_ms: float = setting(5_000, "the interval of auto commits", least=1)
    isolation_level: Literal["read_uncommitted", "read_committed"] = setting(
        "read_uncommitted", "'read_committed' leaves out records of open and aborted transactions"
    )
    key_deserializer: Callable[[bytes], Any] | Deserializer[Any] | None = setting(  # noqa: RUF009
        None,
        "a function of the key's bytes, plain or async, or a Deserializer; None: bytes",
    )
    value_deserializer: Callable[[bytes], Any] | Deserializer[Any] | None = setting(  # noqa: RUF009
        None,
        "a function of the value's bytes, plain or async, or a Deserializer; None: bytes",
    )
    check_crcs: bool = setting(True, "check the checksum of every record batch")
    fetch_min_bytes: int = setting(1, "the bytes that a fetch waits for", least=0, most=INT32)
    fetch_max_bytes: int = setting(
        52_428_800, "the most bytes that one fetch requests", least=1, most=INT32
    )
    fetch_max_wait_ms: float = setting(
        500, "the longest time that a fetch waits for fetch_min_bytes", least=0, most=INT32
    )
    max_partition_fetch_bytes: int = setting(
        1_048_576, "the most bytes that one fetch requests of one partition", least=1, most=INT32
    )
    fetch_buffer_bytes: int = setting(
        67_108_864,
        "the most bytes in fetches, buffers and the last delivery; fetches wait above this "
        "(KIP-81)",
        least=1,
        java=None,
    )
    memory_budget: MemoryBudget | None = setting(  # noqa: RUF009
        None,
        "a budget that consumers share; each gets an equal part, and at most fetch_buffer_bytes",
        java=None,
    )
    max_poll_records: int | None = setting(
        None,
        "the most records of a batch; None: as many as were fetched (Java: 500)",
        least=1,
    )
    session_timeout_ms: float = setting(
        45_000,
        "the group removes a member after this time without a heartbeat; with "
        "group_protocol='consumer' the broker decides, but a shorter value stops the member "
        "earlier",
        least=1,
        most=INT32,
    )
    # With the classic protocol a member learns from a heartbeat's response that the group
    # rebalances. The rebalance completes when the last member has joined again, so a new member
    # waits for up to one heartbeat interval of the others. Java's default of three seconds is three
    # seconds without records after each start; half a second costs two small requests per second
    # and member. With the consumer protocol (KIP-848) the broker dictates the interval.
    heartbeat_interval_ms: float = setting(
        500,
        "the interval of heartbeats, by which members notice a rebalance (Java: 3000); with "
        "group_protocol='consumer' the broker decides, and this setting is an error",
        least=1,
    )
    max_poll_interval_ms: float = setting(
        300_000,
        "a member leaves the group after this time without a receive (KIP-62)",
        least=1,
        most=INT32,
    )
    leave_when_stuck: bool = setting(
        True,
        "leave the group when the handlers of all streams hold a record for longer than "
        "max_poll_interval_ms (KIP-62)",
        java=None,
    )
    partition_assignment_strategy: Sequence[str] = setting(
        ("range", "cooperative-sticky"),
        "the assignors of the classic protocol, the preferred one first; an error with "
        "group_protocol='consumer'",
    )
    stall_warning_ms: float = setting(
        10_000,
        "log a warning after this time without progress of a partition, the group, a commit "
        "or a call",
        least=1,
        java=None,
    )
    exclude_internal_topics: bool = setting(
        True, "a subscribed pattern excludes Kafka's internal topics"
    )
    allow_auto_create_topics: bool = setting(
        False,
        "let the broker create a topic that does not exist (True in Java)",
    )
    client_rack: str = setting(
        "",
        "this consumer's rack; it fetches from a replica there if the broker says so (KIP-392)",
    )

    @property
    def offset_reset(self) -> OffsetReset:
        """The parsed ``auto_offset_reset``."""
        return parse_reset(self.auto_offset_reset)

    def check(self) -> None:
        parse_reset(self.auto_offset_reset)
        if self.heartbeat_interval_ms >= self.session_timeout_ms:
            raise ConfigurationError(
                f"heartbeat_interval_ms ({self.heartbeat_interval_ms:g}) must be below"
                f" session_timeout_ms ({self.session_timeout_ms:g})"
            )
        self._check_group()
        self._check_assignors()

    def _check_group(self) -> None:
        if self.group_id is not None:
            return
        if self.group_instance_id is not None:
            raise ConfigurationError("group_instance_id needs a group_id")
        if self.enable_auto_commit and "enable_auto_commit" in self.explicit:
            raise ConfigurationError(
                "enable_auto_commit=True needs a group_id: without a group there is nothing to "
                "commit to"
            )

    def _check_assignors(self) -> None:
        names = self.partition_assignment_strategy
        if not names or not all(isinstance(name, str) and name for name in names):
            wanted = "be names of assignors" if any(names) else "name at least one assignor"
            raise ConfigurationError(
                f"partition_assignment_strategy must {wanted}, such as ('range', "
                f"'cooperative-sticky'), not {names!r}"
            )
        if len(set(names)) < len(names):
            raise ConfigurationError(
                f"partition_assignment_strategy must name each assignor once, not {names!r}"
            )
        if self.group_remote_assignor is not None and self.group_protocol == "classic":
            raise ConfigurationError(
                "group_remote_assignor needs group_protocol='consumer' (or 'auto'); 'classic' has "
                "partition_assignment_strategy"
            )
        if self.group_remote_assignor is not None and self.group_protocol == "auto":
            for name in (
                "partition_assignment_strategy",
                "heartbeat_interval_ms",
                "session_timeout_ms",
            ):
                if name in self.explicit:
                    raise ConfigurationError(
                        "group_remote_assignor is for the consumer group protocol (KIP-848), "
                        f"{name} for the classic: give one"
                    )
        if self.group_protocol == "consumer":
            for name in ("partition_assignment_strategy", "heartbeat_interval_ms"):
                if name in self.explicit:
                    instead = (
                        "use group_remote_assignor"
                        if name.startswith("partition")
                        else "the broker has this setting"
                    )
                    raise ConfigurationError(
                        f"{name} cannot be given with group_protocol='consumer' (KIP-848): "
                        f"{instead}"
                    )


@dataclass(frozen=True, kw_only=True)
class ProducerConfig(ClientConfig):
    """Settings of :func:`trikafka.open_producer`."""

    given_to = "open_producer()"

    acks: Literal[0, 1, -1, "all"] = setting(
        "all", "the replicas that must have a record: 0, 1 or 'all' (-1)"
    )
    enable_idempotence: bool = setting(
        True,
        "no duplicates and no reordering by retries; by default off where acks or retries "
        "exclude it",
    )
    batch_size: int = setting(
        16_384,
        "the size at which a batch is sent without lingering",
        least=0,
        most=INT32,
        unit="bytes",
    )
    linger_ms: float = setting(5, "the time that a batch waits for more records", least=0)
    compression_type: Literal["none", "gzip", "snappy", "lz4", "zstd"] | str = setting(
        "none", "the compression of batches"
    )
    compression_gzip_level: int | None = setting(
        None, "the level of 'gzip' (KIP-390); None: 6", least=1, most=9
    )
    compression_lz4_level: int | None = setting(
        None, "the level of 'lz4' (KIP-390); None: 1", least=1, most=17
    )
    compression_zstd_level: int | None = setting(
        None, "the level of 'zstd' (KIP-390); None: 3", least=-131_072, most=22
    )
    buffer_memory: int = setting(
        33_554_432,
        "the most bytes of records that wait or are in flight; send waits above this",
        least=1,
        most=2**63 - 1,
        unit="bytes",
    )
    max_block_ms: float = setting(
        60_000, "the longest time that a send waits for metadata and room", least=0
    )
    max_request_size: int = setting(
        1_048_576,
        "the most bytes of one request, and therefore of one record",
        least=1,
        most=INT32,
        unit="bytes",
    )
    delivery_timeout_ms: float = setting(
        120_000,
        "the time from send to the outcome, with retries (KIP-91); at least linger_ms + "
        "request_timeout_ms, to which the default rises",
        least=1,
    )
    retries: int | None = setting(
        None,
        "the number of retries of a batch before it fails; None: only delivery_timeout_ms counts",
        least=0,
    )
    max_in_flight_requests_per_connection: int = setting(
        5,
        "the most produce requests in flight to one broker: up to 5 with idempotence, 100 without",
        least=1,
    )
    transactional_id: str | None = setting(
        None,
        "makes the producer transactional, and fences any other with this id; each instance "
        "of a program has its own",
        empty=False,
        most=LONGEST_TEXT,
    )
    transaction_timeout_ms: float = setting(
        60_000,
        "the coordinator aborts a transaction that is open for longer; at most the broker's "
        "transaction.max.timeout.ms",
        least=1,
        most=INT32,
    )
    two_phase_commit: bool = setting(
        False,
        "transactions can be prepared, outlive the producer and never time out (KIP-939); "
        "needs a transactional_id and brokers that allow it",
        java="transaction.two.phase.commit.enable",
    )
    commit_prepared: str | None = setting(
        None,
        "the prepared transaction (its text) that the opening producer commits; it aborts any "
        "other of this transactional_id",
        empty=False,
        java=None,
    )
    stall_warning_ms: float = setting(
        10_000,
        "log a warning after this time without progress of a partition's records or a "
        "transaction's end",
        least=1,
        java=None,
    )
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
    ) = setting(  # noqa: RUF009
        "default",
        "'default' (murmur2 of the key as in Java, sticky without one), one of librdkafka's "
        "(whose default is 'consistent_random'), a plugin's, or a function of topic, key and "
        "partition numbers",
        java="partitioner.class",
    )
    partitioner_ignore_keys: bool = setting(False, "built-in partitioners ignore keys (KIP-794)")
    partitioner_adaptive_partitioning_enable: bool = setting(
        True,
        "partitions of a slow broker get fewer records without a key (KIP-794)",
    )
    partitioner_rack_aware: bool = setting(
        False,
        "records without a key go to partitions whose leader is in client_rack, if there are "
        "any (KIP-1123)",
    )
    client_rack: str = setting("", "this producer's rack, for partitioner_rack_aware")
    partitioner_availability_timeout_ms: float = setting(
        0,
        "records without a key avoid a broker that has been unreachable for this time; 0: "
        "never (KIP-794)",
        least=0,
    )
    allow_auto_create_topics: bool = setting(
        False,
        "let the broker create a topic that does not exist (always so in Java)",
    )

    @property
    def acks_code(self) -> int:
        """``acks`` as a number of the protocol: -1 for all."""
        return -1 if self.acks == "all" else int(self.acks)

    @property
    def prepared(self) -> PreparedTransaction | None:
        """The parsed ``commit_prepared``."""
        return (
            None
            if self.commit_prepared is None
            else PreparedTransaction.parse(self.commit_prepared)
        )

    def check(self) -> None:
        self._check_transactions()
        self._check_idempotence()
        if self.transactional_id is not None and not self.enable_idempotence:
            raise ConfigurationError("transactional_id needs enable_idempotence=True")
        if inspect.iscoroutinefunction(self.partitioner):
            raise ConfigurationError("partitioner must be a plain function (def), not an async one")
        self._check_delivery_timeout()

    def _check_delivery_timeout(self) -> None:
        """Ensure that ``delivery_timeout_ms`` leaves time for one attempt.

        The default is raised if necessary, as in Java: programs that set a longer request timeout
        before KIP-91 continue to work. An explicit value that is too short is an error.
        """
        least = self.linger_ms + self.request_timeout_ms
        if self.delivery_timeout_ms >= least:
            return
        parts = f"linger_ms ({self.linger_ms:g}) + request_timeout_ms ({self.request_timeout_ms:g})"
        if "delivery_timeout_ms" in self.explicit:
            raise ConfigurationError(
                f"delivery_timeout_ms ({self.delivery_timeout_ms:g}) must be at least {parts} "
                "(KIP-91)"
            )
        _log.warning(
            "delivery_timeout_ms is raised from %g to %g: the least is %s",
            self.delivery_timeout_ms,
            least,
            parts,
        )
        object.__setattr__(self, "delivery_timeout_ms", least)

    # Idempotence is on by default, since Kafka 3 in Java's client as well. Programs written before
    # may set acks=1 or retries=0, which exclude it. Such a setting turns idempotence off silently
    # unless the program also asks for it: then the two contradict each other, and one of them would
    # be ignored. `explicit` holds the difference between a default and a value that happens to
    # equal it.
    #
    # More than five requests in flight are refused with idempotence: a broker remembers the last
    # five batches of a producer per partition, and could not recognize a duplicate of an older one.
    def _check_idempotence(self) -> None:
        """Turn idempotence off where other settings exclude it, as Java's client does.

        It is an error if the user asked for idempotence explicitly.
        """
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
                f"max_in_flight_requests_per_connection must be at most {most} with "
                f"enable_idempotence={self.enable_idempotence},"
                f" not {self.max_in_flight_requests_per_connection}"
            )

    def _check_transactions(self) -> None:
        if self.transactional_id is None and self.transaction_timeout_ms != 60_000:
            # As in Java, where a file that several producers share may have it.
            _log.warning("transaction_timeout_ms has no effect without a transactional_id")
        if self.two_phase_commit and self.transactional_id is None:
            raise ConfigurationError("two_phase_commit=True needs a transactional_id")
        if self.two_phase_commit and "transaction_timeout_ms" in self.explicit:
            raise ConfigurationError(
                "transaction_timeout_ms has no meaning with two_phase_commit=True: nothing times "
                "out"
            )
        if self.commit_prepared is not None and not self.two_phase_commit:
            raise ConfigurationError("commit_prepared needs two_phase_commit=True")
        try:
            _ = self.prepared
        except ValueError as error:
            raise ConfigurationError(f"commit_prepared: {error}") from error


#: The settings of a consumer that the group has instead of a share consumer, and the group's name
#: for each (``""``: there is none).
_SET_BY_THE_GROUP = {
    "auto_offset_reset": "share.auto.offset.reset",
    "isolation_level": "share.isolation.level",
    "session_timeout_ms": "share.session.timeout.ms",
    "heartbeat_interval_ms": "share.heartbeat.interval.ms",
    "enable_auto_commit": "",
    "enable_auto_offset_store": "",
    "auto_commit_interval_ms": "",
    "group_instance_id": "",
    "group_protocol": "",
    "group_remote_assignor": "",
    "group_membership_operation": "",
    "partition_assignment_strategy": "",
}


@dataclass(frozen=True, kw_only=True)
class ShareConsumerConfig(ClientConfig):
    """Settings of :func:`trikafka.open_share_consumer`."""

    given_to = "open_share_consumer()"
    set_elsewhere: ClassVar[Mapping[str, str]] = {
        name: instead for name, instead in _SET_BY_THE_GROUP.items() if instead
    }

    group_id: str = setting("", "the share group", most=LONGEST_TEXT)
    acquire: Literal["batches", "records"] = setting(
        "batches",
        "what a fetch acquires: 'batches' (whole ones of the log, perhaps more than "
        "max_in_flight) or 'records' (not more, from one broker at a time, unless one responds "
        "over a second late; KIP-1206)",
        java=None,
    )
    max_in_flight: int = setting(
        20_000,
        "the most records that this member holds, delivered or waiting; it begins with 500 "
        "and holds more only while it needs under 200 ms for them",
        least=1,
        most=INT32,
        java=None,
    )
    max_processing_ms: float = setting(
        300_000,
        "how long a delivered record's lock is renewed; then its block is cancelled and the "
        "record released",
        least=1,
        java=None,
    )
    ack_linger_ms: float = setting(
        5,
        "how long an acknowledgement waits for the next fetch before it is sent alone; ten times "
        "as long (at most 50 ms) if the rest of its batch is about to be decided by then",
        least=0,
        java=None,
    )
    max_poll_interval_ms: float = setting(
        300_000,
        "a member leaves the group after this time without a receive or an open block",
        least=1,
        most=INT32,
    )
    fetch_min_bytes: int = setting(1, "the bytes that a fetch waits for", least=0, most=INT32)
    fetch_max_bytes: int = setting(
        52_428_800, "the most bytes that one fetch requests", least=1, most=INT32
    )
    fetch_buffer_bytes: int = setting(
        67_108_864,
        "the most bytes of records that wait to be delivered; no fetch begins above half of it, "
        "and one brings at most half of what is left",
        least=1,
        java=None,
    )
    fetch_max_wait_ms: float = setting(
        500,
        "the longest time that a fetch waits for fetch_min_bytes; while records are held, at most "
        "60 ms",
        least=0,
        most=INT32,
    )
    key_deserializer: Callable[[bytes], Any] | Deserializer[Any] | None = setting(  # noqa: RUF009
        None,
        "a function of the key's bytes, plain or async, or a Deserializer; None: bytes",
    )
    value_deserializer: Callable[[bytes], Any] | Deserializer[Any] | None = setting(  # noqa: RUF009
        None,
        "a function of the value's bytes, plain or async, or a Deserializer; None: bytes",
    )
    check_crcs: bool = setting(True, "check the checksum of every record batch")
    allow_auto_create_topics: bool = setting(
        False,
        "let the broker create a topic that does not exist",
    )
    client_rack: str = setting("", "this consumer's rack, for the group's assignor")
    stall_warning_ms: float = setting(
        10_000,
        "log a warning after this time without progress of a partition, the group or an "
        "acknowledgement",
        least=1,
        java=None,
    )

    @classmethod
    def build(
        cls, settings: Mapping[str, Any], given_to: str | None = None, beside: Sequence[str] = ()
    ) -> Self:
        for name in settings:
            if name not in _SET_BY_THE_GROUP:
                continue
            instead = _SET_BY_THE_GROUP[name]
            what = (
                f"the group has this setting: set {instead} by trikafka configs set group, or by "
                "admin.alter_configs on the resource type GROUP"
                if instead
                else "share groups have nothing like it"
            )
            raise ConfigurationError(f"{name} cannot be given to a share consumer: {what}")
        return super().build(settings, given_to, beside)

    def check(self) -> None:
        if not self.group_id:
            raise ConfigurationError("group_id: a share consumer is a member of a group; name one")


def _hint(name: str, client: type[ClientConfig]) -> str:
    """Return a hint about a setting of another client of trikafka, or of another library."""
    whose = _whose(name, client)
    rule = rule_of(name)
    if whose or rule is None:
        return whose
    if rule.setting in settings_of(client):  # type: ignore[arg-type]  # as above
        return f"did you mean {rule.setting!r}?"
    return f"leave it out: {rule.why}" if rule.ignored else rule.why


def _whose(name: str, client: type[ClientConfig]) -> str:
    """Return a hint about a setting of other clients; empty if no client has it."""
    others = [
        cls.given_to
        for cls in (AdminConfig, ConsumerConfig, ProducerConfig, ShareConsumerConfig)
        if name in settings_of(cls)
    ]
    if not others:
        return ""
    advice = f" (of a file that several clients share: from_properties(file, {client.__name__}))"
    return f"it is one of {' and '.join(others)}{advice}"
