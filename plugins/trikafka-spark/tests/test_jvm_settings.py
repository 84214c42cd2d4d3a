"""Settings reach a JVM that is started here, without appearing in the list of processes."""

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

import pytest
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
    """Return the command lines of a process group."""
    found = set()
    for entry in Path("/proc").iterdir():
        with suppress(OSError, ValueError):
            if os.getpgid(int(entry.name)) == group:
                found.add((entry / "cmdline").read_text(errors="replace").replace("\0", " "))
    return found


def started(environment: Mapping[str, str]) -> tuple[dict[str, Any], set[str], list[Path]]:
    """Start Spark with the settings ``GIVEN``.

    Returns the settings that Spark reports, all command lines that were seen, and the remaining
    files.
    """
    pipe, lines = subprocess.PIPE, set()
    with subprocess.Popen(
        [sys.executable, str(CHILD)],
        stdin=pipe,
        stdout=pipe,
        text=True,
        start_new_session=True,
        env={**os.environ, **environment},
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(GIVEN) + "\n")
            process.stdin.flush()
            until = time.monotonic() + 600
            while not select.select([process.stdout], [], [], 0.01)[0]:
                assert time.monotonic() < until
                lines |= shown(process.pid)
            said = json.loads(process.stdout.readline())
            lines |= shown(process.pid)
            left = list(Path(said["scratch"]).rglob("*.properties"))
        finally:
            process.stdin.close()
    return said, lines, left


def test_process_list_shows_no_setting(tmp_path: Path) -> None:
    """No setting is in the command line of the JVM or its launcher.

    All settings arrive, and no file remains. A file of the user's own counts, after ours.
    """
    theirs = tmp_path / "theirs.conf"
    theirs.write_text("spark.theirs=1\nspark.both theirs", encoding="utf-8")
    said, lines, left = started(
        {"PYSPARK_SUBMIT_ARGS": f"--properties-file {theirs} pyspark-shell"}
    )
    assert any("SparkSubmit" in line for line in lines)
    assert not [line for line in lines if MARK in line]
    assert any("-Xmx510m" in line for line in lines), "read before the JVM starts"
    assert said["conf"] == GIVEN | {
        "spark.driver.extraJavaOptions": said["conf"]["spark.driver.extraJavaOptions"]
    }
    assert said["properties"] == {
        "mine": "1",
        "theirs": None,
        "defaults": None,
        "spark.theirs": "1",
        "spark.both": "ours",
    }
    assert left == []


def test_file_is_given_beside_sparks_defaults(tmp_path: Path) -> None:
    path = tmp_path / "own"
    command = in_a_file(
        ["spark-submit", "--verbose", "pyspark-shell"], [("spark.a b", "c=\u20ac")], path
    )
    assert command == [
        "spark-submit",
        "--properties-file",
        str(path),
        "--load-spark-defaults",
        "--verbose",
        "pyspark-shell",
    ]
    assert path.read_text() == "spark.a\\u0020b=c\\u003d\\u20ac\n"


@pytest.mark.parametrize("elsewhere", [False, True])
def test_spark_3_5_has_its_defaults_in_the_file(
    elsewhere: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark 3.5 gets its own defaults from the same file, since it has no option for two files.

    Of two lines with one name the later one counts.
    """
    monkeypatch.delenv("SPARK_CONF_DIR", raising=False)
    path, home = tmp_path / "own", tmp_path / "spark"
    script = str(home / "bin" / "spark-submit")
    assert in_a_file([script, "pyspark-shell"], [("spark.a", "b")], path, "3.5.7") == [
        script,
        "--properties-file",
        str(path),
        "pyspark-shell",
    ]
    assert path.read_text() == "\nspark.a=b\n"
    conf = tmp_path / "elsewhere" if elsewhere else home / "conf"
    if elsewhere:
        monkeypatch.setenv("SPARK_CONF_DIR", str(conf))
    conf.mkdir(parents=True)
    (conf / "spark-defaults.conf").write_text("spark.a theirs")
    in_a_file([script, "pyspark-shell"], [("spark.a", "b")], path, "3.5.7")
    assert path.read_text() == "spark.a theirs\nspark.a=b\n"
