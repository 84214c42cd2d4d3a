"""Formats and runners of other plugins."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path, PurePath
from typing import Any

import pytest
import trio
from lines_format import LinesFiles, LinesFormat
from made_batches import batch
from test_stores import finish, planned
from trikafka_export.checking import check
from trikafka_export.destination import find_sink
from trikafka_export.directory_store import DirectoryStore
from trikafka_export.pieces import PieceWriter, Shape
from trikafka_export.plugin import trikafka_sink
from trikafka_export.runners import Runners, ThreadRunner
from trikafka_export.sink_options import SinkOptions

from trikafka import ConfigurationError, ExportError, PluginError, hookimpl
from trikafka.interfaces import ExportCheck, ExportState, FileFormat


class Missing(ThreadRunner):
    """A runner for large plans that is not ready."""

    above = 2

    def check(self) -> None:
        raise ExportError("the machines are off")


class Machines:
    """A plugin with a runner for large plans, and the option ``machines``."""

    def __init__(self, runner: object, above: int | None = 2) -> None:
        self.runner = runner
        if isinstance(runner, ThreadRunner):
            vars(runner)["above"] = above
        self.options: list[Mapping[str, Any]] = []

    @hookimpl
    def trikafka_sink_options(self, scheme: str) -> Collection[str]:
        return ("machines", "machine.")

    @hookimpl
    def trikafka_export_runner(self, name: str, options: Mapping[str, Any]) -> object | None:
        if name != "large":
            return None
        self.options.append(options)
        if options.get("machines") == "none":
            raise ConfigurationError("machines must not be 'none'")
        return self.runner


async def test_format_of_a_plugin_is_kept_by_the_plan(tmp_path: Path) -> None:
    """The plan has the format's name and the suffix of its files."""
    options = {"format": "lines", "destination": str(tmp_path / "x"), "indent": 2}
    sink = trikafka_sink("file", options, (LinesFormat(),))
    assert sink is not None
    async with sink:
        pinned = await sink.pin(ExportState(), [], {})
    assert (pinned["name"], pinned["suffix"]) == ("lines", ".jsonl")


def test_option_of_another_format_is_refused() -> None:
    options = {"format": "lines", "destination": "x", "indents": 2}
    said = "unknown option 'indents' of an export with format=lines; did you mean 'indent'?"
    with pytest.raises(ConfigurationError, match=re.escape(said)):
        trikafka_sink("file", options, (LinesFormat(),))


@pytest.mark.parametrize("suffix", ["csv", ".c-v", "../x", "."])
def test_impossible_suffix_is_refused(suffix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LinesFiles, "suffix", suffix)
    options = {"format": "lines", "destination": "x"}
    with pytest.raises(PluginError, match="the files of format=lines have the suffix"):
        trikafka_sink("file", options, (LinesFormat(),))


def exported(root: Path, files: FileFormat) -> DirectoryStore:
    """Export 30 records as six files of a format; return the store, closed."""
    store = DirectoryStore(root)
    store.suffix = files.suffix
    store.open()
    format = {"name": "x", "suffix": files.suffix}
    plan = planned(store, 30, most=10, format=format)
    assert plan is not None
    assert {PurePath(each.name).suffix for each in plan.ranges} == {files.suffix}
    store.store_plan(plan)
    for each in plan.ranges:
        for start, end in ((each.start, each.start + 4), (each.start + 4, each.end)):
            writer = PieceWriter(
                store.pieces(plan, each), each, start, Shape(), format, files=files
            )
            writer.add(batch(start, [b"%d" % offset for offset in range(start, end)]))
            writer.finish(end)
    finish(store, plan)
    store.close()
    return store


def test_files_of_a_plugin_format_are_checked(tmp_path: Path) -> None:
    """Files of a format are counted by the format, and foreign ones are found by their suffix."""
    files = LinesFiles()
    store = exported(tmp_path, files)
    assert len(list(tmp_path.glob("*.jsonl"))) == 6
    assert check(store, files=files) == ExportCheck(6, 30, size_of(tmp_path), ())
    assert check(store, deep=True, files=files).problems == ()
    first, second, *_ = sorted(tmp_path.glob("*.jsonl"))
    first.write_bytes(first.read_bytes().removesuffix(b"end\n"))
    second.unlink()
    (tmp_path / "foreign.jsonl").touch()
    assert check(store, files=files).problems == (
        f"{first.name} is not a whole lines file: it has no end",
        f"{second.name} is lost, with 6 rows",
        "foreign.jsonl is in no manifest, but readers of the directory see it",
    )


def test_format_of_the_examples_works(tmp_path: Path) -> None:
    """The plugin of examples/plugins/csv_files writes comma-separated files."""
    path = Path(__file__).parents[3] / "examples/plugins/csv_files/trikafka_csv_files.py"
    names: dict[str, Any] = {"__name__": "csv_plugin"}
    exec(compile(path.read_text(), "csv", "exec"), names)
    files = names["plugin"].files({})
    store = exported(tmp_path, files)
    found = check(store, deep=True, files=files)
    assert (found.files, found.rows, found.problems) == (6, 30, ())
    lines = "".join(path.read_text() for path in sorted(tmp_path.glob("*.csv"))).splitlines()
    assert lines == [f'0,{offset},"{offset}"' for offset in range(30)]


def size_of(root: Path) -> int:
    return sum(path.stat().st_size for path in root.glob("*.jsonl"))


@pytest.mark.parametrize("name", ["orc", "lines", "org.example.Orcs"])
def test_other_format_is_refused_with_the_way(name: str) -> None:
    """The error says how Spark writes a format that exports do not write."""
    said = rf"no plugin writes format={name}: exports write parquet, .* spark\.read\.format"
    with pytest.raises(ConfigurationError, match=said):
        trikafka_sink("file", {"format": name, "destination": "x"}, ())


async def test_plugin_runner_gets_large_plans() -> None:
    machines = Machines(ThreadRunner(1))
    runners = Runners(SinkOptions(), (machines,), trio.CapacityLimiter(1))
    assert await runners.fitting(3) is machines.runner
    assert await runners.fitting(2) is not machines.runner


@pytest.mark.parametrize(("above", "all_plans"), [(0, True), (None, False)])
async def test_runner_takes_all_plans_or_none(above: int | None, all_plans: bool) -> None:
    machines = Machines(ThreadRunner(1), above)
    runners = Runners(SinkOptions(), (machines,), trio.CapacityLimiter(1))
    for width in (1, 10**12):
        assert (await runners.fitting(width) is machines.runner) is all_plans


def test_options_of_a_runner_reach_it() -> None:
    """A plugin declares its options, and gets them as the user gave them."""
    machines = Machines(ThreadRunner(1))
    options = {"destination": "x", "machines": 7, "machine.size": "l", "threads": "3"}
    trikafka_sink("file", options, (machines,))
    assert machines.options == [{"machines": 7, "machine.size": "l", "threads": 3}]


def test_wrong_option_of_a_runner_is_refused() -> None:
    options = {"machines": "none"}
    with pytest.raises(ConfigurationError, match="machines must not be 'none'"):
        find_sink("x", options, (Machines(ThreadRunner(1)),))
    with pytest.raises(ConfigurationError, match="did you mean 'machines'"):
        find_sink("x", {"machinse": 1}, (Machines(ThreadRunner(1)),))


async def test_unready_runner_leaves_plans_to_threads(
    caplog: pytest.LogCaptureFixture,
) -> None:
    runners = Runners(SinkOptions(), (Machines(Missing(1)),), trio.CapacityLimiter(1))
    assert not isinstance(await runners.fitting(3), Missing)
    assert "the machines are off; until then all 3 records" in caplog.text


async def test_unready_runner_of_all_plans_is_an_error() -> None:
    runners = Runners(SinkOptions(), (Machines(Missing(1), 0),), trio.CapacityLimiter(1))
    for asked in (runners.check, lambda: runners.fitting(1)):
        with pytest.raises(ExportError, match="the machines are off"):
            await asked()


def test_wrong_runner_is_refused_by_name() -> None:
    with pytest.raises(PluginError, match="it has no above, check, close, run, start"):
        Runners(SinkOptions(), (Machines(object()),), trio.CapacityLimiter(1))
