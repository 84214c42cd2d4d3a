"""Child processes that cannot outlive this one.

This module owns the guardian process, which ends them, and the pipe to it.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import IO

from .errors import BrokerError

_CHILD = Path(__file__).with_name("_child_main.py")
_GUARDIAN = Path(__file__).with_name("_guardian_main.py")


# Brokers must not survive the test run that started them, even if SIGKILL ends the run. Three
# independent mechanisms ensure that, since each has a gap:
#
# 1. atexit and context managers. They do nothing on SIGKILL.
# 2. A guardian process (_guardian_main.py). It notices the end of its standard input, kills the
#    process groups and removes the directories. A second guardian does the same if the first is
#    killed. Ctrl-C does not reach them: they have a session of their own.
# 3. On Linux, PR_SET_PDEATHSIG (_child_main.py). The kernel kills the child when the thread that
#    started it ends. This is all that remains when both guardians are killed.
#
# The signal of 3 follows the *thread* that called fork, not its process, and worker threads of an
# event loop end while the program continues. So a single thread that lives as long as the guardian
# starts all processes.
#
# A process must never run before the guardian knows it. The child therefore waits for a line on its
# standard input before it becomes the command. This process sends the child's id to the guardian
# first, and then writes the line. If it dies in between, the child reads the end of the input and
# exits.
class Spawner:
    """A thread that starts processes.

    The thread is a daemon: it ends with the whole process, or by :meth:`end`.
    """

    def __init__(self) -> None:
        self._wanted: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="trikafka-broker spawner", daemon=True).start()

    def start(self, make: Callable[[], subprocess.Popen[bytes]]) -> Future[subprocess.Popen[bytes]]:
        """Let the thread call `make`; return the future result.

        Do not call this after `end`: `make` would never run.
        """
        made: Future[subprocess.Popen[bytes]] = Future()

        def start() -> None:
            try:
                made.set_result(make())
            except BaseException as error:
                made.set_exception(error)

        self._wanted.put(start)
        return made

    def end(self) -> None:
        """End the thread, and with it all processes that it has started (Linux)."""
        self._wanted.put(None)

    def _run(self) -> None:
        while (start := self._wanted.get()) is not None:
            start()


class Guardian:
    """Process groups and directories that are gone at the latest when this process is.

    Safe to use from several threads. Start it before use and close it when done. Closing kills and
    removes everything that was not forgotten.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._directories: set[Path] = set()
        self._spawner: Spawner | None = None
        self._lock = threading.Lock()

    def start(self) -> None:
        """Start the guardian process, unless it is running."""
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(_GUARDIAN), str(os.getpid())],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # so that Ctrl-C does not reach it
                cwd="/",
            )

    def check(self) -> None:
        """Check that the guardian is alive.

        Raises:
            BrokerError: The guardian is gone. The processes that it guarded have ended with it.
        """
        process = self._process  # another thread may close this
        if process is not None and (code := process.poll()) is not None:
            raise BrokerError(
                f"The guardian process was ended from outside (code {code}); start a new cluster"
            )

    def spawn(
        self, command: Sequence[str], output: IO[bytes] | int, *, keep_open: Sequence[int] = ()
    ) -> subprocess.Popen[bytes]:
        """Run `command` as its own process group, with both outputs going to `output`.

        Args:
            command: The command.
            output: The destination of standard output and standard error.
            keep_open: File descriptors that the process inherits.

        Raises:
            BrokerError: The guardian is gone or was closed, perhaps by another thread at this
                moment. No process is left running.
        """

        def make() -> subprocess.Popen[bytes]:
            return subprocess.Popen(
                [sys.executable, "-I", "-S", str(_CHILD), str(os.getpid()), *command],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=keep_open,
            )

        with self._lock:
            if self._process is None:
                raise _closed()
            _wait_until_ready(self._process)
            self.check()
            spawner = self._spawner = self._spawner or Spawner()
            started = spawner.start(make)
        process = started.result()
        self._send("group", process.pid)
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError), process.stdin:
            # If the guardian was closed meanwhile, it may not know the process. So the process is
            # ended instead of getting its line.
            if self._process is None:
                process.kill()
                process.wait()
                raise _closed()
            process.stdin.write(b"go\n")
        return process

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """Kill the whole group of `process`, wait for its end, and forget it."""
        signal_group(process, signal.SIGKILL)
        process.wait()
        self.forget(process)

    def forget(self, process: subprocess.Popen[bytes]) -> None:
        """Stop guarding `process`, which has ended; its id may be reused."""
        self._send("forget", process.pid)

    def own_directory(self, path: Path) -> None:
        """Remove `path` at the end."""
        self._directories.add(path)
        self._send("directory", str(path))

    def disown_directory(self, path: Path) -> None:
        """Keep `path` after all."""
        self._directories.discard(path)
        self._send("keep", str(path))

    def close(self) -> None:
        """Make the guardian kill all processes and remove all directories; wait for that."""
        # With the lock, no other thread uses the pipes while they are closed.
        with self._lock:
            process = self._process
            if process is None:
                return
            _write(process, "end")
            self._process = None
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdout.close()
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        with self._lock:
            spawner = self._spawner
            self._spawner = None
        if spawner is not None:
            spawner.end()
        for path in self._directories:  # Only a guardian that was killed has left any.
            shutil.rmtree(path, ignore_errors=True)
        self._directories.clear()

    def _send(self, *command: str | int) -> None:
        """Send a command to the guardian process. No-op if it is gone."""
        with self._lock:
            if self._process is not None:
                _write(self._process, *command)


def _write(guardian: subprocess.Popen[bytes], *command: str | int) -> None:
    """Write a command to the guardian process. No-op if it is gone."""
    assert guardian.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        guardian.stdin.write(json.dumps(command).encode() + b"\n")
        guardian.stdin.flush()


def _wait_until_ready(guardian: subprocess.Popen[bytes]) -> None:
    """Wait until the guardian handles signals, or has ended."""
    assert guardian.stdout is not None
    if not guardian.stdout.closed:
        with guardian.stdout:
            ready = guardian.stdout.readline()
        if not ready:
            guardian.wait()


def _closed() -> BrokerError:
    return BrokerError("The cluster was closed; start a new one")


def signal_group(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """Send a signal to the group of a process from `Guardian.spawn`. No-op if it has ended."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
