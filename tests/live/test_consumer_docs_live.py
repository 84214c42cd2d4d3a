"""The programs in docs/consumer.md, and the examples that it names, on a real broker.

They are run as written, except for addresses and groups.
"""

from __future__ import annotations

import inspect
import os
import re
import runpy
import signal
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest
import trio
from cluster_waits import topic_reported, topics_deleted

import trikafka

ROOT = Path(__file__).parents[2]
RECORDS = 60


def program(name: str) -> str:
    if (example := ROOT / "examples" / f"{name}.py").exists():
        return example.read_text(encoding="utf-8")
    text = (ROOT / "docs/consumer.md").read_text(encoding="utf-8")
    blocks: list[str] = re.findall(rf"<!-- run: {name} -->\n```python\n(.*?)```", text, re.DOTALL)
    assert blocks
    return "\n".join(blocks)


def test_every_program_of_the_page_is_tested() -> None:
    text = (ROOT / "docs/consumer.md").read_text(encoding="utf-8")
    names = re.findall(r"<!-- run: (\w+) -->", text)
    assert text.count("```python") == len(names)
    assert set(names) == {"streams"}


@pytest.fixture
async def servers(kafka_broker: Any) -> AsyncIterator[str]:
    """Return the broker's address, after filling a topic of the name that the programs use."""
    address: str = kafka_broker.bootstrap_servers
    async with trikafka.open_admin(bootstrap_servers=address) as admin:
        await admin.create_topics({"greetings": trikafka.NewTopic(3, 1)})
        await topic_reported(admin, "greetings", 3)
        async with trikafka.open_producer(bootstrap_servers=address) as producer:
            for number in range(RECORDS):
                await producer.enqueue("greetings", b"hello %d" % number, partition=number % 3)
        yield address
        await topics_deleted(admin, ["greetings"])


class Running:
    """A running program, and its output so far."""

    def __init__(self, process: trio.Process) -> None:
        self.process = process
        self.lines = list[str]()
        self._heard = trio.Event()
        self.silent = trio.Event()

    async def hear(self) -> None:
        rest = b""
        assert self.process.stdout is not None
        async for data in self.process.stdout:
            *lines, rest = (rest + data).split(b"\n")
            self.lines += [line.decode() for line in lines]
            self._heard.set()
            self._heard = trio.Event()
        self.silent.set()

    async def ended(self) -> int:
        """Return the exit code, after the program has ended."""
        with trio.fail_after(240):
            await self.silent.wait()
            return await self.process.wait()

    async def until(self, true: Callable[[list[str]], bool]) -> None:
        with trio.fail_after(240):
            while not true(self.lines):
                assert self.process.poll() is None, self.lines
                await self._heard.wait()

    async def end(self, number: int) -> int:
        self.process.send_signal(number)
        return await self.ended()


@asynccontextmanager
async def running(
    name: str, servers: str, tmp_path: Path, group: str = ""
) -> AsyncIterator[Running]:
    file = tmp_path / f"{name}.py"
    text = program(name).replace("localhost:9092", servers)
    text = text.replace('"group_id": "streams"', f'"group_id": "{group}"')
    file.write_text(text, encoding="utf-8")
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    async with trio.open_nursery() as nursery:
        command = [sys.executable, str(file)]
        options: dict[str, Any] = {
            "stdout": subprocess.PIPE,
            "cwd": tmp_path,
            "env": {**os.environ, "PYTHONPATH": path},
        }
        process = await trio.lowlevel.open_process(command, **options)
        try:
            this = Running(process)
            nursery.start_soon(this.hear)
            yield this
        finally:
            if process.poll() is None:
                process.kill()
                with trio.CancelScope(shield=True):
                    await process.wait()


async def committed(servers: str, group: str) -> int:
    settings: Any = {"bootstrap_servers": servers, "group_id": group}
    async with trikafka.open_consumer(**settings) as consumer:
        found = await consumer.committed(
            [trikafka.TopicPartition("greetings", number) for number in range(3)]
        )
    return sum(position.offset for position in found.values() if position is not None)


def done(line: str) -> bool:
    return line.startswith("done ")


async def test_program_with_a_task_a_partition_runs(servers: str, tmp_path: Path) -> None:
    async with running("streams", servers, tmp_path, "pair") as this:
        await this.until(lambda lines: sum(map(done, lines)) == RECORDS)
        offsets = [
            [int(line.split()[2]) for line in this.lines if line.startswith(f"done {n} ")]
            for n in range(3)
        ]
        assert offsets == [list(range(RECORDS // 3))] * 3
        async with (
            trikafka.open_consumer(
                "greetings",
                bootstrap_servers=servers,
                group_id="pair",
                partition_assignment_strategy=["range"],
            ) as other,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(other.receive_batch)
            await this.until(lambda lines: any("has ended" in line for line in lines))
            nursery.cancel_scope.cancel()
        assert await this.end(signal.SIGINT) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
async def test_program_stops_in_order(servers: str, tmp_path: Path, number: signal.Signals) -> None:
    async with running("streams", servers, tmp_path, "graceful") as this:
        await this.until(lambda lines: sum(line.startswith("began") for line in lines) >= 8)
        assert await this.end(number) == 0
    finished = [line for line in this.lines if done(line)]
    began = [line for line in this.lines if line.startswith("began")]
    assert this.lines[-1] == "left in order"
    assert f"stopping on {number.name}" in this.lines
    assert len(finished) == len(began)
    assert await committed(servers, "graceful") == len(finished)


async def test_program_copies_each_record_once(servers: str, tmp_path: Path) -> None:
    """The program copies each record once although it is killed and started again."""
    for stored in (1, 3):
        async with running("to_database", servers, tmp_path) as this:
            await this.until(lambda lines, least=stored: len(lines) >= least or enough(tmp_path))  # type: ignore[misc]
            await this.end(signal.SIGKILL)
    async with running("to_database", servers, tmp_path) as this:
        with trio.fail_after(240):
            while not enough(tmp_path):  # noqa: ASYNC110
                await trio.sleep(0.1)
        await this.end(signal.SIGKILL)
    with closing(sqlite3.connect(tmp_path / "results.db")) as database:
        assert database.execute(
            "select count(*), count(distinct value) from results"
        ).fetchone() == (RECORDS, RECORDS)


def enough(tmp_path: Path) -> bool:
    if not (tmp_path / "results.db").exists():
        return False
    with closing(sqlite3.connect(tmp_path / "results.db")) as database:
        if not database.execute("select 1 from sqlite_master where name = 'results'").fetchone():
            return False
        return bool(database.execute("select count(*) from results").fetchone()[0] >= RECORDS)


async def test_testing_example_needs_no_broker(tmp_path: Path) -> None:
    async with running("tested_consumer", "nowhere", tmp_path) as this:
        assert await this.ended() == 0
    assert this.lines == ["tested, 40.0 seconds later"]


async def test_worker_example_needs_no_broker(tmp_path: Path) -> None:
    async with running("tested_worker", "nowhere", tmp_path) as this:
        assert await this.ended() == 0
    assert this.lines == ["ann tea", "tested, 30.0 seconds later"]


@pytest.mark.parametrize(("example", "seconds"), [("tested_consumer", 40), ("tested_worker", 30)])
async def test_testing_example_runs_by_pytest(
    autojump_clock: Any, example: str, seconds: int
) -> None:
    """Its test takes the fixture of pytest-trio. Without that, it would wait in real time."""
    names = runpy.run_path(str(ROOT / "examples" / f"{example}.py"))
    (test,) = (function for name, function in names.items() if name.startswith("test_"))
    assert list(inspect.signature(test).parameters) == ["autojump_clock"]
    await test(autojump_clock)
    assert trio.current_time() >= seconds
