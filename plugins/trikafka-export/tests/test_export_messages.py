"""Messages of ``trikafka export``: an outage once with ``--every``, the place of dead letters."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_flow import World
from trikafka_export.command import _dead_letter_folder, _ExportRun, _gist, _sentence

from trikafka import ExportResult, TrikafkaError
from trikafka.cli.app import run
from trikafka.testing import ScriptedCluster

LATE = (
    "t-1 could not be exported: reading t-1 from offset {} did not finish within {} s (1 attempt)"
)
GONE = (
    "t-0, t-12 could not be exported: t-0 holds the offsets [30, {}), but [0, 100) were to be read"
)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (LATE.format(5, 120), LATE.format(5, 120.25) + "; 1,200 rows are published"),
        (GONE.format(100), GONE.format("250") + "; 3 rows are published"),
    ],
)
def test_same_outage_has_the_same_gist(one: str, other: str) -> None:
    assert _gist(one) == _gist(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (LATE, LATE.replace("t-1 could", "t-2 could")),
        (LATE, GONE),
        (
            "cannot write to /data/1: No space left on device",
            "cannot write to /data/2: No space left on device",
        ),
    ],
)
def test_another_outage_has_another_gist(one: str, other: str) -> None:
    assert _gist(one) != _gist(other)


@pytest.mark.parametrize(
    ("destination", "format", "location", "told"),
    [
        ("/data/orders", "parquet", None, "_dead_letters in /data/orders"),
        (
            "shop.orders",
            "iceberg",
            "s3://lake/shop/orders",
            "_dead_letters in s3://lake/shop/orders",
        ),
        ("shop.orders", "iceberg", None, "_dead_letters at the location of shop.orders"),
    ],
)
def test_place_of_dead_letters_is_named(
    destination: str, format: str, location: str | None, told: str
) -> None:
    result = ExportResult(
        destination, (), False, (), {}, {}, dead_letters=1, format=format, location=location
    )
    assert _dead_letter_folder(result) == told


@pytest.mark.parametrize(("count", "records"), [(1, "1 record"), (2, "2 records")])
def test_report_of_dead_letters_fits_any_number(
    count: int, records: str, capsys: pytest.CaptureFixture[str]
) -> None:
    result = ExportResult("/data/orders", (), False, (), {}, {}, dead_letters=count)
    _ExportRun(None, False, False, None)._print(result)
    warning = f"Warning: {records} could not be parsed: see _dead_letters in /data/orders"
    assert warning in capsys.readouterr().err.splitlines()


@pytest.mark.parametrize(("count", "records"), [(1, "1 record waits"), (2, "2 records wait")])
def test_report_of_waiting_records_fits_any_number(count: int, records: str) -> None:
    result = ExportResult("/data/orders", (), False, (), {}, {}, waiting=count)
    assert _sentence(result) == f"nothing written: {records} for more, or for --max-file-delay"


async def test_empty_export_claims_nothing_false(
    tmp_path: Path, autojump_clock: object, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither a deleted topic nor --abandon means that all records have been exported."""

    async with ScriptedCluster(topics={"t": 2, "other": 1}) as cluster:
        world = World(cluster, tmp_path / "out")
        world.fill(0, 5)
        run, abandon = _ExportRun(None, False, False, None), _ExportRun(None, True, False, None)
        async with world.exporter(["t"]) as exporter:
            for work in (run, run, abandon):
                await work._once(exporter)
            cluster.delete_topic("t")
            with pytest.raises(TrikafkaError, match="topic 't' does not exist"):
                await run._once(exporter)
    where = f"lines://{tmp_path / 'out'}"
    assert capsys.readouterr().out.splitlines()[1:] == [
        f"nothing new: all records have been exported to {where}",
        f"nothing to publish: no plan is unfinished in {where}",
        f"nothing written to {where}",
    ]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (
            ["--option", "compression=gzip", "--option", "compression=zstd"],
            "compression is given twice, with different values: choose one",
        ),
        (
            ["--format", "delta", "--option", "format=parquet"],
            "format is given twice, with different values: choose one",
        ),
        (["--group", ""], "group_id must not be empty text; leave it out instead"),
        (["--from", "yesterday"], "an export begins at 'beginning' or at a time (2026-01-31T12:00"),
        (["--from", "5"], "an export begins at 'beginning' or at a time (2026-01-31T12:00"),
        (["--from", "1960-01-01"], "1960-01-01: this is before 1970"),
    ],
    ids=lambda each: " ".join(each) if isinstance(each, list) else "",
)
def test_contradicting_options_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], given: list[str], says: str
) -> None:
    """An option that would be ignored, or mean two things, is an error before any request."""
    assert run(["export", "t", str(tmp_path / "out"), "-b", "nowhere:1", *given]) == 2
    assert says in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "given",
    [["--check", "--abandon"], ["--abandon", "--every", "5s"], ["--check", "--every", "5s"]],
)
def test_options_that_exclude_each_other_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], given: list[str]
) -> None:
    assert run(["export", "t", str(tmp_path / "out"), *given]) == 2
    assert "only one of --check, --abandon and --every" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
