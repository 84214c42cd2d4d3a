"""An export that is large enough for Spark, without Java: it runs in this process, and says so."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import trio
from known_topics import check_whole


async def test_threads_export_without_java(
    kafka_broker: Any, new_topic: Any, tmp_path: Path
) -> None:
    """Without Java a large export runs in threads and says so; one by Spark is refused."""
    topic, root = await new_topic(1_000), tmp_path / "out"
    command = [
        sys.executable,
        "-m",
        "trikafka.cli",
        "export",
        topic,
        str(root),
        "-b",
        kafka_broker.bootstrap_servers,
    ]
    environment = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"} | {
        "PATH": "/nonexistent"
    }

    async def run(above: str) -> Any:
        options = [*command, "--option", f"spark_above={above}"]
        return await trio.run_process(
            options, capture_stdout=True, capture_stderr=True, check=False, env=environment
        )

    asked = await run("0")
    assert asked.returncode == 1, "Spark was asked for"
    assert b"no java is on the PATH" in asked.stderr
    done = await run("999")
    assert done.returncode == 0, done.stderr
    assert b"no java is on the PATH" in done.stderr
    assert b"until then all 1,000 records are exported by threads of this process" in done.stderr
    check_whole(root, 1_000, 4)
