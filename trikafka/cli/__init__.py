"""The command ``trikafka``. One file a command; each is imported when it is used, for the command has to start fast."""

from __future__ import annotations

import sys
from typing import NoReturn


def main() -> NoReturn:
    """The console script."""
    from .app import run

    sys.exit(run(sys.argv[1:]))
