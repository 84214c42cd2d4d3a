"""The options of a cluster, and the files written from them.

This module owns the default broker properties.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import TypedDict

from .ports import HOST
from .security import SECURED, SecurityOptions, write_private

DEFAULT_VERSION = "4.4.0"
#: The oldest version that trikafka supports. Its tests run with this one and the default.
OLDEST_VERSION = "3.3.2"
#: The newest version whose command-line tools are on Maven. They are also used for clusters of
#: versions without tools of their own.
TOOLS_VERSION = "4.3.1"

#: Measured on two cores: three brokers are ready in 4.8 s with these options and in 7.8 s without.
#: Using only the first compiler tier reduces later throughput. A benchmark of a broker should pass
#: `jvm_options=["-Xmx1g"]` instead.
DEFAULT_JVM_OPTIONS = ("-Xmx512m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")

PLAINTEXT, CONTROLLER = "PLAINTEXT", "CONTROLLER"


class ClusterOptions(TypedDict, total=False):
    """The keyword arguments of every function that opens a cluster.

    `Settings` has their meanings and defaults.
    """

    brokers: int
    version: str
    directory: str | PathLike[str] | None
    logs: str | PathLike[str] | None
    properties: Mapping[str, object]
    listeners: Mapping[str, str]
    tls: bool
    mtls: bool
    sasl: Sequence[str]
    acl: bool
    racks: Sequence[str]
    port: int | None
    jvm_options: Sequence[str]
    keep: bool
    start_timeout: float
    stop_timeout: float
    progress: Callable[[str], None] | None


@dataclass(frozen=True)
class Settings:
    """The options of a cluster.

    Raises:
        ValueError: A value is not valid.
    """

    brokers: int = 1
    """The number of brokers. Each is broker and controller in one process."""
    version: str = DEFAULT_VERSION
    """The version of Kafka, as on Maven."""
    directory: str | PathLike[str] | None = None
    """The directory for data and logs, which is kept.

    An existing cluster there is opened again. None: a temporary directory.
    """
    logs: str | PathLike[str] | None = None
    """The directory for the brokers' logs, which is kept. None: `logs` in the directory."""
    properties: Mapping[str, object] = field(default_factory=dict)
    """Broker properties. They override all defaults."""
    listeners: Mapping[str, str] = field(default_factory=dict)
    """Listeners beside the plain one: name to security protocol, as in `{"TLS": "SSL"}`.

    Each gets its own port.
    """
    tls: bool = False
    """Add a listener `SECURED` beside the plain one, with TLS."""
    mtls: bool = False
    """As `tls`, and the listener requires a client certificate."""
    sasl: Sequence[str] = ()
    """The listener `SECURED` requires SASL: any of `plain`, `scram`, `oauth`."""
    acl: bool = False
    """Deny everything that no ACL allows. The plain listener and the user `admin` are exempt.

    So are clients of a listener with TLS alone: they have no names.
    """
    racks: Sequence[str] = ()
    """The rack of each broker, in order (property `broker.rack`). Further brokers have none."""
    port: int | None = None
    """The port of broker 0; the other brokers have the following ones.

    It is the port of the listener `SECURED` if there is one. None: free ports.
    """
    jvm_options: Sequence[str] = DEFAULT_JVM_OPTIONS
    """The options of each broker's JVM."""
    keep: bool = False
    """Keep a temporary directory at the end."""
    #: Many brokers may start at the same time, on a slow machine. One that exits is noticed at once.
    start_timeout: float = 240
    """Seconds that the brokers may take to become ready."""
    stop_timeout: float = 30
    """Seconds that a broker may take for a clean stop before it is killed."""
    progress: Callable[[str], None] | None = None
    """A function that receives lines about the progress of a download."""

    def __post_init__(self) -> None:
        if self.brokers < 1:
            raise ValueError(f"brokers must be 1 or more, not {self.brokers}")
        reserved = {PLAINTEXT, CONTROLLER, SECURED} & set(self.listeners)
        if reserved:
            raise ValueError(f"the listener name {reserved.pop()} is taken by the cluster itself")
        if self.port is not None and not 0 < self.port <= 65536 - self.brokers:
            raise ValueError(f"port must lie between 1 and {65536 - self.brokers}, not {self.port}")
        _ = self.security

    @property
    def security(self) -> SecurityOptions:
        """The options of the listener `SECURED`.

        Raises:
            ValueError: A value is not valid.
        """
        return SecurityOptions.of(self.tls, self.mtls, self.sasl, self.acl)

    @property
    def client_listeners(self) -> dict[str, str]:
        """The security protocol of each listener beside the plain one, by name."""
        return {**self.listeners, **self.security.listener}


def server_properties(
    settings: Settings, node_id: int, ports: Sequence[Mapping[str, int]], data: Path
) -> dict[str, object]:
    """Return all properties of one broker.

    The quorum's voters are listed in a property: every version with KRaft reads it, and the ports
    may change between two runs with the same data.

    Args:
        settings: The options.
        node_id: The broker's id.
        ports: The ports of every broker, by the name of the listener.
        data: The data directory.
    """
    client_listeners = [PLAINTEXT, *settings.client_listeners]
    own = ports[node_id]
    protocols = {PLAINTEXT: "PLAINTEXT", CONTROLLER: "PLAINTEXT", **settings.client_listeners}
    return {
        "node.id": node_id,
        "process.roles": "broker,controller",
        "controller.quorum.voters": ",".join(
            f"{i}@{HOST}:{p[CONTROLLER]}" for i, p in enumerate(ports)
        ),
        "controller.listener.names": CONTROLLER,
        "inter.broker.listener.name": PLAINTEXT,
        "listener.security.protocol.map": ",".join(
            f"{name}:{protocol}" for name, protocol in protocols.items()
        ),
        "listeners": ",".join(
            f"{name}://{HOST}:{own[name]}" for name in [*client_listeners, CONTROLLER]
        ),
        "advertised.listeners": ",".join(
            f"{name}://{HOST}:{own[name]}" for name in client_listeners
        ),
        "log.dirs": data,
        **({"broker.rack": settings.racks[node_id]} if node_id < len(settings.racks) else {}),
        **_replication(settings.brokers),
        **_QUICK,
        **settings.security.properties(data.parent.parent / "security"),
        **settings.properties,
    }


def _replication(brokers: int) -> dict[str, object]:
    factor = min(3, brokers)
    minimum = min(2, brokers)
    return {
        "default.replication.factor": factor,
        "offsets.topic.replication.factor": factor,
        "transaction.state.log.replication.factor": factor,
        "transaction.state.log.min.isr": minimum,
        "share.coordinator.state.topic.replication.factor": factor,
        "share.coordinator.state.topic.min.isr": minimum,
    }


# Values for tests of clients: short waits, nothing implicit.
_QUICK: dict[str, object] = {
    "group.initial.rebalance.delay.ms": 0,
    "group.min.session.timeout.ms": 100,
    "auto.create.topics.enable": "false",
    "offsets.topic.num.partitions": 8,
    "transaction.state.log.num.partitions": 8,
    "share.coordinator.state.topic.num.partitions": 8,
    # A killed broker may register again, and a frozen one is fenced, only after its session has
    # ended: 9 s by default.
    "broker.session.timeout.ms": 3000,
    "broker.heartbeat.interval.ms": 500,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 200,
}


def write_properties(path: Path, properties: Mapping[str, object]) -> None:
    """Write a Java properties file with Java's escapes."""
    lines = [f"{key}={_escape(_text(value))}\n" for key, value in properties.items()]
    write_private(path, "".join(lines).encode("ascii"))  # the file may contain passwords


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _escape(value: str) -> str:
    escaped = (
        value.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")
    )
    if escaped.startswith(" "):
        escaped = "\\" + escaped
    units = memoryview(escaped.encode("utf-16-be")).cast("B")
    codes = [units[i] << 8 | units[i + 1] for i in range(0, len(units), 2)]
    return "".join(chr(code) if code < 128 else f"\\u{code:04x}" for code in codes)


# Logs go to the standard error. A broker's standard error is its log file, and the standard output
# of tools stays clean.
_LOG4J_2 = """\
status = warn
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = [%d] %p %m (%c)%n
rootLogger.level = ${sys:trikafka.log.level:-WARN}
rootLogger.appenderRef.console.ref = console
"""

_LOG4J_1 = """\
log4j.rootLogger=${trikafka.log.level}, console
log4j.appender.console=org.apache.log4j.ConsoleAppender
log4j.appender.console.target=System.err
log4j.appender.console.layout=org.apache.log4j.PatternLayout
log4j.appender.console.layout.ConversionPattern=[%d] %p %m (%c)%n
"""


def write_logging(directory: Path) -> None:
    """Write the logging configuration for Kafka 4 (log4j 2) and Kafka 3 (log4j 1)."""
    (directory / "log4j2.properties").write_text(_LOG4J_2, encoding="ascii")
    (directory / "log4j.properties").write_text(_LOG4J_1, encoding="ascii")


def logging_options(directory: Path, level: str) -> list[str]:
    """Return the JVM options that make a Kafka process of any version log to its standard error."""
    return [
        f"-Dtrikafka.log.level={level}",
        f"-Dlog4j2.configurationFile={directory / 'log4j2.properties'}",
        f"-Dlog4j.configuration=file:{directory / 'log4j.properties'}",
    ]
