"""Exports into tables, killed by SIGKILL before, in and after the commit.

The next export leaves each record once.
"""

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
from known_topics import add_records
from lakes import Lake, make_lake

import trikafka

RECORDS = 2_000
#: Of an export; ``before`` and ``after`` are the two sides of the commit itself.
MOMENTS = ["partly", "before", "after", "published"]
CHILD = Path(__file__).with_name("committing_child.py")


@pytest.fixture(params=["delta", "iceberg"])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    return make_lake(request.param, tmp_path / "lake")


@contextmanager
def child(lake: Lake, servers: str, topic: str, moment: str) -> Iterator[subprocess.Popen[str]]:
    options = json.dumps({**lake.options, "threads": 1})
    arguments = [servers, topic, lake.destination, moment, options]
    command, pipe = [sys.executable, str(CHILD), *arguments], subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            yield process
        finally:
            os.kill(process.pid, signal.SIGKILL)


@pytest.mark.parametrize("moment", MOMENTS)
async def test_killed_export_is_finished_by_the_next(
    moment: str, kafka_broker: Any, new_topic: Any, lake: Lake
) -> None:
    servers, topic = kafka_broker.bootstrap_servers, await new_topic(RECORDS)
    with child(lake, servers, topic, moment) as process:
        with trio.fail_after(900):
            await trio.to_thread.run_sync(wait_for_line, process, "standing")
        if moment in ("after", "published"):  # a reader sees a plan whole or not at all
            lake.check(RECORDS)
        else:
            assert lake.read().num_rows == 0
    assert (lake.root / "_trikafka" / "plan-000001.json").exists()
    assert (lake.root / "_trikafka" / "manifest-000001.json").exists() is (moment == "published")

    await add_records(servers, topic, RECORDS, 400, 4)
    where = {
        "bootstrap_servers": servers,
        "sink_options": lake.options,
        "group_id": f"group-{topic}",
    }
    result = await trikafka.export(topic, lake.destination, **where)
    assert (result.resumed, result.rows) == (
        (False, 400) if moment == "published" else (True, RECORDS + 400)
    )
    assert len(result.versions) == (1 if moment == "published" else 2)
    lake.check(RECORDS + 400)
    assert not (await trikafka.check_export(lake.destination, sink_options=lake.options)).problems
    named = {file.name for file in lake.root.rglob("*.parquet")}
    assert len(named) == lake.files(), "no file that no table knows"
    async with trikafka.open_admin(bootstrap_servers=servers) as admin:
        offsets = await admin.list_group_offsets(f"group-{topic}")
    assert {known.offset for known in offsets.values()} == {(RECORDS + 400) // 4}


async def test_committed_plan_is_known_without_files(
    kafka_broker: Any, new_topic: Any, lake: Lake
) -> None:
    """A committed plan is known although its files and its snapshot are gone.

    The export was killed after its commit. Then another program compacts the table and removes all
    old files.
    """
    servers, topic = kafka_broker.bootstrap_servers, await new_topic(RECORDS)
    with child(lake, servers, topic, "after") as process:
        with trio.fail_after(900):
            await trio.to_thread.run_sync(wait_for_line, process, "standing")
    await trio.to_thread.run_sync(lake.compact)
    assert len(list(lake.root.rglob("*.parquet"))) == 1
    where = {"bootstrap_servers": servers, "sink_options": lake.options}
    result = await trikafka.export(topic, lake.destination, **where)
    assert (result.resumed, result.rows) == (True, RECORDS)
    lake.check(RECORDS)
    assert not (await trikafka.check_export(lake.destination, sink_options=lake.options)).problems


async def test_one_of_two_exporters_commits(kafka_broker: Any, new_topic: Any, lake: Lake) -> None:
    """Of two exporters of one plan one commits.

    The first stops just before its commit, as on a machine that sleeps. Its lock expires meanwhile.
    """
    servers, topic = kafka_broker.bootstrap_servers, await new_topic(RECORDS)
    where = {"bootstrap_servers": servers, "sink_options": lake.options}
    with child(lake, servers, topic, "before") as late:
        with trio.fail_after(900):
            await trio.to_thread.run_sync(wait_for_line, late, "standing")
        (lake.root / "_trikafka" / "lock").unlink()
        result = await trikafka.export(topic, lake.destination, **where)
        assert (result.resumed, result.rows) == (True, RECORDS)
        lake.check(RECORDS)
        os.kill(late.pid, signal.SIGUSR1)  # the process continues: it looks again, or is refused
        with trio.fail_after(900):
            await trio.to_thread.run_sync(wait_for_line, late, "ended")
    lake.check(RECORDS)
    assert (await trikafka.export(topic, lake.destination, **where)).already_done
    assert not (await trikafka.check_export(lake.destination, sink_options=lake.options)).problems
