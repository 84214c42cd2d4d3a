"""A Spark cluster of a master and two workers, as processes of this machine, and its packages."""

from __future__ import annotations

import os
import signal
import subprocess
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pyspark
import trikafka_export
import trikafka_spark
from trikafka_broker.ports import Ports

import trikafka

HOME = Path(pyspark.__file__).parent


class Standalone:
    """The processes of the cluster, and the address of the master."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.master = ""
        self._processes: list[subprocess.Popen[bytes]] = []
        self._ports = Ports()

    def start(self) -> None:
        """Start the master and two workers together, and wait until the master knows both."""
        port = str(self._ports.take())
        self.master = f"spark://127.0.0.1:{port}"
        log = self._run(
            "master", "master.Master", "--host", "127.0.0.1", "--port", port, "--webui-port", "0"
        )
        for number in range(2):
            work = (
                "--work-dir",
                str(self.directory / f"work-{number}"),
                "--cores",
                "1",
                "--memory",
                "1g",
            )
            self._run(
                f"worker-{number}",
                "worker.Worker",
                "--host",
                "127.0.0.1",
                "--webui-port",
                "0",
                *work,
                self.master,
            )
        until = time.monotonic() + 600
        while log.read_text(errors="replace").count("Registering worker") < 2:
            assert time.monotonic() < until, log.read_text(errors="replace")
            time.sleep(0.05)

    def stop(self) -> None:
        """Kill all of them; executors end with their workers."""
        for process in reversed(self._processes):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        self._ports.release()

    def executors(self) -> list[int]:
        """Return the process ids of the running executors."""
        found, groups = [], {process.pid for process in self._processes}
        for entry in Path("/proc").iterdir():
            with suppress(OSError):
                line = (entry / "cmdline").read_bytes() if entry.name.isdigit() else b""
                if (
                    b"CoarseGrainedExecutorBackend" in line
                    and os.getpgid(int(entry.name)) in groups
                ):
                    found.append(int(entry.name))
        return found

    def _run(self, name: str, cls: str, *arguments: str) -> Path:
        """Run a process in its own group, in an environment that does not know this repository."""
        log = self.directory / f"{name}.log"
        environment = {
            key: value
            for key, value in os.environ.items()
            if key not in ("PYTHONPATH", "PYSPARK_PYTHON")
        }
        environment |= {
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_HOME": str(HOME),
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        # Set by quick_spark.py.
        environment["SPARK_DAEMON_JAVA_OPTS"] = os.environ.get("SPARK_SUBMIT_OPTS", "")
        command = [str(HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{cls}", *arguments]
        with log.open("wb") as out:
            process = subprocess.Popen(
                command,
                env=environment,
                stdout=out,
                stderr=out,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        self._processes.append(process)
        return log


@contextmanager
def standalone(directory: Path) -> Iterator[Standalone]:
    """Run a cluster, which is killed at the end."""
    cluster = Standalone(directory)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


def zipped(path: Path) -> Path:
    """Zip the pure part of trikafka and of its Spark plugin, as users do for ``--py-files``."""
    with zipfile.ZipFile(path, "w") as archive:
        for package in (
            Path(trikafka.__file__).parent,
            *map(Path, trikafka_export.__path__),
            *map(Path, trikafka_spark.__path__),
            _auto(),
        ):
            for file in sorted(package.rglob("*")):
                if file.is_file() and file.suffix not in (".pyc", ".so", ".c"):
                    archive.write(file, file.relative_to(package.parent))
    return path


def _auto() -> Path:
    """Return the package by which Spark finds the data source."""
    return Path(trikafka_spark.__path__[0]).parent / "pyspark_trikafka"
