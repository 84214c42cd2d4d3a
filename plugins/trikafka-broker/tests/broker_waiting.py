"""Helpers of tests: the command, a search for processes, and waits for a condition."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

COMMAND = [sys.executable, "-c", "from trikafka_broker.cli import main; main()"]


def processes_naming(text: str) -> list[int]:
    """Return the processes whose command line contains `text`."""
    processes = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return [each for each in processes if each != os.getpid() and text in command_line(each)]


def command_line(process: int) -> str:
    """Return the arguments of a process, each with a NUL behind it; none if it has ended."""
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return ""


def only_process_naming(text: str) -> int:
    """Wait until one process has a command line with `text`; return it.

    A process that was just forked has the command line of its parent.
    """
    found: list[int] = []

    def one() -> bool:
        found[:] = processes_naming(text)
        return len(found) == 1

    assert eventually(one), found
    return found[0]


def eventually(condition: Callable[[], bool], limit: float = 400) -> bool:
    """Return whether the condition becomes true within the limit."""
    deadline = time.monotonic() + limit
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


@contextmanager
def running(command: list[str]) -> Iterator[subprocess.Popen[str]]:
    """Run a child process, which is killed at the end with all its forks."""
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, start_new_session=True
    )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()
