"""Exports killed with SIGKILL, Python and JVM, at five moments: the next export leaves each record once, and nothing else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import trikafka_spark
import trio
from spark_kafka import add_records, check_whole, data_files

import trikafka
from trikafka import TopicPartition

RECORDS = 6_000
CHILD = Path(__file__).with_name("exporting_child.py")
LOSING_JAVA = Path(__file__).with_name("losing_java_child.py")


@contextmanager
def child(temporary: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """The program of ``exporting_child.py`` in a process group of its own, which is killed at the end."""
    command, pipe = [sys.executable, str(CHILD), *arguments], subprocess.PIPE
    temporary.mkdir(exist_ok=True)
    environment = os.environ | {"TMPDIR": str(temporary)}
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, start_new_session=True, env=environment) as process:
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def wait_for_line(process: subprocess.Popen[str], wanted: str) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if line.strip() == wanted:
            return
    assert process.stderr is not None
    raise AssertionError(process.stderr.read())


def wait_for_java(process: subprocess.Popen[str]) -> None:
    """Wait until the group has a JVM: Spark is starting, and far from ready."""
    while process.poll() is None:
        for entry in Path("/proc").iterdir():
            with suppress(OSError, ValueError):
                if os.getpgid(int(entry.name)) == process.pid and (entry / "comm").read_text().strip() == "java":
                    return
    raise AssertionError("the child ended before Spark started")


@pytest.mark.parametrize("moment", ["planned", "spark starts", "partly", "written", "published"])
async def test_an_export_killed_there_is_finished_by_the_next(
    moment: str, kafka_broker: Any, new_topic: Any, tmp_path: Path, spark_context: Any
) -> None:
    servers, root = kafka_broker.bootstrap_servers, tmp_path / "out"
    topic = await new_topic(RECORDS)
    stage = "none" if moment == "spark starts" else moment
    with child(tmp_path / "tmp with spaces", servers, topic, str(root), stage) as process:
        if moment == "spark starts":
            await trio.to_thread.run_sync(wait_for_line, process, f"starting 0 {RECORDS // 500}")
            await trio.to_thread.run_sync(wait_for_java, process)
        else:
            await trio.to_thread.run_sync(wait_for_line, process, "standing")

    assert (root / "_trikafka" / "plan-000001.json").exists()
    assert (root / "_trikafka" / "manifest-000001.json").exists() is (moment == "published")
    if moment in ("planned", "spark starts"):
        assert len(data_files(root)) == 0
    elif moment == "partly":
        assert 0 < len(data_files(root)) < RECORDS / 500
    else:
        assert len(data_files(root)) == RECORDS // 500

    await add_records(servers, topic, RECORDS, 400, 4)
    result = await trikafka.export(
        topic,
        root,
        bootstrap_servers=servers,
        group_id=f"group-{topic}",
        max_records_per_file=700,
        sink_options={"spark_above": 0},
    )
    assert result.resumed is (moment != "published")
    check_whole(root, RECORDS + 400, 4)
    plans = ["plan-000001.json", "plan-000002.json"]
    assert sorted(path.name for path in (root / "_trikafka").glob("plan-*")) == plans
    async with trikafka.open_admin(bootstrap_servers=servers) as admin:
        offsets = await admin.list_group_offsets(f"group-{topic}")
    assert {tp: known.offset for tp, known in offsets.items()} == {TopicPartition(topic, n): 1_600 for n in range(4)}


@pytest.mark.parametrize("moment", ["writing", "partly", "cancelled"])
async def test_a_process_that_loses_its_jvm_is_told_so_and_can_export_again(
    moment: str, kafka_broker: Any, new_topic: Any, tmp_path: Path
) -> None:
    topic, root = await new_topic(RECORDS), tmp_path / "out"
    command = [sys.executable, str(LOSING_JAVA), kafka_broker.bootstrap_servers, topic, str(root), moment]
    done = await trio.run_process(command, capture_stdout=True, capture_stderr=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    first, left, last = done.stdout.decode().splitlines()
    lost = "ExportError: Spark ended in the middle of the export: its JVM was killed, or the context was stopped"
    assert first == ("cancelled" if moment == "cancelled" else lost)
    assert left == "left: None None"
    assert last == f"rows {RECORDS} resumed True"
    check_whole(root, RECORDS, 4)


@pytest.mark.parametrize("delay", [0.0, 1.5])
async def test_interrupted_while_spark_starts_it_leaves_nothing_behind(
    delay: float, kafka_broker: Any, new_topic: Any, tmp_path: Path
) -> None:
    topic, temporary = await new_topic(1_000), tmp_path / "tmp with spaces"
    with child(temporary, kafka_broker.bootstrap_servers, topic, str(tmp_path / "out"), "none") as process:
        await trio.to_thread.run_sync(wait_for_java, process)
        await trio.sleep(delay)  # not a wait for something: a moment among many
        os.killpg(process.pid, signal.SIGINT)
        with trio.fail_after(90):
            await trio.to_thread.run_sync(process.communicate)
    assert list(temporary.iterdir()) == []


async def test_the_loop_runs_on_while_spark_starts_and_works(kafka_broker: Any, new_topic: Any, tmp_path: Path) -> None:
    """No call of the export holds the loop up for more than 100 ms, as far as a shared machine can show it.

    The child reports the longest time between two turns of its loop, less the time for which its threads were ready to run
    and the kernel let other programs run (all threads added up, so rather too much is taken off); the best of eight counts,
    as a machine that is short of memory or disk adds what the child cannot tell apart. So this does show that no step of
    every export blocks the loop, such as starting Spark in it would, or importing PySpark under the interpreter's lock. It
    does not show what a user's loop waits for on a busy machine, nor a stall that comes only now and then, nor anything
    below 100 ms.
    """
    topic = await new_topic(4_000)
    temporary, gaps = tmp_path / "tmp with spaces", list[int]()
    while not gaps or (min(gaps) > 100 and len(gaps) < 8):
        with child(temporary, kafka_broker.bootstrap_servers, topic, str(tmp_path / str(len(gaps))), "none") as process:
            out, err = await trio.to_thread.run_sync(process.communicate)
        assert process.returncode == 0, err
        assert err == "", "Spark does not write to the terminal"
        assert list(temporary.iterdir()) == []
        gaps.append(int(out.split()[-1]))
    assert min(gaps) <= 100, gaps


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"PATH": "/nonexistent"}, "no java on the PATH and no JAVA_HOME; Spark needs Java 17 or newer"),
        ({"JAVA_HOME": "/nonexistent"}, "/nonexistent/bin/java does not run; Spark needs Java 17 or newer"),
    ],
)
def test_a_machine_without_java_is_told_so_at_once(environment: dict[str, str], message: str, tmp_path: Path) -> None:
    keep = {name: value for name, value in os.environ.items() if name not in ("JAVA_HOME", "PATH")}
    command = [sys.executable, str(CHILD), "localhost:1", "t", str(tmp_path / "out"), "none"]
    done = subprocess.run(
        command, env={"PATH": os.environ["PATH"], **keep, **environment}, capture_output=True, text=True, timeout=180, check=False
    )
    assert done.returncode == 1
    assert message in done.stderr
    assert "ExportError" in done.stderr


def test_a_machine_without_spark_is_told_so_at_once(tmp_path: Path) -> None:
    """In an environment like this one, made of links, but for PySpark."""
    packages = tmp_path / "packages"
    packages.mkdir()
    for entry in Path(trio.__file__).parent.parent.iterdir():
        if not entry.name.startswith("pyspark"):
            (packages / entry.name).symlink_to(entry)
    here = [Path(trikafka.__file__).parent.parent, Path(trikafka_spark.__file__).parent.parent]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, [packages, *here]))}
    command = [sys.executable, "-S", str(CHILD), "localhost:1", "t", str(tmp_path / "out"), "none"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 1
    assert "ExportError: Spark is missing: pip install" in done.stderr
