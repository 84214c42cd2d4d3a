"""Every client and command works under ``-W error``, so no deprecated function is called."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import trio, trikafka
from trikafka.testing import ScriptedCluster

async def main():
    async with ScriptedCluster(topics={"t": 2}) as cluster:
        settings = {"bootstrap_servers": cluster.bootstrap_servers, "dial": cluster.dial}
        with trio.fail_after(20):
            async with trikafka.open_admin(**settings) as admin:
                assert await admin.list_topics()
            async with trikafka.open_producer(**settings, compression_type="gzip") as producer:
                await producer.send("t", b"x")
            async with trikafka.open_producer(**settings, transactional_id="x") as producer:
                async with producer.transaction():
                    await producer.send("t", b"y")
            for more in ({}, {"group_protocol": "classic"}):
                async with trikafka.open_consumer("t", **settings, group_id="g", auto_offset_reset="earliest", **more) as consumer:
                    if not more:
                        assert {(await consumer.receive()).value for _ in range(2)} == {b"x", b"y"}
                    else:
                        await consumer.receive_batch(timeout=0.5)
                    await consumer.commit()
            print("done")
trio.run(main)
"""


def test_clients_work_without_warnings() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM], capture_output=True, text=True, timeout=600
    )
    assert (done.stdout, done.stderr) == ("done\n", "")


@pytest.mark.parametrize(
    "command", [["--help"], ["topics"], ["consume", "t", "-e"], ["produce", "-t", "t"], ["groups"]]
)
def test_command_works_without_warnings(command: list[str]) -> None:
    """The command runs until it needs a broker, which is behind all imports."""
    program = [sys.executable, "-W", "error", "-m", "trikafka.cli", *command, "-b", "127.0.0.1:1"]
    done = subprocess.run(
        program, capture_output=True, text=True, timeout=600, stdin=subprocess.DEVNULL
    )
    if command == ["--help"]:
        assert (done.returncode, done.stderr) == (0, "")
    else:
        assert done.returncode == 1
        assert "cannot connect to 127.0.0.1:1" in done.stderr
        assert done.stderr.count("\n") == 1
