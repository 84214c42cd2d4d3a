"""The compiled part under the address and undefined behaviour sanitizers.

A short run of what ``make fuzz`` does for minutes.
"""

import subprocess
import sys
from pathlib import Path

import pytest
import sanitized

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def module() -> Path:
    try:
        sanitized.runtime()
    except sanitized.Missing as error:
        pytest.fail(f"{error} (Debian, Ubuntu: apt install gcc)")
    return sanitized.build()


def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, str(HERE / "sanitized.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=180)


def test_mutated_batches_are_clean(module: Path) -> None:
    ended = run(str(HERE / "fuzz.py"), "--seconds", "3")
    assert ended.returncode == 0, ended.stderr
    assert "decoded, by native, pure" in ended.stdout


def test_sanitizers_are_at_work(module: Path, tmp_path: Path) -> None:
    assert b"__asan_report_load" in module.read_bytes()
    assert b"__ubsan_handle" in module.read_bytes()
    script = tmp_path / "beyond.py"
    script.write_text("import ctypes\nkept = bytes(1000)\nctypes.string_at(id(kept), 5000)\n")
    ended = run(str(script))
    assert ended.returncode != 0
    assert "heap-buffer-overflow" in ended.stderr
