"""The data source by Spark Connect: a server process, and a Trio program as its client."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyspark
import quick_spark
import trio
from test_spark_write_live import records
from trikafka_broker.ports import Ports

CLIENT = Path(__file__).with_name("connect_child.py")
HOME = Path(pyspark.__file__).parent


@contextmanager
def connect_server(directory: Path) -> Iterator[str]:
    """Run Spark Connect on this machine, in its own process group; yield its address."""
    ports = Ports()
    port = ports.take()
    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        **quick_spark.WORKERS,
    }
    arguments = [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
    server = [
        "--master",
        "local[2]",
        "--class",
        "org.apache.spark.sql.connect.service.SparkConnectServer",
        "spark-internal",
    ]
    environment = os.environ | {
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_HOME": str(HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    environment |= {
        "TMPDIR": str(directory),
        "PYTHONPATH": quick_spark.child_environment()["PYTHONPATH"],
    }
    log = directory / "server.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [str(HOME / "bin" / "spark-submit"), *arguments, *server],
            env=environment,
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    try:
        until = time.monotonic() + 600
        while "server started at" not in log.read_text(errors="replace"):
            assert time.monotonic() < until, log.read_text(errors="replace")
            assert process.poll() is None, log.read_text(errors="replace")
            time.sleep(0.05)
        yield f"sc://127.0.0.1:{port}"
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        ports.release()


async def test_program_uses_spark_connect(
    kafka_broker: Any, new_topic: Any, tmp_path: Path
) -> None:
    """A Trio program uses all of the data source by Spark Connect.

    It uses snapshots, a schema of its own, a filter, exactly-once writes and streams, and
    cancels a query.
    """
    assert importlib.util.find_spec("grpc"), "the client needs what pyspark[connect] names"
    topic = await new_topic(100, partitions=2)
    written, streamed = await new_topic(0, partitions=2), await new_topic(0, partitions=2)
    arguments = [
        kafka_broker.bootstrap_servers,
        topic,
        written,
        streamed,
        str(tmp_path / "checkpoints"),
    ]
    with connect_server(tmp_path) as remote, trio.fail_after(900):
        command = [sys.executable, str(CLIENT), remote, *arguments]
        done = await trio.run_process(
            command, capture_stdout=True, capture_stderr=True, check=False
        )
    assert done.returncode == 0, done.stderr.decode()
    found = json.loads(done.stdout)
    assert (found["count"], found["chosen"], found["columns"]) == (100, 41, ["partition", "offset"])
    assert found["batches"] == 2
    assert found["cancelled"] < 100
    assert len(await records(kafka_broker, written)) == 100, "one load(), one snapshot"
    assert len(await records(kafka_broker, streamed)) == 101
