"""The command as a process, for tests.

A process that does not end is killed, so that a test fails instead of hanging.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self

_LIMIT = 400.0


class Ended(NamedTuple):
    """A process that has ended."""

    code: int
    out: bytes
    err: str

    @property
    def lines(self) -> list[dict[str, Any]]:
        """The output as JSON lines."""
        return [json.loads(line) for line in self.out.splitlines()]


Command = Callable[..., Ended]
Send = Callable[..., None]


class Running:
    """A running ``trikafka`` process."""

    def __init__(
        self, *args: str, environment: Mapping[str, str] | None = None, **popen: Any
    ) -> None:
        environ = {**os.environ, **(environment or {})}
        pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "trikafka.cli", *args],
            env=environ,
            bufsize=0,
            **{**pipes, **popen},
        )
        self._watchdog = threading.Timer(_LIMIT, self.process.kill)
        self._watchdog.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._watchdog.cancel()
        self.process.kill()
        self.process.communicate()

    def line(self) -> bytes:
        """Return the next line of the output, empty at its end."""
        assert self.process.stdout is not None
        line: bytes = self.process.stdout.readline()
        return line

    def ended(self, data: bytes | None = None) -> Ended:
        """Write ``data`` to the standard input and wait for the end."""
        out, err = self.process.communicate(data)
        return Ended(self.process.returncode, out or b"", (err or b"").decode())


def trikafka(*args: str, data: bytes = b"", **more: Any) -> Ended:
    """Run the command to its end."""
    with Running(*args, **more) as running:
        return running.ended(data)


def fresh(what: str = "topic") -> str:
    """Return a name that no other test uses."""
    return f"cli-{what}-{uuid.uuid4().hex[:8]}"


def install(place: Path, group: str, points: Mapping[str, str], **modules: str) -> dict[str, str]:
    """Make a package with entry points in ``place``; return the environment variables to find it."""
    info = place / "toy-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toy\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        f"[{group}]\n" + "".join(f"{name} = {target}\n" for name, target in points.items())
    )
    for name, source in modules.items():
        (place / f"{name}.py").write_text(source)
    return {
        "PYTHONPATH": os.pathsep.join([str(place), *filter(None, [os.environ.get("PYTHONPATH")])])
    }
