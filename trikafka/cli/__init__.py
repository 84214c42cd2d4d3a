"""The command ``trikafka``. One file a command; each is imported when it is used, for the command has to start fast."""

from __future__ import annotations

import signal
import sys
from importlib.util import find_spec
from typing import NoReturn


def main() -> NoReturn:
    """The console script."""
    # Python makes an exception of Ctrl-C, which is lost where it strikes in a destructor, as it does among the imports. Until Trio
    # listens (cli/running.py) nothing is open that would have to be closed: so the signal simply ends the process till then.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    if find_spec("click") is None:
        sys.exit(
            "Error: the command trikafka needs the packages of the extra 'cli': pip install 'trikafka[cli]' "
            "(from a clone: pip install '.[cli]')"
        )
    try:
        from .app import run

        code = run(sys.argv[1:])
    except KeyboardInterrupt:
        code = 130
    sys.exit(code)
