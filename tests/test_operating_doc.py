"""docs/operating-log.md names every logger, and quotes log lines as they are written."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from parsed import nodes, tree_of

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "operating-log.md"


def test_loggers_of_the_page_exist() -> None:
    source = "".join(path.read_text() for path in (ROOT / "trikafka").rglob("*.py"))
    real = set(re.findall(r'getLogger\("(trikafka[.\w]*)"\)', source))
    named = set(re.findall(r"`(trikafka\.[a-z]+)`", PAGE.read_text()))
    assert named - {"trikafka.process", "trikafka.export"} <= real
    assert len(named) > 10


def test_quoted_lines_are_written() -> None:
    """``…`` stands for the values of a line."""
    written: set[str] = set()
    packages = (ROOT / "trikafka", ROOT / "plugins/trikafka-export/trikafka_export")
    for path in (path for package in packages for path in package.rglob("*.py")):
        for node in nodes(tree_of(path)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                written.add(node.value)
            elif isinstance(node, ast.JoinedStr):
                written.add(
                    "".join(
                        str(part.value) if isinstance(part, ast.Constant) else "…"
                        for part in node.values
                    )
                )
    # An item of a list begins with one or more lines of the log.
    heads = re.findall(r"^\* ((?:`[^`]+`|[^`:])+):\s", PAGE.read_text(), re.MULTILINE)
    lines = [line for head in heads for line in re.findall(r"`([^`]+)`", head)]
    assert len(lines) > 40

    def stands(line: str) -> bool:
        pieces = re.compile(
            ".*".join(re.escape(piece.strip()) for piece in line.split("…")), re.DOTALL
        )
        return any(pieces.search(text) for text in written)

    assert [line for line in lines if not stands(line)] == []
