"""The cluster for Trio: each call runs the synchronous method in a worker thread."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from functools import partial, wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar, Unpack

import trio

from .broker import KafkaBroker
from .cluster import KafkaCluster
from .settings import ClusterOptions

P = ParamSpec("P")
T = TypeVar("T")


# The limiter is the call's own: the program may have used up the tokens of Trio's, and a broker must
# still be stopped.
async def _in_thread(function: Callable[[], T]) -> T:
    return await trio.to_thread.run_sync(function, limiter=trio.CapacityLimiter(1))


def in_thread(
    method: Callable[Concatenate[Any, P], T],
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    """Return an async method that runs a method of the synchronous object in a worker thread.

    The method is looked up by its name, so that a subclass of the synchronous object may override
    it.
    """

    @wraps(method)
    async def call(self: Broker | Cluster, /, *args: P.args, **kwargs: P.kwargs) -> T:
        own: Callable[P, T] = getattr(self.sync, method.__name__)
        return await _in_thread(partial(own, *args, **kwargs))

    return call


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
        """The file to which the process logs."""
        return self.sync.log_file

    @property
    def pid(self) -> int | None:
        """The id of the process; None without a process."""
        return self.sync.pid

    @property
    def alive(self) -> bool:
        """True while the process exists; it may be frozen."""
        return self.sync.alive

    @property
    def frozen(self) -> bool:
        """True from `freeze` to `thaw`, `stop` or `kill`."""
        return self.sync.frozen

    start = in_thread(KafkaBroker.start)
    stop = in_thread(KafkaBroker.stop)
    kill = in_thread(KafkaBroker.kill)
    freeze = in_thread(KafkaBroker.freeze)
    thaw = in_thread(KafkaBroker.thaw)
    restart = in_thread(KafkaBroker.restart)


class Cluster:
    """Real Kafka brokers, for Trio: `async with Cluster.open(brokers=3) as cluster`.

    An open `KafkaCluster`, such as that of a pytest fixture, can be wrapped:
    `Cluster(kafka_cluster)`. The methods are those of `KafkaCluster`, awaited.

    If cancelled, `start` leaves the brokers down that it started, `stop` leaves them stopping, and
    `run_tool` still waits for the tool.
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
            await _in_thread(cluster.start)
            yield cls(cluster)
        finally:
            with trio.CancelScope(shield=True):
                await _in_thread(cluster.close)

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

    def java_command(
        self, main_class: str, *arguments: str, jvm_options: Sequence[str] = ()
    ) -> list[str]:
        """Return the command that runs a class of Kafka's jars."""
        return self.sync.java_command(main_class, *arguments, jvm_options=jvm_options)

    start = in_thread(KafkaCluster.start)
    stop = in_thread(KafkaCluster.stop)
    run_tool = in_thread(KafkaCluster.run_tool)
