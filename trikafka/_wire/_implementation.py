"""The choice of the record path: the compiled ``_native`` if it was built, else ``_fallback``.

``TRIKAFKA_PURE=1`` in the environment forces the fallback. Only the tests of the record path call
:func:`use`.

The compiled part does the work that is done for each record: reading and writing varints, filling
columns, making ``Record`` objects, hashing keys. Everything that is decided once for a batch or a
request stays in Python (``records.py``). Without the compiled part trikafka handles records at
about a twentieth of the speed. Both parts give the same bytes, values and errors: the tests of the
record path run on both, and ``_fallback`` documents what each function does.
"""

from __future__ import annotations

import importlib
import os
import warnings
import zipimport
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trikafka.errors import CompiledPartWarning


def _load(name: str) -> Any:
    module = {"native": "trikafka._wire._native", "pure": "trikafka._wire._fallback"}[name]
    return importlib.import_module(module)


def available() -> tuple[str, ...]:
    """Return the names of the implementations that can be imported here."""
    names = []
    for name in ("native", "pure"):
        try:
            _load(name)
        except ImportError:
            continue
        names.append(name)
    return tuple(names)


def use(name: str) -> str:
    """Switch to the implementation ``name`` and return the name of the previous one."""
    global current, name_in_use
    before = name_in_use
    current = _load(name)
    name_in_use = name
    return before


def _why(error: ImportError, root: Path = Path(__file__).parents[2]) -> str:
    """Return why the compiled part is missing; ``root`` is the folder that has the package."""
    if isinstance(getattr(__spec__, "loader", None), zipimport.zipimporter):
        return (
            "it is in a zip archive, from which nothing compiled can be loaded; ship an unpacked "
            "environment instead"
        )
    if isinstance(error, ModuleNotFoundError) and error.name == "trikafka._wire._native":
        # Python looks into the folder of the program first, so a program in a clone imports the
        # source, even if trikafka is installed.
        if (root / "setup.py").is_file():
            return (
                f"it was not built in the clone {root}, from which this program imports trikafka; "
                "save the program elsewhere, or build there: python setup.py build_ext --inplace"
            )
        return "it was not built: there was no Cython or no C compiler when trikafka was installed"
    return f"it cannot be loaded: {error}"


def warn_if_missing(stacklevel: int) -> None:
    """Warn once if the compiled part is not in use and TRIKAFKA_PURE=1 did not ask for that.

    ``stacklevel`` as for :func:`warnings.warn`.
    """
    global _warned
    if missing is not None and not _warned:
        _warned = True
        text = (
            "trikafka runs without its compiled part, at about a twentieth of the speed with "
            f"records; {missing}"
        )
        warnings.warn(
            f"{text} (TRIKAFKA_PURE=1 says that it is meant)",
            CompiledPartWarning,
            stacklevel=stacklevel + 1,
        )


_warned = False
#: The reason why the compiled part is not in use; ``None``: it is in use.
missing: str | None = None
name_in_use = "pure"
if TYPE_CHECKING:
    # Type checkers see the one of the two modules that has types.
    from trikafka._wire import _fallback

    current = _fallback
elif os.environ.get("TRIKAFKA_PURE") == "1":
    current = _load("pure")
    missing = "TRIKAFKA_PURE=1 is in the environment"
    _warned = True
else:
    try:
        current = _load("native")
        name_in_use = "native"
    except ImportError as error:
        current = _load("pure")
        missing = _why(error)
