"""Settings reach a JVM that is started here without being shown to who lists the processes."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from trikafka_spark.jvm_settings import in_a_file

MARK = "MARK-77ae-secret"
CHILD = Path(__file__).with_name("jvm_child.py")
GIVEN = {
    "spark.hadoop.fs.s3a.secret.key": MARK,
    "spark.strange": " =:#!\\ \t\u00e9 \U0001f600 'a' \"b\" ",
    "spark.lines": "a\nb\r\n",
    "spark.both": "ours",
    "spark.driver.memory": "510m",
    "spark.driver.extraJavaOptions": "-Dmine=1",
}


def shown(group: int) -> set[str]:
    """The command lines of a process group."""
    found = set()
    for entry in Path("/proc").iterdir():
        with suppress(OSError, ValueError):
            if os.getpgid(int(entry.name)) == group:
                found.add((entry / "cmdline").read_text(errors="replace").replace("\0", " "))
    return found


def started(environment: Mapping[str, str]) -> tuple[dict[str, Any], set[str], list[Path]]:
    """Start Spark with what is ``GIVEN``: what it says of it, all command lines that were seen, and files that are left."""
    pipe, lines = subprocess.PIPE, set()
    with subprocess.Popen(
        [sys.executable, str(CHILD)], stdin=pipe, stdout=pipe, text=True, start_new_session=True, env={**os.environ, **environment}
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(GIVEN) + "\n")
            process.stdin.flush()
            until = time.monotonic() + 60
            while not select.select([process.stdout], [], [], 0.01)[0]:
                assert time.monotonic() < until
                lines |= shown(process.pid)
            said = json.loads(process.stdout.readline())
            lines |= shown(process.pid)
            left = list(Path(said["scratch"]).rglob("*.properties"))
        finally:
            process.stdin.close()
    return said, lines, left


def test_no_setting_is_seen_in_the_list_of_processes(tmp_path: Path) -> None:
    """Not the JVM's, nor its launcher's; all arrive, and no file is left. A file of the user's own counts, after ours."""
    theirs = tmp_path / "theirs.conf"
    theirs.write_text("spark.theirs=1\nspark.both theirs", encoding="utf-8")
    said, lines, left = started({"PYSPARK_SUBMIT_ARGS": f"--properties-file {theirs} pyspark-shell"})
    assert any("SparkSubmit" in line for line in lines)
    assert not [line for line in lines if MARK in line]
    assert any("-Xmx510m" in line for line in lines), "read before the JVM starts"
    assert said["conf"] == GIVEN | {"spark.driver.extraJavaOptions": said["conf"]["spark.driver.extraJavaOptions"]}
    assert said["properties"] == {"mine": "1", "theirs": None, "defaults": None, "spark.theirs": "1", "spark.both": "ours"}
    assert left == []


def test_the_file_goes_beside_the_defaults_of_spark(tmp_path: Path) -> None:
    path = tmp_path / "own"
    command = in_a_file(["spark-submit", "--verbose", "pyspark-shell"], [("spark.a b", "c=\u20ac")], path)
    assert command == ["spark-submit", "--properties-file", str(path), "--load-spark-defaults", "--verbose", "pyspark-shell"]
    assert path.read_text() == "spark.a\\u0020b=c\\u003d\\u20ac\n"
