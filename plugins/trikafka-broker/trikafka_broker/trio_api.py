"""The cluster for Trio.

Each call runs the synchronous method in a worker thread.
"""

from __future__ import annotations

import subprocess
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Unpack

import trio

from .broker import KafkaBroker
from .cluster import KafkaCluster
from .settings import ClusterOptions


class Broker:
    """One broker of a `Cluster`. The methods are those of `KafkaBroker`, awaited.

    If cancelled, `start` leaves the broker down and `stop` leaves it stopping. `kill`, `freeze` and
    `thaw` are quick and always complete.
    """

    def __init__(self, broker: KafkaBroker) -> None:
        self.sync = broker  #: the synchronous object

    def __repr__(self) -> str:
        return repr(self.sync)

    @property
    def node_id(self) -> int:
        return self.sync.node_id

    @property
    def host(self) -> str:
        return self.sync.host

    @property
    def port(self) -> int:
        return self.sync.port

    @property
    def bootstrap_servers(self) -> str:
        """The `host:port` of this broker alone."""
        return self.sync.bootstrap_servers

    @property
    def log_file(self) -> Path:
        return self.sync.log_file

    @property
    def pid(self) -> int | None:
        return self.sync.pid

    @property
    def alive(self) -> bool:
        """True while the process exists; it may be frozen."""
        return self.sync.alive

    @property
    def frozen(self) -> bool:
        return self.sync.frozen

    async def start(self) -> None:
        """Start the broker, and wait until it serves clients. No-op if it is alive.

        Raises:
            BrokerStartError: The broker exited, or was not ready in time.
        """
        await trio.to_thread.run_sync(self.sync.start)

    async def stop(self) -> None:
        """Stop the broker cleanly; after the cluster's `stop_timeout` kill it."""
        await trio.to_thread.run_sync(self.sync.stop)

    async def kill(self) -> None:
        """Kill the process (SIGKILL) and wait for its end."""
        await trio.to_thread.run_sync(self.sync.kill)

    async def freeze(self) -> None:
        """Freeze the process (SIGSTOP): connections are accepted, requests get no response."""
        await trio.to_thread.run_sync(self.sync.freeze)

    async def thaw(self) -> None:
        """Resume the process (SIGCONT)."""
        await trio.to_thread.run_sync(self.sync.thaw)

    async def restart(self) -> None:
        """Stop the broker, then start it.

        Raises:
            BrokerStartError: The broker exited, or was not ready in time.
        """
        await trio.to_thread.run_sync(self.sync.restart)


class Cluster:
    """Real Kafka brokers, for Trio: `async with Cluster.open(brokers=3) as cluster`.

    An open `KafkaCluster`, such as that of a pytest fixture, can be wrapped:
    `Cluster(kafka_cluster)`.
    """

    def __init__(self, cluster: KafkaCluster) -> None:
        self.sync = cluster  #: the synchronous object
        self.brokers = tuple(Broker(broker) for broker in cluster.brokers)

    @classmethod
    @asynccontextmanager
    async def open(cls, **options: Unpack[ClusterOptions]) -> AsyncIterator[Cluster]:
        """Start brokers, and end them when the block ends.

        A cancellation, also during the download or the start, ends everything that was started. The
        clean-up itself is shielded.

        Args:
            options: The options of `Settings`.

        Raises:
            JavaError: There is no Java, or it is too old.
            DownloadError: The jars could not be downloaded.
            BrokerStartError: A broker exited, or was not ready in time.
            BrokerError: A port or directory cannot be used.
        """
        cluster = KafkaCluster(**options)
        try:
            await trio.to_thread.run_sync(cluster.start)
            yield cls(cluster)
        finally:
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(cluster.close)

    @property
    def bootstrap_servers(self) -> str:
        """The `host:port` of all brokers' plain listeners, separated by commas."""
        return self.sync.bootstrap_servers

    def bootstrap_servers_of(self, listener: str) -> str:
        """Return the `host:port` of all brokers for one of the option `listeners`.

        Raises:
            KeyError: There is no such listener.
        """
        return self.sync.bootstrap_servers_of(listener)

    @property
    def directory(self) -> Path:
        """The directory of the cluster.

        Raises:
            BrokerError: The cluster is closed.
        """
        return self.sync.directory

    async def start(self) -> None:
        """Start all brokers that are not alive, together.

        If cancelled, the brokers that it started are down again.

        Raises:
            BrokerStartError: A broker exited, or was not ready in time.
        """
        await trio.to_thread.run_sync(self.sync.start)

    async def stop(self) -> None:
        """Stop all brokers cleanly; data and ports stay for another `start`.

        If cancelled, the brokers are still stopping.
        """
        await trio.to_thread.run_sync(self.sync.stop)

    def java_command(
        self, main_class: str, *arguments: str, jvm_options: Sequence[str] = ()
    ) -> list[str]:
        """Return the command that runs a class of Kafka's jars."""
        return self.sync.java_command(main_class, *arguments, jvm_options=jvm_options)

    async def run_tool(
        self, main_class: str, *arguments: str, input: str | None = None, timeout: float = 60
    ) -> subprocess.CompletedProcess[str]:
        """Run a class of Kafka's jars until it ends; return the finished process.

        If cancelled, the call still waits for the tool. The exceptions are those of
        `KafkaCluster.run_tool`.
        """
        call: Callable[[], subprocess.CompletedProcess[str]] = lambda: self.sync.run_tool(  # noqa: E731
            main_class, *arguments, input=input, timeout=timeout
        )
        return await trio.to_thread.run_sync(call)
