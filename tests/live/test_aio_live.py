"""trikafka.aio against a real Kafka: the programs of docs/asyncio.md, cancellations, sockets.

Some programs stand on the page, and the examples that it names beside them.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import random
import re
import runpy
import signal
import socket
import subprocess
import sys
import textwrap
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import trio
from cluster_waits import topic_reported, topics_deleted
from open_files import open_files
from trikafka_broker.ports import Ports

import trikafka
import trikafka.aio
from trikafka import NewTopic, TopicPartition
from trikafka.aio import guest as guests

if TYPE_CHECKING:
    from trikafka_broker.broker import KafkaBroker

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/asyncio.md"
#: The programs of the page, in its order.
PROGRAMS = ["first", "worker", "fastapi", "test"]


def program(name: str, servers: str, tmp_path: Path, port: int = 8000) -> Path:
    example = ROOT / "examples" / f"with_{name}.py"
    if example.exists():
        text = example.read_text(encoding="utf-8")
    else:
        page = PAGE.read_text(encoding="utf-8")
        (text,) = re.findall(rf"<!-- run: {name} -->\n```python\n(.*?)```", page, re.DOTALL)
    file = tmp_path / f"test_{name}_program.py"
    text = text.replace("localhost:9092", servers).replace("8000", str(port))
    file.write_text(text, encoding="utf-8")
    return file


def environment() -> dict[str, str]:
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": path}


@contextmanager
def running(file: Path) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-W", "error", str(file)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,  # of its own: a warning in the log is no line of the program
        text=True,
        cwd=file.parent,
        env=environment(),
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def finished(file: Path, *command: str) -> str:
    done = subprocess.run(
        [sys.executable, *command, str(file)],
        capture_output=True,
        text=True,
        timeout=240,
        cwd=file.parent,
        env=environment(),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


async def make_topic(servers: str, topic: str) -> None:
    async with trikafka.open_admin(bootstrap_servers=servers) as admin:
        await admin.create_topics({topic: NewTopic(3, 1)})
        await topic_reported(admin, topic, 3)


async def delete_topic(servers: str, topic: str) -> None:
    async with trikafka.open_admin(bootstrap_servers=servers) as admin:
        await topics_deleted(admin, [topic])


@pytest.fixture
def servers(kafka_broker: KafkaBroker) -> Iterator[str]:
    """Create the empty topic that the programs use; return the broker's address."""
    address = kafka_broker.bootstrap_servers
    trio.run(make_topic, address, "greetings")
    yield address
    trio.run(delete_topic, address, "greetings")


def test_every_program_of_the_page_is_tested() -> None:
    text = PAGE.read_text(encoding="utf-8")
    names = re.findall(r"<!-- run: (\w+) -->", text)
    assert text.count("```python") == len(names)
    assert names == PROGRAMS
    assert len(text.split()) < 1_500


def test_first_program_runs(servers: str, tmp_path: Path) -> None:
    lines = finished(program("first", servers, tmp_path)).splitlines()
    assert lines[0] == "1000 records delivered"
    assert lines[1].startswith("1000 records read, the last one at offset ")


def test_program_without_a_broker_runs(tmp_path: Path) -> None:
    assert finished(program("test", "", tmp_path)) == "offset 0, after 4 requests\n"


async def write_greetings(servers: str) -> None:
    async with trikafka.aio.open_producer(bootstrap_servers=servers) as producer:
        await asyncio.gather(*(producer.send("greetings", b"%d" % n) for n in range(20)))


async def committed(servers: str, group: str) -> int:
    """Return how many greetings a group has committed."""
    places = [TopicPartition("greetings", number) for number in range(3)]
    async with trikafka.aio.open_consumer(bootstrap_servers=servers, group_id=group) as consumer:
        found = await consumer.committed(places)
    return sum(offset.offset for offset in found.values() if offset is not None)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_worker_stops_in_order(number: int, servers: str, tmp_path: Path) -> None:
    asyncio.run(write_greetings(servers))
    with running(program("worker", servers, tmp_path)) as process:
        assert process.stdout is not None
        seen = {process.stdout.readline() for _ in range(20)}
        assert seen == {f"handled b'{n}'\n" for n in range(20)}
        process.send_signal(number)
        rest, errors = process.communicate(timeout=240)
    if number == signal.SIGTERM:
        assert rest == "stopped in order\n"
        assert process.returncode == 0, errors
    else:
        assert rest == ""
        assert errors.rstrip().endswith("KeyboardInterrupt")
    assert asyncio.run(committed(servers, "greeters")) == 20


@pytest.mark.parametrize(
    "name",
    [
        "fastapi",
        "aiohttp",
    ],
)
def test_web_program_serves_and_ends(name: str, servers: str, tmp_path: Path) -> None:
    with held_port() as port, running(program(name, servers, tmp_path, port)) as process:
        places = [post(port, process) for _ in range(3)]
        assert all(place["offset"] is not None for place in places)
        if name == "fastapi":
            until = time.monotonic() + 240  # a broker that stands still is a reason for a while
            while not is_well(port):
                assert time.monotonic() < until
                time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        out = "".join(process.communicate(timeout=240))
    assert process.returncode in (0, -signal.SIGINT, 130), out
    assert "Error" not in out, out


@contextmanager
def held_port() -> Iterator[int]:
    """Yield a port that no other program gets meanwhile, unless it asks for this very port."""
    ports = Ports()
    try:
        yield ports.take()
    finally:
        ports.release()


def is_well(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health") as response:
            found: dict[str, bool] = json.load(response)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code != 503:
            raise
        return False
    assert found == {"ok": True}
    return True


def test_web_program_reports_a_failure_by_its_status(tmp_path: Path) -> None:
    names = runpy.run_path(str(program("fastapi", "localhost:9092", tmp_path)))
    producer = SimpleNamespace(health=lambda: SimpleNamespace(ok=False))
    request = SimpleNamespace(app=SimpleNamespace(state=SimpleNamespace(producer=producer)))
    response = SimpleNamespace(status_code=200)
    # uvicorn goes on after the producer has failed, and probes look at the status only.
    assert asyncio.run(names["health"](request, response)) == {"ok": False}
    assert response.status_code == 503


def post(port: int, process: subprocess.Popen[str]) -> dict[str, Any]:
    """Post a greeting; wait until the program listens."""
    until = time.monotonic() + 240
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            break
        except ConnectionRefusedError:
            if process.poll() is not None or time.monotonic() > until:
                raise
            time.sleep(0.02)
    request = urllib.request.Request(f"http://127.0.0.1:{port}/greetings", data=b"hello")
    with urllib.request.urlopen(request) as response:
        found: dict[str, Any] = json.load(response)
        return found


def test_program_of_pytest_asyncio_runs(servers: str, tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    out = finished(
        program("pytest", servers, tmp_path), "-m", "pytest", "-q", "-p", "no:cacheprovider"
    )
    assert "1 passed" in out


def test_program_of_anyio_on_trio_runs(servers: str, tmp_path: Path) -> None:
    assert re.fullmatch(r"offset \d+\n", finished(program("anyio", servers, tmp_path)))


def test_cancels_on_real_sockets_lose_nothing(kafka_broker: KafkaBroker) -> None:
    """Random cancellations of sends and receives, with every socket closed at the end."""
    servers, dice = kafka_broker.bootstrap_servers, random.Random(20261124)
    topic = f"aio-{uuid.uuid4().hex[:8]}"
    trio.run(make_topic, servers, topic)

    async def cut_off(work: Any, seconds: float) -> Any:
        task = asyncio.create_task(work)
        await asyncio.sleep(seconds)
        task.cancel()
        await asyncio.wait([task])
        if task.cancelled():
            return None
        return task.result()

    async def main() -> None:
        settings: trikafka.ConsumerSettings = {
            "bootstrap_servers": servers,
            "group_id": topic,
            "auto_offset_reset": "earliest",
            "enable_auto_commit": False,
        }
        async with (
            trikafka.aio.open_producer(bootstrap_servers=servers) as producer,
            trikafka.aio.open_consumer(topic, **settings) as consumer,
        ):
            places = [TopicPartition(topic, number) for number in range(3)]
            seen: dict[tuple[int, int], bytes | None] = {}
            acked: set[bytes] = set()

            async def produce() -> None:
                for number in range(600):
                    value = b"%d" % number
                    if await cut_off(producer.send(topic, value), dice.choice([0, 0, 0.001, 0.01])):
                        acked.add(value)
                await producer.flush()

            task = asyncio.create_task(produce())
            ends: dict[TopicPartition, int] | None = None
            while ends is None or len(seen) < sum(ends.values()):
                record = await cut_off(consumer.receive(), dice.choice([0, 0.0005, 0.001, 0.005]))
                if record is not None:
                    assert (record.partition, record.offset) not in seen
                    seen[record.partition, record.offset] = record.value
                if task.done() and ends is None:
                    ends = await consumer.end_offsets(places)
            await task
            assert acked <= set(seen.values())
            assert len(set(seen.values())) == len(seen)

    gc.collect()  # a socket of an earlier test must not be closed meanwhile
    before = sockets()
    with asyncio.Runner() as runner:
        runner.run(main())
        assert guests._here.guest is None
    until = time.monotonic() + 240
    while sockets() > before:
        assert time.monotonic() < until
        gc.collect()
        time.sleep(0.05)


def sockets() -> int:
    return sum(count for name, count in open_files().items() if name.startswith("socket:"))


EXITING = """
    import asyncio, trikafka, trikafka.aio

    async def main():
        async with trikafka.aio.open_consumer("greetings", bootstrap_servers={servers!r}, group_id="left") as consumer:
            await consumer.end_offsets([trikafka.TopicPartition("greetings", 0)])
            raise SystemExit(3)

    asyncio.run(main())
"""


def test_exit_inside_a_block_ends_the_program(servers: str, tmp_path: Path) -> None:
    file = tmp_path / "exit.py"
    file.write_text(textwrap.dedent(EXITING.format(servers=servers)))
    with running(file) as process:
        out, errors = process.communicate(timeout=240)
    assert (process.returncode, out) == (3, ""), errors
    assert "Traceback" not in errors
