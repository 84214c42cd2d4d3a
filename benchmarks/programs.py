"""The programs of the peers that are not Python.

They are compiled once into the environment's folder, and each job runs one as a process. Only the
standard library is used here. The program is the measured process; this module only starts it.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .jobs import Job, Missing, Outcome, Window, make_values
from .pace import Pace

_PEERS = Path(__file__).resolve().parent / "peers"
_BUILD_LIMIT, _RUN_LIMIT = 600.0, 500.0


def franz() -> list[str]:
    """Return the command of the franz-go peer, built if necessary.

    Raises:
        Missing: There is no Go, or its build failed.
    """
    go = shutil.which("go")
    if go is None:
        raise Missing("franz-go is a Go library, and there is no Go here")
    source = _PEERS / "franz_go"
    folder = _folder("franz-go", source)
    program = folder / "franz-go"
    if not program.exists():
        scratch = folder / "building"
        _compile([go, "build", "-o", str(scratch), "."], source)
        scratch.replace(program)
    return [str(program)]


def java() -> list[str]:
    """Return the command of the Java peer with the broker's jars, built if necessary.

    Raises:
        Missing: There is no Java compiler, or the build failed.
    """
    from trikafka_broker import BrokerError, fetch_jars
    from trikafka_broker.java import find_java

    compiler = shutil.which("javac")
    if compiler is None:
        raise Missing("the Java client's program must be compiled, and there is no javac here")
    try:
        path = f"{fetch_jars()}/*"
        run = str(find_java())
    except BrokerError as error:
        raise Missing(str(error)) from error
    source = _PEERS / "java_client"
    folder = _folder("java", source)
    if not (folder / "Client.class").exists():
        _compile([compiler, "-cp", path, "-d", str(folder), "Client.java"], source)
    return [run, "-Xmx1g", "-cp", f"{folder}:{path}", "Client"]


def librdkafka() -> list[str]:
    """Return the command of the librdkafka peer with the library, built if necessary.

    Raises:
        Missing: There is no librdkafka or C compiler, or the build failed.
    """
    compiler = shutil.which("cc")
    if compiler is None:
        raise Missing(
            "the program that calls librdkafka must be compiled, and there is no C compiler here"
        )
    found = importlib.util.find_spec("confluent_kafka")
    place = (
        Path(found.origin).parent.parent
        if found is not None and found.origin is not None
        else Path()
    )
    libraries = sorted(place.glob("confluent_kafka.libs/librdkafka*"))
    if not libraries:
        raise Missing("confluent-kafka brings no librdkafka of its own here")
    source = _PEERS / "librdkafka_c"
    folder = _folder("librdkafka", source)
    program = folder / "producer"
    if not program.exists():
        scratch = folder / "building"
        _compile([compiler, "-O2", "-o", str(scratch), "producer.c", "-ldl"], source)
        scratch.replace(program)
    return [str(program), str(libraries[0])]


#: Peer -> the function that returns the command of its program.
PROGRAMS: dict[str, Callable[[], list[str]]] = {
    "franz": franz,
    "java": java,
    "librdkafka": librdkafka,
}


def _folder(name: str, source: Path) -> Path:
    """Return the folder for what is built from the sources. Changed sources have another folder."""
    digest = hashlib.sha256()
    for file in sorted(source.iterdir()):
        digest.update(file.read_bytes())
    folder = Path(sys.prefix) / "trikafka-benchmarks" / f"{name}-{digest.hexdigest()[:12]}"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _compile(command: list[str], source: Path) -> None:
    try:
        done = subprocess.run(
            command, cwd=source, capture_output=True, text=True, timeout=_BUILD_LIMIT
        )
    except subprocess.TimeoutExpired:
        raise Missing(f"{Path(command[0]).name} was not done after {_BUILD_LIMIT:.0f} s") from None
    if done.returncode:
        words = done.stderr.strip().splitlines() or ["it said nothing"]
        raise Missing(f"{Path(command[0]).name} failed: {words[-1]}")


class _ReportedWindow(Window):
    """The measurements that a program made of itself, in place of a window."""

    def __init__(self, found: dict[str, Any]) -> None:
        super().__init__()
        self._found = found

    def figures(self) -> dict[str, float]:
        return {
            name: self._found[name] for name in ("seconds", "cpu_seconds", "rss_before", "rss_peak")
        }


def _as_json(order: dict[str, Any]) -> list[str]:
    return [json.dumps(order)]


def outcome(
    command: list[str],
    job: Job,
    settings: dict[str, Any],
    call: str,
    given: Callable[[dict[str, Any]], list[str]] = _as_json,
    pace: Pace | None = None,
) -> tuple[Outcome, dict[str, Any]]:
    """Run a job. The second result is the program's whole answer.

    Args:
        command: The command of the program.
        job: The job.
        settings: The client's settings.
        call: The client's functions that the program calls.
        given: Makes the program's arguments from its order.
        pace: A timer that becomes the program's standard input.

    Raises:
        RuntimeError: The program failed. The error has the last line of its output.
    """
    with tempfile.TemporaryDirectory() as scratch:
        values = Path(scratch) / "values"
        if job.kind == "produce":
            values.write_bytes(b"".join(make_values(job.size)))
        order = {**json.loads(job.to_json()), "settings": settings, "values": str(values)}
        arguments = [*command, *given(order)]
        stdin = None if pace is None else pace.fileno()
        done = subprocess.run(
            arguments, stdin=stdin, capture_output=True, text=True, timeout=_RUN_LIMIT
        )
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        words = [
            line for line in done.stderr.strip().splitlines() if not line.startswith("\tat ")
        ] or ["it said nothing"]
        raise RuntimeError(f"exit code {done.returncode}: {words[-1]}")
    found: dict[str, Any] = json.loads(lines[-1])
    count = found["records"]
    return Outcome(
        count,
        found["value_bytes"],
        _ReportedWindow(found),
        call,
        settings,
        found.get("latencies", []),
    ), found
