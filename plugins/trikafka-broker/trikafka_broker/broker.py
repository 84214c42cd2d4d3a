"""One broker: its process and the operations on it.

This module owns the process of a node from its start to its end.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from . import probe
from .errors import BrokerStartError
from .guardian import Guardian, signal_group
from .ports import HOST
from .waiting import wait_until

_TAIL_LINES = 6
#: Seconds that a broker has after the quorum was lost: its shutdown may be nearly finished.
_LAST_SECONDS = 3.0


class Launcher(Protocol):
    """The services of a cluster for its brokers."""

    @property
    def guardian(self) -> Guardian: ...

    @property
    def start_timeout(self) -> float: ...

    @property
    def stop_timeout(self) -> float: ...

    @property
    def has_quorum(self) -> bool: ...

    def broker_command(self, node_id: int) -> Sequence[str]: ...


class KafkaBroker:
    """One broker of a `KafkaCluster`, which creates it. Synchronous; one caller at a time.

    The ports and the data stay the same when the broker is stopped or killed, and started again.
    """

    def __init__(
        self, launcher: Launcher, node_id: int, ports: Mapping[str, int], directory: Path, log: Path
    ) -> None:
        self.node_id = node_id
        self.host = HOST
        self.ports = dict(ports)  #: the port of each listener, by the listener's name
        self.directory = directory
        self.log_file = log
        self.frozen = False
        self._launcher = launcher
        self._process: subprocess.Popen[bytes] | None = None

    def __repr__(self) -> str:
        state = "frozen" if self.frozen else "up" if self.alive else "down"
        return f"<{type(self).__name__} {self.node_id} at {self.bootstrap_servers}, {state}>"

    @property
    def port(self) -> int:
        """The port of the plain listener."""
        return self.ports["PLAINTEXT"]

    @property
    def bootstrap_servers(self) -> str:
        """The `host:port` of this broker alone."""
        return f"{self.host}:{self.port}"

    @property
    def alive(self) -> bool:
        """True while the process exists; it may be frozen."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int | None:
        """The id of the process, which leads its own process group; None without a process."""
        return self._process.pid if self._process is not None and self.alive else None

    def start(self) -> None:
        """Start the broker, and wait until it serves clients. No-op if it is alive.

        In a cluster a broker cannot serve while most of the others are down; `KafkaCluster.start`
        starts them together. If the start fails or is cancelled, the broker is down again.

        Raises:
            BrokerStartError: The broker exited, or was not ready in time.
        """
        if self.alive:
            return
        self.launch()
        try:
            self.await_ready(frozenset({self.node_id}))
        except BaseException:
            self.kill()
            raise

    def stop(self) -> None:
        """Stop the broker cleanly (SIGTERM). No-op if it is down.

        The broker is killed after the cluster's `stop_timeout`. It is also killed 3 seconds after
        most of the cluster's brokers are down, because it cannot stop cleanly without them. If
        cancelled, the broker is still stopping.
        """
        self.ask_to_stop()
        self.await_end()

    def kill(self) -> None:
        """Kill the process (SIGKILL) and wait for its end. No-op if it is down."""
        if self._process is not None:
            self._launcher.guardian.kill(self._process)
        self._process = None
        self.frozen = False

    def freeze(self) -> None:
        """Freeze the process (SIGSTOP).

        The kernel still accepts connections, but no request gets a response.
        """
        if self.alive and self._process is not None:
            signal_group(self._process, signal.SIGSTOP)
            # The threads stop one by one. The broker may respond until the last one has stopped.
            if hasattr(os, "waitid"):
                os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
            self.frozen = True

    def thaw(self) -> None:
        """Resume the process after `freeze` (SIGCONT)."""
        if self._process is not None:
            signal_group(self._process, signal.SIGCONT)
        self.frozen = False

    def restart(self) -> None:
        """Stop the broker, then start it.

        Raises:
            BrokerStartError: The broker exited, or was not ready in time.
        """
        self.stop()
        self.start()

    # The steps of start and stop. The cluster does each step for all brokers before the next one.

    def launch(self) -> None:
        """Start the process without waiting."""
        # First, because a guardian that is gone may have removed the directory of the log.
        self._launcher.guardian.check()
        with self.log_file.open("ab") as log:
            self._process = self._launcher.guardian.spawn(
                self._launcher.broker_command(self.node_id), log
            )

    def await_ready(self, nodes: frozenset[int]) -> None:
        """Wait until this broker responds and knows all of `nodes` as alive.

        Raises:
            BrokerStartError: The broker exited, or was not ready in time.
        """
        limit = self._launcher.start_timeout

        def ready_or_gone() -> bool:
            return not self.alive or nodes <= probe.registered_brokers(self.host, self.port)

        in_time = wait_until(ready_or_gone, limit)
        if not self.alive:
            code = self._process.returncode if self._process is not None else None
            self._fail(f"Kafka broker {self.node_id} exited with code {code} while it started")
        if not in_time:
            self._fail(f"Kafka broker {self.node_id} was not ready within {limit:g} seconds")

    def ask_to_stop(self) -> None:
        """Send SIGTERM. A frozen broker could not handle the signal, so it is thawed first."""
        self.thaw()
        if self._process is not None:
            signal_group(self._process, signal.SIGTERM)

    def await_end(self) -> None:
        """Wait for the process to end within the limit, then kill it.

        A broker that stops asks the controllers for permission until one responds. Without most of
        the controllers no response ever comes, so the wait then ends early.
        """
        limit = self._launcher.stop_timeout
        wait_until(lambda: not (self.alive and self._launcher.has_quorum), limit)
        wait_until(
            lambda: not self.alive, 0 if self._launcher.has_quorum else min(_LAST_SECONDS, limit)
        )
        self.kill()

    def _fail(self, message: str) -> None:
        raise BrokerStartError(message, self.log_file, log_tail(self.log_file))


def log_tail(log_file: Path) -> str:
    """Return the last lines of a log without the frames of stack traces."""
    try:
        with log_file.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - 65536))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError as error:
        return f"(the log cannot be read: {error})"
    without_frames = [line for line in lines if line.strip() and not line.startswith("\t")]
    return "\n".join(without_frames[-_TAIL_LINES:]) or "(the log is empty)"
