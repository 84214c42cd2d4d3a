"""The build of the compiled part, where Cython and a C compiler are available.

The compiled part is the record path in ``trikafka/_wire`` and the checksum. Without it the modules
``_fallback.py`` do the work. ``TRIKAFKA_PURE=1`` in the environment leaves the extension out. For a
run under the sanitizers ``tests/wire/sanitized.py`` compiles it once more.
"""

import os
import sys
from glob import glob

from setuptools import Extension, setup


def extensions() -> list[Extension]:
    if os.environ.get("TRIKAFKA_PURE") == "1":
        return []
    try:
        from Cython.Build import cythonize
    except ImportError:
        return []
    # Microsoft's compiler has no such options, and optimizes by default. Debugging information,
    # which Python's own flags ask for, takes a quarter of the compiler's time and changes no
    # instruction.
    options = [] if sys.platform == "win32" else ["-O3", "-g0"]
    # Each version of Python gets a wheel of its own. One for all of them (abi3) needs Cython's limited
    # API, with which the creation of ``Record`` objects takes a third longer.
    header = "trikafka/_checksum/crc32c.h"
    parts = [
        Extension(
            "trikafka._checksum._native",
            ["trikafka/_checksum/_native.pyx"],
            depends=[header],
            extra_compile_args=options,
        ),
        Extension(
            "trikafka._wire._native",
            ["trikafka/_wire/_native.pyx"],
            depends=[header, *sorted(glob("trikafka/_wire/_native_*.pxi"))],
            extra_compile_args=options,
        ),
    ]
    built: list[Extension] = cythonize(parts, language_level=3)
    for extension in built:
        extension.optional = True
    return built


setup(ext_modules=extensions())
