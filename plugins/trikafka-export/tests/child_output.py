"""The output of programs that tests start."""

from __future__ import annotations

import subprocess


def wait_for_line(process: subprocess.Popen[str], wanted: str) -> None:
    """Wait until the program prints the line. Fail with its errors if it ends before."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.strip() == wanted:
            return
    raise AssertionError("the program ended" if process.stderr is None else process.stderr.read())
