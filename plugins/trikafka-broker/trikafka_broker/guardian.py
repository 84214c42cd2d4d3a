"""Starts processes that cannot outlive this one. Owns the guardian process and the pipe to it.

Nothing may be left behind even if this process is killed by SIGKILL, so the cleaning cannot be done here alone: a
second, tiny process does it (`_guardian_main.py`). On Linux what was started also ends with this process by itself
(PR_SET_PDEATHSIG, `_child_main.py`): that is all that is left when the guardians are killed as well. The signal follows
the *thread* that started the child, and worker threads of an event loop end while the program goes on; so one thread,
which lives until the end, starts them all.
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


class Spawner:
    """A thread that starts processes. It is a daemon: it ends when the whole process does, or by :meth:`end`."""

    def __init__(self) -> None:
        self._wanted: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="trikafka-broker spawner", daemon=True).start()

    def start(self, make: Callable[[], subprocess.Popen[bytes]]) -> Future[subprocess.Popen[bytes]]:
        """Have the thread call `make`; what it will return or raise. Not after `end`, when nobody would."""
        made: Future[subprocess.Popen[bytes]] = Future()

        def start() -> None:
            try:
                made.set_result(make())
            except BaseException as error:
                made.set_exception(error)

        self._wanted.put(start)
        return made

    def end(self) -> None:
        """End the thread, and so all that it has started."""
        self._wanted.put(None)

    def _run(self) -> None:
        while (start := self._wanted.get()) is not None:
            start()


class Guardian:
    """Process groups and directories that go away with this process at the latest.

    Safe to use from several threads. Start it before use, close it when done; closing kills and removes all that was
    not forgotten.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._directories: set[Path] = set()
        self._spawner: Spawner | None = None
        self._lock = threading.Lock()

    def start(self) -> None:
        """Start the guardian process, unless it runs already."""
        if self._process is None:
            script = Path(__file__).with_name("_guardian_main.py")
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(script), str(os.getpid())],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is not for it
                cwd="/",
            )

    def check(self) -> None:
        """Raises `BrokerError` if the guardian is gone; then all that it guarded is gone as well, or about to go."""
        if self._process is not None and self._process.poll() is not None:
            code = self._process.returncode
            raise BrokerError(f"The guardian process was ended by somebody (code {code}); start a new cluster")

    def spawn(
        self, command: Sequence[str], output: IO[bytes] | int, *, keep_open: Sequence[int] = ()
    ) -> subprocess.Popen[bytes]:
        """Run `command` as a process group of its own, with both its outputs going to `output`.

        It inherits the descriptors `keep_open` and no others. Raises `BrokerError` if the guardian is gone or was
        closed, perhaps by another thread at this moment: nothing is started that nobody would end.
        """
        self.check()

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
            spawner = self._spawner = self._spawner or Spawner()
            started = spawner.start(make)
        process = started.result()
        self._tell("group", process.pid)
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError), process.stdin:
            if self._process is None:  # the guardian may not have heard of it: it ends without its line
                process.kill()
                process.wait()
                raise _closed()
            process.stdin.write(b"go\n")
        return process

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """SIGKILL the whole group of `process`, wait for it and forget it."""
        signal_group(process, signal.SIGKILL)
        process.wait()
        self.forget(process)

    def forget(self, process: subprocess.Popen[bytes]) -> None:
        """`process` has ended; its number may soon be another's."""
        self._tell("forget", process.pid)

    def own_directory(self, path: Path) -> None:
        """Remove `path` at the end."""
        self._directories.add(path)
        self._tell("directory", str(path))

    def disown_directory(self, path: Path) -> None:
        """Leave `path` alone after all."""
        self._directories.discard(path)
        self._tell("keep", str(path))

    def close(self) -> None:
        """Let the guardian kill and remove what is left, and wait until it has."""
        process = self._process
        if process is None:
            return
        self._tell("end")
        self._process = None
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        with self._lock:
            spawner, self._spawner = self._spawner, None
        if spawner is not None:
            spawner.end()
        for path in self._directories:  # there is something only if the guardian was killed
            shutil.rmtree(path, ignore_errors=True)
        self._directories.clear()

    def _tell(self, *command: str | int) -> None:
        process = self._process
        if process is None:
            return
        assert process.stdin is not None
        with self._lock, contextlib.suppress(BrokenPipeError):
            process.stdin.write(json.dumps(command).encode() + b"\n")
            process.stdin.flush()


def _closed() -> BrokerError:
    return BrokerError("The cluster was closed; start a new one")


def signal_group(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """Send a signal to the whole group of a process that `Guardian.spawn` started; nothing if it has ended."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
