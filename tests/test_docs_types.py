"""Every whole program of README.md, docs/ and examples/ passes ``mypy --strict``."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
MARKED = re.compile(r"<!-- run: ([\w-]+) -->\n```python\n(.*?)```", re.DOTALL)


def programs() -> dict[str, str]:
    """Return the programs by a module's name.

    A part of one, which imports nothing of trikafka, is no program, and neither is one of another
    client. Blocks with the same name are one program.
    """
    found: dict[str, str] = {}
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        for name, text in MARKED.findall(page.read_text(encoding="utf-8")):
            module = re.sub(r"\W", "_", f"{page.stem}_{name}").lower()
            found[module] = found.get(module, "") + text
    programs = {name: text for name, text in found.items() if "import trikafka" in text}
    # flights.py is a package's, which `make types` checks.
    examples = [path for path in (ROOT / "examples").glob("*.py") if path.stem != "flights"]
    return programs | {f"example_{path.stem}": path.read_text("utf-8") for path in examples}


def test_programs_pass_strict_mypy(tmp_path: Path) -> None:
    found = programs()
    assert len(found) > 20
    assert {"from_confluent_kafka_after", "example_to_database"} <= found.keys()
    for name, text in found.items():
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", *map(str, sorted(tmp_path.glob("*.py")))],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stdout + done.stderr
