"""The programs in docs/share-groups.md, run as written, except for the address, on a real broker."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import trio
from cluster_waits import topic_reported, topics_deleted

import trikafka

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/share-groups.md").read_text(encoding="utf-8")
PROGRAMS = dict(re.findall(r"<!-- run: (\w+) -->\n```python\n(.*?)```", PAGE, re.DOTALL))


def test_every_program_of_the_page_is_run() -> None:
    assert PAGE.count("<!-- run:") == len(PROGRAMS)
    assert set(PROGRAMS) == {"worker", "batches", "run_queue"}
    assert len(PAGE.split()) < 1_500


async def run(name: str, servers: str, tmp_path: Path, says: str) -> int:
    """Run a program until it says something, then end it with a signal; return its exit code."""
    file = tmp_path / f"{name}.py"
    file.write_text(PROGRAMS[name].replace("localhost:9092", servers), encoding="utf-8")
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    process = await trio.lowlevel.open_process(
        [sys.executable, str(file)],
        stdout=subprocess.PIPE,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert process.stdout is not None
    try:
        async with process.stdout:
            said = b""
            while says.encode() not in said:
                got = await process.stdout.receive_some()
                assert got, said
                said += got
            process.send_signal(signal.SIGTERM)
            return await process.wait()
    finally:
        if process.poll() is None:
            process.kill()
            with trio.CancelScope(shield=True):
                await process.wait()


@pytest.mark.parametrize(
    ("name", "says"),
    [("worker", "worked on b'job"), ("batches", "took"), ("run_queue", "handled b'job")],
)
async def test_a_program_of_the_page_runs(
    kafka_broker: Any, tmp_path: Path, name: str, says: str
) -> None:
    servers: str = kafka_broker.bootstrap_servers
    with trio.fail_after(400):
        async with trikafka.open_admin(bootstrap_servers=servers) as admin:
            await admin.create_topics({"jobs": trikafka.NewTopic(1, 1)})
            try:
                await topic_reported(admin, "jobs", 1)
                # As the page's command does.
                group = trikafka.ConfigResource("group", "workers")
                await admin.alter_configs({group: {"share.auto.offset.reset": "earliest"}})
                # The controller has the setting first. The group's first member must find it.
                found = ""
                while found != "earliest":
                    settings = (await admin.describe_configs([group]))[group]
                    found = settings["share.auto.offset.reset"].value
                async with trikafka.open_producer(bootstrap_servers=servers) as producer:
                    for number in range(10):
                        await producer.enqueue("jobs", b"job %d" % number)
                code = await run(name, servers, tmp_path, says)
                assert code == (0 if name == "run_queue" else -signal.SIGTERM)
            finally:
                await topics_deleted(admin, ["jobs"])
