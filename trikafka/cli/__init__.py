"""The command ``trikafka``.

Each command is a file of its own and is imported when it is used, so that the command starts
quickly. Plugins add commands by the hook ``trikafka_command``. Their commands may use the modules
``admin``, ``options``, ``progress``, ``running``, ``start`` and ``tables`` of this package.
"""

from __future__ import annotations

import gc
import signal
import sys
from importlib.util import find_spec
from typing import NoReturn


def main() -> NoReturn:
    """Run the console script and exit."""
    # Python turns Ctrl-C into an exception. An exception in a destructor is only printed and the
    # program continues. The imports run many destructors, so the first Ctrl-C could be lost there.
    # Until Trio receives signals (cli/running.py) nothing is open that would have to be closed, so
    # the default action of the signal ends the process.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    # The imports make a hundred thousand objects that stay. With Python's threshold of 700 the
    # collector would look through them again and again, a fifth of the time of a short command.
    gc.set_threshold(50_000, 10, 10)
    if find_spec("click") is None:
        sys.exit(
            "Error: the command trikafka needs the packages of the extra 'cli': pip install "
            "'trikafka[cli]' (from a clone: pip install '.[cli]')"
        )
    try:
        from .app import run

        code = run(sys.argv[1:])
    except KeyboardInterrupt:
        code = 130
    sys.exit(code)
