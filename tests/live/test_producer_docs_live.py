"""The programs in docs/producer.md, run as written, on a real broker.

Only the address is another one, and the time for the last records is longer.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from cluster_waits import topic_reported, topics_deleted

import trikafka

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/producer.md"
PARTITIONS = [trikafka.TopicPartition("greetings", number) for number in range(3)]


def program(name: str, servers: str, tmp_path: Path) -> list[str]:
    """Return the command that runs the program of this name."""
    blocks = re.findall(
        rf"<!-- run: {name} -->\n```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL
    )
    assert len(blocks) == 1
    # The time for the last records is a matter of the machine as well.
    text = blocks[0].replace('"close_timeout_ms": 10_000', '"close_timeout_ms": 60_000')
    file = tmp_path / f"{name}.py"
    file.write_text(text.replace("localhost:9092", servers), encoding="utf-8")
    return [sys.executable, str(file)]


def options(tmp_path: Path) -> dict[str, Any]:
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return {"cwd": tmp_path, "env": {**os.environ, "PYTHONPATH": path}}


async def run(name: str, servers: str, tmp_path: Path) -> list[str]:
    """Run the program, and return its output."""
    with trio.fail_after(400):
        done = await trio.run_process(
            program(name, servers, tmp_path), capture_stdout=True, **options(tmp_path)
        )
    return done.stdout.decode().splitlines()


def test_every_program_of_the_page_is_tested() -> None:
    text = PAGE.read_text(encoding="utf-8")
    names = re.findall(r"<!-- run: (\w+) -->", text)
    assert text.count("```python") == len(names)
    assert set(names) == {"acks", "graceful"}


@pytest.fixture
async def servers(kafka_broker: Any) -> AsyncIterator[str]:
    """Create the empty topic that the programs use; return the broker's address."""
    async with trikafka.open_admin(bootstrap_servers=kafka_broker.bootstrap_servers) as admin:
        await admin.create_topics({"greetings": trikafka.NewTopic(3, 1)})
        await topic_reported(admin, "greetings", 3)
        yield kafka_broker.bootstrap_servers
        await topics_deleted(admin, ["greetings"])


async def written(servers: str) -> int:
    """Return the number of records in the log."""
    async with trikafka.open_consumer(bootstrap_servers=servers) as consumer:
        return sum((await consumer.end_offsets(PARTITIONS)).values())


async def test_program_with_acks_in_a_task_runs(servers: str, tmp_path: Path) -> None:
    assert await run("acks", servers, tmp_path) == ["delivered 20000 failed 0"]
    assert await written(servers) == 20_000


async def test_function_of_the_page_chooses_the_partition(servers: str) -> None:
    (function,) = re.findall(r"`partitioner=(lambda [^`]+)`", PAGE.read_text(encoding="utf-8"))
    async with trikafka.open_producer(
        bootstrap_servers=servers, partitioner=eval(function)
    ) as producer:
        places = [await producer.send("greetings", b"", key=b"%d" % number) for number in range(9)]
    assert {place.partition for place in places} == {0}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
async def test_program_stops_in_order(servers: str, tmp_path: Path, number: signal.Signals) -> None:
    """Accepted records are delivered on an orderly stop, although they linger for half a second."""
    said = b""
    async with trio.open_nursery() as nursery:
        with trio.fail_after(400):
            command = program("graceful", servers, tmp_path)
            start = partial(trio.run_process, command, stdout=subprocess.PIPE, **options(tmp_path))
            process: trio.Process = await nursery.start(start)
            assert process.stdout is not None
            async for data in process.stdout:
                said += data
                if b"at 1000\n" in said:
                    process.send_signal(number)
                    break
            async for data in process.stdout:
                said += data
    last = said.decode().splitlines()[-1]
    found = re.fullmatch(r"delivered (\d+) failed 0", last)
    assert found is not None, last
    assert int(found[1]) > 1000
    assert await written(servers) == int(found[1])
