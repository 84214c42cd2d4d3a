"""The programs of docs/tutorial.md, run as written, one after the other.

Other than on the page are the address, the heartbeats of two members that meet, and the seconds
after which the programs end: a busy machine may take longer than a reader's.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import trio
from cluster_waits import topic_reported

import trikafka

ROOT = Path(__file__).parents[2]
#: What is changed in each program. Only the third lasts as long as its limits.
LIMITS = {
    "write": [("flush(timeout=10)", "flush(timeout=100)")],
    "read": [("move_on_after(30)", "move_on_after(300)")],
    "streams": [
        ('"ann", 16', '"ann", 45'),
        ('"ben", 8', '"ben", 37'),
        ('"pair",', '"pair", heartbeat_interval_ms=300,'),
    ],
    "test": [],
}
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
    text = PROGRAMS[name].replace("localhost:9092", servers)
    for old, new in LIMITS[name]:
        assert old in text
        text = text.replace(old, new)
    file = folder / f"{name}.py"
    file.write_text(text, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(file)],
        capture_output=True,
        text=True,
        timeout=400,
        env={**os.environ, "PYTHONPATH": os.environ.get("PYTHONPATH", "")},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


async def test_tutorial_programs_run(kafka_broker: Any, folder: Path) -> None:
    """Each program does what the page says of it. The first one writes what the others read."""
    servers = kafka_broker.bootstrap_servers
    async with trikafka.open_admin(bootstrap_servers=servers) as admin:
        await admin.create_topics({"readings": trikafka.NewTopic(3, 1)})
        await topic_reported(admin, "readings", 3)
    assert list(PROGRAMS) == ["write", "read", "streams", "test"]
    written = await trio.to_thread.run_sync(run, "write", servers, folder)
    assert written[1] == "301 records delivered"
    said: dict[str, list[str]] = {}

    async def also(name: str) -> None:
        said[name] = await trio.to_thread.run_sync(run, name, servers, folder)

    # They read the same records in groups of their own, and one of them waits most of its time.
    async with trio.open_nursery() as nursery:
        for name in ("read", "streams", "test"):
            nursery.start_soon(also, name)
    assert said["read"] == ["read 100 records"]
    lines = said["streams"]
    # Trio runs tasks that start together in any order.
    assert sorted(lines[:3]) == [f"ann owns readings-{number}" for number in range(3)]
    assert any(line.startswith("ann hands over readings-") for line in lines)
    assert any(line.startswith("ben owns readings-") for line in lines)
    assert said["test"] == ["offset 0, after 4 requests"]
