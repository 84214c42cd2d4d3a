"""The removed function ``sink_batches``. Its name goes with the next release."""

from __future__ import annotations

from typing import Any, NoReturn

from ..errors import ConfigurationError


async def sink_batches(*args: Any, **settings: Any) -> NoReturn:
    """Raise an error: this function was removed.

    The program ``examples/group_files.py`` writes the records of a group to files with
    :func:`run_tasks`, each record to one file.

    Raises:
        ConfigurationError: Always.
    """
    raise ConfigurationError(
        "sink_batches() was removed: examples/group_files.py writes the records of a group to "
        "files with run_tasks(batches=True); for files of a given size use export() or open_exporter()"
    )
