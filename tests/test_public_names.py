"""The public names: each stands where type checkers look and where the interpreter looks; nothing heavy comes with them."""

import ast
import subprocess
import sys
from pathlib import Path

import trikafka


def test_what_is_imported_for_types_is_what_is_there() -> None:
    tree = ast.parse(Path(trikafka.__file__).read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    for_types = {name.name for node in block.body if isinstance(node, ast.ImportFrom) for name in node.names}
    assert for_types | {"__version__"} == set(trikafka.__all__)
    for name in trikafka.__all__:
        assert getattr(trikafka, name) is not None


def test_every_error_is_public() -> None:
    errors = {
        name
        for name, thing in vars(trikafka.errors).items()
        if isinstance(thing, type) and issubclass(thing, Exception) and not name.startswith("_")
    }
    assert errors <= set(trikafka.__all__)


def test_importing_brings_in_neither_java_nor_arrow_nor_even_trio() -> None:
    heavy = "trio kafka pyarrow pyspark py4j"
    program = f"import sys, trikafka, trikafka.cli; print([name for name in '{heavy}'.split() if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
