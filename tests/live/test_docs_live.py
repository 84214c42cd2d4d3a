"""The programs in README.md and docs/plugins.md, run as written, except for the address.

They run on a real broker.
"""

from __future__ import annotations

import re
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from cluster_waits import topic_reported, topics_deleted

import trikafka

ROOT = Path(__file__).parents[2]


def program(document: str, name: str) -> str:
    """Return the Python blocks with this mark, one after the other."""
    text = (ROOT / document).read_text(encoding="utf-8")
    blocks = re.findall(rf"<!-- run: {name} -->\n```python\n(.*?)```", text, re.DOTALL)
    assert blocks
    return "\n".join(blocks)


def run(text: str, servers: str, tmp_path: Path) -> list[str]:
    file = tmp_path / "program.py"
    file.write_text(text.replace("localhost:9092", servers), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(file)], capture_output=True, text=True, timeout=240, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.fixture
async def servers(kafka_broker: Any) -> Any:
    """Create the empty topic that the programs use; return the broker's address."""
    async with trikafka.open_admin(bootstrap_servers=kafka_broker.bootstrap_servers) as admin:
        topics = dict.fromkeys(["greetings", "countries"], trikafka.NewTopic(3, 1))
        await admin.create_topics(topics)
        for name in topics:
            await topic_reported(admin, name, 3)
        yield kafka_broker.bootstrap_servers
        await topics_deleted(admin, topics)


@pytest.mark.parametrize("name", ["producer", "consumer"])
def test_first_programs_are_short(name: str) -> None:
    """The first programs of README.md have at most 15 lines."""
    assert len([line for line in program("README.md", name).splitlines() if line.strip()]) <= 15


async def test_first_producer_and_consumer_run(servers: str, tmp_path: Path) -> None:
    (said,) = run(program("README.md", "producer"), servers, tmp_path)
    assert re.fullmatch(r"partition \d, offset 0", said)
    lines: list[str] = []
    # The program reads for 10 s and commits. On a machine that stands still it has more to read.
    for _ in range(20):
        lines += run(program("README.md", "consumer"), servers, tmp_path)
        if len(lines) >= 1001:
            break
    assert len(lines) == 1001
    assert any(line.endswith(" 0 b'en' b'hello'") for line in lines)
    assert sum("b'hello 999'" in line for line in lines) == 1


async def test_settings_of_a_topic_are_changed(servers: str, tmp_path: Path) -> None:
    lines = run(program("docs/admin.md", "settings"), servers, tmp_path)
    assert set(lines) <= {"retention.ms 86400000", "cleanup.policy delete,compact"}


async def test_toy_plugin_runs(servers: str, tmp_path: Path) -> None:
    eu, us, got, value, gave = run(program("docs/plugins.md", "plugin"), servers, tmp_path)
    assert eu == "0"
    assert us in ("1", "2")
    assert got == "got greetings-0 greetings-1 greetings-2"
    assert value == "b'hello'"
    assert gave == "gave greetings-0 greetings-1 greetings-2"


@pytest.mark.parametrize(
    "document",
    [
        "README.md",
        "CHANGELOG.md",
        *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md"))),
    ],
)
def test_links_have_a_target(document: str) -> None:
    prose = re.sub(
        r"^```.*?^```$|`[^`\n]+`",
        "",
        (ROOT / document).read_text(encoding="utf-8"),
        flags=re.DOTALL | re.MULTILINE,
    )
    links = re.findall(r"\]\((?!https?://|#)([^)#]+)", prose)
    assert [link for link in links if not ((ROOT / document).parent / link).exists()] == []


async def test_programs_about_transactions_run(servers: str, tmp_path: Path) -> None:
    said = run(program("docs/transactions.md", "commit"), servers, tmp_path)
    assert said[0] == "aborted: the program's own"
    assert sorted(said[1:]) == ["0 b'one'", "1 b'two'"]
    async with trikafka.open_admin(bootstrap_servers=servers) as admin:
        await admin.create_topics({"shouts": trikafka.NewTopic(2, 1)})
        await topic_reported(admin, "shouts", 2)
    async with trikafka.open_producer(bootstrap_servers=servers) as producer:
        for number in range(100):
            await producer.enqueue("greetings", b"%d" % number)
    file = tmp_path / "process.py"
    text = program("docs/transactions.md", "process")
    file.write_text(text.replace("localhost:9092", servers), encoding="utf-8")
    settings: Any = {
        "bootstrap_servers": servers,
        "isolation_level": "read_committed",
        "auto_offset_reset": "earliest",
    }
    found: list[bytes | None] = []
    async with (
        trikafka.open_consumer(**settings) as consumer,
        trio.open_nursery() as nursery,
    ):
        # The program runs until it is stopped.
        nursery.start_soon(partial(trio.run_process, [sys.executable, str(file)], cwd=ROOT))
        consumer.assign([trikafka.TopicPartition("shouts", number) for number in range(2)])
        with trio.fail_after(240):
            while len(found) < 102:
                found.append((await consumer.receive()).value)
        nursery.cancel_scope.cancel()
    wanted = [b"%d!" % number for number in range(100)] + [b"one!", b"two!"]
    assert sorted(value for value in found if value is not None) == sorted(wanted)
