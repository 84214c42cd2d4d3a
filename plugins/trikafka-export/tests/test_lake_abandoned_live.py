"""An unfinished export whose files were removed before the next run: reported, abandoned, written again.

The runs that abandon it are killed.
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
from test_lake_kill_live import child as exporting

import trikafka
from trikafka import ExportError

RECORDS = 400
#: ``before`` and ``after`` are the two sides of the commit that abandons the plan.
MOMENTS = ["before", "after", "published"]
CHILD = Path(__file__).with_name("abandoning_child.py")


@pytest.fixture(params=["delta", "iceberg"])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    return make_lake(request.param, tmp_path / "lake")


@contextmanager
def abandoning(lake: Lake, topic: str, moment: str) -> Iterator[subprocess.Popen[str]]:
    command = [
        sys.executable,
        str(CHILD),
        topic,
        lake.destination,
        moment,
        json.dumps(lake.options),
    ]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            yield process
        finally:
            os.kill(process.pid, signal.SIGKILL)


async def reached(process: subprocess.Popen[str], line: str = "standing") -> None:
    with trio.fail_after(900):
        await trio.to_thread.run_sync(wait_for_line, process, line)


async def stop_before_the_commit(
    topic: str, lake: Lake, monkeypatch: pytest.MonkeyPatch, **where: Any
) -> None:
    """Export until the commit, which fails."""

    def fail(*_: Any, **__: Any) -> None:
        raise OSError("it ends here")

    call = {
        "delta": "deltalake.DeltaTable.create_write_transaction",
        "iceberg": "pyiceberg.table.Transaction.commit_transaction",
    }
    with monkeypatch.context() as patched:
        patched.setattr(call[lake.format], fail)
        with pytest.raises(ExportError, match="it ends here"):
            await trikafka.export(topic, lake.destination, **where)


def vacuum(lake: Lake, keep: int = 0) -> None:
    """Remove files that no version of the table has, as ``VACUUM`` and ``remove_orphan_files`` do.

    ``keep`` files stay, as if they were too new.
    """
    files = sorted(lake.root.rglob("*.parquet"))
    if lake.format == "delta" and not keep:
        lake.table.vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)  # type: ignore[attr-defined]
    else:
        for path in files[keep:]:
            path.unlink()
    assert len(list(lake.root.rglob("*.parquet"))) == keep < len(files)


async def test_vacuumed_plan_is_abandoned_despite_kills(
    kafka_broker: Any, new_topic: Any, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan whose files were removed can be abandoned, also by runs that are killed."""
    servers, topic = kafka_broker.bootstrap_servers, await new_topic(RECORDS)
    where = {"bootstrap_servers": servers, "sink_options": lake.options}
    await stop_before_the_commit(topic, lake, monkeypatch, **where)
    vacuum(lake)
    for _ in range(2):
        with pytest.raises(
            ExportError,
            match=r"was written and no longer exists; nothing was committed: .*discard the plan \(--abandon\)",
        ):
            await trikafka.export(topic, lake.destination, **where)
    for moment in MOMENTS:
        with abandoning(lake, topic, moment) as process:
            await reached(process)
        assert lake.read().num_rows == 0
    assert (lake.root / "_trikafka" / "manifest-000001.json").exists()
    await add_records(servers, topic, RECORDS, 100, 4)
    result = await trikafka.export(topic, lake.destination, **where)
    assert (result.resumed, result.rows, result.lost) == (False, RECORDS + 100, ())
    lake.check(RECORDS + 100)
    assert not (await trikafka.check_export(lake.destination, sink_options=lake.options)).problems


async def test_export_finishes_an_abandoned_plan(
    kafka_broker: Any, new_topic: Any, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An export finishes an abandoned plan although some files of the plan are left.

    They have the names that the next plan would give to its own.
    """
    servers, topic = kafka_broker.bootstrap_servers, await new_topic(RECORDS)
    where = {"bootstrap_servers": servers, "sink_options": lake.options}
    await stop_before_the_commit(topic, lake, monkeypatch, **where)
    vacuum(lake, keep=2)
    with abandoning(lake, topic, "after") as process:
        await reached(process)
    result = await trikafka.export(topic, lake.destination, **where)
    assert (result.resumed, result.rows) == (True, RECORDS)
    assert {file.name.rpartition("/")[0].removeprefix("data/") for file in result.files} == {
        "again-000002"
    }
    lake.check(RECORDS)
    await add_records(servers, topic, RECORDS, 40, 4)
    assert (await trikafka.export(topic, lake.destination, **where)).rows == 40
    lake.check(RECORDS + 40)
    assert not (await trikafka.check_export(lake.destination, sink_options=lake.options)).problems


async def test_partly_written_plan_can_be_abandoned(
    kafka_broker: Any, new_topic: Any, lake: Lake
) -> None:
    """A plan can be abandoned if its run was killed while writing and its files were removed."""
    servers, topic = kafka_broker.bootstrap_servers, await new_topic(RECORDS)
    where = {"bootstrap_servers": servers, "sink_options": lake.options}
    with exporting(lake, servers, topic, "partly") as process:
        await reached(process)
    vacuum(lake)
    async with trikafka.open_exporter(topic, lake.destination, **where) as exporter:
        with pytest.raises(
            ExportError, match=r"was written and is gone; .*--abandon also ends its plan"
        ):
            await exporter.run()
        assert (await exporter.abandon()).rows == 0
        assert (await exporter.run()).rows == RECORDS
    lake.check(RECORDS)
    assert not (await trikafka.check_export(lake.destination, sink_options=lake.options)).problems


async def test_late_run_cannot_commit_an_abandoned_plan(
    kafka_broker: Any, new_topic: Any, lake: Lake
) -> None:
    """A late run cannot commit an abandoned plan.

    The run stops just before its commit, after it has checked all of its files. Its lock expires
    meanwhile.
    """
    servers, topic = kafka_broker.bootstrap_servers, await new_topic(RECORDS)
    where = {"bootstrap_servers": servers, "sink_options": lake.options}
    with exporting(lake, servers, topic, "before") as late:
        await reached(late)
        vacuum(lake)
        (lake.root / "_trikafka" / "lock").unlink()
        async with trikafka.open_exporter(topic, lake.destination, **where) as exporter:
            given_up = await exporter.abandon()
            assert (given_up.rows, sum(each.end - each.start for each in given_up.carried)) == (
                0,
                RECORDS,
            )
            os.kill(late.pid, signal.SIGUSR1)
            await reached(late, "ended")
            assert lake.read().num_rows == 0
            assert (await exporter.run()).rows == RECORDS
    lake.check(RECORDS)
    assert not (await trikafka.check_export(lake.destination, sink_options=lake.options)).problems


async def test_abandoning_a_complete_plan_commits_it(
    kafka_broker: Any, new_topic: Any, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    servers, topic = kafka_broker.bootstrap_servers, await new_topic(RECORDS)
    where = {"bootstrap_servers": servers, "sink_options": lake.options}
    await stop_before_the_commit(topic, lake, monkeypatch, **where)
    async with trikafka.open_exporter(
        topic, lake.destination, bootstrap_servers="127.0.0.1:1", sink_options=lake.options
    ) as exporter:
        assert (await exporter.abandon()).rows == RECORDS
    lake.check(RECORDS)
