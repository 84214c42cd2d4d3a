"""``trikafka export --check``: where exports have found nothing, and without being told the format."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from lakes import make_lake
from spark_kafka import add_records

import trikafka
from trikafka import ExportError
from trikafka.cli.app import run
from trikafka.interfaces import ExportCheck


def command(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    """The exit code, and what was said."""
    code = run(["export", *arguments])
    said = capsys.readouterr()
    return code, said.out, said.err


def test_exports_that_have_found_nothing_are_no_difference(
    kafka_broker: Any, new_topic: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It was said that there was no export at all, with exit code 1."""
    servers, topic, root = kafka_broker.bootstrap_servers, trio.run(new_topic, 0), tmp_path / "out"

    async def export() -> int:
        return (await trikafka.export(topic, root, bootstrap_servers=servers)).rows

    for _ in range(2):
        assert trio.run(export) == 0
        assert trio.run(trikafka.check_export, root) == ExportCheck(0, 0, 0, ())
    code, out, _ = command(["--check", str(root)], capsys)
    assert (code, out) == (0, f"no records: no export to {root} has found any\n")
    trio.run(add_records, servers, topic, 0, 100, 4)
    assert trio.run(export) == 100
    code, out, _ = command(["--check", str(root)], capsys)
    assert (code, out.split(" (")[0]) == (0, "100 records in 4 files")


def test_a_place_that_no_export_has_seen_is_an_error_still_and_stays_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Else a slip in its name would be good news."""
    for _ in range(2):
        code, _, err = command(["--check", str(tmp_path / "flihgts")], capsys)
        assert code == 1
        assert "flihgts holds no export: there is no plan in it" in err
    assert not (tmp_path / "flihgts").exists()


async def test_an_export_that_failed_has_not_found_nothing(tmp_path: Path) -> None:
    with pytest.raises(trikafka.BootstrapError):
        await trikafka.export("t", tmp_path / "out", bootstrap_servers="127.0.0.1:1")
    with pytest.raises(ExportError, match="holds no export"):
        await trikafka.check_export(tmp_path / "out")


def test_the_format_is_the_plans(
    kafka_broker: Any, new_topic: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lake = make_lake("delta", tmp_path / "lake")
    where = {"bootstrap_servers": kafka_broker.bootstrap_servers, "sink_options": lake.options}
    trio.run(partial(trikafka.export, trio.run(new_topic, 100), lake.destination, **where))
    assert trio.run(trikafka.check_export, lake.destination).rows == 100
    code, out, _ = command(["--check", lake.destination], capsys)
    assert (code, out) == (0, "100 records in 4 ranges of a table, as the manifests say\n")
    code, _, err = command(["--check", "--format", "parquet", lake.destination], capsys)
    assert code == 2
    assert "is a Delta table" in err


def test_a_plan_that_is_not_finished_is_told(
    kafka_broker: Any, new_topic: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It looked as if no export had found anything."""
    servers, topic, root = kafka_broker.bootstrap_servers, trio.run(new_topic, 0), tmp_path / "out"
    trio.run(add_records, servers, topic, 0, 100, 4)

    def breaks_off(progress: object) -> None:
        raise RuntimeError("it breaks off")

    with pytest.raises(Exception, match="it breaks off"):
        trio.run(partial(trikafka.export, topic, root, bootstrap_servers=servers, on_progress=breaks_off))
    assert trio.run(trikafka.check_export, root).unfinished == 1
    code, out, _ = command(["--check", str(root)], capsys)
    assert (code, out) == (0, "plan 1 is not finished, and not counted here: run the export again, which finishes it\n")
    assert '"unfinished": 1' in command(["--check", "--json", str(root)], capsys)[1]
    trio.run(partial(trikafka.export, topic, root, bootstrap_servers=servers))
    assert trio.run(trikafka.check_export, root).unfinished is None
