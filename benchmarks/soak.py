"""Helpers of the soaks: seed, folder, timed output, and programs that are killed at the end."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

ROOT = Path(__file__).parents[1]


def seed_of(given: int | None) -> int:
    """Return the given seed, or a random one."""
    return random.SystemRandom().randrange(1_000_000) if given is None else given


@contextmanager
def folder(keep: Path | None) -> Iterator[Path]:
    """Yield ``keep``, created if missing, or a temporary folder."""
    with tempfile.TemporaryDirectory() as scratch:
        directory = keep or Path(scratch)
        directory.mkdir(parents=True, exist_ok=True)
        yield directory


def teller() -> Callable[[str], None]:
    """Return a function that prints a line after the seconds since this call."""
    begun = time.monotonic()
    return lambda line: print(f"{time.monotonic() - begun:6.1f} s  {line}", flush=True)


@contextmanager
def killed_at_the_end(
    command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program in its own process group, and append its output to ``log``.

    When the block is left, SIGKILL ends the whole group.
    """
    with log.open("ab") as out:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
