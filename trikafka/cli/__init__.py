"""The command ``trikafka``. One file a command; each is imported when it is used, for the command has to start fast."""

from __future__ import annotations

import sys
from typing import NoReturn


def main() -> NoReturn:
    """The console script."""
    try:
        from .app import run

        code = run(sys.argv[1:])
    except KeyboardInterrupt:
        code = 130
    sys.exit(code)
