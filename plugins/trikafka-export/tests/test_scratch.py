"""The directory for a JVM's leftovers, removed by its owner, or by the next process."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from trikafka_export import scratch

OWNER = """
import sys, tempfile
from trikafka_export import scratch
tempfile.tempdir = sys.argv[1]
directory = scratch.make()
(directory / "blockmgr").mkdir()
scratch.remove_at_exit(directory, lambda: None)
print(directory, flush=True)
input()
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@contextmanager
def owner(temporary: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    command, pipe = [sys.executable, "-c", OWNER, str(temporary)], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        try:
            yield process, Path(process.stdout.readline().strip())
        finally:
            process.kill()


def test_directory_is_removed_with_its_owner(temporary: Path) -> None:
    with owner(temporary) as (process, directory):
        assert (directory / "blockmgr").is_dir()
        process.communicate("\n", timeout=600)
    assert list(temporary.iterdir()) == []


def test_directory_of_a_killed_owner_is_removed(temporary: Path) -> None:
    """The next process removes the directory of an owner that was killed."""
    with owner(temporary) as (process, directory):
        process.kill()
        process.wait()
        assert directory.is_dir()
        assert scratch.make() in list(temporary.iterdir())
        assert not directory.exists()


def test_directory_of_a_live_owner_stays(temporary: Path) -> None:
    with owner(temporary) as (_, directory):
        assert scratch.make() != directory
        assert (directory / "blockmgr").is_dir()
