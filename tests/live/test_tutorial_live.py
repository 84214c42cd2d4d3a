"""The programs of docs/tutorial.md, run as written except for the address, one after the other."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import trikafka

ROOT = Path(__file__).parents[2]
PROGRAMS = dict(
    re.findall(
        r"<!-- run: (\w+) -->\n```python\n(.*?)```",
        (ROOT / "docs/tutorial.md").read_text(encoding="utf-8"),
        re.DOTALL,
    )
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tutorial")


def run(name: str, servers: str, folder: Path) -> list[str]:
    file = folder / f"{name}.py"
    file.write_text(PROGRAMS[name].replace("localhost:9092", servers), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(file)],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": os.environ.get("PYTHONPATH", "")},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


async def test_tutorial_programs_run(kafka_broker: Any, folder: Path) -> None:
    """Each program does what the page says of it. They build on each other."""
    servers = kafka_broker.bootstrap_servers
    async with trikafka.open_admin(bootstrap_servers=servers) as admin:
        await admin.create_topics({"readings": trikafka.NewTopic(3, 1)})
    assert list(PROGRAMS) == ["write", "read", "streams", "worker", "test"]
    assert run("write", servers, folder)[1] == "301 records delivered"
    assert run("read", servers, folder) == ["read 100 records"]
    lines = run("streams", servers, folder)
    # Trio runs tasks that start together in any order.
    assert sorted(lines[:3]) == [f"ann owns readings-{number}" for number in range(3)]
    assert any(line.startswith("ann hands over readings-") for line in lines)
    assert any(line.startswith("ben owns readings-") for line in lines)
    assert run("worker", servers, folder) == ["dead letters: 10"]
    assert run("test", servers, folder) == ["offset 0, after 4 requests"]


def test_tutorial_programs_have_types(folder: Path) -> None:
    for name, text in PROGRAMS.items():
        (folder / f"{name}_typed.py").write_text(text, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", *map(str, folder.glob("*_typed.py"))],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout
