"""Type checkers find an unknown setting and a wrong type where a client is opened."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
#: Lines that end in ``# wrong`` must be found, by the name that stands there, and no others.
PROGRAM = """
from typing import Unpack

import trikafka
from trikafka import ConsumerSettings


def decode(raw: bytes) -> str:
    return raw.decode()


async def right(**more: Unpack[ConsumerSettings]) -> None:
    async with trikafka.open_consumer(
        "topic",
        bootstrap_servers=["localhost:9092"],
        group_id="g",
        group_protocol="consumer",
        auto_offset_reset="by_duration:PT1H",
        isolation_level="read_committed",
        session_timeout_ms=10_000.5,
        max_poll_records=None,
        value_deserializer=decode,
    ) as consumer:
        async for record in consumer:
            print(record.offset)
    async with trikafka.open_consumer(**more), trikafka.open_consumer(**trikafka.from_properties({"group.id": "g"})):
        pass
    async with trikafka.open_producer(bootstrap_servers="localhost:9092", acks=1, compression_type="of a plugin") as producer:
        print((await producer.send("topic", b"value")).offset)
    async with trikafka.open_admin(bootstrap_servers="localhost:9092", client_id="c") as admin:
        print(await admin.list_topics())


async def wrong() -> None:
    trikafka.open_consumer(bootstrap_server="localhost:9092")  # wrong
    trikafka.open_consumer(group_protocol="streams")  # wrong
    trikafka.open_consumer(isolation_level="committed")  # wrong
    trikafka.open_consumer(max_poll_records="500")  # wrong
    trikafka.open_consumer(["topic"])  # wrong
    trikafka.open_consumer(acks="all")  # wrong
    trikafka.open_producer(bootstrap_server="localhost:9092")  # wrong
    trikafka.open_producer(acks=2)  # wrong
    trikafka.open_admin(bootstrap_server="localhost:9092")  # wrong
    trikafka.no_such_name  # wrong
"""
WRONG = {number for number, line in enumerate(PROGRAM.splitlines(), 1) if line.endswith("# wrong")}


def checked(tmp_path: Path, *command: str) -> tuple[set[int], str]:
    """Return the lines in which a type checker finds errors, and its output."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, "-m", *command, str(program)], capture_output=True, text=True, cwd=ROOT
    )
    said = done.stdout + done.stderr
    found = re.findall(r"program\.py:(\d+):(?:\d+ -)? error", said)
    return {int(number) for number in found}, said


def test_mypy_finds_exactly_the_wrong_settings(tmp_path: Path) -> None:
    """With mypy alone:

    Pyright (basedpyright 1.40.2) finds the same lines, but needs Node, 280 MB in each environment.
    """
    found, said = checked(tmp_path, "mypy", "--strict")
    assert found == WRONG, said
    assert 'Unexpected keyword argument "bootstrap_server" for "open_consumer"' in said
