"""What a command leaves to the terminal when a signal ends or stops it."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

from trikafka.cli import terminal as prompting

if sys.platform == "win32":
    pytest.skip("no pseudo-terminals on Windows", allow_module_level=True)

import pty
import termios

#: A shell with job control, as far as these tests need one: it starts the command as a job in the
#: foreground, says when the job has stopped, and continues it after a line of its input.
SHELL = """
import fcntl, os, signal, subprocess, sys, termios
terminal, orders = 0, int(sys.argv[1])
fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)
signal.signal(signal.SIGTTOU, signal.SIG_IGN)
job = subprocess.Popen(
    [sys.executable, *sys.argv[2:]],
    process_group=0,
    restore_signals=True,
    preexec_fn=lambda: signal.signal(signal.SIGTTOU, signal.SIG_DFL),
)
os.tcsetpgrp(terminal, job.pid)
while True:
    _, status = os.waitpid(job.pid, os.WUNTRACED)
    if not os.WIFSTOPPED(status):
        os.write(orders, b"ended %d\\n" % os.waitstatus_to_exitcode(status))
        break
    os.tcsetpgrp(terminal, os.getpid())
    os.write(orders, b"stopped %d\\n" % job.pid)
    if not os.read(orders, 1):
        job.kill()
        break
    os.tcsetpgrp(terminal, job.pid)
    os.kill(job.pid, signal.SIGCONT)
"""
LIMIT = 240.0


def waited(true: Callable[[], bool]) -> bool:
    """Wait until ``true()`` holds; return whether it does."""
    until = time.monotonic() + LIMIT
    while not true() and time.monotonic() < until:
        os.sched_yield()
    return true()


class Terminal(NamedTuple):
    """A pseudo-terminal with a job in its foreground. ``orders`` is a socket to its shell."""

    ours: int
    theirs: int
    orders: Any

    def echoes(self) -> bool:
        return bool(termios.tcgetattr(self.theirs)[3] & termios.ECHO)

    def type(self, keys: bytes) -> None:
        os.write(self.ours, keys)

    def messages(self) -> list[bytes]:
        """Return the next words of the shell."""
        words: bytes = self.orders.recv(100)
        return words.split()

    def read_until(self, part: bytes) -> bytes:
        """Return what was printed, up to ``part`` and perhaps further."""
        found = b""
        while part not in found:
            assert select.select([self.ours], [], [], LIMIT)[0], found
            found += os.read(self.ours, 10_000)
        return found


@pytest.fixture
def opened() -> Iterator[Callable[..., Terminal]]:
    """Return a function that starts a Python program as a job in a new terminal."""
    import socket

    ours, theirs = pty.openpty()
    orders, far = socket.socketpair()
    orders.settimeout(LIMIT)
    shells: list[subprocess.Popen[bytes]] = []

    def start(*program: str) -> Terminal:
        shells.append(
            subprocess.Popen(
                [sys.executable, "-c", SHELL, str(far.fileno()), *program],
                stdin=theirs,
                stdout=theirs,
                stderr=theirs,
                start_new_session=True,
                pass_fds=[far.fileno()],
                env=os.environ | {"TERM": "xterm"},
            )
        )
        far.close()
        return Terminal(ours, theirs, orders)

    try:
        yield start
    finally:
        orders.close()  # the shell kills a stopped job
        os.close(ours)  # a running one gets SIGHUP
        os.close(theirs)
        for shell in shells:
            shell.wait(LIMIT)


def test_stopped_prompt_has_an_echo(opened: Callable[..., Terminal]) -> None:
    """Ctrl-Z at the password: other programs need the echo, and the password must not show."""
    terminal = opened("-m", "trikafka.cli", "users", "set", "bob")
    assert waited(lambda: not terminal.echoes())
    for _ in range(2):
        terminal.type(b"\x1a")  # Ctrl-Z
        what, job = terminal.messages()
        assert (what, terminal.echoes()) == (b"stopped", True)
        terminal.orders.send(b"c")
        assert waited(lambda: not terminal.echoes())
    os.kill(int(job), signal.SIGSTOP)
    assert terminal.messages()[0] == b"stopped"
    # What a shell does that looks after its terminal.
    settings = termios.tcgetattr(terminal.theirs)
    settings[3] |= termios.ECHO
    termios.tcsetattr(terminal.theirs, termios.TCSANOW, settings)
    terminal.orders.send(b"c")
    assert waited(lambda: not terminal.echoes())
    terminal.type(b"\x1c")  # Ctrl-\
    assert (terminal.messages(), terminal.echoes()) == ([b"ended", b"131"], True)


def test_missing_echo_leaves_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    """A /dev/tty without settings: its descriptor is closed, and errors have their own cause."""
    descriptor = os.open(os.devnull, os.O_RDWR)
    monkeypatch.setattr(prompting, "_opened", lambda: descriptor)
    with pytest.raises(ValueError, match="later") as caught, prompting.echo_off_while_running():
        raise ValueError("later")
    assert caught.value.__context__ is None
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


BAR = """
import signal
from trikafka.cli.progress import meter
with meter("reading", "records", 10) as show:
    show(5)
    signal.pause()
"""


@pytest.mark.parametrize(
    ("name", "what"), [("SIGKILL", b"ended"), ("SIGTERM", b"ended"), ("SIGSTOP", b"stopped")]
)
def test_signal_leaves_the_cursor(opened: Callable[..., Terminal], name: str, what: bytes) -> None:
    """A progress bar once hid the cursor, and a second Ctrl-C then left it hidden."""
    terminal = opened("-c", BAR.replace("signal.pause()", f"signal.raise_signal(signal.{name})"))
    assert terminal.messages()[0] == what
    printed = terminal.read_until(b"reading")
    while select.select([terminal.ours], [], [], 0)[0]:
        printed += os.read(terminal.ours, 10_000)
    # What hides (l) or shows (h) the cursor; the last one counts.
    assert re.findall(rb"\x1b\[\?25([lh])", printed)[-1:] in ([], [b"h"])
