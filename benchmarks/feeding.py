"""Records that arrive while a case is measured, written by a separate process.

The separate process keeps their cost out of the client's figures. Only the standard library is used
here: every peer pays for this module.
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
_PATIENCE = 120.0
#: The distance between the partitions of two consecutive records. It is coprime to every number of
#: partitions in use, so all partitions get records.
_STRIDE = 7919
_BEGIN = b"begin\n"


class Feeder:
    """The process that writes ``job.rate`` records per second, over all partitions of the topic.

    It writes nothing until ``begin`` is called.
    """

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def begin(self) -> None:
        """Start the writing. Block until the process is connected."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        if not self._process.stdout.readline():
            raise Missing("the process that writes the records could not: it needs confluent-kafka")
        self._process.stdin.write(_BEGIN)
        self._process.stdin.flush()


@contextmanager
def feeder(job: Job) -> Iterator[Feeder]:
    """Run a feeder, which connects while the case prepares, and end it when the block is left."""
    command = [
        sys.executable,
        "-m",
        "benchmarks.child",
        replace(job, peer="confluent", kind="feed", way="one").to_json(),
    ]
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
    """In the feeder: report that it is connected, and wait for the start."""
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    # Read past Python's buffer, so that select() sees what comes after the word.
    os.read(sys.stdin.fileno(), len(_BEGIN))


def paced(rate: int, partitions: int) -> Iterator[int]:
    """In the feeder: yield the partition of each record when it is due.

    The iteration ends when standard input is closed.
    """
    began = time.perf_counter()
    number = 0
    while True:
        left = began + number / rate - time.perf_counter()
        if select.select([sys.stdin], [], [], max(0.0, left))[0]:
            return
        yield number * _STRIDE % partitions
        number += 1
