"""The command ends in order on a signal.

The signal comes while the JVM starts, while it is frozen, and between two exports.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import trio
from child_output import group_of
from known_topics import add_records, check_whole
from test_spark_kill_live import java_of, wait_for_java

SPARK = ("--option", "spark_above=0", "--option", "master=local[2]")


def command(*arguments: str, temporary: Path) -> AbstractContextManager[subprocess.Popen[str]]:
    """Run ``trikafka export`` in its own process group, as a terminal does."""
    return group_of([sys.executable, "-m", "trikafka.cli", "export", *arguments], temporary)


async def no_java(group: int) -> None:
    """Wait until the group has no JVM: that of the launcher ends by the signal, too."""
    with trio.fail_after(240):
        while java_of(group):  # noqa: ASYNC110
            await trio.sleep(0.02)


@pytest.mark.parametrize(
    ("delay", "number", "code"),
    [(0.0, signal.SIGINT, 130), (0.7, signal.SIGTERM, 143), (1.2, signal.SIGINT, 130)],
)
async def test_signal_while_the_jvm_starts_is_silent(
    delay: float,
    number: signal.Signals,
    code: int,
    kafka_broker: Any,
    new_topic: Any,
    tmp_path: Path,
) -> None:
    topic, temporary = await new_topic(100), tmp_path / "tmp with spaces"
    where = (topic, str(tmp_path / "out"), "-b", kafka_broker.bootstrap_servers)
    # Repeated, so that the command cannot end by itself before the signal.
    with command(*where, "--every", "10m", *SPARK, temporary=temporary) as process:
        await trio.to_thread.run_sync(wait_for_java, process)
        await trio.sleep(delay)  # not a wait for a condition: one moment of many
        # As Ctrl-C does; SIGTERM also goes to all processes of a service.
        os.killpg(process.pid, number)
        with trio.fail_after(900):
            _, wrong = await trio.to_thread.run_sync(process.communicate)
        assert (process.returncode, wrong) == (code, "")
        await no_java(process.pid)
        # The module `tempfile` tries the folder by a file, in a thread that ends with the process.
        assert [path for path in temporary.iterdir() if path.is_dir()] == []


async def test_frozen_jvm_does_not_delay_the_end(
    kafka_broker: Any, new_topic: Any, tmp_path: Path
) -> None:
    """A frozen JVM does not delay the end.

    It is killed, since it was started for this export. The next export finishes the rest.
    """
    topic, servers = await new_topic(2_000), kafka_broker.bootstrap_servers
    small = ("--max-records-per-file", "10")  # 200 files
    for number in itertools.count():
        root = tmp_path / str(number)
        with command(
            topic, str(root), "-b", servers, *small, *SPARK, temporary=tmp_path / "tmp"
        ) as process:
            with trio.fail_after(900):
                while not list(root.glob("*.parquet")):  # noqa: ASYNC110  (files have no events)
                    await trio.sleep(0.02)
            for jvm in java_of(process.pid):
                os.kill(jvm, signal.SIGSTOP)
            if len(list(root.glob("*.parquet"))) > 150:
                continue  # this process stood still meanwhile, and the export may be complete
            asked = time.monotonic()
            process.send_signal(signal.SIGINT)
            with trio.fail_after(900):
                _, wrong = await trio.to_thread.run_sync(process.communicate)
            took = time.monotonic() - asked
            assert (process.returncode, wrong) == (130, "")
            await no_java(process.pid)
            break
    assert took < 90, "a second, and more only as far as a shared machine goes"
    with command(topic, str(root), "-b", servers, "--json", temporary=tmp_path / "tmp") as process:
        said, _ = await trio.to_thread.run_sync(process.communicate)
    assert json.loads(said)["resumed"] is True
    check_whole(root, 2_000, 4)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
async def test_repeated_export_ends_on_a_signal(
    number: signal.Signals, code: int, kafka_broker: Any, new_topic: Any, tmp_path: Path
) -> None:
    topic, root, servers = await new_topic(100), tmp_path / "out", kafka_broker.bootstrap_servers
    with command(
        topic, str(root), "-b", servers, "--every", "100ms", "--json", temporary=tmp_path / "tmp"
    ) as process:
        assert process.stdout is not None
        first = json.loads(await trio.to_thread.run_sync(process.stdout.readline))
        assert (first["records"], first["files"][0]["from"], first["seconds"] > 0) == (100, 0, True)
        await add_records(servers, topic, 100, 20, 4)
        records = 100
        with trio.fail_after(900):
            while records < 120:
                records += json.loads(await trio.to_thread.run_sync(process.stdout.readline))[
                    "records"
                ]
        process.send_signal(number)
        asked = time.monotonic()
        with trio.fail_after(900):
            _, wrong = await trio.to_thread.run_sync(process.communicate)
        assert (process.returncode, wrong) == (code, "")
        assert time.monotonic() - asked < 90, "at once, as far as a shared machine goes"
    check_whole(root, 120, 4)
