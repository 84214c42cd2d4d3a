"""A missing compiled part: a typed warning at the line that opens, and a line of ``--version``."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from trikafka._wire._implementation import _why

BLOCK = """
import importlib.abc, sys
class Without(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.endswith("._native"):
            raise {raised}
sys.meta_path.insert(0, Without())
"""
NOT_BUILT = "ModuleNotFoundError(f'No module named {name!r}', name=name)"
PROGRAM = """
import trio, trikafka
from trikafka.testing import ScriptedCluster

async def main():
    async with ScriptedCluster() as cluster:
        for _ in range(2):
            async with trikafka.open_admin(bootstrap_servers=cluster.bootstrap_servers, dial=cluster.dial) as admin:
                await admin.list_topics()
trio.run(main)
"""
CALL = "from trikafka.cli import main; main()"
OPENED = "async with trikafka.open_admin("


def ran(*arguments: str, environment: dict[str, str] | None = None) -> tuple[str, str]:
    done = subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, **(environment or {})},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def test_client_warns_once_at_the_opening_line(tmp_path: Path) -> None:
    program = BLOCK.format(raised=NOT_BUILT) + PROGRAM
    line = program[: program.index(OPENED)].count("\n") + 1
    (tmp_path / "program.py").write_text(program)
    _, err = ran(str(tmp_path / "program.py"))
    assert err.count("CompiledPartWarning") == 1
    assert f"program.py:{line}: CompiledPartWarning: trikafka runs without its compiled part" in err
    assert "it was not built in the clone " in err


def test_each_place_has_its_own_reason(tmp_path: Path) -> None:
    error = ModuleNotFoundError("", name="trikafka._wire._native")
    assert _why(error, tmp_path).startswith(
        "it was not built: there was no Cython or no C compiler"
    )
    (tmp_path / "setup.py").touch()
    assert _why(error, tmp_path).startswith(f"it was not built in the clone {tmp_path}, from")


def test_chosen_pure_python_is_no_warning() -> None:
    assert ran("-c", PROGRAM, environment={"TRIKAFKA_PURE": "1"}) == ("", "")


def test_compiled_part_is_no_warning() -> None:
    assert ran("-c", PROGRAM) == ("", "")


@pytest.mark.parametrize(
    ("raised", "says"),
    [
        (NOT_BUILT, "it was not built"),
        ("ImportError('undefined symbol: x')", "it cannot be loaded: undefined symbol: x"),
    ],
)
def test_version_names_the_missing_part(raised: str, says: str) -> None:
    out, err = ran("-c", BLOCK.format(raised=raised) + CALL, "--version")
    assert out.splitlines()[1].startswith(f"compiled part: no ({says}")
    assert err == ""


def test_command_warns_in_one_sentence() -> None:
    program = [
        sys.executable,
        "-c",
        BLOCK.format(raised=NOT_BUILT) + CALL,
        "topics",
        "-b",
        "localhost:1",
    ]
    done = subprocess.run(program, capture_output=True, text=True, timeout=600)
    warning, error = done.stderr.splitlines()
    assert warning.startswith("Warning: trikafka runs without its compiled part")
    assert error.startswith("Error: ")
