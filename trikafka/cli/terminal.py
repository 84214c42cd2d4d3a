"""The echo of a terminal, while a command asks for a password."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_STDIN = 0


# getpass switches the echo off and on again. Two things lie between, which it does not see:
#
# * Ctrl-Z stops the process while the echo is off, and leaves it off for programs that follow.
# * A shell that restores the echo leaves it on when the command continues. The password would then
#   be shown. A stop by SIGSTOP cannot be noticed, but the SIGCONT that follows can.
@contextmanager
def echo_off_while_running() -> Iterator[None]:
    """Return a context for prompts without an echo.

    The echo is on while the process is stopped and after the context, and off again when the
    process continues.
    """
    if sys.platform == "win32":  # no job control
        yield
        return
    import termios

    terminal = _opened()
    before = None
    with contextlib.suppress(termios.error):  # no terminal, so there is no echo
        before = termios.tcgetattr(terminal)
    if before is None:
        _close(terminal)
        yield
        return
    silent = before[:]
    silent[3] &= ~termios.ECHO

    def apply(settings: list[Any]) -> None:
        while True:
            try:
                termios.tcsetattr(terminal, termios.TCSADRAIN, settings)
            except termios.error as error:
                # A process in the background is stopped here, and goes on in the foreground.
                if error.args[0] == errno.EINTR:
                    continue
            return

    def suspend(number: int, frame: FrameType | None) -> None:
        apply(before)
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        signal.signal(number, suspend)
        # Not only after SIGCONT: the system ignores Ctrl-Z if no shell could continue the process.
        apply(silent)

    def resume(number: int, frame: FrameType | None) -> None:
        apply(silent)

    handlers = {signal.SIGTSTP: suspend, signal.SIGCONT: resume}
    old = {}
    try:
        for number, handler in handlers.items():
            # A shell without job control has its programs ignore Ctrl-Z.
            if signal.getsignal(number) is not signal.SIG_IGN:
                old[number] = signal.signal(number, handler)
        yield
    finally:
        for number, handler_before in old.items():
            signal.signal(number, handler_before)
        apply(before)
        _close(terminal)


def _opened() -> int:
    """Return the terminal as getpass finds it: the controlling one, or else the standard input."""
    with contextlib.suppress(OSError):
        return os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY)
    return _STDIN


def _close(terminal: int) -> None:
    if terminal != _STDIN:
        os.close(terminal)
