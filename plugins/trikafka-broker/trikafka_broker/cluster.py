"""A cluster: its brokers, directory, ports and jars.

This module owns all of them from `start` to `close`.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import json
import logging
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, NamedTuple, Self, Unpack

from . import archive, formatting
from .broker import KafkaBroker, log_tail
from .errors import BrokerError, BrokerStartError
from .guardian import Guardian
from .jars import fetch_jars, has_class
from .java import find_java
from .ports import Ports
from .security import SECURED, write_certificates
from .settings import (
    CONTROLLER,
    DEFAULT_JVM_OPTIONS,
    PLAINTEXT,
    TOOLS_VERSION,
    ClusterOptions,
    Settings,
    logging_options,
    server_properties,
    write_logging,
    write_properties,
)
from .waiting import wait_until

_PORT_ATTEMPTS = 3
#: Seconds to wait for the lock of a directory: brokers of a killed process end a moment after it.
_LOCKED_WITHIN = 5.0
_log = logging.getLogger("trikafka_broker")


class _Jars(NamedTuple):
    """The jars of one version."""

    libs: Path
    #: The class-data archive, if there is one.
    archive: Path | None


class ToolFiles(NamedTuple):
    """The files and programs that Kafka's tools run with, of an open cluster."""

    directory: Path
    #: The directory for the JVMs' leftovers.
    scratch: Path
    java: Path
    jars: _Jars


class KafkaCluster:
    """One or more real Kafka brokers on loopback ports.

    Synchronous; `Cluster` is the same for Trio. Use it as a context manager, or call `start` and
    `close`. The options are those of `Settings`. All processes and temporary files are gone when
    the cluster is closed, when the interpreter exits, and when this process is killed.
    """

    def __init__(self, **options: Unpack[ClusterOptions]) -> None:
        self.settings = Settings(**options)
        self.brokers: tuple[KafkaBroker, ...] = ()
        self.guardian = Guardian()
        self._ports = Ports()
        self._directory: Path | None = None
        self._lock: IO[bytes] | None = None
        self._java: Path | None = None
        self._scratch: Path
        self._jars: _Jars
        #: The jars of the tools, if they were needed and are those of another version.
        self._tools: _Jars | None = None
        self._owner = os.getpid()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # --- addresses and settings

    @property
    def bootstrap_servers(self) -> str:
        """The `host:port` of all brokers' plain listeners, separated by commas."""
        return self.bootstrap_servers_of(PLAINTEXT)

    def bootstrap_servers_of(self, listener: str) -> str:
        """Return the `host:port` of all brokers for one of the option `listeners`.

        Raises:
            KeyError: There is no such listener.
        """
        return ",".join(f"{broker.host}:{broker.ports[listener]}" for broker in self.brokers)

    @property
    def directory(self) -> Path:
        """The directory of the cluster.

        Raises:
            BrokerError: The cluster is not open.
        """
        if self._directory is None:
            raise BrokerError(
                "The cluster is not open: call start(), or use it in a with statement"
            )
        return self._directory

    @property
    def security_directory(self) -> Path:
        """The directory of the certificates: `ca.pem`, and `client.pem` with its key."""
        return self.directory / "security"

    def client_settings(self, mechanism: str | None = None) -> dict[str, object]:
        """Return settings for `trikafka.open_*` that connect to the listener `SECURED`.

        Bootstrap servers are included.

        Args:
            mechanism: The SASL mechanism; by default the first one.
        """
        settings = self.settings.security.trikafka_settings(self.security_directory, mechanism)
        return {"bootstrap_servers": self.bootstrap_servers_of(SECURED), **settings}

    def librdkafka_settings(self, mechanism: str | None = None) -> dict[str, str]:
        """Return the same settings for librdkafka."""
        settings = self.settings.security.librdkafka_settings(self.security_directory, mechanism)
        return {"bootstrap.servers": self.bootstrap_servers_of(SECURED), **settings}

    def java_settings(self, mechanism: str | None = None) -> dict[str, str]:
        """Return the same settings for Java's client."""
        settings = self.settings.security.java_settings(self.security_directory, mechanism)
        return {"bootstrap.servers": self.bootstrap_servers_of(SECURED), **settings}

    @property
    def start_timeout(self) -> float:
        """Seconds that the brokers may take to become ready."""
        return self.settings.start_timeout

    @property
    def stop_timeout(self) -> float:
        """Seconds that a clean stop may take."""
        return self.settings.stop_timeout

    # --- life

    def start(self) -> None:
        """Start all brokers that are not alive; wait until each knows all of them.

        The first call downloads the jars if necessary. If the first start fails or is cancelled,
        the cluster is closed again; logs stay if a broker failed. If a later start fails, the
        brokers that it started are down again.

        Raises:
            JavaError: There is no Java, or it is too old.
            DownloadError: The jars could not be downloaded.
            BrokerStartError: A broker exited, or was not ready in time.
            BrokerError: A port or directory cannot be used.
        """
        if self.brokers:
            self._bring_up()
            return
        try:
            self._open()
        except BrokerStartError:
            self._close(keep_logs=True)
            raise
        except BaseException:
            self.close()
            raise

    def stop(self) -> None:
        """Stop all brokers cleanly, at the same time.

        Data, ports and the directory stay for another `start`. The last of several brokers may have
        to be killed: see `KafkaBroker.stop`.
        """
        for broker in self.brokers:
            broker.ask_to_stop()
        for broker in self.brokers:
            broker.await_end()

    def close(self) -> None:
        """End all brokers and remove temporary files. Closing twice is allowed.

        Brokers whose data stays are stopped cleanly; the others are killed.
        """
        self._close(keep_logs=False)

    # --- tools

    def java_command(
        self, main_class: str, *arguments: str, jvm_options: Sequence[str] = ()
    ) -> list[str]:
        """Return the command that runs a class of Kafka's jars.

        An example is `org.apache.kafka.tools.ConsoleProducer`. The command logs warnings to its
        standard error. The jar of the tools is missing on Maven for Kafka 4.4.0. So a class that
        the cluster's jars lack comes from Kafka 4.3.1, with that version's client. The jars of
        4.3.1 are downloaded at the first use.

        Args:
            main_class: The class.
            arguments: Its arguments.
            jvm_options: Options of the JVM.

        Raises:
            BrokerError: The cluster is not open.
            DownloadError: The jars of the tools could not be downloaded.
        """
        # Without the check, the jars would be downloaded for a cluster that is not open.
        _ = self.directory
        return self._command(
            "WARN", main_class, *arguments, jvm_options=jvm_options, jars=self._jars_of(main_class)
        )

    def run_tool(
        self, main_class: str, *arguments: str, input: str | None = None, timeout: float = 60
    ) -> subprocess.CompletedProcess[str]:
        """Run a class of Kafka's jars until it ends; return the finished process.

        Args:
            main_class: The class.
            arguments: Its arguments.
            input: The text of its standard input.
            timeout: Seconds that it may take.

        Raises:
            BrokerError: The tool failed. The message has its last output.
            DownloadError: The jars of the tools could not be downloaded.
            subprocess.TimeoutExpired: The tool took too long.
        """
        command = self.java_command(
            main_class, *arguments, jvm_options=["-Xmx256m", "-XX:TieredStopAtLevel=1"]
        )
        done = subprocess.run(
            command, input=input or "", capture_output=True, text=True, timeout=timeout
        )
        if done.returncode != 0:
            words = (done.stderr.strip() or done.stdout.strip())[-2000:]
            raise BrokerError(f"{main_class} exited with code {done.returncode}: {words}")
        return done

    @property
    def tool_files(self) -> ToolFiles:
        """The files and programs of Kafka's tools, for another process.

        Raises:
            BrokerError: The cluster is not open.
        """
        directory = self.directory
        assert self._java is not None
        return ToolFiles(directory, self._scratch, self._java, self._jars)

    # --- for the brokers

    @property
    def has_quorum(self) -> bool:
        """True while most of the brokers are alive. Each broker is also a controller."""
        return sum(broker.alive for broker in self.brokers) * 2 > len(self.brokers)

    def broker_command(self, node_id: int) -> list[str]:
        """Return the command of a broker's process."""
        properties = self.directory / f"broker-{node_id}" / "server.properties"
        return self._command(
            "INFO", "kafka.Kafka", str(properties), jvm_options=self.settings.jvm_options
        )

    # --- the steps of start and close

    def _adopt(self, files: ToolFiles) -> None:
        """Use the files of a cluster that another process has opened (`workers`)."""
        self._directory = files.directory
        self._scratch = files.scratch
        self._java = files.java
        self._jars = files.jars

    def _command(
        self,
        level: str,
        main_class: str,
        *arguments: str,
        jvm_options: Sequence[str],
        jars: _Jars | None = None,
    ) -> list[str]:
        libs, classes = jars or self._jars
        log_options = logging_options(self.directory, level)
        # a killed JVM leaves native libraries in its temporary directory
        own = f"-Djava.io.tmpdir={self._scratch}"
        options = [own, *archive.using_options(classes, jvm_options), *jvm_options, *log_options]
        return [str(self._java), *options, "-cp", f"{libs}/*", main_class, *arguments]

    def _jars_of(self, main_class: str) -> _Jars:
        """Return the jars with a class: the cluster's own, or those of `TOOLS_VERSION`."""
        own = self._jars.libs
        if any(own.glob("kafka-tools-[0-9]*.jar")) or has_class(own, main_class):
            return self._jars
        if self._tools is None:
            self._tools = self._fetch(TOOLS_VERSION)
        return self._tools

    def _fetch(self, version: str) -> _Jars:
        assert self._java is not None
        libs = fetch_jars(version, progress=self.settings.progress)
        return _Jars(libs, self._find_archive(self._java, libs, version))

    def _open(self) -> None:
        self._java = find_java()
        self._jars = self._fetch(self.settings.version)
        self.guardian.start()
        atexit.register(self.close)
        directory = self._make_directory()
        self._lock = _locked(directory)
        self._directory = directory
        self._scratch = self._make_scratch(self._directory)
        write_logging(self._directory)
        if self.settings.security.tls:
            write_certificates(self.security_directory)
        # A chosen port may be another program's by the time the broker binds it: on Linux a program
        # that asks for this very port gets it in spite of the reservation, and elsewhere there is
        # no reservation (see `Ports`). So freely chosen ports are then chosen again. A port that
        # the user has named is not replaced.
        for attempt in range(1, _PORT_ATTEMPTS + 1):
            self._make_brokers()
            self._format()
            try:
                self._bring_up()
                return
            except BrokerStartError as error:
                port_lost = "Address already in use" in error.tail and self.settings.port is None
                if not port_lost or attempt == _PORT_ATTEMPTS:
                    raise
                self._ports.release()

    def _find_archive(self, java: Path, libs: Path, version: str) -> Path | None:
        """Return the class-data archive of Kafka's jars, which makes JVMs start quickly.

        The first process to need the archive creates it with a short-lived broker.
        """

        def write(file: Path) -> None:
            options = [*DEFAULT_JVM_OPTIONS, *archive.writing_options(file)]
            with KafkaCluster(version=version, jvm_options=options) as trained:
                trained.stop()

        if archive.concerns(self.settings.jvm_options):
            return None
        report = self.settings.progress or (lambda line: None)
        news = f"preparing Kafka {version} to start more quickly from now on"
        return archive.prepare(
            java, archive.Jars(libs, f"{libs}/*", libs.parent), write, lambda: report(news)
        )

    def _make_directory(self) -> Path:
        if self.settings.directory is not None:
            directory = Path(self.settings.directory).absolute()
            try:
                directory.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise BrokerError(
                    f"The directory {directory} cannot be made: {error.strerror}"
                ) from error
            return directory
        directory = Path(tempfile.mkdtemp(prefix="trikafka-broker-"))
        if not self.settings.keep:
            self.guardian.own_directory(directory)
        return directory

    def _make_scratch(self, directory: Path) -> Path:
        """Create a directory for the JVMs' leftovers, removed with the cluster in every case."""
        try:
            scratch = Path(tempfile.mkdtemp(prefix="jvm-", dir=directory))
        except OSError as error:
            raise BrokerError(
                f"Nothing can be written into {directory}: {error.strerror}"
            ) from error
        self.guardian.own_directory(scratch)
        return scratch

    def _make_brokers(self) -> None:
        """Choose ports and write each broker's properties.

        Ports of an earlier run in this directory are preferred.
        """
        memory = self.directory / "ports.json"
        earlier = json.loads(memory.read_text()) if memory.exists() else []
        if earlier and len(earlier) != self.settings.brokers:
            count = "1 broker" if len(earlier) == 1 else f"{len(earlier)} brokers"
            raise BrokerError(
                f"{self.directory} holds the data of {count}, not "
                f"{self.settings.brokers}: start as many brokers, or choose another directory"
            )
        ports = [
            self._choose_ports(node, earlier[node] if earlier else {})
            for node in range(self.settings.brokers)
        ]
        memory.write_text(json.dumps(ports))
        logs = (
            Path(self.settings.logs).absolute()
            if self.settings.logs is not None
            else self.directory / "logs"
        )
        logs.mkdir(parents=True, exist_ok=True)
        brokers = []
        for node, own in enumerate(ports):
            home = self.directory / f"broker-{node}"
            home.mkdir(exist_ok=True)
            properties = server_properties(self.settings, node, ports, home / "data")
            write_properties(home / "server.properties", properties)
            brokers.append(KafkaBroker(self, node, own, home, logs / f"broker-{node}.log"))
        self.brokers = tuple(brokers)

    def _choose_ports(self, node: int, earlier: dict[str, int]) -> dict[str, int]:
        ports = {}
        wanted = self.settings.port
        if wanted is not None:
            if node == 0:
                self._take_named(wanted)
            ports[SECURED if self.settings.security.listener else PLAINTEXT] = wanted + node
        for name in (PLAINTEXT, CONTROLLER, *self.settings.client_listeners):
            if name not in ports:
                ports[name] = self._ports.take_preferred(earlier.get(name, 0))
        return ports

    def _take_named(self, first: int) -> None:
        """Take the requested ports first; a freely chosen port could be one of them."""
        for port in range(first, first + self.settings.brokers):
            try:
                self._ports.take(port)
            except OSError as error:
                raise BrokerError(f"Port {port} cannot be used: {error.strerror}") from error

    def _format(self) -> None:
        """Create the brokers' data directories, unless they exist."""
        options = self.settings.security.storage_arguments()
        template = formatting.template_of(self._jars.libs, self.settings.properties, options)
        directories = {broker.node_id: broker.directory / "data" for broker in self.brokers}
        report = self.settings.progress or _log.warning
        run_tool = lambda cluster_id: self._run_storage_tool(cluster_id, options)  # noqa: E731
        formatting.format_all(directories, template, run_tool, report)

    def _run_storage_tool(self, cluster_id: str, options: Sequence[str]) -> None:
        """Create the data directory of broker 0."""
        broker = self.brokers[0]
        arguments = [
            "format",
            "-t",
            cluster_id,
            "-c",
            str(broker.directory / "server.properties"),
            *options,
        ]
        quick = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
        command = self._command("WARN", "kafka.tools.StorageTool", *arguments, jvm_options=quick)
        with broker.log_file.open("ab") as log:
            process = self.guardian.spawn(command, log)
        try:
            code = process.wait(self.start_timeout)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            self.guardian.kill(process)
        if code != 0:
            how = "took too long" if code is None else f"exited with code {code}"
            message = f"Kafka's storage tool {how} when it formatted the data directory"
            raise BrokerStartError(message, broker.log_file, log_tail(broker.log_file))

    def _bring_up(self) -> None:
        down = [broker for broker in self.brokers if not broker.alive]
        self._ports.let_brokers_bind()
        try:
            for broker in down:
                broker.launch()
            nodes = frozenset(range(len(self.brokers)))
            for broker in self.brokers if down else ():
                broker.await_ready(nodes)
        except BaseException:
            for broker in down:
                broker.kill()
            raise

    def _close(self, *, keep_logs: bool) -> None:
        if os.getpid() != self._owner:
            return  # this process is a fork of the one that owns the brokers
        atexit.unregister(self.close)
        directory = self._directory
        temporary = self.settings.directory is None
        if directory is not None and (self.settings.keep or not temporary):
            self.stop()
        for broker in self.brokers:
            broker.kill()
        if directory is not None and temporary and keep_logs:
            self.guardian.disown_directory(directory)
            _remove_all_but_logs(directory)
        self.guardian.close()
        self._ports.release()
        self._directory = None
        if self._lock is not None:
            # A fork of this process has the file open, too, so closing it would not be enough.
            with contextlib.suppress(OSError):
                fcntl.flock(self._lock, fcntl.LOCK_UN)
            self._lock.close()
            self._lock = None


# Kafka's own lock on its data comes too late. A second controller writes to the metadata of the
# first one before it looks at the lock. By then this package has also replaced the ports and
# properties of the running brokers.
def _locked(directory: Path) -> IO[bytes]:
    """Return the file of a lock on a cluster's directory, which is held until it is released.

    Raises:
        BrokerError: Brokers run in the directory, or nothing can be written into it.
    """
    try:
        file = (directory / "lock").open("ab")
    except OSError as error:
        raise BrokerError(f"Nothing can be written into {directory}: {error.strerror}") from error

    def lock() -> bool:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:  # a file system without locks
            return True
        return True

    try:
        if wait_until(lock, _LOCKED_WITHIN):
            return file
    except BaseException:
        file.close()
        raise
    file.close()
    raise BrokerError(
        f"Other brokers run in {directory}: end them first, or choose another directory"
    )


def _remove_all_but_logs(directory: Path) -> None:
    for entry in directory.iterdir():
        if entry.name == "logs":
            continue
        if entry.is_dir():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            entry.unlink(missing_ok=True)
