"""``scripts/environment.py``: a running program keeps its environment, and the locked versions fit."""

from __future__ import annotations

import fcntl
import os
import py_compile
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement

ROOT = Path(__file__).parent.parent


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Make a repository with an environment of one program.

    The program prints a line, and ends with its standard input.
    """
    (tmp_path / "scripts").mkdir()
    shutil.copy(ROOT / "scripts" / "environment.py", tmp_path / "scripts")
    program = tmp_path / ".venv-test" / "bin" / "program"
    program.parent.mkdir(parents=True)
    program.write_text('#!/bin/sh\necho "runs with $*"\nread -r end\nexit 7\n')
    program.chmod(0o755)
    (tmp_path / ".venv-test" / "trikafka-made").write_text("all of it")
    return tmp_path


def begin(repository: Path, *arguments: str) -> subprocess.Popen[str]:
    script = str(repository / "scripts" / "environment.py")
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [sys.executable, script, *arguments], stdin=pipe, stdout=pipe, stderr=pipe, text=True
    )


def free(folder: Path) -> bool:
    """Return whether no process holds a lock on the folder."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)


def test_run_locks_the_environment_alone(repository: Path) -> None:
    """The repository stays free."""
    process = begin(repository, "run", "test", "program", "-a", "b c")
    assert process.stdout is not None
    assert process.stdout.readline() == "runs with -a b c\n"
    assert not free(repository / ".venv-test")
    assert free(repository)
    process.communicate("\n", timeout=600)
    assert process.returncode == 7
    assert free(repository / ".venv-test")


def test_run_waits_for_a_ready_environment(repository: Path) -> None:
    preparing = os.open(repository, os.O_RDONLY)
    fcntl.flock(preparing, fcntl.LOCK_EX)
    process = begin(repository, "run", "test", "program")
    assert process.stdout is not None
    assert process.stdout.readline().startswith("waiting for a run that prepares")
    os.close(preparing)
    assert process.stdout.readline() == "runs with \n"
    process.communicate("\n", timeout=600)


def test_missing_environment_is_named(repository: Path) -> None:
    for arguments, says in (
        (
            ("run", "demo", "program"),
            "Error: .venv-demo is not ready: run python3 scripts/environment.py demo",
        ),
        (("run", "test", "other"), "No such file or directory"),
        (("run", "test"), "usage: "),
    ):
        process = begin(repository, *arguments)
        _, err = process.communicate(timeout=600)
        assert process.returncode == 1
        assert says in err


def locked(name: str) -> dict[str, list[Requirement]]:
    text = (ROOT / "locks" / f"{name}.txt").read_text()
    found: dict[str, list[Requirement]] = {}
    for line in re.sub(r"\\\n", " ", text).splitlines():
        if line and not line.startswith("#"):
            assert "--hash=sha256:" in line, f"{line.split()[0]} has no hash"
            one = Requirement(line.partition("--hash")[0].strip())
            found.setdefault(one.name, []).append(one)
    return found


def wanted(file: Path, *extras: str) -> Iterator[Requirement]:
    project = tomllib.loads(file.read_text())["project"]
    for group in (
        project["dependencies"],
        *(project["optional-dependencies"][extra] for extra in extras),
    ):
        yield from map(Requirement, group)


@pytest.mark.parametrize(
    ("name", "extras", "of_broker", "of_export"),
    [
        ("demo", ["arrow", "cli"], [], []),
        (
            "test",
            ["arrow", "cli", "test", "lint"],
            ["tls"],
            ["avro", "protobuf", "stores", "hdfs", "delta", "iceberg"],
        ),
    ],
)
@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13"])
def test_locked_versions_fit_the_requirements(
    name: str, extras: list[str], of_broker: list[str], of_export: list[str], version: str
) -> None:
    """After a change of a pyproject.toml: `make locks`."""
    here = {
        **default_environment(),
        "python_version": version,
        "python_full_version": f"{version}.0",
    }
    pins = {
        package: [one for one in pinned if one.marker is None or one.marker.evaluate(here)]
        for package, pinned in locked(name).items()
    }
    plugins = ROOT / "plugins"
    for one in (
        *wanted(ROOT / "pyproject.toml", *extras),
        *wanted(plugins / "trikafka-broker" / "pyproject.toml", *of_broker),
        *wanted(plugins / "trikafka-export" / "pyproject.toml", *of_export),
        *wanted(plugins / "trikafka-spark" / "pyproject.toml"),
    ):
        if one.name not in ("trikafka", "trikafka-export"):
            (pin,) = pins[one.name]
            (exact,) = pin.specifier
            assert exact.operator == "=="
            assert one.specifier.contains(exact.version), f"{one} is locked at {exact.version}"


def test_locks_name_no_registry() -> None:
    for file in (ROOT / "locks").iterdir():
        assert "://" not in file.read_text()


def test_packages_for_kerberos_are_locked() -> None:
    (needed,) = map(
        Requirement,
        tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"][
            "gssapi"
        ],
    )
    (pin,) = locked("kerberos")[needed.name]
    assert needed.specifier.contains(next(iter(pin.specifier)).version)


def run_here(program: str, path: Path) -> str:
    """Run a program that imports ``environment``; only programs in ``path`` are found."""
    start = (
        f"import os, sys; sys.path.insert(0, {str(ROOT / 'scripts')!r}); import environment as e\n"
        # The folders of administrators' programs count as well, and may have all of them.
        "which = e.shutil.which\n"
        f"e.shutil.which = lambda program, path=None: which(program, path={str(path)!r})\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", start + program],
        env={"PATH": str(path)},
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def program_of(folder: Path, name: str, script: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


def test_missing_system_packages_are_named(tmp_path: Path) -> None:
    """Without apt-get, or for a user who is not root, the command to run is printed."""
    program_of(tmp_path, "gcc", "exit 0")
    said = run_here("e.add_system_packages()", tmp_path)
    assert "apt install krb5-admin-server krb5-kdc libkrb5-dev)" in said
    program_of(tmp_path, "apt-get", "exit 1")
    assert said == run_here("os.geteuid = lambda: 1\ne.add_system_packages()", tmp_path)


def test_root_installs_missing_system_packages(tmp_path: Path) -> None:
    program_of(tmp_path, "apt-get", f'echo "$*" >> {tmp_path}/called; echo "no network"; exit 1')
    said = run_here("os.geteuid = lambda: 0\ne.add_system_packages()", tmp_path)
    assert "TESTS WILL FAIL: " in said
    assert "no network" in said
    program_of(tmp_path, "apt-get", "exit 0")
    said = run_here("os.geteuid = lambda: 0\ne.add_system_packages()", tmp_path)
    assert "the system's packages gcc, krb5-admin-server, krb5-kdc, libkrb5-dev: " in said
    assert (tmp_path / "called").read_text().splitlines() == [
        "update --quiet",
        "install --yes --quiet gcc krb5-admin-server krb5-kdc libkrb5-dev",
    ]
    for name in ("gcc", "krb5kdc", "kadmin.local", "krb5-config"):
        program_of(tmp_path, name, "exit 0")
    assert run_here("os.geteuid = lambda: 0\ne.add_system_packages()", tmp_path) == ""


def test_archive_of_spark_gets_its_bytecode(tmp_path: Path) -> None:
    """A module of the archive is not compiled, and a source that is another one stays alone."""
    packages = tmp_path / "site-packages"
    archive = packages / "pyspark" / "python" / "lib" / "pyspark.zip"
    archive.parent.mkdir(parents=True)
    with zipfile.ZipFile(archive, "w") as made:
        for name in ("same", "other"):
            module = packages / "pyspark" / f"{name}.py"
            module.write_text("import sys\nloaded = __file__\n")
            py_compile.compile(str(module), doraise=True)
            given = module.read_text() if name == "same" else "loaded = 'from its source'\n"
            made.writestr(f"pyspark/{name}.py", given)
        made.writestr("pyspark/__init__.py", "")
    run_here(f"e.add_bytecode({str(archive)!r})", tmp_path)
    program = "import pyspark.same as a, pyspark.other as b; print(a.loaded, b.loaded, sep='\\n')"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": str(archive)},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.stdout.splitlines() == [f"{archive}/pyspark/same.pyc", "from its source"]
    assert [file.name for file in archive.parent.iterdir()] == ["pyspark.zip"]
