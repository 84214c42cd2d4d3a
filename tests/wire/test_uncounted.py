"""What all records refer to: without a GIL, threads that make records count no references to it."""

from __future__ import annotations

import subprocess
import sys
import sysconfig

PROGRAM = """
import sys, threading
from trikafka.types import TimestampType

def load():
    global records
    from trikafka._wire._implementation import current as records

def are_immortal():
    # Python has the function since 3.14.
    return [getattr(sys, "_is_immortal", lambda thing: False)(kind) for kind in TimestampType]

if IN_THREAD:
    thread = threading.Thread(target=load)
    thread.start()
    thread.join()
else:
    load()
print(are_immortal())
records.uncount_references()
records.uncount_references()
print(are_immortal())
"""
FREE_THREADED = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))


def printed(in_thread: bool) -> list[str]:
    program = PROGRAM.replace("IN_THREAD", str(in_thread))
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=180
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_no_count_after_the_import() -> None:
    assert printed(in_thread=False) == [str([FREE_THREADED] * 2)] * 2


def test_another_threads_objects_are_left_alone() -> None:
    """A client imports the compiled part in a thread. The loop's own thread then stops the count."""
    assert printed(in_thread=True) == [str([False] * 2), str([FREE_THREADED] * 2)]
