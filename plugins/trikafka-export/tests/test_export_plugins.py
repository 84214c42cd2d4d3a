"""Formats and runners of other plugins."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import pytest
import trio
from trikafka_export.plugin import trikafka_sink
from trikafka_export.runners import Runners, ThreadRunner
from trikafka_export.sink import ParquetSink
from trikafka_export.sink_options import sink_options

from trikafka import ConfigurationError, ExportError, PluginError, hookimpl


class Lines:
    """A format of lines, whose sink is one of Parquet for want of a better."""

    def sink(self, scheme: str, options: Mapping[str, Any], plugins: Collection[object]) -> Any:
        assert options["format"] == "lines"
        assert self in plugins
        return ParquetSink(Path(options["destination"]))

    @hookimpl
    def trikafka_export_format(self, name: str) -> Lines | None:
        return self if name == "lines" else None


class Missing(ThreadRunner):
    """A runner for large plans that is not ready."""

    def check(self) -> None:
        raise ExportError("the machines are off")


class Machines:
    def __init__(self, runner: object) -> None:
        self.runner = runner
        self.options: list[Mapping[str, Any]] = []

    @hookimpl
    def trikafka_export_runner(self, name: str, options: Mapping[str, Any]) -> object | None:
        self.options.append(options)
        return self.runner if name == "spark" else None


def test_plugin_format_makes_the_sink(tmp_path: Path) -> None:
    options = {"format": "lines", "destination": str(tmp_path / "x")}
    found = trikafka_sink("file", options, (Lines(),))
    assert isinstance(found, ParquetSink)


@pytest.mark.parametrize("name", ["orc", "lines", "org.example.Orcs"])
def test_other_format_is_refused_with_the_way(name: str) -> None:
    """The error says how Spark writes a format that exports do not write."""
    said = rf"no plugin writes format={name}: exports write parquet, .* spark\.read\.format"
    with pytest.raises(ConfigurationError, match=said):
        trikafka_sink("file", {"format": name, "destination": "x"}, ())


async def test_plugin_runner_gets_large_plans() -> None:
    machines = Machines(ThreadRunner(1))
    options = sink_options({"spark_above": 2, "master": "there", "spark.x": 1})
    runners = Runners(options, (machines,), trio.CapacityLimiter(1))
    assert await runners.fitting(3) is machines.runner
    assert await runners.fitting(2) is not machines.runner
    assert machines.options[0]["master"] == "there"
    assert machines.options[0]["spark.x"] == "1"


async def test_unready_runner_leaves_plans_to_threads(
    caplog: pytest.LogCaptureFixture,
) -> None:
    runners = Runners(
        sink_options({"spark_above": 2}), (Machines(Missing(1)),), trio.CapacityLimiter(1)
    )
    assert not isinstance(await runners.fitting(3), Missing)
    assert "the machines are off; until then all 3 records" in caplog.text


async def test_wrong_runner_is_refused_by_name() -> None:
    runners = Runners(
        sink_options({"spark_above": 2}), (Machines(object()),), trio.CapacityLimiter(1)
    )
    with pytest.raises(PluginError, match="it has no check, close, run, start"):
        await runners.fitting(3)
