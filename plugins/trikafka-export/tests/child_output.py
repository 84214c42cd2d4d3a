"""Programs that tests start, and their output."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def group_of(command: Sequence[str], temporary: Path) -> Iterator[subprocess.Popen[str]]:
    """Run a program in a process group of its own, which is killed at the end."""
    temporary.mkdir(exist_ok=True)
    pipe, environment = subprocess.PIPE, os.environ | {"TMPDIR": str(temporary)}
    with subprocess.Popen(
        command, stdout=pipe, stderr=pipe, text=True, start_new_session=True, env=environment
    ) as process:
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def wait_for_line(process: subprocess.Popen[str], wanted: str) -> None:
    """Wait until the program prints the line. Fail with its errors if it ends before."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.strip() == wanted:
            return
    raise AssertionError("the program ended" if process.stderr is None else process.stderr.read())
