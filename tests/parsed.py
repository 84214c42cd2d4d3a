"""The parsed source: each file once for all tests that look at the code, and its nodes as well.

A walk of ``ast.walk`` takes ten times as long as the list of nodes that it has made before.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def nodes(tree: ast.AST) -> tuple[ast.AST, ...]:
    """Return a node, and all nodes below it."""
    return tuple(ast.walk(tree))
