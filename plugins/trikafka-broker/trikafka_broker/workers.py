"""One broker for all worker processes of a run of pytest-xdist.

This module owns the connections between the processes, and the objects by which a worker uses the
broker.
"""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Listener
from pathlib import Path
from typing import NoReturn

from .broker import KafkaBroker
from .cluster import KafkaCluster, ToolFiles
from .errors import BrokerError
from .ports import HOST

_BORROW, _END = "borrow", "end"


# Each worker of pytest-xdist is a process with a session of its own, so a fixture of the session
# would start a broker in each worker. A worker may end before the others, but the controller lives
# as long as the run. So the controller owns the broker, starts it when the first worker asks, and
# ends it after the run. If the controller is killed, its guardian ends the broker.
#
# The workers ask over a loopback connection, with a key that only they and the controller have.


@dataclass(frozen=True)
class Loan:
    """The data by which another process uses a cluster of one broker, and runs Kafka's tools."""

    version: str
    files: ToolFiles
    node_id: int
    ports: Mapping[str, int]
    directory: Path
    log_file: Path
    pid: int | None

    @classmethod
    def of(cls, cluster: KafkaCluster) -> Loan:
        """Return the loan of a started cluster of one broker."""
        (broker,) = cluster.brokers
        return cls(
            cluster.settings.version,
            cluster.tool_files,
            broker.node_id,
            broker.ports,
            broker.directory,
            broker.log_file,
            broker.pid,
        )


class Lender:
    """The owner of the broker, in the controller.

    Its thread is a daemon, and ends by :meth:`close`.
    """

    def __init__(self, start: Callable[[], KafkaCluster]) -> None:
        """Listen for workers.

        Args:
            start: Starts the cluster, called when the first worker asks. After an error the next
                worker that asks tries again.
        """
        self._start = start
        self._cluster: KafkaCluster | None = None
        self._key = secrets.token_bytes(32)
        self._listener = Listener((HOST, 0), authkey=self._key)
        self._thread = threading.Thread(target=self._serve, name="trikafka-broker lender")
        self._thread.daemon = True
        self._thread.start()

    @property
    def address(self) -> tuple[str, int, bytes]:
        """The address and the key for :func:`borrow`."""
        host, port = self._listener.address
        return str(host), int(port), self._key

    def close(self) -> None:
        """End the broker. A start that is under way ends first."""
        with Client(self._listener.address, authkey=self._key) as own:
            own.send(_END)
        self._thread.join()
        self._listener.close()
        if self._cluster is not None:
            self._cluster.close()

    def _serve(self) -> None:
        while True:
            # A worker may be killed at any moment.
            with suppress(OSError, EOFError, AuthenticationError):
                with self._listener.accept() as worker:
                    if worker.recv() == _END:
                        return
                    worker.send(self._answer())

    def _answer(self) -> Loan | str:
        """Return the loan, or the text of an error."""
        try:
            if self._cluster is None:
                self._cluster = self._start()
            return Loan.of(self._cluster)
        # Every error is an answer, such as the ValueError of a wrong option. An error that ended
        # this thread would leave the workers, and the end of the run, waiting for ever.
        except Exception as error:
            return f"{type(error).__name__}: {error}"


def borrow(host: str, port: int, key: bytes) -> KafkaCluster:
    """Return the cluster of the controller, whose broker is up.

    Raises:
        BrokerError: The broker could not be started.
    """
    with Client((host, port), authkey=key) as lender:
        lender.send(_BORROW)
        answer = lender.recv()
    if isinstance(answer, Loan):
        return BorrowedCluster(answer)
    raise BrokerError(answer)


class BorrowedCluster(KafkaCluster):
    """A running cluster of one broker that another process owns.

    Its tools run as those of any cluster. It cannot be started, stopped or closed.
    """

    def __init__(self, loan: Loan) -> None:
        super().__init__(version=loan.version)
        self._adopt(loan.files)
        self.brokers = (_BorrowedBroker(self, loan),)

    def start(self) -> None:
        """No-op: the broker is up."""

    def stop(self) -> None:
        _refuse()

    def close(self) -> None:
        """No-op: the owner closes the cluster."""


class _BorrowedBroker(KafkaBroker):
    """The broker of a cluster that another process owns."""

    def __init__(self, cluster: BorrowedCluster, loan: Loan) -> None:
        super().__init__(cluster, loan.node_id, loan.ports, loan.directory, loan.log_file)
        self._pid = loan.pid

    @property
    def alive(self) -> bool:
        if self._pid is None:
            return False
        try:
            os.kill(self._pid, 0)
        except ProcessLookupError:
            return False
        return True

    @property
    def pid(self) -> int | None:
        return self._pid if self.alive else None

    def launch(self) -> None:
        _refuse()

    def ask_to_stop(self) -> None:
        _refuse()

    def kill(self) -> None:
        _refuse()

    def freeze(self) -> None:
        _refuse()

    def thaw(self) -> None:
        _refuse()


def _refuse() -> NoReturn:
    raise BrokerError(
        "The processes of this run share the broker: a test that stops or freezes one needs the "
        "fixture make_kafka_cluster"
    )
