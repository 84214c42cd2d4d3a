"""The package and its plugins leave the process, and Trio's private modules, as they are."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from parsed import nodes, tree_of

ROOT = Path(__file__).parent.parent
#: What is refused, and the files in which it has its reason.
REFUSED = {
    # TRIKAFKA_AIO_THREAD=1 switches it off; without it a lone send takes 0.3 ms more.
    r"\btrio\._": ("trikafka/aio/guest.py",),
    r"\bgc\.(set_threshold|freeze|unfreeze|disable|enable)\(": (
        "trikafka/_net/decoding.py",  # TRIKAFKA_PAUSE_GC=0 switches it off
        "trikafka/cli/__init__.py",  # the command's own process
        "plugins/trikafka-spark/trikafka_spark/python_worker.py",  # Spark's own worker process
    ),
    r"\badd_instrument\(": (
        "trikafka/testing/cancellation.py",  # around one scenario of a test
        "trikafka/testing/steps.py",
    ),
    r"\bsys\.modules\[[^\]]*\] *=|sys\.modules\.(pop|setdefault|update)": (),
}


def sources() -> Iterator[Path]:
    for folder in (ROOT / "trikafka", *ROOT.glob("plugins/*/*trikafka*")):
        for ending in ("*.py", "*.pyx", "*.pxi"):
            yield from folder.rglob(ending)


@pytest.mark.parametrize("pattern", REFUSED)
def test_process_is_left_as_it_is(pattern: str) -> None:
    paths = list(sources())
    assert len(paths) > 300
    found = {
        str(path.relative_to(ROOT))
        for path in paths
        if re.search(pattern, path.read_text(encoding="utf-8"))
    }
    assert found == set(REFUSED[pattern])


def test_each_thread_has_a_limiter() -> None:
    """A program's own threads may use up Trio's default limiter, or asyncio's executor.

    A client that waited for one of these would stand still, or wait for a thread that waits for it.
    """
    calls = [
        (f"{path.relative_to(ROOT)}, line {node.lineno}", node)
        for path in sources()
        if path.suffix == ".py"
        for node in nodes(tree_of(path))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("run_sync", "to_thread", "run_in_executor")
    ]
    threads = [
        (place, call)
        for place, call in calls
        if ast.unparse(call.func) in ("trio.to_thread.run_sync", "asyncio.to_thread")
        or ast.unparse(call.func).endswith(".run_in_executor")
    ]
    assert len(threads) > 20
    assert not [
        place for place, call in threads if "limiter" not in {each.arg for each in call.keywords}
    ]
