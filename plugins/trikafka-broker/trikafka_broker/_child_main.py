"""What a guarded command is before it is that command: `_child_main.py PARENT COMMAND ...`, run by path as a script.

It waits for one line on its standard input before it becomes the command. So a command never runs that the guardian
does not know of: should the parent die in between, the line never comes and this ends. And it has Linux kill it when
the thread that started it ends (PR_SET_PDEATHSIG), which holds for the command: where both guardians were killed nobody
else would.
"""

from __future__ import annotations

import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    parent, command = int(sys.argv[1]), sys.argv[2:]
    if sys.platform == "linux":
        _die_with_parent()
    if os.getppid() != parent or not os.read(0, 1):
        sys.exit(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # which Python ignores, and the command is not to inherit that
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.exit(f"{command[0]}: {error.strerror}")


def _die_with_parent() -> None:
    try:
        from ctypes import CDLL

        CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    except (ImportError, OSError, AttributeError):  # a Python without ctypes: there are the guardians
        pass


if __name__ == "__main__":
    main()
