"""An export in the format of another package: JSON lines, from a real Kafka."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from child_output import wait_for_line
from known_topics import add_records, value_of
from lines_format import LinesFormat

import trikafka
from trikafka import ConfigurationError

RECORDS = 4_000
CHILD = Path(__file__).with_name("exporting_child.py")
OPTIONS = {"format": "lines", "threads": 1}


@contextmanager
def child(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Run an export by threads during the block; kill it at the end."""
    command = [sys.executable, str(CHILD), *arguments, json.dumps(OPTIONS)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            os.kill(process.pid, signal.SIGKILL)


def names_in(root: Path, pattern: str = "*.jsonl") -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob(pattern))


def check_lines(root: Path, records: int) -> None:
    """Check that a glob finds each record once, in files that are whole."""
    found = []
    for path in root.glob("*.jsonl"):
        *lines, end = path.read_text().splitlines()
        assert end == "end"
        found += [json.loads(line) for line in lines]
    known = {(row["partition"], row["offset"]): row["value"] for row in found}
    assert len(found) == len(known) == records
    for number in range(records):
        value = value_of(number)
        text = None if value is None else value.decode()
        assert known[number % 4, number // 4] == text


@pytest.mark.parametrize("stage", ["planned", "partly", "written", "published"])
async def test_killed_export_of_a_plugin_format_goes_on(
    stage: str, kafka_broker: Any, new_topic: Any, tmp_path: Path
) -> None:
    """Files of a third-party format are exported, resumed and checked as Parquet files are."""
    servers, topic = kafka_broker.bootstrap_servers, await new_topic(RECORDS)
    with child(servers, topic, str(tmp_path), stage) as process, trio.fail_after(900):
        await trio.to_thread.run_sync(wait_for_line, process, "standing")
    files = len(names_in(tmp_path))
    assert {"planned": files == 0, "partly": 0 < files < 8}.get(stage, files == 8)

    await add_records(servers, topic, RECORDS, 400, 4)
    plugins = [LinesFormat()]
    result = await trikafka.export(
        topic, tmp_path, bootstrap_servers=servers, sink_options=OPTIONS, plugins=plugins
    )
    assert (result.format, result.resumed) == ("lines", stage != "published")
    check_lines(tmp_path, RECORDS + 400)
    assert not names_in(tmp_path, "*.parquet")

    found = await trikafka.check_export(tmp_path, sink_options=OPTIONS, plugins=plugins, deep=True)
    assert (found.rows, found.problems, found.unhashed) == (RECORDS + 400, (), 0)
    first = tmp_path / names_in(tmp_path)[0]
    first.write_bytes(first.read_bytes().replace(b"pad", b"pat", 1))
    found = await trikafka.check_export(tmp_path, sink_options=OPTIONS, plugins=plugins, deep=True)
    assert [problem.partition(":")[0] for problem in found.problems] == [
        f"{first.name} has changed"
    ]
    with pytest.raises(ConfigurationError, match="was exported with format=lines and keeps it"):
        await trikafka.export(topic, tmp_path, bootstrap_servers=servers)
