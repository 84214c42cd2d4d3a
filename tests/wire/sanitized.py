"""A Python with the compiled part built for the sanitizers.

``python tests/wire/sanitized.py tests/wire/fuzz.py --seconds 300`` runs a script, and ``-m pytest
tests/wire`` works as well. The program compiles ``_native.c``, which the installation left, with
gcc's address and undefined behaviour sanitizers. Each Python object gets a memory block of its own,
so an access beyond its end is detected and ends the run. Without gcc and its libraries the program
prints that and exits with code 3.
"""

import hashlib
import importlib.util
import os
import runpy
import subprocess
import sys
import sysconfig
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]
_SOURCE = _ROOT / "trikafka/_wire/_native.c"
_MODULE = "trikafka._wire._native"
#: Without optimization the compiler takes a third of the time, and the same inputs hardly longer:
#: most of their work is Python's.
_FLAGS = [
    "-O0",
    "-g1",
    "-fno-omit-frame-pointer",
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=all",
]
_MARK = "TRIKAFKA_SANITIZED"


class Missing(Exception):
    """A required program or file is not on this machine."""


def runtime() -> str:
    """Return the path of the address sanitizer's library."""
    try:
        found = subprocess.run(
            ["gcc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True
        ).stdout.strip()
    except FileNotFoundError:
        raise Missing("there is no gcc") from None
    if not os.path.isabs(found):
        raise Missing("gcc has no address sanitizer here")
    return found


def build() -> Path:
    """Compile unless this very source has been compiled; return the module's file."""
    if not _SOURCE.exists():
        raise Missing(f"{_SOURCE} is not there: install the package from source, with a C compiler")
    key = hashlib.sha256(_SOURCE.read_bytes() + " ".join(_FLAGS).encode()).hexdigest()[:16]
    module = (
        _ROOT / "build" / f"sanitized-{key}" / f"_native{sysconfig.get_config_var('EXT_SUFFIX')}"
    )
    if not module.exists():
        module.parent.mkdir(parents=True, exist_ok=True)
        made = module.with_suffix(f".{os.getpid()}")
        include = f"-I{sysconfig.get_paths()['include']}"
        subprocess.run(
            ["gcc", "-shared", "-fPIC", *_FLAGS, include, str(_SOURCE), "-o", str(made)], check=True
        )
        made.rename(module)
    return module


def environment(module: Path) -> dict[str, str]:
    """Return the environment variables of the run."""
    settings = {
        "LD_PRELOAD": runtime(),
        "ASAN_OPTIONS": "detect_leaks=0",
        "UBSAN_OPTIONS": "print_stacktrace=1",
    }
    return os.environ | settings | {"PYTHONMALLOC": "malloc", _MARK: str(module)}


def run_here(arguments: list[str]) -> None:
    """Run the script or module of the arguments with the compiled module in place."""
    spec = importlib.util.spec_from_file_location(_MODULE, os.environ[_MARK])
    assert spec is not None
    assert spec.loader is not None
    native = importlib.util.module_from_spec(spec)
    sys.modules[_MODULE] = native
    spec.loader.exec_module(native)
    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = arguments
        sys.path.insert(0, str(Path(arguments[0]).resolve().parent))
        runpy.run_path(arguments[0], run_name="__main__")


def main() -> None:
    arguments = sys.argv[1:] or sys.exit(__doc__)
    if _MARK in os.environ:
        run_here(arguments)
        return
    try:
        settings = environment(build())
    except Missing as error:
        print(f"no run under the sanitizers: {error}", file=sys.stderr)
        sys.exit(3)
    sys.exit(subprocess.run([sys.executable, __file__, *arguments], env=settings).returncode)


if __name__ == "__main__":
    main()
