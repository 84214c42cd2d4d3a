"""One broker: its process and what can be done to it. Owns the process of a node, from its start to its end."""

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
#: For a broker that may have been allowed to end just before most of the others were gone.
_LAST_SECONDS = 3.0


class Launcher(Protocol):
    """What a broker asks its cluster for."""

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
    """One broker of a `KafkaCluster`, which makes it. Synchronous; one caller at a time.

    Its port and data stay the same over stop, kill and start.
    """

    def __init__(self, launcher: Launcher, node_id: int, ports: Mapping[str, int], directory: Path, log: Path) -> None:
        self.node_id = node_id
        self.host = HOST
        self.ports = dict(ports)  #: of each listener, by its name
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
        """Of the plain listener."""
        return self.ports["PLAINTEXT"]

    @property
    def bootstrap_servers(self) -> str:
        """`host:port` of this broker alone."""
        return f"{self.host}:{self.port}"

    @property
    def alive(self) -> bool:
        """Whether the process exists (it may be frozen)."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int | None:
        """The process, which leads a group of its own; None when there is none."""
        return self._process.pid if self._process is not None and self.alive else None

    def start(self) -> None:
        """Start, and wait until it serves clients. Nothing if it is alive.

        In a cluster it cannot serve while most of the others are down: `KafkaCluster.start` starts them together.
        Raises `BrokerStartError`; then, and when it is cancelled, the broker is down again.
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
        """Stop cleanly (SIGTERM); past the cluster's `stop_timeout` it is killed, and so it is 3 seconds after most of
        the cluster's brokers are down, without which it cannot stop cleanly. Nothing if it is down.

        Cancelled, it leaves the broker stopping.
        """
        self.ask_to_stop()
        self.await_end()

    def kill(self) -> None:
        """SIGKILL, and wait for the end of the process. Nothing if it is down."""
        if self._process is not None:
            self._launcher.guardian.kill(self._process)
        self._process = None
        self.frozen = False

    def freeze(self) -> None:
        """SIGSTOP: connections are still accepted by the kernel, nothing is answered."""
        if self.alive and self._process is not None:
            signal_group(self._process, signal.SIGSTOP)
            if hasattr(os, "waitid"):  # its threads stop one by one: until the last has, it may still answer
                os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
            self.frozen = True

    def thaw(self) -> None:
        """SIGCONT: go on where `freeze` has stopped it."""
        if self._process is not None:
            signal_group(self._process, signal.SIGCONT)
        self.frozen = False

    def restart(self) -> None:
        """`stop`, then `start`."""
        self.stop()
        self.start()

    # What follows is for the cluster, which does each step for all of its brokers before the next.

    def launch(self) -> None:
        """Start the process and do not wait."""
        self._launcher.guardian.check()  # before the log is opened, which the guardian may have removed
        with self.log_file.open("ab") as log:
            self._process = self._launcher.guardian.spawn(self._launcher.broker_command(self.node_id), log)

    def await_ready(self, nodes: frozenset[int]) -> None:
        """Wait until this broker answers and knows all of `nodes` as alive. Raises `BrokerStartError`."""
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
        """SIGTERM; a frozen broker is thawed, or it would not hear it."""
        self.thaw()
        if self._process is not None:
            signal_group(self._process, signal.SIGTERM)

    def await_end(self) -> None:
        """Wait for the process to end within the limit, then kill it.

        Before its end it asks the controllers, until they answer; so without most of them it would ask in vain.
        """
        limit = self._launcher.stop_timeout
        wait_until(lambda: not (self.alive and self._launcher.has_quorum), limit)
        wait_until(lambda: not self.alive, 0 if self._launcher.has_quorum else min(_LAST_SECONDS, limit))
        self.kill()

    def _fail(self, message: str) -> None:
        raise BrokerStartError(message, self.log_file, log_tail(self.log_file))


def log_tail(log_file: Path) -> str:
    """The last lines of a log, without the frames of stack traces."""
    try:
        with log_file.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - 65536))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError as error:
        return f"(it cannot be read: {error})"
    telling = [line for line in lines if line.strip() and not line.startswith("\t")]
    return "\n".join(telling[-_TAIL_LINES:]) or "(it is empty)"
