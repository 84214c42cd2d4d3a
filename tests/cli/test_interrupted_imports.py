"""Ctrl-C among the command's imports, even in a destructor, and at its prompt."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import Any

import pytest
from commanding import Running

PROGRAM = """
import os, signal, sys
from trikafka.cli import main

class Dropped:
    def __del__(self):
        signal.raise_signal(signal.SIGINT)

def command(moment):
    seen = 0
    def hook(event, args):
        nonlocal seen
        if event == "import":
            seen += 1
            if seen == moment:
                Dropped()
    sys.addaudithook(hook)
    sys.argv[1:] = ["consume", "t", "-b", "127.0.0.1:1"]
    main()

moment = 1
while True:
    child = os.fork()
    if child == 0:
        command(moment)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print(moment, code, flush=True)
    if code == 1:  # all imports are done: the connection is refused
        break
    moment += STRIDE
"""


def test_interrupt_at_many_moments_ends_it() -> None:
    program = PROGRAM.replace("STRIDE", "89")
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    *interrupted, last = [tuple(map(int, line.split())) for line in done.stdout.splitlines()]
    assert last[1] == 1
    assert last[0] > 300
    assert not [(moment, code) for moment, code in interrupted if code not in (-2, 130)]
    assert "Traceback" not in done.stderr
    assert "ignored" not in done.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="no pseudo-terminals on Windows")
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT"])
def test_interrupted_prompt_restores_the_echo(name: str) -> None:
    import pty
    import termios

    def echoes() -> bool:
        return bool(termios.tcgetattr(terminal)[3] & termios.ECHO)

    ours, terminal = pty.openpty()
    streams: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), terminal)
    try:
        with Running("users", "set", "bob", start_new_session=True, **streams) as running:
            until = time.monotonic() + 240
            while echoes() and time.monotonic() < until:
                time.sleep(0.01)
            assert not echoes()
            running.process.send_signal(number := getattr(signal, name))
            assert (running.process.wait(240), echoes()) == (128 + number, True)
    finally:
        os.close(ours)
        os.close(terminal)
