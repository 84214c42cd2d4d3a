"""``trikafka export --check`` of exports without records, and without the option of the format."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from known_topics import add_records
from lakes import make_lake

import trikafka
from trikafka import ExportError
from trikafka.cli.app import run
from trikafka.interfaces import ExportCheck


def command(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    """Run the command; return its exit code and output."""
    code = run(["export", *arguments])
    said = capsys.readouterr()
    return code, said.out, said.err


def test_check_of_empty_exports_passes(
    kafka_broker: Any, new_topic: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A destination of exports without records passes the check.

    Previously the check reported that there was no export, with exit code 1.
    """
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
    code, out, _ = command(["--check", "--deep", str(root)], capsys)
    assert (code, out.partition("), ")[2]) == (0, "as the manifests say, byte by byte\n")
    first = min(root.glob("*.parquet"))
    first.write_bytes(first.read_bytes()[:-9] + b"x" + first.read_bytes()[-8:])
    code, out, _ = command(["--check", "--deep", str(root)], capsys)
    assert code == 1
    assert out.startswith(f"{first.name} has changed: its CRC-32C is ")
    assert '"unhashed": 0' in command(["--check", "--deep", "--json", str(root)], capsys)[1]
    code, _, err = command(["--deep", topic, str(root)], capsys)
    assert (code, "--deep is for --check" in err) == (2, True)


def test_check_without_any_export_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A destination without any export is an error: its name may be misspelt."""
    for _ in range(2):
        code, _, err = command(["--check", str(tmp_path / "flihgts")], capsys)
        assert code == 1
        assert "flihgts holds no export: there is no plan in it" in err
    assert not (tmp_path / "flihgts").exists()


async def test_failed_export_counts_as_no_export(tmp_path: Path) -> None:
    """The check of a destination whose only export failed says that it holds no export."""
    with pytest.raises(trikafka.BootstrapError):
        await trikafka.export("t", tmp_path / "out", bootstrap_servers="127.0.0.1:1")
    with pytest.raises(ExportError, match="holds no export"):
        await trikafka.check_export(tmp_path / "out")


def test_check_takes_the_format_from_the_plan(
    kafka_broker: Any, new_topic: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The check of a Delta table needs no format; a wrong one is refused."""
    lake = make_lake("delta", tmp_path / "lake")
    where = {"bootstrap_servers": kafka_broker.bootstrap_servers, "sink_options": lake.options}
    trio.run(partial(trikafka.export, trio.run(new_topic, 100), lake.destination, **where))
    assert trio.run(trikafka.check_export, lake.destination).rows == 100
    code, out, _ = command(["--check", lake.destination], capsys)
    assert (code, out) == (0, "100 records in 4 ranges of a table, as the manifests say\n")
    code, _, err = command(["--check", "--deep", lake.destination], capsys)
    assert code == 2
    assert "is a table, whose files other programs may compact and rewrite" in err
    code, _, err = command(["--check", "--format", "parquet", lake.destination], capsys)
    assert code == 2
    assert "is a Delta table" in err


def test_unfinished_plan_is_reported(
    kafka_broker: Any, new_topic: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An unfinished plan is reported, and not taken for an export without records."""
    servers, topic, root = kafka_broker.bootstrap_servers, trio.run(new_topic, 0), tmp_path / "out"
    trio.run(add_records, servers, topic, 0, 100, 4)

    def breaks_off(progress: object) -> None:
        raise RuntimeError("it breaks off")

    with pytest.raises(Exception, match="it breaks off"):
        trio.run(
            partial(trikafka.export, topic, root, bootstrap_servers=servers, on_progress=breaks_off)
        )
    assert trio.run(trikafka.check_export, root).unfinished == 1
    code, out, _ = command(["--check", str(root)], capsys)
    assert (code, out) == (
        0,
        "plan 1 is unfinished, and not counted here; the next export finishes it\n",
    )
    assert '"unfinished": 1' in command(["--check", "--json", str(root)], capsys)[1]
    trio.run(partial(trikafka.export, topic, root, bootstrap_servers=servers))
    assert trio.run(trikafka.check_export, root).unfinished is None
