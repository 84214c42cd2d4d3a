"""Builds the compiled record path (``trikafka/_wire/_native.pyx``) where Cython and a C compiler are at hand.

Without them the package is installed all the same, and ``trikafka/_wire/_fallback.py`` does the work. In the environment,
``TRIKAFKA_PURE=1`` leaves the extension out. For a run under the sanitizers ``tests/wire/sanitized.py`` compiles it once more.
"""

import os
from glob import glob

from setuptools import Extension, setup


def extensions() -> list[Extension]:
    if os.environ.get("TRIKAFKA_PURE") == "1":
        return []
    try:
        from Cython.Build import cythonize
    except ImportError:
        return []
    native = Extension(
        "trikafka._wire._native",
        ["trikafka/_wire/_native.pyx"],
        depends=sorted(glob("trikafka/_wire/_native_*.pxi")),
        extra_compile_args=["-O3"],
    )
    built: list[Extension] = cythonize([native], language_level=3)
    for extension in built:
        extension.optional = True
    return built


setup(ext_modules=extensions())
