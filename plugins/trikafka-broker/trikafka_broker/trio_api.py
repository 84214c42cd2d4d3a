"""The same cluster for Trio. Owns nothing: each call runs the synchronous one in a worker thread."""

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

    Cancelled, `start` leaves the broker down and `stop` leaves it stopping; `kill`, `freeze` and `thaw` are quick and
    always come to their end.
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
        """`host:port` of this broker alone."""
        return self.sync.bootstrap_servers

    @property
    def log_file(self) -> Path:
        return self.sync.log_file

    @property
    def pid(self) -> int | None:
        return self.sync.pid

    @property
    def alive(self) -> bool:
        """Whether the process exists (it may be frozen)."""
        return self.sync.alive

    @property
    def frozen(self) -> bool:
        return self.sync.frozen

    async def start(self) -> None:
        """Start and wait until it serves clients; nothing if it is alive. Raises `BrokerStartError`."""
        await trio.to_thread.run_sync(self.sync.start)

    async def stop(self) -> None:
        """Stop cleanly; past the cluster's `stop_timeout` it is killed."""
        await trio.to_thread.run_sync(self.sync.stop)

    async def kill(self) -> None:
        """SIGKILL, and wait for the end of the process."""
        await trio.to_thread.run_sync(self.sync.kill)

    async def freeze(self) -> None:
        """SIGSTOP: connections are still accepted, nothing is answered."""
        await trio.to_thread.run_sync(self.sync.freeze)

    async def thaw(self) -> None:
        """SIGCONT."""
        await trio.to_thread.run_sync(self.sync.thaw)

    async def restart(self) -> None:
        """`stop`, then `start`. Raises `BrokerStartError`."""
        await trio.to_thread.run_sync(self.sync.restart)


class Cluster:
    """Real Kafka brokers, for Trio: `async with Cluster.open(brokers=3) as cluster`.

    A `KafkaCluster` that is open already, as a pytest fixture gives it, can be wrapped: `Cluster(kafka_cluster)`.
    """

    def __init__(self, cluster: KafkaCluster) -> None:
        self.sync = cluster  #: the synchronous object
        self.brokers = tuple(Broker(broker) for broker in cluster.brokers)

    @classmethod
    @asynccontextmanager
    async def open(cls, **options: Unpack[ClusterOptions]) -> AsyncIterator[Cluster]:
        """Start brokers and end them on the way out. The options are those of `Settings`.

        Raises `JavaError`, `DownloadError`, `BrokerStartError`, `BrokerError`. A cancellation, also during the
        download or the start, ends all that was started; that clean-up itself is shielded.
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
        """`host:port` of the plain listener of all brokers, with commas between."""
        return self.sync.bootstrap_servers

    def bootstrap_servers_of(self, listener: str) -> str:
        """The same for a listener of the option `listeners`. Raises `KeyError` if there is none of that name."""
        return self.sync.bootstrap_servers_of(listener)

    @property
    def directory(self) -> Path:
        """Where everything is. Raises `BrokerError` once it is closed."""
        return self.sync.directory

    async def start(self) -> None:
        """Start all brokers that are not alive, together. Raises `BrokerStartError`; cancelled, they are down again."""
        await trio.to_thread.run_sync(self.sync.start)

    async def stop(self) -> None:
        """Stop all brokers cleanly; data and ports stay for another `start`. Cancelled, it leaves them stopping."""
        await trio.to_thread.run_sync(self.sync.stop)

    def java_command(self, main_class: str, *arguments: str, jvm_options: Sequence[str] = ()) -> list[str]:
        """The command that runs a class of Kafka's jars."""
        return self.sync.java_command(main_class, *arguments, jvm_options=jvm_options)

    async def run_tool(
        self, main_class: str, *arguments: str, input: str | None = None, timeout: float = 60
    ) -> subprocess.CompletedProcess[str]:
        """Run such a command to its end. Raises what `KafkaCluster.run_tool` does. Cancelled, it still waits for it."""
        call: Callable[[], subprocess.CompletedProcess[str]] = lambda: self.sync.run_tool(  # noqa: E731
            main_class, *arguments, input=input, timeout=timeout
        )
        return await trio.to_thread.run_sync(call)
