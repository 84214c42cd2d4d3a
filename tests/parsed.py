"""The parsed source: each file once for all tests that look at the code, and its nodes as well.

A walk of ``ast.walk`` takes ten times as long as the list of nodes that it has made before. The
files that import this module run in one process (conftest.py of the repository).
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
    """Return a node, and all nodes below it, in the order of ``ast.walk``.

    ``ast.walk`` makes a generator for each node and one for its fields, and takes half as long
    again.
    """
    found = [tree]
    for node in found:
        for name in node._fields:
            value = getattr(node, name, None)
            if isinstance(value, ast.AST):
                found.append(value)
            elif isinstance(value, list):
                found += [item for item in value if isinstance(item, ast.AST)]
    return tuple(found)
