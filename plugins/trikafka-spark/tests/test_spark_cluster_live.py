"""An export by executors that are processes of their own, as on a cluster."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pyspark
import trio
from known_topics import check_whole


async def test_two_executors_export_a_topic(
    kafka_broker: Any, new_topic: Any, tmp_path: Path
) -> None:
    """Two executors export a topic.

    Spark leaves the executors' logs in its own folder, from where the test removes them.
    """
    topic, root = await new_topic(2_000), tmp_path / "out"
    logs = Path(pyspark.__file__).parent / "work"
    before = set(logs.iterdir()) if logs.exists() else set()
    options = {
        "spark_above": "0",
        "master": "local-cluster[2,1,1024]",
        "spark.executor.memory": "900m",
        "spark.executor.extraJavaOptions": os.environ["SPARK_SUBMIT_OPTS"],  # quick_spark.py
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    }
    arguments = [
        part for name, value in options.items() for part in ("--option", f"{name}={value}")
    ]
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
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    try:
        with trio.fail_after(900):
            done = await trio.run_process(
                [*command, "--max-records-per-file", "100", "--json", *arguments],
                capture_stdout=True,
                capture_stderr=True,
                check=False,
                env=environment,
            )
        assert done.returncode == 0, done.stderr.decode()
        found = json.loads(done.stdout)
        assert (found["records"], len(found["files"])) == (2_000, 20)
        check_whole(root, 2_000, 4)
        executors = [
            path for path in (set(logs.iterdir()) - before) if path.name.startswith("app-")
        ]
        assert len([path for app in executors for path in app.iterdir()]) == 2, (
            "both executors were there"
        )
    finally:
        for path in (set(logs.iterdir()) if logs.exists() else set()) - before:
            shutil.rmtree(path, ignore_errors=True)
