"""The guardian process: kills process groups and removes directories once its parent is gone.

`guardian.Guardian` runs it by path as a script, with the standard library alone. It reads commands
from its standard input, one JSON list per line (`["group", pid]`, `["forget", pid]`, `["directory",
path]`, `["keep", path]`, `["end"]`). It acts when the input ends, which happens whenever the parent
dies, even by SIGKILL.

A fork of the parent may keep the other end of the pipe open, so the guardian also checks whether it
still has the same parent. A SIGTERM to the guardian itself (`pkill` by a path, the end of a
session) counts as an end as well.

If the guardian is killed by SIGKILL, a second one does the work. The first starts it as its child,
with the same script, and forwards all commands. So the brokers end with their guardian, whatever
happens to their parent.

A signal that comes before its handler is set would end the guardian without any of this. So it
writes a line when it is ready, and the parent starts no process before.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import sys
import time

_ENDINGS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)


def main() -> None:
    """Obey the parent until its end; then kill the groups and remove the directories."""
    groups: set[int] = set()
    directories: set[str] = set()
    wakeup_reader, wakeup_writer = os.pipe()
    os.set_blocking(wakeup_writer, False)
    signal.set_wakeup_fd(wakeup_writer, warn_on_full_buffer=False)
    for number in _ENDINGS:
        signal.signal(number, lambda number, frame: None)  # only the byte in the pipe matters
    second, pipe = 0, -1
    if len(sys.argv) == 2:
        second, pipe = _start_second()
        with contextlib.suppress(OSError):  # the parent is gone
            os.write(1, b"ready\n")
    _listen(int(sys.argv[1]), wakeup_reader, pipe, groups, directories)
    _kill(groups)
    for directory in directories:
        _remove(directory)
    if second:  # It has nothing left to do, and other processes may get the ids that it knows.
        os.kill(second, signal.SIGKILL)
        os.waitpid(second, 0)


def _start_second() -> tuple[int, int]:
    """Start the second guardian; return its process id and the pipe to its standard input."""
    child_input, pipe = os.pipe()
    me = str(os.getpid())
    child = os.fork()
    if child == 0:
        os.dup2(child_input, 0)
        os.execv(sys.executable, [sys.executable, "-I", "-S", __file__, me, "second"])
    os.close(child_input)
    return child, pipe


def _listen(
    parent: int, wakeup_reader: int, pipe: int, groups: set[int], directories: set[str]
) -> None:
    """Read and forward the parent's commands until its end.

    The end is the command `["end"]`, a signal, or the death of the parent.
    """
    pending = b""
    signalled = False
    while True:
        ready = select.select(
            [0] if signalled else [0, wakeup_reader], [], [], 0 if signalled else 0.5
        )[0]
        signalled = signalled or wakeup_reader in ready
        if 0 not in ready:
            # The end counts only now, when all commands that were sent before it have been read.
            if signalled or os.getppid() != parent:
                return
            continue
        chunk = os.read(0, 65536)
        if not chunk:
            return
        if pipe >= 0:
            try:
                os.write(pipe, chunk)
            except OSError:  # the second guardian was killed
                pipe = -1
        *lines, pending = (pending + chunk).split(b"\n")
        if not all(_obey(json.loads(line), groups, directories) for line in lines):
            return


def _obey(command: list[str | int], groups: set[int], directories: set[str]) -> bool:
    """Carry out one command; return False if it is the last."""
    match command:
        case ["group", int(pid)]:
            groups.add(pid)
        case ["forget", int(pid)]:
            groups.discard(pid)
        case ["directory", str(path)]:
            directories.add(path)
        case ["keep", str(path)]:
            directories.discard(path)
        case ["end"]:
            return False
    return True


def _kill(groups: set[int]) -> None:
    deadline = time.monotonic() + 10
    while groups and time.monotonic() < deadline:
        for group in list(groups):
            try:
                os.killpg(group, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):  # macOS raises the latter for a zombie
                groups.discard(group)
        time.sleep(0.02)


def _remove(directory: str) -> None:
    deadline = time.monotonic() + 10
    while os.path.isdir(directory) and time.monotonic() < deadline:
        shutil.rmtree(directory, ignore_errors=True)
        time.sleep(0.02)


if __name__ == "__main__":
    main()
