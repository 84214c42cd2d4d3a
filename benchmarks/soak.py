"""What the soaks have in common: a seed, a folder, the time before each line, programs that are killed with what they started."""

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
    """The seed that was asked for, or another one each time."""
    return random.SystemRandom().randrange(1_000_000) if given is None else given


@contextmanager
def folder(keep: Path | None) -> Iterator[Path]:
    """``keep``, made where it is missing, or a folder that goes at the end."""
    with tempfile.TemporaryDirectory() as scratch:
        directory = keep or Path(scratch)
        directory.mkdir(parents=True, exist_ok=True)
        yield directory


def teller() -> Callable[[str], None]:
    """Prints a line behind the seconds since it was made."""
    begun = time.monotonic()
    return lambda line: print(f"{time.monotonic() - begun:6.1f} s  {line}", flush=True)


@contextmanager
def killed_at_the_end(
    command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """The program in a process group of its own, with its output added to ``log``. SIGKILL ends the whole group."""
    with log.open("ab") as out:
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
        )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
