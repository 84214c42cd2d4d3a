"""trikafka-export never imports pyspark or trikafka-spark."""

from __future__ import annotations

import ast
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest
import trikafka_export
import trio
from trikafka_export.plugin import trikafka_sink
from trikafka_export.runners import Runners
from trikafka_export.sink_options import sink_options

from trikafka import ConfigurationError, hooks

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
async def test_threads_run_all_exports_without_spark() -> None:
    runners = Runners(sink_options({}), (), trio.CapacityLimiter(1))
    await runners.check()
    await runners.fitting(10**12)
    assert runners.name == "threads"


@pytest.mark.usefixtures("without_spark")
@pytest.mark.parametrize("option", ["spark_above", "master", "spark.x"])
def test_option_of_another_package_is_refused(option: str) -> None:
    """The options of the runner by Spark are those of its package."""
    said = f"unknown option {option!r} of an export to Parquet. An option of another package needs"
    with pytest.raises(ConfigurationError, match=re.escape(said)):
        trikafka_sink("file", {"destination": "x", option: 0}, ())


def test_no_option_of_spark_is_named() -> None:
    """What Spark has is known by its own package."""
    names = re.compile(r"spark_above|\bmaster\b|app_name|[\"']spark\.[\"']")
    for path in Path(trikafka_export.__path__[0]).rglob("*.py"):
        assert not names.search(path.read_text()), path.name
