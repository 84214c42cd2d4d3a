"""docs/operating.md knows each logger that there is, and names none that there is not."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_the_loggers() -> None:
    source = "".join(path.read_text() for path in (ROOT / "trikafka").rglob("*.py"))
    real = set(re.findall(r'getLogger\("(trikafka[.\w]*)"\)', source))
    named = set(re.findall(r"`(trikafka\.[a-z]+)`", (ROOT / "docs" / "operating.md").read_text()))
    assert named - {"trikafka.process", "trikafka.export"} <= real
    assert len(named) > 10
