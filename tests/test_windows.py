"""The client and the command use nothing that only POSIX systems have.

There is no Windows here. So a process hides what Windows lacks, imports every module, and runs a
producer and a consumer and a command.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = r"""
import importlib, os, pkgutil, select, signal, socket, sys

# The libraries decide by sys.platform while they are imported, so they come before it changes.
import click, cramjam, kafka, pluggy, rich.console, rich.live, rich.progress, rich.table
import asyncio, concurrent.futures, importlib.metadata, multiprocessing, subprocess, tempfile
import sysconfig
import trio, trio.testing
import kafka.protocol.metadata, kafka.protocol.consumer, kafka.protocol.producer
import kafka.protocol.admin

sysconfig.get_config_vars()  # reads a file by the name of the platform

HIDDEN = {"fcntl", "grp", "posix", "pwd", "resource", "syslog", "termios", "tty", "pty"}


class Hides:
    def find_spec(self, name, path=None, target=None):
        if name in HIDDEN:
            raise ModuleNotFoundError(f"No module named {name!r}: hidden", name=name)


for name in HIDDEN:
    sys.modules.pop(name, None)
sys.meta_path.insert(0, Hides())
for module, names in {
    os: "fork forkpty geteuid getuid pwrite fchmod fchown fpathconf register_at_fork O_CLOEXEC O_DIRECTORY "
    "O_NONBLOCK sched_getaffinity killpg",
    signal: "SIGHUP SIGKILL SIGSTOP SIGPIPE SIGUSR1 SIGUSR2 SIGALRM pthread_sigmask",
    select: "poll",
    socket: "MSG_NOSIGNAL TCP_NOTSENT_LOWAT",
}.items():
    for each in names.split():
        if hasattr(module, each):
            delattr(module, each)
os.O_BINARY = 0
sys.platform = "win32"

import trikafka

for found in pkgutil.walk_packages(trikafka.__path__, "trikafka."):
    if not found.name.endswith(("__main__", ".kerberos")):
        importlib.import_module(found.name)

from trikafka.testing import ScriptedCluster


async def main():
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        settings = {"bootstrap_servers": cluster.bootstrap_servers, "dial": cluster.dial}
        async with trikafka.open_producer(**settings) as producer:
            await producer.send("t", b"value")
        async with trikafka.open_consumer(
            "t", group_id="g", auto_offset_reset="earliest", **settings
        ) as consumer:
            with trio.fail_after(30):
                print((await consumer.receive()).value)


trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))

sys.modules["msvcrt"] = type(sys)("msvcrt")
sys.modules["msvcrt"].setmode = lambda fd, mode: print("binary", fd)
from trikafka.cli.app import run

sys.exit(run(["topics", "--help"]))
"""


def test_client_and_command_need_no_posix(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=400, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[:3] == ["b'value'", "binary 0", "binary 1"]
    assert any("create" in line for line in lines)
