"""The public names: type checkers and the interpreter find the same, and importing them is light."""

import ast
import subprocess
import sys
from pathlib import Path

import trikafka
from trikafka.cli import running
from trikafka.testing import transactions


def test_each_public_name_is_typed_and_present() -> None:
    """The table of ``__init__`` is the one list.

    The stub is made from it (tests/test_generated.py).
    """
    tree = ast.parse(Path(trikafka.__file__).with_suffix(".pyi").read_text())
    for_types = {
        name.asname or name.name
        for node in tree.body
        if isinstance(node, ast.ImportFrom)
        for name in node.names
    }
    assert for_types == set(trikafka.__all__)
    assert len(trikafka.__all__) == len(set(trikafka.__all__))
    for name in trikafka.__all__:
        assert getattr(trikafka, name) is not None


def test_each_public_name_is_listed_once() -> None:
    source = Path(trikafka.__file__).read_text()
    assert not [
        name
        for name in trikafka.__all__
        if name != "__version__" and source.count(f'"{name}"') != 1
    ]


def test_every_error_is_public() -> None:
    errors = {
        name
        for name, thing in vars(trikafka.errors).items()
        if isinstance(thing, type) and issubclass(thing, Exception) and not name.startswith("_")
    }
    assert errors <= set(trikafka.__all__)


def test_import_loads_neither_trio_nor_java() -> None:
    """Neither Arrow nor kafka-python is loaded."""
    heavy = "trio kafka pyarrow pyspark py4j"
    program = (
        f"import sys, trikafka, trikafka.cli; print([name for name in '{heavy}'.split() if name "
        "in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_former_names_stay() -> None:
    """Plugins' commands use ``trikafka.cli.running``, and tests ``trikafka.testing``."""
    assert running.NobodyReadsError is running.ReaderGoneError
    assert transactions.NOBODY == transactions.NO_PRODUCER
