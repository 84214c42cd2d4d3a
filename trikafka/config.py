"""The settings of a client: each name, default, limit and meaning stands here once.

Names are those that users of kafka-python and aiokafka know; defaults are those of Kafka's Java client 4. A settings object
is frozen. ``build`` checks everything before any I/O and answers a wrong name with the nearest right one.
"""

from __future__ import annotations

import difflib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Self, TypeVar

import trio.abc

from .errors import ConfigurationError

Value = TypeVar("Value")
#: The most that the protocol can carry of a size or a time.
_INT32 = 2**31 - 1


def _setting(
    default: Value, doc: str, *, least: float | None = None, most: float | None = None, choices: Sequence[object] | None = None
) -> Value:
    value: Value = field(default=default, metadata={"doc": doc, "least": least, "most": most, "choices": choices})
    return value


@dataclass(frozen=True, kw_only=True)
class ClientConfig:
    """Settings that every client has. Times end in ``_ms`` and are milliseconds; sizes are bytes."""

    bootstrap_servers: str | Sequence[str] = _setting(
        "", "addresses to begin with: 'host:port,host:port' or a sequence of these"
    )
    client_id: str = _setting("trikafka", "the name that brokers log and count quotas by")
    request_timeout_ms: float = _setting(30_000, "how long one request may wait for its answer", least=1, most=_INT32)
    default_api_timeout_ms: float = _setting(60_000, "the limit of a call that is given no timeout=", least=0)
    close_timeout_ms: float = _setting(
        30_000, "the limit for leaving: last commit, leave the group, flush, close sockets", least=0
    )
    retry_backoff_ms: float = _setting(100, "the wait before the second attempt; doubles with each further one", least=0)
    retry_backoff_max_ms: float = _setting(1_000, "the longest wait between two attempts", least=0)
    reconnect_backoff_ms: float = _setting(50, "the wait before a broker is dialled again; doubles with each failure", least=0)
    reconnect_backoff_max_ms: float = _setting(1_000, "the longest wait before a broker is dialled again", least=0)
    socket_connection_setup_timeout_ms: float = _setting(10_000, "how long dialling and negotiating may take", least=1)
    connections_max_idle_ms: float = _setting(540_000, "a connection that carried nothing for so long is closed", least=1)
    metadata_max_age_ms: float = _setting(300_000, "metadata older than this is refreshed", least=1)
    receive_message_max_bytes: int = _setting(
        100_000_000, "a longer answer is taken for bytes that are not Kafka's", least=1024, most=_INT32
    )
    plugins: Sequence[object] = _setting((), "plugin objects to use beside those found by entry point")
    dial: Callable[[str, int], Awaitable[trio.abc.Stream]] | None = _setting(  # noqa: RUF009
        None, "how to open a byte stream to (host, port); None: TCP. For proxies and tests"
    )

    @classmethod
    def build(cls, settings: Mapping[str, Any]) -> Self:
        """Check ``settings`` and return them frozen. Raises :exc:`ConfigurationError` for a wrong name, type or value."""
        known = {f.name for f in fields(cls)}
        for name in settings:
            if name not in known:
                raise ConfigurationError(_unknown(name, known, cls.__name__))
        config = cls(**settings)
        for f in fields(cls):
            _check(f.name, getattr(config, f.name), f.default, f.metadata)
        config.check()
        return config

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


@dataclass(frozen=True, kw_only=True)
class AdminConfig(ClientConfig):
    """Settings of :func:`trikafka.open_admin`."""


@dataclass(frozen=True, kw_only=True)
class ConsumerConfig(ClientConfig):
    """Settings of :func:`trikafka.open_consumer`."""

    group_id: str | None = _setting(None, "the consumer group; None: no group, no commits")
    group_instance_id: str | None = _setting(None, "a stable name makes this a static member (KIP-345)")
    auto_offset_reset: str = _setting(
        "latest", "where to begin without a committed offset", choices=("earliest", "latest", "none")
    )
    enable_auto_commit: bool = _setting(True, "commit what was processed, in the background and on leaving (needs group_id)")
    auto_commit_interval_ms: float = _setting(5_000, "how often", least=1)
    isolation_level: str = _setting(
        "read_uncommitted",
        "whether records of open and aborted transactions are seen",
        choices=("read_uncommitted", "read_committed"),
    )
    check_crcs: bool = _setting(True, "check the checksum of every record batch")
    fetch_min_bytes: int = _setting(1, "a fetch waits for so many bytes", least=0, most=_INT32)
    fetch_max_bytes: int = _setting(52_428_800, "the most bytes one fetch asks for", least=1, most=_INT32)
    fetch_max_wait_ms: float = _setting(500, "how long a fetch waits for fetch_min_bytes", least=0, most=_INT32)
    max_partition_fetch_bytes: int = _setting(1_048_576, "the most bytes one fetch asks of one partition", least=1, most=_INT32)
    fetch_buffer_bytes: int = _setting(67_108_864, "bytes being fetched, buffered and just handed out: fetches wait above", least=1)
    max_poll_records: int | None = _setting(
        None, "the most records that receive_batch returns; None: as they were fetched", least=1
    )
    session_timeout_ms: float = _setting(
        45_000, "the group gives up a member it has not heard of for so long", least=1, most=_INT32
    )
    heartbeat_interval_ms: float = _setting(3_000, "how often a member says that it lives", least=1)
    max_poll_interval_ms: float = _setting(
        300_000, "a member that asks for nothing for so long leaves the group (KIP-62)", least=1, most=_INT32
    )
    partition_assignment_strategy: Sequence[str] = _setting(
        ("range", "cooperative-sticky"), "assignors, the preferred one first"
    )
    allow_auto_create_topics: bool = _setting(False, "whether asking for a topic may create it")
    client_rack: str = _setting("", "the rack this consumer is in")

    def check(self) -> None:
        if self.heartbeat_interval_ms >= self.session_timeout_ms:
            raise ConfigurationError(
                f"heartbeat_interval_ms ({self.heartbeat_interval_ms:g}) must be below"
                f" session_timeout_ms ({self.session_timeout_ms:g})"
            )
        if self.group_instance_id is not None and self.group_id is None:
            raise ConfigurationError("group_instance_id needs a group_id")
        if not self.partition_assignment_strategy:
            raise ConfigurationError("partition_assignment_strategy must name at least one assignor")


@dataclass(frozen=True, kw_only=True)
class ProducerConfig(ClientConfig):
    """Settings of :func:`trikafka.open_producer`."""

    acks: int | str = _setting("all", "how many replicas must have a record: 0, 1 or 'all'", choices=(0, 1, -1, "all"))
    enable_idempotence: bool = _setting(True, "no doubles and no reordering by retries")
    batch_size: int = _setting(16_384, "the size at which a batch is sent without lingering", least=0, most=_INT32)
    linger_ms: float = _setting(5, "how long a batch waits for more records", least=0)
    compression_type: str = _setting("none", "none, gzip, snappy, lz4 or zstd")
    buffer_memory: int = _setting(33_554_432, "bytes of records that wait or are in flight; send waits above it", least=1)
    max_block_ms: float = _setting(60_000, "how long a send waits for metadata and room", least=0)
    max_request_size: int = _setting(1_048_576, "the most bytes of one request, and so of one record", least=1, most=_INT32)
    delivery_timeout_ms: float = _setting(120_000, "from send to the verdict, retries included (KIP-91)", least=1)
    max_in_flight_requests_per_connection: int = _setting(5, "produce requests to one broker at a time", least=1, most=100)
    transactional_id: str | None = _setting(None, "names this producer across restarts; makes transactions possible")
    partitioner: str = _setting("default", "'default' (murmur2 of the key, sticky without one), or one that a plugin offers")

    @property
    def acks_code(self) -> int:
        """``acks`` as the protocol has it: -1 for all."""
        return -1 if self.acks == "all" else int(self.acks)

    def check(self) -> None:
        if self.enable_idempotence and self.acks_code != -1:
            raise ConfigurationError(f"enable_idempotence=True needs acks='all', not {self.acks!r}")
        if self.enable_idempotence and self.max_in_flight_requests_per_connection > 5:
            raise ConfigurationError("enable_idempotence=True needs max_in_flight_requests_per_connection of at most 5")
        if self.transactional_id is not None and not self.enable_idempotence:
            raise ConfigurationError("transactional_id needs enable_idempotence=True")
        if self.delivery_timeout_ms < self.linger_ms + self.request_timeout_ms:
            raise ConfigurationError(
                f"delivery_timeout_ms ({self.delivery_timeout_ms:g}) must be at least linger_ms + request_timeout_ms"
                f" ({self.linger_ms + self.request_timeout_ms:g}) (KIP-91)"
            )


def from_properties(properties: Mapping[str, Any]) -> dict[str, Any]:
    """Turn Java-style names (``{"group.id": "g"}``) into settings: ``open_consumer(**from_properties(...))``.

    Strings are turned into numbers and booleans where the setting is one. Raises :exc:`ConfigurationError` for a name that
    no client has.
    """
    by_name = {f.name: f for cls in (AdminConfig, ConsumerConfig, ProducerConfig) for f in fields(cls)}
    settings: dict[str, Any] = {}
    for dotted, value in properties.items():
        name = dotted.replace(".", "_")
        if name not in by_name:
            raise ConfigurationError(_unknown(dotted, {n.replace("_", ".") for n in by_name}, "any client"))
        settings[name] = _from_text(dotted, value, by_name[name].default) if isinstance(value, str) else value
    return settings


def _from_text(name: str, text: str, default: object) -> object:
    if isinstance(default, bool):
        if text.lower() not in ("true", "false"):
            raise ConfigurationError(f"{name} must be true or false, not {text!r}")
        return text.lower() == "true"
    if isinstance(default, int | float) or (default is None and text.lstrip("-").isdigit() and name == "max.poll.records"):
        try:
            return float(text) if "." in text else int(text)
        except ValueError:
            raise ConfigurationError(f"{name} must be a number, not {text!r}") from None
    if isinstance(default, tuple):
        return tuple(part.strip() for part in text.split(",") if part.strip())
    return int(text) if name == "acks" and text in ("-1", "0", "1") else text


def _unknown(name: str, known: set[str], where: str) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return f"unknown setting {name!r} for {where}{hint}"


def _check(name: str, value: Any, default: object, rules: Mapping[str, Any]) -> None:
    choices, least, most = rules["choices"], rules["least"], rules["most"]
    if choices is not None and (value not in choices or isinstance(value, bool)):
        raise ConfigurationError(f"{name} must be one of {', '.join(map(repr, choices))}, not {value!r}")
    if isinstance(default, bool) != isinstance(value, bool):
        raise ConfigurationError(
            f"{name} must be {'True or False' if isinstance(default, bool) else 'no boolean'}, not {value!r}"
        )
    number = least is not None or most is not None
    if number and value is not None:
        if not isinstance(value, int | float) or value != value:
            raise ConfigurationError(f"{name} must be a number, not {value!r}")
        if not name.endswith("_ms") and not isinstance(value, int):
            raise ConfigurationError(f"{name} must be a whole number, not {value!r}")
        if (least is not None and value < least) or (most is not None and value > most):
            raise ConfigurationError(
                f"{name} must be at least {least:g}" + (f" and at most {most}" if most is not None else "") + f", not {value!r}"
            )
    elif number and default is not None:
        raise ConfigurationError(f"{name} must be a number, not None")
    if name == "dial":
        if value is not None and not callable(value):
            raise ConfigurationError(f"dial must be an async function of host and port, not {value!r}")
        return
    text = choices is None and not number and name != "bootstrap_servers" and isinstance(default, str | None)
    if text and not isinstance(value, str) and value is not default:
        raise ConfigurationError(f"{name} must be text{'' if default is not None else ' or None'}, not {value!r}")
    if isinstance(default, tuple) and (isinstance(value, str | bytes) or not isinstance(value, Sequence)):
        raise ConfigurationError(f"{name} must be a sequence, not {value!r}")
