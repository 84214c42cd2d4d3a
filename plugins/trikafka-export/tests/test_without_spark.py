"""trikafka-export never imports pyspark or trikafka-spark."""

from __future__ import annotations

import ast
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest
import trikafka_export
import trio
from trikafka_export.runners import Runners
from trikafka_export.sink_options import sink_options

from trikafka import ExportError, hooks

SPARKS = ("pyspark", "py4j", "trikafka_spark", "pyspark_trikafka")
MODULES = sorted(
    one.name for one in pkgutil.walk_packages(trikafka_export.__path__, "trikafka_export.")
)
#: Imports all modules, where an import of Spark's fails as if it were not installed.
IMPORTS = f"""
import importlib, sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {SPARKS!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Blocked())
for name in {MODULES!r}:
    importlib.import_module(name)
"""


def test_all_modules_import_without_pyspark() -> None:
    assert len(MODULES) > 40
    done = subprocess.run(
        [sys.executable, "-c", IMPORTS], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr


def test_no_function_imports_pyspark() -> None:
    found = []
    for path in Path(trikafka_export.__path__[0]).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [one.name for one in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            found += [(path.name, name) for name in names if name.split(".")[0] in SPARKS]
    assert not found


@pytest.fixture
def without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the plugin of trikafka-export is installed."""
    points = [one for one in hooks._entry_points() if one.value == "trikafka_export.plugin"]
    assert points
    monkeypatch.setattr(hooks, "_entry_points", lambda: points)


@pytest.mark.usefixtures("without_spark")
async def test_threads_run_large_exports_without_spark(caplog: pytest.LogCaptureFixture) -> None:
    runners = Runners(sink_options({"spark_above": 2}), (), trio.CapacityLimiter(1))
    await runners.fitting(3)
    assert runners.name == "threads"
    assert "exports by Spark need the package trikafka-spark" in caplog.text


@pytest.mark.usefixtures("without_spark")
async def test_export_by_spark_is_refused_without_spark() -> None:
    runners = Runners(sink_options({"spark_above": 0}), (), trio.CapacityLimiter(1))
    with pytest.raises(ExportError, match="exports by Spark need the package trikafka-spark"):
        await runners.check()
