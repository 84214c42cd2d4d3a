"""What a cluster is opened with, and the files that are written from it. Owns the default broker properties."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import TypedDict

from .ports import HOST
from .security import SECURED, SecurityOptions, write_private

DEFAULT_VERSION = "4.3.1"
#: The oldest that trikafka supports; its tests run against this one and the default.
OLDEST_VERSION = "3.3.2"

#: Measured on two cores: three brokers come up in 4.8 s with these and in 7.8 s without. The first compiler tier costs
#: throughput later on; a benchmark of a broker passes `jvm_options=["-Xmx1g"]` instead.
DEFAULT_JVM_OPTIONS = ("-Xmx512m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")

PLAINTEXT, CONTROLLER = "PLAINTEXT", "CONTROLLER"


class ClusterOptions(TypedDict, total=False):
    """The keyword arguments of everything here that opens a cluster. `Settings` has their meanings and defaults."""

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
    """What a cluster is opened with. Raises `ValueError` for values that cannot be."""

    brokers: int = 1
    """how many; each is broker and controller in one process"""
    version: str = DEFAULT_VERSION
    """of Kafka, as on Maven"""
    directory: str | PathLike[str] | None = None
    """where data and logs go, and stay; a cluster that is there already is opened again. None: a temporary one"""
    logs: str | PathLike[str] | None = None
    """where the brokers' logs go, and stay. None: `logs` in the directory"""
    properties: Mapping[str, object] = field(default_factory=dict)
    """broker properties; they win over all defaults"""
    listeners: Mapping[str, str] = field(default_factory=dict)
    """listeners beside the plain one: name to security protocol, as in `{"TLS": "SSL"}`; each gets a port of its own"""
    tls: bool = False
    """a listener `SECURED` beside the plain one, with TLS"""
    mtls: bool = False
    """the same, and it asks clients for a certificate"""
    sasl: Sequence[str] = ()
    """the listener `SECURED` asks for SASL: of `plain`, `scram`, `oauth`"""
    acl: bool = False
    """nothing is allowed but what a rule allows, to others than those of the plain listener and `admin`"""
    racks: Sequence[str] = ()
    """the rack of each broker, in order (property `broker.rack`); those left over stand in none"""
    port: int | None = None
    """of broker 0, the others have the next ones: of the listener `SECURED` if there is one. None: free ones"""
    jvm_options: Sequence[str] = DEFAULT_JVM_OPTIONS
    keep: bool = False
    """keep a temporary directory at the end"""
    start_timeout: float = 60
    """seconds that the brokers may take to come up"""
    stop_timeout: float = 30
    """seconds that a broker may take for a clean stop before it is killed"""
    progress: Callable[[str], None] | None = None
    """called with a line of text whenever there is news while jars are downloaded"""

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
        """The options of the listener `SECURED`. Raises `ValueError` for those that cannot be."""
        return SecurityOptions.of(self.tls, self.mtls, self.sasl, self.acl)

    @property
    def client_listeners(self) -> dict[str, str]:
        """Name to security protocol of all listeners beside the plain one."""
        return {**self.listeners, **self.security.listener}


def server_properties(
    settings: Settings, node_id: int, ports: Sequence[Mapping[str, int]], data: Path
) -> dict[str, object]:
    """All properties of one broker. `ports` are those of every broker, by the listener's name.

    The voters are given statically, which every KRaft version understands, and which lets ports change between two
    openings of the same data.
    """
    client_listeners = [PLAINTEXT, *settings.client_listeners]
    own = ports[node_id]
    protocols = {PLAINTEXT: "PLAINTEXT", CONTROLLER: "PLAINTEXT", **settings.client_listeners}
    return {
        "node.id": node_id,
        "process.roles": "broker,controller",
        "controller.quorum.voters": ",".join(f"{i}@{HOST}:{p[CONTROLLER]}" for i, p in enumerate(ports)),
        "controller.listener.names": CONTROLLER,
        "inter.broker.listener.name": PLAINTEXT,
        "listener.security.protocol.map": ",".join(f"{name}:{protocol}" for name, protocol in protocols.items()),
        "listeners": ",".join(f"{name}://{HOST}:{own[name]}" for name in [*client_listeners, CONTROLLER]),
        "advertised.listeners": ",".join(f"{name}://{HOST}:{own[name]}" for name in client_listeners),
        "log.dirs": data,
        **({"broker.rack": settings.racks[node_id]} if node_id < len(settings.racks) else {}),
        **_replication(settings.brokers),
        **_QUICK,
        **settings.security.properties(data.parent.parent / "security"),
        **settings.properties,
    }


def _replication(brokers: int) -> dict[str, object]:
    factor, minimum = min(3, brokers), min(2, brokers)
    return {
        "default.replication.factor": factor,
        "offsets.topic.replication.factor": factor,
        "transaction.state.log.replication.factor": factor,
        "transaction.state.log.min.isr": minimum,
        "share.coordinator.state.topic.replication.factor": factor,
        "share.coordinator.state.topic.min.isr": minimum,
    }


# What tests of clients want: no waiting, no surprises.
_QUICK: dict[str, object] = {
    "group.initial.rebalance.delay.ms": 0,
    "group.min.session.timeout.ms": 100,
    "auto.create.topics.enable": "false",
    "offsets.topic.num.partitions": 8,
    "transaction.state.log.num.partitions": 8,
    "share.coordinator.state.topic.num.partitions": 8,
    # A killed broker is let in again, and a frozen one given up, only when its session has ended: 9 s by default.
    "broker.session.timeout.ms": 3000,
    "broker.heartbeat.interval.ms": 500,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 200,
}


def write_properties(path: Path, properties: Mapping[str, object]) -> None:
    """Write a Java properties file; what Java would read otherwise is escaped."""
    lines = [f"{key}={_escape(_text(value))}\n" for key, value in properties.items()]
    write_private(path, "".join(lines).encode("ascii"))  # passwords may stand in it


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _escape(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")
    if escaped.startswith(" "):
        escaped = "\\" + escaped
    units = memoryview(escaped.encode("utf-16-be")).cast("B")
    codes = [units[i] << 8 | units[i + 1] for i in range(0, len(units), 2)]
    return "".join(chr(code) if code < 128 else f"\\u{code:04x}" for code in codes)


# To the standard error, which is the log file of a broker, and keeps the standard output of tools clean.
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
    """The JVM options that make a Kafka process of any version log to its standard error."""
    return [
        f"-Dtrikafka.log.level={level}",
        f"-Dlog4j2.configurationFile={directory / 'log4j2.properties'}",
        f"-Dlog4j.configuration=file:{directory / 'log4j.properties'}",
    ]
