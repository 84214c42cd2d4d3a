"""For tests: looking for processes, and waiting for a condition."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path


def processes_naming(text: str) -> list[int]:
    """The processes whose command line contains `text`."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                command = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if text.encode() in command:
                found.append(int(entry.name))
    return found


def eventually(condition: Callable[[], bool], limit: float = 15) -> bool:
    """Whether the condition comes true within the limit."""
    deadline = time.monotonic() + limit
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True
