"""The guardian process: kills process groups and removes directories once its parent is gone.

Run by path as a script, with the standard library alone, by `guardian.Guardian`. It reads commands from its standard
input, a JSON list a line (`["group", pid]`, `["forget", pid]`, `["directory", path]`, `["keep", path]`, `["end"]`), and
acts when the input ends. That happens whenever the parent dies, by SIGKILL too. A fork of the parent may hold the
other end of the pipe open, so the guardian also looks whether it still has the same parent. A SIGTERM to the guardian
itself (`pkill` by a path, the end of a session) is such an end as well.

And should the guardian be killed by SIGKILL, a second one does the work: the first starts it as its child, with the
same script, and passes on what it hears. So the brokers end with their guardian, whatever becomes of their parent.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import sys
import time

_ENDINGS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)


def main() -> None:
    groups: set[int] = set()
    directories: set[str] = set()
    ear, mouth = os.pipe()
    os.set_blocking(mouth, False)
    signal.set_wakeup_fd(mouth, warn_on_full_buffer=False)
    for number in _ENDINGS:
        signal.signal(number, lambda number, frame: None)  # what counts is the byte in the pipe
    second, pipe = _start_second() if len(sys.argv) == 2 else (0, -1)
    _listen(int(sys.argv[1]), ear, pipe, groups, directories)
    _kill(groups)
    for directory in directories:
        _remove(directory)
    if second:  # there is nothing left for it to do; numbers of processes are given again
        os.kill(second, signal.SIGKILL)
        os.waitpid(second, 0)


def _start_second() -> tuple[int, int]:
    """The second guardian: its process, and the pipe to its standard input."""
    hears, pipe = os.pipe()
    me = str(os.getpid())
    child = os.fork()
    if child == 0:
        os.dup2(hears, 0)
        os.execv(sys.executable, [sys.executable, "-I", "-S", __file__, me, "second"])
    os.close(hears)
    return child, pipe


def _listen(parent: int, ear: int, pipe: int, groups: set[int], directories: set[str]) -> None:
    """Note what the parent says and pass it on, until it is gone, has said that it is the end, or a signal has come."""
    pending = b""
    signalled = False
    while True:
        ready = select.select([0] if signalled else [0, ear], [], [], 0 if signalled else 0.5)[0]
        signalled = signalled or ear in ready  # what the parent has said before is still heard
        if 0 not in ready:
            if signalled or os.getppid() != parent:  # asked only when all that it said has been read
                return
            continue
        chunk = os.read(0, 65536)
        if not chunk:
            return
        if pipe >= 0:
            try:
                os.write(pipe, chunk)
            except OSError:  # somebody has killed the second
                pipe = -1
        *lines, pending = (pending + chunk).split(b"\n")
        if not all([_obey(json.loads(line), groups, directories) for line in lines]):
            return


def _obey(command: list[str | int], groups: set[int], directories: set[str]) -> bool:
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
            except (ProcessLookupError, PermissionError):  # macOS says the latter of a zombie
                groups.discard(group)
        time.sleep(0.02)


def _remove(directory: str) -> None:
    deadline = time.monotonic() + 10
    while os.path.isdir(directory) and time.monotonic() < deadline:  # noqa: PTH112
        shutil.rmtree(directory, ignore_errors=True)
        time.sleep(0.02)


if __name__ == "__main__":
    main()
