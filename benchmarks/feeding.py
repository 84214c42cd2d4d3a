"""Records that come while a case is measured, from a process of their own: what they cost is not the client's.

Standard library alone: every peer pays for this module.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from .jobs import Job, Missing

_ROOT = Path(__file__).resolve().parent.parent
_PATIENCE = 20.0
#: Neighbouring records go to partitions that are not neighbours: coprime to every number of partitions that is used.
_STRIDE = 7919
_BEGIN = b"begin\n"


class Feeder:
    """The process that writes ``job.rate`` records a second to the job's topic, over all of its partitions, once it is told to."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def begin(self) -> None:
        """Have it write from now on. Blocks until it is connected."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        if not self._process.stdout.readline():
            raise Missing("the process that writes the records could not: it needs confluent-kafka")
        self._process.stdin.write(_BEGIN)
        self._process.stdin.flush()


@contextmanager
def feeder(job: Job) -> Iterator[Feeder]:
    """A feeder that is connected while the case gets ready, and gone when the block is left."""
    command = [sys.executable, "-m", "benchmarks.child", replace(job, peer="confluent", kind="feed", way="one").to_json()]
    process = subprocess.Popen(command, cwd=_ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        yield Feeder(process)
    finally:
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_to_begin() -> None:
    """In the feeder: connected; wait for the word."""
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    os.read(sys.stdin.fileno(), len(_BEGIN))  # past Python's buffer, so that select() sees what comes after it


def paced(rate: int, partitions: int) -> Iterator[int]:
    """In the feeder: the partition of each record, at the moment when it is due, until its standard input is closed."""
    began = time.perf_counter()
    number = 0
    while True:
        left = began + number / rate - time.perf_counter()
        if select.select([sys.stdin], [], [], max(0.0, left))[0]:
            return
        yield number * _STRIDE % partitions
        number += 1
