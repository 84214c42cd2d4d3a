"""The first code of a guarded process: `_child_main.py PARENT COMMAND ...`, run by path.

The script waits for one line on its standard input before it becomes the command. A command
therefore never runs without the guardian's knowledge: if the parent dies before it has informed the
guardian, the line never arrives and the script exits.

The script also asks Linux to kill it when the thread that started it ends (PR_SET_PDEATHSIG). The
setting survives exec and covers the case that both guardians were killed.
"""

from __future__ import annotations

import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    parent = int(sys.argv[1])
    command = sys.argv[2:]
    if sys.platform == "linux":
        _die_with_parent()
    if os.getppid() != parent or not os.read(0, 1):
        sys.exit(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    # Python ignores these signals, and an ignored signal would be inherited by the command
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.exit(f"{command[0]}: {error.strerror}")


def _die_with_parent() -> None:
    try:
        from ctypes import CDLL

        CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    # a Python without ctypes: the guardians still kill the command
    except (ImportError, OSError, AttributeError):
        pass


if __name__ == "__main__":
    main()
