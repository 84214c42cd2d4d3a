"""Ctrl-C among the command's imports, even in a destructor, where Python loses exceptions."""

from __future__ import annotations

import subprocess
import sys

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
    program = PROGRAM.replace("STRIDE", "37")
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=180
    )
    assert done.returncode == 0, done.stderr
    *interrupted, last = [tuple(map(int, line.split())) for line in done.stdout.splitlines()]
    assert last[1] == 1
    assert last[0] > 300
    assert not [(moment, code) for moment, code in interrupted if code not in (-2, 130)]
    assert "Traceback" not in done.stderr
    assert "ignored" not in done.stderr
