"""Exports by Spark killed with SIGKILL, Python and JVM. The next leaves each record once.

The next export runs in threads here, and by Spark where only the JVM was killed.

At the moments at which Spark has no part the exports by threads are killed:
test_export_format_live.py and test_lake_kill_live.py.
"""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

import pytest
import trikafka_export
import trikafka_spark
import trio
from child_output import group_of, wait_for_line
from known_topics import add_records, check_whole, data_files
from trikafka_broker.waiting import wait_until

import trikafka
from trikafka import TopicPartition

RECORDS = 6_000
CHILD = Path(__file__).parents[2] / "trikafka-export" / "tests" / "exporting_child.py"
LOSING_JAVA = Path(__file__).with_name("losing_java_child.py")


def child(temporary: Path, *arguments: str) -> AbstractContextManager[subprocess.Popen[str]]:
    """Run ``exporting_child.py`` in a process group of its own, which is killed at the end."""
    return group_of([sys.executable, str(CHILD), *arguments], temporary)


def java_of(group: int, part: bytes = b"") -> list[int]:
    """Return the JVMs of a process group that have ``part`` in their command."""
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError, ValueError):
            if (
                os.getpgid(int(entry.name)) == group
                and (entry / "comm").read_text().strip() == "java"
                and part in (entry / "cmdline").read_bytes()
            ):
                found.append(int(entry.name))
    return found


def wait_for_java(process: subprocess.Popen[str]) -> None:
    """Wait until the group has a JVM of Spark: it is starting, and far from ready.

    The JVM by which an export tries whether there is a Java does not count: a signal to the group
    at that moment would look like a Java that does not run.
    """

    def is_starting() -> bool:
        assert process.poll() is None, "the child ended before Spark started"
        return bool(java_of(process.pid, b"org.apache.spark"))

    assert wait_until(is_starting, 600)


@pytest.mark.parametrize("moment", ["spark starts", "partly"])
async def test_killed_export_is_finished_by_the_next(
    moment: str, kafka_broker: Any, new_topic: Any, tmp_path: Path
) -> None:
    servers, topic = kafka_broker.bootstrap_servers, await new_topic(RECORDS)
    stage = "none" if moment == "spark starts" else moment
    for number in range(10):
        root = tmp_path / f"out-{number}"
        with child(tmp_path / "tmp with spaces", servers, topic, str(root), stage) as process:
            if moment == "spark starts":
                line = f"starting 0 {RECORDS // 500}"
                await trio.to_thread.run_sync(wait_for_line, process, line)
                await trio.to_thread.run_sync(wait_for_java, process)
            else:
                await trio.to_thread.run_sync(wait_for_line, process, "standing")
        assert (root / "_trikafka" / "plan-000001.json").exists()
        # A test that stood still before the kill may find that the export was faster.
        if not (root / "_trikafka" / "manifest-000001.json").exists():
            break
        assert moment == "spark starts"
    else:
        pytest.fail("each export was faster than its kill")
    assert moment == "spark starts" or data_files(root)

    await add_records(servers, topic, RECORDS, 400, 4)
    result = await trikafka.export(
        topic,
        root,
        bootstrap_servers=servers,
        group_id=f"group-{topic}",
        max_records_per_file=700,
        sink_options={"spark_above": "never"},
    )
    assert result.resumed
    check_whole(root, RECORDS + 400, 4)
    plans = ["plan-000001.json", "plan-000002.json"]
    assert sorted(path.name for path in (root / "_trikafka").glob("plan-*")) == plans
    async with trikafka.open_admin(bootstrap_servers=servers) as admin:
        offsets = await admin.list_group_offsets(f"group-{topic}")
    assert {tp: known.offset for tp, known in offsets.items()} == {
        TopicPartition(topic, n): 1_600 for n in range(4)
    }


async def test_export_works_after_the_jvm_was_killed(
    kafka_broker: Any, new_topic: Any, tmp_path: Path
) -> None:
    """The loss of the JVM is reported, and the same process can export again."""
    topic, root = await new_topic(RECORDS), tmp_path / "out"
    command = [
        sys.executable,
        str(LOSING_JAVA),
        kafka_broker.bootstrap_servers,
        topic,
        str(root),
    ]
    done = await trio.run_process(command, capture_stdout=True, capture_stderr=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    lost = (
        "ExportError: Spark ended during the export: its JVM was killed, or the context was stopped"
    )
    nothing = "left: None None"
    assert done.stdout.decode().splitlines() == [
        *(lost, nothing, "cancelled", nothing),
        f"rows {RECORDS} resumed True",
    ]
    check_whole(root, RECORDS, 4)


async def test_loop_is_not_blocked_by_spark(
    kafka_broker: Any, new_topic: Any, tmp_path: Path
) -> None:
    """No call of the export blocks the loop for more than 200 ms.

    The child reports the longest time between two turns of its loop, less the time for which its
    threads were ready and the kernel let other programs run, or for which the whole process stood
    still. All threads are added up, so rather too much is subtracted. On a slow processor the rest
    counts in proportion. The best of eight counts: a shortage of memory or disk adds time that the
    child cannot distinguish.

    So this shows that no step of every export blocks the loop. Examples would be a start of Spark
    in the loop, or an import of PySpark under the interpreter's lock. The test does not show the
    waits of a user's loop on a busy machine, rare stalls, or anything below 200 ms.
    """
    topic = await new_topic(4_000)
    temporary, gaps = tmp_path / "tmp with spaces", list[int]()
    while not gaps or (min(gaps) > 200 and len(gaps) < 8):
        with child(
            temporary, kafka_broker.bootstrap_servers, topic, str(tmp_path / str(len(gaps))), "none"
        ) as process:
            out, err = await trio.to_thread.run_sync(process.communicate)
        assert process.returncode == 0, err
        assert err == "", "Spark does not write to the terminal"
        with trio.fail_after(240):
            while list(temporary.iterdir()):  # noqa: ASYNC110  (a worker may just be ending)
                await trio.sleep(0.02)
        gaps.append(int(out.split()[-1]))
    assert min(gaps) <= 200, gaps


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        (
            {"PATH": "/nonexistent"},
            "no java is on the PATH, and JAVA_HOME is not set; Spark needs Java 17 or newer",
        ),
        (
            {"JAVA_HOME": "/nonexistent"},
            "/nonexistent/bin/java (of JAVA_HOME) does not run; Spark needs Java 17 or newer",
        ),
    ],
)
def test_missing_java_is_reported(
    environment: dict[str, str], message: str, tmp_path: Path
) -> None:
    keep = {name: value for name, value in os.environ.items() if name not in ("JAVA_HOME", "PATH")}
    command = [sys.executable, str(CHILD), "localhost:1", "t", str(tmp_path / "out"), "none"]
    done = subprocess.run(
        command,
        env={"PATH": os.environ["PATH"], **keep, **environment},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 1
    assert message in done.stderr
    assert "ExportError" in done.stderr


def test_missing_pyspark_is_reported(tmp_path: Path) -> None:
    """Without PySpark the export fails at once, and says so.

    The environment is made of links to this one, except for PySpark.
    """
    packages = tmp_path / "packages"
    packages.mkdir()
    for entry in Path(trio.__file__).parent.parent.iterdir():
        if not entry.name.startswith("pyspark"):
            (packages / entry.name).symlink_to(entry)
    packages_here = (trikafka, trikafka_export, trikafka_spark)
    here = [Path(package.__path__[0]).parent for package in packages_here]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, [packages, *here]))}
    command = [sys.executable, "-S", str(CHILD), "localhost:1", "t", str(tmp_path / "out"), "none"]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 1
    assert "ExportError: Spark is missing: pip install" in done.stderr
