"""The import of kafka-python, whose protocol layer trikafka uses, and a lock for its decoders.

:func:`allow_schemas` runs before the first ``import kafka....`` of each room.
"""

from __future__ import annotations

import os
import sys
import threading
import warnings

#: Held while kafka-python writes a decoder: see ``decoder_of`` in ``_wire/messages.py``.
writing_decoder = threading.Lock()
if hasattr(os, "register_at_fork"):
    # A thread of the parent may hold the lock.
    os.register_at_fork(after_in_child=writing_decoder._at_fork_reinit)  # type: ignore[attr-defined]


def allow_schemas() -> None:
    """Let message classes be made where warnings are errors.

    Each message class of kafka-python reads its schema by ``importlib.resources.read_text``, which
    Python 3.11 and 3.12 deprecate (3.13 does not). So under ``-W error`` no client could be opened.
    The filter names the two modules that the warning is about, and no others. It is set again
    before each import of message classes, because a test runner may reset all filters. The first
    import runs the body of the package ``kafka``, which makes all of kafka-python's messages.
    """
    if sys.version_info < (3, 13):
        warnings.filterwarnings(
            "ignore",
            r"(read|open)_text is deprecated",
            DeprecationWarning,
            r"kafka\.protocol\.schemas\.load_json|importlib\.resources\._legacy",
        )
